//! A client in a process of its own, for races: it makes each call that it reads from stdin, and stops
//! directly before the call's first commit until it is told to go on. Two of them have then both decided
//! over the same revision.

use std::io::{BufRead as _, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use abide::client::{
    AgentSessionClient, ClientError, CloseMode, ResolveInterrupt, StartSession, SteerMode,
};
use abide::ids::{FlowType, InterruptId, MessageId, RequestId, SessionId, TurnId};
use abide::settings::SessionSettings;
use abide::store::SqliteStateStore;
use abide::testing::faults::{FailingStore, StoreCall};
use serde::Deserialize;
use serde_json::{Value, json};

/// One line of stdin.
#[derive(Deserialize)]
struct Request {
    session: SessionId,
    /// The request id, where the call takes one.
    id: Option<RequestId>,
    call: Call,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Call {
    Start(String),
    Send(String),
    Steer(String),
    SteerQueued(MessageId),
    Edit(MessageId, String),
    DeleteQueued(MessageId),
    /// Approved by this person.
    Approve(InterruptId, String),
    /// Rejected by this person.
    Reject(InterruptId, String),
    Cancel(TurnId),
    Retry(TurnId),
    /// The revision that is expected, and the model.
    Settings(u64, String),
    CloseAndCancel,
    CloseAndDrain,
    /// Into this session, up to this turn, with this message.
    Fork(SessionId, TurnId, String),
    DeleteSession,
}

/// Makes calls until stdin ends.
pub(crate) async fn run(store: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let sqlite = Arc::new(SqliteStateStore::open(store).await?);
    let is_armed = Arc::new(AtomicBool::new(false));
    let armed = Arc::clone(&is_armed);
    let store = FailingStore::new(sqlite, move |call, _| {
        if call == StoreCall::FreeCommit && armed.swap(false, Ordering::SeqCst) {
            say("ready");
            let told = next_line().expect("stdin is read");
            assert_eq!(told.as_deref(), Some("go"), "nothing else is said now");
        }
        None
    });
    let client = AgentSessionClient::new(Arc::new(store));
    say("started");
    while let Some(line) = next_line()? {
        let request = serde_json::from_str(&line)?;
        is_armed.store(true, Ordering::SeqCst);
        let answer = match make(&client, request).await {
            Ok(answer) => answer,
            Err(error) => json!({ "error": format!("{error:?}") }),
        };
        say(&answer.to_string());
    }
    Ok(())
}

async fn make(client: &AgentSessionClient, request: Request) -> Result<Value, ClientError> {
    let (session, id) = (&request.session, request.id);
    let start = |id: &SessionId, text: String| {
        let flow_type = FlowType::new("Scripted").expect("a type");
        StartSession::new(id.clone(), flow_type).with_initial_message(text)
    };
    let answered = |value: Value, is_repeat: bool| json!({"value": value, "is_repeat": is_repeat});
    let resolve = async |answer: ResolveInterrupt, by: String| {
        let mut answer = answer.decided_by(by);
        if let Some(id) = id.clone() {
            answer = answer.with_request_id(id);
        }
        client.resolve_interrupt(session, answer).await
    };
    Ok(match request.call {
        Call::Start(text) => {
            let is_new = client.start_session(start(session, text)).await?;
            answered(Value::Null, !is_new)
        }
        Call::Send(text) => {
            let it = client.send_user_message(session, text, id).await?;
            answered(json!(it.message_id), it.duplicate)
        }
        Call::Steer(text) => {
            let it = client
                .steer_user_message(session, text, SteerMode::AtBoundary, id)
                .await?;
            answered(json!(it.value), it.duplicate)
        }
        Call::SteerQueued(message) => {
            let it = client
                .steer_queued_message(session, message, SteerMode::AtBoundary, id)
                .await?;
            answered(json!(it.value), it.duplicate)
        }
        Call::Edit(message, text) => {
            let it = client
                .edit_queued_message(session, message, text, id)
                .await?;
            answered(json!(it.value), it.duplicate)
        }
        Call::DeleteQueued(message) => {
            let it = client.delete_queued_message(session, message, id).await?;
            answered(Value::Null, it.duplicate)
        }
        Call::Approve(interrupt, by) => {
            let is_new = resolve(ResolveInterrupt::approve(interrupt), by).await?;
            answered(Value::Null, !is_new)
        }
        Call::Reject(interrupt, by) => {
            let is_new = resolve(ResolveInterrupt::reject(interrupt, None), by).await?;
            answered(Value::Null, !is_new)
        }
        Call::Cancel(turn) => {
            let it = client.cancel_turn(session, Some(turn), None, id).await?;
            answered(json!(it.value), it.duplicate)
        }
        Call::Retry(turn) => {
            let it = client.retry_turn(session, turn, id).await?;
            answered(json!(it.value), it.duplicate)
        }
        Call::Settings(expected, model) => {
            let settings = SessionSettings {
                model: Some(model),
                ..SessionSettings::default()
            };
            let it = client
                .update_settings(session, expected, settings, id)
                .await?;
            answered(json!(it.value), it.duplicate)
        }
        Call::CloseAndCancel => {
            let it = client.close_session(session, CloseMode::Cancel, id).await?;
            answered(Value::Null, it.duplicate)
        }
        Call::CloseAndDrain => {
            let it = client.close_session(session, CloseMode::Drain, id).await?;
            answered(Value::Null, it.duplicate)
        }
        Call::Fork(into, turn, text) => {
            let is_new = client
                .fork_session(session, turn, start(&into, text))
                .await?;
            answered(Value::Null, !is_new)
        }
        Call::DeleteSession => {
            client.delete_session(session).await?;
            answered(Value::Null, false)
        }
    })
}

fn next_line() -> std::io::Result<Option<String>> {
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line)?;
    Ok((read > 0).then(|| line.trim_end().to_owned()))
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .expect("the test reads stdout");
}

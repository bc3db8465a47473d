//! What a turn looks like in the log: its Steps in order (R03), as a snapshot a person can read.

use abide::client::Observed;
use abide::event::EventKind;
use abide::ids::{EventCursor, SessionId};

use crate::support::World;

/// R03, I11: a turn with a write is `RunModel`, `AwaitToolApproval`, `CallSingleAttemptTool`,
/// `ResumeTurn`, `RunModel`.
#[tokio::test]
async fn a_turn_with_a_write_has_five_steps() {
    let mut world = World::fake().await;
    let script = r#"script: call lookup {"order_id":"7"} && call refund {"order_id":"7"}"#;
    let session = world.start_session("trace", script).await;
    world.approve(&session).await;
    world.wait_for_turns(&session, 1).await;
    insta::assert_snapshot!(log(&world, &session).await, @"
    session_started
    message_queued
    turn_started
    message 1
    s1 RunModel
    s1 attempt 1
    lookup starts
    it ends: Succeeded
    message 2
    message 3
    model calls: 1
    s2 AwaitToolApproval
    a person decides about refund (Unclassified)
    turn_suspended
    approved: true
    s3 CallSingleAttemptTool
    s3 attempt 1
    refund starts
    it ends: Succeeded
    s4 ResumeTurn
    turn_resumed
    s5 RunModel
    s5 attempt 1
    message 4
    message 5
    model calls: 1
    turn_completed
    ");
    world.check_cli().await;
}

/// The log without usage and ids of the model: one line an event.
async fn log(world: &World, session: &SessionId) -> String {
    let client = world.client();
    let mut events = client
        .events(session, EventCursor(0))
        .await
        .expect("events");
    let mut lines = Vec::new();
    while let Some(Observed::Event(event)) = events.next().await.expect("the log is read") {
        lines.push(line(event.kind));
    }
    lines.join("\n")
}

fn line(kind: EventKind) -> String {
    match kind {
        EventKind::StepStarted { step_id, step, .. } => format!("{step_id} {step}"),
        EventKind::AttemptStarted { step_id, attempt } => {
            format!("{step_id} attempt {attempt}")
        }
        EventKind::ToolCallStarted { tool_name, .. } => format!("{tool_name} starts"),
        EventKind::ToolCallFinished { status, .. } => format!("it ends: {status:?}"),
        EventKind::InterruptRequested {
            tool_name, effect, ..
        } => format!("a person decides about {tool_name} ({effect:?})"),
        EventKind::InterruptResolved { approved, .. } => format!("approved: {approved}"),
        EventKind::MessageCommitted { sequence } => format!("message {sequence}"),
        EventKind::UsageReported { usage } => format!("model calls: {}", usage.model_calls),
        other => serde_json::to_value(&other).expect("an event is JSON")["kind"]
            .as_str()
            .expect("a kind is a text")
            .to_owned(),
    }
}

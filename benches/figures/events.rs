//! Events to a hundred subscribers of one session.
//!
//! Measured: from the call that sends a message to the moment when a subscriber sees it as the event
//! `message_queued`; 100 subscribers, one message after the other, each of which an engine of this
//! process answers (three commits) before the next one is sent. So the time holds one durable commit,
//! the wake-up, and a read of the log, which the subscribers share. The 95th percentile of all messages and
//! subscribers:
//!
//! - `event_p95_ms`: subscribers in the process of the client and the engine.
//! - `event_cross_p95_ms`: subscribers in another process, which looks for what others committed every
//!   20 ms.
//! - `event_raw_p95_ms`: the raw twin commits as many bytes by bare `rusqlite` and tells 100 tasks of
//!   this process by a bare tokio channel.

use std::path::Path;
use std::sync::Arc;

use abide::client::{AgentSessionClient, EventStream, Observed, StartSession};
use abide::event::EventKind;
use abide::ids::{EventCursor, FlowType, SessionId};
use abide::store::SqliteStateStore;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::{broadcast, mpsc};

use crate::commit;
use crate::process::{Beside, between_ms, monotonic_ns, work_beside};
use crate::report::{Effort, Figure, Group, quantile};
use crate::scripted::{self, Asking};

pub(crate) const GROUP: Group = Group {
    names: &["event_p95_ms", "event_cross_p95_ms", "event_raw_p95_ms"],
    run,
};

pub(crate) const JOB: &str = "events";

const SUBSCRIBERS: usize = 100;

fn run(effort: Effort) -> Vec<Figure> {
    let directory = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let messages = effort.pick(200, 3);
    let runtime = Runtime::new().expect("a runtime");
    let mut here = runtime.block_on(here_ms(&directory.path().join("here.sqlite"), messages));
    let mut cross = cross_ms(&runtime, &directory.path().join("cross.sqlite"), messages);
    let mut raw = runtime.block_on(raw_ms(&directory.path().join("raw.sqlite"), messages));
    let figures = GROUP.names.iter().zip([&mut here, &mut cross, &mut raw]);
    figures
        .map(|(name, times)| Figure::new(name, quantile(times, 0.95), "ms"))
        .collect()
}

fn session() -> SessionId {
    SessionId::new("watched").expect("an id")
}

async fn start(client: &AgentSessionClient) {
    let flow_type = FlowType::new("Figures").expect("a flow type");
    let start = StartSession::new(session(), flow_type);
    client.start_session(start).await.expect("it starts");
}

/// Tells when each message was seen, and when the answer to it was.
async fn subscribe(mut events: EventStream, told: mpsc::UnboundedSender<Seen>) {
    while let Ok(Some(observed)) = events.next().await {
        let seen = match observed {
            Observed::Event(event) => match event.kind {
                EventKind::MessageQueued { .. } => Seen::Message(monotonic_ns()),
                EventKind::TurnCompleted => Seen::Answer,
                _ => continue,
            },
            Observed::CaughtUp => Seen::CaughtUp,
            _ => continue,
        };
        if told.send(seen).is_err() {
            return;
        }
    }
}

enum Seen {
    CaughtUp,
    Message(u64),
    Answer,
}

/// Starts all subscribers, and returns when all of them have caught up.
async fn subscribers(client: &AgentSessionClient) -> mpsc::UnboundedReceiver<Seen> {
    let (told, mut seen) = mpsc::unbounded_channel();
    for _ in 0..SUBSCRIBERS {
        let events = client.events(&session(), EventCursor(0)).await;
        tokio::spawn(subscribe(events.expect("events"), told.clone()));
    }
    for _ in 0..SUBSCRIBERS {
        assert!(matches!(seen.recv().await, Some(Seen::CaughtUp)));
    }
    seen
}

async fn send(client: &AgentSessionClient) -> u64 {
    let session = session();
    let sent = monotonic_ns();
    let accepted = client.send_user_message(&session, "How is order 7?", None);
    accepted.await.expect("it is accepted");
    sent
}

async fn here_ms(database: &Path, messages: usize) -> Vec<f64> {
    let engine = scripted::engine(database, Asking::nothing()).await;
    let client = engine.client();
    start(&client).await;
    let mut seen = subscribers(&client).await;
    let mut times = Vec::new();
    for _ in 0..messages {
        let sent = send(&client).await;
        let mut answers = 0;
        while answers < SUBSCRIBERS {
            match seen.recv().await.expect("subscribers are there") {
                Seen::Message(at) => times.push(between_ms(sent, at)),
                Seen::Answer => answers += 1,
                Seen::CaughtUp => {}
            }
        }
    }
    engine.shutdown().await;
    assert_eq!(times.len(), messages * SUBSCRIBERS);
    times
}

fn cross_ms(runtime: &Runtime, database: &Path, messages: usize) -> Vec<f64> {
    let engine = runtime.block_on(async {
        let engine = scripted::engine(database, Asking::nothing()).await;
        start(&engine.client()).await;
        engine
    });
    let other = Beside::start(JOB, database);
    let sent = runtime.block_on(async {
        let client = engine.client();
        let events = client.events(&session(), EventCursor(0)).await;
        let (told, mut seen) = mpsc::unbounded_channel();
        tokio::spawn(subscribe(events.expect("events"), told));
        let mut sent = Vec::new();
        for _ in 0..messages {
            sent.push(send(&client).await);
            while !matches!(seen.recv().await, Some(Seen::Answer)) {}
        }
        engine.shutdown().await;
        sent
    });
    let seen = other.finish();
    assert_eq!(seen.len(), messages * SUBSCRIBERS);
    let by_message = seen.chunks(SUBSCRIBERS).zip(sent);
    let times =
        by_message.flat_map(|(seen, sent)| seen.iter().map(move |it| between_ms(sent, *it)));
    times.collect()
}

/// Subscribes, and prints when each message was seen: those of one message after those of the other.
pub(crate) fn child(database: &Path) -> Vec<u64> {
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let store = SqliteStateStore::open(database).await.expect("a store");
        let client = AgentSessionClient::new(Arc::new(store));
        let mut seen = subscribers(&client).await;
        work_beside().await;
        let log = client
            .read_events(&session(), EventCursor(0), usize::MAX)
            .await;
        let messages = log.expect("the log").events;
        let messages = messages.iter();
        let messages = messages
            .filter(|it| matches!(it.kind, EventKind::MessageQueued { .. }))
            .count();
        let mut times = Vec::new();
        while times.len() < messages * SUBSCRIBERS {
            if let Seen::Message(at) = seen.recv().await.expect("subscribers are there") {
                times.push(at);
            }
        }
        // Messages come one after the other, so all times of one are before those of the next.
        times.sort_unstable();
        times
    })
}

async fn raw_ms(database: &Path, messages: usize) -> Vec<f64> {
    let raw = commit::Raw::open(database);
    let (teller, _) = broadcast::channel(SUBSCRIBERS);
    let (told, mut seen) = mpsc::unbounded_channel();
    for _ in 0..SUBSCRIBERS {
        let (mut changes, told) = (teller.subscribe(), told.clone());
        tokio::spawn(async move {
            while changes.recv().await.is_ok() {
                told.send(monotonic_ns()).expect("somebody counts");
            }
        });
    }
    let mut times = Vec::new();
    for message in 0..messages {
        let sent = monotonic_ns();
        tokio::task::block_in_place(|| raw.commit_one(message));
        teller.send(()).expect("all are there");
        for _ in 0..SUBSCRIBERS {
            let at = seen.recv().await.expect("all are there");
            times.push(between_ms(sent, at));
        }
    }
    times
}

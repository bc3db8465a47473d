//! Two hundred active sessions, from the start of each to the end of its turn.
//!
//! Measured: sessions that are started, run a turn of five Steps (`RunModel`, two `CallTool`,
//! `ResumeTurn`, `RunModel`) on a runner without a process, and are over, 200 of them at once: as soon as
//! one is over, the next one starts. Engine, clients and a subscriber for each are in this process, on
//! SQLite. `sessions_p99_ms` is from the start of a session to the moment its subscriber sees the end.
//!
//! The raw twin writes the same commits, which one session was seen to make, into tables by bare
//! `rusqlite` under the same durability: each in a transaction of its own, by 200 threads that take
//! turns at one connection.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use abide::client::{AgentSessionClient, Observed, StartSession};
use abide::event::EventKind;
use abide::ids::{EventCursor, FlowType, SessionId};
use abide::store::{Commit, SqliteStateStore};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::commit::Raw;
use crate::recording::RecordingStore;
use crate::report::{Effort, Figure, Group, milliseconds, quantile};
use crate::scripted::{self, Asking};

pub(crate) const GROUP: Group = Group {
    names: &["sessions_per_s", "sessions_raw_per_s", "sessions_p99_ms"],
    run,
};

fn run(effort: Effort) -> Vec<Figure> {
    let directory = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let active = effort.pick(200, 4);
    let sessions = active * effort.pick(10, 2);
    let runtime = Runtime::new().expect("a runtime");
    let commits = runtime.block_on(commits_of_one(&directory.path().join("one.sqlite")));

    let (mut ours, mut raw, mut times) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..effort.pick(3, 1) {
        let path = |name: &str| directory.path().join(format!("{name}-{round}.sqlite"));
        let begun = Instant::now();
        times.extend(runtime.block_on(run_all(&path("ours"), active, sessions)));
        ours.push(sessions as f64 / begun.elapsed().as_secs_f64());
        // Enough of the same to know how fast it is.
        let each = (sessions / active / 4).max(1);
        let bare = Raw::open(&path("raw"));
        let begun = Instant::now();
        bare.write_all(active, each, &commits);
        raw.push((active * each) as f64 / begun.elapsed().as_secs_f64());
    }
    vec![
        Figure::new(GROUP.names[0], quantile(&mut ours, 0.5), "/s"),
        Figure::new(GROUP.names[1], quantile(&mut raw, 0.5), "/s"),
        Figure::new(GROUP.names[2], quantile(&mut times, 0.99), "ms"),
    ]
}

/// What one session commits, by client and engine.
async fn commits_of_one(database: &Path) -> Vec<Commit> {
    let store = SqliteStateStore::open(database).await.expect("a store");
    let commits = Arc::new(Mutex::new(Vec::new()));
    let store = RecordingStore::new(Arc::new(store), Arc::clone(&commits));
    let engine = scripted::engine_over(Arc::new(store), Asking::two_labels()).await;
    one(&engine.client(), 0).await;
    engine.shutdown().await;
    let commits = commits.lock().expect("nobody commits any more").clone();
    assert!(commits.len() > 5, "a commit or more for each Step");
    commits
}

async fn run_all(database: &Path, active: usize, sessions: usize) -> Vec<f64> {
    let engine = scripted::engine(database, Asking::two_labels()).await;
    let next = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..active {
        let (client, next) = (engine.client(), Arc::clone(&next));
        clients.spawn(async move {
            let mut times = Vec::new();
            loop {
                let number = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                if number >= sessions {
                    return times;
                }
                times.push(one(&client, number).await);
            }
        });
    }
    let times = clients.join_all().await.concat();
    engine.shutdown().await;
    assert_eq!(times.len(), sessions);
    times
}

/// Runs one session from its start to the end of its turn.
async fn one(client: &AgentSessionClient, number: usize) -> f64 {
    let begun = Instant::now();
    let session = SessionId::new(format!("session-{number}")).expect("an id");
    let flow_type = FlowType::new("Figures").expect("a flow type");
    let start = StartSession::new(session.clone(), flow_type)
        .with_initial_message("Please label order 7 as late, and note that the box was wet.");
    client.start_session(start).await.expect("it starts");
    let events = client.events(&session, EventCursor(0)).await;
    let mut events = events.expect("events");
    loop {
        let observed = events.next().await.expect("the store is there");
        if let Some(Observed::Event(event)) = observed
            && event.kind == EventKind::TurnCompleted
        {
            return milliseconds(begun.elapsed());
        }
    }
}

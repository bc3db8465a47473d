//! The memory of sessions that wait for people.
//!
//! Measured: resident memory of a process that runs an engine over a SQLite store with 10,000 parked
//! sessions, each with an open approval, less that of the same process over an empty store. Both
//! have worked: one more session was started, and waits too. Asserted: with and without the parked
//! sessions the engine comes to rest with its own tasks alone, no process, and no lease.
//!
//! There is no raw twin: the least is nothing.

use std::path::Path;
use std::time::Duration;

use abide::client::{AgentSessionClient, Observed, StartSession};
use abide::event::EventKind;
use abide::ids::{EventCursor, FlowType, SessionId};
use rusqlite::Connection;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::process::{child_processes, memory_kb, numbers};
use crate::report::{Effort, Figure, Group, quantile};
use crate::scripted::{self, Asking};

pub(crate) const GROUP: Group = Group {
    names: &["parked_10000_rss_mb"],
    run,
};

pub(crate) const JOB: &str = "parked";

/// The tasks of an engine at rest: its supervisor and its heartbeat.
const ENGINE_TASKS: usize = 2;

/// How long a child may take to come to rest before that counts as never.
const HANGS_AFTER: Duration = Duration::from_secs(60);

/// How many sessions are started at once.
const AT_ONCE: usize = 64;

fn run(effort: Effort) -> Vec<Figure> {
    let directory = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let database = |name: &str| directory.path().join(name);
    populate(&database("full.sqlite"), effort.pick(10_000, 20));
    let children = effort.pick(5, 1);
    let take = |name: &str| {
        let mut memory = Vec::new();
        for number in 0..children {
            let copy = database(&format!("{name}-{number}"));
            match std::fs::copy(database(name), &copy) {
                Ok(_) => {}
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::NotFound),
            }
            let [kilobytes] = numbers(JOB, &copy)[..] else {
                panic!("the child prints one number");
            };
            memory.push(kilobytes as f64 / 1e3);
        }
        quantile(&mut memory, 0.5)
    };
    let megabytes = take("full.sqlite") - take("empty.sqlite");
    vec![Figure::new(GROUP.names[0], megabytes, "MB")]
}

/// Parks that many sessions.
pub(crate) fn populate(database: &Path, sessions: usize) {
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let engine = scripted::engine(database, Asking::a_refund()).await;
        let mut waiting = tokio::task::JoinSet::new();
        for number in 0..sessions {
            if waiting.len() == AT_ONCE {
                waiting
                    .join_next()
                    .await
                    .expect("one of them")
                    .expect("it is parked");
            }
            waiting.spawn(park(engine.client(), format!("session-{number}")));
        }
        waiting.join_all().await;
        engine.shutdown().await;
    });
    drop(runtime);
    let connection = Connection::open(database).expect("the file");
    let parked: i64 = connection
        .query_row(
            "SELECT count(*) FROM sessions WHERE status = 'awaiting_approval'",
            [],
            |row| row.get(0),
        )
        .expect("a number");
    assert_eq!(parked, sessions as i64);
}

/// The memory of a process that runs the engine over the database, once it is at rest.
pub(crate) fn child(database: &Path) -> Vec<u64> {
    let runtime = Runtime::new().expect("a runtime");
    let memory = runtime.block_on(async {
        let engine = scripted::engine(database, Asking::a_refund()).await;
        park(engine.client(), "one-more".to_owned()).await;
        tokio::time::timeout(HANGS_AFTER, rest(database))
            .await
            .expect("the engine comes to rest");
        assert_eq!(child_processes(), 0);
        let memory = memory_kb("VmRSS:");
        engine.shutdown().await;
        memory
    });
    drop(runtime);
    vec![memory]
}

/// Returns when there is no lease and no task but the engine's own.
async fn rest(database: &Path) {
    let connection = Connection::open(database).expect("the file");
    let leases = || -> i64 {
        let query = "SELECT count(*) FROM sessions WHERE lease_worker IS NOT NULL";
        let leases = connection.query_row(query, [], |row| row.get(0));
        leases.expect("a number")
    };
    let tasks = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    while leases() > 0 || tasks() > ENGINE_TASKS {
        tokio::task::yield_now().await;
    }
}

/// Starts a session and waits until it waits.
async fn park(client: AgentSessionClient, name: String) {
    let session = SessionId::new(name).expect("an id");
    let flow_type = FlowType::new("Figures").expect("a flow type");
    let start = StartSession::new(session.clone(), flow_type)
        .with_initial_message("Please refund order 7, it came late and the box was wet.");
    client.start_session(start).await.expect("it starts");
    let events = client.events(&session, EventCursor(0)).await;
    let mut events = events.expect("events");
    loop {
        let observed = events.next().await.expect("the store is there");
        if let Some(Observed::Event(event)) = observed
            && event.kind == EventKind::TurnSuspended
        {
            return;
        }
    }
}

//! Ten thousand sessions that wait for people: opening, the inbox, and approvals.
//!
//! Measured over one SQLite file with 10,000 parked sessions, each with an open approval:
//!
//! - `parked_open_ms`: from opening the file to an engine that runs and the inbox's first page of 50.
//!   The raw twin opens the file by bare `rusqlite` and reads 50 rows of the same table.
//! - `approvals_per_s`: approvals that 64 clients commit at once, while no engine runs. The raw twin
//!   writes as many transactions of the size that [`commit`](super::commit) describes, by threads that
//!   take turns at one bare connection.
//! - `approve_start_p99_ms`: from the call that approves to the start of the call's handler, in this
//!   process: the decision and the start mark are two commits. One after the other.
//! - `approve_start_cross_ms`: the same with the engine in another process, which looks for what others
//!   committed every 20 ms; the median.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use abide::client::{AgentSessionClient, Observed, ResolveInterrupt};
use abide::event::EventKind;
use abide::store::{InterruptFilter, InterruptPage, InterruptRow, SqliteStateStore};
use rusqlite::Connection;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::unbounded_channel;

use crate::process::{Beside, between_ms, monotonic_ns, work_beside};
use crate::report::{Effort, Figure, Group, milliseconds, quantile};
use crate::scripted::{self, Asking};
use crate::{commit, parked};

pub(crate) const GROUP: Group = Group {
    names: &[
        "parked_open_ms",
        "parked_open_raw_ms",
        "approvals_per_s",
        "approvals_raw_per_s",
        "approve_start_p99_ms",
        "approve_start_cross_ms",
    ],
    run,
};

pub(crate) const JOB: &str = "inbox";

/// What an inbox shows at first.
const PAGE: usize = 50;

/// How many clients approve at once.
const AT_ONCE: usize = 64;

fn run(effort: Effort) -> Vec<Figure> {
    let directory = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let database = directory.path().join("parked.sqlite");
    let sessions = effort.pick(10_000, 200);
    parked::populate(&database, sessions);

    let (mut open, mut open_raw) = (Vec::new(), Vec::new());
    for _ in 0..effort.pick(9, 1) {
        open.push(open_ms(&database, sessions));
        open_raw.push(open_raw_ms(&database));
    }
    let (mut approved, mut approved_raw) = (Vec::new(), Vec::new());
    for round in 0..effort.pick(3, 1) {
        let approvals = effort.pick(1_024, AT_ONCE);
        approved.push(approved_per_s(&database, approvals));
        let raw = directory.path().join(format!("raw-{round}.sqlite"));
        let raw = commit::raw_per_s(&raw, AT_ONCE, approvals / AT_ONCE);
        approved_raw.push(raw);
    }
    let mut here = start_here_ms(&database, effort.pick(1_000, 5));
    let mut cross = start_cross_ms(&database, effort.pick(100, 5));
    let figures = [
        (quantile(&mut open, 0.5), "ms"),
        (quantile(&mut open_raw, 0.5), "ms"),
        (quantile(&mut approved, 0.5), "/s"),
        (quantile(&mut approved_raw, 0.5), "/s"),
        (quantile(&mut here, 0.99), "ms"),
        (quantile(&mut cross, 0.5), "ms"),
    ];
    let figures = GROUP.names.iter().zip(figures);
    figures
        .map(|(name, (value, unit))| Figure::new(name, value, unit))
        .collect()
}

fn open_ms(database: &Path, sessions: usize) -> f64 {
    let runtime = Runtime::new().expect("a runtime");
    let begun = Instant::now();
    let (took, engine) = runtime.block_on(async {
        let engine = scripted::engine(database, Asking::a_refund()).await;
        let page = first_page(&engine.client(), PAGE).await;
        let took = milliseconds(begun.elapsed());
        assert_eq!((page.rows.len(), page.has_more), (PAGE, sessions > PAGE));
        (took, engine)
    });
    runtime.block_on(engine.shutdown());
    took
}

fn open_raw_ms(database: &Path) -> f64 {
    let begun = Instant::now();
    let connection = Connection::open(database).expect("the file");
    let mut select = connection
        .prepare("SELECT session_id, shown FROM interrupts ORDER BY requested_at LIMIT 50")
        .expect("the table");
    let rows = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?)));
    let rows: Result<Vec<(String, String)>, _> = rows.expect("rows").collect();
    let took = milliseconds(begun.elapsed());
    assert_eq!(rows.expect("rows").len(), PAGE);
    took
}

/// Those that wait longest.
async fn first_page(client: &AgentSessionClient, count: usize) -> InterruptPage {
    let all = InterruptFilter::default();
    let page = client.list_interrupts(&all, count).await;
    page.expect("the store is there")
}

async fn waiting(client: &AgentSessionClient, count: usize) -> Vec<InterruptRow> {
    let rows = first_page(client, count).await.rows;
    assert_eq!(rows.len(), count);
    rows
}

async fn approve(client: &AgentSessionClient, row: &InterruptRow) {
    let answer = ResolveInterrupt::approve(row.interrupt.interrupt_id.clone())
        .for_digest(row.interrupt.digest.clone());
    let applied = client.resolve_interrupt(&row.session, answer).await;
    assert!(applied.expect("it is applied"));
}

fn approved_per_s(database: &Path, approvals: usize) -> f64 {
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let store = SqliteStateStore::open(database).await.expect("a store");
        let client = AgentSessionClient::new(Arc::new(store));
        let rows = waiting(&client, approvals).await;
        let begun = Instant::now();
        let mut clients = tokio::task::JoinSet::new();
        for rows in rows.chunks(approvals / AT_ONCE) {
            let (client, rows) = (client.clone(), rows.to_vec());
            clients.spawn(async move {
                for row in rows {
                    approve(&client, &row).await;
                }
            });
        }
        clients.join_all().await;
        approvals as f64 / begun.elapsed().as_secs_f64()
    })
}

/// Waits until the turn of the call is over, so that nothing runs beside the next approval.
async fn turn_over(client: &AgentSessionClient, row: &InterruptRow) {
    let events = client
        .events(&row.session, abide::ids::EventCursor(0))
        .await;
    let mut events = events.expect("events");
    loop {
        let observed = events.next().await.expect("the store is there");
        if let Some(Observed::Event(event)) = observed
            && event.kind == EventKind::TurnCompleted
        {
            return;
        }
    }
}

fn start_here_ms(database: &Path, approvals: usize) -> Vec<f64> {
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let (started, mut starts) = unbounded_channel();
        let agent = Asking::a_refund().telling(started);
        let engine = scripted::engine(database, agent).await;
        let client = engine.client();
        let rows = waiting(&client, approvals).await;
        settle(&client).await;
        // What was approved while no engine ran has started by now.
        while starts.try_recv().is_ok() {}
        let mut times = Vec::new();
        for row in rows {
            let begun = monotonic_ns();
            approve(&client, &row).await;
            let started = starts.recv().await.expect("the engine is there");
            times.push(between_ms(begun, started));
            turn_over(&client, &row).await;
        }
        engine.shutdown().await;
        times
    })
}

/// Returns once no session has anything to do.
async fn settle(client: &AgentSessionClient) {
    let running = abide::store::SessionFilter {
        status: Some(abide::store::SessionStatus::Running),
        ..Default::default()
    };
    loop {
        let page = client.list_sessions(&running, 1).await;
        if page.expect("the store is there").rows.is_empty() {
            return;
        }
        tokio::task::yield_now().await;
    }
}

fn start_cross_ms(database: &Path, approvals: usize) -> Vec<f64> {
    let runtime = Runtime::new().expect("a runtime");
    let other = Beside::start(JOB, database);
    let begun = runtime.block_on(async {
        let store = SqliteStateStore::open(database).await.expect("a store");
        let client = AgentSessionClient::new(Arc::new(store));
        let mut begun = Vec::new();
        for row in waiting(&client, approvals).await {
            begun.push(monotonic_ns());
            approve(&client, &row).await;
            turn_over(&client, &row).await;
        }
        begun
    });
    let started = other.finish();
    assert_eq!(started.len(), approvals);
    let pairs = begun.iter().zip(started);
    pairs.map(|(from, to)| between_ms(*from, to)).collect()
}

/// Runs the engine, and prints when each handler started.
pub(crate) fn child(database: &Path) -> Vec<u64> {
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let (started, mut starts) = unbounded_channel();
        let agent = Asking::a_refund().telling(started);
        let engine = scripted::engine(database, agent).await;
        work_beside().await;
        engine.shutdown().await;
        let mut times = Vec::new();
        while let Ok(time) = starts.try_recv() {
            times.push(time);
        }
        times
    })
}

//! Durable commits on SQLite.
//!
//! Measured: the time from the call of `StateStore::commit` to its answer, for sessions that commit
//! one after the other: a state of 1,500 bytes, two rows (a record of 600 bytes and its arguments of
//! 200, written anew each time) and one event of 160 bytes. With 64 sessions, 64 tasks commit at
//! once, each waiting for its own answer. Not measured: reducing, and encoding the state.
//!
//! The raw twin writes the same bytes into three tables by bare `rusqlite`, in one transaction a
//! commit, under the same durability (write-ahead log, `synchronous=FULL`) on the same disk: with
//! 64 sessions by 64 threads that take turns, in the order in which they came, at one connection.
//!
//! Both alternate in short rounds, because a disk has moods; the quantiles are of all rounds.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use abide::ids::{EventCursor, FlowType, Revision, SessionId, Timestamp};
use abide::store::{
    Commit, EventRow, RowChange, RowKey, RowKind, SessionStatus, SessionSummary, SqliteStateStore,
    StateStore,
};
use rusqlite::{Connection, params};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::Mutex;

use crate::report::{Effort, Figure, Group, milliseconds, quantile};

pub(crate) const GROUP: Group = Group {
    names: &[
        "commit_1_p50_ms",
        "commit_1_p50_raw_ms",
        "commit_1_p99_ms",
        "commit_1_p99_raw_ms",
        "commit_64_p50_ms",
        "commit_64_p50_raw_ms",
        "commit_64_p99_ms",
        "commit_64_p99_raw_ms",
    ],
    run,
};

const STATE_BYTES: usize = 1_500;
const RECORD_BYTES: usize = 600;
const ARGUMENTS_BYTES: usize = 200;
const EVENT_BYTES: usize = 160;

const CALL: &str = "turn-1/toolu_01ABCDEFGHIJKLMNOPQRSTUV";

fn run(effort: Effort) -> Vec<Figure> {
    let directory = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let runtime = Runtime::new().expect("a runtime");
    let store = SqliteStateStore::open(directory.path().join("ours.sqlite"));
    let store: Arc<dyn StateStore> = Arc::new(runtime.block_on(store).expect("a store"));
    let raw = Raw::open(&directory.path().join("raw.sqlite"));

    let mut figures = Vec::new();
    let [
        p50,
        p50_raw,
        p99,
        p99_raw,
        p50_64,
        p50_64_raw,
        p99_64,
        p99_64_raw,
    ] = [0, 1, 2, 3, 4, 5, 6, 7].map(|it| GROUP.names[it]);
    for (sessions, commits, names) in [
        (1, effort.pick(40, 5), [p50, p50_raw, p99, p99_raw]),
        (
            64,
            effort.pick(10, 2),
            [p50_64, p50_64_raw, p99_64, p99_64_raw],
        ),
    ] {
        let (mut ours, mut bare) = (Vec::new(), Vec::new());
        for round in 0..effort.pick(20, 1) {
            let name = |session| format!("{sessions}-{session}");
            ours.extend(runtime.block_on(commit_all(
                &store,
                sessions,
                round * commits,
                commits,
                name,
            )));
            bare.extend(raw.commit_all(sessions, round * commits, commits));
        }
        for (part, ours_name, raw_name) in [(0.5, names[0], names[1]), (0.99, names[2], names[3])] {
            figures.push(Figure::new(ours_name, quantile(&mut ours, part), "ms"));
            figures.push(Figure::new(raw_name, quantile(&mut bare, part), "ms"));
        }
    }
    figures
}

/// Commits `commits` times from `done` on in each session, all sessions at once; returns the times.
async fn commit_all(
    store: &Arc<dyn StateStore>,
    sessions: usize,
    done: usize,
    commits: usize,
    name: impl Fn(usize) -> String,
) -> Vec<f64> {
    let mut tasks = Vec::new();
    for session in 0..sessions {
        let store = Arc::clone(store);
        let session = SessionId::new(name(session)).expect("an id");
        tasks.push(tokio::spawn(async move {
            let mut times = Vec::new();
            for revision in done..done + commits {
                let commit = typical(revision);
                let begun = Instant::now();
                store
                    .commit(&session, Revision(revision as u64), None, commit)
                    .await
                    .expect("the commit holds");
                times.push(milliseconds(begun.elapsed()));
            }
            times
        }));
    }
    let mut times = Vec::new();
    for task in tasks {
        times.extend(task.await.expect("the task ends"));
    }
    times
}

/// A commit of a session with one call under way.
fn typical(revision: usize) -> Commit {
    let row = |kind, bytes| {
        let key = CALL.to_owned();
        RowChange::Put(RowKey { kind, key }, filled(bytes, revision))
    };
    Commit {
        state: filled(STATE_BYTES, revision),
        summary: SessionSummary {
            flow_type: FlowType::new("Figures").ok(),
            status: SessionStatus::Running,
            updated_at: Timestamp(revision as u64),
            due_at: Some(Timestamp(0)),
            ..SessionSummary::default()
        },
        rows: vec![
            row(RowKind::Record, RECORD_BYTES),
            row(RowKind::Arguments, ARGUMENTS_BYTES),
        ],
        events: vec![EventRow {
            cursor: EventCursor(revision as u64 + 1),
            bytes: filled(EVENT_BYTES, revision),
        }],
        ..Commit::default()
    }
}

fn filled(bytes: usize, revision: usize) -> Vec<u8> {
    vec![b'a' + (revision % 26) as u8; bytes]
}

/// How many transactions a second the raw twin writes, with this many threads of so many each.
pub(crate) fn raw_per_s(database: &Path, threads: usize, commits: usize) -> f64 {
    let raw = Raw::open(database);
    let begun = Instant::now();
    raw.commit_all(threads, 0, commits);
    (threads * commits) as f64 / begun.elapsed().as_secs_f64()
}

/// The raw twin.
#[derive(Clone)]
pub(crate) struct Raw(Arc<Mutex<Connection>>);

impl Raw {
    pub(crate) fn open(path: &Path) -> Self {
        let connection = Connection::open(path).expect("a file");
        connection
            .execute_batch(
                "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
                 CREATE TABLE states (session INTEGER PRIMARY KEY, state BLOB NOT NULL) STRICT;
                 CREATE TABLE rows (session INTEGER NOT NULL, kind TEXT NOT NULL, key TEXT NOT NULL,
                    value BLOB NOT NULL, PRIMARY KEY (session, kind, key)) STRICT;
                 CREATE TABLE chunks (session INTEGER NOT NULL, id INTEGER NOT NULL,
                    bytes BLOB NOT NULL, PRIMARY KEY (session, id)) STRICT;
                 CREATE TABLE events (session INTEGER NOT NULL, cursor INTEGER NOT NULL,
                    bytes BLOB NOT NULL, PRIMARY KEY (session, cursor)) STRICT, WITHOUT ROWID;",
            )
            .expect("tables");
        Self(Arc::new(Mutex::new(connection)))
    }

    /// These commits, one after the other, for so many sessions in each of the threads.
    pub(crate) fn write_all(&self, threads: usize, sessions: usize, commits: &[Commit]) {
        std::thread::scope(|scope| {
            for thread in 0..threads {
                scope.spawn(move || {
                    for session in 0..sessions {
                        for commit in commits {
                            let session = (thread * sessions + session) as i64;
                            let connection = self.0.blocking_lock();
                            write(&connection, session, commit).expect("it holds");
                        }
                    }
                });
            }
        });
    }

    /// One transaction of the usual size.
    pub(crate) fn commit_one(&self, revision: usize) {
        self.commit_all(1, revision, 1);
    }

    fn commit_all(&self, sessions: usize, done: usize, commits: usize) -> Vec<f64> {
        let one = |session: usize| {
            let mut times = Vec::new();
            for revision in done..done + commits {
                let commit = typical(revision);
                let begun = Instant::now();
                // The lock of tokio, because it is a fair one.
                let connection = self.0.blocking_lock();
                write(&connection, (sessions * 1000 + session) as i64, &commit).expect("it holds");
                drop(connection);
                times.push(milliseconds(begun.elapsed()));
            }
            times
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..sessions)
                .map(|session| scope.spawn(move || one(session)))
                .collect();
            let times = threads.into_iter().map(|it| it.join().expect("it ends"));
            times.flatten().collect()
        })
    }
}

fn write(at: &Connection, session: i64, commit: &Commit) -> rusqlite::Result<()> {
    at.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
    at.prepare_cached("INSERT OR REPLACE INTO states (session, state) VALUES (?1, ?2)")?
        .execute(params![session, commit.state])?;
    for change in &commit.rows {
        if let RowChange::Put(key, value) = change {
            at.prepare_cached(
                "INSERT INTO rows (session, kind, key, value) VALUES (?1, ?2, ?3, ?4)
                 ON CONFLICT DO UPDATE SET value = excluded.value",
            )?
            .execute(params![session, key.kind.name(), key.key, value])?;
        }
    }
    for chunk in &commit.chunks {
        at.prepare_cached("INSERT INTO chunks (session, id, bytes) VALUES (?1, ?2, ?3)")?
            .execute(params![session, chunk.id.0 as i64, chunk.bytes])?;
    }
    for event in &commit.events {
        at.prepare_cached("INSERT INTO events (session, cursor, bytes) VALUES (?1, ?2, ?3)")?
            .execute(params![session, event.cursor.0 as i64, event.bytes])?;
    }
    at.prepare_cached("COMMIT")?.execute([])?;
    Ok(())
}

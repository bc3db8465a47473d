//! Opening the end of a long session.
//!
//! Measured: on a store that was just opened, a snapshot with the last 50 messages and the last page of
//! 100 events, of a session whose transcript has 100,000 entries in 1,000 turns. The raw twin reads the
//! last chunks and events, as many rows as ours may, by bare `rusqlite` from the same file.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use abide::client::AgentSessionClient;
use abide::ids::{EventCursor, SessionId};
use abide::store::SqliteStateStore;
use rusqlite::Connection;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::report::{Effort, Figure, Group, milliseconds, quantile};
use crate::resume;

pub(crate) const GROUP: Group = Group {
    names: &["tail_open_ms", "tail_open_raw_ms"],
    run,
};

const MESSAGES: usize = 50;
const EVENTS: usize = 100;
const TURNS: usize = 1_000;

fn run(effort: Effort) -> Vec<Figure> {
    let directory = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let database = directory.path().join("store.sqlite");
    let turns = effort.pick(TURNS, 30);
    resume::populate(&database, turns, 100);
    let runtime = Runtime::new().expect("a runtime");
    let (mut ours, mut raw) = (Vec::new(), Vec::new());
    for _ in 0..effort.pick(21, 1) {
        ours.push(runtime.block_on(open_ms(&database)));
        raw.push(raw_ms(&database));
    }
    vec![
        Figure::new(GROUP.names[0], quantile(&mut ours, 0.5), "ms"),
        Figure::new(GROUP.names[1], quantile(&mut raw, 0.5), "ms"),
    ]
}

async fn open_ms(database: &Path) -> f64 {
    let store = SqliteStateStore::open(database).await.expect("a store");
    let client = AgentSessionClient::new(Arc::new(store));
    let session = SessionId::new(resume::SESSION).expect("an id");
    let begun = Instant::now();
    let tail = client.snapshot_tail(&session, MESSAGES).await;
    let tail = tail.expect("the session is there");
    let after = EventCursor(tail.event_cursor.0 - EVENTS as u64);
    let page = client.read_events(&session, after, EVENTS).await;
    let took = milliseconds(begun.elapsed());
    let page = page.expect("the log is there");
    assert_eq!((page.events.len(), page.has_more), (EVENTS, false));
    assert_eq!(
        (tail.messages.len(), tail.has_earlier_messages),
        (MESSAGES, true)
    );
    took
}

fn raw_ms(database: &Path) -> f64 {
    let connection = Connection::open(database).expect("the file");
    let begun = Instant::now();
    let bytes: usize = [
        "SELECT state FROM states",
        "SELECT bytes FROM chunks ORDER BY session DESC, id DESC LIMIT 160",
        "SELECT bytes FROM events ORDER BY session DESC, cursor DESC LIMIT 100",
    ]
    .into_iter()
    .map(|sql| {
        let mut select = connection.prepare(sql).expect("the table");
        let rows = select.query_map([], |row| row.get::<_, Vec<u8>>(0));
        let rows = rows.expect("rows").map(|it| it.expect("a row").len());
        rows.sum::<usize>()
    })
    .sum();
    let took = milliseconds(begun.elapsed());
    assert!(bytes > 0);
    took
}

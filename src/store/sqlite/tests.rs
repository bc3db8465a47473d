//! What a caller cannot bring about from outside: a full disk, a lock that is never given back.

use std::time::Duration;

use rusqlite::Connection;
use tokio::sync::broadcast;

use super::failure::Fault;
use super::values::PackedCommit;
use super::{Done, SqliteStateStore, apply, schema, writer};
use crate::ids::{Revision, SessionId};
use crate::store::{Change, Commit, StateStore as _, StoreError};

fn id(text: &str) -> SessionId {
    SessionId::new(text).unwrap()
}

fn state(bytes: usize) -> Commit {
    Commit {
        state: vec![7; bytes],
        ..Commit::default()
    }
}

/// A file that may not grow beyond these pages, as on a full disk.
fn small_file(directory: &tempfile::TempDir, pages: u32) -> Connection {
    let path = directory.path().join("a.db");
    let connection = schema::open_or_create(&path, Duration::ZERO).unwrap();
    connection
        .query_row(&format!("PRAGMA max_page_count = {pages}"), [], |row| {
            row.get::<_, u32>(0)
        })
        .unwrap();
    connection
}

async fn create(
    writer: &writer::Writer,
    session: SessionId,
    bytes: usize,
) -> Result<Revision, StoreError> {
    let commit = PackedCommit::new(state(bytes));
    writer
        .write("commit", move |at, stamp| -> Result<_, Fault> {
            let revision = apply::commit(at, stamp, &session, Revision(0), None, &commit)?;
            Ok(Done {
                value: revision,
                changed: Some(Change::Committed {
                    session: session.clone(),
                    revision,
                    due_at: None,
                }),
            })
        })
        .await
}

/// What was answered survives the machine only if each connection syncs its log.
#[test]
fn every_connection_syncs_a_write_ahead_log_that_is_private() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.db");
    let first = schema::open_or_create(&path, Duration::ZERO).unwrap();
    let second = schema::open(&path, Duration::ZERO).unwrap();
    for connection in [first, second] {
        let number = |pragma: &str| -> u32 {
            connection
                .pragma_query_value(None, pragma, |row| row.get(0))
                .unwrap()
        };
        const FULL: u32 = 2;
        assert_eq!(number("synchronous"), FULL);
        assert_eq!(number("user_version"), schema::FORMAT);
        assert_eq!(number("application_id"), 0x6162_6964);
        let mode: String = connection
            .pragma_query_value(None, "journal_mode", |row| row.get(0))
            .unwrap();
        assert_eq!(mode, "wal");
        for file in std::fs::read_dir(&directory).unwrap() {
            let mode = file.unwrap().metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
    }
}

/// P16: the commit for which there is no room fails alone; those queued beside it hold.
#[tokio::test]
async fn a_full_disk_fails_the_big_commit_and_not_its_group() {
    let directory = tempfile::tempdir().unwrap();
    let connection = small_file(&directory, 100);
    let changes = broadcast::Sender::new(16);
    let mut told = changes.subscribe();
    let (writer, thread) = writer::channel(connection, changes, 1);
    // Queued before the thread runs, so that they are one group.
    let [before, big, after] = [("a", 100), ("b", 1_000_000), ("c", 100)]
        .map(|(name, bytes)| Box::pin(create(&writer, id(name), bytes)));
    let joined = async {
        tokio::join!(biased; before, big, after, async { std::thread::spawn(|| thread.run()) })
    };
    let (before, big, after, thread) = joined.await;
    assert_eq!(before.unwrap(), Revision(1));
    assert!(matches!(big, Err(StoreError::Full { .. })), "{big:?}");
    assert_eq!(after.unwrap(), Revision(1));
    // It can be made again, and is still refused for room and nothing else.
    let again = create(&writer, id("b"), 1_000_000).await;
    assert!(matches!(again, Err(StoreError::Full { .. })), "{again:?}");
    assert_eq!(create(&writer, id("b"), 100).await.unwrap(), Revision(1));

    drop(writer);
    thread.join().unwrap();
    for name in ["a", "c", "b"] {
        let change = told.recv().await.unwrap();
        assert_eq!(change.session(), Some(&id(name)));
    }
    assert_eq!(told.recv().await, Err(broadcast::error::RecvError::Closed));
}

/// P16: a commit that does not get the write lock is busy, and does not hold later.
#[tokio::test]
async fn a_lock_that_is_not_given_back_is_busy() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.db");
    let store = SqliteStateStore::open_waiting(&path, Duration::from_millis(1))
        .await
        .unwrap();
    let locking = Connection::open(&path).unwrap();
    locking.execute_batch("BEGIN IMMEDIATE").unwrap();
    let refused = store.commit(&id("a"), Revision(0), None, state(1)).await;
    assert!(
        matches!(refused, Err(StoreError::Busy { .. })),
        "{refused:?}"
    );
    locking.execute_batch("COMMIT").unwrap();
    assert_eq!(store.load(&id("a")).await.unwrap(), None);
    let revision = store.commit(&id("a"), Revision(0), None, state(1)).await;
    assert_eq!(revision.unwrap(), Revision(1));
}

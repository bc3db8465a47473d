//! What a caller cannot bring about from outside: a full disk, a lock that is never given back.

use std::time::Duration;

use rusqlite::Connection;
use tokio::sync::broadcast;

use super::failure::Fault;
use super::values::PackedCommit;
use super::{Done, SqliteStateStore, apply, interrupts, listing, schema, writer};
use crate::client::{AgentSessionClient, ClientError, CloseMode, StartSession, SteerMode};
use crate::event::StepKind;
use crate::ids::{
    FlowType, InterruptId, MessageId, RequestId, Revision, SessionId, Tenant, Timestamp,
};
use crate::settings::SessionSettings;
use crate::store::{
    Change, Commit, InterruptFilter, InterruptPosition, SessionFilter, SessionStatus,
    StateStore as _, StoreError, TimeRange,
};

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

/// P03, P16: a client's calls on a full disk are told so and leave nothing; the same calls have their
/// effect once there is room, which the removal of a session makes.
#[tokio::test]
async fn calls_on_a_full_disk_leave_nothing_and_hold_once_there_is_room() {
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStateStore::open(directory.path().join("a.db")).await;
    let store = std::sync::Arc::new(store.unwrap());
    let client = AgentSessionClient::new(std::sync::Arc::clone(&store) as _);
    // Cannot be packed well, so that it needs pages of its own.
    let mut number = 1_u64;
    let mut text = |bytes: usize| -> String {
        let digit = |_| {
            number = number
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            char::from(b'A' + (number >> 58) as u8)
        };
        (0..bytes).map(digit).collect()
    };
    let start = |name: &str, text: String| {
        StartSession::new(id(name), FlowType::new("Flow").unwrap()).with_initial_message(text)
    };
    client
        .start_session(start("old", text(400_000)))
        .await
        .unwrap();
    let old = id("old");
    let closed = client.close_session(&old, CloseMode::Cancel, None);
    closed.await.unwrap();
    client
        .start_session(start("a", "hello".to_owned()))
        .await
        .unwrap();
    let a = id("a");
    client.send_user_message(&a, "two", None).await.unwrap();
    let fill = |at: &Connection, _| {
        // The smallest number that SQLite takes: what the file has.
        at.query_row("PRAGMA max_page_count = 1", [], |_| Ok(()))?;
        let (value, changed) = ((), None);
        Ok(Done { value, changed })
    };
    store.writer.write("fill the disk", fill).await.unwrap();

    let (long, settings) = (
        text(40_000),
        SessionSettings {
            model: Some(text(12_000)),
            ..SessionSettings::default()
        },
    );
    let calls = async || {
        let request = |name: &str| Some(RequestId::new(name).unwrap());
        let (mode, two) = (SteerMode::AtBoundary, MessageId::new(2));
        let started = client.start_session(start("b", long.clone())).await;
        let sent = client.send_user_message(&a, &*long, request("r1")).await;
        let edited = client
            .edit_queued_message(&a, two, &*long, request("r2"))
            .await;
        let steered = client
            .steer_user_message(&a, &*long, mode, request("r3"))
            .await;
        let set = client
            .update_settings(&a, 0, settings.clone(), request("r4"))
            .await;
        [
            started.map(|is_new| !is_new),
            sent.map(|it| it.duplicate),
            edited.map(|it| it.duplicate),
            steered.map(|it| it.duplicate),
            set.map(|it| it.duplicate),
        ]
    };
    let before = client.snapshot(&a).await.unwrap();
    for answer in calls().await {
        let error = answer.unwrap_err();
        let is_full = matches!(&error, ClientError::Store(StoreError::Full { .. }));
        assert!(is_full, "{error:?}");
        assert!(error.is_retryable() && !error.may_have_happened());
    }
    assert_eq!(client.snapshot(&a).await.unwrap(), before);
    assert_eq!(store.load(&id("b")).await.unwrap(), None);

    client.delete_session(&old).await.unwrap();
    for is_repeat in [false, true] {
        let answers = calls().await.map(Result::unwrap);
        assert_eq!(answers, [is_repeat; 5]);
    }
    let after = client.snapshot(&a).await.unwrap();
    assert_eq!(after.revision, Revision(before.revision.0 + 4));
    assert_eq!(after.queued_messages.len(), 2);
    assert_eq!(after.steered_messages.len(), 1);
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

/// How SQLite finds what a statement asks for.
fn plan(at: &Connection, (statement, values): (String, Vec<rusqlite::types::Value>)) -> String {
    let mut explain = (at.prepare(&format!("EXPLAIN QUERY PLAN {statement}"))).unwrap();
    let rows = explain.query_map(rusqlite::params_from_iter(values), |row| {
        row.get::<_, String>(3)
    });
    let lines: Vec<_> = rows.unwrap().map(Result::unwrap).collect();
    lines.join("; ")
}

/// Each filter of a list of sessions is looked up in an index, the first page and later ones; but for
/// times, a page is read off in order, without sorting all that match.
#[test]
fn every_filter_of_sessions_has_its_index() {
    let directory = tempfile::tempdir().unwrap();
    let at = schema::open_or_create(&directory.path().join("a.db"), Duration::ZERO).unwrap();
    let any = SessionFilter::default;
    let time = TimeRange {
        from: Some(Timestamp(1)),
        before: None,
    };
    let flow_type = SessionFilter {
        flow_type: FlowType::new("F").ok(),
        ..any()
    };
    let status = SessionFilter {
        status: Some(SessionStatus::Idle),
        ..any()
    };
    let step = SessionFilter {
        step: Some(StepKind::RunModel),
        ..any()
    };
    let tenant = SessionFilter {
        tenant: Tenant::new("t").ok(),
        ..any()
    };
    let metadata = SessionFilter {
        metadata: [("plan".to_owned(), "gold".to_owned())].into(),
        ..any()
    };
    let created = SessionFilter {
        created: time,
        ..any()
    };
    let updated = SessionFilter {
        updated: time,
        ..any()
    };
    let due_by = SessionFilter {
        due_by: Some(Timestamp(1)),
        ..any()
    };
    for (filter, index, in_order) in [
        (any(), "sqlite_autoindex_sessions_1", true),
        (flow_type, "sessions_by_flow_type", true),
        (status, "sessions_by_status", true),
        (step, "sessions_by_step", true),
        (tenant, "sessions_by_tenant", true),
        (metadata, "session_metadata_by_value", true),
        (created, "sessions_by_created_at", false),
        (updated, "sessions_by_updated_minute", false),
        (due_by, "sessions_by_due_at", false),
    ] {
        for after in [None, Some(id("s"))] {
            let filter = SessionFilter {
                after,
                ..filter.clone()
            };
            let plan = plan(&at, listing::statement(&filter, 10));
            assert!(plan.contains(index), "{filter:?}: {plan}");
            assert_eq!(!plan.contains("TEMP B-TREE"), in_order, "{plan}");
        }
    }
}

/// The same for lists of interrupts, which are always in order of age.
#[test]
fn every_filter_of_interrupts_has_its_index() {
    let directory = tempfile::tempdir().unwrap();
    let at = schema::open_or_create(&directory.path().join("a.db"), Duration::ZERO).unwrap();
    let any = InterruptFilter::default;
    let flow_type = InterruptFilter {
        flow_type: FlowType::new("F").ok(),
        ..any()
    };
    let tenant = InterruptFilter {
        tenant: Tenant::new("t").ok(),
        ..any()
    };
    let expires_by = InterruptFilter {
        expires_by: Some(Timestamp(1)),
        ..any()
    };
    for (filter, index, in_order) in [
        (any(), "interrupts_by_age", true),
        (flow_type, "interrupts_by_flow_type", true),
        (tenant, "interrupts_by_tenant", true),
        (expires_by, "interrupts_by_end", false),
    ] {
        let place = InterruptPosition {
            requested_at: Timestamp(1),
            session: id("s"),
            interrupt_id: InterruptId::from_client("t1/c1"),
        };
        for after in [None, Some(place)] {
            let filter = InterruptFilter {
                after,
                ..filter.clone()
            };
            let plan = plan(&at, interrupts::statement(&filter, 10));
            assert!(plan.contains(index), "{filter:?}: {plan}");
            assert_eq!(!plan.contains("TEMP B-TREE"), in_order, "{plan}");
        }
    }
}

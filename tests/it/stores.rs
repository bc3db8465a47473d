//! The state stores: the contract on both, and what only a file can promise.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use abide::ids::{EventCursor, LeaseEpoch, Revision, SessionId, Timestamp};
use abide::store::{
    Change, ChangeStream, CodedStateStore, Commit, EventRow, Fence, LeaseAnswer, MemoryStateStore,
    SessionSummary, SqliteStateStore, StateStore, StoreError, WorkerId, WorkerRecord,
};
use abide::testing::codec::ScrambledCodec;
use abide::testing::conformance;
use rusqlite::Connection;

/// G8, G13: the strict memory store keeps the whole contract.
#[tokio::test(flavor = "multi_thread")]
async fn the_memory_store_keeps_the_contract() {
    conformance::state_store(async || Arc::new(MemoryStateStore::new()) as _).await;
}

/// G8, G13: the SQLite store keeps the whole contract.
#[tokio::test(flavor = "multi_thread")]
async fn the_sqlite_store_keeps_the_contract() {
    let directory = tempfile::tempdir().unwrap();
    let number = std::sync::atomic::AtomicU32::new(0);
    conformance::state_store(async || {
        let number = number.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = directory.path().join(format!("{number}.db"));
        Arc::new(SqliteStateStore::open(path).await.unwrap()) as _
    })
    .await;
}

/// G8, G13: a codec in front of either store changes nothing of its contract.
#[tokio::test(flavor = "multi_thread")]
async fn both_stores_keep_the_contract_behind_a_codec() {
    let codec = Arc::new(ScrambledCodec::new("of the host"));
    let coded = |inner| Arc::new(CodedStateStore::new(inner, codec.clone())) as _;
    conformance::state_store(async || coded(Arc::new(MemoryStateStore::new()))).await;
    let directory = tempfile::tempdir().unwrap();
    let number = std::sync::atomic::AtomicU32::new(0);
    conformance::state_store(async || {
        let number = number.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = directory.path().join(format!("{number}.db"));
        coded(Arc::new(SqliteStateStore::open(path).await.unwrap()))
    })
    .await;
}

/// The codec for tests is one.
#[tokio::test]
async fn the_scrambled_codec_keeps_the_contract() {
    conformance::payload_codec(&ScrambledCodec::new("of the host")).await;
}

/// The kit itself: a store that breaks a rule is told which one.
#[tokio::test(flavor = "multi_thread")]
async fn the_kit_names_the_rule_that_a_store_breaks() {
    let used = MemoryStateStore::new();
    used.commit(&id("unknown"), Revision(0), None, state("left over"))
        .await
        .unwrap();
    let run = tokio::spawn(conformance::state_store(move || {
        let used = used.clone();
        async move { Arc::new(used) as _ }
    }));
    let panic = run.await.unwrap_err().into_panic();
    let text = panic.downcast_ref::<String>().unwrap();
    let named = "the store breaks the rule \"a session that was never committed is not there\": ";
    assert!(text.starts_with(named), "{text}");
}

/// A restarted engine over the same memory finds everything.
#[tokio::test]
async fn clones_of_the_memory_store_share_their_content() {
    let first = MemoryStateStore::new();
    first
        .commit(&id("a"), Revision(0), None, state("kept"))
        .await
        .unwrap();
    let second = first.clone();
    drop(first);
    assert_eq!(stored(&second, "a").await, Some("kept".to_owned()));
}

/// What was answered is there after the store was dropped and opened again.
#[tokio::test]
async fn a_reopened_file_holds_everything() {
    let (_directory, path) = place();
    let store = SqliteStateStore::open(&path).await.unwrap();
    let commit = Commit {
        events: vec![EventRow {
            cursor: EventCursor(1),
            bytes: b"{}".to_vec(),
        }],
        ..state("kept")
    };
    let (session, events) = (id("a"), commit.events.clone());
    store
        .commit(&session, Revision(0), None, commit)
        .await
        .unwrap();
    store.register_worker(&worker("w")).await.unwrap();
    let granted = store
        .acquire_lease(&session, &WorkerId::new("w"), None)
        .await
        .unwrap();
    assert_eq!(granted, LeaseAnswer::Granted(LeaseEpoch(1)));
    let before = store.load(&session).await.unwrap();
    drop(store);

    let store = SqliteStateStore::open(&path).await.unwrap();
    assert_eq!(store.load(&session).await.unwrap(), before);
    assert_eq!(
        store
            .read_events(&session, EventCursor(0), 10)
            .await
            .unwrap(),
        events
    );
    assert_eq!(store.heartbeat(&WorkerId::new("w")).await.unwrap(), 1);
}

/// Writes that were queued when the store was dropped are finished.
#[tokio::test]
async fn dropping_the_store_finishes_queued_writes() {
    let (_directory, path) = place();
    let store = Arc::new(SqliteStateStore::open(&path).await.unwrap());
    let writes: Vec<_> = (0..100)
        .map(|number| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                let session = id(&format!("s{number}"));
                store
                    .commit(&session, Revision(0), None, state("queued"))
                    .await
            })
        })
        .collect();
    drop(store);
    for write in writes {
        assert_eq!(write.await.unwrap().unwrap(), Revision(1));
    }
    let store = SqliteStateStore::open(&path).await.unwrap();
    let page = store.list(&Default::default(), 1000).await.unwrap();
    assert_eq!(page.rows.len(), 100);
}

/// G8: two stores over one file see each other's commits and fence each other.
#[tokio::test(flavor = "multi_thread")]
async fn two_stores_over_one_file_agree() {
    let (_directory, path) = place();
    let first = Arc::new(SqliteStateStore::open(&path).await.unwrap());
    let second = Arc::new(SqliteStateStore::open(&path).await.unwrap());
    let session = id("shared");
    first
        .commit(&session, Revision(0), None, state("0"))
        .await
        .unwrap();
    assert_eq!(stored(&*second, "shared").await, Some("0".to_owned()));

    first.register_worker(&worker("w1")).await.unwrap();
    second.register_worker(&worker("w2")).await.unwrap();
    let (w1, w2) = (WorkerId::new("w1"), WorkerId::new("w2"));
    let old = LeaseEpoch(1);
    let granted = first.acquire_lease(&session, &w1, None).await.unwrap();
    assert_eq!(granted, LeaseAnswer::Granted(old));
    let taken = second
        .acquire_lease(&session, &w2, Some(old))
        .await
        .unwrap();
    assert_eq!(taken, LeaseAnswer::Granted(LeaseEpoch(2)));
    let late = first
        .commit(&session, Revision(1), Some(Fence::Hold(old)), state("late"))
        .await;
    assert!(
        matches!(late, Err(StoreError::Fenced { held: Some(it) }) if it == old),
        "{late:?}"
    );

    // Both write at once, each on what it saw last: every revision is won once.
    let writers = [first, second].map(|store| {
        let session = session.clone();
        tokio::spawn(async move {
            let mut won = 0;
            while won < 50 {
                let seen = store.load(&session).await.unwrap().unwrap().revision;
                let next = state(&seen.0.to_string());
                match store.commit(&session, seen, None, next).await {
                    Ok(revision) => {
                        assert_eq!(revision, Revision(seen.0 + 1));
                        won += 1;
                    }
                    Err(StoreError::Conflict { expected, actual }) => {
                        assert_eq!(expected, seen);
                        assert!(actual > seen);
                    }
                    Err(error) => panic!("{error:?}"),
                }
            }
        })
    });
    for writer in writers {
        writer.await.unwrap();
    }
    let store = SqliteStateStore::open(&path).await.unwrap();
    let revision = store.load(&session).await.unwrap().unwrap().revision;
    assert_eq!(revision, Revision(101));
}

/// A commit or deletion over another connection wakes who listens, and only for what changed.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_of_another_store_wakes_the_listeners() {
    let (_directory, path) = place();
    let listening = SqliteStateStore::open(&path).await.unwrap();
    let writing = SqliteStateStore::open(&path).await.unwrap();
    let mut stream = listening.changes();
    // From this on it watches the file.
    assert_eq!(next(&mut stream).await, Change::Missed);

    for name in ["a", "b/c"] {
        writing
            .commit(&id(name), Revision(0), None, state("s"))
            .await
            .unwrap();
        assert_eq!(next(&mut stream).await, committed(name, 1));
    }
    writing.delete(&id("a")).await.unwrap();
    assert_eq!(next(&mut stream).await, Change::Deleted(id("a")));

    // Its own commits are told once, by the writer and not again by the watcher.
    listening
        .commit(&id("own"), Revision(0), None, state("s"))
        .await
        .unwrap();
    assert_eq!(next(&mut stream).await, committed("own", 1));
    let due = Commit {
        summary: SessionSummary {
            due_at: Some(Timestamp(7)),
            ..SessionSummary::default()
        },
        ..state("s")
    };
    writing
        .commit(&id("b/c"), Revision(1), None, due)
        .await
        .unwrap();
    let told = Change::Committed {
        session: id("b/c"),
        revision: Revision(2),
        due_at: Some(Timestamp(7)),
    };
    assert_eq!(next(&mut stream).await, told);
}

fn committed(session: &str, revision: u64) -> Change {
    Change::Committed {
        session: id(session),
        revision: Revision(revision),
        due_at: None,
    }
}

/// Who listens again after nobody did is told that it may have missed something.
#[tokio::test(flavor = "multi_thread")]
async fn watching_begins_anew_after_nobody_listened() {
    let (_directory, path) = place();
    let listening = SqliteStateStore::open(&path).await.unwrap();
    let writing = SqliteStateStore::open(&path).await.unwrap();
    let mut streams: Vec<_> = (0..3).map(|_| listening.changes()).collect();
    assert_eq!(next(&mut streams[0]).await, Change::Missed);
    drop(streams);
    writing
        .commit(&id("a"), Revision(0), None, state("s"))
        .await
        .unwrap();
    // Told as missed or by its name, depending on whether the watcher noticed the pause.
    let mut stream = listening.changes();
    writing
        .commit(&id("a"), Revision(1), None, state("s"))
        .await
        .unwrap();
    next(&mut stream).await;
    assert_eq!(stored(&listening, "a").await, Some("s".to_owned()));
}

/// A place that cannot hold a store is refused by what is wrong with it.
#[tokio::test]
async fn unusable_places_are_refused() {
    let (directory, path) = place();
    let open = async |path: &Path| match SqliteStateStore::open(path).await {
        Err(StoreError::Unusable { location, reason }) => {
            assert_eq!(location, path.display().to_string());
            reason
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(open(directory.path()).await, "it is a directory");
    assert_eq!(
        open(&path.join("missing/a.db")).await,
        "its directory does not exist"
    );
    // Nobody, not even root, makes files here.
    open(Path::new("/proc/abide.db")).await;
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

/// A file that is something else is refused and left as it is.
#[tokio::test]
async fn other_files_are_refused_and_left_alone() {
    let (_directory, path) = place();
    for garbage in [&b"hello"[..], &[7; 8192], b"SQLite format 3\0 and no more"] {
        std::fs::write(&path, garbage).unwrap();
        let opened = SqliteStateStore::open(&path).await;
        assert!(
            matches!(opened, Err(StoreError::Corrupt { .. })),
            "{opened:?}"
        );
        assert_eq!(std::fs::read(&path).unwrap(), garbage);
    }
    std::fs::remove_file(&path).unwrap();
    let other = Connection::open(&path).unwrap();
    other.execute_batch("CREATE TABLE theirs (a)").unwrap();
    drop(other);
    let before = std::fs::read(&path).unwrap();
    let opened = SqliteStateStore::open(&path).await;
    let Err(StoreError::Corrupt { what }) = opened else {
        panic!("{opened:?}");
    };
    assert_eq!(what, "it is another application's SQLite file");
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

/// G12: a file of a newer version is not opened, and no longer written once it became one.
#[tokio::test]
async fn a_newer_file_is_refused() {
    let (_directory, path) = place();
    let store = SqliteStateStore::open(&path).await.unwrap();
    let raise = Connection::open(&path).unwrap();
    raise.pragma_update(None, "user_version", 7).unwrap();
    let is_too_new = |error: &StoreError| {
        matches!(
            error,
            StoreError::TooNew {
                found: 7,
                supported: 3,
                ..
            }
        )
    };
    let error = store
        .commit(&id("a"), Revision(0), None, state("s"))
        .await
        .unwrap_err();
    assert!(is_too_new(&error), "{error:?}");
    let error = SqliteStateStore::open(&path).await.unwrap_err();
    assert!(is_too_new(&error), "{error:?}");
}

/// G12: a file of format 1, whose values are stored as they are, is read and written on.
#[tokio::test]
async fn a_file_of_format_1_is_read_and_written_on() {
    use abide::ids::ChunkId;
    use abide::store::{RowChange, RowKey, RowKind, SessionSize};
    const FORMAT_1: &str = include_str!("../../fixtures/stored/sqlite_1.sql");
    let (_directory, path) = place();
    let old = Connection::open(&path).unwrap();
    old.execute_batch(FORMAT_1).unwrap();
    drop(old);
    let store = SqliteStateStore::open(&path).await.unwrap();
    let session = id("s");
    let read = store.load(&session).await.unwrap().unwrap();
    assert_eq!(read.state, b"state");
    let chunks = store.read_chunks(&session, ChunkId(1), 1).await.unwrap();
    assert_eq!(chunks[0].bytes, b"plain");
    let key = |kind| RowKey {
        kind,
        key: "t1/toolu_01".to_owned(),
    };
    let keys = [key(RowKind::Record), key(RowKind::Output)];
    let rows = async || store.read_rows(&session, &keys).await.unwrap();
    let record = br#"{"format":1}"#.to_vec();
    assert_eq!(rows().await, [Some(record), Some(vec![0, 1, 255])]);
    let size = store.size(&session).await.unwrap();
    let bytes = |it: &[u8]| it.len() as u64;
    let events = FORMAT_1
        .lines()
        .filter_map(|it| Some(it.split_once("CAST('{\"format\":1,")?.1));
    let events: Vec<_> = events
        .map(|it| format!("{{\"format\":1,{}", it.split_once('\'').unwrap().0))
        .collect();
    let stored = bytes(b"state") + bytes(b"plain") + bytes(br#"{"format":1}"#) + 3;
    assert_eq!(
        size,
        SessionSize {
            raw_bytes: 5,
            stored_bytes: stored + events.iter().map(|it| it.len() as u64).sum::<u64>(),
        }
    );

    let long = br#"{"format":1,"status":"succeeded","text":"a record of today, of today"}"#;
    let event = |cursor: u64| EventRow {
        cursor: EventCursor(cursor),
        bytes: format!(r#"{{"format":1,"cursor":{cursor},"at":2000,"kind":"turn_completed"}}"#)
            .into_bytes(),
    };
    let commit = Commit {
        rows: vec![RowChange::Put(key(RowKind::Record), long.to_vec())],
        events: vec![event(3), event(4)],
        head: read.head,
        ..state("next")
    };
    store
        .commit(&session, read.revision, None, commit)
        .await
        .unwrap();
    assert_eq!(rows().await, [Some(long.to_vec()), Some(vec![0, 1, 255])]);
    let old = events.into_iter().zip(1..).map(|(it, cursor)| EventRow {
        cursor: EventCursor(cursor),
        bytes: it.into_bytes(),
    });
    let all: Vec<_> = old.chain([event(3), event(4)]).collect();
    for after in 0..5 {
        for limit in 0..5 {
            let read = store
                .read_events(&session, EventCursor(after as u64), limit)
                .await;
            let expected: Vec<_> = all.iter().skip(after).take(limit).cloned().collect();
            assert_eq!(read.unwrap(), expected);
        }
    }
    drop(store);
    let again = SqliteStateStore::open(&path).await.unwrap();
    assert_eq!(stored_text(&again).await, Some("next".to_owned()));
}

async fn stored_text(store: &SqliteStateStore) -> Option<String> {
    stored(store, "s").await
}

/// Reading goes on while another process holds the file's write lock.
#[tokio::test]
async fn a_reader_does_not_wait_for_a_writer() {
    let (_directory, path) = place();
    let store = SqliteStateStore::open(&path).await.unwrap();
    store
        .commit(&id("a"), Revision(0), None, state("before"))
        .await
        .unwrap();
    let writing = Connection::open(&path).unwrap();
    writing
        .execute_batch("BEGIN IMMEDIATE; UPDATE states SET state = x'00'")
        .unwrap();
    assert_eq!(stored(&store, "a").await, Some("before".to_owned()));
    let page = store.list(&Default::default(), 10).await.unwrap();
    assert_eq!(page.rows.len(), 1);

    // A commit waits for the lock, and holds once it is free.
    let (session, next) = (id("a"), state("after"));
    let mut commit = store.commit(&session, Revision(1), None, next);
    let early = tokio::time::timeout(Duration::from_millis(50), &mut commit).await;
    assert!(early.is_err(), "{early:?}");
    writing.execute_batch("ROLLBACK").unwrap();
    assert_eq!(commit.await.unwrap(), Revision(2));
}

/// Stores that create the same file at once all find it usable.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_may_be_created_by_several_at_once() {
    let (_directory, path) = place();
    let opening: Vec<_> = (0..8)
        .map(|_| tokio::spawn(SqliteStateStore::open(path.clone())))
        .collect();
    for (number, it) in opening.into_iter().enumerate() {
        let store = it.await.unwrap().unwrap();
        let session = id(&format!("s{number}"));
        let revision = store.commit(&session, Revision(0), None, state("s")).await;
        assert_eq!(revision.unwrap(), Revision(1));
    }
}

/// A damaged chain is told, not followed in a circle or cut short.
#[tokio::test]
async fn a_damaged_chain_is_corrupt() {
    use abide::ids::ChunkId;
    use abide::store::{Chunk, ChunkCodec};
    let (_directory, path) = place();
    let store = SqliteStateStore::open(&path).await.unwrap();
    let chunk = |id, parent: Option<u64>| Chunk {
        id: ChunkId(id),
        parent: parent.map(ChunkId),
        messages: 1,
        codec: ChunkCodec::Plain,
        raw_bytes: 0,
        bytes: Vec::new(),
    };
    let commit = Commit {
        chunks: vec![chunk(1, None), chunk(2, Some(1)), chunk(3, Some(2))],
        ..state("s")
    };
    let session = id("a");
    store
        .commit(&session, Revision(0), None, commit)
        .await
        .unwrap();
    let damage = Connection::open(&path).unwrap();
    for (sql, missing) in [
        ("UPDATE chunks SET parent = 3 WHERE id = 1", 3),
        ("DELETE FROM chunks WHERE id = 1", 1),
    ] {
        damage.execute_batch(sql).unwrap();
        let chain = store.chunk_chain(&session, ChunkId(3)).await;
        let Err(StoreError::Corrupt { what }) = chain else {
            panic!("{chain:?}");
        };
        assert_eq!(what, format!("there is no chunk {missing}"));
    }
    damage.execute_batch("UPDATE chunks SET codec = 9").unwrap();
    let read = store.read_chunks(&session, ChunkId(3), 1).await;
    assert!(
        matches!(
            read,
            Err(StoreError::TooNew {
                found: 9,
                supported: ChunkCodec::NEWEST,
                ..
            })
        ),
        "{read:?}"
    );
}

/// What SQLite cannot hold is refused as a rule of the store, and leaves nothing.
#[tokio::test]
async fn a_state_beyond_the_limit_is_refused() {
    let (_directory, path) = place();
    let store = SqliteStateStore::open(&path).await.unwrap();
    store
        .commit(&id("a"), Revision(0), None, state("before"))
        .await
        .unwrap();
    let too_big = Commit {
        state: vec![0; 1_000_000_001],
        ..Commit::default()
    };
    let refused = store.commit(&id("a"), Revision(1), None, too_big).await;
    assert!(
        matches!(refused, Err(StoreError::Corrupt { .. })),
        "{refused:?}"
    );
    assert_eq!(stored(&store, "a").await, Some("before".to_owned()));
}

fn place() -> (tempfile::TempDir, std::path::PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("sessions.db");
    (directory, path)
}

fn id(text: &str) -> SessionId {
    SessionId::new(text).unwrap()
}

fn state(text: &str) -> Commit {
    Commit {
        state: text.into(),
        ..Commit::default()
    }
}

fn worker(name: &str) -> WorkerRecord {
    WorkerRecord {
        id: WorkerId::new(name),
        process_id: 1,
        start_time: 2,
        boot_id: "boot".to_owned(),
        pid_namespace: 1,
    }
}

async fn stored(store: &dyn StateStore, session: &str) -> Option<String> {
    let session = store.load(&id(session)).await.unwrap();
    session.map(|it| String::from_utf8(it.state).unwrap())
}

/// Waits for the next change, which comes within a few checks of the file.
async fn next(stream: &mut ChangeStream) -> Change {
    tokio::time::timeout(Duration::from_secs(10), stream.next())
        .await
        .unwrap()
        .unwrap()
}

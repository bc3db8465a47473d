//! A payload codec in front of the store: what was said is stored encoded, and read by nobody else.

use abide::client::{ClientError, CloseMode};
use abide::ids::{ChunkId, Revision, TurnId};
use abide::settings::SessionSettings;
use abide::store::{
    CodedStateStore, Commit, InterruptFilter, RowChange, RowKey, RowKind, SqliteStateStore,
    StoreError,
};
use abide::testing::codec::ScrambledCodec;

use super::*;

/// Words that are said in the session, each in another way.
const SAID: [&str; 10] = [
    "canary-message",
    "canary-queued",
    "canary-large",
    "canary-changed",
    "canary-person",
    "canary-rejection",
    "canary-partial",
    "canary-reason",
    "canary-settings",
    "canary-retried",
];

fn coded(inner: Arc<dyn StateStore>, codec: &ScrambledCodec) -> Arc<dyn StateStore> {
    Arc::new(CodedStateStore::new(inner, Arc::new(codec.clone())))
}

/// Does all that a session can, on two engines after each other, which share a file or memory alone.
async fn live_through_everything(place: &mut Place, elsewhere: Arc<dyn StateStore>) {
    let id = session("s");
    let engine = place.engine().await;
    let client = engine.client();
    let large = format!("canary-message {}", "canary-large ".repeat(4_000));
    let begin = start("s", &large).with_metadata("topic", "in the clear");
    client.start_session(begin).await.unwrap();
    let mut log = Log::of(&client, &id).await;
    log.turns_over(1).await;
    let settings = SessionSettings {
        instructions: Some("canary-settings".to_owned()),
        ..SessionSettings::default()
    };
    let updated = client.update_settings(&id, 0, settings, None).await;
    assert_eq!(updated.unwrap().value, 1);
    let call = "call write:c1 write:c2";
    client.send_user_message(&id, call, None).await.unwrap();
    log.suspended().await;
    let queued = "re canary-queued";
    client.send_user_message(&id, queued, None).await.unwrap();
    engine.shutdown().await;

    // Another worker, with the same keys, over what the first one left.
    place.store = elsewhere;
    let (reader, filter) = (place.client(), InterruptFilter::default());
    let inbox = reader.list_interrupts(&filter, 10).await.unwrap();
    let shown = inbox.rows.iter().map(|it| &it.interrupt);
    let shown: Vec<_> = shown
        .map(|it| (it.tool_name.as_str(), it.arguments_preview.as_str()))
        .collect();
    let expected = [r#"{"for":"c1"}"#, r#"{"for":"c2"}"#].map(|it| ("write", it));
    assert_eq!(shown, expected);
    let engine = place.engine().await;
    let client = engine.client();
    let approval = approve("t2/c1")
        .with_changed_arguments(r#"{"note":"canary-changed"}"#)
        .decided_by("canary-person");
    client.resolve_interrupt(&id, approval).await.unwrap();
    let rejection = reject("t2/c2", "canary-rejection");
    client.resolve_interrupt(&id, rejection).await.unwrap();
    let mut log = Log::of(&client, &id).await;
    log.turns_over(3).await;
    let said = texts(&client, &id).await;
    assert_eq!(said[0], large);
    assert!(
        said.iter()
            .any(|it| it.contains("ran {\"note\":\"canary-changed\"}"))
    );

    let stop = "stop canary-partial";
    client.send_user_message(&id, stop, None).await.unwrap();
    place.runner.waiting(1).await;
    let reason = Some("canary-reason".to_owned());
    client.cancel_turn(&id, None, reason, None).await.unwrap();
    log.turns_over(4).await;
    let fail = "fail canary-retried";
    client.send_user_message(&id, fail, None).await.unwrap();
    log.turns_over(5).await;
    client.retry_turn(&id, TurnId::new(5), None).await.unwrap();
    log.turns_over(6).await;
    let (fork, third) = (session("fork"), TurnId::new(3));
    let begin = start("fork", "three");
    assert!(client.fork_session(&id, third, begin).await.unwrap());
    Log::of(&client, &fork).await.turns_over(1).await;
    assert_eq!(texts(&client, &fork).await[0], large);
    let closed = client.close_session(&fork, CloseMode::Cancel, None).await;
    closed.unwrap();
    client.delete_session(&fork).await.unwrap();
    let page = client.read_events(&id, EventCursor(0), 1_000).await;
    assert_eq!(page.unwrap().events.len(), log.seen.len());
    let tail = client.snapshot_tail(&id, 2).await.unwrap();
    assert_eq!(tail.messages.len(), 2);
    assert!(client.session_size(&id).await.unwrap().stored_bytes > 0);
    engine.shutdown().await;
}

/// Which of the words stand in the files of a directory.
fn found_in_files(directory: &std::path::Path, words: &[&'static str]) -> Vec<&'static str> {
    let files = std::fs::read_dir(directory).unwrap();
    let files = files.map(|it| std::fs::read(it.unwrap().path()).unwrap());
    // Words are ASCII; what else is in a file may become anything.
    let files: Vec<_> = files
        .map(|it| String::from_utf8_lossy(&it).into_owned())
        .collect();
    assert!(!files.is_empty());
    let stands = |word: &&str| files.iter().any(|it| it.contains(*word));
    words.iter().copied().filter(stands).collect()
}

/// G10: whatever is said in a session that lives through everything, nothing of it stands in the file or
/// its log behind a codec, not even while it is written. The same session without one shows that it
/// would be found.
#[tokio::test]
async fn behind_a_codec_nothing_that_was_said_is_in_the_file() {
    for is_coded in [true, false] {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("a.db");
        let open = async || -> Arc<dyn StateStore> {
            let inner = Arc::new(SqliteStateStore::open(&file).await.unwrap());
            match is_coded {
                true => coded(inner, &ScrambledCodec::new("of the host")),
                false => inner,
            }
        };
        let mut place = Place::new(Scripted::open());
        place.store = open().await;
        live_through_everything(&mut place, open().await).await;
        let found = found_in_files(directory.path(), &SAID);
        if is_coded {
            assert_eq!(found, [""; 0]);
        } else {
            // The others stand in what is packed, where they may or may not be seen.
            let unpacked = ["canary-person", "canary-reason", "canary-settings"];
            assert!(unpacked.iter().all(|it| found.contains(it)), "{found:?}");
        }
        // As the documentation says; a store finds sessions by it.
        let metadata = ["in the clear"];
        assert_eq!(found_in_files(directory.path(), &metadata), metadata);
    }
}

/// The store behind the codec "ours", and in it a session that waits for a person and for no worker.
async fn suspended_behind_a_codec() -> (Arc<dyn StateStore>, Place, SessionId) {
    let inner: Arc<dyn StateStore> = Arc::new(MemoryStateStore::new());
    let mut place = Place::new(Scripted::open());
    place.store = coded(Arc::clone(&inner), &ScrambledCodec::new("ours"));
    let engine = place.engine().await;
    let id = session("s");
    let begin = start("s", "call write:c1");
    engine.client().start_session(begin).await.unwrap();
    Log::of(&engine.client(), &id).await.suspended().await;
    engine.shutdown().await;
    (inner, place, id)
}

fn is_corrupt<T: std::fmt::Debug>(result: Result<T, ClientError>) {
    match result {
        Err(ClientError::Store(StoreError::Corrupt { .. })) => {}
        other => panic!("expected damage, got {other:?}"),
    }
}

/// What was written with a codec is not read without it or with another one, nor the other way about:
/// it is an error each time.
#[tokio::test(start_paused = true)]
async fn a_session_is_read_with_its_own_codec_alone() {
    let (inner, mut place, id) = suspended_behind_a_codec().await;
    let filter = InterruptFilter::default();

    let theirs = coded(Arc::clone(&inner), &ScrambledCodec::new("theirs"));
    for store in [Arc::clone(&inner), theirs] {
        let client = AgentSessionClient::new(store);
        is_corrupt(client.snapshot(&id).await);
        is_corrupt(client.list_interrupts(&filter, 10).await);
        is_corrupt(client.resolve_interrupt(&id, approve("t1/c1")).await);
    }
    let ours = place.client();
    assert_eq!(
        ours.list_interrupts(&filter, 10).await.unwrap().rows.len(),
        1
    );

    let plain: Arc<dyn StateStore> = Arc::new(MemoryStateStore::new());
    place.store = Arc::clone(&plain);
    let engine = place.engine().await;
    let begin = start("s", "call write:c1");
    engine.client().start_session(begin).await.unwrap();
    Log::of(&engine.client(), &id).await.suspended().await;
    engine.shutdown().await;
    let client = AgentSessionClient::new(coded(plain, &ScrambledCodec::new("ours")));
    is_corrupt(client.snapshot(&id).await);
    is_corrupt(client.list_interrupts(&filter, 10).await);
}

/// A key that is thrown away takes its session along and no other one; the session can still be removed.
#[tokio::test(start_paused = true)]
async fn a_session_without_its_key_is_read_by_nobody() {
    let codec = ScrambledCodec::new("ours");
    let mut place = Place::new(Scripted::open());
    place.store = coded(Arc::new(MemoryStateStore::new()), &codec);
    let engine = place.engine().await;
    let (client, filter) = (engine.client(), InterruptFilter::default());
    for name in ["a", "b"] {
        let begin = start(name, "call write:c1");
        client.start_session(begin).await.unwrap();
        Log::of(&client, &session(name)).await.suspended().await;
    }
    let a = session("a");
    codec.forget(&a);
    let is_no_key = |error: &ClientError| match error {
        ClientError::Store(StoreError::NoKey { session }) => *session == a,
        _ => false,
    };
    assert!(is_no_key(&client.snapshot(&a).await.unwrap_err()));
    let answer = client.resolve_interrupt(&a, approve("t1/c1")).await;
    assert!(is_no_key(&answer.unwrap_err()));
    let again = client.start_session(start("a", "call write:c1")).await;
    assert!(is_no_key(&again.unwrap_err()));
    let rows = client.list_interrupts(&filter, 10).await.unwrap().rows;
    let shown = rows.iter().map(|it| {
        let interrupt = &it.interrupt;
        let (tool, arguments) = (&interrupt.tool_name, &interrupt.arguments_preview);
        (it.session.as_str(), tool.as_str(), arguments.as_str())
    });
    let expected = [("a", "", ""), ("b", "write", r#"{"for":"c1"}"#)];
    assert_eq!(shown.collect::<Vec<_>>(), expected);

    let b = session("b");
    client
        .resolve_interrupt(&b, approve("t1/c1"))
        .await
        .unwrap();
    Log::of(&client, &b).await.turns_over(1).await;
    assert!(place.store.delete(&a).await.unwrap());
    let rows = client.list_interrupts(&filter, 10).await.unwrap().rows;
    assert_eq!(rows, []);
}

/// While the keys cannot be had nothing is stored, and who asked is told to ask again; a worker does so
/// by itself.
#[tokio::test(start_paused = true)]
async fn a_worker_waits_for_its_keys() {
    let inner: Arc<dyn StateStore> = Arc::new(MemoryStateStore::new());
    let (of_worker, of_client) = (ScrambledCodec::new("ours"), ScrambledCodec::new("ours"));
    let mut place = Place::new(Scripted::closed());
    place.store = coded(Arc::clone(&inner), &of_worker);
    let engine = place.engine().await;
    let client = AgentSessionClient::new(coded(Arc::clone(&inner), &of_client));
    let id = session("s");
    client.start_session(start("s", "wait")).await.unwrap();
    place.runner.waiting(1).await;
    of_worker.set_away(true);
    place.runner.open_gate();
    // As long as a worker may wait for a store.
    tokio::time::advance(std::time::Duration::from_secs(60)).await;
    let before = inner.load(&id).await.unwrap().unwrap();

    of_client.set_away(true);
    let refused = client.send_user_message(&id, "more", None).await;
    let error = refused.unwrap_err();
    assert!(
        error.is_retryable() && !error.may_have_happened(),
        "{error:?}"
    );
    assert_eq!(inner.load(&id).await.unwrap().unwrap(), before);
    of_client.set_away(false);
    client.send_user_message(&id, "more", None).await.unwrap();
    of_worker.set_away(false);
    Log::of(&client, &id).await.turns_over(2).await;
    let expected = ["wait", "re: wait", "more", "re: more"];
    assert_eq!(texts(&client, &id).await, expected);
    drop(engine);
}

/// A payload that was moved, to another session or within its own, is refused where it lies now.
#[tokio::test(start_paused = true)]
async fn a_moved_payload_is_refused() {
    let inner: Arc<dyn StateStore> = Arc::new(MemoryStateStore::new());
    let store = coded(Arc::clone(&inner), &ScrambledCodec::new("ours"));
    let (a, b) = (session("a"), session("b"));
    let row = |key: &str| RowKey {
        kind: RowKind::Message,
        key: key.to_owned(),
    };
    let mut place = Place::new(Scripted::open());
    place.store = Arc::clone(&store);
    let engine = place.engine().await;
    let client = engine.client();
    client.start_session(start("a", "hello")).await.unwrap();
    Log::of(&client, &a).await.turns_over(1).await;
    engine.shutdown().await;
    let place = place.client();
    // With no engine the first message is a turn that stays due, and the second one waits.
    place.send_user_message(&a, "now", None).await.unwrap();
    let later = place.send_user_message(&a, "later", None).await.unwrap();
    let message = row(&later.message_id.to_string());
    let texts = store.read_rows(&a, std::slice::from_ref(&message)).await;
    assert_eq!(texts.unwrap(), [Some(b"later".to_vec())]);

    let raw = inner.load(&a).await.unwrap().unwrap();
    let head = raw.head.unwrap();
    let chunks = inner.read_chunks(&a, head, usize::MAX).await.unwrap();
    let mut events = inner.read_events(&a, EventCursor(0), 2).await.unwrap();
    let text = inner
        .read_rows(&a, std::slice::from_ref(&message))
        .await
        .unwrap();
    let text = text[0].clone().unwrap();
    let (first, second) = events.split_at_mut(1);
    std::mem::swap(&mut first[0].bytes, &mut second[0].bytes);
    let moved = Commit {
        state: raw.state,
        head: Some(head),
        chunks,
        rows: vec![RowChange::Put(message.clone(), text.clone())],
        events,
        ..Commit::default()
    };
    inner.commit(&b, Revision(0), None, moved).await.unwrap();
    let is_refused = |it: &StoreError| matches!(it, StoreError::Corrupt { .. });
    assert!(is_refused(&store.load(&b).await.unwrap_err()));
    let read = store.read_chunks(&b, ChunkId(head.0), 1).await;
    assert!(is_refused(&read.unwrap_err()));
    let read = store.read_rows(&b, std::slice::from_ref(&message)).await;
    assert!(is_refused(&read.unwrap_err()));
    let read = store.read_events(&b, EventCursor(0), 2).await;
    assert!(is_refused(&read.unwrap_err()));

    // Within the session: another key, and another place in the chain.
    let raw = inner.load(&a).await.unwrap().unwrap();
    let last = inner.read_chunks(&a, head, 1).await.unwrap();
    let mut moved = last[0].clone();
    (moved.id, moved.parent) = (ChunkId(head.0 + 100), None);
    let next = Commit {
        state: raw.state,
        head: Some(moved.id),
        chunks: vec![moved.clone()],
        rows: vec![RowChange::Put(row("m9"), text)],
        ..Commit::default()
    };
    inner.commit(&a, raw.revision, None, next).await.unwrap();
    let read = store.read_chunks(&a, moved.id, 1).await;
    assert!(is_refused(&read.unwrap_err()));
    let read = store.read_rows(&a, &[row("m9")]).await;
    assert!(is_refused(&read.unwrap_err()));
    assert_eq!(store.read_chunks(&a, head, 1).await.unwrap().len(), 1);
}

/// An interrupt is shown as it was stored, or not at all: another age or end that was written beside it is
/// damage.
#[tokio::test(start_paused = true)]
async fn an_interrupt_that_is_listed_as_another_one_is_refused() {
    let (inner, place, id) = suspended_behind_a_codec().await;
    let filter = InterruptFilter::default();

    let raw = inner.list_interrupts(&filter, 1).await.unwrap().rows;
    let mut later = raw[0].interrupt.clone();
    assert_eq!(later.tool_name, "");
    later.expires_at = Some(START);
    for (interrupt, is_listed) in [(raw[0].interrupt.clone(), true), (later, false)] {
        let stored = inner.load(&id).await.unwrap().unwrap();
        let commit = Commit {
            state: stored.state,
            head: stored.head,
            interrupts: vec![interrupt],
            ..Commit::default()
        };
        let committed = inner.commit(&id, stored.revision, None, commit).await;
        committed.unwrap();
        let listed = place.client().list_interrupts(&filter, 10).await;
        if is_listed {
            assert_eq!(listed.unwrap().rows[0].interrupt.tool_name, "write");
        } else {
            is_corrupt(listed);
        }
    }
}

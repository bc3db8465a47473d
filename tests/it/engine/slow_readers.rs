//! Readers that are late, slow or gone, and the parts of a session that are read alone.

use abide::client::{CloseMode, EventBuffer, EventStreamOptions, OverflowPolicy};
use abide::store::SqliteStateStore;

use super::*;

/// The smallest buffer, and this policy.
fn small(overflow: OverflowPolicy) -> EventStreamOptions {
    EventStreamOptions::default()
        .with_buffer(EventBuffer::MIN)
        .with_overflow(overflow)
}

async fn next(stream: &mut EventStream) -> Observed {
    watched(stream.next()).await.unwrap().unwrap()
}

async fn next_cursor(stream: &mut EventStream) -> u64 {
    match next(stream).await {
        Observed::Event(event) => event.cursor.0,
        other => panic!("{other:?}"),
    }
}

/// Reads up to the mark, and returns the cursor before it.
async fn catch_up(stream: &mut EventStream) -> u64 {
    while next(stream).await != Observed::CaughtUp {}
    stream.cursor().0
}

/// Messages that no engine takes up: each is one event.
async fn send(client: &AgentSessionClient, id: &SessionId, messages: usize) {
    for _ in 0..messages {
        client.send_user_message(id, "more", None).await.unwrap();
    }
}

/// P09, G13: a reader that sleeps while as many events come as its buffer holds is told nothing; with
/// one event more it is told which one it missed, and then gets it from the store.
#[tokio::test(start_paused = true)]
async fn a_reader_that_falls_behind_catches_up() {
    let place = Place::new(Scripted::open());
    let client = place.client();
    let id = session("s");
    client.start_session(start("s", "hello")).await.unwrap();
    let options = small(OverflowPolicy::CatchUp);
    let mut stream = client
        .events_with(&id, EventCursor(0), options)
        .await
        .unwrap();
    let begin = catch_up(&mut stream).await;
    send(&client, &id, 8).await;
    for cursor in begin + 1..=begin + 8 {
        assert_eq!(next_cursor(&mut stream).await, cursor);
    }
    // The reader has to look at the store once more before it is up to date again.
    send(&client, &id, 1).await;
    assert_eq!(next_cursor(&mut stream).await, begin + 9);

    let begin = begin + 9;
    send(&client, &id, 21).await;
    for cursor in begin + 1..=begin + 8 {
        assert_eq!(next_cursor(&mut stream).await, cursor);
    }
    let Observed::Overflow(overflow) = next(&mut stream).await else {
        panic!("it is behind");
    };
    assert_eq!(overflow.first_missed, EventCursor(begin + 9));
    assert_eq!(overflow.missed, 13);
    for cursor in begin + 9..=begin + 21 {
        assert_eq!(next_cursor(&mut stream).await, cursor);
    }
    assert_eq!(next(&mut stream).await, Observed::CaughtUp);
    send(&client, &id, 1).await;
    assert_eq!(next_cursor(&mut stream).await, begin + 22);
}

/// P09: with the other policy the stream ends, and one that is opened at its cursor goes on.
#[tokio::test(start_paused = true)]
async fn a_reader_that_falls_behind_is_closed() {
    let place = Place::new(Scripted::open());
    let client = place.client();
    let id = session("s");
    client.start_session(start("s", "hello")).await.unwrap();
    let options = small(OverflowPolicy::Close);
    let mut stream = client
        .events_with(&id, EventCursor(0), options)
        .await
        .unwrap();
    let begin = catch_up(&mut stream).await;
    send(&client, &id, 9).await;
    for cursor in begin + 1..=begin + 8 {
        assert_eq!(next_cursor(&mut stream).await, cursor);
    }
    let Observed::Overflow(overflow) = next(&mut stream).await else {
        panic!("it is behind");
    };
    assert_eq!(overflow.first_missed, EventCursor(begin + 9));
    assert_eq!(overflow.missed, 1);
    send(&client, &id, 1).await;
    for _ in 0..2 {
        assert_eq!(stream.next().await.unwrap(), None);
    }
    let cursor = stream.cursor();
    let mut again = client.events_with(&id, cursor, options).await.unwrap();
    assert_eq!(next_cursor(&mut again).await, overflow.first_missed.0);
    assert_eq!(next_cursor(&mut again).await, begin + 10);
    assert_eq!(next(&mut again).await, Observed::CaughtUp);
}

/// Replaying is no overflow, however long the log and small the buffer.
#[tokio::test(start_paused = true)]
async fn a_replay_never_overflows() {
    let place = Place::new(Scripted::open());
    let client = place.client();
    let id = session("s");
    client.start_session(start("s", "hello")).await.unwrap();
    send(&client, &id, 40).await;
    let stored = client.snapshot(&id).await.unwrap().event_cursor.0;
    let options = small(OverflowPolicy::Close);
    let mut stream = client
        .events_with(&id, EventCursor(0), options)
        .await
        .unwrap();
    for cursor in 1..=stored {
        assert_eq!(next_cursor(&mut stream).await, cursor);
    }
    assert_eq!(next(&mut stream).await, Observed::CaughtUp);
}

/// P10: a buffer holds 8 to 65,536 events, 1,024 by default.
#[test]
fn a_buffer_has_bounds() {
    assert_eq!(EventBuffer::default().events(), 1024);
    for (events, is_good) in [
        (0, false),
        (7, false),
        (8, true),
        (1024, true),
        (65_536, true),
        (65_537, false),
        (usize::MAX, false),
    ] {
        let buffer = EventBuffer::new(events);
        assert_eq!(buffer.is_ok(), is_good, "{events}");
        match buffer {
            Ok(buffer) => assert_eq!(buffer.events(), events),
            Err(refused) => assert_eq!(refused.given, events),
        }
    }
}

/// P12: closing twice, or before the first read, is harmless; nothing follows.
#[tokio::test(start_paused = true)]
async fn a_stream_may_be_closed_at_any_time() {
    let place = Place::new(Scripted::open());
    let client = place.client();
    let id = session("s");
    client.start_session(start("s", "hello")).await.unwrap();
    for read in 0..3 {
        let mut stream = client.events(&id, EventCursor(0)).await.unwrap();
        for cursor in 1..=read {
            assert_eq!(next_cursor(&mut stream).await, cursor);
        }
        for _ in 0..2 {
            stream.close();
            assert_eq!(stream.next().await.unwrap(), None);
        }
        assert_eq!(stream.cursor().0, read);
    }
}

/// G13: whoever comes late is shown every question that is open, from whatever cursor it reads on.
#[tokio::test(start_paused = true)]
async fn a_late_reader_is_shown_what_is_open() {
    let place = Place::new(Scripted::open());
    let engine = place.engine().await;
    let client = engine.client();
    let id = session("s");
    let asking = start("s", "call write:c1 write:c2");
    client.start_session(asking).await.unwrap();
    Log::of(&client, &id).await.suspended().await;
    let snapshot = client.snapshot(&id).await.unwrap();
    let mut open = snapshot.pending_interrupts;
    assert_eq!(open.len(), 2);
    for decided in [false, true] {
        if decided {
            client
                .resolve_interrupt(&id, approve("t1/c2"))
                .await
                .unwrap();
            open.truncate(1);
        }
        let stored = client.snapshot(&id).await.unwrap().event_cursor.0;
        for after in [0, 1, stored - 1, stored] {
            let mut stream = client.events(&id, EventCursor(after)).await.unwrap();
            for cursor in after + 1..=stored {
                assert_eq!(next_cursor(&mut stream).await, cursor);
            }
            for interrupt in &open {
                let shown = next(&mut stream).await;
                assert_eq!(shown, Observed::Interrupt(interrupt.clone()));
            }
            assert_eq!(next(&mut stream).await, Observed::CaughtUp);
        }
    }
}

/// P11: who reads on to the end of a session, and who comes after it with whatever cursor, is told that
/// nothing follows.
#[tokio::test(start_paused = true)]
async fn the_stream_of_a_session_that_is_over_ends() {
    let place = Place::new(Scripted::open());
    let engine = place.engine().await;
    let client = engine.client();
    let id = session("s");
    client.start_session(start("s", "hello")).await.unwrap();
    Log::of(&client, &id).await.turns_over(1).await;
    let mut early = client.events(&id, EventCursor(0)).await.unwrap();
    let before = catch_up(&mut early).await;
    client
        .close_session(&id, CloseMode::Reject, None)
        .await
        .unwrap();
    let stored = client.snapshot(&id).await.unwrap().event_cursor.0;
    assert!(stored > before);
    for cursor in before + 1..=stored {
        assert_eq!(next_cursor(&mut early).await, cursor);
    }
    assert_eq!(next(&mut early).await, Observed::Ended);
    assert_eq!(early.next().await.unwrap(), None);
    for after in [0, stored - 1, stored] {
        let mut late = client.events(&id, EventCursor(after)).await.unwrap();
        for cursor in after + 1..=stored {
            assert_eq!(next_cursor(&mut late).await, cursor);
        }
        assert_eq!(next(&mut late).await, Observed::CaughtUp);
        assert_eq!(next(&mut late).await, Observed::Ended);
        assert_eq!(late.next().await.unwrap(), None);
    }
}

/// P11: nothing follows the end of a session that is deleted, for those who read it and slept.
#[tokio::test(start_paused = true)]
async fn the_stream_of_a_deleted_session_ends() {
    let place = Place::new(Scripted::open());
    let client = place.client();
    let id = session("s");
    client.start_session(start("s", "hello")).await.unwrap();
    let mut awake = client.events(&id, EventCursor(0)).await.unwrap();
    catch_up(&mut awake).await;
    let mut asleep = client.events(&id, EventCursor(0)).await.unwrap();
    place.store.delete(&id).await.unwrap();
    for stream in [&mut awake, &mut asleep] {
        assert_eq!(next(stream).await, Observed::Ended);
        assert_eq!(stream.next().await.unwrap(), None);
    }
    // Another session under the same id is not what they read.
    client.start_session(start("s", "hello")).await.unwrap();
    assert_eq!(awake.next().await.unwrap(), None);
}

/// G13: live text that a slow reader left is announced to be lost, and comes again from its start.
#[tokio::test(start_paused = true)]
async fn a_slow_reader_gets_live_text_from_its_start() {
    let place = Place::new(Scripted::closed());
    let engine = place.engine().await;
    let client = engine.client();
    let id = session("s");
    client.start_session(start("s", "hello")).await.unwrap();
    Log::of(&client, &id).await.turns_over(1).await;
    let mut slow = client
        .events_with(&id, EventCursor(0), small(OverflowPolicy::CatchUp))
        .await
        .unwrap();
    let mut patient = client.events(&id, EventCursor(0)).await.unwrap();
    for stream in [&mut slow, &mut patient] {
        catch_up(stream).await;
    }
    let text: Vec<_> = (0..40).map(|it| it.to_string()).collect();
    let text = text.join(" ");
    client
        .send_user_message(&id, format!("live {text}"), None)
        .await
        .unwrap();
    place.runner.waiting(1).await;
    for (mut stream, is_slow) in [(slow, true), (patient, false)] {
        let (mut heard, mut restarts) = (String::new(), 0);
        while heard != text {
            match next(&mut stream).await {
                Observed::Live(piece) => {
                    assert_eq!(piece.offset, heard.len() as u64);
                    heard.push_str(&piece.text);
                }
                Observed::LiveRestarted => {
                    restarts += 1;
                    heard.clear();
                }
                Observed::Event(_) => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(restarts, usize::from(is_slow));
    }
}

/// G13: a cursor holds for a reader with another connection to the file, as in another process.
#[tokio::test]
async fn a_cursor_holds_in_another_store_over_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a.db");
    let mut place = Place::new(Scripted::open());
    place.store = Arc::new(SqliteStateStore::open(&file).await.unwrap());
    let id = session("s");
    let here = place.client();
    here.start_session(start("s", "hello")).await.unwrap();
    let mut first = here.events(&id, EventCursor(0)).await.unwrap();
    for cursor in 1..=2 {
        assert_eq!(next_cursor(&mut first).await, cursor);
    }
    let cursor = first.cursor();
    drop(first);
    let other = SqliteStateStore::open(&file).await.unwrap();
    let other = AgentSessionClient::new(Arc::new(other));
    let mut second = other.events(&id, cursor).await.unwrap();
    let stored = here.snapshot(&id).await.unwrap().event_cursor.0;
    for cursor in 3..=stored {
        assert_eq!(next_cursor(&mut second).await, cursor);
    }
    assert_eq!(next(&mut second).await, Observed::CaughtUp);
    // What is committed over the one is seen over the other, live.
    send(&here, &id, 3).await;
    for cursor in stored + 1..=stored + 3 {
        assert_eq!(next_cursor(&mut second).await, cursor);
    }
    here.send_user_message(&id, "last", None).await.unwrap();
    assert_eq!(next_cursor(&mut second).await, stored + 4);
    place.store.delete(&id).await.unwrap();
    assert_eq!(next(&mut second).await, Observed::Ended);
}

/// P36: the log is read in pages, each of which says where the next one begins and whether there is one.
#[tokio::test(start_paused = true)]
async fn the_log_is_read_in_pages() {
    let place = Place::new(Scripted::open());
    let client = place.client();
    let id = session("s");
    client.start_session(start("s", "hello")).await.unwrap();
    send(&client, &id, 30).await;
    let snapshot = client.snapshot(&id).await.unwrap();
    let stored = snapshot.event_cursor.0;
    for limit in [1, 7, 10, stored as usize, usize::MAX] {
        let (mut after, mut seen) = (EventCursor(0), Vec::new());
        loop {
            let page = client.read_events(&id, after, limit).await.unwrap();
            assert!(page.events.len() <= limit);
            assert_eq!(page.revision, snapshot.revision);
            seen.extend(page.events.iter().map(|it| it.cursor.0));
            assert_eq!(page.has_more, seen.len() < stored as usize);
            assert_eq!(page.next.0, seen.len() as u64);
            after = page.next;
            if !page.has_more {
                break;
            }
        }
        assert_eq!(seen, (1..=stored).collect::<Vec<_>>());
    }
    let nothing = client.read_events(&id, EventCursor(3), 0).await.unwrap();
    assert_eq!((nothing.next, nothing.has_more), (EventCursor(3), true));
    let end = client
        .read_events(&id, EventCursor(stored), 5)
        .await
        .unwrap();
    assert_eq!((end.events.len(), end.has_more), (0, false));
    let unknown = client
        .read_events(&session("none"), EventCursor(0), 5)
        .await;
    assert!(matches!(
        unknown,
        Err(abide::client::ClientError::NoSession { .. })
    ));
}

/// The end of a long conversation is read without the rest, and is the end of the whole.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_conversation_is_read_alone() {
    let place = Place::new(Scripted::open());
    let engine = place.engine().await;
    let client = engine.client();
    let id = session("s");
    let empty = StartSession::new(session("empty"), FlowType::new("Scripted").unwrap());
    client.start_session(empty).await.unwrap();
    let tail = client.snapshot_tail(&session("empty"), 5).await.unwrap();
    assert_eq!((tail.messages.len(), tail.has_earlier_messages), (0, false));

    client.start_session(start("s", "0")).await.unwrap();
    let mut log = Log::of(&client, &id).await;
    for turn in 1..=150 {
        log.turns_over(turn).await;
        let text = turn.to_string();
        client.send_user_message(&id, text, None).await.unwrap();
    }
    log.turns_over(151).await;
    let whole = client.snapshot(&id).await.unwrap();
    assert_eq!(
        (whole.messages.len(), whole.has_earlier_messages),
        (302, false)
    );
    for max in [0, 1, 2, 31, 32, 33, 150, 301, 302, 303, usize::MAX] {
        let tail = client.snapshot_tail(&id, max).await.unwrap();
        let from = whole.messages.len().saturating_sub(max);
        assert_eq!(tail.messages, whole.messages[from..], "{max}");
        assert_eq!(tail.has_earlier_messages, from > 0, "{max}");
        assert_eq!(tail.event_cursor, whole.event_cursor);
    }
}

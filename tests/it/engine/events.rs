//! Subscriptions: every logged event once, and live text from its start (G13).

use abide::event::{LiveText, LiveTextKind};

use super::*;

async fn next(stream: &mut EventStream) -> Observed {
    stream.next().await.unwrap().unwrap()
}

fn cursors(seen: &[Observed]) -> Vec<u64> {
    seen.iter()
        .filter_map(|it| match it {
            Observed::Event(event) => Some(event.cursor.0),
            _ => None,
        })
        .collect()
}

fn is_turn_completed(observed: &Observed) -> bool {
    matches!(observed, Observed::Event(it) if matches!(it.kind, EventKind::TurnCompleted))
}

/// Reads until a turn is over.
async fn read_turn(stream: &mut EventStream) -> Vec<Observed> {
    let mut seen = Vec::new();
    loop {
        seen.push(next(stream).await);
        if seen.last().is_some_and(is_turn_completed) {
            return seen;
        }
    }
}

/// G13: what was stored comes first, then one mark, then what is new; nothing twice, nothing missing.
#[tokio::test(start_paused = true)]
async fn a_subscriber_sees_the_past_then_a_mark_then_the_future() {
    let place = Place::new(Scripted::open());
    let engine = place.engine().await;
    let client = engine.client();
    let id = session("s");
    client.start_session(start("s", "hello")).await.unwrap();
    Log::of(&client, &id).await.turns_over(1).await;
    let stored = client.snapshot(&id).await.unwrap().event_cursor.0;

    let mut stream = client.events(&id, EventCursor(0)).await.unwrap();
    let past = read_turn(&mut stream).await;
    assert_eq!(cursors(&past), (1..=stored).collect::<Vec<_>>());
    assert_eq!(past.len() as u64, stored);
    assert_eq!(next(&mut stream).await, Observed::CaughtUp);
    client.send_user_message(&id, "more", None).await.unwrap();
    let future = read_turn(&mut stream).await;
    let last = client.snapshot(&id).await.unwrap().event_cursor.0;
    assert_eq!(cursors(&future), (stored + 1..=last).collect::<Vec<_>>());
    assert!(!future.contains(&Observed::CaughtUp));
}

/// G13: a reader that comes back with its cursor goes on where it was, with another engine too.
#[tokio::test(start_paused = true)]
async fn a_cursor_outlives_the_engine() {
    let place = Place::new(Scripted::open());
    let first = place.engine().await;
    let client = first.client();
    let id = session("s");
    client.start_session(start("s", "hello")).await.unwrap();
    let mut stream = client.events(&id, EventCursor(0)).await.unwrap();
    for _ in 0..3 {
        next(&mut stream).await;
    }
    let cursor = stream.cursor();
    assert_eq!(cursor, EventCursor(3));
    drop((stream, client));
    first.shutdown().await;

    let second = place.engine().await;
    let client = second.client();
    client.send_user_message(&id, "more", None).await.unwrap();
    let mut log = Log::of(&client, &id).await;
    log.turns_over(2).await;
    let mut stream = client.events(&id, cursor).await.unwrap();
    let mut seen = read_turn(&mut stream).await;
    seen.extend(read_turn(&mut stream).await);
    let rest: Vec<_> = log.seen[3..].iter().cloned().map(Observed::Event).collect();
    assert_eq!(seen, rest);
}

/// G13: more events than one page are replayed without a gap and with one mark.
#[tokio::test(start_paused = true)]
async fn a_long_log_is_replayed_whole() {
    let place = Place::new(Scripted::open());
    let engine = place.engine().await;
    let client = engine.client();
    let id = session("s");
    client.start_session(start("s", "0")).await.unwrap();
    let mut log = Log::of(&client, &id).await;
    for turn in 1..=80 {
        log.turns_over(turn).await;
        let text = turn.to_string();
        client.send_user_message(&id, text, None).await.unwrap();
    }
    log.turns_over(81).await;
    let stored = client.snapshot(&id).await.unwrap().event_cursor.0;
    assert!(stored > 512, "{stored}");
    let mut stream = client.events(&id, EventCursor(0)).await.unwrap();
    for cursor in 1..=stored {
        let Observed::Event(event) = next(&mut stream).await else {
            panic!("no event {cursor}");
        };
        assert_eq!(event.cursor.0, cursor);
    }
    assert_eq!(next(&mut stream).await, Observed::CaughtUp);
}

/// G13: live text comes as it is written; a late reader gets the running attempt's from its start.
#[tokio::test(start_paused = true)]
async fn live_text_is_seen_from_its_start() {
    let place = Place::new(Scripted::closed());
    let engine = place.engine().await;
    let client = engine.client();
    let id = session("s");
    client
        .start_session(start("s", "live one two"))
        .await
        .unwrap();
    let mut early = client.events(&id, EventCursor(0)).await.unwrap();
    let mut heard = String::new();
    let mut attempt = None;
    while heard != "one two" {
        if let Observed::Live(piece) = next(&mut early).await {
            assert_eq!(piece.kind, LiveTextKind::Text);
            assert_eq!(piece.offset, heard.len() as u64);
            attempt = Some((piece.turn_id, piece.step_id, piece.attempt));
            heard.push_str(&piece.text);
        }
    }
    let mut late = client.events(&id, EventCursor(0)).await.unwrap();
    let live: LiveText = loop {
        if let Observed::Live(piece) = next(&mut late).await {
            break piece;
        }
    };
    assert_eq!((live.offset, live.text.as_str()), (0, "one two"));
    assert_eq!(attempt, Some((live.turn_id, live.step_id, live.attempt)));

    place.runner.open_gate();
    read_turn(&mut late).await;
    let mut after = client.events(&id, EventCursor(0)).await.unwrap();
    let seen = read_turn(&mut after).await;
    assert!(!seen.iter().any(|it| matches!(it, Observed::Live(_))));
}

/// G13: when an attempt is lost, its live text is announced to be void before the next one's.
#[tokio::test(start_paused = true)]
async fn the_live_text_of_a_lost_attempt_is_called_void() {
    let place = Place::new(Scripted::closed());
    let first = place.engine().await;
    let client = place.client();
    let id = session("s");
    client.start_session(start("s", "live one")).await.unwrap();
    place.runner.waiting(1).await;
    first.shutdown().await;
    let second = place.engine().await;
    place.runner.waiting(2).await;
    let mut stream = second.client().events(&id, EventCursor(0)).await.unwrap();
    let mut void = Vec::new();
    let live = loop {
        match next(&mut stream).await {
            Observed::Live(piece) => break piece,
            Observed::Event(event) => {
                if let EventKind::AttemptSuperseded { attempt, .. } = event.kind {
                    void.push(attempt);
                }
            }
            _ => {}
        }
    };
    assert_eq!((void, live.attempt), (vec![1], 2));
}

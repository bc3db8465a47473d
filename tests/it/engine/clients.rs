//! What a client is told: refusals, repeats and conflicts.

use abide::client::{AcceptedMessage, ClientError};
use abide::ids::{MessageId, RequestId};
use abide::record::{ArgumentsDigest, Decision};
use abide::session::{METADATA_BYTES_MAX, Refusal};
use abide::store::{ChunkCodec, SessionFilter};

use super::*;

fn request(text: &str) -> Option<RequestId> {
    Some(RequestId::new(text).unwrap())
}

fn refusal<T: std::fmt::Debug>(result: Result<T, ClientError>) -> Refusal {
    match result {
        Err(ClientError::Refused(refusal)) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}

/// A session that is not there is said not to be there, by every request.
#[tokio::test(start_paused = true)]
async fn an_unknown_session_is_named() {
    let place = Place::new(Scripted::open());
    let client = place.client();
    let id = session("nobody");
    let sent = client.send_user_message(&id, "x", None).await.unwrap_err();
    let resolved = client.resolve_interrupt(&id, approve("t1/c1")).await;
    let seen = client.snapshot(&id).await.unwrap_err();
    let heard = client.events(&id, EventCursor(0)).await.unwrap_err();
    let sized = client.session_size(&id).await.unwrap_err();
    for error in [sent, resolved.unwrap_err(), seen, heard, sized] {
        assert!(
            matches!(&error, ClientError::NoSession { session } if *session == id),
            "{error}"
        );
    }
}

/// A Flow that the engine does not run is refused before anything is stored.
#[tokio::test(start_paused = true)]
async fn an_unknown_flow_type_is_refused() {
    let place = Place::new(Scripted::open());
    let engine = place.engine().await;
    let flow_type = FlowType::new("Unknown").unwrap();
    let start = StartSession::new(session("s"), flow_type.clone());
    let error = engine.client().start_session(start).await.unwrap_err();
    assert!(
        matches!(&error, ClientError::UnknownFlowType { flow_type: it } if *it == flow_type),
        "{error}"
    );
    assert_eq!(place.store.load(&session("s")).await.unwrap(), None);
}

/// N03: the same start again is the same session; another one under its id is refused.
#[tokio::test(start_paused = true)]
async fn a_session_is_started_once() {
    let place = Place::new(Scripted::open());
    let client = place.client();
    assert!(client.start_session(start("s", "hello")).await.unwrap());
    let stored = place.store.load(&session("s")).await.unwrap();
    assert!(!client.start_session(start("s", "hello")).await.unwrap());
    for other in [
        start("s", "other"),
        start("s", "hello").with_metadata("order", "7"),
    ] {
        let error = client.start_session(other).await.unwrap_err();
        assert!(
            matches!(&error, ClientError::SessionExists { session: it } if *it == session("s")),
            "{error}"
        );
    }
    assert_eq!(place.store.load(&session("s")).await.unwrap(), stored);
}

/// A start that is refused leaves nothing behind.
#[tokio::test(start_paused = true)]
async fn a_refused_start_leaves_nothing() {
    let place = Place::new(Scripted::open());
    let client = place.client();
    let blank = client.start_session(start("s", " \u{1f}")).await;
    assert_eq!(refusal(blank), Refusal::BlankText);
    let expected = Refusal::FieldTooLong {
        field: "metadata",
        bytes_max: METADATA_BYTES_MAX,
    };
    // What counts is how it is stored: a control character is six bytes of JSON.
    for value in [
        "x".repeat(METADATA_BYTES_MAX),
        "\u{1}".repeat(METADATA_BYTES_MAX / 6),
    ] {
        let large = start("s", "hello").with_metadata("k", value);
        assert_eq!(refusal(client.start_session(large).await), expected);
    }
    assert_eq!(place.store.load(&session("s")).await.unwrap(), None);
}

/// P03, P04: a request id counts once: the same request is answered alike, another one is refused.
#[tokio::test(start_paused = true)]
async fn a_repeated_request_counts_once() {
    let place = Place::new(Scripted::open());
    let client = place.client();
    let id = session("s");
    client
        .start_session(start("s", "call write:c1"))
        .await
        .unwrap();
    let send =
        async |text: &str, name: &str| client.send_user_message(&id, text, request(name)).await;
    let first = send("two", "r1").await.unwrap();
    let expected = |duplicate| {
        let (message_id, queued) = (MessageId::new(2), true);
        (message_id, queued, duplicate)
    };
    let parts = |it: AcceptedMessage| (it.message_id, it.queued, it.duplicate);
    assert_eq!(parts(first), expected(false));
    let revision = client.snapshot(&id).await.unwrap().revision;
    assert_eq!(parts(send("two", "r1").await.unwrap()), expected(true));
    let error = send("other", "r1").await.unwrap_err();
    let name = request("r1").unwrap();
    assert!(
        matches!(&error, ClientError::RequestConflict { request_id } if *request_id == name),
        "{error}"
    );
    assert_eq!(client.snapshot(&id).await.unwrap().revision, revision);
    assert_eq!(
        send("two", "r2").await.unwrap().message_id,
        MessageId::new(3)
    );
    // A refused request used up nothing.
    assert_eq!(refusal(send(" ", "r3").await), Refusal::BlankText);
    assert!(!send("two", "r3").await.unwrap().duplicate);
}

/// An answer may be repeated, also with a request id, also when the turn is over; it changes nothing.
#[tokio::test(start_paused = true)]
async fn an_answer_is_taken_once_even_after_its_turn() {
    let place = Place::new(Scripted::open());
    let engine = place.engine().await;
    let client = engine.client();
    let id = session("s");
    let text = "call write:c1 free:c2";
    client.start_session(start("s", text)).await.unwrap();
    let mut log = Log::of(&client, &id).await;
    log.suspended().await;
    let answer = || approve("t1/c1").with_request_id(request("r1").unwrap());
    assert!(client.resolve_interrupt(&id, answer()).await.unwrap());
    assert!(!client.resolve_interrupt(&id, answer()).await.unwrap());
    log.turns_over(1).await;
    let before = client.snapshot(&id).await.unwrap();
    assert!(!client.resolve_interrupt(&id, answer()).await.unwrap());
    let again = client.resolve_interrupt(&id, approve("t1/c1")).await;
    assert!(!again.unwrap());
    let other = client.resolve_interrupt(&id, reject("t1/c1", "no")).await;
    assert_eq!(
        refusal(other),
        Refusal::AlreadyResolved {
            interrupt_id: InterruptId::from_client("t1/c1"),
            decision: Some(Decision::Approve),
            decided_by: None,
        }
    );
    for unknown in ["t1/c2", "t1/c3", "t2/c1"] {
        let interrupt_id = InterruptId::from_client(unknown);
        let error = client.resolve_interrupt(&id, approve(unknown)).await;
        assert_eq!(refusal(error), Refusal::UnknownInterrupt { interrupt_id });
    }
    // G4: also a repeat is about the input that the person saw.
    let seen = ArgumentsDigest::of(&id, "write", "another input");
    let stale = client.resolve_interrupt(&id, approve("t1/c1").for_digest(seen));
    let interrupt_id = InterruptId::from_client("t1/c1");
    let mismatch = Refusal::DigestMismatch { interrupt_id };
    assert_eq!(refusal(stale.await), mismatch);
    assert_eq!(client.snapshot(&id).await.unwrap(), before);
}

/// Of two different answers at the same time one wins, and the other is told.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_answers_one_wins() {
    for round in 0..20 {
        let place = Place::new(Scripted::open());
        let engine = place.engine().await;
        let client = engine.client();
        let name = format!("s{round}");
        let id = session(&name);
        client
            .start_session(start(&name, "call write:c1"))
            .await
            .unwrap();
        let mut log = Log::of(&client, &id).await;
        log.suspended().await;
        let (yes, no) = tokio::join!(
            client.resolve_interrupt(&id, approve("t1/c1")),
            client.resolve_interrupt(&id, reject("t1/c1", "no")),
        );
        log.turns_over(1).await;
        let ran = place.runner.tools().len();
        match (yes, no) {
            (Ok(true), Err(ClientError::Refused(Refusal::AlreadyResolved { .. }))) => {
                assert_eq!(ran, 1);
            }
            (Err(ClientError::Refused(Refusal::AlreadyResolved { .. })), Ok(true)) => {
                assert_eq!(ran, 0);
            }
            other => panic!("{other:?}"),
        }
    }
}

/// N23, N50: sessions are found by what they wait for.
#[tokio::test(start_paused = true)]
async fn waiting_sessions_are_listed() {
    let place = Place::new(Scripted::open());
    let engine = place.engine().await;
    let client = engine.client();
    for (name, text) in [
        ("a", "call write:c1"),
        ("b", "hello"),
        ("c", "call write:c1"),
    ] {
        client.start_session(start(name, text)).await.unwrap();
        let mut log = Log::of(&client, &session(name)).await;
        let rests =
            |it: &EventKind| matches!(it, EventKind::TurnSuspended | EventKind::TurnCompleted);
        log.until(1, rests).await;
    }
    let filter = SessionFilter {
        status: Some(SessionStatus::AwaitingApproval),
        ..SessionFilter::default()
    };
    let page = client.list_sessions(&filter, 10).await.unwrap();
    let found: Vec<_> = page.rows.into_iter().map(|it| it.session).collect();
    assert_eq!(found, [session("a"), session("c")]);
}

/// G11: what is said again takes little room, and is told as it was said.
#[tokio::test(start_paused = true)]
async fn a_session_takes_less_than_was_said_in_it() {
    let place = Place::new(Scripted::open());
    let engine = place.engine().await;
    let client = engine.client();
    let id = session("s");
    let text = "the same long question about order 7, once more ".repeat(20);
    client.start_session(start("s", &text)).await.unwrap();
    let mut log = Log::of(&client, &id).await;
    for turn in 1..=8 {
        log.turns_over(turn).await;
        let size = client.session_size(&id).await.unwrap();
        assert!(size.raw_bytes > turn as u64 * 2_000, "{turn}: {size:?}");
        client
            .send_user_message(&id, text.as_str(), None)
            .await
            .unwrap();
    }
    log.turns_over(9).await;
    engine.shutdown().await;
    let said = texts(&client, &id).await;
    assert_eq!(said.iter().filter(|it| **it == text).count(), 9);
    let head = place.store.load(&id).await.unwrap().unwrap().head.unwrap();
    let chunks = place
        .store
        .read_chunks(&id, head, usize::MAX)
        .await
        .unwrap();
    assert!(chunks.iter().all(|it| it.codec == ChunkCodec::Zstd1));
    let later: usize = chunks[1..].iter().map(|it| it.bytes.len()).sum();
    assert!(
        later < 200 * chunks.len(),
        "{later} bytes in {} chunks",
        chunks.len()
    );
    let size = client.session_size(&id).await.unwrap();
    let raw: u64 = chunks.iter().map(|it| it.raw_bytes).sum();
    assert_eq!(size.raw_bytes, raw);
}

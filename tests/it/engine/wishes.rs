//! What people want of a session beyond messages and decisions: cancel, steer, close, deadlines,
//! settings (spec/core.md 6, 7, 13, 23).

use std::time::Duration;

use abide::client::{CloseMode, Refusal, SteerMode};
use abide::event::EndReason;
use abide::failure::FailureClass;
use abide::ids::TurnId;
use abide::record::{CallStatus, EXPIRED_TEXT};
use abide::settings::SessionSettings;
use abide::spend::{UsageCap, UsageLimit};

use super::*;

/// What the session said so far, with who said it.
async fn said(client: &AgentSessionClient, id: &SessionId) -> Vec<(MessageRole, String)> {
    let messages = client.snapshot(id).await.unwrap().messages;
    messages.into_iter().map(|it| (it.role, it.text)).collect()
}

/// N19: a segment is told, stops by itself, and what people saw of its answer is kept; the session
/// goes on.
#[tokio::test(start_paused = true)]
async fn a_segment_that_is_told_stops_and_its_words_are_kept() {
    let place = Place::new(Scripted::open());
    let engine = place.engine().await;
    let (client, id) = (engine.client(), session("s"));
    client
        .start_session(start("s", "stop half an answer"))
        .await
        .unwrap();
    place.runner.waiting(1).await;
    let cancelled = place
        .client()
        .cancel_turn(&id, None, Some("enough".to_owned()), None)
        .await;
    assert_eq!(cancelled.unwrap().value, TurnId::new(1));
    let mut log = Log::of(&client, &id).await;
    log.turns_over(1).await;
    let said = said(&client, &id).await;
    assert_eq!(said[1], (MessageRole::Partial, "half an answer".to_owned()));
    assert!(
        said[2]
            .1
            .contains("[The user cancelled the previous turn: enough]")
    );
    assert_eq!(client.snapshot(&id).await.unwrap().usage.model_calls, 1);
    client.send_user_message(&id, "hello", None).await.unwrap();
    log.turns_over(2).await;
    assert_eq!(
        client.snapshot(&id).await.unwrap().status,
        SessionStatus::Idle
    );
}

/// A segment that does not listen is ended after the grace time; what it wrote is kept all the same.
#[tokio::test(start_paused = true)]
async fn a_segment_that_does_not_listen_is_ended_after_the_grace_time() {
    let place = Place::new(Scripted::closed());
    let engine = place.engine().await;
    let (client, id) = (engine.client(), session("s"));
    client
        .start_session(start("s", "live some words"))
        .await
        .unwrap();
    place.runner.waiting(1).await;
    let before = place.now();
    client.cancel_turn(&id, None, None, None).await.unwrap();
    assert!(
        client
            .snapshot(&id)
            .await
            .unwrap()
            .active_turn
            .unwrap()
            .is_cancelled
    );
    Log::of(&client, &id).await.turns_over(1).await;
    assert_eq!(place.now(), before.after(place.options.cancel_grace));
    let said = said(&client, &id).await;
    assert_eq!(said[1], (MessageRole::Partial, "some words".to_owned()));
}

/// G1: a handler gets the grace time; one that ends in it has its true record, one that does not is
/// unknown. A call that did not start is skipped.
#[tokio::test(start_paused = true)]
async fn handlers_get_the_grace_time_and_a_truthful_record() {
    for ends in [true, false] {
        let place = Place::new(Scripted::closed());
        let engine = place.engine().await;
        let (client, id) = (engine.client(), session("s"));
        client
            .start_session(start("s", "call slow:c1 free:c2"))
            .await
            .unwrap();
        place.runner.waiting(1).await;
        client.cancel_turn(&id, None, None, None).await.unwrap();
        if ends {
            place.runner.open_gate();
        }
        let mut log = Log::of(&client, &id).await;
        log.turns_over(1).await;
        let ended = log.seen.iter().filter_map(|it| match &it.kind {
            EventKind::ToolCallFinished {
                tool_call_id,
                status,
            } => Some((tool_call_id.as_str().to_owned(), *status)),
            _ => None,
        });
        let first = if ends {
            CallStatus::Succeeded
        } else {
            CallStatus::OutcomeUnknown
        };
        let expected = [
            ("c2".to_owned(), CallStatus::Skipped),
            ("c1".to_owned(), first),
        ];
        assert_eq!(ended.collect::<Vec<_>>(), expected);
        assert_eq!(place.runner.tools(), [("c1".to_owned(), 1)]);
    }
}

/// A cancelled turn whose worker dies before its segment stopped is over when another worker comes.
#[tokio::test(start_paused = true)]
async fn a_cancelled_turn_ends_although_its_worker_died() {
    let place = Place::new(Scripted::closed());
    let engine = place.engine().await;
    let (client, id) = (place.client(), session("s"));
    client.start_session(start("s", "wait")).await.unwrap();
    place.runner.waiting(1).await;
    drop(engine);
    client
        .cancel_turn(&id, Some(TurnId::new(1)), None, None)
        .await
        .unwrap();
    assert_eq!(
        client.snapshot(&id).await.unwrap().status,
        SessionStatus::Running
    );
    let _engine = place.engine().await;
    Log::of(&client, &id).await.turns_over(1).await;
    assert_eq!(place.runner.segments(), [1], "it is not run again");
}

/// N35: the deadline passes while a worker waits for it, and while none lives.
#[tokio::test(start_paused = true)]
async fn a_deadline_passes_with_and_without_a_worker() {
    for lives in [true, false] {
        let mut place = Place::new(Scripted::open());
        let deadline = Duration::from_secs(3600);
        place.flow_options = SessionOptions::default().with_interrupt_deadline(deadline);
        let (client, id) = (place.client(), session("s"));
        client
            .start_session(start("s", "call write:c1"))
            .await
            .unwrap();
        let mut engine = Some(place.engine().await);
        let mut log = Log::of(&client, &id).await;
        log.suspended().await;
        let asked = client
            .snapshot(&id)
            .await
            .unwrap()
            .pending_interrupts
            .remove(0);
        assert_eq!(asked.expires_at, Some(asked.requested_at.after(deadline)));
        place.until_not_leased(&id).await;
        if !lives {
            engine.take().unwrap().shutdown().await;
            tokio::time::advance(deadline).await;
            engine = Some(place.engine().await);
        }
        log.turns_over(1).await;
        let (_, answer) = said(&client, &id).await.pop().unwrap();
        assert_eq!(answer, format!("c1: {EXPIRED_TEXT}"));
        let late = client.resolve_interrupt(&id, approve("t1/c1")).await;
        let interrupt_id = asked.interrupt_id;
        assert!(matches!(
            late,
            Err(abide::client::ClientError::Refused(Refusal::Expired { interrupt_id: it })) if it == interrupt_id
        ));
        assert_eq!(place.runner.tools(), []);
        drop(engine);
    }
}

/// N35: what a segment asks for with the last it reports has the Flow's deadline too: while its engine
/// goes down, and when it ends before it is answered.
#[tokio::test(start_paused = true)]
async fn a_deadline_holds_for_what_a_segment_reports_last() {
    for message in ["report write:c1", "report_last write:c1"] {
        let mut place = Place::new(Scripted::closed());
        place.options.boundary_grace = Duration::from_secs(10);
        let deadline = Duration::from_secs(3600);
        place.flow_options = SessionOptions::default().with_interrupt_deadline(deadline);
        let engine = place.engine().await;
        let (client, id) = (place.client(), session("s"));
        client.start_session(start("s", message)).await.unwrap();
        if message.starts_with("report ") {
            place.runner.waiting(1).await;
            tokio::join!(biased; engine.shutdown(), async { place.runner.open_gate() });
        } else {
            let mut log = Log::of(&client, &id).await;
            let is_asked = |it: &EventKind| matches!(it, EventKind::InterruptRequested { .. });
            log.until(1, is_asked).await;
            engine.shutdown().await;
        }
        let mut open = client.snapshot(&id).await.unwrap().pending_interrupts;
        let asked = open.pop().unwrap();
        let expected = asked.requested_at.after(deadline);
        assert_eq!(asked.expires_at, Some(expected), "{message}");
    }
}

/// N02: a session ends when its time is over, also one that only waits for a message.
#[tokio::test(start_paused = true)]
async fn a_session_ends_when_its_time_is_over() {
    let place = Place::new(Scripted::closed());
    let engine = place.engine().await;
    let client = engine.client();
    let timeout = Duration::from_secs(60);
    let flow_type = FlowType::new("Scripted").unwrap();
    let idle = StartSession::new(session("idle"), flow_type).with_timeout(timeout);
    client.start_session(idle).await.unwrap();
    let busy = start("busy", "wait").with_timeout(timeout);
    client.start_session(busy).await.unwrap();
    for name in ["idle", "busy"] {
        let id = session(name);
        let mut log = Log::of(&client, &id).await;
        let reason = EndReason::TimedOut;
        log.until(1, |it| *it == EventKind::SessionEnded { reason })
            .await;
        let snapshot = client.snapshot(&id).await.unwrap();
        assert_eq!(snapshot.status, SessionStatus::Ended);
        assert_eq!(snapshot.end_reason, Some(reason));
        let refused = client.send_user_message(&id, "more", None).await;
        assert!(matches!(
            refused,
            Err(abide::client::ClientError::Refused(
                Refusal::SessionEnded { .. }
            ))
        ));
    }
}

/// P19: a session that drains answers what waits, and then it is over.
#[tokio::test(start_paused = true)]
async fn a_session_that_drains_answers_what_waits() {
    let place = Place::new(Scripted::closed());
    let engine = place.engine().await;
    let (client, id) = (engine.client(), session("s"));
    client.start_session(start("s", "wait")).await.unwrap();
    place.runner.waiting(1).await;
    client.send_user_message(&id, "two", None).await.unwrap();
    client
        .close_session(&id, CloseMode::Drain, None)
        .await
        .unwrap();
    place.runner.open_gate();
    let mut log = Log::of(&client, &id).await;
    log.until(1, |it| matches!(it, EventKind::SessionEnded { .. }))
        .await;
    let answers = said(&client, &id).await;
    assert_eq!(answers.last().unwrap().1, "re: two");
    place.until_not_leased(&id).await;
}

/// N18: a steered message goes into the running turn, behind its answer.
#[tokio::test(start_paused = true)]
async fn a_steered_message_is_answered_in_the_same_turn() {
    let place = Place::new(Scripted::closed());
    let engine = place.engine().await;
    let (client, id) = (engine.client(), session("s"));
    client.start_session(start("s", "wait")).await.unwrap();
    place.runner.waiting(1).await;
    let queued = client.send_user_message(&id, "later", None).await.unwrap();
    client
        .steer_user_message(&id, "now", SteerMode::AtBoundary, None)
        .await
        .unwrap();
    client
        .steer_queued_message(&id, queued.message_id, SteerMode::AtBoundary, None)
        .await
        .unwrap();
    let waiting = client.snapshot(&id).await.unwrap().steered_messages;
    let waiting: Vec<_> = waiting.into_iter().map(|it| it.text).collect();
    assert_eq!(waiting, ["now", "later"]);
    place.runner.open_gate();
    let mut log = Log::of(&client, &id).await;
    log.turns_over(1).await;
    let texts: Vec<_> = said(&client, &id)
        .await
        .into_iter()
        .map(|it| it.1)
        .collect();
    assert_eq!(
        texts,
        ["wait", "re: wait", "now", "re: now", "later", "re: later"]
    );
}

/// N45: a turn that runs keeps its settings; the next one has the new ones.
#[tokio::test(start_paused = true)]
async fn the_next_turn_has_the_new_settings() {
    let place = Place::new(Scripted::closed());
    let engine = place.engine().await;
    let (client, id) = (engine.client(), session("s"));
    client.start_session(start("s", "wait")).await.unwrap();
    place.runner.waiting(1).await;
    let settings = SessionSettings {
        model: Some("other".to_owned()),
        ..SessionSettings::default()
    };
    let changed = client.update_settings(&id, 0, settings.clone(), None).await;
    assert_eq!(changed.unwrap().value, 1);
    let stale = client.update_settings(&id, 0, settings, None).await;
    assert!(matches!(
        stale,
        Err(abide::client::ClientError::Refused(
            Refusal::SettingsChanged { revision: 1 }
        ))
    ));
    client
        .send_user_message(&id, "settings", None)
        .await
        .unwrap();
    place.runner.open_gate();
    Log::of(&client, &id).await.turns_over(2).await;
    assert_eq!(
        said(&client, &id).await.pop().unwrap().1,
        r#"Some("other")"#
    );
}

/// N42: a limit stops a turn before its next segment; the session stays, and its own limit holds on.
#[tokio::test(start_paused = true)]
async fn a_limit_stops_a_turn_before_its_next_segment() {
    let mut place = Place::new(Scripted::open());
    let cap = |calls| UsageCap {
        model_calls: Some(calls),
        ..UsageCap::default()
    };
    place.spend_limit = Some(UsageLimit {
        turn: cap(1),
        session: cap(3),
    });
    let engine = place.engine().await;
    let (client, id) = (engine.client(), session("s"));
    client
        .start_session(start("s", "spend free:c1"))
        .await
        .unwrap();
    let mut log = Log::of(&client, &id).await;
    log.turns_over(1).await;
    let failure = client.snapshot(&id).await.unwrap().last_failure.unwrap();
    assert_eq!(failure.class, FailureClass::SpendLimit);
    assert_eq!(failure.detail, "the model calls of the turn are used up");
    assert_eq!(
        place.runner.tools(),
        [("c1".to_owned(), 1)],
        "what ran stays"
    );
    for turn in 2..=4 {
        client.send_user_message(&id, "hello", None).await.unwrap();
        log.turns_over(turn).await;
    }
    let failure = client.snapshot(&id).await.unwrap().last_failure.unwrap();
    assert_eq!(failure.turn_id, TurnId::new(4));
    assert_eq!(failure.detail, "the model calls of the session are used up");
}

/// P03: a repeat gets the first answer also when that was "nothing changed": it never cancels the turn
/// that came after.
#[tokio::test(start_paused = true)]
async fn a_repeated_cancel_never_meets_the_next_turn() {
    let place = Place::new(Scripted::closed());
    let engine = place.engine().await;
    let (client, id) = (engine.client(), session("s"));
    client.start_session(start("s", "wait")).await.unwrap();
    place.runner.waiting(1).await;
    client
        .send_user_message(&id, "wait again", None)
        .await
        .unwrap();
    client.cancel_turn(&id, None, None, None).await.unwrap();
    let request = || Some(abide::ids::RequestId::new("r2").unwrap());
    let second = client
        .cancel_turn(&id, None, None, request())
        .await
        .unwrap();
    assert_eq!((second.value, second.duplicate), (TurnId::new(1), true));
    Log::of(&client, &id).await.turns_over(1).await;
    place.runner.waiting(2).await;
    let repeated = client
        .cancel_turn(&id, None, None, request())
        .await
        .unwrap();
    assert_eq!((repeated.value, repeated.duplicate), (TurnId::new(1), true));
    let active = client.snapshot(&id).await.unwrap().active_turn.unwrap();
    assert_eq!(
        (active.turn_id, active.is_cancelled),
        (TurnId::new(2), false)
    );
}

/// A limit that panics fails the attempt, and the session goes on.
#[tokio::test(start_paused = true)]
async fn a_limit_that_panics_fails_the_turn_alone() {
    #[derive(Debug)]
    struct Broken;
    #[async_trait::async_trait]
    impl abide::spend::SpendLimit for Broken {
        async fn check(&self, _: &abide::spend::Spend) -> abide::spend::SpendDecision {
            panic!("as the test asked")
        }
    }
    let place = Place::new(Scripted::open());
    let flow = AgentSessionFlow::new("Scripted", place.runner.clone(), SessionOptions::default());
    let registry = FlowRegistry::new().register(flow.unwrap().with_spend_limit(Broken));
    let (store, options) = (Arc::clone(&place.store), place.options.clone());
    let engine = LocalEngine::start_with(registry.unwrap(), store, options)
        .await
        .unwrap();
    let (client, id) = (engine.client(), session("s"));
    client.start_session(start("s", "hello")).await.unwrap();
    Log::of(&client, &id).await.turns_over(1).await;
    let failure = client.snapshot(&id).await.unwrap().last_failure.unwrap();
    assert_eq!(failure.detail, "the spend limit panicked");
    assert_eq!(place.runner.segments(), [0; 0]);
}

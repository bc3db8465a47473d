//! Turns: messages, calls in their own Steps, and what a panic or a stall costs.

use std::time::Duration;

use abide::failure::FailureClass;
use abide::ids::{LeaseEpoch, StepId, TurnId};
use abide::record::{CallStatus, OUTCOME_UNKNOWN_TEXT};
use abide::snapshot::FailureView;
use abide::store::SqliteStateStore;
use abide::testing::faults::{FailingStore, StoreCall};

use super::*;

/// A message is answered, and the session rests without an owner.
async fn answer_one_message(place: &Place) {
    let engine = place.engine().await;
    let client = engine.client();
    assert!(client.start_session(start("s", "hello")).await.unwrap());
    let id = session("s");
    Log::of(&client, &id).await.turns_over(1).await;
    let snapshot = client.snapshot(&id).await.unwrap();
    assert_eq!(snapshot.status, SessionStatus::Idle);
    let messages = snapshot.messages.iter();
    let said: Vec<_> = messages.map(|it| (it.role, it.text.as_str())).collect();
    assert_eq!(
        said,
        [
            (MessageRole::User, "hello"),
            (MessageRole::Assistant, "re: hello")
        ]
    );
    assert_eq!(snapshot.usage.model_calls, 1);
    engine.shutdown().await;
    let stored = place.store.load(&id).await.unwrap().unwrap();
    assert_eq!(stored.lease, None);
}

/// The contract holds for a runner that has no Claude.
#[tokio::test(start_paused = true)]
async fn a_message_is_answered() {
    answer_one_message(&Place::new(Scripted::open())).await;
}

/// A plain turn costs the client one write transaction and its worker two, both of them under the
/// lease: the grant takes it, and the last report gives it back (G9). Nothing is read for what the
/// worker has committed itself.
#[tokio::test(start_paused = true)]
async fn a_plain_turn_takes_three_write_transactions() {
    const CALLS: [StoreCall; 4] = [
        StoreCall::FreeCommit,
        StoreCall::FencedCommit,
        StoreCall::Lease,
        StoreCall::Read,
    ];
    let mut place = Place::new(Scripted::open());
    let store = Arc::new(FailingStore::new(Arc::clone(&place.store), |_, _| None));
    let behind = place.client();
    place.store = Arc::clone(&store) as _;
    let engine = place.engine().await;
    let id = session("s");
    let client = engine.client();
    client.start_session(start("warm", "hello")).await.unwrap();
    Log::of(&behind, &session("warm")).await.turns_over(1).await;
    let before = CALLS.map(|it| store.calls(it));
    client.start_session(start("s", "hello")).await.unwrap();
    Log::of(&behind, &id).await.turns_over(1).await;
    let stored = place.store.load(&id).await.unwrap().unwrap();
    assert_eq!((stored.lease, stored.epoch), (None, LeaseEpoch(1)));
    let made: Vec<_> = CALLS.iter().zip(before).collect();
    let made: Vec<_> = (made.into_iter())
        .map(|(call, before)| store.calls(*call) - before)
        .collect();
    // Read are the session when it is found due and when its segment is about to start, the chain
    // of its transcript and its one chunk, that chunk once more to pack the answer against it, and by
    // this test the lease.
    assert_eq!(made, [1, 2, 0, 6]);
}

/// The same over a file, in real time.
#[tokio::test]
async fn a_message_is_answered_over_sqlite() {
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStateStore::open(directory.path().join("s.db")).await;
    let mut place = Place::new(Scripted::open());
    place.store = Arc::new(store.unwrap());
    answer_one_message(&place).await;
}

/// G6: messages that come while a turn runs are answered one by one, in order; each segment reads
/// all that was said before.
#[tokio::test(start_paused = true)]
async fn queued_messages_are_answered_in_order() {
    let place = Place::new(Scripted::closed());
    let engine = place.engine().await;
    let client = engine.client();
    let id = session("s");
    client.start_session(start("s", "wait")).await.unwrap();
    place.runner.waiting(1).await;
    for text in ["two", "three", "four"] {
        let accepted = client.send_user_message(&id, text, None).await.unwrap();
        assert!(accepted.queued);
    }
    let queued = client.snapshot(&id).await.unwrap().queued_messages;
    let queued: Vec<_> = queued.into_iter().map(|it| it.text).collect();
    assert_eq!(queued, ["two", "three", "four"]);
    place.runner.open_gate();
    Log::of(&client, &id).await.turns_over(4).await;
    let said = [
        "wait",
        "re: wait",
        "two",
        "re: two",
        "three",
        "re: three",
        "four",
        "re: four",
    ];
    assert_eq!(texts(&client, &id).await, said);
    let heard = |count| Run::Segment {
        attempt: 1,
        texts: said[..count].iter().map(|it| (*it).to_owned()).collect(),
    };
    assert_eq!(
        place.runner.runs(),
        [heard(1), heard(3), heard(5), heard(7)]
    );
}

/// An approved call runs once in its own Step, and the model reads its result.
#[tokio::test(start_paused = true)]
async fn an_approved_call_runs_once_and_the_model_reads_its_result() {
    let place = Place::new(Scripted::open());
    let engine = place.engine().await;
    let client = engine.client();
    let id = session("s");
    client
        .start_session(start("s", "call write:c1"))
        .await
        .unwrap();
    let mut log = Log::of(&client, &id).await;
    log.suspended().await;
    let snapshot = client.snapshot(&id).await.unwrap();
    assert_eq!(snapshot.status, SessionStatus::AwaitingApproval);
    let [pending] = snapshot.pending_interrupts.as_slice() else {
        panic!("{:?}", snapshot.pending_interrupts);
    };
    assert_eq!(pending.arguments, r#"{"for":"c1"}"#);
    assert_eq!(place.runner.tools(), []);
    let answer = ResolveInterrupt::approve(pending.interrupt_id.clone())
        .for_digest(pending.digest.clone())
        .decided_by("ann");
    assert!(client.resolve_interrupt(&id, answer).await.unwrap());
    log.turns_over(1).await;
    assert_eq!(place.runner.tools(), [("c1".to_owned(), 1)]);
    let expected = ["call write:c1", "I call tools.", r#"c1: ran {"for":"c1"}"#];
    assert_eq!(texts(&client, &id).await, expected);
}

/// A rejected call never runs, and the model reads the person's words.
#[tokio::test(start_paused = true)]
async fn a_rejected_call_reaches_the_model_and_never_runs() {
    let place = Place::new(Scripted::open());
    let engine = place.engine().await;
    let client = engine.client();
    let id = session("s");
    client
        .start_session(start("s", "call write:c1"))
        .await
        .unwrap();
    let mut log = Log::of(&client, &id).await;
    log.suspended().await;
    client
        .resolve_interrupt(&id, reject("t1/c1", "too much"))
        .await
        .unwrap();
    log.turns_over(1).await;
    assert_eq!(place.runner.tools(), []);
    let last = texts(&client, &id).await.pop().unwrap();
    assert_eq!(last, "c1: The user rejected this call: too much");
}

/// G9: a session that waits for a person has no owner; anybody's approval wakes it, days later.
#[tokio::test(start_paused = true)]
async fn a_parked_session_is_owned_by_nobody() {
    let place = Place::new(Scripted::open());
    let engine = place.engine().await;
    let client = place.client();
    let id = session("s");
    client
        .start_session(start("s", "call write:c1"))
        .await
        .unwrap();
    let mut log = Log::of(&client, &id).await;
    log.suspended().await;
    place.until_not_leased(&id).await;
    let parked = place.store.load(&id).await.unwrap();
    tokio::time::advance(Duration::from_secs(3 * 24 * 3_600)).await;
    place.until_not_leased(&id).await;
    assert_eq!(place.store.load(&id).await.unwrap(), parked);
    client
        .resolve_interrupt(&id, approve("t1/c1"))
        .await
        .unwrap();
    log.turns_over(1).await;
    assert_eq!(place.runner.tools(), [("c1".to_owned(), 1)]);
    drop(engine);
}

/// G2: an idempotent call whose starts fail is started three times under one key.
#[tokio::test(start_paused = true)]
async fn an_idempotent_call_is_repeated_under_one_key() {
    let place = Place::new(Scripted::open());
    let engine = place.engine().await;
    let client = engine.client();
    let id = session("s");
    client
        .start_session(start("s", "call flaky:c1"))
        .await
        .unwrap();
    Log::of(&client, &id).await.turns_over(1).await;
    let runs = place.runner.runs();
    let start_of = |attempt| Run::Tool {
        call: "c1".to_owned(),
        attempt,
        key: "s/t1/c1".to_owned(),
    };
    assert_eq!(runs[1..4], [start_of(1), start_of(2), start_of(3)]);
    let last = texts(&client, &id).await.pop().unwrap();
    assert_eq!(last, r#"c1: ran {"for":"c1"}"#);
    assert!(place.now() >= START.after(Duration::from_secs(6)));
}

/// A panicking runner fails its attempt, three times its turn, and never its session.
#[tokio::test(start_paused = true)]
async fn a_panic_of_the_runner_costs_the_turn_and_not_the_session() {
    let place = Place::new(Scripted::open());
    let engine = place.engine().await;
    let client = engine.client();
    let id = session("s");
    client.start_session(start("s", "panic")).await.unwrap();
    client.send_user_message(&id, "hello", None).await.unwrap();
    Log::of(&client, &id).await.turns_over(2).await;
    assert_eq!(place.runner.segments(), [1, 2, 3, 1]);
    let snapshot = client.snapshot(&id).await.unwrap();
    let failure: FailureView = snapshot.last_failure.unwrap();
    assert_eq!(
        (failure.turn_id, failure.class),
        (TurnId::new(1), FailureClass::Runner)
    );
    assert_eq!(
        texts(&client, &id).await,
        [
            "panic",
            "[The previous turn failed (runner) and its answer is lost.]",
            "hello",
            "re: hello"
        ]
    );
}

/// G5: a start that nobody permitted is refused as that, and is no end of the attempt.
#[tokio::test(start_paused = true)]
async fn a_start_that_nobody_permitted_is_refused_and_its_segment_goes_on() {
    let place = Place::new(Scripted::open());
    let engine = place.engine().await;
    let client = engine.client();
    let id = session("s");
    client.start_session(start("s", "start c1")).await.unwrap();
    Log::of(&client, &id).await.turns_over(1).await;
    assert_eq!(texts(&client, &id).await, ["start c1", "Ok(NotPermitted)"]);
    assert_eq!(place.runner.segments(), [1]);
}

/// G1: a panicking handler may have done anything: its call is not repeated.
#[tokio::test(start_paused = true)]
async fn a_panic_of_a_single_attempt_tool_leaves_its_outcome_unknown() {
    let place = Place::new(Scripted::open());
    let engine = place.engine().await;
    let client = engine.client();
    let id = session("s");
    client
        .start_session(start("s", "call panic:c1"))
        .await
        .unwrap();
    Log::of(&client, &id).await.turns_over(1).await;
    assert_eq!(place.runner.tools(), [("c1".to_owned(), 1)]);
    let last = texts(&client, &id).await.pop().unwrap();
    assert_eq!(last, format!("c1: {OUTCOME_UNKNOWN_TEXT}"));
}

/// L15: a segment has a time limit, and each try has all of it.
#[tokio::test(start_paused = true)]
async fn a_segment_that_stalls_meets_its_limit() {
    let mut place = Place::new(Scripted::closed());
    let limit = Duration::from_secs(60);
    place.flow_options = SessionOptions::default().with_run_model_limit(limit);
    let engine = place.engine().await;
    let client = engine.client();
    let id = session("s");
    client.start_session(start("s", "wait")).await.unwrap();
    let mut log = Log::of(&client, &id).await;
    log.turns_over(1).await;
    let failed: Vec<_> = log
        .seen
        .iter()
        .filter_map(|it| match &it.kind {
            EventKind::AttemptFailed {
                step_id,
                attempt,
                class,
                retry_at,
            } => Some((*step_id, *attempt, *class, it.at, retry_at.is_some())),
            _ => None,
        })
        .collect();
    let step = StepId::new(1);
    let at = |seconds| START.after(Duration::from_secs(seconds));
    let failure = FailureClass::CliFailed;
    // tokio's timers and the driver's waits are exact to a millisecond; whole seconds are compared.
    let failed: Vec<_> = failed
        .into_iter()
        .map(|(step, attempt, class, at, again)| {
            (step, attempt, class, Timestamp(at.0 / 1_000 * 1_000), again)
        })
        .collect();
    assert_eq!(
        failed,
        [
            (step, 1, failure, at(60), true),
            (step, 2, failure, at(121), true),
            (step, 3, failure, at(186), false),
        ]
    );
}

/// The turn's calls are shown while the turn lasts.
#[tokio::test(start_paused = true)]
async fn a_snapshot_shows_where_each_call_stands() {
    let place = Place::new(Scripted::open());
    let engine = place.engine().await;
    let client = engine.client();
    let id = session("s");
    let text = "call free:c1 write:c2";
    client.start_session(start("s", text)).await.unwrap();
    let mut log = Log::of(&client, &id).await;
    log.until(1, |it| matches!(it, EventKind::ToolCallFinished { .. }))
        .await;
    let snapshot = client.snapshot(&id).await.unwrap();
    let calls: Vec<_> = snapshot
        .tool_calls
        .iter()
        .map(|it| (it.tool_call_id.as_str(), it.status, it.starts))
        .collect();
    assert_eq!(
        calls,
        [
            ("c1", CallStatus::Succeeded, 1),
            ("c2", CallStatus::Requested, 0)
        ]
    );
    assert_eq!(snapshot.status, SessionStatus::AwaitingApproval);
}

//! Engines that die, stop or share a store: nothing is lost, and nothing runs twice.

use std::time::Duration;

use abide::ids::{LeaseEpoch, Revision};
use abide::record::OUTCOME_UNKNOWN_TEXT;
use abide::store::{Commit, LeaseAnswer, SessionSummary, WorkerId, WorkerRecord};

use super::*;

/// What the conversation says in the end, and which calls ran, after an engine died at the gate and
/// another one took over.
async fn die_at_the_gate(text: &str) -> (Vec<String>, Vec<(String, u32)>, Vec<u32>) {
    let place = Place::new(Scripted::closed());
    let first = place.engine().await;
    let client = place.client();
    let id = session("s");
    client.start_session(start("s", text)).await.unwrap();
    client.send_user_message(&id, "next", None).await.unwrap();
    place.runner.waiting(1).await;
    drop(first);
    let _second = place.engine().await;
    place.runner.open_gate();
    Log::of(&client, &id).await.turns_over(2).await;
    let said = texts(&client, &id).await;
    (said, place.runner.tools(), place.runner.segments())
}

/// G7: an engine dies while a segment runs: the next one runs it again, and nothing else.
#[tokio::test(start_paused = true)]
async fn a_segment_that_died_with_its_engine_runs_again() {
    let (said, tools, segments) = die_at_the_gate("wait").await;
    assert_eq!(said, ["wait", "re: wait", "next", "re: next"]);
    assert_eq!(tools, []);
    assert_eq!(segments, [1, 2, 1]);
}

/// G1: an engine dies while a single-attempt call runs: it is not run again.
#[tokio::test(start_paused = true)]
async fn a_single_attempt_call_that_died_with_its_engine_is_unknown() {
    let (said, tools, segments) = die_at_the_gate("call slow:c1").await;
    let unknown = format!("c1: {OUTCOME_UNKNOWN_TEXT}");
    let expected = [
        "call slow:c1",
        "I call tools.",
        &unknown,
        "next",
        "re: next",
    ];
    assert_eq!(said, expected);
    assert_eq!(tools, [("c1".to_owned(), 1)]);
    assert_eq!(segments, [1, 1, 1]);
}

/// G2: an engine dies while an idempotent call runs: it is started again.
#[tokio::test(start_paused = true)]
async fn an_idempotent_call_that_died_with_its_engine_runs_again() {
    let (said, tools, segments) = die_at_the_gate("call slow_idempotent:c1").await;
    let expected = [
        "call slow_idempotent:c1",
        "I call tools.",
        r#"c1: ran {"for":"c1"}"#,
        "next",
        "re: next",
    ];
    assert_eq!(said, expected);
    assert_eq!(tools, [("c1".to_owned(), 1), ("c1".to_owned(), 2)]);
    assert_eq!(segments, [1, 1, 1]);
}

/// G1: an engine dies while a segment runs a call: the next segment is told, and does not run it.
#[tokio::test(start_paused = true)]
async fn a_call_inside_a_segment_that_died_with_its_engine_is_unknown() {
    let (said, tools, segments) = die_at_the_gate("call inside:c1").await;
    let unknown = format!("c1: {OUTCOME_UNKNOWN_TEXT}");
    let expected = [
        "call inside:c1",
        "I call tools.",
        &unknown,
        "next",
        "re: next",
    ];
    assert_eq!(said, expected);
    assert_eq!(tools, [("c1".to_owned(), 1)]);
    assert_eq!(segments, [1, 1, 2, 1]);
}

/// G3: an end that a segment reported as the engine was stopped is kept.
#[tokio::test(start_paused = true)]
async fn a_shutdown_keeps_what_a_segment_had_reported() {
    let place = Place::new(Scripted::closed());
    let first = place.engine().await;
    let client = place.client();
    let id = session("s");
    client
        .start_session(start("s", "call inside:c1"))
        .await
        .unwrap();
    place.runner.waiting(1).await;
    // The runner wakes first and reports; the stop is there when its report is read.
    place.runner.open_gate();
    first.shutdown().await;
    let _second = place.engine().await;
    Log::of(&client, &id).await.turns_over(1).await;
    let last = texts(&client, &id).await.pop().unwrap();
    assert_eq!(last, "c1: ran inside");
    assert_eq!(place.runner.tools(), [("c1".to_owned(), 1)]);
    assert_eq!(place.runner.segments(), [1, 1, 2]);
}

/// An engine dies while a person thinks; the answer is given while no engine runs.
#[tokio::test(start_paused = true)]
async fn an_approval_that_no_engine_saw_is_carried_out_by_the_next() {
    let place = Place::new(Scripted::open());
    let first = place.engine().await;
    let client = place.client();
    let id = session("s");
    client
        .start_session(start("s", "call write:c1"))
        .await
        .unwrap();
    let mut log = Log::of(&client, &id).await;
    log.suspended().await;
    drop(first);
    client
        .resolve_interrupt(&id, approve("t1/c1"))
        .await
        .unwrap();
    assert_eq!(place.runner.tools(), []);
    let _second = place.engine().await;
    log.turns_over(1).await;
    assert_eq!(place.runner.tools(), [("c1".to_owned(), 1)]);
}

/// A session that was started while no engine ran is found by the first one.
#[tokio::test(start_paused = true)]
async fn a_session_that_no_engine_saw_is_found() {
    let place = Place::new(Scripted::open());
    let client = place.client();
    client.start_session(start("s", "hello")).await.unwrap();
    let _engine = place.engine().await;
    Log::of(&client, &session("s")).await.turns_over(1).await;
}

/// G8: a holder that beats is not robbed, however the wall clocks jump.
#[tokio::test(start_paused = true)]
async fn a_living_holder_keeps_its_session() {
    let mut place = Place::new(Scripted::closed());
    let clock = Arc::new(TokioClock::starting_at(START));
    place.options.clock = Arc::clone(&clock) as _;
    let _first = place.engine().await;
    let client = place.client();
    let id = session("s");
    client
        .start_session(start("s", "call slow:c1"))
        .await
        .unwrap();
    place.runner.waiting(1).await;
    let _second = place.engine().await;
    for wall in [START.after(Duration::from_secs(1_000_000)), Timestamp(5)] {
        clock.set(wall);
        // sleeps because only (virtual) time passes here
        tokio::time::sleep(Duration::from_secs(600)).await;
        let lease = place.store.load(&id).await.unwrap().unwrap().lease;
        assert_eq!(lease.unwrap().epoch, LeaseEpoch(1));
    }
    place.runner.open_gate();
    Log::of(&client, &id).await.turns_over(1).await;
    assert_eq!(place.runner.tools(), [("c1".to_owned(), 1)]);
}

/// G8: an engine whose session was taken from it commits nothing more; what it ran is lost.
#[tokio::test(start_paused = true)]
async fn an_engine_that_was_fenced_off_commits_nothing() {
    let place = Place::new(Scripted::closed());
    let _engine = place.engine().await;
    let client = place.client();
    let id = session("s");
    client.start_session(start("s", "wait")).await.unwrap();
    place.runner.waiting(1).await;
    let lease = place.store.load(&id).await.unwrap().unwrap().lease.unwrap();
    let taker = WorkerRecord {
        id: WorkerId::new("taker"),
        ..lease.holder
    };
    place.store.register_worker(&taker).await.unwrap();
    let taken = place
        .store
        .acquire_lease(&id, &taker.id, Some(lease.epoch))
        .await
        .unwrap();
    assert_eq!(taken, LeaseAnswer::Granted(LeaseEpoch(2)));
    let revision = client.snapshot(&id).await.unwrap().revision;
    place.runner.open_gate();
    // sleeps because only (virtual) time passes here
    tokio::time::sleep(place.options.scan_interval * 2).await;
    assert_eq!(client.snapshot(&id).await.unwrap().revision, revision);
    place.store.remove_worker(&taker.id).await.unwrap();
    Log::of(&client, &id).await.turns_over(1).await;
    assert_eq!(place.runner.segments(), [1, 2]);
}

/// G8: two engines over one store share the work, and every Step runs once.
#[tokio::test(flavor = "multi_thread")]
async fn two_engines_over_one_store_run_each_step_once() {
    const SESSIONS: usize = 20;
    let place = Place::new(Scripted::open());
    let (_first, _second) = (place.engine().await, place.engine().await);
    let client = place.client();
    for number in 0..SESSIONS {
        let text = format!("call free:a{number} write:b{number}");
        let start = start(&format!("s{number}"), &text);
        client.start_session(start).await.unwrap();
    }
    for number in 0..SESSIONS {
        let id = session(&format!("s{number}"));
        client
            .send_user_message(&id, "and then", None)
            .await
            .unwrap();
        let mut log = Log::of(&client, &id).await;
        log.until(1, |it| matches!(it, EventKind::InterruptRequested { .. }))
            .await;
        let answer = approve(&format!("t1/b{number}"));
        client.resolve_interrupt(&id, answer).await.unwrap();
        log.turns_over(2).await;
    }
    let mut ran = place.runner.tools();
    ran.sort();
    let mut expected: Vec<_> = (0..SESSIONS)
        .flat_map(|it| [(format!("a{it}"), 1), (format!("b{it}"), 1)])
        .collect();
    expected.sort();
    assert_eq!(ran, expected);
    assert_eq!(place.runner.segments(), [1; 3 * SESSIONS]);
}

/// G7: a shutdown gives a running segment back at no cost, and releases the session at once.
#[tokio::test(start_paused = true)]
async fn a_shutdown_gives_a_running_segment_back() {
    let place = Place::new(Scripted::closed());
    let first = place.engine().await;
    let client = place.client();
    let id = session("s");
    client.start_session(start("s", "wait")).await.unwrap();
    place.runner.waiting(1).await;
    first.shutdown().await;
    let stored = place.store.load(&id).await.unwrap().unwrap();
    assert_eq!(stored.lease, None);
    assert_eq!(place.now(), START, "nothing was waited for");
    place.runner.open_gate();
    let _second = place.engine().await;
    let mut log = Log::of(&client, &id).await;
    log.turns_over(1).await;
    assert_eq!(place.now(), START, "nothing was waited for");
    let is_cost = |it: &EventKind| matches!(it, EventKind::AttemptFailed { .. });
    assert_eq!(log.count(is_cost), 0);
    assert_eq!(place.runner.segments(), [1, 2]);
}

/// A shutdown lets a handler that runs come to its end, and records it.
#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_for_a_running_handler() {
    let place = Place::new(Scripted::closed());
    let first = place.engine().await;
    let client = place.client();
    let id = session("s");
    client
        .start_session(start("s", "call slow:c1"))
        .await
        .unwrap();
    place.runner.waiting(1).await;
    let stop = tokio::spawn(first.shutdown());
    // sleeps because only (virtual) time passes here
    tokio::time::sleep(place.options.shutdown_grace / 2).await;
    assert!(!stop.is_finished());
    place.runner.open_gate();
    stop.await.unwrap();
    assert_eq!(place.runner.segments(), [1], "no new segment was begun");
    let _second = place.engine().await;
    Log::of(&client, &id).await.turns_over(1).await;
    let last = texts(&client, &id).await.pop().unwrap();
    assert_eq!(last, r#"c1: ran {"for":"c1"}"#);
    assert_eq!(place.runner.tools(), [("c1".to_owned(), 1)]);
}

/// G1: a handler that outlasts the grace time is left to recovery, as after a crash.
#[tokio::test(start_paused = true)]
async fn a_handler_that_outlasts_the_grace_time_is_unknown() {
    let place = Place::new(Scripted::closed());
    let first = place.engine().await;
    let client = place.client();
    let id = session("s");
    client
        .start_session(start("s", "call slow:c1"))
        .await
        .unwrap();
    place.runner.waiting(1).await;
    first.shutdown().await;
    assert_eq!(place.now(), START.after(place.options.shutdown_grace));
    place.runner.open_gate();
    let _second = place.engine().await;
    Log::of(&client, &id).await.turns_over(1).await;
    let last = texts(&client, &id).await.pop().unwrap();
    assert_eq!(last, format!("c1: {OUTCOME_UNKNOWN_TEXT}"));
    assert_eq!(place.runner.tools(), [("c1".to_owned(), 1)]);
}

/// G12: a worker passes over a session of a newer version, and leaves it to newer workers.
#[tokio::test(start_paused = true)]
async fn a_session_of_a_newer_version_is_not_taken() {
    let place = Place::new(Scripted::open());
    let id = session("newer");
    let summary = SessionSummary {
        flow_type: Some(FlowType::new("Scripted").unwrap()),
        status: SessionStatus::Running,
        due_at: Some(Timestamp(0)),
        ..SessionSummary::default()
    };
    let newer = Commit {
        state: br#"{"format":2}"#.to_vec(),
        summary,
        ..Commit::default()
    };
    place
        .store
        .commit(&id, Revision(0), None, newer)
        .await
        .unwrap();
    let engine = place.engine().await;
    // sleeps because only (virtual) time passes here
    tokio::time::sleep(place.options.scan_interval * 3).await;
    let stored = place.store.load(&id).await.unwrap().unwrap();
    assert_eq!(stored.lease, None);
    let client = engine.client();
    client.start_session(start("today", "hello")).await.unwrap();
    Log::of(&client, &session("today"))
        .await
        .turns_over(1)
        .await;
}

/// G12: a session that became newer while a worker owned it is given up by that worker.
#[tokio::test(start_paused = true)]
async fn a_session_that_becomes_newer_is_given_up() {
    let place = Place::new(Scripted::closed());
    let _engine = place.engine().await;
    let client = place.client();
    let id = session("s");
    client.start_session(start("s", "wait")).await.unwrap();
    place.runner.waiting(1).await;
    let stored = place.store.load(&id).await.unwrap().unwrap();
    let newer = Commit {
        state: br#"{"format":2}"#.to_vec(),
        head: stored.head,
        ..Commit::default()
    };
    place
        .store
        .commit(&id, stored.revision, None, newer)
        .await
        .unwrap();
    // sleeps because only (virtual) time passes here
    tokio::time::sleep(place.options.scan_interval).await;
    let stored = place.store.load(&id).await.unwrap().unwrap();
    assert_eq!(stored.lease, None);
}

/// A worker takes no session of a Flow that it does not run.
#[tokio::test(start_paused = true)]
async fn a_session_of_another_flow_is_left_to_its_workers() {
    let place = Place::new(Scripted::open());
    let other = place.engine_of("Other").await;
    let client = place.client();
    let id = session("s");
    client.start_session(start("s", "hello")).await.unwrap();
    // sleeps because only (virtual) time passes here
    tokio::time::sleep(place.options.scan_interval * 3).await;
    let stored = place.store.load(&id).await.unwrap().unwrap();
    assert_eq!((stored.revision, stored.lease), (Revision(1), None));
    let _engine = place.engine().await;
    Log::of(&client, &id).await.turns_over(1).await;
    drop(other);
}

/// G8: who ran a session that was deleted has nothing to do with the next one under its id.
#[tokio::test(start_paused = true)]
async fn a_session_that_was_deleted_and_started_again_is_another_one() {
    let place = Place::new(Scripted::closed());
    let _engine = place.engine().await;
    let client = place.client();
    let id = session("s");
    client.start_session(start("s", "wait")).await.unwrap();
    place.runner.waiting(1).await;
    assert!(place.store.delete(&id).await.unwrap());
    client.start_session(start("s", "hello")).await.unwrap();
    Log::of(&client, &id).await.turns_over(1).await;
    assert_eq!(texts(&client, &id).await, ["hello", "re: hello"]);
    let stored = place.store.load(&id).await.unwrap().unwrap();
    assert_eq!((stored.lease, stored.epoch), (None, LeaseEpoch(2)));
    place.runner.open_gate();
    assert_eq!(place.runner.segments(), [1, 1]);
}

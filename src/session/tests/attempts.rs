//! Attempts of a segment: who gets one, what a failure and a loss cost (G7, G8).

use super::*;
use crate::session::{LOST_ATTEMPTS_MAX, RUN_MODEL_FAILURES_MAX};

const SECOND: Duration = Duration::from_secs(1);

/// G8: the same nonce gets the same grant again; nobody else gets one under the same epoch.
#[test]
fn an_attempt_is_granted_once() {
    let mut world = World::started();
    let step = world.due_step();
    let granted = world.begin(step, "a", LeaseEpoch(3));
    let running = RunningAttempt {
        attempt: 1,
        nonce: Nonce::new("a").unwrap(),
        epoch: LeaseEpoch(3),
    };
    assert_eq!(granted, Reply::Granted(running));
    let before = (world.state.clone(), world.commits);
    assert_eq!(world.begin(step, "a", LeaseEpoch(3)), granted);
    assert_eq!(world.begin(step, "b", LeaseEpoch(3)), Reply::Superseded);
    for nonce in ["a", "b"] {
        assert_eq!(world.begin(step, nonce, LeaseEpoch(2)), Reply::Superseded);
    }
    let other = StepId::new(99);
    assert_eq!(world.begin(other, "a", LeaseEpoch(3)), Reply::Superseded);
    assert_eq!((world.state.clone(), world.commits), before);
}

/// G8: a larger epoch proves the loss of what ran before, whatever the nonce.
#[test]
fn a_new_owner_gets_the_next_attempt_at_once() {
    for nonce in ["a", "b"] {
        let mut world = World::started();
        let step = world.due_step();
        world.begin(step, "a", LeaseEpoch(1));
        let cursor = world.events.len();
        let Reply::Granted(running) = world.begin(step, nonce, LeaseEpoch(2)) else {
            panic!("not granted");
        };
        assert_eq!(running.attempt, 2);
        assert_eq!(
            world.kinds_since(cursor),
            [
                EventKind::AttemptSuperseded {
                    step_id: step,
                    attempt: 1
                },
                EventKind::AttemptStarted {
                    step_id: step,
                    attempt: 2
                },
            ]
        );
    }
}

/// G8: a report whose Step, attempt, nonce or epoch is another one changes nothing.
#[test]
fn a_stale_report_changes_nothing() {
    let mut world = World::started();
    let running = world.begin_due();
    let (step_id, good) = (running.step_id, running.running.clone());
    let stale = [
        AttemptKey {
            step_id: StepId::new(step_id.number() + 1),
            running: good.clone(),
        },
        AttemptKey {
            step_id,
            running: RunningAttempt {
                attempt: 2,
                ..good.clone()
            },
        },
        AttemptKey {
            step_id,
            running: RunningAttempt {
                nonce: Nonce::new("other").unwrap(),
                ..good.clone()
            },
        },
        AttemptKey {
            step_id,
            running: RunningAttempt {
                epoch: LeaseEpoch(0),
                ..good
            },
        },
    ];
    let before = (world.state.clone(), world.commits);
    let started = SegmentEvent::InlineCallStarted {
        tool_call_id: call_id("i"),
        tool_name: "tool".to_owned(),
    };
    for key in stale {
        assert_eq!(world.end(&key, Ok(completed("x"))), Reply::Superseded);
        let failed = Err(failure(FailureClass::Options));
        assert_eq!(world.end(&key, failed), Reply::Superseded);
        assert_eq!(world.report(&key, started.clone()), Reply::Superseded);
        assert_eq!(world.tool_ends(&key, succeeded()), Reply::Superseded);
        let released = world.apply(Input::ReleaseAttempt { attempt: key });
        assert_eq!(released.unwrap(), Reply::Superseded);
    }
    assert_eq!((world.state.clone(), world.commits), before);

    assert_eq!(world.end(&running, Ok(completed("x"))), Reply::Done);
    let before = (world.state.clone(), world.commits);
    assert_eq!(world.end(&running, Ok(completed("x"))), Reply::Superseded);
    assert_eq!((world.state.clone(), world.commits), before);
}

/// A segment is tried three times, one second and five seconds apart; then the turn fails.
#[test]
fn a_failing_segment_is_tried_three_times() {
    let mut world = World::started();
    let mut waits = Vec::new();
    for attempt in 1..=RUN_MODEL_FAILURES_MAX {
        let running = world.begin_due();
        assert_eq!(running.running.attempt, attempt);
        world.end(&running, Err(failure(FailureClass::CliFailed)));
        if let Some(due) = world.state.due_at() {
            let early = world.begin(running.step_id, "early", world.epoch);
            assert_eq!(early, Reply::NotYet(due));
            waits.push(due.0 - world.now.0);
        }
    }
    assert_eq!(waits, [1_000, 5_000]);
    assert_eq!(world.state.turn, None);
    let last = world.state.last_failure.as_ref().unwrap();
    assert_eq!(last.failure, failure(FailureClass::CliFailed));
}

/// The other side's wish for a pause is kept when it is longer than ours.
#[test]
fn a_longer_pause_that_the_api_asks_for_is_kept() {
    for (asked, waited) in [(30_000, 30_000), (200, 1_000)] {
        let mut world = World::started();
        let running = world.begin_due();
        let mut failure = failure(FailureClass::RateLimited);
        failure.retry_after_ms = Some(asked);
        world.end(&running, Err(failure));
        assert_eq!(world.state.due_at().unwrap().0 - world.now.0, waited);
    }
}

/// Which failures are tried again: a closed table.
#[test]
fn a_failure_that_would_repeat_itself_ends_the_turn_at_once() {
    for (class, is_retried) in [
        (FailureClass::Options, false),
        (FailureClass::CliUnavailable, false),
        (FailureClass::CliTooOld, false),
        (FailureClass::CliVersion, false),
        (FailureClass::CliFailed, true),
        (FailureClass::CliContract, true),
        (FailureClass::Authentication, false),
        (FailureClass::Overloaded, true),
        (FailureClass::RateLimited, true),
        (FailureClass::PromptTooLong, false),
        (FailureClass::BudgetExceeded, false),
        (FailureClass::MaxTurns, false),
        (FailureClass::ApiError, true),
        (FailureClass::Store, true),
        (FailureClass::AttemptsLost, false),
        (FailureClass::TooManySegments, false),
        (FailureClass::TooManyCalls, false),
        (FailureClass::Runner, true),
    ] {
        let mut world = World::started();
        let running = world.begin_due();
        world.end(&running, Err(failure(class)));
        assert_eq!(world.state.turn.is_some(), is_retried, "{class}");
    }
}

/// Each segment has its own three tries.
#[test]
fn failures_are_counted_per_segment() {
    let mut world = World::started();
    for segment in 1..=3 {
        for _ in 1..RUN_MODEL_FAILURES_MAX {
            let running = world.begin_due();
            world.end(&running, Err(failure(FailureClass::ApiError)));
        }
        let id = format!("c{segment}");
        let read = asked_call(&id, ToolEffect::Read, CallPlace::Step);
        world.ask_for(vec![read]);
        world.reject(&id);
    }
    world.answer("done");
    assert_eq!(world.state.last_failure, None);
}

/// G7: the first loss costs no time, the next ones ever more, up to a minute.
#[test]
fn the_pause_after_losses_doubles() {
    let mut world = World::started();
    world.begin_due();
    let mut waits = Vec::new();
    for _ in 0..10 {
        let before = world.now;
        match world.crash_and_begin() {
            Reply::Granted(_) => {}
            Reply::NotYet(at) => {
                world.now = at;
                world.begin_due();
            }
            other => panic!("{other:?}"),
        }
        waits.push((world.now.0 - before.0) / 1_000);
    }
    assert_eq!(waits, [0, 1, 2, 4, 8, 16, 32, 60, 60, 60]);
}

/// G7: an attempt that was put off by a clock that is ahead is found by every clock once it runs, so
/// that its loss is not.
#[test]
fn an_attempt_that_runs_is_due_at_once_for_whoever_takes_over() {
    let mut world = World::started();
    world.begin_due();
    world.crash_and_begin();
    let Reply::NotYet(at) = world.crash_and_begin() else {
        panic!("the second loss in a row is waited for");
    };
    assert_eq!(world.state.due_at(), Some(at));
    world.now = at;
    world.begin_due();
    assert_eq!(world.state.due_at(), Some(Timestamp(0)));
}

/// G7: a turn that only kills its workers ends after a hundred losses, with a note.
#[test]
fn a_poisonous_turn_ends_after_a_hundred_losses() {
    let mut world = World::started();
    world.begin_due();
    for loss in 1..=LOST_ATTEMPTS_MAX {
        assert_eq!(world.turn().lost_attempts, loss - 1);
        match world.crash_and_begin() {
            Reply::Granted(_) => {}
            Reply::NotYet(_) => {
                world.begin_due();
            }
            Reply::Superseded => assert_eq!(loss, LOST_ATTEMPTS_MAX),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(world.state.turn, None);
    let last = world.state.last_failure.as_ref().unwrap();
    assert_eq!(last.failure.class, FailureClass::AttemptsLost);
    let note = "[The previous turn failed (attempts_lost) and its answer is lost.]";
    assert_eq!(
        world.texts(),
        [
            (MessageRole::User, "hello".to_owned()),
            (MessageRole::Note, note.to_owned()),
        ]
    );
}

/// G7: progress forgives all losses.
#[test]
fn progress_makes_losses_count_anew() {
    let mut world = World::started();
    let read = free_call("c1", ToolEffect::Read, CallPlace::Step);
    world.begin_due();
    world.crash_and_begin();
    world.crash_and_begin();
    assert_eq!(world.turn().lost_attempts, 2);
    world.ask_for(vec![read]);
    assert_eq!(world.turn().lost_attempts, 0);
}

/// G7: an attempt that is given back costs neither a try nor time, and its live text is void (G13).
#[test]
fn an_attempt_that_is_given_back_costs_nothing() {
    let mut world = World::started();
    for attempt in 1..=20 {
        let running = world.begin_due();
        let cursor = world.events.len();
        let step_id = running.step_id;
        let released = world.apply(Input::ReleaseAttempt { attempt: running });
        assert_eq!(released.unwrap(), Reply::Done);
        assert_eq!(
            world.kinds_since(cursor),
            [EventKind::AttemptSuperseded { step_id, attempt }]
        );
    }
    assert_eq!(world.now, START);
    assert_eq!(world.turn().lost_attempts, 0);
    for _ in 1..RUN_MODEL_FAILURES_MAX {
        let running = world.begin_due();
        world.end(&running, Err(failure(FailureClass::CliFailed)));
    }
    world.answer("at last");
}

/// A clock that goes back makes nobody act early and nothing break.
#[test]
fn a_clock_that_goes_back_only_makes_wait() {
    let mut world = World::started();
    let running = world.begin_due();
    world.end(&running, Err(failure(FailureClass::CliFailed)));
    let due = world.state.due_at().unwrap();
    assert_eq!(due, START.after(SECOND));
    world.now = Timestamp(0);
    let early = world.begin(running.step_id, "x", world.epoch);
    assert_eq!(early, Reply::NotYet(due));
    world.answer("done");
}

/// design.md 5: who accepts a message or an approval may have a clock that is ahead of the owner's.
#[test]
fn what_is_due_at_once_waits_for_no_clock() {
    let behind = Timestamp(0);
    let mut world = World::started();
    world.now = behind;
    let step_id = world.due_step();
    let Reply::Granted(running) = world.begin(step_id, "n", world.epoch) else {
        panic!("the segment waits");
    };
    let attempt = AttemptKey { step_id, running };
    let write = call("c1", ToolEffect::NonIdempotentWrite, CallPlace::Step);
    world.end(&attempt, Ok(requested(vec![write])));
    world.now = START;
    world.approve("c1");
    world.now = behind;
    let step_id = world.due_step();
    let granted = world.begin(step_id, "m", world.epoch);
    assert!(matches!(granted, Reply::Granted(_)), "the call waits");
}

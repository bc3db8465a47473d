//! Calls that run inside a segment, under a start mark (G1).

use super::*;
use crate::record::{NOT_RUN_PREFIX, SkipReason};

/// A turn whose second segment may start these calls.
fn permitted(calls: &[(&str, ToolEffect)]) -> (World, AttemptKey) {
    let calls = calls
        .iter()
        .map(|(id, effect)| free_call(id, *effect, CallPlace::Segment));
    let mut world = World::with_calls(calls.collect());
    let attempt = world.begin_due();
    (world, attempt)
}

pub(super) fn starting(id: &str) -> SegmentEvent {
    SegmentEvent::CallStarting {
        tool_call_id: call_id(id),
    }
}

pub(super) fn finished(id: &str) -> SegmentEvent {
    SegmentEvent::CallFinished {
        tool_call_id: call_id(id),
        outcome: ToolOutcome::Succeeded {
            output: "done".to_owned(),
        },
    }
}

/// G1: a call inside a segment is granted once, ends once, and is answered from its record after that.
#[test]
fn a_call_inside_a_segment_starts_once_and_ends_once() {
    let (mut world, attempt) = permitted(&[("c1", ToolEffect::NonIdempotentWrite)]);
    assert_eq!(world.report(&attempt, finished("c1")), Reply::Superseded);
    assert_eq!(world.report(&attempt, starting("c1")), Reply::CallGranted);
    assert_eq!(world.status("c1"), CallStatus::Started);
    let again = world.report(&attempt, starting("c1"));
    assert_eq!(again, Reply::CallNotPermitted);
    assert_eq!(world.report(&attempt, finished("c1")), Reply::Done);
    assert_eq!(world.report(&attempt, finished("c1")), Reply::Superseded);
    let again = world.report(&attempt, starting("c1"));
    assert_eq!(again, Reply::CallIsFinal(call_id("c1")));
    world.end(&attempt, Ok(completed("done")));
    let record = world.record("c1");
    assert_eq!((record.status, record.starts), (CallStatus::Succeeded, 1));
}

/// G5: a call that nobody decided about, or that runs elsewhere, is not granted to a segment.
#[test]
fn a_segment_starts_only_what_was_permitted() {
    let (mut world, attempt) = permitted(&[("c1", ToolEffect::NonIdempotentWrite)]);
    let start = world.report(&attempt, starting("other"));
    assert_eq!(start, Reply::CallNotPermitted);
    assert_eq!(world.report(&attempt, finished("other")), Reply::Superseded);
    assert_eq!(world.status("c1"), CallStatus::Decided);
}

/// An approved call inside a segment waits for the next segment, and needs no Step of its own.
#[test]
fn an_approval_lets_the_next_segment_start_the_call() {
    let mut world = World::with_calls(vec![call(
        "c1",
        ToolEffect::NonIdempotentWrite,
        CallPlace::Segment,
    )]);
    world.approve("c1");
    assert_eq!(world.status("c1"), CallStatus::Decided);
    let attempt = world.begin_due();
    assert_eq!(world.report(&attempt, starting("c1")), Reply::CallGranted);
}

/// How a segment goes away while a call that it started has no end.
#[derive(Debug, Clone, Copy)]
enum Leaving {
    Answers,
    Fails,
    FailsForGood,
    IsLost,
    IsReleased,
}

/// G1, G2, I15: a start without an end is unknown, or may be repeated; nothing says it did not run.
#[test]
fn a_start_without_an_end_is_settled_when_its_segment_goes_away() {
    use CallStatus::{Failed, OutcomeUnknown, Started};
    let check = |effect, expected: [CallStatus; 5]| {
        let leavings = [
            Leaving::Answers,
            Leaving::Fails,
            Leaving::FailsForGood,
            Leaving::IsLost,
            Leaving::IsReleased,
        ];
        for (leaving, expected) in leavings.into_iter().zip(expected) {
            let (mut world, attempt) = permitted(&[("c1", effect)]);
            world.report(&attempt, starting("c1"));
            leave(&mut world, &attempt, leaving);
            assert_eq!(world.status("c1"), expected, "{effect:?} {leaving:?}");
        }
    };
    check(ToolEffect::NonIdempotentWrite, [OutcomeUnknown; 5]);
    check(ToolEffect::Unclassified, [OutcomeUnknown; 5]);
    check(
        ToolEffect::IdempotentWrite,
        [OutcomeUnknown, Started, OutcomeUnknown, Started, Started],
    );
    check(
        ToolEffect::Read,
        [OutcomeUnknown, Started, Failed, Started, Started],
    );
}

fn leave(world: &mut World, attempt: &AttemptKey, leaving: Leaving) {
    match leaving {
        Leaving::Answers => assert_eq!(world.end(attempt, Ok(completed("done"))), Reply::Done),
        Leaving::Fails => {
            let failed = Err(failure(FailureClass::CliFailed));
            assert_eq!(world.end(attempt, failed), Reply::Done);
        }
        Leaving::FailsForGood => {
            let failed = Err(failure(FailureClass::Options));
            assert_eq!(world.end(attempt, failed), Reply::Done);
        }
        Leaving::IsLost => assert!(matches!(world.crash_and_begin(), Reply::Granted(_))),
        Leaving::IsReleased => {
            let attempt = attempt.clone();
            let released = world.apply(Input::ReleaseAttempt { attempt });
            assert_eq!(released.unwrap(), Reply::Done);
        }
    }
}

/// A permitted call that its segment never started did not run, and the record says so.
#[test]
fn a_call_that_its_segment_never_started_did_not_run() {
    let (mut world, attempt) = permitted(&[("c1", ToolEffect::NonIdempotentWrite)]);
    world.end(&attempt, Ok(completed("done")));
    assert_eq!(
        world.outcome_of("c1"),
        ToolOutcome::Failed {
            error: format!("{NOT_RUN_PREFIX}: the segment ended without starting it")
        }
    );
    let (mut world, attempt) = permitted(&[("c1", ToolEffect::NonIdempotentWrite)]);
    leave(&mut world, &attempt, Leaving::FailsForGood);
    assert_eq!(
        world.outcome_of("c1"),
        ToolOutcome::Skipped {
            reason: SkipReason::TurnEnded
        }
    );
}

/// G1: a call that an earlier segment attempt started is not said to be safe to repeat.
#[test]
fn a_repeated_start_that_never_came_leaves_the_first_one_unknown() {
    for (effect, expected) in [
        (ToolEffect::IdempotentWrite, CallStatus::OutcomeUnknown),
        (ToolEffect::Read, CallStatus::Failed),
    ] {
        for leaving in [Leaving::Answers, Leaving::FailsForGood] {
            let (mut world, attempt) = permitted(&[("c1", effect)]);
            world.report(&attempt, starting("c1"));
            leave(&mut world, &attempt, Leaving::IsReleased);
            let attempt = world.begin_due();
            leave(&mut world, &attempt, leaving);
            assert_eq!(world.status("c1"), expected, "{leaving:?}");
        }
    }
}

/// G2: an idempotent call is started by at most three attempts of a segment, lost ones counted.
#[test]
fn an_idempotent_call_inside_a_segment_starts_three_times_at_most() {
    for (effect, end) in [
        (ToolEffect::IdempotentWrite, CallStatus::OutcomeUnknown),
        (ToolEffect::Read, CallStatus::Failed),
    ] {
        let (mut world, mut attempt) = permitted(&[("c1", effect)]);
        for start in 1..=3 {
            assert_eq!(world.report(&attempt, starting("c1")), Reply::CallGranted);
            assert_eq!(world.record("c1").starts, start);
            leave(&mut world, &attempt, Leaving::IsReleased);
            attempt = world.begin_due();
        }
        assert_eq!(world.status("c1"), end);
        let fourth = world.report(&attempt, starting("c1"));
        assert_eq!(fourth, Reply::CallIsFinal(call_id("c1")));
    }
}

/// G3: a final record stays until a segment that was given it has ended well.
#[test]
fn results_stay_undelivered_until_a_segment_ended_with_them() {
    let mut world = World::with_calls(vec![free_call("c1", ToolEffect::Read, CallPlace::Step)]);
    let attempt = world.begin_due();
    world.tool_ends(&attempt, succeeded());
    let attempt = world.begin_due();
    world.end(&attempt, Err(failure(FailureClass::CliFailed)));
    assert!(!world.turn().call(&call_id("c1")).unwrap().delivered);
    world.ask_for(vec![free_call("c2", ToolEffect::Read, CallPlace::Step)]);
    assert!(world.turn().call(&call_id("c1")).unwrap().delivered);
    assert!(!world.turn().call(&call_id("c2")).unwrap().delivered);
}

/// Inline calls are told as they come; a gated call is told by its record alone.
#[test]
fn inline_calls_are_told_and_gated_ones_not_twice() {
    let (mut world, attempt) = permitted(&[("c1", ToolEffect::NonIdempotentWrite)]);
    let cursor = world.events.len();
    let inline = |id: &str| {
        let tool_call_id = call_id(id);
        [
            SegmentEvent::InlineCallStarted {
                tool_call_id: tool_call_id.clone(),
                tool_name: "look_up".to_owned(),
            },
            SegmentEvent::InlineCallFinished {
                tool_call_id,
                status: CallStatus::Succeeded,
            },
        ]
    };
    for event in inline("i1") {
        assert_eq!(world.report(&attempt, event), Reply::Done);
    }
    for event in inline("c1") {
        assert_eq!(world.report(&attempt, event), Reply::Done);
    }
    assert_eq!(
        world.kinds_since(cursor),
        [
            EventKind::ToolCallStarted {
                tool_call_id: call_id("i1"),
                tool_name: "look_up".to_owned()
            },
            EventKind::ToolCallFinished {
                tool_call_id: call_id("i1"),
                status: CallStatus::Succeeded
            },
        ]
    );
}

/// G7: an end of a call is progress: the losses before it are forgiven.
#[test]
fn an_end_of_a_call_makes_losses_count_anew() {
    let (mut world, _) = permitted(&[("c1", ToolEffect::NonIdempotentWrite)]);
    world.crash_and_begin();
    world.crash_and_begin();
    assert_eq!(world.turn().lost_attempts, 2);
    let attempt = world.begin_due();
    world.report(&attempt, starting("c1"));
    world.report(&attempt, finished("c1"));
    assert_eq!(world.turn().lost_attempts, 0);
}

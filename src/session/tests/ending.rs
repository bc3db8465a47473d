//! Turns that end without an answer because somebody cancelled them.

use super::*;
use crate::record::SkipReason;

const WRITE: ToolEffect = ToolEffect::NonIdempotentWrite;

fn cancelled(partial: &str) -> RunModelOutcome {
    RunModelOutcome::Cancelled {
        partial: Some(partial.to_owned()),
        usage: usage(),
    }
}

/// N19: nothing runs, so the turn is over at once; the model learns it by the note, and the next
/// message is answered.
#[test]
fn a_turn_that_waits_for_people_is_cancelled_at_once() {
    let mut world = World::with_calls(vec![
        call("c1", WRITE, CallPlace::Step),
        call("c2", WRITE, CallPlace::Segment),
    ]);
    let from = world.events.len();
    let reply = world.cancel(Some("wrong order")).unwrap();
    let turn_id = TurnId::new(1);
    let expected = Reply::TurnCancelled {
        turn_id,
        duplicate: false,
    };
    assert_eq!(reply, expected);
    assert_eq!(world.statuses(&["c1", "c2"]), [CallStatus::Skipped; 2]);
    let reason = SkipReason::TurnEnded;
    assert_eq!(world.outcome_of("c1"), ToolOutcome::Skipped { reason });
    let kinds = world.kinds_since(from);
    assert_eq!(kinds.first(), Some(&EventKind::TurnCancelRequested));
    assert_eq!(kinds.last(), Some(&EventKind::TurnCancelled));
    let (role, note) = world.texts().pop().unwrap();
    assert_eq!(role, MessageRole::Note);
    assert!(
        note.starts_with("[The user cancelled the previous turn: wrong order]"),
        "{note}"
    );
    assert!(
        note.contains("did not run, so it is safe to call again"),
        "{note}"
    );
    assert_eq!(world.state.status(), SessionStatus::Idle);
    world.send("next");
    world.answer("here");
    assert_eq!(world.texts().pop().unwrap().1, "here");
}

/// The guard: what is cancelled is the turn that the client saw (spec/core.md 6).
#[test]
fn only_the_active_turn_is_cancelled_and_only_once() {
    let mut world = World::new();
    let not_active = |active| Refusal::TurnNotActive { active };
    assert_eq!(refused(world.cancel(None)), not_active(None));
    world.send("hello");
    let guarded = |number| Input::CancelTurn {
        turn_id: Some(TurnId::new(number)),
        reason: None,
    };
    let active = not_active(Some(TurnId::new(1)));
    assert_eq!(refused(world.apply(guarded(2))), active);
    world.begin_due();
    world.apply(guarded(1)).unwrap();
    let again = world.apply(guarded(1)).unwrap();
    let turn_id = TurnId::new(1);
    let duplicate = true;
    assert_eq!(again, Reply::TurnCancelled { turn_id, duplicate });
    let long = "x".repeat(crate::session::RESOLVER_BYTES_MAX + 1);
    assert!(matches!(
        refused(world.cancel(Some(&long))),
        Refusal::FieldTooLong { .. }
    ));
}

/// The segment stops first; what people saw of the answer is kept and marked, and what the segment
/// used is counted.
#[test]
fn a_running_segment_stops_before_the_turn_is_over() {
    let mut world = World::started();
    let attempt = world.begin_due();
    world.cancel(None).unwrap();
    assert_eq!(world.state.status(), SessionStatus::Running);
    let checkpoint = SegmentEvent::Checkpoint(crate::turn::SegmentProgress::default());
    assert_eq!(world.report(&attempt, checkpoint), Reply::CallNotPermitted);
    assert_eq!(
        world.end(&attempt, Ok(cancelled("half an ans"))),
        Reply::Done
    );
    let texts = world.texts();
    let partial = (MessageRole::Partial, "half an ans".to_owned());
    assert_eq!(texts[1], partial);
    assert!(
        texts[2]
            .1
            .contains("saw this much of its answer: half an ans")
    );
    assert_eq!(world.state.usage, usage());
    assert!(world.state.turn.is_none());
}

/// Cancel against an answer: the commit that came first counts, and the answer is shown as cut off.
#[test]
fn an_answer_that_comes_after_the_cancel_does_not_complete_the_turn() {
    let mut world = World::started();
    let attempt = world.begin_due();
    world.cancel(None).unwrap();
    world.answer_of(&attempt, "all of it");
    let (role, text) = world.texts().swap_remove(1);
    assert_eq!((role, text.as_str()), (MessageRole::Partial, "all of it"));
    assert!(world.kinds_since(0).contains(&EventKind::TurnCancelled));
}

/// A worker that dies while its segment stops, a segment that fails, a worker that goes down: the
/// turn ends all the same, and is not tried again.
#[test]
fn whatever_becomes_of_the_segment_the_turn_is_over() {
    type Fate = fn(&mut World, &AttemptKey);
    let fates: [Fate; 3] = [
        |world, _| {
            assert_eq!(world.crash_and_begin(), Reply::Superseded);
        },
        |world, attempt| {
            world.end(attempt, Err(failure(FailureClass::CliFailed)));
        },
        |world, attempt| {
            let attempt = attempt.clone();
            world.apply(Input::ReleaseAttempt { attempt }).unwrap();
        },
    ];
    for fate in fates {
        let mut world = World::started();
        let attempt = world.begin_due();
        world.cancel(None).unwrap();
        fate(&mut world, &attempt);
        assert!(world.state.turn.is_none());
        assert!(world.kinds_since(0).contains(&EventKind::TurnCancelled));
    }
}

/// G1: a write that runs is waited for, and its end is the truth; one whose end is not known is said
/// to be unknown, and never started again.
#[test]
fn writes_that_run_get_a_truthful_record() {
    let ends = [
        (WRITE, succeeded(), CallStatus::Succeeded),
        (
            ToolEffect::IdempotentWrite,
            ToolCallEnd::Unknown {
                detail: "cut".to_owned(),
            },
            CallStatus::OutcomeUnknown,
        ),
    ];
    for (effect, end, status) in ends {
        let mut world = World::with_calls(vec![
            free_call("c1", effect, CallPlace::Step),
            free_call("c2", WRITE, CallPlace::Step),
        ]);
        let attempt = world.begin_due();
        world.cancel(None).unwrap();
        assert_eq!(world.status("c2"), CallStatus::Skipped);
        assert!(world.state.turn.is_some());
        world.tool_ends(&attempt, end);
        assert_eq!(world.status("c1"), status);
        assert!(world.state.turn.is_none());
    }
}

/// A call that the CLI runs under its start mark reports its end before the segment stops; without
/// one it is unknown.
#[test]
fn a_call_inside_the_segment_reports_its_end_or_is_unknown() {
    for reports in [true, false] {
        let mut world = World::with_calls(vec![free_call("c1", WRITE, CallPlace::Segment)]);
        let attempt = world.begin_due();
        let tool_call_id = call_id("c1");
        let starting = SegmentEvent::CallStarting { tool_call_id };
        assert_eq!(world.report(&attempt, starting.clone()), Reply::CallGranted);
        world.cancel(None).unwrap();
        assert_eq!(world.report(&attempt, starting), Reply::CallNotPermitted);
        if reports {
            let output = "written".to_owned();
            let finished = SegmentEvent::CallFinished {
                tool_call_id: call_id("c1"),
                outcome: ToolOutcome::Succeeded { output },
            };
            assert_eq!(world.report(&attempt, finished), Reply::Done);
        }
        world.end(&attempt, Ok(cancelled("")));
        let expected = if reports {
            CallStatus::Succeeded
        } else {
            CallStatus::OutcomeUnknown
        };
        assert_eq!(world.status("c1"), expected);
        assert!(world.state.turn.is_none());
    }
}

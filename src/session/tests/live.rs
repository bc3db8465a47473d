//! What a running segment tells before its end: checkpoints, calls that wait with it, parking
//! (design.md 4).

use super::segment_calls::{finished, starting};
use super::*;
use crate::record::SkipReason;
use crate::session::LOST_ATTEMPTS_MAX;
use crate::turn::SegmentProgress;

const WRITE: ToolEffect = ToolEffect::NonIdempotentWrite;

/// A running segment whose reply asked for these calls, in a checkpoint.
fn live(calls: Vec<RequestedCall>) -> (World, AttemptKey) {
    let mut world = World::started();
    let attempt = world.begin_due();
    let reply = world.report(&attempt, checkpoint(vec![said("let me see")], calls));
    assert_eq!(reply, Reply::Done);
    (world, attempt)
}

fn progress(messages: Vec<NewMessage>, calls: Vec<RequestedCall>) -> SegmentProgress {
    SegmentProgress {
        messages,
        calls,
        ..SegmentProgress::default()
    }
}

fn checkpoint(messages: Vec<NewMessage>, calls: Vec<RequestedCall>) -> SegmentEvent {
    SegmentEvent::Checkpoint(progress(messages, calls))
}

fn park() -> SegmentEvent {
    SegmentEvent::ParkRequested(progress(Vec::new(), Vec::new()))
}

fn standing(id: &str) -> SegmentEvent {
    SegmentEvent::CallStanding {
        tool_call_id: call_id(id),
    }
}

/// The result of a call in the transcript.
fn answered(id: &str) -> NewMessage {
    NewMessage {
        role: MessageRole::Tool,
        tool_call_id: Some(call_id(id)),
        ..said("done")
    }
}

/// Begins the Step of this call.
fn begin_call(world: &mut World, id: &str) -> AttemptKey {
    let step_id = world.record(id).step_id.unwrap();
    let reply = world.begin(step_id, &format!("nonce-{id}"), world.epoch);
    let Reply::Granted(running) = reply else {
        panic!("{id}: {reply:?}");
    };
    AttemptKey { step_id, running }
}

/// design.md 4: the calls of a reply are decided and run while the segment goes on; each word about
/// one is its record's.
#[test]
fn calls_of_a_checkpoint_run_while_the_segment_goes_on() {
    let (mut world, attempt) = live(vec![
        call("c1", WRITE, CallPlace::Step),
        free_call("c2", ToolEffect::IdempotentWrite, CallPlace::Step),
        call("c3", ToolEffect::Unclassified, CallPlace::Segment),
    ]);
    assert_eq!(world.open_interrupts().len(), 2);
    assert_eq!(world.state.status(), SessionStatus::AwaitingApproval);
    // Nothing overtakes the first.
    assert_eq!(due_steps(&world.state).len(), 1);
    world.approve("c3");
    assert_eq!(world.report(&attempt, standing("c3")), Reply::CallIsOpen);
    assert_eq!(world.report(&attempt, starting("c3")), Reply::CallIsOpen);
    world.approve("c1");
    assert_eq!(world.state.status(), SessionStatus::Running);
    for id in ["c1", "c2"] {
        assert_eq!(world.report(&attempt, standing(id)), Reply::CallIsOpen);
        let step = begin_call(&mut world, id);
        world.tool_ends(&step, succeeded());
        let is_final = Reply::CallIsFinal(call_id(id));
        assert_eq!(world.report(&attempt, standing(id)), is_final);
    }
    let permitted = world.report(&attempt, standing("c3"));
    assert_eq!(permitted, Reply::CallIsPermitted { changed_in: None });
    assert_eq!(world.report(&attempt, starting("c3")), Reply::CallGranted);
    assert_eq!(world.report(&attempt, finished("c3")), Reply::Done);
    let results = ["c1", "c2", "c3"].map(answered).into();
    world.report(&attempt, checkpoint(results, Vec::new()));
    assert!(world.turn().calls.iter().all(|it| it.delivered));
    assert_eq!(world.end(&attempt, Ok(completed("bye"))), Reply::Done);
    assert_eq!(world.texts().len(), 6);
}

/// A question changes nothing, so nothing is committed: a commit would wake the segment, which would
/// ask again, for as long as a call takes.
#[test]
fn a_question_about_a_call_is_no_commit() {
    let (mut world, attempt) = live(vec![
        free_call("c1", WRITE, CallPlace::Step),
        free_call("c2", WRITE, CallPlace::Segment),
    ]);
    let step = begin_call(&mut world, "c1");
    let commits = world.commits;
    for (event, reply) in [
        (standing("c1"), Reply::CallIsOpen),
        (standing("c2"), Reply::CallIsOpen),
        (starting("c2"), Reply::CallIsOpen),
        (starting("c1"), Reply::CallNotPermitted),
        (standing("no-such-call"), Reply::Superseded),
    ] {
        assert_eq!(world.report(&attempt, event), reply);
    }
    assert_eq!(world.commits, commits);
    world.tool_ends(&step, succeeded());
    let is_final = Reply::CallIsFinal(call_id("c1"));
    assert_eq!(world.report(&attempt, standing("c1")), is_final);
    assert_eq!(world.commits, commits + 1);
}

/// design.md 4: a write of the reply that failed inside the segment stops the writes after it.
#[test]
fn a_failed_call_inside_a_segment_skips_the_writes_after_it() {
    let (mut world, attempt) = live(vec![
        free_call("c1", WRITE, CallPlace::Segment),
        free_call("c2", WRITE, CallPlace::Segment),
        free_call("c3", ToolEffect::Read, CallPlace::Segment),
    ]);
    world.report(&attempt, starting("c1"));
    let failed = SegmentEvent::CallFinished {
        tool_call_id: call_id("c1"),
        outcome: ToolOutcome::Failed {
            error: "no".to_owned(),
        },
    };
    assert_eq!(world.report(&attempt, failed), Reply::Done);
    let second = world.report(&attempt, starting("c2"));
    assert_eq!(second, Reply::CallIsFinal(call_id("c2")));
    assert_eq!(world.status("c2"), CallStatus::Skipped);
    assert_eq!(world.report(&attempt, starting("c3")), Reply::CallGranted);
}

/// design.md 4: parking is a commit. A decision before it keeps the segment; after it the attempt is
/// over, its words are kept, and what is decided runs without a CLI.
#[test]
fn a_turn_parks_only_while_nobody_has_decided() {
    let (mut world, attempt) = live(vec![call("c1", WRITE, CallPlace::Step)]);
    world.approve("c1");
    assert_eq!(world.report(&attempt, park()), Reply::Done);
    let (mut world, attempt) = live(vec![call("c1", WRITE, CallPlace::Step)]);
    let last = progress(vec![said("more")], Vec::new());
    let reply = world.report(&attempt, SegmentEvent::ParkRequested(last));
    assert_eq!(reply, Reply::Parked);
    assert!(due_steps(&world.state).is_empty());
    assert!(world.state.due_at().is_none());
    assert_eq!(world.events.last().unwrap().kind, EventKind::TurnSuspended);
    for late in [standing("c1"), park(), checkpoint(Vec::new(), Vec::new())] {
        assert_eq!(world.report(&attempt, late), Reply::Superseded);
    }
    assert_eq!(
        world.end(&attempt, Ok(completed("late"))),
        Reply::Superseded
    );
    world.approve("c1");
    let step = begin_call(&mut world, "c1");
    world.tool_ends(&step, succeeded());
    world.answer("bye");
    let texts: Vec<String> = world.texts().into_iter().map(|it| it.1).collect();
    assert_eq!(texts, ["hello", "let me see", "more", "bye"]);
}

/// G7, design.md 4: a lost segment with open calls is parked, and no CLI starts before all are final; one
/// without goes on from its checkpoint.
#[test]
fn a_lost_segment_with_open_calls_is_parked() {
    let (mut world, _) = live(vec![call("c1", WRITE, CallPlace::Step)]);
    assert_eq!(world.crash_and_begin(), Reply::Superseded);
    assert!(due_steps(&world.state).is_empty());
    assert_eq!(world.state.status(), SessionStatus::AwaitingApproval);
    world.reject("c1");
    world.answer("bye");
    assert_eq!(world.status("c1"), CallStatus::Rejected);

    let (mut world, attempt) = live(Vec::new());
    let reply = world.crash_and_begin();
    assert!(matches!(reply, Reply::Granted(it) if it.attempt == attempt.running.attempt + 1));
    assert_eq!(world.texts().len(), 2);
}

/// A CLI that starts anew runs one of its own waiting tools. The others are to be called again, and
/// an approval holds for that once, for the same input (G4).
#[test]
fn an_approval_is_carried_over_once_to_the_same_call() {
    let with = |id: &str, arguments: &str| RequestedCall {
        arguments: arguments.to_owned(),
        shown_arguments: None,
        ..asked_call(id, ToolEffect::Unclassified, CallPlace::Segment)
    };
    let (mut world, attempt) = live(vec![with("c1", "{}"), with("c2", r#"{"a":1}"#)]);
    assert_eq!(world.report(&attempt, park()), Reply::Parked);
    world.approve("c1");
    world.approve("c2");
    assert_eq!(world.status("c1"), CallStatus::Decided);
    let again = ToolOutcome::Skipped {
        reason: SkipReason::CallAgain,
    };
    assert_eq!(world.outcome_of("c2"), again);
    let attempt = world.begin_due();
    world.report(&attempt, starting("c1"));
    world.report(&attempt, finished("c1"));
    let calls = vec![
        with("c3", r#"{"a":2}"#),
        with("c4", r#"{"a":1}"#),
        with("c5", r#"{"a":1}"#),
    ];
    world.report(&attempt, checkpoint(vec![said("again")], calls));
    assert_eq!(
        world.statuses(&["c3", "c4", "c5"]),
        [
            CallStatus::Requested,
            CallStatus::Decided,
            CallStatus::Requested
        ]
    );
    assert!(world.record("c4").decider.is_some());
}

/// G4: what a person approved instead of the model's input is carried over as well: it runs when the
/// model makes its own call again, once, and however often that could not run under its own id.
#[test]
fn changed_arguments_are_carried_over_with_the_approval() {
    let with = |id: &str, arguments: &str| RequestedCall {
        arguments: arguments.to_owned(),
        shown_arguments: None,
        ..asked_call(id, ToolEffect::Unclassified, CallPlace::Segment)
    };
    let (mut world, mut attempt) = live(vec![with("c1", "{}"), with("c2", r#"{"a":1}"#)]);
    assert_eq!(world.report(&attempt, park()), Reply::Parked);
    world.approve("c1");
    let changed = |interrupt_id, text: &str| {
        Input::ResolveInterrupt(Resolution {
            interrupt_id,
            decision: Decision::Approve,
            decided_by: Some("ann".to_owned()),
            digest: None,
            arguments: ResolvedArguments::Changed(text.to_owned()),
        })
    };
    let interrupt_of = |id: &str| InterruptId::of_call(TurnId::new(1), &call_id(id));
    let approved = changed(interrupt_of("c2"), r#"{"a":7}"#);
    world.apply(approved).unwrap();
    for (waits, again) in [("c2", "c4"), ("c4", "c6")] {
        attempt = world.begin_due();
        let runs = if waits == "c2" { "c1" } else { "c3" };
        world.report(&attempt, starting(runs));
        world.report(&attempt, finished(runs));
        assert_eq!(world.status(waits), CallStatus::Skipped);
        let first = if waits == "c2" { "c3" } else { "c5" };
        let calls = vec![with(first, "{}"), with(again, r#"{"a":1}"#)];
        world.report(&attempt, checkpoint(vec![said("again")], calls));
        let record = world.record(again);
        assert_eq!(record.status, CallStatus::Decided);
        assert_eq!(record.arguments_preview, r#"{"a":7}"#);
        assert_eq!(record.changed_arguments_key(), Some(interrupt_of("c2")));
        assert_eq!(record.digest, world.record("c2").digest);
        assert_eq!(world.report(&attempt, park()), Reply::Parked);
        world.approve(first);
    }
    attempt = world.begin_due();
    world.report(&attempt, starting("c5"));
    world.report(&attempt, finished("c5"));
    world.report(
        &attempt,
        checkpoint(vec![said("alone")], vec![with("c7", r#"{"a":1}"#)]),
    );
    assert_eq!(world.status("c6"), CallStatus::Skipped);
    let standing = SegmentEvent::CallStanding {
        tool_call_id: call_id("c7"),
    };
    let changed_in = Some(interrupt_of("c2"));
    let permitted = Reply::CallIsPermitted { changed_in };
    assert_eq!(world.report(&attempt, standing), permitted);
    world.report(&attempt, starting("c7"));
    world.report(&attempt, finished("c7"));
    let note = "[A person changed the input of this call. It ran with: {\"a\":7}]";
    assert!(world.outcome_of("c7").model_text().starts_with(note));
}

/// G3: a turn that fails while a handler runs waits for it, so that its note tells the truth.
#[test]
fn a_failing_turn_waits_for_the_handler_that_runs() {
    failed_beside_a_handler();
}

/// The world in which a turn failed beside a handler that ran.
pub(super) fn failed_beside_a_handler() -> World {
    let (mut world, attempt) = live(vec![
        free_call("c1", WRITE, CallPlace::Step),
        call("c2", WRITE, CallPlace::Step),
    ]);
    let step = begin_call(&mut world, "c1");
    world.end(&attempt, Err(failure(FailureClass::Authentication)));
    assert_eq!(world.status("c2"), CallStatus::Skipped);
    assert_eq!(world.status("c1"), CallStatus::Started);
    assert!(world.state.turn.is_some());
    world.tool_ends(&step, succeeded());
    assert!(world.state.turn.is_none());
    let (role, note) = world.texts().pop().unwrap();
    assert_eq!(role, MessageRole::Note);
    assert!(note.contains("authentication"), "{note}");
    assert!(note.contains("succeeded; do not repeat it"), "{note}");
    world
}

/// G1: and when the worker of that handler dies, an idempotent call is not started for a turn that
/// is over.
#[test]
fn a_handler_that_dies_with_a_failing_turn_is_not_started_again() {
    let call = free_call("c1", ToolEffect::IdempotentWrite, CallPlace::Step);
    let (mut world, attempt) = live(vec![call]);
    let step = begin_call(&mut world, "c1");
    world.end(&attempt, Err(failure(FailureClass::Authentication)));
    world.epoch.0 += 1;
    world.begin(step.step_id, "next", world.epoch);
    assert_eq!(world.status("c1"), CallStatus::OutcomeUnknown);
    assert!(world.state.turn.is_none());
}

/// G7: a complete reply in a checkpoint is progress; without one the losses add up to the end.
#[test]
fn a_turn_that_makes_progress_outlives_any_number_of_losses() {
    let mut world = World::started();
    for round in 0..2 * LOST_ATTEMPTS_MAX {
        let attempt = world.begin_due();
        let said = vec![said(&format!("step {round}"))];
        assert_eq!(
            world.report(&attempt, checkpoint(said, Vec::new())),
            Reply::Done
        );
        world.epoch.0 += 1;
    }
    world.answer("done");
    let mut world = World::started();
    world.begin_due();
    let mut losses = 0;
    while world.state.turn.is_some() {
        losses = world.turn().lost_attempts;
        world.wait(Duration::from_secs(60));
        world.crash_and_begin();
    }
    assert_eq!(losses, LOST_ATTEMPTS_MAX - 1);
}

/// A reply that the CLI gave up takes its open questions with it; what runs comes to its end.
#[test]
fn a_call_that_was_given_up_waits_for_nobody() {
    let (mut world, attempt) = live(vec![
        free_call("c1", WRITE, CallPlace::Step),
        call("c2", WRITE, CallPlace::Step),
    ]);
    let step = begin_call(&mut world, "c1");
    for id in ["c1", "c2"] {
        let tool_call_id = call_id(id);
        let reply = world.report(&attempt, SegmentEvent::CallGivenUp { tool_call_id });
        assert_eq!(reply, Reply::Done);
    }
    assert_eq!(world.status("c2"), CallStatus::Skipped);
    assert_eq!(world.status("c1"), CallStatus::Started);
    world.tool_ends(&step, succeeded());
    assert_eq!(world.end(&attempt, Ok(completed("bye"))), Reply::Done);
}

/// A turn cannot end while a call of it is open: the segment broke its contract.
#[test]
fn a_turn_does_not_complete_over_an_open_call() {
    let (mut world, attempt) = live(vec![call("c1", WRITE, CallPlace::Step)]);
    world.end(&attempt, Ok(completed("bye")));
    assert!(world.state.turn.is_some());
    assert_eq!(world.status("c1"), CallStatus::Requested);
    assert!(due_steps(&world.state).is_empty());
}

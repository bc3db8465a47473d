//! Messages that their author changes, takes back, or puts into the running turn.

use super::*;
use crate::turn::SegmentProgress;

const WRITE: ToolEffect = ToolEffect::NonIdempotentWrite;

/// N18: the running segment is not disturbed; when the model has answered, the same turn goes on with
/// the steered message.
#[test]
fn a_steered_message_goes_into_the_same_turn_behind_the_answer() {
    let mut world = World::started();
    let attempt = world.begin_due();
    world.steer("also in blue").unwrap();
    world.answer_of(&attempt, "done in red");
    assert!(world.state.turn.is_some(), "the turn goes on");
    assert_eq!(world.take_steered(), Reply::Done);
    world.answer("done in blue");
    let said: Vec<_> = world.texts().into_iter().map(|it| it.1).collect();
    assert_eq!(
        said,
        ["hello", "done in red", "also in blue", "done in blue"]
    );
    let turns: BTreeSet<_> = world.messages().iter().map(|it| it.turn_id).collect();
    assert_eq!(turns, BTreeSet::from([TurnId::new(1)]));
    assert!(world.state.turn.is_none());
}

/// N18: a call that nobody decided about is skipped, the model is told, and a late answer to it
/// changes nothing.
#[test]
fn steering_skips_calls_that_wait_for_a_person() {
    let mut world = World::with_calls(vec![call("c1", WRITE, CallPlace::Step)]);
    world.steer("never mind").unwrap();
    assert_eq!(world.status("c1"), CallStatus::Skipped);
    let late = refused(world.resolve("c1", Decision::Approve));
    assert!(matches!(
        late,
        Refusal::AlreadyResolved { decision: None, .. }
    ));
    world.answer("as you like");
    world.take_steered();
    world.answer("never minded");
    assert!(world.state.turn.is_none());
}

/// An approved call runs although the turn is steered.
#[test]
fn steering_leaves_decided_calls_alone() {
    let mut world = World::with_calls(vec![
        call("c1", WRITE, CallPlace::Step),
        call("c2", WRITE, CallPlace::Step),
    ]);
    world.approve("c1");
    world.steer("something else").unwrap();
    let expected = [CallStatus::Decided, CallStatus::Skipped];
    assert_eq!(world.statuses(&["c1", "c2"]), expected);
    let attempt = world.begin_due();
    world.tool_ends(&attempt, succeeded());
    assert_eq!(world.status("c1"), CallStatus::Succeeded);
}

/// Without a turn it is a message like any other; a queued one has nothing to go into.
#[test]
fn without_a_running_turn_a_steered_message_starts_one() {
    let mut world = World::new();
    let reply = world.steer("hello").unwrap();
    let message_id = MessageId::new(1);
    let queued = false;
    assert_eq!(reply, Reply::MessageAccepted { message_id, queued });
    world.answer("hi");
    let steer = Input::SteerUserMessage {
        steering: Steering::Queued(message_id),
        mode: SteerMode::AtBoundary,
    };
    let active = None;
    assert_eq!(
        refused(world.apply(steer)),
        Refusal::TurnNotActive { active }
    );
}

/// G6: a turn that fails or is cancelled leaves its steered messages to turns of their own, in order.
#[test]
fn a_steered_message_outlives_a_turn_that_ends_without_it() {
    let mut world = World::started();
    let first = world.send("queued first");
    let attempt = world.begin_due();
    let second = world.send("queued second");
    let steer = Input::SteerUserMessage {
        steering: Steering::Queued(first),
        mode: SteerMode::AtBoundary,
    };
    world.apply(steer).unwrap();
    world.cancel(None).unwrap();
    world.end(&attempt, Err(failure(FailureClass::CliFailed)));
    let waiting: Vec<_> = world.state.queue.iter().map(|it| it.message_id).collect();
    assert_eq!(waiting, [first, second]);
    for answer in ["one", "two"] {
        world.start_turn();
        world.answer(answer);
    }
    assert_eq!(world.state.status(), SessionStatus::Idle);
}

/// G6: also one that the turn has taken up: what was answered before stays, and so does the message.
#[test]
fn a_steered_message_that_was_taken_up_outlives_its_turn() {
    for cancels in [true, false] {
        let mut world = World::started();
        world.steer("also in blue").unwrap();
        world.answer("done in red");
        world.take_steered();
        let attempt = world.begin_due();
        if cancels {
            world.cancel(None).unwrap();
        }
        let failure = failure(FailureClass::Options);
        world.end(&attempt, Err(failure));
        assert!(world.state.turn.is_none());
        let said: Vec<_> = world.texts().into_iter().map(|it| it.1).collect();
        assert_eq!(said[..3], ["hello", "done in red", "also in blue"]);
        assert_eq!(world.texts().pop().unwrap().0, MessageRole::Note);
    }
}

/// G6, N21: a queued message is deleted once, or sent anew at the tail; a missing id means a stale view.
#[test]
fn queued_messages_are_deleted_and_edited_by_their_author() {
    let mut world = World::started();
    let (first, second) = (world.send("first"), world.send("second"));
    let delete = |message_id| Input::DeleteQueuedMessage { message_id };
    world.apply(delete(second)).unwrap();
    let gone = Refusal::UnknownMessage { message_id: second };
    assert_eq!(refused(world.apply(delete(second))), gone);
    let third = world.send("third");
    let edit = |message_id, text: &str| Input::EditQueuedMessage {
        message_id,
        text: text.to_owned(),
    };
    assert_eq!(refused(world.apply(edit(first, " "))), Refusal::BlankText);
    let reply = world.apply(edit(first, "first, better")).unwrap();
    let Reply::MessageAccepted { message_id, .. } = reply else {
        panic!("{reply:?}");
    };
    let waiting: Vec<_> = world.state.queue.iter().map(|it| it.message_id).collect();
    assert_eq!(waiting, [third, message_id]);
    world.answer("hi");
    world.start_turn();
    let gone = Refusal::UnknownMessage { message_id: third };
    assert_eq!(refused(world.apply(delete(third))), gone);
}

/// spec/core.md 7: the running segment is told to stop, what it said since the last checkpoint is void,
/// and the next one starts with the message; nothing that it asks for meanwhile is granted.
#[test]
fn a_message_that_goes_in_now_stops_the_segment() {
    let mut world = World::started();
    let attempt = world.begin_due();
    world.steer_now("rather in blue").unwrap();
    assert_eq!(world.turn().segment_to_stop(), Some(attempt.step_id));
    let late = SegmentProgress {
        messages: vec![said("half an answer")],
        ..SegmentProgress::default()
    };
    let refused = world.report(&attempt, SegmentEvent::Checkpoint(late));
    assert_eq!(refused, Reply::CallNotPermitted);
    let usage = Usage {
        output_tokens: 7,
        ..Usage::default()
    };
    world.end(
        &attempt,
        Ok(RunModelOutcome::Cancelled {
            partial: Some("half".to_owned()),
            usage,
        }),
    );
    assert_eq!(world.turn().usage.output_tokens, 7, "it was paid for");
    world.take_steered();
    assert_eq!(world.turn().segment_to_stop(), None);
    world.answer("done in blue");
    let said: Vec<_> = world.texts().into_iter().map(|it| it.1).collect();
    assert_eq!(said, ["hello", "rather in blue", "done in blue"]);
    assert!(world.state.turn.is_none());
}

/// G3, G7: what a checkpoint holds stays, and the calls that were skipped are told with the message.
#[test]
fn a_message_that_goes_in_now_stands_behind_the_checkpoint() {
    let mut world = World::with_calls(vec![call("c1", WRITE, CallPlace::Step)]);
    let before = world.texts().len();
    world.steer_now("never mind").unwrap();
    assert_eq!(world.status("c1"), CallStatus::Skipped);
    world.take_steered();
    let turn = world.turn();
    assert!(!turn.calls[0].delivered, "the next segment tells the model");
    assert_ne!(
        turn.base_head, world.state.head,
        "the turn is in its middle"
    );
    let attempt = world.begin_due();
    world.answer_of(&attempt, "never minded");
    assert_eq!(world.texts().len(), before + 2);
    assert!(world.state.turn.is_none());
}

/// G6: the turn fails or is cancelled afterwards; the message stays in the conversation all the same,
/// once, and in its place.
#[test]
fn a_message_that_went_in_now_outlives_its_turn() {
    for cancels in [true, false] {
        let mut world = World::with_calls(vec![call("c1", WRITE, CallPlace::Step)]);
        world.steer_now("never mind").unwrap();
        world.take_steered();
        let attempt = world.begin_due();
        if cancels {
            world.cancel(None).unwrap();
        }
        let failure = failure(FailureClass::Options);
        world.end(&attempt, Err(failure));
        let texts = world.texts();
        let said: Vec<_> = texts.iter().map(|it| it.1.as_str()).collect();
        assert_eq!(said[..2], ["hello", "never mind"], "{said:?}");
        assert_eq!(texts[2].0, MessageRole::Note);
        assert_eq!(texts.len(), 3);
        let sequences: Vec<_> = world.messages().iter().map(|it| it.sequence).collect();
        assert!(sequences.is_sorted(), "{sequences:?}");
    }
}

/// A call that a person approved is not cut off: the client may steer at the boundary instead.
#[test]
fn a_message_does_not_go_in_now_while_a_decided_call_is_open() {
    let mut world = World::with_calls(vec![
        call("c1", WRITE, CallPlace::Step),
        call("c2", WRITE, CallPlace::Step),
    ]);
    world.approve("c1");
    let runs = refused(world.steer_now("stop"));
    let tool_call_id = ToolCallId::new("c1").unwrap();
    assert_eq!(runs, Refusal::CallRuns { tool_call_id });
    assert_eq!(world.status("c2"), CallStatus::Requested, "nothing changed");
    let attempt = world.begin_due();
    assert!(world.steer_now("stop").is_err());
    world.tool_ends(&attempt, succeeded());
    world.steer_now("stop").unwrap();
    assert_eq!(
        world.statuses(&["c1", "c2"]),
        [CallStatus::Succeeded, CallStatus::Skipped]
    );
}

/// Several messages go in together, oldest first, with one segment; a loss of the worker meanwhile
/// changes nothing.
#[test]
fn messages_that_go_in_now_go_in_together() {
    let mut world = World::started();
    world.begin_due();
    world.steer("also in blue").unwrap();
    world.steer_now("and in green").unwrap();
    assert_eq!(world.crash_and_begin(), Reply::Superseded);
    world.take_steered();
    world.take_steered();
    world.answer("done");
    let said: Vec<_> = world.texts().into_iter().map(|it| it.1).collect();
    assert_eq!(said, ["hello", "also in blue", "and in green", "done"]);
}

/// A failure that must not be tried again ends the turn, steered or not; the message waits for its own.
#[test]
fn a_failure_that_is_final_ends_a_turn_that_is_steered_now() {
    let mut world = World::started();
    let attempt = world.begin_due();
    world.steer_now("go on").unwrap();
    world.end(&attempt, Err(failure(FailureClass::UndecidedCall)));
    assert!(world.state.turn.is_none());
    assert_eq!(world.state.queue.len(), 1);
    let mut world = World::started();
    let attempt = world.begin_due();
    world.steer_now("go on").unwrap();
    world.end(&attempt, Err(failure(FailureClass::Overloaded)));
    assert_eq!(world.turn().steered.len(), 1);
    world.take_steered();
}

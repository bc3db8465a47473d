//! Messages that their author changes, takes back, or puts into the running turn.

use super::*;

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
    let steer = Input::SteerUserMessage(Steering::Queued(message_id));
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
    let steer = Input::SteerUserMessage(Steering::Queued(first));
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

//! Deadlines, closing, settings.

use super::*;
use crate::event::EndReason;
use crate::record::EXPIRED_TEXT;

const WRITE: ToolEffect = ToolEffect::NonIdempotentWrite;

/// N35: nobody decides in time, so the call is rejected and the turn goes on; a later answer is told
/// that it came too late, and changes nothing.
#[test]
fn a_call_that_nobody_decides_about_is_rejected_at_its_deadline() {
    let asked = with_deadline(call("c1", WRITE, CallPlace::Step));
    let mut world = World::with_calls(vec![asked, call("c2", WRITE, CallPlace::Step)]);
    let due = due_steps(&world.state);
    let at = world.record("c1").expires_at.unwrap();
    assert_eq!(due, [DueStep::PassTime { at }]);
    assert_eq!(world.state.due_at(), Some(at), "a worker comes for it");
    assert_eq!(world.state.status(), SessionStatus::AwaitingApproval);

    world.now = Timestamp(at.0 - 1);
    let early = reduce(&world.state, Input::TimePassed, world.now).unwrap();
    assert!(early.is_unchanged());
    world.now = at;
    let interrupt_id = InterruptId::of_call(TurnId::new(1), &call_id("c1"));
    let expired = Refusal::Expired { interrupt_id };
    let late = world.resolve("c1", Decision::Approve);
    assert_eq!(refused(late), expired, "the time is over, timer or not");

    world.pass_time();
    assert_eq!(world.status("c1"), CallStatus::Rejected);
    assert_eq!(world.outcome_of("c1"), ToolOutcome::Expired);
    assert_eq!(world.outcome_of("c1").model_text(), EXPIRED_TEXT);
    let late = world.resolve("c1", Decision::Approve);
    assert_eq!(refused(late), expired);
    assert_eq!(world.status("c2"), CallStatus::Requested, "no deadline");
    world.approve("c2");
    let attempt = world.begin_due();
    world.tool_ends(&attempt, succeeded());
    world.answer("one of two");
}

/// The deadline of a call is in its event, counted from the request.
#[test]
fn an_interrupt_tells_its_deadline() {
    let asked = with_deadline(call("c1", WRITE, CallPlace::Step));
    let world = World::with_calls(vec![asked]);
    let told = world.events.iter().find_map(|it| match &it.kind {
        EventKind::InterruptRequested { expires_at, .. } => *expires_at,
        _ => None,
    });
    assert_eq!(told, Some(world.now.after(Duration::from_secs(20))));
}

/// N45: a turn runs with the settings of its start; a change names the revision that it replaces.
#[test]
fn settings_hold_from_the_next_turn_on() {
    let mut world = World::started();
    let reply = world.update_settings(0, "one").unwrap();
    assert_eq!(reply, Reply::SettingsUpdated { revision: 1 });
    assert!(world.turn().settings.is_default());
    let stale = refused(world.update_settings(0, "two"));
    assert_eq!(stale, Refusal::SettingsChanged { revision: 1 });
    let long = "x".repeat(crate::session::SETTINGS_BYTES_MAX + 1);
    assert!(matches!(
        refused(world.update_settings(1, &long)),
        Refusal::FieldTooLong { .. }
    ));
    world.answer("hi");
    world.send("next");
    assert_eq!(world.turn().settings.model.as_deref(), Some("one"));
}

/// P19: each way to close, with a turn and a message that wait.
#[test]
fn closing_cancels_rejects_or_drains() {
    let busy = || {
        let mut world = World::started();
        let attempt = world.begin_due();
        (world.send("waits"), world, attempt)
    };
    let ended = SessionStatus::Ended;
    let reason = EndReason::Closed;

    let (_, mut world, _) = busy();
    assert_eq!(
        refused(world.close(CloseMode::Reject)),
        Refusal::SessionBusy
    );

    let (message_id, mut world, attempt) = busy();
    world.close(CloseMode::Cancel).unwrap();
    let undelivered = EventKind::MessageUndelivered { message_id };
    assert!(world.kinds_since(0).contains(&undelivered), "G6");
    assert_eq!(world.state.status(), SessionStatus::Running);
    world.end(&attempt, Err(failure(FailureClass::CliFailed)));
    assert_eq!(world.state.status(), ended);
    let last = world.events.last().map(|it| it.kind.clone());
    assert_eq!(last, Some(EventKind::SessionEnded { reason }));

    let (_, mut world, attempt) = busy();
    world.close(CloseMode::Drain).unwrap();
    assert_eq!(
        refused(world.try_send("more")),
        Refusal::SessionEnded { reason }
    );
    world.answer_of(&attempt, "one");
    world.start_turn();
    world.answer("two");
    assert_eq!(world.state.status(), ended);
    assert_eq!(world.state.due_at(), None);
    let again = world.close(CloseMode::Cancel).unwrap();
    assert_eq!(again, Reply::SessionClosing { duplicate: true });
    assert_eq!(
        refused(world.try_send("more")),
        Refusal::SessionEnded { reason }
    );
    assert_eq!(
        refused(world.cancel(None)),
        Refusal::TurnNotActive { active: None }
    );
}

/// G6: a message that was steered and not taken up when the session ends is reported.
#[test]
fn a_steered_message_is_reported_when_the_session_ends() {
    let mut world = World::started();
    world.begin_due();
    world.steer("in vain").unwrap();
    world.close(CloseMode::Cancel).unwrap();
    let message_id = MessageId::new(2);
    let undelivered = EventKind::MessageUndelivered { message_id };
    assert!(world.kinds_since(0).contains(&undelivered));
}

/// N02: a session ends when its time is over, whatever it does.
#[test]
fn a_session_ends_when_its_time_is_over() {
    let mut world = World::new();
    world.state.ends_at = Some(world.now.after(Duration::from_secs(60)));
    world.send("hello");
    world.ask_for(vec![call("c1", WRITE, CallPlace::Step)]);
    world.pass_time();
    assert_eq!(world.state.status(), SessionStatus::Ended);
    assert_eq!(world.status("c1"), CallStatus::Skipped);
    let reason = EndReason::TimedOut;
    let last = world.events.last().map(|it| it.kind.clone());
    assert_eq!(last, Some(EventKind::SessionEnded { reason }));
    assert_eq!(
        refused(world.try_send("more")),
        Refusal::SessionEnded { reason }
    );
}

/// N02: also one that drains.
#[test]
fn a_session_that_drains_ends_when_its_time_is_over() {
    let mut world = World::new();
    world.state.ends_at = Some(world.now.after(Duration::from_secs(60)));
    world.send("hello");
    world.ask_for(vec![call("c1", WRITE, CallPlace::Step)]);
    let message_id = world.send("waits");
    world.close(CloseMode::Drain).unwrap();
    world.pass_time();
    assert_eq!(world.state.status(), SessionStatus::Ended);
    let undelivered = EventKind::MessageUndelivered { message_id };
    assert!(world.kinds_since(0).contains(&undelivered), "G6");
}

/// A second wish to stop everything changes nothing.
#[test]
fn closing_twice_is_a_repeat() {
    let mut world = World::started();
    world.begin_due();
    world.close(CloseMode::Cancel).unwrap();
    let commits = world.commits;
    let again = world.close(CloseMode::Cancel).unwrap();
    assert_eq!(again, Reply::SessionClosing { duplicate: true });
    assert_eq!(world.commits, commits);
}

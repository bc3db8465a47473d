//! Answers to interrupts: who wins, and what a second answer gets.

use super::*;
use crate::record::{ArgumentsDigest, Decider};
use crate::session::RESOLVER_BYTES_MAX;

const WRITE: ToolEffect = ToolEffect::NonIdempotentWrite;

fn reject(message: Option<&str>) -> Decision {
    Decision::Reject {
        message: message.map(str::to_owned),
    }
}

fn waiting() -> World {
    World::with_calls(vec![call("c1", WRITE, CallPlace::Step)])
}

fn interrupt() -> InterruptId {
    InterruptId::of_call(TurnId::new(1), &call_id("c1"))
}

fn answer(decision: Decision) -> Resolution {
    Resolution {
        interrupt_id: interrupt(),
        decision,
        decided_by: None,
        digest: None,
        arguments: ResolvedArguments::AsAsked,
    }
}

/// A rejected call never runs, and the model reads why.
#[test]
fn a_rejection_is_told_to_the_model_and_nothing_runs() {
    for (message, kept, text) in [
        (None, None, "The user rejected this call."),
        (Some(""), None, "The user rejected this call."),
        (
            Some("too much"),
            Some("too much"),
            "The user rejected this call: too much",
        ),
    ] {
        let mut world = waiting();
        let reply = world.resolve("c1", reject(message)).unwrap();
        assert_eq!(reply, Reply::InterruptResolved { duplicate: false });
        let record = world.record("c1");
        assert_eq!((record.status, record.starts), (CallStatus::Rejected, 0));
        assert_eq!(world.outcome_of("c1").model_text(), text);
        assert_eq!(record.decider.unwrap().decision, reject(kept));
        assert!(matches!(
            due_steps(&world.state).as_slice(),
            [DueStep::RunModel { .. }]
        ));
    }
}

/// The first answer counts: the same one again is a duplicate, another one is refused.
#[test]
fn the_first_answer_counts() {
    let other = |decision: Decision| Refusal::AlreadyResolved {
        interrupt_id: interrupt(),
        decision: Some(decision),
        decided_by: None,
    };
    for (first, same, others) in [
        (
            Decision::Approve,
            Decision::Approve,
            [reject(None), reject(Some("no"))],
        ),
        (
            reject(None),
            reject(Some("")),
            [Decision::Approve, reject(Some("no"))],
        ),
        (
            reject(Some("no")),
            reject(Some("no")),
            [Decision::Approve, reject(None)],
        ),
    ] {
        let mut world = waiting();
        world.resolve("c1", first.clone()).unwrap();
        let before = (world.state.clone(), world.commits);
        let again = world.resolve("c1", same).unwrap();
        assert_eq!(again, Reply::InterruptResolved { duplicate: true });
        for decision in others {
            let refusal = refused(world.resolve("c1", decision));
            assert_eq!(refusal, other(first.clone()));
        }
        assert_eq!((world.state.clone(), world.commits), before);
    }
}

/// A duplicate stays a duplicate while the call runs and after it ended.
#[test]
fn an_approval_may_be_repeated_until_the_turn_ends() {
    let mut world = waiting();
    world.approve("c1");
    let attempt = world.begin_due();
    let duplicate = Reply::InterruptResolved { duplicate: true };
    let again = world.resolve("c1", Decision::Approve).unwrap();
    assert_eq!(again, duplicate);
    world.tool_ends(&attempt, succeeded());
    let again = world.resolve("c1", Decision::Approve).unwrap();
    assert_eq!(again, duplicate);
}

/// An id that is not open in this turn is unknown: made up, of a call without approval, of an
/// earlier turn.
#[test]
fn an_answer_to_nothing_is_refused() {
    let mut world = World::with_calls(vec![
        free_call("free", ToolEffect::IdempotentWrite, CallPlace::Step),
        call("c1", WRITE, CallPlace::Step),
    ]);
    for text in ["", "t1/other", "t2/c1", "c1", "t1/free"] {
        let interrupt_id = InterruptId::from_client(text);
        let resolution = Resolution {
            interrupt_id: interrupt_id.clone(),
            ..answer(Decision::Approve)
        };
        let refusal = refused(world.apply(Input::ResolveInterrupt(resolution)));
        assert_eq!(refusal, Refusal::UnknownInterrupt { interrupt_id });
    }
    world.reject("c1");
    let attempt = world.begin_due();
    world.tool_ends(&attempt, succeeded());
    world.answer("done");
    let late = world.apply(Input::ResolveInterrupt(answer(Decision::Approve)));
    let interrupt_id = interrupt();
    assert_eq!(refused(late), Refusal::UnknownInterrupt { interrupt_id });
}

/// G4: an answer that was given for another input is refused; the right digest is taken.
#[test]
fn an_answer_holds_for_the_input_that_was_seen() {
    let mut world = waiting();
    let digest = |arguments| ArgumentsDigest::of(&SessionId::new("s").unwrap(), "tool", arguments);
    let wrong = Resolution {
        digest: Some(digest(r#"{"for":"c2"}"#)),
        arguments: ResolvedArguments::AsAsked,
        ..answer(Decision::Approve)
    };
    let refusal = refused(world.apply(Input::ResolveInterrupt(wrong)));
    let interrupt_id = interrupt();
    assert_eq!(refusal, Refusal::DigestMismatch { interrupt_id });
    assert_eq!(world.status("c1"), CallStatus::Requested);
    let right = Resolution {
        digest: Some(digest(r#"{"for":"c1"}"#)),
        arguments: ResolvedArguments::AsAsked,
        ..answer(Decision::Approve)
    };
    let reply = world.apply(Input::ResolveInterrupt(right)).unwrap();
    assert_eq!(reply, Reply::InterruptResolved { duplicate: false });
}

/// Who decided, and when, is kept with the record.
#[test]
fn a_decision_is_kept_with_its_person_and_time() {
    let mut world = waiting();
    world.wait(Duration::from_secs(3_600));
    let resolution = Resolution {
        decided_by: Some("ann".to_owned()),
        ..answer(Decision::Approve)
    };
    world.apply(Input::ResolveInterrupt(resolution)).unwrap();
    let expected = Decider::new(Decision::Approve, Some("ann".to_owned()), world.now);
    assert_eq!(world.record("c1").decider, Some(expected));
    let refusal = refused(world.resolve("c1", reject(None)));
    assert_eq!(
        refusal,
        Refusal::AlreadyResolved {
            interrupt_id: interrupt(),
            decision: Some(Decision::Approve),
            decided_by: Some("ann".to_owned()),
        }
    );
}

/// Names and messages have a longest length.
#[test]
fn an_answer_has_a_longest_length() {
    let mut world = waiting();
    let long = "x".repeat(RESOLVER_BYTES_MAX + 1);
    let by = Resolution {
        decided_by: Some(long.clone()),
        ..answer(Decision::Approve)
    };
    for (resolution, field) in [
        (by, "decided_by"),
        (answer(reject(Some(&long))), "the rejection message"),
    ] {
        let refusal = refused(world.apply(Input::ResolveInterrupt(resolution)));
        let bytes_max = RESOLVER_BYTES_MAX;
        assert_eq!(refusal, Refusal::FieldTooLong { field, bytes_max });
    }
    assert_eq!(world.status("c1"), CallStatus::Requested);
}

/// The turn goes on when the last answer is given, whatever the order.
#[test]
fn answers_may_come_in_any_order() {
    let mut world = World::with_calls(vec![
        call("c1", WRITE, CallPlace::Step),
        call("c2", WRITE, CallPlace::Segment),
        call("c3", WRITE, CallPlace::Step),
    ]);
    world.reject("c3");
    world.approve("c2");
    assert_eq!(world.state.status(), SessionStatus::AwaitingApproval);
    world.reject("c1");
    assert!(matches!(
        due_steps(&world.state).as_slice(),
        [DueStep::RunModel { .. }]
    ));
    assert_eq!(
        world.statuses(&["c1", "c2", "c3"]),
        [
            CallStatus::Rejected,
            CallStatus::Decided,
            CallStatus::Rejected
        ]
    );
}

fn changed(call: &str, arguments: &str) -> Input {
    Input::ResolveInterrupt(Resolution {
        interrupt_id: InterruptId::of_call(TurnId::new(1), &call_id(call)),
        arguments: ResolvedArguments::Changed(arguments.to_owned()),
        ..answer(Decision::Approve)
    })
}

/// G4: what the person wrote is what runs: it has its own digest, and the model is told.
#[test]
fn a_person_may_approve_other_arguments() {
    let mut world = World::with_calls(vec![call("c1", WRITE, CallPlace::Step)]);
    let asked = world.record("c1");
    world.apply(changed("c1", r#"{"for":"c9"}"#)).unwrap();
    let record = world.record("c1");
    assert_eq!(record.asked_digest.as_ref(), Some(&asked.digest));
    assert_ne!(record.digest, asked.digest);
    assert_eq!(record.arguments_preview, r#"{"for":"c9"}"#);
    let key = row(RowKind::ChangedArguments, "t1/c1");
    assert_eq!(world.rows[&key], br#"{"for":"c9"}"#);
    let again = world.apply(changed("c1", r#"{"for":"c9"}"#)).unwrap();
    assert_eq!(again, Reply::InterruptResolved { duplicate: true });
    for other in [changed("c1", r#"{"for":"c8"}"#), {
        Input::ResolveInterrupt(Resolution {
            interrupt_id: InterruptId::from_client("t1/c1"),
            ..answer(Decision::Approve)
        })
    }] {
        let told = refused(world.apply(other));
        assert!(matches!(told, Refusal::AlreadyResolved { .. }), "{told}");
    }
    let attempt = world.begin_due();
    world.tool_ends(&attempt, succeeded());
    let text = world.outcome_of("c1").model_text();
    let told = "[A person changed the input of this call. It ran with: {\"for\":\"c9\"}]\ndone";
    assert_eq!(text, told);
}

/// G10: where the application has a view, a call is shown by it, and what a person puts in the place of
/// the input is not shown at all. What runs is stored whole.
#[test]
fn a_call_is_shown_by_its_view() {
    let mut world = World::with_calls(vec![RequestedCall {
        shown_arguments: Some(r#"{"for":"…"}"#.to_owned()),
        ..call("c1", WRITE, CallPlace::Step)
    }]);
    let record = world.record("c1");
    assert_eq!(record.arguments_preview, r#"{"for":"…"}"#);
    let shown = row(RowKind::ShownArguments, "t1/c1");
    assert_eq!(world.rows[&shown], r#"{"for":"…"}"#.as_bytes());
    let whole = row(RowKind::Arguments, "t1/c1");
    assert_eq!(world.rows[&whole].len() as u64, record.arguments_bytes);
    world.apply(changed("c1", r#"{"for":"c9"}"#)).unwrap();
    assert_eq!(world.record("c1").arguments_preview, "");
    let attempt = world.begin_due();
    world.tool_ends(&attempt, succeeded());
    let told = "[A person changed the input of this call.]\ndone";
    assert_eq!(world.outcome_of("c1").model_text(), told);
}

/// G4: an input that is no object, or one for a call that is rejected, changes nothing.
#[test]
fn arguments_that_cannot_be_changed_are_refused() {
    let mut world = World::with_calls(vec![
        call("c1", WRITE, CallPlace::Step),
        call("c2", WRITE, CallPlace::Segment),
    ]);
    for text in ["", "7", "[]", "{"] {
        let told = refused(world.apply(changed("c1", text)));
        assert_eq!(told, Refusal::ArgumentsNotAnObject, "{text}");
    }
    let large = format!(r#"{{"x":"{}"}}"#, "x".repeat(256 * 1024));
    let told = refused(world.apply(changed("c1", &large)));
    assert!(matches!(told, Refusal::FieldTooLong { .. }));
    let rejecting = Input::ResolveInterrupt(Resolution {
        interrupt_id: InterruptId::from_client("t1/c1"),
        arguments: ResolvedArguments::Changed("{}".to_owned()),
        ..answer(Decision::Reject { message: None })
    });
    let told = refused(world.apply(rejecting));
    assert!(matches!(told, Refusal::ArgumentsOfRejected { .. }));
    assert_eq!(world.statuses(&["c1", "c2"]), [CallStatus::Requested; 2]);
}

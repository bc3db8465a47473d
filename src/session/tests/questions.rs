//! Calls that ask people questions: answered or declined, never just approved.

use super::*;
use crate::record::OpenInterrupt;

const ANSWERED: &str = r#"{"for":"c1","answers":{"Why?":"so"}}"#;

fn asking(place: CallPlace) -> World {
    World::with_calls(vec![call_with("c1", ToolPolicy::questions(), place)])
}

fn resolve(decision: Decision, arguments: ResolvedArguments) -> Input {
    Input::ResolveInterrupt(Resolution {
        interrupt_id: InterruptId::of_call(TurnId::new(1), &call_id("c1")),
        decision,
        decided_by: None,
        digest: None,
        arguments,
    })
}

fn answered(text: &str) -> Input {
    resolve(
        Decision::Approve,
        ResolvedArguments::Answered(text.to_owned()),
    )
}

/// N17, G4: the call runs with the answers, once; the model reads what the tool makes of them, and of
/// no changed input.
#[test]
fn a_call_runs_with_the_answers_to_its_questions() {
    let mut world = asking(CallPlace::Step);
    assert!(OpenInterrupt::of_call(&world.record("c1")).asks_questions);
    let first = world.apply(answered(ANSWERED)).unwrap();
    assert_eq!(first, Reply::InterruptResolved { duplicate: false });
    let key = row(RowKind::ChangedArguments, "t1/c1");
    assert_eq!(world.rows[&key], ANSWERED.as_bytes());
    let again = world.apply(answered(ANSWERED)).unwrap();
    assert_eq!(again, Reply::InterruptResolved { duplicate: true });
    let other = world.apply(answered(r#"{"answers":{"Why?":"no"}}"#));
    assert!(matches!(refused(other), Refusal::AlreadyResolved { .. }));
    let attempt = world.begin_due();
    world.tool_ends(&attempt, succeeded());
    assert_eq!(world.outcome_of("c1").model_text(), "done");
}

/// N17: an approval without answers, answers to what is no question, and answers to what is rejected
/// change nothing; a question may be declined.
#[test]
fn questions_are_answered_or_declined_and_nothing_else() {
    let changed = || ResolvedArguments::Changed("{}".to_owned());
    let reject = || Decision::Reject { message: None };
    for place in [CallPlace::Step, CallPlace::Segment] {
        let mut world = asking(place);
        for arguments in [ResolvedArguments::AsAsked, changed()] {
            let told = refused(world.apply(resolve(Decision::Approve, arguments)));
            assert!(matches!(told, Refusal::NotAnswered { .. }), "{told}");
        }
        let answers = ResolvedArguments::Answered(ANSWERED.to_owned());
        let told = refused(world.apply(resolve(reject(), answers)));
        assert!(
            matches!(told, Refusal::ArgumentsOfRejected { .. }),
            "{told}"
        );
        assert_eq!(world.status("c1"), CallStatus::Requested);
        world
            .apply(resolve(reject(), ResolvedArguments::AsAsked))
            .unwrap();
        assert_eq!(world.status("c1"), CallStatus::Rejected);

        let mut world = World::with_calls(vec![asked_call("c1", ToolEffect::Read, place)]);
        let told = refused(world.apply(answered(ANSWERED)));
        assert!(matches!(told, Refusal::AsksNoQuestions { .. }), "{told}");
        assert_eq!(world.status("c1"), CallStatus::Requested);
    }
}

/// N17, N35: nobody answers in time.
#[test]
fn a_question_may_have_a_deadline() {
    let call = call_with("c1", ToolPolicy::questions(), CallPlace::Segment);
    let mut world = World::with_calls(vec![with_deadline(call)]);
    world.now = world.now.after(Duration::from_secs(20));
    let told = refused(world.apply(answered(ANSWERED)));
    assert!(matches!(told, Refusal::Expired { .. }), "{told}");
    world.apply(Input::TimePassed).unwrap();
    assert_eq!(world.outcome_of("c1"), ToolOutcome::Expired);
}

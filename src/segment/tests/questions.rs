//! Calls that ask people: denied where nobody answers or the set cannot be answered; otherwise held
//! until the answers are there.

use super::live::live_with;
use super::*;
use crate::policy::{ToolPolicies, ToolPolicy};

const ASK: &str = "AskUserQuestion";

fn colours() -> Value {
    json!({"questions": [{"question": "Which?", "header": "Colour", "multiSelect": false,
        "options": [{"label": "Red", "description": ""}, {"label": "Blue", "description": ""}]}]})
}

fn answering() -> Stepper {
    live_with(|plan| {
        plan.policies = ToolPolicies::new().with(ASK, ToolPolicy::questions());
        plan.offered.insert(ASK.to_owned());
    })
}

/// O42, O50: without a policy for questions nobody is asked, whatever the default effect is, and the
/// model is told what to do instead.
#[test]
fn questions_are_off_by_default() {
    for effect in [ToolEffect::Read, ToolEffect::Unclassified] {
        let mut it = live_with(|plan| {
            plan.policies = ToolPolicies::new()
                .with_default_effect(effect)
                .with("Bash", ToolPolicy::new(ToolEffect::Unclassified));
            plan.offered.insert(ASK.to_owned());
        });
        it.reply_starts();
        it.asks("c1", ASK, colours());
        it.asked("r1", "c1", ASK, colours());
        it.reply_ends(false);
        let told = it.take();
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].starts_with(r#"hook "deny""#), "{told:?}");
        assert!(told[0].contains("Ask in your reply"), "{told:?}");
    }
}

/// O47, O48: a set that cannot be answered is denied at once, and nothing of it is recorded.
#[test]
fn a_set_that_cannot_be_answered_is_denied_whole() {
    let mut it = answering();
    let mut input = colours();
    input["answers"] = json!({"Which?": "Red"});
    it.reply_starts();
    it.asks("c1", ASK, input.clone());
    it.reply_ends(false);
    it.asked("r1", "c1", ASK, input);
    let told = it.take();
    let reason = r#"hook "deny" "AskUserQuestion did not run: the input holds answers already""#;
    assert_eq!(told, [reason]);
}

/// O43, O44: the questions become a record, the process waits, and the CLI runs the call with the
/// answers alone, in the same segment.
#[test]
fn a_question_waits_and_runs_with_its_answers() {
    let mut it = answering();
    it.reply_starts();
    it.asks("c1", ASK, colours());
    it.reply_ends(false);
    let told = it.take();
    assert!(told[0].contains("c1 AskUserQuestion Segment"), "{told:?}");
    it.committed();
    it.asked("r1", "c1", ASK, colours());
    assert_eq!(it.take(), ["standing c1"]);
    it.stands("c1", Standing::Open);
    assert!(it.segment.waits_for_people());
    it.session_changed();
    let answered = r#"{"answers":{"Which?":"Red"},"questions":[]}"#;
    it.stands(
        "c1",
        Standing::Permitted {
            changed_arguments: Some(answered.to_owned()),
        },
    );
    it.granted("c1");
    let allowed = format!(r#"hook "allow" {answered}"#);
    assert_eq!(it.take(), ["standing c1", "starting c1", &allowed]);
}

//! The application's approval rules: asked after the hooks, about the final input; their word replaces
//! the approval of the policy, and nothing else of it.

use super::live::{refund, ruled};
use super::*;

fn says(needs_person: Option<bool>, updated_input: Option<&str>) -> HooksAnswer {
    HooksAnswer::Continue {
        updated_input: updated_input.map(|it| RawValue::from_string(it.to_owned()).unwrap()),
        needs_person,
    }
}

/// F01, G4, G5: what the rule says about a call decides whether it waits, the effect where it runs;
/// without a word from a rule that should have spoken, a person decides.
#[test]
fn a_rule_replaces_the_approval_and_never_the_effect() {
    let gated = [r#"hook "defer""#].as_slice();
    for (tool, needs_person, expected) in [
        ("mcp__tools__lookup", Some(true), gated),
        ("mcp__tools__lookup", None, gated),
        (
            "mcp__tools__lookup",
            Some(false),
            &[r#"hook "allow""#, "inline toolu_1 lookup"],
        ),
        ("mcp__tools__create_refund", Some(false), gated),
        ("mcp__tools__set_label", Some(false), gated),
        ("Read", Some(true), gated),
        ("Read", None, gated),
        (
            "Read",
            Some(false),
            &[r#"hook "allow""#, "inline toolu_1 Read"],
        ),
        ("Write", Some(true), gated),
        ("Bash", Some(false), gated),
    ] {
        let mut plan = plan(SegmentStart::Turn {
            prompt: vec!["go".to_owned()],
            uuid: None,
        });
        let name = tool.strip_prefix("mcp__tools__").unwrap_or(tool);
        plan.ruled = BTreeSet::from([name.to_owned()]);
        let effect = match plan.custom_tools.get(name) {
            Some(policy) => policy.effect,
            None => {
                (plan
                    .policies
                    .policy_for(name, crate::policy::ToolAnnotations::default()))
                .effect
            }
        };
        let mut it = Stepper::new(plan);
        it.reply("m1", "one moment");
        it.take();
        it.hook("r1", "toolu_1", tool);
        assert_eq!(
            it.take(),
            [format!(r#"ask hooks toolu_1 {name} {{"a":1}}"#)]
        );
        it.hooks_say("toolu_1", says(needs_person, None));
        assert_eq!(it.take(), expected, "{tool} {needs_person:?}");
        if expected != gated {
            continue;
        }
        it.mirror_deferral("toolu_1");
        it.result(
            json!({"stop_reason": "tool_deferred", "terminal_reason": "tool_deferred",
            "deferred_tool_use": {"id": "toolu_1", "name": tool, "input": {"a": 1}}}),
        );
        let RunModelOutcome::ToolCallsRequested { calls, .. } = it.finish().unwrap() else {
            panic!("the turn must wait for the call");
        };
        assert_eq!(calls[0].policy.effect, effect, "{tool}");
        assert_eq!(
            calls[0].policy.requires_approval(),
            needs_person != Some(false),
            "{tool} {needs_person:?}"
        );
    }
}

/// F05: a tool without a rule is not asked about, whatever rules others have.
#[test]
fn a_tool_without_a_rule_is_decided_at_once() {
    let mut it = ruled(&["Bash"]);
    it.hook("r1", "toolu_1", "mcp__tools__lookup");
    assert_eq!(it.take(), [r#"hook "allow""#, "inline toolu_1 lookup"]);
}

/// F01, G4: a reply's calls are judged together, before the CLI asks. One that waits becomes a record
/// with what the hooks left; one that does not begins when the CLI asks, with what was judged.
#[test]
fn calls_are_judged_ahead_and_begin_when_the_cli_asks() {
    let mut it = ruled(&["Read", "lookup"]);
    it.reply_starts();
    it.asks("c1", "mcp__tools__lookup", json!({"a": 1}));
    it.asks("c2", "Read", json!({"file_path": "x"}));
    it.asks("c3", "mcp__tools__lookup", json!({"a": 2}));
    it.reply_ends(false);
    assert_eq!(it.take().len(), 3, "each is asked about");
    it.hooks_say("c2", says(Some(false), None));
    it.hooks_say("c3", says(Some(false), Some(r#"{"a":3}"#)));
    assert_eq!(it.take(), [] as [&str; 0], "nothing begins by itself");
    it.hooks_say("c1", says(Some(true), Some(r#"{"a":5}"#)));
    assert_eq!(
        it.take(),
        [r#"checkpoint Assistant() 1+3; c1 lookup Step {"a":5}"#]
    );
    it.committed();
    it.asked("r1", "c1", "mcp__tools__lookup", json!({"a": 1}));
    assert_eq!(it.take(), ["standing c1"]);
    it.stands("c1", Standing::Open);
    assert!(
        it.segment.waits_for_people(),
        "what was let through does not run yet"
    );
    // The CLI has made the path absolute; what was judged is what runs.
    it.asked("r2", "c2", "Read", json!({"file_path": "/there/x"}));
    assert_eq!(
        it.take(),
        [r#"hook "allow" {"file_path":"x"}"#, "inline c2 Read"]
    );
    it.asked("r3", "c3", "Bash", json!({"a": 2}));
    it.asked("r4", "c3", "mcp__tools__lookup", json!({"a": 2}));
    it.asked("r5", "c3", "mcp__tools__lookup", json!({"a": 2}));
    let told = it.take();
    assert!(told[0].contains("already made"), "another tool: {told:?}");
    assert_eq!(told[1..3], [r#"hook "allow" {"a":3}"#, "inline c3 lookup"]);
    assert!(told[3].contains("already made"), "{told:?}");
    it.call_with("m1", "c3", "lookup", json!({"a": 2}));
    assert_eq!(it.take()[0], "serve tools/call Refuse");
}

/// G5: what was let through of a reply that the CLI gave up is denied, should it ask all the same.
#[test]
fn a_reply_that_is_given_up_takes_its_permissions_with_it() {
    let mut it = ruled(&["lookup"]);
    it.reply_starts();
    it.asks("c1", "mcp__tools__lookup", json!({"a": 1}));
    it.hooks_say("c1", says(Some(false), None));
    it.reply_ends(true);
    it.take();
    it.asked("r1", "c1", "mcp__tools__lookup", json!({"a": 1}));
    assert!(it.take()[0].starts_with(r#"hook "deny""#));
}

/// L13: a sub-agent cannot wait: what the rule asks about is denied there, what it lets through runs.
#[test]
fn a_sub_agent_does_what_the_rule_lets_through() {
    let mut it = ruled(&["Read"]);
    for (id, needs_person) in [("c1", true), ("c2", false)] {
        it.json(hook(
            "r",
            id,
            "Read",
            json!({"agent_id": "a1", "agent_type": "Explore"}),
        ));
        it.take();
        it.hooks_say(id, says(Some(needs_person), None));
        let told = it.take();
        if needs_person {
            assert!(
                told[0].contains("cannot be called by a sub-agent"),
                "{told:?}"
            );
        } else {
            assert_eq!(told, [r#"hook "allow""#, "inline c2 Read"]);
        }
    }
}

/// G3: a call that a record governs is not judged again.
#[test]
fn a_recorded_call_is_not_judged_again() {
    let mut it = ruled(&["create_refund"]);
    it.reply_starts();
    it.asks("c1", "mcp__tools__create_refund", refund());
    it.reply_ends(false);
    it.hooks_say("c1", says(Some(false), None));
    it.take();
    it.committed();
    it.asked("r1", "c1", "mcp__tools__create_refund", refund());
    assert_eq!(it.take(), ["standing c1"]);

    let mut plan = plan(SegmentStart::Resume {
        call: resumed_call(
            "Bash",
            r#"{"command":"ls"}"#,
            CallPlace::Segment,
            ResumedFate::Permitted,
        ),
    });
    plan.ruled = BTreeSet::from(["Bash".to_owned()]);
    let mut it = Stepper::new(plan);
    it.take();
    it.hook("r1", "toolu_1", "Bash");
    assert_eq!(it.take(), ["starting toolu_1"]);
}

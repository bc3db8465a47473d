//! The application's hooks: asked once, before anything is decided; what they leave is what runs.

use super::*;

fn hooked(start: SegmentStart) -> Stepper {
    let mut stepper = Stepper::new(SegmentPlan {
        asks_hooks: true,
        ..plan(start)
    });
    stepper.take();
    stepper
}

fn turn_with_hooks() -> Stepper {
    hooked(SegmentStart::Turn {
        prompt: vec!["go".to_owned()],
        uuid: None,
    })
}

fn rewritten(input: &str) -> HooksAnswer {
    HooksAnswer::Continue {
        updated_input: Some(RawValue::from_string(input.to_owned()).unwrap()),
        needs_person: None,
    }
}

fn unchanged() -> HooksAnswer {
    HooksAnswer::Continue {
        updated_input: None,
        needs_person: None,
    }
}

/// D06, G4: hooks are asked under the policy name, and the CLI is told only what they left.
#[test]
fn the_answer_is_held_until_the_hooks_have_answered() {
    for (tool, name, answer, expected) in [
        (
            "mcp__tools__lookup",
            "lookup",
            unchanged(),
            vec![r#"hook "allow""#, "inline toolu_1 lookup"],
        ),
        (
            "mcp__tools__lookup",
            "lookup",
            rewritten(r#"{"a":5}"#),
            vec![r#"hook "allow" {"a":5}"#, "inline toolu_1 lookup"],
        ),
        (
            "Read",
            "Read",
            rewritten(r#"{"file_path":"/x"}"#),
            vec![r#"hook "allow" {"file_path":"/x"}"#, "inline toolu_1 Read"],
        ),
        (
            "Bash",
            "Bash",
            rewritten(r#"{"command":"ls"}"#),
            vec![r#"hook "defer""#],
        ),
        ("Bash", "Bash", unchanged(), vec![r#"hook "defer""#]),
        (
            "StructuredOutput",
            "StructuredOutput",
            rewritten(r#"{"x":1}"#),
            vec![r#"hook "allow" {"x":1}"#],
        ),
        (
            "mcp__tools__gone",
            "gone",
            unchanged(),
            vec![r#"hook "deny" "mcp__tools__gone is not offered now""#],
        ),
        (
            "mcp__tools__lookup",
            "lookup",
            HooksAnswer::Deny {
                reason: "not on Sundays".to_owned(),
            },
            vec![r#"hook "deny" "not on Sundays""#],
        ),
        (
            "mcp__tools__lookup",
            "lookup",
            rewritten("[5]"),
            vec![
                r#"hook "deny" "mcp__tools__lookup did not run: a hook of the application gave it an input that is no object""#,
            ],
        ),
    ] {
        let mut stepper = turn_with_hooks();
        stepper.hook("r1", "toolu_1", tool);
        assert_eq!(
            stepper.take(),
            [format!(r#"ask hooks toolu_1 {name} {{"a":1}}"#)]
        );
        stepper.hooks_say("toolu_1", answer);
        assert_eq!(stepper.take(), expected, "{tool}");
        // A second answer is for nobody.
        stepper.hooks_say("toolu_1", unchanged());
        assert_eq!(stepper.take(), [] as [&str; 0], "{tool}");
    }
}

/// G4, L28: an inline call runs with the input that was decided about, or not at all.
#[test]
fn an_inline_call_runs_with_the_decided_input_only() {
    let mut stepper = turn_with_hooks();
    stepper.hook("r1", "toolu_1", "mcp__tools__lookup");
    stepper.hooks_say("toolu_1", rewritten(r#"{"a":5.0,"b":"x"}"#));
    stepper.take();
    for (arguments, permit) in [
        (json!({"a": 1}), "Refuse".to_owned()),
        (json!({"a": 5}), "Refuse".to_owned()),
        (json!({"a": 5, "b": "x", "c": null}), "Refuse".to_owned()),
        (
            json!({"b": "x", "a": 5}),
            r#"Run { tool_call_id: ToolCallId("toolu_1"), tool_name: "lookup", arguments: "{\"a\":5,\"b\":\"x\"}" }"#
                .to_owned(),
        ),
        (json!({"a": 5, "b": "x"}), "Refuse".to_owned()),
    ] {
        stepper.call_with("m", "toolu_1", "lookup", arguments);
        assert_eq!(
            stepper.take(),
            [format!("serve tools/call {permit}"), "mcp reply".to_owned()]
        );
    }
}

/// G4, I08, L29: the record of a gated call has the input that the hooks left; the CLI keeps the
/// model's, and one that deferred another fails the segment.
#[test]
fn a_gated_call_is_recorded_with_the_decided_input() {
    for (deferred, accepted) in [(json!({"a": 1}), true), (json!({"a": 5}), false)] {
        let mut stepper = turn_with_hooks();
        stepper.reply("m1", "one moment");
        stepper.hook("r1", "toolu_1", "mcp__tools__create_refund");
        stepper.hooks_say("toolu_1", rewritten(r#"{"a":5}"#));
        assert_eq!(
            stepper.take().last().map(String::as_str),
            Some(r#"hook "defer""#)
        );
        stepper.mirror_deferral("toolu_1");
        stepper.result(
            json!({"stop_reason": "tool_deferred", "terminal_reason": "tool_deferred",
            "deferred_tool_use": {"id": "toolu_1", "name": "mcp__tools__create_refund", "input": deferred}}),
        );
        if accepted {
            let RunModelOutcome::ToolCallsRequested { calls, .. } = stepper.finish().unwrap()
            else {
                panic!("the turn must wait for the call");
            };
            assert_eq!(calls[0].arguments, r#"{"a":5}"#);
        } else {
            assert_eq!(
                stepper.failure(),
                (
                    FailureClass::CliContract,
                    "the CLI deferred another input than the one that was decided about".to_owned()
                )
            );
        }
    }
}

/// Other frames go on while a hook takes its time, and each call has its own answer.
#[test]
fn hooks_hold_nothing_but_their_own_call() {
    let mut stepper = turn_with_hooks();
    stepper.hook("r1", "toolu_1", "mcp__tools__lookup");
    stepper.hook("r2", "toolu_2", "mcp__tools__lookup");
    stepper.take();
    stepper.hooks_say("toolu_2", unchanged());
    stepper.call("m", "toolu_2", "lookup");
    stepper.call("m", "toolu_1", "lookup");
    assert_eq!(
        stepper.take(),
        [
            r#"hook "allow""#,
            "inline toolu_2 lookup",
            r#"serve tools/call Run { tool_call_id: ToolCallId("toolu_2"), tool_name: "lookup", arguments: "{\"a\":1}" }"#,
            "mcp reply",
            "serve tools/call Refuse",
            "mcp reply",
        ]
    );
    stepper.hooks_say("toolu_1", unchanged());
    assert_eq!(stepper.take(), [r#"hook "allow""#, "inline toolu_1 lookup"]);
}

/// L13: hooks see the sub-agent, and their word does not let it write.
#[test]
fn hooks_see_calls_of_sub_agents() {
    let mut stepper = turn_with_hooks();
    let agent = json!({"agent_id": "a1", "agent_type": "Explore"});
    stepper.json(hook("r1", "toolu_1", "Bash", agent));
    stepper.hooks_say("toolu_1", rewritten(r#"{"command":"ls"}"#));
    assert_eq!(
        stepper.take(),
        [
            r#"ask hooks toolu_1 Bash in a1 Some("Explore") {"a":1}"#,
            r#"hook "deny" "Bash did not run: it cannot be called by a sub-agent. Call it from the main conversation.""#,
        ]
    );
}

/// L30, L26: nothing else is decided about a call while its hooks are asked, and a used id is not
/// even asked about.
#[test]
fn hooks_are_asked_once_for_an_id() {
    let mut stepper = turn_with_hooks();
    stepper.hook("r1", "toolu_1", "mcp__tools__lookup");
    stepper.hook("r2", "toolu_1", "mcp__tools__lookup");
    stepper.question("q1", "toolu_1", "mcp__tools__lookup");
    stepper.hooks_say("toolu_1", unchanged());
    stepper.hook("r3", "toolu_1", "Bash");
    assert_eq!(
        stepper.take(),
        [
            r#"ask hooks toolu_1 lookup {"a":1}"#,
            r#"hook "deny" "mcp__tools__lookup did not run: a decision about this call was already made""#,
            r#"question {"behavior":"deny","message":"mcp__tools__lookup did not run: it was not permitted"}"#,
            r#"hook "allow""#,
            "inline toolu_1 lookup",
            r#"hook "deny" "Bash did not run: a decision about this call was already made""#,
        ]
    );
}

/// D07, L19: a call with a record is answered from it, whatever a hook would say now.
#[test]
fn hooks_are_not_asked_about_a_resumed_call() {
    for (place, fate, tool, expected) in [
        (
            CallPlace::Step,
            ResumedFate::Final(ToolOutcome::OutcomeUnknown),
            "mcp__tools__create_refund",
            r#"hook "allow" {"a":5}"#,
        ),
        (
            CallPlace::Segment,
            ResumedFate::Permitted,
            "Bash",
            "starting toolu_1",
        ),
        (
            CallPlace::Segment,
            ResumedFate::Final(ToolOutcome::OutcomeUnknown),
            "Bash",
            r#"hook "ask""#,
        ),
    ] {
        let name = tool.rsplit("__").next().unwrap();
        let mut stepper = hooked(SegmentStart::Resume {
            call: resumed_call(name, r#"{"a":5}"#, place, fate),
        });
        stepper.hook("r1", "toolu_1", tool);
        assert_eq!(stepper.take(), [expected]);
        // A new call of the same segment is asked about.
        stepper.hook("r2", "toolu_2", "Bash");
        assert_eq!(stepper.take(), [r#"ask hooks toolu_2 Bash {"a":1}"#]);
    }
}

/// A question that the CLI dropped is not answered, and its call is denied from then on.
#[test]
fn a_dropped_question_cancels_its_hooks() {
    let mut stepper = turn_with_hooks();
    stepper.hook("r1", "toolu_1", "mcp__tools__lookup");
    stepper.take();
    stepper.json(json!({"type": "control_cancel_request", "request_id": "r1"}));
    stepper.hooks_say("toolu_1", unchanged());
    stepper.call("m", "toolu_1", "lookup");
    assert_eq!(
        stepper.take(),
        [
            "cancel hooks toolu_1",
            "serve tools/call Refuse",
            "mcp reply"
        ]
    );
}

/// G5: a call that ran before its hooks had answered fails the segment, which denies it then.
#[test]
fn a_call_that_did_not_wait_for_its_hooks_fails_the_segment() {
    let mut stepper = turn_with_hooks();
    stepper.hook("r1", "toolu_1", "Read");
    stepper.take();
    stepper.tool_result("toolu_1", "ran", false);
    stepper.hooks_say("toolu_1", unchanged());
    assert_eq!(
        stepper.take(),
        [
            r#"hook "deny" "the segment is over""#,
            "cancel hooks toolu_1"
        ]
    );
    assert_eq!(
        stepper.failure(),
        (
            FailureClass::UndecidedCall,
            "call toolu_1 has a result although it was not permitted".to_owned()
        )
    );
}

//! Ids that are used again, and records under other names (M38, M39): nothing of it runs.

use super::*;

fn replaying() -> Stepper {
    let mut stepper = resume(resumed_call(
        "create_refund",
        r#"{"amount":5}"#,
        CallPlace::Step,
        ResumedFate::Final(ToolOutcome::Succeeded {
            output: "done".to_owned(),
        }),
    ));
    stepper.hook("r1", "toolu_1", "mcp__tools__create_refund");
    stepper.call("m1", "toolu_1", "create_refund");
    stepper.tool_result("toolu_1", "done", false);
    stepper.take();
    stepper
}

/// M39, L22, L25: after its replay the id of a resumed call runs nothing in its segment, under
/// its own name or another, and hooks of the application are not asked.
#[test]
fn the_id_of_a_resumed_call_is_used_up_in_its_segment() {
    for tool in [
        "mcp__tools__create_refund",
        "mcp__tools__lookup",
        "Read",
        "Bash",
    ] {
        let mut stepper = replaying();
        stepper.hook("r2", "toolu_1", tool);
        stepper.question("q1", "toolu_1", tool);
        stepper.call("m2", "toolu_1", tool.rsplit("__").next().unwrap());
        let decided = format!("{tool} did not run: a decision about this call was already made");
        let asked = if tool == "mcp__tools__create_refund" {
            decided.clone()
        } else {
            format!("{tool} did not run: the record under this id is of another call")
        };
        assert_eq!(
            stepper.take(),
            [
                format!(r#"hook "deny" "{asked}""#),
                format!(r#"question {{"behavior":"deny","message":"{asked}"}}"#),
                "serve tools/call Refuse".to_owned(),
                "mcp reply".to_owned(),
            ],
            "{tool}"
        );
    }
}

/// M38, G5: a second result of an id, when the CLI ran something more under it, fails the segment.
#[test]
fn a_second_result_of_an_id_fails_the_segment() {
    let mut stepper = replaying();
    stepper.tool_result("toolu_1", "ran again", false);
    assert_eq!(
        stepper.failure(),
        (
            FailureClass::CliContract,
            "the CLI answered call toolu_1 by itself".to_owned()
        )
    );
    let mut stepper = turn();
    stepper.hook("r1", "toolu_1", "Read");
    stepper.tool_result("toolu_1", "text", false);
    stepper.tool_result("toolu_1", "ran again", false);
    assert_eq!(
        stepper.failure(),
        (
            FailureClass::CliContract,
            "call toolu_1 has a second result".to_owned()
        )
    );
}

/// L23, M39: the denied second use of an id has a result of its own, which is no gap.
#[test]
fn a_denied_second_use_of_an_id_is_no_gap() {
    let mut stepper = turn();
    stepper.hook("r1", "toolu_1", "Read");
    stepper.tool_result("toolu_1", "text", false);
    stepper.hook("r2", "toolu_1", "Read");
    stepper.tool_result("toolu_1", "PreToolUse:Read hook error: no", true);
    stepper.reply("m1", "hi");
    stepper.result(json!({}));
    assert!(stepper.finish().is_ok());
    let mut stepper = replaying();
    stepper.hook("r2", "toolu_1", "Bash");
    stepper.tool_result("toolu_1", "PreToolUse:Bash hook error: no", true);
    stepper.reply("m1", "hi");
    stepper.result(json!({}));
    assert!(stepper.finish().is_ok());
}

/// G5: results of sub-agents and results that only the transcript shows are held against the
/// decisions too.
#[test]
fn a_result_anywhere_is_held_against_the_decisions() {
    let result = json!({"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "toolu_9", "content": "ran"}]});
    let detail = "call toolu_9 has a result although nobody decided about it";
    let mut stepper = turn();
    stepper.json(json!({"type": "user", "message": result, "parent_tool_use_id": "toolu_1"}));
    assert_eq!(
        stepper.failure(),
        (FailureClass::UndecidedCall, detail.to_owned())
    );
    for path in ["/p/c1.jsonl", "/p/c1/subagents/agent-a.jsonl"] {
        let mut stepper = turn();
        stepper.reply("m1", "hi");
        stepper.json(json!({"type": "transcript_mirror", "filePath": path,
            "entries": [{"type": "user", "uuid": "u9", "message": result}]}));
        stepper.result(json!({}));
        assert_eq!(
            stepper.failure(),
            (FailureClass::UndecidedCall, detail.to_owned()),
            "{path}"
        );
    }
}

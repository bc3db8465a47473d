//! The gate: who runs, who waits, who is refused.

use super::*;

/// Seed 0 "Effects and policies", design.md 4: what runs inside the segment and what waits.
#[test]
fn effect_approval_and_place_decide_what_runs_at_once() {
    for (tool, answer) in [
        ("mcp__tools__lookup", r#"hook "allow""#),
        ("mcp__tools__set_label", r#"hook "defer""#),
        ("mcp__tools__create_refund", r#"hook "defer""#),
        ("mcp__tools__read_secret", r#"hook "defer""#),
        ("Read", r#"hook "allow""#),
        ("Write", r#"hook "allow""#),
        // Without approval, and still a start mark comes first.
        ("Deploy", r#"hook "defer""#),
        ("Bash", r#"hook "defer""#),
        ("mcp__other__tool", r#"hook "defer""#),
        ("StructuredOutput", r#"hook "allow""#),
        (
            "mcp__tools__gone",
            r#"hook "deny" "mcp__tools__gone is not offered now""#,
        ),
    ] {
        let mut stepper = turn();
        stepper.hook("r1", "toolu_1", tool);
        assert_eq!(
            stepper.take().first().map(String::as_str),
            Some(answer),
            "{tool}"
        );
    }
}

/// G5: a hook that cannot be understood is denied, never left without an answer.
#[test]
fn a_hook_in_doubt_is_denied() {
    let id = "toolu_1";
    let read = "mcp__tools__lookup";
    let outer_differs = {
        let mut it = hook("r", id, read, json!({}));
        it["request"]["tool_use_id"] = json!("toolu_2");
        it
    };
    let nameless = {
        let mut it = hook("r", id, read, json!({}));
        it["request"]["tool_use_id"] = Value::Null;
        it["request"]["input"]["tool_use_id"] = Value::Null;
        it
    };
    for it in [
        hook("r", id, read, json!({"hook_event_name": "PostToolUse"})),
        hook("r", id, read, json!({"tool_input": "text"})),
        hook("r", id, read, json!({"tool_input": null})),
        hook("r", id, read, json!({"tool_name": ""})),
        hook("r", "", read, json!({})),
        hook("r", "a\u{7}b", read, json!({})),
        outer_differs,
        nameless,
    ] {
        let mut stepper = turn();
        stepper.json(it.clone());
        let log = stepper.take();
        assert!(
            matches!(&log[..], [answer] if answer.starts_with(r#"hook "deny""#)),
            "{it} {log:?}"
        );
    }
}

/// L23, L30: one decision for each id, whatever it was.
#[test]
fn a_second_hook_for_an_id_is_denied() {
    for tool in [
        "mcp__tools__lookup",
        "mcp__tools__create_refund",
        "mcp__tools__gone",
        "Read",
    ] {
        let mut stepper = turn();
        stepper.hook("r1", "toolu_1", tool);
        stepper.take();
        stepper.hook("r2", "toolu_1", tool);
        assert_eq!(
            stepper.take(),
            [format!(
                r#"hook "deny" "{tool} did not run: a decision about this call was already made""#
            )]
        );
    }
}

/// L20, I23: the tool server runs a call once, under the permitted id and name only.
#[test]
fn the_tool_server_runs_only_what_was_permitted_and_once() {
    let mut stepper = turn();
    stepper.hook("r1", "toolu_1", "mcp__tools__lookup");
    stepper.hook("r2", "toolu_2", "mcp__tools__create_refund");
    stepper.take();
    for (id, name, permit) in [
        ("toolu_9", "lookup", "Refuse"),
        ("toolu_1", "create_refund", "Refuse"),
        ("toolu_2", "create_refund", "Refuse"),
        (
            "toolu_1",
            "lookup",
            r#"Run { tool_call_id: ToolCallId("toolu_1"), tool_name: "lookup", arguments: "{\"a\":1}" }"#,
        ),
        ("toolu_1", "lookup", "Refuse"),
    ] {
        stepper.call("m", id, name);
        assert_eq!(
            stepper.take(),
            [format!("serve tools/call {permit}"), "mcp reply".to_owned()]
        );
    }
}

/// L26, L27: a permission question is never allowed for a call of this segment.
#[test]
fn a_permission_question_for_a_new_call_is_refused() {
    let mut stepper = turn();
    stepper.hook("r1", "toolu_1", "mcp__tools__lookup");
    stepper.take();
    stepper.question("q1", "toolu_1", "mcp__tools__lookup");
    stepper.question("q2", "toolu_2", "Bash");
    stepper.hook("r2", "toolu_2", "Bash");
    assert_eq!(
        stepper.take(),
        [
            r#"question {"behavior":"deny","message":"mcp__tools__lookup did not run: it was not permitted"}"#,
            r#"question {"behavior":"deny","message":"Bash did not run: it was not permitted"}"#,
            r#"hook "deny" "Bash did not run: a decision about this call was already made""#,
        ]
    );
}

/// L13: a gated call of a sub-agent is sent to the main conversation; a read of one runs.
#[test]
fn a_sub_agent_reads_and_does_not_write() {
    let mut stepper = turn();
    let agent = json!({"agent_id": "a1"});
    stepper.json(hook("r1", "toolu_1", "mcp__tools__lookup", agent.clone()));
    stepper.json(hook("r2", "toolu_2", "Bash", agent));
    stepper.hook("r3", "toolu_3", "mcp__tools__create_refund");
    assert_eq!(
        stepper.take(),
        [
            r#"hook "allow""#,
            "inline toolu_1 lookup",
            r#"hook "deny" "Bash did not run: it cannot be called by a sub-agent. Call it from the main conversation.""#,
            r#"hook "defer""#,
        ]
    );
}

/// G5: a result without a decision, and a result of a refused call, fail the segment at once.
#[test]
fn a_call_that_ran_without_a_decision_fails_the_segment() {
    let mut stepper = turn();
    stepper.tool_result("toolu_1", "ran", false);
    assert_eq!(
        stepper.failure(),
        (
            FailureClass::UndecidedCall,
            "call toolu_1 has a result although nobody decided about it".to_owned()
        )
    );
    let mut stepper = turn();
    stepper.hook("r1", "toolu_1", "mcp__tools__create_refund");
    stepper.tool_result("toolu_1", "ran", false);
    assert_eq!(
        stepper.failure(),
        (
            FailureClass::UndecidedCall,
            "call toolu_1 has a result although it was not permitted".to_owned()
        )
    );
}

/// Every request is answered: unknown ones, those for another server, and those after the end.
#[test]
fn every_request_of_the_cli_is_answered() {
    let mut stepper = turn();
    stepper.json(json!({"type": "control_request", "request_id": "u", "request": {"subtype": "new_thing", "x": 1}}));
    stepper.json(
        json!({"type": "control_request", "request_id": "v", "request": {
        "subtype": "mcp_message", "server_name": "other", "message": {"method": "ping", "id": 1}}}),
    );
    assert_eq!(
        stepper.take(),
        [
            r#"error "u" "the host does not support new_thing requests""#,
            r#"error "v" "there is no such tool server""#,
        ]
    );
    stepper.reply("m1", "hi");
    stepper.result(json!({}));
    stepper.take();
    stepper.hook("r", "toolu_1", "mcp__tools__lookup");
    stepper.question("q", "toolu_1", "mcp__tools__lookup");
    stepper.call("m", "toolu_1", "lookup");
    assert_eq!(
        stepper.take(),
        [
            r#"hook "deny" "the segment is over""#,
            r#"question {"behavior":"deny","message":"the segment is over"}"#,
            r#"error "m" "the segment is over""#,
        ]
    );
}

/// A dropped request is dropped here too: its late reply does not go out.
#[test]
fn a_cancelled_request_gets_no_reply() {
    let mut segment = Segment::new(plan(SegmentStart::Turn {
        prompt: vec!["go".to_owned()],
        uuid: None,
    }))
    .unwrap();
    while segment.poll_transmit().is_some() {}
    for line in [
        json!({"type": "control_request", "request_id": "m", "request": {
            "subtype": "mcp_message", "server_name": "tools", "message": {"method": "ping", "id": 1}}}),
        json!({"type": "control_cancel_request", "request_id": "m"}),
    ] {
        segment.handle_frame(decode_line(line.to_string().as_bytes()).unwrap());
    }
    assert!(matches!(
        segment.poll_action(),
        Some(Action::ServeMcp { .. })
    ));
    assert!(matches!(
        segment.poll_action(),
        Some(Action::CancelMcp { .. })
    ));
    segment.handle_mcp_response(
        "m".to_owned(),
        RawValue::from_string("{}".to_owned()).unwrap(),
    );
    assert!(segment.poll_transmit().is_none());
}

/// I26: a call that was allowed and never answered still ends once.
#[test]
fn an_inline_call_without_a_result_ends_with_the_segment() {
    let mut stepper = turn();
    stepper.hook("r1", "toolu_1", "Read");
    stepper.reply("m1", "hi");
    stepper.take();
    stepper.result(json!({}));
    assert_eq!(stepper.take(), ["inline end toolu_1 Failed", "close input"]);
}

/// L25: the id of a call that has its result in the transcript is used up.
#[test]
fn an_id_of_the_transcript_is_never_used_again() {
    let mut plan = plan(SegmentStart::Turn {
        prompt: vec!["go".to_owned()],
        uuid: None,
    });
    plan.answered.insert(ToolCallId::new("toolu_1").unwrap());
    let mut stepper = Stepper::new(plan);
    stepper.take();
    stepper.hook("r1", "toolu_1", "mcp__tools__lookup");
    assert_eq!(
        stepper.take(),
        [r#"hook "deny" "mcp__tools__lookup did not run: an earlier call had the same id""#]
    );
}

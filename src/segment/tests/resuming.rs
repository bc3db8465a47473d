//! A resumed call: answered from its record, once, as its own tool.

use super::*;

const ARGUMENTS: &str = r#"{"amount":5}"#;

fn final_step(outcome: ToolOutcome) -> Stepper {
    resume(resumed_call(
        "create_refund",
        ARGUMENTS,
        CallPlace::Step,
        ResumedFate::Final(outcome),
    ))
}

fn segment_call(fate: ResumedFate) -> Stepper {
    resume(resumed_call("Bash", ARGUMENTS, CallPlace::Segment, fate))
}

fn refund(output: &str) -> ToolOutcome {
    ToolOutcome::Succeeded {
        output: output.to_owned(),
    }
}

/// I13, L22 to L24: each kind of record reaches the model as its text, once, with the recorded
/// arguments and under its own name.
#[test]
fn each_final_record_of_a_custom_call_is_replayed_once() {
    for (outcome, text, is_error) in [
        (refund("done"), "done", false),
        (
            ToolOutcome::Failed {
                error: "no".to_owned(),
            },
            "no",
            true,
        ),
        (
            ToolOutcome::Rejected {
                message: Some("why".to_owned()),
            },
            "The user rejected this call: why",
            true,
        ),
        (
            ToolOutcome::OutcomeUnknown,
            crate::record::OUTCOME_UNKNOWN_TEXT,
            true,
        ),
    ] {
        let mut stepper = final_step(outcome);
        stepper.hook("r1", "toolu_1", "mcp__tools__create_refund");
        stepper.call("m1", "toolu_1", "lookup");
        stepper.call("m2", "toolu_1", "create_refund");
        stepper.call("m3", "toolu_1", "create_refund");
        stepper.hook("r2", "toolu_1", "mcp__tools__create_refund");
        let replay = format!("serve tools/call Replay {{ text: {text:?}, is_error: {is_error} }}");
        assert_eq!(
            stepper.take(),
            [
                r#"hook "allow" {"amount":5}"#,
                "serve tools/call Refuse",
                "mcp reply",
                &replay,
                "mcp reply",
                "serve tools/call Refuse",
                "mcp reply",
                r#"hook "deny" "mcp__tools__create_refund did not run: a decision about this call was already made""#,
            ]
        );
    }
}

/// L22: a record never answers for another tool, not even one of the same policy name, and the
/// segment does not end well then.
#[test]
fn another_tool_under_a_recorded_id_is_denied() {
    for tool in ["create_refund", "Bash", "mcp__other__create_refund"] {
        let mut stepper = final_step(refund("done"));
        stepper.hook("r1", "toolu_1", tool);
        assert_eq!(
            stepper.take(),
            [format!(
                r#"hook "deny" "{tool} did not run: the record under this id is of another call""#
            )]
        );
        stepper.question("q1", "toolu_1", tool);
        assert_eq!(
            stepper.take(),
            [format!(
                r#"question {{"behavior":"deny","message":"{tool} did not run: the record under this id is of another call"}}"#
            )]
        );
        stepper.reply("m1", "hi");
        stepper.result(json!({}));
        assert_eq!(
            stepper.failure(),
            (
                FailureClass::CliContract,
                "a recorded call got no result".to_owned()
            )
        );
    }
}

/// L27: without its hook the question is answered from the record, once, with the recorded input.
#[test]
fn a_question_whose_hook_was_skipped_is_answered_from_the_record_once() {
    let mut stepper = final_step(refund("done"));
    stepper.question("q1", "toolu_1", "mcp__tools__create_refund");
    stepper.question("q2", "toolu_1", "mcp__tools__create_refund");
    stepper.hook("r1", "toolu_1", "mcp__tools__create_refund");
    stepper.call("m1", "toolu_1", "create_refund");
    let decided =
        "mcp__tools__create_refund did not run: a decision about this call was already made";
    assert_eq!(
        stepper.take(),
        [
            r#"question {"behavior":"allow","updatedInput":{"amount":5}}"#,
            &format!(r#"question {{"behavior":"deny","message":"{decided}"}}"#),
            &format!(r#"hook "deny" "{decided}""#),
            r#"serve tools/call Replay { text: "done", is_error: false }"#,
            "mcp reply",
        ]
    );
    let mut stepper = segment_call(ResumedFate::Permitted);
    stepper.question("q1", "toolu_1", "Bash");
    assert_eq!(stepper.take(), ["starting toolu_1"]);
    stepper.granted("toolu_1");
    assert_eq!(
        stepper.take(),
        [r#"question {"behavior":"allow","updatedInput":{"amount":5}}"#]
    );
    let mut stepper = segment_call(ResumedFate::Final(ToolOutcome::OutcomeUnknown));
    stepper.question("q1", "toolu_1", "Bash");
    assert_eq!(
        stepper.take(),
        [format!(
            r#"question {}"#,
            json!({"behavior": "deny", "message": crate::record::OUTCOME_UNKNOWN_TEXT})
        )]
    );
}

/// G1: nothing is allowed before the grant, and a repeated grant allows nothing more.
#[test]
fn a_tool_of_the_cli_is_allowed_once_after_the_grant() {
    let mut stepper = segment_call(ResumedFate::Permitted);
    stepper.hook("r1", "toolu_1", "Bash");
    assert_eq!(stepper.take(), ["starting toolu_1"]);
    stepper.granted("toolu_9");
    assert_eq!(stepper.take(), [] as [&str; 0]);
    stepper.granted("toolu_1");
    stepper.granted("toolu_1");
    assert_eq!(stepper.take(), [r#"hook "allow" {"amount":5}"#]);
    stepper.tool_result("toolu_1", "Exit code 1", true);
    assert_eq!(
        stepper.take(),
        [r#"finished toolu_1 Failed { error: "Exit code 1" }"#]
    );
}

/// G1, G3: a start that the session refuses is answered by the record.
#[test]
fn a_refused_start_tells_the_model_the_record() {
    let mut stepper = segment_call(ResumedFate::Permitted);
    stepper.hook("r1", "toolu_1", "Bash");
    stepper.take();
    stepper.already_final("toolu_1", ToolOutcome::OutcomeUnknown);
    stepper.question("q1", "toolu_1", "Bash");
    assert_eq!(
        stepper.take(),
        [
            r#"hook "ask""#.to_owned(),
            format!(
                r#"question {}"#,
                json!({"behavior": "deny", "message": crate::record::OUTCOME_UNKNOWN_TEXT})
            )
        ]
    );
}

/// G3: a success that was recorded before a crash is told, and nothing runs again.
#[test]
fn a_recorded_success_of_a_cli_tool_is_told_and_not_repeated() {
    let mut stepper = segment_call(ResumedFate::Final(refund("42")));
    stepper.hook("r1", "toolu_1", "Bash");
    stepper.question("q1", "toolu_1", "Bash");
    stepper.tool_result("toolu_1", "told", true);
    assert_eq!(
        stepper.take(),
        [
            r#"hook "ask""#,
            r#"question {"behavior":"deny","message":"This call already ran, and its result was recorded. It was not run again, and it must not be repeated. The recorded result: 42"}"#,
        ]
    );
}

/// G3: a rule of the CLI would refuse the call before it asks again, and the model would read of the
/// rule, so the hook itself tells the record.
#[test]
fn a_record_is_told_by_the_hook_where_rules_may_refuse_the_call() {
    let call = resumed_call(
        "Bash",
        r#"{"a":1}"#,
        CallPlace::Segment,
        ResumedFate::Final(ToolOutcome::Rejected {
            message: Some("no".to_owned()),
        }),
    );
    let mut stepper = Stepper::new(SegmentPlan {
        has_refusing_rules: true,
        ..plan(SegmentStart::Resume { call })
    });
    stepper.take();
    stepper.hook("r1", "toolu_1", "Bash");
    assert_eq!(
        stepper.take(),
        [r#"hook "deny" "The user rejected this call: no""#]
    );
    stepper.tool_result(
        "toolu_1",
        "hook error: The user rejected this call: no",
        true,
    );
    assert_eq!(stepper.take(), [] as [&str; 0]);
}

/// G1: a question that the CLI dropped is never allowed; its mark ends as "did not run".
#[test]
fn a_start_that_comes_too_late_is_reported_as_not_run() {
    let not_run = r#"finished toolu_1 Failed { error: "the tool did not run, so it is safe to call again: the CLI gave the call up before it started" }"#;
    let mut stepper = segment_call(ResumedFate::Permitted);
    stepper.hook("r1", "toolu_1", "Bash");
    stepper.json(json!({"type": "control_cancel_request", "request_id": "r1"}));
    stepper.take();
    stepper.granted("toolu_1");
    assert_eq!(stepper.take(), [not_run]);

    let mut stepper = segment_call(ResumedFate::Permitted);
    stepper.hook("r1", "toolu_1", "Bash");
    stepper.result(json!({"is_error": true}));
    stepper.take();
    stepper.granted("toolu_1");
    assert_eq!(stepper.take(), [not_run]);
}

/// G3, G5: a resumed call that the CLI answers by itself, or leaves out, fails the segment.
#[test]
fn a_resumed_call_must_be_answered_from_its_record() {
    let mut stepper = final_step(refund("done"));
    stepper.tool_result("toolu_1", "something else", false);
    assert_eq!(
        stepper.failure(),
        (
            FailureClass::CliContract,
            "the CLI answered call toolu_1 by itself".to_owned()
        )
    );
    let mut stepper = final_step(refund("done"));
    stepper.reply("m1", "hi");
    stepper.result(json!({}));
    assert_eq!(
        stepper.failure(),
        (
            FailureClass::CliContract,
            "a recorded call got no result".to_owned()
        )
    );
}

/// A chain of segments: after the resumed call another write is deferred.
#[test]
fn a_resumed_segment_may_defer_again() {
    let mut stepper = final_step(refund("done"));
    stepper.hook("r1", "toolu_1", "mcp__tools__create_refund");
    stepper.call("m1", "toolu_1", "create_refund");
    stepper.tool_result("toolu_1", "done", false);
    stepper.reply("m1", "and another");
    stepper.hook("r2", "toolu_2", "Bash");
    stepper.mirror_deferral("toolu_2");
    stepper.result(
        json!({"stop_reason": "tool_deferred", "terminal_reason": "tool_deferred",
        "deferred_tool_use": {"id": "toolu_2", "name": "Bash", "input": {"a": 1}}}),
    );
    let RunModelOutcome::ToolCallsRequested {
        calls, messages, ..
    } = stepper.finish().unwrap()
    else {
        panic!("the turn must wait for the call");
    };
    assert_eq!(calls[0].tool_name, "Bash");
    assert_eq!(calls[0].place, CallPlace::Segment);
    assert_eq!(
        messages.iter().map(|it| outline(it).0).collect::<Vec<_>>(),
        ["Tool toolu_1: done", "Assistant: and another"]
    );
}

/// G4: another process runs what the person wrote, and tells the model so; what is over is told by its
/// record alone.
#[test]
fn a_resumed_tool_of_the_cli_runs_with_what_a_person_wrote() {
    let call = |fate| {
        let call = resumed_call("Bash", ARGUMENTS, CallPlace::Segment, fate);
        call.with_arguments_changed()
    };
    let mut stepper = resume(call(ResumedFate::Permitted));
    stepper.hook("r1", "toolu_1", "Bash");
    stepper.granted("toolu_1");
    let note = r#"[A person changed the input of this call. It ran with: {"amount":5}]"#;
    let told = format!(r#"hook "allow" {{"amount":5}} {}"#, json!(note));
    assert_eq!(stepper.take(), ["starting toolu_1", &told]);
    let mut stepper = resume(call(ResumedFate::Final(ToolOutcome::OutcomeUnknown)));
    stepper.hook("r1", "toolu_1", "Bash");
    assert_eq!(stepper.take(), [r#"hook "ask""#]);
}

/// The record of a long result is bounded and says that it was cut.
#[test]
fn a_long_result_is_recorded_up_to_a_limit() {
    let mut stepper = segment_call(ResumedFate::Permitted);
    stepper.hook("r1", "toolu_1", "Bash");
    stepper.granted("toolu_1");
    stepper.take();
    stepper.tool_result("toolu_1", &"ä".repeat(200_000), false);
    let log = stepper.take();
    let expected = format!(
        "finished toolu_1 Succeeded {{ output: {:?} }}",
        format!(
            "{}\n[the rest was cut]",
            "ä".repeat((recorded::RECORDED_RESULT_BYTES_MAX - 19) / 2)
        )
    );
    assert!(log == [expected], "{} bytes", log[0].len());
}

/// A plan that contradicts itself is refused before a process starts.
#[test]
fn a_plan_that_contradicts_itself_is_refused() {
    for call in [
        resumed_call(
            "create_refund",
            ARGUMENTS,
            CallPlace::Step,
            ResumedFate::Permitted,
        ),
        resumed_call(
            "Bash",
            "no json",
            CallPlace::Segment,
            ResumedFate::Permitted,
        ),
    ] {
        let failure = Segment::new(plan(SegmentStart::Resume { call })).unwrap_err();
        assert_eq!(failure.class, FailureClass::Runner);
    }
    let failure = Segment::new(plan(SegmentStart::Turn {
        prompt: Vec::new(),
        uuid: None,
    }))
    .unwrap_err();
    assert_eq!(failure.class, FailureClass::Runner);
}

fn entry(text: &str) -> TranscriptEntry {
    TranscriptEntry::from_text(text.to_owned()).unwrap()
}

/// Spec/cli-protocol.md 0.6: a transcript ends in the deferral that is resumed, or in none.
#[test]
fn an_abandoned_deferral_is_left_out_of_a_resume() {
    let deferral = |id: &str| {
        entry(&format!(
            r#"{{"type":"attachment","attachment":{{"type":"hook_deferred_tool","toolUseID":"{id}"}}}}"#
        ))
    };
    let answer = |id: &str| {
        entry(&format!(
            r#"{{"type":"user","message":{{"content":[{{"type":"tool_result","tool_use_id":"{id}","content":"x"}}]}}}}"#
        ))
    };
    let said =
        entry(r#"{"type":"assistant","message":{"content":"tool_result hook_deferred_tool"}}"#);
    let done = vec![deferral("a"), answer("a"), said.clone()];
    let resumable = materialise(done.clone(), None).unwrap();
    assert_eq!(resumable.entries, done);
    assert_eq!(
        resumable.answered,
        BTreeSet::from([ToolCallId::new("a").unwrap()])
    );

    let pending = vec![deferral("a"), answer("a"), said, deferral("b")];
    let b = ToolCallId::new("b").unwrap();
    assert_eq!(
        materialise(pending.clone(), Some(&b)).unwrap().entries,
        pending
    );
    assert_eq!(materialise(pending.clone(), None).unwrap().entries, done);

    let a = ToolCallId::new("a").unwrap();
    for entries in [pending, done] {
        let failure = materialise(entries, Some(&a)).unwrap_err();
        assert_eq!(failure.class, FailureClass::Runner);
    }
}

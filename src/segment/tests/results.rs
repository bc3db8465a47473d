//! Results: what a segment may end with.

use super::*;

fn contract_failure(stepper: Stepper, detail: &str) {
    assert_eq!(
        stepper.failure(),
        (FailureClass::CliContract, detail.to_owned())
    );
}

fn deferred(extra: Value) -> Stepper {
    let mut stepper = turn();
    stepper.reply("m1", "one moment");
    stepper.hook("r1", "toolu_1", "mcp__tools__create_refund");
    stepper.mirror_deferral("toolu_1");
    stepper.result(extra);
    stepper
}

fn deferral(id: &str, name: &str) -> Value {
    json!({"stop_reason": "tool_deferred", "terminal_reason": "tool_deferred",
        "deferred_tool_use": {"id": id, "name": name, "input": {"a": 1}}})
}

/// G4, L21, L29: a deferral counts when it is the very one that the hook made.
#[test]
fn a_deferral_must_be_the_one_that_the_hook_made() {
    let refund = "mcp__tools__create_refund";
    let outcome = deferred(deferral("toolu_1", refund)).finish().unwrap();
    let RunModelOutcome::ToolCallsRequested { calls, .. } = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!(calls[0].arguments, r#"{"a":1}"#);

    let other = "the CLI deferred another call than the hook did";
    contract_failure(deferred(deferral("toolu_2", refund)), other);
    contract_failure(deferred(deferral("toolu_1", "mcp__tools__lookup")), other);

    let mut input = deferral("toolu_1", refund);
    input["deferred_tool_use"]["input"] = json!({"a": 2});
    contract_failure(
        deferred(input),
        "the CLI deferred another input than the one that was decided about",
    );

    let mut race = deferral("toolu_1", refund);
    race["terminal_reason"] = json!("completed");
    contract_failure(deferred(race), "the CLI went on after a deferral");

    let ignored = "the CLI ignored a deferral";
    contract_failure(deferred(json!({})), ignored);
    contract_failure(deferred(json!({"stop_reason": "tool_deferred"})), ignored);

    let mut stepper = turn();
    stepper.reply("m1", "hi");
    stepper.result(deferral("toolu_1", refund));
    contract_failure(stepper, "the CLI deferred a call that the hook did not");
}

/// A deferral without a terminal reason is one too (spec/cli-protocol.md 6).
#[test]
fn a_deferral_needs_no_terminal_reason() {
    let mut result = deferral("toolu_1", "mcp__tools__create_refund");
    result["terminal_reason"] = Value::Null;
    assert!(deferred(result).finish().is_ok());
}

/// R54: a segment whose transcript is not complete is not kept.
#[test]
fn a_segment_without_its_mirror_fails() {
    let mut stepper = turn();
    stepper.result(json!({}));
    contract_failure(stepper, "the CLI mirrored no reply of the model");

    let mut stepper = turn();
    stepper.reply("m1", "hi");
    stepper.json(
        json!({"type": "assistant", "uuid": "lost", "parent_tool_use_id": null,
        "message": {"id": "m2", "model": "m", "content": []}}),
    );
    stepper.result(json!({}));
    contract_failure(
        stepper,
        "the transcript mirror lacks 1 entries of the segment",
    );

    let mut stepper = turn();
    stepper.reply("m1", "one moment");
    stepper.hook("r1", "toolu_1", "mcp__tools__create_refund");
    stepper.result(deferral("toolu_1", "mcp__tools__create_refund"));
    contract_failure(stepper, "the CLI did not mirror the deferral");
}

/// The first end stays, whatever comes after it.
#[test]
fn a_second_result_changes_nothing() {
    let mut stepper = turn();
    stepper.reply("m1", "hi");
    stepper.result(json!({}));
    stepper.result(json!({"is_error": true}));
    assert!(stepper.finish().is_ok());
}

/// G5: a known frame that cannot be read ends the segment; its words are not in the error (G10).
#[test]
fn a_frame_that_cannot_be_read_ends_the_segment() {
    let mut stepper = turn();
    stepper.line(r#"{"type":"result","subtype":"success","is_error":"sk-secret"}"#);
    contract_failure(
        stepper,
        "a result frame of 60 bytes cannot be read: it does not fit at byte 59",
    );
}

/// G5, G10: a question that cannot be read, so that no answer can name it, ends the segment at once;
/// the CLI would wait for ever.
#[test]
fn a_question_that_cannot_be_read_ends_the_segment() {
    let mut stepper = turn();
    stepper.line(r#"{"type":"control_request","request_id":"r1","request":{"sk-secret"#);
    contract_failure(
        stepper,
        "a control_request frame of 65 bytes cannot be read: it does not fit at byte 65",
    );
}

/// Frames of other types, and lines that are no JSON, are passed over.
#[test]
fn unknown_frames_are_passed_over() {
    let mut stepper = turn();
    for line in [
        "[DEBUG] not json",
        "",
        "42",
        r#"{"type":"keep_alive"}"#,
        r#"{"no":"type"}"#,
        r#"{"type":"system","subtype":"brand_new","x":{}}"#,
    ] {
        stepper.line(line);
    }
    assert_eq!(stepper.take(), [] as [&str; 0]);
    stepper.reply("m1", "hi");
    stepper.result(json!({}));
    assert!(stepper.finish().is_ok());
}

/// A process that ends without a result: by what it said on stderr.
#[test]
fn a_process_that_ends_early_has_a_class() {
    for (stderr_tail, class) in [
        ("", FailureClass::CliFailed),
        ("Killed", FailureClass::CliFailed),
        (
            "error: unknown option '--session-mirror'",
            FailureClass::CliTooOld,
        ),
        (
            "No conversation found with session ID: x",
            FailureClass::CliContract,
        ),
    ] {
        let mut stepper = turn();
        stepper.segment.handle_end_of_output(ProcessEnd {
            exit: "exit status 1",
            stderr_tail,
        });
        assert_eq!(stepper.failure().0, class);
    }
}

/// Refused credentials end the segment at the first retry; other errors are retried by the CLI.
#[test]
fn refused_credentials_end_the_segment_at_once() {
    for (status, ended) in [(401, true), (403, true), (429, false), (529, false)] {
        let mut stepper = turn();
        stepper.json(json!({"type": "system", "subtype": "api_retry", "error_status": status}));
        assert_eq!(stepper.segment.is_ended(), ended);
    }
    let mut stepper = turn();
    stepper.json(json!({"type": "system", "subtype": "api_retry", "error_status": null}));
    assert!(!stepper.segment.is_ended());
}

/// "Not logged in" is an authentication failure, without a status.
#[test]
fn a_cli_that_is_not_logged_in_is_an_authentication_failure() {
    let mut stepper = turn();
    stepper.result(json!({"is_error": true, "result": "Not logged in · Please run /login"}));
    assert_eq!(stepper.failure().0, FailureClass::Authentication);
}

/// R51, I19, I21: repeated entries count once; blocks of one reply are one message; the CLI's own
/// texts ride along.
#[test]
fn entries_become_messages_in_their_order() {
    let mut stepper = turn();
    stepper.mirror(json!({"type": "user", "uuid": "u1", "message": {"content": "go"}}));
    stepper.mirror(json!({"type": "user", "uuid": "u1", "message": {"content": "go"}}));
    stepper.mirror(json!({"type": "assistant", "uuid": "s1",
        "message": {"id": "s", "model": "<synthetic>", "content": [{"type": "text", "text": "No response requested."}]}}));
    for (uuid, block) in [
        ("a1", json!({"type": "thinking", "thinking": "hm"})),
        ("a2", json!({"type": "text", "text": "one"})),
        ("a3", json!({"type": "text", "text": "two"})),
    ] {
        stepper.mirror(json!({"type": "assistant", "uuid": uuid,
            "message": {"id": "m1", "model": "m", "content": [block]}}));
    }
    stepper.mirror(json!({"type": "cost-state"}));
    stepper.mirror(json!({"type": "mode"}));
    stepper.result(json!({}));
    let outcome = stepper.finish().unwrap();
    let RunModelOutcome::TurnCompleted { messages, usage } = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!(usage.model_calls, 1);
    let outlines: Vec<(String, Vec<String>)> = messages.iter().map(outline).collect();
    let kinds = [
        "user",
        "assistant",
        "assistant",
        "assistant",
        "assistant",
        "mode",
    ];
    assert_eq!(
        outlines,
        [(
            "Assistant: one\ntwo".to_owned(),
            kinds.map(str::to_owned).to_vec()
        )]
    );
}

/// Half of a surrogate pair in a text or an entry does not stop a segment, and stays as it is in
/// the transcript (G11).
#[test]
fn half_a_surrogate_pair_is_survived() {
    let mut stepper = turn();
    stepper.hook("r1", "toolu_1", "Read");
    let result = r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_1","content":"cut \ud83d"}]}"#;
    stepper.line(&format!(
        r#"{{"type":"user","uuid":"x","parent_tool_use_id":null,"message":{result}}}"#
    ));
    let entry = format!(r#"{{"type":"user","uuid":"x","message":{result}}}"#);
    stepper.line(&format!(
        r#"{{"type":"transcript_mirror","filePath":"/p/c1.jsonl","entries":[{entry}]}}"#
    ));
    stepper.reply("m1", "hi");
    stepper.result(json!({}));
    let outcome = stepper.finish().unwrap();
    let RunModelOutcome::TurnCompleted { messages, .. } = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!(messages[0].text, "cut \u{fffd}\u{fffd}\u{fffd}");
    assert_eq!(entries(&messages[0].item)[0].as_str(), entry);
}

mod odd;

use serde_json::value::RawValue;

use super::*;

fn raw(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned()).unwrap()
}

/// G4, G11: an input passes through our answers byte for byte.
#[test]
fn answers_carry_inputs_verbatim() {
    let input = r#"{"b": 1e2,"a":"\u00e4\/"}"#;
    let frame = HostFrame::Hook {
        request_id: "r\"1".to_owned(),
        answer: HookAnswer::Allow {
            updated_input: Some(raw(input)),
            additional_context: Some("a \"note\"".to_owned()),
        },
    };
    assert_eq!(
        frame.encode().unwrap(),
        format!(
            r#"{{"type":"control_response","response":{{"subtype":"success","request_id":"r\"1","response":{{"hookSpecificOutput":{{"hookEventName":"PreToolUse","permissionDecision":"allow","updatedInput":{input},"additionalContext":"a \"note\""}}}}}}}}"#
        )
    );
    let frame = HostFrame::Permission {
        request_id: "q".to_owned(),
        answer: PermissionAnswer::Allow {
            updated_input: raw(input),
        },
    };
    assert_eq!(
        frame.encode().unwrap(),
        format!(
            r#"{{"type":"control_response","response":{{"subtype":"success","request_id":"q","response":{{"behavior":"allow","updatedInput":{input}}}}}}}"#
        )
    );
}

/// Spec/cli-protocol.md 0.4: every decision names its event, or the CLI would ignore it.
#[test]
fn every_decision_names_its_event() {
    for (answer, body) in [
        (
            HookAnswer::Allow {
                updated_input: None,
                additional_context: None,
            },
            r#"{"hookEventName":"PreToolUse","permissionDecision":"allow"}"#,
        ),
        (
            HookAnswer::Deny {
                reason: "a \"b\"\n".to_owned(),
            },
            r#"{"hookEventName":"PreToolUse","permissionDecision":"deny","permissionDecisionReason":"a \"b\"\n"}"#,
        ),
        (
            HookAnswer::Ask,
            r#"{"hookEventName":"PreToolUse","permissionDecision":"ask"}"#,
        ),
        (
            HookAnswer::Defer,
            r#"{"hookEventName":"PreToolUse","permissionDecision":"defer"}"#,
        ),
    ] {
        let line = HostFrame::Hook {
            request_id: "r".to_owned(),
            answer,
        }
        .encode()
        .unwrap();
        assert_eq!(
            line,
            format!(
                r#"{{"type":"control_response","response":{{"subtype":"success","request_id":"r","response":{{"hookSpecificOutput":{body}}}}}}}"#
            )
        );
    }
}

/// The first lines of a process, as the CLI reads them (spec/cli-protocol.md 3 and 4).
#[test]
fn the_first_lines_are_what_the_cli_reads() {
    let initialize = HostFrame::Initialize {
        request_id: "i".to_owned(),
        pre_tool_use_callback: "hook".to_owned(),
        post_tool_batch_callback: Some("batch".to_owned()),
        hook_timeout_seconds: 60,
        servers: vec![ToolServerDeclaration {
            name: "tools".to_owned(),
        }],
        setup: AgentSetup {
            system_prompt: Some("be kind".to_owned()),
            ..AgentSetup::default()
        },
    };
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&initialize.encode().unwrap()).unwrap(),
        serde_json::json!({"type": "control_request", "request_id": "i", "request": {
            "subtype": "initialize",
            "hooks": {"PreToolUse": [{"hookCallbackIds": ["hook"], "timeout": 60}],
                "PostToolBatch": [{"hookCallbackIds": ["batch"], "timeout": 60}]},
            "sdkMcpServers": ["tools"],
            "systemPrompt": ["be kind"]}})
    );
    let prompt = HostFrame::UserPrompt {
        uuid: Some("u-1".to_owned()),
        blocks: vec!["one".to_owned(), "two".to_owned()],
    };
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&prompt.encode().unwrap()).unwrap(),
        serde_json::json!({"type": "user", "session_id": "", "parent_tool_use_id": null, "uuid": "u-1", "message": {
            "role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}})
    );
}

/// A batch that may go on gets an answer that decides nothing (spec/cli-protocol.md 17l).
#[test]
fn going_on_after_a_batch_decides_nothing() {
    let request_id = "r".to_owned();
    assert_eq!(
        HostFrame::GoOn { request_id }.encode().unwrap(),
        r#"{"type":"control_response","response":{"subtype":"success","request_id":"r","response":{}}}"#
    );
}

/// The marks of a streamed reply (spec/cli-protocol.md 10); those of a sub-agent are none.
#[test]
fn a_streamed_reply_is_marked_at_both_ends() {
    let mark = |rest: &str| match decode_line(
        format!(r#"{{"type":"stream_event","event":{rest}}}"#).as_bytes(),
    ) {
        Ok(CliFrame::Reply(mark)) => Some(mark),
        Ok(CliFrame::Unknown { .. }) => None,
        other => panic!("{other:?}"),
    };
    let started = r#"{"type":"message_start","message":{"id":"msg_1","usage":{"input_tokens":7}}}"#;
    let tokens = |text: &str| serde_json::from_str::<TokenUsage>(text).unwrap();
    assert_eq!(
        mark(&format!(r#"{started},"parent_tool_use_id":null"#)),
        Some(ReplyMark::Started {
            message_id: "msg_1".to_owned(),
            usage: tokens(r#"{"input_tokens":7}"#),
        })
    );
    assert_eq!(
        mark(
            r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":3}}"#
        ),
        Some(ReplyMark::Used {
            usage: tokens(r#"{"output_tokens":3}"#),
            stop_reason: Some("end_turn".to_owned()),
        })
    );
    for delta in [
        r#"{"stop_reason":null}"#,
        r#"{"stop_reason":7}"#,
        r#"{"stop_reason":"\ud83d"}"#,
        "7",
    ] {
        let event = format!(r#"{{"type":"message_delta","delta":{delta},"usage":{{}}}}"#);
        let told = Some(ReplyMark::Used {
            usage: TokenUsage::default(),
            stop_reason: None,
        });
        assert_eq!(mark(&event), told, "{delta}");
    }
    assert_eq!(
        mark(&format!(r#"{started},"parent_tool_use_id":"toolu_1""#)),
        None
    );
    for (rest, given_up) in [
        (r#"{"type":"message_stop"}"#, false),
        (r#"{"type":"message_stop"},"abandoned_blocks":null"#, false),
        (
            r#"{"type":"message_stop"},"abandoned_blocks":{"api_message_id":"msg_1","from_block_index":0}"#,
            true,
        ),
    ] {
        assert_eq!(mark(rest), Some(ReplyMark::Ended { given_up }), "{rest}");
    }
    assert_eq!(mark(r#"{"type":"content_block_stop","index":0}"#), None);
}

/// Known types decode in any key order; unknown ones keep their names; the rest is no frame.
#[test]
fn lines_decode_by_their_type() {
    assert!(matches!(
        decode_line(
            br#"{"stop_reason":null,"is_error":false,"subtype":"success","type":"result"}"#
        ),
        Ok(CliFrame::Result(_))
    ));
    assert!(matches!(
        decode_line(br#"{"type":"system","subtype":"status","status":null}"#),
        Ok(CliFrame::Unknown { kind, subtype: Some(subtype) }) if kind == "system" && subtype == "status"
    ));
    for line in [
        &b"DEBUG x"[..],
        b"",
        b"[]",
        b"{\"type\":\"result\"",
        b"\xff",
    ] {
        assert!(matches!(decode_line(line), Ok(CliFrame::NotJson)));
    }
    assert_eq!(
        decode_line(br#"{"type":"assistant","message":7}"#).unwrap_err(),
        ProtocolError::Malformed {
            kind: "assistant".to_owned(),
            bytes: 32,
            column: 32,
        }
    );
}

/// I25: deltas of a sub-agent are no live text.
#[test]
fn deltas_of_the_main_conversation_alone_are_live_text() {
    let line = |parent: &str| {
        format!(
            r#"{{"type":"stream_event","parent_tool_use_id":{parent},"event":{{"type":"content_block_delta","delta":{{"type":"text_delta","text":"hi"}}}}}}"#
        )
    };
    assert!(matches!(
        decode_line(line("null").as_bytes()),
        Ok(CliFrame::Delta(Delta::Text(text))) if text == "hi"
    ));
    assert!(matches!(
        decode_line(line("\"toolu_1\"").as_bytes()),
        Ok(CliFrame::Unknown { .. })
    ));
}

/// R32, G5: a line whose type stands first is read in one go, and as any other line is: the blank
/// in front of the second one has it read by the long way.
#[test]
fn the_short_way_reads_what_the_long_way_reads() {
    let captures = [
        include_str!("../../fixtures/lines/2.1.316/inline_two_parallel.jsonl"),
        include_str!("../../fixtures/lines/2.1.316/bash_ask_allow.jsonl"),
        include_str!("../../fixtures/lines/2.1.316/error_529.jsonl"),
        include_str!("../../fixtures/lines/2.1.316/interrupt_during_hook.jsonl"),
    ];
    let planted = [
        r#"{"type":"nobody knows","subtype":"this"}"#,
        r#"{"type":"system","subtype":"nobody knows"}"#,
        r#"{"type":"system","session_id":"s","subtype":"init"}"#,
        r#"{"type":"syst\u0065m","subtype":"in\u0069t","session_id":"s"}"#,
        r#"{"type":"system","subtype":"init""#,
        r#"{"type":"user","message":{"content":"cut"#,
        r#"{"type":"stream_event","event":{}} and more"#,
        r#"{"type":"stream_event""#,
        r#"{"type":"stream_event"#,
        r#"{"type":7}"#,
        r#"{"type":null}"#,
        r#"["type","user"]"#,
        "{}",
        "",
    ];
    for line in captures.iter().flat_map(|it| it.lines()).chain(planted) {
        let short = decode_line(line.as_bytes()).unwrap();
        let long = decode_line(format!(" {line}").as_bytes()).unwrap();
        assert_eq!(format!("{short:?}"), format!("{long:?}"), "{line}");
    }
}

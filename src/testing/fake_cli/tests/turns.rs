//! Arguments, handshake, prompts, steering, signals, the mirror.

use super::*;

/// M02: an unknown option ends the process at once, with the real one's words.
#[test]
fn an_unknown_option_is_refused() {
    let mut config = config();
    config.arguments.push("--no-such-flag".to_owned());
    let cli = FakeCli::new(config);
    assert_eq!(cli.stderr(), ["error: unknown option '--no-such-flag'"]);
    assert_eq!(cli.poll_exit(), Some(1));
}

#[test]
fn the_first_line_must_be_initialize() {
    for (line, end) in [
        ("nonsense", "is not valid JSON."),
        (r#"{"type":"user"}"#, "is a different message."),
    ] {
        let mut cli = FakeCli::new(config());
        cli.handle_line(line);
        let expected = format!(
            "Error: --await-initialize requires the initialize control request as the first stdin line, and the first line {end}"
        );
        assert_eq!(cli.stderr(), [expected]);
        assert_eq!(cli.poll_exit(), Some(1));
        assert_eq!(cli.violations().len(), 1);
    }
}

#[test]
fn a_later_prompt_of_the_same_process_recalls_the_earlier_ones() {
    let mut host = Host::start(config());
    host.initialize();
    host.prompt("script: say one");
    host.prompt("script: say two");
    host.prompt("script: recall");
    assert_eq!(host.close(), Some(0));
    host.assert_clean();
    assert_eq!(
        text_result(&host.frames),
        [
            "said: one",
            "said: two",
            "recalled: script: say one | script: say two"
        ]
    );
    let indexes: Vec<_> = host
        .results()
        .iter()
        .map(|it| it["result_index"].clone())
        .collect();
    assert_eq!(indexes, [json!(0), json!(1), json!(2)]);
}

/// G11: a second process that gets the mirrored lines knows the first one's turns and its costs.
#[test]
fn a_resumed_process_goes_on_where_the_mirror_ends() {
    let mut first = Host::start(config());
    first.initialize();
    first.prompt("script: say one");
    first.close();
    let mut second = Host::start(resumed_config(first.transcript()));
    second.initialize();
    second.prompt("script: recall");
    assert_eq!(second.close(), Some(0));
    second.assert_clean();
    assert_eq!(text_result(&second.frames), ["recalled: script: say one"]);
    let result = &second.results()[0];
    assert_eq!(result["modelUsage"]["claude-sonnet-5"]["inputTokens"], 22);
    assert_eq!(
        result["model_usage_since_last_result"]["claude-sonnet-5"]["inputTokens"],
        11
    );
}

#[test]
fn an_unknown_session_cannot_be_resumed() {
    let mut config = resumed_config(Vec::new());
    config.transcript = None;
    let mut host = Host::start(config);
    host.initialize();
    let text = format!("No conversation found with session ID: {SESSION}");
    assert_eq!(host.results()[0]["errors"], json!([text]));
    assert_eq!(host.cli.poll_exit(), Some(1));
}

/// 17j: a message that comes while a hook is open becomes part of the running turn.
#[test]
fn a_message_during_a_call_is_folded_into_the_turn() {
    let mut host = Host::start(config());
    host.hook = Box::new(|_| None);
    host.initialize();
    host.prompt("script: call lookup {}");
    host.prompt("be brief");
    let request = host
        .frames
        .iter()
        .find(|it| it["request"]["subtype"] == "hook_callback")
        .unwrap();
    let id = request["request_id"].as_str().unwrap().to_owned();
    host.respond(&id, &serde_json::from_str(ALLOW).unwrap());
    host.close();
    host.assert_clean();
    assert_eq!(
        text_result(&host.frames),
        ["lookup: lookup ran {}\nsteered: be brief"]
    );
    assert_eq!(
        host.results()[0]["user_message_uuids"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
}

/// 17i: SIGTERM while a hook is open leaves the reply in the mirror and no result.
#[test]
fn sigterm_flushes_the_mirror_and_exits_with_143() {
    let mut host = Host::start(config());
    host.hook = Box::new(|_| None);
    host.initialize();
    host.prompt("script: call create_refund {} && create_refund {\"n\":2}");
    host.cli.handle_terminate();
    host.run();
    assert_eq!(host.cli.poll_exit(), Some(143));
    assert_eq!(host.results(), Vec::<Value>::new());
    let assistants = host
        .entries()
        .iter()
        .filter(|it| it["type"] == "assistant")
        .count();
    assert_eq!(assistants, 2);
    host.assert_clean();
}

/// The mirror comes when nothing else moves, later, or with the result.
#[test]
fn the_mirror_lags_as_configured() {
    let mirrored_before_decision = |lag: MirrorLag| {
        let mut config = config();
        config.mirror_lag = lag;
        let mut host = Host::start(config);
        host.hook = Box::new(|_| None);
        host.initialize();
        host.prompt("script: call create_refund {}");
        host.entries()
            .iter()
            .filter(|it| it["type"] == "assistant")
            .count()
    };
    assert_eq!(mirrored_before_decision(MirrorLag::Quiet), 1);
    assert_eq!(mirrored_before_decision(MirrorLag::Lines(3)), 0);
    assert_eq!(mirrored_before_decision(MirrorLag::UntilResult), 0);
    for lag in [
        MirrorLag::Lines(3),
        MirrorLag::Lines(1000),
        MirrorLag::UntilResult,
    ] {
        let mut config = config();
        config.mirror_lag = lag;
        let mut host = Host::start(config);
        host.initialize();
        host.prompt("script: call lookup {}");
        let result = host
            .frames
            .iter()
            .position(|it| it["type"] == "result")
            .unwrap();
        let mirror = host
            .frames
            .iter()
            .rposition(|it| it["type"] == "transcript_mirror")
            .unwrap();
        assert!(mirror < result, "{lag:?}");
        let kinds: Vec<_> = host
            .entries()
            .iter()
            .filter(|it| it["type"] == "assistant")
            .map(|it| it["message"]["stop_reason"].clone())
            .collect();
        assert_eq!(kinds, [json!("tool_use"), json!("end_turn")], "{lag:?}");
    }
}

/// The same inputs give the same bytes.
#[test]
fn the_machine_is_deterministic() {
    let run = || {
        let mut host = Host::start(config());
        host.initialize();
        host.prompt("script: call lookup {} && create_refund {} ;; think hm");
        host.close();
        host.frames
    };
    assert_eq!(run(), run());
}

#[test]
fn a_stalled_answer_waits_in_the_middle_of_its_text() {
    let mut host = Host::start(config());
    host.initialize();
    host.prompt("script: stall g");
    assert_eq!(host.results(), Vec::<Value>::new());
    let last = &host.frames.last().unwrap()["event"]["delta"];
    assert_eq!(last["text"], "lookup: lo");
    host.cli.open_gate("g");
    host.run();
    assert_eq!(host.close(), Some(0));
    assert_eq!(text_result(&host.frames), ["lookup: lookup ran {}"]);
}

#[test]
fn an_interrupt_in_the_middle_of_a_text_keeps_what_was_said() {
    let mut host = Host::start(config());
    host.initialize();
    host.prompt("script: stall g");
    host.send(&json!({"type": "control_request", "request_id": "host-2", "request": {"subtype": "interrupt"}}));
    let result = &host.results()[0];
    assert_eq!(result["terminal_reason"], "aborted_streaming");
    assert_eq!(result["subtype"], "error_during_execution");
    let partial = host
        .of_type("assistant")
        .into_iter()
        .find(|it| it["aborted"] == true)
        .unwrap();
    assert_eq!(partial["message"]["content"][0]["text"], "lookup: lo");
    assert_eq!(host.close(), Some(1));
    host.assert_clean();
}

#[test]
fn a_script_that_fails_ends_with_an_error_result() {
    let mut host = Host::start(config());
    host.initialize();
    host.prompt("script: call lookup {} ;; fail");
    assert_eq!(host.results()[0]["subtype"], "error_during_execution");
    assert_eq!(host.close(), Some(1));
}

#[test]
fn max_turns_counts_model_calls() {
    let mut config = config();
    config.arguments.push("--max-turns=1".to_owned());
    let mut host = Host::start(config);
    host.initialize();
    host.prompt("script: call lookup {}");
    assert_eq!(host.results()[0]["subtype"], "error_max_turns");
    assert_eq!(
        host.results()[0]["errors"],
        json!(["Reached maximum number of turns (1)"])
    );
    assert_eq!(host.close(), Some(1));
}

/// What the host must not do is written down.
#[test]
fn violations_name_what_the_host_did_wrong() {
    let mut host = Host::start(config());
    host.hook = Box::new(|_| Some(json!({"hookSpecificOutput": {"permissionDecision": "deny"}})));
    host.initialize();
    host.prompt("script: call lookup {}");
    host.respond("nobody-asked", &json!({}));
    host.send(&json!({"type": "user", "message": {"role": "user", "content": "script: stall g"}, "extra": 1}));
    host.close();
    host.send(&json!({"type": "keep_alive"}));
    assert_eq!(
        host.cli.violations(),
        [
            "a hook answer without hookEventName",
            "an answer to nobody-asked, which is not open",
            "user holds the unknown field extra",
            "a hook answer without hookEventName",
            "the input was closed before the result",
            "a line came after the input was closed",
        ]
    );
}

/// Messages that are there before the turn starts become one turn and one entry.
#[test]
fn messages_before_the_turn_are_merged() {
    let mut host = Host::start(config());
    host.initialize_and_prompts(&["one", "two", "script: recall"]);
    assert_eq!(text_result(&host.frames), ["recalled: one | two"]);
    let prompts: Vec<_> = host
        .entries()
        .into_iter()
        .filter(|it| it["promptSource"] == "sdk")
        .collect();
    assert_eq!(prompts.len(), 1);
    assert_eq!(prompts[0]["mergedSendUuids"].as_array().unwrap().len(), 3);
    assert_eq!(
        host.results()[0]["user_message_uuids"],
        prompts[0]["mergedSendUuids"]
    );
}

/// Section 8: what the CLI does not know is an error, the rest an empty success.
#[test]
fn control_requests_are_answered() {
    let mut host = Host::start(config());
    host.initialize();
    for (subtype, answer) in [
        ("mcp_status", "success"),
        ("set_model", "success"),
        ("interrupt", "success"),
        ("no_such_thing", "error"),
    ] {
        host.send(&json!({"type": "control_request", "request_id": subtype, "request": {"subtype": subtype}}));
        let response = &host.frames.last().unwrap()["response"];
        assert_eq!(
            (&response["request_id"], &response["subtype"]),
            (&json!(subtype), &json!(answer))
        );
    }
    assert_eq!(host.results(), Vec::<Value>::new());
    assert_eq!(host.close(), Some(0));
}

//! What the live path rests on (spec/cli-protocol.md 17), as it was seen on the real CLIs.

use super::*;

fn with_faults(faults: Vec<Fault>) -> FakeCliConfig {
    let mut config = config();
    config.faults = faults;
    config
}

/// Names what a frame is, for frames of the main conversation that matter here.
fn name(frame: &Value) -> Option<String> {
    let text = |it: &Value| it.as_str().unwrap_or_default().to_owned();
    let block = &frame["message"]["content"][0];
    match frame["type"].as_str()? {
        "stream_event" => Some(text(&frame["event"]["type"])).filter(|it| it.contains("message_")),
        "assistant" | "user" => Some(text(&block["type"])),
        "control_request" => match frame["request"]["subtype"].as_str()? {
            "hook_callback" => Some(text(&frame["request"]["input"]["hook_event_name"])),
            _ => Some(text(&frame["request"]["message"]["method"])).filter(|it| it == "tools/call"),
        },
        "system" => Some(text(&frame["subtype"])).filter(|it| it == "api_retry"),
        "result" => Some("result".to_owned()),
        _ => None,
    }
}

fn names(frames: &[Value]) -> Vec<String> {
    frames.iter().filter_map(name).collect()
}

/// The types of the mirrored chain entries, and the block's for messages.
fn entries(host: &Host) -> Vec<String> {
    let kind = |it: &Value| match it["message"]["content"][0]["type"].as_str() {
        Some(block) => block.to_owned(),
        None => it["type"].as_str().unwrap_or_default().to_owned(),
    };
    host.entries()
        .iter()
        .filter(|it| it["uuid"].is_string() && it["type"] != "attachment")
        .map(kind)
        .collect()
}

/// The prompt stands in the mirror before the model has said anything.
#[test]
fn the_prompt_is_mirrored_before_the_first_reply() {
    let mut host = Host::start(config());
    host.initialize();
    host.prompt("script: say hi");
    let position = |fits: &dyn Fn(&Value) -> bool| host.frames.iter().position(fits).unwrap();
    let mirror = position(&|it| it["type"] == "transcript_mirror");
    assert!(mirror < position(&|it| it["type"] == "stream_event"));
    let prompt = host
        .entries()
        .into_iter()
        .find(|it| it["type"] == "user")
        .unwrap();
    assert_eq!(prompt["uuid"], "aaaaaaaa-0000-4000-8000-000000000001");
}

/// An allowed call runs, and its result is there, while the reply still comes in; the entries are
/// written in that order once it is complete.
#[test]
fn a_call_runs_before_its_reply_is_complete() {
    let mut host = Host::start(config());
    host.initialize();
    host.prompt(r#"script: call lookup {"n":1} && create_refund {"n":2} ;; hold g"#);
    let begun = [
        "message_start",
        "tool_use",
        "PreToolUse",
        "tools/call",
        "tool_result",
    ];
    assert_eq!(names(&host.frames), begun);
    assert_eq!(entries(&host), ["text"]);
    host.frames.clear();
    host.cli.open_gate("g");
    host.run();
    assert_eq!(
        names(&host.frames)[..6],
        [
            "tool_use",
            "PreToolUse",
            "message_delta",
            "message_stop",
            "tools/call",
            "tool_result"
        ]
    );
    assert_eq!(
        entries(&host),
        ["tool_use", "tool_result", "tool_use", "tool_result", "text"]
    );
    let chain: Vec<Value> = host.entries();
    let at = |kind: &str, nth: usize| {
        let mut found = chain
            .iter()
            .filter(|it| it["message"]["content"][0]["type"] == kind);
        found.nth(nth).unwrap().clone()
    };
    assert_eq!(
        at("tool_use", 1)["parentUuid"],
        at("tool_result", 0)["uuid"]
    );
    assert_eq!(host.close(), Some(0));
    host.assert_clean();
}

/// 17l: the callback comes after every reply with calls, whoever decided about them, and for the
/// replies of a sub-agent it names the agent; it does not come for a deferral or for mere text.
#[test]
fn post_tool_batch_comes_after_every_reply_with_calls() {
    let agent = r#"script: call Agent {"prompt":"script: call lookup {}"}"#;
    for (hook, prompt, batches) in [
        (ALLOW, r#"script: call lookup {} && create_refund {}"#, 1),
        (
            DENY,
            r#"script: call create_refund {} && create_refund {"n":2}"#,
            1,
        ),
        (ALLOW, "script: call NoSuchTool {}", 1),
        (ALLOW, agent, 2),
        (DEFER, "script: call create_refund {}", 0),
        (ALLOW, "script: say hi", 0),
    ] {
        let mut host = Host::deciding(config(), hook);
        host.has_batch_hook = true;
        host.initialize();
        host.prompt(prompt);
        let asked = host.batches();
        assert_eq!(asked.len(), batches, "{prompt}");
        assert_eq!(host.results().len(), 1, "{prompt}");
        if prompt == agent {
            assert!(asked[0]["agent_id"].is_string() && asked[1]["agent_id"].is_null());
        }
        for call in asked
            .iter()
            .flat_map(|it| it["tool_calls"].as_array().unwrap())
        {
            assert!(!call["tool_response"].is_null(), "{call}");
        }
        host.assert_clean();
    }
}

/// A sub-agent's next model call waits for the answer as well.
#[test]
fn post_tool_batch_holds_a_subagent() {
    let mut host = Host::start(config());
    host.has_batch_hook = true;
    host.hook = Box::new(|it| match it["input"]["hook_event_name"].as_str() {
        Some("PostToolBatch") => None,
        _ => serde_json::from_str(ALLOW).unwrap(),
    });
    host.initialize();
    host.prompt(r#"script: call Agent {"prompt":"script: call lookup {}"}"#);
    for requests in [2, 3] {
        assert_eq!(host.cli.model_requests(), requests);
        assert_eq!(host.results(), Vec::<Value>::new());
        let open = host
            .frames
            .iter()
            .rfind(|it| it["type"] == "control_request")
            .unwrap();
        let id = open["request_id"].as_str().unwrap().to_owned();
        host.respond(&id, &json!({}));
    }
    assert_eq!(text_result(&host.frames), ["Agent: lookup: lookup ran {}"]);
    host.assert_clean();
}

/// A resumed call is followed by the model at once: no PostToolBatch (both real CLIs).
#[test]
fn a_resumed_call_has_no_post_tool_batch() {
    let mut host = Host::start(resumed_config(host::deferred_transcript(
        "script: call create_refund {}",
    )));
    host.has_batch_hook = true;
    host.initialize();
    assert_eq!(host.batches(), Vec::<Value>::new());
    assert_eq!(
        text_result(&host.frames),
        ["create_refund: create_refund ran {}"]
    );
}

fn broken(after_blocks: usize) -> Vec<Fault> {
    vec![Fault::BreakStream {
        at_model_call: 1,
        after_blocks,
    }]
}

/// A stream that breaks behind a complete call: the call stays, its hook stays open, and the model
/// is asked again once it has its result; the CLI's own words are not told to it.
#[test]
fn a_complete_call_of_a_broken_stream_stays() {
    let mut host = Host::start(with_faults(broken(1)));
    host.has_batch_hook = true;
    host.hook = Box::new(|_| None);
    host.initialize();
    host.prompt(r#"script: call create_refund {"n":1} && create_refund {"n":2}"#);
    let stop = host
        .of_type("stream_event")
        .into_iter()
        .find(|it| it["event"]["type"] == "message_stop")
        .unwrap();
    assert_eq!(stop["abandoned_blocks"]["from_block_index"], 1);
    assert_eq!(entries(&host), ["text", "tool_use", "text"]);
    let request = host
        .frames
        .iter()
        .find(|it| it["request"]["subtype"] == "hook_callback");
    let id = request.unwrap()["request_id"].as_str().unwrap().to_owned();
    host.hook = Box::new(|it| match it["input"]["hook_event_name"].as_str() {
        Some("PostToolBatch") => Some(json!({})),
        _ => serde_json::from_str(ALLOW).unwrap(),
    });
    host.respond(&id, &serde_json::from_str(ALLOW).unwrap());
    assert_eq!(host.batches()[0]["tool_calls"].as_array().unwrap().len(), 1);
    // The scripted model misses the second call and makes it.
    assert_eq!(
        text_result(&host.frames),
        ["create_refund: create_refund ran {\"n\":1}\ncreate_refund: create_refund ran {\"n\":2}"]
    );
    assert_eq!(host.cli.model_requests(), 3);
    host.assert_clean();
}

/// Without a call the model is asked to go on; with nothing at all the request is sent again.
#[test]
fn a_broken_stream_without_a_call_is_asked_again() {
    for (prompt, after_blocks, retries) in [
        ("script: say hi", 1, 0),
        ("script: say hi", 0, 1),
        ("script: call lookup {}", 0, 1),
    ] {
        let mut host = Host::start(with_faults(broken(after_blocks)));
        host.initialize();
        host.prompt(prompt);
        let retried = names(&host.frames)
            .iter()
            .filter(|it| *it == "api_retry")
            .count();
        assert_eq!(retried, retries, "{prompt}");
        let synthetic = host
            .of_type("user")
            .iter()
            .filter(|it| it["isSynthetic"] == true)
            .count();
        assert_eq!(synthetic, 1 - retries, "{prompt}");
        assert_eq!(
            host.results()[0]["terminal_reason"],
            "completed",
            "{prompt}"
        );
        assert_eq!(host.close(), Some(0));
        host.assert_clean();
    }
    let mut host = Host::start(with_faults(broken(2)));
    host.initialize();
    host.prompt("script: say hi");
    assert_eq!(
        host.cli.violations(),
        ["BreakStream names a block that the reply does not have"]
    );
}

/// 17f: the turn that goes on names the message that it answers.
#[test]
fn an_interrupted_turn_names_its_message() {
    let mut first = Host::start(config());
    first.hook = Box::new(|_| None);
    first.initialize();
    first.prompt("script: call lookup {}");
    first.cli.kill();
    let mut config = resumed_config(first.transcript());
    let variable = "CLAUDE_CODE_RESUME_INTERRUPTED_TURN".to_owned();
    config.environment.insert(variable, "1".to_owned());
    let mut host = Host::start(config);
    host.initialize();
    let uuids = json!(["aaaaaaaa-0000-4000-8000-000000000001"]);
    assert_eq!(host.results()[0]["user_message_uuids"], uuids);
}

/// What the real CLI forgives in a transcript, or punishes much later, is written down.
#[test]
fn a_transcript_is_read_strictly() {
    let entry = |uuid: &str, parent: Value| {
        let message = json!({"role": "user", "content": "a \" b: c, \\"});
        json!({"type": "user", "uuid": uuid, "parentUuid": parent, "message": message}).to_string()
    };
    let violations = |lines: &[String]| {
        let cli = FakeCli::new(resumed_config(lines.to_vec()));
        cli.violations().to_vec()
    };
    let (one, two) = (entry("1", Value::Null), entry("2", json!("1")));
    let good = [one.clone(), r#"{"type":"mode"}"#.to_owned(), two.clone()];
    assert_eq!(violations(&good), [""; 0]);
    for (second, wrong) in [
        (two.replace("\":", "\": "), "holds blanks"),
        (two.replace(",\"", ", \""), "holds blanks"),
        (one.clone(), "comes twice"),
        (entry("2", json!("3")), "follows no line before it"),
        (entry("2", Value::Null), "follows no line before it"),
        (two[..9].to_owned(), "is no JSON"),
        (
            two.replace('{', r#"{"isSidechain":true,"#),
            "is a sub-agent's",
        ),
    ] {
        let expected = format!("line 1 of the transcript {wrong}");
        assert_eq!(violations(&[one.clone(), second]), [expected]);
    }
}

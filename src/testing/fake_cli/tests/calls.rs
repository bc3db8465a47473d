//! Calls: decisions, order, built-ins, sub-agents.

use std::time::Duration;

use super::*;

fn run(hook: &str, prompt: &str) -> Host {
    let mut host = Host::deciding(config(), hook);
    host.initialize();
    host.prompt(prompt);
    assert_eq!(host.close(), Some(0));
    host.assert_clean();
    host
}

/// M05: a call carries its tool use id to the server.
#[test]
fn a_call_carries_its_tool_use_id() {
    let host = run(ALLOW, r#"script: call lookup {"orderId":"7"}"#);
    let hook = &host.requests("hook_callback")[0];
    let call = &host.calls()[0];
    assert_eq!(call["name"], "lookup");
    assert_eq!(call["arguments"], json!({"orderId": "7"}));
    assert_eq!(call["_meta"]["claudecode/toolUseId"], hook["tool_use_id"]);
    assert_eq!(
        text_result(&host.frames),
        [r#"lookup: lookup ran {"orderId":"7"}"#]
    );
}

/// M07: a denial reaches the model with the prefix and is listed.
#[test]
fn a_denial_carries_the_prefix_and_the_reason() {
    let host = run(DENY, "script: call create_refund {}");
    let text = "PreToolUse:mcp__tools__create_refund hook error: not now";
    assert_eq!(host.tool_results()[0]["content"], text);
    assert_eq!(host.tool_results()[0]["is_error"], true);
    assert_eq!(
        host.results()[0]["permission_denials"][0]["tool_name"],
        "mcp__tools__create_refund"
    );
    assert_eq!(host.calls(), Vec::<Value>::new());
}

/// M08: of two hooks the stronger decision counts: deny, defer, ask, allow, none.
#[test]
fn the_strongest_decision_of_two_hooks_counts() {
    let strength = ["none", "allow", "ask", "defer", "deny"];
    for (first, one) in strength.iter().enumerate() {
        for (second, other) in strength.iter().enumerate() {
            let mut host = Host::start(config());
            let answers = [(*one).to_owned(), (*other).to_owned()];
            host.hook = Box::new(move |request| {
                let index = usize::from(request["callback_id"] == "hook_1");
                Some(match answers[index].as_str() {
                    "none" => json!({}),
                    it => {
                        json!({"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": it}})
                    }
                })
            });
            host.send(&json!({"type": "control_request", "request_id": "h", "request": {"subtype": "initialize",
                "hooks": {"PreToolUse": [{"hookCallbackIds": ["hook_0"]}, {"matcher": "mcp__tools__.*", "hookCallbackIds": ["hook_1"]}]}}}));
            host.prompt("script: call create_refund {}");
            let outcome = if host.results()[0]["stop_reason"] == "tool_deferred" {
                "defer"
            } else if host.tool_results()[0]["is_error"] == true {
                "deny"
            } else if host.requests("can_use_tool").is_empty() {
                "allow"
            } else {
                "ask"
            };
            // None is the default mode's rule: the host is asked.
            let expected = match strength[first.max(second)] {
                "none" => "ask",
                other => other,
            };
            assert_eq!(outcome, expected, "{one} and {other}");
        }
    }
}

/// M09: dontAsk denies what no hook decided, and asks nobody.
#[test]
fn dont_ask_denies_an_undecided_call() {
    let mut config = config();
    config
        .arguments
        .retain(|it| it != "--permission-mode=default");
    config
        .arguments
        .push("--permission-mode=dontAsk".to_owned());
    let mut host = Host::deciding(config, "{}");
    host.initialize();
    host.prompt("script: call lookup {}");
    assert_eq!(host.requests("can_use_tool"), Vec::<Value>::new());
    assert_eq!(host.tool_results()[0]["is_error"], true);
    assert!(
        host.frames
            .iter()
            .any(|it| it["subtype"] == "permission_denied")
    );
}

/// The hook sees the model's input; the call and the host see the updated one. A deferral keeps the
/// model's: the real CLIs pass over an update in the answer that defers.
#[test]
fn an_updated_input_reaches_everybody_but_the_hook() {
    let answer = |decision: &str| {
        format!(
            r#"{{"hookSpecificOutput":{{"hookEventName":"PreToolUse","permissionDecision":"{decision}","updatedInput":{{"n":2}}}}}}"#
        )
    };
    let host = run(&answer("ask"), r#"script: call lookup {"n":1}"#);
    assert_eq!(
        host.requests("hook_callback")[0]["input"]["tool_input"],
        json!({"n": 1})
    );
    assert_eq!(host.requests("can_use_tool")[0]["input"], json!({"n": 2}));
    assert_eq!(host.calls()[0]["arguments"], json!({"n": 2}));
    let host = run(&answer("defer"), r#"script: call lookup {"n":1}"#);
    assert_eq!(
        host.results()[0]["deferred_tool_use"]["input"],
        json!({"n": 1})
    );
}

/// What a hook adds is told beside the result.
#[test]
fn a_hook_may_add_to_a_result() {
    let answer = r#"{"hookSpecificOutput":{"hookEventName":"PreToolUse","permissionDecision":"allow","additionalContext":"a note"}}"#;
    let host = run(answer, r#"script: call lookup {"n":1}"#);
    let entries = host.entries();
    let at = |fits: &dyn Fn(&Value) -> bool| entries.iter().position(fits).expect("an entry");
    let note = at(&|it| it["attachment"]["type"] == "hook_additional_context");
    let result = at(&|it| it["message"]["content"][0]["type"] == "tool_result");
    assert_eq!(entries[note]["attachment"]["content"], json!(["a note"]));
    assert_eq!(entries[note]["parentUuid"], entries[result]["parentUuid"]);
    assert!(note < result);
}

#[test]
fn an_unknown_tool_gets_an_error_and_no_hook() {
    let host = run(DENY, "script: call NoSuchTool {}");
    assert_eq!(host.requests("hook_callback"), Vec::<Value>::new());
    assert_eq!(
        host.tool_results()[0]["content"],
        "<tool_use_error>Error: No such tool available: NoSuchTool</tool_use_error>"
    );
}

/// A tool of the CLI that lacks what it needs is refused by the CLI itself, and nobody is asked.
#[test]
fn a_call_that_lacks_an_input_gets_an_error_and_no_hook() {
    let host = run(ALLOW, r#"script: call Bash {} && Read {"path":"/a"}"#);
    let texts: Vec<Value> = (host.tool_results().iter())
        .map(|it| it["content"].clone())
        .collect();
    let refused = |tool: &str, missing: &str| {
        let text = format!(
            "InputValidationError: {tool} failed due to the following issue:\nThe required parameter `{missing}` is missing"
        );
        json!(format!("<tool_use_error>{text}</tool_use_error>"))
    };
    assert_eq!(
        texts,
        [refused("Bash", "command"), refused("Read", "file_path")]
    );
    assert_eq!(host.requests("hook_callback"), Vec::<Value>::new());
    host.assert_clean();
}

/// Writes run strictly one after the other; reads are asked and run side by side.
#[test]
fn writes_are_serial_and_reads_are_parallel() {
    let open_hooks = |prompt: &str| {
        let mut host = Host::start(config());
        host.hook = Box::new(|_| None);
        host.initialize();
        host.prompt(prompt);
        host.requests("hook_callback").len()
    };
    assert_eq!(
        open_hooks(r#"script: call create_refund {"n":1} && create_refund {"n":2}"#),
        1
    );
    assert_eq!(
        open_hooks(r#"script: call lookup {"n":1} && lookup {"n":2}"#),
        2
    );
    assert_eq!(
        open_hooks(r#"script: call lookup {"n":1} && create_refund {} && lookup {"n":2}"#),
        1
    );
}

/// A deferred call does not stop a later one of the same reply; the result names the last deferred.
#[test]
fn the_result_names_the_last_deferred_call() {
    let host = run(
        DEFER,
        r#"script: call create_refund {"n":1} && create_refund {"n":2}"#,
    );
    assert_eq!(
        host.results()[0]["deferred_tool_use"]["input"],
        json!({"n": 2})
    );
    assert_eq!(host.requests("hook_callback").len(), 2);
}

#[test]
fn errors_of_the_server_become_error_results() {
    let mut host = Host::start(config());
    host.call = Box::new(|_| {
        Some(json!({"content": [{"type": "text", "text": "card declined"}], "isError": true}))
    });
    host.initialize();
    host.prompt("script: call lookup {}");
    assert_eq!(host.tool_results()[0]["content"], "card declined");
    assert_eq!(host.tool_results()[0]["is_error"], true);
}

/// M30: built-ins pass the hook as well and leave their effect once.
#[test]
fn an_allowed_bash_call_leaves_one_effect() {
    let mut host = run(
        ALLOW,
        r#"script: call Bash {"command":"echo hello"} && Read {"file_path":"/a"}"#,
    );
    assert_eq!(
        host.cli.poll_effect().map(|it| it.subject),
        Some("echo hello".to_owned())
    );
    assert_eq!(host.cli.poll_effect(), None);
    assert_eq!(
        text_result(&host.frames),
        ["Bash: hello\nRead: 1\tcontents of /a"]
    );
    assert_eq!(host.requests("hook_callback").len(), 2);
    let mut host = run(DENY, r#"script: call Bash {"command":"echo hello"}"#);
    assert_eq!(host.cli.poll_effect(), None);
}

#[test]
fn a_sleeping_command_waits_for_its_gate() {
    let mut host = Host::start(config());
    host.initialize();
    host.prompt(r#"script: call Bash {"command":"sleep 100"}"#);
    assert!(host.cli.poll_effect().is_some());
    assert_eq!(host.results(), Vec::<Value>::new());
    host.cli.open_gate("sleep");
    host.run();
    assert_eq!(
        text_result(&host.frames),
        ["Bash: (Bash completed with no output)"]
    );
}

/// M19: a sub-agent is one message under its call, by another model, outside the transcript.
#[test]
fn a_subagent_answers_under_its_call() {
    let host = run(
        ALLOW,
        r#"script: call Agent {"description":"job","prompt":"script: say sub"}"#,
    );
    let own: Vec<_> = host
        .of_type("assistant")
        .into_iter()
        .filter(|it| it["parent_tool_use_id"].is_string())
        .collect();
    assert_eq!(own.len(), 1);
    assert_eq!(own[0]["message"]["model"], "claude-haiku-4-5-20260101");
    assert_eq!(text_result(&host.frames), ["Agent: said: sub"]);
    assert!(host.results()[0]["modelUsage"]["claude-haiku-4-5"].is_object());
    assert!(host.entries().iter().all(|it| it["agentId"].is_null()));
}

/// L13: a call of a sub-agent names it to the hook.
#[test]
fn a_subagents_call_names_the_agent_to_the_hook() {
    let host = run(
        ALLOW,
        r#"script: call Agent {"prompt":"script: call lookup {\"n\":1}"}"#,
    );
    let hooks = host.requests("hook_callback");
    let agents: Vec<bool> = hooks
        .iter()
        .map(|it| it["input"]["agent_id"].is_string())
        .collect();
    assert_eq!(agents, [false, true]);
    assert_eq!(
        text_result(&host.frames),
        [r#"Agent: lookup: lookup ran {"n":1}"#]
    );
}

/// 17l: PostToolBatch holds the next model call until it is answered.
#[test]
fn post_tool_batch_holds_the_next_model_call() {
    let mut host = Host::start(config());
    host.hook = Box::new(|request| {
        (request["input"]["hook_event_name"] != "PostToolBatch")
            .then(|| serde_json::from_str(ALLOW).unwrap())
    });
    host.send(&json!({"type": "control_request", "request_id": "h", "request": {"subtype": "initialize",
        "hooks": {"PreToolUse": [{"hookCallbackIds": ["hook_0"]}], "PostToolBatch": [{"hookCallbackIds": ["hook_1"]}]}}}));
    host.prompt("script: call lookup {}");
    let batch = host
        .frames
        .iter()
        .find(|it| it["request"]["input"]["hook_event_name"] == "PostToolBatch")
        .unwrap();
    assert_eq!(
        batch["request"]["input"]["tool_calls"][0]["tool_name"],
        "mcp__tools__lookup"
    );
    assert_eq!(host.tool_results().len(), 1);
    assert!(
        host.entries()
            .iter()
            .any(|it| it["sourceToolAssistantUUID"].is_string())
    );
    assert_eq!(host.results(), Vec::<Value>::new());
    let id = batch["request_id"].as_str().unwrap().to_owned();
    host.respond(&id, &json!({}));
    assert_eq!(text_result(&host.frames), ["lookup: lookup ran {}"]);
    host.assert_clean();
}

/// A hook that does not answer in its time is given up, and a late answer is no violation.
#[test]
fn a_late_hook_is_cancelled() {
    let mut host = Host::start(config());
    host.hook = Box::new(|_| None);
    host.initialize();
    host.prompt("script: call create_refund {}");
    assert_eq!(host.cli.poll_timeout(), Some(Duration::from_secs(600)));
    host.cli.handle_time(Duration::from_secs(600));
    host.run();
    let cancelled = host.of_type("control_cancel_request");
    assert_eq!(cancelled.len(), 1);
    let id = cancelled[0]["request_id"].as_str().unwrap().to_owned();
    host.respond(&id, &serde_json::from_str(ALLOW).unwrap());
    host.assert_clean();
    assert_eq!(host.tool_results()[0]["is_error"], true);
    assert_eq!(host.results().len(), 1);
}

/// A call deferred inside a sub-agent is lost; the main turn completes (capture `subagent_defer`).
#[test]
fn a_deferral_in_a_subagent_is_lost() {
    let mut host = Host::start(config());
    host.hook = Box::new(|request| {
        let is_sub = request["input"]["agent_id"].is_string();
        Some(serde_json::from_str(if is_sub { DEFER } else { ALLOW }).unwrap())
    });
    host.initialize();
    host.prompt(r#"script: call Agent {"prompt":"script: call create_refund {}"}"#);
    assert_eq!(host.calls(), Vec::<Value>::new());
    assert_eq!(text_result(&host.frames), ["Agent: "]);
    assert!(
        host.entries()
            .iter()
            .all(|it| it["attachment"]["type"] != "hook_deferred_tool")
    );
}

/// A question that the hook allows without answers is put to the host.
#[test]
fn a_question_is_answered_by_the_host() {
    let mut config = config();
    config.arguments.push("--tools=AskUserQuestion".to_owned());
    let mut host = Host::start(config);
    host.ask = Box::new(|request| {
        let mut input = request["input"].clone();
        input["answers"] = json!({"Which?": "Blue"});
        json!({"behavior": "allow", "updatedInput": input})
    });
    host.initialize();
    host.prompt(r#"script: call AskUserQuestion {"questions":[{"question":"Which?"}]}"#);
    assert_eq!(
        host.tool_results()[0]["content"],
        r#"Your questions have been answered: "Which?"="Blue". You can now continue with these answers in mind."#
    );
}

/// Section 8: an interrupt during tools/call tells the server, and a late answer is no violation.
#[test]
fn an_interrupt_cancels_the_servers_call() {
    let mut host = Host::start(config());
    host.call = Box::new(|_| None);
    host.initialize();
    host.prompt("script: call lookup {}");
    let call = host
        .frames
        .iter()
        .find(|it| it["request"]["message"]["method"] == "tools/call")
        .unwrap();
    let id = call["request_id"].as_str().unwrap().to_owned();
    host.send(
        &json!({"type": "control_request", "request_id": "i", "request": {"subtype": "interrupt"}}),
    );
    let notified = host
        .requests("mcp_message")
        .into_iter()
        .filter(|it| it["message"]["method"] == "notifications/cancelled")
        .count();
    assert_eq!(notified, 1);
    host.respond(
        &id,
        &json!({"mcp_response": {"jsonrpc": "2.0", "id": 2, "result": {"content": []}}}),
    );
    host.assert_clean();
    assert_eq!(host.results()[0]["terminal_reason"], "aborted_tools");
    host.prompt("script: say again");
    assert_eq!(text_result(&host.frames)[1], "said: again");
}

/// Section 5: the end of the input refuses an open hook, and the model is called once more.
#[test]
fn the_end_of_the_input_refuses_open_hooks() {
    let mut host = Host::start(config());
    host.hook = Box::new(|_| None);
    host.initialize();
    host.prompt("script: call create_refund {}");
    assert_eq!(host.close(), Some(0));
    assert_eq!(host.tool_results()[0]["is_error"], true);
    assert_eq!(host.results().len(), 1);
    assert_eq!(
        host.cli.violations(),
        ["the input was closed before the result"]
    );
}

/// One late hook gives up the call; the answer of the other one then has no effect.
#[test]
fn a_late_hook_takes_the_calls_other_hooks_with_it() {
    let mut host = Host::start(config());
    host.hook = Box::new(|_| None);
    host.send(&json!({"type": "control_request", "request_id": "h", "request": {"subtype": "initialize",
        "hooks": {"PreToolUse": [{"hookCallbackIds": ["hook_0"], "timeout": 2}, {"hookCallbackIds": ["hook_1"]}]}}}));
    host.prompt("script: call create_refund {}");
    host.cli.handle_time(Duration::from_secs(2));
    host.run();
    let cancelled = host.of_type("control_cancel_request");
    assert_eq!(cancelled.len(), 2);
    for request in cancelled {
        let id = request["request_id"].as_str().unwrap().to_owned();
        host.respond(&id, &serde_json::from_str(ALLOW).unwrap());
    }
    host.assert_clean();
    assert_eq!(host.calls(), Vec::<Value>::new());
    assert_eq!(host.results().len(), 1);
}

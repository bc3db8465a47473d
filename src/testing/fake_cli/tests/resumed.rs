//! Resumes: deferrals, made-up ones, appended results, interrupted turns.

use super::host::deferred_transcript;
use super::*;

const REFUND: &str = r#"script: call create_refund {"n":1}"#;

fn resume(hook: &str, transcript: Vec<String>) -> Host {
    let mut host = Host::deciding(resumed_config(transcript), hook);
    host.initialize();
    host
}

/// M14: the last deferral without a result runs at once, with the model's own input at the hook.
#[test]
fn a_pending_deferral_runs_without_a_prompt() {
    let mut host = resume(ALLOW, deferred_transcript(REFUND));
    assert_eq!(
        host.requests("hook_callback")[0]["input"]["tool_input"],
        json!({"n": 1})
    );
    assert_eq!(
        text_result(&host.frames),
        [r#"create_refund: create_refund ran {"n":1}"#]
    );
    assert_eq!(host.close(), Some(0));
    host.assert_clean();
    // Afterwards nothing is pending any more.
    let mut lines = deferred_transcript(REFUND);
    lines.extend(host.transcript());
    let mut third = resume(DENY, lines);
    third.prompt("script: recall");
    assert_eq!(third.requests("hook_callback"), Vec::<Value>::new());
    assert_eq!(text_result(&third.frames), [format!("recalled: {REFUND}")]);
}

/// Section 6: no decision and `ask` reach can_use_tool, whose denial has no prefix.
#[test]
fn an_undecided_resumed_call_is_asked_about() {
    for hook in ["{}", ASK] {
        let mut host = Host::deciding(resumed_config(deferred_transcript(REFUND)), hook);
        host.ask = Box::new(|_| json!({"behavior": "deny", "message": "too risky"}));
        host.initialize();
        assert_eq!(host.tool_results()[0]["content"], "too risky");
        assert_eq!(host.calls(), Vec::<Value>::new());
        host.assert_clean();
    }
}

/// Section 6: a denial with `interrupt` ends the resumed turn.
#[test]
fn a_denial_with_interrupt_ends_the_turn() {
    let mut host = Host::deciding(resumed_config(deferred_transcript(REFUND)), ASK);
    host.ask = Box::new(|_| json!({"behavior": "deny", "message": "stop", "interrupt": true}));
    host.initialize();
    assert_eq!(host.results()[0]["terminal_reason"], "aborted_streaming");
    assert_eq!(host.close(), Some(1));
}

/// Section 6: of two deferred calls the second resumes, and the model no longer sees the first.
#[test]
fn the_last_of_two_deferrals_resumes() {
    let host = resume(
        ALLOW,
        deferred_transcript(r#"script: call create_refund {"n":1} && create_refund {"n":2}"#),
    );
    let hooks = host.requests("hook_callback");
    assert_eq!(hooks[0]["input"]["tool_input"], json!({"n": 2}));
    // The scripted model misses the first one and calls it again.
    assert_eq!(hooks[1]["input"]["tool_input"], json!({"n": 1}));
    host.assert_clean();
}

/// 0.1: with blanks in the JSON a finished deferral runs again.
#[test]
fn a_spaced_transcript_runs_a_finished_call_again() {
    let mut lines = deferred_transcript(REFUND);
    let mut second = resume(ALLOW, lines.clone());
    second.close();
    lines.extend(second.transcript());
    let spaced: Vec<String> = lines.iter().map(|it| it.replace("\":", "\": ")).collect();
    assert_eq!(resume(ALLOW, lines).calls(), Vec::<Value>::new());
    assert_eq!(resume(ALLOW, spaced).calls().len(), 1);
}

/// 0.2: without --await-initialize the hooks are skipped and the host is asked.
#[test]
fn without_await_initialize_the_hooks_are_skipped() {
    let mut config = resumed_config(deferred_transcript(REFUND));
    config.arguments.retain(|it| it != "--await-initialize");
    let mut host = Host::deciding(config, DENY);
    host.initialize();
    assert_eq!(host.requests("hook_callback"), Vec::<Value>::new());
    assert_eq!(host.requests("can_use_tool").len(), 1);
    assert_eq!(host.calls().len(), 1);
}

/// Section 6: a prompt sent with the resume comes second, and is a violation of ours.
#[test]
fn a_prompt_waits_for_the_deferral() {
    let mut host = Host::start(resumed_config(deferred_transcript(REFUND)));
    host.hook = Box::new(|_| None);
    host.initialize();
    host.prompt("script: say late");
    let request = host
        .frames
        .iter()
        .find(|it| it["request"]["subtype"] == "hook_callback")
        .unwrap();
    let id = request["request_id"].as_str().unwrap().to_owned();
    host.respond(&id, &serde_json::from_str(ALLOW).unwrap());
    assert_eq!(
        text_result(&host.frames),
        [r#"create_refund: create_refund ran {"n":1}"#, "said: late"]
    );
    assert_eq!(
        host.cli.violations(),
        ["a prompt came while a deferred call resumes"]
    );
}

/// Kills a process while the hook of its last call is open, and returns what was mirrored.
fn killed_transcript(prompt: &str) -> Vec<String> {
    let mut host = Host::start(config());
    host.hook = Box::new(|_| None);
    host.initialize();
    host.prompt(prompt);
    host.cli.kill();
    host.transcript()
}

fn tool_uses(lines: &[String]) -> Vec<(String, Value)> {
    lines
        .iter()
        .map(|it| serde_json::from_str::<Value>(it).unwrap())
        .filter(|it| it["message"]["content"][0]["type"] == "tool_use")
        .map(|it| {
            (
                it["uuid"].as_str().unwrap().to_owned(),
                it["message"]["content"][0].clone(),
            )
        })
        .collect()
}

fn appended_result(assistant: &str, call: &Value, uuid: &str, text: &str) -> String {
    json!({
        "parentUuid": assistant, "isSidechain": false, "type": "user", "uuid": uuid, "sourceToolAssistantUUID": assistant,
        "message": {"role": "user", "content": [{"tool_use_id": call["id"], "type": "tool_result", "content": [{"type": "text", "text": text}]}]},
    })
    .to_string()
}

fn made_up_deferral(parent: &str, call: &Value) -> String {
    json!({
        "parentUuid": parent, "isSidechain": false, "type": "attachment", "uuid": "d1",
        "attachment": {"type": "hook_deferred_tool", "toolUseID": call["id"], "toolName": call["name"], "toolInput": call["input"], "hookName": "settings", "hookEvent": "PreToolUse", "permissionMode": "default"},
    })
    .to_string()
}

/// 17c: a made-up deferral makes the process run the call.
#[test]
fn a_made_up_deferral_runs_the_call() {
    let mut lines = killed_transcript(r#"script: call Bash {"command":"echo x"}"#);
    let (assistant, call) = tool_uses(&lines).remove(0);
    lines.push(made_up_deferral(&assistant, &call));
    let mut host = resume(ALLOW, lines);
    assert!(host.cli.poll_effect().is_some());
    assert_eq!(text_result(&host.frames), ["Bash: x"]);
    host.assert_clean();
}

/// 17d: appended results and the variable: one model call, no hook, no tools/call.
#[test]
fn appended_results_let_the_turn_go_on() {
    let mut lines =
        killed_transcript(r#"script: call create_refund {"n":1} && create_refund {"n":2}"#);
    for (index, (assistant, call)) in tool_uses(&lines).into_iter().enumerate() {
        lines.push(appended_result(
            &assistant,
            &call,
            &format!("r{index}"),
            &format!("done {index}"),
        ));
    }
    let mut config = resumed_config(lines.clone());
    config.environment.insert(
        "CLAUDE_CODE_RESUME_INTERRUPTED_TURN".to_owned(),
        "1".to_owned(),
    );
    let mut host = Host::deciding(config, DENY);
    host.initialize();
    assert_eq!(
        text_result(&host.frames),
        ["create_refund: done 0\ncreate_refund: done 1"]
    );
    assert_eq!(host.results()[0]["resume_reason"], "interrupted_turn");
    assert_eq!(host.requests("hook_callback"), Vec::<Value>::new());
    assert_eq!(host.close(), Some(0));
    host.assert_clean();
    // Without the variable the process waits.
    assert_eq!(resume(DENY, lines).results(), Vec::<Value>::new());
}

/// 17e: appended results and one made-up deferral together.
#[test]
fn results_and_a_deferral_go_together() {
    let mut lines =
        killed_transcript(r#"script: call create_refund {"n":1} && Bash {"command":"echo x"}"#);
    let uses = tool_uses(&lines);
    lines.push(appended_result(&uses[0].0, &uses[0].1, "r1", "done"));
    lines.push(made_up_deferral("r1", &uses[1].1));
    let host = resume(ALLOW, lines);
    assert_eq!(host.requests("hook_callback").len(), 1);
    assert_eq!(text_result(&host.frames), ["create_refund: done\nBash: x"]);
    host.assert_clean();
}

/// 17f: a turn cut after its prompt, or after an inline call without a result, asks the model again.
#[test]
fn an_interrupted_turn_asks_the_model_again() {
    let all = killed_transcript("script: call lookup {}");
    let cut = all
        .iter()
        .position(|it| it.contains("\"tool_use\""))
        .unwrap();
    for lines in [all[..cut].to_vec(), all] {
        let mut config = resumed_config(lines);
        config.environment.insert(
            "CLAUDE_CODE_RESUME_INTERRUPTED_TURN".to_owned(),
            "1".to_owned(),
        );
        let mut host = Host::start(config);
        host.initialize();
        assert_eq!(text_result(&host.frames), ["lookup: lookup ran {}"]);
        host.assert_clean();
    }
}

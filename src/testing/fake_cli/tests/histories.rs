//! Random histories: whatever the host does, the machine neither panics nor breaks its own rules.

use std::collections::BTreeSet;
use std::time::Duration;

use super::*;

/// A small generator, so that a seed names a history.
struct Draw(u64);

impl Draw {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % end
    }
}

const PROMPTS: [&str; 7] = [
    r#"script: call create_refund {"n":1} && lookup {"n":2} && Bash {"command":"x"}"#,
    r#"script: call lookup {"n":1} && lookup {"n":2} && NoSuchTool {}"#,
    r#"script: call Agent {"prompt":"script: call create_refund {} && lookup {}"} && lookup {}"#,
    r#"script: call Bash {"command":"sleep 1"} && create_refund {} ;; pause g"#,
    "script: call lookup {} ;; reuse create_refund {}",
    "script: stall g",
    "script: call lookup {} ;; fail",
];

const ANSWERS: [&str; 8] = [
    ALLOW,
    ALLOW,
    DENY,
    ASK,
    DEFER,
    "{}",
    r#"{"continue":false}"#,
    "\"boom\"",
];

/// Plays one history and returns all frames.
fn play(seed: u64) -> Vec<Value> {
    let mut draw = Draw(seed);
    let mut cli = FakeCli::new(config());
    let mut frames: Vec<Value> = Vec::new();
    let mut open: Vec<Value> = Vec::new();
    cli.handle_line(&json!({"type": "control_request", "request_id": "h", "request": {"subtype": "initialize", "hooks": {
        "PreToolUse": [{"hookCallbackIds": ["hook_0"], "timeout": 5}, {"hookCallbackIds": ["hook_1"]}],
        "PostToolBatch": [{"hookCallbackIds": ["hook_2"]}],
    }}}).to_string());
    for step in 0..60 {
        while let Some(line) = cli.poll_line() {
            let frame: Value = serde_json::from_str(&line).unwrap();
            if frame["type"] == "control_request" {
                open.push(frame.clone());
            }
            frames.push(frame);
        }
        match draw.below(12) {
            0 => {
                let prompt = PROMPTS[draw.below(PROMPTS.len())];
                cli.handle_line(&json!({"type": "user", "message": {"role": "user", "content": prompt}}).to_string());
            }
            1 if draw.below(4) == 0 => cli.handle_line(&json!({"type": "control_request", "request_id": format!("i{step}"), "request": {"subtype": "interrupt"}}).to_string()),
            2 => cli.handle_time(Duration::from_secs(step)),
            3 => cli.open_gate(["g", "sleep"][draw.below(2)]),
            4 if draw.below(20) == 0 => cli.handle_input_closed(),
            _ if !open.is_empty() => {
                let request = open.swap_remove(draw.below(open.len()));
                cli.handle_line(&answer(&request, &mut draw).to_string());
            }
            _ => {}
        }
    }
    cli.handle_terminate();
    while let Some(line) = cli.poll_line() {
        frames.push(serde_json::from_str(&line).unwrap());
    }
    assert!(cli.poll_exit().is_some(), "seed {seed}");
    frames
}

fn answer(request: &Value, draw: &mut Draw) -> Value {
    let inner = &request["request"];
    let message = &inner["message"];
    let response = match (
        inner["subtype"].as_str().unwrap(),
        message["method"].as_str(),
    ) {
        ("hook_callback", _) => serde_json::from_str(ANSWERS[draw.below(ANSWERS.len())]).unwrap(),
        ("can_use_tool", _) if draw.below(2) == 0 => json!({"behavior": "allow"}),
        ("can_use_tool", _) => {
            json!({"behavior": "deny", "message": "no", "interrupt": draw.below(3) == 0})
        }
        (_, Some("tools/list")) => {
            json!({"mcp_response": {"id": message["id"], "result": {"tools": [
                {"name": "lookup", "annotations": {"readOnlyHint": true}}, {"name": "create_refund"},
            ]}}})
        }
        (_, Some("tools/call")) => {
            json!({"mcp_response": {"id": message["id"], "result": {"content": [{"type": "text", "text": "ok"}]}}})
        }
        _ => json!({"mcp_response": {"id": message["id"], "result": {}}}),
    };
    json!({"type": "control_response", "response": {"subtype": "success", "request_id": request["request_id"], "response": response}})
}

/// Entries chain, uuids are unique, each result names a call that was made before it, and every
/// tools/call names a call of the model.
#[test]
fn any_history_keeps_the_rules_of_the_transcript() {
    let mut endings: BTreeSet<String> = BTreeSet::new();
    for seed in 0..150 {
        let frames = play(seed);
        endings.extend(
            frames
                .iter()
                .filter_map(|it| it["terminal_reason"].as_str().map(str::to_owned)),
        );
        let entries: Vec<&Value> = frames
            .iter()
            .filter(|it| {
                it["type"] == "transcript_mirror"
                    && !it["filePath"].as_str().unwrap().contains("subagents")
            })
            .flat_map(|it| it["entries"].as_array().unwrap())
            .filter(|it| it["uuid"].is_string())
            .collect();
        let mut known: BTreeSet<&str> = BTreeSet::new();
        let mut calls: BTreeSet<&str> = BTreeSet::new();
        for entry in entries {
            let is_root = entry["parentUuid"].is_null() && known.is_empty();
            assert!(
                is_root || known.contains(entry["parentUuid"].as_str().unwrap()),
                "seed {seed}: {entry}"
            );
            assert!(
                known.insert(entry["uuid"].as_str().unwrap()),
                "seed {seed}: {entry}"
            );
            let block = &entry["message"]["content"][0];
            match block["type"].as_str() {
                Some("tool_use") => drop(calls.insert(block["id"].as_str().unwrap())),
                Some("tool_result") => assert!(
                    calls.contains(block["tool_use_id"].as_str().unwrap()),
                    "seed {seed}: {entry}"
                ),
                _ => {}
            }
        }
        let said: BTreeSet<&str> = frames
            .iter()
            .filter(|it| it["type"] == "assistant")
            .filter_map(|it| it["message"]["content"][0]["id"].as_str())
            .collect();
        for frame in frames
            .iter()
            .filter(|it| it["request"]["message"]["method"] == "tools/call")
        {
            let id = &frame["request"]["message"]["params"]["_meta"]["claudecode/toolUseId"];
            assert!(said.contains(id.as_str().unwrap()), "seed {seed}: {frame}");
        }
    }
    // The histories reach every end that the host can bring about.
    let reached: Vec<&str> = endings.iter().map(String::as_str).collect();
    assert_eq!(
        reached,
        [
            "aborted_streaming",
            "aborted_tools",
            "completed",
            "hook_stopped",
            "tool_deferred"
        ]
    );
}

/// The same seed gives the same bytes.
#[test]
fn a_history_repeats_exactly() {
    for seed in [3, 77, 311] {
        assert_eq!(play(seed), play(seed));
    }
}

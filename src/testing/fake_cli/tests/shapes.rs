//! Frames, in order and by their keys, beside excerpts of recordings of 2.1.316.

use std::collections::BTreeSet;

use super::host::deferred_transcript;
use super::*;

/// What the fake leaves out of frames and entries: times, and what no host needs.
const LEFT_OUT: [&str; 18] = [
    "attributionMcpServer",
    "attributionMcpTool",
    "error",
    "first_content_frame_ms",
    "first_request_input_tokens",
    "permissionDecision",
    "request_sent_wall_ms",
    "retryInMs",
    "sandboxed",
    "source",
    "thinking_display",
    "time_to_request_ms",
    "toolDenialKind",
    "ttft_ms",
    "ttft_stream_ms",
    "turnAttributionKey",
    "turnPosition",
    "apiErrorStatus",
];

fn shape(frame: &Value) -> (String, BTreeSet<String>) {
    let text = |it: &Value| it.as_str().unwrap_or_default().to_owned();
    let mut names = vec![text(&frame["type"])];
    let mut keys: BTreeSet<String> = frame.as_object().unwrap().keys().cloned().collect();
    match names[0].as_str() {
        "system" => names.extend([text(&frame["subtype"]), text(&frame["state"])]),
        "command_lifecycle" => names.push(text(&frame["state"])),
        "result" => names.push(text(&frame["subtype"])),
        "stream_event" => {
            let event = &frame["event"];
            names.extend([
                text(&event["type"]),
                text(&event["content_block"]["type"]),
                text(&event["delta"]["type"]),
            ]);
        }
        "assistant" | "user" => {
            let block = &frame["message"]["content"][0];
            names.push(text(&block["type"]));
            keys.extend(
                block
                    .as_object()
                    .into_iter()
                    .flatten()
                    .map(|it| format!("block.{}", it.0)),
            );
        }
        "attachment" => {
            names.push(text(&frame["attachment"]["type"]));
            // The others are bulky, no host reads them, and the excerpts leave them out.
            if names[1].starts_with("hook_") {
                let attachment = frame["attachment"].as_object().unwrap();
                keys.extend(attachment.keys().map(|it| format!("attachment.{it}")));
            }
        }
        "control_request" => {
            let request = &frame["request"];
            names.extend([
                text(&request["subtype"]),
                text(&request["message"]["method"]),
            ]);
            keys.extend(
                request
                    .as_object()
                    .unwrap()
                    .keys()
                    .map(|it| format!("request.{it}")),
            );
            keys.extend(
                request["input"]
                    .as_object()
                    .into_iter()
                    .flatten()
                    .map(|it| format!("input.{}", it.0)),
            );
        }
        _ => {}
    }
    (names.join(" ").trim().to_owned(), keys)
}

/// Compares frames by order and keys, and mirrored entries by order, chain and keys.
fn assert_like(name: &str, recorded: &str, frames: &[Value]) {
    let recorded: Vec<Value> = recorded
        .lines()
        .map(|it| serde_json::from_str(it).unwrap())
        .collect();
    let is_mirror = |it: &&Value| it["type"] == "transcript_mirror";
    let split = |frames: &[Value]| -> (Vec<Value>, Vec<Value>) {
        let entries = frames
            .iter()
            .filter(is_mirror)
            .flat_map(|it| it["entries"].as_array().unwrap().clone())
            .filter(|it| it["isSidechain"].is_boolean())
            .collect();
        (
            frames.iter().filter(|it| !is_mirror(it)).cloned().collect(),
            entries,
        )
    };
    let (real, real_entries) = split(&recorded);
    let (fake, fake_entries) = split(frames);
    compare(name, &real, &fake);
    compare(&format!("{name}, entries"), &real_entries, &fake_entries);
    assert_eq!(
        chain(&fake_entries),
        chain(&real_entries),
        "{name}: parents"
    );
}

fn compare(name: &str, real: &[Value], fake: &[Value]) {
    let names = |frames: &[Value]| frames.iter().map(|it| shape(it).0).collect::<Vec<_>>();
    assert_eq!(names(fake), names(real), "{name}: order");
    for (fake, real) in fake.iter().zip(real) {
        let ((kind, fake), (_, real)) = (shape(fake), shape(real));
        let invented: Vec<_> = fake.difference(&real).collect();
        assert_eq!(
            invented,
            Vec::<&String>::new(),
            "{name}: {kind} has keys that the real one has not"
        );
        let missing: Vec<_> = real
            .difference(&fake)
            .filter(|it| !LEFT_OUT.contains(&it.as_str()))
            .collect();
        assert_eq!(missing, Vec::<&String>::new(), "{name}: {kind} lacks keys");
    }
}

/// Where each entry's parent stands among the entries before it.
fn chain(entries: &[Value]) -> Vec<Option<usize>> {
    entries
        .iter()
        .map(|it| {
            entries
                .iter()
                .position(|other| other["uuid"] == it["parentUuid"])
        })
        .collect()
}

macro_rules! recorded {
    ($name:literal) => {
        include_str!(concat!(
            "../../../../fixtures/lines/2.1.316/",
            $name,
            ".jsonl"
        ))
    };
}

const DEFERRED_REFUND: &str =
    r#"script: call create_refund {"orderId":"7","amount":5} ;; tell I will refund."#;

fn run(hook: &str, prompt: &str) -> Host {
    let mut host = Host::deciding(config(), hook);
    host.initialize_and_prompt(prompt);
    host.close();
    host.assert_clean();
    host
}

fn resume(hook: &str, transcript: Vec<String>) -> Host {
    let mut host = Host::deciding(resumed_config(transcript), hook);
    host.initialize();
    host.close();
    host.assert_clean();
    host
}

/// M10, M13: a plain turn looks like the recorded one.
#[test]
fn a_plain_turn_is_like_the_real_one() {
    assert_like(
        "plain",
        recorded!("plain"),
        &run(ALLOW, "script: say hi").frames,
    );
}

/// M11, M14: a deferral looks like the recorded one.
#[test]
fn a_deferral_is_like_the_real_one() {
    assert_like(
        "defer",
        recorded!("defer"),
        &run(DEFER, DEFERRED_REFUND).frames,
    );
}

/// The results of parallel reads come in the model's order, and chain as the real ones do.
#[test]
fn two_parallel_reads_are_like_the_real_ones() {
    let host = run(
        ALLOW,
        r#"script: call lookup {"orderId":"1"} && lookup {"orderId":"2"}"#,
    );
    assert_like(
        "inline_two_parallel",
        recorded!("inline_two_parallel"),
        &host.frames,
    );
}

/// M14: the resumed call comes before system/init, and its result hangs on the tool use.
#[test]
fn a_resumed_call_is_like_the_real_one() {
    let host = resume(ALLOW, deferred_transcript(DEFERRED_REFUND));
    assert_like(
        "resume_allow_text",
        recorded!("resume_allow_text"),
        &host.frames,
    );
    let host = resume(DENY, deferred_transcript(DEFERRED_REFUND));
    assert_like(
        "resume_hook_deny",
        recorded!("resume_hook_deny"),
        &host.frames,
    );
    let host = resume(DEFER, deferred_transcript(DEFERRED_REFUND));
    assert_like(
        "resume_defer_again",
        recorded!("resume_defer_again"),
        &host.frames,
    );
}

/// M30: an approved Bash call that the hook sent to the host looks like the recorded one.
#[test]
fn a_resumed_bash_call_is_like_the_real_one() {
    let prompt =
        r#"script: call Bash {"command":"echo APPROVED","description":"d"} ;; tell I will run it."#;
    let host = resume(ASK, deferred_transcript(prompt));
    assert_like("bash_ask_allow", recorded!("bash_ask_allow"), &host.frames);
}

/// M15: the unavailable server's result looks like the recorded one.
#[test]
fn an_unavailable_server_is_like_the_real_one() {
    let mut config = resumed_config(deferred_transcript(DEFERRED_REFUND));
    config.arguments.retain(|it| !it.contains("mcp"));
    let mut host = Host::start(config);
    host.send(&json!({"type": "control_request", "request_id": "host-1", "request": {"subtype": "initialize"}}));
    // Without servers the real process is faster than its own answer to initialize.
    let is_answer = |it: &Value| it["type"] == "control_response";
    host.frames.retain(|it| !is_answer(it));
    let end = host
        .frames
        .iter()
        .position(|it| it["type"] == "result")
        .unwrap();
    assert_like(
        "unavailable_no_mcp_at_all",
        &recorded!("unavailable_no_mcp_at_all")
            .lines()
            .filter(|it| !it.contains("\"control_response\""))
            .collect::<Vec<_>>()
            .join("\n"),
        &host.frames[..=end],
    );
    assert_eq!(host.close(), Some(1));
}

#[test]
fn an_interrupt_during_a_hook_is_like_the_real_one() {
    let mut host = Host::start(config());
    host.hook = Box::new(|_| None);
    host.initialize_and_prompt(r#"script: call create_refund {"orderId":"7"}"#);
    host.send(&json!({"type": "control_request", "request_id": "host-2", "request": {"subtype": "interrupt"}}));
    assert_eq!(host.close(), Some(1));
    host.assert_clean();
    assert_like(
        "interrupt_during_hook",
        recorded!("interrupt_during_hook"),
        &host.frames,
    );
}

#[test]
fn an_overloaded_api_is_like_the_real_one() {
    let mut config = config();
    config
        .environment
        .insert("CLAUDE_CODE_MAX_RETRIES".to_owned(), "2".to_owned());
    config.faults = vec![Fault::ApiError {
        status: 529,
        at_model_call: 1,
        recovers: false,
    }];
    let mut host = Host::start(config);
    host.initialize_and_prompt("script: say hi");
    assert_eq!(host.close(), Some(1));
    assert_like("error_529", recorded!("error_529"), &host.frames);
}

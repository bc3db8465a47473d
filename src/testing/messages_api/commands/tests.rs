use serde_json::{Value, json};

use super::super::model::{ModelScript, UnservedReason};
use super::super::reply::{Answer, Block, HoldPoint, Reply};
use super::super::request::{ApiRequest, RequestKind};
use super::CommandError;

/// A main request of these messages that offers a lookup, a refund and two tools named `search`.
fn request(messages: Value) -> ApiRequest {
    let tools = [
        "Bash",
        "mcp__tools__lookup",
        "mcp__tools__refund",
        "mcp__a__search",
        "mcp__b__search",
    ];
    let tools: Vec<Value> = tools.iter().map(|name| json!({ "name": name })).collect();
    ApiRequest {
        kind: RequestKind::Main,
        method: "POST".to_owned(),
        path: "/v1/messages".to_owned(),
        headers: Default::default(),
        body: json!({ "model": "m", "tools": tools, "messages": messages }),
        received_after: Default::default(),
    }
}

fn answer(messages: Value) -> Result<Answer, UnservedReason> {
    ModelScript::commands().answer(&request(messages))
}

#[track_caller]
fn check(messages: Value, expected: Reply) {
    assert_eq!(answer(messages), Ok(Answer::Reply(expected)));
}

fn prompt(text: &str) -> Value {
    json!({ "role": "user", "content": [
        { "type": "text", "text": "<system-reminder>\nToday is a day.\n</system-reminder>" },
        { "type": "text", "text": text },
    ] })
}

fn calls(calls: &[(&str, &str, Value)]) -> Value {
    let blocks = calls.iter().map(
        |(id, name, input)| json!({ "type": "tool_use", "id": id, "name": name, "input": input }),
    );
    json!({ "role": "assistant", "content": blocks.collect::<Vec<_>>() })
}

fn results(results: &[(&str, &str, bool)]) -> Value {
    let blocks = results.iter().map(|(id, text, is_error)| {
        json!({
            "type": "tool_result", "tool_use_id": id, "is_error": is_error,
            "content": [{ "type": "text", "text": text }],
        })
    });
    json!({ "role": "user", "content": blocks.collect::<Vec<_>>() })
}

fn assistant(text: &str) -> Value {
    json!({ "role": "assistant", "content": [{ "type": "text", "text": text }] })
}

fn system() -> Value {
    json!({ "role": "system", "content": "<system-reminder>\nscript: say no\n</system-reminder>" })
}

/// The model says what the last prompt tells it, whatever the CLI writes after it.
#[test]
fn say_answers_the_text() {
    check(
        json!([prompt("script: say hello"), system()]),
        Reply::text("said: hello"),
    );
    check(
        json!([prompt("A note.\nscript: say two\nlines")]),
        Reply::text("said: two\nlines"),
    );
    check(
        json!([{ "role": "user", "content": "script: say a string" }]),
        Reply::text("said: a string"),
    );
}

/// The model sees the whole session, notes of the CLI left out.
#[test]
fn recall_answers_every_earlier_prompt() {
    let messages = json!([
        prompt("script: say one"),
        assistant("said: one"),
        { "role": "user", "content": "[Request interrupted by user]" },
        prompt("two"),
        assistant("No response requested."),
        prompt("script: recall"),
        system(),
    ]);
    check(messages, Reply::text("recalled: script: say one | two"));
}

/// Calls joined by `&&` are one reply, under the names that the request offers.
#[test]
fn call_makes_its_calls_in_one_reply() {
    let text =
        r#"script: call lookup {"q":"a && b ;; c"} && call Bash {} && call search {} ;; pause g"#;
    let expected = Reply::blocks([
        Block::tool_use("mcp__tools__lookup", json!({ "q": "a && b ;; c" })),
        Block::tool_use("Bash", json!({})),
        Block::tool_use("search", json!({})),
    ]);
    check(json!([prompt(text), system()]), expected);
}

/// Results are told in the script's names, although a system message follows them: a model that
/// looked at the last message alone would call for ever.
#[test]
fn a_call_with_all_results_is_answered() {
    let messages = json!([
        prompt(r#"script: call lookup {"q":1} && call Bash {} ;; pause before-answer"#),
        calls(&[
            ("t1", "mcp__tools__lookup", json!({ "q": 1 })),
            ("t2", "Bash", json!({}))
        ]),
        results(&[("t1", "order 1", false), ("t2", "exit 1", true)]),
        system(),
    ]);
    let expected = Reply::text("lookup: order 1 | Bash failed: exit 1")
        .hold(HoldPoint::BeforeAnswer, "before-answer");
    check(messages, expected);
}

/// Each call that is told to come again comes again once and alone, in order, and then its new
/// result is told.
#[test]
fn a_call_refused_to_run_alone_is_called_again_by_itself() {
    let refund = |order: u32| json!({ "order": order });
    let name = "mcp__tools__refund";
    let again = "refund did not run. Call refund again by itself.";
    let mut messages = vec![
        prompt(
            r#"script: call refund {"order":1} && call refund {"order":2} && call refund {"order":3}"#,
        ),
        calls(&[
            ("t1", name, refund(1)),
            ("t2", name, refund(2)),
            ("t3", name, refund(3)),
        ]),
        results(&[
            ("t1", "did 1", false),
            ("t2", again, true),
            ("t3", again, true),
        ]),
    ];
    check(json!(messages), Reply::tool_use(name, refund(2)));
    messages.push(calls(&[("t4", name, refund(2))]));
    messages.push(results(&[("t4", "did 2", false)]));
    check(json!(messages), Reply::tool_use(name, refund(3)));
    messages.push(calls(&[("t5", name, refund(3))]));
    messages.push(results(&[("t5", "no money", true)]));
    let expected = "refund: did 1 | refund: did 2 | refund failed: no money";
    check(json!(messages), Reply::text(expected));
}

/// A script of an earlier turn is not played again for a prompt that has none.
#[test]
fn a_prompt_without_a_script_is_unserved() {
    let messages = json!([
        prompt("script: say one"),
        assistant("said: one"),
        prompt("do it, as in script: say no"),
    ]);
    assert_eq!(answer(messages), Err(UnservedReason::NoRule));
    assert_eq!(answer(json!([system()])), Err(UnservedReason::NoRule));
}

/// A script that cannot be played says why, instead of being taken for something else.
#[test]
fn a_malformed_script_is_unserved_with_its_reason() {
    let cases = [
        (
            "dance",
            CommandError::Unknown {
                command: "dance".to_owned(),
            },
        ),
        (
            "recall ;; fail",
            CommandError::UnknownTrailer {
                trailer: ";; fail".to_owned(),
            },
        ),
        (
            "call Bash {} ;; pause ",
            CommandError::UnknownTrailer {
                trailer: ";; pause".to_owned(),
            },
        ),
        (
            "call Bash",
            CommandError::MalformedCall {
                call: "Bash".to_owned(),
            },
        ),
        (
            "call Bash 7",
            CommandError::MalformedCall {
                call: "Bash 7".to_owned(),
            },
        ),
        (
            "call Bash {} && Bash {}",
            CommandError::MalformedCall {
                call: "Bash {} && Bash {}".to_owned(),
            },
        ),
    ];
    for (command, source) in cases {
        assert_eq!(
            answer(json!([prompt(&format!("script: {command}"))])),
            Err(UnservedReason::Command { source }),
        );
    }
}

use serde_json::{Value, json};

use super::super::model::{ModelScript, UnservedReason};
use super::super::reply::{Answer, Block, Failure, HoldPoint, Reply};
use super::super::request::{ApiRequest, RequestKind};
use super::{ScriptError, THINKING_SIGNATURE};

/// A main request of these messages that offers Bash, a lookup and a refund.
fn request(messages: Value) -> ApiRequest {
    let tools = ["Bash", "mcp__tools__lookup", "mcp__tools__refund"];
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

/// Calls joined by `&&` are one reply, under the names that the request offers, after what the
/// script lets the model think.
#[test]
fn call_makes_its_calls_in_one_reply() {
    let text = r#"script: think hm ;; call lookup {"q":"a && b ;; c"} && call Bash {} && nowhere {} ;; pause g"#;
    let expected = Reply::blocks([
        Block::thinking("hm", THINKING_SIGNATURE),
        Block::tool_use("mcp__tools__lookup", json!({ "q": "a && b ;; c" })),
        Block::tool_use("Bash", json!({})),
        Block::tool_use("nowhere", json!({})),
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
    let expected =
        Reply::text("lookup: order 1\nBash: exit 1").hold(HoldPoint::BeforeAnswer, "before-answer");
    check(messages, expected);
}

/// A person's message reaches the model wherever the CLI puts it, and is not the next prompt.
#[test]
fn a_message_during_the_turn_shows_in_the_answer() {
    let message = "The user sent a new message while you were working:\nbe brief\n\nThis is how Claude Code surfaces messages the user sends mid-turn";
    let reminder = format!("<system-reminder>\n{message}\n</system-reminder>");
    let result =
        |content: Value| json!({ "type": "tool_result", "tool_use_id": "t1", "content": content });
    let text = |text: &str| json!({ "type": "text", "text": text });
    let user = |content: &[Value]| json!({ "role": "user", "content": content });
    let beside = [user(&[result(json!("one")), text(message)]), system()];
    let in_system = [
        user(&[result(json!("one"))]),
        json!({ "role": "system", "content": [text(&reminder)] }),
    ];
    let inside = [
        user(&[result(json!([text("one"), text(&reminder)]))]),
        system(),
    ];
    let joined = [
        user(&[result(json!(format!("one\n\n{reminder}")))]),
        system(),
    ];
    for tail in [beside, in_system, inside, joined] {
        let head = [
            prompt("script: call Bash {}"),
            calls(&[("t1", "Bash", json!({}))]),
        ];
        let messages = json!([head, tail].concat());
        let seen = request(messages.clone()).turn().map(|turn| turn.steered);
        assert_eq!(seen, Some(vec!["be brief".to_owned()]));
        check(messages, Reply::text("Bash: one\nsteered: be brief"));
    }
}

/// The CLI joins messages into one text where a tool's result is a text.
#[test]
fn several_messages_during_the_turn_all_show_in_the_answer() {
    let reminder = |said: &str| {
        format!(
            "<system-reminder>\nThe user sent a new message while you were working:\n{said}\n\nThis is how Claude Code surfaces messages the user sends mid-turn\n</system-reminder>"
        )
    };
    let content = format!("one\n\n{}\n{}", reminder("be quick"), reminder("be kind"));
    let messages = json!([
        prompt("script: call Bash {}"),
        calls(&[("t1", "Bash", json!({}))]),
        json!({ "role": "user", "content": [
            { "type": "tool_result", "tool_use_id": "t1", "content": content }
        ]}),
    ]);
    check(
        messages,
        Reply::text("Bash: one\nsteered: be quick\nsteered: be kind"),
    );
}

/// What a script does to a stream and to ids is what the language says.
#[test]
fn stall_reuse_and_fail_are_played() {
    let called = calls(&[("t1", "mcp__tools__lookup", json!({}))]);
    let found = results(&[("t1", "order 1", false)]);
    check(
        json!([prompt("script: stall g"), called, found]),
        Reply::text("lookup: order 1").hold(HoldPoint::InBlock(0), "g"),
    );
    check(
        json!([
            prompt("script: call lookup {} ;; reuse Bash {}"),
            called,
            found
        ]),
        Reply::blocks([Block::tool_use_as("t1", "Bash", json!({}))]),
    );
    let failure = Failure::new(400, "invalid_request_error");
    assert_eq!(
        answer(json!([prompt("script: fail")])),
        Ok(Answer::Failure(failure))
    );
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
    let expected = "refund: did 1\nrefund: did 2\nrefund: no money";
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

/// A script that cannot be read says why, instead of being taken for something else.
#[test]
fn a_malformed_script_is_unserved_with_its_reason() {
    let unknown = ScriptError::UnknownPart {
        part: "dance".to_owned(),
    };
    let arguments = ScriptError::Arguments {
        tool: "Bash".to_owned(),
    };
    for (command, source) in [("dance", unknown), ("call Bash", arguments)] {
        assert_eq!(
            answer(json!([prompt(&format!("script: {command}"))])),
            Err(UnservedReason::Script { source }),
        );
    }
}

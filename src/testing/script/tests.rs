//! Rules of the script language.

use serde_json::json;

use super::*;

fn prompt(text: &str) -> ScriptMessage {
    ScriptMessage::user(vec![ScriptBlock::Text(text.to_owned())])
}

fn used(id: &str, name: &str, input: Value) -> ScriptBlock {
    ScriptBlock::ToolUse {
        id: id.to_owned(),
        name: name.to_owned(),
        input,
    }
}

fn result(id: &str, text: &str, is_error: bool) -> ScriptMessage {
    ScriptMessage::user(vec![ScriptBlock::ToolResult {
        id: id.to_owned(),
        text: text.to_owned(),
        is_error,
    }])
}

fn text_of(reply: &ModelReply) -> &str {
    match reply {
        ModelReply::Answer { blocks, .. } => match &blocks[..] {
            [ReplyBlock::Text { text, .. }] => text,
            other => panic!("not one text: {other:?}"),
        },
        ModelReply::Fail => panic!("failed"),
    }
}

/// A command and its arguments may hold the language's own separators.
#[test]
fn the_arguments_of_a_call_end_where_their_json_ends() {
    let script = parse(
        r#"script: think hm ;; call Bash {"command":"a && b ;; c"} && lookup {} ;; pause g ;; fail"#,
    )
    .unwrap();
    assert_eq!(
        script.command,
        ScriptCommand::Call(vec![
            ScriptCall {
                tool: "Bash".to_owned(),
                input: json!({"command":"a && b ;; c"})
            },
            ScriptCall {
                tool: "lookup".to_owned(),
                input: json!({})
            },
        ])
    );
    assert_eq!(script.think.as_deref(), Some("hm"));
    assert_eq!(script.pause.as_deref(), Some("g"));
    assert!(script.fail_after_calls);
}

#[test]
fn a_text_that_is_no_script_says_why() {
    assert_eq!(
        parse("hello").unwrap().command,
        ScriptCommand::Say("hello".to_owned())
    );
    assert_eq!(
        parse("script: dance"),
        Err(ScriptError::UnknownPart {
            part: "dance".to_owned()
        })
    );
    assert_eq!(
        parse("script: call x"),
        Err(ScriptError::Arguments {
            tool: "x".to_owned()
        })
    );
    assert_eq!(parse("script: pause g"), Err(ScriptError::NoCommand));
    assert_eq!(parse("script: fail").unwrap().command, ScriptCommand::Fail);
    assert_eq!(
        parse("script: recall").unwrap().command,
        ScriptCommand::Recall
    );
}

#[test]
fn a_refused_call_is_made_again_alone_and_then_answered() {
    let tools = ["mcp__tools__a".to_owned(), "mcp__tools__b".to_owned()];
    let mut messages = vec![prompt(r#"script: call a {"n":1} && b {}"#)];
    let both = next_reply(&messages, &tools);
    assert_eq!(
        both,
        calls(vec![
            call("mcp__tools__a".to_owned(), json!({"n":1})),
            call("mcp__tools__b".to_owned(), json!({}))
        ])
    );
    messages.push(ScriptMessage::assistant(vec![
        used("1", "mcp__tools__a", json!({"n":1})),
        used("2", "mcp__tools__b", json!({})),
    ]));
    messages.push(result("1", "done", false));
    messages.push(result("2", "b did not run. Call b again by itself.", true));
    assert_eq!(
        next_reply(&messages, &tools),
        calls(vec![call("mcp__tools__b".to_owned(), json!({}))])
    );
    messages.push(ScriptMessage::assistant(vec![used(
        "3",
        "mcp__tools__b",
        json!({}),
    )]));
    messages.push(result("3", "fine", false));
    messages.push(prompt(CONTINUE_TEXT));
    assert_eq!(text_of(&next_reply(&messages, &tools)), "a: done\nb: fine");
}

#[test]
fn then_calls_one_after_the_other() {
    let mut messages = vec![prompt("script: call a {} ;; then b {} ;; then a {}")];
    let mut expected = Vec::new();
    for (id, name) in ["a", "b", "a"].into_iter().enumerate() {
        let called = calls(vec![call(name.to_owned(), json!({}))]);
        assert_eq!(next_reply(&messages, &[]), called);
        let id = id.to_string();
        messages.push(ScriptMessage::assistant(vec![used(&id, name, json!({}))]));
        messages.push(result(&id, &format!("result {id}"), false));
        expected.push(format!("{name}: result {id}"));
    }
    assert_eq!(text_of(&next_reply(&messages, &[])), expected.join("\n"));
}

#[test]
fn reuse_calls_under_the_first_id_and_reports_the_second_result() {
    let mut messages = vec![prompt("script: call a {} ;; reuse b {}")];
    messages.push(ScriptMessage::assistant(vec![used("1", "a", json!({}))]));
    messages.push(result("1", "one", false));
    assert_eq!(
        next_reply(&messages, &[]),
        calls(vec![ReplyBlock::ToolUse {
            name: "b".to_owned(),
            input: json!({}),
            reuse: Some("1".to_owned()),
            gate: None,
        }])
    );
    messages.push(ScriptMessage::assistant(vec![used("1", "b", json!({}))]));
    messages.push(result("1", "refused", true));
    assert_eq!(text_of(&next_reply(&messages, &[])), "reused b: refused");
}

#[test]
fn recall_names_earlier_prompts_and_the_earlier_blocks_of_this_one() {
    let messages = vec![
        prompt("first"),
        ScriptMessage::assistant(vec![ScriptBlock::Text("said: first".to_owned())]),
        ScriptMessage::user(vec![
            ScriptBlock::Text("failed prompt".to_owned()),
            ScriptBlock::Text("note".to_owned()),
            ScriptBlock::Text("script: recall".to_owned()),
        ]),
    ];
    assert_eq!(
        text_of(&next_reply(&messages, &[])),
        "recalled: first | failed prompt | note"
    );
}

#[test]
fn a_message_during_the_turn_shows_in_the_answer() {
    let messages = vec![
        prompt("script: call a {}"),
        ScriptMessage::assistant(vec![used("1", "a", json!({}))]),
        result("1", "one", false),
        prompt(&format!("{STEERING_PREFIX}be brief\n\nThis is how")),
    ];
    assert_eq!(
        text_of(&next_reply(&messages, &[])),
        "a: one\nsteered: be brief"
    );
}

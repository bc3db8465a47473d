//! Reads a prompt as a script.

use serde_json::Value;

use super::{SCRIPT_PREFIX, Script, ScriptCall, ScriptCommand, ScriptError};

/// Reads a prompt's last text block.
///
/// # Errors
/// [`ScriptError`]; the callers let the model say it.
pub fn parse(prompt: &str) -> Result<Script, ScriptError> {
    let mut script = Script {
        command: ScriptCommand::Say(prompt.to_owned()),
        think: None,
        tell: None,
        hold: None,
        pause: None,
        fail_after_calls: false,
        then: Vec::new(),
        reuse: None,
    };
    let Some(mut rest) = prompt.strip_prefix(SCRIPT_PREFIX) else {
        return Ok(script);
    };
    let mut command = None;
    while !rest.trim().is_empty() {
        rest = rest.trim_start();
        let (word, after) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        match word {
            "call" => {
                let (calls, left) = parse_calls(after)?;
                command = Some(ScriptCommand::Call(calls));
                rest = left;
                continue;
            }
            "then" => {
                let (call, left) = parse_call(after)?;
                script.then.push(call);
                rest = next_part(left).1;
                continue;
            }
            "reuse" => {
                let (call, left) = parse_call(after)?;
                script.reuse = Some(call);
                rest = next_part(left).1;
                continue;
            }
            _ => {}
        }
        let (argument, left) = next_part(after);
        let (word_alone, left) = if after.is_empty() {
            (word, "")
        } else {
            (word, left)
        };
        let argument = argument.trim().to_owned();
        match word_alone {
            "say" => command = Some(ScriptCommand::Say(argument)),
            "recall" => command = Some(ScriptCommand::Recall),
            "stall" => command = Some(ScriptCommand::Stall(argument)),
            "fail" if command.is_some() => script.fail_after_calls = true,
            "fail" => command = Some(ScriptCommand::Fail),
            "pause" => script.pause = Some(argument),
            "think" => script.think = Some(argument),
            "tell" => script.tell = Some(argument),
            "hold" => script.hold = Some(argument),
            _ => {
                return Err(ScriptError::UnknownPart {
                    part: word_alone.to_owned(),
                });
            }
        }
        rest = left;
    }
    script.command = command.ok_or(ScriptError::NoCommand)?;
    Ok(script)
}

fn parse_calls(text: &str) -> Result<(Vec<ScriptCall>, &str), ScriptError> {
    let mut calls = Vec::new();
    let mut rest = text;
    loop {
        let (call, left) = parse_call(rest)?;
        calls.push(call);
        let left = left.trim_start();
        match left.strip_prefix("&&") {
            Some(more) => {
                let more = more.trim_start();
                rest = more.strip_prefix("call ").unwrap_or(more);
            }
            None => return Ok((calls, next_part(left).1)),
        }
    }
}

/// Reads `<tool> <json>`. The JSON's own end counts, because a command may hold `&&` and `;;`.
fn parse_call(text: &str) -> Result<(ScriptCall, &str), ScriptError> {
    let text = text.trim_start();
    let (tool, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
    match values.next() {
        Some(Ok(input)) => {
            let end = values.byte_offset();
            Ok((
                ScriptCall {
                    tool: tool.to_owned(),
                    input,
                },
                &rest[end..],
            ))
        }
        Some(Err(_)) | None => Err(ScriptError::Arguments {
            tool: tool.to_owned(),
        }),
    }
}

fn next_part(text: &str) -> (&str, &str) {
    text.split_once(";;").unwrap_or((text, ""))
}

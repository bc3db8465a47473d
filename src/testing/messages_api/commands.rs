//! Plays the [script language](crate::testing::script) for a request: what the API's messages say
//! goes in, and the model's answer comes out.

#[cfg(test)]
mod tests;

use serde_json::Value;

use super::reply::{Answer, Block, Failure, HoldPoint, Reply};
use super::request::{ApiRequest, Heard, array, result_text, string, texts};
use crate::testing::script::{
    ModelReply, ReplyBlock, SCRIPT_PREFIX, STEERING_PREFIX, ScriptBlock, ScriptError,
    ScriptMessage, next_reply, parse,
};

/// The signature of scripted thinking; the CLI keeps it and does not read it.
const THINKING_SIGNATURE: &str = "c2lnbmF0dXJl";

/// Returns the model's next answer, or `None` when the last prompt is no script.
///
/// # Errors
///
/// [`ScriptError`] when the last prompt is a script that cannot be read.
pub(super) fn play(request: &ApiRequest) -> Option<Result<Answer, ScriptError>> {
    let prompts = request.prompts();
    let prompt = prompts.last()?;
    if !prompt.starts_with(SCRIPT_PREFIX) {
        return None;
    }
    let played = parse(prompt).map(|_| {
        let tools: Vec<String> = request.tools().into_iter().map(str::to_owned).collect();
        let messages: Vec<ScriptMessage> = array(&request.body["messages"])
            .iter()
            .map(script_message)
            .collect();
        answer(next_reply(&messages, &tools))
    });
    Some(played)
}

fn script_message(message: &Value) -> ScriptMessage {
    let content = &message["content"];
    match message["role"].as_str() {
        Some("assistant") => {
            ScriptMessage::assistant(array(content).iter().filter_map(model_block).collect())
        }
        Some("user") => {
            let blocks = array(content).iter().flat_map(user_blocks);
            ScriptMessage::user(
                content
                    .as_str()
                    .into_iter()
                    .flat_map(heard_text)
                    .chain(blocks)
                    .collect(),
            )
        }
        // The CLI's own words: the model heeds only what a person says through them.
        Some(_) | None => ScriptMessage::user(steered(texts(content)).collect()),
    }
}

fn model_block(block: &Value) -> Option<ScriptBlock> {
    match block["type"].as_str()? {
        "text" => Some(ScriptBlock::Text(string(&block["text"]))),
        "tool_use" => Some(ScriptBlock::ToolUse {
            id: string(&block["id"]),
            name: string(&block["name"]),
            input: block["input"].clone(),
        }),
        _ => None,
    }
}

fn user_blocks(block: &Value) -> Vec<ScriptBlock> {
    match block["type"].as_str() {
        Some("text") => block["text"]
            .as_str()
            .into_iter()
            .flat_map(heard_text)
            .collect(),
        Some("tool_result") => {
            let result = ScriptBlock::ToolResult {
                id: string(&block["tool_use_id"]),
                text: result_text(block),
                is_error: block["is_error"] == Value::Bool(true),
            };
            [result]
                .into_iter()
                .chain(steered(texts(&block["content"])))
                .collect()
        }
        Some(_) | None => Vec::new(),
    }
}

fn heard_text(text: &str) -> Vec<ScriptBlock> {
    let own = Heard::in_text(text).own;
    let own = (!own.is_empty()).then(|| ScriptBlock::Text(own.to_owned()));
    own.into_iter().chain(steered(vec![text])).collect()
}

fn steered(texts: Vec<&str>) -> impl Iterator<Item = ScriptBlock> {
    texts
        .into_iter()
        .flat_map(|text| Heard::in_text(text).steered)
        .map(|text| ScriptBlock::Text(format!("{STEERING_PREFIX}{text}\n")))
}

fn answer(reply: ModelReply) -> Answer {
    match reply {
        ModelReply::Answer { gate, blocks } => {
            let mut reply = Reply::blocks([]);
            for block in blocks {
                let index = reply.blocks.len();
                reply = match block {
                    ReplyBlock::Thinking(text) => {
                        reply.and(Block::thinking(text, THINKING_SIGNATURE))
                    }
                    ReplyBlock::Text { text, gate: None } => reply.and(Block::text(text)),
                    ReplyBlock::Text {
                        text,
                        gate: Some(gate),
                    } => reply
                        .and(Block::text(text))
                        .hold(HoldPoint::InBlock(index), gate),
                    ReplyBlock::ToolUse {
                        name,
                        input,
                        reuse,
                        gate,
                    } => {
                        let reply = reply.and(match reuse {
                            None => Block::tool_use(name, input),
                            Some(id) => Block::tool_use_as(id, name, input),
                        });
                        match gate {
                            None => reply,
                            Some(gate) => reply.hold(HoldPoint::AfterBlock(index), gate),
                        }
                    }
                };
            }
            match gate {
                Some(gate) => reply.hold(HoldPoint::BeforeAnswer, gate).into(),
                None => reply.into(),
            }
        }
        ModelReply::Fail => Failure::new(400, "invalid_request_error").into(),
    }
}

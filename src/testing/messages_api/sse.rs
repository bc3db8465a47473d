//! A reply as the Messages API sends it: as a stream of server-sent events, or as one message.

use serde_json::{Value, json};

use super::reply::{Block, HoldPoint, Reply, StreamFault};

/// One thing that the server does with a streamed answer.
#[derive(Debug, PartialEq)]
pub(super) enum Step {
    /// Sends text.
    Send(String),
    /// Waits at a gate.
    Hold(String),
    /// Cuts the connection.
    Cut,
}

/// A reply whose ids and model are settled.
#[derive(Debug)]
pub(super) struct SettledReply<'a> {
    pub(super) reply: &'a Reply,
    pub(super) message_id: &'a str,
    pub(super) model: &'a str,
    /// The tool use id of each block, `None` for blocks that need none.
    pub(super) tool_use_ids: &'a [Option<String>],
}

impl SettledReply<'_> {
    /// Returns the answer to a request that does not want a stream.
    pub(super) fn message(&self) -> Value {
        let blocks: Vec<Value> = self.blocks().map(|(block, id)| whole(block, id)).collect();
        let mut message = self.envelope(self.reply.usage.output_tokens);
        message["content"] = Value::Array(blocks);
        message["stop_reason"] = json!(self.reply.effective_stop_reason().as_str());
        message
    }

    /// Returns the steps of a streamed answer, in order.
    pub(super) fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        // The real API counts one output token when the message starts.
        let message = self.envelope(1);
        steps.push(event("message_start", json!({ "message": message })));
        self.hold(HoldPoint::AfterMessageStart, &mut steps);
        let fault = self.reply.fault.as_ref();
        if let Some(StreamFault::ErrorEvent { kind }) = fault {
            let error = json!({ "type": kind, "message": "scripted stream error" });
            steps.push(event("error", json!({ "error": error })));
            return steps;
        }
        for (index, (block, id)) in self.blocks().enumerate() {
            let start = json!({ "index": index, "content_block": start(block, id) });
            steps.push(event("content_block_start", start));
            if index == 0 {
                steps.push(event("ping", json!({})));
            }
            let deltas = deltas(block, self.reply.deltas_per_block);
            let last = deltas.len().saturating_sub(1);
            for (position, delta) in deltas.into_iter().enumerate() {
                if position == last && fault == Some(&StreamFault::CutInBlock(index)) {
                    steps.push(Step::Cut);
                    return steps;
                }
                let delta = json!({ "index": index, "delta": delta });
                steps.push(event("content_block_delta", delta));
                if position == 0 {
                    self.hold(HoldPoint::InBlock(index), &mut steps);
                }
            }
            if fault == Some(&StreamFault::MalformedEventInBlock(index)) {
                let text =
                    "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"ind\n\n";
                steps.push(Step::Send(text.to_owned()));
            }
            steps.push(event("content_block_stop", json!({ "index": index })));
            self.hold(HoldPoint::AfterBlock(index), &mut steps);
            if fault == Some(&StreamFault::CutAfterBlock(index)) {
                steps.push(Step::Cut);
                return steps;
            }
        }
        self.hold(HoldPoint::BeforeMessageDelta, &mut steps);
        if fault != Some(&StreamFault::NoMessageStop) {
            let stop_reason = self.reply.effective_stop_reason().as_str();
            let usage = self.reply.usage;
            steps.push(event(
                "message_delta",
                json!({
                    "delta": { "stop_reason": stop_reason, "stop_sequence": null },
                    "usage": usage.to_json(usage.output_tokens),
                }),
            ));
            steps.push(event("message_stop", json!({})));
        }
        steps
    }

    fn envelope(&self, output_tokens: u64) -> Value {
        json!({
            "id": self.message_id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": [],
            "stop_reason": null,
            "stop_sequence": null,
            "usage": self.reply.usage.to_json(output_tokens),
        })
    }

    fn blocks(&self) -> impl Iterator<Item = (&Block, &str)> {
        let ids = self.tool_use_ids.iter();
        self.reply
            .blocks
            .iter()
            .zip(ids.map(|id| id.as_deref().unwrap_or_default()))
    }

    fn hold(&self, point: HoldPoint, steps: &mut Vec<Step>) {
        let gates = self.reply.holds.iter().filter(|(at, _)| *at == point);
        steps.extend(gates.map(|(_, gate)| Step::Hold(gate.clone())));
    }
}

/// An event of that name, whose data carry the name as `type` too.
fn event(name: &str, mut data: Value) -> Step {
    data["type"] = json!(name);
    Step::Send(format!("event: {name}\ndata: {data}\n\n"))
}

fn start(block: &Block, id: &str) -> Value {
    match block {
        Block::Text { .. } => json!({ "type": "text", "text": "" }),
        Block::Thinking { .. } => json!({ "type": "thinking", "thinking": "", "signature": "" }),
        Block::ToolUse { name, .. } => {
            json!({ "type": "tool_use", "id": id, "name": name, "input": {} })
        }
        Block::RedactedThinking { .. } => whole(block, id),
    }
}

fn whole(block: &Block, id: &str) -> Value {
    match block {
        Block::Text { text } => json!({ "type": "text", "text": text }),
        Block::Thinking {
            thinking,
            signature,
        } => json!({ "type": "thinking", "thinking": thinking, "signature": signature }),
        Block::RedactedThinking { data } => json!({ "type": "redacted_thinking", "data": data }),
        Block::ToolUse { name, input, .. } => {
            json!({ "type": "tool_use", "id": id, "name": name, "input": input })
        }
    }
}

fn deltas(block: &Block, count: usize) -> Vec<Value> {
    match block {
        Block::Text { text } => split(text, count)
            .map(|part| json!({ "type": "text_delta", "text": part }))
            .collect(),
        Block::Thinking {
            thinking,
            signature,
        } => split(thinking, count)
            .map(|part| json!({ "type": "thinking_delta", "thinking": part }))
            .chain([json!({ "type": "signature_delta", "signature": signature })])
            .collect(),
        Block::RedactedThinking { .. } => Vec::new(),
        Block::ToolUse { input, .. } => split(&input.to_string(), count)
            .map(|part| json!({ "type": "input_json_delta", "partial_json": part }))
            .collect(),
    }
}

/// Splits a text into at most `count` parts of equal length, and at least one.
fn split(text: &str, count: usize) -> impl Iterator<Item = String> {
    let characters: Vec<char> = text.chars().collect();
    let length = characters.len().div_ceil(count.max(1)).max(1);
    let mut parts: Vec<String> = characters.chunks(length).map(String::from_iter).collect();
    if parts.is_empty() {
        parts.push(String::new());
    }
    parts.into_iter()
}

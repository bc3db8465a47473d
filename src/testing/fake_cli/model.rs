//! The model's calls: asked, failing, streamed.

use std::collections::VecDeque;

use serde_json::{Value, json};

use super::endings::Ending;
use super::frames::{self, merge};
use super::tools::Call;
use super::turn::{Progress, Step, Turn, Unwritten};
use super::{FakeCli, Fault, transcript};
use crate::testing::script::{self, ModelReply, ReplyBlock};

#[derive(Debug)]
pub(super) struct Stream {
    pub(super) message: String,
    pub(super) index: usize,
    blocks: VecDeque<ReplyBlock>,
    stop_reason: &'static str,
    /// The first half of the current text, already sent.
    pub(super) half: Option<String>,
    /// The gate to wait at before the next block.
    held: Option<String>,
    /// The number of blocks after which it breaks.
    breaks_after: Option<usize>,
}

impl FakeCli {
    pub(super) fn call_model(&mut self, turn: &mut Turn) -> Progress {
        if turn.model_calls > 0 {
            if self
                .arguments
                .max_turns
                .is_some_and(|it| turn.model_calls >= it)
            {
                return Progress::Ended(Ending::MaxTurns);
            }
            self.transcript.second_snapshot(&mut self.ids);
            self.fold_in_messages(turn);
            self.transcript.tokens_reminder(&mut self.ids);
        }
        turn.model_calls += 1;
        let mut status = json!({"type": "system", "subtype": "status", "status": "requesting"});
        if !turn.user_uuids.is_empty() {
            merge(&mut status, json!({"user_message_uuids": turn.user_uuids}));
        }
        self.send_own(status);
        self.request_reply(turn)
    }

    /// Sends one request; a broken stream may make it be sent again.
    pub(super) fn request_reply(&mut self, turn: &mut Turn) -> Progress {
        // The mirror's 100 ms are over before the model has said anything.
        if transcript::is_flushed_when_quiet(self.config.mirror_lag) {
            self.flush_mirror(false);
        }
        self.model_calls += 1;
        self.model_requests += 1;
        if let Some(progress) = self.fail_model_call(turn) {
            return progress;
        }
        let model = self.model();
        self.total.add(&model, 1);
        self.since_last_result.add(&model, 1);
        match script::next_reply(&self.transcript.messages(), &self.tool_names()) {
            ModelReply::Fail => Progress::Ended(Ending::Failed),
            ModelReply::Answer {
                gate: Some(gate),
                blocks,
            } => {
                turn.step = Step::AtGate { gate, blocks };
                Progress::More
            }
            ModelReply::Answer { gate: None, blocks } => {
                self.begin_stream(turn, blocks);
                Progress::More
            }
        }
    }

    pub(super) fn begin_stream(&mut self, turn: &mut Turn, blocks: Vec<ReplyBlock>) {
        let calls = blocks
            .iter()
            .any(|it| matches!(it, ReplyBlock::ToolUse { .. }));
        let message = self.ids.message();
        let mut start = json!({"type": "message_start", "message": {
            "id": message, "type": "message", "role": "assistant", "model": self.dated_model(),
            "content": [], "stop_reason": null, "stop_sequence": null, "usage": frames::streamed_usage(1),
        }});
        start = json!({"event": start, "ttft_ms": 1});
        if turn.is_unannounced {
            turn.name_messages(&mut start);
        }
        self.send_event(&message, start);
        turn.is_streaming = true;
        let breaks_after = self.config.faults.iter().find_map(|it| match it {
            Fault::BreakStream {
                at_model_call,
                after_blocks,
            } if *at_model_call == self.model_calls => Some(*after_blocks),
            _ => None,
        });
        if breaks_after.is_some_and(|it| it > blocks.len()) {
            self.violation("BreakStream names a block that the reply does not have".to_owned());
        }
        turn.step = Step::Streaming(Stream {
            message,
            index: 0,
            blocks: blocks.into(),
            stop_reason: if calls { "tool_use" } else { "end_turn" },
            half: None,
            held: None,
            breaks_after,
        });
    }

    pub(super) fn stream(&mut self, turn: &mut Turn, mut stream: Stream) -> Progress {
        if stream
            .held
            .as_ref()
            .is_some_and(|it| !self.gates.contains(it))
        {
            turn.step = Step::Streaming(stream);
            return Progress::Waits;
        }
        if stream.breaks_after == Some(stream.index) {
            return self.break_stream(turn, &stream);
        }
        let Some(block) = stream.blocks.pop_front() else {
            self.end_stream(turn, &stream);
            turn.step = Step::Tools;
            return if turn.calls.is_empty() {
                self.transcript.second_snapshot(&mut self.ids);
                Progress::Ended(Ending::Completed)
            } else {
                Progress::More
            };
        };
        let content = match &block {
            ReplyBlock::Thinking(text) => {
                let content = json!({"type": "thinking", "thinking": text, "signature": SIGNATURE});
                self.start_block(
                    &stream,
                    &json!({"type": "thinking", "thinking": "", "signature": ""}),
                );
                self.send_delta(
                    &stream,
                    &json!({"type": "thinking_delta", "thinking": text}),
                );
                self.send_delta(
                    &stream,
                    &json!({"type": "signature_delta", "signature": SIGNATURE}),
                );
                content
            }
            ReplyBlock::Text { text, gate } => {
                let (first, second) = halves(text);
                if stream.half.is_none() {
                    self.start_block(&stream, &json!({"type": "text", "text": ""}));
                    self.send_delta(&stream, &json!({"type": "text_delta", "text": first}));
                    stream.half = Some(first.to_owned());
                }
                if gate.as_ref().is_some_and(|it| !self.gates.contains(it)) {
                    stream.blocks.push_front(block);
                    turn.step = Step::Streaming(stream);
                    return Progress::Waits;
                }
                self.send_delta(&stream, &json!({"type": "text_delta", "text": second}));
                stream.half = None;
                turn.text.clone_from(text);
                json!({"type": "text", "text": text})
            }
            ReplyBlock::ToolUse {
                name,
                input,
                reuse,
                gate,
            } => {
                stream.held.clone_from(gate);
                let id = reuse.clone().unwrap_or_else(|| self.ids.call());
                self.start_block(
                    &stream,
                    &json!({"type": "tool_use", "id": id, "name": name, "input": {}}),
                );
                let partial = input.to_string();
                let (first, second) = halves(&partial);
                self.send_delta(
                    &stream,
                    &json!({"type": "input_json_delta", "partial_json": first}),
                );
                self.send_delta(
                    &stream,
                    &json!({"type": "input_json_delta", "partial_json": second}),
                );
                json!({"type": "tool_use", "id": id, "name": name, "input": input})
            }
        };
        let uuid = self.send_assistant(turn, &stream, &content);
        if content["type"] == "tool_use" {
            turn.calls.push(Call::new(&content, uuid, None));
            self.start_calls(turn);
        }
        self.send_event(
            &stream.message,
            json!({"event": {"type": "content_block_stop", "index": stream.index}}),
        );
        stream.index += 1;
        turn.step = Step::Streaming(stream);
        Progress::More
    }

    fn start_block(&mut self, stream: &Stream, block: &Value) {
        let event =
            json!({"type": "content_block_start", "index": stream.index, "content_block": block});
        self.send_event(&stream.message, json!({"event": event}));
    }

    fn send_delta(&mut self, stream: &Stream, delta: &Value) {
        let event = json!({"type": "content_block_delta", "index": stream.index, "delta": delta});
        self.send_event(&stream.message, json!({"event": event}));
    }

    /// Ends the message and writes its entries: they hold the final stop reason, so the real CLI
    /// has none of them before (capture `kill_mid_stream`).
    fn end_stream(&mut self, turn: &mut Turn, stream: &Stream) {
        let event = json!({
            "type": "message_delta", "delta": {"stop_reason": stream.stop_reason, "stop_sequence": null},
            "usage": frames::streamed_usage(7),
        });
        self.send_event(&stream.message, json!({"event": event}));
        self.send_event(&stream.message, json!({"event": {"type": "message_stop"}}));
        turn.stop_reason = json!(stream.stop_reason);
        turn.is_streaming = false;
        let used: Vec<&str> = turn.calls.iter().map(|it| it.name.as_str()).collect();
        if !used.is_empty() {
            self.transcript
                .bookkeeping(json!({"type": "tools-used", "tools": used}));
        }
        self.write_entries(turn, &stream.message, stream.stop_reason);
    }

    /// Writes the entries of a message whose lines were sent.
    pub(super) fn write_entries(&mut self, turn: &mut Turn, message: &str, stop_reason: &str) {
        let request = self.ids.uuid();
        let mut blocks = 0;
        for unwritten in turn.entries.drain(..) {
            let (uuid, content) = match unwritten {
                Unwritten::Block { uuid, content } => (uuid, content),
                Unwritten::OfCall {
                    uuid,
                    parent,
                    entry,
                } => {
                    self.transcript
                        .chain(&mut self.ids, Some(uuid), Some(&parent), entry);
                    continue;
                }
            };
            let block = blocks;
            blocks += 1;
            let entry = json!({
                "type": "assistant", "apiBlockIndex": block, "requestId": REQUEST_ID, "requestRef": request,
                "requestedModel": self.model(), "effort": "high", "perTurnEffort": null,
                "message": {
                    "id": message, "type": "message", "role": "assistant",
                    "model": self.dated_model(), "content": [content],
                    "stop_reason": stop_reason, "stop_sequence": null,
                    "usage": frames::full_usage(1), "stop_details": null,
                },
            });
            self.transcript
                .chain(&mut self.ids, Some(uuid), None, entry);
        }
    }

    fn send_assistant(&mut self, turn: &mut Turn, stream: &Stream, content: &Value) -> String {
        let mut frame = json!({
            "type": "assistant", "parent_tool_use_id": null, "request_id": REQUEST_ID,
            "message": self.streamed_message(&stream.message, content),
        });
        if let Some(name) = content["name"]
            .as_str()
            .filter(|it| it.starts_with("mcp__"))
        {
            merge(
                &mut frame,
                json!({"tool_use_meta": [self.tool_use_meta(&content["id"], name)]}),
            );
        }
        if std::mem::take(&mut turn.is_unannounced) {
            turn.name_messages(&mut frame);
        }
        let uuid = self.send_stamped(frame);
        turn.entries.push(Unwritten::Block {
            uuid: uuid.clone(),
            content: content.clone(),
        });
        uuid
    }

    pub(super) fn streamed_message(&self, id: &str, content: &Value) -> Value {
        json!({
            "id": id, "type": "message", "role": "assistant", "model": self.dated_model(),
            "content": [content], "stop_reason": null, "stop_sequence": null,
            "usage": frames::streamed_usage(1), "context_management": null,
        })
    }

    fn tool_use_meta(&self, id: &Value, name: &str) -> Value {
        let mut meta = json!({"id": id, "display_name": frames::display_name(name)});
        if let Some((server, tool)) = self.server_tool(name) {
            merge(
                &mut meta,
                json!({"server_display_name": server.name, "tool_name": tool.name}),
            );
        }
        meta
    }

    pub(super) fn send_event(&mut self, message: &str, mut frame: Value) {
        if self.arguments.has_partial_messages {
            merge(
                &mut frame,
                json!({"type": "stream_event", "parent_tool_use_id": null, "api_message_id": message}),
            );
            self.send_own(frame);
        }
    }
}

/// The real one's length and alphabet; no test looks into it.
const SIGNATURE: &str = "c2lnbmF0dXJl";

pub(super) const REQUEST_ID: &str = "req_fake";

fn halves(text: &str) -> (&str, &str) {
    let middle = (0..=text.len() / 2)
        .rev()
        .find(|it| text.is_char_boundary(*it));
    text.split_at(middle.unwrap_or(0))
}

//! One turn: what starts it, the model's replies, what comes after them.

use std::collections::VecDeque;

use serde_json::{Value, json};

use super::endings::Ending;
use super::frames::{self, merge};
use super::inbound::Open;
use super::tools::Call;
use super::{FakeCli, Fault};
use crate::testing::script::{self, CONTINUE_TEXT, ModelReply, ReplyBlock};

/// A user message that waits for its turn.
#[derive(Debug)]
pub(super) struct Prompt {
    pub(super) uuid: Option<String>,
    pub(super) content: Value,
}

#[derive(Debug)]
pub(super) struct Turn {
    pub(super) origin: Origin,
    /// The host's uuids of the messages that this turn answers.
    pub(super) user_uuids: Vec<String>,
    pub(super) lifecycle: Vec<String>,
    pub(super) prompt_id: Option<String>,
    pub(super) step: Step,
    /// The calls of the current reply, sub-agents' calls among them.
    pub(super) calls: Vec<Call>,
    pub(super) model_calls: u64,
    pub(super) tool_results: u64,
    pub(super) denials: Vec<Value>,
    pub(super) deferred: Option<Value>,
    pub(super) stop_reason: Value,
    pub(super) text: String,
    /// True when a hook said `continue: false`.
    pub(super) is_stopped_by_hook: bool,
    /// True when the host denied a call with `interrupt: true`.
    pub(super) is_interrupted: bool,
    /// True from message_start to message_stop.
    pub(super) is_streaming: bool,
    /// True until the first frame that names the user messages as its own.
    is_unannounced: bool,
    entries: Vec<(String, Value)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    Prompt,
    /// A deferred call is carried out; system/init has not been sent.
    Deferral,
    /// As [`Origin::Deferral`], after its system/init.
    ResumedDeferral,
    Interrupted,
}

#[derive(Debug)]
pub(super) enum Step {
    CallModel,
    /// The reply is there and waits at a gate.
    AtGate {
        gate: String,
        blocks: Vec<ReplyBlock>,
    },
    Streaming(Stream),
    /// The reply is complete; its calls are not.
    Tools,
    BatchHook {
        open: Vec<String>,
    },
    /// Retries without end (401 without a limit of retries).
    Retrying,
}

#[derive(Debug)]
pub(super) struct Stream {
    pub(super) message: String,
    pub(super) index: usize,
    blocks: VecDeque<ReplyBlock>,
    stop_reason: &'static str,
    /// The first half of the current text, already sent.
    pub(super) half: Option<String>,
}

pub(super) enum Progress {
    More,
    Waits,
    Ended(Ending),
    /// The host interrupted the turn by a denial.
    Aborted,
}

impl Turn {
    pub(super) fn new(origin: Origin, step: Step) -> Self {
        Self {
            origin,
            user_uuids: Vec::new(),
            lifecycle: Vec::new(),
            prompt_id: None,
            step,
            calls: Vec::new(),
            model_calls: 0,
            tool_results: 0,
            denials: Vec::new(),
            deferred: None,
            stop_reason: Value::Null,
            text: String::new(),
            is_stopped_by_hook: false,
            is_interrupted: false,
            is_streaming: false,
            is_unannounced: true,
            entries: Vec::new(),
        }
    }

    pub(super) fn resumes_deferral(&self) -> bool {
        self.origin == Origin::Deferral
    }

    pub(super) fn end_batch_hook(&mut self, id: &str) {
        if let Step::BatchHook { open } = &mut self.step {
            open.retain(|it| it != id);
        }
    }

    /// Adds the user messages' ids to a frame.
    pub(super) fn name_messages(&self, frame: &mut Value) {
        if let Some(last) = self.user_uuids.last() {
            merge(
                frame,
                json!({"user_message_uuid": last, "user_message_uuids": self.user_uuids}),
            );
        }
    }
}

impl FakeCli {
    pub(super) fn begin_prompts(&mut self) {
        let prompts: Vec<Prompt> = self.queue.drain(..).collect();
        let mut turn = Turn::new(Origin::Prompt, Step::CallModel);
        let prompt_id = self.ids.uuid();
        turn.prompt_id = Some(prompt_id.clone());
        turn.user_uuids = prompts.iter().filter_map(|it| it.uuid.clone()).collect();
        turn.lifecycle.clone_from(&turn.user_uuids);
        for uuid in turn.lifecycle.clone() {
            self.send_lifecycle(&uuid, "started");
        }
        for _ in &prompts {
            self.transcript
                .queue_operation(&mut self.ids, "dequeue", None);
        }
        let is_first = self.transcript.is_empty() || self.transcript.leaf().is_none();
        let mut entry = json!({
            "type": "user", "promptId": prompt_id,
            "message": {"role": "user", "content": merged_content(&prompts)},
            "permissionMode": self.permission_mode(), "promptSource": "sdk", "turnOrigin": "sdk",
        });
        if prompts.len() > 1 {
            merge(&mut entry, json!({"mergedSendUuids": turn.user_uuids}));
        }
        let uuid = prompts.last().and_then(|it| it.uuid.clone());
        self.transcript.chain(&mut self.ids, uuid, None, entry);
        let model = self.model();
        if is_first {
            self.transcript.first_attachments(&mut self.ids, &model);
        } else {
            self.transcript.tokens_reminder(&mut self.ids);
        }
        self.send_init(&turn);
        self.turn = Some(turn);
    }

    pub(super) fn step_turn(&mut self, turn: &mut Turn) -> Progress {
        if self.start_calls(turn) {
            return Progress::More;
        }
        match std::mem::replace(&mut turn.step, Step::Tools) {
            Step::CallModel => self.call_model(turn),
            Step::AtGate { gate, blocks } => {
                if self.gates.contains(&gate) {
                    self.begin_stream(turn, blocks);
                    return Progress::More;
                }
                turn.step = Step::AtGate { gate, blocks };
                Progress::Waits
            }
            Step::Streaming(stream) => self.stream(turn, stream),
            Step::Tools => self.step_tools(turn),
            Step::BatchHook { open } => {
                let waits = !open.is_empty() && !self.input_closed;
                turn.step = if waits {
                    Step::BatchHook { open }
                } else {
                    Step::CallModel
                };
                if waits {
                    Progress::Waits
                } else {
                    Progress::More
                }
            }
            Step::Retrying => {
                turn.step = Step::Retrying;
                Progress::Waits
            }
        }
    }

    /// Goes on after the reply's calls are done and their results sent.
    pub(super) fn after_tools(&mut self, turn: &mut Turn) -> Progress {
        if turn.deferred.is_some() {
            let again = turn.origin == Origin::Deferral;
            self.transcript.second_snapshot(&mut self.ids);
            return Progress::Ended(if again {
                Ending::DeferredAgain
            } else {
                Ending::Deferred
            });
        }
        let names: Vec<Value> = turn
            .calls
            .drain(..)
            .filter(|it| it.parent.is_none())
            .map(|it| json!({"tool_name": it.name, "tool_input": it.input, "tool_use_id": it.id}))
            .collect();
        if turn.is_stopped_by_hook {
            return Progress::Ended(Ending::HookStopped);
        }
        if turn.origin == Origin::Deferral {
            turn.origin = Origin::ResumedDeferral;
            // The result belongs to the turn before (capture `resume_allow_text`: num_turns 1).
            turn.tool_results = 0;
            self.continue_resumed(turn);
            return if turn.is_interrupted {
                Progress::Aborted
            } else {
                Progress::More
            };
        }
        if turn.is_interrupted {
            turn.step = Step::CallModel;
            return Progress::Aborted;
        }
        let callbacks = self.hooks.post_tool_batch.clone();
        let mut open = Vec::new();
        for callback in callbacks {
            let mut input = self.hook_input(turn, "PostToolBatch");
            merge(&mut input, json!({"tool_calls": names}));
            open.push(self.send_request(
                json!({"subtype": "hook_callback", "callback_id": callback.id, "input": input}),
                Open::BatchHook,
            ));
        }
        turn.step = Step::BatchHook { open };
        Progress::More
    }

    /// Sends system/init and writes the hidden prompt of a turn that goes on by itself.
    pub(super) fn continue_resumed(&mut self, turn: &mut Turn) {
        self.send_init(turn);
        let uuid = turn.lifecycle.first().cloned();
        let prompt_id = self.ids.uuid();
        let entry = json!({
            "type": "user", "promptId": prompt_id, "isMeta": true,
            "message": {"role": "user", "content": CONTINUE_TEXT},
            "permissionMode": self.permission_mode(), "promptSource": "system", "turnOrigin": "system",
        });
        turn.prompt_id = Some(prompt_id);
        self.transcript.chain(&mut self.ids, uuid, None, entry);
        turn.step = Step::CallModel;
    }

    fn call_model(&mut self, turn: &mut Turn) -> Progress {
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
        self.model_calls += 1;
        let mut status = json!({"type": "system", "subtype": "status", "status": "requesting"});
        if !turn.user_uuids.is_empty() {
            merge(&mut status, json!({"user_message_uuids": turn.user_uuids}));
        }
        self.send_own(status);
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

    /// Messages that came while tools ran become part of the turn
    /// (capture `queue_fold_into_running_turn`, spec/cli-protocol.md 17j).
    fn fold_in_messages(&mut self, turn: &mut Turn) {
        for prompt in self.queue.drain(..).collect::<Vec<_>>() {
            let blocks = as_blocks(&prompt.content);
            self.transcript.attachment(
                &mut self.ids,
                None,
                json!({"type": "queued_command", "prompt": blocks, "source_uuid": prompt.uuid, "commandMode": "prompt"}),
            );
            self.transcript
                .queue_operation(&mut self.ids, "remove", None);
            if let Some(uuid) = prompt.uuid {
                self.send_lifecycle(&uuid, "started");
                turn.user_uuids.push(uuid.clone());
                turn.lifecycle.push(uuid);
            }
        }
    }

    fn begin_stream(&mut self, turn: &mut Turn, blocks: Vec<ReplyBlock>) {
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
        turn.step = Step::Streaming(Stream {
            message,
            index: 0,
            blocks: blocks.into(),
            stop_reason: if calls { "tool_use" } else { "end_turn" },
            half: None,
        });
    }

    fn stream(&mut self, turn: &mut Turn, mut stream: Stream) -> Progress {
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
            ReplyBlock::ToolUse { name, input, reuse } => {
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
        for (block, (uuid, content)) in turn.entries.drain(..).enumerate() {
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
        turn.entries.push((uuid.clone(), content.clone()));
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

    pub(super) fn send_init(&mut self, turn: &Turn) {
        let mut tools: Vec<String> = self.builtin_names();
        tools.extend(self.server_tools());
        let mut frame = frames::init(
            &self.transcript.cwd,
            &tools,
            &self.server_statuses(),
            &self.model(),
            &self.permission_mode(),
        );
        if !turn.user_uuids.is_empty() {
            merge(&mut frame, json!({"user_message_uuids": turn.user_uuids}));
        }
        self.send_own(frame);
    }

    pub(super) fn send_lifecycle(&mut self, command: &str, state: &str) {
        self.send_own(
            json!({"type": "command_lifecycle", "command_uuid": command, "state": state}),
        );
    }

    pub(super) fn model(&self) -> String {
        self.arguments
            .model
            .clone()
            .unwrap_or_else(|| "claude-sonnet-5".to_owned())
    }

    /// The name that replies carry: the requested one with a date.
    pub(super) fn dated_model(&self) -> String {
        format!("{}-20260101", self.model())
    }

    pub(super) fn permission_mode(&self) -> String {
        self.arguments
            .permission_mode
            .clone()
            .unwrap_or_else(|| "default".to_owned())
    }

    /// The names that the model is offered.
    pub(super) fn tool_names(&self) -> Vec<String> {
        let mut tools = self.builtin_names();
        for tool in &mut tools {
            if tool == "Task" {
                "Agent".clone_into(tool);
            }
        }
        tools.extend(self.server_tools());
        tools
    }

    /// Fails the model call when a fault says so.
    fn fail_model_call(&mut self, turn: &mut Turn) -> Option<Progress> {
        let fault = self.config.faults.iter().find_map(|it| match it {
            Fault::ApiError {
                status,
                at_model_call,
                recovers,
            } if *at_model_call == self.model_calls => Some((*status, *recovers)),
            _ => None,
        });
        let (status, recovers) = fault?;
        let limit = self
            .config
            .environment
            .get("CLAUDE_CODE_MAX_RETRIES")
            .and_then(|it| it.parse::<u64>().ok());
        let is_retried = matches!(status, 401 | 408 | 429 | 500..);
        let retries = match (is_retried, limit) {
            (false, _) => 0,
            (true, Some(limit)) => limit,
            (true, None) => 10,
        };
        for attempt in 1..=retries {
            self.send_own(json!({
                "type": "system", "subtype": "api_retry", "attempt": attempt, "max_retries": retries,
                "retry_delay_ms": 600 * attempt, "error_status": status, "error": super::endings::error_kind(status),
            }));
            self.transcript.chain(&mut self.ids, None, None, json!({"type": "system", "subtype": "api_error", "level": "error", "retryAttempt": attempt, "maxRetries": retries}));
            if recovers {
                return None;
            }
        }
        if status == 401 && limit.is_none() {
            turn.step = Step::Retrying;
            return Some(Progress::Waits);
        }
        Some(Progress::Ended(Ending::ApiError { status }))
    }
}

/// The real one's length and alphabet; no test looks into it.
const SIGNATURE: &str = "c2lnbmF0dXJl";

pub(super) const REQUEST_ID: &str = "req_fake";

fn merged_content(prompts: &[Prompt]) -> Value {
    match prompts {
        [one] => one.content.clone(),
        many => Value::Array(many.iter().flat_map(|it| as_blocks(&it.content)).collect()),
    }
}

fn as_blocks(content: &Value) -> Vec<Value> {
    match content {
        Value::Array(blocks) => blocks.clone(),
        other => vec![json!({"type": "text", "text": other})],
    }
}

pub(super) fn halves(text: &str) -> (&str, &str) {
    let middle = (0..=text.len() / 2)
        .rev()
        .find(|it| text.is_char_boundary(*it));
    text.split_at(middle.unwrap_or(0))
}

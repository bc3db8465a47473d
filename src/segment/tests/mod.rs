//! The segment, stepped by hand: against recorded lines of the real CLI and hand-written frames.

mod captures;
mod changed;
mod endings;
mod gating;
mod hooks;
mod live;
mod model_calls;
mod others;
mod plans;
mod questions;
mod results;
mod resuming;
mod reuse;
mod rules;

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;
use crate::policy::{Approval, ToolEffect, ToolPolicies, ToolPolicy};
use crate::protocol::{AgentSetup, decode_line};
use crate::record::{ClaudeLines, FrameworkItem, ItemContent, TranscriptEntry};
use crate::turn::{CallPlace, NewMessage, ResumedCall, ResumedFate, SegmentEvent, SegmentProgress};

/// The Claude session of every capture.
const CLAUDE_SESSION: &str = "00000000-0000-4000-8000-000000000003";

/// A segment, and everything that came out of it: lines for the CLI and actions, in order.
pub(super) struct Stepper {
    segment: Segment,
    pub(super) log: Vec<String>,
}

impl Stepper {
    pub(super) fn new(plan: SegmentPlan) -> Self {
        let mut stepper = Self {
            segment: Segment::new(plan).unwrap(),
            log: Vec::new(),
        };
        stepper.drain();
        stepper
    }

    pub(super) fn line(&mut self, line: &str) {
        match decode_line(line.as_bytes()) {
            Ok(frame) => self.segment.handle_frame(frame),
            Err(error) => self.segment.handle_protocol_error(&error),
        }
        self.drain();
    }

    pub(super) fn json(&mut self, line: Value) {
        self.line(&line.to_string());
    }

    /// Plays recorded lines of the CLI; the tool server answers at once.
    pub(super) fn play(&mut self, lines: &str) {
        for line in lines.lines() {
            self.line(line);
        }
    }

    pub(super) fn hook(&mut self, request: &str, id: &str, tool: &str) {
        self.json(hook(request, id, tool, json!({})));
    }

    pub(super) fn question(&mut self, request: &str, id: &str, tool: &str) {
        self.json(json!({"type": "control_request", "request_id": request, "request": {
            "subtype": "can_use_tool", "tool_name": tool, "tool_use_id": id, "input": {"forged": true}}}));
    }

    pub(super) fn call(&mut self, request: &str, id: &str, name: &str) {
        let arguments = match name {
            // What the records of these tests hold.
            "create_refund" => json!({"amount": 5}),
            _ => json!({"a": 1}),
        };
        self.call_with(request, id, name, arguments);
    }

    pub(super) fn call_with(&mut self, request: &str, id: &str, name: &str, arguments: Value) {
        self.json(json!({"type": "control_request", "request_id": request, "request": {
            "subtype": "mcp_message", "server_name": "tools", "message": {
                "jsonrpc": "2.0", "id": 2, "method": "tools/call",
                "params": {"name": name, "arguments": arguments, "_meta": {"claudecode/toolUseId": id}}}}}));
    }

    pub(super) fn tool_result(&mut self, id: &str, content: &str, is_error: bool) {
        let uuid = format!("result-{id}");
        let message = json!({"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": id, "content": content, "is_error": is_error}]});
        self.json(
            json!({"type": "user", "message": message, "parent_tool_use_id": null, "uuid": uuid}),
        );
        self.mirror(json!({"type": "user", "uuid": uuid, "message": message}));
    }

    /// A reply on the output and in the mirror.
    pub(super) fn reply(&mut self, id: &str, text: &str) {
        let uuid = format!("uuid-{id}");
        let message = json!({"id": id, "model": "m", "content": [{"type": "text", "text": text}]});
        self.json(json!({"type": "assistant", "message": message, "parent_tool_use_id": null, "uuid": uuid}));
        self.mirror(json!({"type": "assistant", "uuid": uuid, "message": message}));
    }

    pub(super) fn mirror(&mut self, entry: Value) {
        self.json(
            json!({"type": "transcript_mirror", "filePath": "/p/c1.jsonl", "entries": [entry]}),
        );
    }

    pub(super) fn mirror_deferral(&mut self, id: &str) {
        self.mirror(
            json!({"type": "attachment", "uuid": format!("deferral-{id}"),
            "attachment": {"type": "hook_deferred_tool", "toolUseID": id}}),
        );
    }

    pub(super) fn result(&mut self, extra: Value) {
        let mut result = json!({"type": "result", "subtype": "success", "is_error": false,
            "session_id": "c1", "stop_reason": "end_turn", "terminal_reason": "completed"});
        for (name, value) in extra.as_object().unwrap() {
            result[name] = value.clone();
        }
        self.json(result);
    }

    pub(super) fn hooks_say(&mut self, id: &str, answer: HooksAnswer) {
        self.segment
            .handle_hooks_answer(&ToolCallId::new(id).unwrap(), answer);
        self.drain();
    }

    pub(super) fn granted(&mut self, id: &str) {
        self.segment
            .handle_call_granted(&ToolCallId::new(id).unwrap());
        self.drain();
    }

    pub(super) fn already_final(&mut self, id: &str, outcome: ToolOutcome) {
        self.segment
            .handle_call_final(&ToolCallId::new(id).unwrap(), outcome);
        self.drain();
    }

    /// Returns what came out since the last look.
    pub(super) fn take(&mut self) -> Vec<String> {
        std::mem::take(&mut self.log)
    }

    pub(super) fn finish(self) -> Result<RunModelOutcome, AttemptFailure> {
        self.segment.finish().map(|it| it.outcome)
    }

    pub(super) fn failure(self) -> (FailureClass, String) {
        let failure = self.segment.finish().unwrap_err();
        (failure.class, failure.detail)
    }

    fn drain(&mut self) {
        loop {
            if let Some(frame) = self.segment.poll_transmit() {
                let line: Value = serde_json::from_str(&frame.encode().unwrap()).unwrap();
                self.log.push(shown(&line));
            } else if let Some(action) = self.segment.poll_action() {
                self.act(action);
            } else {
                return;
            }
        }
    }

    fn act(&mut self, action: Action) {
        self.log.push(match action {
            Action::ServeMcp {
                request_id,
                message,
                permit,
            } => {
                let message: Value = serde_json::from_str(message.get()).unwrap();
                let reply =
                    json!({"jsonrpc": "2.0", "id": message["id"], "result": {}}).to_string();
                self.segment
                    .handle_mcp_response(request_id, RawValue::from_string(reply).unwrap());
                format!("serve {} {permit:?}", message["method"].as_str().unwrap())
            }
            Action::CancelMcp { request_id } => format!("cancel {request_id}"),
            Action::AskHooks(it) => {
                let agent = it.sub_agent.map_or_else(String::new, |it| {
                    format!(" in {} {:?}", it.id, it.agent_type)
                });
                format!(
                    "ask hooks {} {}{agent} {}",
                    it.tool_call_id, it.tool_name, it.input
                )
            }
            Action::CancelHooks { tool_call_id } => format!("cancel hooks {tool_call_id}"),
            Action::Deliver(event) => match event {
                SegmentEvent::Checkpoint(progress) => format!("checkpoint {}", told(&progress)),
                SegmentEvent::ParkRequested(progress) => format!("park {}", told(&progress)),
                SegmentEvent::CallStanding { tool_call_id } => format!("standing {tool_call_id}"),
                SegmentEvent::CallGivenUp { tool_call_id } => format!("given up {tool_call_id}"),
                SegmentEvent::CallStarting { tool_call_id } => format!("starting {tool_call_id}"),
                SegmentEvent::CallFinished {
                    tool_call_id,
                    outcome,
                } => format!("finished {tool_call_id} {outcome:?}"),
                SegmentEvent::InlineCallStarted {
                    tool_call_id,
                    tool_name,
                } => format!("inline {tool_call_id} {tool_name}"),
                SegmentEvent::InlineCallFinished {
                    tool_call_id,
                    status,
                } => format!("inline end {tool_call_id} {status:?}"),
            },
            Action::Live { kind, text } => format!("live {kind:?} {text}"),
            Action::CliVersion(version) => {
                format!("version {}", version.as_deref().unwrap_or("unknown"))
            }
            Action::CloseInput => "close input".to_owned(),
        });
    }
}

/// Shows what a checkpoint holds: messages with the number of their lines, those behind `+` only
/// announced, and calls.
fn told(progress: &SegmentProgress) -> String {
    let messages = progress.messages.iter().map(|it| {
        let lines = lines(&it.item);
        let (role, text) = (it.role, &it.text);
        format!(
            "{role:?}({text}) {}+{}",
            lines.entries.len(),
            lines.provisional.len()
        )
    });
    let calls = progress.calls.iter().map(|it| {
        let place = it.place;
        format!(
            "{} {} {place:?} {}",
            it.tool_call_id, it.tool_name, it.arguments
        )
    });
    let parts: Vec<String> = messages.chain(calls).collect();
    parts.join("; ")
}

/// Shows a line for the CLI in a few words.
fn shown(line: &Value) -> String {
    if line["type"] == "user" {
        return format!("prompt {}", line["message"]["content"]);
    }
    if line["type"] == "control_request" {
        return format!("initialize {}", line["request"]["hooks"]["PreToolUse"][0]);
    }
    let response = &line["response"];
    if response["subtype"] == "error" {
        return format!("error {} {}", response["request_id"], response["error"]);
    }
    let body = &response["response"];
    if body.get("mcp_response").is_some() {
        return "mcp reply".to_owned();
    }
    if *body == json!({}) {
        return format!("go on {}", response["request_id"]);
    }
    if let Some(hook) = body.get("hookSpecificOutput") {
        assert_eq!(hook["hookEventName"], "PreToolUse");
        let extra = hook
            .get("permissionDecisionReason")
            .or_else(|| hook.get("updatedInput"));
        let parts = [
            Some(&hook["permissionDecision"]),
            extra,
            hook.get("additionalContext"),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().map(Value::to_string).collect();
        return format!("hook {}", parts.join(" "));
    }
    format!("question {body}")
}

pub(super) fn hook(request: &str, id: &str, tool: &str, extra: Value) -> Value {
    let mut input = json!({"hook_event_name": "PreToolUse", "tool_name": tool, "tool_input": {"a": 1}, "tool_use_id": id});
    for (name, value) in extra.as_object().unwrap() {
        input[name] = value.clone();
    }
    json!({"type": "control_request", "request_id": request, "request": {
        "subtype": "hook_callback", "callback_id": "abide-pre-tool-use", "tool_use_id": id, "input": input}})
}

/// A plan with a read, a write, and policies for some tools of the CLI.
pub(super) fn plan(start: SegmentStart) -> SegmentPlan {
    SegmentPlan {
        server_name: "tools".to_owned(),
        custom_tools: BTreeMap::from([
            ("lookup".to_owned(), ToolPolicy::new(ToolEffect::Read)),
            (
                "create_refund".to_owned(),
                ToolPolicy::new(ToolEffect::NonIdempotentWrite),
            ),
            (
                "set_label".to_owned(),
                ToolPolicy::new(ToolEffect::IdempotentWrite),
            ),
            (
                "read_secret".to_owned(),
                ToolPolicy::new(ToolEffect::Read).with_approval(Approval::Required),
            ),
        ]),
        policies: ToolPolicies::new()
            .with("Read", ToolPolicy::new(ToolEffect::Read))
            .with("Agent", ToolPolicy::new(ToolEffect::Read))
            .with("Write", ToolPolicy::new(ToolEffect::IdempotentWrite))
            .with(
                "Deploy",
                ToolPolicy::new(ToolEffect::NonIdempotentWrite)
                    .with_approval(Approval::NotRequired),
            ),
        asks_hooks: false,
        ruled: BTreeSet::new(),
        has_refusing_rules: false,
        setup: AgentSetup::default(),
        model: None,
        resume: None,
        answered: BTreeSet::new(),
        offered: BTreeSet::new(),
        path: GatedPath::Native,
        is_warm: false,
        stays: false,
        start,
    }
}

pub(super) fn turn() -> Stepper {
    let mut stepper = Stepper::new(plan(SegmentStart::Turn {
        prompt: vec!["go".to_owned()],
        uuid: None,
    }));
    stepper.take();
    stepper
}

pub(super) fn resumed_call(
    tool: &str,
    arguments: &str,
    place: CallPlace,
    fate: ResumedFate,
) -> ResumedCall {
    ResumedCall::new(
        ToolCallId::new("toolu_1").unwrap(),
        tool,
        arguments,
        place,
        fate,
    )
}

pub(super) fn resume(call: ResumedCall) -> Stepper {
    let mut stepper = Stepper::new(plan(SegmentStart::Resume { call }));
    assert_eq!(
        stepper.take(),
        [r#"initialize {"hookCallbackIds":["abide-pre-tool-use"],"timeout":86400}"#]
    );
    stepper
}

/// A message as role, text and call; its entries by type.
pub(super) fn outline(message: &NewMessage) -> (String, Vec<String>) {
    let call = message
        .tool_call_id
        .as_ref()
        .map_or_else(String::new, |it| format!(" {it}"));
    let kinds = entries(&message.item)
        .iter()
        .map(|it| it.head().unwrap().kind)
        .collect();
    (format!("{:?}{call}: {}", message.role, message.text), kinds)
}

pub(super) fn entries(item: &FrameworkItem) -> Vec<TranscriptEntry> {
    lines(item).entries
}

pub(super) fn lines(item: &FrameworkItem) -> ClaudeLines {
    match item.content().unwrap() {
        ItemContent::ClaudeTranscript(lines) => lines,
        other => panic!("{other:?}"),
    }
}

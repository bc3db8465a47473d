//! Calls: asked about, run, and answered (spec/cli-protocol.md 5 and 7).

use serde_json::{Value, json};

use super::agents::Agent;
use super::builtin::end_gated;
use super::frames::{self, merge};
use super::inbound::Open;
use super::permission::{HookAnswer, Source};
use super::turn::{Progress, Turn, Unwritten};
use super::{FakeCli, Fault};

#[derive(Debug)]
pub(super) struct Call {
    pub(super) id: String,
    pub(super) name: String,
    /// The model's own input.
    pub(super) input: Value,
    /// After `updatedInput`.
    pub(super) final_input: Value,
    pub(super) assistant_uuid: String,
    /// The Agent call whose sub-agent made this one.
    pub(super) parent: Option<usize>,
    pub(super) state: CallState,
    pub(super) answers: Vec<HookAnswer>,
    pub(super) source: Source,
    pub(super) is_resumed: bool,
    pub(super) is_emitted: bool,
    /// True once the host saw the call answered by a hook without a denial.
    pub(super) passed_hook: bool,
    /// The first answer of a tools/call that is sent twice.
    held: Option<Outcome>,
}

#[derive(Debug)]
pub(super) enum CallState {
    Waiting,
    AskingHooks,
    AskingHost,
    Allowed,
    Running,
    AtGate(String),
    Delegated(Agent),
    Done(Outcome),
    Deferred,
}

/// What a call's result line and entry hold.
#[derive(Debug, Clone)]
pub(super) struct Outcome {
    pub(super) content: Value,
    pub(super) is_error: bool,
    /// `tool_use_result` on the wire, `toolUseResult` in the entry.
    pub(super) detail: Value,
    /// Why it did not run.
    pub(super) not_run: Option<&'static str>,
}

impl Outcome {
    pub(super) fn of(content: Value, detail: Value) -> Self {
        Self {
            content,
            is_error: false,
            detail,
            not_run: None,
        }
    }

    pub(super) fn error(text: &str) -> Self {
        Self {
            content: json!(text),
            is_error: true,
            detail: json!(format!("Error: {text}")),
            not_run: None,
        }
    }

    pub(super) fn not_run(text: &str, kind: &'static str) -> Self {
        Self {
            not_run: Some(kind),
            ..Self::error(text)
        }
    }
}

impl Call {
    /// Makes the call of a `tool_use` block.
    pub(super) fn new(block: &Value, assistant_uuid: String, parent: Option<usize>) -> Self {
        Self {
            id: block["id"].as_str().unwrap_or_default().to_owned(),
            name: block["name"].as_str().unwrap_or_default().to_owned(),
            input: block["input"].clone(),
            final_input: block["input"].clone(),
            assistant_uuid,
            parent,
            state: CallState::Waiting,
            answers: Vec::new(),
            source: Source::Mode,
            is_resumed: false,
            is_emitted: false,
            passed_hook: false,
            held: None,
        }
    }

    pub(super) fn is_finished(&self) -> bool {
        matches!(self.state, CallState::Done(_) | CallState::Deferred)
    }

    /// What PostToolBatch says about it.
    pub(super) fn of_batch(&self) -> Value {
        let mut told =
            json!({"tool_name": self.name, "tool_input": self.input, "tool_use_id": self.id});
        if let CallState::Done(outcome) = &self.state {
            merge(&mut told, json!({"tool_response": outcome.content}));
        }
        told
    }

    /// Takes the answer to a PostToolBatch of the sub-agent that this call started.
    pub(super) fn end_batch_hook(&mut self, id: &str) {
        if let CallState::Delegated(agent) = &mut self.state {
            agent.batch.retain(|it| it != id);
        }
    }
}

impl FakeCli {
    /// Moves every call on that can move; true when one did.
    pub(super) fn start_calls(&mut self, turn: &mut Turn) -> bool {
        let mut moved = false;
        for index in 0..turn.calls.len() {
            match &turn.calls[index].state {
                CallState::Waiting if self.may_start(turn, index) => {
                    self.ask_hooks(turn, index);
                    moved = true;
                }
                // Even before the reply is complete (real CLI 2.1.316, 2.1.332).
                CallState::Allowed => {
                    self.run(turn, index);
                    moved = true;
                }
                CallState::AtGate(gate) if self.gates.contains(gate) => {
                    end_gated(&mut turn.calls[index]);
                    moved = true;
                }
                CallState::Delegated(_) => moved |= self.step_agent(turn, index),
                CallState::Waiting
                | CallState::AskingHooks
                | CallState::AskingHost
                | CallState::Running
                | CallState::AtGate(_)
                | CallState::Done(_)
                | CallState::Deferred => {}
            }
        }
        moved
    }

    /// Reads of one reply run side by side, others strictly one after the other.
    fn may_start(&self, turn: &Turn, index: usize) -> bool {
        let call = &turn.calls[index];
        let is_parallel = self.is_parallel(&call.name);
        turn.calls[..index]
            .iter()
            .filter(|it| it.parent == call.parent)
            .all(|it| it.is_finished() || (is_parallel && self.is_parallel(&it.name)))
    }

    fn is_parallel(&self, name: &str) -> bool {
        matches!(name, "Read" | "Glob" | "Grep")
            || self
                .server_tool(name)
                .is_some_and(|(_, tool)| tool.is_read_only)
            || !self.is_known_tool(name)
    }

    pub(super) fn is_known_tool(&self, name: &str) -> bool {
        self.tool_names().iter().any(|it| it == name)
    }

    fn run(&mut self, turn: &mut Turn, index: usize) {
        turn.calls[index].state = CallState::Running;
        if frames::split_mcp(&turn.calls[index].name).is_some() {
            self.send_call(turn, index, true);
        } else {
            self.run_builtin(turn, index);
        }
    }

    fn send_call(&mut self, turn: &Turn, index: usize, counts: bool) {
        let call = &turn.calls[index];
        let Some((server, tool)) = frames::split_mcp(&call.name) else {
            return;
        };
        let (server, mut tool) = (server.to_owned(), tool.to_owned());
        let mut input = call.final_input.clone();
        for fault in &self.config.faults {
            match fault {
                Fault::CallAnotherTool(name) => tool.clone_from(name),
                Fault::CallOtherInput(text) => {
                    input = serde_json::from_str(text).unwrap_or(Value::Null)
                }
                _ => {}
            }
        }
        self.rpc_ids += 1;
        let rpc_id = self.rpc_ids;
        let message = json!({
            "method": "tools/call", "jsonrpc": "2.0", "id": rpc_id,
            "params": {
                "name": tool, "arguments": input,
                "_meta": {"claudecode/toolUseId": call.id, "progressToken": rpc_id},
            },
        });
        self.send_mcp(
            &server,
            &message,
            Open::Call {
                call: index,
                rpc_id,
                counts,
            },
        );
    }

    pub(super) fn handle_called(
        &mut self,
        turn: &mut Turn,
        index: usize,
        counts: bool,
        answer: Result<Value, String>,
    ) {
        let outcome = match answer {
            Err(error) => Outcome::error(&error),
            Ok(answer) => read_result(&answer["mcp_response"]),
        };
        if counts && self.has_fault(&Fault::RepeatCall) {
            turn.calls[index].held = Some(outcome);
            self.send_call(turn, index, false);
            return;
        }
        let outcome = turn.calls[index].held.take().unwrap_or(outcome);
        turn.calls[index].state = CallState::Done(outcome);
    }

    pub(super) fn step_tools(&mut self, turn: &mut Turn) -> Progress {
        if self.emit_results(turn) {
            self.after_tools(turn)
        } else {
            Progress::Waits
        }
    }

    /// Sends the results of the main conversation's calls, in the model's order; false when one is
    /// missing.
    pub(super) fn emit_results(&mut self, turn: &mut Turn) -> bool {
        for index in 0..turn.calls.len() {
            if turn.calls[index].parent.is_some() || turn.calls[index].is_emitted {
                continue;
            }
            match &turn.calls[index].state {
                CallState::Done(outcome) => {
                    let outcome = outcome.clone();
                    self.emit_result(turn, index, &outcome);
                }
                CallState::Deferred if !turn.is_streaming => self.emit_deferral(turn, index),
                CallState::Deferred
                | CallState::Waiting
                | CallState::AskingHooks
                | CallState::AskingHost
                | CallState::Allowed
                | CallState::Running
                | CallState::AtGate(_)
                | CallState::Delegated(_) => return false,
            }
            turn.calls[index].is_emitted = true;
        }
        true
    }

    pub(super) fn emit_result(&mut self, turn: &mut Turn, index: usize, outcome: &Outcome) {
        let call = &turn.calls[index];
        if call.is_resumed && call.passed_hook {
            self.send_hook_success(&call.id);
        }
        let mut block =
            json!({"type": "tool_result", "tool_use_id": call.id, "content": outcome.content});
        if outcome.is_error {
            merge(&mut block, json!({"is_error": true}));
        } else if call.name == "Bash" {
            merge(&mut block, json!({"is_error": false}));
        }
        let message = json!({"role": "user", "content": [block]});
        let mut meta = json!({"id": call.id});
        if let Some(kind) = outcome.not_run {
            merge(&mut meta, json!({"non_execution_kind": kind}));
        }
        if let Some(decision) = call.source.decision(outcome) {
            merge(&mut meta, json!({"permission_decision": decision}));
        }
        let uuid = self.send_stamped(json!({
            "type": "user", "message": message, "parent_tool_use_id": null,
            "tool_use_result": outcome.detail,
            "tool_result_meta": [meta],
        }));
        let mut entry = json!({
            "type": "user", "message": message, "toolUseResult": outcome.detail,
            "sourceToolAssistantUUID": call.assistant_uuid,
        });
        if let Some(id) = &turn.prompt_id {
            merge(&mut entry, json!({"promptId": id}));
        }
        let parent = call.assistant_uuid.clone();
        // Told to the model behind the result, from a branch of its own (CLI 2.1.316, 2.1.332).
        let context: Vec<&str> = (call.answers.iter())
            .filter_map(|it| it.additional_context.as_deref())
            .collect();
        if !context.is_empty() {
            let attachment = json!({
                "type": "hook_additional_context", "content": context, "toolUseID": call.id,
                "hookEvent": "PreToolUse", "hookName": format!("PreToolUse:{}", call.name),
            });
            let entry = json!({"type": "attachment", "attachment": attachment});
            let uuid = self.ids.uuid();
            self.write_of_call(turn, uuid, parent.clone(), entry);
        }
        self.write_of_call(turn, uuid, parent, entry);
        turn.tool_results += 1;
    }

    fn write_of_call(&mut self, turn: &mut Turn, uuid: String, parent: String, entry: Value) {
        if turn.is_streaming {
            turn.entries.push(Unwritten::OfCall {
                uuid,
                parent,
                entry,
            });
        } else {
            self.transcript
                .chain(&mut self.ids, Some(uuid), Some(&parent), entry);
        }
    }

    fn emit_deferral(&mut self, turn: &mut Turn, index: usize) {
        let call = &turn.calls[index];
        let attachment = json!({
            "type": "hook_deferred_tool", "toolUseID": call.id, "toolName": call.name,
            "toolInput": call.final_input, "hookName": "settings", "hookEvent": "PreToolUse",
            "permissionMode": self.permission_mode(),
        });
        if call.is_resumed {
            self.send_hook_success(&call.id);
        }
        let uuid = self
            .transcript
            .attachment(&mut self.ids, None, attachment.clone());
        if call.is_resumed {
            let timestamp = self.ids.timestamp();
            self.send_with_session(json!({
                "type": "attachment", "attachment": attachment, "uuid": uuid,
                "timestamp": timestamp, "parent_tool_use_id": null,
            }));
        }
        turn.deferred = Some(json!({"id": call.id, "name": call.name, "input": call.final_input}));
    }

    fn send_hook_success(&mut self, id: &str) {
        self.send_stamped(json!({
            "type": "attachment", "parent_tool_use_id": null, "attachment": {
                "type": "hook_success", "hookName": "PreToolUse:Callback", "toolUseID": id,
                "hookEvent": "PreToolUse", "content": "", "command": "callback",
            },
        }));
    }

    /// Answers what is open as the CLI itself does when its input ends.
    pub(super) fn refuse_open_requests(&mut self) {
        let Some(mut turn) = self.turn.take() else {
            return;
        };
        for (id, open) in std::mem::take(&mut self.open) {
            let outcome = match open {
                Open::Hook { call, .. } | Open::Ask { call } => {
                    let mut outcome = Outcome::not_run(INPUT_CLOSED, "cancelled");
                    outcome.detail = json!(INPUT_CLOSED);
                    Some((call, outcome))
                }
                Open::Call { call, .. } => Some((
                    call,
                    Outcome::error("MCP tool call was interrupted before a result was received"),
                )),
                Open::Handshake { .. } | Open::Ignored | Open::BatchHook => None,
            };
            if let Some((call, outcome)) = outcome {
                turn.calls[call].state = CallState::Done(outcome);
            }
            turn.end_batch_hook(&id);
        }
        self.turn = Some(turn);
    }

    pub(super) fn cancel_request(&mut self, id: &str) {
        self.open.remove(id);
        self.cancelled.insert(id.to_owned());
        self.send(&json!({"type": "control_cancel_request", "request_id": id}));
    }
}

const INPUT_CLOSED: &str = "The user doesn't want to take this action right now. STOP what you are doing and wait for the user to tell you how to proceed.";

fn read_result(response: &Value) -> Outcome {
    if let Some(error) = response.get("error") {
        return Outcome::error(error["message"].as_str().unwrap_or("unknown error"));
    }
    let result = &response["result"];
    let Some(blocks) = result["content"].as_array() else {
        return Outcome::error("the tool's answer holds no content");
    };
    if result["isError"] == true {
        return Outcome::error(&frames::text_of(&result["content"]));
    }
    // What is structured replaces the blocks (capture `inline_error_and_image`).
    if let Some(structured) = result.get("structuredContent") {
        let content = json!(structured.to_string());
        return Outcome::of(content.clone(), content);
    }
    let blocks: Vec<Value> = blocks
        .iter()
        .map(|it| match it["type"].as_str() {
            Some("image") => json!({"type": "image", "source": {
                "type": "base64", "media_type": it["mimeType"], "data": it["data"],
            }}),
            Some(_) | None => it.clone(),
        })
        .collect();
    Outcome::of(json!(blocks), json!(blocks))
}

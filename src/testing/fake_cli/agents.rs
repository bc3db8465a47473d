//! The foreground sub-agent of an Agent call (capture `subagent_foreground`).

use serde_json::{Value, json};

use super::frames::{self, merge};
use super::model::REQUEST_ID;
use super::tools::{Call, CallState, Outcome};
use super::turn::Turn;
use super::{FakeCli, Fault};
use crate::testing::script::{self, ModelReply, ReplyBlock, ScriptBlock, ScriptMessage};

/// Sub-agents answer with another model than the main conversation.
const SUBAGENT_MODEL: &str = "claude-haiku-4-5";

/// A sub-agent at work.
#[derive(Debug)]
pub(super) struct Agent {
    pub(super) id: String,
    messages: Vec<ScriptMessage>,
    /// The calls of its current reply, by their position in the turn.
    open: Vec<usize>,
    /// Its PostToolBatch requests that are not answered.
    pub(super) batch: Vec<String>,
    has_spoken: bool,
    entries: Vec<Value>,
}

impl Turn {
    /// Returns the id of the sub-agent that made a call.
    pub(super) fn agent_of(&self, call: &Call) -> Option<&str> {
        match &self.calls.get(call.parent?)?.state {
            CallState::Delegated(agent) => Some(&agent.id),
            CallState::Waiting
            | CallState::AskingHooks
            | CallState::AskingHost
            | CallState::Allowed
            | CallState::Running
            | CallState::AtGate(_)
            | CallState::Done(_)
            | CallState::Deferred => None,
        }
    }
}

impl FakeCli {
    pub(super) fn delegate(&mut self, turn: &mut Turn, index: usize) {
        let call = &turn.calls[index];
        let prompt = call.final_input["prompt"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let id = format!("a{}", self.ids.call().replace("toolu_", ""));
        let mut agent = Agent {
            id: id.clone(),
            messages: vec![ScriptMessage::user(vec![ScriptBlock::Text(prompt.clone())])],
            open: Vec::new(),
            batch: Vec::new(),
            has_spoken: false,
            entries: vec![json!({"type": "agent_metadata", "agentId": id})],
        };
        self.send_own(json!({
            "type": "system", "subtype": "task_started", "task_id": id, "tool_use_id": call.id,
            "description": call.final_input["description"], "subagent_type": "general-purpose",
            "is_backgrounded": false, "spawn_depth": 1, "task_type": "local_agent", "prompt": prompt,
        }));
        let message = json!({"role": "user", "content": [{"type": "text", "text": prompt}]});
        self.say_for(&mut agent, call, "user", &message);
        turn.calls[index].state = CallState::Delegated(agent);
    }

    /// Moves a sub-agent on once its calls are done; true when it moved.
    pub(super) fn step_agent(&mut self, turn: &mut Turn, index: usize) -> bool {
        let is_ready = match &turn.calls[index].state {
            CallState::Delegated(agent) => {
                agent.batch.is_empty() && agent.open.iter().all(|it| turn.calls[*it].is_finished())
            }
            _ => false,
        };
        if !is_ready {
            return false;
        }
        let state = std::mem::replace(&mut turn.calls[index].state, CallState::Running);
        let CallState::Delegated(mut agent) = state else {
            return false;
        };
        let mut is_lost = false;
        let over = std::mem::take(&mut agent.open);
        for open in &over {
            is_lost |= !self.hand_over_result(turn, index, *open, &mut agent);
        }
        if !over.is_empty() && !is_lost {
            let calls: Vec<Value> = over.iter().map(|it| turn.calls[*it].of_batch()).collect();
            agent.batch = self.send_batch_hooks(turn, Some(&agent.id), &calls);
            turn.calls[index].state = CallState::Delegated(agent);
            return true;
        }
        // A call deferred in a sub-agent is lost and the sub-agent ends (capture `subagent_defer`).
        let reply = if is_lost {
            None
        } else {
            self.model_requests += 1;
            self.total.add(SUBAGENT_MODEL, 1);
            self.since_last_result.add(SUBAGENT_MODEL, 1);
            let tools: Vec<String> = self
                .tool_names()
                .into_iter()
                .filter(|it| it != "Agent")
                .collect();
            Some(script::next_reply(&agent.messages, &tools))
        };
        match reply {
            Some(ModelReply::Answer { blocks, .. }) if blocks.iter().any(is_call) => {
                self.make_calls(turn, index, &mut agent, blocks);
                turn.calls[index].state = CallState::Delegated(agent);
            }
            Some(ModelReply::Answer { blocks, .. }) => {
                let text = blocks.iter().find_map(text_of).unwrap_or_default();
                let message = self.agent_message(&json!({"type": "text", "text": text}));
                if agent.has_spoken {
                    // It stands in the sub-agent's transcript alone (capture `subagent_foreground`).
                    let uuid = self.ids.uuid();
                    self.keep_for(&mut agent, "assistant", &message, &uuid);
                } else {
                    self.say_for(&mut agent, &turn.calls[index], "assistant", &message);
                }
                self.end_agent(turn, index, agent, &text, "completed");
            }
            Some(ModelReply::Fail) => {
                self.end_agent(turn, index, agent, "the sub-agent failed", "failed")
            }
            None => self.end_agent(turn, index, agent, "", "completed"),
        }
        true
    }

    fn make_calls(
        &mut self,
        turn: &mut Turn,
        index: usize,
        agent: &mut Agent,
        blocks: Vec<ReplyBlock>,
    ) {
        let mut said = Vec::new();
        for block in blocks {
            let ReplyBlock::ToolUse {
                name, input, reuse, ..
            } = block
            else {
                continue;
            };
            let id = reuse.unwrap_or_else(|| self.ids.call());
            let content = json!({"type": "tool_use", "id": id, "name": name, "input": input});
            let message = self.agent_message(&content);
            let uuid = self.say_for(agent, &turn.calls[index], "assistant", &message);
            agent.has_spoken = true;
            agent.open.push(turn.calls.len());
            turn.calls.push(Call::new(&content, uuid, Some(index)));
            said.push(ScriptBlock::ToolUse { id, name, input });
        }
        agent.messages.push(ScriptMessage::assistant(said));
    }

    /// Gives a finished call's result to its sub-agent; false when the call was deferred.
    fn hand_over_result(
        &mut self,
        turn: &Turn,
        index: usize,
        open: usize,
        agent: &mut Agent,
    ) -> bool {
        let call = &turn.calls[open];
        let CallState::Done(outcome) = &call.state else {
            return false;
        };
        let mut block =
            json!({"type": "tool_result", "tool_use_id": call.id, "content": outcome.content});
        if outcome.is_error {
            merge(&mut block, json!({"is_error": true}));
        }
        let message = json!({"role": "user", "content": [block]});
        self.say_for(agent, &turn.calls[index], "user", &message);
        agent
            .messages
            .push(ScriptMessage::user(vec![ScriptBlock::ToolResult {
                id: call.id.clone(),
                text: frames::text_of(&outcome.content),
                is_error: outcome.is_error,
            }]));
        true
    }

    fn end_agent(&mut self, turn: &mut Turn, index: usize, agent: Agent, text: &str, status: &str) {
        let call = &mut turn.calls[index];
        self.send_own(json!({
            "type": "system", "subtype": "task_notification", "task_id": agent.id,
            "tool_use_id": call.id, "status": status, "summary": text,
        }));
        let detail = json!({"status": status, "prompt": call.final_input["prompt"], "agentId": agent.id, "agentType": "general-purpose"});
        call.state = CallState::Done(Outcome::of(json!([{"type": "text", "text": text}]), detail));
        if self.arguments.has_mirror && !self.has_fault(&Fault::NoMirror) {
            let path = self.transcript.path.trim_end_matches(".jsonl").to_owned();
            let path = format!("{path}/subagents/agent-{}.jsonl", agent.id);
            self.send(
                &json!({"type": "transcript_mirror", "filePath": path, "entries": agent.entries}),
            );
        }
    }

    /// Sends a line of the sub-agent and keeps its entry; returns the uuid.
    fn say_for(&mut self, agent: &mut Agent, call: &Call, kind: &str, message: &Value) -> String {
        let mut frame = json!({
            "type": kind, "message": message, "parent_tool_use_id": call.id, "agent_id": agent.id,
            "subagent_type": "general-purpose",
            "task_description": call.final_input["description"],
        });
        if kind == "assistant" {
            merge(&mut frame, json!({"request_id": REQUEST_ID}));
        }
        let uuid = self.send_stamped(frame);
        self.keep_for(agent, kind, message, &uuid);
        uuid
    }

    /// Keeps an entry of the sub-agent's transcript.
    fn keep_for(&self, agent: &mut Agent, kind: &str, message: &Value, uuid: &str) {
        let parent = agent
            .entries
            .last()
            .map_or(Value::Null, |it| it["uuid"].clone());
        agent.entries.push(json!({
            "type": kind, "message": message, "uuid": uuid, "parentUuid": parent,
            "isSidechain": true, "agentId": agent.id, "sessionId": self.transcript.session,
            "cwd": self.transcript.cwd, "version": frames::VERSION,
        }));
    }

    fn agent_message(&mut self, content: &Value) -> Value {
        let id = self.ids.message();
        let mut message = self.streamed_message(&id, content);
        merge(
            &mut message,
            json!({"model": format!("{SUBAGENT_MODEL}-20260101")}),
        );
        message
    }
}

fn is_call(block: &ReplyBlock) -> bool {
    matches!(block, ReplyBlock::ToolUse { .. })
}

fn text_of(block: &ReplyBlock) -> Option<String> {
    match block {
        ReplyBlock::Text { text, .. } => Some(text.clone()),
        ReplyBlock::Thinking(_) | ReplyBlock::ToolUse { .. } => None,
    }
}

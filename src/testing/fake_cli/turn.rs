//! One turn: what starts it, the model's replies, what comes after them.

use serde_json::{Value, json};

use super::FakeCli;
use super::endings::Ending;
use super::frames::{self, merge};
use super::model::Stream;
use super::tools::Call;
use crate::testing::script::{CONTINUE_TEXT, ReplyBlock};

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
    pub(super) is_unannounced: bool,
    /// What goes into the transcript once the message that is streaming is complete.
    pub(super) entries: Vec<Unwritten>,
}

/// An entry that the end of a message makes.
#[derive(Debug)]
pub(super) enum Unwritten {
    /// A block of the message: its entry holds the final stop reason.
    Block { uuid: String, content: Value },
    /// What is left of a call that was over before the message was.
    OfCall {
        uuid: String,
        parent: String,
        entry: Value,
    },
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
        for call in &mut self.calls {
            call.end_batch_hook(id);
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
            Step::Streaming(stream) => {
                self.emit_results(turn);
                self.stream(turn, stream)
            }
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
        let calls: Vec<Value> = turn
            .calls
            .drain(..)
            .filter(|it| it.parent.is_none())
            .map(|it| it.of_batch())
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
        let open = self.send_batch_hooks(turn, None, &calls);
        turn.step = Step::BatchHook { open };
        Progress::More
    }

    /// Sends system/init and writes the hidden prompt of a turn that goes on by itself.
    pub(super) fn continue_resumed(&mut self, turn: &mut Turn) {
        self.send_init(turn);
        let uuid = turn.lifecycle.first().cloned();
        let prompt_id = self.ids.uuid();
        let content = match turn.origin {
            Origin::Interrupted => json!([{"type": "text", "text": CONTINUE_TEXT}]),
            Origin::Prompt | Origin::Deferral | Origin::ResumedDeferral => json!(CONTINUE_TEXT),
        };
        let entry = json!({
            "type": "user", "promptId": prompt_id, "isMeta": true,
            "message": {"role": "user", "content": content},
            "permissionMode": self.permission_mode(), "promptSource": "system", "turnOrigin": "system",
        });
        turn.prompt_id = Some(prompt_id);
        self.transcript.chain(&mut self.ids, uuid, None, entry);
        turn.step = Step::CallModel;
    }

    /// Messages that came while tools ran become part of the turn
    /// (capture `queue_fold_into_running_turn`, spec/cli-protocol.md 17j).
    pub(super) fn fold_in_messages(&mut self, turn: &mut Turn) {
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
}

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

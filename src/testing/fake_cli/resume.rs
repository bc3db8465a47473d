//! What a process does by itself at its start: a deferred call, an interrupted turn
//! (spec/cli-protocol.md 6, 17c to 17f).

use serde_json::{Value, json};

use super::FakeCli;
use super::endings::Ending;
use super::frames;
use super::servers::ServerState;
use super::tools::Call;
use super::transcript::PendingDeferral;
use super::turn::{Origin, Step, Turn};
use crate::testing::script::CONTINUE_TEXT;

/// What a transcript leaves to do.
#[derive(Debug)]
pub(super) enum Resume {
    Deferral(PendingDeferral),
    Interrupted,
}

impl Resume {
    pub(super) fn is_deferral(&self) -> bool {
        match self {
            Self::Deferral(_) => true,
            Self::Interrupted => false,
        }
    }
}

impl FakeCli {
    /// Reads the transcript and the environment.
    pub(super) fn prepare(&mut self) {
        if let Some(name) = self.config.environment.get("CLAUDE_CODE_ENTRYPOINT") {
            self.transcript.entrypoint.clone_from(name);
        }
        if self.arguments.resume.is_none() {
            return;
        }
        let lines = self.config.transcript.clone().unwrap_or_default();
        let wrong = self.transcript.load(&lines);
        self.violations.extend(wrong);
        let cost_state = self
            .transcript
            .entries()
            .iter()
            .rfind(|it| it["type"] == "cost-state");
        if let Some(entry) = cost_state {
            self.total = frames::Usage::of_cost_state(entry);
        }
        self.resume = match self.transcript.pending_deferral(&lines) {
            Some(deferral) => Some(Resume::Deferral(deferral)),
            None if self.is_set("CLAUDE_CODE_RESUME_INTERRUPTED_TURN")
                && self.transcript.is_interrupted() =>
            {
                Some(Resume::Interrupted)
            }
            None => None,
        };
    }

    pub(super) fn is_unknown_session(&self) -> bool {
        self.arguments.resume.is_some() && self.config.transcript.is_none()
    }

    /// Ends as the real CLI does for a session that it does not find
    /// (capture `error_no_such_resume`).
    pub(super) fn end_unknown_session(&mut self) {
        let text = format!(
            "No conversation found with session ID: {}",
            self.transcript.session
        );
        self.stderr.push(text.clone());
        self.send_own(json!({
            "type": "result", "subtype": "error_during_execution", "duration_ms": 0,
            "duration_api_ms": 0, "is_error": true, "num_turns": 0, "stop_reason": null,
            "total_cost_usd": 0, "usage": frames::full_usage(0), "modelUsage": {},
            "permission_denials": [], "errors": [text], "result_index": 0,
        }));
        self.end(1);
    }

    pub(super) fn begin_resume(&mut self, resume: Resume) {
        let command = self.ids.uuid();
        self.send_lifecycle(&command, "started");
        self.transcript
            .queue_operation(&mut self.ids, "enqueue", Some(CONTINUE_TEXT));
        self.transcript
            .queue_operation(&mut self.ids, "dequeue", None);
        match resume {
            Resume::Interrupted => {
                let mut turn = Turn::new(Origin::Interrupted, Step::CallModel);
                turn.lifecycle.push(command);
                turn.user_uuids.extend(self.transcript.last_prompt_uuid());
                self.continue_resumed(&mut turn);
                self.turn = Some(turn);
            }
            Resume::Deferral(deferral) => {
                let mut turn = Turn::new(Origin::Deferral, Step::Tools);
                turn.lifecycle.push(command);
                if self.is_available(&deferral.tool) {
                    let block = json!({"id": deferral.id, "name": deferral.tool, "input": deferral.model_input});
                    let mut call = Call::new(&block, deferral.assistant_uuid, None);
                    call.is_resumed = true;
                    turn.calls.push(call);
                    self.turn = Some(turn);
                } else {
                    turn.deferred = Some(deferred_tool_use(&deferral));
                    self.finish(turn, &Ending::Unavailable);
                }
            }
        }
    }

    /// A server that only `initialize` declares comes too late for a resumed call
    /// (captures `unavailable_*`).
    fn is_available(&self, tool: &str) -> bool {
        let Some((server, _)) = frames::split_mcp(tool) else {
            return true;
        };
        self.servers.iter().any(|it| {
            it.name == server
                && it.is_declared_by_flag
                && matches!(it.state, ServerState::Connected { .. })
        })
    }
}

fn deferred_tool_use(deferral: &PendingDeferral) -> Value {
    json!({"id": deferral.id, "name": deferral.tool, "input": deferral.deferred_input})
}

//! Who decides whether a call runs: hooks, then the host, then the mode
//! (spec/cli-protocol.md 5 and 9).

use serde_json::{Value, json};

use super::frames::{self, merge};
use super::inbound::Open;
use super::tools::{CallState, Outcome};
use super::turn::Turn;
use super::{FakeCli, Fault};

/// What one PreToolUse callback answered.
#[derive(Debug, Clone)]
pub(super) struct HookAnswer {
    decision: Decision,
    reason: String,
    pub(super) updated_input: Option<Value>,
    pub(super) additional_context: Option<String>,
    stops_turn: bool,
}

/// From the weakest to the strongest (capture `hook_combinations`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Decision {
    None,
    Allow,
    Ask,
    Defer,
    Deny,
}

/// Who let a call run, or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    Hook,
    Host,
    Mode,
    /// The call has an unknown name: nobody was asked (capture `unknown_tool_names`).
    Nobody,
}

impl Source {
    /// Returns `permission_decision` of the result line.
    pub(super) fn decision(self, outcome: &Outcome) -> Option<Value> {
        match (self, outcome.not_run) {
            (_, Some("cancelled" | "user-rejected")) | (Self::Nobody, _) => None,
            (Self::Hook, None) => {
                Some(json!({"decision": "accept", "source": "hook", "reason_type": "hook"}))
            }
            (Self::Hook, Some(_)) => {
                Some(json!({"decision": "reject", "source": "hook", "reason_type": "hook"}))
            }
            (Self::Host, None) => Some(json!({"decision": "accept", "source": "user_temporary"})),
            (Self::Host, Some(_)) => Some(json!({"decision": "reject", "source": "user_reject"})),
            (Self::Mode, None) => {
                Some(json!({"decision": "accept", "source": "config", "reason_type": "mode"}))
            }
            (Self::Mode, Some(_)) => {
                Some(json!({"decision": "reject", "source": "config", "reason_type": "mode"}))
            }
        }
    }
}

impl HookAnswer {
    pub(super) fn is_deferral(&self) -> bool {
        self.decision == Decision::Defer
    }

    /// Reads an answer; an error, a malformed one or one without `hookEventName` is none
    /// (spec/cli-protocol.md 0.4).
    pub(super) fn read(answer: &Result<Value, String>) -> Option<Self> {
        let answer = answer.as_ref().ok()?.as_object()?;
        let mut read = Self {
            decision: match answer.get("decision").and_then(Value::as_str) {
                Some("block") => Decision::Deny,
                Some("approve") => Decision::Allow,
                Some(_) | None => Decision::None,
            },
            reason: answer
                .get("reason")
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned(),
            updated_input: None,
            additional_context: None,
            stops_turn: answer.get("continue") == Some(&json!(false)),
        };
        if let Some(output) = answer.get("hookSpecificOutput") {
            if output["hookEventName"] != "PreToolUse" {
                return None;
            }
            read.decision = match output["permissionDecision"].as_str() {
                Some("allow") => Decision::Allow,
                Some("ask") => Decision::Ask,
                Some("defer") => Decision::Defer,
                Some("deny") => Decision::Deny,
                None => read.decision,
                Some(_) => return None,
            };
            if let Some(reason) = output["permissionDecisionReason"].as_str() {
                reason.clone_into(&mut read.reason);
            }
            read.additional_context = output["additionalContext"].as_str().map(str::to_owned);
            read.updated_input = output
                .get("updatedInput")
                .filter(|it| it.is_object())
                .cloned();
        }
        Some(read)
    }
}

impl FakeCli {
    /// Combines the hooks' answers and acts on the strongest.
    pub(super) fn decide(&mut self, turn: &mut Turn, index: usize) {
        let call = &mut turn.calls[index];
        let strongest = call.answers.iter().max_by_key(|it| it.decision);
        let (mut decision, reason) = strongest.map_or((Decision::None, String::new()), |it| {
            (it.decision, it.reason.clone())
        });
        turn.is_stopped_by_hook |= call.answers.iter().any(|it| it.stops_turn);
        if decision == Decision::Defer && self.config.faults.contains(&Fault::IgnoreDeferral) {
            decision = Decision::None;
        }
        call.passed_hook = !call.answers.is_empty() && decision != Decision::Deny;
        if decision != Decision::None {
            call.source = Source::Hook;
        }
        match decision {
            Decision::Deny => {
                let text = format!("PreToolUse:{} hook error: {reason}", call.name);
                self.deny(turn, index, &text, Source::Hook);
            }
            Decision::Defer => call.state = CallState::Deferred,
            Decision::Ask => self.ask_host(turn, index, true),
            Decision::Allow if needs_answers(&call.name, &call.final_input) => {
                self.ask_host(turn, index, false);
            }
            Decision::Allow => call.state = CallState::Allowed,
            Decision::None => self.decide_by_mode(turn, index),
        }
    }

    fn decide_by_mode(&mut self, turn: &mut Turn, index: usize) {
        let call = &mut turn.calls[index];
        let mode = self.permission_mode();
        if mode == "bypassPermissions" || self.arguments.allowed_tools.contains(&call.name) {
            call.source = Source::Mode;
            call.state = CallState::Allowed;
        } else if mode == "dontAsk" {
            let text = format!(
                "Permission to use {} has been denied because Claude Code is running in don't ask mode.",
                call.name
            );
            let frame = json!({
                "type": "system", "subtype": "permission_denied", "tool_name": call.name,
                "tool_use_id": call.id, "decision_reason_type": "mode", "message": text,
            });
            self.send_own(frame);
            self.deny(turn, index, &text, Source::Mode);
        } else {
            self.ask_host(turn, index, false);
        }
    }

    fn ask_host(&mut self, turn: &mut Turn, index: usize, is_asked_by_hook: bool) {
        if !self.arguments.asks_host {
            let text = format!(
                "Claude requested permissions to use {}, but you haven't granted it yet.",
                turn.calls[index].name
            );
            self.deny(turn, index, &text, Source::Mode);
            return;
        }
        let call = &mut turn.calls[index];
        call.state = CallState::AskingHost;
        let mut request = json!({
            "subtype": "can_use_tool", "tool_name": call.name, "input": call.final_input,
            "display_name": frames::display_name(&call.name), "tool_use_id": call.id,
        });
        if let Some(description) = call.final_input.get("description") {
            merge(&mut request, json!({"description": description}));
        }
        if let Some((server, _)) = frames::split_mcp(&call.name) {
            merge(
                &mut request,
                json!({"mcp_server": {"name": server, "source": "sdk"}}),
            );
        }
        if is_asked_by_hook {
            merge(
                &mut request,
                json!({
                    "decision_reason": "", "decision_reason_type": "hook",
                    "decision_reason_hook_event": "PreToolUse", "decision_reason_hook_source": "settings",
                }),
            );
        }
        if call.name == "AskUserQuestion" {
            merge(&mut request, json!({"requires_user_interaction": true}));
        }
        if let Some(agent) = turn.agent_of(&turn.calls[index]) {
            merge(&mut request, json!({"agent_id": agent}));
        }
        self.send_state("requires_action");
        self.send_request(request, Open::Ask { call: index });
    }

    pub(super) fn handle_ask(
        &mut self,
        turn: &mut Turn,
        index: usize,
        answer: &Result<Value, String>,
    ) {
        self.send_state("running");
        if !matches!(turn.calls[index].state, CallState::AskingHost) {
            return;
        }
        match answer {
            Ok(answer) if answer["behavior"] == "allow" => {
                let call = &mut turn.calls[index];
                if let Some(input) = answer.get("updatedInput").filter(|it| it.is_object()) {
                    call.final_input = input.clone();
                }
                call.source = Source::Host;
                call.state = CallState::Allowed;
            }
            Ok(answer) if answer["behavior"] == "deny" => {
                let text = answer["message"].as_str().unwrap_or_default().to_owned();
                self.deny(turn, index, &text, Source::Host);
                turn.is_interrupted |= answer["interrupt"] == true;
            }
            Ok(_) => {
                self.violation("can_use_tool was answered without a behavior".to_owned());
                self.deny(turn, index, "Tool permission request failed", Source::Host);
            }
            Err(error) => {
                let text = format!("Tool permission request failed: {error}");
                self.deny(turn, index, &text, Source::Host);
            }
        }
    }

    #[expect(
        clippy::unused_self,
        reason = "reads as the machine's act beside its siblings"
    )]
    fn deny(&self, turn: &mut Turn, index: usize, text: &str, source: Source) {
        let call = &mut turn.calls[index];
        call.source = source;
        call.state = CallState::Done(Outcome::not_run(text, "permission-rule"));
        let denial =
            json!({"tool_name": call.name, "tool_use_id": call.id, "tool_input": call.final_input});
        turn.denials.push(denial);
    }
}

/// A question counts as answered only with its answers (spec/cli-protocol.md 5).
fn needs_answers(tool: &str, input: &Value) -> bool {
    tool == "AskUserQuestion" && input.get("answers").is_none()
}

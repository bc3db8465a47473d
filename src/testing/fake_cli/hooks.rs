//! The host's hook callbacks: sent, answered, given up (spec/cli-protocol.md 5).

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use super::builtin;
use super::frames::{self, merge};
use super::inbound::Open;
use super::permission::{HookAnswer, Source};
use super::tools::{CallState, Outcome};
use super::turn::Turn;
use super::{Callback, FakeCli, Fault};

impl FakeCli {
    pub(super) fn ask_hooks(&mut self, turn: &mut Turn, index: usize) {
        let call = &turn.calls[index];
        if !self.is_known_tool(&call.name) && !call.is_resumed {
            let text = format!("Error: No such tool available: {}", call.name);
            let mut outcome = Outcome::error(&format!("<tool_use_error>{text}</tool_use_error>"));
            outcome.detail = json!(text);
            turn.calls[index].source = Source::Nobody;
            turn.calls[index].state = CallState::Done(outcome);
            return;
        }
        if let Some(outcome) = builtin::refuse_input(&call.name, &call.input) {
            turn.calls[index].source = Source::Nobody;
            turn.calls[index].state = CallState::Done(outcome);
            return;
        }
        if self.has_fault(&Fault::RunWithoutAsking) {
            turn.calls[index].state = CallState::Allowed;
            return;
        }
        // Without --await-initialize the resumed call skips the hooks (spec/cli-protocol.md 0.2).
        let skips = self.has_fault(&Fault::SkipHooks)
            || (call.is_resumed
                && (self.has_fault(&Fault::SkipHooksOnResume)
                    || !self.arguments.awaits_initialize));
        let callbacks: Vec<Callback> = self
            .hooks
            .pre_tool_use
            .iter()
            .filter(|it| !skips && matches(it.matcher.as_deref(), &call.name))
            .cloned()
            .collect();
        turn.calls[index].state = CallState::AskingHooks;
        for callback in &callbacks {
            self.send_hook(turn, index, callback, true);
        }
        if callbacks.is_empty() {
            self.decide(turn, index);
        }
    }

    fn send_hook(&mut self, turn: &Turn, index: usize, callback: &Callback, counts: bool) {
        let call = &turn.calls[index];
        let mut input = self.hook_input(turn, "PreToolUse");
        merge(
            &mut input,
            json!({"tool_name": call.name, "tool_input": call.input, "tool_use_id": call.id}),
        );
        if let Some((server, _)) = frames::split_mcp(&call.name) {
            merge(
                &mut input,
                json!({"mcp_server": {"name": server, "source": "sdk"}}),
            );
        }
        if let Some(agent) = turn.agent_of(call) {
            merge(
                &mut input,
                json!({"agent_id": agent, "agent_type": "general-purpose"}),
            );
        }
        let request = json!({"subtype": "hook_callback", "callback_id": callback.id, "input": input, "tool_use_id": call.id});
        let timeout = callback.timeout.unwrap_or(DEFAULT_HOOK_TIMEOUT);
        let deadline = self.now.checked_add(timeout);
        self.send_request(
            request,
            Open::Hook {
                call: index,
                counts,
                deadline,
            },
        );
    }

    /// Asks what was registered for the end of a reply's calls, denied and unknown ones among them
    /// (real CLI 2.1.316, 2.1.332); returns the requests.
    pub(super) fn send_batch_hooks(
        &mut self,
        turn: &Turn,
        agent: Option<&str>,
        calls: &[Value],
    ) -> Vec<String> {
        let mut open = Vec::new();
        if self.has_fault(&Fault::NoBatchHook) {
            return open;
        }
        for callback in self.hooks.post_tool_batch.clone() {
            let mut input = self.hook_input(turn, "PostToolBatch");
            if let Some(agent) = agent {
                merge(
                    &mut input,
                    json!({"agent_id": agent, "agent_type": "general-purpose"}),
                );
            }
            merge(&mut input, json!({"tool_calls": calls}));
            open.push(self.send_request(
                json!({"subtype": "hook_callback", "callback_id": callback.id, "input": input}),
                Open::BatchHook,
            ));
        }
        open
    }

    /// The fields that every hook gets.
    pub(super) fn hook_input(&self, turn: &Turn, event: &str) -> Value {
        let mut input = json!({
            "session_id": self.transcript.session, "transcript_path": self.transcript.path,
            "cwd": self.transcript.cwd, "permission_mode": self.permission_mode(),
            "effort": {"level": "high"}, "hook_event_name": event,
        });
        if let Some(id) = &turn.prompt_id {
            merge(&mut input, json!({"prompt_id": id}));
        }
        input
    }

    pub(super) fn handle_hook(
        &mut self,
        turn: &mut Turn,
        index: usize,
        counts: bool,
        answer: &Result<Value, String>,
    ) {
        if !matches!(turn.calls[index].state, CallState::AskingHooks) {
            return;
        }
        if counts {
            if let Some(answer) = HookAnswer::read(answer) {
                // With `defer` in the same answer it is passed over (real CLI 2.1.316, 2.1.332).
                if let Some(input) = &answer.updated_input
                    && !answer.is_deferral()
                {
                    // The answer that arrives last wins (capture `hook_update_order`).
                    turn.calls[index].final_input = input.clone();
                }
                turn.calls[index].answers.push(answer);
            }
            if self.has_fault(&Fault::RepeatHook)
                && let Some(callback) = self.hooks.pre_tool_use.first().cloned()
            {
                self.send_hook(turn, index, &callback, false);
            }
        }
        let is_asking = |it: &Open| matches!(it, Open::Hook { call, .. } if *call == index);
        if !self.open.values().any(is_asking) {
            self.decide(turn, index);
        }
    }

    /// Gives up the hooks whose time is over; true when there was one (capture `hook_timeout`).
    pub(super) fn give_up_hooks(&mut self) -> bool {
        let late: BTreeSet<usize> = self
            .open
            .values()
            .filter_map(|it| match it {
                Open::Hook {
                    call,
                    deadline: Some(at),
                    ..
                } if *at <= self.now => Some(*call),
                _ => None,
            })
            .collect();
        // The call's other hooks go with the late one: nobody waits for their answers any more.
        let asked: Vec<String> = self
            .open
            .iter()
            .filter(|(_, it)| matches!(it, Open::Hook { call, .. } if late.contains(call)))
            .map(|(id, _)| id.clone())
            .collect();
        for id in &asked {
            self.cancel_request(id);
        }
        for (index, call) in self
            .turn
            .iter_mut()
            .flat_map(|it| it.calls.iter_mut().enumerate())
        {
            if late.contains(&index) {
                call.state = CallState::Done(Outcome::error(HOOK_TIMEOUT));
            }
        }
        !late.is_empty()
    }
}

/// The real CLI's own limit (capture `long_wait_hook`).
const DEFAULT_HOOK_TIMEOUT: Duration = Duration::from_secs(600);

const HOOK_TIMEOUT: &str = "PreToolUse hook did not respond before its timeout (host client may be unreachable). The tool call was not executed; other configured hooks may not have completed.";

/// A matcher is absent, `*`, or names joined by `|`; a name may end with `.*`.
fn matches(matcher: Option<&str>, tool: &str) -> bool {
    match matcher {
        None | Some("" | "*" | ".*") => true,
        Some(matcher) => matcher.split('|').any(|it| match it.strip_suffix(".*") {
            Some(prefix) => tool.starts_with(prefix),
            None => it == tool,
        }),
    }
}

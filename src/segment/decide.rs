//! How a question of the CLI about a call is answered: by the application's hooks first, then by
//! the gate, once for each id (L18, L23, L30).

use serde_json::value::RawValue;

use super::asked::{AskedCall, FinalInput, is_object};
use super::classify::{is_inline_call, policy_name};
use super::gate::{GateAnswer, HeldCall, Later, PermittedCall};
use super::{Action, GatedPath, HookQuestion, HooksAnswer, SEGMENT_OVER, Segment};
use crate::ids::ToolCallId;
use crate::protocol::{CanUseTool, HookAnswer, HookCallback, HostFrame, PermissionAnswer};
use crate::turn::SegmentEvent;

/// Our own decision about a call.
enum Judged {
    Answer(HookAnswer),
    /// A record governs it.
    Recorded,
}

impl Segment {
    /// Takes what the application's hooks say about a call, all of them together.
    pub fn handle_hooks_answer(&mut self, tool_call_id: &ToolCallId, answer: HooksAnswer) {
        // The call may have been given up, or the segment be over: both have answered the CLI.
        let Some(held) = self.gate.take_held(tool_call_id) else {
            return;
        };
        let HeldCall {
            request_id,
            call,
            input: asked,
        } = held;
        let judged = match answer {
            HooksAnswer::Deny { reason } => Judged::Answer(denial(reason)),
            HooksAnswer::Continue {
                updated_input: Some(json),
                ..
            } if !is_object(&json) => Judged::Answer(denial(format!(
                "{} did not run: a hook of the application gave it an input that is no object",
                call.tool_name
            ))),
            HooksAnswer::Continue {
                updated_input,
                needs_person,
            } if request_id.is_none()
                && is_inline_call(&self.plan, &call.tool_name, needs_person) =>
            {
                // It begins when the CLI asks, with what was judged and not with what is asked then.
                let rewritten = Some(updated_input.unwrap_or_else(|| asked.clone()));
                self.gate.permit(PermittedCall {
                    call,
                    input: FinalInput { asked, rewritten },
                    needs_person,
                });
                return self.advance();
            }
            HooksAnswer::Continue {
                updated_input: rewritten,
                needs_person,
            } => self.judge(&call, FinalInput { asked, rewritten }, needs_person),
        };
        self.answer(request_id.as_deref(), &call, judged);
        self.advance();
    }

    pub(super) fn on_hook(&mut self, request_id: String, hook: HookCallback) {
        if hook.callback_id.as_deref() == Some(super::POST_TOOL_BATCH_CALLBACK) {
            let is_main = hook.input.agent_id.is_none();
            self.on_batch_over(request_id, is_main);
            return;
        }
        match AskedCall::of_hook(hook) {
            Err(reason) => self.deny(request_id, reason),
            Ok((call, input)) => self.decide(request_id, call, input),
        }
    }

    /// Decides about a tool use: once for each id (L23, L30).
    fn decide(&mut self, request_id: String, call: AskedCall, input: Box<RawValue>) {
        match self.gate.asked_later(&request_id, &call) {
            Later::New if self.plan.answered.contains(&call.id) => {
                self.gate.refuse(&call.id);
                let reason = format!(
                    "{} did not run: an earlier call had the same id",
                    call.tool_name
                );
                self.deny(request_id, reason);
            }
            // The application's hooks saw a resumed call when it was recorded (D07, L19).
            Later::New if self.recorded.contains(&call.id) => self.ask_record(request_id, &call),
            Later::New => self.consider(Some(request_id), call, input),
            Later::Recorded => self.ask_record(request_id, &call),
            Later::Held => {}
            Later::Permitted(permitted) => {
                let PermittedCall {
                    call,
                    input,
                    needs_person,
                } = permitted;
                let judged = self.judge(&call, input, needs_person);
                self.answer(Some(&request_id), &call, judged);
            }
            Later::Denied(reason) => self.deny(request_id, reason),
            Later::Decided => {
                let reason = format!(
                    "{} did not run: a decision about this call was already made",
                    call.tool_name
                );
                self.deny(request_id, reason);
            }
        }
    }

    fn ask_record(&mut self, request_id: String, call: &AskedCall) {
        match self.recorded.hook(&request_id, call) {
            Ok(next) => {
                self.gate.record(&call.id);
                self.follow(&call.id, next);
            }
            Err(reason) => {
                self.gate.refuse_if_new(&call.id);
                self.deny(request_id, reason);
            }
        }
    }

    /// Looks at a new call: asks the application's hooks, or decides at once. `request_id` is the
    /// CLI's question, if it has asked.
    pub(super) fn consider(
        &mut self,
        request_id: Option<String>,
        call: AskedCall,
        input: Box<RawValue>,
    ) {
        let tool_name = policy_name(&self.plan, &call.tool_name);
        if !self.plan.asks_hooks && !self.plan.ruled.contains(tool_name) {
            let input = FinalInput {
                asked: input,
                rewritten: None,
            };
            let judged = self.judge(&call, input, None);
            self.answer(request_id.as_deref(), &call, judged);
            return;
        }
        self.actions.push_back(Action::AskHooks(HookQuestion {
            tool_call_id: call.id.clone(),
            tool_name: tool_name.to_owned(),
            sub_agent: call.sub_agent.clone(),
            input: input.clone(),
        }));
        self.gate.hold(HeldCall {
            request_id,
            call,
            input,
        });
    }

    /// Makes our own decision about a new call and its final input (G4).
    fn judge(&mut self, call: &AskedCall, input: FinalInput, needs_person: Option<bool>) -> Judged {
        let updated_input = input.rewritten.clone();
        match self.gate.decide(&self.plan, call, input, needs_person) {
            GateAnswer::Inline { tool_name } => {
                self.audit.allowed(&call.id, &call.tool_name);
                self.deliver(SegmentEvent::InlineCallStarted {
                    tool_call_id: call.id.clone(),
                    tool_name,
                });
                Judged::Answer(HookAnswer::Allow {
                    updated_input,
                    additional_context: None,
                })
            }
            GateAnswer::Structured => {
                self.audit.allowed(&call.id, &call.tool_name);
                Judged::Answer(HookAnswer::Allow {
                    updated_input,
                    additional_context: None,
                })
            }
            GateAnswer::Deny(reason) => Judged::Answer(denial(reason)),
            GateAnswer::Gated(gated) => match self.plan.path {
                GatedPath::Live => {
                    self.request(gated);
                    Judged::Recorded
                }
                GatedPath::Native => match self.native.gate(gated) {
                    Ok(()) => {
                        self.gate.defer(&call.id);
                        Judged::Answer(HookAnswer::Defer)
                    }
                    Err(reason) => {
                        self.gate.refuse(&call.id);
                        Judged::Answer(denial(reason))
                    }
                },
            },
        }
    }

    /// Answers the CLI's question, or keeps the answer until it asks.
    fn answer(&mut self, request_id: Option<&str>, call: &AskedCall, judged: Judged) {
        match (request_id, judged) {
            (Some(request_id), Judged::Answer(answer)) => {
                self.transmit.push_back(HostFrame::Hook {
                    request_id: request_id.to_owned(),
                    answer,
                });
            }
            (Some(request_id), Judged::Recorded) => self.ask_record(request_id.to_owned(), call),
            (None, Judged::Answer(HookAnswer::Deny { reason })) => {
                self.gate.refuse_ahead(&call.id, reason);
            }
            // Only what needs a record is looked at before the CLI asks.
            (
                None,
                Judged::Answer(HookAnswer::Allow { .. } | HookAnswer::Ask | HookAnswer::Defer),
            ) => {
                self.gate.refuse_ahead(
                    &call.id,
                    format!("{} did not run: it was not permitted", call.tool_name),
                );
            }
            (None, Judged::Recorded) => {}
        }
    }

    /// Answers a permission question: an allow comes only from the record of a call, once, and only
    /// when its hook was skipped (L26, L27).
    pub(super) fn on_can_use_tool(&mut self, request_id: String, question: CanUseTool) {
        let refusal = match AskedCall::of_question(question) {
            Err(reason) => reason,
            Ok(call) if self.recorded.contains(&call.id) => {
                let hook_ran = self.gate.is_decided(&call.id);
                match self.recorded.question(&request_id, &call, hook_ran) {
                    Ok(next) => {
                        self.gate.record(&call.id);
                        self.follow(&call.id, next);
                        return;
                    }
                    Err(reason) => {
                        self.gate.refuse_if_new(&call.id);
                        reason
                    }
                }
            }
            Ok(call) => {
                self.gate.refuse_if_new(&call.id);
                format!("{} did not run: it was not permitted", call.tool_name)
            }
        };
        self.transmit.push_back(HostFrame::Permission {
            request_id,
            answer: PermissionAnswer::Deny { message: refusal },
        });
    }

    /// The CLI dropped a question that waits for the application's hooks: the call stays denied.
    pub(super) fn withdraw_held(&mut self, request_id: &str) {
        if let Some(tool_call_id) = self.gate.held_by(request_id) {
            self.gate.refuse(&tool_call_id);
            self.actions.push_back(Action::CancelHooks { tool_call_id });
        }
    }

    /// Denies what still waits for the application's hooks or for a record.
    pub(super) fn deny_held(&mut self, reason: &str) {
        for tool_call_id in self.gate.all_held() {
            if let Some(held) = self.gate.take_held(&tool_call_id) {
                if let Some(request_id) = held.request_id {
                    self.deny(request_id, reason);
                }
                self.actions.push_back(Action::CancelHooks { tool_call_id });
            }
        }
    }

    /// Denies everything that is held: the segment is over.
    pub(super) fn deny_all(&mut self) {
        self.deny_held(SEGMENT_OVER);
        self.transmit.extend(self.recorded.deny_held(SEGMENT_OVER));
    }

    fn deny(&mut self, request_id: String, reason: impl Into<String>) {
        self.transmit.push_back(HostFrame::Hook {
            request_id,
            answer: denial(reason),
        });
    }
}

fn denial(reason: impl Into<String>) -> HookAnswer {
    HookAnswer::Deny {
        reason: reason.into(),
    }
}

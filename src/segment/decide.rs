//! How a question of the CLI about a call is answered: by the application's hooks first, then by
//! the gate, once for each id (L18, L23, L30).

use serde_json::value::RawValue;

use super::gate::{self, AskedCall, FinalInput, GateAnswer, HeldCall};
use super::native::{HookMove, QuestionMove};
use super::{Action, HookQuestion, HooksAnswer, SEGMENT_OVER, Segment};
use crate::ids::ToolCallId;
use crate::protocol::{CanUseTool, HookAnswer, HookCallback, HostFrame, PermissionAnswer};
use crate::turn::SegmentEvent;

/// A hook's answer that goes out now, or is held for the session or the application.
enum Held {
    Now(HookAnswer),
    Until,
}

impl Segment {
    /// Takes what the application's hooks say about a call, all of them together.
    pub fn handle_hooks_answer(&mut self, tool_call_id: &ToolCallId, answer: HooksAnswer) {
        // The call may have been given up, or the segment be over: both have answered the CLI.
        let Some(held) = self.gate.take_held(tool_call_id) else {
            return;
        };
        let answer = match answer {
            HooksAnswer::Deny { reason } => denial(reason),
            HooksAnswer::Continue {
                updated_input: None,
            } => self.judge(&held.call, held.input, None),
            HooksAnswer::Continue {
                updated_input: Some(json),
            } if gate::is_object(&json) => self.judge(&held.call, held.input, Some(json)),
            HooksAnswer::Continue {
                updated_input: Some(_),
            } => denial(format!(
                "{} did not run: a hook of the application gave it an input that is no object",
                held.call.tool_name
            )),
        };
        self.transmit.push_back(HostFrame::Hook {
            request_id: held.request_id,
            answer,
        });
    }

    pub(super) fn on_hook(&mut self, request_id: String, hook: HookCallback) {
        let answer = match AskedCall::of_hook(hook) {
            Err(reason) => deny(reason),
            Ok((call, input)) => self.decide(&request_id, call, input),
        };
        match answer {
            Held::Now(answer) => self
                .transmit
                .push_back(HostFrame::Hook { request_id, answer }),
            Held::Until => {}
        }
    }

    /// Decides about a tool use: once for each id (L23, L30).
    fn decide(&mut self, request_id: &str, call: AskedCall, input: Box<RawValue>) -> Held {
        if self.gate.is_decided(&call.id) {
            return deny(format!(
                "{} did not run: a decision about this call was already made",
                call.tool_name
            ));
        }
        if self.plan.answered.contains(&call.id) {
            self.gate.refuse(&call.id);
            return deny(format!(
                "{} did not run: an earlier call had the same id",
                call.tool_name
            ));
        }
        // The application's hooks saw a resumed call when it was deferred (D07, L19).
        if self.native.is_resumed(&call.id) {
            return match self.native.hook(request_id, &call) {
                HookMove::Answer(answer) => {
                    self.gate.resume(&call.id);
                    Held::Now(answer)
                }
                HookMove::Start => {
                    self.start_resumed(&call.id);
                    Held::Until
                }
                HookMove::Refuse(reason) => {
                    self.gate.refuse(&call.id);
                    deny(reason)
                }
            };
        }
        if !self.plan.asks_hooks {
            return Held::Now(self.judge(&call, input, None));
        }
        self.actions.push_back(Action::AskHooks(HookQuestion {
            tool_call_id: call.id.clone(),
            tool_name: gate::policy_name(&self.plan, &call.tool_name).to_owned(),
            sub_agent: call.sub_agent.clone(),
            input: input.clone(),
        }));
        self.gate.hold(HeldCall {
            request_id: request_id.to_owned(),
            call,
            input,
        });
        Held::Until
    }

    /// Makes our own decision about a new call and its final input (G4).
    fn judge(
        &mut self,
        call: &AskedCall,
        asked: Box<RawValue>,
        rewritten: Option<Box<RawValue>>,
    ) -> HookAnswer {
        let updated_input = rewritten.clone();
        let input = FinalInput { asked, rewritten };
        match self.gate.decide(&self.plan, call, input) {
            GateAnswer::Inline { tool_name } => {
                self.actions
                    .push_back(Action::Deliver(SegmentEvent::InlineCallStarted {
                        tool_call_id: call.id.clone(),
                        tool_name,
                    }));
                HookAnswer::Allow { updated_input }
            }
            GateAnswer::Structured => HookAnswer::Allow { updated_input },
            GateAnswer::Deny(reason) => denial(reason),
            GateAnswer::Gated(gated) => match self.native.gate(gated) {
                Ok(()) => {
                    self.gate.defer(&call.id);
                    HookAnswer::Defer
                }
                Err(reason) => {
                    self.gate.refuse(&call.id);
                    denial(reason)
                }
            },
        }
    }

    /// Answers a permission question: an allow comes only from the record of the resumed call, once,
    /// and only when its hook was skipped (L26, L27).
    pub(super) fn on_can_use_tool(&mut self, request_id: String, question: CanUseTool) {
        let answer = match AskedCall::of_question(question) {
            Err(reason) => Some(refuse(reason)),
            Ok(call) if self.native.is_resumed(&call.id) => {
                let hook_ran = self.gate.is_decided(&call.id);
                match self.native.question(&request_id, &call, hook_ran) {
                    QuestionMove::Answer(answer) => {
                        self.gate.resume(&call.id);
                        Some(answer)
                    }
                    QuestionMove::Start => {
                        self.start_resumed(&call.id);
                        None
                    }
                    QuestionMove::Refuse(reason) => {
                        self.gate.refuse_if_new(&call.id);
                        Some(refuse(reason))
                    }
                }
            }
            Ok(call) => {
                self.gate.refuse_if_new(&call.id);
                let reason = format!("{} did not run: it was not permitted", call.tool_name);
                Some(refuse(reason))
            }
        };
        if let Some(answer) = answer {
            self.transmit
                .push_back(HostFrame::Permission { request_id, answer });
        }
    }

    /// Asks the session for the start mark of the resumed call.
    fn start_resumed(&mut self, id: &ToolCallId) {
        self.gate.resume(id);
        self.actions
            .push_back(Action::Deliver(SegmentEvent::CallStarting {
                tool_call_id: id.clone(),
            }));
    }

    /// The CLI dropped a question that waits for the application's hooks: the call stays denied.
    pub(super) fn withdraw_held(&mut self, request_id: &str) {
        if let Some(tool_call_id) = self.gate.held_by(request_id) {
            self.gate.refuse(&tool_call_id);
            self.actions.push_back(Action::CancelHooks { tool_call_id });
        }
    }

    /// Denies what still waits for the application's hooks: the segment is over.
    pub(super) fn deny_held(&mut self) {
        for tool_call_id in self.gate.all_held() {
            if let Some(held) = self.gate.take_held(&tool_call_id) {
                self.transmit.push_back(HostFrame::Hook {
                    request_id: held.request_id,
                    answer: denial(SEGMENT_OVER),
                });
                self.actions.push_back(Action::CancelHooks { tool_call_id });
            }
        }
    }
}

fn deny(reason: impl Into<String>) -> Held {
    Held::Now(denial(reason))
}

fn denial(reason: impl Into<String>) -> HookAnswer {
    HookAnswer::Deny {
        reason: reason.into(),
    }
}

fn refuse(message: impl Into<String>) -> PermissionAnswer {
    PermissionAnswer::Deny {
        message: message.into(),
    }
}

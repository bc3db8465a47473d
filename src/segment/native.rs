//! The CLI's own way to park a call (spec/cli-protocol.md 6): the first gated call of a segment is
//! deferred, the CLI ends, and a later segment answers the call from its record. All rules that
//! hold for this way alone are here.

use serde_json::value::RawValue;

use super::audit::ToolResult;
use super::gate::{AskedCall, GatedCall, ServedCall};
use super::json::same_json;
use super::{McpPermit, SegmentPlan, contract, runner};
use crate::failure::AttemptFailure;
use crate::ids::ToolCallId;
use crate::protocol::{HookAnswer, HostFrame, PermissionAnswer, ResultFrame};
use crate::record::{NOT_RUN_PREFIX, ToolOutcome};
use crate::turn::{CallPlace, RequestedCall, ResumedCall, ResumedFate};

/// The most of a CLI tool's result that becomes part of its record, in bytes. The model reads the
/// whole of it in the transcript; the record is for people and for a repeated resume.
pub(super) const RECORDED_RESULT_BYTES_MAX: usize = 256 * 1024;

const CUT_MARKER: &str = "\n[the rest was cut]";

/// The state of the native path in one segment.
#[derive(Debug)]
pub(super) struct Native {
    deferral: Deferral,
    resumed: Option<Resumed>,
}

#[derive(Debug)]
enum Deferral {
    None,
    Deferred(GatedCall),
}

/// The call that the segment resumes.
#[derive(Debug)]
struct Resumed {
    call: ResumedCall,
    /// The only tool under this id, as the model sees it (L22).
    cli_name: String,
    /// The recorded arguments (L24).
    arguments: Box<RawValue>,
    has_refusing_rules: bool,
    state: ResumedState,
}

#[derive(Debug)]
enum ResumedState {
    /// The CLI has not asked yet.
    Waiting,
    /// The session was asked for the start mark; the CLI's question is held until then.
    Starting(Question),
    /// The CLI dropped its question before the answer.
    Withdrawn,
    /// A tool of the CLI may run: the start mark is committed and the allow is sent.
    Granted,
    /// A custom call is allowed; the tool server will be asked for its record.
    Replaying,
    /// The tool server was given the record.
    Replayed,
    /// The hook said ask; the permission question comes next.
    Asking,
    /// The model was told the record by a refusal.
    Refused,
    /// The result is in the transcript.
    Told,
}

/// What waits for the start mark.
#[derive(Debug)]
enum Question {
    Hook { request_id: String },
    Permission { request_id: String },
}

impl Question {
    fn request_id(&self) -> &str {
        match self {
            Self::Hook { request_id } | Self::Permission { request_id } => request_id,
        }
    }
}

/// What follows from a hook's question about the resumed call.
pub(super) enum HookMove {
    Answer(HookAnswer),
    /// Ask for the start mark; the answer is held.
    Start,
    Refuse(String),
}

/// What follows from a permission question about the resumed call.
pub(super) enum QuestionMove {
    Answer(PermissionAnswer),
    /// Ask for the start mark; the answer is held.
    Start,
    Refuse(String),
}

/// What follows from a granted start.
pub(super) enum GrantMove {
    Answer(HostFrame),
    /// The call can never start any more: its record ends in this.
    Report(ToolOutcome),
    Nothing,
}

/// What follows from the result of the resumed call.
pub(super) enum ResultMove {
    /// The record of a tool of the CLI ends in this.
    Report(ToolOutcome),
    Nothing,
}

impl Native {
    /// A segment that starts a turn.
    pub(super) const fn of_turn() -> Self {
        Self {
            deferral: Deferral::None,
            resumed: None,
        }
    }

    /// A segment that resumes this call.
    pub(super) fn of_resume(
        call: &ResumedCall,
        plan: &SegmentPlan,
    ) -> Result<Self, AttemptFailure> {
        let arguments = RawValue::from_string(call.arguments.clone())
            .map_err(|_| runner("the recorded arguments of the resumed call are no JSON"))?;
        let cli_name = match (call.place, &call.fate) {
            (CallPlace::Step, ResumedFate::Permitted) => {
                return Err(runner(
                    "a call of its own step was not run before its resume",
                ));
            }
            (CallPlace::Step, ResumedFate::Final(_)) => {
                format!("mcp__{}__{}", plan.server_name, call.tool_name)
            }
            (CallPlace::Segment, _) => call.tool_name.clone(),
        };
        Ok(Self {
            deferral: Deferral::None,
            resumed: Some(Resumed {
                call: call.clone(),
                cli_name,
                arguments,
                has_refusing_rules: plan.has_refusing_rules,
                state: ResumedState::Waiting,
            }),
        })
    }

    /// Defers the first gated call of the segment. A later one is refused, because the CLI resumes
    /// only one (I06, I09).
    pub(super) fn gate(&mut self, call: GatedCall) -> Result<(), String> {
        match self.deferral {
            Deferral::None => {
                self.deferral = Deferral::Deferred(call);
                Ok(())
            }
            Deferral::Deferred(_) => Err(format!(
                "{name} did not run. Another call of this reply waits for its result, and only one can wait at a time. Call {name} again by itself.",
                name = call.cli_name
            )),
        }
    }

    pub(super) fn is_resumed(&self, id: &ToolCallId) -> bool {
        self.resumed
            .as_ref()
            .is_some_and(|it| it.call.tool_call_id == *id)
    }

    /// Answers the first hook for the resumed call.
    pub(super) fn hook(&mut self, request_id: &str, asked: &AskedCall) -> HookMove {
        let Some(resumed) = &mut self.resumed else {
            return HookMove::Refuse(not_recorded(asked));
        };
        if !resumed.is_own_tool(asked) {
            return HookMove::Refuse(not_recorded(asked));
        }
        match (resumed.call.place, &resumed.call.fate) {
            (CallPlace::Step, _) => {
                resumed.state = ResumedState::Replaying;
                HookMove::Answer(resumed.allow())
            }
            (CallPlace::Segment, ResumedFate::Permitted) => {
                resumed.state = ResumedState::Starting(Question::Hook {
                    request_id: request_id.to_owned(),
                });
                HookMove::Start
            }
            (CallPlace::Segment, ResumedFate::Final(_)) => HookMove::Answer(resumed.tell()),
        }
    }

    /// Answers a permission question about the resumed call: after `ask`, or when its hook was
    /// skipped (L27).
    pub(super) fn question(
        &mut self,
        request_id: &str,
        asked: &AskedCall,
        hook_ran: bool,
    ) -> QuestionMove {
        let Some(resumed) = &mut self.resumed else {
            return QuestionMove::Refuse(not_recorded(asked));
        };
        if !resumed.is_own_tool(asked) {
            return QuestionMove::Refuse(not_recorded(asked));
        }
        match (&resumed.state, hook_ran) {
            (ResumedState::Asking, _) => {
                let message = resumed.told_text();
                resumed.state = ResumedState::Refused;
                QuestionMove::Answer(PermissionAnswer::Deny { message })
            }
            (ResumedState::Waiting, false) => match (resumed.call.place, &resumed.call.fate) {
                (CallPlace::Step, _) => {
                    resumed.state = ResumedState::Replaying;
                    QuestionMove::Answer(PermissionAnswer::Allow {
                        updated_input: resumed.arguments.clone(),
                    })
                }
                (CallPlace::Segment, ResumedFate::Permitted) => {
                    resumed.state = ResumedState::Starting(Question::Permission {
                        request_id: request_id.to_owned(),
                    });
                    QuestionMove::Start
                }
                (CallPlace::Segment, ResumedFate::Final(_)) => {
                    let message = resumed.told_text();
                    resumed.state = ResumedState::Refused;
                    QuestionMove::Answer(PermissionAnswer::Deny { message })
                }
            },
            (
                ResumedState::Waiting
                | ResumedState::Starting(_)
                | ResumedState::Withdrawn
                | ResumedState::Granted
                | ResumedState::Replaying
                | ResumedState::Replayed
                | ResumedState::Refused
                | ResumedState::Told,
                _,
            ) => QuestionMove::Refuse(format!(
                "{} did not run: a decision about this call was already made",
                asked.tool_name
            )),
        }
    }

    /// The start mark is committed. `running` is false when the segment is over.
    pub(super) fn granted(&mut self, id: &ToolCallId, running: bool) -> GrantMove {
        let Some(resumed) = self
            .resumed
            .as_mut()
            .filter(|it| it.call.tool_call_id == *id)
        else {
            return GrantMove::Nothing;
        };
        match std::mem::replace(&mut resumed.state, ResumedState::Told) {
            ResumedState::Starting(question) if running => {
                resumed.state = ResumedState::Granted;
                GrantMove::Answer(match question {
                    Question::Hook { request_id } => HostFrame::Hook {
                        request_id,
                        answer: resumed.allow(),
                    },
                    Question::Permission { request_id } => HostFrame::Permission {
                        request_id,
                        answer: PermissionAnswer::Allow {
                            updated_input: resumed.arguments.clone(),
                        },
                    },
                })
            }
            // The allow was never sent and never will be.
            ResumedState::Starting(_) | ResumedState::Withdrawn => {
                GrantMove::Report(ToolOutcome::Failed {
                    error: format!("{NOT_RUN_PREFIX}: the CLI gave the call up before it started"),
                })
            }
            other @ (ResumedState::Waiting
            | ResumedState::Granted
            | ResumedState::Replaying
            | ResumedState::Replayed
            | ResumedState::Asking
            | ResumedState::Refused
            | ResumedState::Told) => {
                resumed.state = other;
                GrantMove::Nothing
            }
        }
    }

    /// The session refused the start: the record already has this end, and the model is told.
    pub(super) fn ended_before_start(
        &mut self,
        id: &ToolCallId,
        outcome: ToolOutcome,
    ) -> Option<HostFrame> {
        let resumed = self
            .resumed
            .as_mut()
            .filter(|it| it.call.tool_call_id == *id)?;
        resumed.call.fate = ResumedFate::Final(outcome);
        match std::mem::replace(&mut resumed.state, ResumedState::Asking) {
            ResumedState::Starting(Question::Hook { request_id }) => Some(HostFrame::Hook {
                request_id,
                answer: resumed.tell(),
            }),
            ResumedState::Starting(Question::Permission { request_id }) => {
                let message = resumed.told_text();
                resumed.state = ResumedState::Refused;
                Some(HostFrame::Permission {
                    request_id,
                    answer: PermissionAnswer::Deny { message },
                })
            }
            other @ (ResumedState::Waiting
            | ResumedState::Withdrawn
            | ResumedState::Granted
            | ResumedState::Replaying
            | ResumedState::Replayed
            | ResumedState::Asking
            | ResumedState::Refused
            | ResumedState::Told) => {
                resumed.state = other;
                None
            }
        }
    }

    /// The CLI dropped a question; an answer that is held for it must not go out any more.
    pub(super) fn withdraw(&mut self, request_id: &str) {
        if let Some(resumed) = &mut self.resumed
            && let ResumedState::Starting(question) = &resumed.state
            && question.request_id() == request_id
        {
            resumed.state = ResumedState::Withdrawn;
        }
    }

    /// Gives the tool server the record of the resumed call, once (I13, L20).
    pub(super) fn serve(&mut self, call: &ServedCall) -> Option<McpPermit> {
        let resumed = self
            .resumed
            .as_mut()
            .filter(|it| it.call.tool_call_id == call.id && it.call.tool_name == call.name)?;
        match (&resumed.state, &resumed.call.fate) {
            (ResumedState::Replaying, ResumedFate::Final(outcome)) => {
                let permit = McpPermit::Replay {
                    text: outcome.model_text(),
                    is_error: outcome.is_error(),
                };
                resumed.state = ResumedState::Replayed;
                Some(permit)
            }
            (_, _) => None,
        }
    }

    /// Takes the result of the resumed call from the CLI's output.
    pub(super) fn tool_result(
        &mut self,
        result: &ToolResult,
    ) -> Result<ResultMove, AttemptFailure> {
        let Some(resumed) = &mut self.resumed else {
            return Ok(ResultMove::Nothing);
        };
        match resumed.state {
            ResumedState::Granted => {
                resumed.state = ResumedState::Told;
                let text = bounded(&result.text);
                Ok(ResultMove::Report(if result.is_error {
                    ToolOutcome::Failed { error: text }
                } else {
                    ToolOutcome::Succeeded { output: text }
                }))
            }
            ResumedState::Replayed => {
                resumed.state = ResumedState::Told;
                Ok(ResultMove::Nothing)
            }
            ResumedState::Refused if result.is_error => {
                resumed.state = ResumedState::Told;
                Ok(ResultMove::Nothing)
            }
            // The second use of its id was denied, and the model reads that.
            ResumedState::Told if result.is_error => Ok(ResultMove::Nothing),
            ResumedState::Waiting
            | ResumedState::Starting(_)
            | ResumedState::Withdrawn
            | ResumedState::Replaying
            | ResumedState::Asking
            | ResumedState::Refused
            | ResumedState::Told => Err(contract(format!(
                "the CLI answered call {} by itself",
                result.tool_call_id
            ))),
        }
    }

    /// Reads the result of the segment: the call that was deferred, if one was (G4, L21, L29).
    pub(super) fn conclude(
        &self,
        result: &ResultFrame,
    ) -> Result<Option<RequestedCall>, AttemptFailure> {
        match self.resumed.as_ref().map(|it| &it.state) {
            None | Some(ResumedState::Told) => {}
            Some(
                ResumedState::Waiting
                | ResumedState::Starting(_)
                | ResumedState::Withdrawn
                | ResumedState::Granted
                | ResumedState::Replaying
                | ResumedState::Replayed
                | ResumedState::Asking
                | ResumedState::Refused,
            ) => return Err(contract("the resumed call got no result")),
        }
        let says_deferred = result.stop_reason.as_deref() == Some("tool_deferred");
        match (&self.deferral, says_deferred, &result.deferred_tool_use) {
            (Deferral::None, false, None) => Ok(None),
            (Deferral::Deferred(call), true, Some(named)) => {
                // A race of the CLI shows itself like this (spec/cli-protocol.md 6).
                if result
                    .terminal_reason
                    .as_deref()
                    .is_some_and(|it| it != "tool_deferred")
                {
                    return Err(contract("the CLI went on after a deferral"));
                }
                if named.id != call.id.as_str() || named.name != call.cli_name {
                    return Err(contract("the CLI deferred another call than the hook did"));
                }
                // The CLI keeps what the model wrote. What our hooks made of it is in the record,
                // and the allow of the resume carries it (L24).
                if !same_json(call.input.asked.get(), named.input.get()) {
                    return Err(contract(
                        "the CLI deferred another input than the one that was decided about",
                    ));
                }
                Ok(Some(RequestedCall {
                    tool_call_id: call.id.clone(),
                    tool_name: call.tool_name.clone(),
                    arguments: call.input.json().get().to_owned(),
                    policy: call.policy,
                    place: call.place,
                }))
            }
            (Deferral::Deferred(_), _, _) => Err(contract("the CLI ignored a deferral")),
            (Deferral::None, _, _) => {
                Err(contract("the CLI deferred a call that the hook did not"))
            }
        }
    }
}

impl Resumed {
    fn is_own_tool(&self, asked: &AskedCall) -> bool {
        self.cli_name == asked.tool_name && asked.sub_agent.is_none()
    }

    fn allow(&self) -> HookAnswer {
        HookAnswer::Allow {
            updated_input: Some(self.arguments.clone()),
        }
    }

    /// Answers the hook of a call whose record is final, so that the model is told the record. The
    /// answer to a permission question reaches it word for word, a hook's reason behind a prefix;
    /// but a rule that refuses the call wins over `ask`, and the model would read of the rule
    /// (measured on CLI 2.1.316 and 2.1.332).
    fn tell(&mut self) -> HookAnswer {
        if self.has_refusing_rules {
            self.state = ResumedState::Refused;
            let reason = self.told_text();
            return HookAnswer::Deny { reason };
        }
        self.state = ResumedState::Asking;
        HookAnswer::Ask
    }

    /// What the model reads about a call that must not run, because its record is final.
    fn told_text(&self) -> String {
        match &self.call.fate {
            ResumedFate::Permitted => NOT_RUN_PREFIX.to_owned(),
            ResumedFate::Final(ToolOutcome::Succeeded { output }) => format!(
                "This call already ran, and its result was recorded. It was not run again, and it must not be repeated. The recorded result: {output}"
            ),
            ResumedFate::Final(outcome) => outcome.model_text(),
        }
    }
}

fn not_recorded(asked: &AskedCall) -> String {
    format!(
        "{} did not run: the record under this id is of another call",
        asked.tool_name
    )
}

fn bounded(text: &str) -> String {
    if text.len() <= RECORDED_RESULT_BYTES_MAX {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(RECORDED_RESULT_BYTES_MAX - CUT_MARKER.len());
    format!("{}{CUT_MARKER}", &text[..end])
}

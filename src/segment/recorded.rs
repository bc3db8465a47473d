//! Calls that a record governs: each hook, permission question and tool server request about one is
//! answered from its record alone, once (G1, G3, G4, L22, L24, L26).

use std::collections::BTreeMap;

use serde_json::value::RawValue;

use super::asked::{AskedCall, GatedCall};
use super::audit::{ToolResult, is_refusal};
use super::json::same_json;
use super::question::Question;
use super::served::ServedCall;
use super::{McpPermit, contract, runner};
use crate::failure::AttemptFailure;
use crate::ids::ToolCallId;
use crate::protocol::{HookAnswer, HostFrame};
use crate::record::{NOT_RUN_PREFIX, ToolOutcome, changed_input_note};
use crate::turn::{CallPlace, ResumedCall, ResumedFate};

/// The most of a CLI tool's result that becomes part of its record, in bytes. The model reads the
/// whole of it in the transcript; the record is for people and for a repeated resume.
pub(super) const RECORDED_RESULT_BYTES_MAX: usize = 256 * 1024;

const CUT_MARKER: &str = "\n[the rest was cut]";

/// What is known of a call's record.
#[derive(Debug, Clone)]
pub(super) enum Fate {
    /// It is not decided, waits for an earlier call, or runs in its own Step.
    Open,
    /// It may run inside the segment, after its start mark.
    Permitted,
    /// It is over: the model gets this, and nothing runs.
    Final(ToolOutcome),
}

/// One call that a record governs.
#[derive(Debug)]
pub(super) struct RecordedCall {
    id: ToolCallId,
    /// The only tool under this id, as the model sees it (L22).
    cli_name: String,
    /// The policy name: for a custom tool, its own.
    tool_name: String,
    place: CallPlace,
    /// The recorded input, which the CLI is told (L24).
    arguments: Box<RawValue>,
    /// True when a person put it in the place of the model's: the model is told.
    is_changed: bool,
    /// True when what a person adds are answers: the result tells them.
    asks_questions: bool,
    fate: Fate,
    state: State,
}

#[derive(Debug)]
enum State {
    /// The CLI has not asked yet.
    Waiting,
    /// The CLI asked, and the record is open: the question is held.
    Held(Question),
    /// The CLI dropped a question that was held.
    Dropped,
    /// The session was asked for the start mark; the question is held until then.
    Starting(Question),
    /// The CLI dropped its question while the start mark was asked for.
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

/// What follows from a question of the CLI, or from news about the record.
#[derive(Debug)]
pub(super) enum RecordMove {
    /// The CLI gets this.
    Answer(HostFrame),
    /// Ask the session how the call stands; the question is held.
    AskStanding,
    /// Ask the session for the start mark; the question is held.
    Start,
    /// The record of a tool of the CLI ends in this.
    Report(ToolOutcome),
    /// The CLI gave the call up before it asked.
    GivenUp,
    Nothing,
}

/// The recorded calls of one segment.
#[derive(Debug, Default)]
pub(super) struct RecordedCalls {
    calls: BTreeMap<ToolCallId, RecordedCall>,
    /// True when the CLI has rules of its own that may refuse a call before it asks us again.
    has_refusing_rules: bool,
}

impl RecordedCalls {
    pub(super) const fn new(has_refusing_rules: bool) -> Self {
        Self {
            calls: BTreeMap::new(),
            has_refusing_rules,
        }
    }

    /// Adds a call whose record an earlier segment made.
    pub(super) fn resume(
        &mut self,
        call: &ResumedCall,
        server_name: &str,
    ) -> Result<(), AttemptFailure> {
        let arguments = RawValue::from_string(call.arguments.clone())
            .map_err(|_| runner("the recorded arguments of the resumed call are no JSON"))?;
        let fate = match (call.place, &call.fate) {
            (CallPlace::Step, ResumedFate::Permitted) => {
                return Err(runner(
                    "a call of its own step was not run before its resume",
                ));
            }
            (CallPlace::Segment, ResumedFate::Permitted) => Fate::Permitted,
            (_, ResumedFate::Final(outcome)) => Fate::Final(outcome.clone()),
        };
        let cli_name = match call.place {
            CallPlace::Step => format!("mcp__{server_name}__{}", call.tool_name),
            CallPlace::Segment => call.tool_name.clone(),
        };
        self.insert(RecordedCall {
            id: call.tool_call_id.clone(),
            cli_name,
            tool_name: call.tool_name.clone(),
            place: call.place,
            arguments,
            is_changed: call.are_arguments_changed && matches!(fate, Fate::Permitted),
            asks_questions: false,
            fate,
            state: State::Waiting,
        });
        Ok(())
    }

    /// Adds a call of this segment, which the session is about to record.
    pub(super) fn request(&mut self, call: &GatedCall) {
        self.insert(RecordedCall {
            id: call.id.clone(),
            cli_name: call.cli_name.clone(),
            tool_name: call.tool_name.clone(),
            place: call.place,
            arguments: call.input.json().to_owned(),
            is_changed: false,
            asks_questions: call.policy.asks_questions(),
            fate: Fate::Open,
            state: State::Waiting,
        });
    }

    fn insert(&mut self, call: RecordedCall) {
        self.calls.insert(call.id.clone(), call);
    }

    /// Forgets a call whose reply was given up before the session knew of it; returns the denial of
    /// a question that was held.
    pub(super) fn forget(&mut self, id: &ToolCallId, reason: &str) -> Option<HostFrame> {
        let call = self.calls.remove(id)?;
        call.into_question().map(|it| it.deny(reason))
    }

    pub(super) fn contains(&self, id: &ToolCallId) -> bool {
        self.calls.contains_key(id)
    }

    /// The calls whose questions are held until their records are over.
    pub(super) fn held(&self) -> impl Iterator<Item = &ToolCallId> {
        self.calls
            .values()
            .filter(|it| it.is_held())
            .map(|it| &it.id)
    }

    /// True when a tool of the CLI runs under a start mark.
    pub(super) fn has_started(&self) -> bool {
        self.calls.values().any(RecordedCall::is_started)
    }

    /// True when every call that the CLI must have asked about has its result.
    pub(super) fn are_all_told(&self) -> bool {
        self.calls.values().all(RecordedCall::is_told)
    }

    /// Answers a hook's first question about a call.
    pub(super) fn hook(
        &mut self,
        request_id: &str,
        asked: &AskedCall,
    ) -> Result<RecordMove, String> {
        let rules = self.has_refusing_rules;
        let call = self.own(asked)?;
        let question = Question::Hook {
            request_id: request_id.to_owned(),
        };
        match call.state {
            State::Waiting => Ok(call.answer(question, rules)),
            State::Held(_)
            | State::Dropped
            | State::Starting(_)
            | State::Withdrawn
            | State::Granted
            | State::Replaying
            | State::Replayed
            | State::Asking
            | State::Refused
            | State::Told => Err(already_decided(asked)),
        }
    }

    /// Answers a permission question about a call: after `ask`, or when its hook was skipped (L27).
    pub(super) fn question(
        &mut self,
        request_id: &str,
        asked: &AskedCall,
        hook_ran: bool,
    ) -> Result<RecordMove, String> {
        let rules = self.has_refusing_rules;
        let call = self.own(asked)?;
        let question = Question::Permission {
            request_id: request_id.to_owned(),
        };
        match (&call.state, hook_ran) {
            (State::Asking, _) | (State::Waiting, false) => Ok(call.answer(question, rules)),
            (
                State::Waiting
                | State::Held(_)
                | State::Dropped
                | State::Starting(_)
                | State::Withdrawn
                | State::Granted
                | State::Replaying
                | State::Replayed
                | State::Refused
                | State::Told,
                _,
            ) => Err(already_decided(asked)),
        }
    }

    /// Takes the session's word about an open call, with the arguments that a person put in the place of
    /// its own.
    pub(super) fn standing(
        &mut self,
        id: &ToolCallId,
        fate: Fate,
        changed: Option<Box<RawValue>>,
    ) -> RecordMove {
        let rules = self.has_refusing_rules;
        let Some(call) = self.calls.get_mut(id) else {
            return RecordMove::Nothing;
        };
        match (&call.fate, &fate) {
            (Fate::Open, Fate::Permitted | Fate::Final(_)) => call.fate = fate,
            (Fate::Open, Fate::Open) | (Fate::Permitted | Fate::Final(_), _) => {
                return RecordMove::Nothing;
            }
        }
        if let Some(changed) = changed {
            call.arguments = changed;
            call.is_changed = !call.asks_questions;
        }
        match std::mem::replace(&mut call.state, State::Waiting) {
            State::Held(question) => call.answer(question, rules),
            other => {
                call.state = other;
                RecordMove::Nothing
            }
        }
    }

    /// The start mark is committed. `running` is false when the segment is over.
    pub(super) fn granted(&mut self, id: &ToolCallId, running: bool) -> RecordMove {
        let Some(call) = self.calls.get_mut(id) else {
            return RecordMove::Nothing;
        };
        match std::mem::replace(&mut call.state, State::Told) {
            State::Starting(question) if running => {
                call.state = State::Granted;
                RecordMove::Answer(call.allow(question))
            }
            // The allow was never sent and never will be.
            State::Starting(_) | State::Withdrawn => RecordMove::Report(ToolOutcome::Failed {
                error: format!("{NOT_RUN_PREFIX}: the CLI gave the call up before it started"),
            }),
            other => {
                call.state = other;
                RecordMove::Nothing
            }
        }
    }

    /// The session refused the start: the record already has this end, and the model is told.
    pub(super) fn ended_before_start(
        &mut self,
        id: &ToolCallId,
        outcome: ToolOutcome,
    ) -> RecordMove {
        let rules = self.has_refusing_rules;
        let Some(call) = self.calls.get_mut(id) else {
            return RecordMove::Nothing;
        };
        match std::mem::replace(&mut call.state, State::Waiting) {
            State::Starting(question) => {
                call.fate = Fate::Final(outcome);
                call.answer(question, rules)
            }
            other => {
                call.state = other;
                RecordMove::Nothing
            }
        }
    }

    /// The session refused the start for now: an earlier call is open.
    pub(super) fn start_later(&mut self, id: &ToolCallId) {
        if let Some(call) = self.calls.get_mut(id) {
            match std::mem::replace(&mut call.state, State::Waiting) {
                State::Starting(question) => {
                    call.fate = Fate::Open;
                    call.state = State::Held(question);
                }
                other => call.state = other,
            }
        }
    }

    /// The CLI dropped a question; an answer that is held for it must not go out any more.
    pub(super) fn withdraw(&mut self, request_id: &str) {
        let held = self.calls.values_mut().find(
            |it| matches!(&it.state, State::Held(it) | State::Starting(it) if it.request_id() == request_id),
        );
        if let Some(call) = held {
            call.state = match call.state {
                State::Starting(_) => State::Withdrawn,
                State::Held(_)
                | State::Waiting
                | State::Dropped
                | State::Withdrawn
                | State::Granted
                | State::Replaying
                | State::Replayed
                | State::Asking
                | State::Refused
                | State::Told => State::Dropped,
            };
        }
    }

    /// Gives the tool server the record of a call, once (I13, L20), for the recorded input (G4).
    pub(super) fn serve(&mut self, served: &ServedCall) -> Option<McpPermit> {
        let call = self.calls.get_mut(&served.id)?;
        let is_own = call.place == CallPlace::Step
            && call.tool_name == served.name
            && same_json(call.arguments.get(), &served.arguments);
        match (&call.state, &call.fate) {
            (State::Replaying, Fate::Final(outcome)) if is_own => {
                let permit = McpPermit::Replay {
                    text: outcome.model_text(),
                    is_error: outcome.is_error(),
                };
                call.state = State::Replayed;
                Some(permit)
            }
            (_, _) => None,
        }
    }

    /// Takes the result of a call from the CLI's output.
    pub(super) fn tool_result(
        &mut self,
        result: &ToolResult,
    ) -> Result<RecordMove, AttemptFailure> {
        let Some(call) = self.calls.get_mut(&result.tool_call_id) else {
            return Ok(RecordMove::Nothing);
        };
        match call.state {
            State::Granted => {
                call.state = State::Told;
                let text = bounded(&result.text);
                Ok(RecordMove::Report(if result.is_error {
                    ToolOutcome::Failed { error: text }
                } else {
                    ToolOutcome::Succeeded { output: text }
                }))
            }
            State::Replayed => {
                call.state = State::Told;
                Ok(RecordMove::Nothing)
            }
            State::Refused if result.is_error => {
                call.state = State::Told;
                Ok(RecordMove::Nothing)
            }
            // The second use of its id was denied, and the model reads that.
            State::Told if result.is_error => Ok(RecordMove::Nothing),
            // The CLI gave up the reply, or was interrupted, while nobody had decided.
            State::Waiting | State::Held(_) | State::Dropped
                if matches!(call.fate, Fate::Open) && is_refusal(result) =>
            {
                call.state = State::Told;
                Ok(RecordMove::GivenUp)
            }
            State::Waiting
            | State::Held(_)
            | State::Dropped
            | State::Starting(_)
            | State::Withdrawn
            | State::Replaying
            | State::Asking
            | State::Refused
            | State::Told => Err(contract(format!(
                "the CLI answered call {} by itself",
                result.tool_call_id
            ))),
        }
    }

    /// Denies what is held: the segment is over. A start that was asked for keeps its question,
    /// because the grant may still come.
    pub(super) fn deny_held(&mut self, reason: &str) -> Vec<HostFrame> {
        let mut denials = Vec::new();
        for call in self.calls.values_mut() {
            match std::mem::replace(&mut call.state, State::Dropped) {
                State::Held(question) => denials.push(question.deny(reason)),
                other => call.state = other,
            }
        }
        denials
    }

    fn own(&mut self, asked: &AskedCall) -> Result<&mut RecordedCall, String> {
        self.calls
            .get_mut(&asked.id)
            .filter(|it| it.cli_name == asked.tool_name && asked.sub_agent.is_none())
            .ok_or_else(|| {
                format!(
                    "{} did not run: the record under this id is of another call",
                    asked.tool_name
                )
            })
    }
}

impl RecordedCall {
    /// Answers a question as the record says, or holds it.
    fn answer(&mut self, question: Question, has_refusing_rules: bool) -> RecordMove {
        match (&self.fate, self.place) {
            (Fate::Open, _) | (Fate::Permitted, CallPlace::Step) => {
                self.state = State::Held(question);
                RecordMove::AskStanding
            }
            (Fate::Permitted, CallPlace::Segment) => {
                self.state = State::Starting(question);
                RecordMove::Start
            }
            (Fate::Final(_), CallPlace::Step) => {
                self.state = State::Replaying;
                RecordMove::Answer(self.allow(question))
            }
            (Fate::Final(outcome), CallPlace::Segment) => {
                let text = told_text(outcome);
                RecordMove::Answer(match question {
                    Question::Permission { .. } => {
                        self.state = State::Refused;
                        question.deny(&text)
                    }
                    // A rule that refuses the call wins over `ask`, and the model would read of the
                    // rule (measured on CLI 2.1.316 and 2.1.332).
                    Question::Hook { .. } if has_refusing_rules => {
                        self.state = State::Refused;
                        question.deny(&text)
                    }
                    // The answer to a permission question reaches the model word for word, a hook's
                    // reason behind a prefix.
                    Question::Hook { request_id } => {
                        self.state = State::Asking;
                        HostFrame::Hook {
                            request_id,
                            answer: HookAnswer::Ask,
                        }
                    }
                })
            }
        }
    }

    fn allow(&self, question: Question) -> HostFrame {
        let note = (self.is_changed).then(|| changed_input_note(self.arguments.get()));
        question.allow(self.arguments.clone(), note)
    }

    fn into_question(self) -> Option<Question> {
        match self.state {
            State::Held(question) | State::Starting(question) => Some(question),
            State::Waiting
            | State::Dropped
            | State::Withdrawn
            | State::Granted
            | State::Replaying
            | State::Replayed
            | State::Asking
            | State::Refused
            | State::Told => None,
        }
    }

    const fn is_held(&self) -> bool {
        matches!(self.state, State::Held(_))
    }

    const fn is_started(&self) -> bool {
        matches!(self.state, State::Starting(_) | State::Granted)
    }

    const fn is_told(&self) -> bool {
        matches!(self.state, State::Told)
    }
}

fn already_decided(asked: &AskedCall) -> String {
    format!(
        "{} did not run: a decision about this call was already made",
        asked.tool_name
    )
}

/// What the model reads about a call of the CLI that must not run, because its record is final.
pub(super) fn told_text(outcome: &ToolOutcome) -> String {
    match outcome {
        ToolOutcome::Succeeded { output } => format!(
            "This call already ran, and its result was recorded. It was not run again, and it must not be repeated. The recorded result: {output}"
        ),
        ToolOutcome::Failed { .. }
        | ToolOutcome::Rejected { .. }
        | ToolOutcome::Expired
        | ToolOutcome::Skipped { .. }
        | ToolOutcome::OutcomeUnknown => outcome.model_text(),
    }
}

fn bounded(text: &str) -> String {
    if text.len() <= RECORDED_RESULT_BYTES_MAX {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(RECORDED_RESULT_BYTES_MAX - CUT_MARKER.len());
    format!("{}{CUT_MARKER}", &text[..end])
}

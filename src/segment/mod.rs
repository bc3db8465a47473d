//! The **Segment machine**: one CLI process from its first line to its result. It decides
//! everything and does nothing: no I/O, no clock, no randomness.
//!
//! A driver feeds it the frames of the CLI, the answers of the session and the replies of the tool
//! server, and after each of them drains [`Segment::poll_transmit`] and [`Segment::poll_action`] to
//! `None`. Gated calls wait in the process (`live`), or end it by the CLI's own deferral (`native`).

mod action;
mod asked;
mod audit;
mod cancel;
mod classify;
mod cut;
mod decide;
mod failure;
mod gate;
mod json;
mod live;
mod model_calls;
mod native;
mod plan;
mod prompt;
mod question;
mod recorded;
mod resumable;
mod resume;
mod served;
mod split;
mod transcript;
mod usage;
mod verify;

use std::collections::{BTreeSet, VecDeque};

use serde_json::value::RawValue;

use crate::event::LiveTextKind;
use crate::failure::{AttemptFailure, FailureClass};
use crate::ids::ToolCallId;
use crate::protocol::{
    AssistantFrame, CliFrame, ControlReply, ControlRequest, Delta, HookAnswer, HostFrame,
    InitFrame, McpMessage, PermissionAnswer, ProtocolError, ResultFrame, RetryFrame, SystemFrame,
    ToolServerDeclaration, UserFrame, content_blocks,
};
use crate::record::ToolOutcome;
use crate::turn::{RunModelOutcome, Usage};

use audit::{Audit, ToolResult};
use cancel::Stopping;
use gate::ToolCallGate;
use live::Live;
use model_calls::ModelCalls;
use native::Native;
use recorded::RecordedCalls;
use transcript::Transcript;
use usage::Meter;

pub(crate) use cut::cut_result;

pub use action::{
    Action, CallingSubAgent, HookQuestion, HooksAnswer, McpPermit, ProcessEnd, SegmentEnd, Standing,
};
pub use plan::{GatedPath, SegmentPlan, SegmentStart};
pub use prompt::{Conversation, read_conversation};
pub use resumable::{ResumableTranscript, materialise};
pub use resume::{ResumePlan, prompt_uuid, resume};

const INITIALIZE_REQUEST: &str = "abide-initialize";
const PRE_TOOL_USE_CALLBACK: &str = "abide-pre-tool-use";
const POST_TOOL_BATCH_CALLBACK: &str = "abide-post-tool-batch";

/// How long our callback may take. The CLI waits for it as long as this (measured with 86,400 on
/// CLI 2.1.316, spec/cli-protocol.md 17a); a start mark takes milliseconds, so it is never met.
const HOOK_TIMEOUT_SECONDS: u32 = 86_400;

/// What is answered to everything that is asked after the end.
const SEGMENT_OVER: &str = "the segment is over";

#[derive(Debug)]
enum State {
    Running,
    Ended(Result<SegmentEnd, AttemptFailure>),
}

/// One segment. Created by [`Segment::new`]; ended when [`Segment::is_ended`] says so.
#[derive(Debug)]
pub struct Segment {
    state: State,
    plan: SegmentPlan,
    gate: ToolCallGate,
    recorded: RecordedCalls,
    native: Native,
    live: Live,
    transcript: Transcript,
    meter: Meter,
    model_calls: ModelCalls,
    audit: Audit,
    stopping: Stopping,
    // The turn is parked: the CLI gets no further line.
    is_silent: bool,
    // Requests of the CLI to the tool server that are not answered yet.
    open_mcp: BTreeSet<String>,
    last_retry: Option<RetryFrame>,
    transmit: VecDeque<HostFrame>,
    actions: VecDeque<Action>,
}

impl Segment {
    /// Starts a segment: its first lines for the CLI are ready then.
    ///
    /// # Errors
    /// [`FailureClass::Runner`] when the plan contradicts itself.
    pub fn new(plan: SegmentPlan) -> Result<Self, AttemptFailure> {
        let batch = match plan.path {
            GatedPath::Live => Some(POST_TOOL_BATCH_CALLBACK.to_owned()),
            GatedPath::Native => None,
        };
        let initialize = HostFrame::Initialize {
            request_id: INITIALIZE_REQUEST.to_owned(),
            pre_tool_use_callback: PRE_TOOL_USE_CALLBACK.to_owned(),
            post_tool_batch_callback: batch,
            hook_timeout_seconds: HOOK_TIMEOUT_SECONDS,
            servers: vec![ToolServerDeclaration {
                name: plan.server_name.clone(),
            }],
            setup: plan.setup.clone(),
        };
        let mut transmit: VecDeque<HostFrame> =
            (!plan.is_warm).then_some(initialize).into_iter().collect();
        let mut recorded = RecordedCalls::new(plan.has_refusing_rules);
        let mut transcript = Transcript::default();
        // Without a prompt the CLI goes on by itself, and a prompt would be a turn of its own (K01).
        match &plan.start {
            SegmentStart::Turn { prompt, uuid } => {
                if prompt.is_empty() {
                    return Err(runner("a turn starts without a prompt"));
                }
                transcript = Transcript::of_prompt(uuid.clone());
                transmit.push_back(HostFrame::UserPrompt {
                    uuid: uuid.clone(),
                    blocks: prompt.clone(),
                });
            }
            SegmentStart::Resume { call } => recorded.resume(call, &plan.server_name)?,
            SegmentStart::Continue { added, told, call } => {
                let session = plan
                    .resume
                    .as_ref()
                    .ok_or_else(|| runner("a turn goes on without a Claude session"))?;
                transcript = Transcript::resumed(session, added.clone(), told.clone());
                if let Some(call) = call {
                    recorded.resume(call, &plan.server_name)?;
                }
            }
        }
        Ok(Self {
            state: State::Running,
            gate: ToolCallGate::default(),
            recorded,
            native: Native::default(),
            live: Live::default(),
            transcript,
            meter: Meter::default(),
            model_calls: ModelCalls::new(plan.model.clone()),
            audit: Audit::default(),
            stopping: Stopping::default(),
            is_silent: false,
            open_mcp: BTreeSet::new(),
            last_retry: None,
            transmit,
            actions: VecDeque::new(),
            plan,
        })
    }

    /// Takes one frame of the CLI.
    pub fn handle_frame(&mut self, frame: CliFrame) {
        if let State::Ended(_) = self.state {
            self.refuse_late(frame);
            return;
        }
        if self.is_stopping() {
            self.on_frame_while_stopping(frame);
            return;
        }
        match frame {
            CliFrame::ControlRequest {
                request_id,
                request,
            } => match request {
                ControlRequest::Hook(hook) => self.on_hook(request_id, hook),
                ControlRequest::CanUseTool(question) => {
                    self.on_can_use_tool(request_id, question);
                }
                ControlRequest::Mcp(message) => self.on_mcp(request_id, message),
                ControlRequest::Unknown { subtype } => self.answer_error(
                    request_id,
                    format!("the host does not support {subtype} requests"),
                ),
            },
            CliFrame::ControlResponse(reply) => self.on_reply(reply),
            CliFrame::ControlCancel { request_id } => self.on_cancel(request_id),
            CliFrame::System(SystemFrame::Init(init)) => self.on_init(init),
            CliFrame::System(SystemFrame::ApiRetry(retry)) => {
                if let Some(failure) = failure::of_retry(&retry) {
                    self.end(Err(failure));
                }
                self.last_retry = Some(retry);
            }
            CliFrame::Assistant(frame) => self.on_assistant(&frame),
            CliFrame::User(frame) => self.on_user(&frame),
            CliFrame::Delta(delta) => {
                let (kind, text) = match delta {
                    Delta::Text(text) => (LiveTextKind::Text, text),
                    Delta::Thinking(text) => (LiveTextKind::Reasoning, text),
                };
                self.actions.push_back(Action::Live { kind, text });
            }
            CliFrame::Mirror(frame) => self.transcript.add(frame),
            CliFrame::Result(result) => self.on_result(&result),
            CliFrame::Reply(mark) => self.on_reply_mark(&mark),
            CliFrame::Unknown { .. } | CliFrame::NotJson => {}
        }
        self.advance();
    }

    /// Takes a line that could not be read: what the CLI does is not understood any more.
    pub fn handle_protocol_error(&mut self, error: &ProtocolError) {
        if self.is_stopping() {
            return self.end_cancelled(Usage::default());
        }
        self.end(Err(contract(error.to_string())));
    }

    /// Takes the session's grant: the start mark of the call is committed.
    pub fn handle_call_granted(&mut self, tool_call_id: &ToolCallId) {
        let running = matches!(self.state, State::Running) && !self.is_stopping();
        let next = self.recorded.granted(tool_call_id, running);
        self.follow(tool_call_id, next);
    }

    /// Takes the session's refusal of a grant: the call's record already ends in `outcome`.
    pub fn handle_call_final(&mut self, tool_call_id: &ToolCallId, outcome: ToolOutcome) {
        let next = self.recorded.ended_before_start(tool_call_id, outcome);
        self.follow(tool_call_id, next);
    }

    /// Takes the session's refusal of a grant for now: an earlier call is open.
    pub fn handle_call_not_yet(&mut self, tool_call_id: &ToolCallId) {
        self.recorded.start_later(tool_call_id);
    }

    /// Takes the tool server's reply to a message.
    pub fn handle_mcp_response(&mut self, request_id: String, message: Box<RawValue>) {
        if self.open_mcp.remove(&request_id) {
            self.transmit.push_back(HostFrame::Mcp {
                request_id,
                message,
            });
        }
    }

    /// Takes the news that the tool server cannot answer a message.
    pub fn handle_mcp_failure(&mut self, request_id: String) {
        if self.open_mcp.remove(&request_id) {
            self.answer_error(request_id, "the tool server did not answer".to_owned());
        }
    }

    /// Takes the end of the CLI's output.
    pub fn handle_end_of_output(&mut self, end: ProcessEnd<'_>) {
        if self.is_stopping() {
            return self.end_cancelled(Usage::default());
        }
        self.end(Err(failure::of_process_end(end)));
    }

    /// Returns the next line for the CLI's input.
    #[must_use]
    pub fn poll_transmit(&mut self) -> Option<HostFrame> {
        self.transmit.pop_front()
    }

    /// Returns the next thing to do.
    #[must_use]
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// True when the segment is over: no further frame changes its end.
    #[must_use]
    pub const fn is_ended(&self) -> bool {
        match self.state {
            State::Running => false,
            State::Ended(_) => true,
        }
    }

    /// Returns how the segment ended.
    ///
    /// # Errors
    /// What ended it, when it did not end well.
    pub fn finish(self) -> Result<SegmentEnd, AttemptFailure> {
        match self.state {
            State::Running => Err(runner("the segment was left before its end")),
            State::Ended(end) => end,
        }
    }

    fn on_mcp(&mut self, request_id: String, message: McpMessage) {
        if message.server_name != self.plan.server_name {
            self.answer_error(request_id, "there is no such tool server".to_owned());
            return;
        }
        let permit = match served::method_of(&message.message) {
            served::McpMethod::Other => McpPermit::Protocol,
            served::McpMethod::Call(None) => McpPermit::Refuse,
            served::McpMethod::Call(Some(call)) => self
                .recorded
                .serve(&call)
                .or_else(|| self.gate.serve(call))
                .unwrap_or(McpPermit::Refuse),
        };
        self.open_mcp.insert(request_id.clone());
        self.actions.push_back(Action::ServeMcp {
            request_id,
            message: message.message,
            permit,
        });
    }

    fn on_reply(&mut self, reply: ControlReply) {
        if reply.request_id != INITIALIZE_REQUEST {
            return;
        }
        if let Some(error) = reply.error {
            self.end(Err(contract(format!("the CLI refused to start: {error}"))));
            return;
        }
        // Before anything else: a resumed call starts ahead of `system/init` (0.7).
        self.actions
            .push_back(Action::CliVersion(reply.claude_code_version));
    }

    fn on_cancel(&mut self, request_id: String) {
        self.recorded.withdraw(&request_id);
        self.withdraw_held(&request_id);
        if self.open_mcp.remove(&request_id) {
            self.actions.push_back(Action::CancelMcp { request_id });
        }
    }

    fn on_init(&mut self, init: InitFrame) {
        if let Some(expected) = &self.plan.resume
            && expected.as_str() != init.session_id
        {
            self.end(Err(contract("the CLI went on with another Claude session")));
            return;
        }
        self.transcript.name_session(&init.session_id);
        if let Some(model) = &init.model {
            self.model_calls.requests(model);
        }
    }

    fn on_assistant(&mut self, frame: &AssistantFrame) {
        let blocks = content_blocks(&frame.message.content).unwrap_or_default();
        let calls = blocks
            .iter()
            .filter(|it| it.kind == "tool_use")
            .filter_map(|it| it.id.as_deref());
        self.transcript.saw_reply(frame, calls);
        for block in blocks.iter().filter(|it| it.kind == "tool_use") {
            if let (Some(id), Some(name)) = (&block.id, &block.name)
                && let Ok(id) = ToolCallId::new(id.as_str())
            {
                self.audit.saw_use(id, name.clone());
            }
        }
        let is_main = frame.parent_tool_use_id.is_none();
        match self.plan.path {
            GatedPath::Live if is_main => self.look_ahead(blocks),
            GatedPath::Live | GatedPath::Native => {}
        }
    }

    fn on_user(&mut self, frame: &UserFrame) {
        let metas = frame.tool_result_meta.as_deref().unwrap_or_default();
        let results = match ToolResult::of_content(&frame.message.content, metas) {
            Ok(results) => results,
            Err(failure) => {
                self.end(Err(failure));
                return;
            }
        };
        let is_main = frame.parent_tool_use_id.is_none();
        for result in results {
            if let Err(failure) = self.on_tool_result(&result, is_main) {
                self.end(Err(failure));
                return;
            }
            if is_main {
                self.transcript.saw_result(frame, &result.tool_call_id);
            }
        }
    }

    fn on_tool_result(&mut self, result: &ToolResult, is_main: bool) -> Result<(), AttemptFailure> {
        if let Some(status) = self
            .gate
            .finish_inline(&result.tool_call_id, result.is_error)
        {
            self.inline_ended(result.tool_call_id.clone(), status);
        }
        if is_main && self.recorded.contains(&result.tool_call_id) {
            self.audit.note(result);
            let next = self.recorded.tool_result(result)?;
            self.follow(&result.tool_call_id, next);
            return Ok(());
        }
        let standing = self.gate.standing(&result.tool_call_id);
        self.audit.check(standing, result)
    }

    /// Holds every result of the transcript, those of sub-agents included, against the decisions.
    fn audit_transcript(&mut self) -> Result<(), AttemptFailure> {
        for result in self.transcript.take_results()? {
            // An earlier segment has decided about it.
            if !self.plan.answered.contains(&result.tool_call_id) {
                let standing = self.gate.standing(&result.tool_call_id);
                self.audit.check_mirrored(standing, &result)?;
            }
        }
        Ok(())
    }

    fn on_result(&mut self, result: &ResultFrame) {
        self.model_calls.served(result);
        for (tool_call_id, status) in self.gate.finish_open_inline() {
            self.inline_ended(tool_call_id, status);
        }
        self.tell_inline_ends();
        let end = self.conclude(result);
        let is_answered = matches!(
            &end,
            Ok(SegmentEnd {
                outcome: RunModelOutcome::TurnCompleted { .. },
                ..
            })
        );
        self.end(end);
        if !(self.plan.stays && is_answered) {
            self.actions.push_back(Action::CloseInput);
        }
    }

    fn conclude(&mut self, result: &ResultFrame) -> Result<SegmentEnd, AttemptFailure> {
        if let Some(failure) = failure::of_result(result, self.last_retry.as_ref()) {
            return Err(failure);
        }
        self.check_nothing_open()?;
        let deferred = self.native.conclude(result)?;
        self.audit_transcript()?;
        let session = result
            .session_id
            .as_deref()
            .ok_or_else(|| contract("the result names no Claude session"))?;
        if let Some(expected) = &self.plan.resume
            && expected.as_str() != session
        {
            return Err(contract("the result is of another Claude session"));
        }
        let usage = self.meter.rest(Usage {
            model_calls: self.transcript.model_calls(),
            ..usage::of_result(result)
        });
        let mut messages = self
            .transcript
            .take_messages(session, deferred.as_ref().map(|it| &it.tool_call_id))?;
        if let Some(output) = &result.structured_output {
            transcript::answer_with(&mut messages, session, output.get())?;
        }
        let outcome = match deferred {
            None => RunModelOutcome::TurnCompleted { messages, usage },
            Some(call) => RunModelOutcome::ToolCallsRequested {
                calls: vec![call],
                messages,
                usage,
            },
        };
        Ok(SegmentEnd {
            outcome,
            stands_at: self.transcript.stands_at(session),
        })
    }

    /// Ends the segment; the first end stays.
    fn end(&mut self, end: Result<SegmentEnd, AttemptFailure>) {
        if let State::Running = self.state {
            self.state = State::Ended(end);
            if !self.is_silent {
                self.deny_all();
            }
        }
    }

    /// Answers what the CLI still asks after the end. A hook is denied and not refused with an
    /// error, because an error counts as no decision (spec/cli-protocol.md 0.4).
    fn refuse_late(&mut self, frame: CliFrame) {
        let CliFrame::ControlRequest {
            request_id,
            request,
        } = frame
        else {
            return;
        };
        if self.is_silent {
            return;
        }
        self.refuse(request_id, &request, SEGMENT_OVER);
    }

    /// Refuses what the CLI asks, in the form in which it takes a refusal.
    fn refuse(&mut self, request_id: String, request: &ControlRequest, reason: &str) {
        let reason = reason.to_owned();
        self.transmit.push_back(match request {
            ControlRequest::Hook(_) => HostFrame::Hook {
                request_id,
                answer: HookAnswer::Deny { reason },
            },
            ControlRequest::CanUseTool(_) => HostFrame::Permission {
                request_id,
                answer: PermissionAnswer::Deny { message: reason },
            },
            ControlRequest::Mcp(_) | ControlRequest::Unknown { .. } => HostFrame::Error {
                request_id,
                error: reason,
            },
        });
    }

    fn answer_error(&mut self, request_id: String, error: String) {
        self.transmit
            .push_back(HostFrame::Error { request_id, error });
    }
}

fn contract(detail: impl Into<String>) -> AttemptFailure {
    AttemptFailure::new(FailureClass::CliContract, detail)
}

fn runner(detail: &str) -> AttemptFailure {
    AttemptFailure::new(FailureClass::Runner, detail)
}

#[cfg(test)]
mod tests;

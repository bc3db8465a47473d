//! What a Step takes and gives: the vocabulary between a session and a runner.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::{LeaseEpoch, SessionId, StepId, Tenant, ToolCallId, TurnId};
use crate::policy::ToolPolicy;
use crate::record::{CallStatus, FrameworkItem, MessageRole, ToolOutcome};
use crate::settings::SessionSettings;

/// Which attempt of which Step runs, and for whom. Created by the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunModelContext {
    /// The session.
    pub session_id: SessionId,
    /// The turn that the segment belongs to.
    pub turn_id: TurnId,
    /// The `RunModel` Step.
    pub step_id: StepId,
    /// Which try of the Step this is, counted from 1.
    pub attempt: u32,
    /// Whose session it is.
    pub tenant: Option<Tenant>,
    /// What the application said about the session at its start.
    pub metadata: BTreeMap<String, String>,
    /// What the session's settings were when the turn began.
    pub settings: SessionSettings,
    /// How long a process may wait for people; zero parks at once.
    pub live_window: Duration,
    /// The owner's epoch: one more than an earlier one when nobody else owned the session between.
    pub epoch: LeaseEpoch,
    /// True when the conversation ends in the middle of the turn, at a checkpoint: texts that no
    /// framework has seen came in since then, and the segment goes on with them.
    pub in_mid_turn: bool,
}

/// How long a process waits for people unless the Flow says otherwise.
pub const LIVE_WINDOW_DEFAULT: Duration = Duration::from_secs(60);

impl RunModelContext {
    /// Names the first attempt of a Step, without tenant and metadata.
    #[must_use]
    pub fn new(session_id: SessionId, turn_id: TurnId, step_id: StepId) -> Self {
        Self {
            session_id,
            turn_id,
            step_id,
            attempt: 1,
            tenant: None,
            metadata: BTreeMap::new(),
            settings: SessionSettings::default(),
            live_window: LIVE_WINDOW_DEFAULT,
            epoch: LeaseEpoch(0),
            in_mid_turn: false,
        }
    }
}

/// How a segment ended well.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_enums,
    reason = "runners that hosts write build it, and there are no other ways to end"
)]
pub enum RunModelOutcome {
    /// The model answered; the turn is over.
    TurnCompleted {
        /// What the segment adds to the transcript.
        messages: Vec<NewMessage>,
        /// What the segment used.
        usage: Usage,
    },
    /// The model asked for calls that must not run inside the segment; the session takes them from here.
    ToolCallsRequested {
        /// The calls, in the model's order; never empty.
        calls: Vec<RequestedCall>,
        /// What the segment adds to the transcript.
        messages: Vec<NewMessage>,
        /// What the segment used.
        usage: Usage,
    },
    /// The session took a [`SegmentEvent::ParkRequested`]: the attempt is over, and what the segment
    /// said is committed.
    Parked,
    /// The turn was cancelled, and the segment has stopped.
    Cancelled {
        /// The part of the answer that people saw; the engine knows the live text and fills it in.
        partial: Option<String>,
        /// What the segment used.
        usage: Usage,
    },
}

impl RunModelOutcome {
    /// True when the turn is over with an answer.
    #[must_use]
    pub const fn is_completed(&self) -> bool {
        match self {
            Self::TurnCompleted { .. } => true,
            Self::ToolCallsRequested { .. } | Self::Parked | Self::Cancelled { .. } => false,
        }
    }

    /// Returns what is left of it when the turn is cancelled: the answer as far as people saw it, and
    /// what it used.
    pub(crate) fn partial(self) -> (Option<String>, Usage) {
        match self {
            Self::TurnCompleted { messages, usage } => {
                let texts = messages.into_iter();
                let texts = texts.filter(|it| it.role == MessageRole::Assistant);
                let said: Vec<_> = texts
                    .map(|it| it.text)
                    .filter(|it| !it.is_empty())
                    .collect();
                (Some(said.join("\n")), usage)
            }
            Self::Cancelled { partial, usage } => (partial, usage),
            Self::ToolCallsRequested { usage, .. } => (None, usage),
            Self::Parked => (None, Usage::default()),
        }
    }
}

/// A message that a segment adds to the transcript.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "runners that hosts write build it"
)]
pub struct NewMessage {
    /// Who speaks.
    pub role: MessageRole,
    /// What a person reads; may be empty.
    pub text: String,
    /// Which call it answers, for [`MessageRole::Tool`].
    pub tool_call_id: Option<ToolCallId>,
    /// What the runner needs to go on from here.
    pub item: FrameworkItem,
}

/// A gated call that the model asked for. Its final input is what policy, approval, record and
/// execution see (G4).
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "runners that hosts write build it"
)]
pub struct RequestedCall {
    /// The model's name for it.
    pub tool_call_id: ToolCallId,
    /// The policy name of the tool (`create_refund`, `Bash`).
    pub tool_name: String,
    /// The final input, as JSON text.
    pub arguments: String,
    /// What people are shown in its place, as JSON text. The engine sets it, where the Flow has a view
    /// ([`AgentSessionFlow::with_approval_view`](crate::AgentSessionFlow::with_approval_view)).
    pub shown_arguments: Option<String>,
    /// What it does to the world and whether it waits for a person.
    pub policy: ToolPolicy,
    /// Where it runs.
    pub place: CallPlace,
}

/// Where a gated call runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(
    clippy::exhaustive_enums,
    reason = "runners that hosts write build it; the two places are a design decision"
)]
pub enum CallPlace {
    /// In its own Step, by the runner's [`call_tool`](crate::runner::AgentFrameworkRunner::call_tool).
    Step,
    /// Inside the next segment, which starts it under a start mark.
    Segment,
}

/// A gated call that the next segment must answer, from its record alone (G3).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResumedCall {
    /// The model's name for it.
    pub tool_call_id: ToolCallId,
    /// The policy name of the tool.
    pub tool_name: String,
    /// The final input that was recorded, as JSON text. For a call that runs in the segment it is what
    /// runs; for one that ran in its own Step it is what the model was told, whatever a person changed.
    pub arguments: String,
    /// True when a person put these arguments in the place of the model's, and it has to be told.
    pub are_arguments_changed: bool,
    /// Where it runs.
    pub place: CallPlace,
    /// What its record says.
    pub fate: ResumedFate,
}

impl ResumedCall {
    /// Names a call with its recorded input and fate.
    #[must_use]
    pub fn new(
        tool_call_id: ToolCallId,
        tool_name: impl Into<String>,
        arguments: impl Into<String>,
        place: CallPlace,
        fate: ResumedFate,
    ) -> Self {
        Self {
            tool_call_id,
            tool_name: tool_name.into(),
            arguments: arguments.into(),
            are_arguments_changed: false,
            place,
            fate,
        }
    }

    /// Says that a person put the arguments in the place of the model's.
    #[must_use]
    pub const fn with_arguments_changed(mut self) -> Self {
        self.are_arguments_changed = true;
        self
    }
}

/// What the record of a resumed call says.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_enums,
    reason = "runners that hosts write must handle each case"
)]
pub enum ResumedFate {
    /// It may run inside the segment, after its start mark. Only for [`CallPlace::Segment`].
    Permitted,
    /// It is over: the model gets this and nothing runs.
    Final(ToolOutcome),
}

/// What a segment used. Numbers of several segments add up (I24).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[expect(
    clippy::exhaustive_structs,
    reason = "runners that hosts write build it"
)]
pub struct Usage {
    /// Input tokens, cache reads and writes included.
    #[serde(default)]
    pub input_tokens: u64,
    /// Of these, tokens read from the cache.
    #[serde(default)]
    pub cached_input_tokens: u64,
    /// Output tokens.
    #[serde(default)]
    pub output_tokens: u64,
    /// Replies of a model, those of sub-agents included.
    #[serde(default)]
    pub model_calls: u64,
    /// What it cost, in billionths of a US dollar, as far as the CLI reports it.
    #[serde(default)]
    pub cost_nano_usd: u64,
}

impl Usage {
    /// Returns the sum of both.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            input_tokens: self.input_tokens.saturating_add(other.input_tokens),
            cached_input_tokens: self
                .cached_input_tokens
                .saturating_add(other.cached_input_tokens),
            output_tokens: self.output_tokens.saturating_add(other.output_tokens),
            model_calls: self.model_calls.saturating_add(other.model_calls),
            cost_nano_usd: self.cost_nano_usd.saturating_add(other.cost_nano_usd),
        }
    }

    /// Returns what is left of this without the other, nothing where the other is more.
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        Self {
            input_tokens: self.input_tokens.saturating_sub(other.input_tokens),
            cached_input_tokens: self
                .cached_input_tokens
                .saturating_sub(other.cached_input_tokens),
            output_tokens: self.output_tokens.saturating_sub(other.output_tokens),
            model_calls: self.model_calls.saturating_sub(other.model_calls),
            cost_nano_usd: self.cost_nano_usd.saturating_sub(other.cost_nano_usd),
        }
    }
}

/// How one start of a gated call ended in its Step.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_enums,
    reason = "runners that hosts write build it; every end is one of these"
)]
pub enum ToolCallEnd {
    /// It ran and gave this output.
    Succeeded {
        /// What the model reads.
        output: String,
    },
    /// It failed for good.
    Failed {
        /// What the model reads.
        error: String,
    },
    /// It certainly did not run: no such tool, or arguments that do not fit.
    NotRun {
        /// What the model reads.
        error: String,
    },
    /// It may have taken effect. An idempotent call is started again while starts are left.
    Unknown {
        /// For the person who runs the worker; the model never sees it.
        detail: String,
    },
}

/// What a segment did since it last said so: a part of the conversation, and the gated calls of it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[expect(
    clippy::exhaustive_structs,
    reason = "runners that hosts write build it"
)]
pub struct SegmentProgress {
    /// What is added to the transcript. A [`MessageRole::Tool`] message says that the call it names
    /// has its result there.
    pub messages: Vec<NewMessage>,
    /// The inline calls that ended. Told with their results, so that one that is repeated after a
    /// crash is not said to end twice.
    pub ended: Vec<(ToolCallId, CallStatus)>,
    /// The gated calls of one reply, in the model's order. Their tool uses are part of the
    /// transcript by now.
    pub calls: Vec<RequestedCall>,
    /// What is added to the usage; the segment's end reports the rest alone.
    pub usage: Usage,
}

/// What a running segment tells its session.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SegmentEvent {
    /// A checkpoint: what is part of it is not repeated after a crash (G7). Its calls are decided
    /// and run while the segment goes on.
    Checkpoint(SegmentProgress),
    /// The segment has waited for people long enough. When the reply is [`SegmentReply::Parked`],
    /// the attempt is over and the CLI has to be ended; otherwise the segment goes on, because a
    /// decision came first or a call runs.
    ParkRequested(SegmentProgress),
    /// How does this call stand? The reply is [`SegmentReply::Open`], [`SegmentReply::Permitted`]
    /// or [`SegmentReply::Final`].
    CallStanding {
        /// Which call.
        tool_call_id: ToolCallId,
    },
    /// The CLI gave a call up before it asked for its result: nobody needs to decide any more.
    CallGivenUp {
        /// Which call.
        tool_call_id: ToolCallId,
    },
    /// A gated call is about to run inside the segment. It may do so only when the reply is
    /// [`SegmentReply::Granted`]; its start mark is committed then (G1).
    CallStarting {
        /// Which call; it is one of the request's [`calls`](crate::runner::RunModelRequest::calls).
        tool_call_id: ToolCallId,
    },
    /// A gated call that was granted has ended.
    CallFinished {
        /// Which call.
        tool_call_id: ToolCallId,
        /// How.
        outcome: ToolOutcome,
    },
    /// An inline call began.
    InlineCallStarted {
        /// Which call.
        tool_call_id: ToolCallId,
        /// The policy name of its tool.
        tool_name: String,
    },
    /// An inline call ended.
    InlineCallFinished {
        /// Which call.
        tool_call_id: ToolCallId,
        /// How.
        status: CallStatus,
    },
}

impl SegmentEvent {
    /// True for what is told and not asked: it holds also when the turn is about to end.
    pub(crate) const fn is_about_the_past(&self) -> bool {
        match self {
            Self::CallFinished { .. }
            | Self::CallGivenUp { .. }
            | Self::InlineCallStarted { .. }
            | Self::InlineCallFinished { .. } => true,
            Self::Checkpoint(_)
            | Self::ParkRequested(_)
            | Self::CallStanding { .. }
            | Self::CallStarting { .. } => false,
        }
    }

    /// Returns what kind of event it is.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Checkpoint(_) => "a checkpoint",
            Self::ParkRequested(_) => "a request to park",
            Self::CallStanding { .. } => "a question about a call",
            Self::CallGivenUp { .. } => "a call that was given up",
            Self::CallStarting { .. } => "a call that starts",
            Self::CallFinished { .. } => "a call that finished",
            Self::InlineCallStarted { .. } => "an inline call that started",
            Self::InlineCallFinished { .. } => "an inline call that finished",
        }
    }
}

/// What the session answers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SegmentReply {
    /// It is committed.
    Accepted,
    /// The call's start mark is committed; it may run once, now.
    Granted,
    /// The call must not run: its record already ends in this, and the model gets it (G3).
    Final(ToolOutcome),
    /// The call must not run: nobody permitted it to start in this segment, or it has started
    /// already (G1, G5). The attempt is still the session's, and what it reports is taken.
    NotPermitted,
    /// The call is not decided, waits for an earlier one or runs: ask again when the session was
    /// committed ([`SegmentLink::watch`](crate::runner::SegmentLink::watch)).
    Open,
    /// The call may be started inside the segment, by a [`SegmentEvent::CallStarting`].
    Permitted {
        /// What it has to run with in the place of the input that it was recorded with, as JSON text: a
        /// person changed it, and the model has to be told.
        changed_arguments: Option<String>,
    },
    /// The attempt is over: the turn goes on without a process.
    Parked,
}

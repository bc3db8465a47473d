//! What subscribers see: the session's log, and the live text beside it (G13).

use serde::de::IntoDeserializer as _;
use serde::{Deserialize, Deserializer, Serialize};

use crate::failure::FailureClass;
use crate::ids::{
    EventCursor, InterruptId, MessageId, SessionId, StepId, Timestamp, ToolCallId, TurnId,
};
use crate::policy::ToolEffect;
use crate::record::CallStatus;
use crate::turn::Usage;

/// One event of a session's log: gapless, never trimmed, the same for every reader.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SessionEvent {
    /// The version of this record.
    pub format: u32,
    /// Its place in the log.
    pub cursor: EventCursor,
    /// When it was committed.
    pub at: Timestamp,
    /// The turn that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_id: Option<TurnId>,
    /// What happened.
    #[serde(flatten)]
    pub kind: EventKind,
}

impl SessionEvent {
    /// Makes an event in today's format.
    #[must_use]
    pub const fn new(
        cursor: EventCursor,
        at: Timestamp,
        turn_id: Option<TurnId>,
        kind: EventKind,
    ) -> Self {
        Self {
            format: crate::record::FORMAT,
            cursor,
            at,
            turn_id,
            kind,
        }
    }
}

/// What kind of Step an event speaks of (spec/core.md 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum StepKind {
    /// One segment.
    RunModel,
    /// A person decides about a call; nothing runs meanwhile.
    AwaitToolApproval,
    /// A call that may be started up to three times under one key.
    CallTool,
    /// A call that is started once.
    CallSingleAttemptTool,
    /// Every call of the reply is over; the next segment follows.
    ResumeTurn,
    /// One of a newer version, in an event that is read. Never stored.
    #[serde(skip_deserializing)]
    Unrecognized,
}

impl StepKind {
    /// Returns the name it is stored and shown under.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RunModel => "RunModel",
            Self::AwaitToolApproval => "AwaitToolApproval",
            Self::CallTool => "CallTool",
            Self::CallSingleAttemptTool => "CallSingleAttemptTool",
            Self::ResumeTurn => "ResumeTurn",
            Self::Unrecognized => "Unrecognized",
        }
    }

    /// Returns the kind with this name, `None` for one of a newer version.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let known: Result<Self, serde::de::value::Error> =
            Self::deserialize(name.into_deserializer());
        known.ok()
    }
}

impl std::fmt::Display for StepKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum EndReason {
    /// A client closed it.
    Closed,
    /// Its time was over.
    TimedOut,
    /// It reached [`SessionOptions::session_bytes_max`](crate::SessionOptions::session_bytes_max).
    StateLimit,
}

/// What a diagnostic is about: a closed list that grows, so that no text of others is in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum DiagnosticCode {
    /// Half of [`SessionOptions::session_bytes_max`](crate::SessionOptions::session_bytes_max) is used
    /// up. Told once in a session, as the next two are.
    #[serde(rename = "session_bytes_50")]
    SessionBytes50,
    /// 80 % of it are used up.
    #[serde(rename = "session_bytes_80")]
    SessionBytes80,
    /// 95 % of it are used up.
    #[serde(rename = "session_bytes_95")]
    SessionBytes95,
    /// One of a newer version, in an event that is read. Never stored.
    #[serde(rename = "unrecognized", skip_deserializing)]
    Unrecognized,
}

/// What happened. Names follow spec/core.md 9; texts and arguments are never part of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum EventKind {
    /// The session exists.
    SessionStarted,
    /// The session began with the conversation of another one.
    SessionForked {
        /// Which one.
        from: SessionId,
        /// The last turn of it that is part of this session.
        last_turn: TurnId,
    },
    /// A user message was accepted.
    MessageQueued {
        /// Which one.
        message_id: MessageId,
    },
    /// A queued message was deleted by its author.
    MessageDeleted {
        /// Which one.
        message_id: MessageId,
    },
    /// A message goes into the running turn.
    MessageSteered {
        /// Which one.
        message_id: MessageId,
    },
    /// The session ended before a turn took this message up (G6).
    MessageUndelivered {
        /// Which one.
        message_id: MessageId,
    },
    /// Later turns run with other settings.
    SettingsChanged {
        /// The revision of the settings.
        revision: u64,
    },
    /// The session takes nothing new; it ends with its last turn.
    SessionClosing {
        /// Why.
        reason: EndReason,
    },
    /// The session is over. Nothing comes after this.
    SessionEnded {
        /// Why.
        reason: EndReason,
    },
    /// A turn began with this message.
    TurnStarted {
        /// The message that it answers.
        message_id: MessageId,
    },
    /// A Step was added to the turn.
    StepStarted {
        /// Which one.
        step_id: StepId,
        /// What kind of Step it is.
        #[serde(deserialize_with = "known_or_unrecognized")]
        step: StepKind,
        /// The call that it is about.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tool_call_id: Option<ToolCallId>,
    },
    /// An attempt of a Step was granted; it may act from now on.
    AttemptStarted {
        /// Which Step.
        step_id: StepId,
        /// Which attempt, counted from 1.
        attempt: u32,
    },
    /// An attempt failed.
    AttemptFailed {
        /// Which Step.
        step_id: StepId,
        /// Which attempt.
        attempt: u32,
        /// What kind of failure it was.
        #[serde(deserialize_with = "known_or_unrecognized")]
        class: FailureClass,
        /// When the next attempt may start; `None` when there is none.
        retry_at: Option<Timestamp>,
    },
    /// An attempt was lost with its worker, or its worker gave it back; its live text is void.
    AttemptSuperseded {
        /// Which Step.
        step_id: StepId,
        /// Which attempt.
        attempt: u32,
    },
    /// A call began: an inline call inside the segment, or a gated one at its start mark.
    ToolCallStarted {
        /// Which call.
        tool_call_id: ToolCallId,
        /// Its tool.
        tool_name: String,
    },
    /// A call ended. Exactly one per call id.
    ToolCallFinished {
        /// Which call.
        tool_call_id: ToolCallId,
        /// How.
        #[serde(deserialize_with = "known_or_unrecognized")]
        status: CallStatus,
    },
    /// A person has to decide about a call.
    InterruptRequested {
        /// The id to answer under.
        interrupt_id: InterruptId,
        /// Which call.
        tool_call_id: ToolCallId,
        /// Its tool.
        tool_name: String,
        /// What the call does to the world.
        effect: ToolEffect,
        /// Until when somebody may decide; `None` for ever.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        expires_at: Option<Timestamp>,
    },
    /// Nobody decided in time: the call is rejected.
    InterruptExpired {
        /// Which interrupt.
        interrupt_id: InterruptId,
    },
    /// A person decided.
    InterruptResolved {
        /// Which interrupt.
        interrupt_id: InterruptId,
        /// True when the call may run.
        approved: bool,
    },
    /// The turn waits for people; no process is needed.
    TurnSuspended,
    /// All calls of the reply are over; the turn goes on.
    TurnResumed,
    /// A message became part of the conversation; it supersedes the live text before it.
    MessageCommitted {
        /// Its place in the conversation.
        sequence: u64,
    },
    /// What a segment used.
    UsageReported {
        /// The segment's share.
        usage: Usage,
    },
    /// The turn ended with an answer.
    TurnCompleted,
    /// Somebody cancelled the turn; it ends as soon as what still runs for it has stopped.
    TurnCancelRequested,
    /// The turn was cancelled; the transcript went back to the turn before, and a note tells the
    /// model.
    TurnCancelled,
    /// The turn ended without an answer; the transcript went back to the turn before, and a note
    /// tells the model.
    TurnFailed {
        /// What kind of failure ended it.
        #[serde(deserialize_with = "known_or_unrecognized")]
        class: FailureClass,
    },
    /// Whoever runs sessions should know this; nothing stops because of it.
    Diagnostic {
        /// What it is.
        #[serde(deserialize_with = "known_or_unrecognized")]
        code: DiagnosticCode,
    },
    /// An event of a newer version.
    #[serde(other)]
    Unknown,
}

/// Names of a closed list that grows: events of a newer version may hold ones that are not known
/// here. An event is shown and never written again, so such a name costs the event nothing else; in
/// a state or a record it would be lost, and these are refused (G12).
trait Names: for<'de> Deserialize<'de> {
    const UNRECOGNIZED: Self;
}

impl Names for StepKind {
    const UNRECOGNIZED: Self = Self::Unrecognized;
}

impl Names for CallStatus {
    const UNRECOGNIZED: Self = Self::Unrecognized;
}

impl Names for DiagnosticCode {
    const UNRECOGNIZED: Self = Self::Unrecognized;
}

impl Names for FailureClass {
    const UNRECOGNIZED: Self = Self::Unrecognized;
}

fn known_or_unrecognized<'de, D: Deserializer<'de>, T: Names>(from: D) -> Result<T, D::Error> {
    let name = String::deserialize(from)?;
    let known: Result<T, serde::de::value::Error> = T::deserialize(name.into_deserializer());
    Ok(known.unwrap_or(T::UNRECOGNIZED))
}

/// A piece of live text. Not part of the log: it is grouped by turn, Step and attempt, and void
/// when that attempt is superseded or its message is committed (I27, G13).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LiveText {
    /// The turn.
    pub turn_id: TurnId,
    /// The `RunModel` Step.
    pub step_id: StepId,
    /// Its attempt.
    pub attempt: u32,
    /// What kind of text it is.
    pub kind: LiveTextKind,
    /// Where the text begins, in bytes since the attempt's first text of this kind.
    pub offset: u64,
    /// The text.
    pub text: String,
}

/// What kind of live text it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LiveTextKind {
    /// The model's answer.
    Text,
    /// The model's reasoning, where the provider sends it.
    Reasoning,
}

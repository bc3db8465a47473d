//! The read model of a session: safe to show to people (N24).

use serde::Serialize;

use crate::commit::SessionStatus;
use crate::event::{EndReason, StepKind};
use crate::failure::FailureClass;
use crate::ids::{
    EventCursor, FlowType, InterruptId, MessageId, Revision, SessionId, StepId, Tenant, Timestamp,
    ToolCallId, TurnId,
};
use crate::policy::ToolEffect;
use crate::question::Question;
use crate::record::{ArgumentsDigest, CallStatus, MessageRole};
use crate::settings::SessionSettings;
use crate::turn::Usage;

/// A session at one revision. Holds no framework items, run state or credentials.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct AgentSnapshot {
    /// The session.
    pub session_id: SessionId,
    /// Which Flow it runs.
    pub flow_type: FlowType,
    /// Whose it is.
    pub tenant: Option<Tenant>,
    /// What it is doing.
    pub status: SessionStatus,
    /// When it was started.
    pub created_at: Timestamp,
    /// How many commits there were.
    pub revision: Revision,
    /// The turn that runs or waits.
    pub active_turn: Option<ActiveTurnView>,
    /// The conversation, oldest first; all of it, or its end.
    pub messages: Vec<MessageView>,
    /// True when the conversation begins before the first of these messages. Always false in a whole
    /// snapshot.
    pub has_earlier_messages: bool,
    /// What people have to decide.
    pub pending_interrupts: Vec<PendingInterrupt>,
    /// The gated calls of the active turn.
    pub tool_calls: Vec<ToolCallView>,
    /// Accepted messages that no turn has taken up yet.
    pub queued_messages: Vec<QueuedMessageView>,
    /// Messages that go into the active turn when the model has answered.
    pub steered_messages: Vec<QueuedMessageView>,
    /// What turns that start from now on run with.
    pub settings: SettingsView,
    /// Why the session is over or about to be.
    pub end_reason: Option<EndReason>,
    /// When the session ends at the latest.
    pub ends_at: Option<Timestamp>,
    /// What all segments used.
    pub usage: Usage,
    /// The last turn that failed.
    pub last_failure: Option<FailureView>,
    /// About how much is stored of the session, in bytes: what the store said when it was last asked,
    /// and what was written since, before it was packed. `None` for a session of an earlier version
    /// that nobody has measured yet. [`AgentSessionClient::session_size`](crate::AgentSessionClient::session_size)
    /// tells it exactly.
    pub session_bytes: Option<u64>,
    /// The limit of that, [`SessionOptions::session_bytes_max`](crate::SessionOptions::session_bytes_max),
    /// as a worker last applied it; `None` before half of it was in sight.
    pub session_bytes_max: Option<u64>,
    /// How large the session's state is, in bytes: at most 256 KiB, a part of the above.
    pub state_bytes: u64,
    /// The last event this snapshot includes: read the log from here on.
    pub event_cursor: EventCursor,
}

/// The turn that runs or waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ActiveTurnView {
    /// Which turn.
    pub turn_id: TurnId,
    /// When it began.
    pub started_at: Timestamp,
    /// The Step that it is at.
    pub step: Option<(StepId, StepKind)>,
    /// How many segments ended in it.
    pub segments: u32,
    /// True once somebody cancelled it; it is over as soon as what still runs has stopped.
    pub is_cancelled: bool,
}

/// The settings of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SettingsView {
    /// How often they were changed: a change names the revision it replaces.
    pub revision: u64,
    /// What they are.
    #[serde(flatten)]
    pub values: SessionSettings,
}

/// One message of the conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct MessageView {
    /// Its place in the conversation.
    pub sequence: u64,
    /// The turn that it belongs to.
    pub turn_id: TurnId,
    /// Who speaks.
    pub role: MessageRole,
    /// What they say.
    pub text: String,
    /// Which call it answers.
    pub tool_call_id: Option<ToolCallId>,
    /// When it was stored.
    pub created_at: Timestamp,
}

/// A call that waits for a person.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PendingInterrupt {
    /// The id to answer under.
    pub interrupt_id: InterruptId,
    /// The turn whose model asked for the call.
    pub turn_id: TurnId,
    /// The model's name for the call.
    pub tool_call_id: ToolCallId,
    /// Its tool.
    pub tool_name: String,
    /// Its final input, as JSON text: what runs if it is approved (G4). Where the application has a view
    /// of it, that view.
    pub arguments: String,
    /// What it asks, to be answered by
    /// [`answer_question`](crate::AgentSessionClient::answer_question); empty for a call that waits for
    /// approval.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub questions: Vec<Question>,
    /// The digest of session, tool and input; an answer may name it.
    pub digest: ArgumentsDigest,
    /// What the call does to the world.
    pub effect: ToolEffect,
    /// When the model asked for it.
    pub requested_at: Timestamp,
    /// Until when somebody may decide; `None` for ever.
    pub expires_at: Option<Timestamp>,
}

/// A gated call of the active turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ToolCallView {
    /// The model's name for the call.
    pub tool_call_id: ToolCallId,
    /// Its tool.
    pub tool_name: String,
    /// What the call does to the world.
    pub effect: ToolEffect,
    /// Where it stands.
    pub status: CallStatus,
    /// How often it was started.
    pub starts: u32,
}

/// A message that waits for its turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct QueuedMessageView {
    /// Which message.
    pub message_id: MessageId,
    /// Its text.
    pub text: String,
    /// When it was accepted.
    pub sent_at: Timestamp,
}

/// Why a turn failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct FailureView {
    /// Which turn.
    pub turn_id: TurnId,
    /// What kind of failure it was.
    pub class: FailureClass,
    /// More about it, for the person who runs the worker.
    pub detail: String,
    /// When.
    pub at: Timestamp,
}

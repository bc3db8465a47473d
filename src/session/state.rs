//! What a session remembers: ids, digests and sizes. Texts are rows of their own (design.md 3).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::active_turn::{ActiveTurn, CallState, Phase};
use super::size::StoredSize;
use crate::commit::{SessionStatus, SessionSummary};
use crate::event::EndReason;
use crate::failure::AttemptFailure;
use crate::ids::{ChunkId, FlowType, MessageId, Revision, SessionId, Tenant, Timestamp, TurnId};
use crate::record::{FORMAT, RecordError, read_record};
use crate::settings::SessionSettings;
use crate::turn::Usage;

/// The largest state that is stored, in bytes (design.md 3).
pub const STATE_BYTES_MAX: usize = 256 * 1024;

/// The most metadata that a session is started with, in bytes of JSON as it is stored.
pub const METADATA_BYTES_MAX: usize = 16 * 1024;

/// How large a state may be after a reply's calls were added; what is left is room for what becomes
/// of them, so that the record of a started call always fits.
pub(super) const STATE_BYTES_WITH_NEW_CALLS_MAX: usize = 128 * 1024;

/// How large a state may be after a person's words were added to it.
pub(super) const STATE_BYTES_WITH_WORDS_MAX: usize = 192 * 1024;

/// The reducer's whole memory of a session. Stored with every commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SessionState {
    /// The version of this record.
    pub format: u32,
    /// The session.
    pub session_id: SessionId,
    /// Which Flow it runs.
    pub flow_type: FlowType,
    /// Whose it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Tenant>,
    /// What the application said about it at its start.
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
    /// When it was started.
    pub created_at: Timestamp,
    /// The digest of the request that started it: the same request again is the same session (N03).
    pub start_digest: String,
    /// The last numbers that were given out.
    pub counters: Counters,
    /// When the session ends at the latest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_at: Option<Timestamp>,
    /// Whether it takes messages, and if not, why.
    #[serde(default, skip_serializing_if = "Lifetime::is_open")]
    pub lifetime: Lifetime,
    /// What turns that start from now on run with.
    #[serde(default, skip_serializing_if = "Settings::is_first")]
    pub settings: Settings,
    /// The end of the conversation.
    pub head: Option<ChunkId>,
    /// Accepted messages that no turn has consumed, oldest first (G6).
    pub queue: Vec<QueuedMessage>,
    /// The turn that runs or waits.
    pub turn: Option<ActiveTurn>,
    /// What all segments used.
    pub usage: Usage,
    /// The last turn that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<TurnFailure>,
    /// How much is stored; `None` when nobody counted yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<StoredSize>,
    /// Fields of a newer version, kept as they are (G12).
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// Whether a session takes messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Lifetime {
    /// It does.
    #[default]
    Open,
    /// It ends with its last turn.
    Closing(EndReason),
    /// It is over.
    Ended {
        /// Why.
        reason: EndReason,
        /// Since when.
        at: Timestamp,
    },
}

impl Lifetime {
    /// True while the session takes messages.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        match self {
            Self::Open => true,
            Self::Closing(_) | Self::Ended { .. } => false,
        }
    }

    /// Returns why it is over or about to be.
    #[must_use]
    pub const fn end_reason(&self) -> Option<EndReason> {
        match self {
            Self::Open => None,
            Self::Closing(reason) | Self::Ended { reason, .. } => Some(*reason),
        }
    }

    /// True once the session is over.
    #[must_use]
    pub const fn is_ended(&self) -> bool {
        match self {
            Self::Ended { .. } => true,
            Self::Open | Self::Closing(_) => false,
        }
    }
}

/// The settings of a session, and how often they were changed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Settings {
    /// How often they were changed.
    pub revision: u64,
    /// What they are.
    #[serde(flatten)]
    pub values: SessionSettings,
}

impl Settings {
    fn is_first(&self) -> bool {
        *self == Self::default()
    }
}

/// The last numbers that were given out; the next one is one more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Counters {
    /// Turns.
    pub turn: u64,
    /// Step executions.
    pub step: u64,
    /// User messages.
    pub message: u64,
    /// Stored messages.
    pub sequence: u64,
    /// Events.
    pub cursor: u64,
    /// Chunks.
    pub chunk: u64,
}

/// An accepted message that waits for its turn; its text is a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct QueuedMessage {
    /// Which message.
    pub message_id: MessageId,
    /// The length of its text, in bytes.
    pub text_bytes: u64,
    /// When it was accepted.
    pub sent_at: Timestamp,
}

/// Why the last failed turn failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TurnFailure {
    /// Which turn.
    pub turn_id: TurnId,
    /// Why.
    pub failure: AttemptFailure,
    /// When.
    pub at: Timestamp,
}

impl SessionState {
    /// Reads a stored state and checks it.
    ///
    /// # Errors
    /// [`RecordError::TooNew`] for a newer format, [`RecordError::Damaged`] otherwise.
    pub fn read(bytes: &[u8]) -> Result<Self, RecordError> {
        read_record("a session's state", bytes)
    }

    /// Writes the state.
    ///
    /// # Errors
    /// Never in practice: every field is JSON.
    pub fn write(&self) -> Result<Vec<u8>, serde_json::Error> {
        debug_assert_eq!(self.format, FORMAT);
        serde_json::to_vec(self)
    }

    /// Returns what the session is doing.
    #[must_use]
    pub fn status(&self) -> SessionStatus {
        match &self.turn {
            _ if self.lifetime.is_ended() => SessionStatus::Ended,
            None if self.queue.is_empty() => SessionStatus::Idle,
            None => SessionStatus::Running,
            Some(turn) if turn.waits_for_people() => SessionStatus::AwaitingApproval,
            Some(_) => SessionStatus::Running,
        }
    }

    /// Returns when a worker has something to do: a past time for at once, `None` for never.
    #[must_use]
    pub fn due_at(&self) -> Option<Timestamp> {
        let work = match &self.turn {
            None if self.queue.is_empty() => None,
            None => Some(Timestamp(0)),
            Some(turn) if matches!(turn.phase, Phase::Steering) => Some(Timestamp(0)),
            Some(turn) => turn.executions().map(|it| it.not_before).min(),
        };
        work.into_iter().chain(self.next_timer()).min()
    }

    /// Returns when time alone changes something: a deadline of a decision, or of the session.
    #[must_use]
    pub fn next_timer(&self) -> Option<Timestamp> {
        if self.lifetime.is_ended() {
            return None;
        }
        let calls = self.turn.iter().flat_map(|it| &it.calls);
        let decisions = calls.filter_map(CallState::expires_at);
        let goes_on = self.goes_on();
        let end = self.ends_at.filter(|_| goes_on);
        decisions.chain(end).min()
    }

    /// True while something is left that the end of the session's time would stop.
    #[must_use]
    pub fn goes_on(&self) -> bool {
        let is_active = self.turn.as_ref().is_some_and(|it| !it.is_cancelled());
        match self.lifetime {
            Lifetime::Open => true,
            Lifetime::Closing(_) => is_active || !self.queue.is_empty(),
            Lifetime::Ended { .. } => false,
        }
    }

    /// Returns what the session is listed by.
    #[must_use]
    pub fn summary(&self, now: Timestamp) -> SessionSummary {
        SessionSummary {
            flow_type: Some(self.flow_type.clone()),
            status: self.status(),
            step: self.turn.as_ref().and_then(ActiveTurn::step),
            tenant: self.tenant.clone(),
            metadata: self.metadata.clone(),
            created_at: self.created_at,
            updated_at: now,
            due_at: self.due_at(),
        }
    }
}

/// Where a revision starts counting: the commit that creates a session builds on this.
pub const NOT_CREATED: Revision = Revision(0);

//! What a session remembers: ids, digests and sizes. Texts are rows of their own (design.md 3).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::step::StepExecution;
use crate::commit::{SessionStatus, SessionSummary};
use crate::event::{EndReason, StepKind};
use crate::failure::AttemptFailure;
use crate::ids::{
    ChunkId, FlowType, InterruptId, LeaseEpoch, MessageId, Revision, SessionId, StepId, Tenant,
    Timestamp, ToolCallId, TurnId,
};
use crate::record::{
    ArgumentsDigest, CallRecord, CallStatus, Decider, FORMAT, OpenInterrupt, RecordError,
    read_record,
};
use crate::settings::SessionSettings;
use crate::turn::{CallPlace, Usage};

/// The largest state that is stored, in bytes (design.md 3).
pub const STATE_BYTES_MAX: usize = 256 * 1024;

/// The most metadata that a session is started with: keys and values, in bytes.
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

/// A turn that is not over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ActiveTurn {
    /// Which turn.
    pub turn_id: TurnId,
    /// The message that it answers.
    pub message_id: MessageId,
    /// When it began.
    pub started_at: Timestamp,
    /// Where the conversation ends without this turn's work: where a failure goes back to.
    pub base_head: Option<ChunkId>,
    /// How many segments ended in it.
    pub segments: u32,
    /// Attempts lost since the turn last made progress (G7).
    pub lost_attempts: u32,
    /// What its segments used.
    pub usage: Usage,
    /// What it is doing.
    pub phase: Phase,
    /// Its gated calls, in the order in which the model asked for them.
    pub calls: Vec<CallState>,
    /// Approvals of calls that could not run under their own id: they hold once for the same tool
    /// with the same input.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub carried: Vec<CarriedApproval>,
    /// What its segments run with.
    #[serde(default, skip_serializing_if = "SessionSettings::is_default")]
    pub settings: SessionSettings,
    /// Messages that go into this turn when the model has answered, oldest first (N18).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steered: Vec<QueuedMessage>,
    /// How the turn ends as soon as what still runs for it is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ending: Option<TurnEnding>,
}

/// How a turn ends without an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
// Without a tag, because a failure was stored by itself before a turn could be cancelled.
#[serde(untagged)]
#[non_exhaustive]
pub enum TurnEnding {
    /// It failed.
    Failed(AttemptFailure),
    /// Somebody cancelled it.
    Cancelled(Cancellation),
}

/// Who ended a turn, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Cancellation {
    /// When it was committed.
    pub cancelled_at: Timestamp,
    /// What the model is told, if anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The part of the answer that people saw since the last checkpoint, once the segment has stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partial: Option<String>,
}

/// An approval that holds for the same call made again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CarriedApproval {
    /// The tool.
    pub tool_name: String,
    /// The digest of the input that was approved (G4).
    pub digest: ArgumentsDigest,
    /// Who approved it.
    pub decider: Decider,
}

/// What a turn is doing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Phase {
    /// A segment runs or is due.
    RunModel(StepExecution),
    /// The calls of the last reply are decided and run.
    Calls,
    /// The model has answered, and the first steered message goes in next.
    Steering,
}

/// A gated call of the active turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CallState {
    /// Its durable record.
    pub record: CallRecord,
    /// Which reply of the turn asked for it, counted among those that asked for gated calls: calls
    /// of one reply run in order.
    #[serde(rename = "segment")]
    pub reply: u32,
    /// What is done about it.
    pub step: CallStep,
    /// True once a segment that was given its result has ended.
    pub delivered: bool,
}

/// What is done about a gated call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CallStep {
    /// A person has to decide; no worker is needed.
    AwaitToolApproval(StepId),
    /// It runs, or is due, in its own Step.
    Execute(StepExecution),
    /// The next segment may start it.
    PermittedInSegment,
    /// A segment started it: the mark of G1.
    StartedInSegment {
        /// The segment's Step.
        step_id: StepId,
        /// Its attempt.
        attempt: u32,
        /// The owner under which it was started.
        epoch: LeaseEpoch,
    },
    /// It is over.
    Final,
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

impl ActiveTurn {
    /// Returns the Step that the turn is at: the person's while it waits for one, otherwise the first
    /// that runs or is due.
    #[must_use]
    pub fn step(&self) -> Option<StepKind> {
        if self.waits_for_people() {
            return Some(StepKind::AwaitToolApproval);
        }
        match &self.phase {
            Phase::RunModel(_) => Some(StepKind::RunModel),
            Phase::Steering => None,
            Phase::Calls => self.calls.iter().find_map(|it| match &it.step {
                CallStep::Execute(_) if it.record.policy.effect.is_single_attempt() => {
                    Some(StepKind::CallSingleAttemptTool)
                }
                CallStep::Execute(_) => Some(StepKind::CallTool),
                CallStep::AwaitToolApproval(_)
                | CallStep::PermittedInSegment
                | CallStep::StartedInSegment { .. }
                | CallStep::Final => None,
            }),
        }
    }

    /// Returns what people have to decide, as lists over all sessions show it.
    #[must_use]
    pub fn open_interrupts(&self) -> Vec<OpenInterrupt> {
        let asked = self.calls.iter().filter(|it| it.awaits_approval());
        asked.map(|it| OpenInterrupt::of_call(&it.record)).collect()
    }

    /// Returns the Step executions that a worker runs or will run, in order.
    pub fn executions(&self) -> impl Iterator<Item = &StepExecution> {
        let segment = match &self.phase {
            Phase::RunModel(execution) => Some(execution),
            Phase::Calls | Phase::Steering => None,
        };
        let calls = self
            .calls
            .iter()
            .enumerate()
            .filter_map(|(index, call)| match &call.step {
                CallStep::Execute(execution) if self.is_next_in_order(index) => Some(execution),
                CallStep::Execute(_)
                | CallStep::AwaitToolApproval(_)
                | CallStep::PermittedInSegment
                | CallStep::StartedInSegment { .. }
                | CallStep::Final => None,
            });
        segment.into_iter().chain(calls)
    }

    /// True when a person has to decide before the turn can go on, whether a process waits with it
    /// or not.
    #[must_use]
    pub fn waits_for_people(&self) -> bool {
        let runs_a_call = (self.executions())
            .any(|it| !matches!(&self.phase, Phase::RunModel(own) if own.step_id == it.step_id));
        let is_asked = self.calls.iter().any(CallState::awaits_approval);
        let runs_inside = self.calls.iter().any(CallState::runs_in_segment);
        is_asked && !runs_a_call && !runs_inside
    }

    /// True when the call's turn has come: execution keeps the model's order. A call that can only
    /// run inside a segment holds up later ones only while there is a segment.
    #[must_use]
    pub fn is_next_in_order(&self, index: usize) -> bool {
        let has_segment = match &self.phase {
            Phase::RunModel(_) => true,
            Phase::Calls | Phase::Steering => false,
        };
        self.calls.iter().take(index).all(|earlier| {
            earlier.record.status.is_final() || (!has_segment && earlier.is_for_next_segment())
        })
    }

    /// True once somebody cancelled it.
    #[must_use]
    pub const fn is_cancelled(&self) -> bool {
        match self.ending {
            Some(TurnEnding::Cancelled(_)) => true,
            Some(TurnEnding::Failed(_)) | None => false,
        }
    }

    /// True when every call is over, or is all the next segment's.
    #[must_use]
    pub fn is_ready_for_segment(&self) -> bool {
        self.calls
            .iter()
            .all(|it| it.record.status.is_final() || it.is_for_next_segment())
    }

    /// True when no call waits for a person or runs in a Step of its own.
    #[must_use]
    pub fn is_ready_or_started_in_segment(&self) -> bool {
        self.calls.iter().all(|it| {
            it.record.status.is_final() || it.is_for_next_segment() || it.runs_in_segment()
        })
    }

    /// Returns the call with this id.
    #[must_use]
    pub fn call(&self, id: &ToolCallId) -> Option<&CallState> {
        self.calls.iter().find(|it| it.record.tool_call_id == *id)
    }
}

impl CallState {
    /// Returns the id a person answers under.
    #[must_use]
    pub fn interrupt_id(&self) -> InterruptId {
        InterruptId::of_call(self.record.turn_id, &self.record.tool_call_id)
    }

    /// Returns when nobody may decide about it any more.
    #[must_use]
    pub const fn expires_at(&self) -> Option<Timestamp> {
        if self.awaits_approval() {
            self.record.expires_at
        } else {
            None
        }
    }

    /// True when a person has to decide about it.
    #[must_use]
    pub const fn awaits_approval(&self) -> bool {
        match self.step {
            CallStep::AwaitToolApproval(_) => true,
            CallStep::Execute(_)
            | CallStep::PermittedInSegment
            | CallStep::StartedInSegment { .. }
            | CallStep::Final => false,
        }
    }

    /// True when a segment started it and has not said how it ended.
    #[must_use]
    pub const fn runs_in_segment(&self) -> bool {
        match self.step {
            CallStep::StartedInSegment { .. } => true,
            CallStep::AwaitToolApproval(_)
            | CallStep::Execute(_)
            | CallStep::PermittedInSegment
            | CallStep::Final => false,
        }
    }

    /// True when all that is left to do about it is done by the next segment.
    #[must_use]
    pub const fn is_for_next_segment(&self) -> bool {
        match self.step {
            CallStep::PermittedInSegment => true,
            CallStep::AwaitToolApproval(_)
            | CallStep::Execute(_)
            | CallStep::StartedInSegment { .. }
            | CallStep::Final => false,
        }
    }

    /// True when the two halves of the state, record and Step, agree. An invariant.
    #[must_use]
    pub fn is_consistent(&self) -> bool {
        match &self.step {
            CallStep::AwaitToolApproval(_) => self.record.status == CallStatus::Requested,
            CallStep::Execute(execution) => {
                self.record.place == CallPlace::Step
                    && match self.record.status {
                        CallStatus::Decided => execution.running.is_none(),
                        CallStatus::Started => true,
                        CallStatus::Requested
                        | CallStatus::Succeeded
                        | CallStatus::Failed
                        | CallStatus::Rejected
                        | CallStatus::Skipped
                        | CallStatus::OutcomeUnknown
                        | CallStatus::Unrecognized => false,
                    }
            }
            CallStep::PermittedInSegment => {
                self.record.place == CallPlace::Segment && !self.record.status.is_final()
            }
            CallStep::StartedInSegment { .. } => {
                self.record.place == CallPlace::Segment && self.record.status == CallStatus::Started
            }
            CallStep::Final => self.record.status.is_final(),
        }
    }
}

/// Where a revision starts counting: the commit that creates a session builds on this.
pub const NOT_CREATED: Revision = Revision(0);

//! What a session remembers of the turn that runs or waits: its calls, and what is done about each.

use serde::{Deserialize, Serialize};

use super::state::QueuedMessage;
use super::step::StepExecution;
use crate::event::StepKind;
use crate::failure::AttemptFailure;
use crate::ids::{
    ChunkId, InterruptId, LeaseEpoch, MessageId, StepId, Timestamp, ToolCallId, TurnId,
};
use crate::record::{ArgumentsDigest, CallRecord, CallStatus, Decider, OpenInterrupt};
use crate::settings::SessionSettings;
use crate::turn::{CallPlace, Usage};

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
    /// Messages that go into this turn at its next boundary, oldest first (N18).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steered: Vec<QueuedMessage>,
    /// What the next boundary is.
    #[serde(default, skip_serializing_if = "SteerMode::is_at_boundary")]
    pub steer_mode: SteerMode,
    /// How the turn ends as soon as what still runs for it is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ending: Option<TurnEnding>,
}

/// When a message goes into the turn that it steers (spec/core.md 7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(
    clippy::exhaustive_enums,
    reason = "the two modes are the contract of steering"
)]
pub enum SteerMode {
    /// When the model has answered. What it is doing is not disturbed.
    #[default]
    AtBoundary,
    /// At once: what the model is saying is dropped, and it is asked again from the last checkpoint.
    Now,
}

impl SteerMode {
    /// True for a message that waits for the answer.
    #[must_use]
    pub const fn is_at_boundary(&self) -> bool {
        match self {
            Self::AtBoundary => true,
            Self::Now => false,
        }
    }
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
    /// The digest of the input that the model asked with, and asks with again (G4).
    pub digest: ArgumentsDigest,
    /// The call whose record has the input that was approved, where a person changed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_in: Option<InterruptId>,
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
    /// The model has answered, or is not asked any further: the first steered message goes in next.
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

    /// True when a message goes in as soon as nothing runs: its segment is to stop.
    #[must_use]
    pub const fn is_steered_now(&self) -> bool {
        match (self.steer_mode, &self.ending) {
            (SteerMode::Now, None) => true,
            (SteerMode::Now, Some(_)) | (SteerMode::AtBoundary, _) => false,
        }
    }

    /// Returns the Step of a segment that is to stop because a message goes in.
    #[must_use]
    pub const fn segment_to_stop(&self) -> Option<StepId> {
        match &self.phase {
            Phase::RunModel(execution) if self.is_steered_now() => Some(execution.step_id),
            Phase::RunModel(_) | Phase::Calls | Phase::Steering => None,
        }
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

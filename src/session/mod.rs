//! The session machine: everything that happens to a session is reduced here.
//!
//! `reduce(state, input, now)` gives a [`Reduction`]: a new state and all that must be committed
//! with it. It does no I/O, reads no clock and draws no random number, so the same inputs give the
//! same bytes. What a worker has to do follows from the committed state alone ([`due_steps`]), so
//! that after any crash any worker finds it again. **Persist before act**: nobody acts on a
//! reduction before its commit returned.

mod attempt;
mod call;
mod checkpoint;
mod interrupt;
mod note;
mod reduction;
mod segment_report;
mod state;
mod step;
mod turn;

#[cfg(test)]
mod tests;

use crate::failure::AttemptFailure;
use crate::ids::{InterruptId, LeaseEpoch, MessageId, Nonce, StepId, Timestamp, ToolCallId};
use crate::record::Decision;
use crate::turn::{RunModelOutcome, SegmentEvent, ToolCallEnd};

pub use interrupt::{RESOLVER_BYTES_MAX, Resolution};
pub(crate) use interrupt::{answer_again, normalized};
pub use reduction::{Reduction, create};
pub use state::{
    ActiveTurn, CallState, CallStep, CarriedApproval, Counters, METADATA_BYTES_MAX, NOT_CREATED,
    Phase, QueuedMessage, STATE_BYTES_MAX, SessionState, TurnFailure,
};
pub use step::{
    AttemptKey, CALL_STARTS_MAX, LOST_ATTEMPTS_MAX, RUN_MODEL_FAILURES_MAX, RunningAttempt,
    SEGMENTS_MAX, StepExecution,
};
pub use turn::{MESSAGE_BYTES_MAX, QUEUE_BYTES_MAX, QUEUE_MESSAGES_MAX};

/// Something that happened to a session.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Input {
    /// A client sends a message.
    SendUserMessage {
        /// What the person wrote.
        text: String,
    },
    /// A client answers an interrupt.
    ResolveInterrupt(Resolution),
    /// The owner takes the next queued message; its text comes from the message's row.
    StartTurn {
        /// The first message of the queue.
        message_id: MessageId,
        /// Its text.
        text: String,
    },
    /// The owner wants to run a Step.
    BeginAttempt {
        /// Which Step.
        step_id: StepId,
        /// The worker's name for the attempt.
        nonce: Nonce,
        /// The owner's epoch.
        epoch: LeaseEpoch,
    },
    /// A running segment reports.
    Segment {
        /// Which attempt reports.
        attempt: AttemptKey,
        /// What happened.
        event: SegmentEvent,
    },
    /// A segment ended.
    SegmentEnded {
        /// Which attempt ended.
        attempt: AttemptKey,
        /// How.
        end: Result<RunModelOutcome, AttemptFailure>,
    },
    /// A start of a call in its own Step ended.
    ToolEnded {
        /// Which attempt ended.
        attempt: AttemptKey,
        /// How.
        end: ToolCallEnd,
    },
    /// The owner stops a segment on purpose; it costs no attempt (G7).
    ReleaseAttempt {
        /// Which attempt stops.
        attempt: AttemptKey,
    },
}

/// What the one who caused an input is told, once the reduction is committed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reply {
    /// A message was accepted.
    MessageAccepted {
        /// Its id.
        message_id: MessageId,
        /// True when it waits for the running turn to end.
        queued: bool,
    },
    /// An interrupt is resolved; `duplicate` when this very answer had been given before.
    InterruptResolved {
        /// True when nothing changed.
        duplicate: bool,
    },
    /// An attempt may act now.
    Granted(RunningAttempt),
    /// The Step is due later.
    NotYet(Timestamp),
    /// The report or request is void: the Step is over, or somebody else runs it (G8).
    Superseded,
    /// A call's start mark is set; it may run once, now.
    CallGranted,
    /// The call is over; what the model gets is in its output row.
    CallIsFinal(ToolCallId),
    /// The call must not start: nobody permitted it here, or it has started. The attempt goes on.
    CallNotPermitted,
    /// The call is not decided, waits for an earlier one or runs.
    CallIsOpen,
    /// The call may be started inside the segment.
    CallIsPermitted,
    /// The turn goes on without a process; the attempt is over.
    Parked,
    /// It is reduced.
    Done,
}

/// Why a client's request changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The message holds nothing but white space.
    #[error("the message is blank")]
    BlankText,
    /// The message is too long.
    #[error("the message has {bytes} bytes, at most {MESSAGE_BYTES_MAX} are taken")]
    TextTooLong {
        /// Its length.
        bytes: usize,
    },
    /// Too many messages wait already; try again when a turn has ended.
    #[error("the queue of messages is full")]
    QueueFull,
    /// No interrupt with this id is open in the active turn.
    #[error("there is no open interrupt {interrupt_id}")]
    UnknownInterrupt {
        /// The id that was given.
        interrupt_id: InterruptId,
    },
    /// Somebody has decided otherwise.
    #[error("interrupt {interrupt_id} is already resolved")]
    AlreadyResolved {
        /// The id that was given.
        interrupt_id: InterruptId,
        /// How it was decided; `None` when it was closed without a decision.
        decision: Option<Decision>,
        /// Who decided, if the application said so.
        decided_by: Option<String>,
    },
    /// The answer was given for another tool or other arguments than the call has (G4).
    #[error("interrupt {interrupt_id} is about another input than the one that was decided on")]
    DigestMismatch {
        /// The id that was given.
        interrupt_id: InterruptId,
    },
    /// The session's state has no room for the words of this answer; one without them is taken.
    #[error("the session has no room for the words of this answer")]
    SessionFull,
    /// A field of the request is over its limit.
    #[error("{field} holds at most {bytes_max} bytes")]
    FieldTooLong {
        /// Which field.
        field: &'static str,
        /// Its limit in bytes.
        bytes_max: usize,
    },
}

/// A broken rule of this machine. Nothing is committed; it is a fault of this crate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("broken invariant: {invariant}")]
#[non_exhaustive]
pub struct Bug {
    /// What does not hold.
    pub invariant: &'static str,
}

/// Why there is no reduction.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReduceError {
    /// The request changes nothing.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// This machine broke its own rule.
    #[error(transparent)]
    Bug(#[from] Bug),
}

/// Reduces one input. Nothing has happened until the result is committed.
///
/// # Errors
/// [`ReduceError::Refused`] for a client's request that changes nothing.
pub fn reduce(
    state: &SessionState,
    input: Input,
    now: Timestamp,
) -> Result<Reduction, ReduceError> {
    let mut reduction = Reduction::on(state, now);
    let reply = match input {
        Input::SendUserMessage { text } => reduction.send_user_message(text)?,
        Input::ResolveInterrupt(resolution) => reduction.resolve_interrupt(resolution)?,
        Input::StartTurn { message_id, text } => reduction.start_queued_turn(message_id, text)?,
        Input::BeginAttempt {
            step_id,
            nonce,
            epoch,
        } => reduction.begin_attempt(step_id, nonce, epoch)?,
        Input::Segment { attempt, event } => reduction.segment_event(&attempt, event)?,
        Input::SegmentEnded { attempt, end } => reduction.segment_ended(&attempt, end)?,
        Input::ToolEnded { attempt, end } => reduction.tool_ended(&attempt, end)?,
        Input::ReleaseAttempt { attempt } => reduction.release_attempt(&attempt)?,
    };
    reduction.finish(reply)
}

/// Something a worker has to do for a session.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum DueStep {
    /// Start a turn with the first queued message.
    StartTurn {
        /// That message.
        message_id: MessageId,
    },
    /// Run a segment.
    RunModel {
        /// The Step.
        step_id: StepId,
        /// Not before this time.
        not_before: Timestamp,
    },
    /// Run a call in its own Step.
    CallTool {
        /// The Step.
        step_id: StepId,
        /// Not before this time.
        not_before: Timestamp,
        /// The call.
        tool_call_id: ToolCallId,
    },
}

impl DueStep {
    /// Returns the Step that is due, where there is one yet.
    #[must_use]
    pub const fn step_id(&self) -> Option<StepId> {
        match self {
            Self::StartTurn { .. } => None,
            Self::RunModel { step_id, .. } | Self::CallTool { step_id, .. } => Some(*step_id),
        }
    }
}

/// Returns what a worker has to do: Steps that are due or running. Whether a running one is lost
/// shows when its attempt is asked for under a larger epoch.
#[must_use]
pub fn due_steps(state: &SessionState) -> Vec<DueStep> {
    let Some(turn) = &state.turn else {
        let next = state.queue.first();
        return next
            .map(|it| DueStep::StartTurn {
                message_id: it.message_id,
            })
            .into_iter()
            .collect();
    };
    let due_of = |execution: &StepExecution| {
        let call = turn.calls.iter().find(
            |it| matches!(&it.step, CallStep::Execute(own) if own.step_id == execution.step_id),
        );
        let (step_id, not_before) = (execution.step_id, execution.not_before);
        match call {
            Some(call) => DueStep::CallTool {
                step_id,
                not_before,
                tool_call_id: call.record.tool_call_id.clone(),
            },
            None => DueStep::RunModel {
                step_id,
                not_before,
            },
        }
    };
    turn.executions().map(due_of).collect()
}

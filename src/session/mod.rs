//! The session machine: everything that happens to a session is reduced here.
//!
//! `reduce(state, input, now)` gives a [`Reduction`]: a new state and all that must be committed
//! with it. It does no I/O, reads no clock and draws no random number, so the same inputs give the
//! same bytes. What a worker has to do follows from the committed state alone ([`due_steps`]), so
//! that after any crash any worker finds it again. **Persist before act**: nobody acts on a
//! reduction before its commit returned.

mod active_turn;
mod attempt;
mod call;
mod checkpoint;
mod ending;
mod interrupt;
mod lifetime;
mod note;
mod queue;
mod reduction;
mod segment_report;
mod size;
mod state;
mod step;
mod turn;

#[cfg(test)]
mod tests;

use crate::event::EndReason;
use crate::failure::AttemptFailure;
use crate::ids::{
    InterruptId, LeaseEpoch, MessageId, Nonce, StepId, Timestamp, ToolCallId, TurnId,
};
use crate::question::AnswerProblem;
use crate::record::Decision;
use crate::settings::SessionSettings;
use crate::turn::{RunModelOutcome, SegmentEvent, ToolCallEnd};

pub use active_turn::{
    ActiveTurn, CallState, CallStep, Cancellation, CarriedApproval, Phase, SteerMode, TurnEnding,
};
pub use ending::PARTIAL_ANSWER_BYTES_MAX;
pub use interrupt::{RESOLVER_BYTES_MAX, Resolution, ResolvedArguments};
pub(crate) use interrupt::{answer_again, normalized};
pub use lifetime::{CloseMode, SETTINGS_BYTES_MAX};
pub use queue::{MESSAGE_BYTES_MAX, QUEUE_BYTES_MAX, QUEUE_MESSAGES_MAX, Steering};
pub use reduction::{Reduction, create};
pub(crate) use size::check_size;
pub use size::{StoredSize, size_is_due};
pub use state::{
    Counters, Lifetime, METADATA_BYTES_MAX, NOT_CREATED, QueuedMessage, STATE_BYTES_MAX,
    SessionState, Settings, TurnFailure,
};
pub use step::{
    AttemptKey, CALL_STARTS_MAX, LOST_ATTEMPTS_MAX, RUN_MODEL_FAILURES_MAX, RunningAttempt,
    SEGMENTS_MAX, StepExecution,
};

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
    /// A client ends the active turn.
    CancelTurn {
        /// The turn that the client saw; another one is not cancelled. `None` for whichever it is.
        turn_id: Option<TurnId>,
        /// What the model is told, if anything.
        reason: Option<String>,
    },
    /// The author of a queued message takes it back.
    DeleteQueuedMessage {
        /// Which message.
        message_id: MessageId,
    },
    /// The author of a queued message sends another one instead, behind all others.
    EditQueuedMessage {
        /// Which message.
        message_id: MessageId,
        /// What it says now.
        text: String,
    },
    /// A message goes into the running turn.
    SteerUserMessage {
        /// Which message.
        steering: Steering,
        /// When it goes in.
        mode: SteerMode,
    },
    /// A client has the message of the last failed turn answered once more.
    RetryTurn {
        /// The turn that failed.
        turn_id: TurnId,
        /// What it was to answer.
        text: String,
    },
    /// A client closes the session.
    CloseSession {
        /// What becomes of the turn that is active and of messages that wait.
        mode: CloseMode,
    },
    /// A client changes the settings of later turns.
    UpdateSettings {
        /// The revision that the client saw; another one is not replaced.
        expected_revision: u64,
        /// The new settings, all of them.
        settings: SessionSettings,
    },
    /// A deadline has passed.
    TimePassed,
    /// The owner asked the store how much it holds of the session ([`size_is_due`]).
    SizeMeasured {
        /// What the store said, in bytes.
        stored_bytes: u64,
        /// [`StoredSize::written`] when the store was asked.
        written_before: u64,
        /// The Flow's limit.
        bytes_max: u64,
    },
    /// The owner puts the first steered message into the turn; its text comes from the message's row.
    TakeSteered {
        /// The first steered message.
        message_id: MessageId,
        /// Its text.
        text: String,
    },
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
    /// A turn is cancelled; it is over as soon as what still runs for it has stopped.
    TurnCancelled {
        /// Which turn.
        turn_id: TurnId,
        /// True when nothing changed.
        duplicate: bool,
    },
    /// The session takes nothing new; it is over as soon as what still runs has stopped.
    SessionClosing {
        /// True when nothing changed.
        duplicate: bool,
    },
    /// The settings are changed.
    SettingsUpdated {
        /// Their revision now.
        revision: u64,
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
    CallIsPermitted {
        /// The key of the arguments that a person put in the place of the model's.
        changed_in: Option<InterruptId>,
    },
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
    /// The session is over or about to be.
    #[error("the session takes nothing new, because it ended or is about to")]
    SessionEnded {
        /// Why.
        reason: EndReason,
    },
    /// A turn is active or a message waits, and closing was not to disturb it.
    #[error("the session has a turn or a message that waits")]
    SessionBusy,
    /// This is not the last turn that failed.
    #[error("turn {turn_id} is not the last one that failed")]
    TurnNotFailed {
        /// The turn that was named.
        turn_id: TurnId,
    },
    /// The conversation has no such turn that was completed.
    #[error("the conversation has no completed turn {turn_id}")]
    UnknownTurn {
        /// The turn that was named.
        turn_id: TurnId,
    },
    /// The session is not over: close it first.
    #[error("the session is not over")]
    SessionNotEnded,
    /// No message with this id waits: it was taken up or deleted.
    #[error("message {message_id} does not wait")]
    UnknownMessage {
        /// The id that was given.
        message_id: MessageId,
    },
    /// Somebody changed the settings meanwhile.
    #[error("the settings have revision {revision} by now")]
    SettingsChanged {
        /// Their revision.
        revision: u64,
    },
    /// The deadline of the decision has passed.
    #[error("the time to decide about interrupt {interrupt_id} is over")]
    Expired {
        /// The id that was given.
        interrupt_id: InterruptId,
    },
    /// There is no turn to cancel, or another one is active by now.
    #[error("the turn is not active")]
    TurnNotActive {
        /// The turn that is active.
        active: Option<TurnId>,
    },
    /// A call that was decided about runs or is about to, and a message that goes in now would cut it
    /// off. Steer at the boundary, or wait for the call.
    #[error("call {tool_call_id} runs or is about to")]
    CallRuns {
        /// The first such call.
        tool_call_id: ToolCallId,
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
    /// The arguments that were to run in the place of the model's are no JSON object.
    #[error("the changed arguments are no JSON object")]
    ArgumentsNotAnObject,
    /// The answer rejects the call and gives it other arguments: nothing would run with them. Tell the
    /// model by the message of the rejection what is wanted.
    #[error("interrupt {interrupt_id} cannot be rejected and be given other arguments")]
    ArgumentsOfRejected {
        /// The id that was given.
        interrupt_id: InterruptId,
    },
    /// The call asks questions: it is answered or rejected, and cannot be approved without answers.
    #[error("interrupt {interrupt_id} asks questions, which have to be answered")]
    NotAnswered {
        /// The id that was given.
        interrupt_id: InterruptId,
    },
    /// The call asks no questions: it is approved or rejected.
    #[error("interrupt {interrupt_id} asks no questions")]
    AsksNoQuestions {
        /// The id that was given.
        interrupt_id: InterruptId,
    },
    /// The answers do not fit the questions; nobody has answered any of them.
    #[error("the answers to interrupt {interrupt_id} do not fit")]
    AnswersDoNotFit {
        /// The id that was given.
        interrupt_id: InterruptId,
        /// What is wrong with them.
        #[source]
        problem: AnswerProblem,
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
        Input::CancelTurn { turn_id, reason } => reduction.cancel_turn(turn_id, reason)?,
        Input::DeleteQueuedMessage { message_id } => reduction.delete_queued(message_id)?,
        Input::EditQueuedMessage { message_id, text } => reduction.edit_queued(message_id, text)?,
        Input::SteerUserMessage { steering, mode } => reduction.steer(steering, mode)?,
        Input::RetryTurn { turn_id, text } => reduction.retry_turn(turn_id, text)?,
        Input::CloseSession { mode } => reduction.close_session(mode)?,
        Input::UpdateSettings {
            expected_revision,
            settings,
        } => reduction.update_settings(expected_revision, settings)?,
        Input::TimePassed => reduction.let_time_pass()?,
        Input::SizeMeasured {
            stored_bytes,
            written_before,
            bytes_max,
        } => reduction.size_measured(stored_bytes, written_before, bytes_max)?,
        Input::TakeSteered { message_id, text } => reduction.take_steered(message_id, text)?,
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
    /// Put the first steered message into the turn.
    TakeSteered {
        /// That message.
        message_id: MessageId,
    },
    /// Time alone changes something.
    PassTime {
        /// When.
        at: Timestamp,
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
            Self::StartTurn { .. } | Self::TakeSteered { .. } | Self::PassTime { .. } => None,
            Self::RunModel { step_id, .. } | Self::CallTool { step_id, .. } => Some(*step_id),
        }
    }
}

/// Returns what a worker has to do: Steps that are due or running. Whether a running one is lost
/// shows when its attempt is asked for under a larger epoch.
#[must_use]
pub fn due_steps(state: &SessionState) -> Vec<DueStep> {
    let timer = state.next_timer().map(|at| DueStep::PassTime { at });
    timer.into_iter().chain(due_work(state)).collect()
}

fn due_work(state: &SessionState) -> Vec<DueStep> {
    let message_of = |it: &QueuedMessage| it.message_id;
    let Some(turn) = &state.turn else {
        let next = state.queue.first().map(message_of);
        let start = next.map(|message_id| DueStep::StartTurn { message_id });
        return start.into_iter().collect();
    };
    if let Phase::Steering = turn.phase {
        let next = turn.steered.first().map(message_of);
        let take = next.map(|message_id| DueStep::TakeSteered { message_id });
        return take.into_iter().collect();
    }
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

//! How a turn begins and ends.

use super::state::{ActiveTurn, CallStep, Phase, QueuedMessage, TurnFailure};
use super::step::StepExecution;
use super::{Bug, ReduceError, Reduction, Refusal, Reply, note};
use crate::commit::RowKind;
use crate::event::{EventKind, StepKind};
use crate::failure::AttemptFailure;
use crate::ids::{MessageId, TurnId};
use crate::record::{MessageRole, SkipReason, ToolOutcome};
use crate::turn::Usage;

/// The longest user message, in bytes (spec/core.md 31.17).
pub const MESSAGE_BYTES_MAX: usize = 1024 * 1024;

/// How many messages may wait (spec/core.md 7).
pub const QUEUE_MESSAGES_MAX: usize = 100;

/// How much text may wait, in bytes (spec/core.md 7).
pub const QUEUE_BYTES_MAX: u64 = 1024 * 1024;

impl Reduction {
    pub(super) fn send_user_message(&mut self, text: String) -> Result<Reply, ReduceError> {
        if text.chars().all(is_blank) {
            return Err(Refusal::BlankText.into());
        }
        if text.len() > MESSAGE_BYTES_MAX {
            return Err(Refusal::TextTooLong { bytes: text.len() }.into());
        }
        let text_bytes = text.len() as u64;
        let waiting: u64 = self.state.queue.iter().map(|it| it.text_bytes).sum();
        let is_idle = self.state.turn.is_none() && self.state.queue.is_empty();
        let is_full =
            self.state.queue.len() >= QUEUE_MESSAGES_MAX || waiting + text_bytes > QUEUE_BYTES_MAX;
        if !is_idle && is_full {
            return Err(Refusal::QueueFull.into());
        }
        let message_id = self.next_message_id();
        self.emit(None, EventKind::MessageQueued { message_id });
        if is_idle {
            self.start_turn(message_id, text)?;
        } else {
            self.put_row(RowKind::Message, message_id.to_string(), text.into_bytes());
            self.state.queue.push(QueuedMessage {
                message_id,
                text_bytes,
                sent_at: self.now,
            });
        }
        Ok(Reply::MessageAccepted {
            message_id,
            queued: !is_idle,
        })
    }

    /// G6: the first message of the queue, and no other, becomes a turn, once.
    pub(super) fn start_queued_turn(
        &mut self,
        message_id: MessageId,
        text: String,
    ) -> Result<Reply, ReduceError> {
        let is_next = self
            .state
            .queue
            .first()
            .is_some_and(|it| it.message_id == message_id);
        if self.state.turn.is_some() || !is_next {
            return Ok(Reply::Superseded);
        }
        self.state.queue.remove(0);
        self.delete_row(RowKind::Message, message_id.to_string());
        self.start_turn(message_id, text)?;
        Ok(Reply::Done)
    }

    fn start_turn(&mut self, message_id: MessageId, text: String) -> Result<(), Bug> {
        let turn_id = self.next_turn_id();
        self.emit(Some(turn_id), EventKind::TurnStarted { message_id });
        // I01: the prompt is stored before a CLI sees it.
        self.append_text(turn_id, MessageRole::User, text)?;
        let first_step = self.new_run_model_step(turn_id);
        self.state.turn = Some(ActiveTurn {
            turn_id,
            message_id,
            started_at: self.now,
            base_head: self.state.head,
            segments: 0,
            lost_attempts: 0,
            usage: Usage::default(),
            phase: Phase::RunModel(first_step),
            calls: Vec::new(),
            carried: Vec::new(),
            ending: None,
        });
        Ok(())
    }

    pub(super) fn new_run_model_step(&mut self, turn_id: TurnId) -> StepExecution {
        let step_id = self.next_step_id();
        self.emit(
            Some(turn_id),
            EventKind::StepStarted {
                step_id,
                step: StepKind::RunModel,
                tool_call_id: None,
            },
        );
        StepExecution::new(step_id)
    }

    /// The turn is over with an answer.
    pub(super) fn complete_turn(&mut self) -> Result<(), Bug> {
        let turn_id = self.turn_mut()?.turn_id;
        self.emit(Some(turn_id), EventKind::TurnCompleted);
        self.state.turn = None;
        Ok(())
    }

    /// The turn is over without an answer: the conversation goes back to the end of the last
    /// completed turn and this turn's prompt (L11), and a note tells the model what ran (L10). Calls
    /// that run in Steps of their own come to their end first, so that the note is true.
    pub(super) fn fail_turn(&mut self, failure: AttemptFailure) -> Result<(), Bug> {
        let mut runs = false;
        for index in 0..self.turn_mut()?.calls.len() {
            match &self.call_mut(index)?.step {
                CallStep::Final => {}
                CallStep::Execute(execution) if execution.running.is_some() => runs = true,
                CallStep::StartedInSegment { .. }
                | CallStep::AwaitToolApproval(_)
                | CallStep::Execute(_)
                | CallStep::PermittedInSegment => {
                    let reason = SkipReason::TurnEnded;
                    self.end_abandoned_call(index, ToolOutcome::Skipped { reason })?;
                }
            }
        }
        let turn = self.turn_mut()?;
        if runs {
            turn.phase = Phase::Calls;
            turn.ending = Some(failure);
            return Ok(());
        }
        let (turn_id, base_head) = (turn.turn_id, turn.base_head);
        let text = note::turn_failure(failure.class, &turn.calls);
        self.state.head = base_head;
        self.append_text(turn_id, MessageRole::Note, text)?;
        self.emit(
            Some(turn_id),
            EventKind::TurnFailed {
                class: failure.class,
            },
        );
        self.state.turn = None;
        self.state.last_failure = Some(TurnFailure {
            turn_id,
            failure,
            at: self.now,
        });
        Ok(())
    }
}

/// White space as Python's `str.isspace` sees it, so that the same texts are blank everywhere (N15).
fn is_blank(it: char) -> bool {
    it.is_whitespace() || matches!(it, '\u{1c}'..='\u{1f}')
}

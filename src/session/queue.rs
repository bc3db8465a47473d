//! Messages: accepted, queued, changed by their author, steered into the running turn.

use super::active_turn::{CallStep, Phase, SteerMode};
use super::state::{Lifetime, QueuedMessage};
use super::{Bug, ReduceError, Reduction, Refusal, Reply};
use crate::commit::RowKind;
use crate::event::EventKind;
use crate::ids::{MessageId, TurnId};
use crate::record::{MessageRole, SkipReason, ToolOutcome};

/// The longest user message, in bytes (spec/core.md 31.17).
pub const MESSAGE_BYTES_MAX: usize = 1024 * 1024;

/// How many messages may wait (spec/core.md 7).
pub const QUEUE_MESSAGES_MAX: usize = 100;

/// How much text may wait, in bytes (spec/core.md 7).
pub const QUEUE_BYTES_MAX: u64 = 1024 * 1024;

/// What a turn is steered by.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(
    feature = "unstable",
    expect(clippy::exhaustive_enums, reason = "clients build it")
)]
pub enum Steering {
    /// A new message.
    New(String),
    /// One that waits for its turn.
    Queued(MessageId),
}

impl Reduction {
    pub(super) fn send_user_message(&mut self, text: String) -> Result<Reply, ReduceError> {
        self.check_open()?;
        check_text(&text)?;
        let is_idle = self.state.turn.is_none() && self.state.queue.is_empty();
        if !is_idle {
            self.check_room(text.len())?;
        }
        let message_id = self.next_message_id();
        self.emit(None, EventKind::MessageQueued { message_id });
        if is_idle {
            self.start_turn(message_id, text)?;
        } else {
            let message = self.keep_text(message_id, text);
            self.state.queue.push(message);
        }
        Ok(Reply::MessageAccepted {
            message_id,
            queued: !is_idle,
        })
    }

    /// The message was never sent (N21).
    pub(super) fn delete_queued(&mut self, message_id: MessageId) -> Result<Reply, ReduceError> {
        self.take_queued(message_id)?;
        self.delete_row(RowKind::Message, message_id.to_string());
        self.emit(None, EventKind::MessageDeleted { message_id });
        Ok(Reply::Done)
    }

    /// The message is taken back and sent anew, behind all others (N21).
    pub(super) fn edit_queued(
        &mut self,
        message_id: MessageId,
        text: String,
    ) -> Result<Reply, ReduceError> {
        check_text(&text)?;
        self.delete_queued(message_id)?;
        self.send_user_message(text)
    }

    /// The failed turn's message is sent again, as a turn of its own.
    pub(super) fn retry_turn(
        &mut self,
        turn_id: TurnId,
        text: String,
    ) -> Result<Reply, ReduceError> {
        self.check_open()?;
        if self.state.turn.is_some() || !self.state.queue.is_empty() {
            return Err(Refusal::SessionBusy.into());
        }
        let failed = self.state.last_failure.as_ref().map(|it| it.turn_id);
        if failed != Some(turn_id) {
            return Err(Refusal::TurnNotFailed { turn_id }.into());
        }
        self.state.last_failure = None;
        self.send_user_message(text)
    }

    /// The message goes into the running turn (N18, spec/core.md 7). Calls that nobody has decided
    /// about are passed over. At its boundary: when the model has answered to that, the turn goes on
    /// with the message. Now: the running segment stops, and the model is asked again from the last
    /// checkpoint with the message.
    pub(super) fn steer(
        &mut self,
        steering: Steering,
        mode: SteerMode,
    ) -> Result<Reply, ReduceError> {
        let is_cancelled = self.state.turn.as_ref().map(|it| it.ending.is_some());
        let message = match (steering, is_cancelled) {
            // Nothing runs that it could go into.
            (Steering::New(text), None | Some(true)) => return self.send_user_message(text),
            (Steering::Queued(_), None | Some(true)) => {
                return Err(Refusal::TurnNotActive { active: None }.into());
            }
            (Steering::New(text), Some(false)) => {
                self.check_open()?;
                check_text(&text)?;
                self.check_room(text.len())?;
                let message_id = self.next_message_id();
                self.emit(None, EventKind::MessageQueued { message_id });
                self.keep_text(message_id, text)
            }
            (Steering::Queued(message_id), Some(false)) => self.take_queued(message_id)?,
        };
        if mode == SteerMode::Now {
            self.check_no_call_runs()?;
        }
        let message_id = message.message_id;
        let turn = self.turn_mut()?;
        let turn_id = turn.turn_id;
        turn.steered.push(message);
        turn.steer_mode = match (&turn.phase, mode) {
            // At the boundary already.
            (Phase::Steering, SteerMode::Now) | (_, SteerMode::AtBoundary) => turn.steer_mode,
            (Phase::RunModel(_) | Phase::Calls, SteerMode::Now) => SteerMode::Now,
        };
        self.emit(Some(turn_id), EventKind::MessageSteered { message_id });
        for index in 0..self.turn_mut()?.calls.len() {
            if self.call_mut(index)?.awaits_approval() {
                let reason = SkipReason::Steered;
                self.end_call(index, ToolOutcome::Skipped { reason })?;
            }
        }
        self.go_on_when_calls_are_over()?;
        let turn = self.turn_mut()?;
        if let Phase::RunModel(execution) = &turn.phase
            && execution.running.is_none()
            && turn.is_steered_now()
        {
            turn.phase = Phase::Steering;
        }
        Ok(Reply::MessageAccepted {
            message_id,
            queued: true,
        })
    }

    /// What a person has decided about is not cut off, nor does it run beside another segment.
    fn check_no_call_runs(&self) -> Result<(), ReduceError> {
        let runs = |it: &CallStep| match it {
            CallStep::Execute(_)
            | CallStep::PermittedInSegment
            | CallStep::StartedInSegment { .. } => true,
            CallStep::AwaitToolApproval(_) | CallStep::Final => false,
        };
        match self.turn()?.calls.iter().find(|it| runs(&it.step)) {
            Some(call) => Err(Refusal::CallRuns {
                tool_call_id: call.record.tool_call_id.clone(),
            }
            .into()),
            None => Ok(()),
        }
    }

    /// The owner puts the first steered message into the conversation; its text comes from its row.
    pub(super) fn take_steered(
        &mut self,
        message_id: MessageId,
        text: String,
    ) -> Result<Reply, ReduceError> {
        let is_next = self.state.turn.as_ref().is_some_and(|turn| {
            let first = turn.steered.first().map(|it| it.message_id);
            matches!(turn.phase, Phase::Steering) && first == Some(message_id)
        });
        if !is_next {
            return Ok(Reply::Superseded);
        }
        let turn = self.turn_mut()?;
        turn.steered.remove(0);
        let (turn_id, base_head, mode) = (turn.turn_id, turn.base_head, turn.steer_mode);
        self.delete_row(RowKind::Message, message_id.to_string());
        let base_head = match mode {
            // What was answered before stays, whatever becomes of this message; and so does the
            // message (G6).
            SteerMode::AtBoundary => {
                self.append_text(turn_id, MessageRole::User, text)?;
                self.state.head
            }
            // Nothing was answered: the message alone stays.
            SteerMode::Now => self.append_user_text_behind_both(turn_id, base_head, text)?,
        };
        self.turn_mut()?.base_head = base_head;
        if self.turn()?.is_steered_now() && !self.turn()?.steered.is_empty() {
            return Ok(Reply::Done);
        }
        let next = self.new_run_model_step(turn_id);
        let turn = self.turn_mut()?;
        turn.steer_mode = SteerMode::AtBoundary;
        turn.phase = Phase::RunModel(next);
        Ok(Reply::Done)
    }

    /// The turn ends without taking up what it was steered by: that waits for a turn of its own,
    /// in the order in which all were accepted (G6).
    pub(super) fn give_back_steered(&mut self) -> Result<(), Bug> {
        let turn = self.turn_mut()?;
        turn.steer_mode = SteerMode::AtBoundary;
        let mut steered = std::mem::take(&mut turn.steered);
        self.state.queue.append(&mut steered);
        self.state.queue.sort_by_key(|it| it.message_id);
        Ok(())
    }

    pub(super) fn check_open(&self) -> Result<(), Refusal> {
        match self.state.lifetime {
            Lifetime::Open => Ok(()),
            Lifetime::Closing(reason) | Lifetime::Ended { reason, .. } => {
                Err(Refusal::SessionEnded { reason })
            }
        }
    }

    fn check_room(&self, text_bytes: usize) -> Result<(), Refusal> {
        let steered = self.state.turn.iter().flat_map(|it| &it.steered);
        let waiting = self.state.queue.iter().chain(steered);
        let (count, bytes) = waiting.fold((0, 0), |(count, bytes), it| {
            (count + 1, bytes + it.text_bytes)
        });
        if count >= QUEUE_MESSAGES_MAX || bytes + text_bytes as u64 > QUEUE_BYTES_MAX {
            return Err(Refusal::QueueFull);
        }
        Ok(())
    }

    fn keep_text(&mut self, message_id: MessageId, text: String) -> QueuedMessage {
        let text_bytes = text.len() as u64;
        self.put_row(RowKind::Message, message_id.to_string(), text.into_bytes());
        QueuedMessage {
            message_id,
            text_bytes,
            sent_at: self.now,
        }
    }

    fn take_queued(&mut self, message_id: MessageId) -> Result<QueuedMessage, Refusal> {
        let queue = &mut self.state.queue;
        let place = queue.iter().position(|it| it.message_id == message_id);
        let place = place.ok_or(Refusal::UnknownMessage { message_id })?;
        Ok(queue.remove(place))
    }
}

fn check_text(text: &str) -> Result<(), Refusal> {
    if text.chars().all(is_blank) {
        return Err(Refusal::BlankText);
    }
    if text.len() > MESSAGE_BYTES_MAX {
        return Err(Refusal::TextTooLong { bytes: text.len() });
    }
    Ok(())
}

/// White space as Python's `str.isspace` sees it, so that the same texts are blank everywhere (N15).
fn is_blank(it: char) -> bool {
    it.is_whitespace() || matches!(it, '\u{1c}'..='\u{1f}')
}

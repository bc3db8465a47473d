//! How a turn begins and ends.

use super::active_turn::{ActiveTurn, Phase, SteerMode};
use super::step::StepExecution;
use super::{Bug, ReduceError, Reduction, Reply};
use crate::commit::RowKind;
use crate::event::{EventKind, StepKind};
use crate::ids::{MessageId, TurnId};
use crate::record::MessageRole;
use crate::turn::Usage;

impl Reduction {
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

    pub(super) fn start_turn(&mut self, message_id: MessageId, text: String) -> Result<(), Bug> {
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
            settings: self.state.settings.values.clone(),
            steered: Vec::new(),
            steer_mode: SteerMode::AtBoundary,
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

    /// The model has answered: the turn is over, or goes on with what it was steered by.
    pub(super) fn complete_turn(&mut self) -> Result<(), Bug> {
        let turn = self.turn_mut()?;
        if !turn.steered.is_empty() {
            turn.phase = Phase::Steering;
            return Ok(());
        }
        let turn_id = turn.turn_id;
        self.emit(Some(turn_id), EventKind::TurnCompleted);
        self.state.turn = None;
        Ok(())
    }
}

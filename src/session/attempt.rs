//! Attempts: how they are granted, and how they end without a result.

use std::time::Duration;

use super::active_turn::{CallStep, Phase};
use super::step::{
    Admission, AttemptKey, LOST_ATTEMPTS_MAX, RUN_MODEL_FAILURES_MAX, StepExecution,
    wait_after_failure, wait_after_loss,
};
use super::{Bug, ReduceError, Reduction, Reply};
use crate::event::EventKind;
use crate::failure::{AttemptFailure, FailureClass};
use crate::ids::{LeaseEpoch, Nonce, StepId, ToolCallId};

impl Reduction {
    pub(super) fn begin_attempt(
        &mut self,
        step_id: StepId,
        nonce: Nonce,
        epoch: LeaseEpoch,
    ) -> Result<Reply, ReduceError> {
        let Some(execution) = self.due_execution(step_id) else {
            return Ok(Reply::Superseded);
        };
        match execution.admission(&nonce, epoch, self.now) {
            Admission::SameAgain(running) => Ok(Reply::Granted(running)),
            Admission::Refused => Ok(Reply::Superseded),
            Admission::NotYet(at) => Ok(Reply::NotYet(at)),
            Admission::PreviousLost => {
                self.lose_attempt(step_id)?;
                // The loss may have ended the Step or made it wait; if not, this attempt is granted at once.
                self.begin_attempt(step_id, nonce, epoch)
            }
            Admission::Free => Ok(Reply::Granted(self.grant(step_id, nonce, epoch)?)),
        }
    }

    fn grant(
        &mut self,
        step_id: StepId,
        nonce: Nonce,
        epoch: LeaseEpoch,
    ) -> Result<super::RunningAttempt, Bug> {
        let turn_id = self.turn_mut()?.turn_id;
        let running = self.execution_mut(step_id)?.grant(nonce, epoch);
        self.emit(
            Some(turn_id),
            EventKind::AttemptStarted {
                step_id,
                attempt: running.attempt,
            },
        );
        if let Some(index) = self.call_of_step(step_id) {
            self.mark_started(index)?;
        }
        Ok(running)
    }

    /// The attempt of this Step died with its worker.
    fn lose_attempt(&mut self, step_id: StepId) -> Result<(), Bug> {
        let turn_id = self.turn_mut()?.turn_id;
        let running = self.execution_mut(step_id)?.running.clone();
        let attempt = running
            .ok_or(Bug {
                invariant: "only a running attempt is lost",
            })?
            .attempt;
        self.emit(
            Some(turn_id),
            EventKind::AttemptSuperseded { step_id, attempt },
        );
        if let Some(index) = self.call_of_step(step_id) {
            let starts = self.call_mut(index)?.record.starts;
            self.settle_start_without_end(index, wait_after_loss(starts))?;
            return self.go_on_when_calls_are_over();
        }
        if self.turn()?.ending.is_some() {
            return self.leave_attempt(step_id, Duration::ZERO);
        }
        let turn = self.turn_mut()?;
        turn.lost_attempts += 1;
        let losses = turn.lost_attempts;
        if losses >= LOST_ATTEMPTS_MAX {
            self.settle_calls_started_in_segment()?;
            let detail =
                format!("{losses} attempts were lost with their workers, one after the other");
            return self.fail_turn(AttemptFailure::new(FailureClass::AttemptsLost, detail));
        }
        self.leave_attempt(step_id, wait_after_loss(losses))
    }

    pub(super) fn release_attempt(&mut self, attempt: &AttemptKey) -> Result<Reply, ReduceError> {
        if !self.is_running_segment(attempt) {
            return Ok(Reply::Superseded);
        }
        let turn_id = self.turn_mut()?.turn_id;
        // What it said so far is void, as after a loss (G13).
        self.emit(
            Some(turn_id),
            EventKind::AttemptSuperseded {
                step_id: attempt.step_id,
                attempt: attempt.running.attempt,
            },
        );
        self.leave_attempt(attempt.step_id, Duration::ZERO)?;
        Ok(Reply::Done)
    }

    /// The segment is gone without a result. The next attempt goes on from the last checkpoint after
    /// `wait`; but while calls are open the turn is parked, and no CLI starts before all are over.
    pub(super) fn leave_attempt(&mut self, step_id: StepId, wait: Duration) -> Result<(), Bug> {
        self.settle_calls_started_in_segment()?;
        if self.turn()?.ending.is_some() {
            return self.end_ending_turn();
        }
        if self.turn()?.is_steered_now() {
            self.turn_mut()?.phase = Phase::Steering;
            return Ok(());
        }
        if self.turn_mut()?.is_ready_for_segment() {
            self.keep_one_call_for_segment()?;
            let now = self.now;
            self.execution_mut(step_id)?.release(now, wait);
            return Ok(());
        }
        self.park()
    }

    pub(super) fn fail_attempt(
        &mut self,
        attempt: &AttemptKey,
        failure: AttemptFailure,
    ) -> Result<(), Bug> {
        let now = self.now;
        let turn_id = self.turn_mut()?.turn_id;
        let execution = self.execution_mut(attempt.step_id)?;
        execution.failures += 1;
        let may_retry = failure.class.is_retryable() && execution.failures < RUN_MODEL_FAILURES_MAX;
        let asked = failure
            .retry_after_ms
            .map_or(Duration::ZERO, Duration::from_millis);
        let wait = wait_after_failure(execution.failures).max(asked);
        let retry_at = may_retry.then(|| now.after(wait));
        self.emit(
            Some(turn_id),
            EventKind::AttemptFailed {
                step_id: attempt.step_id,
                attempt: attempt.running.attempt,
                class: failure.class,
                retry_at,
            },
        );
        if may_retry {
            self.leave_attempt(attempt.step_id, wait)
        } else {
            self.settle_calls_started_in_segment()?;
            self.fail_turn(failure)
        }
    }

    /// Calls that the ended attempt started and never reported: again, or never (G1).
    pub(super) fn settle_calls_started_in_segment(&mut self) -> Result<(), Bug> {
        for index in 0..self.turn_mut()?.calls.len() {
            if matches!(
                self.call_mut(index)?.step,
                CallStep::StartedInSegment { .. }
            ) {
                self.settle_start_without_end(index, Duration::ZERO)?;
            }
        }
        Ok(())
    }

    pub(super) fn call_index(&self, id: &ToolCallId) -> Option<usize> {
        self.state
            .turn
            .as_ref()?
            .calls
            .iter()
            .position(|it| it.record.tool_call_id == *id)
    }

    fn call_of_step(&self, step_id: StepId) -> Option<usize> {
        let calls = &self.state.turn.as_ref()?.calls;
        calls.iter().position(
            |it| matches!(&it.step, CallStep::Execute(execution) if execution.step_id == step_id),
        )
    }

    fn due_execution(&self, step_id: StepId) -> Option<&StepExecution> {
        self.state
            .turn
            .as_ref()?
            .executions()
            .find(|it| it.step_id == step_id)
    }

    pub(super) fn execution_mut(&mut self, step_id: StepId) -> Result<&mut StepExecution, Bug> {
        let turn = self.turn_mut()?;
        let own = match &mut turn.phase {
            Phase::RunModel(execution) => Some(execution),
            Phase::Calls | Phase::Steering => None,
        };
        let calls = turn.calls.iter_mut().filter_map(|it| match &mut it.step {
            CallStep::Execute(execution) => Some(execution),
            CallStep::AwaitToolApproval(_)
            | CallStep::PermittedInSegment
            | CallStep::StartedInSegment { .. }
            | CallStep::Final => None,
        });
        own.into_iter()
            .chain(calls)
            .find(|it| it.step_id == step_id)
            .ok_or(Bug {
                invariant: "the Step is part of the turn",
            })
    }

    pub(super) fn is_running_segment(&self, attempt: &AttemptKey) -> bool {
        match self.state.turn.as_ref().map(|it| &it.phase) {
            Some(Phase::RunModel(execution)) => execution.is_running(attempt),
            Some(Phase::Calls | Phase::Steering) | None => false,
        }
    }
}

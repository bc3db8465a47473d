//! Attempts are granted, and segments report: what each means for the turn.

use std::time::Duration;

use super::state::{CallStep, Phase, STATE_BYTES_WITH_NEW_CALLS_MAX};
use super::step::{
    Admission, AttemptKey, LOST_ATTEMPTS_MAX, RUN_MODEL_FAILURES_MAX, SEGMENTS_MAX, StepExecution,
    wait_after_failure, wait_after_loss,
};
use super::{Bug, ReduceError, Reduction, Reply};
use crate::event::EventKind;
use crate::failure::{AttemptFailure, FailureClass};
use crate::ids::{LeaseEpoch, Nonce, StepId, ToolCallId};
use crate::record::{NOT_RUN_PREFIX, ToolOutcome};
use crate::turn::{NewMessage, RequestedCall, RunModelOutcome, SegmentEvent, Usage};

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
        self.settle_calls_started_in_segment()?;
        let turn = self.turn_mut()?;
        turn.lost_attempts += 1;
        let losses = turn.lost_attempts;
        if losses >= LOST_ATTEMPTS_MAX {
            let detail =
                format!("{losses} attempts were lost with their workers, one after the other");
            return self.fail_turn(AttemptFailure::new(FailureClass::AttemptsLost, detail));
        }
        let now = self.now;
        self.execution_mut(step_id)?
            .release(now, wait_after_loss(losses));
        Ok(())
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
        self.settle_calls_started_in_segment()?;
        let now = self.now;
        self.execution_mut(attempt.step_id)?
            .release(now, Duration::ZERO);
        Ok(Reply::Done)
    }

    pub(super) fn segment_event(
        &mut self,
        attempt: &AttemptKey,
        event: SegmentEvent,
    ) -> Result<Reply, ReduceError> {
        if !self.is_running_segment(attempt) {
            return Ok(Reply::Superseded);
        }
        let turn_id = self.turn_mut()?.turn_id;
        match event {
            SegmentEvent::CallStarting { tool_call_id } => {
                self.call_starting(attempt, &tool_call_id)
            }
            SegmentEvent::CallFinished {
                tool_call_id,
                outcome,
            } => self.call_finished(attempt, &tool_call_id, outcome),
            // A gated call is told by its record alone, once.
            SegmentEvent::InlineCallStarted { tool_call_id, .. }
            | SegmentEvent::InlineCallFinished { tool_call_id, .. }
                if self.call_index(&tool_call_id).is_some() =>
            {
                Ok(Reply::Done)
            }
            SegmentEvent::InlineCallStarted {
                tool_call_id,
                tool_name,
            } => {
                self.emit(
                    Some(turn_id),
                    EventKind::ToolCallStarted {
                        tool_call_id,
                        tool_name,
                    },
                );
                Ok(Reply::Done)
            }
            SegmentEvent::InlineCallFinished {
                tool_call_id,
                status,
            } => {
                self.emit(
                    Some(turn_id),
                    EventKind::ToolCallFinished {
                        tool_call_id,
                        status,
                    },
                );
                Ok(Reply::Done)
            }
        }
    }

    fn call_starting(
        &mut self,
        attempt: &AttemptKey,
        id: &ToolCallId,
    ) -> Result<Reply, ReduceError> {
        let Some(index) = self.call_index(id) else {
            // Nobody decided about this call: it must not run (G5).
            return Ok(Reply::CallNotPermitted);
        };
        match self.call_mut(index)?.step {
            CallStep::PermittedInSegment => {
                self.call_mut(index)?.step = CallStep::StartedInSegment {
                    step_id: attempt.step_id,
                    attempt: attempt.running.attempt,
                    epoch: attempt.running.epoch,
                };
                self.mark_started(index)?;
                Ok(Reply::CallGranted)
            }
            CallStep::Final => Ok(Reply::CallIsFinal(id.clone())),
            // Started, undecided, or not to run inside a segment: a second start is never granted (G1).
            CallStep::StartedInSegment { .. }
            | CallStep::AwaitToolApproval(_)
            | CallStep::Execute(_) => Ok(Reply::CallNotPermitted),
        }
    }

    fn call_finished(
        &mut self,
        attempt: &AttemptKey,
        id: &ToolCallId,
        outcome: ToolOutcome,
    ) -> Result<Reply, ReduceError> {
        let started_here = |step: &CallStep| match step {
            CallStep::StartedInSegment {
                step_id,
                attempt: number,
                ..
            } => *step_id == attempt.step_id && *number == attempt.running.attempt,
            CallStep::AwaitToolApproval(_)
            | CallStep::Execute(_)
            | CallStep::PermittedInSegment
            | CallStep::Final => false,
        };
        match self.call_index(id) {
            Some(index) if started_here(&self.call_mut(index)?.step) => {
                self.end_call(index, outcome)?;
                Ok(Reply::Done)
            }
            Some(_) | None => Ok(Reply::Superseded),
        }
    }

    pub(super) fn segment_ended(
        &mut self,
        attempt: &AttemptKey,
        end: Result<RunModelOutcome, AttemptFailure>,
    ) -> Result<Reply, ReduceError> {
        if !self.is_running_segment(attempt) {
            return Ok(Reply::Superseded);
        }
        match end {
            Ok(RunModelOutcome::TurnCompleted { messages, usage }) => {
                self.end_segment(messages, usage)?;
                self.complete_turn()?;
            }
            Ok(RunModelOutcome::ToolCallsRequested {
                calls,
                messages,
                usage,
            }) => match self.check_calls(&calls) {
                Ok(()) => {
                    self.end_segment(messages, usage)?;
                    self.take_calls(calls)?;
                }
                Err(failure) => self.fail_attempt(attempt, failure)?,
            },
            Err(failure) => self.fail_attempt(attempt, failure)?,
        }
        Ok(Reply::Done)
    }

    /// The segment ended well: what it said becomes part of the conversation.
    fn end_segment(&mut self, messages: Vec<NewMessage>, usage: Usage) -> Result<(), Bug> {
        for index in 0..self.turn_mut()?.calls.len() {
            match self.call_mut(index)?.step {
                // I15: started inside the segment, and the CLI never said how it ended.
                CallStep::StartedInSegment { .. } => {
                    self.end_call(index, ToolOutcome::OutcomeUnknown)?
                }
                CallStep::PermittedInSegment => {
                    let error = format!("{NOT_RUN_PREFIX}: the segment ended without starting it");
                    self.end_abandoned_call(index, ToolOutcome::Failed { error })?;
                }
                CallStep::AwaitToolApproval(_) | CallStep::Execute(_) | CallStep::Final => {}
            }
            self.call_mut(index)?.delivered = true;
        }
        let turn = self.turn_mut()?;
        turn.segments += 1;
        turn.lost_attempts = 0;
        turn.usage = turn.usage.plus(usage);
        let turn_id = turn.turn_id;
        self.state.usage = self.state.usage.plus(usage);
        self.append(turn_id, messages)?;
        self.emit(Some(turn_id), EventKind::UsageReported { usage });
        Ok(())
    }

    fn take_calls(&mut self, calls: Vec<RequestedCall>) -> Result<(), Bug> {
        let turn = self.turn_mut()?;
        let (turn_id, segment) = (turn.turn_id, turn.segments);
        if segment >= SEGMENTS_MAX {
            let detail = format!("the turn asked for more than {SEGMENTS_MAX} segments");
            return self.fail_turn(AttemptFailure::new(FailureClass::TooManySegments, detail));
        }
        turn.phase = Phase::Calls;
        for call in calls {
            self.request_call(turn_id, segment, call)?;
        }
        if self.state_bytes()? > STATE_BYTES_WITH_NEW_CALLS_MAX {
            let detail = "the state has no room for the calls of the turn";
            return self.fail_turn(AttemptFailure::new(FailureClass::TooManyCalls, detail));
        }
        if self.turn_mut()?.waits_for_people_only() {
            self.emit(Some(turn_id), EventKind::TurnSuspended);
        }
        self.go_on_when_calls_are_over()
    }

    /// A reply whose calls cannot be recorded one by one is not acted on.
    fn check_calls(&self, calls: &[RequestedCall]) -> Result<(), AttemptFailure> {
        let broken = |detail: &str| Err(AttemptFailure::new(FailureClass::Runner, detail));
        if calls.is_empty() {
            return broken("a segment asked for calls and named none");
        }
        for (index, call) in calls.iter().enumerate() {
            let repeats = calls[..index]
                .iter()
                .any(|it| it.tool_call_id == call.tool_call_id);
            if repeats || self.call_index(&call.tool_call_id).is_some() {
                return broken("a tool call id was used twice in one turn");
            }
            if call.arguments.len() > ARGUMENTS_BYTES_MAX {
                return broken("a call's arguments are over 256 KiB");
            }
        }
        Ok(())
    }

    fn fail_attempt(&mut self, attempt: &AttemptKey, failure: AttemptFailure) -> Result<(), Bug> {
        self.settle_calls_started_in_segment()?;
        let now = self.now;
        let turn_id = self.turn_mut()?.turn_id;
        let execution = self.execution_mut(attempt.step_id)?;
        execution.failures += 1;
        let may_retry = failure.class.is_retryable() && execution.failures < RUN_MODEL_FAILURES_MAX;
        let asked = failure
            .retry_after_ms
            .map_or(Duration::ZERO, Duration::from_millis);
        execution.release(now, wait_after_failure(execution.failures).max(asked));
        let retry_at = may_retry.then_some(execution.not_before);
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
            Ok(())
        } else {
            self.fail_turn(failure)
        }
    }

    /// Calls that the ended attempt started and never reported: again, or never (G1).
    fn settle_calls_started_in_segment(&mut self) -> Result<(), Bug> {
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

    fn call_index(&self, id: &ToolCallId) -> Option<usize> {
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

    fn execution_mut(&mut self, step_id: StepId) -> Result<&mut StepExecution, Bug> {
        let turn = self.turn_mut()?;
        let own = match &mut turn.phase {
            Phase::RunModel(execution) => Some(execution),
            Phase::Calls => None,
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

    fn is_running_segment(&self, attempt: &AttemptKey) -> bool {
        match self.state.turn.as_ref().map(|it| &it.phase) {
            Some(Phase::RunModel(execution)) => execution.is_running(attempt),
            Some(Phase::Calls) | None => false,
        }
    }
}

/// The longest arguments of a gated call, in bytes (spec/core.md 31.17).
const ARGUMENTS_BYTES_MAX: usize = 256 * 1024;

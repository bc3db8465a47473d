//! What segments report, and what it means for the turn.

use std::time::Duration;

use super::active_turn::{CallStep, Phase};
use super::state::STATE_BYTES_WITH_NEW_CALLS_MAX;
use super::step::{AttemptKey, SEGMENTS_MAX};
use super::{Bug, ReduceError, Reduction, Reply};
use crate::event::EventKind;
use crate::failure::{AttemptFailure, FailureClass};
use crate::ids::{ToolCallId, TurnId};
use crate::record::{NOT_RUN_PREFIX, ToolOutcome};
use crate::turn::{NewMessage, RequestedCall, RunModelOutcome, SegmentEvent, Usage};

impl Reduction {
    pub(super) fn segment_event(
        &mut self,
        attempt: &AttemptKey,
        event: SegmentEvent,
    ) -> Result<Reply, ReduceError> {
        if !self.is_running_segment(attempt) {
            return Ok(Reply::Superseded);
        }
        let turn_id = self.turn()?.turn_id;
        let turn = self.turn()?;
        let is_to_stop = turn.ending.is_some() || turn.is_steered_now();
        if is_to_stop && !event.is_about_the_past() {
            return Ok(Reply::CallNotPermitted);
        }
        match event {
            SegmentEvent::Checkpoint(progress) => self.checkpoint(attempt, progress),
            SegmentEvent::ParkRequested(progress) => self.park_requested(attempt, progress),
            SegmentEvent::CallStanding { tool_call_id } => Ok(self.call_standing(&tool_call_id)),
            SegmentEvent::CallGivenUp { tool_call_id } => self.call_given_up(&tool_call_id),
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
        let turn = self.turn()?;
        let is_next = turn.is_next_in_order(index);
        match turn.calls[index].step {
            CallStep::PermittedInSegment if !is_next => Ok(Reply::CallIsOpen),
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
        if self.turn()?.ending.is_some() {
            let (partial, usage) =
                end.map_or_else(|_| (None, Usage::default()), RunModelOutcome::partial);
            self.segment_stopped(attempt, partial, usage)?;
            return Ok(Reply::Done);
        }
        if self.turn()?.is_steered_now() {
            self.segment_cut(attempt, end)?;
            return Ok(Reply::Done);
        }
        match end {
            Ok(RunModelOutcome::TurnCompleted { messages, usage }) => {
                if self.turn_mut()?.is_ready_or_started_in_segment() {
                    self.end_segment(messages, usage)?;
                    self.complete_turn()?;
                } else {
                    let detail = "the turn ended while a call of it was open";
                    let failure = AttemptFailure::new(FailureClass::CliContract, detail);
                    self.fail_attempt(attempt, failure)?;
                }
            }
            Ok(RunModelOutcome::Parked | RunModelOutcome::Cancelled { .. }) => {
                let detail = "a segment parked or was cancelled without being asked to";
                let failure = AttemptFailure::new(FailureClass::Runner, detail);
                self.fail_attempt(attempt, failure)?;
            }
            Ok(RunModelOutcome::ToolCallsRequested {
                calls,
                messages,
                usage,
            }) if calls.is_empty() => {
                let (_, _) = (messages, usage);
                let detail = "a segment asked for calls and named none";
                let failure = AttemptFailure::new(FailureClass::Runner, detail);
                self.fail_attempt(attempt, failure)?;
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

    /// The segment of a turn that is steered now has ended: what it said since the last checkpoint is
    /// void, even an answer, because the person has not seen it when they wrote. What must not be
    /// tried again ends the turn as ever.
    fn segment_cut(
        &mut self,
        attempt: &AttemptKey,
        end: Result<RunModelOutcome, AttemptFailure>,
    ) -> Result<(), Bug> {
        let usage = match end {
            Ok(outcome) => outcome.partial().1,
            Err(failure) if failure.class.is_retryable() => Usage::default(),
            Err(failure) => return self.fail_attempt(attempt, failure),
        };
        let turn_id = self.turn()?.turn_id;
        self.emit(
            Some(turn_id),
            EventKind::AttemptSuperseded {
                step_id: attempt.step_id,
                attempt: attempt.running.attempt,
            },
        );
        self.add_progress(Vec::new(), usage)?;
        self.leave_attempt(attempt.step_id, Duration::ZERO)
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
        self.add_progress(messages, usage)
    }

    /// Adds what a segment said and used.
    pub(super) fn add_progress(
        &mut self,
        messages: Vec<NewMessage>,
        usage: Usage,
    ) -> Result<(), Bug> {
        let turn = self.turn_mut()?;
        turn.usage = turn.usage.plus(usage);
        let turn_id = turn.turn_id;
        self.state.usage = self.state.usage.plus(usage);
        self.append(turn_id, messages)?;
        if usage != Usage::default() {
            self.emit(Some(turn_id), EventKind::UsageReported { usage });
        }
        Ok(())
    }

    fn take_calls(&mut self, calls: Vec<RequestedCall>) -> Result<(), Bug> {
        let turn = self.turn_mut()?;
        let (turn_id, segments) = (turn.turn_id, turn.segments);
        if segments >= SEGMENTS_MAX {
            return self.fail_turn(too_many_segments());
        }
        turn.phase = Phase::Calls;
        if !self.request_calls(turn_id, calls)? {
            return self.fail_turn(too_many_calls());
        }
        if self.turn_mut()?.waits_for_people() {
            self.emit(Some(turn_id), EventKind::TurnSuspended);
        }
        self.go_on_when_calls_are_over()
    }

    /// Adds the calls of one reply; false when the state has no room for them.
    pub(super) fn request_calls(
        &mut self,
        turn_id: TurnId,
        calls: Vec<RequestedCall>,
    ) -> Result<bool, Bug> {
        let reply = self.turn_mut()?.calls.last().map_or(0, |it| it.reply) + 1;
        for call in calls {
            self.request_call(turn_id, reply, call)?;
        }
        Ok(self.state_bytes()? <= STATE_BYTES_WITH_NEW_CALLS_MAX)
    }

    /// A reply whose calls cannot be recorded one by one is not acted on.
    pub(super) fn check_calls(&self, calls: &[RequestedCall]) -> Result<(), AttemptFailure> {
        let broken = |detail: &str| Err(AttemptFailure::new(FailureClass::Runner, detail));
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
}

/// The longest arguments of a gated call, in bytes (spec/core.md 31.17).
pub(super) const ARGUMENTS_BYTES_MAX: usize = 256 * 1024;

pub(super) fn too_many_segments() -> AttemptFailure {
    let detail = format!("the turn asked for more than {SEGMENTS_MAX} segments");
    AttemptFailure::new(FailureClass::TooManySegments, detail)
}

pub(super) fn too_many_calls() -> AttemptFailure {
    let detail = "the state has no room for the calls of the turn";
    AttemptFailure::new(FailureClass::TooManyCalls, detail)
}

//! What a running segment tells before its end: checkpoints, questions about its calls, parking.

use super::active_turn::{CallStep, CarriedApproval, Phase};
use super::segment_report::{too_many_calls, too_many_segments};
use super::step::{AttemptKey, SEGMENTS_MAX};
use super::{Bug, ReduceError, Reduction, Reply};
use crate::event::EventKind;
use crate::ids::ToolCallId;
use crate::record::{CallRecord, MessageRole, SkipReason, ToolOutcome};
use crate::turn::SegmentProgress;

impl Reduction {
    pub(super) fn checkpoint(
        &mut self,
        attempt: &AttemptKey,
        progress: SegmentProgress,
    ) -> Result<Reply, ReduceError> {
        if let Err(failure) = self.check_calls(&progress.calls) {
            self.fail_attempt(attempt, failure)?;
            return Ok(Reply::Superseded);
        }
        if !self.keep_progress(attempt, progress)? {
            self.settle_calls_started_in_segment()?;
            self.fail_turn(too_many_calls())?;
            return Ok(Reply::Superseded);
        }
        Ok(Reply::Done)
    }

    /// Nobody has decided yet: the process is not worth its memory any more. A decision that was
    /// committed before keeps it, because its call runs now or may start (design.md 4).
    pub(super) fn park_requested(
        &mut self,
        attempt: &AttemptKey,
        progress: SegmentProgress,
    ) -> Result<Reply, ReduceError> {
        match self.checkpoint(attempt, progress)? {
            Reply::Done if self.turn_mut()?.waits_for_people() => {
                self.turn_mut()?.segments += 1;
                self.park()?;
                Ok(Reply::Parked)
            }
            reply => Ok(reply),
        }
    }

    /// Adds what the segment said; false when the state has no room for its calls.
    fn keep_progress(
        &mut self,
        attempt: &AttemptKey,
        progress: SegmentProgress,
    ) -> Result<bool, Bug> {
        let SegmentProgress {
            messages,
            ended,
            calls,
            usage,
        } = progress;
        let turn_id = self.turn_mut()?.turn_id;
        for (tool_call_id, status) in ended {
            // A gated call is told by its record alone, once.
            if self.call_index(&tool_call_id).is_none() {
                self.emit(
                    Some(turn_id),
                    EventKind::ToolCallFinished {
                        tool_call_id,
                        status,
                    },
                );
            }
        }
        let answered = messages
            .iter()
            .filter(|it| it.role == MessageRole::Tool)
            .filter_map(|it| self.call_index(it.tool_call_id.as_ref()?));
        for index in answered.collect::<Vec<_>>() {
            self.call_mut(index)?.delivered = true;
        }
        if messages.iter().any(|it| it.role == MessageRole::Assistant) {
            // G7: a complete reply is progress; neither losses nor failures before it count any more.
            self.turn_mut()?.lost_attempts = 0;
            self.execution_mut(attempt.step_id)?.failures = 0;
        }
        self.add_progress(messages, usage)?;
        if calls.is_empty() {
            return Ok(true);
        }
        self.request_calls(turn_id, calls)
    }

    /// The turn waits for its calls without a process.
    pub(super) fn park(&mut self) -> Result<(), Bug> {
        let turn = self.turn_mut()?;
        turn.phase = Phase::Calls;
        let turn_id = turn.turn_id;
        if turn.segments >= SEGMENTS_MAX {
            return self.fail_turn(too_many_segments());
        }
        if self.turn_mut()?.waits_for_people() {
            self.emit(Some(turn_id), EventKind::TurnSuspended);
        }
        self.go_on_when_calls_are_over()
    }

    /// Tells how a call stands, and changes nothing.
    pub(super) fn call_standing(&self, id: &ToolCallId) -> Reply {
        let Some(turn) = &self.state.turn else {
            return Reply::Superseded;
        };
        let Some(index) = self.call_index(id) else {
            return Reply::Superseded;
        };
        match turn.calls[index].step {
            CallStep::Final => Reply::CallIsFinal(id.clone()),
            CallStep::PermittedInSegment if turn.is_next_in_order(index) => {
                let changed_in = turn.calls[index].record.changed_arguments_key();
                Reply::CallIsPermitted { changed_in }
            }
            CallStep::PermittedInSegment
            | CallStep::AwaitToolApproval(_)
            | CallStep::Execute(_)
            | CallStep::StartedInSegment { .. } => Reply::CallIsOpen,
        }
    }

    /// The CLI gave up the reply with this call. What was not started never runs; what runs in its
    /// own Step comes to its end, and the note or the next person tells of it.
    pub(super) fn call_given_up(&mut self, id: &ToolCallId) -> Result<Reply, ReduceError> {
        let Some(index) = self.call_index(id) else {
            return Ok(Reply::Superseded);
        };
        let call = self.call_mut(index)?;
        let is_idle = match &call.step {
            CallStep::AwaitToolApproval(_) | CallStep::PermittedInSegment => true,
            CallStep::Execute(execution) => execution.running.is_none(),
            CallStep::StartedInSegment { .. } | CallStep::Final => false,
        };
        if is_idle {
            let reason = SkipReason::GivenUp;
            self.end_abandoned_call(index, ToolOutcome::Skipped { reason })?;
        }
        Ok(Reply::Done)
    }

    /// A CLI that starts anew can be made to run one waiting tool of its own by itself
    /// (spec/cli-protocol.md 17c). Further ones are to be called again by the model; what a person
    /// approved holds for that, once.
    pub(super) fn keep_one_call_for_segment(&mut self) -> Result<(), Bug> {
        let mut kept = false;
        for index in 0..self.turn_mut()?.calls.len() {
            let call = self.call_mut(index)?;
            if !call.is_for_next_segment() {
                continue;
            }
            if !kept {
                kept = true;
                continue;
            }
            let record = &call.record;
            let asked = record.asked_digest.as_ref().unwrap_or(&record.digest);
            let carried = record.decider.clone().map(|decider| CarriedApproval {
                tool_name: record.tool_name.clone(),
                digest: asked.clone(),
                changed_in: record.asked_digest.is_some().then(|| call.interrupt_id()),
                decider,
            });
            self.turn_mut()?.carried.extend(carried);
            let reason = SkipReason::CallAgain;
            self.end_abandoned_call(index, ToolOutcome::Skipped { reason })?;
        }
        Ok(())
    }

    /// Takes the approval that a call like this one was given under an id that could not run, with
    /// the input that the person wanted.
    pub(super) fn take_carried_approval(&mut self, record: &mut CallRecord) -> Result<(), Bug> {
        let turn = self.turn_mut()?;
        let place = (turn.carried.iter())
            .position(|it| it.tool_name == record.tool_name && it.digest == record.digest);
        let Some(carried) = place.map(|it| turn.carried.remove(it)) else {
            return Ok(());
        };
        if let Some(earlier) = carried.changed_in {
            let earlier = (turn.calls.iter())
                .find(|it| it.interrupt_id() == earlier)
                .ok_or(Bug {
                    invariant: "a carried approval is of a call of the turn",
                })?;
            record.carry_change(&earlier.record);
        }
        record.decider = Some(carried.decider);
        Ok(())
    }
}

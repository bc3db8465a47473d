//! Gated calls: from the request to exactly one end.

use std::time::Duration;

use super::active_turn::{CallState, CallStep, Phase};
use super::step::{AfterLoss, AttemptKey, StepExecution, after_loss, wait_after_failure};
use super::{Bug, ReduceError, Reduction, Reply};
use crate::commit::RowKind;
use crate::event::{EventKind, StepKind};
use crate::ids::TurnId;
use crate::policy::ToolEffect;
use crate::record::{CallRecord, CallStatus, NOT_RUN_PREFIX, SkipReason, ToolOutcome};
use crate::turn::{CallPlace, RequestedCall, ToolCallEnd};

/// The longest output that is kept, in bytes; the rest is cut with a marker (spec/core.md 31.17).
pub(super) const OUTPUT_BYTES_MAX: usize = 256 * 1024;

const CUT_MARKER: &str = "\n[cut: the output was longer]";

impl Reduction {
    /// Adds a call that the model asked for: its record, its arguments and, where a person has to
    /// decide, its interrupt.
    pub(super) fn request_call(
        &mut self,
        turn_id: TurnId,
        reply: u32,
        call: RequestedCall,
    ) -> Result<(), Bug> {
        let mut record = CallRecord::requested(&self.state.session_id, turn_id, &call, self.now);
        let step_id = self.next_step_id();
        record.step_id = Some(step_id);
        if call.policy.requires_approval() {
            self.take_carried_approval(&mut record)?;
        }
        let waits = call.policy.requires_approval() && record.decider.is_none();
        let step = if waits {
            let deadline = call.policy.approval_deadline;
            record.expires_at = deadline.map(|it| self.now.after(it));
            CallStep::AwaitToolApproval(step_id)
        } else {
            record.status = CallStatus::Decided;
            match call.place {
                CallPlace::Step => CallStep::Execute(StepExecution::new(step_id)),
                CallPlace::Segment => CallStep::PermittedInSegment,
            }
        };
        let state = CallState {
            record,
            reply,
            step,
            delivered: false,
        };
        let interrupt_id = state.interrupt_id();
        self.put_row(
            RowKind::Arguments,
            interrupt_id.as_str(),
            call.arguments.into_bytes(),
        );
        if let Some(shown) = call.shown_arguments {
            let key = interrupt_id.as_str();
            self.put_row(RowKind::ShownArguments, key, shown.into_bytes());
        }
        let expires_at = state.record.expires_at;
        let kind = if waits {
            StepKind::AwaitToolApproval
        } else {
            call_step_kind(&state)
        };
        if waits || call.place == CallPlace::Step {
            let tool_call_id = Some(call.tool_call_id.clone());
            self.emit(
                Some(turn_id),
                EventKind::StepStarted {
                    step_id,
                    step: kind,
                    tool_call_id,
                },
            );
        }
        if waits {
            self.emit(
                Some(turn_id),
                EventKind::InterruptRequested {
                    interrupt_id,
                    tool_call_id: call.tool_call_id,
                    tool_name: call.tool_name,
                    effect: call.policy.effect,
                    expires_at,
                },
            );
        }
        self.turn_mut()?.calls.push(state);
        let index = self.turn_mut()?.calls.len() - 1;
        self.put_record(index)
    }

    /// A call that was approved gets the Step that runs it.
    pub(super) fn permit_call(&mut self, index: usize) -> Result<(), Bug> {
        let step_id = self.next_step_id();
        let call = self.call_mut(index)?;
        call.record.status = CallStatus::Decided;
        match call.record.place {
            CallPlace::Segment => call.step = CallStep::PermittedInSegment,
            CallPlace::Step => {
                call.record.step_id = Some(step_id);
                call.step = CallStep::Execute(StepExecution::new(step_id));
                let (turn_id, step) = (call.record.turn_id, call_step_kind(call));
                let tool_call_id = Some(call.record.tool_call_id.clone());
                self.emit(
                    Some(turn_id),
                    EventKind::StepStarted {
                        step_id,
                        step,
                        tool_call_id,
                    },
                );
            }
        }
        self.put_record(index)?;
        self.go_on_when_calls_are_over()
    }

    /// Sets the start mark of a call (G1): after the commit it counts as started, whatever happens.
    pub(super) fn mark_started(&mut self, index: usize) -> Result<(), Bug> {
        let now = self.now;
        let call = self.call_mut(index)?;
        call.record.status = CallStatus::Started;
        call.record.starts += 1;
        call.record.started_at = Some(now);
        let is_first = call.record.starts == 1;
        let (turn_id, tool_call_id, tool_name) = (
            call.record.turn_id,
            call.record.tool_call_id.clone(),
            call.record.tool_name.clone(),
        );
        if is_first {
            self.emit(
                Some(turn_id),
                EventKind::ToolCallStarted {
                    tool_call_id,
                    tool_name,
                },
            );
        }
        self.put_record(index)
    }

    /// Ends a call for good: its record, its output, its one event, and what follows for the calls
    /// after it. A record that has ended is never touched again (N34).
    pub(super) fn end_call(&mut self, index: usize, outcome: ToolOutcome) -> Result<(), Bug> {
        let now = self.now;
        let call = self.call_mut(index)?;
        let outcome = cut_outcome(with_change(&call.record, outcome));
        if call.record.status.is_final() {
            return Err(Bug {
                invariant: "a final record never changes",
            });
        }
        call.record.status = outcome.status();
        call.record.finished_at = Some(now);
        call.step = CallStep::Final;
        let key = call.interrupt_id().as_str().to_owned();
        let (turn_id, tool_call_id) = (call.record.turn_id, call.record.tool_call_id.clone());
        let status = call.record.status;
        let bytes = outcome.write().map_err(|_| Bug {
            invariant: "an outcome is JSON",
        })?;
        self.put_row(RowKind::Output, key, bytes);
        self.put_record(index)?;
        self.emit(
            Some(turn_id),
            EventKind::ToolCallFinished {
                tool_call_id,
                status,
            },
        );
        // Only progress of the turn counts against a poisonous one (G7).
        self.turn_mut()?.lost_attempts = 0;
        self.skip_later_calls(index, status)
    }

    /// Later calls of the same reply are passed over when a write before them failed or is unknown;
    /// approval-free writes also when it was rejected (design.md 4).
    fn skip_later_calls(&mut self, index: usize, status: CallStatus) -> Result<(), Bug> {
        let call = self.call_mut(index)?;
        if call.record.policy.effect == ToolEffect::Read {
            return Ok(());
        }
        let reply = call.reply;
        let skips_approved = match status {
            CallStatus::Failed | CallStatus::OutcomeUnknown | CallStatus::Unrecognized => true,
            CallStatus::Rejected => false,
            CallStatus::Succeeded
            | CallStatus::Skipped
            | CallStatus::Requested
            | CallStatus::Decided
            | CallStatus::Started => return Ok(()),
        };
        for later in index + 1..self.turn_mut()?.calls.len() {
            let call = self.call_mut(later)?;
            let is_write = call.record.policy.effect != ToolEffect::Read;
            let needs_person = call.record.policy.requires_approval();
            let is_open = matches!(
                call.record.status,
                CallStatus::Requested | CallStatus::Decided
            );
            if call.reply == reply && is_open && is_write && (skips_approved || !needs_person) {
                self.end_call(
                    later,
                    ToolOutcome::Skipped {
                        reason: SkipReason::EarlierWrite,
                    },
                )?;
            }
        }
        Ok(())
    }

    /// Starts the next segment when no call needs a person or a Step of its own any more.
    pub(super) fn go_on_when_calls_are_over(&mut self) -> Result<(), Bug> {
        let turn = self.turn()?;
        if !turn.is_ready_for_segment() || !matches!(turn.phase, Phase::Calls) {
            return Ok(());
        }
        if turn.ending.is_some() {
            return self.end_ending_turn();
        }
        if turn.is_steered_now() {
            self.turn_mut()?.phase = Phase::Steering;
            return Ok(());
        }
        self.keep_one_call_for_segment()?;
        let turn_id = self.turn_mut()?.turn_id;
        let step_id = self.next_step_id();
        self.emit(
            Some(turn_id),
            EventKind::StepStarted {
                step_id,
                step: StepKind::ResumeTurn,
                tool_call_id: None,
            },
        );
        self.emit(Some(turn_id), EventKind::TurnResumed);
        let next = self.new_run_model_step(turn_id);
        self.turn_mut()?.phase = Phase::RunModel(next);
        Ok(())
    }

    pub(super) fn tool_ended(
        &mut self,
        attempt: &AttemptKey,
        end: ToolCallEnd,
    ) -> Result<Reply, ReduceError> {
        let Some(index) = self.running_call(attempt) else {
            return Ok(Reply::Superseded);
        };
        match end {
            ToolCallEnd::Succeeded { output } => {
                self.end_call(index, ToolOutcome::Succeeded { output })?
            }
            ToolCallEnd::Failed { error } => self.end_call(index, ToolOutcome::Failed { error })?,
            ToolCallEnd::NotRun { error } => {
                let earlier = self.call_mut(index)?.record.starts.saturating_sub(1);
                let effect = self.call_mut(index)?.record.policy.effect;
                let error = format!("{NOT_RUN_PREFIX}: {error}");
                let not_run = ToolOutcome::Failed { error };
                self.end_call(index, outcome_after_starts(effect, earlier, not_run))?;
            }
            ToolCallEnd::Unknown { .. } => {
                let failures = match &mut self.call_mut(index)?.step {
                    CallStep::Execute(execution) => {
                        execution.failures += 1;
                        execution.failures
                    }
                    CallStep::AwaitToolApproval(_)
                    | CallStep::PermittedInSegment
                    | CallStep::StartedInSegment { .. }
                    | CallStep::Final => {
                        return Err(Bug {
                            invariant: "a running call has a Step",
                        }
                        .into());
                    }
                };
                self.settle_start_without_end(index, wait_after_failure(failures))?;
            }
        }
        self.go_on_when_calls_are_over()?;
        Ok(Reply::Done)
    }

    /// Ends a call that will not be started any more. Only one that never was is said not to have
    /// run (G1).
    pub(super) fn end_abandoned_call(
        &mut self,
        index: usize,
        not_run: ToolOutcome,
    ) -> Result<(), Bug> {
        let record = &self.call_mut(index)?.record;
        let outcome = outcome_after_starts(record.policy.effect, record.starts, not_run);
        self.end_call(index, outcome)
    }

    /// Settles a start whose end is not known: again, or never (G1, G2).
    pub(super) fn settle_start_without_end(
        &mut self,
        index: usize,
        wait: Duration,
    ) -> Result<(), Bug> {
        let now = self.now;
        if self.turn_mut()?.ending.is_some() {
            let reason = SkipReason::TurnEnded;
            return self.end_abandoned_call(index, ToolOutcome::Skipped { reason });
        }
        let call = self.call_mut(index)?;
        match after_loss(call.record.policy.effect, call.record.starts) {
            AfterLoss::OutcomeUnknown => self.end_call(index, ToolOutcome::OutcomeUnknown),
            AfterLoss::Failed => self.end_call(index, failed_each_time()),
            AfterLoss::StartAgain => {
                match &mut call.step {
                    CallStep::Execute(execution) => execution.release(now, wait),
                    CallStep::StartedInSegment { .. } => call.step = CallStep::PermittedInSegment,
                    CallStep::AwaitToolApproval(_)
                    | CallStep::PermittedInSegment
                    | CallStep::Final => {
                        return Err(Bug {
                            invariant: "only a started call loses its start",
                        });
                    }
                }
                Ok(())
            }
        }
    }

    /// Finds the call whose own Step runs exactly this attempt.
    fn running_call(&self, attempt: &AttemptKey) -> Option<usize> {
        let calls = &self.state.turn.as_ref()?.calls;
        calls.iter().position(
            |it| matches!(&it.step, CallStep::Execute(execution) if execution.is_running(attempt)),
        )
    }
}

const fn call_step_kind(call: &CallState) -> StepKind {
    if call.record.policy.effect.is_single_attempt() {
        StepKind::CallSingleAttemptTool
    } else {
        StepKind::CallTool
    }
}

/// What became of a call that was started this often without a known end and is not started again.
fn outcome_after_starts(effect: ToolEffect, starts: u32, not_run: ToolOutcome) -> ToolOutcome {
    match effect {
        _ if starts == 0 => not_run,
        ToolEffect::Read => failed_each_time(),
        ToolEffect::IdempotentWrite | ToolEffect::NonIdempotentWrite | ToolEffect::Unclassified => {
            ToolOutcome::OutcomeUnknown
        }
    }
}

fn failed_each_time() -> ToolOutcome {
    ToolOutcome::Failed {
        error: "the call failed each time it was tried".to_owned(),
    }
}

/// The model is told when a call ran with another input than its own.
fn with_change(record: &CallRecord, outcome: ToolOutcome) -> ToolOutcome {
    let Some(note) = record.change_note() else {
        return outcome;
    };
    let told = |text: String| format!("{note}\n{text}");
    match outcome {
        ToolOutcome::Succeeded { output } => ToolOutcome::Succeeded {
            output: told(output),
        },
        ToolOutcome::Failed { error } => ToolOutcome::Failed { error: told(error) },
        ToolOutcome::Rejected { .. }
        | ToolOutcome::Expired
        | ToolOutcome::Skipped { .. }
        | ToolOutcome::OutcomeUnknown => outcome,
    }
}

/// Cuts an output at the limit, at a character, and says so.
fn cut_outcome(outcome: ToolOutcome) -> ToolOutcome {
    match outcome {
        ToolOutcome::Succeeded { output } => ToolOutcome::Succeeded {
            output: cut(output),
        },
        ToolOutcome::Failed { error } => ToolOutcome::Failed { error: cut(error) },
        ToolOutcome::Rejected { .. }
        | ToolOutcome::Expired
        | ToolOutcome::Skipped { .. }
        | ToolOutcome::OutcomeUnknown => outcome,
    }
}

fn cut(mut text: String) -> String {
    if text.len() > OUTPUT_BYTES_MAX {
        let room = OUTPUT_BYTES_MAX - CUT_MARKER.len();
        let end = (0..=room)
            .rev()
            .find(|it| text.is_char_boundary(*it))
            .unwrap_or(0);
        text.truncate(end);
        text.push_str(CUT_MARKER);
    }
    text
}

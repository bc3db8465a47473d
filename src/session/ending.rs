//! How a turn ends without an answer: it failed, or somebody cancelled it.
//!
//! The conversation goes back to the end of the last completed turn and this turn's prompt (L11), and
//! a note tells the model what ran (L10). Whatever still runs comes to its end first, so that the note
//! is true.

use super::active_turn::{CallStep, Cancellation, Phase, TurnEnding};
use super::interrupt::check_length;
use super::note;
use super::state::{STATE_BYTES_WITH_WORDS_MAX, TurnFailure};
use super::step::AttemptKey;
use super::{Bug, ReduceError, Reduction, Refusal, Reply};
use crate::event::EventKind;
use crate::failure::AttemptFailure;
use crate::ids::TurnId;
use crate::record::{FrameworkItem, MessageRole, SkipReason, ToolOutcome};
use crate::turn::{NewMessage, Usage};

/// How much of an answer that was cut off is kept, in bytes: its beginning.
pub const PARTIAL_ANSWER_BYTES_MAX: usize = 32 * 1024;

/// What still runs for a turn that ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waits {
    /// Its calls come to their end; its segment is over or is not waited for.
    ForCalls,
    /// Its segment stops first, and says what became of the calls inside it.
    ForSegment,
}

impl Reduction {
    /// Ends the active turn at a client's wish (spec/core.md 7).
    pub(super) fn cancel_turn(
        &mut self,
        turn_id: Option<TurnId>,
        reason: Option<String>,
    ) -> Result<Reply, ReduceError> {
        check_length("the reason", reason.as_deref())?;
        let active = self.state.turn.as_ref().map(|it| it.turn_id);
        let Some(active) = active.filter(|it| turn_id.is_none_or(|asked| asked == *it)) else {
            return Err(Refusal::TurnNotActive { active }.into());
        };
        if self.turn()?.is_cancelled() {
            return Ok(Reply::TurnCancelled {
                turn_id: active,
                duplicate: true,
            });
        }
        let reason = reason.filter(|it| !it.is_empty());
        let has_words = reason.is_some();
        self.begin_cancelling(reason)?;
        if has_words && self.state_bytes()? > STATE_BYTES_WITH_WORDS_MAX {
            return Err(Refusal::SessionFull.into());
        }
        Ok(Reply::TurnCancelled {
            turn_id: active,
            duplicate: false,
        })
    }

    pub(super) fn begin_cancelling(&mut self, reason: Option<String>) -> Result<(), Bug> {
        let cancellation = Cancellation {
            cancelled_at: self.now,
            reason,
            partial: None,
        };
        let turn_id = self.turn()?.turn_id;
        self.emit(Some(turn_id), EventKind::TurnCancelRequested);
        let waits = match &self.turn()?.phase {
            Phase::RunModel(execution) if execution.running.is_some() => Waits::ForSegment,
            Phase::RunModel(_) | Phase::Calls | Phase::Steering => Waits::ForCalls,
        };
        self.end_turn(TurnEnding::Cancelled(cancellation), waits)
    }

    /// The segment of a cancelled turn has stopped, in whatever way.
    pub(super) fn segment_stopped(
        &mut self,
        attempt: &AttemptKey,
        partial: Option<String>,
        usage: Usage,
    ) -> Result<(), Bug> {
        let turn_id = self.turn()?.turn_id;
        self.emit(
            Some(turn_id),
            EventKind::AttemptSuperseded {
                step_id: attempt.step_id,
                attempt: attempt.running.attempt,
            },
        );
        if let Some(TurnEnding::Cancelled(cancellation)) = &mut self.turn_mut()?.ending {
            cancellation.partial = partial.filter(|it| !it.is_empty()).map(cut);
        }
        // A report is never refused for its size.
        if self.state_bytes()? > STATE_BYTES_WITH_WORDS_MAX
            && let Some(TurnEnding::Cancelled(cancellation)) = &mut self.turn_mut()?.ending
        {
            cancellation.partial = None;
        }
        self.add_progress(Vec::new(), usage)?;
        self.settle_calls_started_in_segment()?;
        self.end_ending_turn()
    }

    /// Goes on ending a turn whose segment is gone.
    pub(super) fn end_ending_turn(&mut self) -> Result<(), Bug> {
        match self.turn_mut()?.ending.take() {
            Some(ending) => self.end_turn(ending, Waits::ForCalls),
            None => Err(Bug {
                invariant: "the turn is about to end",
            }),
        }
    }

    /// The turn is over without an answer. A cancellation that came before stays what it ended of.
    pub(super) fn fail_turn(&mut self, failure: AttemptFailure) -> Result<(), Bug> {
        let ending = match self.turn_mut()?.ending.take() {
            Some(ending @ TurnEnding::Cancelled(_)) => ending,
            Some(TurnEnding::Failed(_)) | None => TurnEnding::Failed(failure),
        };
        self.end_turn(ending, Waits::ForCalls)
    }

    fn end_turn(&mut self, ending: TurnEnding, waits: Waits) -> Result<(), Bug> {
        let mut runs = waits == Waits::ForSegment;
        // Before its calls end: what is skipped because of an ending is not started again.
        self.turn_mut()?.ending = Some(ending.clone());
        for index in 0..self.turn_mut()?.calls.len() {
            match &self.call_mut(index)?.step {
                CallStep::Final => {}
                CallStep::Execute(execution) if execution.running.is_some() => runs = true,
                CallStep::StartedInSegment { .. } if waits == Waits::ForSegment => {}
                CallStep::StartedInSegment { .. }
                | CallStep::AwaitToolApproval(_)
                | CallStep::Execute(_)
                | CallStep::PermittedInSegment => {
                    let reason = SkipReason::TurnEnded;
                    self.end_abandoned_call(index, ToolOutcome::Skipped { reason })?;
                }
            }
        }
        if runs {
            if waits == Waits::ForCalls {
                self.turn_mut()?.phase = Phase::Calls;
            }
            return Ok(());
        }
        self.give_back_steered()?;
        let turn = self.turn_mut()?;
        let (turn_id, base_head) = (turn.turn_id, turn.base_head);
        let text = note::turn_ended(&ending, &turn.calls);
        self.state.head = base_head;
        if let TurnEnding::Cancelled(Cancellation {
            partial: Some(partial),
            ..
        }) = &ending
        {
            self.append_partial(turn_id, partial.clone())?;
        }
        self.append_text(turn_id, MessageRole::Note, text)?;
        self.state.turn = None;
        match ending {
            TurnEnding::Cancelled(_) => self.emit(Some(turn_id), EventKind::TurnCancelled),
            TurnEnding::Failed(failure) => {
                let class = failure.class;
                self.emit(Some(turn_id), EventKind::TurnFailed { class });
                self.state.last_failure = Some(TurnFailure {
                    turn_id,
                    failure,
                    at: self.now,
                });
            }
        }
        Ok(())
    }

    /// What people saw of an answer that was cut off. The model gets it with the note alone.
    fn append_partial(&mut self, turn_id: TurnId, text: String) -> Result<(), Bug> {
        let item = FrameworkItem::partial_answer(&text).map_err(|_| Bug {
            invariant: "a text is JSON",
        })?;
        let message = NewMessage {
            role: MessageRole::Partial,
            text,
            tool_call_id: None,
            item,
        };
        self.append(turn_id, vec![message])
    }
}

fn cut(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(PARTIAL_ANSWER_BYTES_MAX));
    text
}

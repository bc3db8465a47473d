//! How a session ends, what time alone does to it, and its settings.

use super::state::Lifetime;
use super::{Bug, ReduceError, Reduction, Refusal, Reply};
use crate::commit::RowKind;
use crate::event::{EndReason, EventKind};
use crate::record::ToolOutcome;
use crate::settings::SessionSettings;

/// The longest settings of a session as they are stored, in bytes of JSON.
pub const SETTINGS_BYTES_MAX: usize = 16 * 1024;

/// What closing does to a turn that is active, and to messages that wait (P19).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_enums,
    reason = "clients write it, and there are no other ways to close"
)]
pub enum CloseMode {
    /// The turn is cancelled, and the messages are reported undelivered.
    Cancel,
    /// Nothing is closed while a turn is active or a message waits.
    Reject,
    /// The turn and the messages are answered first.
    Drain,
}

impl Reduction {
    pub(super) fn close_session(&mut self, mode: CloseMode) -> Result<Reply, ReduceError> {
        let is_busy = self.state.turn.is_some() || !self.state.queue.is_empty();
        let is_stopping = !self.state.lifetime.is_open()
            && self.state.queue.is_empty()
            && (self.state.turn.as_ref())
                .is_some_and(|it| it.is_cancelled() && it.steered.is_empty());
        let duplicate = match (self.state.lifetime, mode) {
            (Lifetime::Ended { .. }, _) | (Lifetime::Closing(_), CloseMode::Drain) => true,
            (Lifetime::Open | Lifetime::Closing(_), CloseMode::Reject) if is_busy => {
                return Err(Refusal::SessionBusy.into());
            }
            (Lifetime::Open | Lifetime::Closing(_), CloseMode::Cancel) => {
                if !is_stopping {
                    self.stop_everything(EndReason::Closed)?;
                }
                is_stopping
            }
            (Lifetime::Open, CloseMode::Drain | CloseMode::Reject)
            | (Lifetime::Closing(_), CloseMode::Reject) => {
                self.begin_closing(EndReason::Closed);
                false
            }
        };
        Ok(Reply::SessionClosing { duplicate })
    }

    /// Does what is due by time alone: decisions that came too late, and the end of the session.
    pub(super) fn let_time_pass(&mut self) -> Result<Reply, ReduceError> {
        let now = self.now;
        let calls = self.state.turn.as_ref().map_or(0, |it| it.calls.len());
        for index in 0..calls {
            let call = &self.turn()?.calls[index];
            if call.expires_at().is_some_and(|at| at <= now) {
                let (turn_id, interrupt_id) = (call.record.turn_id, call.interrupt_id());
                self.emit(Some(turn_id), EventKind::InterruptExpired { interrupt_id });
                self.end_call(index, ToolOutcome::Expired)?;
            }
        }
        if calls > 0 {
            self.go_on_when_calls_are_over()?;
        }
        if self.state.goes_on() && self.state.ends_at.is_some_and(|at| at <= now) {
            self.stop_everything(EndReason::TimedOut)?;
        }
        Ok(Reply::Done)
    }

    pub(super) fn update_settings(
        &mut self,
        expected_revision: u64,
        values: SessionSettings,
    ) -> Result<Reply, ReduceError> {
        self.check_open()?;
        let settings = &self.state.settings;
        if settings.revision != expected_revision {
            let revision = settings.revision;
            return Err(Refusal::SettingsChanged { revision }.into());
        }
        if values.stored_bytes() > SETTINGS_BYTES_MAX {
            return Err(Refusal::FieldTooLong {
                field: "the settings",
                bytes_max: SETTINGS_BYTES_MAX,
            }
            .into());
        }
        let revision = expected_revision + 1;
        self.state.settings.revision = revision;
        self.state.settings.values = values;
        self.emit(None, EventKind::SettingsChanged { revision });
        Ok(Reply::SettingsUpdated { revision })
    }

    pub(super) fn begin_closing(&mut self, reason: EndReason) {
        if self.state.lifetime.is_open() {
            self.emit(None, EventKind::SessionClosing { reason });
            self.state.lifetime = Lifetime::Closing(reason);
        }
    }

    /// Nothing new starts: the turn is cancelled, and nobody takes up the messages that wait.
    fn stop_everything(&mut self, reason: EndReason) -> Result<(), Bug> {
        self.begin_closing(reason);
        match &self.state.turn {
            Some(turn) if !turn.is_cancelled() => self.begin_cancelling(None)?,
            Some(_) | None => {}
        }
        if self.state.turn.is_some() {
            self.give_back_steered()?;
        }
        self.drop_queue();
        Ok(())
    }

    /// G6: nobody will take up these messages, and their authors are told.
    fn drop_queue(&mut self) {
        for message in std::mem::take(&mut self.state.queue) {
            let message_id = message.message_id;
            self.delete_row(RowKind::Message, message_id.to_string());
            self.emit(None, EventKind::MessageUndelivered { message_id });
        }
    }

    /// Called at the end of each reduction: in a full session no further turn begins, whatever was to
    /// be answered before its end.
    pub(super) fn drop_queue_of_full_session(&mut self) {
        if self.state.size.is_some_and(|it| it.is_full()) {
            self.drop_queue();
        }
    }

    /// Called at the end of each reduction: a session that is closing and has nothing left is over.
    pub(super) fn end_closed_session(&mut self) {
        let Lifetime::Closing(reason) = self.state.lifetime else {
            return;
        };
        if self.state.turn.is_none() && self.state.queue.is_empty() {
            self.emit(None, EventKind::SessionEnded { reason });
            let at = self.now;
            self.state.lifetime = Lifetime::Ended { reason, at };
        }
    }
}

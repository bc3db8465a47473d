//! How much is stored of a session, and what follows when it is too much (spec/core.md 22).
//!
//! Nobody counts exactly what a commit adds, because it is packed on its way. What was written since
//! the store was last asked is counted before packing, which is more; only when that may have reached
//! the next step does the owner ask the store, and the answer is what counts.

use serde::{Deserialize, Serialize};

use super::state::SessionState;
use super::{ReduceError, Reduction, Reply};
use crate::event::{DiagnosticCode, EndReason, EventKind};
use crate::failure::{AttemptFailure, FailureClass};

/// The shares of the limit, in percent, at which something follows, and what is told of it. At 100 the
/// session ends with its turn; at the last one its turn fails.
const STEPS: [(u8, Option<DiagnosticCode>); 5] = [
    (50, Some(DiagnosticCode::SessionBytes50)),
    (80, Some(DiagnosticCode::SessionBytes80)),
    (95, Some(DiagnosticCode::SessionBytes95)),
    (FULL, None),
    (OVERFULL, None),
];

/// No further turn begins.
const FULL: u8 = 100;

/// The turn that runs may take this much to come to its end; the records of what it started are
/// written whatever it takes.
const OVERFULL: u8 = 125;

/// The store is not asked again before this share of the limit was written.
const MEASURED_EVERY: u64 = 256;

/// How much is stored of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StoredSize {
    /// What was stored when the store was last asked, in bytes.
    pub measured: u64,
    /// What was written since, in bytes before it was packed: about as much as it takes, or more.
    pub written: u64,
    /// The limit at that time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_max: Option<u64>,
    /// The largest share of the limit that was reached, in percent.
    pub reached: u8,
}

impl StoredSize {
    /// Returns about how much is stored, in bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.measured.saturating_add(self.written)
    }

    /// True when no further turn begins.
    pub(super) const fn is_full(&self) -> bool {
        self.reached >= FULL
    }

    fn may_have_reached_a_step(&self, bytes_max: u64) -> bool {
        let is_worth_it =
            self.written >= bytes_max / MEASURED_EVERY || self.bytes_max != Some(bytes_max);
        let next = STEPS.iter().find(|(percent, _)| *percent > self.reached);
        is_worth_it && next.is_some_and(|(percent, _)| self.bytes() >= share(bytes_max, *percent))
    }
}

/// True when the owner has to ask the store how much it holds of the session, and reduce the answer.
#[must_use]
pub fn size_is_due(state: &SessionState, bytes_max: Option<u64>) -> bool {
    match (bytes_max, &state.size) {
        (None, _) => false,
        (Some(_), _) if state.lifetime.is_ended() => false,
        // Begun by a version that did not count.
        (Some(_), None) => true,
        (Some(bytes_max), Some(size)) => size.may_have_reached_a_step(bytes_max),
    }
}

/// Checks that a turn may write more: it may not once it has taken what it was given beyond the limit.
///
/// # Errors
/// [`FailureClass::SessionFull`].
pub(crate) fn check_size(state: &SessionState) -> Result<(), AttemptFailure> {
    match &state.size {
        Some(size) if size.reached >= OVERFULL => {
            let detail = format!("the session holds {} bytes", size.bytes());
            Err(AttemptFailure::new(FailureClass::SessionFull, detail))
        }
        Some(_) | None => Ok(()),
    }
}

impl Reduction {
    /// Takes what the store said. `written_before` was counted when it was asked; what came after
    /// that is counted on.
    pub(super) fn size_measured(
        &mut self,
        stored_bytes: u64,
        written_before: u64,
        bytes_max: u64,
    ) -> Result<Reply, ReduceError> {
        if self.state.lifetime.is_ended() {
            return Ok(Reply::Done);
        }
        let before = self.state.size.unwrap_or_default();
        let reached = STEPS
            .iter()
            .map(|(percent, _)| *percent)
            .rfind(|percent| stored_bytes >= share(bytes_max, *percent))
            .map_or(before.reached, |it| it.max(before.reached));
        let size = StoredSize {
            measured: stored_bytes,
            written: before.written.saturating_sub(written_before),
            bytes_max: Some(bytes_max),
            reached,
        };
        self.replace_size(size);
        for (percent, code) in STEPS {
            if let Some(code) = code
                && percent > before.reached
                && percent <= reached
            {
                self.emit(None, EventKind::Diagnostic { code });
            }
        }
        if size.is_full() {
            self.begin_closing(EndReason::StateLimit);
        }
        Ok(Reply::Done)
    }
}

fn share(bytes_max: u64, percent: u8) -> u64 {
    let share = u128::from(bytes_max) * u128::from(percent) / 100;
    u64::try_from(share).unwrap_or(u64::MAX)
}

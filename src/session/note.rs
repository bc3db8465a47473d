//! What the model is told about a turn that ended without an answer (spec/core.md 20).

use std::fmt::Write as _;

use super::active_turn::{CallState, Cancellation, TurnEnding};
use crate::record::CallStatus;

/// How much of an answer that was cut off the model is told, in bytes: its beginning.
const PARTIAL_BYTES_MAX: usize = 2_000;

/// Writes the note of a turn that ended without an answer. It lists every gated call with its
/// arguments (cut) and its end, because their effects stay although their results leave the
/// conversation (G3).
pub(super) fn turn_ended(ending: &TurnEnding, calls: &[CallState]) -> String {
    let mut note = match ending {
        TurnEnding::Failed(failure) => {
            let class = failure.class;
            format!("[The previous turn failed ({class}) and its answer is lost.]")
        }
        TurnEnding::Cancelled(cancellation) => cancelled(cancellation),
    };
    if calls.is_empty() {
        return note;
    }
    note.push_str("\n[Calls of that turn, with what became of them:]");
    for call in calls {
        let record = &call.record;
        // Writing to a String never fails.
        let _ = write!(
            note,
            "\n- {}({}): {}",
            record.tool_name,
            record.arguments_preview,
            fate(record.status)
        );
    }
    note
}

fn cancelled(cancellation: &Cancellation) -> String {
    let mut note = match &cancellation.reason {
        Some(reason) => format!("[The user cancelled the previous turn: {reason}]"),
        None => "[The user cancelled the previous turn.]".to_owned(),
    };
    if let Some(partial) = &cancellation.partial {
        let end = partial.floor_char_boundary(PARTIAL_BYTES_MAX);
        let _ = write!(
            note,
            "\n[The user saw this much of its answer: {}]",
            &partial[..end]
        );
    }
    note
}

const fn fate(status: CallStatus) -> &'static str {
    match status {
        CallStatus::Succeeded => "succeeded; do not repeat it",
        CallStatus::Failed => "failed",
        CallStatus::Rejected => "rejected by the user; it did not run",
        CallStatus::Skipped => "did not run, so it is safe to call again",
        CallStatus::OutcomeUnknown | CallStatus::Unrecognized => {
            "its outcome is unknown: check before you repeat it"
        }
        // A turn that is over leaves no call open.
        CallStatus::Requested | CallStatus::Decided | CallStatus::Started => "still open",
    }
}

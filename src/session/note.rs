//! What the model is told about a turn that failed (spec/core.md 20).

use std::fmt::Write as _;

use super::state::CallState;
use crate::failure::FailureClass;
use crate::record::CallStatus;

/// Writes the note of a failed turn. It lists every gated call with its arguments (cut) and its
/// end, because their effects stay although their results leave the conversation (G3).
pub(super) fn turn_failure(class: FailureClass, calls: &[CallState]) -> String {
    let mut note = format!("[The previous turn failed ({class}) and its answer is lost.]");
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

const fn fate(status: CallStatus) -> &'static str {
    match status {
        CallStatus::Succeeded => "succeeded; do not repeat it",
        CallStatus::Failed => "failed",
        CallStatus::Rejected => "rejected by the user; it did not run",
        CallStatus::Skipped => "did not run, so it is safe to call again",
        CallStatus::OutcomeUnknown | CallStatus::Unrecognized => {
            "its outcome is unknown: check before you repeat it"
        }
        // A failed turn leaves no call open.
        CallStatus::Requested | CallStatus::Decided | CallStatus::Started => "still open",
    }
}

//! How long people have to decide about the calls of a segment: as its policy says, or as the Flow does.

use std::time::Duration;

use crate::runner::{SegmentEvent, SegmentUpdate};
use crate::turn::{RequestedCall, RunModelOutcome};

/// A policy without a deadline of its own gets the Flow's.
fn set_deadlines(calls: &mut [RequestedCall], deadline: Option<Duration>) {
    for call in calls {
        call.policy.approval_deadline = call.policy.approval_deadline.or(deadline);
    }
}

pub(super) fn outcome_with_deadlines(
    mut outcome: RunModelOutcome,
    deadline: Option<Duration>,
) -> RunModelOutcome {
    if let RunModelOutcome::ToolCallsRequested { calls, .. } = &mut outcome {
        set_deadlines(calls, deadline);
    }
    outcome
}

pub(super) fn with_deadlines(
    mut update: SegmentUpdate,
    deadline: Option<Duration>,
) -> SegmentUpdate {
    if let SegmentUpdate::Event(
        SegmentEvent::Checkpoint(progress) | SegmentEvent::ParkRequested(progress),
        _,
    ) = &mut update
    {
        set_deadlines(&mut progress.calls, deadline);
    }
    update
}

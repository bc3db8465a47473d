//! What the Flow adds to the calls of a segment before the session gets them: how long people have
//! to decide, and what they are shown.

use std::time::Duration;

use crate::flow::{AgentSessionFlow, ApprovalView};
use crate::runner::{SegmentEvent, SegmentUpdate};
use crate::turn::{RequestedCall, RunModelOutcome};

/// The terms of one Flow.
pub(super) struct CallTerms {
    deadline: Option<Duration>,
    view: Option<ApprovalView>,
}

impl CallTerms {
    pub(super) fn of(flow: &AgentSessionFlow) -> Self {
        Self {
            deadline: flow.options().interrupt_deadline,
            view: flow.approval_view().cloned(),
        }
    }

    pub(super) fn on_update(&self, mut update: SegmentUpdate) -> SegmentUpdate {
        if let SegmentUpdate::Event(
            SegmentEvent::Checkpoint(progress) | SegmentEvent::ParkRequested(progress),
            _,
        ) = &mut update
        {
            self.add_to(&mut progress.calls);
        }
        update
    }

    pub(super) fn on_outcome(&self, mut outcome: RunModelOutcome) -> RunModelOutcome {
        if let RunModelOutcome::ToolCallsRequested { calls, .. } = &mut outcome {
            self.add_to(calls);
        }
        outcome
    }

    fn add_to(&self, calls: &mut [RequestedCall]) {
        for call in calls {
            // A policy without a deadline of its own gets the Flow's.
            call.policy.approval_deadline = call.policy.approval_deadline.or(self.deadline);
            // Whoever is to answer has to read the questions.
            if let Some(view) = &self.view
                && !call.policy.asks_questions()
            {
                call.shown_arguments = Some(view.of(&call.tool_name, &call.arguments));
            }
        }
    }
}

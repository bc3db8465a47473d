//! A person's answer to an open interrupt.

use super::state::{CallStep, STATE_BYTES_WITH_WORDS_MAX};
use super::{ReduceError, Reduction, Refusal, Reply};
use crate::event::EventKind;
use crate::ids::InterruptId;
use crate::record::{ArgumentsDigest, CallRecord, Decider, Decision, ToolOutcome};

/// The longest name of a person and the longest rejection message, in bytes.
pub const RESOLVER_BYTES_MAX: usize = 16 * 1024;

/// A client's answer to an interrupt.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(
    feature = "unstable",
    expect(clippy::exhaustive_structs, reason = "clients write it as a literal")
)]
pub struct Resolution {
    /// Which interrupt.
    pub interrupt_id: InterruptId,
    /// What was decided.
    pub decision: Decision,
    /// The application's name for the person, kept with the record.
    pub decided_by: Option<String>,
    /// The digest of the input that the person saw; when given, another one is refused (G4).
    pub digest: Option<ArgumentsDigest>,
}

impl Reduction {
    pub(super) fn resolve_interrupt(
        &mut self,
        resolution: Resolution,
    ) -> Result<Reply, ReduceError> {
        let Resolution {
            interrupt_id,
            decision,
            decided_by,
            digest,
        } = resolution;
        check_length("decided_by", decided_by.as_deref())?;
        let decision = normalized(decision);
        if let Decision::Reject { message } = &decision {
            check_length("the rejection message", message.as_deref())?;
        }
        let calls = self.state.turn.as_ref().map_or(&[][..], |it| &it.calls);
        let Some(index) = calls
            .iter()
            .position(|it| it.interrupt_id() == interrupt_id)
        else {
            return Err(Refusal::UnknownInterrupt { interrupt_id }.into());
        };
        let call = &calls[index];
        if digest.is_some_and(|it| it != call.record.digest) {
            return Err(Refusal::DigestMismatch { interrupt_id }.into());
        }
        if call.expires_at().is_some_and(|at| at <= self.now) {
            return Err(Refusal::Expired { interrupt_id }.into());
        }
        match call.step {
            CallStep::AwaitToolApproval(_) => {}
            CallStep::Execute(_)
            | CallStep::PermittedInSegment
            | CallStep::StartedInSegment { .. }
            | CallStep::Final => {
                return answer_again(&call.record, interrupt_id, &decision).map_err(Into::into);
            }
        }
        let (turn_id, approved) = (call.record.turn_id, decision == Decision::Approve);
        self.emit(
            Some(turn_id),
            EventKind::InterruptResolved {
                interrupt_id,
                approved,
            },
        );
        let has_words =
            decided_by.is_some() || matches!(&decision, Decision::Reject { message: Some(_) });
        let decider = Decider::new(decision.clone(), decided_by, self.now);
        self.call_mut(index)?.record.decider = Some(decider);
        if has_words && self.state_bytes()? > STATE_BYTES_WITH_WORDS_MAX {
            return Err(Refusal::SessionFull.into());
        }
        match decision {
            Decision::Approve => self.permit_call(index)?,
            Decision::Reject { message } => {
                self.end_call(index, ToolOutcome::Rejected { message })?;
                self.go_on_when_calls_are_over()?;
            }
        }
        Ok(Reply::InterruptResolved { duplicate: false })
    }
}

/// Answers a decision about a call that is decided: the same one is a duplicate, another is refused.
///
/// # Errors
/// [`Refusal::AlreadyResolved`], or [`Refusal::UnknownInterrupt`] when the call never waited for a person.
pub(crate) fn answer_again(
    record: &CallRecord,
    interrupt_id: InterruptId,
    decision: &Decision,
) -> Result<Reply, Refusal> {
    if !record.policy.requires_approval() {
        return Err(Refusal::UnknownInterrupt { interrupt_id });
    }
    match &record.decider {
        Some(decider) if decider.decision == *decision => {
            Ok(Reply::InterruptResolved { duplicate: true })
        }
        Some(decider) => Err(Refusal::AlreadyResolved {
            interrupt_id,
            decision: Some(decider.decision.clone()),
            decided_by: decider.decided_by.clone(),
        }),
        None if record.has_expired() => Err(Refusal::Expired { interrupt_id }),
        None => Err(Refusal::AlreadyResolved {
            interrupt_id,
            decision: None,
            decided_by: None,
        }),
    }
}

/// An empty rejection message counts as none (spec/core.md 6).
pub(crate) fn normalized(decision: Decision) -> Decision {
    match decision {
        Decision::Reject { message } => Decision::Reject {
            message: message.filter(|it| !it.is_empty()),
        },
        Decision::Approve => Decision::Approve,
    }
}

pub(super) fn check_length(field: &'static str, text: Option<&str>) -> Result<(), Refusal> {
    if text.is_some_and(|it| it.len() > RESOLVER_BYTES_MAX) {
        return Err(Refusal::FieldTooLong {
            field,
            bytes_max: RESOLVER_BYTES_MAX,
        });
    }
    Ok(())
}

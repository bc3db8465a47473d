//! A person's answer to an open interrupt.

use serde_json::{Map, Value};

use super::active_turn::CallStep;
use super::segment_report::ARGUMENTS_BYTES_MAX;
use super::state::STATE_BYTES_WITH_WORDS_MAX;
use super::{ReduceError, Reduction, Refusal, Reply};
use crate::commit::RowKind;
use crate::event::EventKind;
use crate::ids::{InterruptId, SessionId};
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
    /// What the call runs with.
    pub arguments: ResolvedArguments,
}

/// What a decided call runs with.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(
    feature = "unstable",
    expect(clippy::exhaustive_enums, reason = "clients write it")
)]
pub enum ResolvedArguments {
    /// The input that the person saw.
    AsAsked,
    /// Another one in its place: a JSON object. With an approval only.
    Changed(String),
    /// The input with answers to its questions; they fit, or the client would not have made it.
    Answered(String),
}

impl ResolvedArguments {
    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Self::AsAsked => None,
            Self::Changed(text) | Self::Answered(text) => Some(text),
        }
    }
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
            arguments,
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
        let asked = call.record.asked_digest.as_ref();
        if digest.is_some_and(|it| it != *asked.unwrap_or(&call.record.digest)) {
            return Err(Refusal::DigestMismatch { interrupt_id }.into());
        }
        check_arguments(&call.record, &decision, &interrupt_id, &arguments)?;
        if call.expires_at().is_some_and(|at| at <= self.now) {
            return Err(Refusal::Expired { interrupt_id }.into());
        }
        match call.step {
            CallStep::AwaitToolApproval(_) => {}
            CallStep::Execute(_)
            | CallStep::PermittedInSegment
            | CallStep::StartedInSegment { .. }
            | CallStep::Final => {
                let session = &self.state.session_id;
                let changed = arguments.text();
                return answer_again(
                    session,
                    &call.record,
                    interrupt_id,
                    &decision,
                    changed,
                    None,
                )
                .map_err(Into::into);
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
        let has_words = decided_by.is_some()
            || arguments.text().is_some()
            || matches!(&decision, Decision::Reject { message: Some(_) });
        let decider = Decider::new(decision.clone(), decided_by, self.now);
        self.call_mut(index)?.record.decider = Some(decider);
        if let Some(changed) = arguments.text() {
            let session = self.state.session_id.clone();
            let record = &mut self.call_mut(index)?.record;
            record.change_arguments(&session, changed);
            let key = self.call_mut(index)?.interrupt_id().as_str().to_owned();
            self.put_row(RowKind::ChangedArguments, key, changed.as_bytes().to_vec());
        }
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
    session: &SessionId,
    record: &CallRecord,
    interrupt_id: InterruptId,
    decision: &Decision,
    changed: Option<&str>,
    digest: Option<&ArgumentsDigest>,
) -> Result<Reply, Refusal> {
    if !record.policy.requires_approval() {
        return Err(Refusal::UnknownInterrupt { interrupt_id });
    }
    let asked = record.asked_digest.as_ref().unwrap_or(&record.digest);
    if digest.is_some_and(|it| it != asked) {
        return Err(Refusal::DigestMismatch { interrupt_id });
    }
    let changed = changed.map(|it| ArgumentsDigest::of(session, &record.tool_name, it));
    let was_changed = record.asked_digest.is_some().then_some(&record.digest);
    let is_same_input = changed.as_ref() == was_changed;
    match &record.decider {
        Some(decider) if decider.decision == *decision && is_same_input => {
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

/// A changed input is an object and comes with an approval; questions are answered, and nothing else
/// is.
fn check_arguments(
    record: &CallRecord,
    decision: &Decision,
    interrupt_id: &InterruptId,
    arguments: &ResolvedArguments,
) -> Result<(), Refusal> {
    let interrupt_id = || interrupt_id.clone();
    let asks_questions = record.policy.asks_questions();
    let changed = match (decision, arguments) {
        (_, ResolvedArguments::AsAsked) if !asks_questions => return Ok(()),
        (Decision::Reject { .. }, ResolvedArguments::AsAsked) => return Ok(()),
        (
            Decision::Reject { .. },
            ResolvedArguments::Changed(_) | ResolvedArguments::Answered(_),
        ) => {
            return Err(Refusal::ArgumentsOfRejected {
                interrupt_id: interrupt_id(),
            });
        }
        (Decision::Approve, ResolvedArguments::AsAsked | ResolvedArguments::Changed(_))
            if asks_questions =>
        {
            return Err(Refusal::NotAnswered {
                interrupt_id: interrupt_id(),
            });
        }
        (Decision::Approve, ResolvedArguments::Answered(_)) if !asks_questions => {
            return Err(Refusal::AsksNoQuestions {
                interrupt_id: interrupt_id(),
            });
        }
        (Decision::Approve, ResolvedArguments::AsAsked) => return Ok(()),
        (
            Decision::Approve,
            ResolvedArguments::Changed(text) | ResolvedArguments::Answered(text),
        ) => text,
    };
    if changed.len() > ARGUMENTS_BYTES_MAX {
        return Err(Refusal::FieldTooLong {
            field: "the changed arguments",
            bytes_max: ARGUMENTS_BYTES_MAX,
        });
    }
    serde_json::from_str::<Map<String, Value>>(changed)
        .map(|_| ())
        .map_err(|_| Refusal::ArgumentsNotAnObject)
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

//! The CLI's own way to park a call (spec/cli-protocol.md 6): the first gated call of a segment is
//! deferred, the CLI ends, and a later segment answers the call from its record. The rules that
//! hold for this way alone are here and in `resumable`.

use super::asked::GatedCall;
use super::contract;
use super::json::same_json;
use crate::failure::AttemptFailure;
use crate::protocol::ResultFrame;
use crate::turn::RequestedCall;

/// The deferral of one segment.
#[derive(Debug, Default)]
pub(super) struct Native {
    deferred: Option<GatedCall>,
}

impl Native {
    /// Defers the first gated call of the segment. A later one is refused, because the CLI resumes
    /// only one (I06, I09).
    pub(super) fn gate(&mut self, call: GatedCall) -> Result<(), String> {
        if self.deferred.is_some() {
            return Err(format!(
                "{name} did not run. Another call of this reply waits for its result, and only one can wait at a time. Call {name} again by itself.",
                name = call.cli_name
            ));
        }
        self.deferred = Some(call);
        Ok(())
    }

    /// Reads the result of the segment: the call that was deferred, if one was (G4, L21, L29).
    pub(super) fn conclude(
        &self,
        result: &ResultFrame,
    ) -> Result<Option<RequestedCall>, AttemptFailure> {
        let says_deferred = result.stop_reason.as_deref() == Some("tool_deferred");
        match (&self.deferred, says_deferred, &result.deferred_tool_use) {
            (None, false, None) => Ok(None),
            (Some(call), true, Some(named)) => {
                // A race of the CLI shows itself like this (spec/cli-protocol.md 6).
                if result
                    .terminal_reason
                    .as_deref()
                    .is_some_and(|it| it != "tool_deferred")
                {
                    return Err(contract("the CLI went on after a deferral"));
                }
                if named.id != call.id.as_str() || named.name != call.cli_name {
                    return Err(contract("the CLI deferred another call than the hook did"));
                }
                // The CLI keeps what the model wrote. What our hooks made of it is in the record,
                // and the allow of the resume carries it (L24).
                if !same_json(call.input.asked.get(), named.input.get()) {
                    return Err(contract(
                        "the CLI deferred another input than the one that was decided about",
                    ));
                }
                Ok(Some(call.request()))
            }
            (Some(_), _, _) => Err(contract("the CLI ignored a deferral")),
            (None, _, _) => Err(contract("the CLI deferred a call that the hook did not")),
        }
    }
}

//! The audit (G5): nothing has a result that was not decided, except what the CLI itself refused.

use super::contract;
use super::gate::Standing;
use crate::failure::AttemptFailure;
use crate::ids::ToolCallId;
use crate::protocol::{ContentBlock, UserFrame, flattened_text};

/// The result of a call, as it stands on the CLI's output.
#[derive(Debug)]
pub(super) struct ToolResult {
    pub(super) tool_call_id: ToolCallId,
    pub(super) is_error: bool,
    pub(super) text: String,
    /// Why the CLI did not run the call, when it says that it did not.
    pub(super) non_execution: Option<String>,
}

impl ToolResult {
    /// Reads a block; `None` when it is no result of a call.
    ///
    /// # Errors
    /// It is a result without a valid id, so that nothing can have been decided about its call.
    pub(super) fn of_block(
        block: &ContentBlock,
        frame: &UserFrame,
    ) -> Result<Option<Self>, AttemptFailure> {
        if block.kind != "tool_result" {
            return Ok(None);
        }
        let is_error = block.is_error == Some(true);
        let id = block.tool_use_id.as_deref().unwrap_or_default();
        let tool_call_id = match ToolCallId::new(id) {
            Ok(id) => id,
            // The gate denied it, and the CLI says so.
            Err(_) if is_error => return Ok(None),
            Err(_) => return Err(contract("a call without a valid id has a result")),
        };
        let non_execution = frame
            .tool_result_meta
            .iter()
            .flatten()
            .find(|it| it.id == id)
            .and_then(|it| it.non_execution_kind.clone());
        Ok(Some(Self {
            tool_call_id,
            is_error,
            text: flattened_text(block.content.as_deref()),
            non_execution,
        }))
    }
}

/// How the CLI's own refusals begin, for calls that it never asks the hook about: unknown names and
/// inputs that do not fit, and calls that were given up with the turn. Seen in the captures
/// `unknown_tool_names`, `interrupt_during_hook` and `subagent_background_close_at_result`.
const REFUSALS: [&str; 4] = [
    "<tool_use_error>",
    "The user doesn't want to proceed with this tool use.",
    "The user doesn't want to take this action right now.",
    "[Request interrupted by user",
];

/// The kinds of results for which the CLI says that nothing ran.
const NON_EXECUTION: [&str; 3] = ["permission-rule", "user-rejected", "cancelled"];

/// Compares a result with the decision about its call.
pub(super) fn check(standing: Standing, result: &ToolResult) -> Result<(), AttemptFailure> {
    match standing {
        Standing::Allowed => Ok(()),
        Standing::Refused if result.is_error => Ok(()),
        Standing::Unknown if result.is_error && is_refusal(result) => Ok(()),
        Standing::Refused => Err(contract(format!(
            "call {} has a result although it was not permitted",
            result.tool_call_id
        ))),
        Standing::Unknown => Err(contract(format!(
            "call {} has a result although nobody decided about it",
            result.tool_call_id
        ))),
    }
}

fn is_refusal(result: &ToolResult) -> bool {
    REFUSALS.iter().any(|it| result.text.starts_with(it))
        || result
            .non_execution
            .as_deref()
            .is_some_and(|it| NON_EXECUTION.contains(&it))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(is_error: bool, text: &str, non_execution: Option<&str>) -> ToolResult {
        ToolResult {
            tool_call_id: ToolCallId::new("toolu_1").unwrap(),
            is_error,
            text: text.to_owned(),
            non_execution: non_execution.map(str::to_owned),
        }
    }

    /// G5: the table of the CLI's own refusals; everything else without a decision is a gap.
    #[test]
    fn a_result_without_a_decision_is_a_gap_unless_the_cli_refused_the_call() {
        let unknown = "<tool_use_error>Error: No such tool available: NoSuchTool</tool_use_error>";
        for (standing, it, accepted) in [
            (Standing::Allowed, result(false, "ran", None), true),
            (Standing::Refused, result(true, "denied", None), true),
            (Standing::Refused, result(false, "ran", None), false),
            (Standing::Unknown, result(true, unknown, None), true),
            (Standing::Unknown, result(false, unknown, None), false),
            (Standing::Unknown, result(true, "Exit code 1", None), false),
            (
                Standing::Unknown,
                result(true, "denied", Some("permission-rule")),
                true,
            ),
            (
                Standing::Unknown,
                result(true, "stopped", Some("interrupted")),
                false,
            ),
        ] {
            assert_eq!(
                check(standing, &it).is_ok(),
                accepted,
                "{standing:?} {it:?}"
            );
        }
    }
}

//! The audit (G5): nothing has a result that was not decided, except what the CLI itself refused.

use std::collections::BTreeSet;

use serde_json::value::RawValue;

use super::contract;
use super::gate::Standing;
use crate::failure::{AttemptFailure, FailureClass};
use crate::ids::ToolCallId;
use crate::protocol::{ContentBlock, ToolResultMeta, content_blocks, flattened_text};

/// The result of a call, as it stands on the CLI's output or in its transcript.
#[derive(Debug)]
pub(super) struct ToolResult {
    pub(super) tool_call_id: ToolCallId,
    pub(super) is_error: bool,
    pub(super) text: String,
    /// What the CLI says about who decided.
    pub(super) told: Told,
}

/// What the CLI says about a call that has a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Told {
    /// Nothing.
    Nothing,
    /// Something accepted it, so it may have run.
    Accepted,
    /// It did not run, for this reason.
    NotRun(String),
}

/// How much of a mirrored result's text is kept until the end of the segment, in bytes: enough to
/// tell the CLI's own words.
const BEGINNING_BYTES_MAX: usize = 128;

impl ToolResult {
    /// Forgets all of the text but its beginning.
    pub(super) fn beginning(mut self) -> Self {
        let end = self.text.floor_char_boundary(BEGINNING_BYTES_MAX);
        self.text.truncate(end);
        self.text.shrink_to_fit();
        self
    }

    /// Reads the results in the content of a message of the user.
    ///
    /// # Errors
    /// The content cannot be read, or a result has no valid id, so that nothing can have been
    /// decided about its call.
    pub(super) fn of_content(
        content: &RawValue,
        metas: &[ToolResultMeta],
    ) -> Result<Vec<Self>, AttemptFailure> {
        let blocks = content_blocks(content)
            .map_err(|_| contract("a user message has no readable content"))?;
        let results = blocks
            .iter()
            .filter_map(|block| Self::of_block(block, metas).transpose());
        results.collect()
    }

    fn of_block(
        block: &ContentBlock,
        metas: &[ToolResultMeta],
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
        let told = metas
            .iter()
            .find(|it| it.id == id)
            .map_or(Told::Nothing, told_by);
        Ok(Some(Self {
            tool_call_id,
            is_error,
            text: flattened_text(block.content.as_deref()),
            told,
        }))
    }
}

fn told_by(meta: &ToolResultMeta) -> Told {
    let decision = meta.permission_decision.as_ref();
    if decision.and_then(|it| it.decision.as_deref()) == Some("accept") {
        return Told::Accepted;
    }
    match &meta.non_execution_kind {
        Some(kind) => Told::NotRun(kind.clone()),
        None => Told::Nothing,
    }
}

/// How the CLI's own refusals begin, for calls that it never asks the hook about. They come without
/// a word about a decision. Measured on CLI 2.1.316 and 2.1.332, capture by capture: the table of
/// the tests below.
const REFUSALS: [&str; 2] = [
    // Names that are not offered, inputs that do not fit, calls given up with an aborted reply.
    "<tool_use_error>",
    // Calls of a sub-agent whose main conversation is over.
    "The user doesn't want to take this action right now.",
];

/// How the CLI answers, in the transcript alone, a call that an earlier process left without a
/// result. It stands there at the start of the process, before anything could run.
const LEFT_OPEN: &str = "[Tool call interrupted: the session ended before this call's result";

/// The kinds of results for which the CLI says that nothing ran. `interrupted` is none of them: such
/// a call may have taken effect.
const NON_EXECUTION: [&str; 3] = ["permission-rule", "user-rejected", "cancelled"];

/// The results of one segment, held against its decisions.
#[derive(Debug, Default)]
pub(super) struct Audit {
    seen: BTreeSet<ToolCallId>,
}

impl Audit {
    /// Notes a result that something else than the gate's decision accounts for.
    pub(super) fn note(&mut self, result: &ToolResult) {
        self.seen.insert(result.tool_call_id.clone());
    }

    /// Compares a result on the CLI's output with the decision about its call.
    pub(super) fn check(
        &mut self,
        standing: Standing,
        result: &ToolResult,
    ) -> Result<(), AttemptFailure> {
        let is_first = self.seen.insert(result.tool_call_id.clone());
        match standing {
            // The second use of an id was denied, and its result says so.
            Standing::Allowed if is_first || result.is_error => Ok(()),
            Standing::Allowed => Err(contract(format!(
                "call {} has a second result",
                result.tool_call_id
            ))),
            Standing::Refused if result.is_error => Ok(()),
            Standing::Unknown if result.is_error && is_refusal(result) => Ok(()),
            Standing::Refused => Err(undecided(format!(
                "call {} has a result although it was not permitted",
                result.tool_call_id
            ))),
            Standing::Unknown => Err(undecided(format!(
                "call {} has a result although nobody decided about it",
                result.tool_call_id
            ))),
        }
    }

    /// Compares a result of the transcript with the decision about its call. What stood on the
    /// output was compared there, with what the CLI says about it.
    pub(super) fn check_mirrored(
        &mut self,
        standing: Standing,
        result: &ToolResult,
    ) -> Result<(), AttemptFailure> {
        let is_left_open =
            standing == Standing::Unknown && result.is_error && result.text.starts_with(LEFT_OPEN);
        if is_left_open || self.seen.contains(&result.tool_call_id) {
            return Ok(());
        }
        self.check(standing, result)
    }
}

/// A call ran that nobody permitted: another attempt would meet the same CLI, so there is none.
fn undecided(detail: String) -> AttemptFailure {
    AttemptFailure::new(FailureClass::UndecidedCall, detail)
}

/// True for the CLI's own word that a call did not run.
pub(super) fn is_refusal(result: &ToolResult) -> bool {
    match &result.told {
        Told::Nothing => REFUSALS.iter().any(|it| result.text.starts_with(it)),
        Told::Accepted => false,
        Told::NotRun(kind) => NON_EXECUTION.contains(&kind.as_str()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Reads a result as the CLI writes it: content, `is_error`, `tool_result_meta` without the id.
    fn result(is_error: bool, content: &str, meta: Value) -> ToolResult {
        let content = json!([{"type": "tool_result", "tool_use_id": "toolu_1",
            "content": content, "is_error": is_error}]);
        let content = serde_json::value::to_raw_value(&content).unwrap();
        let mut metas = Vec::new();
        if let Value::Object(mut meta) = meta {
            meta.insert("id".to_owned(), json!("toolu_1"));
            metas.push(serde_json::from_value(Value::Object(meta)).unwrap());
        }
        let mut results = ToolResult::of_content(&content, &metas).unwrap();
        results.remove(0)
    }

    fn is_accepted(standing: Standing, result: &ToolResult) -> bool {
        Audit::default().check(standing, result).is_ok()
    }

    /// G5: the table of the CLI's own refusals, each as it was captured on CLI 2.1.316. Nothing of
    /// them counts as a refusal when it is no error, or when the CLI says that somebody accepted.
    #[test]
    fn what_the_cli_refuses_by_itself_needs_no_decision() {
        let unknown_name =
            "<tool_use_error>Error: No such tool available: NoSuchTool</tool_use_error>";
        let bad_input = "<tool_use_error>InputValidationError: Bash failed due to the following issue:\nThe parameter `command` type is expected as `string` but provided as `number`</tool_use_error>";
        let rejected =
            "The user doesn't want to proceed with this tool use. The tool use was rejected";
        let closed = "The user doesn't want to take this action right now. STOP what you are doing";
        let dont_ask = "Permission to use Bash has been denied because Claude Code is running in don't ask mode.";
        for (capture, text, meta) in [
            ("unknown_tool_names", unknown_name, json!(null)),
            (
                "real CLI: what_the_cli_refuses_by_itself_is_no_gap",
                bad_input,
                json!(null),
            ),
            ("subagent_background_close_at_result", closed, json!(null)),
            (
                "stdin_closed_during_hook",
                closed,
                json!({"non_execution_kind": "cancelled"}),
            ),
            (
                "interrupt_during_hook",
                rejected,
                json!({"non_execution_kind": "user-rejected"}),
            ),
            (
                "nonstream_dontAsk_2",
                dont_ask,
                json!({"non_execution_kind": "permission-rule", "permission_decision": {"decision": "reject", "source": "config", "reason_type": "mode"}}),
            ),
        ] {
            assert!(
                is_accepted(Standing::Unknown, &result(true, text, meta.clone())),
                "{capture}"
            );
            assert!(
                !is_accepted(Standing::Unknown, &result(false, text, meta)),
                "{capture}"
            );
            let accepted = json!({"permission_decision": {"decision": "accept", "source": "config", "reason_type": "mode"}});
            assert!(
                !is_accepted(Standing::Unknown, &result(true, text, accepted)),
                "{capture}"
            );
        }
    }

    /// G5: a call of an earlier process is answered in the transcript (capture `abandon_drop`); the
    /// same words on the output, or for a call of this segment that succeeded, are no excuse.
    #[test]
    fn a_call_that_an_earlier_process_left_open_needs_no_decision() {
        let text = "[Tool call interrupted: the session ended before this call's result was recorded, so its outcome is unknown. Check whether it took effect before relying on it or running it again.]";
        let mirrored = |standing, result: &ToolResult| {
            Audit::default().check_mirrored(standing, result).is_ok()
        };
        let error = result(true, text, json!(null));
        assert!(mirrored(Standing::Unknown, &error));
        assert!(!is_accepted(Standing::Unknown, &error));
        assert!(!mirrored(
            Standing::Unknown,
            &result(false, text, json!(null))
        ));
        assert!(!mirrored(
            Standing::Unknown,
            &result(true, "Exit code 1", json!(null))
        ));
    }

    /// G5: everything else without a decision is a gap, and so is an output of a refused call.
    #[test]
    fn a_result_without_a_decision_is_a_gap_unless_the_cli_refused_the_call() {
        let interrupted = json!({"non_execution_kind": "interrupted"});
        for (standing, it, accepted) in [
            (Standing::Allowed, result(false, "ran", json!(null)), true),
            (
                Standing::Allowed,
                result(true, "Exit code 1", json!(null)),
                true,
            ),
            (Standing::Refused, result(true, "denied", json!(null)), true),
            (Standing::Refused, result(false, "ran", json!(null)), false),
            (
                Standing::Unknown,
                result(true, "Exit code 1", json!(null)),
                false,
            ),
            (Standing::Unknown, result(false, "ran", json!(null)), false),
            (
                Standing::Unknown,
                result(true, "stopped", interrupted),
                false,
            ),
            (
                Standing::Unknown,
                result(true, "x", json!({"non_execution_kind": "brand-new"})),
                false,
            ),
        ] {
            assert_eq!(is_accepted(standing, &it), accepted, "{standing:?} {it:?}");
        }
    }
}

//! What kind of tool a call names, and where its calls run.

use super::SegmentPlan;
use crate::policy::{Approval, ToolAnnotations, ToolEffect, ToolPolicy};

/// The CLI's own tool for structured output; it changes nothing (spec/cli-protocol.md 14).
const STRUCTURED_OUTPUT: &str = "StructuredOutput";

/// The CLI's own tool that asks people.
const ASK_USER_QUESTION: &str = "AskUserQuestion";

pub(super) enum Kind {
    Custom(String, ToolPolicy),
    Cli(ToolPolicy),
    Structured,
    UnknownCustom,
    /// It asks people, and the application has no place for questions (O42).
    Unanswerable,
}

/// A custom tool that runs inside the segment: it may run again with it (E05).
pub(super) const fn custom_is_inline(policy: ToolPolicy) -> bool {
    !policy.requires_approval() && matches!(policy.effect, ToolEffect::Read)
}

/// A tool of the CLI that runs inside the segment: at least once, so never a single-attempt one.
pub(super) const fn cli_is_inline(policy: ToolPolicy) -> bool {
    !policy.requires_approval() && !policy.effect.is_single_attempt()
}

/// True when some call of this tool in the main conversation must not run without a record. A name
/// that is not offered may be an older one of a tool, under which the CLI does not ask: its question
/// tells.
pub(super) fn needs_record(plan: &SegmentPlan, tool_name: &str) -> bool {
    match classify(plan, tool_name, None) {
        Kind::Custom(_, policy) => !custom_is_inline(policy),
        Kind::Cli(policy) => !cli_is_inline(policy) && plan.offered.contains(tool_name),
        Kind::Structured | Kind::UnknownCustom | Kind::Unanswerable => false,
    }
}

/// True when every call of this tool runs inside the segment, as often as it takes.
pub(super) fn is_inline(plan: &SegmentPlan, tool_name: &str) -> bool {
    is_inline_call(plan, tool_name, None)
}

/// True when a call that the application's rule said this about runs inside the segment.
pub(super) fn is_inline_call(
    plan: &SegmentPlan,
    tool_name: &str,
    needs_person: Option<bool>,
) -> bool {
    match classify(plan, tool_name, needs_person) {
        Kind::Custom(_, policy) => custom_is_inline(policy),
        Kind::Cli(policy) => cli_is_inline(policy) && plan.offered.contains(tool_name),
        Kind::Structured | Kind::UnknownCustom | Kind::Unanswerable => false,
    }
}

/// Returns the name of a tool in policies and records.
pub(super) fn policy_name<'a>(plan: &SegmentPlan, tool_name: &'a str) -> &'a str {
    custom_name(&plan.server_name, tool_name).unwrap_or(tool_name)
}

/// Says what kind of tool this is, with the policy of a call that the application's rule said this
/// about. What a rule has not said counts as if a person had to decide.
pub(super) fn classify(plan: &SegmentPlan, tool_name: &str, needs_person: Option<bool>) -> Kind {
    let ruled = |name: &str, policy: ToolPolicy| match (plan.ruled.contains(name), needs_person) {
        (false, _) => policy,
        (true, Some(false)) => policy.with_approval(Approval::NotRequired),
        (true, Some(true) | None) => policy.with_approval(Approval::Required),
    };
    if let Some(name) = custom_name(&plan.server_name, tool_name) {
        return match plan.custom_tools.get(name) {
            Some(policy) => Kind::Custom(name.to_owned(), ruled(name, *policy)),
            None => Kind::UnknownCustom,
        };
    }
    if tool_name == STRUCTURED_OUTPUT {
        return Kind::Structured;
    }
    let policy = (plan.policies).policy_for(tool_name, ToolAnnotations::default());
    if tool_name == ASK_USER_QUESTION && !policy.asks_questions() {
        return Kind::Unanswerable;
    }
    Kind::Cli(ruled(tool_name, policy))
}

/// Returns the own name of a tool of our server.
fn custom_name<'a>(server: &str, tool_name: &'a str) -> Option<&'a str> {
    tool_name
        .strip_prefix("mcp__")?
        .strip_prefix(server)?
        .strip_prefix("__")
}

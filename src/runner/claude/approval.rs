//! Approval rules: the application looks at a call's final input and says whether a person decides.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::builder::CLAUDE_CODE_TOOLS;
use crate::definition::DefinitionError;
use crate::policy::{Approval, ToolAnnotations, ToolPolicies};
use crate::runner::PreToolUse;
use crate::tool::CustomTool;

type AsksPerson = dyn Fn(&PreToolUse) -> bool + Send + Sync;

/// One rule of the application.
#[derive(Clone)]
pub(super) struct ApprovalRule(Arc<AsksPerson>);

impl ApprovalRule {
    pub(super) fn new(asks: impl Fn(&PreToolUse) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(asks))
    }

    /// The rule that a custom tool brings along.
    fn of_tool(tool: &CustomTool) -> Option<Self> {
        let asks = tool.approval_rule()?;
        Some(Self::new(move |call| asks(&call.input)))
    }

    /// True when a person has to decide about this call; a rule that panics does not know, and asks.
    pub(super) fn needs_person(&self, call: &PreToolUse) -> bool {
        catch_unwind(AssertUnwindSafe(|| (self.0)(call))).unwrap_or_else(|_| {
            tracing::warn!(
                tool = call.tool_name,
                "an approval rule panicked; a person is asked"
            );
            true
        })
    }
}

impl fmt::Debug for ApprovalRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApprovalRule")
    }
}

/// Checks the rules of a definition, and gathers them by policy name. A rule that no call would meet,
/// or that a policy or another rule contradicts, is refused: nobody would notice that it never asks.
pub(super) fn gather(
    added: Vec<(String, ApprovalRule)>,
    tools: &BTreeMap<String, CustomTool>,
    server_name: &str,
    policies: &ToolPolicies,
) -> Result<BTreeMap<String, ApprovalRule>, DefinitionError> {
    let of_tools = (tools.values())
        .filter_map(|tool| Some((tool.name().to_owned(), ApprovalRule::of_tool(tool)?)));
    let ours = format!("mcp__{server_name}__");
    let mut rules = BTreeMap::new();
    for (name, rule) in of_tools.chain(added) {
        let is_external = name.starts_with("mcp__");
        let is_known =
            is_external || tools.contains_key(&name) || CLAUDE_CODE_TOOLS.contains(&name.as_str());
        let reason = if name.starts_with(&ours) {
            Some("must name a custom tool by its own name")
        } else if !is_known {
            Some("is for a tool that nobody knows")
        } else {
            match (policies.policy_for(&name, ToolAnnotations::default())).approval {
                Approval::ByEffect => None,
                Approval::Required | Approval::NotRequired | Approval::Answers => {
                    Some("contradicts the policy, which says itself whether calls wait")
                }
            }
        };
        if let Some(reason) = reason {
            return Err(DefinitionError::ApprovalRule { name, reason });
        }
        if rules.insert(name.clone(), rule).is_some() {
            let reason = "is its second one";
            return Err(DefinitionError::ApprovalRule { name, reason });
        }
    }
    Ok(rules)
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::{Value, json};

    use super::*;
    use crate::ids::{SessionId, StepId, ToolCallId, TurnId};
    use crate::tool::ToolOutput;
    use crate::turn::RunModelContext;

    #[derive(Deserialize)]
    struct Refund {
        cents: u64,
    }

    /// G5: the rule of a tool reads the input as the tool's own type; what it cannot read or decide, a
    /// person decides.
    #[test]
    fn a_typed_rule_asks_where_it_cannot_say() {
        let tool = CustomTool::new("refund", "Refunds", async |_: Value, _| {
            Ok(ToolOutput::text("done"))
        });
        assert!(ApprovalRule::of_tool(&tool).is_none());
        let tool = tool.with_approval_if(|refund: &Refund| {
            assert_ne!(refund.cents, 13, "it panics on purpose");
            refund.cents > 10_000
        });
        let rule = ApprovalRule::of_tool(&tool).unwrap();
        for (input, expected) in [
            (json!({"cents": 10_000}), false),
            (json!({"cents": 10_001}), true),
            (json!({"cents": 13}), true),
            (json!({"cents": "many"}), true),
            (json!({}), true),
        ] {
            let ids = (SessionId::new("s").unwrap(), TurnId::new(1), StepId::new(1));
            let call = PreToolUse {
                context: RunModelContext::new(ids.0, ids.1, ids.2),
                tool_call_id: ToolCallId::new("c1").unwrap(),
                tool_name: "refund".to_owned(),
                sub_agent: None,
                input: input.clone(),
            };
            assert_eq!(rule.needs_person(&call), expected, "{input}");
        }
    }
}

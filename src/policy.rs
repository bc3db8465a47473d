//! What a tool does to the world, and whether a person decides about it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What a call does to the world.
///
/// | effect | custom tool | tool inside the CLI | approval by default |
/// | --- | --- | --- | --- |
/// | `Read` | inside the segment; runs again with it | the same | no |
/// | `IdempotentWrite` | own Step, at most three starts under one key | inside the segment, at least once | no |
/// | `NonIdempotentWrite` | own Step, one start | start mark, then inside the segment, one start | yes |
/// | `Unclassified` | as `NonIdempotentWrite` | as `NonIdempotentWrite` | yes |
///
/// Source: seed 0 "Effects and policies"; design.md 4 for the start mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(
    clippy::exhaustive_enums,
    reason = "hosts match on it, and a fifth effect would be a new contract"
)]
pub enum ToolEffect {
    /// Changes nothing; may run again at any time.
    Read,
    /// Changes something, and running it again under the same key changes nothing more.
    IdempotentWrite,
    /// Changes something each time it runs.
    NonIdempotentWrite,
    /// Nothing is known about it. Treated as `NonIdempotentWrite`.
    #[default]
    Unclassified,
}

impl ToolEffect {
    /// True when a second run could change the world a second time.
    #[must_use]
    pub const fn is_single_attempt(self) -> bool {
        match self {
            Self::Read | Self::IdempotentWrite => false,
            Self::NonIdempotentWrite | Self::Unclassified => true,
        }
    }
}

/// Whether a call waits for a person.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(
    clippy::exhaustive_enums,
    reason = "hosts match on it; these are all there are"
)]
pub enum Approval {
    /// By effect: single-attempt calls wait, the others do not.
    #[default]
    ByEffect,
    /// Each call waits.
    Required,
    /// No call waits.
    NotRequired,
    /// Each call waits for answers to the questions in its input, and runs with them
    /// ([`answer_question`](crate::AgentSessionClient::answer_question)). For `AskUserQuestion` of the
    /// CLI, and for custom tools with such an input.
    Answers,
}

/// How calls of one tool are treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[expect(
    clippy::exhaustive_structs,
    reason = "an application writes it as a literal"
)]
pub struct ToolPolicy {
    /// What a call does to the world.
    pub effect: ToolEffect,
    /// Whether a call waits for a person. Default: by effect.
    #[serde(default)]
    pub approval: Approval,
    /// How long a person has to decide; then the call is rejected. Default: as long as the Flow's
    /// [`SessionOptions`](crate::flow::SessionOptions) say.
    #[serde(
        default,
        rename = "approval_deadline_ms",
        with = "milliseconds",
        skip_serializing_if = "Option::is_none"
    )]
    pub approval_deadline: Option<Duration>,
}

/// A time that is stored as whole milliseconds.
mod milliseconds {
    use std::time::Duration;

    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    #[expect(clippy::ref_option, reason = "the signature is serde's")]
    pub(super) fn serialize<S: Serializer>(
        it: &Option<Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        it.map(|it| u64::try_from(it.as_millis()).unwrap_or(u64::MAX))
            .serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<u64>::deserialize(from)?.map(Duration::from_millis))
    }
}

impl ToolPolicy {
    /// Makes a policy whose approval follows from the effect.
    #[must_use]
    pub const fn new(effect: ToolEffect) -> Self {
        Self {
            effect,
            approval: Approval::ByEffect,
            approval_deadline: None,
        }
    }

    /// Returns the policy with another approval rule.
    #[must_use]
    pub const fn with_approval(self, approval: Approval) -> Self {
        Self { approval, ..self }
    }

    /// Returns the policy with a time after which a call that nobody decided about is rejected.
    #[must_use]
    pub const fn with_approval_deadline(self, deadline: Duration) -> Self {
        Self {
            approval_deadline: Some(deadline),
            ..self
        }
    }

    /// True when a call waits for a person.
    #[must_use]
    pub const fn requires_approval(self) -> bool {
        match self.approval {
            Approval::ByEffect => self.effect.is_single_attempt(),
            Approval::Required | Approval::Answers => true,
            Approval::NotRequired => false,
        }
    }

    /// Makes the policy of a tool that asks people and changes nothing.
    #[must_use]
    pub const fn questions() -> Self {
        Self::new(ToolEffect::Read).with_approval(Approval::Answers)
    }

    /// True when a call waits for answers to its questions.
    #[must_use]
    pub const fn asks_questions(self) -> bool {
        match self.approval {
            Approval::Answers => true,
            Approval::ByEffect | Approval::Required | Approval::NotRequired => false,
        }
    }
}

/// MCP's hints about a tool. They classify a custom tool that has no policy (E03): `read_only` is a
/// read, otherwise `idempotent` an idempotent write, whatever `destructive` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[expect(
    clippy::exhaustive_structs,
    reason = "MCP defines these four, and an application writes a literal"
)]
pub struct ToolAnnotations {
    /// `readOnlyHint`
    pub read_only: bool,
    /// `idempotentHint`
    pub idempotent: bool,
    /// `destructiveHint`
    pub destructive: bool,
    /// `openWorldHint`
    pub open_world: bool,
}

impl ToolAnnotations {
    /// Returns the effect these hints stand for, or `None` when they say nothing about it.
    #[must_use]
    pub const fn effect(self) -> Option<ToolEffect> {
        if self.read_only {
            Some(ToolEffect::Read)
        } else if self.idempotent {
            Some(ToolEffect::IdempotentWrite)
        } else {
            None
        }
    }
}

/// The policies of a Flow, by tool name, and the effect of tools that have none.
///
/// A custom tool goes by its own name (`create_refund`), a tool of the CLI by its name (`Bash`), a
/// tool of an external MCP server by `mcp__<server>__<tool>` (E02).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ToolPolicies {
    by_name: BTreeMap<String, ToolPolicy>,
    default_effect: ToolEffect,
}

impl ToolPolicies {
    /// Makes an empty set: every tool without annotations is [`ToolEffect::Unclassified`].
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds or replaces the policy of one tool.
    #[must_use]
    pub fn with(mut self, tool_name: impl Into<String>, policy: ToolPolicy) -> Self {
        self.by_name.insert(tool_name.into(), policy);
        self
    }

    /// Sets the effect of tools without a policy or annotations. Default: unclassified.
    #[must_use]
    pub fn with_default_effect(mut self, effect: ToolEffect) -> Self {
        self.default_effect = effect;
        self
    }

    /// Returns the names of the tools that have a policy.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(String::as_str)
    }

    /// Returns the policy for a tool: its own, else by its annotations, else the default effect.
    #[must_use]
    pub fn policy_for(&self, tool_name: &str, annotations: ToolAnnotations) -> ToolPolicy {
        match self.by_name.get(tool_name) {
            Some(policy) => *policy,
            None => ToolPolicy::new(annotations.effect().unwrap_or(self.default_effect)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// E03: eight annotation combinations.
    #[test]
    fn annotations_classify_a_tool_without_a_policy() {
        for destructive in [false, true] {
            for (read_only, idempotent, effect) in [
                (false, false, ToolEffect::Unclassified),
                (false, true, ToolEffect::IdempotentWrite),
                (true, false, ToolEffect::Read),
                (true, true, ToolEffect::Read),
            ] {
                let hints = ToolAnnotations {
                    read_only,
                    idempotent,
                    destructive,
                    open_world: false,
                };
                assert_eq!(
                    ToolPolicies::new().policy_for("x", hints),
                    ToolPolicy::new(effect)
                );
            }
        }
    }

    /// E01, N31: a policy wins over annotations, annotations over the default effect.
    #[test]
    fn a_policy_wins_over_annotations_and_they_over_the_default() {
        let policies = ToolPolicies::new()
            .with("x", ToolPolicy::new(ToolEffect::NonIdempotentWrite))
            .with_default_effect(ToolEffect::IdempotentWrite);
        let read = ToolAnnotations {
            read_only: true,
            ..ToolAnnotations::default()
        };
        assert_eq!(
            policies.policy_for("x", read).effect,
            ToolEffect::NonIdempotentWrite
        );
        assert_eq!(policies.policy_for("y", read).effect, ToolEffect::Read);
        assert_eq!(
            policies.policy_for("y", ToolAnnotations::default()).effect,
            ToolEffect::IdempotentWrite
        );
    }

    /// E12, N32: approval follows from the effect unless it is said.
    #[test]
    fn approval_is_a_three_way_option() {
        for (effect, approval, waits) in [
            (ToolEffect::Read, Approval::ByEffect, false),
            (ToolEffect::IdempotentWrite, Approval::ByEffect, false),
            (ToolEffect::NonIdempotentWrite, Approval::ByEffect, true),
            (ToolEffect::Unclassified, Approval::ByEffect, true),
            (ToolEffect::Read, Approval::Required, true),
            (ToolEffect::Unclassified, Approval::NotRequired, false),
        ] {
            assert_eq!(
                ToolPolicy::new(effect)
                    .with_approval(approval)
                    .requires_approval(),
                waits
            );
        }
    }
}

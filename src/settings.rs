//! What a session may change about its agent between turns (spec/core.md 23).

use serde::{Deserialize, Serialize};

/// How much the model thinks, as far as it can be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Effort {
    /// `low`
    Low,
    /// `medium`
    Medium,
    /// `high`
    High,
    /// `xhigh`
    XHigh,
    /// `max`
    Max,
}

impl Effort {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
            Self::XHigh => "xhigh",
            Self::Max => "max",
        }
    }
}

/// The settings of a session. What is `None` is as the Flow's own options say. A turn runs with the
/// settings of its start, whatever changes while it runs (N45).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[expect(
    clippy::exhaustive_structs,
    reason = "an application writes it as a literal"
)]
pub struct SessionSettings {
    /// The model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// What the model is told behind the Flow's own instructions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    /// How much the model thinks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_effort: Option<Effort>,
}

impl SessionSettings {
    /// Returns how many bytes the settings take as they are stored.
    #[must_use]
    pub fn stored_bytes(&self) -> usize {
        serde_json::to_string(self).map_or(usize::MAX, |it| it.len())
    }

    /// True when nothing is set.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

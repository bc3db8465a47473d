//! What a segment starts from.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use crate::ids::{ClaudeSessionId, ToolCallId};
use crate::policy::{ToolPolicies, ToolPolicy};
use crate::protocol::AgentSetup;
use crate::record::TranscriptEntry;
use crate::turn::ResumedCall;

/// What one segment starts from. Created by the runner.
#[derive(Debug, Clone)]
#[cfg_attr(
    feature = "unstable",
    expect(
        clippy::exhaustive_structs,
        reason = "plain data that the runner fills in"
    )
)]
pub struct SegmentPlan {
    /// The name of the custom tool server.
    pub server_name: String,
    /// The custom tools by their own names, with their policies.
    pub custom_tools: BTreeMap<String, ToolPolicy>,
    /// The policies of the tools inside the CLI.
    pub policies: ToolPolicies,
    /// True when the application has hooks: each new call is asked about by
    /// [`Action::AskHooks`](super::Action::AskHooks) before it is decided.
    pub asks_hooks: bool,
    /// The tools, by their policy names, for which the application has an approval rule: each new
    /// call of them is asked about in the same way, and the rule's word replaces the approval that
    /// the policy names, never the effect.
    pub ruled: BTreeSet<String>,
    /// True when the CLI has rules of its own that may refuse a call before it asks us again.
    pub has_refusing_rules: bool,
    /// What the CLI is told of the options.
    pub setup: AgentSetup,
    /// The model that the options name, if they name one.
    pub model: Option<String>,
    /// The Claude session that goes on; `None` starts one.
    pub resume: Option<ClaudeSessionId>,
    /// The calls that have a result in the transcript: their ids are used up (L25).
    pub answered: BTreeSet<ToolCallId>,
    /// The built-in tools that the CLI offers.
    pub offered: BTreeSet<String>,
    /// How gated calls wait.
    pub path: GatedPath,
    /// True when the CLI runs already, after an earlier turn.
    pub is_warm: bool,
    /// True when the CLI is to stay after a turn that was answered.
    pub stays: bool,
    /// What the CLI is to do first.
    pub start: SegmentStart,
}

/// How gated calls wait for their outcome (design.md 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(
    feature = "unstable",
    expect(
        clippy::exhaustive_enums,
        reason = "the two ways are a design decision"
    )
)]
pub enum GatedPath {
    /// The process waits with them, while it is worth it, and every tool boundary is a checkpoint.
    Live,
    /// The CLI ends at the first of them: its own deferral.
    Native,
}

/// What the CLI is to do first.
#[derive(Debug, Clone)]
#[cfg_attr(
    feature = "unstable",
    expect(
        clippy::exhaustive_enums,
        reason = "a segment starts a turn or goes on with one"
    )
)]
pub enum SegmentStart {
    /// Answer these texts, oldest first; never empty.
    Turn {
        /// One text block each.
        prompt: Vec<String>,
        /// The id of the prompt's transcript entry; `None` leaves it to the CLI.
        uuid: Option<String>,
    },
    /// Go on with the call that the transcript ends in, by its native deferral.
    Resume {
        /// The pending call with its record.
        call: ResumedCall,
    },
    /// Go on in the middle of the turn, from what [`resume`](super::resume) made.
    Continue {
        /// The entries that are not stored yet.
        added: Vec<TranscriptEntry>,
        /// Those of them whose messages are stored.
        told: HashSet<String>,
        /// The waiting tool of the CLI that it is made to run, with its record.
        call: Option<ResumedCall>,
    },
}

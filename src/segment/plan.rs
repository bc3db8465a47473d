//! What a segment starts from.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{ClaudeSessionId, ToolCallId};
use crate::policy::{ToolPolicies, ToolPolicy};
use crate::protocol::AgentSetup;
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
    /// True when the CLI has rules of its own that may refuse a call before it asks us again.
    pub has_refusing_rules: bool,
    /// What the CLI is told of the options.
    pub setup: AgentSetup,
    /// The Claude session that goes on; `None` starts one.
    pub resume: Option<ClaudeSessionId>,
    /// The calls that have a result in the transcript: their ids are used up (L25).
    pub answered: BTreeSet<ToolCallId>,
    /// What the CLI is to do first.
    pub start: SegmentStart,
}

/// What the CLI is to do first.
#[derive(Debug, Clone)]
#[cfg_attr(
    feature = "unstable",
    expect(
        clippy::exhaustive_enums,
        reason = "a segment starts with a prompt or without one"
    )
)]
pub enum SegmentStart {
    /// Answer these texts, oldest first; never empty.
    Turn {
        /// One text block each.
        prompt: Vec<String>,
    },
    /// Go on with the call that the transcript ends in.
    Resume {
        /// The pending call with its record.
        call: ResumedCall,
    },
}

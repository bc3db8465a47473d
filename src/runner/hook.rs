//! [`PreToolUseHook`]: what an application may say about a call before anything is decided.

use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;

use crate::ids::ToolCallId;
use crate::turn::RunModelContext;

pub use crate::segment::CallingSubAgent;

/// How long one hook may take, unless the application sets another limit: a hook checks and
/// rewrites, and a person who has to decide is asked by a policy.
pub const PRE_TOOL_USE_HOOK_DEADLINE_DEFAULT: Duration = Duration::from_secs(60);

/// A hook of the application: it sees each call before the gate decides about it, and may change
/// its input or deny it. Registered by
/// [`pre_tool_use_hook`](crate::runner::ClaudeAgentRunnerBuilder::pre_tool_use_hook).
///
/// It runs in this process, once for each tool use id of a segment. What it returns is the *final
/// input*: the policy, the person who approves, the record and the tool see that one (G4). It is not
/// asked about a call that is resumed from its record: it saw the call when the call was deferred.
/// A segment that is repeated after a crash asks about the calls that the model makes then.
#[async_trait]
pub trait PreToolUseHook: Send + Sync + std::fmt::Debug {
    /// Says whether the call goes on, and with which input.
    ///
    /// # Errors
    /// Any error denies the call, and so do a panic and a hook that takes longer than its deadline.
    /// The model is told that the hook failed, never the error's text.
    ///
    /// # Cancel safety
    /// The call is dropped when the CLI no longer waits for it or the segment ends.
    async fn pre_tool_use(
        &self,
        call: PreToolUse,
    ) -> Result<PreToolUseDecision, Box<dyn std::error::Error + Send + Sync>>;
}

/// A call that a hook is asked about. Created by the runner.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct PreToolUse {
    /// Which attempt of which turn makes the call.
    pub context: RunModelContext,
    /// The model's name for the call.
    pub tool_call_id: ToolCallId,
    /// The policy name of the tool (`create_refund`, `Bash`).
    pub tool_name: String,
    /// The sub-agent that makes the call; `None` for the main conversation.
    pub sub_agent: Option<CallingSubAgent>,
    /// The input, with the changes of the hooks before: always an object.
    pub input: Value,
}

/// What a hook says about a call.
#[derive(Debug, Clone, PartialEq)]
#[expect(
    clippy::exhaustive_enums,
    reason = "hosts build it; a call goes on or it does not"
)]
pub enum PreToolUseDecision {
    /// The next hook is asked, and after the last one the gate decides. It is no permission.
    Continue {
        /// The input from here on, if the hook changes it. Anything but an object denies the call.
        updated_input: Option<Value>,
    },
    /// The call does not run, and no further hook is asked.
    Deny {
        /// What the model reads.
        reason: String,
    },
}

impl PreToolUseDecision {
    /// Leaves the call as it is.
    #[must_use]
    pub const fn unchanged() -> Self {
        Self::Continue {
            updated_input: None,
        }
    }

    /// Gives the call another input.
    #[must_use]
    pub const fn rewritten(input: Value) -> Self {
        Self::Continue {
            updated_input: Some(input),
        }
    }

    /// Denies the call; the model reads the reason.
    #[must_use]
    pub fn denied(reason: impl Into<String>) -> Self {
        Self::Deny {
            reason: reason.into(),
        }
    }
}

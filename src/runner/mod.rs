//! The contract of a runner: how one segment of a turn runs, and how a gated call runs in its Step.
//!
//! [`ClaudeAgentRunner`] is the one this crate is about; the contract knows nothing of Claude.

mod claude;
mod history;
mod hook;
mod link;
mod slots;

use async_trait::async_trait;

use crate::failure::AttemptFailure;
use crate::ids::{IdempotencyKey, LeaseEpoch, SessionId, ToolCallId, TurnId};
use crate::turn::{ResumedCall, RunModelContext, RunModelOutcome};

pub use crate::model_call::ModelCallMetadata;
pub use crate::turn::{
    LIVE_WINDOW_DEFAULT, SegmentEvent, SegmentProgress, SegmentReply, ToolCallEnd,
};
pub use claude::{
    ApiKeyHelper, CUSTOM_TOOL_SERVER_NAME_DEFAULT, ClaudeAgentOptions, ClaudeAgentRunner,
    ClaudeAgentRunnerBuilder, CliEnvironment, CliVersionPolicy, Effort, GatedCallWait,
    LIVE_CLI_VERSIONS, McpServer, PermissionMode, SettingSource, SubAgent, TESTED_CLI_VERSIONS,
};
pub use history::History;
pub(crate) use history::{blob_key, tail, window_after};
pub use hook::{
    CallingSubAgent, PRE_TOOL_USE_HOOK_DEADLINE_DEFAULT, PreToolUse, PreToolUseDecision,
    PreToolUseHook,
};
pub use link::{LinkError, LivePiece, SegmentLink, SegmentUpdate};
pub use slots::{ProcessSlot, ProcessSlots, WaitMeter};

/// What one segment starts from.
#[derive(Debug)]
#[non_exhaustive]
pub struct RunModelRequest {
    /// Which attempt of which Step this is.
    pub context: RunModelContext,
    /// The conversation so far, oldest first; texts after the last transcript item never reached
    /// the framework (I04).
    pub history: History,
    /// The gated calls that the segment must answer first; empty when the segment starts a turn.
    pub calls: Vec<ResumedCall>,
    /// The place that the segment's process has among those of the worker; `None` when they are not
    /// limited. Give it back while the process waits.
    pub slot: Option<ProcessSlot>,
}

impl RunModelRequest {
    /// Describes a segment.
    #[must_use]
    pub const fn new(context: RunModelContext, history: History, calls: Vec<ResumedCall>) -> Self {
        Self {
            context,
            history,
            calls,
            slot: None,
        }
    }

    /// Gives the segment's process a place among those of the worker.
    #[must_use]
    pub fn with_slot(mut self, slot: ProcessSlot) -> Self {
        self.slot = Some(slot);
        self
    }
}

/// A gated call that is to run in its Step.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ToolCallRequest {
    /// The session.
    pub session_id: SessionId,
    /// The turn whose model asked for it.
    pub turn_id: TurnId,
    /// The model's name for it.
    pub tool_call_id: ToolCallId,
    /// The policy name of the tool.
    pub tool_name: String,
    /// The recorded final input, as JSON text (G4).
    pub arguments: String,
    /// Which start this is, counted from 1.
    pub attempt: u32,
    /// The same for every start (G2).
    pub idempotency_key: IdempotencyKey,
    /// The owner's epoch (G8).
    pub fence: LeaseEpoch,
}

impl ToolCallRequest {
    /// Describes one start of a call.
    #[must_use]
    #[expect(
        clippy::too_many_arguments,
        reason = "each one is a fact that the engine has at hand, and none has a default"
    )]
    pub fn new(
        session_id: SessionId,
        turn_id: TurnId,
        tool_call_id: ToolCallId,
        tool_name: impl Into<String>,
        arguments: impl Into<String>,
        attempt: u32,
        idempotency_key: IdempotencyKey,
        fence: LeaseEpoch,
    ) -> Self {
        Self {
            session_id,
            turn_id,
            tool_call_id,
            tool_name: tool_name.into(),
            arguments: arguments.into(),
            attempt,
            idempotency_key,
            fence,
        }
    }
}

/// Runs segments and gated calls for a Flow.
///
/// Everything it does is at least once, unless a grant of the session says otherwise: the session
/// holds single-attempt calls behind their records.
#[async_trait]
pub trait AgentFrameworkRunner: Send + Sync + std::fmt::Debug {
    /// Runs one segment to its end. Calls that must not run inside it are returned in
    /// [`RunModelOutcome::ToolCallsRequested`]. Live text and the marks of calls that run inside
    /// the segment go through the link.
    ///
    /// # Errors
    /// [`AttemptFailure`]; nothing of the segment is kept then.
    ///
    /// # Cancel safety
    /// Dropping the call ends whatever runs for it.
    async fn run_model(
        &self,
        request: RunModelRequest,
        link: SegmentLink,
    ) -> Result<RunModelOutcome, AttemptFailure>;

    /// Runs one gated call once. Called only after its start mark is committed.
    ///
    /// # Cancel safety
    /// Dropping the call cancels the handler at its next await; what it did until then stays done.
    async fn call_tool(&self, call: ToolCallRequest) -> ToolCallEnd;

    /// Removes what a crashed worker left on this machine. Called once when an engine starts.
    async fn sweep_leftovers(&self) {}
}

//! Custom tools: what the application offers to the model.

mod custom;
mod guard;

use std::time::Duration;

use crate::ids::{IdempotencyKey, LeaseEpoch, SessionId, ToolCallId, TurnId};

pub use custom::CustomTool;
pub use guard::{ToolEnd, run_guarded};

/// How long a handler may run, unless its tool says otherwise: 15 minutes, as long as a segment.
pub const HANDLER_DEADLINE_DEFAULT: Duration = Duration::from_secs(15 * 60);

/// Which call a handler runs for. Created by the runner, handed to the handler.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ToolContext {
    /// The session.
    pub session_id: SessionId,
    /// The turn whose model asked for the call.
    pub turn_id: TurnId,
    /// The model's name for the call.
    pub tool_call_id: ToolCallId,
    /// Set when the call runs in its own Step, `None` inside a segment (B13).
    pub deferred_execution: Option<DeferredToolExecution>,
}

impl ToolContext {
    /// Names an inline call.
    #[must_use]
    pub const fn inline(session_id: SessionId, turn_id: TurnId, tool_call_id: ToolCallId) -> Self {
        Self {
            session_id,
            turn_id,
            tool_call_id,
            deferred_execution: None,
        }
    }
}

/// The attempt of a call that runs in its own Step.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeferredToolExecution {
    /// Which start of the call this is, counted from 1.
    pub attempt: u32,
    /// The same for every start of the call (G2).
    pub idempotency_key: IdempotencyKey,
    /// The owner's epoch: an outside system that remembers the largest it saw can refuse a stale one (G8).
    pub fence: LeaseEpoch,
}

impl DeferredToolExecution {
    /// Describes one start.
    #[must_use]
    pub const fn new(attempt: u32, idempotency_key: IdempotencyKey, fence: LeaseEpoch) -> Self {
        Self {
            attempt,
            idempotency_key,
            fence,
        }
    }
}

/// What a handler gives back.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ToolOutput {
    /// What the model reads.
    pub text: String,
    /// True when the call failed: the record is `failed`, and the model gets the text as an error (E18).
    pub is_error: bool,
}

impl ToolOutput {
    /// Makes the output of a call that succeeded.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            is_error: false,
        }
    }

    /// Makes the output of a call that failed.
    #[must_use]
    pub fn error(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            is_error: true,
        }
    }
}

/// Why a handler gives nothing back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ToolError {
    /// The call failed for good: the record is `failed`, and the model gets the message. Not retried.
    #[error("{message}")]
    Failed {
        /// What the model reads.
        message: String,
    },
    /// This attempt failed; whether it took effect is not known. An idempotent write is started
    /// again under its key, at most three times in all; any other call is `outcome_unknown` (E19).
    #[error("the attempt failed")]
    Attempt {
        /// What went wrong; never shown to the model.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl ToolError {
    /// Makes an error that ends the call; the model gets the message.
    #[must_use]
    pub fn failed(message: impl Into<String>) -> Self {
        Self::Failed {
            message: message.into(),
        }
    }

    /// Makes an error that ends this attempt.
    #[must_use]
    pub fn attempt(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Attempt {
            source: source.into(),
        }
    }

    /// True when the same call may be started again, if its effect allows it.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Failed { .. } => false,
            Self::Attempt { .. } => true,
        }
    }
}

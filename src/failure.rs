//! Why an attempt or a turn failed, in a closed list of classes.

use serde::{Deserialize, Serialize};

/// What kind of failure ended an attempt. It is stored and shown, so the list only grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FailureClass {
    /// The options of the agent contradict each other or what this crate owns. Never retried.
    Options,
    /// There is no CLI, or it cannot be executed. Never retried.
    CliUnavailable,
    /// The CLI refused an option that it does not know: it is too old. Never retried.
    CliTooOld,
    /// The CLI is of a version that the options refuse. Never retried.
    CliVersion,
    /// The CLI ended without a result, was killed, or its pipes broke.
    CliFailed,
    /// The CLI said something that breaks the contract; what it did is not trusted.
    CliContract,
    /// The CLI ran a call that nobody decided about, or that was refused (G5). Never retried: it
    /// would do so again.
    UndecidedCall,
    /// The API refused the credentials, or there are none. Never retried.
    Authentication,
    /// The API was overloaded, after the CLI's own retries.
    Overloaded,
    /// The API limits the rate, after the CLI's own retries.
    RateLimited,
    /// The conversation no longer fits the model. Never retried.
    PromptTooLong,
    /// A budget that the application set is used up. Never retried.
    BudgetExceeded,
    /// The application's [`SpendLimit`](crate::spend::SpendLimit) stopped the turn. Never retried.
    SpendLimit,
    /// The model called tools more often than the application allows. Never retried.
    MaxTurns,
    /// The API or the model failed in another way.
    ApiError,
    /// A media or state store failed.
    Store,
    /// The attempt was lost with its worker too often.
    AttemptsLost,
    /// The turn needed more segments than allowed.
    TooManySegments,
    /// The turn asked for more gated calls than its session's state has room for.
    TooManyCalls,
    /// The turn went on beyond the size that its session may have. Never retried.
    SessionFull,
    /// The runner broke its contract or panicked.
    Runner,
    /// One of a newer version, in an event that is read. Never stored.
    #[serde(skip_deserializing)]
    Unrecognized,
}

impl FailureClass {
    /// Every class that can be stored.
    pub const ALL: &'static [Self] = &[
        Self::Options,
        Self::CliUnavailable,
        Self::CliTooOld,
        Self::CliVersion,
        Self::CliFailed,
        Self::CliContract,
        Self::UndecidedCall,
        Self::Authentication,
        Self::Overloaded,
        Self::RateLimited,
        Self::PromptTooLong,
        Self::BudgetExceeded,
        Self::SpendLimit,
        Self::MaxTurns,
        Self::ApiError,
        Self::Store,
        Self::AttemptsLost,
        Self::TooManySegments,
        Self::TooManyCalls,
        Self::SessionFull,
        Self::Runner,
    ];

    /// True when another attempt may end differently.
    #[must_use]
    pub const fn is_retryable(self) -> bool {
        match self {
            Self::CliFailed
            | Self::CliContract
            | Self::Overloaded
            | Self::RateLimited
            | Self::ApiError
            | Self::Store
            | Self::Runner => true,
            Self::Options
            | Self::UndecidedCall
            | Self::CliUnavailable
            | Self::CliTooOld
            | Self::CliVersion
            | Self::Authentication
            | Self::PromptTooLong
            | Self::BudgetExceeded
            | Self::SpendLimit
            | Self::MaxTurns
            | Self::AttemptsLost
            | Self::TooManySegments
            | Self::TooManyCalls
            | Self::SessionFull
            | Self::Unrecognized => false,
        }
    }

    /// Returns the name it is stored and shown under.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Options => "options",
            Self::CliUnavailable => "cli_unavailable",
            Self::CliTooOld => "cli_too_old",
            Self::CliVersion => "cli_version",
            Self::CliFailed => "cli_failed",
            Self::CliContract => "cli_contract",
            Self::UndecidedCall => "undecided_call",
            Self::Authentication => "authentication",
            Self::Overloaded => "overloaded",
            Self::RateLimited => "rate_limited",
            Self::PromptTooLong => "prompt_too_long",
            Self::BudgetExceeded => "budget_exceeded",
            Self::SpendLimit => "spend_limit",
            Self::MaxTurns => "max_turns",
            Self::ApiError => "api_error",
            Self::Store => "store",
            Self::AttemptsLost => "attempts_lost",
            Self::TooManySegments => "too_many_segments",
            Self::TooManyCalls => "too_many_calls",
            Self::SessionFull => "session_full",
            Self::Runner => "runner",
            Self::Unrecognized => "unrecognized",
        }
    }
}

impl std::fmt::Display for FailureClass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Why one attempt failed. The detail is ours or bounded diagnostics; it never holds a secret (G10).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{class}: {detail}")]
#[non_exhaustive]
pub struct AttemptFailure {
    /// What kind of failure it is.
    pub class: FailureClass,
    /// More about it, for the person who runs the worker, at most [`DETAIL_BYTES_MAX`].
    pub detail: String,
    /// How long the other side asks to wait, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
}

/// The longest [`AttemptFailure::detail`] that is kept, in bytes; it becomes part of the state.
pub const DETAIL_BYTES_MAX: usize = 2_000;

impl AttemptFailure {
    /// Makes a failure; a detail over the limit is cut at a character.
    #[must_use]
    pub fn new(class: FailureClass, detail: impl Into<String>) -> Self {
        let mut detail = detail.into();
        if detail.len() > DETAIL_BYTES_MAX {
            let end = (0..=DETAIL_BYTES_MAX)
                .rev()
                .find(|it| detail.is_char_boundary(*it))
                .unwrap_or(0);
            detail.truncate(end);
        }
        Self {
            class,
            detail,
            retry_after_ms: None,
        }
    }
}

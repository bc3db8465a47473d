//! What can go wrong with a store.

use crate::ids::{LeaseEpoch, Revision, SessionId};
use crate::record::{FORMAT, RecordError};

/// A source error of a store's backend.
pub type BackendSource = Box<dyn std::error::Error + Send + Sync>;

/// What went wrong with a store, and whether it happened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Another commit came first. Nothing holds; load, reduce again and retry.
    #[error("the session is at revision {}, not {}", actual.0, expected.0)]
    Conflict {
        /// The revision the commit was made on.
        expected: Revision,
        /// The revision the session has.
        actual: Revision,
    },
    /// The caller no longer owns the session or was never registered. Nothing holds; stop working on it.
    #[error("the lease is held under another epoch")]
    Fenced {
        /// The epoch that the caller has, if it gave one.
        held: Option<LeaseEpoch>,
    },
    /// It may or may not hold. Read back before anything else.
    #[error("{operation} may or may not have been stored")]
    Ambiguous {
        /// What was being done.
        operation: &'static str,
        /// What the backend said.
        source: BackendSource,
    },
    /// There is no room. Nothing holds; retry when there is.
    #[error("the store is full")]
    Full {
        /// What the backend said.
        source: BackendSource,
    },
    /// The store is locked or overloaded. Nothing holds; retry.
    #[error("the store is busy")]
    Busy {
        /// What the backend said.
        source: BackendSource,
    },
    /// What is stored, or what was to be stored, breaks a rule of the store. Nothing was changed.
    #[error("stored data is damaged: {what}")]
    Corrupt {
        /// What does not fit.
        what: String,
    },
    /// It was written by a newer version of this crate. Nothing was changed.
    #[error("{what} has format {found}, this version reads up to {supported}")]
    TooNew {
        /// What was read.
        what: &'static str,
        /// Its format.
        found: u32,
        /// The newest format that can be read.
        supported: u32,
    },
    /// There is no such session.
    #[error("there is no session {session}")]
    NoSession {
        /// The id that was asked for.
        session: SessionId,
    },
    /// The payload codec has no key for the session, or none any more. Nothing was changed.
    #[error("there is no key for the session {session}")]
    NoKey {
        /// The session whose key is missing.
        session: SessionId,
    },
    /// The store cannot be opened as it is: missing, read-only, a directory, on a network file system.
    #[error("the store at {location} cannot be opened: {reason}")]
    Unusable {
        /// Where it was looked for.
        location: String,
        /// Why, in a few words.
        reason: String,
    },
    /// The backend failed in another way. Nothing holds.
    #[error("the store failed to {operation}")]
    Backend {
        /// What was being done.
        operation: &'static str,
        /// What the backend said.
        source: BackendSource,
    },
}

impl StoreError {
    /// True when the same call may succeed later without anybody mending anything.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Conflict { .. }
            | Self::Busy { .. }
            | Self::Full { .. }
            | Self::Ambiguous { .. } => true,
            Self::Fenced { .. }
            | Self::Corrupt { .. }
            | Self::TooNew { .. }
            | Self::NoSession { .. }
            | Self::NoKey { .. }
            | Self::Unusable { .. }
            | Self::Backend { .. } => false,
        }
    }

    /// True when what was to be stored may be stored all the same.
    #[must_use]
    pub fn may_have_happened(&self) -> bool {
        match self {
            Self::Ambiguous { .. } => true,
            Self::Conflict { .. }
            | Self::Busy { .. }
            | Self::Full { .. }
            | Self::Fenced { .. }
            | Self::Corrupt { .. }
            | Self::TooNew { .. }
            | Self::NoSession { .. }
            | Self::NoKey { .. }
            | Self::Unusable { .. }
            | Self::Backend { .. } => false,
        }
    }
}

impl From<RecordError> for StoreError {
    /// A record that cannot be read makes the store unreadable for this session.
    fn from(error: RecordError) -> Self {
        match error {
            RecordError::TooNew { what, found } => Self::TooNew {
                what,
                found,
                supported: FORMAT,
            },
            RecordError::Damaged { what, source } => Self::Corrupt {
                what: format!("{what}: {source}"),
            },
        }
    }
}

//! Why a client's call changed nothing, or may have.

use crate::ids::{FlowType, RequestId, SessionId};
use crate::session::{Bug, ReduceError, Refusal};
use crate::store::StoreError;

/// Why a call of [`AgentSessionClient`](super::AgentSessionClient) gave no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// There is no such session. Nothing changed.
    #[error("there is no session {session}")]
    NoSession {
        /// The id that was asked for.
        session: SessionId,
    },
    /// The id is taken by a session that was started with another content. Nothing changed.
    #[error("session {session} exists and was started with another content")]
    SessionExists {
        /// The id that is taken.
        session: SessionId,
    },
    /// No Flow of this type is registered with the engine. Nothing changed.
    #[error("no flow of type {flow_type} is registered")]
    UnknownFlowType {
        /// The type that was asked for.
        flow_type: FlowType,
    },
    /// The request is refused. Nothing changed.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The request id was used for another request. Nothing changed (P04).
    #[error("request id {request_id} was used for another request")]
    RequestConflict {
        /// The id that is taken.
        request_id: RequestId,
    },
    /// The store failed; [`StoreError::may_have_happened`] says whether the request may hold.
    #[error("the store failed")]
    Store(#[from] StoreError),
    /// This crate broke its own rule. Nothing changed.
    #[error(transparent)]
    Bug(#[from] Bug),
}

impl ClientError {
    /// True when the same call may succeed later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Store(error) => error.is_retryable(),
            Self::Refused(Refusal::QueueFull) => true,
            Self::NoSession { .. }
            | Self::SessionExists { .. }
            | Self::UnknownFlowType { .. }
            | Self::Refused(_)
            | Self::RequestConflict { .. }
            | Self::Bug(_) => false,
        }
    }
}

impl ClientError {
    /// True when the request may hold all the same; the same call again, with a request id, finds out.
    #[must_use]
    pub fn may_have_happened(&self) -> bool {
        match self {
            Self::Store(error) => error.may_have_happened(),
            Self::NoSession { .. }
            | Self::SessionExists { .. }
            | Self::UnknownFlowType { .. }
            | Self::Refused(_)
            | Self::RequestConflict { .. }
            | Self::Bug(_) => false,
        }
    }
}

impl ClientError {
    /// A refusal stays one, whoever reduced.
    pub(super) fn of_reduce(error: ReduceError) -> Self {
        match error {
            ReduceError::Refused(refusal) => Self::Refused(refusal),
            ReduceError::Bug(bug) => Self::Bug(bug),
        }
    }
}

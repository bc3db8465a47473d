//! What sessions are listed by.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::{FlowType, Revision, SessionId, Tenant, Timestamp};

/// What a session is doing (spec/core.md 3).
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SessionStatus {
    /// It waits for a message.
    #[default]
    Idle,
    /// A segment or a tool Step runs, or is due.
    Running,
    /// It waits for a person to decide about a call.
    AwaitingApproval,
    /// It is over.
    Ended,
}

impl SessionStatus {
    /// Returns the name it is stored and shown under.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Running => "running",
            Self::AwaitingApproval => "awaiting_approval",
            Self::Ended => "ended",
        }
    }

    /// Returns the status with this name, `None` for one of a newer version.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [
            Self::Idle,
            Self::Running,
            Self::AwaitingApproval,
            Self::Ended,
        ]
        .into_iter()
        .find(|it| it.name() == name)
    }
}

/// The indexed part of a session; each commit carries it anew.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[expect(
    clippy::exhaustive_structs,
    reason = "stores that hosts write read every field"
)]
pub struct SessionSummary {
    /// Which Flow it runs; `None` only in a default value.
    pub flow_type: Option<FlowType>,
    /// What it is doing.
    pub status: SessionStatus,
    /// Whose it is.
    pub tenant: Option<Tenant>,
    /// What the application said about it at its start.
    pub metadata: BTreeMap<String, String>,
    /// When it was started.
    pub created_at: Timestamp,
    /// When it was last committed.
    pub updated_at: Timestamp,
    /// When a worker has something to do for it: a time in the past for at once, `None` for never.
    pub due_at: Option<Timestamp>,
}

/// Which sessions to list. The default matches all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "callers write it as a literal")]
pub struct SessionFilter {
    /// Only sessions of this Flow.
    pub flow_type: Option<FlowType>,
    /// Only sessions with this status.
    pub status: Option<SessionStatus>,
    /// Only sessions of this tenant.
    pub tenant: Option<Tenant>,
    /// Only sessions with something to do for a worker at this time.
    pub due_by: Option<Timestamp>,
    /// Only sessions whose id comes after this one; the place to go on from.
    pub after: Option<SessionId>,
}

/// One session of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "stores that hosts write build it"
)]
pub struct SummaryRow {
    /// Which session.
    pub session: SessionId,
    /// Counts the commits under this id, those of deleted sessions included.
    pub revision: Revision,
    /// What it is listed by.
    pub summary: SessionSummary,
}

/// A page of a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "stores that hosts write build it"
)]
pub struct SessionPage {
    /// The sessions, ordered by id.
    pub rows: Vec<SummaryRow>,
    /// True when more sessions match than were asked for.
    pub has_more: bool,
}

//! What sessions are listed by.

use crate::commit::{SessionStatus, SessionSummary};
use crate::ids::{FlowType, Revision, SessionId, Tenant, Timestamp};

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

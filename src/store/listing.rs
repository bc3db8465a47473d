//! What sessions are listed by.

use std::collections::BTreeMap;

use crate::commit::{SessionStatus, SessionSummary};
use crate::event::StepKind;
use crate::ids::{FlowType, InterruptId, Revision, SessionId, Tenant, Timestamp};
use crate::record::OpenInterrupt;

/// Which sessions to list. The default matches all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "callers write it as a literal")]
pub struct SessionFilter {
    /// Only sessions of this Flow.
    pub flow_type: Option<FlowType>,
    /// Only sessions with this status.
    pub status: Option<SessionStatus>,
    /// Only sessions that are at a Step of this kind.
    pub step: Option<StepKind>,
    /// Only sessions of this tenant.
    pub tenant: Option<Tenant>,
    /// Only sessions that were started with each of these keys and exactly its value.
    pub metadata: BTreeMap<String, String>,
    /// Only sessions that were started in this time.
    pub created: TimeRange,
    /// Only sessions whose last commit was in this time.
    pub updated: TimeRange,
    /// Only sessions with something to do for a worker at this time.
    pub due_by: Option<Timestamp>,
    /// Only sessions whose id comes after this one; the place to go on from.
    pub after: Option<SessionId>,
}

/// A stretch of time; the default is all of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "callers write it as a literal")]
pub struct TimeRange {
    /// The first moment that belongs to it.
    pub from: Option<Timestamp>,
    /// The first moment after it.
    pub before: Option<Timestamp>,
}

impl TimeRange {
    /// True when the moment belongs to it.
    #[must_use]
    pub fn contains(&self, at: Timestamp) -> bool {
        self.from.is_none_or(|from| from <= at) && self.before.is_none_or(|before| at < before)
    }
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

/// Which open interrupts to list. The default matches all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "callers write it as a literal")]
pub struct InterruptFilter {
    /// Only those of sessions of this Flow.
    pub flow_type: Option<FlowType>,
    /// Only those of sessions of this tenant.
    pub tenant: Option<Tenant>,
    /// Only those that are decided without a person by this time.
    pub expires_by: Option<Timestamp>,
    /// Only those that come after this place; where to go on from.
    pub after: Option<InterruptPosition>,
}

/// The place of an interrupt in the list of all open ones, which it keeps as long as it is open. The
/// order is that of the fields; ids compare by their bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[expect(
    clippy::exhaustive_structs,
    reason = "callers keep its parts and build it again"
)]
pub struct InterruptPosition {
    /// When the model asked for the call.
    pub requested_at: Timestamp,
    /// Its session.
    pub session: SessionId,
    /// Its id.
    pub interrupt_id: InterruptId,
}

/// One open interrupt of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "stores that hosts write build it"
)]
pub struct InterruptRow {
    /// Its session.
    pub session: SessionId,
    /// Which Flow the session runs.
    pub flow_type: Option<FlowType>,
    /// Whose the session is.
    pub tenant: Option<Tenant>,
    /// What it is about.
    pub interrupt: OpenInterrupt,
}

impl InterruptRow {
    /// Returns its place in the list.
    #[must_use]
    pub fn position(&self) -> InterruptPosition {
        InterruptPosition {
            requested_at: self.interrupt.requested_at,
            session: self.session.clone(),
            interrupt_id: self.interrupt.interrupt_id.clone(),
        }
    }
}

/// A page of open interrupts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "stores that hosts write build it"
)]
pub struct InterruptPage {
    /// The interrupts, oldest first.
    pub rows: Vec<InterruptRow>,
    /// True when more match than were asked for.
    pub has_more: bool,
}

//! Coming to own a session: what is found due, and how a driver stands to the lease.

use std::sync::Arc;
use std::time::Duration;

use super::local::Shared;
use crate::ids::{LeaseEpoch, Revision, SessionId, Timestamp};
use crate::session::SessionState;
use crate::store::{Lease, StoreError};

/// A session whose next Step is due later than this is left to the supervisor's scan.
pub(super) const NEAR: Duration = Duration::from_secs(10);

/// A session that has something to do, as it was found.
pub(super) struct Due {
    pub(super) lease: Option<Lease>,
    epoch: LeaseEpoch,
    found: Found,
}

/// The state that a driver begins with.
pub(super) struct Found {
    pub(super) revision: Revision,
    pub(super) state: Arc<SessionState>,
}

/// How a driver comes to own its session. Whatever it was found in, the store decides: a driver that
/// is too late is refused at its first commit, before it did anything.
pub(super) struct Claim {
    pub(super) epoch: LeaseEpoch,
    pub(super) tenure: Tenure,
    /// `None`: it has to look itself, because it may have changed since it was found.
    pub(super) found: Option<Found>,
}

/// How a driver stands to the lease, under its one epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tenure {
    /// It was free; the first commit takes it, or is refused.
    Wanted,
    Held,
    /// The last commit gave it back.
    Over,
}

/// Looks whether this worker has something to do for the session, now or soon.
pub(super) async fn find_due(
    shared: &Shared,
    session: &SessionId,
) -> Result<Option<Due>, StoreError> {
    let Some(stored) = shared.store.load(session).await? else {
        return Ok(None);
    };
    let state = SessionState::read(&stored.state)?;
    if shared.registry.flow(&state.flow_type).is_none() || !is_near(shared, state.due_at()) {
        return Ok(None);
    }
    Ok(Some(Due {
        lease: stored.lease,
        epoch: stored.epoch,
        found: Found {
            revision: stored.revision,
            state: Arc::new(state),
        },
    }))
}

/// True when what is due then is a driver's business, and not left to a later scan.
pub(super) fn is_near(shared: &Shared, due_at: Option<Timestamp>) -> bool {
    let soon = shared.options.clock.now().after(NEAR);
    due_at.is_some_and(|at| at <= soon)
}

impl Claim {
    /// Works under an epoch that was acquired.
    pub(super) const fn held(epoch: LeaseEpoch) -> Self {
        Self {
            epoch,
            tenure: Tenure::Held,
            found: None,
        }
    }

    /// Works under the next epoch of a lease that was found free.
    pub(super) fn free(due: Due) -> Self {
        Self {
            epoch: LeaseEpoch(due.epoch.0 + 1),
            tenure: Tenure::Wanted,
            found: Some(due.found),
        }
    }
}

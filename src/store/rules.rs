//! What both stores refuse, in one place, so that they refuse it alike.

use std::collections::HashSet;

use super::{
    EventRow, Fence, InterruptFilter, InterruptRow, SessionFilter, SessionSummary, StoreError,
};
use crate::ids::{ChunkId, EventCursor, LeaseEpoch, Revision};
use crate::record::OpenInterrupt;

/// The lease of a session that exists.
#[derive(Debug, Clone, Copy)]
pub(super) struct LeaseTerm {
    pub(super) epoch: LeaseEpoch,
    pub(super) is_held: bool,
}

/// Refuses a caller for whom the lease is not as the fence demands. That who takes a lease is
/// registered is the store's to check.
pub(super) fn check_fence(
    fence: Option<&Fence>,
    lease: Option<LeaseTerm>,
) -> Result<(), StoreError> {
    let Some(fence) = fence else { return Ok(()) };
    let is_met = lease.is_some_and(|it| match fence {
        Fence::Take { epoch, .. } => !it.is_held && it.epoch.0.checked_add(1) == Some(epoch.0),
        Fence::Hold(epoch) | Fence::Release(epoch) => it.is_held && it.epoch == *epoch,
    });
    if is_met { Ok(()) } else { Err(fenced(fence)) }
}

pub(super) fn fenced(fence: &Fence) -> StoreError {
    StoreError::Fenced {
        held: Some(fence.epoch()),
    }
}

/// Refuses a commit on another revision; a session that does not exist is at revision zero.
pub(super) fn check_revision(
    expected: Revision,
    present: Option<Revision>,
) -> Result<(), StoreError> {
    let actual = present.unwrap_or_default();
    if actual == expected {
        Ok(())
    } else {
        Err(StoreError::Conflict { expected, actual })
    }
}

/// Refuses events that do not follow the last stored one without a gap (G13).
pub(super) fn check_cursors(last: EventCursor, events: &[EventRow]) -> Result<(), StoreError> {
    for (event, next) in events.iter().zip(last.0 + 1..) {
        if event.cursor.0 != next {
            return Err(StoreError::Corrupt {
                what: format!("event {} where {next} comes next", event.cursor.0),
            });
        }
    }
    Ok(())
}

pub(super) fn reused_chunk(chunk: ChunkId) -> StoreError {
    StoreError::Corrupt {
        what: format!("chunk {} is there already", chunk.0),
    }
}

pub(super) fn missing_parent(chunk: ChunkId, parent: ChunkId) -> StoreError {
    StoreError::Corrupt {
        what: format!(
            "chunk {} follows chunk {}, which does not exist",
            chunk.0, parent.0
        ),
    }
}

pub(super) fn missing_chunk(chunk: ChunkId) -> StoreError {
    StoreError::Corrupt {
        what: format!("there is no chunk {}", chunk.0),
    }
}

/// True when the filter lets this session through; [`SessionFilter::after`] is the caller's.
pub(super) fn matches(filter: &SessionFilter, summary: &SessionSummary) -> bool {
    let SessionFilter {
        flow_type,
        status,
        step,
        tenant,
        metadata,
        created,
        updated,
        due_by,
        after: _,
    } = filter;
    let flow_fits = flow_type.is_none() || *flow_type == summary.flow_type;
    let status_fits = status.is_none_or(|it| it == summary.status);
    let tenant_fits = tenant.is_none() || *tenant == summary.tenant;
    let due_fits = due_by.is_none_or(|by| summary.due_at.is_some_and(|at| at <= by));
    let step_fits = step.is_none() || *step == summary.step;
    let metadata_fits = (metadata.iter()).all(|(key, it)| summary.metadata.get(key) == Some(it));
    let times_fit = created.contains(summary.created_at) && updated.contains(summary.updated_at);
    flow_fits && status_fits && step_fits && tenant_fits && metadata_fits && times_fit && due_fits
}

/// True when the filter lets this interrupt through, [`InterruptFilter::after`] included.
pub(super) fn matches_interrupt(filter: &InterruptFilter, row: &InterruptRow) -> bool {
    let InterruptFilter {
        flow_type,
        tenant,
        expires_by,
        after,
    } = filter;
    let flow_fits = flow_type.is_none() || *flow_type == row.flow_type;
    let tenant_fits = tenant.is_none() || *tenant == row.tenant;
    let end_fits = expires_by.is_none_or(|by| row.interrupt.expires_at.is_some_and(|it| it <= by));
    let place_fits = after.as_ref().is_none_or(|it| row.position() > *it);
    flow_fits && tenant_fits && end_fits && place_fits
}

/// Refuses interrupts of one commit that share an id.
pub(super) fn check_interrupts(interrupts: &[OpenInterrupt]) -> Result<(), StoreError> {
    let mut ids = HashSet::new();
    match interrupts.iter().find(|it| !ids.insert(&it.interrupt_id)) {
        Some(twice) => Err(StoreError::Corrupt {
            what: format!("interrupt {} stands twice in a commit", twice.interrupt_id),
        }),
        None => Ok(()),
    }
}

//! What each write does to the tables, inside the writer's transaction.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension as _, params};

use super::failure::{Fault, bound, column, count, minute_column, time_column};
use super::interrupts::{self, Owner};
use super::read;
use super::values::{self, PackedCommit};
use crate::event::StepKind;
use crate::ids::{ChunkId, EventCursor, LeaseEpoch, Revision, SessionId};
use crate::store::{
    Chunk, Commit, EventRow, Fence, LeaseAnswer, RowChange, SessionSummary, StoreError, WorkerId,
    WorkerRecord, rules,
};

/// Marks what a transaction changes, for other stores over the same file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stamp {
    pub(super) change_seq: i64,
    pub(super) change_by: i64,
}

/// What a commit has to know about the session it changes.
struct Present {
    number: i64,
    revision: Revision,
    last_cursor: EventCursor,
    lease: rules::LeaseTerm,
}

pub(super) fn commit(
    at: &Connection,
    stamp: Stamp,
    id: &SessionId,
    expected: Revision,
    fence: Option<&Fence>,
    packed: &PackedCommit,
) -> Result<Revision, Fault> {
    let commit = &packed.commit;
    let present = present(at, id)?;
    rules::check_fence(fence, present.as_ref().map(|it| it.lease))?;
    if let Some(fence @ Fence::Take { worker, .. }) = fence
        && !is_registered(at, worker)?
    {
        return Err(rules::fenced(fence).into());
    }
    rules::check_revision(expected, present.as_ref().map(|it| it.revision))?;
    let session = match present {
        Some(it) => it,
        None => create(at, stamp, id)?,
    };
    rules::check_cursors(session.last_cursor, &commit.events)?;

    let revision = Revision(session.revision.0 + 1);
    let last_cursor = commit
        .events
        .last()
        .map_or(session.last_cursor, |it| it.cursor);
    insert_chunks(at, session.number, &commit.chunks)?;
    if let Some(head) = commit.head
        && !has_chunk(at, session.number, head)?
    {
        return Err(rules::missing_chunk(head).into());
    }
    at.prepare_cached(
        "UPDATE sessions SET revision = ?2, head = ?3, last_cursor = ?4, updated_at = ?5,
         change_seq = ?6, change_by = ?7 WHERE number = ?1",
    )?
    .execute(params![
        session.number,
        column(revision.0)?,
        commit.head.map(|it| column(it.0)).transpose()?,
        column(last_cursor.0)?,
        time_column(commit.summary.updated_at),
        stamp.change_seq,
        stamp.change_by,
    ])?;
    update_listing(at, session.number, id, commit)?;
    at.prepare_cached("INSERT OR REPLACE INTO states (session, state) VALUES (?1, ?2)")?
        .execute(params![session.number, commit.state])?;
    change_rows(at, session.number, packed)?;
    add_events(at, session.number, &commit.events)?;
    match fence {
        Some(Fence::Take { worker, epoch }) => set_lease(at, session.number, *epoch, Some(worker))?,
        Some(Fence::Release(epoch)) => set_lease(at, session.number, *epoch, None)?,
        Some(Fence::Hold(_)) | None => {}
    }
    Ok(revision)
}

fn present(at: &Connection, id: &SessionId) -> rusqlite::Result<Option<Present>> {
    at.prepare_cached(
        "SELECT number, revision, last_cursor, lease_epoch, lease_worker IS NOT NULL
         FROM sessions WHERE id = ?1",
    )?
    .query_row([id.as_str()], |row| {
        Ok(Present {
            number: row.get(0)?,
            revision: Revision(count(row, 1)?),
            last_cursor: EventCursor(count(row, 2)?),
            lease: rules::LeaseTerm {
                epoch: LeaseEpoch(count(row, 3)?),
                is_held: row.get(4)?,
            },
        })
    })
    .optional()
}

fn create(at: &Connection, stamp: Stamp, id: &SessionId) -> Result<Present, Fault> {
    let (revision, epoch): (u64, u64) = at
        .prepare_cached(
            "DELETE FROM deleted_sessions WHERE id = ?1 RETURNING revision, lease_epoch",
        )?
        .query_row([id.as_str()], |row| Ok((count(row, 0)?, count(row, 1)?)))
        .optional()?
        .unwrap_or_default();
    let number = at
        .prepare_cached(
            "INSERT INTO sessions (id, revision, last_cursor, lease_epoch, change_seq, change_by,
             status, metadata, created_at, updated_at)
             VALUES (?1, ?2, 0, ?3, ?4, ?5, '', '', 0, 0)",
        )?
        .insert(params![
            id.as_str(),
            column(revision)?,
            column(epoch)?,
            stamp.change_seq,
            stamp.change_by,
        ])?;
    Ok(Present {
        number,
        revision: Revision(revision),
        last_cursor: EventCursor(0),
        lease: rules::LeaseTerm {
            epoch: LeaseEpoch(epoch),
            is_held: false,
        },
    })
}

/// Writes what is listed only where it differs: each index that is touched is one more page to sync.
fn update_listing(
    at: &Connection,
    session: i64,
    id: &SessionId,
    commit: &Commit,
) -> Result<(), Fault> {
    let SessionSummary {
        flow_type,
        status,
        step,
        tenant,
        metadata,
        created_at,
        updated_at,
        due_at,
    } = &commit.summary;
    let (flow_type, tenant) = (
        flow_type.as_ref().map(|it| it.as_str().to_owned()),
        tenant.as_ref().map(|it| it.as_str().to_owned()),
    );
    let encoded = serde_json::to_string(metadata).map_err(|it| StoreError::Backend {
        operation: "encode the metadata",
        source: it.into(),
    })?;
    let changed = at
        .prepare_cached(
            "UPDATE sessions SET flow_type = ?2, tenant = ?3, metadata = ?4, created_at = ?5
             WHERE number = ?1 AND (flow_type IS NOT ?2 OR tenant IS NOT ?3 OR metadata IS NOT ?4
             OR created_at IS NOT ?5)",
        )?
        .execute(params![
            session,
            flow_type,
            tenant,
            encoded,
            time_column(*created_at),
        ])?;
    if changed > 0 {
        index_metadata(at, session, id, metadata)?;
    }
    at.prepare_cached(
        "UPDATE sessions SET status = ?2, step = ?3
         WHERE number = ?1 AND (status IS NOT ?2 OR step IS NOT ?3)",
    )?
    .execute(params![session, status.name(), step.map(StepKind::name)])?;
    at.prepare_cached("UPDATE sessions SET due_at = ?2 WHERE number = ?1 AND due_at IS NOT ?2")?
        .execute(params![session, due_at.map(time_column)])?;
    at.prepare_cached(
        "UPDATE sessions SET updated_minute = ?2 WHERE number = ?1 AND updated_minute IS NOT ?2",
    )?
    .execute(params![session, minute_column(*updated_at)])?;
    let owner = Owner {
        number: session,
        id,
        flow_type,
        tenant,
    };
    interrupts::replace(at, &owner, &commit.interrupts)
}

fn index_metadata(
    at: &Connection,
    session: i64,
    id: &SessionId,
    metadata: &BTreeMap<String, String>,
) -> Result<(), Fault> {
    at.prepare_cached("DELETE FROM session_metadata WHERE session = ?1")?
        .execute([session])?;
    for (key, value) in metadata {
        at.prepare_cached(
            "INSERT INTO session_metadata (session, key, value, session_id) VALUES (?1, ?2, ?3, ?4)",
        )?
        .execute(params![session, key, value, id.as_str()])?;
    }
    Ok(())
}

fn insert_chunks(at: &Connection, session: i64, chunks: &[Chunk]) -> Result<(), Fault> {
    for chunk in chunks {
        if let Some(parent) = chunk.parent
            && !has_chunk(at, session, parent)?
        {
            return Err(rules::missing_parent(chunk.id, parent).into());
        }
        let inserted = at
            .prepare_cached(
                "INSERT INTO chunks (session, id, parent, messages, codec, raw_bytes, bytes)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT DO NOTHING",
            )?
            .execute(params![
                session,
                column(chunk.id.0)?,
                chunk.parent.map(|it| column(it.0)).transpose()?,
                chunk.messages,
                chunk.codec.number(),
                column(chunk.raw_bytes)?,
                chunk.bytes,
            ])?;
        if inserted == 0 {
            return Err(rules::reused_chunk(chunk.id).into());
        }
    }
    Ok(())
}

fn has_chunk(at: &Connection, session: i64, chunk: ChunkId) -> Result<bool, Fault> {
    let found = at
        .prepare_cached("SELECT 1 FROM chunks WHERE session = ?1 AND id = ?2")?
        .exists(params![session, column(chunk.0)?])?;
    Ok(found)
}

fn change_rows(at: &Connection, session: i64, packed: &PackedCommit) -> Result<(), Fault> {
    for (change, value) in packed.commit.rows.iter().zip(&packed.rows) {
        let (RowChange::Put(key, _) | RowChange::Delete(key)) = change;
        match value {
            Some(value) => at
                .prepare_cached(
                    "INSERT INTO rows (session, kind, key, value, codec) VALUES (?1, ?2, ?3, ?4, ?5)
                     ON CONFLICT DO UPDATE SET value = excluded.value, codec = excluded.codec",
                )?
                .execute(params![
                    session,
                    key.kind.name(),
                    key.key,
                    value.bytes,
                    value.codec
                ])?,
            None => at
                .prepare_cached("DELETE FROM rows WHERE session = ?1 AND kind = ?2 AND key = ?3")?
                .execute(params![session, key.kind.name(), key.key])?,
        };
    }
    Ok(())
}

fn add_events(at: &Connection, session: i64, events: &[EventRow]) -> Result<(), Fault> {
    if events.is_empty() {
        return Ok(());
    }
    let last = at
        .prepare_cached(
            "SELECT cursor, codec, bytes FROM events WHERE session = ?1
             ORDER BY cursor DESC LIMIT 1",
        )?
        .query_row([session], |row| {
            Ok((EventCursor(count(row, 0)?), read::value(row, 1)?))
        })
        .optional()?;
    let mut put = at.prepare_cached(
        "INSERT INTO events (session, cursor, bytes, codec) VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT DO UPDATE SET bytes = excluded.bytes, codec = excluded.codec",
    )?;
    for (first, value) in values::add_events(last, events) {
        put.execute(params![session, column(first.0)?, value.bytes, value.codec])?;
    }
    Ok(())
}

pub(super) fn delete(at: &Connection, stamp: Stamp, id: &SessionId) -> Result<bool, Fault> {
    let Some(session) = present(at, id)? else {
        return Ok(false);
    };
    for table in [
        "DELETE FROM states WHERE session = ?1",
        "DELETE FROM chunks WHERE session = ?1",
        "DELETE FROM rows WHERE session = ?1",
        "DELETE FROM events WHERE session = ?1",
        "DELETE FROM session_metadata WHERE session = ?1",
        "DELETE FROM interrupts WHERE session = ?1",
        "DELETE FROM sessions WHERE number = ?1",
    ] {
        at.prepare_cached(table)?.execute([session.number])?;
    }
    at.prepare_cached(
        "INSERT INTO deleted_sessions (id, revision, lease_epoch, change_seq, change_by)
         VALUES (?1, ?2, ?3, ?4, ?5)",
    )?
    .execute(params![
        id.as_str(),
        column(session.revision.0)?,
        column(session.lease.epoch.0)?,
        stamp.change_seq,
        stamp.change_by,
    ])?;
    Ok(true)
}

pub(super) fn register_worker(at: &Connection, worker: &WorkerRecord) -> Result<(), Fault> {
    at.prepare_cached(
        "INSERT OR REPLACE INTO workers (id, process_id, start_time, boot_id, pid_namespace, heartbeat)
         VALUES (?1, ?2, ?3, ?4, ?5, 0)",
    )?
    .execute(params![
        worker.id.as_str(),
        worker.process_id,
        column(worker.start_time)?,
        worker.boot_id,
        column(worker.pid_namespace)?,
    ])?;
    Ok(())
}

pub(super) fn heartbeat(at: &Connection, worker: &WorkerId) -> Result<u64, Fault> {
    at.prepare_cached(
        "UPDATE workers SET heartbeat = heartbeat + 1 WHERE id = ?1 RETURNING heartbeat",
    )?
    .query_row([worker.as_str()], |row| count(row, 0))
    .optional()?
    .ok_or(Fault::Refused(StoreError::Fenced { held: None }))
}

pub(super) fn remove_worker(at: &Connection, worker: &WorkerId) -> Result<(), Fault> {
    at.prepare_cached("UPDATE sessions SET lease_worker = NULL WHERE lease_worker = ?1")?
        .execute([worker.as_str()])?;
    at.prepare_cached("DELETE FROM workers WHERE id = ?1")?
        .execute([worker.as_str()])?;
    Ok(())
}

pub(super) fn acquire_lease(
    at: &Connection,
    id: &SessionId,
    worker: &WorkerId,
    take_over: Option<LeaseEpoch>,
) -> Result<LeaseAnswer, Fault> {
    if !is_registered(at, worker)? {
        return Err(StoreError::Fenced { held: None }.into());
    }
    let Some(session) = present(at, id)? else {
        return Err(StoreError::NoSession {
            session: id.clone(),
        }
        .into());
    };
    if let Some(lease) = read::lease(at, id)?
        && take_over != Some(lease.epoch)
    {
        return Ok(if lease.holder.id == *worker {
            LeaseAnswer::Granted(lease.epoch)
        } else {
            LeaseAnswer::Held(lease)
        });
    }
    let epoch = LeaseEpoch(session.lease.epoch.0 + 1);
    set_lease(at, session.number, epoch, Some(worker))?;
    Ok(LeaseAnswer::Granted(epoch))
}

fn is_registered(at: &Connection, worker: &WorkerId) -> rusqlite::Result<bool> {
    at.prepare_cached("SELECT 1 FROM workers WHERE id = ?1")?
        .exists([worker.as_str()])
}

fn set_lease(
    at: &Connection,
    session: i64,
    epoch: LeaseEpoch,
    holder: Option<&WorkerId>,
) -> Result<(), Fault> {
    at.prepare_cached("UPDATE sessions SET lease_epoch = ?2, lease_worker = ?3 WHERE number = ?1")?
        .execute(params![
            session,
            column(epoch.0)?,
            holder.map(WorkerId::as_str)
        ])?;
    Ok(())
}

pub(super) fn release_lease(
    at: &Connection,
    id: &SessionId,
    epoch: LeaseEpoch,
) -> Result<(), Fault> {
    at.prepare_cached(
        "UPDATE sessions SET lease_worker = NULL WHERE id = ?1 AND lease_epoch = ?2",
    )?
    .execute(params![id.as_str(), bound(epoch.0)])?;
    Ok(())
}

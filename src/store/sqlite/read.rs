//! The threads that read, beside the writer: a read never waits for a sync.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rusqlite::{Connection, OptionalExtension as _, Row, params};
use tokio::sync::{Semaphore, oneshot};

use super::failure::{Fault, bound, column, count, optional_count};
use super::values::Value;
use crate::ids::{ChunkId, EventCursor, LeaseEpoch, Revision, SessionId};
use crate::store::{
    Chunk, ChunkCodec, ChunkHeader, EventRow, Lease, RowKey, SessionSize, StoreError,
    StoredSession, WorkerId, WorkerRecord, rules,
};

type Job = Box<dyn FnOnce(&Connection) + Send>;

/// The sending end of the readers' queue; dropping it ends the threads.
#[derive(Debug)]
pub(super) struct Readers {
    queue: Arc<Queue>,
}

/// One reading thread's own things.
pub(super) struct ReaderThread {
    queue: Arc<Queue>,
    connection: Connection,
}

/// What waits to be read, for whichever thread is free. Not tokio's queue, which has one receiver:
/// shared behind a lock, it wakes both threads for each job.
struct Queue {
    waiting: Mutex<Waiting>,
    arrived: Condvar,
    room: Arc<Semaphore>,
}

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    is_closed: bool,
}

/// Makes both ends; [`ReaderThread::run`] is to be called on threads of their own.
pub(super) fn channel(connections: Vec<Connection>) -> (Readers, Vec<ReaderThread>) {
    let queue = Arc::new(Queue {
        waiting: Mutex::default(),
        arrived: Condvar::new(),
        room: Arc::new(Semaphore::new(QUEUE_MAX)),
    });
    let threads = connections
        .into_iter()
        .map(|connection| ReaderThread {
            queue: Arc::clone(&queue),
            connection,
        })
        .collect();
    (Readers { queue }, threads)
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, job: Job) {
        self.lock().jobs.push_back(job);
        self.arrived.notify_one();
    }

    /// Waits for the next job; `None` once the queue is closed and empty.
    fn pop(&self) -> Option<Job> {
        let is_idle = |it: &mut Waiting| it.jobs.is_empty() && !it.is_closed;
        self.arrived
            .wait_while(self.lock(), is_idle)
            .unwrap_or_else(PoisonError::into_inner)
            .jobs
            .pop_front()
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").finish_non_exhaustive()
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.queue.lock().is_closed = true;
        self.queue.arrived.notify_all();
    }
}

impl Readers {
    /// Runs the work on one snapshot of the file.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        operation: &'static str,
        work: impl FnOnce(&Connection) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        let stopped = || StoreError::Backend {
            operation,
            source: "the store's thread has stopped".into(),
        };
        let room = Arc::clone(&self.queue.room);
        let permit = room.acquire_owned().await.map_err(|_| stopped())?;
        let job: Job = Box::new(move |connection| {
            drop(permit);
            if !reply.is_closed() {
                let result = on_snapshot(connection, work);
                // The caller may have stopped waiting meanwhile.
                let _ = reply.send(result.map_err(|it| it.into_error(operation)));
            }
        });
        self.queue.push(job);
        answer.await.unwrap_or_else(|_| Err(stopped()))
    }
}

impl ReaderThread {
    /// Reads until every [`Readers`] is gone and the queue is empty.
    pub(super) fn run(self) {
        while let Some(job) = self.queue.pop() {
            job(&self.connection);
        }
    }
}

/// Runs all statements of the work on the same state of the file.
pub(super) fn on_snapshot<T>(
    connection: &Connection,
    work: impl FnOnce(&Connection) -> Result<T, Fault>,
) -> Result<T, Fault> {
    connection.prepare_cached("BEGIN")?.execute([])?;
    let result = work(connection);
    connection.prepare_cached("ROLLBACK")?.execute([])?;
    result
}

pub(super) fn load(at: &Connection, id: &SessionId) -> Result<Option<StoredSession>, Fault> {
    let session = at
        .prepare_cached(
            "SELECT revision, state, head, lease_epoch FROM sessions JOIN states ON session = number
             WHERE id = ?1",
        )?
        .query_row([id.as_str()], |row| {
            Ok(StoredSession {
                revision: Revision(count(row, 0)?),
                state: row.get(1)?,
                head: optional_count(row, 2)?.map(ChunkId),
                lease: None,
                epoch: LeaseEpoch(count(row, 3)?),
            })
        })
        .optional()?;
    match session {
        Some(session) => Ok(Some(StoredSession {
            lease: lease(at, id)?,
            ..session
        })),
        None => Ok(None),
    }
}

pub(super) fn lease(at: &Connection, id: &SessionId) -> Result<Option<Lease>, Fault> {
    let lease = at
        .prepare_cached(
            "SELECT lease_epoch, workers.id, process_id, start_time, boot_id, pid_namespace, heartbeat
             FROM sessions JOIN workers ON workers.id = lease_worker WHERE sessions.id = ?1",
        )?
        .query_row([id.as_str()], |row| {
            Ok(Lease {
                epoch: LeaseEpoch(count(row, 0)?),
                holder: WorkerRecord {
                    id: WorkerId::new(row.get::<_, String>(1)?),
                    process_id: row.get(2)?,
                    start_time: count(row, 3)?,
                    boot_id: row.get(4)?,
                    pid_namespace: count(row, 5)?,
                },
                heartbeat: count(row, 6)?,
            })
        })
        .optional()?;
    Ok(lease)
}

pub(super) fn rows(
    at: &Connection,
    id: &SessionId,
    keys: &[RowKey],
) -> Result<Vec<Option<Vec<u8>>>, Fault> {
    let mut select = at.prepare_cached(
        "SELECT codec, value FROM sessions JOIN rows ON session = number
         WHERE id = ?1 AND kind = ?2 AND key = ?3",
    )?;
    keys.iter()
        .map(|it| {
            let found = select
                .query_row(params![id.as_str(), it.kind.name(), it.key], |row| {
                    value(row, 0)
                })
                .optional()?;
            Ok(found.map(Value::unpack).transpose()?)
        })
        .collect()
}

pub(super) fn chunk_chain(
    at: &Connection,
    id: &SessionId,
    head: ChunkId,
) -> Result<Vec<ChunkHeader>, Fault> {
    let session = number(at, id)?;
    // The bound on the depth ends a damaged chain that runs in a circle.
    let mut select = at.prepare_cached(
        "WITH RECURSIVE chain (depth, id, parent, messages, raw_bytes) AS (
             SELECT 1, id, parent, messages, raw_bytes FROM chunks WHERE session = ?1 AND id = ?2
             UNION ALL
             SELECT depth + 1, chunks.id, chunks.parent, chunks.messages, chunks.raw_bytes
             FROM chain JOIN chunks ON session = ?1 AND chunks.id = chain.parent
             WHERE depth < (SELECT count(*) FROM chunks WHERE session = ?1))
         SELECT id, parent, messages, raw_bytes FROM chain ORDER BY depth",
    )?;
    let mut rows = select.query(params![session, column(head.0)?])?;
    let mut chain = Vec::new();
    let mut next = Some(head);
    while let Some(row) = rows.next()? {
        chain.push(ChunkHeader {
            id: ChunkId(count(row, 0)?),
            messages: row.get(2)?,
            raw_bytes: count(row, 3)?,
        });
        next = optional_count(row, 1)?.map(ChunkId);
    }
    if let Some(missing) = next {
        return Err(rules::missing_chunk(missing).into());
    }
    chain.reverse();
    Ok(chain)
}

pub(super) fn chunks(
    at: &Connection,
    id: &SessionId,
    last: ChunkId,
    count: usize,
) -> Result<Vec<Chunk>, Fault> {
    let session = number(at, id)?;
    let mut chunks = Vec::new();
    let mut next = Some(last);
    // Ids are never used twice, so a chain that is longer than its first id is damaged; the callers
    // ask for what they know to be there.
    while let Some(id) = next
        && chunks.len() < count
    {
        let chunk = chunk(at, session, id)?;
        next = chunk.parent;
        chunks.push(chunk);
    }
    chunks.reverse();
    Ok(chunks)
}

fn chunk(at: &Connection, session: i64, chunk: ChunkId) -> Result<Chunk, Fault> {
    let (codec, parent, messages, raw_bytes, bytes) = at
        .prepare_cached(
            "SELECT codec, parent, messages, raw_bytes, bytes FROM chunks
             WHERE session = ?1 AND id = ?2",
        )?
        .query_row(params![session, column(chunk.0)?], |row| {
            let parent = optional_count(row, 1)?;
            Ok((
                row.get(0)?,
                parent,
                row.get(2)?,
                count(row, 3)?,
                row.get(4)?,
            ))
        })
        .optional()?
        .ok_or_else(|| rules::missing_chunk(chunk))?;
    let codec = ChunkCodec::from_number(codec).ok_or(StoreError::TooNew {
        what: "a chunk of the transcript",
        found: codec,
        supported: ChunkCodec::NEWEST,
    })?;
    Ok(Chunk {
        id: chunk,
        parent: parent.map(ChunkId),
        messages,
        codec,
        raw_bytes,
        bytes,
    })
}

pub(super) fn size(at: &Connection, id: &SessionId) -> Result<SessionSize, Fault> {
    let session = number(at, id)?;
    let size = at
        .prepare_cached(
            "SELECT (SELECT coalesce(sum(raw_bytes), 0) FROM chunks WHERE session = ?1),
             (SELECT coalesce(sum(length(bytes)), 0) FROM chunks WHERE session = ?1)
             + (SELECT coalesce(sum(length(value)), 0) FROM rows WHERE session = ?1)
             + (SELECT coalesce(sum(length(bytes)), 0) FROM events WHERE session = ?1)
             + (SELECT coalesce(sum(length(state)), 0) FROM states WHERE session = ?1)",
        )?
        .query_row([session], |row| {
            Ok(SessionSize {
                raw_bytes: count(row, 0)?,
                stored_bytes: count(row, 1)?,
            })
        })?;
    Ok(size)
}

pub(super) fn events(
    at: &Connection,
    id: &SessionId,
    after: EventCursor,
    limit: usize,
) -> Result<Vec<EventRow>, Fault> {
    // The first one may stand behind others in one value.
    let mut select = at.prepare_cached(
        "SELECT cursor, codec, bytes FROM sessions JOIN events ON session = number
         WHERE id = ?1 AND cursor >= coalesce(
             (SELECT max(cursor) FROM events WHERE session = number AND cursor <= ?2), 0)
         ORDER BY cursor",
    )?;
    let next = bound(after.0.saturating_add(1));
    let mut rows = select.query(params![id.as_str(), next])?;
    let mut events = Vec::new();
    while events.len() < limit
        && let Some(row) = rows.next()?
    {
        let first = EventCursor(count(row, 0)?);
        let stored = value(row, 1)?.into_events(first)?;
        events.extend(stored.into_iter().filter(|it| it.cursor > after));
    }
    events.truncate(limit);
    Ok(events)
}

/// Reads a value and, before it, its codec.
pub(super) fn value(row: &Row<'_>, codec: usize) -> rusqlite::Result<Value> {
    Ok(Value {
        codec: row.get(codec)?,
        bytes: row.get(codec + 1)?,
    })
}

fn number(at: &Connection, id: &SessionId) -> Result<i64, Fault> {
    at.prepare_cached("SELECT number FROM sessions WHERE id = ?1")?
        .query_row([id.as_str()], |row| row.get(0))
        .optional()?
        .ok_or_else(|| {
            Fault::Refused(StoreError::NoSession {
                session: id.clone(),
            })
        })
}

/// How many reads may wait; who comes later waits for room.
const QUEUE_MAX: usize = 1024;

//! A store in one SQLite file (feature `sqlite`).
//!
//! One thread writes, in groups ([`writer`]); two read ([`read`]); one watches for commits of other
//! processes while somebody asks for them ([`watch`]). Async callers only exchange messages with
//! them.

mod apply;
mod failure;
mod interrupts;
mod listing;
mod migration;
mod place;
mod read;
mod schema;
#[cfg(test)]
mod tests;
mod values;
mod watch;
mod writer;

use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{broadcast, oneshot};

use super::{
    Change, ChangeStream, Chunk, ChunkHeader, Commit, EventRow, Fence, InterruptFilter,
    InterruptPage, LeaseAnswer, RowKey, SessionFilter, SessionPage, SessionSize, StateStore,
    StoreError, StoredSession, WorkerId, WorkerRecord,
};
use crate::ids::{ChunkId, EventCursor, LeaseEpoch, Revision, SessionId};
use values::PackedCommit;
use writer::Done;

/// Keeps sessions in one SQLite file, which any number of processes of one machine may share.
///
/// What a method returned `Ok` for survives the process and the machine: each commit is synced to
/// the disk before it is answered (write-ahead log, `synchronous=FULL`). Commits that come together
/// share one sync. Dropping the store finishes the writes that were queued and closes the file;
/// nobody waits for that.
///
/// A process that is stopped (SIGSTOP) in the moment of a commit keeps SQLite's lock on the file:
/// nothing is lost or done twice, but other processes get [`StoreError::Busy`] until it goes on or
/// dies.
#[derive(Debug)]
pub struct SqliteStateStore {
    writer: writer::Writer,
    readers: read::Readers,
    watch: watch::Watch,
}

impl SqliteStateStore {
    /// Opens the file, or creates it in a directory that exists, readable for its owner alone.
    ///
    /// # Errors
    /// `Unusable` for a directory, a place that is missing, read-only or on a network file system;
    /// `Corrupt` for a file that is no SQLite database or another application's; `TooNew` when a
    /// newer version of this crate wrote it; `Busy` and `Full` as they say. Nothing is changed in a
    /// file that is refused.
    ///
    /// # Cancel safety
    /// A dropped call leaves at most an empty store behind.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        Self::open_waiting(path.as_ref(), BUSY_WAIT).await
    }

    async fn open_waiting(path: &Path, busy_wait: Duration) -> Result<Self, StoreError> {
        let operation = "open the file";
        // Resolved now: the working directory may be another one later.
        let path = std::path::absolute(path).map_err(|it| place::unusable(path, it.to_string()))?;
        let (reply, answer) = oneshot::channel();
        spawn(operation, move || {
            // A caller that stopped waiting drops the store, which ends its threads.
            let _ = reply.send(Self::open_blocking(&path, busy_wait));
        })?;
        answer.await.unwrap_or_else(|_| {
            Err(StoreError::Backend {
                operation,
                source: "the opening thread has stopped".into(),
            })
        })
    }

    fn open_blocking(path: &Path, busy_wait: Duration) -> Result<Self, StoreError> {
        place::check(path)?;
        // The first connection makes the file, so that the others find it.
        let writing = schema::open_or_create(path, busy_wait)?;
        let reading = (0..READERS)
            .map(|_| schema::open(path, busy_wait))
            .collect::<Result<Vec<_>, _>>()?;
        let watching = schema::open(path, busy_wait)?;

        let changes = broadcast::Sender::new(CHANGES_MAX);
        let change_by = random_number();
        let (writer, writer_thread) = writer::channel(writing, changes.clone(), change_by);
        let (readers, reader_threads) = read::channel(reading);
        let (watch, watch_thread) = watch::channel(watching, changes, change_by);
        spawn("write", || writer_thread.run())?;
        for thread in reader_threads {
            spawn("read", || thread.run())?;
        }
        spawn("watch", || watch_thread.run())?;
        Ok(Self {
            writer,
            readers,
            watch,
        })
    }
}

#[async_trait]
impl StateStore for SqliteStateStore {
    async fn load(&self, session: &SessionId) -> Result<Option<StoredSession>, StoreError> {
        let session = session.clone();
        self.readers
            .read("load the session", move |at| read::load(at, &session))
            .await
    }

    async fn commit(
        &self,
        session: &SessionId,
        expected: Revision,
        fence: Option<Fence>,
        commit: Commit,
    ) -> Result<Revision, StoreError> {
        let session = session.clone();
        // Packed here, where others pack beside it: there is only one thread that writes.
        let packed = PackedCommit::new(commit);
        self.writer
            .write("commit", move |at, stamp| {
                let fence = fence.as_ref();
                let revision = apply::commit(at, stamp, &session, expected, fence, &packed)?;
                Ok(Done {
                    value: revision,
                    changed: Some(Change::Committed {
                        session: session.clone(),
                        revision,
                        due_at: packed.commit.summary.due_at,
                    }),
                })
            })
            .await
    }

    async fn read_rows(
        &self,
        session: &SessionId,
        keys: &[RowKey],
    ) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        let (session, keys) = (session.clone(), keys.to_vec());
        self.readers
            .read("read rows", move |at| read::rows(at, &session, &keys))
            .await
    }

    async fn chunk_chain(
        &self,
        session: &SessionId,
        head: ChunkId,
    ) -> Result<Vec<ChunkHeader>, StoreError> {
        let session = session.clone();
        self.readers
            .read("read the chain of chunks", move |at| {
                read::chunk_chain(at, &session, head)
            })
            .await
    }

    async fn read_chunks(
        &self,
        session: &SessionId,
        last: ChunkId,
        count: usize,
    ) -> Result<Vec<Chunk>, StoreError> {
        let session = session.clone();
        self.readers
            .read("read chunks", move |at| {
                read::chunks(at, &session, last, count)
            })
            .await
    }

    async fn size(&self, session: &SessionId) -> Result<SessionSize, StoreError> {
        let session = session.clone();
        self.readers
            .read("read the size", move |at| read::size(at, &session))
            .await
    }

    async fn read_events(
        &self,
        session: &SessionId,
        after: EventCursor,
        limit: usize,
    ) -> Result<Vec<EventRow>, StoreError> {
        let session = session.clone();
        self.readers
            .read("read events", move |at| {
                read::events(at, &session, after, limit)
            })
            .await
    }

    async fn list(&self, filter: &SessionFilter, limit: usize) -> Result<SessionPage, StoreError> {
        let filter = filter.clone();
        self.readers
            .read("list sessions", move |at| listing::list(at, &filter, limit))
            .await
    }

    async fn list_interrupts(
        &self,
        filter: &InterruptFilter,
        limit: usize,
    ) -> Result<InterruptPage, StoreError> {
        let filter = filter.clone();
        self.readers
            .read("list interrupts", move |at| {
                interrupts::list(at, &filter, limit)
            })
            .await
    }

    async fn register_worker(&self, worker: &WorkerRecord) -> Result<(), StoreError> {
        let worker = worker.clone();
        self.writer
            .write("register the worker", move |at, _| {
                apply::register_worker(at, &worker).map(unannounced)
            })
            .await
    }

    async fn heartbeat(&self, worker: &WorkerId) -> Result<u64, StoreError> {
        let worker = worker.clone();
        self.writer
            .write("raise the heartbeat", move |at, _| {
                apply::heartbeat(at, &worker).map(unannounced)
            })
            .await
    }

    async fn remove_worker(&self, worker: &WorkerId) -> Result<(), StoreError> {
        let worker = worker.clone();
        self.writer
            .write("remove the worker", move |at, _| {
                apply::remove_worker(at, &worker).map(unannounced)
            })
            .await
    }

    async fn acquire_lease(
        &self,
        session: &SessionId,
        worker: &WorkerId,
        take_over: Option<LeaseEpoch>,
    ) -> Result<LeaseAnswer, StoreError> {
        let (session, worker) = (session.clone(), worker.clone());
        self.writer
            .write("acquire the lease", move |at, _| {
                apply::acquire_lease(at, &session, &worker, take_over).map(unannounced)
            })
            .await
    }

    async fn release_lease(
        &self,
        session: &SessionId,
        epoch: LeaseEpoch,
    ) -> Result<(), StoreError> {
        let session = session.clone();
        self.writer
            .write("release the lease", move |at, _| {
                apply::release_lease(at, &session, epoch).map(unannounced)
            })
            .await
    }

    fn changes(&self) -> ChangeStream {
        self.watch.subscribe()
    }

    async fn delete(&self, session: &SessionId) -> Result<bool, StoreError> {
        let session = session.clone();
        self.writer
            .write("delete the session", move |at, stamp| {
                let was_there = apply::delete(at, stamp, &session)?;
                Ok(Done {
                    value: was_there,
                    changed: was_there.then(|| Change::Deleted(session.clone())),
                })
            })
            .await
    }
}

/// Leases and workers are not sessions' contents: nobody is woken for them.
fn unannounced<T>(value: T) -> Done<T> {
    Done {
        value,
        changed: None,
    }
}

fn spawn(operation: &'static str, work: impl FnOnce() + Send + 'static) -> Result<(), StoreError> {
    std::thread::Builder::new()
        .name("abide-sqlite".to_owned())
        .spawn(work)
        .map(drop)
        .map_err(|it| StoreError::Backend {
            operation,
            source: it.into(),
        })
}

/// Names this store among those over the same file.
fn random_number() -> i64 {
    let (high, _) = uuid::Uuid::new_v4().as_u64_pair();
    high.cast_signed()
}

/// How long a write waits for another process before it is `Busy`: longer than any sync should take.
const BUSY_WAIT: Duration = Duration::from_secs(5);
/// One long read does not hold up the short ones.
const READERS: usize = 2;
/// How many wake-ups a slow reader may be behind before it is told that it missed some.
const CHANGES_MAX: usize = 1024;

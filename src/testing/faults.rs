//! Faults on command: stores that stop answering at a chosen commit, or answer with an error.
//!
//! [`FailingStore`] answers that there is no room or no time, or that it does not know.
//! [`CrashingStore`] models the death of a worker at the sharpest points there are, directly before
//! and directly after a commit. The commit that it stops at never returns, so nothing that would
//! follow it happens; the test then drops the engine (or kills the process) and starts another one
//! over the store behind it.

mod failing;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use tokio::sync::watch;

use crate::ids::{ChunkId, EventCursor, LeaseEpoch, Revision, SessionId};
use crate::store::{
    ChangeStream, Chunk, ChunkHeader, Commit, EventRow, Fence, InterruptFilter, InterruptPage,
    LeaseAnswer, RowKey, SessionFilter, SessionPage, SessionSize, StateStore, StoreError,
    StoredSession, WorkerId, WorkerRecord,
};

pub use failing::{FailingStore, StoreCall, StoreFault};

/// On which side of a commit the crash comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a commit has two sides")]
pub enum Side {
    /// The commit never reaches the store.
    Before,
    /// The commit holds, and whoever made it never learns so.
    After,
}

/// Where a [`CrashingStore`] stops answering.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "tests write it as a literal")]
pub struct CrashPoint {
    /// Which commit under a lease, counted from 1: clients' commits are not counted.
    pub commit: u64,
    /// On which side of it.
    pub side: Side,
}

/// A store in front of another that stops answering at a [`CrashPoint`].
#[derive(Debug)]
pub struct CrashingStore {
    inner: Arc<dyn StateStore>,
    point: Option<CrashPoint>,
    commits: AtomicU64,
    crashed: watch::Sender<bool>,
}

impl CrashingStore {
    /// Puts a crash in front of a store; without a point it only counts commits.
    #[must_use]
    pub fn new(inner: Arc<dyn StateStore>, point: Option<CrashPoint>) -> Self {
        Self {
            inner,
            point,
            commits: AtomicU64::new(0),
            crashed: watch::Sender::new(false),
        }
    }

    /// Returns how many commits under a lease were asked for.
    pub fn commits(&self) -> u64 {
        self.commits.load(Ordering::SeqCst)
    }

    /// Returns a receiver that becomes true when the point is reached.
    #[must_use]
    pub fn crashed(&self) -> watch::Receiver<bool> {
        self.crashed.subscribe()
    }

    /// Stops answering now, as [`CrashPoint`] does at a commit.
    pub fn crash(&self) {
        self.crashed.send_replace(true);
    }

    /// Answers again: the worker did not die, it only stood still, and goes on where it stopped.
    pub fn wake(&self) {
        self.crashed.send_replace(false);
    }

    async fn stop(&self) {
        self.crash();
        self.check_alive().await;
    }

    /// Nothing of a crashed worker reaches the store, unless it is woken.
    async fn check_alive(&self) {
        // The sender is part of this store, so the wait has no other end.
        let _ = self.crashed.subscribe().wait_for(|it| !*it).await;
    }
}

#[async_trait]
impl StateStore for CrashingStore {
    async fn load(&self, session: &SessionId) -> Result<Option<StoredSession>, StoreError> {
        self.check_alive().await;
        self.inner.load(session).await
    }

    async fn commit(
        &self,
        session: &SessionId,
        expected: Revision,
        fence: Option<Fence>,
        commit: Commit,
    ) -> Result<Revision, StoreError> {
        self.check_alive().await;
        let number = match fence {
            Some(_) => self.commits.fetch_add(1, Ordering::SeqCst) + 1,
            None => 0,
        };
        let side = self
            .point
            .filter(|it| it.commit == number)
            .map(|it| it.side);
        if side == Some(Side::Before) {
            self.stop().await;
        }
        let answer = self.inner.commit(session, expected, fence, commit).await;
        if side == Some(Side::After) {
            self.stop().await;
        }
        answer
    }

    async fn read_rows(
        &self,
        session: &SessionId,
        keys: &[RowKey],
    ) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        self.check_alive().await;
        self.inner.read_rows(session, keys).await
    }

    async fn chunk_chain(
        &self,
        session: &SessionId,
        head: ChunkId,
    ) -> Result<Vec<ChunkHeader>, StoreError> {
        self.check_alive().await;
        self.inner.chunk_chain(session, head).await
    }

    async fn read_chunks(
        &self,
        session: &SessionId,
        last: ChunkId,
        count: usize,
    ) -> Result<Vec<Chunk>, StoreError> {
        self.check_alive().await;
        self.inner.read_chunks(session, last, count).await
    }

    async fn size(&self, session: &SessionId) -> Result<SessionSize, StoreError> {
        self.check_alive().await;
        self.inner.size(session).await
    }

    async fn read_events(
        &self,
        session: &SessionId,
        after: EventCursor,
        limit: usize,
    ) -> Result<Vec<EventRow>, StoreError> {
        self.check_alive().await;
        self.inner.read_events(session, after, limit).await
    }

    async fn list(&self, filter: &SessionFilter, limit: usize) -> Result<SessionPage, StoreError> {
        self.check_alive().await;
        self.inner.list(filter, limit).await
    }

    async fn list_interrupts(
        &self,
        filter: &InterruptFilter,
        limit: usize,
    ) -> Result<InterruptPage, StoreError> {
        self.check_alive().await;
        self.inner.list_interrupts(filter, limit).await
    }

    async fn register_worker(&self, worker: &WorkerRecord) -> Result<(), StoreError> {
        self.check_alive().await;
        self.inner.register_worker(worker).await
    }

    async fn heartbeat(&self, worker: &WorkerId) -> Result<u64, StoreError> {
        self.check_alive().await;
        self.inner.heartbeat(worker).await
    }

    async fn remove_worker(&self, worker: &WorkerId) -> Result<(), StoreError> {
        self.check_alive().await;
        self.inner.remove_worker(worker).await
    }

    async fn acquire_lease(
        &self,
        session: &SessionId,
        worker: &WorkerId,
        take_over: Option<LeaseEpoch>,
    ) -> Result<LeaseAnswer, StoreError> {
        self.check_alive().await;
        self.inner.acquire_lease(session, worker, take_over).await
    }

    async fn release_lease(
        &self,
        session: &SessionId,
        epoch: LeaseEpoch,
    ) -> Result<(), StoreError> {
        self.check_alive().await;
        self.inner.release_lease(session, epoch).await
    }

    fn changes(&self) -> ChangeStream {
        self.inner.changes()
    }

    async fn delete(&self, session: &SessionId) -> Result<bool, StoreError> {
        self.check_alive().await;
        self.inner.delete(session).await
    }
}

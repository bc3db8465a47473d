//! Stores that answer with an error where a test wants one.

use std::fmt;
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

/// What a [`FailingStore`] is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "tests match it")]
pub enum StoreCall {
    /// A commit under a lease: a worker's.
    FencedCommit,
    /// A commit without a lease: a client's.
    FreeCommit,
    /// Reading, of whatever kind.
    Read,
    /// Taking, renewing and giving back leases, and what belongs to them.
    Lease,
}

/// How a [`FailingStore`] fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "tests match it")]
pub enum StoreFault {
    /// It was done, and the answer is [`StoreError::Ambiguous`].
    AmbiguousDone,
    /// It was not done, and the answer is [`StoreError::Ambiguous`].
    AmbiguousNotDone,
    /// It was not done: [`StoreError::Full`].
    Full,
    /// It was not done: [`StoreError::Busy`].
    Busy,
}

type Plan = dyn Fn(StoreCall, u64) -> Option<StoreFault> + Send + Sync;

/// A store in front of another that fails as a plan says.
pub struct FailingStore {
    inner: Arc<dyn StateStore>,
    plan: Box<Plan>,
    counts: [AtomicU64; 4],
    faults: watch::Sender<u64>,
}

impl fmt::Debug for FailingStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FailingStore")
            .field("inner", &self.inner)
            .field("faults", &*self.faults.borrow())
            .finish_non_exhaustive()
    }
}

impl FailingStore {
    /// Puts faults in front of a store. The plan is asked before each call, with the number of
    /// calls of this kind so far, this one included.
    pub fn new(
        inner: Arc<dyn StateStore>,
        plan: impl Fn(StoreCall, u64) -> Option<StoreFault> + Send + Sync + 'static,
    ) -> Self {
        Self {
            inner,
            plan: Box::new(plan),
            counts: Default::default(),
            faults: watch::Sender::new(0),
        }
    }

    /// Returns how many calls of this kind there were.
    pub fn calls(&self, call: StoreCall) -> u64 {
        self.counts[call as usize].load(Ordering::SeqCst)
    }

    /// Returns a receiver of the number of faults so far. A fault is counted when it is answered.
    #[must_use]
    pub fn faults(&self) -> watch::Receiver<u64> {
        self.faults.subscribe()
    }

    async fn run<T>(
        &self,
        call: StoreCall,
        work: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        let number = self.counts[call as usize].fetch_add(1, Ordering::SeqCst) + 1;
        let Some(fault) = (self.plan)(call, number) else {
            return work.await;
        };
        let source = "as the test asked".into();
        let operation = "a test's call";
        let error = match fault {
            StoreFault::AmbiguousDone => {
                // What really fails is told as it is.
                work.await?;
                StoreError::Ambiguous { operation, source }
            }
            StoreFault::AmbiguousNotDone => StoreError::Ambiguous { operation, source },
            StoreFault::Full => StoreError::Full { source },
            StoreFault::Busy => StoreError::Busy { source },
        };
        self.faults.send_modify(|it| *it += 1);
        Err(error)
    }
}

#[async_trait]
impl StateStore for FailingStore {
    async fn load(&self, session: &SessionId) -> Result<Option<StoredSession>, StoreError> {
        self.run(StoreCall::Read, self.inner.load(session)).await
    }

    async fn commit(
        &self,
        session: &SessionId,
        expected: Revision,
        fence: Option<Fence>,
        commit: Commit,
    ) -> Result<Revision, StoreError> {
        let call = match fence {
            Some(_) => StoreCall::FencedCommit,
            None => StoreCall::FreeCommit,
        };
        let work = self.inner.commit(session, expected, fence, commit);
        self.run(call, work).await
    }

    async fn read_rows(
        &self,
        session: &SessionId,
        keys: &[RowKey],
    ) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        let work = self.inner.read_rows(session, keys);
        self.run(StoreCall::Read, work).await
    }

    async fn chunk_chain(
        &self,
        session: &SessionId,
        head: ChunkId,
    ) -> Result<Vec<ChunkHeader>, StoreError> {
        let work = self.inner.chunk_chain(session, head);
        self.run(StoreCall::Read, work).await
    }

    async fn read_chunks(
        &self,
        session: &SessionId,
        last: ChunkId,
        count: usize,
    ) -> Result<Vec<Chunk>, StoreError> {
        let work = self.inner.read_chunks(session, last, count);
        self.run(StoreCall::Read, work).await
    }

    async fn size(&self, session: &SessionId) -> Result<SessionSize, StoreError> {
        let work = self.inner.size(session);
        self.run(StoreCall::Read, work).await
    }

    async fn read_events(
        &self,
        session: &SessionId,
        after: EventCursor,
        limit: usize,
    ) -> Result<Vec<EventRow>, StoreError> {
        let work = self.inner.read_events(session, after, limit);
        self.run(StoreCall::Read, work).await
    }

    async fn list(&self, filter: &SessionFilter, limit: usize) -> Result<SessionPage, StoreError> {
        let work = self.inner.list(filter, limit);
        self.run(StoreCall::Read, work).await
    }

    async fn list_interrupts(
        &self,
        filter: &InterruptFilter,
        limit: usize,
    ) -> Result<InterruptPage, StoreError> {
        self.run(StoreCall::Read, self.inner.list_interrupts(filter, limit))
            .await
    }

    async fn register_worker(&self, worker: &WorkerRecord) -> Result<(), StoreError> {
        let work = self.inner.register_worker(worker);
        self.run(StoreCall::Lease, work).await
    }

    async fn heartbeat(&self, worker: &WorkerId) -> Result<u64, StoreError> {
        self.run(StoreCall::Lease, self.inner.heartbeat(worker))
            .await
    }

    async fn remove_worker(&self, worker: &WorkerId) -> Result<(), StoreError> {
        let work = self.inner.remove_worker(worker);
        self.run(StoreCall::Lease, work).await
    }

    async fn acquire_lease(
        &self,
        session: &SessionId,
        worker: &WorkerId,
        take_over: Option<LeaseEpoch>,
    ) -> Result<LeaseAnswer, StoreError> {
        let work = self.inner.acquire_lease(session, worker, take_over);
        self.run(StoreCall::Lease, work).await
    }

    async fn release_lease(
        &self,
        session: &SessionId,
        epoch: LeaseEpoch,
    ) -> Result<(), StoreError> {
        let work = self.inner.release_lease(session, epoch);
        self.run(StoreCall::Lease, work).await
    }

    fn changes(&self) -> ChangeStream {
        self.inner.changes()
    }

    async fn delete(&self, session: &SessionId) -> Result<bool, StoreError> {
        self.run(StoreCall::FreeCommit, self.inner.delete(session))
            .await
    }
}

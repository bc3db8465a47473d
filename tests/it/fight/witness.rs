//! A store that remembers under which epoch who committed what.

use std::sync::{Arc, Mutex, PoisonError};

use abide::ids::{ChunkId, EventCursor, LeaseEpoch, Revision, SessionId};
use abide::store::{
    ChangeStream, Chunk, ChunkHeader, Commit, EventRow, Fence, InterruptFilter, InterruptPage,
    LeaseAnswer, RowKey, SessionFilter, SessionPage, SessionSize, StateStore, StoreError,
    StoredSession, WorkerId, WorkerRecord,
};
use async_trait::async_trait;

/// A commit under a lease, as the store answered it.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    /// Which engine, counted over all that were ever started.
    pub(super) engine: usize,
    pub(super) session: SessionId,
    pub(super) epoch: LeaseEpoch,
    /// False when it was refused as fenced.
    pub(super) was_taken: bool,
}

/// What all engines did, in the order in which the store answered.
#[derive(Debug, Clone, Default)]
pub(super) struct Witness(Arc<Mutex<Vec<Seen>>>);

impl Witness {
    pub(super) fn all(&self) -> Vec<Seen> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(super) fn of_engine(&self, engine: usize, inner: Arc<dyn StateStore>) -> Witnessed {
        let witness = self.clone();
        Witnessed {
            inner,
            engine,
            witness,
        }
    }
}

/// What one engine sees of the store.
#[derive(Debug)]
pub(super) struct Witnessed {
    inner: Arc<dyn StateStore>,
    engine: usize,
    witness: Witness,
}

#[async_trait]
impl StateStore for Witnessed {
    async fn load(&self, session: &SessionId) -> Result<Option<StoredSession>, StoreError> {
        self.inner.load(session).await
    }

    async fn commit(
        &self,
        session: &SessionId,
        expected: Revision,
        fence: Option<Fence>,
        commit: Commit,
    ) -> Result<Revision, StoreError> {
        let epoch = fence.as_ref().map(Fence::epoch);
        let answer = self.inner.commit(session, expected, fence, commit).await;
        let was_taken = match &answer {
            Ok(_) => Some(true),
            Err(StoreError::Fenced { .. }) => Some(false),
            Err(_) => None,
        };
        if let (Some(epoch), Some(was_taken)) = (epoch, was_taken) {
            let mut all = self
                .witness
                .0
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            all.push(Seen {
                engine: self.engine,
                session: session.clone(),
                epoch,
                was_taken,
            });
        }
        answer
    }

    async fn read_rows(
        &self,
        session: &SessionId,
        keys: &[RowKey],
    ) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        self.inner.read_rows(session, keys).await
    }

    async fn chunk_chain(
        &self,
        session: &SessionId,
        head: ChunkId,
    ) -> Result<Vec<ChunkHeader>, StoreError> {
        self.inner.chunk_chain(session, head).await
    }

    async fn read_chunks(
        &self,
        session: &SessionId,
        last: ChunkId,
        count: usize,
    ) -> Result<Vec<Chunk>, StoreError> {
        self.inner.read_chunks(session, last, count).await
    }

    async fn size(&self, session: &SessionId) -> Result<SessionSize, StoreError> {
        self.inner.size(session).await
    }

    async fn read_events(
        &self,
        session: &SessionId,
        after: EventCursor,
        limit: usize,
    ) -> Result<Vec<EventRow>, StoreError> {
        self.inner.read_events(session, after, limit).await
    }

    async fn list(&self, filter: &SessionFilter, limit: usize) -> Result<SessionPage, StoreError> {
        self.inner.list(filter, limit).await
    }

    async fn list_interrupts(
        &self,
        filter: &InterruptFilter,
        limit: usize,
    ) -> Result<InterruptPage, StoreError> {
        self.inner.list_interrupts(filter, limit).await
    }

    async fn register_worker(&self, worker: &WorkerRecord) -> Result<(), StoreError> {
        self.inner.register_worker(worker).await
    }

    async fn heartbeat(&self, worker: &WorkerId) -> Result<u64, StoreError> {
        self.inner.heartbeat(worker).await
    }

    async fn remove_worker(&self, worker: &WorkerId) -> Result<(), StoreError> {
        self.inner.remove_worker(worker).await
    }

    async fn acquire_lease(
        &self,
        session: &SessionId,
        worker: &WorkerId,
        take_over: Option<LeaseEpoch>,
    ) -> Result<LeaseAnswer, StoreError> {
        self.inner.acquire_lease(session, worker, take_over).await
    }

    async fn release_lease(
        &self,
        session: &SessionId,
        epoch: LeaseEpoch,
    ) -> Result<(), StoreError> {
        self.inner.release_lease(session, epoch).await
    }

    fn changes(&self) -> ChangeStream {
        self.inner.changes()
    }

    async fn delete(&self, session: &SessionId) -> Result<bool, StoreError> {
        self.inner.delete(session).await
    }
}

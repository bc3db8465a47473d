//! A store that remembers what was committed.

use std::sync::{Arc, Mutex};

use abide::ids::{ChunkId, EventCursor, LeaseEpoch, Revision, SessionId};
use abide::store::{
    ChangeStream, Chunk, ChunkHeader, Commit, EventRow, Fence, InterruptFilter, InterruptPage,
    LeaseAnswer, RowKey, SessionFilter, SessionPage, SessionSize, StateStore, StoreError,
    StoredSession, WorkerId, WorkerRecord,
};
use async_trait::async_trait;

#[derive(Debug)]
pub(crate) struct RecordingStore {
    inner: Arc<dyn StateStore>,
    commits: Arc<Mutex<Vec<Commit>>>,
}

impl RecordingStore {
    pub(crate) fn new(inner: Arc<dyn StateStore>, commits: Arc<Mutex<Vec<Commit>>>) -> Self {
        Self { inner, commits }
    }
}

#[async_trait]
impl StateStore for RecordingStore {
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
        let revision = self.inner.commit(session, expected, fence, commit.clone());
        let revision = revision.await?;
        self.commits.lock().expect("a list").push(commit);
        Ok(revision)
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

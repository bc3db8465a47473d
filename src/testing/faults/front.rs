//! A store in front of another, which passes every call on: what it adds stands in one place.

use async_trait::async_trait;

use crate::ids::{ChunkId, EventCursor, LeaseEpoch, Revision, SessionId};
use crate::store::{
    ChangeStream, Chunk, ChunkHeader, Commit, EventRow, Fence, InterruptFilter, InterruptPage,
    LeaseAnswer, RowKey, SessionFilter, SessionPage, SessionSize, StateStore, StoreError,
    StoredSession, WorkerId, WorkerRecord,
};

/// What a store is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "tests match it")]
pub enum StoreCall {
    /// A commit under a lease: a worker's.
    FencedCommit,
    /// A commit without a lease, or a deletion: a client's.
    FreeCommit,
    /// Reading, of whatever kind.
    Read,
    /// Taking, renewing and giving back leases, and what belongs to them.
    Lease,
}

/// A store in front of another. Whoever implements it is a [`StateStore`]; without more it changes
/// nothing.
pub trait Front: std::fmt::Debug + Send + Sync + 'static {
    /// Returns the store behind it.
    fn behind(&self) -> &dyn StateStore;

    /// Every call goes through here: `work` is what the store behind would do.
    fn pass<T: Send>(
        &self,
        call: StoreCall,
        work: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> impl Future<Output = Result<T, StoreError>> + Send {
        let _ = call;
        work
    }

    /// Every commit goes through here, and then through [`Front::pass`].
    fn pass_commit(
        &self,
        session: &SessionId,
        expected: Revision,
        fence: Option<Fence>,
        commit: Commit,
    ) -> impl Future<Output = Result<Revision, StoreError>> + Send {
        async move {
            let call = match fence {
                Some(_) => StoreCall::FencedCommit,
                None => StoreCall::FreeCommit,
            };
            let work = self.behind().commit(session, expected, fence, commit);
            self.pass(call, work).await
        }
    }
}

#[async_trait]
impl<F: Front> StateStore for F {
    async fn load(&self, session: &SessionId) -> Result<Option<StoredSession>, StoreError> {
        self.pass(StoreCall::Read, self.behind().load(session))
            .await
    }

    async fn commit(
        &self,
        session: &SessionId,
        expected: Revision,
        fence: Option<Fence>,
        commit: Commit,
    ) -> Result<Revision, StoreError> {
        self.pass_commit(session, expected, fence, commit).await
    }

    async fn read_rows(
        &self,
        session: &SessionId,
        keys: &[RowKey],
    ) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        let work = self.behind().read_rows(session, keys);
        self.pass(StoreCall::Read, work).await
    }

    async fn chunk_chain(
        &self,
        session: &SessionId,
        head: ChunkId,
    ) -> Result<Vec<ChunkHeader>, StoreError> {
        let work = self.behind().chunk_chain(session, head);
        self.pass(StoreCall::Read, work).await
    }

    async fn read_chunks(
        &self,
        session: &SessionId,
        last: ChunkId,
        count: usize,
    ) -> Result<Vec<Chunk>, StoreError> {
        let work = self.behind().read_chunks(session, last, count);
        self.pass(StoreCall::Read, work).await
    }

    async fn size(&self, session: &SessionId) -> Result<SessionSize, StoreError> {
        self.pass(StoreCall::Read, self.behind().size(session))
            .await
    }

    async fn read_events(
        &self,
        session: &SessionId,
        after: EventCursor,
        limit: usize,
    ) -> Result<Vec<EventRow>, StoreError> {
        let work = self.behind().read_events(session, after, limit);
        self.pass(StoreCall::Read, work).await
    }

    async fn list(&self, filter: &SessionFilter, limit: usize) -> Result<SessionPage, StoreError> {
        self.pass(StoreCall::Read, self.behind().list(filter, limit))
            .await
    }

    async fn list_interrupts(
        &self,
        filter: &InterruptFilter,
        limit: usize,
    ) -> Result<InterruptPage, StoreError> {
        let work = self.behind().list_interrupts(filter, limit);
        self.pass(StoreCall::Read, work).await
    }

    async fn register_worker(&self, worker: &WorkerRecord) -> Result<(), StoreError> {
        let work = self.behind().register_worker(worker);
        self.pass(StoreCall::Lease, work).await
    }

    async fn heartbeat(&self, worker: &WorkerId) -> Result<u64, StoreError> {
        self.pass(StoreCall::Lease, self.behind().heartbeat(worker))
            .await
    }

    async fn remove_worker(&self, worker: &WorkerId) -> Result<(), StoreError> {
        self.pass(StoreCall::Lease, self.behind().remove_worker(worker))
            .await
    }

    async fn acquire_lease(
        &self,
        session: &SessionId,
        worker: &WorkerId,
        take_over: Option<LeaseEpoch>,
    ) -> Result<LeaseAnswer, StoreError> {
        let work = self.behind().acquire_lease(session, worker, take_over);
        self.pass(StoreCall::Lease, work).await
    }

    async fn release_lease(
        &self,
        session: &SessionId,
        epoch: LeaseEpoch,
    ) -> Result<(), StoreError> {
        let work = self.behind().release_lease(session, epoch);
        self.pass(StoreCall::Lease, work).await
    }

    fn changes(&self) -> ChangeStream {
        self.behind().changes()
    }

    async fn delete(&self, session: &SessionId) -> Result<bool, StoreError> {
        self.pass(StoreCall::FreeCommit, self.behind().delete(session))
            .await
    }
}

//! The port to the durable state: what a session is stored in.
//!
//! A store stores, it does not decide. One [`StateStore::commit`] carries everything one reduction
//! changed, and holds entirely or not at all. Implementations: [`MemoryStateStore`], strict, for
//! tests and for sessions that need not survive; [`SqliteStateStore`] (feature `sqlite`). A host
//! may write its own and run `testing::conformance::state_store` on it. [`CodedStateStore`] encodes what
//! any of them stores, by a host's [`PayloadCodec`].

mod codec;
mod coded;
mod error;
mod lease;
mod listing;
mod memory;
mod patience;
mod rules;
#[cfg(feature = "sqlite")]
mod sqlite;

use async_trait::async_trait;

use crate::ids::{ChunkId, EventCursor, LeaseEpoch, Revision, SessionId, Timestamp};

pub use crate::commit::{
    Chunk, ChunkCodec, ChunkHeader, Commit, EventRow, RowChange, RowKey, RowKind, SessionStatus,
    SessionSummary,
};
pub use codec::{CodecError, PayloadCodec, PayloadLabel, SessionCodec};
pub use coded::CodedStateStore;
pub use error::{BackendSource, StoreError};
pub use lease::{Fence, Lease, LeaseAnswer, WorkerId, WorkerRecord};
pub use listing::{
    InterruptFilter, InterruptPage, InterruptPosition, InterruptRow, SessionFilter, SessionPage,
    SummaryRow, TimeRange,
};
pub use memory::MemoryStateStore;
pub(crate) use patience::{Patience, read_patiently};
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteStateStore;

/// A session as it is stored. Created by [`StateStore::load`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "stores that hosts write build it"
)]
pub struct StoredSession {
    /// Counts the commits under this id, those of deleted sessions included.
    pub revision: Revision,
    /// The reducer's state, as [`Commit::state`] gave it.
    pub state: Vec<u8>,
    /// The committed end of the transcript chain.
    pub head: Option<ChunkId>,
    /// Who runs the session's Steps, if anybody does.
    pub lease: Option<Lease>,
    /// The epoch of the last lease that was taken, held or not; zero before the first.
    pub epoch: LeaseEpoch,
}

/// What a session takes. Created by [`StateStore::size`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(
    clippy::exhaustive_structs,
    reason = "stores that hosts write build it"
)]
pub struct SessionSize {
    /// The messages of its transcript before encoding, in bytes, those of rolled-back turns included:
    /// the sum of [`Chunk::raw_bytes`].
    pub raw_bytes: u64,
    /// All that is stored of it, in bytes: state, chunks, rows and events as they are encoded, without
    /// what the store needs around them.
    pub stored_bytes: u64,
}

/// What a [`ChangeStream`] yields.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_enums,
    reason = "stores that hosts write build it, readers match on it"
)]
pub enum Change {
    /// The session was committed.
    Committed {
        /// Which session.
        session: SessionId,
        /// The revision that this commit, or one after it, made.
        revision: Revision,
        /// What that commit said in [`SessionSummary::due_at`].
        due_at: Option<Timestamp>,
    },
    /// The session was deleted.
    Deleted(SessionId),
    /// Some changes were missed; look at everything again.
    Missed,
}

impl Change {
    /// Returns which session changed; `None` when it may be any.
    #[must_use]
    pub const fn session(&self) -> Option<&SessionId> {
        match self {
            Self::Committed { session, .. } | Self::Deleted(session) => Some(session),
            Self::Missed => None,
        }
    }
}

/// Wake-ups: which sessions changed, in this process or another. Created by [`StateStore::changes`].
#[derive(Debug)]
pub struct ChangeStream(tokio::sync::broadcast::Receiver<Change>);

impl ChangeStream {
    /// Wraps the receiving end of a broadcast channel.
    #[must_use]
    pub fn new(receiver: tokio::sync::broadcast::Receiver<Change>) -> Self {
        Self(receiver)
    }

    /// Waits for the next change; `None` once the store is gone. A slow reader gets
    /// [`Change::Missed`] in place of what it did not read in time.
    ///
    /// # Cancel safety
    /// A dropped call loses nothing.
    pub async fn next(&mut self) -> Option<Change> {
        match self.0.recv().await {
            Ok(change) => Some(change),
            Err(tokio::sync::broadcast::error::RecvError::Lagged(_)) => Some(Change::Missed),
            Err(tokio::sync::broadcast::error::RecvError::Closed) => None,
        }
    }
}

/// The durable state of sessions.
///
/// Every method is atomic. Dropping a call of a writing method leaves it open whether it holds;
/// what it would have done is found out by reading.
#[async_trait]
pub trait StateStore: Send + Sync + std::fmt::Debug {
    /// Returns the session as the last commit left it, or `None` when there is none.
    ///
    /// # Errors
    /// Any of [`StoreError`] but `Conflict`, `Fenced` and `Ambiguous`.
    async fn load(&self, session: &SessionId) -> Result<Option<StoredSession>, StoreError>;

    /// Commits one reduction. After it returned `Ok`, all of it survives the death of this process
    /// (and, for a durable store, of the machine), and every later read sees it. `expected` is the
    /// revision the reduction was made on, zero to create the session. With a [`Fence`] it holds only as
    /// that says of the session's lease. Returns the new revision: `expected` plus one, and
    /// for a session whose id was deleted before, one more than the deleted session had, so that
    /// nobody commits to the new one what was reduced from the old one.
    ///
    /// # Errors
    /// `Fenced` when the lease is not as the fence demands, whatever the revision; else `Conflict`
    /// when the revision is another one (for zero: the session exists; otherwise an `actual` of zero
    /// says that it does not), `Corrupt` when a chunk id, parent, head or cursor does not fit;
    /// `Ambiguous` when it may or may not hold: read back before anything else. After any other
    /// error nothing of it holds, now or later (P16).
    async fn commit(
        &self,
        session: &SessionId,
        expected: Revision,
        fence: Option<Fence>,
        commit: Commit,
    ) -> Result<Revision, StoreError>;

    /// Returns the values of these rows, in the order of the keys; `None` for one that is not there,
    /// as for all of a session that does not exist.
    ///
    /// # Errors
    /// As [`StateStore::load`].
    async fn read_rows(
        &self,
        session: &SessionId,
        keys: &[RowKey],
    ) -> Result<Vec<Option<Vec<u8>>>, StoreError>;

    /// Returns the headers of the chain that ends in `head`, oldest first.
    ///
    /// # Errors
    /// `Corrupt` when the chain is broken or `head` does not exist, `NoSession` for an unknown
    /// session; otherwise as [`StateStore::load`].
    async fn chunk_chain(
        &self,
        session: &SessionId,
        head: ChunkId,
    ) -> Result<Vec<ChunkHeader>, StoreError>;

    /// Returns the last `count` chunks of the chain that ends in `last`, oldest first; all of it when
    /// it is shorter.
    ///
    /// # Errors
    /// `Corrupt` when one of them does not exist, `NoSession` for an unknown session, `TooNew` when a
    /// codec is of a newer version; otherwise as [`StateStore::load`].
    async fn read_chunks(
        &self,
        session: &SessionId,
        last: ChunkId,
        count: usize,
    ) -> Result<Vec<Chunk>, StoreError>;

    /// Returns how many bytes the session takes.
    ///
    /// # Errors
    /// `NoSession` for an unknown session; otherwise as [`StateStore::load`].
    async fn size(&self, session: &SessionId) -> Result<SessionSize, StoreError>;

    /// Returns at most `limit` events after the cursor, oldest first; none for a session that does
    /// not exist.
    ///
    /// # Errors
    /// As [`StateStore::load`].
    async fn read_events(
        &self,
        session: &SessionId,
        after: EventCursor,
        limit: usize,
    ) -> Result<Vec<EventRow>, StoreError>;

    /// Returns sessions that match, ordered by session id, at most `limit`, starting after
    /// [`SessionFilter::after`]. Who asks page by page, each after the last id of the one before, sees
    /// each session that matched all the while exactly once, whatever is written meanwhile.
    ///
    /// # Errors
    /// As [`StateStore::load`].
    async fn list(&self, filter: &SessionFilter, limit: usize) -> Result<SessionPage, StoreError>;

    /// Returns open interrupts that match, of all sessions, ordered by [`InterruptPosition`], at most
    /// `limit`, starting after [`InterruptFilter::after`]: those of each session's last commit. Who
    /// asks page by page, each after the last place of the one before, sees each interrupt that was
    /// open all the while exactly once. One that opens meanwhile comes too, unless the clock of its
    /// worker is so far behind that its place is before the reader's.
    ///
    /// # Errors
    /// As [`StateStore::load`].
    async fn list_interrupts(
        &self,
        filter: &InterruptFilter,
        limit: usize,
    ) -> Result<InterruptPage, StoreError>;

    /// Adds this process as a worker, with a heartbeat counter of zero. Registered again under the
    /// same name, it keeps its leases and counts from zero.
    ///
    /// # Errors
    /// As [`StateStore::load`], and `Ambiguous`: register again.
    async fn register_worker(&self, worker: &WorkerRecord) -> Result<(), StoreError>;

    /// Raises the worker's heartbeat counter and returns it.
    ///
    /// # Errors
    /// `Fenced` when the worker is not registered (any more); `Ambiguous`: beat again.
    async fn heartbeat(&self, worker: &WorkerId) -> Result<u64, StoreError>;

    /// Removes the worker, if it is there, and releases all its leases.
    ///
    /// # Errors
    /// As [`StateStore::load`], and `Ambiguous`: remove it again.
    async fn remove_worker(&self, worker: &WorkerId) -> Result<(), StoreError>;

    /// Takes the session's lease for the worker: when it is free, or when it is held under exactly
    /// the epoch `take_over`, which the caller has seen to be dead. The new epoch is larger than
    /// every earlier one of the session. Asked by its present holder, without a `take_over`
    /// of its own epoch, it answers the same grant, so a call that was dropped or ended `Ambiguous`
    /// is simply made again; with it, the holder itself gets a new epoch.
    ///
    /// # Errors
    /// `Fenced` when the worker is not registered; else `NoSession` for an unknown session.
    async fn acquire_lease(
        &self,
        session: &SessionId,
        worker: &WorkerId,
        take_over: Option<LeaseEpoch>,
    ) -> Result<LeaseAnswer, StoreError>;

    /// Releases the lease if it still has this epoch; otherwise does nothing. Epochs go on counting.
    ///
    /// # Errors
    /// As [`StateStore::load`], and `Ambiguous`: release it again.
    async fn release_lease(&self, session: &SessionId, epoch: LeaseEpoch)
    -> Result<(), StoreError>;

    /// Returns a stream of wake-ups from now on: at least one after each commit or deletion, also
    /// of other processes over the same store; several quick ones to a session may be told as one,
    /// which is then the last of them. It is a hint: the session may have changed again since. It
    /// may start with [`Change::Missed`].
    fn changes(&self) -> ChangeStream;

    /// Removes the session and everything stored under it; true when there was one. Its id may be
    /// used again afterwards, with a revision and an epoch larger than before.
    ///
    /// # Errors
    /// As [`StateStore::load`], and `Ambiguous`: delete it again.
    async fn delete(&self, session: &SessionId) -> Result<bool, StoreError>;
}

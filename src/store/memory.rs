//! A strict store in memory: for tests, and for sessions that need not survive the process.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use tokio::sync::broadcast;

use super::{
    Change, ChangeStream, Chunk, ChunkHeader, Commit, EventRow, Fence, InterruptFilter,
    InterruptPage, InterruptRow, Lease, LeaseAnswer, RowChange, RowKey, SessionFilter, SessionPage,
    SessionSize, SessionSummary, StateStore, StoreError, StoredSession, SummaryRow, WorkerId,
    WorkerRecord, rules,
};
use crate::ids::{ChunkId, EventCursor, LeaseEpoch, Revision, SessionId};
use crate::record::OpenInterrupt;

/// Keeps sessions in memory, and refuses everything a durable store refuses.
///
/// Clones share their content, so an engine can be "restarted" over the same memory. Nothing
/// outlives the last clone.
#[derive(Debug, Clone)]
pub struct MemoryStateStore {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    content: Mutex<Content>,
    changes: broadcast::Sender<Change>,
}

#[derive(Debug, Default)]
struct Content {
    sessions: BTreeMap<SessionId, Session>,
    deleted: HashMap<SessionId, Tombstone>,
    workers: HashMap<WorkerId, (WorkerRecord, u64)>,
}

/// What outlives a session: its counters, so that nothing of the old one fits the next one.
#[derive(Debug, Default, Clone, Copy)]
struct Tombstone {
    revision: Revision,
    epoch: LeaseEpoch,
}

#[derive(Debug, Default)]
struct Session {
    revision: Revision,
    state: Vec<u8>,
    summary: SessionSummary,
    interrupts: Vec<OpenInterrupt>,
    head: Option<ChunkId>,
    chunks: HashMap<ChunkId, Chunk>,
    rows: HashMap<RowKey, Vec<u8>>,
    // Invariant: the event at index `i` has the cursor `i + 1`.
    events: Vec<EventRow>,
    epoch: LeaseEpoch,
    holder: Option<WorkerId>,
}

impl MemoryStateStore {
    /// Makes an empty store.
    #[must_use]
    pub fn new() -> Self {
        Self {
            shared: Arc::new(Shared {
                content: Mutex::default(),
                changes: broadcast::Sender::new(CHANGES_MAX),
            }),
        }
    }

    fn content(&self) -> MutexGuard<'_, Content> {
        // No method panics half-way through a change, so a poisoned lock guards whole content.
        self.shared
            .content
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn announce(&self, change: Change) {
        // Nobody listening is no error.
        let _ = self.shared.changes.send(change);
    }
}

impl Default for MemoryStateStore {
    fn default() -> Self {
        Self::new()
    }
}

impl Content {
    fn session(&self, session: &SessionId) -> Result<&Session, StoreError> {
        self.sessions
            .get(session)
            .ok_or_else(|| StoreError::NoSession {
                session: session.clone(),
            })
    }

    fn lease(&self, session: &Session) -> Option<Lease> {
        let (holder, heartbeat) = self.workers.get(session.holder.as_ref()?)?;
        Some(Lease {
            epoch: session.epoch,
            holder: holder.clone(),
            heartbeat: *heartbeat,
        })
    }

    fn commit(
        &mut self,
        id: &SessionId,
        expected: Revision,
        fence: Option<Fence>,
        commit: Commit,
    ) -> Result<Revision, StoreError> {
        let present = self.sessions.get(id);
        let lease = present.map(|it| rules::LeaseTerm {
            epoch: it.epoch,
            is_held: it.holder.is_some(),
        });
        rules::check_fence(fence.as_ref(), lease)?;
        if let Some(fence @ Fence::Take { worker, .. }) = &fence
            && !self.workers.contains_key(worker)
        {
            return Err(rules::fenced(fence));
        }
        rules::check_revision(expected, present.map(|it| it.revision))?;
        check_commit(present, &commit)?;

        let buried = self.deleted.remove(id).unwrap_or_default();
        let session = self.sessions.entry(id.clone()).or_insert_with(|| Session {
            revision: buried.revision,
            epoch: buried.epoch,
            ..Session::default()
        });
        session.apply(commit);
        match fence {
            Some(Fence::Take { worker, epoch }) => {
                session.epoch = epoch;
                session.holder = Some(worker);
            }
            Some(Fence::Release(_)) => session.holder = None,
            Some(Fence::Hold(_)) | None => {}
        }
        Ok(session.revision)
    }

    fn acquire_lease(
        &mut self,
        id: &SessionId,
        worker: &WorkerId,
        take_over: Option<LeaseEpoch>,
    ) -> Result<LeaseAnswer, StoreError> {
        if !self.workers.contains_key(worker) {
            return Err(StoreError::Fenced { held: None });
        }
        let lease = self.lease(self.session(id)?);
        if let Some(lease) = lease
            && take_over != Some(lease.epoch)
        {
            return Ok(if lease.holder.id == *worker {
                LeaseAnswer::Granted(lease.epoch)
            } else {
                LeaseAnswer::Held(lease)
            });
        }
        let Some(session) = self.sessions.get_mut(id) else {
            return Err(StoreError::NoSession {
                session: id.clone(),
            });
        };
        session.epoch = LeaseEpoch(session.epoch.0 + 1);
        session.holder = Some(worker.clone());
        Ok(LeaseAnswer::Granted(session.epoch))
    }
}

impl Session {
    fn apply(&mut self, commit: Commit) {
        let Commit {
            state,
            summary,
            interrupts,
            head,
            chunks,
            rows,
            events,
        } = commit;
        self.revision = Revision(self.revision.0 + 1);
        self.state = state;
        self.summary = summary;
        self.interrupts = interrupts;
        self.head = head;
        self.chunks.extend(chunks.into_iter().map(|it| (it.id, it)));
        for change in rows {
            match change {
                RowChange::Put(key, value) => {
                    self.rows.insert(key, value);
                }
                RowChange::Delete(key) => {
                    self.rows.remove(&key);
                }
            }
        }
        self.events.extend(events);
    }
}

/// Checks everything in a commit that could not be applied, before anything of it is.
fn check_commit(present: Option<&Session>, commit: &Commit) -> Result<(), StoreError> {
    let stored = |chunk: ChunkId| present.is_some_and(|it| it.chunks.contains_key(&chunk));
    let mut new = std::collections::HashSet::new();
    for chunk in &commit.chunks {
        if let Some(parent) = chunk.parent
            && !stored(parent)
            && !new.contains(&parent)
        {
            return Err(rules::missing_parent(chunk.id, parent));
        }
        if stored(chunk.id) || !new.insert(chunk.id) {
            return Err(rules::reused_chunk(chunk.id));
        }
    }
    if let Some(head) = commit.head
        && !stored(head)
        && !new.contains(&head)
    {
        return Err(rules::missing_chunk(head));
    }
    let last = present.map_or(0, |it| it.events.len() as u64);
    rules::check_cursors(EventCursor(last), &commit.events)?;
    rules::check_interrupts(&commit.interrupts)
}

#[async_trait]
impl StateStore for MemoryStateStore {
    async fn load(&self, session: &SessionId) -> Result<Option<StoredSession>, StoreError> {
        let content = self.content();
        Ok(content.sessions.get(session).map(|it| StoredSession {
            revision: it.revision,
            state: it.state.clone(),
            head: it.head,
            lease: content.lease(it),
            epoch: it.epoch,
        }))
    }

    async fn commit(
        &self,
        session: &SessionId,
        expected: Revision,
        fence: Option<Fence>,
        commit: Commit,
    ) -> Result<Revision, StoreError> {
        let due_at = commit.summary.due_at;
        let revision = self.content().commit(session, expected, fence, commit)?;
        self.announce(Change::Committed {
            session: session.clone(),
            revision,
            due_at,
        });
        Ok(revision)
    }

    async fn read_rows(
        &self,
        session: &SessionId,
        keys: &[RowKey],
    ) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        let content = self.content();
        let session = content.sessions.get(session);
        Ok(keys
            .iter()
            .map(|key| session.and_then(|it| it.rows.get(key)).cloned())
            .collect())
    }

    async fn chunk_chain(
        &self,
        session: &SessionId,
        head: ChunkId,
    ) -> Result<Vec<ChunkHeader>, StoreError> {
        let content = self.content();
        let session = content.session(session)?;
        let mut chain = Vec::new();
        let mut next = Some(head);
        while let Some(id) = next {
            let chunk = session
                .chunks
                .get(&id)
                .ok_or_else(|| rules::missing_chunk(id))?;
            chain.push(ChunkHeader {
                id,
                messages: chunk.messages,
                raw_bytes: chunk.raw_bytes,
            });
            next = chunk.parent;
        }
        chain.reverse();
        Ok(chain)
    }

    async fn read_chunks(
        &self,
        session: &SessionId,
        last: ChunkId,
        count: usize,
    ) -> Result<Vec<Chunk>, StoreError> {
        let content = self.content();
        let session = content.session(session)?;
        let mut chunks = Vec::new();
        let mut next = Some(last);
        while let Some(id) = next
            && chunks.len() < count
        {
            let chunk = session
                .chunks
                .get(&id)
                .ok_or_else(|| rules::missing_chunk(id))?;
            chunks.push(chunk.clone());
            next = chunk.parent;
        }
        chunks.reverse();
        Ok(chunks)
    }

    async fn size(&self, session: &SessionId) -> Result<SessionSize, StoreError> {
        let content = self.content();
        let session = content.session(session)?;
        let chunks = session.chunks.values();
        let rows = session.rows.values().map(Vec::len);
        let events = session.events.iter().map(|it| it.bytes.len());
        let chunk_bytes = chunks.clone().map(|it| it.bytes.len());
        let stored = chunk_bytes.chain(rows).chain(events).sum::<usize>();
        Ok(SessionSize {
            raw_bytes: chunks.map(|it| it.raw_bytes).sum(),
            stored_bytes: (session.state.len() + stored) as u64,
        })
    }

    async fn read_events(
        &self,
        session: &SessionId,
        after: EventCursor,
        limit: usize,
    ) -> Result<Vec<EventRow>, StoreError> {
        let content = self.content();
        let skip = usize::try_from(after.0).unwrap_or(usize::MAX);
        Ok(content.sessions.get(session).map_or_else(Vec::new, |it| {
            it.events.iter().skip(skip).take(limit).cloned().collect()
        }))
    }

    async fn list(&self, filter: &SessionFilter, limit: usize) -> Result<SessionPage, StoreError> {
        let content = self.content();
        let start = filter
            .after
            .as_ref()
            .map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
        let mut matching = content
            .sessions
            .range((start, std::ops::Bound::Unbounded))
            .filter(|(_, it)| rules::matches(filter, &it.summary))
            .map(|(id, it)| SummaryRow {
                session: id.clone(),
                revision: it.revision,
                summary: it.summary.clone(),
            });
        Ok(SessionPage {
            rows: matching.by_ref().take(limit).collect(),
            has_more: matching.next().is_some(),
        })
    }

    async fn list_interrupts(
        &self,
        filter: &InterruptFilter,
        limit: usize,
    ) -> Result<InterruptPage, StoreError> {
        let content = self.content();
        let rows = content.sessions.iter().flat_map(|(session, stored)| {
            stored.interrupts.iter().map(|interrupt| InterruptRow {
                session: session.clone(),
                flow_type: stored.summary.flow_type.clone(),
                tenant: stored.summary.tenant.clone(),
                interrupt: interrupt.clone(),
            })
        });
        let mut rows: Vec<_> = rows
            .filter(|it| rules::matches_interrupt(filter, it))
            .collect();
        rows.sort_by_cached_key(InterruptRow::position);
        let has_more = rows.len() > limit;
        rows.truncate(limit);
        Ok(InterruptPage { rows, has_more })
    }

    async fn register_worker(&self, worker: &WorkerRecord) -> Result<(), StoreError> {
        self.content()
            .workers
            .insert(worker.id.clone(), (worker.clone(), 0));
        Ok(())
    }

    async fn heartbeat(&self, worker: &WorkerId) -> Result<u64, StoreError> {
        let mut content = self.content();
        let Some((_, heartbeat)) = content.workers.get_mut(worker) else {
            return Err(StoreError::Fenced { held: None });
        };
        *heartbeat += 1;
        Ok(*heartbeat)
    }

    async fn remove_worker(&self, worker: &WorkerId) -> Result<(), StoreError> {
        let mut content = self.content();
        content.workers.remove(worker);
        for session in content.sessions.values_mut() {
            session.holder.take_if(|it| it == worker);
        }
        Ok(())
    }

    async fn acquire_lease(
        &self,
        session: &SessionId,
        worker: &WorkerId,
        take_over: Option<LeaseEpoch>,
    ) -> Result<LeaseAnswer, StoreError> {
        self.content().acquire_lease(session, worker, take_over)
    }

    async fn release_lease(
        &self,
        session: &SessionId,
        epoch: LeaseEpoch,
    ) -> Result<(), StoreError> {
        if let Some(session) = self.content().sessions.get_mut(session)
            && session.epoch == epoch
        {
            session.holder = None;
        }
        Ok(())
    }

    fn changes(&self) -> ChangeStream {
        ChangeStream::new(self.shared.changes.subscribe())
    }

    async fn delete(&self, session: &SessionId) -> Result<bool, StoreError> {
        {
            let mut content = self.content();
            let Some(it) = content.sessions.remove(session) else {
                return Ok(false);
            };
            let tombstone = Tombstone {
                revision: it.revision,
                epoch: it.epoch,
            };
            content.deleted.insert(session.clone(), tombstone);
        }
        self.announce(Change::Deleted(session.clone()));
        Ok(true)
    }
}

/// How many wake-ups a slow reader may be behind before it is told that it missed some.
const CHANGES_MAX: usize = 1024;

//! Stores that fail for a while: the engine goes on once they work again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use abide::ids::{ChunkId, LeaseEpoch, Revision};
use abide::store::{
    ChangeStream, Chunk, ChunkHeader, Commit, EventRow, Fence, InterruptFilter, InterruptPage,
    LeaseAnswer, RowChange, RowKey, SessionFilter, SessionPage, SessionSize, StoreError,
    StoredSession, WorkerId, WorkerRecord,
};
use async_trait::async_trait;

use super::*;

/// A store whose backend fails on command, heartbeats excepted.
#[derive(Debug)]
struct Breakable {
    inner: Arc<dyn StateStore>,
    is_broken: AtomicBool,
    loads: std::sync::atomic::AtomicU64,
}

impl Breakable {
    fn over(inner: Arc<dyn StateStore>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            is_broken: AtomicBool::new(false),
            loads: std::sync::atomic::AtomicU64::new(0),
        })
    }

    fn set_broken(&self, is_broken: bool) {
        self.is_broken.store(is_broken, Ordering::SeqCst);
    }

    fn check(&self) -> Result<(), StoreError> {
        if self.is_broken.load(Ordering::SeqCst) {
            return Err(StoreError::Backend {
                operation: "read the file",
                source: "too many open files".into(),
            });
        }
        Ok(())
    }
}

#[async_trait]
impl StateStore for Breakable {
    async fn load(&self, session: &SessionId) -> Result<Option<StoredSession>, StoreError> {
        self.loads.fetch_add(1, Ordering::SeqCst);
        self.check()?;
        self.inner.load(session).await
    }

    async fn commit(
        &self,
        session: &SessionId,
        expected: Revision,
        fence: Option<Fence>,
        commit: Commit,
    ) -> Result<Revision, StoreError> {
        self.check()?;
        self.inner.commit(session, expected, fence, commit).await
    }

    async fn read_rows(
        &self,
        session: &SessionId,
        keys: &[RowKey],
    ) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        self.check()?;
        self.inner.read_rows(session, keys).await
    }

    async fn chunk_chain(
        &self,
        session: &SessionId,
        head: ChunkId,
    ) -> Result<Vec<ChunkHeader>, StoreError> {
        self.check()?;
        self.inner.chunk_chain(session, head).await
    }

    async fn read_chunks(
        &self,
        session: &SessionId,
        last: ChunkId,
        count: usize,
    ) -> Result<Vec<Chunk>, StoreError> {
        self.check()?;
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
        self.check()?;
        self.inner.list(filter, limit).await
    }

    async fn list_interrupts(
        &self,
        filter: &InterruptFilter,
        limit: usize,
    ) -> Result<InterruptPage, StoreError> {
        self.check()?;
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
        self.check()?;
        self.inner.acquire_lease(session, worker, take_over).await
    }

    async fn release_lease(
        &self,
        session: &SessionId,
        epoch: LeaseEpoch,
    ) -> Result<(), StoreError> {
        self.check()?;
        self.inner.release_lease(session, epoch).await
    }

    fn changes(&self) -> ChangeStream {
        self.inner.changes()
    }

    async fn delete(&self, session: &SessionId) -> Result<bool, StoreError> {
        self.check()?;
        self.inner.delete(session).await
    }
}

/// G8: a driver that ended because its store failed, and whose lease could not even be given back,
/// is followed by one under another epoch once the store works; under the same one, every attempt
/// would be refused for ever.
#[tokio::test(start_paused = true)]
async fn a_session_goes_on_once_its_store_works_again() {
    let mut place = Place::new(Scripted::closed());
    let behind = Arc::clone(&place.store);
    let store = Breakable::over(Arc::clone(&behind));
    place.store = Arc::clone(&store) as _;
    let _engine = place.engine().await;
    let id = session("s");
    let client = place.client();
    client.start_session(start("s", "wait")).await.unwrap();
    place.runner.waiting(1).await;
    store.set_broken(true);
    // Through the store behind it: it wakes the driver, which cannot read its session.
    let other = AgentSessionClient::new(behind);
    other.send_user_message(&id, "next", None).await.unwrap();
    // sleeps because only (virtual) time passes here
    tokio::time::sleep(Duration::from_secs(1)).await;
    store.set_broken(false);
    place.runner.open_gate();
    let over = async { Log::of(&other, &id).await.turns_over(2).await };
    tokio::time::timeout(Duration::from_secs(60), over)
        .await
        .unwrap();
    assert_eq!(place.runner.segments(), [1, 2, 1]);
}

/// A session whose stored message is damaged is tried less and less often, and holds up no other one.
#[tokio::test(start_paused = true)]
async fn a_damaged_session_costs_little_and_holds_up_nobody() {
    let mut place = Place::new(Scripted::closed());
    let behind = Arc::clone(&place.store);
    let store = Breakable::over(Arc::clone(&behind));
    place.store = Arc::clone(&store) as _;
    let engine = place.engine().await;
    let client = place.client();
    let id = session("s");
    client.start_session(start("s", "wait")).await.unwrap();
    client.send_user_message(&id, "lost", None).await.unwrap();
    place.runner.waiting(1).await;
    let stored = behind.load(&id).await.unwrap().unwrap();
    let state = abide::session::SessionState::read(&stored.state).unwrap();
    let commit = Commit {
        summary: state.summary(place.now()),
        interrupts: vec![],
        state: stored.state,
        head: stored.head,
        chunks: vec![],
        rows: vec![RowChange::Delete(RowKey {
            kind: abide::store::RowKind::Message,
            key: "m2".to_owned(),
        })],
        events: vec![],
    };
    behind
        .commit(&id, stored.revision, None, commit)
        .await
        .unwrap();
    place.runner.open_gate();
    Log::of(&client, &id).await.turns_over(1).await;
    let before = store.loads.load(Ordering::SeqCst);
    // sleeps because only (virtual) time passes here
    tokio::time::sleep(Duration::from_secs(600)).await;
    let loads = store.loads.load(Ordering::SeqCst) - before;
    assert!(loads < 100, "{loads}");
    client.start_session(start("t", "hello")).await.unwrap();
    let other = session("t");
    let over = async { Log::of(&client, &other).await.turns_over(1).await };
    tokio::time::timeout(Duration::from_secs(1), over)
        .await
        .unwrap();
    engine.shutdown().await;
}

/// G8: a handler that outlasts the lease time in a shutdown keeps its session until it is done.
#[tokio::test(start_paused = true)]
async fn a_shutdown_that_outlasts_the_lease_time_keeps_its_lease() {
    let place = Place::new(Scripted::closed());
    let first = place.engine().await;
    let client = place.client();
    let id = session("s");
    client
        .start_session(start("s", "call slow:c1"))
        .await
        .unwrap();
    place.runner.waiting(1).await;
    let mut held = place.store.load(&id).await.unwrap().unwrap().lease.unwrap();
    // Another worker of another machine can only watch the heartbeat.
    let stop = tokio::spawn(first.shutdown());
    for _ in 0..3 {
        // sleeps because only (virtual) time passes here
        tokio::time::sleep(place.options.lease_time / 2).await;
        let now = place.store.load(&id).await.unwrap().unwrap().lease.unwrap();
        assert!(now.heartbeat > held.heartbeat);
        held = now;
    }
    place.runner.open_gate();
    stop.await.unwrap();
    let _second = place.engine().await;
    Log::of(&client, &id).await.turns_over(1).await;
    assert_eq!(place.runner.tools(), [("c1".to_owned(), 1)]);
    let last = texts(&client, &id).await.pop().unwrap();
    assert_eq!(last, r#"c1: ran {"for":"c1"}"#);
}

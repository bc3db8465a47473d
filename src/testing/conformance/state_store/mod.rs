//! The contract of [`StateStore`], rule by rule.

mod changes;
mod chunks;
mod commits;
mod deletion;
mod interrupts;
mod leases;
mod listing;
mod races;
mod rows;

use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::ids::{ChunkId, EventCursor, LeaseEpoch, Revision, SessionId};
use crate::store::{
    Chunk, ChunkCodec, Commit, EventRow, Fence, LeaseAnswer, StateStore, StoreError, StoredSession,
    WorkerId, WorkerRecord,
};

/// Runs every rule of the [`StateStore`] contract on stores that `make` creates, one empty store for
/// each rule. `make` keeps no handle to what it made: one rule is about the store's end.
///
/// Runs on a tokio runtime with time enabled; with several threads it finds more races.
///
/// # Panics
/// When the store breaks a rule, or takes more than a minute for one: the message names the rule
/// and what was seen.
///
/// # Examples
/// ```
/// # use std::sync::Arc;
/// # use abide::store::{MemoryStateStore, StateStore};
/// # use abide::testing::conformance;
/// # #[tokio::main]
/// # async fn main() {
/// conformance::state_store(|| async { Arc::new(MemoryStateStore::new()) as Arc<dyn StateStore> }).await;
/// # }
/// ```
pub async fn state_store<F, Fut>(make: F)
where
    F: Fn() -> Fut,
    Fut: Future<Output = Arc<dyn StateStore>>,
{
    for rules in [
        commits::RULES,
        races::RULES,
        deletion::RULES,
        chunks::RULES,
        rows::RULES,
        listing::RULES,
        interrupts::RULES,
        leases::RULES,
        changes::RULES,
    ] {
        for (name, run) in rules {
            check(name, run(make().await)).await;
        }
    }
}

/// A sentence about a store, and what panics when it is not true.
type Rule = (&'static str, fn(Store) -> RuleFuture);
type Store = Arc<dyn StateStore>;
type RuleFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

async fn check(name: &str, rule: RuleFuture) {
    // A task of its own catches the panic, so that the rule can be named.
    let mut task = tokio::spawn(rule);
    match tokio::time::timeout(RULE_LIMIT, &mut task).await {
        Ok(Ok(())) => {}
        Ok(Err(ended)) => match ended.try_into_panic() {
            Ok(panic) => panic!("the store breaks the rule \"{name}\": {}", text(&*panic)),
            Err(cancelled) => panic!("the rule \"{name}\" was not checked: {cancelled}"),
        },
        Err(_) => {
            task.abort();
            panic!("the store breaks the rule \"{name}\": no answer after {RULE_LIMIT:?}");
        }
    }
}

fn text(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("a panic without a text")
}

#[track_caller]
fn id(text: &str) -> SessionId {
    must(SessionId::new(text), "make an id")
}

#[track_caller]
fn must<T, E: std::fmt::Debug>(result: Result<T, E>, what: &str) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("failed to {what}: {error:?}"),
    }
}

/// Panics unless the result is the error that `is` tells.
#[track_caller]
fn refused<T: std::fmt::Debug>(
    result: Result<T, StoreError>,
    wanted: &str,
    is: fn(&StoreError) -> bool,
) {
    match result {
        Err(error) if is(&error) => {}
        other => panic!("expected {wanted}, got {other:?}"),
    }
}

fn is_corrupt(error: &StoreError) -> bool {
    matches!(error, StoreError::Corrupt { .. })
}

fn is_fenced(error: &StoreError) -> bool {
    matches!(error, StoreError::Fenced { .. })
}

fn is_no_session(error: &StoreError) -> bool {
    matches!(error, StoreError::NoSession { .. })
}

fn state(text: &str) -> Commit {
    Commit {
        state: text.into(),
        ..Commit::default()
    }
}

fn chunk(number: u64, parent: Option<u64>) -> Chunk {
    let bytes = format!("{{\"chunk\":{number}}}\n").into_bytes();
    Chunk {
        id: ChunkId(number),
        parent: parent.map(ChunkId),
        messages: 1,
        codec: ChunkCodec::Plain,
        raw_bytes: bytes.len() as u64,
        bytes,
    }
}

fn event(cursor: u64) -> EventRow {
    EventRow {
        cursor: EventCursor(cursor),
        bytes: format!("{{\"event\":{cursor}}}").into_bytes(),
    }
}

/// Commits without a fence.
async fn commit(store: &Store, session: &SessionId, on: u64, commit: Commit) -> Revision {
    must(
        store.commit(session, Revision(on), None, commit).await,
        "commit",
    )
}

async fn load(store: &Store, session: &SessionId) -> Option<StoredSession> {
    must(store.load(session).await, "load")
}

fn worker(name: &str) -> WorkerRecord {
    WorkerRecord {
        id: WorkerId::new(name),
        process_id: 4242,
        start_time: 123_456_789,
        boot_id: "4a3b1c5e-0000-4000-8000-000000000001".to_owned(),
        pid_namespace: 1,
    }
}

/// Registers a worker of this name.
async fn register(store: &Store, name: &str) -> WorkerRecord {
    let worker = worker(name);
    must(store.register_worker(&worker).await, "register a worker");
    worker
}

/// Takes a lease that is free.
async fn lease(store: &Store, session: &SessionId, worker: &WorkerId) -> LeaseEpoch {
    match must(
        store.acquire_lease(session, worker, None).await,
        "acquire a lease",
    ) {
        LeaseAnswer::Granted(epoch) => epoch,
        LeaseAnswer::Held(lease) => panic!("expected a grant, it is held: {lease:?}"),
    }
}

/// Far more than a slow disk needs for one rule.
const RULE_LIMIT: Duration = Duration::from_secs(60);

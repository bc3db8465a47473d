//! Stores that fail for a while: the engine goes on once they work again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use abide::store::{Commit, RowChange, RowKey};
use abide::testing::faults::{FailingStore, StoreCall, StoreFault};

use super::*;

/// A store that is gone while the flag is up.
fn breakable(inner: &Arc<dyn StateStore>) -> (Arc<FailingStore>, Arc<AtomicBool>) {
    let is_broken = Arc::new(AtomicBool::new(false));
    let broken = Arc::clone(&is_broken);
    let plan = move |_, _| broken.load(Ordering::SeqCst).then_some(StoreFault::Gone);
    let store = FailingStore::new(Arc::clone(inner), plan);
    (Arc::new(store), is_broken)
}

/// G8: a driver that ended because its store failed, and whose lease could not even be given back,
/// is followed by one under another epoch once the store works; under the same one, every attempt
/// would be refused for ever.
#[tokio::test(start_paused = true)]
async fn a_session_goes_on_once_its_store_works_again() {
    let mut place = Place::new(Scripted::closed());
    let behind = Arc::clone(&place.store);
    let (store, is_broken) = breakable(&behind);
    place.store = store;
    let _engine = place.engine().await;
    let id = session("s");
    let client = place.client();
    client.start_session(start("s", "wait")).await.unwrap();
    place.runner.waiting(1).await;
    is_broken.store(true, Ordering::SeqCst);
    // Through the store behind it: it wakes the driver, which cannot read its session.
    let other = AgentSessionClient::new(behind);
    other.send_user_message(&id, "next", None).await.unwrap();
    // sleeps because only (virtual) time passes here
    tokio::time::sleep(Duration::from_secs(1)).await;
    is_broken.store(false, Ordering::SeqCst);
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
    let (store, _) = breakable(&behind);
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
    let before = store.calls(StoreCall::Read);
    // sleeps because only (virtual) time passes here
    tokio::time::sleep(Duration::from_secs(600)).await;
    // Each look at all sessions is a read.
    let looks = 600 / place.options.scan_interval.as_secs();
    let reads = store.calls(StoreCall::Read) - before;
    assert!(reads < looks + 100, "{reads}");
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

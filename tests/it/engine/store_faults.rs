//! Stores that are full, busy or do not know: nothing is lost, and nothing is doubled.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use abide::client::ClientError;
use abide::ids::RequestId;
use abide::testing::faults::{FailingStore, StoreCall, StoreFault};

use super::*;

/// An approved write in its own Step, a write inside the next segment, and one without approval.
const TURN: &str = "call write:c1 inside:c2 free:c3";

/// Longer than any back-off of these tests together; the runtime's time is virtual.
const LIMIT: Duration = Duration::from_secs(3600);

/// What is left of an approved turn and the one after it.
#[derive(Debug, PartialEq, Eq)]
struct Left {
    said: Vec<String>,
    tools: Vec<(String, u32)>,
    segments: Vec<u32>,
    events: Vec<EventKind>,
}

/// Runs [`TURN`] over a failing store; the client and the log stand behind the faults. With
/// `interrupts`, somebody else commits directly after each fault.
async fn run_turn(
    plan: impl Fn(StoreCall, u64) -> Option<StoreFault> + Send + Sync + 'static,
    interrupts: bool,
) -> (Left, Arc<FailingStore>) {
    let mut place = Place::new(Scripted::open());
    let behind = place.client();
    let store = Arc::new(FailingStore::new(Arc::clone(&place.store), plan));
    place.store = Arc::clone(&store) as _;
    let engine = place.engine().await;
    let id = session("s");
    behind.start_session(start("s", TURN)).await.unwrap();
    let mut log = Log::of(&behind, &id).await;
    let mut faults = store.faults();
    let first_over = tokio::sync::Notify::new();
    let conversation = async {
        log.suspended().await;
        behind
            .resolve_interrupt(&id, approve("t1/c1"))
            .await
            .unwrap();
        log.turns_over(1).await;
        first_over.notify_one();
        log.turns_over(2).await;
    };
    let somebody = async {
        tokio::select! {
            () = first_over.notified() => {}
            fault = faults.wait_for(|it| *it > 0), if interrupts => drop(fault.unwrap()),
        }
        behind.send_user_message(&id, "next", None).await.unwrap();
    };
    tokio::time::timeout(LIMIT, async { tokio::join!(conversation, somebody) })
        .await
        .unwrap();
    let left = Left {
        said: texts(&behind, &id).await,
        tools: place.runner.tools(),
        segments: place.runner.segments(),
        events: log.seen.into_iter().map(|it| it.kind).collect(),
    };
    engine.shutdown().await;
    (left, store)
}

/// Where the next message is queued is for the client to say; everything else keeps its place.
fn without_acceptance(mut left: Left) -> Left {
    left.events
        .retain(|it| !matches!(it, EventKind::MessageQueued { .. }));
    left
}

/// G1, G3, G13: a commit of which the store does not know whether it holds is read back: the turn
/// goes on as if nothing had happened, wherever it comes, whether it holds, and whoever commits
/// in between.
#[tokio::test(start_paused = true)]
async fn an_ambiguous_commit_is_read_back() {
    let (plain, store) = run_turn(|_, _| None, false).await;
    let plain = without_acceptance(plain);
    assert_eq!(plain.tools.len(), 3);
    let commits = store.calls(StoreCall::FencedCommit);
    let mut wrong = Vec::new();
    for fault in [StoreFault::AmbiguousDone, StoreFault::AmbiguousNotDone] {
        for at in 1..=commits {
            for interrupts in [false, true] {
                let plan = move |call, number| {
                    (call == StoreCall::FencedCommit && number == at).then_some(fault)
                };
                let (left, store) = run_turn(plan, interrupts).await;
                assert_eq!(*store.faults().borrow(), 1);
                let left = without_acceptance(left);
                if left != plain {
                    wrong.push(format!("{fault:?} {at} {interrupts}: {left:#?}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{plain:#?}\n{}", wrong.join("\n"));
}

/// P16: a store that is full or busy for a while, in its commits or its reads, loses nothing and
/// doubles nothing; the engine waits and goes on.
#[tokio::test(start_paused = true)]
async fn a_full_or_busy_store_only_costs_time() {
    let (plain, _) = run_turn(|_, _| None, false).await;
    for fault in [StoreFault::Full, StoreFault::Busy] {
        for call in [StoreCall::FencedCommit, StoreCall::Read] {
            // Half of the calls fail, four in a row.
            let plan = move |it, number: u64| (it == call && number % 8 >= 4).then_some(fault);
            let (left, store) = run_turn(plan, false).await;
            assert!(*store.faults().borrow() >= 4, "{fault:?} {call:?}");
            assert_eq!(left, plain, "{fault:?} {call:?}");
        }
    }
}

/// P16: a session is taken over from a worker that stands still, although the store takes neither
/// heartbeats nor leases for a while.
#[tokio::test(start_paused = true)]
async fn a_full_or_busy_store_delays_a_take_over() {
    for fault in [StoreFault::Full, StoreFault::Busy] {
        let mut place = Place::new(Scripted::closed());
        let behind = place.client();
        let crashed = place.engine().await;
        let id = session("s");
        behind.start_session(start("s", "wait")).await.unwrap();
        place.runner.waiting(1).await;
        drop(crashed);
        // The registration of the worker is the application's to repeat.
        let plan = move |call, number: u64| {
            (call == StoreCall::Lease && (2..10).contains(&number)).then_some(fault)
        };
        let store = Arc::new(FailingStore::new(Arc::clone(&place.store), plan));
        place.store = Arc::clone(&store) as _;
        let _second = place.engine().await;
        place.runner.open_gate();
        let over = async { Log::of(&behind, &id).await.turns_over(1).await };
        tokio::time::timeout(LIMIT, over).await.unwrap();
        assert_eq!(*store.faults().borrow(), 8, "{fault:?}");
        assert_eq!(place.runner.segments(), [1, 2], "{fault:?}");
    }
}

/// G8: while the store is locked no heartbeat can move, so what a worker saw before does not count
/// afterwards: a living holder keeps its session.
#[tokio::test(start_paused = true)]
async fn a_locked_store_costs_a_living_holder_nothing() {
    let mut place = Place::new(Scripted::closed());
    let behind = place.client();
    let behind_store = Arc::clone(&place.store);
    let is_locked = Arc::new(AtomicBool::new(false));
    let locked = Arc::clone(&is_locked);
    let plan = move |call, _| {
        let writes = call != StoreCall::Read;
        (writes && locked.load(Ordering::SeqCst)).then_some(StoreFault::Busy)
    };
    place.store = Arc::new(FailingStore::new(Arc::clone(&behind_store), plan));
    let begin = tokio::time::Instant::now();
    let _first = place.engine().await;
    let id = session("s");
    let text = "call slow:c1";
    behind.start_session(start("s", text)).await.unwrap();
    place.runner.waiting(1).await;
    let _second = place.engine().await;
    // Beats come every 3 s, looks every 5 s: the last look before the lock comes after the last
    // beat, and the first one after it before the first beat.
    for (millis, lock) in [(5_500, true), (39_500, false)] {
        // sleeps because only (virtual) time passes here
        tokio::time::sleep_until(begin + Duration::from_millis(millis)).await;
        is_locked.store(lock, Ordering::SeqCst);
    }
    // sleeps because only (virtual) time passes here
    tokio::time::sleep(place.options.lease_time * 4).await;
    let lease = behind_store.load(&id).await.unwrap().unwrap().lease;
    assert_eq!(lease.unwrap().epoch, abide::ids::LeaseEpoch(1));
    place.runner.open_gate();
    Log::of(&behind, &id).await.turns_over(1).await;
    assert_eq!(place.runner.tools(), [("c1".to_owned(), 1)]);
    let last = texts(&behind, &id).await.pop().unwrap();
    assert_eq!(last, r#"c1: ran {"for":"c1"}"#);
}

/// A store that is full for good does not hold up a shutdown beyond its grace time.
#[tokio::test(start_paused = true)]
async fn a_shutdown_does_not_wait_for_a_full_store() {
    let mut place = Place::new(Scripted::closed());
    let behind = place.client();
    let is_full = Arc::new(AtomicBool::new(false));
    let full = Arc::clone(&is_full);
    let plan = move |call, _| {
        (call == StoreCall::FencedCommit && full.load(Ordering::SeqCst)).then_some(StoreFault::Full)
    };
    let behind_store = Arc::clone(&place.store);
    place.store = Arc::new(FailingStore::new(Arc::clone(&behind_store), plan));
    let engine = place.engine().await;
    let id = session("s");
    behind
        .start_session(start("s", "call slow:c1"))
        .await
        .unwrap();
    place.runner.waiting(1).await;
    is_full.store(true, Ordering::SeqCst);
    place.runner.open_gate();
    tokio::time::timeout(place.options.shutdown_grace * 2, engine.shutdown())
        .await
        .unwrap();
    let stored = behind_store.load(&id).await.unwrap().unwrap();
    assert_eq!(stored.lease, None);
    is_full.store(false, Ordering::SeqCst);
    let _second = place.engine().await;
    Log::of(&behind, &id).await.turns_over(1).await;
    assert_eq!(place.runner.tools(), [("c1".to_owned(), 1)]);
}

/// P03: a client whose commit is ambiguous is told that it may hold; with a request id, asking again
/// finds out, and the request counts once either way.
#[tokio::test(start_paused = true)]
async fn an_ambiguous_request_with_an_id_counts_once() {
    for (fault, holds) in [
        (StoreFault::AmbiguousDone, true),
        (StoreFault::AmbiguousNotDone, false),
    ] {
        let place = Place::new(Scripted::open());
        let _engine = place.engine().await;
        let behind = place.client();
        let id = session("s");
        behind
            .start_session(start("s", "call write:c1"))
            .await
            .unwrap();
        let mut log = Log::of(&behind, &id).await;
        log.suspended().await;
        // Every other commit of the client is ambiguous.
        let plan =
            move |call, number| (call == StoreCall::FreeCommit && number % 2 == 1).then_some(fault);
        let failing = || Arc::new(FailingStore::new(Arc::clone(&place.store), plan));

        let client = AgentSessionClient::new(failing());
        let send = || client.send_user_message(&id, "next", Some(RequestId::new("r1").unwrap()));
        assert_may_have_happened(send().await.unwrap_err());
        let accepted = send().await.unwrap();
        assert_eq!((accepted.duplicate, accepted.queued), (holds, true));

        let client = AgentSessionClient::new(failing());
        let answer = || approve("t1/c1").with_request_id(RequestId::new("r2").unwrap());
        let first = client.resolve_interrupt(&id, answer()).await;
        assert_may_have_happened(first.unwrap_err());
        let again = client.resolve_interrupt(&id, answer()).await.unwrap();
        assert_eq!(again, !holds);

        // Without an id only the error can say so.
        let client = AgentSessionClient::new(failing());
        let error = client.send_user_message(&id, "last", None).await;
        assert_may_have_happened(error.unwrap_err());

        log.turns_over(if holds { 3 } else { 2 }).await;
        let mut said = vec!["call write:c1", "I call tools."];
        said.extend([r#"c1: ran {"for":"c1"}"#, "next", "re: next"]);
        if holds {
            said.extend(["last", "re: last"]);
        }
        assert_eq!(texts(&behind, &id).await, said);
        assert_eq!(place.runner.tools(), [("c1".to_owned(), 1)]);
    }
}

fn assert_may_have_happened(error: ClientError) {
    assert!(error.may_have_happened(), "{error:?}");
    assert!(error.is_retryable(), "{error:?}");
}

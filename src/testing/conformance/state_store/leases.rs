//! Workers, heartbeats and leases.

use super::*;
use crate::store::Lease;

pub(super) const RULES: &[Rule] = &[
    (
        "a heartbeat rises by one, for registered workers only",
        |it| Box::pin(a_heartbeat_rises(it)),
    ),
    ("a free lease is granted, a held one is shown", |it| {
        Box::pin(a_held_lease_is_shown(it))
    }),
    ("the holder gets the same grant again", |it| {
        Box::pin(the_holder_gets_the_same_grant(it))
    }),
    ("a lease is taken over under its present epoch only", |it| {
        Box::pin(taking_over_needs_the_epoch(it))
    }),
    ("a lease is released under its epoch only", |it| {
        Box::pin(releasing_needs_the_epoch(it))
    }),
    ("epochs grow over release and deletion", |it| {
        Box::pin(epochs_only_grow(it))
    }),
    ("a removed worker's leases are free", |it| {
        Box::pin(removing_a_worker_frees_its_leases(it))
    }),
    ("commits and leases do not disturb each other", |it| {
        Box::pin(commits_leave_leases_alone(it))
    }),
    ("of concurrent workers exactly one gets the lease", |it| {
        Box::pin(one_worker_gets_the_lease(it))
    }),
];

async fn acquire(
    store: &Store,
    session: &SessionId,
    worker: &WorkerRecord,
    take_over: Option<LeaseEpoch>,
) -> LeaseAnswer {
    let answer = store.acquire_lease(session, &worker.id, take_over).await;
    must(answer, "acquire a lease")
}

fn held(epoch: LeaseEpoch, holder: &WorkerRecord, heartbeat: u64) -> Lease {
    Lease {
        epoch,
        holder: holder.clone(),
        heartbeat,
    }
}

async fn loaded_lease(store: &Store, session: &SessionId) -> Option<Lease> {
    load(store, session).await.and_then(|it| it.lease)
}

async fn a_heartbeat_rises(store: Store) {
    let (first, second) = (register(&store, "w1").await, register(&store, "w2").await);
    for expected in 1..=3 {
        let beat = must(store.heartbeat(&first.id).await, "beat");
        assert_eq!(beat, expected);
    }
    assert_eq!(must(store.heartbeat(&second.id).await, "beat"), 1);
    let unknown = store.heartbeat(&WorkerId::new("w3")).await;
    refused(unknown, "Fenced", is_fenced);
    must(store.remove_worker(&first.id).await, "remove a worker");
    must(store.remove_worker(&first.id).await, "remove it again");
    refused(store.heartbeat(&first.id).await, "Fenced", is_fenced);
    assert_eq!(must(store.heartbeat(&second.id).await, "beat"), 2);
    register(&store, "w2").await;
    assert_eq!(must(store.heartbeat(&second.id).await, "beat"), 1);
}

async fn a_held_lease_is_shown(store: Store) {
    let session = id("leased");
    commit(&store, &session, 0, state("a")).await;
    let (first, second) = (register(&store, "w1").await, register(&store, "w2").await);
    assert_eq!(loaded_lease(&store, &session).await, None);
    let epoch = lease(&store, &session, &first.id).await;
    assert!(epoch.0 > 0, "an epoch is counted from one");

    let shown = |heartbeat| held(epoch, &first, heartbeat);
    let answer = acquire(&store, &session, &second, None).await;
    assert_eq!(answer, LeaseAnswer::Held(shown(0)));
    must(store.heartbeat(&first.id).await, "beat");
    let answer = acquire(&store, &session, &second, None).await;
    assert_eq!(answer, LeaseAnswer::Held(shown(1)));
    assert_eq!(loaded_lease(&store, &session).await, Some(shown(1)));

    let stranger = store
        .acquire_lease(&session, &WorkerId::new("w3"), None)
        .await;
    refused(stranger, "Fenced", is_fenced);
    let nowhere = store.acquire_lease(&id("unknown"), &first.id, None).await;
    refused(nowhere, "NoSession", is_no_session);
}

async fn the_holder_gets_the_same_grant(store: Store) {
    let session = id("leased");
    commit(&store, &session, 0, state("a")).await;
    let first = register(&store, "w1").await;
    let epoch = lease(&store, &session, &first.id).await;
    for take_over in [None, Some(LeaseEpoch(epoch.0 + 7))] {
        let answer = acquire(&store, &session, &first, take_over).await;
        assert_eq!(answer, LeaseAnswer::Granted(epoch));
    }
    // It gives up what it granted under its own epoch by taking over from itself.
    let answer = acquire(&store, &session, &first, Some(epoch)).await;
    assert_eq!(answer, LeaseAnswer::Granted(LeaseEpoch(epoch.0 + 1)));
}

async fn taking_over_needs_the_epoch(store: Store) {
    let session = id("leased");
    commit(&store, &session, 0, state("a")).await;
    let (first, second) = (register(&store, "w1").await, register(&store, "w2").await);
    let epoch = lease(&store, &session, &first.id).await;
    for wrong in [LeaseEpoch(0), LeaseEpoch(epoch.0 + 1)] {
        let answer = acquire(&store, &session, &second, Some(wrong)).await;
        assert_eq!(answer, LeaseAnswer::Held(held(epoch, &first, 0)));
    }
    let LeaseAnswer::Granted(later) = acquire(&store, &session, &second, Some(epoch)).await else {
        panic!("taking over under the right epoch must be granted");
    };
    assert!(later > epoch);
    // The same proof of death does not count twice.
    let answer = acquire(&store, &session, &first, Some(epoch)).await;
    assert_eq!(answer, LeaseAnswer::Held(held(later, &second, 0)));
    assert_eq!(
        loaded_lease(&store, &session).await,
        Some(held(later, &second, 0))
    );
}

async fn releasing_needs_the_epoch(store: Store) {
    let session = id("leased");
    commit(&store, &session, 0, state("a")).await;
    let first = register(&store, "w1").await;
    let epoch = lease(&store, &session, &first.id).await;
    for wrong in [LeaseEpoch(0), LeaseEpoch(epoch.0 + 1), LeaseEpoch(u64::MAX)] {
        must(store.release_lease(&session, wrong).await, "release");
        assert_eq!(
            loaded_lease(&store, &session).await,
            Some(held(epoch, &first, 0))
        );
    }
    must(store.release_lease(&session, epoch).await, "release");
    assert_eq!(loaded_lease(&store, &session).await, None);
    must(store.release_lease(&session, epoch).await, "release again");
    must(store.release_lease(&id("unknown"), epoch).await, "release");
}

async fn epochs_only_grow(store: Store) {
    let session = id("leased");
    let (first, second) = (register(&store, "w1").await, register(&store, "w2").await);
    let mut last = LeaseEpoch(0);
    for round in 0..3 {
        let revision = commit(&store, &session, 0, state("a")).await;
        assert_eq!(revision, Revision(round + 1));
        for worker in [&first, &second, &first] {
            let epoch = lease(&store, &session, &worker.id).await;
            assert!(epoch > last, "{epoch:?} after {last:?}");
            last = epoch;
            must(store.release_lease(&session, epoch).await, "release");
        }
        let stale = lease(&store, &session, &first.id).await;
        last = stale;
        must(store.delete(&session).await, "delete");
        let late = store
            .commit(&session, Revision(0), Some(stale), state("x"))
            .await;
        refused(late, "Fenced", is_fenced);
    }
    commit(&store, &session, 0, state("a")).await;
    assert_eq!(loaded_lease(&store, &session).await, None);
}

async fn removing_a_worker_frees_its_leases(store: Store) {
    let sessions = ["a", "b", "c"].map(id);
    let (first, second) = (register(&store, "w1").await, register(&store, "w2").await);
    let mut epochs = Vec::new();
    for (session, worker) in sessions.iter().zip([&first, &first, &second]) {
        commit(&store, session, 0, state("a")).await;
        epochs.push(lease(&store, session, &worker.id).await);
    }
    must(store.remove_worker(&first.id).await, "remove a worker");
    assert_eq!(loaded_lease(&store, &sessions[0]).await, None);
    assert_eq!(loaded_lease(&store, &sessions[1]).await, None);
    assert_eq!(
        loaded_lease(&store, &sessions[2]).await,
        Some(held(epochs[2], &second, 0))
    );
    // Back under its name it does not own what it owned.
    register(&store, "w1").await;
    assert_eq!(loaded_lease(&store, &sessions[0]).await, None);
    assert!(lease(&store, &sessions[0], &first.id).await > epochs[0]);
}

async fn commits_leave_leases_alone(store: Store) {
    let session = id("leased");
    commit(&store, &session, 0, state("a")).await;
    let first = register(&store, "w1").await;
    let epoch = lease(&store, &session, &first.id).await;
    commit(&store, &session, 1, state("b")).await;
    register(&store, "w1").await;
    let expected = StoredSession {
        revision: Revision(2),
        state: b"b".to_vec(),
        head: None,
        lease: Some(held(epoch, &first, 0)),
    };
    assert_eq!(load(&store, &session).await, Some(expected));
}

async fn one_worker_gets_the_lease(store: Store) {
    let session = id("leased");
    commit(&store, &session, 0, state("a")).await;
    let mut tries = Vec::new();
    for number in 0..20 {
        let worker = register(&store, &format!("w{number}")).await;
        let (store, session) = (Arc::clone(&store), session.clone());
        tries.push(tokio::spawn(async move {
            (acquire(&store, &session, &worker, None).await, worker)
        }));
    }
    let mut owners = Vec::new();
    let mut shown = Vec::new();
    for it in tries {
        match must(it.await, "join") {
            (LeaseAnswer::Granted(epoch), worker) => owners.push(held(epoch, &worker, 0)),
            (LeaseAnswer::Held(lease), _) => shown.push(lease),
        }
    }
    let owner = loaded_lease(&store, &session).await;
    assert_eq!(owners, Vec::from_iter(owner));
    assert_eq!(shown, vec![owners[0].clone(); 19]);
}

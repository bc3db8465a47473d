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
    (
        "a commit takes a free lease under the next epoch only",
        |it| Box::pin(a_commit_takes_a_free_lease(it)),
    ),
    ("a commit gives its lease back", |it| {
        Box::pin(a_commit_gives_its_lease_back(it))
    }),
    ("a refused commit leaves the lease as it was", |it| {
        Box::pin(a_refused_commit_leaves_the_lease(it))
    }),
    ("of concurrent commits exactly one takes the lease", |it| {
        Box::pin(one_commit_takes_the_lease(it))
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
            .commit(&session, Revision(0), Some(Fence::Hold(stale)), state("x"))
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
        epoch,
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

fn take(worker: &WorkerRecord, epoch: u64) -> Option<Fence> {
    Some(Fence::Take {
        worker: worker.id.clone(),
        epoch: LeaseEpoch(epoch),
    })
}

async fn a_commit_takes_a_free_lease(store: Store) {
    let session = id("taken");
    let (first, second) = (register(&store, "w1").await, register(&store, "w2").await);
    let nowhere = store
        .commit(&session, Revision(0), take(&first, 1), state("x"))
        .await;
    refused(nowhere, "Fenced", is_fenced);
    commit(&store, &session, 0, state("a")).await;
    for wrong in [0, 2, u64::MAX] {
        let result = store
            .commit(&session, Revision(1), take(&first, wrong), state("x"))
            .await;
        refused(result, "Fenced", is_fenced);
    }
    let stranger = store
        .commit(&session, Revision(1), take(&worker("w3"), 1), state("x"))
        .await;
    refused(stranger, "Fenced", is_fenced);
    assert_eq!(loaded_lease(&store, &session).await, None);

    let taken = store
        .commit(&session, Revision(1), take(&first, 1), state("b"))
        .await;
    assert_eq!(must(taken, "commit"), Revision(2));
    let expected = StoredSession {
        revision: Revision(2),
        state: b"b".to_vec(),
        head: None,
        lease: Some(held(LeaseEpoch(1), &first, 0)),
        epoch: LeaseEpoch(1),
    };
    assert_eq!(load(&store, &session).await, Some(expected));
    // What is held is taken by nobody, its holder included.
    for (worker, epoch) in [(&first, 1), (&first, 2), (&second, 1), (&second, 2)] {
        let result = store
            .commit(&session, Revision(2), take(worker, epoch), state("x"))
            .await;
        refused(result, "Fenced", is_fenced);
    }
    let answer = acquire(&store, &session, &second, None).await;
    assert_eq!(answer, LeaseAnswer::Held(held(LeaseEpoch(1), &first, 0)));
    must(store.remove_worker(&first.id).await, "remove a worker");
    assert_eq!(loaded_lease(&store, &session).await, None);
}

async fn a_commit_gives_its_lease_back(store: Store) {
    let session = id("released");
    commit(&store, &session, 0, state("a")).await;
    let (first, second) = (register(&store, "w1").await, register(&store, "w2").await);
    let epoch = lease(&store, &session, &first.id).await;
    let release = |on: u64, epoch| {
        store.commit(
            &session,
            Revision(on),
            Some(Fence::Release(epoch)),
            state("b"),
        )
    };
    refused(
        release(1, LeaseEpoch(epoch.0 + 1)).await,
        "Fenced",
        is_fenced,
    );
    assert_eq!(must(release(1, epoch).await, "commit"), Revision(2));
    let expected = StoredSession {
        revision: Revision(2),
        state: b"b".to_vec(),
        head: None,
        lease: None,
        epoch,
    };
    assert_eq!(load(&store, &session).await, Some(expected));
    refused(release(2, epoch).await, "Fenced", is_fenced);
    let late = store
        .commit(&session, Revision(2), Some(Fence::Hold(epoch)), state("x"))
        .await;
    refused(late, "Fenced", is_fenced);
    // Epochs go on counting, in whichever way the lease is taken next.
    let next = store
        .commit(
            &session,
            Revision(2),
            take(&second, epoch.0 + 1),
            state("c"),
        )
        .await;
    assert_eq!(must(next, "commit"), Revision(3));
    let later = LeaseEpoch(epoch.0 + 1);
    assert_eq!(must(release(3, later).await, "commit"), Revision(4));
    assert!(lease(&store, &session, &first.id).await > later);
}

async fn a_refused_commit_leaves_the_lease(store: Store) {
    let session = id("refused");
    commit(&store, &session, 0, state("a")).await;
    let first = register(&store, "w1").await;
    let gap = || Commit {
        events: vec![event(7)],
        ..state("x")
    };
    for (on, wanted, is) in [
        (5, "Conflict", is_conflict as fn(&StoreError) -> bool),
        (1, "Corrupt", is_corrupt),
    ] {
        let result = store
            .commit(&session, Revision(on), take(&first, 1), gap())
            .await;
        refused(result, wanted, is);
        let stored = load(&store, &session).await;
        assert_eq!(stored.map(|it| (it.lease, it.epoch.0)), Some((None, 0)));
    }
    let epoch = lease(&store, &session, &first.id).await;
    for (on, wanted, is) in [
        (5, "Conflict", is_conflict as fn(&StoreError) -> bool),
        (1, "Corrupt", is_corrupt),
    ] {
        let result = store
            .commit(&session, Revision(on), Some(Fence::Release(epoch)), gap())
            .await;
        refused(result, wanted, is);
        assert_eq!(
            loaded_lease(&store, &session).await,
            Some(held(epoch, &first, 0))
        );
    }
}

const fn is_conflict(error: &StoreError) -> bool {
    matches!(error, StoreError::Conflict { .. })
}

async fn one_commit_takes_the_lease(store: Store) {
    let session = id("taken");
    commit(&store, &session, 0, state("a")).await;
    let mut tries = Vec::new();
    for number in 0..20 {
        let worker = register(&store, &format!("w{number}")).await;
        let (store, session) = (Arc::clone(&store), session.clone());
        tries.push(tokio::spawn(async move {
            let fence = take(&worker, 1);
            let answer = store
                .commit(&session, Revision(1), fence, state(worker.id.as_str()))
                .await;
            (answer, worker)
        }));
    }
    let mut owners = Vec::new();
    for it in tries {
        match must(it.await, "join") {
            (Ok(_), worker) => owners.push(worker),
            (result, _) => refused(result, "Fenced", is_fenced),
        }
    }
    assert_eq!(owners.len(), 1, "{owners:?}");
    let expected = StoredSession {
        revision: Revision(2),
        state: owners[0].id.as_str().into(),
        head: None,
        lease: Some(held(LeaseEpoch(1), &owners[0], 0)),
        epoch: LeaseEpoch(1),
    };
    assert_eq!(load(&store, &session).await, Some(expected));
}

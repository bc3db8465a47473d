//! Wake-ups.

use super::*;
use crate::ids::Timestamp;
use crate::store::{Change, ChangeStream, SessionSummary};

pub(super) const RULES: &[Rule] = &[
    ("a commit and a deletion wake who listens", |it| {
        Box::pin(commits_and_deletions_wake(it))
    }),
    ("who is woken sees what woke it", |it| {
        Box::pin(a_wake_up_comes_after_the_commit(it))
    }),
    ("every listener is woken", |it| {
        Box::pin(every_listener_is_woken(it))
    }),
    ("a slow listener is told that it missed something", |it| {
        Box::pin(a_slow_listener_is_told(it))
    }),
    ("the stream ends with the store", |it| {
        Box::pin(the_stream_ends_with_the_store(it))
    }),
];

/// Waits for a wake-up for the session. A store may say [`Change::Missed`] before it, at the start.
async fn woken(stream: &mut ChangeStream, session: &SessionId) -> Change {
    loop {
        match stream.next().await {
            Some(change) if change.session() == Some(session) => return change,
            Some(_) => {}
            None => panic!("the stream ended while the store was there"),
        }
    }
}

async fn commits_and_deletions_wake(store: Store) {
    let (first, second) = (id("a"), id("b"));
    let mut stream = store.changes();
    let told = |session: &SessionId, revision, due_at| Change::Committed {
        session: session.clone(),
        revision: Revision(revision),
        due_at,
    };
    commit(&store, &first, 0, state("a")).await;
    assert_eq!(woken(&mut stream, &first).await, told(&first, 1, None));
    let due_at = Some(Timestamp(7));
    let due = Commit {
        summary: SessionSummary {
            due_at,
            ..SessionSummary::default()
        },
        ..state("a")
    };
    commit(&store, &second, 0, due).await;
    assert_eq!(woken(&mut stream, &second).await, told(&second, 1, due_at));
    commit(&store, &first, 1, state("b")).await;
    assert_eq!(woken(&mut stream, &first).await, told(&first, 2, None));
    must(store.delete(&second).await, "delete");
    assert_eq!(
        woken(&mut stream, &second).await,
        Change::Deleted(second.clone())
    );
}

async fn a_wake_up_comes_after_the_commit(store: Store) {
    let session = id("a");
    let mut stream = store.changes();
    for on in 0..20 {
        let (writer, its) = (Arc::clone(&store), session.clone());
        let task = tokio::spawn(async move { commit(&writer, &its, on, state("a")).await });
        woken(&mut stream, &session).await;
        let seen = load(&store, &session).await.map(|it| it.revision);
        assert_eq!(seen, Some(Revision(on + 1)));
        must(task.await, "join");
    }
}

async fn every_listener_is_woken(store: Store) {
    let session = id("a");
    let mut streams = [store.changes(), store.changes(), store.changes()];
    commit(&store, &session, 0, state("a")).await;
    for stream in &mut streams {
        woken(stream, &session).await;
    }
}

async fn a_slow_listener_is_told(store: Store) {
    let mut stream = store.changes();
    let sessions: Vec<_> = (0..5_000).map(|it| id(&format!("s{it}"))).collect();
    let tasks: Vec<_> = sessions
        .iter()
        .map(|it| {
            let (store, session) = (Arc::clone(&store), it.clone());
            tokio::spawn(async move { commit(&store, &session, 0, state("a")).await })
        })
        .collect();
    for task in tasks {
        must(task.await, "join");
    }
    let last = id("last");
    commit(&store, &last, 0, state("a")).await;
    let mut seen = std::collections::HashSet::new();
    let mut was_missed = false;
    loop {
        match stream.next().await {
            Some(Change::Missed) => was_missed = true,
            Some(Change::Committed { session, .. } | Change::Deleted(session)) => {
                if session == last {
                    break;
                }
                seen.insert(session);
            }
            None => panic!("the stream ended while the store was there"),
        }
    }
    assert!(
        was_missed || sessions.iter().all(|it| seen.contains(it)),
        "only {} of 5000 changes were told, and nothing was said to be missed",
        seen.len()
    );
}

async fn the_stream_ends_with_the_store(store: Store) {
    let mut stream = store.changes();
    drop(store);
    while stream.next().await.is_some() {}
}

//! Concurrent commits.

use super::*;

pub(super) const RULES: &[Rule] = &[
    (
        "of concurrent commits on a revision exactly one wins",
        |it| Box::pin(one_concurrent_commit_wins(it)),
    ),
    ("concurrent commits to many sessions all hold", |it| {
        Box::pin(concurrent_sessions_all_hold(it))
    }),
];

async fn one_concurrent_commit_wins(store: Store) {
    let session = id("contended");
    for on in 0..3 {
        let tries: Vec<_> = (0..200)
            .map(|number| {
                let (store, session) = (Arc::clone(&store), session.clone());
                let mine = Commit {
                    events: vec![event(on + 1)],
                    ..state(&number.to_string())
                };
                tokio::spawn(async move { store.commit(&session, Revision(on), None, mine).await })
            })
            .collect();
        let mut winners = Vec::new();
        for (number, it) in tries.into_iter().enumerate() {
            match must(it.await, "join") {
                Ok(revision) => winners.push((number.to_string(), revision)),
                Err(StoreError::Conflict { expected, actual })
                    if expected == Revision(on) && actual == Revision(on + 1) => {}
                Err(error) => panic!("expected a conflict, got {error:?}"),
            }
        }
        let loaded = load(&store, &session).await;
        let stored = loaded.map(|it| (String::from_utf8_lossy(&it.state).into(), it.revision));
        assert_eq!(winners, Vec::from_iter(stored));
    }
    let events = store.read_events(&session, EventCursor(0), 10).await;
    assert_eq!(must(events, "read events"), [event(1), event(2), event(3)]);
}

async fn concurrent_sessions_all_hold(store: Store) {
    let tasks: Vec<_> = (0..32)
        .map(|number| {
            let (store, session) = (Arc::clone(&store), id(&format!("s{number}")));
            tokio::spawn(async move {
                for on in 0..5 {
                    let text = format!("{number}/{on}");
                    assert_eq!(
                        commit(&store, &session, on, state(&text)).await,
                        Revision(on + 1)
                    );
                    // Every later read sees it.
                    let loaded = load(&store, &session).await.map(|it| it.state);
                    assert_eq!(loaded, Some(text.into_bytes()));
                }
            })
        })
        .collect();
    for task in tasks {
        must(task.await, "commit to a session of its own");
    }
}

//! Deleting a session, and using its id again.

use super::*;
use crate::store::{RowChange, RowKey, RowKind};

pub(super) const RULES: &[Rule] = &[
    ("deleting removes everything of one session", |it| {
        Box::pin(deleting_removes_everything(it))
    }),
    (
        "a session created again starts empty, its revision does not",
        |it| Box::pin(a_new_incarnation_starts_empty(it)),
    ),
];

fn key(text: &str) -> RowKey {
    RowKey {
        kind: RowKind::Record,
        key: text.to_owned(),
    }
}

async fn deleting_removes_everything(store: Store) {
    let (gone, kept) = (id("gone"), id("kept"));
    let full = || Commit {
        chunks: vec![chunk(1, None)],
        head: Some(ChunkId(1)),
        rows: vec![RowChange::Put(key("k"), b"1".to_vec())],
        events: vec![event(1)],
        ..state("a")
    };
    commit(&store, &gone, 0, full()).await;
    commit(&store, &kept, 0, full()).await;
    assert!(must(store.delete(&gone).await, "delete"));
    assert!(!must(store.delete(&gone).await, "delete"));

    for (session, is_there) in [(&gone, false), (&kept, true)] {
        assert_eq!(load(&store, session).await.is_some(), is_there);
        let rows = must(store.read_rows(session, &[key("k")]).await, "read rows");
        assert_eq!(rows, [is_there.then(|| b"1".to_vec())]);
        let events = store.read_events(session, EventCursor(0), 10).await;
        let expected = Vec::from_iter(is_there.then(|| event(1)));
        assert_eq!(must(events, "read events"), expected);
    }
    let chain = store.chunk_chain(&gone, ChunkId(1)).await;
    refused(chain, "NoSession", is_no_session);
    let read = store.read_chunks(&gone, ChunkId(1), 1).await;
    refused(read, "NoSession", is_no_session);
    let page = must(store.list(&Default::default(), 10).await, "list");
    let listed: Vec<_> = page.rows.into_iter().map(|it| it.session).collect();
    assert_eq!(listed, [kept]);
}

async fn a_new_incarnation_starts_empty(store: Store) {
    let session = id("twice");
    let full = |text: &str| Commit {
        chunks: vec![chunk(1, None)],
        rows: vec![RowChange::Put(key("k"), b"1".to_vec())],
        events: vec![event(1)],
        ..state(text)
    };
    commit(&store, &session, 0, full("a")).await;
    commit(&store, &session, 1, state("b")).await;
    must(store.delete(&session).await, "delete");
    // What was reduced from the deleted session fits nothing.
    let late = store.commit(&session, Revision(2), None, state("x")).await;
    refused(late, "a conflict", |it| {
        matches!(it, StoreError::Conflict { .. })
    });

    let again = Commit {
        rows: Vec::new(),
        ..full("c")
    };
    assert_eq!(commit(&store, &session, 0, again).await, Revision(3));
    let late = store.commit(&session, Revision(2), None, state("x")).await;
    refused(late, "a conflict", |it| {
        matches!(it, StoreError::Conflict { .. })
    });
    let rows = must(store.read_rows(&session, &[key("k")]).await, "read rows");
    assert_eq!(rows, [None]);
    assert_eq!(commit(&store, &session, 3, state("d")).await, Revision(4));
}

//! Commits: revisions, fences, all or nothing.

use super::*;
use crate::store::{RowChange, RowKey, RowKind};

pub(super) const RULES: &[Rule] = &[
    ("a session that was never committed is not there", |it| {
        Box::pin(an_unknown_session_is_not_there(it))
    }),
    ("a commit on revision zero creates the session", |it| {
        Box::pin(a_commit_on_zero_creates(it))
    }),
    ("a commit replaces state and head", |it| {
        Box::pin(a_commit_replaces_state_and_head(it))
    }),
    ("a commit on another revision is a conflict", |it| {
        Box::pin(another_revision_conflicts(it))
    }),
    ("a fence holds only for the epoch of the held lease", |it| {
        Box::pin(a_fence_needs_the_held_epoch(it))
    }),
    ("a fenced-off owner hears Fenced, not Conflict", |it| {
        Box::pin(fenced_comes_before_conflict(it))
    }),
    ("a refused commit leaves nothing behind", |it| {
        Box::pin(a_refused_commit_leaves_nothing(it))
    }),
    ("a refused creation leaves no session behind", |it| {
        Box::pin(a_refused_creation_leaves_no_session(it))
    }),
    ("states, rows, chunks and events are any bytes", |it| {
        Box::pin(any_bytes_are_kept(it))
    }),
    ("values of five megabytes are kept", |it| {
        Box::pin(big_values_are_kept(it))
    }),
    ("ids with odd characters stay apart", |it| {
        Box::pin(odd_ids_stay_apart(it))
    }),
];

async fn an_unknown_session_is_not_there(store: Store) {
    let session = id("unknown");
    assert_eq!(load(&store, &session).await, None);
    assert!(!must(store.delete(&session).await, "delete"));
    refused(
        store.commit(&session, Revision(3), None, state("a")).await,
        "a conflict with revision 0",
        |it| {
            matches!(
                it,
                StoreError::Conflict {
                    expected: Revision(3),
                    actual: Revision(0)
                }
            )
        },
    );
    assert_eq!(load(&store, &session).await, None);
}

async fn a_commit_on_zero_creates(store: Store) {
    let session = id("new");
    assert_eq!(commit(&store, &session, 0, state("a")).await, Revision(1));
    let expected = StoredSession {
        revision: Revision(1),
        state: b"a".to_vec(),
        head: None,
        lease: None,
        epoch: LeaseEpoch(0),
    };
    assert_eq!(load(&store, &session).await, Some(expected));
}

async fn a_commit_replaces_state_and_head(store: Store) {
    let session = id("replaced");
    let with_head = |text: &str, number| Commit {
        chunks: vec![chunk(number, None)],
        head: Some(ChunkId(number)),
        ..state(text)
    };
    commit(&store, &session, 0, with_head("a", 1)).await;
    assert_eq!(
        commit(&store, &session, 1, with_head("b", 2)).await,
        Revision(2)
    );
    let expected = StoredSession {
        revision: Revision(2),
        state: b"b".to_vec(),
        head: Some(ChunkId(2)),
        lease: None,
        epoch: LeaseEpoch(0),
    };
    assert_eq!(load(&store, &session).await, Some(expected));
    commit(&store, &session, 2, state("")).await;
    let expected = StoredSession {
        revision: Revision(3),
        state: Vec::new(),
        head: None,
        lease: None,
        epoch: LeaseEpoch(0),
    };
    assert_eq!(load(&store, &session).await, Some(expected));
}

async fn another_revision_conflicts(store: Store) {
    let session = id("conflict");
    commit(&store, &session, 0, state("a")).await;
    commit(&store, &session, 1, state("b")).await;
    let wanted = "a conflict with revision 2";
    for (on, is) in [
        (0, is_conflict::<0> as fn(&StoreError) -> bool),
        (1, is_conflict::<1>),
        (3, is_conflict::<3>),
    ] {
        let result = store.commit(&session, Revision(on), None, state("x")).await;
        refused(result, wanted, is);
    }
    assert_eq!(
        load(&store, &session).await.map(|it| it.state),
        Some(b"b".to_vec())
    );
}

fn is_conflict<const EXPECTED: u64>(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::Conflict { expected, actual: Revision(2) } if *expected == Revision(EXPECTED)
    )
}

async fn a_fence_needs_the_held_epoch(store: Store) {
    let session = id("fenced");
    let fenced = |on: u64, epoch: LeaseEpoch, text: &'static str| {
        store.commit(
            &session,
            Revision(on),
            Some(Fence::Hold(epoch)),
            state(text),
        )
    };
    let wanted = "Fenced";
    refused(fenced(0, LeaseEpoch(1), "x").await, wanted, is_fenced);
    commit(&store, &session, 0, state("a")).await;
    refused(fenced(1, LeaseEpoch(0), "x").await, wanted, is_fenced);

    let (first, second) = (register(&store, "w1").await, register(&store, "w2").await);
    let epoch = lease(&store, &session, &first.id).await;
    assert_eq!(must(fenced(1, epoch, "b").await, "commit"), Revision(2));
    refused(
        fenced(2, LeaseEpoch(epoch.0 + 1), "x").await,
        wanted,
        is_fenced,
    );

    must(store.release_lease(&session, epoch).await, "release");
    refused(fenced(2, epoch, "x").await, wanted, is_fenced);

    let later = lease(&store, &session, &second.id).await;
    refused(fenced(2, epoch, "x").await, wanted, is_fenced);
    assert_eq!(must(fenced(2, later, "c").await, "commit"), Revision(3));

    let taken = store.acquire_lease(&session, &first.id, Some(later)).await;
    let LeaseAnswer::Granted(newest) = must(taken, "take over") else {
        panic!("taking over under the right epoch must be granted");
    };
    refused(fenced(3, later, "x").await, wanted, is_fenced);
    assert_eq!(must(fenced(3, newest, "d").await, "commit"), Revision(4));
    // A client's commit does not need the lease.
    assert_eq!(commit(&store, &session, 4, state("e")).await, Revision(5));
}

async fn fenced_comes_before_conflict(store: Store) {
    let session = id("fenced");
    commit(&store, &session, 0, state("a")).await;
    let result = store
        .commit(
            &session,
            Revision(7),
            Some(Fence::Hold(LeaseEpoch(1))),
            state("x"),
        )
        .await;
    refused(result, "Fenced", is_fenced);
}

fn key(text: &str) -> RowKey {
    RowKey {
        kind: RowKind::Record,
        key: text.to_owned(),
    }
}

/// Everything is right about it but the cursor of its last event.
fn wrong_at_its_end() -> Commit {
    Commit {
        chunks: vec![chunk(8, None), chunk(9, Some(8))],
        head: Some(ChunkId(9)),
        rows: vec![
            RowChange::Put(key("new"), b"x".to_vec()),
            RowChange::Put(key("old"), b"x".to_vec()),
            RowChange::Delete(key("kept")),
        ],
        events: vec![event(2), event(4)],
        ..state("x")
    }
}

async fn a_refused_commit_leaves_nothing(store: Store) {
    let session = id("whole");
    let first = Commit {
        rows: vec![
            RowChange::Put(key("old"), b"1".to_vec()),
            RowChange::Put(key("kept"), b"2".to_vec()),
        ],
        events: vec![event(1)],
        ..state("a")
    };
    commit(&store, &session, 0, first).await;
    let before = load(&store, &session).await;
    let page = must(store.list(&Default::default(), 10).await, "list");

    let right = || Commit {
        events: vec![event(2), event(3)],
        ..wrong_at_its_end()
    };
    let wrong_head = Commit {
        head: Some(ChunkId(99)),
        ..right()
    };
    let wrong_chunk = Commit {
        chunks: vec![chunk(8, None), chunk(9, Some(8)), chunk(8, None)],
        ..right()
    };
    for wrong in [wrong_at_its_end(), wrong_head, wrong_chunk] {
        let result = store.commit(&session, Revision(1), None, wrong).await;
        refused(result, "Corrupt", is_corrupt);
        assert_eq!(load(&store, &session).await, before);
        assert_eq!(
            must(store.list(&Default::default(), 10).await, "list"),
            page
        );
        let keys = [key("new"), key("old"), key("kept")];
        assert_eq!(
            must(store.read_rows(&session, &keys).await, "read rows"),
            [None, Some(b"1".to_vec()), Some(b"2".to_vec())]
        );
        let events = store.read_events(&session, EventCursor(0), 10).await;
        assert_eq!(must(events, "read events"), [event(1)]);
        refused(
            store.read_chunks(&session, ChunkId(8), 1).await,
            "Corrupt",
            is_corrupt,
        );
    }
    // Its chunk ids were not used up.
    assert_eq!(commit(&store, &session, 1, right()).await, Revision(2));
}

async fn a_refused_creation_leaves_no_session(store: Store) {
    let session = id("unborn");
    let result = store
        .commit(&session, Revision(0), None, wrong_at_its_end())
        .await;
    refused(result, "Corrupt", is_corrupt);
    assert_eq!(load(&store, &session).await, None);
    assert_eq!(
        must(store.list(&Default::default(), 10).await, "list"),
        Default::default()
    );
}

async fn holds(store: &Store, session: &SessionId, bytes: &[u8]) {
    let stored = Chunk {
        bytes: bytes.to_vec(),
        raw_bytes: bytes.len() as u64,
        ..chunk(1, None)
    };
    let logged = EventRow {
        bytes: bytes.to_vec(),
        ..event(1)
    };
    let all = Commit {
        state: bytes.to_vec(),
        chunks: vec![stored.clone()],
        rows: vec![RowChange::Put(key("any"), bytes.to_vec())],
        events: vec![logged.clone()],
        head: Some(ChunkId(1)),
        ..Commit::default()
    };
    commit(store, session, 0, all).await;
    // Compared by `==`: nobody reads five megabytes in a message.
    let loaded = load(store, session).await.map(|it| it.state);
    assert!(
        loaded.as_deref() == Some(bytes),
        "the state came back changed"
    );
    let read = store.read_chunks(session, ChunkId(1), 1).await;
    let read = must(read, "read a chunk");
    assert!(read == [stored], "the chunk came back changed");
    let rows = must(store.read_rows(session, &[key("any")]).await, "read rows");
    assert!(rows == [Some(bytes.to_vec())], "the row came back changed");
    let events = store.read_events(session, EventCursor(0), 10).await;
    assert!(
        must(events, "read events") == [logged],
        "the event came back changed"
    );
}

async fn any_bytes_are_kept(store: Store) {
    let every_byte: Vec<u8> = (0..=255).chain([0, 0, 255]).collect();
    holds(&store, &id("bytes"), &every_byte).await;
    holds(&store, &id("empty"), &[]).await;
}

async fn big_values_are_kept(store: Store) {
    let big: Vec<u8> = (0..5_000_000_u32).map(|it| it.to_le_bytes()[1]).collect();
    holds(&store, &id("big"), &big).await;
}

async fn odd_ids_stay_apart(store: Store) {
    let longest = "x".repeat(200);
    let names = [
        "a/b", "a:b", "a/b/", "a", "A", "../a", "a.b", "a_b", "a-b", &longest,
    ];
    for name in names {
        commit(&store, &id(name), 0, state(name)).await;
    }
    for name in names {
        let loaded = load(&store, &id(name)).await.map(|it| it.state);
        assert_eq!(loaded, Some(name.into()));
    }
    let page = must(store.list(&Default::default(), 100).await, "list");
    let mut sorted = names;
    sorted.sort_unstable();
    let listed: Vec<_> = page.rows.iter().map(|it| it.session.as_str()).collect();
    assert_eq!(listed, sorted);
}

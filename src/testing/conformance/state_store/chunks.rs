//! The transcript's chunks, and the event log.

use super::*;
use crate::store::ChunkHeader;

pub(super) const RULES: &[Rule] = &[
    ("a chunk comes back as it was committed", |it| {
        Box::pin(a_chunk_comes_back(it))
    }),
    ("a chunk is never replaced", |it| {
        Box::pin(a_chunk_is_never_replaced(it))
    }),
    (
        "a chunk needs a parent that is stored or stands before it",
        |it| Box::pin(a_chunk_needs_its_parent(it)),
    ),
    ("a head must be a chunk of the session", |it| {
        Box::pin(a_head_must_exist(it))
    }),
    ("chunks are read by the end of their chain", |it| {
        Box::pin(chunks_are_read_by_the_end_of_their_chain(it))
    }),
    ("a chunk of every codec comes back", |it| {
        Box::pin(every_codec_comes_back(it))
    }),
    ("the size is that of what is stored", |it| {
        Box::pin(the_size_is_told(it))
    }),
    ("a chain is read oldest first", |it| {
        Box::pin(a_chain_is_read_oldest_first(it))
    }),
    (
        "rolling back and forking leave both chains readable",
        |it| Box::pin(rolling_back_leaves_both_chains(it)),
    ),
    ("events are numbered from one without a gap", |it| {
        Box::pin(events_have_no_gap(it))
    }),
    ("events are read in pages", |it| {
        Box::pin(events_are_read_in_pages(it))
    }),
];

fn with(chunks: Vec<Chunk>, head: u64) -> Commit {
    Commit {
        chunks,
        head: Some(ChunkId(head)),
        ..state("s")
    }
}

fn header(number: u64) -> ChunkHeader {
    let chunk = chunk(number, None);
    ChunkHeader {
        id: chunk.id,
        messages: chunk.messages,
        raw_bytes: chunk.raw_bytes,
    }
}

async fn chain(store: &Store, session: &SessionId, head: u64) -> Vec<ChunkHeader> {
    must(
        store.chunk_chain(session, ChunkId(head)).await,
        "read a chain",
    )
}

async fn refused_commit(store: &Store, session: &SessionId, on: u64, commit: Commit) {
    let result = store.commit(session, Revision(on), None, commit).await;
    refused(result, "Corrupt", is_corrupt);
}

async fn a_chunk_comes_back(store: Store) {
    let session = id("chunks");
    // An encoded chunk's own length is not its raw length.
    let odd = Chunk {
        messages: 7,
        raw_bytes: 1_000_000,
        ..chunk(2, Some(1))
    };
    commit(
        &store,
        &session,
        0,
        with(vec![chunk(1, None), odd.clone()], 2),
    )
    .await;
    for expected in [chunk(1, None), odd.clone()] {
        let read = must(
            store.read_chunks(&session, expected.id, 1).await,
            "read a chunk",
        );
        assert_eq!(read, [expected]);
    }
    let last = ChunkHeader {
        id: odd.id,
        messages: odd.messages,
        raw_bytes: odd.raw_bytes,
    };
    assert_eq!(chain(&store, &session, 2).await, [header(1), last]);
    for missing in [0, 3, u64::MAX] {
        let read = store.read_chunks(&session, ChunkId(missing), 1).await;
        refused(read, "Corrupt", is_corrupt);
        let read = store.chunk_chain(&session, ChunkId(missing)).await;
        refused(read, "Corrupt", is_corrupt);
    }
    let other = id("other");
    let read = store.read_chunks(&other, ChunkId(1), 1).await;
    refused(read, "NoSession", is_no_session);
}

async fn a_chunk_is_never_replaced(store: Store) {
    let session = id("immutable");
    commit(&store, &session, 0, with(vec![chunk(1, None)], 1)).await;
    let other = Chunk {
        bytes: b"other".to_vec(),
        ..chunk(1, None)
    };
    refused_commit(&store, &session, 1, with(vec![other], 1)).await;
    refused_commit(&store, &session, 1, with(vec![chunk(1, None)], 1)).await;
    refused_commit(
        &store,
        &session,
        1,
        with(vec![chunk(2, None), chunk(2, None)], 2),
    )
    .await;
    let read = store.read_chunks(&session, ChunkId(1), 1).await;
    assert_eq!(must(read, "read a chunk"), [chunk(1, None)]);
    // The same number in another session is another chunk.
    commit(&store, &id("other"), 0, with(vec![chunk(1, None)], 1)).await;
}

async fn a_chunk_needs_its_parent(store: Store) {
    let session = id("parents");
    commit(&store, &id("other"), 0, with(vec![chunk(5, None)], 5)).await;
    refused_commit(&store, &session, 0, with(vec![chunk(6, Some(5))], 6)).await;
    refused_commit(&store, &session, 0, with(vec![chunk(6, Some(6))], 6)).await;
    let backwards = vec![chunk(2, Some(1)), chunk(1, None)];
    refused_commit(&store, &session, 0, with(backwards, 2)).await;
    commit(
        &store,
        &session,
        0,
        with(vec![chunk(1, None), chunk(2, Some(1))], 2),
    )
    .await;
    commit(&store, &session, 1, with(vec![chunk(3, Some(2))], 3)).await;
}

async fn a_head_must_exist(store: Store) {
    let session = id("heads");
    commit(&store, &id("other"), 0, with(vec![chunk(5, None)], 5)).await;
    refused_commit(&store, &session, 0, with(Vec::new(), 5)).await;
    commit(&store, &session, 0, with(vec![chunk(1, None)], 1)).await;
    refused_commit(&store, &session, 1, with(vec![chunk(2, Some(1))], 3)).await;
    let head = load(&store, &session).await.and_then(|it| it.head);
    assert_eq!(head, Some(ChunkId(1)));
}

async fn chunks_are_read_by_the_end_of_their_chain(store: Store) {
    let session = id("last-chunks");
    let all = [
        chunk(4, None),
        chunk(3, Some(4)),
        chunk(9, Some(3)),
        chunk(2, Some(9)),
    ];
    commit(&store, &session, 0, with(all.to_vec(), 2)).await;
    commit(&store, &session, 1, with(vec![chunk(5, Some(3))], 5)).await;
    let read = async |last: u64, count: usize| {
        let read = store.read_chunks(&session, ChunkId(last), count).await;
        must(read, "read chunks")
    };
    assert_eq!(read(2, 0).await, []);
    assert_eq!(read(2, 2).await, all[2..]);
    assert_eq!(read(2, 4).await, all);
    assert_eq!(read(2, usize::MAX).await, all);
    assert_eq!(read(9, 2).await, all[1..3]);
    let other = [all[0].clone(), all[1].clone(), chunk(5, Some(3))];
    assert_eq!(read(5, 9).await, other);
}

async fn every_codec_comes_back(store: Store) {
    let session = id("codecs");
    let of = |codec: ChunkCodec| Chunk {
        codec,
        bytes: (0..=u8::MAX).collect(),
        ..chunk(u64::from(codec.number()) + 1, None)
    };
    let all: Vec<_> = (0..=ChunkCodec::NEWEST)
        .filter_map(ChunkCodec::from_number)
        .map(of)
        .collect();
    assert_eq!(all.len() as u64, u64::from(ChunkCodec::NEWEST) + 1);
    commit(&store, &session, 0, with(all.clone(), 1)).await;
    for expected in all {
        let read = store.read_chunks(&session, expected.id, 1).await;
        assert_eq!(must(read, "read a chunk"), [expected]);
    }
}

async fn the_size_is_told(store: Store) {
    let session = id("size");
    let size = async || must(store.size(&session).await, "read the size");
    refused(store.size(&session).await, "NoSession", is_no_session);
    commit(&store, &session, 0, state("s")).await;
    let empty = size().await;
    assert_eq!(empty.raw_bytes, 0);
    let (mut before, mut growths) = (empty.stored_bytes, Vec::new());
    for number in 1..=3 {
        let added = Chunk {
            raw_bytes: 1_000,
            ..chunk(number, None)
        };
        commit(&store, &session, number, with(vec![added.clone()], number)).await;
        let now = size().await;
        assert_eq!(now.raw_bytes, 1_000 * number);
        growths.push(now.stored_bytes - before);
        before = now.stored_bytes;
        // A codec in front of the store may need some bytes more, for each chunk the same.
        assert!(growths[0] >= added.bytes.len() as u64);
    }
    assert_eq!(growths, [growths[0]; 3]);
    // A rolled-back chunk is still stored.
    commit(&store, &session, 4, state("s")).await;
    assert_eq!(size().await.raw_bytes, 3_000);
    commit(&store, &session, 5, logged(&[1, 2])).await;
    assert!(size().await.stored_bytes > before);
}

async fn a_chain_is_read_oldest_first(store: Store) {
    let session = id("chain");
    // Numbers that fall along the chain: the order is the parents', not the numbers'.
    commit(&store, &session, 0, with(vec![chunk(300, None)], 300)).await;
    for on in 1..100 {
        let number = 300 - on;
        commit(
            &store,
            &session,
            on,
            with(vec![chunk(number, Some(number + 1))], number),
        )
        .await;
    }
    let expected: Vec<_> = (201..=300).rev().map(header).collect();
    assert_eq!(chain(&store, &session, 201).await, expected);
    assert_eq!(chain(&store, &session, 300).await, [header(300)]);
}

async fn rolling_back_leaves_both_chains(store: Store) {
    let session = id("forked");
    let first = vec![chunk(1, None), chunk(2, Some(1)), chunk(3, Some(2))];
    commit(&store, &session, 0, with(first, 3)).await;
    commit(&store, &session, 1, with(Vec::new(), 1)).await;
    let loaded = load(&store, &session).await;
    assert_eq!(loaded.and_then(|it| it.head), Some(ChunkId(1)));
    commit(&store, &session, 2, with(vec![chunk(4, Some(1))], 4)).await;
    assert_eq!(chain(&store, &session, 4).await, [header(1), header(4)]);
    assert_eq!(
        chain(&store, &session, 3).await,
        [header(1), header(2), header(3)]
    );
    // Back to before the first turn.
    commit(&store, &session, 3, state("s")).await;
    let loaded = load(&store, &session).await;
    assert_eq!(loaded.and_then(|it| it.head), None);
    assert_eq!(
        chain(&store, &session, 3).await,
        [header(1), header(2), header(3)]
    );
}

fn logged(cursors: &[u64]) -> Commit {
    Commit {
        events: cursors.iter().map(|it| event(*it)).collect(),
        ..state("s")
    }
}

async fn events_have_no_gap(store: Store) {
    let session = id("events");
    refused_commit(&store, &session, 0, logged(&[0])).await;
    refused_commit(&store, &session, 0, logged(&[2])).await;
    commit(&store, &session, 0, logged(&[1, 2])).await;
    for wrong in [&[2][..], &[4], &[3, 5], &[3, 3], &[4, 3], &[1], &[u64::MAX]] {
        refused_commit(&store, &session, 1, logged(wrong)).await;
    }
    commit(&store, &session, 1, logged(&[])).await;
    commit(&store, &session, 2, logged(&[3])).await;
    let events = store.read_events(&session, EventCursor(0), 10).await;
    assert_eq!(must(events, "read events"), [event(1), event(2), event(3)]);
}

async fn events_are_read_in_pages(store: Store) {
    let (session, unknown) = (id("pages"), id("unknown"));
    commit(&store, &session, 0, logged(&Vec::from_iter(1..=10))).await;
    commit(&store, &id("other"), 0, logged(&[1, 2])).await;
    let read = async |session: &SessionId, after: u64, limit: usize| {
        let events = store.read_events(session, EventCursor(after), limit).await;
        let events = must(events, "read events").into_iter();
        events.map(|it| it.cursor.0).collect::<Vec<_>>()
    };
    assert_eq!(read(&session, 0, 4).await, [1, 2, 3, 4]);
    assert_eq!(read(&session, 4, 4).await, [5, 6, 7, 8]);
    assert_eq!(read(&session, 8, 4).await, [9, 10]);
    assert_eq!(read(&session, 3, usize::MAX).await, [4, 5, 6, 7, 8, 9, 10]);
    assert_eq!(read(&session, 10, 4).await, [0; 0]);
    assert_eq!(read(&session, u64::MAX, 4).await, [0; 0]);
    assert_eq!(read(&session, 0, 0).await, [0; 0]);
    assert_eq!(read(&unknown, 0, 4).await, [0; 0]);
}

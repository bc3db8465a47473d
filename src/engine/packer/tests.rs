//! Packed commits over a store, read back as a conversation.

use std::sync::Arc;

use super::*;
use crate::commit::Chunk;
use crate::ids::{FlowType, Revision, Timestamp, TurnId};
use crate::record::{FrameworkItem, MessageRole, StoredMessage, encode_chunk};
use crate::runner::History;
use crate::store::{MemoryStateStore, RowKey, RowKind, SessionSummary, StoreError};

/// A session that is committed to by hand.
struct Place {
    store: Arc<MemoryStateStore>,
    session: SessionId,
    revision: Revision,
}

impl Place {
    fn new() -> Self {
        Self {
            store: Arc::new(MemoryStateStore::new()),
            session: SessionId::new("s").unwrap(),
            revision: Revision(0),
        }
    }

    async fn pack(&self, packer: &mut Packer, mut commit: Commit) -> (Commit, Packed) {
        let packed = packer.pack(&*self.store, &self.session, &mut commit).await;
        (commit, packed)
    }

    async fn commit(&mut self, commit: Commit) {
        let done = self
            .store
            .commit(&self.session, self.revision, None, commit);
        self.revision = done.await.unwrap();
    }

    /// Packs a chunk, commits it, and tells the packer.
    async fn add(&mut self, packer: &mut Packer, commit: Commit) -> Commit {
        let (commit, packed) = self.pack(packer, commit).await;
        self.commit(commit.clone()).await;
        packer.committed(packed);
        commit
    }

    async fn texts(&self, head: u64) -> Result<Vec<String>, StoreError> {
        let store = Arc::clone(&self.store) as _;
        let history = History::open(store, self.session.clone(), Some(ChunkId(head))).await?;
        let messages = history.read_all().await?;
        Ok(messages.into_iter().map(|it| it.text).collect())
    }
}

/// A commit of one chunk with one message.
fn said(id: u64, parent: Option<u64>, text: &str) -> Commit {
    let item = FrameworkItem::user_prompt(text).unwrap();
    let message = StoredMessage::new(
        id,
        TurnId::new(1),
        MessageRole::User,
        text.to_owned(),
        Timestamp(1_000),
        item,
    );
    let bytes = encode_chunk(&[message]).unwrap();
    let chunk = Chunk {
        id: ChunkId(id),
        parent: parent.map(ChunkId),
        messages: 1,
        codec: ChunkCodec::Plain,
        raw_bytes: bytes.len() as u64,
        bytes,
    };
    Commit {
        head: Some(ChunkId(id)),
        chunks: vec![chunk],
        summary: SessionSummary {
            flow_type: FlowType::new("Test").ok(),
            ..SessionSummary::default()
        },
        ..Commit::default()
    }
}

fn text(id: u64) -> String {
    format!("the {id}. message, of which much was said before")
}

/// G11: every writer finds what it has to pack against: one that goes on, a new one, one after a
/// roll-back, one after a chunk that is not packed.
#[tokio::test]
async fn packed_commits_are_read_back() {
    let mut place = Place::new();
    let mut packer = Packer::default();
    for id in 1..=200 {
        if id % 7 == 0 {
            packer = Packer::default();
        }
        let parent = (id > 1).then(|| id - 1);
        let commit = said(id, parent, &text(id));
        if id % 31 == 0 {
            place.commit(commit).await;
        } else {
            let commit = place.add(&mut packer, commit).await;
            assert_eq!(commit.chunks[0].codec, ChunkCodec::Zstd1);
        }
    }
    let all: Vec<_> = (1..=200).map(text).collect();
    assert_eq!(place.texts(200).await.unwrap(), all);
    place
        .add(&mut packer, said(201, Some(90), "another way"))
        .await;
    place.add(&mut packer, said(202, Some(201), "on it")).await;
    let other = [&all[..90], &["another way".to_owned(), "on it".to_owned()]].concat();
    assert_eq!(place.texts(202).await.unwrap(), other);
    assert_eq!(place.texts(200).await.unwrap(), all);
}

/// Several chunks of one commit are packed against each other.
#[tokio::test]
async fn the_chunks_of_one_commit_follow_each_other() {
    let mut place = Place::new();
    let mut commit = said(1, None, &text(1));
    for id in 2..=5 {
        commit
            .chunks
            .extend(said(id, Some(id - 1), &text(id)).chunks);
    }
    commit.head = Some(ChunkId(5));
    let commit = place.add(&mut Packer::default(), commit).await;
    assert!(commit.chunks[4].bytes.len() < commit.chunks[0].bytes.len());
    let all: Vec<_> = (1..=5).map(text).collect();
    assert_eq!(place.texts(5).await.unwrap(), all);
}

/// G11: what was packed and not committed is not what the store has: packing against it would lose the
/// chunk for ever.
#[tokio::test]
async fn a_commit_that_does_not_hold_is_forgotten() {
    let mut place = Place::new();
    let mut packer = Packer::default();
    place.add(&mut packer, said(1, None, &text(1))).await;
    // Another writer's chunk gets the same id.
    place
        .pack(&mut packer, said(2, Some(1), "never committed"))
        .await;
    place
        .add(&mut Packer::default(), said(2, Some(1), &text(2)))
        .await;
    place.add(&mut packer, said(3, Some(2), &text(3))).await;
    assert_eq!(place.texts(3).await.unwrap(), [text(1), text(2), text(3)]);
}

/// A large string is put with the first commit that has it, and not again by the same writer.
#[tokio::test]
async fn a_large_string_is_put_once() {
    let mut place = Place::new();
    let mut packer = Packer::default();
    let image = "0123456789abcdef".repeat(4_000);
    let puts = |commit: &Commit| {
        let blobs = commit.rows.iter().filter(|it| match it {
            RowChange::Put(key, _) => key.kind == RowKind::Blob,
            RowChange::Delete(_) => false,
        });
        blobs.count()
    };
    // Not committed, so it is put again.
    let (commit, _) = place.pack(&mut packer, said(1, None, &image)).await;
    assert_eq!(puts(&commit), 1);
    for (id, expected) in [(1, 1), (2, 0), (3, 0)] {
        let parent = (id > 1).then(|| id - 1);
        let commit = place.add(&mut packer, said(id, parent, &image)).await;
        assert_eq!(puts(&commit), expected);
    }
    let commit = place
        .add(&mut Packer::default(), said(4, Some(3), &image))
        .await;
    assert_eq!(puts(&commit), 1);
    assert_eq!(place.texts(4).await.unwrap(), vec![image; 4]);
    let size = place.store.size(&place.session).await.unwrap();
    assert!(size.stored_bytes < 70_000, "{size:?}");
    assert!(size.raw_bytes > 4 * 2 * 64_000, "{size:?}");

    place.store.delete(&place.session).await.unwrap();
    let key = commit.rows.iter().find_map(|it| match it {
        RowChange::Put(key, _) => Some(key.clone()),
        RowChange::Delete(_) => None,
    });
    let rows = place.store.read_rows(&place.session, &[key.unwrap()]).await;
    assert_eq!(rows.unwrap(), [None]);
}

/// A page is read with its group alone, and damage before that does no harm to it.
#[tokio::test]
async fn a_chunk_after_damage_starts_a_group() {
    let mut place = Place::new();
    let mut damaged = said(1, None, &text(1));
    damaged.chunks[0].codec = ChunkCodec::Zstd1;
    place.commit(damaged).await;
    let commit = place
        .add(&mut Packer::default(), said(2, Some(1), &text(2)))
        .await;
    assert_eq!(
        crate::packing::chunks_behind(&commit.chunks[0].bytes).unwrap(),
        0
    );
    let error = place.texts(2).await.unwrap_err();
    assert!(matches!(error, StoreError::Corrupt { .. }), "{error:?}");
}

/// Damage of a chunk or of its large string is told as damage.
#[tokio::test]
async fn damage_is_corrupt() {
    let image = "0123456789abcdef".repeat(4_000);
    let packed = {
        let place = Place::new();
        place
            .pack(&mut Packer::default(), said(1, None, &image))
            .await
            .0
    };
    let blob = |value: &[u8]| {
        let RowChange::Put(RowKey { kind, key }, _) = packed.rows[0].clone() else {
            panic!("a blob is put");
        };
        vec![RowChange::Put(RowKey { kind, key }, value.to_vec())]
    };
    let mut flipped = packed.chunks[0].clone();
    flipped.bytes[20] ^= 1;
    let mut longer = packed.chunks[0].clone();
    longer.raw_bytes += 1;
    for (chunk, rows) in [
        (flipped, packed.rows.clone()),
        (longer, packed.rows.clone()),
        (packed.chunks[0].clone(), Vec::new()),
        (packed.chunks[0].clone(), blob(b"another text")),
    ] {
        let mut place = Place::new();
        let commit = Commit {
            chunks: vec![chunk],
            rows,
            ..packed.clone()
        };
        place.commit(commit).await;
        let error = place.texts(1).await.unwrap_err();
        assert!(matches!(error, StoreError::Corrupt { .. }), "{error:?}");
    }
    let mut place = Place::new();
    place.commit(packed.clone()).await;
    assert_eq!(place.texts(1).await.unwrap(), [image]);
}

//! The conversation of a session, read page by page.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::ids::{ChunkId, SessionId};
use crate::packing::{self, BlobId, UnpackError, Window};
use crate::record::{StoredMessage, decode_chunk};
use crate::store::{
    Chunk, ChunkCodec, ChunkHeader, RowKey, RowKind, StateStore, StoreError, read_patiently,
};

/// The stored messages behind a committed head, oldest first. Created by the engine, or from a list
/// in tests.
#[derive(Debug)]
pub struct History(Source);

#[derive(Debug)]
enum Source {
    Store {
        store: Arc<dyn StateStore>,
        session: SessionId,
        when_busy: WhenBusy,
        chunks: VecDeque<ChunkHeader>,
        window: Window,
    },
    List(Option<Vec<StoredMessage>>),
}

/// What comes of a read that a store has no time for now.
#[derive(Debug, Clone, Copy)]
enum WhenBusy {
    /// What runs would be lost with the read.
    Wait,
    /// Whoever asked may ask again.
    Tell,
}

impl WhenBusy {
    async fn read<T, F>(self, mut read: impl FnMut() -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        match self {
            Self::Wait => read_patiently(read).await,
            Self::Tell => read().await,
        }
    }
}

impl History {
    /// Opens the conversation that ends in `head`. A store that is busy is waited for, here and
    /// later.
    ///
    /// # Errors
    /// As [`StateStore::chunk_chain`].
    pub async fn open(
        store: Arc<dyn StateStore>,
        session: SessionId,
        head: Option<ChunkId>,
    ) -> Result<Self, StoreError> {
        Self::open_with(store, session, head, WhenBusy::Wait).await
    }

    /// Opens it for a client, who is told that the store is busy.
    ///
    /// # Errors
    /// As [`StateStore::chunk_chain`].
    pub(crate) async fn open_impatiently(
        store: Arc<dyn StateStore>,
        session: SessionId,
        head: Option<ChunkId>,
    ) -> Result<Self, StoreError> {
        Self::open_with(store, session, head, WhenBusy::Tell).await
    }

    async fn open_with(
        store: Arc<dyn StateStore>,
        session: SessionId,
        head: Option<ChunkId>,
        when_busy: WhenBusy,
    ) -> Result<Self, StoreError> {
        let chunks = match head {
            Some(head) => {
                let read = || store.chunk_chain(&session, head);
                when_busy.read(read).await?.into()
            }
            None => VecDeque::new(),
        };
        Ok(Self(Source::Store {
            store,
            session,
            when_busy,
            chunks,
            window: Window::new(),
        }))
    }

    /// Makes a conversation of these messages.
    #[must_use]
    pub const fn from_messages(messages: Vec<StoredMessage>) -> Self {
        Self(Source::List(Some(messages)))
    }

    /// Returns the next messages, some at a time, or `None` at the end.
    ///
    /// # Errors
    /// [`StoreError::TooNew`] and [`StoreError::Corrupt`] when a chunk cannot be read, and what the
    /// store reports.
    ///
    /// # Cancel safety
    /// After a dropped call the same page may be missing: start over.
    pub async fn next_page(&mut self) -> Result<Option<Vec<StoredMessage>>, StoreError> {
        match &mut self.0 {
            Source::List(messages) => Ok(messages.take()),
            Source::Store {
                store,
                session,
                when_busy,
                chunks,
                window,
            } => {
                let when_busy = *when_busy;
                let Some((count, last)) = next_chunks(chunks) else {
                    return Ok(None);
                };
                let read = || store.read_chunks(session, last, count);
                let read = when_busy.read(read).await?;
                chunks.drain(..count);
                let mut page = Vec::new();
                for chunk in read {
                    let plain = unpack(&**store, session, when_busy, window, chunk).await?;
                    page.append(&mut decode_chunk(&plain)?);
                }
                Ok(Some(page))
            }
        }
    }

    /// Returns all messages that are left.
    ///
    /// # Errors
    /// As [`History::next_page`].
    pub async fn read_all(mut self) -> Result<Vec<StoredMessage>, StoreError> {
        let mut messages = Vec::new();
        while let Some(page) = self.next_page().await? {
            messages.extend(page);
        }
        Ok(messages)
    }
}

/// Returns how many chunks make the next page, and the last one of them.
fn next_chunks(chunks: &VecDeque<ChunkHeader>) -> Option<(usize, ChunkId)> {
    let mut last = chunks.front()?.id;
    let (mut count, mut bytes) = (0, 0_u64);
    for chunk in chunks {
        bytes = bytes.saturating_add(chunk.raw_bytes);
        if count > 0 && bytes > PAGE_BYTES {
            break;
        }
        (count, last) = (count + 1, chunk.id);
    }
    Some((count, last))
}

/// Returns the plain bytes of the chunk that follows those which the window has seen.
async fn unpack(
    store: &dyn StateStore,
    session: &SessionId,
    when_busy: WhenBusy,
    window: &mut Window,
    chunk: Chunk,
) -> Result<Vec<u8>, StoreError> {
    match chunk.codec {
        ChunkCodec::Plain => {
            window.end_group();
            Ok(chunk.bytes)
        }
        ChunkCodec::Zstd1 => {
            let damaged = |error| damaged(chunk.id, &error);
            let unpacked = window
                .unpack(&chunk.bytes, chunk.raw_bytes)
                .map_err(damaged)?;
            let ids = unpacked.blobs().map_err(damaged)?;
            let blobs = read_blobs(store, session, when_busy, &ids).await?;
            let of = |id: &BlobId| blobs.iter().find(|it| it.0 == *id).map(|it| &it.1[..]);
            unpacked.restore(of).map_err(damaged)
        }
    }
}

async fn read_blobs(
    store: &dyn StateStore,
    session: &SessionId,
    when_busy: WhenBusy,
    ids: &[BlobId],
) -> Result<Vec<(BlobId, Vec<u8>)>, StoreError> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let keys: Vec<_> = ids.iter().map(blob_key).collect();
    let rows = when_busy.read(|| store.read_rows(session, &keys)).await?;
    let found = ids.iter().zip(rows);
    Ok(found.filter_map(|(id, row)| Some((*id, row?))).collect())
}

/// Returns the key of a large string's row.
pub(crate) fn blob_key(id: &BlobId) -> RowKey {
    RowKey {
        kind: RowKind::Blob,
        key: id.to_string(),
    }
}

/// Returns what the chunk after this one is packed against, without reading more than a group.
///
/// # Errors
/// As [`History::next_page`].
pub(crate) async fn window_after(
    store: &dyn StateStore,
    session: &SessionId,
    last: ChunkId,
) -> Result<Window, StoreError> {
    let mut window = Window::new();
    let mut group = store.read_chunks(session, last, 1).await?;
    let Some(chunk) = group.first() else {
        return Ok(window);
    };
    match chunk.codec {
        ChunkCodec::Plain => return Ok(window),
        ChunkCodec::Zstd1 => {}
    }
    let behind = packing::chunks_behind(&chunk.bytes).map_err(|it| damaged(last, &it))?;
    if behind > 0 {
        let count = usize::try_from(behind)
            .unwrap_or(usize::MAX)
            .saturating_add(1);
        group = store.read_chunks(session, last, count).await?;
    }
    for chunk in group {
        window
            .unpack(&chunk.bytes, chunk.raw_bytes)
            .map_err(|it| damaged(chunk.id, &it))?;
    }
    Ok(window)
}

/// Returns the last messages of the conversation that ends in `head`, oldest first: so many that the
/// caller has enough, or all of them. The flag says that there are earlier ones. Reads no more of the
/// conversation than a few times that, and a group.
///
/// # Errors
/// As [`History::next_page`].
pub(crate) async fn tail(
    store: &dyn StateStore,
    session: &SessionId,
    head: ChunkId,
    is_enough: impl Fn(&[StoredMessage]) -> bool,
) -> Result<(Vec<StoredMessage>, bool), StoreError> {
    let mut count = TAIL_CHUNKS;
    loop {
        let chunks = from_group(store, session, head, count).await?;
        let has_earlier = chunks.first().is_some_and(|it| it.parent.is_some());
        let mut window = Window::new();
        let mut messages = Vec::new();
        for chunk in chunks {
            let plain = unpack(store, session, WhenBusy::Tell, &mut window, chunk).await?;
            messages.append(&mut decode_chunk(&plain)?);
        }
        if !has_earlier || is_enough(&messages) {
            return Ok((messages, has_earlier));
        }
        count = count.saturating_mul(4);
    }
}

/// Returns the last `count` chunks, and before them what the first one was packed against.
async fn from_group(
    store: &dyn StateStore,
    session: &SessionId,
    last: ChunkId,
    count: usize,
) -> Result<Vec<Chunk>, StoreError> {
    let chunks = store.read_chunks(session, last, count).await?;
    let Some(first) = chunks.first() else {
        return Ok(chunks);
    };
    match first.codec {
        ChunkCodec::Plain => return Ok(chunks),
        ChunkCodec::Zstd1 => {}
    }
    let behind = packing::chunks_behind(&first.bytes).map_err(|it| damaged(first.id, &it))?;
    if behind == 0 {
        return Ok(chunks);
    }
    let behind = usize::try_from(behind).unwrap_or(usize::MAX);
    let count = count.saturating_add(behind);
    store.read_chunks(session, last, count).await
}

fn damaged(chunk: ChunkId, error: &UnpackError) -> StoreError {
    StoreError::Corrupt {
        what: format!("chunk {}: {error}", chunk.0),
    }
}

/// With how many chunks the end of a conversation is looked at first: a screen or two.
const TAIL_CHUNKS: usize = 32;

/// A page is so many plain bytes, or one chunk: enough to be worth a call of the store.
const PAGE_BYTES: u64 = 64 * 1024;

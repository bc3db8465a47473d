//! The conversation of a session, read page by page.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::ids::{ChunkId, SessionId};
use crate::record::{StoredMessage, decode_chunk};
use crate::store::{ChunkCodec, ChunkHeader, StateStore, StoreError, read_patiently};

/// The stored messages behind a committed head, oldest first. Created by the engine, or from a list
/// in tests.
#[derive(Debug)]
pub struct History(Source);

#[derive(Debug)]
enum Source {
    Store {
        store: Arc<dyn StateStore>,
        session: SessionId,
        chunks: VecDeque<ChunkHeader>,
    },
    List(Option<Vec<StoredMessage>>),
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
        let chunks = match head {
            Some(head) => read_patiently(|| store.chunk_chain(&session, head))
                .await?
                .into(),
            None => VecDeque::new(),
        };
        Ok(Self(Source::Store {
            store,
            session,
            chunks,
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
                chunks,
            } => {
                let Some(header) = chunks.pop_front() else {
                    return Ok(None);
                };
                let chunk = read_patiently(|| store.read_chunk(session, header.id)).await?;
                match chunk.codec {
                    ChunkCodec::Plain => Ok(Some(decode_chunk(&chunk.bytes)?)),
                }
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

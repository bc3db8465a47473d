//! Packs the chunks of a commit against what the transcript ends in.

#[cfg(test)]
mod tests;

use std::collections::HashSet;

use crate::ids::{ChunkId, SessionId};
use crate::packing::{BlobId, Window};
use crate::runner::{blob_key, window_after};
use crate::store::{ChunkCodec, Commit, RowChange, StateStore};

/// What a session's driver remembers between two commits.
#[derive(Debug, Default)]
pub(crate) struct Packer {
    // Invariant: read or committed, never merely packed: a chunk that is packed against another one
    // than the store has before it is lost.
    end: Option<(ChunkId, Window)>,
    // Large strings that the session has.
    blobs: HashSet<BlobId>,
}

/// What becomes true with a commit.
#[derive(Debug)]
pub(crate) struct Packed {
    end: Option<(ChunkId, Window)>,
    blobs: Vec<BlobId>,
}

impl Packer {
    /// Packs the chunks of a commit, which then must be given to the store or dropped.
    pub(crate) async fn pack(
        &mut self,
        store: &dyn StateStore,
        session: &SessionId,
        commit: &mut Commit,
    ) -> Packed {
        let mut end = self.end.take();
        let mut blobs = Vec::new();
        for chunk in &mut commit.chunks {
            let known = end.take().filter(|it| Some(it.0) == chunk.parent);
            let mut window = match (known, chunk.parent) {
                (Some((_, window)), _) => window,
                (None, Some(parent)) => window_before(store, session, parent).await,
                (None, None) => Window::new(),
            };
            if let Some((bytes, taken_out)) = window.pack(&chunk.bytes) {
                chunk.codec = ChunkCodec::Zstd1;
                chunk.bytes = bytes;
                for blob in taken_out {
                    if !self.blobs.contains(&blob.id) && !blobs.contains(&blob.id) {
                        let row = RowChange::Put(blob_key(&blob.id), blob.bytes);
                        commit.rows.push(row);
                        blobs.push(blob.id);
                    }
                }
            }
            end = Some((chunk.id, window));
        }
        Packed { end, blobs }
    }

    /// Notes that the commit holds.
    pub(crate) fn committed(&mut self, packed: Packed) {
        self.end = packed.end;
        self.blobs.extend(packed.blobs);
    }
}

/// What cannot be read now costs a few bytes, not the commit: the chunk starts a group of its own.
async fn window_before(store: &dyn StateStore, session: &SessionId, parent: ChunkId) -> Window {
    match window_after(store, session, parent).await {
        Ok(window) => window,
        Err(error) => {
            tracing::warn!(%session, %error, "a chunk is packed without those before it");
            Window::new()
        }
    }
}

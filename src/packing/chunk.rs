//! Chunks packed against what came before them in the transcript.
//!
//! The bytes of a packed chunk (codec 1), where a number has seven bits a byte, lowest first:
//!
//! ```text
//! number   how many chunks before this one belong to its group; 0 starts a group
//! the rest a zstd frame with checksum, against dictionary 1 and what the frames of the group before
//!          this one hold, oldest first; it holds
//!            number   how many large strings were taken out; for each of them:
//!              number     bytes of what is left between the one before and this one
//!              number     its length
//!              32 bytes   its SHA-256, in lower-case hexadecimal the key of its row
//!            the rest what is left
//! ```

use super::blobs::{self, Blob, BlobId};
use super::{UnpackError, damaged, dictionary, varint, zstd};

/// A group ends with the chunk that makes it as long as this. Larger groups pack better and take
/// longer to pack against; twice as much saves 3 % (measured on a session of 200 turns).
pub(super) const GROUP_BYTES: usize = 128 * 1024;

/// A group has at most so many chunks: a page in its middle is not further from its start.
const GROUP_CHUNKS_MAX: u64 = 128;

/// A longer chunk is stored plain, and one that claims to be longer is damaged: nobody unpacks more
/// than this at once. Far above the CLI's longest line.
pub(super) const PACKED_CHUNK_BYTES_MAX: usize = 64 * 1024 * 1024;

/// What the next chunk of a transcript is packed against. Whoever packs or unpacks a chunk must have
/// packed or unpacked the chunks of its group before it, in order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Window {
    /// The dictionary and what the group's frames hold; empty between groups.
    bytes: Vec<u8>,
    chunks: u64,
}

/// A chunk whose large strings are not put back yet. Created by [`Window::unpack`].
#[derive(Debug)]
pub(crate) struct Unpacked {
    content: Vec<u8>,
    raw_bytes: usize,
}

impl Window {
    /// Makes the window at the start of a group.
    pub(crate) const fn new() -> Self {
        Self {
            bytes: Vec::new(),
            chunks: 0,
        }
    }

    /// Packs the next chunk; `None` when it has to be stored plain, and the group ends.
    pub(crate) fn pack(&mut self, plain: &[u8]) -> Option<(Vec<u8>, Vec<Blob>)> {
        if plain.len() > PACKED_CHUNK_BYTES_MAX {
            self.end_group();
            return None;
        }
        let (content, blobs) = blobs::take_out(plain);
        let Some(frame) = zstd::pack(self.before(), &content) else {
            self.end_group();
            return None;
        };
        let mut packed = Vec::with_capacity(frame.len() + 2);
        varint::put(&mut packed, self.chunks);
        packed.extend_from_slice(&frame);
        self.push(&content);
        Some((packed, blobs))
    }

    /// Unpacks the next chunk, of which `raw_bytes` says how long it was.
    ///
    /// # Errors
    /// The bytes are damaged, or this window is not the one that they were packed against.
    pub(crate) fn unpack(
        &mut self,
        packed: &[u8],
        raw_bytes: u64,
    ) -> Result<Unpacked, UnpackError> {
        let raw_bytes = usize::try_from(raw_bytes)
            .ok()
            .filter(|it| *it <= PACKED_CHUNK_BYTES_MAX)
            .ok_or_else(|| damaged("a packed chunk claims to be longer than any is"))?;
        let mut frame = packed;
        let behind = take_chunks_behind(&mut frame)?;
        if behind == 0 {
            self.end_group();
        } else if behind != self.chunks {
            return Err(damaged("a chunk does not follow the ones before it"));
        }
        // A large string is longer than what stands for it, so that only their count adds to it.
        let content = zstd::unpack(self.before(), frame, raw_bytes + 1)?;
        self.push(&content);
        Ok(Unpacked { content, raw_bytes })
    }

    /// Ends the group, as a chunk that is not packed does.
    pub(crate) fn end_group(&mut self) {
        *self = Self::new();
    }

    fn before(&self) -> &[u8] {
        if self.bytes.is_empty() {
            dictionary::ENTRIES_1
        } else {
            &self.bytes
        }
    }

    fn push(&mut self, content: &[u8]) {
        let group_bytes = self.before().len() - dictionary::ENTRIES_1.len() + content.len();
        if group_bytes >= GROUP_BYTES || self.chunks + 1 >= GROUP_CHUNKS_MAX {
            self.end_group();
            return;
        }
        if self.bytes.is_empty() {
            self.bytes.extend_from_slice(dictionary::ENTRIES_1);
        }
        self.bytes.extend_from_slice(content);
        self.chunks += 1;
    }
}

impl Unpacked {
    /// Returns the large strings that have to be put back.
    ///
    /// # Errors
    /// The bytes are damaged.
    pub(crate) fn blobs(&self) -> Result<Vec<BlobId>, UnpackError> {
        let cuts = blobs::take_cuts(&mut &self.content[..])?;
        Ok(cuts.iter().map(|it| it.id).collect())
    }

    /// Puts the large strings back; `of` finds one by its id.
    ///
    /// # Errors
    /// The bytes are damaged, or a large string is missing or another one.
    pub(crate) fn restore<'a>(
        self,
        of: impl Fn(&BlobId) -> Option<&'a [u8]>,
    ) -> Result<Vec<u8>, UnpackError> {
        let plain = blobs::put_back(self.content, self.raw_bytes, of)?;
        if plain.len() != self.raw_bytes {
            return Err(damaged("a chunk has another length"));
        }
        Ok(plain)
    }
}

/// Returns how many chunks before this one have to be unpacked before it.
///
/// # Errors
/// The bytes are damaged.
pub(crate) fn chunks_behind(packed: &[u8]) -> Result<u64, UnpackError> {
    take_chunks_behind(&mut { packed })
}

fn take_chunks_behind(bytes: &mut &[u8]) -> Result<u64, UnpackError> {
    let behind = varint::take(bytes)?;
    if behind >= GROUP_CHUNKS_MAX {
        return Err(damaged("a group of chunks is too long"));
    }
    Ok(behind)
}

//! How stored bytes are made small, and come back exactly (G11).
//!
//! Pure functions of bytes, above the stores:
//!
//! - [`Window`] packs the chunks of a transcript. Its lines repeat what the lines before them said,
//!   so a chunk is compressed by zstd against a shipped [dictionary](mod@dictionary) and the chunks
//!   before it, up to the start of its *group*. A group holds some 128 KiB, so that a page is read
//!   without the rest of the session.
//! - [`blobs`] takes large strings out of a chunk before, so that an image or a file that comes again
//!   is stored once in its session.
//!
//! What is written names its method and dictionary by a number; none is ever changed, a better one
//! gets the next number (G12).

mod blobs;
mod chunk;
mod dictionary;
#[cfg(test)]
mod tests;
pub(crate) mod varint;
mod zstd;

pub(crate) use blobs::BlobId;
pub(crate) use chunk::{Window, chunks_behind};

/// Why packed bytes cannot be unpacked: they are damaged, or not what they are taken for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub(crate) struct UnpackError {
    /// What does not fit.
    pub(crate) what: &'static str,
}

const fn damaged(what: &'static str) -> UnpackError {
    UnpackError { what }
}

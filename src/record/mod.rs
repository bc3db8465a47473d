//! Stored formats: what outlives the process.
//!
//! Each stored record carries `"format": 1`; a newer one is refused as
//! [`TooNew`](crate::store::StoreError::TooNew), older ones are read (G12). Golden files of every
//! version are kept in `fixtures/stored/`.
//!
//! A version that adds a field, or a name to a list of an *event*, keeps the format: older readers
//! carry the field along, and show the event with `Unrecognized` in the place of the name. A version
//! that adds a name to a list of a state or a record (a status, a failure class, an effect) raises
//! it, so that older workers pass over the session instead of calling it damaged.

mod call;
mod entry;
mod interrupt;
mod item;
mod message;
#[cfg(test)]
mod tests;

pub(crate) use call::changed_input_note;
pub use call::{
    ARGUMENTS_PREVIEW_CHARS, ArgumentsDigest, CallRecord, CallStatus, Decider, Decision,
    EXPIRED_TEXT, NOT_RUN_PREFIX, OUTCOME_UNKNOWN_TEXT, SkipReason, ToolOutcome,
};
pub use entry::{EntryHead, TranscriptEntry};
pub use interrupt::OpenInterrupt;
pub use item::{ClaudeLines, FrameworkItem, ItemContent, ItemKind};
pub use message::{MessageRole, StoredMessage, decode_chunk, encode_chunk};
#[cfg(test)]
pub(crate) use tests::golden;

/// The format that this version writes.
pub const FORMAT: u32 = 1;

/// What every payload behind a codec begins with: no JSON and no text does.
pub(crate) const CODED: u8 = 0xc1;

/// A stored record that cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// It was written by a newer version of this crate.
    #[error("{what} has format {found}, this version reads up to {FORMAT}")]
    TooNew {
        /// What was read.
        what: &'static str,
        /// Its format.
        found: u32,
    },
    /// It is no record of its kind.
    #[error("{what} cannot be read")]
    Damaged {
        /// What was read.
        what: &'static str,
        /// What does not fit.
        source: serde_json::Error,
    },
}

/// Reads one versioned JSON record; the format is looked at before the rest.
///
/// # Errors
/// [`RecordError::TooNew`] and [`RecordError::Damaged`].
pub(crate) fn read_record<T: serde::de::DeserializeOwned>(
    what: &'static str,
    bytes: &[u8],
) -> Result<T, RecordError> {
    #[derive(serde::Deserialize)]
    struct Head {
        format: u32,
    }
    let damaged = |source| RecordError::Damaged { what, source };
    if bytes.first() == Some(&CODED) {
        let why = "it was stored through a payload codec, and is read without one";
        return Err(damaged(serde::de::Error::custom(why)));
    }
    let head: Head = serde_json::from_slice(bytes).map_err(damaged)?;
    if head.format > FORMAT {
        return Err(RecordError::TooNew {
            what,
            found: head.format,
        });
    }
    serde_json::from_slice(bytes).map_err(damaged)
}

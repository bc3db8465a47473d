//! Stored formats.

mod entry;

pub use entry::{EntryHead, TranscriptEntry};

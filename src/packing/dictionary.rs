//! The dictionaries of transcripts, one file each: plain text that resembles what is packed, with
//! what is most common last. A file is never changed: what was packed with it needs it.
//!
//! The tests make each anew from the repository's fixtures and compare: that is its training.

#[cfg(test)]
mod tests;

/// Lines of the CLI's transcript in stored messages, the texts left out.
pub(super) const ENTRIES_1: &[u8] = include_bytes!("dictionary/entries_1.txt");

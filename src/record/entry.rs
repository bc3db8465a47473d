//! One line of the CLI's transcript, kept byte for byte (G11).

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// One transcript line of the CLI, verbatim.
///
/// The text is never parsed into a tree and written again: that would sort keys, change numbers
/// and escapes, and a transcript with blanks after `:` makes the CLI run a finished call again
/// (spec/cli-protocol.md 0.1).
#[derive(Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TranscriptEntry(Box<RawValue>);

/// The few fields of an entry that this crate reads.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct EntryHead {
    /// What kind of entry it is: `user`, `assistant`, `attachment`, `last-prompt`, …
    #[serde(rename = "type", default)]
    pub kind: String,
    /// The entry's own id; bookkeeping entries have none.
    #[serde(default)]
    pub uuid: Option<String>,
    /// The entry that this one follows.
    #[serde(rename = "parentUuid", default)]
    pub parent_uuid: Option<String>,
    /// True for entries of a sub-agent.
    #[serde(rename = "isSidechain", default)]
    pub is_sidechain: bool,
}

impl TranscriptEntry {
    /// Keeps one line as it is.
    ///
    /// # Errors
    /// The text is not one JSON value.
    pub fn from_text(text: String) -> Result<Self, serde_json::Error> {
        RawValue::from_string(text).map(Self)
    }

    /// Returns the exact text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.get()
    }

    /// Reads the few fields that decide what happens to the entry.
    ///
    /// # Errors
    /// The entry is no JSON object, or one of these fields has another type.
    pub fn head(&self) -> Result<EntryHead, serde_json::Error> {
        serde_json::from_str(self.as_str())
    }
}

impl From<Box<RawValue>> for TranscriptEntry {
    fn from(raw: Box<RawValue>) -> Self {
        Self(raw)
    }
}

impl PartialEq for TranscriptEntry {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for TranscriptEntry {}

impl fmt::Debug for TranscriptEntry {
    /// Shows the length only: entries hold customers' words (G10).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TranscriptEntry({} bytes)", self.as_str().len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// G11: number forms, escapes, key order and lone surrogates survive a store and a load.
    #[test]
    fn the_text_survives_a_round_trip() {
        for text in [
            r#"{"b":1e2,"a":12345678901234567890123,"s":"\u00e4\/"}"#,
            r#"{"type":"user","lone":"\ud83d","text":"x"}"#,
        ] {
            let entry = TranscriptEntry::from_text(text.to_owned()).unwrap();
            let stored = serde_json::to_string(&entry).unwrap();
            assert_eq!(stored, text);
            assert_eq!(
                serde_json::from_str::<TranscriptEntry>(&stored).unwrap(),
                entry
            );
        }
    }

    #[test]
    fn the_head_reads_what_is_there() {
        let entry = TranscriptEntry::from_text(
            r#"{"parentUuid":null,"isSidechain":true,"type":"user","uuid":"u1"}"#.to_owned(),
        )
        .unwrap();
        let head = entry.head().unwrap();
        assert_eq!(head.kind, "user");
        assert_eq!(head.uuid.as_deref(), Some("u1"));
        assert!(head.is_sidechain);
    }
}

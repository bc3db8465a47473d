//! What a runner needs to go on: one item per stored message (rows I01, I19 to I21, L09).

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::TranscriptEntry;
use crate::ids::ClaudeSessionId;

/// The framework's part of a stored message, verbatim JSON with a `kind`.
///
/// Known kinds: `user_prompt` (`{"kind","text"}`), `claude_transcript`
/// (`{"kind","session_id","entries"}`, since format 2 also `"provisional"`) `turn_failure_note` and `partial_answer` (`{"kind","text"}`). A runner may
/// store kinds of its own.
#[derive(Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FrameworkItem(Box<RawValue>);

/// The kind of an item, with its name in stored records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ItemKind {
    /// A user's message, stored before a CLI sees it.
    UserPrompt,
    /// Lines of the CLI's transcript.
    ClaudeTranscript,
    /// What a failed turn did, for the next one.
    TurnFailureNote,
    /// The beginning of an answer that was cut off; no CLI reads it.
    PartialAnswer,
}

impl ItemKind {
    /// Returns the name it is stored under.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::UserPrompt => "user_prompt",
            Self::ClaudeTranscript => "claude_transcript",
            Self::TurnFailureNote => "turn_failure_note",
            Self::PartialAnswer => "partial_answer",
        }
    }
}

/// An item, read.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ItemContent {
    /// A user's message.
    UserPrompt(String),
    /// Lines of one Claude session's transcript.
    ClaudeTranscript(ClaudeLines),
    /// What a failed turn did.
    TurnFailureNote(String),
    /// The beginning of an answer that was cut off.
    PartialAnswer(String),
    /// Another runner's item, by its kind.
    Other(String),
}

/// Lines of one Claude session's transcript.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "the segment fills it in")]
pub struct ClaudeLines {
    /// The Claude session.
    pub session: ClaudeSessionId,
    /// Lines as the CLI wrote them (G11).
    pub entries: Vec<TranscriptEntry>,
    /// Lines that the CLI had announced and not written yet, without their place in the chain. Each
    /// holds until a later item brings the line with the same `uuid`.
    pub provisional: Vec<TranscriptEntry>,
}

#[derive(Serialize, Deserialize)]
struct TextItem {
    kind: String,
    text: String,
}

#[derive(Serialize, Deserialize)]
struct TranscriptItem {
    kind: String,
    session_id: ClaudeSessionId,
    entries: Vec<TranscriptEntry>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    provisional: Vec<TranscriptEntry>,
}

impl FrameworkItem {
    /// Makes the item of a user's message.
    ///
    /// # Errors
    /// Never in practice: text is always JSON.
    pub fn user_prompt(text: &str) -> Result<Self, serde_json::Error> {
        Self::from_record(&TextItem {
            kind: ItemKind::UserPrompt.name().to_owned(),
            text: text.to_owned(),
        })
    }

    /// Makes the item of a failed turn's note.
    ///
    /// # Errors
    /// Never in practice: text is always JSON.
    pub fn turn_failure_note(text: &str) -> Result<Self, serde_json::Error> {
        Self::from_record(&TextItem {
            kind: ItemKind::TurnFailureNote.name().to_owned(),
            text: text.to_owned(),
        })
    }

    /// Makes the item of an answer that was cut off.
    ///
    /// # Errors
    /// Never in practice: text is always JSON.
    pub fn partial_answer(text: &str) -> Result<Self, serde_json::Error> {
        Self::from_record(&TextItem {
            kind: ItemKind::PartialAnswer.name().to_owned(),
            text: text.to_owned(),
        })
    }

    /// Makes the item of some transcript lines, which are kept byte for byte (G11).
    ///
    /// # Errors
    /// Never in practice: entries are JSON.
    pub fn claude_transcript(
        session_id: ClaudeSessionId,
        entries: Vec<TranscriptEntry>,
    ) -> Result<Self, serde_json::Error> {
        Self::claude_lines(ClaudeLines {
            session: session_id,
            entries,
            provisional: Vec::new(),
        })
    }

    /// Makes the item of some transcript lines, of which the last may be provisional.
    ///
    /// # Errors
    /// Never in practice: entries are JSON.
    pub fn claude_lines(lines: ClaudeLines) -> Result<Self, serde_json::Error> {
        Self::from_record(&TranscriptItem {
            kind: ItemKind::ClaudeTranscript.name().to_owned(),
            session_id: lines.session,
            entries: lines.entries,
            provisional: lines.provisional,
        })
    }

    /// Makes an item of another runner from JSON text: an object with a text `kind`.
    ///
    /// # Errors
    /// The text is no such object.
    pub fn from_text(text: String) -> Result<Self, serde_json::Error> {
        let item = Self(RawValue::from_string(text)?);
        item.kind()?;
        Ok(item)
    }

    /// Returns the exact text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.get()
    }

    /// Reads the item.
    ///
    /// # Errors
    /// It is no object with a `kind`, or a known kind without its fields.
    pub fn content(&self) -> Result<ItemContent, serde_json::Error> {
        let kind = self.kind()?;
        if kind == ItemKind::UserPrompt.name() {
            Ok(ItemContent::UserPrompt(
                serde_json::from_str::<TextItem>(self.as_str())?.text,
            ))
        } else if kind == ItemKind::TurnFailureNote.name() {
            Ok(ItemContent::TurnFailureNote(
                serde_json::from_str::<TextItem>(self.as_str())?.text,
            ))
        } else if kind == ItemKind::PartialAnswer.name() {
            Ok(ItemContent::PartialAnswer(
                serde_json::from_str::<TextItem>(self.as_str())?.text,
            ))
        } else if kind == ItemKind::ClaudeTranscript.name() {
            let item: TranscriptItem = serde_json::from_str(self.as_str())?;
            Ok(ItemContent::ClaudeTranscript(ClaudeLines {
                session: item.session_id,
                entries: item.entries,
                provisional: item.provisional,
            }))
        } else {
            Ok(ItemContent::Other(kind))
        }
    }

    fn kind(&self) -> Result<String, serde_json::Error> {
        #[derive(Deserialize)]
        struct Head {
            kind: String,
        }
        Ok(serde_json::from_str::<Head>(self.as_str())?.kind)
    }

    fn from_record<T: Serialize>(record: &T) -> Result<Self, serde_json::Error> {
        serde_json::value::to_raw_value(record).map(Self)
    }
}

impl PartialEq for FrameworkItem {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for FrameworkItem {}

impl fmt::Debug for FrameworkItem {
    /// Shows the length only: items hold customers' words (G10).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FrameworkItem({} bytes)", self.as_str().len())
    }
}

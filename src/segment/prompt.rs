//! Splits the stored conversation into what the CLI has written and what it has not read (I04).

use crate::failure::{AttemptFailure, FailureClass};
use crate::ids::ClaudeSessionId;
use crate::record::{ClaudeLines, FrameworkItem, ItemContent, TranscriptEntry};

/// The stored conversation, as a segment needs it. Created by [`read_conversation`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Conversation {
    /// The Claude session that goes on.
    pub claude_session: Option<ClaudeSessionId>,
    /// Its transcript, oldest entry first.
    pub entries: Vec<TranscriptEntry>,
    /// What its CLI had announced beyond that, without its place in the chain.
    pub provisional: Vec<TranscriptEntry>,
    /// The texts that no CLI has read yet, oldest first.
    pub unread: Vec<String>,
}

impl Conversation {
    fn add(&mut self, lines: ClaudeLines) {
        if self.claude_session.as_ref() != Some(&lines.session) {
            // A new Claude session begins: the one before it was given up.
            self.entries.clear();
            self.provisional.clear();
            self.claude_session = Some(lines.session);
        }
        let entries = lines.entries.into_iter();
        for entry in entries.filter(|it| !super::transcript::is_dropped(it)) {
            if !self.provisional.is_empty() {
                let uuid = uuid_of(&entry);
                self.provisional.retain(|it| uuid_of(it) != uuid);
            }
            self.entries.push(entry);
        }
        self.provisional.extend(lines.provisional);
        self.unread.clear();
    }
}

fn uuid_of(entry: &TranscriptEntry) -> Option<String> {
    entry.head().ok()?.uuid
}

/// Reads the items of the stored messages, oldest first.
///
/// # Errors
/// [`FailureClass::Runner`] when an item cannot be read or is of another framework.
pub fn read_conversation<'a>(
    items: impl IntoIterator<Item = &'a FrameworkItem>,
) -> Result<Conversation, AttemptFailure> {
    let mut conversation = Conversation::default();
    for item in items {
        let content = item.content().map_err(|error| {
            AttemptFailure::new(
                FailureClass::Runner,
                format!("a stored message cannot be read: {error}"),
            )
        })?;
        match content {
            ItemContent::UserPrompt(text) | ItemContent::TurnFailureNote(text) => {
                conversation.unread.push(text);
            }
            ItemContent::PartialAnswer(_) => {}
            ItemContent::ClaudeTranscript(lines) => conversation.add(lines),
            ItemContent::Other(kind) => {
                return Err(AttemptFailure::new(
                    FailureClass::Runner,
                    format!("a stored message is of another framework: {kind}"),
                ));
            }
        }
    }
    Ok(conversation)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transcript(session: &str, entries: &[&str]) -> FrameworkItem {
        FrameworkItem::claude_transcript(
            ClaudeSessionId::new(session).unwrap(),
            entries
                .iter()
                .map(|it| TranscriptEntry::from_text((*it).to_owned()).unwrap())
                .collect(),
        )
        .unwrap()
    }

    /// I04, L09: texts after the last transcript are unread, oldest first; stale bookkeeping is
    /// left out.
    #[test]
    fn texts_after_the_last_transcript_are_unread() {
        let items = [
            FrameworkItem::user_prompt("first").unwrap(),
            transcript("c1", &[r#"{"type":"user","uuid":"u1"}"#]),
            transcript(
                "c1",
                &[r#"{"type":"last-prompt"}"#, r#"{"type":"assistant"}"#],
            ),
            FrameworkItem::user_prompt("second").unwrap(),
            FrameworkItem::turn_failure_note("it failed").unwrap(),
            FrameworkItem::user_prompt("third").unwrap(),
        ];
        let conversation = read_conversation(&items).unwrap();
        assert_eq!(conversation.unread, ["second", "it failed", "third"]);
        assert_eq!(
            conversation.claude_session,
            Some(ClaudeSessionId::new("c1").unwrap())
        );
        let entries: Vec<&str> = conversation
            .entries
            .iter()
            .map(TranscriptEntry::as_str)
            .collect();
        assert_eq!(
            entries,
            [r#"{"type":"user","uuid":"u1"}"#, r#"{"type":"assistant"}"#]
        );
    }
}

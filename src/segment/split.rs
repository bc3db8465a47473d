//! Splits transcript entries into messages: one for each reply and each result of a call (I19, I20).

use serde_json::value::RawValue;

use super::contract;
use super::transcript::{EntryBody, Line, MessageBody, SYNTHETIC};
use crate::failure::AttemptFailure;
use crate::ids::{ClaudeSessionId, ToolCallId};
use crate::protocol::{content_blocks, flattened_text};
use crate::record::{ClaudeLines, FrameworkItem, MessageRole, TranscriptEntry};
use crate::turn::NewMessage;

/// Splits entries into messages without changing their order.
#[derive(Default)]
pub(super) struct Split {
    messages: Vec<Draft>,
    // Entries since the last message; they ride along with the next one (I20).
    waiting: Entries,
}

struct Draft {
    role: MessageRole,
    text: String,
    reply: Option<String>,
    tool_call_id: Option<ToolCallId>,
    entries: Entries,
}

#[derive(Default)]
struct Entries {
    mirrored: Vec<TranscriptEntry>,
    provisional: Vec<TranscriptEntry>,
}

impl Entries {
    fn push(&mut self, line: Line) {
        match line {
            Line::Mirrored(entry) | Line::Told(entry) => self.mirrored.push(entry),
            Line::Provisional(entry) => self.provisional.push(entry),
        }
    }

    fn append(&mut self, mut other: Self) {
        self.mirrored.append(&mut other.mirrored);
        self.provisional.append(&mut other.provisional);
    }

    const fn is_empty(&self) -> bool {
        self.mirrored.is_empty() && self.provisional.is_empty()
    }
}

impl Split {
    pub(super) fn add(&mut self, line: Line) -> Result<(), AttemptFailure> {
        let entry = match &line {
            // Its message was made when it was provisional.
            Line::Told(_) => {
                self.waiting.push(line);
                return Ok(());
            }
            Line::Mirrored(entry) | Line::Provisional(entry) => entry,
        };
        let Ok(body) = serde_json::from_str::<EntryBody>(entry.as_str()) else {
            self.waiting.push(line);
            return Ok(());
        };
        match (body.kind.as_str(), body.message) {
            ("assistant", Some(message)) if message.model.as_deref() != Some(SYNTHETIC) => {
                self.add_reply(line, message);
            }
            ("user", Some(message)) => self.add_user(line, message)?,
            (_, _) => self.waiting.push(line),
        }
        Ok(())
    }

    fn add_reply(&mut self, line: Line, message: MessageBody) {
        let text = texts(message.content.as_deref());
        if let Some(last) = self.messages.last_mut()
            && last.reply.is_some()
            && last.reply == message.id
        {
            last.entries.append(std::mem::take(&mut self.waiting));
            last.entries.push(line);
            if !text.is_empty() && !last.text.is_empty() {
                last.text.push('\n');
            }
            last.text.push_str(&text);
            return;
        }
        self.start(MessageRole::Assistant, text, message.id, None, line);
    }

    fn add_user(&mut self, line: Line, message: MessageBody) -> Result<(), AttemptFailure> {
        let result = message
            .content
            .as_deref()
            .and_then(|it| content_blocks(it).ok())
            .unwrap_or_default()
            .into_iter()
            .find(|block| block.kind == "tool_result");
        // The CLI's copy of the prompt, and what it adds by itself.
        let Some(result) = result else {
            self.waiting.push(line);
            return Ok(());
        };
        let id = result
            .tool_use_id
            .and_then(|it| ToolCallId::new(it).ok())
            .ok_or_else(|| contract("a result in the transcript names no call"))?;
        let text = flattened_text(result.content.as_deref());
        self.start(MessageRole::Tool, text, None, Some(id), line);
        Ok(())
    }

    fn start(
        &mut self,
        role: MessageRole,
        text: String,
        reply: Option<String>,
        tool_call_id: Option<ToolCallId>,
        line: Line,
    ) {
        let mut entries = std::mem::take(&mut self.waiting);
        entries.push(line);
        self.messages.push(Draft {
            role,
            text,
            reply,
            tool_call_id,
            entries,
        });
    }

    pub(super) fn finish(
        mut self,
        session: &ClaudeSessionId,
    ) -> Result<Vec<NewMessage>, AttemptFailure> {
        // What comes last rides with the last message, so that it is not lost.
        let trailing = std::mem::take(&mut self.waiting);
        match self.messages.last_mut() {
            Some(last) => last.entries.append(trailing),
            None if trailing.is_empty() => {}
            None => self.messages.push(Draft {
                role: MessageRole::Hidden,
                text: String::new(),
                reply: None,
                tool_call_id: None,
                entries: trailing,
            }),
        }
        self.messages
            .into_iter()
            .map(|draft| {
                let item = FrameworkItem::claude_lines(ClaudeLines {
                    session: session.clone(),
                    entries: draft.entries.mirrored,
                    provisional: draft.entries.provisional,
                })
                .map_err(|error| contract(error.to_string()))?;
                Ok(NewMessage {
                    role: draft.role,
                    text: draft.text,
                    tool_call_id: draft.tool_call_id,
                    item,
                })
            })
            .collect()
    }
}

/// Returns the texts of a reply, without its reasoning and its calls.
fn texts(content: Option<&RawValue>) -> String {
    let blocks = content
        .and_then(|it| content_blocks(it).ok())
        .unwrap_or_default();
    let texts: Vec<String> = blocks
        .into_iter()
        .filter(|it| it.kind == "text")
        .filter_map(|it| it.text)
        .map(|it| it.0)
        .collect();
    texts.join("\n")
}

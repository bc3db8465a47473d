//! Collects the mirrored transcript of a segment and splits it into messages (I19 to I21).

use std::collections::{BTreeSet, HashSet};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::audit::ToolResult;
use super::contract;
use crate::failure::AttemptFailure;
use crate::ids::{ClaudeSessionId, ToolCallId};
use crate::protocol::{AssistantFrame, MirrorFrame, content_blocks, flattened_text};
use crate::record::{FrameworkItem, MessageRole, TranscriptEntry};
use crate::turn::NewMessage;

/// The model of texts that the CLI writes in the model's name.
const SYNTHETIC: &str = "<synthetic>";

/// Kinds of entries that are never stored. A stale `last-prompt` would make a resume skip what
/// follows it (L09). `cost-state` makes the CLI count cost from the start of the Claude session
/// instead of the process, and is written anew by each process (spec/cli-protocol.md 0.10).
const DROPPED: [&str; 2] = ["last-prompt", "cost-state"];

/// True for an entry that must not be stored or resumed from.
pub(super) fn is_dropped(entry: &TranscriptEntry) -> bool {
    entry
        .head()
        .is_ok_and(|head| DROPPED.contains(&head.kind.as_str()))
}

/// The transcript of one segment while it grows.
#[derive(Debug, Default)]
pub(super) struct Transcript {
    files: Vec<(String, Vec<TranscriptEntry>)>,
    uuids: HashSet<String>,
    // Replies of a model, sub-agents included, by the API's id.
    replies: BTreeSet<String>,
    // Entries that the CLI's output promised: they must be mirrored by the end.
    expected: BTreeSet<String>,
    // What the mirrored entries hold about the results of calls.
    results: Vec<Result<Vec<ToolResult>, AttemptFailure>>,
    session: Option<String>,
}

#[derive(Deserialize)]
struct EntryBody {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    uuid: Option<String>,
    #[serde(default)]
    message: Option<MessageBody>,
    #[serde(default)]
    attachment: Option<AttachmentBody>,
}

#[derive(Deserialize)]
struct MessageBody {
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    content: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
struct AttachmentBody {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(rename = "toolUseID", default)]
    tool_use_id: Option<String>,
}

impl Transcript {
    /// Keeps mirrored lines. Lines of sub-agents are only counted: a resume needs the main file.
    pub(super) fn add(&mut self, frame: MirrorFrame) {
        let is_sub_agent = frame.file_path.contains("/subagents/");
        let stem = file_stem(&frame.file_path);
        for entry in frame.entries {
            let Ok(body) = serde_json::from_str::<EntryBody>(entry.as_str()) else {
                // An entry that is not understood is still part of the transcript.
                if !is_sub_agent {
                    self.push(stem, entry);
                }
                continue;
            };
            if body.kind == "assistant"
                && let Some(message) = &body.message
                && message.model.as_deref() != Some(SYNTHETIC)
                && let Some(id) = &message.id
            {
                self.replies.insert(id.clone());
            }
            if body.kind == "user"
                && let Some(content) = body.message.as_ref().and_then(|it| it.content.as_deref())
                && content.get().contains("tool_result")
            {
                let results = ToolResult::of_content(content, &[]);
                let beginnings =
                    results.map(|it| it.into_iter().map(ToolResult::beginning).collect());
                self.results.push(beginnings);
            }
            if is_sub_agent || DROPPED.contains(&body.kind.as_str()) {
                continue;
            }
            if let Some(uuid) = body.uuid
                && !self.uuids.insert(uuid)
            {
                continue;
            }
            self.push(stem, entry);
        }
    }

    /// Notes a block of a reply that stands on the CLI's output.
    pub(super) fn saw_reply(&mut self, frame: &AssistantFrame) {
        if frame.message.model.as_deref() == Some(SYNTHETIC) {
            return;
        }
        if let Some(id) = &frame.message.id {
            self.replies.insert(id.clone());
        }
        if frame.parent_tool_use_id.is_none() {
            self.expect(frame.uuid.as_deref());
        }
    }

    /// Notes an entry that must be mirrored by the end of the segment.
    pub(super) fn expect(&mut self, uuid: Option<&str>) {
        if let Some(uuid) = uuid {
            self.expected.insert(uuid.to_owned());
        }
    }

    /// Notes the Claude session that the CLI names.
    pub(super) fn name_session(&mut self, session: &str) {
        self.session.get_or_insert_with(|| session.to_owned());
    }

    /// Returns how many replies of a model there were.
    pub(super) fn model_calls(&self) -> u64 {
        self.replies.len() as u64
    }

    /// Takes the results of calls that the mirror holds, those of sub-agents included.
    ///
    /// # Errors
    /// A result that belongs to no call.
    pub(super) fn take_results(&mut self) -> Result<Vec<ToolResult>, AttemptFailure> {
        let results = std::mem::take(&mut self.results).into_iter();
        let results: Vec<Vec<ToolResult>> = results.collect::<Result<_, _>>()?;
        Ok(results.into_iter().flatten().collect())
    }

    /// Splits the transcript into messages: one for each reply and each result of a call.
    ///
    /// # Errors
    /// The mirror lacks something that the segment is built on (R54).
    pub(super) fn take_messages(
        &mut self,
        session: &str,
        deferred: Option<&ToolCallId>,
    ) -> Result<Vec<NewMessage>, AttemptFailure> {
        if self.session.as_deref().is_some_and(|it| it != session) {
            return Err(contract("the CLI changed its Claude session"));
        }
        let session = ClaudeSessionId::new(session).map_err(|error| contract(error.to_string()))?;
        let entries = self
            .files
            .iter_mut()
            .find(|(stem, _)| stem == session.as_str())
            .map(|(_, entries)| std::mem::take(entries))
            .unwrap_or_default();
        let missing = self
            .expected
            .iter()
            .filter(|it| !self.uuids.contains(*it))
            .count();
        if missing > 0 {
            return Err(contract(format!(
                "the transcript mirror lacks {missing} entries of the segment"
            )));
        }
        let mut split = Split::new(session, deferred);
        for entry in entries {
            split.add(entry)?;
        }
        split.finish()
    }

    fn push(&mut self, stem: &str, entry: TranscriptEntry) {
        match self.files.iter_mut().find(|(it, _)| it == stem) {
            Some((_, entries)) => entries.push(entry),
            None => self.files.push((stem.to_owned(), vec![entry])),
        }
    }
}

/// Makes the structured output the text of the model's last message: the reply itself is a call.
pub(super) fn answer_with(messages: &mut [NewMessage], output: &str) {
    let mut replies = messages.iter_mut().rev();
    if let Some(reply) = replies.find(|it| it.role == MessageRole::Assistant) {
        output.clone_into(&mut reply.text);
    }
}

fn file_stem(path: &str) -> &str {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.strip_suffix(".jsonl").unwrap_or(name)
}

/// Splits entries into messages without changing their order.
struct Split<'a> {
    session: ClaudeSessionId,
    deferred: Option<&'a ToolCallId>,
    messages: Vec<Draft>,
    // Entries since the last message; they ride along with the next one (I20).
    waiting: Vec<TranscriptEntry>,
    saw_reply: bool,
    saw_deferral: bool,
}

struct Draft {
    role: MessageRole,
    text: String,
    reply: Option<String>,
    tool_call_id: Option<ToolCallId>,
    entries: Vec<TranscriptEntry>,
}

impl<'a> Split<'a> {
    const fn new(session: ClaudeSessionId, deferred: Option<&'a ToolCallId>) -> Self {
        Self {
            session,
            deferred,
            messages: Vec::new(),
            waiting: Vec::new(),
            saw_reply: false,
            saw_deferral: false,
        }
    }

    fn add(&mut self, entry: TranscriptEntry) -> Result<(), AttemptFailure> {
        let Ok(body) = serde_json::from_str::<EntryBody>(entry.as_str()) else {
            self.waiting.push(entry);
            return Ok(());
        };
        if let (Some(deferred), Some(attachment)) = (self.deferred, &body.attachment) {
            self.saw_deferral |= attachment.kind == "hook_deferred_tool"
                && attachment.tool_use_id.as_deref() == Some(deferred.as_str());
        }
        match (body.kind.as_str(), body.message) {
            ("assistant", Some(message)) if message.model.as_deref() != Some(SYNTHETIC) => {
                self.saw_reply = true;
                self.add_reply(entry, message);
            }
            ("user", Some(message)) => self.add_user(entry, message)?,
            (_, _) => self.waiting.push(entry),
        }
        Ok(())
    }

    fn add_reply(&mut self, entry: TranscriptEntry, message: MessageBody) {
        let text = texts(message.content.as_deref());
        if let Some(last) = self.messages.last_mut()
            && last.reply.is_some()
            && last.reply == message.id
        {
            last.entries.append(&mut self.waiting);
            last.entries.push(entry);
            if !text.is_empty() && !last.text.is_empty() {
                last.text.push('\n');
            }
            last.text.push_str(&text);
            return;
        }
        self.start(MessageRole::Assistant, text, message.id, None, entry);
    }

    fn add_user(
        &mut self,
        entry: TranscriptEntry,
        message: MessageBody,
    ) -> Result<(), AttemptFailure> {
        let result = message
            .content
            .as_deref()
            .and_then(|it| content_blocks(it).ok())
            .unwrap_or_default()
            .into_iter()
            .find(|block| block.kind == "tool_result");
        // The CLI's copy of the prompt, and what it adds by itself.
        let Some(result) = result else {
            self.waiting.push(entry);
            return Ok(());
        };
        let id = result
            .tool_use_id
            .and_then(|it| ToolCallId::new(it).ok())
            .ok_or_else(|| contract("a result in the transcript names no call"))?;
        let text = flattened_text(result.content.as_deref());
        self.start(MessageRole::Tool, text, None, Some(id), entry);
        Ok(())
    }

    fn start(
        &mut self,
        role: MessageRole,
        text: String,
        reply: Option<String>,
        tool_call_id: Option<ToolCallId>,
        entry: TranscriptEntry,
    ) {
        let mut entries = std::mem::take(&mut self.waiting);
        entries.push(entry);
        self.messages.push(Draft {
            role,
            text,
            reply,
            tool_call_id,
            entries,
        });
    }

    fn finish(mut self) -> Result<Vec<NewMessage>, AttemptFailure> {
        if !self.saw_reply {
            return Err(contract("the CLI mirrored no reply of the model"));
        }
        if self.deferred.is_some() && !self.saw_deferral {
            return Err(contract("the CLI did not mirror the deferral"));
        }
        // What comes last rides with the last message, so that it is not lost.
        let trailing = std::mem::take(&mut self.waiting);
        if let Some(last) = self.messages.last_mut() {
            last.entries.extend(trailing);
        }
        let session = self.session;
        self.messages
            .into_iter()
            .map(|draft| {
                let item = FrameworkItem::claude_transcript(session.clone(), draft.entries)
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

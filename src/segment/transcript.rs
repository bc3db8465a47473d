//! Collects the transcript of a segment: what the CLI mirrors, and what it announces before.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::audit::ToolResult;
use super::contract;
use super::model_calls::Replies;
use super::split::Split;
use crate::failure::AttemptFailure;
use crate::ids::{ClaudeSessionId, ToolCallId};
use crate::protocol::{AssistantFrame, MirrorFrame, UserFrame};
use crate::record::{FrameworkItem, MessageRole, TranscriptEntry};
use crate::turn::NewMessage;

/// The model of texts that the CLI writes in the model's name.
pub(super) const SYNTHETIC: &str = "<synthetic>";

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

/// One line on its way into the conversation.
pub(super) enum Line {
    /// The CLI's own.
    Mirrored(TranscriptEntry),
    /// The CLI's own, of which the message was made before.
    Told(TranscriptEntry),
    /// Announced on the output, and not mirrored yet (spec/cli-protocol.md 17k).
    Provisional(TranscriptEntry),
}

/// A line that the CLI announced, with all that its transcript entry needs but its place.
#[derive(Debug)]
struct Announced {
    uuid: String,
    entry: TranscriptEntry,
    is_kept: bool,
}

/// The transcript of one segment while it grows.
#[derive(Debug, Default)]
pub(super) struct Transcript {
    files: Vec<(String, Vec<TranscriptEntry>)>,
    uuids: HashSet<String>,
    // Announced and not mirrored, in the order of the output: always behind what is mirrored,
    // because the mirror keeps the order of the file.
    announced: Vec<Announced>,
    // Entries whose messages were made while they were provisional.
    told: HashSet<String>,
    // The entries of the replies that asked for a call, by the call.
    asked_by: BTreeMap<String, String>,
    // The prompt's entry: without it, nothing of the turn can be resumed.
    prompt: Option<String>,
    // Replies of a model, sub-agents included.
    replies: Replies,
    has_reply: bool,
    // Entries that the CLI's output promised: they must be mirrored by the end.
    expected: BTreeSet<String>,
    // The deferrals that were mirrored.
    deferrals: BTreeSet<String>,
    // What the mirrored entries hold about the results of calls.
    results: Vec<Result<Vec<ToolResult>, AttemptFailure>>,
    session: Option<String>,
    last_entry: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct EntryBody {
    #[serde(rename = "type", default)]
    pub(super) kind: String,
    #[serde(default)]
    pub(super) uuid: Option<String>,
    #[serde(default)]
    pub(super) message: Option<MessageBody>,
    #[serde(default)]
    attachment: Option<AttachmentBody>,
}

#[derive(Deserialize)]
pub(super) struct MessageBody {
    #[serde(default)]
    pub(super) id: Option<String>,
    #[serde(default)]
    pub(super) model: Option<String>,
    #[serde(default)]
    pub(super) content: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
struct AttachmentBody {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(rename = "toolUseID", default)]
    tool_use_id: Option<String>,
}

impl Transcript {
    /// A transcript that nothing of the turn is part of before this prompt's entry is mirrored.
    pub(super) fn of_prompt(uuid: Option<String>) -> Self {
        Self {
            prompt: uuid,
            ..Self::default()
        }
    }

    /// A transcript that begins with entries which the CLI was started with and which are not
    /// stored yet. The messages of `told` exist.
    pub(super) fn resumed(
        session: &ClaudeSessionId,
        added: Vec<TranscriptEntry>,
        told: HashSet<String>,
    ) -> Self {
        let heads = added.iter().filter_map(|it| it.head().ok()?.uuid);
        Self {
            uuids: heads.collect(),
            told,
            session: Some(session.as_str().to_owned()),
            files: vec![(session.as_str().to_owned(), added)],
            ..Self::default()
        }
    }

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
                let model = message.model.as_deref();
                self.replies.saw(id, model, is_sub_agent);
                self.has_reply |= !is_sub_agent;
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
            if let Some(attachment) = body.attachment
                && attachment.kind == "hook_deferred_tool"
            {
                self.deferrals.extend(attachment.tool_use_id);
            }
            if is_sub_agent || DROPPED.contains(&body.kind.as_str()) {
                continue;
            }
            if let Some(uuid) = body.uuid {
                self.announced.retain(|it| it.uuid != uuid);
                if !self.uuids.insert(uuid.clone()) {
                    continue;
                }
                self.last_entry = Some(uuid);
            }
            self.push(stem, entry);
        }
    }

    /// Notes a block of a reply that stands on the CLI's output, with the calls in it.
    pub(super) fn saw_reply<'a>(
        &mut self,
        frame: &AssistantFrame,
        calls: impl Iterator<Item = &'a str>,
    ) {
        let is_main = frame.parent_tool_use_id.is_none();
        if is_main && let Some(uuid) = &frame.uuid {
            let asked = calls.map(|it| (it.to_owned(), uuid.clone()));
            self.asked_by.extend(asked);
            self.announce(uuid, "assistant", frame.message.raw.get(), None);
        }
        if frame.message.model.as_deref() == Some(SYNTHETIC) {
            return;
        }
        if let Some(id) = &frame.message.id {
            let model = frame.message.model.as_deref();
            self.replies.saw(id, model, !is_main);
        }
        if is_main {
            self.expect(frame.uuid.as_deref());
        }
    }

    /// Notes the result of a call of the main conversation that stands on the CLI's output.
    pub(super) fn saw_result(&mut self, frame: &UserFrame, call: &ToolCallId) {
        self.expect(frame.uuid.as_deref());
        if let Some(uuid) = &frame.uuid {
            let asked_by = self.asked_by.get(call.as_str()).cloned();
            self.announce(uuid, "user", frame.message.raw.get(), asked_by.as_deref());
        }
    }

    fn announce(&mut self, uuid: &str, kind: &str, message: &str, asked_by: Option<&str>) {
        if self.uuids.contains(uuid) || self.announced.iter().any(|it| it.uuid == uuid) {
            return;
        }
        let text = |it: &str| serde_json::Value::from(it).to_string();
        let source = asked_by
            .map(|it| format!(r#","sourceToolAssistantUUID":{}"#, text(it)))
            .unwrap_or_default();
        let entry = format!(
            r#"{{"isSidechain":false,"type":"{kind}","message":{message},"uuid":{}{source}}}"#,
            text(uuid)
        );
        // It is JSON: it was put together from JSON.
        if let Ok(entry) = TranscriptEntry::from_text(entry) {
            self.announced.push(Announced {
                uuid: uuid.to_owned(),
                entry,
                is_kept: false,
            });
        }
    }

    /// Notes an entry that must be mirrored by the end of the segment.
    fn expect(&mut self, uuid: Option<&str>) {
        if let Some(uuid) = uuid {
            self.expected.insert(uuid.to_owned());
        }
    }

    /// Notes the Claude session that the CLI names.
    pub(super) fn name_session(&mut self, session: &str) {
        self.session.get_or_insert_with(|| session.to_owned());
    }

    /// Returns the last entry of the main conversation that was mirrored, with its Claude session.
    pub(super) fn stands_at(&self, session: &str) -> Option<(ClaudeSessionId, String)> {
        let session = ClaudeSessionId::new(session).ok()?;
        Some((session, self.last_entry.clone()?))
    }

    /// Returns how many replies of a model there were.
    pub(super) fn model_calls(&self) -> u64 {
        self.replies.count()
    }

    /// Returns the replies of models.
    pub(super) const fn replies(&self) -> &Replies {
        &self.replies
    }

    /// True when what was said so far can be resumed from.
    pub(super) fn is_resumable(&self) -> bool {
        self.session.is_some()
            && self
                .prompt
                .as_ref()
                .is_none_or(|it| self.uuids.contains(it))
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

    /// Takes what was said since the last time, mirrored or only announced, as messages.
    ///
    /// # Errors
    /// The lines cannot be stored.
    pub(super) fn take_progress(&mut self) -> Result<Vec<NewMessage>, AttemptFailure> {
        let session = self.session.clone().unwrap_or_default();
        let session = ClaudeSessionId::new(session).map_err(|error| contract(error.to_string()))?;
        self.take_lines(&session)
    }

    /// Takes the rest at the end of the segment.
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
        // What was announced without being promised (texts of the CLI itself) counts once mirrored.
        self.announced.clear();
        let messages = self.take_lines(&session)?;
        if !self.has_reply {
            return Err(contract("the CLI mirrored no reply of the model"));
        }
        if deferred.is_some_and(|it| !self.deferrals.contains(it.as_str())) {
            return Err(contract("the CLI did not mirror the deferral"));
        }
        Ok(messages)
    }

    fn take_lines(&mut self, session: &ClaudeSessionId) -> Result<Vec<NewMessage>, AttemptFailure> {
        let mirrored = self
            .files
            .iter_mut()
            .find(|(stem, _)| stem == session.as_str())
            .map(|(_, entries)| std::mem::take(entries))
            .unwrap_or_default();
        let mut split = Split::default();
        for entry in mirrored {
            let uuid = entry.head().ok().and_then(|it| it.uuid);
            let was_told = uuid.is_some_and(|it| self.told.remove(&it));
            split.add(if was_told {
                Line::Told(entry)
            } else {
                Line::Mirrored(entry)
            })?;
        }
        for line in self.announced.iter_mut().filter(|it| !it.is_kept) {
            line.is_kept = true;
            self.told.insert(line.uuid.clone());
            split.add(Line::Provisional(line.entry.clone()))?;
        }
        split.finish(session)
    }

    fn push(&mut self, stem: &str, entry: TranscriptEntry) {
        match self.files.iter_mut().find(|(it, _)| it == stem) {
            Some((_, entries)) => entries.push(entry),
            None => self.files.push((stem.to_owned(), vec![entry])),
        }
    }
}

/// Makes the structured output the text of the model's last message: the reply itself is a call. Where
/// a checkpoint has that reply already, the output becomes a message of its own.
pub(super) fn answer_with(
    messages: &mut Vec<NewMessage>,
    session: &str,
    output: &str,
) -> Result<(), AttemptFailure> {
    let mut replies = messages.iter_mut().rev();
    if let Some(reply) = replies.find(|it| it.role == MessageRole::Assistant) {
        output.clone_into(&mut reply.text);
        return Ok(());
    }
    let session = ClaudeSessionId::new(session).map_err(|error| contract(error.to_string()))?;
    let item = FrameworkItem::claude_transcript(session, Vec::new())
        .map_err(|error| contract(error.to_string()))?;
    messages.push(NewMessage {
        role: MessageRole::Assistant,
        text: output.to_owned(),
        tool_call_id: None,
        item,
    });
    Ok(())
}

fn file_stem(path: &str) -> &str {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.strip_suffix(".jsonl").unwrap_or(name)
}

//! The transcript: entries written, entries resumed from, and the mirror of both.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde_json::{Value, json};

use super::faults::MirrorLag;
use super::frames::{self, Ids, merge};
use crate::testing::script::{STEERING_PREFIX, ScriptBlock, ScriptMessage};

/// All entries of the main conversation and what of them is still to be mirrored.
#[derive(Debug)]
pub(super) struct Transcript {
    pub(super) session: String,
    pub(super) path: String,
    pub(super) cwd: String,
    pub(super) entrypoint: String,
    entries: Vec<Value>,
    leaf: Option<String>,
    pending: Vec<Value>,
    delayed: VecDeque<(u64, Value)>,
    has_snapshot: bool,
}

/// A deferral that a resume has to carry out.
#[derive(Debug, Clone)]
pub(super) struct PendingDeferral {
    pub(super) id: String,
    pub(super) tool: String,
    /// The deferral's own input, after `updatedInput`.
    pub(super) deferred_input: Value,
    /// The model's input: what hooks see on resume.
    pub(super) model_input: Value,
    pub(super) assistant_uuid: String,
}

impl Transcript {
    pub(super) fn new(session: String, path: String, cwd: String) -> Self {
        Self {
            session,
            path,
            cwd,
            entrypoint: "sdk-cli".to_owned(),
            entries: Vec::new(),
            leaf: None,
            pending: Vec::new(),
            delayed: VecDeque::new(),
            has_snapshot: false,
        }
    }

    /// Takes the lines of a materialised transcript: a cut-off last line is passed over, an entry
    /// that comes twice counts once. Returns what the host should not have written, even where the
    /// real CLI forgives it.
    pub(super) fn load(&mut self, lines: &[String]) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut known = BTreeSet::new();
        for (index, line) in lines.iter().enumerate() {
            let Ok(entry) = serde_json::from_str::<Value>(line) else {
                wrong.push(format!("line {index} of the transcript is no JSON"));
                continue;
            };
            if !is_compact(line) {
                wrong.push(format!("line {index} of the transcript holds blanks"));
            }
            if entry["isSidechain"] == true {
                wrong.push(format!("line {index} of the transcript is a sub-agent's"));
                continue;
            }
            if let Some(uuid) = entry["uuid"].as_str() {
                let follows = match entry["parentUuid"].as_str() {
                    Some(parent) => known.contains(parent),
                    // A compaction begins a chain of its own (spec/cli-protocol.md 12).
                    None => known.is_empty() || entry["subtype"] == "compact_boundary",
                };
                if !known.insert(uuid.to_owned()) {
                    wrong.push(format!("line {index} of the transcript comes twice"));
                    continue;
                }
                if !follows {
                    wrong.push(format!(
                        "line {index} of the transcript follows no line before it"
                    ));
                }
                self.leaf = Some(uuid.to_owned());
            }
            self.has_snapshot |= entry["attachment"]["type"] == "prompt_snapshot";
            self.entries.push(entry);
        }
        wrong
    }

    /// Returns the id of the last message of a person.
    pub(super) fn last_prompt_uuid(&self) -> Option<String> {
        self.entries
            .iter()
            .rfind(|it| it["type"] == "user" && it["promptSource"] == "sdk")
            .and_then(|it| it["uuid"].as_str())
            .map(str::to_owned)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn entries(&self) -> &[Value] {
        &self.entries
    }

    pub(super) fn leaf(&self) -> Option<&str> {
        self.leaf.as_deref()
    }

    /// Finds the deferral that a resume carries out: the last one, unless it has its result.
    ///
    /// A result counts only in compact JSON: with blanks the real CLI does not see it and runs the
    /// call again (spec/cli-protocol.md 0.1).
    pub(super) fn pending_deferral(&self, lines: &[String]) -> Option<PendingDeferral> {
        let deferral = self
            .entries
            .iter()
            .rfind(|it| it["attachment"]["type"] == "hook_deferred_tool")?;
        let attachment = &deferral["attachment"];
        let id = attachment["toolUseID"].as_str()?;
        let needle = format!("\"tool_use_id\":{}", json!(id));
        let is_answered = lines
            .iter()
            .any(|it| it.contains(&needle) && it.contains("\"type\":\"tool_result\""));
        if is_answered {
            return None;
        }
        let (entry, block) = self.entries.iter().rev().find_map(|it| {
            let blocks = it["message"]["content"].as_array()?;
            let block = blocks
                .iter()
                .find(|it| it["type"] == "tool_use" && it["id"] == id)?;
            Some((it, block))
        })?;
        Some(PendingDeferral {
            id: id.to_owned(),
            tool: attachment["toolName"].as_str()?.to_owned(),
            deferred_input: attachment["toolInput"].clone(),
            model_input: block["input"].clone(),
            assistant_uuid: entry["uuid"].as_str()?.to_owned(),
        })
    }

    /// True when the last turn has no final answer (spec/cli-protocol.md 17f).
    pub(super) fn is_interrupted(&self) -> bool {
        let last = self
            .entries
            .iter()
            .rfind(|it| it["type"] == "user" || it["type"] == "assistant");
        match last {
            None => false,
            Some(it) if it["type"] == "user" => true,
            Some(it) => it["message"]["content"]
                .as_array()
                .is_some_and(|it| it.iter().any(|block| block["type"] == "tool_use")),
        }
    }

    /// Writes a chain entry behind the leaf, or behind `parent`, and returns its uuid.
    pub(super) fn chain(
        &mut self,
        ids: &mut Ids,
        uuid: Option<String>,
        parent: Option<&str>,
        mut entry: Value,
    ) -> String {
        let uuid = uuid.unwrap_or_else(|| ids.uuid());
        let parent = parent.map_or_else(|| json!(self.leaf), |it| json!(it));
        let timestamp = ids.timestamp();
        merge(
            &mut entry,
            json!({
                "parentUuid": parent, "isSidechain": false, "uuid": uuid, "timestamp": timestamp,
                "userType": "external", "entrypoint": self.entrypoint, "cwd": self.cwd,
                "sessionId": self.session, "version": frames::VERSION, "gitBranch": "HEAD",
            }),
        );
        self.leaf = Some(uuid.clone());
        self.push(entry);
        uuid
    }

    pub(super) fn attachment(
        &mut self,
        ids: &mut Ids,
        parent: Option<&str>,
        attachment: Value,
    ) -> String {
        self.chain(
            ids,
            None,
            parent,
            json!({"type": "attachment", "attachment": attachment}),
        )
    }

    /// Writes what is no link of the chain: queue operations, last-prompt, cost-state, …
    pub(super) fn bookkeeping(&mut self, mut entry: Value) {
        merge(&mut entry, json!({"sessionId": self.session}));
        self.push(entry);
    }

    pub(super) fn queue_operation(
        &mut self,
        ids: &mut Ids,
        operation: &str,
        content: Option<&str>,
    ) {
        let mut entry = json!({"type": "queue-operation", "operation": operation, "timestamp": ids.timestamp()});
        if let Some(content) = content {
            merge(&mut entry, json!({"content": content}));
        }
        self.bookkeeping(entry);
    }

    /// Writes the attachments of a session's first prompt.
    pub(super) fn first_attachments(&mut self, ids: &mut Ids, model: &str) {
        let environment = json!({"type": "environment", "snapshot": {"workingDirectory": self.cwd, "isWorktree": false, "isGitRepo": false, "platform": "linux", "shell": "bash"}});
        self.attachment(ids, None, environment);
        self.attachment(
            ids,
            None,
            json!({"type": "model", "identity": {"modelId": model}, "text": ""}),
        );
        self.tokens_reminder(ids);
        self.bookkeeping(json!({"type": "atis-latch", "atis": ""}));
        self.attachment(ids, None, json!({"type": "session_context", "context": {}}));
        self.attachment(ids, None, json!({"type": "date", "date": "2026-01-01"}));
        self.attachment(
            ids,
            None,
            json!({"type": "remote_session_change", "url": null}),
        );
        self.attachment(
            ids,
            None,
            json!({"type": "prompt_snapshot", "systemPrompt": []}),
        );
    }

    pub(super) fn tokens_reminder(&mut self, ids: &mut Ids) {
        self.attachment(ids, None, json!({"type": "total_tokens_reminder", "text": "<total_tokens>15000000 tokens left</total_tokens>"}));
    }

    /// Writes the second snapshot, which a session gets once: after its first results or answer.
    pub(super) fn second_snapshot(&mut self, ids: &mut Ids) {
        if !self.has_snapshot {
            self.has_snapshot = true;
            self.attachment(
                ids,
                None,
                json!({"type": "prompt_snapshot", "systemPrompt": [], "tools": []}),
            );
        }
    }

    pub(super) fn last_prompt(&mut self) {
        let leaf = self.leaf.clone();
        self.bookkeeping(
            json!({"type": "last-prompt", "lastPrompt": self.last_prompt_text(), "leafUuid": leaf}),
        );
    }

    fn last_prompt_text(&self) -> String {
        self.entries
            .iter()
            .rfind(|it| it["type"] == "user" && it["promptSource"] == "sdk")
            .map(|it| frames::text_of(&it["message"]["content"]))
            .unwrap_or_default()
    }

    fn push(&mut self, entry: Value) {
        self.entries.push(entry.clone());
        self.pending.push(entry);
    }

    /// Moves what is pending into a frame.
    pub(super) fn take_pending(&mut self) -> Option<Value> {
        if self.pending.is_empty() {
            return None;
        }
        let entries = std::mem::take(&mut self.pending);
        Some(json!({"type": "transcript_mirror", "filePath": self.path, "entries": entries}))
    }

    /// Holds a frame back until `lines` lines were sent in all.
    pub(super) fn delay(&mut self, lines: u64, frame: Value) {
        self.delayed.push_back((lines, frame));
    }

    /// Moves the delayed frames out whose time has come, all of them when `lines` is absent.
    pub(super) fn take_due(&mut self, lines: Option<u64>) -> Vec<Value> {
        let mut due = Vec::new();
        while let Some((at, _)) = self.delayed.front() {
            if lines.is_some_and(|it| it < *at) {
                break;
            }
            due.extend(self.delayed.pop_front().map(|(_, frame)| frame));
        }
        due
    }

    /// Builds what the model sees. A call without a result is left out, as on a resume
    /// (capture `two_calls_both_deferred`).
    pub(super) fn messages(&self) -> Vec<ScriptMessage> {
        let mut messages: Vec<(Option<&str>, ScriptMessage)> = Vec::new();
        let mut results: BTreeMap<&str, usize> = BTreeMap::new();
        for block in self
            .entries
            .iter()
            .filter_map(|it| it["message"]["content"].as_array())
            .flatten()
        {
            if let ("tool_result", Some(id)) = (
                block["type"].as_str().unwrap_or_default(),
                block["tool_use_id"].as_str(),
            ) {
                *results.entry(id).or_default() += 1;
            }
        }
        for entry in &self.entries {
            if entry["attachment"]["type"] == "queued_command" {
                let text = frames::text_of(&entry["attachment"]["prompt"]);
                let text =
                    format!("{STEERING_PREFIX}{text}\n\nThis is how Claude Code surfaces messages");
                messages.push((None, ScriptMessage::user(vec![ScriptBlock::Text(text)])));
                continue;
            }
            let is_assistant = entry["type"] == "assistant";
            if !is_assistant && entry["type"] != "user" {
                continue;
            }
            // What the CLI itself says about a failure is for people.
            if entry["isApiErrorMessage"] == true {
                continue;
            }
            let blocks = read_blocks(&entry["message"]["content"], &mut results);
            let id = entry["message"]["id"].as_str().filter(|_| is_assistant);
            // A result may stand between two blocks of one message.
            let earlier = messages
                .iter_mut()
                .rfind(|(it, _)| it.is_some() && *it == id);
            match earlier {
                Some((_, message)) => message.blocks.extend(blocks),
                None => messages.push((
                    id,
                    if is_assistant {
                        ScriptMessage::assistant(blocks)
                    } else {
                        ScriptMessage::user(blocks)
                    },
                )),
            }
        }
        messages.into_iter().map(|(_, message)| message).collect()
    }
}

fn read_blocks(content: &Value, results: &mut BTreeMap<&str, usize>) -> Vec<ScriptBlock> {
    if let Value::String(text) = content {
        return vec![ScriptBlock::Text(text.clone())];
    }
    let mut blocks = Vec::new();
    for block in content.as_array().into_iter().flatten() {
        let text = |name: &str| block[name].as_str().unwrap_or_default().to_owned();
        match block["type"].as_str() {
            Some("text") => blocks.push(ScriptBlock::Text(text("text"))),
            Some("tool_use") => {
                let id = text("id");
                // An id that is used twice needs two results.
                match results.get_mut(id.as_str()) {
                    Some(left) if *left > 0 => *left -= 1,
                    Some(_) | None => continue,
                }
                blocks.push(ScriptBlock::ToolUse {
                    id,
                    name: text("name"),
                    input: block["input"].clone(),
                });
            }
            Some("tool_result") => blocks.push(ScriptBlock::ToolResult {
                id: text("tool_use_id"),
                text: frames::text_of(&block["content"]),
                is_error: block["is_error"] == true,
            }),
            Some(_) | None => {}
        }
    }
    blocks
}

/// True for JSON without a blank between its parts: with blanks the real CLI does not see that a
/// deferral has its result (spec/cli-protocol.md 0.1).
fn is_compact(line: &str) -> bool {
    let mut is_text = false;
    let mut is_escaped = false;
    line.bytes().all(|byte| {
        match (is_text, byte) {
            (true, _) if is_escaped => is_escaped = false,
            (true, b'\\') => is_escaped = true,
            (_, b'"') => is_text = !is_text,
            (_, _) => {}
        }
        is_text || !byte.is_ascii_whitespace()
    })
}

/// Says whether frames leave now, later or at the result.
pub(super) fn is_flushed_when_quiet(lag: MirrorLag) -> bool {
    match lag {
        MirrorLag::Quiet | MirrorLag::Lines(_) => true,
        MirrorLag::UntilResult => false,
    }
}

/// The directory name of a project: every UTF-16 unit outside `[A-Za-z0-9]` becomes `-`
/// (spec/cli-protocol.md 2; paths of more than 200 units are not needed here).
pub(super) fn project_key(cwd: &str) -> String {
    cwd.encode_utf16()
        .map(|unit| match u8::try_from(unit) {
            Ok(byte) if byte.is_ascii_alphanumeric() => char::from(byte),
            Ok(_) | Err(_) => '-',
        })
        .collect()
}

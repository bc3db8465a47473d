//! Makes a stored transcript into one from which the CLI goes on in the middle of a turn
//! (spec/cli-protocol.md 17c to 17f, on CLI 2.1.316 and 2.1.332): what was only announced becomes
//! entries, recorded outcomes become results, and at most one waiting call becomes a deferral that
//! the CLI runs by itself. The model is asked again once, whatever the number of calls.

use std::collections::{BTreeSet, HashSet};

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

use super::classify::is_inline;
use super::cut::cut_result;
use super::transcript::SYNTHETIC;
use super::verify::verify;
use super::{Conversation, SegmentPlan, runner};
use crate::failure::AttemptFailure;
use crate::ids::ToolCallId;
use crate::protocol::content_blocks;
use crate::record::{ToolOutcome, TranscriptEntry};
use crate::turn::{ResumedCall, ResumedFate};

/// How a segment goes on in the middle of a turn. Created by [`resume`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResumePlan {
    /// The whole transcript, oldest entry first.
    pub entries: Vec<TranscriptEntry>,
    /// How many entries at its end are not stored yet.
    pub added: usize,
    /// Those of them whose messages are stored.
    pub told: HashSet<String>,
    /// The calls that have a result in it.
    pub answered: BTreeSet<ToolCallId>,
    /// The waiting tool of the CLI that it is made to run.
    pub call: Option<ResumedCall>,
}

/// Plans how the turn goes on from the last checkpoint: every call of the last reply gets its
/// recorded outcome as a result; one that may run, or that an interrupted process left open, is
/// asked for anew by the CLI itself. Texts that came in since then stand behind all of that, and then
/// no call is left open: the model reads them together with the results.
///
/// # Errors
/// [`FailureClass::Runner`](crate::failure::FailureClass::Runner) when the CLI could not go on from
/// this transcript.
pub fn resume(
    plan: &SegmentPlan,
    conversation: Conversation,
    calls: &[ResumedCall],
) -> Result<ResumePlan, AttemptFailure> {
    let stored = conversation.entries.len();
    let mut chain = Chain::of(conversation.entries)?;
    let mut told = HashSet::new();
    for announced in conversation.provisional {
        told.extend(chain.push_announced(&announced)?);
    }
    let answered = chain.answered();
    let is_answered = |id: &str| answered.iter().any(|it| it.as_str() == id);
    let open = (chain.last_calls().into_iter()).filter(|it| !is_answered(&it.id));
    let mut open: Vec<(Asked, Answer<'_>)> = open
        .map(|asked| {
            let answer = Answer::of(calls, &asked);
            (asked, answer)
        })
        .collect();
    // The CLI can be made to run one call by itself: the one that may run; else an inline call, as
    // it would have run it.
    let deferred = (open.iter())
        .position(|(_, answer)| matches!(answer, Answer::Run(_)))
        .or_else(|| {
            let is_steered = !conversation.unread.is_empty();
            open.iter().position(|(asked, answer)| {
                matches!(answer, Answer::Interrupted) && !is_steered && is_inline(plan, &asked.name)
            })
        })
        .map(|index| open.remove(index));
    for (asked, answer) in &open {
        match answer {
            Answer::Recorded(outcome) => {
                chain.push_result(asked, &outcome.model_text(), outcome.is_error())?;
            }
            Answer::Interrupted => chain.push_result(asked, INTERRUPTED, true)?,
            Answer::Run(_) => return Err(runner("only one call can wait for the CLI itself")),
        }
    }
    for text in &conversation.unread {
        if deferred.is_some() {
            return Err(runner(
                "a text came in while a call waits for the CLI itself",
            ));
        }
        chain.push_text(text)?;
    }
    let answered = chain.answered();
    let mut call = None;
    if let Some((asked, answer)) = deferred {
        chain.push_deferral(&asked)?;
        call = match answer {
            Answer::Run(call) => Some(call.clone()),
            Answer::Recorded(_) | Answer::Interrupted => None,
        };
    }
    let is_told = |it: &ResumedCall| {
        answered.contains(&it.tool_call_id)
            || (call.as_ref()).is_some_and(|call| call.tool_call_id == it.tool_call_id)
    };
    if !calls.iter().all(is_told) {
        return Err(runner("the transcript lacks a recorded call"));
    }
    verify(&chain.entries)?;
    Ok(ResumePlan {
        added: chain.entries.len() - stored,
        answered,
        entries: chain.entries,
        told,
        call,
    })
}

/// What the model reads about a call that an interrupted process left open.
const INTERRUPTED: &str =
    "The process that ran this call ended before its result. It is safe to call again.";

/// What an open call gets.
enum Answer<'a> {
    /// Its recorded outcome.
    Recorded(&'a ToolOutcome),
    /// The CLI may run it, after its start mark.
    Run(&'a ResumedCall),
    /// It has no record: it ran inside the segment, or was refused there.
    Interrupted,
}

impl<'a> Answer<'a> {
    fn of(calls: &'a [ResumedCall], asked: &Asked) -> Self {
        let record = calls.iter().find(|it| it.tool_call_id.as_str() == asked.id);
        match record.map(|it| (it, &it.fate)) {
            Some((_, ResumedFate::Final(outcome))) => Self::Recorded(outcome),
            Some((call, ResumedFate::Permitted)) => Self::Run(call),
            None => Self::Interrupted,
        }
    }
}

/// A tool use of the last reply.
#[derive(Debug, Clone)]
struct Asked {
    id: String,
    name: String,
    input: Box<RawValue>,
    entry: String,
}

/// A transcript to which entries are added.
struct Chain {
    entries: Vec<TranscriptEntry>,
    parent: String,
    fields: String,
}

/// The fields that every entry of a Claude session repeats.
#[derive(Deserialize)]
struct Common {
    #[serde(default)]
    timestamp: Option<Box<RawValue>>,
    #[serde(rename = "userType", default)]
    user_type: Option<Box<RawValue>>,
    #[serde(default)]
    entrypoint: Option<Box<RawValue>>,
    #[serde(default)]
    cwd: Option<Box<RawValue>>,
    #[serde(rename = "sessionId", default)]
    session_id: Option<Box<RawValue>>,
    #[serde(default)]
    version: Option<Box<RawValue>>,
    #[serde(rename = "gitBranch", default)]
    git_branch: Option<Box<RawValue>>,
}

impl Common {
    fn text(&self) -> String {
        let fields = [
            ("timestamp", &self.timestamp),
            ("userType", &self.user_type),
            ("entrypoint", &self.entrypoint),
            ("cwd", &self.cwd),
            ("sessionId", &self.session_id),
            ("version", &self.version),
            ("gitBranch", &self.git_branch),
        ];
        fields
            .iter()
            .filter_map(|(name, value)| Some((name, value.as_ref()?)))
            .map(|(name, value)| format!(r#","{name}":{}"#, value.get()))
            .collect()
    }
}

#[derive(Deserialize)]
struct Body {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    uuid: Option<String>,
    #[serde(default)]
    message: Option<Message>,
}

#[derive(Deserialize)]
struct Message {
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    content: Option<Box<RawValue>>,
}

impl Chain {
    fn of(entries: Vec<TranscriptEntry>) -> Result<Self, AttemptFailure> {
        let last = entries.iter().rev().find_map(|entry| {
            let head = entry.head().ok().filter(|it| !it.is_sidechain)?;
            Some((entry, head.uuid?))
        });
        let Some((last, parent)) = last else {
            return Err(runner("a turn goes on without a transcript"));
        };
        let common: Common = serde_json::from_str(last.as_str())
            .map_err(|_| runner("the transcript's last entry cannot be read"))?;
        let fields = common.text();
        Ok(Self {
            entries,
            parent,
            fields,
        })
    }

    /// Gives an announced line its place; returns its id.
    fn push_announced(&mut self, line: &TranscriptEntry) -> Result<Option<String>, AttemptFailure> {
        let uuid = line.head().ok().and_then(|it| it.uuid);
        let Some(uuid) = uuid else {
            return Err(runner("an announced transcript line has no id"));
        };
        let body = line.as_str().trim_start_matches('{').to_owned();
        let body = body.strip_suffix('}').unwrap_or(&body).to_owned();
        self.push(&uuid, &body)?;
        Ok(Some(uuid))
    }

    /// 17d: the result of a call as the CLI would have written it.
    fn push_result(
        &mut self,
        asked: &Asked,
        text: &str,
        is_error: bool,
    ) -> Result<(), AttemptFailure> {
        let uuid = derived_uuid("result", &self.parent, &asked.id);
        let error = if is_error { r#","is_error":true"# } else { "" };
        let body = format!(
            r#""isSidechain":false,"type":"user","message":{{"role":"user","content":[{{"tool_use_id":{},"type":"tool_result","content":[{{"type":"text","text":{}}}]{error}}}]}},"uuid":"{uuid}","sourceToolAssistantUUID":{}"#,
            json(&asked.id),
            json(&cut_result(text)),
            json(&asked.entry),
        );
        self.push(&uuid, &body)
    }

    /// 17f: a prompt that the CLI has not answered; it asks the model with it (measured behind results
    /// on CLI 2.1.316 and 2.1.332).
    fn push_text(&mut self, text: &str) -> Result<(), AttemptFailure> {
        let uuid = derived_uuid("text", &self.parent, text);
        let body = format!(
            r#""isSidechain":false,"type":"user","message":{{"role":"user","content":[{{"type":"text","text":{}}}]}},"uuid":"{uuid}""#,
            json(text),
        );
        self.push(&uuid, &body)
    }

    /// 17c: a deferral that the CLI never made; it runs the call first of all.
    fn push_deferral(&mut self, asked: &Asked) -> Result<(), AttemptFailure> {
        let uuid = derived_uuid("deferral", &self.parent, &asked.id);
        let body = format!(
            r#""isSidechain":false,"attachment":{{"type":"hook_deferred_tool","toolUseID":{},"toolName":{},"toolInput":{},"hookName":"settings","hookEvent":"PreToolUse","permissionMode":"default"}},"type":"attachment","uuid":"{uuid}""#,
            json(&asked.id),
            json(&asked.name),
            asked.input.get(),
        );
        self.push(&uuid, &body)
    }

    fn push(&mut self, uuid: &str, body: &str) -> Result<(), AttemptFailure> {
        let text = format!(
            r#"{{"parentUuid":{},{body}{}}}"#,
            json(&self.parent),
            self.fields
        );
        let entry = TranscriptEntry::from_text(text)
            .map_err(|_| runner("an added transcript entry is no JSON"))?;
        self.entries.push(entry);
        self.parent = uuid.to_owned();
        Ok(())
    }

    /// The calls that have a result.
    fn answered(&self) -> BTreeSet<ToolCallId> {
        let with_results = (self.entries.iter()).filter(|it| it.as_str().contains("tool_result"));
        with_results
            .filter_map(body_of)
            .filter_map(|it| it.message?.content)
            .flat_map(|content| content_blocks(&content).unwrap_or_default())
            .filter(|block| block.kind == "tool_result")
            .filter_map(|block| ToolCallId::new(block.tool_use_id?).ok())
            .collect()
    }

    /// The tool uses of the last reply, in the model's order.
    fn last_calls(&self) -> Vec<Asked> {
        let mut calls = Vec::new();
        let mut reply = None;
        let replies = (self.entries.iter().rev())
            .filter(|it| it.as_str().contains(r#""type":"assistant""#))
            .filter_map(body_of)
            .filter(|it| it.kind == "assistant");
        for body in replies {
            let (Some(entry), Some(message)) = (body.uuid, body.message) else {
                continue;
            };
            // What the CLI says in the model's name, such as an error of the API, asks for nothing.
            if message.model.as_deref() == Some(SYNTHETIC) {
                continue;
            }
            if reply.get_or_insert_with(|| message.id.clone()) != &message.id {
                break;
            }
            let blocks = message
                .content
                .and_then(|it| content_blocks(&it).ok())
                .unwrap_or_default();
            let of_block = blocks
                .into_iter()
                .rev()
                .filter(|it| it.kind == "tool_use")
                .filter_map(|block| {
                    Some(Asked {
                        id: block.id?,
                        name: block.name?,
                        input: block.input?,
                        entry: entry.clone(),
                    })
                });
            calls.extend(of_block);
        }
        calls.reverse();
        calls
    }
}

fn body_of(entry: &TranscriptEntry) -> Option<Body> {
    serde_json::from_str(entry.as_str()).ok()
}

fn json(text: &str) -> String {
    Value::from(text).to_string()
}

/// Makes the id of an added entry: the same one whenever the same attempt is made again. It has the
/// form of a UUID of version 8.
fn derived_uuid(kind: &str, parent: &str, call: &str) -> String {
    let mut hash = Sha256::new();
    for part in [kind, parent, call] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    }
    let mut bytes = [0_u8; 16];
    bytes.copy_from_slice(&hash.finalize()[..16]);
    bytes[6] = (bytes[6] & 0x0f) | 0x80;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    let hex: String = bytes.iter().map(|it| format!("{it:02x}")).collect();
    format!(
        "{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}

/// The id that the transcript entry of a turn's prompt gets behind this last entry: the same one in
/// each attempt.
#[must_use]
pub fn prompt_uuid(session: &str, turn: &str, last_entry: &str) -> String {
    derived_uuid(&format!("prompt {session}"), last_entry, turn)
}

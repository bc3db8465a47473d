//! Prepares a stored transcript for the CLI's own way to resume (the native path).

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::runner;
use crate::failure::AttemptFailure;
use crate::ids::ToolCallId;
use crate::protocol::content_blocks;
use crate::record::TranscriptEntry;

/// A transcript that may be resumed. Created by [`materialise`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResumableTranscript {
    /// Its entries, oldest first.
    pub entries: Vec<TranscriptEntry>,
    /// The calls that have a result in it.
    pub answered: BTreeSet<ToolCallId>,
}

/// Prepares a transcript for a resume: it ends in the deferral of `resumed`, or in none. A deferral
/// that nobody resumes would run its call in a later segment (spec/cli-protocol.md 0.6), so it is
/// left out.
///
/// # Errors
/// [`FailureClass::Runner`](crate::failure::FailureClass::Runner) when the CLI would not resume
/// that call from this transcript, but wait for ever.
pub fn materialise(
    entries: Vec<TranscriptEntry>,
    resumed: Option<&ToolCallId>,
) -> Result<ResumableTranscript, AttemptFailure> {
    let marks: Vec<DeferralMark> = entries.iter().map(mark_of).collect();
    let mut answered = BTreeSet::new();
    let mut last_deferral = None;
    for mark in &marks {
        match mark {
            DeferralMark::Deferred(id) => last_deferral = Some(id),
            DeferralMark::Answered(ids) => {
                answered.extend(ids.iter().filter_map(|it| ToolCallId::new(it).ok()));
            }
            DeferralMark::Nothing => {}
        }
    }
    let is_answered = |id: &str| answered.iter().any(|it| it.as_str() == id);
    if let Some(resumed) = resumed
        && (last_deferral.map(String::as_str) != Some(resumed.as_str())
            || is_answered(resumed.as_str()))
    {
        return Err(runner("the transcript does not end in the resumed call"));
    }
    let entries = entries
        .into_iter()
        .zip(&marks)
        .filter(|(_, mark)| match mark {
            DeferralMark::Deferred(id) => {
                is_answered(id) || resumed.is_some_and(|it| it.as_str() == id)
            }
            DeferralMark::Answered(_) | DeferralMark::Nothing => true,
        })
        .map(|(entry, _)| entry)
        .collect();
    Ok(ResumableTranscript { entries, answered })
}

#[derive(Deserialize)]
struct DeferralEntry {
    #[serde(default)]
    attachment: Option<Attachment>,
    #[serde(default)]
    message: Option<EntryMessage>,
}

#[derive(Deserialize)]
struct Attachment {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(rename = "toolUseID", default)]
    tool_use_id: Option<String>,
}

#[derive(Deserialize)]
struct EntryMessage {
    content: Box<RawValue>,
}

/// What an entry means for the pending deferral.
enum DeferralMark {
    Deferred(String),
    Answered(Vec<String>),
    Nothing,
}

fn mark_of(entry: &TranscriptEntry) -> DeferralMark {
    let text = entry.as_str();
    // Two cheap looks, because a transcript is long and few of its entries matter here.
    if !text.contains("hook_deferred_tool") && !text.contains("tool_result") {
        return DeferralMark::Nothing;
    }
    let Ok(parsed) = serde_json::from_str::<DeferralEntry>(text) else {
        return DeferralMark::Nothing;
    };
    if let Some(Attachment {
        kind,
        tool_use_id: Some(id),
    }) = parsed.attachment
        && kind == "hook_deferred_tool"
    {
        return DeferralMark::Deferred(id);
    }
    let blocks = parsed
        .message
        .and_then(|it| content_blocks(&it.content).ok())
        .unwrap_or_default();
    DeferralMark::Answered(
        blocks
            .into_iter()
            .filter(|it| it.kind == "tool_result")
            .filter_map(|it| it.tool_use_id)
            .collect(),
    )
}

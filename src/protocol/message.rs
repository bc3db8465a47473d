//! Messages of the conversation, the mirror of the transcript, and the result.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{CliFrame, ProtocolError, Text, Verbatim, body};
use crate::record::TranscriptEntry;

/// A system message that this crate acts on.
#[derive(Debug)]
#[non_exhaustive]
pub enum SystemFrame {
    /// What the CLI runs with.
    Init(InitFrame),
    /// A request to the API failed, and the CLI tries again.
    ApiRetry(RetryFrame),
}

/// The `init` message.
#[derive(Debug, Deserialize)]
#[non_exhaustive]
pub struct InitFrame {
    /// The Claude session.
    pub session_id: String,
    /// The CLI's version.
    #[serde(default)]
    pub claude_code_version: Option<String>,
    /// The model that is asked for.
    #[serde(default)]
    pub model: Option<String>,
}

/// The `api_retry` message.
#[derive(Debug, Deserialize)]
#[non_exhaustive]
pub struct RetryFrame {
    /// The HTTP status; `None` when there was no connection.
    #[serde(default)]
    pub error_status: Option<u16>,
    /// How long the CLI waits before it tries again: what the API asked for, or its own guess.
    #[serde(default)]
    pub retry_delay_ms: Option<f64>,
}

/// One block of a reply: the CLI writes one frame for each, under the same message id.
#[derive(Debug, Deserialize)]
#[non_exhaustive]
pub struct AssistantFrame {
    /// The reply.
    pub message: Verbatim<AssistantMessage>,
    /// Set for the conversation of a sub-agent.
    #[serde(default)]
    pub parent_tool_use_id: Option<String>,
    /// The id of its transcript entry.
    #[serde(default)]
    pub uuid: Option<String>,
}

/// A reply of the model.
#[derive(Debug, Deserialize)]
#[non_exhaustive]
pub struct AssistantMessage {
    /// The API's id of the reply.
    #[serde(default)]
    pub id: Option<String>,
    /// The model; `<synthetic>` for a text of the CLI itself.
    #[serde(default)]
    pub model: Option<String>,
    /// A text or a list of blocks.
    pub content: Box<RawValue>,
}

/// A message in the user role.
#[derive(Debug, Deserialize)]
#[non_exhaustive]
pub struct UserFrame {
    /// The message.
    pub message: Verbatim<UserMessage>,
    /// Set for the conversation of a sub-agent.
    #[serde(default)]
    pub parent_tool_use_id: Option<String>,
    /// The id of its transcript entry.
    #[serde(default)]
    pub uuid: Option<String>,
    /// What the CLI says about the results in it.
    #[serde(default)]
    pub tool_result_meta: Option<Vec<ToolResultMeta>>,
}

/// The content of a message in the user role.
#[derive(Debug, Deserialize)]
#[non_exhaustive]
pub struct UserMessage {
    /// A text or a list of blocks.
    pub content: Box<RawValue>,
}

/// What the CLI says about one tool result.
#[derive(Debug, Deserialize)]
#[non_exhaustive]
pub struct ToolResultMeta {
    /// The call.
    pub id: String,
    /// Why it did not run, when it did not.
    #[serde(default)]
    pub non_execution_kind: Option<String>,
    /// Who decided about it, when somebody did.
    #[serde(default)]
    pub permission_decision: Option<PermissionDecision>,
}

/// How a call was decided, as the CLI sees it.
#[derive(Debug, Deserialize)]
#[non_exhaustive]
pub struct PermissionDecision {
    /// `accept` or `reject`.
    #[serde(default)]
    pub decision: Option<String>,
}

/// One block of a message.
#[derive(Debug, Default, Deserialize)]
#[non_exhaustive]
pub struct ContentBlock {
    /// `text`, `tool_use`, `tool_result`, …
    #[serde(rename = "type")]
    pub kind: String,
    /// The text of a `text`.
    #[serde(default)]
    pub text: Option<Text>,
    /// The id of a `tool_use`.
    #[serde(default)]
    pub id: Option<String>,
    /// The tool of a `tool_use`.
    #[serde(default)]
    pub name: Option<String>,
    /// The input of a `tool_use`, verbatim.
    #[serde(default)]
    pub input: Option<Box<RawValue>>,
    /// The call that a `tool_result` answers.
    #[serde(default)]
    pub tool_use_id: Option<String>,
    /// True for a `tool_result` that is an error.
    #[serde(default)]
    pub is_error: Option<bool>,
    /// The content of a `tool_result`.
    #[serde(default)]
    pub content: Option<Box<RawValue>>,
}

/// A piece of live text of the main conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Delta {
    /// Of the answer.
    Text(String),
    /// Of the reasoning.
    Thinking(String),
}

/// Lines that the CLI added to a transcript file, verbatim (G11).
#[derive(Debug, Deserialize)]
#[non_exhaustive]
pub struct MirrorFrame {
    /// The file; sub-agents have their own.
    #[serde(rename = "filePath")]
    pub file_path: String,
    /// The lines.
    pub entries: Vec<TranscriptEntry>,
}

/// The end of a turn (spec/cli-protocol.md 11).
#[derive(Debug, Deserialize)]
#[non_exhaustive]
pub struct ResultFrame {
    /// `success` or a kind of error; see `is_error`.
    pub subtype: String,
    /// Whether the turn failed. The subtype does not tell.
    pub is_error: bool,
    /// Why the turn ended, when the CLI says so.
    #[serde(default)]
    pub terminal_reason: Option<String>,
    /// Why the last reply ended; `tool_deferred` for a deferral.
    #[serde(default)]
    pub stop_reason: Option<String>,
    /// The Claude session.
    #[serde(default)]
    pub session_id: Option<String>,
    /// The final text, or the text of an error.
    #[serde(default)]
    pub result: Option<Text>,
    /// The texts of an error.
    #[serde(default)]
    pub errors: Option<Vec<Text>>,
    /// The answer in the shape of the schema, verbatim (spec/cli-protocol.md 14).
    #[serde(default)]
    pub structured_output: Option<Box<RawValue>>,
    /// The API's status, for an error of the API.
    #[serde(default)]
    pub api_error_status: Option<u16>,
    /// The call that waits.
    #[serde(default)]
    pub deferred_tool_use: Option<DeferredToolUse>,
    /// Tokens of the main conversation.
    #[serde(default)]
    pub usage: Option<TokenUsage>,
    /// What each model was used for over the whole session, and who served it; verbatim, because
    /// spans alone read it.
    #[serde(rename = "modelUsage", default)]
    pub model_usage: Option<Box<RawValue>>,
    /// Tokens and cost by model, of this turn alone; `modelUsage` counts the whole session.
    #[serde(default)]
    pub model_usage_since_last_result: Option<BTreeMap<String, ModelUsage>>,
}

/// A call that the CLI deferred, with its final input.
#[derive(Debug, Deserialize)]
#[non_exhaustive]
pub struct DeferredToolUse {
    /// The call.
    pub id: String,
    /// The tool's full name.
    pub name: String,
    /// The input after every hook, verbatim.
    pub input: Box<RawValue>,
}

/// Tokens as the API counts them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct TokenUsage {
    /// Input that was neither read from nor written to the cache.
    #[serde(default)]
    pub input_tokens: Option<u64>,
    /// Input that was written to the cache.
    #[serde(default)]
    pub cache_creation_input_tokens: Option<u64>,
    /// Input that was read from the cache.
    #[serde(default)]
    pub cache_read_input_tokens: Option<u64>,
    /// Output.
    #[serde(default)]
    pub output_tokens: Option<u64>,
}

/// What one model used.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ModelUsage {
    /// Input that was neither read from nor written to the cache.
    #[serde(default)]
    pub input_tokens: Option<u64>,
    /// Input that was written to the cache.
    #[serde(default)]
    pub cache_creation_input_tokens: Option<u64>,
    /// Input that was read from the cache.
    #[serde(default)]
    pub cache_read_input_tokens: Option<u64>,
    /// Output.
    #[serde(default)]
    pub output_tokens: Option<u64>,
    /// Cost in US dollars.
    #[serde(rename = "costUSD", default)]
    pub cost_usd: Option<f64>,
}

/// Where a streamed reply of the main conversation begins and ends. A reply that was not streamed
/// has no such marks.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReplyMark {
    /// The reply began.
    Started {
        /// The API's id of the reply.
        message_id: String,
        /// What it used so far: its input.
        usage: TokenUsage,
    },
    /// The reply's last words about itself.
    Used {
        /// What it used in all, as far as it is told.
        usage: TokenUsage,
        /// Why the model ended it, when it says so.
        stop_reason: Option<String>,
    },
    /// No further block of it comes.
    Ended {
        /// True when the CLI gave it up, or a part of it, and asks the model again.
        given_up: bool,
    },
}

#[derive(Deserialize)]
struct StreamLine<'a> {
    #[serde(borrow)]
    event: StreamEvent<'a>,
    #[serde(default)]
    parent_tool_use_id: Option<Text>,
    #[serde(borrow, default)]
    abandoned_blocks: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct StreamEvent<'a> {
    // Verbatim: kinds of pieces that come one day look as they like.
    #[serde(rename = "type", borrow, default)]
    kind: Option<&'a RawValue>,
    #[serde(borrow, default)]
    delta: Option<&'a RawValue>,
    #[serde(borrow, default)]
    message: Option<&'a RawValue>,
    #[serde(borrow, default)]
    usage: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct StartedMessage {
    id: String,
    #[serde(default)]
    usage: TokenUsage,
}

#[derive(Deserialize)]
struct DeltaHead {
    #[serde(rename = "type", default)]
    kind: Option<Text>,
}

#[derive(Deserialize)]
struct StopDelta {
    #[serde(default)]
    stop_reason: Option<String>,
}

#[derive(Deserialize)]
struct TextDelta {
    text: Text,
}

#[derive(Deserialize)]
struct ThinkingDelta {
    thinking: Text,
}

pub(super) fn decode_stream_event(line: &[u8], kind: &str) -> Result<CliFrame, ProtocolError> {
    let frame: StreamLine<'_> = body(line, kind)?;
    let event = &frame.event;
    let known = match (frame.parent_tool_use_id, event.delta, event.usage) {
        (None, Some(delta), Some(usage)) => {
            let usage = body(usage.get().as_bytes(), "stream_event/message_delta")?;
            // Spans alone need it: a reason that is no text breaks nothing.
            let stop = serde_json::from_str::<StopDelta>(delta.get()).ok();
            let stop_reason = stop.and_then(|it| it.stop_reason);
            Some(CliFrame::Reply(ReplyMark::Used { usage, stop_reason }))
        }
        (None, Some(delta), None) => decode_delta(delta.get())?.map(CliFrame::Delta),
        (None, None, _) => decode_mark(event, frame.abandoned_blocks)?.map(CliFrame::Reply),
        (Some(_), _, _) => None,
    };
    Ok(known.unwrap_or_else(|| CliFrame::Unknown {
        kind: kind.to_owned(),
        subtype: None,
    }))
}

fn decode_mark(
    event: &StreamEvent<'_>,
    abandoned: Option<&RawValue>,
) -> Result<Option<ReplyMark>, ProtocolError> {
    match (event.kind.map(RawValue::get), event.message) {
        (Some("\"message_start\""), Some(message)) => {
            let message: StartedMessage =
                body(message.get().as_bytes(), "stream_event/message_start")?;
            Ok(Some(ReplyMark::Started {
                message_id: message.id,
                usage: message.usage,
            }))
        }
        (Some("\"message_stop\""), _) => Ok(Some(ReplyMark::Ended {
            given_up: abandoned.is_some_and(|it| it.get() != "null"),
        })),
        (Some(_) | None, _) => Ok(None),
    }
}

/// Reads a piece of live text; `None` for any other kind of piece.
fn decode_delta(delta: &str) -> Result<Option<Delta>, ProtocolError> {
    let kind = serde_json::from_str::<DeltaHead>(delta)
        .ok()
        .and_then(|it| it.kind);
    match kind.as_ref().map(|it| it.0.as_str()) {
        Some("text_delta") => {
            let delta: TextDelta = body(delta.as_bytes(), "stream_event/text_delta")?;
            Ok(Some(Delta::Text(delta.text.0)))
        }
        Some("thinking_delta") => {
            let delta: ThinkingDelta = body(delta.as_bytes(), "stream_event/thinking_delta")?;
            Ok(Some(Delta::Thinking(delta.thinking.0)))
        }
        Some(_) | None => Ok(None),
    }
}

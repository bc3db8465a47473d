//! The language of the Claude Code CLI: what its lines mean, and the lines that it is sent.
//!
//! Pure encoding and decoding; what to answer is the segment's business. A frame has only the
//! fields that this crate acts on. Unknown types are kept by name and may be ignored
//! (spec/cli-protocol.md 10); a known type whose body does not fit is an error, because what the
//! CLI does then is not understood (G5).

mod control;
mod host;
mod launch;
mod message;
mod servers;
mod setup;
mod text;
mod verbatim;

use serde::Deserialize;
use serde_json::value::RawValue;

pub use control::{CanUseTool, ControlReply, ControlRequest, HookCallback, HookInput, McpMessage};
pub use host::{HookAnswer, HostFrame, PermissionAnswer, ToolServerDeclaration};
pub use launch::{Launch, PermissionMode, SettingSource};
pub use message::{
    AssistantFrame, AssistantMessage, ContentBlock, DeferredToolUse, Delta, InitFrame, MirrorFrame,
    ModelUsage, PermissionDecision, ReplyMark, ResultFrame, RetryFrame, SystemFrame, TokenUsage,
    ToolResultMeta, UserFrame, UserMessage,
};
pub use servers::{McpServer, mcp_config};
pub use setup::{AgentSetup, SubAgent};
pub use text::{Text, content_blocks, flattened_text};
pub use verbatim::Verbatim;

/// One line of the CLI's output, decoded. Created by [`decode_line`].
#[derive(Debug)]
#[non_exhaustive]
pub enum CliFrame {
    /// The CLI asks something and waits for the answer.
    ControlRequest {
        /// The id that the answer must carry.
        request_id: String,
        /// What it asks.
        request: ControlRequest,
    },
    /// The answer to a request of ours.
    ControlResponse(ControlReply),
    /// The CLI no longer wants the answer to a request.
    ControlCancel {
        /// Which request.
        request_id: String,
    },
    /// A system message.
    System(SystemFrame),
    /// A block of a reply of the model.
    Assistant(AssistantFrame),
    /// A message in the user role: results of tools, and what the CLI adds by itself.
    User(UserFrame),
    /// A piece of live text of the main conversation.
    Delta(Delta),
    /// A streamed reply of the main conversation begins or ends.
    Reply(ReplyMark),
    /// Lines that the CLI added to a transcript.
    Mirror(MirrorFrame),
    /// The end of a turn.
    Result(Box<ResultFrame>),
    /// A frame of a type that this crate does not act on.
    Unknown {
        /// Its type.
        kind: String,
        /// Its subtype, where it has one.
        subtype: Option<String>,
    },
    /// A line that is no JSON object, such as debug output (spec/cli-protocol.md 1).
    NotJson,
}

/// A frame of a known type with a body that does not fit. It never shows the body: that may hold
/// customers' words or secrets (G10).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// The body of a frame cannot be read.
    #[error("a {kind} frame of {bytes} bytes cannot be read: it does not fit at byte {column}")]
    Malformed {
        /// The type of the frame, with its subtype.
        kind: String,
        /// The length of the line.
        bytes: usize,
        /// Where reading stopped.
        column: usize,
    },
    /// One of our own frames cannot be written.
    #[error("a {kind} frame cannot be written")]
    Unwritable {
        /// What kind of frame it is.
        kind: &'static str,
    },
}

#[derive(Deserialize)]
struct Head<'a> {
    // Verbatim: one that is no text belongs to a frame that is not known here.
    #[serde(rename = "type", borrow, default)]
    kind: Option<&'a RawValue>,
    #[serde(borrow, default)]
    subtype: Option<&'a RawValue>,
}

fn name(raw: Option<&RawValue>) -> Option<String> {
    let text: Text = serde_json::from_str(raw?.get()).ok()?;
    Some(text.0)
}

/// Decodes one line of the CLI's output: first its type, then the body of that type.
///
/// # Errors
/// [`ProtocolError::Malformed`] when the type is known and the body does not fit, and for a line that
/// is no JSON but the remains of a control request: the CLI waits for an answer that nobody can give.
pub fn decode_line(line: &[u8]) -> Result<CliFrame, ProtocolError> {
    // The CLI writes the type first, so most lines are read once. What does not fit at once is
    // judged by the whole line: it may be no JSON at all, or of a type that is not known.
    if let Some((kind, subtype)) = leading_type(line)
        && let Ok(Some(frame)) = decode_known(line, kind, subtype)
    {
        return Ok(frame);
    }
    // A list would pass for an object: serde reads the fields of a struct from either.
    if !line.trim_ascii_start().starts_with(b"{") {
        return not_json(line);
    }
    let Ok(head) = serde_json::from_slice::<Head<'_>>(line) else {
        return not_json(line);
    };
    let (kind, subtype) = (name(head.kind).unwrap_or_default(), name(head.subtype));
    let known = decode_known(line, &kind, subtype.as_deref())?;
    Ok(known.unwrap_or(CliFrame::Unknown { kind, subtype }))
}

/// What a control request holds, and no text inside of JSON does: quotes are escaped there.
const REQUEST_MARK: &[u8] = br#""type":"control_request""#;

fn not_json(line: &[u8]) -> Result<CliFrame, ProtocolError> {
    let is_request = |it: &[u8]| it == REQUEST_MARK;
    if !line.windows(REQUEST_MARK.len()).any(is_request) {
        return Ok(CliFrame::NotJson);
    }
    let read: Result<serde::de::IgnoredAny, _> = serde_json::from_slice(line);
    Err(ProtocolError::Malformed {
        kind: "control_request".to_owned(),
        bytes: line.len(),
        column: read.map_or_else(|error| error.column(), |_| 0),
    })
}

/// Reads the type, and the subtype behind it, of a line that begins with them.
fn leading_type(line: &[u8]) -> Option<(&str, Option<&str>)> {
    let (kind, rest) = plain_text(line.strip_prefix(br#"{"type":"#)?)?;
    let subtype = rest.strip_prefix(br#","subtype":"#).and_then(plain_text);
    Some((kind, subtype.map(|(subtype, _)| subtype)))
}

/// Reads a JSON text without escapes, and what stands behind it.
fn plain_text(json: &[u8]) -> Option<(&str, &[u8])> {
    let text = json.strip_prefix(b"\"")?;
    let end = text.iter().position(|it| matches!(it, b'"' | b'\\'))?;
    let (text, rest) = text.split_at_checked(end)?;
    let rest = rest.strip_prefix(b"\"")?;
    Some((std::str::from_utf8(text).ok()?, rest))
}

/// Decodes the body of a type that this crate acts on; `None` for another one.
fn decode_known(
    line: &[u8],
    kind: &str,
    subtype: Option<&str>,
) -> Result<Option<CliFrame>, ProtocolError> {
    let frame = match kind {
        "stream_event" => message::decode_stream_event(line, kind)?,
        "control_request" => control::decode_request(line)?,
        "control_response" => {
            CliFrame::ControlResponse(body::<control::ResponseLine>(line, kind)?.into())
        }
        "control_cancel_request" => {
            let cancel: control::CancelLine = body(line, kind)?;
            CliFrame::ControlCancel {
                request_id: cancel.request_id,
            }
        }
        "system" => match subtype {
            Some("init") => CliFrame::System(SystemFrame::Init(body(line, "system/init")?)),
            Some("api_retry") => {
                CliFrame::System(SystemFrame::ApiRetry(body(line, "system/api_retry")?))
            }
            Some(_) | None => return Ok(None),
        },
        "assistant" => CliFrame::Assistant(body(line, kind)?),
        "user" => CliFrame::User(body(line, kind)?),
        "transcript_mirror" => CliFrame::Mirror(body(line, kind)?),
        "result" => CliFrame::Result(Box::new(body(line, kind)?)),
        _ => return Ok(None),
    };
    Ok(Some(frame))
}

fn body<'line, T: Deserialize<'line>>(line: &'line [u8], kind: &str) -> Result<T, ProtocolError> {
    serde_json::from_slice(line).map_err(|error| ProtocolError::Malformed {
        kind: kind.to_owned(),
        bytes: line.len(),
        column: error.column(),
    })
}

#[cfg(test)]
mod tests;

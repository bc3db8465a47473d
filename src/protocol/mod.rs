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
mod text;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

pub use control::{CanUseTool, ControlReply, ControlRequest, HookCallback, HookInput, McpMessage};
pub use host::{HookAnswer, HostFrame, PermissionAnswer, ToolServerDeclaration};
pub use launch::{Launch, PermissionMode};
pub use message::{
    AssistantFrame, AssistantMessage, ContentBlock, DeferredToolUse, Delta, InitFrame, MirrorFrame,
    ModelUsage, PermissionDecision, ResultFrame, RetryFrame, SystemFrame, TokenUsage,
    ToolResultMeta, UserFrame, UserMessage,
};
pub use text::{Text, content_blocks, flattened_text};

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
/// [`ProtocolError::Malformed`] when the type is known and the body does not fit.
pub fn decode_line(line: &[u8]) -> Result<CliFrame, ProtocolError> {
    // A list would pass for an object: serde reads the fields of a struct from either.
    if !line.trim_ascii_start().starts_with(b"{") {
        return Ok(CliFrame::NotJson);
    }
    let Ok(head) = serde_json::from_slice::<Head<'_>>(line) else {
        return Ok(CliFrame::NotJson);
    };
    let kind = name(head.kind).unwrap_or_default();
    match kind.as_str() {
        "stream_event" => message::decode_stream_event(line, &kind),
        "control_request" => control::decode_request(line),
        "control_response" => Ok(CliFrame::ControlResponse(
            body::<control::ResponseLine>(line, &kind)?.into(),
        )),
        "control_cancel_request" => {
            let cancel: control::CancelLine = body(line, &kind)?;
            Ok(CliFrame::ControlCancel {
                request_id: cancel.request_id,
            })
        }
        "system" => message::decode_system(line, name(head.subtype)),
        "assistant" => Ok(CliFrame::Assistant(body(line, &kind)?)),
        "user" => Ok(CliFrame::User(body(line, &kind)?)),
        "transcript_mirror" => Ok(CliFrame::Mirror(body(line, &kind)?)),
        "result" => Ok(CliFrame::Result(Box::new(body(line, &kind)?))),
        _ => Ok(CliFrame::Unknown {
            kind,
            subtype: name(head.subtype),
        }),
    }
}

fn body<T: DeserializeOwned>(line: &[u8], kind: &str) -> Result<T, ProtocolError> {
    borrowed_body(line, kind)
}

fn borrowed_body<'a, T: Deserialize<'a>>(line: &'a [u8], kind: &str) -> Result<T, ProtocolError> {
    serde_json::from_slice(line).map_err(|error| ProtocolError::Malformed {
        kind: kind.to_owned(),
        bytes: line.len(),
        column: error.column(),
    })
}

#[cfg(test)]
mod tests;

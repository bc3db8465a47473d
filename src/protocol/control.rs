//! Control requests and responses: hooks, permission questions, tool server messages.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{CliFrame, ProtocolError, Text, body};

/// What the CLI asks. Each one must be answered, or the CLI waits for ever.
#[derive(Debug)]
#[non_exhaustive]
pub enum ControlRequest {
    /// A hook that we registered.
    Hook(HookCallback),
    /// May this call run?
    CanUseTool(CanUseTool),
    /// A message for a tool server that we declared.
    Mcp(McpMessage),
    /// A request that this crate does not know.
    Unknown {
        /// Its subtype.
        subtype: String,
    },
}

/// A hook callback. What is missing is decided by the gate, not here, because it must be answered.
#[derive(Debug, Deserialize)]
#[non_exhaustive]
pub struct HookCallback {
    /// The name that we registered the callback under.
    #[serde(default)]
    pub callback_id: Option<String>,
    /// The call that the hook is about.
    #[serde(default)]
    pub tool_use_id: Option<String>,
    /// What the hook is told.
    pub input: HookInput,
}

/// What a hook is told.
#[derive(Debug, Deserialize)]
#[non_exhaustive]
pub struct HookInput {
    /// Which hook it is.
    #[serde(default)]
    pub hook_event_name: Option<String>,
    /// The tool's full name.
    #[serde(default)]
    pub tool_name: Option<String>,
    /// The call's input, as the model wrote it.
    #[serde(default)]
    pub tool_input: Option<Box<RawValue>>,
    /// The call, once more.
    #[serde(default)]
    pub tool_use_id: Option<String>,
    /// Present exactly for calls of a sub-agent.
    #[serde(default)]
    pub agent_id: Option<String>,
    /// Which kind of sub-agent it is.
    #[serde(default)]
    pub agent_type: Option<String>,
}

/// A permission question.
#[derive(Debug, Deserialize)]
#[non_exhaustive]
pub struct CanUseTool {
    /// The tool's full name.
    #[serde(default)]
    pub tool_name: Option<String>,
    /// The call.
    #[serde(default)]
    pub tool_use_id: Option<String>,
    /// Present exactly for calls of a sub-agent.
    #[serde(default)]
    pub agent_id: Option<String>,
}

/// A JSON-RPC message for a tool server.
#[derive(Debug, Deserialize)]
#[non_exhaustive]
pub struct McpMessage {
    /// Which server.
    pub server_name: String,
    /// The message, verbatim.
    pub message: Box<RawValue>,
}

/// The CLI's answer to a request of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ControlReply {
    /// Which request.
    pub request_id: String,
    /// The error, if it is one.
    pub error: Option<String>,
    /// The CLI's version, which the answer to `initialize` names.
    pub claude_code_version: Option<String>,
}

#[derive(Deserialize)]
struct RequestLine<'line> {
    request_id: String,
    #[serde(borrow)]
    request: &'line RawValue,
}

#[derive(Deserialize)]
struct RequestHead {
    subtype: String,
}

#[derive(Deserialize)]
pub(super) struct CancelLine {
    pub(super) request_id: String,
}

#[derive(Deserialize)]
pub(super) struct ResponseLine {
    response: ResponseBody,
}

#[derive(Deserialize)]
struct ResponseBody {
    subtype: String,
    request_id: String,
    #[serde(default)]
    error: Option<Text>,
    #[serde(default)]
    response: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
struct InitializeReply {
    claude_code_version: String,
}

impl From<ResponseLine> for ControlReply {
    fn from(line: ResponseLine) -> Self {
        // An answer of another shape names no version.
        let claude_code_version = line.response.response.and_then(|it| {
            let reply: InitializeReply = serde_json::from_str(it.get()).ok()?;
            Some(reply.claude_code_version)
        });
        let error = (line.response.subtype != "success")
            .then(|| line.response.error.map_or(line.response.subtype, |it| it.0));
        Self {
            request_id: line.response.request_id,
            error,
            claude_code_version,
        }
    }
}

pub(super) fn decode_request(line: &[u8]) -> Result<CliFrame, ProtocolError> {
    let line: RequestLine<'_> = body(line, "control_request")?;
    let request = line.request.get().as_bytes();
    let head: RequestHead = body(request, "control_request")?;
    let request = match head.subtype.as_str() {
        "hook_callback" => ControlRequest::Hook(body(request, "hook_callback")?),
        "can_use_tool" => ControlRequest::CanUseTool(body(request, "can_use_tool")?),
        "mcp_message" => ControlRequest::Mcp(body(request, "mcp_message")?),
        _ => ControlRequest::Unknown {
            subtype: head.subtype,
        },
    };
    Ok(CliFrame::ControlRequest {
        request_id: line.request_id,
        request,
    })
}

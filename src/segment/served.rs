//! What the CLI asks the tool server for.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::ids::ToolCallId;

/// What a message to the tool server asks for.
#[derive(Debug)]
pub(super) enum McpMethod {
    /// Anything but a call.
    Other,
    /// A call; `None` when it does not say which.
    Call(Option<ServedCall>),
}

/// A call that the tool server is asked for.
#[derive(Debug)]
pub(super) struct ServedCall {
    /// The id that the CLI sends along (I22).
    pub(super) id: ToolCallId,
    /// The tool's own name.
    pub(super) name: String,
    /// The input, verbatim.
    pub(super) arguments: String,
}

#[derive(Deserialize)]
struct McpHead {
    #[serde(default)]
    method: Option<String>,
    #[serde(default)]
    params: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
struct CallParams {
    name: String,
    #[serde(default)]
    arguments: Option<Box<RawValue>>,
    #[serde(rename = "_meta")]
    meta: CallMeta,
}

#[derive(Deserialize)]
struct CallMeta {
    #[serde(rename = "claudecode/toolUseId")]
    tool_use_id: String,
}

/// Reads whether a message is a call, and of what. What cannot be read counts as a call.
pub(super) fn method_of(message: &RawValue) -> McpMethod {
    let Ok(head) = serde_json::from_str::<McpHead>(message.get()) else {
        return McpMethod::Call(None);
    };
    if head.method.as_deref() != Some("tools/call") {
        return McpMethod::Other;
    }
    let call = head
        .params
        .and_then(|it| serde_json::from_str::<CallParams>(it.get()).ok())
        .and_then(|params| {
            Some(ServedCall {
                id: ToolCallId::new(params.meta.tool_use_id).ok()?,
                name: params.name,
                arguments: params
                    .arguments
                    .map_or_else(|| "{}".to_owned(), |it| Box::<str>::from(it).into()),
            })
        });
    McpMethod::Call(call)
}

//! The lines that the CLI is sent.

use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::{AgentSetup, ProtocolError};

/// One line for the CLI's input.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum HostFrame {
    /// The first line: with `--await-initialize` the CLI waits for it.
    Initialize {
        /// The id of the request.
        request_id: String,
        /// The callback that the CLI asks before each tool use.
        pre_tool_use_callback: String,
        /// The callback that the CLI asks after all calls of a reply have their results, and waits
        /// for before it asks the model again (spec/cli-protocol.md 17l); `None` for no such wait.
        post_tool_batch_callback: Option<String>,
        /// How long a callback may take, in seconds.
        hook_timeout_seconds: u32,
        /// The tool servers that run in this process.
        servers: Vec<ToolServerDeclaration>,
        /// What the options say.
        setup: AgentSetup,
    },
    /// A message of the user: one text block each.
    UserPrompt {
        /// The id that its transcript entry gets; `None` leaves it to the CLI.
        uuid: Option<String>,
        /// The texts, oldest first.
        blocks: Vec<String>,
    },
    /// Our decision about a tool use.
    Hook {
        /// The request that it answers.
        request_id: String,
        /// The decision.
        answer: HookAnswer,
    },
    /// The CLI may go on after a batch of calls. It decides about nothing, so it never answers a
    /// question about a tool use.
    GoOn {
        /// The request that it answers.
        request_id: String,
    },
    /// Our answer to a permission question.
    Permission {
        /// The request that it answers.
        request_id: String,
        /// The answer.
        answer: PermissionAnswer,
    },
    /// The answer of a tool server.
    Mcp {
        /// The request that it answers.
        request_id: String,
        /// The JSON-RPC response, verbatim.
        message: Box<RawValue>,
    },
    /// Stop the turn that runs (spec/cli-protocol.md 8).
    Interrupt {
        /// The id of the request.
        request_id: String,
    },
    /// A request that we refuse or do not know.
    Error {
        /// The request that it answers.
        request_id: String,
        /// Why.
        error: String,
    },
}

/// The name of a tool server that runs in this process.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(
    feature = "unstable",
    expect(
        clippy::exhaustive_structs,
        reason = "the CLI needs nothing but the name"
    )
)]
pub struct ToolServerDeclaration {
    /// Its name.
    pub name: String,
}

/// A decision about a tool use. Without `hookEventName` the CLI would ignore it
/// (spec/cli-protocol.md 0.4), so each one carries it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum HookAnswer {
    /// It runs, with this input if one is given.
    Allow {
        /// The final input, verbatim.
        updated_input: Option<Box<RawValue>>,
        /// What the model reads beside the result, behind a prefix of the CLI (measured on CLI 2.1.316
        /// and 2.1.332).
        additional_context: Option<String>,
    },
    /// It does not run; the model reads the reason behind a prefix of the CLI.
    Deny {
        /// Why, for the model.
        reason: String,
    },
    /// The CLI asks `can_use_tool`.
    Ask,
    /// The CLI ends the segment and keeps the call with the model's input: it passes over an
    /// `updatedInput` in the same answer (measured on CLI 2.1.316 and 2.1.332).
    Defer,
}

/// An answer to a permission question.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum PermissionAnswer {
    /// It runs with this input.
    Allow {
        /// The final input, verbatim.
        updated_input: Box<RawValue>,
    },
    /// It does not run; the model reads exactly this message.
    Deny {
        /// What the model reads.
        message: String,
    },
}

impl HostFrame {
    /// Writes the line, without its newline.
    ///
    /// # Errors
    /// [`ProtocolError::Unwritable`], never in practice: every part is JSON.
    pub fn encode(&self) -> Result<String, ProtocolError> {
        match self {
            Self::Initialize {
                request_id,
                pre_tool_use_callback,
                post_tool_batch_callback,
                hook_timeout_seconds,
                servers,
                setup,
            } => {
                let names: Vec<&str> = servers.iter().map(|it| it.name.as_str()).collect();
                let hook = |callback: &str| json!([{"hookCallbackIds": [callback], "timeout": hook_timeout_seconds}]);
                let mut hooks = json!({"PreToolUse": hook(pre_tool_use_callback)});
                if let Some(callback) = post_tool_batch_callback {
                    hooks["PostToolBatch"] = hook(callback);
                }
                let mut request = json!({
                    "subtype": "initialize",
                    "hooks": hooks,
                    "sdkMcpServers": names,
                });
                setup.add_to(&mut request);
                Ok(json!({
                    "type": "control_request",
                    "request_id": request_id,
                    "request": request,
                })
                .to_string())
            }
            Self::UserPrompt { uuid, blocks } => {
                let blocks: Vec<Value> = blocks
                    .iter()
                    .map(|text| json!({"type": "text", "text": text}))
                    .collect();
                let mut line = json!({
                    "type": "user",
                    "session_id": "",
                    "message": {"role": "user", "content": blocks},
                    "parent_tool_use_id": null,
                });
                if let Some(uuid) = uuid {
                    line["uuid"] = json!(uuid);
                }
                Ok(line.to_string())
            }
            Self::Hook { request_id, answer } => success(request_id, &answer.body()?),
            Self::GoOn { request_id } => success(
                request_id,
                &raw_object("hook", std::iter::empty::<(&str, &str)>())?,
            ),
            Self::Permission { request_id, answer } => success(request_id, &answer.body()?),
            Self::Mcp {
                request_id,
                message,
            } => success(
                request_id,
                &raw_object("mcp_response", [("mcp_response", message.get())])?,
            ),
            Self::Interrupt { request_id } => Ok(json!({
                "type": "control_request",
                "request_id": request_id,
                "request": {"subtype": "interrupt"},
            })
            .to_string()),
            Self::Error { request_id, error } => Ok(json!({
                "type": "control_response",
                "response": {"subtype": "error", "request_id": request_id, "error": error},
            })
            .to_string()),
        }
    }
}

impl HookAnswer {
    fn body(&self) -> Result<Box<RawValue>, ProtocolError> {
        let event = json!("PreToolUse").to_string();
        let (decision, extra) = match self {
            Self::Allow {
                updated_input,
                additional_context,
            } => {
                let input = updated_input.as_ref().map(|it| it.get().to_owned());
                let context = additional_context.as_ref().map(|it| json!(it).to_string());
                let fields = [("updatedInput", input), ("additionalContext", context)];
                ("allow", fields.to_vec())
            }
            Self::Deny { reason } => {
                let reason = json!(reason).to_string();
                ("deny", vec![("permissionDecisionReason", Some(reason))])
            }
            Self::Ask => ("ask", Vec::new()),
            Self::Defer => ("defer", Vec::new()),
        };
        let decision = json!(decision).to_string();
        let mut fields = vec![
            ("hookEventName", event.as_str()),
            ("permissionDecision", decision.as_str()),
        ];
        fields.extend((extra.iter()).filter_map(|(name, value)| Some((*name, value.as_deref()?))));
        let output = raw_object("hook", fields)?;
        raw_object("hook", [("hookSpecificOutput", output.get())])
    }
}

impl PermissionAnswer {
    fn body(&self) -> Result<Box<RawValue>, ProtocolError> {
        match self {
            Self::Allow { updated_input } => raw_object(
                "permission",
                [
                    ("behavior", "\"allow\""),
                    ("updatedInput", updated_input.get()),
                ],
            ),
            Self::Deny { message } => raw_object(
                "permission",
                [
                    ("behavior", "\"deny\""),
                    ("message", json!(message).to_string().as_str()),
                ],
            ),
        }
    }
}

fn success(request_id: &str, response: &RawValue) -> Result<String, ProtocolError> {
    let id = json!(request_id).to_string();
    let body = raw_object(
        "control_response",
        [
            ("subtype", "\"success\""),
            ("request_id", id.as_str()),
            ("response", response.get()),
        ],
    )?;
    let line = raw_object(
        "control_response",
        [("type", "\"control_response\""), ("response", body.get())],
    )?;
    Ok(Box::<str>::from(line).into())
}

/// Joins JSON texts to an object, so that inputs pass through byte for byte (G4, G11).
fn raw_object<'a>(
    kind: &'static str,
    fields: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Result<Box<RawValue>, ProtocolError> {
    let mut text = String::from("{");
    for (name, value) in fields {
        if text.len() > 1 {
            text.push(',');
        }
        text.push_str(&json!(name).to_string());
        text.push(':');
        text.push_str(value);
    }
    text.push('}');
    RawValue::from_string(text).map_err(|_| ProtocolError::Unwritable { kind })
}

//! The custom tool server: MCP by rmcp over the CLI's control messages. It serves only what the
//! gate permitted (L20, I23).

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, CancelledNotificationParam,
    ClientJsonRpcMessage, ClientNotification, ContentBlock, ErrorData, GetExtensions as _,
    Implementation, InitializeResult, JsonObject, JsonRpcMessage, ListToolsResult,
    PaginatedRequestParams, RequestId, ServerCapabilities, ServerJsonRpcMessage, Tool,
    ToolAnnotations,
};
use rmcp::service::{RequestContext, RunningService, serve_directly};
use rmcp::transport::Transport;
use rmcp::{RoleServer, ServerHandler};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tracing::{Instrument as _, Span};

use crate::ids::{SessionId, ToolCallId, TurnId};
use crate::segment::{McpPermit, cut_result};
use crate::tool::{CustomTool, ToolContext, ToolEnd, run_guarded};

/// What one tool server offers, and for whom.
#[derive(Debug)]
pub(super) struct ServedTools {
    pub(super) server_name: String,
    pub(super) tools: BTreeMap<String, CustomTool>,
    /// A tool that is no longer defined and whose recorded call is resumed: the CLI answers the
    /// call only when the tool is listed.
    pub(super) replay_only: Option<String>,
    pub(super) session_id: SessionId,
}

/// A permit with the turn and the span that it was given in.
#[derive(Debug, Clone)]
struct Permitted {
    permit: McpPermit,
    turn_id: TurnId,
    span: Span,
}

/// The tool server of one CLI process. Created by [`ToolServer::start`]; dropping it cancels what
/// it runs.
pub(super) struct ToolServer {
    inbound: mpsc::UnboundedSender<ClientJsonRpcMessage>,
    outbound: mpsc::UnboundedReceiver<ServerJsonRpcMessage>,
    // The CLI's request for each JSON-RPC request that rmcp has not answered.
    waiting: HashMap<RequestId, String>,
    // Answers that need no rmcp.
    ready: VecDeque<McpReply>,
    turn_id: TurnId,
    _service: JoinHandle<RunningService<RoleServer, Handler>>,
}

/// The answer to one message of the CLI.
#[derive(Debug)]
pub(super) struct McpReply {
    /// The CLI's request.
    pub(super) request_id: String,
    /// The JSON-RPC response; `None` when there is none.
    pub(super) message: Option<Box<RawValue>>,
}

impl ToolServer {
    /// Starts a server. Must be called inside a tokio runtime.
    pub(super) fn start(served: ServedTools, turn_id: TurnId) -> Self {
        let (inbound, from_cli) = mpsc::unbounded_channel();
        let (to_cli, outbound) = mpsc::unbounded_channel();
        let bridge = Bridge {
            inbound: from_cli,
            outbound: to_cli,
        };
        // Without waiting for the handshake: the CLI sends it, and rmcp answers it, like any request.
        // In a task of its own, which is in no span: rmcp keeps the span that it was started in for as
        // long as it serves, and the process may outlive the attempt that started it by far.
        let service = async { serve_directly(Handler(Arc::new(served)), bridge, None) };
        Self {
            inbound,
            outbound,
            waiting: HashMap::new(),
            ready: VecDeque::new(),
            turn_id,
            _service: tokio::spawn(service),
        }
    }

    /// From here on calls belong to this turn.
    pub(super) const fn serve_turn(&mut self, turn_id: TurnId) {
        self.turn_id = turn_id;
    }

    /// Takes one message of the CLI, with what may be done about it.
    pub(super) fn serve(&mut self, request_id: String, message: &RawValue, permit: McpPermit) {
        let Ok(mut message) = serde_json::from_str::<ClientJsonRpcMessage>(message.get()) else {
            self.answer(
                request_id,
                &json!({"jsonrpc": "2.0", "id": id_of(message), "error": {
                    "code": -32600, "message": "the message is no request of this protocol"}}),
            );
            return;
        };
        match &mut message {
            JsonRpcMessage::Request(request) => {
                if self.waiting.contains_key(&request.id) {
                    let error = json!({"jsonrpc": "2.0", "id": request.id, "error": {
                        "code": -32600, "message": "a request with this id is not answered yet"}});
                    self.answer(request_id, &error);
                    return;
                }
                // The permit travels with its request, so that nothing can take another's.
                let turn_id = self.turn_id;
                let span = Span::current();
                let permitted = Permitted {
                    permit,
                    turn_id,
                    span,
                };
                request.request.extensions_mut().insert(permitted);
                self.waiting.insert(request.id.clone(), request_id.clone());
            }
            JsonRpcMessage::Notification(notification) => {
                if let ClientNotification::CancelledNotification(cancelled) =
                    &notification.notification
                {
                    self.forget(&cancelled.params);
                }
                // A notification has no response; the CLI's request has one, whatever it holds.
                self.answer(
                    request_id.clone(),
                    &json!({"jsonrpc": "2.0", "id": 0, "result": {}}),
                );
            }
            JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_) => {
                self.answer(
                    request_id.clone(),
                    &json!({"jsonrpc": "2.0", "id": 0, "result": {}}),
                );
            }
        }
        if self.inbound.send(message).is_err() {
            self.waiting.retain(|_, it| *it != request_id);
            self.ready.push_back(McpReply {
                request_id,
                message: None,
            });
        }
    }

    /// Cancels what runs for a request of the CLI; its reply is dropped.
    pub(super) fn cancel(&mut self, request_id: &str) {
        let Some(id) = self
            .waiting
            .iter()
            .find(|(_, it)| *it == request_id)
            .map(|(id, _)| id.clone())
        else {
            return;
        };
        self.waiting.remove(&id);
        let cancelled = CancelledNotificationParam::new(Some(id), None);
        // A server that is gone runs nothing.
        let _ = self.inbound.send(ClientJsonRpcMessage::notification(
            ClientNotification::CancelledNotification(rmcp::model::Notification::new(cancelled)),
        ));
    }

    /// Returns the next answer; never, when nothing is asked.
    ///
    /// # Cancel safety
    /// A dropped call loses nothing.
    pub(super) async fn next_reply(&mut self) -> McpReply {
        loop {
            if let Some(reply) = self.ready.pop_front() {
                return reply;
            }
            let Some(message) = self.outbound.recv().await else {
                let Some(id) = self.waiting.keys().next().cloned() else {
                    return std::future::pending().await;
                };
                let request_id = self.waiting.remove(&id).unwrap_or_default();
                return McpReply {
                    request_id,
                    message: None,
                };
            };
            let id = match &message {
                JsonRpcMessage::Response(response) => Some(&response.id),
                JsonRpcMessage::Error(error) => error.id.as_ref(),
                // What the server says unasked is for nobody: the CLI takes answers only.
                JsonRpcMessage::Request(_) | JsonRpcMessage::Notification(_) => None,
            };
            if let Some(request_id) = id.and_then(|id| self.waiting.remove(id)) {
                return McpReply {
                    request_id,
                    message: serde_json::value::to_raw_value(&message).ok(),
                };
            }
        }
    }

    /// A call that the CLI cancelled gets no response from rmcp, and the CLI's request needs one.
    fn forget(&mut self, cancelled: &CancelledNotificationParam) {
        let Some(id) = &cancelled.request_id else {
            return;
        };
        if let Some(request_id) = self.waiting.remove(id) {
            let error = json!({"jsonrpc": "2.0", "id": id, "error": {
                "code": -32800, "message": "the request was cancelled"}});
            self.answer(request_id, &error);
        }
    }

    fn answer(&mut self, request_id: String, message: &Value) {
        self.ready.push_back(McpReply {
            request_id,
            message: serde_json::value::to_raw_value(message).ok(),
        });
    }
}

fn id_of(message: &RawValue) -> Value {
    #[derive(Deserialize)]
    struct Request {
        #[serde(default)]
        id: Value,
    }
    // The id alone: what made the message unreadable may be anywhere else in it.
    serde_json::from_str::<Request>(message.get()).map_or(Value::Null, |it| it.id)
}

/// The two ends of rmcp's transport.
struct Bridge {
    inbound: mpsc::UnboundedReceiver<ClientJsonRpcMessage>,
    outbound: mpsc::UnboundedSender<ServerJsonRpcMessage>,
}

#[derive(Debug, thiserror::Error)]
#[error("the segment is over")]
struct BridgeClosed;

impl Transport<RoleServer> for Bridge {
    type Error = BridgeClosed;

    fn send(
        &mut self,
        message: ServerJsonRpcMessage,
    ) -> impl Future<Output = Result<(), BridgeClosed>> + Send + 'static {
        std::future::ready(self.outbound.send(message).map_err(|_| BridgeClosed))
    }

    async fn receive(&mut self) -> Option<ClientJsonRpcMessage> {
        self.inbound.recv().await
    }

    async fn close(&mut self) -> Result<(), BridgeClosed> {
        self.inbound.close();
        Ok(())
    }
}

#[derive(Debug, Clone)]
struct Handler(Arc<ServedTools>);

impl ServerHandler for Handler {
    fn get_info(&self) -> InitializeResult {
        InitializeResult::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new(
                &self.0.server_name,
                env!("CARGO_PKG_VERSION"),
            ))
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let replay_only = self.0.replay_only.iter().map(|name| {
            let schema = Arc::new(JsonObject::from_iter([(
                "type".to_owned(),
                json!("object"),
            )]));
            Tool::new(name.clone(), "This tool is not offered now.", schema)
        });
        Ok(ListToolsResult::with_all_items(
            self.0
                .tools
                .values()
                .map(listed)
                .chain(replay_only)
                .collect(),
        ))
    }

    async fn call_tool(
        &self,
        _: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let permitted = context.extensions.get::<Permitted>();
        let result = match permitted.map(|it| (&it.permit, it)) {
            Some((
                McpPermit::Run {
                    tool_call_id,
                    tool_name,
                    arguments,
                },
                given,
            )) => {
                let run = self.run(given.turn_id, tool_call_id.clone(), tool_name, arguments);
                tokio::select! {
                    result = run.instrument(given.span.clone()) => result,
                    // The reply goes nowhere: dropping the handler is what counts.
                    () = context.ct.cancelled() => error("the call was cancelled"),
                }
            }
            Some((McpPermit::Replay { text, is_error }, _)) => result(text, *is_error),
            Some((McpPermit::Refuse | McpPermit::Protocol, _)) | None => {
                error("the call did not run: it was not permitted")
            }
        };
        Ok(result.into())
    }
}

impl Handler {
    async fn run(
        &self,
        turn_id: TurnId,
        tool_call_id: ToolCallId,
        tool_name: &str,
        arguments: &str,
    ) -> CallToolResult {
        let Some(tool) = self.0.tools.get(tool_name) else {
            return error("the call did not run: there is no such tool");
        };
        let context = ToolContext::inline(self.0.session_id.clone(), turn_id, tool_call_id);
        match run_guarded(tool, arguments, context).await {
            ToolEnd::Output(output) => result(&output.text, output.is_error),
            ToolEnd::Failed(text) | ToolEnd::InvalidArguments(text) => error(&text),
            ToolEnd::AttemptFailed(source) => {
                tracing::warn!(tool = tool_name, error = %source, "an inline call failed");
                error("the tool failed")
            }
            ToolEnd::Panicked => {
                tracing::warn!(tool = tool_name, "an inline call panicked");
                error("the tool failed")
            }
            ToolEnd::DeadlineExceeded => error("the tool did not answer in time"),
        }
    }
}

fn result(text: &str, is_error: bool) -> CallToolResult {
    let content = vec![ContentBlock::text(cut_result(text).into_owned())];
    if is_error {
        CallToolResult::error(content)
    } else {
        CallToolResult::success(content)
    }
}

fn error(text: &str) -> CallToolResult {
    result(text, true)
}

fn listed(tool: &CustomTool) -> Tool {
    let schema = match tool.input_schema() {
        Value::Object(schema) => schema.clone(),
        // A schema that accepts anything, as the API needs an object.
        _ => JsonObject::from_iter([("type".to_owned(), json!("object"))]),
    };
    let hints = tool.annotations();
    let annotations = ToolAnnotations::new()
        .read_only(hints.read_only)
        .idempotent(hints.idempotent)
        .destructive(hints.destructive)
        .open_world(hints.open_world);
    Tool::new(
        tool.name().to_owned(),
        tool.description().to_owned(),
        Arc::new(schema),
    )
    .with_annotations(annotations)
}

impl std::fmt::Debug for ToolServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ToolServer").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;

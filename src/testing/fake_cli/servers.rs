//! The MCP servers of the host, spoken to over control messages (spec/cli-protocol.md 7).

use serde_json::{Value, json};

use super::inbound::Open;
use super::{FakeCli, frames};

/// One SDK server.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) name: String,
    pub(super) is_declared_by_flag: bool,
    pub(super) state: ServerState,
}

#[derive(Debug)]
pub(super) enum ServerState {
    Connecting,
    Connected { tools: Vec<ServerTool> },
    Failed,
}

#[derive(Debug, Clone)]
pub(super) struct ServerTool {
    pub(super) name: String,
    pub(super) is_read_only: bool,
}

/// The requests of a handshake, in order.
#[derive(Debug, Clone, Copy)]
pub(super) enum HandshakeStep {
    Initialize,
    Initialized,
    ListTools,
}

impl FakeCli {
    /// Starts to connect the servers of the flags and of the `initialize` request.
    pub(super) fn connect_servers(&mut self, request: &Value) {
        for name in self.arguments.sdk_servers.clone() {
            self.servers.push(Server {
                name,
                is_declared_by_flag: true,
                state: ServerState::Connecting,
            });
        }
        for name in request["sdkMcpServers"].as_array().into_iter().flatten() {
            let Some(name) = name.as_str() else { continue };
            if self.servers.iter().any(|it| it.name == name) {
                continue;
            }
            // With a manifest and without the flag there is no round trip
            // (capture `manifest_without_mcp_flag`).
            let manifest = &request["sdkMcpServerManifests"][name]["toolsListResult"];
            let state = if manifest.is_object() {
                ServerState::Connected {
                    tools: read_tools(manifest),
                }
            } else {
                ServerState::Connecting
            };
            self.servers.push(Server {
                name: name.to_owned(),
                is_declared_by_flag: false,
                state,
            });
        }
        for index in 0..self.servers.len() {
            if matches!(self.servers[index].state, ServerState::Connecting) {
                self.send_handshake(index, HandshakeStep::Initialize);
            }
        }
    }

    pub(super) fn is_connected(&self) -> bool {
        self.input_closed
            || self
                .servers
                .iter()
                .all(|it| !matches!(it.state, ServerState::Connecting))
    }

    pub(super) fn handle_handshake(
        &mut self,
        server: usize,
        step: HandshakeStep,
        answer: Result<Value, String>,
    ) {
        let result = answer.map(|it| it["mcp_response"]["result"].clone());
        match (step, result) {
            (HandshakeStep::Initialize, Ok(result)) if result.is_object() => {
                self.send_handshake(server, HandshakeStep::Initialized);
            }
            (HandshakeStep::Initialized, _) => {
                self.send_handshake(server, HandshakeStep::ListTools);
            }
            (HandshakeStep::ListTools, Ok(result)) if result["tools"].is_array() => {
                self.servers[server].state = ServerState::Connected {
                    tools: read_tools(&result),
                };
            }
            (HandshakeStep::Initialize | HandshakeStep::ListTools, Ok(_) | Err(_)) => {
                self.servers[server].state = ServerState::Failed;
            }
        }
    }

    /// Returns the tool of a connected server by its full name.
    pub(super) fn server_tool(&self, full_name: &str) -> Option<(&Server, &ServerTool)> {
        let (server, tool) = frames::split_mcp(full_name)?;
        let server = self.servers.iter().find(|it| it.name == server)?;
        match &server.state {
            ServerState::Connected { tools } => tools
                .iter()
                .find(|it| it.name == tool)
                .map(|it| (server, it)),
            ServerState::Connecting | ServerState::Failed => None,
        }
    }

    /// Returns the full names of all tools of the servers.
    pub(super) fn server_tools(&self) -> Vec<String> {
        let mut names = Vec::new();
        for server in &self.servers {
            match &server.state {
                ServerState::Connected { tools } => names.extend(
                    tools
                        .iter()
                        .map(|it| format!("mcp__{}__{}", server.name, it.name)),
                ),
                ServerState::Connecting | ServerState::Failed => {}
            }
        }
        names.sort();
        names
    }

    pub(super) fn server_statuses(&self) -> Vec<Value> {
        let status = |it: &Server| match it.state {
            ServerState::Connecting => "pending",
            ServerState::Connected { .. } => "connected",
            ServerState::Failed => "failed",
        };
        self.servers
            .iter()
            .map(|it| json!({"name": it.name, "status": status(it), "source": "sdk"}))
            .collect()
    }

    /// Sends a JSON-RPC message to a server.
    pub(super) fn send_mcp(&mut self, server: &str, message: &Value, open: Open) -> String {
        self.send_request(
            json!({"subtype": "mcp_message", "server_name": server, "message": message}),
            open,
        )
    }

    fn send_handshake(&mut self, index: usize, step: HandshakeStep) {
        let message = match step {
            HandshakeStep::Initialize => frames::mcp_initialize(),
            HandshakeStep::Initialized => {
                json!({"jsonrpc": "2.0", "method": "notifications/initialized"})
            }
            HandshakeStep::ListTools => json!({"method": "tools/list", "jsonrpc": "2.0", "id": 1}),
        };
        let name = self.servers[index].name.clone();
        self.send_mcp(
            &name,
            &message,
            Open::Handshake {
                server: index,
                step,
            },
        );
    }
}

fn read_tools(list: &Value) -> Vec<ServerTool> {
    list["tools"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|it| {
            Some(ServerTool {
                name: it["name"].as_str()?.to_owned(),
                is_read_only: it["annotations"]["readOnlyHint"] == true,
            })
        })
        .collect()
}

//! The tool servers of one CLI process, as the file that `--mcp-config` names.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Map, Value, json};

/// A tool server outside of this process, which the CLI itself starts or calls. Created by the
/// application.
///
/// Its tools are named `mcp__<server>__<tool>` and treated as tools inside the CLI. The CLI puts
/// variables of its environment in the place of `${NAME}` in every text here. The texts may hold
/// keys: they reach the CLI in a file of mode 0600, and are not shown.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum McpServer {
    /// A program that the CLI starts. Its arguments can be read by every user of the machine.
    Stdio {
        /// The program.
        command: String,
        /// Its arguments.
        arguments: Vec<String>,
        /// Variables that it gets besides those of the CLI.
        environment: BTreeMap<String, String>,
    },
    /// A server with streamable HTTP.
    Http {
        /// Where it is.
        url: String,
        /// What goes with each request.
        headers: BTreeMap<String, String>,
    },
    /// A server with the older HTTP and server-sent events.
    Sse {
        /// Where it is.
        url: String,
        /// What goes with each request.
        headers: BTreeMap<String, String>,
    },
}

impl fmt::Debug for McpServer {
    /// Shows names only: values may be keys (G10).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdio {
                command,
                environment,
                arguments: _,
            } => f
                .debug_struct("Stdio")
                .field("command", command)
                .field("environment", &environment.keys())
                .finish_non_exhaustive(),
            Self::Http { headers, url: _ } => f
                .debug_struct("Http")
                .field("headers", &headers.keys())
                .finish_non_exhaustive(),
            Self::Sse { headers, url: _ } => f
                .debug_struct("Sse")
                .field("headers", &headers.keys())
                .finish_non_exhaustive(),
        }
    }
}

impl McpServer {
    fn entry(&self) -> Value {
        match self {
            Self::Stdio {
                command,
                arguments,
                environment,
            } => {
                json!({"type": "stdio", "command": command, "args": arguments, "env": environment})
            }
            Self::Http { url, headers } => json!({"type": "http", "url": url, "headers": headers}),
            Self::Sse { url, headers } => json!({"type": "sse", "url": url, "headers": headers}),
        }
    }
}

/// Returns the text of the file for `--mcp-config`: our own server and the others.
#[must_use]
pub fn mcp_config(own: &str, others: &BTreeMap<String, McpServer>) -> String {
    let mut servers: Map<String, Value> = others
        .iter()
        .map(|(name, server)| (name.clone(), server.entry()))
        .collect();
    // A resumed call starts before `initialize` is read, so our server stands here too. Always
    // loaded: next to ToolSearch the CLI would hide its tools (spec/cli-protocol.md 7).
    let own_entry = json!({"type": "sdk", "name": own, "alwaysLoad": true});
    servers.insert(own.to_owned(), own_entry);
    json!({ "mcpServers": servers }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(name: &str, value: &str) -> BTreeMap<String, String> {
        BTreeMap::from([(name.to_owned(), value.to_owned())])
    }

    /// D03, D04: the file declares our server as `sdk`, and the others as they are.
    #[test]
    fn the_file_of_servers_holds_ours_and_the_others() {
        let others = BTreeMap::from([
            (
                "files".to_owned(),
                McpServer::Stdio {
                    command: "/bin/files".to_owned(),
                    arguments: vec!["-x".to_owned()],
                    environment: one("KEY", "k"),
                },
            ),
            (
                "web".to_owned(),
                McpServer::Http {
                    url: "https://web".to_owned(),
                    headers: one("Authorization", "Bearer k"),
                },
            ),
            (
                "old".to_owned(),
                McpServer::Sse {
                    url: "https://old".to_owned(),
                    headers: BTreeMap::new(),
                },
            ),
        ]);
        let read: Value = serde_json::from_str(&mcp_config("tools", &others)).unwrap();
        assert_eq!(
            read,
            json!({"mcpServers": {
                "files": {"type": "stdio", "command": "/bin/files", "args": ["-x"], "env": {"KEY": "k"}},
                "web": {"type": "http", "url": "https://web", "headers": {"Authorization": "Bearer k"}},
                "old": {"type": "sse", "url": "https://old", "headers": {}},
                "tools": {"type": "sdk", "name": "tools", "alwaysLoad": true},
            }})
        );
    }

    /// G10: keys are not shown.
    #[test]
    fn servers_show_names_only() {
        let web = McpServer::Http {
            url: "https://web/?key=k".to_owned(),
            headers: one("Authorization", "Bearer k"),
        };
        assert_eq!(
            format!("{web:?}"),
            r#"Http { headers: ["Authorization"], .. }"#
        );
        let files = McpServer::Stdio {
            command: "files".to_owned(),
            arguments: vec!["k".to_owned()],
            environment: one("KEY", "k"),
        };
        assert_eq!(
            format!("{files:?}"),
            r#"Stdio { command: "files", environment: ["KEY"], .. }"#
        );
    }
}

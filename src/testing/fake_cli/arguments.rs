//! The command line, as the real CLI reads it (spec/cli-protocol.md 1).

use std::collections::BTreeMap;

use serde_json::Value;

/// The command line of one process, read.
#[derive(Debug, Clone, Default)]
pub(super) struct Arguments {
    pub(super) model: Option<String>,
    pub(super) resume: Option<String>,
    pub(super) session_id: Option<String>,
    pub(super) permission_mode: Option<String>,
    /// `None`: all built-ins.
    pub(super) tools: Option<Vec<String>>,
    pub(super) allowed_tools: Vec<String>,
    pub(super) max_turns: Option<u64>,
    pub(super) asks_host: bool,
    pub(super) has_mirror: bool,
    pub(super) has_partial_messages: bool,
    pub(super) awaits_initialize: bool,
    /// The names of the servers that the flags declare as `sdk`, merged.
    pub(super) sdk_servers: Vec<String>,
    /// What the real CLI would have refused or done otherwise; it ends in the violations.
    pub(super) violations: Vec<String>,
}

const FLAGS: [&str; 14] = [
    "verbose",
    "session-mirror",
    "include-partial-messages",
    "await-initialize",
    "strict-mcp-config",
    "include-hook-events",
    "no-session-persistence",
    "fork-session",
    "print",
    "debug",
    "disable-slash-commands",
    "exclude-dynamic-system-prompt-sections",
    "no-chrome",
    "restricted",
];

const VALUED: [&str; 35] = [
    "output-format",
    "input-format",
    "model",
    "permission-prompt-tool",
    "permission-mode",
    "resume",
    "session-id",
    "resume-session-at",
    "tools",
    "allowedTools",
    "allowed-tools",
    "disallowedTools",
    "disallowed-tools",
    "setting-sources",
    "settings",
    "mcp-config",
    "max-turns",
    "max-budget-usd",
    "max-thinking-tokens",
    "json-schema",
    "effort",
    "fallback-model",
    "add-dir",
    "agents",
    "betas",
    "plugin-dir",
    "system-prompt",
    "append-system-prompt",
    "append-subagent-system-prompt",
    "autocompact",
    "system-prompt-snapshot",
    "task-budget",
    "thinking",
    "thinking-display",
    "workload",
];

impl Arguments {
    /// Reads the arguments; `files` holds the files that `--mcp-config` may name.
    ///
    /// # Errors
    /// The line that the real CLI writes to stderr before it exits with 1.
    pub(super) fn read(
        arguments: &[String],
        files: &BTreeMap<String, String>,
    ) -> Result<Self, String> {
        let mut read = Self::default();
        let mut seen: BTreeMap<&str, &str> = BTreeMap::new();
        let mut rest = arguments.iter().map(String::as_str);
        while let Some(argument) = rest.next() {
            let Some(option) = argument.strip_prefix("--") else {
                if argument == "-p" {
                    continue;
                }
                return Err(format!("error: unexpected argument '{argument}'"));
            };
            let (name, inline) = match option.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (option, None),
            };
            if FLAGS.contains(&name) {
                seen.insert(name, "");
                continue;
            }
            if !VALUED.contains(&name) {
                return Err(format!("error: unknown option '--{name}'"));
            }
            let Some(value) = inline.or_else(|| rest.next()) else {
                return Err(format!("error: option '--{name} <value>' argument missing"));
            };
            if name == "mcp-config" {
                read.add_servers(value, files)?;
            }
            seen.insert(name, value);
        }
        read.fill(&seen);
        Ok(read)
    }

    fn fill(&mut self, seen: &BTreeMap<&str, &str>) {
        let value = |name: &str| seen.get(name).map(|it| (*it).to_owned());
        let list = |name: &str| -> Option<Vec<String>> {
            seen.get(name).map(|it| {
                it.split(',')
                    .filter(|it| !it.is_empty())
                    .map(str::to_owned)
                    .collect()
            })
        };
        self.model = value("model");
        self.resume = value("resume");
        self.session_id = value("session-id");
        self.permission_mode = value("permission-mode");
        self.tools = list("tools");
        self.allowed_tools = list("allowedTools")
            .or_else(|| list("allowed-tools"))
            .unwrap_or_default();
        self.max_turns = seen.get("max-turns").and_then(|it| it.parse().ok());
        self.asks_host = seen.get("permission-prompt-tool") == Some(&"stdio");
        self.has_mirror = seen.contains_key("session-mirror");
        self.has_partial_messages = seen.contains_key("include-partial-messages");
        self.awaits_initialize = seen.contains_key("await-initialize");
        for name in ["output-format", "input-format"] {
            if seen.get(name) != Some(&"stream-json") {
                self.violations
                    .push(format!("--{name} stream-json is missing"));
            }
        }
        if !seen.contains_key("verbose") {
            self.violations.push("--verbose is missing".to_owned());
        }
    }

    fn add_servers(&mut self, text: &str, files: &BTreeMap<String, String>) -> Result<(), String> {
        let text = if text.trim_start().starts_with('{') {
            text
        } else {
            files
                .get(text)
                .ok_or_else(|| format!("Error: MCP config file not found: {text}"))?
        };
        let config: Value = serde_json::from_str(text)
            .map_err(|_| "Error: Invalid MCP configuration: not JSON".to_owned())?;
        let servers = config["mcpServers"]
            .as_object()
            .ok_or_else(|| "Error: Invalid MCP configuration: mcpServers is missing".to_owned())?;
        for (name, server) in servers {
            if server["type"] == "sdk" && !self.sdk_servers.contains(name) {
                self.sdk_servers.push(name.clone());
            }
        }
        Ok(())
    }
}

/// Returns the paths that `--mcp-config` names, for whoever has to read them.
#[must_use]
pub fn mcp_config_paths(arguments: &[String]) -> Vec<String> {
    let mut paths = Vec::new();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let value = match argument.strip_prefix("--mcp-config") {
            Some("") => rest.next().map(String::as_str),
            Some(inline) => inline.strip_prefix('='),
            None => None,
        };
        if let Some(value) = value.filter(|it| !it.trim_start().starts_with('{')) {
            paths.push(value.to_owned());
        }
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(arguments: &[&str]) -> Result<Arguments, String> {
        let arguments: Vec<String> = arguments.iter().map(|it| (*it).to_owned()).collect();
        let files = BTreeMap::from([(
            "/run/mcp.json".to_owned(),
            r#"{"mcpServers":{"more":{"type":"sdk","name":"more"}}}"#.to_owned(),
        )]);
        Arguments::read(&arguments, &files)
    }

    /// M02: each `--mcp-config` counts, inline or as a file.
    #[test]
    fn every_mcp_config_is_merged() {
        let read = read(&[
            "--output-format",
            "stream-json",
            "--input-format=stream-json",
            "--verbose",
            "--mcp-config",
            r#"{"mcpServers":{"tools":{"type":"sdk","name":"tools"},"web":{"type":"http"}}}"#,
            "--mcp-config=/run/mcp.json",
            "--tools=",
        ])
        .unwrap();
        assert_eq!(read.sdk_servers, ["tools", "more"]);
        assert_eq!(read.tools, Some(Vec::new()));
        assert_eq!(read.violations, Vec::<String>::new());
    }

    /// spec/cli-protocol.md 1, capture `noise`.
    #[test]
    fn an_unknown_option_is_the_real_clis_error() {
        assert_eq!(
            read(&["--no-such-flag"]).unwrap_err(),
            "error: unknown option '--no-such-flag'"
        );
        assert_eq!(
            read(&["--mcp-config=/absent"]).unwrap_err(),
            "Error: MCP config file not found: /absent"
        );
    }
}

//! The argument vector of one CLI process (spec/cli-protocol.md 1).

use serde_json::{Map, Value, json};

use crate::ids::ClaudeSessionId;

/// What one CLI process is started with, apart from its environment. Never a secret (G10), and
/// nothing long: one argument over 128 KiB is refused by Linux, so prompts go into `initialize`.
#[derive(Debug, Clone, Default)]
#[cfg_attr(
    feature = "unstable",
    expect(
        clippy::exhaustive_structs,
        reason = "plain data that the runner fills in"
    )
)]
pub struct Launch {
    /// The model; `None` leaves it to the CLI.
    pub model: Option<String>,
    /// The built-in tools; empty for none.
    pub tools: Vec<String>,
    /// What the CLI does with calls that no hook decides.
    pub permission_mode: PermissionMode,
    /// How many replies a turn may have.
    pub max_turns: Option<u32>,
    /// What one process may cost, in US dollars.
    pub max_budget_usd: Option<f64>,
    /// The tool servers that run in this process, by name.
    pub servers: Vec<String>,
    /// The Claude session that goes on.
    pub resume: Option<ClaudeSessionId>,
}

/// The permission modes in which a call that is not decided never runs unasked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum PermissionMode {
    /// The CLI asks `can_use_tool`.
    #[default]
    Default,
    /// The CLI denies.
    DontAsk,
}

impl PermissionMode {
    const fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::DontAsk => "dontAsk",
        }
    }
}

impl Launch {
    /// Returns the arguments after the program's name.
    #[must_use]
    pub fn arguments(&self) -> Vec<String> {
        // Values of users go behind `=`: as a word of its own, `-x` would be read as an option.
        let mut arguments: Vec<String> = [
            "--output-format",
            "stream-json",
            "--verbose",
            "--input-format",
            "stream-json",
            "--permission-prompt-tool=stdio",
            "--setting-sources=",
            "--include-partial-messages",
            "--session-mirror",
            // Without it a resumed call may skip its hook (spec/cli-protocol.md 0.2).
            "--await-initialize",
        ]
        .map(str::to_owned)
        .into();
        arguments.push(format!("--permission-mode={}", self.permission_mode.name()));
        arguments.push(format!("--tools={}", self.tools.join(",")));
        if let Some(model) = &self.model {
            arguments.push(format!("--model={model}"));
        }
        if let Some(turns) = self.max_turns {
            arguments.push(format!("--max-turns={turns}"));
        }
        if let Some(budget) = self.max_budget_usd {
            arguments.push(format!("--max-budget-usd={budget}"));
        }
        if !self.servers.is_empty() {
            // A resumed call starts before `initialize` is read, so its server stands here too.
            // Always loaded: next to ToolSearch the CLI would hide the tools (7).
            let servers: Map<String, Value> = self
                .servers
                .iter()
                .map(|name| {
                    let entry = json!({"type": "sdk", "name": name, "alwaysLoad": true});
                    (name.clone(), entry)
                })
                .collect();
            arguments.push("--mcp-config".to_owned());
            arguments.push(json!({ "mcpServers": servers }).to_string());
        }
        if let Some(session) = &self.resume {
            arguments.push(format!("--resume={session}"));
        }
        arguments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// G5, K08: what holds calls back is there in every process, and user values stay values.
    #[test]
    fn a_resumed_process_gets_every_flag_that_we_own() {
        let launch = Launch {
            model: Some("--danger".to_owned()),
            tools: vec!["Bash".to_owned(), "Read".to_owned()],
            permission_mode: PermissionMode::DontAsk,
            max_turns: Some(3),
            max_budget_usd: Some(0.5),
            servers: vec!["tools".to_owned()],
            resume: Some(ClaudeSessionId::new("c-1").unwrap()),
        };
        assert_eq!(
            launch.arguments(),
            [
                "--output-format",
                "stream-json",
                "--verbose",
                "--input-format",
                "stream-json",
                "--permission-prompt-tool=stdio",
                "--setting-sources=",
                "--include-partial-messages",
                "--session-mirror",
                "--await-initialize",
                "--permission-mode=dontAsk",
                "--tools=Bash,Read",
                "--model=--danger",
                "--max-turns=3",
                "--max-budget-usd=0.5",
                "--mcp-config",
                r#"{"mcpServers":{"tools":{"alwaysLoad":true,"name":"tools","type":"sdk"}}}"#,
                "--resume=c-1",
            ]
        );
    }

    /// A plain process has no built-in tools unless they are asked for.
    #[test]
    fn no_tools_is_said_and_not_left_out() {
        let arguments = Launch::default().arguments();
        assert!(arguments.contains(&"--tools=".to_owned()));
        assert!(!arguments.contains(&"--mcp-config".to_owned()));
    }
}

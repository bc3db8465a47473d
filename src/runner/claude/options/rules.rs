//! The CLI's rules for tools, and its options that are refused or let through.

use super::PermissionMode;
use crate::definition::OptionError;

/// What a rule such as `Bash(git *)` or `mcp__web__search` is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rule<'a> {
    /// A pattern that may mean any tool.
    Everything,
    /// A tool of Claude Code, perhaps for some inputs only.
    Tool(&'a str),
    /// All tools of a server, or those that a pattern means.
    Server(&'a str),
    /// One tool of a server.
    ServerTool { server: &'a str, tool: &'a str },
}

impl<'a> Rule<'a> {
    /// Reads one rule; `None` when it is none, or could be read as several.
    pub(super) fn parse(text: &'a str) -> Option<Self> {
        let name = match text.split_once('(') {
            None => text,
            Some((name, rest)) => {
                let inner = rest.strip_suffix(')')?;
                // The CLI parts rules at commas and blanks outside of brackets.
                if inner.contains(['(', ')']) {
                    return None;
                }
                name
            }
        };
        let is_allowed =
            |it: char| it.is_ascii_alphanumeric() || matches!(it, '_' | '-' | '*' | '.' | ':');
        if name.is_empty() || !name.chars().all(is_allowed) {
            return None;
        }
        let Some(of_server) = name.strip_prefix("mcp__") else {
            let is_pattern = name.contains('*') || name.eq_ignore_ascii_case("mcp");
            return Some(if is_pattern {
                Self::Everything
            } else {
                Self::Tool(name)
            });
        };
        let (server, tool) = match of_server.split_once("__") {
            Some((server, tool)) => (server, Some(tool)),
            None => (of_server, None),
        };
        Some(match tool {
            _ if server.is_empty() || server.contains('*') => Self::Everything,
            Some(tool) if !tool.is_empty() && !tool.contains('*') => {
                Self::ServerTool { server, tool }
            }
            Some(_) | None => Self::Server(server),
        })
    }
}

/// Options that the runner sets itself, or that would start another conversation than its own.
const OWNED: [&str; 25] = [
    "await-claim",
    "await-initialize",
    "c",
    "continue",
    "fork-session",
    "include-partial-messages",
    "input-format",
    "mcp-config",
    "no-session-persistence",
    "output-format",
    "p",
    "permission-mode",
    "permission-prompt-tool",
    "permission-prompts",
    "print",
    "r",
    "replay-user-messages",
    "resume",
    "resume-drops-turn",
    "resume-session-at",
    "rewind-files",
    "session-id",
    "session-mirror",
    "strict-mcp-config",
    "verbose",
];

/// Options with a typed place.
const TYPED: [(&str, &str); 22] = [
    ("add-dir", "additional_directories"),
    ("agents", "agents"),
    ("allowed-tools", "allowed_tools"),
    ("allowedTools", "allowed_tools"),
    ("append-system-prompt", "append_system_prompt"),
    ("append-system-prompt-file", "append_system_prompt"),
    ("disallowed-tools", "disallowed_tools"),
    ("disallowedTools", "disallowed_tools"),
    ("effort", "effort"),
    ("fallback-model", "fallback_model"),
    ("json-schema", "json_schema"),
    ("max-budget-usd", "max_budget_usd"),
    ("max-thinking-tokens", "max_thinking_tokens"),
    ("max-turns", "max_turns"),
    ("model", "model"),
    ("n", "title"),
    ("name", "title"),
    ("setting-sources", "setting_sources"),
    ("system-prompt", "system_prompt"),
    ("system-prompt-file", "system_prompt"),
    ("title", "title"),
    ("tools", "tools"),
];

/// Options that allow calls unasked, or that load code, settings or a host which could.
const UNSAFE: [&str; 17] = [
    "agent",
    "allow-dangerously-skip-permissions",
    "bare",
    "bg",
    "dangerously-load-development-channels",
    "dangerously-skip-permissions",
    "enable-auto-mode",
    "inherit-permission-mode",
    "init",
    "maintenance",
    "managed-settings",
    "plugin-dir",
    "plugin-dir-no-mcp",
    "plugin-url",
    "remote-control",
    "sdk-url",
    "settings",
];

/// Options that are known to leave the guarantees alone; each was started on CLI 2.1.316 and
/// 2.1.332.
const HARMLESS: [&str; 12] = [
    "append-subagent-system-prompt",
    "autocompact",
    "betas",
    "disable-slash-commands",
    "exclude-dynamic-system-prompt-sections",
    "no-chrome",
    "restricted",
    "system-prompt-snapshot",
    "task-budget",
    "thinking",
    "thinking-display",
    "workload",
];

/// Refuses an option of the CLI, unless it is known to be harmless (D13, D14).
pub(super) fn refuse_argument(name: &str, value: Option<&str>) -> Result<(), OptionError> {
    let is_allowed = |it: char| it.is_ascii_alphanumeric() || it == '-';
    let named = || name.to_owned();
    if name.is_empty() || name.starts_with('-') || !name.chars().all(is_allowed) {
        return Err(OptionError::ArgumentName { name: named() });
    }
    if name == "permission-mode" {
        // A refused mode is named; an accepted one still belongs into its typed place.
        let _: PermissionMode = value.unwrap_or_default().parse()?;
    }
    if let Some((_, option)) = TYPED.iter().find(|(it, _)| *it == name) {
        return Err(OptionError::ArgumentTyped {
            name: named(),
            option,
        });
    }
    if OWNED.contains(&name) {
        return Err(OptionError::ArgumentOwned { name: named() });
    }
    if UNSAFE.contains(&name) {
        return Err(OptionError::ArgumentUnsafe { name: named() });
    }
    if HARMLESS.contains(&name) {
        return Ok(());
    }
    Err(OptionError::ArgumentUnknown { name: named() })
}

//! The argument vector of one CLI process (spec/cli-protocol.md 1).

use crate::ids::ClaudeSessionId;
use crate::settings::Effort;

/// What one CLI process is started with, apart from its environment and files. Never a secret
/// (G10), and nothing long: prompts, schemas and sub-agents go into `initialize`, servers into a
/// file.
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
    /// The models to go on with when the model is overloaded.
    pub fallback_model: Option<String>,
    /// The built-in tools; empty for none.
    pub tools: Vec<String>,
    /// Rules for calls that the CLI may run unasked.
    pub allowed_tools: Vec<String>,
    /// Rules for calls that the CLI refuses.
    pub disallowed_tools: Vec<String>,
    /// Where the tools may work besides the working directory.
    pub additional_directories: Vec<String>,
    /// What the CLI does with calls that no hook decides.
    pub permission_mode: PermissionMode,
    /// Which settings files the CLI reads.
    pub setting_sources: Vec<SettingSource>,
    /// How many replies a turn may have.
    pub max_turns: Option<u32>,
    /// What one process may cost, in US dollars.
    pub max_budget_usd: Option<f64>,
    /// How many tokens the model may think.
    pub max_thinking_tokens: Option<u32>,
    /// How much the model thinks.
    pub effort: Option<Effort>,
    /// Further options, checked: name without dashes, and value.
    pub extra_arguments: Vec<(String, Option<String>)>,
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

/// A settings file that the CLI may read. The user's own is not among them: it lies in the config
/// directory, and each process gets an empty one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum SettingSource {
    /// `.claude/settings.json` in the working directory, and `CLAUDE.md` with it; servers of
    /// `.mcp.json` are not started.
    Project,
    /// `.claude/settings.local.json` in the working directory.
    Local,
}

impl SettingSource {
    const fn name(self) -> &'static str {
        match self {
            Self::Project => "project",
            Self::Local => "local",
        }
    }
}

impl Launch {
    /// Returns the arguments after the program's name, but for those that name a file.
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
            "--include-partial-messages",
            "--session-mirror",
            // Without it a resumed call may skip its hook (spec/cli-protocol.md 0.2).
            "--await-initialize",
            // Servers are those of the options, whatever lies in the working directory.
            "--strict-mcp-config",
        ]
        .map(str::to_owned)
        .into();
        arguments.push(format!("--permission-mode={}", self.permission_mode.name()));
        let sources: Vec<&str> = self.setting_sources.iter().map(|it| it.name()).collect();
        arguments.push(format!("--setting-sources={}", sources.join(",")));
        // Empty means none; left out it would mean all.
        arguments.push(format!("--tools={}", self.tools.join(",")));
        let mut option = |name: &str, value: Option<String>| {
            arguments.extend(value.map(|it| format!("--{name}={it}")));
        };
        let list = |it: &[String]| (!it.is_empty()).then(|| it.join(","));
        option("allowedTools", list(&self.allowed_tools));
        option("disallowedTools", list(&self.disallowed_tools));
        for directory in &self.additional_directories {
            option("add-dir", Some(directory.clone()));
        }
        option("model", self.model.clone());
        option("fallback-model", self.fallback_model.clone());
        option("max-turns", self.max_turns.map(|it| it.to_string()));
        let budget = self.max_budget_usd.map(|it| it.to_string());
        option("max-budget-usd", budget);
        let thinking = self.max_thinking_tokens.map(|it| it.to_string());
        option("max-thinking-tokens", thinking);
        option("effort", self.effort.map(|it| it.name().to_owned()));
        option("resume", self.resume.as_ref().map(ToString::to_string));
        arguments.extend(
            self.extra_arguments
                .iter()
                .map(|(name, value)| match value {
                    Some(value) => format!("--{name}={value}"),
                    None => format!("--{name}"),
                }),
        );
        arguments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// G5, K08, D04, D05: what holds calls back is there in every process, and user values stay
    /// values.
    #[test]
    fn a_resumed_process_gets_every_flag_that_we_own() {
        let names = |it: &[&str]| it.iter().map(|it| (*it).to_owned()).collect();
        let launch = Launch {
            model: Some("--danger".to_owned()),
            fallback_model: Some("b".to_owned()),
            tools: names(&["Bash", "Read"]),
            allowed_tools: names(&["Read", "Read(./a)"]),
            disallowed_tools: names(&["Bash(rm *)"]),
            additional_directories: names(&["/a", "/b c"]),
            permission_mode: PermissionMode::DontAsk,
            setting_sources: vec![SettingSource::Project, SettingSource::Local],
            max_turns: Some(3),
            max_budget_usd: Some(0.5),
            max_thinking_tokens: Some(1024),
            effort: Some(Effort::XHigh),
            extra_arguments: vec![
                ("betas".to_owned(), Some("x".to_owned())),
                ("no-chrome".to_owned(), None),
            ],
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
                "--include-partial-messages",
                "--session-mirror",
                "--await-initialize",
                "--strict-mcp-config",
                "--permission-mode=dontAsk",
                "--setting-sources=project,local",
                "--tools=Bash,Read",
                "--allowedTools=Read,Read(./a)",
                "--disallowedTools=Bash(rm *)",
                "--add-dir=/a",
                "--add-dir=/b c",
                "--model=--danger",
                "--fallback-model=b",
                "--max-turns=3",
                "--max-budget-usd=0.5",
                "--max-thinking-tokens=1024",
                "--effort=xhigh",
                "--resume=c-1",
                "--betas=x",
                "--no-chrome",
            ]
        );
    }

    /// D18: a plain process has no built-in tools and reads no settings unless it is told to.
    #[test]
    fn no_tools_and_no_settings_are_said_and_not_left_out() {
        assert_eq!(
            Launch::default().arguments()[10..],
            [
                "--permission-mode=default",
                "--setting-sources=",
                "--tools="
            ]
        );
    }
}

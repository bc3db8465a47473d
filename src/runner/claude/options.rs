//! [`ClaudeAgentOptions`]: how the CLI of one segment is set up.

use std::path::PathBuf;

use super::CliEnvironment;

pub use crate::protocol::PermissionMode;

/// How the CLI of one segment is set up. Created by the application; everything that decides
/// whether a call may run belongs to the runner and is not an option.
///
/// No settings file is read: its rules could allow a tool before the runner is asked.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ClaudeAgentOptions {
    /// The model. Default: the CLI's own.
    pub model: Option<String>,
    /// Replaces the CLI's system prompt. Default: the CLI's own.
    pub system_prompt: Option<String>,
    /// Is added to the CLI's system prompt. Default: nothing.
    pub append_system_prompt: Option<String>,
    /// The tools of Claude Code that the model may call, such as `Bash`. Default: none. What a call
    /// of them needs is said by the policies.
    pub tools: Vec<String>,
    /// Where the CLI and its tools work; it must be there in every segment of a session.
    pub working_directory: PathBuf,
    /// The environment of the CLI. Default: empty.
    pub environment: CliEnvironment,
    /// What the CLI does with a call that nobody decided about. Default: it asks, and is refused.
    pub permission_mode: PermissionMode,
    /// How many replies one segment may have. Default: no limit.
    pub max_turns: Option<u32>,
    /// What one segment may cost, in US dollars. Default: no limit.
    pub max_budget_usd: Option<f64>,
}

impl ClaudeAgentOptions {
    /// Makes options with every default for a CLI that works in this directory.
    #[must_use]
    pub fn new(working_directory: impl Into<PathBuf>) -> Self {
        Self {
            model: None,
            system_prompt: None,
            append_system_prompt: None,
            tools: Vec::new(),
            working_directory: working_directory.into(),
            environment: CliEnvironment::empty(),
            permission_mode: PermissionMode::Default,
            max_turns: None,
            max_budget_usd: None,
        }
    }

    /// Sets the model.
    #[must_use]
    pub fn with_model(mut self, model: impl Into<String>) -> Self {
        self.model = Some(model.into());
        self
    }

    /// Replaces the CLI's system prompt.
    #[must_use]
    pub fn with_system_prompt(mut self, text: impl Into<String>) -> Self {
        self.system_prompt = Some(text.into());
        self
    }

    /// Adds to the CLI's system prompt.
    #[must_use]
    pub fn with_append_system_prompt(mut self, text: impl Into<String>) -> Self {
        self.append_system_prompt = Some(text.into());
        self
    }

    /// Sets the tools of Claude Code that the model may call.
    #[must_use]
    pub fn with_tools(mut self, tools: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.tools = tools.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the environment of the CLI.
    #[must_use]
    pub fn with_environment(mut self, environment: CliEnvironment) -> Self {
        self.environment = environment;
        self
    }

    /// Sets what the CLI does with a call that nobody decided about.
    #[must_use]
    pub const fn with_permission_mode(mut self, mode: PermissionMode) -> Self {
        self.permission_mode = mode;
        self
    }

    /// Sets how many replies one segment may have.
    #[must_use]
    pub const fn with_max_turns(mut self, turns: u32) -> Self {
        self.max_turns = Some(turns);
        self
    }

    /// Sets what one segment may cost, in US dollars.
    #[must_use]
    pub const fn with_max_budget_usd(mut self, usd: f64) -> Self {
        self.max_budget_usd = Some(usd);
        self
    }

    /// Says what is wrong with the options.
    pub(super) fn check(&self) -> Result<(), &'static str> {
        let is_name = |it: &String| {
            !it.is_empty() && it.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        };
        if !self.tools.iter().all(is_name) {
            return Err("tools: a name of a tool holds letters, digits and underscores only");
        }
        if self.max_turns == Some(0) {
            return Err("max_turns: a segment has at least one reply");
        }
        if self
            .max_budget_usd
            .is_some_and(|it| !it.is_finite() || it <= 0.0)
        {
            return Err("max_budget_usd: a budget is a number above zero");
        }
        if self.system_prompt.is_some() && self.append_system_prompt.is_some() {
            return Err("append_system_prompt: there is nothing to add to a replaced prompt");
        }
        Ok(())
    }
}

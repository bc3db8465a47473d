//! [`ClaudeAgentOptions`]: how the CLI of one segment is set up.

mod check;
mod helper;
mod rules;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;

use serde_json::{Map, Value};

use super::CliEnvironment;
use crate::definition::OptionError;

pub use helper::ApiKeyHelper;

pub use crate::protocol::{McpServer, PermissionMode, SettingSource, SubAgent};
pub use crate::settings::Effort;
use crate::settings::SessionSettings;

pub(super) use check::AgentTools;

/// How the CLI of one segment is set up. Created by the application; everything that decides
/// whether a call may run belongs to the runner and is not an option.
///
/// Every option is checked before the CLI is started, and an [`OptionError`] names what is wrong.
/// No settings file is read unless [`ClaudeAgentOptions::setting_sources`] says so: its rules
/// could allow a tool before the runner is asked (D18, D19).
///
/// Prompts, schema and sub-agents may be of any length: they go through the CLI's input. Servers
/// and the helper go through files of mode 0600, so that no key is in an argument (G10).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ClaudeAgentOptions {
    /// The model. Default: the CLI's own.
    pub model: Option<String>,
    /// The models, parted by commas, to go on with when the model is overloaded. Default: none.
    pub fallback_model: Option<String>,
    /// Replaces the CLI's system prompt. Default: the CLI's own.
    pub system_prompt: Option<String>,
    /// Is added to the CLI's system prompt. Default: nothing.
    pub append_system_prompt: Option<String>,
    /// The tools of Claude Code that the model may call, such as `Bash`. Default: none. What a call
    /// of them needs is said by the policies. A name that the CLI does not know is warned about and
    /// gives no tool (measured on CLI 2.1.316 and 2.1.332).
    pub tools: Vec<String>,
    /// The CLI's rules for calls that it may run when nobody decides, such as `Read(./docs/**)`.
    /// Default: none. The runner decides about every call all the same, so tools whose calls need a
    /// record or an approval are refused here (D17).
    pub allowed_tools: Vec<String>,
    /// The CLI's rules for calls that it refuses whatever is decided. Default: none.
    pub disallowed_tools: Vec<String>,
    /// Where the CLI and its tools work; it must be there in every segment of a session.
    pub working_directory: PathBuf,
    /// Absolute directories where the tools may work besides. Default: none.
    pub additional_directories: Vec<PathBuf>,
    /// Tool servers outside of this process, by name. Default: none. Their tools are named
    /// `mcp__<server>__<tool>` and are treated as tools of Claude Code: without a policy each call
    /// waits for a person. Servers of settings files are never started.
    pub mcp_servers: BTreeMap<String, McpServer>,
    /// Sub-agents, by name. Default: those of Claude Code. They need the tool `Agent`.
    pub agents: BTreeMap<String, SubAgent>,
    /// The environment of the CLI. Default: empty.
    pub environment: CliEnvironment,
    /// A command whose output is the API key, for keys that change. Default: none. It is run by the
    /// CLI through a shell, and wins over a stored login.
    pub api_key_helper: Option<ApiKeyHelper>,
    /// What the CLI does with a call that nobody decided about. Default: it asks, and is refused.
    pub permission_mode: PermissionMode,
    /// Which settings files of the working directory the CLI reads. Default: none.
    pub setting_sources: Vec<SettingSource>,
    /// Accepts settings files together with tools whose calls need a decision. Default: false.
    ///
    /// **This gives up G4.** Hooks in settings files run inside the CLI, after our decision, and may
    /// replace the input of a call that a person has approved.
    pub trust_settings_files: bool,
    /// How many replies one segment may have. Default: no limit.
    pub max_turns: Option<u32>,
    /// What one segment may cost, in US dollars. Default: no limit.
    pub max_budget_usd: Option<f64>,
    /// How many tokens the model may think before it answers; zero turns thinking off. Default: the
    /// model's. Models that decide for themselves how much to think know no other value.
    pub max_thinking_tokens: Option<u32>,
    /// How much the model thinks, as far as it can be told. Default: the CLI's.
    pub effort: Option<Effort>,
    /// The schema of the answer, an object. Default: none. The text of the model's last message
    /// is then the answer as JSON, unless the model would not give one even when asked again.
    pub json_schema: Option<Map<String, Value>>,
    /// The title of the Claude session. Default: none, and the CLI makes none up.
    pub title: Option<String>,
    /// Further options of the CLI, by name without dashes. Default: none. Accepted are those that
    /// are known to leave the guarantees alone: `append-subagent-system-prompt`, `autocompact`,
    /// `betas`, `disable-slash-commands`, `exclude-dynamic-system-prompt-sections`, `no-chrome`,
    /// `restricted`, `system-prompt-snapshot`, `task-budget`, `thinking`, `thinking-display`,
    /// `workload`.
    pub extra_arguments: BTreeMap<String, Option<String>>,
    /// What to do about a CLI of a version that is not among
    /// [`TESTED_CLI_VERSIONS`](crate::runner::TESTED_CLI_VERSIONS). Default: warn.
    pub cli_version_policy: CliVersionPolicy,
}

/// What to do about a CLI of a version that is not tested (A12, O05).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum CliVersionPolicy {
    /// A warning in the log.
    #[default]
    Warn,
    /// The turn fails at once, with [`FailureClass::CliVersion`](crate::failure::FailureClass::CliVersion):
    /// the CLI says its version before it runs a call.
    Refuse,
}

impl FromStr for PermissionMode {
    type Err = OptionError;

    /// Reads the CLI's name of a mode.
    ///
    /// # Errors
    /// [`OptionError::PermissionMode`] for every mode in which a call could run without a decision.
    fn from_str(mode: &str) -> Result<Self, OptionError> {
        match mode {
            "default" => Ok(Self::Default),
            "dontAsk" => Ok(Self::DontAsk),
            _ => Err(OptionError::PermissionMode {
                mode: mode.to_owned(),
            }),
        }
    }
}

impl ClaudeAgentOptions {
    /// Makes options with every default for a CLI that works in this directory.
    #[must_use]
    pub fn new(working_directory: impl Into<PathBuf>) -> Self {
        Self {
            model: None,
            fallback_model: None,
            system_prompt: None,
            append_system_prompt: None,
            tools: Vec::new(),
            allowed_tools: Vec::new(),
            disallowed_tools: Vec::new(),
            working_directory: working_directory.into(),
            additional_directories: Vec::new(),
            mcp_servers: BTreeMap::new(),
            agents: BTreeMap::new(),
            environment: CliEnvironment::empty(),
            api_key_helper: None,
            permission_mode: PermissionMode::Default,
            setting_sources: Vec::new(),
            trust_settings_files: false,
            max_turns: None,
            max_budget_usd: None,
            max_thinking_tokens: None,
            effort: None,
            json_schema: None,
            title: None,
            extra_arguments: BTreeMap::new(),
            cli_version_policy: CliVersionPolicy::Warn,
        }
    }

    /// Takes over what the session's settings say (N45).
    pub(in crate::runner::claude) fn apply(&mut self, settings: &SessionSettings) {
        if let Some(model) = &settings.model {
            self.model = Some(model.clone());
        }
        if let Some(effort) = settings.reasoning_effort {
            self.effort = Some(effort);
        }
        if let Some(instructions) = &settings.instructions {
            let before = self.append_system_prompt.take();
            self.append_system_prompt = Some(match before {
                Some(before) => format!("{before}\n\n{instructions}"),
                None => instructions.clone(),
            });
        }
    }

    /// Sets the model.
    #[must_use]
    pub fn with_model(mut self, model: impl Into<String>) -> Self {
        self.model = Some(model.into());
        self
    }

    /// Sets the models to go on with when the model is overloaded.
    #[must_use]
    pub fn with_fallback_model(mut self, models: impl Into<String>) -> Self {
        self.fallback_model = Some(models.into());
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

    /// Sets the CLI's rules for calls that it may run when nobody decides.
    #[must_use]
    pub fn with_allowed_tools(
        mut self,
        rules: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        self.allowed_tools = rules.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the CLI's rules for calls that it refuses.
    #[must_use]
    pub fn with_disallowed_tools(
        mut self,
        rules: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        self.disallowed_tools = rules.into_iter().map(Into::into).collect();
        self
    }

    /// Adds a directory where the tools may work besides.
    #[must_use]
    pub fn with_additional_directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.additional_directories.push(directory.into());
        self
    }

    /// Adds a tool server outside of this process.
    #[must_use]
    pub fn with_mcp_server(mut self, name: impl Into<String>, server: McpServer) -> Self {
        self.mcp_servers.insert(name.into(), server);
        self
    }

    /// Adds a sub-agent.
    #[must_use]
    pub fn with_agent(mut self, name: impl Into<String>, agent: SubAgent) -> Self {
        self.agents.insert(name.into(), agent);
        self
    }

    /// Sets the environment of the CLI.
    #[must_use]
    pub fn with_environment(mut self, environment: CliEnvironment) -> Self {
        self.environment = environment;
        self
    }

    /// Sets the command whose output is the API key.
    #[must_use]
    pub fn with_api_key_helper(mut self, command: impl Into<String>) -> Self {
        self.api_key_helper = Some(ApiKeyHelper::new(command));
        self
    }

    /// Sets what the CLI does with a call that nobody decided about.
    #[must_use]
    pub const fn with_permission_mode(mut self, mode: PermissionMode) -> Self {
        self.permission_mode = mode;
        self
    }

    /// Sets which settings files the CLI reads.
    #[must_use]
    pub fn with_setting_sources(
        mut self,
        sources: impl IntoIterator<Item = SettingSource>,
    ) -> Self {
        self.setting_sources = sources.into_iter().collect();
        self
    }

    /// Accepts settings files together with tools whose calls need a decision; this gives up G4.
    #[must_use]
    pub const fn with_trusted_settings_files(mut self) -> Self {
        self.trust_settings_files = true;
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

    /// Sets how many tokens the model may think; zero turns thinking off.
    #[must_use]
    pub const fn with_max_thinking_tokens(mut self, tokens: u32) -> Self {
        self.max_thinking_tokens = Some(tokens);
        self
    }

    /// Sets how much the model thinks.
    #[must_use]
    pub const fn with_effort(mut self, effort: Effort) -> Self {
        self.effort = Some(effort);
        self
    }

    /// Sets the schema of the answer.
    #[must_use]
    pub fn with_json_schema(mut self, schema: Map<String, Value>) -> Self {
        self.json_schema = Some(schema);
        self
    }

    /// Sets the title of the Claude session.
    #[must_use]
    pub fn with_title(mut self, title: impl Into<String>) -> Self {
        self.title = Some(title.into());
        self
    }

    /// Adds a further option of the CLI, by name without dashes.
    #[must_use]
    pub fn with_extra_argument(mut self, name: impl Into<String>, value: Option<String>) -> Self {
        self.extra_arguments.insert(name.into(), value);
        self
    }

    /// Sets what to do about a CLI of a version that is not tested.
    #[must_use]
    pub const fn with_cli_version_policy(mut self, policy: CliVersionPolicy) -> Self {
        self.cli_version_policy = policy;
        self
    }
}

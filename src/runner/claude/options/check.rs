//! What is refused before the CLI is started: one error for each case (D13 to D17, E04, O49).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::rules::{Rule, refuse_argument};
use super::{ApiKeyHelper, ClaudeAgentOptions, McpServer};
use crate::definition::OptionError;
use crate::policy::{ToolAnnotations, ToolPolicies, ToolPolicy};

/// The longest argument or variable that Linux passes on, with its closing NUL byte.
const ARGUMENT_BYTES_MAX: usize = 128 * 1024 - 1;

/// The tools whose rules the options must not touch.
#[derive(Debug, Clone)]
pub(crate) struct AgentTools<'a> {
    /// The name of the custom tool server.
    pub(crate) server_name: &'a str,
    /// The custom tools with their policies.
    pub(crate) custom: &'a BTreeMap<String, ToolPolicy>,
    /// The policies of all other tools.
    pub(crate) policies: &'a ToolPolicies,
    /// The tools with an approval rule, by their policy names: some of their calls may wait.
    pub(crate) ruled: BTreeSet<&'a str>,
}

impl AgentTools<'_> {
    /// True when calls of a tool outside of our server wait for a record.
    fn is_gated(&self, tool: &str) -> bool {
        let policy = self.policies.policy_for(tool, ToolAnnotations::default());
        is_gated(policy) || self.ruled.contains(tool)
    }

    /// True when some call that a rule means would wait for a record.
    fn means_gated(&self, rule: &Rule<'_>) -> bool {
        match *rule {
            Rule::Everything => true,
            Rule::Tool(tool) => self.is_gated(tool),
            Rule::Server(server) if self.is_ours(server) => {
                (self.custom.iter()).any(|(tool, it)| self.is_gated_custom(tool, *it))
            }
            // Nobody knows all tools of a server, so those without a policy count.
            Rule::Server(server) => {
                let prefix = format!("mcp__{server}__");
                let named = self.policies.names().chain(self.ruled.iter().copied());
                let mut named = named.filter(|it| it.starts_with(&prefix));
                self.is_gated(&prefix) || named.any(|it| self.is_gated(it))
            }
            Rule::ServerTool { server, tool } if self.is_ours(server) => {
                (self.custom.get(tool)).is_none_or(|it| self.is_gated_custom(tool, *it))
            }
            Rule::ServerTool { server, tool } => self.is_gated(&format!("mcp__{server}__{tool}")),
        }
    }

    fn is_gated_custom(&self, tool: &str, policy: ToolPolicy) -> bool {
        is_gated(policy) || self.ruled.contains(tool)
    }

    fn is_ours(&self, server: &str) -> bool {
        server.eq_ignore_ascii_case(self.server_name)
    }
}

/// A call of the CLI's tools runs at once only if it is harmless and nobody is to be asked; a
/// custom write waits too, whatever its rules.
const fn is_gated(policy: ToolPolicy) -> bool {
    policy.requires_approval() || policy.effect.is_single_attempt()
}

impl ClaudeAgentOptions {
    /// Says what is wrong with the options.
    pub(crate) fn check(&self, agent: &AgentTools<'_>) -> Result<(), OptionError> {
        self.check_limits()?;
        self.check_texts()?;
        self.check_places()?;
        self.check_tools(agent)?;
        self.check_servers(agent)?;
        self.check_agents()?;
        for (name, value) in &self.extra_arguments {
            refuse_argument(name, value.as_deref())?;
            check_argument("extra_arguments", value.as_deref().unwrap_or_default())?;
        }
        self.check_environment()?;
        self.check_settings_files(agent)
    }

    fn check_limits(&self) -> Result<(), OptionError> {
        if self.max_turns == Some(0) {
            let option = "max_turns";
            return Err(OptionError::Zero { option });
        }
        let budget = self.max_budget_usd;
        if budget.is_some_and(|it| !it.is_finite() || it <= 0.0) {
            return Err(OptionError::Budget);
        }
        Ok(())
    }

    fn check_texts(&self) -> Result<(), OptionError> {
        let helper = self.api_key_helper.as_ref().map(ApiKeyHelper::command);
        for (option, text) in [
            ("model", self.model.as_deref()),
            ("fallback_model", self.fallback_model.as_deref()),
            ("title", self.title.as_deref()),
            ("api_key_helper", helper),
        ] {
            if let Some(text) = text {
                if text.trim().is_empty() {
                    return Err(OptionError::Empty { option });
                }
                check_argument(option, text)?;
            }
        }
        // JSON carries a NUL byte, but no prompt has one on purpose.
        for (option, text) in [
            ("system_prompt", &self.system_prompt),
            ("append_system_prompt", &self.append_system_prompt),
        ] {
            check_nul(option, text.as_deref().unwrap_or_default())?;
        }
        if self.system_prompt.is_some() && self.append_system_prompt.is_some() {
            return Err(OptionError::PromptReplaced);
        }
        Ok(())
    }

    fn check_places(&self) -> Result<(), OptionError> {
        check_place("working_directory", &self.working_directory)?;
        for directory in &self.additional_directories {
            let option = "additional_directories";
            check_place(option, directory)?;
            if directory.to_str().is_none() {
                return Err(OptionError::PathNotText { option });
            }
            check_length(option, directory.as_os_str().len())?;
        }
        Ok(())
    }

    fn check_tools(&self, agent: &AgentTools<'_>) -> Result<(), OptionError> {
        for name in &self.tools {
            let is_name = |it: char| it.is_ascii_alphanumeric() || it == '_';
            if name.is_empty() || !name.chars().all(is_name) {
                let name = name.clone();
                return Err(OptionError::ToolName { name });
            }
        }
        for (option, rules) in [
            ("allowed_tools", &self.allowed_tools),
            ("disallowed_tools", &self.disallowed_tools),
        ] {
            for text in rules {
                let rule = || text.clone();
                check_nul(option, text)?;
                let parsed = Rule::parse(text).ok_or_else(|| OptionError::Rule {
                    option,
                    rule: rule(),
                })?;
                if option == "disallowed_tools" {
                    continue;
                }
                if parsed == Rule::Tool("AskUserQuestion") {
                    return Err(OptionError::AllowedQuestion);
                }
                if agent.means_gated(&parsed) {
                    return Err(OptionError::AllowedGatedTool { rule: rule() });
                }
            }
            check_length(option, joined_length(rules))?;
        }
        check_length("tools", joined_length(&self.tools))
    }

    fn check_servers(&self, agent: &AgentTools<'_>) -> Result<(), OptionError> {
        for (name, server) in &self.mcp_servers {
            let named = || name.clone();
            // The CLI and file systems may not tell such names apart.
            if agent.is_ours(name) {
                return Err(OptionError::ServerNameOwned { name: named() });
            }
            super::super::builder::check_name(name).map_err(|reason| OptionError::ServerName {
                name: named(),
                reason,
            })?;
            let (address, secrets) = match server {
                McpServer::Stdio {
                    command,
                    arguments,
                    environment,
                } => {
                    let option = "mcp_servers";
                    if command.is_empty() {
                        return Err(OptionError::Empty { option });
                    }
                    for text in arguments.iter().chain([command]) {
                        check_argument(option, text)?;
                    }
                    (None, environment)
                }
                McpServer::Http { url, headers } | McpServer::Sse { url, headers } => {
                    (Some(url), headers)
                }
            };
            for (name, value) in secrets {
                check_nul("mcp_servers", name)?;
                check_nul("mcp_servers", value)?;
            }
            let is_http = |it: &String| it.starts_with("http://") || it.starts_with("https://");
            if address.is_some_and(|it| !is_http(it)) {
                return Err(OptionError::ServerAddress { name: named() });
            }
        }
        Ok(())
    }

    fn check_agents(&self) -> Result<(), OptionError> {
        for (name, agent) in &self.agents {
            let is_allowed = |it: char| it.is_ascii_alphanumeric() || matches!(it, '_' | '-');
            if name.is_empty() || !name.chars().all(is_allowed) {
                let name = name.clone();
                return Err(OptionError::AgentName { name });
            }
            let option = "agents";
            let texts = [&agent.description, &agent.prompt];
            if texts.iter().any(|it| it.is_empty()) || agent.model.as_deref() == Some("") {
                return Err(OptionError::Empty { option });
            }
            for text in texts {
                check_nul(option, text)?;
            }
            if agent.max_turns == Some(0) {
                return Err(OptionError::Zero { option });
            }
        }
        Ok(())
    }

    fn check_environment(&self) -> Result<(), OptionError> {
        for (name, value) in self.environment.variables() {
            if name.is_empty() || name.contains(['\0', '=']) {
                return Err(OptionError::VariableName);
            }
            check_nul("environment", value)?;
            check_length("environment", name.len() + 1 + value.len())?;
        }
        Ok(())
    }

    fn check_settings_files(&self, agent: &AgentTools<'_>) -> Result<(), OptionError> {
        if self.setting_sources.is_empty() || self.trust_settings_files {
            return Ok(());
        }
        let servers = self.mcp_servers.keys();
        let server_tools = servers
            .filter(|it| agent.means_gated(&Rule::Server(it)))
            .map(|it| format!("mcp__{it}"));
        let built_in = self.tools.iter().filter(|it| agent.is_gated(it)).cloned();
        match built_in.chain(server_tools).next() {
            Some(tool) => Err(OptionError::SettingsFiles { tool }),
            None => Ok(()),
        }
    }
}

fn check_place(option: &'static str, path: &Path) -> Result<(), OptionError> {
    if !path.is_absolute() {
        return Err(OptionError::RelativePath { option });
    }
    if path.as_os_str().as_encoded_bytes().contains(&0) {
        return Err(OptionError::Nul { option });
    }
    Ok(())
}

/// Checks a text that becomes an argument, or a line of its own in a file.
fn check_argument(option: &'static str, text: &str) -> Result<(), OptionError> {
    check_nul(option, text)?;
    check_length(option, text.len())
}

fn check_nul(option: &'static str, text: &str) -> Result<(), OptionError> {
    if text.contains('\0') {
        return Err(OptionError::Nul { option });
    }
    Ok(())
}

/// What stands before the value, such as `--disallowedTools=`, is never longer than this.
const OPTION_NAME_BYTES_MAX: usize = 64;

fn check_length(option: &'static str, bytes: usize) -> Result<(), OptionError> {
    let limit = ARGUMENT_BYTES_MAX - OPTION_NAME_BYTES_MAX;
    if bytes > limit {
        return Err(OptionError::TooLong {
            option,
            bytes,
            limit,
        });
    }
    Ok(())
}

fn joined_length(texts: &[String]) -> usize {
    texts.iter().map(|it| it.len() + 1).sum()
}

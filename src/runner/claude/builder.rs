//! [`ClaudeAgentRunnerBuilder`]: checks a definition before anything runs.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::approval::{self, ApprovalRule};
use super::hooks::Hooks;
use super::warm::WarmProcesses;
use super::{ClaudeAgentRunner, GatedCallWait, LiveProof, OptionsSource};
use crate::definition::DefinitionError;
use crate::policy::{ToolAnnotations, ToolPolicies};
use crate::runner::{PRE_TOOL_USE_HOOK_DEADLINE_DEFAULT, PreToolUse, PreToolUseHook};
use crate::tool::CustomTool;
use crate::transport::CliLauncher;

/// The name of the custom tool server, unless the application sets another.
pub const CUSTOM_TOOL_SERVER_NAME_DEFAULT: &str = "tools";

/// The longest full name of a tool that the Messages API takes, in bytes.
const FULL_NAME_BYTES_MAX: usize = 64;

/// The tools of Claude Code 2.1.316 and 2.1.332, with names that older versions used. Policies and
/// records name custom tools bare, so a custom tool may not share a name with one of them (E04).
pub(super) const CLAUDE_CODE_TOOLS: [&str; 44] = [
    "Agent",
    "AskUserQuestion",
    "Bash",
    "BashOutput",
    "CronCreate",
    "CronDelete",
    "CronList",
    "Edit",
    "EnterPlanMode",
    "EnterWorktree",
    "ExitPlanMode",
    "ExitWorktree",
    "Glob",
    "Grep",
    "KillBash",
    "KillShell",
    "LS",
    "LSP",
    "ListMcpResources",
    "ListMcpResourcesTool",
    "Monitor",
    "MultiEdit",
    "NotebookEdit",
    "NotebookRead",
    "PowerShell",
    "Read",
    "ReadMcpResource",
    "ReadMcpResourceTool",
    "SendMessage",
    "Skill",
    "SlashCommand",
    "StructuredOutput",
    "Task",
    "TaskCreate",
    "TaskGet",
    "TaskList",
    "TaskOutput",
    "TaskStop",
    "TaskUpdate",
    "TodoWrite",
    "ToolSearch",
    "WebFetch",
    "WebSearch",
    "Write",
];

/// Defines a [`ClaudeAgentRunner`]. Created by [`ClaudeAgentRunner::builder`].
#[must_use]
pub struct ClaudeAgentRunnerBuilder {
    options: OptionsSource,
    tools: Vec<CustomTool>,
    server_name: String,
    policies: ToolPolicies,
    rules: Vec<(String, ApprovalRule)>,
    hooks: Hooks,
    launcher: Option<Arc<dyn CliLauncher>>,
    gated_calls: GatedCallWait,
}

impl ClaudeAgentRunnerBuilder {
    pub(super) fn new(options: OptionsSource) -> Self {
        Self {
            options,
            tools: Vec::new(),
            server_name: CUSTOM_TOOL_SERVER_NAME_DEFAULT.to_owned(),
            policies: ToolPolicies::new(),
            rules: Vec::new(),
            hooks: Hooks {
                hooks: Vec::new(),
                deadline: PRE_TOOL_USE_HOOK_DEADLINE_DEFAULT,
                rules: BTreeMap::new(),
            },
            launcher: None,
            gated_calls: GatedCallWait::Live,
        }
    }

    /// Adds a tool of the application.
    pub fn custom_tool(mut self, tool: CustomTool) -> Self {
        self.tools.push(tool);
        self
    }

    /// Sets the name of the custom tool server. Default: [`CUSTOM_TOOL_SERVER_NAME_DEFAULT`].
    ///
    /// Sessions that wait for a call keep the name that they were started with: do not change it
    /// while such sessions exist.
    pub fn custom_tool_server_name(mut self, name: impl Into<String>) -> Self {
        self.server_name = name.into();
        self
    }

    /// Sets the policies of custom tools and of tools inside the CLI. Default: every tool without
    /// annotations waits for approval.
    pub fn tool_policies(mut self, policies: ToolPolicies) -> Self {
        self.policies = policies;
        self
    }

    /// Adds a rule that says for each call of a tool, by its final input, whether a person decides:
    /// where it returns `true`, the call waits, and where it returns `false`, none is asked, whatever
    /// the effect. The effect stays that of the policy: a write that nobody is asked about has its
    /// record and its start mark all the same.
    ///
    /// The tool goes by its policy name (`create_refund`, `Bash`, `mcp__<server>__<tool>`). The rule
    /// is asked in this process after the hooks, once for each tool use id of a segment, and sees the
    /// input that they left (G4); a path in it may be relative, as the model wrote it, or absolute, as
    /// the CLI made it (measured on CLI 2.1.316 and 2.1.332), so that a rule takes both. What it said is part of the call's record: a recorded call is not
    /// asked about again. It must be quick, because it runs on a thread of the runtime. One that
    /// panics asks a person. A sub-agent cannot wait: what the rule asks about is denied there.
    ///
    /// A custom tool may bring its rule along ([`CustomTool::with_approval_if`]).
    pub fn approval_if(
        mut self,
        tool_name: impl Into<String>,
        asks: impl Fn(&PreToolUse) -> bool + Send + Sync + 'static,
    ) -> Self {
        let rule = ApprovalRule::new(asks);
        self.rules.push((tool_name.into(), rule));
        self
    }

    /// Adds a hook that sees each call before it is decided. Several are asked in the order in which
    /// they were added, each with the input that the one before left.
    pub fn pre_tool_use_hook(mut self, hook: impl PreToolUseHook + 'static) -> Self {
        self.hooks.hooks.push(Arc::new(hook));
        self
    }

    /// Sets how long each hook may take; a call whose hook takes longer is denied. Default:
    /// [`PRE_TOOL_USE_HOOK_DEADLINE_DEFAULT`].
    pub const fn pre_tool_use_hook_deadline(mut self, deadline: Duration) -> Self {
        self.hooks.deadline = deadline;
        self
    }

    /// Sets how CLI processes are started. It has no default.
    pub fn launcher(mut self, launcher: Arc<dyn CliLauncher>) -> Self {
        self.launcher = Some(launcher);
        self
    }

    /// Sets how gated calls wait. Default: [`GatedCallWait::Live`].
    pub const fn gated_call_wait(mut self, wait: GatedCallWait) -> Self {
        self.gated_calls = wait;
        self
    }

    /// Checks the definition.
    ///
    /// # Errors
    /// [`DefinitionError::ToolServerName`], [`DefinitionError::ToolName`],
    /// [`DefinitionError::DuplicateTool`]; [`DefinitionError::Policy`] for a policy of questions for a
    /// tool that asks none, or another one for `AskUserQuestion`;
    /// [`DefinitionError::ApprovalRule`] for a rule of a tool that nobody knows, for the second one of a tool, and for one beside a policy that says itself
    /// whether calls wait; [`DefinitionError::Option`] without a launcher;
    /// [`DefinitionError::Options`] with options that are refused.
    pub fn build(self) -> Result<ClaudeAgentRunner, DefinitionError> {
        check_name(&self.server_name).map_err(|reason| DefinitionError::ToolServerName {
            name: self.server_name.clone(),
            reason,
        })?;
        let mut tools = BTreeMap::new();
        for tool in self.tools {
            check_tool(&self.server_name, tool.name()).map_err(|reason| {
                DefinitionError::ToolName {
                    name: tool.name().to_owned(),
                    reason,
                }
            })?;
            let name = tool.name().to_owned();
            if tools.insert(name.clone(), tool).is_some() {
                return Err(DefinitionError::DuplicateTool { name });
            }
        }
        check_questions(&self.policies, &tools)?;
        let mut hooks = self.hooks;
        hooks.rules = approval::gather(self.rules, &tools, &self.server_name, &self.policies)?;
        let launcher = self.launcher.ok_or(DefinitionError::Option {
            option: "launcher",
            reason: "is not set",
        })?;
        let runner = ClaudeAgentRunner {
            options: self.options,
            custom_policies: tools
                .values()
                .map(|tool| {
                    let policy = self.policies.policy_for(tool.name(), tool.annotations());
                    (tool.name().to_owned(), policy)
                })
                .collect(),
            tools,
            server_name: self.server_name,
            policies: self.policies,
            hooks,
            launcher,
            gated_calls: self.gated_calls,
            live: LiveProof::default(),
            warm: WarmProcesses::default(),
        };
        if let OptionsSource::Fixed(options) = &runner.options {
            options
                .check(&runner.agent_tools())
                .map_err(|source| DefinitionError::Options { source })?;
        }
        Ok(runner)
    }
}

/// Only what asks people is answered, and it is nothing but answered.
fn check_questions(
    policies: &ToolPolicies,
    tools: &BTreeMap<String, CustomTool>,
) -> Result<(), DefinitionError> {
    for name in policies.names() {
        let policy = policies.policy_for(name, ToolAnnotations::default());
        let reason = match (policy.asks_questions(), name) {
            (false, "AskUserQuestion") => {
                "must be one for questions: nothing else answers its calls"
            }
            (true, "AskUserQuestion") => continue,
            (true, _) if !tools.contains_key(name) => {
                "is for questions, which only AskUserQuestion and custom tools ask"
            }
            (true | false, _) => continue,
        };
        let name = name.to_owned();
        return Err(DefinitionError::Policy { name, reason });
    }
    Ok(())
}

fn check_tool(server: &str, name: &str) -> Result<(), &'static str> {
    if name.starts_with("mcp__") {
        return Err("may not start with mcp__, which names tools of other servers");
    }
    check_name(name)?;
    if CLAUDE_CODE_TOOLS
        .iter()
        .any(|it| it.eq_ignore_ascii_case(name))
    {
        return Err("is a tool of Claude Code");
    }
    if format!("mcp__{server}__{name}").len() > FULL_NAME_BYTES_MAX {
        return Err("is too long: with the server's name it may have 64 bytes");
    }
    Ok(())
}

pub(super) fn check_name(name: &str) -> Result<(), &'static str> {
    let is_allowed = |it: char| it.is_ascii_alphanumeric() || matches!(it, '_' | '-');
    if name.is_empty() {
        return Err("is empty");
    }
    if !name.chars().all(is_allowed) {
        return Err("may hold letters, digits, underscores and hyphens only");
    }
    // The two underscores part the names of server and tool.
    if name.contains("__") {
        return Err("may not hold two underscores in a row");
    }
    Ok(())
}

impl fmt::Debug for ClaudeAgentRunnerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClaudeAgentRunnerBuilder")
            .field("server_name", &self.server_name)
            .field("tools", &self.tools)
            .finish_non_exhaustive()
    }
}

//! What is wrong with a definition, found before anything runs.

use crate::ids::{FlowType, InvalidId};

/// The application's code defines something that cannot be run. Never retryable: change the code.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DefinitionError {
    /// The name of a Flow is no identifier.
    #[error("the flow type is not an identifier")]
    FlowType {
        /// What is wrong with it.
        source: InvalidId,
    },
    /// Two Flows have the same type.
    #[error("flow type {flow_type} is registered twice")]
    DuplicateFlowType {
        /// The type.
        flow_type: FlowType,
    },
    /// A custom tool cannot have this name.
    #[error("the name of the custom tool {name:?} {reason}")]
    ToolName {
        /// The name.
        name: String,
        /// Why.
        reason: &'static str,
    },
    /// Two custom tools have the same name.
    #[error("the custom tool {name:?} is defined twice")]
    DuplicateTool {
        /// The name.
        name: String,
    },
    /// An approval rule would never be asked, or something else says the same.
    #[error("the approval rule for {name:?} {reason}")]
    ApprovalRule {
        /// The policy name of its tool.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A policy says of a tool what it cannot do.
    #[error("the policy for {name:?} {reason}")]
    Policy {
        /// The policy name of its tool.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The custom tool server cannot have this name.
    #[error("the name of the custom tool server {name:?} {reason}")]
    ToolServerName {
        /// The name.
        name: String,
        /// Why.
        reason: &'static str,
    },
    /// The options of the agent make no sense, or take what this crate owns.
    #[error("the options of the agent cannot be used")]
    Options {
        /// What is wrong with them.
        source: OptionError,
    },
    /// An option makes no sense.
    #[error("option {option} {reason}")]
    Option {
        /// Which option.
        option: &'static str,
        /// Why.
        reason: &'static str,
    },
}

/// The options of an agent make no sense, or take what this crate owns. Found before the CLI is
/// started, by definition or by attempt; never retryable. It holds no value that may be a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OptionError {
    /// A text that must say something is empty.
    #[error("{option} is empty")]
    Empty {
        /// Which option.
        option: &'static str,
    },
    /// A limit of zero lets nothing happen.
    #[error("{option} is zero")]
    Zero {
        /// Which option.
        option: &'static str,
    },
    /// A budget is no finite number above zero.
    #[error("max_budget_usd is no number above zero")]
    Budget,
    /// A text holds a NUL byte, which no process can be given.
    #[error("{option} holds a NUL byte")]
    Nul {
        /// Which option.
        option: &'static str,
    },
    /// A value is longer than one argument or variable of a process may be.
    #[error("{option} has {bytes} bytes, at most {limit} are possible")]
    TooLong {
        /// Which option.
        option: &'static str,
        /// How long it is.
        bytes: usize,
        /// How long it may be.
        limit: usize,
    },
    /// A directory depends on where the worker happens to be.
    #[error("{option} is not an absolute path")]
    RelativePath {
        /// Which option.
        option: &'static str,
    },
    /// A directory cannot be written as text.
    #[error("{option} is not UTF-8")]
    PathNotText {
        /// Which option.
        option: &'static str,
    },
    /// The name of a variable is empty or holds `=` or a NUL byte.
    #[error("environment holds a variable that cannot be named so")]
    VariableName,
    /// A prompt cannot be added to one that is replaced.
    #[error("append_system_prompt adds to a prompt that system_prompt replaces")]
    PromptReplaced,
    /// Something in `tools` is no name of a tool.
    #[error("tools holds {name:?}, which is no name of a tool")]
    ToolName {
        /// What is there.
        name: String,
    },
    /// An external tool server cannot have this name.
    #[error("mcp_servers holds {name:?}, whose name {reason}")]
    ServerName {
        /// The name.
        name: String,
        /// Why.
        reason: &'static str,
    },
    /// An external tool server has the name of the custom tool server (D16).
    #[error("mcp_servers holds {name:?}, the name of the custom tool server")]
    ServerNameOwned {
        /// The name.
        name: String,
    },
    /// The address of an external tool server is no HTTP address.
    #[error("mcp_servers holds {name:?}, whose address is not http:// or https://")]
    ServerAddress {
        /// The name of the server.
        name: String,
    },
    /// A sub-agent cannot have this name.
    #[error("agents holds {name:?}, which is no name of a sub-agent")]
    AgentName {
        /// The name.
        name: String,
    },
    /// Only letters, digits and hyphens name an option of the CLI.
    #[error("extra_arguments holds {name:?}, which is no name of an option")]
    ArgumentName {
        /// What is there.
        name: String,
    },
    /// This crate sets the option itself (D13).
    #[error("extra_arguments holds {name:?}, which belongs to the runner")]
    ArgumentOwned {
        /// Which option.
        name: String,
    },
    /// The options of this crate have a typed place for it.
    #[error("extra_arguments holds {name:?}, for which there is the option {option}")]
    ArgumentTyped {
        /// Which option of the CLI.
        name: String,
        /// Which option to use.
        option: &'static str,
    },
    /// The option could let calls run undecided, or load code and settings that could.
    #[error("extra_arguments holds {name:?}, which could let a call run without a decision")]
    ArgumentUnsafe {
        /// Which option.
        name: String,
    },
    /// Nobody has checked what the option does to the guarantees.
    #[error("extra_arguments holds {name:?}, which is not known to be harmless")]
    ArgumentUnknown {
        /// Which option.
        name: String,
    },
    /// In this mode a call could run without a decision, or in none of ours (D14, design.md 4).
    #[error("permission mode {mode:?} is refused: a call could run without a decision")]
    PermissionMode {
        /// The mode.
        mode: String,
    },
    /// A rule in `allowed_tools` would let a call run that needs a record first (D17).
    #[error("allowed_tools holds {rule:?}, but calls of it need a decision first")]
    AllowedGatedTool {
        /// The rule.
        rule: String,
    },
    /// `AskUserQuestion` would be answered by nobody (O49).
    #[error("allowed_tools holds AskUserQuestion, which would then ask nobody")]
    AllowedQuestion,
    /// Something in `allowed_tools` or `disallowed_tools` is no rule of the CLI.
    #[error("{option} holds {rule:?}, which is no rule for a tool")]
    Rule {
        /// Which option.
        option: &'static str,
        /// What is there.
        rule: String,
    },
    /// Hooks in settings files could change the input of a call after it was decided (G4).
    #[error(
        "setting_sources is set, and hooks in settings files could change what was decided about {tool}; see trust_settings_files"
    )]
    SettingsFiles {
        /// A tool whose calls need a decision.
        tool: String,
    },
}

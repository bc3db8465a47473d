//! [`ClaudeAgentRunner`]: runs segments by the Claude Code CLI, and gated calls by their handlers.

mod approval;
mod builder;
mod drive;
mod environment;
mod hooks;
mod mcp;
mod options;
mod planning;
mod redaction;
mod warm;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;

use super::{AgentFrameworkRunner, RunModelRequest, SegmentLink, ToolCallEnd, ToolCallRequest};
use crate::failure::{AttemptFailure, FailureClass};
use crate::policy::{ToolPolicies, ToolPolicy};
use crate::segment::{Segment, read_conversation};
use crate::tool::{CustomTool, DeferredToolExecution, ToolContext, ToolEnd, run_guarded};
use crate::transport::CliLauncher;
use crate::turn::{RunModelContext, RunModelOutcome};

pub use builder::{CUSTOM_TOOL_SERVER_NAME_DEFAULT, ClaudeAgentRunnerBuilder};
pub use environment::CliEnvironment;
pub use options::{
    ApiKeyHelper, ClaudeAgentOptions, CliVersionPolicy, Effort, McpServer, PermissionMode,
    SettingSource, SubAgent,
};

use drive::{Care, Source};
use options::AgentTools;
use planning::Planned;
use redaction::Redaction;
use warm::{StartedWith, WarmKey, WarmProcesses};

use hooks::{HookRuns, Hooks};
use mcp::{ServedTools, ToolServer};

/// The versions of the CLI that the tests of this crate run against; another one is warned about.
pub const TESTED_CLI_VERSIONS: [&str; 2] = ["2.1.316", "2.1.332"];

/// The versions of the CLI that live segments are proven on (design.md 4); another one ends its
/// process at each gated call, by its own deferral.
pub const LIVE_CLI_VERSIONS: [&str; 2] = ["2.1.316", "2.1.332"];

/// How gated calls wait for decisions and outcomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum GatedCallWait {
    /// The process waits with them for as long as the Flow's live window, all calls of a reply at
    /// once, and every tool boundary is a checkpoint. With a CLI that is none of
    /// [`LIVE_CLI_VERSIONS`], as [`GatedCallWait::Native`].
    #[default]
    Live,
    /// The CLI's own documented deferral: the process ends at the first gated call of a reply, the
    /// model is asked again for the second, and a crash repeats the segment.
    Native,
}

/// Whether the CLI of this runner may run live segments: yes, until a version shows up that is not
/// proven.
#[derive(Debug, Clone, Default)]
struct LiveProof(Arc<AtomicBool>);

impl LiveProof {
    fn holds(&self) -> bool {
        !self.0.load(Ordering::Relaxed)
    }

    fn refute(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs an agent by the Claude Code CLI. Created by [`ClaudeAgentRunner::builder`].
///
/// Each segment is one CLI process. Custom reads run inside it; a call that changes something or
/// needs a person ends it, and the next segment answers the call from its record.
pub struct ClaudeAgentRunner {
    options: OptionsSource,
    tools: BTreeMap<String, CustomTool>,
    custom_policies: BTreeMap<String, ToolPolicy>,
    server_name: String,
    policies: ToolPolicies,
    hooks: Hooks,
    launcher: Arc<dyn CliLauncher>,
    gated_calls: GatedCallWait,
    live: LiveProof,
    warm: WarmProcesses,
}

type OptionsFn =
    dyn Fn(&RunModelContext) -> Result<ClaudeAgentOptions, AttemptFailure> + Send + Sync;

enum OptionsSource {
    Fixed(Box<ClaudeAgentOptions>),
    PerAttempt(Arc<OptionsFn>),
}

impl ClaudeAgentRunner {
    /// Starts to define a runner whose segments all have these options.
    pub fn builder(options: ClaudeAgentOptions) -> ClaudeAgentRunnerBuilder {
        ClaudeAgentRunnerBuilder::new(OptionsSource::Fixed(Box::new(options)))
    }

    /// Starts to define a runner that asks for the options of each attempt.
    ///
    /// The function must give the same options for the same turn: a resumed segment needs the tools
    /// and the working directory that the segment before it had.
    pub fn builder_with(
        options: impl Fn(&RunModelContext) -> Result<ClaudeAgentOptions, AttemptFailure>
        + Send
        + Sync
        + 'static,
    ) -> ClaudeAgentRunnerBuilder {
        ClaudeAgentRunnerBuilder::new(OptionsSource::PerAttempt(Arc::new(options)))
    }

    /// Returns what one segment runs with.
    fn options(&self, context: &RunModelContext) -> Result<ClaudeAgentOptions, AttemptFailure> {
        let mut options = match &self.options {
            OptionsSource::Fixed(options) => options.as_ref().clone(),
            OptionsSource::PerAttempt(options) => options(context)?,
        };
        options.apply(&context.settings);
        options
            .check(&self.agent_tools())
            .map_err(|error| AttemptFailure::new(FailureClass::Options, error.to_string()))?;
        let is_unknown = |it: &&String| !builder::CLAUDE_CODE_TOOLS.contains(&it.as_str());
        for tool in options.tools.iter().filter(is_unknown) {
            tracing::warn!(%tool, "the tested versions of the Claude Code CLI have no such tool");
        }
        for variable in options.environment.left_out() {
            tracing::warn!(%variable, "this variable of the options is not handed on to the CLI");
        }
        Ok(options)
    }

    fn agent_tools(&self) -> AgentTools<'_> {
        AgentTools {
            server_name: self.server_name.as_str(),
            custom: &self.custom_policies,
            policies: &self.policies,
            ruled: self.hooks.rules.keys().map(String::as_str).collect(),
        }
    }
}

#[async_trait]
impl AgentFrameworkRunner for ClaudeAgentRunner {
    async fn run_model(
        &self,
        mut request: RunModelRequest,
        link: SegmentLink,
    ) -> Result<RunModelOutcome, AttemptFailure> {
        let options = self.options(&request.context)?;
        let mut messages = Vec::new();
        while let Some(page) = request
            .history
            .next_page()
            .await
            .map_err(|error| AttemptFailure::new(FailureClass::Store, error.to_string()))?
        {
            messages.extend(page);
        }
        let conversation = read_conversation(messages.iter().map(|it| &it.framework_item))?;
        drop(messages);
        let Planned {
            mut segment,
            launch,
            warm,
        } = self.plan(&options, conversation, &request)?;
        let context = request.context;
        let resident = match &warm {
            Some(key) => {
                (self.warm)
                    .claim(&context.session_id, key, context.epoch)
                    .await
            }
            None => None,
        };
        segment.is_warm = resident.is_some();
        let stays_with = StartedWith::of(&launch, &segment.setup);
        let care = Care {
            versions: options.cli_version_policy,
            redaction: Redaction::of(
                &launch.environment,
                &options.mcp_servers,
                options.api_key_helper.as_ref(),
            ),
            live_window: context.live_window,
            live: self.live.clone(),
        };
        let segment = Segment::new(segment)?;
        let source = match resident {
            Some(mut resident) => {
                resident.server.serve_turn(context.turn_id);
                Source::Warm(resident)
            }
            None => {
                let replay_only = (request.calls.last())
                    .map(|it| it.tool_name.clone())
                    .filter(|it| !self.tools.contains_key(it));
                let served = ServedTools {
                    server_name: self.server_name.clone(),
                    tools: self.tools.clone(),
                    replay_only,
                    session_id: context.session_id.clone(),
                };
                Source::Start(launch, ToolServer::start(served, context.turn_id))
            }
        };
        let (session, epoch, window) = (
            context.session_id.clone(),
            context.epoch,
            context.live_window,
        );
        let hooks = HookRuns::new(self.hooks.clone(), context);
        let launcher = self.launcher.as_ref();
        let driven =
            drive::drive(launcher, source, segment, hooks, link, request.slot, care).await?;
        if let Some((resident, claude_session, last_entry)) = driven.resident {
            let key = WarmKey {
                claude_session,
                last_entry,
                started_with: stays_with,
            };
            self.warm.keep(session, key, epoch, resident, window);
        }
        Ok(driven.outcome)
    }

    async fn call_tool(&self, call: ToolCallRequest) -> ToolCallEnd {
        let Some(tool) = self.tools.get(&call.tool_name) else {
            return ToolCallEnd::NotRun {
                error: format!("the tool {} is not offered any more", call.tool_name),
            };
        };
        let execution = DeferredToolExecution::new(call.attempt, call.idempotency_key, call.fence);
        let mut context = ToolContext::inline(call.session_id, call.turn_id, call.tool_call_id);
        context.deferred_execution = Some(execution);
        match run_guarded(tool, &call.arguments, context).await {
            ToolEnd::Output(output) if output.is_error => {
                ToolCallEnd::Failed { error: output.text }
            }
            ToolEnd::Output(output) => ToolCallEnd::Succeeded {
                output: output.text,
            },
            ToolEnd::InvalidArguments(error) => ToolCallEnd::NotRun { error },
            ToolEnd::Failed(error) => ToolCallEnd::Failed { error },
            ToolEnd::AttemptFailed(source) => ToolCallEnd::Unknown {
                detail: source.to_string(),
            },
            ToolEnd::Panicked => ToolCallEnd::Unknown {
                detail: "the handler panicked".to_owned(),
            },
            ToolEnd::DeadlineExceeded => ToolCallEnd::Unknown {
                detail: format!(
                    "the handler ran longer than {} s",
                    tool.deadline().as_secs()
                ),
            },
        }
    }

    async fn sweep_leftovers(&self) {
        if let Err(error) = self.launcher.sweep_leftovers().await {
            tracing::warn!(%error, "what earlier workers left behind cannot be seen");
        }
    }
}

impl fmt::Debug for ClaudeAgentRunner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClaudeAgentRunner")
            .field("server_name", &self.server_name)
            .field("tools", &self.tools.keys())
            .field("launcher", &self.launcher)
            .finish_non_exhaustive()
    }
}

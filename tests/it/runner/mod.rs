//! The runner's segments, on the fake CLI and on the real ones: the same scenarios, step by step,
//! with the test in the place of the session.

/// Runs a scenario on the fake CLI and on both pinned CLIs.
macro_rules! on_each_cli {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        mod fake {
            use super::World;
            $($(#[$doc])* #[tokio::test] async fn $name() {
                let world = World::fake();
                super::$name(&world).await;
                world.assert_clean();
            })*
        }
        mod cli_2_1_316 {
            use super::World;
            $($(#[$doc])* #[tokio::test] async fn $name() {
                let Some(world) = World::real("2.1.316").await else { return };
                super::$name(&world).await;
                world.assert_clean();
            })*
        }
        mod cli_2_1_332 {
            use super::World;
            $($(#[$doc])* #[tokio::test] async fn $name() {
                let Some(world) = World::real("2.1.332").await else { return };
                super::$name(&world).await;
                world.assert_clean();
            })*
        }
    };
}

mod agents;
mod api_failures;
mod faults;
mod guards;
mod handshake;
mod hooks;
mod limits;
mod memory;
mod options;
mod processes;
mod refusals;
mod rules;
mod scenarios;
mod settings;
mod streams;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use abide::event::LiveTextKind;
use abide::failure::AttemptFailure;
use abide::ids::{
    IdempotencyKey, LeaseEpoch, Revision, SessionId, StepId, Timestamp, ToolCallId, TurnId,
};
use abide::policy::{Approval, ToolEffect, ToolPolicies, ToolPolicy};
use abide::record::{FrameworkItem, MessageRole, StoredMessage, ToolOutcome};
use abide::runner::{
    AgentFrameworkRunner as _, ClaudeAgentOptions, ClaudeAgentRunner, ClaudeAgentRunnerBuilder,
    CliEnvironment, GatedCallWait, History, LinkError, RunModelRequest, SegmentEvent, SegmentLink,
    SegmentReply, SegmentUpdate, ToolCallEnd, ToolCallRequest,
};
use abide::testing::launcher::{FakeCliHandle, FakeCliLauncher};
use abide::testing::messages_api::{ModelScript, ScriptedMessagesApi};
use abide::testing::real_cli::{RealCli, isolated_environment};
use abide::tool::{CustomTool, ToolContext, ToolError, ToolOutput};
use abide::transport::{CliLauncher, SubprocessLauncher};
use abide::turn::{
    CallPlace, NewMessage, RequestedCall, ResumedCall, ResumedFate, RunModelContext,
    RunModelOutcome,
};
use schemars::JsonSchema;
use serde::Deserialize;
use tempfile::TempDir;
use tokio::sync::{mpsc, watch};

/// A CLI, and a place for it to work.
pub(crate) struct World {
    launcher: Arc<dyn CliLauncher>,
    environment: CliEnvironment,
    directory: TempDir,
    kind: Kind,
}

enum Kind {
    Fake(FakeCliHandle),
    Real(ScriptedMessagesApi),
    Other,
}

impl World {
    pub(crate) fn fake() -> Self {
        let launcher = FakeCliLauncher::new();
        let handle = launcher.handle();
        Self {
            launcher: Arc::new(launcher),
            environment: CliEnvironment::empty(),
            directory: TempDir::new().unwrap(),
            kind: Kind::Fake(handle),
        }
    }

    /// Any other CLI, in this environment.
    pub(crate) fn other(
        launcher: impl CliLauncher + 'static,
        environment: &[(&str, &str)],
    ) -> Self {
        let environment = environment
            .iter()
            .fold(CliEnvironment::empty(), |it, (name, value)| {
                it.set(*name, *value)
            });
        Self {
            launcher: Arc::new(launcher),
            environment,
            directory: TempDir::new().unwrap(),
            kind: Kind::Other,
        }
    }

    /// The real CLI of this version; `None`, said aloud, when it is not installed.
    pub(crate) async fn real(version: &str) -> Option<Self> {
        Self::real_over(version, ModelScript::commands()).await
    }

    /// The real CLI of this version, over an API that answers like this.
    pub(crate) async fn real_over(version: &str, script: ModelScript) -> Option<Self> {
        let cli = RealCli::find(version, Path::new(env!("CARGO_MANIFEST_DIR"))).unwrap()?;
        let api = ScriptedMessagesApi::start(script).await.unwrap();
        let directory = TempDir::new().unwrap();
        let home = directory.path().join("home");
        std::fs::create_dir(&home).unwrap();
        let environment = isolated_environment(&api.base_url(), &home)
            .into_iter()
            .fold(CliEnvironment::empty(), |it, (name, value)| {
                it.set(name, value)
            });
        let launcher =
            SubprocessLauncher::new(cli.program()).with_work_root(directory.path().join("work"));
        Some(Self {
            launcher: Arc::new(launcher),
            environment,
            directory,
            kind: Kind::Real(api),
        })
    }

    pub(crate) fn handle(&self) -> &FakeCliHandle {
        match &self.kind {
            Kind::Fake(handle) => handle,
            Kind::Real(_) | Kind::Other => panic!("only the fake CLI has a handle"),
        }
    }

    /// The requests to the model so far; none that could be seen with the fake CLI.
    pub(crate) fn api(&self) -> Option<&ScriptedMessagesApi> {
        match &self.kind {
            Kind::Fake(_) | Kind::Other => None,
            Kind::Real(api) => Some(api),
        }
    }

    /// A file in the CLI's working directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn options(&self) -> ClaudeAgentOptions {
        ClaudeAgentOptions::new(self.directory.path())
            .with_model("claude-sonnet-5")
            .with_tools(["Bash", "Read"])
            .with_environment(self.environment.clone())
    }

    /// Nobody did anything wrong: no frame was refused by the fake, no request was unserved.
    pub(crate) fn assert_clean(&self) {
        match &self.kind {
            Kind::Fake(handle) => assert_eq!(handle.violations(), [] as [String; 0]),
            Kind::Real(api) => api.assert_all_served(),
            Kind::Other => {}
        }
    }

    /// Sets a variable of the CLI.
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.environment = self.environment.clone().set(name, value);
    }

    /// Puts another launcher in front of the world's.
    pub(crate) fn launch_through<L: CliLauncher + 'static>(
        &mut self,
        wrap: impl FnOnce(Arc<dyn CliLauncher>) -> L,
    ) {
        self.launcher = Arc::new(wrap(Arc::clone(&self.launcher)));
    }

    /// How often a Bash call with the marker ran. The command appends a line to a file.
    pub(crate) fn bash_runs(&self) -> usize {
        match &self.kind {
            Kind::Fake(handle) => handle.effects().len(),
            Kind::Real(_) | Kind::Other => {
                std::fs::read_to_string(self.directory.path().join("marker"))
                    .unwrap_or_default()
                    .lines()
                    .count()
            }
        }
    }
}

#[derive(Deserialize, JsonSchema)]
struct Order {
    order_id: String,
}

/// What the handlers did.
#[derive(Debug, Clone, Default)]
pub(crate) struct Desk(Arc<Mutex<Vec<String>>>);

impl Desk {
    pub(crate) fn runs(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    fn tool(
        &self,
        name: &str,
        act: impl Fn(&str, &ToolContext) -> Result<ToolOutput, ToolError>
        + Clone
        + Send
        + Sync
        + 'static,
    ) -> CustomTool {
        let desk = self.clone();
        let said = name.to_owned();
        CustomTool::new(name, "A tool of the desk", move |order: Order, context| {
            let end = act(&order.order_id, &context);
            desk.0
                .lock()
                .unwrap()
                .push(format!("{said} {}", order.order_id));
            async move { end }
        })
    }

    /// A read, a write, and reads that fail in each way.
    pub(crate) fn tools(&self) -> Vec<CustomTool> {
        vec![
            self.tool("look_up", |order, _| {
                Ok(ToolOutput::text(format!("order {order} is paid")))
            })
            .with_effect(ToolEffect::Read),
            self.tool("refund", |order, context| {
                let key = context
                    .deferred_execution
                    .as_ref()
                    .map(|it| it.idempotency_key.to_string());
                Ok(ToolOutput::text(format!("refunded {order} under {key:?}")))
            }),
            self.tool("said_no", |_, _| Ok(ToolOutput::error("no such order")))
                .with_effect(ToolEffect::Read),
            self.tool("failing", |_, _| Err(ToolError::failed("closed today")))
                .with_effect(ToolEffect::Read),
            self.tool("broken", |_, _| {
                Err(ToolError::attempt("password is hunter2"))
            })
            .with_effect(ToolEffect::Read),
            self.tool("panicking", |order, _| {
                assert!(order.is_empty(), "planned");
                Ok(ToolOutput::text(""))
            })
            .with_effect(ToolEffect::Read),
            self.tool("long", |_, _| Ok(ToolOutput::text("x".repeat(200_000))))
                .with_effect(ToolEffect::Read),
        ]
    }
}

/// What the test says when a call of the CLI wants to start.
#[derive(Clone)]
pub(crate) enum Start {
    Grant,
    Final(ToolOutcome),
    Supersede,
    Forbid,
}

/// One agent and its conversation, as a session keeps them.
pub(crate) struct Agent {
    runner: ClaudeAgentRunner,
    desk: Desk,
    messages: Vec<StoredMessage>,
    start: Start,
}

/// What one segment gave.
pub(crate) struct Segmented {
    pub(crate) end: Result<RunModelOutcome, AttemptFailure>,
    pub(crate) events: Vec<SegmentEvent>,
    pub(crate) live: String,
}

impl Agent {
    pub(crate) fn new(world: &World) -> Self {
        Self::build(world, |builder, desk| {
            desk.tools()
                .into_iter()
                .fold(builder, ClaudeAgentRunnerBuilder::custom_tool)
        })
    }

    pub(crate) fn build(
        world: &World,
        define: impl FnOnce(ClaudeAgentRunnerBuilder, &Desk) -> ClaudeAgentRunnerBuilder,
    ) -> Self {
        Self::build_with(world, world.options(), define)
    }

    pub(crate) fn build_with(
        world: &World,
        options: ClaudeAgentOptions,
        define: impl FnOnce(ClaudeAgentRunnerBuilder, &Desk) -> ClaudeAgentRunnerBuilder,
    ) -> Self {
        let desk = Desk::default();
        let policies = ToolPolicies::new()
            .with("Read", ToolPolicy::new(ToolEffect::Read))
            .with("Agent", ToolPolicy::new(ToolEffect::Read))
            .with(
                "Bash",
                ToolPolicy::new(ToolEffect::Unclassified).with_approval(Approval::Required),
            );
        let builder = ClaudeAgentRunner::builder(options)
            .tool_policies(policies)
            .gated_call_wait(GatedCallWait::Native)
            .launcher(Arc::clone(&world.launcher));
        Self {
            runner: define(builder, &desk).build().unwrap(),
            desk,
            messages: Vec::new(),
            start: Start::Grant,
        }
    }

    pub(crate) fn say(&mut self, text: &str) {
        self.store(
            MessageRole::User,
            text,
            FrameworkItem::user_prompt(text).unwrap(),
        );
    }

    /// Runs a turn that needs no call, and returns the answer.
    pub(crate) async fn turn(&mut self, text: &str) -> String {
        self.say(text);
        let segment = self.segment(Vec::new()).await;
        self.complete(segment)
    }

    /// Runs a turn up to its first gated call.
    pub(crate) async fn turn_to_call(&mut self, text: &str) -> RequestedCall {
        self.say(text);
        let segment = self.segment(Vec::new()).await;
        self.requested(segment)
    }

    pub(crate) fn complete(&mut self, segment: Segmented) -> String {
        match segment.end.unwrap() {
            RunModelOutcome::TurnCompleted { messages, .. } => {
                let text = messages.last().unwrap().text.clone();
                self.keep(messages);
                text
            }
            RunModelOutcome::ToolCallsRequested { calls, .. } => panic!("{calls:?}"),
            RunModelOutcome::Parked | RunModelOutcome::Cancelled { .. } => panic!("no answer"),
        }
    }

    pub(crate) fn requested(&mut self, segment: Segmented) -> RequestedCall {
        match segment.end.unwrap() {
            RunModelOutcome::ToolCallsRequested {
                calls, messages, ..
            } => {
                self.keep(messages);
                assert_eq!(calls.len(), 1);
                calls.into_iter().next().unwrap()
            }
            RunModelOutcome::TurnCompleted { messages, .. } => panic!("{messages:?}"),
            RunModelOutcome::Parked | RunModelOutcome::Cancelled { .. } => panic!("no answer"),
        }
    }

    /// Resumes with the call's fate.
    pub(crate) async fn resume(&self, call: &RequestedCall, fate: ResumedFate) -> Segmented {
        self.segment(vec![resumed(call, fate)]).await
    }

    /// Runs a gated call in its Step.
    pub(crate) async fn step(&self, call: &RequestedCall) -> ToolCallEnd {
        self.runner
            .call_tool(ToolCallRequest::new(
                session(),
                TurnId::new(1),
                call.tool_call_id.clone(),
                &call.tool_name,
                &call.arguments,
                1,
                IdempotencyKey::of_call(&session(), TurnId::new(1), &call.tool_call_id),
                LeaseEpoch(1),
            ))
            .await
    }

    pub(crate) async fn segment(&self, calls: Vec<ResumedCall>) -> Segmented {
        // Each turn has an id of its own: the CLI reads a prompt under an id once.
        let prompts = self
            .messages
            .iter()
            .filter(|it| it.role == MessageRole::User);
        let turn_id = TurnId::new(prompts.count() as u64);
        let context = RunModelContext::new(session(), turn_id, StepId::new(1));
        let history = History::from_messages(self.messages.clone());
        let (updates, mut updated) = mpsc::unbounded_channel();
        let (_revision, watched) = watch::channel(Revision(1));
        let link = SegmentLink::new(updates, watched);
        let run = self
            .runner
            .run_model(RunModelRequest::new(context, history, calls), link);
        tokio::pin!(run);
        let mut events = Vec::new();
        let mut live = String::new();
        let end = loop {
            tokio::select! {
                biased;
                Some(update) = updated.recv() => self.answer(update, &mut events, &mut live),
                end = &mut run => break end,
            }
        };
        while let Ok(update) = updated.try_recv() {
            self.answer(update, &mut events, &mut live);
        }
        Segmented { end, events, live }
    }

    fn answer(&self, update: SegmentUpdate, events: &mut Vec<SegmentEvent>, live: &mut String) {
        match update {
            SegmentUpdate::Event(event, reply) => {
                let answer = match (&event, &self.start) {
                    (SegmentEvent::CallStarting { .. }, Start::Grant) => Ok(SegmentReply::Granted),
                    (SegmentEvent::CallStarting { .. }, Start::Final(outcome)) => {
                        Ok(SegmentReply::Final(outcome.clone()))
                    }
                    (SegmentEvent::CallStarting { .. }, Start::Supersede) => {
                        Err(LinkError::Superseded)
                    }
                    (SegmentEvent::CallStarting { .. }, Start::Forbid) => {
                        Ok(SegmentReply::NotPermitted)
                    }
                    _ => Ok(SegmentReply::Accepted),
                };
                events.push(event);
                // The runner may have left already.
                let _ = reply.send(answer);
            }
            SegmentUpdate::Live(LiveTextKind::Text, text) => live.push_str(&text),
            _ => {}
        }
    }

    fn keep(&mut self, messages: Vec<NewMessage>) {
        for message in messages {
            self.store(message.role, &message.text, message.item);
        }
    }

    fn store(&mut self, role: MessageRole, text: &str, item: FrameworkItem) {
        let sequence = self.messages.len() as u64 + 1;
        self.messages.push(StoredMessage::new(
            sequence,
            TurnId::new(1),
            role,
            text.to_owned(),
            Timestamp(0),
            item,
        ));
    }
}

pub(crate) fn resumed(call: &RequestedCall, fate: ResumedFate) -> ResumedCall {
    ResumedCall::new(
        call.tool_call_id.clone(),
        &call.tool_name,
        &call.arguments,
        call.place,
        fate,
    )
}

fn session() -> SessionId {
    SessionId::new("desk-1").unwrap()
}

pub(crate) fn succeeded(output: &str) -> ResumedFate {
    ResumedFate::Final(ToolOutcome::Succeeded {
        output: output.to_owned(),
    })
}

pub(crate) fn place_of(call: &RequestedCall) -> CallPlace {
    call.place
}

pub(crate) fn id_of(call: &RequestedCall) -> ToolCallId {
    call.tool_call_id.clone()
}

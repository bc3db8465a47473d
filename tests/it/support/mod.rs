//! A world for one test: an engine, a store, tools whose effects are counted outside, and a CLI:
//! the fake one in the process, or the real one on a scripted Messages API.

pub(crate) mod alone;
pub(crate) mod counted;
pub(crate) mod dice;
pub(crate) mod patience;
pub(crate) mod time;
mod tools;

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use abide::client::{AgentSessionClient, Observed, ResolveInterrupt, StartSession};
use abide::engine::{LocalEngine, LocalEngineOptions};
use abide::event::{EventKind, SessionEvent};
use abide::flow::{AgentSessionFlow, FlowRegistry, SessionOptions};
use abide::ids::{EventCursor, FlowType, SessionId};
use abide::policy::ToolPolicies;
use abide::process::ProcessIdentity;
use abide::record::{MessageRole, ToolOutcome};
use abide::runner::{
    ClaudeAgentOptions, ClaudeAgentRunner, CliEnvironment, GatedCallWait, PreToolUse,
};
use abide::snapshot::{AgentSnapshot, PendingInterrupt};
use abide::spend::UsageLimit;
use abide::store::{MemoryStateStore, RowKey, RowKind, StateStore};
use abide::testing::launcher::{FakeCliHandle, FakeCliLauncher};
use abide::testing::messages_api::{ModelScript, ScriptedMessagesApi};
use abide::testing::real_cli::{RealCli, isolated_environment};
use abide::transport::{CliLauncher, SubprocessLauncher};
use serde_json::{Map, Value};
use tempfile::TempDir;

use counted::{Counted, Stop};
pub(crate) use tools::Effects;

/// Says whether a person has to decide about a call.
pub(crate) type Rule = fn(&PreToolUse) -> bool;

/// What people are shown of a tool's arguments.
pub(crate) type View = fn(&str, &Map<String, Value>) -> Value;

/// What a test needs of the world around the crate.
pub(crate) struct World {
    pub(crate) effects: Effects,
    pub(crate) store: Arc<dyn StateStore>,
    pub(crate) cli: Cli,
    engine: Option<LocalEngine>,
    pub(crate) engine_options: LocalEngineOptions,
    /// How gated calls wait, and how long a process waits with them.
    pub(crate) wait: GatedCallWait,
    pub(crate) session_options: SessionOptions,
    /// The policies of the tools that have no annotations of their own.
    pub(crate) policies: ToolPolicies,
    pub(crate) spend_limit: Option<UsageLimit>,
    /// Variables of the real CLI besides those of every test.
    pub(crate) variables: Vec<(&'static str, &'static str)>,
    /// The approval rules of the next engine, by policy name.
    pub(crate) rules: Vec<(&'static str, Rule)>,
    /// The tools of the CLI that the model has.
    pub(crate) tools: Vec<&'static str>,
    /// What people are shown of arguments.
    pub(crate) view: Option<View>,
    /// Where the worker stands still.
    pub(crate) stop: Arc<Stop>,
    starts: Arc<AtomicUsize>,
    processes: Arc<Mutex<Vec<ProcessIdentity>>>,
    directory: TempDir,
}

/// Which CLI the world has.
pub(crate) enum Cli {
    Fake {
        launcher: Arc<FakeCliLauncher>,
        handle: FakeCliHandle,
    },
    Real {
        program: PathBuf,
        api: ScriptedMessagesApi,
    },
}

impl World {
    /// A world with the fake CLI.
    pub(crate) async fn fake() -> Self {
        Self::fake_over(Arc::new(MemoryStateStore::new())).await
    }

    /// A world with the fake CLI, with this way for gated calls to wait.
    pub(crate) async fn fake_with(wait: GatedCallWait) -> Self {
        let launcher = Arc::new(FakeCliLauncher::new());
        let handle = launcher.handle();
        let cli = Cli::Fake { launcher, handle };
        let mut world = Self::without_engine(cli, Arc::new(MemoryStateStore::new()));
        world.wait = wait;
        world.start_engine().await;
        world
    }

    /// A world with the fake CLI over this store.
    pub(crate) async fn fake_over(store: Arc<dyn StateStore>) -> Self {
        let launcher = Arc::new(FakeCliLauncher::new());
        let handle = launcher.handle();
        Self::with_cli(Cli::Fake { launcher, handle }, store).await
    }

    /// A world with the real CLI; `None`, said aloud, where there is none and none is required.
    pub(crate) async fn real(version: &str) -> Option<Self> {
        Self::real_with(version, GatedCallWait::default()).await
    }

    /// As [`World::real`], with this way for gated calls to wait.
    pub(crate) async fn real_with(version: &str, wait: GatedCallWait) -> Option<Self> {
        let mut world = Self::real_over(version, ModelScript::commands()).await?;
        world.wait = wait;
        world.start_engine().await;
        Some(world)
    }

    /// As [`World::real`], over an API with this script, and with no engine yet.
    pub(crate) async fn real_over(version: &str, script: ModelScript) -> Option<Self> {
        let program = real_cli(version)?.program().to_owned();
        let api = ScriptedMessagesApi::start(script)
            .await
            .expect("the API starts");
        let store = Arc::new(MemoryStateStore::new());
        Some(Self::without_engine(Cli::Real { program, api }, store))
    }

    /// A world with the fake CLI and no engine yet, whose engines live in the time of the tokio
    /// runtime: where a test pauses it, back-off and leases cost nothing.
    pub(crate) fn fake_in_runtime_time() -> Self {
        let launcher = Arc::new(FakeCliLauncher::new());
        let handle = launcher.handle();
        let cli = Cli::Fake { launcher, handle };
        let mut world = Self::without_engine(cli, Arc::new(MemoryStateStore::new()));
        world.engine_options.clock = Arc::new(time::RuntimeClock::starting_now());
        world
    }

    async fn with_cli(cli: Cli, store: Arc<dyn StateStore>) -> Self {
        let mut world = Self::without_engine(cli, store);
        world.start_engine().await;
        world
    }

    fn without_engine(cli: Cli, store: Arc<dyn StateStore>) -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        for name in ["home", "work", "runs"] {
            std::fs::create_dir(directory.path().join(name)).expect("a directory");
        }
        Self {
            effects: Effects::default(),
            store,
            cli,
            engine: None,
            engine_options: LocalEngineOptions::default(),
            wait: GatedCallWait::Native,
            session_options: SessionOptions::default(),
            policies: ToolPolicies::new(),
            spend_limit: None,
            tools: vec!["Bash", "Read"],
            view: None,
            variables: Vec::new(),
            rules: Vec::new(),
            stop: Arc::default(),
            starts: Arc::default(),
            processes: Arc::default(),
            directory,
        }
    }

    /// Starts an engine over the world's store, with a new HOME each time, as on another worker.
    pub(crate) async fn start_engine(&mut self) {
        let store = Arc::clone(&self.store);
        self.start_engine_over(store).await;
    }

    /// Starts an engine over another store in front of the world's.
    pub(crate) async fn start_engine_over(&mut self, store: Arc<dyn StateStore>) {
        let mut flow = AgentSessionFlow::new("Test", self.runner(), self.session_options.clone())
            .expect("a flow");
        if let Some(limit) = self.spend_limit {
            flow = flow.with_spend_limit(limit);
        }
        if let Some(view) = self.view {
            flow = flow.with_approval_view(view);
        }
        let registry = FlowRegistry::new().register(flow).expect("a registry");
        self.engine = Some(
            LocalEngine::start_with(registry, store, self.engine_options.clone())
                .await
                .expect("an engine"),
        );
    }

    fn runner(&self) -> ClaudeAgentRunner {
        let home = TempDir::new_in(self.directory.path())
            .expect("a home")
            .keep();
        let options = ClaudeAgentOptions::new(self.directory.path().join("work"))
            .with_model("claude-sonnet-5")
            .with_tools(self.tools.iter().copied());
        let (options, launcher): (_, Arc<dyn CliLauncher>) = match &self.cli {
            Cli::Fake { launcher, .. } => (
                options.with_environment(CliEnvironment::empty()),
                Arc::clone(launcher) as Arc<dyn CliLauncher>,
            ),
            Cli::Real { program, api } => {
                let mut environment = CliEnvironment::empty();
                for (name, value) in isolated_environment(&api.base_url(), &home) {
                    environment = environment.set(name, value);
                }
                for (name, value) in &self.variables {
                    environment = environment.set(*name, *value);
                }
                let launcher = SubprocessLauncher::new(program)
                    .with_work_root(self.directory.path().join("runs"));
                (options.with_environment(environment), Arc::new(launcher))
            }
        };
        let launcher = Counted {
            inner: launcher,
            starts: Arc::clone(&self.starts),
            processes: Arc::clone(&self.processes),
            stop: Arc::clone(&self.stop),
        };
        let mut builder = ClaudeAgentRunner::builder(options)
            .launcher(Arc::new(launcher))
            .tool_policies(self.policies.clone())
            .gated_call_wait(self.wait);
        for tool in tools::all(&self.effects) {
            builder = builder.custom_tool(tool);
        }
        for (name, asks) in &self.rules {
            builder = builder.approval_if(*name, *asks);
        }
        builder.build().expect("a runner")
    }

    /// How many CLI processes were started.
    pub(crate) fn starts(&self) -> usize {
        self.starts.load(Ordering::SeqCst)
    }

    /// Waits until no CLI process is left.
    pub(crate) async fn wait_until_no_cli(&self) {
        while self.lives_a_cli() {
            // sleeps because a process that ends tells nobody but its parent's waiting thread
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }

    fn lives_a_cli(&self) -> bool {
        match &self.cli {
            Cli::Fake { handle, .. } => handle.launches().iter().any(|it| it.exit.is_none()),
            Cli::Real { .. } => {
                let processes = self.processes.lock().expect("nobody panics with it");
                let mut processes = processes.iter();
                processes.any(|it| it.is_alive().expect("/proc is read"))
            }
        }
    }

    /// Waits until the session shows this, and returns what it shows.
    pub(crate) async fn wait_for_snapshot(
        &self,
        session: &SessionId,
        fits: impl Fn(&AgentSnapshot) -> bool,
    ) -> AgentSnapshot {
        let client = self.client();
        let mut events = client
            .events(session, EventCursor(0))
            .await
            .expect("events");
        loop {
            let snapshot = self.snapshot(session).await;
            if fits(&snapshot) {
                return snapshot;
            }
            next_event(&mut events).await;
        }
    }

    /// Waits until the model is answering, and returns what people see of it then.
    pub(crate) async fn wait_for_live_text(&self, session: &SessionId) -> String {
        let client = self.engine.as_ref().expect("an engine runs").client();
        let mut events = client
            .events(session, EventCursor(0))
            .await
            .expect("events");
        loop {
            let observed = events.next().await.expect("the store is there");
            if let Observed::Live(live) = observed.expect("an event") {
                return live.text;
            }
        }
    }

    /// Waits until the turn waits for people without a process.
    pub(crate) async fn wait_until_parked(&self, session: &SessionId) {
        self.wait_for(session, |it| matches!(it.kind, EventKind::TurnSuspended))
            .await;
    }

    /// Ends the engine as the death of its worker would.
    pub(crate) fn crash(&mut self) {
        self.engine = None;
    }

    /// Leaves the engine to itself, as a worker that stands still.
    pub(crate) fn leave_engine(&mut self) -> LocalEngine {
        self.engine.take().expect("an engine runs")
    }

    /// Ends the engine in order.
    pub(crate) async fn shut_down(&mut self) {
        if let Some(engine) = self.engine.take() {
            engine.shutdown().await;
        }
    }

    /// A client that needs no engine.
    pub(crate) fn client(&self) -> AgentSessionClient {
        AgentSessionClient::new(Arc::clone(&self.store))
    }

    /// A path in the CLI's working directory.
    pub(crate) fn work_path(&self, name: &str) -> PathBuf {
        self.directory.path().join("work").join(name)
    }

    /// Waits until this file is in the CLI's working directory.
    pub(crate) async fn wait_for_file(&self, name: &str) {
        let path = self.work_path(name);
        while !path.exists() {
            // sleeps because a tool of the real CLI makes it, and tells nobody.
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }

    /// How often a shell command of the scenario ran: each adds a line to `marker`.
    pub(crate) fn bash_runs(&self) -> usize {
        match &self.cli {
            Cli::Fake { handle, .. } => handle
                .effects()
                .iter()
                .filter(|it| it.tool == "Bash")
                .count(),
            Cli::Real { .. } => {
                std::fs::read_to_string(self.work_path("marker")).map_or(0, |it| it.lines().count())
            }
        }
    }

    pub(crate) fn open_gate(&self, name: &str) {
        match &self.cli {
            Cli::Fake { handle, .. } => handle.open_gate(name),
            Cli::Real { api, .. } => api.gate(name).open(),
        }
    }

    /// Checks what neither CLI forgives: a broken protocol, a request that no script serves.
    pub(crate) async fn check_cli(&mut self) {
        self.shut_down().await;
        match &self.cli {
            Cli::Fake { handle, .. } => assert_eq!(handle.violations(), Vec::<String>::new()),
            Cli::Real { api, .. } => api.assert_all_served(),
        }
    }

    pub(crate) async fn start_session(&self, id: &str, message: &str) -> SessionId {
        let session = SessionId::new(id).expect("a session id");
        let flow_type = FlowType::new("Test").expect("a flow type");
        let start = StartSession::new(session.clone(), flow_type).with_initial_message(message);
        assert!(
            self.client()
                .start_session(start)
                .await
                .expect("the session starts")
        );
        session
    }

    pub(crate) async fn send(&self, session: &SessionId, text: &str) {
        self.client()
            .send_user_message(session, text, None)
            .await
            .expect("the message is accepted");
    }

    pub(crate) async fn snapshot(&self, session: &SessionId) -> AgentSnapshot {
        self.client().snapshot(session).await.expect("a snapshot")
    }

    /// Waits for the first event that fits, from the beginning of the log.
    pub(crate) async fn wait_for(
        &self,
        session: &SessionId,
        fits: impl FnMut(&SessionEvent) -> bool,
    ) -> SessionEvent {
        wait_for_event(&self.client(), session, fits).await
    }

    /// Waits until the n-th turn is over.
    pub(crate) async fn wait_for_turns(&self, session: &SessionId, turns: usize) {
        let mut over = 0;
        self.wait_for(session, |event| {
            over += usize::from(ends_turn(&event.kind));
            over == turns
        })
        .await;
    }

    /// Waits for an interrupt that is open, and returns it: the first of its reply.
    pub(crate) async fn wait_for_interrupt(&self, session: &SessionId) -> PendingInterrupt {
        let snapshot = self
            .wait_for_snapshot(session, |it| !it.pending_interrupts.is_empty())
            .await;
        let mut open = snapshot.pending_interrupts.into_iter();
        open.next().expect("one is open")
    }

    pub(crate) async fn approve(&self, session: &SessionId) {
        let open = self.wait_for_interrupt(session).await;
        let answer = ResolveInterrupt::approve(open.interrupt_id).for_digest(open.digest);
        assert!(
            self.client()
                .resolve_interrupt(session, answer)
                .await
                .expect("the approval is taken")
        );
    }

    pub(crate) async fn reject(&self, session: &SessionId, message: &str) {
        let open = self.wait_for_interrupt(session).await;
        let answer = ResolveInterrupt::reject(open.interrupt_id, Some(message.to_owned()));
        assert!(
            self.client()
                .resolve_interrupt(session, answer)
                .await
                .expect("the rejection is taken")
        );
    }

    /// The conversation as a person reads it: who said what.
    pub(crate) async fn conversation(&self, session: &SessionId) -> Vec<(MessageRole, String)> {
        let messages = self.snapshot(session).await.messages;
        messages.into_iter().map(|it| (it.role, it.text)).collect()
    }

    /// What the model said last.
    pub(crate) async fn last_answer(&self, session: &SessionId) -> String {
        let messages = self.conversation(session).await;
        let last = messages
            .into_iter()
            .rev()
            .find(|(role, _)| *role == MessageRole::Assistant);
        last.expect("the model has answered").1
    }

    /// The recorded outcome of the call that asked under this interrupt.
    pub(crate) async fn outcome(
        &self,
        session: &SessionId,
        interrupt: &PendingInterrupt,
    ) -> ToolOutcome {
        let key = RowKey {
            kind: RowKind::Output,
            key: interrupt.interrupt_id.to_string(),
        };
        let row = self
            .store
            .read_rows(session, &[key])
            .await
            .expect("the row is read")
            .pop()
            .flatten();
        serde_json::from_slice(&row.expect("the call has an outcome")).expect("an outcome")
    }
}

/// Finds the real CLI, or says that it is not there.
pub(crate) fn real_cli(version: &str) -> Option<RealCli> {
    RealCli::find(version, std::path::Path::new(env!("CARGO_MANIFEST_DIR")))
        .expect("the real CLI is there")
}

/// Waits for the first event that fits, from the beginning of the log.
pub(crate) async fn wait_for_event(
    client: &AgentSessionClient,
    session: &SessionId,
    mut fits: impl FnMut(&SessionEvent) -> bool,
) -> SessionEvent {
    let mut events = client
        .events(session, EventCursor(0))
        .await
        .expect("events");
    loop {
        let event = next_event(&mut events).await;
        if fits(&event) {
            return event;
        }
    }
}

pub(crate) fn ends_turn(kind: &EventKind) -> bool {
    matches!(
        kind,
        EventKind::TurnCompleted | EventKind::TurnFailed { .. } | EventKind::TurnCancelled
    )
}

async fn next_event(events: &mut abide::client::EventStream) -> SessionEvent {
    loop {
        if let Observed::Event(event) = events
            .next()
            .await
            .expect("an event")
            .expect("the store is there")
        {
            return event;
        }
    }
}

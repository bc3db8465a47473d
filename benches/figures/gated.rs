//! A round of a gated call: from a person's approval to the end of the turn.
//!
//! Measured: the time from the call of `resolve_interrupt` to the event that the turn is complete,
//! on SQLite: the decision's commit, the Step's grant, the handler (which returns at once), its
//! outcome, the answer to the hook, the tool server's reply, the checkpoint and the last reply. The
//! raw twin is the CLI's own part of the same round: from the line that allows the call to the line
//! with the result. `parked` is the same round when no process waited: another one is started.
//!
//! `real_…` is the real CLI on a scripted Messages API; `real_warm_turn` is a further message that
//! finds its process, `real_cold_turn` one that finds none.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use abide::client::{AgentSessionClient, Observed, ResolveInterrupt, StartSession};
use abide::engine::LocalEngine;
use abide::event::EventKind;
use abide::flow::{AgentSessionFlow, FlowRegistry, SessionOptions};
use abide::ids::{EventCursor, FlowType, InterruptId, SessionId};
use abide::runner::{ClaudeAgentOptions, ClaudeAgentRunner, CliEnvironment};
use abide::store::SqliteStateStore;
use abide::testing::messages_api::{ModelScript, ScriptedMessagesApi};
use abide::testing::real_cli::{RealCli, isolated_environment};
use abide::tool::{CustomTool, ToolContext, ToolOutput};
use abide::transport::{
    CliError, CliExit, CliLauncher, CliProcess, LaunchSpec, SubprocessLauncher,
};
use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Deserialize;
use tempfile::TempDir;

use crate::report::{Effort, Figure, Group, quantile};

pub(crate) const GROUP: Group = Group {
    names: &[
        "gated_round_ms",
        "gated_round_raw_ms",
        "gated_round_parked_ms",
    ],
    run,
};

pub(crate) const REAL_GROUP: Group = Group {
    names: &[
        "real_gated_round_ms",
        "real_gated_round_raw_ms",
        "real_gated_round_parked_ms",
        "real_warm_turn_ms",
        "real_cold_turn_ms",
    ],
    run: run_real,
};

const VERSION: &str = "2.1.332";

const GATED: &str = r#"script: call refund {"order_id":"7"}"#;
const PLAIN: &str = "script: say all is well";

#[derive(Deserialize, JsonSchema)]
struct Order {
    order_id: String,
}

fn run(effort: Effort) -> Vec<Figure> {
    let program = PathBuf::from(env!("CARGO_BIN_EXE_fake-claude"));
    let environment = CliEnvironment::empty().set("FAKE_CLAUDE_SEED", "7");
    let rounds = rounds(effort, &program, &environment);
    vec![
        Figure::new("gated_round_ms", rounds.live, "ms"),
        Figure::new("gated_round_raw_ms", rounds.raw, "ms"),
        Figure::new("gated_round_parked_ms", rounds.parked, "ms"),
    ]
}

fn run_real(effort: Effort) -> Vec<Figure> {
    let found = RealCli::find(VERSION, Path::new(env!("CARGO_MANIFEST_DIR")));
    let Some(cli) = found.expect("the real CLI is there where it is required") else {
        // Said aloud by the search itself; a figure that was not taken is not a number.
        return (REAL_GROUP.names.iter())
            .map(|it| Figure::new(it, f64::NAN, "ms"))
            .collect();
    };
    let runtime = runtime();
    let home = TempDir::new().expect("a home");
    let api = runtime
        .block_on(ScriptedMessagesApi::start(ModelScript::commands()))
        .expect("the API starts");
    let mut environment = CliEnvironment::empty();
    for (name, value) in isolated_environment(&api.base_url(), home.path()) {
        environment = environment.set(name, value);
    }
    let rounds = rounds(effort, cli.program(), &environment);
    let warm = turns(effort, cli.program(), &environment, Duration::from_secs(60));
    let cold = turns(effort, cli.program(), &environment, Duration::ZERO);
    vec![
        Figure::new("real_gated_round_ms", rounds.live, "ms"),
        Figure::new("real_gated_round_raw_ms", rounds.raw, "ms"),
        Figure::new("real_gated_round_parked_ms", rounds.parked, "ms"),
        Figure::new("real_warm_turn_ms", warm, "ms"),
        Figure::new("real_cold_turn_ms", cold, "ms"),
    ]
}

/// Medians of the rounds, in milliseconds.
struct Rounds {
    live: f64,
    raw: f64,
    parked: f64,
}

fn rounds(effort: Effort, program: &Path, environment: &CliEnvironment) -> Rounds {
    let runtime = runtime();
    let (mut live, mut raw, mut parked) = (Vec::new(), Vec::new(), Vec::new());
    runtime.block_on(async {
        let waiting = Host::start(program, environment, Duration::from_secs(60)).await;
        let parking = Host::start(program, environment, Duration::ZERO).await;
        for round in 0..effort.pick(30, 1) {
            let session = waiting.begin(&format!("live-{round}"), GATED).await;
            let interrupt = waiting.interrupt(&session).await;
            waiting.clock.wait_until_asked().await;
            live.push(waiting.round(&session, interrupt).await);
            raw.push(waiting.clock.take());
            let session = parking.begin(&format!("parked-{round}"), GATED).await;
            let interrupt = parking.interrupt(&session).await;
            parking
                .wait_for(&session, |it| matches!(it, EventKind::TurnSuspended))
                .await;
            parked.push(parking.round(&session, interrupt).await);
        }
        waiting.engine.shutdown().await;
        parking.engine.shutdown().await;
    });
    Rounds {
        live: quantile(&mut live, 0.5),
        raw: quantile(&mut raw, 0.5),
        parked: quantile(&mut parked, 0.5),
    }
}

/// The median time of a further turn of a session, from the message to its answer.
fn turns(effort: Effort, program: &Path, environment: &CliEnvironment, window: Duration) -> f64 {
    let mut times = Vec::new();
    runtime().block_on(async {
        let host = Host::start(program, environment, window).await;
        let session = host.begin("turns", PLAIN).await;
        host.wait_for_turns(&session, 1).await;
        for turn in 0..effort.pick(20, 1) {
            let begun = Instant::now();
            let client = host.engine.client();
            client
                .send_user_message(&session, PLAIN, None)
                .await
                .expect("the message is accepted");
            host.wait_for_turns(&session, turn + 2).await;
            times.push(begun.elapsed().as_secs_f64() * 1e3);
        }
        host.engine.shutdown().await;
    });
    quantile(&mut times, 0.5)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Runtime::new().expect("a runtime")
}

struct Host {
    engine: LocalEngine,
    clock: Clock,
    _directory: TempDir,
}

impl Host {
    async fn start(program: &Path, environment: &CliEnvironment, window: Duration) -> Self {
        let directory = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
        for name in ["work", "runs"] {
            std::fs::create_dir(directory.path().join(name)).expect("a directory");
        }
        let clock = Clock::default();
        let launcher = Clocked {
            inner: SubprocessLauncher::new(program).with_work_root(directory.path().join("runs")),
            clock: clock.clone(),
        };
        let options = ClaudeAgentOptions::new(directory.path().join("work"))
            .with_model("claude-sonnet-5")
            .with_environment(environment.clone());
        let refund = CustomTool::new(
            "refund",
            "refunds",
            |order: Order, _: ToolContext| async move {
                Ok(ToolOutput::text(format!(
                    "order {} is refunded",
                    order.order_id
                )))
            },
        );
        let runner = ClaudeAgentRunner::builder(options)
            .launcher(Arc::new(launcher))
            .custom_tool(refund)
            .build()
            .expect("a runner");
        let options = SessionOptions::default().with_live_window(window);
        let flow = AgentSessionFlow::new("Figures", runner, options).expect("a flow");
        let store = SqliteStateStore::open(directory.path().join("store.sqlite"))
            .await
            .expect("a store");
        let registry = FlowRegistry::new().register(flow).expect("a registry");
        let engine = LocalEngine::start(registry, Arc::new(store)).await;
        Self {
            engine: engine.expect("an engine"),
            clock,
            _directory: directory,
        }
    }

    async fn begin(&self, id: &str, message: &str) -> SessionId {
        let session = SessionId::new(id).expect("an id");
        let flow_type = FlowType::new("Figures").expect("a flow type");
        let start = StartSession::new(session.clone(), flow_type).with_initial_message(message);
        let started = self.engine.client().start_session(start).await;
        started.expect("the session starts");
        session
    }

    async fn interrupt(&self, session: &SessionId) -> InterruptId {
        let mut asked = None;
        self.wait_for(session, |it| match it {
            EventKind::InterruptRequested { interrupt_id, .. } => {
                asked = Some(interrupt_id.clone());
                true
            }
            _ => false,
        })
        .await;
        asked.expect("it was asked for")
    }

    async fn round(&self, session: &SessionId, interrupt: InterruptId) -> f64 {
        let client: AgentSessionClient = self.engine.client();
        let mut events = client
            .events(session, EventCursor(0))
            .await
            .expect("events");
        let begun = Instant::now();
        client
            .resolve_interrupt(session, ResolveInterrupt::approve(interrupt))
            .await
            .expect("the approval is taken");
        loop {
            if let Some(Observed::Event(event)) = events.next().await.expect("the store is there") {
                match event.kind {
                    EventKind::TurnCompleted => return begun.elapsed().as_secs_f64() * 1e3,
                    EventKind::TurnFailed { class } => panic!("the turn failed: {class:?}"),
                    _ => {}
                }
            }
        }
    }

    async fn wait_for_turns(&self, session: &SessionId, turns: usize) {
        let mut over = 0;
        self.wait_for(session, |it| {
            over += usize::from(matches!(it, EventKind::TurnCompleted));
            over == turns
        })
        .await;
    }

    async fn wait_for(&self, session: &SessionId, mut fits: impl FnMut(&EventKind) -> bool) {
        let client = self.engine.client();
        let mut events = client
            .events(session, EventCursor(0))
            .await
            .expect("events");
        loop {
            let observed = events.next().await.expect("the store is there");
            if let Some(Observed::Event(event)) = observed
                && fits(&event.kind)
            {
                return;
            }
        }
    }
}

/// When the CLI was allowed to go on, and how long it took to its result.
#[derive(Debug, Clone, Default)]
struct Clock(Arc<Mutex<Marks>>);

#[derive(Debug, Default)]
struct Marks {
    asked: bool,
    allowed: Option<Instant>,
    took: f64,
}

impl Clock {
    fn marks(&self) -> std::sync::MutexGuard<'_, Marks> {
        self.0.lock().expect("nothing panics under it")
    }

    /// Waits until the CLI has asked about the call.
    async fn wait_until_asked(&self) {
        while !self.marks().asked {
            tokio::task::yield_now().await;
        }
    }

    fn take(&self) -> f64 {
        std::mem::take(&mut *self.marks()).took
    }
}

/// A launcher that looks at the clock.
#[derive(Debug)]
struct Clocked {
    inner: SubprocessLauncher,
    clock: Clock,
}

#[derive(Debug)]
struct ClockedProcess {
    inner: Box<dyn CliProcess>,
    clock: Clock,
}

#[async_trait]
impl CliLauncher for Clocked {
    async fn launch(&self, spec: LaunchSpec) -> Result<Box<dyn CliProcess>, CliError> {
        Ok(Box::new(ClockedProcess {
            inner: self.inner.launch(spec).await?,
            clock: self.clock.clone(),
        }))
    }
}

#[async_trait]
impl CliProcess for ClockedProcess {
    fn process_id(&self) -> Option<u32> {
        self.inner.process_id()
    }

    fn send(&mut self, line: String) -> Result<(), CliError> {
        if line.contains(r#""permissionDecision":"allow""#) {
            self.clock.marks().allowed = Some(Instant::now());
        }
        self.inner.send(line)
    }

    async fn receive(&mut self) -> Result<Option<Vec<u8>>, CliError> {
        let line = self.inner.receive().await?;
        if let Some(line) = &line {
            let holds = |text: &[u8]| line.windows(text.len()).any(|it| it == text);
            let mut marks = self.clock.marks();
            if holds(br#""hook_event_name":"PreToolUse""#) {
                marks.asked = true;
            }
            if let Some(allowed) = marks.allowed
                && holds(br#""type":"result""#)
            {
                marks.took = allowed.elapsed().as_secs_f64() * 1e3;
            }
        }
        Ok(line)
    }

    fn close_input(&mut self) {
        self.inner.close_input();
    }

    async fn shutdown(&mut self, grace: Duration) -> CliExit {
        self.inner.shutdown(grace).await
    }

    fn stderr_tail(&self) -> String {
        self.inner.stderr_tail()
    }
}

//! A worker process that tests kill: an engine over a SQLite file, with tools whose effects are
//! lines of a file outside. It says on stdout when it has reached the point it is to be killed at,
//! and never goes on from there.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use abide::engine::{LocalEngine, LocalEngineOptions};
use abide::flow::{AgentSessionFlow, FlowRegistry, SessionOptions};
use abide::policy::ToolEffect;
use abide::runner::{ClaudeAgentOptions, ClaudeAgentRunner, CliEnvironment};
use abide::store::{SqliteStateStore, StateStore};
use abide::testing::faults::{CrashPoint, CrashingStore, Side};
use abide::tool::{CustomTool, ToolContext, ToolOutput};
use abide::transport::SubprocessLauncher;
use schemars::JsonSchema;
use serde::Deserialize;

/// What the test wants, as JSON in the only argument.
#[derive(Deserialize)]
struct Plan {
    store: PathBuf,
    program: PathBuf,
    environment: std::collections::BTreeMap<String, String>,
    work_root: PathBuf,
    working_directory: PathBuf,
    effects: PathBuf,
    /// Where a writing tool stops for ever.
    hold: Option<Hold>,
    /// The commit under a lease to stop at, and on which side.
    crash: Option<(u64, String)>,
    /// How long a living worker must stand still before this one takes its sessions, where it is
    /// not the default.
    lease_ms: Option<u64>,
    /// How often this worker looks for sessions, where it is not the default.
    scan_ms: Option<u64>,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum Hold {
    BeforeEffect,
    AfterEffect,
    /// Before the effect, until the file `go-on` is there beside the file of effects.
    UntilToldTo,
}

#[derive(Deserialize, JsonSchema)]
struct Order {
    order_id: String,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let plan: Plan = serde_json::from_str(&std::env::args().nth(1).ok_or("no plan")?)?;
    let sqlite: Arc<dyn StateStore> = Arc::new(SqliteStateStore::open(&plan.store).await?);
    let point = plan.crash.as_ref().map(|(commit, side)| CrashPoint {
        commit: *commit,
        side: if side == "before" {
            Side::Before
        } else {
            Side::After
        },
    });
    let store = Arc::new(CrashingStore::new(sqlite, point));
    let mut crashed = store.crashed();

    let launcher = SubprocessLauncher::new(&plan.program).with_work_root(&plan.work_root);
    let mut environment = CliEnvironment::empty();
    for (name, value) in &plan.environment {
        environment = environment.set(name, value);
    }
    let options = ClaudeAgentOptions::new(&plan.working_directory)
        .with_model("claude-sonnet-5")
        .with_tools(["Bash", "Read"])
        .with_environment(environment);
    let runner = ClaudeAgentRunner::builder(options)
        .gated_call_wait(abide::runner::GatedCallWait::Native)
        .custom_tool(writing_tool("refund", &plan))
        .custom_tool(writing_tool("set_status", &plan).with_effect(ToolEffect::IdempotentWrite))
        .custom_tool(reading_tool("lookup", &plan))
        .launcher(Arc::new(launcher))
        .build()?;
    let flow = AgentSessionFlow::new("Crash", runner, SessionOptions::default())?;
    let mut engine = LocalEngineOptions::default();
    if let Some(millis) = plan.lease_ms {
        engine.lease_time = Duration::from_millis(millis);
    }
    if let Some(millis) = plan.scan_ms {
        engine.scan_interval = Duration::from_millis(millis);
    }
    let registry = FlowRegistry::new().register(flow)?;
    let _engine = LocalEngine::start_with(registry, store, engine).await?;
    say("started");
    crashed.wait_for(|it| *it).await?;
    say("reached");
    std::future::pending::<()>().await;
    Ok(())
}

fn writing_tool(name: &'static str, plan: &Plan) -> CustomTool {
    let (effects, hold) = (plan.effects.clone(), plan.hold);
    CustomTool::new(
        name,
        "changes the world",
        move |order: Order, context: ToolContext| {
            let effects = effects.clone();
            async move {
                if hold == Some(Hold::BeforeEffect) {
                    say("reached");
                    std::future::pending::<()>().await;
                }
                if hold == Some(Hold::UntilToldTo) {
                    say("reached");
                    wait_for(&effects.with_file_name("go-on")).await;
                }
                let key = context
                    .deferred_execution
                    .map(|it| it.idempotency_key.to_string());
                record(
                    &effects,
                    &format!("{name} {} {}", order.order_id, key.unwrap_or_default()),
                );
                if hold == Some(Hold::AfterEffect) {
                    say("reached");
                    std::future::pending::<()>().await;
                }
                Ok(ToolOutput::text(format!(
                    "{name} done for {}",
                    order.order_id
                )))
            }
        },
    )
}

fn reading_tool(name: &'static str, plan: &Plan) -> CustomTool {
    let effects = plan.effects.clone();
    CustomTool::new(name, "reads", move |order: Order, _| {
        let effects = effects.clone();
        async move {
            record(&effects, &format!("{name} {}", order.order_id));
            Ok(ToolOutput::text(format!(
                "order {} is fine",
                order.order_id
            )))
        }
    })
    .with_effect(ToolEffect::Read)
}

async fn wait_for(file: &Path) {
    while !file.exists() {
        // sleeps because a file of another process cannot be waited for otherwise
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Adds a line to the file outside; it is on the disk when this returns.
fn record(effects: &Path, line: &str) {
    let mut file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(effects)
        .expect("the effects file opens");
    writeln!(file, "{line}").expect("the effects file takes a line");
    file.sync_all().expect("the effects file is synced");
}

fn say(word: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{word}")
        .and_then(|()| out.flush())
        .expect("the test reads stdout");
}

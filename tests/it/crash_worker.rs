//! A worker process that tests kill: an engine over a SQLite file, with tools whose effects are
//! lines of a file outside. It says on stdout when it has reached the point it is to be killed at,
//! and never goes on from there; or it does to itself what it is told to. With `caller` and a store's
//! path as its arguments it is a client and no engine.

#[path = "crash_worker/caller.rs"]
mod caller;
#[path = "crash_worker/deed.rs"]
mod deed;

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use abide::engine::{LocalEngine, LocalEngineOptions};
use abide::flow::{AgentSessionFlow, FlowRegistry, SessionOptions};
use abide::policy::ToolEffect;
use abide::runner::{ClaudeAgentOptions, ClaudeAgentRunner, CliEnvironment, GatedCallWait};
use abide::store::{SqliteStateStore, StateStore, WorkerId};
use abide::testing::faults::{CrashPoint, CrashingStore, FailingStore, Side, StoreCall};
use abide::tool::{CustomTool, ToolContext, ToolOutput};
use abide::transport::SubprocessLauncher;
use deed::{Deed, Tap, Tapped};
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
    /// How long a process waits with gated calls; without it they wait by the CLI's own deferral.
    live_window_ms: Option<u64>,
    /// What to do once `crash` is reached, instead of waiting there for ever.
    deed: Option<Deed>,
    /// What to do behind which line between this worker and its CLIs.
    deed_at_line: Option<(u64, Deed)>,
    /// Where lines, commits, processes and deeds are written down.
    trace: Option<PathBuf>,
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
    let first = std::env::args().nth(1).ok_or("no plan")?;
    if first == "caller" {
        let store = std::env::args().nth(2).ok_or("no store")?;
        return caller::run(Path::new(&store)).await;
    }
    let plan: Plan = serde_json::from_str(&first)?;
    let sqlite: Arc<dyn StateStore> = Arc::new(SqliteStateStore::open(&plan.store).await?);
    let point = plan.crash.as_ref().map(|(commit, side)| CrashPoint {
        commit: *commit,
        side: if side == "before" {
            Side::Before
        } else {
            Side::After
        },
    });
    let crashing = Arc::new(CrashingStore::new(Arc::clone(&sqlite), point));
    let mut crashed = crashing.crashed();
    let trace = plan
        .trace
        .as_deref()
        .unwrap_or_else(|| Path::new("/dev/null"));
    let tap = Arc::new(Tap::new(trace, plan.deed_at_line)?);
    let counting = Arc::clone(&tap);
    let store = FailingStore::new(Arc::clone(&crashing) as _, move |call, _| {
        if call == StoreCall::FencedCommit {
            counting.write("commit");
        }
        None
    });

    let launcher = Tapped {
        inner: SubprocessLauncher::new(&plan.program).with_work_root(&plan.work_root),
        tap: Arc::clone(&tap),
    };
    let mut environment = CliEnvironment::empty();
    for (name, value) in &plan.environment {
        environment = environment.set(name, value);
    }
    let options = ClaudeAgentOptions::new(&plan.working_directory)
        .with_model("claude-sonnet-5")
        .with_tools(["Bash", "Read"])
        .with_environment(environment);
    let runner = ClaudeAgentRunner::builder(options)
        .gated_call_wait(match plan.live_window_ms {
            Some(_) => GatedCallWait::Live,
            None => GatedCallWait::Native,
        })
        .custom_tool(writing_tool("refund", &plan))
        .custom_tool(writing_tool("set_status", &plan).with_effect(ToolEffect::IdempotentWrite))
        .custom_tool(reading_tool("lookup", &plan))
        .launcher(Arc::new(launcher))
        .build()?;
    let mut session = SessionOptions::default();
    if let Some(millis) = plan.live_window_ms {
        session.live_window = Duration::from_millis(millis);
    }
    let flow = AgentSessionFlow::new("Crash", runner, session)?;
    let mut engine = LocalEngineOptions::default();
    if let Some(millis) = plan.lease_ms {
        engine.lease_time = Duration::from_millis(millis);
    }
    if let Some(millis) = plan.scan_ms {
        engine.scan_interval = Duration::from_millis(millis);
    }
    let registry = FlowRegistry::new().register(flow)?;
    let _engine = LocalEngine::start_with(registry, Arc::new(store), engine).await?;
    say("started");
    crashed.wait_for(|it| *it).await?;
    match plan.deed {
        Some(deed) => {
            // Behind whatever the store was at, because who stops in a transaction keeps SQLite's lock.
            let _ = sqlite.heartbeat(&WorkerId::new("nobody")).await;
            tap.act(deed);
            crashing.wake();
        }
        None => say("reached"),
    }
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

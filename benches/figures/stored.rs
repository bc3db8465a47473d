//! What a session takes on the disk.
//!
//! Measured: a session of 200 turns on the real CLI 2.1.316, with one read of our own tool a turn,
//! over a scripted Messages API, through `LocalEngine` and `SqliteStateStore`. Counted: the size of
//! the database after its log was written back, less an empty one, over the bytes of the lines that
//! the CLI mirrored for the main transcript, newlines included. Everything else that the database
//! holds (state, events, rows, indexes) is in it.
//!
//! The texts are pseudo-words, some 2,000 of them, one picked about as often as a word of a natural
//! language is: a prompt of 30, a reply of 15 and one of 60, a result of 120 (cli-protocol 17k's
//! session has the same lengths). They are the same in every run; ids and times are not. The tool is
//! not among those that the dictionary was trained on.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use abide::client::{AgentSessionClient, EventStream, Observed, StartSession};
use abide::engine::LocalEngine;
use abide::event::EventKind;
use abide::flow::{AgentSessionFlow, FlowRegistry, SessionOptions};
use abide::ids::{EventCursor, FlowType, SessionId};
use abide::policy::ToolEffect;
use abide::protocol::{CliFrame, decode_line};
use abide::runner::{ClaudeAgentOptions, ClaudeAgentRunner, CliEnvironment};
use abide::store::SqliteStateStore;
use abide::testing::messages_api::{
    Answer, ApiRequest, Block, ModelScript, Reply, RequestKind, ScriptedMessagesApi,
};
use abide::testing::real_cli::{RealCli, isolated_environment};
use abide::tool::{CustomTool, ToolContext, ToolOutput};
use abide::transport::{
    CliError, CliExit, CliLauncher, CliProcess, LaunchSpec, SubprocessLauncher,
};
use async_trait::async_trait;
use rusqlite::Connection;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use tempfile::TempDir;

use crate::report::{Effort, Figure, Group};

pub(crate) const GROUP: Group = Group {
    names: &["stored_ratio", "stored_kb", "stored_raw_kb"],
    run,
};

const CLI_VERSION: &str = "2.1.316";

fn run(effort: Effort) -> Vec<Figure> {
    let turns = effort.pick(200, 2);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let directory = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let raw_bytes = runtime.block_on(session(directory.path(), turns));
    let empty = directory.path().join("empty.sqlite");
    drop(
        runtime
            .block_on(SqliteStateStore::open(&empty))
            .expect("a store"),
    );
    let stored_bytes = file_bytes(&directory.path().join(STORE)) - file_bytes(&empty);
    vec![
        Figure::new("stored_ratio", stored_bytes / raw_bytes, "of the raw bytes"),
        Figure::new("stored_kb", stored_bytes / 1e3, "kB"),
        Figure::new("stored_raw_kb", raw_bytes / 1e3, "kB"),
    ]
}

const STORE: &str = "store.sqlite";

/// The size of a database once its log is written back.
fn file_bytes(path: &Path) -> f64 {
    let connection = Connection::open(path).expect("the file");
    let busy: i64 = connection
        .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))
        .expect("a checkpoint");
    assert_eq!(busy, 0, "nobody else has the file open");
    std::fs::metadata(path).expect("the file").len() as f64
}

/// Runs the session; returns how many bytes the CLI mirrored.
async fn session(directory: &Path, turns: usize) -> f64 {
    for name in ["home", "work", "runs"] {
        std::fs::create_dir(directory.join(name)).expect("a directory");
    }
    let cli = RealCli::find(CLI_VERSION, Path::new(env!("CARGO_MANIFEST_DIR")))
        .expect("the variables are right")
        .expect("this figure needs the real CLI: npm ci in fixtures/cli");
    let api = ScriptedMessagesApi::start(ModelScript::new().route(model))
        .await
        .expect("the API starts");
    let mut environment = CliEnvironment::empty();
    for (name, value) in isolated_environment(&api.base_url(), &directory.join("home")) {
        environment = environment.set(name, value);
    }
    let launcher = Arc::new(CountingLauncher {
        inner: SubprocessLauncher::new(cli.program()).with_work_root(directory.join("runs")),
        mirrored: Arc::default(),
    });
    let options = ClaudeAgentOptions::new(directory.join("work"))
        .with_model("claude-sonnet-5")
        .with_environment(environment);
    let runner = ClaudeAgentRunner::builder(options)
        .launcher(Arc::clone(&launcher) as Arc<dyn CliLauncher>)
        .custom_tool(parcel_tool())
        .build()
        .expect("a runner");
    let flow = AgentSessionFlow::new("Figures", runner, SessionOptions::default()).expect("a flow");
    let store = SqliteStateStore::open(directory.join(STORE))
        .await
        .expect("a store");
    let registry = FlowRegistry::new().register(flow).expect("a registry");
    let engine = LocalEngine::start(registry, Arc::new(store))
        .await
        .expect("an engine");
    let client = engine.client();
    let session = SessionId::new("session").expect("an id");
    client
        .start_session(StartSession::new(
            session.clone(),
            FlowType::new("Figures").expect("a flow type"),
        ))
        .await
        .expect("the session starts");
    let mut events = client
        .events(&session, EventCursor(0))
        .await
        .expect("events");
    for turn in 0..turns {
        take_turn(&client, &session, &mut events, turn).await;
    }
    engine.shutdown().await;
    drop((events, client));
    api.assert_all_served();
    api.shutdown().await;
    launcher.mirrored.load(Ordering::Relaxed) as f64
}

async fn take_turn(
    client: &AgentSessionClient,
    session: &SessionId,
    events: &mut EventStream,
    turn: usize,
) {
    let prompt = format!("{PROMPT}{turn}: {}", words(30, turn * 4));
    client
        .send_user_message(session, prompt, None)
        .await
        .expect("the message is accepted");
    loop {
        let observed = events.next().await.expect("the store is there");
        if let Some(Observed::Event(event)) = observed {
            match event.kind {
                EventKind::TurnCompleted => return,
                EventKind::TurnFailed { class } => panic!("the turn failed: {class:?}"),
                _ => {}
            }
        }
    }
}

const PROMPT: &str = "Parcel ";

/// The model: a look at the parcel, then an answer.
fn model(request: &ApiRequest) -> Option<Answer> {
    if request.kind != RequestKind::Main {
        return None;
    }
    let turn = request.turn()?;
    let number: usize = turn
        .prompt
        .strip_prefix(PROMPT)?
        .split(':')
        .next()?
        .parse()
        .ok()?;
    let reply = if turn.results.is_empty() {
        Reply::text(words(15, number * 4 + 1)).and(Block::tool_use(
            "mcp__tools__track_parcel",
            json!({ "parcel": format!("P-{:05}", number * 7919 % 100_000), "with_history": true }),
        ))
    } else {
        Reply::text(words(60, number * 4 + 2))
    };
    Some(reply.into())
}

#[derive(Deserialize, JsonSchema)]
struct Parcel {
    /// The number on the label.
    parcel: String,
    /// Whether to list where it has been.
    with_history: bool,
}

fn parcel_tool() -> CustomTool {
    let counter = Mutex::new(0);
    CustomTool::new(
        "track_parcel",
        "Tells where a parcel is and what happened to it on its way.",
        move |parcel: Parcel, _: ToolContext| {
            let mut turn = counter.lock().expect("nothing panics under it");
            *turn += 1;
            let text = format!(
                "{} {}: {}",
                parcel.parcel,
                parcel.with_history,
                words(120, *turn * 4 + 3)
            );
            async move { Ok(ToolOutput::text(text)) }
        },
    )
    .with_effect(ToolEffect::Read)
}

/// Pseudo-words, the same for the same seed.
fn words(count: usize, seed: usize) -> String {
    let mut random = Random(seed as u64 + 1);
    let words: Vec<String> = (0..count)
        .map(|_| {
            // The cube of an even number makes the first words of the list the most frequent ones.
            let place = random.next() as f64 / u64::MAX as f64;
            let mut letters = Random((place.powi(3) * 2_000.0) as u64);
            let syllables = 1 + letters.next() % 3;
            let mut word: String = (0..=syllables)
                .map(|_| SYLLABLES[letters.next() as usize % SYLLABLES.len()])
                .collect();
            if random.next().is_multiple_of(8) {
                word = (random.next() % 1_000).to_string();
            }
            word
        })
        .collect();
    words.join(" ")
}

const SYLLABLES: [&str; 24] = [
    "ba", "cor", "de", "el", "fi", "gan", "ho", "in", "ja", "ker", "lo", "mi", "nu", "or", "pa",
    "qui", "re", "sta", "tu", "un", "vel", "wi", "ye", "zo",
];

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut it = self.0;
        it = (it ^ (it >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        it = (it ^ (it >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        it ^ (it >> 31)
    }
}

/// A launcher that counts what the CLI mirrors.
#[derive(Debug)]
struct CountingLauncher {
    inner: SubprocessLauncher,
    mirrored: Arc<AtomicU64>,
}

#[derive(Debug)]
struct CountedProcess {
    inner: Box<dyn CliProcess>,
    mirrored: Arc<AtomicU64>,
}

#[async_trait]
impl CliLauncher for CountingLauncher {
    async fn launch(&self, spec: LaunchSpec) -> Result<Box<dyn CliProcess>, CliError> {
        Ok(Box::new(CountedProcess {
            inner: self.inner.launch(spec).await?,
            mirrored: Arc::clone(&self.mirrored),
        }))
    }
}

#[async_trait]
impl CliProcess for CountedProcess {
    fn process_id(&self) -> Option<u32> {
        self.inner.process_id()
    }

    fn send(&mut self, line: String) -> Result<(), CliError> {
        self.inner.send(line)
    }

    async fn receive(&mut self) -> Result<Option<Vec<u8>>, CliError> {
        let line = self.inner.receive().await?;
        if let Some(line) = &line
            && let Ok(CliFrame::Mirror(frame)) = decode_line(line)
            && !frame.file_path.contains("/subagents/")
        {
            let bytes = frame.entries.iter().map(|it| it.as_str().len() as u64 + 1);
            self.mirrored.fetch_add(bytes.sum(), Ordering::Relaxed);
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

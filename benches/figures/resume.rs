//! Our own part of a resume.
//!
//! Measured: from the open SQLite store to the transcript in the CLI's directory, for a session whose
//! transcript has 10,000 entries of some 900 bytes, ten a turn: the chain of chunks, unpacking,
//! reading the messages, making the transcript that a turn starts from, writing it where a CLI looks
//! for it, and starting a process, which is `cat`. Not measured: the lease, and what the CLI does
//! with it.
//!
//! `peak` is what this takes of memory, in a process of its own: the most that was ever resident less
//! what was resident before. The raw twin reads a file with the same lines and writes it again.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use abide::client::{Observed, StartSession};
use abide::engine::LocalEngine;
use abide::event::EventKind;
use abide::failure::AttemptFailure;
use abide::flow::{AgentSessionFlow, FlowRegistry, SessionOptions};
use abide::ids::{ClaudeSessionId, EventCursor, FlowType, SessionId};
use abide::protocol::{CliFrame, decode_line};
use abide::record::{FrameworkItem, MessageRole, TranscriptEntry};
use abide::runner::{
    AgentFrameworkRunner, History, RunModelRequest, SegmentLink, ToolCallEnd, ToolCallRequest,
};
use abide::segment::{materialise, read_conversation};
use abide::store::{SqliteStateStore, StateStore};
use abide::transport::{
    CliLauncher, CliProcess, LaunchSpec, ResumedTranscript, SubprocessLauncher,
};
use abide::turn::{NewMessage, RunModelOutcome, Usage};
use async_trait::async_trait;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::process::{memory_kb, numbers};
use crate::report::{Effort, Figure, Group, milliseconds, quantile};

pub(crate) const GROUP: Group = Group {
    names: &[
        "resume_10000_ms",
        "resume_10000_raw_ms",
        "resume_10000_peak_mb",
    ],
    run,
};

pub(crate) const JOB: &str = "resume";

const CAPTURE: &str = include_str!("../../fixtures/lines/2.1.316/inline_two_parallel.jsonl");

const ENTRIES_PER_TURN: usize = 10;

pub(crate) const SESSION: &str = "session";

fn run(effort: Effort) -> Vec<Figure> {
    let directory = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let database = directory.path().join("store.sqlite");
    let entries = effort.pick(10_000, 100);
    populate(&database, entries / ENTRIES_PER_TURN, ENTRIES_PER_TURN);

    let runtime = Runtime::new().expect("a runtime");
    let store = runtime.block_on(SqliteStateStore::open(&database));
    let store: Arc<dyn StateStore> = Arc::new(store.expect("a store"));
    let (mut ours, mut raw) = (Vec::new(), Vec::new());
    let plain = directory.path().join("plain.jsonl");
    for round in 0..effort.pick(21, 1) {
        let begun = Instant::now();
        let mut process = runtime.block_on(launch(&store, directory.path()));
        ours.push(milliseconds(begun.elapsed()));
        if round == 0 {
            let written = std::fs::read_to_string(transcript(directory.path()));
            let written = written.expect("the transcript");
            assert_eq!(written.lines().count(), entries);
            std::fs::write(&plain, &written).expect("a file");
        }
        runtime.block_on(process.shutdown(Duration::ZERO));
        let begun = Instant::now();
        let bytes = std::fs::read(&plain).expect("the file");
        let mut file = std::fs::File::create(directory.path().join("copy")).expect("a file");
        file.write_all(&bytes).expect("it is written");
        raw.push(milliseconds(begun.elapsed()));
    }
    drop(store);
    let [peak] = numbers(JOB, &database)[..] else {
        panic!("the child prints one number");
    };
    vec![
        Figure::new(GROUP.names[0], quantile(&mut ours, 0.5), "ms"),
        Figure::new(GROUP.names[1], quantile(&mut raw, 0.5), "ms"),
        Figure::new(GROUP.names[2], peak as f64 / 1e3, "MB"),
    ]
}

/// Prints the memory that one resume takes.
pub(crate) fn child(database: &Path) -> Vec<u64> {
    let directory = TempDir::new().expect("a directory");
    let runtime = Runtime::new().expect("a runtime");
    let store = runtime.block_on(SqliteStateStore::open(database));
    let store: Arc<dyn StateStore> = Arc::new(store.expect("a store"));
    let before = memory_kb("VmRSS:");
    runtime.block_on(launch(&store, directory.path()));
    vec![memory_kb("VmHWM:").saturating_sub(before)]
}

/// Does what is measured.
async fn launch(store: &Arc<dyn StateStore>, directory: &Path) -> Box<dyn CliProcess> {
    let session = SessionId::new(SESSION).expect("an id");
    let stored = store.load(&session).await.expect("the store is there");
    let head = stored.expect("the session").head;
    let history = History::open(Arc::clone(store), session, head).await;
    let messages = history.expect("the chain").read_all().await;
    let messages = messages.expect("the messages");
    let conversation = read_conversation(messages.iter().map(|it| &it.framework_item));
    drop(messages);
    let conversation = conversation.expect("a conversation");
    let claude_session = conversation.claude_session.expect("a transcript");
    let resumable = materialise(conversation.entries, None).expect("it can be resumed");
    let mut spec = LaunchSpec::new(Vec::new(), BTreeMap::new(), directory.to_owned());
    spec.transcript = Some(ResumedTranscript::new(claude_session, resumable.entries));
    let launcher = SubprocessLauncher::new("/bin/cat").with_work_root(directory.join("runs"));
    launcher.launch(spec).await.expect("it starts")
}

/// The only transcript below the directory.
fn transcript(directory: &Path) -> PathBuf {
    let mut directories = vec![directory.join("runs")];
    while let Some(next) = directories.pop() {
        for entry in std::fs::read_dir(next).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|it| it == "jsonl") {
                return path;
            }
        }
    }
    panic!("no transcript was written");
}

/// Makes the session: a turn after the other, each with so many entries, told by the runner as a
/// segment would tell it: half of them in the first of three messages.
pub(crate) fn populate(database: &Path, turns: usize, entries_per_turn: usize) {
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let store = SqliteStateStore::open(database).await.expect("a store");
        let runner = Telling {
            templates: templates(),
            entries_per_turn,
        };
        let flow = AgentSessionFlow::new("Figures", runner, SessionOptions::default());
        let registry = FlowRegistry::new().register(flow.expect("a flow"));
        let engine = LocalEngine::start(registry.expect("a registry"), Arc::new(store)).await;
        let engine = engine.expect("an engine");
        let client = engine.client();
        let session = SessionId::new(SESSION).expect("an id");
        let flow_type = FlowType::new("Figures").expect("a flow type");
        let start = StartSession::new(session.clone(), flow_type);
        client.start_session(start).await.expect("it starts");
        let events = client.events(&session, EventCursor(0)).await;
        let mut events = events.expect("events");
        for turn in 0..turns {
            let text = format!("question {turn}");
            let sent = client.send_user_message(&session, text, None).await;
            sent.expect("it is accepted");
            loop {
                let observed = events.next().await.expect("the store is there");
                if let Some(Observed::Event(event)) = observed
                    && event.kind == EventKind::TurnCompleted
                {
                    break;
                }
            }
        }
        engine.shutdown().await;
    });
}

/// Entries as the CLI wrote them.
fn templates() -> Vec<String> {
    let frames = CAPTURE.lines().map(|it| decode_line(it.as_bytes()));
    let entries = frames.filter_map(|it| match it {
        Ok(CliFrame::Mirror(frame)) => Some(frame.entries),
        Ok(_) | Err(_) => None,
    });
    // What is not bookkeeping, which no resume needs.
    let entries = entries
        .flatten()
        .filter(|it| it.as_str().contains("\"parentUuid\":"));
    entries.map(|it| it.as_str().to_owned()).collect()
}

/// A runner whose turns have so many entries.
#[derive(Debug)]
struct Telling {
    templates: Vec<String>,
    entries_per_turn: usize,
}

impl Telling {
    /// An entry with an id of its own.
    fn entry(&self, number: usize) -> TranscriptEntry {
        let template = &self.templates[number % self.templates.len()];
        let id = uuid_like(number);
        let text = template.replace("00000000-0000-4000-8000-", &format!("{}-", &id[..23]));
        let text = text.replacen('{', &format!("{{\"number\":\"{id}\","), 1);
        TranscriptEntry::from_text(text).expect("JSON")
    }
}

fn uuid_like(number: usize) -> String {
    let mut bits = (number as u128 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    bits ^= bits >> 61;
    let digits = format!("{bits:032x}");
    let parts = [
        &digits[..8],
        &digits[8..12],
        &digits[12..16],
        &digits[16..20],
        &digits[20..],
    ];
    parts.join("-")
}

#[async_trait]
impl AgentFrameworkRunner for Telling {
    async fn run_model(
        &self,
        request: RunModelRequest,
        _: SegmentLink,
    ) -> Result<RunModelOutcome, AttemptFailure> {
        let turn = request.context.turn_id.to_string();
        let turn: usize = turn.trim_start_matches('t').parse().expect("a number");
        let entries = self.entries_per_turn;
        let first = (turn - 1) * entries;
        let session = ClaudeSessionId::new("11111111-2222-4333-8444-555555555555");
        let session = session.expect("an id");
        let ends = [0, entries / 2, entries * 4 / 5, entries];
        let messages = [0, 1, 2].map(|part| {
            let (from, to) = (ends[part], ends[part + 1]);
            let entries = (first + from..first + to)
                .map(|it| self.entry(it))
                .collect();
            let item = FrameworkItem::claude_transcript(session.clone(), entries);
            NewMessage {
                role: MessageRole::Assistant,
                text: format!("answer {turn}"),
                tool_call_id: None,
                item: item.expect("JSON"),
            }
        });
        Ok(RunModelOutcome::TurnCompleted {
            messages: messages.into(),
            usage: Usage::default(),
        })
    }

    async fn call_tool(&self, _: ToolCallRequest) -> ToolCallEnd {
        unreachable!("no call is asked for")
    }
}

//! Deltas from the CLI's output to a subscriber.
//!
//! Measured: the time from the first to the last delta that a subscriber of `client.events` gets as
//! `Observed::Live`, through decoding, the segment machine, the link, the hub and the event stream,
//! for one session in an engine of this process. Every line of the CLI stays one piece: nothing is
//! merged. Not measured: the process and its pipe. The source is generated before: of ten lines,
//! nine are text deltas in the form of the capture `plain` (291 to 316 bytes, with 7 to 32 bytes of
//! text) and one is a delta of a tool's arguments, which nobody is shown. It stays at most
//! [`AHEAD_MAX`] deltas ahead of the subscriber, because the hub drops what a slow reader leaves:
//! the run fails when one is lost.
//!
//! The raw twin sends the same texts through a bare tokio channel with room for as many, from one
//! task to another.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use abide::client::{Observed, StartSession};
use abide::engine::LocalEngine;
use abide::flow::{AgentSessionFlow, FlowRegistry, SessionOptions};
use abide::ids::{EventCursor, FlowType, SessionId};
use abide::runner::{ClaudeAgentOptions, ClaudeAgentRunner, CliEnvironment};
use abide::store::MemoryStateStore;
use abide::transport::{CliError, CliExit, CliLauncher, CliProcess, LaunchSpec};
use async_trait::async_trait;
use tokio::sync::{Notify, mpsc};

use crate::report::{Effort, Figure, Group, quantile};

pub(crate) const GROUP: Group = Group {
    names: &["deliver_lines_per_s", "deliver_lines_raw_per_s"],
    run,
};

const CAPTURE: &str = include_str!("../../fixtures/lines/2.1.316/plain.jsonl");

/// How many deltas may be under way.
const AHEAD_MAX: usize = 512;

/// How often the source is told how far the subscriber is, in deltas.
const TOLD_EVERY: usize = 128;

fn run(effort: Effort) -> Vec<Figure> {
    let deltas = effort.pick(200_000, 2_000);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let (mut ours, mut raw) = (Vec::new(), Vec::new());
    for round in 0..effort.pick(7, 1) {
        ours.push(runtime.block_on(delivered_per_s(round, deltas)));
        raw.push(runtime.block_on(sent_per_s(deltas)));
    }
    vec![
        Figure::new("deliver_lines_per_s", quantile(&mut ours, 0.5), "lines/s"),
        Figure::new(
            "deliver_lines_raw_per_s",
            quantile(&mut raw, 0.5),
            "lines/s",
        ),
    ]
}

fn text(number: usize) -> String {
    "word ".repeat(1 + number % 6) + "ok"
}

/// The segment of the capture with these deltas in the place of its own.
fn source(deltas: usize) -> VecDeque<(usize, Vec<u8>)> {
    let is_delta = |it: &&str| it.contains(r#""type":"content_block_delta""#);
    let template = CAPTURE.lines().find(is_delta).expect("a delta");
    let first = CAPTURE.lines().position(|it| it == template);
    let (before, after) = CAPTURE.split_at(
        CAPTURE
            .lines()
            .take(first.expect("its place"))
            .map(|it| it.len() + 1)
            .sum(),
    );
    let of = |delta: serde_json::Value| {
        let mut line: serde_json::Value = serde_json::from_str(template).expect("JSON");
        line["event"]["delta"] = delta;
        line.to_string().into_bytes()
    };
    let mut lines: VecDeque<_> = before.lines().map(|it| (0, it.into())).collect();
    for number in 0..deltas {
        let text = text(number);
        let line = of(serde_json::json!({ "type": "text_delta", "text": text }));
        lines.push_back((1, line));
        if number % 9 == 8 {
            let line = of(serde_json::json!({ "type": "input_json_delta", "partial_json": text }));
            lines.push_back((0, line));
        }
    }
    let rest = after.lines().filter(|it| !is_delta(it));
    lines.extend(rest.map(|it| (0, it.into())));
    lines
}

async fn delivered_per_s(round: usize, deltas: usize) -> f64 {
    let progress = Arc::new(Progress::default());
    let launcher = SourceLauncher {
        lines: Mutex::new(source(deltas)),
        progress: Arc::clone(&progress),
    };
    let options =
        ClaudeAgentOptions::new(std::env::temp_dir()).with_environment(CliEnvironment::empty());
    let runner = ClaudeAgentRunner::builder(options)
        .launcher(Arc::new(launcher))
        .build()
        .expect("a runner");
    let flow = AgentSessionFlow::new("Figures", runner, SessionOptions::default()).expect("a flow");
    let registry = FlowRegistry::new().register(flow).expect("a registry");
    let store = Arc::new(MemoryStateStore::new());
    let engine = LocalEngine::start(registry, store)
        .await
        .expect("an engine");
    let client = engine.client();

    let session = SessionId::new(format!("session-{round}")).expect("an id");
    let flow_type = FlowType::new("Figures").expect("a flow type");
    client
        .start_session(StartSession::new(session.clone(), flow_type))
        .await
        .expect("the session starts");
    let mut events = client
        .events(&session, EventCursor(0))
        .await
        .expect("events");
    client
        .send_user_message(&session, "go", None)
        .await
        .expect("the message is accepted");
    let reader = tokio::spawn(async move {
        let mut begun = None;
        let mut received = 0;
        while received < deltas {
            let observed = events.next().await.expect("the store is there");
            // Whatever else comes is an event, or that all were seen.
            if let Observed::Live(piece) = observed.expect("the stream goes on") {
                assert_eq!(piece.text, text(received), "a delta was lost or merged");
                received += 1;
                begun.get_or_insert_with(Instant::now);
                progress.tell(received);
            }
        }
        begun.map_or(Duration::ZERO, |it| it.elapsed())
    });
    let took = reader.await.expect("the reader ends");
    engine.shutdown().await;
    (deltas - 1) as f64 / took.as_secs_f64()
}

async fn sent_per_s(deltas: usize) -> f64 {
    let texts: Vec<String> = (0..deltas).map(text).collect();
    let (sender, mut receiver) = mpsc::channel(AHEAD_MAX);
    let writer = tokio::spawn(async move {
        for text in texts {
            sender.send(text).await.expect("the reader is there");
        }
    });
    let reader = tokio::spawn(async move {
        let mut begun = None;
        let mut received = 0;
        while let Some(piece) = receiver.recv().await {
            assert_eq!(piece, text(received), "a text was lost");
            received += 1;
            begun.get_or_insert_with(Instant::now);
        }
        begun.map_or(Duration::ZERO, |it| it.elapsed())
    });
    writer.await.expect("the writer ends");
    let took = reader.await.expect("the reader ends");
    (deltas - 1) as f64 / took.as_secs_f64()
}

/// How far the subscriber is.
#[derive(Debug, Default)]
struct Progress {
    received: AtomicUsize,
    changed: Notify,
}

impl Progress {
    fn tell(&self, received: usize) {
        if received.is_multiple_of(TOLD_EVERY) {
            self.received.store(received, Ordering::Release);
            self.changed.notify_one();
        }
    }
}

/// Starts the one process that writes the source.
#[derive(Debug)]
struct SourceLauncher {
    lines: Mutex<VecDeque<(usize, Vec<u8>)>>,
    progress: Arc<Progress>,
}

/// A process that writes prepared lines and reads nothing.
#[derive(Debug)]
struct SourceProcess {
    lines: VecDeque<(usize, Vec<u8>)>,
    deltas_written: usize,
    progress: Arc<Progress>,
}

#[async_trait]
impl CliLauncher for SourceLauncher {
    async fn launch(&self, _: LaunchSpec) -> Result<Box<dyn CliProcess>, CliError> {
        let lines = std::mem::take(&mut *self.lines.lock().expect("one launch"));
        Ok(Box::new(SourceProcess {
            lines,
            deltas_written: 0,
            progress: Arc::clone(&self.progress),
        }))
    }
}

#[async_trait]
impl CliProcess for SourceProcess {
    fn process_id(&self) -> Option<u32> {
        None
    }

    fn send(&mut self, _: String) -> Result<(), CliError> {
        Ok(())
    }

    async fn receive(&mut self) -> Result<Option<Vec<u8>>, CliError> {
        while self.deltas_written >= self.progress.received.load(Ordering::Acquire) + AHEAD_MAX {
            self.progress.changed.notified().await;
        }
        Ok(self.lines.pop_front().map(|(deltas, line)| {
            self.deltas_written += deltas;
            line
        }))
    }

    fn close_input(&mut self) {}

    async fn shutdown(&mut self, _: Duration) -> CliExit {
        CliExit::Exited(0)
    }

    fn stderr_tail(&self) -> String {
        String::new()
    }
}

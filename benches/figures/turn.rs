//! CPU of the host per turn.
//!
//! Measured: user and system time of this process, its children excluded, for one turn of a new
//! session on SQLite: start with a message, subscribe, one segment on the program `fake-claude`
//! (some 25 lines, the tool server's handshake among them), every commit, the end of the process and
//! of its directory. Not measured: the CLI's own time, waiting for the disk, and a history to resume
//! from, because each turn is its session's first.
//!
//! The raw twin starts the same program with the same arguments, writes the lines that our host
//! wrote, each after as many lines of output as our host had seen, reads to the result without
//! looking into a line, closes the input and waits for the exit. It stores nothing.
//!
//! Both take turns in batches, each batch until nothing of it is left, and the median of the batches
//! counts.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use abide::client::{Observed, StartSession};
use abide::engine::LocalEngine;
use abide::event::EventKind;
use abide::flow::{AgentSessionFlow, FlowRegistry, SessionOptions};
use abide::ids::{EventCursor, FlowType, SessionId};
use abide::runner::{ClaudeAgentOptions, ClaudeAgentRunner, CliEnvironment};
use abide::store::SqliteStateStore;
use abide::transport::{
    CliError, CliExit, CliLauncher, CliProcess, LaunchSpec, SubprocessLauncher,
};
use async_trait::async_trait;
use rustix::time::{ClockId, clock_gettime};
use tempfile::TempDir;

use crate::report::{Effort, Figure, Group, quantile};

pub(crate) const GROUP: Group = Group {
    names: &["turn_cpu_ms", "turn_cpu_raw_ms"],
    run,
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_fake-claude");

const PROMPT: &str = "script: say all is well with the order";

fn run(effort: Effort) -> Vec<Figure> {
    let turns = effort.pick(20, 2);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let directory = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    for name in ["work", "runs", "config"] {
        std::fs::create_dir(directory.path().join(name)).expect("a directory");
    }
    let runs = directory.path().join("runs");
    let launcher = Arc::new(SubprocessLauncher::new(PROGRAM).with_work_root(&runs));

    // One turn that is not measured says what the raw twin has to write, and warms both up.
    let recorder = Arc::new(Recorder {
        inner: Arc::clone(&launcher),
        recording: Arc::default(),
    });
    let recording = Arc::clone(&recorder.recording);
    let host = runtime.block_on(Host::start(directory.path(), recorder, "recorded"));
    runtime.block_on(host.turn(0));
    runtime.block_on(host.engine.shutdown());
    wait_until_empty(&runs);
    let recording = recording.lock().expect("the recorder is done").clone();

    let host = runtime.block_on(Host::start(directory.path(), launcher, "measured"));
    let (mut ours, mut raw) = (Vec::new(), Vec::new());
    for round in 0..effort.pick(15, 1) {
        let begun = cpu_ms();
        runtime.block_on(async {
            for turn in 0..turns {
                host.turn(round * turns + turn).await;
            }
        });
        wait_until_empty(&runs);
        ours.push((cpu_ms() - begun) / turns as f64);

        let begun = cpu_ms();
        for _ in 0..turns {
            recording.repeat(directory.path());
        }
        raw.push((cpu_ms() - begun) / turns as f64);
    }
    runtime.block_on(host.engine.shutdown());
    vec![
        Figure::new("turn_cpu_ms", quantile(&mut ours, 0.5), "ms"),
        Figure::new("turn_cpu_raw_ms", quantile(&mut raw, 0.5), "ms"),
    ]
}

/// User and system time of this process so far.
fn cpu_ms() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6
}

/// Waits until the last process's directory is gone, which is the last that is done for a turn.
fn wait_until_empty(runs: &Path) {
    let is_empty = || std::fs::read_dir(runs).is_ok_and(|mut it| it.next().is_none());
    while !is_empty() {
        // sleeps because asking again at once would cost what is measured.
        std::thread::sleep(Duration::from_millis(1));
    }
}

struct Host {
    engine: LocalEngine,
    name: &'static str,
}

impl Host {
    async fn start(directory: &Path, launcher: Arc<dyn CliLauncher>, name: &'static str) -> Self {
        let options = ClaudeAgentOptions::new(directory.join("work"))
            .with_environment(CliEnvironment::empty().set("FAKE_CLAUDE_SEED", "7"));
        let runner = ClaudeAgentRunner::builder(options)
            .launcher(launcher)
            .build()
            .expect("a runner");
        // No process stays for a next message: each turn pays for its own from start to end.
        let options = SessionOptions::default().with_live_window(Duration::ZERO);
        let flow = AgentSessionFlow::new("Figures", runner, options).expect("a flow");
        let store = SqliteStateStore::open(directory.join("store.sqlite"))
            .await
            .expect("a store");
        let registry = FlowRegistry::new().register(flow).expect("a registry");
        let engine = LocalEngine::start(registry, Arc::new(store)).await;
        Self {
            engine: engine.expect("an engine"),
            name,
        }
    }

    async fn turn(&self, number: usize) {
        let client = self.engine.client();
        let session = SessionId::new(format!("{}-{number}", self.name)).expect("an id");
        let flow_type = FlowType::new("Figures").expect("a flow type");
        client
            .start_session(
                StartSession::new(session.clone(), flow_type).with_initial_message(PROMPT),
            )
            .await
            .expect("the session starts");
        let mut events = client
            .events(&session, EventCursor(0))
            .await
            .expect("events");
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
}

/// What our host did to the process of one turn.
#[derive(Debug, Clone, Default)]
struct Recording {
    arguments: Vec<String>,
    lines: Vec<Sent>,
    lines_received: usize,
}

#[derive(Debug, Clone)]
struct Sent {
    after_lines: usize,
    line: String,
}

impl Recording {
    /// The raw twin.
    fn repeat(&self, directory: &Path) {
        let mut child = Command::new(PROGRAM)
            .args(&self.arguments)
            .env_clear()
            .env("FAKE_CLAUDE_SEED", "7")
            .env("CLAUDE_CONFIG_DIR", directory.join("config"))
            .current_dir(directory.join("work"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the fake CLI starts");
        let mut input = child.stdin.take().expect("a pipe");
        let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut buffer = Vec::new();
        let mut received = 0;
        let mut receive_to = |lines: usize| {
            while received < lines {
                buffer.clear();
                let read = output.read_until(b'\n', &mut buffer).expect("a line");
                assert_ne!(read, 0, "the turn is the recorded one");
                received += 1;
            }
        };
        for sent in &self.lines {
            receive_to(sent.after_lines);
            input.write_all(sent.line.as_bytes()).expect("it reads");
        }
        receive_to(self.lines_received);
        drop(input);
        assert!(child.wait().expect("it ends").success());
    }
}

/// A launcher that notes what goes through it.
#[derive(Debug)]
struct Recorder {
    inner: Arc<SubprocessLauncher>,
    recording: Arc<Mutex<Recording>>,
}

#[derive(Debug)]
struct RecordedProcess {
    inner: Box<dyn CliProcess>,
    recording: Arc<Mutex<Recording>>,
}

#[async_trait]
impl CliLauncher for Recorder {
    async fn launch(&self, spec: LaunchSpec) -> Result<Box<dyn CliProcess>, CliError> {
        self.recording
            .lock()
            .expect("nothing panics under it")
            .arguments
            .clone_from(&spec.arguments);
        Ok(Box::new(RecordedProcess {
            inner: self.inner.launch(spec).await?,
            recording: Arc::clone(&self.recording),
        }))
    }
}

#[async_trait]
impl CliProcess for RecordedProcess {
    fn process_id(&self) -> Option<u32> {
        self.inner.process_id()
    }

    fn send(&mut self, line: String) -> Result<(), CliError> {
        let mut recording = self.recording.lock().expect("nothing panics under it");
        let after_lines = recording.lines_received;
        recording.lines.push(Sent {
            after_lines,
            line: format!("{line}\n"),
        });
        self.inner.send(line)
    }

    async fn receive(&mut self) -> Result<Option<Vec<u8>>, CliError> {
        let line = self.inner.receive().await?;
        let received = usize::from(line.is_some());
        self.recording
            .lock()
            .expect("nothing panics under it")
            .lines_received += received;
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

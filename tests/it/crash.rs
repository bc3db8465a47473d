//! Kill -9 of a worker process at the points that matter, with the real CLI underneath. Effects are
//! counted in a file outside of everything that is killed.

mod kills;

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use abide::client::{AgentSessionClient, ResolveInterrupt, StartSession};
use abide::event::EventKind;
use abide::ids::{EventCursor, FlowType, SessionId};
use abide::process::ProcessIdentity;
use abide::record::{CallRecord, CallStatus, MessageRole, OUTCOME_UNKNOWN_TEXT};
use abide::snapshot::PendingInterrupt;
use abide::store::{RowKey, RowKind, SessionStatus, SqliteStateStore, StateStore};
use abide::testing::messages_api::{ModelScript, ScriptedMessagesApi};
use abide::testing::real_cli::isolated_environment;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{ends_turn, real_cli, wait_for_event};

const CLI: &str = "2.1.316";
const WRITE: &str = r#"script: call refund {"order_id":"7"}"#;

/// Everything that outlives a worker: the store, the effects, the model.
struct Outside {
    directory: TempDir,
    program: PathBuf,
    api: ScriptedMessagesApi,
    store: Arc<dyn StateStore>,
    client: AgentSessionClient,
    homes: AtomicUsize,
}

/// A worker process. Killed with SIGKILL when it is dropped.
struct Worker {
    child: Child,
    says: BufReader<ChildStdout>,
}

impl Worker {
    /// Waits until the worker says this word.
    fn wait_for(&mut self, word: &str) {
        let mut line = String::new();
        while line.trim_end() != word {
            line.clear();
            let read = self
                .says
                .read_line(&mut line)
                .expect("the worker's stdout is read");
            assert_ne!(read, 0, "the worker ended before it said {word:?}");
        }
    }

    /// SIGKILL: nothing of the worker runs any more when this returns.
    fn kill(mut self) {
        self.child.kill().expect("the worker is ours");
        self.child.wait().expect("the worker is reaped");
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Already killed, in most tests.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Outside {
    /// `None`, said aloud, where there is no real CLI and none is required.
    async fn new() -> Option<Self> {
        Self::with_cli(CLI).await
    }

    async fn with_cli(version: &str) -> Option<Self> {
        let program = real_cli(version)?.program().to_owned();
        let directory = TempDir::new().expect("a directory");
        for name in ["work", "runs"] {
            std::fs::create_dir(directory.path().join(name)).expect("a directory");
        }
        let store: Arc<dyn StateStore> = Arc::new(
            SqliteStateStore::open(directory.path().join("state.sqlite"))
                .await
                .expect("a store"),
        );
        let api = ScriptedMessagesApi::start(ModelScript::commands())
            .await
            .expect("the API starts");
        let client = AgentSessionClient::new(Arc::clone(&store));
        Some(Self {
            directory,
            program,
            api,
            store,
            client,
            homes: AtomicUsize::new(0),
        })
    }

    /// Starts a worker that does nothing wrong.
    fn worker(&self) -> Worker {
        self.worker_with(json!({}))
    }

    fn worker_with(&self, extra: Value) -> Worker {
        let number = self.homes.fetch_add(1, Ordering::SeqCst);
        let home = self.directory.path().join(format!("home-{number}"));
        std::fs::create_dir(&home).expect("a home");
        let environment: BTreeMap<_, _> = isolated_environment(&self.api.base_url(), &home);
        let path = |name: &str| self.directory.path().join(name);
        let mut plan = json!({
            "store": path("state.sqlite"),
            "program": self.program,
            "environment": environment,
            "work_root": path("runs"),
            "working_directory": path("work"),
            "effects": path("effects"),
            "hold": null,
            "crash": null,
        });
        for (key, value) in extra.as_object().expect("an object") {
            plan[key] = value.clone();
        }
        let mut child = Command::new(env!("CARGO_BIN_EXE_crash-worker"))
            .arg(plan.to_string())
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the worker starts");
        let says = BufReader::new(child.stdout.take().expect("its stdout is piped"));
        let mut worker = Worker { child, says };
        worker.wait_for("started");
        worker
    }

    async fn start(&self, message: &str) -> SessionId {
        let session = SessionId::new("crash").expect("an id");
        let start = StartSession::new(session.clone(), FlowType::new("Crash").expect("a type"));
        self.client
            .start_session(start.with_initial_message(message))
            .await
            .expect("it starts");
        session
    }

    async fn interrupt(&self, session: &SessionId) -> PendingInterrupt {
        let requested = |kind: &EventKind| matches!(kind, EventKind::InterruptRequested { .. });
        wait_for_event(&self.client, session, |it| requested(&it.kind)).await;
        let open = self
            .client
            .snapshot(session)
            .await
            .expect("a snapshot")
            .pending_interrupts;
        open.into_iter().next().expect("the interrupt is open")
    }

    async fn approve(&self, session: &SessionId) -> PendingInterrupt {
        let open = self.interrupt(session).await;
        let answer = ResolveInterrupt::approve(open.interrupt_id.clone());
        self.client
            .resolve_interrupt(session, answer)
            .await
            .expect("the approval is taken");
        open
    }

    /// Waits for the end of the turn and returns what the model said last.
    async fn answer(&self, session: &SessionId) -> String {
        let end = wait_for_event(&self.client, session, |it| ends_turn(&it.kind)).await;
        assert_eq!(end.kind, EventKind::TurnCompleted);
        let snapshot = self.client.snapshot(session).await.expect("a snapshot");
        assert_eq!(snapshot.status, SessionStatus::Idle);
        let last = snapshot
            .messages
            .into_iter()
            .rev()
            .find(|it| it.role == MessageRole::Assistant);
        last.expect("the model answered").text
    }

    /// The effects so far, in order.
    fn effects(&self) -> Vec<String> {
        let text =
            std::fs::read_to_string(self.directory.path().join("effects")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    async fn record(&self, session: &SessionId, open: &PendingInterrupt) -> CallRecord {
        let key = RowKey {
            kind: RowKind::Record,
            key: open.interrupt_id.to_string(),
        };
        let row = self
            .store
            .read_rows(session, &[key])
            .await
            .expect("a row")
            .pop()
            .flatten();
        serde_json::from_slice(&row.expect("the record is there")).expect("a record")
    }

    /// Each call has one end in the log, and the log has no gap (G13).
    async fn check_log(&self, session: &SessionId) {
        let rows = self
            .store
            .read_events(session, EventCursor(0), 10_000)
            .await
            .expect("events");
        let mut ends = BTreeMap::<String, usize>::new();
        for (row, cursor) in rows.iter().zip(1..) {
            assert_eq!(row.cursor, EventCursor(cursor));
            let event: Value = serde_json::from_slice(&row.bytes).expect("an event");
            if event["kind"] == "tool_call_finished" {
                *ends.entry(event["tool_call_id"].to_string()).or_default() += 1;
            }
        }
        assert!(ends.values().all(|it| *it == 1), "{ends:?}");
        self.api.assert_all_served();
    }
}

/// G7: a worker that dies before it starts the CLI costs nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_before_the_cli_starts_loses_nothing() {
    let Some(outside) = Outside::new().await else {
        return;
    };
    let session = outside.start("script: say hello").await;
    // The first commit is the grant of the segment's attempt.
    let mut worker = outside.worker_with(json!({"crash": [1, "after"]}));
    worker.wait_for("reached");
    worker.kill();
    assert_eq!(outside.api.main_requests().len(), 0);
    let _next = outside.worker();
    assert_eq!(outside.answer(&session).await, "said: hello");
    assert_eq!(outside.api.main_requests().len(), 1);
    outside.check_log(&session).await;
}

/// G6, G7, M25: a worker that dies in the segment: the segment runs again, the prompt is there once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_in_the_segment_repeats_the_segment() {
    let Some(outside) = Outside::new().await else {
        return;
    };
    let session = outside.start("script: say hello ;; pause answer").await;
    let worker = outside.worker();
    outside.api.gate("answer").wait_until_reached(1).await;
    worker.kill();
    outside.api.gate("answer").open();
    let _next = outside.worker();
    assert_eq!(outside.answer(&session).await, "said: hello");
    let messages = outside
        .client
        .snapshot(&session)
        .await
        .expect("a snapshot")
        .messages;
    assert_eq!(messages.len(), 2, "one prompt, one answer");
    outside.check_log(&session).await;
}

/// G5, G7: a worker that dies around the commit of the deferral: one interrupt, one write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_around_the_deferral_leaves_one_interrupt() {
    for side in ["before", "after"] {
        let Some(outside) = Outside::new().await else {
            return;
        };
        let session = outside.start(WRITE).await;
        // The second commit is the end of the segment, which records the call.
        let mut worker = outside.worker_with(json!({"crash": [2, side]}));
        worker.wait_for("reached");
        worker.kill();
        let _next = outside.worker();
        let open = outside.approve(&session).await;
        assert_eq!(
            outside.answer(&session).await,
            "refund: refund done for 7",
            "{side}"
        );
        assert_eq!(
            outside.effects(),
            [format!("refund 7 crash/t1/{}", open.tool_call_id)],
            "{side}"
        );
        outside.check_log(&session).await;
    }
}

/// G9, R72: an approval that is given while no worker lives is taken up by the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_while_a_person_decides_loses_no_approval() {
    let Some(outside) = Outside::new().await else {
        return;
    };
    let session = outside.start(WRITE).await;
    let worker = outside.worker();
    outside.interrupt(&session).await;
    worker.kill();
    outside.approve(&session).await;
    assert_eq!(outside.effects(), Vec::<String>::new());
    let _next = outside.worker();
    assert_eq!(outside.answer(&session).await, "refund: refund done for 7");
    assert_eq!(outside.effects().len(), 1);
    outside.check_log(&session).await;
}

/// G2: an idempotent write whose worker died is started again under the same key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_in_an_idempotent_write_starts_it_again_under_its_key() {
    let Some(outside) = Outside::new().await else {
        return;
    };
    let session = outside
        .start(r#"script: call set_status {"order_id":"7"}"#)
        .await;
    let mut worker = outside.worker_with(json!({"hold": "after_effect"}));
    worker.wait_for("reached");
    worker.kill();
    let _next = outside.worker();
    assert_eq!(
        outside.answer(&session).await,
        "set_status: set_status done for 7"
    );
    let effects = outside.effects();
    assert_eq!(effects.len(), 2, "{effects:?}");
    assert_eq!(effects[0], effects[1]);
    outside.check_log(&session).await;
}

/// G1, M24: a single-attempt write whose worker died before or after its effect is never started
/// again; its outcome is unknown, and the model is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_in_a_single_attempt_write_leaves_its_outcome_unknown() {
    for (hold, happened) in [("before_effect", 0), ("after_effect", 1)] {
        let Some(outside) = Outside::new().await else {
            return;
        };
        let session = outside.start(WRITE).await;
        let mut worker = outside.worker_with(json!({"hold": hold}));
        let open = outside.approve(&session).await;
        worker.wait_for("reached");
        worker.kill();
        let _next = outside.worker();
        let answer = outside.answer(&session).await;
        assert_eq!(answer, format!("refund: {OUTCOME_UNKNOWN_TEXT}"), "{hold}");
        assert_eq!(outside.effects().len(), happened, "{hold}");
        let record = outside.record(&session, &open).await;
        assert_eq!(
            (record.status, record.starts),
            (CallStatus::OutcomeUnknown, 1),
            "{hold}"
        );
        outside.check_log(&session).await;
    }
}

/// G3, M26: a worker that dies in the resumed segment: the record is replayed, nothing runs again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_in_the_resumed_segment_replays_the_record() {
    let Some(outside) = Outside::new().await else {
        return;
    };
    let session = outside
        .start(r#"script: call refund {"order_id":"7"} ;; pause answer"#)
        .await;
    let worker = outside.worker();
    let open = outside.approve(&session).await;
    outside.api.gate("answer").wait_until_reached(1).await;
    worker.kill();
    outside.api.gate("answer").open();
    let _next = outside.worker();
    assert_eq!(outside.answer(&session).await, "refund: refund done for 7");
    assert_eq!(outside.effects().len(), 1);
    assert_eq!(outside.record(&session, &open).await.starts, 1);
    outside.check_log(&session).await;
}

/// G1, G14: an approved Bash that is in flight when its worker dies is not run again, and neither
/// the CLI nor the command lives on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_under_bash_leaves_no_process_and_no_second_run() {
    let Some(outside) = Outside::new().await else {
        return;
    };
    let script = json!({"command": "echo $$ >> pids; exec sleep 600", "timeout": 600_000});
    let session = outside.start(&format!("script: call Bash {script}")).await;
    let worker = outside.worker();
    let open = outside.approve(&session).await;
    let pids = outside.directory.path().join("work/pids");
    let command = wait_for_process(&pids).await;
    let cli = parent_with_program(command.pid, &outside.program);
    worker.kill();
    wait_until_gone(&command).await;
    wait_until_gone(&cli).await;

    let _next = outside.worker();
    assert_eq!(
        outside.answer(&session).await,
        format!("Bash: {OUTCOME_UNKNOWN_TEXT}")
    );
    let record = outside.record(&session, &open).await;
    assert_eq!(
        (record.status, record.starts),
        (CallStatus::OutcomeUnknown, 1)
    );
    assert_eq!(
        std::fs::read_to_string(&pids)
            .expect("the file")
            .lines()
            .count(),
        1
    );
    outside.check_log(&session).await;
}

/// G14: the next worker removes the directories that a killed one left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_worker_sweeps_what_a_killed_one_left() {
    let Some(outside) = Outside::new().await else {
        return;
    };
    let session = outside.start("script: say hello ;; pause answer").await;
    let worker = outside.worker();
    outside.api.gate("answer").wait_until_reached(1).await;
    let runs = outside.directory.path().join("runs");
    let left: Vec<_> = std::fs::read_dir(&runs)
        .expect("a directory")
        .map(|it| it.expect("an entry").path())
        .collect();
    assert!(!left.is_empty(), "a running CLI has a directory");
    worker.kill();
    outside.api.gate("answer").open();
    let _next = outside.worker();
    outside.answer(&session).await;
    assert!(left.iter().all(|it| !it.exists()), "{left:?}");
}

/// Waits until a command has written its process id.
async fn wait_for_process(pids: &std::path::Path) -> ProcessIdentity {
    loop {
        let pid = std::fs::read_to_string(pids)
            .ok()
            .and_then(|it| it.lines().next()?.parse().ok());
        if let Some(identity) = pid.and_then(|it| ProcessIdentity::of(it).expect("/proc is read")) {
            return identity;
        }
        // sleeps because a file of another process cannot be waited for otherwise
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

async fn wait_until_gone(process: &ProcessIdentity) {
    while process.is_alive().expect("/proc is read") {
        // sleeps because the end of a process that is not a child cannot be waited for otherwise
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

/// The ancestor of a process that runs this program.
fn parent_with_program(mut pid: u32, program: &std::path::Path) -> ProcessIdentity {
    let program = program.canonicalize().expect("the program is there");
    loop {
        let status =
            std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process is there");
        let parent = status
            .lines()
            .find_map(|it| it.strip_prefix("PPid:"))
            .expect("a parent");
        pid = parent.trim().parse().expect("a process id");
        assert!(pid > 1, "no ancestor runs {}", program.display());
        if std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|it| it == program) {
            return ProcessIdentity::of(pid)
                .expect("/proc is read")
                .expect("it lives");
        }
    }
}

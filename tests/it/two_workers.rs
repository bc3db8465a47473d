//! Two worker processes over one SQLite file, with the fake CLI as their program: they share the
//! work, and one takes over what the other one leaves.

mod zombies;

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use abide::client::{AgentSessionClient, ResolveInterrupt, StartSession};
use abide::event::EventKind;
use abide::ids::{EventCursor, FlowType, InterruptId, SessionId};
use abide::record::{CallRecord, CallStatus, MessageRole, OUTCOME_UNKNOWN_TEXT};
use abide::store::{Lease, RowKey, RowKind, SqliteStateStore, StateStore};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{ends_turn, wait_for_event};

/// A lease that no test lives to see expire.
const FOR_EVER_MS: u64 = 24 * 60 * 60 * 1000;
const WRITE: &str = r#"script: call refund {"order_id":"7"}"#;

struct Place {
    directory: TempDir,
    store: Arc<dyn StateStore>,
    client: AgentSessionClient,
}

/// A worker process. Killed with SIGKILL when it is dropped.
struct Worker {
    child: Child,
    says: BufReader<ChildStdout>,
}

impl Worker {
    fn wait_for(&mut self, word: &str) {
        let mut line = String::new();
        while line.trim_end() != word {
            line.clear();
            let read = self.says.read_line(&mut line).expect("stdout is read");
            assert_ne!(read, 0, "the worker ended before it said {word:?}");
        }
    }

    fn send(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.expect("a process id"), signal).expect("the worker is ours");
    }

    /// SIGKILL: nothing of the worker runs any more when this returns.
    fn kill(mut self) {
        self.child.kill().expect("the worker is ours");
        self.child.wait().expect("the worker is reaped");
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Already killed, in some tests.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Place {
    async fn new() -> Self {
        let directory = TempDir::new().expect("a directory");
        for name in ["work", "runs", "home"] {
            std::fs::create_dir(directory.path().join(name)).expect("a directory");
        }
        let path = directory.path().join("state.sqlite");
        let store: Arc<dyn StateStore> =
            Arc::new(SqliteStateStore::open(path).await.expect("a store"));
        Self {
            directory,
            client: AgentSessionClient::new(Arc::clone(&store)),
            store,
        }
    }

    fn worker(&self, lease_ms: u64, hold: Option<&str>) -> Worker {
        self.worker_with(lease_ms, json!({ "hold": hold }))
    }

    fn worker_with(&self, lease_ms: u64, extra: Value) -> Worker {
        let path = |name: &str| self.directory.path().join(name);
        let mut plan = json!({
            "store": path("state.sqlite"),
            "program": env!("CARGO_BIN_EXE_fake-claude"),
            "environment": {"HOME": path("home")},
            "work_root": path("runs"),
            "working_directory": path("work"),
            "effects": path("effects"),
            "hold": null,
            "crash": null,
            "lease_ms": lease_ms,
            "scan_ms": 50,
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

    async fn start(&self, name: &str, message: &str) -> SessionId {
        let session = SessionId::new(name).expect("an id");
        let start = StartSession::new(session.clone(), FlowType::new("Crash").expect("a type"));
        self.client
            .start_session(start.with_initial_message(message))
            .await
            .expect("it starts");
        session
    }

    /// Approves the first open call.
    async fn approve(&self, session: &SessionId) -> InterruptId {
        let requested = |kind: &EventKind| matches!(kind, EventKind::InterruptRequested { .. });
        wait_for_event(&self.client, session, |it| requested(&it.kind)).await;
        let snapshot = self.client.snapshot(session).await.expect("a snapshot");
        let open = &snapshot.pending_interrupts[0];
        let answer = ResolveInterrupt::approve(open.interrupt_id.clone());
        self.client
            .resolve_interrupt(session, answer)
            .await
            .expect("the approval is taken");
        open.interrupt_id.clone()
    }

    /// Waits until so many turns are over, all completed, and returns what the model said last.
    async fn answer(&self, session: &SessionId, turns: usize) -> String {
        let mut ends = 0;
        wait_for_event(&self.client, session, |it| {
            if ends_turn(&it.kind) {
                assert_eq!(it.kind, EventKind::TurnCompleted);
                ends += 1;
            }
            ends == turns
        })
        .await;
        let snapshot = self.client.snapshot(session).await.expect("a snapshot");
        let mut messages = snapshot.messages.into_iter();
        let last = messages.rfind(|it| it.role == MessageRole::Assistant);
        last.expect("the model answered").text
    }

    fn effects(&self) -> Vec<String> {
        let text =
            std::fs::read_to_string(self.directory.path().join("effects")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    async fn record(&self, session: &SessionId, call: &InterruptId) -> CallRecord {
        let key = RowKey {
            kind: RowKind::Record,
            key: call.to_string(),
        };
        let rows = self.store.read_rows(session, &[key]).await.expect("a row");
        let bytes = rows.into_iter().flatten().next().expect("the record");
        serde_json::from_slice(&bytes).expect("a record")
    }

    async fn lease(&self, session: &SessionId) -> Option<Lease> {
        let stored = self.store.load(session).await.expect("the store is there");
        stored.expect("the session is there").lease
    }

    /// How often this kind of event is in the log, which has no gap (G13).
    async fn events(&self, session: &SessionId, kind: &str) -> usize {
        let read = self.store.read_events(session, EventCursor(0), 10_000);
        let rows = read.await.expect("events");
        let mut count = 0;
        for (row, cursor) in rows.iter().zip(1..) {
            assert_eq!(row.cursor, EventCursor(cursor));
            let event: Value = serde_json::from_slice(&row.bytes).expect("an event");
            count += usize::from(event["kind"] == kind);
        }
        count
    }
}

/// G1, G6, G8, G13: two processes and a third one's client share ten sessions: each write happens
/// once, each message becomes one turn, and no approval is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_share_sessions_and_run_each_write_once() {
    const SESSIONS: usize = 10;
    let place = Place::new().await;
    let _first = place.worker(FOR_EVER_MS, None);
    let _second = place.worker(FOR_EVER_MS, None);
    let mut sessions = Vec::new();
    for number in 0..SESSIONS {
        let write = format!(r#"script: call refund {{"order_id":"{number}"}}"#);
        let session = place.start(&format!("s{number}"), &write).await;
        // Its commit runs against those of the worker that has the session by now.
        let next = place
            .client
            .send_user_message(&session, "script: say bye", None);
        next.await.expect("it is queued");
        sessions.push(session);
    }
    let mut expected = Vec::new();
    for (number, session) in sessions.iter().enumerate() {
        let call = place.approve(session).await;
        assert_eq!(place.answer(session, 2).await, "said: bye");
        let record = place.record(session, &call).await;
        assert_eq!((record.status, record.starts), (CallStatus::Succeeded, 1));
        expected.push(format!("refund {number} {session}/{call}"));
        for (kind, count) in [
            ("attempt_started", 4),
            ("attempt_superseded", 0),
            ("attempt_failed", 0),
            ("tool_call_finished", 1),
        ] {
            assert_eq!(place.events(session, kind).await, count, "{kind}");
        }
    }
    let mut effects = place.effects();
    effects.sort();
    assert_eq!(effects, expected);
}

/// G1, G8: a worker that stands still in a write longer than the lease time loses its session; when
/// it goes on, the write it was in may still happen, once, and its report changes nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_stood_still_is_replaced_and_changes_nothing() {
    let place = Place::new().await;
    let session = place.start("s", WRITE).await;
    let mut first = place.worker(FOR_EVER_MS, Some("until_told_to"));
    let call = place.approve(&session).await;
    first.wait_for("reached");
    first.send(Signal::STOP);
    let second = place.worker(300, None);
    let unknown = format!("refund: {OUTCOME_UNKNOWN_TEXT}");
    assert_eq!(place.answer(&session, 1).await, unknown);
    let record = place.record(&session, &call).await;
    assert_eq!(
        (record.status, record.starts),
        (CallStatus::OutcomeUnknown, 1)
    );
    assert_eq!(place.effects(), Vec::<String>::new());
    // Nobody but the first one is left to answer the next message.
    until_free(&place, &session).await;
    second.kill();
    let before = place.client.snapshot(&session).await.expect("a snapshot");

    std::fs::write(place.directory.path().join("go-on"), "").expect("a file");
    first.send(Signal::CONT);
    until(|| !place.effects().is_empty()).await;
    // It takes the session again only after its old driver, with the report, is gone.
    let next = place
        .client
        .send_user_message(&session, "script: say bye", None);
    next.await.expect("it is queued");
    assert_eq!(place.answer(&session, 2).await, "said: bye");
    assert_eq!(place.record(&session, &call).await, record);
    assert_eq!(place.events(&session, "tool_call_finished").await, 1);
    let after = place.client.snapshot(&session).await.expect("a snapshot");
    assert_eq!(after.messages[..before.messages.len()], before.messages[..]);
    assert_eq!(after.messages.len(), before.messages.len() + 2);
    assert_eq!(place.effects(), [format!("refund 7 s/{call}")]);
    assert_eq!(place.events(&session, "attempt_superseded").await, 1);
}

/// G7, G8: a worker beside one that is killed takes over at once: it knows that the process is dead
/// and does not wait for the lease time, which here never ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_process_is_replaced_at_once_by_its_neighbour() {
    let place = Place::new().await;
    let session = place.start("s", WRITE).await;
    let mut first = place.worker(FOR_EVER_MS, Some("before_effect"));
    let call = place.approve(&session).await;
    first.wait_for("reached");
    let held = place.lease(&session).await.expect("a lease");
    // It looks at the session many times before the kill, and leaves it alone.
    let _second = place.worker(FOR_EVER_MS, None);
    let other = place.start("other", "script: say hello").await;
    assert_eq!(place.answer(&other, 1).await, "said: hello");
    let lease = place.lease(&session).await.expect("a lease");
    assert_eq!((lease.epoch, &lease.holder), (held.epoch, &held.holder));
    first.kill();
    let unknown = format!("refund: {OUTCOME_UNKNOWN_TEXT}");
    assert_eq!(place.answer(&session, 1).await, unknown);
    let record = place.record(&session, &call).await;
    assert_eq!(
        (record.status, record.starts),
        (CallStatus::OutcomeUnknown, 1)
    );
    assert_eq!(place.effects(), Vec::<String>::new());
    assert_eq!(place.events(&session, "attempt_superseded").await, 1);
}

async fn until_free(place: &Place, session: &SessionId) {
    while place.lease(session).await.is_some() {
        // sleeps because a lease that another process gives back is told to nobody
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn until(is_so: impl Fn() -> bool) {
    while !is_so() {
        // sleeps because a file of another process cannot be waited for otherwise
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

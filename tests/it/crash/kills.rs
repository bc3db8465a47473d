//! Kill -9 of the worker, of the CLI and of both at sampled points of live turns on the real CLI: behind
//! lines in either direction and beside commits. The points are drawn by a seed, which is printed.

mod check;

use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;

use abide::client::ClientError;
use abide::event::SessionEvent;
use abide::session::Refusal;

use super::*;
use crate::support::dice::Dice;
use check::{Call, check};

/// What a person says, one turn each, and how long a process waits with what the person has not
/// decided.
#[derive(Debug, Clone, Copy)]
struct Reference {
    name: &'static str,
    messages: &'static [&'static str],
    window_ms: u64,
    /// How many calls the model makes.
    calls: usize,
}

const FOUR_CALLS: Reference = Reference {
    name: "four gated calls",
    messages: &[
        r#"script: call refund {"order_id":"1"} && call set_status {"order_id":"2"} && call refund {"order_id":"3"} && call Bash {"command":"echo ran >> marker; cat marker"}"#,
    ],
    window_ms: 60_000,
    calls: 4,
};

/// The same without a window: whatever a person has to decide ends the process.
const FOUR_PARKED_CALLS: Reference = Reference {
    name: "four parked calls",
    window_ms: 0,
    ..FOUR_CALLS
};

const READS_AND_A_SECOND_MESSAGE: Reference = Reference {
    name: "inline reads and a second message",
    messages: &[
        r#"script: call lookup {"order_id":"1"} && call lookup {"order_id":"2"}"#,
        r#"script: call lookup {"order_id":"3"}"#,
    ],
    window_ms: 60_000,
    calls: 3,
};

/// Said after the turns, so that the model is shown the whole conversation once more.
const EPILOGUE: &str = "script: recall";

const DEEDS: [&str; 3] = [KILL_WORKER, "kill_cli", "kill_both"];

/// The CLI lives on for a moment.
const KILL_WORKER: &str = "kill_worker";

/// Where something dies, as the worker reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Line(u64),
    Commit(u64, &'static str),
}

#[derive(Debug, Clone, Copy)]
struct Point {
    place: Place,
    deed: &'static str,
}

impl Point {
    fn plan(self) -> Value {
        match self.place {
            Place::Line(number) => json!({"deed_at_line": [number, self.deed]}),
            Place::Commit(number, side) => json!({"crash": [number, side], "deed": self.deed}),
        }
    }
}

/// What one run came to.
#[derive(Debug)]
struct Run {
    /// False where the turns were over before the point.
    was_killed: bool,
    requests: usize,
    calls: Vec<Call>,
    effects: Vec<String>,
    bash_runs: usize,
    /// The answers to the messages, without the epilogue's.
    answers: Vec<String>,
    /// Lines and commits of the first worker.
    lines: u64,
    commits: u64,
}

impl Worker {
    /// Waits until the process has ended, and returns the signal that ended it.
    async fn ended(&mut self) -> Option<i32> {
        loop {
            if let Some(status) = self.child.try_wait().expect("the worker is ours") {
                return status.signal();
            }
            // sleeps because the end of a process is told to nobody here
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }
}

impl Outside {
    /// Says what the reference says and approves what is asked, until the last turn is over.
    async fn converse(&self, session: &SessionId, reference: Reference) -> Vec<String> {
        let events = self.client.events(session, EventCursor(0)).await;
        let mut events = events.expect("events");
        let mut answers = Vec::new();
        loop {
            let event = next(&mut events).await;
            match &event.kind {
                EventKind::InterruptRequested { interrupt_id, .. } => {
                    let answer = ResolveInterrupt::approve(interrupt_id.clone());
                    match self.client.resolve_interrupt(session, answer).await {
                        // A call before it has died, so it was skipped.
                        Ok(_) | Err(ClientError::Refused(Refusal::AlreadyResolved { .. })) => {}
                        Err(error) => panic!("{interrupt_id}: {error}"),
                    }
                }
                kind if ends_turn(kind) => {
                    assert_eq!(*kind, EventKind::TurnCompleted);
                    answers.push(self.last_answer(session).await);
                    let Some(text) = reference.messages.get(answers.len()) else {
                        return answers;
                    };
                    let sent = self.client.send_user_message(session, *text, None);
                    sent.await.expect("it is queued");
                }
                _ => {}
            }
        }
    }

    async fn last_answer(&self, session: &SessionId) -> String {
        let snapshot = self.client.snapshot(session).await.expect("a snapshot");
        let mut messages = snapshot.messages.into_iter();
        let last = messages.rfind(|it| it.role == MessageRole::Assistant);
        last.expect("the model answered").text
    }

    /// Everything that a hang may come from.
    async fn story(&self, session: &SessionId) -> String {
        let events = self.store.read_events(session, EventCursor(0), 10_000);
        let events: Vec<String> = (events.await.expect("events").iter())
            .map(|it| String::from_utf8_lossy(&it.bytes).into_owned())
            .collect();
        let stored = self.store.load(session).await.expect("a load");
        let trace = std::fs::read_to_string(self.trace()).unwrap_or_default();
        let state = stored.map(|it| String::from_utf8_lossy(&it.state).into_owned());
        format!(
            "log:\n{}\nstate: {state:?}\ntrace:\n{trace}",
            events.join("\n")
        )
    }

    fn trace(&self) -> PathBuf {
        self.directory.path().join("trace")
    }

    /// How often a word was written down by the first worker.
    fn traced(&self, word: &str) -> usize {
        let text = std::fs::read_to_string(self.trace()).expect("the trace");
        text.lines().filter(|it| *it == word).count()
    }

    /// The CLI processes that the first worker started.
    fn traced_processes(&self) -> Vec<(u32, u64)> {
        let text = std::fs::read_to_string(self.trace()).expect("the trace");
        let numbers = |it: &str| -> Option<(u32, u64)> {
            let (pid, start) = it.strip_prefix("cli ")?.split_once(' ')?;
            Some((pid.parse().ok()?, start.parse().ok()?))
        };
        text.lines().filter_map(numbers).collect()
    }
}

async fn next(events: &mut abide::client::EventStream) -> SessionEvent {
    loop {
        let observed = events.next().await.expect("an event");
        if let abide::client::Observed::Event(event) = observed.expect("the store is there") {
            return event;
        }
    }
}

/// Runs the reference with one kill, or undisturbed; `None` without a CLI.
async fn run(version: &str, reference: Reference, point: Option<Point>) -> Option<Run> {
    let outside = Outside::with_cli(version).await?;
    let session = outside.start(reference.messages[0]).await;
    match tokio::time::timeout(WATCHDOG, run_in(&outside, &session, reference, point)).await {
        Ok(run) => Some(run),
        Err(_) => panic!(
            "{}, {point:?}: nothing came of it; {}",
            reference.name,
            outside.story(&session).await
        ),
    }
}

async fn run_in(
    outside: &Outside,
    session: &SessionId,
    reference: Reference,
    point: Option<Point>,
) -> Run {
    let window = json!({"live_window_ms": reference.window_ms});
    let mut plan = point.map_or_else(|| json!({}), Point::plan);
    plan["live_window_ms"] = window["live_window_ms"].clone();
    plan["trace"] = json!(outside.trace());
    let mut first = outside.worker_with(plan);
    let conversation = outside.converse(session, reference);
    tokio::pin!(conversation);
    let (answers, second) = tokio::select! {
        biased;
        answers = &mut conversation => (answers, None),
        signal = first.ended() => {
            assert_eq!(signal, Some(9), "{point:?}: the worker was killed");
            let second = outside.worker_with(window.clone());
            (conversation.await, Some(second))
        }
    };
    let was_killed = outside.traced("done") == 1;
    let (lines, commits) = (
        outside.traced("sent") + outside.traced("received"),
        outside.traced("commit"),
    );
    let last = match second {
        Some(second) => second,
        None if was_killed => first,
        None => {
            // Its point is still to come, and is not to come in the epilogue.
            first.kill();
            outside.worker_with(window)
        }
    };
    let requests = outside.api.main_requests().len();
    let epilogue = outside.client.send_user_message(session, EPILOGUE, None);
    epilogue.await.expect("it is queued");
    let mut over = 0;
    wait_for_event(&outside.client, session, |it| {
        over += usize::from(ends_turn(&it.kind));
        over > reference.messages.len()
    })
    .await;
    let recalled = format!("recalled: {}", reference.messages.join(" | "));
    assert_eq!(outside.last_answer(session).await, recalled, "{point:?}");
    outside.check_log(session).await;
    let marker = outside.directory.path().join("work/marker");
    let run = Run {
        was_killed,
        requests,
        calls: outside.calls(session).await,
        effects: outside.effects(),
        bash_runs: std::fs::read_to_string(marker).map_or(0, |it| it.lines().count()),
        answers,
        lines: lines as u64,
        commits: commits as u64,
    };
    drop(last);
    for (pid, start_time) in outside.traced_processes() {
        if let Some(cli) = ProcessIdentity::of(pid).expect("/proc is read")
            && cli.start_time == start_time
        {
            wait_until_gone(&cli).await;
        }
    }
    run
}

/// Draws points until so many were reached, two at a time, and checks each run against the
/// undisturbed one. Returns how many kills there were.
async fn sample(version: &'static str, reference: Reference, seed: u64, kills: usize) -> usize {
    let Some(plain) = run(version, reference, None).await else {
        return 0;
    };
    assert_eq!(
        check(reference.calls, &plain, &plain, 0),
        Vec::<String>::new()
    );
    let mut points = Vec::new();
    points.extend((1..=plain.lines).map(Place::Line));
    let sides = |commit| ["before", "after"].map(|side| Place::Commit(commit, side));
    points.extend((1..=plain.commits).flat_map(sides));
    println!(
        "{version}, {}: seed {seed}, {} lines, {} commits, {} model requests",
        reference.name, plain.lines, plain.commits, plain.requests
    );
    let mut dice = Dice::new(seed);
    let (mut killed, mut drawn, mut failed) = (0, 0, Vec::new());
    while killed < kills {
        // The last lines of a run may not come before the turns are over; others are drawn then.
        assert!(drawn < 3 * kills, "{killed} of {drawn} points were reached");
        let lanes = (kills - killed).min(LANES);
        let mut running = tokio::task::JoinSet::new();
        for _ in 0..lanes {
            let (place, deed) = (*dice.one_of(&points), *dice.one_of(&DEEDS));
            let point = Point { place, deed };
            running.spawn(async move { (point, run(version, reference, Some(point)).await) });
        }
        while let Some(end) = running.join_next().await {
            let (point, run) = end.expect("the run ends");
            let run = run.expect("the CLI was there before");
            drawn += 1;
            killed += usize::from(run.was_killed);
            // A CLI whose worker died reads the end of its input before or after its own signal. Before
            // it, it refuses the calls that are open and asks the model once more on its way out
            // (measured on CLI 2.1.316 and 2.1.332).
            let last_words = usize::from(run.was_killed && point.deed == KILL_WORKER);
            let found = check(reference.calls, &plain, &run, last_words);
            failed.extend(found.into_iter().map(|it| format!("{point:?}: {it}")));
        }
    }
    println!(
        "{version}, {}: {killed} kills, {drawn} points drawn",
        reference.name
    );
    assert_eq!(
        failed,
        Vec::<String>::new(),
        "{version}, {}, seed {seed}",
        reference.name
    );
    killed
}

/// How many runs there are at a time.
const LANES: usize = 2;

/// Turns a hang into a failure; a run takes seconds.
const WATCHDOG: std::time::Duration = std::time::Duration::from_secs(60);

/// G1, G2, G3, G6, G7, G14: kill -9 at 40 sampled points of live turns: each effect happens once or is
/// unknown, every call is answered, and a kill costs one model call at most.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn forty_kills_of_live_turns_repeat_nothing_on_cli_2_1_316() {
    let mut kills = sample("2.1.316", FOUR_CALLS, 4, 20).await;
    kills += sample("2.1.316", FOUR_PARKED_CALLS, 40, 8).await;
    kills += sample("2.1.316", READS_AND_A_SECOND_MESSAGE, 400, 12).await;
    println!("{kills} kills");
}

/// As above, on the newer pinned CLI.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn kills_of_live_turns_repeat_nothing_on_cli_2_1_332() {
    let mut kills = sample("2.1.332", FOUR_CALLS, 5, 4).await;
    kills += sample("2.1.332", READS_AND_A_SECOND_MESSAGE, 500, 2).await;
    println!("{kills} kills");
}

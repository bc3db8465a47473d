//! One run of a reference conversation, by one worker or by several that die one after the other.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use abide::client::ResolveInterrupt;
use abide::event::{EventKind, SessionEvent};
use abide::ids::{EventCursor, InterruptId, SessionId, ToolCallId};
use abide::record::{CallRecord, CallStatus, MessageRole, ToolOutcome};
use abide::session::{CallState, SessionState};
use abide::snapshot::{AgentSnapshot, PendingInterrupt};
use abide::store::{RowKey, RowKind, SessionStatus, StoredSession};
use abide::testing::fake_cli::Effect;
use abide::testing::faults::{CrashPoint, CrashingStore, Side};
use abide::testing::launcher::{FakeCliHandle, Launch};
use abide::turn::CallPlace;

use super::reference::{Answer, EPILOGUE, Reference};
use crate::support::patience::{TURNS_OF_OTHERS, Watchdog, settles};
use crate::support::{Cli, World};

/// How long a worker may take, in the runtime's paused time: leases and back-off are part of it.
const LIMIT: Duration = Duration::from_secs(600);

/// Where a worker dies.
#[derive(Debug, Clone, Copy)]
pub(super) enum Point {
    /// Beside a commit under its lease, counted from the worker's start.
    Commit(CrashPoint),
    /// Inside the n-th handler of the world, before or after its effect.
    Handler(usize, Side),
    /// While a Bash whose effect has happened runs.
    Bash,
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = |side: &Side| match side {
            Side::Before => "before",
            Side::After => "after",
        };
        match self {
            Self::Commit(at) => write!(f, "{} commit {}", side(&at.side), at.commit),
            Self::Handler(start, at) => write!(f, "{} the effect of handler {start}", side(at)),
            Self::Bash => f.write_str("while Bash runs"),
        }
    }
}

/// How a worker's life ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LifeEnd {
    /// It died at its point.
    Died,
    /// Everything was done before it came to its point.
    Done,
}

/// What the crashes of a run make of a call, against the undisturbed run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// A start mark without an end.
    Unknown,
    /// Its success was recorded, and its segment was lost: the model is told the record.
    Told,
    /// The CLI died after it had asked, and before it was answered.
    NotRun,
}

/// A gated call as it was at the end.
#[derive(Debug)]
pub(super) struct GatedCall {
    pub(super) id: InterruptId,
    pub(super) record: CallRecord,
    pub(super) arguments: String,
    pub(super) outcome: Option<ToolOutcome>,
}

/// What is left of a run once it is over.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) snapshot: AgentSnapshot,
    pub(super) conversation: Vec<(MessageRole, String)>,
    pub(super) calls: Vec<GatedCall>,
    pub(super) events: Vec<SessionEvent>,
    pub(super) effects: Vec<String>,
    pub(super) bash: Vec<Effect>,
    /// The CLI processes, without the epilogue's.
    pub(super) launches: Vec<Launch>,
    pub(super) handler_starts: usize,
    /// What each call's end must be where it is not the undisturbed one.
    pub(super) fates: BTreeMap<ToolCallId, Fate>,
    /// The commits under a lease of each worker, without the epilogue's.
    pub(super) commits: Vec<u64>,
    pub(super) deaths: usize,
    /// What was already found wrong on the way.
    pub(super) problems: Vec<String>,
}

pub(super) struct Case<'a> {
    pub(super) world: World,
    reference: &'a Reference,
    session: SessionId,
    sent: usize,
    fates: BTreeMap<ToolCallId, Fate>,
    finals: BTreeMap<ToolCallId, CallRecord>,
    commits: Vec<u64>,
    /// Where workers die, so far.
    points: Vec<String>,
    deaths: usize,
    problems: Vec<String>,
}

impl<'a> Case<'a> {
    pub(super) async fn start(reference: &'a Reference) -> Self {
        let world = World::fake_in_runtime_time();
        let session = world.start_session("crashed", reference.messages[0]).await;
        let mut sent = 1;
        if !reference.waits {
            for text in &reference.messages[1..] {
                world.send(&session, text).await;
                sent += 1;
            }
        }
        Self {
            world,
            reference,
            session,
            sent,
            fates: BTreeMap::new(),
            finals: BTreeMap::new(),
            commits: Vec::new(),
            points: Vec::new(),
            deaths: 0,
            problems: Vec::new(),
        }
    }

    pub(super) fn cli(&self) -> FakeCliHandle {
        match &self.world.cli {
            Cli::Fake { handle, .. } => handle.clone(),
            Cli::Real { .. } => unreachable!("a case has the fake CLI"),
        }
    }

    /// Lets one worker run until it dies at its point, or everything is done; without a point it
    /// never dies.
    pub(super) async fn life(&mut self, point: Option<Point>) -> LifeEnd {
        self.points.extend(point.map(|it| it.to_string()));
        let at_commit = match point {
            Some(Point::Commit(at)) => Some(at),
            Some(Point::Handler(..) | Point::Bash) | None => None,
        };
        if let Some(Point::Handler(start, side)) = point {
            self.world.effects.hold_at(start, side);
        }
        let store = Arc::new(CrashingStore::new(Arc::clone(&self.world.store), at_commit));
        self.world.start_engine_over(Arc::clone(&store) as _).await;
        let (effects, cli) = (self.world.effects.clone(), self.cli());
        let death = async {
            match point {
                None => std::future::pending().await,
                Some(Point::Commit(_)) => {
                    let reached = store.crashed().wait_for(|it| *it).await.map(|_| ());
                    reached.expect("the store is there");
                    None
                }
                Some(Point::Handler(..)) => Some(effects.held().await),
                Some(Point::Bash) => {
                    cli.wait_until(|_| !cli.effects().is_empty()).await;
                    Some("Bash")
                }
            }
        };
        let held = tokio::select! {
            biased;
            held = death => Some(held),
            end = tokio::time::timeout(LIMIT, self.run_to_end()) => {
                if end.is_err() {
                    self.problems.push("it never came to its end".to_owned());
                }
                None
            }
        };
        self.commits.push(store.commits());
        let Some(held) = held else {
            return LifeEnd::Done;
        };
        store.crash();
        self.world.crash();
        self.deaths += 1;
        if !settles(|| cli.running() == 0).await {
            self.problems
                .push("a process outlived its worker".to_owned());
        }
        self.look_at_the_dead(held).await;
        LifeEnd::Died
    }

    /// Lets one worker stand still beside a commit, another one finish, and the first one go on
    /// (G8): nothing of it is stored any more, and its process ends.
    pub(super) async fn stall(&mut self, at: CrashPoint) {
        self.points.push(format!("asleep {}", Point::Commit(at)));
        let inner = Arc::clone(&self.world.store);
        let store = Arc::new(CrashingStore::new(inner, Some(at)));
        self.world.start_engine_over(Arc::clone(&store) as _).await;
        let mut stalled = store.crashed();
        tokio::select! {
            biased;
            reached = stalled.wait_for(|it| *it) => drop(reached.expect("the store is there")),
            () = self.run_to_end() => return,
        }
        let engine = self.world.leave_engine();
        self.deaths += 1;
        self.look_at_the_dead(None).await;
        if self.life(None).await != LifeEnd::Done {
            return;
        }
        self.is_free().await;
        let content = |it: StoredSession| (it.revision, it.state, it.head);
        let before = content(self.stored().await);
        let starts = self.world.effects.starts() + self.cli().effects().len();
        store.wake();
        let cli = self.cli();
        if !settles(|| cli.running() == 0).await {
            self.problems
                .push("the process of a fenced worker goes on".to_owned());
        }
        // What is still under way in the first worker has its time.
        settles(|| false).await;
        if self.world.effects.starts() + cli.effects().len() != starts {
            self.problems
                .push("a fenced worker started a call".to_owned());
        }
        if content(self.stored().await) != before {
            self.problems
                .push("a fenced worker changed what is stored".to_owned());
        }
        drop(engine);
    }

    /// Reads from the store what the death must mean for each call, and what must never change.
    async fn look_at_the_dead(&mut self, held: Option<&str>) {
        let state = self.state().await;
        let calls = state.turn.as_ref().map_or(&[][..], |it| &it.calls);
        for CallState {
            record, delivered, ..
        } in calls
        {
            let id = record.tool_call_id.clone();
            if record.status == CallStatus::Started && record.policy.effect.is_single_attempt() {
                self.fates.insert(id.clone(), Fate::Unknown);
            }
            let is_told = record.status == CallStatus::Succeeded
                && record.place == CallPlace::Segment
                && !delivered;
            if is_told {
                self.fates.insert(id.clone(), Fate::Told);
            }
            if record.status.is_final() {
                self.finals.entry(id).or_insert_with(|| record.clone());
            }
        }
        // G1: whatever runs outside the segment, or once, runs under its mark.
        let is_marked = |tool: &str| {
            let of_tool = |it: &&CallState| it.record.tool_name == tool;
            let call = calls.iter().rfind(of_tool);
            call.is_some_and(|it| it.record.status == CallStatus::Started)
        };
        if let Some(tool) = held.filter(|it| *it != "lookup" && !is_marked(it)) {
            self.problems
                .push(format!("{tool} was started without a start mark"));
        }
    }

    /// Does what the person does until all is said and nothing is due.
    async fn run_to_end(&mut self) {
        let watchdog = Watchdog::start();
        let mut changes = self.world.store.changes();
        loop {
            let snapshot = self.world.snapshot(&self.session).await;
            if let Some(open) = snapshot.pending_interrupts.first() {
                if self.deaths == 0 {
                    self.check_parked().await;
                }
                self.answer(open).await;
                continue;
            }
            if snapshot.status == SessionStatus::Idle {
                let Some(text) = self.reference.messages.get(self.sent) else {
                    return;
                };
                self.sent += 1;
                self.world.send(&self.session, text).await;
                continue;
            }
            tokio::select! {
                biased;
                () = watchdog.barks() => {
                    panic!("{}, {}: it works for ever", self.reference.name, self.points.join(", then "))
                }
                change = changes.next() => drop(change.expect("the store is there")),
            }
        }
    }

    /// G9: nothing is held while a person decides.
    async fn check_parked(&mut self) {
        if !self.is_free().await || self.cli().running() != 0 {
            self.problems
                .push("a lease or a process is held while a person decides".to_owned());
        }
    }

    async fn is_free(&self) -> bool {
        for _ in 0..TURNS_OF_OTHERS {
            if self.stored().await.lease.is_none() {
                return true;
            }
            tokio::task::yield_now().await;
        }
        false
    }

    /// Answers an interrupt twice: the second time must change nothing.
    async fn answer(&mut self, open: &PendingInterrupt) {
        let answer = || match self.reference.answer {
            Answer::Approve => ResolveInterrupt::approve(open.interrupt_id.clone()),
            Answer::Reject(text) => {
                ResolveInterrupt::reject(open.interrupt_id.clone(), Some(text.to_owned()))
            }
        };
        for is_new in [true, false] {
            let answer = answer().for_digest(open.digest.clone());
            let client = self.world.client();
            let taken = client.resolve_interrupt(&self.session, answer);
            if !taken.await.is_ok_and(|it| it == is_new) {
                let id = &open.interrupt_id;
                self.problems
                    .push(format!("the answer to {id} was not taken once"));
            }
        }
    }

    /// Asks the model for all it remembers, ends the last worker in order and gathers what is left.
    /// The last life must not have died.
    pub(super) async fn finish(mut self) -> Outcome {
        let launched = self.cli().launches().len();
        self.world.send(&self.session, EPILOGUE).await;
        if tokio::time::timeout(LIMIT, self.run_to_end())
            .await
            .is_err()
        {
            self.problems
                .push("the turn after it never came to its end".to_owned());
        }
        if !self.is_free().await {
            self.problems
                .push("a lease is held while nothing is due".to_owned());
        }
        self.world.shut_down().await;
        let cli = self.cli();
        if cli.running() != 0 {
            self.problems.push("a process is left".to_owned());
        }
        self.problems.extend(cli.violations());
        let events = self.events().await;
        let calls = self.gated_calls(&events).await;
        for call in &calls {
            let earlier = self.finals.get(&call.record.tool_call_id);
            if earlier.is_some_and(|it| *it != call.record) {
                self.problems
                    .push(format!("the final record of {} changed", call.id));
            }
        }
        let conversation = self.world.conversation(&self.session).await;
        // The model sees each prompt once.
        let recalled = format!("recalled: {}", self.reference.messages.join(" | "));
        if conversation.last().map(|(_, text)| text) != Some(&recalled) {
            self.problems
                .push(format!("the model ends with {:?}", conversation.last()));
        }
        Outcome {
            conversation,
            snapshot: self.world.snapshot(&self.session).await,
            calls,
            events,
            effects: self.world.effects.lines(),
            bash: cli.effects(),
            launches: cli.launches().drain(..launched).collect(),
            handler_starts: self.world.effects.starts(),
            fates: self.fates,
            commits: self.commits,
            deaths: self.deaths,
            problems: self.problems,
        }
    }

    async fn events(&self) -> Vec<SessionEvent> {
        let rows = self
            .world
            .store
            .read_events(&self.session, EventCursor(0), usize::MAX);
        let rows = rows.await.expect("events");
        rows.iter()
            .map(|it| serde_json::from_slice(&it.bytes).expect("an event"))
            .collect()
    }

    /// The gated calls in the order in which they were recorded: those that have a Step, or had to
    /// be decided about.
    async fn gated_calls(&self, events: &[SessionEvent]) -> Vec<GatedCall> {
        let mut ids: Vec<InterruptId> = Vec::new();
        for event in events {
            if let EventKind::StepStarted {
                tool_call_id: Some(call),
                ..
            } = &event.kind
            {
                let turn = event.turn_id.expect("a call's Step is part of a turn");
                let id = InterruptId::of_call(turn, call);
                if !ids.contains(&id) {
                    ids.push(id);
                }
            }
        }
        let mut calls = Vec::new();
        for id in ids {
            let rows = [RowKind::Record, RowKind::Arguments, RowKind::Output].map(|kind| RowKey {
                kind,
                key: id.to_string(),
            });
            let rows = self.world.store.read_rows(&self.session, &rows);
            let rows = rows.await.expect("rows");
            let [Some(record), Some(arguments), outcome] = &rows[..] else {
                panic!("call {id} has no record");
            };
            calls.push(GatedCall {
                id,
                record: serde_json::from_slice(record).expect("a record"),
                arguments: String::from_utf8(arguments.clone()).expect("arguments"),
                outcome: outcome
                    .as_ref()
                    .map(|it| serde_json::from_slice(it).expect("an outcome")),
            });
        }
        calls
    }

    async fn stored(&self) -> StoredSession {
        let stored = self.world.store.load(&self.session).await;
        stored.expect("a load").expect("the session")
    }

    async fn state(&self) -> SessionState {
        SessionState::read(&self.stored().await.state).expect("a state")
    }
}

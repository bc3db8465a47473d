//! One run of a reference conversation, by one worker or by several that die one after the other.

mod other_lives;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use abide::client::ResolveInterrupt;
use abide::event::{EventKind, SessionEvent};
use abide::ids::{EventCursor, InterruptId, SessionId, ToolCallId};
use abide::policy::{Approval, ToolEffect, ToolPolicies, ToolPolicy};
use abide::record::{CallRecord, CallStatus, MessageRole, ToolOutcome};
use abide::runner::GatedCallWait;
use abide::session::{CallState, CallStep, Phase, SessionState};
use abide::snapshot::{AgentSnapshot, PendingInterrupt};
use abide::store::{RowKey, RowKind, StoredSession};
use abide::testing::fake_cli::{Effect, MirrorLag};
use abide::testing::faults::CrashingStore;
use abide::testing::launcher::{FakeCliHandle, Launch};
use abide::turn::CallPlace;

use super::point::Point;
use super::reference::{Answer, EPILOGUE, First, Reference};
use super::transcript::said;
use crate::support::patience::{TURNS_OF_OTHERS, Watchdog, settles};
use crate::support::{Cli, World};

/// How long a worker may take, in the runtime's paused time: leases and back-off are part of it.
const LIMIT: Duration = Duration::from_secs(600);

/// The world of a case: how gated calls wait, and how far the CLI's mirror lags.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setting {
    pub(crate) wait: GatedCallWait,
    pub(crate) lag: MirrorLag,
}

impl Setting {
    pub(crate) const NATIVE: Self = Self {
        wait: GatedCallWait::Native,
        lag: MirrorLag::Quiet,
    };

    pub(crate) const LIVE: Self = Self {
        wait: GatedCallWait::Live,
        lag: MirrorLag::Quiet,
    };

    /// The reply's own entries are mirrored after the CLI has asked about its calls.
    pub(crate) const LAGGING: Self = Self {
        wait: GatedCallWait::Live,
        lag: MirrorLag::Lines(4),
    };

    pub(crate) const fn is_live(self) -> bool {
        matches!(self.wait, GatedCallWait::Live)
    }
}

/// How a worker's life ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LifeEnd {
    /// It died at its point.
    Died,
    /// Everything was done before it came to its point.
    Done,
}

/// What the crashes of a run make of a call, against the undisturbed run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// A start mark without an end.
    Unknown,
    /// Its success was recorded, and its segment was lost: the model is told the record.
    Told,
    /// The CLI died after it had asked, and before it was answered.
    NotRun,
    /// An earlier write of its reply is unknown, or did not run.
    Skipped,
}

/// A gated call as it was at the end.
#[derive(Debug)]
pub(crate) struct GatedCall {
    pub(crate) id: InterruptId,
    pub(crate) record: CallRecord,
    pub(crate) arguments: String,
    pub(crate) outcome: Option<ToolOutcome>,
}

/// What is left of a run once it is over.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) snapshot: AgentSnapshot,
    pub(crate) conversation: Vec<(MessageRole, String)>,
    pub(crate) calls: Vec<GatedCall>,
    pub(crate) events: Vec<SessionEvent>,
    pub(crate) effects: Vec<String>,
    pub(crate) bash: Vec<Effect>,
    /// The CLI processes, without the epilogue's.
    pub(crate) launches: Vec<Launch>,
    pub(crate) handler_starts: usize,
    /// How often the model was asked, without the epilogue.
    pub(crate) model_requests: u64,
    /// What the next CLI is given (live only).
    pub(crate) transcript: Vec<String>,
    pub(crate) setting: Setting,
    /// What each call's end must be where it is not the undisturbed one.
    pub(crate) fates: BTreeMap<ToolCallId, Fate>,
    /// The commits under a lease of each worker, without the epilogue's.
    pub(crate) commits: Vec<u64>,
    pub(crate) deaths: usize,
    /// What was already found wrong on the way.
    pub(crate) problems: Vec<String>,
}

pub(crate) struct Case<'a> {
    pub(crate) world: World,
    setting: Setting,
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
    pub(crate) async fn start(reference: &'a Reference, setting: Setting) -> Self {
        let mut world = World::fake_in_runtime_time();
        world.wait = setting.wait;
        if reference.parks {
            world.session_options.live_window = Duration::ZERO;
        }
        world.policies = policies(reference.free_tools);
        if let Cli::Fake { handle, .. } = &world.cli {
            handle.set_mirror_lag(setting.lag);
        }
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
            setting,
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

    pub(crate) fn cli(&self) -> FakeCliHandle {
        match &self.world.cli {
            Cli::Fake { handle, .. } => handle.clone(),
            Cli::Real { .. } => unreachable!("a case has the fake CLI"),
        }
    }

    /// Lets one worker run until it dies at its point, or everything is done; without a point it
    /// never dies.
    pub(crate) async fn life(&mut self, point: Option<Point>) -> LifeEnd {
        self.points.extend(point.map(|it| it.to_string()));
        let at_commit = match point {
            Some(Point::Commit(at)) => Some(at),
            Some(Point::Handler(..) | Point::Bash | Point::Line(_) | Point::LineOfBoth(_))
            | None => None,
        };
        if let Some(Point::Handler(start, side)) = point {
            self.world.effects.hold_at(start, side);
        }
        let store = Arc::new(CrashingStore::new(Arc::clone(&self.world.store), at_commit));
        self.world.stop.clear();
        if let Some(Point::Line(at) | Point::LineOfBoth(at)) = point {
            let store = Arc::clone(&store);
            self.world.stop.set(at, move || store.crash());
        }
        self.world.start_engine_over(Arc::clone(&store) as _).await;
        let (effects, cli) = (self.world.effects.clone(), self.cli());
        let death = async {
            match point {
                None => std::future::pending().await,
                Some(Point::Commit(_) | Point::Line(_) | Point::LineOfBoth(_)) => {
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
        self.world.stop.clear();
        self.deaths += 1;
        if !settles(|| cli.running() == 0).await {
            self.problems
                .push("a process outlived its worker".to_owned());
        }
        self.look_at_the_dead(held).await;
        LifeEnd::Died
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
            // Live, the record is the result; the CLI's own deferral needs it to be told.
            let is_told = !self.setting.is_live()
                && record.status == CallStatus::Succeeded
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
            let state = self.state().await;
            let calls = state.turn.as_ref().map_or(&[][..], |it| &it.calls);
            let is_asked = calls
                .iter()
                .any(|it| matches!(it.step, CallStep::AwaitToolApproval(_)));
            let is_parked = matches!(state.turn.as_ref().map(|it| &it.phase), Some(Phase::Calls));
            if is_asked && (is_parked || !self.reference.parks) {
                if self.deaths == 0 && (self.reference.parks || !self.setting.is_live()) {
                    self.check_parked().await;
                }
                let open = self.world.snapshot(&self.session).await.pending_interrupts;
                if let Some(open) = self.next_of(&open) {
                    self.answer(open).await;
                }
                continue;
            }
            if state.turn.is_none() && state.queue.is_empty() {
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

    fn next_of<'b>(&self, open: &'b [PendingInterrupt]) -> Option<&'b PendingInterrupt> {
        match self.reference.first {
            First::Oldest => open.first(),
            First::Newest => open.last(),
            First::Middle => open.get(open.len() / 2),
        }
    }

    /// G9: nothing is held while a person decides.
    async fn check_parked(&mut self) {
        let cli = self.cli();
        if !self.is_free().await || !settles(|| cli.running() == 0).await {
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
            Answer::Reject(text) => {
                ResolveInterrupt::reject(open.interrupt_id.clone(), Some(text.to_owned()))
            }
            Answer::RejectOrder(order, text) if open.arguments.contains(order) => {
                ResolveInterrupt::reject(open.interrupt_id.clone(), Some(text.to_owned()))
            }
            Answer::Approve | Answer::RejectOrder(..) => {
                ResolveInterrupt::approve(open.interrupt_id.clone())
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
    pub(crate) async fn finish(mut self) -> Outcome {
        let launches = self.cli().launches();
        let model_requests = self.cli().model_requests();
        if self.setting.is_live() {
            // A process that does not know the session yet is given all of it.
            self.world.shut_down().await;
            self.world.start_engine().await;
        }
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
        let transcript = match cli.launches().last().map(|it| it.spec.transcript.clone()) {
            Some(Some(given)) if self.setting.is_live() => said(&given.entries),
            Some(_) | None => Ok(Vec::new()),
        };
        let transcript = transcript.unwrap_or_else(|problem| {
            self.problems.push(problem);
            Vec::new()
        });
        Outcome {
            conversation,
            snapshot: self.world.snapshot(&self.session).await,
            calls,
            events,
            effects: self.world.effects.lines(),
            bash: cli.effects(),
            launches: with_exits(launches, &cli.launches()),
            model_requests,
            transcript,
            setting: self.setting,
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
    /// be decided about, or a tool of the CLI that needed neither.
    async fn gated_calls(&self, events: &[SessionEvent]) -> Vec<GatedCall> {
        let mut ids: Vec<InterruptId> = Vec::new();
        for event in events {
            let call = match &event.kind {
                EventKind::StepStarted { tool_call_id, .. } => tool_call_id.as_ref(),
                EventKind::ToolCallStarted { tool_call_id, .. }
                | EventKind::ToolCallFinished { tool_call_id, .. } => Some(tool_call_id),
                _ => None,
            };
            if let (Some(call), Some(turn)) = (call, event.turn_id) {
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
            // An inline call has no record.
            let [Some(record), Some(arguments), outcome] = &rows[..] else {
                continue;
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

/// The launches as they were, with how they ended since.
fn with_exits(mut launches: Vec<Launch>, later: &[Launch]) -> Vec<Launch> {
    for (launch, later) in launches.iter_mut().zip(later) {
        launch.exit = later.exit;
    }
    launches
}

/// These tools run once and need no person.
fn policies(free_tools: &[&str]) -> ToolPolicies {
    let free = ToolPolicy::new(ToolEffect::NonIdempotentWrite).with_approval(Approval::NotRequired);
    let tools = free_tools.iter();
    tools.fold(ToolPolicies::new(), |all, tool| all.with(*tool, free))
}

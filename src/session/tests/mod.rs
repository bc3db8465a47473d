//! The session machine, stepped by hand on virtual time over a strict store that holds everything.

mod attempts;
mod calls;
mod ending;
mod formats;
mod histories;
mod interrupts;
mod lifetime;
mod limits;
mod live;
mod questions;
mod queue;
mod rules;
mod segment_calls;
mod shrink;
mod size;
mod steering;
mod transitions;
mod turns;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{
    ActiveTurn, AttemptKey, CloseMode, DueStep, Input, Phase, ReduceError, Refusal, Reply,
    Resolution, ResolvedArguments, RunningAttempt, SessionState, SteerMode, Steering, create,
    due_steps, reduce,
};
use crate::event::{EventKind, SessionEvent};
use crate::failure::{AttemptFailure, FailureClass};
use crate::ids::{
    ChunkId, FlowType, InterruptId, LeaseEpoch, MessageId, Nonce, SessionId, StepId, Timestamp,
    ToolCallId, TurnId,
};
use crate::policy::{Approval, ToolEffect, ToolPolicy};
use crate::record::{
    CallRecord, CallStatus, Decision, FrameworkItem, MessageRole, StoredMessage, ToolOutcome,
    decode_chunk,
};
use crate::settings::SessionSettings;
use crate::store::{Chunk, Commit, RowChange, RowKey, RowKind, SessionStatus};
use crate::turn::{
    CallPlace, NewMessage, RequestedCall, RunModelOutcome, SegmentEvent, ToolCallEnd, Usage,
};

/// When the virtual clock starts.
const START: Timestamp = Timestamp(1_000_000);

use rules::{Told, check_replaced};

/// A session and all that was committed for it. Every commit is checked against the rules that hold
/// after any input, so each test of this module checks them.
struct World {
    /// Said in every failure, so that a random history can be played again.
    label: String,
    now: Timestamp,
    state: SessionState,
    events: Vec<SessionEvent>,
    rows: BTreeMap<RowKey, Vec<u8>>,
    chunks: BTreeMap<ChunkId, Chunk>,
    told: Told,
    /// How sessions, turns, calls and interrupts moved.
    moves: BTreeSet<transitions::Move>,
    /// The records that the last commit wrote, and those that are not final.
    to_check: BTreeSet<String>,
    commits: u64,
    nonces: u64,
    epoch: LeaseEpoch,
}

impl World {
    fn new() -> Self {
        Self::labelled("by hand".to_owned())
    }

    fn labelled(label: String) -> Self {
        let created = create(
            SessionId::new("s").unwrap(),
            FlowType::new("Flow").unwrap(),
            None,
            BTreeMap::new(),
            "digest".to_owned(),
            None,
            START,
        );
        let mut world = Self {
            label,
            now: START,
            state: created.state.clone(),
            events: Vec::new(),
            rows: BTreeMap::new(),
            chunks: BTreeMap::new(),
            told: Told::default(),
            moves: BTreeSet::new(),
            to_check: BTreeSet::new(),
            commits: 0,
            nonces: 0,
            epoch: LeaseEpoch(1),
        };
        world.commit(created.to_commit().unwrap());
        world
    }

    /// A session whose first message is accepted.
    fn started() -> Self {
        let mut world = Self::new();
        world.send("hello");
        world
    }

    /// A session whose first segment asked for these calls.
    fn with_calls(calls: Vec<RequestedCall>) -> Self {
        let mut world = Self::started();
        world.ask_for(calls);
        world
    }

    /// Reduces an input and commits the result; a reduction without change must change nothing.
    fn apply(&mut self, input: Input) -> Result<Reply, ReduceError> {
        let label = self.label.clone();
        let reduction = reduce(&self.state, input, self.now)?;
        if reduction.is_unchanged() {
            assert_eq!(reduction.state, self.state, "{label}");
            assert_eq!(reduction.events(), [], "{label}");
            return Ok(reduction.reply);
        }
        let commit = reduction
            .to_commit()
            .unwrap_or_else(|bug| panic!("{label}: {bug}"));
        let (before, events) = (transitions::Stand::of(&self.state), self.events.len());
        self.state = SessionState::read(&commit.state).unwrap();
        assert_eq!(
            self.state, reduction.state,
            "{label}: a state is stored whole"
        );
        self.commit(commit);
        self.note_moves(&before, events);
        self.check();
        Ok(reduction.reply)
    }

    /// As a strict store does it.
    fn commit(&mut self, commit: Commit) {
        let label = &self.label.clone();
        self.commits += 1;
        for chunk in commit.chunks {
            assert!(
                chunk.parent.is_none_or(|it| self.chunks.contains_key(&it)),
                "{label}: a chunk follows one that exists"
            );
            let old = self.chunks.insert(chunk.id, chunk);
            assert!(old.is_none(), "{label}: a chunk id is used once");
        }
        if let Some(head) = commit.head {
            assert!(self.chunks.contains_key(&head), "{label}: the head exists");
        }
        for change in commit.rows {
            match change {
                RowChange::Put(key, value) => {
                    if let Some(old) = self.rows.get(&key) {
                        check_replaced(label, &key, old, &value);
                    }
                    if key.kind == RowKind::Record {
                        let old = self.rows.get(&key).cloned();
                        self.note_record(old.as_deref(), &value);
                        self.to_check.insert(key.key.clone());
                    }
                    self.rows.insert(key, value);
                }
                RowChange::Delete(key) => {
                    let old = self.rows.remove(&key);
                    assert!(old.is_some(), "{label}: a row that is deleted was there");
                }
            }
        }
        for row in commit.events {
            let event: SessionEvent = serde_json::from_slice(&row.bytes).unwrap();
            assert_eq!(event.cursor, row.cursor, "{label}");
            assert_eq!(
                event.cursor.0,
                self.events.len() as u64 + 1,
                "{label}: G13: cursors have no gap"
            );
            self.told.hear(label, &event);
            self.events.push(event);
        }
    }

    fn wait(&mut self, time: Duration) {
        self.now = self.now.after(time);
    }

    fn send(&mut self, text: &str) -> MessageId {
        match self.try_send(text).unwrap() {
            Reply::MessageAccepted { message_id, .. } => message_id,
            other => panic!("a message was answered by {other:?}"),
        }
    }

    fn try_send(&mut self, text: &str) -> Result<Reply, ReduceError> {
        self.apply(Input::SendUserMessage {
            text: text.to_owned(),
        })
    }

    /// Takes the first queued message as the owner does.
    fn start_turn(&mut self) -> Reply {
        let message_id = self.state.queue[0].message_id;
        let key = row(RowKind::Message, &message_id.to_string());
        let text = String::from_utf8(self.rows[&key].clone()).unwrap();
        self.apply(Input::StartTurn { message_id, text }).unwrap()
    }

    fn begin(&mut self, step_id: StepId, nonce: &str, epoch: LeaseEpoch) -> Reply {
        self.apply(Input::BeginAttempt {
            step_id,
            nonce: Nonce::new(nonce).unwrap(),
            epoch,
        })
        .unwrap()
    }

    /// The one Step that is due.
    fn due_step(&self) -> StepId {
        let mut due = due_steps(&self.state);
        due.retain(|it| !matches!(it, DueStep::PassTime { .. }));
        match due.as_slice() {
            [due] => due.step_id().unwrap(),
            other => panic!("not one Step is due: {other:?}"),
        }
    }

    /// Begins the one Step that is due, as soon as it may.
    fn begin_due(&mut self) -> AttemptKey {
        let step_id = self.due_step();
        self.now = self.now.max(self.state.due_at().unwrap());
        self.nonces += 1;
        let nonce = format!("n{}", self.nonces);
        match self.begin(step_id, &nonce, self.epoch) {
            Reply::Granted(running) => AttemptKey { step_id, running },
            other => panic!("an attempt was answered by {other:?}"),
        }
    }

    /// The owner died; the next one asks for the one Step that is due.
    fn crash_and_begin(&mut self) -> Reply {
        self.epoch.0 += 1;
        self.nonces += 1;
        let nonce = format!("n{}", self.nonces);
        self.begin(self.due_step(), &nonce, self.epoch)
    }

    fn end(&mut self, attempt: &AttemptKey, end: Result<RunModelOutcome, AttemptFailure>) -> Reply {
        let attempt = attempt.clone();
        self.apply(Input::SegmentEnded { attempt, end }).unwrap()
    }

    fn report(&mut self, attempt: &AttemptKey, event: SegmentEvent) -> Reply {
        let attempt = attempt.clone();
        self.apply(Input::Segment { attempt, event }).unwrap()
    }

    fn tool_ends(&mut self, attempt: &AttemptKey, end: ToolCallEnd) -> Reply {
        let attempt = attempt.clone();
        self.apply(Input::ToolEnded { attempt, end }).unwrap()
    }

    /// Runs the due segment: the model answers.
    fn answer(&mut self, text: &str) {
        let attempt = self.begin_due();
        assert_eq!(self.end(&attempt, Ok(completed(text))), Reply::Done);
    }

    /// The model answers in a segment that runs.
    fn answer_of(&mut self, attempt: &AttemptKey, text: &str) {
        assert_eq!(self.end(attempt, Ok(completed(text))), Reply::Done);
    }

    /// Runs the due segment: the model asks for calls.
    fn ask_for(&mut self, calls: Vec<RequestedCall>) {
        let attempt = self.begin_due();
        assert_eq!(self.end(&attempt, Ok(requested(calls))), Reply::Done);
    }

    /// Fails the due segment for good.
    fn fail_turn(&mut self) {
        let attempt = self.begin_due();
        let failure = AttemptFailure::new(FailureClass::Options, "for the test");
        assert_eq!(self.end(&attempt, Err(failure)), Reply::Done);
    }

    fn cancel(&mut self, reason: Option<&str>) -> Result<Reply, ReduceError> {
        self.apply(Input::CancelTurn {
            turn_id: None,
            reason: reason.map(str::to_owned),
        })
    }

    fn steer(&mut self, text: &str) -> Result<Reply, ReduceError> {
        self.apply(Input::SteerUserMessage {
            steering: Steering::New(text.to_owned()),
            mode: SteerMode::AtBoundary,
        })
    }

    fn steer_now(&mut self, text: &str) -> Result<Reply, ReduceError> {
        self.apply(Input::SteerUserMessage {
            steering: Steering::New(text.to_owned()),
            mode: SteerMode::Now,
        })
    }

    /// Takes the first steered message as the owner does.
    fn take_steered(&mut self) -> Reply {
        let message_id = self.turn().steered[0].message_id;
        let key = row(RowKind::Message, &message_id.to_string());
        let text = String::from_utf8(self.rows[&key].clone()).unwrap();
        self.apply(Input::TakeSteered { message_id, text }).unwrap()
    }

    fn close(&mut self, mode: CloseMode) -> Result<Reply, ReduceError> {
        self.apply(Input::CloseSession { mode })
    }

    /// The owner was told by the store how much it holds.
    fn measure(&mut self, stored_bytes: u64, bytes_max: u64) {
        let input = Input::SizeMeasured {
            stored_bytes,
            written_before: self.state.size.unwrap_or_default().written,
            bytes_max,
        };
        assert_eq!(self.apply(input).unwrap(), Reply::Done);
    }

    fn update_settings(&mut self, revision: u64, model: &str) -> Result<Reply, ReduceError> {
        self.apply(Input::UpdateSettings {
            expected_revision: revision,
            settings: SessionSettings {
                model: Some(model.to_owned()),
                ..SessionSettings::default()
            },
        })
    }

    /// Lets the time come when something happens by itself.
    fn pass_time(&mut self) {
        self.now = self.now.max(self.state.next_timer().unwrap());
        self.apply(Input::TimePassed).unwrap();
    }

    fn resolve(&mut self, call: &str, decision: Decision) -> Result<Reply, ReduceError> {
        let turn_id = self.turn().turn_id;
        self.apply(Input::ResolveInterrupt(Resolution {
            interrupt_id: InterruptId::of_call(turn_id, &call_id(call)),
            decision,
            decided_by: None,
            digest: None,
            arguments: ResolvedArguments::AsAsked,
        }))
    }

    fn approve(&mut self, call: &str) {
        let reply = self.resolve(call, Decision::Approve).unwrap();
        assert_eq!(reply, Reply::InterruptResolved { duplicate: false });
    }

    fn reject(&mut self, call: &str) {
        let decision = Decision::Reject { message: None };
        let reply = self.resolve(call, decision).unwrap();
        assert_eq!(reply, Reply::InterruptResolved { duplicate: false });
    }

    fn turn(&self) -> &ActiveTurn {
        self.state.turn.as_ref().unwrap()
    }

    /// Where a call of any turn stands; the last turn that used the id counts.
    fn record(&self, call: &str) -> CallRecord {
        let mut records = self.records();
        records.retain(|_, it| it.tool_call_id == call_id(call));
        records.into_values().next_back().unwrap()
    }

    fn status(&self, call: &str) -> CallStatus {
        self.record(call).status
    }

    fn statuses(&self, calls: &[&str]) -> Vec<CallStatus> {
        calls.iter().map(|it| self.status(it)).collect()
    }

    fn records(&self) -> BTreeMap<&str, CallRecord> {
        self.rows
            .iter()
            .filter(|(key, _)| key.kind == RowKind::Record)
            .map(|(key, value)| (key.key.as_str(), serde_json::from_slice(value).unwrap()))
            .collect()
    }

    fn outcome(&self, key: &str) -> Option<ToolOutcome> {
        self.rows
            .get(&row(RowKind::Output, key))
            .map(|it| serde_json::from_slice(it).unwrap())
    }

    /// How a call of the first turn ended.
    fn outcome_of(&self, call: &str) -> ToolOutcome {
        self.outcome(&format!("t1/{call}")).unwrap()
    }

    fn open_interrupts(&self) -> Vec<InterruptId> {
        let calls = self.state.turn.as_ref().map_or(&[][..], |it| &it.calls);
        calls
            .iter()
            .filter(|it| matches!(it.step, super::CallStep::AwaitToolApproval(_)))
            .map(super::CallState::interrupt_id)
            .collect()
    }

    /// The conversation behind the head, oldest first.
    fn messages(&self) -> Vec<StoredMessage> {
        let mut pages = Vec::new();
        let mut next = self.state.head;
        while let Some(id) = next {
            let chunk = &self.chunks[&id];
            pages.push(decode_chunk(&chunk.bytes).unwrap());
            next = chunk.parent;
        }
        pages.into_iter().rev().flatten().collect()
    }

    fn texts(&self) -> Vec<(MessageRole, String)> {
        let messages = self.messages().into_iter();
        messages.map(|it| (it.role, it.text)).collect()
    }

    /// The kinds of the events after a cursor.
    fn kinds_since(&self, cursor: usize) -> Vec<EventKind> {
        self.events[cursor..]
            .iter()
            .map(|it| it.kind.clone())
            .collect()
    }
}

fn row(kind: RowKind, key: &str) -> RowKey {
    RowKey {
        kind,
        key: key.to_owned(),
    }
}

fn call_id(text: &str) -> ToolCallId {
    ToolCallId::new(text).unwrap()
}

/// A call with an approval rule that follows from its effect.
fn call(id: &str, effect: ToolEffect, place: CallPlace) -> RequestedCall {
    call_with(id, ToolPolicy::new(effect), place)
}

/// A call that no person is asked about.
fn free_call(id: &str, effect: ToolEffect, place: CallPlace) -> RequestedCall {
    let policy = ToolPolicy::new(effect).with_approval(Approval::NotRequired);
    call_with(id, policy, place)
}

/// A call that a person is asked about.
fn asked_call(id: &str, effect: ToolEffect, place: CallPlace) -> RequestedCall {
    let policy = ToolPolicy::new(effect).with_approval(Approval::Required);
    call_with(id, policy, place)
}

fn call_with(id: &str, policy: ToolPolicy, place: CallPlace) -> RequestedCall {
    RequestedCall {
        tool_call_id: call_id(id),
        tool_name: "tool".to_owned(),
        arguments: format!(r#"{{"for":"{id}"}}"#),
        shown_arguments: None,
        policy,
        place,
    }
}

/// The call, with a person's time to decide about it.
fn with_deadline(mut call: RequestedCall) -> RequestedCall {
    call.policy = call.policy.with_approval_deadline(Duration::from_secs(20));
    call
}

fn usage() -> Usage {
    Usage {
        input_tokens: 10,
        output_tokens: 1,
        model_calls: 1,
        ..Usage::default()
    }
}

fn said(text: &str) -> NewMessage {
    NewMessage {
        role: MessageRole::Assistant,
        text: text.to_owned(),
        tool_call_id: None,
        item: FrameworkItem::from_text(r#"{"kind":"test"}"#.to_owned()).unwrap(),
    }
}

fn completed(text: &str) -> RunModelOutcome {
    RunModelOutcome::TurnCompleted {
        messages: vec![said(text)],
        usage: usage(),
    }
}

fn requested(calls: Vec<RequestedCall>) -> RunModelOutcome {
    RunModelOutcome::ToolCallsRequested {
        calls,
        messages: vec![said("I will call tools")],
        usage: usage(),
    }
}

fn failure(class: FailureClass) -> AttemptFailure {
    AttemptFailure::new(class, "for the test")
}

fn succeeded() -> ToolCallEnd {
    ToolCallEnd::Succeeded {
        output: "done".to_owned(),
    }
}

fn refused(result: Result<Reply, ReduceError>) -> Refusal {
    match result {
        Err(ReduceError::Refused(refusal)) => refusal,
        Err(ReduceError::Bug(bug)) => panic!("{bug}"),
        Ok(reply) => panic!("not refused: {reply:?}"),
    }
}

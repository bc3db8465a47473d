//! What holds after every commit, whatever the input was.

use super::*;
use crate::record::NOT_RUN_PREFIX;
use crate::session::{QUEUE_MESSAGES_MAX, STATE_BYTES_MAX};

/// What the events said so far.
#[derive(Default)]
pub(super) struct Told {
    started: BTreeSet<(TurnId, ToolCallId)>,
    finished: BTreeMap<(TurnId, ToolCallId), CallStatus>,
    accepted: BTreeSet<MessageId>,
    /// Those that turns of their own took up, in order.
    consumed: Vec<MessageId>,
    steered: BTreeSet<MessageId>,
    /// Deleted by their authors, or reported undelivered.
    gone: BTreeSet<MessageId>,
    cancelled: BTreeSet<TurnId>,
    turns_over: BTreeSet<TurnId>,
    is_over: bool,
}

impl World {
    /// The rules that hold after every commit.
    pub(super) fn check(&mut self) {
        for key in std::mem::take(&mut self.to_check) {
            if !self.check_call(&key).is_final() {
                self.to_check.insert(key);
            }
        }
        self.check_messages();
        let label = &self.label;
        assert!(
            self.state.write().unwrap().len() <= STATE_BYTES_MAX,
            "{label}: a state is small"
        );
        let due = due_steps(&self.state);
        let has_work = due.iter().any(|it| !matches!(it, DueStep::PassTime { .. }));
        let runs_a_call = due.iter().any(|it| matches!(it, DueStep::CallTool { .. }))
            || (self.state.turn.iter())
                .flat_map(|it| &it.calls)
                .any(super::super::CallState::runs_in_segment);
        let expected = match &self.state.turn {
            _ if self.told.is_over => SessionStatus::Ended,
            None if self.state.queue.is_empty() => SessionStatus::Idle,
            // Whether a process waits with them or not.
            Some(_) if !self.open_interrupts().is_empty() && !runs_a_call => {
                SessionStatus::AwaitingApproval
            }
            None | Some(_) => SessionStatus::Running,
        };
        assert!(
            has_work || expected != SessionStatus::Running,
            "{label}: what runs is due"
        );
        assert_eq!(self.state.status(), expected, "{label}");
        assert_eq!(self.state.due_at().is_none(), due.is_empty(), "{label}");
        let due_calls = due
            .iter()
            .filter(|it| matches!(it, DueStep::CallTool { .. }));
        assert!(
            due_calls.count() <= 1,
            "{label}: calls of a reply run one by one"
        );
    }

    /// G1, G2, one finished event per call, no call left open by a turn that is over.
    fn check_call(&self, key: &str) -> CallStatus {
        let label = &self.label;
        let bytes = &self.rows[&row(RowKind::Record, key)];
        let record: CallRecord = serde_json::from_slice(bytes).unwrap();
        let is_write = record.policy.effect != ToolEffect::Read;
        let starts_max = if record.policy.effect.is_single_attempt() {
            1
        } else {
            3
        };
        assert!(record.starts <= starts_max, "{label}: G1, G2: {key}");
        let call = (record.turn_id, record.tool_call_id.clone());
        assert_eq!(
            self.told.started.contains(&call),
            record.starts > 0,
            "{label}: a start is announced: {key}"
        );
        let is_over = record.status.is_final();
        let status = is_over.then_some(record.status);
        let said = self.told.finished.get(&call).copied();
        assert_eq!(said, status, "{label}: an end is announced: {key}");
        let outcome = self.outcome(key);
        let stored = outcome.as_ref().map(ToolOutcome::status);
        assert_eq!(stored, status, "{label}: an end is stored: {key}");
        let turn_id = self.state.turn.as_ref().map(|it| it.turn_id);
        let is_active = turn_id == Some(record.turn_id);
        assert!(is_over || is_active, "{label}: left open: {key}");
        // The last start of a Step may be known not to have run; earlier ones are not.
        let known = u32::from(record.place == CallPlace::Step);
        let may_have_run = is_write && record.starts > known;
        let says_safe = outcome.is_some_and(|it| it.model_text().starts_with(NOT_RUN_PREFIX));
        assert!(
            !(says_safe && may_have_run),
            "{label}: called safe to call again after a start: {key}"
        );
        record.status
    }

    /// G6: each message is consumed by one turn, its own or one that it steered, or waits, or was taken
    /// back, or is reported undelivered; turns of their own begin in the order of their messages.
    fn check_messages(&self) {
        let label = &self.label;
        let told = &self.told;
        let steering = self.state.turn.iter().flat_map(|it| &it.steered);
        let waiting = self.state.queue.iter().chain(steering);
        let waiting: BTreeSet<_> = waiting.map(|it| it.message_id).collect();
        let consumed: BTreeSet<_> = told.consumed.iter().copied().collect();
        assert!(told.consumed.is_sorted(), "{label}: G6: order");
        assert_eq!(consumed.len(), told.consumed.len(), "{label}: G6: twice");
        for (one, other) in [
            (&consumed, &told.gone),
            (&waiting, &consumed),
            (&waiting, &told.gone),
        ] {
            assert!(one.is_disjoint(other), "{label}: G6: {one:?} {other:?}");
        }
        let mut known = consumed;
        known.extend(&waiting);
        known.extend(&told.gone);
        let mut lost = told.accepted.difference(&known);
        assert!(
            lost.all(|it| told.steered.contains(it)),
            "{label}: G6: lost"
        );
        assert!(known.is_subset(&told.accepted), "{label}: G6: made up");
        assert!(!told.is_over || waiting.is_empty(), "{label}: G6: left");
        for message_id in &waiting {
            let key = row(RowKind::Message, &message_id.to_string());
            assert!(self.rows.contains_key(&key), "{label}: G6: no text");
        }
        let rows = self
            .rows
            .keys()
            .take_while(|it| it.kind == RowKind::Message);
        assert_eq!(rows.count(), waiting.len(), "{label}: G6: a text is left");
        assert!(waiting.len() <= QUEUE_MESSAGES_MAX, "{label}");
    }
}

impl Told {
    pub(super) fn hear(&mut self, label: &str, event: &SessionEvent) {
        assert!(!self.is_over, "{label}: after the end: {event:?}");
        match &event.kind {
            EventKind::MessageQueued { message_id } => {
                self.accepted.insert(*message_id);
            }
            EventKind::TurnStarted { message_id } => self.consumed.push(*message_id),
            EventKind::MessageSteered { message_id } => {
                self.steered.insert(*message_id);
            }
            EventKind::MessageDeleted { message_id }
            | EventKind::MessageUndelivered { message_id } => {
                assert!(self.gone.insert(*message_id), "{label}: {event:?}");
            }
            EventKind::TurnCancelRequested => {
                let is_first = self.cancelled.insert(event.turn_id.unwrap());
                assert!(is_first, "{label}: cancelled twice: {event:?}");
            }
            EventKind::TurnCompleted | EventKind::TurnFailed { .. } | EventKind::TurnCancelled => {
                let turn_id = event.turn_id.unwrap();
                let is_cancel = event.kind == EventKind::TurnCancelled;
                let was_asked = self.cancelled.contains(&turn_id);
                assert_eq!(is_cancel, was_asked, "{label}: {event:?}");
                let is_first = self.turns_over.insert(turn_id);
                assert!(is_first, "{label}: over twice: {event:?}");
            }
            EventKind::SessionEnded { .. } => self.is_over = true,
            EventKind::ToolCallStarted { tool_call_id, .. } => {
                let call = (event.turn_id.unwrap(), tool_call_id.clone());
                let is_over = self.finished.contains_key(&call);
                assert!(!is_over, "{label}: started when it was over: {event:?}");
                self.started.insert(call);
            }
            EventKind::ToolCallFinished {
                tool_call_id,
                status,
            } => {
                let call = (event.turn_id.unwrap(), tool_call_id.clone());
                let other = self.finished.insert(call, *status);
                assert_eq!(other, None, "{label}: finished once: {event:?}");
            }
            _ => {}
        }
    }
}

/// N34: a record that has ended is never written again, and an output never replaced.
pub(super) fn check_replaced(label: &str, key: &RowKey, old: &[u8], new: &[u8]) {
    match key.kind {
        RowKind::Record => {
            let read = |bytes| serde_json::from_slice::<CallRecord>(bytes).unwrap();
            let (old, new) = (read(old), read(new));
            assert!(
                !old.status.is_final() || old == new,
                "{label}: N34: {old:?} became {new:?}"
            );
            assert!(new.starts >= old.starts, "{label}: {old:?} became {new:?}");
        }
        RowKind::Output
        | RowKind::Arguments
        | RowKind::ChangedArguments
        | RowKind::ShownArguments
        | RowKind::Message => {
            panic!("{label}: row {key:?} was replaced");
        }
        // Nothing of a machine is a blob: the driver takes them out of its chunks.
        RowKind::Receipt | RowKind::Blob => {}
    }
}

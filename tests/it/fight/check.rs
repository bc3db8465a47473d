//! What must hold after the fight.

use std::collections::{BTreeMap, HashMap};

use abide::event::{EventKind, SessionEvent};
use abide::ids::{EventCursor, InterruptId, LeaseEpoch, ToolCallId, TurnId};
use abide::record::{CallRecord, CallStatus};
use abide::store::{RowKey, RowKind};

use super::*;
use crate::support::Cli;

/// What all fights together came to, so that nobody mistakes a walk for a fight.
#[derive(Debug, Default)]
pub(super) struct Sum {
    calls: usize,
    succeeded: usize,
    unknown: usize,
    lost_attempts: usize,
    taken_commits: usize,
    fenced_commits: usize,
    owners: usize,
}

impl Sum {
    pub(super) fn check_that_they_fought(&self) {
        assert!(self.fenced_commits >= 10, "{self:?}");
        assert!(self.lost_attempts >= 25, "{self:?}");
        assert!(self.unknown >= 5 && self.succeeded >= 60, "{self:?}");
    }
}

impl Fight {
    pub(super) async fn check(&self, sum: &mut Sum) -> Vec<String> {
        let mut found = self.check_epochs(sum);
        let mut effects: BTreeMap<String, usize> = BTreeMap::new();
        for line in self.world.effects.lines() {
            *effects.entry(line).or_default() += 1;
        }
        let Cli::Fake { handle, .. } = &self.world.cli else {
            unreachable!("the fight has the fake CLI");
        };
        let mut commands: BTreeMap<String, usize> = BTreeMap::new();
        for effect in handle.effects() {
            *commands.entry(effect.tool_use_id).or_default() += 1;
        }
        for (session, texts) in &self.sessions {
            let events = self.events(session).await;
            self.check_log(session, texts, &events, &mut found).await;
            let is_lost =
                |it: &&SessionEvent| matches!(it.kind, EventKind::AttemptSuperseded { .. });
            sum.lost_attempts += events.iter().filter(is_lost).count();
            for record in self.records(session, &events).await {
                sum.calls += 1;
                let id = &record.tool_call_id;
                let key = format!(" under {session}/{}/{id}", record.turn_id);
                let happened = match record.tool_name.as_str() {
                    "Bash" => commands.remove(id.as_str()).unwrap_or(0),
                    _ => take(&mut effects, &key),
                };
                let is_once = record.policy.effect.is_single_attempt();
                let allowed = match record.status {
                    CallStatus::Succeeded => {
                        sum.succeeded += 1;
                        1..=if is_once { 1 } else { 3 }
                    }
                    CallStatus::OutcomeUnknown => {
                        sum.unknown += 1;
                        0..=if is_once { 1 } else { 3 }
                    }
                    CallStatus::Rejected | CallStatus::Skipped => 0..=0,
                    status => {
                        found.push(format!("{session}: {id} is {status:?}"));
                        continue;
                    }
                };
                if !allowed.contains(&happened) || (is_once && record.starts > 1) {
                    found.push(format!("{session}: {happened} effects of {record:?}"));
                }
            }
        }
        let strays = effects.keys().filter(|it| !it.starts_with("lookup "));
        found.extend(strays.map(|it| format!("{it} belongs to no call")));
        found.extend(
            commands
                .keys()
                .map(|it| format!("command {it} belongs to no call")),
        );
        found.extend(handle.violations());
        if handle.running() != 0 {
            found.push(format!("{} processes are left", handle.running()));
        }
        found
    }

    /// G8: each epoch has one owner, and what is taken never goes back to an earlier one.
    fn check_epochs(&self, sum: &mut Sum) -> Vec<String> {
        let mut found = Vec::new();
        let mut owners: HashMap<(SessionId, LeaseEpoch), usize> = HashMap::new();
        let mut newest: HashMap<SessionId, LeaseEpoch> = HashMap::new();
        for seen in self.witness.all() {
            if !seen.was_taken {
                sum.fenced_commits += 1;
                continue;
            }
            sum.taken_commits += 1;
            let key = (seen.session.clone(), seen.epoch);
            if *owners.entry(key).or_insert(seen.engine) != seen.engine {
                found.push(format!("two engines committed under {seen:?}"));
            }
            let newest = newest.entry(seen.session.clone()).or_insert(seen.epoch);
            if seen.epoch < *newest {
                found.push(format!("a stale report was taken: {seen:?}"));
            }
            *newest = seen.epoch;
        }
        sum.owners += owners.len();
        found
    }

    /// G6, G13: the log has no gap, each call one end, and each message one turn that completed.
    async fn check_log(
        &self,
        session: &SessionId,
        texts: &[&str],
        events: &[SessionEvent],
        found: &mut Vec<String>,
    ) {
        let mut ends: BTreeMap<&ToolCallId, usize> = BTreeMap::new();
        let mut completed = 0;
        for (event, cursor) in events.iter().zip(1..) {
            if event.cursor != EventCursor(cursor) {
                found.push(format!("{session}: a gap before {:?}", event.cursor));
            }
            match &event.kind {
                EventKind::ToolCallFinished { tool_call_id, .. } => {
                    *ends.entry(tool_call_id).or_default() += 1;
                }
                EventKind::TurnCompleted => completed += 1,
                EventKind::TurnFailed { class } => {
                    found.push(format!("{session}: a turn failed: {class}"));
                }
                _ => {}
            }
        }
        let twice = ends.iter().filter(|(_, ends)| **ends != 1);
        found.extend(twice.map(|(id, ends)| format!("{session}: {id} ended {ends} times")));
        if completed != texts.len() {
            found.push(format!("{session}: {completed} turns of {texts:?}"));
        }
        let (last, earlier) = texts.split_last().expect("it got a message");
        let recalled = format!("recalled: {}", earlier.join(" | "));
        let answer = self.world.last_answer(session).await;
        if *last != "script: recall" || answer != recalled {
            found.push(format!("{session}: the model ends with {answer:?}"));
        }
    }

    async fn events(&self, session: &SessionId) -> Vec<SessionEvent> {
        let read = self
            .world
            .store
            .read_events(session, EventCursor(0), usize::MAX);
        (read.await.expect("events").iter())
            .map(|it| serde_json::from_slice(&it.bytes).expect("an event"))
            .collect()
    }

    /// The records of the gated calls: of all calls that ended and have one.
    async fn records(&self, session: &SessionId, events: &[SessionEvent]) -> Vec<CallRecord> {
        let key = |turn: TurnId, call: &ToolCallId| RowKey {
            kind: RowKind::Record,
            key: InterruptId::of_call(turn, call).to_string(),
        };
        let ended = events.iter().filter_map(|it| match &it.kind {
            EventKind::ToolCallFinished { tool_call_id, .. } => {
                Some(key(it.turn_id?, tool_call_id))
            }
            _ => None,
        });
        let keys: Vec<RowKey> = ended.collect();
        let rows = self.world.store.read_rows(session, &keys).await;
        (rows.expect("rows").into_iter().flatten())
            .map(|it| serde_json::from_slice(&it).expect("a record"))
            .collect()
    }
}

/// Takes the effects with this key out of the others, and counts them.
fn take(effects: &mut BTreeMap<String, usize>, key: &str) -> usize {
    let mut taken = 0;
    effects.retain(|line, count| {
        let is_of_key = line.ends_with(key);
        taken += if is_of_key { *count } else { 0 };
        !is_of_key
    });
    taken
}

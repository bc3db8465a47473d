//! The moves of sessions, turns, calls and interrupts, as they happen and as the manual lists them.

use super::*;
use crate::record::Decision;

/// A move of one of the four machines of the manual.
pub(super) type Move = (&'static str, String, String);

const MANUAL: &str = include_str!("../../manual/sessions.md");

/// The headings of the four tables.
const MACHINES: [&str; 4] = ["session", "turn", "call", "interrupt"];

/// Where the session and its turn stand before an input.
pub(super) struct Stand {
    session: SessionStatus,
    turn: Option<&'static str>,
}

impl Stand {
    pub(super) fn of(state: &SessionState) -> Self {
        Self {
            session: state.status(),
            turn: state.turn.as_ref().map(turn_name),
        }
    }
}

const fn turn_name(turn: &ActiveTurn) -> &'static str {
    match (&turn.ending, &turn.phase) {
        (Some(super::super::TurnEnding::Cancelled(_)), _) => "cancelling",
        (Some(super::super::TurnEnding::Failed(_)), _) => "failing",
        (None, Phase::Steering) => "steering",
        (None, Phase::RunModel(_)) => "running",
        (None, Phase::Calls) => "with its calls",
    }
}

impl World {
    /// Notes how an input moved the session and its turn.
    pub(super) fn note_moves(&mut self, before: &Stand, events: usize) {
        let session = self.state.status();
        self.note("session", before.session.name(), session.name());
        let mut ends = self.events[events..].iter().filter_map(|it| match it.kind {
            EventKind::TurnCompleted => Some("completed"),
            EventKind::TurnFailed { .. } => Some("failed"),
            EventKind::TurnCancelled => Some("cancelled"),
            _ => None,
        });
        let end = ends.next_back();
        let now = self.state.turn.as_ref().map(turn_name);
        match (before.turn, end, now) {
            (Some(from), Some(end), _) => self.note("turn", from, end),
            (None, Some(end), _) => self.note("turn", "–", end),
            (from, None, Some(to)) => self.note("turn", from.unwrap_or("–"), to),
            (_, None, None) => {}
        }
    }

    /// Notes how a record, and with it an interrupt, moved.
    pub(super) fn note_record(&mut self, old: Option<&[u8]>, new: &[u8]) {
        let read = |bytes| serde_json::from_slice::<CallRecord>(bytes).unwrap();
        let (old, new) = (old.map(read), read(new));
        let from = old.as_ref().map_or("–", |it| call_name(it.status));
        self.note("call", from, call_name(new.status));
        let was_open = old.as_ref().map(is_open);
        match (was_open, is_open(&new)) {
            (None, true) => self.note("interrupt", "–", "open"),
            (Some(true), false) => self.note("interrupt", "open", interrupt_end(&new)),
            (None | Some(false), false) | (Some(_), true) => {}
        }
    }

    fn note(&mut self, machine: &'static str, from: &str, to: &str) {
        if from != to {
            self.moves.insert((machine, from.to_owned(), to.to_owned()));
        }
    }
}

fn is_open(record: &CallRecord) -> bool {
    record.status == CallStatus::Requested
}

fn interrupt_end(record: &CallRecord) -> &'static str {
    match record.decider.as_ref().map(|it| &it.decision) {
        Some(Decision::Approve) => "approved",
        Some(Decision::Reject { .. }) => "rejected",
        None if record.has_expired() => "expired",
        None => "closed",
    }
}

const fn call_name(status: CallStatus) -> &'static str {
    match status {
        CallStatus::Requested => "requested",
        CallStatus::Decided => "decided",
        CallStatus::Started => "started",
        CallStatus::Succeeded => "succeeded",
        CallStatus::Failed => "failed",
        CallStatus::Rejected => "rejected",
        CallStatus::Skipped => "skipped",
        CallStatus::OutcomeUnknown => "outcome_unknown",
        CallStatus::Unrecognized => "unrecognized",
    }
}

/// The rows of the manual's tables: under `### The <machine>`, `| from | to | …`.
pub(super) fn of_the_manual() -> BTreeSet<Move> {
    let mut moves = BTreeSet::new();
    let mut machine = None;
    for line in MANUAL.lines() {
        if let Some(heading) = line.strip_prefix("### The ") {
            machine = MACHINES.into_iter().find(|it| *it == heading);
        }
        if line.starts_with("## ") {
            machine = None;
        }
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if let (Some(machine), ["", from, to, ..]) = (machine, &cells[..])
            && !matches!(*from, "from" | "---")
        {
            for to in to.split(", ") {
                let [from, to] = [*from, to].map(|it| it.trim_matches('`').to_owned());
                moves.insert((machine, from, to));
            }
        }
    }
    moves
}

/// Compares the manual with what happened; it prints both differences.
pub(super) fn check(seen: &BTreeSet<Move>) {
    let listed = of_the_manual();
    let missing: Vec<_> = seen.difference(&listed).collect();
    let unseen: Vec<_> = listed.difference(seen).collect();
    assert!(
        missing.is_empty() && unseen.is_empty(),
        "not in the manual: {missing:#?}\nnever happened: {unseen:#?}"
    );
}

/// Every class of a failure is in the manual, with the answer to "is it tried again?".
#[test]
fn the_manual_lists_every_class_of_a_failure() {
    let listed: BTreeMap<String, bool> = (MANUAL.lines())
        .skip_while(|it| *it != "## Failures")
        .filter_map(|line| {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            match cells[..] {
                ["", name, retried @ ("yes" | "no"), _, ""] => {
                    Some((name.trim_matches('`').to_owned(), retried == "yes"))
                }
                _ => None,
            }
        })
        .collect();
    let known = FailureClass::ALL.iter();
    let known = known.map(|it| (it.name().to_owned(), it.is_retryable()));
    assert_eq!(listed, known.collect());
}

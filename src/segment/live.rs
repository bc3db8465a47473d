//! The live path (design.md 4): every gated call of a complete reply becomes a record, the CLI's
//! questions about them are held until the records say more, and what is said so far is committed at
//! every tool boundary. The process waits for people as long as the driver's window lasts.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde_json::value::RawValue;

use super::asked::{AskedCall, GatedCall};
use super::classify::needs_record;
use super::recorded::{Fate, RecordMove};
use super::{Action, GatedPath, Segment, SegmentEnd, SegmentStart, State, runner};
use crate::ids::ToolCallId;
use crate::protocol::{ContentBlock, HostFrame, ReplyMark};
use crate::record::CallStatus;
use crate::turn::{RunModelOutcome, SegmentEvent, SegmentProgress};

/// What the live path of a segment remembers.
#[derive(Debug, Default)]
pub(super) struct Live {
    /// True between the first and the last block of a reply: it may still be given up.
    is_streaming: bool,
    /// Calls of the reply that comes in, not told to the session yet.
    candidates: Vec<GatedCall>,
    /// Calls that stand on the CLI's output, in order.
    seen: Vec<ToolCallId>,
    /// Inline calls that ended since the last checkpoint.
    ended: Vec<(ToolCallId, CallStatus)>,
    /// Calls that the session was told of and has not committed yet.
    unrecorded: BTreeSet<ToolCallId>,
    /// The CLI's requests that wait for a checkpoint that is not sent yet.
    batches: Vec<String>,
    /// Checkpoints on their way, oldest first.
    on_the_way: VecDeque<Checkpoint>,
    /// Questions to the session about how a call stands.
    asked: BTreeMap<ToolCallId, Asked>,
    parking: Parking,
}

/// What waits for a checkpoint.
#[derive(Debug)]
struct Checkpoint {
    calls: Vec<ToolCallId>,
    batches: Vec<String>,
}

/// A question to the session that is on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    /// Its answer is of now.
    Fresh,
    /// Something was committed since: it has to be asked again.
    Stale,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Parking {
    #[default]
    NotAsked,
    Asked,
    /// A call was decided or runs; asked again once something was committed.
    Refused,
}

impl Segment {
    /// True when it does what only some CLI versions are proven for: gated calls wait in the process,
    /// or it goes on in the middle of a turn without the CLI's own deferral.
    #[must_use]
    pub const fn needs_proven_cli(&self) -> bool {
        match (self.plan.path, &self.plan.start) {
            (GatedPath::Live, _) | (GatedPath::Native, SegmentStart::Continue { .. }) => true,
            (GatedPath::Native, SegmentStart::Turn { .. } | SegmentStart::Resume { .. }) => false,
        }
    }

    /// True when the CLI stays after a turn that was answered.
    #[must_use]
    pub const fn stays(&self) -> bool {
        self.plan.stays
    }

    /// True when the CLI waits for a record and nothing of the segment runs.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        matches!(self.state, State::Running)
            && !self.is_stopping()
            && self.live.unrecorded.is_empty()
            && self.recorded.held().next().is_some()
            && !self.recorded.has_started()
            && !self.gate.has_open_inline()
    }

    /// True when the driver is to count the time: people have until the end of its window.
    #[must_use]
    pub fn waits_for_people(&self) -> bool {
        self.is_idle() && self.live.parking == Parking::NotAsked
    }

    /// True when a commit of the session may answer a question of the CLI.
    #[must_use]
    pub fn watches_session(&self) -> bool {
        matches!(self.state, State::Running)
            && !self.is_stopping()
            && self.recorded.held().next().is_some()
    }

    /// Takes the news that the session was committed.
    pub fn handle_session_changed(&mut self) {
        if self.live.parking == Parking::Refused {
            self.live.parking = Parking::NotAsked;
        }
        let held: Vec<ToolCallId> = self.recorded.held().cloned().collect();
        for id in held {
            self.ask_standing(&id);
        }
    }

    /// Takes the news that the process has waited for people long enough.
    pub fn handle_window_over(&mut self) {
        if !self.waits_for_people() {
            return;
        }
        if let Some(progress) = self.progress(Vec::new()) {
            self.live.parking = Parking::Asked;
            self.deliver(SegmentEvent::ParkRequested(progress));
        }
    }

    /// Takes the session's answer to a request to park. The process has to be ended then, without
    /// another line: an answer to a hook, or a closed input, would buy a model call.
    pub fn handle_park_answer(&mut self, is_parked: bool) {
        if is_parked {
            self.transmit.clear();
            self.is_silent = true;
            self.end(Ok(SegmentEnd {
                outcome: RunModelOutcome::Parked,
                stands_at: None,
            }));
        } else {
            self.live.parking = Parking::Refused;
        }
    }

    /// Takes the news that the oldest checkpoint on its way is committed.
    pub fn handle_checkpoint_committed(&mut self) {
        let Some(checkpoint) = self.live.on_the_way.pop_front() else {
            return;
        };
        for request_id in checkpoint.batches {
            self.transmit.push_back(HostFrame::GoOn { request_id });
        }
        for id in checkpoint.calls {
            self.live.unrecorded.remove(&id);
            if self.recorded.held().any(|it| *it == id) {
                self.ask_standing(&id);
            }
        }
    }

    /// Takes the session's word about a call: it is open (`None`), permitted, or over.
    pub fn handle_call_standing(&mut self, id: &ToolCallId, standing: super::Standing) {
        let (fate, changed) = match standing {
            super::Standing::Open => (Fate::Open, None),
            super::Standing::Permitted { changed_arguments } => {
                (Fate::Permitted, changed_arguments)
            }
            super::Standing::Final(outcome) => (Fate::Final(outcome), None),
        };
        let Ok(changed) = changed.map(RawValue::from_string).transpose() else {
            self.end(Err(runner("the changed arguments of a call are no JSON")));
            return;
        };
        let is_stale = self.live.asked.remove(id) == Some(Asked::Stale);
        if is_stale && matches!(fate, Fate::Open) {
            self.ask_standing(id);
        }
        let next = self.recorded.standing(id, fate, changed);
        self.follow(id, next);
    }

    /// Looks at the calls of a block that stands on the output: what needs a record is decided now,
    /// long before the CLI asks (design.md 4).
    pub(super) fn look_ahead(&mut self, blocks: Vec<ContentBlock>) {
        for block in blocks.into_iter().filter(|it| it.kind == "tool_use") {
            let Ok((call, input)) = AskedCall::of_block(block) else {
                // The CLI's question about it is denied for the same reason.
                continue;
            };
            self.live.seen.push(call.id.clone());
            let is_new = !self.gate.is_decided(&call.id) && !self.recorded.contains(&call.id);
            if is_new
                && !self.plan.answered.contains(&call.id)
                && needs_record(&self.plan, &call.tool_name)
            {
                self.consider(None, call, input);
            }
        }
    }

    /// Counts what a reply used.
    pub(super) fn count(&mut self, mark: &ReplyMark) {
        self.model_calls.note(mark);
        match mark {
            ReplyMark::Started { usage, .. } => self.meter.started(usage),
            ReplyMark::Used { usage, .. } => self.meter.used(usage),
            ReplyMark::Ended { .. } => self.meter.ended(),
        }
    }

    pub(super) fn on_reply_mark(&mut self, mark: &ReplyMark) {
        self.count(mark);
        match mark {
            ReplyMark::Started { .. } => self.live.is_streaming = true,
            ReplyMark::Used { .. } => {}
            ReplyMark::Ended { given_up } => {
                self.live.is_streaming = false;
                if *given_up {
                    self.give_up_candidates();
                }
            }
        }
    }

    /// Nobody was told of the calls of a reply that the CLI gave up.
    fn give_up_candidates(&mut self) {
        let reason = "it did not run: the reply was given up";
        for call in std::mem::take(&mut self.live.candidates) {
            self.live.unrecorded.remove(&call.id);
            self.gate.refuse(&call.id);
            let denial = self.recorded.forget(&call.id, reason);
            self.transmit.extend(denial);
        }
        self.gate.refuse_permitted();
        // The hooks of the application are asked about calls of this reply alone.
        if self.gate.looks_ahead() {
            self.deny_held(reason);
        }
    }

    /// A gated call of this segment: it waits for its reply to be complete.
    pub(super) fn request(&mut self, call: GatedCall) {
        self.gate.record(&call.id);
        self.recorded.request(&call);
        self.live.unrecorded.insert(call.id.clone());
        self.live.candidates.push(call);
    }

    /// All calls of a reply have their results: the next model call waits for the checkpoint.
    pub(super) fn on_batch_over(&mut self, request_id: String, is_main: bool) {
        if is_main {
            self.live.batches.push(request_id);
        } else {
            self.transmit.push_back(HostFrame::GoOn { request_id });
        }
    }

    /// Sends a checkpoint if there is a reason for one and everything for it is there.
    pub(super) fn advance(&mut self) {
        if !matches!(self.state, State::Running) || !self.transcript.is_resumable() {
            return;
        }
        let live = &self.live;
        let are_seen = live.candidates.iter().all(|it| live.seen.contains(&it.id));
        let is_complete = !live.is_streaming && are_seen && !self.gate.looks_ahead();
        let has_calls = !live.candidates.is_empty();
        if !is_complete || (!has_calls && live.batches.is_empty()) {
            return;
        }
        let mut calls = std::mem::take(&mut self.live.candidates);
        let seen = std::mem::take(&mut self.live.seen);
        calls.sort_by_key(|call| seen.iter().position(|it| *it == call.id));
        let checkpoint = Checkpoint {
            calls: calls.iter().map(|it| it.id.clone()).collect(),
            batches: std::mem::take(&mut self.live.batches),
        };
        let Some(progress) = self.progress(calls) else {
            return;
        };
        self.live.on_the_way.push_back(checkpoint);
        if progress == SegmentProgress::default() && self.live.on_the_way.len() == 1 {
            // Nothing was said since the last one.
            self.handle_checkpoint_committed();
        } else {
            self.deliver(SegmentEvent::Checkpoint(progress));
        }
    }

    /// Gathers what was said since the last checkpoint; ends the segment when it cannot be kept.
    fn progress(&mut self, calls: Vec<GatedCall>) -> Option<SegmentProgress> {
        match self.transcript.take_progress() {
            Ok(messages) => Some(SegmentProgress {
                messages,
                ended: std::mem::take(&mut self.live.ended),
                calls: calls.iter().map(GatedCall::request).collect(),
                usage: self.meter.take(),
            }),
            Err(failure) => {
                self.end(Err(failure));
                None
            }
        }
    }

    /// Does what follows from a question or from news about a record.
    pub(super) fn follow(&mut self, id: &ToolCallId, next: RecordMove) {
        match next {
            RecordMove::Answer(frame) => self.transmit.push_back(frame),
            RecordMove::AskStanding => self.ask_standing(id),
            RecordMove::Start => self.deliver(SegmentEvent::CallStarting {
                tool_call_id: id.clone(),
            }),
            RecordMove::Report(outcome) => self.deliver(SegmentEvent::CallFinished {
                tool_call_id: id.clone(),
                outcome,
            }),
            RecordMove::GivenUp => self.deliver(SegmentEvent::CallGivenUp {
                tool_call_id: id.clone(),
            }),
            RecordMove::Nothing => {}
        }
    }

    fn ask_standing(&mut self, id: &ToolCallId) {
        if self.live.unrecorded.contains(id) {
            return;
        }
        match self.live.asked.get_mut(id) {
            Some(asked) => *asked = Asked::Stale,
            None => {
                self.live.asked.insert(id.clone(), Asked::Fresh);
                self.deliver(SegmentEvent::CallStanding {
                    tool_call_id: id.clone(),
                });
            }
        }
    }

    /// An inline call ended: told with the checkpoint that holds its result, or at once where there
    /// is none.
    pub(super) fn inline_ended(&mut self, tool_call_id: ToolCallId, status: CallStatus) {
        match self.plan.path {
            GatedPath::Live => self.live.ended.push((tool_call_id, status)),
            GatedPath::Native => self.deliver(SegmentEvent::InlineCallFinished {
                tool_call_id,
                status,
            }),
        }
    }

    /// The segment is over: what no checkpoint told is told now.
    pub(super) fn tell_inline_ends(&mut self) {
        for (tool_call_id, status) in std::mem::take(&mut self.live.ended) {
            self.deliver(SegmentEvent::InlineCallFinished {
                tool_call_id,
                status,
            });
        }
    }

    pub(super) fn deliver(&mut self, event: SegmentEvent) {
        self.actions.push_back(Action::Deliver(event));
    }

    /// True when the live path has nothing under way that the end would cut off.
    pub(super) fn check_nothing_open(&self) -> Result<(), crate::failure::AttemptFailure> {
        if !self.recorded.are_all_told() {
            return Err(super::contract("a recorded call got no result"));
        }
        if !self.live.candidates.is_empty() {
            return Err(runner("a gated call was never recorded"));
        }
        Ok(())
    }
}

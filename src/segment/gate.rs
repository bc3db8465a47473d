//! The **gate**: one decision for each tool use id and segment, one use for each decision (L20,
//! L22, L23, L26, L30, I22, I23).

use std::collections::BTreeMap;

use serde_json::value::RawValue;

use super::asked::{AskedCall, FinalInput, GatedCall};
use super::classify::{Kind, classify, cli_is_inline, custom_is_inline};
use super::json::same_json;
use super::served::ServedCall;
use super::{McpPermit, SegmentPlan};
use crate::ids::ToolCallId;
use crate::policy::ToolPolicy;
use crate::question::{QuestionBounds, read_questions};
use crate::record::CallStatus;
use crate::turn::CallPlace;

#[derive(Debug)]
pub(super) enum GateAnswer {
    /// It runs at once.
    Inline { tool_name: String },
    /// The CLI takes the structured output.
    Structured,
    /// It does not run, for this reason.
    Deny(String),
    /// It needs a record first.
    Gated(GatedCall),
}

/// What the gate knows about an id, for the audit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// It was never asked about.
    Unknown,
    /// It was allowed to run.
    Allowed,
    /// It was refused or deferred, or its decision is not made yet.
    Refused,
}

#[derive(Debug)]
enum Decision {
    /// The hooks of the application are asked; the answer to the CLI is held.
    Asking(HeldCall),
    /// The rule of the application let it through before the CLI asked; it has not begun.
    Permitted(PermittedCall),
    /// A custom tool; the tool server may run it once, with this input.
    InlineCustom {
        name: String,
        input: FinalInput,
        ticket: Ticket,
        event: Event,
    },
    InlineCli {
        event: Event,
    },
    Structured,
    Deferred,
    /// It was denied before the CLI asked; the CLI's question gets this.
    DeniedAhead(String),
    Denied,
    /// A record governs it: `recorded` knows what was decided.
    Recorded,
}

/// A call that waits for the hooks of the application.
#[derive(Debug, Clone)]
pub(super) struct HeldCall {
    /// The CLI's question; `None` while it has not asked.
    pub(super) request_id: Option<String>,
    pub(super) call: AskedCall,
    pub(super) input: Box<RawValue>,
}

/// A call that was judged before the CLI asked, and runs inside the segment.
#[derive(Debug, Clone)]
pub(super) struct PermittedCall {
    pub(super) call: AskedCall,
    pub(super) input: FinalInput,
    /// What the rule of the application said.
    pub(super) needs_person: Option<bool>,
}

/// What is known of a call when the CLI asks about it.
pub(super) enum Later {
    /// Nothing.
    New,
    /// The hooks of the application are asked; the question is held.
    Held,
    /// A record governs it.
    Recorded,
    /// It was judged, and may begin.
    Permitted(PermittedCall),
    /// It was denied.
    Denied(String),
    /// An earlier question was answered.
    Decided,
}

#[derive(Debug, PartialEq, Eq)]
enum Ticket {
    Fresh,
    Used,
}

#[derive(Debug, PartialEq, Eq)]
enum Event {
    Started,
    Finished,
}

/// The decisions of one segment.
#[derive(Debug, Default)]
pub(super) struct ToolCallGate {
    decisions: BTreeMap<ToolCallId, Decision>,
}

impl ToolCallGate {
    /// Decides about a new call; a gated one is left to the caller.
    pub(super) fn decide(
        &mut self,
        plan: &SegmentPlan,
        call: &AskedCall,
        input: FinalInput,
        needs_person: Option<bool>,
    ) -> GateAnswer {
        let (decision, answer) = match classify(plan, &call.tool_name, needs_person) {
            Kind::Structured => (Decision::Structured, GateAnswer::Structured),
            Kind::UnknownCustom => (
                Decision::Denied,
                GateAnswer::Deny(format!("{} is not offered now", call.tool_name)),
            ),
            Kind::Custom(name, policy) if custom_is_inline(policy) => (
                Decision::InlineCustom {
                    name: name.clone(),
                    input,
                    ticket: Ticket::Fresh,
                    event: Event::Started,
                },
                GateAnswer::Inline { tool_name: name },
            ),
            Kind::Cli(policy) if cli_is_inline(policy) => (
                Decision::InlineCli {
                    event: Event::Started,
                },
                GateAnswer::Inline {
                    tool_name: call.tool_name.clone(),
                },
            ),
            Kind::Unanswerable => (
                Decision::Denied,
                GateAnswer::Deny(NOBODY_ANSWERS.to_owned()),
            ),
            // A deferral in a sub-agent would be lost with it (spec/cli-protocol.md 6).
            Kind::Custom(..) | Kind::Cli(_) if call.sub_agent.is_some() => (
                Decision::Denied,
                GateAnswer::Deny(format!(
                    "{} did not run: it cannot be called by a sub-agent. Call it from the main conversation.",
                    call.tool_name
                )),
            ),
            Kind::Custom(name, policy) => match gated(call, name, policy, CallPlace::Step, input) {
                Ok(gated) => return GateAnswer::Gated(gated),
                Err(reason) => (Decision::Denied, GateAnswer::Deny(reason)),
            },
            Kind::Cli(policy) => {
                let name = call.tool_name.clone();
                match gated(call, name, policy, CallPlace::Segment, input) {
                    Ok(gated) => return GateAnswer::Gated(gated),
                    Err(reason) => (Decision::Denied, GateAnswer::Deny(reason)),
                }
            }
        };
        self.decisions.insert(call.id.clone(), decision);
        answer
    }

    /// Holds the answer about a call until the hooks of the application have answered.
    pub(super) fn hold(&mut self, held: HeldCall) {
        let id = held.call.id.clone();
        self.decisions.insert(id, Decision::Asking(held));
    }

    /// Takes back a held call. Until the caller decides about it, it counts as denied.
    pub(super) fn take_held(&mut self, id: &ToolCallId) -> Option<HeldCall> {
        let decision = self.decisions.get_mut(id)?;
        match decision {
            Decision::Asking(held) => {
                let held = held.clone();
                *decision = Decision::Denied;
                Some(held)
            }
            Decision::Permitted(_)
            | Decision::InlineCustom { .. }
            | Decision::InlineCli { .. }
            | Decision::Structured
            | Decision::Deferred
            | Decision::DeniedAhead(_)
            | Decision::Denied
            | Decision::Recorded => None,
        }
    }

    /// Returns the held call whose question has this id.
    pub(super) fn held_by(&self, request_id: &str) -> Option<ToolCallId> {
        self.held()
            .find(|it| it.request_id.as_deref() == Some(request_id))
            .map(|it| it.call.id.clone())
    }

    /// Returns every held call.
    pub(super) fn all_held(&self) -> Vec<ToolCallId> {
        self.held().map(|it| it.call.id.clone()).collect()
    }

    fn held(&self) -> impl Iterator<Item = &HeldCall> {
        self.decisions.values().filter_map(|it| match it {
            Decision::Asking(held) => Some(held),
            Decision::Permitted(_)
            | Decision::InlineCustom { .. }
            | Decision::InlineCli { .. }
            | Decision::Structured
            | Decision::Deferred
            | Decision::DeniedAhead(_)
            | Decision::Denied
            | Decision::Recorded => None,
        })
    }

    /// Keeps that the call was deferred.
    pub(super) fn defer(&mut self, id: &ToolCallId) {
        self.decisions.insert(id.clone(), Decision::Deferred);
    }

    /// Keeps that the call was denied.
    pub(super) fn refuse(&mut self, id: &ToolCallId) {
        self.decisions.insert(id.clone(), Decision::Denied);
    }

    /// Keeps that the call was denied, unless something was decided before.
    pub(super) fn refuse_if_new(&mut self, id: &ToolCallId) {
        self.decisions.entry(id.clone()).or_insert(Decision::Denied);
    }

    /// Keeps that a record governs the call.
    pub(super) fn record(&mut self, id: &ToolCallId) {
        self.decisions.insert(id.clone(), Decision::Recorded);
    }

    /// Keeps that the call was denied before the CLI asked.
    pub(super) fn refuse_ahead(&mut self, id: &ToolCallId, reason: String) {
        self.decisions
            .insert(id.clone(), Decision::DeniedAhead(reason));
    }

    /// Keeps a call that was judged before the CLI asked, until it does.
    pub(super) fn permit(&mut self, permitted: PermittedCall) {
        let id = permitted.call.id.clone();
        self.decisions.insert(id, Decision::Permitted(permitted));
    }

    /// Denies what was permitted and has not begun: its reply was given up.
    pub(super) fn refuse_permitted(&mut self) {
        for decision in self.decisions.values_mut() {
            if matches!(decision, Decision::Permitted(_)) {
                *decision = Decision::Denied;
            }
        }
    }

    /// Takes the CLI's question about a call that was looked at before it asked.
    pub(super) fn asked_later(&mut self, request_id: &str, asked: &AskedCall) -> Later {
        let Some(decision) = self.decisions.get_mut(&asked.id) else {
            return Later::New;
        };
        match decision {
            Decision::Asking(held)
                if held.request_id.is_none() && held.call.tool_name == asked.tool_name =>
            {
                held.request_id = Some(request_id.to_owned());
                Later::Held
            }
            Decision::Permitted(permitted) if permitted.call.tool_name == asked.tool_name => {
                let permitted = permitted.clone();
                *decision = Decision::Denied;
                Later::Permitted(permitted)
            }
            Decision::DeniedAhead(reason) => {
                let reason = std::mem::take(reason);
                *decision = Decision::Denied;
                Later::Denied(reason)
            }
            Decision::Recorded => Later::Recorded,
            Decision::Asking(_)
            | Decision::Permitted(_)
            | Decision::InlineCustom { .. }
            | Decision::InlineCli { .. }
            | Decision::Structured
            | Decision::Deferred
            | Decision::Denied => Later::Decided,
        }
    }

    /// Takes the one permit of an inline custom call, if this is its tool (L20) and its input (G4).
    pub(super) fn serve(&mut self, call: ServedCall) -> Option<McpPermit> {
        match self.decisions.get_mut(&call.id) {
            Some(Decision::InlineCustom {
                name,
                input,
                ticket,
                ..
            }) if *name == call.name
                && *ticket == Ticket::Fresh
                && same_json(input.json().get(), &call.arguments) =>
            {
                *ticket = Ticket::Used;
                Some(McpPermit::Run {
                    tool_call_id: call.id,
                    tool_name: call.name,
                    arguments: call.arguments,
                })
            }
            Some(_) | None => None,
        }
    }

    /// Takes the end of a call; returns its status if it was inline and had not ended yet.
    pub(super) fn finish_inline(&mut self, id: &ToolCallId, is_error: bool) -> Option<CallStatus> {
        match self.decisions.get_mut(id)? {
            Decision::InlineCustom { event, .. } | Decision::InlineCli { event }
                if *event == Event::Started =>
            {
                *event = Event::Finished;
                Some(if is_error {
                    CallStatus::Failed
                } else {
                    CallStatus::Succeeded
                })
            }
            Decision::Asking(_)
            | Decision::Permitted(_)
            | Decision::InlineCustom { .. }
            | Decision::InlineCli { .. }
            | Decision::Structured
            | Decision::Deferred
            | Decision::DeniedAhead(_)
            | Decision::Denied
            | Decision::Recorded => None,
        }
    }

    /// Ends the inline calls whose results never came.
    pub(super) fn finish_open_inline(&mut self) -> Vec<(ToolCallId, CallStatus)> {
        let ids: Vec<ToolCallId> = self.decisions.keys().cloned().collect();
        ids.into_iter()
            .filter_map(|id| {
                let status = self.finish_inline(&id, true)?;
                Some((id, status))
            })
            .collect()
    }

    /// True when an inline call runs.
    pub(super) fn has_open_inline(&self) -> bool {
        self.decisions.values().any(|it| match it {
            Decision::InlineCustom { event, .. } | Decision::InlineCli { event } => {
                *event == Event::Started
            }
            Decision::Asking(_)
            | Decision::Permitted(_)
            | Decision::Structured
            | Decision::Deferred
            | Decision::DeniedAhead(_)
            | Decision::Denied
            | Decision::Recorded => false,
        })
    }

    /// True when the hooks of the application are asked about a call that the CLI has not asked for.
    pub(super) fn looks_ahead(&self) -> bool {
        self.held().any(|it| it.request_id.is_none())
    }

    pub(super) fn is_decided(&self, id: &ToolCallId) -> bool {
        self.decisions.contains_key(id)
    }

    pub(super) fn standing(&self, id: &ToolCallId) -> Standing {
        match self.decisions.get(id) {
            None => Standing::Unknown,
            Some(
                Decision::InlineCustom { .. } | Decision::InlineCli { .. } | Decision::Structured,
            ) => Standing::Allowed,
            Some(
                Decision::Asking(_)
                | Decision::Permitted(_)
                | Decision::Deferred
                | Decision::DeniedAhead(_)
                | Decision::Denied
                | Decision::Recorded,
            ) => Standing::Refused,
        }
    }
}

/// What the model reads when it asks people and nobody is there (O42).
const NOBODY_ANSWERS: &str = "AskUserQuestion did not run: nobody answers questions here. Ask in your reply, and end your turn with it.";

/// Makes the call that needs a record; one that asks people must ask what can be answered (O47).
fn gated(
    call: &AskedCall,
    tool_name: String,
    policy: ToolPolicy,
    place: CallPlace,
    input: FinalInput,
) -> Result<GatedCall, String> {
    let bounds = match place {
        CallPlace::Step => QuestionBounds::CUSTOM_TOOL,
        CallPlace::Segment => QuestionBounds::CLAUDE_CODE,
    };
    if policy.asks_questions()
        && let Err(reason) = read_questions(input.json().get(), bounds)
    {
        return Err(format!("{} did not run: {reason}", call.tool_name));
    }
    Ok(GatedCall {
        id: call.id.clone(),
        cli_name: call.tool_name.clone(),
        tool_name,
        policy,
        place,
        input,
    })
}

//! The **gate**: one decision for each tool use id and segment, one use for each decision (L20,
//! L22, L23, L26, L30, I22, I23).

use std::collections::BTreeMap;

use serde_json::value::RawValue;

use super::json::same_json;
use super::served::ServedCall;
use super::{CallingSubAgent, McpPermit, SegmentPlan};
use crate::ids::ToolCallId;
use crate::policy::{ToolAnnotations, ToolEffect, ToolPolicy};
use crate::protocol::{CanUseTool, ContentBlock, HookCallback};
use crate::record::CallStatus;
use crate::turn::{CallPlace, RequestedCall};

/// The CLI's own tool for structured output; it changes nothing (spec/cli-protocol.md 14).
const STRUCTURED_OUTPUT: &str = "StructuredOutput";

/// A call that the CLI asks about, checked.
#[derive(Debug, Clone)]
pub(super) struct AskedCall {
    pub(super) id: ToolCallId,
    /// The full name, as the model sees it.
    pub(super) tool_name: String,
    pub(super) sub_agent: Option<CallingSubAgent>,
}

impl AskedCall {
    /// Reads a hook's question and the call's input, or says why it cannot be allowed.
    pub(super) fn of_hook(hook: HookCallback) -> Result<(Self, Box<RawValue>), String> {
        let asked = hook.input;
        if asked.hook_event_name.as_deref() != Some("PreToolUse") {
            return Err("the host decides before a tool use only".to_owned());
        }
        let input = asked
            .tool_input
            .filter(|it| is_object(it))
            .ok_or_else(|| "the input of a call must be an object".to_owned())?;
        let id = match (hook.tool_use_id, asked.tool_use_id) {
            (Some(outer), Some(inner)) if outer != inner => None,
            (Some(id), _) | (None, Some(id)) => Some(id),
            (None, None) => None,
        };
        let call = Self::new(id, asked.tool_name, asked.agent_id, asked.agent_type)?;
        Ok((call, input))
    }

    /// Reads a tool use of a reply of the main conversation, or says why it cannot be allowed.
    pub(super) fn of_block(block: ContentBlock) -> Result<(Self, Box<RawValue>), String> {
        let input = block
            .input
            .filter(|it| is_object(it))
            .ok_or_else(|| "the input of a call must be an object".to_owned())?;
        let call = Self::new(block.id, block.name, None, None)?;
        Ok((call, input))
    }

    /// Reads a permission question, or says why it cannot be allowed.
    pub(super) fn of_question(question: CanUseTool) -> Result<Self, String> {
        Self::new(
            question.tool_use_id,
            question.tool_name,
            question.agent_id,
            None,
        )
    }

    fn new(
        id: Option<String>,
        tool_name: Option<String>,
        agent_id: Option<String>,
        agent_type: Option<String>,
    ) -> Result<Self, String> {
        let tool_name = tool_name
            .filter(|it| !it.is_empty())
            .ok_or_else(|| "a call must name its tool".to_owned())?;
        let id = id
            .and_then(|it| ToolCallId::new(it).ok())
            .ok_or_else(|| format!("{tool_name} did not run: the call has no valid id"))?;
        let sub_agent = agent_id.map(|id| CallingSubAgent { id, agent_type });
        Ok(Self {
            id,
            tool_name,
            sub_agent,
        })
    }
}

/// True for a JSON object: nothing else is an input of a call.
pub(super) fn is_object(input: &RawValue) -> bool {
    input.get().starts_with('{')
}

/// The final input of a call: what is decided about is what runs (G4).
#[derive(Debug, Clone)]
pub(super) struct FinalInput {
    /// The model's own.
    pub(super) asked: Box<RawValue>,
    /// What the hooks of the application made of it, if they changed it: the CLI must be told.
    pub(super) rewritten: Option<Box<RawValue>>,
}

impl FinalInput {
    /// What policy, record and execution see.
    pub(super) fn json(&self) -> &RawValue {
        self.rewritten.as_deref().unwrap_or(&self.asked)
    }
}

/// A call that must not run inside this segment without a record.
#[derive(Debug, Clone)]
pub(super) struct GatedCall {
    pub(super) id: ToolCallId,
    /// The full name, as the model sees it.
    pub(super) cli_name: String,
    /// The policy name.
    pub(super) tool_name: String,
    pub(super) policy: ToolPolicy,
    pub(super) place: CallPlace,
    pub(super) input: FinalInput,
}

impl GatedCall {
    /// What the session gets.
    pub(super) fn request(&self) -> RequestedCall {
        RequestedCall {
            tool_call_id: self.id.clone(),
            tool_name: self.tool_name.clone(),
            arguments: self.input.json().get().to_owned(),
            policy: self.policy,
            place: self.place,
        }
    }
}

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
#[derive(Debug)]
pub(super) struct HeldCall {
    /// The CLI's question; `None` while it has not asked.
    pub(super) request_id: Option<String>,
    pub(super) call: AskedCall,
    pub(super) input: Box<RawValue>,
}

/// What is known of a call when the CLI asks about it.
pub(super) enum Later {
    /// Nothing.
    New,
    /// The hooks of the application are asked; the question is held.
    Held,
    /// A record governs it.
    Recorded,
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

enum Kind {
    Custom(String, ToolPolicy),
    Cli(ToolPolicy),
    Structured,
    UnknownCustom,
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
    ) -> GateAnswer {
        let (decision, answer) = match classify(plan, &call.tool_name) {
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
            // A deferral in a sub-agent would be lost with it (spec/cli-protocol.md 6).
            Kind::Custom(..) | Kind::Cli(_) if call.sub_agent.is_some() => (
                Decision::Denied,
                GateAnswer::Deny(format!(
                    "{} did not run: it cannot be called by a sub-agent. Call it from the main conversation.",
                    call.tool_name
                )),
            ),
            Kind::Custom(name, policy) => {
                return GateAnswer::Gated(gated(call, name, policy, CallPlace::Step, input));
            }
            Kind::Cli(policy) => {
                let name = call.tool_name.clone();
                return GateAnswer::Gated(gated(call, name, policy, CallPlace::Segment, input));
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
        match self.decisions.get_mut(id)? {
            decision @ Decision::Asking(_) => match std::mem::replace(decision, Decision::Denied) {
                Decision::Asking(held) => Some(held),
                Decision::InlineCustom { .. }
                | Decision::InlineCli { .. }
                | Decision::Structured
                | Decision::Deferred
                | Decision::DeniedAhead(_)
                | Decision::Denied
                | Decision::Recorded => None,
            },
            Decision::InlineCustom { .. }
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
            Decision::InlineCustom { .. }
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
            Decision::DeniedAhead(reason) => {
                let reason = std::mem::take(reason);
                *decision = Decision::Denied;
                Later::Denied(reason)
            }
            Decision::Recorded => Later::Recorded,
            Decision::Asking(_)
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
                | Decision::Deferred
                | Decision::DeniedAhead(_)
                | Decision::Denied
                | Decision::Recorded,
            ) => Standing::Refused,
        }
    }
}

/// A custom tool that runs inside the segment: it may run again with it (E05).
const fn custom_is_inline(policy: ToolPolicy) -> bool {
    !policy.requires_approval() && matches!(policy.effect, ToolEffect::Read)
}

/// A tool of the CLI that runs inside the segment: at least once, so never a single-attempt one.
const fn cli_is_inline(policy: ToolPolicy) -> bool {
    !policy.requires_approval() && !policy.effect.is_single_attempt()
}

/// True when a call of this tool in the main conversation must not run without a record. A name that
/// is not offered may be an older one of a tool, under which the CLI does not ask: its question tells.
pub(super) fn needs_record(plan: &SegmentPlan, tool_name: &str) -> bool {
    match classify(plan, tool_name) {
        Kind::Custom(_, policy) => !custom_is_inline(policy),
        Kind::Cli(policy) => !cli_is_inline(policy) && plan.offered.contains(tool_name),
        Kind::Structured | Kind::UnknownCustom => false,
    }
}

/// True when a call of this tool runs inside the segment, as often as it takes.
pub(super) fn is_inline(plan: &SegmentPlan, tool_name: &str) -> bool {
    match classify(plan, tool_name) {
        Kind::Custom(_, policy) => custom_is_inline(policy),
        Kind::Cli(policy) => cli_is_inline(policy) && plan.offered.contains(tool_name),
        Kind::Structured | Kind::UnknownCustom => false,
    }
}

/// Returns the name of a tool in policies and records.
pub(super) fn policy_name<'a>(plan: &SegmentPlan, tool_name: &'a str) -> &'a str {
    custom_name(&plan.server_name, tool_name).unwrap_or(tool_name)
}

fn classify(plan: &SegmentPlan, tool_name: &str) -> Kind {
    if let Some(name) = custom_name(&plan.server_name, tool_name) {
        return match plan.custom_tools.get(name) {
            Some(policy) => Kind::Custom(name.to_owned(), *policy),
            None => Kind::UnknownCustom,
        };
    }
    if tool_name == STRUCTURED_OUTPUT {
        return Kind::Structured;
    }
    Kind::Cli(
        plan.policies
            .policy_for(tool_name, ToolAnnotations::default()),
    )
}

/// Returns the own name of a tool of our server.
fn custom_name<'a>(server: &str, tool_name: &'a str) -> Option<&'a str> {
    tool_name
        .strip_prefix("mcp__")?
        .strip_prefix(server)?
        .strip_prefix("__")
}

fn gated(
    call: &AskedCall,
    tool_name: String,
    policy: ToolPolicy,
    place: CallPlace,
    input: FinalInput,
) -> GatedCall {
    GatedCall {
        id: call.id.clone(),
        cli_name: call.tool_name.clone(),
        tool_name,
        policy,
        place,
        input,
    }
}

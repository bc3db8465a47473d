//! The **gate**: one decision for each tool use id and segment, one use for each decision (L20,
//! L22, L23, L26, L30, I22, I23).

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{McpPermit, SegmentPlan};
use crate::ids::ToolCallId;
use crate::policy::{ToolAnnotations, ToolEffect, ToolPolicy};
use crate::protocol::{CanUseTool, HookCallback};
use crate::record::CallStatus;
use crate::turn::CallPlace;

/// The CLI's own tool for structured output; it changes nothing (spec/cli-protocol.md 14).
const STRUCTURED_OUTPUT: &str = "StructuredOutput";

/// A call that the CLI asks about, checked.
#[derive(Debug)]
pub(super) struct AskedCall<'a> {
    pub(super) id: ToolCallId,
    /// The full name, as the model sees it.
    pub(super) tool_name: &'a str,
    pub(super) in_sub_agent: bool,
}

impl<'a> AskedCall<'a> {
    /// Reads a hook's question, or says why it cannot be allowed.
    pub(super) fn of_hook(hook: &'a HookCallback) -> Result<Self, String> {
        if hook.input.hook_event_name.as_deref() != Some("PreToolUse") {
            return Err("the host decides before a tool use only".to_owned());
        }
        if !(hook.input.tool_input.as_deref()).is_some_and(|it| it.get().starts_with('{')) {
            return Err("the input of a call must be an object".to_owned());
        }
        let id = match (&hook.tool_use_id, &hook.input.tool_use_id) {
            (Some(outer), Some(inner)) if outer != inner => None,
            (Some(id), _) | (None, Some(id)) => Some(id),
            (None, None) => None,
        };
        Self::new(
            id,
            hook.input.tool_name.as_deref(),
            hook.input.agent_id.is_some(),
        )
    }

    /// Reads a permission question, or says why it cannot be allowed.
    pub(super) fn of_question(question: &'a CanUseTool) -> Result<Self, String> {
        Self::new(
            question.tool_use_id.as_ref(),
            question.tool_name.as_deref(),
            question.agent_id.is_some(),
        )
    }

    fn new(
        id: Option<&String>,
        tool_name: Option<&'a str>,
        in_sub_agent: bool,
    ) -> Result<Self, String> {
        let tool_name = tool_name
            .filter(|it| !it.is_empty())
            .ok_or_else(|| "a call must name its tool".to_owned())?;
        let id = id
            .and_then(|it| ToolCallId::new(it.as_str()).ok())
            .ok_or_else(|| format!("{tool_name} did not run: the call has no valid id"))?;
        Ok(Self {
            id,
            tool_name,
            in_sub_agent,
        })
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
    /// It was refused or deferred.
    Refused,
}

#[derive(Debug)]
enum Decision {
    /// A custom tool; the tool server may run it once.
    InlineCustom {
        name: String,
        ticket: Ticket,
        event: Event,
    },
    InlineCli {
        event: Event,
    },
    Structured,
    Deferred,
    Denied,
    /// The resumed call: `native` holds what was decided.
    Resumed,
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
    pub(super) fn decide(&mut self, plan: &SegmentPlan, call: &AskedCall<'_>) -> GateAnswer {
        let (decision, answer) = match classify(plan, call.tool_name) {
            Kind::Structured => (Decision::Structured, GateAnswer::Structured),
            Kind::UnknownCustom => (
                Decision::Denied,
                GateAnswer::Deny(format!("{} is not offered now", call.tool_name)),
            ),
            Kind::Custom(name, policy) if custom_is_inline(policy) => (
                Decision::InlineCustom {
                    name: name.clone(),
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
                    tool_name: call.tool_name.to_owned(),
                },
            ),
            // A deferral in a sub-agent would be lost with it (spec/cli-protocol.md 6).
            Kind::Custom(..) | Kind::Cli(_) if call.in_sub_agent => (
                Decision::Denied,
                GateAnswer::Deny(format!(
                    "{} did not run: it cannot be called by a sub-agent. Call it from the main conversation.",
                    call.tool_name
                )),
            ),
            Kind::Custom(name, policy) => {
                return GateAnswer::Gated(gated(call, name, policy, CallPlace::Step));
            }
            Kind::Cli(policy) => {
                let name = call.tool_name.to_owned();
                return GateAnswer::Gated(gated(call, name, policy, CallPlace::Segment));
            }
        };
        self.decisions.insert(call.id.clone(), decision);
        answer
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

    /// Keeps that the resumed call was asked about.
    pub(super) fn resume(&mut self, id: &ToolCallId) {
        self.decisions.insert(id.clone(), Decision::Resumed);
    }

    /// Takes the one permit of an inline custom call, if this is its tool (L20).
    pub(super) fn serve(&mut self, call: ServedCall) -> Option<McpPermit> {
        match self.decisions.get_mut(&call.id) {
            Some(Decision::InlineCustom { name, ticket, .. })
                if *name == call.name && *ticket == Ticket::Fresh =>
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
            Decision::InlineCustom { .. }
            | Decision::InlineCli { .. }
            | Decision::Structured
            | Decision::Deferred
            | Decision::Denied
            | Decision::Resumed => None,
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

    pub(super) fn is_decided(&self, id: &ToolCallId) -> bool {
        self.decisions.contains_key(id)
    }

    pub(super) fn standing(&self, id: &ToolCallId) -> Standing {
        match self.decisions.get(id) {
            None => Standing::Unknown,
            Some(
                Decision::InlineCustom { .. } | Decision::InlineCli { .. } | Decision::Structured,
            ) => Standing::Allowed,
            Some(Decision::Deferred | Decision::Denied | Decision::Resumed) => Standing::Refused,
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
    call: &AskedCall<'_>,
    tool_name: String,
    policy: ToolPolicy,
    place: CallPlace,
) -> GatedCall {
    GatedCall {
        id: call.id.clone(),
        cli_name: call.tool_name.to_owned(),
        tool_name,
        policy,
        place,
    }
}

/// What a message to the tool server asks for.
#[derive(Debug)]
pub(super) enum McpMethod {
    /// Anything but a call.
    Other,
    /// A call; `None` when it does not say which.
    Call(Option<ServedCall>),
}

/// A call that the tool server is asked for.
#[derive(Debug)]
pub(super) struct ServedCall {
    /// The id that the CLI sends along (I22).
    pub(super) id: ToolCallId,
    /// The tool's own name.
    pub(super) name: String,
    /// The input, verbatim.
    pub(super) arguments: String,
}

#[derive(Deserialize)]
struct McpHead {
    #[serde(default)]
    method: Option<String>,
    #[serde(default)]
    params: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
struct CallParams {
    name: String,
    #[serde(default)]
    arguments: Option<Box<RawValue>>,
    #[serde(rename = "_meta")]
    meta: CallMeta,
}

#[derive(Deserialize)]
struct CallMeta {
    #[serde(rename = "claudecode/toolUseId")]
    tool_use_id: String,
}

/// Reads whether a message is a call, and of what. What cannot be read counts as a call.
pub(super) fn method_of(message: &RawValue) -> McpMethod {
    let Ok(head) = serde_json::from_str::<McpHead>(message.get()) else {
        return McpMethod::Call(None);
    };
    if head.method.as_deref() != Some("tools/call") {
        return McpMethod::Other;
    }
    let call = head
        .params
        .and_then(|it| serde_json::from_str::<CallParams>(it.get()).ok())
        .and_then(|params| {
            Some(ServedCall {
                id: ToolCallId::new(params.meta.tool_use_id).ok()?,
                name: params.name,
                arguments: params
                    .arguments
                    .map_or_else(|| "{}".to_owned(), |it| Box::<str>::from(it).into()),
            })
        });
    McpMethod::Call(call)
}

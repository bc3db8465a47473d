//! A call that the CLI asks about, read and checked: its id, its tool and its input.

use serde_json::value::RawValue;

use super::CallingSubAgent;
use crate::ids::ToolCallId;
use crate::policy::ToolPolicy;
use crate::protocol::{CanUseTool, ContentBlock, HookCallback};
use crate::turn::{CallPlace, RequestedCall};

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
            shown_arguments: None,
            policy: self.policy,
            place: self.place,
        }
    }
}

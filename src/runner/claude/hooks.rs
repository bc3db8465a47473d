//! Runs the application's hooks so that nothing they do can let a call through: an error, a panic,
//! a missed deadline and an input that is no object all deny it (G5). Then the approval rule for the
//! tool sees what they left.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use serde_json::value::RawValue;
use tokio::task::{AbortHandle, JoinSet};
use tracing::Instrument as _;

use super::approval::ApprovalRule;
use crate::ids::ToolCallId;
use crate::runner::{PreToolUse, PreToolUseDecision, PreToolUseHook};
use crate::segment::{HookQuestion, HooksAnswer};
use crate::turn::RunModelContext;

/// The hooks of a runner, in their order, and its approval rules by policy name.
#[derive(Debug, Clone)]
pub(super) struct Hooks {
    pub(super) hooks: Vec<Arc<dyn PreToolUseHook>>,
    pub(super) deadline: Duration,
    pub(super) rules: BTreeMap<String, ApprovalRule>,
}

/// The hooks of one segment while they run. Dropping it cancels them.
#[derive(Debug)]
pub(super) struct HookRuns {
    hooks: Hooks,
    context: RunModelContext,
    running: JoinSet<(ToolCallId, HooksAnswer)>,
    by_call: HashMap<ToolCallId, AbortHandle>,
}

impl HookRuns {
    pub(super) fn new(hooks: Hooks, context: RunModelContext) -> Self {
        Self {
            hooks,
            context,
            running: JoinSet::new(),
            by_call: HashMap::new(),
        }
    }

    /// Starts to ask the hooks about a call, one after the other. Must be called inside a tokio
    /// runtime.
    pub(super) fn ask(&mut self, question: HookQuestion) {
        let (hooks, context) = (self.hooks.clone(), self.context.clone());
        let id = question.tool_call_id.clone();
        let own_id = id.clone();
        let ask = async move {
            let answer = ask_all(&hooks, context, question).await;
            (own_id, answer)
        };
        let handle = self.running.spawn(ask.in_current_span());
        self.by_call.insert(id, handle);
    }

    /// Cancels the hooks of a call.
    pub(super) fn cancel(&mut self, id: &ToolCallId) {
        if let Some(handle) = self.by_call.remove(id) {
            handle.abort();
        }
    }

    /// Returns the next answer; never, when nothing is asked.
    ///
    /// # Cancel safety
    /// A dropped call loses nothing.
    pub(super) async fn next_answer(&mut self) -> (ToolCallId, HooksAnswer) {
        loop {
            match self.running.join_next().await {
                Some(Ok((id, answer))) => {
                    self.by_call.remove(&id);
                    return (id, answer);
                }
                // It was cancelled: nobody waits for it.
                Some(Err(_)) => {}
                None => return std::future::pending().await,
            }
        }
    }
}

async fn ask_all(hooks: &Hooks, context: RunModelContext, question: HookQuestion) -> HooksAnswer {
    let HookQuestion {
        tool_call_id,
        tool_name,
        sub_agent,
        input,
        ..
    } = question;
    // Half of a surrogate pair is JSON for the CLI, and nothing that a hook could be shown.
    let Ok(input) = serde_json::from_str::<Value>(input.get()) else {
        return denied(&tool_name, "its input cannot be shown to the application");
    };
    let mut call = PreToolUse {
        context,
        tool_call_id,
        tool_name,
        sub_agent,
        input,
    };
    let mut is_rewritten = false;
    for (position, hook) in hooks.hooks.iter().enumerate() {
        match ask_one(hook, call.clone(), hooks.deadline).await {
            Ok(PreToolUseDecision::Continue {
                updated_input: None,
            }) => {}
            Ok(PreToolUseDecision::Continue {
                updated_input: Some(input @ Value::Object(_)),
            }) => {
                is_rewritten = true;
                call.input = input;
            }
            Ok(PreToolUseDecision::Continue {
                updated_input: Some(_),
            }) => {
                tracing::warn!(tool = call.tool_name, position, "a hook gave no object");
                return denied(&call.tool_name, "a hook of the application failed");
            }
            Ok(PreToolUseDecision::Deny { reason }) => return HooksAnswer::Deny { reason },
            Err(failure) => {
                tracing::warn!(tool = call.tool_name, position, failure, "a hook failed");
                return denied(&call.tool_name, "a hook of the application failed");
            }
        }
    }
    let needs_person = (hooks.rules.get(&call.tool_name)).map(|it| it.needs_person(&call));
    if !is_rewritten {
        return HooksAnswer::Continue {
            updated_input: None,
            needs_person,
        };
    }
    match RawValue::from_string(call.input.to_string()) {
        Ok(input) => HooksAnswer::Continue {
            updated_input: Some(input),
            needs_person,
        },
        Err(_) => denied(&call.tool_name, "a hook of the application failed"),
    }
}

/// Asks one hook, in a task of its own, so that a panic is an answer like any other.
async fn ask_one(
    hook: &Arc<dyn PreToolUseHook>,
    call: PreToolUse,
    deadline: Duration,
) -> Result<PreToolUseDecision, &'static str> {
    let hook = Arc::clone(hook);
    // A set of one: it aborts the task when it is dropped.
    let mut running = JoinSet::new();
    running.spawn(async move { hook.pre_tool_use(call).await }.in_current_span());
    match tokio::time::timeout(deadline, running.join_next()).await {
        Ok(Some(Ok(Ok(decision)))) => Ok(decision),
        // The error's text may hold what no log may (G10).
        Ok(Some(Ok(Err(_)))) => Err("it returned an error"),
        Ok(Some(Err(_)) | None) => Err("it panicked"),
        Err(_) => Err("it did not answer in time"),
    }
}

fn denied(tool_name: &str, why: &str) -> HooksAnswer {
    HooksAnswer::Deny {
        reason: format!("{tool_name} did not run: {why}"),
    }
}

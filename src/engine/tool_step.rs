//! What a worker does for the Step of a gated call: ask for the attempt, run it, report its end.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use super::steps::StepContext;
use crate::ids::{InterruptId, StepId};
use crate::runner::{AgentFrameworkRunner, ToolCallEnd, ToolCallRequest};
use crate::session::{Input, SessionState};
use crate::store::RowKind;

/// Runs one gated call in its own Step.
///
/// Its arguments are read before its start mark is set: a store that cannot be read costs no start.
pub(super) async fn call_tool(
    context: StepContext,
    step_id: StepId,
    call: InterruptId,
    arguments: RowKind,
) {
    let arguments = match context.row(arguments, call.as_str()).await {
        Ok(arguments) => arguments,
        Err(error) => {
            tracing::warn!(session = %context.session, %call, %error, "a call cannot be started yet");
            return tokio::time::sleep(UNREADABLE_PAUSE).await;
        }
    };
    let Some((attempt, state)) = context.begin(step_id).await else {
        return;
    };
    let request = match tool_request(&context, &state, &call, arguments) {
        Ok(request) => context.check_fence().await.map(|()| request),
        Err(detail) => Err(detail),
    };
    let end = match request {
        Ok((runner, request)) => {
            let mut running = JoinSet::new();
            let turn_id = request.turn_id;
            running.spawn(async move { runner.call_tool(request).await });
            let grace_over = async {
                context.cancelled(turn_id).await;
                tokio::time::sleep(context.shared.options.cancel_grace).await;
            };
            let end = tokio::select! {
                biased;
                end = running.join_next() => end,
                () = grace_over => {
                    running.shutdown().await;
                    None
                }
            };
            match end {
                Some(Ok(end)) => end,
                Some(Err(_)) => ToolCallEnd::Unknown {
                    detail: "the runner panicked".to_owned(),
                },
                None => ToolCallEnd::Unknown {
                    detail: "the turn was cancelled, and the grace time is over".to_owned(),
                },
            }
        }
        Err(detail) => ToolCallEnd::NotRun {
            error: detail.to_owned(),
        },
    };
    if let ToolCallEnd::Unknown { detail } = &end {
        tracing::warn!(session = %context.session, %call, detail, "a call's attempt has no known end");
    }
    let _ = context.deliver(Input::ToolEnded { attempt, end }).await;
}

fn tool_request(
    context: &StepContext,
    state: &SessionState,
    call: &InterruptId,
    arguments: String,
) -> Result<(Arc<dyn AgentFrameworkRunner>, ToolCallRequest), &'static str> {
    let flow = context
        .shared
        .registry
        .flow(&state.flow_type)
        .ok_or("the flow is not registered on this worker")?;
    let turn = state.turn.as_ref().ok_or("the turn is over")?;
    let record = (turn.calls.iter())
        .map(|it| &it.record)
        .find(|it| InterruptId::of_call(it.turn_id, &it.tool_call_id) == *call)
        .ok_or("the turn has no such call")?;
    let request = ToolCallRequest {
        session_id: context.session.clone(),
        turn_id: turn.turn_id,
        tool_call_id: record.tool_call_id.clone(),
        tool_name: record.tool_name.clone(),
        arguments,
        attempt: record.starts,
        idempotency_key: record.idempotency_key(&context.session),
        fence: context.epoch,
    };
    Ok((flow.runner(), request))
}

/// How long a call waits whose arguments could not be read.
const UNREADABLE_PAUSE: Duration = Duration::from_secs(1);

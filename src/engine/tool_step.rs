//! What a worker does for the Step of a gated call: ask for the attempt, run it, report its end.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tracing::{Instrument as _, Span};

use super::steps::StepContext;
use crate::ids::{InterruptId, StepId};
use crate::record::CallRecord;
use crate::runner::{AgentFrameworkRunner, ToolCallEnd, ToolCallRequest};
use crate::session::{AttemptKey, Input, SessionState};
use crate::store::RowKind;
use crate::telemetry::{self, AttemptNames};

/// Runs one gated call in its own Step.
///
/// Its arguments are read before its start mark is set: a store that cannot be read costs no start.
pub(super) async fn call_tool(
    context: StepContext,
    step_id: StepId,
    call: InterruptId,
    (kind, key): (RowKind, InterruptId),
) {
    let arguments = match context.row(kind, key.as_str()).await {
        Ok(arguments) => arguments,
        Err(error) => {
            tracing::warn!(session = %context.session, %call, %error, "a call cannot be started yet");
            return tokio::time::sleep(UNREADABLE_PAUSE).await;
        }
    };
    let Some((attempt, state)) = context.begin(step_id).await else {
        return;
    };
    let names = AttemptNames::new(&context.session, &state, &attempt);
    let span = names.call_tool();
    let run = run_attempt(context, attempt, &state, &call, arguments, &names);
    run.instrument(span).await;
}

/// Runs the attempt that was granted, and reports its end.
async fn run_attempt(
    context: StepContext,
    attempt: AttemptKey,
    state: &SessionState,
    call: &InterruptId,
    arguments: String,
    names: &AttemptNames,
) {
    let span = record_of(state, call)
        .map_or_else(Span::none, |record| telemetry::execute_tool(names, record));
    let end = run_call(&context, state, call, arguments)
        .instrument(span.clone())
        .await;
    if let ToolCallEnd::Unknown { detail } = &end {
        tracing::warn!(%call, detail, "a call's attempt has no known end");
    }
    // Before the report: whoever is told of the end finds the span complete.
    telemetry::tool_ended(&span, &end);
    drop(span);
    let _ = context.deliver(Input::ToolEnded { attempt, end }).await;
}

async fn run_call(
    context: &StepContext,
    state: &SessionState,
    call: &InterruptId,
    arguments: String,
) -> ToolCallEnd {
    let request = match tool_request(context, state, call, arguments) {
        Ok(request) => context.check_fence().await.map(|()| request),
        Err(detail) => Err(detail),
    };
    match request {
        Ok((runner, request)) => {
            let mut running = JoinSet::new();
            let turn_id = request.turn_id;
            let run = async move { runner.call_tool(request).await };
            running.spawn(run.in_current_span());
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
    }
}

fn record_of<'a>(state: &'a SessionState, call: &InterruptId) -> Option<&'a CallRecord> {
    let turn = state.turn.as_ref()?;
    (turn.calls.iter())
        .map(|it| &it.record)
        .find(|it| InterruptId::of_call(it.turn_id, &it.tool_call_id) == *call)
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
    let record = record_of(state, call).ok_or("the turn has no such call")?;
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

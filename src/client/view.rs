//! Reads a session into its snapshot.

use std::sync::Arc;

use super::ClientError;
use crate::event::StepKind;
use crate::ids::{EventCursor, Revision, SessionId};
use crate::question::{Question, QuestionBounds, read_questions};
use crate::record::{CallRecord, MessageRole, StoredMessage};
use crate::runner::{self, History};
use crate::session::{ActiveTurn, CallStep, Phase, QueuedMessage, SessionState};
use crate::snapshot::{
    ActiveTurnView, AgentSnapshot, FailureView, MessageView, PendingInterrupt, QueuedMessageView,
    SettingsView, ToolCallView,
};
use crate::store::{RowKey, RowKind, StateStore, StoreError};

pub(super) async fn load(
    store: &Arc<dyn StateStore>,
    session: &SessionId,
) -> Result<(Revision, SessionState), ClientError> {
    let stored = store.load(session).await?;
    let stored = stored.ok_or_else(|| ClientError::NoSession {
        session: session.clone(),
    })?;
    let state = SessionState::read(&stored.state).map_err(StoreError::from)?;
    Ok((stored.revision, state))
}

/// Reads the session with the last messages of its conversation, or with all of them.
pub(super) async fn snapshot(
    store: &Arc<dyn StateStore>,
    session: &SessionId,
    messages_max: Option<usize>,
) -> Result<AgentSnapshot, ClientError> {
    let (revision, state) = load(store, session).await?;
    let is_shown = |it: &StoredMessage| it.role != MessageRole::Hidden;
    let (mut messages, mut has_earlier) = match (messages_max, state.head) {
        (None, head) => {
            let history =
                History::open_impatiently(Arc::clone(store), session.clone(), head).await?;
            (history.read_all().await?, false)
        }
        (Some(_), None) => (Vec::new(), false),
        (Some(max), Some(head)) => {
            let has_all =
                |read: &[StoredMessage]| read.iter().filter(|it| is_shown(it)).count() > max;
            runner::tail(&**store, session, head, has_all).await?
        }
    };
    messages.retain(is_shown);
    if let Some(before) = messages_max.and_then(|it| messages.len().checked_sub(it)) {
        has_earlier |= before > 0;
        messages.drain(..before);
    }
    let messages = messages.into_iter().map(|it| MessageView {
        sequence: it.sequence,
        turn_id: it.turn_id,
        role: it.role,
        text: it.text,
        tool_call_id: it.tool_call_id,
        created_at: it.created_at,
    });
    let calls = state.turn.as_ref().map_or(&[][..], |it| &it.calls);
    let steered = state.turn.as_ref().map_or(&[][..], |it| &it.steered);
    Ok(AgentSnapshot {
        session_id: state.session_id.clone(),
        flow_type: state.flow_type.clone(),
        tenant: state.tenant.clone(),
        status: state.status(),
        created_at: state.created_at,
        revision,
        active_turn: state.turn.as_ref().map(active_turn),
        messages: messages.collect(),
        has_earlier_messages: has_earlier,
        pending_interrupts: pending_interrupts(store, &state).await?,
        tool_calls: calls
            .iter()
            .map(|it| ToolCallView {
                tool_call_id: it.record.tool_call_id.clone(),
                tool_name: it.record.tool_name.clone(),
                effect: it.record.policy.effect,
                status: it.record.status,
                starts: it.record.starts,
            })
            .collect(),
        queued_messages: messages_that_wait(store, &state, &state.queue).await?,
        steered_messages: messages_that_wait(store, &state, steered).await?,
        settings: SettingsView {
            revision: state.settings.revision,
            values: state.settings.values.clone(),
        },
        end_reason: state.lifetime.end_reason(),
        ends_at: state.ends_at,
        usage: state.usage,
        session_bytes: state.size.map(|it| it.bytes()),
        session_bytes_max: state.size.and_then(|it| it.bytes_max),
        state_bytes: state_bytes(&state)?,
        last_failure: state.last_failure.as_ref().map(|it| FailureView {
            turn_id: it.turn_id,
            class: it.failure.class,
            detail: it.failure.detail.clone(),
            at: it.at,
        }),
        event_cursor: EventCursor(state.counters.cursor),
    })
}

fn state_bytes(state: &SessionState) -> Result<u64, ClientError> {
    let bytes = state.write().map_err(|_| StoreError::Corrupt {
        what: "a state that cannot be written".to_owned(),
    })?;
    Ok(bytes.len() as u64)
}

fn active_turn(turn: &ActiveTurn) -> ActiveTurnView {
    let step = match &turn.phase {
        Phase::RunModel(execution) => Some((execution.step_id, StepKind::RunModel)),
        Phase::Steering => None,
        Phase::Calls => turn.calls.iter().find_map(|it| match &it.step {
            CallStep::AwaitToolApproval(step_id) => Some((*step_id, StepKind::AwaitToolApproval)),
            CallStep::Execute(execution) if it.record.policy.effect.is_single_attempt() => {
                Some((execution.step_id, StepKind::CallSingleAttemptTool))
            }
            CallStep::Execute(execution) => Some((execution.step_id, StepKind::CallTool)),
            CallStep::PermittedInSegment | CallStep::StartedInSegment { .. } | CallStep::Final => {
                None
            }
        }),
    };
    ActiveTurnView {
        turn_id: turn.turn_id,
        started_at: turn.started_at,
        is_cancelled: turn.is_cancelled(),
        step,
        segments: turn.segments,
    }
}

pub(super) async fn pending_interrupts(
    store: &Arc<dyn StateStore>,
    state: &SessionState,
) -> Result<Vec<PendingInterrupt>, ClientError> {
    let calls = state.turn.as_ref().map_or(&[][..], |it| &it.calls);
    let waiting: Vec<_> = calls
        .iter()
        .filter(|it| matches!(it.step, CallStep::AwaitToolApproval(_)))
        .collect();
    let keys: Vec<_> = waiting
        .iter()
        .map(|it| it.record.shown_row())
        .map(|(kind, key)| row(kind, key.as_str()))
        .collect();
    let arguments = texts(store, state, &keys).await?;
    Ok(waiting
        .into_iter()
        .zip(arguments)
        .map(|(call, arguments)| PendingInterrupt {
            interrupt_id: call.interrupt_id(),
            turn_id: call.record.turn_id,
            tool_call_id: call.record.tool_call_id.clone(),
            tool_name: call.record.tool_name.clone(),
            questions: questions(&call.record, &arguments),
            arguments,
            digest: call.record.digest.clone(),
            effect: call.record.policy.effect,
            requested_at: call.record.requested_at,
            expires_at: call.record.expires_at,
        })
        .collect())
}

fn questions(record: &CallRecord, arguments: &str) -> Vec<Question> {
    if !record.policy.asks_questions() {
        return Vec::new();
    }
    // Read before it was recorded.
    read_questions(arguments, QuestionBounds::CUSTOM_TOOL).unwrap_or_default()
}

async fn messages_that_wait(
    store: &Arc<dyn StateStore>,
    state: &SessionState,
    messages: &[QueuedMessage],
) -> Result<Vec<QueuedMessageView>, ClientError> {
    let keys: Vec<_> = messages
        .iter()
        .map(|it| row(RowKind::Message, &it.message_id.to_string()))
        .collect();
    let texts = texts(store, state, &keys).await?;
    let messages = messages.iter().zip(texts);
    Ok(messages
        .map(|(it, text)| QueuedMessageView {
            message_id: it.message_id,
            text,
            sent_at: it.sent_at,
        })
        .collect())
}

async fn texts(
    store: &Arc<dyn StateStore>,
    state: &SessionState,
    keys: &[RowKey],
) -> Result<Vec<String>, ClientError> {
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let rows = store.read_rows(&state.session_id, keys).await?;
    // A row that is gone was consumed between the two reads: the next snapshot no longer names it.
    Ok(rows
        .into_iter()
        .map(|it| String::from_utf8_lossy(&it.unwrap_or_default()).into_owned())
        .collect())
}

fn row(kind: RowKind, key: &str) -> RowKey {
    RowKey {
        kind,
        key: key.to_owned(),
    }
}

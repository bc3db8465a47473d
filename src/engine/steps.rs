//! What a worker does for a `RunModel` Step: ask for the attempt, run the segment, report its end.
//!
//! Nothing here acts before its grant is committed, and a report that is superseded is dropped.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::Instrument as _;

use super::answers::{CallChange, answer};
use super::driver::{Applied, StepMessage, stop_requested};
use super::local::Shared;
use super::terms::CallTerms;
use crate::failure::{AttemptFailure, FailureClass};
use crate::flow::AgentSessionFlow;
use crate::ids::{LeaseEpoch, Nonce, Revision, SessionId, StepId, TurnId};
use crate::record::{ToolOutcome, read_record};
use crate::runner::{
    History, LinkError, ProcessSlot, RunModelRequest, SegmentEvent, SegmentLink, SegmentUpdate,
};
use crate::session::{self, AttemptKey, CallState, CallStep, Input, Reply, SessionState};
use crate::spend::{Spend, SpendDecision};
use crate::store::{RowKey, RowKind, StoreError, read_patiently};
use crate::telemetry::{AttemptNames, ChatSpan};
use crate::turn::{CallPlace, ResumedCall, ResumedFate, RunModelContext, RunModelOutcome, Usage};

/// What a Step's task needs of its driver.
pub(super) struct StepContext {
    pub(super) shared: Arc<Shared>,
    pub(super) session: SessionId,
    pub(super) epoch: LeaseEpoch,
    pub(super) driver: mpsc::UnboundedSender<StepMessage>,
    pub(super) revision: watch::Receiver<Revision>,
    pub(super) cancelled: watch::Receiver<Option<TurnId>>,
    pub(super) cut: watch::Receiver<Option<StepId>>,
    pub(super) stopping: watch::Receiver<bool>,
}

impl StepContext {
    pub(super) async fn deliver(&self, input: Input) -> Result<Applied, LinkError> {
        let (answer, reply) = oneshot::channel();
        self.driver
            .send(StepMessage { input, answer })
            .map_err(|_| LinkError::Closed)?;
        reply.await.unwrap_or(Err(LinkError::Closed))
    }

    /// Asks for an attempt; `None` when it is not ours to run now.
    pub(super) async fn begin(&self, step_id: StepId) -> Option<(AttemptKey, Arc<SessionState>)> {
        let nonce = Nonce::new(uuid::Uuid::new_v4().to_string()).ok()?;
        let applied = self
            .deliver(Input::BeginAttempt {
                step_id,
                nonce,
                epoch: self.epoch,
            })
            .await
            .ok()?;
        match applied.reply {
            Reply::Granted(running) => Some((AttemptKey { step_id, running }, applied.state)),
            Reply::NotYet(_)
            | Reply::Superseded
            | Reply::MessageAccepted { .. }
            | Reply::InterruptResolved { .. }
            | Reply::TurnCancelled { .. }
            | Reply::SessionClosing { .. }
            | Reply::SettingsUpdated { .. }
            | Reply::CallGranted
            | Reply::CallIsFinal(_)
            | Reply::CallNotPermitted
            | Reply::CallIsOpen
            | Reply::CallIsPermitted { .. }
            | Reply::Parked
            | Reply::Done => None,
        }
    }

    /// Checks that the session is still ours: a worker that stood still may have lost it after its
    /// grant was committed (G8). Whoever did reports an end all the same, and the driver learns
    /// from the refused commit that it is fenced.
    pub(super) async fn check_fence(&self) -> Result<(), &'static str> {
        match read_patiently(|| self.shared.store.load(&self.session)).await {
            Ok(stored) => stored
                .and_then(|it| it.lease)
                .filter(|it| it.epoch == self.epoch)
                .map(|_| ())
                .ok_or("another worker owns the session"),
            Err(error) => {
                tracing::warn!(session = %self.session, %error, "the lease cannot be read");
                Err("the lease could not be read")
            }
        }
    }

    /// Returns once the turn is cancelled.
    pub(super) async fn cancelled(&self, turn_id: TurnId) {
        let mut cancelled = self.cancelled.clone();
        if cancelled.wait_for(|it| *it == Some(turn_id)).await.is_err() {
            // The driver is gone, and ends what runs in its own way.
            std::future::pending::<()>().await;
        }
    }

    /// Returns once this segment is to stop: its turn is cancelled, or a message goes in now.
    async fn told_to_stop(&self, turn_id: TurnId, step_id: StepId) {
        let mut cut = self.cut.clone();
        tokio::select! {
            () = self.cancelled(turn_id) => {}
            Ok(_) = cut.wait_for(|it| *it == Some(step_id)) => {}
        }
    }

    fn is_cancelled(&self, turn_id: TurnId) -> bool {
        *self.cancelled.borrow() == Some(turn_id)
    }

    pub(super) async fn row(&self, kind: RowKind, key: &str) -> Result<String, StoreError> {
        let keys = [RowKey {
            kind,
            key: key.to_owned(),
        }];
        let row = read_patiently(|| self.shared.store.read_rows(&self.session, &keys))
            .await?
            .pop()
            .flatten();
        let bytes = row.ok_or_else(|| StoreError::Corrupt {
            what: format!("no {} of {key}", kind.name()),
        })?;
        String::from_utf8(bytes).map_err(|_| StoreError::Corrupt {
            what: format!("{} of {key}", kind.name()),
        })
    }

    pub(super) async fn outcome(&self, key: &str) -> Result<ToolOutcome, StoreError> {
        let text = self.row(RowKind::Output, key).await?;
        Ok(read_record("a call's output", text.as_bytes())?)
    }
}

/// Runs one segment.
pub(super) async fn run_model(context: StepContext, step_id: StepId) {
    // Before the attempt is granted: waiting for a place is no part of it.
    let mut stopping = context.stopping.clone();
    let slot = tokio::select! {
        biased;
        () = stop_requested(&mut stopping) => return,
        slot = context.shared.slots.run() => slot,
    };
    let Some((attempt, state)) = context.begin(step_id).await else {
        return;
    };
    let names = AttemptNames::new(&context.session, &state, &attempt);
    let span = names.run_model();
    let run = run_attempt(context, attempt, state, slot, &names);
    run.instrument(span).await;
}

/// Runs the attempt that was granted, and reports its end.
async fn run_attempt(
    context: StepContext,
    attempt: AttemptKey,
    state: Arc<SessionState>,
    slot: ProcessSlot,
    names: &AttemptNames,
) {
    let mut chat = ChatSpan::start(names);
    if let Err(failure) = check_limits(&context, &state).await {
        let end = Err(failure);
        chat.ended(&end);
        let _ = context.deliver(Input::SegmentEnded { attempt, end }).await;
        return;
    }
    let request = match segment_request(&context, &attempt, &state).await {
        Ok(request) => (context.check_fence().await)
            .map(|()| request)
            .map_err(str::to_owned),
        Err(error) => Err(error.to_string()),
    };
    let end = match request {
        Ok(request) => {
            let request = request.with_slot(slot);
            match run_segment(&context, &attempt, &state, request, &mut chat).await {
                Some(end) => end,
                None => return,
            }
        }
        Err(detail) => Err(AttemptFailure::new(FailureClass::Store, detail)),
    };
    if let Err(failure) = &end {
        tracing::warn!(%failure, "a segment failed");
    }
    // Before the report: whoever is told of the end finds the span complete.
    chat.ended(&end);
    drop(chat);
    // Superseded or not, there is nothing left to do here.
    let _ = context.deliver(Input::SegmentEnded { attempt, end }).await;
}

/// Asks the session's limit of size, and then the application's, whether the turn may go on. A limit that panics or gives no answer
/// stops the attempt; a turn that is cancelled meanwhile ends in its own way.
pub(super) async fn check_limits(
    context: &StepContext,
    state: &SessionState,
) -> Result<(), AttemptFailure> {
    session::check_size(state)?;
    let flow = context.shared.registry.flow(&state.flow_type);
    let (Some(limit), Some(turn)) = (flow.and_then(AgentSessionFlow::spend_limit), &state.turn)
    else {
        return Ok(());
    };
    let (session, tenant) = (context.session.clone(), state.tenant.clone());
    let turn_id = turn.turn_id;
    let spend = Spend::new(session, tenant, turn_id, turn.usage, state.usage);
    let mut running = JoinSet::new();
    running.spawn(async move { limit.check(&spend).await });
    let broken = |detail| Err(AttemptFailure::new(FailureClass::Runner, detail));
    tokio::select! {
        biased;
        decision = running.join_next() => match decision {
            Some(Ok(SpendDecision::GoOn)) => Ok(()),
            Some(Ok(SpendDecision::Stop { reason })) => {
                Err(AttemptFailure::new(FailureClass::SpendLimit, reason))
            }
            Some(Err(_)) | None => broken("the spend limit panicked"),
        },
        () = context.cancelled(turn_id) => Ok(()),
        () = tokio::time::sleep(SPEND_CHECK_MAX) => broken("the spend limit gave no answer in 30 s"),
    }
}

/// How long a spend limit may think.
const SPEND_CHECK_MAX: Duration = Duration::from_secs(30);

async fn segment_request(
    context: &StepContext,
    attempt: &AttemptKey,
    state: &SessionState,
) -> Result<RunModelRequest, StoreError> {
    let history = History::open(
        Arc::clone(&context.shared.store),
        context.session.clone(),
        state.head,
    )
    .await?;
    let turn = state.turn.as_ref().ok_or_else(|| StoreError::Corrupt {
        what: "a segment without a turn".to_owned(),
    })?;
    let mut calls = Vec::new();
    for call in turn.calls.iter().filter(|it| !it.delivered) {
        calls.push(resumed_call(context, call).await?);
    }
    let mut run = RunModelContext::new(context.session.clone(), turn.turn_id, attempt.step_id);
    run.attempt = attempt.running.attempt;
    run.tenant.clone_from(&state.tenant);
    run.metadata.clone_from(&state.metadata);
    run.epoch = context.epoch;
    run.settings.clone_from(&turn.settings);
    run.in_mid_turn = turn.base_head != state.head;
    if let Some(flow) = context.shared.registry.flow(&state.flow_type) {
        run.live_window = flow.options().live_window;
    }
    Ok(RunModelRequest::new(run, history, calls))
}

async fn resumed_call(context: &StepContext, call: &CallState) -> Result<ResumedCall, StoreError> {
    let key = call.interrupt_id();
    let fate = match call.step {
        CallStep::PermittedInSegment => ResumedFate::Permitted,
        CallStep::Final => ResumedFate::Final(context.outcome(key.as_str()).await?),
        CallStep::AwaitToolApproval(_)
        | CallStep::Execute(_)
        | CallStep::StartedInSegment { .. } => {
            return Err(StoreError::Corrupt {
                what: format!("a segment is due while call {key} is open"),
            });
        }
    };
    let record = &call.record;
    let id = record.tool_call_id.clone();
    let resumed =
        |arguments| ResumedCall::new(id, &record.tool_name, arguments, record.place, fate);
    Ok(match (record.place, record.changed_arguments_key()) {
        (CallPlace::Segment, Some(key)) => {
            let changed = context.row(RowKind::ChangedArguments, key.as_str()).await?;
            let resumed = resumed(changed);
            match record.change_note() {
                Some(_) => resumed.with_arguments_changed(),
                None => resumed,
            }
        }
        // What ran in its own Step ran with a person's arguments there; the CLI hands on its own.
        (CallPlace::Step, _) | (CallPlace::Segment, None) => {
            resumed(context.row(RowKind::Arguments, key.as_str()).await?)
        }
    })
}

type SegmentResult = Result<RunModelOutcome, AttemptFailure>;

/// Runs the segment in a task of its own, so that its panic is an end like any other, and answers
/// what it reports. `None` when the engine is going down, and the attempt is given back.
async fn run_segment(
    context: &StepContext,
    attempt: &AttemptKey,
    state: &SessionState,
    request: RunModelRequest,
    chat: &mut ChatSpan,
) -> Option<SegmentResult> {
    let Some(flow) = context.shared.registry.flow(&state.flow_type).cloned() else {
        return Some(Err(AttemptFailure::new(
            FailureClass::Options,
            "the flow is not registered here",
        )));
    };
    let turn_id = request.context.turn_id;
    let waits = request
        .slot
        .as_ref()
        .map(ProcessSlot::meter)
        .unwrap_or_default();
    let mut live = context.shared.live.writer(
        context.session.clone(),
        turn_id,
        attempt.step_id,
        attempt.running.attempt,
    );
    let (updates, mut updated) = mpsc::unbounded_channel();
    let (cancel, cancelled) = watch::channel(false);
    let link = SegmentLink::new(updates, context.revision.clone()).with_cancellation(cancelled);
    let runner = flow.runner();
    let mut running = JoinSet::new();
    let run = async move { runner.run_model(request, link).await };
    running.spawn(run.in_current_span());
    let (started, run_limit) = (Instant::now(), flow.options().run_model_limit);
    let limit = tokio::time::sleep(run_limit);
    tokio::pin!(limit);
    let mut stopping = context.stopping.clone();
    let mut open_calls = 0_usize;
    // When the segment is left because the engine goes down.
    let mut leave_at = None;
    // When the segment is ended because it was told to stop.
    let mut give_up_at = None;
    let terms = CallTerms::of(&flow);
    let end = loop {
        tokio::select! {
            biased;
            // At once where nothing is under way. A model call gets a moment to reach the next tool
            // boundary, so that it need not be made again.
            () = stop_requested(&mut stopping), if leave_at.is_none() => {
                let grace = if waits.is_waiting() {
                    Duration::ZERO
                } else {
                    context.shared.options.boundary_grace
                };
                leave_at = Some(Instant::now() + grace);
            }
            // A call that was started inside the segment gets the grace time that handlers get; the
            // driver bounds it.
            () = until(leave_at), if open_calls == 0 => break None,
            () = context.told_to_stop(turn_id, attempt.step_id), if give_up_at.is_none() => {
                cancel.send_replace(true);
                give_up_at = Some(Instant::now() + context.shared.options.cancel_grace);
            }
            () = until(give_up_at) => {
                let usage = Usage::default();
                break Some(Ok(RunModelOutcome::Cancelled { partial: None, usage }));
            }
            // Before the updates, so that a flood of live text delays neither.
            Some(end) = running.join_next() => break Some(end.unwrap_or_else(|_| {
                Err(AttemptFailure::new(FailureClass::Runner, "the runner panicked"))
            })),
            () = &mut limit => {
                // Time in which the process waits for people or handlers is not the CLI's.
                let ends = started + run_limit + waits.waited();
                if ends > Instant::now() {
                    limit.as_mut().reset(ends);
                    continue;
                }
                let detail = format!("the segment ran longer than {} s", flow.options().run_model_limit.as_secs());
                break Some(Err(AttemptFailure::new(FailureClass::CliFailed, detail)));
            }
            Some(update) = updated.recv() => {
                chat.saw(&update);
                let update = terms.on_update(update);
                if leave_at.is_some()
                    && let SegmentUpdate::Event(event @ SegmentEvent::Checkpoint(_), _) = update
                {
                    // The boundary. Unanswered, the CLI asks the model nothing more.
                    let attempt = attempt.clone();
                    let _ = context.deliver(Input::Segment { attempt, event }).await;
                    leave_at = Some(Instant::now());
                    continue;
                }
                match answer(context, attempt, turn_id, &mut live, update).await {
                    CallChange::Started => open_calls += 1,
                    CallChange::Ended => open_calls = open_calls.saturating_sub(1),
                    CallChange::None => {}
                    CallChange::Parked => chat.parked(),
                    CallChange::Stopped(failure) => break Some(Err(failure)),
                }
            }
        }
    };
    if end.is_none() {
        // Stopped on purpose: the attempt is given back before its process is ended, and costs
        // nothing (G7).
        let attempt = attempt.clone();
        let _ = context.deliver(Input::ReleaseAttempt { attempt }).await;
    }
    // What it reported before it ended comes before its end; but nothing starts any more.
    running.shutdown().await;
    while let Ok(update) = updated.try_recv() {
        chat.saw(&update);
        match update {
            SegmentUpdate::Event(SegmentEvent::CallStarting { .. }, reply) => {
                let _ = reply.send(Err(LinkError::Superseded));
            }
            SegmentUpdate::Event(..) | SegmentUpdate::Live(..) | SegmentUpdate::ModelCalls(_) => {
                let update = terms.on_update(update);
                answer(context, attempt, turn_id, &mut live, update).await;
            }
        }
    }
    let end = if context.is_cancelled(turn_id) {
        end.map(|it| Ok(cancelled_end(it, live.text())))
    } else {
        end
    };
    end.map(|it| it.map(|outcome| terms.on_outcome(outcome)))
}

/// However a segment of a cancelled turn ended, what people saw of its answer is kept.
fn cancelled_end(end: SegmentResult, seen: String) -> RunModelOutcome {
    match end {
        Ok(outcome @ RunModelOutcome::TurnCompleted { .. }) => outcome,
        Ok(other) => RunModelOutcome::Cancelled {
            usage: other.partial().1,
            partial: Some(seen),
        },
        Err(_) => RunModelOutcome::Cancelled {
            usage: Usage::default(),
            partial: Some(seen),
        },
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

//! The driver of one active session: the only one in this process who commits its Steps' reports.
//!
//! It works under one epoch of the session's lease and ends as soon as nothing is due, so that a
//! parked session costs nothing (G9). A free lease is taken by its first commit and given back by
//! its last: neither costs a transaction of its own.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{Id, JoinError, JoinSet};

use super::claim::{Claim, Found, NEAR, Tenure};
use super::local::Shared;
use super::packer::Packer;
use super::steps::{self, StepContext};
use super::tool_step;
use crate::ids::{
    EventCursor, LeaseEpoch, MessageId, Revision, SessionId, StepId, Timestamp, TurnId,
};
use crate::runner::LinkError;
use crate::session::{self, ActiveTurn, DueStep, Input, Reply, SessionState};
use crate::store::{
    Commit, Fence, Patience, RowKey, RowKind, StoreError, StoredSession, read_patiently,
};

/// How a driver ended.
#[derive(Debug)]
pub(super) enum DriverEnd {
    /// Nothing is due as of this revision; the lease is released.
    NothingDue(Revision),
    /// The engine is going down; the lease is released.
    Stopped,
    /// Somebody else owns the session now.
    Fenced,
    /// The driver could not go on; attempts it granted are lost.
    Failed,
}

/// What a running Step asks the driver to reduce and commit.
pub(super) struct StepMessage {
    pub(super) input: Input,
    pub(super) answer: oneshot::Sender<Result<Applied, LinkError>>,
}

/// A committed reduction.
#[derive(Debug, Clone)]
pub(super) struct Applied {
    pub(super) reply: Reply,
    pub(super) state: Arc<SessionState>,
}

/// Why a driver must stop.
#[derive(Debug)]
enum Halt {
    Fenced,
    Failed,
}

pub(super) struct Driver {
    shared: Arc<Shared>,
    session: SessionId,
    epoch: LeaseEpoch,
    tenure: Tenure,
    found: Option<Found>,
    announced: watch::Receiver<Revision>,
    stopping: watch::Receiver<bool>,
    revision: watch::Sender<Revision>,
    cancelled: watch::Sender<Option<TurnId>>,
    cut: watch::Sender<Option<StepId>>,
    tasks: JoinSet<()>,
    running: HashMap<StepId, Id>,
    packer: Packer,
    sender: mpsc::UnboundedSender<StepMessage>,
    messages: mpsc::UnboundedReceiver<StepMessage>,
}

impl Driver {
    /// Makes a driver that is told by `announced` which revision others may have committed.
    pub(super) fn new(
        shared: Arc<Shared>,
        session: SessionId,
        claim: Claim,
        announced: watch::Receiver<Revision>,
        stopping: watch::Receiver<bool>,
    ) -> Self {
        let (sender, messages) = mpsc::unbounded_channel();
        Self {
            shared,
            session,
            epoch: claim.epoch,
            tenure: claim.tenure,
            found: claim.found,
            announced,
            stopping,
            revision: watch::Sender::new(Revision(0)),
            cancelled: watch::Sender::new(None),
            cut: watch::Sender::new(None),
            tasks: JoinSet::new(),
            running: HashMap::new(),
            packer: Packer::default(),
            sender,
            messages,
        }
    }

    /// Works until nothing is due; waits first, because an earlier driver could not work.
    pub(super) async fn run_after(mut self, pause: Duration) -> DriverEnd {
        if !pause.is_zero() {
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = stop_requested(&mut self.stopping) => {}
            }
        }
        let mut stopping = self.stopping.clone();
        let grace = self.shared.options.shutdown_grace;
        // Whatever it waits for, a handler or a store: over the grace time recovery covers it.
        let given_up = async {
            stop_requested(&mut stopping).await;
            tokio::time::sleep(grace).await;
        };
        let end = tokio::select! {
            biased;
            end = self.work() => end,
            () = given_up => {
                tracing::warn!(session = %self.session, "the grace time is over; what still runs is left open");
                Ok(DriverEnd::Stopped)
            }
        };
        let end = match end {
            Ok(end) => end,
            Err(Halt::Fenced) => {
                tracing::info!(session = %self.session, "another worker owns the session");
                DriverEnd::Fenced
            }
            Err(Halt::Failed) => DriverEnd::Failed,
        };
        // What still runs has no owner any more: it is ended before the lease goes (G8).
        self.tasks.shutdown().await;
        match end {
            DriverEnd::NothingDue(_) | DriverEnd::Stopped => self.release().await,
            DriverEnd::Fenced | DriverEnd::Failed => {}
        }
        end
    }

    async fn work(&mut self) -> Result<DriverEnd, Halt> {
        let mut state = match self.found.take() {
            Some(found) => {
                self.revision.send_replace(found.revision);
                found.state
            }
            None => self.load().await?,
        };
        let mut stopping = self.stopping.clone();
        while !*self.stopping.borrow() {
            self.measure_if_due(&mut state).await?;
            let next = self.start_due_steps(&mut state).await?;
            let wait = match next {
                _ if !self.running.is_empty() => next.map(|at| self.until(at)),
                Some(at) if self.until(at) <= NEAR => Some(self.until(at)),
                Some(_) | None => return Ok(self.nothing_due()),
            };
            tokio::select! {
                biased;
                () = stop_requested(&mut stopping) => {}
                Some(message) = self.messages.recv() => {
                    self.apply_message(&mut state, message).await?;
                    if self.tenure == Tenure::Over {
                        return Ok(self.nothing_due());
                    }
                }
                Some(end) = self.tasks.join_next_with_id() => self.step_ended(end)?,
                Ok(()) = self.announced.changed() => {
                    // Its own commits are announced too.
                    if *self.announced.borrow_and_update() > *self.revision.borrow() {
                        state = self.load().await?;
                    }
                }
                // No longer, because somebody may set the clock meanwhile.
                () = tokio::time::sleep(wait.map_or(NEAR, |it| it.min(NEAR))), if wait.is_some() => {}
            }
        }
        self.wind_down(&mut state).await
    }

    /// Lets running Steps end: segments give their attempts back, handlers get the grace time, which
    /// [`Driver::run_after`] bounds.
    async fn wind_down(&mut self, state: &mut Arc<SessionState>) -> Result<DriverEnd, Halt> {
        while !self.running.is_empty() {
            tokio::select! {
                biased;
                Some(message) = self.messages.recv() => {
                    self.apply_message(state, message).await?;
                    if self.tenure == Tenure::Over {
                        break;
                    }
                }
                Some(end) = self.tasks.join_next_with_id() => self.step_ended(end)?,
            }
        }
        Ok(DriverEnd::Stopped)
    }

    fn nothing_due(&self) -> DriverEnd {
        DriverEnd::NothingDue(*self.revision.borrow())
    }

    /// Starts what is due and not running yet; returns when the next Step is due.
    async fn start_due_steps(
        &mut self,
        state: &mut Arc<SessionState>,
    ) -> Result<Option<Timestamp>, Halt> {
        self.tell_to_stop(state);
        let mut next: Option<Timestamp> = None;
        for step in session::due_steps(state) {
            let not_before = match &step {
                DueStep::StartTurn { message_id } | DueStep::TakeSteered { message_id } => {
                    self.take_message(state, &step, *message_id).await?;
                    // The state is another one now: look again at once.
                    return Ok(Some(Timestamp(0)));
                }
                DueStep::PassTime { at } if *at <= self.shared.options.clock.now() => {
                    self.apply(state, Input::TimePassed).await?;
                    return Ok(Some(Timestamp(0)));
                }
                DueStep::PassTime { at } => {
                    next = Some(next.map_or(*at, |it| it.min(*at)));
                    continue;
                }
                DueStep::RunModel { step_id, .. } | DueStep::CallTool { step_id, .. }
                    if self.running.contains_key(step_id) =>
                {
                    continue;
                }
                DueStep::RunModel { not_before, .. } | DueStep::CallTool { not_before, .. } => {
                    *not_before
                }
            };
            if not_before <= self.shared.options.clock.now() {
                self.start(state, &step);
            } else {
                next = Some(next.map_or(not_before, |it| it.min(not_before)));
            }
        }
        Ok(next)
    }

    /// Puts a message that waits into the conversation, with the text from its row.
    async fn take_message(
        &mut self,
        state: &mut Arc<SessionState>,
        step: &DueStep,
        message_id: MessageId,
    ) -> Result<(), Halt> {
        if let Some(text) = self.queued_text(&message_id.to_string()).await? {
            let input = match step {
                DueStep::TakeSteered { .. } => Input::TakeSteered { message_id, text },
                DueStep::StartTurn { .. }
                | DueStep::PassTime { .. }
                | DueStep::RunModel { .. }
                | DueStep::CallTool { .. } => Input::StartTurn { message_id, text },
            };
            self.apply(state, input).await?;
            return Ok(());
        }
        // Somebody may have taken it meanwhile; if nobody has, it is lost.
        let seen = *self.revision.borrow();
        *state = self.load().await?;
        if *self.revision.borrow() == seen {
            let what = format!("no text of message {message_id}");
            return Err(self.fail(&StoreError::Corrupt { what }));
        }
        Ok(())
    }

    /// Tells running Steps when their turn is cancelled, and a segment when it is to stop for a message.
    fn tell_to_stop(&self, state: &SessionState) {
        let turn = state.turn.as_ref();
        let cancelled = turn.filter(|it| it.is_cancelled()).map(|it| it.turn_id);
        self.cancelled
            .send_if_modified(|old| std::mem::replace(old, cancelled) != cancelled);
        let cut = turn.and_then(ActiveTurn::segment_to_stop);
        self.cut
            .send_if_modified(|old| std::mem::replace(old, cut) != cut);
    }

    fn start(&mut self, state: &SessionState, step: &DueStep) {
        let context = StepContext {
            shared: Arc::clone(&self.shared),
            session: self.session.clone(),
            epoch: self.epoch,
            driver: self.sender.clone(),
            revision: self.revision.subscribe(),
            cancelled: self.cancelled.subscribe(),
            cut: self.cut.subscribe(),
            stopping: self.stopping.clone(),
        };
        let (step_id, task) = match step {
            DueStep::StartTurn { .. } | DueStep::TakeSteered { .. } | DueStep::PassTime { .. } => {
                return;
            }
            DueStep::RunModel { step_id, .. } => (
                *step_id,
                self.tasks.spawn(steps::run_model(context, *step_id)),
            ),
            DueStep::CallTool {
                step_id,
                tool_call_id,
                ..
            } => {
                let Some(call) = state.turn.as_ref().and_then(|it| it.call(tool_call_id)) else {
                    return;
                };
                let (id, arguments) = (call.interrupt_id(), call.record.arguments_row());
                let run = tool_step::call_tool(context, *step_id, id, arguments);
                let task = self.tasks.spawn(run);
                (*step_id, task)
            }
        };
        self.running.insert(step_id, task.id());
    }

    fn step_ended(&mut self, end: Result<(Id, ()), JoinError>) -> Result<(), Halt> {
        // Without its report the attempt counts as running under this epoch for ever: only a new
        // owner can find that it is lost.
        let (id, ()) = end.map_err(|error| self.fail(&error))?;
        self.running.retain(|_, it| *it != id);
        Ok(())
    }

    async fn apply_message(
        &mut self,
        state: &mut Arc<SessionState>,
        message: StepMessage,
    ) -> Result<(), Halt> {
        let reply = self.apply(state, message.input).await?;
        // Before the answer: whoever gets it judges by the state.
        if self.tenure != Tenure::Over {
            self.measure_if_due(state).await?;
        }
        // Who asked may be gone by now; the commit holds all the same.
        let _ = message.answer.send(Ok(Applied {
            reply,
            state: Arc::clone(state),
        }));
        Ok(())
    }

    /// Asks the store how much it holds, where that may matter by now.
    async fn measure_if_due(&mut self, state: &mut Arc<SessionState>) -> Result<(), Halt> {
        let bytes_max = self.bytes_max(state);
        let Some(bytes_max) = bytes_max.filter(|_| session::size_is_due(state, bytes_max)) else {
            return Ok(());
        };
        let written_before = state.size.map_or(0, |it| it.written);
        let size = read_patiently(|| self.shared.store.size(&self.session)).await;
        let stored_bytes = size.map_err(|it| self.fail(&it))?.stored_bytes;
        let input = Input::SizeMeasured {
            stored_bytes,
            written_before,
            bytes_max,
        };
        self.apply(state, input).await?;
        Ok(())
    }

    fn bytes_max(&self, state: &SessionState) -> Option<u64> {
        let flow = self.shared.registry.flow(&state.flow_type)?;
        flow.options().session_bytes_max
    }

    /// Reduces and commits one input; when it returns, `state` is the committed one.
    async fn apply(&mut self, state: &mut Arc<SessionState>, input: Input) -> Result<Reply, Halt> {
        let mut patience = Patience::new();
        let ended = ended_step(&input);
        loop {
            let now = self.shared.options.clock.now();
            let reduction =
                session::reduce(state, input.clone(), now).map_err(|error| self.fail(&error))?;
            if reduction.is_unchanged() {
                return Ok(reduction.reply);
            }
            let mut commit = reduction.to_commit().map_err(|error| self.fail(&error))?;
            let store = &*self.shared.store;
            let packed = self.packer.pack(store, &self.session, &mut commit).await;
            let expected = *self.revision.borrow();
            let (fence, tenure) = self.fence(ended, &reduction.state);
            match self
                .shared
                .store
                .commit(&self.session, expected, Some(fence), commit)
                .await
            {
                Ok(revision) => {
                    self.packer.committed(packed);
                    self.tenure = tenure;
                    *state = Arc::new(reduction.state);
                    self.revision.send_replace(revision);
                    return Ok(reduction.reply);
                }
                Err(StoreError::Conflict { .. }) => *state = self.load().await?,
                Err(StoreError::Fenced { .. }) => return Err(Halt::Fenced),
                Err(error) if error.is_retryable() => {
                    tracing::warn!(session = %self.session, %error, "a commit is tried again");
                    patience.wait().await;
                    let holds = error.may_have_happened() && {
                        let commit = reduction.to_commit().map_err(|it| self.fail(&it))?;
                        self.did_commit(expected, &commit).await?
                    };
                    if holds && tenure == Tenure::Over {
                        self.tenure = tenure;
                        *state = Arc::new(reduction.state);
                        return Ok(reduction.reply);
                    }
                    *state = self.load().await?;
                    if holds {
                        return Ok(reduction.reply);
                    }
                }
                Err(error) => return Err(self.fail(&error)),
            }
        }
    }

    /// Returns what the next commit demands of the lease, and how it leaves it. The report that ends
    /// the last running Step, when nothing else is due, gives it back.
    fn fence(&self, ended: Option<StepId>, state: &SessionState) -> (Fence, Tenure) {
        let (epoch, due_at) = (self.epoch, state.due_at());
        let is_last = ended.is_some_and(|step_id| {
            self.running.keys().all(|it| *it == step_id)
                && due_at.is_none_or(|at| self.until(at) > NEAR)
                && !session::size_is_due(state, self.bytes_max(state))
        });
        match self.tenure {
            Tenure::Wanted => {
                let worker = self.shared.worker.clone();
                (Fence::Take { worker, epoch }, Tenure::Held)
            }
            Tenure::Held | Tenure::Over if is_last => (Fence::Release(epoch), Tenure::Over),
            Tenure::Held | Tenure::Over => (Fence::Hold(epoch), self.tenure),
        }
    }

    /// Reads back whether a commit with an ambiguous end holds.
    async fn did_commit(&self, expected: Revision, commit: &Commit) -> Result<bool, Halt> {
        let Some(stored) = self.stored().await? else {
            return Ok(false);
        };
        match stored.revision.0.saturating_sub(expected.0) {
            0 => Ok(false),
            1 => Ok(stored.state == commit.state),
            // A client came after whoever came first: the log tells who that was. What writes no
            // event is reduced again.
            _ => {
                let Some(first) = commit.events.first() else {
                    return Ok(false);
                };
                let before = EventCursor(first.cursor.0.saturating_sub(1));
                let read = || {
                    let store = &self.shared.store;
                    store.read_events(&self.session, before, commit.events.len())
                };
                let logged = read_patiently(read).await.map_err(|it| self.fail(&it))?;
                Ok(logged == commit.events)
            }
        }
    }

    /// A busy store costs time, not the driver: what runs would be lost with it.
    async fn stored(&self) -> Result<Option<StoredSession>, Halt> {
        read_patiently(|| self.shared.store.load(&self.session))
            .await
            .map_err(|it| self.fail(&it))
    }

    async fn load(&mut self) -> Result<Arc<SessionState>, Halt> {
        let Some(stored) = self.stored().await? else {
            // Deleted while it ran.
            return Err(Halt::Fenced);
        };
        self.tenure = self.tenure_in(&stored).ok_or(Halt::Fenced)?;
        let state = SessionState::read(&stored.state).map_err(|it| self.fail(&it))?;
        self.revision.send_replace(stored.revision);
        Ok(Arc::new(state))
    }

    /// Returns how this driver stands to the lease; `None` when its epoch is over.
    fn tenure_in(&self, stored: &StoredSession) -> Option<Tenure> {
        match &stored.lease {
            Some(lease) => (lease.epoch == self.epoch && lease.holder.id == self.shared.worker)
                .then_some(Tenure::Held),
            None => (stored.epoch.0 + 1 == self.epoch.0).then_some(Tenure::Wanted),
        }
    }

    async fn queued_text(&self, message_id: &str) -> Result<Option<String>, Halt> {
        let key = RowKey {
            kind: RowKind::Message,
            key: message_id.to_owned(),
        };
        let keys = [key];
        let rows = read_patiently(|| self.shared.store.read_rows(&self.session, &keys))
            .await
            .map_err(|it| self.fail(&it))?;
        Ok(rows
            .into_iter()
            .flatten()
            .next()
            .map(|it| String::from_utf8_lossy(&it).into_owned()))
    }

    async fn release(&self) {
        if self.tenure == Tenure::Over {
            return;
        }
        if let Err(error) = self
            .shared
            .store
            .release_lease(&self.session, self.epoch)
            .await
        {
            tracing::warn!(session = %self.session, %error, "failed to release a lease");
        }
    }

    fn until(&self, at: Timestamp) -> Duration {
        Duration::from_millis(at.0.saturating_sub(self.shared.options.clock.now().0))
    }

    fn fail(&self, error: &dyn std::error::Error) -> Halt {
        tracing::error!(session = %self.session, %error, "the session's driver cannot go on");
        Halt::Failed
    }
}

/// Returns the Step that has ended when it reports this: nothing of it runs any more. An attempt
/// that is given back still runs.
const fn ended_step(input: &Input) -> Option<StepId> {
    match input {
        Input::SegmentEnded { attempt, .. } | Input::ToolEnded { attempt, .. } => {
            Some(attempt.step_id)
        }
        Input::ReleaseAttempt { .. }
        | Input::SendUserMessage { .. }
        | Input::ResolveInterrupt(_)
        | Input::CancelTurn { .. }
        | Input::DeleteQueuedMessage { .. }
        | Input::EditQueuedMessage { .. }
        | Input::SteerUserMessage { .. }
        | Input::RetryTurn { .. }
        | Input::CloseSession { .. }
        | Input::UpdateSettings { .. }
        | Input::TimePassed
        | Input::SizeMeasured { .. }
        | Input::TakeSteered { .. }
        | Input::StartTurn { .. }
        | Input::BeginAttempt { .. }
        | Input::Segment { .. } => None,
    }
}

/// Returns once the engine is going down.
pub(super) async fn stop_requested(stopping: &mut watch::Receiver<bool>) {
    // An engine that was dropped aborts its tasks; until then nobody asked to stop.
    if stopping.wait_for(|it| *it).await.is_err() {
        std::future::pending::<()>().await;
    }
}

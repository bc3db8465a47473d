//! The link between a running segment and its session.

use tokio::sync::{mpsc, oneshot, watch};

use crate::event::LiveTextKind;
use crate::ids::{Revision, ToolCallId};
use crate::record::{CallStatus, ToolOutcome};

/// What a running segment tells its session.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SegmentEvent {
    /// A gated call is about to run inside the segment. It may do so only when the reply is
    /// [`SegmentReply::Granted`]; its start mark is committed then (G1).
    CallStarting {
        /// Which call; it is one of the request's [`calls`](super::RunModelRequest::calls).
        tool_call_id: ToolCallId,
    },
    /// A gated call that was granted has ended.
    CallFinished {
        /// Which call.
        tool_call_id: ToolCallId,
        /// How.
        outcome: ToolOutcome,
    },
    /// An inline call began.
    InlineCallStarted {
        /// Which call.
        tool_call_id: ToolCallId,
        /// The policy name of its tool.
        tool_name: String,
    },
    /// An inline call ended.
    InlineCallFinished {
        /// Which call.
        tool_call_id: ToolCallId,
        /// How.
        status: CallStatus,
    },
}

/// What the session answers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SegmentReply {
    /// It is committed.
    Accepted,
    /// The call's start mark is committed; it may run once, now.
    Granted,
    /// The call must not run: its record already ends in this, and the model gets it (G3).
    Final(ToolOutcome),
}

/// The segment's report was not taken; it must end at once and report nothing more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// Another attempt or another owner has taken over (G8), or the turn is over.
    #[error("the attempt is superseded")]
    Superseded,
    /// The engine is going down.
    #[error("the engine is shutting down")]
    Closed,
}

/// What goes through a link, for the engine that owns its other end.
#[derive(Debug)]
#[non_exhaustive]
pub enum SegmentUpdate {
    /// An event that is reduced and committed, and answered after that.
    Event(
        SegmentEvent,
        oneshot::Sender<Result<SegmentReply, LinkError>>,
    ),
    /// Live text, which is not stored (G13).
    Live(LiveTextKind, String),
}

/// The link of one running segment. Created by the engine (or by a test, with [`SegmentLink::new`]).
#[derive(Debug, Clone)]
pub struct SegmentLink {
    updates: mpsc::UnboundedSender<SegmentUpdate>,
    revision: watch::Receiver<Revision>,
}

impl SegmentLink {
    /// Joins a segment to whoever receives `updates`; `revision` is raised with each commit.
    #[must_use]
    pub const fn new(
        updates: mpsc::UnboundedSender<SegmentUpdate>,
        revision: watch::Receiver<Revision>,
    ) -> Self {
        Self { updates, revision }
    }

    /// Delivers an event; when it returns `Ok`, the event is committed.
    ///
    /// # Errors
    /// [`LinkError`]: the segment must end.
    ///
    /// # Cancel safety
    /// A dropped call may be committed all the same; delivering it again gives the same answer.
    pub async fn deliver(&self, event: SegmentEvent) -> Result<SegmentReply, LinkError> {
        let (reply, answer) = oneshot::channel();
        self.updates
            .send(SegmentUpdate::Event(event, reply))
            .map_err(|_| LinkError::Closed)?;
        answer.await.unwrap_or(Err(LinkError::Closed))
    }

    /// Hands on a piece of live text; it may be lost, and nothing waits for it.
    pub fn live(&self, kind: LiveTextKind, text: impl Into<String>) {
        // Without a receiver the attempt is over, and so is its live text.
        let _ = self.updates.send(SegmentUpdate::Live(kind, text.into()));
    }

    /// Waits until the session was committed beyond `seen`; returns its revision then.
    ///
    /// # Errors
    /// [`LinkError::Closed`] when the engine is going down.
    ///
    /// # Cancel safety
    /// A dropped call loses nothing.
    pub async fn watch(&mut self, seen: Revision) -> Result<Revision, LinkError> {
        self.revision
            .wait_for(|it| *it > seen)
            .await
            .map(|it| *it)
            .map_err(|_| LinkError::Closed)
    }
}

//! The link between a running segment and its session.

use tokio::sync::{mpsc, oneshot, watch};

use crate::event::LiveTextKind;
use crate::ids::Revision;
use crate::turn::{SegmentEvent, SegmentReply};

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
    /// A dropped call may be committed all the same. A start that was granted is not granted again,
    /// and an end counts once: delivered again, both are [`LinkError::Superseded`].
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

//! The link between a running segment and its session.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{Notify, mpsc, oneshot, watch};

use crate::event::LiveTextKind;
use crate::ids::Revision;
use crate::turn::{SegmentEvent, SegmentReply};

/// How much live text may wait for the session, in bytes: far more than a session that keeps up is
/// ever behind.
const LIVE_BYTES_WAITING_MAX: usize = 1024 * 1024;

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
    Live(LiveTextKind, LivePiece),
}

/// A piece of live text on its way. While it exists, it counts as waiting.
pub struct LivePiece {
    text: String,
    waiting: Arc<Waiting>,
    bytes: usize,
}

/// The live text that was handed on and not taken yet.
#[derive(Debug, Default)]
struct Waiting {
    bytes: AtomicUsize,
    room: Notify,
}

impl LivePiece {
    fn new(text: String, waiting: &Arc<Waiting>) -> Self {
        let bytes = text.len();
        waiting.bytes.fetch_add(bytes, Ordering::AcqRel);
        Self {
            text,
            waiting: Arc::clone(waiting),
            bytes,
        }
    }

    /// Takes the text.
    #[must_use]
    pub fn into_text(mut self) -> String {
        std::mem::take(&mut self.text)
    }
}

impl Drop for LivePiece {
    fn drop(&mut self) {
        let before = self.waiting.bytes.fetch_sub(self.bytes, Ordering::AcqRel);
        if before >= LIVE_BYTES_WAITING_MAX {
            self.waiting.room.notify_waiters();
        }
    }
}

impl Deref for LivePiece {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

impl fmt::Debug for LivePiece {
    /// Shows the length only: the text is a customer's (G10).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LivePiece({} bytes)", self.bytes)
    }
}

/// The link of one running segment. Created by the engine (or by a test, with [`SegmentLink::new`]).
#[derive(Debug, Clone)]
pub struct SegmentLink {
    updates: mpsc::UnboundedSender<SegmentUpdate>,
    revision: watch::Receiver<Revision>,
    cancelled: Option<watch::Receiver<bool>>,
    waiting: Arc<Waiting>,
}

impl SegmentLink {
    /// Joins a segment to whoever receives `updates`; `revision` is raised with each commit.
    #[must_use]
    pub fn new(
        updates: mpsc::UnboundedSender<SegmentUpdate>,
        revision: watch::Receiver<Revision>,
    ) -> Self {
        Self {
            updates,
            revision,
            cancelled: None,
            waiting: Arc::default(),
        }
    }

    /// Adds the news that the turn is cancelled: `cancelled` turns true then.
    #[must_use]
    pub fn with_cancellation(mut self, cancelled: watch::Receiver<bool>) -> Self {
        self.cancelled = Some(cancelled);
        self
    }

    /// Returns once the turn is cancelled. The segment is to stop within a few seconds and to end with
    /// [`RunModelOutcome::Cancelled`](crate::RunModelOutcome::Cancelled); after that time it is dropped.
    ///
    /// # Cancel safety
    /// A dropped call loses nothing.
    pub async fn cancelled(&self) {
        if let Some(mut cancelled) = self.cancelled.clone()
            && cancelled.wait_for(|it| *it).await.is_ok()
        {
            return;
        }
        std::future::pending().await
    }

    /// Delivers an event; when it returns `Ok`, the event is committed.
    ///
    /// # Errors
    /// [`LinkError`]: the segment must end.
    ///
    /// # Cancel safety
    /// A dropped call may be committed all the same. A start that was granted is not granted again:
    /// delivered again, it is [`SegmentReply::NotPermitted`]. An end counts once: delivered again, it
    /// is [`LinkError::Superseded`].
    pub async fn deliver(&self, event: SegmentEvent) -> Result<SegmentReply, LinkError> {
        let (reply, answer) = oneshot::channel();
        self.updates
            .send(SegmentUpdate::Event(event, reply))
            .map_err(|_| LinkError::Closed)?;
        answer.await.unwrap_or(Err(LinkError::Closed))
    }

    /// Hands on a piece of live text; it may be lost, and nothing waits for it. Whoever makes text
    /// faster than it is taken calls [`SegmentLink::wait_for_room`] between the pieces.
    pub fn live(&self, kind: LiveTextKind, text: impl Into<String>) {
        let piece = LivePiece::new(text.into(), &self.waiting);
        // Without a receiver the attempt is over, and so is its live text.
        let _ = self.updates.send(SegmentUpdate::Live(kind, piece));
    }

    /// Waits until less than 1 MiB of live text waits for the session, so that memory is bounded
    /// however fast text comes.
    ///
    /// # Cancel safety
    /// A dropped call loses nothing.
    pub async fn wait_for_room(&self) {
        loop {
            // Made before the look, so that no room that comes after it is missed.
            let room = self.waiting.room.notified();
            if self.waiting.bytes.load(Ordering::Acquire) < LIVE_BYTES_WAITING_MAX {
                return;
            }
            room.await;
        }
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

//! A subscription to one session: replay, caught up, live (G13).
//!
//! The log is in the store, so a reader needs no more memory than one page, and a slow one loses
//! nothing: it is told that it is behind, and either reads on from the store or is closed.

use std::collections::VecDeque;
use std::sync::Arc;

use super::recent::{RecentLog, RecentLogs};
use super::{ClientError, view};
use crate::engine::live::{LiveHub, LivePiece, LiveReader};
use crate::event::{EventKind, LiveText, SessionEvent};
use crate::ids::{EventCursor, Revision, SessionId};
use crate::record::read_record;
use crate::snapshot::PendingInterrupt;
use crate::store::{Change, ChangeStream, StateStore, StoreError};

/// What a subscriber sees.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Observed {
    /// An event of the log; each is seen once, in order.
    Event(SessionEvent),
    /// An interrupt that was open when the stream was opened, whatever cursor it was opened with; all
    /// of them come just before [`Observed::CaughtUp`].
    Interrupt(PendingInterrupt),
    /// All events that were stored when the stream was opened, or when it overflowed, have been seen.
    CaughtUp,
    /// Live text of a running attempt. It may be lost; the committed message has all of it.
    Live(LiveText),
    /// Live text was left out, because the reader was slow. What is still live follows from its
    /// start: forget the pieces before.
    LiveRestarted,
    /// The log grew faster than the stream was read. What comes next is the policy's.
    Overflow(Overflow),
    /// The session is over, and all of its log was seen; or it was deleted. Nothing follows.
    Ended,
}

/// How far a reader fell behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Overflow {
    /// The first event that the buffer did not hold. A stream opened with
    /// [`EventStream::cursor`] begins with it.
    pub first_missed: EventCursor,
    /// How many events, from that one on, were stored when the reader was found to be behind.
    pub missed: u64,
}

/// What becomes of a reader that falls behind by more than its buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(
    clippy::exhaustive_enums,
    reason = "callers choose; a third policy would be a new contract"
)]
pub enum OverflowPolicy {
    /// It goes on with the first event that the buffer did not hold, and is told by a further
    /// [`Observed::CaughtUp`] when it is no longer behind.
    #[default]
    CatchUp,
    /// The stream ends. It may be opened again at its cursor, or at a later one to leave events out.
    Close,
}

/// How many events a reader may be behind, and how many pieces of live text (of these at most 1,024).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct EventBuffer(usize);

/// A size that an [`EventBuffer`] may not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a buffer holds {} to {} events, not {given}", EventBuffer::MIN.0, EventBuffer::MAX.0)]
#[non_exhaustive]
pub struct InvalidEventBuffer {
    /// The size that was asked for.
    pub given: usize,
}

impl EventBuffer {
    /// The smallest one: 8 events.
    pub const MIN: Self = Self(8);
    /// The largest one: 65,536 events.
    pub const MAX: Self = Self(65_536);

    /// Makes a buffer of this many events.
    ///
    /// # Errors
    /// [`InvalidEventBuffer`] below [`EventBuffer::MIN`] and above [`EventBuffer::MAX`].
    pub const fn new(events: usize) -> Result<Self, InvalidEventBuffer> {
        if events < Self::MIN.0 || events > Self::MAX.0 {
            return Err(InvalidEventBuffer { given: events });
        }
        Ok(Self(events))
    }

    /// Returns how many events it holds.
    #[must_use]
    pub const fn events(self) -> usize {
        self.0
    }
}

impl Default for EventBuffer {
    /// 1,024 events.
    fn default() -> Self {
        Self(1024)
    }
}

/// How a session is subscribed to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct EventStreamOptions {
    /// How far the reader may fall behind. Default: 1,024 events.
    pub buffer: EventBuffer,
    /// What happens when it falls behind further. Default: it catches up.
    pub overflow: OverflowPolicy,
}

impl EventStreamOptions {
    /// Sets how far the reader may fall behind.
    #[must_use]
    pub const fn with_buffer(mut self, buffer: EventBuffer) -> Self {
        self.buffer = buffer;
        self
    }

    /// Sets what happens when it falls behind further.
    #[must_use]
    pub const fn with_overflow(mut self, overflow: OverflowPolicy) -> Self {
        self.overflow = overflow;
        self
    }
}

/// The events of one session from a cursor on. Created by
/// [`AgentSessionClient::events`](super::AgentSessionClient::events). Dropping it closes it.
#[derive(Debug)]
pub struct EventStream {
    store: Arc<dyn StateStore>,
    session: SessionId,
    options: EventStreamOptions,
    /// The last event that was seen.
    seen: EventCursor,
    /// The last event that was read; those in between wait.
    read: EventCursor,
    waiting: VecDeque<Observed>,
    phase: Phase,
    /// True when no event follows those that were read, or are being replayed.
    is_over: bool,
    subscription: Option<Subscription>,
}

#[derive(Debug)]
struct Subscription {
    changes: ChangeStream,
    live: Option<LiveReader>,
    log: RecentLog,
}

#[derive(Debug)]
enum Phase {
    /// Reads what was stored when it began.
    Replay {
        until: EventCursor,
        interrupts: Vec<PendingInterrupt>,
    },
    /// There may be more than was read.
    Look(Reason),
    /// Everything was read; waits for a change.
    Wait,
    /// Nothing follows but what waits.
    Closed,
}

/// Why a reader looks into the store.
#[derive(Debug, Clone, Copy)]
enum Reason {
    /// It has replayed what was there when it began.
    Replayed,
    /// The session was committed.
    Committed(Revision),
    /// It was deleted, or a wake-up was missed.
    Unknown,
}

/// How many events are read at once while replaying.
const PAGE: usize = 256;

impl EventStream {
    pub(super) async fn open(
        store: Arc<dyn StateStore>,
        live: Option<LiveHub>,
        logs: &RecentLogs,
        session: SessionId,
        after: EventCursor,
        options: EventStreamOptions,
    ) -> Result<Self, ClientError> {
        // Subscribed before the first look, so that nothing falls between the two.
        let subscription = Subscription {
            changes: store.changes(),
            live: live.map(|it| it.subscribe(&session, options.buffer.events())),
            log: logs.subscribe(&session),
        };
        let (_, state) = view::load(&store, &session).await?;
        let interrupts = view::pending_interrupts(&store, &state).await?;
        let until = EventCursor(state.counters.cursor);
        Ok(Self {
            store,
            session,
            options,
            seen: after,
            read: after,
            waiting: VecDeque::new(),
            phase: Phase::Replay { until, interrupts },
            is_over: state.lifetime.is_ended(),
            subscription: Some(subscription),
        })
    }

    /// Waits for what comes next; `None` once the stream is closed or the store is gone.
    ///
    /// # Errors
    /// What the store reports; the stream may be asked again.
    ///
    /// # Cancel safety
    /// A dropped call loses nothing.
    pub async fn next(&mut self) -> Result<Option<Observed>, ClientError> {
        loop {
            if let Some(observed) = self.waiting.pop_front() {
                if let Observed::Event(event) = &observed {
                    self.seen = event.cursor;
                }
                return Ok(Some(observed));
            }
            match &mut self.phase {
                Phase::Replay { until, .. } if self.read < *until => {
                    let until = *until;
                    self.replay(until).await?;
                }
                Phase::Replay { interrupts, .. } => {
                    let open = std::mem::take(interrupts).into_iter();
                    self.waiting.extend(open.map(Observed::Interrupt));
                    self.waiting.push_back(Observed::CaughtUp);
                    self.phase = Phase::Look(Reason::Replayed);
                    self.end_if_over();
                }
                Phase::Look(reason) => {
                    let reason = *reason;
                    self.look(reason).await?;
                }
                Phase::Wait => {
                    let Some(subscription) = &mut self.subscription else {
                        return Ok(None);
                    };
                    tokio::select! {
                        change = subscription.changes.next() => self.noticed(change),
                        piece = next_live(&mut subscription.live) => return Ok(Some(shown(piece))),
                    }
                }
                Phase::Closed => {
                    self.subscription = None;
                    return Ok(None);
                }
            }
        }
    }

    /// Ends the stream: what was not seen yet stays in the store. Harmless when it is closed already,
    /// or was never read.
    pub fn close(&mut self) {
        self.phase = Phase::Closed;
        self.waiting.clear();
        self.subscription = None;
    }

    /// Returns the cursor of the last event that was seen: where to go on after a restart, in any
    /// process.
    #[must_use]
    pub const fn cursor(&self) -> EventCursor {
        self.seen
    }

    async fn replay(&mut self, until: EventCursor) -> Result<(), ClientError> {
        let left = usize::try_from(until.0 - self.read.0).unwrap_or(usize::MAX);
        let limit = left.min(PAGE).min(self.options.buffer.events());
        let events = self.read_log(limit).await?;
        if events.is_empty() {
            self.end();
        }
        self.take(events);
        Ok(())
    }

    /// Reads what is new, and no more than one event beyond what the reader may be behind.
    async fn look(&mut self, reason: Reason) -> Result<(), ClientError> {
        let buffer = self.options.buffer.events();
        let mut events = match (reason, &self.subscription) {
            (Reason::Committed(revision), Some(subscription)) => {
                let read = async {
                    let events = self.read_log(buffer + 1).await?;
                    let are_all = events.len() <= buffer;
                    Ok((events, are_all))
                };
                subscription.log.after(self.read, revision, read).await?
            }
            (Reason::Unknown, _) if self.newest().await?.is_none_or(|it| it < self.read) => {
                self.end();
                return Ok(());
            }
            (Reason::Replayed | Reason::Committed(_) | Reason::Unknown, _) => {
                self.read_log(buffer + 1).await?
            }
        };
        if events.len() <= buffer {
            self.take(events);
            self.phase = Phase::Wait;
            self.end_if_over();
            return Ok(());
        }
        let Some(newest) = self.newest().await? else {
            self.end();
            return Ok(());
        };
        events.truncate(buffer);
        self.take(events);
        self.waiting.push_back(Observed::Overflow(Overflow {
            first_missed: EventCursor(self.read.0 + 1),
            missed: newest.0.saturating_sub(self.read.0),
        }));
        self.phase = match self.options.overflow {
            OverflowPolicy::CatchUp => Phase::Replay {
                until: newest,
                interrupts: Vec::new(),
            },
            OverflowPolicy::Close => Phase::Closed,
        };
        Ok(())
    }

    fn noticed(&mut self, change: Option<Change>) {
        let reason = match change {
            None => {
                self.phase = Phase::Closed;
                return;
            }
            Some(change) if change.session().is_some_and(|it| *it != self.session) => return,
            Some(Change::Committed { revision, .. }) => Reason::Committed(revision),
            Some(Change::Deleted(_) | Change::Missed) => Reason::Unknown,
        };
        // A commit supersedes the live text before it, so that comes first.
        let live = self.subscription.as_mut().and_then(|it| it.live.as_mut());
        if let Some(live) = live {
            let pieces = std::iter::from_fn(|| live.try_next()).map(shown);
            self.waiting
                .extend(pieces.take(self.options.buffer.events()));
        }
        self.phase = Phase::Look(reason);
    }

    fn take(&mut self, events: Vec<SessionEvent>) {
        if let Some(last) = events.last() {
            self.read = last.cursor;
            // It is the last event of its log.
            self.is_over |= matches!(last.kind, EventKind::SessionEnded { .. });
        }
        self.waiting.extend(events.into_iter().map(Observed::Event));
    }

    fn end_if_over(&mut self) {
        if self.is_over {
            self.end();
        }
    }

    fn end(&mut self) {
        self.waiting.push_back(Observed::Ended);
        self.phase = Phase::Closed;
    }

    async fn read_log(&self, limit: usize) -> Result<Vec<SessionEvent>, ClientError> {
        let rows = (self.store.read_events(&self.session, self.read, limit)).await?;
        let events = rows.iter().map(|it| read_record("an event", &it.bytes));
        let events: Result<_, _> = events.collect();
        Ok(events.map_err(StoreError::from)?)
    }

    /// Returns the last cursor of the log, `None` when the session is gone.
    async fn newest(&self) -> Result<Option<EventCursor>, ClientError> {
        match view::load(&self.store, &self.session).await {
            Ok((_, state)) => Ok(Some(EventCursor(state.counters.cursor))),
            Err(ClientError::NoSession { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn shown(piece: LivePiece) -> Observed {
    match piece {
        LivePiece::Text(text) => Observed::Live(text),
        LivePiece::Restarted => Observed::LiveRestarted,
    }
}

async fn next_live(live: &mut Option<LiveReader>) -> LivePiece {
    match live {
        Some(reader) => reader.next().await,
        None => std::future::pending().await,
    }
}

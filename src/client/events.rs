//! A subscription to one session: replay, caught up, live (G13).

use std::collections::VecDeque;
use std::sync::Arc;

use super::{ClientError, view};
use crate::engine::live::{LiveHub, LiveReader};
use crate::event::{LiveText, SessionEvent};
use crate::ids::{EventCursor, SessionId};
use crate::record::read_record;
use crate::store::{ChangeStream, StateStore, StoreError};

/// What a subscriber sees.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Observed {
    /// An event of the log; each is seen once, in order.
    Event(SessionEvent),
    /// All events that were stored when the stream was opened have been seen. Comes once.
    CaughtUp,
    /// Live text of a running attempt. It may be lost; the committed message has all of it.
    Live(LiveText),
}

/// The events of one session from a cursor on. Created by
/// [`AgentSessionClient::events`](super::AgentSessionClient::events).
#[derive(Debug)]
pub struct EventStream {
    store: Arc<dyn StateStore>,
    session: SessionId,
    after: EventCursor,
    changes: ChangeStream,
    live: Option<LiveReader>,
    waiting: VecDeque<Observed>,
    is_caught_up: bool,
    has_said_so: bool,
}

/// How many events are read at once.
const PAGE: usize = 256;

impl EventStream {
    pub(super) async fn open(
        store: Arc<dyn StateStore>,
        live: Option<LiveHub>,
        session: SessionId,
        after: EventCursor,
    ) -> Result<Self, ClientError> {
        // Subscribed before the first look, so that nothing falls between the two.
        let changes = store.changes();
        let live = live.map(|it| it.subscribe(&session));
        view::load(&store, &session).await?;
        Ok(Self {
            store,
            session,
            after,
            changes,
            live,
            waiting: VecDeque::new(),
            is_caught_up: false,
            has_said_so: false,
        })
    }

    /// Waits for what comes next; `None` once the store is gone.
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
                    self.after = event.cursor;
                }
                return Ok(Some(observed));
            }
            if !self.is_caught_up {
                let page = self
                    .store
                    .read_events(&self.session, self.after, PAGE)
                    .await?;
                self.is_caught_up = page.len() < PAGE;
                for row in page {
                    let event = read_record("an event", &row.bytes).map_err(StoreError::from)?;
                    self.waiting.push_back(Observed::Event(event));
                }
                if self.is_caught_up && !self.has_said_so {
                    self.has_said_so = true;
                    self.waiting.push_back(Observed::CaughtUp);
                }
                continue;
            }
            tokio::select! {
                change = self.changes.next() => match change {
                    Some(change) => {
                        let is_ours = change.session().is_none_or(|it| *it == self.session);
                        self.is_caught_up = !is_ours;
                    }
                    None => return Ok(None),
                },
                text = next_live(&mut self.live) => return Ok(Some(Observed::Live(text))),
            }
        }
    }

    /// Returns the cursor of the last event that was seen: where to go on after a restart.
    #[must_use]
    pub const fn cursor(&self) -> EventCursor {
        self.after
    }
}

async fn next_live(live: &mut Option<LiveReader>) -> LiveText {
    match live {
        Some(reader) => reader.next().await,
        None => std::future::pending().await,
    }
}

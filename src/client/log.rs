//! A session in parts: a page of its log, the end of its conversation.

use super::{AgentSessionClient, ClientError, EventStream, EventStreamOptions, view};
use crate::event::SessionEvent;
use crate::ids::{EventCursor, Revision, SessionId};
use crate::record::read_record;
use crate::snapshot::AgentSnapshot;
use crate::store::StoreError;

/// A page of a session's log.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EventPage {
    /// The events, oldest first.
    pub events: Vec<SessionEvent>,
    /// The cursor to read on from: that of the last event, or the given one when there is none.
    pub next: EventCursor,
    /// True when more events are stored than were asked for.
    pub has_more: bool,
    /// A revision of the session whose events, as far as they were asked for, are all there.
    pub revision: Revision,
}

impl AgentSessionClient {
    /// Reads at most `limit` events after a cursor, oldest first, without waiting for new ones.
    ///
    /// # Errors
    /// [`ClientError::NoSession`], and what the store reports.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn read_events(
        &self,
        session: &SessionId,
        after: EventCursor,
        limit: usize,
    ) -> Result<EventPage, ClientError> {
        let (revision, _) = view::load(&self.store, session).await?;
        // One more than asked for tells whether there are more.
        let fetched = limit.saturating_add(1);
        let mut rows = self.store.read_events(session, after, fetched).await?;
        let has_more = rows.len() > limit;
        rows.truncate(limit);
        let events = rows.iter().map(|it| read_record("an event", &it.bytes));
        let events: Result<Vec<SessionEvent>, _> = events.collect();
        let events = events.map_err(StoreError::from)?;
        Ok(EventPage {
            next: events.last().map_or(after, |it| it.cursor),
            events,
            has_more,
            revision,
        })
    }

    /// Returns the session as it is now, with at most the last `messages_max` messages of its conversation:
    /// what costs the same however long the session is.
    ///
    /// # Errors
    /// [`ClientError::NoSession`], and what the store reports.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn snapshot_tail(
        &self,
        session: &SessionId,
        messages_max: usize,
    ) -> Result<AgentSnapshot, ClientError> {
        view::snapshot(&self.store, session, Some(messages_max)).await
    }

    /// As [`AgentSessionClient::events`], with a buffer and an overflow policy of one's own.
    ///
    /// # Errors
    /// [`ClientError::NoSession`], and what the store reports.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn events_with(
        &self,
        session: &SessionId,
        after: EventCursor,
        options: EventStreamOptions,
    ) -> Result<EventStream, ClientError> {
        EventStream::open(
            std::sync::Arc::clone(&self.store),
            self.engine.as_ref().map(|it| it.live.clone()),
            &self.recent,
            session.clone(),
            after,
            options,
        )
        .await
    }
}

//! What many subscribers of one session would each read for themselves, read once.
//!
//! A commit wakes all of them at the same time. The first to look reads the log; the others take what
//! it read. Nothing is kept for a session that nobody subscribes to.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::ClientError;
use crate::event::SessionEvent;
use crate::ids::{EventCursor, Revision, SessionId};

/// The logs that are subscribed to.
#[derive(Debug, Clone, Default)]
pub(crate) struct RecentLogs(Arc<Mutex<HashMap<SessionId, Arc<tokio::sync::Mutex<Tail>>>>>);

/// One subscriber's share of a log. Dropping the last one of a session forgets it.
#[derive(Debug)]
pub(super) struct RecentLog {
    logs: RecentLogs,
    session: SessionId,
    tail: Arc<tokio::sync::Mutex<Tail>>,
}

/// What was read last.
#[derive(Debug, Default)]
struct Tail {
    /// The events of this revision and all before it are among those that were read, or were before.
    revision: Revision,
    /// The cursor that was read after.
    after: EventCursor,
    events: Vec<SessionEvent>,
}

impl RecentLogs {
    pub(super) fn subscribe(&self, session: &SessionId) -> RecentLog {
        let mut logs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        RecentLog {
            logs: self.clone(),
            session: session.clone(),
            tail: Arc::clone(logs.entry(session.clone()).or_default()),
        }
    }
}

impl RecentLog {
    /// Returns the events after the cursor, with all of the revision: those that were read last if they
    /// do, otherwise what `read` gives, which reads after the cursor. The flag that `read` gives says
    /// that these are all that are stored.
    ///
    /// # Cancel safety
    /// A dropped call changes nothing.
    pub(super) async fn after(
        &self,
        cursor: EventCursor,
        revision: Revision,
        read: impl Future<Output = Result<(Vec<SessionEvent>, bool), ClientError>>,
    ) -> Result<Vec<SessionEvent>, ClientError> {
        let mut tail = self.tail.lock().await;
        if let Some(events) = tail.after(cursor, revision) {
            return Ok(events.to_vec());
        }
        let (events, are_all) = read.await?;
        if are_all {
            // Replaced, never continued: a session that was deleted and started anew has other events
            // under the same cursors.
            *tail = Tail {
                revision,
                after: cursor,
                events: events.clone(),
            };
        }
        Ok(events)
    }
}

impl Tail {
    fn after(&self, cursor: EventCursor, revision: Revision) -> Option<&[SessionEvent]> {
        if self.revision < revision {
            return None;
        }
        let known = usize::try_from(cursor.0.checked_sub(self.after.0)?).ok()?;
        self.events.get(known..)
    }
}

impl Drop for RecentLog {
    fn drop(&mut self) {
        let mut logs = self.logs.0.lock().unwrap_or_else(PoisonError::into_inner);
        // One is the map's own, one is this subscriber's.
        if Arc::strong_count(&self.tail) <= 2 {
            logs.remove(&self.session);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::EventKind;
    use crate::ids::Timestamp;

    fn events(cursors: std::ops::RangeInclusive<u64>) -> Vec<SessionEvent> {
        let event = |it| {
            let kind = EventKind::TurnSuspended;
            SessionEvent::new(EventCursor(it), Timestamp(it), None, kind)
        };
        cursors.map(event).collect()
    }

    /// G13: who is served by another's read gets what it would have read, and no old revision.
    #[tokio::test]
    async fn what_one_read_serves_the_others() {
        let logs = RecentLogs::default();
        let session = SessionId::new("s").unwrap();
        let log = logs.subscribe(&session);
        let reads = std::cell::Cell::new(0);
        let after = async |cursor: u64, revision: u64, stored: u64, are_all: bool| {
            let read = async {
                reads.set(reads.get() + 1);
                Ok((events(cursor + 1..=stored), are_all))
            };
            let events = log
                .after(EventCursor(cursor), Revision(revision), read)
                .await;
            let cursors = events.unwrap().into_iter().map(|it| it.cursor.0);
            (cursors.collect::<Vec<_>>(), reads.get())
        };
        assert_eq!(after(3, 1, 5, true).await, (vec![4, 5], 1));
        // The same, further on, at the end; by a revision that is no newer.
        assert_eq!(after(3, 1, 9, true).await, (vec![4, 5], 1));
        assert_eq!(after(4, 0, 9, true).await, (vec![5], 1));
        assert_eq!(after(5, 1, 9, true).await, (vec![], 1));
        // Before what was read, and beyond it.
        assert_eq!(after(2, 1, 5, true).await, (vec![3, 4, 5], 2));
        assert_eq!(after(6, 1, 7, true).await, (vec![7], 3));
        // A newer revision, of which not all is read.
        assert_eq!(after(6, 2, 8, false).await, (vec![7, 8], 4));
        assert_eq!(after(6, 2, 9, true).await, (vec![7, 8, 9], 5));
        assert_eq!(after(6, 2, 9, true).await, (vec![7, 8, 9], 5));
        let second = logs.subscribe(&session);
        drop(log);
        assert_eq!(logs.0.lock().unwrap().len(), 1);
        drop(second);
        assert_eq!(logs.0.lock().unwrap().len(), 0);
    }
}

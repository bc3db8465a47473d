//! Notices what other stores over the same file commit: one check per store, not per session.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, params};
use tokio::sync::broadcast;

use super::failure::{Fault, bound, optional_count, time_from_column};
use super::read::on_snapshot;
use super::writer::last_change;
use crate::ids::{Revision, SessionId};
use crate::store::{Change, ChangeStream, StoreError};

/// The store's handle to its watching thread; dropping it ends the thread.
#[derive(Debug)]
pub(super) struct Watch {
    changes: broadcast::Sender<Change>,
    signal: Arc<Signal>,
}

#[derive(Debug, Default)]
struct Signal {
    is_stopped: Mutex<bool>,
    changed: Condvar,
}

/// The watching thread's own things.
pub(super) struct WatchThread {
    changes: broadcast::Sender<Change>,
    signal: Arc<Signal>,
    connection: Connection,
    change_by: i64,
}

/// Where the watching thread stands in the file.
#[derive(Clone, Copy)]
struct Position {
    data_version: i64,
    change_seq: i64,
}

/// Makes both ends; [`WatchThread::run`] is to be called on a thread of its own.
pub(super) fn channel(
    connection: Connection,
    changes: broadcast::Sender<Change>,
    change_by: i64,
) -> (Watch, WatchThread) {
    let signal = Arc::new(Signal::default());
    let thread = WatchThread {
        changes: changes.clone(),
        signal: Arc::clone(&signal),
        connection,
        change_by,
    };
    (Watch { changes, signal }, thread)
}

impl Watch {
    pub(super) fn subscribe(&self) -> ChangeStream {
        let stream = ChangeStream::new(self.changes.subscribe());
        let _guard = self.signal.lock();
        self.signal.changed.notify_all();
        stream
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        *self.signal.lock() = true;
        self.signal.changed.notify_all();
    }
}

impl Signal {
    fn lock(&self) -> MutexGuard<'_, bool> {
        self.is_stopped
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl WatchThread {
    /// Watches while anybody reads the changes, sleeps otherwise, and ends with the [`Watch`].
    pub(super) fn run(self) {
        let mut position = None;
        while self.wait_for_readers() {
            // A check that failed, on a busy file say, is made again from the same place.
            position = match position {
                Some(from) => self.check(from).ok().or(position),
                None => self.start().ok(),
            };
            self.pause();
            if self.changes.receiver_count() == 0 {
                position = None;
            }
        }
    }

    /// Waits until somebody reads the changes; false once the store is gone.
    fn wait_for_readers(&self) -> bool {
        let idle = |is_stopped: &mut bool| !*is_stopped && self.changes.receiver_count() == 0;
        let is_stopped = self
            .signal
            .changed
            .wait_while(self.signal.lock(), idle)
            .unwrap_or_else(PoisonError::into_inner);
        !*is_stopped
    }

    fn pause(&self) {
        let wait = |is_stopped: &mut bool| !*is_stopped;
        // Whether it was stopped is asked again before the next check.
        drop(
            self.signal
                .changed
                .wait_timeout_while(self.signal.lock(), CHECK_EVERY, wait),
        );
    }

    /// Begins to watch. What happened since the first reader came cannot be told one by one.
    fn start(&self) -> Result<Position, Fault> {
        let position = Position {
            data_version: self.data_version()?,
            change_seq: last_change(&self.connection)?,
        };
        self.announce(Change::Missed);
        Ok(position)
    }

    fn check(&self, from: Position) -> Result<Position, Fault> {
        // Read before the changes, so that a commit in between is seen at the next check.
        let data_version = self.data_version()?;
        if data_version == from.data_version {
            return Ok(from);
        }
        let (change_seq, changed) = on_snapshot(&self.connection, |at| {
            Ok((last_change(at)?, self.changed_since(at, from.change_seq)?))
        })?;
        if changed.len() > CHANGES_TOLD_MAX {
            self.announce(Change::Missed);
        } else {
            for change in changed {
                self.announce(change);
            }
        }
        Ok(Position {
            data_version,
            change_seq,
        })
    }

    /// Returns what others changed; this store's own commits are told by its writer.
    fn changed_since(&self, at: &Connection, change_seq: i64) -> Result<Vec<Change>, Fault> {
        let mut select = at.prepare_cached(
            "SELECT id, revision, due_at FROM sessions WHERE change_seq > ?1 AND change_by <> ?2
             UNION ALL
             SELECT id, NULL, NULL FROM deleted_sessions WHERE change_seq > ?1 AND change_by <> ?2
             LIMIT ?3",
        )?;
        let limit = bound(CHANGES_TOLD_MAX as u64 + 1);
        let mut rows = select.query(params![change_seq, self.change_by, limit])?;
        let mut changed = Vec::new();
        while let Some(row) = rows.next()? {
            let id = SessionId::new(row.get::<_, String>(0)?);
            let session = id.map_err(|it| StoreError::Corrupt {
                what: it.to_string(),
            })?;
            changed.push(match optional_count(row, 1)? {
                Some(revision) => Change::Committed {
                    session,
                    revision: Revision(revision),
                    due_at: row.get::<_, Option<i64>>(2)?.map(time_from_column),
                },
                None => Change::Deleted(session),
            });
        }
        Ok(changed)
    }

    /// Returns a number that differs once another connection committed; it costs no disk access.
    fn data_version(&self) -> rusqlite::Result<i64> {
        self.connection
            .prepare_cached("PRAGMA data_version")?
            .query_row([], |row| row.get(0))
    }

    fn announce(&self, change: Change) {
        // Nobody listening is no error.
        let _ = self.changes.send(change);
    }
}

/// How late a wake-up from another process may come.
const CHECK_EVERY: Duration = Duration::from_millis(20);
/// How many changed sessions are told one by one; looking at everything is cheaper for more.
const CHANGES_TOLD_MAX: usize = 256;

//! The one thread that writes, and group commit: everything that waits goes into one transaction,
//! and is answered after that transaction's COMMIT returned.

use std::sync::Arc;

use rusqlite::Connection;
use tokio::sync::{broadcast, mpsc, oneshot};

use super::apply::Stamp;
use super::failure::{Fault, commit_failed, failed};
use super::schema;
use crate::store::{Change, StoreError};

/// The sending end of the writer's queue.
#[derive(Debug)]
pub(super) struct Writer {
    jobs: mpsc::Sender<Box<dyn Job>>,
}

/// The writer thread's own things.
pub(super) struct WriterThread {
    jobs: mpsc::Receiver<Box<dyn Job>>,
    connection: Connection,
    changes: broadcast::Sender<Change>,
    change_by: i64,
}

/// Makes both ends; [`WriterThread::run`] is to be called on a thread of its own.
pub(super) fn channel(
    connection: Connection,
    changes: broadcast::Sender<Change>,
    change_by: i64,
) -> (Writer, WriterThread) {
    let (sender, receiver) = mpsc::channel(QUEUE_MAX);
    let thread = WriterThread {
        jobs: receiver,
        connection,
        changes,
        change_by,
    };
    (Writer { jobs: sender }, thread)
}

impl Writer {
    /// Runs the work in the next transaction and returns what it returned once that is durable.
    /// The work may run more than once, and holds at most once.
    pub(super) async fn write<T: Send + 'static>(
        &self,
        operation: &'static str,
        work: impl FnMut(&Connection, Stamp) -> Result<Done<T>, Fault> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        let job = Task {
            operation,
            work,
            reply,
            result: None,
        };
        if self.jobs.send(Box::new(job)).await.is_err() {
            return Err(StoreError::Backend {
                operation,
                source: STOPPED.into(),
            });
        }
        answer.await.unwrap_or_else(|_| {
            Err(StoreError::Ambiguous {
                operation,
                source: STOPPED.into(),
            })
        })
    }
}

/// What a piece of work returns, and what others are to be told of it.
pub(super) struct Done<T> {
    pub(super) value: T,
    pub(super) changed: Option<Change>,
}

/// A queued write, without its types.
trait Job: Send {
    fn apply(&mut self, at: &Connection, stamp: Stamp) -> Applied;
    fn answer(self: Box<Self>, group: Result<(), &GroupFailure>);
}

enum Applied {
    Done(Option<Change>),
    Refused,
}

/// Why a whole transaction did not hold, or may not.
enum GroupFailure {
    Newer(u32),
    Begin(Arc<rusqlite::Error>),
    Lost(Arc<rusqlite::Error>),
    Commit(Arc<rusqlite::Error>),
}

struct Task<T, F> {
    operation: &'static str,
    work: F,
    reply: oneshot::Sender<Result<T, StoreError>>,
    result: Option<Result<T, StoreError>>,
}

impl<T, F> Job for Task<T, F>
where
    T: Send,
    F: FnMut(&Connection, Stamp) -> Result<Done<T>, Fault> + Send,
{
    fn apply(&mut self, at: &Connection, stamp: Stamp) -> Applied {
        match (self.work)(at, stamp) {
            Ok(done) => {
                self.result = Some(Ok(done.value));
                Applied::Done(done.changed)
            }
            Err(fault) => {
                self.result = Some(Err(fault.into_error(self.operation)));
                Applied::Refused
            }
        }
    }

    fn answer(self: Box<Self>, group: Result<(), &GroupFailure>) {
        let result = match (group, self.result) {
            // What was refused is refused, whatever became of the others.
            (_, Some(Err(error))) => Err(error),
            (Ok(()), Some(result)) => result,
            (Ok(()), None) => Err(StoreError::Ambiguous {
                operation: self.operation,
                source: STOPPED.into(),
            }),
            (Err(failure), _) => Err(failure.error(self.operation)),
        };
        // The caller may have stopped waiting.
        let _ = self.reply.send(result);
    }
}

impl GroupFailure {
    fn error(&self, operation: &'static str) -> StoreError {
        match self {
            Self::Newer(found) => schema::too_new(*found),
            Self::Begin(error) | Self::Lost(error) => failed(operation, error),
            Self::Commit(error) => commit_failed(operation, error),
        }
    }

    /// True when nothing of the group holds and one of it may be to blame for all.
    fn is_worth_single_tries(&self) -> bool {
        match self {
            Self::Newer(_) | Self::Begin(_) => false,
            Self::Lost(_) => true,
            Self::Commit(error) => {
                matches!(commit_failed("commit", error), StoreError::Full { .. })
            }
        }
    }
}

impl WriterThread {
    /// Writes until every [`Writer`] is gone and the queue is empty.
    pub(super) fn run(mut self) {
        while let Some(first) = self.jobs.blocking_recv() {
            let mut group = vec![first];
            while group.len() < GROUP_MAX
                && let Ok(next) = self.jobs.try_recv()
            {
                group.push(next);
            }
            self.write(group);
        }
    }

    fn write(&self, mut group: Vec<Box<dyn Job>>) {
        match self.transact(&mut group) {
            Ok(changed) => {
                for change in changed {
                    // Nobody listening is no error.
                    let _ = self.changes.send(change);
                }
                for job in group {
                    job.answer(Ok(()));
                }
            }
            Err(failure) if group.len() > 1 && failure.is_worth_single_tries() => {
                for job in group {
                    self.write(vec![job]);
                }
            }
            Err(failure) => {
                for job in group {
                    job.answer(Err(&failure));
                }
            }
        }
    }

    fn transact(&self, group: &mut [Box<dyn Job>]) -> Result<Vec<Change>, GroupFailure> {
        self.execute("BEGIN IMMEDIATE")
            .map_err(|it| GroupFailure::Begin(Arc::new(it)))?;
        let outcome = self.apply(group);
        if outcome.is_err() {
            self.roll_back();
            return outcome;
        }
        if let Err(error) = self.execute("COMMIT") {
            self.roll_back();
            return Err(GroupFailure::Commit(Arc::new(error)));
        }
        outcome
    }

    fn apply(&self, group: &mut [Box<dyn Job>]) -> Result<Vec<Change>, GroupFailure> {
        let lost = |it| GroupFailure::Lost(Arc::new(it));
        // A newer version may have changed the file since it was opened.
        let format = schema::format(&self.connection).map_err(lost)?;
        if format > schema::FORMAT {
            return Err(GroupFailure::Newer(format));
        }
        let stamp = Stamp {
            change_seq: last_change(&self.connection).map_err(lost)? + 1,
            change_by: self.change_by,
        };
        let mut changed = Vec::new();
        for job in group {
            self.execute("SAVEPOINT job").map_err(lost)?;
            match job.apply(&self.connection, stamp) {
                Applied::Done(change) => changed.extend(change),
                // Some failures, such as a full disk, end the whole transaction; this one then
                // fails too, because there is no savepoint any more.
                Applied::Refused => self.execute("ROLLBACK TO job").map_err(lost)?,
            }
            self.execute("RELEASE job").map_err(lost)?;
        }
        Ok(changed)
    }

    fn roll_back(&self) {
        if !self.connection.is_autocommit() {
            // When it fails too, the next BEGIN does and says so.
            let _ = self.execute("ROLLBACK");
        }
    }

    fn execute(&self, sql: &str) -> rusqlite::Result<()> {
        self.connection.prepare_cached(sql)?.execute([])?;
        Ok(())
    }
}

/// Returns the number of the last change; a deletion leaves a tombstone, so it never falls.
pub(super) fn last_change(at: &Connection) -> rusqlite::Result<i64> {
    at.prepare_cached(
        "SELECT max(coalesce((SELECT max(change_seq) FROM sessions), 0),
         coalesce((SELECT max(change_seq) FROM deleted_sessions), 0))",
    )?
    .query_row([], |row| row.get(0))
}

/// How many writes may wait; who comes later waits for room. More than a busy worker has sessions.
const QUEUE_MAX: usize = 1024;
/// How many writes share a transaction: enough to pay for the sync, few enough to be answered soon.
const GROUP_MAX: usize = 256;

const STOPPED: &str = "the store's thread has stopped";

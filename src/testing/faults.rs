//! Faults on command: stores that stop answering at a chosen commit, or answer with an error.
//!
//! [`FailingStore`] answers that there is no room or no time, or that it does not know.
//! [`CrashingStore`] models the death of a worker at the sharpest points there are, directly before
//! and directly after a commit. The commit that it stops at never returns, so nothing that would
//! follow it happens; the test then drops the engine (or kills the process) and starts another one
//! over the store behind it. Both stand in [front](Front) of a store, as others may.

mod failing;
mod front;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;

use crate::store::{StateStore, StoreError};

pub use failing::{FailingStore, StoreFault};
pub use front::{Front, StoreCall};

/// On which side of a commit the crash comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a commit has two sides")]
pub enum Side {
    /// The commit never reaches the store.
    Before,
    /// The commit holds, and whoever made it never learns so.
    After,
}

/// Where a [`CrashingStore`] stops answering.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "tests write it as a literal")]
pub struct CrashPoint {
    /// Which commit under a lease, counted from 1: clients' commits are not counted.
    pub commit: u64,
    /// On which side of it.
    pub side: Side,
}

/// A store in front of another that stops answering at a [`CrashPoint`].
#[derive(Debug)]
pub struct CrashingStore {
    inner: Arc<dyn StateStore>,
    point: Option<CrashPoint>,
    commits: AtomicU64,
    crashed: watch::Sender<bool>,
}

impl CrashingStore {
    /// Puts a crash in front of a store; without a point it only counts commits.
    #[must_use]
    pub fn new(inner: Arc<dyn StateStore>, point: Option<CrashPoint>) -> Self {
        Self {
            inner,
            point,
            commits: AtomicU64::new(0),
            crashed: watch::Sender::new(false),
        }
    }

    /// Returns how many commits under a lease were asked for.
    pub fn commits(&self) -> u64 {
        self.commits.load(Ordering::SeqCst)
    }

    /// Returns a receiver that becomes true when the point is reached.
    #[must_use]
    pub fn crashed(&self) -> watch::Receiver<bool> {
        self.crashed.subscribe()
    }

    /// Stops answering now, as [`CrashPoint`] does at a commit.
    pub fn crash(&self) {
        self.crashed.send_replace(true);
    }

    /// Answers again: the worker did not die, it only stood still, and goes on where it stopped.
    pub fn wake(&self) {
        self.crashed.send_replace(false);
    }

    async fn stop(&self) {
        self.crash();
        self.check_alive().await;
    }

    /// Nothing of a crashed worker reaches the store, unless it is woken.
    async fn check_alive(&self) {
        // The sender is part of this store, so the wait has no other end.
        let _ = self.crashed.subscribe().wait_for(|it| !*it).await;
    }
}

impl Front for CrashingStore {
    fn behind(&self) -> &dyn StateStore {
        &*self.inner
    }

    async fn pass<T: Send>(
        &self,
        call: StoreCall,
        work: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        self.check_alive().await;
        let number = match call {
            StoreCall::FencedCommit => self.commits.fetch_add(1, Ordering::SeqCst) + 1,
            StoreCall::FreeCommit | StoreCall::Read | StoreCall::Lease => 0,
        };
        let side = self
            .point
            .filter(|it| it.commit == number)
            .map(|it| it.side);
        if side == Some(Side::Before) {
            self.stop().await;
        }
        let answer = work.await;
        if side == Some(Side::After) {
            self.stop().await;
        }
        answer
    }
}

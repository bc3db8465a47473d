//! Stores that answer with an error where a test wants one.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;

use super::front::{Front, StoreCall};
use crate::store::{StateStore, StoreError};

/// How a [`FailingStore`] fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "tests match it")]
pub enum StoreFault {
    /// It was done, and the answer is [`StoreError::Ambiguous`].
    AmbiguousDone,
    /// It was not done, and the answer is [`StoreError::Ambiguous`].
    AmbiguousNotDone,
    /// It was not done: [`StoreError::Full`].
    Full,
    /// It was not done: [`StoreError::Busy`].
    Busy,
    /// It was not done: [`StoreError::Backend`], as of a store that is gone.
    Gone,
}

type Plan = dyn Fn(StoreCall, u64) -> Option<StoreFault> + Send + Sync;

/// A store in front of another that fails as a plan says.
pub struct FailingStore {
    inner: Arc<dyn StateStore>,
    plan: Box<Plan>,
    counts: [AtomicU64; 4],
    faults: watch::Sender<u64>,
}

impl fmt::Debug for FailingStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FailingStore")
            .field("inner", &self.inner)
            .field("faults", &*self.faults.borrow())
            .finish_non_exhaustive()
    }
}

impl FailingStore {
    /// Puts faults in front of a store. The plan is asked before each call, with the number of
    /// calls of this kind so far, this one included.
    pub fn new(
        inner: Arc<dyn StateStore>,
        plan: impl Fn(StoreCall, u64) -> Option<StoreFault> + Send + Sync + 'static,
    ) -> Self {
        Self {
            inner,
            plan: Box::new(plan),
            counts: Default::default(),
            faults: watch::Sender::new(0),
        }
    }

    /// Returns how many calls of this kind there were.
    pub fn calls(&self, call: StoreCall) -> u64 {
        self.counts[call as usize].load(Ordering::SeqCst)
    }

    /// Returns a receiver of the number of faults so far. A fault is counted when it is answered.
    #[must_use]
    pub fn faults(&self) -> watch::Receiver<u64> {
        self.faults.subscribe()
    }
}

impl Front for FailingStore {
    fn behind(&self) -> &dyn StateStore {
        &*self.inner
    }

    async fn pass<T: Send>(
        &self,
        call: StoreCall,
        work: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        let number = self.counts[call as usize].fetch_add(1, Ordering::SeqCst) + 1;
        let Some(fault) = (self.plan)(call, number) else {
            return work.await;
        };
        let source = "as the test asked".into();
        let operation = "a test's call";
        let error = match fault {
            StoreFault::AmbiguousDone => {
                // What really fails is told as it is.
                work.await?;
                StoreError::Ambiguous { operation, source }
            }
            StoreFault::AmbiguousNotDone => StoreError::Ambiguous { operation, source },
            StoreFault::Full => StoreError::Full { source },
            StoreFault::Busy => StoreError::Busy { source },
            StoreFault::Gone => StoreError::Backend { operation, source },
        };
        self.faults.send_modify(|it| *it += 1);
        Err(error)
    }
}

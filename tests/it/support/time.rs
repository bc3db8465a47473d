//! Time that a test may pause, or set.

use std::sync::atomic::{AtomicU64, Ordering};

use abide::clock::{Clock, SystemClock};
use abide::ids::Timestamp;
use tokio::time::Instant;

/// Wall time that passes as the tokio runtime's time does.
#[derive(Debug)]
pub(super) struct RuntimeClock {
    base: Timestamp,
    start: Instant,
}

impl RuntimeClock {
    pub(super) fn starting_now() -> Self {
        Self {
            base: SystemClock::default().now(),
            start: Instant::now(),
        }
    }
}

impl Clock for RuntimeClock {
    fn now(&self) -> Timestamp {
        self.base.after(self.start.elapsed())
    }
}

/// Wall time that stands still until a test sets it.
#[derive(Debug)]
pub(crate) struct StillClock(AtomicU64);

impl StillClock {
    pub(crate) const fn at(now: Timestamp) -> Self {
        Self(AtomicU64::new(now.0))
    }

    pub(crate) fn set(&self, now: Timestamp) {
        self.0.store(now.0, Ordering::SeqCst);
    }
}

impl Clock for StillClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::SeqCst))
    }
}

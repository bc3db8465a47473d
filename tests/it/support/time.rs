//! Time that a test may pause.

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

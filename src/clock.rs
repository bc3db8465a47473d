//! Where the time comes from, so that tests can set it.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::ids::Timestamp;

/// Tells wall time: deadlines, back-off and timestamps are counted in it (design.md 5).
pub trait Clock: Send + Sync + std::fmt::Debug {
    /// Returns the time now.
    fn now(&self) -> Timestamp;
}

/// The clock of the machine.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }
}

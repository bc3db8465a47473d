//! A wall clock that follows tokio's: with `start_paused` a test decides what time it is.

use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

use crate::clock::Clock;
use crate::ids::Timestamp;

/// Wall time that moves as tokio's clock moves, and jumps where a test sets it, as the clocks of
/// machines do.
#[derive(Debug)]
pub struct TokioClock(Mutex<Setting>);

#[derive(Debug)]
struct Setting {
    wall: Timestamp,
    at: Instant,
}

impl TokioClock {
    /// Makes a clock that shows this time now.
    ///
    /// # Panics
    /// Outside of a tokio runtime with time, when tokio's clock is paused.
    #[must_use]
    pub fn starting_at(wall: Timestamp) -> Self {
        let at = Instant::now();
        Self(Mutex::new(Setting { wall, at }))
    }

    /// Sets the clock, forwards or back.
    pub fn set(&self, wall: Timestamp) {
        let mut setting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = Instant::now();
        *setting = Setting { wall, at };
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        let setting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        setting.wall.after(setting.at.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_clock_follows_tokio_and_can_be_set() {
        let clock = TokioClock::starting_at(Timestamp(1_000));
        assert_eq!(clock.now(), Timestamp(1_000));
        tokio::time::advance(Duration::from_millis(70)).await;
        assert_eq!(clock.now(), Timestamp(1_070));
        clock.set(Timestamp(5));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(clock.now(), Timestamp(1_005));
    }
}

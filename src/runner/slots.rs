//! How many CLI processes a worker lets run, and how many wait (design.md 4).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;

/// The places of one worker. A process takes a running place before it starts, gives it back while
/// it waits, and takes one again before it goes on.
#[derive(Debug, Clone)]
pub struct ProcessSlots(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    running: Arc<Semaphore>,
    resident_max: usize,
    waiting: Mutex<Waiting>,
    closed: watch::Sender<bool>,
}

/// The processes that wait, by the order in which they began to.
#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    processes: BTreeMap<u64, watch::Sender<bool>>,
}

/// The place of one process. Dropping it frees the place.
#[derive(Debug)]
pub struct ProcessSlot {
    slots: ProcessSlots,
    state: State,
    meter: WaitMeter,
}

/// How long a process has waited, for whoever limits the time that it runs.
#[derive(Debug, Clone, Default)]
pub struct WaitMeter(Arc<Mutex<(Duration, Option<Instant>)>>);

impl WaitMeter {
    /// Returns how long it has waited so far.
    #[must_use]
    pub fn waited(&self) -> Duration {
        let (before, since) = *self.lock();
        before + since.map_or(Duration::ZERO, |it| it.elapsed())
    }

    /// True while it waits.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.lock().1.is_some()
    }

    fn set_waiting(&self, waits: bool) {
        let waited = self.waited();
        *self.lock() = (waited, waits.then(Instant::now));
    }

    fn lock(&self) -> MutexGuard<'_, (Duration, Option<Instant>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
enum State {
    Running {
        _permit: OwnedSemaphorePermit,
    },
    Waiting(Ticket),
    /// Between the two, or closed.
    None,
}

#[derive(Debug)]
struct Ticket {
    number: u64,
    evicted: watch::Receiver<bool>,
    shared: Arc<Shared>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.shared.waiting().processes.remove(&self.number);
    }
}

impl ProcessSlots {
    /// Makes the places of one worker; at least one process may run.
    #[must_use]
    pub fn new(running_max: usize, resident_max: usize) -> Self {
        Self(Arc::new(Shared {
            running: Arc::new(Semaphore::new(running_max.clamp(1, Semaphore::MAX_PERMITS))),
            resident_max,
            waiting: Mutex::default(),
            closed: watch::Sender::new(false),
        }))
    }

    /// Waits for a place to run in.
    ///
    /// # Cancel safety
    /// A dropped call takes no place.
    pub async fn run(&self) -> ProcessSlot {
        ProcessSlot {
            state: self.running().await,
            slots: self.clone(),
            meter: WaitMeter::default(),
        }
    }

    /// Ends all waiting, now and later: the worker goes down.
    pub fn close(&self) {
        self.0.closed.send_replace(true);
    }

    /// Returns how many processes wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.0.waiting().processes.len()
    }

    async fn running(&self) -> State {
        // Never closed: places are waited for until the caller gives up.
        match Arc::clone(&self.0.running).acquire_owned().await {
            Ok(permit) => State::Running { _permit: permit },
            Err(_) => State::None,
        }
    }
}

impl Shared {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ProcessSlot {
    /// The process begins to wait. When more wait than may, the one that waited longest is to go.
    pub fn wait(&mut self) {
        if let State::Waiting(_) = self.state {
            return;
        }
        let shared = Arc::clone(&self.slots.0);
        let mut waiting = shared.waiting();
        let number = waiting.next;
        waiting.next += 1;
        let (evict, evicted) = watch::channel(false);
        waiting.processes.insert(number, evict);
        let staying = waiting.processes.values().filter(|it| !*it.borrow());
        if staying.count() > shared.resident_max
            && let Some(longest) = waiting.processes.values().find(|it| !*it.borrow())
        {
            longest.send_replace(true);
        }
        drop(waiting);
        self.state = State::Waiting(Ticket {
            number,
            evicted,
            shared,
        });
        self.meter.set_waiting(true);
    }

    /// Waits for a place to run in again.
    ///
    /// # Cancel safety
    /// A dropped call leaves the process waiting.
    pub async fn run(&mut self) {
        if let State::Running { .. } = self.state {
            return;
        }
        self.state = self.slots.running().await;
        self.meter.set_waiting(false);
    }

    /// True while the process waits.
    #[must_use]
    pub const fn is_waiting(&self) -> bool {
        matches!(self.state, State::Waiting(_))
    }

    /// Returns the count of its waiting time.
    #[must_use]
    pub fn meter(&self) -> WaitMeter {
        self.meter.clone()
    }

    /// Returns once the process is to make room: others wait, or the worker goes down. Never for one
    /// that runs.
    ///
    /// # Cancel safety
    /// A dropped call loses nothing.
    pub async fn evicted(&self) {
        let State::Waiting(ticket) = &self.state else {
            return std::future::pending().await;
        };
        let (mut evicted, mut closed) = (ticket.evicted.clone(), self.slots.0.closed.subscribe());
        tokio::select! {
            _ = evicted.wait_for(|it| *it) => {}
            _ = closed.wait_for(|it| *it) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn is_evicted(slot: &ProcessSlot) -> bool {
        tokio::select! {
            biased;
            () = slot.evicted() => true,
            () = std::future::ready(()) => false,
        }
    }

    /// design.md 4: running and waiting processes are limited apart, and the longest-waiting goes first.
    #[tokio::test(start_paused = true)]
    async fn the_one_that_waited_longest_makes_room() {
        let slots = ProcessSlots::new(1, 1);
        let mut first = slots.run().await;
        assert!(
            tokio::time::timeout(Duration::from_secs(1), slots.run())
                .await
                .is_err()
        );
        first.wait();
        let mut second = slots.run().await;
        assert!(!is_evicted(&first).await);
        second.wait();
        assert!(is_evicted(&first).await);
        assert!(!is_evicted(&second).await);
        tokio::time::advance(Duration::from_secs(5)).await;
        first.run().await;
        assert_eq!(first.meter().waited(), Duration::from_secs(5));
        assert_eq!(slots.waiting(), 1);
        drop(second);
        assert_eq!(slots.waiting(), 0);
        first.wait();
        assert!(!is_evicted(&first).await);
        slots.close();
        assert!(is_evicted(&first).await);
    }
}

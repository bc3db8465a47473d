//! Waiting in a runtime whose time stands still while any task works, and for ever when nothing is due.

use std::time::Duration;

/// How often other tasks get their turn before a state counts as lasting.
pub(crate) const TURNS_OF_OTHERS: usize = 500;

/// Ends a test whose tasks never rest: paused time stands still then, and no timeout comes.
pub(crate) struct Watchdog {
    barks: tokio::sync::watch::Receiver<bool>,
    _leash: std::sync::mpsc::Sender<()>,
}

/// How long a watched thing may take, in real time; it takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(20);

impl Watchdog {
    pub(crate) fn start() -> Self {
        let (leash, is_dropped) = std::sync::mpsc::channel();
        let (bark, barks) = tokio::sync::watch::channel(false);
        std::thread::spawn(move || {
            let waited = is_dropped.recv_timeout(PATIENCE);
            if waited == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                bark.send_replace(true);
            }
        });
        Self {
            barks,
            _leash: leash,
        }
    }

    pub(crate) async fn barks(&self) {
        let mut barks = self.barks.clone();
        if barks.wait_for(|it| *it).await.is_err() {
            std::future::pending().await
        }
    }
}

/// Waits for what takes milliseconds; a hang, waiting or spinning, becomes a failure.
pub(crate) async fn watched<T>(what: impl Future<Output = T>) -> T {
    let watchdog = Watchdog::start();
    tokio::select! {
        it = what => it,
        () = watchdog.barks() => panic!("nothing came of it in {PATIENCE:?}"),
    }
}

/// Waits until something holds, as long as other tasks have something to do.
pub(crate) async fn settles(holds: impl Fn() -> bool) -> bool {
    for _ in 0..TURNS_OF_OTHERS {
        if holds() {
            return true;
        }
        tokio::task::yield_now().await;
    }
    false
}

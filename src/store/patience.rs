//! Waiting for a store that has no room or time now.

use std::time::Duration;

use super::StoreError;

/// The first wait and the longest.
const WAIT: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// How long to wait before a call that failed for now is tried again: doubling.
#[derive(Debug)]
pub(crate) struct Patience(Duration);

impl Patience {
    pub(crate) const fn new() -> Self {
        Self(WAIT.0)
    }

    /// Waits a little longer than the last time. Cancel safe.
    pub(crate) async fn wait(&mut self) {
        let wait = self.0;
        self.0 = (wait * 2).min(WAIT.1);
        tokio::time::sleep(wait).await;
    }
}

/// Reads until the store answers something else than that it may be tried again. Who must end at
/// some time drops it: reading changes nothing.
pub(crate) async fn read_patiently<T, F>(mut read: impl FnMut() -> F) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    let mut patience = Patience::new();
    loop {
        match read().await {
            Err(error) if error.is_retryable() => {
                tracing::warn!(%error, "a read is tried again");
                patience.wait().await;
            }
            answer => return answer,
        }
    }
}

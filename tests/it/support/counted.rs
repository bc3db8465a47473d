//! A launcher that counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use abide::transport::{CliError, CliLauncher, CliProcess, LaunchSpec, SweepReport};
use async_trait::async_trait;

/// Counts the processes that another launcher starts.
#[derive(Debug)]
pub(crate) struct Counted {
    pub(crate) inner: Arc<dyn CliLauncher>,
    pub(crate) starts: Arc<AtomicUsize>,
}

#[async_trait]
impl CliLauncher for Counted {
    async fn launch(&self, spec: LaunchSpec) -> Result<Box<dyn CliProcess>, CliError> {
        self.starts.fetch_add(1, Ordering::SeqCst);
        self.inner.launch(spec).await
    }

    async fn sweep_leftovers(&self) -> Result<SweepReport, CliError> {
        self.inner.sweep_leftovers().await
    }
}

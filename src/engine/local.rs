//! [`LocalEngine`]: runs sessions in this process, over a store.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::EngineError;
use super::live::LiveHub;
use super::supervisor::Supervisor;
use crate::client::recent::RecentLogs;
use crate::client::{AgentSessionClient, EngineSide};
use crate::clock::{Clock, SystemClock};
use crate::flow::FlowRegistry;
use crate::process::ProcessIdentity;
use crate::runner::ProcessSlots;
use crate::store::{StateStore, WorkerId, WorkerRecord};

/// How a [`LocalEngine`] works.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LocalEngineOptions {
    /// How long a holder's heartbeat must stand still, on this process's monotonic clock, before
    /// its sessions are taken over. A holder that is proven dead is taken over at once. Default: 15 s.
    pub lease_time: Duration,
    /// How often the store is looked through for sessions that nobody runs. Changes are seen at
    /// once; this finds what was missed. Default: 5 s.
    pub scan_interval: Duration,
    /// How long a shutdown waits for handlers that run. Default: 30 s.
    pub shutdown_grace: Duration,
    /// How long a shutdown lets a model call that is under way come to its next tool boundary, within
    /// [`LocalEngineOptions::shutdown_grace`]; over it, the next worker makes the call again.
    /// Default: 5 s.
    pub boundary_grace: Duration,
    /// How long what runs for a cancelled turn may take to stop: a segment, and each handler. Over it,
    /// its process is ended, and a write is recorded as unknown. Default: 10 s.
    pub cancel_grace: Duration,
    /// How many segments run at once; further ones wait for a place. A process that waits with its
    /// calls does not count. Default: the number of cores.
    pub max_running: usize,
    /// How many processes wait at once, for people or for the next message; the one that waited
    /// longest is ended for another, at no cost to its turn. Default: four for each core, but no more
    /// than half of the machine's memory holds at 256 MiB each.
    pub max_resident: usize,
    /// Where the time comes from. Default: the machine's clock.
    pub clock: Arc<dyn Clock>,
}

impl Default for LocalEngineOptions {
    fn default() -> Self {
        Self {
            lease_time: Duration::from_secs(15),
            scan_interval: Duration::from_secs(5),
            shutdown_grace: Duration::from_secs(30),
            boundary_grace: Duration::from_secs(5),
            cancel_grace: Duration::from_secs(10),
            max_running: cores(),
            max_resident: resident_default(),
            clock: Arc::new(SystemClock),
        }
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// What one waiting process is counted as, in KiB: the CLI takes some 200 MiB (measured on CLI
/// 2.1.316).
const RESIDENT_KIB: usize = 256 * 1024;

fn resident_default() -> usize {
    let by_memory = memory_kib().map_or(usize::MAX, |it| it / 2 / RESIDENT_KIB);
    (4 * cores()).min(by_memory)
}

fn memory_kib() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|it| it.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse().ok()
}

/// Everything the parts of an engine share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) store: Arc<dyn StateStore>,
    pub(super) registry: FlowRegistry,
    pub(super) options: LocalEngineOptions,
    pub(super) worker: WorkerId,
    pub(super) live: LiveHub,
    pub(super) recent: RecentLogs,
    pub(super) slots: ProcessSlots,
}

impl Drop for Shared {
    fn drop(&mut self) {
        // What waits for a next message must not outlive the engine.
        self.slots.close();
    }
}

/// Runs the sessions of a store in this process: tasks exist for *active* sessions only (G9).
///
/// Several processes may run engines over the same store; each session has one owner at a time
/// (G8). Dropping the engine stops it as a crash would: what was running is found again by the next
/// one. [`LocalEngine::shutdown`] stops it in order.
#[derive(Debug)]
pub struct LocalEngine {
    shared: Arc<Shared>,
    stop: watch::Sender<bool>,
    supervisor: Option<JoinHandle<()>>,
}

impl LocalEngine {
    /// Starts an engine with the default options.
    ///
    /// # Errors
    /// As [`LocalEngine::start_with`].
    pub async fn start(
        registry: FlowRegistry,
        store: Arc<dyn StateStore>,
    ) -> Result<Self, EngineError> {
        Self::start_with(registry, store, LocalEngineOptions::default()).await
    }

    /// Starts an engine: registers this process as a worker, removes what a crashed one left on
    /// this machine, and takes up every session that has something to do and no living owner.
    ///
    /// # Errors
    /// [`EngineError::NoFlow`], [`EngineError::Identity`], and what the store reports.
    ///
    /// # Cancel safety
    /// After a dropped call a worker may stay registered; it holds no session.
    pub async fn start_with(
        registry: FlowRegistry,
        store: Arc<dyn StateStore>,
        options: LocalEngineOptions,
    ) -> Result<Self, EngineError> {
        if registry.flows().next().is_none() {
            return Err(EngineError::NoFlow);
        }
        let identity =
            ProcessIdentity::current().map_err(|source| EngineError::Identity { source })?;
        let worker = WorkerId::new(uuid::Uuid::new_v4().to_string());
        store
            .register_worker(&WorkerRecord {
                id: worker.clone(),
                process_id: identity.pid,
                start_time: identity.start_time,
                boot_id: identity.boot_id,
                pid_namespace: identity.pid_namespace,
            })
            .await?;
        let slots = ProcessSlots::new(options.max_running, options.max_resident);
        let shared = Arc::new(Shared {
            store,
            registry,
            options,
            worker,
            live: LiveHub::default(),
            recent: RecentLogs::default(),
            slots,
        });
        let (stop, stopping) = watch::channel(false);
        let supervisor = Supervisor::new(Arc::clone(&shared), stopping);
        let supervisor = Some(tokio::spawn(supervisor.run()));
        Ok(Self {
            shared,
            stop,
            supervisor,
        })
    }

    /// Returns a client of this engine's sessions, with their live text.
    #[must_use]
    pub fn client(&self) -> AgentSessionClient {
        let flow_types = self
            .shared
            .registry
            .flows()
            .map(|it| it.flow_type().clone())
            .collect();
        let side = EngineSide {
            recent: self.shared.recent.clone(),
            live: self.shared.live.clone(),
            flow_types: Arc::new(flow_types),
        };
        AgentSessionClient::of_engine(
            Arc::clone(&self.shared.store),
            Arc::clone(&self.shared.options.clock),
            side,
        )
    }

    /// Stops in order: segments are ended at no cost (G7), handlers get the grace time, leases are
    /// released last.
    ///
    /// # Cancel safety
    /// A dropped call stops the engine as a crash would.
    pub async fn shutdown(mut self) {
        let _ = self.stop.send(true);
        self.shared.slots.close();
        if let Some(supervisor) = self.supervisor.take()
            && let Err(error) = supervisor.await
        {
            tracing::error!(%error, "the engine's supervisor ended early");
        }
    }
}

impl Drop for LocalEngine {
    fn drop(&mut self) {
        if let Some(supervisor) = self.supervisor.take() {
            supervisor.abort();
        }
    }
}

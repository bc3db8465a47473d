//! Finds sessions that have something to do, and gives each active one a driver.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::claim::{Claim, Due, find_due, is_near};
use super::driver::{Driver, DriverEnd, stop_requested};
use super::local::Shared;
use crate::ids::{LeaseEpoch, Revision, SessionId};
use crate::process::{Liveness, ProcessIdentity};
use crate::store::{Change, Lease, LeaseAnswer, SessionFilter, StoreError, WorkerRecord};

/// How many sessions are read from the store at once.
const PAGE: usize = 200;

pub(super) struct Supervisor {
    shared: Arc<Shared>,
    stopping: watch::Receiver<bool>,
    drivers: JoinSet<DriverEnd>,
    active: HashMap<SessionId, Active>,
    /// Sessions that others own: when their holder's heartbeat was last seen to move.
    held_by_others: HashMap<SessionId, Sighting>,
    /// Sessions whose last driver of this engine ended badly.
    failed: HashMap<SessionId, FailedDriver>,
}

struct Active {
    task: Id,
    /// The newest revision that the store told of; the largest one when any may have been missed.
    announced: watch::Sender<Revision>,
    epoch: LeaseEpoch,
}

struct FailedDriver {
    /// Its attempts are lost, so the next driver needs another epoch, whenever it comes: under the
    /// same one the session would refuse every attempt (G8).
    epoch: LeaseEpoch,
    /// How many drivers ended badly, one after the other.
    failures: u32,
}

struct Sighting {
    epoch: LeaseEpoch,
    heartbeat: u64,
    since: Instant,
}

impl Supervisor {
    pub(super) fn new(shared: Arc<Shared>, stopping: watch::Receiver<bool>) -> Self {
        Self {
            shared,
            stopping,
            drivers: JoinSet::new(),
            active: HashMap::new(),
            held_by_others: HashMap::new(),
            failed: HashMap::new(),
        }
    }

    pub(super) async fn run(mut self) {
        for flow in self.shared.registry.flows() {
            flow.runner().sweep_leftovers().await;
        }
        // Subscribed before the first scan, so that nothing falls between the two.
        let mut changes = self.shared.store.changes();
        // In a task of its own, until all leases are released: neither a long scan nor a handler
        // that outlasts the lease time in a shutdown may make this worker look dead.
        let mut heart = JoinSet::new();
        heart.spawn(beat(Arc::clone(&self.shared)));
        let mut scan = interval(self.shared.options.scan_interval);
        scan.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut stopping = self.stopping.clone();
        loop {
            tokio::select! {
                biased;
                () = stop_requested(&mut stopping) => break,
                Some(end) = self.drivers.join_next_with_id() => self.driver_ended(end).await,
                _ = scan.tick() => self.scan().await,
                change = changes.next() => match change {
                    Some(change) => self.changed(change).await,
                    None => break,
                },
            }
        }
        // Each driver sees the stop itself, ends its segments and releases its lease.
        while self.drivers.join_next().await.is_some() {}
        drop(heart);
        if let Err(error) = self.shared.store.remove_worker(&self.shared.worker).await {
            tracing::warn!(%error, "failed to sign off from the store");
        }
    }

    async fn scan(&mut self) {
        let mut filter = SessionFilter {
            due_by: Some(self.shared.options.clock.now()),
            ..SessionFilter::default()
        };
        let mut due = HashSet::new();
        loop {
            let page = match self.shared.store.list(&filter, PAGE).await {
                Ok(page) => page,
                Err(error) => {
                    // As after a lease that could not be taken.
                    self.held_by_others.clear();
                    return tracing::warn!(%error, "failed to look for sessions");
                }
            };
            filter.after = page.rows.last().map(|it| it.session.clone());
            for row in page.rows {
                let is_ours = row
                    .summary
                    .flow_type
                    .as_ref()
                    .is_some_and(|it| self.shared.registry.flow(it).is_some());
                if is_ours && !self.active.contains_key(&row.session) {
                    due.insert(row.session.clone());
                    self.take_up_if_due(row.session).await;
                }
            }
            if !page.has_more {
                break;
            }
        }
        // Nothing is remembered of a session that has nothing to do (G9).
        self.held_by_others.retain(|it, _| due.contains(it));
    }

    async fn changed(&mut self, change: Change) {
        match change {
            Change::Committed {
                session,
                revision,
                due_at,
            } => match self.active.get(&session) {
                Some(active) => active.announce(revision),
                // A later commit that makes it due is told too.
                None if is_near(&self.shared, due_at) => self.take_up_if_due(session).await,
                None => {}
            },
            Change::Deleted(session) => {
                if let Some(active) = self.active.get(&session) {
                    active.announce(UNKNOWN);
                }
            }
            Change::Missed => {
                self.active.values().for_each(|it| it.announce(UNKNOWN));
                self.scan().await;
            }
        }
    }

    async fn take_up_if_due(&mut self, session: SessionId) {
        match find_due(&self.shared, &session).await {
            Ok(Some(due)) => self.take_up(session, due).await,
            Ok(None) => {}
            // G12: a session of a newer version is left to newer workers.
            Err(error @ StoreError::TooNew { .. }) => {
                tracing::debug!(%session, %error, "passed over")
            }
            Err(error) => {
                // As after a lease that could not be taken.
                self.held_by_others.remove(&session);
                tracing::warn!(%session, %error, "failed to look at a session");
            }
        }
    }

    /// Starts a driver, if the session's lease can be had.
    async fn take_up(&mut self, session: SessionId, due: Due) {
        if self.active.contains_key(&session) {
            return;
        }
        let failed = self.failed.get(&session);
        let pause = failed.map_or(Duration::ZERO, FailedDriver::pause);
        let replaces = failed.map(|it| it.epoch);
        let claim = match self.claim(&session, due, replaces).await {
            Ok(Some(claim)) => claim,
            Ok(None) => return,
            Err(error) => {
                // A store that takes no lease may have taken no heartbeat either: what was seen
                // before says nothing about the holder, and the lease time begins anew.
                self.held_by_others.remove(&session);
                return tracing::warn!(%session, %error, "failed to take a lease");
            }
        };
        let epoch = claim.epoch;
        let (announced, seen) = watch::channel(Revision(0));
        let driver = Driver::new(
            Arc::clone(&self.shared),
            session.clone(),
            claim,
            seen,
            self.stopping.clone(),
        );
        let active = Active {
            task: self.drivers.spawn(driver.run_after(pause)).id(),
            announced,
            epoch,
        };
        self.active.insert(session, active);
    }

    async fn claim(
        &mut self,
        session: &SessionId,
        due: Due,
        replaces: Option<LeaseEpoch>,
    ) -> Result<Option<Claim>, StoreError> {
        if due.lease.is_none() {
            self.held_by_others.remove(session);
            return Ok(Some(Claim::free(due)));
        }
        let epoch = self.acquire(session, replaces).await?;
        Ok(epoch.map(Claim::held))
    }

    async fn acquire(
        &mut self,
        session: &SessionId,
        replaces: Option<LeaseEpoch>,
    ) -> Result<Option<LeaseEpoch>, StoreError> {
        let store = Arc::clone(&self.shared.store);
        match store
            .acquire_lease(session, &self.shared.worker, replaces)
            .await?
        {
            LeaseAnswer::Granted(epoch) => {
                self.held_by_others.remove(session);
                Ok(Some(epoch))
            }
            LeaseAnswer::Held(lease) if self.may_take_over(session, &lease) => {
                // All leases of a dead worker are free at once, and its record goes (design.md 5).
                if is_dead(&lease.holder) {
                    store.remove_worker(&lease.holder.id).await?;
                }
                match store
                    .acquire_lease(session, &self.shared.worker, Some(lease.epoch))
                    .await?
                {
                    LeaseAnswer::Granted(epoch) => {
                        self.held_by_others.remove(session);
                        Ok(Some(epoch))
                    }
                    LeaseAnswer::Held(_) => Ok(None),
                }
            }
            LeaseAnswer::Held(_) => Ok(None),
        }
    }

    /// True when the holder is proven dead, or its heartbeat stood still for the lease time on our
    /// own monotonic clock: a jump of the wall clock steals nothing (design.md 5).
    fn may_take_over(&mut self, session: &SessionId, lease: &Lease) -> bool {
        if is_dead(&lease.holder) {
            return true;
        }
        let now = Instant::now();
        let sighting = self
            .held_by_others
            .entry(session.clone())
            .or_insert(Sighting {
                epoch: lease.epoch,
                heartbeat: lease.heartbeat,
                since: now,
            });
        if sighting.epoch != lease.epoch || sighting.heartbeat != lease.heartbeat {
            *sighting = Sighting {
                epoch: lease.epoch,
                heartbeat: lease.heartbeat,
                since: now,
            };
        }
        now.duration_since(sighting.since) >= self.shared.options.lease_time
    }

    async fn driver_ended(&mut self, end: Result<(Id, DriverEnd), JoinError>) {
        let (task, end) = match end {
            Ok((task, end)) => (task, Some(end)),
            Err(error) => {
                tracing::error!(%error, "a session's driver panicked");
                (error.id(), None)
            }
        };
        let session = self.active.iter().find(|(_, it)| it.task == task);
        let Some(session) = session.map(|(it, _)| it.clone()) else {
            return;
        };
        let Some(Active {
            announced, epoch, ..
        }) = self.active.remove(&session)
        else {
            return;
        };
        match end {
            Some(DriverEnd::NothingDue(revision)) => {
                self.failed.remove(&session);
                // It may have changed between the driver's last look and its end.
                if *announced.borrow() > revision {
                    self.take_up_if_due(session).await;
                }
            }
            Some(DriverEnd::Fenced | DriverEnd::Stopped) => {
                self.failed.remove(&session);
            }
            Some(DriverEnd::Failed) | None => {
                let earlier = self.failed.get(&session).map_or(0, |it| it.failures);
                let failures = earlier.saturating_add(1);
                self.failed
                    .insert(session.clone(), FailedDriver { epoch, failures });
                self.take_up_if_due(session.clone()).await;
                if !self.active.contains_key(&session) {
                    // Whoever can work on it must not wait for us.
                    self.release(&session, epoch).await;
                }
            }
        }
    }

    /// Gives a lease back whose driver ended badly, so that another worker may take the session.
    async fn release(&mut self, session: &SessionId, epoch: LeaseEpoch) {
        match self.shared.store.release_lease(session, epoch).await {
            // Whoever takes it next gets another epoch.
            Ok(()) => {
                self.failed.remove(session);
            }
            Err(error) => tracing::warn!(%session, %error, "failed to release a lease"),
        }
    }
}

impl Active {
    fn announce(&self, revision: Revision) {
        // What two threads of a store tell may come in another order than it happened.
        self.announced.send_modify(|it| *it = revision.max(*it));
    }
}

impl FailedDriver {
    /// How long the next driver waits before it works: doubling, so that a session that cannot be
    /// worked on costs next to nothing.
    fn pause(&self) -> Duration {
        let doublings = self.failures.saturating_sub(1).min(16);
        (FAILED_DRIVER_PAUSE.0 * (1 << doublings)).min(FAILED_DRIVER_PAUSE.1)
    }
}

/// Raises this worker's heartbeat until the engine is gone.
async fn beat(shared: Arc<Shared>) {
    let mut heartbeat = interval(shared.options.lease_time / 5);
    heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        heartbeat.tick().await;
        if let Err(error) = shared.store.heartbeat(&shared.worker).await {
            // Whoever takes a session over fences us off by its epoch, so going on is safe.
            tracing::warn!(%error, "failed to renew the heartbeat");
        }
    }
}

/// Larger than every revision: whoever is told of it looks for itself.
const UNKNOWN: Revision = Revision(u64::MAX);

/// How long to wait before a driver that could not work is replaced: the first wait and the longest.
const FAILED_DRIVER_PAUSE: (Duration, Duration) =
    (Duration::from_millis(100), Duration::from_secs(60));

/// True only when it is proven that the worker's process has ended.
fn is_dead(worker: &WorkerRecord) -> bool {
    let process = ProcessIdentity {
        pid: worker.process_id,
        start_time: worker.start_time,
        boot_id: worker.boot_id.clone(),
        pid_namespace: worker.pid_namespace,
    };
    matches!(process.liveness(), Ok(Liveness::Dead))
}

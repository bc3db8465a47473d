//! Who runs a session's Steps: workers with heartbeats, leases with epochs (design.md 5).

use crate::ids::LeaseEpoch;

/// One worker process, by a random text that it chose at its start.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(String);

impl WorkerId {
    /// Names a worker.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the text of the identifier.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A worker process, with what proves that it is dead: no process of that machine's boot has this
/// pid and start time any more.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "stores that hosts write read and build it"
)]
pub struct WorkerRecord {
    /// The worker's own name.
    pub id: WorkerId,
    /// Its process id.
    pub process_id: u32,
    /// When it was started, in clock ticks since boot (`/proc/<pid>/stat`, field 22).
    pub start_time: u64,
    /// Which boot of which machine (`/proc/sys/kernel/random/boot_id`).
    pub boot_id: String,
    /// Which pid namespace the process id belongs to: two containers may use the same number.
    pub pid_namespace: u64,
}

/// A lease that is held.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "stores that hosts write build it"
)]
pub struct Lease {
    /// Counts the owners of the session.
    pub epoch: LeaseEpoch,
    /// Who holds it.
    pub holder: WorkerRecord,
    /// The holder's heartbeat counter; while it rises, the holder lives.
    pub heartbeat: u64,
}

/// What a worker's commit demands of the session's lease, and does to it, in the transaction that
/// commits. A commit without a fence is a client's: it holds by revision alone.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_enums,
    reason = "stores that hosts write match on it"
)]
pub enum Fence {
    /// Takes the lease: it must be free, and the epoch the one after the session's last.
    Take {
        /// Who takes it; it must be registered.
        worker: WorkerId,
        /// [`StoredSession::epoch`](super::StoredSession::epoch) plus one.
        epoch: LeaseEpoch,
    },
    /// The lease must have this epoch, and keeps it.
    Hold(LeaseEpoch),
    /// The lease must have this epoch, and is given back.
    Release(LeaseEpoch),
}

impl Fence {
    /// Returns the epoch under which the commit is made.
    #[must_use]
    pub const fn epoch(&self) -> LeaseEpoch {
        match self {
            Self::Take { epoch, .. } | Self::Hold(epoch) | Self::Release(epoch) => *epoch,
        }
    }
}

/// What [`super::StateStore::acquire_lease`] answers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_enums,
    reason = "stores that hosts write build it, callers match on it"
)]
pub enum LeaseAnswer {
    /// The worker owns the session under this epoch.
    Granted(LeaseEpoch),
    /// Somebody else does.
    Held(Lease),
}

//! The directory of one CLI process: its configuration with the transcript to resume from, and
//! its temporary files.
//!
//! ```text
//! <work root>/run-<pid>-<start time>-<boot id, short>-<counter>/   of the worker, mode 0700
//!     lock                                    locked as long as the worker lives
//!     process                                 the CLI process, for the sweep
//!     <option>.json                           a file of the launch, mode 0600
//!     config/projects/<key>/<claude session>.jsonl
//!     tmp/
//! ```

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::project_key::project_key;
use super::reaper::{Managed, Phase, Reaper};
use super::{CliExit, ResumedTranscript};
use crate::process::ProcessIdentity;

pub(super) const LOCK_FILE: &str = "lock";
pub(super) const PROCESS_FILE: &str = "process";
const NAME_PREFIX: &str = "run-";
const BOOT_ID_CHARACTERS: usize = 8;

/// What the CLI's tools still write may defeat a removal; after this many tries the directory is
/// left to the next sweep.
const REMOVAL_TRIES_MAX: u32 = 10;
const REMOVAL_PAUSE: Duration = Duration::from_millis(50);

static COUNTER: AtomicU64 = AtomicU64::new(0);

/// A directory that exists; dropped, it is removed by the reaper.
#[derive(Debug)]
pub(super) struct RunDirectory {
    path: PathBuf,
    /// Held open: the lock is the proof for other workers that the owner lives, even when they
    /// cannot see its process id. `None` once the directory was handed over.
    lock: Option<File>,
}

impl RunDirectory {
    /// Makes an empty directory that belongs to this process.
    pub(super) fn create(work_root: &Path) -> io::Result<Self> {
        let owner = ProcessIdentity::current()?;
        loop {
            let counter = COUNTER.fetch_add(1, Ordering::Relaxed);
            let path = work_root.join(name(&owner, counter));
            match private_directory().create(&path) {
                Ok(()) => return Self::fill(path),
                // A process of another pid namespace may have the same number and start time.
                Err(it) if it.kind() == io::ErrorKind::AlreadyExists => {}
                Err(it) => return Err(it),
            }
        }
    }

    fn fill(path: PathBuf) -> io::Result<Self> {
        let made = (|| {
            let lock = private_file(&path.join(LOCK_FILE))?;
            lock.try_lock()?;
            private_directory().create(path.join("config"))?;
            private_directory().create(path.join("tmp"))?;
            Ok(lock)
        })();
        match made {
            Ok(lock) => Ok(Self {
                path,
                lock: Some(lock),
            }),
            Err(it) => {
                let _ = fs::remove_dir_all(&path);
                Err(it)
            }
        }
    }

    /// Writes the transcript where the CLI looks for it, one entry per line, verbatim (G11).
    pub(super) fn write_transcript(
        &self,
        real_working_directory: &Path,
        transcript: &ResumedTranscript,
    ) -> io::Result<()> {
        let project = self
            .config()
            .join("projects")
            .join(project_key(real_working_directory));
        private_directory().recursive(true).create(&project)?;
        let name = format!("{}.jsonl", transcript.claude_session);
        let mut file = BufWriter::new(private_file(&project.join(name))?);
        for entry in &transcript.entries {
            file.write_all(entry.as_str().as_bytes())?;
            file.write_all(b"\n")?;
        }
        file.flush()
    }

    /// Writes a file that only this user can read, and returns its path.
    pub(super) fn write_file(&self, name: &str, contents: &str) -> io::Result<PathBuf> {
        let path = std::path::absolute(self.path.join(name))?;
        private_file(&path)?.write_all(contents.as_bytes())?;
        Ok(path)
    }

    /// Notes which process works here, so that the sweep of a later worker can end it.
    pub(super) fn write_process(&self, process: &ProcessIdentity) -> io::Result<()> {
        let text = serde_json::to_vec(process)?;
        private_file(&self.path.join(PROCESS_FILE))?.write_all(&text)
    }

    pub(super) fn into_removal(mut self, after: Option<(Arc<Managed>, CliExit)>) -> Removal {
        Removal {
            path: std::mem::take(&mut self.path),
            lock: self.lock.take(),
            after,
            tries: 0,
            at: Instant::now(),
        }
    }

    pub(super) fn config(&self) -> PathBuf {
        self.path.join("config")
    }

    pub(super) fn temporary(&self) -> PathBuf {
        self.path.join("tmp")
    }
}

impl Drop for RunDirectory {
    fn drop(&mut self) {
        if self.lock.is_some()
            && let Ok(reaper) = Reaper::running()
        {
            let directory = Self {
                path: std::mem::take(&mut self.path),
                lock: self.lock.take(),
            };
            reaper.remove(directory.into_removal(None));
        }
    }
}

/// A directory that the reaper is to remove, and whom to tell.
#[derive(Debug)]
pub(super) struct Removal {
    path: PathBuf,
    /// `None` once nothing is left to do.
    lock: Option<File>,
    after: Option<(Arc<Managed>, CliExit)>,
    tries: u32,
    at: Instant,
}

impl Removal {
    /// Tries when it is time; returns when to try again, or `None` when nothing is left to do.
    pub(super) fn step(&mut self, now: Instant) -> Option<Instant> {
        self.lock.as_ref()?;
        if now < self.at {
            return Some(self.at);
        }
        if let Err(error) = remove(&self.path) {
            self.tries += 1;
            if self.tries < REMOVAL_TRIES_MAX {
                self.at = now + REMOVAL_PAUSE;
                return Some(self.at);
            }
            tracing::warn!(path = %self.path.display(), %error, "left a directory to the next sweep");
        }
        if let Some((managed, exit)) = self.after.take() {
            managed.set_phase(Phase::Cleared(exit));
        }
        self.lock = None;
        None
    }
}

/// Removes a directory with all it holds; one that is gone already counts as removed.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(it) if it.kind() != io::ErrorKind::NotFound => Err(it),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Returns the default work root. It names the user, because a directory made by another one in a
/// shared temporary directory could not be used.
pub(super) fn default_work_root() -> PathBuf {
    let user = rustix::process::geteuid();
    std::env::temp_dir().join(format!("abide-{}", user.as_raw()))
}

/// Makes the default work root, and refuses one that somebody else put there.
pub(super) fn create_default_work_root(path: &Path) -> io::Result<()> {
    private_directory().recursive(true).create(path)?;
    let found = fs::symlink_metadata(path)?;
    let ours = found.is_dir() && found.uid() == rustix::process::geteuid().as_raw();
    if ours && found.mode().trailing_zeros() >= 6 {
        return Ok(());
    }
    let kind = io::ErrorKind::PermissionDenied;
    Err(io::Error::new(
        kind,
        "the work root belongs to another user or is open to others",
    ))
}

/// Makes a work root that the host chose; whom it belongs to is the host's business.
pub(super) fn create_work_root(path: &Path) -> io::Result<()> {
    private_directory().recursive(true).create(path)
}

fn private_directory() -> DirBuilder {
    let mut builder = DirBuilder::new();
    builder.mode(0o700);
    builder
}

fn private_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600).open(path)
}

/// The worker that a directory's name tells of.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct OwnerName {
    pub(super) pid: u32,
    pub(super) start_time: u64,
    boot: String,
}

impl OwnerName {
    /// Reads a directory name; `None` when it is none of ours.
    pub(super) fn parse(name: &str) -> Option<Self> {
        let mut parts = name.strip_prefix(NAME_PREFIX)?.split('-');
        let owner = Self {
            pid: parts.next()?.parse().ok()?,
            start_time: parts.next()?.parse().ok()?,
            boot: parts.next()?.to_owned(),
        };
        let _counter: u64 = parts.next()?.parse().ok()?;
        parts.next().is_none().then_some(owner)
    }

    pub(super) fn is(&self, process: &ProcessIdentity) -> bool {
        self.pid == process.pid
            && self.start_time == process.start_time
            && self.boot == short_boot(process)
    }
}

fn name(owner: &ProcessIdentity, counter: u64) -> String {
    let boot = short_boot(owner);
    format!(
        "{NAME_PREFIX}{}-{}-{boot}-{counter}",
        owner.pid, owner.start_time
    )
}

fn short_boot(process: &ProcessIdentity) -> String {
    let letters = process.boot_id.chars().filter(char::is_ascii_alphanumeric);
    letters.take(BOOT_ID_CHARACTERS).collect()
}

//! Removes what killed workers left behind, and ends CLI processes that outlived them (G14).

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

use super::SweepReport;
use super::config_dir::{LOCK_FILE, OwnerName, PROCESS_FILE, remove};
use crate::process::{Liveness, ProcessIdentity};

/// A directory without a lock may just be in the making by a worker that cannot be seen from here.
const UNLOCKED_AGE_MIN: Duration = Duration::from_secs(60);

/// How long a process may take to be gone after SIGKILL.
const KILL_WAIT: Duration = Duration::from_secs(2);

/// How often a process is looked at where the kernel has no pidfd.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// Ends the CLI processes and removes the directories of workers that are dead. Blocks, for up to
/// `stop_grace` and a little more when such a process does not end by SIGTERM.
///
/// A worker is dead when no process of its id and start time runs, *and* the lock of the directory
/// is free: the lock also protects directories of workers in other containers. Directories of
/// living workers and files with other names are not touched. A process is signalled only if its
/// id, start time, boot and pid namespace are the recorded ones.
///
/// # Errors
/// The work root cannot be listed. A single directory that cannot be dealt with is counted.
pub fn sweep_leftovers(work_root: &Path, stop_grace: Duration) -> io::Result<SweepReport> {
    let mut report = SweepReport::default();
    let entries = match fs::read_dir(work_root) {
        Err(it) if it.kind() == io::ErrorKind::NotFound => return Ok(report),
        entries => entries?,
    };
    let mut leftovers = Vec::new();
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let Some(owner) = name.to_str().and_then(OwnerName::parse) else {
            continue;
        };
        match Leftover::claim(entry.path(), &owner) {
            Ok(Some(it)) => leftovers.push(it),
            Ok(None) => {}
            Err(error) => report.count_failure(&entry.path(), &error),
        }
    }
    let left: Vec<&Process> = leftovers
        .iter()
        .filter_map(|it| it.process.as_ref())
        .collect();
    for process in &left {
        process.signal(Signal::TERM);
    }
    let patience = Instant::now().checked_add(stop_grace);
    for process in &left {
        if !process.wait(patience)? {
            process.signal(Signal::KILL);
        }
    }
    let patience = Instant::now().checked_add(KILL_WAIT);
    for process in &left {
        process.wait(patience)?;
    }
    for leftover in leftovers {
        match leftover.finish() {
            Ok(ended) => {
                report.directories_removed += 1;
                report.processes_ended += u64::from(ended);
            }
            Err((path, error)) => report.count_failure(&path, &error),
        }
    }
    Ok(report)
}

impl SweepReport {
    fn count_failure(&mut self, path: &Path, error: &io::Error) {
        tracing::warn!(path = %path.display(), %error, "failed to sweep a directory");
        self.failures += 1;
    }
}

/// A dead worker's directory, locked by us so that no other sweep works on it.
struct Leftover {
    path: PathBuf,
    _lock: Option<File>,
    process: Option<Process>,
}

impl Leftover {
    /// Takes the directory; `None` when its worker lives, or may live.
    fn claim(path: PathBuf, owner: &OwnerName) -> io::Result<Option<Self>> {
        if let Some(seen) = ProcessIdentity::of(owner.pid)?
            && owner.is(&seen)
        {
            return Ok(None);
        }
        let lock = match File::open(path.join(LOCK_FILE)) {
            Ok(lock) => match lock.try_lock() {
                Ok(()) => Some(lock),
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(it)) => return Err(it),
            },
            Err(it) if it.kind() == io::ErrorKind::NotFound => {
                let made = match fs::metadata(&path) {
                    // Removed meanwhile, by its owner or another sweep.
                    Err(it) if it.kind() == io::ErrorKind::NotFound => return Ok(None),
                    metadata => metadata?.modified()?,
                };
                let age = SystemTime::now().duration_since(made).unwrap_or_default();
                if age < UNLOCKED_AGE_MIN {
                    return Ok(None);
                }
                None
            }
            Err(it) => return Err(it),
        };
        let process = Process::recorded_in(&path)?;
        Ok(Some(Self {
            path,
            _lock: lock,
            process,
        }))
    }

    /// Removes the directory and says whether a process was ended for it.
    fn finish(self) -> Result<bool, (PathBuf, io::Error)> {
        let ended = match &self.process {
            None => Ok(false),
            Some(process) => match process.identity.liveness() {
                Ok(Liveness::Alive) => Err(io::Error::other("its process does not end")),
                Ok(Liveness::Dead | Liveness::Elsewhere) => Ok(true),
                Err(it) => Err(it),
            },
        };
        match ended.and_then(|it| remove(&self.path).map(|()| it)) {
            Ok(ended) => Ok(ended),
            Err(error) => Err((self.path, error)),
        }
    }
}

/// A CLI process that outlived its worker.
struct Process {
    identity: ProcessIdentity,
    pid: Pid,
    /// Names this process even when its id is reused; `None` where the kernel has none.
    pidfd: Option<OwnedFd>,
}

impl Process {
    /// Reads the record; `None` when there is none, or when its process is not alive here.
    fn recorded_in(directory: &Path) -> io::Result<Option<Self>> {
        let text = match fs::read(directory.join(PROCESS_FILE)) {
            Err(it) if it.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text?,
        };
        // A half-written record is of a worker that died at that moment; its CLI got SIGTERM.
        let Ok(identity) = serde_json::from_slice::<ProcessIdentity>(&text) else {
            return Ok(None);
        };
        let pid = i32::try_from(identity.pid).ok().filter(|it| *it > 1);
        let Some(pid) = pid.and_then(Pid::from_raw) else {
            return Ok(None);
        };
        // First the handle, then the comparison: so the handle is of the process that was compared.
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok();
        Ok(match identity.liveness()? {
            Liveness::Alive => Some(Self {
                identity,
                pid,
                pidfd,
            }),
            Liveness::Dead | Liveness::Elsewhere => None,
        })
    }

    fn signal(&self, signal: Signal) {
        // An error means that it ended; whether it did is looked at afterwards.
        let _ = match &self.pidfd {
            Some(pidfd) => pidfd_send_signal(pidfd, signal),
            None => match self.identity.liveness() {
                Ok(Liveness::Alive) => kill_process(self.pid, signal),
                Ok(Liveness::Dead | Liveness::Elsewhere) | Err(_) => Ok(()),
            },
        };
    }

    /// Waits until it has ended, or says false when the time is up; `None` waits for ever.
    fn wait(&self, until: Option<Instant>) -> io::Result<bool> {
        while self.identity.liveness()? == Liveness::Alive {
            let left = until.map(|it| it.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(false);
            }
            match &self.pidfd {
                Some(pidfd) => {
                    let timeout = left.and_then(|it| Timespec::try_from(it).ok());
                    match poll(&mut [PollFd::new(pidfd, PollFlags::IN)], timeout.as_ref()) {
                        Ok(_) | Err(rustix::io::Errno::INTR) => {}
                        Err(it) => return Err(it.into()),
                    }
                }
                None => std::thread::sleep(LOOK_INTERVAL.min(left.unwrap_or(LOOK_INTERVAL))),
            }
        }
        Ok(true)
    }
}

//! Which process it was: a proof that a process is gone which a reused process id cannot fool.
//!
//! A process id alone names nothing after its process ended. With the start time (field 22 of
//! `/proc/<pid>/stat`, in clock ticks since boot), the boot id and the pid namespace it names
//! exactly one process of all that ever ran on this kernel. Reads `/proc`, so it works on Linux.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use serde::{Deserialize, Serialize};

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
const OWN_PID_NAMESPACE: &str = "/proc/self/ns/pid";

/// Names one process for ever. Created by [`ProcessIdentity::current`] and
/// [`ProcessIdentity::of`]; may be stored and compared later.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ProcessIdentity {
    /// The process id, as its own pid namespace counts.
    pub pid: u32,
    /// When it started, in clock ticks since the machine booted.
    pub start_time: u64,
    /// Which boot of which machine it ran in.
    pub boot_id: String,
    /// Which pid namespace `pid` belongs to: two containers may use the same number.
    pub pid_namespace: u64,
}

/// What can be said about a process from here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Liveness {
    /// It runs.
    Alive,
    /// It ended; nothing of it acts any more.
    Dead,
    /// It belongs to another boot, machine or pid namespace, so that nothing can be proven from here.
    Elsewhere,
}

impl ProcessIdentity {
    /// Returns the identity of this process.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub fn current() -> io::Result<Self> {
        Self::of(std::process::id())?.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    }

    /// Returns the identity of a running process of this pid namespace, or `None` when there is
    /// none or it has ended and only waits for its parent to notice.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub fn of(pid: u32) -> io::Result<Option<Self>> {
        let Some(start_time) = running_since(pid)? else {
            return Ok(None);
        };
        Ok(Some(Self {
            pid,
            start_time,
            boot_id: fs::read_to_string(BOOT_ID)?.trim().to_owned(),
            pid_namespace: fs::metadata(OWN_PID_NAMESPACE)?.ino(),
        }))
    }

    /// Returns false only when it is proven that the process ended: same boot, same pid
    /// namespace, and no process with this id and start time.
    ///
    /// A process of another user that `/proc` hides (mount option `hidepid`) counts as ended; run
    /// the processes that judge each other as one user.
    ///
    /// # Errors
    /// `/proc` cannot be read; nothing is proven then.
    pub fn is_alive(&self) -> io::Result<bool> {
        Ok(match self.liveness()? {
            Liveness::Alive | Liveness::Elsewhere => true,
            Liveness::Dead => false,
        })
    }

    /// Returns what can be said about the process from here; see [`ProcessIdentity::is_alive`].
    ///
    /// # Errors
    /// `/proc` cannot be read; nothing is proven then.
    pub fn liveness(&self) -> io::Result<Liveness> {
        let here = Self::current()?;
        if here.boot_id != self.boot_id || here.pid_namespace != self.pid_namespace {
            return Ok(Liveness::Elsewhere);
        }
        Ok(match running_since(self.pid)? {
            Some(start_time) if start_time == self.start_time => Liveness::Alive,
            Some(_) | None => Liveness::Dead,
        })
    }
}

/// The start time of a process that still acts; `None` for one that is gone or a zombie.
fn running_since(pid: u32) -> io::Result<Option<u64>> {
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => parse_stat(&stat)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "unknown form of stat")),
        // ESRCH: it ended between the opening and the reading.
        Err(it) if it.kind() == io::ErrorKind::NotFound || it.raw_os_error() == Some(3) => Ok(None),
        Err(it) => Err(it),
    }
}

/// Reads state (3), number of threads (20) and start time (22) of `/proc/<pid>/stat`; the outer
/// `None` is a text of another form, the inner one a process that has ended.
fn parse_stat(stat: &str) -> Option<Option<u64>> {
    // The name may hold blanks and parentheses, so the fields are counted behind the last one.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.next()?;
    let threads: i64 = fields.nth(16)?.parse().ok()?;
    let start_time = fields.nth(1)?.parse().ok()?;
    // A process whose first thread ended shows as a zombie while its other threads go on.
    let ended = matches!(state, "Z" | "X" | "x") && threads <= 1;
    Some((!ended).then_some(start_time))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(name: &str, state: &str, threads: &str) -> String {
        format!("7 ({name}) {state} 1 7 7 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 {threads} 0 4711 0 0")
    }

    /// G14: the right fields are read whatever the program calls itself.
    #[test]
    fn a_stat_line_is_read_behind_the_last_parenthesis() {
        for (line, expected) in [
            (stat("sh", "S", "1"), Some(Some(4711))),
            (stat("a ) R 1 (b", "R", "1"), Some(Some(4711))),
            (stat("sh", "Z", "1"), Some(None)),
            (stat("sh", "Z", "3"), Some(Some(4711))),
            ("7 (sh) S 1".to_owned(), None),
            (String::new(), None),
        ] {
            assert_eq!(parse_stat(&line), expected, "{line}");
        }
    }

    /// G14: this process lives; the same number with another start time, boot or namespace does not count as it.
    #[test]
    fn only_the_same_process_is_alive() {
        let here = ProcessIdentity::current().unwrap();
        assert_eq!(here.liveness().unwrap(), Liveness::Alive);
        let other_start = ProcessIdentity {
            start_time: here.start_time + 1,
            ..here.clone()
        };
        assert_eq!(other_start.liveness().unwrap(), Liveness::Dead);
        assert!(!other_start.is_alive().unwrap());
        let other_boot = ProcessIdentity {
            boot_id: "other".to_owned(),
            ..here
        };
        assert_eq!(other_boot.liveness().unwrap(), Liveness::Elsewhere);
        assert!(other_boot.is_alive().unwrap());
        let other_namespace = ProcessIdentity {
            pid_namespace: 1,
            ..here
        };
        assert_eq!(other_namespace.liveness().unwrap(), Liveness::Elsewhere);
    }

    /// G14: a process that ended counts as dead already while its parent has not noticed.
    #[test]
    fn a_zombie_is_dead() {
        let mut child = std::process::Command::new("/bin/cat")
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let identity = ProcessIdentity::of(child.id()).unwrap().unwrap();
        assert!(identity.is_alive().unwrap());
        drop(child.stdin.take());
        while identity.is_alive().unwrap() {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert_eq!(identity.liveness().unwrap(), Liveness::Dead);
    }
}

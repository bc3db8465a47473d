//! The one owner of all child processes, from their start until they are reaped.
//!
//! A thread of its own, not a task: a process must end when its handle is dropped, whether or not
//! the tokio runtime still exists. A process is signalled and reaped only under the lock of its
//! [`Managed`], and never signalled once it was reaped, so no signal can hit a reused process id.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::Child;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, pidfd_open,
    waitid,
};
use tokio::sync::watch;

use super::CliExit;
use super::config_dir::{Removal, RunDirectory};

/// How often processes are looked at where the kernel has no pidfd that would tell.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// How long a process keeps the reaper waiting for the next look after an error of `poll`.
const POLL_ERROR_PAUSE: Duration = Duration::from_millis(20);

/// How far the end of a process has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Running,
    /// It is reaped; nothing of its process group is left.
    Ended(CliExit),
    /// Its directory is removed too, or given up until the next sweep.
    Cleared(CliExit),
}

impl Phase {
    pub(super) fn exit(self) -> Option<CliExit> {
        match self {
            Self::Running => None,
            Self::Ended(exit) | Self::Cleared(exit) => Some(exit),
        }
    }
}

/// One child process, shared by its handle and the reaper.
#[derive(Debug)]
pub(super) struct Managed {
    pid: Pid,
    stop_grace: Duration,
    life: Mutex<Life>,
    phase: watch::Sender<Phase>,
}

#[derive(Debug)]
enum Life {
    Running {
        child: Child,
        stop: Stop,
        /// A second handle of its input. The end of its input would make the CLI refuse what it waits
        /// for and ask the model again, faster than it follows SIGTERM (spec/cli-protocol.md 5), so
        /// the input stays open until it is reaped or the host itself closed it.
        input: Option<OwnedFd>,
    },
    /// The process id may belong to somebody else by now.
    Reaped,
}

#[derive(Debug, Clone, Copy)]
enum Stop {
    NotAsked,
    /// `None`: its grace time never ends.
    Asked {
        kill_at: Option<Instant>,
    },
    Killed,
}

impl Managed {
    pub(super) fn new(child: Child, pid: Pid, stop_grace: Duration) -> Arc<Self> {
        let stop = Stop::NotAsked;
        Arc::new(Self {
            pid,
            stop_grace,
            life: Mutex::new(Life::Running {
                child,
                stop,
                input: None,
            }),
            phase: watch::Sender::new(Phase::Running),
        })
    }

    /// Sends SIGTERM at once, and SIGKILL when the process still runs after its grace time.
    pub(super) fn terminate(&self) {
        if let Life::Running { stop, .. } = &mut *self.life()
            && let Stop::NotAsked = stop
        {
            // An error means that it has ended already; the reaper will see that.
            let _ = kill_process(self.pid, Signal::TERM);
            *stop = Stop::Asked {
                kill_at: Instant::now().checked_add(self.stop_grace),
            };
        }
        if let Ok(reaper) = Reaper::running() {
            reaper.wake();
        }
    }

    /// Keeps this handle of the process's input open until the process is reaped.
    pub(super) fn hold_input(&self, handle: OwnedFd) {
        if let Life::Running { input, .. } = &mut *self.life() {
            *input = Some(handle);
        }
    }

    /// The host closes the input: what is held of it goes too.
    pub(super) fn release_input(&self) {
        if let Life::Running { input, .. } = &mut *self.life() {
            *input = None;
        }
    }

    pub(super) fn pid(&self) -> Pid {
        self.pid
    }

    pub(super) fn stop_grace(&self) -> Duration {
        self.stop_grace
    }

    pub(super) fn phases(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    pub(super) fn set_phase(&self, phase: Phase) {
        self.phase.send_replace(phase);
    }

    fn life(&self) -> MutexGuard<'_, Life> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Kills when it is time, reaps when it ended, and says how it goes on.
    fn look(&self, now: Instant) -> Look {
        let mut life = self.life();
        let Life::Running { child, stop, .. } = &mut *life else {
            return Look::Ended(CliExit::Unknown);
        };
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let exit = match waitid(WaitId::Pid(self.pid), options) {
            Ok(None) | Err(rustix::io::Errno::INTR) => {
                let next = match *stop {
                    Stop::Asked { kill_at: Some(at) } if at <= now => {
                        let _ = kill_process(self.pid, Signal::KILL);
                        *stop = Stop::Killed;
                        None
                    }
                    Stop::Asked { kill_at } => kill_at,
                    Stop::NotAsked | Stop::Killed => None,
                };
                return Look::Running(next);
            }
            Ok(Some(_)) => {
                // Not reaped yet, so the group's number is still this group's: what the process
                // left in it ends too. Tools in sessions of their own are the CLI's to end.
                let _ = kill_process_group(self.pid, Signal::KILL);
                child.wait().ok().and_then(|status| {
                    let exited = status.code().map(CliExit::Exited);
                    exited.or_else(|| status.signal().map(CliExit::Signalled))
                })
            }
            // Somebody else in this process reaped it.
            Err(_) => None,
        };
        *life = Life::Reaped;
        Look::Ended(exit.unwrap_or(CliExit::Unknown))
    }
}

enum Look {
    Running(Option<Instant>),
    Ended(CliExit),
}

/// A process and what goes with it.
struct Watched {
    managed: Arc<Managed>,
    /// Wakes the reaper when the process ends; `None` where the kernel has none.
    pidfd: Option<OwnedFd>,
    directory: RunDirectory,
}

enum Message {
    Watch(Watched),
    Remove(Removal),
}

pub(super) struct Reaper {
    inbox: Mutex<Vec<Message>>,
    waker: UnixStream,
}

static REAPER: Mutex<Option<Arc<Reaper>>> = Mutex::new(None);

impl Reaper {
    /// Returns the reaper of this process; its thread starts at the first call and never ends.
    pub(super) fn running() -> io::Result<Arc<Self>> {
        let mut reaper = REAPER.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = &*reaper {
            return Ok(Arc::clone(running));
        }
        let (waker, wakes) = UnixStream::pair()?;
        waker.set_nonblocking(true)?;
        wakes.set_nonblocking(true)?;
        let started = Arc::new(Self {
            inbox: Mutex::new(Vec::new()),
            waker,
        });
        let inbox = Arc::clone(&started);
        thread::Builder::new()
            .name("abide-reaper".to_owned())
            .spawn(move || run(&inbox, wakes))?;
        Ok(Arc::clone(reaper.insert(started)))
    }

    /// Takes over a process that just started, and its directory.
    pub(super) fn watch(&self, managed: Arc<Managed>, directory: RunDirectory) {
        let pidfd = pidfd_open(managed.pid, PidfdFlags::empty()).ok();
        self.watch_by(pidfd, managed, directory);
    }

    /// As [`Reaper::watch`], told of the end by this pidfd, or by looking when there is none.
    pub(super) fn watch_by(
        &self,
        pidfd: Option<OwnedFd>,
        managed: Arc<Managed>,
        directory: RunDirectory,
    ) {
        self.send(Message::Watch(Watched {
            managed,
            pidfd,
            directory,
        }));
    }

    pub(super) fn remove(&self, removal: Removal) {
        self.send(Message::Remove(removal));
    }

    fn send(&self, message: Message) {
        self.inbox().push(message);
        self.wake();
    }

    fn wake(&self) {
        // A full pipe holds a wake-up already.
        let _ = (&self.waker).write(&[0]);
    }

    fn inbox(&self) -> MutexGuard<'_, Vec<Message>> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn run(reaper: &Reaper, mut wakes: UnixStream) {
    let mut watched: Vec<Watched> = Vec::new();
    let mut removals: Vec<Removal> = Vec::new();
    loop {
        for message in std::mem::take(&mut *reaper.inbox()) {
            match message {
                Message::Watch(it) => watched.push(it),
                Message::Remove(it) => removals.push(it),
            }
        }
        let now = Instant::now();
        let mut next: Option<Instant> = None;
        let mut wake_at = |at: Instant| next = Some(next.map_or(at, |it| it.min(at)));
        let mut running = Vec::with_capacity(watched.len());
        for it in watched {
            match it.managed.look(now) {
                Look::Running(kill_at) => {
                    if let Some(at) = kill_at {
                        wake_at(at);
                    }
                    if it.pidfd.is_none() {
                        wake_at(now + LOOK_INTERVAL);
                    }
                    running.push(it);
                }
                Look::Ended(exit) => {
                    it.managed.set_phase(Phase::Ended(exit));
                    removals.push(it.directory.into_removal(Some((it.managed, exit))));
                }
            }
        }
        watched = running;
        removals.retain_mut(|it| match it.step(now) {
            Some(at) => {
                wake_at(at);
                true
            }
            None => false,
        });
        wait(&wakes, &watched, next);
        let mut sink = [0; 64];
        while matches!(wakes.read(&mut sink), Ok(1..)) {}
    }
}

/// Waits for a message, the end of a process, or the time of the next look.
fn wait(wakes: &UnixStream, watched: &[Watched], next: Option<Instant>) {
    let pidfds = watched.iter().filter_map(|it| it.pidfd.as_ref());
    let mut fds: Vec<PollFd<'_>> = std::iter::once(PollFd::new(wakes, PollFlags::IN))
        .chain(pidfds.map(|it| PollFd::new(it, PollFlags::IN)))
        .collect();
    let timeout =
        next.and_then(|at| Timespec::try_from(at.saturating_duration_since(Instant::now())).ok());
    match poll(&mut fds, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        // Out of memory, for example: look again a little later instead of spinning.
        Err(_) => thread::sleep(POLL_ERROR_PAUSE),
    }
}

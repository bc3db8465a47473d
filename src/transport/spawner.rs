//! Starts all child processes from one thread that lives as long as this process.
//!
//! The kernel sends a child its parent-death signal when the *thread* that started it ends (G14),
//! so no thread of a runtime, which may end any time, can start one.

use std::os::unix::process::CommandExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};
use tokio::sync::oneshot;

use super::CliError;
use super::config_dir::RunDirectory;
use super::program::start_error;
use super::reaper::{Managed, Reaper};
use super::subprocess::io;
use crate::process::ProcessIdentity;

/// A process that runs, with the ends of its pipes. Dropped, it is ended.
#[derive(Debug)]
pub(super) struct Spawned {
    pub(super) process: OwnedProcess,
    pub(super) stdin: ChildStdin,
    pub(super) stdout: ChildStdout,
    pub(super) stderr: ChildStderr,
}

/// The right to end a process, and the duty: it is ended when this is dropped.
#[derive(Debug)]
pub(super) struct OwnedProcess(pub(super) Arc<Managed>);

impl Drop for OwnedProcess {
    fn drop(&mut self) {
        self.0.terminate();
    }
}

struct Job {
    command: Command,
    directory: RunDirectory,
    stop_grace: Duration,
    reply: oneshot::Sender<Result<Spawned, CliError>>,
}

static JOBS: Mutex<Option<mpsc::Sender<Job>>> = Mutex::new(None);

/// Starts a command in a process group of its own; the directory is removed after its end.
///
/// # Cancel safety
/// A dropped call leaves no process and no directory: the unread reply is dropped, and ends both.
pub(super) async fn spawn(
    mut command: Command,
    directory: RunDirectory,
    stop_grace: Duration,
) -> Result<Spawned, CliError> {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // Ctrl-C in the worker's terminal is for the worker, which then stops the CLI in order.
        .process_group(0);
    end_with_parent(&mut command);
    let (reply, answer) = oneshot::channel();
    let job = Job {
        command,
        directory,
        stop_grace,
        reply,
    };
    // A job that is lost drops its end of the reply, so both failures are seen there.
    let _ = jobs().map_err(io("start the spawning thread"))?.send(job);
    answer.await.unwrap_or_else(|it| {
        let source = std::io::Error::other(it);
        Err(io("reach the spawning thread")(source))
    })
}

fn jobs() -> std::io::Result<mpsc::Sender<Job>> {
    let mut jobs = JOBS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(sender) = &*jobs {
        return Ok(sender.clone());
    }
    let (sender, receiver) = mpsc::channel();
    thread::Builder::new()
        .name("abide-spawner".to_owned())
        .spawn(move || run(&receiver))?;
    Ok(jobs.insert(sender).clone())
}

fn run(jobs: &mpsc::Receiver<Job>) {
    while let Ok(job) = jobs.recv() {
        // The end of this thread would be the end of every process that it started.
        let _ = catch_unwind(AssertUnwindSafe(|| {
            let Job {
                command,
                directory,
                stop_grace,
                reply,
            } = job;
            let _ = reply.send(start(command, directory, stop_grace));
        }));
    }
}

fn start(
    mut command: Command,
    directory: RunDirectory,
    stop_grace: Duration,
) -> Result<Spawned, CliError> {
    let reaper = Reaper::running().map_err(io("start the reaping thread"))?;
    let mut child = command
        .spawn()
        .map_err(|it| start_error(command.get_program().as_ref(), it))?;
    let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let id = child.id();
    let pid = i32::try_from(id).ok().and_then(Pid::from_raw);
    let (Some(pid), (Some(stdin), Some(stdout), Some(stderr))) = (pid, pipes) else {
        // Cannot be: all three were asked for. The closed pipes end the child.
        let _ = child.kill();
        let _ = child.wait();
        let source = std::io::ErrorKind::BrokenPipe.into();
        return Err(io("take the pipes of the CLI")(source));
    };
    let noted = ProcessIdentity::of(id).and_then(|it| match it {
        Some(identity) => directory.write_process(&identity),
        // It ended already; there is nothing for a sweep to end.
        None => Ok(()),
    });
    let managed = Managed::new(child, pid, stop_grace);
    let process = OwnedProcess(Arc::clone(&managed));
    reaper.watch(managed, directory);
    noted.map_err(io("note the process of the CLI"))?;
    Ok(Spawned {
        process,
        stdin,
        stdout,
        stderr,
    })
}

/// Has the kernel send SIGTERM to the child when this process dies. Not SIGKILL: only after
/// SIGTERM does the CLI end its Bash tools, which run in sessions of their own (spec/cli-protocol.md 0.5).
#[expect(
    unsafe_code,
    reason = "the parent-death signal can only be set in the child, between fork and exec"
)]
fn end_with_parent(command: &mut Command) {
    let parent = getpid();
    // SAFETY: the closure runs in the forked child, where only async-signal-safe work is allowed.
    // It makes two system calls through rustix and builds an error from a number: no allocation,
    // no lock.
    unsafe {
        command.pre_exec(move || {
            set_parent_process_death_signal(Some(Signal::TERM))?;
            // The parent may have died before the signal was set; then it never comes.
            if getppid() == Some(parent) {
                Ok(())
            } else {
                Err(rustix::io::Errno::SRCH.into())
            }
        });
    }
}

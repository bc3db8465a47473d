//! Dying or standing still at one exact point: behind a line between worker and CLI, or beside a commit.
//!
//! The points that a test chooses among are written down as they pass, so that they can be counted.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use abide::process::ProcessIdentity;
use abide::transport::{CliError, CliExit, CliLauncher, CliProcess, LaunchSpec, SweepReport};
use async_trait::async_trait;
use rustix::process::{Pid, Signal, getpid, kill_process};
use serde::Deserialize;

/// What happens at the point.
#[derive(Debug, Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Deed {
    KillWorker,
    KillCli,
    KillBoth,
    /// SIGSTOP to the worker itself, until somebody sends it SIGCONT.
    StandStill,
}

/// Writes points down, and does the deed.
#[derive(Debug)]
pub(crate) struct Tap {
    trace: Mutex<File>,
    lines: AtomicU64,
    /// Behind which line between worker and CLIs, counted from 1, in either direction.
    at_line: Option<(u64, Deed)>,
    cli: Mutex<Option<ProcessIdentity>>,
}

impl Tap {
    pub(crate) fn new(trace: &Path, at_line: Option<(u64, Deed)>) -> std::io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(trace)?;
        Ok(Self {
            trace: Mutex::new(file),
            lines: AtomicU64::new(0),
            at_line,
            cli: Mutex::new(None),
        })
    }

    pub(crate) fn write(&self, text: &str) {
        let mut file = self.trace.lock().unwrap_or_else(PoisonError::into_inner);
        writeln!(file, "{text}").expect("the trace takes a line");
    }

    fn line(&self, direction: &str) {
        let number = self.lines.fetch_add(1, Ordering::SeqCst) + 1;
        self.write(direction);
        if let Some((_, deed)) = self.at_line.filter(|(at, _)| *at == number) {
            self.act(deed);
        }
    }

    /// Does it. Returns only where this process lives on.
    pub(crate) fn act(&self, deed: Deed) {
        match deed {
            Deed::KillWorker => {
                self.write("done");
                send(getpid(), Signal::KILL);
            }
            Deed::KillCli => {
                if self.kill_cli() {
                    self.write("done");
                }
            }
            Deed::KillBoth => {
                self.kill_cli();
                self.write("done");
                send(getpid(), Signal::KILL);
            }
            Deed::StandStill => {
                self.write("done");
                send(getpid(), Signal::STOP);
            }
        }
    }

    /// False when no CLI runs.
    fn kill_cli(&self) -> bool {
        let cli = self.cli.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(cli) = cli.as_ref().filter(|it| it.is_alive().unwrap_or(false)) else {
            return false;
        };
        let pid = i32::try_from(cli.pid).ok().and_then(Pid::from_raw);
        send(pid.expect("a process id"), Signal::KILL);
        true
    }
}

fn send(pid: Pid, signal: Signal) {
    kill_process(pid, signal).expect("the process is ours");
}

/// A launcher whose processes' lines go through the tap.
#[derive(Debug)]
pub(crate) struct Tapped<L> {
    pub(crate) inner: L,
    pub(crate) tap: Arc<Tap>,
}

#[async_trait]
impl<L: CliLauncher> CliLauncher for Tapped<L> {
    async fn launch(&self, spec: LaunchSpec) -> Result<Box<dyn CliProcess>, CliError> {
        let inner = self.inner.launch(spec).await?;
        let cli = inner.process_id().map(ProcessIdentity::of);
        if let Some(Ok(Some(cli))) = cli {
            self.tap
                .write(&format!("cli {} {}", cli.pid, cli.start_time));
            let mut newest = self.tap.cli.lock().unwrap_or_else(PoisonError::into_inner);
            *newest = Some(cli);
        }
        let tap = Arc::clone(&self.tap);
        Ok(Box::new(TappedProcess { inner, tap }))
    }

    async fn sweep_leftovers(&self) -> Result<SweepReport, CliError> {
        self.inner.sweep_leftovers().await
    }
}

#[derive(Debug)]
struct TappedProcess {
    inner: Box<dyn CliProcess>,
    tap: Arc<Tap>,
}

#[async_trait]
impl CliProcess for TappedProcess {
    fn process_id(&self) -> Option<u32> {
        self.inner.process_id()
    }

    fn send(&mut self, line: String) -> Result<(), CliError> {
        self.inner.send(line)?;
        self.tap.line("sent");
        Ok(())
    }

    async fn receive(&mut self) -> Result<Option<Vec<u8>>, CliError> {
        let line = self.inner.receive().await?;
        if line.is_some() {
            self.tap.line("received");
        }
        Ok(line)
    }

    fn close_input(&mut self) {
        self.inner.close_input();
    }

    async fn shutdown(&mut self, grace: Duration) -> CliExit {
        self.inner.shutdown(grace).await
    }

    fn stderr_tail(&self) -> String {
        self.inner.stderr_tail()
    }
}

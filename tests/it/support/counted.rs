//! A launcher that counts, and behind which a worker can be made to stand still at a line.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use abide::process::ProcessIdentity;
use abide::transport::{CliError, CliExit, CliLauncher, CliProcess, LaunchSpec, SweepReport};
use async_trait::async_trait;

/// A line in the talk with one process of the world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LineAt {
    /// Which process, counted from 0.
    pub(crate) launch: usize,
    pub(crate) line: Line,
}

/// Which line, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Line {
    /// The n-th that the CLI sent.
    Sent(u64),
    /// The n-th that the CLI received.
    Received(u64),
}

impl fmt::Display for LineAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let process = self.launch + 1;
        match self.line {
            Line::Sent(line) => write!(f, "line {line} that process {process} sent"),
            Line::Received(line) => write!(f, "line {line} that process {process} got"),
        }
    }
}

/// Where the worker stops: it reads no line after it, and sends none.
#[derive(Default)]
pub(crate) struct Stop(Mutex<Option<Armed>>);

struct Armed {
    at: LineAt,
    is_over: bool,
    /// Called in the same poll, so that nothing of the worker comes between.
    then: Box<dyn Fn() + Send>,
}

impl fmt::Debug for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stop").finish_non_exhaustive()
    }
}

impl Stop {
    pub(crate) fn set(&self, at: LineAt, then: impl Fn() + Send + 'static) {
        let then = Box::new(then);
        *self.armed() = Some(Armed {
            at,
            is_over: false,
            then,
        });
    }

    pub(crate) fn clear(&self) {
        *self.armed() = None;
    }

    /// True when the worker does nothing any more: this was the line, or it came before.
    fn is_at(&self, at: LineAt) -> bool {
        let mut armed = self.armed();
        let Some(armed) = armed.as_mut() else {
            return false;
        };
        if armed.at == at && !armed.is_over {
            armed.is_over = true;
            (armed.then)();
        }
        armed.is_over
    }

    fn is_over(&self) -> bool {
        self.armed().as_ref().is_some_and(|it| it.is_over)
    }

    fn armed(&self) -> MutexGuard<'_, Option<Armed>> {
        self.0.lock().expect("no test panics while it stops")
    }
}

/// Counts the processes that another launcher starts.
#[derive(Debug)]
pub(crate) struct Counted {
    pub(crate) inner: Arc<dyn CliLauncher>,
    pub(crate) starts: Arc<AtomicUsize>,
    /// The processes of the machine among them.
    pub(crate) processes: Arc<Mutex<Vec<ProcessIdentity>>>,
    pub(crate) stop: Arc<Stop>,
}

#[async_trait]
impl CliLauncher for Counted {
    async fn launch(&self, spec: LaunchSpec) -> Result<Box<dyn CliProcess>, CliError> {
        let launch = self.starts.fetch_add(1, Ordering::SeqCst);
        let inner = self.inner.launch(spec).await?;
        let identity = inner.process_id().map(ProcessIdentity::of);
        if let Some(process) = identity.transpose().expect("/proc is read").flatten() {
            let mut processes = self.processes.lock().expect("nobody panics with it");
            processes.push(process);
        }
        Ok(Box::new(Watched {
            inner,
            launch,
            sent: 0,
            received: 0,
            stop: Arc::clone(&self.stop),
            is_stopped: AtomicBool::new(false),
        }))
    }

    async fn sweep_leftovers(&self) -> Result<SweepReport, CliError> {
        self.inner.sweep_leftovers().await
    }
}

#[derive(Debug)]
struct Watched {
    inner: Box<dyn CliProcess>,
    launch: usize,
    sent: u64,
    received: u64,
    stop: Arc<Stop>,
    is_stopped: AtomicBool,
}

impl Watched {
    /// A worker that stopped once never goes on, whatever is armed for the next one.
    fn is_stopped(&self) -> bool {
        if self.stop.is_over() {
            self.is_stopped.store(true, Ordering::SeqCst);
        }
        self.is_stopped.load(Ordering::SeqCst)
    }

    fn note(&self, line: Line) {
        let launch = self.launch;
        if self.stop.is_at(LineAt { launch, line }) {
            self.is_stopped.store(true, Ordering::SeqCst);
        }
    }
}

#[async_trait]
impl CliProcess for Watched {
    fn process_id(&self) -> Option<u32> {
        self.inner.process_id()
    }

    fn send(&mut self, line: String) -> Result<(), CliError> {
        if self.is_stopped() {
            return Ok(());
        }
        self.inner.send(line)?;
        self.received += 1;
        self.note(Line::Received(self.received));
        Ok(())
    }

    async fn receive(&mut self) -> Result<Option<Vec<u8>>, CliError> {
        if self.is_stopped() {
            return std::future::pending().await;
        }
        let line = self.inner.receive().await?;
        if line.is_some() {
            self.sent += 1;
            self.note(Line::Sent(self.sent));
        }
        if self.is_stopped() {
            return std::future::pending().await;
        }
        Ok(line)
    }

    fn close_input(&mut self) {
        if !self.is_stopped() {
            self.inner.close_input();
        }
    }

    async fn shutdown(&mut self, grace: Duration) -> CliExit {
        // A dead worker gives nobody time.
        let grace = if self.is_stopped() {
            Duration::ZERO
        } else {
            grace
        };
        self.inner.shutdown(grace).await
    }

    fn stderr_tail(&self) -> String {
        self.inner.stderr_tail()
    }
}

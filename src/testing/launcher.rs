//! Runs the [fake CLI](crate::testing::fake_cli) in the process, behind the port that the real one
//! has: no thread, no sleep, no file.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::fake_cli::{Effect, FakeCli, FakeCliConfig, Fault, MirrorLag, mcp_config_paths};
use super::fake_cli_program::read_files;
use crate::transport::{CliError, CliExit, CliLauncher, CliProcess, LaunchSpec};

/// Starts fake CLIs in the process. Created by [`FakeCliLauncher::new`].
#[derive(Debug)]
pub struct FakeCliLauncher {
    shared: Arc<Mutex<Shared>>,
    changed: Arc<Notify>,
}

/// What a test sees and does. Created by [`FakeCliLauncher::handle`]; clones mean the same.
#[derive(Debug, Clone)]
pub struct FakeCliHandle {
    shared: Arc<Mutex<Shared>>,
    changed: Arc<Notify>,
}

/// One launch, as the fake saw it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Launch {
    /// What the process was started with.
    pub spec: LaunchSpec,
    /// The lines that it received, in order.
    pub lines_received: Vec<String>,
    /// The lines that the host took, in order.
    pub lines_sent: Vec<String>,
    /// How it ended, once it has.
    pub exit: Option<CliExit>,
}

#[derive(Debug, Default)]
struct Shared {
    seed: u32,
    next_faults: Vec<Vec<Fault>>,
    mirror_lag: MirrorLag,
    readable_files: BTreeMap<String, String>,
    gates: BTreeSet<String>,
    runs: Vec<Run>,
    effects: Vec<Effect>,
}

#[derive(Debug)]
struct Run {
    cli: FakeCli,
    launch: Launch,
}

/// A running fake. Dropping it ends it by SIGTERM.
#[derive(Debug)]
struct FakeCliProcess {
    index: usize,
    start: Instant,
    shared: Arc<Mutex<Shared>>,
    changed: Arc<Notify>,
}

impl FakeCliLauncher {
    /// Makes a launcher whose processes do nothing wrong.
    #[must_use]
    pub fn new() -> Self {
        Self::with_seed(1)
    }

    /// Makes a launcher whose n-th process has the seed `first + n`.
    #[must_use]
    pub fn with_seed(first: u32) -> Self {
        let shared = Shared {
            seed: first,
            ..Shared::default()
        };
        Self {
            shared: Arc::new(Mutex::new(shared)),
            changed: Arc::new(Notify::new()),
        }
    }

    /// Returns the test's side.
    #[must_use]
    pub fn handle(&self) -> FakeCliHandle {
        FakeCliHandle {
            shared: Arc::clone(&self.shared),
            changed: Arc::clone(&self.changed),
        }
    }
}

impl Default for FakeCliLauncher {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl CliLauncher for FakeCliLauncher {
    async fn launch(&self, spec: LaunchSpec) -> Result<Box<dyn CliProcess>, CliError> {
        let mut arguments = spec.arguments.clone();
        let mut files = BTreeMap::new();
        for file in &spec.files {
            let path = format!("/fake/{}", file.name());
            arguments.push(file.argument(&path));
            files.insert(path, file.contents.clone());
        }
        let mut config = FakeCliConfig::new(arguments);
        config.environment.clone_from(&spec.environment);
        config.working_directory = spec.working_directory.to_string_lossy().into_owned();
        config.transcript = spec.transcript.as_ref().map(|it| {
            it.entries
                .iter()
                .map(|entry| entry.as_str().to_owned())
                .collect()
        });
        config.mcp_config_files = read_files(mcp_config_paths(&config.arguments));
        config.mcp_config_files.extend(files);
        let mut shared = lock(&self.shared);
        let index = shared.runs.len();
        config.seed = shared
            .seed
            .wrapping_add(u32::try_from(index).unwrap_or(u32::MAX));
        config.mirror_lag = shared.mirror_lag;
        config.readable_files.clone_from(&shared.readable_files);
        if !shared.next_faults.is_empty() {
            config.faults = shared.next_faults.remove(0);
        }
        let mut cli = FakeCli::new(config);
        for gate in &shared.gates {
            cli.open_gate(gate);
        }
        shared.runs.push(Run {
            cli,
            launch: Launch {
                spec,
                lines_received: Vec::new(),
                lines_sent: Vec::new(),
                exit: None,
            },
        });
        drop(shared);
        self.changed.notify_waiters();
        Ok(Box::new(FakeCliProcess {
            index,
            start: Instant::now(),
            shared: Arc::clone(&self.shared),
            changed: Arc::clone(&self.changed),
        }))
    }
}

impl FakeCliHandle {
    /// Opens a gate for the running and all later processes.
    pub fn open_gate(&self, gate: &str) {
        self.act(|shared| {
            shared.gates.insert(gate.to_owned());
            for run in &mut shared.runs {
                run.cli.open_gate(gate);
            }
            shared.collect_effects();
        });
    }

    /// Says what the next process that is not yet spoken for does wrong; call again for the one
    /// after it.
    pub fn fault_next_launch(&self, faults: Vec<Fault>) {
        self.act(|shared| shared.next_faults.push(faults));
    }

    /// Sets how far the mirror of later processes lags.
    pub fn set_mirror_lag(&self, lag: MirrorLag) {
        self.act(|shared| shared.mirror_lag = lag);
    }

    /// Sets what the `Read` tool of later processes returns for a path.
    pub fn set_readable_file(&self, path: &str, text: &str) {
        self.act(|shared| {
            shared
                .readable_files
                .insert(path.to_owned(), text.to_owned())
        });
    }

    /// Sends every running process SIGTERM; what it still says can be received.
    pub fn terminate_running(&self) {
        self.act(|shared| {
            for run in &mut shared.runs {
                run.cli.handle_terminate();
            }
        });
    }

    /// Ends every running process as SIGKILL does.
    pub fn kill_running(&self) {
        self.act(|shared| {
            for run in &mut shared.runs {
                run.kill();
            }
        });
    }

    /// Returns all launches so far.
    #[must_use]
    pub fn launches(&self) -> Vec<Launch> {
        lock(&self.shared)
            .runs
            .iter()
            .map(|it| it.launch.clone())
            .collect()
    }

    /// Returns how often the processes asked the model: as often as
    /// [`ScriptedMessagesApi::main_requests`](super::messages_api::ScriptedMessagesApi::main_requests)
    /// counts it for the real CLI, but for a script's `fail`, which is asked once here.
    #[must_use]
    pub fn model_requests(&self) -> u64 {
        lock(&self.shared)
            .runs
            .iter()
            .map(|it| it.cli.model_requests())
            .sum()
    }

    /// Returns the number of processes that have not ended.
    #[must_use]
    pub fn running(&self) -> usize {
        lock(&self.shared)
            .runs
            .iter()
            .filter(|it| it.launch.exit.is_none())
            .count()
    }

    /// Returns what the built-in tools of all processes changed.
    #[must_use]
    pub fn effects(&self) -> Vec<Effect> {
        lock(&self.shared).effects.clone()
    }

    /// Returns what the host did wrong in all processes.
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        let shared = lock(&self.shared);
        shared
            .runs
            .iter()
            .flat_map(|it| it.cli.violations().to_vec())
            .collect()
    }

    /// Waits until the launches so far satisfy a condition.
    ///
    /// # Cancel safety
    /// A dropped call may be repeated.
    pub async fn wait_until(&self, mut holds: impl FnMut(&[Launch]) -> bool) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Registered before the look, so that no change between the two is missed.
            changed.as_mut().enable();
            if holds(&self.launches()) {
                return;
            }
            changed.await;
        }
    }

    fn act<T>(&self, act: impl FnOnce(&mut Shared) -> T) {
        act(&mut lock(&self.shared));
        self.changed.notify_waiters();
    }
}

impl Shared {
    fn collect_effects(&mut self) {
        for run in &mut self.runs {
            while let Some(effect) = run.cli.poll_effect() {
                self.effects.push(effect);
            }
        }
    }
}

impl Run {
    /// Writes down that the process has ended, once it has.
    fn note_exit(&mut self) {
        if self.launch.exit.is_none() {
            self.launch.exit = if self.cli.was_killed() {
                Some(CliExit::Signalled(SIGKILL))
            } else {
                self.cli.poll_exit().map(CliExit::Exited)
            };
        }
    }

    fn kill(&mut self) {
        if self.launch.exit.is_none() {
            self.cli.kill();
            self.note_exit();
        }
    }

    /// SIGTERM, and SIGKILL for what does not heed it; nobody reads what it still says.
    fn terminate(&mut self) {
        if self.launch.exit.is_none() {
            self.cli.handle_terminate();
            while self.cli.poll_line().is_some() {}
            self.note_exit();
            self.kill();
        }
    }
}

const SIGKILL: i32 = 9;

/// What [`CliProcess::receive`] finds.
enum Next {
    Line(Vec<u8>),
    End,
    Wait { deadline: Option<Instant> },
}

impl FakeCliProcess {
    fn with_run<T>(&self, act: impl FnOnce(&mut Run) -> T) -> T {
        let mut shared = lock(&self.shared);
        let result = act(&mut shared.runs[self.index]);
        shared.runs[self.index].note_exit();
        shared.collect_effects();
        drop(shared);
        self.changed.notify_waiters();
        result
    }

    /// Notifies only when something happened: a waiting [`CliProcess::receive`] would wake itself.
    fn next(&self) -> Next {
        let mut shared = lock(&self.shared);
        let run = &mut shared.runs[self.index];
        let line = run.cli.poll_line();
        run.launch.lines_sent.extend(line.clone());
        let had_ended = run.launch.exit.is_some();
        run.note_exit();
        let has_ended = run.launch.exit.is_some();
        let timeout = run.cli.poll_timeout();
        drop(shared);
        if line.is_some() || has_ended != had_ended {
            self.changed.notify_waiters();
        }
        match line {
            Some(line) => Next::Line(line.into_bytes()),
            None if has_ended => Next::End,
            None => Next::Wait {
                deadline: timeout.and_then(|it| self.start.checked_add(it)),
            },
        }
    }
}

#[async_trait]
impl CliProcess for FakeCliProcess {
    fn process_id(&self) -> Option<u32> {
        None
    }

    fn send(&mut self, line: String) -> Result<(), CliError> {
        let elapsed = self.start.elapsed();
        self.with_run(|run| {
            if run.launch.exit.is_some() {
                return Err(CliError::InputClosed);
            }
            run.cli.handle_time(elapsed);
            run.cli.handle_line(&line);
            run.launch.lines_received.push(line);
            Ok(())
        })
    }

    async fn receive(&mut self) -> Result<Option<Vec<u8>>, CliError> {
        loop {
            let changed = Arc::clone(&self.changed);
            let changed = changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let deadline = match self.next() {
                Next::Line(line) => return Ok(Some(line)),
                Next::End => return Ok(None),
                Next::Wait { deadline } => deadline,
            };
            match deadline {
                Some(at) => {
                    if tokio::time::timeout_at(at, changed).await.is_err() {
                        let elapsed = self.start.elapsed();
                        self.with_run(|run| run.cli.handle_time(elapsed));
                    }
                }
                None => changed.await,
            }
        }
    }

    fn close_input(&mut self) {
        self.with_run(|run| run.cli.handle_input_closed());
    }

    async fn shutdown(&mut self, grace: Duration) -> CliExit {
        let deadline = Instant::now().checked_add(grace);
        let ended = async { while let Ok(Some(_)) = self.receive().await {} };
        match deadline {
            Some(at) => drop(tokio::time::timeout_at(at, ended).await),
            None => ended.await,
        }
        self.with_run(|run| {
            run.terminate();
            run.launch.exit.unwrap_or(CliExit::Unknown)
        })
    }

    fn stderr_tail(&self) -> String {
        lock(&self.shared).runs[self.index].cli.stderr().join("\n")
    }
}

impl Drop for FakeCliProcess {
    fn drop(&mut self) {
        self.with_run(Run::terminate);
    }
}

/// A test that panicked while it held the lock has failed already; others go on.
fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;

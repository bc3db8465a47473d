//! The real process (feature `subprocess`).
//!
//! Of the child, tokio gets only its pipes. The process itself stays a `std` child that the
//! reaper thread owns, because it must be ended and reaped even when its runtime is gone.
//! `tokio-process-stream` is therefore not used: its streams can only be made from a tokio child
//! and own it. Its version 0.4.1 also panics on a read error, polls stderr before stdout, and
//! reports the end only once every holder of the pipe closed it (measured).

use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use async_trait::async_trait;
use tokio::io::AsyncReadExt;
use tokio::process::{ChildStderr, ChildStdin, ChildStdout};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::config_dir::{self, RunDirectory};
use super::framing::{LineFramer, LineTooLong};
use super::pipes::{InputQueue, PIPE_BYTES_MAX, StderrTail, ended, read_now};
use super::reaper::Phase;
use super::spawner::{self, OwnedProcess, Spawned};
use super::sweep::sweep_leftovers;
use super::{CliError, CliExit, CliLauncher, CliProcess, LaunchSpec, SweepReport, program};

/// The default of [`SubprocessLauncher::with_line_bytes_max`]: a line repeats a whole answer or
/// holds images, and 3 MB answers were seen (spec/cli-protocol.md 1).
pub const LINE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The default of [`SubprocessLauncher::with_stop_grace`]: the CLI ends within a second after
/// SIGTERM, and its tools need some time too.
pub const STOP_GRACE: Duration = Duration::from_secs(5);

/// How long a process that was sent SIGKILL may take to be gone; longer is a hanging disk.
const KILL_WAIT: Duration = Duration::from_secs(5);

/// How long a shutdown waits for the directory to be removed; the reaper goes on afterwards.
const CLEAR_WAIT: Duration = Duration::from_secs(1);

const READ_BYTES: usize = 64 * 1024;

/// Starts the real CLI as a child process, on Linux.
///
/// Each process gets a directory of its own below the work root, a process group of its own, and
/// SIGTERM from the kernel when this process dies. Two threads, started at the first launch, serve
/// all processes and live as long as this process.
///
/// It needs a tokio runtime with I/O and time enabled.
#[derive(Debug, Clone)]
pub struct SubprocessLauncher {
    program: PathBuf,
    work_root: Option<PathBuf>,
    line_bytes_max: usize,
    stop_grace: Duration,
}

impl SubprocessLauncher {
    /// Makes a launcher for this program: a path, relative to the worker's directory, or a bare
    /// name that is looked up in the worker's `PATH` at each launch.
    #[must_use]
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            work_root: None,
            line_bytes_max: LINE_BYTES_MAX,
            stop_grace: STOP_GRACE,
        }
    }

    /// Sets where the directories of the processes go; it is made when it is missing.
    ///
    /// It holds transcripts and must not be shared between machines, because a directory of
    /// another boot counts as left behind. Default: `abide-<user id>` in the temporary directory,
    /// which must then belong to this user alone.
    #[must_use]
    pub fn with_work_root(mut self, path: impl Into<PathBuf>) -> Self {
        self.work_root = Some(path.into());
        self
    }

    /// Sets the longest line of output that is accepted, in bytes. Default: [`LINE_BYTES_MAX`].
    #[must_use]
    pub fn with_line_bytes_max(mut self, bytes: usize) -> Self {
        self.line_bytes_max = bytes;
        self
    }

    /// Sets how long a process may take to end after SIGTERM before it gets SIGKILL.
    /// Default: [`STOP_GRACE`].
    #[must_use]
    pub fn with_stop_grace(mut self, grace: Duration) -> Self {
        self.stop_grace = grace;
        self
    }

    /// Returns where the directories of the processes go.
    #[must_use]
    pub fn work_root(&self) -> PathBuf {
        let chosen = self.work_root.clone();
        chosen.unwrap_or_else(config_dir::default_work_root)
    }

    /// Does what may wait for a disk, and leaves only the start to do.
    fn prepare(&self, spec: LaunchSpec) -> Result<(Command, RunDirectory), CliError> {
        program::check(&spec)?;
        let program = program::resolve(&self.program)?;
        let working_directory = program::working_directory(&spec.working_directory)?;
        let directory = self.run_directory()?;
        if let Some(transcript) = &spec.transcript {
            directory
                .write_transcript(&working_directory, transcript)
                .map_err(io("write the transcript for the CLI"))?;
        }
        let mut command = Command::new(program);
        command.args(spec.arguments);
        for file in &spec.files {
            let path = directory
                .write_file(&file.name(), &file.contents)
                .map_err(io("write a file for the CLI"))?;
            // A work root that is no text cannot stand in an argument of ours.
            let path = path.to_str().ok_or(CliError::InvalidLaunch {
                reason: "the path of the work root is not UTF-8",
            })?;
            command.arg(file.argument(path));
        }
        command
            .env_clear()
            .envs(spec.environment)
            .env("CLAUDE_CONFIG_DIR", directory.config())
            .env("TMPDIR", directory.temporary())
            .env("CLAUDE_CODE_TMPDIR", directory.temporary())
            .current_dir(working_directory);
        Ok((command, directory))
    }

    fn run_directory(&self) -> Result<RunDirectory, CliError> {
        let root = std::path::absolute(self.work_root()).map_err(io("find the work root"))?;
        match self.work_root {
            Some(_) => config_dir::create_work_root(&root),
            None => config_dir::create_default_work_root(&root),
        }
        .map_err(io("make the work root"))?;
        RunDirectory::create(&root).map_err(io("make the directory of a CLI process"))
    }
}

#[async_trait]
impl CliLauncher for SubprocessLauncher {
    async fn launch(&self, spec: LaunchSpec) -> Result<Box<dyn CliProcess>, CliError> {
        let runtime = Handle::try_current()
            .map_err(std::io::Error::other)
            .map_err(io("find a tokio runtime"))?;
        let launcher = self.clone();
        let (command, directory) = runtime
            .spawn_blocking(move || launcher.prepare(spec))
            .await
            .map_err(std::io::Error::other)
            .map_err(io("prepare a CLI process"))??;
        let spawned = spawner::spawn(command, directory, self.stop_grace).await?;
        Ok(Box::new(Subprocess::new(spawned, self.line_bytes_max)?))
    }

    async fn sweep_leftovers(&self) -> Result<SweepReport, CliError> {
        let runtime = Handle::try_current()
            .map_err(std::io::Error::other)
            .map_err(io("find a tokio runtime"))?;
        let (root, grace) = (self.work_root(), self.stop_grace);
        runtime
            .spawn_blocking(move || sweep_leftovers(&root, grace))
            .await
            .map_err(std::io::Error::other)
            .and_then(|it| it)
            .map_err(io("sweep the work root"))
    }
}

/// One running process. The order of the fields is the order in which they are dropped: SIGTERM
/// first, then the pipes; its input stays open even then.
#[derive(Debug)]
struct Subprocess {
    process: OwnedProcess,
    input: InputQueue,
    output: Output,
    stderr: StderrTail,
    phases: watch::Receiver<Phase>,
    /// What the first shutdown returned.
    exit: Option<CliExit>,
}

#[derive(Debug)]
struct Output {
    framer: LineFramer,
    line_bytes_max: usize,
    source: Source,
}

/// Where the next bytes of the output come from.
#[derive(Debug)]
enum Source {
    Pipe(ChildStdout),
    /// The process has ended: only what it had written, and no more than a pipe can hold.
    Rest(ChildStdout, usize),
    Ended,
}

impl Subprocess {
    fn new(spawned: Spawned, line_bytes_max: usize) -> Result<Self, CliError> {
        let Spawned {
            process,
            stdin,
            stdout,
            stderr,
        } = spawned;
        let phases = process.0.phases();
        let held = stdin.as_fd().try_clone_to_owned();
        let held = held.map_err(io("hold the CLI's input open"))?;
        process.0.hold_input(held);
        let pipes = io("give the pipes to tokio");
        let (stdin, stdout, stderr) = (|| {
            Ok((
                ChildStdin::from_std(stdin)?,
                ChildStdout::from_std(stdout)?,
                ChildStderr::from_std(stderr)?,
            ))
        })()
        .map_err(pipes)?;
        Ok(Self {
            input: InputQueue::start(stdin, phases.clone()),
            output: Output {
                framer: LineFramer::new(line_bytes_max),
                line_bytes_max,
                source: Source::Pipe(stdout),
            },
            stderr: StderrTail::start(stderr, phases.clone()),
            phases,
            exit: None,
            process,
        })
    }

    /// Waits for the end of the process, and meanwhile throws its output away, because a CLI with
    /// a full pipe never ends.
    async fn wait_ended(&mut self, limit: Duration) -> Option<CliExit> {
        let limit = sleep(limit);
        tokio::pin!(limit);
        let mut sink = Vec::new();
        loop {
            tokio::select! {
                biased;
                () = ended(&mut self.phases) => return self.phases.borrow().exit(),
                () = &mut limit => return None,
                more = self.output.discard(&mut sink) => if !more {
                    self.output.source = Source::Ended;
                }
            }
        }
    }

    async fn end(&mut self, grace: Duration) -> CliExit {
        if let Some(exit) = self.wait_ended(grace).await {
            return exit;
        }
        self.process.0.terminate();
        let limit = self.process.0.stop_grace().saturating_add(KILL_WAIT);
        self.wait_ended(limit).await.unwrap_or(CliExit::Unknown)
    }
}

impl Output {
    /// Appends some bytes to the framer and returns true, or false at the end of the output.
    async fn read(&mut self, phases: &mut watch::Receiver<Phase>) -> std::io::Result<bool> {
        loop {
            match &mut self.source {
                Source::Pipe(stdout) => {
                    let space = self.framer.space();
                    space.reserve(READ_BYTES);
                    // Both are safe to drop: neither takes anything before it is ready.
                    tokio::select! {
                        biased;
                        () = ended(phases) => {}
                        read = stdout.read_buf(space) => return Ok(read? > 0),
                    }
                    if let Source::Pipe(it) = std::mem::replace(&mut self.source, Source::Ended) {
                        self.source = Source::Rest(it, PIPE_BYTES_MAX);
                    }
                }
                Source::Rest(stdout, left) => {
                    let mut chunk = [0; 4096];
                    let length = match *left {
                        0 => None,
                        _ => read_now(&*stdout, &mut chunk),
                    };
                    let length = length.unwrap_or(0);
                    *left = left.saturating_sub(length);
                    let read = chunk.get(..length).unwrap_or_default();
                    self.framer.space().extend_from_slice(read);
                    return Ok(length > 0);
                }
                Source::Ended => return Ok(false),
            }
        }
    }

    /// Throws some bytes away and returns true, or false at the end; never returns once ended.
    async fn discard(&mut self, sink: &mut Vec<u8>) -> bool {
        match &mut self.source {
            Source::Pipe(stdout) | Source::Rest(stdout, _) => {
                sink.clear();
                sink.reserve(READ_BYTES);
                matches!(stdout.read_buf(sink).await, Ok(1..))
            }
            Source::Ended => std::future::pending().await,
        }
    }
}

#[async_trait]
impl CliProcess for Subprocess {
    fn process_id(&self) -> Option<u32> {
        self.process.0.pid().as_raw_pid().try_into().ok()
    }

    fn send(&mut self, line: String) -> Result<(), CliError> {
        self.input.send(line)
    }

    async fn receive(&mut self) -> Result<Option<Vec<u8>>, CliError> {
        let output = &mut self.output;
        loop {
            if let Source::Ended = output.source {
                return Ok(None);
            }
            match output.framer.next_line() {
                Ok(Some(line)) => return Ok(Some(line)),
                Ok(None) => {}
                Err(LineTooLong) => {
                    output.source = Source::Ended;
                    let limit = output.line_bytes_max;
                    return Err(CliError::LineTooLong { limit });
                }
            }
            match output.read(&mut self.phases).await {
                Ok(true) => {}
                Ok(false) => {
                    output.source = Source::Ended;
                    return Ok(output.framer.finish());
                }
                Err(source) => {
                    output.source = Source::Ended;
                    return Err(io("read the CLI's output")(source));
                }
            }
        }
    }

    fn close_input(&mut self) {
        self.process.0.release_input();
        self.input.close();
    }

    async fn shutdown(&mut self, grace: Duration) -> CliExit {
        if let Some(exit) = self.exit {
            return exit;
        }
        let exit = self.end(grace).await;
        if exit != CliExit::Unknown {
            self.input.join().await;
            self.stderr.join().await;
            let cleared = self.phases.wait_for(|it| matches!(it, Phase::Cleared(_)));
            // Late or not: the reaper removes the directory, and nobody waits for more than that.
            let _ = timeout(CLEAR_WAIT, cleared).await;
        }
        self.output.source = Source::Ended;
        *self.exit.insert(exit)
    }

    fn stderr_tail(&self) -> String {
        self.stderr.text()
    }
}

/// Says what was being done when the operating system refused.
pub(super) fn io(operation: &'static str) -> impl FnOnce(std::io::Error) -> CliError {
    move |source| CliError::Io { operation, source }
}

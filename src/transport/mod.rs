//! The port to the CLI: how one process is started, spoken to and ended.
//!
//! Implementations: [`SubprocessLauncher`] (feature `subprocess`) and the in-process fake of
//! the module `testing`. The port moves lines; what they mean is layer 2's and layer 3's business.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;

use crate::ids::ClaudeSessionId;
use crate::record::TranscriptEntry;

#[cfg(all(feature = "subprocess", not(target_os = "linux")))]
compile_error!("the feature `subprocess` needs Linux: parent-death signals and /proc");

#[cfg(feature = "subprocess")]
mod config_dir;
#[cfg(feature = "subprocess")]
mod framing;
#[cfg(feature = "subprocess")]
mod pipes;
#[cfg(feature = "subprocess")]
mod program;
#[cfg(feature = "subprocess")]
mod project_key;
#[cfg(feature = "subprocess")]
mod reaper;
#[cfg(feature = "subprocess")]
mod spawner;
#[cfg(feature = "subprocess")]
mod subprocess;
#[cfg(feature = "subprocess")]
mod sweep;
#[cfg(all(test, feature = "subprocess"))]
mod tests;

#[cfg(feature = "subprocess")]
pub use subprocess::{LINE_BYTES_MAX, STOP_GRACE, SubprocessLauncher};
#[cfg(feature = "subprocess")]
pub use sweep::sweep_leftovers;

/// What one CLI process is started with, as data.
///
/// The launcher adds what belongs to the machine it runs on: the program, a config directory that
/// holds [`LaunchSpec::transcript`], the files of [`LaunchSpec::files`], and a temporary directory.
#[derive(Clone)]
#[non_exhaustive]
pub struct LaunchSpec {
    /// Arguments after the program name. Never a secret (G10).
    pub arguments: Vec<String>,
    /// The whole environment: nothing is inherited from the worker (G10).
    pub environment: BTreeMap<String, String>,
    /// Where the CLI and its tools work; it must exist.
    pub working_directory: PathBuf,
    /// The transcript to resume from; `None` starts a new Claude session.
    pub transcript: Option<ResumedTranscript>,
    /// Files that the CLI is to read; here is the place for secrets (G10).
    pub files: Vec<LaunchFile>,
}

impl LaunchSpec {
    /// Makes a specification without a transcript.
    #[must_use]
    pub fn new(
        arguments: Vec<String>,
        environment: BTreeMap<String, String>,
        working_directory: PathBuf,
    ) -> Self {
        Self {
            arguments,
            environment,
            working_directory,
            transcript: None,
            files: Vec::new(),
        }
    }
}

impl fmt::Debug for LaunchSpec {
    /// Shows the names of the variables only: values may be keys (G10).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            arguments,
            environment,
            working_directory,
            transcript,
            files,
        } = self;
        f.debug_struct("LaunchSpec")
            .field("arguments", arguments)
            .field("environment", &environment.keys())
            .field("working_directory", working_directory)
            .field("transcript", transcript)
            .field("files", files)
            .finish()
    }
}

/// A file that one CLI process is started with. The launcher writes it with mode 0600 into the
/// directory of the process, and adds `<option>=<path>` to the arguments.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaunchFile {
    /// The option that names the file, such as `--mcp-config`; each only once.
    pub option: &'static str,
    /// What is in it.
    pub contents: String,
}

impl LaunchFile {
    /// Describes a file for an option.
    #[must_use]
    pub const fn new(option: &'static str, contents: String) -> Self {
        Self { option, contents }
    }

    /// Returns the file's name: that of the option.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}.json", self.option.trim_start_matches('-'))
    }

    /// Returns the argument that names the file.
    #[must_use]
    pub fn argument(&self, path: &str) -> String {
        format!("{}={path}", self.option)
    }
}

impl fmt::Debug for LaunchFile {
    /// Shows the length only: it may hold keys (G10).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaunchFile")
            .field("option", &self.option)
            .field("bytes", &self.contents.len())
            .finish()
    }
}

/// The transcript a CLI process resumes from.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ResumedTranscript {
    /// The Claude session, named again by `--resume=` in the arguments.
    pub claude_session: ClaudeSessionId,
    /// All entries, oldest first.
    pub entries: Vec<TranscriptEntry>,
}

impl ResumedTranscript {
    /// Names a Claude session and its entries, oldest first.
    #[must_use]
    pub fn new(claude_session: ClaudeSessionId, entries: Vec<TranscriptEntry>) -> Self {
        Self {
            claude_session,
            entries,
        }
    }
}

/// Starts CLI processes.
#[async_trait]
pub trait CliLauncher: Send + Sync + fmt::Debug {
    /// Starts one process. When it returns `Ok`, the process runs and is ended, with its process
    /// group, at the latest when the returned value is dropped or this process dies (G14).
    ///
    /// # Errors
    /// [`CliError::NotFound`], [`CliError::NotExecutable`], [`CliError::WorkingDirectory`],
    /// [`CliError::InvalidLaunch`], [`CliError::Io`]; nothing runs then.
    ///
    /// # Cancel safety
    /// A dropped call leaves no process behind.
    async fn launch(&self, spec: LaunchSpec) -> Result<Box<dyn CliProcess>, CliError>;

    /// Ends and removes what earlier processes of this host, killed before they could, left
    /// behind (G14). Engines call it once at their start; launches need not wait for it.
    /// Launchers that leave nothing behind keep the default, which does nothing.
    ///
    /// # Errors
    /// [`CliError::Io`] when it cannot be seen what was left behind.
    ///
    /// # Cancel safety
    /// A dropped call may still finish its work; it may be repeated.
    async fn sweep_leftovers(&self) -> Result<SweepReport, CliError> {
        Ok(SweepReport::default())
    }
}

/// One running CLI process. Created by [`CliLauncher::launch`].
///
/// Dropping it ends the process: SIGTERM first, because only then does the CLI end its Bash tools,
/// SIGKILL after a grace time (spec/cli-protocol.md 0.5).
#[async_trait]
pub trait CliProcess: Send + fmt::Debug {
    /// Returns the process id, where there is one.
    fn process_id(&self) -> Option<u32>;

    /// Queues one line for the CLI's input, without its newline. Never waits for the CLI to read;
    /// that it returns `Ok` does not say that the CLI will.
    ///
    /// # Errors
    /// [`CliError::LineBreak`] when the text is more than one line, [`CliError::InputClosed`]
    /// after [`CliProcess::close_input`] or when the CLI closed its end,
    /// [`CliError::InputQueueFull`] when the CLI stopped reading.
    fn send(&mut self, line: String) -> Result<(), CliError>;

    /// Returns the next line of the CLI's output without its newline, or `None` at its end. A last
    /// line without a newline is a line too: the caller finds that it is cut. The output ends at
    /// the latest with the process, even if a descendant still holds the pipe.
    ///
    /// # Errors
    /// [`CliError::LineTooLong`], [`CliError::Io`]; after an error the output is at its end.
    ///
    /// # Cancel safety
    /// A dropped call loses nothing: the next one returns the same line.
    async fn receive(&mut self) -> Result<Option<Vec<u8>>, CliError>;

    /// Closes the CLI's input once all queued lines are written. The CLI then ends after its turn.
    fn close_input(&mut self);

    /// Waits until the process has ended by itself, up to `grace`; then ends it: SIGTERM, and
    /// SIGKILL after the launcher's grace time. Zero ends it at once. The input stays as it is, so
    /// that the CLI does not go on with its turn because of this. Output that was not received is
    /// dropped. When it has returned, the process is gone, [`CliProcess::stderr_tail`] is complete,
    /// and its directory is removed. Calling it again returns the same.
    ///
    /// # Cancel safety
    /// A dropped call may be repeated.
    async fn shutdown(&mut self, grace: Duration) -> CliExit;

    /// Returns the last bytes that the CLI wrote to stderr, as text, at most 64 KiB; complete after
    /// [`CliProcess::shutdown`]. It may hold customers' words.
    fn stderr_tail(&self) -> String;
}

/// How a CLI process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CliExit {
    /// It exited by itself with this status.
    Exited(i32),
    /// This signal ended it.
    Signalled(i32),
    /// It could not be seen to end; it was sent SIGKILL.
    Unknown,
}

/// What a sweep found and did. Created by [`CliLauncher::sweep_leftovers`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SweepReport {
    /// Directories of dead workers that were removed.
    pub directories_removed: u64,
    /// CLI processes that had outlived their worker and were ended.
    pub processes_ended: u64,
    /// Directories that could not be dealt with; the next sweep tries again.
    pub failures: u64,
}

/// What can go wrong with a CLI process. What the CLI itself reports is data, not this.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CliError {
    /// There is no such program.
    #[error("no Claude Code CLI at {program}")]
    NotFound {
        /// The path or name that was looked for.
        program: String,
    },
    /// The program is a directory or may not be executed.
    #[error("the Claude Code CLI at {program} cannot be executed: {reason}")]
    NotExecutable {
        /// The path that was tried.
        program: String,
        /// Why, in a few words.
        reason: &'static str,
    },
    /// The working directory does not exist or cannot be entered.
    #[error("the working directory {path} cannot be used")]
    WorkingDirectory {
        /// The directory of the [`LaunchSpec`].
        path: String,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The specification holds something that no process can be started with.
    #[error("the CLI cannot be started: {reason}")]
    InvalidLaunch {
        /// Why, in a few words, without the values.
        reason: &'static str,
    },
    /// A text for the CLI's input is more than one line.
    #[error("a line for the CLI holds a line break")]
    LineBreak,
    /// One line of output is longer than the limit.
    #[error("the CLI wrote a line of more than {limit} bytes")]
    LineTooLong {
        /// The limit in bytes.
        limit: usize,
    },
    /// The CLI no longer reads its input.
    #[error("the CLI's input is closed")]
    InputClosed,
    /// The CLI does not read its input fast enough.
    #[error("more than {limit} bytes wait for the CLI to read them")]
    InputQueueFull {
        /// The limit in bytes.
        limit: usize,
    },
    /// The operating system refused something.
    #[error("failed to {operation}")]
    Io {
        /// What was being done.
        operation: &'static str,
        /// What the operating system said.
        source: std::io::Error,
    },
}

impl CliError {
    /// True when another try, later or on another machine, may succeed.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::NotFound { .. }
            | Self::NotExecutable { .. }
            | Self::WorkingDirectory { .. }
            | Self::InvalidLaunch { .. }
            | Self::LineBreak
            | Self::LineTooLong { .. } => false,
            Self::InputClosed | Self::InputQueueFull { .. } | Self::Io { .. } => true,
        }
    }
}

//! Where one experiment takes place: a CLI, its model, and directories of its own.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use uuid::Uuid;

use super::Broken;
use super::host::{Host, Policy, SERVER};
use crate::ids::ClaudeSessionId;
use crate::protocol::{Launch, mcp_config};
use crate::record::TranscriptEntry;
use crate::testing::fake_cli::{Fault, MirrorLag};
use crate::testing::launcher::{FakeCliHandle, FakeCliLauncher};
use crate::testing::messages_api::{
    Block, HoldPoint, ModelScript, Reply, Rule, ScriptedMessagesApi, StreamFault,
};
use crate::testing::real_cli::isolated_environment;
use crate::transport::{
    CliLauncher, LaunchFile, LaunchSpec, ResumedTranscript, SubprocessLauncher,
};

/// Makes the CLI go on with an interrupted turn (spec/cli-protocol.md 17d, 17f).
pub(super) const RESUME_INTERRUPTED_TURN: &str = "CLAUDE_CODE_RESUME_INTERRUPTED_TURN";

const MODEL: &str = "claude-sonnet-5";

/// The CLI that is tried.
#[derive(Debug, Clone)]
pub(super) enum Candidate {
    /// A program, with a scripted Messages API.
    Program(PathBuf),
    /// The fake one in this process.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "the tests of the self-test try it on fakes")
    )]
    Fake {
        /// What each of its processes does wrong.
        faults: Vec<Fault>,
        mirror_lag: MirrorLag,
    },
}

#[derive(Debug)]
enum Model {
    Api(ScriptedMessagesApi),
    Fake(FakeCliHandle),
}

/// Where one experiment takes place.
#[derive(Debug)]
pub(super) struct Stage {
    launcher: Arc<dyn CliLauncher>,
    model: Model,
    directory: Directory,
    environment: BTreeMap<String, String>,
}

/// A directory that is removed with its value.
#[derive(Debug)]
struct Directory(PathBuf);

impl Directory {
    fn create() -> std::io::Result<Self> {
        let path = std::env::temp_dir().join(format!("abide-self-test-{}", Uuid::new_v4()));
        for name in ["home", "work", "runs"] {
            std::fs::create_dir_all(path.join(name))?;
        }
        Ok(Self(path))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // What cannot be removed lies in the system's temporary directory.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What an experiment starts a process with.
pub(super) struct Start {
    pub(super) policy: Policy,
    pub(super) tools: &'static [&'static str],
    pub(super) hook_timeout_seconds: Option<u32>,
    pub(super) max_thinking_tokens: Option<u32>,
}

impl Start {
    /// Starts with two tools of the CLI.
    pub(super) fn with(policy: Policy) -> Self {
        Self {
            policy,
            tools: &["Bash", "Read"],
            hook_timeout_seconds: None,
            max_thinking_tokens: None,
        }
    }
}

impl Stage {
    pub(super) async fn set(candidate: &Candidate) -> Result<Self, Broken> {
        Self::set_with(candidate, None).await
    }

    /// Sets a stage where the stream of the first reply, to [`BROKEN`], breaks once
    /// `complete_blocks` of its blocks are complete and [`Stage::break_stream`] says so.
    pub(super) async fn set_broken(
        candidate: &Candidate,
        complete_blocks: usize,
    ) -> Result<Self, Broken> {
        Self::set_with(candidate, Some(complete_blocks)).await
    }

    async fn set_with(candidate: &Candidate, breaks_after: Option<usize>) -> Result<Self, Broken> {
        let directory = Directory::create().map_err(|it| Broken::new(it.to_string()))?;
        match candidate {
            Candidate::Program(program) => {
                let mut script = ModelScript::commands();
                if let Some(blocks) = breaks_after {
                    script = script.rule(Rule::prompt(BROKEN, broken_reply(blocks)).times(1));
                }
                let api = ScriptedMessagesApi::start(script)
                    .await
                    .map_err(|it| Broken::new(it.to_string()))?;
                let mut environment =
                    isolated_environment(&api.base_url(), &directory.0.join("home"));
                for name in SWITCHES {
                    environment.insert(name.to_owned(), "1".to_owned());
                }
                let launcher =
                    SubprocessLauncher::new(program).with_work_root(directory.0.join("runs"));
                Ok(Self {
                    launcher: Arc::new(launcher),
                    model: Model::Api(api),
                    directory,
                    environment,
                })
            }
            Candidate::Fake { faults, mirror_lag } => {
                let launcher = FakeCliLauncher::new();
                let handle = launcher.handle();
                handle.set_mirror_lag(*mirror_lag);
                let breaks = breaks_after.map(|after_blocks| Fault::BreakStream {
                    at_model_call: 1,
                    after_blocks,
                });
                handle.fault_next_launch(breaks.into_iter().chain(faults.clone()).collect());
                // The further processes of an experiment.
                for _ in 0..FURTHER_LAUNCHES {
                    handle.fault_next_launch(faults.clone());
                }
                Ok(Self {
                    model: Model::Fake(handle),
                    launcher: Arc::new(launcher),
                    directory,
                    environment: BTreeMap::new(),
                })
            }
        }
    }

    /// Breaks the stream now, where it does not break by itself.
    pub(super) fn break_stream(&self) {
        match &self.model {
            Model::Api(api) => api.gate(BREAK).open(),
            Model::Fake(_) => {}
        }
    }

    /// Starts a process without a transcript.
    pub(super) async fn start(&self, start: Start) -> Result<Host, Broken> {
        self.launch(start, None, false).await
    }

    /// Starts a process that resumes from a transcript; `goes_on` without being told to.
    pub(super) async fn resume(
        &self,
        policy: Policy,
        session: &str,
        entries: Vec<TranscriptEntry>,
        goes_on: bool,
    ) -> Result<Host, Broken> {
        let session = ClaudeSessionId::new(session).map_err(|it| Broken::new(it.to_string()))?;
        let transcript = ResumedTranscript::new(session, entries);
        self.launch(Start::with(policy), Some(transcript), goes_on)
            .await
    }

    async fn launch(
        &self,
        start: Start,
        transcript: Option<ResumedTranscript>,
        goes_on: bool,
    ) -> Result<Host, Broken> {
        let arguments = Launch {
            model: Some(MODEL.to_owned()),
            tools: start.tools.iter().map(|it| (*it).to_owned()).collect(),
            max_thinking_tokens: start.max_thinking_tokens,
            resume: transcript.as_ref().map(|it| it.claude_session.clone()),
            ..Launch::default()
        }
        .arguments();
        let mut environment = self.environment.clone();
        if goes_on {
            environment.insert(RESUME_INTERRUPTED_TURN.to_owned(), "1".to_owned());
        }
        let mut spec = LaunchSpec::new(arguments, environment, self.work());
        spec.transcript = transcript;
        let servers = mcp_config(SERVER, &BTreeMap::new());
        spec.files.push(LaunchFile::new("--mcp-config", servers));
        let process = self.launcher.launch(spec).await?;
        match start.hook_timeout_seconds {
            None => Host::new(process, start.policy),
            Some(seconds) => Host::with_hook_timeout(process, start.policy, seconds),
        }
    }

    /// Where the CLI works.
    pub(super) fn work(&self) -> PathBuf {
        self.directory.0.join("work")
    }

    /// How often the model was asked.
    pub(super) fn requests(&self) -> usize {
        match &self.model {
            Model::Api(api) => api.main_requests().len(),
            Model::Fake(handle) => usize::try_from(handle.model_requests()).unwrap_or(usize::MAX),
        }
    }

    /// Sends SIGTERM.
    pub(super) fn terminate(&self, host: &Host) -> Result<(), Broken> {
        self.signal(host, Signal::TERM)
    }

    /// Sends SIGKILL.
    pub(super) fn kill(&self, host: &Host) -> Result<(), Broken> {
        self.signal(host, Signal::KILL)
    }

    fn signal(&self, host: &Host, signal: Signal) -> Result<(), Broken> {
        match &self.model {
            Model::Fake(handle) if signal == Signal::TERM => handle.terminate_running(),
            Model::Fake(handle) => handle.kill_running(),
            Model::Api(_) => {
                let id = host.process.process_id();
                let pid = id.and_then(|it| Pid::from_raw(i32::try_from(it).ok()?));
                let Some(pid) = pid else {
                    return Err(Broken::new("the process has no id"));
                };
                kill_process(pid, signal).map_err(|it| Broken::new(it.to_string()))?;
            }
        }
        Ok(())
    }

    /// Ends the experiment; says which requests no script served.
    pub(super) async fn leave(self) -> Result<(), Broken> {
        match self.model {
            Model::Api(api) => {
                let unserved = api.unserved();
                api.shutdown().await;
                match unserved.first() {
                    None => Ok(()),
                    Some(it) => Err(Broken::new(format!(
                        "a request of the CLI was not served: {}",
                        it.reason
                    ))),
                }
            }
            Model::Fake(handle) => match handle.violations().first() {
                None => Ok(()),
                Some(it) => Err(Broken::new(format!("the fake CLI objects: {it}"))),
            },
        }
    }
}

/// The prompt whose first reply may break: the script's own reply to it is whole.
pub(super) const BROKEN: &str = r#"script: call refund {"n":1}"#;

/// The gate at which a stream waits before it breaks: a client that did not read the head of the
/// answer yet takes a cut connection for one that was never made.
const BREAK: &str = "break";

/// More than any experiment starts besides its first process.
const FURTHER_LAUNCHES: usize = 5;

fn broken_reply(complete_blocks: usize) -> Reply {
    let call = |n: usize| Block::tool_use("mcp__tools__refund", json!({"n": n}));
    Reply::blocks((1..=complete_blocks + 1).map(call))
        .hold(HoldPoint::InBlock(complete_blocks), BREAK)
        .fault(StreamFault::CutInBlock(complete_blocks))
}

/// What the live path sets in every process (design.md 4).
const SWITCHES: [&str; 2] = [
    "CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK",
    "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS",
];

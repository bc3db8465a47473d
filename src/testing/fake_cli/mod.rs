//! The fake CLI: the mirror machine of the host's side, written from recordings of the real one.
//!
//! [`FakeCli`] is a machine without I/O, clock and randomness: a test steps it by hand, the
//! [launcher](crate::testing::launcher) runs it in the process, and the program `fake-claude`
//! (feature `testing`) puts it behind stdin and stdout. It asserts on all it receives
//! ([`FakeCli::violations`]) and does wrong what a [`Fault`] orders.
//!
//! The model is the [scripted one](crate::testing::script). Built-in tools only leave an
//! [`Effect`]. A Bash command that starts with `sleep` runs until the gate `sleep` is opened, one
//! with the word `gate:<name>` until that gate is.
//!
//! Not modelled: HTTP MCP servers, compaction, images, background sub-agents, structured output.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use serde_json::json;

mod agents;
mod arguments;
mod broken;
mod builtin;
mod endings;
mod faults;
mod frames;
mod hooks;
mod inbound;
mod model;
mod outbox;
mod permission;
mod resume;
mod servers;
mod tools;
mod transcript;
mod turn;

#[cfg(test)]
mod tests;

pub use arguments::mcp_config_paths;
pub use faults::{Fault, MirrorLag};

use arguments::Arguments;
use frames::{Ids, Usage};
use inbound::Open;
use resume::Resume;
use servers::Server;
use transcript::Transcript;
use turn::{Prompt, Turn};

/// What one fake process is started with.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct FakeCliConfig {
    /// The arguments after the program name.
    pub arguments: Vec<String>,
    /// The environment.
    pub environment: BTreeMap<String, String>,
    /// The lines of the transcript that `--resume` finds; `None` when there is none.
    pub transcript: Option<Vec<String>>,
    /// The working directory.
    pub working_directory: String,
    /// The contents of the files that `--mcp-config` names, by path.
    pub mcp_config_files: BTreeMap<String, String>,
    /// What `Read` returns, by path; another file holds `contents of <path>`.
    pub readable_files: BTreeMap<String, String>,
    /// Goes into every id, so that two processes never share one.
    pub seed: u32,
    /// What to do wrong.
    pub faults: Vec<Fault>,
    /// How far the mirror lags.
    pub mirror_lag: MirrorLag,
}

impl FakeCliConfig {
    /// Makes a configuration without transcript, environment and faults.
    #[must_use]
    pub fn new(arguments: Vec<String>) -> Self {
        Self {
            arguments,
            working_directory: "/work".to_owned(),
            ..Self::default()
        }
    }
}

/// A change of the world that a built-in tool made.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Effect {
    /// `Bash`, `Write` or `Edit`.
    pub tool: String,
    /// The call that did it.
    pub tool_use_id: String,
    /// The command, or the path of the file.
    pub subject: String,
}

/// One fake CLI process. See the [module](self).
#[derive(Debug)]
pub struct FakeCli {
    config: FakeCliConfig,
    arguments: Arguments,
    ids: Ids,
    now: Duration,
    transcript: Transcript,
    hooks: Hooks,
    servers: Vec<Server>,
    open: BTreeMap<String, Open>,
    cancelled: BTreeSet<String>,
    turn: Option<Turn>,
    queue: VecDeque<Prompt>,
    resume: Option<Resume>,
    gates: BTreeSet<String>,
    is_initialized: bool,
    input_closed: bool,
    ends_with_error: bool,
    exit: Option<i32>,
    model_calls: u64,
    /// As `model_calls`, with retries and sub-agents' calls.
    model_requests: u64,
    results: u64,
    rpc_ids: u64,
    total: Usage,
    since_last_result: Usage,
    lines: VecDeque<String>,
    /// Lines made, which is what mirror lag counts.
    made: u64,
    sent: u64,
    received: u64,
    is_stalled: bool,
    was_killed: bool,
    effects: VecDeque<Effect>,
    stderr: Vec<String>,
    violations: Vec<String>,
}

/// The callbacks that `initialize` registered.
#[derive(Debug, Default)]
struct Hooks {
    pre_tool_use: Vec<Callback>,
    post_tool_batch: Vec<Callback>,
}

#[derive(Debug, Clone)]
struct Callback {
    id: String,
    matcher: Option<String>,
    timeout: Option<Duration>,
}

impl FakeCli {
    /// Starts the process. Wrong arguments end it at once, as the real one's do.
    #[must_use]
    pub fn new(config: FakeCliConfig) -> Self {
        let mut ids = Ids::new(config.seed);
        let read = Arguments::read(&config.arguments, &config.mcp_config_files);
        let (arguments, refusal) = match read {
            Ok(arguments) => (arguments, None),
            Err(line) => (Arguments::default(), Some(line)),
        };
        let session = arguments
            .resume
            .clone()
            .or_else(|| arguments.session_id.clone())
            .unwrap_or_else(|| ids.uuid());
        let directory = config
            .environment
            .get("CLAUDE_CONFIG_DIR")
            .map_or("/fake/config", String::as_str);
        let key = transcript::project_key(&config.working_directory);
        let path = format!("{directory}/projects/{key}/{session}.jsonl");
        let transcript = Transcript::new(session, path, config.working_directory.clone());
        let mut cli = Self {
            ids,
            now: Duration::ZERO,
            transcript,
            hooks: Hooks::default(),
            servers: Vec::new(),
            open: BTreeMap::new(),
            cancelled: BTreeSet::new(),
            turn: None,
            queue: VecDeque::new(),
            resume: None,
            gates: BTreeSet::new(),
            is_initialized: false,
            input_closed: false,
            ends_with_error: false,
            exit: None,
            model_calls: 0,
            model_requests: 0,
            results: 0,
            rpc_ids: 1,
            total: Usage::default(),
            since_last_result: Usage::default(),
            lines: VecDeque::new(),
            made: 0,
            sent: 0,
            received: 0,
            is_stalled: false,
            was_killed: false,
            effects: VecDeque::new(),
            stderr: Vec::new(),
            violations: arguments.violations.clone(),
            arguments,
            config,
        };
        match refusal {
            Some(line) => cli.refuse(line),
            None => cli.prepare(),
        }
        cli
    }

    /// Takes one line of the host, without its newline.
    pub fn handle_line(&mut self, line: &str) {
        if self.exit.is_some() || self.was_killed {
            return;
        }
        if self.input_closed {
            self.violation("a line came after the input was closed".to_owned());
        }
        self.received += 1;
        self.receive(line);
        self.advance();
        let dies = |it: &Fault| matches!(it, Fault::DieAfterReceived(at) if *at == self.received);
        if self.config.faults.iter().any(dies) {
            self.kill();
        }
    }

    /// Takes the end of the host's input.
    pub fn handle_input_closed(&mut self) {
        if self.exit.is_some() || self.was_killed || self.input_closed {
            return;
        }
        self.input_closed = true;
        if self.turn.is_some() || self.resume.is_some() {
            self.violation("the input was closed before the result".to_owned());
        }
        self.refuse_open_requests();
        self.advance();
    }

    /// Takes SIGTERM: the mirror is flushed, there is no result, the exit code is 143
    /// (spec/cli-protocol.md 17i).
    pub fn handle_terminate(&mut self) {
        if self.exit.is_some() || self.was_killed {
            return;
        }
        self.turn = None;
        self.transcript.last_prompt();
        self.write_cost_state();
        self.flush_mirror(true);
        self.end(143);
    }

    /// Takes the time since the start; hooks whose time is over are given up.
    pub fn handle_time(&mut self, now: Duration) {
        self.now = self.now.max(now);
        if self.exit.is_none() && !self.was_killed && self.give_up_hooks() {
            self.advance();
        }
    }

    /// Opens a gate that a script or a command waits at, now or later.
    pub fn open_gate(&mut self, gate: &str) {
        self.gates.insert(gate.to_owned());
        self.advance();
    }

    /// Ends the process as SIGKILL does: nothing more comes out, nothing is flushed.
    pub fn kill(&mut self) {
        self.was_killed = true;
        self.lines.clear();
    }

    /// Returns the next line for the host, without its newline.
    #[must_use]
    pub fn poll_line(&mut self) -> Option<String> {
        if self.is_stalled {
            return None;
        }
        let line = self.lines.pop_front()?;
        self.sent += 1;
        for fault in self.config.faults.clone() {
            match fault {
                Fault::DieAfterSent(at) if at == self.sent => self.kill(),
                Fault::StallAfterSent(at) if at == self.sent => self.is_stalled = true,
                Fault::ExitAfterSent { lines, code } if lines == self.sent => {
                    self.lines.clear();
                    self.exit = Some(code);
                }
                _ => {}
            }
        }
        Some(line)
    }

    /// Returns the next change that a built-in tool made.
    #[must_use]
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Returns the exit code once the process has ended by itself and all lines were taken.
    #[must_use]
    pub fn poll_exit(&self) -> Option<i32> {
        self.exit
            .filter(|_| self.lines.is_empty() || self.is_stalled)
    }

    /// Returns the time at which [`FakeCli::handle_time`] has something to do.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        let deadline = |it: &Open| match it {
            Open::Hook { deadline, .. } => *deadline,
            Open::Handshake { .. }
            | Open::Ignored
            | Open::BatchHook
            | Open::Ask { .. }
            | Open::Call { .. } => None,
        };
        self.open.values().filter_map(deadline).min()
    }

    /// Returns what the host did that the protocol forbids.
    #[must_use]
    pub fn violations(&self) -> &[String] {
        &self.violations
    }

    /// Returns the lines written to stderr.
    #[must_use]
    pub fn stderr(&self) -> &[String] {
        &self.stderr
    }

    /// True after [`FakeCli::kill`] or a fault that does the same.
    #[must_use]
    pub fn was_killed(&self) -> bool {
        self.was_killed
    }

    /// Returns the number of requests to the model: those of sub-agents, retries and failures
    /// among them.
    #[must_use]
    pub fn model_requests(&self) -> u64 {
        self.model_requests
    }

    /// Returns the number of lines that the host took.
    #[must_use]
    pub fn lines_sent(&self) -> u64 {
        self.sent
    }

    /// Returns the Claude session id.
    #[must_use]
    pub fn claude_session(&self) -> &str {
        &self.transcript.session
    }

    /// Runs what can run until the process waits for something, and mirrors then.
    fn advance(&mut self) {
        while self.exit.is_none() && !self.was_killed && self.step() {}
        if self.exit.is_none() && transcript::is_flushed_when_quiet(self.config.mirror_lag) {
            self.flush_mirror(false);
        }
    }

    /// Does one thing; false when there is nothing to do without the host.
    fn step(&mut self) -> bool {
        if !self.is_initialized || !self.is_connected() {
            // Without input nobody will finish the handshake.
            if self.input_closed && !self.is_initialized {
                self.end(0);
            }
            return false;
        }
        match self.turn.take() {
            Some(mut turn) => match self.step_turn(&mut turn) {
                turn::Progress::More => {
                    self.turn = Some(turn);
                    true
                }
                turn::Progress::Waits => {
                    self.turn = Some(turn);
                    false
                }
                turn::Progress::Ended(ending) => {
                    self.finish(turn, &ending);
                    true
                }
                turn::Progress::Aborted => {
                    self.abort(turn);
                    true
                }
            },
            None => self.next_turn(),
        }
    }

    fn next_turn(&mut self) -> bool {
        if let Some(resume) = self.resume.take() {
            self.begin_resume(resume);
            return true;
        }
        if !self.queue.is_empty() {
            self.begin_prompts();
            return true;
        }
        if self.input_closed {
            if self.arguments.resume.is_some() {
                self.transcript
                    .bookkeeping(json!({"type": "mode", "mode": "normal"}));
            }
            self.write_cost_state();
            self.flush_mirror(true);
            self.end(i32::from(self.ends_with_error));
        }
        false
    }

    fn end(&mut self, code: i32) {
        self.exit = Some(code);
        self.turn = None;
        self.open.clear();
    }

    fn refuse(&mut self, line: String) {
        self.stderr.push(line);
        self.end(1);
    }

    fn violation(&mut self, text: String) {
        self.violations.push(text);
    }

    fn has_fault(&self, fault: &Fault) -> bool {
        self.config.faults.contains(fault)
    }

    fn is_set(&self, variable: &str) -> bool {
        self.config
            .environment
            .get(variable)
            .is_some_and(|it| it == "1")
    }
}

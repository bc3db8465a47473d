//! A host that speaks to a CLI line by line: the fake one and the real ones over the same port.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use abide::ids::ClaudeSessionId;
use abide::record::TranscriptEntry;
use abide::testing::fake_cli::Fault;
use abide::testing::launcher::{FakeCliHandle, FakeCliLauncher};
use abide::testing::messages_api::{ModelScript, ScriptedMessagesApi};
use abide::testing::real_cli::isolated_environment;
use abide::transport::{
    CliExit, CliLauncher, CliProcess, LaunchFile, LaunchSpec, ResumedTranscript, SubprocessLauncher,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::real_cli;

/// Turns a hang into a failure; nothing waits for it to pass.
const PATIENCE: Duration = Duration::from_secs(90);

pub(super) const INTERRUPTED_TURN: &str = "CLAUDE_CODE_RESUME_INTERRUPTED_TURN";

/// A CLI of one kind, and its model.
pub(super) struct Cli {
    launcher: Arc<dyn CliLauncher>,
    environment: BTreeMap<String, String>,
    model: Model,
    launches: AtomicUsize,
    directory: TempDir,
}

enum Model {
    Fake(FakeCliHandle),
    Real(ScriptedMessagesApi),
}

impl Cli {
    pub(super) fn fake() -> Self {
        let launcher = FakeCliLauncher::new();
        let handle = launcher.handle();
        Self {
            launcher: Arc::new(launcher),
            environment: BTreeMap::new(),
            model: Model::Fake(handle),
            launches: AtomicUsize::new(1),
            directory: TempDir::new().expect("a directory"),
        }
    }

    /// `None`, said aloud, where there is no such CLI and none is required.
    pub(super) async fn real(version: &str, script: ModelScript) -> Option<Self> {
        let program = real_cli(version)?.program().to_owned();
        let api = ScriptedMessagesApi::start(script)
            .await
            .expect("the API starts");
        let directory = TempDir::new().expect("a directory");
        for name in ["home", "runs"] {
            std::fs::create_dir(directory.path().join(name)).expect("a directory");
        }
        let environment = isolated_environment(&api.base_url(), &directory.path().join("home"));
        let launcher =
            SubprocessLauncher::new(program).with_work_root(directory.path().join("runs"));
        Some(Self {
            launcher: Arc::new(launcher),
            environment,
            model: Model::Real(api),
            launches: AtomicUsize::new(1),
            directory,
        })
    }

    /// Lets the fake do what the script of the real CLI's model does.
    pub(super) fn fault_next_launch(&self, fault: Fault) {
        match &self.model {
            Model::Fake(handle) => handle.fault_next_launch(vec![fault]),
            Model::Real(_) => {}
        }
    }

    pub(super) fn open_gate(&self, name: &str) {
        match &self.model {
            Model::Fake(handle) => handle.open_gate(name),
            Model::Real(api) => api.gate(name).open(),
        }
    }

    /// How often the model was asked in the main conversation and by sub-agents.
    pub(super) fn model_requests(&self) -> u64 {
        match &self.model {
            Model::Fake(handle) => handle.model_requests(),
            Model::Real(api) => api.main_requests().len() as u64,
        }
    }

    /// How often the model's last request holds this text; `None` on the fake, which makes none.
    pub(super) fn told_last(&self, text: &str) -> Option<usize> {
        match &self.model {
            Model::Fake(_) => None,
            Model::Real(api) => {
                let requests = api.main_requests();
                let last = requests.last().expect("a request");
                Some(last.body.to_string().matches(text).count())
            }
        }
    }

    /// Checks that nobody did anything wrong.
    pub(super) fn assert_clean(&self) {
        match &self.model {
            Model::Fake(handle) => assert_eq!(handle.violations(), Vec::<String>::new()),
            Model::Real(api) => api.assert_all_served(),
        }
    }

    /// Starts a process and initializes it.
    pub(super) async fn start(&self) -> Host {
        self.launch(None, &[]).await
    }

    /// Starts a process that goes on from these lines.
    pub(super) async fn resume(&self, entries: &[Value], variables: &[&str]) -> Host {
        let session = entries
            .iter()
            .find_map(|it| it["sessionId"].as_str())
            .expect("an entry names the session");
        let session = ClaudeSessionId::new(session).expect("a session id");
        let entries = entries
            .iter()
            .map(|it| TranscriptEntry::from_text(it.to_string()).expect("an entry"))
            .collect();
        let transcript = ResumedTranscript::new(session, entries);
        self.launch(Some(transcript), variables).await
    }

    async fn launch(&self, transcript: Option<ResumedTranscript>, variables: &[&str]) -> Host {
        let mut arguments: Vec<String> = [
            "--output-format=stream-json",
            "--verbose",
            "--input-format=stream-json",
            "--model=claude-sonnet-5",
            "--permission-prompt-tool=stdio",
            "--tools=Bash,Read,Agent",
            "--setting-sources=",
            "--permission-mode=default",
            "--include-partial-messages",
            "--session-mirror",
            "--await-initialize",
        ]
        .map(str::to_owned)
        .to_vec();
        if let Some(it) = &transcript {
            arguments.push(format!("--resume={}", it.claude_session));
        }
        let mut environment = self.environment.clone();
        let own = [
            "CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK",
            "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS",
        ];
        for name in own.iter().chain(variables) {
            environment.insert((*name).to_owned(), "1".to_owned());
        }
        let directory = self.directory.path().to_owned();
        let mut spec = LaunchSpec::new(arguments, environment, directory);
        spec.transcript = transcript;
        let servers = json!({"mcpServers": {"tools": {"type": "sdk", "name": "tools"}}});
        spec.files
            .push(LaunchFile::new("--mcp-config", servers.to_string()));
        let process = self.launcher.launch(spec).await.expect("the CLI starts");
        let mut host = Host {
            process,
            frames: Vec::new(),
            open: Vec::new(),
            launch: self.launches.fetch_add(1, Ordering::Relaxed),
            prompts: 0,
        };
        host.send(
            &json!({"type": "control_request", "request_id": "initialize", "request": {
                "subtype": "initialize", "sdkMcpServers": ["tools"], "hooks": {
                    "PreToolUse": [{"hookCallbackIds": ["pre"], "timeout": 3600}],
                    "PostToolBatch": [{"hookCallbackIds": ["batch"], "timeout": 3600}],
                },
            }}),
        );
        host
    }
}

/// One process and what it said.
pub(super) struct Host {
    pub(super) process: Box<dyn CliProcess>,
    pub(super) frames: Vec<Value>,
    /// Hook requests that wait for an answer, oldest first.
    open: Vec<Value>,
    launch: usize,
    prompts: u32,
}

impl Host {
    fn send(&mut self, frame: &Value) {
        self.process.send(frame.to_string()).expect("the CLI reads");
    }

    /// Sends a message of a person; returns its id.
    pub(super) fn prompt(&mut self, text: &str) -> String {
        self.prompts += 1;
        let uuid = format!("{:08x}-0000-4000-8000-{:012}", self.launch, self.prompts);
        self.prompt_as(&uuid, text);
        uuid
    }

    pub(super) fn prompt_as(&mut self, uuid: &str, text: &str) {
        self.send(&json!({
            "type": "user", "session_id": "", "parent_tool_use_id": null, "uuid": uuid,
            "message": {"role": "user", "content": [{"type": "text", "text": text}]},
        }));
    }

    /// Takes what the CLI says up to the first frame that fits; serves the tools meanwhile.
    pub(super) async fn until(&mut self, what: &str, fits: impl Fn(&Value) -> bool) -> Value {
        loop {
            let Some(frame) = self.next(what).await else {
                panic!("the CLI ended before {what}: {}", self.said());
            };
            if fits(&frame) {
                return frame;
            }
        }
    }

    /// Takes what the CLI says up to its end; returns how it ended.
    pub(super) async fn end(&mut self) -> CliExit {
        while self.next("the end of the output").await.is_some() {}
        self.process.shutdown(PATIENCE).await
    }

    async fn next(&mut self, what: &str) -> Option<Value> {
        let line = tokio::time::timeout(PATIENCE, self.process.receive())
            .await
            .unwrap_or_else(|_| panic!("{what} does not come: {}", self.said()))
            .expect("the CLI is there")?;
        let frame: Value = serde_json::from_slice(&line).expect("a line is JSON");
        self.frames.push(frame.clone());
        if frame["type"] == "control_request" {
            match frame["request"]["subtype"].as_str() {
                Some("mcp_message") => {
                    let served = serve(&frame["request"]["message"]);
                    self.respond(&frame["request_id"], &json!({"mcp_response": served}));
                }
                Some("hook_callback") => self.open.push(frame.clone()),
                other => panic!("the CLI asked for {other:?}"),
            }
        }
        Some(frame)
    }

    /// The beginnings of the last lines.
    fn said(&self) -> String {
        let last = self.frames.len().saturating_sub(20);
        let begin = |it: &Value| it.to_string().chars().take(300).collect::<String>();
        let lines: Vec<String> = self.frames[last..].iter().map(begin).collect();
        lines.join("\n")
    }

    fn respond(&mut self, id: &Value, response: &Value) {
        self.send(&json!({"type": "control_response", "response": {
            "subtype": "success", "request_id": id, "response": response,
        }}));
    }

    /// Waits for the next question of a hook; returns its input. It stays open.
    pub(super) async fn hook(&mut self, event: &str) -> Value {
        if self.open.is_empty() {
            self.until(event, is_hook).await;
        }
        let input = self.open[0]["request"]["input"].clone();
        assert_eq!(input["hook_event_name"], event);
        input
    }

    /// Answers the oldest open question by a decision, or goes on after a reply.
    pub(super) fn answer(&mut self, decision: &str) {
        self.answer_with(decision, json!({}));
    }

    /// Answers the oldest open question; a decision gets these fields as well.
    pub(super) fn answer_with(&mut self, decision: &str, fields: Value) {
        let request = self.open.remove(0);
        let response = match request["request"]["input"]["hook_event_name"].as_str() {
            Some("PreToolUse") => {
                let mut output = json!({
                    "hookEventName": "PreToolUse", "permissionDecision": decision,
                    "permissionDecisionReason": "so it is",
                });
                if let (Value::Object(output), Value::Object(fields)) = (&mut output, fields) {
                    output.extend(fields);
                }
                json!({"hookSpecificOutput": output})
            }
            _ => json!({}),
        };
        self.respond(&request["request_id"], &response);
    }

    /// Answers every hook like this until the result is there; returns the result.
    pub(super) async fn result(&mut self, decision: &str) -> Value {
        loop {
            while !self.open.is_empty() {
                self.answer(decision);
            }
            let frame = self
                .until("a result", |it| it["type"] == "result" || is_hook(it))
                .await;
            if frame["type"] == "result" {
                return frame;
            }
        }
    }

    /// Asks the CLI something without consequences and waits for its answer: whatever it was about
    /// to do by itself before, it has done.
    pub(super) async fn round_trip(&mut self) {
        let id = format!("round-trip-{}", self.frames.len());
        self.send(&json!({"type": "control_request", "request_id": id, "request": {"subtype": "mcp_status"}}));
        self.until("an answer", |it| it["response"]["request_id"] == id)
            .await;
    }

    pub(super) fn tool_calls(&self) -> usize {
        let is_call = |it: &&Value| it["request"]["message"]["method"] == "tools/call";
        self.frames.iter().filter(is_call).count()
    }

    pub(super) fn of_type(&self, kind: &str) -> Vec<&Value> {
        self.frames.iter().filter(|it| it["type"] == kind).collect()
    }

    /// The mirrored entries of the main conversation that are part of its chain.
    pub(super) fn chain(&self) -> Vec<Value> {
        self.of_type("transcript_mirror")
            .into_iter()
            .filter(|it| {
                !it["filePath"]
                    .as_str()
                    .unwrap_or_default()
                    .contains("subagents")
            })
            .flat_map(|it| it["entries"].as_array().expect("entries").clone())
            .filter(|it| it["uuid"].is_string())
            .collect()
    }

    /// What the main conversation consists of, in order, as far as both kinds of CLI say it.
    pub(super) fn names(&self) -> Vec<String> {
        self.frames.iter().filter_map(name).collect()
    }
}

fn is_hook(frame: &Value) -> bool {
    frame["request"]["subtype"] == "hook_callback"
}

fn name(frame: &Value) -> Option<String> {
    let text = |it: &Value| it.as_str().unwrap_or_default().to_owned();
    match frame["type"].as_str()? {
        "stream_event" => {
            let event = text(&frame["event"]["type"]);
            let from = &frame["abandoned_blocks"]["from_block_index"];
            match event.as_str() {
                "message_stop" if from.is_u64() => Some(format!("message_stop from {from}")),
                "message_start" | "message_stop" => Some(event),
                _ => None,
            }
        }
        "assistant" | "user" => Some(text(&frame["message"]["content"][0]["type"])),
        "control_request" => match frame["request"]["message"]["method"].as_str() {
            Some("tools/call") => Some("tools/call".to_owned()),
            Some(_) => None,
            None => Some(text(&frame["request"]["input"]["hook_event_name"])),
        },
        "control_cancel_request" => Some("cancel".to_owned()),
        "system" => match frame["subtype"].as_str()? {
            subtype @ ("init" | "api_retry") => Some(subtype.to_owned()),
            _ => None,
        },
        "result" => Some("result".to_owned()),
        _ => None,
    }
}

fn serve(message: &Value) -> Value {
    let tool = |name: &str, is_read: bool| {
        json!({
            "name": name, "description": name, "annotations": {"readOnlyHint": is_read},
            "inputSchema": {"type": "object", "properties": {"n": {"type": "number"}}},
        })
    };
    let result = match message["method"].as_str() {
        Some("initialize") => json!({
            "protocolVersion": message["params"]["protocolVersion"],
            "capabilities": {"tools": {}}, "serverInfo": {"name": "tools", "version": "1"},
        }),
        Some("tools/list") => json!({"tools": [tool("lookup", true), tool("refund", false)]}),
        Some("tools/call") => {
            let params = &message["params"];
            let text = format!("{} ran", params["name"].as_str().expect("a name"));
            json!({"content": [{"type": "text", "text": text}]})
        }
        _ => json!({}),
    };
    json!({"jsonrpc": "2.0", "id": message["id"], "result": result})
}

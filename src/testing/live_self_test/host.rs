//! A host that speaks to one CLI process by hand: it answers what an experiment does not hold back,
//! and keeps every line.

use std::time::Duration;

use serde_json::{Value, json};

use super::Broken;
use crate::protocol::{CliFrame, decode_line};
use crate::record::TranscriptEntry;
use crate::transport::{CliExit, CliProcess};

/// The callback of PreToolUse, and that of PostToolBatch.
const PRE_TOOL_USE: &str = "pre";
const POST_TOOL_BATCH: &str = "batch";

/// The name of the tool server.
pub(super) const SERVER: &str = "tools";

/// How long a hook may take where an experiment does not say otherwise, in seconds.
const HOOK_TIMEOUT_SECONDS: u32 = 86_400;

/// What the CLI asks its host about calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    /// May this call run?
    PreToolUse,
    /// May the model be asked again?
    PostToolBatch,
    /// What does this custom tool return?
    Call,
}

/// What a host does with a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// It is allowed, goes on, or returns a text.
    Yes,
    /// It is denied.
    No,
    /// It stays open until the experiment answers it.
    Hold,
}

/// Decides about a question by its kind, and by the tool where it is about one.
pub(super) type Policy = fn(Asked, &str) -> Answer;

/// Answers every question at once.
pub(super) const YES: Policy = |_, _| Answer::Yes;

/// One process and all that it said.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) process: Box<dyn CliProcess>,
    /// Every line that was taken, in order.
    pub(super) frames: Vec<Value>,
    /// The mirrored entries of the main conversation, verbatim.
    pub(super) mirrored: Vec<TranscriptEntry>,
    policy: Policy,
    requests: u32,
    is_over: bool,
}

/// A call on the CLI's output.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SeenCall {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) input: Value,
    /// The uuid of its line, which is that of its entry.
    pub(super) line: String,
}

impl Host {
    /// Takes a process and sends it `initialize`.
    pub(super) fn new(process: Box<dyn CliProcess>, policy: Policy) -> Result<Self, Broken> {
        Self::with_hook_timeout(process, policy, HOOK_TIMEOUT_SECONDS)
    }

    /// As [`Self::new`], with hooks that may take so many seconds.
    pub(super) fn with_hook_timeout(
        process: Box<dyn CliProcess>,
        policy: Policy,
        seconds: u32,
    ) -> Result<Self, Broken> {
        let mut host = Self {
            process,
            frames: Vec::new(),
            mirrored: Vec::new(),
            policy,
            requests: 0,
            is_over: false,
        };
        let hook = |callback: &str| json!([{"hookCallbackIds": [callback], "timeout": seconds}]);
        host.request(&json!({
            "subtype": "initialize", "sdkMcpServers": [SERVER],
            "hooks": {"PreToolUse": hook(PRE_TOOL_USE), "PostToolBatch": hook(POST_TOOL_BATCH)},
        }))?;
        Ok(host)
    }

    /// Changes what is answered from now on.
    pub(super) fn decide(&mut self, policy: Policy) {
        self.policy = policy;
    }

    /// Sends a prompt of one text block for each text.
    pub(super) fn prompt(&mut self, uuid: &str, texts: &[&str]) -> Result<(), Broken> {
        let blocks: Vec<Value> = texts
            .iter()
            .map(|text| json!({"type": "text", "text": text}))
            .collect();
        self.send(&json!({
            "type": "user", "session_id": "", "parent_tool_use_id": null, "uuid": uuid,
            "message": {"role": "user", "content": blocks},
        }))
    }

    /// Answers a question that was held, as the policy would.
    pub(super) fn answer(&mut self, question: &Value, answer: Answer) -> Result<(), Broken> {
        let Some((asked, tool)) = question_of(question) else {
            return Err(Broken::new("the experiment answers what is no question"));
        };
        let request = &question["request"];
        let response = match (asked, answer) {
            (_, Answer::Hold) => return Ok(()),
            (Asked::PreToolUse, Answer::Yes) => decision("allow"),
            (Asked::PreToolUse, Answer::No) => decision("deny"),
            (Asked::PostToolBatch, Answer::Yes | Answer::No) => json!({}),
            (Asked::Call, Answer::Yes | Answer::No) => {
                let text = format!("ran {}", request["message"]["params"]["arguments"]);
                let result = json!({
                    "content": [{"type": "text", "text": text}],
                    "isError": answer == Answer::No,
                });
                json!({"mcp_response": {"jsonrpc": "2.0", "id": request["message"]["id"], "result": result}})
            }
        };
        drop(tool);
        self.respond(&question["request_id"], &response)
    }

    /// Closes the input and takes the rest.
    pub(super) async fn close(mut self) -> Result<(Self, CliExit), Broken> {
        self.process.close_input();
        self.end().await
    }

    /// Takes the rest of the output, and says how the process ended.
    pub(super) async fn end(mut self) -> Result<(Self, CliExit), Broken> {
        while self.next().await?.is_some() {}
        let exit = self.process.shutdown(END_PATIENCE).await;
        Ok((self, exit))
    }

    /// Takes lines up to one that fits, and returns it.
    pub(super) async fn until(
        &mut self,
        what: &str,
        mut fits: impl FnMut(&Value) -> bool,
    ) -> Result<Value, Broken> {
        loop {
            match self.next().await? {
                Some(frame) if fits(&frame) => return Ok(frame),
                Some(_) => {}
                None => {
                    let stderr = self.process.stderr_tail();
                    return Err(Broken::new(format!(
                        "the output ended before {what}; stderr: {stderr:?}"
                    )));
                }
            }
        }
    }

    /// Takes lines up to the next result, and returns it.
    pub(super) async fn result(&mut self) -> Result<Value, Broken> {
        self.until("a result", |it| it["type"] == "result").await
    }

    /// Takes lines up to a question, and returns it.
    pub(super) async fn question(&mut self, asked: Asked) -> Result<Value, Broken> {
        self.until(&format!("{asked:?}"), |it| is_question(it, asked))
            .await
    }

    /// Takes lines until an entry that fits is mirrored.
    pub(super) async fn until_mirrored(
        &mut self,
        what: &str,
        fits: impl Fn(&Value) -> bool,
    ) -> Result<(), Broken> {
        if self.entries().iter().any(&fits) {
            return Ok(());
        }
        let in_frame = |frame: &Value| {
            let entries = frame["entries"].as_array();
            entries.is_some_and(|entries| entries.iter().any(&fits))
        };
        self.until(&format!("the mirror of {what}"), in_frame)
            .await?;
        Ok(())
    }

    /// Gives the CLI every opportunity to go on by itself: it answers requests of ours meanwhile.
    pub(super) async fn linger(&mut self) -> Result<(), Broken> {
        for _ in 0..ROUND_TRIPS {
            let id = self.request(&json!({"subtype": "mcp_status"}))?;
            let is_answer = |it: &Value| {
                it["type"] == "control_response" && it["response"]["request_id"] == id.as_str()
            };
            self.until("the answer to mcp_status", is_answer).await?;
        }
        Ok(())
    }

    /// The frames of one type.
    pub(super) fn of_type(&self, kind: &str) -> Vec<&Value> {
        self.frames.iter().filter(|it| it["type"] == kind).collect()
    }

    /// The questions of one kind that came, in order.
    pub(super) fn questions(&self, asked: Asked) -> Vec<&Value> {
        self.frames
            .iter()
            .filter(|it| is_question(it, asked))
            .collect()
    }

    /// Where the first frame that fits stands.
    pub(super) fn position(&self, fits: impl Fn(&Value) -> bool) -> Option<usize> {
        self.frames.iter().position(fits)
    }

    /// The mirrored entries, read.
    pub(super) fn entries(&self) -> Vec<Value> {
        let read = |it: &TranscriptEntry| serde_json::from_str(it.as_str()).ok();
        self.mirrored.iter().filter_map(read).collect()
    }

    /// The calls of the main conversation on the output, in order.
    pub(super) fn calls(&self) -> Vec<SeenCall> {
        let mut calls = Vec::new();
        for frame in self.of_type("assistant") {
            if !frame["parent_tool_use_id"].is_null() {
                continue;
            }
            for block in frame["message"]["content"].as_array().into_iter().flatten() {
                if block["type"] == "tool_use" {
                    calls.push(SeenCall {
                        id: text(&block["id"]),
                        name: text(&block["name"]),
                        input: block["input"].clone(),
                        line: text(&frame["uuid"]),
                    });
                }
            }
        }
        calls
    }

    /// The Claude session.
    pub(super) fn session(&self) -> Result<String, Broken> {
        self.frames
            .iter()
            .find_map(|it| it["session_id"].as_str())
            .map(str::to_owned)
            .ok_or_else(|| Broken::new("no line names the session"))
    }

    fn request(&mut self, request: &Value) -> Result<String, Broken> {
        self.requests += 1;
        let id = format!("host-{}", self.requests);
        self.send(&json!({"type": "control_request", "request_id": id, "request": request}))?;
        Ok(id)
    }

    fn respond(&mut self, id: &Value, response: &Value) -> Result<(), Broken> {
        self.send(&json!({"type": "control_response", "response": {
            "subtype": "success", "request_id": id, "response": response,
        }}))
    }

    fn send(&mut self, frame: &Value) -> Result<(), Broken> {
        self.process.send(frame.to_string()).map_err(Broken::from)
    }

    /// Takes one line, answers it where the policy says so, and keeps it.
    async fn next(&mut self) -> Result<Option<Value>, Broken> {
        if self.is_over {
            return Ok(None);
        }
        let Some(line) = self.process.receive().await? else {
            self.is_over = true;
            return Ok(None);
        };
        if let Ok(CliFrame::Mirror(mirror)) = decode_line(&line)
            && !mirror.file_path.contains("/subagents/")
        {
            self.mirrored.extend(mirror.entries);
        }
        let frame: Value = serde_json::from_slice(&line)
            .map_err(|_| Broken::new("a line of the output is no JSON"))?;
        if frame["type"] == "control_request" {
            self.answer_by_policy(&frame)?;
        }
        self.frames.push(frame.clone());
        Ok(Some(frame))
    }

    fn answer_by_policy(&mut self, frame: &Value) -> Result<(), Broken> {
        if let Some((asked, tool)) = question_of(frame) {
            return self.answer(frame, (self.policy)(asked, &tool));
        }
        let request = &frame["request"];
        let response = match request["subtype"].as_str() {
            Some("mcp_message") => json!({"mcp_response": handshake(&request["message"])}),
            // A hook was skipped; the experiment finds that by what it misses.
            Some("can_use_tool") => json!({"behavior": "deny", "message": "nobody decides"}),
            Some(_) | None => json!({}),
        };
        self.respond(&frame["request_id"], &response)
    }
}

/// How long a process may take to end once its output is over.
const END_PATIENCE: Duration = Duration::from_secs(60);

/// Enough for a CLI that goes on to be seen doing so; each takes it about a millisecond.
const ROUND_TRIPS: u32 = 50;

/// Reads what the CLI asks about calls, and about which tool.
fn question_of(frame: &Value) -> Option<(Asked, String)> {
    let request = &frame["request"];
    match request["subtype"].as_str()? {
        "hook_callback" => {
            let asked = match request["input"]["hook_event_name"].as_str()? {
                "PreToolUse" => Asked::PreToolUse,
                "PostToolBatch" => Asked::PostToolBatch,
                _ => return None,
            };
            Some((asked, text(&request["input"]["tool_name"])))
        }
        "mcp_message" if request["message"]["method"] == "tools/call" => {
            Some((Asked::Call, text(&request["message"]["params"]["name"])))
        }
        _ => None,
    }
}

/// True for a question of this kind.
pub(super) fn is_question(frame: &Value, asked: Asked) -> bool {
    question_of(frame).is_some_and(|(it, _)| it == asked)
}

/// The id of the call that a question is about.
pub(super) fn call_of(question: &Value) -> String {
    let request = &question["request"];
    match &request["tool_use_id"] {
        Value::String(id) => id.clone(),
        _ => text(&request["message"]["params"]["_meta"]["claudecode/toolUseId"]),
    }
}

/// The id of the call whose result a line or an entry holds.
pub(super) fn result_of(frame: &Value) -> Option<&str> {
    if frame["type"] != "user" {
        return None;
    }
    let blocks = frame["message"]["content"].as_array()?;
    let block = blocks.iter().find(|it| it["type"] == "tool_result")?;
    block["tool_use_id"].as_str()
}

pub(super) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn decision(decision: &str) -> Value {
    json!({"hookSpecificOutput": {
        "hookEventName": "PreToolUse", "permissionDecision": decision,
        "permissionDecisionReason": "the experiment says so",
    }})
}

/// The tool server: `refund` writes, `lookup` reads.
fn handshake(message: &Value) -> Value {
    let tool = |name: &str, reads: bool| {
        json!({
            "name": name, "description": name, "annotations": {"readOnlyHint": reads},
            "inputSchema": {"type": "object", "properties": {"n": {"type": "number"}}},
        })
    };
    let result = match message["method"].as_str() {
        Some("initialize") => json!({
            "protocolVersion": message["params"]["protocolVersion"],
            "capabilities": {"tools": {}}, "serverInfo": {"name": SERVER, "version": "1"},
        }),
        Some("tools/list") => json!({"tools": [tool("refund", false), tool("lookup", true)]}),
        Some(_) | None => json!({}),
    };
    json!({"jsonrpc": "2.0", "id": message.get("id").cloned().unwrap_or_else(|| json!(0)), "result": result})
}

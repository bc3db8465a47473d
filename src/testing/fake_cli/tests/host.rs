//! A host that answers at once what its closures say.

use super::*;

type MayAnswer = Box<dyn FnMut(&Value) -> Option<Value>>;

pub(super) struct Host {
    pub(super) cli: FakeCli,
    /// All frames taken, in order.
    pub(super) frames: Vec<Value>,
    prompts: u32,
    /// Whether it registers PostToolBatch; its answer is the hook's, `{}` for a decision.
    pub(super) has_batch_hook: bool,
    /// The answer to each PreToolUse, by tool use id; `None` leaves it open.
    pub(super) hook: MayAnswer,
    /// The answer to can_use_tool.
    pub(super) ask: Box<dyn FnMut(&Value) -> Value>,
    /// The result of tools/call; `None` leaves it open.
    pub(super) call: MayAnswer,
}

impl Host {
    pub(super) fn start(config: FakeCliConfig) -> Self {
        // Behind the prompts of the transcript: the CLI takes each id once.
        let earlier = config.transcript.iter().flatten();
        let prompts = earlier.filter(|it| it.contains("aaaaaaaa-0000")).count();
        Self {
            cli: FakeCli::new(config),
            frames: Vec::new(),
            prompts: u32::try_from(prompts).unwrap(),
            has_batch_hook: false,
            hook: Box::new(|_| Some(serde_json::from_str(ALLOW).unwrap())),
            ask: Box::new(|request| json!({"behavior": "allow", "updatedInput": request["input"]})),
            call: Box::new(|params| {
                let text = format!(
                    "{} ran {}",
                    params["name"].as_str().unwrap(),
                    params["arguments"]
                );
                Some(json!({"content": [{"type": "text", "text": text}]}))
            }),
        }
    }

    /// A host whose hook always answers the same.
    pub(super) fn deciding(config: FakeCliConfig, answer: &str) -> Self {
        let answer: Value = serde_json::from_str(answer).unwrap();
        let mut host = Self::start(config);
        host.hook = Box::new(move |_| Some(answer.clone()));
        host
    }

    pub(super) fn initialize(&mut self) {
        self.send(&initialize(self.has_batch_hook));
    }

    pub(super) fn prompt(&mut self, text: &str) {
        let frame = self.prompt_frame(text);
        self.send(&frame);
    }

    /// Writes all lines before it reads, as the recorded hosts did.
    pub(super) fn initialize_and_prompts(&mut self, texts: &[&str]) {
        self.cli
            .handle_line(&initialize(self.has_batch_hook).to_string());
        for text in texts {
            let frame = self.prompt_frame(text);
            self.cli.handle_line(&frame.to_string());
        }
        self.run();
    }

    pub(super) fn initialize_and_prompt(&mut self, text: &str) {
        self.initialize_and_prompts(&[text]);
    }

    fn prompt_frame(&mut self, text: &str) -> Value {
        self.prompts += 1;
        json!({
            "type": "user", "session_id": "", "parent_tool_use_id": null,
            "message": {"role": "user", "content": [{"type": "text", "text": text}]},
            "uuid": format!("aaaaaaaa-0000-4000-8000-{:012}", self.prompts),
        })
    }

    pub(super) fn send(&mut self, frame: &Value) {
        self.cli.handle_line(&frame.to_string());
        self.run();
    }

    pub(super) fn respond(&mut self, request: &str, response: &Value) {
        self.send(&json!({"type": "control_response", "response": {
            "subtype": "success", "request_id": request, "response": response,
        }}));
    }

    /// Takes all lines and answers their requests until nothing moves.
    pub(super) fn run(&mut self) {
        while let Some(line) = self.cli.poll_line() {
            let frame: Value = serde_json::from_str(&line).unwrap();
            self.frames.push(frame.clone());
            if frame["type"] != "control_request" {
                continue;
            }
            let request = &frame["request"];
            let response = match request["subtype"].as_str().unwrap() {
                "hook_callback" => (self.hook)(request),
                "can_use_tool" => Some((self.ask)(request)),
                "mcp_message" => self.mcp(&request["message"]),
                other => panic!("unknown request {other}"),
            };
            if let Some(response) = response {
                self.respond(frame["request_id"].as_str().unwrap(), &response);
            }
        }
    }

    fn mcp(&mut self, message: &Value) -> Option<Value> {
        let result = match message["method"].as_str().unwrap() {
            "initialize" => json!({
                "protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                "serverInfo": {"name": "tools", "version": "1.0.0"},
            }),
            "tools/list" => json!({"tools": [
                {"name": "lookup", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": true}},
                {"name": "create_refund", "inputSchema": {"type": "object"}},
            ]}),
            "tools/call" => (self.call)(&message["params"])?,
            _ => json!({}),
        };
        Some(json!({"mcp_response": {"jsonrpc": "2.0", "id": message["id"], "result": result}}))
    }

    /// Closes the input and returns the exit code.
    pub(super) fn close(&mut self) -> Option<i32> {
        self.cli.handle_input_closed();
        self.run();
        self.cli.poll_exit()
    }

    pub(super) fn of_type(&self, kind: &str) -> Vec<Value> {
        self.frames
            .iter()
            .filter(|it| it["type"] == kind)
            .cloned()
            .collect()
    }

    /// The requests of one subtype.
    pub(super) fn requests(&self, subtype: &str) -> Vec<Value> {
        self.frames
            .iter()
            .filter(|it| it["request"]["subtype"] == subtype)
            .map(|it| it["request"].clone())
            .collect()
    }

    /// What each PostToolBatch said.
    pub(super) fn batches(&self) -> Vec<Value> {
        self.requests("hook_callback")
            .into_iter()
            .map(|it| it["input"].clone())
            .filter(|it| it["hook_event_name"] == "PostToolBatch")
            .collect()
    }

    /// The parameters of all tools/call.
    pub(super) fn calls(&self) -> Vec<Value> {
        self.requests("mcp_message")
            .into_iter()
            .filter(|it| it["message"]["method"] == "tools/call")
            .map(|it| it["message"]["params"].clone())
            .collect()
    }

    /// The blocks of all tool results on stdout.
    pub(super) fn tool_results(&self) -> Vec<Value> {
        self.of_type("user")
            .iter()
            .map(|it| it["message"]["content"][0].clone())
            .filter(|it| it["type"] == "tool_result")
            .collect()
    }

    /// All mirrored entries of the main conversation.
    pub(super) fn entries(&self) -> Vec<Value> {
        self.of_type("transcript_mirror")
            .iter()
            .filter(|it| !it["filePath"].as_str().unwrap().contains("subagents"))
            .flat_map(|it| it["entries"].as_array().unwrap().clone())
            .collect()
    }

    /// The mirrored entries as the lines of a materialised transcript.
    pub(super) fn transcript(&self) -> Vec<String> {
        self.entries().iter().map(Value::to_string).collect()
    }

    pub(super) fn results(&self) -> Vec<Value> {
        self.of_type("result")
    }

    pub(super) fn assert_clean(&self) {
        assert_eq!(self.cli.violations(), [""; 0]);
    }
}

/// Runs one segment in which the calls of `prompt` are deferred, and returns its transcript.
pub(super) fn deferred_transcript(prompt: &str) -> Vec<String> {
    let mut host = Host::deciding(config(), DEFER);
    host.initialize();
    host.prompt(prompt);
    assert_eq!(host.close(), Some(0));
    host.assert_clean();
    host.transcript()
}

fn initialize(has_batch_hook: bool) -> Value {
    let mut hooks = json!({"PreToolUse": [{"hookCallbackIds": ["hook_0"]}]});
    if has_batch_hook {
        hooks["PostToolBatch"] = json!([{"hookCallbackIds": ["hook_1"]}]);
    }
    json!({"type": "control_request", "request_id": "host-1", "request": {
        "subtype": "initialize", "sdkMcpServers": ["tools"], "hooks": hooks,
    }})
}

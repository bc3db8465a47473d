//! What the host sends, and what is wrong with it.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::servers::HandshakeStep;
use super::turn::Prompt;
use super::{Callback, FakeCli, frames};

/// A control request that the host has to answer.
#[derive(Debug, Clone)]
pub(super) enum Open {
    Handshake {
        server: usize,
        step: HandshakeStep,
    },
    /// The answer has no effect.
    Ignored,
    Hook {
        call: usize,
        /// False for a repetition, whose answer has no effect.
        counts: bool,
        deadline: Option<Duration>,
    },
    BatchHook,
    Ask {
        call: usize,
    },
    Call {
        call: usize,
        rpc_id: u64,
        counts: bool,
    },
}

impl FakeCli {
    pub(super) fn receive(&mut self, line: &str) {
        if line.trim().is_empty() {
            return;
        }
        let waits_for_initialize = self.arguments.awaits_initialize && !self.is_initialized;
        let Ok(frame) = serde_json::from_str::<Value>(line) else {
            self.violation(format!("not JSON: {}", excerpt(line)));
            self.refuse(if waits_for_initialize {
                format!("{FIRST_LINE} is not valid JSON.")
            } else {
                format!(
                    "Error parsing streaming input line (type=unknown, {} chars): SyntaxError",
                    line.len()
                )
            });
            return;
        };
        let is_initialize = frame["request"]["subtype"] == "initialize";
        if waits_for_initialize && !is_initialize {
            self.violation("the first line is not initialize".to_owned());
            self.refuse(format!("{FIRST_LINE} is a different message."));
            return;
        }
        match frame["type"].as_str() {
            Some("control_request") => self.receive_request(&frame),
            Some("control_response") => self.receive_response(&frame),
            Some("user") => self.receive_prompt(&frame),
            Some("keep_alive") => {}
            Some(_) | None => self.violation(format!("unknown frame: {}", excerpt(line))),
        }
    }

    fn receive_request(&mut self, frame: &Value) {
        self.check_fields("control_request", frame, &["type", "request_id", "request"]);
        let id = frame["request_id"].as_str().unwrap_or_default().to_owned();
        let request = &frame["request"];
        let response = match request["subtype"].as_str() {
            Some("initialize") => {
                if self.is_unknown_session() {
                    self.end_unknown_session();
                    return;
                }
                if !self.is_initialized {
                    self.is_initialized = true;
                    self.register_hooks(request);
                    if self.resume.is_some() {
                        self.send_state("running");
                    }
                    self.connect_servers(request);
                }
                let version = self.config.environment.get("FAKE_CLAUDE_VERSION");
                let version = version.map_or(frames::VERSION, String::as_str);
                frames::initialize_response(&self.permission_mode(), version)
            }
            Some("interrupt") => {
                self.interrupt(&id, request["cancel_queued"] == true);
                return;
            }
            Some("cancel_async_message") => self.cancel_queued_message(&request["message_uuid"]),
            Some("set_permission_mode") => {
                self.arguments.permission_mode = request["mode"].as_str().map(str::to_owned);
                json!({"mode": request["mode"]})
            }
            Some("set_model") => {
                self.arguments.model = request["model"].as_str().map(str::to_owned);
                json!({})
            }
            Some("mcp_status") => json!({"mcpServers": self.server_statuses()}),
            Some(
                "get_context_usage"
                | "get_session_cost"
                | "get_settings"
                | "get_binary_version"
                | "set_max_thinking_tokens",
            ) => json!({}),
            Some(other) => {
                let error = format!("Unsupported control request subtype: {other}");
                self.send(&json!({"type": "control_response", "response": {"subtype": "error", "request_id": id, "error": error}}));
                return;
            }
            None => {
                self.violation("a control_request without subtype".to_owned());
                return;
            }
        };
        self.answer(&id, &response);
    }

    pub(super) fn answer(&mut self, id: &str, response: &Value) {
        self.send(&json!({"type": "control_response", "response": {"subtype": "success", "request_id": id, "response": response}}));
    }

    fn receive_response(&mut self, frame: &Value) {
        self.check_fields("control_response", frame, &["type", "response"]);
        let envelope = &frame["response"];
        let Some(id) = envelope["request_id"].as_str() else {
            self.violation("a control_response without request_id".to_owned());
            return;
        };
        let answer = match envelope["subtype"].as_str() {
            Some("success") => {
                self.check_fields("success", envelope, &["subtype", "request_id", "response"]);
                Ok(envelope["response"].clone())
            }
            Some("error") => {
                self.check_fields("error", envelope, &["subtype", "request_id", "error"]);
                Err(envelope["error"].as_str().unwrap_or_default().to_owned())
            }
            Some(_) | None => {
                self.violation(format!("a control_response of unknown subtype to {id}"));
                return;
            }
        };
        let Some(open) = self.open.remove(id) else {
            // An answer may cross the request's cancellation, once.
            if !self.cancelled.remove(id) {
                self.violation(format!("an answer to {id}, which is not open"));
            }
            return;
        };
        self.dispatch(open, id, answer);
    }

    fn dispatch(&mut self, open: Open, id: &str, answer: Result<Value, String>) {
        match open {
            Open::Handshake { server, step } => self.handle_handshake(server, step, answer),
            Open::Ignored => {}
            Open::Hook { call, counts, .. } => {
                self.check_hook_answer(&answer);
                self.with_turn(|cli, turn| cli.handle_hook(turn, call, counts, &answer));
            }
            Open::BatchHook => self.with_turn(|_, turn| turn.end_batch_hook(id)),
            Open::Ask { call } => self.with_turn(|cli, turn| cli.handle_ask(turn, call, &answer)),
            Open::Call {
                call,
                rpc_id,
                counts,
            } => {
                if let Ok(response) = &answer
                    && response["mcp_response"]["id"] != rpc_id
                {
                    self.violation(format!("the JSON-RPC answer to {id} has another id"));
                }
                self.with_turn(|cli, turn| cli.handle_called(turn, call, counts, answer));
            }
        }
    }

    fn with_turn(&mut self, act: impl FnOnce(&mut Self, &mut super::Turn)) {
        if let Some(mut turn) = self.turn.take() {
            act(self, &mut turn);
            self.turn = Some(turn);
        }
    }

    fn check_hook_answer(&mut self, answer: &Result<Value, String>) {
        match answer {
            Ok(Value::Object(fields)) => {
                let output = fields.get("hookSpecificOutput");
                if output.is_some_and(|it| it["hookEventName"].as_str().is_none()) {
                    self.violation("a hook answer without hookEventName".to_owned());
                }
            }
            Ok(_) => self.violation("a hook answer that is no object".to_owned()),
            Err(error) => self.violation(format!("a hook answered with an error: {error}")),
        }
    }

    fn receive_prompt(&mut self, frame: &Value) {
        self.check_fields(
            "user",
            frame,
            &[
                "type",
                "session_id",
                "message",
                "parent_tool_use_id",
                "uuid",
            ],
        );
        let message = &frame["message"];
        if message["role"] != "user"
            || !(message["content"].is_string() || message["content"].is_array())
        {
            self.violation("a user frame without a user message".to_owned());
            return;
        }
        let resumes = self
            .resume
            .as_ref()
            .is_some_and(super::resume::Resume::is_deferral)
            || self.turn.as_ref().is_some_and(|it| it.resumes_deferral());
        if resumes {
            self.violation("a prompt came while a deferred call resumes".to_owned());
        }
        // Without --await-initialize a prompt alone is enough (capture `no_initialize`).
        self.is_initialized = true;
        let uuid = frame["uuid"].as_str().map(str::to_owned);
        if let Some(uuid) = uuid.as_deref().filter(|it| self.transcript.holds(it)) {
            // Nobody is asked, and no result comes (real CLI 2.1.316, 2.1.332).
            self.send_lifecycle(uuid, "completed");
            return;
        }
        if self.turn.is_none() && self.queue.is_empty() && self.resume.is_none() {
            self.send_state("running");
        }
        if let Some(uuid) = &uuid {
            self.send_lifecycle(uuid, "queued");
        }
        self.transcript
            .queue_operation(&mut self.ids, "enqueue", None);
        self.queue.push_back(Prompt {
            uuid,
            content: message["content"].clone(),
        });
    }

    fn cancel_queued_message(&mut self, uuid: &Value) -> Value {
        let before = self.queue.len();
        self.queue.retain(|it| it.uuid.as_deref() != uuid.as_str());
        json!({"cancelled": self.queue.len() < before})
    }

    fn register_hooks(&mut self, request: &Value) {
        for (event, matchers) in request["hooks"].as_object().into_iter().flatten() {
            let mut callbacks = Vec::new();
            for matcher in matchers.as_array().into_iter().flatten() {
                for id in matcher["hookCallbackIds"].as_array().into_iter().flatten() {
                    callbacks.push(Callback {
                        id: id.as_str().unwrap_or_default().to_owned(),
                        matcher: matcher["matcher"].as_str().map(str::to_owned),
                        timeout: matcher["timeout"]
                            .as_f64()
                            .and_then(|it| Duration::try_from_secs_f64(it).ok()),
                    });
                }
            }
            match event.as_str() {
                "PreToolUse" => self.hooks.pre_tool_use = callbacks,
                "PostToolBatch" => self.hooks.post_tool_batch = callbacks,
                _ => {}
            }
        }
    }

    fn check_fields(&mut self, what: &str, frame: &Value, known: &[&str]) {
        let unknown: Vec<String> = frame
            .as_object()
            .into_iter()
            .flat_map(Map::keys)
            .filter(|it| !known.contains(&it.as_str()))
            .cloned()
            .collect();
        for field in unknown {
            self.violation(format!("{what} holds the unknown field {field}"));
        }
    }
}

const FIRST_LINE: &str = "Error: --await-initialize requires the initialize control request as the first stdin line, and the first line";

fn excerpt(line: &str) -> String {
    line.chars().take(80).collect()
}

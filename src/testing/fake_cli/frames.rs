//! The shapes of what the CLI sends, taken from the captures of 2.1.316 (`plain`, `defer`,
//! `resume_allow_text`, `interrupt_during_hook`, `error_529`).

use serde_json::{Map, Value, json};

/// The version that the fake copies.
pub(super) const VERSION: &str = "2.1.316";

/// Counts what the real CLI draws at random, so that the same inputs give the same lines.
#[derive(Debug, Clone)]
pub(super) struct Ids {
    seed: u32,
    uuids: u64,
    calls: u64,
    messages: u64,
    ticks: u64,
}

impl Ids {
    pub(super) fn new(seed: u32) -> Self {
        Self {
            seed,
            uuids: 0,
            calls: 0,
            messages: 0,
            ticks: 0,
        }
    }

    pub(super) fn uuid(&mut self) -> String {
        self.uuids += 1;
        format!("{:08x}-0000-4000-8000-{:012x}", self.seed, self.uuids)
    }

    pub(super) fn call(&mut self) -> String {
        self.calls += 1;
        format!("toolu_{:08}{:016}", self.seed, self.calls)
    }

    pub(super) fn message(&mut self) -> String {
        self.messages += 1;
        format!("msg_{:08}{:016}", self.seed, self.messages)
    }

    pub(super) fn timestamp(&mut self) -> String {
        self.ticks += 1;
        let (seconds, millis) = (self.ticks / 1000, self.ticks % 1000);
        format!(
            "2026-01-01T00:{:02}:{:02}.{millis:03}Z",
            seconds / 60 % 60,
            seconds % 60
        )
    }
}

/// Tokens and cost of model calls, by the model's name.
#[derive(Debug, Clone, Default)]
pub(super) struct Usage(Vec<(String, u64)>);

const COST_OF_CALL: f64 = 0.0001;

impl Usage {
    pub(super) fn add(&mut self, model: &str, calls: u64) {
        match self.0.iter_mut().find(|(name, _)| name == model) {
            Some((_, count)) => *count += calls,
            None => self.0.push((model.to_owned(), calls)),
        }
    }

    pub(super) fn calls(&self) -> u64 {
        self.0.iter().map(|(_, count)| count).sum()
    }

    pub(super) fn cost(&self) -> f64 {
        cost_of(self.calls())
    }

    /// Reads the `modelUsage` of a cost-state entry.
    pub(super) fn of_cost_state(entry: &Value) -> Self {
        let mut usage = Self::default();
        for (model, counts) in entry["modelUsage"].as_object().into_iter().flatten() {
            usage.add(model, counts["inputTokens"].as_u64().unwrap_or(0) / 11);
        }
        usage
    }

    pub(super) fn by_model(&self, is_full: bool) -> Value {
        let mut models = Map::new();
        for (name, calls) in &self.0 {
            let mut counts = json!({
                "inputTokens": 11 * calls, "outputTokens": 7 * calls,
                "cacheReadInputTokens": 2 * calls, "cacheCreationInputTokens": 3 * calls,
                "webSearchRequests": 0, "costUSD": cost_of(*calls), "thinkingTokens": 0,
                "cacheCreationEphemeral5mInputTokens": 0, "cacheCreationEphemeral1hInputTokens": 0,
            });
            if is_full {
                merge(
                    &mut counts,
                    json!({
                        "contextWindow": 1_000_000, "maxOutputTokens": 64_000,
                        "canonicalModel": name, "provider": "firstParty", "costBasis": "list",
                    }),
                );
            }
            models.insert(name.clone(), counts);
        }
        Value::Object(models)
    }
}

#[expect(clippy::cast_precision_loss, reason = "a test counts few calls")]
fn cost_of(calls: u64) -> f64 {
    calls as f64 * COST_OF_CALL
}

/// Puts the members of `more` into `value`.
pub(super) fn merge(value: &mut Value, more: Value) {
    if let (Value::Object(value), Value::Object(more)) = (value, more) {
        value.extend(more);
    }
}

/// Usage as it stands in the streamed messages.
pub(super) fn streamed_usage(output_tokens: u64) -> Value {
    json!({"input_tokens": 11, "output_tokens": output_tokens, "cache_creation_input_tokens": 3, "cache_read_input_tokens": 2})
}

/// Usage as it stands in entries and results, of that many model calls.
pub(super) fn full_usage(calls: u64) -> Value {
    json!({
        "input_tokens": 11 * calls, "cache_creation_input_tokens": 3 * calls,
        "cache_read_input_tokens": 2 * calls, "output_tokens": 7 * calls,
        "output_tokens_details": {"thinking_tokens": 0},
        "server_tool_use": {"web_search_requests": 0, "web_fetch_requests": 0},
        "service_tier": "standard",
        "cache_creation": {"ephemeral_1h_input_tokens": 0, "ephemeral_5m_input_tokens": 0},
        "inference_geo": "", "iterations": [], "speed": "standard", "fallback_credit": null,
    })
}

pub(super) fn initialize_response(permission_mode: &str, version: &str) -> Value {
    json!({
        "commands": [], "agents": [], "output_style": "default",
        "available_output_styles": ["default"], "user_output_styles_dir": "",
        "models": [{"value": "default", "resolvedModel": "claude-opus-5-5", "displayName": "Default"}],
        "account": {"tokenSource": "none", "apiKeySource": "ANTHROPIC_API_KEY", "apiProvider": "firstParty"},
        "pid": 0, "claude_code_version": version, "current_permission_mode": permission_mode,
        "hooks_applied": true, "feedback_mode": {"kind": "disabled"}, "analytics_disabled": true,
        "remote_control_auto_enable": false, "remote_control_auto_connect_default": false,
        "remote_control_available": false, "remote_control_auto_on_by_default": false,
        "ide_rc_auto_enable_gate": false, "fast_mode_state": "off",
        "fast_mode_disabled_reason": "sdk_opt_in_required", "session_state": "idle",
        "capabilities": ["ui_surface_v1", "mcp_call_result_not_for_model_v1"],
    })
}

/// The first message of an MCP connection.
pub(super) fn mcp_initialize() -> Value {
    json!({
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": {
                "name": "claude-code", "title": "Claude Code",
                "description": "Anthropic's agentic coding tool",
                "websiteUrl": "https://claude.com/claude-code", "version": VERSION,
            },
        },
        "jsonrpc": "2.0", "id": 0,
    })
}

/// `system/init`, without uuid and session id.
pub(super) fn init(
    cwd: &str,
    tools: &[String],
    servers: &[Value],
    model: &str,
    mode: &str,
) -> Value {
    json!({
        "type": "system", "subtype": "init", "cwd": cwd, "tools": tools, "mcp_servers": servers,
        "model": model, "permissionMode": mode, "slash_commands": [],
        "terminal_slash_commands": [], "apiKeySource": "ANTHROPIC_API_KEY",
        "claude_code_version": VERSION, "output_style": "default", "agents": [], "skills": [],
        "plugins": [],
        "capabilities": ["interrupt_receipt_v1", "interrupt_cancel_queued_v1", "msg_lifecycle_v1"],
        "analytics_disabled": true, "product_feedback_disabled": true, "memory_paths": {"auto": ""},
        "original_cwd": cwd, "additional_directories": [], "messaging_socket_path": "",
        "fast_mode_state": "off", "fast_mode_disabled_reason": "sdk_opt_in_required",
        "per_turn_effort_active": false, "ultrathink_available": false, "view_mode": "default",
    })
}

/// The part of `result` that is the same in all endings.
pub(super) fn result(model_calls: u64, total: &Usage, since_last: &Usage) -> Value {
    json!({
        "type": "result", "duration_ms": 10, "duration_api_ms": 7,
        "total_cost_usd": total.cost(), "usage": full_usage(model_calls),
        "modelUsage": total.by_model(true), "fast_mode_state": "off",
        "fast_mode_disabled_reason": "sdk_opt_in_required",
        "subagent_stats": {
            "spawned": 0, "requested": {"background": 0, "foreground": 0, "unset": 0},
            "started_in_background": 0, "max_depth": 0, "spawned_by_subagents": 0, "completed": 0,
            "failed": 0, "killed": {"parent": 0, "user": 0, "system": 0},
            "refused": {"depth_limit": 0, "concurrency_limit": 0, "budget": 0}, "by_type": {},
        },
        "safety_stops": 0, "queued_turn_count": 0,
        "model_usage_since_last_result": since_last.by_model(true),
    })
}

/// `mcp__tools__create_refund` is shown as `Create Refund`.
pub(super) fn display_name(tool: &str) -> String {
    let Some((_, name)) = split_mcp(tool) else {
        return tool.to_owned();
    };
    name.split('_')
        .map(|word| {
            let mut letters = word.chars();
            letters.next().map_or_else(String::new, |first| {
                first.to_uppercase().chain(letters).collect()
            })
        })
        .collect::<Vec<String>>()
        .join(" ")
}

/// Splits `mcp__<server>__<tool>`.
pub(super) fn split_mcp(tool: &str) -> Option<(&str, &str)> {
    tool.strip_prefix("mcp__")?.split_once("__")
}

/// Joins the text blocks of a tool result's content.
pub(super) fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(blocks) => blocks
            .iter()
            .filter_map(|it| it["text"].as_str())
            .collect::<Vec<_>>()
            .join("\n"),
        _ => String::new(),
    }
}

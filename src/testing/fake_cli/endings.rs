//! How turns end: results, failures, interrupts (spec/cli-protocol.md 8 and 11).

use serde_json::{Value, json};

use super::frames::{self, Usage, merge};
use super::inbound::Open;
use super::model::{REQUEST_ID, Stream};
use super::tools::{CallState, Outcome};
use super::turn::{Origin, Step, Turn};
use super::{FakeCli, Fault};

/// The end of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    Completed,
    Deferred,
    /// The hook of a resumed call answered `defer` again.
    DeferredAgain,
    Unavailable,
    HookStopped,
    MaxTurns,
    AbortedStreaming,
    AbortedTools,
    ApiError {
        status: u16,
    },
    /// The script said so.
    Failed,
}

impl FakeCli {
    /// Mirrors the rest, sends the result and what follows it.
    pub(super) fn finish(&mut self, turn: Turn, ending: &Ending) {
        let mut result = frames::result(turn.model_calls, &self.total, &self.since_last_result);
        merge(
            &mut result,
            json!({
                "permission_denials": turn.denials, "num_turns": 1 + turn.tool_results,
                "stop_reason": turn.stop_reason, "is_error": false, "subtype": "success",
                "result_index": self.results,
            }),
        );
        turn.name_messages(&mut result);
        if turn.origin == Origin::Interrupted {
            merge(&mut result, json!({"resume_reason": "interrupted_turn"}));
        }
        let details = self.end_details(&turn, *ending);
        merge(&mut result, details);
        if *ending == Ending::Completed {
            self.apply_result_fault(&mut result);
        }
        self.transcript.last_prompt();
        self.flush_mirror(true);
        self.ends_with_error = result["is_error"] == true;
        self.results += 1;
        self.since_last_result = Usage::default();
        self.send_own(result);
        let state = match ending {
            Ending::Completed
            | Ending::Deferred
            | Ending::DeferredAgain
            | Ending::HookStopped
            | Ending::MaxTurns => "completed",
            Ending::Unavailable
            | Ending::AbortedStreaming
            | Ending::AbortedTools
            | Ending::ApiError { .. }
            | Ending::Failed => "cancelled",
        };
        for command in &turn.lifecycle {
            self.send_lifecycle(command, state);
        }
        if self.queue.is_empty() {
            self.send_state("idle");
        }
    }

    /// Returns the fields that tell endings apart, and writes the entries that belong to them.
    fn end_details(&mut self, turn: &Turn, ending: Ending) -> Value {
        let mut deferred = turn.deferred.clone().unwrap_or(Value::Null);
        if self.has_fault(&Fault::WrongDeferredId) {
            merge(&mut deferred, json!({"id": "toolu_another"}));
        }
        match ending {
            Ending::Completed => {
                json!({"terminal_reason": "completed", "result": turn.text, "api_error_status": null})
            }
            Ending::HookStopped => {
                json!({"terminal_reason": "hook_stopped", "result": turn.text, "api_error_status": null})
            }
            Ending::Deferred => json!({
                "terminal_reason": "tool_deferred", "stop_reason": "tool_deferred", "result": "",
                "deferred_tool_use": deferred,
            }),
            // No terminal_reason, and num_turns counts messages (capture `resume_defer_again`).
            Ending::DeferredAgain => json!({
                "stop_reason": "tool_deferred", "result": "", "deferred_tool_use": deferred,
                "num_turns": self.transcript.entries().iter().filter(|it| it["uuid"].is_string()).count(),
            }),
            Ending::Unavailable => json!({
                "terminal_reason": "tool_deferred_unavailable", "stop_reason": "tool_deferred_unavailable",
                "is_error": true, "result": "", "deferred_tool_use": deferred,
            }),
            Ending::MaxTurns => {
                let limit = self.arguments.max_turns.unwrap_or_default();
                self.transcript.attachment(&mut self.ids, None, json!({"type": "max_turns_reached", "maxTurns": limit, "turnCount": turn.model_calls + 1}));
                json!({
                    "subtype": "error_max_turns", "is_error": true, "terminal_reason": "max_turns",
                    "errors": [format!("Reached maximum number of turns ({limit})")],
                })
            }
            Ending::AbortedStreaming => {
                aborted("aborted_streaming", &turn.stop_reason, turn.tool_results)
            }
            Ending::AbortedTools => aborted("aborted_tools", &turn.stop_reason, turn.tool_results),
            Ending::ApiError { status } => {
                let text = self.write_api_error(turn, status);
                json!({
                    "terminal_reason": "api_error", "stop_reason": "stop_sequence", "is_error": true,
                    "api_error_status": status, "result": text,
                })
            }
            Ending::Failed => json!({
                "subtype": "error_during_execution", "is_error": true,
                "errors": ["the script ended the turn with an error"],
            }),
        }
    }

    fn apply_result_fault(&self, result: &mut Value) {
        let subtype = self.config.faults.iter().find_map(|it| match it {
            Fault::ResultError(subtype) => Some(subtype),
            _ => None,
        });
        if let (Some(subtype), Value::Object(fields)) = (subtype, &mut *result) {
            fields.remove("result");
            fields.remove("terminal_reason");
            merge(
                result,
                json!({"subtype": subtype, "is_error": true, "errors": [subtype]}),
            );
        }
    }

    fn write_api_error(&mut self, turn: &Turn, status: u16) -> String {
        let text = match status {
            429 => "API Error: Request rejected (429) · rate limited".to_owned(),
            529 => "API Error: 529 Overloaded. This is a server-side issue, usually temporary — try again in a moment.".to_owned(),
            other => format!("API Error: {other} the request failed"),
        };
        let id = self.ids.uuid();
        let message = json!({
            "id": id, "type": "message", "role": "assistant", "model": "<synthetic>",
            "content": [{"type": "text", "text": text}], "stop_reason": "stop_sequence",
            "stop_sequence": "", "usage": frames::full_usage(0),
        });
        let mut frame = json!({
            "type": "assistant", "message": message, "parent_tool_use_id": null,
            "request_id": REQUEST_ID, "error": message_kind(status),
            "is_api_error_message": true, "api_error_status": status,
        });
        turn.name_messages(&mut frame);
        let uuid = self.send_stamped(frame);
        let entry = json!({
            "type": "assistant", "message": message, "isApiErrorMessage": true,
            "apiErrorStatus": status, "error": message_kind(status), "requestId": REQUEST_ID,
            "perTurnEffort": null,
        });
        self.transcript
            .chain(&mut self.ids, Some(uuid), None, entry);
        text
    }

    /// Answers `interrupt` and ends the turn, if one runs.
    pub(super) fn interrupt(&mut self, id: &str, cancels_queued: bool) {
        let turn = self.turn.take();
        let asked: Vec<(String, Open)> = std::mem::take(&mut self.open).into_iter().collect();
        for (request, open) in asked {
            match open {
                Open::Hook { .. } | Open::Ask { .. } | Open::BatchHook => {
                    self.cancel_request(&request)
                }
                Open::Call { call, rpc_id, .. } => {
                    self.cancelled.insert(request);
                    let name = turn
                        .as_ref()
                        .map(|it| it.calls[call].name.clone())
                        .unwrap_or_default();
                    let server = frames::split_mcp(&name).map_or("", |it| it.0).to_owned();
                    let message = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": rpc_id, "reason": "AbortError: remote-cancel"}});
                    self.send_mcp(&server, &message, Open::Ignored);
                }
                Open::Handshake { .. } | Open::Ignored => {
                    self.open.insert(request, open);
                }
            }
        }
        let queued: Vec<String> = self.queue.iter().filter_map(|it| it.uuid.clone()).collect();
        if cancels_queued {
            self.queue.clear();
            self.answer(id, &json!({"still_queued": [], "cancelled": queued}));
            for uuid in &queued {
                self.send_lifecycle(uuid, "cancelled");
            }
        } else {
            self.answer(id, &json!({"still_queued": queued}));
        }
        if let Some(turn) = turn {
            self.abort(turn);
        }
    }

    /// Ends a turn whose call was denied with `interrupt: true`.
    pub(super) fn abort(&mut self, mut turn: Turn) {
        let step = std::mem::replace(&mut turn.step, Step::Tools);
        turn.is_streaming = false;
        let (ending, text) = match step {
            Step::Streaming(stream) => {
                self.write_entries(&mut turn, &stream.message, "tool_use");
                if let Some(half) = &stream.half {
                    self.abort_text(&turn, &stream, half);
                }
                (Ending::AbortedStreaming, INTERRUPTED)
            }
            Step::CallModel | Step::AtGate { .. } | Step::Retrying => {
                (Ending::AbortedStreaming, INTERRUPTED)
            }
            Step::Tools | Step::BatchHook { .. } => (Ending::AbortedTools, INTERRUPTED_IN_TOOL),
        };
        for index in 0..turn.calls.len() {
            if turn.calls[index].parent.is_some() || turn.calls[index].is_emitted {
                continue;
            }
            let outcome = match &turn.calls[index].state {
                CallState::Done(outcome) => outcome.clone(),
                _ => {
                    let mut outcome = Outcome::not_run(REJECTED, "user-rejected");
                    outcome.detail = json!("User rejected tool use");
                    outcome
                }
            };
            self.emit_result(&mut turn, index, &outcome);
        }
        if turn.tool_results > 0 {
            self.transcript.second_snapshot(&mut self.ids);
        }
        let message = json!({"role": "user", "content": [{"type": "text", "text": text}]});
        let uuid = self.send_stamped(json!({
            "type": "user", "message": message, "parent_tool_use_id": null, }));
        let mut entry = json!({"type": "user", "message": message});
        if let Some(id) = &turn.prompt_id {
            merge(&mut entry, json!({"promptId": id}));
        }
        self.transcript
            .chain(&mut self.ids, Some(uuid), None, entry);
        self.finish(turn, &ending);
    }

    fn abort_text(&mut self, turn: &Turn, stream: &Stream, half: &str) {
        let content = json!({"type": "text", "text": half});
        let message = self.streamed_message(&stream.message, &content);
        let mut frame = json!({
            "type": "assistant", "message": message, "parent_tool_use_id": null, "aborted": true,
            "request_id": REQUEST_ID,
        });
        turn.name_messages(&mut frame);
        let uuid = self.send_stamped(frame);
        let entry = json!({"type": "assistant", "message": message, "isAbortedMidStream": true});
        self.transcript
            .chain(&mut self.ids, Some(uuid), None, entry);
        self.send_event(
            &stream.message,
            json!({"event": {"type": "content_block_stop", "index": stream.index}}),
        );
        let delta = json!({"type": "message_delta", "delta": {"stop_reason": null, "stop_sequence": null}, "usage": frames::streamed_usage(1)});
        self.send_event(&stream.message, json!({"event": delta}));
        self.send_event(&stream.message, json!({
            "event": {"type": "message_stop"},
            "abandoned_blocks": {"api_message_id": stream.message, "from_block_index": stream.index + 1},
        }));
    }
}

const INTERRUPTED: &str = "[Request interrupted by user]";
const INTERRUPTED_IN_TOOL: &str = "[Request interrupted by user for tool use]";
const REJECTED: &str = "The user doesn't want to proceed with this tool use. The tool use was rejected (eg. if it was a file edit, the new_string was NOT written to the file). STOP what you are doing and wait for the user to tell you how to proceed.";

/// The word that the message of a failed model call carries for a status.
fn message_kind(status: u16) -> &'static str {
    match status {
        529 => "server_error",
        other => error_kind(other),
    }
}

/// The word that api_retry carries for a status.
pub(super) fn error_kind(status: u16) -> &'static str {
    match status {
        401 => "authentication_failed",
        429 => "rate_limit",
        529 => "overloaded",
        500.. => "server_error",
        _ => "unknown",
    }
}

fn aborted(reason: &str, stop_reason: &Value, tool_results: u64) -> Value {
    json!({
        "subtype": "error_during_execution", "is_error": true, "terminal_reason": reason,
        "num_turns": 2 + tool_results,
        "errors": [format!("[ede_diagnostic] result_type=user last_content_type=n/a stop_reason={}", stop_reason.as_str().unwrap_or("null"))],
    })
}

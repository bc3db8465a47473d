//! Model calls that fail and streams that break (captures `error_529`, `error_truncated`; real CLI
//! 2.1.316 and 2.1.332 with `CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK=1`).

use serde_json::json;

use super::endings::{self, Ending};
use super::frames::{self, merge};
use super::model::Stream;
use super::turn::{Progress, Step, Turn};
use super::{FakeCli, Fault};
use crate::testing::script::CUT_OFF_TEXT;

impl FakeCli {
    /// Fails the model call when a fault says so.
    pub(super) fn fail_model_call(&mut self, turn: &mut Turn) -> Option<Progress> {
        let fault = self.config.faults.iter().find_map(|it| match it {
            Fault::ApiError {
                status,
                at_model_call,
                recovers,
            } if *at_model_call == self.model_calls => Some((*status, *recovers)),
            _ => None,
        });
        let (status, recovers) = fault?;
        let limit = self.retry_limit();
        let is_retried = matches!(status, 401 | 408 | 429 | 500..);
        let retries = match (is_retried, limit) {
            (false, _) => 0,
            (true, Some(limit)) => limit,
            (true, None) => RETRIES,
        };
        for attempt in 1..=retries {
            self.send_retry(attempt, retries, Some(status));
            self.model_requests += 1;
            if recovers {
                return None;
            }
        }
        if status == 401 && limit.is_none() {
            turn.step = Step::Retrying;
            return Some(Progress::Waits);
        }
        Some(Progress::Ended(Ending::ApiError { status }))
    }

    /// Ends a message in the middle: what was complete stays, its calls among it.
    ///
    /// With a call the model is asked again once the calls are over, with text alone it is told to
    /// go on, and with nothing the request is sent again.
    pub(super) fn break_stream(&mut self, turn: &mut Turn, stream: &Stream) -> Progress {
        self.send_event(&stream.message, json!({
            "event": {"type": "message_stop"},
            "abandoned_blocks": {"api_message_id": stream.message, "from_block_index": stream.index},
        }));
        turn.is_streaming = false;
        if stream.index == 0 {
            let limit = self.retry_limit().unwrap_or(RETRIES);
            self.send_retry(1, limit, None);
            return self.request_reply(turn);
        }
        if turn.calls.is_empty() {
            self.write_entries(turn, &stream.message, "end_turn");
            self.say_cut_off(turn);
            turn.step = Step::CallModel;
        } else {
            self.write_entries(turn, &stream.message, "tool_use");
            turn.stop_reason = json!("tool_use");
            self.say_connection_lost();
            turn.step = Step::Tools;
        }
        Progress::More
    }

    /// A branch of the chain that ends with itself: the results hang on their calls.
    fn say_connection_lost(&mut self) {
        let id = self.ids.uuid();
        let message = json!({
            "id": id, "type": "message", "role": "assistant", "model": "<synthetic>",
            "content": [{"type": "text", "text": CONNECTION_LOST}], "stop_reason": "stop_sequence",
            "stop_sequence": "", "usage": frames::full_usage(0),
        });
        let uuid = self.send_stamped(json!({
            "type": "assistant", "message": message, "parent_tool_use_id": null,
            "error": "server_error", "is_api_error_message": true,
            "api_error": "connection_failed",
        }));
        let entry = json!({
            "type": "assistant", "message": message, "isApiErrorMessage": true,
            "apiError": "connection_failed", "error": "server_error",
            "streamCutCause": "stream_truncated",
        });
        self.transcript
            .chain(&mut self.ids, Some(uuid), None, entry);
    }

    fn say_cut_off(&mut self, turn: &Turn) {
        let message = json!({"role": "user", "content": [{"type": "text", "text": CUT_OFF_TEXT}]});
        let uuid = self.send_stamped(json!({
            "type": "user", "message": message, "parent_tool_use_id": null, "isSynthetic": true,
        }));
        let mut entry = json!({"type": "user", "isMeta": true, "message": message});
        if let Some(id) = &turn.prompt_id {
            merge(&mut entry, json!({"promptId": id}));
        }
        self.transcript
            .chain(&mut self.ids, Some(uuid), None, entry);
    }

    fn retry_limit(&self) -> Option<u64> {
        self.config
            .environment
            .get("CLAUDE_CODE_MAX_RETRIES")
            .and_then(|it| it.parse().ok())
    }

    fn send_retry(&mut self, attempt: u64, limit: u64, status: Option<u16>) {
        let error = status.map_or("unknown", endings::error_kind);
        self.send_own(json!({
            "type": "system", "subtype": "api_retry", "attempt": attempt, "max_retries": limit,
            "retry_delay_ms": 600 * attempt, "error_status": status, "error": error,
        }));
        self.transcript.chain(&mut self.ids, None, None, json!({"type": "system", "subtype": "api_error", "level": "error", "retryAttempt": attempt, "maxRetries": limit}));
    }
}

/// The real CLI's own limit.
const RETRIES: u64 = 10;

const CONNECTION_LOST: &str =
    "API Error: Connection lost mid-response. The response above may be incomplete.";

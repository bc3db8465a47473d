//! What leaves the machine: frames, requests, the mirror.

use serde_json::{Value, json};

use super::frames::merge;
use super::inbound::Open;
use super::{FakeCli, Fault, MirrorLag};

impl FakeCli {
    /// Sends a frame that carries a uuid and the session id, and returns the uuid.
    pub(super) fn send_own(&mut self, mut frame: Value) -> String {
        let uuid = self.ids.uuid();
        merge(&mut frame, json!({"uuid": uuid}));
        self.send_with_session(frame);
        uuid
    }

    /// As [`Self::send_own`], with the time that user, assistant and attachment lines carry.
    pub(super) fn send_stamped(&mut self, mut frame: Value) -> String {
        let timestamp = self.ids.timestamp();
        merge(&mut frame, json!({"timestamp": timestamp}));
        self.send_own(frame)
    }

    pub(super) fn send_with_session(&mut self, mut frame: Value) {
        merge(&mut frame, json!({"session_id": self.transcript.session}));
        self.send(&frame);
    }

    pub(super) fn send(&mut self, frame: &Value) {
        if self.has_fault(&Fault::UnknownFrames) {
            self.push_line(&json!({"type": "never_seen_before", "payload": [1, null]}));
            self.push_line(&json!({"type": "system", "subtype": "never_seen_before"}));
        }
        self.push_line(frame);
        for late in self.transcript.take_due(Some(self.made)) {
            self.push_line(&late);
        }
    }

    pub(super) fn push_line(&mut self, frame: &Value) {
        self.made += 1;
        self.lines.push_back(frame.to_string());
    }

    pub(super) fn send_request(&mut self, request: Value, open: Open) -> String {
        let id = self.ids.uuid();
        self.send(&json!({"type": "control_request", "request_id": id, "request": request}));
        self.open.insert(id.clone(), open);
        id
    }

    pub(super) fn send_state(&mut self, state: &str) {
        if self.is_set("CLAUDE_CODE_SDK_READS_SESSION_STATE") {
            self.send_own(json!({"type": "system", "subtype": "session_state_changed", "state": state, "sdk_host_only": true}));
        }
    }

    /// Mirrors what is pending; `at_once` also lets go of what lags.
    pub(super) fn flush_mirror(&mut self, at_once: bool) {
        let frame = self.transcript.take_pending();
        if !self.arguments.has_mirror || self.has_fault(&Fault::NoMirror) {
            return;
        }
        if at_once {
            for late in self.transcript.take_due(None) {
                self.push_line(&late);
            }
        }
        match (frame, self.config.mirror_lag) {
            (Some(frame), MirrorLag::Lines(lines)) if !at_once => {
                self.transcript.delay(self.made + lines, frame);
            }
            (Some(frame), _) => self.push_line(&frame),
            (None, _) => {}
        }
    }

    pub(super) fn write_cost_state(&mut self) {
        if self.total.calls() > 0 {
            let entry = json!({
                "type": "cost-state", "totalCostUSD": self.total.cost(), "totalAPIDuration": 0,
                "totalAPIDurationWithoutRetries": 0, "totalToolDuration": 0, "totalLinesAdded": 0,
                "totalLinesRemoved": 0, "totalDuration": 0, "startTime": 0,
                "modelUsage": self.total.by_model(false), "hasUnknownModelCost": false,
            });
            self.transcript.bookkeeping(entry);
        }
    }
}

//! Transcripts as the live path makes them: entries of the CLI, entries rebuilt from its lines, and
//! entries that no CLI wrote (spec/cli-protocol.md 17c, 17d, 17k).

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::Broken;
use super::host::{SeenCall, text};
use crate::record::TranscriptEntry;

/// Kinds of entries that are not resumed from.
const DROPPED: [&str; 2] = ["last-prompt", "cost-state"];

/// A transcript that grows.
#[derive(Debug, Clone)]
pub(super) struct Growing {
    entries: Vec<TranscriptEntry>,
    last: Value,
}

impl Growing {
    /// Starts with what the CLI mirrored, bookkeeping left out.
    pub(super) fn of(mirrored: &[TranscriptEntry]) -> Result<Self, Broken> {
        Self::up_to(mirrored, |_| false)
    }

    /// Starts with what the CLI mirrored before the first entry of this kind.
    pub(super) fn up_to(
        mirrored: &[TranscriptEntry],
        is_end: impl Fn(&Value) -> bool,
    ) -> Result<Self, Broken> {
        let mut entries = Vec::new();
        let mut last = Value::Null;
        for entry in mirrored {
            let value: Value = serde_json::from_str(entry.as_str())
                .map_err(|_| Broken::new("a mirrored entry is no JSON"))?;
            if is_end(&value) {
                break;
            }
            if DROPPED.contains(&value["type"].as_str().unwrap_or_default()) {
                continue;
            }
            entries.push(entry.clone());
            if value["uuid"].is_string() {
                last = value;
            }
        }
        if last.is_null() {
            return Err(Broken::new("no entry of the conversation was mirrored"));
        }
        Ok(Self { entries, last })
    }

    /// Adds the entry of a line of the output: an assistant message, or the result of a call.
    pub(super) fn add_line(&mut self, line: &Value, calls: &[SeenCall]) -> Result<(), Broken> {
        let mut entry = json!({
            "isSidechain": false, "type": line["type"], "message": line["message"],
            "uuid": line["uuid"],
        });
        let answered = super::host::result_of(line);
        if let Some(call) = calls.iter().find(|it| Some(it.id.as_str()) == answered) {
            entry["sourceToolAssistantUUID"] = json!(call.line);
        }
        self.add(entry)
    }

    /// Adds the result of a call that the CLI did not run.
    pub(super) fn add_result(&mut self, call: &SeenCall, said: &str) -> Result<(), Broken> {
        let uuid = self.derived_uuid("result", call);
        self.add(json!({
            "isSidechain": false, "type": "user", "uuid": uuid,
            "sourceToolAssistantUUID": call.line,
            "message": {"role": "user", "content": [{
                "tool_use_id": call.id, "type": "tool_result",
                "content": [{"type": "text", "text": said}],
            }]},
        }))
    }

    /// Adds a deferral that the CLI never made.
    pub(super) fn add_deferral(&mut self, call: &SeenCall) -> Result<(), Broken> {
        let uuid = self.derived_uuid("deferral", call);
        self.add(json!({
            "isSidechain": false, "type": "attachment", "uuid": uuid, "attachment": {
                "type": "hook_deferred_tool", "toolUseID": call.id, "toolName": call.name,
                "toolInput": call.input, "hookName": "settings", "hookEvent": "PreToolUse",
                "permissionMode": "default",
            },
        }))
    }

    pub(super) fn into_entries(self) -> Vec<TranscriptEntry> {
        self.entries
    }

    /// Puts an entry behind the last one, with its time and its common fields.
    fn add(&mut self, mut entry: Value) -> Result<(), Broken> {
        entry["parentUuid"] = self.last["uuid"].clone();
        for name in COMMON {
            if let Some(value) = self.last.get(name) {
                entry[name] = value.clone();
            }
        }
        let line = TranscriptEntry::from_text(entry.to_string())
            .map_err(|_| Broken::new("an added entry is no JSON"))?;
        self.entries.push(line);
        self.last = entry;
        Ok(())
    }

    /// Makes the same id whenever the same entry is added, in the form of a UUID of version 8.
    fn derived_uuid(&self, kind: &str, call: &SeenCall) -> String {
        let mut hash = Sha256::new();
        for part in [kind, &call.id, &text(&self.last["uuid"])] {
            hash.update(part.as_bytes());
        }
        let mut bytes = [0_u8; 16];
        bytes.copy_from_slice(&hash.finalize()[..16]);
        uuid::Builder::from_custom_bytes(bytes)
            .into_uuid()
            .to_string()
    }
}

const COMMON: [&str; 7] = [
    "timestamp",
    "userType",
    "entrypoint",
    "cwd",
    "sessionId",
    "version",
    "gitBranch",
];

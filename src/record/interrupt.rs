//! What a list of open interrupts shows of one.

use serde::{Deserialize, Serialize};

use super::{ArgumentsDigest, CallRecord};
use crate::ids::{InterruptId, SessionId, Timestamp, ToolCallId, TurnId};
use crate::policy::ToolEffect;

/// A call that waits for a person, as a list over all sessions shows it. Each commit carries those of
/// its session anew, made from the records of its calls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct OpenInterrupt {
    /// The id to answer under.
    pub interrupt_id: InterruptId,
    /// The turn whose model asked for the call.
    pub turn_id: TurnId,
    /// The model's name for the call.
    pub tool_call_id: ToolCallId,
    /// Its tool.
    pub tool_name: String,
    /// The beginning of its final input, or of the application's view of it, at most
    /// [`ARGUMENTS_PREVIEW_CHARS`](super::ARGUMENTS_PREVIEW_CHARS) characters; the snapshot of the
    /// session has all of it.
    pub arguments_preview: String,
    /// True when the call asks questions, which are to be answered; otherwise it waits for approval.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub asks_questions: bool,
    /// The length of its final input, in bytes.
    pub arguments_bytes: u64,
    /// The digest of session, tool and input; an answer may name it (G4).
    pub digest: ArgumentsDigest,
    /// What the call does to the world.
    pub effect: ToolEffect,
    /// When the model asked for it.
    pub requested_at: Timestamp,
    /// When it is decided without a person, if it ever is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// Behind a payload codec: all of it, encoded; the fields that say what the call is are empty then.
    /// `None` in what a client sees.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) encoded: Option<String>,
}

impl OpenInterrupt {
    /// Describes the question about this call.
    #[must_use]
    pub fn of_call(record: &CallRecord) -> Self {
        Self {
            interrupt_id: InterruptId::of_call(record.turn_id, &record.tool_call_id),
            turn_id: record.turn_id,
            tool_call_id: record.tool_call_id.clone(),
            tool_name: record.tool_name.clone(),
            arguments_preview: record.arguments_preview.clone(),
            asks_questions: record.policy.asks_questions(),
            arguments_bytes: record.arguments_bytes,
            digest: record.digest.clone(),
            effect: record.policy.effect,
            requested_at: record.requested_at,
            expires_at: record.expires_at,
            encoded: None,
        }
    }

    /// Returns what is left of it when all that it says of the call is taken out.
    pub(crate) fn behind_codec(&self, session: &SessionId, encoded: Option<String>) -> Self {
        Self {
            interrupt_id: self.interrupt_id.clone(),
            turn_id: self.turn_id,
            tool_call_id: self.tool_call_id.clone(),
            tool_name: String::new(),
            arguments_preview: String::new(),
            asks_questions: self.asks_questions,
            arguments_bytes: 0,
            // The digest of short arguments would tell them to whoever tries some.
            digest: ArgumentsDigest::of(session, "", ""),
            effect: self.effect,
            requested_at: self.requested_at,
            expires_at: self.expires_at,
            encoded,
        }
    }
}

//! One message of the conversation, and the chunk that holds some of them.

use serde::{Deserialize, Serialize};

use super::{FORMAT, FrameworkItem, RecordError, read_record};
use crate::ids::{Timestamp, ToolCallId, TurnId};

/// Who speaks in a stored message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum MessageRole {
    /// A person.
    User,
    /// The model.
    Assistant,
    /// The result of a call.
    Tool,
    /// What this crate tells the model about a turn that ended without an answer.
    Note,
    /// The beginning of an answer that was cut off by a cancel.
    Partial,
    /// Nobody: transcript lines that belong to no message and are not shown.
    Hidden,
}

/// One message of the conversation as it is stored. The entries of all messages, in sequence order,
/// are the Claude transcript (I21).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StoredMessage {
    /// The version of this record.
    pub format: u32,
    /// Its place in the conversation; rises, with gaps where a turn was rolled back.
    pub sequence: u64,
    /// The turn that it belongs to.
    pub turn_id: TurnId,
    /// Who speaks.
    pub role: MessageRole,
    /// What a person reads.
    pub text: String,
    /// Which call it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<ToolCallId>,
    /// When it was stored.
    pub created_at: Timestamp,
    /// What the runner needs to go on from here.
    pub framework_item: FrameworkItem,
}

impl StoredMessage {
    /// Makes a record in today's format.
    #[must_use]
    pub fn new(
        sequence: u64,
        turn_id: TurnId,
        role: MessageRole,
        text: String,
        created_at: Timestamp,
        framework_item: FrameworkItem,
    ) -> Self {
        Self {
            format: FORMAT,
            sequence,
            turn_id,
            role,
            text,
            tool_call_id: None,
            created_at,
            framework_item,
        }
    }
}

/// Writes messages as the plain bytes of a chunk: one JSON line each.
///
/// # Errors
/// Never in practice: every field is JSON.
pub fn encode_chunk(messages: &[StoredMessage]) -> Result<Vec<u8>, serde_json::Error> {
    let mut bytes = Vec::new();
    for message in messages {
        serde_json::to_writer(&mut bytes, message)?;
        bytes.push(b'\n');
    }
    Ok(bytes)
}

/// Reads the plain bytes of a chunk.
///
/// # Errors
/// [`RecordError::TooNew`] when any message is of a newer format, [`RecordError::Damaged`] when one
/// cannot be read.
pub fn decode_chunk(bytes: &[u8]) -> Result<Vec<StoredMessage>, RecordError> {
    bytes
        .split(|it| *it == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| read_record("a stored message", line))
        .collect()
}

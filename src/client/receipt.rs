//! The stored answer to a client's request, so that a repeat of it counts once (P03, P04).

use serde::{Deserialize, Serialize};

use crate::ids::{MessageId, SessionId, TurnId};
use crate::record::{ArgumentsDigest, FORMAT};
use crate::session::{Bug, Input, Reply, SteerMode, Steering};

/// What was answered to a request with an id. Committed together with its effect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Receipt {
    format: u32,
    digest: String,
    answer: Answer,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    MessageAccepted { message_id: MessageId, queued: bool },
    InterruptResolved,
    TurnCancelled { turn_id: TurnId },
    SessionClosing,
    SettingsUpdated { revision: u64 },
    Applied,
}

/// Returns the digest of what a client asked for.
pub(super) fn digest(session: &SessionId, input: &Input) -> String {
    let (name, content) = match input {
        Input::SendUserMessage { text } => ("send_user_message", text.clone()),
        Input::ResolveInterrupt(it) => (
            "resolve_interrupt",
            serde_json::json!([
                it.interrupt_id,
                it.decision,
                it.decided_by,
                it.digest,
                it.arguments.text()
            ])
            .to_string(),
        ),
        Input::CancelTurn { turn_id, reason } => (
            "cancel_turn",
            serde_json::json!([turn_id, reason]).to_string(),
        ),
        Input::DeleteQueuedMessage { message_id } => {
            ("delete_queued_message", message_id.to_string())
        }
        Input::EditQueuedMessage { message_id, text } => (
            "edit_queued_message",
            serde_json::json!([message_id, text]).to_string(),
        ),
        Input::SteerUserMessage { steering, mode } => steering_parts(steering, *mode),
        Input::RetryTurn { turn_id, .. } => ("retry_turn", turn_id.to_string()),
        Input::CloseSession { mode } => ("close_session", format!("{mode:?}")),
        Input::UpdateSettings {
            expected_revision,
            settings,
        } => (
            "update_settings",
            serde_json::json!([expected_revision, settings]).to_string(),
        ),
        Input::StartTurn { .. }
        | Input::TimePassed
        | Input::SizeMeasured { .. }
        | Input::TakeSteered { .. }
        | Input::BeginAttempt { .. }
        | Input::Segment { .. }
        | Input::SegmentEnded { .. }
        | Input::ToolEnded { .. }
        | Input::ReleaseAttempt { .. } => ("a worker's input has no receipt", String::new()),
    };
    ArgumentsDigest::of(session, name, &content)
        .as_str()
        .to_owned()
}

/// At the boundary, the digest is what it was before there was another mode.
fn steering_parts(steering: &Steering, mode: SteerMode) -> (&'static str, String) {
    match (steering, mode) {
        (Steering::New(text), SteerMode::AtBoundary) => ("steer_new_message", text.clone()),
        (Steering::New(text), SteerMode::Now) => ("steer_new_message_now", text.clone()),
        (Steering::Queued(id), SteerMode::AtBoundary) => ("steer_queued_message", id.to_string()),
        (Steering::Queued(id), SteerMode::Now) => ("steer_queued_message_now", id.to_string()),
    }
}

impl Receipt {
    /// Writes the receipt of an answer.
    pub(super) fn encode(digest: String, reply: &Reply) -> Result<Vec<u8>, Bug> {
        let answer = match reply {
            Reply::MessageAccepted { message_id, queued } => Answer::MessageAccepted {
                message_id: *message_id,
                queued: *queued,
            },
            Reply::InterruptResolved { .. } => Answer::InterruptResolved,
            Reply::TurnCancelled { turn_id, .. } => Answer::TurnCancelled { turn_id: *turn_id },
            Reply::SessionClosing { .. } => Answer::SessionClosing,
            Reply::SettingsUpdated { revision } => Answer::SettingsUpdated {
                revision: *revision,
            },
            Reply::Done => Answer::Applied,
            Reply::Granted(_)
            | Reply::NotYet(_)
            | Reply::Superseded
            | Reply::CallGranted
            | Reply::CallIsFinal(_)
            | Reply::CallNotPermitted
            | Reply::CallIsOpen
            | Reply::CallIsPermitted { .. }
            | Reply::Parked => {
                return Err(Bug {
                    invariant: "only client requests have receipts",
                });
            }
        };
        let receipt = Self {
            format: FORMAT,
            digest,
            answer,
        };
        serde_json::to_vec(&receipt).map_err(|_| Bug {
            invariant: "a receipt is JSON",
        })
    }

    /// Returns the first answer when the request is the same, `None` when it is another one.
    pub(super) fn answer_for(self, digest: &str) -> Option<Reply> {
        (self.digest == digest).then_some(match self.answer {
            Answer::MessageAccepted { message_id, queued } => {
                Reply::MessageAccepted { message_id, queued }
            }
            Answer::InterruptResolved => Reply::InterruptResolved { duplicate: true },
            Answer::TurnCancelled { turn_id } => Reply::TurnCancelled {
                turn_id,
                duplicate: true,
            },
            Answer::SessionClosing => Reply::SessionClosing { duplicate: true },
            Answer::SettingsUpdated { revision } => Reply::SettingsUpdated { revision },
            Answer::Applied => Reply::Done,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{golden, read_record};

    /// G12: receipts are read, and written byte for byte.
    #[test]
    fn stored_receipts_are_read_and_written_byte_for_byte() {
        let accepted = Reply::MessageAccepted {
            message_id: MessageId::new(3),
            queued: true,
        };
        let resolved = Reply::InterruptResolved { duplicate: false };
        let repeated = Reply::InterruptResolved { duplicate: true };
        for (name, reply, answer) in [
            ("receipt_message.json", &accepted, accepted.clone()),
            ("receipt_interrupt.json", &resolved, repeated),
        ] {
            let stored = golden(name);
            let written = Receipt::encode("digest".to_owned(), reply).unwrap();
            assert_eq!(
                String::from_utf8(written).unwrap(),
                String::from_utf8(stored.clone()).unwrap()
            );
            let read: Receipt = read_record("a receipt", &stored).unwrap();
            assert_eq!(read.clone().answer_for("digest"), Some(answer));
            assert_eq!(read.answer_for("another digest"), None);
        }
    }
}

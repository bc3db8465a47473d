//! The record of a gated call: its fate, from the request to exactly one end.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use super::FORMAT;
use crate::commit::RowKind;
use crate::ids::{IdempotencyKey, InterruptId, SessionId, StepId, Timestamp, ToolCallId, TurnId};
use crate::policy::ToolPolicy;
use crate::turn::CallPlace;

/// What the model reads when a call's outcome is unknown (G1).
pub const OUTCOME_UNKNOWN_TEXT: &str = "The outcome of this call is unknown: it was started, and the process that ran it ended before a result was recorded. It may or may not have taken effect, and it will not be run again automatically. Check whether it did before you repeat it.";

/// What the model reads when nobody decided about a call in time (spec/core.md 13).
pub const EXPIRED_TEXT: &str =
    "No one approved this call before the deadline; it did not run, so it is safe to call again.";

/// How much of a call's arguments its record shows (spec/core.md 20), in characters.
pub const ARGUMENTS_PREVIEW_CHARS: usize = 500;

/// How the error of a call begins that certainly did not run (N12).
pub const NOT_RUN_PREFIX: &str = "the tool did not run, so it is safe to call again";

/// The SHA-256 digest of a session, a tool and its final input: what an approval is bound to (G4).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ArgumentsDigest(String);

impl ArgumentsDigest {
    /// Computes the digest. Each part is preceded by its length, so that no two inputs run together.
    #[must_use]
    pub fn of(session: &SessionId, tool_name: &str, arguments: &str) -> Self {
        let mut hash = Sha256::new();
        for part in [session.as_str(), tool_name, arguments] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part.as_bytes());
        }
        let mut text = String::with_capacity(64);
        for byte in hash.finalize() {
            text.push(char::from(HEX[usize::from(byte >> 4)]));
            text.push(char::from(HEX[usize::from(byte & 0xf)]));
        }
        Self(text)
    }

    /// Returns the digest in lower-case hexadecimal.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ArgumentsDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

const HEX: [u8; 16] = *b"0123456789abcdef";

/// Where a call stands. It moves forward only, and out of the last five never (N34).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CallStatus {
    /// The model asked for it; a person has to decide.
    Requested,
    /// It may run, and has not been started.
    Decided,
    /// Its start mark is committed.
    Started,
    /// It ran and gave a result.
    Succeeded,
    /// It ended with an error, or never ran and never will.
    Failed,
    /// A person or a deadline refused it; it never ran.
    Rejected,
    /// It was passed over; it never ran.
    Skipped,
    /// It was started and its end is not known (G1).
    OutcomeUnknown,
    /// One of a newer version, in an event that is read. Never stored.
    #[serde(skip_deserializing)]
    Unrecognized,
}

impl CallStatus {
    /// True when the status never changes any more.
    #[must_use]
    pub const fn is_final(self) -> bool {
        match self {
            Self::Requested | Self::Decided | Self::Started => false,
            Self::Succeeded
            | Self::Failed
            | Self::Rejected
            | Self::Skipped
            | Self::OutcomeUnknown
            | Self::Unrecognized => true,
        }
    }
}

/// How a call ended: what is recorded and what the model gets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
#[non_exhaustive]
pub enum ToolOutcome {
    /// It ran; the model gets the output.
    Succeeded {
        /// What the tool said.
        output: String,
    },
    /// It ended with an error; the model gets its text.
    Failed {
        /// What went wrong, for the model.
        error: String,
    },
    /// It was refused; the model gets the message.
    Rejected {
        /// What the person said, if anything.
        message: Option<String>,
    },
    /// Nobody decided before the deadline.
    Expired,
    /// It was passed over.
    Skipped {
        /// Why.
        reason: SkipReason,
    },
    /// It was started and its end is not known.
    OutcomeUnknown,
}

/// Why a call was passed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SkipReason {
    /// The turn ended before it started.
    TurnEnded,
    /// An earlier write of the same reply failed or is unknown.
    EarlierWrite,
    /// The CLI that asked for it is gone, and the next one can run only one such call by itself.
    /// The decision holds for the same call made again in this turn.
    CallAgain,
    /// The CLI gave up the reply that asked for it.
    GivenUp,
    /// The user steered the turn elsewhere before anybody decided.
    Steered,
}

/// An outcome as its row holds it.
#[derive(Serialize)]
struct StoredOutcome<'a> {
    format: u32,
    #[serde(flatten)]
    outcome: &'a ToolOutcome,
}

impl ToolOutcome {
    /// Writes the outcome as its row holds it.
    pub(crate) fn write(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(&StoredOutcome {
            format: FORMAT,
            outcome: self,
        })
    }

    /// Returns the status that this outcome gives the record.
    #[must_use]
    pub const fn status(&self) -> CallStatus {
        match self {
            Self::Succeeded { .. } => CallStatus::Succeeded,
            Self::Failed { .. } => CallStatus::Failed,
            Self::Rejected { .. } | Self::Expired => CallStatus::Rejected,
            Self::Skipped { .. } => CallStatus::Skipped,
            Self::OutcomeUnknown => CallStatus::OutcomeUnknown,
        }
    }

    /// Returns the text that the model reads.
    #[must_use]
    pub fn model_text(&self) -> String {
        match self {
            Self::Succeeded { output } => output.clone(),
            Self::Failed { error } => error.clone(),
            Self::Rejected {
                message: Some(message),
            } => format!("The user rejected this call: {message}"),
            Self::Rejected { message: None } => "The user rejected this call.".to_owned(),
            Self::Expired => EXPIRED_TEXT.to_owned(),
            Self::Skipped {
                reason: SkipReason::Steered,
            } => {
                format!("{NOT_RUN_PREFIX}: the user wrote something else meanwhile")
            }
            Self::Skipped {
                reason: SkipReason::TurnEnded,
            } => {
                format!("{NOT_RUN_PREFIX}: the turn ended")
            }
            Self::Skipped {
                reason: SkipReason::EarlierWrite,
            } => {
                format!("{NOT_RUN_PREFIX}: an earlier call of the same reply did not succeed")
            }
            Self::Skipped {
                reason: SkipReason::CallAgain,
            } => {
                format!("{NOT_RUN_PREFIX}: it may run. Call it again with the same input")
            }
            Self::Skipped {
                reason: SkipReason::GivenUp,
            } => {
                format!("{NOT_RUN_PREFIX}: the reply was given up")
            }
            Self::OutcomeUnknown => OUTCOME_UNKNOWN_TEXT.to_owned(),
        }
    }

    /// True when the model gets the text as an error.
    #[must_use]
    pub const fn is_error(&self) -> bool {
        match self {
            Self::Succeeded { .. } => false,
            Self::Failed { .. }
            | Self::Rejected { .. }
            | Self::Expired
            | Self::Skipped { .. }
            | Self::OutcomeUnknown => true,
        }
    }
}

/// A person's answer to an interrupt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "decision", rename_all = "snake_case")]
#[expect(
    clippy::exhaustive_enums,
    reason = "clients write it; the other ways to answer are other requests"
)]
pub enum Decision {
    /// The call may run as it is.
    Approve,
    /// The call must not run.
    Reject {
        /// What the model is told, if anything.
        message: Option<String>,
    },
}

/// Who decided, and when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Decider {
    /// The application's name for the person, if it gave one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided_by: Option<String>,
    /// When the decision was committed.
    pub decided_at: Timestamp,
    /// What was decided.
    #[serde(flatten)]
    pub decision: Decision,
}

impl Decider {
    /// Records a decision.
    #[must_use]
    pub const fn new(
        decision: Decision,
        decided_by: Option<String>,
        decided_at: Timestamp,
    ) -> Self {
        Self {
            decided_by,
            decided_at,
            decision,
        }
    }
}

/// The durable record of a gated call; its arguments and output are rows of their own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CallRecord {
    /// The version of this record.
    pub format: u32,
    /// The turn whose model asked for it.
    pub turn_id: TurnId,
    /// The model's name for it.
    pub tool_call_id: ToolCallId,
    /// The policy name of the tool.
    pub tool_name: String,
    /// What it does to the world and whether it waits for a person.
    pub policy: ToolPolicy,
    /// Where it runs.
    pub place: CallPlace,
    /// The digest of its final input.
    pub digest: ArgumentsDigest,
    /// The digest of the input that the model asked with, where a person approved another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_digest: Option<ArgumentsDigest>,
    /// The call whose row holds the input that a person approved, where it is another one: this call is
    /// that one, made again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_in: Option<InterruptId>,
    /// The length of its arguments, in bytes; they are a row of their own.
    pub arguments_bytes: u64,
    /// The beginning of its arguments, at most [`ARGUMENTS_PREVIEW_CHARS`] characters, for lists and notes;
    /// where the application has a view of them, of that. Empty for a person's own, then.
    pub arguments_preview: String,
    /// True when people are shown a view of its arguments, which is a row of its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_view: bool,
    /// The Step that runs it, once there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_id: Option<StepId>,
    /// Where it stands.
    pub status: CallStatus,
    /// How often it was started.
    pub starts: u32,
    /// When the model asked for it.
    pub requested_at: Timestamp,
    /// Until when somebody may decide; `None` for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// Who decided, where somebody did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decider: Option<Decider>,
    /// When it was last started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// Fields of a newer version, kept as they are (G12).
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl CallRecord {
    /// Makes the record of a call that was just requested.
    #[must_use]
    pub fn requested(
        session: &SessionId,
        turn_id: TurnId,
        call: &crate::turn::RequestedCall,
        now: Timestamp,
    ) -> Self {
        let shown = call.shown_arguments.as_ref().unwrap_or(&call.arguments);
        Self {
            format: FORMAT,
            turn_id,
            tool_call_id: call.tool_call_id.clone(),
            tool_name: call.tool_name.clone(),
            policy: call.policy,
            place: call.place,
            digest: ArgumentsDigest::of(session, &call.tool_name, &call.arguments),
            asked_digest: None,
            changed_in: None,
            arguments_bytes: call.arguments.len() as u64,
            arguments_preview: preview(shown),
            has_view: call.shown_arguments.is_some(),
            step_id: None,
            status: CallStatus::Requested,
            starts: 0,
            requested_at: now,
            expires_at: None,
            decider: None,
            started_at: None,
            finished_at: None,
            extra: Map::new(),
        }
    }

    /// Puts another input in the place of the model's: a person wants that one to run (G4).
    pub(crate) fn change_arguments(&mut self, session: &SessionId, arguments: &str) {
        let digest = ArgumentsDigest::of(session, &self.tool_name, arguments);
        self.asked_digest = Some(std::mem::replace(&mut self.digest, digest));
        self.arguments_bytes = arguments.len() as u64;
        // No worker has made a view of these.
        self.arguments_preview = if self.has_view {
            String::new()
        } else {
            preview(arguments)
        };
    }

    /// Puts the input in the place of the model's that a person approved for this call when it was made
    /// before.
    pub(crate) fn carry_change(&mut self, earlier: &Self) {
        self.asked_digest = Some(std::mem::replace(&mut self.digest, earlier.digest.clone()));
        self.changed_in = earlier.changed_arguments_key();
        self.arguments_bytes = earlier.arguments_bytes;
        self.arguments_preview
            .clone_from(&earlier.arguments_preview);
    }

    /// Returns where the input that runs is stored.
    pub(crate) fn arguments_row(&self) -> (RowKind, InterruptId) {
        match self.changed_arguments_key() {
            Some(key) => (RowKind::ChangedArguments, key),
            None => (RowKind::Arguments, self.interrupt_id()),
        }
    }

    /// Returns where it is stored what people are shown of the model's input.
    pub(crate) fn shown_row(&self) -> (RowKind, InterruptId) {
        let kind = if self.has_view {
            RowKind::ShownArguments
        } else {
            RowKind::Arguments
        };
        (kind, self.interrupt_id())
    }

    /// Returns under which key the input is stored that a person put in the place of the model's.
    pub(crate) fn changed_arguments_key(&self) -> Option<InterruptId> {
        self.asked_digest.as_ref()?;
        let changed_in = self.changed_in.clone();
        Some(changed_in.unwrap_or_else(|| self.interrupt_id()))
    }

    fn interrupt_id(&self) -> InterruptId {
        InterruptId::of_call(self.turn_id, &self.tool_call_id)
    }

    /// What the model is told when the call ran with another input than its own. Answers to questions
    /// are told by the tool itself.
    pub(crate) fn change_note(&self) -> Option<String> {
        let is_changed = self.asked_digest.is_some() && !self.policy.asks_questions();
        is_changed.then(|| changed_input_note(&self.arguments_preview))
    }

    /// True when it was rejected because nobody decided in time.
    #[must_use]
    pub fn has_expired(&self) -> bool {
        let is_late = match (self.expires_at, self.finished_at) {
            (Some(expires_at), Some(finished_at)) => expires_at <= finished_at,
            (_, _) => false,
        };
        is_late && self.decider.is_none() && self.status == CallStatus::Rejected
    }

    /// Returns the key under which every start of the call runs (G2).
    #[must_use]
    pub fn idempotency_key(&self, session: &SessionId) -> IdempotencyKey {
        IdempotencyKey::of_call(session, self.turn_id, &self.tool_call_id)
    }
}

fn preview(arguments: &str) -> String {
    arguments.chars().take(ARGUMENTS_PREVIEW_CHARS).collect()
}

/// What the model is told about a call that ran with other arguments than its own: their beginning,
/// unless nobody is to see them.
pub(crate) fn changed_input_note(arguments: &str) -> String {
    match preview(arguments).as_str() {
        "" => "[A person changed the input of this call.]".to_owned(),
        input => {
            format!("[A person changed the input of this call. It ran with: {input}]")
        }
    }
}

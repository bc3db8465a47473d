//! What one reduction changes, as plain data: the session makes it, a store keeps it.
//!
//! Public as part of [`store`](crate::store).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::event::StepKind;
use crate::ids::{ChunkId, EventCursor, FlowType, Tenant, Timestamp};
use crate::record::OpenInterrupt;

/// Everything one reduction changes; it holds entirely or not at all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "stores that hosts write read every field"
)]
pub struct Commit {
    /// The reducer's new state: small, versioned, opaque to the store.
    pub state: Vec<u8>,
    /// What sessions are listed by.
    pub summary: SessionSummary,
    /// All interrupts that are open after it, each with an id of its own; those of the commit before
    /// that are not among them are no longer open.
    pub interrupts: Vec<OpenInterrupt>,
    /// The new end of the transcript chain; going back to an earlier one is how a turn is rolled back.
    pub head: Option<ChunkId>,
    /// New chunks of the transcript, each with a parent that exists or stands earlier in this list.
    pub chunks: Vec<Chunk>,
    /// Rows put or deleted: texts, arguments, outputs, records, receipts.
    pub rows: Vec<RowChange>,
    /// New events, whose cursors follow the last stored one without a gap (G13).
    pub events: Vec<EventRow>,
}

impl Commit {
    /// Returns both as one commit: what `next` builds on has happened with it.
    #[must_use]
    pub(crate) fn followed_by(mut self, next: Self) -> Self {
        self.chunks.extend(next.chunks);
        self.rows.extend(next.rows);
        self.events.extend(next.events);
        Self {
            chunks: self.chunks,
            rows: self.rows,
            events: self.events,
            ..next
        }
    }
}

/// An immutable piece of the transcript: some stored messages, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "stores that hosts write read every field"
)]
pub struct Chunk {
    /// Its name within the session; never used twice.
    pub id: ChunkId,
    /// The chunk before it, `None` for the first.
    pub parent: Option<ChunkId>,
    /// How many messages it holds.
    pub messages: u32,
    /// How [`Chunk::bytes`] is encoded.
    pub codec: ChunkCodec,
    /// The length before encoding, in bytes.
    pub raw_bytes: u64,
    /// The encoded messages.
    pub bytes: Vec<u8>,
}

/// A chunk without its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "stores that hosts write build it"
)]
pub struct ChunkHeader {
    /// Its name within the session.
    pub id: ChunkId,
    /// How many messages it holds.
    pub messages: u32,
    /// The length before encoding, in bytes.
    pub raw_bytes: u64,
}

/// How the bytes of a chunk are encoded. Stored as a number, so that a newer one is recognised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChunkCodec {
    /// JSON lines as they are. Stored as 0.
    Plain,
    /// zstd against dictionary 1 and the chunks of the same group before it, large strings taken out
    /// into rows of [`RowKind::Blob`]. Stored as 1.
    Zstd1,
}

impl ChunkCodec {
    /// The number of the newest codec that this version reads.
    pub const NEWEST: u32 = Self::Zstd1.number();

    /// Returns the number it is stored as.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Self::Plain => 0,
            Self::Zstd1 => 1,
        }
    }

    /// Returns the codec with this number, `None` for one of a newer version.
    #[must_use]
    pub const fn from_number(number: u32) -> Option<Self> {
        match number {
            0 => Some(Self::Plain),
            1 => Some(Self::Zstd1),
            _ => None,
        }
    }
}

/// The name of a row within its session.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(
    clippy::exhaustive_structs,
    reason = "stores that hosts write read both fields"
)]
pub struct RowKey {
    /// What kind of row it is.
    pub kind: RowKind,
    /// Its key among the rows of its kind.
    pub key: String,
}

/// What a row holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum RowKind {
    /// The text of a queued user message, by message id.
    Message,
    /// The record of a gated call, by turn id and tool call id.
    Record,
    /// The arguments of a gated call, as the model's segment left them.
    Arguments,
    /// The arguments that a person put in their place.
    ChangedArguments,
    /// What people are shown in the place of the arguments.
    ShownArguments,
    /// The output of a gated call.
    Output,
    /// The answer to a client's request, by request id.
    Receipt,
    /// A large string of the transcript, by the SHA-256 of its bytes.
    Blob,
}

impl RowKind {
    /// Returns the name it is stored under.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Message => "message",
            Self::Record => "record",
            Self::Arguments => "arguments",
            Self::ChangedArguments => "changed_arguments",
            Self::ShownArguments => "shown_arguments",
            Self::Output => "output",
            Self::Receipt => "receipt",
            Self::Blob => "blob",
        }
    }
}

/// One change of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_enums,
    reason = "stores that hosts write match on it"
)]
pub enum RowChange {
    /// Adds the row or replaces its value.
    Put(RowKey, Vec<u8>),
    /// Removes the row if it is there.
    Delete(RowKey),
}

/// One event of the session's log.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "stores that hosts write read both fields"
)]
pub struct EventRow {
    /// Its place in the log.
    pub cursor: EventCursor,
    /// The event as JSON.
    pub bytes: Vec<u8>,
}

/// What a session is doing (spec/core.md 3).
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SessionStatus {
    /// It waits for a message.
    #[default]
    Idle,
    /// A segment or a tool Step runs, or is due.
    Running,
    /// It waits for a person to decide about a call.
    AwaitingApproval,
    /// It is over.
    Ended,
}

impl SessionStatus {
    /// Returns the name it is stored and shown under.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Running => "running",
            Self::AwaitingApproval => "awaiting_approval",
            Self::Ended => "ended",
        }
    }

    /// Returns the status with this name, `None` for one of a newer version.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [
            Self::Idle,
            Self::Running,
            Self::AwaitingApproval,
            Self::Ended,
        ]
        .into_iter()
        .find(|it| it.name() == name)
    }
}

/// The indexed part of a session; each commit carries it anew.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[expect(
    clippy::exhaustive_structs,
    reason = "stores that hosts write read every field"
)]
pub struct SessionSummary {
    /// Which Flow it runs; `None` only in a default value.
    pub flow_type: Option<FlowType>,
    /// What it is doing.
    pub status: SessionStatus,
    /// The Step that it is at: the one that runs, is due, or waits for a person; `None` between turns.
    pub step: Option<StepKind>,
    /// Whose it is.
    pub tenant: Option<Tenant>,
    /// What the application said about it at its start.
    pub metadata: BTreeMap<String, String>,
    /// When it was started.
    pub created_at: Timestamp,
    /// When it was last committed.
    pub updated_at: Timestamp,
    /// When a worker has something to do for it: a time in the past for at once, `None` for never.
    pub due_at: Option<Timestamp>,
}

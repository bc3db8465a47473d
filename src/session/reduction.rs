//! What one reduction changes, gathered for one commit.

use std::collections::BTreeMap;

use super::active_turn::{ActiveTurn, CallState};
use super::size::StoredSize;
use super::state::{Counters, Lifetime, STATE_BYTES_MAX, SessionState, Settings};
use super::{Bug, ReduceError, Reply};
use crate::commit::{Chunk, ChunkCodec, Commit, EventRow, RowChange, RowKey, RowKind};
use crate::event::{EventKind, SessionEvent};
use crate::ids::{
    ChunkId, EventCursor, FlowType, MessageId, SessionId, StepId, Tenant, Timestamp, TurnId,
};
use crate::record::{FORMAT, FrameworkItem, MessageRole, StoredMessage, encode_chunk};
use crate::turn::{NewMessage, Usage};

/// A new state and all that must be committed with it. Made by [`super::reduce`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Reduction {
    /// The new state.
    pub state: SessionState,
    /// What the one who caused the input is told, once it is committed.
    pub reply: Reply,
    pub(super) now: Timestamp,
    chunks: Vec<Chunk>,
    rows: Vec<RowChange>,
    events: Vec<SessionEvent>,
    changed: bool,
}

/// Makes the first reduction of a session; its commit creates it.
#[must_use]
pub fn create(
    session_id: SessionId,
    flow_type: FlowType,
    tenant: Option<Tenant>,
    metadata: BTreeMap<String, String>,
    start_digest: String,
    ends_at: Option<Timestamp>,
    now: Timestamp,
) -> Reduction {
    let state = SessionState {
        format: FORMAT,
        session_id,
        flow_type,
        tenant,
        metadata,
        created_at: now,
        start_digest,
        counters: Counters::default(),
        ends_at,
        lifetime: Lifetime::Open,
        settings: Settings::default(),
        head: None,
        queue: Vec::new(),
        turn: None,
        usage: Usage::default(),
        last_failure: None,
        size: Some(StoredSize::default()),
        extra: serde_json::Map::new(),
    };
    let mut reduction = Reduction::on(&state, now);
    reduction.emit(None, EventKind::SessionStarted);
    reduction
}

/// How many messages of a forked conversation become one chunk.
const FORKED_CHUNK_MESSAGES: usize = 256;

impl Reduction {
    /// Gives a session that was just created the conversation of another one, up to this turn.
    ///
    /// # Errors
    /// [`Bug`], never in practice.
    pub(crate) fn fork_from(
        mut self,
        from: &SessionState,
        turn_id: TurnId,
        messages: Vec<StoredMessage>,
    ) -> Result<Self, Bug> {
        self.state.settings.values = from.settings.values.clone();
        self.state.counters.turn = turn_id.number();
        let from = from.session_id.clone();
        let last_turn = turn_id;
        self.emit(None, EventKind::SessionForked { from, last_turn });
        let mut messages = messages.into_iter().peekable();
        while messages.peek().is_some() {
            let chunk = messages.by_ref().take(FORKED_CHUNK_MESSAGES);
            let chunk = chunk.collect::<Vec<_>>();
            self.append_stored(chunk)?;
        }
        Ok(self)
    }

    pub(super) fn on(state: &SessionState, now: Timestamp) -> Self {
        Self {
            state: state.clone(),
            reply: Reply::Done,
            now,
            chunks: Vec::new(),
            rows: Vec::new(),
            events: Vec::new(),
            changed: false,
        }
    }

    /// True when there is nothing to commit: the reply holds as it is.
    #[must_use]
    pub const fn is_unchanged(&self) -> bool {
        !self.changed
    }

    /// Returns the events that are committed, for subscribers of this process.
    #[must_use]
    pub fn events(&self) -> &[SessionEvent] {
        &self.events
    }

    /// Returns all of it as a commit.
    ///
    /// # Errors
    /// [`Bug`] when the state breaks a rule; nothing may be committed then.
    pub fn to_commit(&self) -> Result<Commit, Bug> {
        check_invariants(&self.state)?;
        let state = self.state.write().map_err(|_| Bug {
            invariant: "a state is JSON",
        })?;
        if state.len() > STATE_BYTES_MAX {
            return Err(Bug {
                invariant: "a state holds at most 256 KiB",
            });
        }
        let mut events = Vec::with_capacity(self.events.len());
        for event in &self.events {
            let bytes = serde_json::to_vec(event).map_err(|_| Bug {
                invariant: "an event is JSON",
            })?;
            events.push(EventRow {
                cursor: event.cursor,
                bytes,
            });
        }
        Ok(Commit {
            state,
            summary: self.state.summary(self.now),
            interrupts: (self.state.turn.as_ref())
                .map(ActiveTurn::open_interrupts)
                .unwrap_or_default(),
            head: self.state.head,
            chunks: self.chunks.clone(),
            rows: self.rows.clone(),
            events,
        })
    }

    /// Adds a row that belongs to the same commit, such as a receipt.
    pub fn put_row(&mut self, kind: RowKind, key: impl Into<String>, value: Vec<u8>) {
        let key = key.into();
        self.changed = true;
        self.count_written(key.len() + value.len());
        self.rows.push(RowChange::Put(RowKey { kind, key }, value));
    }

    pub(super) fn replace_size(&mut self, size: StoredSize) {
        self.changed = true;
        self.state.size = Some(size);
    }

    /// What a commit replaces or deletes is not taken off: the next measurement does that.
    fn count_written(&mut self, bytes: usize) {
        if let Some(size) = &mut self.state.size {
            size.written = size.written.saturating_add(bytes as u64);
        }
    }

    pub(super) fn finish(mut self, reply: Reply) -> Result<Self, ReduceError> {
        self.drop_queue_of_full_session();
        self.end_closed_session();
        check_invariants(&self.state)?;
        self.reply = reply;
        Ok(self)
    }

    pub(super) fn delete_row(&mut self, kind: RowKind, key: impl Into<String>) {
        self.changed = true;
        self.rows.push(RowChange::Delete(RowKey {
            kind,
            key: key.into(),
        }));
    }

    pub(super) fn emit(&mut self, turn_id: Option<TurnId>, kind: EventKind) {
        self.changed = true;
        self.state.counters.cursor += 1;
        let cursor = EventCursor(self.state.counters.cursor);
        let event = SessionEvent::new(cursor, self.now, turn_id, kind);
        self.count_written(serde_json::to_vec(&event).map_or(0, |it| it.len()));
        self.events.push(event);
    }

    pub(super) fn next_turn_id(&mut self) -> TurnId {
        self.state.counters.turn += 1;
        TurnId::new(self.state.counters.turn)
    }

    pub(super) fn next_step_id(&mut self) -> StepId {
        self.state.counters.step += 1;
        StepId::new(self.state.counters.step)
    }

    pub(super) fn next_message_id(&mut self) -> MessageId {
        self.state.counters.message += 1;
        MessageId::new(self.state.counters.message)
    }

    /// Appends messages to the conversation as one chunk behind the head.
    pub(super) fn append(&mut self, turn_id: TurnId, messages: Vec<NewMessage>) -> Result<(), Bug> {
        if messages.is_empty() {
            return Ok(());
        }
        let mut stored = Vec::with_capacity(messages.len());
        for message in messages {
            self.state.counters.sequence += 1;
            let sequence = self.state.counters.sequence;
            let mut record = StoredMessage::new(
                sequence,
                turn_id,
                message.role,
                message.text,
                self.now,
                message.item,
            );
            record.tool_call_id = message.tool_call_id;
            if record.role != MessageRole::Hidden {
                self.emit(Some(turn_id), EventKind::MessageCommitted { sequence });
            }
            stored.push(record);
        }
        self.append_chunk(&stored)
    }

    /// Appends messages of another session, under numbers of this one.
    fn append_stored(&mut self, mut messages: Vec<StoredMessage>) -> Result<(), Bug> {
        for message in &mut messages {
            self.state.counters.sequence += 1;
            message.sequence = self.state.counters.sequence;
        }
        self.append_chunk(&messages)
    }

    /// Appends a user's text to the conversation and, as the same message, behind the place that it
    /// goes back to if the turn has no answer. Returns that place.
    pub(super) fn append_user_text_behind_both(
        &mut self,
        turn_id: TurnId,
        base: Option<ChunkId>,
        text: String,
    ) -> Result<Option<ChunkId>, Bug> {
        let head = self.state.head;
        self.append_text(turn_id, MessageRole::User, text)?;
        if head == base {
            return Ok(self.state.head);
        }
        let own = self.chunks.last().ok_or(Bug {
            invariant: "a text is a chunk",
        })?;
        self.state.counters.chunk += 1;
        let id = ChunkId(self.state.counters.chunk);
        let copy = Chunk {
            id,
            parent: base,
            ..own.clone()
        };
        self.count_written(copy.bytes.len());
        self.chunks.push(copy);
        Ok(Some(id))
    }

    fn append_chunk(&mut self, stored: &[StoredMessage]) -> Result<(), Bug> {
        let bytes = encode_chunk(stored).map_err(|_| Bug {
            invariant: "a stored message is JSON",
        })?;
        self.count_written(bytes.len());
        self.state.counters.chunk += 1;
        let id = ChunkId(self.state.counters.chunk);
        self.chunks.push(Chunk {
            id,
            parent: self.state.head,
            messages: u32::try_from(stored.len()).map_err(|_| Bug {
                invariant: "a chunk counts in 32 bits",
            })?,
            codec: ChunkCodec::Plain,
            raw_bytes: bytes.len() as u64,
            bytes,
        });
        self.state.head = Some(id);
        self.changed = true;
        Ok(())
    }

    /// Appends one text that the framework has yet to see.
    pub(super) fn append_text(
        &mut self,
        turn_id: TurnId,
        role: MessageRole,
        text: String,
    ) -> Result<(), Bug> {
        let item = match role {
            MessageRole::Note => FrameworkItem::turn_failure_note(&text),
            MessageRole::User
            | MessageRole::Assistant
            | MessageRole::Partial
            | MessageRole::Tool
            | MessageRole::Hidden => FrameworkItem::user_prompt(&text),
        };
        let item = item.map_err(|_| Bug {
            invariant: "a text is JSON",
        })?;
        self.append(
            turn_id,
            vec![NewMessage {
                role,
                text,
                tool_call_id: None,
                item,
            }],
        )
    }

    pub(super) fn state_bytes(&self) -> Result<usize, Bug> {
        let state = self.state.write().map_err(|_| Bug {
            invariant: "a state is JSON",
        })?;
        Ok(state.len())
    }

    /// The turn, to look at: [`Self::turn_mut`] makes a commit of it.
    pub(super) fn turn(&self) -> Result<&ActiveTurn, Bug> {
        self.state.turn.as_ref().ok_or(Bug {
            invariant: "there is an active turn",
        })
    }

    pub(super) fn turn_mut(&mut self) -> Result<&mut ActiveTurn, Bug> {
        self.changed = true;
        self.state.turn.as_mut().ok_or(Bug {
            invariant: "there is an active turn",
        })
    }

    pub(super) fn call_mut(&mut self, index: usize) -> Result<&mut CallState, Bug> {
        self.turn_mut()?.calls.get_mut(index).ok_or(Bug {
            invariant: "the turn has this call",
        })
    }

    /// Stores the call's record as it stands now.
    pub(super) fn put_record(&mut self, index: usize) -> Result<(), Bug> {
        let call = self.call_mut(index)?;
        let key = call.interrupt_id().as_str().to_owned();
        let bytes = serde_json::to_vec(&call.record).map_err(|_| Bug {
            invariant: "a record is JSON",
        })?;
        self.put_row(RowKind::Record, key, bytes);
        Ok(())
    }
}

/// Checked before each commit and after each load.
fn check_invariants(state: &SessionState) -> Result<(), Bug> {
    let Some(turn) = &state.turn else {
        return Ok(());
    };
    if !turn.calls.iter().all(CallState::is_consistent) {
        return Err(Bug {
            invariant: "a call's record and Step agree",
        });
    }
    match &turn.phase {
        super::Phase::Calls if turn.calls.iter().all(|it| it.record.status.is_final()) => {
            Err(Bug {
                invariant: "a turn whose calls are over goes on",
            })
        }
        super::Phase::RunModel(own) if own.running.is_none() && !turn.is_ready_for_segment() => {
            Err(Bug {
                invariant: "no segment is due while calls are open",
            })
        }
        super::Phase::Steering if turn.steered.is_empty() => Err(Bug {
            invariant: "a turn is steered by a message",
        }),
        super::Phase::Calls | super::Phase::RunModel(_) | super::Phase::Steering => Ok(()),
    }
}

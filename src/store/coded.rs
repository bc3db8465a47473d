//! Any store with a codec in front of it: what people, models and tools said is stored encoded.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

use super::codec::{PayloadCodec, PayloadLabel, SessionCodec};
use super::{
    ChangeStream, Chunk, ChunkHeader, Commit, EventRow, Fence, InterruptFilter, InterruptPage,
    LeaseAnswer, RowChange, RowKey, SessionFilter, SessionPage, SessionSize, StateStore,
    StoreError, StoredSession, WorkerId, WorkerRecord,
};
use crate::ids::{ChunkId, EventCursor, LeaseEpoch, Revision, SessionId};
use crate::record::{CODED, OpenInterrupt};

/// The form of what is stored: its header and the labels.
const VERSION: u8 = 1;

/// Puts a [`PayloadCodec`] in front of a store, whichever it is.
///
/// **Encoded** are the state (with settings, reasons and the names of who decided), all rows (messages,
/// arguments, outputs, records, receipts, large strings), the chunks of the transcript, the events, and
/// of an open interrupt its tool, the digest, the length and the beginning of its arguments.
///
/// **In the clear** is what a store orders and finds by: ids (of session, turns, calls, requests, which
/// their makers choose), Flow, tenant, status, Step, times, **metadata**, what a call does to the world,
/// revisions, leases and workers; of chunks the chain, the number of messages and the length; of each
/// payload its length; of a string from 32 KiB on its SHA-256, by which somebody who has the same string
/// knows it again. Live text is not stored.
///
/// What the codec refuses is [`StoreError::Corrupt`], a key that is gone [`StoreError::NoKey`], one that
/// cannot be had now [`StoreError::Busy`]; whatever it is, nothing was stored or changed. A payload that
/// was moved to another place or session is refused by its label. That an *older* payload was put back in
/// its own place is not noticed. A session is read with the codec that it was written with: without one it
/// is [`StoreError::Corrupt`], and so is with one what was written without.
///
/// An interrupt of a session without a key is listed with an empty tool and no arguments, so that the
/// inbox shows the others. [`StateStore::delete`] needs no key; the key itself is the host's to remove.
///
/// Limits are on plain bytes, [`StateStore::size`] tells stored ones. Chunks are packed before they are
/// encoded; rows and events, which SQLite packs by itself, are then as long as they are.
#[derive(Clone)]
pub struct CodedStateStore {
    inner: Arc<dyn StateStore>,
    codec: Arc<dyn PayloadCodec>,
}

impl fmt::Debug for CodedStateStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Whatever the codec is, it holds keys.
        f.debug_struct("CodedStateStore")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}

impl CodedStateStore {
    /// Puts the codec in front of the store.
    #[must_use]
    pub fn new(inner: Arc<dyn StateStore>, codec: Arc<dyn PayloadCodec>) -> Self {
        Self { inner, codec }
    }

    async fn of<'a>(&self, session: &'a SessionId) -> Result<Payloads<'a>, StoreError> {
        let codec = self.codec.open(session).await;
        let codec = codec.map_err(|it| it.of_session(session))?;
        Ok(Payloads { session, codec })
    }

    async fn of_new<'a>(&self, session: &'a SessionId) -> Result<Payloads<'a>, StoreError> {
        let codec = self.codec.create(session).await;
        let codec = codec.map_err(|it| it.of_session(session))?;
        Ok(Payloads { session, codec })
    }
}

/// The payloads of one session, on their way in or out.
struct Payloads<'a> {
    session: &'a SessionId,
    codec: Arc<dyn SessionCodec>,
}

impl Payloads<'_> {
    fn encode(&self, label: &PayloadLabel, plain: &[u8]) -> Result<Vec<u8>, StoreError> {
        let encoded = self.codec.encode(label, plain);
        let encoded = encoded.map_err(|it| it.of_payload(self.session, label))?;
        Ok([&[CODED, VERSION], &encoded[..]].concat())
    }

    fn decode(&self, label: &PayloadLabel, stored: &[u8]) -> Result<Vec<u8>, StoreError> {
        match stored {
            [CODED, VERSION, encoded @ ..] => {
                let plain = self.codec.decode(label, encoded);
                plain.map_err(|it| it.of_payload(self.session, label))
            }
            [CODED, version, ..] if *version > VERSION => Err(StoreError::TooNew {
                what: "an encoded payload",
                found: (*version).into(),
                supported: VERSION.into(),
            }),
            _ => Err(StoreError::Corrupt {
                what: format!("{label}: it was stored without a codec"),
            }),
        }
    }

    fn encode_commit(&self, commit: Commit) -> Result<Commit, StoreError> {
        let Commit {
            state,
            summary,
            interrupts,
            head,
            mut chunks,
            mut rows,
            mut events,
        } = commit;
        let session = self.session;
        for chunk in &mut chunks {
            chunk.bytes = self.encode(&PayloadLabel::chunk(session, chunk), &chunk.bytes)?;
        }
        for change in &mut rows {
            match change {
                RowChange::Put(key, value) => {
                    *value = self.encode(&PayloadLabel::row(session, key), value)?;
                }
                RowChange::Delete(_) => {}
            }
        }
        for event in &mut events {
            let label = PayloadLabel::event(session, event.cursor);
            event.bytes = self.encode(&label, &event.bytes)?;
        }
        let interrupts = interrupts.iter().map(|it| self.encode_interrupt(it));
        Ok(Commit {
            state: self.encode(&PayloadLabel::state(session), &state)?,
            summary,
            interrupts: interrupts.collect::<Result<_, _>>()?,
            head,
            chunks,
            rows,
            events,
        })
    }

    fn encode_interrupt(&self, interrupt: &OpenInterrupt) -> Result<OpenInterrupt, StoreError> {
        let plain = serde_json::to_vec(interrupt).map_err(|it| StoreError::Backend {
            operation: "encode an interrupt",
            source: it.into(),
        })?;
        let label = PayloadLabel::interrupt(self.session, &interrupt.interrupt_id);
        let encoded = self.encode(&label, &plain)?;
        Ok(interrupt.behind_codec(self.session, Some(to_hex(&encoded))))
    }

    fn decode_interrupt(&self, stored: &OpenInterrupt) -> Result<OpenInterrupt, StoreError> {
        let label = PayloadLabel::interrupt(self.session, &stored.interrupt_id);
        let damaged = |what: &str| StoreError::Corrupt {
            what: format!("{label}: {what}"),
        };
        let encoded = stored.encoded.as_deref();
        let encoded = encoded.ok_or_else(|| damaged("it was stored without a codec"))?;
        let bytes = from_hex(encoded).ok_or_else(|| damaged("it is no payload"))?;
        let plain = self.decode(&label, &bytes)?;
        let plain: OpenInterrupt =
            serde_json::from_slice(&plain).map_err(|_| damaged("it is no interrupt"))?;
        // What it is found by must be what was encoded with it.
        let expected = plain.behind_codec(self.session, Some(encoded.to_owned()));
        if expected != *stored {
            return Err(damaged("it is listed as another one"));
        }
        Ok(plain)
    }
}

#[async_trait]
impl StateStore for CodedStateStore {
    async fn load(&self, session: &SessionId) -> Result<Option<StoredSession>, StoreError> {
        let Some(stored) = self.inner.load(session).await? else {
            return Ok(None);
        };
        let label = PayloadLabel::state(session);
        let state = self.of(session).await?.decode(&label, &stored.state)?;
        Ok(Some(StoredSession { state, ..stored }))
    }

    async fn commit(
        &self,
        session: &SessionId,
        expected: Revision,
        fence: Option<Fence>,
        commit: Commit,
    ) -> Result<Revision, StoreError> {
        let payloads = if expected == Revision(0) {
            self.of_new(session).await?
        } else {
            self.of(session).await?
        };
        let commit = payloads.encode_commit(commit)?;
        self.inner.commit(session, expected, fence, commit).await
    }

    async fn read_rows(
        &self,
        session: &SessionId,
        keys: &[RowKey],
    ) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        let mut rows = self.inner.read_rows(session, keys).await?;
        if rows.iter().all(Option::is_none) {
            return Ok(rows);
        }
        let payloads = self.of(session).await?;
        for (key, row) in keys.iter().zip(&mut rows) {
            if let Some(stored) = row {
                *stored = payloads.decode(&PayloadLabel::row(session, key), stored)?;
            }
        }
        Ok(rows)
    }

    async fn chunk_chain(
        &self,
        session: &SessionId,
        head: ChunkId,
    ) -> Result<Vec<ChunkHeader>, StoreError> {
        self.inner.chunk_chain(session, head).await
    }

    async fn read_chunks(
        &self,
        session: &SessionId,
        last: ChunkId,
        count: usize,
    ) -> Result<Vec<Chunk>, StoreError> {
        let mut chunks = self.inner.read_chunks(session, last, count).await?;
        if chunks.is_empty() {
            return Ok(chunks);
        }
        let payloads = self.of(session).await?;
        for chunk in &mut chunks {
            chunk.bytes = payloads.decode(&PayloadLabel::chunk(session, chunk), &chunk.bytes)?;
        }
        Ok(chunks)
    }

    async fn size(&self, session: &SessionId) -> Result<SessionSize, StoreError> {
        self.inner.size(session).await
    }

    async fn read_events(
        &self,
        session: &SessionId,
        after: EventCursor,
        limit: usize,
    ) -> Result<Vec<EventRow>, StoreError> {
        let mut events = self.inner.read_events(session, after, limit).await?;
        if events.is_empty() {
            return Ok(events);
        }
        let payloads = self.of(session).await?;
        for event in &mut events {
            let label = PayloadLabel::event(session, event.cursor);
            event.bytes = payloads.decode(&label, &event.bytes)?;
        }
        Ok(events)
    }

    async fn list(&self, filter: &SessionFilter, limit: usize) -> Result<SessionPage, StoreError> {
        self.inner.list(filter, limit).await
    }

    async fn list_interrupts(
        &self,
        filter: &InterruptFilter,
        limit: usize,
    ) -> Result<InterruptPage, StoreError> {
        let mut page = self.inner.list_interrupts(filter, limit).await?;
        for row in &mut page.rows {
            row.interrupt = match self.of(&row.session).await {
                Ok(payloads) => payloads.decode_interrupt(&row.interrupt)?,
                // One session whose key was thrown away must not hide what waits in all others.
                Err(StoreError::NoKey { .. }) => row.interrupt.behind_codec(&row.session, None),
                Err(error) => return Err(error),
            };
        }
        Ok(page)
    }

    async fn register_worker(&self, worker: &WorkerRecord) -> Result<(), StoreError> {
        self.inner.register_worker(worker).await
    }

    async fn heartbeat(&self, worker: &WorkerId) -> Result<u64, StoreError> {
        self.inner.heartbeat(worker).await
    }

    async fn remove_worker(&self, worker: &WorkerId) -> Result<(), StoreError> {
        self.inner.remove_worker(worker).await
    }

    async fn acquire_lease(
        &self,
        session: &SessionId,
        worker: &WorkerId,
        take_over: Option<LeaseEpoch>,
    ) -> Result<LeaseAnswer, StoreError> {
        self.inner.acquire_lease(session, worker, take_over).await
    }

    async fn release_lease(
        &self,
        session: &SessionId,
        epoch: LeaseEpoch,
    ) -> Result<(), StoreError> {
        self.inner.release_lease(session, epoch).await
    }

    fn changes(&self) -> ChangeStream {
        self.inner.changes()
    }

    async fn delete(&self, session: &SessionId) -> Result<bool, StoreError> {
        self.inner.delete(session).await
    }
}

fn to_hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|it| [it >> 4, it & 15]);
    digits
        .map(|it| char::from(DIGITS[usize::from(it)]))
        .collect()
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |it: u8| char::from(it).to_digit(16);
    let pairs = text.as_bytes().chunks(2);
    pairs
        .map(|it| match it {
            [high, low] => u8::try_from(digit(*high)? << 4 | digit(*low)?).ok(),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commit::{ChunkCodec, RowKind};
    use crate::ids::InterruptId;

    /// G12: the labels are stored formats.
    #[test]
    fn labels_name_session_kind_and_place() {
        let session = SessionId::new("s/1").unwrap();
        let key = RowKey {
            kind: RowKind::ChangedArguments,
            key: "t1/\"c\"".to_owned(),
        };
        let chunk = Chunk {
            id: ChunkId(7),
            parent: Some(ChunkId(6)),
            messages: 2,
            codec: ChunkCodec::Zstd1,
            raw_bytes: 90,
            bytes: b"is not part of it".to_vec(),
        };
        let interrupt = InterruptId::from_client("t1/c1");
        let labels = [
            PayloadLabel::state(&session),
            PayloadLabel::row(&session, &key),
            PayloadLabel::chunk(&session, &chunk),
            PayloadLabel::event(&session, EventCursor(3)),
            PayloadLabel::interrupt(&session, &interrupt),
        ];
        let labels = labels.map(|it| String::from_utf8(it.as_bytes().to_vec()).unwrap());
        assert_eq!(
            labels,
            [
                r#"["abide",1,"s/1","state"]"#,
                r#"["abide",1,"s/1","row","changed_arguments","t1/\"c\""]"#,
                r#"["abide",1,"s/1","chunk",[7,6,2,1,90]]"#,
                r#"["abide",1,"s/1","event",3]"#,
                r#"["abide",1,"s/1","interrupt","t1/c1"]"#,
            ]
        );
    }

    /// Every byte comes back, and what is no pair of digits is refused.
    #[test]
    fn bytes_are_written_as_digits() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(from_hex(&to_hex(&all)), Some(all));
        assert_eq!(to_hex(&[0xc1, 0x0f]), "c10f");
        for broken in ["c", "c1f", "+1", "zz", "ä"] {
            assert_eq!(from_hex(broken), None, "{broken}");
        }
    }
}

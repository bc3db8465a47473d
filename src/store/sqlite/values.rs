//! How rows and events are stored: small values that say the same again and again, and would
//! otherwise take more room than the transcript.
//!
//! A value has a codec beside it. 0: as it is. 1: its length, as a number of seven bits a byte,
//! lowest first, and a zstd frame against dictionary 1. The events of a commit are one value under
//! the first one's cursor: the length of each, as such a number, and its bytes. An event that stands
//! alone under codec 0 has no length before it.

#[cfg(test)]
mod tests;

use std::sync::OnceLock;

use zstd_safe::{CCtx, CDict, DCtx, DDict};

use crate::ids::EventCursor;
use crate::packing::varint;
use crate::store::{Commit, EventRow, RowChange, StoreError};

/// Resembles what is stored, with what is most common last. Never changed: what was packed with it
/// needs it. The tests make it anew from the fixtures and compare.
const DICTIONARY_1: &[u8] = include_bytes!("values/dictionary_1.txt");

/// Larger values are rare and take most of the time.
const LEVEL: i32 = 3;

/// A shorter value is not worth the time.
const PACKED_BYTES_MIN: usize = 48;

/// A longer value is stored as it is, and one that claims to be longer is damaged.
const PACKED_BYTES_MAX: usize = 64 * 1024 * 1024;

const AS_IT_IS: u32 = 0;
const ZSTD_1: u32 = 1;

/// A value as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Value {
    pub(super) codec: u32,
    pub(super) bytes: Vec<u8>,
}

/// A commit with its values as they are stored.
#[derive(Debug)]
pub(super) struct PackedCommit {
    pub(super) commit: Commit,
    /// One for each change of a row; `None` for one that is deleted.
    pub(super) rows: Vec<Option<Value>>,
    /// Under the cursor of the first one in it.
    pub(super) events: Vec<(EventCursor, Value)>,
}

impl PackedCommit {
    pub(super) fn new(mut commit: Commit) -> Self {
        let mut packer = Packer::new();
        let rows = commit.rows.iter_mut().map(|it| match it {
            RowChange::Put(_, value) => Some(packer.value(std::mem::take(value))),
            RowChange::Delete(_) => None,
        });
        let rows = rows.collect();
        let events = packer.events(&commit.events);
        Self {
            commit,
            rows,
            events,
        }
    }
}

/// Packs values, one after the other.
struct Packer(Option<CCtx<'static>>);

impl Packer {
    fn new() -> Self {
        static DICTIONARY: OnceLock<Option<CDict<'static>>> = OnceLock::new();
        let dictionary = DICTIONARY.get_or_init(|| CDict::try_create(DICTIONARY_1, LEVEL));
        let prepared = || {
            let mut context = CCtx::try_create()?;
            context.ref_cdict(dictionary.as_ref()?).ok()?;
            Some(context)
        };
        Self(prepared())
    }

    fn value(&mut self, plain: Vec<u8>) -> Value {
        match self.pack(&plain) {
            Some(bytes) => Value {
                codec: ZSTD_1,
                bytes,
            },
            None => Value {
                codec: AS_IT_IS,
                bytes: plain,
            },
        }
    }

    fn events(&mut self, events: &[EventRow]) -> Vec<(EventCursor, Value)> {
        let Some(first) = events.first() else {
            return Vec::new();
        };
        let mut plain = Vec::new();
        for event in events {
            varint::put(&mut plain, event.bytes.len() as u64);
            plain.extend_from_slice(&event.bytes);
        }
        if let Some(bytes) = self.pack(&plain) {
            let codec = ZSTD_1;
            return vec![(first.cursor, Value { codec, bytes })];
        }
        let alone = events.iter().map(|it| {
            let codec = AS_IT_IS;
            let bytes = it.bytes.clone();
            (it.cursor, Value { codec, bytes })
        });
        alone.collect()
    }

    /// `None` when the value is better stored as it is.
    fn pack(&mut self, plain: &[u8]) -> Option<Vec<u8>> {
        if !(PACKED_BYTES_MIN..=PACKED_BYTES_MAX).contains(&plain.len()) {
            return None;
        }
        let mut frame = Vec::with_capacity(zstd_safe::compress_bound(plain.len()));
        self.0.as_mut()?.compress2(&mut frame, plain).ok()?;
        let mut packed = Vec::with_capacity(frame.len() + 4);
        varint::put(&mut packed, plain.len() as u64);
        packed.extend_from_slice(&frame);
        (packed.len() < plain.len()).then_some(packed)
    }
}

impl Value {
    /// Returns the value that was packed.
    pub(super) fn unpack(self) -> Result<Vec<u8>, StoreError> {
        match self.codec {
            AS_IT_IS => Ok(self.bytes),
            ZSTD_1 => unpack(&self.bytes).ok_or_else(|| StoreError::Corrupt {
                what: "a packed value".to_owned(),
            }),
            found => Err(StoreError::TooNew {
                what: "a packed value",
                found,
                supported: ZSTD_1,
            }),
        }
    }

    /// Returns the events that were stored under the cursor of the first one.
    pub(super) fn into_events(self, first: EventCursor) -> Result<Vec<EventRow>, StoreError> {
        if self.codec == AS_IT_IS {
            let (cursor, bytes) = (first, self.bytes);
            return Ok(vec![EventRow { cursor, bytes }]);
        }
        let plain = self.unpack()?;
        let mut left = &plain[..];
        let mut events = Vec::new();
        while !left.is_empty() {
            let length = varint::take_length(&mut left);
            let bytes = length.and_then(|it| varint::take_bytes(&mut left, it));
            let bytes = bytes.map_err(|it| StoreError::Corrupt {
                what: format!("events from {} on: {it}", first.0),
            })?;
            events.push(EventRow {
                cursor: EventCursor(first.0.saturating_add(events.len() as u64)),
                bytes: bytes.to_vec(),
            });
        }
        Ok(events)
    }
}

fn unpack(packed: &[u8]) -> Option<Vec<u8>> {
    static DICTIONARY: OnceLock<Option<DDict<'static>>> = OnceLock::new();
    let dictionary = DICTIONARY.get_or_init(|| DDict::try_create(DICTIONARY_1));
    let mut frame = packed;
    let length = varint::take_length(&mut frame).ok()?;
    if length > PACKED_BYTES_MAX {
        return None;
    }
    let mut plain = Vec::new();
    plain.try_reserve_exact(length).ok()?;
    let mut context = DCtx::try_create()?;
    context
        .decompress_using_ddict(&mut plain, frame, dictionary.as_ref()?)
        .ok()?;
    (plain.len() == length).then_some(plain)
}

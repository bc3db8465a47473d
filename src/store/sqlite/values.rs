//! How rows and events are stored: small values that say the same again and again, and would
//! otherwise take more room than the transcript.
//!
//! A value has a codec beside it. 0: as it is. 1: its length, as a number of seven bits a byte,
//! lowest first, and a zstd frame against dictionary 1, without its magic number.
//!
//! Events share a value, under the cursor of the first one, until it is some 4 KiB long. Under codec 0
//! it is one event; under codec 1 each event is a number and its bytes. The number is twice the
//! length of the bytes, and one more when the event's own cursor, which follows from its place, was
//! taken out of them behind the first `"cursor":`.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::sync::OnceLock;

use zstd_safe::{CCtx, CDict, DCtx, DDict};

use crate::ids::EventCursor;
use crate::packing::varint;
use crate::store::{Commit, EventRow, RowChange, StoreError};

/// Resembles what is stored, with what is most common last. Never changed: what was packed with it
/// needs it. The tests make it anew from the fixtures and compare.
const DICTIONARY_1: &[u8] = include_bytes!("values/dictionary_1.txt");

/// Packs events 13 % smaller than the library's default, for microseconds.
const LEVEL: i32 = 6;

/// What every frame begins with.
const MAGIC: [u8; 4] = zstd_safe::MAGICNUMBER.to_le_bytes();

const CURSOR: &[u8] = b"\"cursor\":";

/// A shorter value is not worth the time.
const PACKED_BYTES_MIN: usize = 48;

/// Events share a value up to this: who reads one of them unpacks all.
const SHARED_BYTES_MAX: usize = 4096;

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
}

impl PackedCommit {
    pub(super) fn new(mut commit: Commit) -> Self {
        let mut packer = Packer::new();
        let rows = commit.rows.iter_mut().map(|it| match it {
            RowChange::Put(_, value) => Some(packer.value(std::mem::take(value))),
            RowChange::Delete(_) => None,
        });
        let rows = rows.collect();
        Self { commit, rows }
    }
}

/// Adds events behind the last ones that are stored. Returns the values to write, each under the
/// cursor of its first event; the first of them may replace the last one that is stored.
pub(super) fn add_events(
    last: Option<(EventCursor, Value)>,
    events: &[EventRow],
) -> Vec<(EventCursor, Value)> {
    let Some(first) = events.first() else {
        return Vec::new();
    };
    let mut packer = Packer::new();
    let added = with_lengths(events);
    let shared = last.and_then(|(cursor, value)| {
        // What is damaged is left to who reads it.
        let plain = (value.codec == ZSTD_1).then(|| unpack(&value.bytes))??;
        (plain.len() + added.len() <= SHARED_BYTES_MAX).then_some((cursor, plain))
    });
    if let Some((cursor, mut plain)) = shared {
        plain.extend_from_slice(&added);
        if let Some(bytes) = packer.pack(&plain) {
            let codec = ZSTD_1;
            return vec![(cursor, Value { codec, bytes })];
        }
    }
    if let Some(bytes) = packer.pack(&added) {
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

fn with_lengths(events: &[EventRow]) -> Vec<u8> {
    let mut plain = Vec::new();
    for event in events {
        let (is_cut, bytes) = match without_cursor(event) {
            Some(bytes) => (1, Cow::Owned(bytes)),
            None => (0, Cow::Borrowed(&event.bytes)),
        };
        varint::put(&mut plain, bytes.len() as u64 * 2 + is_cut);
        plain.extend_from_slice(&bytes);
    }
    plain
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

    /// `None` when the value is better stored as it is.
    fn pack(&mut self, plain: &[u8]) -> Option<Vec<u8>> {
        if !(PACKED_BYTES_MIN..=PACKED_BYTES_MAX).contains(&plain.len()) {
            return None;
        }
        let mut frame = Vec::with_capacity(zstd_safe::compress_bound(plain.len()));
        self.0.as_mut()?.compress2(&mut frame, plain).ok()?;
        let mut packed = Vec::with_capacity(frame.len() + 4);
        varint::put(&mut packed, plain.len() as u64);
        packed.extend_from_slice(frame.strip_prefix(&MAGIC)?);
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
            let cursor = EventCursor(first.0.saturating_add(events.len() as u64));
            let bytes = take_event(&mut left, cursor).ok_or_else(|| StoreError::Corrupt {
                what: format!("the packed event {}", cursor.0),
            })?;
            events.push(EventRow { cursor, bytes });
        }
        Ok(events)
    }
}

/// Takes the cursor out of an event; `None` when it could not be put back.
fn without_cursor(event: &EventRow) -> Option<Vec<u8>> {
    let at = after_cursor(&event.bytes)?;
    let cursor = event.cursor.0.to_string();
    let rest = event.bytes[at..].strip_prefix(cursor.as_bytes())?;
    Some([&event.bytes[..at], rest].concat())
}

fn take_event(left: &mut &[u8], cursor: EventCursor) -> Option<Vec<u8>> {
    let number = varint::take_length(left).ok()?;
    let bytes = varint::take_bytes(left, number / 2).ok()?;
    if number % 2 == 0 {
        return Some(bytes.to_vec());
    }
    let at = after_cursor(bytes)?;
    let cursor = cursor.0.to_string();
    Some([&bytes[..at], cursor.as_bytes(), &bytes[at..]].concat())
}

/// Returns the place behind the first `"cursor":`; what follows does not change it.
fn after_cursor(bytes: &[u8]) -> Option<usize> {
    let at = bytes.windows(CURSOR.len()).position(|it| it == CURSOR)?;
    Some(at + CURSOR.len())
}

fn unpack(packed: &[u8]) -> Option<Vec<u8>> {
    static DICTIONARY: OnceLock<Option<DDict<'static>>> = OnceLock::new();
    let dictionary = DICTIONARY.get_or_init(|| DDict::try_create(DICTIONARY_1));
    let mut rest = packed;
    let length = varint::take_length(&mut rest).ok()?;
    if length > PACKED_BYTES_MAX {
        return None;
    }
    let mut plain = Vec::new();
    plain.try_reserve_exact(length).ok()?;
    let mut context = DCtx::try_create()?;
    context
        .decompress_using_ddict(&mut plain, &[&MAGIC, rest].concat(), dictionary.as_ref()?)
        .ok()?;
    (plain.len() == length).then_some(plain)
}

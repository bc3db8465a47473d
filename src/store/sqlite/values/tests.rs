//! Values as they are stored, and the training of their dictionary.

use std::path::PathBuf;

use super::*;
use crate::ids::Timestamp;
use crate::record::golden;
use crate::store::{RowKey, RowKind};

/// What version 1 stores in rows and events.
const SOURCES: [&str; 7] = [
    "receipt_interrupt.json",
    "receipt_message.json",
    "outcomes.jsonl",
    "record_rejected.json",
    "record_outcome_unknown.json",
    "record_requested.json",
    "events.jsonl",
];

/// The events of turns in the order in which they come, without their cursors.
const TYPICAL: &str = include_str!("typical_events.jsonl");

/// Deterministic, from the golden files of the stored formats and [`TYPICAL`] alone.
fn train() -> String {
    let texts = SOURCES.map(|it| {
        let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures/stored/v1");
        let value = std::fs::read_to_string(directory.join(it)).unwrap();
        let lines = value.lines().map(str::trim);
        lines.collect::<Vec<_>>().join("\n") + "\n"
    });
    texts.concat() + TYPICAL
}

/// G12: what was packed with the dictionary needs it as it was.
#[test]
fn the_dictionary_of_values_is_what_its_training_makes() {
    let trained = train();
    if DICTIONARY_1 != trained.as_bytes() {
        let made = std::env::temp_dir().join("values.txt");
        std::fs::write(&made, trained).unwrap();
        panic!(
            "a dictionary is never changed: it gets a successor, such as {}",
            made.display()
        );
    }
}

fn put(value: &[u8]) -> RowChange {
    let key = RowKey {
        kind: RowKind::Output,
        key: "k".to_owned(),
    };
    RowChange::Put(key, value.to_vec())
}

fn event(cursor: u64, bytes: &[u8]) -> EventRow {
    EventRow {
        cursor: EventCursor(cursor),
        bytes: bytes.to_vec(),
    }
}

/// Bytes that no codec makes smaller.
fn noise(count: usize) -> Vec<u8> {
    let mut number = 1_u64;
    let mut next = || {
        number = number
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        number.to_be_bytes()[0]
    };
    (0..count).map(|_| next()).collect()
}

/// G11: any bytes come back, packed or not, and what repeats itself gets small.
#[test]
fn values_come_back() {
    let outcome = br#"{"format":1,"outcome":"succeeded","text":"order 7 is refunded, and again: order 7 is refunded"}"#;
    for (value, codec) in [
        (&b""[..], AS_IT_IS),
        (b"\x00", AS_IT_IS),
        (&[b'a'; PACKED_BYTES_MIN - 1], AS_IT_IS),
        (&[b'a'; PACKED_BYTES_MIN], ZSTD_1),
        (outcome, ZSTD_1),
        (&[0; 100_000], ZSTD_1),
        (&noise(10_000), AS_IT_IS),
    ] {
        let packed = PackedCommit::new(Commit {
            rows: vec![put(value)],
            ..Commit::default()
        });
        let stored = packed.rows.into_iter().flatten().next().unwrap();
        assert_eq!(stored.codec, codec, "{} bytes", value.len());
        assert!(stored.bytes.len() <= value.len());
        assert_eq!(stored.unpack().unwrap(), value);
    }
}

/// G13: the events of a commit come back in order under their cursors, however they are stored.
#[test]
fn events_come_back() {
    let typical = |cursor: u64| {
        let text = format!(
            r#"{{"format":1,"cursor":{cursor},"at":{},"turn_id":"t4","kind":"turn_completed"}}"#,
            Timestamp(1_796_129_822_443).0
        );
        event(cursor, text.as_bytes())
    };
    let many: Vec<_> = (7..40).map(typical).collect();
    for (events, values) in [
        (&[][..], 0),
        (&[typical(7)], 1),
        (&many, 1),
        (&[event(1, b"short"), event(2, b"")], 2),
        (
            &[event(1, &noise(200)[..100]), event(2, &noise(200)[100..])],
            2,
        ),
        (&[event(1, b""), typical(2), event(3, b"\n")], 1),
        // A cursor that is not the event's, stands elsewhere, or twice.
        (&[typical(2), event(3, &typical(2).bytes)], 1),
        (
            &[event(
                30,
                br#"{"kind":"\"cursor\":","cursor":30,"other":{"cursor":30}}"#,
            )],
            1,
        ),
        (
            &[event(
                3,
                br#"{"cursor":30,"kind":"a rather long name of a kind"}"#,
            )],
            1,
        ),
        (
            &[event(
                7,
                br#"{"cursor":,"cursor":7,"kind":"a rather long name of a kind"}"#,
            )],
            1,
        ),
    ] {
        let packed = add_events(None, events);
        assert_eq!(packed.len(), values);
        let read = packed.into_iter();
        let read = read.map(|(first, value)| value.into_events(first).unwrap());
        assert_eq!(read.flatten().collect::<Vec<_>>(), events);
    }
    let stored = add_events(None, &many);
    let plain: usize = many.iter().map(|it| it.bytes.len()).sum();
    assert!(stored[0].1.bytes.len() * 10 < plain);
}

/// G13: events that come one by one share values of a bounded size, behind whatever was last.
#[test]
fn events_share_a_value() {
    let typical = |cursor: u64| {
        let text = format!(r#"{{"cursor":{cursor},"at":1796129822443,"kind":"turn_completed"}}"#);
        event(cursor, text.as_bytes())
    };
    let damaged = Value {
        codec: ZSTD_1,
        bytes: vec![1, 2, 3],
    };
    let newer = Value {
        codec: 2,
        bytes: Vec::new(),
    };
    let alone = Value {
        codec: AS_IT_IS,
        bytes: b"x".to_vec(),
    };
    for last in [damaged, newer, alone] {
        let added = add_events(Some((EventCursor(1), last)), &[typical(2)]);
        assert_eq!(added[0].0, EventCursor(2));
    }

    let mut stored: Vec<(EventCursor, Value)> = Vec::new();
    let mut all = Vec::new();
    for cursor in 1..=200 {
        let events = match cursor {
            90 => event(cursor, &noise(5_000)),
            150 => event(cursor, b"short"),
            _ => typical(cursor),
        };
        for (first, value) in add_events(stored.last().cloned(), std::slice::from_ref(&events)) {
            stored.retain(|it| it.0 != first);
            stored.push((first, value));
        }
        all.push(events);
    }
    assert!((5..12).contains(&stored.len()), "{}", stored.len());
    let read = stored.into_iter();
    let read = read.map(|(first, value)| value.into_events(first).unwrap());
    let read: Vec<_> = read.collect();
    let bytes = read
        .iter()
        .map(|it| it.iter().map(|it| it.bytes.len()).sum::<usize>());
    assert!(bytes.max() < Some(5_001));
    assert_eq!(read.concat(), all);
}

/// G12: what version 1 packed is read for ever; another release of zstd may pack it differently.
#[test]
fn golden_values_are_read() {
    let record = golden("record_rejected.json");
    let events = golden("events.jsonl");
    let events = events.split(|it| *it == b'\n').zip(1..);
    let events: Vec<_> = events.map(|(it, cursor)| event(cursor, it)).collect();
    let text = String::from_utf8(golden("packed_values.txt")).unwrap();
    let stored: Vec<_> = text.lines().map(value).collect();
    let packed = PackedCommit::new(Commit {
        rows: vec![put(&record)],
        ..Commit::default()
    });
    let today = format!(
        "\n{}\n{}",
        hexadecimal(packed.rows[0].as_ref().unwrap()),
        hexadecimal(&add_events(None, &events)[0].1)
    );
    let [value, batch] = &stored[..] else {
        panic!("today: {today}");
    };
    assert_eq!(value.clone().unpack().unwrap(), record, "today: {today}");
    let read = batch.clone().into_events(EventCursor(1)).unwrap();
    assert_eq!(read, events);
}

fn hexadecimal(value: &Value) -> String {
    value.bytes.iter().map(|it| format!("{it:02x}")).collect()
}

fn value(text: &str) -> Value {
    let digits = text.as_bytes().chunks(2);
    let bytes = digits.map(|it| u8::from_str_radix(std::str::from_utf8(it).unwrap(), 16).unwrap());
    Value {
        codec: ZSTD_1,
        bytes: bytes.collect(),
    }
}

/// Damaged bytes are told, whatever they claim, and a newer codec is recognised (G12).
#[test]
fn damaged_values_are_told() {
    let good = Packer::new().pack(&[b'a'; 1_000]).unwrap();
    let mut claims_more = Vec::new();
    varint::put(&mut claims_more, PACKED_BYTES_MAX as u64 + 1);
    let mut longer = Vec::new();
    varint::put(&mut longer, 1_001);
    longer.extend_from_slice(&good[2..]);
    for bytes in [
        Vec::new(),
        vec![0x80],
        vec![0xff; 12],
        good[..good.len() - 1].to_vec(),
        good[..2].to_vec(),
        claims_more,
        longer,
    ] {
        let codec = ZSTD_1;
        let value = Value { codec, bytes };
        let error = value.clone().unpack().unwrap_err();
        assert!(matches!(error, StoreError::Corrupt { .. }), "{value:?}");
        let error = value.clone().into_events(EventCursor(1)).unwrap_err();
        assert!(matches!(error, StoreError::Corrupt { .. }), "{value:?}");
    }
    let newer = Value {
        codec: 2,
        bytes: good,
    };
    for error in [
        newer.clone().unpack().unwrap_err(),
        newer.into_events(EventCursor(1)).unwrap_err(),
    ] {
        assert!(
            matches!(
                error,
                StoreError::TooNew {
                    found: 2,
                    supported: 1,
                    ..
                }
            ),
            "{error:?}"
        );
    }
}

//! Chunks come back byte for byte, against what they were packed against and nothing else.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::blobs::BLOB_BYTES_MIN;
use super::chunk::{GROUP_BYTES, PACKED_CHUNK_BYTES_MAX};
use super::*;
use crate::record::golden;

/// A transcript as it is stored: packed chunks with their raw lengths, and large strings.
#[derive(Default)]
struct Stored {
    chunks: Vec<(Vec<u8>, u64)>,
    blobs: BTreeMap<BlobId, Vec<u8>>,
}

impl Stored {
    fn of(plain: &[Vec<u8>]) -> Self {
        let mut stored = Self::default();
        let mut window = Window::new();
        for chunk in plain {
            let (packed, blobs) = window.pack(chunk).expect("it is short enough");
            stored.chunks.push((packed, chunk.len() as u64));
            stored
                .blobs
                .extend(blobs.into_iter().map(|it| (it.id, it.bytes)));
        }
        stored
    }

    fn unpack(&self, window: &mut Window, index: usize) -> Result<Vec<u8>, UnpackError> {
        let (packed, raw_bytes) = &self.chunks[index];
        let unpacked = window.unpack(packed, *raw_bytes)?;
        unpacked.restore(|id| self.blobs.get(id).map(|it| &it[..]))
    }

    fn behind(&self, index: usize) -> usize {
        usize::try_from(chunks_behind(&self.chunks[index].0).unwrap()).unwrap()
    }

    /// Reads one chunk without the rest of the transcript.
    fn read_alone(&self, index: usize) -> Vec<u8> {
        let mut window = Window::new();
        for before in index - self.behind(index)..index {
            let (packed, raw_bytes) = &self.chunks[before];
            window.unpack(packed, *raw_bytes).unwrap();
        }
        self.unpack(&mut window, index).unwrap()
    }

    fn packed_bytes(&self) -> usize {
        self.chunks.iter().map(|it| it.0.len()).sum()
    }
}

#[track_caller]
fn check(plain: &[Vec<u8>]) -> Stored {
    let stored = Stored::of(plain);
    let mut window = Window::new();
    for (index, chunk) in plain.iter().enumerate() {
        assert!(
            stored.unpack(&mut window, index).unwrap() == *chunk,
            "in order: {index}"
        );
        assert!(stored.read_alone(index) == *chunk, "alone: {index}");
    }
    stored
}

fn line(number: usize) -> Vec<u8> {
    let hash = sha2::Sha256::digest(number.to_le_bytes());
    let id: String = hash.iter().map(|it| format!("{it:02x}")).collect();
    format!(
        r#"{{"parentUuid":"{id}","isSidechain":false,"type":"user","message":{{"role":"user","content":"order {number} of {id}"}},"timestamp":"2026-12-01T02:58:05.{:03}Z"}}"#,
        number % 1_000
    )
    .into_bytes()
}

use sha2::Digest as _;

/// G11: any bytes come back, JSON or not, at the sizes at which something changes.
#[test]
fn chunks_come_back() {
    let large = |bytes: usize| format!("{{\"a\":\"{}\"}}\n", "x".repeat(bytes)).into_bytes();
    check(&[
        Vec::new(),
        b"\n".to_vec(),
        line(1),
        Vec::new(),
        (0..=u8::MAX).collect(),
        b"\"\\".to_vec(),
        large(BLOB_BYTES_MIN - 1),
        large(BLOB_BYTES_MIN),
        b"\"".repeat(BLOB_BYTES_MIN + 1),
        b"\\".repeat(BLOB_BYTES_MIN + 1),
        line(2),
        large(GROUP_BYTES),
        vec![b'y'; GROUP_BYTES],
        line(3),
    ]);
}

/// A chunk that resembles the ones before it is small, the first one of a session too.
#[test]
fn what_was_said_before_costs_little() {
    let plain: Vec<_> = (0..40).map(line).collect();
    let stored = check(&plain);
    // Each line has 32 random bytes, in hexadecimal and twice.
    let later: usize = stored.chunks[1..].iter().map(|it| it.0.len()).sum();
    assert!(later < 39 * 100, "{later}");
    assert!(
        stored.chunks[0].0.len() < 130,
        "{}",
        stored.chunks[0].0.len()
    );
}

/// A page needs no more than its group: some 128 KiB, and at most 128 chunks.
#[test]
fn groups_are_bounded() {
    let short: Vec<_> = (0..300).map(|it| line(it)[..100].to_vec()).collect();
    let stored = check(&short);
    let behind: Vec<_> = (0..300).map(|it| stored.behind(it)).collect();
    assert_eq!(behind, Vec::from_iter((0..300).map(|it| it % 128)));

    let long: Vec<_> = (0..40).map(|it| line(it).repeat(60)).collect();
    let stored = check(&long);
    for index in 0..40 {
        let group = &long[index - stored.behind(index)..index];
        assert!(group.iter().map(Vec::len).sum::<usize>() < GROUP_BYTES);
    }
    let starts = (0..40).filter(|it| stored.behind(*it) == 0).count();
    let bytes: usize = long.iter().map(Vec::len).sum();
    assert!(starts <= bytes / GROUP_BYTES + 1, "{starts}");
}

/// G11: a string that comes again is stored once, whatever lies between, and comes back with its escapes.
#[test]
fn a_large_string_is_stored_once() {
    let image = "aGVsbG8=\\n\\u00e4\\\"".repeat(BLOB_BYTES_MIN / 8);
    let with_image = |number: usize| {
        format!("{{\"n\":{number},\"content\":\"{image}\",\"result\":{{\"of\":\"{image}\"}}}}\n")
            .into_bytes()
    };
    let mut plain: Vec<_> = (0..10).map(with_image).collect();
    plain.insert(5, line(1).repeat(2_000));
    let stored = check(&plain);
    assert_eq!(stored.blobs.len(), 1);
    assert_eq!(stored.blobs.values().next().unwrap(), image.as_bytes());
    assert!(stored.packed_bytes() < 4_000, "{}", stored.packed_bytes());

    let (packed, raw_bytes) = &stored.chunks[0];
    let id = *stored.blobs.keys().next().unwrap();
    let first = || Window::new().unpack(packed, *raw_bytes).unwrap();
    assert_eq!(first().blobs().unwrap(), [id, id]);
    let mut other = image.clone().into_bytes();
    other[7] ^= 1;
    for (blob, expected) in [
        (None, "a large string is missing"),
        (
            Some(&image.as_bytes()[1..]),
            "a large string is not what it was",
        ),
        (Some(&other), "a large string is not what it was"),
    ] {
        let error = first().restore(|_| blob).unwrap_err();
        assert_eq!(error.what, expected);
    }
}

/// The key of a blob's row is the SHA-256 that others compute.
#[test]
fn a_blob_is_named_by_its_sha_256() {
    let plain = format!("\"{}\"", "a".repeat(1_000_000)).into_bytes();
    let (_, blobs) = Window::new().pack(&plain).unwrap();
    assert_eq!(
        blobs[0].id.to_string(),
        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"
    );
}

/// G12: what version 1 packed is read for ever; another release of zstd may pack it differently.
#[test]
fn golden_chunks_are_read() {
    let messages = golden("messages.jsonl");
    let lines: Vec<_> = messages.split_inclusive(|it| *it == b'\n').collect();
    let image = "x".repeat(BLOB_BYTES_MIN);
    let plain = [
        lines[..2].concat(),
        lines[2..].concat(),
        format!("{{\"image\":\"{image}\",\"again\":\"{image}\"}}\n").into_bytes(),
    ];
    let text = String::from_utf8(golden("packed_chunks.txt")).unwrap();
    let mut window = Window::new();
    let mut read = Vec::new();
    for line in text.lines() {
        let (raw_bytes, packed) = line.split_once(' ').unwrap();
        let bytes = packed
            .as_bytes()
            .chunks(2)
            .map(|it| u8::from_str_radix(std::str::from_utf8(it).unwrap(), 16).unwrap());
        let bytes: Vec<u8> = bytes.collect();
        let unpacked = window.unpack(&bytes, raw_bytes.parse().unwrap()).unwrap();
        read.push(unpacked.restore(|_| Some(image.as_bytes())).unwrap());
    }
    assert!(read == plain, "today: {}", hexadecimal(&Stored::of(&plain)));
}

fn hexadecimal(stored: &Stored) -> String {
    let lines = stored.chunks.iter().map(|(packed, raw_bytes)| {
        let bytes: String = packed.iter().map(|it| format!("{it:02x}")).collect();
        format!("\n{raw_bytes} {bytes}")
    });
    lines.collect()
}

/// A chunk that is not packed ends the group on both sides.
#[test]
fn a_longer_chunk_is_not_packed() {
    let mut window = Window::new();
    window.pack(&line(1)).unwrap();
    assert!(
        window
            .pack(&vec![b' '; PACKED_CHUNK_BYTES_MAX + 1])
            .is_none()
    );
    let (packed, _) = window.pack(&line(2)).unwrap();
    assert_eq!(chunks_behind(&packed).unwrap(), 0);
}

/// Damage is told and never unpacks to something else (G11): every bit, every length, another order.
#[test]
fn damage_is_told() {
    let image = "x".repeat(BLOB_BYTES_MIN);
    let plain: Vec<_> = (0..3)
        .map(|it| [&line(it)[..], format!("\"{image}\"").as_bytes()].concat())
        .collect();
    let stored = Stored::of(&plain);
    let before = |count: usize| {
        let mut window = Window::new();
        for (packed, raw_bytes) in &stored.chunks[..count] {
            window.unpack(packed, *raw_bytes).unwrap();
        }
        window
    };
    let (packed, raw_bytes) = &stored.chunks[2];
    let of = |id: &BlobId| stored.blobs.get(id).map(|it| &it[..]);
    let unpack = |mut window: Window, packed: &[u8], raw_bytes| {
        window.unpack(packed, raw_bytes)?.restore(of)
    };
    assert_eq!(unpack(before(2), packed, *raw_bytes).unwrap(), plain[2]);
    for bit in 0..packed.len() * 8 {
        let mut damaged = packed.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        let unpacked = unpack(before(2), &damaged, *raw_bytes);
        assert!(
            unpacked.is_err() || unpacked == Ok(plain[2].clone()),
            "bit {bit}"
        );
    }
    for length in 0..packed.len() {
        unpack(before(2), &packed[..length], *raw_bytes).unwrap_err();
    }
    for other in [0, 1, raw_bytes - 1, raw_bytes + 1, u64::MAX] {
        unpack(before(2), packed, other).unwrap_err();
    }
    for count in [0, 1, 3] {
        unpack(before(count), packed, *raw_bytes).unwrap_err();
    }
    // As many chunks before it, and other ones.
    let mut window = Window::new();
    for number in [7, 8] {
        window.pack(&line(number)).unwrap();
    }
    unpack(window, packed, *raw_bytes).unwrap_err();
}

/// A damaged length makes nobody allocate or unpack more than the limit.
#[test]
fn a_claimed_length_is_not_trusted() {
    let (packed, _) = Window::new().pack(&vec![b'a'; 1_000_000]).unwrap();
    let too_long = PACKED_CHUNK_BYTES_MAX as u64 + 1;
    for (raw_bytes, expected) in [
        (
            1_000,
            "packed bytes are damaged, or not packed against these",
        ),
        (2_000_000, "a chunk has another length"),
        (too_long, "a packed chunk claims to be longer than any is"),
        (u64::MAX, "a packed chunk claims to be longer than any is"),
    ] {
        let unpacked = Window::new().unpack(&packed, raw_bytes);
        let error = unpacked.and_then(|it| it.restore(|_| None)).unwrap_err();
        assert_eq!(error.what, expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// G11: whatever is stored, in whatever chunks, comes back.
    #[test]
    fn any_chunks_come_back(
        plain in prop::collection::vec(
            prop_oneof![
                prop::collection::vec(any::<u8>(), 0..200),
                (0..50_usize, 1..800_usize).prop_map(|(number, times)| line(number).repeat(times)),
                (0..3_usize, 0..9_usize).prop_map(|(kind, more)| {
                    let text = ["x", "\\\"", "é"][kind].repeat(BLOB_BYTES_MIN + more);
                    format!("{{\"a\":\"{text}\"}}").into_bytes()
                }),
            ],
            0..12,
        )
    ) {
        let stored = Stored::of(&plain);
        let mut window = Window::new();
        for (index, chunk) in plain.iter().enumerate() {
            prop_assert!(stored.unpack(&mut window, index).unwrap() == *chunk);
            prop_assert!(stored.read_alone(index) == *chunk);
        }
    }
}

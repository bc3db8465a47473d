//! Large strings, stored once in a session, by the hash of their bytes.

use std::fmt;

use sha2::{Digest as _, Sha256};

use super::{UnpackError, damaged, varint};

/// From how many bytes on a string is stored apart. What is shorter finds its like in the window,
/// which holds several of this length; what is longer would push everything else out of it.
pub(super) const BLOB_BYTES_MIN: usize = 32 * 1024;

const HASH_BYTES: usize = 32;

/// The SHA-256 of a blob: its name within the session.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BlobId([u8; HASH_BYTES]);

impl BlobId {
    fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }
}

impl fmt::Display for BlobId {
    /// Writes it in hexadecimal: the key of its row.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|it| write!(f, "{it:02x}"))
    }
}

impl fmt::Debug for BlobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlobId({self})")
    }
}

/// A large string that was taken out of a chunk: what stands between its quotes, escapes and all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Blob {
    /// Its name.
    pub(crate) id: BlobId,
    /// Its bytes.
    pub(crate) bytes: Vec<u8>,
}

/// Where a blob was taken out.
pub(super) struct Cut {
    /// How many bytes of what is left stand between the cut before and this one.
    gap: usize,
    length: usize,
    pub(super) id: BlobId,
}

/// Takes the large strings out of JSON lines: returns where they were and what is left, as one text,
/// and the strings. Of one that stands there twice there is one blob.
pub(super) fn take_out(plain: &[u8]) -> (Vec<u8>, Vec<Blob>) {
    let (mut cuts, mut rest, mut blobs) = (Vec::new(), Vec::new(), Vec::<Blob>::new());
    let (mut count, mut copied, mut cut_at) = (0, 0, 0);
    let is_large = |(start, end): &(usize, usize)| end - start >= BLOB_BYTES_MIN;
    for (start, end) in strings(plain).filter(is_large) {
        let bytes = &plain[start..end];
        let id = BlobId::of(bytes);
        rest.extend_from_slice(&plain[copied..start]);
        varint::put(&mut cuts, (rest.len() - cut_at) as u64);
        varint::put(&mut cuts, bytes.len() as u64);
        cuts.extend_from_slice(&id.0);
        (count, copied, cut_at) = (count + 1, end, rest.len());
        if blobs.iter().all(|it| it.id != id) {
            let bytes = bytes.to_vec();
            blobs.push(Blob { id, bytes });
        }
    }
    let mut content = Vec::with_capacity(cuts.len() + rest.len() + plain.len() - copied + 1);
    varint::put(&mut content, count);
    for part in [&cuts, &rest, &plain[copied..]] {
        content.extend_from_slice(part);
    }
    (content, blobs)
}

/// Returns where the strings of JSON text begin and end, without their quotes. Of what is no JSON it
/// may return anything that lies within: nothing but the size depends on it.
fn strings(text: &[u8]) -> impl Iterator<Item = (usize, usize)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = at + text.get(at..)?.iter().position(|it| *it == b'"')? + 1;
        let mut end = start;
        loop {
            match text.get(end)? {
                b'"' => break,
                b'\\' => end += 2,
                _ => end += 1,
            }
        }
        at = end + 1;
        Some((start, end))
    })
}

/// Takes the cuts off the front of a content.
pub(super) fn take_cuts(content: &mut &[u8]) -> Result<Vec<Cut>, UnpackError> {
    let count = varint::take_length(content)?;
    let mut cuts = Vec::new();
    for _ in 0..count {
        let gap = varint::take_length(content)?;
        let length = varint::take_length(content)?;
        let hash = varint::take_bytes(content, HASH_BYTES)?;
        let id = BlobId(
            hash.try_into()
                .map_err(|_| damaged("a hash ends too soon"))?,
        );
        cuts.push(Cut { gap, length, id });
    }
    Ok(cuts)
}

/// Undoes [`take_out`], up to a length that the whole may not exceed.
pub(super) fn put_back<'a>(
    mut content: Vec<u8>,
    length_max: usize,
    of: impl Fn(&BlobId) -> Option<&'a [u8]>,
) -> Result<Vec<u8>, UnpackError> {
    let mut left = &content[..];
    let cuts = take_cuts(&mut left)?;
    if cuts.is_empty() {
        let start = content.len() - left.len();
        content.drain(..start);
        return Ok(content);
    }
    let mut plain = Vec::with_capacity(length_max);
    for cut in cuts {
        plain.extend_from_slice(varint::take_bytes(&mut left, cut.gap)?);
        let bytes = of(&cut.id).ok_or_else(|| damaged("a large string is missing"))?;
        if bytes.len() != cut.length || BlobId::of(bytes) != cut.id {
            return Err(damaged("a large string is not what it was"));
        }
        if plain.len() + bytes.len() > length_max {
            return Err(damaged("large strings are longer than their chunk"));
        }
        plain.extend_from_slice(bytes);
    }
    plain.extend_from_slice(left);
    Ok(plain)
}

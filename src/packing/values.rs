//! Rows and events: small values, each packed by itself, for stores that keep many.
//!
//! Packed bytes are the plain length, as a number of seven bits a byte, lowest first, and a zstd
//! frame against dictionary 1 of values.

use std::sync::OnceLock;

use zstd_safe::{CCtx, CDict, DCtx, DDict};

use super::zstd::LEVEL;
use super::{UnpackError, damaged, dictionary, varint};

/// What is shorter is not worth the time.
const PACKED_VALUE_BYTES_MIN: usize = 48;

/// A longer value is stored plain, and one that claims to be longer is damaged.
const PACKED_VALUE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Packs values, one after the other.
pub(crate) struct ValuePacker(Option<CCtx<'static>>);

impl ValuePacker {
    pub(crate) fn new() -> Self {
        static DICTIONARY: OnceLock<Option<CDict<'static>>> = OnceLock::new();
        let dictionary = DICTIONARY.get_or_init(|| CDict::try_create(dictionary::VALUES_1, LEVEL));
        let prepared = || {
            let mut context = CCtx::try_create()?;
            context.ref_cdict(dictionary.as_ref()?).ok()?;
            Some(context)
        };
        Self(prepared())
    }

    /// Packs a value; `None` when it is better stored as it is.
    pub(crate) fn pack(&mut self, plain: &[u8]) -> Option<Vec<u8>> {
        if !(PACKED_VALUE_BYTES_MIN..=PACKED_VALUE_BYTES_MAX).contains(&plain.len()) {
            return None;
        }
        let mut packed = Vec::with_capacity(zstd_safe::compress_bound(plain.len()) + 8);
        varint::put(&mut packed, plain.len() as u64);
        let mut frame = Vec::with_capacity(zstd_safe::compress_bound(plain.len()));
        self.0.as_mut()?.compress2(&mut frame, plain).ok()?;
        packed.extend_from_slice(&frame);
        (packed.len() < plain.len()).then_some(packed)
    }
}

/// Unpacks what [`ValuePacker::pack`] made.
pub(crate) fn unpack_value(packed: &[u8]) -> Result<Vec<u8>, UnpackError> {
    static DICTIONARY: OnceLock<Option<DDict<'static>>> = OnceLock::new();
    let dictionary = DICTIONARY.get_or_init(|| DDict::try_create(dictionary::VALUES_1));
    let no_memory = || damaged("there is no memory to unpack");
    let mut frame = packed;
    let length = varint::take_length(&mut frame)?;
    if length > PACKED_VALUE_BYTES_MAX {
        return Err(damaged("a packed value claims to be longer than any is"));
    }
    let mut plain = Vec::new();
    plain.try_reserve_exact(length).map_err(|_| no_memory())?;
    let dictionary = dictionary.as_ref().ok_or_else(no_memory)?;
    let mut context = DCtx::try_create().ok_or_else(no_memory)?;
    context
        .decompress_using_ddict(&mut plain, frame, dictionary)
        .map_err(|_| damaged("a packed value is damaged"))?;
    if plain.len() != length {
        return Err(damaged("a packed value holds another length"));
    }
    Ok(plain)
}

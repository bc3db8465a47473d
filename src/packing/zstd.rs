//! The one place that calls zstd.

use zstd_safe::{CCtx, CParameter, DCtx, ErrorCode};

use super::{UnpackError, damaged};

/// Level 3 is the library's default: higher ones save a few percent and take several times as long
/// to read a window before they pack a chunk against it (measured on a session of 200 turns).
const LEVEL: i32 = 3;

/// Packs bytes that resemble `before`. The frame carries a checksum, so that it is noticed when it
/// or `before` is not what it was.
///
/// `None` when the library has no memory.
pub(super) fn pack(before: &[u8], plain: &[u8]) -> Option<Vec<u8>> {
    let mut packed = Vec::with_capacity(zstd_safe::compress_bound(plain.len()));
    let mut context = CCtx::try_create()?;
    let mut write = || -> Result<(), ErrorCode> {
        context.set_parameter(CParameter::CompressionLevel(LEVEL))?;
        context.set_parameter(CParameter::ChecksumFlag(true))?;
        context.ref_prefix(before)?;
        context.compress2(&mut packed, plain)?;
        Ok(())
    };
    write().ok()?;
    Some(packed)
}

/// Unpacks what [`pack`] made of at most so many bytes.
pub(super) fn unpack(
    before: &[u8],
    packed: &[u8],
    length_max: usize,
) -> Result<Vec<u8>, UnpackError> {
    let no_memory = || damaged("there is no memory to unpack");
    let mut plain = Vec::new();
    plain
        .try_reserve_exact(length_max)
        .map_err(|_| no_memory())?;
    let mut context = DCtx::try_create().ok_or_else(no_memory)?;
    let mut read = || -> Result<(), ErrorCode> {
        context.ref_prefix(before)?;
        context.decompress(&mut plain, packed)?;
        Ok(())
    };
    read().map_err(|_| damaged("packed bytes are damaged, or not packed against these"))?;
    Ok(plain)
}

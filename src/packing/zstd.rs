//! The one place that calls zstd.

use zstd_safe::{CCtx, CParameter, DCtx, ErrorCode};

use super::{UnpackError, damaged};

/// The library's default, quick enough for every commit of a short session.
const LEVEL: i32 = 3;

/// Saves 5 % of a long session, and takes 0.4 ms instead of 0.15 ms of CPU for a chunk of 10 KB
/// against 64 KiB (measured on a session of 200 turns).
const THOROUGH_LEVEL: i32 = 6;

/// From so much to pack against on, a session is long enough for [`THOROUGH_LEVEL`].
const LONG_BYTES: usize = 48 * 1024;

/// Packs bytes that resemble `before`. The frame carries a checksum, so that it is noticed when it
/// or `before` is not what it was.
///
/// `None` when the library has no memory.
pub(super) fn pack(before: &[u8], plain: &[u8]) -> Option<Vec<u8>> {
    let mut packed = Vec::with_capacity(zstd_safe::compress_bound(plain.len()));
    let mut context = CCtx::try_create()?;
    let level = if before.len() < LONG_BYTES {
        LEVEL
    } else {
        THOROUGH_LEVEL
    };
    let mut write = || -> Result<(), ErrorCode> {
        context.set_parameter(CParameter::CompressionLevel(level))?;
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

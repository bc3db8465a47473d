//! Numbers of seven bits a byte, lowest first (LEB128).

use super::{UnpackError, damaged};

pub(crate) fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    bytes.push(number.to_le_bytes()[0]);
}

/// Takes a number off the front.
pub(crate) fn take(bytes: &mut &[u8]) -> Result<u64, UnpackError> {
    let mut number = 0_u64;
    for shift in (0..u64::BITS).step_by(7) {
        let (byte, rest) = bytes
            .split_first()
            .ok_or_else(|| damaged("packed bytes end in a number"))?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7f);
        if bits.leading_zeros() < shift {
            break;
        }
        number |= bits << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(damaged("a number in packed bytes is too large"))
}

/// Takes a length off the front.
pub(crate) fn take_length(bytes: &mut &[u8]) -> Result<usize, UnpackError> {
    usize::try_from(take(bytes)?).map_err(|_| damaged("a length in packed bytes is too large"))
}

/// Takes that many bytes off the front.
pub(crate) fn take_bytes<'a>(bytes: &mut &'a [u8], count: usize) -> Result<&'a [u8], UnpackError> {
    let (taken, rest) = bytes
        .split_at_checked(count)
        .ok_or_else(|| damaged("packed bytes end too soon"))?;
    *bytes = rest;
    Ok(taken)
}

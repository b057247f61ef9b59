//! Numbers in bytes, and the 16 bytes that head, record header and the last block of a bucket have in common. The functions
//! never panic: they write nothing where there is no room and read zeros where nothing is. Callers check lengths first.

use super::FORMAT;
use crate::base::crc;
use crate::base::error::{Error, Result};
use crate::base::status::nmc_status_t;
use std::ops::Range;

/// Where the CRC of a block is.
const SUM: Range<usize> = 12..16;

/// Writes a field.
pub fn put(to: &mut [u8], at: usize, field: &[u8]) {
    if let Some(room) = to.get_mut(at..).and_then(|rest| rest.get_mut(..field.len())) {
        room.copy_from_slice(field);
    }
}

fn get<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
}

/// The number at `at`.
pub fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(get(bytes, at))
}

/// The number at `at`.
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(get(bytes, at))
}

/// The number at `at`.
pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(get(bytes, at))
}

/// `len` bytes at `at`.
pub fn bytes_at(bytes: &[u8], at: usize, len: usize) -> &[u8] {
    bytes.get(at..).and_then(|rest| rest.get(..len)).unwrap_or(&[])
}

/// Whether there is nothing but zeros.
pub fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// Writes magic and format.
pub fn begin(to: &mut [u8], magic: &[u8; 8]) {
    put(to, 0, magic);
    put(to, 8, &FORMAT.to_le_bytes());
}

/// Writes the CRC of everything except `hole`, when all else is written.
pub fn seal(to: &mut [u8], hole: Range<usize>) {
    let sum = sum(to, hole);
    put(to, SUM.start, &sum.to_le_bytes());
}

fn sum(bytes: &[u8], hole: Range<usize>) -> u32 {
    let before = crc::crc32c(bytes.get(..SUM.start).unwrap_or(&[]));
    let own = crc::crc32c_append(before, &[0; 4]);
    let to_hole = crc::crc32c_append(own, bytes.get(SUM.end..hole.start).unwrap_or(&[]));
    crc::crc32c_append(to_hole, bytes.get(hole.end..).unwrap_or(&[]))
}

/// Fails if `bytes` do not begin as `what` does. `other_format` is the status for one that another version has written.
pub fn check_begin(bytes: &[u8], magic: &[u8; 8], what: &str, other_format: nmc_status_t) -> Result<()> {
    if bytes.get(..magic.len()) != Some(magic) {
        crate::bail!(NMC_ERR_CORRUPT, "this is not {what}: it does not begin with {}", magic.escape_ascii());
    }
    let format = u32_at(bytes, 8);
    if format != FORMAT {
        let text = format!("{what} has format {format}; this library reads format {FORMAT}");
        return Err(Error::new(other_format, text));
    }
    Ok(())
}

/// Fails if the CRC of everything except `hole` is another one.
pub fn check_seal(bytes: &[u8], hole: Range<usize>, what: &str) -> Result<()> {
    let (is, should) = (sum(bytes, hole), u32_at(bytes, SUM.start));
    if is != should {
        crate::bail!(NMC_ERR_CORRUPT, "{what} has CRC32C {is:08x}, and says that it has {should:08x}");
    }
    Ok(())
}

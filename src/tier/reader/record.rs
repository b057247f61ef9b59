//! Records as the owner of a directory checks them: all of one, through any file.

use super::round::check_sum;
use crate::base::crc;
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::NMC_ERR_CORRUPT;
use crate::tier::format::{BLOCK, GRANULE, Header, Shape};
use crate::tier::io::{Buffer, File};

/// Less scratch than this is made larger.
const SCRATCH: usize = 1 << 20;

/// Reads a record, all of it, and fails if it is not this one, or not whole: header, every granule of the value, and the zeros
/// behind it. `scratch` is made larger if it has to be.
pub fn check_record(
    file: &dyn File,
    block: u64,
    key: &[u8],
    put: u64,
    value_bytes: u64,
    scratch: &mut Buffer,
) -> Result<()> {
    let shape = Shape::of(key.len(), value_bytes);
    let record_at = block.saturating_mul(BLOCK as u64);
    let end = record_at.saturating_add(shape.blocks.saturating_mul(BLOCK as u64));
    let file_bytes = file.bytes()?;
    // Before memory is taken for a header whose length nobody vouches for.
    if end > file_bytes {
        crate::bail!(NMC_ERR_CORRUPT, "the record ends at byte {end} of a file that has {file_bytes}");
    }
    if scratch.len() < shape.header_bytes().max(GRANULE) {
        *scratch = Buffer::new(shape.header_bytes().max(SCRATCH))?;
    }

    file.read_aligned(&mut scratch[..shape.header_bytes()], record_at)?;
    let header = Header::decode(&scratch[..shape.header_bytes()])?;
    if !header.is(key, put, value_bytes) {
        let (is, bytes) = (header.record.put, header.record.value_bytes);
        let same = if header.record.key == key { "the same key" } else { "another key" };
        crate::bail!(
            NMC_ERR_CORRUPT,
            "the record has {same}, put {is:x} and {bytes} bytes instead of put {put:x} and {value_bytes} bytes"
        );
    }
    if shape.inline {
        let at = usize::try_from(shape.value_at).unwrap_or(BLOCK);
        let value = scratch[..BLOCK].get(at..).and_then(|rest| rest.get(..usize::try_from(value_bytes).ok()?));
        let (is, should) = (crc::crc32c(value.unwrap_or_default()), header.sum(0));
        return if value_bytes == 0 { Ok(()) } else { check_sum(0, value_bytes, is, should) };
    }
    let sums = memory::collect((0..shape.granules).map(|number| header.sum(number)))?;

    let step = scratch.len() / GRANULE * GRANULE;
    let mut at = 0;
    while at < value_bytes {
        let left = value_bytes - at;
        let bytes = usize::try_from(left).unwrap_or(usize::MAX).min(step);
        let blocks = &mut scratch[..bytes.next_multiple_of(BLOCK)];
        file.read_aligned(blocks, record_at + shape.value_at + at)?;
        let (value, padding) = blocks.split_at(bytes);
        for (number, granule) in (at / GRANULE as u64..).zip(value.chunks(GRANULE)) {
            let should = usize::try_from(number).ok().and_then(|number| sums.get(number)).copied().flatten();
            check_sum(number, value_bytes, crc::crc32c(granule), should)?;
        }
        if padding.iter().any(|byte| *byte != 0) {
            return Err(Error::new(NMC_ERR_CORRUPT, "there is something behind the value where zeros should be"));
        }
        at += bytes as u64;
    }
    Ok(())
}

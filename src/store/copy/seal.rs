//! What a writer sealed: the checksums of an object's pages, its size and its metadata, all bound to its key and its epoch. A stray
//! store makes an object unreadable; it does not make it another one.

use super::cursor::{Base, page_sum};
use crate::base::error::{Error, Result};
use crate::base::status::NMC_ERR_CORRUPT;
use crate::layout::store::{METADATA_FLAGS, Metadata, ObjectHeader, Seal, Shape, View};
use crate::store::map::Map;
use crate::store::types::{Pin, Sums, corrupt};
use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

#[cold]
fn not_sealed(index: u32) -> Error {
    let text = format!("object {index} is not what its writer published; was the memory of its header overwritten?");
    Error::new(NMC_ERR_CORRUPT, text)
}

/// What the checksums of an object that is held are bound to, and whether its writer has sealed a value of this size so; `None` in a
/// store without checksums.
#[inline(always)]
pub(in crate::store) fn seal_of(
    map: &Map,
    view: &View<'_>,
    (namespace, key): (u32, &[u8]),
    pin: Pin,
    header: &ObjectHeader,
    shape: &Shape,
) -> Result<Option<Seal>> {
    if map.params().checksums == 0 {
        return Ok(None);
    }
    let some = header.flags.load(Relaxed) & METADATA_FLAGS != 0;
    let metadata = if some { Seal::sum(&metadata_of(view, pin.index, header)?) } else { 0 };
    let seal = Seal { key_hash: map.hash_of(key, namespace), epoch: pin.epoch, metadata };
    check_seal(view, pin.index, shape, seal).map(Some)
}

/// Compares the checksums of pages of a heap.
pub(in crate::store) fn check_sums(
    view: &View<'_>,
    (index, header, shape): (u32, &ObjectHeader, &Shape),
    base: Base<'_>,
    part: Range<u64>,
    seal: Seal,
    sums: Sums,
) -> Result<()> {
    let params = &view.layout.params;
    let page = u64::from(params.page_bytes);
    let owner = shape.owner_rank;
    let mut at = if sums == Sums::Begun { part.start.div_ceil(page) } else { part.start / page };
    let end = part.end.div_ceil(page);
    let mut skip = 0;
    for run in view.runs(header, shape) {
        let (first, count) = run.ok_or_else(|| corrupt(index))?;
        while at >= skip && at < skip + u64::from(count) && at < end {
            let heap_page = u64::from(first) + (at - skip);
            let in_page = page.min(shape.bytes_total - at * page);
            let wanted = u32::try_from(heap_page).ok().and_then(|page| view.sum(owner, page));
            let wanted = wanted.ok_or_else(|| corrupt(index))?.load(Acquire);
            let found = page_sum(params, base, heap_page, seal.page_seed(at), in_page)?;
            if wanted != found {
                return Err(Error::new(
                    NMC_ERR_CORRUPT,
                    format!("page {at} of object {index} has checksum {found:08x}, not {wanted:08x}"),
                ));
            }
            at += 1;
        }
        skip += u64::from(count);
    }
    Ok(())
}

/// The metadata of an object that is held.
#[inline(never)]
pub(in crate::store) fn metadata_of(view: &View<'_>, index: u32, header: &ObjectHeader) -> Result<Metadata> {
    view.metadata(header).ok_or_else(|| corrupt(index))
}

/// Refuses an object that was not sealed so by its writer.
#[inline(always)]
pub(in crate::store) fn check_seal(view: &View<'_>, index: u32, shape: &Shape, seal: Seal) -> Result<Seal> {
    let word = view.publish(index).map_or(0, |words| words.progress.load(Acquire));
    if word == seal.word(shape.bytes_total) { Ok(seal) } else { Err(not_sealed(index)) }
}

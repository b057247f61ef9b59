//! What the header of an object says, to whoever holds it or confirms its epoch afterwards.

use super::look::Location;
use crate::base::error::{Error, Result};
use crate::base::status::NMC_ERR_INVALID_ARG;
use crate::layout::store::{ObjectHeader, Shape, View};
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// The header of an object that is held, and where its value lies.
#[inline(always)]
pub fn shaped<'v>(view: &View<'v>, index: u32) -> Result<(&'v ObjectHeader, Shape)> {
    let found = view.object(index).and_then(|header| Some((header, view.shape(header)?)));
    found.ok_or_else(|| corrupt(index))
}

/// The fields of an object that is held, or whose epoch is confirmed afterwards.
#[inline(always)]
pub fn located(view: &View<'_>, index: u32, epoch: u64) -> Result<Location> {
    let (header, shape) = shaped(view, index)?;
    Ok(placed(view, index, epoch, header, &shape))
}

/// The same, of an object with this shape.
#[inline(always)]
pub fn placed(view: &View<'_>, index: u32, epoch: u64, header: &ObjectHeader, shape: &Shape) -> Location {
    let p = &view.layout.params;
    let Shape { bytes_total, n_pages, owner_rank, n_extents, first } = *shape;
    let page = u64::from(p.page_bytes);
    let before = u64::from(n_pages.saturating_sub(1)) * page;
    Location {
        index,
        owner_rank,
        bytes_total,
        page_bytes: p.page_bytes,
        n_pages,
        last_page_bytes: u32::try_from(bytes_total - before).unwrap_or(0),
        n_extents,
        epoch,
        offset: p.heap_offset + u64::from(first.0) * page,
        flags: header.flags.load(Relaxed),
    }
}

/// Refuses a part that reaches behind the end of its value.
#[inline(always)]
pub fn check_within(offset: u64, bytes: u64, total: u64) -> Result<()> {
    if offset.checked_add(bytes).is_none_or(|end| end > total) {
        return Err(beyond(offset, bytes, total));
    }
    Ok(())
}

#[cold]
fn beyond(offset: u64, bytes: u64, total: u64) -> Error {
    let text = format!("{bytes} bytes from offset {offset} on reach behind the end of the value, which has {total}");
    Error::new(NMC_ERR_INVALID_ARG, text)
}

/// Id and generation of a namespace as headers hold them.
#[inline(always)]
#[must_use]
pub fn namespace_word(view: &View<'_>, namespace: u32) -> u32 {
    // A number that no namespace has must not look like a generation of another.
    view.namespace(namespace).map_or(u32::MAX, |ns| ns.generation.load(Acquire) << 8 | namespace)
}

/// The error for a header whose fields contradict each other.
#[cold]
#[must_use]
pub fn corrupt(index: u32) -> Error {
    let text = format!("header {index} of the store makes no sense; was its memory overwritten?");
    Error::new(crate::base::status::NMC_ERR_CORRUPT, text)
}

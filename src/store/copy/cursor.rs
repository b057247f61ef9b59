//! Walks the runs of a value, and the program's pieces beside it: copies by the CPU, and checksums of pages. An address in a heap is one
//! that a checked header led to, of an object that is pinned, held or planned.
#![allow(unsafe_code, reason = "copies and checksums by address")]

use super::pieces::{Pieces, Slice};
use crate::base::error::{Error, Result};
use crate::base::point::reach;
use crate::base::status::{NMC_ERR_CORRUPT, NMC_ERR_INVALID_ARG};
use crate::layout::store::{ObjectHeader, Params, Shape, View};
use crate::mem::Heap;
use crate::store::sys;
use crate::world::MappedHeap;
use std::marker::PhantomData;

/// Where a heap with pages of the store begins in this process.
#[derive(Debug, Clone, Copy)]
pub(in crate::store) struct Base<'h> {
    first: u64,
    heap: PhantomData<&'h Heap>,
}

impl<'h> Base<'h> {
    /// Of the heap of a rank of this client, which stays mapped as long as the client is there. That it has the size that the store was made
    /// for the client has made sure of.
    #[inline(always)]
    pub(in crate::store) fn mapped(heap: &'h MappedHeap) -> Self {
        Self { first: heap.base(), heap: PhantomData }
    }

    /// Of a heap that others have opened, if all pages of the store lie in it.
    pub(in crate::store) fn of(heap: &'h Heap, params: &Params) -> Result<Self> {
        let end = params.heap_offset.saturating_add(params.heap_bytes);
        if end > heap.bytes() {
            crate::bail!(NMC_ERR_CORRUPT, "pages of the store end at {end}, but its heap has {} bytes", heap.bytes());
        }
        Ok(Self { first: heap.base(), heap: PhantomData })
    }
}

/// Walks the runs of a value.
pub struct Cursor<'v> {
    view: &'v View<'v>,
    header: &'v ObjectHeader,
    shape: &'v Shape,
    /// Address of page 0 of the store in the owner's heap.
    base: u64,
    page: u64,
    next_extent: usize,
    /// Pages of the value that no run has held yet.
    unseen: u32,
    /// Where the current run goes on, and what is left of it.
    at: u64,
    left: u64,
}

#[cold]
fn behind(offset: u64) -> Error {
    Error::new(NMC_ERR_INVALID_ARG, format!("offset {offset} is behind the end of the value"))
}

#[cold]
fn torn() -> Error {
    Error::new(NMC_ERR_CORRUPT, "a value ends before its pages do; was the memory of its header overwritten?")
}

impl<'v> Cursor<'v> {
    /// At byte `offset` of a value with this shape, in the heap that it lies in.
    #[inline(always)]
    pub(in crate::store) fn of_heap(
        view: &'v View<'v>,
        header: &'v ObjectHeader,
        shape: &'v Shape,
        offset: u64,
        base: Base<'v>,
    ) -> Result<Self> {
        Self::from_base(view, header, shape, offset, base.first)
    }

    /// The same, with addresses for the GPU.
    pub(in crate::store) fn of_device_heap(
        view: &'v View<'v>,
        header: &'v ObjectHeader,
        shape: &'v Shape,
        offset: u64,
        heap: &'v MappedHeap,
    ) -> Result<Self> {
        let base = heap.device_base();
        if base == 0 {
            crate::bail!(NMC_ERR_UNSUPPORTED, "the store's world was joined without a CUDA device (set config.device)");
        }
        Self::from_base(view, header, shape, offset, base)
    }

    #[inline(always)]
    fn from_base(
        view: &'v View<'v>,
        header: &'v ObjectHeader,
        shape: &'v Shape,
        offset: u64,
        base: u64,
    ) -> Result<Self> {
        if offset > shape.bytes_total {
            return Err(behind(offset));
        }
        let p = &view.layout.params;
        let (base, page, unseen) = (base + p.heap_offset, u64::from(p.page_bytes), shape.n_pages);
        let mut cursor = Self { view, header, shape, base, page, next_extent: 0, unseen, at: 0, left: 0 };
        let mut skip = offset;
        while skip > 0 {
            if cursor.left == 0 && !cursor.advance() {
                return Err(torn());
            }
            let step = skip.min(cursor.left);
            cursor.at += step;
            cursor.left -= step;
            skip -= step;
        }
        Ok(cursor)
    }

    #[inline(always)]
    fn advance(&mut self) -> bool {
        let run = match self.next_extent {
            0 if self.unseen > 0 => Some(self.shape.first),
            i if i < self.shape.n_extents as usize => self.further(),
            _ => None,
        };
        let Some((first, count)) = run else { return false };
        self.next_extent += 1;
        self.unseen -= count;
        self.at = self.base + u64::from(first) * self.page;
        self.left = u64::from(count) * self.page;
        true
    }

    /// The next bytes that are together, up to `most`, and where they are; `None` behind the last one.
    pub fn stretch(&mut self, most: u64) -> Option<(u64, u64)> {
        if most == 0 || self.left == 0 && !self.advance() {
            return None;
        }
        let (at, bytes) = (self.at, self.left.min(most));
        (self.at, self.left) = (at + bytes, self.left - bytes);
        Some((at, bytes))
    }

    #[inline(never)]
    fn further(&self) -> Option<(u32, u32)> {
        self.view.extent(self.header, self.next_extent, self.unseen)
    }
}

/// Walks a value and the program's pieces side by side: calls `copy` with the program's address, source, destination and
/// bytes of each stretch.
#[inline(always)]
pub(in crate::store) fn walk(
    cursor: &mut Cursor<'_>,
    pieces: &Pieces<'_>,
    into: bool,
    mut copy: impl FnMut(u64, u64, u64, u64) -> Result<()>,
) -> Result<()> {
    pieces.each(|mut address, mut left| {
        while left > 0 {
            if cursor.left == 0 && !cursor.advance() {
                return Err(torn());
            }
            let step = left.min(cursor.left);
            let (from, to) = if into { (address, cursor.at) } else { (cursor.at, address) };
            copy(address, from, to, step)?;
            address += step;
            left -= step;
            cursor.at += step;
            cursor.left -= step;
        }
        Ok(())
    })
}

/// Lets `read` read into a buffer, of which it keeps nothing.
pub(in crate::store) fn read_to<R>(to: &mut [u8], read: impl FnOnce(&[Slice]) -> Result<R>) -> Result<R> {
    // SAFETY: nobody else has it until this returns, and then nobody has the slice.
    read(&[unsafe { Slice::new(to.as_mut_ptr() as u64, to.len() as u64) }])
}

/// Copies a part of an object that is held, in a heap in host memory, into a buffer.
pub(in crate::store) fn copy_out(
    view: &View<'_>,
    (header, shape): (&ObjectHeader, &Shape),
    offset: u64,
    base: Base<'_>,
    to: &mut [u8],
) -> Result<()> {
    let mut cursor = Cursor::of_heap(view, header, shape, offset, base)?;
    read_to(to, |to| copy_by_cpu(&mut cursor, &Pieces::Slices(to), false))
}

/// Copies between a value in a heap that is mapped for longer than this takes, and pieces in host memory.
#[inline(always)]
pub(in crate::store) fn copy_by_cpu(cursor: &mut Cursor<'_>, pieces: &Pieces<'_>, into: bool) -> Result<()> {
    walk(cursor, pieces, into, |_, from, to, bytes| {
        // SAFETY: the cursor is in pages of a heap that is mapped, of a value that is pinned, held or ours to write; the other
        // side is of a piece, see `Pieces`.
        unsafe { sys::copy(from, to, bytes) };
        if into {
            reach("writer.mid_copy");
        }
        Ok(())
    })
}

/// CRC32C of the first `bytes` bytes of a page of a heap, of an object that is pinned, held or planned.
pub(in crate::store) fn page_sum(params: &Params, base: Base<'_>, page: u64, seed: u32, bytes: u64) -> Result<u32> {
    let page_bytes = u64::from(params.page_bytes);
    if page >= u64::from(params.pages()) || bytes > page_bytes {
        return Err(torn());
    }
    // SAFETY: within the part of a heap that the store has, which is mapped. Nobody writes to the pages of a value that is
    // pinned or held; those of a plan are summed when they are stored.
    Ok(unsafe { sys::checksum(seed, base.first + params.heap_offset + page * page_bytes, bytes) })
}

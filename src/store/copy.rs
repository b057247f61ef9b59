//! Moving bytes between a value, which lies in runs of pages, and the program's memory, which may be one buffer, a list
//! of slices, or rows with a stride. Both sides are walked once, in order. The only place where the store touches bytes of
//! values: an address in a heap is one that a checked header led to, of an object that is pinned or planned, and for those of
//! [`Pieces`] whoever made their [`Slice`]s or [`Rows`] vouches.
#![allow(unsafe_code, reason = "copies and checksums by address")]

use super::Store;
use super::client::Client;
use super::read::{Pin, Sums, shaped};
use super::sys;
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::point::reach;
use crate::base::status::{NMC_ERR_CORRUPT, NMC_ERR_INVALID_ARG};
use crate::cuda::{self, Copier, Device, Ordinary, Reach};
use crate::layout::store::{ObjectHeader, Params, Seal, Shape, View};
use crate::mem::{Heap, HeapKind};
use crate::world::MappedHeap;
use std::marker::PhantomData;

/// A slice of the program's memory: address and bytes, for which whoever made it vouches: see [`Slice::new`].
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    address: u64,
    bytes: u64,
}

/// Rows of the program's memory that are as far from each other; see [`Rows::new`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rows {
    address: u64,
    rows: u64,
    row_bytes: u64,
    stride: u64,
}

/// The program's side of a copy. Whoever made the slices or rows vouches for them, so calls that are given pieces are safe: what they
/// touch is memory of which somebody said, in an `unsafe` block, that it is there. The C contract hands that on to the program. Inside
/// this file every access names this promise.
#[derive(Debug, Clone, Copy)]
pub enum Pieces<'a> {
    /// One after the other.
    Slices(&'a [Slice]),
    /// One after the other.
    Rows(Rows),
}

impl Slice {
    /// No memory.
    pub const NONE: Self = Self { address: 0, bytes: 0 };

    /// Where its length is: C has the same two words, the address first.
    pub(crate) const BYTES_AT: usize = std::mem::offset_of!(Self, bytes);

    /// `bytes` bytes from `address` on.
    ///
    /// # Safety
    /// They are memory of this process, or of a device where the call takes that, until every call has ended that is given the slice, a
    /// part or a copy of it; for what is enqueued or submitted, until that has ended. Meanwhile nobody else writes what such a call
    /// reads, nor uses what it writes, which can be written to. Of what [`Pieces::check`] refuses nothing is promised: then it is
    /// given to that, or to calls that begin with it, alone.
    #[must_use]
    #[inline(always)]
    pub const unsafe fn new(address: u64, bytes: u64) -> Self {
        Self { address, bytes }
    }

    /// First byte.
    #[must_use]
    #[inline(always)]
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// Bytes.
    #[must_use]
    #[inline(always)]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Its first bytes; all of it if there are fewer.
    #[must_use]
    #[inline(always)]
    pub fn first(self, bytes: u64) -> Self {
        Self { address: self.address, bytes: self.bytes.min(bytes) }
    }

    /// What is behind its first bytes.
    #[must_use]
    #[inline(always)]
    pub fn behind(self, bytes: u64) -> Self {
        let passed = self.bytes.min(bytes);
        Self { address: self.address + passed, bytes: self.bytes - passed }
    }

    /// Of a buffer of a test, which keeps it as long as it uses the slice.
    #[cfg(test)]
    pub(crate) fn of_test(bytes: &[u8]) -> Self {
        Self { address: bytes.as_ptr().expose_provenance() as u64, bytes: bytes.len() as u64 }
    }

    /// The same, to be written to.
    #[cfg(test)]
    pub(crate) fn of_test_mut(bytes: &mut [u8]) -> Self {
        Self { address: bytes.as_mut_ptr().expose_provenance() as u64, bytes: bytes.len() as u64 }
    }
}

impl Rows {
    /// `rows` rows of `row_bytes`, the first at `address`; from the beginning of one to that of the next there are `stride` bytes.
    ///
    /// # Safety
    /// Each row is as [`Slice::new`] wants it.
    #[must_use]
    pub const unsafe fn new(address: u64, rows: u64, row_bytes: u64, stride: u64) -> Self {
        Self { address, rows, row_bytes, stride }
    }

    /// Of a buffer of a test, from the beginning on; the test keeps it as long as it uses the rows.
    #[cfg(test)]
    pub(crate) fn of_test_mut(bytes: &mut [u8], rows: usize, row_bytes: usize, stride: usize) -> Self {
        assert!(rows == 0 || (rows - 1) * stride + row_bytes <= bytes.len());
        let address = bytes.as_mut_ptr().expose_provenance() as u64;
        Self { address, rows: rows as u64, row_bytes: row_bytes as u64, stride: stride as u64 }
    }
}

impl Pieces<'_> {
    /// Bytes of all pieces.
    pub fn bytes(&self) -> Result<u64> {
        let sum = match self {
            Pieces::Slices(slices) => slices.iter().try_fold(0u64, |sum, slice| sum.checked_add(slice.bytes)),
            Pieces::Rows(Rows { rows, row_bytes, .. }) => rows.checked_mul(*row_bytes),
        };
        match sum {
            Some(bytes) if bytes <= i64::MAX as u64 => Ok(bytes),
            _ => crate::bail!(NMC_ERR_INVALID_ARG, "the slices have more than 2^63 bytes together"),
        }
    }

    /// Refuses pieces that cannot be memory. Whatever passes can be walked without an overflow.
    #[inline]
    pub fn check(&self) -> Result<()> {
        let good = match self {
            Pieces::Slices(slices) => slices.iter().all(Slice::is_memory),
            Pieces::Rows(Rows { address, rows, row_bytes, stride }) => {
                let span = rows.saturating_sub(1).checked_mul(*stride).and_then(|span| span.checked_add(*row_bytes));
                *rows == 0 || (*rows == 1 || stride >= row_bytes) && is_memory(*address, *row_bytes > 0, span)
            }
        };
        if good { Ok(()) } else { Err(self.not_memory()) }
    }

    #[cold]
    fn not_memory(&self) -> Error {
        let text = match self {
            Pieces::Slices(slices) => {
                let bad = slices.iter().position(|slice| !slice.is_memory()).unwrap_or(0);
                let Slice { address, bytes } = slices.get(bad).copied().unwrap_or(Slice::NONE);
                let which = if slices.len() == 1 { String::new() } else { format!(" of slice {bad}") };
                match address {
                    0 => format!("the address{which} is NULL, but {bytes} bytes are to be there"),
                    _ => format!("the {bytes} bytes{which} from {address:#x} on do not end within the address space"),
                }
            }
            Pieces::Rows(Rows { rows, row_bytes, stride, .. }) if *rows > 1 && stride < row_bytes => {
                format!("stride {stride} is less than row_bytes {row_bytes}")
            }
            Pieces::Rows(Rows { address: 0, rows, row_bytes, stride }) if rows.checked_mul(*stride).is_some() => {
                format!("the address is NULL, but {rows} rows of {row_bytes} bytes are to be there")
            }
            Pieces::Rows(Rows { address, rows, row_bytes, stride }) => format!(
                "{rows} rows of {row_bytes} bytes with stride {stride} from {address:#x} on do not end within the address \
                 space"
            ),
        };
        Error::new(NMC_ERR_INVALID_ARG, text)
    }

    /// CRC32C of the pieces, cut as `pages` say: each is what the sum starts with, and how many bytes go into it. `store` gets
    /// the sums of those that are full. False if there are not enough of them. For memory that the CPU reaches.
    pub(super) fn sums(&self, mut pages: impl Iterator<Item = (u32, u64)>, mut store: impl FnMut(u32)) -> Result<bool> {
        let mut now = pages.next();
        let mut fits = true;
        self.each(|mut address, mut left| {
            while left > 0 {
                let Some((sum, room)) = &mut now else {
                    fits = false;
                    return Ok(());
                };
                let step = left.min(*room);
                // SAFETY: within a piece, which stays as it is during the call: see `Pieces`.
                *sum = unsafe { sys::checksum(*sum, address, step) };
                (address, left, *room) = (address + step, left - step, *room - step);
                if *room == 0 {
                    store(*sum);
                    now = pages.next();
                }
            }
            Ok(())
        })?;
        Ok(fits)
    }

    /// The same as a list.
    pub(super) fn slices(&self) -> Result<Vec<Slice>> {
        let mut slices = Vec::new();
        self.each(|address, bytes| memory::push(&mut slices, Slice { address, bytes }))?;
        Ok(slices)
    }

    pub(super) fn each(&self, mut one: impl FnMut(u64, u64) -> Result<()>) -> Result<()> {
        match *self {
            Pieces::Slices(slices) => slices.iter().try_for_each(|slice| one(slice.address, slice.bytes)),
            // There may be any number of them.
            Pieces::Rows(Rows { row_bytes: 0, .. }) => Ok(()),
            Pieces::Rows(Rows { address, rows, row_bytes, stride }) => {
                (0..rows).try_for_each(|row| one(address + row * stride, row_bytes))
            }
        }
    }
}

/// Goes through pieces in order, in steps of any size, and can be kept to go on later.
#[derive(Debug, Clone, Copy)]
pub struct Walk<'a> {
    pieces: Pieces<'a>,
    piece: u64,
    within: u64,
}

impl<'a> Walk<'a> {
    /// At the beginning of the first piece.
    #[must_use]
    pub fn new(pieces: Pieces<'a>) -> Self {
        Self { pieces, piece: 0, within: 0 }
    }

    /// The next bytes that lie together, at most so many of them; `None` behind the last piece.
    #[inline]
    pub fn step(&mut self, most: u64) -> Option<Slice> {
        loop {
            let (address, bytes) = match self.pieces {
                Pieces::Slices(slices) => {
                    usize::try_from(self.piece).ok().and_then(|n| slices.get(n)).map(|s| (s.address, s.bytes))
                }
                Pieces::Rows(Rows { address, rows, row_bytes, stride }) => {
                    (self.piece < rows && row_bytes > 0).then(|| (address + self.piece * stride, row_bytes))
                }
            }?;
            if self.within < bytes {
                let step = most.min(bytes - self.within);
                let at = address + self.within;
                self.within += step;
                return Some(Slice { address: at, bytes: step });
            }
            (self.piece, self.within) = (self.piece + 1, 0);
        }
    }

    /// Passes so many bytes by.
    pub fn skip(&mut self, mut bytes: u64) {
        while bytes > 0
            && let Some(step) = self.step(bytes)
        {
            bytes -= step.bytes;
        }
    }

    /// Copies bytes to where they belong next. For memory that the CPU reaches.
    pub fn fill(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty()
            && let Some(step) = self.step(bytes.len() as u64)
        {
            let (now, later) = bytes.split_at(usize::try_from(step.bytes).unwrap_or(usize::MAX).min(bytes.len()));
            // SAFETY: within a piece, which is ours to write to during the call: see `Pieces`.
            unsafe { sys::copy(now.as_ptr() as u64, step.address, now.len() as u64) };
            bytes = later;
        }
    }
}

/// Whether `span` bytes from an address on, in which there are some to copy or none, can be memory: they end in the lower
/// half of the addresses, where programs live.
#[inline(always)]
fn is_memory(address: u64, some: bool, span: Option<u64>) -> bool {
    let end = span.and_then(|span| address.checked_add(span));
    (address != 0 || !some) && end.is_some_and(|end| end <= i64::MAX as u64)
}

impl Slice {
    #[inline(always)]
    fn is_memory(&self) -> bool {
        self.bytes == 0 || is_memory(self.address, true, Some(self.bytes))
    }
}

/// Where a heap with pages of the store begins in this process.
#[derive(Debug, Clone, Copy)]
pub(super) struct Base<'h> {
    first: u64,
    heap: PhantomData<&'h Heap>,
}

impl<'h> Base<'h> {
    /// Of the heap of a rank of this client, which stays mapped as long as the client is there. That it has the size that the store was made
    /// for the client has made sure of.
    #[inline(always)]
    fn mapped(heap: &'h MappedHeap) -> Self {
        Self { first: heap.base(), heap: PhantomData }
    }

    /// Of a heap that others have opened, if all pages of the store lie in it.
    pub(super) fn of(heap: &'h Heap, params: &Params) -> Result<Self> {
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
    /// At byte `offset` of an object that is pinned or planned and has this shape.
    #[inline(always)]
    pub fn new(
        store: &'v Store,
        view: &'v View<'v>,
        header: &'v ObjectHeader,
        shape: &'v Shape,
        offset: u64,
    ) -> Result<Self> {
        Self::of_heap(view, header, shape, offset, Base::mapped(store.client.heap(shape.owner_rank)?))
    }

    /// The same, with addresses for the GPU.
    pub fn on_device(
        store: &'v Store,
        view: &'v View<'v>,
        header: &'v ObjectHeader,
        shape: &'v Shape,
        offset: u64,
    ) -> Result<Self> {
        let base = store.client.heap(shape.owner_rank)?.device_base();
        if base == 0 {
            crate::bail!(NMC_ERR_UNSUPPORTED, "the store's world was joined without a CUDA device (set config.device)");
        }
        Self::from_base(view, header, shape, offset, base)
    }

    /// The same, for the heap that the value lies in.
    #[inline(always)]
    fn of_heap(
        view: &'v View<'v>,
        header: &'v ObjectHeader,
        shape: &'v Shape,
        offset: u64,
        base: Base<'v>,
    ) -> Result<Self> {
        Self::from_base(view, header, shape, offset, base.first)
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

impl Client {
    /// Moves `bytes` bytes between the value at `cursor` and `pieces`; `into` the value, or out of it. `check` is done after
    /// a copy of the CPU, so that what is right then was right before, or beside one of the GPU, and is part of it: if it
    /// fails, so does the move.
    pub(super) fn move_bytes(
        &self,
        cursor: &mut Cursor<'_>,
        pieces: &Pieces<'_>,
        bytes: u64,
        into: bool,
        check: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        match self.member.device() {
            Some(device) if bytes > 0 && self.needs_device(device, pieces)? => {
                let mut copier = match self.copiers.lock().pop() {
                    Some(copier) => copier,
                    None => Copier::new(device)?,
                };
                let side = if into { Ordinary::Source } else { Ordinary::Destination };
                // What the last question said, and for which addresses: pieces often lie in one allocation. For the first
                // one, which may be the only one, that is not asked.
                let mut known: Option<(Reach, std::ops::Range<u64>)> = None;
                // The context is made current once for all steps.
                let moved = device.with_current(|| {
                    let moved = walk(cursor, pieces, into, |address, from, to, bytes| {
                        let reach = match &known {
                            Some((reach, around)) if around.contains(&address) && address + bytes <= around.end => {
                                *reach
                            }
                            Some(_) => known.insert(cuda::reach_around(device, address)?).0,
                            None => known.insert((cuda::reach(device, address)?, 0..0)).0,
                        };
                        let ordinary = reach == Reach::Cpu;
                        // SAFETY: one is of a piece, see `Pieces`; the other is of an object that is pinned or planned.
                        unsafe { copier.copy(from, to, bytes, ordinary.then_some(side)) }
                    });
                    let moved = moved.and_then(|()| check());
                    // Also after a failure: nothing may be in flight when the pages are given back.
                    moved.and(copier.finish())
                });
                self.copiers.lock().push(copier);
                moved
            }
            _ => {
                copy_by_cpu(cursor, pieces, into)?;
                check()
            }
        }
    }

    /// Copies bytes into pieces of whatever memory that have room for them, from byte `skip` of them on.
    pub(super) fn deliver(&self, pieces: &Pieces<'_>, skip: u64, bytes: &[u8]) -> Result<()> {
        let device = match self.member.device() {
            Some(device) if !self.is_host(pieces)? => device,
            _ => {
                return spread(pieces, skip, bytes, |from, to, bytes| {
                    // SAFETY: see `Pieces`; it is written no further than it reaches.
                    unsafe { sys::copy(from, to, bytes) };
                    Ok(())
                });
            }
        };
        let mut copier = match self.copiers.lock().pop() {
            Some(copier) => copier,
            None => Copier::new(device)?,
        };
        let moved = device.with_current(|| {
            let moved = spread(pieces, skip, bytes, |from, to, bytes| {
                // SAFETY: as above, and `bytes` stays until this returns.
                unsafe { copier.copy(from, to, bytes, Some(Ordinary::Source)) }
            });
            // Also after a failure: nothing may be in flight when the bytes go.
            moved.and(copier.finish())
        });
        self.copiers.lock().push(copier);
        moved
    }

    /// Copies bytes to where the cursor is, in a value that is planned.
    pub(super) fn move_in(&self, cursor: &mut Cursor<'_>, bytes: &[u8]) -> Result<()> {
        // SAFETY: they are borrowed until this returns, and are only read.
        let slice = [unsafe { Slice::new(bytes.as_ptr() as u64, bytes.len() as u64) }];
        self.move_bytes(cursor, &Pieces::Slices(&slice), bytes.len() as u64, true, || Ok(()))
    }

    /// Where the heap of a rank begins.
    #[inline(always)]
    pub(super) fn base(&self, rank: u32) -> Result<Base<'_>> {
        self.heap(rank).map(Base::mapped)
    }

    /// CRC32C of the first `bytes` bytes of a page of a rank's heap, of an object that is pinned or planned.
    pub(super) fn page_sum(&self, rank: u32, page: u64, seed: u32, bytes: u64) -> Result<u32> {
        page_sum(self.params(), Base::mapped(self.heap(rank)?), page, seed, bytes)
    }

    /// Whether the CPU alone cannot do it: the heap or a piece is memory of a device.
    fn needs_device(&self, device: &Device, pieces: &Pieces<'_>) -> Result<bool> {
        if self.member.heap_kind() == HeapKind::Cuda {
            return Ok(true);
        }
        let mut found = false;
        pieces.each(|address, bytes| {
            found = found || bytes > 0 && cuda::reach(device, address)? == Reach::Gpu;
            Ok(())
        })?;
        Ok(found)
    }
}

impl Store {
    /// Stores the pages of an open plan: all of the value is in these pieces. Whatever memory is on either side.
    pub fn write_plan(&self, plan: &super::master::Opened, pieces: &Pieces<'_>) -> Result<()> {
        // The pages must be those that it was made with.
        let bytes = self.plan_extents(plan)?.bytes_total;
        if pieces.bytes()? != bytes {
            crate::bail!(NMC_ERR_INVALID_ARG, "the plan is for {bytes} bytes");
        }
        let view = self.client.view();
        let planned = self.planned(view, plan)?;
        let mut cursor = Cursor::new(self, view, planned.header, &planned.shape, 0)?;
        self.client.move_bytes(&mut cursor, pieces, bytes, true, || Ok(()))
    }

    /// Copies as much of a pinned value as the pieces hold, from byte `offset` on. Whatever memory is on either side.
    pub fn read_view(&self, pin: Pin, offset: u64, pieces: &Pieces<'_>) -> Result<()> {
        self.check_view(pin)?;
        let view = self.client.view();
        let (header, shape) = shaped(view, pin.index)?;
        self.read_pinned(view, (pin.index, header, &shape), offset, pieces, None, Sums::Touched).map(drop)
    }

    /// Copies a part of an object that is held into a buffer.
    pub(super) fn read_pinned_to(
        &self,
        view: &View<'_>,
        object: (u32, &ObjectHeader, &Shape),
        offset: u64,
        to: &mut [u8],
        seal: Option<Seal>,
    ) -> Result<()> {
        read_to(to, |to| self.read_pinned(view, object, offset, &Pieces::Slices(to), seal, Sums::Touched)).map(drop)
    }

    /// CRC32C of the bytes of a plan in host memory that nobody writes to any more.
    pub fn plan_checksum(&self, plan: &super::master::Opened) -> Result<u32> {
        if self.client.member().heap_kind() != HeapKind::Host {
            crate::bail!(NMC_ERR_UNSUPPORTED, "the CPU does not reach the bytes of a device heap");
        }
        let pieces = self.addresses(self.plan_extents(plan)?)?;
        // SAFETY: pages of an open plan are mapped as long as the store is, and nobody writes to them any more.
        Ok(pieces.fold(0, |sum, (address, _, bytes)| unsafe { sys::checksum(sum, address, bytes) }))
    }
}

/// Lets `read` read into a buffer, of which it keeps nothing.
pub(super) fn read_to<R>(to: &mut [u8], read: impl FnOnce(&[Slice]) -> Result<R>) -> Result<R> {
    // SAFETY: nobody else has it until this returns, and then nobody has the slice.
    read(&[unsafe { Slice::new(to.as_mut_ptr() as u64, to.len() as u64) }])
}

/// See [`Client::page_sum`].
pub(super) fn page_sum(params: &Params, base: Base<'_>, page: u64, seed: u32, bytes: u64) -> Result<u32> {
    let page_bytes = u64::from(params.page_bytes);
    if page >= u64::from(params.pages()) || bytes > page_bytes {
        return Err(torn());
    }
    // SAFETY: within the part of a heap that the store has, which is mapped. Nobody writes to the pages of a value that is
    // pinned or held; those of a plan are summed when they are stored.
    Ok(unsafe { sys::checksum(seed, base.first + params.heap_offset + page * page_bytes, bytes) })
}

/// Walks a value and the program's pieces side by side: calls `copy` with the program's address, source, destination and
/// bytes of each stretch.
#[inline(always)]
pub(super) fn walk(
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

/// Copies a part of an object that is held, in a heap in host memory, into a buffer.
pub(super) fn copy_out(
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
fn copy_by_cpu(cursor: &mut Cursor<'_>, pieces: &Pieces<'_>, into: bool) -> Result<()> {
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

/// The steps of a copy of bytes into pieces, from byte `skip` of them on: from where, to where, how many.
fn spread(
    pieces: &Pieces<'_>,
    mut skip: u64,
    bytes: &[u8],
    mut step: impl FnMut(u64, u64, u64) -> Result<()>,
) -> Result<()> {
    let mut left = bytes;
    pieces.each(|address, room| {
        let passed = skip.min(room);
        skip -= passed;
        let (now, later) = left.split_at(usize::try_from(room - passed).unwrap_or(usize::MAX).min(left.len()));
        left = later;
        if now.is_empty() { Ok(()) } else { step(now.as_ptr() as u64, address + passed, now.len() as u64) }
    })
}

#[cfg(test)]
pub(super) mod tests {
    /// Bytes of a heap that a test knows.
    pub fn slice_at(address: u64, bytes: u64) -> super::Slice {
        // SAFETY: the test has the heap.
        unsafe { super::Slice::new(address, bytes) }
    }

    /// Stores bytes in a piece of a test.
    pub fn copy_to(bytes: &[u8], address: u64) {
        // SAFETY: see `Pieces`; the test made them.
        unsafe { super::sys::copy(bytes.as_ptr() as u64, address, bytes.len() as u64) };
    }

    /// The other way.
    pub fn copy_from(address: u64, bytes: &mut [u8]) {
        // SAFETY: as above.
        unsafe { super::sys::copy(address, bytes.as_mut_ptr() as u64, bytes.len() as u64) };
    }
}

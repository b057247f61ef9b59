//! Copies between values and the program's memory, by the CPU or the device of the client's rank. An address in a heap is one that a
//! checked header led to, of an object that is pinned or planned.
#![allow(unsafe_code, reason = "copies and checksums by address")]

use super::client::Client;
use super::handle::Store;
use crate::base::error::Result;
use crate::cuda::{self, Copier, Device, Ordinary, Reach};
use crate::layout::store::{ObjectHeader, Shape, View};
use crate::mem::HeapKind;
use crate::store::copy::{Base, Cursor, Pieces, Slice, copy_by_cpu, page_sum, walk};
use crate::store::sys;
use crate::store::types::Opened;

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
        Self::of_device_heap(view, header, shape, offset, store.client.heap(shape.owner_rank)?)
    }
}

impl Client {
    /// Moves `bytes` bytes between the value at `cursor` and `pieces`; `into` the value, or out of it. `check` is done after
    /// a copy of the CPU, so that what is right then was right before, or beside one of the GPU, and is part of it: if it
    /// fails, so does the move.
    pub(in crate::store) fn move_bytes(
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
    pub(in crate::store) fn deliver(&self, pieces: &Pieces<'_>, skip: u64, bytes: &[u8]) -> Result<()> {
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
    pub(in crate::store) fn move_in(&self, cursor: &mut Cursor<'_>, bytes: &[u8]) -> Result<()> {
        // SAFETY: they are borrowed until this returns, and are only read.
        let slice = [unsafe { Slice::new(bytes.as_ptr() as u64, bytes.len() as u64) }];
        self.move_bytes(cursor, &Pieces::Slices(&slice), bytes.len() as u64, true, || Ok(()))
    }

    /// Where the heap of a rank begins.
    #[inline(always)]
    pub(in crate::store) fn base(&self, rank: u32) -> Result<Base<'_>> {
        self.heap(rank).map(Base::mapped)
    }

    /// CRC32C of the first `bytes` bytes of a page of a rank's heap, of an object that is pinned or planned.
    pub(in crate::store) fn page_sum(&self, rank: u32, page: u64, seed: u32, bytes: u64) -> Result<u32> {
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

    /// Whether pieces are memory that the CPU writes to.
    pub(in crate::store) fn is_host(&self, pieces: &Pieces<'_>) -> Result<bool> {
        let Some(device) = self.member.device() else { return Ok(true) };
        let mut host = true;
        pieces.each(|address, bytes| {
            host = host && (bytes == 0 || crate::cuda::reach(device, address)? == Reach::Cpu);
            Ok(())
        })?;
        Ok(host)
    }
}

impl Store {
    /// CRC32C of the bytes of a plan in host memory that nobody writes to any more.
    pub fn plan_checksum(&self, plan: &Opened) -> Result<u32> {
        if self.client.member().heap_kind() != HeapKind::Host {
            crate::bail!(NMC_ERR_UNSUPPORTED, "the CPU does not reach the bytes of a device heap");
        }
        let pieces = self.addresses(self.plan_extents(plan)?)?;
        // SAFETY: pages of an open plan are mapped as long as the store is, and nobody writes to them any more.
        Ok(pieces.fold(0, |sum, (address, _, bytes)| unsafe { sys::checksum(sum, address, bytes) }))
    }
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

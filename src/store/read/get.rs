//! Reads that copy: into one buffer, into pieces, all of a value or a part. From memory, while the object is pinned; what memory
//! does not have, from the disk, if there is one; and what is nowhere here, from the handle's peers, if it has some. Nothing here
//! asks the master.

use crate::base::error::{Error, Result};
use crate::base::status::NMC_ERR_INVALID_ARG;
use crate::layout::store::{ObjectHeader, Seal, Shape, View};
use crate::store::client::{Op, Store};
use crate::store::copy::{Cursor, Pieces, Slice, read_to};
use crate::store::disk::DiskAccess;
use crate::store::sys;
use crate::store::types::{Look, Pin, Sums, check_within, shaped};
use std::sync::atomic::Ordering::Relaxed;

#[cold]
pub(super) fn other_size(total: u64, wanted: u64) -> Error {
    Error::new(NMC_ERR_INVALID_ARG, format!("the value has {total} bytes, the buffers {wanted}"))
}

impl Store {
    /// Reads a value into `buffer` if it fits there. Gives its size in any case.
    pub fn get(&self, key: &[u8], buffer: Slice) -> Result<Look<u64>> {
        let look = self.read_whole(key, |bytes| Ok((bytes <= buffer.bytes()).then_some(buffer.first(bytes))));
        if matches!(look, Ok(Look::Missing)) && self.peers.is_some() {
            return self.whole_from_peers(key, &Pieces::Slices(std::slice::from_ref(&buffer)));
        }
        look
    }

    /// Reads a value into pieces that must have its size together.
    pub fn get_into(&self, key: &[u8], pieces: &Pieces<'_>) -> Result<Look<u64>> {
        pieces.check()?;
        let wanted = pieces.bytes()?;
        self.read(key, 0, pieces, |total| if total == wanted { Ok(true) } else { Err(other_size(total, wanted)) })
    }

    /// The same from memory alone.
    pub(super) fn get_from_memory(&self, key: &[u8], pieces: &Pieces<'_>) -> Result<Look<u64>> {
        pieces.check()?;
        let wanted = pieces.bytes()?;
        let mut fits = |total, _| if total == wanted { Ok(true) } else { Err(other_size(total, wanted)) };
        self.part_from_memory(key, 0, pieces, Sums::Touched, &mut fits, true)
    }

    /// Reads a part of a value, from `offset` on, as much as the pieces hold. Gives the size of all of it.
    pub fn get_part(&self, key: &[u8], offset: u64, pieces: &Pieces<'_>) -> Result<Look<u64>> {
        pieces.check()?;
        self.read(key, offset, pieces, |_| Ok(true))
    }

    /// Reads a whole value into the slice that `choose` names when it is told the size; `None` reads nothing.
    pub fn read_whole(&self, key: &[u8], mut choose: impl FnMut(u64) -> Result<Option<Slice>>) -> Result<Look<u64>> {
        let look = self.whole_from_memory(key, &mut choose, true)?;
        if !matches!(look, Look::Missing) {
            return Ok(look);
        }
        let Some(disk) = self.disk()? else { return Ok(look) };
        self.look_on_disk(disk, key, |found| match found {
            None => self.whole_from_memory(key, &mut choose, false).map(Some),
            Some((disk, entry)) => {
                let bytes = entry.entry.bytes;
                let Some(slice) = choose(bytes)? else { return Ok(Some(Look::Ready(bytes))) };
                let pieces = Pieces::Slices(std::slice::from_ref(&slice));
                pieces.check()?;
                Ok(self.read_entry(disk, entry, key, 0, &pieces)?.then_some(Look::Ready(bytes)))
            }
        })
    }

    #[inline(always)]
    fn whole_from_memory(
        &self,
        key: &[u8],
        choose: &mut impl FnMut(u64) -> Result<Option<Slice>>,
        counted: bool,
    ) -> Result<Look<u64>> {
        let view = self.client.view();
        let pin = match self.pin_counted(view, key, counted)? {
            Look::Ready(pin) => pin,
            Look::Writing(index, epoch) => return Ok(Look::Writing(index, epoch)),
            Look::Missing => return Ok(Look::Missing),
        };
        let read = (|| -> Result<u64> {
            let (header, shape) = shaped(view, pin.index)?;
            let seal = self.seal(view, key, pin, header, &shape)?;
            self.stamp(view, pin.index);
            self.client.counters.hit(shape.bytes_total);
            if let Some(slice) = choose(shape.bytes_total)? {
                Pieces::Slices(&[slice]).check()?;
                self.read_pinned(view, (pin.index, header, &shape), 0, &Pieces::Slices(&[slice]), seal, Sums::Touched)?;
            }
            Ok(shape.bytes_total)
        })();
        self.release_pin(view, pin.slot);
        read.map(Look::Ready)
    }

    /// Pins a value to be read by a copy: one whose checksums are not there yet counts as being written.
    #[inline(always)]
    pub(in crate::store) fn pin_to_read(&self, view: &View<'_>, key: &[u8]) -> Result<Look<Pin>> {
        self.pin_counted(view, key, true)
    }

    /// The same; a miss is counted only if `counted`.
    #[inline(always)]
    fn pin_counted(&self, view: &View<'_>, key: &[u8], counted: bool) -> Result<Look<Pin>> {
        let look = self.pin_complete(view, key)?;
        if counted && !matches!(look, Look::Ready(_)) {
            self.client.counters.miss();
        }
        Ok(look)
    }

    /// The same, without being counted.
    #[inline(always)]
    pub(super) fn pin_complete(&self, view: &View<'_>, key: &[u8]) -> Result<Look<Pin>> {
        let look = self.look_and_pin(view, key)?;
        match look {
            Look::Ready(pin) if self.awaits_sums(pin.index) => {
                self.release_pin(view, pin.slot);
                Ok(Look::Writing(pin.index, pin.epoch))
            }
            look => Ok(look),
        }
    }

    /// Reads `pieces` of a value from `offset` on. Gives the bytes of the whole value. Nothing is read if the pieces do
    /// not fit what is there: `fits` is asked with the size of the value first.
    pub fn read(
        &self,
        key: &[u8],
        offset: u64,
        pieces: &Pieces<'_>,
        mut fits: impl FnMut(u64) -> Result<bool>,
    ) -> Result<Look<u64>> {
        self.read_with(key, offset, pieces, Sums::Touched, |bytes, _| fits(bytes))
    }

    /// The same, with a choice of what is verified. `fits` is told besides which put the value came from, 0 if nobody knows.
    pub fn read_with(
        &self,
        key: &[u8],
        offset: u64,
        pieces: &Pieces<'_>,
        sums: Sums,
        mut fits: impl FnMut(u64, u64) -> Result<bool>,
    ) -> Result<Look<u64>> {
        let look = self.part_from_memory(key, offset, pieces, sums, &mut fits, true)?;
        if !matches!(look, Look::Missing) {
            return Ok(look);
        }
        let look = match self.disk()? {
            Some(disk) => self.part_from_disk(disk, key, offset, pieces, sums, &mut fits),
            None => Ok(look),
        };
        if matches!(look, Ok(Look::Missing)) && self.peers.is_some() {
            return self.part_from_peers(key, offset, pieces, |bytes| fits(bytes, 0));
        }
        look
    }

    /// The same for a value that memory did not have.
    #[cold]
    pub(super) fn part_from_disk(
        &self,
        disk: DiskAccess,
        key: &[u8],
        offset: u64,
        pieces: &Pieces<'_>,
        sums: Sums,
        mut fits: impl FnMut(u64, u64) -> Result<bool>,
    ) -> Result<Look<u64>> {
        self.look_on_disk(disk, key, |found| match found {
            None => self.part_from_memory(key, offset, pieces, sums, &mut fits, false).map(Some),
            Some((disk, entry)) => {
                let bytes = entry.entry.bytes;
                if !fits(bytes, entry.put)? {
                    return Ok(Some(Look::Ready(bytes)));
                }
                check_within(offset, pieces.bytes()?, bytes)?;
                Ok(self.read_entry(disk, entry, key, offset, pieces)?.then_some(Look::Ready(bytes)))
            }
        })
    }

    #[inline(always)]
    fn part_from_memory(
        &self,
        key: &[u8],
        offset: u64,
        pieces: &Pieces<'_>,
        sums: Sums,
        fits: &mut impl FnMut(u64, u64) -> Result<bool>,
        counted: bool,
    ) -> Result<Look<u64>> {
        let client = &*self.client;
        let view = client.view();
        let started = client.counters.is_sample(Op::Get).then(sys::now_ns);
        let pin = match self.pin_counted(view, key, counted)? {
            Look::Ready(pin) => pin,
            Look::Writing(index, epoch) => return Ok(Look::Writing(index, epoch)),
            Look::Missing => return Ok(Look::Missing),
        };
        let read = (|| -> Result<(u64, u64)> {
            let (header, shape) = shaped(view, pin.index)?;
            let seal = self.seal(view, key, pin, header, &shape)?;
            if !fits(shape.bytes_total, header.plan_id.load(Relaxed))? {
                return Ok((shape.bytes_total, 0));
            }
            self.stamp(view, pin.index);
            let moved = self.read_pinned(view, (pin.index, header, &shape), offset, pieces, seal, sums)?;
            Ok((shape.bytes_total, moved))
        })();
        self.release_pin(view, pin.slot);
        let (total, moved) = read?;
        client.counters.hit(moved);
        if let Some(started) = started {
            client.counters.timed_get(sys::now_ns() - started, moved);
        }
        Ok(Look::Ready(total))
    }

    /// Copies from an object that is pinned; gives how much.
    #[inline(always)]
    pub(super) fn read_pinned(
        &self,
        view: &View<'_>,
        (index, header, shape): (u32, &ObjectHeader, &Shape),
        offset: u64,
        pieces: &Pieces<'_>,
        seal: Option<Seal>,
        sums: Sums,
    ) -> Result<u64> {
        let bytes = pieces.bytes()?;
        check_within(offset, bytes, shape.bytes_total)?;
        let check = || match seal {
            Some(seal) => self.check_sums(view, (index, header, shape), offset..offset + bytes, seal, sums),
            None => Ok(()),
        };
        let mut cursor = Cursor::new(self, view, header, shape, offset)?;
        self.client.move_bytes(&mut cursor, pieces, bytes, false, check)?;
        Ok(bytes)
    }

    /// Copies as much of a pinned value as the pieces hold, from byte `offset` on. Whatever memory is on either side.
    pub fn read_view(&self, pin: Pin, offset: u64, pieces: &Pieces<'_>) -> Result<()> {
        self.check_view(pin)?;
        let view = self.client.view();
        let (header, shape) = shaped(view, pin.index)?;
        self.read_pinned(view, (pin.index, header, &shape), offset, pieces, None, Sums::Touched).map(drop)
    }

    /// Copies a part of an object that is held into a buffer.
    pub(in crate::store) fn read_pinned_to(
        &self,
        view: &View<'_>,
        object: (u32, &ObjectHeader, &Shape),
        offset: u64,
        to: &mut [u8],
        seal: Option<Seal>,
    ) -> Result<()> {
        read_to(to, |to| self.read_pinned(view, object, offset, &Pieces::Slices(to), seal, Sums::Touched)).map(drop)
    }
}

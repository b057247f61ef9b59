//! The store on CUDA streams: copies, publications and unpins that happen when the stream gets there, and what graphs and
//! kernels need to do these themselves. Everything here only enqueues.
#![allow(unsafe_code, reason = "streams store to words of the store, and copy, by address")]

use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::{NMC_ERR_BUSY, NMC_ERR_NOT_FOUND, NMC_ERR_UNSUPPORTED};
use crate::cuda::GivenStream;
use crate::cuda::{self, Device, Reach, STRETCHES, Stretch};
use crate::layout::store::{FLAG_CHECKSUM, FLAG_HIDDEN};
use crate::mem::HeapKind;
use crate::store::client::Store;
use crate::store::copy::{Cursor, Pieces, walk};
use crate::store::types::{Location, Look, Opened, Pin, check_key, check_within, located, not_found, shaped, show};
use crate::sync::object;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// Plans that are committed by streams are forgotten when there are so many.
const SWEEP_AT: usize = 64;
/// A stretch of at least this size is copied by the driver, which may use a copy engine.
const LARGE: u64 = 4 << 20;

/// What a kernel needs to pin an object by itself: addresses for the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DevicePin {
    /// Of the pin slot.
    pub slot: u64,
    /// What to store there.
    pub value: u64,
    /// Of the control word.
    pub control: u64,
    /// Of the publish word.
    pub published: u64,
    /// Epoch of the object.
    pub epoch: u64,
    /// Of the first byte.
    pub payload: u64,
    /// Bytes of the value.
    pub bytes: u64,
}

#[cold]
fn no_device() -> Error {
    Error::new(NMC_ERR_UNSUPPORTED, "the store's world was joined without a CUDA device (set config.device)")
}

impl Store {
    fn device(&self) -> Result<&Arc<Device>> {
        self.client.member.device().ok_or_else(no_device)
    }

    fn words_base(&self) -> Result<u64> {
        self.client.map.device_words().ok_or_else(no_device)
    }

    fn slot_address(&self, slot: u32) -> Result<u64> {
        Ok(self.words_base()? + self.client.map.layout().slot_offset(self.client.number, slot) as u64)
    }

    /// Stores in a word of the slabs, by its address for the device.
    fn write_word(&self, stream: GivenStream, address: u64, value: u64) -> Result<()> {
        let device = self.device()?;
        // SAFETY: a pin slot or a publish word of the slabs, which are registered as long as the client is there. That the stream is one, and
        // gets there before the store is destroyed, says the C contract.
        unsafe { cuda::stream_write_value64(device, stream.raw(), address, value) }
    }

    /// Publishes a plan when the stream gets there.
    pub fn commit_async(&self, plan: &Opened, stream: GivenStream) -> Result<()> {
        self.check_plan_for_stream(plan)?;
        self.write_word(stream, self.publish_word(plan.index).1, plan.epoch)?;
        let plans = &self.client.plans;
        if plans.len() >= SWEEP_AT {
            let view = self.client.view();
            plans.sweep(|p| view.publish(p.index).is_some_and(|w| w.published.load(Acquire) == p.epoch));
        }
        Ok(())
    }

    /// Refuses a plan that is not open, or that cannot be committed by a stream.
    pub fn check_plan_for_stream(&self, plan: &Opened) -> Result<()> {
        self.device()?;
        let view = self.client.view();
        if self.client.plans.get(plan.plan_id) != Some(*plan) {
            return Err(Error::new(NMC_ERR_NOT_FOUND, format!("there is no open write plan {:x}", plan.plan_id)));
        }
        let flags = view.object(plan.index).map_or(0, |header| header.flags.load(Relaxed));
        if flags & (FLAG_HIDDEN | FLAG_CHECKSUM) != 0 {
            let why = if flags & FLAG_HIDDEN != 0 { "replaces another object" } else { "is checksummed" };
            crate::bail!(NMC_ERR_UNSUPPORTED, "a plan that {why} is committed by nmc_store_commit only");
        }
        Ok(())
    }

    /// What a captured publication of a plan stores, and where on the GPU.
    pub fn publish_descriptor(&self, plan: &Opened) -> Result<(u64, u64)> {
        self.check_plan_for_stream(plan)?;
        Ok((self.publish_word(plan.index).1, plan.epoch))
    }

    /// Copies `pieces` into the pages of a plan from `offset` on, when the stream gets there.
    pub fn push_async(&self, plan: &Opened, offset: u64, pieces: &Pieces<'_>, stream: GivenStream) -> Result<()> {
        if self.client.plans.get(plan.plan_id) != Some(*plan) {
            return Err(Error::new(NMC_ERR_NOT_FOUND, format!("there is no open write plan {:x}", plan.plan_id)));
        }
        self.check_unended(plan)?;
        self.copy_async(plan.index, offset, pieces, stream, true)
    }

    /// Copies from a pinned object into `pieces` when the stream gets there.
    pub fn fetch_async(&self, pin: Pin, offset: u64, pieces: &Pieces<'_>, stream: GivenStream) -> Result<()> {
        self.check_view(pin)?;
        self.copy_async(pin.index, offset, pieces, stream, false)
    }

    fn copy_async(&self, index: u32, offset: u64, pieces: &Pieces<'_>, stream: GivenStream, into: bool) -> Result<()> {
        let device = self.device()?;
        let view = self.client.view();
        let (header, shape) = shaped(view, index)?;
        check_within(offset, pieces.bytes()?, shape.bytes_total)?;
        let host_heap = self.client.member.heap_kind() == HeapKind::Host;
        let mut by_kernel = false;
        pieces.each(|address, bytes| {
            let reach = if bytes > 0 { cuda::reach(device, address)? } else { Reach::Gpu };
            // From host memory to host memory the driver would copy at once, on this thread.
            by_kernel |= host_heap && reach == Reach::Both;
            if reach == Reach::Cpu {
                crate::bail!(
                    NMC_ERR_INVALID_ARG,
                    "{address:#x} is host memory that the GPU cannot reach; register it, or use the call that waits"
                );
            }
            Ok(())
        })?;
        let kernels = device.kernels()?;
        let mut cursor = Cursor::on_device(self, view, header, &shape, offset)?;
        let mut stretches: Vec<Stretch> = memory::with_capacity(STRETCHES)?;
        walk(&mut cursor, pieces, into, |_, src, dst, bytes| {
            if bytes >= LARGE && !by_kernel {
                // SAFETY: one is of a piece, see `Slice::new`; the other of an object that is pinned or planned until the stream is through,
                // which the C contract says, as it does that the stream is one.
                return unsafe { cuda::copy_on_stream(device, stream.raw(), src, dst, bytes) };
            }
            stretches.push(Stretch { dst, src, bytes });
            if stretches.len() == STRETCHES {
                // SAFETY: as above.
                unsafe { kernels.store_copy(stream.raw(), &stretches, true) }?;
                stretches.clear();
            }
            Ok(())
        })?;
        // SAFETY: as above.
        if stretches.is_empty() { Ok(()) } else { unsafe { kernels.store_copy(stream.raw(), &stretches, true) } }
    }

    /// Ends a pin when the stream gets there. The view is the stream's from now on.
    pub fn unpin_async(&self, pin: Pin, stream: GivenStream) -> Result<()> {
        self.check_view(pin)?;
        self.write_word(stream, self.slot_address(pin.slot)?, 0)?;
        self.client.slots.give_to_stream(pin.slot);
        Ok(())
    }

    /// Makes a stream wait until an object that is being written, or is there, can be read.
    ///
    /// # Safety
    /// `stream` is one of the device's, or NULL. `out` is 0 or the address of a word of 32 bits, which can be written to and stays the
    /// stream's until the wait or its last replay has run.
    pub unsafe fn wait_ready_async(&self, key: &[u8], timeout_ns: u64, out: u64, stream: GivenStream) -> Result<()> {
        let device = self.device()?;
        let view = self.client.view();
        let (index, epoch) = match self.look(view, key)? {
            Look::Ready(found) => found,
            Look::Writing(index, epoch) => (index, epoch),
            Look::Missing => return Err(not_found(key)),
        };
        if out != 0 && (!out.is_multiple_of(4) || cuda::reach(device, out)? == Reach::Cpu) {
            crate::bail!(NMC_ERR_INVALID_ARG, "the result at {out:#x} is not a word that the GPU can reach");
        }
        let header = self.client.map.layout().header_offset(index) as u64;
        let control = self.client.map.device_control().map_or(0, |base| base + header);
        let (kernels, published) = (device.kernels()?, self.publish_word(index).1);
        // SAFETY: words of the slabs, which are registered as long as the client is there; the caller vouches for the rest.
        unsafe { kernels.store_wait(stream.raw(), published, control, epoch, timeout_ns, out) }
    }

    /// Publishes what `n` descriptors in memory that the GPU can reach say when the stream gets there.
    ///
    /// # Safety
    /// `stream` is one of the device's, or NULL. From `descriptors` on there are so many, each as [`Store::publish_descriptor`] gave it or
    /// with epoch 0, until the launch or its last replay has run; and then the store is still there.
    pub unsafe fn publish_captured(&self, descriptors: u64, n: u32, stream: GivenStream) -> Result<()> {
        let device = self.device()?;
        if descriptors == 0 || !descriptors.is_multiple_of(8) || n == 0 {
            crate::bail!(NMC_ERR_INVALID_ARG, "{n} descriptors at {descriptors:#x} cannot be published");
        }
        if cuda::reach(device, descriptors)? == Reach::Cpu {
            crate::bail!(NMC_ERR_INVALID_ARG, "the descriptors are in host memory that the GPU cannot reach");
        }
        let kernels = device.kernels()?;
        // SAFETY: by contract.
        unsafe { kernels.store_publish(stream.raw(), descriptors, n) }
    }

    // ---- slots of kernels and graphs -------------------------------------------------------------------------------

    /// Sets a pin slot aside for a kernel or a captured graph.
    pub fn reserve_slot(&self) -> Result<u32> {
        self.words_base()?;
        let view = self.client.view();
        let slot = self.client.take_slot(view)?;
        self.client.slots.set_aside(slot);
        Ok(slot)
    }

    fn check_slot(&self, slot: u32) -> Result<()> {
        if !self.client.slots.is_set_aside(slot) {
            crate::bail!(NMC_ERR_NOT_FOUND, "slot {slot} was not reserved");
        }
        Ok(())
    }

    /// Gives a reserved slot back. If it is in use it is free when the stream has emptied it.
    pub fn release_slot(&self, slot: u32) -> Result<()> {
        self.check_slot(slot)?;
        self.client.slots.end_reservation(slot);
        Ok(())
    }

    /// Pins an object in a reserved slot, which must be empty: what a captured unpin emptied, or was never used.
    pub fn pin_slot(&self, slot: u32, key: &[u8]) -> Result<Look<(Pin, Location)>> {
        check_key(key)?;
        self.check_slot(slot)?;
        let view = self.client.view();
        if self.slot_word(view, slot).is_none_or(|word| object::scan(word) != 0) {
            return Err(Error::new(NMC_ERR_BUSY, format!("slot {slot} still pins what the launch before is using")));
        }
        self.client.slots.reuse(slot);
        Ok(match self.pin_in(view, key, slot)? {
            Look::Ready(pin) => {
                let place = self.located(view, pin)?;
                self.stamp(view, pin.index);
                self.client.counters.hit(place.bytes_total);
                Look::Ready((pin, place))
            }
            Look::Writing(index, epoch) => Look::Writing(index, epoch),
            Look::Missing => Look::Missing,
        })
    }

    /// Empties a reserved slot when the stream gets there; captured, each time.
    pub fn unpin_slot_async(&self, slot: u32, stream: GivenStream) -> Result<()> {
        self.check_slot(slot)?;
        self.write_word(stream, self.slot_address(slot)?, 0)
    }

    /// What a kernel needs to pin an object itself, with a reserved slot.
    pub fn device_pin(&self, slot: u32, key: &[u8]) -> Result<Look<DevicePin>> {
        self.check_slot(slot)?;
        let Some(control) = self.client.map.device_control() else {
            return Err(Error::new(NMC_ERR_UNSUPPORTED, "this device cannot reach read-only host memory"));
        };
        // Without a pin: the kernel finds out whether the object is still there.
        let view = self.client.view();
        let (index, epoch) = match self.look(view, key)? {
            Look::Ready(found) => found,
            Look::Writing(index, epoch) => return Ok(Look::Writing(index, epoch)),
            Look::Missing => return Ok(Look::Missing),
        };
        let Some(header) = view.object(index) else { return Ok(Look::Missing) };
        let place = located(view, index, epoch);
        if !object::still(&header.control, epoch) {
            return Ok(Look::Missing);
        }
        let place = place?;
        if place.n_extents > 1 {
            crate::bail!(
                NMC_ERR_UNSUPPORTED,
                "{} lies in {} extents; put it with NMC_PUT_CONTIGUOUS",
                show(key),
                place.n_extents
            );
        }
        Ok(Look::Ready(DevicePin {
            slot: self.slot_address(slot)?,
            value: object::pin_word(place.index, place.epoch),
            control: control + self.client.map.layout().header_offset(place.index) as u64,
            published: self.publish_word(place.index).1,
            epoch: place.epoch,
            payload: self.client.heap(place.owner_rank)?.device_base() + place.offset,
            bytes: place.bytes_total,
        }))
    }
}

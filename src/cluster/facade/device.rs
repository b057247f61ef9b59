//! Values in memory of a device. They go by way of host memory, a part of a batch at a time: neither a socket nor NIXL as it is used here
//! reaches the device.

use super::{Got, Item};
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::{NMC_ERR_INTERNAL, NMC_ERR_UNSUPPORTED};
use crate::cuda::{self, Copier, Device, Ordinary, Owner};
use crate::store::copy::Slice;
use parking_lot::Mutex;
use std::sync::Arc;

/// Bytes of host memory that stand in for a device's at a time, unless one value has more.
const AT_A_TIME: u64 = 64 << 20;
/// Copiers that are kept for the next call.
const KEPT: usize = 4;

/// Copies between devices and host memory.
#[derive(Default)]
pub struct Copiers(Mutex<Vec<(i32, Copier)>>);

impl Copiers {
    fn with(&self, device: &Arc<Device>, body: impl FnOnce(&mut Copier) -> Result<()>) -> Result<()> {
        let kept = {
            let mut idle = self.0.lock();
            let at = idle.iter().position(|(ordinal, _)| *ordinal == device.ordinal());
            at.map(|at| idle.swap_remove(at).1)
        };
        let mut copier = kept.map_or_else(|| Copier::new(device), Ok)?;
        let copied = device.with_current(|| {
            let begun = body(&mut copier);
            // Also after a failure: nothing may be in flight when the memory is given back.
            begun.and(copier.finish())
        });
        let mut idle = self.0.lock();
        // What has failed may not work any more.
        if copied.is_ok() && idle.len() < KEPT && memory::reserve(&mut idle, 1).is_ok() {
            idle.push((device.ordinal(), copier));
        }
        copied
    }
}

/// An item of which some memory is a device's, with host memory in the place of that.
struct Staged {
    device: Arc<Device>,
    slices: Vec<Slice>,
    /// Keeps what the slices lead to.
    _memory: Vec<u8>,
}

/// The device that has this memory, if one has.
fn device_of(slice: &Slice) -> Result<Option<Arc<Device>>> {
    match cuda::owner(slice.address)? {
        Owner::Device(ordinal) => Device::open(ordinal.unwrap_or(-1)).map(Some),
        Owner::Host | Owner::Pinned => Ok(None),
    }
}

/// Whether some memory may be a device's: only then the driver is asked, and nobody is the first who uses it here.
fn devices_are_used() -> bool {
    cuda::in_process() && cuda::initialized() && cuda::require().is_ok()
}

/// Whether the CPU does not reach this memory.
fn is_far(slice: &Slice) -> Result<bool> {
    Ok(matches!(cuda::owner(slice.address)?, Owner::Device(Some(_))))
}

/// Fails if some memory of an item is a device's.
pub fn check_host(item: &Item<'_>) -> Result<()> {
    for slice in item.slices.iter().filter(|slice| slice.bytes > 0 && devices_are_used()) {
        if is_far(slice)? {
            crate::bail!(
                NMC_ERR_UNSUPPORTED,
                "memory of a device is for calls that wait: nmc_client_put, nmc_client_get"
            );
        }
    }
    Ok(())
}

/// Fails if this memory is a device's.
pub fn check_host_memory(address: usize, bytes: usize) -> Result<()> {
    let slice = Slice { address: address as u64, bytes: bytes as u64 };
    if devices_are_used() && is_far(&slice)? {
        return Err(Error::new(
            NMC_ERR_UNSUPPORTED,
            "NIXL moves host memory alone; values in memory of a device need no registration",
        ));
    }
    Ok(())
}

impl Staged {
    /// `None` if all of it is host memory.
    fn of(item: &Item<'_>) -> Result<Option<Self>> {
        item.bytes()?; // all sums below are less
        let mut device = None;
        let mut staged = memory::copy(item.slices)?;
        let (mut bytes, mut at) = (0, memory::with_capacity(staged.len())?);
        for (number, slice) in item.slices.iter().enumerate().filter(|(_, slice)| slice.bytes > 0) {
            if let Some(found) = device_of(slice)? {
                device.get_or_insert(found);
                at.push((number, bytes));
                bytes += slice.bytes;
            }
        }
        let Some(device) = device else { return Ok(None) };
        let memory = memory::zeroed::<u8>(usize::try_from(bytes).unwrap_or(usize::MAX))?;
        for (number, offset) in at {
            staged[number].address = memory.as_ptr() as u64 + offset;
        }
        Ok(Some(Self { device, slices: staged, _memory: memory }))
    }

    /// Copies the first `bytes` bytes, from the device or to it.
    fn copy(&self, copiers: &Copiers, item: &Item<'_>, bytes: u64, way: Ordinary) -> Result<()> {
        copiers.with(&self.device, |copier| {
            let mut left = bytes;
            for (there, here) in item.slices.iter().zip(&self.slices) {
                let step = left.min(there.bytes);
                left -= step;
                if step > 0 && there.address != here.address {
                    let (from, to) = match way {
                        Ordinary::Source => (here.address, there.address),
                        Ordinary::Destination => (there.address, here.address),
                    };
                    copier.copy(from, to, step, Some(way))?;
                }
            }
            Ok(())
        })
    }
}

/// How values come to host memory and from there.
struct Ways<'a, R> {
    /// Does what is to be done with items in host memory.
    call: &'a dyn Fn(&[Item<'_>]) -> Result<Vec<R>>,
    /// Copies, before that; what fails is not done.
    before: &'a dyn Fn(&Staged, &Item<'_>) -> Result<()>,
    /// Copies, after that.
    after: &'a dyn Fn(&Staged, &Item<'_>, &mut R),
    refused: fn(Error) -> R,
}

impl<R> Ways<'_, R> {
    /// Does as many of the first items as have room in host memory at a time.
    fn some(&self, items: &[Item<'_>]) -> Result<Vec<R>> {
        let (mut staged, mut bytes) = (Vec::new(), 0_u64);
        for item in items {
            let one = Staged::of(item).and_then(|one| match one {
                Some(one) => (self.before)(&one, item).map(|()| Some(one)),
                None => Ok(None),
            });
            if !matches!(one, Ok(None)) {
                bytes = bytes.saturating_add(item.bytes().unwrap_or(0));
            }
            memory::push(&mut staged, one)?;
            if bytes >= AT_A_TIME {
                break;
            }
        }
        let good = memory::collect(items.iter().zip(&staged).filter_map(|(item, one)| match one {
            Ok(one) => Some(Item { key: item.key, slices: one.as_ref().map_or(item.slices, |one| &one.slices) }),
            Err(_) => None,
        }))?;
        let mut results = memory::with_capacity(staged.len())?;
        let mut done = (self.call)(&good)?.into_iter();
        let nothing = || (self.refused)(Error::new(NMC_ERR_INTERNAL, "nothing came of it"));
        for (item, one) in items.iter().zip(staged) {
            results.push(match one {
                Err(error) => (self.refused)(error),
                Ok(one) => {
                    let mut result = done.next().unwrap_or_else(nothing);
                    if let Some(one) = &one {
                        (self.after)(one, item, &mut result);
                    }
                    result
                }
            });
        }
        Ok(results)
    }

    /// Does all of them, until `over` says why not.
    fn all(&self, items: &[Item<'_>], over: impl Fn() -> Option<Error>) -> Result<Vec<R>> {
        if !devices_are_used() {
            return (self.call)(items);
        }
        let mut results = memory::with_capacity(items.len())?;
        results.extend(self.some(items)?);
        while let Some(rest) = items.get(results.len()..).filter(|rest| !rest.is_empty()) {
            // What was done before counts, whatever becomes of the rest.
            match over().map_or_else(|| self.some(rest), Err) {
                Ok(done) => results.extend(done),
                Err(error) => results.extend(rest.iter().map(|_| (self.refused)(error.clone()))),
            }
        }
        Ok(results)
    }
}

/// Puts items, wherever they are.
pub fn put(
    copiers: &Copiers,
    items: &[Item<'_>],
    over: impl Fn() -> Option<Error>,
    call: impl Fn(&[Item<'_>]) -> Result<Vec<Result<()>>>,
) -> Result<Vec<Result<()>>> {
    let before = |one: &Staged, item: &Item<'_>| one.copy(copiers, item, item.bytes()?, Ordinary::Destination);
    Ways { call: &call, before: &before, after: &|_, _, _| {}, refused: Err }.all(items, over)
}

/// Reads items, wherever they go.
pub fn get(
    copiers: &Copiers,
    items: &[Item<'_>],
    over: impl Fn() -> Option<Error>,
    call: impl Fn(&[Item<'_>]) -> Result<Vec<Got>>,
) -> Result<Vec<Got>> {
    let after = |one: &Staged, item: &Item<'_>, got: &mut Got| {
        if got.result.is_ok() {
            got.result = one.copy(copiers, item, got.bytes, Ordinary::Source);
        }
    };
    Ways { call: &call, before: &|_, _| Ok(()), after: &after, refused: |error| Got::of(Err(error)) }.all(items, over)
}

//! Values in memory of a device. They go by way of host memory, a part of a batch at a time: neither a socket nor NIXL as it is used here
//! reaches the device.

use super::{Got, Item};
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::NMC_ERR_UNSUPPORTED;
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
        if idle.len() < KEPT && memory::reserve(&mut idle, 1).is_ok() {
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

/// Whether some memory may be a device's.
fn devices_are_used() -> bool {
    cuda::in_process() && cuda::require().is_ok()
}

/// Fails if some memory of an item is a device's.
pub fn check_host(item: &Item<'_>) -> Result<()> {
    for slice in item.slices.iter().filter(|slice| slice.bytes > 0 && devices_are_used()) {
        if device_of(slice)?.is_some() {
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
    if devices_are_used() && device_of(&slice)?.is_some() {
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

/// Does `call` for all items, with host memory in the place of a device's. `before` and `after` copy; what fails before it is not done.
fn by_way_of_host<R>(
    items: &[Item<'_>],
    call: impl Fn(&[Item<'_>]) -> Result<Vec<R>>,
    before: impl Fn(&Staged, &Item<'_>) -> Result<()>,
    after: impl Fn(&Staged, &Item<'_>, &mut R),
    refused: impl Fn(Error) -> R,
) -> Result<Vec<R>> {
    if !devices_are_used() {
        return call(items);
    }
    let mut results = memory::with_capacity(items.len())?;
    let mut rest = items;
    while !rest.is_empty() {
        let (mut staged, mut bytes) = (Vec::new(), 0);
        for item in rest {
            let one = Staged::of(item).and_then(|one| match one {
                Some(one) => before(&one, item).map(|()| Some(one)),
                None => Ok(None),
            });
            bytes += if matches!(one, Ok(None)) { 0 } else { item.bytes()? };
            memory::push(&mut staged, one)?;
            if bytes >= AT_A_TIME {
                break;
            }
        }
        let (now, later) = rest.split_at(staged.len());
        rest = later;
        let good = memory::collect(now.iter().zip(&staged).filter_map(|(item, one)| match one {
            Ok(one) => Some(Item { key: item.key, slices: one.as_ref().map_or(item.slices, |one| &one.slices) }),
            Err(_) => None,
        }))?;
        let mut done = call(&good)?.into_iter();
        for (item, one) in now.iter().zip(staged) {
            results.extend(match one {
                Err(error) => Some(refused(error)),
                Ok(one) => done.next().map(|mut result| {
                    if let Some(one) = &one {
                        after(one, item, &mut result);
                    }
                    result
                }),
            });
        }
    }
    Ok(results)
}

/// Puts items, wherever they are.
pub fn put(
    copiers: &Copiers,
    items: &[Item<'_>],
    call: impl Fn(&[Item<'_>]) -> Result<Vec<Result<()>>>,
) -> Result<Vec<Result<()>>> {
    let before = |one: &Staged, item: &Item<'_>| one.copy(copiers, item, item.bytes()?, Ordinary::Destination);
    by_way_of_host(items, call, before, |_, _, _| {}, Err)
}

/// Reads items, wherever they go.
pub fn get(copiers: &Copiers, items: &[Item<'_>], call: impl Fn(&[Item<'_>]) -> Result<Vec<Got>>) -> Result<Vec<Got>> {
    let after = |one: &Staged, item: &Item<'_>, got: &mut Got| {
        if got.result.is_ok() {
            got.result = one.copy(copiers, item, got.bytes, Ordinary::Source);
        }
    };
    by_way_of_host(items, call, |_, _| Ok(()), after, |error| Got::of(Err(error)))
}

//! Values in memory of a device. NIXL moves those in memory that is registered with it. All others go by way of host memory, a part of a batch at a time:
//! a socket does not reach the device.

use super::{Cluster, Got, Item};
use crate::base::Deadline;
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::{NMC_ERR_INTERNAL, NMC_ERR_UNSUPPORTED, nmc_status_t};
use crate::cluster::nixl::sys::Medium;
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
    Ok(cuda::owner(slice.address)?.device().is_some())
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

/// What memory is that is to be registered with NIXL. Managed memory is the host's as well.
pub fn medium(first: usize, bytes: usize) -> Result<Medium> {
    if !devices_are_used() || bytes == 0 {
        return Ok(Medium::Host);
    }
    let number = |address: usize| cuda::owner(address as u64).map(Owner::device);
    let (begin, end) = (number(first)?, number(first.saturating_add(bytes - 1))?);
    if begin != end {
        crate::bail!(NMC_ERR_INVALID_ARG, "{bytes} bytes at {first:#x} begin on one device and end elsewhere");
    }
    Ok(begin.map_or(Medium::Host, Medium::Device))
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

/// Calls with values that may be in memory of a device.
pub struct Calls<'a> {
    /// Who makes them.
    pub cluster: &'a Cluster,
    /// How long they may take.
    pub deadline: &'a Deadline,
}

impl Calls<'_> {
    /// Whether NIXL may move a value as it is, and the CPU does not reach it.
    fn is_far(&self, item: &Item<'_>) -> bool {
        let spans = item.spans().unwrap_or_default();
        self.cluster.calls.service.reaches(&spans) && item.slices.iter().any(|slice| is_far(slice).unwrap_or(false))
    }
}

/// How values come to host memory and from there.
struct Ways<'a, R> {
    calls: &'a Calls<'a>,
    /// Does what is to be done with items in host memory.
    call: &'a dyn Fn(&[Item<'_>]) -> Result<Vec<R>>,
    /// Copies, before that; what fails is not done.
    before: &'a dyn Fn(&Staged, &Item<'_>) -> Result<()>,
    /// Copies, after that.
    after: &'a dyn Fn(&Staged, &Item<'_>, &mut R),
    refused: fn(Error) -> R,
    /// Why something was not done, if it was not.
    status: fn(&R) -> Option<nmc_status_t>,
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
            Ok(one) => Some(Item::new(item.key, one.as_ref().map_or(item.slices, |one| &one.slices))),
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

    /// Does all of them by way of host memory, until their time is over.
    fn staged(&self, items: &[Item<'_>]) -> Result<Vec<R>> {
        let mut results = memory::with_capacity(items.len())?;
        results.extend(self.some(items)?);
        while let Some(rest) = items.get(results.len()..).filter(|rest| !rest.is_empty()) {
            // What was done before counts, whatever becomes of the rest.
            match self.calls.cluster.over(self.calls.deadline).map_or_else(|| self.some(rest), Err) {
                Ok(done) => results.extend(done),
                Err(error) => results.extend(rest.iter().map(|_| (self.refused)(error.clone()))),
            }
        }
        Ok(results)
    }

    /// Does all of them. Those that NIXL was to move, and could not, go by way of host memory like the others.
    fn all(&self, items: &[Item<'_>]) -> Result<Vec<R>> {
        if !devices_are_used() {
            return (self.call)(items);
        }
        let far = memory::collect(items.iter().map(|item| Item { far: self.calls.is_far(item), ..*item }))?;
        let moved = memory::collect(far.iter().filter(|item| item.far).copied())?;
        if moved.is_empty() {
            return self.staged(items);
        }
        let mut done = (self.call)(&moved)?.into_iter().map(Some);
        let unmoved = |result: &R| (self.status)(result) == Some(NMC_ERR_UNSUPPORTED);
        let mut results: Vec<Option<R>> = memory::collect(far.iter().map(|item| match item.far {
            true => done.next().flatten().filter(|result| !unmoved(result)),
            false => None,
        }))?;
        let rest =
            memory::collect(items.iter().zip(&results).filter(|(_, result)| result.is_none()).map(|(item, _)| *item))?;
        let mut staged = if rest.is_empty() { Vec::new() } else { self.staged(&rest)? }.into_iter();
        let nothing = || (self.refused)(Error::new(NMC_ERR_INTERNAL, "nothing came of it"));
        memory::collect(results.drain(..).map(|result| result.or_else(|| staged.next()).unwrap_or_else(nothing)))
    }
}

/// Puts items, wherever they are.
pub fn put(
    calls: &Calls<'_>,
    items: &[Item<'_>],
    call: impl Fn(&[Item<'_>]) -> Result<Vec<Result<()>>>,
) -> Result<Vec<Result<()>>> {
    let before =
        |one: &Staged, item: &Item<'_>| one.copy(&calls.cluster.copiers, item, item.bytes()?, Ordinary::Destination);
    let status = |result: &Result<()>| result.as_ref().err().map(|error| error.status);
    Ways { calls, call: &call, before: &before, after: &|_, _, _| {}, refused: Err, status }.all(items)
}

/// Reads items, wherever they go.
pub fn get(calls: &Calls<'_>, items: &[Item<'_>], call: impl Fn(&[Item<'_>]) -> Result<Vec<Got>>) -> Result<Vec<Got>> {
    let after = |one: &Staged, item: &Item<'_>, got: &mut Got| {
        if got.result.is_ok() {
            got.result = one.copy(&calls.cluster.copiers, item, got.bytes, Ordinary::Source);
        }
    };
    let refused = |error| Got::of(Err(error));
    let status = |got: &Got| got.result.as_ref().err().map(|error| error.status);
    Ways { calls, call: &call, before: &|_, _| Ok(()), after: &after, refused, status }.all(items)
}

//! Values in memory of a device. NIXL moves those in memory that is registered with it. All others go by way of host memory, a part of a batch at a time:
//! a socket does not reach the device.
#![allow(unsafe_code, reason = "copies memory of the program, by address")]

use super::{Cluster, Got, Item, What};
use crate::base::Deadline;
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::{NMC_ERR_INTERNAL, NMC_ERR_UNSUPPORTED, nmc_status_t};
use crate::cluster::net::Span;
use crate::cluster::nixl::sys::Medium;
use crate::cluster::submit::Bounce;
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
    /// None in tests, whose host memory counts as a device's.
    device: Option<Arc<Device>>,
    slices: Vec<Slice>,
    /// Keeps what the slices lead to.
    _memory: Vec<u8>,
}

/// The device that has this memory, if one has.
fn device_of(slice: &Slice) -> Result<Option<Arc<Device>>> {
    match cuda::owner(slice.address())? {
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
    Ok(cuda::owner(slice.address())?.device().is_some())
}

/// Whether host memory counts as a device's.
fn pretends(cluster: &Cluster) -> bool {
    cluster.config.bounce.is_some()
}

/// Whether some memory of an item is a device's.
fn is_on_device(cluster: &Cluster, item: &Item<'_>) -> Result<bool> {
    let mut slices = item.slices.iter().filter(|slice| slice.bytes() > 0);
    if pretends(cluster) || !devices_are_used() {
        return Ok(pretends(cluster) && slices.next().is_some());
    }
    for slice in slices {
        if is_far(slice)? {
            return Ok(true);
        }
    }
    Ok(false)
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
    /// `None` if all of it is host memory, and does not count as a device's.
    fn of(item: &Item<'_>, pretends: bool) -> Result<Option<Self>> {
        item.bytes()?; // all sums below are less
        let mut device = None;
        let mut staged = memory::copy(item.slices)?;
        let (mut bytes, mut at) = (0, memory::with_capacity(staged.len())?);
        for (number, slice) in item.slices.iter().enumerate().filter(|(_, slice)| slice.bytes() > 0) {
            let found = if pretends { None } else { device_of(slice)? };
            if pretends || found.is_some() {
                device = device.or(found);
                at.push((number, bytes));
                bytes += slice.bytes();
            }
        }
        if at.is_empty() {
            return Ok(None);
        }
        let mut memory = memory::zeroed::<u8>(usize::try_from(bytes).unwrap_or(usize::MAX))?;
        for (number, offset) in at {
            let bytes = staged[number].bytes();
            // SAFETY: as many bytes of the memory were counted for it, and go with it; nobody but the call that has this uses them.
            staged[number] = unsafe { Slice::new(memory.as_mut_ptr() as u64 + offset, bytes) };
        }
        Ok(Some(Self { device, slices: staged, _memory: memory }))
    }

    /// Copies the first `bytes` bytes, from the device or to it.
    fn copy(&self, copiers: &Copiers, item: &Item<'_>, bytes: u64, way: Ordinary) -> Result<()> {
        match &self.device {
            Some(device) => copiers.with(device, |copier| {
                self.each(item, bytes, way, |from, to, step| {
                    // SAFETY: one is the caller's slice (see `Slice::new`), the other as many bytes of ours, which stay as long as this.
                    unsafe { copier.copy(from, to, step, Some(way)) }
                })
            }),
            None => self.each(item, bytes, way, |from, to, step| {
                // SAFETY: as above.
                let span = |address| unsafe {
                    Span::new(usize::try_from(address).unwrap_or(0), usize::try_from(step).unwrap_or(0))
                };
                span(from).copy_to(&span(to));
                Ok(())
            }),
        }
    }

    /// Where from, where to and how many, for each piece of these bytes.
    fn each(
        &self,
        item: &Item<'_>,
        bytes: u64,
        way: Ordinary,
        mut copy: impl FnMut(u64, u64, u64) -> Result<()>,
    ) -> Result<()> {
        let mut left = bytes;
        for (there, here) in item.slices.iter().zip(&self.slices) {
            let step = left.min(there.bytes());
            left -= step;
            if step > 0 && there.address() != here.address() {
                match way {
                    Ordinary::Source => copy(here.address(), there.address(), step)?,
                    Ordinary::Destination => copy(there.address(), here.address(), step)?,
                }
            }
        }
        Ok(())
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
        self.cluster.calls.service.reaches(&spans) && item.slices.iter().any(|slice| is_far(slice).unwrap_or(true))
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
            let one = Staged::of(item, pretends(self.calls.cluster)).and_then(|one| match one {
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
        if pretends(self.calls.cluster) {
            return self.staged(items);
        }
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

/// Memory of a device that a call reads or writes for which nobody waits. Whoever drives the call copies it.
struct Bounced {
    copiers: Arc<Copiers>,
    slices: Vec<Slice>,
    way: Ordinary,
    pretends: bool,
    /// While the call is under way.
    staged: Option<Staged>,
}

impl Bounce for Bounced {
    fn begin(&mut self) -> Result<Vec<Span>> {
        let item = Item::new(&[], &self.slices);
        let Some(staged) = Staged::of(&item, self.pretends)? else { return item.spans() };
        if matches!(self.way, Ordinary::Destination) {
            staged.copy(&self.copiers, &item, item.bytes()?, self.way)?;
        }
        let spans = Item::new(&[], &staged.slices).spans()?;
        self.staged = Some(staged);
        Ok(spans)
    }

    fn end(&mut self, bytes: u64) -> Result<()> {
        let staged = self.staged.take().filter(|_| matches!(self.way, Ordinary::Source));
        staged.map_or(Ok(()), |staged| staged.copy(&self.copiers, &Item::new(&[], &self.slices), bytes, self.way))
    }
}

/// What stands between a call that nobody waits for and its memory, if some of that is a device's.
pub fn bounce(cluster: &Cluster, item: &Item<'_>, way: Ordinary) -> Result<Option<Box<dyn Bounce>>> {
    if !is_on_device(cluster, item)? {
        return Ok(None);
    }
    let (copiers, slices) = (Arc::clone(&cluster.copiers), memory::copy(item.slices)?);
    Ok(Some(Box::new(Bounced { copiers, slices, way, pretends: pretends(cluster), staged: None })))
}

/// Reads a value from a store of this process, wherever it goes.
pub fn get_here(cluster: &Cluster, item: &Item<'_>) -> Result<Option<Got>> {
    if !is_on_device(cluster, item)? {
        return cluster.get_here(item, What::Value);
    }
    // No memory for what is not there.
    if cluster.local(|node| Ok(node.store.exists(item.key)?.then_some(())))?.is_none() {
        return Ok(None);
    }
    let Some(one) = Staged::of(item, pretends(cluster))? else { return Ok(None) };
    let mut found = cluster.get_here(&Item::new(item.key, &one.slices), What::Value)?;
    if let Some(got) = found.as_mut().filter(|got| got.result.is_ok()) {
        got.result = one.copy(&cluster.copiers, item, got.bytes, Ordinary::Source);
    }
    Ok(found)
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

//! Where the bytes of a node's store are: in this process, on which GPU or NUMA node, and for others that write to them and read them.
#![allow(unsafe_code, reason = "bytes of the store, by address")]

use super::{Held, Known, NodeStore};
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::NMC_ERR_STALE;
use crate::cluster::net::{Span, Spans};
use crate::cluster::node::Offer;
use crate::cluster::node::storage::{Memory, Plan, Wake};
use crate::cluster::wire::Region;
use crate::cuda::{self, Seen, Visible};
use crate::mem::{HeapKind, numa};
use crate::store::copy::Pieces;
use crate::store::types::{Extents, Opened};
use std::sync::Arc;
use std::time::Duration;

/// A device, as the driver counts it.
fn ordinal(device: u32) -> i32 {
    i32::try_from(device).unwrap_or(i32::MAX)
}

/// The bytes of a plan are on the device already.
pub(super) fn landed() -> Error {
    Error::new(NMC_ERR_STALE, "the plan is being published")
}

impl NodeStore {
    /// The GPU that has the heap of a rank, or the NUMA node where it begins, if that is known.
    pub(super) fn near(&self, rank: u32) -> Option<u32> {
        let Region { base, device, .. } = self.region(rank).ok()?;
        device.or_else(|| numa::node_of(base))
    }

    /// The heap of a rank, in this process.
    pub(super) fn region(&self, rank: u32) -> Result<Region> {
        let params = self.store.client().params();
        let base = self.store.base(rank)? + params.heap_offset;
        let device = match self.store.client().member().heap_kind() {
            HeapKind::Host => None,
            _ => cuda::owner(base)?.device(),
        };
        Ok(Region { number: rank, base, length: params.heap_bytes, device })
    }

    /// Where bytes of the store are in this process, in order. Of those on a device that is where the device has them.
    fn mapped(&self, extents: Extents) -> Result<Vec<Span>> {
        let addresses = self.store.addresses(extents)?;
        let size = |n: u64| usize::try_from(n).unwrap_or(0);
        // SAFETY: a plan or a pin keeps the extents, and with it those who move bytes of them.
        memory::collect(addresses.map(|(address, _, bytes)| unsafe { Span::new(size(address), size(bytes)) }))
    }

    /// The bytes of a plan go to the device, once: when it is published its pages may be another's at any time. What others have written there must be seen
    /// there: a kernel may wait for the value to be published.
    pub(in crate::cluster::node) fn land(&mut self, plan: Plan, opened: &Opened) -> Result<()> {
        let Some(bounces) = &mut self.bounces else { return Ok(()) };
        if let Some(bounce) = bounces.plans.get(plan) {
            self.store.write_plan(opened, &Pieces::Slices(&[bounce.slice()]))?;
            bounces.plans.end(plan);
            return Ok(());
        }
        if let Some(device) = self.written_by_others.get(&plan) {
            cuda::Device::open(ordinal(*device))?.flush_rdma_writes(self.seen())?;
            self.written_by_others.remove(&plan);
        }
        Ok(())
    }

    /// Which GPUs read what is on one of them.
    fn seen(&self) -> Seen {
        if self.tier_segment() > 1 { Seen::ByAll } else { Seen::ByOwner }
    }

    /// Whether others may write to a rank's heap: what they write can be seen there then.
    fn can_be_written(&self, region: &Region) -> bool {
        let Some(device) = region.device else { return true };
        let visible = cuda::Device::open(ordinal(device)).and_then(|device| device.rdma_writes(self.seen()));
        visible.is_ok_and(|visible| visible != Visible::Never)
    }
}

impl Memory for NodeStore {
    fn wake_with(&mut self, wake: Wake) {
        self.promoter.wake_with(wake);
    }

    fn plan_spans(&self, plan: Plan) -> Result<Vec<Span>> {
        let opened = self.opened(plan)?;
        match &self.bounces {
            None => self.mapped(self.store.plan_extents(opened)?),
            Some(bounces) => memory::collect([bounces.plans.get(plan).ok_or_else(landed)?.span()]),
        }
    }

    fn pin_spans(&self, pin: u64, offset: u64, bytes: u64) -> Result<Spans> {
        if let Held::Staged(staged) = self.held(pin)? {
            let missing = || Error::new(NMC_ERR_STALE, "the value beside memory has no such bytes");
            return staged.part(offset, bytes).map(|part| Spans::new([part])).ok_or_else(missing);
        }
        match &self.bounces {
            None => self.far_spans(pin, offset, bytes),
            Some(_) if bytes == 0 => Ok(Spans::new([])),
            Some(bounces) => {
                let part = bounces.pins.get(pin).and_then(|bounce| bounce.part(offset, bytes));
                let missing = || Error::new(NMC_ERR_STALE, "the bytes were not brought from the device");
                part.map(|part| Spans::new([part])).ok_or_else(missing)
            }
        }
    }

    fn far_spans(&self, pin: u64, offset: u64, bytes: u64) -> Result<Spans> {
        let &Held::Pinned(held) = self.held(pin)? else {
            crate::bail!(NMC_ERR_UNSUPPORTED, "the value is beside memory, where NIXL does not reach");
        };
        Ok(Spans::new(self.mapped(self.store.view_extents(held)?)?).behind(offset).up_to(bytes))
    }

    fn regions(&mut self) -> Result<Vec<Region>> {
        // Nobody may have taken a rank yet, or its memory is another one by now.
        let regions = (0..self.tier_segment()).filter_map(|rank| self.region(rank).ok());
        self.regions = memory::collect(regions.filter(|region| self.can_be_written(region)))?;
        memory::copy(&self.regions)
    }

    fn ends_with(&self) -> Wake {
        let client = Arc::downgrade(&self.store.client);
        Arc::new(move || _ = client.upgrade().map(|client| client.end_waits()))
    }

    fn has_changed(&self) -> bool {
        self.store.disk_changes() != self.disk.changes
    }

    fn offer(&mut self, node: &str) -> Result<Offer> {
        if self.has_changed() {
            self.disk = Known::of(&self.store, Duration::MAX)?;
        }
        let ranks = self.tier_segment();
        let segments = self.segments(|number| match number {
            number if number == ranks => format!("{node}/ssd"),
            0 if ranks == 1 => node.into(),
            number => format!("{node}/{number}"),
        })?;
        Ok(Offer { store: self.store.store_id() ^ self.disk.name, slots: self.slots(), segments })
    }
}

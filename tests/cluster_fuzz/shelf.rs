//! A small store of which only the names of what it holds are there. Values with an odd index come as if from a disk.

use nanomc::base::error::{Error, Result};
use nanomc::base::status::{NMC_ERR_EXISTS, NMC_ERR_NO_SPACE, NMC_ERR_NOT_FOUND, NMC_ERR_STALE, nmc_status_t};
use nanomc::cluster::node::storage::{Part, Tail, Wanted};
use nanomc::cluster::node::{Hold, Pinned, Plan, Storage};
use nanomc::cluster::types::{ObjectKey, Position, PutId};
use nanomc::cluster::wire::{Extent, Fact, Metadata, Published, Retired};
use std::collections::{BTreeMap, VecDeque};

/// Headers.
pub const HEADERS: u32 = 32;
/// Bytes.
pub const CAPACITY: u64 = 1 << 20;
/// Facts that are kept.
const RING: usize = 8;
/// What all checksums are.
pub const SUM: u32 = 7;

#[derive(Debug)]
struct Object {
    key: ObjectKey,
    put: PutId,
    length: u64,
    segment: u32,
    retain: u32,
    metadata: Metadata,
    live: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Shelf {
    objects: BTreeMap<Plan, Object>,
    epoch: u64,
    ring: VecDeque<Fact>,
    newest: u64,
    position: Option<Position>,
    closed: Vec<u32>,
    pins: BTreeMap<u64, Plan>,
    coming: BTreeMap<u64, Plan>,
    names: u64,
}

fn refuse<T>(status: nmc_status_t) -> Result<T> {
    Err(Error::new(status, "there is none"))
}

impl Shelf {
    fn fact(&mut self, fact: impl Into<Fact>) {
        self.newest += 1;
        self.ring.push_back(fact.into());
        if self.ring.len() > RING {
            self.ring.pop_front();
        }
    }

    fn published(&self, plan: Plan) -> Option<Published> {
        let object = self.objects.get(&plan).filter(|object| object.live)?;
        let (key, put, length, segment) = (object.key.clone(), object.put, object.length, object.segment);
        Some(Published { index: plan.index, epoch: plan.epoch, key, put, length, segment })
    }

    fn drop_those(&mut self, which: impl Fn(Plan, &Object) -> bool) {
        let over = self.objects.iter().filter(|(plan, object)| object.live && which(**plan, object));
        for plan in over.map(|(plan, _)| *plan).collect::<Vec<_>>() {
            self.objects.remove(&plan);
            self.fact(Retired { index: plan.index, epoch: plan.epoch });
        }
    }

    fn hold(&mut self, plan: Plan) -> Result<Pinned> {
        let Some(object) = self.objects.get(&plan).filter(|object| object.live) else {
            return refuse(NMC_ERR_NOT_FOUND);
        };
        self.names += 1;
        self.pins.insert(self.names, plan);
        let (put, length, retain, metadata) = (object.put, object.length, object.retain, object.metadata.clone());
        Ok(Pinned { pin: self.names, put, length, retain, metadata })
    }
}

impl Storage for Shelf {
    fn open(&mut self, wanted: &Wanted<'_>) -> Result<Plan> {
        if self.objects.values().any(|object| object.key == *wanted.key) {
            return refuse(NMC_ERR_EXISTS);
        }
        let used: u64 = self.objects.values().map(|object| object.length).sum();
        let index = (0..HEADERS).find(|index| self.objects.keys().all(|plan| plan.index != *index));
        let Some(index) = index.filter(|_| wanted.length <= CAPACITY - used && !self.closed.contains(&wanted.segment))
        else {
            return refuse(NMC_ERR_NO_SPACE);
        };
        self.epoch += 1;
        let plan = Plan { index, epoch: self.epoch };
        let (key, put, length, segment) = (wanted.key.clone(), wanted.put, wanted.length, wanted.segment);
        let (retain, metadata) = (wanted.retain, wanted.metadata.clone());
        self.objects.insert(plan, Object { key, put, length, segment, retain, metadata, live: false });
        Ok(plan)
    }

    fn extents(&mut self, plan: Plan) -> Result<Vec<Extent>> {
        let length = self.objects.get(&plan).map_or(0, |object| object.length);
        Ok(vec![Extent { region: 1, offset: 0, length }])
    }

    fn checksum(&self, _: Plan) -> Result<u32> {
        Ok(SUM)
    }

    fn commit(&mut self, plan: Plan) -> Result<Option<u64>> {
        match self.objects.get_mut(&plan) {
            Some(object) => object.live = true,
            None => return refuse(NMC_ERR_STALE),
        }
        if let Some(published) = self.published(plan) {
            self.fact(published);
        }
        // Some are to be on disk first.
        Ok((plan.index % 4 != 2).then_some(self.newest))
    }

    fn written(&mut self, plan: Plan) -> Result<Option<u64>> {
        self.names += 1;
        if self.objects.contains_key(&plan) {
            Ok(self.names.is_multiple_of(3).then_some(self.newest))
        } else {
            refuse(NMC_ERR_STALE)
        }
    }

    fn abandon(&mut self, plan: Plan) {
        if self.published(plan).is_some() {
            return self.drop_those(|other, _| other == plan);
        }
        self.objects.remove(&plan);
    }

    fn doubt(&mut self, plan: Plan) -> u64 {
        self.objects.get(&plan).map_or(0, |object| object.length)
    }

    fn pin(&mut self, plan: Plan, key: &ObjectKey, _: PutId) -> Result<Hold> {
        if self.published(plan).is_none_or(|published| published.key != *key) {
            return refuse(NMC_ERR_NOT_FOUND);
        }
        if plan.index % 2 == 1 {
            self.names += 1;
            self.coming.insert(self.names, plan);
            return Ok(Hold::Coming(self.names));
        }
        self.hold(plan).map(Hold::Held)
    }

    fn came(&mut self, coming: u64) -> Result<Option<Pinned>> {
        self.names += 1;
        match self.coming.get(&coming).copied() {
            None => refuse(NMC_ERR_NOT_FOUND),
            Some(_) if !self.names.is_multiple_of(4) => Ok(None),
            Some(plan) => {
                self.coming.remove(&coming);
                self.hold(plan).map(Some)
            }
        }
    }

    fn forget(&mut self, coming: u64) {
        self.coming.remove(&coming);
    }

    fn unpin(&mut self, pin: u64) {
        assert!(self.pins.remove(&pin).is_some(), "what is let go of was held");
    }

    fn drop_named(&mut self, plan: Plan, key: &ObjectKey) {
        self.drop_those(|other, object| other == plan && object.key == *key);
    }

    fn drop_put(&mut self, key: &ObjectKey, put: PutId) {
        self.drop_those(|_, object| object.put == put && object.key == *key);
    }

    fn drop_key(&mut self, key: &ObjectKey) {
        self.drop_those(|_, object| object.key == *key);
    }

    fn drop_space(&mut self, space: Option<&[u8]>) {
        self.drop_those(|_, object| space.is_none_or(|space| object.key.space() == space));
    }

    fn newest(&self) -> u64 {
        self.newest
    }

    fn notice(&self) -> Result<u64> {
        Ok(self.newest)
    }

    fn facts(&mut self, behind: u64, most: usize) -> Result<Tail> {
        let oldest = self.newest - self.ring.len() as u64;
        let Some(known) = behind.checked_sub(oldest) else { return Ok(Tail::Overwritten) };
        let known = usize::try_from(known).unwrap_or(usize::MAX);
        Ok(Tail::Facts(self.ring.iter().skip(known).take(most).cloned().collect()))
    }

    fn part(&mut self, from: u32, most: usize) -> Result<Part> {
        let live = self.objects.keys().filter(|plan| plan.index >= from);
        let live = live.filter_map(|plan| self.published(*plan)).take(most).collect();
        Ok(Part { from, to: HEADERS, live, next: None })
    }

    fn position(&self) -> Option<Position> {
        self.position
    }

    fn tier(&self) -> u64 {
        0
    }

    fn apart(&self) -> Option<Position> {
        None
    }

    fn has_left(&self) -> bool {
        false
    }

    fn drop_apart(&mut self) -> Result<()> {
        Ok(())
    }

    fn set_position(&mut self, position: Position) -> Result<()> {
        self.position = Some(position).filter(|position| position.term != 0);
        Ok(())
    }

    fn used(&self) -> Vec<u64> {
        vec![self.objects.values().map(|object| object.length).sum()]
    }

    fn has_bytes(&self) -> bool {
        self.used() != [0]
    }

    fn close(&mut self, segment: u32, closed: bool) -> Result<()> {
        self.closed.retain(|other| *other != segment);
        self.closed.extend(Some(segment).filter(|_| closed));
        Ok(())
    }

    fn is_quiet(&mut self, _: u32) -> bool {
        true
    }
}

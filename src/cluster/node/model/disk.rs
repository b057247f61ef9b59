//! A model of a node's tier: values that are written there while they are in memory, entries by slot with epochs of their own, a
//! journal that says what is dead and how far the drop log was applied, and what of all that is left when a process dies or power
//! fails. It does what `store/master/disk` and `cluster/node/real` do; a control does it as it was done before, or wrongly.

use super::Flaw;
use super::store::{Known, State, Store};
use crate::base::error::Result;
use crate::cluster::node::{Offer, Plan};
use crate::cluster::types::{Chance, Media, ObjectKey, Position, PutId, cluster_of};
use crate::cluster::wire::{Published, Retired, SegmentInfo};
use crate::layout::store::ON_DISK;

/// Slots of a tier.
pub const SLOTS: u32 = 8;
/// Number of the segment that a tier is.
pub const SEGMENT: u32 = 1;

/// A value on disk.
#[derive(Debug, Clone)]
pub struct Record {
    /// Of its slot, higher than any before.
    pub epoch: u64,
    /// Of the object that was written: of two records of a key the later one counts.
    written: u64,
    pub key: ObjectKey,
    pub put: PutId,
    pub pages: Vec<u64>,
    pub original: bool,
    /// The object in memory that is the same.
    memory: Option<Plan>,
}

/// An object that is being written.
#[derive(Debug, Clone)]
struct Hold {
    plan: Plan,
    /// It was dropped meanwhile: its record is marked dead.
    gone: bool,
}

/// A tier that is open.
#[derive(Debug, Clone)]
pub struct Disk {
    /// Another one whenever it is opened.
    pub id: u64,
    /// Of the directory.
    pub name: u64,
    pub slots: Vec<Option<Record>>,
    position: Option<Position>,
    /// What was marked dead since the journal was made durable: power that fails brings it back.
    ended: Vec<Record>,
    holds: Vec<Hold>,
}

/// What is in a directory that nobody has open.
#[derive(Debug, Clone)]
pub struct Directory {
    pub name: u64,
    pub records: Vec<Record>,
    position: Option<Position>,
    /// It was closed, and the store went on that may come to a cluster later.
    pub before: bool,
}

impl Directory {
    pub fn new(name: u64) -> Self {
        Self { name, records: Vec::new(), position: None, before: false }
    }

    pub fn puts(&self) -> impl Iterator<Item = PutId> {
        self.records.iter().map(|record| record.put)
    }
}

impl Store {
    /// The tier that is there, 0 for none.
    pub fn disk_id(&self) -> u64 {
        self.disk.as_ref().map_or(0, |disk| disk.id)
    }

    /// Whether the tier was opened or closed since it was asked what it offers.
    pub fn has_changed(&self) -> bool {
        match self.flaw {
            Some(Flaw::TiersByName) => self.disk_id() != self.known.name,
            _ => self.changes != self.known.changes,
        }
    }

    pub fn check_tier(&self) -> Result<()> {
        if self.has_changed() {
            crate::bail!(NMC_ERR_STALE, "the tier was opened or closed");
        }
        Ok(())
    }

    /// What it offers now, as a node of this name and with this name of the memory.
    pub fn offer(&mut self, node: &str, memory: u64) -> Offer {
        let slots = if self.disk.is_some() { SLOTS } else { 0 };
        self.known = Known { changes: self.changes, name: self.disk_id(), slots };
        let make = |number, name: &str, media, capacity| {
            let name = format!("{node}/{name}");
            SegmentInfo { number, name, media, capacity, used: 0, near: -1 }
        };
        let mut segments = vec![make(0, "ram", Media::Ram, 24)];
        if self.disk.is_some() {
            segments.push(make(SEGMENT, "ssd", Media::Ssd, 32));
        }
        Offer { store: memory ^ self.known.name, slots, segments }
    }

    /// The slot that a key has.
    pub fn slot_of(&self, key: &ObjectKey) -> Option<usize> {
        let disk = self.disk.as_ref()?;
        disk.slots.iter().position(|slot| slot.as_ref().is_some_and(|record| record.key == *key))
    }

    pub fn record(&self, slot: usize) -> Option<&Record> {
        self.disk.as_ref()?.slots.get(slot)?.as_ref()
    }

    /// The slot that is the same as an object in memory.
    pub fn clean(&self, index: usize) -> Option<usize> {
        let plan = Plan { index: u32::try_from(index).unwrap(), epoch: self.headers[index].epoch };
        let is = |slot: &Option<Record>| slot.as_ref().is_some_and(|record| record.memory == Some(plan));
        self.disk.as_ref()?.slots.iter().position(is)
    }

    pub fn is_held(&self, index: usize) -> bool {
        self.disk.as_ref().is_some_and(|disk| disk.holds.iter().any(|hold| hold.plan.index as usize == index))
    }

    /// An object is about to be written.
    pub fn begin_offload(&mut self, index: usize) -> Option<(u64, Plan)> {
        if self.headers[index].state != State::Live || self.clean(index).is_some() || self.is_held(index) {
            return None;
        }
        let plan = Plan { index: u32::try_from(index).unwrap(), epoch: self.headers[index].epoch };
        let disk = self.disk.as_mut()?;
        disk.holds.push(Hold { plan, gone: false });
        Some((disk.id, plan))
    }

    /// It is written for good: if it is still there it has an entry from now on.
    pub fn stored(&mut self, id: u64, plan: Plan) -> bool {
        let Some(disk) = self.disk.as_mut().filter(|disk| disk.id == id) else { return false };
        let Some(at) = disk.holds.iter().position(|hold| hold.plan == plan) else { return false };
        let hold = disk.holds.swap_remove(at);
        let there = self.header(plan).is_some_and(|header| header.state == State::Live);
        !hold.gone && there && self.enter(plan).is_some()
    }

    /// Enters what is in memory.
    pub fn enter(&mut self, plan: Plan) -> Option<usize> {
        let header = self.header(plan)?;
        let record = Record {
            epoch: self.next_epoch,
            written: plan.epoch,
            key: header.key.clone()?,
            put: header.put,
            pages: header.pages.iter().map(|page| self.pages[*page as usize]).collect(),
            original: header.original,
            memory: Some(plan),
        };
        let slot = self.disk.as_ref()?.slots.iter().position(Option::is_none)?;
        self.next_epoch += 1;
        self.disk.as_mut()?.slots[slot] = Some(record);
        self.fact(self.on_disk(slot).into());
        Some(slot)
    }

    /// What is said of a slot.
    pub fn on_disk(&self, slot: usize) -> Published {
        let record = self.record(slot).unwrap();
        Published {
            index: ON_DISK | u32::try_from(slot).unwrap(),
            epoch: record.epoch,
            key: record.key.clone(),
            put: record.put,
            length: record.pages.len() as u64,
            segment: SEGMENT,
        }
    }

    /// An entry ends: it is marked dead, or `evicted`, which is durable at once.
    pub fn end_slot(&mut self, slot: usize, evicted: bool) {
        let Some(disk) = &mut self.disk else { return };
        let Some(record) = disk.slots[slot].take() else { return };
        let index = ON_DISK | u32::try_from(slot).unwrap();
        let (epoch, since) = (record.epoch, self.apart_since);
        let brought = record.memory.filter(|plan| self.apart.is_some() && epoch < since && plan.epoch >= since);
        if !evicted {
            disk.ended.push(record);
        }
        self.fact(Retired { index, epoch }.into());
        if let Some(plan) = brought.filter(|_| evicted && self.flaw != Some(Flaw::KeepsPromoted))
            && self.header(plan).is_some_and(|header| header.state == State::Live)
        {
            self.retire(plan.index as usize);
        }
    }

    /// Drops an object in memory, and what is on disk of it; or what of it is being written.
    pub fn drop_object(&mut self, index: usize) {
        if let Some(slot) = self.clean(index) {
            self.end_slot(slot, false);
        }
        if let Some(disk) = &mut self.disk {
            for hold in disk.holds.iter_mut().filter(|hold| hold.plan.index as usize == index) {
                hold.gone = true;
            }
        }
        let header = &mut self.headers[index];
        if header.state == State::Writing {
            // Its pages are its writer's until that says that it has stopped.
            (header.state, header.doubt) = (State::Dead, true);
        }
        self.retire(index);
    }

    /// Drops an entry, and what is in memory of it.
    pub fn drop_slot(&mut self, slot: usize) {
        let memory = self.record(slot).and_then(|record| record.memory);
        self.end_slot(slot, false);
        if let Some(plan) = memory.filter(|plan| self.header(*plan).is_some_and(|header| header.state == State::Live)) {
            self.drop_object(plan.index as usize);
        }
    }

    /// Drops what the tier has brought and memory had not.
    pub fn drop_all_apart(&mut self) {
        let since = if self.flaw == Some(Flaw::KeepsPromoted) { u64::MAX } else { self.apart_since };
        for slot in 0..self.known.slots as usize {
            let Some(record) = self.record(slot).filter(|record| record.epoch < since) else { continue };
            let (key, put) = (record.key.clone(), record.put);
            let had = |plan: Plan| self.headers[plan.index as usize].put == put && plan.epoch < since;
            if !self.find(&key).is_some_and(had) {
                self.drop_slot(slot);
            }
        }
    }

    /// Brings a value into memory, if there is room for it.
    pub fn promote(&mut self, slot: usize) -> Option<Plan> {
        let Record { key, put, pages, original, memory, .. } = self.record(slot)?.clone();
        if let Some(plan) = memory.filter(|plan| self.header(*plan).is_some_and(|header| header.state == State::Live)) {
            return Some(plan);
        }
        let taken = |at: &&super::store::Header| {
            matches!(at.state, State::Live | State::Writing) && at.key.as_ref() == Some(&key)
        };
        if self.headers.iter().find(taken).is_some() {
            return None;
        }
        let plan = self.place(&key, put, pages.len())?;
        for (at, page) in pages.iter().enumerate() {
            self.write(plan, at, *page);
        }
        self.headers[plan.index as usize].original = original;
        self.publish(plan);
        if let Some(record) = self.disk.as_mut()?.slots[slot].as_mut() {
            record.memory = Some(plan);
        }
        Some(plan)
    }

    /// The tier is closed: what is being written is not written any more.
    pub fn close_tier(&mut self) -> Option<Directory> {
        if self.apart.is_some() {
            let since = if self.flaw == Some(Flaw::KeepsPromoted) { u64::MAX } else { self.apart_since };
            let brought = |record: &Record| record.memory.filter(|plan| record.epoch < since && plan.epoch >= since);
            let brought: Vec<Plan> =
                self.disk.iter().flat_map(|disk| disk.slots.iter().flatten()).filter_map(brought).collect();
            for plan in brought {
                if self.header(plan).is_some_and(|header| header.state == State::Live) {
                    self.drop_object(plan.index as usize);
                }
            }
        }
        let disk = self.disk.take()?;
        self.changes += 1;
        self.skip_facts();
        if self.position.is_some() {
            (self.left, self.apart) = (true, None);
        }
        let records = disk.slots.into_iter().flatten().map(|record| Record { memory: None, ..record }).collect();
        Some(Directory { name: disk.name, records, position: disk.position, before: self.position.is_none() })
    }

    /// The process is gone: memory is, and this is on the disk. If `power` fails too, what was not durable is not there.
    pub fn die(mut self, power: bool, chance: &mut Chance) -> Option<Directory> {
        let disk = self.disk.as_ref()?;
        let mut records = disk.ended.clone();
        records.retain(|_| power && chance.below(3) == 0);
        // Whoever wrote may have been done, and nobody have heard of it.
        for Hold { plan, gone } in disk.holds.clone() {
            let marked = gone && !(power && chance.below(3) == 0);
            let header = &self.headers[plan.index as usize];
            if !marked
                && chance.below(2) == 0
                && header.epoch == plan.epoch
                && let Some(key) = header.key.clone()
            {
                let pages = header.pages.iter().map(|page| self.pages[*page as usize]).collect();
                let (put, original) = (header.put, header.original);
                records.push(Record { epoch: 0, written: plan.epoch, key, put, pages, original, memory: None });
            }
        }
        let mut directory = self.close_tier()?;
        directory.records.extend(records);
        directory.before = false;
        Some(directory)
    }

    /// A directory comes below the store.
    pub fn open_tier(&mut self, directory: Directory, id: u64) {
        let Directory { name, mut records, position, .. } = directory;
        records.sort_by_key(|record| std::cmp::Reverse(record.written));
        let mut slots: Vec<Option<Record>> = vec![None; SLOTS as usize];
        let mut taken: Vec<ObjectKey> = Vec::new();
        let mut place = 0;
        for record in records {
            self.next_epoch = self.next_epoch.max(record.written.max(record.epoch) + 1);
            if taken.contains(&record.key) || place == slots.len() {
                continue;
            }
            taken.push(record.key.clone());
            slots[place] = Some(Record { epoch: record.written.max(1), memory: None, ..record });
            place += 1;
        }
        // In another order than before.
        slots.rotate_right(usize::try_from(id % u64::from(SLOTS)).unwrap());
        self.disk = Some(Disk { id, name, slots, position, ended: Vec::new(), holds: Vec::new() });
        self.meet_memory();
        self.meet_position(position);
        self.tier = name;
        self.changes += 1;
        self.skip_facts();
    }

    /// What memory has counts.
    fn meet_memory(&mut self) {
        for index in 0..self.headers.len() {
            let header = &self.headers[index];
            if !matches!(header.state, State::Live | State::Writing) {
                continue;
            }
            let (writing, put) = (header.state == State::Writing, header.put);
            let plan = Plan { index: u32::try_from(index).unwrap(), epoch: header.epoch };
            let Some(slot) = header.key.clone().and_then(|key| self.slot_of(&key)) else { continue };
            if self.record(slot).is_some_and(|record| record.put == put) {
                if !writing && let Some(disk) = &mut self.disk {
                    disk.slots[slot].as_mut().unwrap().memory = Some(plan);
                }
            } else if writing {
                self.drop_object(index);
            } else {
                self.end_slot(slot, false);
            }
        }
    }

    fn meet_position(&mut self, on_disk: Option<Position>) {
        let Some(memory) = self.position else {
            self.position = on_disk;
            return;
        };
        let first = Position { term: 1, number: 0 };
        let on_disk = on_disk.or((self.tier != 0).then_some(first));
        let behind = on_disk.filter(|at| *at < memory || cluster_of(at.term) != cluster_of(memory.term));
        self.disk.as_mut().unwrap().position = behind.or(Some(memory));
        self.apart_since = self.next_epoch;
        self.apart = behind.filter(|_| self.flaw != Some(Flaw::NeverApart));
        self.left |= self.tier != 0 && self.disk.as_ref().is_some_and(|disk| disk.name != self.tier);
    }

    /// The drop log was applied this far.
    pub fn keep_position(&mut self, position: Position) -> Result<()> {
        if self.fails {
            crate::bail!(NMC_ERR_UNAVAILABLE, "it is not kept");
        }
        if self.flaw != Some(Flaw::PositionOfAnyTier) {
            self.check_tier()?;
        }
        self.position = Some(position).filter(|position| position.term != 0);
        if let Some(disk) = &mut self.disk {
            disk.position = self.position;
            disk.ended.clear();
        }
        (self.left, self.apart) = (false, None);
        Ok(())
    }
}

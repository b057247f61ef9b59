//! A model of a node's store: headers, pages, pins, a ring of facts that forgets, eviction, and pages that stay out of use while
//! somebody may write to them. A page holds one number, which says whose it is.

use super::Flaw;
use super::disk::{Disk, SEGMENT, SLOTS};
use crate::base::error::Result;
use crate::cluster::node::storage::{Part, Storage, Tail, Wanted};
use crate::cluster::node::{Hold, Pinned, Plan};
use crate::cluster::types::{ObjectKey, Position, PutId};
use crate::cluster::wire::{Extent, Fact, Metadata, Published, Retired};
use crate::layout::store::ON_DISK;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How often it is looked whether something is on disk until it is.
pub const WRITTEN: u32 = 4;

/// The checksum of a value with these pages.
pub fn sum_of(pages: impl Iterator<Item = u64>) -> u32 {
    pages.fold(0, |sum, page| crate::base::crc::crc32c_append(sum, &page.to_le_bytes()))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Free,
    Writing,
    Live,
    /// Nobody finds it; it is held, or may be written to.
    Dead,
}

#[derive(Debug, Clone)]
pub struct Header {
    pub epoch: u64,
    pub state: State,
    pub key: Option<ObjectKey>,
    pub put: PutId,
    pub pages: Vec<u32>,
    pub pins: u32,
    pub doubt: bool,
    /// It was put here, and is not a copy.
    pub original: bool,
}

/// The tier that an agent knows of.
#[derive(Debug, Clone, Default)]
pub struct Known {
    pub changes: u64,
    pub name: u64,
    pub slots: u32,
}

/// See the module.
#[derive(Debug, Clone)]
pub struct Store {
    pub headers: Vec<Header>,
    pub pages: Vec<u64>,
    free: Vec<u32>,
    ring: VecDeque<Fact>,
    ring_size: usize,
    newest: u64,
    pub next_epoch: u64,
    next_pin: u64,
    pins: BTreeMap<u64, u32>,
    /// Keys whose values come from the disk.
    coming: BTreeMap<u64, (ObjectKey, u64)>,
    pub position: Option<Position>,
    pub disk: Option<Disk>,
    /// How often a tier has come or gone, and the one that the agent knows of.
    pub changes: u64,
    pub known: Known,
    /// Name of the tier that there is, or was last.
    pub tier: u64,
    /// One that was there is not any more, and no leader has heard of that.
    pub left: bool,
    /// How far the tier has applied the drop log, if memory was further without it.
    pub apart: Option<Position>,
    /// The first epoch after that tier came.
    pub apart_since: u64,
    /// Plans that are open; puts of those that are to be on disk, and how often it was looked whether they are; and which came to be there.
    plans: BTreeSet<Plan>,
    for_disk: BTreeMap<Plan, (PutId, u32)>,
    pub written: BTreeSet<PutId>,
    /// What goes wrong on purpose.
    pub flaw: Option<Flaw>,
    /// The control that gives pages away while somebody may write to them.
    pub reuse_at_once: bool,
    /// Whether it cannot keep a position.
    pub ill: bool,
    /// Positions cannot be kept at the moment.
    pub fails: bool,
    /// Nothing can be published at the moment.
    pub away: bool,
    /// Nothing new is stored.
    pub closed: bool,
    /// What is held cannot be brought to where it can be sent from.
    pub unready: bool,
}

impl Store {
    pub fn new(headers: u32, pages: u32, ring_size: usize) -> Self {
        let header = Header {
            epoch: 0,
            state: State::Free,
            key: None,
            put: PutId(0),
            pages: Vec::new(),
            pins: 0,
            doubt: false,
            original: false,
        };
        Self {
            headers: vec![header; headers as usize],
            pages: vec![0; pages as usize],
            free: (0..pages).rev().collect(),
            ring: VecDeque::new(),
            ring_size,
            newest: 0,
            next_epoch: 1,
            next_pin: 1,
            pins: BTreeMap::new(),
            coming: BTreeMap::new(),
            position: None,
            disk: None,
            changes: 0,
            known: Known::default(),
            tier: 0,
            left: false,
            apart: None,
            apart_since: 0,
            plans: BTreeSet::new(),
            for_disk: BTreeMap::new(),
            written: BTreeSet::new(),
            flaw: None,
            reuse_at_once: false,
            ill: false,
            fails: false,
            away: false,
            closed: false,
            unready: false,
        }
    }

    /// What happened before is to be looked for in the store.
    pub fn skip_facts(&mut self) {
        self.newest += self.ring_size as u64 + 1;
        self.ring.clear();
    }

    pub fn fact(&mut self, fact: Fact) {
        self.newest += 1;
        self.ring.push_back(fact);
        if self.ring.len() > self.ring_size {
            self.ring.pop_front();
        }
    }

    /// The object that a key has.
    pub fn find(&self, key: &ObjectKey) -> Option<Plan> {
        let at = self.headers.iter().position(|h| h.state == State::Live && h.key.as_ref() == Some(key))?;
        Some(Plan { index: u32::try_from(at).unwrap(), epoch: self.headers[at].epoch })
    }

    /// What a key has, in memory or on disk: which put, its pages, and whether it was put here.
    pub fn look(&self, key: &ObjectKey) -> Option<(PutId, Vec<u64>, bool)> {
        if let Some(header) = self.find(key).and_then(|plan| self.header(plan)) {
            let pages = header.pages.iter().map(|page| self.pages[*page as usize]).collect();
            return Some((header.put, pages, header.original));
        }
        let record = self.record(self.slot_of(key)?)?;
        Some((record.put, record.pages.clone(), record.original))
    }

    /// Whether a put is to be on disk, and is not yet.
    pub fn waits_for_disk(&self, put: PutId) -> bool {
        self.for_disk.values().any(|(waits, _)| *waits == put)
    }

    /// All that is there: index and epoch, key and put.
    pub fn all(&self) -> Vec<(Plan, ObjectKey, PutId)> {
        let memory = self.live().map(|(plan, header)| (plan, header.key.clone().unwrap(), header.put));
        let slots = self.disk.iter().flat_map(|disk| &disk.slots).enumerate();
        let disk = slots.filter_map(|(slot, record)| {
            let record = record.as_ref()?;
            let index = ON_DISK | u32::try_from(slot).unwrap();
            Some((Plan { index, epoch: record.epoch }, record.key.clone(), record.put))
        });
        memory.chain(disk).collect()
    }

    pub fn live(&self) -> impl Iterator<Item = (Plan, &Header)> {
        let named = (0u32..).zip(&self.headers).filter(|(_, header)| header.state == State::Live);
        named.map(|(index, header)| (Plan { index, epoch: header.epoch }, header))
    }

    pub fn header(&self, plan: Plan) -> Option<&Header> {
        self.headers.get(plan.index as usize).filter(|h| h.epoch == plan.epoch && h.state != State::Free)
    }

    fn take(&mut self, index: usize) {
        let header = &mut self.headers[index];
        if header.state == State::Dead && header.pins == 0 && !header.doubt {
            header.state = State::Free;
            header.key = None;
            for page in std::mem::take(&mut header.pages) {
                self.pages[page as usize] = 0;
                self.free.push(page);
            }
        }
    }

    /// What lives in a header does not any more.
    pub fn retire(&mut self, index: usize) {
        let header = &mut self.headers[index];
        if header.state == State::Live {
            header.state = State::Dead;
            let fact = Retired { index: u32::try_from(index).unwrap(), epoch: header.epoch };
            self.fact(fact.into());
            self.take(index);
        }
    }

    /// A put of the node on itself.
    pub fn put(&mut self, key: &ObjectKey, put: PutId, pages: &[u64]) -> Result<u64> {
        let length = pages.len() as u64;
        let metadata = &Metadata::default();
        let wanted = Wanted { put, key, length, segment: 0, exact: true, retain: 0, metadata, is_copy: false };
        let plan = self.open(&wanted)?;
        for (at, page) in pages.iter().enumerate() {
            self.write(plan, at, *page);
        }
        self.commit(plan).map(Option::unwrap_or_default)
    }

    /// Writes a page of a plan. Gives false if the page is not the plan's any more.
    pub fn write(&mut self, plan: Plan, at: usize, content: u64) -> bool {
        let Some(page) = self.header(plan).and_then(|header| header.pages.get(at).copied()) else { return false };
        self.pages[page as usize] = content;
        true
    }

    pub fn read(&self, pin: u64, at: usize) -> u64 {
        let header = self.pins.get(&pin).map(|index| &self.headers[*index as usize]);
        header.and_then(|header| header.pages.get(at)).map_or(0, |page| self.pages[*page as usize])
    }

    /// A header and pages for a value.
    pub fn place(&mut self, key: &ObjectKey, put: PutId, need: usize) -> Option<Plan> {
        let index = self.headers.iter().position(|header| header.state == State::Free)?;
        let pages = self.free.split_off(self.free.len().checked_sub(need)?);
        let epoch = self.next_epoch;
        self.next_epoch += 1;
        let (state, key) = (State::Writing, Some(key.clone()));
        self.headers[index] = Header { epoch, state, key, put, pages, pins: 0, doubt: false, original: true };
        Some(Plan { index: u32::try_from(index).unwrap(), epoch })
    }

    /// All pages of a value are there.
    pub fn publish(&mut self, plan: Plan) {
        self.headers[plan.index as usize].state = State::Live;
        let fact = self.published(plan.index as usize);
        self.fact(fact.into());
    }

    /// Every page is free or somebody's.
    pub fn counts(&self) -> bool {
        let used: usize = self.headers.iter().map(|header| header.pages.len()).sum();
        used + self.free.len() == self.pages.len()
    }

    /// Everything that is written here has ended with the process that had it.
    pub fn agent_died(&mut self) {
        self.pins.clear();
        self.coming.clear();
        (self.plans, self.for_disk) = (BTreeSet::new(), BTreeMap::new());
        for index in 0..self.headers.len() {
            let header = &mut self.headers[index];
            (header.pins, header.doubt) = (0, false);
            if header.state == State::Writing {
                header.state = State::Dead;
            }
            self.take(index);
        }
    }

    /// The store as it is after a restart that found again some of what was in it.
    pub fn recovered(&self, mut keep: impl FnMut() -> bool) -> Self {
        let (headers, pages) = (u32::try_from(self.headers.len()).unwrap(), u32::try_from(self.pages.len()).unwrap());
        let mut store = Store::new(headers, pages, self.ring_size);
        store.reuse_at_once = self.reuse_at_once;
        store.position = self.position;
        store.next_epoch = self.next_epoch + 1000;
        for (_, header) in self.live() {
            let pages: Vec<u64> = header.pages.iter().map(|page| self.pages[*page as usize]).collect();
            if keep()
                && let Some(key) = &header.key
            {
                store.put(key, header.put, &pages).unwrap();
            }
        }
        store
    }

    fn is_there(&self, index: u32, epoch: u64) -> bool {
        match index & ON_DISK {
            0 => self.headers[index as usize].epoch == epoch && self.headers[index as usize].state == State::Live,
            _ => self.record((index & !ON_DISK) as usize).is_some_and(|record| record.epoch == epoch),
        }
    }

    fn published(&self, index: usize) -> Published {
        let header = &self.headers[index];
        Published {
            index: u32::try_from(index).unwrap(),
            epoch: header.epoch,
            key: header.key.clone().unwrap(),
            put: header.put,
            length: header.pages.len() as u64,
            segment: 0,
        }
    }
}

impl Store {
    /// What is found by its key may have come with a tier that nobody knows of yet, and may have been removed while that was away.
    fn check_brought(&self) -> Result<()> {
        if self.has_changed() {
            crate::bail!(NMC_ERR_UNAVAILABLE, "the tier was opened or closed");
        }
        Ok(())
    }

    fn hold(&mut self, plan: Plan) -> Pinned {
        let header = &mut self.headers[plan.index as usize];
        header.pins += 1;
        let pin = self.next_pin;
        self.next_pin += 1;
        self.pins.insert(pin, plan.index);
        let length = header.pages.len() as u64;
        Pinned { pin, put: header.put, length, retain: 0, metadata: Metadata::default() }
    }
}

impl Storage for Store {
    fn open(&mut self, wanted: &Wanted<'_>) -> Result<Plan> {
        let taken = |h: &Header| matches!(h.state, State::Live | State::Writing) && h.key.as_ref() == Some(wanted.key);
        if self.headers.iter().any(taken) || self.slot_of(wanted.key).is_some() {
            crate::bail!(NMC_ERR_EXISTS, "the key is taken");
        }
        if self.closed {
            crate::bail!(NMC_ERR_NO_SPACE, "closed");
        }
        let for_disk = wanted.segment == SEGMENT && self.known.slots > 0;
        if wanted.segment != 0 && !for_disk {
            crate::bail!(NMC_ERR_INVALID_ARG, "there is no segment {}", wanted.segment);
        }
        let need = usize::try_from(wanted.length).unwrap();
        if !self.headers.iter().any(|header| header.state == State::Free) {
            crate::bail!(NMC_ERR_BUSY, "no header");
        }
        let Some(plan) = self.place(wanted.key, wanted.put, need) else {
            crate::bail!(NMC_ERR_NO_SPACE, "no pages");
        };
        self.plans.insert(plan);
        if for_disk {
            self.for_disk.insert(plan, (wanted.put, 0));
        }
        Ok(plan)
    }

    fn extents(&mut self, plan: Plan) -> Result<Vec<Extent>> {
        let header = self.header(plan).unwrap();
        Ok(header.pages.iter().map(|page| Extent { region: 0, offset: u64::from(*page), length: 1 }).collect())
    }

    fn checksum(&self, plan: Plan) -> Result<u32> {
        let Some(header) = self.header(plan) else { crate::bail!(NMC_ERR_STALE, "no such plan") };
        Ok(sum_of(header.pages.iter().map(|page| self.pages[*page as usize])))
    }

    fn commit(&mut self, plan: Plan) -> Result<Option<u64>> {
        let Some(header) = self.headers.get(plan.index as usize) else {
            crate::bail!(NMC_ERR_STALE, "no such plan");
        };
        if header.epoch != plan.epoch || header.state != State::Writing {
            crate::bail!(NMC_ERR_STALE, "the plan was given up");
        }
        if self.away {
            crate::bail!(NMC_ERR_UNAVAILABLE, "the master of the store is away");
        }
        self.publish(plan);
        if self.for_disk.contains_key(&plan) && self.flaw != Some(Flaw::AnswersBeforeDisk) {
            return Ok(None);
        }
        self.plans.remove(&plan);
        Ok(Some(self.newest))
    }

    fn written(&mut self, plan: Plan) -> Result<Option<u64>> {
        let Some((put, looks)) = self.for_disk.get_mut(&plan) else {
            crate::bail!(NMC_ERR_STALE, "it is not being written to disk");
        };
        *looks += 1;
        if *looks < WRITTEN {
            return Ok(None);
        }
        let put = *put;
        let live = self.header(plan).is_some_and(|header| header.state == State::Live);
        let there = match live {
            true => self.clean(plan.index as usize).is_some() || self.enter(plan).is_some(),
            // Memory may have given it away since it was written.
            false => self.disk.iter().flat_map(|disk| &disk.slots).flatten().any(|record| record.put == put),
        };
        if !there {
            crate::bail!(NMC_ERR_NO_SPACE, "it is not on disk");
        }
        self.plans.remove(&plan);
        self.for_disk.remove(&plan);
        self.written.insert(put);
        Ok(Some(self.newest))
    }

    fn abandon(&mut self, plan: Plan) {
        self.for_disk.remove(&plan);
        let published = self.header(plan).is_some_and(|header| header.state == State::Live);
        if self.plans.remove(&plan) && published {
            return self.drop_object(plan.index as usize);
        }
        let Some(header) = self.headers.get_mut(plan.index as usize) else { return };
        if header.epoch == plan.epoch && matches!(header.state, State::Writing | State::Dead) {
            (header.state, header.doubt) = (State::Dead, false);
            self.take(plan.index as usize);
        }
    }

    fn doubt(&mut self, plan: Plan) -> u64 {
        let Some(header) = self.headers.get_mut(plan.index as usize) else { return 0 };
        if header.epoch != plan.epoch || header.state != State::Writing {
            return 0;
        }
        let bytes = header.pages.len() as u64;
        header.state = State::Dead;
        header.doubt = !self.reuse_at_once;
        self.take(plan.index as usize);
        bytes
    }

    fn pin(&mut self, plan: Plan, key: &ObjectKey, put: PutId) -> Result<Hold> {
        let there = |h: &Header| h.epoch == plan.epoch && h.state == State::Live && h.key.as_ref() == Some(key);
        let in_memory = plan.index & ON_DISK == 0 && self.headers.get(plan.index as usize).is_some_and(there);
        let named = self.slot_of(key).is_some_and(|slot| {
            let same = self.record(slot).is_some_and(|record| record.epoch == plan.epoch);
            same && u32::try_from(slot) == Ok(plan.index & !ON_DISK) && plan.index & ON_DISK != 0
        });
        let by_name = self.flaw == Some(Flaw::PinsByName) || self.known.slots == 0 && put == PutId(0);
        if !in_memory {
            self.check_brought()?;
        }
        match (in_memory, self.find(key), self.slot_of(key)) {
            (true, ..) => Ok(Hold::Held(self.hold(plan))),
            (false, Some(found), _) if named || !by_name => Ok(Hold::Held(self.hold(found))),
            (false, None, Some(_)) if named || !by_name || plan.index & ON_DISK == 0 => {
                let number = self.next_pin;
                self.next_pin += 1;
                // How often it is asked for before it is there.
                self.coming.insert(number, (key.clone(), 2 + number % 7));
                Ok(Hold::Coming(number))
            }
            _ => crate::bail!(NMC_ERR_NOT_FOUND, "not here"),
        }
    }

    fn came(&mut self, coming: u64) -> Result<Option<Pinned>> {
        let Some((_, asks)) = self.coming.get_mut(&coming) else { crate::bail!(NMC_ERR_NOT_FOUND, "not coming") };
        if *asks > 0 {
            *asks -= 1;
            return Ok(None);
        }
        let (key, _) = self.coming.remove(&coming).unwrap();
        self.check_brought()?;
        let held = match (self.find(&key), self.slot_of(&key)) {
            (Some(found), _) => found,
            (None, Some(slot)) => match self.promote(slot) {
                Some(held) => held,
                None => crate::bail!(NMC_ERR_NO_SPACE, "no room for what is on disk"),
            },
            (None, None) => crate::bail!(NMC_ERR_NOT_FOUND, "not here any more"),
        };
        Ok(Some(self.hold(held)))
    }

    fn forget(&mut self, coming: u64) {
        self.coming.remove(&coming);
    }

    fn ready(&mut self, _pin: u64, _offset: u64, _bytes: u64) -> Result<()> {
        if self.unready {
            crate::bail!(NMC_ERR_BUSY, "too much is on its way");
        }
        Ok(())
    }

    fn unpin(&mut self, pin: u64) {
        if let Some(index) = self.pins.remove(&pin) {
            self.headers[index as usize].pins -= 1;
            self.take(index as usize);
        }
    }

    fn drop_named(&mut self, plan: Plan, key: &ObjectKey) {
        if plan.index & ON_DISK != 0 {
            let slot = self.slot_of(key).filter(|slot| u32::try_from(*slot) == Ok(plan.index & !ON_DISK));
            if let Some(slot) = slot.filter(|slot| self.record(*slot).is_some_and(|r| r.epoch == plan.epoch)) {
                self.drop_slot(slot);
            }
        } else if self
            .header(plan)
            .is_some_and(|header| header.state == State::Live && header.key.as_ref() == Some(key))
        {
            self.drop_object(plan.index as usize);
        }
    }

    fn drop_put(&mut self, key: &ObjectKey, put: PutId) {
        if self.flaw == Some(Flaw::OnePlace) {
            return;
        }
        let of =
            |h: &Header| matches!(h.state, State::Live | State::Writing) && h.key.as_ref() == Some(key) && h.put == put;
        if let Some(index) = self.headers.iter().position(of) {
            self.drop_object(index);
        }
        if let Some(slot) = self.slot_of(key).filter(|slot| self.record(*slot).is_some_and(|r| r.put == put)) {
            self.drop_slot(slot);
        }
    }

    fn drop_key(&mut self, key: &ObjectKey) {
        if let Some(slot) = self.slot_of(key) {
            self.drop_slot(slot);
        }
        let of = |h: &Header| matches!(h.state, State::Live | State::Writing) && h.key.as_ref() == Some(key);
        if let Some(index) = self.headers.iter().position(of) {
            self.drop_object(index);
        }
    }

    fn drop_space(&mut self, space: Option<&[u8]>) {
        let covers = |key: &ObjectKey| space.is_none_or(|space| key.space() == space);
        for index in 0..self.headers.len() {
            let header = &self.headers[index];
            if matches!(header.state, State::Live | State::Writing) && header.key.as_ref().is_some_and(covers) {
                self.drop_object(index);
            }
        }
        for slot in 0..SLOTS as usize {
            if self.record(slot).is_some_and(|record| covers(&record.key)) {
                self.drop_slot(slot);
            }
        }
    }

    fn newest(&self) -> u64 {
        self.newest
    }

    fn notice(&self) -> Result<u64> {
        Ok(self.newest)
    }

    fn facts(&mut self, behind: u64, most: usize) -> Result<Tail> {
        self.check_tier()?;
        let oldest = self.newest - self.ring.len() as u64;
        if behind < oldest {
            return Ok(Tail::Overwritten);
        }
        let skip = usize::try_from(behind - oldest).unwrap();
        // What is over by now is told as that.
        let told = |fact: &Fact| match fact {
            Fact::Published(p) if !self.is_there(p.index, p.epoch) => Retired { index: p.index, epoch: p.epoch }.into(),
            fact => fact.clone(),
        };
        Ok(Tail::Facts(self.ring.iter().skip(skip).take(most).map(told).collect()))
    }

    fn part(&mut self, from: u32, _: usize) -> Result<Part> {
        self.check_tier()?;
        // Small ranges, so that much happens between them.
        let (headers, slots) = (u32::try_from(self.headers.len()).unwrap(), self.known.slots);
        let (all, behind) = match from & ON_DISK {
            0 => (headers, Some(ON_DISK).filter(|_| slots > 0)),
            _ => (ON_DISK | slots, None),
        };
        let to = all.min(from + 3);
        let live = (from..to).filter_map(|index| match index & ON_DISK {
            0 => (self.headers[index as usize].state == State::Live).then(|| self.published(index as usize)),
            _ => self.record((index & !ON_DISK) as usize).map(|_| self.on_disk((index & !ON_DISK) as usize)),
        });
        Ok(Part { from, to, live: live.collect(), next: if to < all { Some(to) } else { behind } })
    }

    fn position(&self) -> Option<Position> {
        self.position
    }

    fn tier(&self) -> u64 {
        if self.known.slots > 0 { self.tier } else { 0 }
    }

    fn apart(&self) -> Option<Position> {
        self.apart
    }

    fn has_left(&self) -> bool {
        self.left && self.flaw != Some(Flaw::NeverLeft)
    }

    fn drop_apart(&mut self) -> Result<()> {
        self.drop_all_apart();
        Ok(())
    }

    fn set_position(&mut self, position: Position) -> Result<()> {
        if self.ill {
            crate::bail!(NMC_ERR_IO, "the disk does not take it");
        }
        self.keep_position(position)
    }

    fn used(&self) -> Vec<u64> {
        let on_disk = self.disk.iter().flat_map(|disk| &disk.slots).flatten().map(|r| r.pages.len() as u64).sum();
        let memory = (self.pages.len() - self.free.len()) as u64;
        [memory].into_iter().chain((self.known.slots > 0 && self.disk.is_some()).then_some(on_disk)).collect()
    }

    fn has_bytes(&self) -> bool {
        self.used().iter().any(|bytes| *bytes > 0)
    }

    fn close(&mut self, segment: u32, closed: bool) -> Result<()> {
        // What the tier takes comes from memory: it is not closed itself.
        self.closed = if segment == 0 { closed } else { self.closed };
        Ok(())
    }

    fn is_quiet(&mut self, segment: u32) -> bool {
        segment == SEGMENT || self.headers.iter().all(|header| header.state != State::Writing)
    }
}

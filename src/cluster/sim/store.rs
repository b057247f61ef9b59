//! A model of a node's store: headers, pages, pins, a ring of facts that forgets, eviction, and pages that stay out of use while
//! somebody may write to them. A page holds one number, which says whose it is.

use crate::base::error::Result;
use crate::cluster::node::storage::{Part, Storage, Tail, Wanted};
use crate::cluster::node::{Pinned, Plan};
use crate::cluster::types::{ObjectKey, Position, PutId};
use crate::cluster::wire::{Extent, Fact, Metadata, Published, Retired};
use std::collections::{BTreeMap, VecDeque};

/// The segment that is the disk.
pub const DISK: u32 = 1;
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
    /// It is to be on disk, and how often it was looked whether it is.
    pub disk: Option<u32>,
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
    next_epoch: u64,
    next_pin: u64,
    pins: BTreeMap<u64, u32>,
    position: Option<Position>,
    /// The control that gives pages away while somebody may write to them.
    pub reuse_at_once: bool,
    /// The control that answers what is to be on disk before it is.
    pub answer_at_once: bool,
    /// Positions cannot be kept at the moment.
    pub fails: bool,
    /// Nothing new is stored.
    pub closed: bool,
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
            disk: None,
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
            position: None,
            reuse_at_once: false,
            answer_at_once: false,
            fails: false,
            closed: false,
        }
    }

    fn fact(&mut self, fact: Fact) {
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
        let wanted = Wanted { put, key, length, segment: 0, retain: 0, metadata: &Metadata::default() };
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

    /// Every page is free or somebody's.
    pub fn counts(&self) -> bool {
        let used: usize = self.headers.iter().map(|header| header.pages.len()).sum();
        used + self.free.len() == self.pages.len()
    }

    /// Everything that is written here has ended with the process that had it.
    pub fn agent_died(&mut self) {
        self.pins.clear();
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
        store.answer_at_once = self.answer_at_once;
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

impl Storage for Store {
    fn open(&mut self, wanted: &Wanted<'_>) -> Result<Plan> {
        let taken = |h: &Header| matches!(h.state, State::Live | State::Writing) && h.key.as_ref() == Some(wanted.key);
        if self.headers.iter().any(taken) {
            crate::bail!(NMC_ERR_EXISTS, "the key is taken");
        }
        if self.closed {
            crate::bail!(NMC_ERR_NO_SPACE, "closed");
        }
        let need = usize::try_from(wanted.length).unwrap();
        let Some(index) = self.headers.iter().position(|header| header.state == State::Free) else {
            crate::bail!(NMC_ERR_BUSY, "no header");
        };
        if self.free.len() < need {
            crate::bail!(NMC_ERR_NO_SPACE, "no pages");
        }
        let pages = self.free.split_off(self.free.len() - need);
        let epoch = self.next_epoch;
        self.next_epoch += 1;
        let (state, key) = (State::Writing, Some(wanted.key.clone()));
        let disk = (wanted.segment == DISK).then_some(0);
        self.headers[index] =
            Header { epoch, state, key, put: wanted.put, pages, pins: 0, doubt: false, original: true, disk };
        Ok(Plan { index: u32::try_from(index).unwrap(), epoch })
    }

    fn extents(&self, plan: Plan) -> Result<Vec<Extent>> {
        let header = self.header(plan).unwrap();
        Ok(header.pages.iter().map(|page| Extent { region: 0, offset: u64::from(*page), length: 1 }).collect())
    }

    fn checksum(&self, plan: Plan) -> Result<u32> {
        let Some(header) = self.header(plan) else { crate::bail!(NMC_ERR_STALE, "no such plan") };
        Ok(sum_of(header.pages.iter().map(|page| self.pages[*page as usize])))
    }

    fn commit(&mut self, plan: Plan) -> Result<Option<u64>> {
        let Some(header) = self.headers.get_mut(plan.index as usize) else {
            crate::bail!(NMC_ERR_STALE, "no such plan");
        };
        if header.epoch != plan.epoch || header.state != State::Writing {
            crate::bail!(NMC_ERR_STALE, "the plan was given up");
        }
        header.state = State::Live;
        let for_disk = header.disk.is_some() && !self.answer_at_once;
        let fact = self.published(plan.index as usize);
        self.fact(fact.into());
        Ok((!for_disk).then_some(self.newest))
    }

    fn written(&mut self, plan: Plan) -> Result<Option<u64>> {
        let header = self.headers.get_mut(plan.index as usize);
        let Some(header) = header.filter(|h| h.epoch == plan.epoch && h.state == State::Live) else {
            crate::bail!(NMC_ERR_STALE, "it was evicted or removed meanwhile");
        };
        let looks = header.disk.get_or_insert_default();
        *looks += 1;
        Ok((*looks >= WRITTEN).then_some(self.newest))
    }

    fn abandon(&mut self, plan: Plan) {
        let Some(header) = self.headers.get_mut(plan.index as usize) else { return };
        if header.epoch == plan.epoch && header.state == State::Live && header.disk.is_some_and(|looks| looks < WRITTEN)
        {
            self.retire(plan.index as usize);
        } else if header.epoch == plan.epoch && matches!(header.state, State::Writing | State::Dead) {
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

    fn pin(&mut self, plan: Plan, key: &ObjectKey) -> Result<Pinned> {
        let header = self.headers.get_mut(plan.index as usize);
        let there = |h: &Header| h.epoch == plan.epoch && h.state == State::Live && h.key.as_ref() == Some(key);
        let Some(header) = header.filter(|header| there(header)) else {
            crate::bail!(NMC_ERR_NOT_FOUND, "not here");
        };
        header.pins += 1;
        let pin = self.next_pin;
        self.next_pin += 1;
        self.pins.insert(pin, plan.index);
        let length = header.pages.len() as u64;
        Ok(Pinned { pin, put: header.put, length, retain: 0, metadata: Metadata::default() })
    }

    fn unpin(&mut self, pin: u64) {
        if let Some(index) = self.pins.remove(&pin) {
            self.headers[index as usize].pins -= 1;
            self.take(index as usize);
        }
    }

    fn drop_named(&mut self, plan: Plan, key: &ObjectKey) {
        if self.header(plan).is_some_and(|header| header.key.as_ref() == Some(key)) {
            self.retire(plan.index as usize);
        }
    }

    fn drop_put(&mut self, key: &ObjectKey, put: PutId) {
        if let Some(plan) = self.find(key).filter(|plan| self.headers[plan.index as usize].put == put) {
            self.retire(plan.index as usize);
        }
    }

    fn drop_key(&mut self, key: &ObjectKey) {
        if let Some(plan) = self.find(key) {
            self.retire(plan.index as usize);
        }
    }

    fn drop_space(&mut self, space: Option<&[u8]>) {
        for index in 0..self.headers.len() {
            let key = self.headers[index].key.as_ref();
            if key.is_some_and(|key| space.is_none_or(|space| key.space() == space)) {
                self.retire(index);
            }
        }
    }

    fn newest(&self) -> u64 {
        self.newest
    }

    fn facts(&mut self, behind: u64, most: usize) -> Result<Tail> {
        let oldest = self.newest - self.ring.len() as u64;
        if behind < oldest {
            return Ok(Tail::Overwritten);
        }
        let skip = usize::try_from(behind - oldest).unwrap();
        Ok(Tail::Facts(self.ring.iter().skip(skip).take(most).cloned().collect()))
    }

    fn part(&mut self, from: u32, _: usize) -> Result<Part> {
        // Small ranges, so that much happens between them.
        let end = self.headers.len().min(from as usize + 3);
        let indexes = (from as usize..end).filter(|index| self.headers[*index].state == State::Live);
        let live = indexes.map(|index| self.published(index)).collect();
        let to = u32::try_from(end).unwrap();
        Ok(Part { from, to, live, next: (end < self.headers.len()).then_some(to) })
    }

    fn position(&self) -> Option<Position> {
        self.position
    }

    fn tier(&self) -> u64 {
        0
    }

    fn is_apart(&self) -> bool {
        false
    }

    fn drop_apart(&mut self) -> Result<()> {
        Ok(())
    }

    fn set_position(&mut self, position: Position) -> Result<()> {
        if self.fails {
            crate::bail!(NMC_ERR_UNAVAILABLE, "it is not kept");
        }
        self.position = Some(position).filter(|position| position.term != 0);
        Ok(())
    }

    fn used(&self) -> Vec<u64> {
        vec![(self.pages.len() - self.free.len()) as u64, 0]
    }

    fn close(&mut self, segment: u32, closed: bool) -> Result<()> {
        if segment != DISK {
            self.closed = closed;
        }
        Ok(())
    }

    fn is_quiet(&mut self, _: u32) -> bool {
        self.headers.iter().all(|header| header.state != State::Writing)
    }
}

//! Stores of which only the names of what they hold are there.

use nanomc::base::error::{Error, Result};
use nanomc::base::status::{NMC_ERR_EXISTS, NMC_ERR_NO_SPACE, NMC_ERR_NOT_FOUND, NMC_ERR_STALE};
use nanomc::cluster::node::storage::{Part, Tail, Wanted};
use nanomc::cluster::node::{Hold, Pinned, Plan, Storage};
use nanomc::cluster::types::{ObjectKey, Position, PutId};
use nanomc::cluster::wire::{Extent, Fact, Published, Retired};
use std::collections::{BTreeSet, HashMap, VecDeque};

pub const LENGTH: u64 = 1 << 20;
pub const FACTS: usize = 1 << 12;

/// As long as a hash that an engine would use, as text.
pub fn key(node: u32, index: u32) -> ObjectKey {
    ObjectKey::new(b"kv", format!("{node:04}-{index:08x}{index:08x}{index:08x}").as_bytes()).unwrap()
}

#[derive(Debug)]
pub struct Object {
    pub key: ObjectKey,
    pub put: PutId,
    pub epoch: u64,
    pub live: bool,
}

/// The store of a node. What it begins with takes no memory; what came later is in `more`, behind that.
pub struct Shelf {
    pub node: u32,
    pub first: u32,
    pub gone: BTreeSet<u32>,
    pub more: Vec<Object>,
    pub places: HashMap<ObjectKey, u32>,
    pub ring: VecDeque<Fact>,
    pub newest: u64,
    pub position: Option<Position>,
    pub closed: bool,
    pub commits: u64,
}

impl Shelf {
    pub fn new(node: u32, first: u32) -> Self {
        Self {
            node,
            first,
            gone: BTreeSet::new(),
            more: Vec::new(),
            places: HashMap::new(),
            ring: VecDeque::new(),
            newest: 0,
            position: None,
            closed: false,
            commits: 0,
        }
    }

    pub fn end(&self) -> u32 {
        self.first + self.more.len() as u32
    }

    pub fn published(&self, index: u32) -> Option<Published> {
        let (key, put, epoch) = match index.checked_sub(self.first) {
            None if self.gone.contains(&index) => return None,
            None => (key(self.node, index), PutId::local(u64::from(index) << 16 | u64::from(self.node)), 1),
            Some(at) => {
                let object = self.more.get(at as usize).filter(|object| object.live)?;
                (object.key.clone(), object.put, object.epoch)
            }
        };
        Some(Published { index, epoch, key, put, length: LENGTH, segment: 0 })
    }

    pub fn fact(&mut self, fact: Fact) {
        self.newest += 1;
        self.ring.push_back(fact);
        if self.ring.len() > FACTS {
            self.ring.pop_front();
        }
    }

    pub fn retire(&mut self, index: u32) {
        let Some(published) = self.published(index) else { return };
        match index.checked_sub(self.first) {
            None => drop(self.gone.insert(index)),
            Some(at) => self.more[at as usize].live = false,
        }
        self.places.remove(&published.key);
        self.fact(Retired { index, epoch: published.epoch }.into());
    }

    pub fn find(&self, wanted: &ObjectKey) -> Option<u32> {
        let later = self.places.get(wanted).copied();
        let text = std::str::from_utf8(wanted.key()).ok()?;
        let first = || u32::from_str_radix(text.get(5..13)?, 16).ok().filter(|index| *index < self.first);
        later.or_else(|| first().filter(|index| key(self.node, *index) == *wanted && !self.gone.contains(index)))
    }
}

pub fn refuse<T>(status: i32) -> Result<T> {
    Err(Error::new(status, "simulated"))
}

impl Storage for Shelf {
    fn open(&mut self, wanted: &Wanted<'_>) -> Result<Plan> {
        if self.closed {
            return refuse(NMC_ERR_NO_SPACE);
        }
        if self.find(wanted.key).is_some() {
            return refuse(NMC_ERR_EXISTS);
        }
        let plan = Plan { index: self.end(), epoch: 1 };
        self.more.push(Object { key: wanted.key.clone(), put: wanted.put, epoch: plan.epoch, live: false });
        Ok(plan)
    }

    fn extents(&mut self, _: Plan) -> Result<Vec<Extent>> {
        Ok(Vec::new())
    }

    fn checksum(&self, _: Plan) -> Result<u32> {
        refuse(NMC_ERR_STALE)
    }

    fn commit(&mut self, plan: Plan) -> Result<Option<u64>> {
        let Some(object) = plan.index.checked_sub(self.first).and_then(|at| self.more.get_mut(at as usize)) else {
            return refuse(NMC_ERR_STALE);
        };
        object.live = true;
        self.places.insert(object.key.clone(), plan.index);
        self.commits += 1;
        let published = self.published(plan.index).unwrap();
        self.fact(published.into());
        Ok(Some(self.newest))
    }

    fn written(&mut self, _: Plan) -> Result<Option<u64>> {
        refuse(NMC_ERR_STALE)
    }

    fn abandon(&mut self, _: Plan) {}

    fn doubt(&mut self, _: Plan) -> u64 {
        0
    }

    fn pin(&mut self, _: Plan, _: &ObjectKey, _: PutId) -> Result<Hold> {
        refuse(NMC_ERR_NOT_FOUND)
    }

    fn came(&mut self, _: u64) -> Result<Option<Pinned>> {
        refuse(NMC_ERR_NOT_FOUND)
    }

    fn forget(&mut self, _: u64) {}

    fn unpin(&mut self, _: u64) {}

    fn drop_named(&mut self, plan: Plan, _: &ObjectKey) {
        self.retire(plan.index);
    }

    fn drop_put(&mut self, key: &ObjectKey, put: PutId) {
        let index = self.find(key).and_then(|index| self.published(index)).filter(|published| published.put == put);
        if let Some(published) = index {
            self.retire(published.index);
        }
    }

    fn drop_key(&mut self, key: &ObjectKey) {
        if let Some(index) = self.find(key) {
            self.retire(index);
        }
    }

    fn drop_space(&mut self, _: Option<&[u8]>) {
        (0..self.end()).for_each(|index| self.retire(index));
    }

    fn newest(&self) -> u64 {
        self.newest
    }

    fn notice(&self) -> Result<u64> {
        Ok(self.newest())
    }

    fn facts(&mut self, behind: u64, most: usize) -> Result<Tail> {
        let oldest = self.newest - self.ring.len() as u64;
        if behind < oldest {
            return Ok(Tail::Overwritten);
        }
        Ok(Tail::Facts(self.ring.iter().skip((behind - oldest) as usize).take(most).cloned().collect()))
    }

    fn part(&mut self, from: u32, most: usize) -> Result<Part> {
        let mut to = from;
        let mut live = Vec::new();
        while to < self.end() && live.len() < most {
            live.extend(self.published(to));
            to += 1;
        }
        Ok(Part { from, to, live, next: (to < self.end()).then_some(to) })
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

    fn has_bytes(&self) -> bool {
        self.used().iter().any(|bytes| *bytes > 0)
    }

    fn used(&self) -> Vec<u64> {
        vec![u64::from(self.end()) * LENGTH]
    }

    fn close(&mut self, _: u32, closed: bool) -> Result<()> {
        self.closed = closed;
        Ok(())
    }

    fn is_quiet(&mut self, _: u32) -> bool {
        true
    }
}

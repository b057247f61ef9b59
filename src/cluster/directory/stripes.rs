//! Striped values: a stub under the value's key, and its parts in a namespace of their own, named by the put of the stub. Parts and stub are objects like
//! any other. Here is what makes one value of them: it can be read while all parts can, and neither outlives the other.
//!
//! Whatever ends, for whatever reason, only makes its value a suspect; that is looked at with the next tick. Nothing is dropped while a node is still
//! telling what it has: what it has not told of yet may be a part, or the stub. What is with a node that is away has not ended: only who puts the key
//! anew has such a value dropped.

use super::members::{Node, Seg, State};
use super::objects::{At, Gate, Held};
use super::{Action, Leader};
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::NMC_ERR_NO_SPACE;
use crate::cluster::types::{MAX_PARTS, Media, Millis, ObjectKey, PARTS, PutId, part_key, part_of};
use crate::cluster::wire::PutStart;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

/// Parts that one tick looks for.
const LOOK: u64 = 16_384;
/// Values that one tick looks at.
const SUSPECTS: usize = 4096;

/// A striped value of which there is something, or is to be.
#[derive(Default)]
struct Whole {
    /// Where its stub is, if that was ever heard of.
    key: Option<ObjectKey>,
    /// There are no parts from this one on.
    parts: u64,
    /// How many parts are to be put; 0 if that was not heard.
    planned: u64,
    /// How many parts were sent to which segments of which nodes.
    sent: Vec<(u16, u32, u64)>,
    /// What was found when somebody asked for all parts, unless one of them may have gone since.
    counted: Cell<Option<Counted>>,
    /// The part that was not there when that was tried last: it is looked for first.
    missing: Cell<u64>,
}

/// A value all of whose parts are there.
struct Counted {
    /// How many parts that are, and the number of their namespace.
    parts: (u64, Option<u32>),
    bytes: u64,
    /// Whose parts they are.
    owners: Vec<u16>,
}

/// See the module.
pub struct Stripes {
    wholes: BTreeMap<PutId, Whole>,
    /// Those of which something may be missing, and the one that is looked at next.
    suspects: BTreeSet<PutId>,
    next: PutId,
    /// How often a part was looked for.
    #[cfg(test)]
    looked: Cell<usize>,
    /// What was counted once is never counted again.
    #[cfg(test)]
    pub(super) counts_once: bool,
}

impl Default for Stripes {
    fn default() -> Self {
        let (wholes, suspects) = (BTreeMap::new(), BTreeSet::new());
        let next = PutId(0);
        Self {
            wholes,
            suspects,
            next,
            #[cfg(test)]
            looked: Cell::default(),
            #[cfg(test)]
            counts_once: false,
        }
    }
}

impl Stripes {
    /// How many values there are, and how many are still to be looked at.
    #[cfg(test)]
    pub fn len(&self) -> (usize, usize) {
        (self.wholes.len(), self.suspects.len())
    }

    /// How often a part was looked for.
    #[cfg(test)]
    pub fn looked(&self) -> usize {
        self.looked.get()
    }

    /// Whether there is anything of a value with this id.
    pub fn knows(&self, whole: PutId) -> bool {
        self.wholes.contains_key(&whole)
    }

    /// Something of a value may have gone, or come too late.
    fn suspect(&mut self, whole: PutId) {
        if let Some(value) = self.wholes.get(&whole) {
            #[cfg(test)]
            let value = if self.counts_once { &Whole::default() } else { value };
            value.counted.take();
            self.suspects.insert(whole);
        }
    }

    /// No part of a value is put any more.
    pub fn has_ended(&mut self, whole: PutId) {
        if let Some(whole) = self.wholes.get_mut(&whole) {
            whole.sent = Vec::new();
        }
    }

    fn forget(&mut self, whole: PutId) -> Option<Whole> {
        self.suspects.remove(&whole);
        self.wholes.remove(&whole)
    }
}

impl Leader {
    /// A stub is put, or there is one, of so many parts as far as that is known.
    pub(super) fn note_stub(&mut self, key: &ObjectKey, put: PutId, parts: u64) -> Result<()> {
        let whole = self.stripes.wholes.entry(put).or_default();
        if whole.key.is_none() {
            whole.key = Some(key.copy()?);
        }
        whole.parts = whole.parts.max(parts.min(MAX_PARTS));
        Ok(())
    }

    /// A value in so many parts is put.
    pub(super) fn plan_parts(&mut self, put: PutId, parts: u64) {
        if let Some(whole) = self.stripes.wholes.get_mut(&put) {
            whole.planned = parts;
        }
    }

    /// Whether all parts of a value can be there together, as far as that is known by one of them: NO_SPACE before anything goes for the first,
    /// if the segments that may take them could not hold all even if they had nothing else. Memory has its disk behind it.
    pub(super) fn check_room(&self, whole: PutId, part: u64, start: &PutStart, copies: u32) -> Result<()> {
        let Some(value) = self.stripes.wholes.get(&whole).filter(|value| value.sent.is_empty()) else { return Ok(()) };
        // All but the last have the same length, and that has a byte at least.
        let Some(others) = value.planned.checked_sub(1).filter(|others| part < *others) else { return Ok(()) };
        let total = others.saturating_mul(start.length).saturating_add(1);
        let on_disk = |segment: &Seg| segment.info.media == Media::Ssd;
        let room = |node: &Node, takes: &dyn Fn(&Seg) -> bool| -> u64 {
            let all = node.segments.iter().filter(|segment| !segment.draining);
            match all.clone().any(takes) {
                true => all.filter(|s| takes(s) || on_disk(s)).fold(0, |sum, s| sum.saturating_add(s.info.capacity)),
                false => 0,
            }
        };
        let full = |what: &str, have: u64| {
            Err(Error::new(
                NMC_ERR_NO_SPACE,
                format!("a value of {total} bytes or more is to be put in parts; {what} has {have} bytes in all"),
            ))
        };
        let active = || self.nodes().filter(|node| node.state == State::Active);
        if self.nodes().any(|node| !matches!(node.state, State::Active | State::Away)) {
            // It may be about to take some.
            return Ok(());
        }
        for location in &start.config.fixed {
            let takes = |node: &Node, segment: &Seg| {
                let named = segment.info.name == location.segment || node.name == location.segment;
                named && location.media.is_none_or(|media| media == segment.info.media)
            };
            let have = active().map(|node| room(node, &|segment| takes(node, segment))).max().unwrap_or(0);
            if have < total {
                return full(&format!("\"{}\"", location.segment), have);
            }
        }
        let disks = start.config.media.get(Media::Ssd.code() as usize).is_some_and(|count| *count > 0);
        let all = active().map(|node| room(node, &|segment| disks || !on_disk(segment)).min(total));
        let (nodes, have, most) = all
            .filter(|room| *room > 0)
            .fold((0, 0u64, 0), |(nodes, sum, most), room| (nodes + 1, sum.saturating_add(room), room.max(most)));
        // One node that can hold all keeps what others evict; a part is on a node once.
        if nodes > 0 && most < total && have < total.saturating_mul(nodes.min(copies.into())) {
            return full("the cluster", have);
        }
        Ok(())
    }

    fn note_part(&mut self, whole: PutId, number: u64) {
        if number < MAX_PARTS {
            let whole = self.stripes.wholes.entry(whole).or_default();
            whole.parts = whole.parts.max(number + 1);
        }
    }

    /// Something lives: if it is of a striped value it is to be seen whether the rest is there.
    pub(super) fn came(&mut self, key: &ObjectKey, put: PutId, length: u64) -> Result<()> {
        if let Some((whole, number)) = key.as_part() {
            self.note_part(whole, number);
            self.stripes.suspect(whole);
        } else if put.is_striped() {
            self.note_stub(key, put, length)?;
            self.stripes.suspect(put);
        }
        Ok(())
    }

    /// A replica of an object goes, or is not to be.
    pub(super) fn goes(&mut self, key: &ObjectKey, put: PutId) {
        self.stripes.suspect(key.as_part().map_or(put, |(whole, _)| whole));
    }

    /// The same, of an object that is at this place.
    pub(super) fn goes_at(&mut self, at: At, put: PutId) {
        if self.stripes.wholes.is_empty() {
            return;
        }
        let number = self.spaces.find(PARTS);
        let key = self.objects.key(at).filter(|(space, _)| Some(*space) == number);
        let whole = key.and_then(|(_, key)| part_of(PARTS, key)).map(|(whole, _)| whole);
        self.stripes.suspect(whole.unwrap_or(put));
    }

    /// A part of a value begins: the value is still being put.
    pub(super) fn part_begins(&mut self, key: &ObjectKey, now: Millis) -> Result<Option<PutId>> {
        let Some((whole, number)) = key.as_part() else { return Ok(None) };
        match self.puts.get_mut(&whole).filter(|_| whole.is_striped() && number < MAX_PARTS) {
            Some(pending) => pending.until = pending.until.max(now + self.config.put_ms),
            None => crate::bail!(NMC_ERR_STALE, "{key:?} is part of a value that is not being put"),
        }
        self.note_part(whole, number);
        Ok(Some(whole))
    }

    /// Parts of a value that were sent to a segment.
    pub(super) fn parts_at(&self, whole: PutId, node: u16, segment: u32) -> u64 {
        let sent = self.stripes.wholes.get(&whole).map_or(&[][..], |whole| &whole.sent);
        sent.iter().find(|sent| (sent.0, sent.1) == (node, segment)).map_or(0, |sent| sent.2)
    }

    /// A part of a value is sent to these.
    pub(super) fn part_goes(&mut self, whole: PutId, places: &[(u16, u32)]) -> Result<()> {
        let Some(whole) = self.stripes.wholes.get_mut(&whole) else { return Ok(()) };
        for (node, segment) in places {
            match whole.sent.iter_mut().find(|sent| (sent.0, sent.1) == (*node, *segment)) {
                Some(sent) => sent.2 += 1,
                None => memory::push(&mut whole.sent, (*node, *segment, 1))?,
            }
        }
        Ok(())
    }

    /// Replicas of a part.
    fn part(&self, whole: PutId, number: u64) -> &[Held] {
        #[cfg(test)]
        self.stripes.looked.set(self.stripes.looked.get() + 1);
        let found = self.spaces.find(PARTS).and_then(|space| self.objects.find(space, &part_key(whole, number)));
        found.map_or(&[], |at| self.objects.replicas(at))
    }

    fn is_listed(&self, owner: u16) -> bool {
        self.owners.get(usize::from(owner)).is_some_and(|owner| owner.listed().is_some())
    }

    /// Whether a replica may be read now.
    fn is_readable(&self, held: &Held) -> bool {
        held.gate == Gate::Open && self.is_listed(held.owner)
    }

    /// Bytes of a value: of a striped one, if all its parts may be read.
    pub(super) fn length_of(&self, held: &Held) -> Option<u64> {
        if !held.put.is_striped() {
            return Some(held.length);
        }
        if held.length > MAX_PARTS {
            return None;
        }
        let parts = (held.length, self.spaces.find(PARTS));
        let remembered = self.stripes.wholes.get(&held.put).map(|whole| &whole.counted);
        // Whoever has a part goes and comes without a word about each.
        let holds = |counted: &Counted| counted.parts == parts && counted.owners.iter().all(|at| self.is_listed(*at));
        #[cfg(test)]
        let holds = |counted: &Counted| self.stripes.counts_once || holds(counted);
        let counted = remembered.and_then(Cell::take).filter(holds).or_else(|| self.count(held.put, parts))?;
        let bytes = counted.bytes;
        if let Some(remembered) = remembered {
            remembered.set(Some(counted));
        }
        Some(bytes)
    }

    /// Looks at all parts of a value, if they may be read.
    fn count(&self, put: PutId, parts: (u64, Option<u32>)) -> Option<Counted> {
        let mut counted = Counted { parts, bytes: 0, owners: Vec::new() };
        let readable = |number| self.part(put, number).iter().find(|held| self.is_readable(held));
        let missing = self.stripes.wholes.get(&put).map(|whole| &whole.missing);
        if let Some(number) = missing.map(Cell::get).filter(|number| (1..parts.0).contains(number)) {
            readable(number)?;
        }
        for number in 0..parts.0 {
            let Some(part) = readable(number) else {
                missing.inspect(|missing| missing.set(number));
                return None;
            };
            counted.bytes = counted.bytes.checked_add(part.length)?;
            if !counted.owners.contains(&part.owner) && memory::push(&mut counted.owners, part.owner).is_err() {
                // It is counted once more the next time.
                counted.parts = (u64::MAX, None);
            }
        }
        Some(counted)
    }

    /// Whether a value that is about to be there lacks parts already, though all were put: nodes evict what nobody reads, and what they
    /// tell of one part comes behind what they told of those before.
    pub(super) fn has_lost_parts(&self, key: &ObjectKey, put: PutId) -> bool {
        if !put.is_striped() {
            return false;
        }
        let at = self.spaces.find(key.space()).and_then(|space| self.objects.find(space, key.key()));
        let stub = at.and_then(|at| self.objects.replicas(at).iter().find(|held| held.put == put));
        stub.is_some_and(|stub| self.length_of(stub).is_none())
    }

    /// Whether a part that is not listed is not there: it is gone, or with an owner that is away. One that is coming back may have it.
    pub(super) fn knows_parts(&self) -> bool {
        let told = |node: &Node| match node.state {
            State::Away => true,
            State::Active => node.complete && !node.telling,
            State::Silent | State::Joining | State::Reporting => false,
        };
        self.settled && self.nodes().all(told)
    }

    /// Somebody puts these values anew, and not all of them can be read: what is left of them goes.
    pub(super) fn drop_broken(&mut self, puts: &[PutId], now: Millis, to: &mut Vec<Action>) -> Result<()> {
        puts.iter().try_for_each(|put| self.drop_striped(*put))?;
        if puts.is_empty() { Ok(()) } else { self.send_drops(now, to) }
    }

    /// Parts of a striped value that are listed, with where they are.
    pub(super) fn parts_of(&self, held: &Held) -> impl Iterator<Item = (u64, &Held)> {
        let count = if held.put.is_striped() { held.length.min(MAX_PARTS) } else { 0 };
        let put = held.put;
        (0..count).filter_map(move |number| {
            let all = self.part(put, number);
            all.iter().find(|held| held.gate == Gate::Open).map(|held| (number, held))
        })
    }

    /// Looks at some values of which something may be missing, and drops what is left of those.
    pub(super) fn check_stripes(&mut self) -> Result<()> {
        #[cfg(test)]
        if self.has_flaw(super::control::Flaw::NeverLooks) {
            return Ok(());
        }
        let mut looks = LOOK;
        let told = |node: &Node| node.complete && !node.telling;
        // Whoever was not heard of under this leader has nothing of what was put under it; of what was put before it may have the rest.
        let (all, heard) = (self.nodes().all(told), self.nodes().all(|node| told(node) || node.incarnation == 0));
        #[cfg(test)]
        let (all, heard) = if self.has_flaw(super::control::Flaw::Hasty) { (true, true) } else { (all, heard) };
        let next = self.stripes.suspects.range(self.stripes.next..).copied().take(SUSPECTS);
        for put in memory::collect(next)? {
            self.stripes.next = PutId(put.0.saturating_add(1));
            if !(all || heard && put.is_of(self.term)) {
                continue;
            }
            if looks == 0 {
                self.stripes.next = put;
                return Ok(());
            }
            self.check_stripe(put, &mut looks)?;
            self.stripes.suspects.remove(&put);
        }
        if self.stripes.suspects.range(self.stripes.next..).next().is_none() {
            self.stripes.next = PutId(0);
        }
        Ok(())
    }

    fn check_stripe(&mut self, put: PutId, looks: &mut u64) -> Result<()> {
        // What is being put is looked at when it ends.
        let Some(whole) = self.stripes.wholes.get(&put).filter(|_| !self.puts.contains_key(&put)) else {
            return Ok(());
        };
        let there = |held: &&Held| held.gate != Gate::Dropped;
        let stub = whole.key.as_ref().and_then(|key| {
            let at = self.spaces.find(key.space()).and_then(|space| self.objects.find(space, key.key()))?;
            self.objects.replicas(at).iter().filter(there).find(|held| held.put == put)
        });
        let is_whole = stub.is_some_and(|stub| {
            *looks = looks.saturating_sub(stub.length);
            (0..stub.length.min(MAX_PARTS)).all(|number| self.part(put, number).iter().any(|held| there(&held)))
        });
        *looks = looks.saturating_sub(1 + whole.parts);
        if is_whole { Ok(()) } else { self.drop_striped(put) }
    }

    /// Drops the stub and all parts, like a remove does that nobody waits for.
    fn drop_striped(&mut self, put: PutId) -> Result<()> {
        let Some(whole) = self.stripes.wholes.get(&put) else { return Ok(()) };
        let (key, parts) = (whole.key.as_ref().map(ObjectKey::copy).transpose()?, whole.parts);
        if let Some(key) = &key {
            self.take_replicas(key, |held| held.put == put && held.gate != Gate::Dropped, 0)?;
        }
        for number in 0..parts {
            // What is being put is looked at when it ends.
            let goes = |held: &Held| !matches!(held.gate, Gate::Closed | Gate::Dropped);
            self.take_replicas(&ObjectKey::part(put, number)?, goes, 0)?;
        }
        // When all of it is done: what failed for want of memory is tried again.
        self.stripes.forget(put);
        Ok(())
    }
}

//! The drop log: what nodes must drop, in one order, each entry with the nodes that have not said yet that they did. An entry
//! stays until all of them have, or are gone. If it grows beyond its limit the oldest go, and whoever needed them drops all
//! that it has when it comes back.

use crate::base::error::Result;
use crate::base::memory;
use crate::cluster::types::{NodeId, ObjectKey, Position, PutId, Term};
use crate::cluster::wire::{DropEntry, Dropped};
use std::collections::{BTreeMap, VecDeque};
use xxhash_rust::xxh3::xxh3_64;

/// Entries of one message to a node; they are short enough to fit.
pub const MAX_SENT: usize = 32;
/// Puts that were given up and are remembered for tiers that are opened again.
const MAX_GIVEN_UP: usize = 1024;

/// A node that must drop something and has not said that it did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// Who.
    pub node: NodeId,
    /// Whoever waits for the entry no longer waits for this node.
    pub excused: bool,
}

/// An entry, as it is written down too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its place.
    pub position: Position,
    /// What is to go.
    pub what: Dropped,
    /// Who has not dropped it.
    pub targets: Vec<Target>,
    /// The call that waits for it; 0 for none.
    pub call: u64,
    /// Whether it is written down.
    pub recorded: Recorded,
}

impl Entry {
    /// Whether it is to be written down, since somebody absent has to drop it.
    fn waits_for(&self, absent: impl Fn(NodeId) -> bool) -> bool {
        self.recorded == Recorded::No && self.targets.iter().any(|target| absent(target.node))
    }
}

/// Whether something is written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recorded {
    /// It is not.
    No,
    /// It is being, under this number.
    Under(u64),
    /// It is.
    Yes,
}

/// A put of which a node must have nothing, or nobody.
#[derive(Debug)]
struct GivenUp {
    at: Position,
    key: ObjectKey,
    put: PutId,
    node: Option<NodeId>,
}

/// See the module.
#[derive(Debug)]
pub struct DropLog {
    entries: VecDeque<Entry>,
    limit: usize,
    last: Position,
    /// The last entry that does more than to give up a put, whether it is still there or not.
    appended: Position,
    /// Puts that were given up, and where; up to where others are forgotten.
    given_up: VecDeque<GivenUp>,
    forgotten: Position,
    /// Everything up to here may be missing from the log.
    floor: Position,
    /// Entries that somebody has not confirmed and that name more than a replica.
    broad: Broad,
    /// Up to here every entry is written down, or confirmed by all.
    written: Position,
    /// Up to here nobody waits for members that are away where it is written down what they must drop.
    excused: Position,
}

/// Where entries are that name more than a replica: they may be as many as removes while a member is away.
#[derive(Debug, Default)]
struct Broad {
    /// By the hash of their keys.
    keys: BTreeMap<u64, Vec<Position>>,
    spaces: Vec<Position>,
}

impl Broad {
    fn add(&mut self, what: &Dropped, at: Position) -> Result<()> {
        match what {
            Dropped::Replica(_) => Ok(()),
            Dropped::Key(drop) => memory::push(self.keys.entry(hash(&drop.key)).or_default(), at),
            Dropped::Space(_) => memory::push(&mut self.spaces, at),
        }
    }

    fn remove(&mut self, what: &Dropped, at: Position) {
        match what {
            Dropped::Replica(_) => {}
            Dropped::Key(drop) => {
                let hash = hash(&drop.key);
                if let Some(list) = self.keys.get_mut(&hash) {
                    list.retain(|other| *other != at);
                    if list.is_empty() {
                        self.keys.remove(&hash);
                    }
                }
            }
            Dropped::Space(_) => self.spaces.retain(|other| *other != at),
        }
    }

    /// Those that may cover a key.
    fn of(&self, key: &ObjectKey) -> impl Iterator<Item = Position> {
        self.keys.get(&hash(key)).into_iter().flatten().chain(&self.spaces).copied()
    }
}

fn hash(key: &ObjectKey) -> u64 {
    xxh3_64(key.as_bytes())
}

impl DropLog {
    /// The log of a term, with what was written down in others.
    pub fn new(term: Term, mut written: Vec<Entry>, floor: Position, limit: usize) -> Result<Self> {
        // Whoever waited for them asked another leader.
        written.iter_mut().for_each(|entry| entry.call = 0);
        let last = Position { term, number: 0 };
        let mut broad = Broad::default();
        written.iter().try_for_each(|entry| broad.add(&entry.what, entry.position))?;
        let (written, none) = (written.into(), Position::default());
        let (given_up, forgotten) = (VecDeque::new(), none);
        Ok(Self {
            entries: written,
            limit,
            last,
            appended: none,
            given_up,
            forgotten,
            floor,
            broad,
            written: none,
            excused: none,
        })
    }

    /// Where it ends.
    #[must_use]
    pub fn head(&self) -> Position {
        self.last
    }

    /// The last entry that does more than to give up a put.
    #[must_use]
    pub fn appended(&self) -> Position {
        self.appended
    }

    /// What was appended since [`DropLog::appended`] was `before` only gives up a put, at one node or everywhere: whoever was not told of it and has
    /// it may be told later.
    pub fn gave_up(&mut self, before: Position, key: &ObjectKey, put: PutId, node: Option<NodeId>) {
        if self.appended == before {
            return;
        }
        // Without memory it counts like everything else.
        let copied = memory::reserve_queue(&mut self.given_up, 1).and_then(|()| key.copy());
        let Ok(key) = copied else { return };
        if self.given_up.len() >= MAX_GIVEN_UP {
            self.forgotten = self.given_up.pop_front().map_or(self.forgotten, |put| put.at);
        }
        self.given_up.push_back(GivenUp { at: self.appended, key, put, node });
        self.appended = before;
    }

    /// What was appended since then tells one node once more what others know.
    pub fn repeated(&mut self, before: Position) {
        self.appended = before;
    }

    /// The puts of which a node must have nothing, that were given up behind a place: if nothing else was ever appended there, as far as is known.
    pub fn given_up_behind(&self, at: Position, node: NodeId) -> Result<Option<Vec<(ObjectKey, PutId)>>> {
        if at.term != self.last.term || self.appended.max(self.forgotten) > at {
            return Ok(None);
        }
        let is_its = |put: &&GivenUp| put.at > at && put.node.is_none_or(|of| of == node);
        memory::try_collect(self.given_up.iter().filter(is_its).map(|put| Ok((put.key.copy()?, put.put)))).map(Some)
    }

    /// The last entry that names more than a replica and that a node has not confirmed.
    #[must_use]
    pub fn broad_of(&self, node: NodeId) -> Position {
        let owes = |entry: &&Entry| is_broad(&entry.what) && entry.targets.iter().any(|target| target.node == node);
        self.entries.iter().rev().find(owes).map_or(Position::default(), |entry| entry.position)
    }

    /// From here on nothing is missing.
    #[must_use]
    pub fn floor(&self) -> Position {
        self.floor
    }

    /// How many entries there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Appends an entry.
    pub fn append(&mut self, what: Dropped, nodes: &[NodeId], call: u64) -> Result<Position> {
        let targets = memory::collect(nodes.iter().map(|node| Target { node: *node, excused: false }))?;
        memory::reserve_queue(&mut self.entries, 1)?;
        self.last.number += 1;
        self.broad.add(&what, self.last)?;
        self.appended = self.last;
        self.entries.push_back(Entry { position: self.last, what, targets, call, recorded: Recorded::No });
        Ok(self.last)
    }

    /// Place in the queue of the first entry behind `position`.
    fn behind(&self, position: Position) -> usize {
        self.entries.partition_point(|entry| entry.position <= position)
    }

    /// What a node that is at `after` must be told next, and where it is then.
    pub fn next_for(&self, node: NodeId, after: Position) -> Result<(Vec<DropEntry>, Position)> {
        let mut list = Vec::new();
        for entry in self.entries.iter().skip(self.behind(after)) {
            if entry.targets.iter().any(|target| target.node == node) {
                if list.len() == MAX_SENT {
                    let through = list.last().map_or(after, |entry: &DropEntry| entry.position);
                    return Ok((list, through));
                }
                memory::push(&mut list, DropEntry { position: entry.position, what: copy(&entry.what)? })?;
            }
        }
        Ok((list, self.last.max(after)))
    }

    /// A node that had dropped everything up to `from` has up to `through`. Tells each call that waited
    /// for that, and gives how many entries it confirmed.
    pub fn confirm(&mut self, node: NodeId, from: Position, through: Position, mut told: impl FnMut(u64)) -> usize {
        let (start, end) = (self.behind(from), self.behind(through));
        let mut count = 0;
        let Self { entries, broad, .. } = self;
        for entry in entries.range_mut(start..end.max(start)) {
            let Some(at) = entry.targets.iter().position(|target| target.node == node) else { continue };
            let target = entry.targets.swap_remove(at);
            count += 1;
            if !target.excused {
                told(entry.call);
            }
            if entry.targets.is_empty() {
                broad.remove(&entry.what, entry.position);
            }
        }
        count
    }

    /// Entries that a node has not confirmed.
    #[must_use]
    pub fn owed(&self, node: NodeId) -> usize {
        self.entries.iter().filter(|entry| entry.targets.iter().any(|target| target.node == node)).count()
    }

    /// Leaves a number out: nobody was told to drop anything there, and everybody who comes from before it is known to.
    pub fn skip(&mut self) {
        self.last.number += 1;
    }

    /// Nobody waits for this node any more where `which` says so, of the entries behind `from`; it is told all the same when it is
    /// back.
    pub fn excuse(
        &mut self,
        node: NodeId,
        from: Position,
        mut which: impl FnMut(&Entry) -> bool,
        mut told: impl FnMut(u64),
    ) {
        for entry in self.entries.range_mut(self.entries.partition_point(|entry| entry.position <= from)..) {
            if !which(entry) {
                continue;
            }
            for target in entry.targets.iter_mut().filter(|target| target.node == node && !target.excused) {
                target.excused = true;
                told(entry.call);
            }
        }
    }

    /// Copies of entries that wait for somebody absent and are to be written down.
    pub fn unrecorded(&mut self, absent: impl Fn(NodeId) -> bool) -> Result<Vec<Entry>> {
        let mut list = Vec::new();
        let settled = |entry: &&Entry| entry.recorded == Recorded::Yes || entry.targets.is_empty();
        if let Some(last) = self.entries.range(self.behind(self.written)..).take_while(settled).last() {
            self.written = last.position;
        }
        let first = self.behind(self.written);
        for entry in self.entries.range(first..).filter(|entry| entry.waits_for(&absent)) {
            let targets = memory::copy(&entry.targets)?;
            let copy = Entry { what: copy(&entry.what)?, targets, recorded: Recorded::Yes, ..*entry };
            memory::push(&mut list, copy)?;
        }
        Ok(list)
    }

    /// The same entries are being written down, under a number.
    pub fn recording(&mut self, number: u64, absent: impl Fn(NodeId) -> bool) {
        let first = self.behind(self.written);
        for entry in self.entries.range_mut(first..).filter(|entry| entry.waits_for(&absent)) {
            entry.recorded = Recorded::Under(number);
        }
    }

    /// What was to be written down under a number is, or is not.
    pub fn recorded(&mut self, number: u64, done: bool) {
        let first = self.behind(self.written);
        for entry in self.entries.range_mut(first..).filter(|entry| entry.recorded == Recorded::Under(number)) {
            entry.recorded = if done { Recorded::Yes } else { Recorded::No };
        }
    }

    /// Behind what members that are away have to be excused where it is written down what they must drop: asked by who does that.
    pub fn excuse_from(&mut self) -> Position {
        std::mem::replace(&mut self.excused, self.written)
    }

    /// A member went away: whoever waits for it has to be looked for in all of the log.
    pub fn excuse_from_the_beginning(&mut self) {
        self.excused = Position::default();
    }

    /// Nodes that have not dropped yet what they were told to drop by its key, or with its namespace.
    pub fn unseen(&self, key: &ObjectKey) -> impl Iterator<Item = NodeId> {
        let covers = move |what: &Dropped| match what {
            Dropped::Replica(_) => false,
            Dropped::Key(other) => other.key == *key,
            Dropped::Space(space) => space.space.as_ref().is_none_or(|space| space.0 == key.space()),
        };
        let broad = self.broad.of(key).filter_map(|at| self.entries.get(self.behind(at).checked_sub(1)?));
        broad.filter(move |entry| covers(&entry.what)).flat_map(|entry| entry.targets.iter().map(|target| target.node))
    }

    /// Lets go of what nobody needs and of what is too much. Gives whether something that was written down went, the nodes
    /// that needed an entry and cannot have it any more, and tells the calls that waited for them.
    pub fn trim(&mut self, mut told: impl FnMut(u64)) -> (bool, Vec<NodeId>) {
        let (mut written, mut lost) = (false, Vec::new());
        while let Some(entry) = self.entries.front() {
            let needed = !entry.targets.is_empty() && self.entries.len() <= self.limit;
            if needed || memory::reserve(&mut lost, entry.targets.len()).is_err() {
                break;
            }
            for target in &entry.targets {
                self.floor = self.floor.max(entry.position);
                if !target.excused {
                    told(entry.call);
                }
                if !lost.contains(&target.node) {
                    lost.push(target.node);
                }
            }
            written |= entry.recorded != Recorded::No;
            self.broad.remove(&entry.what, entry.position);
            self.entries.pop_front();
        }
        (written, lost)
    }

    /// The first entry that is still there.
    #[must_use]
    pub fn first(&self) -> Option<Position> {
        self.entries.front().map(|entry| entry.position)
    }
}

/// Whether it takes away more than a named replica.
pub fn is_broad(what: &Dropped) -> bool {
    !matches!(what, Dropped::Replica(_))
}

fn copy(what: &Dropped) -> Result<Dropped> {
    // A few hundred bytes at most, but by count from outside: it is asked for first.
    drop(memory::with_capacity::<u8>(ObjectKey::MAX)?);
    Ok(what.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::wire::{DropKey, DropSpace};

    fn key(text: &str) -> Dropped {
        DropKey { key: ObjectKey::new(b"", text.as_bytes()).unwrap() }.into()
    }

    #[test]
    fn a_node_is_told_what_concerns_it_in_order_and_once() {
        let (a, b) = (NodeId(1), NodeId(2));
        let mut log = DropLog::new(3, Vec::new(), Position::default(), 100).unwrap();
        let start = log.head();
        log.append(key("1"), &[a], 7).unwrap();
        log.append(key("2"), &[b], 8).unwrap();
        log.append(key("3"), &[a, b], 9).unwrap();
        let (list, through) = log.next_for(a, start).unwrap();
        assert_eq!((list.len(), through), (2, log.head()));
        let mut calls = Vec::new();
        assert_eq!(log.owed(a), 2);
        assert_eq!(log.confirm(a, start, through, |call| calls.push(call)), 2);
        assert_eq!(log.confirm(a, start, through, |call| calls.push(call)), 0);
        assert_eq!(calls, [7, 9]);
        assert_eq!(log.trim(|_| ()), (false, vec![]));
        assert_eq!(log.len(), 2, "b has not");
        log.excuse(b, start, |_| true, |call| calls.push(call));
        log.confirm(b, start, log.head(), |call| calls.push(call));
        assert_eq!(calls, [7, 9, 8, 9], "nobody is told twice");
        log.trim(|_| ());
        assert!(log.len() == 0 && log.floor() == Position::default());
    }

    /// What could not be copied for want of memory is not marked: nobody is told that it is written down.
    #[test]
    fn what_is_written_down_is_marked_as_a_whole() {
        let node = NodeId(1);
        let mut log = DropLog::new(3, Vec::new(), Position::default(), 100).unwrap();
        log.append(key("1"), &[node], 1).unwrap();
        log.append(key("2"), &[NodeId(2)], 2).unwrap();
        log.append(key("3"), &[node, NodeId(2)], 3).unwrap();
        let numbers = |list: Vec<Entry>| list.iter().map(|entry| entry.position.number).collect::<Vec<_>>();
        for _ in 0..2 {
            // The first time nothing came of it.
            assert_eq!(numbers(log.unrecorded(|of| of == node).unwrap()), [1, 3]);
        }
        log.recorded(7, true);
        assert_eq!(numbers(log.unrecorded(|of| of == node).unwrap()), [1, 3], "nothing was under that number");
        log.recording(7, |of| of == node);
        assert!(log.unrecorded(|of| of == node).unwrap().is_empty(), "they are being written down");
        log.recorded(7, true);
        let mut calls = Vec::new();
        log.excuse(node, Position::default(), |entry| entry.recorded == Recorded::Yes, |call| calls.push(call));
        assert_eq!(calls, [1, 3]);
    }

    #[test]
    fn long_lists_are_told_in_parts() {
        let node = NodeId(1);
        let mut log = DropLog::new(1, Vec::new(), Position::default(), 1000).unwrap();
        for _ in 0..100 {
            log.append(key("k"), &[node], 0).unwrap();
        }
        let (mut at, mut told) = (Position::default(), 0);
        while at < log.head() {
            let (list, through) = log.next_for(node, at).unwrap();
            assert!(list.len() <= MAX_SENT && through > at);
            told += list.len();
            at = through;
        }
        assert_eq!(told, 100);
    }

    #[test]
    fn what_no_longer_fits_raises_the_floor_and_names_who_needed_it() {
        let node = NodeId(1);
        let mut log = DropLog::new(1, Vec::new(), Position::default(), 2).unwrap();
        for call in 1..=4 {
            log.append(DropSpace { space: None }.into(), &[node], call).unwrap();
        }
        let mut calls = Vec::new();
        assert_eq!(log.trim(|call| calls.push(call)), (false, vec![node]));
        assert_eq!((calls, log.len(), log.floor()), (vec![1, 2], 2, Position { term: 1, number: 2 }));
    }
}

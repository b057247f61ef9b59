//! What is promised, and whether it was kept. The checker sees every call from outside, and at the end the stores.

use crate::cluster::types::{Millis, Name, NodeId, ObjectKey, PutId};
use crate::cluster::wire::Space;
use std::collections::{BTreeMap, BTreeSet};

/// What must hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Promise {
    /// A get returns every byte of one put of its key, or an error.
    WholeValue,
    /// After a put has ended a get finds it until it is evicted, removed, or its owners are lost.
    Found,
    /// After a remove no get that begins later returns what was visible before.
    Removed,
    /// No page is given away while somebody may write to it, and no buffer.
    NoLateWrite,
    /// Every call ends by its deadline and two seconds.
    Bounded,
    /// What has another checksum than its put said is never read.
    Checksum,
    /// A put to a disk that has ended is there.
    OnDisk,
    /// At rest what is listed is what there is.
    Truth,
    /// Nobody is asked anything for a call that has ended.
    Over,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub promise: Promise,
    pub at: Millis,
    pub text: String,
}

/// A value that was put, or of which that was tried.
#[derive(Debug, Clone)]
pub struct Value {
    pub key: ObjectKey,
    pub pages: usize,
    pub began: Millis,
    /// Its put says another checksum.
    pub wrong: bool,
}

/// A put of a value: there are several of one value if another leader came meanwhile.
#[derive(Debug, Clone, Default)]
pub struct Put {
    pub value: u64,
    /// When it was told to have ended.
    pub ended: Option<Millis>,
    /// When somebody else could have it for sure.
    pub visible: Option<Millis>,
    /// When it was told to be removed, having been visible before that was asked for.
    pub removed: Option<Millis>,
    /// A replica was evicted, or its owner lost.
    pub lost: bool,
    /// It goes then, since it was read.
    pub expires: Option<Millis>,
    /// Owners that it has ended with; others that have it are to drop it.
    pub owners: BTreeSet<NodeId>,
    /// Its node put it on itself while it was not in the cluster.
    pub apart: bool,
}

/// A remove, as it was called.
#[derive(Debug, Clone)]
pub struct Removal {
    pub what: What,
    pub began: Millis,
    /// When it was over; never, if nobody knows.
    pub ended: Option<Millis>,
    /// Every owner had heard of it by then.
    pub sure: bool,
    /// It was cancelled: what had been sent of it by then may still arrive.
    pub cancelled: bool,
}

#[derive(Debug, Clone)]
pub enum What {
    Key(ObjectKey),
    Space(Option<Space>),
}

impl What {
    fn covers(&self, key: &ObjectKey) -> bool {
        match self {
            What::Key(other) => other == key,
            What::Space(space) => space.as_ref().is_none_or(|space| space.0 == key.space()),
        }
    }
}

#[derive(Debug, Default)]
pub struct Checker {
    /// By their numbers: pages hold them.
    pub values: BTreeMap<u64, Value>,
    /// Which value a put is of.
    pub puts: BTreeMap<PutId, Put>,
    /// Whose part a put is.
    parts: BTreeMap<PutId, PutId>,
    /// How many parts a striped put has.
    pub cuts: BTreeMap<PutId, u64>,
    pub removals: Vec<Removal>,
    pub violations: Vec<Violation>,
    /// How often something was seen, to know that a run says something.
    pub counts: BTreeMap<&'static str, u64>,
}

/// What the page of a value holds.
pub fn content(value: u64, page: usize) -> u64 {
    value * 1000 + page as u64 + 1
}

impl Checker {
    pub fn violated(&mut self, promise: Promise, at: Millis, text: String) {
        self.violations.push(Violation { promise, at, text });
    }

    pub fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// A get has returned this.
    pub fn got(&mut self, key: &ObjectKey, put: PutId, pages: &[u64], began: Millis, now: Millis, local: bool) {
        self.count(if local { "got here" } else { "got" });
        let Some(record) = self.puts.get_mut(&put) else {
            return self.violated(Promise::WholeValue, now, format!("{key:?}: put {put:?} is nobody's"));
        };
        let (number, value) = (record.value, &self.values[&record.value]);
        let whole = value.key == *key && value.pages == pages.len();
        let right = pages.iter().enumerate().all(|(at, page)| *page == content(number, at));
        if !whole || !right {
            let text = format!("{key:?}: {put:?} gave {pages:?}, which is not value {number} of {value:?}");
            return self.violated(Promise::WholeValue, now, text);
        }
        if value.wrong {
            let text = format!("{key:?}: value {number} has another checksum than its put said, and was read");
            return self.violated(Promise::Checksum, now, text);
        }
        if let Some(removed) = record.removed.filter(|removed| *removed < began) {
            let text = format!("{key:?}: value {number} was removed at {removed} and read by a get from {began}");
            return self.violated(Promise::Removed, now, text);
        }
        if !local {
            record.visible.get_or_insert(now);
        }
    }

    /// A put of a value begins, perhaps once more.
    pub fn put_begins(&mut self, put: PutId, value: u64) {
        self.puts.entry(put).or_insert(Put { value, ..Put::default() });
    }

    /// A node that is not in the cluster has put it on itself.
    pub fn put_apart(&mut self, put: PutId) {
        if let Some(put) = self.puts.get_mut(&put) {
            put.apart = true;
        }
    }

    /// A put is to end with this owner.
    pub fn ends_with(&mut self, put: PutId, owner: NodeId) {
        if let Some(put) = self.puts.get_mut(&put) {
            put.owners.insert(owner);
        }
    }

    /// How many owners a put was to end with.
    pub fn owners_of(&self, put: PutId) -> usize {
        self.puts.get(&put).map_or(0, |put| put.owners.len())
    }

    /// Whether it has ended with this one.
    pub fn has_ended_with(&self, put: PutId, owner: NodeId) -> bool {
        !put.is_clustered() || self.puts.get(&put).is_some_and(|put| put.owners.contains(&owner))
    }

    /// A put has ended well.
    pub fn put_ended(&mut self, put: PutId, now: Millis) {
        self.count("put");
        if let Some(put) = self.puts.get_mut(&put) {
            put.ended.get_or_insert(now);
            put.visible.get_or_insert(now);
        }
    }

    /// A remove was called. Gives its number.
    pub fn removing(&mut self, what: What, began: Millis) -> usize {
        self.removals.push(Removal { what, began, ended: None, sure: false, cancelled: false });
        self.removals.len() - 1
    }

    /// A remove has ended; `sure` if no owner has it any more.
    pub fn removed(&mut self, number: usize, sure: bool, now: Millis) {
        self.count(if sure { "removed" } else { "removing" });
        (self.removals[number].ended, self.removals[number].sure) = (Some(now), sure);
        let Removal { what, began, .. } = self.removals[number].clone();
        if sure {
            for put in self.puts.values_mut().filter(|put| what.covers(&self.values[&put.value].key)) {
                if put.visible.is_some_and(|visible| visible < began) {
                    put.removed.get_or_insert(now);
                }
            }
        }
    }

    /// A remove was cancelled: it may have been done by now.
    pub fn cancelled(&mut self, number: usize, now: Millis) {
        (self.removals[number].ended, self.removals[number].cancelled) = (Some(now), true);
    }

    /// A remove arrives, which may be one that was cancelled since.
    pub fn arrives(&mut self, which: impl Fn(&What) -> bool, now: Millis) {
        for removal in self.removals.iter_mut().filter(|removal| removal.cancelled && which(&removal.what)) {
            removal.ended = Some(now);
        }
    }

    /// A master hears that a put was read and is to go then.
    pub fn expires(&mut self, put: PutId, at: Millis) {
        self.count("expires");
        if let Some(put) = self.puts.get_mut(&put) {
            put.expires = Some(put.expires.map_or(at, |before| before.min(at)));
        }
    }

    /// A part of a put is put.
    pub fn part_begins(&mut self, part: PutId, whole: PutId) {
        self.parts.insert(part, whole);
    }

    /// What of these is there without the rest of its value.
    pub fn apart(&self, listed: &[(ObjectKey, PutId, Name)]) -> Vec<String> {
        let mut parts: BTreeMap<PutId, BTreeSet<u64>> = BTreeMap::new();
        let mut stubs = BTreeSet::new();
        for (key, put, _) in listed {
            match key.as_part() {
                Some((whole, number)) => drop(parts.entry(whole).or_default().insert(number)),
                None if put.is_striped() => drop(stubs.insert(*put)),
                None => {}
            }
        }
        let without = parts.keys().filter(|whole| !stubs.contains(whole)).map(|whole| format!("{whole:?} has no stub"));
        let holes = stubs.iter().filter(|stub| {
            let there = parts.get(stub).map_or(0, |parts| parts.len() as u64);
            self.cuts.get(stub) != Some(&there)
        });
        without.chain(holes.map(|stub| format!("{stub:?} has not all its parts"))).collect()
    }

    /// A replica of a put is no more, or with an owner that is lost.
    pub fn lost(&mut self, put: PutId) {
        let put = self.parts.get(&put).copied().unwrap_or(put);
        if let Some(put) = self.puts.get_mut(&put) {
            put.lost = true;
        }
    }

    /// Nothing that was put need be found any more.
    pub fn lose_all(&mut self) {
        self.puts.values_mut().for_each(|put| (put.lost, put.ended) = (true, None));
    }

    /// A put under this key that must be found by a get that began then: nobody has ever lost a replica of it.
    pub fn missing(&self, key: &ObjectKey, began: Millis, now: Millis) -> Option<PutId> {
        let mut puts = self.puts.iter().filter(|(_, put)| !put.lost && self.values[&put.value].key == *key);
        puts.find(|(put, _)| self.must_be_found(**put, began, now)).map(|(put, _)| *put)
    }

    /// Whether a value must be found by a get that began then, if an owner has it and is in good standing.
    pub fn must_be_found(&self, put: PutId, began: Millis, now: Millis) -> bool {
        let Some(record) = self.puts.get(&put) else { return false };
        let value = &self.values[&record.value];
        if record.expires.is_some_and(|at| at <= now) {
            return false;
        }
        // A remove may have taken it if it ended after the put began, or has not. What a node puts on itself before it has heard of
        // the remove may go with it; a remove that is sure counts on those that are in the cluster alone.
        let removal = |r: &Removal| {
            let heard = r.sure && !record.apart || put.is_clustered();
            r.what.covers(&value.key) && r.ended.is_none_or(|ended| ended >= value.began || !heard)
        };
        record.ended.is_some_and(|ended| ended < began) && !self.removals.iter().any(removal)
    }
}

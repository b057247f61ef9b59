//! The master's side of the index: entries come and go, and tombstones are purged a few buckets at a time, so that no
//! call does more than a bounded amount of work. While the spare table is being built every change goes to both.

use crate::base::point::reach;
use crate::sync::index::{self, Tables};
use std::sync::atomic::{AtomicU64, Ordering};

/// Buckets that one call clears or one call's share of headers that it copies.
const STEP: usize = 64;
/// Tombstones at the end of a path that one deletion empties.
const TRAIL: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purge {
    /// Nothing to do.
    Idle,
    /// The spare table is empty up to this bucket.
    Clearing(usize),
    /// Entries of the table in use were copied up to this bucket.
    Copying(usize),
}

/// Writes the index of one store.
pub struct IndexWriter {
    entries: usize,
    tombstones: usize,
    /// Tombstones of the spare table while it is being built.
    spare_tombstones: usize,
    purge: Purge,
    /// Switches so far. Everybody else reads it in shared memory; what is there is put right if it is another.
    root: u64,
}

impl IndexWriter {
    /// A writer for an index that is empty.
    #[must_use]
    pub fn new() -> Self {
        Self { entries: 0, tombstones: 0, spare_tombstones: 0, purge: Purge::Idle, root: 0 }
    }

    fn tables<'a>(&self, at: Tables<'a>) -> (&'a [AtomicU64], &'a [AtomicU64]) {
        let [a, b] = at.tables;
        if self.root & 1 == 0 { (a, b) } else { (b, a) }
    }

    fn switch(&mut self, at: Tables<'_>) {
        self.root = self.root.wrapping_add(1);
        index::switch(at.root, self.root);
    }

    /// Builds the whole index anew in the spare table: what a new master does.
    pub fn rebuild(&mut self, at: Tables<'_>, entries: impl Iterator<Item = (u64, u32)>) {
        *self = Self { root: at.root.load(Ordering::Relaxed), ..Self::new() };
        let (_, spare) = self.tables(at);
        index::clear(spare);
        for (hash, object) in entries {
            if index::insert(spare, hash, object).is_some() {
                self.entries += 1;
            }
        }
        self.switch(at);
    }

    /// Adds an object.
    pub fn insert(&mut self, at: Tables<'_>, hash: u64, object: u32) -> bool {
        let (table, spare) = self.tables(at);
        let Some((_, reused)) = index::insert(table, hash, object) else { return false };
        self.tombstones = self.tombstones.saturating_sub(usize::from(reused));
        self.entries += 1;
        if matches!(self.purge, Purge::Copying(_)) {
            let reused = index::insert(spare, hash, object).is_some_and(|(_, reused)| reused);
            self.spare_tombstones = self.spare_tombstones.saturating_sub(usize::from(reused));
        }
        true
    }

    /// Lets `new` take the place of `old`, which has the same hash: readers find the one or the other.
    pub fn exchange(&mut self, at: Tables<'_>, hash: u64, old: u32, new: u32) -> bool {
        let (table, spare) = self.tables(at);
        let Some(bucket) = index::bucket_of(table, hash, old) else { return false };
        index::exchange(table, bucket, hash, new);
        if matches!(self.purge, Purge::Copying(_))
            && let Some(bucket) = index::bucket_of(spare, hash, old)
        {
            index::exchange(spare, bucket, hash, new);
        }
        true
    }

    /// Takes an object out.
    pub fn remove(&mut self, at: Tables<'_>, hash: u64, object: u32) -> bool {
        let (table, spare) = self.tables(at);
        let Some(bucket) = index::bucket_of(table, hash, object) else { return false };
        self.tombstones = self.tombstones.saturating_add_signed(index::delete(table, bucket, TRAIL));
        self.entries = self.entries.saturating_sub(1);
        if matches!(self.purge, Purge::Copying(_))
            && let Some(bucket) = index::bucket_of(spare, hash, object)
        {
            self.spare_tombstones = self.spare_tombstones.saturating_add_signed(index::delete(spare, bucket, TRAIL));
        }
        true
    }

    /// A bounded step of purging, if there is a need. `linked` gives the hash of an object that the index is to lead to.
    pub fn tend(&mut self, at: Tables<'_>, linked: impl Fn(u32) -> Option<u64>) {
        if at.root.load(Ordering::Relaxed) != self.root {
            index::switch(at.root, self.root);
        }
        let (table, spare) = self.tables(at);
        self.purge = match self.purge {
            Purge::Idle if self.tombstones <= table.len() / 8 => Purge::Idle,
            Purge::Idle => Purge::Clearing(0),
            Purge::Clearing(from) => {
                let to = (from + STEP * 4).min(spare.len());
                index::clear(&spare[from..to]);
                if to == spare.len() {
                    self.spare_tombstones = 0;
                    Purge::Copying(0)
                } else {
                    Purge::Clearing(to)
                }
            }
            Purge::Copying(from) => {
                let to = (from + STEP).min(table.len());
                for bucket in &table[from..to] {
                    let word = bucket.load(Ordering::Relaxed);
                    let Some(object) = index::index_of(word) else { continue };
                    let Some(hash) = linked(object) else { continue };
                    // An entry that came since copying began is there already.
                    if index::bucket_of(spare, hash, object).is_none() {
                        let reused = index::insert(spare, hash, object).is_some_and(|(_, reused)| reused);
                        self.spare_tombstones = self.spare_tombstones.saturating_sub(usize::from(reused));
                    }
                }
                reach("master.purging");
                if to == table.len() {
                    reach("master.purged");
                    self.switch(at);
                    self.tombstones = self.spare_tombstones;
                    Purge::Idle
                } else {
                    Purge::Copying(to)
                }
            }
        };
    }

    /// Entries and tombstones of the table in use.
    #[must_use]
    pub fn load(&self) -> (usize, usize) {
        (self.entries, self.tombstones)
    }
}

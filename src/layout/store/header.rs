//! The start of the control slab: what everybody agrees on, and how far the store has followed its cluster.

use super::{MAGIC, PARAM_WORDS, Params};
use crate::layout::VERSION;
use std::sync::atomic::{AtomicU64, Ordering};

/// In the place of the name of a slab that leads to values on disk: the tier is to be opened before anything is stored.
pub const DISK_EXPECTED: u64 = u64::MAX;

/// In the term of the store's position: it is that of memory, and the disk has come back with an earlier one. See [`StoreHeader::apart`].
pub const APART: u64 = 1 << 63;
/// In the same place: a disk that the store had is not there any more, and its cluster has not heard of that.
pub const LEFT: u64 = 1 << 62;

/// Bits of the term of a position that are counted. Those above them are of the cluster, so that what was reached in one is not taken for what
/// was reached in another.
pub const COUNTED_BITS: u32 = 40;

/// Of which cluster a term is.
#[must_use]
pub fn cluster_of(term: u64) -> u64 {
    (term & !(APART | LEFT)) >> COUNTED_BITS
}

/// Start of the control slab.
#[repr(C, align(64))]
pub struct StoreHeader {
    /// [`MAGIC`], stored last.
    pub magic: AtomicU64,
    /// `layout::VERSION` of the creator.
    pub layout_version: AtomicU64,
    /// Random name of the store.
    pub store_id: AtomicU64,
    /// The next epoch to be given out.
    pub next_epoch: AtomicU64,
    params: [AtomicU64; PARAM_WORDS],
    /// How far the node has applied what its cluster wants dropped, see [`StoreHeader::position`].
    position: [AtomicU64; 2],
    /// Ranks on which nothing new is stored, a bit each.
    pub closed_ranks: AtomicU64,
    /// How often the disk has come or gone: one that came and went again is not seen by its name.
    disk_changes: AtomicU64,
    /// Number of the newest fact; see [`Fact`].
    pub facts: AtomicU64,
    /// Name of the directory that the store's tier has, or had last.
    pub tier: AtomicU64,
    /// Name of the slab that leads to values on disk; 0 if the store has no tier below memory. It stays when the master dies.
    pub disk: AtomicU64,
    /// Counts switches of the index.
    pub root: AtomicU64,
    /// What the hash of the index is made from: random, the same as long as the store lives.
    seed: [AtomicU64; 2],
    /// See [`StoreHeader::apart`]; and the first epoch after the disk came.
    apart: [AtomicU64; 3],
    after_seed: [AtomicU64; 2],
}

impl StoreHeader {
    /// Fills a fresh header.
    pub fn fill(&self, store_id: u64, seed: [u64; 2], params: &Params) {
        self.next_epoch.store(1, Ordering::Relaxed);
        self.restore(store_id, seed, params);
    }

    /// Stores again what never changes, in case somebody has overwritten it.
    pub fn restore(&self, store_id: u64, seed: [u64; 2], params: &Params) {
        self.layout_version.store(VERSION.into(), Ordering::Relaxed);
        self.store_id.store(store_id, Ordering::Relaxed);
        for (place, value) in self.seed.iter().zip(seed) {
            place.store(value, Ordering::Relaxed);
        }
        for (place, value) in self.params.iter().zip(params.words()) {
            place.store(value, Ordering::Relaxed);
        }
        self.magic.store(MAGIC, Ordering::Release);
    }

    /// How far the node has applied the drop log of its cluster: term and number of an entry; `None` if it never was in one.
    #[must_use]
    pub fn position(&self) -> Option<(u64, u64)> {
        let [before, term, after] = [1, 0, 1].map(|at: usize| self.position[at].load(Ordering::Acquire));
        let term = term & !(APART | LEFT);
        (term != 0).then_some((term, if before == after { after } else { 0 }))
    }

    /// How far it has applied it to what is on disk, if the disk was not there when it was applied to what is in memory: what was dropped without the
    /// disk is still there.
    #[must_use]
    pub fn apart(&self) -> Option<(u64, u64)> {
        let [term, number] = [0, 1].map(|at: usize| self.apart[at].load(Ordering::Acquire));
        (self.position[0].load(Ordering::Acquire) & APART != 0).then_some((term, number))
    }

    /// The first epoch that was given out after that disk had come: entries and objects with earlier ones were there.
    #[must_use]
    pub fn apart_since(&self) -> u64 {
        self.apart[2].load(Ordering::Acquire)
    }

    /// The same, while that disk is apart.
    #[must_use]
    pub fn since_apart(&self) -> Option<u64> {
        self.apart().map(|_| self.apart_since())
    }

    /// Whether a disk that the store had is not there any more, and the cluster has not heard of that.
    #[must_use]
    pub fn has_left(&self) -> bool {
        self.position[0].load(Ordering::Acquire) & LEFT != 0
    }

    /// Master: keeps it, of memory and disk. Whoever reads it before this is done, or after the master has died on the way, finds an earlier place.
    pub fn set_position(&self, (term, number): (u64, u64)) {
        self.position[1].store(0, Ordering::Release);
        self.position[0].store(term, Ordering::Release);
        self.position[1].store(number, Ordering::Release);
    }

    /// Master: a disk has come that is at this earlier place; this is the next epoch.
    pub fn is_apart_from(&self, (term, number): (u64, u64), next_epoch: u64) {
        for (place, word) in self.apart.iter().zip([term, number, next_epoch]) {
            place.store(word, Ordering::Release);
        }
        // Whoever reads the position meanwhile finds it.
        self.position[0].fetch_or(APART, Ordering::AcqRel);
    }

    /// Master: a disk has not come that was there before.
    pub fn left(&self) {
        self.position[0].fetch_or(LEFT, Ordering::AcqRel);
    }

    /// Master: the disk is not there any more.
    pub fn leave_disk(&self) {
        if self.position().is_some() {
            self.left();
            self.position[0].fetch_and(!APART, Ordering::AcqRel);
        }
    }

    /// Master: this is the name of the disk from now on, see [`StoreHeader::disk`].
    pub fn name_disk(&self, name: u64) {
        if self.disk.load(Ordering::Relaxed) == name {
            return;
        }
        // Before and after: whoever dies in between has changed something, and who looks in between will see another change.
        self.disk_changes.fetch_add(1, Ordering::AcqRel);
        self.disk.store(name, Ordering::Release);
        self.disk_changes.fetch_add(1, Ordering::AcqRel);
    }

    /// How often the disk has come or gone. Whoever asks for it before the name of the disk will see it change if that is an earlier one.
    #[must_use]
    pub fn disk_changes(&self) -> u64 {
        self.disk_changes.load(Ordering::Acquire)
    }

    /// What the hash of the index is made from.
    #[must_use]
    pub fn seed(&self) -> [u64; 2] {
        std::array::from_fn(|at| self.seed[at].load(Ordering::Relaxed))
    }

    /// Whether this is the header of a store with these parameters in our layout, though stray stores may have hit
    /// some of it.
    #[must_use]
    pub fn resembles(&self, params: &Params) -> bool {
        let same =
            self.params.iter().zip(params.words()).filter(|(found, wanted)| found.load(Ordering::Relaxed) == *wanted);
        let same = same.count()
            + usize::from(self.magic.load(Ordering::Acquire) == MAGIC)
            + usize::from(self.layout_version.load(Ordering::Relaxed) == VERSION.into());
        same > (PARAM_WORDS + 2) / 2
    }

    /// The parameters, if this is the header of a store in a layout that we know.
    #[must_use]
    pub fn params(&self) -> Option<Params> {
        if self.magic.load(Ordering::Acquire) != MAGIC
            || self.layout_version.load(Ordering::Relaxed) != u64::from(VERSION)
        {
            return None;
        }
        Params::from_words(&std::array::from_fn(|at| self.params[at].load(Ordering::Relaxed)))
    }
}

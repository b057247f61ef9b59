//! Where the sequences of a thread live: a slab of them with a lock and a few spare blocks. A slot names a lane and a place in
//! it, and the table of ids gives slots, as hints that the lane confirms.

use super::Cache;
use crate::base::error::Result;
use crate::base::memory;
use crate::kv::error::unknown;
use crate::kv::seq::{Seq, State};
use crate::sync::lock::{Mutex, MutexGuard, thread_number};

/// Lanes of a cache.
pub(super) const LANES: usize = 16;
const LANE_SHIFT: u32 = 28;

/// Sequences of one or a few threads.
#[derive(Default)]
pub(in crate::kv) struct Lane {
    /// Its place among the lanes.
    pub number: usize,
    pub seqs: Vec<Seq>,
    pub vacant: Vec<u32>,
    /// Free blocks; the allocator counts them as used.
    pub spare: Vec<u32>,
    /// Uses of its sequences.
    pub tick: u64,
    /// Sequences that it ever had.
    pub opened: u64,
    pub hit_tokens: u64,
    pub asked_tokens: u64,
}

/// The lane in which this thread opens sequences.
pub(super) fn own_lane() -> usize {
    thread_number() % LANES
}

impl Cache {
    fn lane(&self, slot: u32) -> &Mutex<Lane> {
        &self.lanes[(slot >> LANE_SHIFT) as usize % LANES].0
    }

    /// The lane of a sequence, locked, and its place there.
    #[inline]
    pub(super) fn locked(&self, id: u64) -> Result<(MutexGuard<'_, Lane>, usize)> {
        if let Some(slot) = self.table.hint(id) {
            let lane = self.lane(slot).lock();
            let at = index_of(slot);
            if lane.holds(at, id) {
                return Ok((lane, at));
            }
        }
        self.locked_slowly(id)
    }

    /// Like [`Cache::locked`], when the hint was wrong: the table was changing, or there is no such sequence.
    #[cold]
    fn locked_slowly(&self, id: u64) -> Result<(MutexGuard<'_, Lane>, usize)> {
        for _ in 0..1000 {
            let found = {
                let _table = self.ids.lock();
                self.table.hint(id)
            };
            let Some(slot) = found else { return Err(unknown(id)) };
            let lane = self.lane(slot).lock();
            if lane.holds(index_of(slot), id) {
                return Ok((lane, index_of(slot)));
            }
        }
        Err(unknown(id))
    }
}

/// Goes from sequence to sequence and keeps the lane's lock as long as they live in the same one.
pub(super) struct Walk<'a> {
    cache: &'a Cache,
    lane: Option<(u32, MutexGuard<'a, Lane>)>,
}

impl<'a> Walk<'a> {
    pub const fn new(cache: &'a Cache) -> Self {
        Self { cache, lane: None }
    }

    /// The lane of a sequence, and its place there.
    #[inline]
    pub fn to(&mut self, id: u64) -> Result<(&mut Lane, usize)> {
        if let Some(slot) = self.cache.table.hint(id) {
            let number = slot >> LANE_SHIFT;
            if self.lane.as_ref().is_none_or(|(held, _)| *held != number) {
                self.rest();
                self.lane = Some((number, self.cache.lane(slot).lock()));
            }
            let index = index_of(slot);
            if self.lane.as_ref().is_some_and(|(_, lane)| lane.holds(index, id)) {
                // Looked at twice, since a borrow that is returned lasts.
                let lane = self.lane.as_mut().ok_or_else(|| unknown(id))?;
                return Ok((&mut lane.1, index));
            }
        }
        self.rest();
        let (lane, index) = self.cache.locked_slowly(id)?;
        let number = self.cache.table.hint(id).map_or(u32::MAX, |slot| slot >> LANE_SHIFT);
        let lane = self.lane.insert((number, lane));
        Ok((&mut lane.1, index))
    }

    /// Releases the lock.
    pub fn rest(&mut self) {
        self.lane = None;
    }
}

fn index_of(slot: u32) -> usize {
    (slot & ((1 << LANE_SHIFT) - 1)) as usize
}

#[allow(clippy::cast_possible_truncation, reason = "both are checked when the lane grows")]
pub(super) fn slot_of(lane: usize, index: usize) -> u32 {
    (lane << LANE_SHIFT | index) as u32
}

/// Different for every sequence that the cache ever has, and never 0.
pub(super) fn uid_of(lane: usize, number: u64) -> u64 {
    (lane as u64) << 56 | number
}

impl Lane {
    #[inline]
    fn holds(&self, at: usize, id: u64) -> bool {
        self.seqs.get(at).is_some_and(|seq| seq.id == id && seq.state != State::Closed)
    }

    /// A place for one more sequence.
    pub fn vacancy(&mut self) -> Result<usize> {
        if let Some(at) = self.vacant.pop() {
            return Ok(at as usize);
        }
        if self.seqs.len() >= 1 << LANE_SHIFT {
            crate::bail!(NMC_ERR_LIMIT, "no more sequences fit");
        }
        // So that its place can be given back.
        memory::reserve_to(&mut self.vacant, self.seqs.len() + 1)?;
        memory::push(&mut self.seqs, Seq::new())?;
        Ok(self.seqs.len() - 1)
    }

    pub fn vacate(&mut self, at: usize) {
        self.seqs[at].reset();
        self.vacant.extend(u32::try_from(at));
    }
}

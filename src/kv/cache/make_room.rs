//! What happens when there is no room: spare blocks of other lanes come back, then the policy of the cache finds a sequence
//! that goes, if all of them together would be enough.

use super::Cache;
use crate::base::error::Result;
use crate::base::log;
use crate::base::memory;
use crate::base::status::NMC_ERR_NO_MEMORY;
use crate::kv::block::NONE;
use crate::kv::config::WhenFull;
use crate::kv::error::{Attempt, Room};
use crate::kv::groups::SeqGroup;
use crate::kv::seq::{Seq, State};
use std::sync::atomic::Ordering;

/// What [`WhenFull::MoveSequence`] calls with a sequence.
pub type Mover = Box<dyn Fn(u64) -> Result<()> + Send + Sync>;

/// How many different blocks these are.
fn count_of(mut some: Vec<u32>, more: impl Iterator<Item = u32>) -> Result<u64> {
    for block in more {
        memory::push(&mut some, block)?;
    }
    some.sort_unstable();
    some.dedup();
    Ok(some.len() as u64)
}

impl Cache {
    /// Repeats `attempt` as long as it wants room and the policy finds some. `id` is not a victim. It will have `whole` blocks
    /// at least, with those that it shares.
    pub(super) fn with_room<T>(
        &self,
        id: u64,
        whole: usize,
        mut attempt: impl FnMut() -> Result<Attempt<T>>,
    ) -> Result<Attempt<T>> {
        let mut flushed = false;
        loop {
            let room = match attempt()? {
                Ok(done) => return Ok(Ok(done)),
                Err(room) => room,
            };
            if !flushed {
                flushed = true;
                if self.flush()? {
                    continue;
                }
            }
            let made = match (self.supply.config.when_full, self.mover.get()) {
                (WhenFull::EvictSequence, _) => self.could_fit(id, whole, room)? && self.evict_oldest(id, None)?,
                (WhenFull::MoveSequence, Some(mover)) => {
                    self.could_fit(id, whole, room)? && self.evict_oldest(id, Some(mover))?
                }
                _ => false,
            };
            if !made {
                return Ok(Err(room));
            }
        }
    }

    /// Whether there would be room if all sequences but `id` were gone.
    fn could_fit(&self, id: u64, whole: usize, room: Room) -> Result<bool> {
        let total = u64::from(self.supply.pool.lock().levels().total);
        if whole as u64 > total {
            return Ok(false);
        }
        let own = self.locked(id);
        if room.own_group != NONE {
            let none = Seq::new();
            return self.group_could_fit(room, own.as_ref().map_or(&none, |(lane, at)| &lane.seqs[*at]));
        }
        let pinned = memory::collect(self.pins.lock().values().flat_map(|hold| &hold.blocks).copied())?;
        let kept = match own {
            Ok((lane, at)) => count_of(pinned, lane.seqs[at].counted().chain(lane.seqs[at].private()))?,
            Err(_) => count_of(pinned, std::iter::empty())?,
        };
        Ok(room.needed + kept <= total)
    }

    /// Gives the spare blocks of all lanes back; false if there were none.
    pub(super) fn flush(&self) -> Result<bool> {
        let mut some = false;
        for lane in &self.lanes {
            let mut lane = lane.0.lock();
            if !lane.spare.is_empty() {
                some = true;
                self.supply.pool.lock().give(&lane.spare)?;
                lane.spare.clear();
            }
        }
        Ok(some)
    }

    /// Takes the blocks of the sequence that was used longest ago, other than `id`, after `mover` has sent them to the store,
    /// if there is one; false if there is no such sequence, or it could not be sent.
    fn evict_oldest(&self, id: u64, mover: Option<&Mover>) -> Result<bool> {
        let Some(victim) = self.oldest(1, Some(id))?.pop() else { return Ok(false) };
        // One that is closed or taken in the meantime makes room as well; of one that is fetched others are left.
        let Some(uid) = self.takeable(victim) else { return Ok(true) };
        if let Some(Err(error)) = mover.map(|mover| mover(victim)) {
            if self.takeable(victim) != Some(uid) {
                return Ok(true);
            }
            if error.status == NMC_ERR_NO_MEMORY {
                return Err(error);
            }
            log::emit(log::WARN, || format!("sequence {victim} could not be moved to make room: {error}"));
            return Ok(false);
        }
        let taken = self.with(victim, |seq, editor| {
            // Another sequence with the same id was not moved.
            if seq.uid == uid {
                // What does not count as computed yet may never be: nothing more is published.
                editor.empty(seq)?;
                seq.state = State::Evicted;
            }
            Ok(seq.uid == uid)
        });
        match taken {
            Ok(true) => {
                self.evicted_sequences.fetch_add(1, Ordering::Relaxed);
                self.moved_sequences.fetch_add(u64::from(mover.is_some()), Ordering::Relaxed);
                Ok(true)
            }
            Err(error) if self.takeable(victim) == Some(uid) => Err(error),
            _ => Ok(true),
        }
    }

    /// The number of a sequence whose blocks can be taken: it is open, has them, and they are not being fetched.
    fn takeable(&self, id: u64) -> Option<u64> {
        self.read(id, |seq| Ok((seq.fetching == 0).then_some(seq.uid))).ok().flatten()
    }

    /// The ids of up to `count` open sequences that hold blocks, the one used longest ago first, without `id`.
    pub fn oldest(&self, count: usize, id: Option<u64>) -> Result<Vec<u64>> {
        let mut all: Vec<_> = memory::with_capacity(usize::try_from(self.table.count()).unwrap_or(0))?;
        for lane in &self.lanes {
            let lane = lane.0.lock();
            let open = lane.seqs.iter().filter(|seq| {
                seq.state == State::Open && seq.fetching == 0 && Some(seq.id) != id && !seq.blocks.is_empty()
            });
            for seq in open {
                memory::push(&mut all, (seq.last_use, seq.id))?;
            }
        }
        all.sort_unstable();
        memory::collect(all.iter().take(count).map(|(_, id)| *id))
    }

    /// The same for a group with blocks of its own; `own` is the sequence that stays.
    fn group_could_fit(&self, room: Room, own: &Seq) -> Result<bool> {
        let pinned = memory::collect(self.pins.lock().values().flat_map(|hold| hold.of_group(room.own_group)))?;
        let kept = count_of(pinned, own.groups.get(room.own_group as usize).into_iter().flat_map(SeqGroup::held))?;
        let total =
            self.supply.config.own_groups.get(room.own_group as usize).map_or(0, |group| u64::from(group.blocks));
        Ok(room.needed + kept <= total)
    }
}

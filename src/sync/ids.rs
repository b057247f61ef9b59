//! From the caller's sequence ids to slots. A lookup takes no lock: it probes a table of atomic words, and its answer is
//! a hint that the caller checks against the id in the slot, under the slot's lock. A removal moves later entries back, so
//! a lookup that runs beside it can miss, or pair one id with another's slot; then it is repeated under the writers' lock.

use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::{NMC_ERR_EXISTS, NMC_ERR_LIMIT};
use crate::sync::atomic::{AtomicU64, Ordering};

struct Entry {
    id: AtomicU64,
    /// The slot plus one; 0 is an empty entry.
    slot: AtomicU64,
}

/// The table; its size is fixed.
pub struct Ids {
    entries: Box<[Entry]>,
    limit: u64,
    count: Count,
}

/// Apart from what lookups read.
#[repr(align(128))]
struct Count(AtomicU64);

#[inline]
fn mix(id: u64) -> usize {
    // Fibonacci hashing: ids are often consecutive, and the high bits of the product are spread.
    (id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) as usize
}

impl Ids {
    /// Room for `limit` ids.
    pub fn new(limit: u32) -> Result<Self> {
        let empty = |_| Entry { id: AtomicU64::new(0), slot: AtomicU64::new(0) };
        Ok(Self {
            entries: memory::vec_with(Self::entries(limit), empty)?.into_boxed_slice(),
            limit: u64::from(limit),
            count: Count(AtomicU64::new(0)),
        })
    }

    fn entries(limit: u32) -> usize {
        (limit as usize * 2).next_power_of_two().max(4)
    }

    /// Bytes of memory that a table of so many ids takes.
    pub fn book_bytes(limit: u32) -> u64 {
        (Self::entries(limit) * size_of::<Entry>()) as u64
    }

    /// How many ids there are.
    pub fn count(&self) -> u64 {
        self.count.0.load(Ordering::Relaxed)
    }

    /// Bytes of memory that it takes.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.entries)
    }

    #[inline]
    const fn after(&self, at: usize) -> usize {
        (at + 1) & (self.entries.len() - 1)
    }

    #[inline]
    fn home(&self, id: u64) -> usize {
        mix(id) & (self.entries.len() - 1)
    }

    /// The slot of an id, or of another one, or `None` although it is there, if the table changes meanwhile.
    #[inline]
    pub fn hint(&self, id: u64) -> Option<u32> {
        let mut at = self.home(id);
        for _ in 0..self.entries.len() {
            let entry = &self.entries[at];
            let slot = entry.slot.load(Ordering::Acquire);
            if slot == 0 {
                return None;
            }
            if entry.id.load(Ordering::Relaxed) == id {
                return u32::try_from(slot - 1).ok();
            }
            at = self.after(at);
        }
        None
    }

    /// Whether an id could be added now; like a hint, if the table changes meanwhile.
    pub fn check_vacant(&self, id: u64) -> Result<()> {
        if self.hint(id).is_some() {
            return Err(Error::new(NMC_ERR_EXISTS, format!("sequence {id} is already open")));
        }
        if self.count.0.load(Ordering::Relaxed) >= self.limit {
            let text = format!("all {} sequences of the cache are open; raise max_sequences", self.limit);
            return Err(Error::new(NMC_ERR_LIMIT, text));
        }
        Ok(())
    }

    /// Adds an id that is not there yet. One writer at a time: the caller has a lock for it.
    pub fn insert(&self, id: u64, slot: u32) -> Result<()> {
        self.check_vacant(id)?;
        let mut at = self.home(id);
        while self.entries[at].slot.load(Ordering::Relaxed) != 0 {
            at = self.after(at);
        }
        self.entries[at].id.store(id, Ordering::Relaxed);
        self.entries[at].slot.store(u64::from(slot) + 1, Ordering::Release);
        self.count.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Removes an id; false if it was not there. One writer at a time.
    pub fn remove(&self, id: u64) -> bool {
        let mut hole = self.home(id);
        loop {
            let entry = &self.entries[hole];
            if entry.slot.load(Ordering::Relaxed) == 0 {
                return false;
            }
            if entry.id.load(Ordering::Relaxed) == id {
                break;
            }
            hole = self.after(hole);
        }
        let mask = self.entries.len() - 1;
        let mut at = hole;
        loop {
            at = self.after(at);
            let entry = &self.entries[at];
            let slot = entry.slot.load(Ordering::Relaxed);
            if slot == 0 {
                break;
            }
            let other = entry.id.load(Ordering::Relaxed);
            // An entry may move back to the hole if its home is not between the two.
            let from_home = at.wrapping_sub(self.home(other)) & mask;
            if from_home >= (at.wrapping_sub(hole) & mask) {
                self.entries[hole].id.store(other, Ordering::Relaxed);
                self.entries[hole].slot.store(slot, Ordering::Release);
                hole = at;
            }
        }
        self.entries[hole].slot.store(0, Ordering::Release);
        self.count.0.fetch_sub(1, Ordering::Relaxed);
        true
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may")]
    use super::*;
    use crate::base::random::Random;
    use std::collections::HashMap;

    #[test]
    fn ids_behave_like_a_map() {
        let ids = Ids::new(40).unwrap();
        let mut naive = HashMap::new();
        let mut random = Random(7);
        for step in 0..50_000u32 {
            // Few ids, some of them far apart, so that they often meet.
            let id = random.below(60) * if random.one_in(4) { 1 } else { 0x1_0000_0001 };
            if random.one_in(2) {
                let fits = naive.len() < 40 && !naive.contains_key(&id);
                assert_eq!(ids.insert(id, step).is_ok(), fits);
                if fits {
                    naive.insert(id, step);
                }
            } else {
                assert_eq!(ids.remove(id), naive.remove(&id).is_some());
            }
            assert_eq!(ids.hint(id), naive.get(&id).copied());
        }
        assert!(naive.iter().all(|(id, slot)| ids.hint(*id) == Some(*slot)));
    }
}

#[cfg(all(test, feature = "loom"))]
mod model {
    #![allow(clippy::unwrap_used, reason = "a test may")]
    use super::*;
    use loom::sync::Arc;

    /// Ids that have the same home in a table of four entries.
    fn neighbours() -> [u64; 3] {
        let home = mix(1) & 3;
        let mut same = (1..).filter(|id| mix(*id) & 3 == home);
        [same.next().unwrap(), same.next().unwrap(), same.next().unwrap()]
    }

    fn check(body: impl Fn() + Send + Sync + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(body);
    }

    #[test]
    fn a_lookup_beside_a_removal_ends_and_one_after_it_is_exact() {
        check(|| {
            let [a, b, c] = neighbours();
            let ids = Arc::new(Ids::new(2).unwrap());
            ids.insert(a, 10).unwrap();
            ids.insert(b, 11).unwrap();
            let reader = {
                let ids = ids.clone();
                // What it says of `b` meanwhile is a hint: a miss, or a slot that somebody has or had.
                loom::thread::spawn(move || assert!(matches!(ids.hint(b), None | Some(10..=12))))
            };
            assert!(ids.remove(a));
            ids.insert(c, 12).unwrap();
            reader.join().unwrap();
            assert_eq!([ids.hint(a), ids.hint(b), ids.hint(c)], [None, Some(11), Some(12)]);
        });
    }

    /// The control: taken for the truth, a hint is wrong in some execution.
    #[test]
    fn control_a_hint_is_not_the_truth() {
        let believed = std::panic::catch_unwind(|| {
            check(|| {
                let [a, b, _] = neighbours();
                let ids = Arc::new(Ids::new(2).unwrap());
                ids.insert(a, 10).unwrap();
                ids.insert(b, 11).unwrap();
                let reader = {
                    let ids = ids.clone();
                    loom::thread::spawn(move || assert_eq!(ids.hint(b), Some(11)))
                };
                assert!(ids.remove(a));
                reader.join().unwrap();
            });
        });
        assert!(believed.is_err());
    }
}

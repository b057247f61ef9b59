//! Which object goes first when a rank's heap is full. Objects that nothing retains go by priority, lowest first, and
//! within a priority as the policy says; softly retained ones go when nothing else is left or their time is over; hard
//! ones never. Readers leave sampled stamps in shared memory; a policy learns of a read when it next looks.

use super::config::Policy;
use super::lists::{ListId, Lists};
use crate::base::error::Result;
use crate::base::memory;

/// Priorities, 0 goes first.
pub const PRIORITIES: u16 = 4;
/// Headers that are free.
pub const FREE: ListId = ListId(0);
/// Objects that are being written, as far as the master knows.
pub const WRITING: ListId = ListId(1);
/// Dead objects that a reader has pinned.
pub const LIMBO: ListId = ListId(2);
/// Dead objects whose writer may still be storing.
pub const QUARANTINE: ListId = ListId(3);
const FIRST_QUEUE: u16 = 4;
const QUEUES: u16 = 2 * PRIORITIES + 2;

/// Number of lists for `ranks` ranks.
#[must_use]
pub fn lists(ranks: u32) -> u16 {
    u16::try_from(ranks).unwrap_or(0) * QUEUES + FIRST_QUEUE
}

/// How long an object is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retain {
    /// As the policy says.
    None,
    /// Until everything else is gone, or until its time is over.
    Soft,
    /// Until it is removed.
    Hard,
}

impl Retain {
    /// Number in the C header.
    #[must_use]
    pub fn code(self) -> u32 {
        match self {
            Retain::None => 0,
            Retain::Soft => 1,
            Retain::Hard => 2,
        }
    }

    /// The class with this number.
    #[must_use]
    pub fn from_code(code: u32) -> Option<Self> {
        [Retain::None, Retain::Soft, Retain::Hard].into_iter().find(|r| r.code() == code)
    }
}

/// What a policy needs to know about an object.
pub struct Facts {
    /// Last access as readers stamped it; 0 for never.
    pub stamp: u32,
    /// 64 bits of the key.
    pub fingerprint: u64,
    /// Its priority.
    pub priority: u16,
    /// Whether its soft retention is over.
    pub expired: bool,
}

impl Facts {
    /// Of an object that is not there.
    pub const NONE: Facts = Facts { stamp: 0, fingerprint: 0, priority: 0, expired: true };
}

/// The eviction queues of one rank.
pub struct Queues {
    base: u16,
    policy: Policy,
    /// Fingerprints of objects that were evicted from the small queue, for S3-FIFO.
    ghosts: Vec<u32>,
    /// Softly retained object at which the search for ended retentions goes on.
    next_soft: Option<u32>,
}

impl Queues {
    /// Queues of `rank`, whose heap has room for about `objects`.
    pub fn new(rank: u32, policy: Policy, objects: u32) -> Result<Self> {
        let ghosts = if policy == Policy::S3Fifo { (objects as usize).next_power_of_two().min(1 << 16) } else { 0 };
        let base = FIRST_QUEUE + u16::try_from(rank).unwrap_or(0) * QUEUES;
        Ok(Self { base, policy, ghosts: memory::zeroed(ghosts)?, next_soft: None })
    }

    fn small(&self, priority: u16) -> ListId {
        ListId(self.base + priority.min(PRIORITIES - 1))
    }

    fn main(&self, priority: u16) -> ListId {
        ListId(self.base + PRIORITIES + priority.min(PRIORITIES - 1))
    }

    fn soft(&self) -> ListId {
        ListId(self.base + 2 * PRIORITIES)
    }

    fn hard(&self) -> ListId {
        ListId(self.base + 2 * PRIORITIES + 1)
    }

    fn ghost(&self, fingerprint: u64) -> Option<(usize, u32)> {
        #[allow(clippy::cast_possible_truncation, reason = "bits of a hash")]
        let (at, mark) = (fingerprint as usize, (fingerprint >> 32) as u32 | 1);
        (!self.ghosts.is_empty()).then(|| (at & (self.ghosts.len() - 1), mark))
    }

    /// Objects that could be evicted.
    #[must_use]
    pub fn len(&self, lists: &Lists) -> u32 {
        (0..PRIORITIES).map(|p| lists.len(self.small(p)) + lists.len(self.main(p))).sum::<u32>()
            + lists.len(self.soft())
    }

    /// Objects in all queues, those that are never evicted too.
    pub fn all(&self) -> impl Iterator<Item = ListId> {
        (self.base..self.base + QUEUES).map(ListId)
    }

    /// Takes in an object that has become readable, or whose class changed.
    pub fn admit(&mut self, lists: &mut Lists, index: u32, class: Retain, facts: &Facts) {
        let list = match class {
            Retain::Hard => self.hard(),
            Retain::Soft if !facts.expired => self.soft(),
            _ if self.policy == Policy::S3Fifo => match self.ghost(facts.fingerprint) {
                // It came back soon after it was thrown out: it was thrown out too early.
                Some((at, mark)) if self.ghosts[at] == mark => {
                    self.ghosts[at] = 0;
                    self.main(facts.priority)
                }
                _ => self.small(facts.priority),
            },
            _ => self.main(facts.priority),
        };
        lists.set_seen(index, facts.stamp);
        lists.move_to(index, list);
    }

    /// The next object to evict; a softly retained one only if `soft`. It stays in its queue until the caller moves it.
    /// `budget` is what may be looked at.
    pub fn victim(
        &mut self,
        lists: &mut Lists,
        facts: impl Fn(u32) -> Facts,
        soft: bool,
        budget: &mut usize,
    ) -> Option<u32> {
        self.end_retention(lists, &facts);
        for priority in 0..PRIORITIES {
            if let Some(found) = self.in_priority(lists, priority, &facts, budget) {
                return Some(found);
            }
        }
        lists.head(self.soft()).filter(|_| soft && take(budget))
    }

    /// Retention that is over gives the object back to the policy. A few are looked at each time, going round the list.
    fn end_retention(&mut self, lists: &mut Lists, facts: &impl Fn(u32) -> Facts) {
        for _ in 0..4 {
            let here = self.next_soft.filter(|index| lists.list_of(*index) == Some(self.soft()));
            let Some(index) = here.or_else(|| lists.head(self.soft())) else { return };
            self.next_soft = lists.after(index);
            let known = facts(index);
            if known.expired {
                self.admit(lists, index, Retain::None, &known);
            }
        }
    }

    fn in_priority(
        &mut self,
        lists: &mut Lists,
        priority: u16,
        facts: &impl Fn(u32) -> Facts,
        budget: &mut usize,
    ) -> Option<u32> {
        let (small, main) = (self.small(priority), self.main(priority));
        let read_since = |lists: &Lists, index: u32, known: &Facts| known.stamp != lists.seen(index);
        loop {
            let (in_small, in_main) = (lists.len(small), lists.len(main));
            let from_small = in_small > 0 && (in_main == 0 || in_small * 9 >= in_main);
            let head = lists.head(if from_small { small } else { main })?;
            if self.policy == Policy::Fifo {
                return take(budget).then_some(head);
            }
            let known = facts(head);
            if !take(budget) {
                // Everything may have been read since: then the oldest is as good as any.
                return Some(head);
            }
            if read_since(lists, head, &known) {
                lists.set_seen(head, known.stamp);
                lists.move_to(head, main);
                continue;
            }
            if from_small && let Some((at, mark)) = self.ghost(known.fingerprint) {
                self.ghosts[at] = mark;
            }
            return Some(head);
        }
    }

    /// Bytes of this process that the queues take.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.ghosts.len() * 4
    }
}

fn take(budget: &mut usize) -> bool {
    let left = *budget > 0;
    *budget = budget.saturating_sub(1);
    left
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::collections::HashMap;

    struct Bed {
        queues: Queues,
        lists: Lists,
        stamps: RefCell<HashMap<u32, u32>>,
        classes: HashMap<u32, (u16, bool)>,
    }

    impl Bed {
        fn new(policy: Policy) -> Self {
            let lists = Lists::new(200, super::lists(1), FREE).expect("memory");
            let queues = Queues::new(0, policy, 200).expect("memory");
            Self { queues, lists, stamps: RefCell::default(), classes: HashMap::new() }
        }

        fn facts(&self, index: u32) -> Facts {
            let (priority, expired) = self.classes.get(&index).copied().unwrap_or((0, false));
            let stamp = self.stamps.borrow().get(&index).copied().unwrap_or(0);
            Facts { stamp, fingerprint: u64::from(index).wrapping_mul(0x9E37_79B9_7F4A_7C15), priority, expired }
        }

        fn add(&mut self, index: u32, class: Retain) {
            let facts = self.facts(index);
            self.queues.admit(&mut self.lists, index, class, &facts);
        }

        fn read(&mut self, index: u32, at: u32) {
            self.stamps.borrow_mut().insert(index, at);
        }

        fn evict(&mut self) -> Option<u32> {
            let (stamps, classes) = (self.stamps.clone(), self.classes.clone());
            let facts = move |index: u32| {
                let (priority, expired) = classes.get(&index).copied().unwrap_or((0, false));
                let stamp = stamps.borrow().get(&index).copied().unwrap_or(0);
                Facts { stamp, fingerprint: u64::from(index).wrapping_mul(0x9E37_79B9_7F4A_7C15), priority, expired }
            };
            let victim = self.queues.victim(&mut self.lists, facts, true, &mut 1000)?;
            self.lists.move_to(victim, FREE);
            self.stamps.borrow_mut().remove(&victim);
            Some(victim)
        }
    }

    #[test]
    fn fifo_evicts_the_oldest_whether_it_was_read_or_not() {
        let mut bed = Bed::new(Policy::Fifo);
        (0..5).for_each(|i| bed.add(i, Retain::None));
        bed.read(0, 9);
        assert_eq!((0..6).map_while(|_| bed.evict()).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn lru_spares_what_was_read_since() {
        let mut bed = Bed::new(Policy::Lru);
        (0..5).for_each(|i| bed.add(i, Retain::None));
        bed.read(0, 9);
        bed.read(3, 10);
        assert_eq!((0..5).map_while(|_| bed.evict()).collect::<Vec<_>>(), [1, 2, 4, 0, 3]);
    }

    #[test]
    fn s3fifo_keeps_a_hot_set_through_a_scan_and_fifo_does_not() {
        let survivors = |policy| {
            let mut bed = Bed::new(policy);
            let capacity = 100;
            let hot: Vec<u32> = (0..20).collect();
            hot.iter().for_each(|i| bed.add(*i, Retain::None));
            let mut here = 20;
            for i in 0..1000u32 {
                let index = 20 + i % 180;
                if bed.lists.list_of(index) != Some(FREE) {
                    continue;
                }
                while here >= capacity {
                    bed.evict();
                    here -= 1;
                }
                bed.add(index, Retain::None);
                here += 1;
                hot.iter()
                    .filter(|h| bed.lists.list_of(**h) != Some(FREE))
                    .copied()
                    .collect::<Vec<_>>()
                    .iter()
                    .for_each(|h| bed.read(*h, i + 1));
            }
            hot.iter().filter(|h| bed.lists.list_of(**h) != Some(FREE)).count()
        };
        assert_eq!(survivors(Policy::S3Fifo), 20);
        assert_eq!(survivors(Policy::Fifo), 0);
    }

    #[test]
    fn classes_and_priorities_go_in_their_order() {
        let mut bed = Bed::new(Policy::Fifo);
        bed.classes.insert(0, (3, false));
        bed.classes.insert(1, (1, false));
        bed.add(0, Retain::None);
        bed.add(1, Retain::None);
        bed.add(2, Retain::Hard);
        bed.add(3, Retain::Soft);
        bed.add(4, Retain::None);
        assert_eq!((0..9).map_while(|_| bed.evict()).collect::<Vec<_>>(), [4, 1, 0, 3]);
    }

    #[test]
    fn soft_retention_ends() {
        let mut bed = Bed::new(Policy::Fifo);
        bed.add(0, Retain::Soft);
        bed.add(1, Retain::None);
        bed.classes.insert(0, (0, true));
        assert_eq!((bed.evict(), bed.evict()), (Some(1), Some(0)));
    }

    #[test]
    fn the_work_is_bounded_even_if_everything_was_read() {
        let mut bed = Bed::new(Policy::Lru);
        (0..200).for_each(|i| bed.add(i, Retain::None));
        (0..200).for_each(|i| bed.read(i, 5));
        let (stamps, mut budget) = (bed.stamps.clone(), 10);
        let facts = move |index: u32| Facts {
            stamp: stamps.borrow().get(&index).copied().unwrap_or(0),
            fingerprint: 0,
            priority: 0,
            expired: false,
        };
        assert_eq!(bed.queues.victim(&mut bed.lists, facts, true, &mut budget), Some(10));
        assert_eq!(budget, 0);
    }
}

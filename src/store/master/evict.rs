//! Which object goes first when a rank's heap is full. Objects that nothing retains go by priority, lowest first, and
//! within a priority as the policy says; softly retained ones go when nothing else is left or their time is over; hard
//! ones never. Readers leave sampled stamps in shared memory; a policy learns of a read when it next looks.

use super::lists::{ListId, Lists};
use crate::alloc::policy::{Fifo, Lru, Node, Policy, Queue, S3Fifo, Turn, take};
use crate::base::error::Result;
use crate::store::config;
use crate::store::types::{PRIORITIES, Retain};

pub(crate) const FREE: ListId = ListId(0);
/// Objects that are being written, as far as the master knows.
pub(crate) const WRITING: ListId = ListId(1);
/// Dead objects that a reader has pinned.
pub(crate) const LIMBO: ListId = ListId(2);
/// Dead objects whose writer may still be storing.
pub(crate) const QUARANTINE: ListId = ListId(3);
const FIRST_QUEUE: u16 = 4;
/// Lists of a priority: as many as the policy needs that has most.
const LISTS: u16 = S3Fifo::LISTS;
/// The priorities, and the objects that are retained softly and hard.
const QUEUES: u16 = LISTS * PRIORITIES + 2;
/// Those that are evicted from.
pub(crate) const LEVELS: u16 = QUEUES - 1;
/// S3-FIFO remembers at most so many objects of a rank that left.
const MOST_GHOSTS: usize = 1 << 16;

/// Whether a header has an object that can be read, and so is in a queue of some rank.
pub(crate) fn is_queued(lists: &Lists, index: u32) -> bool {
    lists.list_of(index).is_some_and(|list| list.0 >= FIRST_QUEUE)
}

/// Number of lists for `ranks` ranks.
pub(crate) fn lists(ranks: u32) -> u16 {
    u16::try_from(ranks).unwrap_or(0) * QUEUES + FIRST_QUEUE
}

/// What a policy needs to know about an object.
pub(crate) struct Facts {
    /// Last access as readers stamped it; 0 for never.
    pub stamp: u32,
    /// 64 bits of the key.
    pub fingerprint: u64,
    pub priority: u16,
    /// Whether its soft retention is over.
    pub expired: bool,
}

impl Facts {
    /// Of an object that is not there.
    pub const NONE: Facts = Facts { stamp: 0, fingerprint: 0, priority: 0, expired: true };
}

/// The eviction queues of one rank.
pub(crate) struct Queues {
    base: u16,
    order: Order,
    /// Softly retained object at which the search for ended retentions goes on.
    next_soft: Option<u32>,
}

enum Order {
    Fifo(Fifo),
    Lru(Lru),
    S3Fifo(S3Fifo),
}

impl Queues {
    /// Queues of `rank`, whose heap has room for about `objects`.
    pub fn new(rank: u32, policy: config::Policy, objects: u32) -> Result<Self> {
        let order = match policy {
            config::Policy::Fifo => Order::Fifo(Fifo),
            config::Policy::Lru => Order::Lru(Lru),
            config::Policy::S3Fifo => {
                Order::S3Fifo(S3Fifo::new((objects as usize).next_power_of_two().min(MOST_GHOSTS))?)
            }
        };
        let base = FIRST_QUEUE + u16::try_from(rank).unwrap_or(0) * QUEUES;
        Ok(Self { base, order, next_soft: None })
    }

    /// The first list of a priority.
    fn priority(&self, priority: u16) -> ListId {
        ListId(self.base + LISTS * priority.min(PRIORITIES - 1))
    }

    fn soft(&self) -> ListId {
        ListId(self.base + LISTS * PRIORITIES)
    }

    fn hard(&self) -> ListId {
        ListId(self.base + LISTS * PRIORITIES + 1)
    }

    /// Objects that could be evicted.
    pub fn len(&self, lists: &Lists) -> u32 {
        (self.base..=self.soft().0).map(|list| lists.len(ListId(list))).sum()
    }

    /// Whether what comes first goes first, whoever reads it.
    pub fn is_fifo(&self) -> bool {
        matches!(self.order, Order::Fifo(_))
    }

    /// Which of the queues that are evicted from have something, as a bit each.
    pub fn in_use(&self, lists: &Lists) -> u16 {
        (0..LEVELS).filter(|at| lists.len(ListId(self.base + at)) > 0).fold(0, |all, at| all | 1 << at)
    }

    /// The queues in the order in which they are evicted from, without the one that never is.
    pub fn nth(&self, at: u16) -> Option<ListId> {
        (at < LEVELS).then(|| ListId(self.base + at))
    }

    /// Which of them this is.
    pub fn level_of(&self, list: ListId) -> Option<u16> {
        list.0.checked_sub(self.base).filter(|at| *at < LEVELS)
    }

    /// Whether an object that would go was read since the policy last looked: then it is at the end of its queue now.
    pub fn spares(&self, lists: &mut Lists, index: u32, facts: &Facts) -> bool {
        let list = lists.list_of(index);
        let (Some(list), Some(node)) = (list, lists.get_mut(index).filter(|_| !self.is_fifo())) else { return false };
        let read = std::mem::replace(&mut node.seen, facts.stamp) != facts.stamp;
        if read {
            lists.move_to(index, list);
        }
        read
    }

    /// Takes in an object that has become readable, or whose class changed.
    pub fn admit(&mut self, lists: &mut Lists, index: u32, class: Retain, facts: &Facts) {
        let Some(node) = lists.get_mut(index) else { return };
        node.seen = facts.stamp;
        let list = match class {
            Retain::Hard => self.hard(),
            Retain::Soft if !facts.expired => self.soft(),
            _ => {
                let list = match &mut self.order {
                    Order::Fifo(policy) => policy.joins(node, facts.fingerprint),
                    Order::Lru(policy) => policy.joins(node, facts.fingerprint),
                    Order::S3Fifo(policy) => policy.joins(node, facts.fingerprint),
                };
                ListId(self.priority(facts.priority).0 + list)
            }
        };
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
            let queue = &mut lists.queue(self.priority(priority));
            let found = match &mut self.order {
                Order::Fifo(policy) => policy.victim(queue, budget, |_, _| Turn::Goes(0)),
                Order::Lru(policy) => unread(policy, queue, &facts, budget),
                Order::S3Fifo(policy) => unread(policy, queue, &facts, budget),
            };
            if found.is_some() {
                return found;
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

    /// Bytes of this process that the queues take.
    pub fn bytes(&self) -> usize {
        if let Order::S3Fifo(policy) = &self.order { policy.bytes() } else { 0 }
    }
}

/// The next object that was not read since the policy last looked.
fn unread(
    policy: &mut impl Policy,
    queue: &mut Queue<'_, Node>,
    facts: impl Fn(u32) -> Facts,
    budget: &mut usize,
) -> Option<u32> {
    let found = policy.victim(queue, budget, |node, index| {
        let known = facts(index);
        match std::mem::replace(&mut node.seen, known.stamp) == known.stamp {
            true => Turn::Goes(known.fingerprint),
            false => Turn::Stays,
        }
    });
    // Everything may have been read since: then the oldest is as good as any.
    found.or_else(|| {
        let oldest = policy.front(queue)?;
        take(budget);
        Some(oldest)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::config::Policy;
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

use super::deadlines::Deadlines;
use super::*;
use crate::base::random::Random;
use std::collections::BTreeSet;

const SLOTS: u32 = 200;
/// Lists of the owner that are not the policy's.
const FIRST: u16 = 3;

fn hash(name: u32) -> u64 {
    u64::from(name).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// A cache of a few slots; what it holds is named by numbers.
struct Bed<P> {
    policy: P,
    lists: [List; 20],
    table: Vec<Node>,
    /// What is in each slot.
    names: Vec<Option<u32>>,
    /// Slots that the owner does not let go.
    held: BTreeSet<u32>,
}

impl<P: Policy> Bed<P> {
    fn new(policy: P) -> Self {
        let slots = SLOTS as usize;
        let (table, names) = (vec![Node::NEW; slots], vec![None; slots]);
        Self { policy, lists: [List::EMPTY; 20], table, names, held: BTreeSet::new() }
    }

    fn queue(&mut self) -> (&mut P, Queue<'_, Node>) {
        (&mut self.policy, Queue { lists: &mut self.lists, table: &mut self.table, first: FIRST })
    }

    fn len(&self, list: u16) -> u32 {
        self.lists[usize::from(FIRST + list)].len()
    }

    fn add(&mut self, id: u32, name: u32) {
        let list = self.policy.joins(&mut self.table[id as usize], hash(name));
        list::push(&mut self.lists, &mut self.table, ListId(FIRST + list), id);
        self.names[id as usize] = Some(name);
    }

    fn touch(&mut self, id: u32) {
        let (policy, mut queue) = self.queue();
        policy.touch(&mut queue, id);
    }

    /// The next victim, after at most so many looks; it is gone then.
    fn evict(&mut self, mut looks: usize) -> Option<u32> {
        let queue = &mut Queue { lists: &mut self.lists, table: &mut self.table, first: FIRST };
        let (held, names) = (&self.held, &self.names);
        let judge = |_: &mut Node, id: u32| match held.contains(&id) {
            true => Turn::Stays,
            false => Turn::Goes(hash(names[id as usize].unwrap_or(0))),
        };
        let id = self.policy.victim(queue, &mut looks, judge)?;
        list::remove(&mut self.lists, &mut self.table, id);
        self.names[id as usize] = None;
        Some(id)
    }

    fn all(&mut self) -> Vec<u32> {
        std::iter::from_fn(|| self.evict(usize::MAX)).collect()
    }

    /// Uses something: touches its slot, or makes room and puts it into one. Whether it was there.
    fn request(&mut self, name: u32, slots: u32) -> bool {
        if let Some(id) = self.find(name) {
            self.touch(id);
            return true;
        }
        let free = (0..slots).find(|id| self.names[*id as usize].is_none());
        let id = free.or_else(|| self.evict(usize::MAX));
        self.add(id.unwrap_or(0), name);
        false
    }

    fn find(&self, name: u32) -> Option<u32> {
        (0..SLOTS).find(|id| self.names[*id as usize] == Some(name))
    }
}

#[test]
fn the_order_is_that_of_the_policy() {
    fn order(policy: impl Policy) -> Vec<u32> {
        let mut bed = Bed::new(policy);
        (0..5).for_each(|id| bed.add(id, id));
        [0, 3, 3, 3, 0].into_iter().for_each(|id| bed.touch(id));
        bed.all()
    }
    assert_eq!(order(Fifo), [0, 1, 2, 3, 4]);
    assert_eq!(order(Lru), [1, 2, 4, 3, 0]);
    assert_eq!(order(Lfu), [1, 2, 4, 0, 3]);
    let ghosts = S3Fifo::new(64);
    assert_eq!(ghosts.map(order).ok(), Some(vec![1, 2, 4, 0, 3]));
}

#[test]
fn what_stays_is_passed_over_once_and_goes_when_it_can() {
    fn check(policy: impl Policy) {
        let mut bed = Bed::new(policy);
        (0..20).for_each(|id| bed.add(id, id));
        bed.held = (0..20).filter(|id| id % 3 == 0).collect();
        let mut gone = bed.all();
        gone.sort_unstable();
        assert!(gone.iter().copied().eq((0..20).filter(|id| id % 3 != 0)), "{gone:?}");
        assert_eq!(bed.evict(usize::MAX), None);
        bed.held.clear();
        assert_eq!(bed.all().len(), 7);
    }
    check(Fifo);
    check(Lru);
    check(Lfu);
    check(Priority::default());
    assert!(S3Fifo::new(64).map(check).is_ok());
}

#[test]
fn looks_are_bounded_and_one_that_is_left_finds_the_next() {
    let mut bed = Bed::new(Lru);
    (0..20).for_each(|id| bed.add(id, id));
    bed.held = (0..10).collect();
    assert_eq!((bed.evict(0), bed.evict(7)), (None, None));
    let (policy, queue) = bed.queue();
    assert_eq!(policy.front(&queue), Some(7), "seven were passed over");
    assert_eq!((bed.evict(3), bed.evict(1)), (None, Some(10)));
}

#[test]
fn s3fifo_keeps_the_hot_set_through_a_scan_and_lru_loses_it() {
    fn hits(policy: impl Policy) -> usize {
        let mut bed = Bed::new(policy);
        let (mut scan, mut hits) = (1000, 0);
        for round in 0..40 {
            // 20 things that all rounds need, in a scan of things that nobody needs again, longer than the cache.
            for hot in 0..20 {
                hits += usize::from(bed.request(hot, 100) && round > 0);
            }
            for _ in 0..if round < 2 { 5 } else { 150 } {
                bed.request(scan, 100);
                scan += 1;
            }
        }
        hits
    }
    assert_eq!(S3Fifo::new(100).map(hits).ok(), Some(39 * 20));
    assert_eq!(hits(Lru), 2 * 20, "only before the scans are long");
    assert_eq!(hits(Fifo), 2 * 20);
}

#[test]
fn s3fifo_takes_what_returns_soon_into_the_main_queue() {
    let Ok(policy) = S3Fifo::new(1000) else { unreachable!("memory") };
    let mut bed = Bed::new(policy);
    (0..50).for_each(|id| bed.add(id, id));
    assert_eq!(bed.evict(9), Some(0));
    bed.add(0, 0);
    // It does not pass the small queue again, nor is it known twice.
    assert_eq!((bed.len(0), bed.len(1)), (49, 1));
    list::remove(&mut bed.lists, &mut bed.table, 0);
    bed.add(0, 0);
    assert_eq!((bed.len(0), bed.len(1)), (50, 0));
}

#[test]
fn a_walk_along_the_front_changes_nothing_and_is_the_order_of_those_that_go() {
    let mut bed = Bed::new(Lru);
    (0..30).for_each(|id| bed.add(id * 7 % 30, id));
    (0..10).for_each(|id| bed.touch(id * 3));
    let walk: Vec<u32> = bed.lists[usize::from(FIRST)].iter(&bed.table).collect();
    assert!(bed.lists[usize::from(FIRST)].iter(&bed.table).eq(walk.iter().copied()));
    assert_eq!(bed.all(), walk);
}

#[test]
fn a_priority_is_raised_and_lapses() {
    let mut policy = Priority::default();
    assert!(policy.reserve(SLOTS as usize).is_ok());
    policy.fit(SLOTS as usize);
    let mut bed = Bed::new(policy);
    for (id, priority, until) in [(0, 9, 0), (1, 9, 5), (2, 1, 0), (3, 3, 50), (4, 9, 7)] {
        bed.policy.set(&mut bed.table[id as usize], id, priority, until);
        bed.add(id, id);
    }
    let (policy, mut queue) = bed.queue();
    assert!(!policy.raise(&mut queue, 0, 9, 5), "it lasts already");
    assert!(
        !policy.raise(&mut queue, 1, 9, 5) && !policy.raise(&mut queue, 1, 2, 0) && !policy.raise(&mut queue, 0, 0, 0)
    );
    assert!(policy.raise(&mut queue, 1, 9, 6) && policy.raise(&mut queue, 3, 4, 6), "longer, and higher but shorter");
    policy.forget(4);
    policy.lapse(&mut queue, 5);
    assert_eq!([0, 1, 2, 3, 4].map(|id| queue.table[id].heat()), [9, 9, 1, 4, 9]);
    policy.lapse(&mut queue, 6);
    assert_eq!([0, 1, 2, 3, 4].map(|id| queue.table[id].heat()), [9, 0, 1, 0, 9]);
    policy.lapse(&mut queue, u32::MAX);
    assert_eq!(bed.all(), [1, 3, 2, 0, 4]);
}

#[test]
fn deadlines_come_in_order_and_never_take_more_than_was_reserved() {
    let mut deadlines = Deadlines::default();
    let mut naive = BTreeSet::new();
    let mut random = Random(3);
    let mut entries = 0;
    for step in 0..30_000 {
        if step % 3_000 == 0 {
            entries = [100, 300, 40, 1, 16, 17][step / 3_000 % 6];
            assert!(deadlines.reserve(entries as usize).is_ok());
            deadlines.fit(entries as usize);
            naive.retain(|(_, id)| *id < entries);
        }
        let (id, before) = (random.below(entries), deadlines.bytes());
        match random.below(8) {
            0 => {
                let now = random.below(1_000);
                let due = naive.first().copied().filter(|(when, _)| *when <= now);
                assert_eq!(deadlines.pop(now), due.map(|(_, id)| id));
                due.map(|due| naive.remove(&due));
            }
            kind => {
                let when = if kind == 1 { 0 } else { 1 + random.below(1_000) };
                deadlines.set(id, when);
                naive.retain(|(_, other)| *other != id);
                if when > 0 {
                    naive.insert((when, id));
                }
            }
        }
        assert_eq!(deadlines.bytes(), before);
        let due = naive.iter().find(|(_, other)| *other == id).map_or(0, |(when, _)| *when);
        assert_eq!(deadlines.get(id), due);
    }
}

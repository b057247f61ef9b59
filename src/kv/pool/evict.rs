//! Which cached block goes next. A policy sees blocks come (published), be used, become idle and leave, and names a
//! victim: always one that nobody holds and on which no cached block builds, so tails go before what they continue.
//! Pure; the pool's lock guards it.

use crate::alloc::policy::{Fifo, Lfu, List, ListId, Lru, Policy, Priority, Queue, S3Fifo, Turn, list};
use crate::base::error::Result;
use crate::kv::block::Info;

pub(in crate::kv) use crate::alloc::policy::PRIORITIES;

/// The policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The one that was idle longest.
    Lru,
    /// The one used least, in powers of two; among equals the one idle longest.
    Lfu,
    /// The one published first.
    Fifo,
    /// Published blocks pass a small queue first, and stay if they are used meanwhile or return soon after they left.
    S3Fifo,
    /// The lowest priority; among equals the one idle longest. A priority lapses after its time to live.
    Priority,
}

/// The tag is a byte of its own, which every use of a block reads.
#[repr(u8)]
enum Order {
    Lru(Lru),
    Lfu(Lfu),
    Fifo(Fifo),
    S3Fifo(S3Fifo),
    Priority(Priority),
}

/// The same call of whichever policy it is.
macro_rules! each {
    ($order:expr, $policy:ident => $call:expr) => {
        match $order {
            Order::Lru($policy) => $call,
            Order::Lfu($policy) => $call,
            Order::Fifo($policy) => $call,
            Order::S3Fifo($policy) => $call,
            Order::Priority($policy) => $call,
        }
    };
}

/// Lists of the policy that has most; a block has four bits for the number of its list.
const LISTS: usize = Priority::LISTS as usize;
const _: () = assert!(LISTS <= 16);

/// A policy with its state.
pub(super) struct Evictor {
    order: Order,
    /// Those of the policy; the others stay empty.
    lists: [List; LISTS],
}

impl Evictor {
    pub fn new(kind: Kind, blocks: u32) -> Result<Self> {
        let order = match kind {
            Kind::Lru => Order::Lru(Lru),
            Kind::Lfu => Order::Lfu(Lfu),
            Kind::Fifo => Order::Fifo(Fifo),
            Kind::S3Fifo => Order::S3Fifo(S3Fifo::new(blocks as usize / 2 + 1)?),
            Kind::Priority => Order::Priority(Priority::default()),
        };
        let mut evictor = Self { order, lists: [List::EMPTY; LISTS] };
        evictor.reserve(blocks as usize)?;
        evictor.fit(blocks as usize);
        Ok(evictor)
    }

    /// Bytes that a policy takes for every block, beside what stands in [`Info`].
    pub const fn bytes_per_block(kind: Kind) -> u64 {
        match kind {
            Kind::Lru | Kind::Lfu | Kind::Fifo => 0,
            Kind::S3Fifo => 2,
            Kind::Priority => 5,
        }
    }

    /// Gets memory for the books of so many blocks.
    pub fn reserve(&mut self, blocks: usize) -> Result<()> {
        if let Order::Priority(policy) = &mut self.order { policy.reserve(blocks) } else { Ok(()) }
    }

    /// There are now so many blocks, for which there is memory.
    pub fn fit(&mut self, blocks: usize) {
        if let Order::Priority(policy) = &mut self.order {
            policy.fit(blocks);
        }
    }

    /// Bytes of memory that it takes, beside what stands in [`Info`].
    pub fn bytes(&self) -> usize {
        size_of::<Self>()
            + match &self.order {
                Order::Lru(_) | Order::Lfu(_) | Order::Fifo(_) => 0,
                Order::S3Fifo(policy) => policy.bytes(),
                Order::Priority(policy) => policy.bytes(),
            }
    }

    /// Whether all published blocks are listed, or only those that are idle, so that no search meets the others.
    const fn lists_held(&self) -> bool {
        matches!(self.order, Order::Fifo(_) | Order::S3Fifo(_))
    }

    #[inline]
    fn join(&mut self, info: &mut [Info], block: u32) {
        let entry = &mut info[block as usize];
        let name = entry.hash.word();
        let list = each!(&mut self.order, policy => policy.joins(entry, name));
        list::push(&mut self.lists, info, ListId(list), block);
    }

    /// A block was published; somebody holds it. `priority` and `expiry` count for [`Kind::Priority`] alone.
    pub fn published(&mut self, info: &mut [Info], block: u32, priority: u8, expiry: u32) {
        let entry = &mut info[block as usize];
        entry.heat = 0;
        if let Order::Priority(policy) = &mut self.order {
            policy.set(entry, block, priority, expiry);
        }
        if self.lists_held() {
            self.join(info, block);
        }
    }

    /// A holder was added to a published block.
    #[inline]
    pub fn used(&mut self, info: &mut [Info], block: u32) {
        let queue = &mut Queue { lists: &mut self.lists, table: info, first: 0 };
        match &mut self.order {
            Order::Fifo(_) => {}
            Order::S3Fifo(policy) => policy.touch(queue, block),
            Order::Lru(_) | Order::Priority(_) => list::remove(queue.lists, queue.table, block),
            Order::Lfu(policy) => {
                list::remove(queue.lists, queue.table, block);
                policy.touch(queue, block);
            }
        }
    }

    /// The last holder of a published block let go. A tail must become idle before what it continues.
    #[inline]
    pub fn idle(&mut self, info: &mut [Info], block: u32) {
        if !self.lists_held() {
            self.join(info, block);
        }
    }

    /// A block leaves the index.
    pub fn removed(&mut self, info: &mut [Info], block: u32) {
        list::remove(&mut self.lists, info, block);
        if let Order::Priority(policy) = &mut self.order {
            policy.forget(block);
        }
    }

    /// A published block gets at least this priority, for at least this long; what it continues must get the same. False
    /// if it has it already, or priorities do not count.
    pub fn raise(&mut self, info: &mut [Info], block: u32, priority: u8, expiry: u32) -> bool {
        let Order::Priority(policy) = &mut self.order else { return false };
        policy.raise(&mut Queue { lists: &mut self.lists, table: info, first: 0 }, block, priority, expiry)
    }

    /// The block that goes next; it stays listed until [`Evictor::removed`]. `None` if nothing can go.
    pub fn victim(&mut self, info: &mut [Info], now: u32) -> Option<u32> {
        let queue = &mut Queue { lists: &mut self.lists, table: info, first: 0 };
        if let Order::Priority(policy) = &mut self.order {
            policy.lapse(queue, now);
        }
        let mut looks = usize::MAX;
        let judge = |entry: &mut Info, _| match entry.is_evictable() {
            true => Turn::Goes(entry.hash.word()),
            false => Turn::Stays,
        };
        each!(&mut self.order, policy => policy.victim(queue, &mut looks, judge))
    }

    /// All listed blocks, roughly in the order in which they would go.
    pub fn in_order<'a>(&'a mut self, info: &'a mut [Info], now: u32) -> impl Iterator<Item = u32> + 'a {
        if let Order::Priority(policy) = &mut self.order {
            policy.lapse(&mut Queue { lists: &mut self.lists, table: info, first: 0 }, now);
        }
        let info: &'a [Info] = info;
        self.lists.iter().flat_map(|list| list.iter(info))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may")]
    use super::*;

    #[test]
    fn a_policy_takes_the_memory_that_is_counted_for_it() {
        for kind in [Kind::Lru, Kind::Lfu, Kind::Fifo, Kind::S3Fifo, Kind::Priority] {
            for blocks in [1, 1000, 131_072] {
                let bytes = Evictor::new(kind, blocks).unwrap().bytes() as u64;
                let counted = Evictor::bytes_per_block(kind) * u64::from(blocks) + 1024;
                assert!(bytes <= counted, "{kind:?} for {blocks} blocks: {bytes} bytes, not {counted}");
            }
        }
    }

    #[test]
    fn a_priority_lapses_also_behind_one_that_lasts() {
        let mut info = vec![Info::held_once(); 4];
        let mut evictor = Evictor::new(Kind::Priority, 4).unwrap();
        // Block 0 lasts, block 1 lapses at 5, block 2 has the lowest priority but one and lasts, block 3 is raised in time.
        for (block, priority, expiry) in [(0, 9, 0), (1, 9, 5), (2, 1, 0), (3, 9, 5)] {
            info[block as usize].set_published(true);
            evictor.published(&mut info, block, priority, expiry);
        }
        assert!(evictor.raise(&mut info, 3, 9, 50));
        for block in 0..4 {
            info[block as usize].refs = 0;
            evictor.idle(&mut info, block);
        }
        let mut next = |now| {
            let block = evictor.victim(&mut info, now).unwrap();
            evictor.removed(&mut info, block);
            info[block as usize].set_published(false);
            block
        };
        assert_eq!(next(4), 2);
        assert_eq!(next(5), 1, "its time is over, though it stood behind one whose is not");
        assert_eq!(next(49), 0, "the one that is idle longest");
        assert_eq!(next(50), 3);
    }
}

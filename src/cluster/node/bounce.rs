//! Host memory in the place of a store's that the CPU does not reach. What others put comes here, and is copied to the device before it is
//! published; what they read is copied from there before it leaves. The store does the copies. How much there is at a time is bounded; whoever
//! would have more is told to come again. `staged` has such memory for other reasons, and less of it.
#![allow(unsafe_code, reason = "its bytes are given to those who move them, by address")]

use super::storage::Plan;
use crate::base::crc::crc32c;
use crate::base::error::Result;
use crate::base::memory;
use crate::cluster::net::{ByNumber, Span};
use crate::store::copy::Slice;
use std::hash::Hash;
use std::ops::RangeInclusive;

/// Bytes for all values that are being put or read, besides one long one each way.
pub const MOST: u64 = 512 << 20;

/// Bytes of memory that is kept for the next value. What is shorter comes from memory that was touched anyway.
const SPARE: RangeInclusive<u64> = 128 << 10..=64 << 20;

/// Memory for a value, or for a part of it.
pub struct Bounce {
    memory: Vec<u8>,
    /// Its address, by which others write to it.
    first: usize,
    /// Which byte of the value its first one is.
    offset: u64,
}

impl Bounce {
    /// Memory for so many bytes from an offset on.
    pub fn new(offset: u64, bytes: u64) -> Result<Self> {
        Ok(Self::of(offset, memory::zeroed::<u8>(usize::try_from(bytes).unwrap_or(usize::MAX))?))
    }

    fn of(offset: u64, mut memory: Vec<u8>) -> Self {
        let first = memory.as_mut_ptr() as usize;
        Self { memory, first, offset }
    }

    /// All of it, for those who move bytes.
    #[must_use]
    pub fn span(&self) -> Span {
        // SAFETY: it stays until its plan or its pin ends, which is when nobody moves bytes of it any more.
        unsafe { Span::new(self.first, self.memory.len()) }
    }

    /// The same, for a store.
    #[must_use]
    pub fn slice(&self) -> Slice {
        // SAFETY: as above; and whoever reads into it from the disk keeps it until that has ended.
        unsafe { Slice::new(self.first as u64, self.memory.len() as u64) }
    }

    /// These bytes of the value, if they are here.
    #[must_use]
    pub fn part(&self, offset: u64, bytes: u64) -> Option<Span> {
        let size = |n: u64| usize::try_from(n).ok();
        let part = self.span().behind(size(offset.checked_sub(self.offset)?)?).up_to(size(bytes)?);
        (part.len() as u64 == bytes).then_some(part)
    }

    /// CRC32C of all of it.
    #[must_use]
    pub fn sum(&self) -> u32 {
        crc32c(&self.memory)
    }
}

/// Those of one kind.
pub struct Pool<K> {
    list: ByNumber<K, Bounce>,
    /// Bytes of those that are not long.
    used: u64,
    /// Bytes of the one that is; one at a time has memory of its own, so that nobody waits for the end of it, and it not for that of all others.
    long: Option<u64>,
    most: u64,
    /// Memory of one that has ended, for the next: the first touch of memory takes longer than the copies.
    spare: Vec<u8>,
}

/// Who wants memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum For {
    /// Somebody who waits for it.
    Caller,
    /// Nobody: it is a copy of what is elsewhere.
    Copy,
}

impl<K: Copy + Eq + Hash> Pool<K> {
    fn new(most: u64) -> Self {
        Self { list: ByNumber::default(), used: 0, long: None, most, spare: Vec::new() }
    }

    fn is_long(&self, bytes: u64) -> bool {
        bytes > self.most / 2
    }

    /// What all may have when one with so many bytes comes: the last eighth is for short ones, and copies leave half to the others.
    fn limit(&self, bytes: u64, wanted: For) -> u64 {
        match wanted {
            For::Copy => self.most / 2,
            For::Caller if bytes <= self.most / 256 => self.most,
            For::Caller => self.most - self.most / 8,
        }
    }

    /// Memory for these bytes of a value, and room to keep it. BUSY while others have too much.
    pub fn make(&mut self, offset: u64, bytes: u64, wanted: For) -> Result<Bounce> {
        memory::reserve_map(&mut self.list, 1)?;
        let full = match self.is_long(bytes) {
            true => self.long.is_some(),
            false => self.used.saturating_add(bytes) > self.limit(bytes, wanted),
        };
        if full && bytes > 0 {
            let used = self.used();
            crate::bail!(
                NMC_ERR_BUSY,
                "{used} bytes are on their way to the device or from it, and {bytes} are too many"
            );
        }
        // All of it is written to before anybody reads it, whatever it holds now.
        match usize::try_from(bytes) {
            Ok(bytes) if (bytes..=2 * bytes).contains(&self.spare.capacity()) && bytes > 0 => {
                let mut memory = std::mem::take(&mut self.spare);
                memory.resize(bytes, 0);
                Ok(Bounce::of(offset, memory))
            }
            _ => Bounce::new(offset, bytes),
        }
    }

    /// Keeps it.
    pub fn keep(&mut self, of: K, bounce: Bounce) {
        self.end(of);
        let bytes = bounce.memory.len() as u64;
        match self.is_long(bytes) {
            true => self.long = Some(bytes),
            false => self.used += bytes,
        }
        self.list.insert(of, bounce);
    }

    /// What is kept.
    #[must_use]
    pub fn get(&self, of: K) -> Option<&Bounce> {
        self.list.get(&of)
    }

    /// Nobody moves bytes of it any more.
    pub fn end(&mut self, of: K) {
        if let Some(bounce) = self.list.remove(&of) {
            let bytes = bounce.memory.len() as u64;
            match self.is_long(bytes) {
                true => self.long = None,
                false => self.used -= bytes,
            }
            if SPARE.contains(&bytes) {
                self.spare = bounce.memory;
            }
        }
    }

    /// Bytes of all of them.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used + self.long.unwrap_or(0)
    }
}

/// See the module.
pub struct Bounces {
    /// Of what is being put, until it is on the device.
    pub plans: Pool<Plan>,
    /// Of what is being read. Reads have memory of their own: readers who take their time keep no writers out.
    pub pins: Pool<u64>,
}

impl Bounces {
    /// None yet, and so many bytes at most.
    #[must_use]
    pub fn new(most: u64) -> Self {
        Self { plans: Pool::new(most / 2), pins: Pool::new(most / 2) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::storage::{Hold, Memory, Storage, Wanted};
    use super::super::{NodeStore, Pinned};
    use super::*;
    use crate::base::status::{NMC_ERR_BUSY, NMC_ERR_NO_MEMORY, NMC_ERR_NO_SPACE, NMC_NOT_READY, nmc_status_t};
    use crate::cluster::types::{Media, ObjectKey, PutId};
    use crate::cluster::wire::Metadata;
    use crate::store::Store;
    use crate::store::copy::Pieces;
    use crate::store::test_store::{config, world};

    fn status<T>(made: Result<T>) -> Option<nmc_status_t> {
        made.err().map(|error| error.status)
    }

    #[test]
    fn there_is_as_much_at_a_time_as_was_said_and_a_long_one_besides() {
        let mut pool = Pool::<u64>::new(1024);
        let make = |pool: &mut Pool<u64>, of, bytes, wanted| match pool.make(0, bytes, wanted) {
            Ok(bounce) => {
                pool.keep(of, bounce);
                None
            }
            Err(error) => Some(error.status),
        };
        assert_eq!(make(&mut pool, 1, 500, For::Caller), None);
        assert_eq!(make(&mut pool, 2, 400, For::Caller), Some(NMC_ERR_BUSY), "the last eighth is for short ones");
        assert_eq!(make(&mut pool, 2, 13, For::Copy), Some(NMC_ERR_BUSY), "copies leave half to others");
        assert_eq!(make(&mut pool, 2, 396, For::Caller), None);
        for of in 3..35 {
            assert_eq!(make(&mut pool, of, 4, For::Caller), None);
        }
        assert_eq!((pool.used(), make(&mut pool, 35, 1, For::Caller)), (1024, Some(NMC_ERR_BUSY)));
        assert_eq!(make(&mut pool, 36, 0, For::Caller), None, "what is empty always has room");
        // A long one comes beside all that, and one at a time; others do not wait for it.
        assert_eq!(make(&mut pool, 40, 1 << 20, For::Caller), None);
        assert_eq!(make(&mut pool, 41, 513, For::Caller), Some(NMC_ERR_BUSY));
        assert_eq!(pool.used(), 1024 + (1 << 20));
        pool.end(1);
        pool.end(1);
        assert_eq!(make(&mut pool, 1, 300, For::Caller), None);
        pool.end(40);
        assert_eq!(make(&mut pool, 41, 513, For::Caller), None);
        let other = Bounce::new(0, 10).unwrap();
        pool.keep(41, other);
        assert_eq!(pool.used(), 1024 - 200 + 10, "in the place of the former one");
        (0..50).for_each(|of| pool.end(of));
        // What is about as long as a former one has its memory.
        let again = pool.make(0, 600_000, For::Caller).unwrap();
        assert_eq!((again.memory.len(), again.memory.capacity(), pool.spare.capacity()), (600_000, 1 << 20, 0));
        assert_eq!(
            status(pool.make(0, u64::MAX / 2, For::Caller)),
            Some(NMC_ERR_NO_MEMORY),
            "what nobody has is refused"
        );
        assert_eq!(pool.used(), 0);
    }

    #[test]
    fn a_part_is_given_where_all_of_it_is() {
        let bounce = Bounce::new(10, 20).unwrap();
        let at =
            |offset, bytes| bounce.part(offset, bytes).map(|span| (span.first() - bounce.span().first(), span.len()));
        assert_eq!((at(10, 20), at(12, 3), at(30, 0)), (Some((0, 20)), Some((2, 3)), Some((20, 0))));
        assert_eq!((at(9, 2), at(29, 2), at(30, 1), at(u64::MAX, 1), at(10, u64::MAX)), (None, None, None, None, None));
    }

    fn bed(checksums: bool, most: u64) -> (Store, NodeStore) {
        let store = Store::embedded(&world(), &config(checksums)).unwrap();
        let node = NodeStore::new(&store).unwrap().by_way_of_host(most);
        (store, node)
    }

    fn key(name: &str) -> ObjectKey {
        ObjectKey::new(b"", name.as_bytes()).unwrap()
    }

    fn value(seed: usize, bytes: usize) -> Vec<u8> {
        (0..bytes).map(|i| u8::try_from((i * 7 + seed * 13 + i / 256) % 251 + 1).unwrap()).collect()
    }

    fn open(node: &mut NodeStore, put: u64, name: &str, length: usize) -> Result<Plan> {
        let (key, metadata) = (key(name), Metadata::default());
        let (put, length) = (PutId::clustered(3, put), length as u64);
        node.open(&Wanted {
            put,
            key: &key,
            length,
            segment: 0,
            exact: true,
            retain: 0,
            metadata: &metadata,
            is_copy: false,
        })
    }

    /// What others send.
    fn receive(node: &NodeStore, plan: Plan, value: &[u8]) {
        let spans = node.plan_spans(plan).unwrap();
        assert_eq!(spans.iter().map(Span::len).sum::<usize>(), value.len());
        spans[0].store(value);
    }

    fn held(node: &mut NodeStore, plan: Plan, name: &str) -> Pinned {
        match node.pin(plan, &key(name), PutId(0)).unwrap() {
            Hold::Held(pinned) => pinned,
            Hold::Coming(_) => panic!("there is no disk"),
        }
    }

    /// What others get.
    fn sent(node: &mut NodeStore, pinned: &Pinned, offset: usize, bytes: usize) -> Result<Vec<u8>> {
        let (offset, bytes) = (offset as u64, bytes as u64);
        node.ready(pinned.pin, offset, bytes)?;
        let mut out = Vec::new();
        node.pin_spans(pinned.pin, offset, bytes)?.list()?.iter().for_each(|span| span.append_to(&mut out));
        Ok(out)
    }

    /// What programs of the node read.
    fn read_here(store: &Store, name: &str, bytes: usize) -> Vec<u8> {
        let mut out = vec![0; bytes];
        let slice = [Slice::of_test_mut(&mut out)];
        store.get_into(name.as_bytes(), &Pieces::Slices(&slice)).unwrap();
        out
    }

    /// Whether a value that others put is what they get, and what programs of the node read. In `broken` it is published without having been
    /// copied to the heap.
    fn is_whole(bytes: usize, broken: bool) -> bool {
        let (store, mut node) = bed(false, 1 << 20);
        let value = value(bytes, bytes);
        let plan = open(&mut node, 1, "k", bytes).unwrap();
        receive(&node, plan, &value);
        assert_eq!(node.checksum(plan).unwrap(), crc32c(&value));
        assert_eq!(node.bounced(), (bytes as u64, 0));
        if broken {
            node.bounces.as_mut().unwrap().plans.end(plan);
        }
        node.commit(plan).unwrap().unwrap();
        assert_eq!(node.bounced(), (0, 0), "it is on the device");
        let pinned = held(&mut node, plan, "k");
        let got = sent(&mut node, &pinned, 0, bytes).unwrap();
        let half = bytes.div_ceil(2);
        let part = sent(&mut node, &pinned, bytes / 3, half).unwrap();
        assert_eq!(node.bounced(), (0, half as u64));
        node.unpin(pinned.pin);
        assert_eq!(node.bounced(), (0, 0));
        got == value && part == value[bytes / 3..bytes / 3 + half] && read_here(&store, "k", bytes) == value
    }

    #[test]
    fn what_goes_by_way_of_host_memory_is_the_same_on_the_other_side() {
        for bytes in [0, 1, 4095, 4096, 4097, 40_000] {
            assert!(is_whole(bytes, false), "{bytes} bytes");
            assert!(bytes == 0 || !is_whole(bytes, true), "control: {bytes} bytes that were not copied");
        }
    }

    #[test]
    fn a_plan_that_ends_in_any_way_leaves_no_memory_and_is_copied_once() {
        let (store, mut node) = bed(true, 1 << 20);
        assert_eq!(node.segments(|n| n.to_string()).unwrap()[0].media, Media::Vram);
        assert!(!node.regions().unwrap().is_empty(), "others may write to it");
        let plan = open(&mut node, 1, "given up", 5000).unwrap();
        node.abandon(plan);
        assert_eq!(node.bounced(), (0, 0));
        assert!(node.plan_spans(plan).is_err() && node.checksum(plan).is_err());
        // More than a heap has: the store says so.
        assert_eq!(status(open(&mut node, 2, "large", 1 << 30)), Some(NMC_ERR_NO_SPACE));
        assert_eq!(status(open(&mut node, 3, "larger", usize::MAX / 2)), Some(NMC_ERR_NO_SPACE));
        assert_eq!(node.bounced(), (0, 0));
        // One that was removed while its bytes came.
        let plan = open(&mut node, 4, "removed", 5000).unwrap();
        receive(&node, plan, &value(4, 5000));
        node.drop_key(&key("removed"));
        assert!(node.commit(plan).is_err());
        node.abandon(plan);
        assert_eq!(node.bounced(), (0, 0));
        // A commit that is repeated, as where nobody knows how the first one ended, writes nothing: its pages may be another's.
        let plan = open(&mut node, 5, "k", 5000).unwrap();
        receive(&node, plan, &value(5, 5000));
        let opened = *node.opened(plan).unwrap();
        node.land(plan, &opened).unwrap();
        assert_eq!(node.bounced(), (0, 0));
        assert!(node.plan_spans(plan).is_err(), "no byte comes any more");
        node.land(plan, &opened).unwrap();
        node.commit(plan).unwrap();
        assert_eq!(read_here(&store, "k", 5000), value(5, 5000), "with its checksums");
        // The node ends with bytes under way.
        open(&mut node, 6, "under way", 5000).unwrap();
        let pinned = held(&mut node, plan, "k");
        sent(&mut node, &pinned, 0, 5000).unwrap();
        drop(node);
        assert_eq!(read_here(&store, "k", 5000), value(5, 5000));
    }

    #[test]
    fn who_would_have_too_much_is_told_to_come_again_and_nothing_was_done_for_it() {
        let (store, mut node) = bed(true, 40_000);
        let first = open(&mut node, 1, "a", 9000).unwrap();
        let used = node.used();
        assert_eq!(status(open(&mut node, 2, "b", 9000)), Some(NMC_NOT_READY));
        assert_eq!(node.used(), used, "not a page was taken");
        receive(&node, first, &value(1, 9000));
        node.commit(first).unwrap();
        let second = open(&mut node, 2, "b", 9000).unwrap();
        receive(&node, second, &value(2, 9000));
        node.commit(second).unwrap();
        // What is read does not wait for what is put, nor the other way round.
        let third = open(&mut node, 3, "c", 9000).unwrap();
        let (a, b) = (held(&mut node, first, "a"), held(&mut node, second, "b"));
        assert_eq!(sent(&mut node, &a, 0, 9000).unwrap(), value(1, 9000));
        assert_eq!(status(sent(&mut node, &b, 0, 9000)), Some(NMC_ERR_BUSY));
        assert_eq!(sent(&mut node, &b, 5, 2000).unwrap(), value(2, 9000)[5..2005]);
        assert!(node.pin_spans(b.pin, 0, 9000).is_err(), "only what is ready is sent");
        node.unpin(a.pin);
        node.unpin(b.pin);
        let b = held(&mut node, second, "b");
        assert_eq!(sent(&mut node, &b, 0, 9000).unwrap(), value(2, 9000));
        node.unpin(b.pin);
        node.abandon(third);
        assert_eq!(node.bounced(), (0, 0));
        assert_eq!(read_here(&store, "b", 9000), value(2, 9000));
    }
}

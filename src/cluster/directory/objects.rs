//! Where every key is: 1,024 shards of objects, each with its replicas. A shard is a table of its own, so that no call ever
//! moves more than one of them when it grows. Nothing here knows what a replica means; places of objects are stable for as
//! long as the object is there, so that a node's table can refer to them.

use crate::base::error::Result;
use crate::base::memory;
use crate::cluster::types::PutId;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bits of a place that choose the shard.
const SHARD_BITS: u32 = 10;
/// Bits of a place that choose the object in its shard.
const SLOT_BITS: u32 = 32 - SHARD_BITS;
/// No object.
const NONE: u32 = u32::MAX;

/// Where an object is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct At(pub u32);

impl At {
    fn new(shard: usize, slot: u32) -> Self {
        Self(u32::try_from(shard).unwrap_or(0) << SLOT_BITS | slot)
    }

    fn shard(self) -> usize {
        (self.0 >> SLOT_BITS) as usize
    }

    fn slot(self) -> usize {
        (self.0 & ((1 << SLOT_BITS) - 1)) as usize
    }
}

/// What may be done with a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// Its put has not ended: nobody is told of it.
    Closed,
    /// It may be read.
    Open,
    /// A copy that may come, or may be there.
    Announced,
    /// Its owner is to drop it, and has not said yet that it did.
    Dropped,
}

/// A replica as the directory keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The put that it came from.
    pub put: PutId,
    /// Bytes of the value.
    pub length: u64,
    /// Epoch of the index.
    pub epoch: u64,
    /// Index at the owner.
    pub index: u32,
    /// Whose it is: place of the owner's record.
    pub owner: u16,
    /// Number of the owner's segment.
    pub segment: u8,
    /// What may be done with it.
    pub gate: Gate,
}

#[derive(Debug)]
struct Object {
    /// Number of the namespace, then the key.
    key: Box<[u8]>,
    /// Bits of the hash that the shard does not use.
    hash: u32,
    /// The next object in the same bucket, or in the list of free ones.
    next: u32,
    /// Owners that its last put should have.
    wanted: u8,
    replicas: Vec<Held>,
}

#[derive(Debug)]
struct Shard {
    /// First object of each bucket; as many as a power of two, or none.
    buckets: Vec<u32>,
    objects: Vec<Object>,
    free: u32,
    used: u32,
}

/// See the module.
#[derive(Debug)]
pub struct Objects {
    shards: Vec<Shard>,
    /// How many there are of each namespace that has any, by its number.
    spaces: Vec<(u32, u32)>,
    seed: u64,
}

impl Objects {
    /// None yet. Whoever knows the seed can make keys that are slow to find.
    pub fn new(seed: u64) -> Result<Self> {
        let empty = || Shard { buckets: Vec::new(), objects: Vec::new(), free: NONE, used: 0 };
        Ok(Self { shards: memory::vec_with(1 << SHARD_BITS, |_| empty())?, spaces: Vec::new(), seed })
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.used as usize).sum()
    }

    fn hash(&self, space: u32, key: &[u8]) -> (usize, u32) {
        let hash = xxh3_64_with_seed(key, self.seed ^ u64::from(space).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let low = u32::try_from(hash & u64::from(u32::MAX)).unwrap_or(0);
        (usize::try_from(hash >> (64 - SHARD_BITS)).unwrap_or(0), low)
    }

    /// The object with this key.
    #[must_use]
    pub fn find(&self, space: u32, key: &[u8]) -> Option<At> {
        let (number, hash) = self.hash(space, key);
        let shard = self.shards.get(number)?;
        shard.find(hash, space, key).map(|slot| At::new(number, slot))
    }

    /// Reads what lookups of these keys will read. In steps, each for all of them: so the processor has many reads under way, where
    /// one lookup after the other waits for memory several times.
    pub fn warm<'a>(&self, keys: impl Iterator<Item = (u32, &'a [u8])>) -> Result<()> {
        let hashes = memory::collect(keys.map(|(space, key)| self.hash(space, key)))?;
        let first = |(number, hash): &(usize, u32)| {
            let shard = self.shards.get(*number)?;
            shard.buckets.get(shard.bucket(*hash)).map(|slot| (shard, *slot, *hash))
        };
        let slots = memory::collect(hashes.iter().filter_map(first))?;
        let objects = memory::collect(slots.iter().filter_map(|(shard, slot, hash)| shard.with_hash(*slot, *hash)))?;
        let read = |object: &Object| {
            let key = object.key.first().copied().map_or(0, u64::from);
            key ^ object.replicas.first().map_or(0, |held| held.epoch)
        };
        std::hint::black_box(objects.iter().fold(0, |all, object| all ^ read(object)));
        Ok(())
    }

    /// The object with this key, which is made if there is none.
    pub fn enter(&mut self, space: u32, key: &[u8]) -> Result<At> {
        let (number, hash) = self.hash(space, key);
        let Some(shard) = self.shards.get_mut(number) else {
            crate::bail!(NMC_ERR_INTERNAL, "there is no shard {number}");
        };
        if let Some(slot) = shard.find(hash, space, key) {
            return Ok(At::new(number, slot));
        }
        memory::reserve(&mut self.spaces, 1)?;
        let slot = shard.insert(hash, space, key)?;
        match self.spaces.binary_search_by_key(&space, |(of, _)| *of) {
            Ok(at) => self.spaces[at].1 += 1,
            Err(at) => self.spaces.insert(at, (space, 1)),
        }
        Ok(At::new(number, slot))
    }

    /// Whether there is any of a namespace.
    #[must_use]
    pub fn has_any_of(&self, space: u32) -> bool {
        self.spaces.binary_search_by_key(&space, |(of, _)| *of).is_ok()
    }

    /// An object ends.
    fn remove(&mut self, at: At) {
        let Some((space, _)) = self.key(at) else { return };
        if let Ok(at) = self.spaces.binary_search_by_key(&space, |(of, _)| *of) {
            self.spaces[at].1 -= 1;
            if self.spaces[at].1 == 0 {
                self.spaces.remove(at);
            }
        }
        if let Some(shard) = self.shards.get_mut(at.shard()) {
            shard.remove(at.slot());
        }
    }

    fn object(&self, at: At) -> Option<&Object> {
        self.shards.get(at.shard())?.objects.get(at.slot())
    }

    /// Replicas of an object.
    #[must_use]
    pub fn replicas(&self, at: At) -> &[Held] {
        self.object(at).map_or(&[], |object| &object.replicas)
    }

    /// The same, to be changed.
    pub fn replicas_mut(&mut self, at: At) -> &mut [Held] {
        let object = self.shards.get_mut(at.shard()).and_then(|shard| shard.objects.get_mut(at.slot()));
        object.map_or(&mut [], |object| &mut object.replicas)
    }

    /// How many owners its last put should have.
    #[must_use]
    pub fn wanted(&self, at: At) -> usize {
        self.object(at).map_or(0, |object| object.wanted.into())
    }

    /// It should have so many.
    pub fn want(&mut self, at: At, owners: usize) {
        let object = self.shards.get_mut(at.shard()).and_then(|shard| shard.objects.get_mut(at.slot()));
        if let Some(object) = object {
            object.wanted = u8::try_from(owners).unwrap_or(u8::MAX);
        }
    }

    /// How many owners have something of a put that may be read.
    #[must_use]
    pub fn owners_of(&self, at: At, put: PutId) -> usize {
        self.owners_among(at, put, |_| true)
    }

    /// The same of these owners alone.
    #[must_use]
    pub fn owners_among(&self, at: At, put: PutId, counts: impl Fn(u16) -> bool) -> usize {
        let open = |held: &Held| held.put == put && held.gate == Gate::Open && counts(held.owner);
        let all = self.replicas(at);
        let again = |n: usize| all[..n].iter().any(|held| open(held) && held.owner == all[n].owner);
        (0..all.len()).filter(|n| open(&all[*n]) && !again(*n)).count()
    }

    /// Number of the namespace and key of an object.
    #[must_use]
    pub fn key(&self, at: At) -> Option<(u32, &[u8])> {
        let (space, key) = self.object(at)?.key.split_first_chunk::<4>()?;
        Some((u32::from_le_bytes(*space), key))
    }

    /// One replica more.
    pub fn add(&mut self, at: At, held: Held) -> Result<()> {
        let object = self.shards.get_mut(at.shard()).and_then(|shard| shard.objects.get_mut(at.slot()));
        let Some(object) = object else {
            crate::bail!(NMC_ERR_INTERNAL, "there is no object at {:#x}", at.0);
        };
        if object.replicas.is_empty() {
            // Most have one: no room for more is made ahead.
            object.replicas = memory::with_capacity(1)?;
        }
        memory::push(&mut object.replicas, held)
    }

    /// Takes away the replicas that `gone` says, telling each. An object without any ends.
    pub fn take(&mut self, at: At, mut gone: impl FnMut(&Held) -> bool) -> Result<Vec<Held>> {
        let Some(shard) = self.shards.get_mut(at.shard()) else { return Ok(Vec::new()) };
        let Some(object) = shard.objects.get_mut(at.slot()) else { return Ok(Vec::new()) };
        let mut taken = memory::with_capacity(object.replicas.len())?;
        object.replicas.retain(|held| {
            let goes = gone(held);
            if goes {
                taken.push(*held);
            }
            !goes
        });
        if object.replicas.is_empty() {
            self.remove(at);
        }
        Ok(taken)
    }

    /// Takes away replicas of which nobody needs to know what they were.
    pub fn forget(&mut self, at: At, gone: impl Fn(&Held) -> bool) {
        let Some(shard) = self.shards.get_mut(at.shard()) else { return };
        let Some(object) = shard.objects.get_mut(at.slot()) else { return };
        object.replicas.retain(|held| !gone(held));
        if object.replicas.is_empty() {
            self.remove(at);
        }
    }

    /// The object, if it has no replica, ends: it was entered for one that then did not come.
    pub fn tidy(&mut self, at: At) {
        if self.replicas(at).is_empty() {
            self.remove(at);
        }
    }

    /// Objects of one shard, for whoever goes through all of them bit by bit.
    pub fn of_shard(&self, shard: usize) -> impl Iterator<Item = At> {
        let objects = self.shards.get(shard).map_or(&[][..], |shard| &shard.objects);
        let slots = (0u32..).zip(objects);
        slots.filter(|(_, object)| !object.replicas.is_empty()).map(move |(slot, _)| At::new(shard, slot))
    }

    /// Places of objects from one on, through all shards; also those where nothing is any more, which take time too.
    pub fn from(&self, place: u32) -> impl Iterator<Item = At> {
        let first = At(place);
        self.shards.iter().enumerate().skip(first.shard()).flat_map(move |(number, shard)| {
            let skipped = if number == first.shard() { first.slot() } else { 0 };
            (0u32..).take(shard.objects.len()).skip(skipped).map(move |slot| At::new(number, slot))
        })
    }

    /// How many shards there are.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.shards.len()
    }
}

impl Object {
    fn is(&self, hash: u32, space: u32, key: &[u8]) -> bool {
        self.hash == hash && self.key.split_first_chunk::<4>() == Some((&space.to_le_bytes(), key))
    }
}

impl Shard {
    fn bucket(&self, hash: u32) -> usize {
        hash as usize & self.buckets.len().wrapping_sub(1)
    }

    fn find(&self, hash: u32, space: u32, key: &[u8]) -> Option<u32> {
        let mut slot = *self.buckets.get(self.bucket(hash))?;
        while let Some(object) = self.objects.get(slot as usize) {
            if object.is(hash, space, key) {
                return Some(slot);
            }
            slot = object.next;
        }
        None
    }

    /// The first object with this hash, from one of its bucket on.
    fn with_hash(&self, slot: u32, hash: u32) -> Option<&Object> {
        let mut object = self.objects.get(slot as usize)?;
        while object.hash != hash {
            object = self.objects.get(object.next as usize)?;
        }
        Some(object)
    }

    fn insert(&mut self, hash: u32, space: u32, key: &[u8]) -> Result<u32> {
        if self.used as usize >= self.buckets.len() {
            self.grow()?;
        }
        let mut bytes = memory::with_capacity(4 + key.len())?;
        bytes.extend_from_slice(&space.to_le_bytes());
        bytes.extend_from_slice(key);
        let object = Object { key: bytes.into_boxed_slice(), hash, next: NONE, wanted: 0, replicas: Vec::new() };
        let slot = match self.objects.get_mut(self.free as usize) {
            Some(place) => {
                let slot = self.free;
                self.free = place.next;
                *place = object;
                slot
            }
            None => {
                let slot = self.objects.len();
                if slot >= 1 << SLOT_BITS {
                    crate::bail!(NMC_ERR_LIMIT, "a shard of the directory has {slot} objects, the most possible");
                }
                // By an eighth: a thousand shards that double would leave much unused.
                if self.objects.capacity() == slot {
                    let more = (slot / 8).max(4);
                    self.objects.try_reserve_exact(more).map_err(|_| memory::refused::<Object>(slot + more))?;
                }
                self.objects.push(object);
                u32::try_from(slot).unwrap_or(NONE)
            }
        };
        let bucket = self.bucket(hash);
        if let (Some(first), Some(object)) = (self.buckets.get_mut(bucket), self.objects.get_mut(slot as usize)) {
            object.next = std::mem::replace(first, slot);
        }
        self.used += 1;
        Ok(slot)
    }

    fn grow(&mut self) -> Result<()> {
        let mut buckets = memory::vec_of((self.buckets.len() * 2).max(8), NONE)?;
        let mask = buckets.len() - 1;
        for first in std::mem::take(&mut self.buckets) {
            let mut slot = first;
            while let Some(object) = self.objects.get_mut(slot as usize) {
                let next = object.next;
                if let Some(bucket) = buckets.get_mut(object.hash as usize & mask) {
                    object.next = std::mem::replace(bucket, slot);
                }
                slot = next;
            }
        }
        self.buckets = buckets;
        Ok(())
    }

    /// Takes an object out of its bucket.
    fn remove(&mut self, slot: usize) {
        let number = u32::try_from(slot).unwrap_or(NONE);
        let Some(object) = self.objects.get(slot) else { return };
        let (bucket, next) = (self.bucket(object.hash), object.next);
        let Some(first) = self.buckets.get_mut(bucket) else { return };
        if *first == number {
            *first = next;
        } else {
            let mut before = *first;
            while let Some(object) = self.objects.get_mut(before as usize) {
                if object.next == number {
                    object.next = next;
                    break;
                }
                before = object.next;
            }
        }
        if let Some(object) = self.objects.get_mut(slot) {
            *object = Object { key: Box::default(), hash: 0, next: self.free, wanted: 0, replicas: Vec::new() };
            self.free = number;
            self.used -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::types::Chance;
    use std::collections::BTreeMap;

    fn held(owner: u16, index: u32) -> Held {
        Held { put: PutId(u64::from(index)), length: 1, epoch: 1, index, owner, segment: 0, gate: Gate::Open }
    }

    #[test]
    fn objects_are_found_where_they_were_put_whatever_comes_and_goes() {
        let mut objects = Objects::new(3).unwrap();
        let mut model: BTreeMap<(u32, Vec<u8>), Vec<Held>> = BTreeMap::new();
        let mut chance = Chance::new(9);
        for step in 0..60_000u32 {
            let space = u32::try_from(chance.below(3)).unwrap();
            let key = chance.below(5000).to_le_bytes().to_vec();
            match objects.find(space, &key) {
                Some(at) if chance.below(2) == 0 => {
                    let first = objects.replicas(at)[0];
                    let taken = objects.take(at, |held| *held == first).unwrap();
                    assert_eq!(taken, [first]);
                    let list = model.get_mut(&(space, key.clone())).unwrap();
                    list.remove(0);
                    if list.is_empty() {
                        model.remove(&(space, key));
                    }
                }
                found => {
                    assert_eq!(found.is_some(), model.contains_key(&(space, key.clone())));
                    let at = objects.enter(space, &key).unwrap();
                    assert!(found.is_none_or(|found| found == at));
                    objects.add(at, held(1, step)).unwrap();
                    model.entry((space, key)).or_default().push(held(1, step));
                }
            }
        }
        assert_eq!(objects.len(), model.len());
        for ((space, key), list) in &model {
            let at = objects.find(*space, key).unwrap();
            assert_eq!(objects.replicas(at), list);
            assert_eq!(objects.key(at), Some((*space, &key[..])));
        }
        let listed: usize = (0..objects.shards()).map(|shard| objects.of_shard(shard).count()).sum();
        assert_eq!(listed, model.len());
        let of = |space| u32::try_from(model.keys().filter(|(of, _)| *of == space).count()).unwrap();
        assert_eq!(objects.spaces, [(0, of(0)), (1, of(1)), (2, of(2))]);
        for (space, key) in model.keys().filter(|(space, _)| *space == 1) {
            let at = objects.find(*space, key).unwrap();
            objects.take(at, |_| true).unwrap();
        }
        assert!(objects.has_any_of(0) && !objects.has_any_of(1) && objects.has_any_of(2));
    }

    #[test]
    fn whoever_goes_through_all_places_sees_those_where_nothing_is_any_more() {
        let mut objects = Objects::new(3).unwrap();
        let keys: Vec<[u8; 4]> = (0..5000u32).map(u32::to_le_bytes).collect();
        for key in &keys {
            let at = objects.enter(0, key).unwrap();
            objects.add(at, held(1, 1)).unwrap();
        }
        let all: Vec<At> = objects.from(0).collect();
        assert_eq!(all.len(), keys.len());
        for key in &keys {
            let at = objects.find(0, key).unwrap();
            objects.forget(at, |held| held.index == 1);
        }
        // They cost time, so they count.
        assert!(objects.from(0).eq(all.iter().copied()));
        assert!(objects.from(all[1234].0).eq(all[1234..].iter().copied()));
        assert!(all.iter().all(|at| objects.key(*at).is_none()));
    }

    #[test]
    fn an_object_that_was_entered_for_nothing_can_be_tidied_away() {
        let mut objects = Objects::new(3).unwrap();
        let at = objects.enter(0, b"k").unwrap();
        objects.tidy(at);
        assert!(objects.len() == 0 && objects.find(0, b"k").is_none());
        let at = objects.enter(0, b"k").unwrap();
        objects.add(at, held(1, 1)).unwrap();
        objects.tidy(at);
        objects.forget(at, |held| held.index == 2);
        assert_eq!(objects.len(), 1);
        objects.forget(at, |held| held.index == 1);
        assert_eq!(objects.len(), 0);
    }
}

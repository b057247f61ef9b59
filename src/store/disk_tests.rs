//! The store's side of a disk, with a disk that is none: what clients look for, what the master notes, and what it refuses.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

mod listing;
mod promote;
mod through;

use crate::base::Deadline;
use crate::base::error::{Error, Result};
use crate::base::random::Random;
use crate::base::status::{
    NMC_ERR_BUSY, NMC_ERR_CORRUPT, NMC_ERR_EXISTS, NMC_ERR_IO, NMC_ERR_NOT_FOUND, NMC_ERR_STALE, NMC_ERR_UNAVAILABLE,
    NMC_ERR_UNSUPPORTED, NMC_NOT_READY,
};
use crate::layout::disk::{Entry, Space, Spot, fingerprint};
use crate::store::client::Store;
use crate::store::config::{Config, Policy};
use crate::store::copy::{Pieces, Slice};
use crate::store::disk::{
    DiskAccess, DiskContent, DiskEntry, DiskGrant, DiskInfo, DiskMap, DiskOwner, DiskRead, DiskReader, DiskRecord,
    DiskSeat, Mark, NextOnDisk, OnDisk, PLACE_SHIFT, Scope, SpaceName, Stored, Target, ToWrite, Told, Wanted,
};
use crate::store::master::Master;
use crate::store::serve::MasterSlot;
use crate::store::sys;
use crate::store::test_store::{put as put_with, world};
use crate::store::types::{Keep, Look, Presence, PutOptions, Retain, Sums};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Weak};
use std::time::Duration;

const SECRET: [u8; 32] = [3; 32];
const DEFAULT: Space = Space { number: 0, generation: 0 };

/// Key, epoch and put of a record.
type Record = (Vec<u8>, u64, u64);

/// What a call gives, by its number.
type Answer = Box<dyn FnMut(u32) -> Result<[u64; 3]> + Send>;

/// Values by where they lie, and what is done with them.
#[derive(Default)]
struct Disk {
    /// Its owner was killed, and the next one is not there yet.
    is_away: AtomicBool,
    /// What the lists of buckets say, by bucket and block: key, epoch and put.
    records: Mutex<BTreeMap<(u64, u64), Record>>,
    values: Mutex<HashMap<Spot, Vec<u8>>>,
    reads: AtomicU64,
    /// Where to values were read without a copy.
    straight: Mutex<Vec<u64>>,
    /// So many reads find that their entry has ended.
    ended: AtomicU64,
    /// Then the key is in memory again.
    returns_to: Mutex<Option<Store>>,
    /// What happens when the next value was read, before its reader goes on, or before records are listed.
    then: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    /// What calls give.
    answer: Mutex<Option<Answer>>,
    marks: Mutex<Vec<Mark>>,
    settled: AtomicU64,
    fails: AtomicU64,
    wakes: AtomicU64,
    slot: Mutex<Weak<MasterSlot>>,
    map: Mutex<Option<Arc<DiskMap>>>,
    this: Mutex<Weak<Disk>>,
}

impl DiskReader for Disk {
    fn read(&self, _: &DiskMap, reads: &mut [DiskRead<'_>]) {
        for read in reads {
            self.reads.fetch_add(1, SeqCst);
            if self.ended.load(SeqCst) > 0 {
                self.ended.fetch_sub(1, SeqCst);
                if let Some(store) = self.returns_to.lock().take() {
                    replace(&store, read.key, b"in memory again..");
                }
                read.outcome = Ok(false);
                continue;
            }
            let Some(value) = self.values.lock().get(&read.entry.entry.spot).cloned() else {
                read.outcome = Err(Error::new(NMC_ERR_NOT_FOUND, "the file is gone"));
                continue;
            };
            let from = usize::try_from(read.offset).unwrap();
            let mut rest = &value[from..from + usize::try_from(read.bytes).unwrap()];
            match &mut read.to {
                Target::Host(pieces) => pieces
                    .each(|address, bytes| {
                        let (now, later) = rest.split_at(usize::try_from(bytes).unwrap());
                        rest = later;
                        self.straight.lock().push(address);
                        super::copy::tests::copy_to(now, address);
                        Ok(())
                    })
                    .unwrap(),
                Target::Take(take) => take(read.offset, rest).unwrap(),
            }
            read.outcome = Ok(true);
            let then = self.then.lock().take();
            if let Some(then) = then {
                then();
            }
        }
    }

    fn infos(&self, _: &DiskMap, wanted: &[(DiskEntry, &[u8])]) -> Result<Vec<Result<Option<DiskInfo>>>> {
        Ok(wanted.iter().map(|_| Ok(Some(DiskInfo { metadata: b"meta".to_vec(), class: (0, 2) }))).collect())
    }

    fn key_of(&self, _: &DiskMap, _: &DiskEntry) -> Result<Option<(Vec<u8>, Space)>> {
        Ok(None)
    }

    fn next(&self, map: &DiskMap, _: Space, at: u64, wanted: &mut Wanted<'_>) -> Result<NextOnDisk> {
        let then = self.then.lock().take();
        if let Some(then) = then {
            then();
        }
        let records = self.records.lock().clone();
        for ((bucket, block), (key, epoch, put)) in records.range((at >> PLACE_SHIFT, at & ((1 << PLACE_SHIFT) - 1))..)
        {
            let resident =
                map.probe(0, key)?.is_some_and(|found| found.entry.spot == Spot { bucket: *bucket, block: *block });
            if wanted(&DiskRecord { key, epoch: *epoch, put: *put, resident })? {
                return Ok((Some((key.clone(), 1)), (bucket << PLACE_SHIFT) + block + 1));
            }
        }
        let end = records.keys().map(|(bucket, _)| bucket + 1).max().unwrap_or(0);
        Ok((None, at.max(end << PLACE_SHIFT)))
    }
}

impl DiskOwner for Disk {
    fn note(&self, marks: &[Mark]) {
        self.marks.lock().extend_from_slice(marks);
    }

    fn settle(&self, mine: bool) -> Result<()> {
        // Would hang if the master's lock were held.
        if let Some(slot) = self.slot.lock().upgrade() {
            let _ = slot.store_id();
        }
        self.settled.fetch_add(1, SeqCst);
        match self.fails.load(SeqCst) {
            0 => Ok(()),
            _ if !mine => Ok(()),
            _ => Err(Error::new(NMC_ERR_IO, "the disk refuses")),
        }
    }

    fn trouble(&self) -> Option<Error> {
        (self.fails.load(SeqCst) > 0).then(|| Error::new(NMC_ERR_IO, "the disk refuses"))
    }

    fn wake(&self) {
        self.wakes.fetch_add(1, SeqCst);
    }

    fn grant(&self) -> Result<DiskGrant> {
        Err(Error::new(NMC_ERR_UNSUPPORTED, "none"))
    }

    fn reader(&self) -> (Arc<DiskMap>, Arc<dyn DiskReader>) {
        let this = self.this.lock().upgrade().unwrap();
        (self.map.lock().clone().unwrap(), this)
    }

    fn call(&self, what: u32, _: [u64; 2], _: &[&[u8]]) -> Result<[u64; 3]> {
        if self.is_away.load(SeqCst) {
            crate::bail!(NMC_ERR_UNAVAILABLE, "it is not here");
        }
        self.answer.lock().as_mut().map_or(Ok([0; 3]), |answer| answer(what))
    }

    fn told(&self, _: u64, _: u64, _: usize) -> Result<Told> {
        Err(Error::new(NMC_ERR_UNSUPPORTED, "none"))
    }
}

fn map(entries: u64) -> Arc<DiskMap> {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let id = NEXT.fetch_add(1, SeqCst);
    Arc::new(DiskMap::create(id, 77, entries, &SECRET, &Deadline::after(Duration::from_secs(60))).unwrap())
}

fn record(key: &[u8], space: Space, epoch: u64, spot: (u64, u64), bytes: u64, store_id: u64) -> OnDisk {
    let spot = Spot { bucket: spot.0, block: spot.1 };
    let fingerprint = fingerprint(&SECRET, space, key);
    OnDisk { entry: Entry { epoch, fingerprint, bytes, spot, space: space.number }, store_id, put: epoch }
}

struct Bed {
    store: Store,
    disk: Arc<Disk>,
    host: Arc<MasterSlot>,
}

fn config() -> Config {
    Config { page_bytes: 4096, max_objects: Some(64), ..Config::default() }
}

impl Bed {
    fn plain() -> Self {
        Self::of(&config())
    }

    fn of(config: &Config) -> Self {
        Self::in_world(&world(), config)
    }

    fn in_world(world: &crate::world::Config, config: &Config) -> Self {
        let store = Store::embedded(world, config).unwrap();
        let host = store.host().unwrap();
        let disk = Arc::new(Disk::default());
        *disk.this.lock() = Arc::downgrade(&disk);
        *disk.slot.lock() = Arc::downgrade(&host);
        Self { store, disk, host }
    }

    /// A store that comes to a disk with these records.
    fn attach(&self, names: &[(&[u8], Space)], found: &[OnDisk]) -> u64 {
        self.attach_to(map(100), names, found).unwrap()
    }

    fn attach_to(&self, map: Arc<DiskMap>, names: &[(&[u8], Space)], found: &[OnDisk]) -> Result<u64> {
        *self.disk.map.lock() = Some(Arc::clone(&map));
        let names: Vec<_> = names.iter().map(|(name, space)| (SpaceName::new(name).unwrap(), *space)).collect();
        let last = found.iter().map(|record| record.entry.epoch).max().unwrap_or(0);
        let content = DiskContent { names: &names, found, last_epoch: last, position: None };
        let owner = Arc::clone(&self.disk) as Arc<dyn DiskOwner>;
        self.host.attach_disk(owner, map, &content, self.host.store_id())
    }

    /// One that has "disk" there.
    fn new() -> Self {
        Self::plain().with_disk()
    }

    fn with_disk(self) -> Self {
        let bed = self;
        bed.attach(&[(b"", DEFAULT)], &[record(b"disk", DEFAULT, 40, (1, 0), VALUE.len() as u64, 9)]);
        bed.disk.values.lock().insert(Spot { bucket: 1, block: 0 }, VALUE.to_vec());
        bed.disk.records.lock().insert((1, 0), (b"disk".to_vec(), 40, 40));
        bed.marks();
        bed
    }

    fn marks(&self) -> Vec<Mark> {
        std::mem::take(&mut self.disk.marks.lock())
    }

    fn with<R>(&self, body: impl FnOnce(&mut Master) -> Result<R>) -> R {
        self.host.with(body).unwrap()
    }

    fn evict_all(&self) {
        for rank in 0..self.store.client.params().world_size {
            while !self.with(|master| master.evict_until_below(rank, 0)) {}
        }
    }

    fn next(&self, scope: Scope) -> Vec<ToWrite> {
        let mut items = Vec::new();
        self.with(|master| {
            master.look_around();
            master.next_to_write(scope, (64, u64::MAX), &|| false, &mut items)
        });
        items
    }

    /// What an owner does with objects: they are in bucket `bucket`, one block each.
    fn write(&self, items: &[ToWrite], bucket: u64) -> u64 {
        self.write_and(items, bucket, || ())
    }

    /// The same, with something that happens after the bucket is complete and before entries lead there.
    fn write_and(&self, items: &[ToWrite], bucket: u64, then: impl FnOnce()) -> u64 {
        let places: Vec<_> = items.iter().zip(0..).map(|(item, block)| (item.index, Spot { bucket, block })).collect();
        let mut wanted = Vec::new();
        self.with(|master| master.assign(&places, &mut wanted));
        for (item, (_, spot)) in items.iter().zip(&places) {
            let record = (item.key.clone(), item.epoch, item.put);
            self.disk.records.lock().insert((spot.bucket, spot.block), record);
        }
        then();
        let stored: Vec<Stored> = items
            .iter()
            .zip(&places)
            .zip(&wanted)
            .filter(|(_, wanted)| **wanted)
            .map(|((item, (_, spot)), _)| stored_of(item, *spot))
            .collect();
        let mut entered = 0;
        self.with(|master| master.stored(&stored, &|| false, |_| entered += 1));
        let mut values = self.disk.values.lock();
        for (item, (_, spot)) in items.iter().zip(&places) {
            values.insert(*spot, format!("{} on disk", item.key.escape_ascii()).into_bytes());
        }
        entered
    }
}

fn stored_of(item: &ToWrite, spot: Spot) -> Stored {
    let fingerprint = fingerprint(&SECRET, item.space, &item.key);
    let entry = Entry { epoch: item.epoch, fingerprint, bytes: item.bytes, spot, space: item.space.number };
    Stored { index: item.index, generation: item.space.generation, entry, put: item.put }
}

const VALUE: &[u8] = b"what lies on disk";

fn slice(buffer: &mut [u8]) -> Slice {
    Slice::of_test_mut(buffer)
}

fn put(store: &Store, key: &[u8], value: &[u8]) {
    put_with(store, key, value, &PutOptions::DEFAULT).unwrap();
}

fn replace(store: &Store, key: &[u8], value: &[u8]) {
    put_with(store, key, value, &PutOptions { replace: true, ..PutOptions::DEFAULT }).unwrap();
}

fn get(store: &Store, key: &[u8]) -> Option<Vec<u8>> {
    let mut buffer = vec![0; 64];
    match store.get(key, slice(&mut buffer)).unwrap() {
        Look::Ready(bytes) => {
            buffer.truncate(usize::try_from(bytes).unwrap());
            Some(buffer)
        }
        _ => None,
    }
}

fn dead(bucket: u64, block: u64) -> impl Fn(&Mark) -> bool {
    move |mark| matches!(mark, Mark::Dead { spot, .. } if *spot == Spot { bucket, block })
}

// ---- what clients see ------------------------------------------------------------------------------------------------

#[test]
fn what_memory_misses_is_read_from_disk() {
    let bed = Bed::new();
    let store = &bed.store;
    assert_eq!(get(store, b"disk").unwrap(), VALUE);
    assert_eq!(store.get(b"disk", slice(&mut [])).unwrap(), Look::Ready(17), "the size alone");
    assert_eq!(bed.disk.reads.load(SeqCst), 1);
    let mut whole = [0; 17];
    assert_eq!(store.get_into(b"disk", &Pieces::Slices(&[slice(&mut whole)])).unwrap(), Look::Ready(17));
    let (mut a, mut b) = ([0; 3], [0; 4]);
    let parts = [slice(&mut a), slice(&mut b)];
    assert_eq!(store.get_part(b"disk", 5, &Pieces::Slices(&parts)).unwrap(), Look::Ready(17));
    assert_eq!((&whole[..], &a[..], &b[..]), (VALUE, &VALUE[5..8], &VALUE[8..12]));
    assert!(store.get_into(b"disk", &Pieces::Slices(&parts)).is_err(), "another size");
    assert!(store.get_part(b"disk", 11, &Pieces::Slices(&parts)).is_err(), "behind the end");
    assert_eq!(store.get_into(b"none", &Pieces::Slices(&parts)).unwrap(), Look::Missing);
    assert_eq!(store.disk_reads(), (3, 17 + 17 + 7));
}

#[test]
fn a_batch_reads_what_is_in_memory_on_disk_and_nowhere() {
    let bed = Bed::new();
    put(&bed.store, b"memory", b"m");
    let (mut a, mut b, mut c, mut d) = ([0; 17], [0; 1], [0; 5], [0; 17]);
    let [a_at, b_at, c_at, d_at] = [slice(&mut a), slice(&mut b), slice(&mut c), slice(&mut d)];
    let pieces = [[a_at], [b_at], [c_at], [d_at]];
    let keys: [&[u8]; 4] = [b"disk", b"memory", b"disk", b"none"];
    let mut results: Vec<Option<Result<Look<u64>>>> = vec![None, None, None, None];
    let item = |i: usize| Ok((keys[i], Pieces::Slices(&pieces[i][..])));
    bed.store.get_many_into(4, item, |item, result| results[item] = Some(result));
    assert_eq!(results[0], Some(Ok(Look::Ready(17))));
    assert_eq!(results[1], Some(Ok(Look::Ready(1))));
    assert!(matches!(results[2], Some(Err(_))), "another size");
    assert_eq!(results[3], Some(Ok(Look::Missing)));
    assert_eq!((&a[..], &b[..]), (VALUE, &b"m"[..]));
}

#[test]
fn questions_count_what_is_on_disk_and_pins_do_not() {
    let bed = Bed::new();
    let store = &bed.store;
    put(store, b"memory", b"m");
    assert_eq!(store.presence(b"disk").unwrap(), Presence::OnDisk);
    assert!(store.exists(b"disk").unwrap() && store.touch(b"disk").unwrap());
    assert_eq!(store.presence(b"none").unwrap(), Presence::Absent);
    let keys: [&[u8]; 4] = [b"memory", b"disk", b"none", b"disk"];
    let mut seen = Vec::new();
    store
        .look_many(keys.iter().map(|key| Ok(*key)), |presence| {
            seen.push(presence);
            true
        })
        .unwrap();
    assert_eq!(seen, [Presence::Ready, Presence::OnDisk, Presence::Absent, Presence::OnDisk]);
    assert_eq!(store.match_prefix(keys.iter().map(|key| Ok(*key))).unwrap(), 2);
    assert_eq!(store.pin(b"disk").unwrap(), Look::Missing);
    assert_eq!(store.location(b"disk").unwrap(), Look::Missing);
    let soon = Deadline::after(Duration::from_secs(60));
    assert_eq!(store.wait_ready(b"disk", None, true, &soon).unwrap_err().status, NMC_NOT_READY);
    assert_eq!(store.retain(b"disk", Keep::DEFAULT).unwrap_err().status, NMC_NOT_READY);
    assert_eq!(store.disk_metadata(b"disk").unwrap(), Look::Ready(b"meta".to_vec()));
    assert_eq!(bed.disk.reads.load(SeqCst), 0);
}

/// The control: what is in memory, or being written, never asks the disk.
#[test]
fn nothing_that_memory_has_asks_the_disk() {
    let bed = Bed::new();
    let store = &bed.store;
    replace(store, b"disk", b"m");
    let (plan, _) = store.open_for_write(b"open", 1, &PutOptions::DEFAULT).unwrap();
    assert_eq!(get(store, b"disk").unwrap(), b"m");
    let mut byte = [0; 1];
    assert!(matches!(store.get(b"open", slice(&mut byte)).unwrap(), Look::Writing(..)));
    assert_eq!(store.match_prefix([&b"disk"[..], b"open"].iter().map(|key| Ok(*key))).unwrap(), 1);
    assert_eq!(bed.disk.reads.load(SeqCst), 0);
    store.abort(&plan).unwrap();
}

#[test]
fn an_entry_that_ends_during_a_read_is_looked_for_again_in_memory_too() {
    let bed = Bed::new();
    bed.disk.ended.store(2, SeqCst);
    assert_eq!(get(&bed.store, b"disk").unwrap(), VALUE);
    assert_eq!(bed.disk.reads.load(SeqCst), 3);
    let mut buffer = [0; 17];
    bed.disk.ended.store(u64::MAX, SeqCst);
    assert_eq!(bed.store.get(b"disk", slice(&mut buffer)).unwrap_err().status, NMC_ERR_BUSY);
    *bed.disk.returns_to.lock() = Some(bed.store.share());
    let pieces = [slice(&mut buffer)];
    let read = bed.store.read_with(b"disk", 0, &Pieces::Slices(&pieces), Sums::Touched, |bytes, _| Ok(bytes == 17));
    assert_eq!(read.unwrap(), Look::Ready(17));
    assert_eq!(&buffer, b"in memory again..");
}

// ---- what the master notes -------------------------------------------------------------------------------------------

#[test]
fn a_key_on_disk_exists_until_it_is_removed_or_replaced() {
    let bed = Bed::new();
    let store = &bed.store;
    assert_eq!(put_with(store, b"disk", b"x", &PutOptions::DEFAULT).unwrap_err().status, NMC_ERR_EXISTS);
    assert_eq!(bed.marks(), []);
    store.remove(b"disk").unwrap();
    assert!(bed.marks().iter().any(dead(1, 0)), "noted before the answer");
    assert_eq!(store.remove(b"disk").unwrap_err().status, NMC_ERR_NOT_FOUND);
    assert_eq!(get(store, b"disk"), None);
    put(store, b"disk", b"x");
    let items = bed.next(Scope::All);
    assert_eq!((items.len(), bed.write(&items, 2)), (1, 1));
    bed.evict_all();
    assert_eq!(get(store, b"disk").map(|_| ()), Some(()), "evicted, and on disk");
    replace(store, b"disk", b"y");
    assert!(bed.marks().iter().any(dead(2, 0)));
    assert_eq!(get(store, b"disk").unwrap(), b"y");
}

#[test]
fn what_is_evicted_is_not_marked_and_what_is_clean_goes_first() {
    let bed = Bed::new();
    // All of them on one rank.
    let options = PutOptions { rank: Some(0), ..PutOptions::DEFAULT };
    (0..10u8).for_each(|i| put_with(&bed.store, &[b'k', i], b"v", &options).unwrap());
    let items = bed.next(Scope::All);
    let (dirty, clean): (Vec<_>, Vec<_>) = items.into_iter().partition(|item| item.key[1] < 5);
    assert_eq!((dirty.len(), bed.write(&clean, 2)), (5, 5));
    bed.with(|master| {
        master.release_holds(&dirty);
        Ok(())
    });
    let half = 5 * 1000 / bed.with(|master| Ok(master.map().params().pages())) + 1;
    while !bed.with(|master| master.evict_until_below(0, half)) {}
    for i in 0..10u8 {
        let want = if i < 5 { Presence::Ready } else { Presence::OnDisk };
        assert_eq!(bed.store.presence(&[b'k', i]).unwrap(), want, "{i}: the older ones are not on disk yet, and stay");
    }
    bed.evict_all();
    let counts = bed.with(|master| Ok(master.disk_counts().unwrap()));
    assert_eq!((counts.evicted_clean, counts.evicted_dirty), (5, 5));
    assert_eq!(bed.marks(), []);
}

/// A store that is full, with a disk that writes at once what it is woken for. Gives how many went that it had not written, and at how
/// many objects it looked. Between two puts a millisecond goes by for whoever reads, whatever the machine is busy with: which reads count
/// is by time, and with it the order in which values go.
fn under_pressure(policy: Policy, puts: u32, seed: u64) -> (u64, usize) {
    let world = crate::world::Config { heap_bytes: 1 << 21, ..world() };
    let bed = Bed::in_world(&world, &Config { policy, max_objects: Some(2048), ..config() });
    bed.attach_to(map(1 << 16), &[(b"", DEFAULT)], &[]).unwrap();
    let (mut chance, mut bucket, mut looks) = (Random(seed), 10, 0);
    for n in 0..puts {
        sys::COARSE_MS.set(Some(u64::from(n) + 1));
        let keep = Keep { priority: 1 + u32::from(chance.below(64) == 0), ..Keep::DEFAULT };
        let options = PutOptions { rank: Some(0), keep, ..PutOptions::DEFAULT };
        put_with(&bed.store, &n.to_le_bytes(), &vec![7; 1 + chance.below(3) as usize * 4096], &options).unwrap();
        if chance.below(4) == 0 {
            get(&bed.store, &n.saturating_sub(chance.below(300)).to_le_bytes());
        }
        // At times all that is there is on disk, and nobody need look for a while.
        let scope = if chance.below(600) == 0 { Scope::All } else { Scope::Ahead };
        let woken = bed.disk.wakes.swap(0, SeqCst) > 0 || scope == Scope::All;
        let mut more = woken;
        while more {
            let mut items = Vec::new();
            let looked;
            (more, looked) = bed.with(|master| {
                master.look_around();
                master.next_to_write(scope, (64, u64::MAX), &|| false, &mut items)
            });
            bucket += 1;
            looks += if scope == Scope::Ahead { looked } else { 0 };
            bed.write(&items, bucket);
        }
    }
    let counts = bed.with(|master| Ok(master.disk_counts().unwrap()));
    assert!(counts.evicted_clean > u64::from(puts) / 2, "{counts:?}");
    (counts.evicted_dirty, looks)
}

#[test]
fn what_is_written_ahead_is_on_disk_when_it_is_evicted() {
    for policy in [Policy::Fifo, Policy::Lru, Policy::S3Fifo] {
        for seed in 0..3 {
            let (dirty, looks) = under_pressure(policy, 5000, seed);
            assert_eq!(dirty, 0, "{policy:?} {seed}");
            assert!(looks < 20 * 5000, "{policy:?} {seed}: {looks} objects were looked at");
        }
    }
}

/// A namespace with a quota, with a disk that writes at once what it is woken for: how many went that were on disk, and that were not.
fn at_its_quota(ranks: u32, priorities: u32) -> (u64, u64) {
    let world = crate::world::Config { heap_bytes: 1 << 21, ..world() };
    let bed = Bed::in_world(&world, &Config { max_objects: Some(2048), ..config() });
    bed.attach_to(map(1 << 16), &[(b"", DEFAULT)], &[]).unwrap();
    let small = bed.store.namespace(b"small", Some(80 * 4096)).unwrap();
    let mut bucket = 10;
    for n in 0..1000u32 {
        let keep = Keep { priority: n % priorities, ..Keep::DEFAULT };
        let options = PutOptions { rank: Some(n / 3 % ranks), keep, ..PutOptions::DEFAULT };
        put_with(&small, &n.to_le_bytes(), b"v", &options).unwrap();
        let mut more = bed.disk.wakes.swap(0, SeqCst) > 0;
        while more {
            let mut items = Vec::new();
            (more, _) = bed.with(|master| {
                master.look_around();
                master.next_to_write(Scope::Ahead, (64, u64::MAX), &|| false, &mut items)
            });
            bucket += 1;
            bed.write(&items, bucket);
        }
    }
    let counts = bed.with(|master| Ok(master.disk_counts().unwrap()));
    (counts.evicted_clean, counts.evicted_dirty)
}

#[test]
fn what_a_quota_evicts_is_on_disk_with_several_ranks_and_priorities_too() {
    for (ranks, priorities) in [(1, 1), (2, 1), (1, 2), (2, 3)] {
        assert_eq!(at_its_quota(ranks, priorities), (920, 0), "{ranks} ranks, {priorities} priorities");
    }
}

#[test]
fn nobody_looks_for_what_is_to_be_written_while_all_in_front_is_on_disk() {
    let world = crate::world::Config { heap_bytes: 4 << 20, ..world() };
    let bed = Bed::in_world(&world, &Config { max_objects: Some(2048), ..config() });
    bed.attach_to(map(1 << 16), &[(b"", DEFAULT)], &[]).unwrap();
    let options = PutOptions { rank: Some(0), ..PutOptions::DEFAULT };
    let put = |n: u32| put_with(&bed.store, &n.to_le_bytes(), b"v", &options).unwrap();
    // All are on disk, and whoever looks ahead has seen it.
    let write_all = || {
        for (scope, bucket) in [(Scope::All, 10), (Scope::Ahead, 1000)] {
            let (mut next, mut more) = (bucket, true);
            while more {
                let mut items = Vec::new();
                let all = (64, u64::MAX);
                (more, _) = bed.with(|master| master.next_to_write(scope, all, &|| false, &mut items));
                next += 1;
                bed.write(&items, next);
            }
        }
        bed.disk.wakes.store(0, SeqCst);
    };
    // Takes note of what was published, as its owner does now and then.
    let put = |n: u32| {
        put(n);
        bed.with(|master| {
            master.look_around();
            Ok(())
        });
    };
    (0..2000).for_each(put);
    write_all();
    (2000..2600).for_each(put);
    assert_eq!(bed.disk.wakes.load(SeqCst), 0, "more than half of the heap is on disk in front of what is not");
    (2600..3000).for_each(put);
    assert!(bed.disk.wakes.load(SeqCst) > 0, "what is not on disk comes to the front");
    // With the first object of a queue that had none something else is in front.
    write_all();
    (3000..3200).for_each(put);
    let keep = Keep { retain: Retain::Soft, ..Keep::DEFAULT };
    put_with(&bed.store, b"soft", b"v", &PutOptions { rank: Some(0), keep, ..PutOptions::DEFAULT }).unwrap();
    assert_eq!(bed.disk.wakes.load(SeqCst), 0);
    put(3201);
    assert_eq!(bed.disk.wakes.load(SeqCst), 1);
    // What the disk drops to make room is not on it any more.
    assert!(bed.store.remove(b"soft").is_ok());
    write_all();
    (3300..3400).for_each(put);
    bed.disk.wakes.store(0, SeqCst);
    bed.with(|master| master.end_bucket(10, &[]));
    put(3400);
    assert_eq!(bed.disk.wakes.load(SeqCst), 1);
}

#[test]
fn what_is_held_stays_and_what_is_removed_meanwhile_gets_no_entry() {
    let bed = Bed::new();
    let store = &bed.store;
    for key in [b"a", b"b", b"c", b"d"] {
        put(store, key, b"v");
    }
    let items = bed.next(Scope::All);
    let of = |key: &[u8]| items.iter().find(|item| item.key == key).unwrap();
    // Before it has a place: nothing to mark.
    store.remove(b"a").unwrap();
    assert_eq!(bed.marks(), []);
    let places: Vec<_> = items.iter().zip(0..).map(|(item, block)| (item.index, Spot { bucket: 5, block })).collect();
    let mut wanted = Vec::new();
    bed.with(|master| master.assign(&places, &mut wanted));
    assert_eq!(wanted, items.iter().map(|item| item.key != b"a").collect::<Vec<_>>());
    // Nothing that is held is evicted.
    bed.evict_all();
    assert_eq!(store.presence(b"b").unwrap(), Presence::Ready);
    // With a place: marked before the answer. So is what replaces, and what is consumed.
    store.remove(b"b").unwrap();
    let spot_of = |key: &[u8]| places[items.iter().position(|item| item.key == key).unwrap()].1;
    assert!(bed.marks().iter().any(dead(5, spot_of(b"b").block)));
    replace(store, b"c", b"new");
    assert!(bed.marks().iter().any(dead(5, spot_of(b"c").block)));
    let stored: Vec<_> = [&b"b"[..], b"c", b"d"].iter().map(|key| stored_of(of(key), spot_of(key))).collect();
    let mut entered = Vec::new();
    bed.with(|master| master.stored(&stored, &|| false, |number| entered.push(number)));
    assert_eq!(entered, [2], "the one that was neither removed nor replaced");
    assert_eq!(bed.marks(), [], "the others were marked already");
    bed.evict_all();
    assert_eq!(store.presence(b"d").unwrap(), Presence::OnDisk);
    assert_eq!(store.presence(b"b").unwrap(), Presence::Absent);
    assert_eq!(bed.with(|master| Ok(master.disk_counts().unwrap())).held, 0);
}

#[test]
fn where_the_master_is_wanted_writing_goes_on_one_by_one_and_misses_nothing() {
    let bed = Bed::new();
    let keys: Vec<[u8; 1]> = (b'a'..=b'h').map(|key| [key]).collect();
    keys.iter().for_each(|key| put(&bed.store, key, b"v"));
    let (mut items, mut calls) = (Vec::new(), 0);
    bed.with(|master| {
        master.look_around();
        Ok(())
    });
    while bed.with(|master| {
        let before = items.len();
        let (more, looked) = master.next_to_write(Scope::All, (64, u64::MAX), &|| true, &mut items)?;
        assert!(looked <= 1 && items.len() - before <= 1, "others wait for {looked} objects");
        Ok(more)
    }) {
        calls += 1;
    }
    assert!(calls >= keys.len());
    assert_eq!(items.len(), keys.len());
    let places: Vec<_> = items.iter().zip(0..).map(|(item, block)| (item.index, Spot { bucket: 5, block })).collect();
    bed.with(|master| master.assign(&places, &mut Vec::new()));
    let stored: Vec<_> = items.iter().zip(&places).map(|(item, (_, spot))| stored_of(item, *spot)).collect();
    let (mut rest, mut entered) = (&stored[..], 0);
    while !rest.is_empty() {
        let done = bed.with(|master| master.stored(rest, &|| true, |_| entered += 1));
        assert_eq!(done, 1);
        rest = &rest[done..];
    }
    assert_eq!(entered, keys.len());
    // All of it is on disk, and held no longer.
    assert_eq!(bed.next(Scope::All), []);
    bed.evict_all();
    assert!(keys.iter().all(|key| bed.store.presence(key).unwrap() == Presence::OnDisk));
}

#[test]
fn a_flush_forgets_what_is_on_disk_and_what_is_on_its_way() {
    let bed = Bed::new();
    let store = &bed.store;
    put(store, b"way", b"v");
    let items = bed.next(Scope::All);
    store.remove_all().unwrap();
    assert!(bed.marks().contains(&Mark::Generation(Space { number: 0, generation: 1 })));
    assert_eq!(bed.write(&items, 6), 0);
    assert_eq!((get(store, b"disk"), get(store, b"way")), (None, None));
    put(store, b"disk", b"anew");
    assert_eq!(get(store, b"disk").unwrap(), b"anew");
    for _ in 0..4 {
        bed.with(Master::tend);
    }
    assert!(bed.marks().iter().any(|mark| matches!(mark, Mark::Over { spot: Spot { bucket: 1, block: 0 }, .. })));
    assert_eq!(bed.with(|master| Ok(master.disk_counts().unwrap())).objects, 0);
}

#[test]
fn a_mark_that_cannot_be_written_fails_the_call_and_the_object_stays_hidden() {
    let bed = Bed::new();
    put(&bed.store, b"a", b"v");
    bed.disk.fails.store(1, SeqCst);
    assert_eq!(bed.store.remove(b"disk").unwrap_err().status, NMC_ERR_IO);
    assert_eq!(get(&bed.store, b"disk"), None);
    // What takes nothing away goes on. What does fails, though it marks nothing: a mark of before may be lost.
    put(&bed.store, b"b", b"v");
    assert_eq!(bed.store.remove(b"a").unwrap_err().status, NMC_ERR_IO);
    assert_eq!(get(&bed.store, b"a"), None);
}

// ---- coming and going ------------------------------------------------------------------------------------------------

#[test]
fn what_memory_has_counts_when_a_disk_comes() {
    let bed = Bed::plain();
    put(&bed.store, b"same", b"memory");
    put(&bed.store, b"other", b"memory");
    let epoch = |key: &[u8]| match bed.store.location(key).unwrap() {
        Look::Ready(location) => location.epoch,
        _ => panic!("it was put"),
    };
    let put_of = |key: &[u8]| match bed.store.location(key).unwrap() {
        Look::Ready(place) => bed.store.described(place.index).unwrap().put,
        _ => panic!("it was put"),
    };
    // A value that is told of.
    bed.store.notice().unwrap();
    let found = [
        OnDisk { put: put_of(b"same"), ..record(b"same", DEFAULT, 3, (1, 0), 6, 9) },
        record(b"other", DEFAULT, epoch(b"other"), (1, 1), 6, bed.host.store_id()),
        record(b"disk", DEFAULT, 700, (1, 2), 6, 9),
        record(b"disk", DEFAULT, 600, (0, 0), 6, 9),
    ];
    bed.attach(&[(b"", DEFAULT)], &found);
    let marks = bed.marks();
    assert!(marks.iter().any(dead(1, 1)), "of another put, whatever its epoch");
    assert!(marks.iter().any(dead(0, 0)), "the older of two records");
    assert!(!marks.iter().any(dead(1, 0)) && !marks.iter().any(dead(1, 2)));
    bed.evict_all();
    assert_eq!(bed.store.presence(b"same").unwrap(), Presence::OnDisk);
    assert_eq!(bed.store.presence(b"other").unwrap(), Presence::Absent);
    put(&bed.store, b"later", b"v");
    assert!(epoch(b"later") > 700, "epochs go on above all that is on disk");
}

#[test]
fn more_records_than_entries_end_for_good() {
    let bed = Bed::plain();
    let found: Vec<_> = (0..30u8).map(|i| record(&[1, i], DEFAULT, 100 - u64::from(i), (9, i.into()), 1, 1)).collect();
    let left_out = bed.attach_to(map(10), &[(b"", DEFAULT)], &found).unwrap();
    assert_eq!(left_out, 20);
    assert_eq!(bed.marks().iter().filter(|mark| matches!(mark, Mark::Dead { .. })).count(), 20);
    assert_eq!(bed.store.presence(&[1, 0]).unwrap(), Presence::OnDisk, "the newest stay");
}

#[test]
fn namespaces_go_by_name_whatever_order_they_are_opened_in() {
    let bed = Bed::plain();
    let (a, b) = (Space { number: 7, generation: 3 }, Space { number: 2, generation: 0 });
    let found = [record(b"k", a, 5, (1, 0), 1, 1), record(b"k", b, 6, (1, 1), 2, 1)];
    let early = bed.store.namespace(b"b", None).unwrap();
    bed.attach(&[(b"", DEFAULT), (b"a", a), (b"b", b)], &found);
    let late = bed.store.namespace(b"a", None).unwrap();
    let fresh = bed.store.namespace(b"c", None).unwrap();
    assert_eq!(late.get(b"k", slice(&mut [])).unwrap(), Look::Ready(1));
    assert_eq!(early.get(b"k", slice(&mut [])).unwrap(), Look::Ready(2));
    assert_eq!(fresh.get(b"k", slice(&mut [])).unwrap(), Look::Missing);
    let named = bed.marks().into_iter().find_map(|mark| match mark {
        Mark::Namespace(name, space) if &*name == b"c" => Some(space),
        _ => None,
    });
    assert!(named.is_some_and(|space| ![0, 2, 7].contains(&space.number)));
}

#[test]
fn without_its_disk_a_store_is_read_and_not_written() {
    let bed = Bed::new();
    put(&bed.store, b"m", b"v");
    let slabs = {
        let master_map = bed.with(|master| Ok(Arc::clone(master.map())));
        Master::take_over(master_map)
    };
    let mut taken_over = slabs.unwrap();
    let refused = |result: Result<()>| result.unwrap_err().status == NMC_ERR_UNAVAILABLE;
    assert!(
        refused(taken_over.remove(0, b"m")) && refused(taken_over.remove(0, b"disk")) && refused(taken_over.flush(0))
    );
    taken_over.attach_disk(map(10), &DiskContent::default()).unwrap();
    assert!(taken_over.remove(0, b"m").is_ok());
}

#[test]
fn a_disk_that_goes_takes_its_values_along() {
    let bed = Bed::new();
    put(&bed.store, b"m", b"v");
    assert!(bed.host.detach_disk(None).is_some());
    assert_eq!((get(&bed.store, b"disk"), get(&bed.store, b"m")), (None, Some(b"v".to_vec())));
    put(&bed.store, b"disk", b"x");
    bed.store.remove(b"disk").unwrap();
    assert_eq!(bed.marks(), []);
    let again = [record(b"disk", DEFAULT, 40, (1, 0), VALUE.len() as u64, 9)];
    bed.attach(&[(b"", DEFAULT)], &again);
    assert_eq!(get(&bed.store, b"disk").unwrap(), VALUE);
}

#[test]
fn an_entry_that_cannot_be_read_ends_once() {
    let bed = Bed::new();
    let found = bed.disk.map.lock().clone().unwrap().probe(0, b"disk").unwrap().unwrap();
    assert!(!bed.with(|master| master.end_entry(found.index, found.word + 1)), "another value's by now");
    assert!(bed.with(|master| master.end_entry(found.index, found.word)));
    assert!(!bed.with(|master| master.end_entry(found.index, found.word)));
    assert!(bed.marks().iter().any(dead(1, 0)));
    assert_eq!(get(&bed.store, b"disk"), None);
}

/// What a client was refused it has not, until it has it.
#[test]
fn a_refusal_is_of_one_disk_and_over_when_the_client_has_it() {
    let (seat, map) = (DiskSeat::default(), map(10));
    let (id, other) = (map.id(), map.id() + 1000);
    let refuse = |id| seat.refuse(id, Error::new(NMC_ERR_UNAVAILABLE, "silent"));
    let refused = |id| seat.refusal(id).map(|why| why.status);
    refuse(id);
    assert_eq!([refused(id), refused(other)], [Some(NMC_ERR_UNAVAILABLE), None]);
    seat.set(DiskAccess { map, reader: Arc::new(Disk::default()) });
    assert!(refused(id).is_none() && seat.get(id).is_some());
    refuse(id);
    assert!(refused(id).is_none(), "a thread that gave up too early takes it from nobody");
    refuse(other);
    assert!(refused(other).is_some() && seat.get(id).is_some());
    seat.clear();
    assert!(refused(other).is_none() && seat.get(id).is_none());
}

#[test]
fn the_index_of_the_disk_agrees_with_a_model() {
    let bed = Bed::plain();
    bed.attach(&[(b"", DEFAULT)], &[]);
    let mut model = std::collections::HashSet::new();
    let mut random = Random(5);
    for bucket in 10..3000 {
        let key = u8::try_from(random.below(40)).unwrap();
        match random.below(4) {
            0 if model.insert(key) => put(&bed.store, &[key], b"v"),
            0 => {
                assert_eq!(put_with(&bed.store, &[key], b"v", &PutOptions::DEFAULT).unwrap_err().status, NMC_ERR_EXISTS)
            }
            1 => assert_eq!(bed.store.remove(&[key]).is_ok(), model.remove(&key)),
            2 => replace(&bed.store, &[key], if model.insert(key) { b"new" } else { b"old" }),
            _ => {
                // Everything, or what was evicted before it was written would be lost, as without a disk.
                let items = bed.next(Scope::All);
                bed.write(&items, bucket);
                bed.evict_all();
            }
        }
        for key in 0..40u8 {
            assert_eq!(bed.store.exists(&[key]).unwrap(), model.contains(&key));
        }
    }
    let items = bed.next(Scope::All);
    bed.write(&items, 3000);
    assert_eq!(bed.with(|master| Ok(master.disk_counts().unwrap())).objects, model.len() as u64);
}

#[test]
fn a_plan_to_replace_outlives_the_removal_of_the_old_value_and_no_other() {
    let replaces = PutOptions { replace: true, ..PutOptions::DEFAULT };
    for key in [b"disk".as_slice(), b"memory"] {
        let bed = Bed::new();
        let store = &bed.store;
        put(store, b"memory", b"1");
        let (plan, _) = store.open_for_write(key, 0, &replaces).unwrap();
        store.remove(key).unwrap();
        assert_eq!(store.presence(key).unwrap(), Presence::Absent);
        store.commit(&plan).unwrap();
        assert_eq!(get(store, key).unwrap(), b"");
        for all in [false, true] {
            let (plan, _) = store.open_for_write(key, 0, &replaces).unwrap();
            if all {
                store.remove_all().unwrap()
            } else {
                assert_eq!(store.remove_by_prefix(key).unwrap(), 1)
            }
            assert_eq!(store.commit(&plan).unwrap_err().status, NMC_ERR_STALE, "{all}");
            assert_eq!(store.presence(key).unwrap(), Presence::Absent);
            put(store, key, b"again");
        }
    }
}

#[test]
fn a_look_at_all_misses_nothing_that_moves_in_its_queue() {
    for pinned in [false, true] {
        let policy = if pinned { Policy::Fifo } else { Policy::Lru };
        let one = crate::world::Config { world_size: 1, ..world() };
        let store = Store::embedded(&one, &Config { policy, ..config() }).unwrap();
        let host = store.host().unwrap();
        let disk = Arc::new(Disk::default());
        *disk.this.lock() = Arc::downgrade(&disk);
        *disk.slot.lock() = Arc::downgrade(&host);
        let bed = Bed { store, disk, host }.with_disk();
        for key in [b"a", b"x", b"c"] {
            put(&bed.store, key, b"v");
        }
        assert_eq!(bed.write(&bed.next(Scope::All), 5), 3);
        for key in [b"d", b"e", b"f"] {
            put(&bed.store, key, b"v");
        }
        bed.with(|master| {
            master.look_around();
            master.begin_walk();
            Ok(())
        });
        let mut items = Vec::new();
        let step = |wanted: bool, items: &mut Vec<ToWrite>| {
            bed.with(|master| master.next_to_write(Scope::All, (64, u64::MAX), &|| wanted, items))
        };
        let (more, looked) = step(true, &mut items);
        assert!(more && looked == 1 && items.is_empty(), "{more} {looked}");
        // Meanwhile the next one is read, and somebody makes room: it goes to the end of its queue.
        let view = bed.store.client.view();
        let pin = match pinned {
            true => match bed.store.pin_to_read(view, b"x").unwrap() {
                Look::Ready(pin) => Some(pin.slot),
                _ => panic!("it is there"),
            },
            false => get(&bed.store, b"x").and(None),
        };
        for permille in (0..=1000).rev() {
            bed.with(|master| master.evict_until_below(0, permille));
            if bed.store.presence(b"c").unwrap() == Presence::OnDisk {
                break;
            }
        }
        assert_eq!(bed.store.presence(b"x").unwrap(), Presence::Ready);
        if let Some(slot) = pin {
            bed.store.release_pin(view, slot);
        }
        while step(false, &mut items).0 {}
        let mut keys: Vec<_> = items.iter().map(|item| item.key.clone()).collect();
        keys.sort();
        assert_eq!(keys, [b"d", b"e", b"f"], "pinned: {pinned}");
    }
}

/// The kernel may end a read of a process that was killed after the process, and a heap is another's by then.
#[test]
fn nothing_is_read_straight_into_heaps() {
    let bed = Bed::new();
    let (store, straight) = (&bed.store, || std::mem::take(&mut *bed.disk.straight.lock()));
    let mut own = [0; VALUE.len()];
    store.get_into(b"disk", &Pieces::Slices(&[slice(&mut own)])).unwrap();
    assert_eq!((straight(), &own[..]), (vec![own.as_ptr() as u64], VALUE));
    let member = &store.client.member;
    let address = member.base(0).unwrap() + member.heap_bytes() - VALUE.len() as u64;
    let there = [crate::store::copy::tests::slice_at(address, VALUE.len() as u64)];
    store.get_into(b"disk", &Pieces::Slices(&there)).unwrap();
    let mut seen = [0; VALUE.len()];
    crate::store::copy::tests::copy_from(address, &mut seen);
    assert_eq!((straight(), &seen[..]), (vec![], VALUE));
    store.promote(&[b"disk"], 0, |_, came| assert!(came.unwrap()));
    assert_eq!((straight(), get(store, b"disk").unwrap()), (vec![], VALUE.to_vec()));
}

/// An owner that is killed when it has given a bucket up leaves entries that lead nowhere: its file goes when the next one comes, before
/// the index does. Nothing is damaged then. With an owner that answers, something is.
#[test]
fn a_file_that_is_gone_while_nobody_owns_it_is_no_damage() {
    let bed = Bed::new();
    bed.disk.values.lock().clear();
    let look = || bed.store.get(b"disk", slice(&mut [0; 64])).map_err(|error| error.status);
    assert!(matches!(look(), Err(NMC_ERR_CORRUPT)));
    bed.disk.is_away.store(true, SeqCst);
    assert!(matches!(look(), Err(NMC_ERR_UNAVAILABLE)));
}

/// Entries that came while those of a flushed namespace were looked for pushed as many out of the search.
#[test]
fn a_flush_ends_every_entry_that_was_there() {
    let bed = Bed::plain();
    bed.attach(&[(b"", DEFAULT)], &[]);
    let write = |keys: u64, bucket: u64| {
        (0..keys).for_each(|i| {
            put_with(&bed.store, format!("{bucket} {i}").as_bytes(), b"v", &PutOptions::DEFAULT).unwrap()
        });
        bed.with(|master| {
            master.begin_walk();
            Ok(())
        });
        assert_eq!(bed.write(&bed.next(Scope::All), bucket), keys);
    };
    for round in 1..8 {
        write(2 + round, 2 * round);
        bed.store.remove_all().unwrap();
        write(1, 2 * round + 1);
        while bed.with(|master| master.sweep_disk()) {}
        assert_eq!(bed.with(|master| Ok(master.disk_counts().unwrap().objects)), 1, "round {round}");
    }
}

#[test]
fn a_flush_ends_every_entry_however_often_others_are_flushed() {
    let bed = Bed::of(&Config { page_bytes: 4096, max_objects: Some(64), ..Config::default() });
    let a = bed.store.namespace(b"a", None).unwrap();
    let b = bed.store.namespace(b"b", None).unwrap();
    let space = |number| Space { number, generation: 0 };
    let names: [(&[u8], Space); 3] = [(b"", space(0)), (b"a", space(1)), (b"b", space(2))];
    // Many entries that stay, and behind them one of a.
    let mut found: Vec<OnDisk> =
        (0..5000u64).map(|i| record(format!("d{i}").as_bytes(), space(0), i + 1, (1, i), 10, 9)).collect();
    found.push(record(b"k", space(1), 9000, (2, 0), 10, 9));
    bed.attach_to(map(6000), &names, &found).unwrap();
    let count = || bed.with(|master| Ok(master.disk_counts().unwrap().objects));
    assert_eq!(count(), 5001);
    assert_eq!(a.presence(b"k").unwrap(), Presence::OnDisk);
    a.remove_all().unwrap();
    for _ in 0..200 {
        b.remove_all().unwrap();
        // The owner's thread, and the upkeep of some calls.
        for _ in 0..3 {
            bed.with(|master| master.sweep_disk());
        }
    }
    let left = count();
    assert_eq!(left, 5000, "after 600 steps of 1,024 entries");
}

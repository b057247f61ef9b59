//! The store behind the agent of a cluster's node, with a tier below it: a put keeps its name on disk, in memory again and after a
//! restart; what is on disk is told, found and dropped by name like what is in memory; and the position in the drop log is as durable
//! as the values.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic, reason = "a test may")]

#[path = "common/mod.rs"]
mod common;
#[path = "common/node.rs"]
mod node;
#[path = "../src/base/random.rs"]
mod random;
#[path = "common/store.rs"]
mod values;

use common::{config as world_config, eventually};
use nanomc::base::crc::crc32c;
use nanomc::base::status::*;
use nanomc::cluster::node::storage::{Tail, Wanted};
use nanomc::cluster::node::{Hold, Memory, NodeStore, Offer, Pinned, Plan, Storage};
use nanomc::cluster::types::{Media, ObjectKey, Position, PutId, terms_of};
use nanomc::cluster::wire::{Fact, Metadata, Published};
use nanomc::layout::store::ON_DISK;
use nanomc::store::types::{Look, Pin, PutOptions};
use nanomc::store::{Masters, Store};
use nanomc::tier::{self, Backend, Tier};
use nanomc::world::{Hosting, World};
use node::{Directory, all, config, fill, key, put_id};
use random::Random;
use std::collections::BTreeMap;
use values::{get_if, put, put_as};

const SLOTS: u64 = 128;

fn embedded() -> Store {
    let nowhere = std::path::Path::new("");
    let world = nanomc::world::Config { dir: None, heap_bytes: 128 * 4096, ..world_config(nowhere, None, 1) };
    Store::embedded(&world, &config()).unwrap()
}

fn tier_config(dir: &tempfile::TempDir, backend: Backend) -> tier::Config {
    let (directory, capacity_bytes) = (dir.path().join(backend.name()), 64 << 20);
    tier::Config { directory, backend, capacity_bytes, paused: true, max_objects: SLOTS, ..tier::Config::default() }
}

const BACKENDS: [Backend; 3] = [Backend::Bucket, Backend::File, Backend::Offset];

fn open_tier(store: &Store, config: &tier::Config) -> Tier {
    Tier::open(store, config, &mut |_, _| ()).unwrap()
}

fn open(node: &mut NodeStore, put: PutId, key: &ObjectKey, length: usize, segment: u32) -> Result<Plan, nmc_status_t> {
    let metadata = Metadata(b"said".to_vec());
    let (length, retain, metadata, is_copy) = (length as u64, 0, &metadata, false);
    let wanted = Wanted { put, key, length, segment, exact: true, retain, metadata, is_copy };
    node.open(&wanted).map_err(|error| error.status)
}

fn put_through(node: &mut NodeStore, put: PutId, key: &ObjectKey, value: &[u8]) -> Plan {
    let plan = open(node, put, key, value.len(), 0).unwrap();
    fill(node, plan, value);
    node.commit(plan).unwrap();
    plan
}

/// Holds a value, wherever it is.
fn pin(node: &mut NodeStore, plan: Plan, key: &ObjectKey) -> nanomc::base::error::Result<Pinned> {
    match node.pin(plan, key, PutId(0))? {
        Hold::Held(pinned) => Ok(pinned),
        Hold::Coming(number) => came(node, number),
    }
}

/// Waits for what is coming.
fn came(node: &mut NodeStore, number: u64) -> nanomc::base::error::Result<Pinned> {
    let mut came = None;
    eventually(|| {
        came = node.came(number).transpose();
        came.is_some()
    });
    came.expect("it comes in time")
}

fn pin_status(node: &mut NodeStore, plan: Plan, key: &ObjectKey) -> Result<(PutId, u64), nmc_status_t> {
    let pinned = pin(node, plan, key).map_err(|error| error.status)?;
    assert_eq!(node.store().heap_usage(0).1, 128 * 4096);
    node.unpin(pinned.pin);
    Ok((pinned.put, pinned.length))
}

fn evict(store: &Store) {
    store.evict_until_below(0, 0).unwrap();
}

fn name_of(found: &Published) -> Plan {
    Plan { index: found.index, epoch: found.epoch }
}

fn value(n: usize) -> Vec<u8> {
    (0..n).map(|i| u8::try_from(i * 11 % 251).unwrap()).collect()
}

#[test]
fn a_put_keeps_its_name_on_disk_in_memory_again_and_after_a_restart() {
    for backend in BACKENDS {
        let dir = tempfile::tempdir().unwrap();
        let (config, k, v) = (tier_config(&dir, backend), key("kv", "a"), value(9000));
        let store = embedded();
        let tier = open_tier(&store, &config);
        let mut node = NodeStore::new(&store).unwrap();
        let media: Vec<Media> = node.segments(|n| n.to_string()).unwrap().iter().map(|s| s.media).collect();
        assert_eq!((media, u64::from(node.slots())), (vec![Media::Ram, Media::Ssd], SLOTS));
        let plan = put_through(&mut node, put_id(1), &k, &v);
        let before = node.newest();
        assert_eq!(tier.offload(None).unwrap(), 1);
        // The slot is told with the same put.
        let Tail::Facts(facts) = node.facts(before, 10).unwrap() else { panic!("nothing was overwritten") };
        let [Fact::Published(slot)] = facts.as_slice() else { panic!("{backend:?}: {facts:?}") };
        assert_eq!((slot.index & ON_DISK, &slot.key, slot.put), (ON_DISK, &k, put_id(1)));
        assert_eq!((slot.length, slot.segment), (9000, 1));
        let slot = slot.clone();
        assert_eq!(all(&mut node).len(), 2, "one object, two places");
        assert_eq!(node.used()[1], 9000);
        // Memory lets it go; the slot stays, and brings it back, also for who knows its former place only.
        evict(&store);
        assert_eq!(
            pin_status(&mut node, Plan { epoch: plan.epoch + 99, ..plan }, &key("kv", "b")),
            Err(NMC_ERR_NOT_FOUND)
        );
        assert_eq!(all(&mut node).into_values().collect::<Vec<_>>(), std::slice::from_ref(&slot));
        assert_eq!(pin_status(&mut node, name_of(&slot), &k), Ok((put_id(1), 9000)));
        let in_memory: Vec<Published> =
            all(&mut node).into_values().filter(|found| found.index != slot.index).collect();
        let [again] = in_memory.as_slice() else { panic!("it came back: {in_memory:?}") };
        assert_eq!((&again.key, again.put), (&k, put_id(1)));
        assert!(again.epoch > plan.epoch && pin_status(&mut node, name_of(again), &k).is_ok());
        evict(&store);
        assert_eq!(pin_status(&mut node, plan, &k), Ok((put_id(1), 9000)));
        // The same for a place on disk that it has not: whoever asks compares the put. A wrong key.
        let wrong = Plan { epoch: slot.epoch + 1, ..name_of(&slot) };
        assert_eq!(pin_status(&mut node, wrong, &k), Ok((put_id(1), 9000)));
        assert_eq!(pin_status(&mut node, name_of(&slot), &key("kv", "b")), Err(NMC_ERR_NOT_FOUND));
        assert_eq!(pin_status(&mut node, name_of(&slot), &key("", "a")), Err(NMC_ERR_NOT_FOUND));
        node.drop_named(wrong, &k);
        node.drop_named(name_of(&slot), &key("kv", "b"));
        // What programs put on the same node has a name of its own there too.
        put(&store, b"local", b"bytes").unwrap();
        tier.offload(None).unwrap();
        let local = all(&mut node).into_values().find(|found| found.key == key("", "local")).unwrap().put;
        assert!(!local.is_clustered());
        drop((node, tier, store));
        // Another store over the same directory, in which nobody has opened the namespace.
        let store = embedded();
        let tier = open_tier(&store, &config);
        let mut node = NodeStore::new(&store).unwrap();
        let found = all(&mut node);
        let puts: BTreeMap<ObjectKey, PutId> = found.values().map(|found| (found.key.clone(), found.put)).collect();
        assert_eq!(puts, BTreeMap::from([(k.clone(), put_id(1)), (key("", "local"), local)]));
        let slot = found.values().find(|found| found.key == k).unwrap();
        assert_eq!(pin_status(&mut node, name_of(slot), &k), Ok((put_id(1), 9000)));
        assert_eq!(get_if(&store.namespace(b"kv", None).unwrap(), b"a").unwrap(), v);
        let plan = put_through(&mut node, put_id(2), &key("", "later"), b"x");
        assert!(found.values().all(|found| found.epoch < plan.epoch), "epochs go on above what was recovered");
        drop((node, tier, store));
    }
}

/// What is on disk alone comes while the agent does something else; nothing that nobody wants stays held.
#[test]
fn values_come_from_the_disk_beside_the_agent() {
    for backend in BACKENDS {
        let dir = tempfile::tempdir().unwrap();
        let store = embedded();
        let tier = open_tier(&store, &tier_config(&dir, backend));
        let mut node = NodeStore::new(&store).unwrap();
        let (woken, wake) = std::sync::mpsc::channel();
        node.wake_with(std::sync::Arc::new(move || woken.send(()).unwrap_or(())));
        let keys: Vec<ObjectKey> = (0..24).map(|n| key(["kv", ""][n % 2], &format!("k{n}"))).collect();
        for (n, k) in (1..).zip(&keys) {
            put_through(&mut node, put_id(n), k, &value(500 + usize::try_from(n).unwrap()));
        }
        let near = put_through(&mut node, put_id(99), &key("", "near"), b"bytes");
        assert_eq!(tier.offload(Some(&[b"near"])).unwrap(), 1);
        tier.offload(None).unwrap();
        evict(&store);
        let found = all(&mut node);
        let slots: Vec<Plan> =
            keys.iter().map(|k| name_of(found.values().find(|found| found.key == *k).unwrap())).collect();
        let held = pin(&mut node, near, &key("", "near")).unwrap();
        let mut coming: Vec<u64> = Vec::new();
        for (plan, k) in slots.iter().zip(&keys) {
            let Hold::Coming(number) = node.pin(*plan, k, PutId(0)).unwrap() else { panic!("{k:?} is in memory") };
            coming.push(number);
        }
        // What is in memory is held meanwhile.
        let Hold::Held(again) = node.pin(near, &key("", "near"), put_id(99)).unwrap() else {
            panic!("it is in memory")
        };
        [held, again].into_iter().for_each(|pinned| node.unpin(pinned.pin));
        // Some are not wanted, some are dropped, whenever that is.
        coming.iter().skip(2).step_by(4).for_each(|number| node.forget(*number));
        keys.iter().skip(3).step_by(4).for_each(|k| node.drop_key(k));
        wake.recv_timeout(std::time::Duration::from_secs(60)).expect("the agent is told");
        for (at, number) in coming.iter().enumerate().filter(|(at, _)| at % 4 != 2) {
            let came = came(&mut node, *number);
            let expected = (put_id(at as u64 + 1), 501 + at as u64);
            match came {
                Ok(pinned) => {
                    assert_eq!((pinned.put, pinned.length), expected);
                    node.unpin(pinned.pin);
                }
                Err(error) => assert!(at % 4 == 3 && error.status == NMC_ERR_NOT_FOUND, "{at}: {}", error.message),
            }
        }
        // Nothing is held: all of memory can be given to others.
        assert!(eventually(|| {
            evict(&store);
            node.used()[0] == 0
        }));
        // Those that come when the node ends are let go too.
        let Hold::Coming(_) = node.pin(slots[0], &keys[0], PutId(0)).unwrap() else { panic!("it is in memory") };
        drop(node);
        drop((tier, store));
    }
}

/// Fills memory with values of so many bytes, which are held: it takes nothing more.
fn hold_memory(store: &Store, bytes: usize) -> Vec<Pin> {
    let mut held = Vec::new();
    loop {
        let key = format!("held {}", held.len());
        if put(store, key.as_bytes(), &value(bytes)).is_err() {
            return held;
        }
        let Look::Ready((pin, _)) = store.pin(key.as_bytes()).unwrap() else { panic!("{key} was just put") };
        held.push(pin);
    }
}

/// Bytes of what is held, as they are sent.
fn sent(node: &mut NodeStore, pin: u64, offset: u64, bytes: u64) -> Vec<u8> {
    let mut out = Vec::new();
    node.verify(pin, offset, bytes).unwrap();
    node.ready(pin, offset, bytes).unwrap();
    node.pin_spans(pin, offset, bytes).unwrap().list().unwrap().iter().for_each(|span| span.append_to(&mut out));
    out
}

/// Where the slots of these values are.
fn slots_of(node: &mut NodeStore, keys: &[ObjectKey]) -> Vec<Plan> {
    let found = all(node);
    let slot = |key: &ObjectKey| found.values().find(|found| found.key == *key).map(name_of).unwrap();
    keys.iter().map(slot).collect()
}

/// What memory cannot take comes from the disk to memory beside it: whole, as much as was said at a time, and whatever becomes of its key.
#[test]
fn what_memory_cannot_take_is_read_beside_it() {
    // Without a page, and without a header.
    for ((backend, by_way), filler) in BACKENDS.into_iter().zip([None, Some(1 << 20), None]).zip([16_384, 16_384, 1]) {
        let dir = tempfile::tempdir().unwrap();
        let store = embedded();
        let tier = open_tier(&store, &tier_config(&dir, backend));
        let mut node = NodeStore::new(&store).unwrap().staging_at_most(20_000);
        if let Some(most) = by_way {
            node = node.by_way_of_host(most);
        }
        let keys = ["a", "b", "c", "large"].map(|k| key("kv", k));
        let values = [9000, 9001, 9002, 20_001].map(value);
        for ((n, k), v) in (1..).zip(&keys).zip(&values) {
            put_through(&mut node, put_id(n), k, v);
        }
        tier.offload(None).unwrap();
        evict(&store);
        let slots = slots_of(&mut node, &keys);
        let held = hold_memory(&store, filler);
        let newest = node.newest();
        let read = |node: &mut NodeStore, at: usize| {
            pin(node, slots[at], &keys[at]).map_err(|error| (error.status, error.message))
        };
        let (a, b) = (read(&mut node, 0).unwrap(), read(&mut node, 1).unwrap());
        assert_eq!(node.staged(), 18_001, "{backend:?}");
        // As if it were in memory, but others do not reach it there.
        for (n, pinned, v) in [(1, &a, &values[0]), (2, &b, &values[1])] {
            assert_eq!((pinned.put, pinned.length, &pinned.metadata.0[..]), (put_id(n), v.len() as u64, &b"said"[..]));
            assert_eq!(node.sum(pinned.pin).unwrap(), Some(crc32c(v)));
            assert_eq!(sent(&mut node, pinned.pin, 0, pinned.length), *v);
            assert_eq!(sent(&mut node, pinned.pin, 4095, 3000), v[4095..7095]);
            assert!(sent(&mut node, pinned.pin, pinned.length, 0).is_empty());
            assert!(node.pin_spans(pinned.pin, 1, pinned.length).is_err());
            assert_eq!(node.far_spans(pinned.pin, 0, 1).err().map(|error| error.status), Some(NMC_ERR_UNSUPPORTED));
        }
        // What has no room comes when there is some, but for what never has.
        let (busy, why) = read(&mut node, 2).unwrap_err();
        assert!(busy == NMC_ERR_BUSY && why.contains("18001 of 20000"), "{why}");
        let (busy, why) = read(&mut node, 3).unwrap_err();
        assert!(busy == NMC_ERR_BUSY && why.contains("too few for a value of 20001"), "{why}");
        node.unpin(b.pin);
        assert_eq!(node.staged(), 9000);
        let c = read(&mut node, 2).unwrap();
        assert_eq!(sent(&mut node, c.pin, 0, c.length), values[2]);
        assert_eq!(node.newest(), newest, "nobody hears of it: it is not in memory");
        // Removed while it is sent, and replaced.
        node.drop_key(&keys[2]);
        assert_eq!(read(&mut node, 2).unwrap_err().0, NMC_ERR_NOT_FOUND);
        held.into_iter().for_each(|pin| store.unpin(pin).unwrap());
        node.drop_key(&keys[0]);
        let plan = put_through(&mut node, put_id(9), &keys[0], &value(5000)[1..]);
        let Hold::Held(new) = node.pin(slots[0], &keys[0], put_id(1)).unwrap() else { panic!("it is in memory") };
        assert_eq!((new.put, new.length), (put_id(9), 4999), "whoever asks compares the put");
        assert_eq!(sent(&mut node, new.pin, 0, 4999), value(5000)[1..]);
        assert_eq!(pin_status(&mut node, plan, &keys[0]), Ok((put_id(9), 4999)));
        assert_eq!(sent(&mut node, a.pin, 0, a.length), values[0], "what is sent is what it was");
        assert_eq!(sent(&mut node, c.pin, 0, c.length), values[2]);
        // Now memory takes it.
        let b = read(&mut node, 1).unwrap();
        assert_eq!(sent(&mut node, b.pin, 0, b.length), values[1]);
        assert_eq!(node.staged(), 18_002);
        [a, b, c, new].into_iter().for_each(|pinned| node.unpin(pinned.pin));
        assert_eq!(node.staged(), 0);
        drop(node);
        drop((tier, store));
    }
}

/// What others read makes nothing go that only memory has: it comes beside it, until that is on disk too.
#[test]
fn what_others_read_takes_nothing_from_memory_that_the_disk_does_not_have() {
    let dir = tempfile::tempdir().unwrap();
    let store = embedded();
    let tier = open_tier(&store, &tier_config(&dir, Backend::Bucket));
    let mut node = NodeStore::new(&store).unwrap();
    let wanted = key("kv", "wanted");
    put_through(&mut node, put_id(1), &wanted, &value(100_000));
    tier.offload(None).unwrap();
    evict(&store);
    let slot = slots_of(&mut node, std::slice::from_ref(&wanted))[0];
    let fresh: Vec<String> = (0..40).map(|n| format!("fresh {n}")).collect();
    fresh.iter().for_each(|key| put(&store, key.as_bytes(), &value(16_384)).unwrap());
    let left = || fresh.iter().filter(|key| store.exists(key.as_bytes()).unwrap()).count();
    // Those that are there when memory is full.
    let before = left();
    assert!((4..40).contains(&before), "memory is full: {before}");
    for _ in 0..3 {
        let read = pin(&mut node, slot, &wanted).unwrap();
        assert_eq!(sent(&mut node, read.pin, 0, read.length), value(100_000));
        assert_eq!((left(), node.staged()), (before, 100_000), "it is beside memory");
        node.unpin(read.pin);
    }
    tier.offload(None).unwrap();
    let read = pin(&mut node, slot, &wanted).unwrap();
    assert_eq!((sent(&mut node, read.pin, 0, read.length), node.staged()), (value(100_000), 0));
    assert_eq!(left(), before, "what made room is on disk");
    node.unpin(read.pin);
    drop(node);
    drop((tier, store));
}

/// What is dropped or not wanted while it comes beside memory leaves nothing there, and never comes in part.
#[test]
fn what_ends_while_it_comes_beside_memory_is_whole_or_not_there() {
    let dir = tempfile::tempdir().unwrap();
    let store = embedded();
    let tier = open_tier(&store, &tier_config(&dir, Backend::Bucket));
    let mut node = NodeStore::new(&store).unwrap();
    for round in 0..20 {
        let keys: Vec<ObjectKey> = (0..8).map(|n| key("kv", &format!("k{n}"))).collect();
        for (n, k) in (1..).zip(&keys) {
            put_through(&mut node, put_id(100 * (round + 1) + n), k, &value(3000 + usize::try_from(n).unwrap()));
        }
        tier.offload(None).unwrap();
        evict(&store);
        let slots = slots_of(&mut node, &keys);
        let held = hold_memory(&store, 16_384);
        let mut coming: Vec<u64> = Vec::new();
        for (plan, k) in slots.iter().zip(&keys) {
            let Hold::Coming(number) = node.pin(*plan, k, PutId(0)).unwrap() else { panic!("{k:?} is in memory") };
            coming.push(number);
        }
        std::thread::sleep(std::time::Duration::from_micros(round * 100));
        coming.iter().step_by(4).for_each(|number| node.forget(*number));
        keys.iter().skip(1).step_by(2).for_each(|k| node.drop_key(k));
        for (at, number) in coming.iter().enumerate().filter(|(at, _)| at % 4 != 0) {
            match came(&mut node, *number) {
                Ok(pinned) => {
                    assert_eq!(pinned.put, put_id(100 * (round + 1) + 1 + at as u64));
                    assert_eq!(sent(&mut node, pinned.pin, 0, pinned.length), value(3001 + at));
                    node.unpin(pinned.pin);
                }
                Err(error) => assert!(at % 2 == 1 && error.status == NMC_ERR_NOT_FOUND, "{at}: {}", error.message),
            }
        }
        assert!(eventually(|| node.staged() == 0), "nothing is left beside memory");
        held.into_iter().for_each(|pin| store.unpin(pin).unwrap());
        keys.iter().for_each(|k| node.drop_key(k));
        (0..32).for_each(|n| _ = store.remove(format!("held {n}").as_bytes()));
    }
    drop(node);
    drop((tier, store));
}

/// Dropping one place of an object takes the others: they are one put.
#[test]
fn a_drop_takes_what_is_in_memory_and_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let store = embedded();
    let tier = open_tier(&store, &tier_config(&dir, Backend::Bucket));
    let mut node = NodeStore::new(&store).unwrap();
    let k = key("kv", "a");
    for by in ["header", "slot", "put", "key", "space", "all", "slot alone", "put alone"] {
        put_through(&mut node, put_id(7), &k, b"bytes");
        tier.offload(None).unwrap();
        if by.ends_with("alone") {
            evict(&store);
        }
        let at = node.newest();
        let (slot, header): (Vec<Published>, Vec<Published>) =
            all(&mut node).into_values().partition(|found| found.index & ON_DISK != 0);
        assert_eq!((slot.len(), header.len()), (1, usize::from(!by.ends_with("alone"))), "{by}");
        node.drop_put(&k, put_id(8));
        match by {
            "header" => node.drop_named(name_of(&header[0]), &k),
            "slot" | "slot alone" => node.drop_named(name_of(&slot[0]), &k),
            "put" | "put alone" => node.drop_put(&k, put_id(7)),
            "key" => node.drop_key(&k),
            "space" => node.drop_space(Some(b"kv")),
            _ => node.drop_space(None),
        }
        assert!(all(&mut node).is_empty(), "{by}");
        let mut retired = Vec::new();
        assert!(
            eventually(|| {
                let Tail::Facts(facts) = node.facts(at, 100).unwrap() else { panic!("nothing was overwritten") };
                retired = facts;
                let gone = |found: &Published| {
                    let (index, epoch) = (found.index, found.epoch);
                    retired.contains(&Fact::Retired(nanomc::cluster::wire::Retired { index, epoch }))
                };
                slot.iter().chain(&header).all(gone)
            }),
            "{by}: each place tells that it is over: {retired:?}"
        );
        node.set_position(Position { term: 1, number: 1 }).expect("no drop has failed");
        assert_eq!(pin_status(&mut node, name_of(&slot[0]), &k), Err(NMC_ERR_NOT_FOUND), "{by}");
    }
    drop(node);
    drop(tier);
    // Nothing of it comes back.
    let store = embedded();
    let tier = open_tier(&store, &tier_config(&dir, Backend::Bucket));
    assert!(all(&mut NodeStore::new(&store).unwrap()).is_empty());
    drop(tier);
}

#[test]
fn the_position_in_the_drop_log_outlives_the_store_with_its_tier() {
    let dir = tempfile::tempdir().unwrap();
    let config = tier_config(&dir, Backend::Bucket);
    let position = Position { term: 5, number: 9 };
    {
        let store = embedded();
        let tier = open_tier(&store, &config);
        let mut node = NodeStore::new(&store).unwrap();
        assert_eq!(node.position(), None);
        for number in 0..40 {
            // More than a journal has room for at first, and something to write it anew with.
            node.set_position(Position { term: 5, number: number.min(9) }).unwrap();
        }
        assert_eq!(node.position(), Some(position));
        drop((node, tier));
    }
    let store = embedded();
    let tier = open_tier(&store, &config);
    let mut node = NodeStore::new(&store).unwrap();
    assert_eq!(node.position(), Some(position));
    node.set_position(Position { term: 6, number: 2 }).unwrap();
    // A tier that has seen less than the memory above it is apart.
    drop((node, tier));
    let other = tempfile::tempdir().unwrap();
    {
        let behind = embedded();
        let tier = open_tier(&behind, &tier_config(&other, Backend::Bucket));
        let mut node = NodeStore::new(&behind).unwrap();
        node.set_position(Position { term: 4, number: 1 }).unwrap();
        drop((node, tier));
    }
    let tier = open_tier(&store, &tier::Config { other_directory: true, ..tier_config(&other, Backend::Bucket) });
    let node = NodeStore::new(&store).unwrap();
    let (memory, disk) = (Position { term: 6, number: 2 }, Position { term: 4, number: 1 });
    assert_eq!((node.position(), node.apart(), node.has_left()), (Some(memory), Some(disk), true));
    drop((node, tier));
}

#[test]
fn a_tier_that_comes_back_to_a_store_that_went_on_without_it_is_apart_until_what_it_brought_is_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let config = tier_config(&dir, Backend::Bucket);
    let position = |number| Position { term: 5, number };
    let store = embedded();
    let tier = open_tier(&store, &config);
    let mut node = NodeStore::new(&store).unwrap();
    let (a, b, c) = (key("kv", "a"), key("kv", "b"), key("kv", "c"));
    put_through(&mut node, put_id(1), &a, &value(100));
    put_through(&mut node, put_id(2), &b, &value(100));
    node.set_position(position(1)).unwrap();
    assert_eq!(tier.offload(None).unwrap(), 2);
    evict(&store);
    drop(tier);
    // What was applied without the tier is not kept before the node has noticed that, and said so.
    assert!(node.set_position(position(2)).is_err());
    assert_eq!((node.position(), node.apart(), node.has_left()), (Some(position(1)), None, true));
    node.offer("n").unwrap();
    node.set_position(position(2)).unwrap();
    assert!(!node.has_left());
    let space = store.namespace(b"kv", None).unwrap();
    for name in [&b"new"[..], b"newer"] {
        // However often it comes. What it brings into memory goes with it, what is put meanwhile stays.
        let tier = open_tier(&store, &config);
        assert_eq!((node.position(), node.apart()), (Some(position(2)), Some(position(1))));
        assert!(node.set_position(position(3)).is_err() && node.drop_apart().is_err());
        space.promote(&[b"b"], 0, |_, told| assert!(told.unwrap()));
        put(&space, name, b"bytes").unwrap();
        assert!(tier.offload(None).unwrap() > 0);
        drop(tier);
        assert!(!space.exists(b"b").unwrap() && space.exists(name).unwrap());
        assert_eq!((node.position(), node.apart(), node.has_left()), (Some(position(2)), None, true));
    }
    let tier = open_tier(&store, &config);
    // What comes into memory from there goes with it; what is new stays, on disk as well.
    space.promote(&[b"a"], 0, |_, told| assert!(told.unwrap()));
    put_through(&mut node, put_id(3), &c, &value(100));
    assert_eq!(tier.offload(None).unwrap(), 1);
    node.offer("n").unwrap();
    node.drop_apart().unwrap();
    let left = all(&mut node);
    assert!(left.len() == 6 && left.values().all(|found| found.key != a && found.key != b), "{left:?}");
    assert_eq!(left.values().filter(|found| found.key == c).count(), 2);
    assert_eq!(node.apart(), Some(position(1)));
    node.set_position(position(3)).unwrap();
    assert_eq!((node.position(), node.apart(), node.has_left()), (Some(position(3)), None, false));
    drop((node, tier));
}

/// What a disk that is apart has brought into memory does not stay there when its entry goes: nobody could tell it from the rest any more.
#[test]
fn what_was_brought_goes_with_its_entry_while_the_tier_is_apart() {
    let dir = tempfile::tempdir().unwrap();
    let config = tier_config(&dir, Backend::Bucket);
    let position = |number| Position { term: 5, number };
    let store = embedded();
    let mut node = NodeStore::new(&store).unwrap();
    let tier = open_tier(&store, &config);
    node.offer("n").unwrap();
    put_through(&mut node, put_id(1), &key("kv", "a"), &value(100));
    node.set_position(position(1)).unwrap();
    tier.offload(None).unwrap();
    evict(&store);
    drop(tier);
    node.offer("n").unwrap();
    node.set_position(position(2)).unwrap();
    let space = store.namespace(b"kv", None).unwrap();
    let tier = open_tier(&store, &config);
    assert_eq!(node.apart(), Some(position(1)));
    space.promote(&[b"a"], 0, |_, told| assert!(told.unwrap()));
    put(&space, b"new", b"bytes").unwrap();
    assert!(space.exists(b"a").unwrap());
    assert_eq!(tier.evict(0).unwrap(), 1, "the disk has nothing left");
    assert!(!space.exists(b"a").unwrap() && space.exists(b"new").unwrap());
    // Once nothing is apart any more, an entry that goes leaves what is in memory.
    node.offer("n").unwrap();
    node.drop_apart().unwrap();
    node.set_position(position(3)).unwrap();
    tier.offload(None).unwrap();
    evict(&store);
    space.promote(&[b"new"], 0, |_, told| assert!(told.unwrap()));
    assert_eq!(tier.evict(0).unwrap(), 1);
    assert!(space.exists(b"new").unwrap());
    drop((node, tier));
}

/// Positions of two clusters have no order: a disk that was in another one is apart, wherever that was.
#[test]
fn a_tier_of_another_cluster_is_apart() {
    for (first, second) in [(9, 4), (4, 9)] {
        let dir = tempfile::tempdir().unwrap();
        let config = tier_config(&dir, Backend::Bucket);
        let position = |cluster, number| Position { term: terms_of(cluster) + 1, number };
        let store = embedded();
        let mut node = NodeStore::new(&store).unwrap();
        let tier = open_tier(&store, &config);
        node.offer("n").unwrap();
        put_through(&mut node, put_id(1), &key("kv", "a"), &value(100));
        node.set_position(position(first, 7)).unwrap();
        tier.offload(None).unwrap();
        evict(&store);
        drop(tier);
        node.offer("n").unwrap();
        node.set_position(position(second, 2)).unwrap();
        let tier = open_tier(&store, &config);
        assert_eq!((node.position(), node.apart()), (Some(position(second, 2)), Some(position(first, 7))));
        // Nobody gets anything of it before the node has said that it is there.
        let slot = Plan { index: ON_DISK, epoch: 1 };
        assert_eq!(node.pin(slot, &key("kv", "a"), put_id(1)).map_err(|error| error.status), Err(NMC_ERR_UNAVAILABLE));
        let space = store.namespace(b"kv", None).unwrap();
        space.promote(&[b"a"], 0, |_, told| assert!(told.unwrap()));
        assert_eq!(node.pin(slot, &key("kv", "a"), put_id(1)).map_err(|error| error.status), Err(NMC_ERR_UNAVAILABLE));
        node.offer("n").unwrap();
        node.drop_apart().unwrap();
        assert!(all(&mut node).is_empty() && !space.exists(b"a").unwrap());
        drop((node, tier));
    }
}

#[test]
fn a_tier_that_was_closed_before_its_store_came_to_a_cluster_is_apart() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let config = tier_config(&dirs[0], Backend::Bucket);
    let store = embedded();
    drop(open_tier(&store, &config));
    NodeStore::new(&store).unwrap().set_position(Position { term: 5, number: 1 }).unwrap();
    let tier = open_tier(&store, &config);
    assert_eq!(store.apart(), Some((1, 0)));
    drop(tier);
    // Control: a store that never had one has nothing that could be there.
    let store = embedded();
    NodeStore::new(&store).unwrap().set_position(Position { term: 5, number: 1 }).unwrap();
    let tier = open_tier(&store, &tier_config(&dirs[1], Backend::Bucket));
    assert_eq!(store.apart(), None);
    drop(tier);
}

#[test]
fn a_position_that_was_given_up_does_not_come_back_with_the_tier() {
    let dir = tempfile::tempdir().unwrap();
    let config = tier_config(&dir, Backend::Bucket);
    let kept = Position { term: 5, number: 9 };
    {
        let store = embedded();
        let tier = open_tier(&store, &config);
        let mut node = NodeStore::new(&store).unwrap();
        for _ in 0..40 {
            // The journal is written anew in between.
            node.set_position(kept).unwrap();
            node.set_position(Position::default()).unwrap();
        }
        assert_eq!(node.position(), None);
        drop((node, tier));
    }
    let store = embedded();
    let tier = open_tier(&store, &config);
    assert_eq!(NodeStore::new(&store).unwrap().position(), None);
    drop(tier);
    // It says nothing of what is in memory above it.
    let store = embedded();
    NodeStore::new(&store).unwrap().set_position(kept).unwrap();
    let tier = open_tier(&store, &config);
    assert_eq!(NodeStore::new(&store).unwrap().position(), Some(kept));
    drop(tier);
}

#[test]
fn an_agent_finds_out_that_the_tier_came_or_went() {
    let dir = tempfile::tempdir().unwrap();
    let store = embedded();
    let mut node = NodeStore::new(&store).unwrap();
    assert_eq!((node.slots(), node.used().len(), node.facts(0, 1).is_ok()), (0, 1, true));
    let without = node.offer("n").unwrap();
    assert_eq!((without.slots, without.segments.len(), without.store), (0, 1, store.store_id()));
    let tier = open_tier(&store, &tier_config(&dir, Backend::Bucket));
    assert_eq!(node.facts(0, 1).map_err(|error| error.status), Err(NMC_ERR_STALE));
    assert!(node.check_tier().is_err() && node.part(0, 1).is_err());
    // Once it has said what there is now it goes on, as another store.
    let with = node.offer("n").unwrap();
    assert!(node.check_tier().is_ok() && with.slots > 0 && with.slots == node.slots());
    assert!(with.store != without.store && with.segments[1].name == "n/ssd" && node.used().len() == 2);
    drop(node);
    let mut node = NodeStore::new(&store).unwrap();
    assert!(node.check_tier().is_ok() && node.slots() > 0);
    put_through(&mut node, put_id(1), &key("", "a"), b"bytes");
    tier.offload(None).unwrap();
    drop(tier);
    assert!(node.check_tier().is_err());
    assert_eq!(node.offer("n").unwrap(), Offer { segments: node.segments(|_| "n".into()).unwrap(), ..without });
    assert_eq!(
        all(&mut NodeStore::new(&{
            drop(node);
            store
        })
        .unwrap())
        .len(),
        1,
        "what memory has"
    );
}

#[test]
fn an_agent_finds_out_that_a_tier_came_and_went() {
    let dir = tempfile::tempdir().unwrap();
    let store = embedded();
    let mut node = NodeStore::new(&store).unwrap();
    let position = |number| Position { term: 3, number };
    node.set_position(position(1)).unwrap();
    put_through(&mut node, put_id(1), &key("", "a"), b"bytes");
    let tier = open_tier(&store, &tier_config(&dir, Backend::Bucket));
    tier.offload(None).unwrap();
    drop(tier);
    // The tier has a value, and is not told what is dropped: that it was left behind is not forgotten before others hear of it.
    assert!(node.has_changed());
    assert_eq!(node.set_position(position(2)).map_err(|error| error.status), Err(NMC_ERR_STALE));
    node.offer("n").unwrap();
    assert!(node.has_left() && !node.has_changed());
    node.set_position(position(2)).unwrap();
    assert!(!node.has_left());
}

/// Commits what is to be on disk, and waits until it is. Gives the number of a fact.
fn commit_to_disk(node: &mut NodeStore, plan: Plan) -> u64 {
    assert_eq!(node.commit(plan).unwrap(), None, "it is published, and being written");
    let mut fact = None;
    assert!(eventually(|| {
        fact = node.written(plan).unwrap();
        fact.is_some()
    }));
    fact.unwrap()
}

/// A put to the tier is answered when it is on disk.
#[test]
fn a_put_to_the_tier_is_on_disk_when_it_is_committed() {
    let dir = tempfile::tempdir().unwrap();
    let store = embedded();
    let tier = open_tier(&store, &tier::Config { paused: false, ..tier_config(&dir, Backend::Bucket) });
    let mut node = NodeStore::new(&store).unwrap();
    let k = key("kv", "a");
    let plan = open(&mut node, put_id(1), &k, 9000, 1).unwrap();
    fill(&node, plan, &value(9000));
    let fact = commit_to_disk(&mut node, plan);
    let slot = all(&mut node).into_values().find(|found| found.index & ON_DISK != 0).expect("it is there");
    assert_eq!((slot.key, slot.put), (k, put_id(1)));
    assert!(node.newest() >= fact);
    assert_eq!(open(&mut node, put_id(2), &key("", "b"), 10, 2), Err(NMC_ERR_INVALID_ARG), "there is no such segment");
    drop((node, tier));
}

/// Whatever moves between memory and disk, the list that is kept by the facts is the one that looking at everything gives.
#[test]
fn whoever_is_told_the_facts_knows_what_is_in_memory_and_on_disk() {
    let mut seen = 0;
    for seed in 1..6u64 {
        let dir = tempfile::tempdir().unwrap();
        let store = embedded();
        let evict_some = tier::Config { evict: tier::Evict::Fifo, ..tier_config(&dir, Backend::Bucket) };
        let tier = open_tier(&store, &evict_some);
        let (mut node, mut directory) = (NodeStore::new(&store).unwrap(), Directory::default());
        let kv = store.namespace(b"kv", None).unwrap();
        let mut chance = Random(seed);
        let mut random = |limit: u64| chance.below(limit);
        for step in 0..400 {
            let name = format!("k{}", random(40));
            let (space, program) = if random(2) == 0 { ("", &store) } else { ("kv", &kv) };
            let (k, v) = (key(space, &name), value(usize::try_from(random(9000)).unwrap()));
            let any = |node: &mut NodeStore, n: u64| all(node).into_values().nth(usize::try_from(n).unwrap());
            match random(16) {
                0 => _ = program.remove(name.as_bytes()),
                1 => evict(&store),
                2 => _ = put_as(program, name.as_bytes(), &v, &PutOptions { replace: true, ..PutOptions::DEFAULT }),
                3 | 4 => _ = put(program, name.as_bytes(), &v),
                5 => _ = tier.offload(None).unwrap(),
                6 => program.promote(&[name.as_bytes()], 0, |_, _| ()),
                7 => node.drop_key(&k),
                8 => {
                    if let Some(found) = any(&mut node, random(40)) {
                        node.drop_named(name_of(&found), &found.key);
                    }
                }
                9 => {
                    if let Some(found) = any(&mut node, random(40)) {
                        node.drop_put(&found.key, found.put);
                    }
                }
                10 => {
                    if let Some(found) = any(&mut node, random(40)) {
                        let put = pin_status(&mut node, name_of(&found), &found.key);
                        assert!(put.is_ok_and(|(put, _)| put == found.put), "{found:?}");
                    }
                }
                11 if random(6) == 0 => node.drop_space([None, Some(&b"kv"[..])][usize::try_from(random(2)).unwrap()]),
                _ => {
                    if let Ok(plan) = open(&mut node, put_id(step), &k, v.len(), 0) {
                        fill(&node, plan, &v);
                        node.commit(plan).expect("nobody else touches it");
                    }
                }
            }
            if random(7) == 0 {
                directory.follow(&mut node);
            }
        }
        node.set_position(Position { term: 1, number: 1 }).expect("no drop has failed");
        let at_rest = eventually(|| {
            let newest = node.newest();
            directory.follow(&mut node);
            directory.live == all(&mut node) && directory.at >= newest
        });
        assert!(at_rest, "seed {seed}: {:?} is not {:?}", directory.live, all(&mut node));
        seen += directory.live.keys().filter(|index| **index & ON_DISK != 0).count();
        drop((node, tier));
    }
    assert!(seen > 10, "there was something on disk to see: {seen}");
}

/// The same from a process that is not the master's: it reads the lists of buckets by itself.
#[test]
fn an_agent_elsewhere_reads_the_tier_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let of = |rank| nanomc::world::Config {
        hosting: Hosting::Elsewhere,
        heap_bytes: 128 * 4096,
        ..world_config(dir.path(), rank, 1)
    };
    let masters = Masters::open_with_tier(&of(None)).unwrap();
    let paused = tier::Config { paused: false, ..tier_config(&dir, Backend::Bucket) };
    let mut hosted = tier::Hosted::new(&masters, paused).unwrap();
    let world = World::join(of(Some(0))).unwrap();
    let store = Store::attach(&world, &config()).unwrap();
    assert_eq!(
        NodeStore::new(&store).err().map(|error| error.status),
        Some(NMC_ERR_UNAVAILABLE),
        "it waits for its tier"
    );
    assert!(eventually(|| hosted.look(&mut |_, _| ()).unwrap()));
    let mut node = NodeStore::new(&store).unwrap();
    let k = key("kv", "a");
    let plan = open(&mut node, put_id(1), &k, 9000, 1).unwrap();
    fill(&node, plan, &value(9000));
    commit_to_disk(&mut node, plan);
    node.set_position(Position { term: 2, number: 3 }).unwrap();
    evict(&store);
    let found = all(&mut node);
    let [slot] = found.values().collect::<Vec<_>>()[..] else { panic!("{found:?}") };
    assert_eq!((&slot.key, slot.put, slot.index & ON_DISK), (&k, put_id(1), ON_DISK));
    assert_eq!(pin_status(&mut node, name_of(slot), &k), Ok((put_id(1), 9000)));
    assert_eq!(get_if(&store.namespace(b"kv", None).unwrap(), b"a").unwrap(), value(9000));
    node.drop_named(name_of(slot), &k);
    assert!(all(&mut node).is_empty());
    drop(node);
    drop((store, world));
    drop(hosted);
}

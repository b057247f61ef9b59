//! Nodes with a tier below their store, which is opened and closed at any time.

use super::common::{Directory, PAGE, a_store, eventually, get, put, slice, slice_mut, value};
use super::over::Over;
use super::{node, node_by_way, store_value};
use nanomc::base::status::*;
use nanomc::cluster::facade::{Cluster, Config, Item, PutOptions, What};
use nanomc::cluster::types::Media;
use nanomc::cluster::wire::{Location, Replicate};
use nanomc::store::Store;
use nanomc::store::copy::Pieces;
use nanomc::store::types::{Look, Pin};
use nanomc::tier::Tier;
use nanomc::{store, tier};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

/// Opens a tier below a store of which it takes what it is told to.
fn a_tier(store: &Store, dir: &std::path::Path) -> Tier {
    let config = tier::Config {
        directory: dir.into(),
        capacity_bytes: 64 << 20,
        paused: true,
        max_objects: 100,
        ..tier::Config::default()
    };
    Tier::open(store, &config, &mut |_, _| ()).unwrap()
}

#[test]
fn the_tier_of_a_node_is_opened_and_closed_while_it_is_in_the_cluster_and_while_it_is_not() {
    let directory = Directory::new();
    let (cluster, store, name) = node(&directory, 16);
    let other = directory.client();
    let dir = tempfile::tempdir().unwrap();
    let segments = || other.segments().unwrap().len();
    let value = value(1, 100_000);
    put(&other, "first", &value, 1).unwrap();
    for round in 0..3 {
        let (key, later) = (format!("k{round}"), format!("l{round}"));
        if round == 2 {
            // Its values are still there when it is attached again, and so is its name.
            cluster.unmount(&name).unwrap();
        }
        let tier = a_tier(&store, &dir.path().join(format!("{}", round % 2)));
        if round == 2 {
            cluster.mount(&store, Some(&name), false).unwrap();
        }
        eventually("the tier is a segment", || segments() == 2);
        put(&other, &key, &value, 1).unwrap();
        assert!(tier.offload(None).unwrap() > 0);
        store.evict_until_below(0, 0).unwrap();
        cluster.sync().unwrap();
        // What memory has let go of comes from disk, also what was put before there was one.
        for key in [&key, "first"] {
            assert_eq!(get(&other, key, value.len()).unwrap(), value, "{key} in round {round}");
        }
        drop(tier);
        eventually("the tier is no segment", || segments() == 1);
        put(&other, &later, &value, 1).unwrap();
        cluster.sync().unwrap();
        assert_eq!(get(&other, &later, value.len()).unwrap(), value);
        assert_eq!(other.remove(later.as_bytes(), true).unwrap(), NMC_OK);
        // Nobody is sent to what was on a disk that is gone.
        let _ = store.remove(b"first");
        cluster.sync().unwrap();
        assert_eq!(get(&other, "first", value.len()), Err(NMC_ERR_NOT_FOUND));
        put(&other, "first", &value, 1).unwrap();
    }
}

#[test]
fn what_is_said_about_a_value_is_told_from_memory_and_from_disk() {
    let (directory, dir) = (Directory::new(), tempfile::tempdir().unwrap());
    let (cluster, store, _) = node(&directory, 16);
    let (other, value) = (directory.client(), value(1, 100_000));
    let tier = a_tier(&store, dir.path());
    eventually("the tier is a segment", || other.segments().unwrap().len() == 2);
    let options = PutOptions { metadata: b"said".to_vec(), ..PutOptions::default() };
    other.put(&[Item::new(b"k", &[slice(&value)])], &options).unwrap().remove(0).unwrap();
    let mut into = vec![0u8; value.len()];
    let slices = [slice_mut(&mut into)];
    for on_disk in [false, true] {
        if on_disk {
            assert!(tier.offload(None).unwrap() > 0);
            store.evict_until_below(0, 0).unwrap();
            assert!(matches!(store.metadata(b"k").unwrap(), Look::Missing));
        }
        for client in [&cluster, &other] {
            let about = client.get_what(&[Item::new(b"k", &[])], What::Metadata).unwrap().remove(0);
            assert!(about.result.is_ok() && about.metadata == b"said", "on disk: {on_disk}");
        }
    }
    for client in [&cluster, &other] {
        into.fill(0);
        let both = client.get_what(&[Item::new(b"k", &slices)], What::Both).unwrap().remove(0);
        assert!(both.result.is_ok() && both.bytes == 100_000 && both.metadata == b"said" && into == value);
    }
}

/// Fills memory with values that are held: it takes nothing more.
fn fill(store: &Store) -> Vec<Pin> {
    let mut held = Vec::new();
    let bytes = value(0, PAGE as usize);
    let slices = [slice(&bytes)];
    loop {
        let key = format!("held {}", held.len());
        if store.put(key.as_bytes(), &Pieces::Slices(&slices), &store::types::PutOptions::DEFAULT).is_err() {
            return held;
        }
        let Look::Ready((pin, _)) = store.pin(key.as_bytes()).unwrap() else { panic!("{key} was just put") };
        held.push(pin);
    }
}

/// What is on disk alone is read by others while the owner's memory takes nothing.
#[test]
fn memory_that_takes_nothing_keeps_nobody_from_what_is_on_disk() {
    [None, Some(1 << 20)].into_iter().for_each(reads_beside_memory);
}

fn reads_beside_memory(bounce: Option<u64>) {
    let (directory, dir) = (Directory::new(), tempfile::tempdir().unwrap());
    let (cluster, store, _) = node_by_way(&directory, 16, bounce);
    let (other, bytes) = (directory.client(), value(1, 100_000));
    let tier = a_tier(&store, dir.path());
    eventually("the tier is a segment", || other.segments().unwrap().len() == 2);
    let to_disk = |bytes: &[u8]| {
        let options = PutOptions { metadata: b"said".to_vec(), ..PutOptions::default() };
        other.put(&[Item::new(b"k", &[slice(bytes)])], &options).unwrap().remove(0).unwrap();
        assert!(tier.offload(None).unwrap() > 0);
        store.evict_until_below(0, 0).unwrap();
        cluster.sync().unwrap();
    };
    let in_memory = || !matches!(store.metadata(b"k").unwrap(), Look::Missing);
    to_disk(&bytes);
    let held = fill(&store);
    assert!(held.len() > 8, "memory is full");
    assert_eq!(get(&other, "k", bytes.len()).as_ref(), Ok(&bytes));
    let mut into = vec![0u8; bytes.len()];
    let slices = [slice_mut(&mut into)];
    let both = other.get_what(&[Item::new(b"k", &slices)], What::Both).unwrap().remove(0);
    assert!(both.result.is_ok() && both.bytes == 100_000 && both.metadata == b"said" && into == bytes);
    assert!(!in_memory(), "memory takes nothing");
    assert_eq!(other.remove(b"k", true).unwrap(), NMC_OK);
    assert_eq!(get(&other, "k", bytes.len()), Err(NMC_ERR_NOT_FOUND));
    // When there is room again it is memory that has what others read.
    held.into_iter().for_each(|pin| store.unpin(pin).unwrap());
    let bytes = value(2, 100_000);
    to_disk(&bytes);
    assert_eq!(get(&other, "k", bytes.len()).as_ref(), Ok(&bytes));
    assert!(in_memory());
}

/// Values of more bytes than there may be beside memory at a time are all read in the end.
#[test]
fn many_readers_share_what_there_is_beside_memory() {
    const BYTES: usize = 8 << 20;
    let (directory, dir) = (Directory::new(), tempfile::tempdir().unwrap());
    let (cluster, store, _) = node(&directory, 160);
    let (others, dir) = ([directory.client(), directory.client()], dir.path());
    let config = tier::Config {
        directory: dir.into(),
        capacity_bytes: 512 << 20,
        paused: true,
        max_objects: 100,
        ..tier::Config::default()
    };
    let tier = Tier::open(&store, &config, &mut |_, _| ()).unwrap();
    eventually("the tier is a segment", || others[0].segments().unwrap().len() == 2);
    let keys: Vec<String> = (0..12).map(|n| format!("k{n}")).collect();
    for (key, seed) in keys.iter().zip(1..) {
        put(&others[0], key, &vec![seed; BYTES], 1).unwrap();
        assert_eq!(tier.offload(None).unwrap(), 1);
        store.evict_until_below(0, 0).unwrap();
    }
    cluster.sync().unwrap();
    let held = fill(&store);
    assert!(held.len() > 100, "memory is full");
    std::thread::scope(|scope| {
        for other in &others {
            scope.spawn(|| {
                let mut into = vec![vec![0u8; BYTES]; keys.len()];
                let slices: Vec<_> = into.iter_mut().map(|into| [slice_mut(into)]).collect();
                let items: Vec<_> = keys.iter().zip(&slices).map(|(key, to)| Item::new(key.as_bytes(), to)).collect();
                let got = other.get(&items).unwrap();
                for ((key, got), (into, seed)) in keys.iter().zip(got).zip(into.iter().zip(1u8..)) {
                    assert!(got.result.is_ok(), "{key}: {:?}", got.result);
                    assert!(into.iter().all(|byte| *byte == seed), "{key}");
                }
            });
        }
    });
}

/// A put to the disk of another node is there when it has ended: on disk, whatever becomes of memory; and the node does something else meanwhile.
#[test]
fn a_put_to_the_disk_of_another_node_is_on_disk_when_it_ends() {
    [None, Some(1 << 20)].into_iter().for_each(puts_to_a_disk);
}

fn puts_to_a_disk(bounce: Option<u64>) {
    let directory = Directory::new();
    let (near, store, name) = node_by_way(&directory, 32, bounce);
    let (_far, _far_store, _) = node(&directory, 32);
    let other = directory.client();
    let dir = tempfile::tempdir().unwrap();
    let settings = tier::Config {
        directory: dir.path().into(),
        capacity_bytes: 64 << 20,
        max_objects: 100,
        ..tier::Config::default()
    };
    let tier = Tier::open(&store, &settings, &mut |_, _| ()).unwrap();
    eventually("the tier is a segment", || other.segments().unwrap().len() == 3);
    let put_with = |key: &str, value: &[u8], replicate: Replicate| {
        let item = Item { key: key.as_bytes(), slices: &[slice(value)], far: false };
        let options = PutOptions { replicate, ..PutOptions::default() };
        other.put(&[item], &options).unwrap().pop().unwrap().map_err(|error| error.status)
    };
    let media = |key: &str| {
        let listed = other.query(&[key.as_bytes()]).unwrap().pop().unwrap();
        listed.replicas.iter().map(|replica| replica.media).collect::<Vec<_>>()
    };
    let plain = PutOptions::default().replicate;
    for round in 0..8usize {
        let value = value(round, 10_000 + round * 20_000);
        let key = format!("k{round}");
        let fixed = Location { segment: name.clone(), media: Some(Media::Ssd) };
        let replicate = match round % 3 {
            0 => Replicate { media: vec![0, 0, 1], ..plain.clone() },
            1 => Replicate { fixed: vec![fixed], ..plain.clone() },
            // One in memory besides, which is on another node: the sum counts.
            _ => Replicate { media: vec![0, 1, 1], ..plain.clone() },
        };
        put_with(&key, &value, replicate).unwrap();
        let found = media(&key);
        assert!(found.contains(&Media::Ssd), "{key}: {found:?}");
        let nodes = other.query(&[key.as_bytes()]).unwrap().pop().unwrap().replicas;
        let nodes: std::collections::BTreeSet<_> = nodes.iter().map(|replica| replica.name.node).collect();
        assert_eq!(nodes.len(), if round % 3 == 2 { 2 } else { 1 }, "{found:?}");
        store.evict_until_below(0, 0).unwrap();
        near.sync().unwrap();
        assert_eq!(get(&other, &key, value.len()).unwrap(), value);
    }
    // What is there is read again after the store is gone: nothing of it was in memory only.
    drop(tier);
    eventually("the tier is no segment", || other.segments().unwrap().len() == 2);
    let value = value(9, 1000);
    let fixed = Location { segment: name.clone(), media: Some(Media::Ssd) };
    assert_eq!(put_with("none", &value, Replicate { fixed: vec![fixed], ..plain }), Err(NMC_ERR_NO_SPACE));
}

/// What is being put to a disk that is closed just now is put when it is there again, or has no place: it is not cancelled.
#[test]
fn a_put_to_a_disk_that_is_closed_meanwhile_begins_again() {
    let directory = Directory::new();
    let (_cluster, store, name) = node(&directory, 64);
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        let settings = tier::Config {
            directory: dir.path().into(),
            capacity_bytes: 64 << 20,
            max_objects: 100,
            ..tier::Config::default()
        };
        Tier::open(&store, &settings, &mut |_, _| ()).unwrap()
    };
    let over = AtomicBool::new(false);
    let (mut tier, mut statuses) = (open(), std::collections::BTreeMap::new());
    std::thread::scope(|scope| {
        let end = Over(&over);
        let puts = |writer: usize| {
            let (other, value) = (directory.client(), value(writer, 30_000));
            let place = Location { segment: name.clone(), media: Some(Media::Ssd) };
            let options = PutOptions {
                replicate: Replicate { fixed: vec![place], ..PutOptions::default().replicate },
                ..PutOptions::default()
            };
            let mut statuses = Vec::new();
            while !over.load(SeqCst) {
                let key = format!("k{writer}-{}", statuses.len());
                let item = Item { key: key.as_bytes(), slices: &[slice(&value)], far: false };
                let put = other.put(&[item], &options).unwrap().pop().unwrap();
                statuses.push(put.map_or_else(|error| error.status, |()| NMC_OK));
                let _ = other.remove(key.as_bytes(), false);
            }
            statuses
        };
        let writers: Vec<_> = (0..4).map(|writer| scope.spawn(move || puts(writer))).collect();
        for _ in 0..12 {
            std::thread::sleep(Duration::from_millis(100));
            drop(tier);
            tier = open();
        }
        drop(end);
        for status in writers.into_iter().flat_map(|writer| writer.join().unwrap()) {
            *statuses.entry(status).or_insert(0) += 1;
        }
    });
    assert!(statuses.contains_key(&NMC_OK), "{statuses:?}");
    // There is no such place while it is closed. Where there are many that begin again it may take its time.
    statuses.retain(|status, _| ![NMC_OK, NMC_ERR_NO_SPACE, NMC_ERR_TIMEOUT].contains(status));
    assert!(statuses.is_empty(), "{statuses:?}");
}

/// Puts of others are on disk when they end, if the tier of their node writes through; whatever their namespace.
#[test]
fn a_node_that_writes_through_takes_puts_of_all_namespaces() {
    [None, Some(1 << 20)].into_iter().for_each(puts_through);
}

fn puts_through(bounce: Option<u64>) {
    let directory = Directory::new();
    let (near, store, name) = node_by_way(&directory, 32, bounce);
    let dir = tempfile::tempdir().unwrap();
    let settings = tier::Config {
        directory: dir.path().into(),
        capacity_bytes: 64 << 20,
        max_objects: 100,
        write_through: true,
        ..tier::Config::default()
    };
    let _tier = Tier::open(&store, &settings, &mut |_, _| ()).unwrap();
    eventually("the tier is a segment", || near.segments().unwrap().len() == 2);
    for space in [&b"other"[..], b""] {
        let client = Cluster::open(Config { space: space.into(), ..directory.config() }).unwrap();
        for round in 0..4usize {
            let (key, value) = (format!("k{round}"), value(round, 10_000 + round * 20_000));
            put(&client, &key, &value, 1).unwrap();
            store.evict_until_below(0, 0).unwrap();
            near.sync().unwrap();
            assert_eq!(get(&client, &key, value.len()).unwrap(), value, "{key} in {space:?}");
        }
    }
    // What is copied there waits for nobody: it is elsewhere too.
    let (far, far_store, far_name) = node(&directory, 32);
    store_value(&far_store, b"moves");
    far.sync().unwrap();
    eventually("it has moved", || far.drain(&far_name, Duration::ZERO).unwrap().status == NMC_OK);
    let at = |key: &[u8]| near.query(&[key]).unwrap().pop().unwrap().replicas;
    assert!(at(b"moves").iter().any(|replica| replica.name.node == nanomc::cluster::types::NodeId::of(&name)));
}

/// Where a program says that a copy must be, one is when the put has ended well; memory of another node does not stand in for a disk that is
/// full.
#[test]
fn a_place_that_is_named_is_not_replaced_by_another() {
    let directory = Directory::new();
    let (_near, store, name) = node(&directory, 64);
    let (_far, _far_store, _) = node(&directory, 64);
    let other = directory.client();
    let dir = tempfile::tempdir().unwrap();
    let settings = tier::Config {
        directory: dir.path().into(),
        capacity_bytes: 4 << 20,
        bucket_bytes: 1 << 20,
        max_objects: 100,
        ..tier::Config::default()
    };
    let _tier = Tier::open(&store, &settings, &mut |_, _| ()).unwrap();
    eventually("the tier is a segment", || other.segments().unwrap().len() == 3);
    let bytes = value(1, 700_000);
    let mut refused = 0;
    for round in 0..12 {
        let key = format!("k{round}");
        let fixed = vec![Location { segment: name.clone(), media: Some(Media::Ssd) }];
        let replicate = Replicate { fixed, ..PutOptions::default().replicate };
        let item = Item { key: key.as_bytes(), slices: &[slice(&bytes)], far: false };
        let options = PutOptions { replicate, ..PutOptions::default() };
        let done = other.put(&[item], &options).unwrap().remove(0);
        let listed = other.query(&[key.as_bytes()]).unwrap().remove(0).replicas;
        match done {
            Ok(()) => assert!(listed.iter().any(|replica| replica.media == Media::Ssd), "{key}: {listed:?}"),
            Err(error) => {
                assert!(listed.is_empty(), "{key}: {error}, and {listed:?}");
                refused += 1;
            }
        }
    }
    assert!(refused > 0, "the disk was never full");
}

#[test]
fn a_tier_that_was_closed_keeps_what_nobody_removed_and_what_nobody_knows_of_goes_alone() {
    for removes in [false, true] {
        let directory = Directory::new();
        let (cluster, store, near) = node(&directory, 16);
        let (_far, _far_store, far) = node(&directory, 16);
        let other = directory.client();
        let dir = tempfile::tempdir().unwrap();
        let segments = || other.segments().unwrap().len();
        let put_at = |name: &str, key: &str, value: &[u8]| {
            let fixed = vec![Location { segment: name.into(), media: Some(Media::Ram) }];
            let replicate = Replicate { copies: 1, fixed, ..PutOptions::default().replicate };
            let item = Item { key: key.as_bytes(), slices: &[slice(value)], far: false };
            let options = PutOptions { replicate, ..PutOptions::default() };
            // It may have left just now, to begin anew.
            eventually("it is put", || other.put(&[item], &options).unwrap().remove(0).is_ok());
        };
        let tier = a_tier(&store, dir.path());
        eventually("the tier is a segment", || segments() == 3);
        let slices = [slice(b"value")];
        store.put(b"own", &nanomc::store::copy::Pieces::Slices(&slices), &store::types::PutOptions::DEFAULT).unwrap();
        put_at(&near, "k", b"value");
        // The node is not told of this.
        put_at(&far, "far", b"value");
        assert_eq!(other.remove(b"far", true).unwrap(), NMC_OK);
        assert!(tier.offload(None).unwrap() > 0);
        store.evict_until_below(0, 0).unwrap();
        cluster.sync().unwrap();
        drop(tier);
        eventually("the tier is no segment", || segments() == 2);
        assert_eq!(get(&other, "k", 10), Err(NMC_ERR_NOT_FOUND));
        put_at(&near, "in memory", b"later");
        if removes {
            // Of what the closed tier does not have, as it happens: nobody can tell.
            put_at(&far, "far", b"value");
            assert_eq!(other.remove(b"far", true).unwrap(), NMC_OK);
        }
        let _tier = a_tier(&store, dir.path());
        eventually("the tier is a segment again", || segments() == 3);
        cluster.sync().unwrap();
        let wanted = if removes { Err(NMC_ERR_NOT_FOUND) } else { Ok(b"value".to_vec()) };
        for key in ["k", "own"] {
            assert_eq!(get(&other, key, 10), wanted, "{key}");
        }
        assert_eq!(get(&other, "in memory", 10).unwrap(), b"later");
    }
}

#[test]
fn a_store_that_another_one_took_the_place_of_brings_nothing_back() {
    let directory = Directory::new();
    let (first, second) = (a_store(16), a_store(16));
    let (cluster, other) = (directory.client(), directory.client());
    cluster.mount(&first, Some("A"), false).unwrap();
    put(&other, "k", b"old", 1).unwrap();
    cluster.unmount("A").unwrap();
    cluster.mount(&second, Some("A"), false).unwrap();
    put(&other, "k", b"new", 1).unwrap();
    assert_eq!(other.remove(b"k", true).unwrap(), NMC_OK);
    cluster.unmount("A").unwrap();
    cluster.mount(&first, Some("A"), false).unwrap();
    assert_eq!(get(&other, "k", 10), Err(NMC_ERR_NOT_FOUND));
    assert!(!first.exists(b"k").unwrap());
}

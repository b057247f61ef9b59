//! A cluster of real parts in one process: a master on its thread, nodes with stores of their own, clients, and sockets between them.

#![allow(unsafe_code, reason = "a test that says where bytes lie")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

#[path = "common/cluster.rs"]
mod common;

use common::{Directory, a_store, slice, store_on};
use nanomc::base::deadline::Deadline;
use nanomc::base::status::*;
use nanomc::cluster::client as core;
use nanomc::cluster::facade::{Cluster, Config, Item, PutOptions, What};
use nanomc::cluster::net::{Address, Limits, Span};
use nanomc::cluster::run::client as run;
use nanomc::cluster::submit::Sum;
use nanomc::cluster::types::{Media, ObjectKey, terms_of};
use nanomc::cluster::wire::{Location, Replicate};
use nanomc::mem::HeapKind;
use nanomc::store::copy::Slice;
use nanomc::store::evict::Retain;
use nanomc::store::peers::{Ask, PeerRead, Peers};
use nanomc::store::read::Look;
use nanomc::store::{self, Store};
use nanomc::tier::{self, Tier};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A client with a node.
fn node(directory: &Directory, pages: u32) -> (Cluster, Store, String) {
    node_by_way(directory, pages, None)
}

/// The same; with so many bytes of host memory in the place of its heap, if that is said, as if the heap were on a GPU.
fn node_by_way(directory: &Directory, pages: u32, bounce: Option<u64>) -> (Cluster, Store, String) {
    let (cluster, store) = (Cluster::open(Config { bounce, ..directory.config() }).unwrap(), a_store(pages));
    let name = cluster.mount(&store, None, false).unwrap();
    (cluster, store, name)
}

fn value(seed: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| u8::try_from((i * 7 + seed * 13 + i / 256) % 256).unwrap()).collect()
}

fn put(cluster: &Cluster, key: &str, value: &[u8], copies: u32) -> Result<(), i32> {
    let replicate = Replicate { copies, ..PutOptions::default().replicate };
    let options = PutOptions { replicate, ..PutOptions::default() };
    let item = Item { key: key.as_bytes(), slices: &[slice(value)], far: false };
    cluster.put(&[item], &options).unwrap().remove(0).map_err(|error| error.status)
}

fn get(cluster: &Cluster, key: &str, room: usize) -> Result<Vec<u8>, i32> {
    let mut into = vec![0u8; room];
    let item = Item { key: key.as_bytes(), slices: &[slice(&into)], far: false };
    let got = cluster.get(&[item]).unwrap().remove(0);
    got.result.map_err(|error| error.status)?;
    into.truncate(usize::try_from(got.bytes).unwrap());
    Ok(into)
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let late = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < late, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn what_one_client_puts_another_gets_whatever_its_size() {
    let directory = Directory::new();
    let nodes: Vec<_> = (0..2).map(|_| node(&directory, 400)).collect();
    let (writer, reader) = (directory.client(), directory.client());
    for (i, bytes) in [0, 1, 1000, 65_536, 65_537, 1 << 20, 9 << 20].into_iter().enumerate() {
        let (key, value) = (format!("k{i}"), value(i, bytes));
        put(&writer, &key, &value, 1).unwrap();
        assert_eq!(get(&reader, &key, bytes + 10).unwrap(), value, "{bytes} bytes");
        // Again, from where it was found before; and from the nodes themselves.
        assert_eq!(get(&reader, &key, bytes).unwrap(), value);
        for (cluster, ..) in &nodes {
            assert_eq!(get(cluster, &key, bytes).unwrap(), value);
            assert_eq!(get(cluster, &key, bytes + 100).unwrap(), value);
        }
        if bytes > 0 {
            assert_eq!(get(&reader, &key, bytes - 1), Err(NMC_ERR_TOO_SMALL));
        }
    }
    assert_eq!(get(&reader, "none", 10), Err(NMC_ERR_NOT_FOUND));
    assert_eq!(reader.exists(&[b"k1", b"none", b"k6"]).unwrap(), [true, false, true]);
    assert_eq!(reader.segments().unwrap().len(), 2);
}

#[test]
fn replicas_are_on_different_nodes_and_reads_go_on_when_one_is_gone() {
    let directory = Directory::new();
    let mut nodes: Vec<_> = (0..3).map(|_| node(&directory, 64)).collect();
    let other = directory.client();
    let value = value(1, 300_000);
    put(&other, "k", &value, 2).unwrap();
    let listed = other.query(&[b"k"]).unwrap().remove(0);
    assert_eq!(listed.replicas.len(), 2);
    assert_ne!(listed.replicas[0].name.node, listed.replicas[1].name.node);
    assert_eq!(get(&other, "k", value.len()).unwrap(), value);
    // The first owner goes without a word.
    let gone = &listed.replicas[0].endpoint;
    let at = nodes.iter().position(|(_, _, name)| gone.ends_with(name.rsplit(':').next().unwrap())).unwrap();
    drop(nodes.remove(at));
    for _ in 0..4 {
        assert_eq!(get(&other, "k", value.len()).unwrap(), value);
    }
    // More copies than there are nodes: as many as there are.
    put(&other, "many", &value, 3).unwrap();
}

#[test]
fn a_key_is_put_once_and_after_a_remove_again() {
    let directory = Directory::new();
    let nodes = [node(&directory, 16)];
    let other = directory.client();
    put(&other, "k", b"first", 1).unwrap();
    assert_eq!(put(&other, "k", b"second", 1), Err(NMC_ERR_EXISTS));
    assert_eq!(get(&other, "k", 10).unwrap(), b"first");
    assert_eq!(other.remove(b"k", true).unwrap(), NMC_OK);
    assert_eq!(get(&other, "k", 10), Err(NMC_ERR_NOT_FOUND));
    assert_eq!(get(&nodes[0].0, "k", 10), Err(NMC_ERR_NOT_FOUND), "the store has dropped it");
    assert_eq!(other.remove(b"k", true).map_err(|e| e.status), Err(NMC_ERR_NOT_FOUND));
    put(&other, "k", b"third", 1).unwrap();
    assert_eq!(get(&other, "k", 10).unwrap(), b"third");
    put(&other, "l", b"l", 1).unwrap();
    assert_eq!(other.remove_all(false, true).unwrap(), NMC_OK);
    assert_eq!(other.exists(&[b"k", b"l"]).unwrap(), [false, false]);
}

#[test]
fn a_remembered_size_is_not_that_of_the_next_value() {
    let directory = Directory::new();
    let _nodes = [node(&directory, 64)];
    let (reader, other) = (directory.client(), directory.client());
    let large = value(1, 200_000);
    put(&other, "k", &large, 1).unwrap();
    assert_eq!(get(&reader, "k", large.len()).unwrap(), large);
    assert_eq!(get(&reader, "k", 100), Err(NMC_ERR_TOO_SMALL));
    assert_eq!(other.remove(b"k", true).unwrap(), NMC_OK);
    assert_eq!(get(&reader, "k", 100), Err(NMC_ERR_NOT_FOUND));
    put(&other, "k", &large, 1).unwrap();
    assert_eq!(get(&reader, "k", large.len()).unwrap(), large);
    assert_eq!(other.remove(b"k", true).unwrap(), NMC_OK);
    put(&other, "k", b"small", 1).unwrap();
    assert_eq!(get(&reader, "k", 100).unwrap(), b"small");
}

#[test]
fn what_a_program_puts_into_its_own_store_others_find_and_what_is_evicted_they_do_not() {
    let directory = Directory::new();
    let (cluster, store, _) = node(&directory, 16);
    let other = directory.client();
    let value = value(3, 100_000);
    let put_here = |key: &[u8]| {
        let slices = [slice(&value)];
        store.put(key, &nanomc::store::copy::Pieces::Slices(&slices), &store::write::PutOptions::DEFAULT)
    };
    put_here(b"mine").unwrap();
    cluster.sync().unwrap();
    assert_eq!(get(&other, "mine", value.len()).unwrap(), value);
    // Others push it out, as soon as nobody reads it any more.
    let mut more = 0;
    eventually("it is evicted", || {
        put_here(format!("more{more}").as_bytes()).unwrap();
        more += 1;
        !store.exists(b"mine").unwrap()
    });
    cluster.sync().unwrap();
    assert_eq!(get(&other, "mine", value.len()), Err(NMC_ERR_NOT_FOUND));
    let last = format!("more{}", more - 1);
    assert_eq!(get(&other, &last, value.len()).unwrap(), value);
    store.remove(last.as_bytes()).unwrap();
    eventually("it is told", || get(&other, &last, value.len()) == Err(NMC_ERR_NOT_FOUND));
}

#[test]
fn batches_are_put_and_read_together() {
    let directory = Directory::new();
    let _nodes = [node(&directory, 3000), node(&directory, 3000)];
    let other = directory.client();
    let keys: Vec<String> = (0..1000).map(|i| format!("key {i}")).collect();
    let values: Vec<Vec<u8>> = (0..1000).map(|i| value(i, 100 + i)).collect();
    let slices: Vec<[Slice; 1]> = values.iter().map(|value| [slice(value)]).collect();
    let items: Vec<Item<'_>> =
        keys.iter().zip(&slices).map(|(key, slices)| Item { key: key.as_bytes(), slices, far: false }).collect();
    let put = other.put(&items, &PutOptions::default()).unwrap();
    assert!(put.iter().all(Result::is_ok), "{:?}", put.iter().find(|result| result.is_err()));
    let again = other.put(&items[..3], &PutOptions::default()).unwrap();
    assert!(again.iter().all(|result| result.as_ref().is_err_and(|e| e.status == NMC_ERR_EXISTS)));
    let mut into: Vec<Vec<u8>> = values.iter().map(|value| vec![0; value.len()]).collect();
    let slices: Vec<[Slice; 1]> = into.iter_mut().map(|value| [slice(value)]).collect();
    let mut items: Vec<Item<'_>> =
        keys.iter().zip(&slices).map(|(key, slices)| Item { key: key.as_bytes(), slices, far: false }).collect();
    items[500].key = b"not there";
    let got = other.get(&items).unwrap();
    for (i, got) in got.iter().enumerate() {
        match i {
            500 => assert_eq!(got.result.as_ref().unwrap_err().status, NMC_ERR_NOT_FOUND),
            _ => assert_eq!((got.bytes, &into[i]), (values[i].len() as u64, &values[i])),
        }
    }
}

#[test]
fn many_threads_of_one_client_call_at_once() {
    let directory = Directory::new();
    let _nodes = [node(&directory, 600), node(&directory, 600)];
    let other = directory.client();
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let other = &other;
            scope.spawn(move || {
                for i in 0..40 {
                    let bytes = if i % 8 == 0 { 200_000 } else { 3_000 };
                    let (key, value) = (format!("{thread} {i}"), value(thread * 100 + i, bytes));
                    put(other, &key, &value, 1).unwrap();
                    assert_eq!(get(other, &key, bytes).unwrap(), value);
                    if i % 3 == 0 {
                        assert_eq!(other.remove(key.as_bytes(), true).unwrap(), NMC_OK);
                        assert_eq!(get(other, &key, bytes), Err(NMC_ERR_NOT_FOUND));
                    }
                }
            });
        }
    });
}

#[test]
fn a_new_master_is_told_by_the_nodes_what_there_is() {
    let mut first = Directory::new();
    let address = Address::literal(&first.address).unwrap();
    let (cluster, _store, _) = node(&first, 64);
    let other = first.client();
    let value = value(5, 10_000);
    for i in 0..50 {
        put(&other, &format!("k{i}"), &value, 1).unwrap();
    }
    first.stop();
    // What is known where it is needs no master.
    assert_eq!(get(&cluster, "k7", value.len()).unwrap(), value);
    let _second = Directory::at(&address, 2, "", first.members.lock().unwrap().clone());
    let fresh = first.client();
    for i in 0..50 {
        assert_eq!(get(&fresh, &format!("k{i}"), value.len()).unwrap(), value);
    }
    put(&fresh, "new", &value, 1).unwrap();
    assert_eq!(fresh.remove(b"k3", true).unwrap(), NMC_OK);
    assert_eq!(get(&other, "k3", value.len()), Err(NMC_ERR_NOT_FOUND));
}

/// A master whose state is lost leads another cluster, whose terms may be below those of the former. Nodes and clients that live on come to it.
#[test]
fn nodes_and_clients_come_to_a_master_that_has_lost_its_state() {
    let mut directory = Directory::at(&Address::literal("127.0.0.1:0").unwrap(), terms_of(9) + 3, "", vec![]);
    let address = Address::literal(&directory.address).unwrap();
    let (_cluster, _store, _) = node(&directory, 64);
    let client = directory.client();
    let value = value(5, 10_000);
    put(&client, "before", &value, 1).unwrap();
    for cluster in [4, 12, 2] {
        directory.stop();
        let config = directory.config();
        directory = Directory::at(&address, terms_of(cluster) + 1, "", vec![]);
        let key = format!("k{cluster}");
        eventually("it is put", || put(&client, &key, &value, 1).is_ok());
        assert_eq!(get(&client, &key, value.len()).unwrap(), value);
        assert_eq!(get(&Cluster::open(config).unwrap(), &key, value.len()).unwrap(), value);
        // Nobody knows what of the former one was removed since.
        assert_eq!(get(&client, "before", value.len()), Err(NMC_ERR_NOT_FOUND));
        put(&client, "before", &value, 1).unwrap();
    }
}

#[test]
fn every_call_ends_when_nobody_answers() {
    let mut directory = Directory::new();
    let quick = |directory: &Directory| {
        Cluster::open(Config { patience: Duration::from_millis(300), ..directory.config() }).unwrap()
    };
    let other = quick(&directory);
    directory.stop();
    let began = Instant::now();
    assert!(matches!(put(&other, "k", b"v", 1), Err(NMC_ERR_UNAVAILABLE | NMC_ERR_TIMEOUT)));
    assert!(matches!(get(&other, "k", 1), Err(NMC_ERR_UNAVAILABLE | NMC_ERR_TIMEOUT)));
    assert!(other.remove(b"k", true).is_err());
    assert!(other.exists(&[b"k"]).is_err());
    assert!(other.mount(&a_store(8), None, false).is_err());
    assert!(began.elapsed() < Duration::from_secs(60));
}

#[test]
fn a_node_ends_and_comes_back_and_a_name_is_held_by_one() {
    let directory = Directory::new();
    let (cluster, store) = (directory.client(), a_store(16));
    let name = cluster.mount(&store, Some("shelf"), false).unwrap();
    assert_eq!(name, "shelf");
    assert_eq!(cluster.mount(&store, Some("shelf"), false).map_err(|e| e.status), Err(NMC_ERR_EXISTS));
    // Nor does another process of the machine take the name while this one lives.
    let hasty = Cluster::open(Config { patience: Duration::from_millis(500), ..directory.config() }).unwrap();
    assert_eq!(hasty.mount(&a_store(8), Some("shelf"), false).map_err(|e| e.status), Err(NMC_ERR_UNAVAILABLE));
    let other = directory.client();
    put(&other, "k", b"value", 1).unwrap();
    cluster.unmount("shelf").unwrap();
    assert_eq!(cluster.unmount("shelf").map_err(|e| e.status), Err(NMC_ERR_NOT_FOUND));
    assert!(get(&other, "k", 10).is_err());
    // The store is as it was, and so is what it has.
    cluster.mount(&store, Some("shelf"), false).unwrap();
    assert_eq!(get(&other, "k", 10).unwrap(), b"value");
}

#[test]
fn a_store_that_left_with_nothing_keeps_what_its_programs_put_before_it_comes_again() {
    let directory = Directory::new();
    let (cluster, store, other) = (directory.client(), a_store(16), directory.client());
    let put_here = |key: &str| {
        let slices = [slice(b"value")];
        let options = store::write::PutOptions::DEFAULT;
        store.put(key.as_bytes(), &nanomc::store::copy::Pieces::Slices(&slices), &options).unwrap();
    };
    for (round, name) in ["shelf", "shelf", "rack"].into_iter().enumerate() {
        cluster.mount(&store, Some(name), false).unwrap();
        cluster.unmount(name).unwrap();
        put_here(&format!("k{round}"));
        cluster.mount(&store, Some(name), false).unwrap();
        let key = format!("k{round}");
        assert_eq!(get(&other, &key, 10).unwrap(), b"value");
        // The log goes on, so that where the store was is behind its end.
        assert_eq!(other.remove(key.as_bytes(), true).unwrap(), NMC_OK);
        eventually("it is empty", || store.heap_usage(0).0 == 0);
        cluster.unmount(name).unwrap();
    }
}

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

fn store_value(store: &Store, key: &[u8]) {
    let slices = [slice(b"value")];
    store.put(key, &nanomc::store::copy::Pieces::Slices(&slices), &store::write::PutOptions::DEFAULT).unwrap();
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
    let slices = [slice(&into)];
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
        over.store(true, SeqCst);
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
        store.put(b"own", &nanomc::store::copy::Pieces::Slices(&slices), &store::write::PutOptions::DEFAULT).unwrap();
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

#[test]
fn without_the_token_nobody_takes_part() {
    let directory = Directory::at(&Address::literal("127.0.0.1:0").unwrap(), 1, "secret", vec![]);
    let with = |token: &str| {
        let patience = Duration::from_secs(20);
        Cluster::open(Config { token: token.into(), patience, ..directory.config() }).unwrap()
    };
    let (good, store) = (with("secret"), a_store(16));
    good.mount(&store, None, false).unwrap();
    put(&good, "k", b"v", 1).unwrap();
    assert_eq!(get(&with("secret"), "k", 1).unwrap(), b"v");
    for token in ["", "wrong"] {
        let without = with(token);
        // Also when it asks a second time, and the former connection has just been ended.
        for _ in 0..2 {
            assert_eq!(get(&without, "k", 1), Err(NMC_ERR_PERMISSION));
        }
        assert_eq!(put(&without, "k", b"v", 1), Err(NMC_ERR_PERMISSION));
        assert_eq!(without.mount(&a_store(8), None, false).map_err(|e| e.status), Err(NMC_ERR_PERMISSION));
    }
    let far = Config { host: "192.0.2.1".into(), ..directory.config() };
    assert_eq!(Cluster::open(far).map(|_| ()).map_err(|e| e.status), Err(NMC_ERR_PERMISSION));
}

#[test]
fn a_master_of_another_version_is_no_master_that_does_not_answer() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let old = std::thread::spawn(move || {
        // Whatever is asked, the answer is one of a version that was.
        while let Ok((mut socket, _)) = listener.accept() {
            let mut asked = [0; 32];
            if socket.read_exact(&mut asked).is_err() {
                return; // whoever says nothing ends this
            }
            let mut answer = asked;
            answer[3] = 1;
            let _ = socket.write_all(&answer);
        }
    });
    let client = Cluster::open(Config {
        masters: vec![address.clone()],
        host: "127.0.0.1".into(),
        patience: Duration::from_secs(60),
        ..Config::default()
    });
    let client = client.unwrap();
    for _ in 0..2 {
        assert_eq!(get(&client, "k", 1), Err(NMC_ERR_VERSION));
    }
    let why = client.mount(&a_store(8), None, false).unwrap_err();
    assert_eq!(why.status, NMC_ERR_VERSION);
    assert!(why.message.contains("version 1"), "{why:?}");
    drop(client);
    drop(TcpStream::connect(address).unwrap());
    old.join().unwrap();
}

#[test]
fn what_is_read_is_kept_where_that_is_wanted_and_outlives_its_first_owner() {
    let directory = Directory::new();
    let (first, store, name) = node(&directory, 64);
    let keeping = Cluster::open(Config { keep: true, ..directory.config() }).unwrap();
    let (value, other) = (value(2, 200_000), directory.client());
    put(&other, "k", &value, 1).unwrap();
    let second = a_store(64);
    keeping.mount(&second, None, false).unwrap();
    assert_eq!(get(&keeping, "k", value.len()).unwrap(), value);
    eventually("a copy is kept", || other.query(&[b"k"]).unwrap()[0].replicas.len() == 2);
    first.unmount(&name).unwrap();
    drop(store);
    assert_eq!(get(&directory.client(), "k", value.len()).unwrap(), value);
    // A remove takes the copy too. That who has left may still have it is told.
    assert_eq!(other.remove(b"k", true).unwrap(), NMC_IN_PROGRESS);
    eventually("it is dropped", || !second.exists(b"k").unwrap());
}

#[test]
fn what_is_read_is_kept_on_the_first_node() {
    let directory = Directory::new();
    let (_first, _store, _) = node(&directory, 64);
    let keeping = Cluster::open(Config { keep: true, ..directory.config() }).unwrap();
    put(&directory.client(), "k", b"value", 1).unwrap();
    let stores = [a_store(64), a_store(64)];
    for (store, name) in stores.iter().zip(["a", "b"]) {
        keeping.mount(store, Some(name), false).unwrap();
    }
    assert_eq!(get(&keeping, "k", 10).unwrap(), b"value");
    eventually("a copy is kept", || stores.iter().any(|store| store.exists(b"k").unwrap()));
    assert_eq!(stores.map(|store| store.exists(b"k").unwrap()), [true, false]);
}

#[test]
fn draining_a_segment_copies_what_is_only_there_with_all_that_was_said_about_it() {
    let directory = Directory::new();
    let (first, store, name) = node(&directory, 64);
    let other = directory.client();
    let options = PutOptions { metadata: b"said".to_vec(), retain: 1 | 2 << 2, ..PutOptions::default() };
    let values: Vec<Vec<u8>> = (0..10).map(|i| value(i, 1000 * i)).collect();
    for (i, value) in values.iter().enumerate() {
        let (key, slices) = (format!("k{i}"), [slice(value)]);
        other.put(&[Item { key: key.as_bytes(), slices: &slices, far: false }], &options).unwrap().remove(0).unwrap();
    }
    let (_second, to, _) = node(&directory, 64);
    eventually("nothing is left", || other.drain(&name, Duration::ZERO).unwrap().status == NMC_OK);
    first.unmount(&name).unwrap();
    drop(store);
    for (i, value) in values.iter().enumerate() {
        let key = format!("k{i}");
        assert_eq!(&get(&directory.client(), &key, value.len()).unwrap(), value);
        let Look::Ready((pin, _)) = to.pin(key.as_bytes()).unwrap() else { panic!("{key} is not there") };
        let Look::Ready(said) = to.view_metadata(pin).unwrap() else { panic!("{key} says nothing") };
        assert_eq!((&*said, to.class_of(pin)), (&b"said"[..], (Retain::Soft, 2)));
        to.unpin(pin).unwrap();
    }
}

#[test]
fn a_segment_whose_drain_was_given_up_takes_what_others_put_at_once() {
    let directory = Directory::new();
    let (_first, _store, name) = node(&directory, 64);
    let other = directory.client();
    for round in 0..3 {
        eventually("it is drained", || other.drain(&name, Duration::ZERO).unwrap().status == NMC_OK);
        let key = format!("k{round}");
        assert_eq!(put(&other, &key, b"value", 1), Err(NMC_ERR_NO_SPACE));
        other.undrain(&name).unwrap();
        assert_eq!(put(&other, &key, b"value", 1), Ok(()));
        assert_eq!(other.remove(key.as_bytes(), true).unwrap(), NMC_OK);
    }
}

#[test]
fn what_does_not_fit_one_message_or_one_buffer_goes_in_parts() {
    let directory = Directory::new();
    let _nodes = [node(&directory, 600)];
    let other = directory.client();
    // As many values as are under way at once, each as large as those that share a connection.
    let value = value(4, 64 << 10);
    let (long, slices) = ("k".repeat(900), [slice(&value)]);
    let keys: Vec<String> = (0..256).map(|i| format!("{long}{i}")).collect();
    let items: Vec<Item<'_>> =
        keys.iter().map(|key| Item { key: key.as_bytes(), slices: &slices, far: false }).collect();
    let put = other.put(&items, &PutOptions::default()).unwrap();
    assert!(put.iter().all(Result::is_ok), "{:?}", put.iter().find(|put| put.is_err()));
    let keys: Vec<&[u8]> = keys.iter().map(String::as_bytes).collect();
    assert!(other.exists(&keys).unwrap().iter().all(|there| *there));
    let into = vec![0u8; 256 * value.len()];
    let slices: Vec<[Slice; 1]> = into.chunks(value.len()).map(|part| [slice(part)]).collect();
    let items: Vec<Item<'_>> = keys.iter().zip(&slices).map(|(key, slices)| Item { key, slices, far: false }).collect();
    for _ in 0..2 {
        let got = other.get(&items).unwrap();
        assert!(got.iter().all(|got| got.result.is_ok()), "{:?}", got.iter().find(|got| got.result.is_err()));
        assert!(into.chunks(value.len()).all(|part| part == value));
    }
    // A value of many pieces.
    let pieces: Vec<Slice> = value.chunks(6).map(slice).collect();
    let item = Item { key: b"pieces", slices: &pieces, far: false };
    other.put(&[item], &PutOptions::default()).unwrap().remove(0).unwrap();
    assert_eq!(get(&other, "pieces", value.len()).unwrap(), value);
}

#[test]
fn what_waits_ends_when_it_is_cancelled() {
    let directory = Directory::new();
    let (cluster, _store, _) = node(&directory, 16);
    let mut directory = directory;
    directory.stop();
    std::thread::scope(|scope| {
        let waiting = [
            scope.spawn(|| cluster.sync().map_err(|e| e.status)),
            scope.spawn(|| put(&cluster, "k", b"v", 1)),
            scope.spawn(|| cluster.remove(b"k", true).map(drop).map_err(|e| e.status)),
        ];
        std::thread::sleep(Duration::from_millis(100));
        cluster.cancel();
        for waiting in waiting {
            assert_eq!(waiting.join().unwrap(), Err(NMC_ERR_CANCELLED));
        }
    });
    assert_eq!(get(&cluster, "k", 1), Err(NMC_ERR_CANCELLED));
}

#[test]
fn what_was_cancelled_does_not_happen_later() {
    let mut first = Directory::new();
    let address = Address::literal(&first.address).unwrap();
    let (_cluster, _store, _) = node(&first, 64);
    let other = first.client();
    put(&other, "k", b"first", 1).unwrap();
    first.stop();
    submit_remove(&other, b"k").unwrap();
    other.completions(1, Duration::from_millis(200), |_| panic!("nobody has answered"));
    assert_eq!(other.cancel_submitted(1).unwrap(), 1);
    let mut ended = Vec::new();
    other.completions(1, Duration::ZERO, |completion| ended.push(completion.status));
    assert_eq!(ended, [NMC_ERR_CANCELLED]);
    let _second = Directory::at(&address, 2, "", first.members.lock().unwrap().clone());
    // What was removed by nobody is there, for as long as such a call could have gone on.
    for _ in 0..150 {
        assert_eq!(get(&other, "k", 10).unwrap(), b"first");
        assert_eq!(first.client().query(&[b"k"]).unwrap()[0].status, NMC_OK);
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A connection that is only being made has sent nothing, and neither does it later.
#[test]
fn what_was_cancelled_before_it_was_sent_is_never_sent() {
    let directory = Directory::new();
    let (_cluster, _store, _) = node(&directory, 64);
    let (other, hasty) = (directory.client(), directory.client());
    put(&other, "k", b"first", 1).unwrap();
    submit_remove(&hasty, b"k").unwrap();
    assert_eq!(hasty.cancel_submitted(1).unwrap(), 1);
    assert_eq!(completion(&hasty), NMC_ERR_CANCELLED);
    for _ in 0..20 {
        assert_eq!(hasty.exists(&[b"something else"]).unwrap(), [false]);
        assert_eq!(other.query(&[b"k"]).unwrap()[0].status, NMC_OK);
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Takes the only completion.
fn completion(cluster: &Cluster) -> i32 {
    let mut ended = Vec::new();
    cluster.completions(1, Duration::from_secs(30), |completion| ended.push(completion.status));
    assert_eq!(ended.len(), 1);
    ended[0]
}

#[test]
fn a_remove_that_nobody_waits_for_takes_what_the_own_node_was_just_given() {
    let directory = Directory::new();
    let (cluster, store, _) = node(&directory, 64);
    let (far, far_store, _) = node(&directory, 64);
    let put_here = |store: &Store, key: &str| {
        let slices = [slice(b"value")];
        store
            .put(key.as_bytes(), &nanomc::store::copy::Pieces::Slices(&slices), &store::write::PutOptions::DEFAULT)
            .unwrap();
    };
    for i in 0..20 {
        // It is elsewhere too, or only here.
        for elsewhere in [true, false] {
            let key = format!("{i} {elsewhere}");
            if elsewhere {
                put_here(&far_store, &key);
                far.sync().unwrap();
            }
            put_here(&store, &key);
            submit_remove(&cluster, key.as_bytes()).unwrap();
            assert_eq!(completion(&cluster), NMC_OK);
            cluster.sync().unwrap();
            assert_eq!(far.query(&[key.as_bytes()]).unwrap()[0].status, NMC_ERR_NOT_FOUND);
            assert!(!store.exists(key.as_bytes()).unwrap());
        }
    }
}

#[test]
fn a_remove_that_waits_for_the_own_node_ends_when_it_is_cancelled_or_late_or_the_node_ends() {
    let mut directory = Directory::new();
    let (cluster, store) = (directory.client(), a_store(16));
    let hasty = Cluster::open(Config { patience: Duration::from_millis(800), ..directory.config() }).unwrap();
    let hasty_store = a_store(16);
    cluster.mount(&store, Some("a"), false).unwrap();
    hasty.mount(&hasty_store, Some("b"), false).unwrap();
    directory.stop();
    for store in [&store, &hasty_store] {
        let slices = [slice(b"value")];
        store.put(b"k", &nanomc::store::copy::Pieces::Slices(&slices), &store::write::PutOptions::DEFAULT).unwrap();
    }
    submit_remove(&cluster, b"k").unwrap();
    assert_eq!(cluster.cancel_submitted(1).unwrap(), 1);
    assert_eq!(completion(&cluster), NMC_ERR_CANCELLED);
    submit_remove(&hasty, b"k").unwrap();
    assert!(matches!(completion(&hasty), NMC_ERR_TIMEOUT | NMC_ERR_UNAVAILABLE));
    submit_remove(&cluster, b"k").unwrap();
    cluster.unmount("a").unwrap();
    assert!(matches!(completion(&cluster), NMC_ERR_CANCELLED | NMC_ERR_UNAVAILABLE));
}

#[test]
fn cancelling_returns_when_nobody_uses_the_memory_of_what_was_cancelled() {
    let directory = Directory::new();
    let _node = node(&directory, 16);
    let other = Cluster::open(Config { thread: true, ..directory.config() }).unwrap();
    let (told, comes) = channel();
    let returned = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&returned);
    let mut sent = false;
    // Whatever is told here is written to memory of the program, by the thread of the client.
    let tell = move |_, _, _| {
        if !std::mem::replace(&mut sent, true) {
            told.send(()).unwrap();
            std::thread::sleep(Duration::from_millis(300));
        }
        assert!(!seen.load(SeqCst), "the program has its memory back");
    };
    let keys: Vec<String> = (0..300).map(|i| format!("k{i}")).collect();
    let items: Vec<Item<'_>> = keys.iter().map(|key| Item { key: key.as_bytes(), slices: &[], far: false }).collect();
    let numbers: Vec<usize> = (0..items.len()).collect();
    other.submit_put(1, &items, &numbers, &PutOptions::default(), Sum::new(Some(Box::new(tell)))).unwrap();
    comes.recv().unwrap();
    assert_eq!(other.cancel_submitted(1).unwrap(), 1);
    returned.store(true, SeqCst);
    let mut ended = Vec::new();
    other.completions(1, Duration::ZERO, |completion| ended.push((completion.token, completion.status)));
    assert_eq!(ended, [(1, NMC_ERR_CANCELLED)], "its completion is queued");
}

#[test]
fn without_a_master_a_batch_reads_what_is_where_it_was() {
    let mut directory = Directory::new();
    let _node = node(&directory, 64);
    let other = Cluster::open(Config { patience: Duration::from_secs(2), ..directory.config() }).unwrap();
    let values: Vec<Vec<u8>> = (0..6).map(|i| value(i, 1000 + i)).collect();
    for (i, value) in values.iter().enumerate() {
        put(&directory.client(), &format!("k{i}"), value, 1).unwrap();
        if i > 0 {
            assert_eq!(&get(&other, &format!("k{i}"), 2000).unwrap(), value);
        }
    }
    directory.stop();
    let unknown = |status: i32| matches!(status, NMC_ERR_UNAVAILABLE | NMC_ERR_TIMEOUT);
    // All of them are known, and all but the first.
    for first in [1, 0] {
        let keys: Vec<String> = (first..6).map(|i| format!("k{i}")).collect();
        let into = vec![0u8; 6 * 2000];
        let slices: Vec<[Slice; 1]> = into.chunks(2000).map(|part| [slice(part)]).collect();
        let items: Vec<Item<'_>> =
            keys.iter().zip(&slices).map(|(key, slices)| Item { key: key.as_bytes(), slices, far: false }).collect();
        let right = |at: usize| into[2000 * at..].starts_with(&values[first + at]);
        for (at, got) in other.get(&items).unwrap().into_iter().enumerate() {
            match first + at {
                0 => assert!(got.result.is_err_and(|error| unknown(error.status))),
                _ => assert!(got.result.is_ok() && right(at), "item {at} from {first} on"),
            }
        }
        let told = Arc::new(Mutex::new(vec![NMC_IN_PROGRESS; items.len()]));
        let statuses = Arc::clone(&told);
        let tell = move |item: usize, _, status| statuses.lock().unwrap()[item] = status;
        let numbers: Vec<usize> = (0..items.len()).collect();
        other.submit_get(1, &items, &numbers, Sum::new(Some(Box::new(tell)))).unwrap();
        let status = completion(&other);
        assert!(if first == 0 { unknown(status) } else { status == NMC_OK });
        for (at, status) in told.lock().unwrap().iter().enumerate() {
            assert!(if first + at == 0 { unknown(*status) } else { *status == NMC_OK && right(at) });
        }
    }
}

fn submit_remove(client: &Cluster, key: &[u8]) -> nanomc::base::error::Result<()> {
    client.submit_remove(1, &[key], &[0], true, Sum::new(None))
}

/// Somebody who has one value of 1,000 bytes, under "far", and is never asked for more than one time.
#[derive(Default)]
struct OneFarValue {
    begun: AtomicUsize,
    asked: AtomicUsize,
}

impl Peers for OneFarValue {
    fn begin(&self) -> nanomc::base::error::Result<Deadline> {
        self.begun.fetch_add(1, SeqCst);
        Ok(Deadline::after(Duration::from_secs(5)))
    }

    fn read(&self, _: &Ask<'_>, reads: &mut [PeerRead<'_>]) {
        self.asked.fetch_add(1, SeqCst);
        for read in reads.iter_mut().filter(|read| read.key == b"far") {
            read.outcome = Ok(Some(1000));
        }
    }

    fn find(&self, _: &Ask<'_>, keys: &[&[u8]]) -> nanomc::base::error::Result<Vec<bool>> {
        self.asked.fetch_add(1, SeqCst);
        Ok(keys.iter().map(|key| *key == b"far").collect())
    }

    fn metadata(&self, _: &Ask<'_>, key: &[u8]) -> nanomc::base::error::Result<Option<Vec<u8>>> {
        self.asked.fetch_add(1, SeqCst);
        Ok((key == b"far").then(|| b"said".to_vec()))
    }
}

#[test]
fn a_read_that_goes_on_has_one_time_however_often_others_are_asked() {
    let peers = Arc::new(OneFarValue::default());
    let far = a_store(8).with_peers(Arc::clone(&peers) as Arc<dyn Peers>);
    let counts = || (peers.begun.swap(0, SeqCst), peers.asked.swap(0, SeqCst));
    let into = [0u8; 100];
    let slices = [slice(&into)];
    for (offset, asked) in [(0, 3), (500, 2)] {
        let read = far.read(b"far", offset, &nanomc::store::copy::Pieces::Slices(&slices), |_| Ok(true)).unwrap();
        assert!(matches!(read, Look::Ready(1000)));
        assert_eq!(counts(), (1, asked), "the size, and then the value");
    }
    let mut seen = 0;
    let keys = std::iter::repeat_n(&b"far"[..], 600).map(Ok);
    far.look_many_anywhere(keys, |_| {
        seen += 1;
        true
    })
    .unwrap();
    assert_eq!((seen, counts()), (600, (1, 3)));
    far.presence_anywhere(b"far").unwrap();
    assert_eq!(counts(), (1, 1));
    assert_eq!(far.metadata_below(b"far").unwrap(), Look::Ready(b"said".to_vec()));
    assert_eq!((far.metadata_below(b"none").unwrap(), counts()), (Look::Missing, (2, 2)));
}

#[test]
fn calls_that_nobody_waits_for_are_told_when_they_have_ended() {
    let directory = Directory::new();
    let _nodes = [node(&directory, 200)];
    let (other, value) = (directory.client(), value(6, 100_000));
    for i in 0..20 {
        put(&other, &format!("k{i}"), &value, 1).unwrap();
    }
    let address = directory.address.clone();
    let core = core::Config {
        masters: vec![address.clone()],
        host: String::new(),
        master_ms: 1_000,
        owner_ms: 1_000,
        cache: 100,
        read_order: core::ReadOrder::Near,
        pushed: false,
        pushed_from: 0,
        seed: 5,
    };
    let service = run::Service::new(core, &[Address::literal(&address).unwrap()], Limits::default()).unwrap();
    let get = |i: usize, into: &[u8]| {
        let key = ObjectKey::new(b"", format!("k{i}").as_bytes()).unwrap();
        let call = core::Call::Get(core::GetCall::new(key, into.len() as u64));
        run::Task {
            call,
            // SAFETY: the buffers stay until all calls are over; no two have the same.
            spans: vec![unsafe { Span::new(into.as_ptr() as usize, into.len()) }],
            far: false,
            patience: Duration::from_secs(20),
        }
    };
    let into = vec![0u8; 40 * value.len()];
    let parts: Vec<&[u8]> = into.chunks(value.len()).collect();
    let (teller, told) = channel();
    service.start_thread().unwrap();
    for i in 0..20 {
        let teller = teller.clone();
        let tasks = vec![get(i, parts[2 * i])];
        service.spawn(tasks, 1, Box::new(move |outcomes| teller.send(outcomes).unwrap())).unwrap();
        // Somebody who waits goes on beside them.
        assert_eq!(service.call(vec![get(i, parts[2 * i + 1])]).unwrap()[0].status, NMC_OK);
    }
    for outcomes in told.iter().take(20) {
        assert_eq!((outcomes.len(), outcomes[0].status, outcomes[0].count), (1, NMC_OK, value.len() as u64));
    }
    assert!(parts.iter().all(|part| *part == value));
}

/// A client whose nodes have so many bytes of host memory in the place of their heaps, as if those were a device's.
fn bouncing(directory: &Directory, most: u64, keep: bool) -> Cluster {
    Cluster::open(Config { bounce: Some(most), keep, ..directory.config() }).unwrap()
}

/// How a value is to be put: on segments of these media, in the order of [`Media::ALL`].
fn on_media(media: [u32; 3]) -> PutOptions {
    let copies = media.iter().sum();
    let replicate = Replicate { copies, media: media.to_vec(), ..PutOptions::default().replicate };
    PutOptions { replicate, ..PutOptions::default() }
}

/// What a node by way of host memory has to do right: values of all sizes, one that is too large, replaced ones, removed ones, copies beside other
/// nodes, copies that are kept, what its own programs put and read, and a drain. `of` makes its store.
fn is_a_node(most: u64, of: impl Fn(u32) -> Store) {
    let directory = Directory::new();
    let (vram, store) = (bouncing(&directory, most, true), of(400));
    let name = vram.mount(&store, None, false).unwrap();
    let (writer, reader) = (directory.client(), directory.client());
    assert_eq!(writer.segments().unwrap()[0].info.media, Media::Vram);
    let here = |key: &str, bytes: usize| {
        let mut into = vec![0u8; bytes];
        let slice = Slice { address: into.as_mut_ptr() as u64, bytes: bytes as u64 };
        assert_eq!(store.get(key.as_bytes(), slice).unwrap(), Look::Ready(bytes as u64), "{key}");
        into
    };
    for (i, bytes) in [0, 1, 1000, 65_536, 65_537, 1 << 20, 9 << 20].into_iter().enumerate() {
        let (key, value, other) = (format!("k{i}"), value(i, bytes), value(i + 50, bytes));
        put(&writer, &key, &value, 1).unwrap();
        assert_eq!(here(&key, bytes), value, "{bytes} bytes, by its own programs");
        for cluster in [&reader, &reader, &vram] {
            assert_eq!(get(cluster, &key, bytes + 10).unwrap(), value, "{bytes} bytes");
        }
        assert_eq!(put(&writer, &key, &other, 1), Err(NMC_ERR_EXISTS));
        assert_eq!(reader.remove(key.as_bytes(), true).unwrap(), NMC_OK);
        assert_eq!(get(&reader, &key, bytes), Err(NMC_ERR_NOT_FOUND));
        put(&writer, &key, &other, 1).unwrap();
        assert_eq!((get(&reader, &key, bytes).unwrap(), here(&key, bytes)), (other.clone(), other));
    }
    // What its own program puts.
    store_value(&store, b"own");
    vram.sync().unwrap();
    assert_eq!(get(&reader, "own", 100).unwrap(), here("own", get(&reader, "own", 100).unwrap().len()));
    // Beside a node in RAM: a copy on each, and each is read when the other is gone.
    let (ram, ram_store, ram_name) = node(&directory, 400);
    let both = value(9, 3_000_001);
    let put_as = |key: &str, options: &PutOptions| {
        let slices = [slice(&both)];
        writer.put(&[Item { key: key.as_bytes(), slices: &slices, far: false }], options).unwrap().remove(0)
    };
    put_as("both", &on_media([1, 1, 0])).unwrap();
    let listed = writer.query(&[b"both"]).unwrap().remove(0);
    let mut media: Vec<_> = listed.replicas.iter().map(|replica| replica.media).collect();
    media.sort();
    assert_eq!(media, [Media::Vram, Media::Ram]);
    // What is read elsewhere is kept here.
    put_as("kept", &on_media([0, 1, 0])).unwrap();
    assert!(!store.exists(b"kept").unwrap());
    assert_eq!(get(&vram, "kept", both.len()).unwrap(), both);
    eventually("a copy is kept", || store.exists(b"kept").unwrap());
    assert_eq!(here("kept", both.len()), both);
    ram.unmount(&ram_name).unwrap();
    drop(ram_store);
    for key in ["both", "kept"] {
        assert_eq!(get(&directory.client(), key, both.len()).unwrap(), both, "{key}");
    }
    // All that is only there goes elsewhere.
    let (_second, _to, _) = node(&directory, 400);
    eventually("nothing is left", || writer.drain(&name, Duration::ZERO).unwrap().status == NMC_OK);
    vram.unmount(&name).unwrap();
    assert_eq!(get(&directory.client(), "both", both.len()).unwrap(), both);
    assert_eq!(get(&directory.client(), "k6", 9 << 20).unwrap(), value(56, 9 << 20));
}

/// Calls that nobody waits for, with memory that counts as a device's: what stands in for it is copied when a turn of a batch begins, or when it has ended.
#[test]
fn memory_of_a_device_is_put_from_and_read_into_by_calls_that_nobody_waits_for() {
    const LARGE: usize = 20 << 20;
    let directory = Directory::new();
    let (_owner, _store, _) = node(&directory, 2000);
    let patience = Duration::from_secs(60);
    let far = Cluster::open(Config { bounce: Some(64 << 20), patience, ..directory.config() }).unwrap();
    let mut values: Vec<Vec<u8>> = (0..5).map(|seed| value(seed, LARGE + seed)).collect();
    let wanted = values.clone();
    let keys: Vec<String> = (0..6).map(|n| format!("k{n}")).collect();
    let slices: Vec<[Slice; 2]> = values
        .iter()
        .map(|value| {
            let (a, b) = value.split_at(LARGE / 3);
            [slice(a), slice(b)]
        })
        .collect();
    let items: Vec<Item<'_>> =
        keys.iter().zip(&slices).map(|(key, slices)| Item::new(key.as_bytes(), slices)).collect();
    let numbers: Vec<usize> = (0..items.len()).collect();
    far.submit_put(1, &items, &numbers, &PutOptions::default(), Sum::new(None)).unwrap();
    // What is put first was copied by now; what comes later is not.
    values[0].fill(0);
    assert_eq!(completion(&far), NMC_OK);
    let reader = directory.client();
    for (key, wanted) in keys.iter().zip(&wanted) {
        assert!(get(&reader, key, LARGE + 10).unwrap() == *wanted, "{key}");
    }
    // Into room to spare, and one that is missing.
    let rooms: Vec<Vec<u8>> = keys.iter().map(|_| vec![0xee; LARGE + 100]).collect();
    let slices: Vec<[Slice; 2]> = rooms
        .iter()
        .map(|room| {
            let (a, b) = room.split_at(LARGE / 2);
            [slice(a), slice(b)]
        })
        .collect();
    let items: Vec<Item<'_>> =
        keys.iter().zip(&slices).map(|(key, slices)| Item::new(key.as_bytes(), slices)).collect();
    let told = Arc::new(Mutex::new(vec![(0, 0); keys.len()]));
    let telling = Arc::clone(&told);
    let tell = move |item: usize, bytes, status| telling.lock().unwrap()[item] = (bytes, status);
    let numbers: Vec<usize> = (0..items.len()).collect();
    far.submit_get(2, &items, &numbers, Sum::new(Some(Box::new(tell)))).unwrap();
    assert_eq!(completion(&far), NMC_ERR_NOT_FOUND);
    for (n, room) in rooms.iter().enumerate() {
        let (bytes, status) = told.lock().unwrap()[n];
        let size = wanted.get(n).map_or(0, Vec::len);
        assert_eq!((bytes, status), (size as u64, if n < 5 { NMC_OK } else { NMC_ERR_NOT_FOUND }));
        assert!(wanted.get(n).is_none_or(|wanted| room[..size] == wanted[..]), "{n}");
        assert!(room[size..].iter().all(|byte| *byte == 0xee), "{n}");
    }
    // Where it does not fit nothing is written; where it was cancelled, nothing or all.
    let room = vec![0xee; LARGE - 1];
    far.submit_get(3, &[Item::new(b"k0", &[slice(&room)])], &[0], Sum::new(None)).unwrap();
    assert_eq!(completion(&far), NMC_ERR_TOO_SMALL);
    assert!(room.iter().all(|byte| *byte == 0xee));
    for round in 0..10u64 {
        let room = vec![0xee; LARGE];
        far.submit_get(4, &[Item::new(b"k0", &[slice(&room)])], &[0], Sum::new(None)).unwrap();
        far.completions(0, Duration::from_millis(round), |_| ());
        far.cancel_submitted(4).unwrap();
        let then = room.clone();
        completion(&far);
        assert!(room == then && (room == wanted[0] || room.iter().all(|byte| *byte == 0xee)), "{round}");
    }
}

#[test]
fn what_the_own_node_has_is_in_memory_of_a_device_when_its_get_was_submitted() {
    let directory = Directory::new();
    let (own, _store, _) = node_by_way(&directory, 200, Some(64 << 20));
    let wanted = value(1, 3 << 20);
    put(&own, "k", &wanted, 1).unwrap();
    let room = vec![0xee; (3 << 20) + 5];
    own.submit_get(1, &[Item::new(b"k", &[slice(&room)])], &[0], Sum::new(None)).unwrap();
    assert!(room[..wanted.len()] == wanted[..] && room[wanted.len()..].iter().all(|byte| *byte == 0xee));
    assert_eq!(completion(&own), NMC_OK);
}

#[test]
fn a_node_whose_heap_others_do_not_reach_serves_by_way_of_host_memory() {
    is_a_node(64 << 20, a_store);
}

#[test]
fn a_store_whose_heaps_are_on_a_gpu_is_a_node() {
    match store_on(HeapKind::Cuda, 1) {
        Ok(_) => is_a_node(64 << 20, |pages| store_on(HeapKind::Cuda, pages).unwrap()),
        Err(error) => eprintln!("skipped: {}", error.message),
    }
}

/// Whoever reads while there is no room tries again by itself; whoever puts is told so. What ends early leaves none of that room taken.
#[test]
fn host_memory_for_a_heap_is_bounded_and_comes_back_whatever_ends() {
    let directory = Directory::new();
    let (most, bytes) = (512 << 10, 200_000);
    let (vram, store) = (bouncing(&directory, most, false), a_store(400));
    vram.mount(&store, None, false).unwrap();
    let busy = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let (directory, busy) = (&directory, &busy);
            scope.spawn(move || {
                let client = directory.client();
                for i in 0..8 {
                    let (key, value) = (format!("{thread}/{i}"), value(thread * 8 + i, bytes + i));
                    eventually("there is room", || match put(&client, &key, &value, 1) {
                        Ok(()) => true,
                        Err(NMC_ERR_BUSY) => {
                            busy.fetch_add(1, SeqCst);
                            false
                        }
                        Err(status) => panic!("{status}"),
                    });
                    for _ in 0..3 {
                        assert_eq!(get(&client, &key, value.len()).unwrap(), value);
                    }
                }
            });
        }
    });
    eprintln!("{} puts were refused", busy.load(SeqCst));
    // Puts and gets that are ended while their bytes come and leave: at any time, since it depends on the machine how long they take.
    let large = value(3, 6 << 20);
    let longest = Instant::now();
    put(&directory.client(), "whole", &large, 1).unwrap();
    let longest = longest.elapsed();
    for round in 0..24 {
        let client = directory.client();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _ = put(&client, &format!("ended/{round}"), &large, 1);
                let _ = get(&client, "whole", large.len());
            });
            std::thread::sleep(longest * round / 12);
            client.cancel();
        });
    }
    // A value that is larger than all of it needs all of it: nothing of what has ended is in its way.
    let client = directory.client();
    eventually("nothing is left of what has ended", || put(&client, "large", &large, 1).is_ok());
    assert_eq!(get(&client, "large", large.len()).unwrap(), large);
}

/// A node that ends while bytes come and leave takes its memory with it, and whoever had to do with it is told.
#[test]
fn a_node_with_host_memory_for_its_heap_ends_while_it_is_used() {
    let directory = Directory::new();
    let store = a_store(400);
    let (over, whole) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (directory, over, whole) = (&directory, &over, &whole);
            scope.spawn(move || {
                let client =
                    Cluster::open(Config { patience: Duration::from_millis(500), ..directory.config() }).unwrap();
                let mut i = 0;
                while !over.load(SeqCst) {
                    i += 1;
                    let (key, value) = (format!("{thread}/{i}"), value(i, 700_000 + i));
                    if put(&client, &key, &value, 1).is_ok()
                        && let Ok(got) = get(&client, &key, value.len())
                    {
                        assert!(got == value, "{key}");
                        whole.fetch_add(1, SeqCst);
                    }
                    let _ = client.remove(key.as_bytes(), false);
                }
            });
        }
        for round in 0..12 {
            let vram = bouncing(&directory, 4 << 20, false);
            let before = whole.load(SeqCst);
            vram.mount(&store, Some("vram"), false).unwrap();
            eventually("something was read", || whole.load(SeqCst) > before);
            std::thread::sleep(Duration::from_millis(7 * round));
        }
        over.store(true, SeqCst);
    });
}

/// A client whose values of more than 256 KiB are put in parts.
fn striping(directory: &Directory) -> Cluster {
    Cluster::open(Config { stripe: 256 << 10, ..directory.config() }).unwrap()
}

/// Bytes that stores have in use.
fn in_use(nodes: &[(Cluster, Store, String)]) -> Vec<u64> {
    nodes.iter().map(|(_, store, _)| store.heap_usage(0).0).collect()
}

#[test]
fn a_large_value_is_in_parts_on_all_nodes_and_is_read_and_removed_as_one() {
    let directory = Directory::new();
    let nodes: Vec<_> = (0..3).map(|_| node(&directory, 200)).collect();
    let (writer, reader) = (striping(&directory), directory.client());
    for (round, bytes) in [(256 << 10) + 1, 1 << 20, (3 << 20) + 5].into_iter().enumerate() {
        let value = value(round, bytes);
        put(&writer, "k", &value, 1).unwrap();
        if round > 0 {
            assert!(in_use(&nodes).iter().all(|used| *used > 0), "parts are everywhere: {:?}", in_use(&nodes));
        }
        for cluster in nodes.iter().map(|(cluster, ..)| cluster).chain([&writer, &reader]) {
            assert_eq!(get(cluster, "k", bytes + 10).unwrap(), value);
            assert_eq!(get(cluster, "k", bytes).unwrap(), value, "from where it was found before");
            assert_eq!(get(cluster, "k", bytes - 1), Err(NMC_ERR_TOO_SMALL));
        }
        // Programs that look into the stores see neither stub nor part.
        for (_, store, _) in &nodes {
            assert!(!store.exists(b"k").unwrap());
            let (mut into, mut size) = (vec![0u8; bytes], 0);
            let slices = [slice(&into)];
            let read = store.read(b"k", 0, &nanomc::store::copy::Pieces::Slices(&slices), |total| {
                size = total;
                Ok(true)
            });
            assert!(matches!(read.unwrap(), Look::Missing) && size == 0);
            into.clear();
        }
        let listed = reader.query(&[b"k"]).unwrap().remove(0);
        assert_eq!(
            (listed.replicas.len(), listed.replicas[0].length),
            (1, bytes as u64),
            "of the value, not of the stub"
        );
        assert_eq!(reader.exists(&[b"k", b"l"]).unwrap(), [true, false]);
        assert_eq!(reader.keys(b"", 0).unwrap().0, [ObjectKey::new(b"", b"k").unwrap()], "parts are no keys");
        assert_eq!(put(&writer, "k", b"another", 1), Err(NMC_ERR_EXISTS));
        // Into pieces of memory that end elsewhere than parts do.
        let into = vec![0u8; bytes];
        let (first, second) = into.split_at(bytes / 3);
        let item = Item { key: b"k", slices: &[slice(first), slice(second)], far: false };
        assert!(reader.get(&[item]).unwrap().remove(0).result.is_ok() && into == value);
        match round {
            2 => assert_eq!(reader.remove_all(false, true).unwrap(), NMC_OK),
            _ => assert_eq!(reader.remove(b"k", true).unwrap(), NMC_OK),
        }
        for cluster in nodes.iter().map(|(cluster, ..)| cluster).chain([&writer, &reader]) {
            assert_eq!(get(cluster, "k", bytes), Err(NMC_ERR_NOT_FOUND));
        }
        eventually("the parts go too", || in_use(&nodes) == [0, 0, 0]);
    }
    assert!(Cluster::open(Config { space: b"\xffp".to_vec(), ..directory.config() }).is_err());
}

#[test]
fn copies_of_a_large_value_are_read_when_a_node_is_gone_and_without_copies_all_of_it_goes() {
    let directory = Directory::new();
    let mut nodes: Vec<_> = (0..4).map(|_| node(&directory, 200)).collect();
    let (writer, reader) = (striping(&directory), directory.client());
    let value = value(1, 2 << 20);
    put(&writer, "twice", &value, 2).unwrap();
    put(&writer, "once", &value, 1).unwrap();
    assert_eq!(get(&reader, "once", value.len()).unwrap(), value);
    // It ends and says so: away at once.
    drop(nodes.pop());
    for _ in 0..3 {
        assert_eq!(get(&reader, "twice", value.len()).unwrap(), value);
    }
    eventually("it is not found", || get(&reader, "once", value.len()) == Err(NMC_ERR_NOT_FOUND));
    // One of its owners may come back.
    assert!(matches!(reader.remove(b"twice", true), Ok(NMC_OK | NMC_IN_PROGRESS)));
    eventually("what is left of it goes", || in_use(&nodes) == [0, 0, 0]);
    put(&writer, "once", &value, 1).unwrap();
    assert_eq!(get(&reader, "once", value.len()).unwrap(), value);
}

/// Parts go where there is room; if there is none for all of them the put says so, and nothing of it stays.
#[test]
fn a_large_value_is_there_when_its_put_has_returned_or_the_put_fails_and_leaves_nothing() {
    let directory = Directory::new();
    let nodes = [node(&directory, 16), node(&directory, 400)];
    let (writer, reader) = (striping(&directory), directory.client());
    let large = value(1, 12 << 20);
    for round in 0..3 {
        put(&writer, "k", &large, 1).unwrap();
        assert_eq!(get(&reader, "k", large.len()).unwrap(), large, "{round}");
        assert_eq!(reader.remove(b"k", true).unwrap(), NMC_OK);
        eventually("the parts go too", || in_use(&nodes) == [0, 0]);
    }
    // More than there is, however it is kept.
    let huge = value(2, 40 << 20);
    for retain in [Retain::None, Retain::Hard] {
        for round in 0..3 {
            let options = PutOptions { retain: retain.code(), ..PutOptions::default() };
            let key = format!("huge{round}");
            let item = Item { key: key.as_bytes(), slices: &[slice(&huge)], far: false };
            let status = writer.put(&[item], &options).unwrap().remove(0).map_err(|error| error.status);
            assert!(matches!(status, Err(NMC_ERR_NO_SPACE | NMC_ERR_BUSY)), "{retain:?}, {round}: {status:?}");
        }
        let began = Instant::now();
        eventually("nothing of it stays", || in_use(&nodes) == [0, 0]);
        assert!(began.elapsed() < Duration::from_secs(25), "before the master gives a put up");
        put(&writer, "k", &large, 1).unwrap();
        assert_eq!(get(&reader, "k", large.len()).unwrap(), large);
        assert_eq!(reader.remove(b"k", true).unwrap(), NMC_OK);
        eventually("the parts go too", || in_use(&nodes) == [0, 0]);
    }
}

#[test]
fn puts_of_large_values_that_are_under_way_when_a_client_is_closed_leave_nothing() {
    let directory = Directory::new();
    let nodes = [node(&directory, 400), node(&directory, 400)];
    let large = value(1, 3 << 20);
    let began = Instant::now();
    for _ in 0..6 {
        let writer = striping(&directory);
        let keys: Vec<String> = (0..4).map(|n| format!("k{n}")).collect();
        let slices = [slice(&large)];
        let items: Vec<Item<'_>> =
            keys.iter().map(|key| Item { key: key.as_bytes(), slices: &slices, far: false }).collect();
        std::thread::scope(|scope| {
            let putting = scope.spawn(|| writer.put(&items, &PutOptions::default()));
            std::thread::sleep(Duration::from_millis(3));
            writer.cancel();
            let _ = putting.join().unwrap();
        });
        drop(writer);
    }
    let reader = directory.client();
    assert!(matches!(reader.remove_all(false, true), Ok(NMC_OK)));
    eventually("nothing stays", || in_use(&nodes) == [0, 0]);
    assert!(began.elapsed() < Duration::from_secs(25), "before the master gives a put up");
}

#[test]
fn a_large_value_that_is_replaced_while_it_is_read_is_one_or_the_other() {
    let directory = Directory::new();
    let _nodes: Vec<_> = (0..3).map(|_| node(&directory, 400)).collect();
    let (writer, reader) = (striping(&directory), directory.client());
    let values: Vec<Vec<u8>> = (0..6).map(|seed| value(seed * 31, (1 << 20) + seed * 100_000)).collect();
    let over = AtomicBool::new(false);
    let read = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..3)
            .map(|_| {
                let (reader, values, over) = (&reader, &values, &over);
                scope.spawn(move || {
                    let mut read = 0;
                    while !over.load(SeqCst) {
                        match get(reader, "k", 2 << 20) {
                            Ok(got) => {
                                assert!(values.contains(&got), "{} bytes are of no value", got.len());
                                read += 1;
                            }
                            Err(status) => assert_eq!(status, NMC_ERR_NOT_FOUND),
                        }
                    }
                    read
                })
            })
            .collect();
        for round in 0..60 {
            put(&writer, "k", &values[round % values.len()], 1).unwrap();
            std::thread::sleep(Duration::from_millis(5));
            writer.remove(b"k", round % 2 == 0).unwrap();
        }
        over.store(true, SeqCst);
        readers.into_iter().map(|reader| reader.join().unwrap()).sum::<u32>()
    });
    assert!(read > 10, "{read} were read");
}

#[test]
fn a_new_master_is_told_of_large_values_and_their_parts() {
    let mut first = Directory::new();
    let address = Address::literal(&first.address).unwrap();
    let nodes: Vec<_> = (0..2).map(|_| node(&first, 200)).collect();
    let other = striping(&first);
    let value = value(5, 1 << 20);
    put(&other, "k", &value, 1).unwrap();
    first.stop();
    let members = first.members.lock().unwrap().clone();
    let second = Directory::at(&address, 2, "", members);
    let fresh = second.client();
    eventually("it is told", || get(&fresh, "k", value.len()).as_deref() == Ok(&value[..]));
    assert_eq!(fresh.query(&[b"k"]).unwrap()[0].replicas[0].length, value.len() as u64);
    eventually("it is removed", || fresh.remove(b"k", true).is_ok_and(|status| status == NMC_OK));
    eventually("the parts go too", || in_use(&nodes) == [0, 0]);
}

#[test]
fn large_values_are_submitted_and_cancelled_like_others() {
    let directory = Directory::new();
    let nodes: Vec<_> = (0..2).map(|_| node(&directory, 400)).collect();
    let other = striping(&directory);
    let values: Vec<Vec<u8>> = (0..4).map(|seed| value(seed, 900_000 + seed)).collect();
    let keys = ["a", "b", "c", "d"];
    let slices: Vec<[Slice; 1]> = values.iter().map(|value| [slice(value)]).collect();
    let items: Vec<Item<'_>> =
        keys.iter().zip(&slices).map(|(key, slices)| Item { key: key.as_bytes(), slices, far: false }).collect();
    let numbers: Vec<usize> = (0..items.len()).collect();
    other.submit_put(1, &items, &numbers, &PutOptions::default(), Sum::new(None)).unwrap();
    assert_eq!(completion(&other), NMC_OK);
    let into: Vec<Vec<u8>> = values.iter().map(|value| vec![0; value.len()]).collect();
    let slices: Vec<[Slice; 1]> = into.iter().map(|value| [slice(value)]).collect();
    let items: Vec<Item<'_>> =
        keys.iter().zip(&slices).map(|(key, slices)| Item { key: key.as_bytes(), slices, far: false }).collect();
    other.submit_get(2, &items, &numbers, Sum::new(None)).unwrap();
    assert_eq!(completion(&other), NMC_OK);
    assert_eq!(into, values);
    assert_eq!(other.remove_all(false, true).unwrap(), NMC_OK);
    eventually("the parts go too", || in_use(&nodes) == [0, 0]);
    // Cancelled at any moment, a put leaves nothing, or all of the value.
    for round in 0..20u64 {
        let key = format!("cancelled {round}");
        let item = Item { key: key.as_bytes(), slices: &[slice(&values[0])], far: false };
        other.submit_put(3, &[item], &[0], &PutOptions::default(), Sum::new(None)).unwrap();
        let until = Instant::now() + Duration::from_micros(round * 700);
        while Instant::now() < until {
            other.completions(0, Duration::ZERO, |_| ());
        }
        other.cancel_submitted(3).unwrap();
        let status = completion(&other);
        assert!(status == NMC_OK || status == NMC_ERR_CANCELLED, "{status}");
        match get(&other, &key, values[0].len()) {
            Ok(got) => assert_eq!(got, values[0]),
            Err(got) => assert!(got == NMC_ERR_NOT_FOUND && status != NMC_OK, "{got}, and the put gave {status}"),
        }
        let _ = other.remove(key.as_bytes(), true);
    }
    eventually("nothing is left", || in_use(&nodes) == [0, 0]);
}

#[test]
fn a_large_value_that_was_read_goes_with_its_parts() {
    let directory = Directory::new();
    let nodes: Vec<_> = (0..2).map(|_| node(&directory, 200)).collect();
    let other = striping(&directory);
    let reader = Cluster::open(Config { expire_ms: 300, ..directory.config() }).unwrap();
    let value = value(2, 1 << 20);
    put(&other, "k", &value, 2).unwrap();
    assert_eq!(get(&other, "k", value.len()).unwrap(), value);
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(get(&reader, "k", value.len()).unwrap(), value, "only who wants that makes it go");
    eventually("it goes", || get(&other, "k", value.len()) == Err(NMC_ERR_NOT_FOUND));
    eventually("the parts go too", || in_use(&nodes) == [0, 0]);
}

#[test]
fn a_large_value_is_read_after_a_node_with_some_of_it_was_drained() {
    let directory = Directory::new();
    let nodes: Vec<_> = (0..3).map(|_| node(&directory, 200)).collect();
    let (writer, reader) = (striping(&directory), directory.client());
    let value = value(3, 2 << 20);
    put(&writer, "k", &value, 1).unwrap();
    let (cluster, _, name) = &nodes[1];
    eventually("it is drained", || reader.drain(name, Duration::ZERO).unwrap().status == NMC_OK);
    cluster.unmount(name).unwrap();
    for _ in 0..3 {
        assert_eq!(get(&reader, "k", value.len()).unwrap(), value);
    }
    assert_eq!(reader.query(&[b"k"]).unwrap()[0].replicas[0].length, value.len() as u64);
}

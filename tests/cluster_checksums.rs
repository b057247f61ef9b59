//! Nodes whose stores keep checksums: what lies damaged in their memory reaches nobody, on whatever way, and does not spread. Damage is a byte that this test
//! stores where a value lies.

#![allow(unsafe_code, reason = "a test that says where bytes lie")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

#[path = "common/cluster.rs"]
mod common;

use common::{Directory, PAGE, eventually, get, slice, slice_mut, store_as, value};
use nanomc::base::status::*;
use nanomc::cluster::facade::{Cluster, Config, Item, PutOptions};
use nanomc::cluster::net::Span;
use nanomc::cluster::submit::Sum;
use nanomc::cluster::wire::Replicate;
use nanomc::mem::HeapKind;
use nanomc::store::types::Look;
use nanomc::store::{self, Store};
use std::time::{Duration, Instant};

/// A client with a node that keeps checksums, or does not.
fn node(directory: &Directory, checksums: bool) -> (Cluster, Store, String) {
    node_of(directory.config(), checksums)
}

fn node_of(config: Config, checksums: bool) -> (Cluster, Store, String) {
    let cluster = Cluster::open(config).unwrap();
    let config = store::Config { checksums, ..store::Config::default() };
    let store = store_as(HeapKind::Host, 200, &config).unwrap();
    let name = cluster.mount(&store, None, false).unwrap();
    (cluster, store, name)
}

fn put(cluster: &Cluster, key: &str, value: &[u8], copies: u32) {
    let replicate = Replicate { copies, ..PutOptions::default().replicate };
    let options = PutOptions { replicate, ..PutOptions::default() };
    cluster.put(&[Item::new(key.as_bytes(), &[slice(value)])], &options).unwrap().remove(0).unwrap();
}

/// Changes a byte of a value where it lies, or changes it back.
fn damage(store: &Store, key: &str, at: usize) {
    let Look::Ready((pin, _)) = store.pin(key.as_bytes()).unwrap() else { panic!("{key} is not there") };
    let mut left = at as u64;
    for (address, _, bytes) in store.addresses(store.view_extents(pin).unwrap()).unwrap() {
        if left < bytes {
            // SAFETY: a byte of the pinned value. The nodes rest.
            let byte = unsafe { Span::new(usize::try_from(address + left).unwrap(), 1) };
            let mut was = Vec::new();
            byte.append_to(&mut was);
            byte.store(&[was[0] ^ 0x40]);
            return store.unpin(pin).unwrap();
        }
        left -= bytes;
    }
    panic!("{key} has no byte {at}");
}

#[test]
fn a_damaged_value_is_corrupt_for_others_and_its_bytes_reach_nobody() {
    let directory = Directory::new();
    let (_cluster, store, _) = node(&directory, true);
    let page = PAGE as usize;
    for (i, bytes) in [1, 1000, page, page + 1, 3 * page + 7, 5 << 20].into_iter().enumerate() {
        let (key, value) = (format!("k{i}"), value(i, bytes));
        put(&directory.client(), &key, &value, 1);
        let reader = directory.client();
        assert_eq!(get(&reader, &key, bytes).unwrap(), value, "{bytes} bytes");
        for at in [0, bytes / 2, bytes - 1] {
            damage(&store, &key, at);
            let began = Instant::now();
            // Where it is remembered, and where it is not.
            for reader in [&reader, &directory.client()] {
                assert_eq!(get(reader, &key, bytes + 5), Err(NMC_ERR_CORRUPT), "{bytes} bytes, at {at}");
            }
            assert!(began.elapsed() < Duration::from_secs(15), "nobody waits until there is no time left");
            damage(&store, &key, at);
            assert_eq!(get(&reader, &key, bytes).unwrap(), value, "it is as it was");
        }
    }
    // One of many that are read together, one that nobody waits for, and memory that is too small.
    let reader = directory.client();
    damage(&store, "k2", 10);
    let mut into = [vec![0u8; page], vec![0u8; page + 1]];
    let slices = into.each_mut().map(|into| [slice_mut(into)]);
    let got = reader.get(&[Item::new(b"k2", &slices[0]), Item::new(b"k3", &slices[1])]).unwrap();
    let status = |at: usize| got[at].result.as_ref().map_err(|error| error.status).copied();
    assert_eq!((status(0), status(1)), (Err(NMC_ERR_CORRUPT), Ok(())));
    reader.submit_get(7, &[Item::new(b"k2", &slices[0])], &[0], Sum::new(None)).unwrap();
    let mut done = Vec::new();
    reader.completions(1, Duration::from_secs(20), |completion| done.push((completion.token, completion.status)));
    assert_eq!(done, [(7, NMC_ERR_CORRUPT)]);
    assert_eq!(get(&reader, "k2", page - 1), Err(NMC_ERR_TOO_SMALL));
}

#[test]
fn without_checksums_nobody_knows() {
    let directory = Directory::new();
    let (_cluster, store, _) = node(&directory, false);
    let value = value(1, 100_000);
    put(&directory.client(), "k", &value, 1);
    damage(&store, "k", 70_000);
    // The control: the damage does reach others.
    let mut damaged = value.clone();
    damaged[70_000] ^= 0x40;
    assert_eq!(get(&directory.client(), "k", value.len()).unwrap(), damaged);
}

#[test]
fn another_copy_is_read_where_one_is_damaged() {
    let directory = Directory::new();
    let nodes = [node(&directory, true), node(&directory, true)];
    for bytes in [3000, 500_000] {
        let (key, value) = (format!("k{bytes}"), value(2, bytes));
        put(&directory.client(), &key, &value, 2);
        damage(&nodes[0].1, &key, 77);
        for _ in 0..8 {
            let reader = directory.client();
            assert_eq!(get(&reader, &key, bytes).unwrap(), value);
            assert_eq!(get(&reader, &key, bytes).unwrap(), value);
        }
        // By the program of the damaged node itself.
        assert_eq!(get(&nodes[0].0, &key, bytes).unwrap(), value);
        damage(&nodes[1].1, &key, 78);
        for reader in [&directory.client(), &nodes[0].0, &nodes[1].0] {
            assert_eq!(get(reader, &key, bytes), Err(NMC_ERR_CORRUPT));
        }
    }
}

#[test]
fn damage_does_not_spread_with_copies() {
    let directory = Directory::new();
    let (_first, store, name) = node(&directory, true);
    let other = directory.client();
    let value = value(3, 300_000);
    for key in ["good", "bad"] {
        put(&other, key, &value, 1);
    }
    damage(&store, "bad", 5000);
    // What a drain moves, by two kinds of nodes.
    let takers = [node(&directory, true), node(&directory, false)];
    let has = |key: &str| takers.iter().filter(|(_, to, _)| to.exists(key.as_bytes()).unwrap()).count();
    eventually("what is not damaged is copied", || {
        let _ = other.drain(&name, Duration::ZERO).unwrap();
        has("good") == 1
    });
    let until = Instant::now() + Duration::from_millis(500);
    while Instant::now() < until {
        assert_ne!(other.drain(&name, Duration::ZERO).unwrap().status, NMC_OK, "it is left");
        assert_eq!(has("bad"), 0);
        std::thread::sleep(Duration::from_millis(10));
    }
    // As soon as it is right, it goes.
    damage(&store, "bad", 5000);
    eventually("all is copied", || other.drain(&name, Duration::ZERO).unwrap().status == NMC_OK);
    assert_eq!((has("bad"), get(&directory.client(), "bad", value.len()).unwrap()), (1, value));
}

#[test]
fn a_value_in_parts_is_corrupt_when_one_of_them_is() {
    let directory = Directory::new();
    let nodes = [node(&directory, true), node(&directory, true)];
    let striping = Cluster::open(Config { stripe: 1 << 17, ..directory.config() }).unwrap();
    let value = value(4, 1 << 20);
    put(&striping, "k", &value, 1);
    let reader = directory.client();
    assert_eq!(get(&reader, "k", value.len()).unwrap(), value);
    // Parts are in a namespace of the library's: where one lies is seen by its bytes.
    let (_, store, _) = &nodes[0];
    let base = store.base(0).unwrap() + store.client().params().heap_offset;
    let pages = store.client().params().heap_bytes / u64::from(PAGE);
    // SAFETY: the pages of a heap that stays as long as its store. The nodes rest.
    let all = unsafe { Span::new(usize::try_from(base).unwrap(), usize::try_from(pages).unwrap() * PAGE as usize) };
    let mut heap = Vec::new();
    all.append_to(&mut heap);
    let part = value
        .chunks(1 << 17)
        .find_map(|part| heap.chunks(PAGE as usize).position(|page| page == &part[..PAGE as usize]));
    let at = all.behind(part.expect("a part is there") * PAGE as usize + 9);
    let mut byte = Vec::new();
    at.up_to(1).append_to(&mut byte);
    at.store(&[byte[0] ^ 1]);
    for reader in [&reader, &directory.client()] {
        assert_eq!(get(reader, "k", value.len()), Err(NMC_ERR_CORRUPT));
    }
    at.store(&byte);
    assert_eq!(get(&reader, "k", value.len()).unwrap(), value);
}

#[test]
fn what_comes_by_way_of_host_memory_is_looked_at_as_well() {
    let directory = Directory::new();
    let (_cluster, store, _) = node_of(Config { bounce: Some(64 << 20), ..directory.config() }, true);
    let value = value(5, 700_000);
    put(&directory.client(), "k", &value, 1);
    assert_eq!(get(&directory.client(), "k", value.len()).unwrap(), value);
    damage(&store, "k", 300_000);
    assert_eq!(get(&directory.client(), "k", value.len()), Err(NMC_ERR_CORRUPT));
}

//! Who is on which machine: clients and nodes by several addresses of this one, as if they were on different machines.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

#[path = "common/cluster.rs"]
mod common;

use common::{Directory, a_store, slice};
use nanomc::base::Result;
use nanomc::base::status::NMC_OK;
use nanomc::cluster::directory::Strategy;
use nanomc::cluster::facade::{Cluster, Config, Item, Placement, Placing, PutOptions};
use nanomc::cluster::submit::Sum;
use nanomc::cluster::types::Media;
use nanomc::cluster::wire::Replicate;
use nanomc::mem::numa;
use nanomc::store::Store;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const HOSTS: [&str; 2] = ["127.0.0.1", "127.0.0.2"];

fn client(directory: &Directory, host: &str) -> Cluster {
    Cluster::open(Config { host: host.into(), ..directory.config() }).unwrap()
}

fn nodes(directory: &Directory) -> [(Cluster, Store); 2] {
    HOSTS.map(|host| {
        let (cluster, store) = (client(directory, host), a_store(64));
        cluster.mount(&store, Some(&format!("on {host}")), false).unwrap();
        (cluster, store)
    })
}

fn put(cluster: &Cluster, key: &str, replicate: Replicate) {
    let options = PutOptions { replicate, ..PutOptions::default() };
    cluster.put(&[Item::new(key.as_bytes(), &[slice(b"value")])], &options).unwrap().remove(0).unwrap();
}

fn one() -> Replicate {
    PutOptions::default().replicate
}

/// How many of these keys each of the nodes has.
fn counts(nodes: &[(Cluster, Store); 2], keys: &[String]) -> [usize; 2] {
    let has = |store: &Store| keys.iter().filter(|key| store.exists(key.as_bytes()).unwrap()).count();
    [has(&nodes[0].1), has(&nodes[1].1)]
}

/// Puts as many with `put`, and says who has them.
fn spread(nodes: &[(Cluster, Store); 2], name: &str, put: impl Fn(&str)) -> [usize; 2] {
    let keys: Vec<String> = (0..20).map(|n| format!("{name} {n}")).collect();
    keys.iter().for_each(|key| put(key));
    counts(nodes, &keys)
}

#[test]
fn by_topology_values_go_to_the_machine_of_whoever_puts_them() {
    let directory = Directory::choosing(Strategy::Topology);
    let nodes = nodes(&directory);
    let [first, second] = HOSTS.map(|host| client(&directory, host));
    assert_eq!(spread(&nodes, "first", |key| put(&first, key, one())), [20, 0]);
    assert_eq!(spread(&nodes, "second", |key| put(&second, key, one())), [0, 20]);
    // A name is what it stands for, and a port is not the machine's.
    for name in ["localhost", "127.0.0.1:0", "localhost:0"] {
        let named = client(&directory, name);
        assert_eq!(spread(&nodes, name, |key| put(&named, key, one())), [20, 0], "{name}");
    }
    // Calls that do not wait, and programs that name another machine.
    let submit = |key: &str| {
        let slices = [slice(b"value")];
        let items = [Item::new(key.as_bytes(), &slices)];
        second.submit_put(1, &items, &[0], &PutOptions::default(), Sum::new(None)).unwrap();
        let mut status = None;
        second.completions(1, Duration::from_secs(20), |completion| status = Some(completion.status));
        assert_eq!(status, Some(NMC_OK));
    };
    assert_eq!(spread(&nodes, "submitted", submit), [0, 20]);
    let there = || Replicate { near: HOSTS[1].into(), ..one() };
    assert_eq!(spread(&nodes, "elsewhere", |key| put(&first, key, there())), [0, 20]);
    assert_eq!(spread(&nodes, "both", |key| put(&first, key, Replicate { copies: 2, ..one() })), [20, 20]);
    // Nobody is near: where least is.
    let third = client(&directory, "127.0.0.3");
    let [a, b] = spread(&nodes, "third", |key| put(&third, key, one()));
    assert!(a + b == 20 && a > 0 && b > 0, "{a} and {b}");
}

#[test]
fn by_chance_they_go_anywhere() {
    let directory = Directory::choosing(Strategy::Random);
    let nodes = nodes(&directory);
    let first = client(&directory, HOSTS[0]);
    let [a, b] = spread(&nodes, "k", |key| put(&first, key, one()));
    assert!(a > 0 && b > 0, "{a} and {b}");
}

/// Chooses what is here, and notes what it saw.
struct Here(Mutex<Vec<(String, bool, i32)>>);

impl Placement for Here {
    fn place(&self, what: &Placing<'_>) -> Result<Vec<u32>> {
        let here = |at: &u32| what.cluster.is_here(&what.segments[*at as usize]);
        let seen = what.segments.iter().map(|s| (s.host.clone(), what.cluster.is_here(s), s.info.near));
        *self.0.lock().unwrap() = seen.collect();
        Ok((0..u32::try_from(what.segments.len()).unwrap()).filter(here).collect())
    }
}

#[test]
fn a_placement_of_the_programs_own_sees_which_segments_are_here() {
    let directory = Directory::choosing(Strategy::Random);
    let nodes = nodes(&directory);
    let second = client(&directory, HOSTS[1]);
    let here = Arc::new(Here(Mutex::default()));
    second.set_placement(Some(here.clone()));
    assert_eq!(spread(&nodes, "k", |key| put(&second, key, one())), [0, 20]);
    let near = numa::node_of(0).map_or(-1, |node| i32::try_from(node).unwrap());
    let mut seen = here.0.lock().unwrap().clone();
    seen.sort();
    assert_eq!(seen, [(HOSTS[0].into(), false, near), (HOSTS[1].into(), true, near)]);
    assert!(second.segments().unwrap().iter().all(|segment| segment.info.media == Media::Ram));
}

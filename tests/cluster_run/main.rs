//! A cluster of real parts in one process: a master on its thread, nodes with stores of their own, clients, and sockets between them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

#[path = "../common/cluster.rs"]
mod common;
mod devices;
mod masters;
mod nodes;
#[path = "../../src/base/over.rs"]
mod over;
mod striped;
mod submitted;
mod tiers;
mod values;

use common::{Directory, a_store, slice};
use nanomc::cluster::facade::{Cluster, Config};
use nanomc::store::{self, Store};
use std::time::Duration;

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

fn store_value(store: &Store, key: &[u8]) {
    let slices = [slice(b"value")];
    store.put(key, &nanomc::store::copy::Pieces::Slices(&slices), &store::types::PutOptions::DEFAULT).unwrap();
}

/// Takes the only completion.
fn completion(cluster: &Cluster) -> i32 {
    let mut ended = Vec::new();
    cluster.completions(1, Duration::from_secs(30), |completion| ended.push(completion.status));
    assert_eq!(ended.len(), 1);
    ended[0]
}

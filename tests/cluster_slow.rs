//! Nodes behind networks that are slow, or stop: values take as long as they need, and nobody is waited for who does not move.

#![allow(unsafe_code, reason = "a test that says where bytes lie")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

#[path = "common/cluster.rs"]
mod common;

use common::{Directory, a_store, slice};
use nanomc::base::status::NMC_OK;
use nanomc::cluster::facade::{Cluster, Item, PutOptions};
use nanomc::cluster::net::{Address, Limits, Listener};
use nanomc::cluster::node::{Config, Memory as _, NodeStore, Offer};
use nanomc::cluster::run::node::Service;
use nanomc::cluster::wire::{Fetch, Frame, Replicate};
use nanomc::store::copy::Pieces;
use nanomc::store::{self, Store};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// What goes at once before a way is looked at again.
const PIECE: usize = 32 << 10;

/// A way to a node: everything on it takes its time, and it can stop.
struct Way {
    address: SocketAddr,
    /// Bytes a second on each connection, and how many it still carries each way.
    rate: u64,
    left: AtomicU64,
    ended: AtomicBool,
}

impl Way {
    fn to(node: SocketAddr, rate: u64) -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, left) = (listener.local_addr().unwrap(), AtomicU64::new(u64::MAX));
        let way = Arc::new(Self { address, rate, left, ended: AtomicBool::new(false) });
        let own = Arc::clone(&way);
        std::thread::spawn(move || {
            for from in listener.incoming() {
                let (Ok(from), Ok(to)) = (from, TcpStream::connect(node)) else { continue };
                for (from, to) in [(from.try_clone(), to.try_clone()), (Ok(to), Ok(from))] {
                    let (own, from, to) = (Arc::clone(&own), from.unwrap(), to.unwrap());
                    std::thread::spawn(move || own.carry(from, to));
                }
                if own.ended.load(SeqCst) {
                    return;
                }
            }
        });
        way
    }

    fn carry(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut piece = vec![0; PIECE];
        let (began, mut carried) = (Instant::now(), 0u64);
        while let Ok(n @ 1..) = from.read(&mut piece) {
            while self.left.load(SeqCst) == 0 && !self.ended.load(SeqCst) {
                std::thread::sleep(Duration::from_millis(5));
            }
            let _ = self.left.fetch_update(SeqCst, SeqCst, |left| Some(left.saturating_sub(n as u64)));
            if to.write_all(&piece[..n]).is_err() {
                break;
            }
            carried += n as u64;
            // What is short goes at once.
            if n > 1 << 10 {
                std::thread::sleep(Duration::from_millis(carried * 1000 / self.rate).saturating_sub(began.elapsed()));
            }
        }
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    }
}

/// A node that others reach by a way of its own.
struct Node {
    service: Service,
    store: Store,
    way: Arc<Way>,
    address: SocketAddr,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.way.ended.store(true, SeqCst);
        let _ = TcpStream::connect(self.way.address);
    }
}

impl Node {
    fn new(directory: &Directory, name: &str, pages: u32, rate: u64) -> Self {
        let store = a_store(pages);
        let mut storage = NodeStore::within(&store, Duration::from_secs(20)).unwrap();
        let listener = Listener::bind(&Address::literal("127.0.0.1:0").unwrap()).unwrap();
        let Address::Tcp(address) = listener.address().unwrap() else { panic!() };
        let way = Way::to(address, rate);
        let Offer { store: id, slots, segments } = storage.offer(name).unwrap();
        let config = Config {
            name: name.into(),
            incarnation: 0,
            store: id,
            endpoint: way.address.to_string(),
            host: "127.0.0.1".into(),
            headers: storage.headers(),
            slots,
            volatile: true,
            segments,
            masters: vec![directory.address.clone()],
            ping_ms: 1_000,
            resend_ms: 500,
            master_ms: 3_000,
            copy_ms: 5_000,
            remember_ms: 60_000,
            doubt_bytes: 1 << 30,
            doubt_ms: 300,
            stuck_ms: 5_000,
            rest_ms: (15_000, 600_000),
        };
        let masters = [Address::literal(&directory.address).unwrap()];
        let service = Service::start(config, &masters, storage, listener, Limits::default(), None).unwrap();
        let node = Self { service, store, way, address };
        node.sync();
        node
    }

    fn sync(&self) {
        let synced = self.service.handle().sync(Duration::from_secs(20), &AtomicBool::new(false));
        assert_eq!(synced, NMC_OK);
    }

    /// Puts a value under each of these keys, without a way.
    fn keep(&self, keys: &[impl AsRef<str>], value: &[u8]) {
        let slices = [slice(value)];
        for key in keys {
            let pieces = Pieces::Slices(&slices);
            self.store.put(key.as_ref().as_bytes(), &pieces, &store::types::PutOptions::DEFAULT).unwrap();
        }
        self.sync();
    }
}

fn value(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| u8::try_from((i * 7 + i / 256) % 256).unwrap()).collect()
}

fn put(cluster: &Cluster, key: &str, value: &[u8], copies: u32) -> Result<(), i32> {
    let replicate = Replicate { copies, ..PutOptions::default().replicate };
    let options = PutOptions { replicate, ..PutOptions::default() };
    let item = Item { key: key.as_bytes(), slices: &[slice(value)], far: false };
    cluster.put(&[item], &options).unwrap().remove(0).map_err(|error| error.status)
}

fn get(cluster: &Cluster, key: &str, room: usize) -> Result<Vec<u8>, i32> {
    let into = vec![0u8; room];
    let item = Item { key: key.as_bytes(), slices: &[slice(&into)], far: false };
    let got = cluster.get(&[item]).unwrap().remove(0);
    got.result.map_err(|error| error.status)?;
    Ok(into)
}

#[test]
fn a_value_that_takes_longer_than_it_would_at_a_usual_pace_is_put() {
    let directory = Directory::new();
    // 8 MiB take more than three seconds; each owner would have one and a half.
    let nodes = ["a", "b"].map(|name| Node::new(&directory, name, 300, 5 << 19));
    let value = value(8 << 20);
    put(&directory.client(), "k", &value, 1).unwrap();
    let has = |node: &&Node| node.store.exists(b"k").unwrap();
    assert_eq!(nodes.iter().filter(has).count(), 1);
}

#[test]
fn a_value_that_takes_longer_than_it_would_at_a_usual_pace_is_read() {
    let directory = Directory::new();
    let node = Node::new(&directory, "a", 300, 5 << 19);
    let value = value(8 << 20);
    node.keep(&["k"], &value);
    assert!(get(&directory.client(), "k", value.len()).unwrap() == value);
}

#[test]
fn more_than_there_are_connections_for_waits_for_its_turn() {
    let directory = Directory::new();
    let node = Node::new(&directory, "a", 500, 1 << 20);
    let (client, value) = (directory.client(), value(1 << 20));
    let keys: Vec<String> = (0..20).map(|i| format!("k{i}")).collect();
    node.keep(&keys, &value);
    // Eight at a time, a second each.
    let into = vec![0u8; keys.len() * value.len()];
    let rooms: Vec<_> = into.chunks(value.len()).map(|room| [slice(room)]).collect();
    let items = keys.iter().zip(&rooms).map(|(key, slices)| Item { key: key.as_bytes(), slices, far: false });
    let items: Vec<_> = items.collect();
    for got in client.get(&items).unwrap() {
        got.result.unwrap();
    }
    assert!(into.chunks(value.len()).all(|got| got == value));
}

#[test]
fn an_owner_that_stops_in_the_middle_is_given_up_and_another_one_read() {
    let directory = Directory::new();
    let (stops, goes_on) = (Node::new(&directory, "a", 300, 1 << 40), Node::new(&directory, "b", 300, 1 << 40));
    let (client, value) = (directory.client(), value(8 << 20));
    put(&client, "k", &value, 2).unwrap();
    for _ in 0..6 {
        stops.way.left.store(1 << 20, SeqCst);
        // Whichever it reads first.
        assert!(get(&directory.client(), "k", value.len()).unwrap() == value);
        stops.way.left.store(u64::MAX, SeqCst);
    }
    // So it is with a put.
    for i in 0..6 {
        stops.way.left.store(1 << 20, SeqCst);
        let key = format!("put {i}");
        put(&directory.client(), &key, &value, 1).unwrap();
        stops.way.left.store(u64::MAX, SeqCst);
        assert!(get(&client, &key, value.len()).unwrap() == value);
        assert_eq!(client.remove(key.as_bytes(), true).unwrap(), NMC_OK);
    }
    drop(goes_on);
}

#[test]
fn who_takes_a_value_byte_by_byte_does_not_hold_it_for_ever() {
    let directory = Directory::new();
    let node = Node::new(&directory, "a", 1100, 1 << 40);
    // More than sockets hold.
    let (client, value) = (directory.client(), value(64 << 20));
    node.keep(&["k"], &value);
    let listed = client.query(&[b"k"]).unwrap().remove(0).replicas.remove(0);
    let key = nanomc::cluster::types::ObjectKey::new(b"", b"k").unwrap();
    let (name, put, length) = (listed.name, listed.put, listed.length);
    let (into, expire_ms, mover) = (Vec::new(), 0, 0);
    let fetch = Fetch { name, key, put, offset: 0, length, into, mover, expire_ms, stub: false, verify: false };
    let mut bytes = Vec::new();
    Frame { request: 1, time_left_ms: 200, message: fetch.into() }.encode(&mut bytes).unwrap();
    let mut reader = TcpStream::connect(node.address).unwrap();
    reader.write_all(&bytes).unwrap();
    let mut few = [0u8; 4096];
    reader.read_exact(&mut few).unwrap();
    // Another value is put, for which this one has to go.
    let (late, slices) = (Instant::now() + Duration::from_secs(30), [slice(&value)]);
    while node.store.put(b"other", &Pieces::Slices(&slices), &store::types::PutOptions::DEFAULT).is_err() {
        assert!(Instant::now() < late, "it is held for ever");
        // The reader takes something all the time.
        let _ = reader.read(&mut few);
        std::thread::sleep(Duration::from_millis(16));
    }
}

//! What the tests of the cluster share: a master that leads from the beginning, stores for nodes, and values that can be told apart.
#![allow(dead_code, unused_imports, reason = "each test program uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a test may")]

#[path = "slices.rs"]
mod slices;

pub use slices::{slice, slice_mut};

use nanomc::base::Result;
use nanomc::base::deadline::Deadline;
use nanomc::cluster::directory::Strategy;
use nanomc::cluster::directory::{self, Change, Elected, Event, Master, Member};
use nanomc::cluster::facade::{Cluster, Config, Item, PutOptions};
use nanomc::cluster::net::{Address, Limits, Listener, now_ms};
use nanomc::cluster::run::master::{Handle, Service};
use nanomc::cluster::types::Position;
use nanomc::cluster::wire::Replicate;
use nanomc::mem::HeapKind;
use nanomc::store::{self, Store};
use nanomc::world;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Of every store here.
pub const PAGE: u32 = 64 << 10;

/// A master, and who its members are.
pub struct Directory {
    pub members: Arc<Mutex<Vec<Member>>>,
    pub handle: Handle,
    service: Option<Service>,
    pub address: String,
}

impl Directory {
    pub fn new() -> Self {
        Self::at(&Address::literal("127.0.0.1:0").unwrap(), 1, "", vec![])
    }

    /// One that chooses segments like this.
    pub fn choosing(strategy: Strategy) -> Self {
        Self::made(&Address::literal("127.0.0.1:0").unwrap(), 1, "", vec![], strategy)
    }

    /// The leader of that term, which knows these members.
    pub fn at(address: &Address, term: u64, token: &str, members: Vec<Member>) -> Self {
        Self::made(address, term, token, members, Strategy::Random)
    }

    fn made(address: &Address, term: u64, token: &str, members: Vec<Member>, strategy: Strategy) -> Self {
        let listener = Listener::bind(address).unwrap();
        let address = listener.address().unwrap().to_string();
        let config = directory::Config {
            settle_ms: 30_000,
            sees_ends: true,
            secret: [7; 32],
            strategy,
            ..directory::Config::default()
        };
        let limits = Limits { token: token.into(), ..Limits::default() };
        let (recorder, recorded) = channel();
        let (first, members) = (members.clone(), Arc::new(Mutex::new(members)));
        let written = Arc::clone(&members);
        let record = Box::new(move |number, changes: Vec<Change>| {
            for change in changes {
                if let Change::Member(member) = change {
                    written.lock().unwrap().push(member);
                }
            }
            recorder.send(number).unwrap();
        });
        let (service, handle) = Service::start(Master::new(config), vec![listener], limits, record).unwrap();
        let (until, floor) = (now_ms() + 3_600_000, Position::default());
        handle.tell(Event::Elected(Elected { term, until, members: first, log: vec![], floor }));
        let teller = handle.clone();
        std::thread::spawn(move || recorded.iter().for_each(|number| teller.tell(Event::Recorded(number, true))));
        Self { members, handle, service: Some(service), address }
    }

    pub fn stop(&mut self) {
        self.handle.stop();
        if let Some(service) = self.service.take() {
            service.join();
        }
    }

    /// Of a client that waits long enough for a busy machine.
    pub fn config(&self) -> Config {
        Config { masters: vec![self.address.clone()], patience: Duration::from_secs(20), ..Config::default() }
    }

    pub fn client(&self) -> Cluster {
        Cluster::open(self.config()).unwrap()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        self.stop();
    }
}

/// An embedded store with a heap of so many pages.
pub fn a_store(pages: u32) -> Store {
    store_on(HeapKind::Host, pages).unwrap()
}

/// The same, in memory of this kind.
pub fn store_on(heap_kind: HeapKind, pages: u32) -> Result<Store> {
    store_as(heap_kind, pages, &store::Config::default())
}

/// The same, with what else is said in this config.
pub fn store_as(heap_kind: HeapKind, pages: u32, config: &store::Config) -> Result<Store> {
    let world = world::Config {
        name: "local".into(),
        dir: None,
        rank: None,
        world_size: 1,
        min_ranks: 0,
        heap_kind,
        heap_bytes: u64::from(pages) * u64::from(PAGE),
        huge_pages: false,
        populate: false,
        import: None,
        device: None,
        device_rank: None,
        words_per_rank: 0,
        hosting: world::Hosting::Rank0,
        deadline: Deadline::after(Duration::from_secs(60)),
        drain_ms: 0,
        service_cpu: None,
        give_up: Arc::default(),
    };
    let config = store::Config { page_bytes: PAGE, key_bytes: Some(1 << 20), ..config.clone() };
    Store::embedded(&world, &config)
}

/// Waits until something holds.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let late = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < late, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A value that says whose it is.
pub fn value(seed: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| u8::try_from((i * 7 + seed * 13 + i / 256) % 256).unwrap()).collect()
}

/// Puts a value with so many copies.
pub fn put(cluster: &Cluster, key: &str, value: &[u8], copies: u32) -> std::result::Result<(), i32> {
    let replicate = Replicate { copies, ..PutOptions::default().replicate };
    let options = PutOptions { replicate, ..PutOptions::default() };
    cluster
        .put(&[Item::new(key.as_bytes(), &[slice(value)])], &options)
        .unwrap()
        .remove(0)
        .map_err(|error| error.status)
}

/// Reads a value into so much memory.
pub fn get(cluster: &Cluster, key: &str, room: usize) -> std::result::Result<Vec<u8>, i32> {
    let mut into = vec![0u8; room];
    let got = cluster.get(&[Item::new(key.as_bytes(), &[slice_mut(&mut into)])]).unwrap().remove(0);
    got.result.map_err(|error| error.status)?;
    into.truncate(usize::try_from(got.bytes).unwrap());
    Ok(into)
}

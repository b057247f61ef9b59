//! The store behind the agent of a cluster's node: puts that the cluster has named, objects by header, epoch and key, drops, facts that
//! tell everything, and a client of its own. Each promise is checked on a store of this process alone, on the same as if its heap were a
//! device's, on one that this process serves to others, and on one whose master is elsewhere.

#![allow(unsafe_code, reason = "a test that says where bytes lie")]
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
use nanomc::base::status::*;
use nanomc::cluster::net::Span;
use nanomc::cluster::node::storage::{Tail, Wanted};
use nanomc::cluster::node::{Hold, Memory, NodeStore, Pinned, Plan, Storage};
use nanomc::cluster::types::{ObjectKey, Position, PutId};
use nanomc::cluster::wire::{Fact, Metadata, Published};
use nanomc::store::types::PutOptions;
use nanomc::store::{Config, Masters, Store};
use nanomc::world::{Hosting, World};
use node::{Directory, HEADERS, all, config, fill, key, put_id};
use random::Random;
use values::{get_if, put, put_as, put_on};

/// A store of two ranks; the handle is that of rank 1, or of the only process.
struct Bed {
    kind: Kind,
    store: Store,
    others: Vec<Store>,
    worlds: Vec<World>,
    _masters: Option<Masters>,
    _dir: tempfile::TempDir,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Embedded,
    /// The bytes of others go by way of host memory.
    Bounced,
    Served,
    Elsewhere,
}

const KINDS: [Kind; 4] = [Kind::Embedded, Kind::Bounced, Kind::Served, Kind::Elsewhere];

impl Bed {
    fn new(kind: Kind) -> Self {
        Self::with(kind, &config())
    }

    fn with(kind: Kind, config: &Config) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let hosting = if kind == Kind::Elsewhere { Hosting::Elsewhere } else { Hosting::Rank0 };
        let of = |rank| nanomc::world::Config { hosting, heap_bytes: 64 * 4096, ..world_config(dir.path(), rank, 2) };
        if matches!(kind, Kind::Embedded | Kind::Bounced) {
            let world = nanomc::world::Config { dir: None, ..of(None) };
            let store = Store::embedded(&world, config).unwrap();
            return Self { kind, store, others: Vec::new(), worlds: Vec::new(), _masters: None, _dir: dir };
        }
        let masters = (kind == Kind::Elsewhere).then(|| Masters::open(&of(None)).unwrap());
        let worlds = World::join_many((0..2).map(|rank| of(Some(rank))).collect()).unwrap();
        let others = vec![Store::attach(&worlds[0], config).unwrap()];
        let store = Store::attach(&worlds[1], config).unwrap();
        Self { kind, store, others, worlds, _masters: masters, _dir: dir }
    }

    fn node(&self) -> NodeStore {
        let node = NodeStore::new(&self.store).unwrap();
        if self.kind == Kind::Bounced { node.by_way_of_host(1 << 20) } else { node }
    }
}

fn wanted<'a>(put: PutId, key: &'a ObjectKey, length: usize, metadata: &'a Metadata) -> Wanted<'a> {
    Wanted { put, key, length: length as u64, segment: 1, exact: true, retain: 0, metadata, is_copy: false }
}

fn open(node: &mut NodeStore, put: PutId, key: &ObjectKey, length: usize) -> Result<Plan, nmc_status_t> {
    node.open(&wanted(put, key, length, &Metadata::default())).map_err(|error| error.status)
}

/// Holds a value. There is no disk from which it could come.
fn pin(node: &mut NodeStore, plan: Plan, key: &ObjectKey) -> nanomc::base::error::Result<Pinned> {
    match node.pin(plan, key, PutId(0))? {
        Hold::Held(pinned) => Ok(pinned),
        Hold::Coming(_) => panic!("{key:?} is on its way"),
    }
}

fn bytes_of(node: &mut NodeStore, pinned: &Pinned, offset: usize, length: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    node.ready(pinned.pin, offset as u64, length as u64).unwrap();
    let spans = node.pin_spans(pinned.pin, offset as u64, length as u64).unwrap();
    spans.list().unwrap().iter().for_each(|span| span.append_to(&mut bytes));
    bytes
}

fn put_through(node: &mut NodeStore, put: PutId, key: &ObjectKey, value: &[u8]) -> (Plan, u64) {
    let plan = open(node, put, key, value.len()).unwrap();
    fill(node, plan, value);
    (plan, node.commit(plan).unwrap().unwrap())
}

/// Retains all that a rank has room for, and gives how many that are.
fn fill_rank(node: &mut NodeStore, segment: u32) -> u64 {
    let metadata = Metadata::default();
    let retain = nanomc::store::types::Retain::Hard.code();
    for n in 0.. {
        let (put, key) = (put_id(1000 + n), key("", &format!("full{n}")));
        let wanted = Wanted { segment, retain, ..wanted(put, &key, 8 * 4096, &metadata) };
        match node.open(&wanted) {
            Ok(plan) => _ = node.commit(plan).unwrap(),
            Err(error) => {
                assert!([NMC_ERR_BUSY, NMC_ERR_NO_SPACE].contains(&error.status), "{error:?}");
                return n;
            }
        }
    }
    0
}

#[test]
fn a_value_for_any_segment_goes_where_there_is_room() {
    for kind in KINDS {
        let bed = Bed::new(kind);
        let mut node = bed.node();
        assert!(fill_rank(&mut node, 1) > 0);
        let (metadata, key) = (Metadata::default(), key("", "here"));
        let exact = wanted(put_id(1), &key, 8 * 4096, &metadata);
        assert!(node.open(&exact).is_err(), "control: that segment is full");
        let plan = node.open(&Wanted { exact: false, ..exact }).unwrap();
        node.commit(plan).unwrap();
        assert_eq!(pin_status(&mut node, plan, &key), NMC_OK);
    }
}

#[test]
fn a_store_without_values_is_empty_though_a_rank_has_left() {
    let mut bed = Bed::new(Kind::Elsewhere);
    let mut node = bed.node();
    assert_eq!((node.has_bytes(), node.used()), (false, vec![0, 0]));
    bed.others.clear();
    drop(bed.worlds.remove(0));
    // To others it is a rank that has no room.
    assert!(eventually(|| node.used() == [64 * 4096, 0]), "{:?}", node.used());
    assert!(!node.has_bytes());
    put_through(&mut node, put_id(1), &key("", "here"), b"a value");
    assert!(node.has_bytes(), "control");
}

fn pin_status(node: &mut NodeStore, plan: Plan, key: &ObjectKey) -> nmc_status_t {
    match pin(node, plan, key) {
        Ok(pinned) => {
            node.unpin(pinned.pin);
            NMC_OK
        }
        Err(error) => error.status,
    }
}

fn long(n: usize) -> Vec<u8> {
    (0..n).map(|i| u8::try_from(i * 7 % 251).unwrap()).collect()
}

#[test]
fn a_put_lives_under_its_name_from_its_plan_to_its_facts() {
    for kind in KINDS {
        let bed = Bed::new(kind);
        let mut node = bed.node();
        let (k, value, said) = (key("kv", "a"), long(3 * 4096 + 5), Metadata(b"said".to_vec()));
        let plan = node.open(&wanted(put_id(1), &k, value.len(), &said)).unwrap();
        let unknown = node.extents(plan).map_err(|error| error.status);
        assert_eq!(unknown, Err(NMC_ERR_UNSUPPORTED), "nobody was told of its memory");
        assert_eq!(node.regions().unwrap().len(), 2);
        if kind != Kind::Bounced {
            let extents = node.extents(plan).unwrap();
            assert_eq!(extents.iter().map(|extent| extent.length).sum::<u64>(), value.len() as u64);
            assert!(extents.iter().all(|extent| extent.region == 1), "the wanted rank: {extents:?}");
        }
        assert_eq!(open(&mut node, put_id(2), &k, 5), Err(NMC_ERR_EXISTS), "the key is being written");
        assert_eq!(open(&mut node, put_id(1), &key("kv", "b"), 5), Err(NMC_ERR_BUSY), "the put is under way");
        assert!(node.part(0, 100).unwrap().live.is_empty(), "what is being written is not told");
        fill(&node, plan, &value);
        assert_eq!(node.checksum(plan).unwrap(), nanomc::base::crc::crc32c(&value));
        let before = node.newest();
        let fact = node.commit(plan).unwrap().unwrap();
        assert!(fact > before);
        let published = Published {
            index: plan.index,
            epoch: plan.epoch,
            key: k.clone(),
            put: put_id(1),
            length: value.len() as u64,
            segment: 1,
        };
        let Tail::Facts(facts) = node.facts(before, 100).unwrap() else { panic!("nothing was overwritten") };
        assert_eq!(facts, [Fact::Published(published.clone())]);
        let part = node.part(0, 100).unwrap();
        assert_eq!((part.live, part.from, part.to, part.next), (vec![published], 0, HEADERS, None));
        assert_eq!(node.commit(plan).err().map(|error| error.status), Some(NMC_ERR_STALE), "it is not open any more");
        let pinned = pin(&mut node, plan, &k).unwrap();
        assert_eq!((pinned.put, pinned.length, &pinned.metadata), (put_id(1), value.len() as u64, &said));
        assert_eq!(bytes_of(&mut node, &pinned, 0, value.len()), value);
        assert_eq!(bytes_of(&mut node, &pinned, 4000, 5000), value[4000..9000]);
        node.unpin(pinned.pin);
        assert!(node.pin_spans(pinned.pin, 0, 1).is_err());
        assert_eq!(node.bounced(), (0, 0), "nothing is left of what stood in for it");
        // Programs of the node find it, checksummed.
        let space = bed.store.namespace(b"kv", None).unwrap();
        assert_eq!(get_if(&space, b"a").unwrap(), value);
        assert!(node.used()[1] >= value.len() as u64);
        // An empty value is one.
        let (empty, _) = put_through(&mut node, put_id(9), &key("", "empty"), b"");
        let pinned = pin(&mut node, empty, &key("", "empty")).unwrap();
        assert_eq!((pinned.length, bytes_of(&mut node, &pinned, 0, 0)), (0, vec![]));
        assert_eq!(get_if(&bed.store, b"empty").unwrap(), b"");
    }
}

#[test]
fn the_checksum_of_a_value_is_made_of_those_of_its_pages() {
    for kind in KINDS {
        let bed = Bed::new(kind);
        let mut node = bed.node();
        // In one run and in several, with whole pages and with parts of one.
        for (n, pages) in [(1, 1), (2, 5), (3, 3), (4, 7)] {
            put_through(&mut node, put_id(50 + n), &key("", &format!("before{n}")), &long(4096 * pages));
        }
        node.drop_key(&key("", "before1"));
        node.drop_key(&key("", "before3"));
        for (n, bytes) in [1, 4095, 4096, 4097, 8 * 4096, 12 * 4096 + 77].into_iter().enumerate() {
            let (k, value) = (key("kv", &format!("k{n}")), long(bytes));
            let (plan, _) = put_through(&mut node, put_id(n as u64), &k, &value);
            let pinned = pin(&mut node, plan, &k).unwrap();
            assert_eq!(node.sum(pinned.pin).unwrap(), Some(nanomc::base::crc::crc32c(&value)), "{bytes} bytes");
            node.verify(pinned.pin, 0, bytes as u64).unwrap();
            // A byte of the last page is another one.
            let last = node.far_spans(pinned.pin, bytes as u64 - 1, 1).unwrap().list().unwrap()[0];
            last.store(&[value[bytes - 1] ^ 4]);
            let mut verify = |offset, length| node.verify(pinned.pin, offset, length).map_err(|error| error.status);
            let [begin, end, all] = [(0, 1), (bytes as u64 - 1, 1), (0, bytes as u64)].map(|(at, n)| verify(at, n));
            assert_eq!((end, all), (Err(NMC_ERR_CORRUPT), Err(NMC_ERR_CORRUPT)));
            assert_eq!(begin.is_ok(), bytes > 4096, "pages that are not touched are not looked at");
            assert_eq!(node.sum(pinned.pin).unwrap(), Some(nanomc::base::crc::crc32c(&value)), "nobody has looked");
            last.store(&value[bytes - 1..]);
            node.unpin(pinned.pin);
            assert!(node.sum(pinned.pin).is_err() && node.verify(pinned.pin, 0, 1).is_err());
        }
    }
    let bed = Bed::with(Kind::Embedded, &Config { checksums: false, ..config() });
    let mut node = bed.node();
    let (plan, _) = put_through(&mut node, put_id(1), &key("", "a"), &long(5000));
    let pinned = pin(&mut node, plan, &key("", "a")).unwrap();
    assert_eq!((node.sum(pinned.pin).unwrap(), node.verify(pinned.pin, 0, 5000).is_ok()), (None, true));
}

/// What a node puts on itself has a name that no cluster gives, and is told without anybody else calling the master.
#[test]
fn whatothers_write_and_read_where_it_is_needs_no_memory_by_the_way() {
    let bed = Bed::new(Kind::Bounced);
    let mut node = bed.node();
    let (k, value) = (key("kv", "a"), long(3 * 4096 + 5));
    let regions = node.regions().unwrap();
    let plan = open(&mut node, put_id(1), &k, value.len()).unwrap();
    assert_eq!(node.bounced(), (value.len() as u64, 0));
    // As a mover does it.
    let mut rest = &value[..];
    for extent in node.extents(plan).unwrap() {
        let base = regions.iter().find(|region| region.number == extent.region).unwrap().base;
        let (now, later) = rest.split_at(usize::try_from(extent.length).unwrap());
        // SAFETY: memory of the plan.
        unsafe { Span::new(usize::try_from(base + extent.offset).unwrap(), now.len()) }.store(now);
        rest = later;
    }
    assert_eq!((node.bounced(), rest.len()), ((0, 0), 0));
    assert!(node.plan_spans(plan).is_err(), "nobody else writes to it");
    node.commit(plan).unwrap().unwrap();
    let pinned = pin(&mut node, plan, &k).unwrap();
    let mut read = Vec::new();
    let spans = node.far_spans(pinned.pin, 7, value.len() as u64 - 7).unwrap().list().unwrap();
    spans.iter().for_each(|span| span.append_to(&mut read));
    assert_eq!((read, node.bounced()), (value[7..].to_vec(), (0, 0)));
    assert_eq!(bytes_of(&mut node, &pinned, 0, value.len()), value, "and by the way");
    node.unpin(pinned.pin);
}

#[test]
fn only_memory_thatothers_were_told_of_is_written_to_by_them() {
    let dir = tempfile::tempdir().unwrap();
    let of = |rank| nanomc::world::Config { min_ranks: 1, ..world_config(dir.path(), Some(rank), 2) };
    let world = World::join(of(0)).unwrap();
    let store = Store::attach(&world, &config()).unwrap();
    let mut node = NodeStore::new(&store).unwrap();
    // Nobody has taken rank 1: the other is told of all the same.
    let ranks: Vec<u32> = node.regions().unwrap().into_iter().map(|region| region.number).collect();
    assert_eq!(ranks, [0]);
    let late = World::join(of(1)).unwrap();
    let _other = Store::attach(&late, &config()).unwrap();
    let mut plans = Vec::new();
    for segment in [0, 1] {
        let key = key("", &format!("{segment}"));
        let metadata = Metadata::default();
        let wanted = Wanted { segment, exact: true, ..wanted(put_id(u64::from(segment) + 1), &key, 100, &metadata) };
        assert!(eventually(|| node.open(&wanted).map(|plan| plans.push(plan)).is_ok()));
    }
    assert_eq!(node.extents(plans[0]).unwrap()[0].region, 0);
    // It is written to through this process alone.
    assert_eq!(node.extents(plans[1]).unwrap_err().status, NMC_ERR_UNSUPPORTED);
    assert_eq!(node.plan_spans(plans[1]).unwrap().len(), 1);
    assert_eq!(node.regions().unwrap().len(), 2);
    assert_eq!(node.extents(plans[1]).unwrap()[0].region, 1);
}

#[test]
fn what_programs_put_is_told_with_a_name_of_its_own() {
    for kind in KINDS {
        let bed = Bed::new(kind);
        let mut node = bed.node();
        let at = node.newest();
        put_on(&bed.store, b"local", b"bytes", 0).unwrap();
        let mut facts = Vec::new();
        assert!(eventually(|| match node.facts(at, 10).unwrap() {
            Tail::Facts(found) => {
                facts = found;
                !facts.is_empty()
            }
            Tail::Overwritten => panic!("nothing was overwritten"),
        }));
        let [Fact::Published(published)] = facts.as_slice() else { panic!("{facts:?}") };
        assert_eq!((&published.key, published.length, published.segment), (&key("", "local"), 5, 0));
        assert!(!published.put.is_clustered() && published.put.0 != 0);
        // Whoever waits for what was put before is told a number that covers it.
        put_on(&bed.store, b"more", b"bytes", 0).unwrap();
        assert!(node.newest() > at + 1);
    }
}

#[test]
fn a_plan_that_is_given_up_or_in_doubt_is_stale_and_its_pages_come_back_when_nothing_is_under_way() {
    for kind in KINDS {
        let bed = Bed::new(kind);
        let mut node = bed.node();
        let k = key("", "a");
        let plan = open(&mut node, put_id(1), &k, 10).unwrap();
        node.abandon(plan);
        assert_eq!(node.commit(plan).err().map(|error| error.status), Some(NMC_ERR_STALE));
        assert_eq!(node.used(), [0, 0]);
        // In doubt: the key is free at once, the pages are not.
        let plan = open(&mut node, put_id(2), &k, 3 * 4096).unwrap();
        assert_eq!(node.doubt(plan), 3 * 4096);
        assert_eq!(node.doubt(plan), 3 * 4096, "once more changes nothing");
        let (again, _) = put_through(&mut node, put_id(3), &k, b"other");
        assert_eq!(node.used(), [0, 4 * 4096]);
        assert_ne!(again.index, plan.index);
        assert_eq!(get_if(&bed.store, b"a").unwrap(), b"other");
        node.abandon(plan);
        assert!(eventually(|| node.used() == [0, 4096]));
        // Committed after all: it is over, and leaves nothing.
        let plan = open(&mut node, put_id(4), &key("", "b"), 10).unwrap();
        node.doubt(plan);
        assert_eq!(node.commit(plan).err().map(|error| error.status), Some(NMC_ERR_STALE));
        node.abandon(plan);
        assert!(eventually(|| node.used() == [0, 4096]));
        // One whose key was removed meanwhile.
        let plan = open(&mut node, put_id(5), &key("", "c"), 10).unwrap();
        node.drop_key(&key("", "c"));
        assert_eq!(node.commit(plan).err().map(|error| error.status), Some(NMC_ERR_STALE));
        node.abandon(plan);
        // And one whose namespace was.
        let plan = open(&mut node, put_id(6), &key("kv", "c"), 10).unwrap();
        node.drop_space(Some(b"kv"));
        assert_eq!(node.commit(plan).err().map(|error| error.status), Some(NMC_ERR_STALE));
        node.abandon(plan);
        assert!(eventually(|| {
            let _ = node.facts(node.newest(), 1);
            node.used() == [0, 4096]
        }));
    }
}

/// A writer that takes longer than the watchdog allows loses its plan, and what it still stores goes nowhere.
#[test]
fn the_watchdog_takes_a_plan_and_keeps_its_pages_until_it_is_abandoned() {
    for kind in KINDS {
        let bed = Bed::with(kind, &Config { watchdog_ms: 20, ..config() });
        let mut node = bed.node();
        let plan = open(&mut node, put_id(1), &key("", "late"), 10).unwrap();
        let free = || !bed.store.exists(b"late").unwrap() && put_on(&bed.store, b"late", b"other", 1).is_ok();
        assert!(eventually(free), "the key is free when the watchdog has looked");
        assert_eq!(node.used()[1], 2 * 4096, "its pages are not");
        assert_eq!(node.commit(plan).err().map(|error| error.status), Some(NMC_ERR_STALE));
        node.abandon(plan);
        assert!(eventually(|| node.used()[1] == 4096));
        assert_eq!(get_if(&bed.store, b"late").unwrap(), b"other");
    }
}

/// What comes over a slow network has as long as it takes: its node gives it up when it does not move.
#[test]
fn the_watchdog_waits_for_a_large_value_that_comes_from_elsewhere() {
    for kind in KINDS {
        let bed = Bed::with(kind, &Config { watchdog_ms: 20, ..config() });
        let mut node = bed.node();
        let plan = open(&mut node, put_id(1), &key("", "large"), 60 * 4096).unwrap();
        for _ in 0..10 {
            std::thread::sleep(std::time::Duration::from_millis(10));
            let _ = node.facts(node.newest(), 1);
        }
        assert!(node.commit(plan).is_ok());
        assert!(bed.store.exists(b"large").unwrap());
    }
}

#[test]
fn only_the_very_object_is_pinned_and_dropped_by_name() {
    for kind in KINDS {
        let bed = Bed::new(kind);
        let mut node = bed.node();
        let (k, other) = (key("kv", "a"), key("kv", "b"));
        let (plan, _) = put_through(&mut node, put_id(1), &k, b"first");
        put_through(&mut node, put_id(2), &key("kv2", "a"), b"elsewhere");
        let wrong = [
            (Plan { epoch: plan.epoch + 1, ..plan }, k.clone()),
            (Plan { epoch: plan.epoch - 1, ..plan }, k.clone()),
            (Plan { index: plan.index ^ 1, ..plan }, k.clone()),
            (Plan { index: 1 << 31, ..plan }, k.clone()),
            (plan, other.clone()),
            (plan, key("kv2", "a")),
            (plan, key("", "a")),
            (plan, key("nowhere", "a")),
        ];
        for (plan, key) in &wrong {
            assert_eq!(pin_status(&mut node, *plan, key), NMC_ERR_NOT_FOUND, "{plan:?} {key:?}");
            node.drop_named(*plan, key);
        }
        node.drop_put(&k, put_id(2));
        node.drop_put(&key("nowhere", "a"), put_id(1));
        node.drop_key(&other);
        assert_eq!(pin_status(&mut node, plan, &k), NMC_OK, "nothing of that touched it");
        assert_eq!(bed.store.find_namespace(b"nowhere"), None, "and nothing was made");
        // Replaced by a program: the former name is over, the new one is another's.
        let space = bed.store.namespace(b"kv", None).unwrap();
        put_as(&space, b"a", b"second", &PutOptions { replace: true, ..PutOptions::DEFAULT }).unwrap();
        assert_eq!(pin_status(&mut node, plan, &k), NMC_ERR_NOT_FOUND);
        node.drop_named(plan, &k);
        node.drop_put(&k, put_id(1));
        assert_eq!(get_if(&space, b"a").unwrap(), b"second");
        node.drop_key(&k);
        assert_eq!(get_if(&space, b"a"), None);
        // By put.
        let (plan, _) = put_through(&mut node, put_id(4), &k, b"third");
        node.drop_put(&k, put_id(4));
        assert_eq!(pin_status(&mut node, plan, &k), NMC_ERR_NOT_FOUND);
        // By name; whoever holds it finishes.
        let (plan, _) = put_through(&mut node, put_id(5), &k, b"fourth");
        let pinned = pin(&mut node, plan, &k).unwrap();
        node.drop_named(plan, &k);
        assert_eq!(pin_status(&mut node, plan, &k), NMC_ERR_NOT_FOUND);
        assert_eq!(bytes_of(&mut node, &pinned, 0, 6), b"fourth");
        node.unpin(pinned.pin);
        // By a flush of its namespace, and of all.
        let (plan, _) = put_through(&mut node, put_id(6), &k, b"fifth");
        let (kept, _) = put_through(&mut node, put_id(7), &key("", "kept"), b"kept");
        node.drop_space(Some(b"kv"));
        assert_eq!(pin_status(&mut node, plan, &k), NMC_ERR_NOT_FOUND);
        assert_eq!(pin_status(&mut node, kept, &key("", "kept")), NMC_OK);
        node.drop_space(None);
        assert_eq!(pin_status(&mut node, kept, &key("", "kept")), NMC_ERR_NOT_FOUND);
        assert!(node.part(0, 100).unwrap().live.is_empty());
        node.set_position(Position { term: 1, number: 1 }).expect("no drop has failed");
    }
}

/// Whatever programs and the cluster do, the list that is kept by the facts is the one that looking at everything gives.
#[test]
fn whoever_is_told_the_facts_knows_what_the_store_has() {
    let mut seen = 0;
    for (kind, seeds) in
        [(Kind::Embedded, 1..8), (Kind::Bounced, 12..15), (Kind::Served, 8..10), (Kind::Elsewhere, 10..12u64)]
    {
        for seed in seeds {
            let bed = Bed::new(kind);
            let (mut node, mut directory) = (bed.node(), Directory::default());
            let kv = bed.store.namespace(b"kv", None).unwrap();
            let mut chance = Random(seed);
            let mut random = |limit: u64| chance.below(limit);
            let mut held = Vec::new();
            for step in 0..1500 {
                let name = format!("k{}", random(24));
                let (space, program) = if random(2) == 0 { ("", &bed.store) } else { ("kv", &kv) };
                let (k, value) = (key(space, &name), long(usize::try_from(random(9000)).unwrap()));
                match random(16) {
                    0 => _ = program.remove(name.as_bytes()),
                    1 => _ = program.evict_until_below(u32::try_from(random(2)).unwrap(), 500),
                    2 => {
                        _ = put_as(
                            program,
                            name.as_bytes(),
                            &value,
                            &PutOptions { replace: true, ..PutOptions::DEFAULT },
                        )
                    }
                    3 | 4 => _ = put(program, name.as_bytes(), &value),
                    5 => node.drop_key(&k),
                    6 => {
                        let live = all(&mut node);
                        if let Some(found) = live.values().nth(usize::try_from(random(24)).unwrap()) {
                            node.drop_named(Plan { index: found.index, epoch: found.epoch }, &found.key);
                        }
                    }
                    7 => node.drop_put(&k, put_id(random(1500))),
                    8 if random(8) == 0 => {
                        node.drop_space([None, Some(&b"kv"[..])][usize::try_from(random(2)).unwrap()])
                    }
                    9 => {
                        let live = all(&mut node);
                        if let Some(found) = live.values().nth(usize::try_from(random(24)).unwrap()) {
                            held.extend(pin(&mut node, Plan { index: found.index, epoch: found.epoch }, &found.key));
                        }
                    }
                    10 if !held.is_empty() => {
                        let pinned: Pinned = held.swap_remove(usize::try_from(random(held.len() as u64)).unwrap());
                        node.unpin(pinned.pin);
                    }
                    _ => {
                        if let Ok(plan) = open(&mut node, put_id(step), &k, value.len()) {
                            fill(&node, plan, &value);
                            match random(4) {
                                0 => node.abandon(plan),
                                1 => {
                                    node.doubt(plan);
                                    node.abandon(plan);
                                }
                                _ => _ = node.commit(plan).expect("nobody else touches it"),
                            }
                        }
                    }
                }
                if random(7) == 0 {
                    directory.follow(&mut node);
                }
            }
            node.set_position(Position { term: 1, number: 1 }).expect("no drop has failed");
            // At rest: when everything that was published is noticed, and what was flushed is free.
            let at_rest = eventually(|| {
                let newest = node.newest();
                directory.follow(&mut node);
                directory.live == all(&mut node) && directory.at >= newest
            });
            assert!(at_rest, "{kind:?} seed {seed}: {:?} is not {:?}", directory.live, all(&mut node));
            assert_eq!(directory.snapshots, 0, "it was never late");
            seen += directory.live.len();
            held.drain(..).for_each(|pinned| node.unpin(pinned.pin));
            assert_eq!(node.bounced(), (0, 0));
        }
    }
    assert!(seen > 50, "there was something to see: {seen}");
}

#[test]
fn the_position_in_the_drop_log_lives_as_long_as_the_store_and_not_as_the_agent() {
    for kind in KINDS {
        let bed = Bed::new(kind);
        let mut node = bed.node();
        assert_eq!(node.position(), None);
        for position in [Position { term: 3, number: 7 }, Position { term: 4, number: 0 }] {
            node.set_position(position).unwrap();
            assert_eq!(node.position(), Some(position));
        }
        drop(node);
        assert_eq!(bed.node().position(), Some(Position { term: 4, number: 0 }));
    }
}

#[test]
fn an_agents_client_has_pins_of_its_own_and_ends_before_the_programs() {
    for kind in KINDS {
        let bed = Bed::with(kind, &Config { pin_slots: 4, ..config() });
        put_on(&bed.store, b"a", b"bytes", 1).unwrap();
        let mut node = bed.node();
        assert_eq!(NodeStore::new(&bed.store).err().map(|error| error.status), Some(NMC_ERR_EXISTS), "one at a time");
        node.newest();
        let (plan, k) = (all(&mut node).into_values().next().unwrap(), key("", "a"));
        let plan = Plan { index: plan.index, epoch: plan.epoch };
        let pins: Vec<Pinned> = (0..4).map(|_| pin(&mut node, plan, &k).unwrap()).collect();
        assert_eq!(pin_status(&mut node, plan, &k), NMC_ERR_BUSY);
        assert_eq!(get_if(&bed.store, b"a").unwrap(), b"bytes", "the program has its own");
        bed.store.remove(b"a").unwrap();
        assert_eq!(bytes_of(&mut node, &pins[0], 0, 5), b"bytes");
        assert_eq!(node.used()[1], 4096, "it is held");
        // With the agent its pins and plans end, and nothing of the program's.
        let open_plan = open(&mut node, put_id(1), &key("", "open"), 10).unwrap();
        put_on(&bed.store, b"b", b"kept", 1).unwrap();
        drop(node);
        assert!(eventually(|| {
            let _ = bed.store.remove(b"none");
            bed.store.heap_usage(1).0 == 4096
        }));
        assert_eq!(get_if(&bed.store, b"b").unwrap(), b"kept");
        assert!(put_on(&bed.store, b"open", b"free again", 1).is_ok(), "{open_plan:?} went with its agent");
        // The program's handle goes first: the agent's keeps the store.
        let mut node = bed.node();
        let Bed { store, others, worlds, _masters: masters, _dir: dir, .. } = bed;
        drop(store);
        put_through(&mut node, put_id(2), &key("", "still"), b"works");
        drop((others, node));
        drop((worlds, masters, dir));
    }
}

#[test]
fn nothing_new_is_stored_on_a_rank_that_is_closed() {
    for kind in KINDS {
        let bed = Bed::new(kind);
        let mut node = bed.node();
        put_on(&bed.store, b"before", b"bytes", 1).unwrap();
        let begun = open(&mut node, put_id(9), &key("", "begun"), 10).unwrap();
        node.close(1, true).unwrap();
        assert!(!node.is_quiet(1), "what has begun may still be published");
        node.abandon(begun);
        assert!(node.is_quiet(1) && node.is_quiet(0));
        assert_eq!(open(&mut node, put_id(1), &key("", "a"), 10), Err(NMC_ERR_NO_SPACE));
        assert_eq!(put_on(&bed.store, b"b", b"bytes", 1).map_err(|error| error.status), Err(NMC_ERR_NO_SPACE));
        for i in 0..20u8 {
            put(&bed.store, &[b'k', i], b"bytes").unwrap();
            put_as(&bed.store, &[b'l', i], b"x", &PutOptions { any_rank: true, ..PutOptions::DEFAULT }).unwrap();
        }
        assert_eq!(node.used()[1], 4096, "what was there, and no more");
        assert_eq!(get_if(&bed.store, b"before").unwrap(), b"bytes");
        node.close(1, false).unwrap();
        assert!(open(&mut node, put_id(1), &key("", "a"), 10).is_ok());
        assert_eq!(node.close(2, true).map_err(|error| error.status), Err(NMC_ERR_INVALID_ARG));
    }
}

/// Of two agents, as there are for a moment when a rank dies that a forked child keeps, the former one goes late.
#[test]
fn what_an_agent_has_closed_stays_closed_when_a_former_one_goes() {
    for kind in [Kind::Served, Kind::Elsewhere] {
        let bed = Bed::new(kind);
        let former = NodeStore::new(&bed.others[0]).unwrap();
        let mut node = bed.node();
        node.close(1, true).unwrap();
        drop(former);
        assert_eq!(put_on(&bed.store, b"b", b"bytes", 1).map_err(|error| error.status), Err(NMC_ERR_NO_SPACE));
        drop(node);
        assert!(eventually(|| put_on(&bed.store, b"b", b"bytes", 1).is_ok()), "it can open it no more");
    }
}

/// The store's master dies and another one comes: the agent's client has its place, pins and plans still, and hears that facts are
/// missing. What could not be dropped meanwhile is not confirmed.
#[test]
fn an_agent_outlives_the_master_of_its_store() {
    let mut bed = Bed::new(Kind::Elsewhere);
    let mut node = bed.node();
    let k = key("kv", "a");
    let (plan, _) = put_through(&mut node, put_id(1), &k, b"bytes");
    let unfinished = open(&mut node, put_id(2), &key("kv", "b"), 5).unwrap();
    let doubtful = open(&mut node, put_id(3), &key("kv", "c"), 5).unwrap();
    node.doubt(doubtful);
    let pinned = pin(&mut node, plan, &k).unwrap();
    node.set_position(Position { term: 2, number: 5 }).unwrap();
    node.close(0, true).unwrap();
    let at = node.newest();
    drop(bed._masters.take());
    assert!(eventually(|| !bed.store.client().master_up() && !node.store().client().master_up()));
    node.drop_key(&k);
    assert!(node.set_position(Position { term: 2, number: 6 }).is_err());
    let hosting = Hosting::Elsewhere;
    let again = nanomc::world::Config { hosting, heap_bytes: 64 * 4096, ..world_config(bed._dir.path(), None, 2) };
    bed._masters = Some(Masters::open(&again).unwrap());
    assert!(eventually(|| bed.store.client().master_up() && node.store().client().master_up()));
    assert!(eventually(|| node.facts(at, 10).unwrap() == Tail::Overwritten));
    assert_eq!(node.position(), Some(Position { term: 2, number: 5 }));
    assert_eq!(all(&mut node).into_values().map(|found| found.put).collect::<Vec<_>>(), [put_id(1)]);
    // The log comes again, and is applied.
    node.drop_key(&k);
    node.set_position(Position { term: 2, number: 6 }).unwrap();
    assert_eq!(pin_status(&mut node, plan, &k), NMC_ERR_NOT_FOUND);
    assert_eq!(bytes_of(&mut node, &pinned, 0, 5), b"bytes", "it is held");
    assert_eq!(node.used()[1], 3 * 4096, "and so is what may be written to");
    node.unpin(pinned.pin);
    node.abandon(doubtful);
    fill(&node, unfinished, b"later");
    node.commit(unfinished).unwrap();
    assert_eq!(all(&mut node).into_values().map(|found| found.put).collect::<Vec<_>>(), [put_id(2)]);
    assert!(eventually(|| {
        let _ = bed.store.remove(b"none");
        node.used() == [0, 4096]
    }));
    assert_eq!(put_on(&bed.store, b"x", b"x", 0).map_err(|error| error.status), Err(NMC_ERR_NO_SPACE), "still closed");
}

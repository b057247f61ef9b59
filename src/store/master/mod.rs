//! The master of a store: the only one who writes headers, keys and the index. It hands out write plans, evicts, and
//! takes back what dead or late clients leave. Every call does a bounded amount of work and a little upkeep; in a
//! process of its own or beside others a thread calls [`Master::tend`] too. It never touches a byte of a value.

mod book;
mod clients;
mod disk;
pub(super) mod evict;
mod heaps;
mod index;
mod lists;
mod make_room;
mod metrics;
mod namespaces;
mod plans;
mod quota;
mod reclaim;
mod takeover;
mod upkeep;

use crate::alloc::runs::{Run, Runs};
use crate::base::error::{Error, Result};
use crate::base::log;
use crate::base::memory;
use crate::base::point::reach;
use crate::base::status::{NMC_ERR_BUSY, NMC_ERR_EXISTS, NMC_ERR_INTERNAL, NMC_ERR_LIMIT};
use crate::layout::MAX_RANKS;
use crate::layout::region::prefetch;
use crate::layout::store::{
    CLUSTERED, DISK_EXPECTED, FLAG_CHECKSUM, FLAG_CONTIGUOUS, FLAG_HIDDEN, FLAG_RETURNS, FLAG_SPARES, Fact, Fate,
    MAX_EXTENTS, MAX_KEY, MAX_METADATA, MAX_NAMESPACE_NAME, MAX_NAMESPACES, METADATA_FLAGS, ON_DISK, ObjectHeader,
    PRIORITY_SHIFT, PublishWords, RETAIN_SHIFT, Seal, View, key_units, metadata_flags, metadata_len, reads_of,
};
use crate::mem::limits::check_available;
use crate::store::config::Policy;
use crate::store::hash::route_of;
use crate::store::map::Map;
use crate::store::sys::now_ns;
use crate::store::types::{
    ClientId, ClientInfo, Keep, OpenRequest, Opened, ReadFrom, Retain, Role, check_key, namespace_word, not_found, show,
};
use crate::sync::facts;
use crate::sync::index::Found;
use crate::sync::object;
use book::{Account, Book};
use evict::{FREE, Facts, LIMBO, QUARANTINE, Queues, WRITING};
use index::IndexWriter;
use lists::{ListId, Lists};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Objects that are looked at in one call before it gives up.
const BUDGET: usize = 4096;
/// Objects that are evicted together, with one look at the pins.
const BATCH: usize = 32;
/// Objects that a call evicts beyond what it needs, to get from the high to the low watermark.
const SPARE: usize = 16;
/// Objects being written that each call looks at.
const GLANCE: usize = 4;
/// How often waiting objects are looked at, in ns.
const SWEEP_NS: u64 = 1_000_000;
/// Waiting objects that one sweep looks at.
const SWEEP: usize = 64;
/// Headers that one step of a flush looks at.
const FLUSH: u32 = 512;
/// Steps of a flush when nobody calls.
const FLUSH_STEPS: u32 = 32;
/// Steps of a flush when a call finds no room.
const HURRIED_STEPS: u32 = 8;
/// Lines for the log that one call may give rise to; the rest is left out.
const MOST_NEWS: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Client {
    Free,
    Attached,
    /// It left, but streams may still hold pins.
    Leaving,
}

struct Rank {
    pages: Runs,
    queues: Queues,
    ready: u64,
    writing: u64,
    quarantined: u64,
    limbo: u64,
    /// Between the high and the low watermark, on the way down.
    draining: bool,
}

/// Whoever has a client's place.
#[derive(Debug, Clone, Copy)]
struct Place {
    /// Odd while somebody has it.
    generation: u64,
    info: ClientInfo,
    /// How far its pin slots have been looked at: what is announced in shared memory must not shrink.
    high_water: u64,
}

impl Place {
    const FREE: Place = Place { generation: 0, info: ClientInfo::NOBODY, high_water: 0 };
}

/// See the module.
pub struct Master {
    map: Arc<Map>,
    books: Vec<Book>,
    /// By namespace.
    accounts: Vec<Account>,
    ranks: Vec<Rank>,
    keys: Runs,
    lists: Lists,
    index: IndexWriter,
    clients: Vec<Client>,
    places: Vec<Place>,
    /// By rank, the holder that brought its heap, and the heap's name.
    heaps: Vec<(u64, u64)>,
    /// Ranks on which nothing new is stored, a bit each.
    closed: u64,
    /// Pages and key units that an object may have whose header made no sense when this master took over.
    held: takeover::Held,
    next_epoch: u64,
    /// Number of the newest fact. What shared memory says is not believed.
    newest_fact: u64,
    /// Some were not told: whoever follows them has to look at everything.
    facts_missing: bool,
    names: RandomState,
    next_sweep: u64,
    /// Next header at which the search for what is left of flushed namespaces looks; it goes round and round.
    flush_at: u32,
    /// Headers that it has yet to look at.
    flush_left: u32,
    /// By namespace and rank, where the search for something to evict goes on.
    quota_places: Vec<Option<quota::Place>>,
    /// Headers that are pinned; has room for all pins of all clients.
    pinned: Vec<u32>,
    /// Candidates for eviction that were pinned, and their queues, during one choice.
    aside: Vec<(u32, ListId)>,
    /// Objects that one call takes away together; has room for as many as it looks at.
    batch: Vec<u32>,
    runs: Vec<Run>,
    /// Ranks whose counters in shared memory are behind, one bit each.
    uncounted: u64,
    /// Whether this call has freed something that somebody may wait for.
    freed: bool,
    /// Lines for the log, until nobody holds a lock that the program's callback could need.
    news: Vec<(i32, String)>,
    /// What lies on disk, if there is one.
    disk: Option<disk::Disk>,
}

pub use disk::MOST_HELD;

impl Master {
    fn empty(map: Arc<Map>) -> Result<Self> {
        let p = *map.params();
        // The allocator gives addresses for what there is no memory for, and the kernel ends who uses them.
        let books =
            u64::from(p.max_objects) * (Lists::NODE_BYTES + size_of::<Book>() as u64) + u64::from(p.key_units());
        check_available(books + u64::from(p.pages()) * u64::from(p.world_size))?;
        let policy = Policy::from_code(p.policy).unwrap_or(Policy::Fifo);
        let rank = |rank| {
            Ok(Rank {
                pages: Runs::new(p.pages())?,
                queues: Queues::new(rank, policy, p.max_objects)?,
                ready: 0,
                writing: 0,
                quarantined: 0,
                limbo: 0,
                draining: false,
            })
        };
        Ok(Self {
            ranks: memory::try_collect((0..p.world_size).map(rank))?,
            keys: Runs::new(p.key_units())?,
            lists: Lists::new(p.max_objects, evict::lists(p.world_size), FREE)?,
            index: IndexWriter::new(),
            clients: memory::vec_of(p.max_clients as usize, Client::Free)?,
            places: memory::vec_of(p.max_clients as usize, Place::FREE)?,
            heaps: memory::vec_of(p.world_size as usize, (0, 0))?,
            closed: 0,
            held: takeover::Held::default(),
            books: memory::vec_of(p.max_objects as usize, Book::default())?,
            accounts: memory::vec_of(MAX_NAMESPACES, Account::default())?,
            next_epoch: 1,
            newest_fact: 0,
            facts_missing: false,
            names: RandomState::new(),
            next_sweep: 0,
            flush_at: 0,
            flush_left: 0,
            quota_places: memory::vec_of(MAX_NAMESPACES * p.world_size as usize, None)?,
            pinned: Vec::new(),
            aside: Vec::new(),
            batch: memory::with_capacity(BUDGET.max(4 * FLUSH as usize))?,
            runs: memory::with_capacity(MAX_EXTENTS)?,
            uncounted: 0,
            freed: false,
            news: Vec::new(),
            disk: None,
            map,
        })
    }

    /// The master of a new store.
    pub fn new(map: Arc<Map>) -> Result<Self> {
        let mut master = Self::empty(map)?;
        master.count_all();
        master.publish_counters();
        Ok(master)
    }

    /// Room for the pins of all clients that are there and `more`: looking at pins must not fail later.
    fn room_for_pins(&mut self, more: usize) -> Result<()> {
        let clients = self.clients.iter().filter(|client| **client != Client::Free).count() + more;
        let most = clients * self.map.params().pin_slots as usize;
        self.pinned.clear();
        memory::reserve(&mut self.pinned, most)?;
        memory::reserve(&mut self.aside, most + disk::MOST_HELD)
    }

    /// Tells whoever reads along what happened to objects.
    fn tell_fact(&mut self, view: &View<'_>, fact: Fact) {
        self.newest_fact += 1;
        if let Some(record) = view.fact(self.newest_fact) {
            facts::append(record, self.newest_fact, fact.words());
            view.header().facts.store(self.newest_fact, Release);
        }
    }

    /// Facts of before are not complete: a master may die before it tells of what it did.
    fn skip_facts(&mut self, view: &View<'_>, before: u64) {
        let before = if before <= takeover::SANE_EPOCH { before } else { 0 };
        self.newest_fact = before + view.layout.params.facts() as u64 + 1;
        view.header().facts.store(self.newest_fact, Release);
    }

    /// How far the node has applied the drop log of its cluster, once [`Master::note_position`] is written down for the same disk.
    pub fn set_position(&mut self, position: (u64, u64), changes: u64) -> Result<()> {
        self.check_same_disk(changes)?;
        self.map.view().header().set_position(position);
        Ok(())
    }

    /// Notes a line for the log, if there is memory for it.
    fn tell(&mut self, level: i32, line: impl FnOnce() -> String) {
        if self.news.len() < MOST_NEWS {
            self.news.push((level, line()));
        }
    }

    /// A line for the log.
    pub fn note(&mut self, level: i32, line: String) {
        self.tell(level, || line);
    }

    /// Lines for the log that came up since the last call.
    pub fn take_news(&mut self) -> Vec<(i32, String)> {
        std::mem::take(&mut self.news)
    }

    /// The memory.
    #[must_use]
    pub fn map(&self) -> &Arc<Map> {
        &self.map
    }
}

/// Bytes used of the last page of a value.
#[must_use]
pub fn last_page_bytes(bytes: u64, page_bytes: u32) -> u32 {
    match u32::try_from(bytes % u64::from(page_bytes)).unwrap_or(0) {
        0 if bytes > 0 => page_bytes,
        rest => rest,
    }
}

#[cold]
fn exists(key: &[u8], how: &str) -> Error {
    Error::new(NMC_ERR_EXISTS, format!("the object {} {how}; remove it first, or replace it", show(key)))
}

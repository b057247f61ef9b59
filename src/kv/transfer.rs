//! Moving published blocks to an object store, where other caches find them, and back. A few threads of the link do it, a
//! job after the other, its parts side by side; a job holds its blocks, so that whatever happens to the sequence meanwhile, nothing is reused
//! under the copy and nothing is lost after it. Blocks that come back can be matched, and count as computed, only when
//! every byte of them is there and was checked; a job that fails or is cancelled leaves the rest as if never asked for.
//!
//! In the store a block is one object: all groups, layers and sides one after the other, so caches whose arenas differ in
//! the order of these, or in size, can exchange blocks. Its key is the layout and the hash of the block. What a group
//! with blocks of its own has for a block of the index, a part of a window or a state, is an object beside it.

use super::arena::{Arena, Group};
use super::cache::Cache;
use super::geometry::Order;
use super::hash::BlockHash;
use super::lists::NONE;
use super::steps::{Step, Steps, Watcher};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result};
use crate::base::memory::{self, Text};
use crate::base::status::{
    NMC_ERR_BUSY, NMC_ERR_CANCELLED, NMC_ERR_EXISTS, NMC_ERR_INTERNAL, NMC_ERR_NOT_FOUND, NMC_ERR_STALE,
};
use crate::cuda::{Mark, PointerKind, pointer_kind, wait_for_event};
use crate::store::Store;
use crate::store::copy::{Pieces, Slice};
use crate::store::read::{Look, Sums};
use crate::store::write::PutOptions;
use crate::sync::panics;
use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, VecDeque};
use std::ffi::c_void;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

/// Jobs that can wait or be unasked-for at once.
const MOST_TICKETS: usize = 65_536;
/// Threads, as many as there are cores in between. What a copy costs beside the copy itself (asking the store, launching,
/// waiting, checksums) is hidden behind those of others.
const MOVERS: std::ops::RangeInclusive<usize> = 6..=12;

/// What a job waits for before it touches the blocks.
#[derive(Debug, Clone, Copy)]
pub enum After {
    /// Nothing: the memory is the host's, and the program has written it.
    Nothing,
    /// What was on a stream, given by its address, when the job was asked for.
    Stream(u64),
    /// An event of the program, which keeps it until the job is over.
    Event(u64),
}

enum Wait {
    Nothing,
    Mark(Mark),
    Event(u64),
}

/// How far a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Blocks of the job.
    pub blocks: u32,
    /// Leading blocks that are done.
    pub blocks_done: u32,
    /// Leading layers that are done in all blocks.
    pub layers_done: u32,
}

enum Work {
    Out,
    In { id: u64, uid: u64, by_layer: bool },
}

impl Work {
    /// The sequence that waits for it, with its id, if one does.
    const fn waits(&self) -> Option<(u64, u64)> {
        match self {
            Self::Out => None,
            Self::In { id, uid, .. } => Some((*id, *uid)),
        }
    }
}

/// A block that is read or written by a job.
#[derive(Debug, Clone, Copy)]
pub(super) struct Item {
    /// Whose block it is: a side's, or [`NONE`] for the cache's.
    pub side: u32,
    pub block: u32,
    /// The name of the block of the index that it is, or belongs to.
    pub hash: BlockHash,
}

/// Work in parts: an item, or a layer of a block, layer after layer.
struct Job {
    ticket: Arc<Ticket>,
    number: u64,
    /// Those of sides first, then the blocks in order.
    items: Vec<Item>,
    wait: Wait,
    work: Work,
    /// What it waits for is over, or failed.
    ready: OnceLock<Result<()>>,
    state: Mutex<State>,
}

/// Which parts of a job are taken and done.
#[derive(Default)]
struct State {
    /// The first part that nobody has taken.
    next: usize,
    /// Threads that work on it.
    active: usize,
    /// Parts that are done.
    done: Vec<bool>,
    /// Leading parts that are done.
    leading: usize,
    /// The failure of the earliest part that failed.
    failed: Option<(usize, Error)>,
}

impl Job {
    fn by_layer(&self) -> bool {
        matches!(self.work, Work::In { by_layer: true, .. })
    }

    fn parts(&self, layers: u32) -> usize {
        self.items.len() * if self.by_layer() { layers as usize } else { 1 }
    }

    /// How many of the items are of sides.
    fn of_sides(&self) -> usize {
        self.items.len() - self.ticket.blocks as usize
    }

    /// A part to do; none are left after a failure.
    fn take(&self, parts: usize) -> Option<usize> {
        let mut state = self.state.lock();
        if state.failed.is_some() || state.next >= parts {
            return None;
        }
        state.next += 1;
        Some(state.next - 1)
    }

    /// A part is done, or failed.
    fn put(&self, part: usize, done: Result<()>, layers: u32) {
        let mut state = self.state.lock();
        match done {
            Ok(()) => {
                state.done[part] = true;
                while state.done.get(state.leading) == Some(&true) {
                    state.leading += 1;
                }
            }
            Err(error) if state.failed.as_ref().is_none_or(|(earlier, _)| part < *earlier) => {
                state.failed = Some((part, error));
            }
            Err(_) => {}
        }
        let (whole, count) = (state.leading == state.done.len(), self.items.len() - self.of_sides());
        let count_of = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let (blocks, layers) = match self.by_layer() {
            true => (if whole { count } else { 0 }, count_of(state.leading / count.max(1))),
            false => (state.leading.saturating_sub(self.of_sides()), if whole { layers } else { 0 }),
        };
        self.ticket.blocks_done.store(count_of(blocks), Ordering::Release);
        self.ticket.layers_done.store(layers, Ordering::Release);
    }
}

struct Ticket {
    /// The sequence that waits for it, with its id, if one does.
    waits: Option<(u64, u64)>,
    blocks: u32,
    blocks_done: AtomicU32,
    layers_done: AtomicU32,
    cancelled: AtomicBool,
    over: Mutex<Option<Result<()>>>,
    rings: Condvar,
}

impl Ticket {
    fn progress(&self) -> Progress {
        Progress {
            blocks: self.blocks,
            blocks_done: self.blocks_done.load(Ordering::Acquire),
            layers_done: self.layers_done.load(Ordering::Acquire),
        }
    }

    fn check(&self) -> Result<()> {
        if self.cancelled.load(Ordering::Acquire) {
            return Err(cancelled());
        }
        Ok(())
    }
}

struct Shared {
    cache: Arc<Cache>,
    arena: Arena,
    store: Store,
    /// What blocks must have in common to be exchanged.
    fingerprint: u64,
    /// The same for the blocks of each side.
    side_fingerprints: Vec<u64>,
    queue: Mutex<(VecDeque<Arc<Job>>, bool)>,
    rings: Condvar,
    tickets: Mutex<HashMap<u64, Arc<Ticket>>>,
    next: AtomicU64,
    /// What moves come after that make room.
    before_moves: Mutex<After>,
    steps: Steps,
}

/// A cache and the store that it exchanges blocks with.
pub struct Link {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.close();
        for worker in self.workers.drain(..) {
            // It can only end by a panic that was a bug; its jobs are over either way.
            let _ended = worker.join();
        }
    }
}

/// What must be equal for two caches to exchange blocks of these groups: everything but the order of layers, K and V, and
/// the sizes.
fn fingerprint<'a>(mut groups: impl Iterator<Item = &'a Group>) -> Result<u64> {
    let mut text = Text::default();
    let written = groups.try_for_each(|group| {
        let shape = group.geometry.shape();
        let tokens_first = shape.order == Order::LayerMajorNhd;
        let numbers = (shape.layers, shape.kv_heads, shape.head_dim, shape.tokens_per_block);
        write!(text, "{:?} {:?} {numbers:?} {tokens_first};", shape.kind, shape.dtype)?;
        if group.side == NONE { Ok(()) } else { write!(text, "side {}", group.side) }
    });
    Ok(xxhash_rust::xxh64::xxh64(text.finish(written)?.as_bytes(), 0))
}

impl Shared {
    fn key(&self, side: u32, hash: BlockHash) -> [u8; 26] {
        let fingerprint = self.side_fingerprints.get(side as usize).unwrap_or(&self.fingerprint);
        let mut key = *b"kv........................";
        key[2..10].copy_from_slice(&fingerprint.to_le_bytes());
        key[10..].copy_from_slice(&hash.0);
        key
    }

    /// Where a layer of a block of a side, or of the cache, lies, counted through all its groups, in the order of its bytes
    /// in the store.
    fn slices(&self, side: u32, block: u32, layers: std::ops::Range<u32>, out: &mut Vec<Slice>) -> Result<()> {
        let mut first = 0;
        for group in self.arena.of(side) {
            let shape = group.geometry.shape();
            let own = layers.start.max(first) - first..layers.end.min(first + shape.layers).max(first) - first;
            let pieces = group.geometry.pieces(own);
            memory::reserve(out, usize::try_from(pieces.count()).unwrap_or(usize::MAX))?;
            out.extend(pieces.extents(block).map(|p| Slice { address: group.base + p.offset, bytes: p.bytes }));
            first += shape.layers;
        }
        Ok(())
    }

    fn layers(&self) -> u32 {
        self.arena.of(NONE).map(|group| group.geometry.shape().layers).sum()
    }

    /// Waits for what the job comes after; for all threads, the first one does.
    fn wait(&self, job: &Job) -> Result<()> {
        let over = job.ready.get_or_init(|| match &job.wait {
            Wait::Nothing => Ok(()),
            Wait::Mark(mark) => mark.wait(),
            Wait::Event(event) => {
                let Some(device) = self.store.client().member().device() else {
                    crate::bail!(NMC_ERR_UNSUPPORTED, "the store's world was joined without a CUDA device");
                };
                wait_for_event(device, *event as *mut c_void)
            }
        });
        over.clone()
    }

    /// Does one part of a job.
    fn part(&self, job: &Job, part: usize, slices: &mut Vec<Slice>) -> Result<()> {
        self.steps.part(job.number, Step::Taken(part))?;
        job.ticket.check()?;
        self.wait(job)?;
        self.steps.part(job.number, Step::Waited(part))?;
        let item = job.items[part % job.items.len()];
        match job.work {
            Work::Out => self.send(item, slices),
            Work::In { by_layer: true, .. } => {
                let layer = u32::try_from(part / job.items.len()).unwrap_or(u32::MAX);
                self.fetch(item, layer..layer + 1, slices)
            }
            Work::In { .. } => self.fetch(item, 0..u32::MAX, slices),
        }?;
        self.steps.part(job.number, Step::Copied(part))
    }

    fn send(&self, Item { side, block, hash }: Item, slices: &mut Vec<Slice>) -> Result<()> {
        let key = self.key(side, hash);
        if self.store.exists(&key)? {
            return Ok(());
        }
        slices.clear();
        self.slices(side, block, 0..u32::MAX, slices)?;
        match self.store.put(&key, &Pieces::Slices(slices), &PutOptions::DEFAULT) {
            // Somebody else computed and stored the same block.
            Err(error) if error.status == NMC_ERR_EXISTS => Ok(()),
            other => other,
        }
    }

    fn fetch(&self, item: Item, layers: std::ops::Range<u32>, slices: &mut Vec<Slice>) -> Result<()> {
        let Item { side, block, hash } = item;
        slices.clear();
        self.slices(side, block, 0..layers.start, slices)?;
        let offset = slices.iter().map(|slice| slice.bytes).sum();
        slices.clear();
        self.slices(side, block, layers.clone(), slices)?;
        let pieces = Pieces::Slices(slices);
        let expected = self.arena.of(side).map(|group| group.geometry.block_bytes()).sum();
        // Layers come from the same pages; a layer counts only when all before it have come.
        let sums = if layers == (0..u32::MAX) { Sums::Touched } else { Sums::Begun };
        match self.store.read_with(&self.key(side, hash), offset, &pieces, sums, |bytes| Ok(bytes == expected))? {
            Look::Ready(bytes) if bytes == expected => Ok(()),
            Look::Ready(bytes) => {
                crate::bail!(NMC_ERR_CORRUPT, "block {hash:?} has {bytes} bytes in the store, not {expected}")
            }
            _ => Err(Error::new(NMC_ERR_STALE, format!("block {hash:?} left the store in the meantime"))),
        }
    }

    /// How many of these blocks, of which the store has the first `there`, a sequence can begin with that has the first
    /// `first` already, so that every side has what comes next.
    fn usable(&self, hashes: &[BlockHash], first: usize, there: usize) -> Result<usize> {
        let has = |side: usize, at: usize| {
            let side = u32::try_from(side).unwrap_or(NONE);
            self.store.exists(&self.key(side, hashes[at - first]))
        };
        let mut end = first + there;
        let mut settled = false;
        while !settled && end > first {
            settled = true;
            for side in 0..self.side_fingerprints.len() {
                for at in self.cache.needed_from(side, first, end).rev() {
                    if !has(side, at)? {
                        // A window may begin behind what is missing; a state needs an earlier one.
                        (end, settled) = (at, false);
                        break;
                    }
                }
            }
        }
        Ok(end.saturating_sub(first))
    }

    /// Checks what a job is to wait for; memory of a device needs something.
    fn wait_of(&self, after: &After) -> Result<Wait> {
        let device = self.store.client().member().device();
        if let (Some(device), After::Nothing) = (device, after) {
            for group in self.arena.groups() {
                let kind = pointer_kind(device, group.base)?;
                if !matches!(kind, PointerKind::Host | PointerKind::RegisteredHost) {
                    crate::bail!(
                        NMC_ERR_INVALID_ARG,
                        "the cache lies in {kind}: say which stream or event the transfer comes after"
                    );
                }
            }
        }
        Ok(match (after, device) {
            (After::Nothing, _) => Wait::Nothing,
            (After::Stream(stream), Some(device)) => Wait::Mark(Mark::on(device, *stream as *mut c_void)?),
            (After::Event(event), Some(_)) if *event != 0 => Wait::Event(*event),
            (After::Event(_), Some(_)) => crate::bail!(NMC_ERR_INVALID_ARG, "the event is NULL"),
            (_, None) => crate::bail!(NMC_ERR_UNSUPPORTED, "the store's world was joined without a CUDA device"),
        })
    }

    /// Queues a job for blocks that are held under its number. If it cannot be, they are let go.
    fn enqueue(&self, number: u64, items: Vec<Item>, wait: Wait, work: Work) -> Result<u64> {
        let waits = work.waits();
        let queued = self.queue(number, items, wait, work);
        if queued.is_err() {
            if let Some((id, uid)) = waits {
                self.cache.land(id, uid, number, 0)?;
                self.cache.told(id, uid, number);
            }
            self.cache.let_hold_go(number)?;
        }
        queued
    }

    /// The same, and nothing else. After the end a job is over at once: no thread may be left for it, and somebody may wait for
    /// it.
    fn queue(&self, number: u64, items: Vec<Item>, wait: Wait, work: Work) -> Result<u64> {
        self.steps.reach(number, Step::Held);
        let blocks = items.iter().filter(|item| item.side == NONE).count();
        let ticket = Arc::new(Ticket {
            waits: work.waits(),
            blocks: u32::try_from(blocks).unwrap_or(u32::MAX),
            blocks_done: AtomicU32::new(0),
            layers_done: AtomicU32::new(0),
            cancelled: AtomicBool::new(false),
            over: Mutex::new(None),
            rings: Condvar::new(),
        });
        let (ready, state) = (OnceLock::new(), Mutex::default());
        let job = Job { ticket: Arc::clone(&ticket), number, items, wait, work, ready, state };
        job.state.lock().done = memory::vec_of(job.parts(self.layers()), false)?;
        let mut queue = self.queue.lock();
        memory::reserve_queue(&mut queue.0, 1)?;
        {
            let mut tickets = self.tickets.lock();
            memory::reserve_map(&mut tickets, 1)?;
            tickets.insert(number, ticket);
        }
        if queue.1 {
            drop(queue);
            job.state.lock().failed = Some((0, cancelled()));
            self.finish(&job);
        } else {
            queue.0.push_back(Arc::new(job));
            drop(queue);
            self.rings.notify_all();
        }
        self.steps.reach(number, Step::Queued);
        Ok(number)
    }

    fn number(&self) -> Result<u64> {
        if self.tickets.lock().len() >= MOST_TICKETS {
            crate::bail!(NMC_ERR_LIMIT, "{MOST_TICKETS} transfers were never asked for again; poll them");
        }
        // Apart from the numbers of pins.
        Ok(1 << 63 | self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Sends the published blocks of the first `tokens` tokens of a sequence to the store; those that it has are left out.
    fn offload(&self, id: u64, tokens: u32, after: &After) -> Result<u64> {
        let wait = self.wait_of(after)?;
        let number = self.number()?;
        let items = self.cache.hold_published(id, tokens, number)?;
        self.enqueue(number, items, wait, Work::Out)
    }

    /// Sends the published blocks of a sequence to the store, and waits until they are there.
    fn send_away(&self, id: u64) -> Result<()> {
        let number = {
            let after = self.before_moves.lock();
            self.offload(id, u32::MAX, &after)?
        };
        // As long as it takes: every part ends, and closing cancels them.
        loop {
            if let (_, Some(over)) = self.wait_for(number, Deadline::after(Duration::from_secs(60)))? {
                return over;
            }
        }
    }

    fn ticket(&self, number: u64) -> Result<Arc<Ticket>> {
        let found = self.tickets.lock().get(&number).cloned();
        found.ok_or_else(|| {
            Error::new(NMC_ERR_NOT_FOUND, format!("there is no transfer {number}; was its end told before?"))
        })
    }

    fn poll(&self, number: u64) -> Result<(Progress, Option<Result<()>>)> {
        let ticket = self.ticket(number)?;
        let over = ticket.over.lock().clone();
        if over.is_some() {
            self.tickets.lock().remove(&number);
            if let Some((id, uid)) = ticket.waits {
                self.cache.told(id, uid, number);
            }
        }
        Ok((ticket.progress(), over))
    }

    fn wait_for(&self, number: u64, deadline: Deadline) -> Result<(Progress, Option<Result<()>>)> {
        let ticket = self.ticket(number)?;
        let mut over = ticket.over.lock();
        while over.is_none() && !deadline.left().is_zero() {
            ticket.rings.wait_for(&mut over, deadline.left());
        }
        drop(over);
        self.poll(number)
    }

    /// Ends a job, however it went.
    fn finish(&self, job: &Job) {
        self.steps.reach(job.number, Step::Ending);
        let failed = job.state.lock().failed.take();
        let mut done = failed.map_or(Ok(()), |(_, error)| Err(error));
        if let Work::In { id, uid, .. } = job.work {
            // Without all that the sides need, a sequence cannot begin anywhere.
            let useless = done.is_err() && job.of_sides() > 0;
            let good = if useless { 0 } else { job.ticket.blocks_done.load(Ordering::Acquire) };
            job.ticket.blocks_done.store(good, Ordering::Release);
            let landed = self.cache.land(id, uid, job.number, good);
            done = done.and(landed);
        }
        self.steps.reach(job.number, Step::Landed);
        done = done.and(self.cache.let_hold_go(job.number));
        self.steps.reach(job.number, Step::Released);
        *job.ticket.over.lock() = Some(done);
        job.ticket.rings.notify_all();
    }

    /// The first job that has parts left, on which the caller works now; `None` when it is time to end.
    fn next_job(&self) -> Option<Arc<Job>> {
        let mut queue = self.queue.lock();
        loop {
            if let Some(job) = queue.0.front().cloned() {
                let mut state = job.state.lock();
                state.active += 1;
                // A job without parts is taken as well, so that it ends.
                if state.failed.is_some() || state.next + 1 >= state.done.len() {
                    // Nothing, or the last part, is left: others look for the next job.
                    queue.0.pop_front();
                }
                drop(state);
                return Some(job);
            }
            if queue.1 {
                return None;
            }
            self.rings.wait(&mut queue);
        }
    }

    fn work(&self) {
        let mut slices = Vec::new();
        while let Some(job) = self.next_job() {
            let parts = job.parts(self.layers());
            while let Some(part) = job.take(parts) {
                let caught = panics::catch(|| self.part(&job, part, &mut slices));
                let done = caught.unwrap_or_else(|_| {
                    Err(Error::new(NMC_ERR_INTERNAL, "a bug in a transfer was caught, please report it"))
                });
                job.put(part, done, self.layers());
                self.steps.reach(job.number, Step::Counted(part));
            }
            let mut queue = self.queue.lock();
            queue.0.retain(|other| !Arc::ptr_eq(other, &job));
            let mut state = job.state.lock();
            state.active -= 1;
            let last = state.active == 0;
            drop((state, queue));
            if last {
                let caught = panics::catch(|| self.finish(&job));
                if caught.is_err() {
                    // Whatever it was, nobody is to wait for it, and nothing stays held.
                    if let Work::In { id, uid, .. } = job.work {
                        let _landed = self.cache.land(id, uid, job.number, 0);
                    }
                    let _released = self.cache.let_hold_go(job.number);
                    let bug =
                        Error::new(NMC_ERR_INTERNAL, "a bug at the end of a transfer was caught, please report it");
                    *job.ticket.over.lock() = Some(Err(bug));
                    job.ticket.rings.notify_all();
                }
            }
        }
    }
}

impl Link {
    /// Ties a cache to a store. All groups must have memory.
    pub fn new(cache: Arc<Cache>, arena: Arena, store: Store) -> Result<Self> {
        if arena.groups().is_empty() || arena.groups().iter().any(|group| group.base == 0) {
            crate::bail!(NMC_ERR_INVALID_ARG, "the cache does not know its memory: set groups with memory");
        }
        let sides = u32::try_from(cache.config().sides.len()).unwrap_or(0);
        let shared = Arc::new(Shared {
            fingerprint: fingerprint(arena.of(NONE))?,
            side_fingerprints: memory::try_collect((0..sides).map(|side| fingerprint(arena.of(side))))?,
            cache,
            arena,
            store,
            queue: Mutex::default(),
            rings: Condvar::new(),
            tickets: Mutex::default(),
            next: AtomicU64::new(1),
            before_moves: Mutex::new(After::Nothing),
            steps: Steps::default(),
        });
        let mut link = Self { shared, workers: Vec::new() };
        let weak = Arc::downgrade(&link.shared);
        let mover = move |id| match weak.upgrade() {
            Some(shared) => shared.send_away(id),
            None => Err(Error::new(NMC_ERR_CANCELLED, "the cache is being destroyed")),
        };
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        for _ in 0..cores.clamp(*MOVERS.start(), *MOVERS.end()) {
            let shared = Arc::clone(&link.shared);
            let started = std::thread::Builder::new().name("nmc-kv-move".into()).spawn(move || shared.work());
            link.workers.push(started.map_err(|cause| Error::os("starting a thread", &cause))?);
        }
        // Now that nothing can fail: it is set once. A second link for the same cache is refused before it is made.
        let _set = link.shared.cache.mover.set(Box::new(mover));
        Ok(link)
    }

    /// Cancels all jobs; no more are taken. Whoever waits for one is told soon.
    pub fn close(&self) {
        self.shared.queue.lock().1 = true;
        for ticket in self.shared.tickets.lock().values() {
            ticket.cancelled.store(true, Ordering::Release);
        }
        self.shared.rings.notify_all();
        self.shared.store.close();
    }

    /// Tells `watcher` of every step of every transfer from now on; false if another is told already. For tests.
    #[doc(hidden)]
    pub fn watch(&self, watcher: Watcher) -> bool {
        self.shared.steps.watch(watcher)
    }

    /// Sends the published blocks of the first `tokens` tokens of a sequence to the store; those that it has are left out.
    pub fn offload(&self, id: u64, tokens: u32, after: &After) -> Result<u64> {
        self.shared.offload(id, tokens, after)
    }

    /// What moves that make room come after: `after` is asked for in each of them.
    pub fn move_after(&self, after: After) -> Result<()> {
        // It must be something that can be waited for.
        self.shared.wait_of(&after)?;
        *self.shared.before_moves.lock() = after;
        Ok(())
    }

    /// Fetches the blocks that follow what a sequence has computed, as far as the store has them. Returns the ticket and
    /// how many tokens that are; 0 and 0 if there are none. Until its end was told the sequence can only be read or closed.
    pub fn onboard(&self, id: u64, after: &After, all: bool, by_layer: bool) -> Result<(u64, u32)> {
        let wait = self.shared.wait_of(after)?;
        if by_layer && !self.shared.side_fingerprints.is_empty() {
            crate::bail!(NMC_ERR_UNSUPPORTED, "groups with blocks of their own do not come layer by layer");
        }
        let (uid, first, mut hashes) = self.shared.cache.wanted(id, all)?;
        let there = self.leading(&hashes)?;
        hashes.truncate(self.shared.usable(&hashes, first, there)?);
        if hashes.is_empty() {
            return Ok((0, 0));
        }
        let number = self.shared.number()?;
        let items = self.shared.cache.hold_wanted(id, uid, &hashes, number)?;
        let tokens = u32::try_from(hashes.len()).unwrap_or(0) * self.shared.cache.config().tokens_per_block;
        Ok((self.shared.enqueue(number, items, wait, Work::In { id, uid, by_layer })?, tokens))
    }

    /// How many leading blocks of these the store has.
    fn leading(&self, hashes: &[BlockHash]) -> Result<usize> {
        let keys = memory::collect(hashes.iter().map(|hash| self.shared.key(NONE, *hash)))?;
        self.shared.store.match_prefix(keys.iter().map(|key| Ok(&key[..])))
    }

    /// How many leading tokens of a sequence the store has, so that another could begin with them.
    pub fn stored(&self, id: u64) -> Result<u32> {
        let hashes = self.shared.cache.names(id)?;
        let there = self.shared.usable(&hashes, 0, self.leading(&hashes)?)?;
        Ok(u32::try_from(there).unwrap_or(0) * self.shared.cache.config().tokens_per_block)
    }

    /// How far a job is, and its outcome if it is over; that is told once.
    pub fn poll(&self, number: u64) -> Result<(Progress, Option<Result<()>>)> {
        self.shared.poll(number)
    }

    /// The same, after waiting for the end.
    pub fn wait(&self, number: u64, deadline: Deadline) -> Result<(Progress, Option<Result<()>>)> {
        self.shared.wait_for(number, deadline)
    }

    /// Asks a job to end soon; what it becomes is told as ever.
    pub fn cancel(&self, number: u64) -> Result<()> {
        self.shared.ticket(number)?.cancelled.store(true, Ordering::Release);
        Ok(())
    }
}

#[cold]
fn cancelled() -> Error {
    Error::new(NMC_ERR_CANCELLED, "the transfer was cancelled")
}

/// What calls for a sequence that is being fetched are told.
#[cold]
pub(super) fn busy(id: u64) -> Error {
    Error::new(
        NMC_ERR_BUSY,
        format!(
            "blocks of sequence {id} are being fetched, or it was not asked how that ended; wait for it, cancel it, or close it"
        ),
    )
}

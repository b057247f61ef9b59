//! The cache: sequences in lanes, and the pool under them. A sequence lives in the lane of the thread that opened it, and
//! a lane keeps a few free blocks, so threads that work on their own sequences share no lock until they share blocks.
//! Locks are taken in the order lane, kept, pool; never two lanes at once, except by the audit, which takes them in order.

use super::events::Events;
use super::evict::Kind;
use super::hands::Hands;
use super::hash::BlockHash;
use super::holds::Hold;
use super::kept::Kept;
use super::lane::{Aligned, LANES, Lane, Walk, own_lane, slot_of, uid_of};
use super::lists::NONE;
use super::pool::{Keep, Pool, Prefix};
use super::room::Mover;
use super::seq::Seq;
use super::side::Side;
use super::types::{Attempt, BlockCopy, Config, MAX_TOKENS, Open, Opened, Placement, SideKind, State, WhenFull};
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::{NMC_ERR_EXISTS, NMC_ERR_LIMIT, NMC_ERR_NOT_FOUND, NMC_ERR_STALE};
use crate::mem::limits::check_available;
use crate::sync::ids::Ids;
use crate::sync::lock::Mutex;
use once_cell::sync::OnceCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Free blocks that a lane keeps at most.
const SPARE_MAX: usize = 128;
/// Uses in a lane after which uses in all lanes count as later.
const ERA: u64 = 256;
/// Books of fewer bytes are not compared with the memory that there is.
const LARGE_BOOKS: u64 = 64 << 20;
/// One tick of the clock for priorities, in milliseconds.
const TICK_MS: u128 = 16;

/// Counters that any thread adds to.
#[derive(Default)]
pub(super) struct Counters {
    pub(super) evicted_sequences: AtomicU64,
    pub(super) moved_sequences: AtomicU64,
    pub(super) deduplicated: AtomicU64,
}

/// The cache.
pub struct Cache {
    pub(super) config: Config,
    pub(super) lanes: Box<[Aligned<Mutex<Lane>>]>,
    pub(super) spare_max: usize,
    /// Who changes `table` holds it.
    pub(super) ids: Aligned<Mutex<()>>,
    pub(super) table: Ids,
    names: Mutex<HashMap<Box<[u8]>, u64>>,
    pub(super) pool: Aligned<Mutex<Pool>>,
    /// Free blocks that are still mapped.
    pub(super) kept: Mutex<Kept>,
    pub(super) pins: Mutex<HashMap<u64, Hold>>,
    /// Room for the hashes of the prompt that is asked for, while nobody asks: a question does not allocate.
    asked: Mutex<Vec<BlockHash>>,
    /// Tells old uses from new ones across lanes.
    era: Aligned<AtomicU64>,
    pub(super) next_pin: AtomicU64,
    pub(super) counters: Counters,
    /// Sends the blocks of a sequence to the store, and waits until they are there.
    pub(super) mover: OnceCell<Mover>,
    born: Instant,
}

#[cold]
pub(super) fn evicted(id: u64) -> Error {
    Error::new(
        NMC_ERR_STALE,
        format!("the blocks of sequence {id} were taken to make room; close it and open it again"),
    )
}

#[cold]
fn name_taken(name: &[u8]) -> Error {
    let text = String::from_utf8_lossy(name);
    Error::new(NMC_ERR_EXISTS, format!("a sequence named '{text}' is already open"))
}

#[cold]
pub(super) fn too_long(id: u64, tokens: u64, limit: u32) -> Error {
    Error::new(NMC_ERR_LIMIT, format!("sequence {id} would have {tokens} tokens, its limit is {limit}"))
}

/// Bytes that the books of so many blocks take, about.
fn block_books(config: &Config, blocks: u32) -> u64 {
    let compare = config.prefix && config.chain.needs_comparison();
    Pool::book_bytes(blocks, config.eviction, config.tokens_per_block, compare, config.sides.len())
}

/// Fails if the machine can be seen not to have memory for books of so many bytes, before they are written.
fn check_books(config: &Config, blocks: u32, bytes: u64) -> Result<()> {
    if bytes < LARGE_BOOKS {
        return Ok(());
    }
    let Config { max_sequences, events, .. } = config;
    let what = format_args!("the books of {blocks} blocks, {max_sequences} sequences and {events} events");
    check_available(bytes).map_err(|error| error.context(what))
}

impl Cache {
    /// A cache of empty blocks.
    pub fn new(config: Config) -> Result<Self> {
        if config.tokens_per_block == 0 || config.tokens_per_block > 1 << 20 {
            crate::bail!(NMC_ERR_INVALID_ARG, "tokens_per_block {} is not in 1..=1048576", config.tokens_per_block);
        }
        if config.total_blocks == 0 || config.total_blocks > i32::MAX.unsigned_abs() {
            crate::bail!(NMC_ERR_INVALID_ARG, "total_blocks {} is not in 1..=2147483647", config.total_blocks);
        }
        for (number, side) in config.sides.iter().enumerate() {
            if side.blocks == 0 || side.blocks > i32::MAX.unsigned_abs() || side.kind == SideKind::Window(0) {
                crate::bail!(
                    NMC_ERR_INVALID_ARG,
                    "side {number} has no blocks, too many, or an empty window: {side:?}"
                );
            }
        }
        if config.max_sequences == 0 || config.max_sequences > 1 << 24 {
            crate::bail!(NMC_ERR_INVALID_ARG, "max_sequences {} is not in 1..=16777216", config.max_sequences);
        }
        let compare = config.prefix && config.chain.needs_comparison();
        let other = Events::book_bytes(config.events) + Ids::book_bytes(config.max_sequences);
        let sides = config.sides.iter().map(Side::book_bytes).sum::<u64>();
        check_books(&config, config.total_blocks, block_books(&config, config.total_blocks) + other + sides)?;
        let pool = Pool::new(
            config.total_blocks,
            config.eviction,
            config.tokens_per_block,
            compare,
            config.events,
            &config.sides,
        )?;
        // Small pools have no spare blocks in lanes: there they would be missed.
        let spare_max = (config.total_blocks as usize / (LANES * 8)).min(SPARE_MAX);
        Ok(Self {
            lanes: memory::vec_with(LANES, |number| Aligned(Mutex::new(Lane { number, ..Lane::default() })))?
                .into_boxed_slice(),
            spare_max: if spare_max < 8 { 0 } else { spare_max },
            ids: Aligned(Mutex::new(())),
            table: Ids::new(config.max_sequences)?,
            names: Mutex::default(),
            pool: Aligned(Mutex::new(pool)),
            kept: Mutex::default(),
            pins: Mutex::default(),
            asked: Mutex::default(),
            era: Aligned(AtomicU64::new(1)),
            next_pin: AtomicU64::new(1),
            counters: Counters::default(),
            mover: OnceCell::new(),
            born: Instant::now(),
            config,
        })
    }

    /// How it was made.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    pub(super) const fn per_block(&self) -> u32 {
        self.config.tokens_per_block
    }

    pub(super) fn blocks_for(&self, tokens: u32) -> usize {
        tokens.div_ceil(self.per_block()) as usize
    }

    fn ticks_after(&self, ms: u32) -> u32 {
        u32::try_from((self.born.elapsed().as_millis() + u128::from(ms)) / TICK_MS + 1).unwrap_or(u32::MAX)
    }

    /// The time, if anything depends on it.
    pub(super) fn now(&self) -> u32 {
        if self.config.eviction == Kind::Priority { self.ticks_after(0) } else { 0 }
    }

    /// The time of a use: exact in a lane, and every so often told to the others.
    #[inline]
    fn stamp(&self, tick: &mut u64) -> (u64, u64) {
        *tick += 1;
        if tick.is_multiple_of(ERA) {
            self.era.fetch_add(1, Ordering::Relaxed);
        }
        (self.era.load(Ordering::Relaxed), *tick)
    }

    /// Runs `body` with an open sequence and its lane.
    #[inline]
    pub(super) fn with<R>(&self, id: u64, body: impl FnOnce(&mut Seq, &mut Hands<'_>) -> Result<R>) -> Result<R> {
        let (mut lane, at) = self.locked(id)?;
        let lane = &mut *lane;
        let seq = &mut lane.seqs[at];
        if seq.state == State::Evicted {
            return Err(evicted(id));
        }
        if seq.fetching != 0 {
            return Err(super::transfer::busy(id));
        }
        seq.last_use = self.stamp(&mut lane.tick);
        let done = body(seq, &mut Hands { cache: self, spare: &mut lane.spare });
        seq.find_ceiling(self.config.tokens_per_block, self.config.window);
        done
    }

    /// The hashes of the full blocks of a prompt.
    fn hashes(&self, root: BlockHash, tokens: &[u32]) -> Result<Vec<BlockHash>> {
        let mut hashes = Vec::new();
        self.hash_into(root, tokens, &mut hashes)?;
        Ok(hashes)
    }

    fn hash_into(&self, root: BlockHash, tokens: &[u32], to: &mut Vec<BlockHash>) -> Result<()> {
        let mut last = root;
        let full = tokens.chunks_exact(self.per_block() as usize);
        memory::reserve(to, full.len())?;
        to.extend(full.map(|block| {
            last = self.config.chain.next(last, block);
            last
        }));
        Ok(())
    }

    /// Makes sure that one more sequence can publish its first block whatever the others do.
    fn reserve_roots(&self) -> Result<()> {
        if self.config.prefix && self.config.chain.needs_comparison() {
            self.pool.lock().reserve_roots(self.table.count() + 1)?;
        }
        Ok(())
    }

    /// Whether the salt matters beside the hashes: if tokens are known, more hashes may be made of them.
    fn needs_root(&self, tokens: Option<&[u32]>) -> bool {
        tokens.is_some() || self.config.chain.needs_comparison()
    }

    fn check_open(&self, open: &Open<'_>) -> Result<()> {
        let full = (open.n_tokens / self.per_block()) as usize;
        if open.n_tokens > MAX_TOKENS {
            crate::bail!(NMC_ERR_LIMIT, "{} tokens are more than a sequence can have ({MAX_TOKENS})", open.n_tokens);
        }
        if open.tokens.is_some_and(|tokens| tokens.len() != open.n_tokens as usize) {
            crate::bail!(NMC_ERR_INVALID_ARG, "tokens must be given for all {} or none", open.n_tokens);
        }
        if let Some(hashes) = open.hashes {
            if hashes.len() != full {
                crate::bail!(NMC_ERR_INVALID_ARG, "{} hashes for {full} full blocks", hashes.len());
            }
            if self.config.chain.needs_comparison() && open.tokens.is_none() {
                crate::bail!(NMC_ERR_INVALID_ARG, "with this hash the tokens are compared: give them with the hashes");
            }
        }
        if open.contiguous && !self.config.sides.is_empty() {
            crate::bail!(
                NMC_ERR_UNSUPPORTED,
                "contiguous sequences are not for a cache that has groups with blocks of their own"
            );
        }
        if open.priority >= super::evict::PRIORITIES {
            crate::bail!(NMC_ERR_INVALID_ARG, "priority {} is not in 0..{}", open.priority, super::evict::PRIORITIES);
        }
        Ok(())
    }

    /// The hashes of the full blocks of a prompt with this salt.
    pub fn hashes_of(&self, tokens: &[u32], salt: &[u8]) -> Result<Vec<BlockHash>> {
        self.hashes(self.config.chain.root(&[salt]), tokens)
    }

    /// Opens a sequence: takes what the cache has of its tokens and gets blocks for the rest, all or nothing.
    pub fn open(&self, id: u64, open: &Open<'_>) -> Result<Attempt<Opened>> {
        self.check_open(open)?;
        // Before anything is evicted for it; looked at again when it is entered.
        self.table.check_vacant(id)?;
        self.check_name(open.name)?;
        self.reserve_roots()?;
        let prefix = self.config.prefix && !open.no_publish && (open.tokens.is_some() || open.hashes.is_some());
        let root = if prefix && self.needs_root(open.tokens) {
            self.config.chain.root(&[open.salt])
        } else {
            BlockHash::default()
        };
        let own;
        let hashes = match (prefix, open.hashes) {
            (false, _) => &[][..],
            (true, Some(given)) => given,
            (true, None) => {
                own = self.hashes(root, open.tokens.unwrap_or_default())?;
                &own
            }
        };
        let whole = self.blocks_for(open.n_tokens);
        if self.config.when_full == WhenFull::Shorten {
            // It gets what there is, and spare blocks of other lanes are there, too.
            let room = self.room(0);
            if room.free + room.evictable < whole as u64 {
                self.flush()?;
            }
        }
        self.with_room(id, whole, || self.try_open(id, open, root, hashes, prefix))
    }

    fn try_open(
        &self,
        id: u64,
        open: &Open<'_>,
        root: BlockHash,
        hashes: &[BlockHash],
        prefix: bool,
    ) -> Result<Attempt<Opened>> {
        let lane_number = own_lane();
        let mut lane = self.lanes[lane_number].0.lock();
        let lane = &mut *lane;
        let at = lane.vacancy()?;
        let seq = &mut lane.seqs[at];
        seq.reset();
        seq.keeper = open.keeper;
        seq.placement = match (open.keeper, open.contiguous) {
            (0, false) => Placement::Paged,
            (0, true) => Placement::Run,
            _ => Placement::Virtual,
        };
        seq.known = prefix && open.tokens.is_some();
        (seq.root, seq.chain) = (root, root);
        let expiry = if open.ttl_ms == 0 { 0 } else { self.ticks_after(open.ttl_ms) };
        seq.keep = Keep { priority: open.priority, expiry };
        seq.limit = if open.limit == 0 { MAX_TOKENS } else { open.limit };
        let hands = &mut Hands { cache: self, spare: &mut lane.spare };
        let got = match hands.fill(seq, open, hashes) {
            Ok(Ok(opened)) => opened,
            other => {
                lane.vacate(at);
                return other;
            }
        };
        let seq = &mut lane.seqs[at];
        (seq.id, seq.state) = (id, State::Open);
        lane.opened += 1;
        seq.uid = uid_of(lane_number, lane.opened);
        seq.last_use = self.stamp(&mut lane.tick);
        let named = self.enter(id, slot_of(lane_number, at), open.name);
        if let Err(error) = named {
            let seq = &mut lane.seqs[at];
            Hands { cache: self, spare: &mut lane.spare }.empty(seq)?;
            lane.vacate(at);
            return Err(error);
        }
        let seq = &mut lane.seqs[at];
        seq.name = open.name.map(Box::from);
        seq.find_ceiling(self.config.tokens_per_block, self.config.window);
        lane.hit_tokens += u64::from(got.hit_tokens);
        lane.asked_tokens += u64::from(open.n_tokens);
        Ok(Ok(got))
    }

    fn check_name(&self, name: Option<&[u8]>) -> Result<()> {
        match name {
            Some(name) if self.names.lock().contains_key(name) => Err(name_taken(name)),
            _ => Ok(()),
        }
    }

    /// Makes a sequence known by its id, and by its name if it has one.
    fn enter(&self, id: u64, slot: u32, name: Option<&[u8]>) -> Result<()> {
        let mut names = name.map(|name| (self.names.lock(), name));
        if let Some((names, name)) = &names
            && names.contains_key(*name)
        {
            return Err(name_taken(name));
        }
        if let Some((names, _)) = &mut names {
            memory::reserve_map(names, 1)?;
        }
        {
            let _table = self.ids.lock();
            self.table.insert(id, slot)?;
        }
        if let Some((names, name)) = &mut names {
            names.insert(Box::from(*name), id);
        }
        Ok(())
    }

    /// The id of a named sequence.
    pub fn find(&self, name: &[u8]) -> Result<u64> {
        let found = self.names.lock().get(name).copied();
        found.ok_or_else(|| {
            let text = String::from_utf8_lossy(name).into_owned();
            Error::new(NMC_ERR_NOT_FOUND, format!("no sequence named '{text}' is open"))
        })
    }

    /// How many leading tokens of a prompt the cache has; holds nothing.
    pub fn matching(&self, tokens: Option<&[u32]>, hashes: Option<&[BlockHash]>, salt: &[u8]) -> Result<u32> {
        if !self.config.prefix {
            return Ok(0);
        }
        let root = if self.needs_root(tokens) { self.config.chain.root(&[salt]) } else { BlockHash::default() };
        let tokens = tokens.unwrap_or_default();
        let found = match hashes {
            Some(hashes) => self.pool.lock().matching(Prefix { root, hashes, tokens })?,
            None => {
                let mut own = std::mem::take(&mut *self.asked.lock());
                own.clear();
                let found = self
                    .hash_into(root, tokens, &mut own)
                    .and_then(|()| self.pool.lock().matching(Prefix { root, hashes: &own, tokens }));
                *self.asked.lock() = own;
                found?
            }
        };
        Ok(u32::try_from(found).unwrap_or(0) * self.per_block())
    }

    /// Adds `count` tokens; what the sequence had before counts as computed now. A contiguous sequence that cannot grow
    /// where it is moves: its plan tells which blocks to copy.
    #[inline(never)] // one body for all who call it
    pub fn append(&self, id: u64, count: u32, tokens: Option<&[u32]>, importance: Option<f32>) -> Result<Attempt<()>> {
        self.with_room(id, 0, || self.with(id, |seq, hands| hands.append(seq, count, tokens, importance)))
    }

    /// Adds one token to each of many sequences, and tells `each` what became of it.
    pub fn append_batch(&self, ids: &[u64], tokens: Option<&[u32]>, mut each: impl FnMut(usize, Result<Attempt<()>>)) {
        let mut walk = Walk::new(self);
        for (at, id) in ids.iter().enumerate() {
            let done = match walk.to(*id) {
                Err(error) => Err(error),
                Ok((lane, index)) => {
                    let seq = &mut lane.seqs[index];
                    seq.last_use = self.stamp(&mut lane.tick);
                    if seq.bump(tokens.map(|tokens| tokens[at])) {
                        Ok(Ok(()))
                    } else {
                        walk.rest();
                        self.append(*id, 1, tokens.map(|tokens| &tokens[at..=at]), None)
                    }
                }
            };
            each(at, done);
        }
    }

    /// Says that the first `tokens` tokens of a sequence are computed, so that full blocks of them can be matched.
    pub fn commit(&self, id: u64, tokens: u32) -> Result<()> {
        self.with(id, |seq, hands| {
            if tokens > seq.tokens {
                crate::bail!(NMC_ERR_INVALID_ARG, "sequence {id} has {} tokens, not {tokens}", seq.tokens);
            }
            seq.computed = seq.computed.max(tokens);
            hands.publish(seq)?;
            if tokens == seq.tokens && !seq.parts.is_empty() {
                hands.settle_parts(seq, false);
            }
            Ok(())
        })
    }

    /// Gets blocks for `tokens` tokens in all, so that growing to there cannot fail.
    pub fn reserve(&self, id: u64, tokens: u32) -> Result<Attempt<()>> {
        self.with_room(id, 0, || {
            self.with(id, |seq, hands| {
                if tokens > seq.limit {
                    return Err(too_long(id, u64::from(tokens), seq.limit));
                }
                hands.grow_all(seq, self.blocks_for(tokens), false)
            })
        })
    }

    /// Cuts a sequence to its first `tokens` tokens.
    pub fn truncate(&self, id: u64, tokens: u32) -> Result<Attempt<()>> {
        self.with_room(id, 0, || {
            self.with(id, |seq, hands| {
                if tokens > seq.tokens {
                    crate::bail!(NMC_ERR_INVALID_ARG, "sequence {id} has {} tokens, not {tokens}", seq.tokens);
                }
                hands.truncate(seq, tokens)
            })
        })
    }

    /// Opens `child` with the tokens of `parent`. Full blocks are shared; a block that is not full is copied.
    pub fn fork(&self, parent: u64, child: u64) -> Result<Attempt<()>> {
        self.fork_to(parent, child, 0)
    }

    /// The same for a child whose blocks these addresses will map.
    pub fn fork_to(&self, parent: u64, child: u64, keeper: u64) -> Result<Attempt<()>> {
        self.with_room(parent, 0, || self.try_fork(parent, child, keeper))
    }

    fn try_fork(&self, parent: u64, child: u64, keeper: u64) -> Result<Attempt<()>> {
        let (mut lane, from) = self.locked(parent)?;
        let lane = &mut *lane;
        if lane.seqs[from].state == State::Evicted {
            return Err(evicted(parent));
        }
        if lane.seqs[from].fetching != 0 {
            return Err(super::transfer::busy(parent));
        }
        self.table.check_vacant(child)?;
        self.reserve_roots()?;
        let at = lane.vacancy()?;
        let mut new = std::mem::replace(&mut lane.seqs[at], Seq::new());
        new.reset();
        new.keeper = keeper;
        let mut hands = Hands { cache: self, spare: &mut lane.spare };
        let forked = hands.fork(&mut lane.seqs[from], &mut new);
        let done = match forked {
            Ok(Ok(())) => {
                (new.id, new.state) = (child, State::Open);
                lane.opened += 1;
                new.uid = uid_of(lane.number, lane.opened);
                new.last_use = self.stamp(&mut lane.tick);
                new.find_ceiling(self.config.tokens_per_block, self.config.window);
                self.enter(child, slot_of(lane.number, at), None).map(Ok)
            }
            other => other,
        };
        if !matches!(done, Ok(Ok(()))) {
            Hands { cache: self, spare: &mut lane.spare }.empty(&mut new)?;
        }
        lane.seqs[from].find_ceiling(self.config.tokens_per_block, self.config.window);
        lane.seqs[at] = new;
        if !matches!(done, Ok(Ok(()))) {
            lane.vacate(at);
        }
        done
    }

    /// The copies that a sequence waits for, each of which is told once. More than `most` stay: then it is their number.
    pub fn take_plan(&self, id: u64, most: usize) -> Result<std::result::Result<Vec<BlockCopy>, usize>> {
        self.with(id, |seq, _| {
            let count = seq.plan.len();
            Ok(if count <= most { Ok(std::mem::take(&mut seq.plan)) } else { Err(count) })
        })
    }

    /// Closes a sequence. Full blocks of what it computed stay in the cache, unless it is to be `discard`ed.
    pub fn close(&self, id: u64, discard: bool) -> Result<()> {
        let (mut lane, at) = self.locked(id)?;
        let lane = &mut *lane;
        let seq = &mut lane.seqs[at];
        let mut hands = Hands { cache: self, spare: &mut lane.spare };
        let settles = !discard && seq.state == State::Open && seq.fetching == 0;
        let published = if settles { hands.settle(seq) } else { Ok(()) };
        if settles && !seq.parts.is_empty() {
            // Its slot would be free otherwise.
            hands.settle_parts(seq, true);
        }
        let emptied = hands.empty(seq);
        let name = seq.name.take();
        // The name first: while the id is still there, nobody else can take it.
        if let Some(name) = name {
            self.names.lock().remove(&name);
        }
        {
            let _table = self.ids.lock();
            self.table.remove(id);
        }
        lane.vacate(at);
        published.and(emptied)
    }

    /// Drops up to `count` whole blocks from the middle of a sequence, the least important first; the first and the most
    /// recent blocks stay. Returns how many went. Positions of the other tokens do not change.
    pub fn drop_least(&self, id: u64, count: u32, keep_first: u32, keep_recent: u32) -> Result<u32> {
        self.with(id, |seq, hands| {
            let full = (seq.tokens / self.per_block()).min(seq.tokens.saturating_sub(1) / self.per_block());
            let end = full.saturating_sub(keep_recent) as usize;
            let score = |k: usize| seq.scores.get(k).copied().unwrap_or(0.0);
            let mut middle = memory::collect((keep_first as usize..end).filter(|k| seq.blocks[*k] != NONE))?;
            middle.sort_unstable_by(|a, b| score(*a).total_cmp(&score(*b)).then(a.cmp(b)));
            middle.truncate(count as usize);
            let dropped = middle.len();
            for k in middle {
                hands.drop_block(seq, k)?;
                if !seq.parts.is_empty() {
                    hands.drop_parts(seq, k);
                }
            }
            seq.rewrites += u32::from(dropped > 0);
            Ok(u32::try_from(dropped).unwrap_or(u32::MAX))
        })
    }

    /// Evicts every cached block that nobody holds; returns how many.
    pub fn clear(&self) -> Result<u32> {
        self.pool.lock().clear(self.now())
    }

    /// Changes the number of blocks; `NMC_ERR_BUSY` if blocks above the new end are in use.
    pub fn resize(&self, total: u32) -> Result<()> {
        if total == 0 || total > i32::MAX.unsigned_abs() {
            crate::bail!(NMC_ERR_INVALID_ARG, "total_blocks {total} is not in 1..=2147483647");
        }
        let more = total.saturating_sub(self.pool.lock().levels().total);
        check_books(&self.config, total, block_books(&self.config, more))?;
        self.flush()?;
        if self.pool.lock().resize(total)? {
            return Ok(());
        }
        crate::bail!(NMC_ERR_BUSY, "blocks from {total} on are in use; close their sequences or ask for more blocks")
    }

    /// Lets `body` read a sequence that has its blocks. It must not call the cache.
    pub fn read<R>(&self, id: u64, body: impl FnOnce(&Seq) -> Result<R>) -> Result<R> {
        let (lane, at) = self.locked(id)?;
        body(lane.seqs[at].there()?)
    }

    /// The same for many, one after the other, with their numbers.
    pub fn read_each(&self, ids: &[u64], mut body: impl FnMut(usize, &Seq) -> Result<()>) -> Result<()> {
        let mut walk = Walk::new(self);
        for (at, id) in ids.iter().enumerate() {
            let (lane, index) = walk.to(*id)?;
            body(at, lane.seqs[index].there()?)?;
        }
        Ok(())
    }
}

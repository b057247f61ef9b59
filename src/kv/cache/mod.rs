//! The cache: sequences in lanes, over the supply of blocks that they share. A sequence lives in the lane of the thread that
//! opened it, and a lane keeps a few free blocks, so threads that work on their own sequences share no lock until they share
//! blocks. Block numbers only: where the blocks lie is a matter of `place`.
//!
//! **Locks** are taken in this order, and any may be left out: the addresses of a virtual sequence (`place::mapped`), a lane, then
//! either `names` and `ids`, or `pins`, `mapped_free` and `pool`. Nobody has two lanes at once, except those who count everything (statistics, the
//! map, the audit): they take all of them, the lowest number first. `schedules` runs threads against each other under
//! chosen schedules.

mod audit;
mod hold;
mod lane;
mod make_room;
mod open;
mod prefix;
mod report;
mod states;

pub(super) use hold::Item;
pub use report::Stats;

use super::block::NONE;
use super::config::Config;
use super::error::{Attempt, busy, evicted, too_long};
use super::groups::GroupPool;
use super::hash::BlockHash;
use super::pool::Pool;
use super::pool::events::Events;
use super::seq::{Aligned, BlockCopy, Editor, Seq, State, Supply};
use crate::base::error::Result;
use crate::base::memory;
use crate::mem::limits::check_available;
use crate::sync::ids::Ids;
use crate::sync::lock::Mutex;
use hold::Hold;
use lane::{LANES, Lane, Walk};
use make_room::Mover;
use once_cell::sync::OnceCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// Free blocks that a lane keeps at most.
const SPARE_MAX: usize = 128;
/// Uses in a lane after which uses in all lanes count as later.
const ERA: u64 = 256;
/// Books of fewer bytes are not compared with the memory that there is.
const LARGE_BOOKS: u64 = 64 << 20;

/// The cache.
pub struct Cache {
    pub(super) supply: Supply,
    pub(super) lanes: Box<[Aligned<Mutex<Lane>>]>,
    /// Who changes `table` holds it.
    ids: Aligned<Mutex<()>>,
    pub(super) table: Ids,
    names: Mutex<HashMap<Box<[u8]>, u64>>,
    pins: Mutex<HashMap<u64, Hold>>,
    /// Room for the hashes of the prompt that is asked for, while nobody asks: a question does not allocate.
    asked: Mutex<Vec<BlockHash>>,
    /// Tells old uses from new ones across lanes.
    era: Aligned<AtomicU64>,
    next_pin: AtomicU64,
    evicted_sequences: AtomicU64,
    /// Those of them whose blocks went to the store first.
    moved_sequences: AtomicU64,
    /// Sends the blocks of a sequence to the store, and waits until they are there.
    mover: OnceCell<Mover>,
}

/// Bytes that the books of so many blocks take, about.
fn block_books(config: &Config, blocks: u32) -> u64 {
    let compare = config.compares_tokens();
    Pool::book_bytes(blocks, config.eviction, config.tokens_per_block, compare, config.own_groups.len())
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
        config.check()?;
        let other = Events::book_bytes(config.events) + Ids::book_bytes(config.max_sequences);
        let groups = config.own_groups.iter().map(GroupPool::book_bytes).sum::<u64>();
        check_books(&config, config.total_blocks, block_books(&config, config.total_blocks) + other + groups)?;
        // Small pools have no spare blocks in lanes: there they would be missed.
        let spare_max = (config.total_blocks as usize / (LANES * 8)).min(SPARE_MAX);
        let max_sequences = config.max_sequences;
        Ok(Self {
            supply: Supply::new(config, if spare_max < 8 { 0 } else { spare_max })?,
            lanes: memory::vec_with(LANES, |number| Aligned(Mutex::new(Lane { number, ..Lane::default() })))?
                .into_boxed_slice(),
            ids: Aligned(Mutex::new(())),
            table: Ids::new(max_sequences)?,
            names: Mutex::default(),
            pins: Mutex::default(),
            asked: Mutex::default(),
            era: Aligned(AtomicU64::new(1)),
            next_pin: AtomicU64::new(1),
            evicted_sequences: AtomicU64::new(0),
            moved_sequences: AtomicU64::new(0),
            mover: OnceCell::new(),
        })
    }

    /// Lets `mover` send sequences to the store that make room; false if another does.
    pub(super) fn move_with(&self, mover: Mover) -> bool {
        self.mover.set(mover).is_ok()
    }

    /// How it was made.
    pub const fn config(&self) -> &Config {
        &self.supply.config
    }

    pub(super) const fn per_block(&self) -> u32 {
        self.supply.per_block()
    }

    pub(super) fn blocks_for(&self, tokens: u32) -> usize {
        self.supply.blocks_for(tokens)
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
    fn with<R>(&self, id: u64, body: impl FnOnce(&mut Seq, &mut Editor<'_>) -> Result<R>) -> Result<R> {
        let (mut lane, at) = self.locked(id)?;
        let lane = &mut *lane;
        let seq = &mut lane.seqs[at];
        if seq.state == State::Evicted {
            return Err(evicted(id));
        }
        if seq.fetching != 0 {
            return Err(busy(id));
        }
        seq.last_use = self.stamp(&mut lane.tick);
        let done = body(seq, &mut Editor { supply: &self.supply, spare: &mut lane.spare });
        seq.find_ceiling(self.supply.config.tokens_per_block, self.supply.config.window);
        done
    }

    /// Adds `count` tokens; what the sequence had before counts as computed now. A contiguous sequence that cannot grow
    /// where it is moves: its plan tells which blocks to copy.
    #[inline(never)] // one body for all who call it
    pub fn append(&self, id: u64, count: u32, tokens: Option<&[u32]>, importance: Option<f32>) -> Result<Attempt<()>> {
        self.with_room(id, 0, || self.with(id, |seq, editor| editor.append(seq, count, tokens, importance)))
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
        self.with(id, |seq, editor| {
            if tokens > seq.tokens {
                crate::bail!(NMC_ERR_INVALID_ARG, "sequence {id} has {} tokens, not {tokens}", seq.tokens);
            }
            seq.computed = seq.computed.max(tokens);
            editor.publish(seq)?;
            if tokens == seq.tokens && !seq.groups.is_empty() {
                editor.settle_groups(seq, false);
            }
            Ok(())
        })
    }

    /// Gets blocks for `tokens` tokens in all, so that growing to there cannot fail.
    pub fn reserve(&self, id: u64, tokens: u32) -> Result<Attempt<()>> {
        self.with_room(id, 0, || {
            self.with(id, |seq, editor| {
                if tokens > seq.limit {
                    return Err(too_long(id, u64::from(tokens), seq.limit));
                }
                editor.grow_all(seq, self.blocks_for(tokens), false)
            })
        })
    }

    /// Cuts a sequence to its first `tokens` tokens.
    pub fn truncate(&self, id: u64, tokens: u32) -> Result<Attempt<()>> {
        self.with_room(id, 0, || {
            self.with(id, |seq, editor| {
                if tokens > seq.tokens {
                    crate::bail!(NMC_ERR_INVALID_ARG, "sequence {id} has {} tokens, not {tokens}", seq.tokens);
                }
                editor.truncate(seq, tokens)
            })
        })
    }

    /// The copies that a sequence waits for, each of which is told once. More than `most` stay: then it is their number.
    pub fn take_plan(&self, id: u64, most: usize) -> Result<std::result::Result<Vec<BlockCopy>, usize>> {
        self.with(id, |seq, _| {
            let count = seq.plan.len();
            Ok(if count <= most { Ok(std::mem::take(&mut seq.plan)) } else { Err(count) })
        })
    }

    /// Drops up to `count` whole blocks from the middle of a sequence, the least important first; the first and the most
    /// recent blocks stay. Returns how many went. Positions of the other tokens do not change.
    pub fn drop_least(&self, id: u64, count: u32, keep_first: u32, keep_recent: u32) -> Result<u32> {
        self.with(id, |seq, editor| {
            let full = (seq.tokens / self.per_block()).min(seq.tokens.saturating_sub(1) / self.per_block());
            let end = full.saturating_sub(keep_recent) as usize;
            let score = |k: usize| seq.scores.get(k).copied().unwrap_or(0.0);
            let mut middle = memory::collect((keep_first as usize..end).filter(|k| seq.blocks[*k] != NONE))?;
            middle.sort_unstable_by(|a, b| score(*a).total_cmp(&score(*b)).then(a.cmp(b)));
            middle.truncate(count as usize);
            let dropped = middle.len();
            for k in middle {
                editor.drop_block(seq, k)?;
                if !seq.groups.is_empty() {
                    editor.drop_groups(seq, k);
                }
            }
            seq.rewrites += u32::from(dropped > 0);
            Ok(u32::try_from(dropped).unwrap_or(u32::MAX))
        })
    }

    /// Evicts every cached block that nobody holds; returns how many.
    pub fn clear(&self) -> Result<u32> {
        self.supply.pool.lock().clear(self.supply.now())
    }

    /// Changes the number of blocks; `NMC_ERR_BUSY` if blocks above the new end are in use.
    pub fn resize(&self, total: u32) -> Result<()> {
        if total == 0 || total > i32::MAX.unsigned_abs() {
            crate::bail!(NMC_ERR_INVALID_ARG, "total_blocks {total} is not in 1..=2147483647");
        }
        let more = total.saturating_sub(self.supply.pool.lock().levels().total);
        check_books(&self.supply.config, total, block_books(&self.supply.config, more))?;
        self.flush()?;
        if self.supply.pool.lock().resize(total)? {
            return Ok(());
        }
        crate::bail!(NMC_ERR_BUSY, "blocks from {total} on are in use; close their sequences or ask for more blocks")
    }

    /// Lets `body` read a sequence that has its blocks. It must not call the cache.
    pub(super) fn read<R>(&self, id: u64, body: impl FnOnce(&Seq) -> Result<R>) -> Result<R> {
        let (lane, at) = self.locked(id)?;
        body(lane.seqs[at].resident()?)
    }

    /// The same for many, one after the other, with their numbers.
    pub(super) fn read_each(&self, ids: &[u64], mut body: impl FnMut(usize, &Seq) -> Result<()>) -> Result<()> {
        let mut walk = Walk::new(self);
        for (at, id) in ids.iter().enumerate() {
            let (lane, index) = walk.to(*id)?;
            body(at, lane.seqs[index].resident()?)?;
        }
        Ok(())
    }
}

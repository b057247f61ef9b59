//! What the cache says of itself: numbers that add up, events, the state as text for people, and the proof that no block is
//! lost.

use super::lane::Lane;
use super::{Cache, audit};
use crate::base::error::Result;
use crate::base::memory::{self, Text};
use crate::kv::block::NONE;
use crate::kv::groups::GroupStats;
use crate::kv::pool::Snapshot;
use crate::kv::pool::events::Event;
use crate::kv::seq::{Placement, Seq, SeqInfo, State};
use crate::sync::lock::MutexGuard;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

/// Sequences that a dump lists; the rest are counted.
const LISTED: usize = 256;

/// Numbers about a cache. Blocks: `total = free + idle + used`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Blocks.
    pub total: u64,
    /// Blocks that nobody has.
    pub free: u64,
    /// Cached blocks that nobody holds.
    pub idle: u64,
    /// Blocks that sequences or pins hold.
    pub used: u64,
    /// Blocks in the prefix index.
    pub published: u64,
    /// Sequences that are open.
    pub sequences: u64,
    /// Tokens that came from the cache.
    pub hit_tokens: u64,
    /// Tokens that sequences were opened with.
    pub asked_tokens: u64,
    /// Cached blocks that were evicted to make room.
    pub evicted_blocks: u64,
    /// Sequences that were evicted to make room.
    pub evicted_sequences: u64,
    /// Those of them whose blocks went to the store first.
    pub moved_sequences: u64,
    /// Blocks that were computed twice, of which one was kept.
    pub deduplicated: u64,
    /// Memory of the books.
    pub bytes: u64,
}

impl Cache {
    /// What a sequence is.
    pub fn info(&self, id: u64) -> Result<SeqInfo> {
        let (lane, at) = self.locked(id)?;
        let seq = &lane.seqs[at];
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Ok(SeqInfo {
            id,
            tokens: seq.tokens,
            blocks: count(seq.blocks.len()),
            holes: count(seq.blocks.iter().filter(|block| **block == NONE).count()),
            shared: seq.shared,
            published: seq.published,
            limit: seq.limit,
            state: seq.state,
            placement: seq.placement,
            copies: count(seq.plan.len()),
            computed: seq.computed,
        })
    }

    /// All open sequences, by id.
    pub fn sequences(&self) -> Result<Vec<u64>> {
        let mut ids = Vec::new();
        for lane in &self.lanes {
            for seq in lane.0.lock().seqs.iter().filter(|seq| seq.state != State::Closed) {
                memory::push(&mut ids, seq.id)?;
            }
        }
        ids.sort_unstable();
        Ok(ids)
    }

    /// Numbers that add up, taken at one moment.
    pub fn stats(&self) -> Stats {
        let lanes: Vec<_> = self.lanes.iter().map(|lane| lane.0.lock()).collect();
        let kept = self.supply.mapped_free.lock().count();
        let pool = self.supply.pool.lock();
        let levels = pool.levels();
        let spare: usize = lanes.iter().map(|lane| lane.spare.len()).sum::<usize>() + kept;
        let free = u64::from(levels.free) + spare as u64;
        let counter = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let open = |lane: &MutexGuard<'_, Lane>| lane.seqs.iter().filter(|seq| seq.state != State::Closed).count();
        let held: usize = lanes.iter().flat_map(|lane| &lane.seqs).map(Seq::bytes).sum();
        Stats {
            total: u64::from(levels.total),
            free,
            idle: u64::from(levels.idle),
            used: u64::from(levels.total) - free - u64::from(levels.idle),
            published: u64::from(levels.published),
            sequences: lanes.iter().map(open).sum::<usize>() as u64,
            hit_tokens: lanes.iter().map(|lane| lane.hit_tokens).sum(),
            asked_tokens: lanes.iter().map(|lane| lane.asked_tokens).sum(),
            evicted_blocks: levels.evicted,
            evicted_sequences: counter(&self.evicted_sequences),
            moved_sequences: counter(&self.moved_sequences),
            deduplicated: counter(&self.supply.deduplicated),
            bytes: (pool.bytes() + held + self.table.bytes()) as u64,
        }
    }

    /// One character a block: `.` free, `X` held, `c` cached and idle.
    fn states(&self) -> Result<Vec<char>> {
        let lanes: Vec<_> = self.lanes.iter().map(|lane| lane.0.lock()).collect();
        let kept = self.supply.mapped_free.lock().blocks()?;
        let pool = self.supply.pool.lock();
        let state = |block| match (pool.is_used(block), pool.info(block)) {
            (false, _) => '.',
            (true, info) if info.is_published() && info.refs == 0 => 'c',
            _ => 'X',
        };
        let mut states = memory::collect((0..pool.blocks().total()).map(state))?;
        for block in lanes.iter().flat_map(|lane| &lane.spare).chain(&kept) {
            states[*block as usize] = '.';
        }
        Ok(states)
    }

    /// Whether every block is exactly where it should be. Counts holders afresh, from all sequences and pins.
    pub fn audit(&self) -> Result<()> {
        let lanes: Vec<_> = self.lanes.iter().map(|lane| lane.0.lock()).collect();
        let pins = self.pins.lock();
        let kept = self.supply.mapped_free.lock().blocks()?;
        let pool = self.supply.pool.lock();
        let seqs = lanes.iter().flat_map(|lane| &lane.seqs).filter(|seq| seq.state != State::Closed);
        let spare = lanes.iter().map(|lane| &lane.spare[..]).chain([&kept[..]]);
        audit::check(&pool, seqs, spare, pins.values())
    }

    /// Up to `most` events from number `from` on, the number to go on with, and how many before the first are gone.
    pub fn events(&self, from: u64, most: usize) -> Result<(Vec<Event>, u64, u64)> {
        self.supply.pool.lock().read_events(from, most)
    }

    /// Every block in the index with the one that it continues, which comes before it, and the number of the next event.
    pub fn snapshot(&self) -> Result<Snapshot> {
        self.supply.pool.lock().snapshot()
    }

    /// A page about the cache. `block_bytes` is what one block takes in memory, 0 if that is not known.
    pub fn dump(&self, block_bytes: u64) -> Result<String> {
        let ids = self.sequences()?;
        let mut text = Text::default();
        let written = self.write_dump(&mut text, block_bytes, &ids);
        text.finish(written)
    }

    fn write_dump(&self, text: &mut Text, block_bytes: u64, ids: &[u64]) -> std::fmt::Result {
        let stats = self.stats();
        let config = self.config();
        text.write_str("=== KV cache ===\nConfiguration:\n")?;
        let megabytes = |blocks: u64| blocks as f64 * block_bytes as f64 / f64::from(1 << 20);
        writeln!(
            text,
            "  TokensPerBlock: {}, TotalBlocks: {}, Eviction: {:?}, WhenFull: {:?}",
            config.tokens_per_block, stats.total, config.eviction, config.when_full
        )?;
        writeln!(text, "Allocation state:\n  Sequences: {}", stats.sequences)?;
        for (name, blocks) in [("Used", stats.used), ("Cached, idle", stats.idle), ("Free", stats.free)] {
            writeln!(text, "  {name}: {blocks} blocks, {:.2} MB", megabytes(blocks))?;
        }
        for (number, group) in config.own_groups.iter().enumerate() {
            let GroupStats { total, free, idle, used, .. } = self.group_stats(u32::try_from(number).unwrap_or(NONE));
            writeln!(
                text,
                "  Group with own blocks, {:?}: {used} used, {idle} idle, {free} free of {total}",
                group.kind
            )?;
        }
        writeln!(text, "  Fragmentation: {:.2}", self.fragmentation())?;
        writeln!(
            text,
            "Prefix cache:\n  Published: {}, hit {} of {} tokens, evicted {}, deduplicated {}",
            stats.published, stats.hit_tokens, stats.asked_tokens, stats.evicted_blocks, stats.deduplicated
        )?;
        writeln!(text, "Sequences:")?;
        for info in ids.iter().take(LISTED).filter_map(|id| self.info(*id).ok()) {
            writeln!(text, "  {}", self.line(&info))?;
        }
        if ids.len() > LISTED {
            writeln!(text, "  and {} more", ids.len() - LISTED)?;
        }
        Ok(())
    }

    fn line(&self, info: &SeqInfo) -> String {
        let SeqInfo { id, tokens, blocks, holes, shared, .. } = *info;
        let capacity = u64::from(blocks) * u64::from(self.per_block());
        let place = match (info.state, info.placement) {
            (State::Evicted, _) => return format!("{id}: evicted"),
            (_, Placement::Paged) => "paged",
            (_, Placement::Run) => "contiguous",
            (_, Placement::Virtual) => "virtual",
        };
        format!("{id}: {tokens}/{capacity} tokens, {blocks} blocks ({shared} shared, {holes} dropped), {place}")
    }

    /// The blocks for people, `width` in a line: `.` free, `X` held by sequences or pins, `c` cached and idle.
    pub fn map(&self, width: usize) -> Result<String> {
        // Counted in the picture: the numbers of another moment would not be those that it shows.
        let states = self.states()?;
        let count = |what: char| states.iter().filter(|state| **state == what).count();
        let (total, used, cached, free) = (states.len(), count('X'), count('c'), count('.'));
        let mut text = Text::default();
        let written = writeln!(
            text,
            "KV blocks: total {total}, used {used}, cached {cached}, free {free}\n  (. = free, X = used, c = cached)"
        );
        let written = written.and_then(|()| {
            states.chunks(width.max(1)).try_for_each(|line| {
                text.write_str("    ")?;
                line.iter().try_for_each(|state| text.write_char(*state))?;
                text.write_char('\n')
            })
        });
        text.finish(written)
    }

    /// 0 if the free blocks are one run, towards 1 the more they are scattered.
    pub fn fragmentation(&self) -> f32 {
        self.supply.pool.lock().fragmentation()
    }
}

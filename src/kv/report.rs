//! What the cache says of itself to people: the seed's statistics, with numbers that add up.

use super::cache::Cache;
use super::types::{Placement, SeqInfo, State};
use std::fmt::Write;

/// Sequences that a dump lists; the rest are counted.
const LISTED: usize = 256;
/// Blocks in a line of the map.
const LINE: usize = 64;

impl Cache {
    /// A page about the cache. `block_bytes` is what one block takes in memory, 0 if that is not known.
    pub fn dump(&self, block_bytes: u64) -> String {
        let stats = self.stats();
        let config = self.config();
        let mut text = String::from("=== KV cache ===\nConfiguration:\n");
        let megabytes = |blocks: u64| blocks as f64 * block_bytes as f64 / f64::from(1 << 20);
        let _ = writeln!(
            text,
            "  TokensPerBlock: {}, TotalBlocks: {}, Eviction: {:?}, WhenFull: {:?}",
            config.tokens_per_block, stats.total, config.eviction, config.when_full
        );
        let _ = writeln!(text, "Allocation state:\n  Sequences: {}", stats.sequences);
        for (name, blocks) in [("Used", stats.used), ("Cached, idle", stats.idle), ("Free", stats.free)] {
            let _ = writeln!(text, "  {name}: {blocks} blocks, {:.2} MB", megabytes(blocks));
        }
        let _ = writeln!(text, "  Fragmentation: {:.2}", self.fragmentation());
        let _ = writeln!(
            text,
            "Prefix cache:\n  Published: {}, hit {} of {} tokens, evicted {}, deduplicated {}",
            stats.published, stats.hit_tokens, stats.asked_tokens, stats.evicted_blocks, stats.deduplicated
        );
        let _ = writeln!(text, "Sequences:");
        let ids = self.sequences();
        for info in ids.iter().take(LISTED).filter_map(|id| self.info(*id).ok()) {
            let _ = writeln!(text, "  {}", self.line(&info));
        }
        if ids.len() > LISTED {
            let _ = writeln!(text, "  and {} more", ids.len() - LISTED);
        }
        text
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

    /// The blocks for people: `.` free, `X` held by sequences or pins, `c` cached and idle.
    pub fn map(&self) -> String {
        // Counted in the picture: the numbers of another moment would not be those that it shows.
        let states = self.states();
        let count = |what: char| states.iter().filter(|state| **state == what).count();
        let mut text = format!(
            "KV blocks: total {}, used {}, cached {}, free {}\n  (. = free, X = used, c = cached)\n",
            states.len(),
            count('X'),
            count('c'),
            count('.')
        );
        for line in states.chunks(LINE) {
            text.push_str("    ");
            text.extend(line);
            text.push('\n');
        }
        text
    }

    /// 0 if the free blocks are one run, towards 1 the more they are scattered.
    pub fn fragmentation(&self) -> f32 {
        self.pool.lock().fragmentation()
    }
}

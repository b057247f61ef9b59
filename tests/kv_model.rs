//! The cache against the memory that it is for. An engine is simulated: it writes, for every token that the cache did
//! not have, a word that depends on all tokens before it and on the salt, and makes the copies it is asked for. Whatever a
//! sequence then reads through its blocks must be its own words: a block that is owned twice, served for other tokens,
//! lost in a copy or published before it was written shows as a wrong word. The audit counts every block besides.
//! Sides have memory of their own: for a window the same words, for a state the word of the last token, which depends on
//! all before it, as a state does.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test may"
)]

#[path = "common/kv.rs"]
mod common;
#[path = "../src/base/random.rs"]
mod random;
#[path = "common/words.rs"]
mod words;

use nanomc::kv::events::What;
use nanomc::kv::evict::Kind;
use nanomc::kv::hash::{Algo, BlockHash};
use nanomc::kv::place::tables::{Format, Row, write_csr, write_dense};
use nanomc::kv::{BlockCopy, Config, Open, OwnGroup, OwnKind, Placement, State, WhenFull};
use nanomc::kv::{Cache, NONE};
use random::Random;
use std::collections::BTreeMap;
use words::words;

/// As for all tests, with events to look back at.
fn config(blocks: u32, per_block: u32, algo: Algo) -> Config {
    Config { events: 64, ..common::config(blocks, per_block, algo) }
}

/// The first block that the token after `tokens` sees.
fn first_seen(tokens: usize, window: usize, per_block: usize) -> usize {
    (tokens + 1).saturating_sub(window) / per_block
}

/// What the engine knows of a sequence.
#[derive(Clone)]
struct Known {
    tokens: Vec<u32>,
    salt: u8,
    /// Leading tokens whose words are in memory.
    written: usize,
    /// Leading blocks that left the window of the cache.
    slid: usize,
    /// Blocks were dropped by importance.
    has_holes: bool,
    /// The cache knows all tokens, and has published all full blocks that are computed: when it is closed, they can be
    /// matched.
    published: bool,
}

impl Known {
    /// The words of all positions.
    fn words(&self) -> Vec<u64> {
        words(u64::from(self.salt) + 1, &self.tokens).collect()
    }
}

/// Ways in which the engine or the caller is wrong, for the controls.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    SkipsCopies,
    ReusesHashes,
    OverwritesStates,
}

struct Engine {
    cache: Cache,
    memory: Vec<u64>,
    /// The memory of each group.
    groups: Vec<Vec<u64>>,
    known: BTreeMap<u64, Known>,
    pins: Vec<u64>,
    /// What a router knows of the index from events alone.
    known_to_router: BTreeMap<BlockHash, BlockHash>,
    cursor: u64,
    /// A dense table that many sequences take turns in, and what it should hold.
    table: Vec<i32>,
    rows: Vec<Row>,
    table_of: usize,
    random: Random,
    fault: Fault,
    next_id: u64,
    hits: u64,
    forks: u64,
    refusals: u64,
    cuts: u64,
    uncut: u64,
    /// Sequences of which all that they computed was found when they were closed.
    closed: u64,
}

type Check = Result<(), String>;

const ROWS: usize = 4;
const WIDTH: usize = 256;
const PAD: i32 = -7;

impl Engine {
    fn new(config: Config, seed: u64, fault: Fault) -> Self {
        let words = (config.total_blocks * config.tokens_per_block) as usize;
        let group = |group: &OwnGroup| match group.kind {
            OwnKind::Window(_) => vec![0; (group.blocks * config.tokens_per_block) as usize],
            OwnKind::State { .. } => vec![0; group.blocks as usize],
        };
        Self {
            groups: config.own_groups.iter().map(group).collect(),
            cache: Cache::new(config).expect("a cache"),
            memory: vec![0; words],
            known: BTreeMap::new(),
            pins: Vec::new(),
            known_to_router: BTreeMap::new(),
            cursor: 0,
            table: vec![PAD; ROWS * WIDTH],
            rows: vec![Row::default(); ROWS],
            table_of: seed as usize,
            random: Random(seed),
            fault,
            next_id: 1,
            hits: 0,
            forks: 0,
            refusals: 0,
            cuts: 0,
            uncut: 0,
            closed: 0,
        }
    }

    fn per_block(&self) -> usize {
        self.cache.config().tokens_per_block as usize
    }

    fn blocks(&self, id: u64) -> Vec<i32> {
        self.blocks_of(id, NONE)
    }

    fn blocks_of(&self, id: u64, group: u32) -> Vec<i32> {
        let tokens = self.cache.info(id).expect("open").tokens as usize;
        let width = tokens.div_ceil(self.per_block());
        let (mut indptr, mut indices, mut last) = ([0; 2], vec![0; width], [0]);
        let count = write_csr(&self.cache, &[id], group, &mut indptr, &mut indices, &mut last).expect("a table");
        assert_eq!(count, width);
        indices
    }

    fn copy(&mut self, id: u64) {
        let (size, copies) = (self.per_block(), self.cache.take_plan(id, usize::MAX).expect("open").expect("fits"));
        if self.fault == Fault::SkipsCopies {
            return;
        }
        for BlockCopy { from, to, own_group: group } in copies {
            let (from, to) = (from as usize * size, to as usize * size);
            let memory = if group == NONE { &mut self.memory } else { &mut self.groups[group as usize] };
            memory.copy_within(from..from + size, to);
        }
    }

    /// The forward pass of a sequence: words of the tokens that are not there yet.
    fn write(&mut self, id: u64) {
        let blocks = self.blocks(id);
        let size = self.per_block();
        let known = self.known.get_mut(&id).expect("known");
        let words = known.words();
        for at in known.written..words.len() {
            let block = blocks[at / size];
            assert!(block >= 0, "a token that is still to be written has a block");
            self.memory[block as usize * size + at % size] = words[at];
        }
        let from = std::mem::replace(&mut known.written, words.len());
        for group in 0..self.groups.len() {
            self.write_group(id, group, from, &words);
        }
    }

    /// What the layers of a group write for the tokens from `from` on.
    fn write_group(&mut self, id: u64, group: usize, from: usize, words: &[u64]) {
        let (size, number) = (self.per_block(), group as u32);
        match self.cache.config().own_groups[group].kind {
            OwnKind::Window(_) => {
                let blocks = self.blocks_of(id, number);
                for at in from..words.len() {
                    let block = blocks[at / size];
                    assert!(block >= 0, "a token that is still to be written has a block of group {group}");
                    self.groups[group][block as usize * size + at % size] = words[at];
                }
            }
            OwnKind::State { .. } if from < words.len() => {
                let (read, write) = self.cache.state_slots(id, number).expect("open");
                assert_eq!(read == NONE, from == 0, "there is a state before all tokens but the first");
                let before = from.checked_sub(1).map(|at| words[at]);
                let found = self.groups[group].get(read as usize).copied();
                assert_eq!(found.is_some(), before.is_some());
                let write = if self.fault == Fault::OverwritesStates && read != NONE { read } else { write };
                // A state that is not the one before these tokens makes all later ones wrong.
                let wrong = found.zip(before).map_or(0, |(found, before)| found ^ before);
                self.groups[group][write as usize] = words[words.len() - 1] ^ wrong;
            }
            OwnKind::State { .. } => {}
        }
    }

    /// What the layers of a group would read for the next token.
    fn verify_group(&self, id: u64, group: usize, words: &[u64]) -> Check {
        let (size, number, known) = (self.per_block(), group as u32, &self.known[&id]);
        match self.cache.config().own_groups[group].kind {
            OwnKind::Window(window) => {
                let blocks = self.blocks_of(id, number);
                let seen = (words.len() + 1).saturating_sub(window as usize);
                for (at, word) in words.iter().enumerate().take(known.written).skip(seen) {
                    let block = blocks[at / size];
                    if block < 0 && !known.has_holes {
                        return Err(format!("sequence {id} has lost token {at} of the window of group {group}"));
                    }
                    if block >= 0 && self.groups[group][block as usize * size + at % size] != *word {
                        return Err(format!("sequence {id} reads another word at token {at} of group {group}"));
                    }
                }
            }
            OwnKind::State { .. } => {
                let (read, write) = self.cache.state_slots(id, number).expect("open");
                let slot = if write == NONE { read } else { write };
                let found = self.groups[group].get(slot as usize).copied();
                if known.written == words.len() && found != words.last().copied() {
                    return Err(format!("sequence {id} has the state of other tokens in slot {slot}"));
                }
            }
        }
        Ok(())
    }

    fn verify(&self, id: u64) -> Check {
        let known = &self.known[&id];
        let size = self.per_block();
        let blocks = self.blocks(id);
        for (at, word) in known.words().into_iter().enumerate().take(known.written) {
            let block = blocks[at / size];
            if block >= 0 && self.memory[block as usize * size + at % size] != word {
                return Err(format!("sequence {id} reads a word that is not its own at token {at}, block {block}"));
            }
        }
        let words = known.words();
        (0..self.groups.len()).try_for_each(|group| self.verify_group(id, group, &words))
    }

    /// The row that the sequence has in the dense table now, written in place, is what its blocks are.
    fn verify_row(&mut self, id: u64) -> Check {
        let windows = (0u32..).zip(&self.cache.config().own_groups);
        let windows = windows.filter(|(_, group)| matches!(group.kind, OwnKind::Window(_))).map(|(number, _)| number);
        let tables: Vec<u32> = windows.chain([NONE]).collect();
        // Buffers belong to one table: which one a sequence has is the same for all rows of a run.
        let group = tables[self.table_of % tables.len()];
        let at = self.random.below(ROWS as u64) as usize;
        let row = &mut self.table[at * WIDTH..(at + 1) * WIDTH];
        let rows = &mut self.rows[at..=at];
        write_dense(&self.cache, &[id], group, Format::Dense, WIDTH, PAD, rows, row).expect("a row");
        let mut expected = self.blocks_of(id, group);
        expected.resize(WIDTH, PAD);
        let row = &self.table[at * WIDTH..(at + 1) * WIDTH];
        if expected == row { Ok(()) } else { Err(format!("the row of sequence {id} is {row:?}, not {expected:?}")) }
    }

    /// Reads the events; after a gap, the snapshot. Then the router knows exactly what is cached.
    fn follow_events(&mut self) -> Check {
        let snapshot = |(all, next): (Vec<(BlockHash, BlockHash)>, u64)| (all.into_iter().collect(), next);
        let (events, next, lost) = self.cache.events(self.cursor, usize::MAX).expect("memory");
        if lost > 0 {
            (self.known_to_router, self.cursor) = snapshot(self.cache.snapshot().expect("memory"));
        } else {
            for event in &events {
                match event.what {
                    What::Stored => self.known_to_router.insert(event.hash, event.parent),
                    What::Removed => self.known_to_router.remove(&event.hash),
                    What::Cleared => {
                        self.known_to_router.clear();
                        None
                    }
                };
            }
            self.cursor = next;
        }
        let (all, _): (BTreeMap<_, _>, _) = snapshot(self.cache.snapshot().expect("memory"));
        if all == self.known_to_router { Ok(()) } else { Err("events and snapshot tell different things".into()) }
    }

    fn some_id(&mut self) -> Option<u64> {
        let n = self.known.len() as u64;
        (n > 0).then(|| *self.known.keys().nth(self.random.below(n) as usize).expect("in range"))
    }

    fn open(&mut self) {
        let id = self.next_id;
        self.next_id += 1;
        // Few different prompts, so that prefixes are often equal.
        let (kind, salt) = (self.random.below(4) as u32, self.random.below(2) as u8);
        let length = self.random.below(8 * self.per_block() as u64) as u32;
        let fork_at = self.random.below(u64::from(length) + 1) as u32;
        let other = self.random.below(3) as u32 * 1000;
        let tokens: Vec<u32> = (0..length).map(|at| if at < fork_at { kind * 100 + at } else { other + at }).collect();
        let hashes: Vec<BlockHash> = (0..tokens.len() / self.per_block()).map(|k| BlockHash([k as u8; 16])).collect();
        let contiguous = self.groups.is_empty() && self.random.one_in(3);
        let no_publish = self.random.one_in(10);
        let open = Open {
            n_tokens: length,
            tokens: Some(&tokens),
            hashes: (self.fault == Fault::ReusesHashes).then_some(&hashes[..]),
            salt: &[salt],
            max_hit: if self.random.one_in(2) { length } else { length.saturating_sub(1) },
            contiguous,
            priority: self.random.below(16) as u8,
            ttl_ms: self.random.below(3) as u32,
            no_publish,
            name: None,
            ..Open::default()
        };
        match self.cache.open(id, &open).expect("valid") {
            Ok(opened) => {
                let mut tokens = tokens;
                tokens.truncate(opened.tokens as usize);
                self.hits += u64::from(opened.hit_tokens);
                let written = opened.hit_tokens as usize;
                let published = !no_publish;
                self.known.insert(id, Known { tokens, salt, written, slid: 0, has_holes: false, published });
                // Some are aborted before anything is computed.
                if self.random.one_in(8) {
                    self.cache.close(id, true).expect("open");
                    self.known.remove(&id);
                } else {
                    self.write(id);
                }
            }
            Err(room) => {
                self.refusals += 1;
                assert!(room.needed > 0);
            }
        }
    }

    /// A contiguous sequence that had to move publishes nothing more.
    fn note_move(&mut self, id: u64) {
        let info = self.cache.info(id).expect("open");
        self.known.get_mut(&id).expect("known").published &= info.placement == Placement::Paged || info.copies == 0;
    }

    /// What a sequence computed can be matched when it has been closed, whoever published it first.
    fn check_published(&mut self, known: &Known) -> Check {
        let exact = self.fault == Fault::None && self.groups.is_empty() && self.cache.config().window == 0;
        if !exact || !known.published || known.has_holes || !self.cache.config().prefix {
            return Ok(());
        }
        let full = known.tokens.len() / self.per_block() * self.per_block();
        let found = self.cache.matching(Some(&known.tokens), None, &[known.salt]).expect("memory") as usize;
        self.closed += 1;
        if found == full { Ok(()) } else { Err(format!("{found} of {full} tokens of a closed sequence are cached")) }
    }

    fn append(&mut self, id: u64) {
        let count = if self.random.one_in(3) { self.random.below(2 * self.per_block() as u64) as u32 } else { 1 };
        let kind = self.random.below(2) as u32;
        let first = self.known[&id].tokens.len() as u32;
        let tokens: Vec<u32> = (first..first + count).map(|at| kind * 7 + at).collect();
        let importance = self.random.one_in(3).then(|| self.random.below(100) as f32);
        // Tokens that the cache is not told cannot be matched, but must be there all the same.
        let told = (!self.random.one_in(20)).then_some(&tokens[..]);
        let shortened = first + count > self.cache.info(id).expect("open").limit;
        let grown = if count == 1 && importance.is_none() && self.random.one_in(2) {
            let mut one = None;
            self.cache.append_batch(&[id], told, |_, done| one = Some(done));
            one.expect("told of each")
        } else {
            self.cache.append(id, count, told, importance)
        };
        assert_eq!(grown.is_err(), shortened, "only a sequence that was opened shorter has a limit");
        if shortened {
            return;
        }
        let (window, size) = (self.cache.config().window as usize, self.per_block());
        let known = self.known.get_mut(&id).expect("known");
        if window > 0 {
            known.slid = known.slid.max(first_seen(first as usize, window, size));
        }
        known.published &= told.is_some();
        if matches!(grown, Ok(Ok(()))) {
            self.note_move(id);
            self.copy(id);
            self.known.get_mut(&id).expect("known").tokens.extend(&tokens);
            self.write(id);
        } else {
            self.refusals += 1;
        }
    }

    fn step(&mut self) -> Check {
        let roll = self.random.below(100);
        let Some(id) = self.some_id().filter(|_| roll >= 12) else {
            self.open();
            return Ok(());
        };
        let evicted = self.cache.info(id).expect("open").state == State::Evicted;
        if evicted {
            let refused = self.cache.append(id, 1, None, None);
            assert!(refused.is_err(), "an evicted sequence cannot grow");
            self.cache.close(id, false).expect("open");
            self.known.remove(&id);
            return Ok(());
        }
        self.verify(id)?;
        self.verify_row(id)?;
        match roll {
            12..=49 => self.append(id),
            50..=59 => {
                let tokens = self.known[&id].tokens.len() as u64;
                let near = self.random.below(tokens.min(4) + 1);
                let keep = if self.random.one_in(2) { tokens - near } else { self.random.below(tokens + 1) };
                let (size, window) = (self.per_block() as u64, self.cache.config().window as usize);
                let into_hole = keep % size > 0 && self.blocks(id)[(keep / size) as usize] < 0;
                let end = keep.div_ceil(size) as usize;
                let seen = first_seen(keep as usize, window, size as usize);
                let gone = window > 0 && keep < tokens && seen.min(end) < self.known[&id].slid.min(end);
                // The tokens of a block in the index are kept where they are compared.
                let kept = self.cache.config().chain.needs_comparison();
                let published = u64::from(self.cache.info(id).expect("open").published);
                let forgets = keep % size > 0 && keep / size < published && !kept;
                let cut = self.cache.truncate(id, keep as u32);
                // What a group still has depends on what else is cached.
                let may_fail = !self.groups.is_empty() && keep > 0 && keep < tokens;
                let fails = into_hole || gone;
                assert!(cut.is_err() == fails || may_fail, "only what was dropped cannot be cut");
                self.uncut += u64::from(cut.is_err());
                if matches!(cut, Ok(Ok(()))) {
                    self.cuts += u64::from(keep < tokens);
                    self.note_move(id);
                    self.copy(id);
                    let known = self.known.get_mut(&id).expect("known");
                    known.published &= !forgets;
                    known.slid = known.slid.min(end);
                    known.tokens.truncate(keep as usize);
                    known.written = known.written.min(keep as usize);
                }
            }
            60..=66 => {
                let child = self.next_id;
                self.next_id += 1;
                if self.cache.fork(id, child).expect("valid").is_ok() {
                    self.forks += 1;
                    self.copy(child);
                    let known = self.known[&id].clone();
                    self.known.insert(child, known);
                    self.verify(child)?;
                }
            }
            67..=69 => {
                let more = self.random.below(4 * self.per_block() as u64) as u32;
                let tokens = self.known[&id].tokens.len() as u32 + more;
                if matches!(self.cache.reserve(id, tokens), Ok(Ok(()))) {
                    self.note_move(id);
                    self.copy(id);
                }
            }
            70..=71 if !self.groups.is_empty() => {
                // Refused where it is not at the end of a block, or its tokens are not known.
                let _kept = self.cache.keep_state(id);
            }
            70..=72 => {
                self.cache.commit(id, self.known[&id].written as u32).expect("valid");
            }
            73..=75 => {
                let first = self.random.below(3) as u32;
                let dropped = self.cache.drop_least(id, 1 + first, first, 1).expect("valid");
                self.known.get_mut(&id).expect("known").has_holes |= dropped > 0;
            }
            76..=77 => {
                let tokens = self.known[&id].tokens.len() as u32;
                self.pins.push(self.cache.pin(id, tokens).expect("open").0);
            }
            78..=80 => {
                if let Some(pin) = self.pins.pop() {
                    self.cache.unpin(pin).expect("pinned");
                    assert!(self.cache.unpin(pin).is_err(), "a pin ends once");
                }
            }
            81 => {
                self.cache.clear().expect("clear");
            }
            _ => {
                let discard = self.random.one_in(4);
                self.cache.close(id, discard).expect("open");
                let known = self.known.remove(&id).expect("known");
                assert!(self.cache.close(id, false).is_err(), "a sequence is closed once");
                if !discard {
                    self.check_published(&known)?;
                }
            }
        }
        Ok(())
    }

    fn run(&mut self, steps: usize) -> Check {
        for step in 0..steps {
            self.step().map_err(|error| format!("step {step}: {error}"))?;
            if step % 7 == 0 && self.fault != Fault::ReusesHashes {
                self.follow_events()?;
            }
            if step % 50 == 0 {
                self.cache.audit().map_err(|error| format!("step {step}: audit: {error}"))?;
                let stats = self.cache.stats();
                assert_eq!(stats.total, stats.free + stats.idle + stats.used);
                for group in 0..self.groups.len() {
                    let stats = self.cache.group_stats(group as u32);
                    assert_eq!(stats.total, stats.free + stats.idle + stats.used);
                }
                assert_eq!(stats.sequences, self.known.len() as u64);
            }
        }
        for id in self.known.keys().copied().collect::<Vec<_>>() {
            if self.cache.info(id).expect("open").state == State::Open {
                self.verify(id)?;
            }
            self.cache.close(id, false).expect("open");
        }
        for pin in self.pins.drain(..) {
            self.cache.unpin(pin).expect("pinned");
        }
        self.cache.audit().map_err(|error| error.to_string())?;
        let stats = self.cache.stats();
        assert_eq!(stats.used, 0, "nothing is held when nothing is open");
        self.cache.clear().expect("clear");
        let stats = self.cache.stats();
        assert_eq!((stats.free, stats.published), (stats.total, 0), "nothing is lost");
        for group in 0..self.groups.len() {
            let stats = self.cache.group_stats(group as u32);
            assert_eq!(stats.free, stats.total, "nothing of group {group} is lost");
        }
        self.cache.audit().map_err(|error| error.to_string())
    }
}

fn variants() -> Vec<Config> {
    let mut all = Vec::new();
    for eviction in [Kind::Lru, Kind::Lfu, Kind::Fifo, Kind::S3Fifo, Kind::Priority] {
        for (algo, when_full) in
            [(Algo::Blake3, WhenFull::Reject), (Algo::Xxh3, WhenFull::EvictSequence), (Algo::Sha256, WhenFull::Shorten)]
        {
            for (blocks, per_block, window) in [(24, 4, 0), (200, 1, 0), (64, 16, 40)] {
                all.push(Config { eviction, when_full, window, ..config(blocks, per_block, algo) });
            }
        }
    }
    all.push(Config { prefix: false, ..config(50, 4, Algo::Blake3) });
    // Large enough that lanes keep spare blocks.
    all.push(config(2000, 4, Algo::Xxh3));
    all
}

/// Caches with groups: windows of several sizes, states, and both, each with room and with too little.
fn hybrid_variants() -> Vec<Config> {
    let window = |tokens, blocks| OwnGroup { blocks, kind: OwnKind::Window(tokens) };
    let state = |every, blocks| OwnGroup { blocks, kind: OwnKind::State { every } };
    let mut all = Vec::new();
    for when_full in [WhenFull::Reject, WhenFull::EvictSequence, WhenFull::Shorten] {
        for groups in [
            vec![window(10, 40)],
            vec![window(1, 12), window(9, 100)],
            vec![state(1, 30)],
            vec![state(0, 12)],
            vec![state(2, 60), window(7, 60)],
            vec![window(30, 25), state(1, 9), state(3, 40)],
        ] {
            all.push(Config { when_full, own_groups: groups.clone(), ..config(48, 4, Algo::Blake3) });
            all.push(Config { when_full, own_groups: groups, eviction: Kind::S3Fifo, ..config(300, 4, Algo::Xxh3) });
        }
    }
    all.push(Config { window: 12, own_groups: vec![state(1, 30)], ..config(60, 4, Algo::Xxh3) });
    all.push(Config { prefix: false, own_groups: vec![state(1, 30), window(6, 30)], ..config(60, 4, Algo::Xxh3) });
    // A block a token: the state of every token can be kept.
    all.push(Config { own_groups: vec![state(1, 150), window(3, 80)], ..config(200, 1, Algo::Sha256) });
    all
}

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn every_sequence_reads_its_own_words() {
    let (seeds, steps) = (number("NMC_KV_SEEDS", 4), number("NMC_KV_STEPS", 1500));
    let (mut hits, mut forks, mut refusals, mut closed) = (0, 0, 0, 0);
    for (number, config) in variants().into_iter().enumerate() {
        for seed in 0..seeds {
            let mut engine = Engine::new(config.clone(), seed as u64 + 1, Fault::None);
            if let Err(error) = engine.run(steps) {
                panic!("variant {number}, seed {seed}: {error}\n{config:?}");
            }
            hits += engine.hits;
            forks += engine.forks;
            refusals += engine.refusals;
            closed += engine.closed;
        }
    }
    println!("{hits} tokens hit, {forks} forks, {refusals} refusals, {closed} closed and found");
    assert!(hits > 0 && forks > 0 && refusals > 0 && closed > 0, "the cases that matter were met");
}

#[test]
fn hybrid_sequences_read_their_own_words_and_states() {
    // Where slots are few, hits are rare.
    let (seeds, steps) = (number("NMC_KV_SEEDS", 10), number("NMC_KV_STEPS", 1500));
    for (number, config) in hybrid_variants().into_iter().enumerate() {
        let (mut hits, mut forks, mut refusals, mut cuts, mut uncut) = (0, 0, 0, 0, 0);
        for seed in 0..seeds {
            let mut engine = Engine::new(config.clone(), seed as u64 + 1, Fault::None);
            if let Err(error) = engine.run(steps) {
                panic!("variant {number}, seed {seed}: {error}\n{config:?}");
            }
            hits += engine.hits;
            forks += engine.forks;
            refusals += engine.refusals;
            cuts += engine.cuts;
            uncut += engine.uncut;
        }
        println!("{number}: {hits} tokens hit, {forks} forks, {refusals} refusals, {cuts} cuts, {uncut} refused");
        assert!((hits > 0) == config.prefix && forks > 0 && cuts > 0, "the cases that matter were met: {config:?}");
    }
}

#[test]
fn control_an_engine_that_overwrites_states_that_were_kept_is_caught() {
    let groups = vec![OwnGroup { blocks: 60, kind: OwnKind::State { every: 1 } }];
    let config = Config { own_groups: groups, ..config(64, 4, Algo::Blake3) };
    let caught = (0..20).any(|seed| Engine::new(config.clone(), seed + 1, Fault::OverwritesStates).run(2000).is_err());
    assert!(caught);
}

#[test]
fn control_an_engine_that_makes_no_copies_in_a_group_is_caught() {
    let groups = vec![OwnGroup { blocks: 60, kind: OwnKind::Window(20) }];
    let config = Config { own_groups: groups, ..config(64, 4, Algo::Blake3) };
    let caught = (0..20).any(|seed| Engine::new(config.clone(), seed + 1, Fault::SkipsCopies).run(2000).is_err());
    assert!(caught);
}

#[test]
fn control_an_engine_that_makes_no_copies_is_caught() {
    let caught =
        (0..20).any(|seed| Engine::new(config(64, 4, Algo::Blake3), seed + 1, Fault::SkipsCopies).run(2000).is_err());
    assert!(caught);
}

#[test]
fn planted_equal_hashes_serve_no_wrong_block_when_tokens_are_compared() {
    for seed in 0..10 {
        let mut engine = Engine::new(config(64, 4, Algo::Xxh3), seed + 1, Fault::ReusesHashes);
        if let Err(error) = engine.run(1500) {
            panic!("seed {seed}: {error}");
        }
    }
}

#[test]
fn control_planted_equal_hashes_are_believed_when_nothing_is_compared() {
    let caught =
        (0..10).any(|seed| Engine::new(config(64, 4, Algo::Blake3), seed + 1, Fault::ReusesHashes).run(1500).is_err());
    assert!(caught, "a caller that gives the same hash for other tokens gets other tokens");
}

/// 16 blocks: two sequences of four stay, with four free blocks before and four after the second.
fn scattered(when_full: WhenFull) -> Cache {
    let cache = Cache::new(Config { when_full, ..config(16, 1, Algo::Blake3) }).unwrap();
    for id in 1..=4 {
        let open = Open { n_tokens: 4, contiguous: true, ..Open::default() };
        cache.open(id, &open).unwrap().unwrap();
    }
    cache.close(2, false).unwrap();
    cache.close(4, false).unwrap();
    cache
}

#[test]
fn a_contiguous_sequence_is_shortened_to_the_longest_run() {
    let cache = scattered(WhenFull::Shorten);
    let open = Open { n_tokens: 7, contiguous: true, ..Open::default() };
    let opened = cache.open(9, &open).unwrap().unwrap();
    assert_eq!(opened.tokens, 4, "not the 7 that are free, and not the half of it");
    let opened = cache.open(10, &Open { n_tokens: 3, ..open }).unwrap().unwrap();
    assert_eq!(opened.tokens, 3);
    cache.close(10, false).unwrap();
    cache.audit().unwrap();
    let refused = scattered(WhenFull::Reject).open(9, &open).unwrap();
    assert!(refused.is_err(), "control: 7 blocks are free, but not side by side");
}

/// Tokens of which the first `same` are those of every other prompt.
fn prompt(same: u32, length: u32, kind: u32) -> Vec<u32> {
    (0..length).map(|at| if at < same { at } else { 1000 * kind + at }).collect()
}

fn open_as<'a>(tokens: &'a [u32], contiguous: bool) -> Open<'a> {
    let n_tokens = tokens.len() as u32;
    Open { n_tokens, tokens: Some(tokens), max_hit: n_tokens - 1, contiguous, ..Open::default() }
}

#[test]
fn a_sequence_publishes_what_follows_a_block_that_another_has_published() {
    for (algo, contiguous) in [(Algo::Blake3, true), (Algo::Xxh3, true), (Algo::Blake3, false), (Algo::Xxh3, false)] {
        let cache = Cache::new(config(32, 4, algo)).unwrap();
        let matches = |tokens: &[u32]| cache.matching(Some(tokens), None, &[]).unwrap();
        // Both have room before either has published.
        let [first, second] = [prompt(8, 24, 1), prompt(8, 24, 2)];
        cache.open(1, &open_as(&first, contiguous)).unwrap().unwrap();
        cache.open(2, &open_as(&second, contiguous)).unwrap().unwrap();
        cache.commit(1, 24).unwrap();
        cache.commit(2, 8).unwrap();
        assert_eq!((matches(&first), matches(&second)), (24, 8));
        assert_eq!(cache.info(2).unwrap().published, 2);
        // The next ones continue those of the other, in another call.
        cache.commit(2, 24).unwrap();
        cache.audit().unwrap();
        assert_eq!((matches(&first), matches(&second)), (24, 24), "{algo:?}, contiguous: {contiguous}");
        let stats = cache.stats();
        // Contiguous ones keep the two that they computed twice.
        let kept = if contiguous { 2 } else { 0 };
        assert_eq!((stats.published, stats.used, stats.deduplicated), (10, 10 + kept, 2 - kept));
        cache.close(1, false).unwrap();
        cache.close(2, false).unwrap();
        cache.audit().unwrap();
        let stats = cache.stats();
        assert_eq!((stats.idle, stats.free), (10, 22));
        assert_eq!((matches(&first), matches(&second)), (24, 24));
    }
}

#[test]
fn a_router_is_told_the_names_of_what_follows_a_double() {
    let cache = Cache::new(config(32, 4, Algo::Blake3)).unwrap();
    let [first, second] = [prompt(4, 4, 1), prompt(4, 12, 2)];
    cache.open(1, &open_as(&first, false)).unwrap().unwrap();
    cache.open(2, &open_as(&second, true)).unwrap().unwrap();
    cache.close(1, false).unwrap();
    cache.close(2, false).unwrap();
    let names = cache.hashes_of(&second, &[]).unwrap();
    let (events, ..) = cache.events(0, 99).unwrap();
    let told: Vec<_> = events.iter().map(|event| (event.what, event.hash, event.parent)).collect();
    let none = BlockHash::default();
    let expected = [(names[0], none), (names[1], names[0]), (names[2], names[1])];
    assert_eq!(told, expected.map(|(hash, parent)| (What::Stored, hash, parent)));
    assert_eq!(cache.matching(Some(&second), None, &[]).unwrap(), 12);
}

#[test]
fn a_double_takes_the_place_of_a_block_that_left_the_index() {
    for algo in [Algo::Blake3, Algo::Xxh3] {
        let cache = Cache::new(config(12, 4, algo)).unwrap();
        let matches = |tokens: &[u32]| cache.matching(Some(tokens), None, &[]).unwrap();
        let [first, second] = [prompt(8, 8, 1), prompt(8, 16, 2)];
        cache.open(1, &open_as(&first, false)).unwrap().unwrap();
        cache.open(2, &open_as(&second, true)).unwrap().unwrap();
        cache.close(1, false).unwrap();
        cache.commit(2, 16).unwrap();
        assert_eq!((matches(&second), cache.stats().idle, cache.stats().free), (16, 2, 6));
        // All room is wanted: the two idle blocks go, though blocks of the second sequence continue them.
        cache.open(3, &Open { n_tokens: 32, ..Open::default() }).unwrap().unwrap();
        assert_eq!((matches(&second), cache.stats().published), (0, 0));
        cache.audit().unwrap();
        // Nothing is lost for that: it has blocks for all of these names.
        let pinned = cache.pin(2, 12).unwrap();
        assert_eq!((pinned.1, matches(&second), cache.stats().published), (12, 12, 3), "{algo:?}");
        cache.audit().unwrap();
        cache.append(2, 0, None, None).unwrap().unwrap();
        cache.close(2, false).unwrap();
        cache.audit().unwrap();
        assert_eq!((matches(&second), cache.stats().idle), (16, 1), "{algo:?}");
        cache.close(3, false).unwrap();
        cache.unpin(pinned.0).unwrap();
        cache.audit().unwrap();
        assert_eq!((cache.stats().idle, cache.stats().free), (4, 8));
    }
}

#[test]
fn a_fork_goes_on_where_its_parent_has_doubles() {
    for algo in [Algo::Blake3, Algo::Xxh3] {
        let cache = Cache::new(config(32, 4, algo)).unwrap();
        let shared = prompt(8, 8, 1);
        cache.open(1, &open_as(&shared, false)).unwrap().unwrap();
        cache.open(2, &open_as(&shared, true)).unwrap().unwrap();
        cache.close(1, false).unwrap();
        cache.commit(2, 8).unwrap();
        cache.fork(2, 3).unwrap().unwrap();
        for (id, kind) in [(2, 5), (3, 6)] {
            let more = [kind; 4];
            cache.append(id, 4, Some(&more), None).unwrap().unwrap();
            cache.commit(id, 12).unwrap();
            let all = [&shared[..], &more[..]].concat();
            assert_eq!(cache.matching(Some(&all), None, &[]).unwrap(), 12, "{algo:?}, sequence {id}");
        }
        cache.audit().unwrap();
        // A cut into a double is a cut into a block of its own, as far as it has that alone.
        cache.truncate(2, 6).unwrap().unwrap();
        cache.audit().unwrap();
        cache.close(2, false).unwrap();
        cache.close(3, false).unwrap();
        cache.audit().unwrap();
        assert_eq!((cache.stats().used, cache.stats().published), (0, 4));
    }
}

#[test]
fn what_a_fork_is_to_copy_stays_until_it_is_copied() {
    let groups = vec![OwnGroup { blocks: 6, kind: OwnKind::Window(8) }];
    let cache = Cache::new(Config { own_groups: groups, ..config(6, 4, Algo::Blake3) }).expect("a cache");
    let open = |id, n_tokens| cache.open(id, &Open { n_tokens, ..Open::default() }).expect("valid").is_ok();
    assert!(open(1, 6));
    cache.fork(1, 2).expect("valid").expect("room");
    cache.close(1, false).expect("open");
    let copies = cache.take_plan(2, 9).expect("open").expect("fits");
    assert_eq!(copies.len(), 2, "the last block, and that of the window");
    // All that is free is taken; the blocks that are to be read are not among it.
    let mut taken = Vec::new();
    while open(10 + taken.len() as u64, 4) {
        let id = 10 + taken.len() as u64;
        for group in [NONE, 0] {
            let (mut indptr, mut indices, mut last) = ([0; 2], [0], [0]);
            write_csr(&cache, &[id], group, &mut indptr, &mut indices, &mut last).expect("a table");
            taken.push((group, indices[0].cast_unsigned()));
        }
    }
    assert!(taken.len() >= 4);
    assert!(copies.iter().all(|copy| !taken.contains(&(copy.own_group, copy.from))));
    cache.audit().expect("sound");
    // With its next call they are free.
    cache.close(2, true).expect("open");
    assert!(open(99, 4));
    cache.audit().expect("sound");
}

#[test]
fn holes_are_none() {
    assert_eq!(NONE.cast_signed(), -1);
}

//! The cache under thousands of schedules (`cargo test --test kv_schedules`): three threads open, grow, fork, commit and close sequences with
//! equal beginnings in a cache that is too small for them, so that blocks and sequences are evicted. Every sequence must read
//! the words that were written for its own tokens, and in the end no block is lost or held.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "a test may")]

use crate::base::status::{NMC_ERR_NOT_FOUND, NMC_ERR_STALE};
use crate::kv::evict::Kind;
use crate::kv::hash::{Algo, Chain, Key};
use crate::kv::{Cache, Config, Open, State, WhenFull};
use crate::words::words;
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::thread;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// A test, and for a control what it must fail with.
type Test = (&'static str, fn(), Option<&'static str>);

/// All of them.
pub const ALL: [Test; 5] = [
    (
        "sequences_that_evict_each_other_read_their_own_words",
        sequences_that_evict_each_other_read_their_own_words,
        None,
    ),
    ("sequences_that_are_refused_read_their_own_words", sequences_that_are_refused_read_their_own_words, None),
    (
        "control_an_engine_that_writes_to_blocks_it_no_longer_has_is_caught",
        control_an_engine_that_writes_to_blocks_it_no_longer_has_is_caught,
        Some("reads another's word"),
    ),
    ("a_sequence_is_read_as_itself_or_not_at_all", a_sequence_is_read_as_itself_or_not_at_all, None),
    (
        "control_a_hint_that_is_believed_reads_another_sequence",
        control_a_hint_that_is_believed_reads_another_sequence,
        Some("the tokens of another sequence were read"),
    ),
];

const SIZE: u32 = 2;
const THREADS: u64 = 3;

fn cache(blocks: u32, when_full: WhenFull) -> Cache {
    Cache::new(Config {
        total_blocks: blocks,
        tokens_per_block: SIZE,
        max_sequences: 16,
        eviction: Kind::Lru,
        when_full,
        prefix: true,
        chain: Chain::new(Algo::Xxh3, &Key::default()),
        window: 0,
        events: 0,
        own_groups: Vec::new(),
    })
    .unwrap()
}

/// The cache and the memory it is for; the memory is no point at which schedules differ.
struct World {
    cache: Cache,
    memory: Mutex<Vec<u64>>,
    /// For the control: writes where the blocks were a moment ago.
    careless: bool,
}

/// What was met in all schedules of a test.
#[derive(Default)]
struct Met {
    hits: AtomicU64,
    evicted_blocks: AtomicU64,
    evicted_sequences: AtomicU64,
}

/// Whether a call was refused because the sequence's blocks were taken, which others may do at any time.
fn was_evicted<T>(done: &crate::base::error::Result<T>) -> bool {
    match done {
        Ok(_) => false,
        Err(error) => {
            assert_eq!(error.status, NMC_ERR_STALE, "{error}");
            true
        }
    }
}

impl World {
    fn new(blocks: u32, when_full: WhenFull) -> Self {
        let memory = Mutex::new(vec![0; (blocks * SIZE) as usize]);
        Self { cache: cache(blocks, when_full), memory, careless: false }
    }

    /// Writes the tokens from `written` on, and reads those before; false if the blocks were taken.
    fn compute(&self, id: u64, tokens: &[u32], written: usize) -> bool {
        if self.careless {
            let blocks = self.cache.read(id, |seq| Ok(seq.blocks.clone()));
            if let Ok(blocks) = &blocks {
                // Others run meanwhile.
                drop(self.cache.supply.pool.lock());
                self.touch(id, blocks, tokens, written);
            }
            return !was_evicted(&blocks);
        }
        // The lane's lock is held meanwhile, so nobody takes the blocks.
        !was_evicted(&self.cache.read(id, |seq| {
            self.touch(id, &seq.blocks, tokens, written);
            Ok(())
        }))
    }

    fn touch(&self, id: u64, blocks: &[u32], tokens: &[u32], written: usize) {
        let mut memory = self.memory.lock().unwrap();
        for at in 0..tokens.len() {
            let place = (blocks[at / SIZE as usize] * SIZE) as usize + at % SIZE as usize;
            if at < written {
                assert_eq!(
                    Some(memory[place]),
                    words(1, &tokens[..=at]).last(),
                    "sequence {id} reads another's word at {at}"
                );
            } else {
                memory[place] = words(1, &tokens[..=at]).last().unwrap();
            }
        }
    }

    /// What a thread of an engine does with two sequences, one after the other, and a fork of each.
    fn serve(&self, thread: u64, met: &Met) {
        for id in [thread, thread + THREADS] {
            // The first block is the same for all, the second for some of them.
            let tokens = [1, 2, 3, (id % 2) as u32, id as u32, 6];
            let open = Open { n_tokens: 6, tokens: Some(&tokens), max_hit: 6, ..Open::default() };
            let Ok(opened) = self.cache.open(id, &open).unwrap() else { continue };
            met.hits.fetch_add(u64::from(opened.hit_tokens), Ordering::Relaxed);
            self.grow(id, &tokens, opened.hit_tokens as usize);
            self.cache.close(id, id == 3).unwrap();
        }
    }

    fn grow(&self, id: u64, tokens: &[u32], hit: usize) {
        if !self.compute(id, tokens, hit) {
            return;
        }
        if was_evicted(&self.cache.commit(id, tokens.len() as u32)) || !self.compute(id, tokens, tokens.len()) {
            return;
        }
        // At the end of a block, so that nothing has to be copied.
        let child = id + 10;
        let forked = self.cache.fork(id, child);
        if was_evicted(&forked) {
            return;
        }
        let forked = matches!(forked, Ok(Ok(())));
        for (id, token) in [(id, 70), (child, 80)].into_iter().take(1 + usize::from(forked)) {
            let mut tokens = tokens.to_vec();
            let grown = self.cache.append(id, 1, Some(&[token]), None);
            if matches!(grown, Ok(Ok(()))) {
                tokens.push(token);
                self.compute(id, &tokens, tokens.len() - 1);
            } else {
                was_evicted(&grown);
            }
            self.compute(id, &tokens, tokens.len());
        }
        if forked {
            self.cache.close(child, false).unwrap();
        }
    }

    fn is_clean(&self) {
        self.cache.audit().unwrap();
        let stats = self.cache.stats();
        assert_eq!((stats.used, stats.sequences), (0, 0), "nothing is held when nothing is open");
    }
}

fn all(world: World, met: &Arc<Met>) {
    let world = Arc::new(world);
    let threads: Vec<_> = (1..=THREADS)
        .map(|id| {
            let (world, met) = (Arc::clone(&world), Arc::clone(met));
            thread::spawn(move || world.serve(id, &met))
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    world.is_clean();
    let stats = world.cache.stats();
    met.evicted_blocks.fetch_add(stats.evicted_blocks, Ordering::Relaxed);
    met.evicted_sequences.fetch_add(stats.evicted_sequences, Ordering::Relaxed);
}

fn config() -> shuttle::Config {
    let mut config = shuttle::Config::default();
    config.stack_size = 1 << 20;
    config.max_time = Some(std::time::Duration::from_secs(5));
    config
}

fn under_schedules(model: impl Fn() + Send + Sync + Clone + 'static) {
    shuttle::Runner::new(PctScheduler::new(3, 10_000), config()).run(model.clone());
    shuttle::Runner::new(RandomScheduler::new(10_000), config()).run(model);
}

fn sequences_that_evict_each_other_read_their_own_words() {
    let met = Arc::new(Met::default());
    let seen = Arc::clone(&met);
    under_schedules(move || all(World::new(6, WhenFull::EvictSequence), &seen));
    for count in [&met.hits, &met.evicted_blocks, &met.evicted_sequences] {
        assert!(count.load(Ordering::Relaxed) > 1000, "the cases that matter were met");
    }
}

fn sequences_that_are_refused_read_their_own_words() {
    let met = Arc::new(Met::default());
    let seen = Arc::clone(&met);
    under_schedules(move || all(World::new(7, WhenFull::Reject), &seen));
    for count in [&met.hits, &met.evicted_blocks] {
        assert!(count.load(Ordering::Relaxed) > 1000, "the cases that matter were met");
    }
}

fn control_an_engine_that_writes_to_blocks_it_no_longer_has_is_caught() {
    let met = Arc::new(Met::default());
    let world = || World { careless: true, ..World::new(6, WhenFull::EvictSequence) };
    under_schedules(move || all(world(), &met));
}

/// One closes its sequence and opens another, which gets the same slot, while another thread reads the first.
fn slot_is_reused(read: fn(&World, u64) -> Option<Vec<u32>>) {
    let world = Arc::new(World::new(8, WhenFull::Reject));
    let open = |world: &World, id: u64| {
        let tokens = [id as u32; 4];
        world.cache.open(id, &Open { n_tokens: 4, tokens: Some(&tokens), ..Open::default() }).unwrap().unwrap();
    };
    let other = Arc::clone(&world);
    let writer = thread::spawn(move || {
        open(&other, 1);
        other.cache.close(1, true).unwrap();
        open(&other, 2);
    });
    let reader = Arc::clone(&world);
    let reader = thread::spawn(move || read(&reader, 1));
    writer.join().unwrap();
    if let Some(tokens) = reader.join().unwrap() {
        assert_eq!(tokens, [1; 4], "the tokens of another sequence were read");
    }
    world.cache.close(2, true).unwrap();
    world.is_clean();
}

fn a_sequence_is_read_as_itself_or_not_at_all() {
    under_schedules(|| {
        slot_is_reused(|world, id| match world.cache.read(id, |seq| Ok(seq.pending.clone())) {
            Ok(tokens) => Some(tokens),
            Err(error) => {
                assert_eq!(error.status, NMC_ERR_NOT_FOUND);
                None
            }
        });
    });
}

fn control_a_hint_that_is_believed_reads_another_sequence() {
    under_schedules(|| {
        slot_is_reused(|world, id| {
            let slot = world.cache.table.hint(id)?;
            let lane = world.cache.lanes[(slot >> 28) as usize].lock();
            // What is left out: whether the slot still has the id.
            let seq = &lane.seqs[(slot & 0xfff_ffff) as usize];
            (seq.state == State::Open).then(|| seq.pending.clone())
        });
    });
}

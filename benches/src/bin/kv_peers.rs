//! What other allocators need for the work that `nmc bench kv` measures ours with: one JSON line a figure. Given to it
//! with `--peers`, so that all figures are of one run. `--quick` only shows that everything works.

#[path = "../../../crates/nmc/src/bench/kv_load.rs"]
mod load;

use dynamo_tokens::PositionalLineageHash;
use kvbm_logical::{BlockManager, BlockRegistry, ImmutableBlock, MutableBlock};
use load::{BATCH, BATCH_BLOCKS, Batches, Figures, RUN_BLOCKS, RunAllocator};
use std::hint::black_box;
use std::time::Instant;

/// Blocks of a prefix that is looked up.
const PREFIX: usize = 128;
/// Blocks of the manager that evicts.
const CHURN_BLOCKS: usize = 8_192;

fn main() {
    let quick = std::env::args().any(|arg| arg == "--quick");
    let (samples, per_sample) = if quick { (3, 2_000) } else { (501, 5_000) };
    for (size, blocks) in RUN_BLOCKS {
        let work = format!("run_alloc.{size}");
        let mut offsets = Offsets(offset_allocator::Allocator::new(blocks));
        tell_runs("offset-allocator", &work, load::runs(&mut offsets, blocks, samples, per_sample));
    }
    let batches = if quick { 20 } else { 50 };
    let mut manager = Kvbm(manager(BATCH_BLOCKS as usize, Backend::Lru));
    let ns = load::batches(&mut manager, samples, batches).expect("there are enough blocks");
    tell("kvbm-logical", "alloc_free.batch100", ns, "");
    for backend in [Backend::Lru, Backend::Lineage] {
        for active in [true, false] {
            let state = if active { "active" } else { "inactive" };
            let ns = prefix_match(backend, active, samples, batches);
            tell("kvbm-logical", &format!("prefix_match.{state}.{}", backend.name()), ns, "");
        }
        let ns = churn(backend, samples, batches / 5);
        tell("kvbm-logical", &format!("churn.{}", backend.name()), ns, "");
    }
}

fn tell_runs(peer: &str, work: &str, figures: Figures) {
    let Figures { ns, refused, load } = figures;
    tell(peer, work, ns, &format!(",\"refused\":{refused:.4},\"load\":{load:.4}"));
}

/// The median of the samples.
fn tell(peer: &str, work: &str, mut ns: Vec<f64>, more: &str) {
    ns.sort_by(f64::total_cmp);
    println!("{{\"peer\":\"{peer}\",\"work\":\"{work}\",\"ns\":{:.3}{more}}}", ns[ns.len() / 2]);
}

struct Offsets(offset_allocator::Allocator);

impl RunAllocator for Offsets {
    type Run = offset_allocator::Allocation;

    fn allocate(&mut self, count: u32) -> Option<Self::Run> {
        self.0.allocate(count)
    }

    fn free(&mut self, run: Self::Run, _: u32) {
        self.0.free(run);
    }
}

#[derive(Clone, Copy)]
enum Backend {
    Lru,
    Lineage,
}

impl Backend {
    fn name(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::Lineage => "lineage",
        }
    }
}

fn manager(blocks: usize, backend: Backend) -> BlockManager<()> {
    let builder = BlockManager::<()>::builder().block_count(blocks).block_size(16).registry(BlockRegistry::new());
    let builder = match backend {
        Backend::Lru => builder.with_lru_backend(),
        Backend::Lineage => builder.with_lineage_backend(),
    };
    builder.build().expect("a manager")
}

struct Kvbm(BlockManager<()>);

impl Batches for Kvbm {
    type Batch = Vec<MutableBlock<()>>;

    fn take(&mut self) -> Option<Self::Batch> {
        self.0.allocate_blocks(BATCH)
    }

    fn renew(&mut self, batch: &mut Self::Batch) -> Option<()> {
        batch.clear();
        *batch = self.0.allocate_blocks(BATCH)?;
        Some(())
    }
}

/// The hashes of a sequence of `count` blocks that no other seed has.
fn chain(seed: u64, count: usize) -> Vec<PositionalLineageHash> {
    let mix = |n: u64| (seed << 20 | n).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29) | 1;
    let root = PositionalLineageHash::root(mix(0));
    let next = |hash: &PositionalLineageHash| Some(hash.extend(mix(hash.position() + 1)));
    std::iter::successors(Some(root), next).take(count).collect()
}

fn insert(manager: &BlockManager<()>, hashes: &[PositionalLineageHash]) -> Vec<ImmutableBlock<()>> {
    let blocks = manager.allocate_blocks(hashes.len()).expect("enough blocks");
    let staged = blocks.into_iter().zip(hashes).map(|(block, hash)| block.stage(*hash, 16).expect("the block size"));
    manager.register_blocks(staged.collect())
}

/// Nanoseconds a block to find a prefix and let it go again; `active` if somebody else uses it all the time.
fn prefix_match(backend: Backend, active: bool, samples: usize, per_sample: usize) -> Vec<f64> {
    let manager = manager(BATCH_BLOCKS as usize, backend);
    let prefixes: Vec<_> = (1..=64).map(|seed| chain(seed, PREFIX)).collect();
    let held: Vec<_> = prefixes.iter().map(|hashes| insert(&manager, hashes)).filter(|_| active).collect();
    let sample = || {
        let start = Instant::now();
        for hashes in prefixes.iter().cycle().take(per_sample) {
            let found = black_box(manager.match_blocks(black_box(hashes)));
            assert_eq!(found.len(), PREFIX);
        }
        start.elapsed().as_secs_f64() * 1e9 / (per_sample * PREFIX) as f64
    };
    sample();
    let ns = (0..samples).map(|_| sample()).collect();
    drop(held);
    ns
}

/// Nanoseconds a block to evict it, give it new contents and let it go, when all blocks hold something.
fn churn(backend: Backend, samples: usize, per_sample: usize) -> Vec<f64> {
    let manager = manager(CHURN_BLOCKS, backend);
    let mut seed = 0;
    let mut sample = |batches: usize| {
        let chains: Vec<_> = (0..batches).map(|at| chain(seed + 1 + at as u64, BATCH)).collect();
        seed += batches as u64;
        let start = Instant::now();
        for hashes in &chains {
            drop(black_box(insert(&manager, hashes)));
        }
        start.elapsed().as_secs_f64() * 1e9 / (batches * BATCH) as f64
    };
    sample(CHURN_BLOCKS / BATCH + 1);
    (0..samples).map(|_| sample(per_sample.max(1))).collect()
}

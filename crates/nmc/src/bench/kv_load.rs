//! The work that block allocators are measured with, ours and others: `benches/src/bin/kv_peers.rs` includes this file, so
//! that all of them do the same, with the same random numbers.

use std::time::Instant;

/// Blocks of a batch.
pub const BATCH: usize = 100;
/// Batches that are held at a time.
const HELD: u32 = 64;
/// Blocks for the batches.
pub const BATCH_BLOCKS: u32 = 131_072;
/// How many blocks the runs are taken from, with what it is called.
pub const RUN_BLOCKS: [(&str, u32); 3] = [("2k", 2_048), ("128k", 131_072), ("1M", 1_048_576)];
/// Longest run; they have 1 to as many blocks.
pub const LONGEST: u32 = 64;
/// Part of the blocks that is kept in use, in percent.
const LOAD: u64 = 90;

/// The same numbers for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        #[allow(clippy::cast_possible_truncation, reason = "below the limit")]
        let number = (((self.0 >> 32) * u64::from(limit)) >> 32) as u32;
        number
    }
}

/// Gives and takes blocks, wherever they lie, [`BATCH`] at a time.
pub trait Batches {
    /// The blocks of a batch.
    type Batch;
    /// The first blocks for a batch.
    fn take(&mut self) -> Option<Self::Batch>;
    /// Frees the blocks of a batch and takes others for it.
    fn renew(&mut self, batch: &mut Self::Batch) -> Option<()>;
}

/// Nanoseconds to free a block and take another one, of which some thousands are held; a figure for each of `samples`.
pub fn batches<A: Batches>(allocator: &mut A, samples: usize, per_sample: usize) -> Option<Vec<f64>> {
    let mut held: Vec<A::Batch> = (0..HELD).map(|_| allocator.take()).collect::<Option<_>>()?;
    let mut random = Random(11);
    let mut sample = || {
        let start = Instant::now();
        for _ in 0..per_sample {
            allocator.renew(&mut held[random.below(HELD) as usize])?;
        }
        Some(start.elapsed().as_secs_f64() * 1e9 / (per_sample * BATCH) as f64)
    };
    sample()?;
    (0..samples).map(|_| sample()).collect()
}

/// Gives and takes runs of blocks.
pub trait RunAllocator {
    /// Whatever stands for a run.
    type Run;
    /// A run of `count` blocks, if it fits.
    fn allocate(&mut self, count: u32) -> Option<Self::Run>;
    /// Gives a run of `count` blocks back.
    fn free(&mut self, run: Self::Run, count: u32);
}

/// What [`runs`] found.
pub struct Figures {
    /// Nanoseconds of an operation, for each sample.
    pub ns: Vec<f64>,
    /// Part of the allocations that did not fit.
    #[allow(dead_code, reason = "for the program that compares")]
    pub refused: f64,
    /// Part of the blocks in use, on average.
    #[allow(dead_code, reason = "for the program that compares")]
    pub load: f64,
}

/// Random runs of 1 to [`LONGEST`] blocks: taken until [`LOAD`] is in use, then given and taken so that it stays so. An
/// operation is one of either; after one that does not fit, another run is given back first.
pub fn runs<A: RunAllocator>(allocator: &mut A, blocks: u32, samples: usize, per_sample: usize) -> Figures {
    let mut state = State { random: Random(7), held: Vec::with_capacity(blocks as usize), in_use: 0, fits: true };
    let target = u64::from(blocks) * LOAD / 100;
    // Fills it, and mixes what was filled in order.
    state.work(allocator, target, 3 * blocks as usize / LONGEST as usize + per_sample);
    let (mut ns, mut sum) = (Vec::new(), Counts::default());
    for _ in 0..samples {
        let start = Instant::now();
        let counts = state.work(allocator, target, per_sample);
        ns.push(start.elapsed().as_secs_f64() * 1e9 / per_sample as f64);
        sum.allocations += counts.allocations;
        sum.refused += counts.refused;
        sum.in_use += counts.in_use;
    }
    Figures {
        ns,
        refused: sum.refused as f64 / sum.allocations.max(1) as f64,
        load: sum.in_use as f64 / (samples * per_sample) as f64 / f64::from(blocks),
    }
}

#[derive(Default)]
struct Counts {
    allocations: u64,
    refused: u64,
    /// Blocks in use, added up over all operations.
    in_use: u64,
}

struct State<R> {
    random: Random,
    held: Vec<(R, u32)>,
    in_use: u64,
    /// Whether the last allocation did.
    fits: bool,
}

impl<R> State<R> {
    fn work<A: RunAllocator<Run = R>>(&mut self, allocator: &mut A, target: u64, operations: usize) -> Counts {
        let mut counts = Counts::default();
        for _ in 0..operations {
            if self.held.is_empty() || (self.in_use < target && self.fits) {
                let count = 1 + self.random.below(LONGEST);
                counts.allocations += 1;
                if let Some(run) = allocator.allocate(count) {
                    self.held.push((run, count));
                    self.in_use += u64::from(count);
                } else {
                    self.fits = false;
                    counts.refused += 1;
                }
            } else {
                self.fits = true;
                #[allow(clippy::cast_possible_truncation, reason = "no more runs than blocks")]
                let at = self.random.below(self.held.len() as u32) as usize;
                let (run, count) = self.held.swap_remove(at);
                allocator.free(run, count);
                self.in_use -= u64::from(count);
            }
            counts.in_use += self.in_use;
        }
        counts
    }
}

//! What a program says about the world it wants to be in, checked before anything is done.

use super::dir::{self, Place};
use super::wire::Params;
use crate::base::Deadline;
use crate::base::error::Result;
use crate::layout::{self, MAX_RANKS};
use crate::mem::{HeapKind, Import};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Default time for all ranks to come together.
pub const DEFAULT_JOIN_MS: i64 = 30_000;
/// Default time that a dead process's GPU gets to drain.
pub const DEFAULT_DRAIN_MS: u32 = 1_000;
/// Default number of program words per rank.
pub const DEFAULT_WORDS: u32 = 64;
/// Most program words per rank.
pub const MAX_WORDS: u32 = 1 << 20;

/// Who runs the master.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hosting {
    /// The process that joins as rank 0 (or, with automatic ranks, the first to come).
    Rank0,
    /// A process of its own.
    Elsewhere,
}

/// A world as one process wants to join it.
#[derive(Debug)]
pub struct Config {
    /// Name under which ranks meet.
    pub name: String,
    /// Directory under which ranks meet; the user's runtime directory if not given.
    pub dir: Option<PathBuf>,
    /// Wanted rank; the lowest free one if not given.
    pub rank: Option<u32>,
    /// Number of ranks; the most, if `min_ranks` is less.
    pub world_size: u32,
    /// How many ranks must be there for a join to complete; 0 for all.
    pub min_ranks: u32,
    /// Kind of every heap.
    pub heap_kind: HeapKind,
    /// Bytes of every heap.
    pub heap_bytes: u64,
    /// Ask for huge pages.
    pub huge_pages: bool,
    /// Fault host heaps in while joining.
    pub populate: bool,
    /// The engine's own memory to be used as the heap.
    pub import: Option<Import>,
    /// CUDA device: needed for CUDA heaps; with host heaps it registers them with that device.
    pub device: Option<i32>,
    /// Number of this rank in device code; the same as the rank if not given.
    pub device_rank: Option<u32>,
    /// Program words per rank.
    pub words_per_rank: u32,
    /// Who runs the master.
    pub hosting: Hosting,
    /// When joining gives up.
    pub deadline: Deadline,
    /// Time that this process's GPU gets to drain after its death.
    pub drain_ms: u32,
    /// CPU for the library's threads.
    pub service_cpu: Option<u32>,
    /// Set when there is no point in joining any more, because another rank of the same call has failed.
    pub give_up: Arc<AtomicBool>,
}

impl Config {
    /// Refuses values that cannot work, naming the value and the limit.
    pub fn check(&self) -> Result<()> {
        dir::check_name(self.name.as_bytes())?;
        let size = self.world_size;
        if size == 0 || size as usize > MAX_RANKS {
            crate::bail!(NMC_ERR_INVALID_ARG, "world_size {size} is not between 1 and {MAX_RANKS}");
        }
        if self.min_ranks > size {
            crate::bail!(NMC_ERR_INVALID_ARG, "min_ranks {} is above the world size {size}", self.min_ranks);
        }
        for (what, rank) in [("rank", self.rank), ("device_rank", self.device_rank)] {
            if let Some(rank) = rank
                && rank >= size
            {
                crate::bail!(NMC_ERR_INVALID_ARG, "{what} {rank} is not below the world size {size}");
            }
        }
        if self.heap_bytes == 0 || self.heap_bytes > 1 << 46 {
            crate::bail!(NMC_ERR_INVALID_ARG, "heap_bytes {} is not between 1 and 2^46", self.heap_bytes);
        }
        if self.words_per_rank > MAX_WORDS {
            crate::bail!(NMC_ERR_INVALID_ARG, "words_per_rank {} is above {MAX_WORDS}", self.words_per_rank);
        }
        if self.drain_ms > 600_000 {
            crate::bail!(NMC_ERR_INVALID_ARG, "drain_ms {} is above 600000", self.drain_ms);
        }
        Ok(())
    }

    /// Whether joining should end without success.
    #[must_use]
    pub fn gives_up(&self) -> bool {
        self.deadline.passed() || self.give_up.load(Ordering::Relaxed)
    }

    /// What all ranks must agree on.
    #[must_use]
    pub fn params(&self) -> Params {
        Params {
            layout: layout::VERSION,
            world_size: self.world_size,
            min_ranks: if self.min_ranks == 0 { self.world_size } else { self.min_ranks },
            heap_kind: self.heap_kind.code(),
            heap_bytes: self.heap_bytes,
            words_per_rank: self.words_per_rank,
        }
    }

    /// Where the ranks meet.
    #[must_use]
    pub fn place(&self) -> Place {
        Place::new(self.dir.as_deref(), &self.name)
    }
}

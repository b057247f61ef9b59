//! What a program says about the group it wants, checked before anything is done.

use crate::base::error::Result;
use crate::layout::ep::{Dtype, MAX_EP_RANKS, SCALE_GROUP, Shape, Wire};
use crate::mem::HeapKind;
use std::time::Duration;

/// Tokens of all ranks together, from which the default `t_cap` follows.
const DEFAULT_TOKENS: u32 = 256;
/// Default time to wait for a peer.
pub(crate) const DEFAULT_DEADLINE_MS: i64 = 10_000;
/// Most tokens of a rank: what a flag can count.
const MAX_TOKENS: u32 = 32_768;
/// Most experts of a token: what a warp can look at.
const MAX_TOP_K: u32 = 32;
const MAX_SETS: u32 = 64;
/// Most experts of a rank that the pack kernel can count.
const MAX_LOCAL_EXPERTS: u32 = 1024;
/// Blocks of a rank by default, and at most.
const USUAL_BLOCKS: u32 = 32;
const MAX_BLOCKS: u32 = 128;
const MAX_HIDDEN: u32 = 1 << 20;

/// A group as a program wants it.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// Ranks of the world that are in the group, one bit each; 0 for all.
    pub(crate) members: u64,
    /// Where the transport region begins in every heap.
    pub(crate) heap_offset: u64,
    /// Most tokens of a rank; 0 for 256 shared by all ranks.
    pub(crate) t_cap: u32,
    /// Elements of a row.
    pub(crate) hidden: u32,
    /// Experts of a token.
    pub(crate) top_k: u32,
    /// Experts of all ranks.
    pub(crate) experts: u32,
    /// Element type.
    pub(crate) dtype: Dtype,
    /// How rows travel.
    pub(crate) wire: Wire,
    /// Bytes of a weight.
    pub(crate) weight_bytes: u32,
    /// Rows of an expert; 0 for as many as can come.
    pub(crate) max_m: u32,
    /// Groups for rows that do not fit.
    pub(crate) spill_groups: u32,
    /// Buffer sets; 0 for 1.
    pub(crate) sets: u32,
    /// Blocks of a rank's kernels; 0 for what fits.
    pub(crate) blocks: u32,
    /// Returned rows have memory of their own.
    pub(crate) separate_y: bool,
    /// Trap instead of reporting.
    pub(crate) trap: bool,
    /// Count tokens per expert.
    pub(crate) count_load: bool,
    /// Kernels after a dispatch may always be placed while it waits.
    pub(crate) early: bool,
    /// Processes on one device may use fences of its scope.
    pub(crate) device_scope: bool,
    /// Longest wait for a peer.
    pub(crate) deadline: Duration,
    /// The phase of the first step. For tests of the wrap.
    pub(crate) first_phase: u32,
}

fn rows_fit(shape: &Shape) -> bool {
    u64::from(shape.groups()) * u64::from(shape.max_m) < 1 << 31 && shape.slots() * u64::from(shape.top_k) < 1 << 31
}

impl Config {
    /// The members among `world_size` ranks.
    pub(crate) fn members(&self, world_size: u32) -> Result<Vec<u32>> {
        let all = if world_size >= 64 { u64::MAX } else { (1 << world_size) - 1 };
        let mask = if self.members == 0 { all } else { self.members };
        if mask & !all != 0 {
            crate::bail!(
                NMC_ERR_INVALID_ARG,
                "members {mask:#x} names ranks that a world of {world_size} does not have"
            );
        }
        let members: Vec<u32> = (0..world_size).filter(|rank| mask >> rank & 1 != 0).collect();
        if members.len() > MAX_EP_RANKS {
            crate::bail!(NMC_ERR_LIMIT, "{} ranks; a group has at most {MAX_EP_RANKS}", members.len());
        }
        Ok(members)
    }

    /// What all ranks of a group of `world` have to agree on.
    pub(crate) fn shape(&self, world: u32, heaps: HeapKind) -> Result<Shape> {
        let t_cap = if self.t_cap == 0 { DEFAULT_TOKENS.div_ceil(world) } else { self.t_cap };
        if t_cap > MAX_TOKENS {
            crate::bail!(NMC_ERR_INVALID_ARG, "t_cap {t_cap} is more than {MAX_TOKENS}");
        }
        if self.top_k == 0 || self.top_k > MAX_TOP_K {
            crate::bail!(NMC_ERR_INVALID_ARG, "top_k {} is not between 1 and {MAX_TOP_K}", self.top_k);
        }
        let n_local = self.experts / world;
        if self.experts == 0 || !self.experts.is_multiple_of(world) || n_local > MAX_LOCAL_EXPERTS {
            crate::bail!(
                NMC_ERR_INVALID_ARG,
                "experts {} is not a multiple of the {world} ranks with at most {MAX_LOCAL_EXPERTS} a rank",
                self.experts
            );
        }
        if self.dtype == Dtype::Fp8 {
            crate::bail!(
                NMC_ERR_INVALID_ARG,
                "dtype fp8 is for the way to the experts only; set `dispatch` and leave `dtype` bf16, fp16 or fp32"
            );
        }
        let unit = if self.wire == Wire::Same { 16 / self.dtype.bytes() } else { SCALE_GROUP };
        if self.hidden == 0 || self.hidden > MAX_HIDDEN || !self.hidden.is_multiple_of(unit) {
            crate::bail!(
                NMC_ERR_INVALID_ARG,
                "hidden {} is not a multiple of {unit} between {unit} and {MAX_HIDDEN}",
                self.hidden
            );
        }
        let sets = self.sets.max(1);
        if sets > MAX_SETS {
            crate::bail!(NMC_ERR_INVALID_ARG, "buffer_sets {sets} is more than {MAX_SETS}");
        }
        let most = world * t_cap;
        let shape = Shape {
            world,
            t_cap,
            hidden: self.hidden,
            top_k: self.top_k,
            experts: self.experts,
            dtype: self.dtype,
            wire: self.wire,
            weight_bytes: self.weight_bytes,
            max_m: if self.max_m == 0 { most } else { self.max_m },
            spill_groups: self.spill_groups,
            sets,
            separate_y: self.separate_y,
            blocks: match heaps {
                HeapKind::Host => 1,
                HeapKind::Cuda if self.blocks == 0 => USUAL_BLOCKS,
                HeapKind::Cuda => self.blocks,
            },
            device_scope: self.device_scope,
        };
        if shape.blocks > MAX_BLOCKS {
            crate::bail!(NMC_ERR_INVALID_ARG, "blocks {} is more than {}", shape.blocks, MAX_BLOCKS);
        }
        if shape.max_m > most.saturating_mul(self.top_k)
            || shape.spill_groups > 65_535
            || shape.groups() > 65_535
            || !rows_fit(&shape)
        {
            crate::bail!(
                NMC_ERR_INVALID_ARG,
                "max_m {} and {} spill_groups are more than the {most} slots of {} experts each can fill",
                shape.max_m,
                shape.spill_groups,
                self.top_k
            );
        }
        Ok(shape)
    }
}

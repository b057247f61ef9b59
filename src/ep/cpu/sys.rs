//! What the CPU backend touches: the regions of the group, the own status page, and memory of the program, each as large as the
//! C header says. The rest of the backend sees regions only.
#![allow(unsafe_code, reason = "the program's memory is reached here")]

use crate::ep::calls::CallArgs;
use crate::ep::layer::{Activation, Gemm};
use crate::ep::sys::Region;
use crate::layout::ep::{Dtype, MAX_EP_RANKS, RankDesc, Wire};
use std::cell::Cell;

/// One rank of a group on host memory, at a layer.
pub(in crate::ep) struct HostRank<'a> {
    /// Sizes and offsets; the addresses in it are not used.
    pub(super) d: RankDesc,
    regions: [Region<'a>; MAX_EP_RANKS],
    pub(super) status: Region<'a>,
}

/// Where a pack puts rows and lists.
pub(super) struct Packed<'a> {
    /// Rows, or nothing for the lists alone.
    pub(super) x: Option<Region<'a>>,
    pub(super) scales: Region<'a>,
    pub(super) masked_m: &'a [Cell<i32>],
    pub(super) group_expert: &'a [Cell<i32>],
    pub(super) row_of: &'a [Cell<i32>],
    pub(super) row_index: &'a [Cell<i32>],
}

/// What a product reads and writes.
pub(super) struct Operands<'a> {
    pub(super) a: Region<'a>,
    /// Of fp8 rows.
    pub(super) a_scales: Option<Region<'a>>,
    pub(super) b: Region<'a>,
    pub(super) c: Region<'a>,
    pub(super) masked_m: &'a [Cell<i32>],
    pub(super) group_expert: &'a [Cell<i32>],
}

impl<'a> HostRank<'a> {
    /// With its regions and its status page.
    ///
    /// # Safety
    /// `d` is the descriptor of a rank of a group at a layer, and has the sizes with which the calls of the program are checked.
    pub(in crate::ep) unsafe fn new(d: RankDesc, regions: [Region<'a>; MAX_EP_RANKS], status: Region<'a>) -> Self {
        Self { d, regions, status }
    }

    /// A rank that is a group by itself.
    #[cfg(test)]
    pub(super) fn alone(d: RankDesc, region: &'a mut [u64], status: &'a mut [u64]) -> Self {
        // SAFETY: borrowed as long as this is.
        let [region, status] =
            [region, status].map(|words| unsafe { Region::new(words.as_mut_ptr() as u64, size_of_val(words) as u64) });
        Self { d, regions: [region; MAX_EP_RANKS], status }
    }

    pub(super) fn own(&self) -> Region<'a> {
        self.regions[self.d.rank as usize % MAX_EP_RANKS]
    }

    /// The region of a rank.
    pub(super) fn region(&self, number: u32) -> Region<'a> {
        self.regions[number as usize % MAX_EP_RANKS]
    }

    /// The regions of all ranks.
    pub(super) fn regions(&self) -> &[Region<'a>] {
        &self.regions[..self.d.world as usize]
    }

    pub(super) fn y_dtype(&self) -> Dtype {
        Dtype::from_code(self.d.dtype).unwrap_or(Dtype::Fp32)
    }

    /// Rows in which tokens can come.
    pub(super) fn slots(&self) -> u64 {
        u64::from(self.d.world) * u64::from(self.d.t_cap)
    }

    /// Rows of the grouped layout.
    pub(super) fn grouped_rows(&self) -> u64 {
        u64::from(self.d.groups) * u64::from(self.d.max_m)
    }

    fn entries(&self) -> u64 {
        self.slots() * u64::from(self.d.top_k)
    }

    /// Bytes of a row as the program has it.
    pub(super) fn source_bytes(&self) -> u32 {
        if self.d.wire == Wire::Quantised as u32 { self.d.y_bytes } else { self.d.x_bytes }
    }

    // ---- a dispatch: nmc_ep_dispatch_t ------------------------------------------------------------------------------------

    pub(super) fn tokens(&self, c: &CallArgs) -> u32 {
        if c.tokens_at.is_none() {
            return c.tokens;
        }
        // SAFETY: n_tokens_ptr is an int32.
        unsafe { c.tokens_at.region(4) }.get(0)
    }

    pub(super) fn x(&self, c: &CallArgs, tokens: u32) -> Region<'_> {
        // SAFETY: x is [n_tokens][hidden].
        unsafe { c.x.region(u64::from(tokens) * u64::from(self.source_bytes())) }
    }

    pub(super) fn scales(&self, c: &CallArgs, tokens: u32) -> Region<'_> {
        // SAFETY: scales is fp32 [n_tokens][hidden / 128]; only looked at if rows are given as fp8.
        unsafe { c.scales.region(4 * u64::from(tokens) * u64::from(self.d.scales)) }
    }

    pub(super) fn topk_idx(&self, c: &CallArgs, tokens: u32) -> Region<'_> {
        let bytes = if c.idx_64 != 0 { 8 } else { 4 };
        // SAFETY: topk_idx is [n_tokens][top_k] of int32, or of int64 if that was said.
        unsafe { c.idx.region(bytes * u64::from(tokens) * u64::from(self.d.top_k)) }
    }

    pub(super) fn topk_w(&self, c: &CallArgs, tokens: u32) -> Region<'_> {
        // SAFETY: topk_w is [n_tokens][top_k] of the type of weights.
        unsafe { c.weight.region(u64::from(self.d.weight_bytes) * u64::from(tokens) * u64::from(self.d.top_k)) }
    }

    // ---- a combine --------------------------------------------------------------------------------------------------------

    /// Rows to return, unless they are in place.
    pub(super) fn y_recv(&self, c: &CallArgs) -> Option<Region<'_>> {
        // SAFETY: y_recv of a combine is [world * t_cap][hidden].
        (!c.x.is_none()).then(|| unsafe { c.x.region(self.slots() * u64::from(self.d.y_bytes)) })
    }

    pub(super) fn out(&self, c: &CallArgs, tokens: u32) -> Region<'_> {
        // SAFETY: out of a combine is [n_tokens][hidden].
        unsafe { c.out.region(u64::from(tokens) * u64::from(self.d.y_bytes)) }
    }

    // ---- grouped rows: nmc_ep_grouped_t -----------------------------------------------------------------------------------

    pub(super) fn packed(&self, c: &CallArgs) -> Packed<'_> {
        let (groups, rows) = (u64::from(self.d.groups), self.grouped_rows());
        let pitch = u64::from(self.d.max_m.next_multiple_of(4));
        // SAFETY: the sizes of nmc_ep_bytes_t, which the header names for each of these.
        unsafe {
            Packed {
                x: (!c.out.is_none()).then(|| c.out.region(rows * u64::from(self.d.x_bytes))),
                scales: c.out_scales.region(4 * groups * u64::from(self.d.scales) * pitch),
                masked_m: c.masked_m.region(4 * groups).cells(),
                group_expert: c.group_expert.region(4 * groups).cells(),
                row_of: c.row_of.region(4 * self.entries()).cells(),
                row_index: c.row_index.region(4 * rows).cells(),
            }
        }
    }

    pub(super) fn y_grouped(&self, c: &CallArgs) -> Region<'_> {
        // SAFETY: y_grouped of a scatter is [groups][max_m][hidden].
        unsafe { c.grouped.region(self.grouped_rows() * u64::from(self.d.y_bytes)) }
    }

    pub(super) fn row_of(&self, c: &CallArgs) -> &[Cell<i32>] {
        // SAFETY: row_of is int32 [world * t_cap][top_k].
        unsafe { c.row_of.region(4 * self.entries()) }.cells()
    }

    /// Where a scatter puts the row of each slot: in memory of the program, or in place.
    pub(super) fn y_scattered(&self, c: &CallArgs) -> Region<'_> {
        let bytes = self.slots() * u64::from(self.d.y_bytes);
        if c.out.is_none() {
            return self.own().part(self.d.off_y, bytes);
        }
        // SAFETY: y_recv of a scatter is [world * t_cap][hidden].
        unsafe { c.out.region(bytes) }
    }

    // ---- the experts: nmc_ep_moe_t ----------------------------------------------------------------------------------------

    pub(super) fn operands(&self, g: &Gemm) -> Operands<'_> {
        let (n, k, rows, groups) = (u64::from(g.n), u64::from(g.k), self.grouped_rows(), u64::from(self.d.groups));
        let size = u64::from(self.y_dtype().bytes());
        let a_size = if g.a_scales.is_none() { size } else { 1 };
        let pitch = u64::from(self.d.max_m.next_multiple_of(4));
        // SAFETY: b is one of the two stacks of matrices, whose sizes the header names; the others are parts of the workspace, whose size
        // `layer` has checked for these numbers. Nobody else makes a `Gemm`.
        unsafe {
            Operands {
                a: g.a.region(rows * k * a_size),
                a_scales: (!g.a_scales.is_none()).then(|| g.a_scales.region(4 * groups * k.div_ceil(128) * pitch)),
                b: g.b.region(u64::from(self.d.n_local) * n * k * size),
                c: g.c.region(rows * n * size),
                masked_m: g.masked_m.region(4 * groups).cells(),
                group_expert: g.group_expert.region(4 * groups).cells(),
            }
        }
    }

    /// What the activation reads, what it writes, and the rows of each group.
    pub(super) fn activation(&self, a: &Activation) -> (Region<'_>, Region<'_>, &[Cell<i32>]) {
        let bytes = self.grouped_rows() * u64::from(a.inner) * u64::from(self.y_dtype().bytes());
        // SAFETY: parts of the workspace, whose size `layer` has checked for these columns; nobody else makes an `Activation`.
        unsafe {
            let masked_m = a.masked_m.region(4 * u64::from(self.d.groups)).cells();
            (a.gate_up.region(2 * bytes), a.act.region(bytes), masked_m)
        }
    }
}

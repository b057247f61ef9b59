//! The calls of a step: what the program asks for, and what one rank of a launch is given.

use super::sys::Given;

/// First half of a dispatch or combine.
pub(crate) const SEND: u32 = 1;
/// Second half.
pub(crate) const RECV: u32 = 2;
/// The whole of it.
pub(crate) const BOTH: u32 = SEND | RECV;

/// What a call does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallKind {
    /// Rows to the experts' ranks.
    Dispatch,
    /// Rows back, and their sum.
    Combine,
    /// Received rows into groups by expert.
    Pack,
    /// Rows of groups into one row a token.
    Scatter,
}

/// What one rank wants done; NmcEpCall in kernels/ep.cu.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct CallArgs {
    /// Dispatch: rows. Combine: rows to return, none if they are in place.
    pub(super) x: Given,
    /// Dispatch: scales of given fp8 rows.
    pub(super) scales: Given,
    /// Dispatch: expert numbers.
    pub(super) idx: Given,
    /// Dispatch: weights.
    pub(super) weight: Given,
    /// Dispatch: where the number of tokens is; none for `tokens`.
    pub(super) tokens_at: Given,
    /// Combine: rows. Pack: grouped rows. Scatter: rows, none for in place.
    pub(super) out: Given,
    /// Pack: grouped scales.
    pub(super) out_scales: Given,
    /// Pack: rows of each group.
    pub(super) masked_m: Given,
    /// Pack: expert of each group.
    pub(super) group_expert: Given,
    /// Pack and scatter: the row of each slot and entry.
    pub(super) row_of: Given,
    /// Pack: the slot of each row.
    pub(super) row_index: Given,
    /// Scatter: grouped rows.
    pub(super) grouped: Given,
    /// Dispatch: tokens.
    pub(super) tokens: u32,
    /// Whether expert numbers have 64 bits.
    pub(super) idx_64: u32,
    /// [`SEND`], [`RECV`] or [`BOTH`].
    pub(super) halves: u32,
    /// Whether to count tokens per expert.
    pub(super) count_load: u32,
}

/// A call, with its arguments checked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call {
    pub(super) kind: CallKind,
    pub(super) layer: u32,
    pub(super) args: CallArgs,
}

impl Call {
    /// Whether both can be in one launch.
    pub(super) fn goes_with(&self, other: &Self) -> bool {
        self.kind == other.kind && self.args.halves == other.args.halves
    }
}

/// The arguments of a dispatch.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Dispatch {
    /// Number of the layer; all ranks must say the same.
    pub(crate) layer: u32,
    /// Rows.
    pub(crate) x: Given,
    /// Scales of given fp8 rows.
    pub(crate) scales: Given,
    /// Expert numbers.
    pub(crate) idx: Given,
    /// Whether they have 64 bits.
    pub(crate) idx_64: bool,
    /// Weights.
    pub(crate) weight: Given,
    /// Tokens, unless `tokens_at` is given.
    pub(crate) tokens: u32,
    /// Where the number of tokens is, an int32; none for `tokens`.
    pub(crate) tokens_at: Given,
    /// [`SEND`], [`RECV`] or [`BOTH`].
    pub(crate) halves: u32,
}

/// Where grouped rows go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grouped {
    /// Rows `[groups][max_m]`; none for the lists alone.
    pub(crate) x: Given,
    /// Scales `[groups][scales][max_m rounded up to 4]`.
    pub(crate) scales: Given,
    /// Rows of each group.
    pub(crate) masked_m: Given,
    /// Expert of each group.
    pub(crate) group_expert: Given,
    /// Row of each slot and entry, or -1.
    pub(crate) row_of: Given,
    /// Slot of each row, or -1.
    pub(crate) row_index: Given,
}

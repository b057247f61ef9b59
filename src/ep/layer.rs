//! A whole MoE layer as the program wants it, and its steps between the tokens' coming and going: where their buffers lie in the
//! program's workspace, and what is done with them.

use super::calls::{Dispatch, Grouped};
use super::sys::{Given, Workspace};
use crate::base::error::Result;
use crate::layout::ep::Shape;

/// Most columns between the products.
pub(crate) const MAX_INNER: u32 = 1 << 20;

/// A product of a layer, whose memory has the sizes that its numbers say: only [`Steps::of`] makes one, when it has checked the workspace.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gemm(Product);

impl std::ops::Deref for Gemm {
    type Target = Product;

    fn deref(&self) -> &Product {
        &self.0
    }
}

/// The activation between the products; the same goes for it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Activation(Between);

impl std::ops::Deref for Activation {
    type Target = Between;

    fn deref(&self) -> &Between {
        &self.0
    }
}

impl Activation {
    /// Of a test, whose memory has these sizes.
    #[cfg(test)]
    pub(super) fn of_test(between: Between) -> Self {
        Self(between)
    }
}

/// Of rows of `inner` columns each of a gate and of what it lets through, one after the other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Between {
    /// Rows `[groups][max_m][2 * inner]`.
    pub(crate) gate_up: Given,
    /// Rows `[groups][max_m][inner]`.
    pub(crate) act: Given,
    /// Rows of each group.
    pub(crate) masked_m: Given,
    /// Columns of the result.
    pub(crate) inner: u32,
}

/// `c[g][r] = a[g][r] * b[group_expert[g]]^T` for the rows `r < masked_m[g]`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Product {
    /// 0 for gate and up, 1 for down.
    pub(crate) which: u32,
    /// Rows `[groups][max_m][k]`.
    pub(crate) a: Given,
    /// Scales of `a`, none unless it is fp8.
    pub(crate) a_scales: Given,
    /// Matrices `[n_local][n][k]`; none if the engine keeps them.
    pub(crate) b: Given,
    /// Rows `[groups][max_m][n]`.
    pub(crate) c: Given,
    /// Rows of each group.
    pub(crate) masked_m: Given,
    /// Expert of each group.
    pub(crate) group_expert: Given,
    /// Columns of the result.
    pub(crate) n: u32,
    /// Columns of `a`.
    pub(crate) k: u32,
}

/// The engine's product.
pub(crate) type GemmFn<'a> = &'a dyn Fn(&Gemm) -> Result<()>;

/// What a layer is computed from.
pub(crate) struct Layer<'a> {
    /// Tokens and where they go.
    pub(crate) dispatch: Dispatch,
    /// Gate and up matrices `[n_local][2 * inner][hidden]`.
    pub(crate) w13: Given,
    /// Down matrices `[n_local][hidden][inner]`.
    pub(crate) w2: Given,
    /// Columns between the products.
    pub(crate) inner: u32,
    /// [`Parts`] of memory for what is between the steps.
    pub(crate) workspace: Workspace,
    /// Result rows.
    pub(crate) out: Given,
    /// The engine's product, or the library's.
    pub(crate) gemm: Option<GemmFn<'a>>,
}

/// Where the buffers of a layer are in its workspace: grouped rows and their scales, the result of the first product, the same
/// after the activation, the result of the second, and the lists of [`Grouped`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Parts {
    x: u64,
    scales: u64,
    gate_up: u64,
    act: u64,
    y: u64,
    masked_m: u64,
    group_expert: u64,
    row_of: u64,
    row_index: u64,
    /// Bytes of all.
    pub(crate) bytes: u64,
}

impl Parts {
    /// The parts for `inner` columns between the products; 0 for a workspace without them.
    pub(crate) fn of(shape: &Shape, inner: u32) -> Self {
        let rows = u64::from(shape.groups()) * u64::from(shape.max_m);
        let element = u64::from(shape.dtype.bytes());
        let mut at = 0u64;
        let mut take = |bytes: u64| {
            let begin = at;
            at += bytes.next_multiple_of(256);
            begin
        };
        let x = take(rows * u64::from(shape.x_bytes()));
        let pitch = u64::from(shape.max_m.next_multiple_of(4));
        let scales = take(4 * u64::from(shape.groups()) * u64::from(shape.scales()) * pitch);
        let masked_m = take(4 * u64::from(shape.groups()));
        let group_expert = take(4 * u64::from(shape.groups()));
        let row_of = take(4 * shape.slots() * u64::from(shape.top_k));
        let row_index = take(4 * rows);
        let gate_up = take(rows * 2 * u64::from(inner) * element);
        let act = take(rows * u64::from(inner) * element);
        let y = take(rows * u64::from(shape.y_bytes()));
        Self { x, scales, gate_up, act, y, masked_m, group_expert, row_of, row_index, bytes: at }
    }
}

/// What is done between a dispatch and its combine, in a workspace that has room for it.
pub(super) struct Steps {
    /// Where received rows are grouped.
    pub(super) grouped: Grouped,
    /// Gate and up.
    pub(super) first: Gemm,
    pub(super) between: Activation,
    /// Down.
    pub(super) second: Gemm,
}

impl Steps {
    /// Fails unless the workspace has room for a layer of this shape.
    pub(super) fn of(shape: &Shape, layer: &Layer<'_>) -> Result<Self> {
        if layer.inner == 0 || !layer.inner.is_multiple_of(16 / shape.dtype.bytes()) || layer.inner > MAX_INNER {
            crate::bail!(
                NMC_ERR_INVALID_ARG,
                "inner {} is not a multiple of {} up to {MAX_INNER}",
                layer.inner,
                16 / shape.dtype.bytes()
            );
        }
        let parts = Parts::of(shape, layer.inner);
        let workspace = layer.workspace.first().address();
        if layer.workspace.bytes() < parts.bytes || !workspace.is_multiple_of(256) || workspace == 0 {
            crate::bail!(
                NMC_ERR_INVALID_ARG,
                "the workspace at {workspace:#x} with {} bytes is not aligned to 256 with {} bytes (nmc_ep_bytes_needed)",
                layer.workspace.bytes(),
                parts.bytes
            );
        }
        let at = |offset: u64| layer.workspace.at(offset);
        let grouped = Grouped {
            x: at(parts.x)?,
            scales: if shape.scales() > 0 { at(parts.scales)? } else { Given::NONE },
            masked_m: at(parts.masked_m)?,
            group_expert: at(parts.group_expert)?,
            row_of: at(parts.row_of)?,
            row_index: at(parts.row_index)?,
        };
        let first = Product {
            which: 0,
            a: grouped.x,
            a_scales: grouped.scales,
            b: layer.w13,
            c: at(parts.gate_up)?,
            masked_m: grouped.masked_m,
            group_expert: grouped.group_expert,
            n: 2 * layer.inner,
            k: shape.hidden,
        };
        let second = Product {
            which: 1,
            a: at(parts.act)?,
            a_scales: Given::NONE,
            b: layer.w2,
            c: at(parts.y)?,
            n: shape.hidden,
            k: layer.inner,
            ..first
        };
        let between = Between { gate_up: first.c, act: second.a, masked_m: grouped.masked_m, inner: layer.inner };
        Ok(Self { grouped, first: Gemm(first), between: Activation(between), second: Gemm(second) })
    }
}

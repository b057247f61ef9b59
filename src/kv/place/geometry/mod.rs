//! Where every element of a KV cache lies: the layout of one arena as an order of six axes, and from it offsets, strides,
//! 4-D views for kernels and the pieces of a block for transfers. Numbers only: nothing here touches memory.
//! The arena is dense, so a [`Geometry`] is proof that every offset it gives is below [`Geometry::bytes`] and fits `isize`.
//! Every layer above may use it.
//!
//! A view is 4-D, `[blocks, heads, tokens, dim]`: the tokens of a head go on in the next block, which is a block's stride
//! away and not a token's, so no `[heads, tokens, dim]` describes more than one block.

mod shape;
mod view;

pub use shape::{Dtype, Kind, Order, Shape, Side, Sides, Strides};
pub use view::{Extent, Pieces, View};

use crate::bail;
use crate::base::error::Result;
use shape::{Axis, axes};

/// Most blocks of an arena: block tables hold 32-bit signed numbers.
pub const MAX_BLOCKS: u64 = 1 << 31;
/// Most bytes of an arena: what a pointer difference can hold.
pub const MAX_BYTES: u64 = isize::MAX as u64;

/// A checked layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    shape: Shape,
    heads: u64,
    tokens: u64,
    dim: u64,
    sides: u64,
    element_bytes: u64,
    strides: Strides,
    bytes: u64,
    /// Product of the axes outside the blocks: how many pieces a block has as long as it has neighbours.
    outer: u64,
}

impl Geometry {
    /// Checks the numbers and lays the arena out.
    pub fn new(shape: Shape) -> Result<Self> {
        let (heads, tokens, dim, element_bytes) = match shape.kind {
            Kind::Recurrent { state_bytes } => {
                let limits = [("state_bytes", state_bytes, MAX_BYTES)];
                positive(&limits)?;
                (1, 1, state_bytes, 1)
            }
            Kind::Full | Kind::Mla => {
                let word = u64::from(u32::MAX);
                let limits = [
                    ("kv_heads", u64::from(shape.kv_heads), word),
                    ("head_dim", u64::from(shape.head_dim), word),
                    ("bytes of an element", shape.dtype.bytes(), word),
                ];
                positive(&limits)?;
                if shape.kind == Kind::Mla && shape.kv_heads != 1 {
                    bail!(NMC_ERR_INVALID_ARG, "kv_heads is {}; a latent (MLA) cache has 1", shape.kv_heads);
                }
                let [heads, tokens, dim] = [shape.kv_heads, shape.tokens_per_block, shape.head_dim].map(u64::from);
                (heads, tokens, dim, shape.dtype.bytes())
            }
        };
        positive(&[
            ("layers", u64::from(shape.layers), u64::from(u32::MAX)),
            ("tokens_per_block", u64::from(shape.tokens_per_block), u64::from(u32::MAX)),
            ("total_blocks", shape.total_blocks, MAX_BLOCKS),
        ])?;
        let sides = if shape.kind == Kind::Full { 2 } else { 1 };
        let mut made =
            Self { shape, heads, tokens, dim, sides, element_bytes, strides: Strides::default(), bytes: 0, outer: 1 };
        made.lay_out()?;
        Ok(made)
    }

    /// Gives every axis, from the innermost out, the bytes that lie inside it as its stride.
    fn lay_out(&mut self) -> Result<()> {
        let mut inside = self.element_bytes;
        let mut outside_blocks = false;
        for axis in axes(self.shape.order, self.shape.sides).into_iter().rev() {
            let count = self.count(axis);
            *self.stride_mut(axis) = inside;
            inside = match inside.checked_mul(count) {
                Some(bytes) if bytes <= MAX_BYTES => bytes,
                _ => return Err(self.too_large()),
            };
            if outside_blocks {
                self.outer *= count;
            }
            outside_blocks |= axis == Axis::Block;
        }
        if self.sides == 1 {
            self.strides.side = 0;
        }
        self.bytes = inside;
        Ok(())
    }

    fn too_large(&self) -> crate::base::error::Error {
        let Self { heads, tokens, dim, sides, element_bytes, .. } = self;
        let (layers, blocks) = (self.shape.layers, self.shape.total_blocks);
        crate::base::error::Error::new(
            crate::base::status::NMC_ERR_INVALID_ARG,
            format!(
                "{layers} layers of {blocks} blocks of {heads} heads, {tokens} tokens and {dim} elements of \
                 {element_bytes} bytes, {sides} times (K and V), pass the limit of {MAX_BYTES} bytes"
            ),
        )
    }

    const fn count(&self, axis: Axis) -> u64 {
        match axis {
            Axis::Layer => self.shape.layers as u64,
            Axis::Side => self.sides,
            Axis::Block => self.shape.total_blocks,
            Axis::Head => self.heads,
            Axis::Token => self.tokens,
            Axis::Dim => self.dim,
        }
    }

    const fn stride_mut(&mut self, axis: Axis) -> &mut u64 {
        match axis {
            Axis::Layer => &mut self.strides.layer,
            Axis::Side => &mut self.strides.side,
            Axis::Block => &mut self.strides.block,
            Axis::Head => &mut self.strides.head,
            Axis::Token => &mut self.strides.token,
            Axis::Dim => &mut self.strides.dim,
        }
    }

    /// What it was made from.
    #[must_use]
    pub const fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Bytes of the arena.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of one block: all its layers, K and V.
    #[must_use]
    pub const fn block_bytes(&self) -> u64 {
        self.bytes / self.shape.total_blocks
    }

    /// Bytes of an element; 1 for a recurrent state.
    #[must_use]
    pub const fn element_bytes(&self) -> u64 {
        self.element_bytes
    }

    /// Tensors of a layer: 2 with V, else 1.
    #[must_use]
    pub const fn side_count(&self) -> u64 {
        self.sides
    }

    /// The distances along the axes.
    #[must_use]
    pub const fn strides(&self) -> &Strides {
        &self.strides
    }

    /// Where the token with this number, from 0, lies in its sequence: the number of the block and the place in it.
    #[must_use]
    pub const fn locate(&self, token: u64) -> (u64, u64) {
        let per_block = self.shape.tokens_per_block as u64;
        (token / per_block, token % per_block)
    }

    /// Byte offset of an element. Indices are the caller's to check ([`Geometry::check`]): one that is out of range gives
    /// the offset of another element, or one outside the arena.
    #[must_use]
    #[inline]
    pub const fn offset(&self, layer: u32, side: Side, block: u32, head: u32, token: u32, dim: u64) -> u64 {
        let side = match side {
            Side::K => 0,
            Side::V => self.strides.side,
        };
        // Wrapping, so that a wrong index is a wrong number and not a panic.
        side.wrapping_add((layer as u64).wrapping_mul(self.strides.layer))
            .wrapping_add((block as u64).wrapping_mul(self.strides.block))
            .wrapping_add((head as u64).wrapping_mul(self.strides.head))
            .wrapping_add((token as u64).wrapping_mul(self.strides.token))
            .wrapping_add(dim.wrapping_mul(self.strides.dim))
    }

    /// Fails unless the layer and the side exist and the `count` blocks from `first` on, at least one, lie in the arena.
    pub fn check(&self, layer: u32, side: Side, first: u32, count: u32) -> Result<()> {
        if layer >= self.shape.layers {
            bail!(NMC_ERR_INVALID_ARG, "layer {layer} does not exist; there are {}", self.shape.layers);
        }
        if side == Side::V && self.sides == 1 {
            bail!(NMC_ERR_INVALID_ARG, "there is no V in a cache of kind {:?}; its one tensor is K", self.shape.kind);
        }
        self.check_blocks(first, count)
    }

    fn check_blocks(&self, first: u32, count: u32) -> Result<()> {
        let total = self.shape.total_blocks;
        if count == 0 || u64::from(first) + u64::from(count) > total {
            bail!(NMC_ERR_INVALID_ARG, "{count} blocks from {first} on are none or not all below {total}");
        }
        Ok(())
    }

    /// The `count` blocks from `first` on, in one layer.
    pub fn run_view(&self, layer: u32, side: Side, first: u32, count: u32) -> Result<View> {
        self.check(layer, side, first, count)?;
        Ok(self.view(layer, side, first, u64::from(count)))
    }

    /// All blocks of a layer: what a kernel indexes through a block table.
    pub fn layer_view(&self, layer: u32, side: Side) -> Result<View> {
        self.check(layer, side, 0, 1)?;
        Ok(self.view(layer, side, 0, self.shape.total_blocks))
    }

    const fn view(&self, layer: u32, side: Side, first: u32, count: u64) -> View {
        let Strides { block, head, token, dim, .. } = self.strides;
        View {
            offset: self.offset(layer, side, first, 0, 0, 0),
            shape: [count, self.heads, self.tokens, self.dim],
            strides: [block, head, token, dim],
            element_bytes: self.element_bytes,
        }
    }

    /// Contiguous pieces that make up one block.
    #[must_use]
    pub const fn pieces_per_block(&self) -> u64 {
        if self.shape.total_blocks == 1 { 1 } else { self.outer }
    }

    /// Bytes of each of them.
    #[must_use]
    pub const fn piece_bytes(&self) -> u64 {
        self.block_bytes() / self.pieces_per_block()
    }

    /// The pieces of a block in these layers; none if there are no layers.
    #[must_use]
    pub fn pieces(&self, layers: core::ops::Range<u32>) -> Pieces {
        let Strides { layer, side, block, head, .. } = self.strides;
        let heads = if self.shape.order == Order::HeadMajor { self.heads } else { 1 };
        let count = u64::from(layers.end.saturating_sub(layers.start));
        if count == 0 {
            return Pieces { offset: 0, block, bytes: 0, axes: [(0, 0), (1, 0), (1, 0)] };
        }
        let mut bytes = self.block_bytes() / u64::from(self.shape.layers) / self.sides / heads;
        let mut axes = [(1, 0); 3];
        // The place of the axis that is being filled, from the innermost out.
        let mut at = 2;
        for (count, stride) in [(heads, head), (self.sides, side), (count, layer)] {
            let (inner, step) = axes[at];
            if count == 1 {
                continue;
            } else if inner == 1 && stride == bytes {
                bytes *= count;
            } else if inner == 1 {
                axes[at] = (count, stride);
            } else if stride == inner * step {
                axes[at].0 = inner * count;
            } else {
                at -= 1;
                axes[at] = (count, stride);
            }
        }
        Pieces { offset: u64::from(layers.start) * layer, block, bytes, axes }
    }
}

fn positive(limits: &[(&str, u64, u64)]) -> Result<()> {
    for &(name, value, limit) in limits {
        if value == 0 || value > limit {
            bail!(NMC_ERR_INVALID_ARG, "{name} is {value}; it must be from 1 to {limit}");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;

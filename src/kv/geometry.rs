//! Where every element of a KV cache lies: the layout of one arena as an order of six axes, and from it offsets, strides,
//! 4-D views for kernels and the pieces of a block for transfers. Numbers only: nothing here touches memory.
//! The arena is dense, so a [`Geometry`] is proof that every offset it gives is below [`Geometry::bytes`] and fits `isize`.
//! Every layer above may use it.
//!
//! A view is 4-D, `[blocks, heads, tokens, dim]`: the tokens of a head go on in the next block, which is a block's stride
//! away and not a token's, so no `[heads, tokens, dim]` describes more than one block.

use crate::bail;
use crate::base::error::Result;

/// Most blocks of an arena: block tables hold 32-bit signed numbers.
pub const MAX_BLOCKS: u64 = 1 << 31;
/// Most bytes of an arena: what a pointer difference can hold.
pub const MAX_BYTES: u64 = isize::MAX as u64;

/// Type of an element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// 32-bit float.
    Fp32,
    /// 16-bit brain float.
    Bf16,
    /// 16-bit float.
    Fp16,
    /// 8-bit float of either kind.
    Fp8,
    /// 8-bit integer.
    Int8,
    /// Elements of this many bytes that the library knows nothing else about.
    Raw(u32),
}

impl Dtype {
    /// Bytes of an element.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Fp32 => 4,
            Self::Bf16 | Self::Fp16 => 2,
            Self::Fp8 | Self::Int8 => 1,
            Self::Raw(bytes) => bytes as u64,
        }
    }
}

/// What a layer keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Keys and values.
    Full,
    /// One latent vector for each token (multi-head latent attention): one head, no V.
    Mla,
    /// One state for each slot, opaque to the library: a block is a slot. It has no heads, tokens or elements: the view of a
    /// slot is `[1, 1, 1, state_bytes]` in bytes, and `dtype`, `kv_heads`, `head_dim` do not matter.
    Recurrent {
        /// Bytes of one state of one layer.
        state_bytes: u64,
    },
}

/// Order of the axes, outermost first. Where K and V come in is [`Sides`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Order {
    /// `[layers, blocks, heads, tokens, dim]`.
    LayerMajor,
    /// `[heads, layers, blocks, tokens, dim]`.
    HeadMajor,
    /// `[layers, blocks, tokens, heads, dim]`, called NHD by attention kernels.
    LayerMajorNhd,
    /// `[blocks, layers, heads, tokens, dim]`: a block is one piece, which suits transfers, and the arena grows in place.
    BlockMajor,
}

/// Where the axis of K and V stands among the others. Kinds without V have no such axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sides {
    /// Outermost: two tensors, all of K and then all of V.
    Separate,
    /// Right inside the layers: `[layers, 2, blocks, ...]`, and `[blocks, layers, 2, ...]` for [`Order::BlockMajor`].
    PerLayer,
    /// Right inside the blocks: `[layers, blocks, 2, ...]`, and `[blocks, 2, layers, ...]` for [`Order::BlockMajor`].
    PerBlock,
}

/// K or V. A kind with one tensor calls it K.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// Keys, the latent vectors, or the state.
    K,
    /// Values.
    V,
}

/// What a geometry is made from. Comes from outside; [`Geometry::new`] checks it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    /// What a layer keeps.
    pub kind: Kind,
    /// Type of an element.
    pub dtype: Dtype,
    /// Layers.
    pub layers: u32,
    /// Heads of K and of V.
    pub kv_heads: u32,
    /// Elements of a head's vector.
    pub head_dim: u32,
    /// Tokens of a block.
    pub tokens_per_block: u32,
    /// Blocks of the arena.
    pub total_blocks: u64,
    /// Order of the axes.
    pub order: Order,
    /// Place of K and V among them.
    pub sides: Sides,
}

/// Distance in bytes between neighbours along each axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Strides {
    /// From a layer to the next.
    pub layer: u64,
    /// From K to V; 0 for a kind without V.
    pub side: u64,
    /// From a block to the next.
    pub block: u64,
    /// From a head to the next.
    pub head: u64,
    /// From a token to the next.
    pub token: u64,
    /// From an element to the next: its size.
    pub dim: u64,
}

/// A 4-D tensor in the arena, axes `[blocks, heads, tokens, dim]` whatever their order in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct View {
    /// Byte offset of element `[0, 0, 0, 0]` in the arena.
    pub offset: u64,
    /// Lengths of the axes.
    pub shape: [u64; 4],
    /// Distances along the axes in bytes.
    pub strides: [u64; 4],
    /// Bytes of an element.
    pub element_bytes: u64,
}

impl View {
    /// Distances along the axes in elements, as tensor libraries count them.
    #[must_use]
    pub fn element_strides(&self) -> [u64; 4] {
        self.strides.map(|s| s / self.element_bytes)
    }

    /// Byte offset in the arena of an element of the view; `None` outside of it.
    #[must_use]
    pub fn at(&self, index: [u64; 4]) -> Option<u64> {
        let inside = index.iter().zip(&self.shape).all(|(i, n)| i < n);
        inside.then(|| self.offset + index.iter().zip(&self.strides).map(|(i, s)| i * s).sum::<u64>())
    }
}

/// A contiguous piece of the arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Extent {
    /// Byte offset in the arena.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// The pieces of a run of blocks, in the order of their offsets.
#[derive(Debug, Clone)]
pub struct Extents {
    next: Extent,
    step: u64,
    left: u64,
}

impl Iterator for Extents {
    type Item = Extent;

    fn next(&mut self) -> Option<Extent> {
        self.left = self.left.checked_sub(1)?;
        let found = self.next;
        // The step after the last piece may pass the end of the arena, never 2^64: both are below 2^63.
        self.next.offset += self.step;
        Some(found)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = usize::try_from(self.left).unwrap_or(usize::MAX);
        (left, Some(left))
    }
}

impl ExactSizeIterator for Extents {}

/// The pieces of a block in the order in which it is kept outside of an arena: layer after layer, in a layer K and then V, in
/// each of them the heads if the arena keeps those apart. So blocks of arenas whose axes have other orders are alike, and a
/// few numbers describe all pieces of all blocks. Neighbours are one piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pieces {
    /// Offset of the first piece of block 0.
    pub offset: u64,
    /// Distance between blocks.
    pub block: u64,
    /// Bytes of a piece.
    pub bytes: u64,
    /// How many pieces there are along each axis, the outermost first, and the distances.
    pub axes: [(u64, u64); 3],
}

impl Pieces {
    /// Pieces of a block.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.axes.iter().map(|(count, _)| count).product()
    }

    /// The pieces of one block.
    pub fn extents(self, block: u32) -> impl Iterator<Item = Extent> {
        let [outer, middle, inner] = self.axes;
        let first = self.offset + u64::from(block) * self.block;
        (0..self.count()).map(move |piece| {
            let (high, low) = (piece / inner.0, piece % inner.0);
            let offset = first + high / middle.0 * outer.1 + high % middle.0 * middle.1 + low * inner.1;
            Extent { offset, bytes: self.bytes }
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Axis {
    Layer,
    Side,
    Block,
    Head,
    Token,
    Dim,
}

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

    /// Whether an arena of the same shape with more blocks has every block of this one at the same offsets.
    #[must_use]
    pub const fn grows_in_place(&self) -> bool {
        self.outer == 1
    }

    /// Blocks that hold `tokens` tokens. A recurrent state counts a slot for each `tokens_per_block` tokens as well.
    #[must_use]
    pub const fn blocks_for(&self, tokens: u64) -> u64 {
        tokens.div_ceil(self.shape.tokens_per_block as u64)
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

    /// The contiguous pieces of a block. One after the other they are the block's bytes in an order that does not depend
    /// on how many blocks the arena has, so that arenas that differ in this alone can exchange blocks.
    pub fn block_extents(&self, block: u32) -> Result<Extents> {
        self.run_extents(block, 1)
    }

    /// The contiguous pieces of the `count` blocks from `first` on. Pieces of neighbours are one.
    pub fn run_extents(&self, first: u32, count: u32) -> Result<Extents> {
        self.check_blocks(first, count)?;
        // Everything outside the blocks is dense, so its axes are one axis of this stride.
        let step = self.strides.block * self.shape.total_blocks;
        let bytes = self.strides.block * u64::from(count);
        let offset = self.strides.block * u64::from(first);
        if bytes == step {
            return Ok(Extents { next: Extent { offset: 0, bytes: self.bytes }, step: 0, left: 1 });
        }
        Ok(Extents { next: Extent { offset, bytes }, step, left: self.outer })
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

fn axes(order: Order, sides: Sides) -> [Axis; 6] {
    use Axis::{Block, Dim, Head, Layer, Side, Token};
    let plain = match order {
        Order::LayerMajor => [Layer, Block, Head, Token, Dim],
        Order::HeadMajor => [Head, Layer, Block, Token, Dim],
        Order::LayerMajorNhd => [Layer, Block, Token, Head, Dim],
        Order::BlockMajor => [Block, Layer, Head, Token, Dim],
    };
    let after = |axis| plain.iter().position(|a| *a == axis).map_or(0, |at| at + 1);
    let place = match sides {
        Sides::Separate => 0,
        Sides::PerLayer => after(Layer),
        Sides::PerBlock => after(Block),
    };
    let mut all = [Side; 6];
    all[..place].copy_from_slice(&plain[..place]);
    all[place + 1..].copy_from_slice(&plain[place..]);
    all
}

#[cfg(test)]
mod tests;

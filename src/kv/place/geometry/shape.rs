//! What the layout of an arena is made from: types, kinds, and the order of the axes.

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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Axis {
    Layer,
    Side,
    Block,
    Head,
    Token,
    Dim,
}

/// The axes, outermost first.
pub(super) fn axes(order: Order, sides: Sides) -> [Axis; 6] {
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

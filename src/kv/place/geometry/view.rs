//! What kernels and transfers are told of an arena: tensors in it, and the contiguous pieces of its blocks.

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

//! How blocks are kept in a store: one object a block, with all groups, layers and sides one after the other, so caches whose
//! arenas differ in the order of these, or in size, can exchange blocks. Its key is the layout and the hash of the block.
//! What a group with blocks of its own has for a block of the index, a part of a window or a state, is an object beside it.

use crate::base::error::Result;
use crate::base::memory::{self, Text};
use crate::kv::block::NONE;
use crate::kv::hash::BlockHash;
use crate::kv::place::arena::{Arena, Group};
use crate::kv::place::geometry::Order;
use crate::store::copy::Slice;
use std::fmt::Write as _;
use std::ops::Range;

/// The key of a block's object.
pub type Key = [u8; 26];

/// What must be equal for two caches to exchange blocks of these groups: everything but the order of layers, K and V, and
/// the sizes.
fn fingerprint<'a>(mut groups: impl Iterator<Item = &'a Group>) -> Result<u64> {
    let mut text = Text::default();
    let written = groups.try_for_each(|group| {
        let shape = group.geometry().shape();
        let tokens_first = shape.order == Order::LayerMajorNhd;
        let numbers = (shape.layers, shape.kv_heads, shape.head_dim, shape.tokens_per_block);
        write!(text, "{:?} {:?} {numbers:?} {tokens_first};", shape.kind, shape.dtype)?;
        // Part of the keys that are in stores.
        if group.own_group() == NONE { Ok(()) } else { write!(text, "side {}", group.own_group()) }
    });
    Ok(xxhash_rust::xxh64::xxh64(text.finish(written)?.as_bytes(), 0))
}

/// The groups of a cache, as a store sees them.
pub struct Codec {
    arena: Arena,
    /// What blocks must have in common to be exchanged.
    fingerprint: u64,
    /// The same for each group with blocks of its own.
    own_fingerprints: Vec<u64>,
}

impl Codec {
    /// All groups must have memory.
    pub fn new(arena: Arena, own_groups: usize) -> Result<Self> {
        if arena.groups().is_empty() || arena.groups().iter().any(|group| group.memory().is_none()) {
            crate::bail!(NMC_ERR_INVALID_ARG, "the cache does not know its memory: set groups with memory");
        }
        let own_groups = u32::try_from(own_groups).unwrap_or(0);
        Ok(Self {
            fingerprint: fingerprint(arena.of(NONE))?,
            own_fingerprints: memory::try_collect((0..own_groups).map(|number| fingerprint(arena.of(number))))?,
            arena,
        })
    }

    /// The memory of the blocks.
    pub const fn arena(&self) -> &Arena {
        &self.arena
    }

    /// How many groups have blocks of their own.
    pub fn own_groups(&self) -> usize {
        self.own_fingerprints.len()
    }

    /// The layers of the groups that share blocks.
    pub fn layers(&self) -> u32 {
        self.arena.of(NONE).map(|group| group.geometry().shape().layers).sum()
    }

    pub fn key(&self, own_group: u32, hash: BlockHash) -> Key {
        let fingerprint = self.own_fingerprints.get(own_group as usize).unwrap_or(&self.fingerprint);
        let mut key = *b"kv........................";
        key[2..10].copy_from_slice(&fingerprint.to_le_bytes());
        key[10..].copy_from_slice(&hash.0);
        key
    }

    /// Bytes of a block's object.
    pub fn block_bytes(&self, own_group: u32) -> u64 {
        self.arena.of(own_group).map(|group| group.geometry().block_bytes()).sum()
    }

    /// Where layers of a block lie, counted through all its groups, in the order of its bytes in the store.
    pub fn slices(&self, own_group: u32, block: u32, layers: Range<u32>, out: &mut Vec<Slice>) -> Result<()> {
        let mut first = 0;
        for group in self.arena.of(own_group) {
            let shape = group.geometry().shape();
            let own = layers.start.max(first) - first..layers.end.min(first + shape.layers).max(first) - first;
            let pieces = group.geometry().pieces(own);
            memory::reserve(out, usize::try_from(pieces.count()).unwrap_or(usize::MAX))?;
            for piece in pieces.extents(block) {
                out.push(group.slice(piece.offset, piece.bytes)?);
            }
            first += shape.layers;
        }
        Ok(())
    }
}

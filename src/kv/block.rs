//! What the pool knows about each block, with what the eviction policies keep of it: 40 bytes, the hash and the chain of
//! the index side by side. Pure; the pool's lock guards it.

use super::hash::BlockHash;
use crate::alloc::policy::{self, Entry, Links, ListId};

/// No block: the end of a list or chain, the parent of a first block, or a hole in a sequence.
pub const NONE: u32 = policy::NONE;

/// Bits of [`Info::flags`].
const PUBLISHED: u8 = 0x80;
const LISTED: u8 = 0x40;
/// The number of the list, of which no policy has more than 16.
const LIST: u8 = 0x0f;

/// One block that more than one sequence may use, now or later. A block that is private to a sequence has none of this.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Info {
    /// Name of the block, while it is published or the double of one that is, and after that as long as it is held.
    pub hash: BlockHash,
    /// The next published block of the same bucket of the index.
    pub chain: u32,
    /// Sequences and pins that hold the block.
    pub refs: u32,
    links: Links,
    /// The published block whose tokens come before these, or [`NONE`].
    pub parent: u32,
    /// Published blocks whose parent this is; a block with children is never evicted.
    pub children: u16,
    /// What the policy remembers: uses, or the priority.
    pub heat: u8,
    flags: u8,
}

impl Info {
    pub const NEW: Self = Self {
        hash: BlockHash([0; 16]),
        chain: NONE,
        refs: 0,
        links: Links::NONE,
        parent: NONE,
        children: 0,
        heat: 0,
        flags: 0,
    };

    /// A block that one has.
    pub const fn held_once() -> Self {
        Self { refs: 1, ..Self::NEW }
    }

    /// Whether the index knows the block.
    pub const fn is_published(&self) -> bool {
        self.flags & PUBLISHED != 0
    }

    pub fn set_published(&mut self, published: bool) {
        self.flags = self.flags & !PUBLISHED | if published { PUBLISHED } else { 0 };
    }

    /// The block after it in its list, or [`NONE`].
    pub const fn next(&self) -> u32 {
        self.links.next
    }

    /// Whether it can go: nobody holds it and nothing published builds on it.
    pub const fn is_evictable(&self) -> bool {
        self.refs == 0 && self.children == 0
    }
}

impl Entry for Info {
    #[inline]
    fn links(&self) -> Links {
        self.links
    }

    #[inline]
    fn links_mut(&mut self) -> &mut Links {
        &mut self.links
    }

    #[inline]
    fn list(&self) -> Option<ListId> {
        (self.flags & LISTED != 0).then_some(ListId((self.flags & LIST).into()))
    }

    #[inline]
    fn set_list(&mut self, list: Option<ListId>) {
        #[allow(clippy::cast_possible_truncation, reason = "there are at most 16")]
        let bits = list.map_or(0, |list| LISTED | list.0 as u8 & LIST);
        self.flags = self.flags & PUBLISHED | bits;
    }

    #[inline]
    fn heat(&self) -> u8 {
        self.heat
    }

    #[inline]
    fn set_heat(&mut self, heat: u8) {
        self.heat = heat;
    }
}

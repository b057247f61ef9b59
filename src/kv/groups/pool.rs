//! The blocks of one group of layers that does not keep every token. They have numbers of their own, since a sequence needs
//! far fewer of these than of the others. Guarantees: a block is free, held by exactly
//! `refs` holders, or idle: it belongs to a block of the prefix index, its owner, and lets a later sequence begin
//! there. It goes when its owner leaves the index, or, the one idle longest first, when room is needed. The pool's
//! lock guards it.

use super::{GroupStats, OwnGroup, OwnKind};
use crate::alloc::policy::{Entry as _, List, ListId, list};
use crate::base::error::Result;
use crate::base::memory;
use crate::kv::block::{Info, NONE};
use crate::kv::error::{Room, audit_found};

/// The one list: idle blocks, the one idle longest first.
const IDLE: ListId = ListId(0);

/// The blocks of one group of layers.
pub struct GroupPool {
    kind: OwnKind,
    tokens_per_block: u32,
    /// Of each block its holders and, as `parent`, its owner.
    info: Vec<Info>,
    free: Vec<u32>,
    idle: [List; 1],
    /// The block that belongs to each block of the index, or [`NONE`].
    peers: Vec<u32>,
    evicted: u64,
}

/// The first block that the next token after `tokens` still sees.
pub const fn first_seen(tokens: u32, window: u32, tokens_per_block: u32) -> u32 {
    tokens.saturating_add(1).saturating_sub(window) / tokens_per_block
}

/// The first of `blocks` full blocks that the token after them still sees.
pub fn seen_from(blocks: usize, window: u32, tokens_per_block: u32) -> usize {
    let tokens = u32::try_from(blocks).unwrap_or(u32::MAX).saturating_mul(tokens_per_block);
    first_seen(tokens, window, tokens_per_block) as usize
}

impl GroupPool {
    /// All blocks free.
    pub fn new(config: OwnGroup, tokens_per_block: u32) -> Result<Self> {
        Ok(Self {
            kind: config.kind,
            tokens_per_block,
            info: memory::vec_of(config.blocks as usize, Info::NEW)?,
            free: memory::collect((0..config.blocks).rev())?,
            idle: [List::EMPTY],
            peers: Vec::new(),
            evicted: 0,
        })
    }

    /// Bytes of memory that the books of its own blocks take.
    pub fn book_bytes(config: &OwnGroup) -> u64 {
        u64::from(config.blocks) * (size_of::<Info>() as u64 + 4)
    }

    /// Gets memory for so many blocks that can be owners.
    pub fn reserve(&mut self, owners: usize) -> Result<()> {
        memory::reserve_to(&mut self.peers, owners)
    }

    /// There are now so many blocks that can be owners, for which there is memory.
    pub fn fit(&mut self, owners: usize) {
        self.peers.resize(owners, NONE);
    }

    pub const fn kind(&self) -> OwnKind {
        self.kind
    }

    pub const fn total(&self) -> usize {
        self.info.len()
    }

    /// Bytes of memory that it takes.
    pub const fn bytes(&self) -> usize {
        let words = self.free.capacity() + self.peers.capacity();
        size_of::<Self>() + self.info.capacity() * size_of::<Info>() + words * 4
    }

    pub fn stats(&self) -> GroupStats {
        let (total, free, idle) = (self.info.len() as u64, self.free.len() as u64, u64::from(self.idle[0].len()));
        GroupStats { total, free, idle, used: total - free - idle, evicted: self.evicted }
    }

    /// What to say when `needed` blocks are not to be had; `number` is its own.
    pub fn room(&self, number: usize, needed: usize) -> Room {
        let stats = self.stats();
        let own_group = u32::try_from(number).unwrap_or(NONE);
        Room { own_group, needed: needed as u64, free: stats.free, evictable: stats.idle }
    }

    /// The block that belongs to a block of the index.
    pub fn peer(&self, owner: u32) -> Option<u32> {
        self.peers.get(owner as usize).copied().filter(|block| *block != NONE)
    }

    /// Adds `count` blocks to `out`, which has room for them, and which the caller then holds: free ones, then idle ones. All
    /// or nothing.
    pub fn take(&mut self, count: usize, out: &mut Vec<u32>) -> bool {
        if count > self.free.len() + self.idle[0].len() as usize {
            return false;
        }
        for _ in 0..count {
            let Some(block) = self.free.pop().or_else(|| self.evict()) else { return false };
            self.info[block as usize] = Info::held_once();
            out.push(block);
        }
        true
    }

    fn evict(&mut self) -> Option<u32> {
        let block = self.idle[0].front()?;
        list::remove(&mut self.idle, &mut self.info, block);
        self.peers[self.info[block as usize].parent as usize] = NONE;
        self.evicted += 1;
        Some(block)
    }

    /// One more holder.
    pub fn acquire(&mut self, block: u32) {
        list::remove(&mut self.idle, &mut self.info, block);
        self.info[block as usize].refs += 1;
    }

    /// One holder less.
    pub fn release(&mut self, block: u32) {
        let entry = &mut self.info[block as usize];
        debug_assert!(entry.refs > 0);
        entry.refs -= 1;
        match (entry.refs, entry.parent) {
            (0, NONE) => self.free.push(block),
            (0, _) => list::push(&mut self.idle, &mut self.info, IDLE, block),
            _ => {}
        }
    }

    /// Whether its one holder may write to a block.
    pub fn is_ours_alone(&self, block: u32) -> bool {
        let entry = &self.info[block as usize];
        entry.refs == 1 && entry.parent == NONE
    }

    /// Makes a held block belong to a block of the index, which has the same tokens. If another does already, the caller
    /// holds that one from now on, and no longer its own. Returns the one that it holds.
    pub fn attach(&mut self, owner: u32, block: u32) -> u32 {
        match self.peer(owner) {
            None => {
                if self.info[block as usize].parent == NONE {
                    self.info[block as usize].parent = owner;
                    self.peers[owner as usize] = block;
                }
                block
            }
            Some(other) if other == block => block,
            Some(other) => {
                self.acquire(other);
                self.release(block);
                other
            }
        }
    }

    /// A block leaves the index.
    pub fn detach(&mut self, owner: u32) {
        let Some(block) = self.peer(owner) else { return };
        self.peers[owner as usize] = NONE;
        self.info[block as usize].parent = NONE;
        if self.info[block as usize].refs == 0 {
            list::remove(&mut self.idle, &mut self.info, block);
            self.free.push(block);
        }
    }

    /// A sequence is to begin with the first `hits` of these blocks of the index: that many, or the next smaller number
    /// that these layers may allow.
    pub fn reach(&self, owners: &[u32], hits: usize) -> usize {
        let has = |k: &usize| self.peer(owners[*k]).is_some();
        match self.kind {
            OwnKind::Window(_) => (self.seen(hits)..hits).rev().find(|k| !has(k)).unwrap_or(hits),
            OwnKind::State { .. } => (0..hits).rev().find(has).map_or(0, |k| k + 1),
        }
    }

    /// The first of `hits` full blocks that the token after them still sees.
    pub fn seen(&self, hits: usize) -> usize {
        let OwnKind::Window(window) = self.kind else { return hits };
        seen_from(hits, window, self.tokens_per_block)
    }

    /// What a sequence that begins with these blocks of the index needs from here, as far as it is there.
    pub fn needed<'a>(&'a self, owners: &'a [u32]) -> impl Iterator<Item = u32> + 'a {
        let from = match self.kind {
            OwnKind::Window(_) => self.seen(owners.len()),
            OwnKind::State { .. } => self.reach(owners, owners.len()).saturating_sub(1),
        };
        owners.iter().skip(from).filter_map(|owner| self.peer(*owner))
    }

    /// The first thing that is wrong, given how many hold each block.
    pub fn check(&self, holders: &[u32], is_published: impl Fn(u32) -> bool) -> Result<()> {
        let mut free = memory::vec_of(self.info.len(), false)?;
        for block in &self.free {
            if std::mem::replace(&mut free[*block as usize], true) {
                return Err(audit_found(format!("a group's block {block} is free twice")));
            }
        }
        let mut idle = 0;
        for ((block, entry), count) in (0u32..).zip(&self.info).zip(holders) {
            let is_free = free[block as usize];
            if !is_free && entry.refs != *count {
                return Err(audit_found(format!(
                    "a group's block {block} has {count} holders, its count says {}",
                    entry.refs
                )));
            }
            if entry.parent != NONE && !is_free {
                if self.peer(entry.parent) != Some(block) || !is_published(entry.parent) {
                    return Err(audit_found(format!(
                        "a group's block {block} does not belong to block {}",
                        entry.parent
                    )));
                }
                idle += u32::from(entry.refs == 0);
            }
            let is_idle = !is_free && entry.refs == 0 && entry.parent != NONE;
            if entry.list().is_some() != is_idle {
                return Err(audit_found(format!(
                    "a group's block {block} is idle and not in the list, or the reverse"
                )));
            }
            match (is_free, *count, entry.parent == NONE) {
                (true, 0, _) | (false, 1.., _) | (false, 0, false) => {}
                (true, ..) => return Err(audit_found(format!("a group's block {block} is free, but somebody has it"))),
                (false, 0, true) => {
                    return Err(audit_found(format!("a group's block {block} is lost: in use, but nobody has it")));
                }
            }
        }
        for (owner, block) in (0u32..).zip(&self.peers).filter(|(_, block)| **block != NONE) {
            if self.info[*block as usize].parent != owner || free[*block as usize] {
                return Err(audit_found(format!("block {owner} has a group's block {block}, which is not its own")));
            }
        }
        if idle != self.idle[0].len() {
            return Err(audit_found(format!("{idle} blocks of a group are idle, the list has {}", self.idle[0].len())));
        }
        Ok(())
    }
}

//! The prefix index: which blocks hold the longest known prefix of a prompt, by the hashes of their chain. Guarantees: a published
//! block's ancestors are all published; a match returns blocks of exactly these tokens. Part of the pool, whose lock guards
//! it.

use super::events::What;
use super::roots::FIRST_ROOT;
use super::{Keep, Pool};
use crate::base::error::Result;
use crate::base::memory;
use crate::kv::block::{Info, NONE};
use crate::kv::error::audit_found;
use crate::kv::hash::BlockHash;
use crate::layout::region::prefetch;

/// How many blocks a match looks ahead, so that cache misses overlap.
const AHEAD: usize = 8;

/// What became of a block that was to be published.
#[derive(Debug, PartialEq, Eq)]
pub enum Published {
    /// The index knows it now, or did before.
    Ours,
    /// Another block has the same tokens. The caller now holds that one, and no longer the one it gave.
    Other(u32),
    /// Another block has the same tokens, and the caller cannot do with that one. It keeps its own, which has the name but
    /// is not in the index; what follows continues the other, which it does not hold.
    Double(u32),
    /// The index does not take it; the caller keeps it.
    Refused,
}

/// What a block is published as.
#[derive(Clone, Copy)]
pub struct Named<'a> {
    /// Where its chain begins.
    pub root: BlockHash,
    /// The block before it, or [`NONE`].
    pub parent: u32,
    pub hash: BlockHash,
    /// Its tokens, where these are compared.
    pub tokens: &'a [u32],
}

/// What a match is asked for: the hash of each block in order, and its tokens where these are compared.
#[derive(Clone, Copy)]
pub struct Prefix<'a> {
    /// Where the chain begins.
    pub root: BlockHash,
    pub hashes: &'a [BlockHash],
    /// All tokens of the blocks, or none.
    pub tokens: &'a [u32],
}

/// The name of every block in the index with that of the one that it continues, and the number of the next event.
pub type Snapshot = (Vec<(BlockHash, BlockHash)>, u64);

/// What stands above a published block, with itself.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Held blocks alone.
    Held,
    /// Idle ones, and below these none that is held.
    Idle,
    /// A held one below an idle one.
    Cut,
}

impl Place {
    /// The place of a block that builds on one with this place.
    const fn below(self, held: bool) -> Self {
        match (self, held) {
            (Self::Held, true) => Self::Held,
            (Self::Held | Self::Idle, false) => Self::Idle,
            (Self::Idle, true) | (Self::Cut, _) => Self::Cut,
        }
    }
}

impl Pool {
    #[inline]
    pub(super) fn bucket(&self, hash: BlockHash) -> usize {
        self.scatter.bucket(hash, self.buckets.len())
    }

    /// The published block with this hash and, where tokens are compared, this parent and these tokens.
    #[inline(always)]
    fn find(&self, hash: BlockHash, parent: u32, tokens: &[u32]) -> Option<u32> {
        let mut at = self.buckets[self.bucket(hash)];
        while let Some(info) = self.info.get(at as usize) {
            if info.hash == hash && (!self.compare || self.same(at, parent, tokens)) {
                return Some(at);
            }
            at = info.chain;
        }
        None
    }

    /// What first blocks after `root` have as their parent.
    fn first_parent(&self, root: BlockHash) -> u32 {
        if self.compare { self.roots.find(root) } else { NONE }
    }

    fn same(&self, block: u32, parent: u32, tokens: &[u32]) -> bool {
        self.info[block as usize].parent == parent && self.tokens_of(block) == Some(tokens)
    }

    /// Calls `each` with the blocks of the longest published prefix, in order, and returns how many.
    #[inline]
    fn walk(&self, prefix: Prefix<'_>, mut each: impl FnMut(u32)) -> usize {
        let Prefix { root, hashes, tokens } = prefix;
        let (mut parent, size) = (self.first_parent(root), self.tokens_per_block);
        self.look_ahead_of(hashes);
        for (at, hash) in hashes.iter().enumerate() {
            self.look_ahead(hashes, at);
            let tokens = tokens.get(at * size..(at + 1) * size).unwrap_or_default();
            let Some(block) = self.find(*hash, parent, tokens) else { return at };
            each(block);
            parent = block;
        }
        hashes.len()
    }

    /// Begins to fetch what the first of `hashes` will need, so that cache misses overlap.
    pub fn look_ahead_of(&self, hashes: &[BlockHash]) {
        for hash in hashes.iter().take(3 * AHEAD) {
            prefetch(&self.buckets[self.bucket(*hash)]);
        }
        for hash in hashes.iter().take(2 * AHEAD) {
            self.look_into_bucket(*hash);
        }
        for hash in hashes.iter().take(AHEAD) {
            self.look_along_chain(*hash);
        }
    }

    /// Goes on with it, when it is the turn of number `at`: buckets come first, later the block that they point to, and
    /// then, if that is another one, the next of the chain.
    #[inline]
    pub fn look_ahead(&self, hashes: &[BlockHash], at: usize) {
        if let Some(hash) = hashes.get(at + 3 * AHEAD) {
            prefetch(&self.buckets[self.bucket(*hash)]);
        }
        if let Some(hash) = hashes.get(at + 2 * AHEAD) {
            self.look_into_bucket(*hash);
        }
        if let Some(hash) = hashes.get(at + AHEAD) {
            self.look_along_chain(*hash);
        }
    }

    #[inline]
    fn look_into_bucket(&self, hash: BlockHash) {
        if let Some(info) = self.info.get(self.buckets[self.bucket(hash)] as usize) {
            prefetch(info);
        }
    }

    #[inline]
    fn look_along_chain(&self, hash: BlockHash) {
        if let Some(info) = self.info.get(self.buckets[self.bucket(hash)] as usize)
            && info.hash != hash
            && let Some(next) = self.info.get(info.chain as usize)
        {
            prefetch(next);
        }
    }

    /// How many leading blocks are published; holds none.
    pub fn matching(&self, prefix: Prefix<'_>) -> Result<usize> {
        if self.groups.is_empty() {
            return Ok(self.walk(prefix, |_| {}));
        }
        let mut blocks = memory::with_capacity(prefix.hashes.len())?;
        self.walk(prefix, |block| blocks.push(block));
        Ok(self.usable(&blocks))
    }

    /// How many of these leading blocks a sequence can begin with, so that every group has what comes next.
    pub fn usable(&self, blocks: &[u32]) -> usize {
        let mut count = blocks.len();
        loop {
            let reach = self.groups.iter().fold(count, |count, group| group.reach(blocks, count));
            if reach == count {
                return count;
            }
            count = reach;
        }
    }

    /// Adds the blocks of the longest published prefix to `out`, which has room for all; the caller holds them now.
    pub fn acquire_prefix(&mut self, prefix: Prefix<'_>, out: &mut Vec<u32>) -> usize {
        let before = out.len();
        let mut found = self.walk(prefix, |block| out.push(block));
        if !self.groups.is_empty() {
            found = self.usable(&out[before..]);
            out.truncate(before + found);
        }
        for block in &out[before..] {
            self.acquire(*block);
        }
        found
    }

    /// Makes sure that each of `sequences` can publish a first block, where tokens are compared.
    pub fn reserve_roots(&mut self, sequences: u64) -> Result<()> {
        if self.compare { self.roots.reserve(usize::try_from(sequences).unwrap_or(usize::MAX / 4)) } else { Ok(()) }
    }

    /// The block that the index has for one that was published or a double, as far as that can be told without what it
    /// continues: itself, or the one of that name.
    pub fn standing(&self, block: u32) -> Option<u32> {
        let entry = &self.info[block as usize];
        match entry.is_published() {
            true => Some(block),
            // Where names can collide, what a block continues must be the same as well.
            false if self.compare => None,
            false => self.find(entry.hash, NONE, &[]),
        }
    }

    /// Puts a held block into the index. `parent` is in the index, or [`NONE`]; if it is not, or has more children than can
    /// be counted, the block is refused. One whose tokens another has is swapped for that, if it `may_swap`.
    pub fn publish(&mut self, block: u32, named: Named<'_>, keep: Keep, may_swap: bool) -> Result<Published> {
        let Named { root, mut parent, hash, tokens } = named;
        if parent == NONE {
            parent = self.first_parent(root);
        }
        if self.info[block as usize].is_published() {
            return Ok(Published::Ours);
        }
        if let Some(other) = self.find(hash, parent, tokens) {
            // It is used either way.
            self.acquire(other);
            self.raise(other, keep);
            if may_swap {
                self.release_one(block)?;
                return Ok(Published::Other(other));
            }
            self.release_one(other)?;
            self.info[block as usize].hash = hash;
            self.keep_tokens(block, tokens);
            return Ok(Published::Double(other));
        }
        self.keep_tokens(block, tokens);
        Ok(self.enter(block, root, parent, hash, keep))
    }

    /// Puts a held block that has a name into the index, as [`Pool::publish`] does, if that has no other for it by now.
    pub fn publish_again(&mut self, block: u32, root: BlockHash, parent: u32, keep: Keep) -> Published {
        let parent = if parent == NONE { self.first_parent(root) } else { parent };
        let entry = &self.info[block as usize];
        if entry.is_published() {
            return Published::Ours;
        }
        let hash = entry.hash;
        if let Some(other) = self.find(hash, parent, self.tokens_of(block).unwrap_or_default()) {
            return Published::Double(other);
        }
        self.enter(block, root, parent, hash, keep)
    }

    /// Makes the index know a block, whose tokens are kept; `parent` is a block, or what stands for the root.
    fn enter(&mut self, block: u32, root: BlockHash, mut parent: u32, hash: BlockHash, keep: Keep) -> Published {
        if let Some(up) = self.info.get_mut(parent as usize) {
            if !up.is_published() || up.children == u16::MAX {
                return Published::Refused;
            }
            up.children += 1;
        } else if self.compare {
            let Some(number) = self.roots.enter(root) else { return Published::Refused };
            parent = number;
        }
        let bucket = self.bucket(hash);
        let entry = &mut self.info[block as usize];
        entry.hash = hash;
        entry.parent = parent;
        entry.chain = self.buckets[bucket];
        entry.set_published(true);
        self.buckets[bucket] = block;
        self.published += 1;
        let before = self.info.get(parent as usize).map_or_else(BlockHash::default, |up| up.hash);
        self.events.push(What::Stored, hash, before);
        self.policy.published(&mut self.info, block, keep.priority, keep.expiry);
        self.raise(parent, keep);
        Published::Ours
    }

    /// Keeps the tokens of a block that gets a name, where they are compared.
    fn keep_tokens(&mut self, block: u32, tokens: &[u32]) {
        if self.compare {
            let start = block as usize * self.tokens_per_block;
            self.tokens[start..start + self.tokens_per_block].copy_from_slice(tokens);
        }
    }

    /// The tokens of a block that has a name, if they are kept.
    pub fn tokens_of(&self, block: u32) -> Option<&[u32]> {
        let start = block as usize * self.tokens_per_block;
        self.tokens.get(start..start + self.tokens_per_block)
    }

    /// Raises the priority of a block and of all that it continues. What a block continues has its priority or more, so
    /// the first that needs none ends it.
    fn raise(&mut self, from: u32, keep: Keep) {
        let mut at = from;
        while let Some(entry) = self.info.get(at as usize) {
            let parent = entry.parent;
            if !self.policy.raise(&mut self.info, at, keep.priority, keep.expiry) {
                break;
            }
            at = parent;
        }
    }

    /// Takes a published block that nothing builds on out of the index; its holders keep it.
    pub fn unpublish(&mut self, block: u32) -> bool {
        let entry = self.info[block as usize];
        let can = entry.is_published() && entry.children == 0;
        if can {
            self.remove(block);
        }
        can
    }

    /// Takes a published block out of the index. All that builds on it must leave as well.
    pub(super) fn remove(&mut self, block: u32) {
        let entry = self.info[block as usize];
        let bucket = self.bucket(entry.hash);
        let mut at = self.buckets[bucket];
        if at == block {
            self.buckets[bucket] = entry.chain;
        } else {
            while self.info[at as usize].chain != block {
                at = self.info[at as usize].chain;
            }
            self.info[at as usize].chain = entry.chain;
        }
        if let Some(up) = self.info.get_mut(entry.parent as usize) {
            up.children -= 1;
        } else if self.compare {
            self.roots.leave(entry.parent);
        }
        self.events.push(What::Removed, entry.hash, BlockHash::default());
        for group in &mut self.groups {
            group.detach(block);
        }
        self.policy.removed(&mut self.info, block);
        self.info[block as usize].set_published(false);
        self.info[block as usize].parent = NONE;
        self.published -= 1;
        self.idle -= u32::from(entry.refs == 0);
    }

    /// Makes idle blocks evictable on which held ones build, since their sequences dropped them: the held ones, which nobody
    /// could match without these, leave the index, and all that builds on them. Looks at all blocks.
    pub(super) fn uncover(&mut self) -> Result<()> {
        let mut places = memory::vec_of(self.info.len(), None)?;
        let most = self.published as usize;
        let (mut path, mut cut) = (memory::with_capacity(most)?, memory::with_capacity(most)?);
        for block in 0..self.blocks.total() {
            // Up to a block whose place is known, or to the root; then down again.
            let mut at = block;
            let mut place = loop {
                let Some(entry) = self.info.get(at as usize).filter(|entry| entry.is_published()) else {
                    break Place::Held;
                };
                if let Some(known) = places[at as usize] {
                    break known;
                }
                path.push(at);
                at = entry.parent;
            };
            while let Some(down) = path.pop() {
                place = place.below(self.info[down as usize].refs > 0);
                places[down as usize] = Some(place);
                if place == Place::Cut {
                    cut.push(down);
                }
            }
        }
        for block in cut {
            let idle = self.info[block as usize].refs == 0;
            self.remove(block);
            if idle {
                self.evicted += 1;
                self.blocks.give(&[block])?;
            }
        }
        Ok(())
    }

    /// Every published block, for snapshots and the audit.
    pub fn all_published(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.blocks.total()).filter(|block| self.info[*block as usize].is_published())
    }

    /// What would be told of every block in the index if it came now, each after the one that it continues, and the number
    /// of the next event.
    pub fn snapshot(&self) -> Result<Snapshot> {
        let most = self.published as usize;
        let mut told = memory::vec_of(self.info.len(), false)?;
        let (mut out, mut line) = (memory::with_capacity(most)?, memory::with_capacity(most)?);
        for block in self.all_published() {
            let mut at = block;
            while let Some(info) = self.info.get(at as usize).filter(|_| !told[at as usize]) {
                told[at as usize] = true;
                line.push((
                    info.hash,
                    self.info.get(info.parent as usize).map_or_else(BlockHash::default, |up| up.hash),
                ));
                at = info.parent;
            }
            out.extend(line.drain(..).rev());
        }
        Ok((out, self.events.next()))
    }

    pub(super) fn rehash(&mut self, buckets: Vec<u32>) {
        self.buckets = buckets;
        for block in 0..self.blocks.total() {
            if self.info[block as usize].is_published() {
                let bucket = self.bucket(self.info[block as usize].hash);
                self.info[block as usize].chain = self.buckets[bucket];
                self.buckets[bucket] = block;
            }
        }
    }

    /// Whether the index, the counts of children and the numbers agree with each other; the first thing that does not.
    pub fn check(&self) -> Result<()> {
        let total = self.blocks.total();
        let (mut published, mut idle) = (0, 0);
        let mut children = memory::zeroed::<u32>(total as usize)?;
        for block in self.all_published() {
            let entry = &self.info[block as usize];
            published += 1;
            idle += u32::from(entry.refs == 0);
            if entry.parent < FIRST_ROOT {
                if !self.info.get(entry.parent as usize).is_some_and(Info::is_published) {
                    return Err(audit_found(format!(
                        "published block {block} continues block {}, which is not",
                        entry.parent
                    )));
                }
                children[entry.parent as usize] += 1;
            }
            let tokens = self.tokens_of(block).unwrap_or_default();
            if self.find(self.info[block as usize].hash, entry.parent, tokens).is_none() {
                return Err(audit_found(format!("published block {block} is not found by its hash")));
            }
        }
        for block in 0..total {
            let entry = &self.info[block as usize];
            if entry.is_published() && u32::from(entry.children) != children[block as usize] {
                let counted = children[block as usize];
                return Err(audit_found(format!(
                    "block {block} has {counted} children, its count says {}",
                    entry.children
                )));
            }
        }
        if (published, idle) != (self.published, self.idle) {
            return Err(audit_found(format!(
                "{published} published and {idle} idle blocks, the counts say {} and {}",
                self.published, self.idle
            )));
        }
        Ok(())
    }
}

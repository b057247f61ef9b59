//! One sequence: its tokens, its blocks, and how far they are shared and published. Pure bookkeeping; the lane's lock
//! guards it, and the editor moves the blocks.
//!
//! Of the blocks the first `published` are in the prefix index, or are doubles of blocks that are; the first `shared` are
//! counted by the pool, and the rest are private. A block that is not full is private, or held by forks until they have
//! copied it, so appending never writes where another sequence reads.

use super::types::{BlockCopy, Placement, State};
use crate::base::error::Result;
use crate::base::memory;
use crate::kv::block::NONE;
use crate::kv::error::evicted;
use crate::kv::groups::SeqGroup;
use crate::kv::hash::BlockHash;
use crate::kv::pool::Keep;

/// A sequence. What an append of one token needs comes first.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Seq {
    pub id: u64,
    pub last_use: (u64, u64),
    pub tokens: u32,
    /// While `tokens` is below it, one more needs no block, publishes none and drops none.
    pub ceiling: u32,
    /// Leading tokens that are computed, as far as the calls so far tell.
    pub computed: u32,
    /// Whether the tokens since `published` are known, so that full blocks can be published.
    pub known: bool,
    pub state: State,
    pub placement: Placement,
    /// Published blocks may be doubles: the index has others for their names.
    pub doubles: bool,
    /// The tokens after the published ones.
    pub pending: Vec<u32>,
    /// The blocks in order; [`NONE`] where one was dropped.
    pub blocks: Vec<u32>,
    /// Different for every sequence that the cache ever had.
    pub uid: u64,
    /// Tokens that it may have; the blocks follow as it grows.
    pub limit: u32,
    pub shared: u32,
    pub published: u32,
    /// How often an entry that was there before changed.
    pub rewrites: u32,
    /// Hash of the last published block, or the root.
    pub chain: BlockHash,
    pub root: BlockHash,
    /// Hashes that are known ahead of `published`.
    pub ahead: Vec<BlockHash>,
    /// Copies that the engine has to make before the next call.
    pub plan: Vec<BlockCopy>,
    /// Shared blocks that a copy still reads; released with the next call.
    pub held: Vec<u32>,
    /// Private blocks that a copy still reads; released with the next call.
    pub left: Vec<u32>,
    /// The highest importance of a token in each block, if any was given.
    pub scores: Vec<f32>,
    /// The transfer that writes its blocks, or 0; until the program knows its end, the sequence can only be read or closed.
    pub fetching: u64,
    /// The first block that it writes.
    pub fetch_from: u32,
    /// Leading blocks that left the window.
    pub slid: u32,
    pub keep: Keep,
    /// The addresses that map its blocks; 0 for none.
    pub address_space: u64,
    /// What it has of each group with blocks of its own.
    pub groups: Vec<SeqGroup>,
    /// Blocks of these groups that a copy still reads, with the group; released with the next call.
    pub lent: Vec<(usize, u32)>,
    pub name: Option<Box<[u8]>>,
}

impl Seq {
    pub fn new() -> Self {
        Self {
            id: 0,
            uid: 0,
            state: State::Closed,
            placement: Placement::Paged,
            known: false,
            tokens: 0,
            ceiling: 0,
            limit: 0,
            computed: 0,
            shared: 0,
            published: 0,
            doubles: false,
            rewrites: 0,
            blocks: Vec::new(),
            chain: BlockHash::default(),
            root: BlockHash::default(),
            ahead: Vec::new(),
            pending: Vec::new(),
            plan: Vec::new(),
            held: Vec::new(),
            left: Vec::new(),
            scores: Vec::new(),
            fetching: 0,
            fetch_from: 0,
            slid: 0,
            keep: Keep::default(),
            address_space: 0,
            last_use: (0, 0),
            groups: Vec::new(),
            lent: Vec::new(),
            name: None,
        }
    }

    /// One more token, if that needs nothing else; as [`super::Editor::append`] would do it.
    #[inline]
    pub fn bump(&mut self, token: Option<u32>) -> bool {
        // A list that would have to grow is not for here: there may be no memory for it.
        if self.tokens >= self.ceiling
            || self.known && (token.is_none() || self.pending.len() == self.pending.capacity())
        {
            return false;
        }
        self.computed = self.tokens;
        self.tokens += 1;
        if self.known {
            self.pending.extend(token);
        }
        true
    }

    /// Finds the ceiling anew, after anything but [`Seq::bump`] changed the sequence.
    pub fn find_ceiling(&mut self, tokens_per_block: u32, window: u32) {
        if self.state != State::Open || self.is_unsettled() || self.fetching != 0 {
            self.ceiling = 0;
            return;
        }
        let fits = u32::try_from(self.blocks.len()).unwrap_or(u32::MAX).saturating_mul(tokens_per_block);
        let publishes =
            if self.known || !self.ahead.is_empty() { (self.published + 1) * tokens_per_block } else { u32::MAX };
        let slides = match window.checked_sub(1) {
            None => u32::MAX,
            Some(before) => before.saturating_add((self.slid + 1).saturating_mul(tokens_per_block)),
        };
        self.ceiling = fits.min(self.limit).min(publishes).min(slides);
        for own in &self.groups {
            self.ceiling = self.ceiling.min(own.ceiling(tokens_per_block));
        }
    }

    /// Whether copies are to be made, or what they read is still held.
    pub const fn is_unsettled(&self) -> bool {
        !self.plan.is_empty() || !self.held.is_empty() || !self.left.is_empty() || !self.lent.is_empty()
    }

    /// Makes it like new, but keeps the memory of its lists.
    pub fn reset(&mut self) {
        self.state = State::Closed;
        self.ceiling = 0;
        self.blocks.clear();
        self.ahead.clear();
        self.pending.clear();
        self.plan.clear();
        self.held.clear();
        self.left.clear();
        self.scores.clear();
        self.groups.clear();
        self.lent.clear();
        (self.tokens, self.computed, self.shared, self.published, self.rewrites, self.slid) = (0, 0, 0, 0, 0, 0);
        self.fetching = 0;
        self.doubles = false;
        self.address_space = 0;
        self.name = None;
    }

    /// Itself, unless its blocks were taken.
    #[inline]
    pub fn resident(&self) -> Result<&Self> {
        if self.state == State::Evicted { Err(evicted(self.id)) } else { Ok(self) }
    }

    /// Bytes of memory that its lists take.
    pub fn bytes(&self) -> usize {
        let words = self.blocks.capacity() + self.pending.capacity() + self.held.capacity() + self.left.capacity();
        let groups: usize = self.groups.iter().map(SeqGroup::bytes).sum();
        size_of::<Self>()
            + (words + self.scores.capacity()) * 4
            + self.ahead.capacity() * size_of::<BlockHash>()
            + groups
    }

    /// Where its blocks begin, if they are contiguous and there are any; those that were dropped leave their places.
    pub fn run(&self) -> Option<u32> {
        let (at, block) = (0..).zip(&self.blocks).find(|(_, block)| **block != NONE)?;
        (self.placement == Placement::Run).then_some(block - at)
    }

    /// The blocks that the pool counts for it.
    pub fn counted(&self) -> impl Iterator<Item = u32> + '_ {
        let shared = self.blocks[..self.shared as usize].iter();
        shared.chain(&self.held).copied().filter(|block| *block != NONE)
    }

    /// The blocks that nobody else can have.
    pub fn private(&self) -> impl Iterator<Item = u32> + '_ {
        let own = self.blocks[self.shared as usize..].iter();
        own.chain(&self.left).copied().filter(|block| *block != NONE)
    }

    /// The tokens are no longer known, or the blocks no longer those that others match: nothing more is published.
    pub fn stop_publishing(&mut self) {
        self.known = false;
        self.pending.clear();
        self.ahead.clear();
    }

    /// Tokens of the blocks `from..to` are this important.
    pub fn note_importance(&mut self, from: u32, to: u32, importance: f32) {
        if self.scores.len() < to as usize {
            self.scores.resize(to as usize, 0.0);
        }
        for score in &mut self.scores[from as usize..to as usize] {
            *score = score.max(importance);
        }
    }

    /// Gets memory for what a fork has in common with its parent, with `blocks` blocks and the copy of one.
    pub fn reserve_like(&mut self, parent: &Self, blocks: usize) -> Result<()> {
        memory::reserve(&mut self.blocks, blocks)?;
        memory::reserve(&mut self.plan, 1)?;
        memory::reserve(&mut self.held, 1)?;
        memory::reserve(&mut self.ahead, parent.ahead.len())?;
        memory::reserve(&mut self.pending, parent.pending.len())?;
        memory::reserve(&mut self.scores, parent.scores.len())
    }

    /// Takes over what a fork has in common with its parent, except the blocks.
    pub fn inherit(&mut self, parent: &Self) {
        self.placement = if self.address_space == 0 { Placement::Paged } else { Placement::Virtual };
        (self.known, self.tokens, self.limit, self.computed) =
            (parent.known, parent.tokens, parent.limit, parent.computed);
        (self.published, self.shared, self.doubles) = (parent.published, parent.shared, parent.doubles);
        (self.chain, self.root, self.keep, self.slid) = (parent.chain, parent.root, parent.keep, parent.slid);
        self.ahead.extend_from_slice(&parent.ahead);
        self.pending.extend_from_slice(&parent.pending);
        self.scores.extend_from_slice(&parent.scores);
    }

    /// Cuts what is known of the tokens to the first `tokens`, of which `published` blocks stay published.
    pub fn cut_tokens(&mut self, tokens: u32, tokens_per_block: u32) {
        let kept = tokens.saturating_sub(self.published * tokens_per_block) as usize;
        self.known &= kept <= self.pending.len();
        self.pending.truncate(kept);
        self.ahead.truncate(kept / tokens_per_block as usize);
        self.tokens = tokens;
        self.computed = self.computed.min(tokens);
    }
}

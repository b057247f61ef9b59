//! What a sequence has of a group with blocks of its own: the blocks of its window, or the slots of its state. Pure
//! bookkeeping; the lane's lock guards the sequence, the pool's the group.
//!
//! A state is never overwritten while others may read it. The slot that the next tokens write is the one that holds the
//! state if nobody else has that, and a fresh one if it was kept for others or came from them: kernels that read one slot
//! and write another copy nothing.

use super::{GroupPool, OwnKind, first_seen};
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::kv::block::NONE;

/// What a sequence has of one group.
#[derive(Debug)]
pub enum SeqGroup {
    Window(WindowBlocks),
    State(StateSlots),
}

/// Blocks of the window.
#[derive(Debug, Default)]
pub struct WindowBlocks {
    window: u32,
    /// In order; [`NONE`] where one left the window or was dropped.
    pub blocks: Vec<u32>,
    /// How often an entry that was there before changed.
    pub rewrites: u32,
    /// Leading blocks that left the window.
    slid: u32,
}

/// Slots of the state. Each is [`NONE`] if there is none.
#[derive(Debug)]
pub struct StateSlots {
    /// Holds the state after `base` tokens.
    pub state: u32,
    /// Gets the state after all tokens; `state` itself where that may be overwritten.
    pub next: u32,
    base: u32,
    /// Others may have `state`.
    shared: bool,
}

impl SeqGroup {
    pub fn new(kind: OwnKind) -> Self {
        match kind {
            OwnKind::Window(window) => Self::Window(WindowBlocks { window, ..WindowBlocks::default() }),
            OwnKind::State { .. } => Self::State(StateSlots { state: NONE, next: NONE, base: 0, shared: false }),
        }
    }

    /// Gets memory for `count` places, or for as many as can have blocks of a group that has `total`.
    pub fn reserve(&mut self, total: usize, count: usize) -> Result<()> {
        match self {
            Self::Window(strip) => {
                let more = count.saturating_sub(strip.blocks.len());
                // More than all cannot be had, and is found out.
                if more > total { Ok(()) } else { memory::reserve(&mut strip.blocks, more) }
            }
            Self::State(_) => Ok(()),
        }
    }

    /// A list for the blocks of a fork that has `full` full blocks, and one more.
    pub fn list_for_fork(&self, full: usize) -> Result<Vec<u32>> {
        memory::with_capacity(if self.fork_copies() { full + 1 } else { 0 })
    }

    /// Holds what a sequence needs that begins with these blocks of the index, of `tokens` tokens.
    pub fn begin(&mut self, group: &mut GroupPool, owners: &[u32], tokens: u32) {
        match self {
            Self::Window(strip) => {
                let seen = group.seen(owners.len());
                strip.slid = u32::try_from(seen).unwrap_or(u32::MAX);
                strip.blocks.resize(seen, NONE);
                for owner in &owners[seen..] {
                    strip.blocks.push(hold(group, *owner));
                }
            }
            Self::State(slots) => {
                if let Some(last) = owners.last() {
                    (slots.state, slots.base, slots.shared) = (hold(group, *last), tokens, true);
                }
            }
        }
    }

    /// Gets room for `count` blocks in all, for which there is memory ([`SeqGroup::reserve`]), and, if tokens are to be written, a slot for the state after them.
    pub fn grow(&mut self, group: &mut GroupPool, count: usize, writes: bool) -> std::result::Result<(), usize> {
        match self {
            Self::Window(strip) => {
                let more = count.saturating_sub(strip.blocks.len());
                if group.take(more, &mut strip.blocks) { Ok(()) } else { Err(more) }
            }
            Self::State(slots) if !writes || slots.next != NONE => Ok(()),
            Self::State(slots) => {
                slots.shared = false;
                if slots.state != NONE && group.is_ours_alone(slots.state) {
                    slots.next = slots.state;
                    return Ok(());
                }
                let mut fresh = Vec::new();
                if !group.take(1, &mut fresh) {
                    return Err(1);
                }
                slots.next = fresh[0];
                Ok(())
            }
        }
    }

    /// Undoes [`SeqGroup::grow`], down to `count` blocks.
    pub fn shrink(&mut self, group: &mut GroupPool, count: usize, wrote: bool) {
        match self {
            Self::Window(strip) => strip.cut(group, count),
            Self::State(slots) if wrote => slots.forget_next(group),
            Self::State(_) => {}
        }
    }

    /// All tokens, of which there are so many, are computed.
    pub fn settle(&mut self, group: &mut GroupPool, tokens: u32) {
        let Self::State(slots) = self else { return };
        if slots.next != NONE {
            if slots.state != NONE && slots.state != slots.next {
                group.release(slots.state);
            }
            (slots.state, slots.next, slots.base) = (slots.next, NONE, tokens);
        }
    }

    /// The block at a place that is to be fetched: of the window, or the slot that gets the state.
    pub fn wanted(&self, at: usize) -> Option<u32> {
        let block = match self {
            Self::Window(strip) => strip.blocks.get(at).copied()?,
            Self::State(slots) => slots.next,
        };
        (block != NONE).then_some(block)
    }

    /// The first `tokens` tokens were fetched: what the next one sees, and the state.
    pub fn land(&mut self, group: &mut GroupPool, tokens: u32, tokens_per_block: u32) {
        self.slide(group, tokens, tokens_per_block);
        self.settle(group, tokens);
    }

    /// Keeps the state for sequences that begin with the block `owner` of the index and those before it.
    pub fn keep(&mut self, group: &mut GroupPool, owner: u32) {
        if let Self::State(slots) = self
            && slots.state != NONE
        {
            slots.state = group.attach(owner, slots.state);
            slots.shared = true;
        }
    }

    /// The block at `at` entered the index as `owner`.
    pub fn publish(&mut self, group: &mut GroupPool, at: usize, owner: u32) {
        if let Self::Window(strip) = self
            && let Some(block) = strip.blocks.get_mut(at).filter(|block| **block != NONE)
        {
            let now = group.attach(owner, *block);
            strip.rewrites += u32::from(now != *block);
            *block = now;
        }
    }

    /// Releases the blocks that the next token after `tokens` does not see.
    pub fn slide(&mut self, group: &mut GroupPool, tokens: u32, tokens_per_block: u32) {
        if let Self::Window(strip) = self {
            let end = first_seen(tokens, strip.window, tokens_per_block);
            for at in strip.slid..end {
                strip.drop(group, at as usize);
            }
            strip.slid = strip.slid.max(end);
        }
    }

    /// Releases one block; its tokens keep their positions.
    pub fn drop(&mut self, group: &mut GroupPool, at: usize) {
        if let Self::Window(strip) = self {
            strip.drop(group, at);
        }
    }

    /// Gets what a cut to `tokens` tokens needs: blocks that left the window and are seen again, a kept state, a block to
    /// copy the last one to. `owners` are the blocks of the sequence.
    pub fn prepare_cut(
        &self,
        group: &mut GroupPool,
        owners: &[u32],
        tokens: u32,
        size: u32,
    ) -> std::result::Result<Ready, NoCut> {
        let (full, keep) = ((tokens / size) as usize, tokens.div_ceil(size) as usize);
        let mut ready = Ready::default();
        let mut copies = false;
        match self {
            Self::Window(strip) => {
                let seen = first_seen(tokens, strip.window, size) as usize;
                ready.missing = memory::collect((seen..keep).filter(|at| strip.blocks[*at] == NONE))?;
                copies = full < keep && ready.missing.last() != Some(&full) && !group.is_ours_alone(strip.blocks[full]);
            }
            Self::State(slots) => {
                ready.undone = tokens == slots.base && slots.next != slots.state;
                if !ready.undone && tokens > 0 {
                    ready.missing.push(keep - 1);
                }
            }
        }
        let peer =
            |group: &GroupPool, at: usize| owners.get(at).filter(|_| at < full).and_then(|owner| group.peer(*owner));
        if !ready.missing.iter().all(|at| peer(group, *at).is_some()) {
            return Err(NoCut::Gone);
        }
        ready.found = memory::with_capacity(ready.missing.len())?;
        ready.found.extend(ready.missing.iter().map(|at| hold(group, owners[*at])));
        if copies && !group.take(1, &mut ready.fresh) {
            ready.release(group);
            return Err(NoCut::Room);
        }
        Ok(ready)
    }

    /// Cuts to `tokens` tokens. Returns a block that is to be copied to another; the caller holds it from now on.
    pub fn cut(&mut self, group: &mut GroupPool, tokens: u32, size: u32, mut ready: Ready) -> Option<(u32, u32)> {
        match self {
            Self::Window(strip) => {
                strip.cut(group, tokens.div_ceil(size) as usize);
                strip.rewrites += 1;
                for (at, block) in ready.missing.iter().zip(&ready.found) {
                    strip.blocks[*at] = *block;
                }
                strip.slid = strip.slid.min(first_seen(tokens, strip.window, size));
                let fresh = ready.fresh.pop()?;
                Some((std::mem::replace(strip.blocks.last_mut()?, fresh), fresh))
            }
            Self::State(slots) => {
                slots.forget_next(group);
                if !ready.undone {
                    if slots.state != NONE {
                        group.release(slots.state);
                    }
                    (slots.state, slots.base, slots.shared) = (ready.found.pop().unwrap_or(NONE), tokens, true);
                }
                None
            }
        }
    }

    /// What a fork has, of which the first `full` blocks are full. `fresh` is for a copy of the block after them.
    /// `blocks` is an empty list with room for all of them.
    pub fn fork(
        &mut self,
        group: &mut GroupPool,
        tokens: u32,
        full: usize,
        fresh: Option<u32>,
        mut blocks: Vec<u32>,
    ) -> (Self, Option<u32>) {
        match self {
            Self::Window(strip) => {
                blocks.extend_from_slice(&strip.blocks[..full]);
                for block in blocks.iter().filter(|block| **block != NONE) {
                    group.acquire(*block);
                }
                blocks.extend(fresh);
                let tail = fresh.map(|_| strip.blocks[full]);
                (Self::Window(WindowBlocks { window: strip.window, blocks, rewrites: 0, slid: strip.slid }), tail)
            }
            Self::State(slots) => {
                let state = if slots.next == NONE { slots.state } else { slots.next };
                if state != NONE {
                    group.acquire(state);
                    slots.shared = true;
                }
                (Self::State(StateSlots { state, next: NONE, base: tokens, shared: true }), None)
            }
        }
    }

    /// Whether a fork of a sequence whose last block is not full needs a block to copy it to.
    pub const fn fork_copies(&self) -> bool {
        matches!(self, Self::Window(_))
    }

    /// Releases everything.
    pub fn release(&mut self, group: &mut GroupPool) {
        self.shrink(group, 0, true);
        if let Self::State(slots) = self
            && slots.state != NONE
        {
            group.release(slots.state);
            slots.state = NONE;
        }
    }

    /// The blocks that it holds.
    pub fn held(&self) -> impl Iterator<Item = u32> + '_ {
        let (blocks, slots) = match self {
            Self::Window(strip) => (&strip.blocks[..], [NONE; 2]),
            Self::State(slots) => (&[][..], [slots.state, if slots.next == slots.state { NONE } else { slots.next }]),
        };
        blocks.iter().copied().chain(slots).filter(|block| *block != NONE)
    }

    /// How many blocks of the sequence it has places for, if it has any.
    pub const fn places(&self) -> Option<usize> {
        match self {
            Self::Window(strip) => Some(strip.blocks.len()),
            Self::State(_) => None,
        }
    }

    /// While the tokens are fewer, one more needs nothing from here.
    pub fn ceiling(&self, tokens_per_block: u32) -> u32 {
        match self {
            Self::Window(strip) => {
                let fits = u32::try_from(strip.blocks.len()).unwrap_or(u32::MAX).saturating_mul(tokens_per_block);
                fits.min((strip.window - 1).saturating_add((strip.slid + 1).saturating_mul(tokens_per_block)))
            }
            Self::State(slots) if slots.shared || slots.next == NONE || slots.next != slots.state => 0,
            Self::State(_) => u32::MAX,
        }
    }

    /// Bytes of memory that it takes.
    pub const fn bytes(&self) -> usize {
        match self {
            Self::Window(strip) => size_of::<Self>() + strip.blocks.capacity() * 4,
            Self::State(_) => size_of::<Self>(),
        }
    }
}

/// What a cut needs; holds its blocks.
#[derive(Debug, Default)]
pub struct Ready {
    /// Places whose blocks are there again, or for a state the place of the block after which it is kept.
    missing: Vec<usize>,
    /// Those blocks.
    found: Vec<u32>,
    /// For a copy of the last block.
    fresh: Vec<u32>,
    /// The state from before the last tokens is still there.
    undone: bool,
}

impl Ready {
    /// Gives up the cut.
    pub fn release(&self, group: &mut GroupPool) {
        for block in self.found.iter().chain(&self.fresh) {
            group.release(*block);
        }
    }
}

/// Why a sequence cannot be cut.
pub enum NoCut {
    /// What the next token needs is no longer there.
    Gone,
    /// There is no block for a copy.
    Room,
    /// There is no memory for it.
    Memory(Error),
}

impl From<Error> for NoCut {
    fn from(error: Error) -> Self {
        Self::Memory(error)
    }
}

/// Holds the block that belongs to a block of the index.
fn hold(group: &mut GroupPool, owner: u32) -> u32 {
    let Some(block) = group.peer(owner) else { return NONE };
    group.acquire(block);
    block
}

impl WindowBlocks {
    fn drop(&mut self, group: &mut GroupPool, at: usize) {
        if let Some(block) = self.blocks.get_mut(at).filter(|block| **block != NONE) {
            group.release(*block);
            *block = NONE;
            self.rewrites += 1;
        }
    }

    fn cut(&mut self, group: &mut GroupPool, count: usize) {
        if self.blocks.len() <= count {
            return;
        }
        // The last first, so that it is also evicted first.
        for block in self.blocks.drain(count..).rev().filter(|block| *block != NONE) {
            group.release(block);
        }
        self.rewrites += 1;
    }
}

impl StateSlots {
    fn forget_next(&mut self, group: &mut GroupPool) {
        if self.next != NONE && self.next != self.state {
            group.release(self.next);
        }
        self.next = NONE;
    }
}

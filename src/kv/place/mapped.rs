//! Virtual placement: every open sequence has contiguous addresses of its own, into which the pages of its blocks are mapped
//! as it grows. The cache decides which blocks a sequence has, as for a paged one; here the block table is written into the
//! page tables of the machine instead of being given to kernels. Growing never moves anything, and free blocks never need
//! to be neighbours.
//!
//! **When pages are unmapped.** Never because a block is free, only because its place is needed for another one: after the
//! sequence was cut there, or when the addresses have a new owner. Addresses of closed sequences are kept for the next
//! ones, and free blocks that are mapped there go with them (`pool::mapped_free`).
//!
//! Locks: that of a sequence's addresses, which calls for it hold, comes before all of the cache's. Mapping is done without
//! the latter, so nobody else waits for it.

use super::address_space::{AddressSpace, MappedGroup};
use super::arena::SeqView;
use super::geometry::{Geometry, Side};
use crate::base::error::Result;
use crate::base::memory;
use crate::base::status::NMC_ERR_LIMIT;
use crate::cuda::Device;
use crate::kv::cache::Cache;
use crate::kv::error::{Attempt, too_long, unknown};
use crate::kv::seq::{Open, Opened};
use crate::mem::PagePool;
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that are to be copied, before the next call that changes the sequence or the one it was forked from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    /// The group whose page it is.
    pub group: u32,
    /// Address to read.
    pub from: u64,
    /// Address to write.
    pub to: u64,
    /// How many.
    pub bytes: u64,
}

type Shared = Arc<Mutex<AddressSpace>>;

/// The memory of a cache whose sequences are virtual.
#[derive(Debug)]
pub struct Mapped {
    groups: Vec<MappedGroup>,
    /// Whose memory it is, if not the host's.
    device: Option<Arc<Device>>,
    /// Blocks of a sequence at most; addresses have one place more.
    slots: u32,
    per_block: u32,
    /// Tokens of a sequence at most.
    limit: u32,
    open: RwLock<HashMap<u64, Shared>>,
    /// Addresses without an owner, and how many leading blocks they map.
    idle: Mutex<Vec<(usize, Shared)>>,
    next_number: AtomicU64,
}

/// The smallest number of tokens in a block with which a page of every group is a multiple of `granularity`.
/// The geometries may have any.
#[must_use]
pub fn page_tokens(groups: &[Geometry], granularity: u64) -> u64 {
    let gcd = |mut a: u64, mut b: u64| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    groups.iter().fold(1, |all, geometry| {
        let token_bytes = geometry.piece_bytes() / u64::from(geometry.shape().tokens_per_block);
        let tokens = granularity / gcd(granularity, token_bytes);
        // Granularities are powers of two, so this is the larger of the two.
        all / gcd(all, tokens) * tokens
    })
}

impl Mapped {
    /// Gets memory for all blocks of a cache, on the host or on a device. `groups` lay out the addresses of one sequence
    /// and have one block more than a sequence can have.
    pub fn new(cache: &Cache, groups: &[Geometry], limit: u32, device: Option<&Arc<Device>>) -> Result<Self> {
        let (blocks, per_block) = (cache.config().total_blocks, cache.config().tokens_per_block);
        let granularity = PagePool::granularity(device)?;
        let slots = limit.div_ceil(per_block);
        let mut mapped = memory::with_capacity(groups.len())?;
        for (number, geometry) in groups.iter().enumerate() {
            let page = geometry.piece_bytes();
            if !page.is_multiple_of(granularity) {
                let (bytes, least) = (page / u64::from(per_block), page_tokens(groups, granularity));
                crate::bail!(
                    NMC_ERR_INVALID_ARG,
                    "group {number}: a page of {per_block} tokens of {bytes} bytes is not a multiple of {granularity} \
                     bytes; tokens_per_block must be a multiple of {least}"
                );
            }
            if geometry.shape().total_blocks != u64::from(slots) + 1 {
                crate::bail!(NMC_ERR_INTERNAL, "group {number} does not have {slots} blocks and one more");
            }
            let group = MappedGroup::new(*geometry, blocks, device);
            mapped.push(group.map_err(|error| error.context(format_args!("the pages of group {number}")))?);
        }
        Ok(Self {
            groups: mapped,
            device: device.cloned(),
            slots,
            per_block,
            limit,
            open: RwLock::default(),
            idle: Mutex::default(),
            next_number: AtomicU64::new(1),
        })
    }

    /// The device whose memory it is; none for the host's.
    pub const fn device(&self) -> Option<&Arc<Device>> {
        self.device.as_ref()
    }

    /// Bytes of all pages.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.groups.iter().map(|group| group.geometry.block_bytes() * u64::from(group.blocks)).sum()
    }

    /// Bytes of one block in all groups.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        self.groups.iter().map(|group| group.geometry.block_bytes()).sum()
    }

    /// Pages that are mapped now, those that are free or mapped twice as well.
    pub fn mapped_pages(&self) -> Result<u64> {
        let mut spaces = memory::collect(self.open.read().values().cloned())?;
        for (_, space) in self.idle.lock().iter() {
            memory::push(&mut spaces, Arc::clone(space))?;
        }
        Ok(spaces.iter().map(|space| space.lock().mapped_pages()).sum())
    }

    /// Addresses for a sequence of so many blocks: those of a closed one that fit it best, or new ones.
    fn pick(&self, want: usize) -> Result<Shared> {
        let mut idle = self.idle.lock();
        // The fewest that are enough, else the most.
        let fits = |mapped: usize| if mapped >= want { (0, mapped) } else { (1, want - mapped) };
        if let Some(best) = (0..idle.len()).min_by_key(|at| fits(idle[*at].0)) {
            return Ok(idle.swap_remove(best).1);
        }
        drop(idle);
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new(Mutex::new(AddressSpace::new(&self.groups, self.slots + 1, number)?)))
    }

    /// Keeps addresses for a later sequence.
    fn put_away(&self, space: &Shared) {
        let mut now = space.lock();
        (now.owner, now.tokens, now.ready, now.source) = (None, 0, 0, None);
        let mapped = now.leading();
        drop(now);
        let mut idle = self.idle.lock();
        // Where there is no memory for that, they go.
        if memory::reserve(&mut idle, 1).is_ok() {
            idle.push((mapped, Arc::clone(space)));
        }
    }

    /// Runs `body` with the addresses of a sequence. Calls for one sequence wait for each other here.
    fn with<R>(&self, id: u64, body: impl FnOnce(&mut AddressSpace) -> Result<R>) -> Result<R> {
        let Some(space) = self.open.read().get(&id).cloned() else { return Err(unknown(id)) };
        let mut space = space.lock();
        // It may have been closed while this call waited.
        if space.owner != Some(id) {
            return Err(unknown(id));
        }
        body(&mut space)
    }

    /// Releases the addresses that no sequence has; false if there were none.
    fn release_idle(&self) -> bool {
        let idle = std::mem::take(&mut *self.idle.lock());
        !idle.is_empty()
    }

    /// Makes the addresses of a sequence show its blocks.
    fn follow(&self, cache: &Cache, id: u64, space: &mut AddressSpace) -> Result<()> {
        let mut blocks = std::mem::take(&mut space.wanted);
        blocks.clear();
        let read = cache.read(id, |seq| memory::extend(&mut blocks, &seq.blocks));
        let shown = read.and_then(|()| match space.show(&self.groups, &blocks, self.per_block) {
            // A process can have so many mappings, and those of closed sequences count.
            Err(error) if error.status == NMC_ERR_LIMIT && self.release_idle() => {
                space.show(&self.groups, &blocks, self.per_block)
            }
            done => done,
        });
        space.wanted = blocks;
        shown
    }

    /// Opens a sequence and maps its blocks, all or nothing.
    pub fn open(&self, cache: &Cache, id: u64, open: &Open<'_>) -> Result<Attempt<Opened>> {
        if open.n_tokens > self.limit {
            return Err(too_long(id, u64::from(open.n_tokens), self.limit));
        }
        // It may be gone when it is needed; most often it is not, and nothing has to be undone.
        memory::reserve_map(&mut self.open.write(), 1)?;
        let space = self.pick(cache.blocks_for(open.n_tokens))?;
        let address_space = space.lock().number;
        let opened = cache.open(id, &Open { address_space, limit: self.limit, ..*open });
        if !matches!(opened, Ok(Ok(_))) {
            self.put_away(&space);
            return opened;
        }
        self.settle_in(cache, id, &space)?;
        opened
    }

    /// Maps what a new sequence has and makes it known; if that fails, closes it.
    fn settle_in(&self, cache: &Cache, id: u64, space: &Shared) -> Result<()> {
        let mut now = space.lock();
        let mapped = self.follow(cache, id, &mut now).and_then(|()| cache.info(id));
        let known = mapped.and_then(|info| {
            let mut open = self.open.write();
            memory::reserve_map(&mut open, 1)?;
            (now.owner, now.tokens) = (Some(id), info.tokens);
            open.insert(id, Arc::clone(space));
            Ok(())
        });
        drop(now);
        if known.is_err() {
            let closed = cache.close(id, true);
            self.put_away(space);
            return closed.and(known);
        }
        Ok(())
    }

    /// Adds tokens. If pages were mapped ahead this maps nothing.
    #[inline(never)]
    pub fn append(
        &self,
        cache: &Cache,
        id: u64,
        count: u32,
        tokens: Option<&[u32]>,
        importance: Option<f32>,
    ) -> Result<Attempt<()>> {
        self.with(id, |space| {
            let Some(after) = space.tokens.checked_add(count) else {
                return Err(too_long(id, u64::from(space.tokens) + u64::from(count), self.limit));
            };
            // The pages come first, so that a failure leaves the tokens as they are.
            if after > space.ready
                && let Err(room) = self.grow(cache, id, space, after)?
            {
                return Ok(Err(room));
            }
            let done = cache.append(id, count, tokens, importance)?;
            if done.is_ok() {
                space.tokens = after;
            }
            Ok(done)
        })
    }

    /// Adds one token to each of many sequences, and tells `each` what became of it.
    pub fn append_batch(
        &self,
        cache: &Cache,
        ids: &[u64],
        tokens: Option<&[u32]>,
        each: &mut dyn FnMut(usize, Result<Attempt<()>>),
    ) {
        for (at, id) in ids.iter().enumerate() {
            each(at, self.append(cache, *id, 1, tokens.map(|tokens| &tokens[at..=at]), None));
        }
    }

    fn grow(&self, cache: &Cache, id: u64, space: &mut AddressSpace, tokens: u32) -> Result<Attempt<()>> {
        let got = cache.reserve(id, tokens)?;
        if got.is_ok() {
            self.follow(cache, id, space)?;
        }
        Ok(got)
    }

    /// Gets blocks for `tokens` tokens in all and maps them, so that growing to there is a matter of numbers.
    pub fn reserve(&self, cache: &Cache, id: u64, tokens: u32) -> Result<Attempt<()>> {
        self.with(id, |space| self.grow(cache, id, space, tokens))
    }

    /// Cuts a sequence. What it loses stays mapped, as free blocks, until its place is needed.
    pub fn truncate(&self, cache: &Cache, id: u64, tokens: u32) -> Result<Attempt<()>> {
        self.with(id, |space| {
            let done = cache.truncate(id, tokens)?;
            if done.is_ok() {
                space.tokens = tokens;
                self.follow(cache, id, space)?;
            }
            Ok(done)
        })
    }

    /// Opens `child` with the tokens of `parent`. Full blocks are mapped twice, the rest is to be copied.
    pub fn fork(&self, cache: &Cache, parent: u64, child: u64) -> Result<Attempt<()>> {
        self.with(parent, |from| {
            let bases = from.bases()?;
            memory::reserve_map(&mut self.open.write(), 1)?;
            let space = self.pick(cache.blocks_for(from.tokens))?;
            let address_space = space.lock().number;
            let forked = cache.fork_to(parent, child, address_space);
            if !matches!(forked, Ok(Ok(()))) {
                self.put_away(&space);
                return forked;
            }
            let copy = cache.read(child, |seq| Ok(seq.plan.last().copied()));
            space.lock().source = copy.ok().flatten().map(|copy| (copy.from, bases, from.tokens / self.per_block));
            self.settle_in(cache, child, &space)?;
            forked
        })
    }

    /// The copies that a sequence waits for, each of which is told once. More than `most` stay: then it is their number.
    pub fn take_moves(&self, cache: &Cache, id: u64, most: usize) -> Result<std::result::Result<Vec<Move>, usize>> {
        self.with(id, |space| {
            // Of several copies only the last one is of a block that the sequence still has.
            let copy = cache.read(id, |seq| {
                let copy = seq.plan.last().copied();
                Ok(copy.and_then(|copy| Some((copy.from, seq.blocks.iter().position(|block| *block == copy.to)?))))
            })?;
            let Some((block, to)) = copy else { return Ok(Ok(Vec::new())) };
            let count = self.groups.iter().map(|group| group.planes as usize).sum();
            if count > most {
                return Ok(Err(count));
            }
            let mut moves = memory::with_capacity(count)?;
            let own = space.bases()?;
            let (bases, from) = match space.source.take() {
                Some((known, bases, place)) if known == block => (bases, place),
                _ => {
                    let bases = memory::copy(&own)?;
                    // It is nobody's any more here: it gets the last place.
                    space.map(&self.groups, self.slots, &[block])?;
                    (bases, self.slots)
                }
            };
            cache.take_plan(id, usize::MAX)?.ok();
            for (((number, group), own), base) in (0..).zip(&self.groups).zip(own).zip(bases) {
                let bytes = group.geometry.piece_bytes();
                for plane in 0..u64::from(group.planes) {
                    let at = |place: u64| (plane * u64::from(self.slots + 1) + place) * bytes;
                    let (from, to) = (base + at(u64::from(from)), own + at(to as u64));
                    moves.push(Move { group: number, from, to, bytes });
                }
            }
            Ok(Ok(moves))
        })
    }

    /// Closes a sequence; its addresses stay for another one.
    pub fn close(&self, cache: &Cache, id: u64, discard: bool) -> Result<()> {
        let (space, closed) = self.with(id, |space| {
            space.owner = None;
            // First, so that the id can only be taken again when it is gone from here.
            let space = self.open.write().remove(&id);
            Ok((space, cache.close(id, discard)))
        })?;
        if let Some(space) = space {
            self.put_away(&space);
        }
        closed
    }

    pub(super) fn group(&self, group: u32) -> Result<&MappedGroup> {
        let Some(found) = self.groups.get(group as usize) else {
            crate::bail!(NMC_ERR_INVALID_ARG, "group {group} does not exist; there are {}", self.groups.len());
        };
        Ok(found)
    }

    /// K or V of a sequence in one layer: all blocks that are mapped, of which the first ones hold its tokens.
    pub fn view(&self, cache: &Cache, id: u64, group: u32, layer: u32, side: Side) -> Result<SeqView> {
        let mapped = self.group(group)?;
        self.with(id, |space| {
            cache.read(id, |_| Ok(()))?;
            let mut view = mapped.geometry.run_view(layer, side, 0, 1)?;
            view.offset += space.base(group);
            view.shape[0] = u64::from(space.ready / self.per_block);
            Ok(SeqView { view, contiguous: true })
        })
    }

    /// The address of one token's vector.
    pub fn address(&self, cache: &Cache, id: u64, token: u32, group: u32, at: (u32, Side, u32)) -> Result<u64> {
        let mapped = self.group(group)?;
        let (layer, side, head) = at;
        self.with(id, |space| {
            cache.read(id, |_| Ok(()))?;
            let (has, block) = (space.tokens, token / self.per_block);
            if token >= has {
                crate::bail!(NMC_ERR_INVALID_ARG, "sequence {id} has {has} tokens, there is no number {token}");
            }
            let heads = mapped.geometry.run_view(layer, side, block, 1)?.shape[1];
            if u64::from(head) >= heads {
                crate::bail!(NMC_ERR_INVALID_ARG, "head {head} does not exist; there are {heads}");
            }
            let place = mapped.geometry.offset(layer, side, block, head, token % self.per_block, 0);
            Ok(space.base(group) + place)
        })
    }

    /// Whether every address shows what it should.
    pub fn audit(&self, cache: &Cache) -> Result<()> {
        let open = memory::collect(self.open.read().iter().map(|(id, space)| (*id, Arc::clone(space))))?;
        for (id, space) in open {
            let space = space.lock();
            // Closed meanwhile, or its blocks were taken.
            let Ok(blocks) = cache.read(id, |seq| Ok(memory::copy(&seq.blocks))) else { continue };
            let blocks = blocks?;
            if space.owner != Some(id) {
                continue;
            }
            let ready = blocks.len().min((space.ready / self.per_block) as usize);
            let found = space.audit(&self.groups, &blocks[..ready]);
            found.map_err(|error| error.context(format_args!("sequence {id}")))?;
        }
        for (_, space) in self.idle.lock().iter() {
            let found = space.lock().audit(&self.groups, &[]);
            found.map_err(|error| error.context("addresses without a sequence"))?;
        }
        Ok(())
    }
}

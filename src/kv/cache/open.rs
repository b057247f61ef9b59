//! How sequences begin and end: opened, forked, closed, and known by their ids and names meanwhile.

use super::Cache;
use super::lane::{own_lane, slot_of, uid_of};
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::{NMC_ERR_EXISTS, NMC_ERR_NOT_FOUND};
use crate::kv::config::WhenFull;
use crate::kv::error::{Attempt, busy, evicted};
use crate::kv::hash::BlockHash;
use crate::kv::pool::Keep;
use crate::kv::pool::evict::PRIORITIES;
use crate::kv::seq::{Editor, MAX_TOKENS, Open, Opened, Placement, Seq, State};

#[cold]
fn name_taken(name: &[u8]) -> Error {
    let text = String::from_utf8_lossy(name);
    Error::new(NMC_ERR_EXISTS, format!("a sequence named '{text}' is already open"))
}

impl Cache {
    fn check_open(&self, open: &Open<'_>) -> Result<()> {
        let full = (open.n_tokens / self.per_block()) as usize;
        if open.n_tokens > MAX_TOKENS {
            crate::bail!(NMC_ERR_LIMIT, "{} tokens are more than a sequence can have ({MAX_TOKENS})", open.n_tokens);
        }
        if open.tokens.is_some_and(|tokens| tokens.len() != open.n_tokens as usize) {
            crate::bail!(NMC_ERR_INVALID_ARG, "tokens must be given for all {} or none", open.n_tokens);
        }
        if let Some(hashes) = open.hashes {
            if hashes.len() != full {
                crate::bail!(NMC_ERR_INVALID_ARG, "{} hashes for {full} full blocks", hashes.len());
            }
            if self.supply.config.chain.needs_comparison() && open.tokens.is_none() {
                crate::bail!(NMC_ERR_INVALID_ARG, "with this hash the tokens are compared: give them with the hashes");
            }
        }
        if open.contiguous && !self.supply.config.own_groups.is_empty() {
            crate::bail!(
                NMC_ERR_UNSUPPORTED,
                "contiguous sequences are not for a cache that has groups with blocks of their own"
            );
        }
        if open.priority >= PRIORITIES {
            crate::bail!(NMC_ERR_INVALID_ARG, "priority {} is not in 0..{}", open.priority, PRIORITIES);
        }
        Ok(())
    }

    /// Opens a sequence: takes what the cache has of its tokens and gets blocks for the rest, all or nothing.
    pub fn open(&self, id: u64, open: &Open<'_>) -> Result<Attempt<Opened>> {
        self.check_open(open)?;
        // Before anything is evicted for it; looked at again when it is entered.
        self.table.check_vacant(id)?;
        self.check_name(open.name)?;
        self.reserve_roots()?;
        let prefix = self.supply.config.prefix && !open.no_publish && (open.tokens.is_some() || open.hashes.is_some());
        let root = if prefix && self.needs_root(open.tokens) {
            self.supply.config.chain.root(&[open.salt])
        } else {
            BlockHash::default()
        };
        let own;
        let hashes = match (prefix, open.hashes) {
            (false, _) => &[][..],
            (true, Some(given)) => given,
            (true, None) => {
                own = self.hashes(root, open.tokens.unwrap_or_default())?;
                &own
            }
        };
        let whole = self.blocks_for(open.n_tokens);
        if self.supply.config.when_full == WhenFull::Shorten {
            // It gets what there is, and spare blocks of other lanes are there, too.
            let room = self.supply.room(0);
            if room.free + room.evictable < whole as u64 {
                self.flush()?;
            }
        }
        self.with_room(id, whole, || self.try_open(id, open, root, hashes, prefix))
    }

    fn try_open(
        &self,
        id: u64,
        open: &Open<'_>,
        root: BlockHash,
        hashes: &[BlockHash],
        prefix: bool,
    ) -> Result<Attempt<Opened>> {
        let lane_number = own_lane();
        let mut lane = self.lanes[lane_number].0.lock();
        let lane = &mut *lane;
        let at = lane.vacancy()?;
        let seq = &mut lane.seqs[at];
        seq.reset();
        seq.address_space = open.address_space;
        seq.placement = match (open.address_space, open.contiguous) {
            (0, false) => Placement::Paged,
            (0, true) => Placement::Run,
            _ => Placement::Virtual,
        };
        seq.known = prefix && open.tokens.is_some();
        (seq.root, seq.chain) = (root, root);
        let expiry = if open.ttl_ms == 0 { 0 } else { self.supply.ticks_after(open.ttl_ms) };
        seq.keep = Keep { priority: open.priority, expiry };
        seq.limit = if open.limit == 0 { MAX_TOKENS } else { open.limit };
        let editor = &mut Editor { supply: &self.supply, spare: &mut lane.spare };
        let got = match editor.fill(seq, open, hashes) {
            Ok(Ok(opened)) => opened,
            other => {
                lane.vacate(at);
                return other;
            }
        };
        let seq = &mut lane.seqs[at];
        (seq.id, seq.state) = (id, State::Open);
        lane.opened += 1;
        seq.uid = uid_of(lane_number, lane.opened);
        seq.last_use = self.stamp(&mut lane.tick);
        let named = self.enter(id, slot_of(lane_number, at), open.name);
        if let Err(error) = named {
            let seq = &mut lane.seqs[at];
            Editor { supply: &self.supply, spare: &mut lane.spare }.empty(seq)?;
            lane.vacate(at);
            return Err(error);
        }
        let seq = &mut lane.seqs[at];
        seq.name = open.name.map(Box::from);
        seq.find_ceiling(self.supply.config.tokens_per_block, self.supply.config.window);
        lane.hit_tokens += u64::from(got.hit_tokens);
        lane.asked_tokens += u64::from(open.n_tokens);
        Ok(Ok(got))
    }

    /// Makes sure that one more sequence can publish its first block whatever the others do.
    fn reserve_roots(&self) -> Result<()> {
        if self.supply.config.prefix && self.supply.config.chain.needs_comparison() {
            self.supply.pool.lock().reserve_roots(self.table.count() + 1)?;
        }
        Ok(())
    }

    /// Opens `child` with the tokens of `parent`. Full blocks are shared; a block that is not full is copied.
    pub fn fork(&self, parent: u64, child: u64) -> Result<Attempt<()>> {
        self.fork_to(parent, child, 0)
    }

    /// The same for a child whose blocks these addresses will map.
    pub fn fork_to(&self, parent: u64, child: u64, address_space: u64) -> Result<Attempt<()>> {
        self.with_room(parent, 0, || self.try_fork(parent, child, address_space))
    }

    fn try_fork(&self, parent: u64, child: u64, address_space: u64) -> Result<Attempt<()>> {
        let (mut lane, from) = self.locked(parent)?;
        let lane = &mut *lane;
        if lane.seqs[from].state == State::Evicted {
            return Err(evicted(parent));
        }
        if lane.seqs[from].fetching != 0 {
            return Err(busy(parent));
        }
        self.table.check_vacant(child)?;
        self.reserve_roots()?;
        let at = lane.vacancy()?;
        let mut new = std::mem::replace(&mut lane.seqs[at], Seq::new());
        new.reset();
        new.address_space = address_space;
        let mut editor = Editor { supply: &self.supply, spare: &mut lane.spare };
        let forked = editor.fork(&mut lane.seqs[from], &mut new);
        let done = match forked {
            Ok(Ok(())) => {
                (new.id, new.state) = (child, State::Open);
                lane.opened += 1;
                new.uid = uid_of(lane.number, lane.opened);
                new.last_use = self.stamp(&mut lane.tick);
                new.find_ceiling(self.supply.config.tokens_per_block, self.supply.config.window);
                self.enter(child, slot_of(lane.number, at), None).map(Ok)
            }
            other => other,
        };
        if !matches!(done, Ok(Ok(()))) {
            Editor { supply: &self.supply, spare: &mut lane.spare }.empty(&mut new)?;
        }
        lane.seqs[from].find_ceiling(self.supply.config.tokens_per_block, self.supply.config.window);
        lane.seqs[at] = new;
        if !matches!(done, Ok(Ok(()))) {
            lane.vacate(at);
        }
        done
    }

    /// Closes a sequence. Full blocks of what it computed stay in the cache, unless it is to be `discard`ed.
    pub fn close(&self, id: u64, discard: bool) -> Result<()> {
        let (mut lane, at) = self.locked(id)?;
        let lane = &mut *lane;
        let seq = &mut lane.seqs[at];
        let mut editor = Editor { supply: &self.supply, spare: &mut lane.spare };
        let settles = !discard && seq.state == State::Open && seq.fetching == 0;
        let published = if settles { editor.settle(seq) } else { Ok(()) };
        if settles && !seq.groups.is_empty() {
            // Its slot would be free otherwise.
            editor.settle_groups(seq, true);
        }
        let emptied = editor.empty(seq);
        let name = seq.name.take();
        // The name first: while the id is still there, nobody else can take it.
        if let Some(name) = name {
            self.names.lock().remove(&name);
        }
        {
            let _table = self.ids.lock();
            self.table.remove(id);
        }
        lane.vacate(at);
        published.and(emptied)
    }

    fn check_name(&self, name: Option<&[u8]>) -> Result<()> {
        match name {
            Some(name) if self.names.lock().contains_key(name) => Err(name_taken(name)),
            _ => Ok(()),
        }
    }

    /// Makes a sequence known by its id, and by its name if it has one.
    fn enter(&self, id: u64, slot: u32, name: Option<&[u8]>) -> Result<()> {
        let mut names = name.map(|name| (self.names.lock(), name));
        if let Some((names, name)) = &names
            && names.contains_key(*name)
        {
            return Err(name_taken(name));
        }
        if let Some((names, _)) = &mut names {
            memory::reserve_map(names, 1)?;
        }
        {
            let _table = self.ids.lock();
            self.table.insert(id, slot)?;
        }
        if let Some((names, name)) = &mut names {
            names.insert(Box::from(*name), id);
        }
        Ok(())
    }

    /// Whether a sequence with this id is open.
    pub fn has(&self, id: u64) -> bool {
        let _table = self.ids.lock();
        self.table.hint(id).is_some()
    }

    /// The id of a named sequence.
    pub fn find(&self, name: &[u8]) -> Result<u64> {
        let found = self.names.lock().get(name).copied();
        found.ok_or_else(|| {
            let text = String::from_utf8_lossy(name).into_owned();
            Error::new(NMC_ERR_NOT_FOUND, format!("no sequence named '{text}' is open"))
        })
    }
}

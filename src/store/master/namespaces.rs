//! Namespaces: keys of their own, a quota, and forgetting everything at once.

use super::*;

impl Master {
    /// Opens the namespace `name`, making it if need be; a quota that is given replaces the former one.
    pub fn namespace(&mut self, name: &[u8], quota_bytes: Option<u64>) -> Result<u32> {
        let map = Arc::clone(&self.map);
        let view = map.view();
        if name.is_empty() || name.len() > MAX_NAMESPACE_NAME {
            crate::bail!(
                NMC_ERR_INVALID_ARG,
                "a namespace's name has {} bytes; 1 to {MAX_NAMESPACE_NAME} are possible",
                name.len()
            );
        }
        let mut free = None;
        for id in 1..u32::try_from(MAX_NAMESPACES).unwrap_or(0) {
            let Some(ns) = view.namespace(id) else { continue };
            if ns.name_len.load(Relaxed) == 0 {
                free = free.or(Some((id, ns)));
            } else if ns.name() == name {
                if let Some(quota) = quota_bytes {
                    self.charge(view, id, |account| account.quota = quota);
                }
                return Ok(id);
            }
        }
        let Some((id, ns)) = free else {
            crate::bail!(NMC_ERR_LIMIT, "all {MAX_NAMESPACES} namespaces are in use");
        };
        self.charge(view, id, |account| account.quota = quota_bytes.unwrap_or(0));
        ns.set_name(name);
        Ok(id)
    }

    /// Forgets everything in a namespace at once; the memory comes back bit by bit.
    pub fn flush(&mut self, namespace: u32) -> Result<()> {
        let map = Arc::clone(&self.map);
        let view = map.view();
        let Some(ns) = view.namespace(namespace) else {
            crate::bail!(NMC_ERR_NOT_FOUND, "there is no namespace {namespace}");
        };
        let next = ns.generation.load(Relaxed).wrapping_add(1) & 0xff_ffff;
        ns.generation.store(next, Release);
        self.flushing = Some(0);
        Ok(())
    }

    pub(super) fn continue_flush(&mut self, view: &View<'_>) {
        let Some(from) = self.flushing else { return };
        let all = self.map.params().max_objects;
        let to = from.saturating_add(FLUSH).min(all);
        let over = |index: &u32| {
            let word = self.book(*index).namespace;
            self.is_current(*index) && namespace_word(view, word & 0xff) != word
        };
        let batch: Vec<u32> = (from..to).filter(over).collect();
        self.drop_objects(view, &batch, false);
        if !batch.is_empty() {
            self.count_all();
        }
        self.flushing = Some(to).filter(|to| *to < all);
    }

    pub(super) fn respect_quota(&mut self, view: &View<'_>, namespace: u32, quota: u64, need: u64) -> Result<()> {
        let used = |master: &Self| master.accounts.get(namespace as usize).map_or(0, |account| account.used);
        let over = |master: &Self| used(master).saturating_add(need).saturating_sub(quota);
        if over(self) == 0 {
            return Ok(());
        }
        if need > quota {
            crate::bail!(NMC_ERR_NO_SPACE, "a value of {need} bytes in pages does not fit the quota of {quota} bytes");
        }
        // What was published, unpinned or given up since the last look can go as well.
        self.look_at_all_writing(view, now_ns(), BUDGET);
        self.sweep_quarantine(view, SWEEP);
        self.sweep_limbo(view, BUDGET);
        if over(self) == 0 {
            return Ok(());
        }
        self.read_pins(view);
        let queues: Vec<ListId> = self.ranks.iter().flat_map(|r| r.queues.all()).collect();
        // The objects of other namespaces may be many: the next call goes on where this one stops.
        let place = self.quota_at.get(namespace as usize).copied().flatten();
        let first = place.and_then(|index| queues.iter().position(|q| self.lists.list_of(index) == Some(*q)));
        let (mut budget, mut victims, mut gained, mut next) = (BUDGET, Vec::new(), 0, None);
        'walk: for step in 0..queues.len() + usize::from(first.is_some()) {
            let list = queues[(first.unwrap_or(0) + step) % queues.len()];
            let mut at = if step == 0 { place.filter(|_| first.is_some()) } else { None };
            at = at.or_else(|| self.lists.head(list));
            while let Some(index) = at {
                if gained >= over(self) || budget == 0 {
                    next = Some(index);
                    break 'walk;
                }
                if step == queues.len() && Some(index) == place {
                    break 'walk;
                }
                at = self.lists.after(index);
                budget -= 1;
                let book = self.book(index);
                let own = book.namespace & 0xff == namespace;
                if own && book.class().0 != Retain::Hard && self.pinned.binary_search(&index).is_err() {
                    gained += self.paged_bytes(index);
                    victims.push(index);
                }
            }
        }
        if let Some(place) = self.quota_at.get_mut(namespace as usize) {
            *place = next;
        }
        for batch in victims.chunks(BATCH) {
            self.evict(view, batch);
        }
        self.count_all();
        if over(self) == 0 {
            return Ok(());
        }
        if need <= quota && budget == 0 {
            crate::bail!(NMC_ERR_BUSY, "room within the namespace's {quota} bytes is being looked for; try again");
        }
        crate::bail!(
            NMC_ERR_NO_SPACE,
            "the namespace uses {} of its {quota} bytes, and {need} more are wanted",
            used(self)
        )
    }
}

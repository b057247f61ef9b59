//! Namespaces: keys of their own, a quota, and forgetting everything at once.

use super::*;

impl Master {
    /// Opens the namespace `name`, making it if need be; a quota that is given replaces the former one.
    pub fn namespace(&mut self, name: &[u8], quota_bytes: Option<u64>) -> Result<u32> {
        let map = Arc::clone(&self.map);
        let view = map.view()?;
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
                    ns.quota_bytes.store(quota, Relaxed);
                }
                return Ok(id);
            }
        }
        let Some((id, ns)) = free else {
            crate::bail!(NMC_ERR_LIMIT, "all {MAX_NAMESPACES} namespaces are in use");
        };
        ns.quota_bytes.store(quota_bytes.unwrap_or(0), Relaxed);
        ns.set_name(name);
        Ok(id)
    }

    /// Forgets everything in a namespace at once; the memory comes back bit by bit.
    pub fn flush(&mut self, namespace: u32) -> Result<()> {
        let map = Arc::clone(&self.map);
        let view = map.view()?;
        let Some(ns) = view.namespace(namespace) else {
            crate::bail!(NMC_ERR_NOT_FOUND, "there is no namespace {namespace}");
        };
        let next = (ns.generation.load(Relaxed) + 1) & 0xff_ffff;
        ns.generation.store(next, Release);
        self.flushing = Some(0);
        Ok(())
    }

    pub(super) fn continue_flush(&mut self, view: &View<'_>) {
        let Some(from) = self.flushing else { return };
        let all = self.map.params().max_objects;
        let to = from.saturating_add(FLUSH).min(all);
        for index in from..to {
            let Some(header) = view.object(index) else { continue };
            let word = header.namespace.load(Relaxed);
            if object::is_live(header.control.load(Relaxed)) && namespace_word(view, word & 0xff) != word {
                self.drop_object(view, index, false);
                let _ = self.count_of(view, index);
            }
        }
        self.flushing = Some(to).filter(|to| *to < all);
    }

    pub(super) fn respect_quota(
        &mut self,
        view: &View<'_>,
        namespace: u32,
        quota: u64,
        need: u64,
        now: u64,
    ) -> Result<()> {
        let used = || view.namespace(namespace).map_or(0, |ns| ns.bytes_used.load(Relaxed));
        let mut budget = BUDGET;
        let queues: Vec<ListId> = self.ranks.iter().flat_map(|r| r.queues.all()).collect();
        if used() + need > quota {
            // What was published or unpinned since the last look can go as well.
            self.look_at_all_writing(view, now);
            self.sweep_limbo(view, usize::MAX);
            self.read_pins(view);
        }
        for list in queues {
            let mut at = self.lists.head(list);
            while let Some(index) = at.filter(|_| used() + need > quota && budget > 0) {
                at = self.lists.after(index);
                budget -= 1;
                let Some(header) = view.object(index) else { continue };
                let hard = flags_of(header).0 == Retain::Hard;
                // What is pinned would make no room.
                let stays = hard || self.pinned.binary_search(&index).is_ok();
                if header.namespace.load(Relaxed) & 0xff == namespace && !stays {
                    self.evict(view, &[index]);
                    self.count_of(view, index)?;
                }
            }
        }
        if used() + need > quota {
            crate::bail!(
                NMC_ERR_NO_SPACE,
                "the namespace uses {} of its {quota} bytes, and {need} more are wanted",
                used()
            );
        }
        Ok(())
    }
}

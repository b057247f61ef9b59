//! A new master takes over: everything it needs is in the slabs.

use super::*;

impl Master {
    /// Takes over a store whose master died: everything is in the slabs. Clients that are entered there count as
    /// attached until they are known to be gone.
    pub fn take_over(map: Arc<Map>) -> Result<Self> {
        let mut master = Self::empty(Arc::clone(&map))?;
        let view = map.view();
        let p = *map.params();
        for (client, number) in master.clients.iter_mut().zip(0u32..) {
            if view.client(number).is_some_and(|entry| entry.generation.load(Acquire) & 1 == 1) {
                *client = Client::Attached;
            }
        }
        let mut pages: Vec<Vec<Run>> = vec![Vec::new(); p.world_size as usize];
        let mut keys = Vec::new();
        let mut linked: Vec<(u64, u32)> = Vec::new();
        let mut last_epoch = 0;
        for ns in (0..u32::try_from(MAX_NAMESPACES).unwrap_or(0)).filter_map(|id| view.namespace(id)) {
            ns.bytes_used.store(0, Relaxed);
            ns.objects.store(0, Relaxed);
        }
        for index in 0..p.max_objects {
            let (Some(header), Some(words)) = (view.object(index), view.publish(index)) else { continue };
            let word = header.control.load(Acquire);
            let epoch = object::epoch(word);
            last_epoch = last_epoch.max(epoch);
            if object::state(word) == object::RESERVED {
                continue;
            }
            let owner = header.owner_rank.load(Relaxed);
            let n_extents = header.n_extents.load(Relaxed) as usize;
            let Some(of_rank) = pages.get_mut(owner as usize) else { return Err(corrupt(index)) };
            for i in 0..n_extents {
                let Some((first, count)) = view.extent(header, i) else { return Err(corrupt(index)) };
                of_rank.push(Run { first, count });
            }
            keys.extend(key_run(header));
            if let Some(ns) = view.namespace(header.namespace.load(Relaxed) & 0xff) {
                ns.bytes_used.fetch_add(paged_bytes(header), Relaxed);
                ns.objects.fetch_add(1, Relaxed);
            }
            let published = words.published.load(Acquire) == epoch;
            let rank = &mut master.ranks[owner as usize];
            // Of a writer that left or is gone nothing stores any more: the former master waited for a reader.
            let writer = master.clients.get(header.writer.load(Relaxed) as usize);
            let stopped = published || writer.is_none_or(|client| *client == Client::Free);
            let list = match (object::is_live(word), stopped) {
                (true, _) => WRITING,
                (false, true) => LIMBO,
                (false, false) => QUARANTINE,
            };
            match list {
                WRITING => rank.writing += 1,
                LIMBO => rank.limbo += paged_bytes(header),
                _ => rank.quarantined += paged_bytes(header),
            }
            master.lists.move_to(index, list);
            if list == WRITING && header.flags.load(Relaxed) & FLAG_HIDDEN == 0 {
                linked.push((header.key_hash.load(Relaxed), index));
            }
        }
        for (rank, used) in master.ranks.iter_mut().zip(&mut pages) {
            rank.pages = Runs::with_used(p.pages(), used)?;
        }
        master.keys = Runs::with_used(p.key_units(), &mut keys)?;
        master.next_epoch = view.header().next_epoch.load(Relaxed).max(last_epoch + 1);
        // Oldest first, so that eviction goes on in the same order.
        let epoch_of = |index: u32| view.object(index).map_or(0, |h| object::epoch(h.control.load(Relaxed)));
        let mut order: Vec<u32> = master.lists.iter(WRITING).collect();
        order.sort_by_key(|index| epoch_of(*index));
        for index in order {
            master.lists.move_to(index, WRITING);
        }
        reach("takeover.counted");
        master.index.rebuild(view, linked.iter().copied());
        reach("takeover.indexed");
        master.drop_replaced(view, &mut linked);
        master.flushing = Some(0);
        master.look_at_all_writing(view, now_ns(), usize::MAX);
        // The former master may have died between a kill and its fence.
        object::settle();
        master.sweep_limbo(view, usize::MAX);
        reach("takeover.swept");
        master.count_all();
        master.publish_counters();
        Ok(master)
    }

    /// A master that died between the two steps of a replacement left two objects with one key: the one that came last
    /// stays. Readers may have seen it already.
    pub(super) fn drop_replaced(&mut self, view: &View<'_>, linked: &mut [(u64, u32)]) {
        linked.sort_unstable();
        let key = |index: u32| view.object(index).map(|h| (view.key_of(h), h.namespace.load(Relaxed)));
        let since = |index: u32| view.object(index).map_or(0, |h| h.state_ts.load(Relaxed));
        for at in 1..linked.len() {
            let (hash, index) = linked[at];
            for (other_hash, other) in linked[..at].iter().rev() {
                if *other_hash != hash {
                    break;
                }
                let both_live = [index, *other].iter().all(|i| self.lists.list_of(*i) == Some(WRITING));
                if both_live && key(index) == key(*other) {
                    let older = if since(index) < since(*other) { index } else { *other };
                    self.drop_object(view, older, false);
                }
            }
        }
    }
}

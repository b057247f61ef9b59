//! How a disk comes below a store and goes, and what the master then finds in memory and there.

use super::*;
use crate::layout::store::cluster_of;

/// Before every place in a drop log.
const FIRST: (u64, u64) = (1, 0);

impl Master {
    /// Fails while the disk below the store is not there that was there under the former master: what is on it must be known
    /// before anything is stored, removed or replaced.
    pub(in crate::store::master) fn check_disk(&self) -> Result<()> {
        let named = self.map.view().header().disk.load(Relaxed);
        if self.disk.is_none() && named == DISK_EXPECTED {
            crate::bail!(
                NMC_ERR_UNAVAILABLE,
                "the store waits for its tier (NMC_STORE_WAIT_FOR_TIER): open it in the process of the store's master \
                 (nmc_tier_open)"
            );
        }
        if self.disk.is_none() && named != 0 {
            crate::bail!(
                NMC_ERR_UNAVAILABLE,
                "the store has a tier on disk whose owner is gone: reads go on; open the tier again in the process of the \
                 store's master (nmc_tier_open)"
            );
        }
        Ok(())
    }

    /// Fails if the disk below the store was another one under the former master: what was removed since then must be written
    /// down there.
    pub fn check_tier(&self, tier: u64) -> Result<()> {
        let header = self.map.view().header();
        let former = header.tier.load(Relaxed);
        let gone = self.disk.is_none() && ![0, DISK_EXPECTED].contains(&header.disk.load(Relaxed));
        if gone && former != 0 && former != tier {
            crate::bail!(
                NMC_ERR_MISMATCH,
                "the store's tier under its former master was another directory ({former:x}, this one is {tier:x}): open that one, \
                 or give up what is there with NMC_TIER_OTHER_DIRECTORY"
            );
        }
        Ok(())
    }

    /// From now on there is a disk, with these namespaces and records. What memory has counts: records of the same keys that are
    /// not the same values end. Gives how many records found no room, the oldest, which end too.
    pub fn attach_disk(&mut self, map: Arc<DiskMap>, content: &DiskContent<'_>) -> Result<u64> {
        let DiskContent { names, found, last_epoch, position } = *content;
        let mut disk = Disk::new(map, self.map.params().max_objects, self.map.params().world_size)?;
        self.next_epoch = self.next_epoch.max(last_epoch.saturating_add(1));
        for (name, space) in names {
            let Some(place) = disk.spaces.get_mut(space.number as usize) else { continue };
            *place = Some(Known { name: *name, generation: space.generation, objects: 0, since: 0 });
        }
        let mut left_out = 0;
        for record in found {
            memory::reserve(&mut disk.marks, 1)?;
            let Entry { fingerprint, epoch, spot, .. } = record.entry;
            match disk.find(fingerprint) {
                Some((_, there)) if there.epoch >= epoch => disk.marks.push(Mark::Dead { spot, entered: true }),
                there => {
                    if let Some((index, _)) = there {
                        disk.kill(index);
                    }
                    if disk.insert(&record.entry, record.put).is_none() {
                        left_out += 1;
                        disk.marks.push(Mark::Dead { spot, entered: true });
                    }
                }
            }
        }
        let former = self.disk.replace(disk);
        let shadowed = self.meet_memory().and_then(|()| self.meet_position(position));
        if let Err(error) = shadowed {
            self.disk = former;
            return Err(error);
        }
        // There may be any number of them.
        self.facts_missing = true;
        let map = Arc::clone(&self.map);
        map.view().header().next_epoch.store(self.next_epoch, Release);
        if let Some(disk) = &self.disk {
            map.view().header().tier.store(disk.map.tier(), Relaxed);
            map.view().header().name_disk(disk.map.id());
        }
        Ok(left_out)
    }

    /// How far memory and the disk have applied the drop log. Memory is further if it went on in the cluster without the disk, since whoever says
    /// that goes on from a new place, or if it went on in another cluster: then nobody tells again what the disk has missed.
    fn meet_position(&mut self, on_disk: Option<(u64, u64)>) -> Result<()> {
        let map = Arc::clone(&self.map);
        let header = map.view().header();
        let Some(memory) = header.position() else {
            on_disk.into_iter().for_each(|position| header.set_position(position));
            return Ok(());
        };
        let last = header.tier.load(Relaxed);
        // One that was never in a cluster may have what memory had when it was there, and what was dropped of memory since.
        let found = on_disk.or((last != 0).then_some(FIRST)).unwrap_or(memory);
        let behind = found < memory || cluster_of(found.0) != cluster_of(memory.0);
        let position = if behind { found } else { memory };
        if on_disk != Some(position) {
            self.room_for_marks(1)?;
            if let Some(disk) = &mut self.disk {
                disk.marks.push(Mark::Position { term: position.0, number: position.1 });
            }
        }
        if behind {
            // If it is the same one as before its owner died, what came from it by then came from there too.
            let again = header.apart().is_some() && self.disk.as_ref().is_some_and(|disk| disk.map.tier() == last);
            header.is_apart_from(position, if again { header.apart_since() } else { self.next_epoch });
        }
        // One that its owner never closed is not this one.
        if last != 0 && self.disk.as_ref().is_some_and(|disk| disk.map.tier() != last) {
            header.left();
        }
        Ok(())
    }

    /// Compares what is in memory with the records of a disk that has just come.
    fn meet_memory(&mut self) -> Result<()> {
        let map = Arc::clone(&self.map);
        let view = map.view();
        // What its writer has published counts; what is still being written is not a value yet.
        self.look_at_all_writing(view, now_ns(), usize::MAX);
        let mut late = Vec::new();
        for namespace in 0..u32::try_from(MAX_NAMESPACES).unwrap_or(0) {
            let named = |id: u32| view.namespace(id).is_some_and(|ns| id == 0 || ns.name_len.load(Relaxed) > 0);
            if named(namespace) {
                let name = view.namespace(namespace).map(crate::layout::store::Namespace::name).unwrap_or_default();
                self.give_space(namespace, &name)?;
            }
        }
        for index in 0..map.params().max_objects {
            let Some(book) = self.books.get_mut(index as usize) else { continue };
            book.disk = 0;
            let (namespace, hidden) = (book.namespace & 0xff, book.is_hidden());
            if hidden || !book::is_current(&self.lists, index) {
                continue;
            }
            let (Some(header), Some(disk)) = (view.object(index), &mut self.disk) else { continue };
            let Some(wanted) = disk.map.fingerprint(namespace, &view.key_of(header)) else { continue };
            let Some((entry, _)) = disk.find(wanted) else { continue };
            if book.is_of(disk.map.view().put(entry)) {
                disk.marry(index, book, entry, true);
            } else if self.lists.list_of(index) == Some(WRITING) {
                // Its key has a value: the writer comes too late.
                memory::push(&mut late, index)?;
            } else {
                memory::reserve(&mut disk.marks, 1)?;
                disk.kill(entry);
            }
        }
        for index in late {
            self.end_writing(view, index, Fate::GivenUp, false);
            self.count_of(index);
        }
        Ok(())
    }

    /// The disk is to come before anything is stored.
    pub fn wait_for_disk(&self) {
        self.map.view().header().name_disk(DISK_EXPECTED);
    }

    /// The disk goes: what is only there cannot be read any more.
    /// `named` is what the header says from then on: 0, that one is expected, or that of a former owner.
    pub fn detach_disk(&mut self, named: u64) {
        let Some(disk) = self.disk.take() else { return };
        let map = Arc::clone(&self.map);
        let (view, header) = (map.view(), map.view().header());
        if let Some(since) = header.since_apart() {
            // With the disk goes the only one who could tell it from the rest.
            let entries = 0..disk.map.view().capacity();
            let brought: Vec<u32> = entries.filter_map(|entry| disk.brought(&self.books, entry, since)).collect();
            self.drop_objects(view, &brought, false);
        }
        self.skip_facts(view, self.newest_fact);
        header.leave_disk();
        header.name_disk(named);
    }

    /// The disk for a master that begins anew after a bug.
    pub(in crate::store::master) fn renew_disk(&mut self, former: Option<&Disk>) -> Result<()> {
        let Some(former) = former else { return Ok(()) };
        self.disk = Some(former.renew()?);
        Ok(())
    }

    /// After the objects were read: which of them the disk has.
    pub(in crate::store::master) fn look_at_disk(&mut self) {
        let map = Arc::clone(&self.map);
        let view = map.view();
        let Some(disk) = &mut self.disk else { return };
        for (book, index) in self.books.iter_mut().zip(0u32..) {
            book.disk = 0;
            if book.is_hidden() || !book::is_current(&self.lists, index) {
                continue;
            }
            let Some(header) = view.object(index) else { continue };
            let wanted = disk.map.fingerprint(book.namespace & 0xff, &view.key_of(header));
            match wanted.and_then(|wanted| disk.find(wanted)) {
                Some((entry, _)) if book.is_of(disk.map.view().put(entry)) => disk.marry(index, book, entry, true),
                // The bug was between a replacement and the end of what it replaced.
                Some((entry, _)) => disk.kill(entry),
                None => {}
            }
        }
    }
}

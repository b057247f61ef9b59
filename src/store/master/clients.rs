//! Clients: their pin blocks, and what is left when they go.

use super::*;

impl Master {
    /// Gives a client a pin block.
    pub fn attach(&mut self, info: &ClientInfo) -> Result<u32> {
        let map = Arc::clone(&self.map);
        let view = map.view();
        self.look_at_leaving(view);
        let Some(client) = self.clients.iter().position(|c| *c == Client::Free) else {
            crate::bail!(NMC_ERR_LIMIT, "all {} places for clients are taken", self.clients.len());
        };
        self.clients[client] = Client::Attached;
        let client = u32::try_from(client).unwrap_or(0);
        if let Some(entry) = view.client(client) {
            entry.pid.store(info.pid, Relaxed);
            entry.start_time.store(info.start_time, Relaxed);
            entry.rank.store(info.rank, Relaxed);
            entry.rank_generation.store(info.rank_generation, Relaxed);
            if let Some(place) = self.places.get_mut(client as usize) {
                *place = Place { generation: place.generation.wrapping_add(1) | 1, info: *info, high_water: 0 };
                entry.generation.store(place.generation, Release);
            }
        }
        Ok(client)
    }

    /// Clients that are entered for an earlier holder of a rank. It is given to another process only when its former
    /// holder is gone: so are they.
    pub fn former(&self, rank: u32, generation: u64) -> Result<Vec<u32>> {
        let is_former = |client: &u32| {
            let info = self.info_of(*client);
            info.rank == rank && info.rank_generation < generation
        };
        Ok(self.attached().into_iter().filter(is_former).collect())
    }

    /// A client leaves in order: it writes nothing any more, and has unpinned what no stream holds.
    pub fn detach(&mut self, client: u32) -> Result<()> {
        let map = Arc::clone(&self.map);
        let view = map.view();
        self.end_plans(view, client, &[])?;
        if let Some(state) = self.clients.get_mut(client as usize) {
            *state = Client::Leaving;
        }
        self.look_at_leaving(view);
        Ok(())
    }

    /// Provably nothing of a client is left: its pins end, and what it was writing is given up.
    pub fn client_gone(&mut self, client: u32) -> Result<()> {
        let map = Arc::clone(&self.map);
        let view = map.view();
        self.end_plans(view, client, &[])?;
        if let Some((_, slots)) = view.pins(client) {
            for slot in slots {
                slot.store(0, Relaxed);
            }
        }
        reach("master.unpinned");
        self.release_client(view, client);
        self.sweep_limbo(view, usize::MAX);
        Ok(())
    }

    pub(super) fn look_at_leaving(&mut self, view: &View<'_>) {
        for number in 0..u32::try_from(self.clients.len()).unwrap_or(0) {
            let empty = |slots: &[std::sync::atomic::AtomicU64]| slots.iter().all(|s| object::scan(s) == 0);
            if self.clients[number as usize] == Client::Leaving && view.pins(number).is_some_and(|(_, s)| empty(s)) {
                self.release_client(view, number);
            }
        }
    }

    pub(super) fn release_client(&mut self, view: &View<'_>, client: u32) {
        if let Some(state) = self.clients.get_mut(client as usize) {
            *state = Client::Free;
        }
        if let Some((high_water, _)) = view.pins(client) {
            high_water.store(0, Relaxed);
        }
        if let (Some(entry), Some(place)) = (view.client(client), self.places.get_mut(client as usize)) {
            *place =
                Place { generation: place.generation.wrapping_add(1) & !1, info: ClientInfo::NOBODY, high_water: 0 };
            entry.generation.store(place.generation, Release);
        }
    }

    /// Everything that a client is writing is given up, except plans with the epochs in `kept`. What it has published
    /// stays.
    pub fn end_plans(&mut self, view: &View<'_>, client: u32, kept: &[u64]) -> Result<()> {
        let of_client = |master: &Self, index: u32| {
            let book = master.book(index);
            book.writer == client && !kept.contains(&book.epoch)
        };
        let now = now_ns();
        let writing: Vec<u32> = self.lists.iter(WRITING).filter(|index| of_client(self, *index)).collect();
        for index in writing {
            if self.promote(view, index) {
                self.admit(view, index, now);
            } else {
                self.drop_object(view, index, true);
            }
            self.count_of(index);
        }
        self.hear_of_plans(client, kept);
        let late: Vec<u32> = self.lists.iter(QUARANTINE).filter(|index| of_client(self, *index)).collect();
        for index in late {
            self.leave_waiting(index);
            self.free_or_wait(view, index);
            self.count_of(index);
        }
        Ok(())
    }
}

//! Clients: their pin blocks, and what is left when they go.

use super::*;

impl Master {
    /// The place of a client as it is now.
    #[must_use]
    pub fn place_of(&self, number: u32) -> ClientId {
        let generation = self.places.get(number as usize).map_or(0, |place| place.generation);
        ClientId { number, generation }
    }

    /// Whether a place is its client's still; it may be leaving.
    #[must_use]
    pub fn has_place(&self, client: ClientId) -> bool {
        client.generation & 1 == 1 && self.place_of(client.number) == client
    }

    /// Whether a client is attached.
    #[must_use]
    pub fn is_attached(&self, client: ClientId) -> bool {
        self.has_place(client) && self.clients.get(client.number as usize) == Some(&Client::Attached)
    }

    /// The clients that have a place: attached, or leaving.
    #[must_use]
    pub fn entered(&self) -> Vec<ClientId> {
        let places = (0..u32::try_from(self.clients.len()).unwrap_or(0)).map(|number| self.place_of(number));
        places.filter(|client| self.has_place(*client)).collect()
    }

    /// Who a client said to be.
    #[must_use]
    pub fn info_of(&self, client: ClientId) -> ClientInfo {
        self.places.get(client.number as usize).map_or(ClientInfo::NOBODY, |place| place.info)
    }

    /// Gives a client a pin block.
    pub fn attach(&mut self, info: &ClientInfo) -> Result<ClientId> {
        let map = Arc::clone(&self.map);
        let view = map.view();
        self.look_at_leaving(view);
        let Some(client) = self.clients.iter().position(|c| *c == Client::Free) else {
            crate::bail!(NMC_ERR_LIMIT, "all {} places for clients are taken", self.clients.len());
        };
        self.room_for_pins(1)?;
        self.clients[client] = Client::Attached;
        let number = u32::try_from(client).unwrap_or(0);
        if let Some(entry) = view.client(number) {
            entry.pid.store(info.pid, Relaxed);
            entry.start_time.store(info.start_time, Relaxed);
            entry.rank.store(info.rank, Relaxed);
            entry.rank_generation.store(info.rank_generation, Relaxed);
            entry.role.store(info.role.code().into(), Relaxed);
            if let Some(place) = self.places.get_mut(client) {
                *place = Place { generation: place.generation.wrapping_add(1) | 1, info: *info, high_water: 0 };
                entry.generation.store(place.generation, Release);
            }
        }
        Ok(self.place_of(number))
    }

    /// What a new client of a rank's holder takes the place of. Clients of earlier holders are gone: a rank is given to
    /// another process only when nothing is left of its former holder. One of the same holder and role has closed while nobody
    /// listened, or never heard that it was taken in: a holder has one client of a role at a time.
    pub fn supersede(&mut self, info: &ClientInfo) -> Result<()> {
        for client in self.entered() {
            let other = self.info_of(client);
            if other.rank != info.rank {
                continue;
            }
            match other.rank_generation.cmp(&info.rank_generation) {
                std::cmp::Ordering::Less => self.client_gone(client)?,
                std::cmp::Ordering::Equal if other.role == info.role => self.detach(client)?,
                std::cmp::Ordering::Equal | std::cmp::Ordering::Greater => {}
            }
        }
        Ok(())
    }

    /// Clients that closed while nobody listened leave now.
    pub fn heed_last_words(&mut self) -> Result<()> {
        for client in self.entered() {
            let word = self.map.view().last_word(client.number).map_or(0, |word| word.load(Acquire));
            if word == client.generation {
                self.detach(client)?;
            }
        }
        Ok(())
    }

    /// A client leaves in order: it writes nothing any more, and has unpinned what no stream holds.
    pub fn detach(&mut self, client: ClientId) -> Result<()> {
        if !self.is_attached(client) {
            return Ok(());
        }
        let map = Arc::clone(&self.map);
        let view = map.view();
        self.end_plans(view, client.number, &[], Fate::GivenUp)?;
        if let Some(state) = self.clients.get_mut(client.number as usize) {
            *state = Client::Leaving;
        }
        self.look_at_leaving(view);
        Ok(())
    }

    /// Provably nothing of a client is left: its pins end, and what it was writing is given up. A place that somebody else
    /// has by now is left alone.
    pub fn client_gone(&mut self, client: ClientId) -> Result<()> {
        if !self.has_place(client) {
            return Ok(());
        }
        let client = client.number;
        let map = Arc::clone(&self.map);
        let view = map.view();
        self.end_plans(view, client, &[], Fate::WriterGone)?;
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
        let agent = |of: usize| self.places.get(of).is_some_and(|place| place.info.role == Role::Agent);
        let others = (0..self.clients.len()).filter(|of| *of != client as usize && self.clients[*of] != Client::Free);
        if agent(client as usize) && !others.into_iter().any(agent) {
            // Whatever an agent has closed it can open no more, unless another one has come in its place.
            self.closed = 0;
            view.header().closed_ranks.store(0, Relaxed);
        }
        if let Some(state) = self.clients.get_mut(client as usize) {
            *state = Client::Free;
        }
        if let Some((high_water, _)) = view.pins(client) {
            high_water.store(0, Relaxed);
        }
        if let (Some(entry), Some(place)) = (view.client(client), self.places.get_mut(client as usize)) {
            *place = Place { generation: place.generation.wrapping_add(1) & !1, ..Place::FREE };
            entry.generation.store(place.generation, Release);
        }
    }

    /// Everything that a client is writing ends so, except plans with the epochs in `kept`. What it has published
    /// stays.
    pub fn end_plans(&mut self, view: &View<'_>, client: u32, kept: &[u64], fate: Fate) -> Result<()> {
        let of_client = |master: &Self, index: u32| {
            let book = master.book(index);
            book.writer == client && !kept.contains(&book.epoch)
        };
        let now = now_ns();
        // What becomes of an object moves that one alone: the one after it is still in the list.
        let mut next = self.lists.head(WRITING);
        while let Some(index) = next {
            next = self.lists.after(index);
            if !of_client(self, index) {
                continue;
            }
            if self.promote(view, index) {
                self.admit(view, index, now);
            } else {
                self.end_writing(view, index, fate, true);
            }
            self.count_of(index);
        }
        self.hear_of_plans(client, kept)?;
        let mut next = self.lists.head(QUARANTINE);
        while let Some(index) = next {
            next = self.lists.after(index);
            if !of_client(self, index) {
                continue;
            }
            self.leave_waiting(index);
            self.free_or_wait(view, index);
            self.count_of(index);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may")]
    use super::*;
    use crate::base::Deadline;
    use std::time::Duration;

    fn master() -> Master {
        let config = crate::store::config::Config { page_bytes: 4096, ..crate::store::config::Config::default() };
        let params = config.params(2, 16 * 4096).unwrap();
        let map = Map::create(&params, &Deadline::after(Duration::from_secs(60))).unwrap();
        Master::new(Arc::new(map)).unwrap()
    }

    fn holder(rank_generation: u64) -> ClientInfo {
        ClientInfo { pid: 1, start_time: 2, rank: 1, rank_generation, role: Role::Program }
    }

    fn pin(master: &Master, client: ClientId) -> u64 {
        let (high_water, slots) = master.map().view().pins(client.number).unwrap();
        high_water.store(1, Relaxed);
        slots[0].store(object::pin_word(3, 4), Relaxed);
        slots[0].load(Relaxed)
    }

    fn pinned(master: &Master, client: ClientId) -> u64 {
        master.map().view().pins(client.number).unwrap().1[0].load(Relaxed)
    }

    /// What is noticed late about a client that is gone does not end the next one with its number.
    #[test]
    fn a_place_is_not_lost_with_its_former_holder() {
        let mut master = master();
        let old = master.attach(&holder(1)).unwrap();
        master.client_gone(old).unwrap();
        let new = master.attach(&holder(2)).unwrap();
        assert_eq!(new.number, old.number, "the number is used again");
        let word = pin(&master, new);
        master.client_gone(old).unwrap();
        master.detach(old).unwrap();
        assert_eq!((pinned(&master, new), master.is_attached(new)), (word, true));
        // Control: by number alone, the living one is the one that goes.
        let by_number = master.place_of(old.number);
        master.client_gone(by_number).unwrap();
        assert_eq!((pinned(&master, new), master.is_attached(new)), (0, false));
    }

    /// How an object ended that was never published is told by whichever master finds out.
    #[test]
    fn a_writer_that_is_gone_is_told_from_one_that_gave_up_also_by_the_next_master() {
        let mut master = master();
        master.note_heaps([(1, 1), (1, 2)]);
        let writer = master.attach(&holder(1)).unwrap();
        let mut open = |key: &[u8]| {
            let keep = Keep::DEFAULT;
            let request = OpenRequest {
                key,
                namespace: 0,
                bytes: 5000,
                rank: Some(0),
                among: 0,
                flags: 0,
                keep,
                metadata: &[],
                put: 0,
            };
            master.open(writer.number, &request).unwrap()
        };
        let (unfinished, given_up, published) = (open(b"a"), open(b"b"), open(b"c"));
        master.abandon(writer.number, &given_up).unwrap();
        let map = Arc::clone(master.map());
        map.view().publish(published.index).unwrap().published.store(published.epoch, Release);
        drop(master);
        let told = |plan: &Opened| Fate::of(map.view().fate(plan.epoch).unwrap().load(Acquire), plan.epoch);
        let mut master = Master::take_over(Arc::clone(&map)).unwrap();
        assert_eq!(
            [&unfinished, &given_up].map(told),
            [None, Some(Fate::GivenUp)],
            "nobody knows yet what became of one"
        );
        master.client_gone(writer).unwrap();
        assert_eq!([&unfinished, &given_up, &published].map(told), [Some(Fate::WriterGone), Some(Fate::GivenUp), None]);
    }

    /// Whoever comes anew for a rank takes the place of what its holder left; what a stream still has to unpin stays.
    #[test]
    fn a_new_client_supersedes_that_of_the_same_holder_and_ends_those_of_former_ones() {
        let mut master = master();
        let lost = master.attach(&holder(1)).unwrap();
        master.supersede(&holder(1)).unwrap();
        assert!(!master.has_place(lost));
        let streams = master.attach(&holder(1)).unwrap();
        let word = pin(&master, streams);
        master.supersede(&holder(1)).unwrap();
        assert!(master.has_place(streams) && !master.is_attached(streams), "it waits for its stream");
        assert_eq!(pinned(&master, streams), word);
        master.supersede(&holder(2)).unwrap();
        assert!(!master.has_place(streams), "nothing is left of the former holder");
        let later = master.attach(&holder(3)).unwrap();
        master.supersede(&holder(2)).unwrap();
        assert!(master.is_attached(later), "what an earlier holder says does not end a later one");
    }

    /// The agent of a node has a client beside the program's: neither takes the other's place, and both go with their holder.
    #[test]
    fn a_holder_has_one_client_of_each_role() {
        let agent = |generation| ClientInfo { role: Role::Agent, ..holder(generation) };
        let mut master = master();
        let program = master.attach(&holder(1)).unwrap();
        master.supersede(&agent(1)).unwrap();
        let first = master.attach(&agent(1)).unwrap();
        assert!(master.is_attached(program) && master.is_attached(first));
        master.supersede(&agent(1)).unwrap();
        assert!(master.is_attached(program) && !master.has_place(first), "the next agent's takes the former one's");
        let second = master.attach(&agent(1)).unwrap();
        // Also for a master that finds them.
        let map = Arc::clone(master.map());
        drop(master);
        let mut master = Master::take_over(map).unwrap();
        assert_eq!((master.info_of(program), master.info_of(second)), (holder(1), agent(1)));
        master.supersede(&holder(1)).unwrap();
        assert!(!master.has_place(program) && master.is_attached(second));
        master.supersede(&holder(2)).unwrap();
        assert!(!master.has_place(second));
    }

    /// A client that closed while there was no master is found by the next one; a word of an earlier turn says nothing.
    #[test]
    fn a_last_word_ends_the_place_that_it_names() {
        let mut master = master();
        let first = master.attach(&holder(1)).unwrap();
        let map = Arc::clone(master.map());
        map.view().last_word(first.number).unwrap().store(first.generation, Relaxed);
        master.heed_last_words().unwrap();
        assert!(!master.has_place(first));
        let second = master.attach(&holder(1)).unwrap();
        master.heed_last_words().unwrap();
        assert!(master.is_attached(second), "the word was the first one's");
        map.view().last_word(second.number).unwrap().store(second.generation, Relaxed);
        drop(master);
        let master = Master::take_over(map).unwrap();
        assert!(!master.has_place(second));
    }
}

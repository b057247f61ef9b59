//! What the owners say becomes what the directory knows. Only here are replicas added, and only here do they end because
//! their owner says so.

use super::Leader;
use super::members::{Owner, State};
use super::objects::{At, Gate, Held};
use crate::base::error::Result;
use crate::base::status::NMC_ERR_LIMIT;
use crate::base::{log, memory};
use crate::cluster::types::{NO_INDEX, NodeId, ObjectKey, Position, PutId};
use crate::cluster::wire::{DropReplica, Fact, Facts, Published, Range};

impl Leader {
    pub(super) fn facts(&mut self, id: NodeId, facts: Facts) -> Result<()> {
        let mut number = facts.first;
        for fact in facts.facts {
            match fact {
                Fact::Published(published) => self.published(id, &published)?,
                Fact::Retired(retired) => self.retired(id, retired.index, retired.epoch)?,
            }
            // While ranges are told, what was before the first of them may be in one that is to come.
            if let Some(node) = self.node_mut(id).filter(|node| !node.telling) {
                node.facts = node.facts.max(number);
            }
            number = number.saturating_add(1);
        }
        Ok(())
    }

    /// What lives in a range of indexes: all that is listed, and nothing else. What else was known there ends with the last range: it may have another
    /// place, of which a later range tells, and whoever removes it meanwhile must know that there is something.
    pub(super) fn range(&mut self, id: NodeId, range: &Range) -> Result<()> {
        let Some(node) = self.node_mut(id) else { return Ok(()) };
        node.telling = true;
        // It may come again, and with from 0 all of them begin anew.
        node.unlisted.retain(|(index, _)| *index < range.from);
        let listed = |index: &u32| range.live.iter().any(|published| published.index == *index);
        for index in memory::collect(node.table.live_in(range.from, range.to).filter(|index| !listed(index)))? {
            memory::push(&mut node.unlisted, (index, node.table.epoch(index)))?;
        }
        range.live.iter().try_for_each(|published| self.published(id, published))
    }

    /// All ranges were told: what is over is so everywhere.
    pub(super) fn end_ranges(&mut self, id: NodeId) -> Result<()> {
        if let Some(node) = self.node_mut(id) {
            node.telling = false;
        }
        self.lift_moved(id);
        while let Some((index, epoch)) = self.node_mut(id).and_then(|node| node.unlisted.pop()) {
            self.retired(id, index, epoch)?;
        }
        Ok(())
    }

    fn published(&mut self, id: NodeId, fact: &Published) -> Result<()> {
        let Some(slot) = self.members.get(&id).copied() else { return Ok(()) };
        let Some(node) = self.node_mut(id) else { return Ok(()) };
        node.table.room(fact.index)?;
        if node.table.epoch(fact.index) >= fact.epoch {
            return Ok(());
        }
        let before = node.table.live(fact.index).map(|at| (at, node.table.epoch(fact.index)));
        let space = match self.spaces.enter(fact.key.space(), |space| self.objects.has_any_of(space)) {
            Ok(space) => Some(space),
            // Nobody could find it, nor remove it. What the owner has besides is told all the same.
            Err(error) if error.status == NMC_ERR_LIMIT => {
                log::emit(log::WARN, || format!("cluster: {:?} is dropped: {}", fact.key, error.message));
                None
            }
            Err(error) => return Err(error),
        };
        let gate = space.and_then(|space| Some((space, self.gate(slot, space, fact)?)));
        if let Some((at, epoch)) = before {
            self.over(id, at, (fact.index, epoch));
        }
        let Some((space, gate)) = gate else {
            // Its put was given up, or what it put was removed: the owner has to drop it.
            if let Some(node) = self.node_mut(id) {
                node.table.set_dead(fact.index, fact.epoch);
            }
            return self.drop_unknown(id, fact);
        };
        if gate == Gate::Dropped && !self.is_told(slot, space, fact) {
            self.drop_unknown(id, fact)?;
        }
        let at = self.objects.enter(space, fact.key.key())?;
        // One that was announced is here now.
        let segment = u8::try_from(fact.segment).unwrap_or(u8::MAX);
        let (put, length, epoch, index) = (fact.put, fact.length, fact.epoch, fact.index);
        let held = Held { put, length, epoch, index, owner: slot, segment, gate };
        if let Err(error) = self.objects.add(at, held) {
            self.objects.tidy(at);
            return Err(error);
        }
        if gate == Gate::Open && put.is_clustered() && !put.is_of(self.term) {
            // Nobody knows any more how many there should be: as many as there are.
            self.objects.want(at, self.objects.owners_of(at, put).max(self.objects.wanted(at)));
        }
        if let Some(node) = self.node_mut(id) {
            node.table.set_live(fact.index, fact.epoch, at);
        }
        self.withdraw(id, &fact.key, put, true);
        self.came(&fact.key, put, length)
    }

    /// Whether something that is published may be read; `None` if it must go.
    fn gate(&self, slot: u16, space: u32, fact: &Published) -> Option<Gate> {
        let at = self.objects.find(space, fact.key.key());
        let replicas = at.map_or(&[][..], |at| self.objects.replicas(at));
        if replicas.iter().any(|held| held.put == fact.put && held.gate == Gate::Dropped && held.owner == slot) {
            // Another place of what it is to drop. It counts as that until the owner says that it is over: there may be a third.
            return Some(Gate::Dropped);
        }
        if !fact.put.is_clustered() {
            return Some(Gate::Open);
        }
        if self.puts.contains_key(&fact.put) {
            return Some(Gate::Closed);
        }
        // Otherwise it has ended, and what a remove took of it was dropped before this was told; or nobody knows, and every byte is there.
        (!self.revoked.contains(fact.put)).then_some(Gate::Open)
    }

    /// Whether an owner that is to drop a put, wherever it has that, was told so.
    fn is_told(&self, slot: u16, space: u32, fact: &Published) -> bool {
        let at = self.objects.find(space, fact.key.key());
        let told = |held: &Held| held.gate == Gate::Dropped && held.owner == slot && held.index == NO_INDEX;
        at.is_some_and(|at| self.objects.replicas(at).iter().any(|held| held.put == fact.put && told(held)))
    }

    fn drop_unknown(&mut self, id: NodeId, fact: &Published) -> Result<()> {
        let Some(node) = self.node(id) else { return Ok(()) };
        let (incarnation, key) = (node.incarnation, fact.key.copy()?);
        let what = DropReplica { incarnation, index: fact.index, epoch: fact.epoch, key, put: fact.put };
        let before = self.log.appended();
        self.append(what.into(), &[id], 0)?;
        self.log.gave_up(before, &fact.key, fact.put, Some(id));
        Ok(())
    }

    pub(super) fn retired(&mut self, id: NodeId, index: u32, epoch: u64) -> Result<()> {
        let Some(node) = self.node_mut(id) else { return Ok(()) };
        node.table.room(index)?;
        if node.table.epoch(index) > epoch {
            return Ok(());
        }
        let before = node.table.live(index).map(|at| (at, node.table.epoch(index)));
        node.table.set_dead(index, epoch);
        if let Some((at, epoch)) = before {
            self.over(id, at, (index, epoch));
        }
        Ok(())
    }

    /// What was at an index is there no more. While its owner tells all that it has, it stays listed: it may have moved to where no range has told of yet, and
    /// the owner gives it by its key wherever it is.
    fn over(&mut self, id: NodeId, at: At, name: (u32, u64)) {
        let Some(slot) = self.members.get(&id).copied() else { return };
        let telling = self.node_mut(id).filter(|node| node.telling);
        if telling.is_none_or(|node| memory::push(&mut node.moved, (at, name)).is_err()) {
            self.lift(slot, at, name);
        }
    }

    /// Nothing that a node has moved will turn up elsewhere any more.
    pub(super) fn lift_moved(&mut self, id: NodeId) {
        let Some(slot) = self.members.get(&id).copied() else { return };
        while let Some((at, name)) = self.node_mut(id).and_then(|node| node.moved.pop()) {
            self.lift(slot, at, name);
        }
    }

    /// Takes what an owner had at an index with an epoch out of its object.
    pub(super) fn lift(&mut self, slot: u16, at: At, (index, epoch): (u32, u64)) {
        let is_it = |held: &Held| (held.owner, held.index, held.epoch) == (slot, index, epoch);
        let held = self.objects.replicas(at).iter().find(|held| is_it(held)).copied();
        if let Some(held) = held {
            let listed = |slot: u16| self.owners.get(usize::from(slot)).is_some_and(|owner| owner.listed().is_some());
            let (before, there) =
                (self.objects.owners_of(at, held.put), self.objects.owners_among(at, held.put, listed));
            self.goes_at(at, held.put);
            self.objects.forget(at, is_it);
            // What its owner gives up is not to be made again elsewhere, unless it was one too many; what is lost with a former store is.
            let gives_up = self.owners.get(usize::from(slot)).is_some_and(|owner| owner.node().is_some());
            let wanted = self.objects.wanted(at);
            if gives_up && self.objects.owners_of(at, held.put) < before && there <= wanted {
                self.objects.want(at, wanted.saturating_sub(1));
            }
        }
    }

    /// Takes an object away whole. Owners that still have it say so when they no longer do.
    pub(super) fn bury(&mut self, at: At) {
        for replica in 0..self.objects.replicas(at).len() {
            self.goes_at(at, self.objects.replicas(at)[replica].put);
        }
        // Without memory for the list it is tried again at the next sweep.
        let Ok(taken) = self.objects.take(at, |_| true) else { return };
        for held in taken {
            self.kill(&held);
        }
    }

    /// A replica that was taken out of its object is dead for its owner's table too.
    pub(super) fn kill(&mut self, held: &Held) {
        if held.index != NO_INDEX
            && let Some(table) = self.owners.get_mut(usize::from(held.owner)).and_then(Owner::table_mut)
            && table.epoch(held.index) == held.epoch
        {
            table.set_dead(held.index, held.epoch);
        }
    }

    /// A copy is going to be published, of something that somebody has who has told everything: of others, who may have dropped something in a
    /// former life and not said so yet, nobody knows whether what is listed is there.
    pub(super) fn add_announced(&mut self, id: NodeId, key: &ObjectKey, put: PutId) -> Result<()> {
        let Some(slot) = self.members.get(&id).copied() else { return Ok(()) };
        let found = self.spaces.find(key.space()).and_then(|space| self.objects.find(space, key.key()));
        let replicas = found.map_or(&[][..], |at| self.objects.replicas(at));
        let active = |held: &Held| {
            let owner = self.owners.get(usize::from(held.owner)).and_then(Owner::node);
            owner.is_some_and(|node| node.state == State::Active)
        };
        let is_source = |held: &&Held| held.put == put && held.gate == Gate::Open && active(held);
        let source = replicas.iter().find(is_source).copied();
        let (Some(at), Some(source)) = (found, source) else {
            crate::bail!(NMC_ERR_NOT_FOUND, "there is no replica of put {:x} under {key:?}", put.0);
        };
        if replicas.iter().any(|held| held.owner == slot && held.put == put) {
            crate::bail!(NMC_ERR_EXISTS, "the node has a copy of put {:x} already", put.0);
        }
        let gate = Gate::Announced;
        self.objects.add(at, Held { epoch: 0, index: NO_INDEX, owner: slot, gate, ..source })
    }

    /// A copy that was announced is not to come any more; or one has come, whatever made it possible.
    pub(super) fn withdraw(&mut self, id: NodeId, key: &ObjectKey, put: PutId, came: bool) {
        let Some(node) = self.node_mut(id) else { return };
        let is =
            |(k, p, until): &(ObjectKey, PutId, Option<Position>)| *p == put && k == key && (came || until.is_none());
        let Some(at) = node.announced.iter().position(is) else { return };
        node.announced.swap_remove(at);
        self.unannounce(id, key, put);
    }

    fn unannounce(&mut self, id: NodeId, key: &ObjectKey, put: PutId) {
        let Some(slot) = self.members.get(&id).copied() else { return };
        if let Some(at) = self.spaces.find(key.space()).and_then(|space| self.objects.find(space, key.key())) {
            self.objects.forget(at, |held| (held.owner, held.index, held.put) == (slot, NO_INDEX, put));
            self.goes(key, put);
        }
    }

    /// No copy of this node is to come.
    pub(super) fn withdraw_all(&mut self, id: NodeId) {
        let Some(node) = self.node_mut(id) else { return };
        for (key, put, _) in std::mem::take(&mut node.announced) {
            self.unannounce(id, &key, put);
        }
    }

    /// Copies that were possible until a node had applied the drop log this far will not come.
    pub(super) fn ruled_out(&mut self, id: NodeId, through: Position) {
        let over = |(_, _, until): &(ObjectKey, PutId, Option<Position>)| until.is_some_and(|until| until <= through);
        while let Some(node) = self.node_mut(id)
            && let Some(at) = node.announced.iter().position(over)
        {
            let (key, put, _) = node.announced.swap_remove(at);
            self.unannounce(id, &key, put);
        }
    }
}

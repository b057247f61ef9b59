//! What a node asks the master for beside its stream, over gRPC: a copy of something, or that what its disk has goes. Neither is a fact. The node is
//! told to do it like any other, and its own stream says what came of it; so nothing overtakes anything.

use super::members::Owner;
use super::objects::{Gate, Held};
use super::{Action, Ask, Leader};
use crate::base::error::Result;
use crate::base::status::NMC_OK;
use crate::cluster::types::{Millis, NO_INDEX};
use crate::cluster::wire::{AddReplica, Answer, CopyThis, EvictDisk, Frame, Rejoin};
use crate::layout::store::ON_DISK;

impl Leader {
    /// Tells a node to make a copy, which it announces and publishes in its stream.
    pub(super) fn add_replica(&mut self, ask: Ask, add: AddReplica, to: &mut Vec<Action>) -> Result<()> {
        if !self.is_known(add.node, (self.term, add.incarnation)) {
            to.push(ask.answer(Rejoin { term: self.term }));
            return Ok(());
        }
        let (Some(slot), Some(node)) = (self.members.get(&add.node).copied(), self.node(add.node)) else {
            return Ok(());
        };
        let found = self.spaces.find(add.key.space()).and_then(|space| self.objects.find(space, add.key.key()));
        let all = found.map_or(&[][..], |at| self.objects.replicas(at));
        if all.iter().any(|held| held.owner == slot && held.put == add.put) {
            crate::bail!(NMC_ERR_EXISTS, "{} has a copy of put {:x}, or is about to", node.name, add.put.0);
        }
        let source = all.iter().filter(|held| held.put == add.put && held.gate == Gate::Open).find_map(|held| {
            let owner = self.owners.get(usize::from(held.owner)).and_then(Owner::listed)?;
            Some((owner, held))
        });
        let Some((owner, held)) = source else {
            crate::bail!(NMC_ERR_NOT_FOUND, "there is no replica of put {:x} under {:?}", add.put.0, add.key);
        };
        let (from, peer, term) = (super::drain::replica(owner, held), node.peer, self.term);
        let copy = CopyThis { term, incarnation: add.incarnation, key: add.key, from };
        to.push(Action::Send(peer, Frame::telling(copy)));
        to.push(ask.answer(Answer::new(self.term, NMC_OK, "")));
        Ok(())
    }

    /// Has a node drop what its disk has of some keys: all of them, or none if one is not there. Answered like a remove.
    pub(super) fn evict_disk(&mut self, ask: Ask, evict: EvictDisk, now: Millis, to: &mut Vec<Action>) -> Result<()> {
        if !self.is_known(evict.node, (self.term, evict.incarnation)) {
            to.push(ask.answer(Rejoin { term: self.term }));
            return Ok(());
        }
        let Some(slot) = self.members.get(&evict.node).copied() else { return Ok(()) };
        let is_it = move |held: &Held| {
            let on_disk = held.index != NO_INDEX && held.index & ON_DISK != 0;
            held.owner == slot && on_disk && held.gate == Gate::Open
        };
        for key in &evict.keys {
            let found = self.spaces.find(key.space()).and_then(|space| self.objects.find(space, key.key()));
            if !found.is_some_and(|at| self.objects.replicas(at).iter().any(is_it)) {
                crate::bail!(NMC_ERR_NOT_FOUND, "the node has nothing of {key:?} on disk");
            }
        }
        let call = self.begin_call(ask, true, 0);
        let done = evict.keys.iter().try_for_each(|key| self.take_replicas(key, is_it, call));
        self.go_on(call, done, now, to)
    }
}

//! What a wrong master would do, for the controls of the simulator.

use super::members::Owner;
use super::objects::{Gate, Held};
use super::{Leader, Master, Role};
use crate::cluster::wire::PutEnd;

/// What a wrong leader does with striped values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cluster) enum Flaw {
    /// All of a key have the same id.
    SameIds,
    /// What is left of one stays.
    NeverLooks,
    /// Parts go before all was told.
    Hasty,
    /// A value that was whole once is taken for whole.
    CountsOnce,
}

impl Leader {
    pub(super) fn has_flaw(&self, flaw: Flaw) -> bool {
        self.config.flaw == Some(flaw)
    }
}

impl Master {
    /// Lists what a client says that it has put, whatever the owners say.
    pub(in crate::cluster) fn believe(&mut self, end: &PutEnd) {
        let Role::Leader(leader) = &mut self.role else { return };
        let space = leader.spaces.enter(end.key.space(), |_| true).unwrap();
        for done in &end.done {
            let Some(slot) = leader.members.get(&done.name.node).copied() else { continue };
            let Some(node) = leader.node_mut(done.name.node) else { continue };
            if node.incarnation != done.name.incarnation || node.table.lives(done.name.index, done.name.epoch).is_some()
            {
                continue;
            }
            let at = leader.objects.enter(space, end.key.key()).unwrap();
            let held = Held {
                put: end.put,
                length: 1,
                epoch: done.name.epoch,
                index: done.name.index,
                owner: slot,
                segment: 0,
                gate: Gate::Open,
            };
            leader.objects.add(at, held).unwrap();
        }
    }

    /// Everything that is listed: key, put, node, incarnation, index and epoch.
    pub(in crate::cluster) fn listed_all(&self) -> Vec<super::ListedReplica> {
        let Role::Leader(leader) = &self.role else { return Vec::new() };
        let mut list = Vec::new();
        for shard in 0..leader.objects.shards() {
            for at in leader.objects.of_shard(shard) {
                let Some((space, key)) = leader.objects.key(at) else { continue };
                let Some(space) = leader.spaces.name(space) else { continue };
                let key = crate::cluster::types::ObjectKey::new(space, key).unwrap();
                for held in leader.objects.replicas(at).iter().filter(|held| held.gate == Gate::Open) {
                    let Some(node) = leader.owners[usize::from(held.owner)].listed() else { continue };
                    let name = crate::cluster::types::Name {
                        node: node.id,
                        incarnation: node.incarnation,
                        index: held.index,
                        epoch: held.epoch,
                    };
                    list.push((key.clone(), held.put, name));
                }
            }
        }
        list
    }

    /// Nodes whose replicas are listed, and whether everything that they have is known.
    pub(in crate::cluster) fn standing(&self, node: crate::cluster::types::NodeId) -> Option<(u64, bool, bool)> {
        let Role::Leader(leader) = &self.role else { return None };
        let node = leader.node(node)?;
        let listed = matches!(node.state, super::members::State::Active | super::members::State::Reporting);
        Some((node.incarnation, listed, node.complete))
    }

    /// Striped values that are known, and those that are still to be looked at.
    pub(in crate::cluster) fn striped(&self) -> (usize, usize) {
        let Role::Leader(leader) = &self.role else { return (0, 0) };
        leader.stripes.len()
    }

    /// How often a part of a striped value was looked for.
    pub(in crate::cluster) fn parts_looked_for(&self) -> usize {
        let Role::Leader(leader) = &self.role else { return 0 };
        leader.stripes.looked()
    }

    /// Whether something of a former store may be asked for again.
    pub(in crate::cluster) fn is_retiring(&self) -> bool {
        let Role::Leader(leader) = &self.role else { return false };
        leader.owners.iter().any(|owner| matches!(owner, Owner::Former(former) if former.cleared.is_some()))
    }

    /// What is under way: puts, calls, entries of the drop log, announcements, what waits to go.
    pub(in crate::cluster) fn under_way(&self) -> [usize; 5] {
        let Role::Leader(leader) = &self.role else { return [0; 5] };
        let announced = leader.nodes().map(|node| node.announced.len()).sum();
        [leader.puts.len(), leader.calls.len(), leader.log.len(), announced, leader.expiring.len()]
    }
}

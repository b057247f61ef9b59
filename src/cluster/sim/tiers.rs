//! What happens to the tiers of nodes in a run: values are written there, come back into memory and are evicted; tiers are closed and
//! opened, the same or others, and their nodes notice it a little later.

use super::{Addr, Control, Event, Fault, Sim};
use crate::cluster::node::Plan;
use crate::cluster::node::model::SLOTS;
use crate::cluster::types::Millis;

impl Sim {
    pub(super) fn some_tier(&mut self) {
        if self.calm || !self.setup.tiers {
            return;
        }
        let pause = 1 + self.chance.below(2 * usize::try_from(self.setup.op_ms).unwrap()) as Millis;
        self.after(pause, Event::Tier);
        let at = self.chance.below(self.nodes.len());
        if self.agent_of(at).is_none() || self.nodes[at].process.paused_until > self.now {
            return;
        }
        match self.chance.below(100) {
            0..=69 => self.offload_some(at),
            70..=74 => {
                let slot = self.chance.below(SLOTS as usize);
                let Some(agent) = &mut self.nodes[at].agent else { return };
                let put = agent.storage().record(slot).map(|record| record.put);
                let only = put.is_some_and(|put| !agent.storage().live().any(|(_, header)| header.put == put));
                agent.storage_mut().end_slot(slot, true);
                if let Some(put) = put.filter(|_| only) {
                    self.checker.lost(put);
                }
            }
            75..=81 => {
                let slot = self.chance.below(SLOTS as usize);
                let Some(agent) = &mut self.nodes[at].agent else { return };
                agent.storage_mut().promote(slot);
            }
            85..=88 if self.agent_of(at).is_some_and(|agent| agent.storage().disk.is_some()) => self.close_tier(at),
            85..=88 => self.open_tier(at, false),
            // At once again, perhaps before anybody has noticed.
            91 => {
                self.close_tier(at);
                let last = self.hits(700);
                self.open_tier(at, last);
            }
            90 => {
                let later = 1 + self.chance.below(600) as Millis;
                let Some(agent) = &mut self.nodes[at].agent else { return };
                agent.storage_mut().fails = true;
                self.after(later, Event::Heal(Fault::Forgetful(at)));
            }
            92 if self.setup.forgets && self.hits(100) => self.forget_cluster(None),
            _ => {}
        }
    }

    /// Something that a node has in memory is written to disk from now on.
    fn offload_some(&mut self, at: usize) {
        let Some(agent) = &mut self.nodes[at].agent else { return };
        let live: Vec<usize> = agent.storage().live().map(|(plan, _)| plan.index as usize).collect();
        let Some(index) = live.get(self.chance.below(live.len())).copied() else { return };
        let Some((id, plan)) = agent.storage_mut().begin_offload(index) else { return };
        let (delay, life) = (self.delay(), self.nodes[at].process.life);
        self.after(delay, Event::Stored(at, life, id, plan));
    }

    pub(super) fn stored(&mut self, at: usize, life: u64, id: u64, plan: Plan) {
        if self.nodes[at].process.life != life {
            return;
        }
        let Some(agent) = &mut self.nodes[at].agent else { return };
        if agent.storage_mut().stored(id, plan) {
            self.checker.count("offloaded");
            self.say(|| format!("n{at} has {plan:?} on disk"));
        }
    }

    /// All that a node has is written, as far as there is room.
    pub(super) fn offload_all(&mut self, at: usize) {
        let Some(agent) = &mut self.nodes[at].agent else { return };
        for index in 0..agent.storage().headers.len() {
            if let Some((id, plan)) = agent.storage_mut().begin_offload(index) {
                agent.storage_mut().stored(id, plan);
            }
        }
    }

    pub(super) fn close_tier(&mut self, at: usize) {
        let Some(agent) = &mut self.nodes[at].agent else { return };
        let Some(directory) = agent.storage_mut().close_tier() else { return };
        let in_memory: Vec<_> = agent.storage().live().map(|(_, header)| header.put).collect();
        directory.puts().filter(|put| !in_memory.contains(put)).for_each(|put| self.checker.lost(put));
        self.say(|| format!("n{at} closes tier {:x}", directory.name));
        self.checker.count("closed");
        self.nodes[at].shelf.push(directory);
        self.will_notice(at);
    }

    /// A tier is opened, one by chance or the one that was closed last.
    pub(super) fn open_tier(&mut self, at: usize, last: bool) {
        let Some(agent) = &mut self.nodes[at].agent else { return };
        if agent.storage().disk.is_some() {
            return;
        }
        // The store is where the agent is: it is taken out for as long as the directory is chosen.
        let mut store = agent.storage().clone();
        match if last { self.nodes[at].shelf.pop() } else { None } {
            Some(directory) => self.open_directory(at, directory, &mut store),
            None => self.open_some_tier(at, &mut store),
        }
        if let Some(agent) = &mut self.nodes[at].agent {
            *agent.storage_mut() = store;
        }
        self.will_notice(at);
    }

    fn will_notice(&mut self, at: usize) {
        let most = if self.hits(100) { 1500 } else { 12 };
        let (later, life) = (1 + self.chance.below(most) as Millis, self.nodes[at].process.life);
        self.after(later, Event::Notice(at, life));
    }

    /// A node looks whether its tier is another one.
    pub(super) fn notice(&mut self, at: usize, life: u64) {
        let changed = self.agent_of(at).is_some_and(|agent| agent.storage().has_changed());
        if self.nodes[at].process.life == life && changed {
            self.has_another_offer(at);
        }
    }

    /// Everything ends, and when it is back, `but` one node, nothing is left of what the cluster had written down.
    pub(super) fn forget_cluster(&mut self, but: Option<usize>) {
        self.setup.forgets = false;
        self.say(|| "everything ends, and what was written down is lost".into());
        self.checker.count("forgotten");
        let everybody = self.everybody();
        for who in &everybody {
            self.kill(*who);
        }
        self.checker.lose_all();
        let seed = if self.setup.control == Some(Control::SameTerms) { self.setup.seed } else { self.chance.word() };
        self.etcd = super::Etcd::new(self.etcd.lease_ms, seed);
        for who in everybody {
            let later = 1 + self.chance.below(300) as Millis;
            let stays = matches!(who, Addr::Node(at) if Some(at) == but);
            if !stays && !matches!(who, Addr::Client(at) if at < self.nodes.len()) {
                self.after(later, Event::Heal(Fault::Down(who)));
            }
        }
    }

    /// All that is on disk comes into memory, as far as there is room.
    pub(super) fn promote_all(&mut self, at: usize) {
        let Some(agent) = &mut self.nodes[at].agent else { return };
        for slot in 0..SLOTS as usize {
            agent.storage_mut().promote(slot);
        }
    }

    /// A process begins with a new store, and opens the tier that its node had before anybody hears of it.
    pub(super) fn start_with_tier(&mut self, at: usize) {
        let left = self.nodes[at].store.take().and_then(|store| store.die(false, &mut self.chance));
        self.nodes[at].shelf.extend(left);
        let mut store = self.new_store(at);
        if let Some(directory) = self.nodes[at].shelf.pop() {
            self.open_directory(at, directory, &mut store);
        }
        let process = &mut self.nodes[at].process;
        (process.up, process.life) = (true, process.life + 1);
        let life = process.life;
        self.begin_node(at, store);
        self.after(1, Event::Wake(Addr::Node(at), life));
        self.start(Addr::Client(at));
    }

    /// Whoever leads dies for a while.
    pub(super) fn change_leader(&mut self) {
        let leads = |at: &usize| self.masters[*at].process.up && self.masters[*at].master.leads().is_some();
        let Some(at) = (0..self.masters.len()).find(leads) else { return };
        self.kill(Addr::Master(at));
        self.run_for(200);
        self.start(Addr::Master(at));
        self.run_for(2000);
    }

    /// How many nodes the leader lists for a key.
    pub(super) fn owners_of(&self, key: &crate::cluster::types::ObjectKey) -> usize {
        let leader = self.masters.iter().find(|m| m.process.up && m.master.leads().is_some());
        let listed = leader.map(|m| m.master.listed_all()).unwrap_or_default();
        let owners = listed.iter().filter(|(k, ..)| k == key).map(|(_, _, name)| name.node);
        owners.collect::<std::collections::BTreeSet<_>>().len()
    }
}

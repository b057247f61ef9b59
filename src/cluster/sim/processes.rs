//! Processes of a run: how they are set up, start, die and come back.

use super::{
    AWAY_MS, Addr, Control, Event, GONE_MS, PING_MS, PUT_MS, Process, SETTLE_MS, Sim, master_names, node_name,
};
use crate::cluster::client::{self, Client, ReadOrder};
use crate::cluster::directory::{self, Master, control};
use crate::cluster::node::model::{self, Directory, Store};
use crate::cluster::node::{self, Agent, Offer};

impl Sim {
    pub(super) fn master_config(&mut self, at: usize) -> directory::Config {
        let mut secret = [0; 32];
        secret[..8].copy_from_slice(&self.chance.word().to_le_bytes());
        directory::Config {
            seed: at as u64,
            secret,
            durable: self.setup.durable,
            away_ms: AWAY_MS,
            gone_ms: GONE_MS,
            settle_ms: SETTLE_MS,
            put_ms: PUT_MS,
            resend_ms: 150,
            max_log: 64,
            re_replicate: self.setup.again,
            sees_ends: self.setup.sees_ends,
            flaw: match self.setup.control {
                Some(Control::PartsByKey) => Some(control::Flaw::SameIds),
                Some(Control::PartsStay) => Some(control::Flaw::NeverLooks),
                Some(Control::DropsUntold) => Some(control::Flaw::Hasty),
                _ => None,
            },
            ..directory::Config::default()
        }
    }

    pub(super) fn a_client(&self, config: client::Config) -> Client {
        let mut client = Client::new(config);
        client.hasty = self.setup.control == Some(Control::PartsEndAtOnce);
        client
    }

    pub(super) fn client_config(&mut self, at: usize) -> client::Config {
        client::Config {
            masters: master_names(self.setup.masters),
            host: format!("h{at}"),
            master_ms: 400,
            owner_ms: 500,
            cache: 4,
            read_order: [ReadOrder::Near, ReadOrder::Memory, ReadOrder::Spread][at % 3],
            pushed: self.setup.pushed,
            pushed_from: 0,
            seed: self.chance.word(),
        }
    }

    pub(super) fn node_config(&mut self, at: usize, offer: Offer) -> node::Config {
        let name = node_name(at);
        let Offer { store, slots, segments } = offer;
        node::Config {
            incarnation: self.chance.word() | 1,
            store,
            endpoint: format!("h{at}:1"),
            host: format!("h{at}"),
            headers: self.setup.size().0,
            slots,
            volatile: false,
            segments,
            masters: master_names(self.setup.masters),
            ping_ms: PING_MS,
            resend_ms: 150,
            master_ms: 700,
            copy_ms: 1_000,
            remember_ms: 8_000,
            doubt_bytes: 4,
            doubt_ms: 1_500,
            stuck_ms: 1_000,
            rest_ms: (AWAY_MS + 300, 2 * AWAY_MS),
            name,
        }
    }

    pub(super) fn process(&mut self, addr: Addr) -> Option<&mut Process> {
        match addr {
            Addr::Master(at) => self.masters.get_mut(at).map(|master| &mut master.process),
            Addr::Node(at) => self.nodes.get_mut(at).map(|node| &mut node.process),
            Addr::Client(at) => self.clients.get_mut(at).map(|client| &mut client.process),
            Addr::Etcd => None,
        }
    }

    pub(super) fn life(&mut self, addr: Addr) -> u64 {
        self.process(addr).map_or(0, |process| process.life)
    }

    /// Starts a process, for the first time or again.
    pub(super) fn start(&mut self, addr: Addr) {
        let now = self.now;
        let Some(process) = self.process(addr) else { return };
        if process.up {
            return;
        }
        (process.up, process.life, process.paused_until) = (true, process.life + 1, now);
        let life = process.life;
        match addr {
            Addr::Master(at) => {
                let config = self.master_config(at);
                let master = &mut self.masters[at];
                (master.master, master.term, master.asked) = (Master::new(config), 0, 0);
                master.ended.clear();
                if !self.setup.durable {
                    self.etcd.depose();
                }
            }
            Addr::Node(at) => self.start_node(at),
            Addr::Client(at) => {
                let config = self.client_config(at);
                self.clients[at].client = self.a_client(config);
                self.clients[at].calls.clear();
                self.clients[at].mover = 0;
            }
            Addr::Etcd => {}
        }
        self.after(1, Event::Wake(addr, life));
    }

    /// A node starts with a new store, with what a restart found again of the old one, or beside the old one.
    pub(super) fn start_node(&mut self, at: usize) {
        let old = self.nodes[at].store.take();
        let how = self.chance.below(if self.setup.tiers { 5 } else { 3 });
        let store = match (old, how) {
            (Some(mut store), 0) => {
                store.agent_died();
                store.fails = false;
                store
            }
            (Some(store), 1) if !self.setup.tiers => {
                self.nodes[at].store_id = self.chance.word() | 1;
                let chance = &mut self.chance;
                store.recovered(|| chance.below(3) > 0)
            }
            (Some(mut store), 4) => {
                // The old one lives on elsewhere, without its tier, and may come back; or one that did.
                store.agent_died();
                store.fails = false;
                let tier = store.close_tier();
                self.nodes[at].shelf.extend(tier);
                let id = self.nodes[at].store_id;
                match self.nodes[at].aside.replace((store, id)) {
                    Some((former, id)) => {
                        self.nodes[at].store_id = id;
                        former
                    }
                    None => self.new_store(at),
                }
            }
            (old, how) => {
                let power = self.chance.below(4) == 0;
                let left = old.and_then(|store| store.die(power, &mut self.chance));
                self.nodes[at].shelf.extend(left);
                let mut store = self.new_store(at);
                if how > 1 {
                    self.open_some_tier(at, &mut store);
                }
                store
            }
        };
        self.begin_node(at, store);
    }

    pub(super) fn new_store(&mut self, at: usize) -> Store {
        self.nodes[at].store_id = self.chance.word() | 1;
        let (headers, pages) = self.setup.size();
        let mut store = Store::new(headers, pages, self.setup.ring);
        store.reuse_at_once = self.setup.control == Some(Control::AbandonOnTimeout);
        store.flaw = match self.setup.control {
            Some(Control::AnswerBeforeDisk) => Some(model::Flaw::AnswersBeforeDisk),
            Some(Control::NeverApart) => Some(model::Flaw::NeverApart),
            Some(Control::PositionOfAnyTier) => Some(model::Flaw::PositionOfAnyTier),
            Some(Control::KeepsPromoted) => Some(model::Flaw::KeepsPromoted),
            Some(Control::PinsByName) => Some(model::Flaw::PinsByName),
            Some(Control::NeverLeft) => Some(model::Flaw::NeverLeft),
            Some(Control::TiersByName) => Some(model::Flaw::TiersByName),
            Some(Control::OnePlace) => Some(model::Flaw::OnePlace),
            _ => None,
        };
        store
    }

    /// A directory comes below a store that has none: one that was there before, or a new one.
    pub(super) fn open_some_tier(&mut self, at: usize, store: &mut Store) {
        if !self.setup.tiers {
            return;
        }
        let shelf = self.nodes[at].shelf.len();
        let directory = match self.chance.below(shelf + usize::from(shelf < 2)) {
            which if which < shelf => self.nodes[at].shelf.swap_remove(which),
            _ => Directory::new(self.chance.word() | 1),
        };
        self.open_directory(at, directory, store);
    }

    pub(super) fn open_directory(&mut self, at: usize, mut directory: Directory, store: &mut Store) {
        if directory.before && store.tier != directory.name {
            // Of what memory had too, and brought to the cluster without the tier, the tier knows nothing: docs/cluster.md says so.
            directory.records.clear();
        }
        let id = self.chance.word() | 1;
        self.say(|| format!("n{at} opens tier {:x} as {id:x}", directory.name));
        self.checker.count("opened");
        store.open_tier(directory, id);
    }

    /// An agent begins with a store.
    pub(super) fn begin_node(&mut self, at: usize, mut store: Store) {
        let offer = store.offer(&node_name(at), self.nodes[at].store_id);
        let config = self.node_config(at, offer);
        let node = &mut self.nodes[at];
        node.mover = 0;
        node.good_since = None;
        node.agent = Some(Agent::new(config, store, self.now));
    }

    /// A process is no more.
    pub(super) fn kill(&mut self, addr: Addr) {
        let peer = self.peer(addr);
        let Some(process) = self.process(addr) else { return };
        let was_up = std::mem::replace(&mut process.up, false);
        match addr {
            Addr::Node(at) => {
                let seen = if was_up && self.setup.sees_ends { self.masters.len() } else { 0 };
                for master in 0..seen {
                    let (delay, life) = (self.delay(), self.masters[master].process.life);
                    if !self.is_cut(addr, Addr::Master(master)) {
                        self.after(delay, Event::Closed(master, life, peer));
                    }
                }
                self.loses_all(at);
                if let Some(mut agent) = self.nodes[at].agent.take() {
                    self.nodes[at].store = Some(agent.storage_mut().clone());
                }
                self.nodes[at].good_since = None;
                // Whoever shares the process goes with it.
                if at < self.clients.len() {
                    self.kill(Addr::Client(at));
                }
            }
            Addr::Client(at) => self.clients[at].calls.clear(),
            Addr::Master(_) | Addr::Etcd => {}
        }
    }
}

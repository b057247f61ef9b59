//! The master: which key is where, where new objects go, who is a member, and what members must drop. All of it can be told
//! again by the nodes, so a new leader starts with nothing but the members and the entries that somebody away must drop.
//!
//! Binding rules: only an owner's fact adds a replica; PutEnd opens the gate; owners drop by name; what is not known is
//! UNAVAILABLE until every member has reported or been silent for a while; and nothing is answered after the lease.

mod again;
#[cfg(test)]
pub(super) mod control;
mod drain;
mod expiry;
mod facts;
mod finds;
mod inspect;
mod join;
mod log;
mod members;
mod objects;
mod placement;
mod puts;
mod removes;
mod spaces;
mod stripes;
mod table;
#[cfg(test)]
mod tests;
mod wishes;

pub use inspect::{Figures, Lookups, MemberView, PartView, ReplicaView, Wanted};
pub use log::{Entry, Recorded, Target};
pub use members::State;
pub use objects::Gate;
pub use placement::Strategy;

use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::{NMC_ERR_UNAVAILABLE, NMC_OK};
use crate::cluster::revoked::Revoked;
use crate::cluster::types::{Chance, Millis, NodeId, Peer, Position, PutId, Term};
use crate::cluster::wire::{Answer, Frame, Message, Redirect};
use again::Again;
use drain::Drains;
use expiry::Expiring;
use log::DropLog;
use members::Owner;
use objects::{At, Objects};
use puts::Pending;
use removes::{Call, Recent};
use spaces::Spaces;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use stripes::Stripes;

/// What a master is set up with.
#[derive(Debug, Clone)]
pub struct Config {
    /// How segments are chosen.
    pub strategy: Strategy,
    /// What chance begins with: the same seed places the same.
    pub seed: u64,
    /// What put ids are made from: random, and known to nobody else.
    pub secret: [u8; 32],
    /// Whether entries of the drop log can be written down for members that are away.
    pub durable: bool,
    /// A node that was silent for so long is away.
    pub away_ms: Millis,
    /// A node that was silent for so long is gone.
    pub gone_ms: Millis,
    /// A new leader waits so long for silent members before it says that something does not exist.
    pub settle_ms: Millis,
    /// A put that has not ended after so long is forgotten.
    pub put_ms: Millis,
    /// Members told again after so long what they must drop.
    pub resend_ms: Millis,
    /// Most puts under way.
    pub max_puts: usize,
    /// Most entries of the drop log.
    pub max_log: usize,
    /// Copies that are made again in a second, at most, of what is lost with nodes; none if 0.
    pub re_replicate: u32,
    /// Whether it is told when connections end: then nobody takes the name of a node that is connected.
    pub sees_ends: bool,
    /// What it does wrong on purpose.
    #[cfg(test)]
    pub(super) flaw: Option<control::Flaw>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            strategy: Strategy::Random,
            seed: 0,
            secret: [0; 32],
            durable: false,
            away_ms: 10_000,
            gone_ms: 3_600_000,
            settle_ms: 3_000,
            put_ms: 30_000,
            resend_ms: 300,
            max_puts: 1 << 20,
            max_log: 1 << 20,
            re_replicate: 0,
            sees_ends: false,
            #[cfg(test)]
            flaw: None,
        }
    }
}

/// A member, as it is written down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Name of the node.
    pub name: String,
    /// The drop log as it concerns the node begins behind this: if it comes with less, it drops all that it had.
    pub since: Position,
}

/// What is to be written down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A member, before its join is answered.
    Member(Member),
    /// A member that is gone, before it is forgotten.
    Gone(String),
    /// An entry of the drop log, before a remove is answered of which an owner is away.
    Drop(Entry),
    /// Entries before this one are not needed any more; none at all are, if there is none. Whoever is behind the second
    /// position drops all that it has.
    Forget(Option<Position>, Position),
}

/// What a new leader knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elected {
    /// Its term: higher than any before.
    pub term: Term,
    /// Nothing may be answered from this moment on.
    pub until: Millis,
    /// Members that were written down.
    pub members: Vec<Member>,
    /// Entries of the drop log that were written down, in order.
    pub log: Vec<Entry>,
    /// The last position that was forgotten though somebody needed it.
    pub floor: Position,
}

/// What a master is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A message came.
    Message(Peer, Frame),
    /// A connection has ended.
    Closed(Peer),
    /// Time has passed.
    Tick,
    /// It leads now.
    Elected(Elected),
    /// It leads until this moment at least.
    Lease(Millis),
    /// Somebody else leads, in this term, and listens there.
    Deposed(Term, String),
    /// What was to be written down is, or can not be.
    Recorded(u64, bool),
}

/// What a master wants done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Send a message.
    Send(Peer, Frame),
    /// Write changes down, all or none and only while this master leads; then tell it, by this number.
    Record(u64, Vec<Change>),
}

/// Who asked, and how the answer is recognised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ask {
    pub peer: Peer,
    pub request: u64,
}

impl Ask {
    fn answer(self, message: impl Into<Message>) -> Action {
        Action::Send(self.peer, Frame::answering(self.request, message))
    }
}

/// A replica that is listed: its key, put and name.
#[cfg(test)]
pub(super) type ListedReplica = (crate::cluster::types::ObjectKey, PutId, crate::cluster::types::Name);

/// What happens when something has been written down.
#[derive(Debug)]
enum Recording {
    /// The member is welcomed.
    Member(NodeId),
    /// The member is forgotten.
    Gone(NodeId),
    /// Nobody waits for members that are away and are to drop what was written.
    Drops,
    /// Nothing.
    Forget,
}

/// The state of a leader.
struct Leader {
    config: Config,
    term: Term,
    until: Millis,
    settled: bool,
    elected_at: Millis,
    /// When members were last looked at.
    watched: Millis,
    chance: Chance,
    ids: Ids,
    owners: Vec<Owner>,
    /// Where each member is among the owners.
    members: BTreeMap<NodeId, u16>,
    /// Nodes that wait until it is written down that they are members.
    arriving: BTreeMap<NodeId, join::Arrival>,
    /// Nodes that are back while it is being written down that they are gone.
    returning: BTreeMap<NodeId, (Ask, crate::cluster::wire::Join)>,
    /// Lives of nodes that have said that they end, the last of them: what they said before may come later.
    ended: Vec<crate::cluster::wire::Leave>,
    objects: Objects,
    spaces: Spaces,
    puts: BTreeMap<PutId, Pending>,
    /// Those of them whose owners are to compare a checksum.
    checking: BTreeSet<PutId>,
    /// When puts are to be forgotten.
    put_ends: VecDeque<(Millis, PutId)>,
    log: DropLog,
    calls: BTreeMap<u64, Call>,
    next_call: u64,
    /// Removes that came lately.
    recent: Recent,
    revoked: Revoked,
    recordings: BTreeMap<u64, Recording>,
    next_recording: u64,
    /// What became of some of them.
    records: Vec<(u64, bool)>,
    drains: Drains,
    /// What goes since it was read.
    expiring: Expiring,
    stripes: Stripes,
    again: Again,
    /// How many streams of nodes have begun.
    streams: u64,
    /// The sweep after whole namespaces were removed: the next shard, and how many numbers it is for.
    sweep: (usize, usize),
    /// What came of lookups so far.
    lookups: Lookups,
}

/// Makes ids that nobody can guess.
struct Ids {
    secret: [u8; 32],
    count: u64,
}

impl Ids {
    fn next(&mut self) -> u64 {
        self.count += 1;
        let hash = blake3::keyed_hash(&self.secret, &self.count.to_le_bytes());
        hash.as_bytes().first_chunk::<8>().map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }
}

enum Role {
    Standby(Term, String),
    Leader(Box<Leader>),
}

/// See the module.
pub struct Master {
    config: Config,
    role: Role,
}

impl Master {
    /// A master that does not lead yet.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self { config, role: Role::Standby(0, String::new()) }
    }

    /// The term in which it leads.
    #[must_use]
    pub fn leads(&self) -> Option<Term> {
        match &self.role {
            Role::Leader(leader) => Some(leader.term),
            Role::Standby(..) => None,
        }
    }

    /// When it wants to be told that time has passed, at the latest.
    #[must_use]
    pub fn wake(&self, now: Millis) -> Millis {
        now + (self.config.resend_ms / 3).max(1)
    }

    /// What happened at `now`; what is to be done is added to `to`.
    pub fn on(&mut self, event: Event, now: Millis, to: &mut Vec<Action>) {
        match event {
            Event::Elected(elected) => {
                let term = elected.term;
                self.role = match Leader::new(self.config.clone(), elected, now) {
                    Ok(leader) => Role::Leader(Box::new(leader)),
                    Err(_) => Role::Standby(term, String::new()),
                };
            }
            Event::Deposed(term, leader) => {
                if self.leads().is_none_or(|led| led < term) {
                    self.role = Role::Standby(term, leader);
                }
            }
            Event::Lease(until) => {
                if let Role::Leader(leader) = &mut self.role {
                    leader.until = leader.until.max(until);
                }
            }
            Event::Message(from, frame) => {
                let ask = Ask { peer: from, request: frame.request };
                match &mut self.role {
                    Role::Leader(leader) if now < leader.until => {
                        if let Err(error) = leader.message(ask, frame, now, to) {
                            to.push(leader.refusal(ask, &error));
                        }
                    }
                    Role::Leader(leader) => {
                        let error = Error::new(NMC_ERR_UNAVAILABLE, "this master may have lost its lease");
                        to.push(leader.refusal(ask, &error));
                    }
                    Role::Standby(term, leader) => {
                        to.push(ask.answer(Redirect { term: *term, leader: leader.clone() }));
                    }
                }
            }
            Event::Closed(peer) => {
                if let Role::Leader(leader) = &mut self.role {
                    leader.closed(peer);
                }
            }
            Event::Tick => {
                if let Role::Leader(leader) = &mut self.role
                    && now < leader.until
                {
                    leader.tick(now, to);
                }
            }
            Event::Recorded(number, done) => {
                if let Role::Leader(leader) = &mut self.role {
                    // If the lease is over for the moment nobody may be answered: it waits until it is not.
                    leader.records.push((number, done));
                    if now < leader.until {
                        leader.recorded(now, to);
                    }
                }
            }
        }
    }
}

impl Leader {
    fn new(config: Config, elected: Elected, now: Millis) -> Result<Self> {
        let mut ids = Ids { secret: config.secret, count: 0 };
        // A leader of another term must not give the ids of this one.
        let mixed = blake3::keyed_hash(&ids.secret, &elected.term.to_be_bytes());
        ids.secret = *mixed.as_bytes();
        let seed = ids.next();
        let mut leader = Self {
            term: elected.term,
            until: elected.until,
            // Nobody is known who might have something.
            settled: elected.members.is_empty(),
            elected_at: now,
            watched: now,
            chance: Chance::new(config.seed),
            ids,
            owners: Vec::new(),
            members: BTreeMap::new(),
            arriving: BTreeMap::new(),
            returning: BTreeMap::new(),
            ended: Vec::new(),
            objects: Objects::new(seed)?,
            spaces: Spaces::default(),
            puts: BTreeMap::new(),
            checking: BTreeSet::new(),
            put_ends: VecDeque::new(),
            log: DropLog::new(elected.term, elected.log, elected.floor, config.max_log)?,
            calls: BTreeMap::new(),
            next_call: 1,
            recent: Recent::default(),
            revoked: Revoked::default(),
            recordings: BTreeMap::new(),
            next_recording: 1,
            records: Vec::new(),
            drains: Drains::default(),
            expiring: Expiring::default(),
            stripes: Stripes::default(),
            again: Again::default(),
            streams: 0,
            sweep: (0, 0),
            lookups: Lookups::default(),
            config,
        };
        #[cfg(test)]
        {
            leader.stripes.counts_once = leader.has_flaw(control::Flaw::CountsOnce);
        }
        for member in elected.members {
            leader.expect(member, now)?;
        }
        Ok(leader)
    }

    fn refusal(&self, ask: Ask, error: &Error) -> Action {
        ask.answer(Answer::new(self.term, error.status, error.message.clone()))
    }

    fn message(&mut self, ask: Ask, frame: Frame, now: Millis, to: &mut Vec<Action>) -> Result<()> {
        match frame.message {
            Message::PutStart(start) => self.put_start(ask, start, frame.time_left_ms.into(), now, to),
            Message::PutEnd(end) => self.put_end(ask, end, now, to),
            Message::Verified(verified) => self.verified(verified, to),
            Message::PutRevoke(revoke) => self.put_revoke(ask, revoke, now, to),
            Message::Find(find) => self.find(ask, &find, to),
            Message::Remove(remove) => self.remove(ask, remove, now, to),
            Message::RemoveAll(remove) => self.remove_all(ask, remove, now, to),
            Message::ListSegments(list) => self.list_segments(ask, &list, now, to),
            Message::ListKeys(list) => self.list_keys(ask, &list, to),
            Message::Expire(expire) => {
                self.expire(expire, now);
                Ok(())
            }
            Message::Drain(drain) => self.drain(ask, &drain, now, to),
            Message::Join(join) => self.join(ask, join, now, to),
            Message::Report(report) => self.report(ask, report, now, to),
            Message::Ping(ping) => self.ping(ask, &ping, now, to),
            Message::Leave(leave) => {
                self.leave(&leave, now, to);
                if ask.request != 0 {
                    to.push(ask.answer(Answer::new(self.term, NMC_OK, "")));
                }
                Ok(())
            }
            Message::Mount(mount) => self.mount(ask, mount, to),
            Message::AddReplica(add) => self.add_replica(ask, add, to),
            Message::EvictDisk(evict) => self.evict_disk(ask, evict, now, to),
            other => crate::bail!(NMC_ERR_PROTOCOL, "a master is not told {}", other.name()),
        }
    }

    fn tick(&mut self, now: Millis, to: &mut Vec<Action>) {
        self.recorded(now, to);
        // What fails for want of memory is tried again at the next tick.
        let _ = self.forget_puts(now, to);
        let _ = self.check_some(now, to);
        self.watch_members(now, to);
        let _ = self.expire_some(now);
        let _ = self.check_stripes();
        let _ = self.record_drops(to);
        let _ = self.send_drops(now, to);
        self.trim_log(to);
        let _ = self.retire_some(now, to);
        self.sweep_some();
        let _ = self.drain_some(now, to);
        let _ = self.make_again(now, to);
    }

    /// Begins to write something down.
    fn record(&mut self, what: Recording, changes: Vec<Change>, to: &mut Vec<Action>) {
        let number = self.next_recording;
        self.next_recording += 1;
        self.recordings.insert(number, what);
        to.push(Action::Record(number, changes));
    }

    fn recorded(&mut self, now: Millis, to: &mut Vec<Action>) {
        for (number, done) in std::mem::take(&mut self.records) {
            let Some(recording) = self.recordings.remove(&number) else { continue };
            match recording {
                Recording::Member(node) => self.member_recorded(node, done, now, to),
                Recording::Gone(node) => self.gone_recorded(node, done, now, to),
                Recording::Drops => {
                    self.log.recorded(number, done);
                    self.excuse_recorded(to);
                }
                Recording::Forget => {}
            }
        }
    }

    /// Removes, over the next ticks, what nothing leads to since whole namespaces were removed.
    fn sweep_some(&mut self) {
        const SHARDS: usize = 16;
        if !self.spaces.to_sweep() {
            return;
        }
        if self.sweep.0 == 0 {
            self.sweep.1 = self.spaces.former();
        }
        for shard in self.sweep.0..self.objects.shards().min(self.sweep.0 + SHARDS) {
            let former = |at: &At| self.objects.key(*at).is_some_and(|(space, _)| self.spaces.is_former(space));
            let Ok(list) = memory::collect(self.objects.of_shard(shard).filter(former)) else { return };
            list.into_iter().for_each(|at| self.bury(at));
        }
        self.sweep.0 += SHARDS;
        if self.sweep.0 >= self.objects.shards() {
            self.spaces.swept(self.sweep.1);
            self.sweep = (0, 0);
        }
    }
}

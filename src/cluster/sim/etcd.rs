//! A model of what elects masters and keeps what must outlive them: one holder of the office at a time, for as long as its
//! lease lasts, and writes that succeed only for the holder.

use crate::cluster::directory::{Change, Elected, Entry, Member};
use crate::cluster::types::{Chance, Millis, Position, Term, terms_of};
use std::collections::BTreeMap;

#[derive(Debug, Clone)]
pub enum Request {
    /// Who is not the leader wants to be, or to know who is.
    Campaign,
    /// The leader of a term wants to stay.
    KeepAlive(Term),
    Record(Term, u64, Vec<Change>),
}

#[derive(Debug, Clone)]
pub enum Reply {
    Elected(Box<Elected>),
    KeptAlive(Term),
    Leader(Term, usize),
    Recorded(Term, u64, bool),
}

#[derive(Debug)]
pub struct Etcd {
    leader: Option<(usize, Term)>,
    lease_until: Millis,
    pub lease_ms: Millis,
    revision: Term,
    members: BTreeMap<String, Position>,
    log: BTreeMap<Position, Entry>,
    floor: Position,
}

impl Etcd {
    /// With nothing written down, and terms of its own.
    pub fn new(lease_ms: Millis, seed: u64) -> Self {
        let revision = terms_of(Chance::new(seed).word());
        Self {
            leader: None,
            lease_until: 0,
            lease_ms,
            revision,
            members: BTreeMap::new(),
            log: BTreeMap::new(),
            floor: Position::default(),
        }
    }

    /// Without leases: a master that is started is the only one.
    pub fn depose(&mut self) {
        self.leader = None;
    }

    pub fn on(&mut self, from: usize, request: Request, sent_at: Millis, now: Millis) -> Reply {
        if now >= self.lease_until {
            self.leader = None;
        }
        match request {
            Request::Campaign => match self.leader {
                Some((leader, term)) if leader != from => Reply::Leader(term, leader),
                _ => {
                    self.revision += 1;
                    self.leader = Some((from, self.revision));
                    self.lease_until = now.saturating_add(self.lease_ms);
                    let member = |(name, since): (&String, &Position)| Member { name: name.clone(), since: *since };
                    Reply::Elected(Box::new(Elected {
                        term: self.revision,
                        until: sent_at,
                        members: self.members.iter().map(member).collect(),
                        log: self.log.values().cloned().collect(),
                        floor: self.floor,
                    }))
                }
            },
            Request::KeepAlive(term) => match self.leader {
                Some((leader, led)) if (leader, led) == (from, term) => {
                    self.lease_until = now.saturating_add(self.lease_ms);
                    Reply::KeptAlive(term)
                }
                Some((leader, led)) => Reply::Leader(led, leader),
                None => Reply::Leader(self.revision + 1, usize::MAX),
            },
            Request::Record(term, number, changes) => {
                let holds = self.leader == Some((from, term));
                if holds {
                    changes.into_iter().for_each(|change| self.change(change));
                }
                Reply::Recorded(term, number, holds)
            }
        }
    }

    fn change(&mut self, change: Change) {
        match change {
            Change::Member(member) => drop(self.members.insert(member.name, member.since)),
            Change::Gone(name) => drop(self.members.remove(&name)),
            Change::Drop(entry) => drop(self.log.insert(entry.position, entry)),
            Change::Forget(first, floor) => {
                self.floor = self.floor.max(floor);
                match first {
                    Some(first) => self.log = self.log.split_off(&first),
                    None => self.log.clear(),
                }
            }
        }
    }
}

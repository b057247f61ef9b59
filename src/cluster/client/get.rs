//! A get: replicas from the cache or from the master, one after the other and each from its first byte. An owner that does not
//! have it is told to the master; one that does not answer is only tried later. NOT_FOUND is said by the master alone.
//!
//! An owner that keeps checksums says what the bytes are to have. If they have another it is asked once more, and looks itself before it sends; a
//! replica that is damaged is not read again by this get.
//!
//! A value in parts has a stub, which is asked for first: if it is there the value was not removed before. Then its parts are read, each like a
//! value, straight to where they belong. They have the name of the put that the stub is of, so that no two puts mix.

use super::cx::{CANCEL_MS, Cx, Pause, Reply, Shared, moving_ms};
use super::requests::Pace;
use super::stripes::{Parts, part_of};
use super::words::{Action, Call, GetCall, Outcome, ReadOrder};
use crate::base::status::{
    NMC_ERR_BUSY, NMC_ERR_CANCELLED, NMC_ERR_CORRUPT, NMC_ERR_LIMIT, NMC_ERR_NOT_FOUND, NMC_ERR_STALE, NMC_ERR_TIMEOUT,
    NMC_ERR_TOO_SMALL, NMC_ERR_UNAVAILABLE, NMC_ERR_UNSUPPORTED, NMC_OK, nmc_status_t,
};
use crate::cluster::net::UNIX;
use crate::cluster::types::{Cut, Media, Millis, Name, PutId, SMALL};
use crate::cluster::wire::{CancelFetch, Fetch, Fetched, Find, Message, Replica};

/// Missed replicas that are told to the master.
const MAX_MISSED: usize = 64;

enum Step {
    /// Between two tries.
    Waiting,
    /// The master was asked.
    Finding,
    /// A replica was asked for.
    Fetching(Replica),
    /// Its bytes come.
    Taking(Replica, Fetched),
    /// Somebody else has moved them, and they are looked at.
    Checking(Replica, Fetched),
    /// It was a stub, and the master was asked for its parts with so many questions.
    Asking(Replica, Fetched, u64),
    /// They are read.
    Gathering(Replica, Fetched),
    /// Those that are under way are to end, since one could not be read.
    Parting(Replica, nmc_status_t),
    /// All are there, and the owner of the stub hears that it was read.
    Telling(Replica, Fetched),
    /// The owner was to write it and did not in time: it was asked to stop.
    Cancelling(Replica, Millis),
    /// Nobody knows whether it has stopped: the own mover is being renewed.
    Renewing(u64),
}

/// See the module.
pub(super) struct Getting {
    get: GetCall,
    deadline: Millis,
    step: Step,
    /// What is left to try; the next is last.
    list: Vec<Replica>,
    /// All that the master said, for the cache; nothing if that was known before.
    found: Vec<Replica>,
    missed: Vec<Name>,
    /// Those that are damaged, and the puts that they are of.
    damaged: Vec<(Name, PutId)>,
    /// The replica whose bytes were not what they were to be: its owner looks at them before it sends them once more.
    doubted: Option<Name>,
    pause: Pause,
    /// Why the last try failed.
    status: nmc_status_t,
    request: u64,
    /// Whether the owner that was asked is to write it itself.
    pushed: bool,
    /// The mover by which it comes then.
    mover: u64,
    /// Nobody wants it any more.
    ended: bool,
    /// How far its parts are.
    parts: Option<Parts>,
}

/// Whether it is damaged, or a part of what its put has made is.
fn is_among(damaged: &[(Name, PutId)], replica: &Replica) -> bool {
    damaged.iter().any(|(name, put)| *name == replica.name || *put == replica.put && put.is_striped())
}

fn too_small(replica: &Replica) -> Outcome {
    Outcome { count: replica.length, ..Outcome::of(NMC_ERR_TOO_SMALL) }
}

impl Getting {
    pub(super) fn new(get: GetCall, deadline: Millis) -> Self {
        Self {
            get,
            deadline,
            step: Step::Waiting,
            list: Vec::new(),
            found: Vec::new(),
            missed: Vec::new(),
            damaged: Vec::new(),
            doubted: None,
            pause: Pause::default(),
            status: NMC_ERR_TIMEOUT,
            request: 0,
            pushed: false,
            mover: 0,
            ended: false,
            parts: None,
        }
    }

    pub(super) fn wake(&self) -> Millis {
        match self.step {
            Step::Cancelling(_, until) => until,
            Step::Renewing(_) => Millis::MAX,
            Step::Fetching(_) | Step::Taking(..) if self.pushed => Millis::MAX,
            Step::Checking(..) => Millis::MAX,
            _ => self.pause.until.unwrap_or(self.deadline).min(self.deadline),
        }
    }

    pub(super) fn begin(&mut self, cx: &mut Cx<'_>) -> Option<Outcome> {
        if let Some(known) = cx.shared.cache.find(&self.get.key) {
            self.list = known.to_vec();
            self.sort(cx);
        }
        self.next(cx)
    }

    /// Worst first: the next to try is taken from the end.
    fn sort(&mut self, cx: &mut Cx<'_>) {
        if self.list.len() < 2 {
            return;
        }
        let Shared { config, failed, chance, requests, .. } = &mut *cx.shared;
        let (host, now) = (&config.host, cx.now);
        let rank = |replica: &Replica, chance: u64| {
            let failed = failed.get(&replica.name.node).is_some_and(|until| now < *until);
            let near = replica.endpoint.starts_with(UNIX) || !host.is_empty() && replica.endpoint.starts_with(host);
            let (slow, busy) = (replica.media == Media::Ssd, requests.of_node(replica.name.node));
            let (first, second) = match config.read_order {
                ReadOrder::Near => (!near, slow),
                ReadOrder::Memory => (slow, !near),
                ReadOrder::Spread => (slow, false),
            };
            (failed, first, second, busy, chance)
        };
        let mut ranked = Vec::new();
        for replica in self.list.drain(..) {
            ranked.push((rank(&replica, chance.word()), replica));
        }
        ranked.sort_by_key(|(rank, _)| std::cmp::Reverse(*rank));
        self.list.extend(ranked.into_iter().map(|(_, replica)| replica));
    }

    /// Tries the next replica, or asks the master.
    fn next(&mut self, cx: &mut Cx<'_>) -> Option<Outcome> {
        if cx.now >= self.deadline {
            return Some(self.over());
        }
        let Some(replica) = self.list.pop() else {
            cx.shared.cache.forget(&self.get.key);
            self.step = Step::Finding;
            let find = Find { keys: vec![self.get.key.clone()], missed: self.missed.clone() };
            cx.ask_master(0, self.deadline, find);
            return None;
        };
        let fits = replica.length <= self.get.room || self.get.about;
        if !fits && !self.found.is_empty() {
            return Some(too_small(&replica));
        }
        // What is remembered may be the size of a value that is gone: its owner is asked whether it is there, and for no byte of it. So is
        // that of a stub.
        let stub = replica.put.is_striped();
        let length = if fits && !stub && !self.get.about { replica.length } else { 0 };
        self.pushed = !self.get.into.is_empty() && cx.is_pushed(replica.name.node, length);
        let into = if self.pushed { self.get.into.clone() } else { Vec::new() };
        let (name, put, key, mover) = (replica.name, replica.put, self.get.key.clone(), cx.shared.mover);
        // A value in parts was read when all of them were.
        let expire_ms = if fits && !stub && !self.get.about { self.get.expire_ms } else { 0 };
        let verify = self.doubted == Some(name) || self.get.unseen;
        let fetch = Fetch { name, key, put, offset: 0, length, into, mover, expire_ms, stub, verify };
        self.mover = mover;
        // Before the first byte an owner may have to read it, or to compare.
        let (limit, window) = (self.deadline, cx.shared.config.owner_ms);
        let first = window + moving_ms(length);
        let pace = Pace { limit, first, window, after: None, moved: 0, whole: false };
        let pace = Some(pace).filter(|_| !self.pushed && length > SMALL);
        let until = self.deadline.min(cx.now + first);
        self.request = cx.ask_node_for(0, (until, pace), (replica.name.node, &replica.endpoint), fetch);
        self.step = Step::Fetching(replica);
        None
    }

    pub(super) fn reply(&mut self, number: u64, reply: Reply, cx: &mut Cx<'_>) -> Option<Outcome> {
        if matches!(self.step, Step::Fetching(_) | Step::Taking(..) | Step::Telling(..)) && number != self.request {
            // Of a replica that was given up.
            return None;
        }
        let reply = match reply {
            // Bytes may still come, whoever refuses whom.
            Reply::Refused(_) if self.pushed => Reply::Late,
            other => other,
        };
        match (std::mem::replace(&mut self.step, Step::Waiting), reply) {
            (Step::Finding, Reply::Message(Message::Found(found))) => {
                let Some(listed) = found.keys.into_iter().next() else { return self.wait(NMC_ERR_UNAVAILABLE, cx) };
                match listed.status {
                    NMC_OK => {
                        self.found.clone_from(&listed.replicas);
                        self.list = listed.replicas;
                        self.list.retain(|replica| !is_among(&self.damaged, replica));
                        if self.list.is_empty() {
                            return Some(Outcome::of(NMC_ERR_CORRUPT));
                        }
                        self.sort(cx);
                        self.next(cx)
                    }
                    NMC_ERR_NOT_FOUND => Some(Outcome::of(NMC_ERR_NOT_FOUND)),
                    _ => self.wait(NMC_ERR_UNAVAILABLE, cx),
                }
            }
            // There may be a connection to another owner.
            (Step::Fetching(_), Reply::Failed(NMC_ERR_LIMIT)) if !self.list.is_empty() => self.next(cx),
            // Nothing of it is under way.
            (Step::Finding | Step::Fetching(_), Reply::Failed(status)) => Some(Outcome::of(status)),
            (Step::Finding, _) => self.wait(NMC_ERR_UNAVAILABLE, cx),
            (Step::Fetching(replica), Reply::Message(Message::Fetched(fetched))) => {
                self.fetched(number, replica, fetched, cx)
            }
            (Step::Taking(replica, fetched), Reply::Bytes(true)) => Some(self.got(&replica, fetched, cx)),
            (Step::Taking(replica, _), Reply::Torn) => self.torn(replica, cx),
            (Step::Telling(replica, fetched), _) => Some(self.got(&replica, fetched, cx)),
            (Step::Fetching(replica) | Step::Taking(replica, _), Reply::Late) if self.pushed => {
                // Bytes may still come: the buffer is nobody's until they cannot.
                cx.failed(replica.name.node);
                let until = cx.now + CANCEL_MS;
                let cancel = CancelFetch { request: self.request, incarnation: replica.name.incarnation };
                self.request = cx.ask_node(0, until, (replica.name.node, &replica.endpoint), cancel);
                self.step = Step::Cancelling(replica, until);
                None
            }
            (Step::Fetching(replica) | Step::Taking(replica, _), late) => {
                if matches!(late, Reply::Late | Reply::Bytes(_)) {
                    cx.to.push(Action::Close(number));
                }
                cx.shared.requests.remove(number);
                cx.failed(replica.name.node);
                self.status = if let Reply::Refused(status) = late { status } else { NMC_ERR_TIMEOUT };
                self.after_failure(false, cx)
            }
            (Step::Cancelling(replica, _), Reply::Message(Message::Answer(answer))) if answer.status == NMC_OK => {
                // Nothing is under way any more.
                cx.failed(replica.name.node);
                self.status = NMC_ERR_TIMEOUT;
                self.after_failure(false, cx)
            }
            (Step::Cancelling(..), _) => self.renew(cx),
            (step, _) => {
                self.step = step;
                None
            }
        }
    }

    fn fetched(&mut self, number: u64, replica: Replica, fetched: Fetched, cx: &mut Cx<'_>) -> Option<Outcome> {
        let stub = replica.put.is_striped();
        let cut = if stub { Cut::of(replica.length, fetched.length) } else { None };
        let same = fetched.put == replica.put && if stub { cut.is_some() } else { fetched.length == replica.length };
        if same && fetched.status == NMC_OK && fetched.follows == 0 && self.get.about {
            // A stub says the same about it, and its length is another.
            return Some(self.got(&replica, Fetched { length: replica.length, ..fetched }, cx));
        }
        if let Some(cut) = cut.filter(|_| same && fetched.status == NMC_OK && fetched.follows == 0)
            && replica.length <= self.get.room
        {
            return self.gather(cut, replica, fetched, cx);
        }
        match fetched.status {
            NMC_OK if same && replica.length > self.get.room && fetched.follows == 0 => Some(too_small(&replica)),
            NMC_OK if !same || !self.is_whole(&fetched) => {
                // An owner that gives something else under this name is not believed.
                cx.to.push(Action::Close(number));
                cx.shared.requests.remove(number);
                self.missed(replica.name, cx);
                self.after_failure(true, cx)
            }
            NMC_OK if fetched.follows > 0 => {
                let (request, into, length, sum) = (number, cx.memory, fetched.follows, fetched.sum);
                cx.to.push(Action::Take { request, into, length, sum });
                cx.shared.requests.begins(number, Some(cx.shared.config.owner_ms), cx.now);
                self.step = Step::Taking(replica, fetched);
                None
            }
            NMC_OK if self.pushed => {
                let sum = fetched.sum.filter(|_| !self.get.unseen);
                let (call, into, length) = (cx.call, cx.memory, fetched.length);
                cx.to.push(Action::Landed { call, into, length, sum });
                if sum.is_none() {
                    return Some(self.got(&replica, fetched, cx));
                }
                self.step = Step::Checking(replica, fetched);
                None
            }
            NMC_OK => Some(self.got(&replica, fetched, cx)),
            NMC_ERR_UNSUPPORTED if self.pushed => {
                // The same replica, on a stream.
                cx.alone(replica.name.node);
                self.list.push(replica);
                self.next(cx)
            }
            NMC_ERR_TIMEOUT if self.pushed => {
                // It has begun, and nobody else can end what is on its way: the buffer is nobody's until the own mover was renewed.
                cx.failed(replica.name.node);
                self.renew(cx)
            }
            NMC_ERR_NOT_FOUND | NMC_ERR_STALE => {
                self.missed(replica.name, cx);
                self.after_failure(true, cx)
            }
            NMC_ERR_CORRUPT => self.damaged(&replica, cx),
            NMC_ERR_BUSY => {
                // It is asked again, after the others: the master would only say the same place.
                self.list.insert(0, replica);
                self.wait(NMC_ERR_BUSY, cx)
            }
            status => {
                cx.failed(replica.name.node);
                self.status = status;
                self.after_failure(false, cx)
            }
        }
    }

    /// What was moved by somebody else was looked at.
    pub(super) fn checked(&mut self, right: bool, cx: &mut Cx<'_>) -> Option<Outcome> {
        match std::mem::replace(&mut self.step, Step::Waiting) {
            Step::Checking(replica, fetched) if right => Some(self.got(&replica, fetched, cx)),
            Step::Checking(replica, _) => self.torn(replica, cx),
            step => {
                self.step = step;
                None
            }
        }
    }

    /// What has come is not what the owner has. It looks itself, the first time; what has been damaged on its way comes once more.
    fn torn(&mut self, replica: Replica, cx: &mut Cx<'_>) -> Option<Outcome> {
        if self.doubted == Some(replica.name) {
            return self.damaged(&replica, cx);
        }
        self.doubted = Some(replica.name);
        self.list.push(replica);
        self.next(cx)
    }

    /// A replica is not what was put. There may be others; else the master is asked, which may know of some.
    fn damaged(&mut self, replica: &Replica, cx: &mut Cx<'_>) -> Option<Outcome> {
        cx.shared.cache.miss(&self.get.key, &replica.name);
        self.damaged.push((replica.name, replica.put));
        self.list.retain(|replica| !is_among(&self.damaged, replica));
        self.found.retain(|replica| !is_among(&self.damaged, replica));
        self.status = NMC_ERR_CORRUPT;
        self.after_failure(true, cx)
    }

    /// Its stub is there: its parts are asked for, then read.
    fn gather(&mut self, cut: Cut, replica: Replica, fetched: Fetched, cx: &mut Cx<'_>) -> Option<Outcome> {
        let parts = self.parts.insert(Parts::new(cut, replica.put, self.deadline));
        // If it is not asked for all at once it is asked for each.
        let asked = parts.ask(cx).unwrap_or(0);
        if asked > 0 {
            self.step = Step::Asking(replica, fetched, asked);
            return None;
        }
        self.get_parts(replica, fetched, cx)
    }

    /// Reads as many parts as may be under way.
    fn get_parts(&mut self, replica: Replica, fetched: Fetched, cx: &mut Cx<'_>) -> Option<Outcome> {
        let Self { parts, get, .. } = self;
        let read = parts.as_mut()?.go_on(cx, |key, offset, room| {
            let into = part_of(&get.into, offset, room)?;
            Ok(Call::Get(GetCall { into, unseen: get.unseen, ..GetCall::new(key, room) }))
        });
        match read {
            Ok(()) => {
                self.step = Step::Gathering(replica, fetched);
                None
            }
            Err(error) => self.scatter(replica, error.status, cx),
        }
    }

    /// A part was read or is not to be, or the master was asked where some are.
    pub(super) fn part_ended(&mut self, number: u64, outcome: &Outcome, cx: &mut Cx<'_>) -> Option<Outcome> {
        match std::mem::replace(&mut self.step, Step::Waiting) {
            Step::Asking(replica, fetched, left) if left > 1 => {
                self.step = Step::Asking(replica, fetched, left - 1);
                None
            }
            Step::Asking(replica, fetched, _) => self.get_parts(replica, fetched, cx),
            Step::Gathering(replica, fetched) => {
                let parts = self.parts.as_mut()?;
                parts.ended();
                match outcome.status {
                    NMC_OK if outcome.count != parts.cut.part(number).1 => {
                        self.scatter(replica, NMC_ERR_UNAVAILABLE, cx)
                    }
                    NMC_OK if parts.are_over() => self.gathered(replica, fetched, cx),
                    NMC_OK => self.get_parts(replica, fetched, cx),
                    NMC_ERR_TOO_SMALL => self.scatter(replica, NMC_ERR_UNAVAILABLE, cx),
                    status => self.scatter(replica, status, cx),
                }
            }
            step => {
                self.step = step;
                None
            }
        }
    }

    /// A part is not there, or cannot be read: nothing goes on while others may still arrive.
    fn scatter(&mut self, stub: Replica, status: nmc_status_t, cx: &mut Cx<'_>) -> Option<Outcome> {
        cx.parts.end = true;
        cx.parts.begin.clear();
        self.parts = None;
        self.step = Step::Parting(stub, status);
        None
    }

    /// Nothing of its parts is under way any more.
    pub(super) fn parted(&mut self, cx: &mut Cx<'_>) -> Option<Outcome> {
        match std::mem::replace(&mut self.step, Step::Waiting) {
            Step::Parting(stub, status) => self.scattered(&stub, status, cx),
            step => {
                self.step = step;
                None
            }
        }
    }

    /// There may be another value under the key; else the master is asked again. Where a part is nowhere the
    /// stub is as good as missed, though its owner has it.
    fn scattered(&mut self, stub: &Replica, status: nmc_status_t, cx: &mut Cx<'_>) -> Option<Outcome> {
        self.list.retain(|replica| replica.put != stub.put);
        match status {
            NMC_ERR_CORRUPT => return self.damaged(stub, cx),
            // The caller's memory is such that nobody else can read it there.
            NMC_ERR_UNSUPPORTED => return Some(Outcome::of(status)),
            _ => {}
        }
        let lost = status == NMC_ERR_NOT_FOUND;
        if lost {
            self.missed(stub.name, cx);
        }
        self.status = if lost { NMC_ERR_UNAVAILABLE } else { status };
        self.after_failure(lost, cx)
    }

    /// All parts are there.
    fn gathered(&mut self, replica: Replica, fetched: Fetched, cx: &mut Cx<'_>) -> Option<Outcome> {
        let fetched = Fetched { length: replica.length, ..fetched };
        self.parts = None;
        if self.get.expire_ms == 0 {
            return Some(self.got(&replica, fetched, cx));
        }
        let fetch = Fetch {
            name: replica.name,
            key: self.get.key.clone(),
            put: replica.put,
            offset: 0,
            length: 0,
            into: Vec::new(),
            mover: 0,
            expire_ms: self.get.expire_ms,
            stub: true,
            verify: false,
        };
        let until = self.deadline.min(cx.now + cx.shared.config.owner_ms);
        self.request = cx.ask_node(0, until, (replica.name.node, &replica.endpoint), fetch);
        self.step = Step::Telling(replica, fetched);
        None
    }

    /// Whether all bytes follow, if they do.
    fn is_whole(&self, fetched: &Fetched) -> bool {
        fetched.follows == if self.pushed { 0 } else { fetched.length }
    }

    fn missed(&mut self, name: Name, cx: &mut Cx<'_>) {
        cx.shared.cache.miss(&self.get.key, &name);
        if self.missed.len() < MAX_MISSED {
            self.missed.push(name);
        }
    }

    fn got(&mut self, replica: &Replica, fetched: Fetched, cx: &mut Cx<'_>) -> Outcome {
        if !self.found.is_empty() {
            cx.shared.cache.enter(&self.get.key, &self.found);
        }
        cx.shared.failed.remove(&replica.name.node);
        if self.get.keep && !replica.put.is_striped() {
            cx.to.push(Action::Keep(cx.call, self.get.key.clone(), replica.clone()));
        }
        Outcome { status: NMC_OK, put: fetched.put, count: fetched.length, metadata: fetched.metadata, reply: None }
    }

    /// The next replica at once; the master again after a pause, unless it has something to learn.
    fn after_failure(&mut self, missed: bool, cx: &mut Cx<'_>) -> Option<Outcome> {
        if self.list.is_empty() && !missed {
            return self.wait(self.status, cx);
        }
        self.next(cx)
    }

    fn wait(&mut self, status: nmc_status_t, cx: &mut Cx<'_>) -> Option<Outcome> {
        self.status = status;
        if cx.now >= self.deadline {
            return Some(self.over());
        }
        self.step = Step::Waiting;
        self.pause.begin(cx.now);
        None
    }

    /// What it has come to when there is no time left.
    fn over(&self) -> Outcome {
        Outcome::of(if self.ended { NMC_ERR_CANCELLED } else { self.status })
    }

    /// Nobody wants it any more.
    pub(super) fn end(&mut self, cx: &mut Cx<'_>) -> Option<Outcome> {
        (self.ended, self.deadline) = (true, cx.now);
        match self.step {
            Step::Fetching(_) | Step::Taking(..) if self.pushed => {
                cx.shared.requests.remove(self.request);
                self.reply(self.request, Reply::Late, cx)
            }
            Step::Cancelling(..) | Step::Renewing(_) => None,
            _ => Some(self.over()),
        }
    }

    /// Waits until nothing that was begun for it can arrive any more.
    fn renew(&mut self, cx: &mut Cx<'_>) -> Option<Outcome> {
        match cx.renew(self.mover) {
            Some(number) => {
                self.step = Step::Renewing(number);
                None
            }
            None => self.fenced(cx),
        }
    }

    /// Nothing arrives any more of what was being written here.
    fn fenced(&mut self, cx: &mut Cx<'_>) -> Option<Outcome> {
        self.step = Step::Waiting;
        self.status = NMC_ERR_TIMEOUT;
        self.after_failure(false, cx)
    }

    pub(super) fn renewed(&mut self, number: u64, cx: &mut Cx<'_>) -> Option<Outcome> {
        match self.step {
            Step::Renewing(waited) if number >= waited => self.fenced(cx),
            // Whatever was being written here is not any more, and nobody says so.
            Step::Fetching(_) | Step::Cancelling(..) if self.pushed && self.mover < number => {
                cx.shared.requests.remove(self.request);
                self.fenced(cx)
            }
            _ => None,
        }
    }

    pub(super) fn tick(&mut self, cx: &mut Cx<'_>) -> Option<Outcome> {
        match self.step {
            Step::Cancelling(_, until) if cx.now >= until => self.renew(cx),
            Step::Cancelling(..) | Step::Renewing(_) => None,
            Step::Waiting if self.pause.over(cx.now) => self.next(cx),
            Step::Telling(..) if cx.now >= self.deadline => self.reply(self.request, Reply::Late, cx),
            _ if cx.now >= self.deadline => {
                cx.to.push(Action::Close(self.request));
                Some(self.over())
            }
            _ => None,
        }
    }
}

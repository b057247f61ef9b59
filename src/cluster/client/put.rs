//! A put: the master lets it begin, owners take it side by side, the master ends it. An owner that cannot is replaced by one of
//! the spare places; never is the same owner tried twice with the same put. If another leader comes meanwhile, or one
//! of them says that it has room in a moment, the whole of it begins again.
//!
//! A value in parts: the master lets the whole begin, which is put as a stub; the parts are put under its id, each like a value; then the
//! stub, whose end is the end of all. Until then nobody sees any of it, and if it does not come the master drops the parts.

use super::cx::{CANCEL_MS, Cx, Pause, Reply, moving_ms};
use super::requests::{Pace, Request};
use super::stripes::Parts;
use super::words::{Action, Call, Outcome, PutCall};
use crate::base::error::Result;
use crate::base::status::{
    NMC_ERR_BUSY, NMC_ERR_EXISTS, NMC_ERR_STALE, NMC_ERR_TIMEOUT, NMC_ERR_UNAVAILABLE, NMC_ERR_UNSUPPORTED,
    NMC_NOT_READY, NMC_OK, nmc_status_t,
};
use crate::cluster::types::{Cut, Media, Millis, ObjectKey, PutId, SMALL};
use crate::cluster::wire::{
    Commit, Done, Frame, MAX_COPIES, Message, Metadata, Place, Put, PutEnd, PutPlaces, PutRevoke, PutStart, Reserve,
    Stopped,
};

/// The part of a call that speaks to the master.
const MASTER: usize = usize::MAX;
/// How often a put begins again because another leader came.
const MAX_STARTS: u32 = 8;

/// What a put that begins must follow.
#[derive(Debug, Clone, Copy)]
struct Started {
    put: PutId,
    term: u64,
}

/// One owner of a put.
struct Part {
    place: Place,
    state: State,
    request: u64,
    /// Whether somebody else writes it.
    pushed: bool,
    /// The mover by which it is written then.
    mover: u64,
}

enum State {
    /// It was asked to take the value, or to find room for it.
    Asked,
    /// Somebody else writes the value there.
    Writing,
    /// That is to end.
    Cancelling,
    /// Nobody knows whether it has: the own mover is being renewed.
    Renewing(u64),
    /// Everything was written, and it was told so.
    Committing,
    Done(Done),
    Failed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Waiting,
    Starting,
    /// Its parts are put.
    Parts,
    /// They are to end, and then it begins again.
    Parting,
    Spreading,
    Ending,
    /// Waits to ask for its end again.
    EndingLater,
    /// Time is up, or nobody wants it any more: it ends like this when what is being written was stopped.
    Stopping(nmc_status_t),
}

/// See the module.
pub(super) struct Putting {
    put: PutCall,
    deadline: Millis,
    step: Step,
    started: Option<Started>,
    parts: Vec<Part>,
    /// The next to be tried is last.
    spares: Vec<Place>,
    /// How many owners are wanted.
    copies: usize,
    /// How it is cut, if it is put in parts; then what owners are sent is its stub.
    cut: Option<Cut>,
    /// How far its parts are.
    striped: Option<Parts>,
    starts: u32,
    /// Until when bytes may move: what is left then is for the end of the put.
    moves_until: Millis,
    /// How often the master was asked to end it, since it was begun.
    ends: u32,
    /// An owner has another leader by now.
    stale: bool,
    /// An owner has room for it in a moment.
    soon: bool,
    /// An owner may have taken it, and nobody knows.
    unsure: bool,
    pause: Pause,
    status: nmc_status_t,
}

impl Putting {
    pub(super) fn new(mut put: PutCall, deadline: Millis, part: bool) -> Self {
        let cut = put.cut().filter(|_| !part);
        if let Some(cut) = cut {
            // What its bytes are does not matter, only how many: as many as parts.
            (put.length, put.slices) = (cut.count, vec![cut.count]);
        }
        Self {
            put,
            copies: 0,
            cut,
            striped: None,
            deadline,
            step: Step::Waiting,
            started: None,
            parts: Vec::new(),
            spares: Vec::new(),
            starts: 0,
            moves_until: deadline,
            ends: 0,
            stale: false,
            soon: false,
            unsure: false,
            pause: Pause::default(),
            status: NMC_ERR_TIMEOUT,
        }
    }

    pub(super) fn wake(&self) -> Millis {
        match self.step {
            Step::Stopping(_) => Millis::MAX,
            _ => self.pause.until.unwrap_or(self.deadline).min(self.deadline),
        }
    }

    pub(super) fn begin(&mut self, cx: &mut Cx<'_>) -> Option<Outcome> {
        self.step = Step::Starting;
        let start = PutStart {
            key: self.put.key.clone(),
            length: self.put.length,
            slices: self.put.slices.clone(),
            config: self.put.config.clone(),
            striped: self.cut.is_some(),
        };
        cx.ask_master(MASTER, self.deadline, start);
        None
    }

    /// What owners are to compare.
    fn crc(&self, cx: &Cx<'_>) -> Option<u32> {
        self.put.crc.filter(|_| !cx.shared.config.pushed)
    }

    /// How many copies are wanted.
    pub(super) fn copies(&self) -> u32 {
        self.put.config.copies
    }

    /// Bytes that are sent to owners.
    pub(super) fn bytes(&self) -> u64 {
        // No value has more, whatever is said.
        self.put.length.min(1 << 40) * u64::from(self.copies().min(MAX_COPIES))
    }

    /// How long an owner may take: the longer, the more others are put, but not so long that no time is left to try another one.
    fn owner_ms(&self, cx: &Cx<'_>) -> Millis {
        self.still_ms(cx) + moving_ms(self.put.length)
    }

    /// How long it may take none of it.
    fn still_ms(&self, cx: &Cx<'_>) -> Millis {
        let owner_ms = cx.shared.config.owner_ms;
        let others = cx.shared.bytes.saturating_sub(self.bytes());
        owner_ms + moving_ms(others).min(2 * owner_ms)
    }

    pub(super) fn reply(&mut self, number: u64, part: usize, reply: Reply, cx: &mut Cx<'_>) -> Option<Outcome> {
        match (self.step, part) {
            (Step::Starting, MASTER) => match reply {
                Reply::Message(Message::PutPlaces(places)) => self.spread(places, cx),
                Reply::Message(Message::Answer(answer)) if answer.status != NMC_ERR_UNAVAILABLE => {
                    if answer.status == NMC_ERR_BUSY {
                        return self.wait(Step::Waiting, answer.status, cx);
                    }
                    let status = answer.status;
                    Some(Outcome { reply: Some(Box::new(answer.into())), ..Outcome::of(status) })
                }
                Reply::Failed(status) => Some(Outcome::of(status)),
                _ => self.wait(Step::Waiting, NMC_ERR_UNAVAILABLE, cx),
            },
            (Step::Ending, MASTER) => match reply {
                // Its owners have begun another life, and nothing of it is left. If it was asked before, it may have been there.
                Reply::Message(Message::Answer(answer))
                    if answer.status == NMC_ERR_STALE && self.ends == 1 && self.starts < MAX_STARTS =>
                {
                    self.starts += 1;
                    self.wait(Step::Waiting, NMC_ERR_STALE, cx)
                }
                Reply::Message(Message::Answer(answer)) if answer.status != NMC_ERR_UNAVAILABLE => {
                    let put = self.started.map_or(crate::cluster::types::PutId(0), |started| started.put);
                    let (status, count) = (answer.status, answer.count);
                    let reply = (status != NMC_OK).then(|| Box::new(answer.into()));
                    Some(Outcome { put, count, reply, ..Outcome::of(status) })
                }
                _ => self.wait(Step::EndingLater, NMC_ERR_UNAVAILABLE, cx),
            },
            (Step::Spreading | Step::Stopping(_), part) => {
                self.part(number, part, reply, cx);
                self.go_on(cx)
            }
            _ => None,
        }
    }

    fn wait(&mut self, step: Step, status: nmc_status_t, cx: &mut Cx<'_>) -> Option<Outcome> {
        self.status = status;
        self.step = step;
        if cx.now >= self.deadline {
            return self.give_up(NMC_ERR_TIMEOUT, cx);
        }
        self.pause.begin(cx.now);
        None
    }

    fn spread(&mut self, places: PutPlaces, cx: &mut Cx<'_>) -> Option<Outcome> {
        if places.status != NMC_OK {
            return Some(Outcome::of(places.status));
        }
        self.started = Some(Started { put: places.put, term: places.term });
        (self.stale, self.soon, self.ends) = (false, false, 0);
        self.parts.clear();
        self.copies = (places.copies as usize).min(places.places.len());
        self.spares = places.places;
        self.spares.reverse();
        match self.cut {
            Some(cut) => {
                self.step = Step::Parts;
                self.striped = Some(Parts::new(cut, places.put, self.deadline));
                self.put_parts(cx)
            }
            None => self.spread_all(cx),
        }
    }

    /// Asks as many owners as are wanted.
    fn spread_all(&mut self, cx: &mut Cx<'_>) -> Option<Outcome> {
        self.step = Step::Spreading;
        for _ in 0..self.copies {
            if let Some(place) = self.spares.pop() {
                self.try_at(place, cx);
            }
        }
        self.go_on(cx)
    }

    /// Puts as many parts as may be under way.
    fn put_parts(&mut self, cx: &mut Cx<'_>) -> Option<Outcome> {
        let put = &self.put;
        let part = |key: ObjectKey, _, length: u64| -> Result<Call> {
            Ok(Call::Put(PutCall {
                key,
                length,
                slices: vec![length],
                config: put.config.clone(),
                retain: put.retain,
                metadata: Metadata::default(),
                crc: None,
                stripe: 0,
            }))
        };
        match self.striped.as_mut()?.go_on(cx, part) {
            Ok(()) => None,
            Err(error) => self.give_up(error.status, cx),
        }
    }

    /// A part has ended: when all have, its owners get the stub.
    pub(super) fn part_ended(&mut self, outcome: &Outcome, cx: &mut Cx<'_>) -> Option<Outcome> {
        if self.step != Step::Parts {
            return None;
        }
        let parts = self.striped.as_mut()?;
        parts.ended();
        match outcome.status {
            NMC_OK if parts.are_over() => self.spread_all(cx),
            NMC_OK => self.put_parts(cx),
            // The whole is not known any more, or somebody has what nobody else can have: all of it begins again, under another id.
            NMC_ERR_STALE | NMC_ERR_EXISTS if self.starts < MAX_STARTS => {
                self.starts += 1;
                self.revoke(cx);
                self.step = Step::Parting;
                None
            }
            status => {
                self.revoke(cx);
                Some(Outcome { reply: outcome.reply.clone(), ..Outcome::of(status) })
            }
        }
    }

    /// Nothing of its parts is under way any more.
    pub(super) fn parted(&mut self, cx: &mut Cx<'_>) -> Option<Outcome> {
        match self.step {
            Step::Parting => self.wait(Step::Waiting, NMC_ERR_STALE, cx),
            _ => None,
        }
    }

    /// What has begun is not to be.
    fn revoke(&mut self, cx: &mut Cx<'_>) {
        cx.parts.end = true;
        self.striped = None;
        if let Some(started) = self.started.take() {
            cx.tell_master(PutRevoke { put: started.put, key: self.put.key.clone() });
        }
    }

    /// Asks the next owner instead of one that failed: of the same medium if there is one, else one that has memory.
    fn try_next(&mut self, failed: Media, cx: &mut Cx<'_>) {
        let last = |fits: &dyn Fn(Media) -> bool| self.spares.iter().rposition(|place| fits(place.media));
        if let Some(at) = last(&|media| media == failed).or_else(|| last(&|media| media != Media::Ssd)) {
            let place = self.spares.remove(at);
            self.try_at(place, cx);
        }
    }

    fn try_at(&mut self, place: Place, cx: &mut Cx<'_>) {
        // A stub has a few bytes that nobody looks at.
        let pushed = self.cut.is_none() && cx.is_pushed(place.node, self.put.length);
        let at = self.parts.len();
        self.parts.push(Part { place, state: State::Failed, request: 0, pushed, mover: cx.shared.mover });
        self.ask(at, cx);
    }

    /// Asks an owner to take it, or to find room for it.
    fn ask(&mut self, at: usize, cx: &mut Cx<'_>) {
        let (Some(part), Some(started)) = (self.parts.get(at), self.started) else { return };
        let (place, pushed) = (part.place.clone(), part.pushed);
        let put = Put {
            put: started.put,
            term: started.term,
            incarnation: place.incarnation,
            after: place.after,
            segment: place.segment,
            key: self.put.key.clone(),
            length: self.put.length,
            retain: self.put.retain,
            metadata: self.put.metadata.clone(),
            hold: self.crc(cx).is_some(),
            exact: place.exact,
        };
        let message = match pushed {
            true => Message::Reserve(Reserve { put, writer: cx.shared.config.host.clone() }),
            false => Message::Put(put),
        };
        let (window, after) = (self.still_ms(cx), self.owner_ms(cx));
        let paced = !pushed && self.put.length > SMALL;
        let first = if paced { window } else { after };
        let mut until = cx.now + first;
        // Nothing of it is reserved that is given to others after a while: while it moves it has all the time that is not needed to end the put.
        let end = cx.shared.config.owner_ms.min(self.deadline.saturating_sub(cx.now) / 8);
        let limit = self.deadline.min(until.max(self.deadline.saturating_sub(end)));
        self.moves_until = limit;
        if (self.spares.is_empty() || self.is_named(at)) && at == 0 && !pushed {
            // There is no other one.
            until = limit;
        }
        let until = self.deadline.min(until);
        let pace =
            Pace { limit, first: until.saturating_sub(cx.now), window, after: Some(after), moved: 0, whole: false };
        let pace = Some(pace).filter(|_| paced);
        let request = cx.ask_node_for(at, (until, pace), (place.node, &place.endpoint), message);
        if let Some(part) = self.parts.get_mut(at) {
            (part.state, part.request, part.mover) = (State::Asked, request, cx.shared.mover);
        }
    }

    /// Something came for one owner.
    fn part(&mut self, number: u64, at: usize, reply: Reply, cx: &mut Cx<'_>) {
        let (deadline, owner_ms) = (self.deadline, self.owner_ms(cx));
        let Some(part) = self.parts.get_mut(at).filter(|part| part.request == number) else { return };
        let node = (part.place.node, part.place.endpoint.clone());
        match (&part.state, reply) {
            (State::Asked | State::Committing, Reply::Message(Message::PutDone(done))) => match done.done {
                Some(done) => part.state = State::Done(done),
                None => self.failed(at, done.status, cx),
            },
            (State::Asked, Reply::Message(Message::Reserved(reserved))) if reserved.status == NMC_OK => {
                let until = deadline.min(cx.now + owner_ms);
                let request = cx.request(at, until, false);
                let (mover, extents) = (reserved.mover, reserved.extents);
                let (from, length) = (cx.memory, self.put.length);
                cx.to.push(Action::Write { request, from, length, node: node.0, mover, extents });
                (part.state, part.request, part.mover) = (State::Writing, request, cx.shared.mover);
            }
            (State::Asked, Reply::Message(Message::Reserved(reserved)))
                if part.pushed && reserved.status == NMC_ERR_UNSUPPORTED && self.step == Step::Spreading =>
            {
                // The same owner, on a stream: it has found no room yet.
                part.pushed = false;
                cx.alone(node.0);
                self.ask(at, cx);
            }
            (State::Asked, Reply::Message(Message::Reserved(reserved))) => self.failed(at, reserved.status, cx),
            (State::Asked, Reply::Failed(status)) => self.failed(at, status, cx),
            (State::Writing, Reply::Bytes(true)) if self.step == Step::Spreading => {
                let put = self.started.map_or(crate::cluster::types::PutId(0), |started| started.put);
                let until = deadline.min(cx.now + owner_ms);
                part.request = cx.ask_node(at, until, (node.0, &node.1), Commit { put });
                part.state = State::Committing;
            }
            (State::Writing, Reply::Late) => {
                cx.to.push(Action::CancelWrite(number));
                part.request = number;
                part.state = State::Cancelling;
                let until = cx.now + CANCEL_MS;
                let request = Request { call: cx.call, part: at, until, master: false, node: None, pace: None };
                cx.shared.requests.insert(number, request);
            }
            (State::Writing | State::Cancelling, Reply::Bytes(_)) => {
                // The value is not read any more; the owner sees to what may be on its way.
                self.stopped(at, true, cx);
                self.failed(at, NMC_ERR_TIMEOUT, cx);
            }
            (State::Writing | State::Cancelling, Reply::Unwritten) => {
                cx.alone(node.0);
                self.stopped(at, false, cx);
                self.failed(at, NMC_ERR_TIMEOUT, cx);
            }
            (State::Cancelling, Reply::Late) => match cx.renew(part.mover) {
                Some(number) => part.state = State::Renewing(number),
                None => {
                    self.stopped(at, true, cx);
                    self.failed(at, NMC_ERR_TIMEOUT, cx);
                }
            },
            (State::Asked | State::Committing, reply) => {
                // No byte of a stream comes after it was closed; of a reservation nothing is being written.
                if matches!(reply, Reply::Late) {
                    cx.to.push(Action::Close(number));
                }
                if part.pushed {
                    self.stopped(at, false, cx);
                }
                cx.failed(node.0);
                let status = if let Reply::Refused(status) = reply { status } else { NMC_ERR_TIMEOUT };
                self.failed(at, status, cx);
            }
            _ => {}
        }
    }

    /// Tells an owner that nothing more is written there; whether anything was.
    fn stopped(&mut self, at: usize, begun: bool, cx: &mut Cx<'_>) {
        let (Some(part), Some(started)) = (self.parts.get(at), self.started) else { return };
        let frame = Frame::telling(Stopped { put: started.put, begun });
        cx.to.push(Action::Node(part.place.node, part.place.endpoint.clone(), frame, cx.memory));
    }

    /// An owner will not have it: another one is tried.
    fn failed(&mut self, at: usize, status: nmc_status_t, cx: &mut Cx<'_>) {
        let Some(part) = self.parts.get_mut(at) else { return };
        part.state = State::Failed;
        let media = part.place.media;
        self.stale |= status == NMC_ERR_STALE;
        self.soon |= status == NMC_NOT_READY;
        self.unsure |= matches!(status, NMC_ERR_TIMEOUT | NMC_ERR_UNAVAILABLE);
        let status = if status == NMC_NOT_READY { NMC_ERR_BUSY } else { status };
        // That somebody else put it is worth more than that there is no room.
        if self.status != NMC_ERR_EXISTS {
            self.status = status;
        }
        if self.step == Step::Spreading && !self.stale && !self.is_named(at) {
            self.try_next(media, cx);
        }
    }

    /// Whether a copy must be at this place: the program has named it.
    fn is_named(&self, at: usize) -> bool {
        at < self.put.config.fixed.len()
    }

    /// Ends the put, if all owners have answered.
    fn go_on(&mut self, cx: &mut Cx<'_>) -> Option<Outcome> {
        if !self.parts.iter().all(|part| matches!(part.state, State::Done(_) | State::Failed)) {
            return None;
        }
        if let Step::Stopping(status) = self.step {
            return Some(Outcome::of(status));
        }
        let started = self.started?;
        let mut failed_at = (0..self.parts.len()).filter(|at| matches!(self.parts[*at].state, State::Failed));
        let lacks = failed_at.any(|at| self.is_named(at));
        let done = self.parts.iter().filter_map(|part| match &part.state {
            State::Done(done) => Some(done.clone()),
            _ => None,
        });
        let done: Vec<Done> = done.collect();
        let nobody = done.is_empty();
        let failed = self.parts.iter().filter(|part| matches!(part.state, State::Failed));
        let tried = failed.map(|part| part.place.node).collect();
        if !nobody && !lacks {
            self.step = Step::Ending;
            self.ends += 1;
            let crc = self.crc(cx);
            cx.ask_master(
                MASTER,
                self.deadline,
                PutEnd { put: started.put, key: self.put.key.clone(), done, tried, crc },
            );
            return None;
        }
        cx.tell_master(PutRevoke { put: started.put, key: self.put.key.clone() });
        // Who has taken it would say that it is there until it hears of the end.
        if self.soon && nobody && !self.unsure && self.status != NMC_ERR_EXISTS && !self.stale {
            return self.wait(Step::Waiting, NMC_ERR_BUSY, cx);
        }
        if self.stale && self.starts < MAX_STARTS {
            self.starts += 1;
            return self.wait(Step::Waiting, NMC_ERR_STALE, cx);
        }
        // What it left when it was begun before goes as soon as its owner hears of that; the value of another put the master knows.
        if self.starts > 0 && self.status == NMC_ERR_EXISTS {
            return self.wait(Step::Waiting, NMC_ERR_BUSY, cx);
        }
        // Its owners could not be reached, or were lost: there was time left.
        let lost = self.status == NMC_ERR_TIMEOUT && cx.now < self.moves_until;
        Some(Outcome::of(if lost { NMC_ERR_UNAVAILABLE } else { self.status }))
    }

    /// It is not to be, and ends with this status: time is up, or nobody wants it any more.
    pub(super) fn give_up(&mut self, status: nmc_status_t, cx: &mut Cx<'_>) -> Option<Outcome> {
        if matches!(self.step, Step::Stopping(_)) {
            return None;
        }
        // First, so that it is not ended after it was revoked.
        let (requests, to) = (&mut cx.shared.requests, &mut *cx.to);
        requests.remove_those_of(cx.call, |request| request.master, |request| to.push(Action::Close(request)));
        if let Some(started) = self.started {
            cx.tell_master(PutRevoke { put: started.put, key: self.put.key.clone() });
        }
        self.step = Step::Stopping(status);
        for at in 0..self.parts.len() {
            let Some(part) = self.parts.get_mut(at) else { break };
            let request = part.request;
            match part.state {
                State::Writing => self.part(request, at, Reply::Late, cx),
                State::Asked | State::Committing => {
                    let pushed = part.pushed;
                    part.state = State::Failed;
                    cx.to.push(Action::Close(request));
                    cx.shared.requests.remove(request);
                    if pushed {
                        self.stopped(at, false, cx);
                    }
                }
                _ => {}
            }
        }
        self.go_on(cx)
    }

    pub(super) fn renewed(&mut self, number: u64, cx: &mut Cx<'_>) -> Option<Outcome> {
        for at in 0..self.parts.len() {
            let Some(part) = self.parts.get_mut(at) else { break };
            match part.state {
                State::Renewing(waited) if number >= waited => {
                    self.stopped(at, true, cx);
                    self.failed(at, NMC_ERR_TIMEOUT, cx);
                }
                // What another call renewed the mover for has ended this too.
                State::Writing | State::Cancelling if part.mover < number => {
                    cx.shared.requests.remove(part.request);
                    self.stopped(at, true, cx);
                    self.failed(at, NMC_ERR_TIMEOUT, cx);
                }
                _ => {}
            }
        }
        match self.step {
            Step::Spreading | Step::Stopping(_) => self.go_on(cx),
            _ => None,
        }
    }

    pub(super) fn tick(&mut self, cx: &mut Cx<'_>) -> Option<Outcome> {
        if cx.now >= self.deadline {
            return self.give_up(NMC_ERR_TIMEOUT, cx);
        }
        match self.step {
            Step::Waiting if self.pause.over(cx.now) => self.begin(cx),
            Step::EndingLater if self.pause.over(cx.now) => {
                self.step = Step::Spreading;
                self.go_on(cx)
            }
            _ => None,
        }
    }
}

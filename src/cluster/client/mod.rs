//! A client of the cluster: puts over several owners, gets over several replicas, removes. Every call ends by its deadline, and
//! within two seconds of it where bytes that somebody else moves have to be stopped first. A get takes one replica from the first
//! byte to the last.

mod ask;
mod cache;
mod cx;
mod get;
mod put;
mod requests;
mod stripes;
#[cfg(test)]
mod tests;
mod words;

pub use words::{Action, Call, Config, Event, GetCall, Memory, Outcome, PutCall, ReadOrder};

use super::leaders::Leaders;
use super::types::{Chance, Millis, ObjectKey};
use super::wire::{Frame, Message, Remove, RemoveAll};
use crate::base::error::Result;
use crate::base::memory;
use crate::base::queue::Queue;
use crate::base::status::{NMC_ERR_CANCELLED, NMC_ERR_UNAVAILABLE};
use ask::Asking;
use cache::Cache;
use cx::{Cx, Reply, Shared};
use get::Getting;
use put::Putting;
use requests::{Request, Requests};
use std::collections::BTreeMap;
use stripes::{Begun, Wanted, numbers, whole_of};
use words::requests_of;

/// A call under way.
enum Op {
    Put(Box<Putting>),
    Get(Box<Getting>),
    Ask(Box<Asking>),
}

impl Op {
    /// Bytes that are sent to owners.
    fn bytes(&self) -> u64 {
        match self {
            Self::Put(op) => op.bytes(),
            _ => 0,
        }
    }

    fn begin(&mut self, cx: &mut Cx<'_>) -> Option<Outcome> {
        match self {
            Self::Put(op) => op.begin(cx),
            Self::Get(op) => op.begin(cx),
            Self::Ask(op) => op.begin(cx),
        }
    }

    fn reply(&mut self, number: u64, part: usize, reply: Reply, cx: &mut Cx<'_>) -> Option<Outcome> {
        match self {
            Self::Put(op) => op.reply(number, part, reply, cx),
            Self::Get(op) => op.reply(number, reply, cx),
            Self::Ask(op) => op.reply(reply, cx),
        }
    }

    /// A part of it has ended.
    fn part_ended(&mut self, part: u64, outcome: &Outcome, cx: &mut Cx<'_>) -> Option<Outcome> {
        match self {
            Self::Put(op) => op.part_ended(outcome, cx),
            Self::Get(op) => op.part_ended(part, outcome, cx),
            Self::Ask(_) => None,
        }
    }

    /// Nothing of its parts is under way any more, which were to end.
    fn parted(&mut self, cx: &mut Cx<'_>) -> Option<Outcome> {
        match self {
            Self::Put(op) => op.parted(cx),
            Self::Get(op) => op.parted(cx),
            Self::Ask(_) => None,
        }
    }

    /// Nobody wants anything of it any more.
    fn end(&mut self, cx: &mut Cx<'_>) -> Option<Outcome> {
        match self {
            Self::Put(op) => op.give_up(NMC_ERR_CANCELLED, cx),
            Self::Get(op) => op.end(cx),
            Self::Ask(_) => Some(Outcome::of(NMC_ERR_CANCELLED)),
        }
    }

    fn renewed(&mut self, number: u64, cx: &mut Cx<'_>) -> Option<Outcome> {
        match self {
            Self::Put(op) => op.renewed(number, cx),
            Self::Get(op) => op.renewed(number, cx),
            Self::Ask(_) => None,
        }
    }

    fn checked(&mut self, right: bool, cx: &mut Cx<'_>) -> Option<Outcome> {
        match self {
            Self::Get(op) => op.checked(right, cx),
            Self::Put(_) | Self::Ask(_) => None,
        }
    }

    fn tick(&mut self, cx: &mut Cx<'_>) -> Option<Outcome> {
        match self {
            Self::Put(op) => op.tick(cx),
            Self::Get(op) => op.tick(cx),
            Self::Ask(op) => op.tick(cx),
        }
    }

    fn wake(&self) -> Millis {
        match self {
            Self::Put(op) => op.wake(),
            Self::Get(op) => op.wake(),
            Self::Ask(op) => op.wake(),
        }
    }
}

/// A call under way, or part of one.
struct Running {
    op: Op,
    /// Where its bytes are in the memory of the call.
    offset: u64,
    /// It is a part of which nobody wants to hear any more: it ends when somebody else does not move its bytes any more.
    orphan: bool,
    /// What has come of it, if such parts of it are left: it has ended when they have.
    over: Option<Outcome>,
    /// How often its parts were ended: what was to begin before that does not.
    ends: u32,
}

impl Running {
    fn memory(&self, call: u64) -> Memory {
        Memory { call: whole_of(call).map_or(call, |(whole, _)| whole), offset: self.offset }
    }

    fn wake(&self) -> Millis {
        if self.over.is_some() { Millis::MAX } else { self.op.wake() }
    }
}

/// See the module.
pub struct Client {
    shared: Shared,
    calls: BTreeMap<u64, Running>,
    /// When it was looked last which calls have waited long enough.
    ticked: Millis,
    /// Something wrong, which a test turns on: parts end at once, whoever moves their bytes.
    #[cfg(test)]
    pub(super) hasty: bool,
}

impl Client {
    /// A client that has called nobody.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let shared = Shared {
            leaders: Leaders::new(config.masters.clone()),
            cache: Cache::new(config.cache),
            chance: Chance::new(config.seed),
            requests: Requests::default(),
            next_request: 1,
            failed: BTreeMap::new(),
            alone: BTreeMap::new(),
            mover: 0,
            renewed: 0,
            bytes: 0,
            config,
        };
        Self {
            shared,
            calls: BTreeMap::new(),
            ticked: 0,
            #[cfg(test)]
            hasty: false,
        }
    }

    /// Makes room for the requests of these calls and of all that are under way.
    pub fn reserve<'a>(&mut self, calls: impl Iterator<Item = &'a Call>) -> Result<()> {
        let new = calls.map(|call| match call {
            Call::Put(put) => requests_of(put.config.copies),
            _ => requests_of(1),
        });
        let under_way = self.calls.values().map(|running| match &running.op {
            Op::Put(op) => requests_of(op.copies()),
            _ => requests_of(1),
        });
        self.shared.requests.reserve(new.chain(under_way).sum())
    }

    /// Whether it is remembered where a key is.
    #[must_use]
    pub fn knows(&self, key: &ObjectKey) -> bool {
        self.shared.cache.find(key).is_some()
    }

    /// Whether the call that has waited longest is a lookup or a get.
    #[must_use]
    pub fn is_reading(&self) -> bool {
        self.calls.values().next().is_some_and(|running| match &running.op {
            Op::Put(_) => false,
            Op::Get(_) => true,
            Op::Ask(op) => op.is_lookup(),
        })
    }

    /// The call that a request was sent for, while its answer is waited for.
    #[cfg(test)]
    pub(super) fn call_of(&self, request: u64) -> Option<u64> {
        let call = self.shared.requests.get(request)?.call;
        Some(whole_of(call).map_or(call, |(whole, _)| whole))
    }

    /// When it wants to be told that time has passed, at the latest.
    #[must_use]
    pub fn wake(&self, now: Millis) -> Millis {
        let requests = self.shared.requests.due().into_iter();
        let calls = self.calls.values().map(Running::wake);
        requests.chain(calls).min().unwrap_or(now + 1000).max(now)
    }

    /// Whether a request is late unless its value moves, which is to be told first.
    #[must_use]
    pub fn is_due(&self, now: Millis) -> bool {
        self.shared.requests.due().is_some_and(|due| due <= now)
    }

    /// What happened at `now`; what is to be done is added to `to`.
    pub fn on(&mut self, event: Event, now: Millis, to: &mut Queue<Action>) {
        if let Event::Moved(request, bytes, whole) = event {
            return self.shared.requests.moved(request, bytes, whole);
        }
        if let Event::Begun(request) = event {
            return self.shared.requests.begins(request, None, now);
        }
        // What comes too late has not come, also if the process itself was late.
        self.tick(now, to);
        match event {
            Event::Call(call, patience, what) => {
                let deadline = now.saturating_add(patience);
                let op = self.op(what, deadline, false);
                self.enter(call, op, 0, now, to);
            }
            Event::End(call) => self.end(call, now, to),
            Event::Master(from, frame) => self.master(from, frame, now, to),
            Event::Node(_, frame) => {
                if let Some(request) = self.shared.requests.get(frame.request).filter(|request| !request.master) {
                    // The bytes that follow are waited for under the same number.
                    if frame.message.value() == 0 {
                        self.shared.requests.remove(frame.request);
                    }
                    self.reply(frame.request, request, Reply::Message(frame.message), now, to);
                }
            }
            Event::Took(number, whole) | Event::Wrote(number, whole) => {
                if let Some(request) = self.shared.requests.remove(number) {
                    self.reply(number, request, Reply::Bytes(whole), now, to);
                }
            }
            Event::Torn(number) => {
                if let Some(request) = self.shared.requests.remove(number) {
                    self.reply(number, request, Reply::Torn, now, to);
                }
            }
            Event::Checked(call, right) => self.tell(call, now, to, |op, cx| op.checked(right, cx)),
            Event::Unwritten(number) => {
                if let Some(request) = self.shared.requests.remove(number) {
                    self.reply(number, request, Reply::Unwritten, now, to);
                }
            }
            Event::Lost(number) => {
                if let Some(request) = self.shared.requests.remove(number) {
                    self.late(number, request, now, to);
                }
            }
            Event::Failed(number, status) => {
                if let Some(request) = self.shared.requests.remove(number) {
                    self.reply(number, request, Reply::Failed(status), now, to);
                }
            }
            Event::Refused(number, status) => {
                if let Some(request) = self.shared.requests.remove(number) {
                    self.reply(number, request, Reply::Refused(status), now, to);
                }
            }
            Event::Renewed(number) => self.renewed(number, now, to),
            Event::Tick | Event::Begun(_) | Event::Moved(..) => {}
        }
        self.tick(now, to);
    }

    fn master(&mut self, from: usize, frame: Frame, now: Millis, to: &mut Queue<Action>) {
        let term = match &frame.message {
            Message::PutPlaces(places) => Some(places.term),
            Message::Found(found) => Some(found.term),
            Message::Answer(answer) => Some(answer.term),
            Message::Segments(segments) => Some(segments.term),
            Message::Keys(keys) => Some(keys.term),
            _ => None,
        };
        match (term, &frame.message) {
            // What a leader of the past says counts for nothing.
            (Some(term), _) if !self.shared.leaders.heard(from, term) => return,
            (None, Message::Redirect(redirect)) if from == self.shared.leaders.current() => {
                self.shared.leaders.redirected(redirect.term, &redirect.leader);
            }
            _ => {}
        }
        let Some(request) = self.shared.requests.remove(frame.request) else { return };
        let refused = matches!(&frame.message, Message::Answer(a) if a.status == NMC_ERR_UNAVAILABLE);
        if refused {
            self.shared.leaders.next();
        }
        self.reply(frame.request, request, Reply::Message(frame.message), now, to);
    }

    /// How a call is made, or part of one.
    fn op(&mut self, what: Call, deadline: Millis, part: bool) -> Op {
        let name = self.shared.chance.word();
        let ask = |message| Op::Ask(Box::new(Asking::new(message, deadline)));
        match what {
            Call::Put(put) => Op::Put(Box::new(Putting::new(put, deadline, part))),
            Call::Get(get) => Op::Get(Box::new(Getting::new(get, deadline))),
            Call::Remove(key, wait) => ask(Remove { key, wait, call: name }.into()),
            Call::RemoveAll(space, wait) => ask(RemoveAll { space, wait, call: name }.into()),
            Call::Ask(message) => ask(*message),
        }
    }

    fn enter(&mut self, call: u64, op: Op, offset: u64, now: Millis, to: &mut Queue<Action>) {
        self.shared.bytes += op.bytes();
        self.calls.insert(call, Running { op, offset, orphan: false, over: None, ends: 0 });
        self.tell(call, now, to, Op::begin);
    }

    /// Tells a call something, and does what follows from that.
    fn tell(
        &mut self,
        call: u64,
        now: Millis,
        to: &mut Queue<Action>,
        tell: impl FnOnce(&mut Op, &mut Cx<'_>) -> Option<Outcome>,
    ) {
        let Some(running) = self.calls.get_mut(&call).filter(|running| running.over.is_none()) else { return };
        let (memory, mut parts, ends) = (running.memory(call), Wanted::default(), running.ends);
        let mut cx = Cx { shared: &mut self.shared, call, memory, now, to, parts: &mut parts };
        let done = tell(&mut running.op, &mut cx);
        match done {
            Some(outcome) => self.over(call, outcome, now, to),
            None if parts.end => {
                self.end_parts(call, now, to);
                self.look_for_parts(call, now, to);
            }
            None => parts.begin.into_iter().for_each(|part| self.begin_part((call, ends), part, now, to)),
        }
    }

    fn begin_part(&mut self, (call, ends): (u64, u32), part: Begun, now: Millis, to: &mut Queue<Action>) {
        // One that ended as it began may have ended the call, or the others.
        if self.calls.get(&call).is_none_or(|running| running.ends != ends || running.over.is_some()) {
            return;
        }
        let copies = match &part.call {
            Call::Put(put) => put.config.copies,
            _ => 1,
        };
        if let Err(error) = self.shared.requests.reserve_more(requests_of(copies)) {
            let outcome = Outcome::of(error.status);
            return self.tell(call, now, to, |op, cx| op.part_ended(part.part, &outcome, cx));
        }
        let op = self.op(part.call, part.deadline, true);
        self.enter(stripes::number_of(call, part.part), op, part.offset, now, to);
    }

    /// Ends the parts of a call that are under way: what they have begun is not to be. Those whose bytes somebody else moves are left until that
    /// has ended.
    fn end_parts(&mut self, call: u64, now: Millis, to: &mut Queue<Action>) {
        let Some(all) = numbers(call) else { return };
        let (mut next, last) = (*all.start(), *all.end());
        if let Some(running) = self.calls.get_mut(&call) {
            running.ends += 1;
        }
        while let Some((part, running)) = self.calls.range_mut(next..=last).next() {
            let part = *part;
            next = part + 1;
            if running.orphan {
                continue;
            }
            let (memory, mut parts) = (running.memory(part), Wanted::default());
            let mut cx = Cx { shared: &mut self.shared, call: part, memory, now, to, parts: &mut parts };
            let left = running.op.end(&mut cx).is_none();
            #[cfg(test)]
            let left = left && !self.hasty;
            if left {
                running.orphan = true;
            } else if let Some(running) = self.calls.remove(&part) {
                self.forget(part, &running, to);
            }
        }
    }

    /// Whether parts of a call are under way.
    fn has_parts(&self, call: u64) -> bool {
        numbers(call).is_some_and(|all| self.calls.range(all).next().is_some())
    }

    /// A call whose parts were ended goes on, or has ended, when none is left.
    fn look_for_parts(&mut self, call: u64, now: Millis, to: &mut Queue<Action>) {
        if self.has_parts(call) {
            return;
        }
        match self.calls.get_mut(&call).map(|running| running.over.take()) {
            Some(Some(outcome)) => self.gone(call, outcome, now, to),
            Some(None) => self.tell(call, now, to, Op::parted),
            None => {}
        }
    }

    /// Gives something to the call that it is for.
    fn reply(&mut self, number: u64, request: Request, reply: Reply, now: Millis, to: &mut Queue<Action>) {
        self.tell(request.call, now, to, |op, cx| op.reply(number, request.part, reply, cx));
    }

    /// Nobody wants anything of a call any more. It has ended with this, unless somebody else moves its bytes: that is stopped first.
    fn end(&mut self, call: u64, now: Millis, to: &mut Queue<Action>) {
        self.tell(call, now, to, Op::end);
    }

    /// It is known what came of a call, which has ended when nothing of its parts is under way any more.
    fn over(&mut self, call: u64, outcome: Outcome, now: Millis, to: &mut Queue<Action>) {
        self.end_parts(call, now, to);
        if !self.has_parts(call) {
            self.gone(call, outcome, now, to);
        } else if let Some(running) = self.calls.get_mut(&call) {
            running.over = Some(outcome);
            self.close_requests(call, to);
        }
    }

    /// A call has ended.
    fn gone(&mut self, call: u64, outcome: Outcome, now: Millis, to: &mut Queue<Action>) {
        let Some(running) = self.calls.remove(&call) else { return };
        self.forget(call, &running, to);
        match whole_of(call) {
            Some((whole, _)) if running.orphan => self.look_for_parts(whole, now, to),
            Some((whole, part)) => self.tell(whole, now, to, |op, cx| op.part_ended(part, &outcome, cx)),
            None => to.push(Action::Done(call, outcome)),
        }
    }

    fn forget(&mut self, call: u64, running: &Running, to: &mut Queue<Action>) {
        self.shared.bytes -= running.op.bytes();
        self.close_requests(call, to);
    }

    fn close_requests(&mut self, call: u64, to: &mut Queue<Action>) {
        self.shared.requests.remove_those_of(call, |_| true, |request| to.push(Action::Close(request)));
    }

    fn renewed(&mut self, number: u64, now: Millis, to: &mut Queue<Action>) {
        self.shared.renewed = self.shared.renewed.max(number);
        let mut calls = Queue::new();
        calls.extend(self.calls.keys().copied());
        for call in calls {
            self.tell(call, now, to, |op, cx| op.renewed(number, cx));
        }
    }

    /// A request has no answer.
    fn late(&mut self, number: u64, request: Request, now: Millis, to: &mut Queue<Action>) {
        if request.master {
            self.shared.leaders.unanswered();
            to.push(Action::Close(number));
        }
        self.reply(number, request, Reply::Late, now, to);
    }

    /// Requests that are late, and calls that wait for a moment.
    fn tick(&mut self, now: Millis, to: &mut Queue<Action>) {
        while let Some((number, request)) = self.shared.requests.take_late(now) {
            self.late(number, request, now, to);
        }
        if std::mem::replace(&mut self.ticked, now) == now {
            return;
        }
        let due = self.calls.iter().filter(|(_, running)| running.wake() <= now);
        // Without memory for that, the next time.
        for call in memory::collect(due.map(|(call, _)| *call)).unwrap_or_default() {
            self.tell(call, now, to, Op::tick);
        }
    }
}

//! A client of the cluster: puts over several owners, gets over several replicas, removes. Every call ends by its deadline, and
//! within two seconds of it where bytes that somebody else moves have to be stopped first. A get takes one replica from the first
//! byte to the last.

mod ask;
mod cache;
mod get;
mod put;
mod requests;
mod stripes;
#[cfg(test)]
mod tests;

use super::leaders::Leaders;
use super::types::{Chance, Cut, Millis, NodeId, ObjectKey, PutId};
use super::wire::{Extent, Frame, MAX_COPIES, Message, Metadata, Remove, RemoveAll, Replica, Replicate, Space};
use crate::base::error::Result;
use crate::base::memory;
use crate::base::queue::Queue;
use crate::base::status::{NMC_ERR_CANCELLED, NMC_ERR_UNAVAILABLE, nmc_status_t};
use ask::Asking;
use cache::Cache;
use get::Getting;
use put::Putting;
use requests::{Pace, Request, Requests};
use std::collections::BTreeMap;
use stripes::{Begun, Wanted, numbers, whole_of};

/// How long a mover may take to end what was cancelled before it is renewed.
const CANCEL_MS: Millis = 1_000;
/// How long a node that cannot move bytes itself is not asked for that again.
const ALONE_MS: Millis = 200;
/// Nodes of which that is remembered.
const MOST_ALONE: usize = 1024;
/// First wait before something is asked again; it doubles.
const PAUSE_MS: Millis = 20;
/// Longest such wait.
const MAX_PAUSE_MS: Millis = 500;

/// What a client is set up with.
#[derive(Debug, Clone)]
pub struct Config {
    /// Addresses of the masters.
    pub masters: Vec<String>,
    /// The machine, as it is in the addresses of the nodes on it.
    pub host: String,
    /// How long a master may take to answer before another is asked.
    pub master_ms: Millis,
    /// How long an owner may take before another is tried.
    pub owner_ms: Millis,
    /// Keys whose places are remembered.
    pub cache: usize,
    /// Which of several replicas is read.
    pub read_order: ReadOrder,
    /// Whether somebody else moves the bytes, where the other side can do that too; else they follow the frames.
    pub pushed: bool,
    /// Values that are smaller follow the frames in any case.
    pub pushed_from: u64,
    /// What chance begins with: it chooses among equal replicas and names calls, so no other client may have it.
    pub seed: u64,
}

/// Which of several replicas is read first. Owners that have failed lately come last in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReadOrder {
    /// On this machine, then in memory, then where least is under way.
    #[default]
    Near,
    /// In memory, then on this machine, then where least is under way.
    Memory,
    /// In memory, then where least is under way, wherever that is.
    Spread,
}

/// What is put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PutCall {
    /// The object.
    pub key: ObjectKey,
    /// Bytes of the value.
    pub length: u64,
    /// Bytes of its pieces.
    pub slices: Vec<u64>,
    /// Where to.
    pub config: Replicate,
    /// Code of the retain class and priority.
    pub retain: u32,
    /// What is said about it.
    pub metadata: Metadata,
    /// CRC32C of the value, if owners are to compare it before they publish it. Not where somebody else moves the bytes.
    pub crc: Option<u32>,
    /// If it has more bytes than this it is put in parts of about as many; 0 for never. Not with a checksum.
    pub stripe: u64,
}

impl GetCall {
    /// Into memory of so many bytes, and nothing besides.
    #[must_use]
    pub fn new(key: ObjectKey, room: u64) -> Self {
        Self { key, room, keep: false, expire_ms: 0, into: Vec::new(), unseen: false, about: false }
    }
}

impl PutCall {
    /// How it is cut, if it is put in parts.
    fn cut(&self) -> Option<Cut> {
        Cut::by_size(self.length, self.stripe).filter(|_| self.crc.is_none() && self.key.may_be_striped())
    }
}

/// What is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GetCall {
    /// The object.
    pub key: ObjectKey,
    /// Bytes that there is room for: what is larger is not asked for.
    pub room: u64,
    /// Whether a copy is to be kept on this node.
    pub keep: bool,
    /// How long after it was first read it goes, in ms; 0 if it stays.
    pub expire_ms: u32,
    /// Where the bytes go, if somebody else moves them.
    pub into: Vec<Extent>,
    /// The CPU here does not reach what arrives: owners that have checksums compare before they send.
    pub unseen: bool,
    /// Only what is said about it is wanted, and no byte of it.
    pub about: bool,
}

/// What is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// Puts a value.
    Put(PutCall),
    /// Reads one.
    Get(GetCall),
    /// Removes one; whether it waits for the owners.
    Remove(ObjectKey, bool),
    /// Removes all of a namespace, or of all of them; whether it waits for the owners.
    RemoveAll(Option<Space>, bool),
    /// Asks the leader something that changes nothing, or may be asked twice.
    Ask(Box<Message>),
}

impl Call {
    /// What is read.
    #[must_use]
    pub fn key(&self) -> Option<&ObjectKey> {
        match self {
            Self::Get(get) => Some(&get.key),
            _ => None,
        }
    }
}

/// How many requests a put with so many copies has under way at most.
fn requests_of(copies: u32) -> usize {
    copies.clamp(1, MAX_COPIES) as usize + 1
}

/// What a client is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A call with its number, and how long it may take.
    Call(u64, Millis, Call),
    /// Nobody wants anything of a call any more: nothing is sent for it after this, but that what it began is not to be.
    End(u64),
    /// A master, by its place in the list, says something.
    Master(usize, Frame),
    /// A node does.
    Node(NodeId, Frame),
    /// Time has passed.
    Tick,
    /// No answer to a request will come: its connection has ended.
    Lost(u64),
    /// A request could not be sent, for a reason of this process.
    Failed(u64, nmc_status_t),
    /// The node that was asked refuses this client, or this client the node, whatever it is asked.
    Refused(u64, nmc_status_t),
    /// The bytes that follow an answer are all there, or will not come.
    Took(u64, bool),
    /// The same: all are there, and their checksum is not the one that they were to have.
    Torn(u64),
    /// What somebody else has moved for a call was looked at: whether it has its checksum.
    Checked(u64, bool),
    /// The bytes of a request that somebody else moves are all there, or the call's memory is not read any more: then some may still
    /// arrive.
    Wrote(u64, bool),
    /// What somebody else was to move cannot be: not a byte of it has left.
    Unwritten(u64),
    /// The mover has no byte under way of what was begun before it was to be renewed with this number.
    Renewed(u64),
    /// A request with a value has left. It may have waited here until others had.
    Begun(u64),
    /// So many bytes of the value of a request have come, or were taken by its owner, since this was told last; of those before it, if it waits for them
    /// here. And whether its value has left whole. It is told before a request is late, of all that are under way: see [`Client::is_due`].
    Moved(u64, u64, bool),
}

/// The memory of a call, from a byte on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// The call.
    pub call: u64,
    /// The byte.
    pub offset: u64,
}

/// What a client wants done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Send this to a master.
    Master(usize, Frame),
    /// Send this to the node that listens there. If a value follows it is in that memory.
    Node(NodeId, String, Frame, Memory),
    /// Take the bytes that follow the answer to a request, into that memory; then say `Took`.
    Take {
        /// The request.
        request: u64,
        /// Where to.
        into: Memory,
        /// How many.
        length: u64,
        /// Their CRC32C, if the owner knows it; if they have another say `Torn`.
        sum: Option<u32>,
    },
    /// Nothing of this request is wanted any more: no byte of it is taken after this.
    Close(u64),
    /// Write a value to these places of a node; then say `Wrote`.
    Write {
        /// The request.
        request: u64,
        /// Where the value is.
        from: Memory,
        /// Its bytes.
        length: u64,
        /// Whose.
        node: NodeId,
        /// By which of its movers.
        mover: u64,
        /// Where to.
        extents: Vec<Extent>,
    },
    /// Try to end what is written. `Wrote` or `Unwritten` is said if that succeeds.
    CancelWrite(u64),
    /// Destroy what moves bytes and make it again, under this number; then say `Renewed`. What is begun after this goes by the
    /// new one.
    Renew(u64),
    /// Somebody else has moved the bytes of a call to where it said. If a checksum is given, say `Checked`.
    Landed {
        /// The call, or the part of one.
        call: u64,
        /// Where in the memory of the call they belong.
        into: Memory,
        /// How many.
        length: u64,
        /// The CRC32C that they are to have.
        sum: Option<u32>,
    },
    /// What was read is to be kept on this node too.
    Keep(u64, ObjectKey, Replica),
    /// A call has ended.
    Done(u64, Outcome),
}

/// What came of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// How it went.
    pub status: nmc_status_t,
    /// The put that was made or read.
    pub put: PutId,
    /// Copies that were put, or bytes that were read.
    pub count: u64,
    /// What the writer of what was read said about it.
    pub metadata: Metadata,
    /// What the leader said, if it was asked.
    pub reply: Option<Box<Message>>,
}

impl Outcome {
    /// Nothing but a status.
    #[must_use]
    pub fn of(status: nmc_status_t) -> Self {
        Self { status, put: PutId(0), count: 0, metadata: Metadata::default(), reply: None }
    }
}

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

/// What came for a call.
enum Reply {
    /// An answer.
    Message(Message),
    /// None, in time.
    Late,
    /// It could not be asked, for this reason.
    Failed(nmc_status_t),
    /// Who was asked answers nothing, for this reason.
    Refused(nmc_status_t),
    /// The bytes are there, or will not come.
    Bytes(bool),
    /// They are there, and are not what the owner said.
    Torn,
    /// None was sent.
    Unwritten,
}

/// What calls need besides their own state.
struct Shared {
    config: Config,
    leaders: Leaders,
    cache: Cache,
    chance: Chance,
    requests: Requests,
    next_request: u64,
    /// Nodes that failed lately, and until when they are asked last.
    failed: BTreeMap<NodeId, Millis>,
    /// Nodes that cannot move bytes themselves, and until when they are not asked again.
    alone: BTreeMap<NodeId, Millis>,
    /// The mover that there is or is being made, by the number of its renewal.
    mover: u64,
    /// The last renewal that is over.
    renewed: u64,
    /// Bytes of values that are being put: they share connections.
    bytes: u64,
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

/// What an event is handled with.
struct Cx<'a> {
    shared: &'a mut Shared,
    call: u64,
    memory: Memory,
    now: Millis,
    to: &'a mut Queue<Action>,
    /// What is to happen to the parts of the call.
    parts: &'a mut Wanted,
}

impl Cx<'_> {
    fn request(&mut self, part: usize, until: Millis, master: bool) -> u64 {
        let number = self.shared.next_request;
        self.shared.next_request += 1;
        let request = Request { call: self.call, part, until, master, node: None, pace: None };
        self.shared.requests.insert(number, request);
        number
    }

    /// Asks the leader, for as long as it may take.
    fn ask_master(&mut self, part: usize, deadline: Millis, message: impl Into<Message>) {
        self.ask_master_for(part, self.shared.config.master_ms, deadline, message);
    }

    /// The same, with a patience of its own.
    fn ask_master_for(&mut self, part: usize, patience: Millis, deadline: Millis, message: impl Into<Message>) {
        let until = deadline.min(self.now + patience);
        let request = self.request(part, until, true);
        let time_left_ms = u32::try_from(deadline.saturating_sub(self.now)).unwrap_or(u32::MAX);
        let frame = Frame { request, time_left_ms, message: message.into() };
        self.to.push(Action::Master(self.shared.leaders.current(), frame));
    }

    /// Asks a node. Gives the number of the request.
    fn ask_node(&mut self, part: usize, until: Millis, node: (NodeId, &str), message: impl Into<Message>) -> u64 {
        self.ask_node_for(part, (until, None), node, message)
    }

    /// The same; if there is a pace its answer is waited for as long as its value moves.
    fn ask_node_for(
        &mut self,
        part: usize,
        (until, pace): (Millis, Option<Pace>),
        node: (NodeId, &str),
        message: impl Into<Message>,
    ) -> u64 {
        let (call, number) = (self.call, self.shared.next_request);
        self.shared.next_request += 1;
        let request = Request { call, part, until, master: false, node: Some(node.0), pace };
        self.shared.requests.insert(number, request);
        let most = pace.map_or(until, |pace| pace.limit);
        let time_left_ms = u32::try_from(most.saturating_sub(self.now)).unwrap_or(u32::MAX);
        let frame = Frame { request: number, time_left_ms, message: message.into() };
        self.to.push(Action::Node(node.0, node.1.to_string(), frame, self.memory));
        number
    }

    /// Says something that nobody waits for the answer of.
    fn tell_master(&mut self, message: impl Into<Message>) {
        self.to.push(Action::Master(self.shared.leaders.current(), Frame::telling(message)));
    }

    /// Ends what goes by a mover: gives the renewal to wait for, or nothing if one is over since. One that is under way is as good as another: many
    /// calls that lose their owner together would else wait for as many, one after the other.
    fn renew(&mut self, since: u64) -> Option<u64> {
        if self.shared.renewed > since {
            return None;
        }
        if self.shared.mover <= since {
            self.shared.mover = since + 1;
            self.to.push(Action::Renew(self.shared.mover));
        }
        Some(since + 1)
    }

    /// Whether somebody else is to move a value of so many bytes from or to a node.
    fn is_pushed(&self, node: NodeId, length: u64) -> bool {
        let config = &self.shared.config;
        let alone = self.shared.alone.get(&node).is_some_and(|until| self.now < *until);
        config.pushed && length >= config.pushed_from && length > 0 && !alone
    }

    /// A node cannot do that, or not now.
    fn alone(&mut self, node: NodeId) {
        self.shared.alone.insert(node, self.now + ALONE_MS);
        while self.shared.alone.len() > MOST_ALONE {
            self.shared.alone.pop_first();
        }
    }

    fn failed(&mut self, node: NodeId) {
        let until = self.now + 10 * self.shared.config.owner_ms;
        self.shared.failed.insert(node, until);
        while self.shared.failed.len() > 1024 {
            self.shared.failed.pop_first();
        }
    }
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
            Event::Begun(request) => self.shared.requests.begins(request, None, now),
            Event::Tick | Event::Moved(..) => {}
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

/// Waits between tries of the same thing.
#[derive(Debug, Default)]
struct Pause {
    length: Millis,
    until: Option<Millis>,
}

impl Pause {
    /// Waits, longer than the last time.
    fn begin(&mut self, now: Millis) {
        self.length = (self.length * 2).clamp(PAUSE_MS, MAX_PAUSE_MS);
        self.until = Some(now + self.length);
    }

    /// Whether it is over.
    fn over(&mut self, now: Millis) -> bool {
        self.until.take_if(|until| *until <= now).is_some()
    }
}

/// How long a value may take besides, at 16 MiB a second.
fn moving_ms(bytes: u64) -> Millis {
    bytes >> 14
}

/// What a put that begins must follow.
#[derive(Debug, Clone, Copy)]
struct Started {
    put: PutId,
    term: u64,
}

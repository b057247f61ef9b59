//! Connections between clients, nodes and masters: who has connected, what they say, and bytes of values. One thread waits for all of
//! them, and nothing here waits otherwise. How much an end of a connection can make the other keep is bounded: a message, and a
//! limit of what it does not read.

pub mod address;
mod channel;
mod link;
mod numbers;
mod path;
pub mod renewed;
pub mod secure;
pub mod sys;
#[cfg(test)]
mod tests;

pub use address::{Address, Listener, UNIX};
pub use link::Spans;
pub use numbers::ByNumber;
pub use path::sweep;
pub use sys::{Poller, Ready, Span, Timer, most_files, now_ms, now_ns};

use super::types::{Millis, Peer};
use super::wire::{Answer, Frame, Hello, Message};
use crate::base::error::Result;
use crate::base::queue::Queue;
use crate::base::status::{NMC_ERR_PERMISSION, NMC_ERR_VERSION, nmc_status_t};
use crate::base::{log, memory};
use channel::Channel;
use link::{Came, Link, Spares};
use rustls::ServerConnection;
use secure::Identity;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// What one connection may receive before another has its turn, in calls.
const TURN: u32 = 16;
/// Numbers of the poller that are listeners.
const LISTENERS: u64 = 1 << 62;
/// The number of whatever else wakes the thread up.
pub const WAKE: u64 = 1 << 61;

/// How long whoever connects may stay in any case without saying who it is, in ms: after a restart everybody comes at once.
const MOMENT: Millis = 250;
/// How many of those who have not said who they are have a turn before those are looked at again who have, and how many if each may begin a
/// handshake, which takes longer than most messages.
const SHY: usize = 64;
/// See [`SHY`].
const SHY_SECURE: usize = 4;
/// Those who have not said who they are that are looked at to find one that can go.
const LOOKED_AT: usize = 64;

/// What a set of connections is made with.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Connections that others may make.
    pub links: usize,
    /// Those of them who have not said who they are: from so many on, the oldest goes when another comes. Fewer if the process may not have
    /// as many descriptors.
    pub strangers: usize,
    /// Bytes that may wait for somebody who does not read.
    pub queued: usize,
    /// Bytes that may wait for all of them together, or have come from them and are not whole messages yet. Beyond that, whoever
    /// has most of them is let go.
    pub held: usize,
    /// How long part of a message may wait for the rest, and what is to be sent for somebody to take it.
    pub stall_ms: Millis,
    /// What whoever connects must say first; empty for nothing.
    pub token: String,
    /// With which certificate this end speaks TLS with others on a network; none for not at all.
    pub tls: Option<Arc<Identity>>,
}

impl Default for Limits {
    fn default() -> Self {
        let (links, strangers) = (16_384, 256);
        Self { links, strangers, queued: 16 << 20, held: 256 << 20, stall_ms: 30_000, token: String::new(), tls: None }
    }
}

/// What happened.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "there is one at a time, and it is taken apart at once")]
pub enum Heard {
    /// Somebody says something. If a value follows it is passed over unless it is taken at once.
    Frame(Peer, Frame),
    /// The last byte of a value has come.
    Taken(u64),
    /// The same, and it has another checksum than it was to have, see [`Spans::wanting`].
    Torn(u64),
    /// The last byte of a value has left.
    Sent(u64),
    /// No byte more of a value comes, or leaves: its connection has ended.
    Lost(u64),
    /// A connection has ended.
    Closed(Peer),
}

/// See the module.
pub struct Net {
    poller: Arc<Poller>,
    limits: Limits,
    listeners: Vec<Listener>,
    /// Those that are not listened to for a moment: there was no descriptor for who connected.
    muted: Vec<usize>,
    links: ByNumber<u64, Link>,
    /// Those who have connected and not said who they are; the oldest is first.
    strangers: VecDeque<u64>,
    /// How many of them there may be, whatever they do.
    most_strangers: usize,
    next: u64,
    /// Links that may have something.
    turn: Queue<u64>,
    /// Those of strangers, who come behind all others, and how many of them may until it is looked again who else there is.
    shy: Queue<u64>,
    shy_left: usize,
    /// How often somebody has had more than fits a turn since it was looked who else there is.
    long: usize,
    patience: u32,
    /// Links with something to send, in the order in which they got it.
    dirty: Queue<u64>,
    heard: Queue<Heard>,
    buffer: Vec<u8>,
    /// What a connection that says something receives into, and what it sends from: those that are silent have none.
    spares: Spares,
    /// Bytes that connections hold, see [`Limits::held`].
    held: usize,
    left: Vec<u64>,
    now: Millis,
    /// When it was looked last who has waited too long.
    looked_at: Millis,
}

impl Net {
    /// No connection yet.
    pub fn new(mut limits: Limits) -> Result<Self> {
        // The program has descriptors of its own.
        let files = sys::most_files();
        limits.strangers = limits.strangers.min(files / 8);
        Ok(Self {
            poller: Arc::new(Poller::new()?),
            most_strangers: limits.strangers.max(files / 4),
            limits,
            listeners: Vec::new(),
            muted: Vec::new(),
            links: ByNumber::default(),
            strangers: VecDeque::new(),
            next: 1,
            turn: Queue::new(),
            shy: Queue::new(),
            shy_left: 0,
            long: 0,
            patience: TURN,
            dirty: Queue::new(),
            heard: Queue::new(),
            buffer: Vec::new(),
            spares: Spares::default(),
            held: 0,
            left: Vec::new(),
            now: now_ms(),
            looked_at: 0,
        })
    }

    /// What its thread waits with.
    #[must_use]
    pub fn poller(&self) -> Arc<Poller> {
        Arc::clone(&self.poller)
    }

    /// Takes whoever connects there.
    pub fn listen(&mut self, listener: Listener) -> Result<()> {
        self.poller.add(&listener, LISTENERS + self.listeners.len() as u64, false)?;
        self.listeners.push(listener);
        Ok(())
    }

    /// How many connections there are.
    #[must_use]
    pub fn links(&self) -> usize {
        self.links.len()
    }

    /// Whether there is something to do without waiting.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        !self.turn.is_empty() || !self.shy.is_empty() || !self.heard.is_empty()
    }

    fn add(&mut self, link: Link) -> Result<Peer> {
        let number = self.next;
        self.next += 1;
        self.poller.add(&link.channel, number, link.watched)?;
        memory::reserve_map(&mut self.links, 1)?;
        self.held += link.held();
        self.links.insert(number, link);
        Ok(Peer(number))
    }

    /// Begins to connect; what is sent meanwhile waits.
    pub fn connect(&mut self, to: &Address) -> Result<Peer> {
        let tls = match (&self.limits.tls, to) {
            (Some(tls), Address::Tcp(_)) => Some(tls.connecting()?),
            _ => None,
        };
        let peer = self.add(Link::new(Channel::new(to.connect()?, tls), true, self.now))?;
        if !self.limits.token.is_empty() {
            let hello = Hello { token: self.limits.token.clone() };
            self.send(peer, &Frame::telling(hello))?;
        }
        Ok(peer)
    }

    /// Says something. Nothing happens if the connection has ended; an error if that cannot be said in one message, or for want of memory,
    /// with which the connection ends.
    pub fn send(&mut self, to: Peer, frame: &Frame) -> Result<()> {
        self.send_all(to, frame, None)
    }

    /// The same, with the value that follows: copied now, or from where it is, if somebody is to be told under a ticket when its
    /// last byte has left or the connection has ended.
    pub fn send_value(&mut self, to: Peer, frame: &Frame, value: Spans, ticket: Option<u64>) -> Result<()> {
        self.send_all(to, frame, Some((value, ticket)))
    }

    fn send_all(&mut self, to: Peer, frame: &Frame, value: Option<(Spans, Option<u64>)>) -> Result<()> {
        let ticket = value.as_ref().and_then(|(_, ticket)| *ticket);
        frame.encode(&mut self.buffer).inspect_err(|_| self.heard.extend(ticket.map(Heard::Lost)))?;
        let Some(link) = self.links.get_mut(&to.0) else {
            self.heard.extend(ticket.map(Heard::Lost));
            return Ok(());
        };
        let before = link.held();
        let mut sent = link.send(&self.buffer, &mut self.spares);
        if let (Ok(()), Some((value, ticket))) = (&sent, value) {
            sent = link.send_value(value, ticket, &mut self.spares);
        }
        self.held = (self.held + link.held()).saturating_sub(before);
        if sent.is_err() || link.queued > self.limits.queued {
            let kept = link.tickets().any(|of| Some(of) == ticket);
            self.close(to);
            self.heard.extend(ticket.filter(|_| !kept).map(Heard::Lost));
            return sent;
        }
        if !link.watched && !std::mem::replace(&mut link.dirty, true) {
            self.dirty.push(to.0);
        }
        if self.held > self.limits.held {
            self.relieve();
        }
        Ok(())
    }

    /// Lets those go that hold most, until all together hold what they may.
    fn relieve(&mut self) {
        while self.held > self.limits.held {
            let Some((number, _)) = self.links.iter().max_by_key(|(_, link)| link.held()) else { return };
            log::emit(log::WARN, || "cluster: a connection was ended: too much waits for it, or for all".into());
            self.close(Peer(*number));
        }
    }

    /// Whether something that was said to a peer is still here, and would be lost with the connection; a value apart.
    #[must_use]
    pub fn has_unsent(&self, to: Peer) -> bool {
        self.links.get(&to.0).is_some_and(Link::has_unsent)
    }

    /// Bytes of values that have come from a peer, and of all that it has taken, since it was connected to; and whether it has taken all that it is to.
    #[must_use]
    pub fn moved(&self, peer: Peer) -> (u64, bool) {
        self.links.get(&peer.0).map_or((0, false), Link::moved)
    }

    /// Bytes that wait in buffers for a peer.
    #[must_use]
    pub fn queued(&self, to: Peer) -> usize {
        self.links.get(&to.0).map_or(0, |link| link.queued)
    }

    /// Where the value goes that follows the last frame of a peer. False if that has another length, or has ended: then nothing is
    /// told of the ticket.
    pub fn take(&mut self, from: Peer, spans: Spans, ticket: u64) -> bool {
        self.links.get_mut(&from.0).is_some_and(|link| link.take(spans, ticket))
    }

    /// No byte more of a value that is being taken is stored.
    pub fn abandon(&mut self, from: Peer, ticket: u64) {
        if let Some(link) = self.links.get_mut(&from.0) {
            link.abandon(ticket);
        }
    }

    /// Ends a connection: nothing is stored or read through it after this.
    pub fn close(&mut self, peer: Peer) {
        let Some(link) = self.links.remove(&peer.0) else { return };
        if link.unknown {
            self.strangers.retain(|stranger| *stranger != peer.0);
        }
        self.held = self.held.saturating_sub(link.held());
        // Also if a forked child has the descriptor too.
        self.poller.remove(&link.channel);
        sys::shut(&link.channel);
        self.heard.extend(link.tickets().map(Heard::Lost));
        self.heard.push(Heard::Closed(peer));
    }

    /// Ends all connections.
    pub fn close_all(&mut self) {
        while let Some(number) = self.links.keys().next().copied() {
            self.close(Peer(number));
        }
    }

    /// Ends connections in order, as far as that takes no longer than this: the other ends read what was said first. A connection that is closed
    /// while something unread has come on it takes with it what was said and is unread there. What comes meanwhile is passed over.
    pub fn part(&mut self, peers: &[Peer], limit: Duration) {
        let until = now_ms().saturating_add(Millis::try_from(limit.as_millis()).unwrap_or(Millis::MAX));
        self.flush();
        for peer in peers {
            if let Some(link) = self.links.get_mut(&peer.0).filter(|link| !link.has_unsent()) {
                link.channel.shut_sending();
            }
        }
        let mut ready = Vec::new();
        while peers.iter().any(|peer| self.links.get(&peer.0).is_some_and(|link| !link.has_unsent())) {
            let left = until.saturating_sub(now_ms());
            if left == 0 {
                break;
            }
            ready.clear();
            self.poller.wait(Duration::from_millis(if self.is_busy() { 0 } else { left }), &mut ready);
            self.ready(&ready);
            while self.hear().is_some() {}
        }
    }

    /// These have something, or take something.
    pub fn ready(&mut self, list: &[Ready]) {
        self.now = now_ms();
        (self.shy_left, self.long) = (if self.limits.tls.is_some() { SHY_SECURE } else { SHY }, 0);
        for ready in list {
            if ready.number >= LISTENERS {
                self.accept(usize::try_from(ready.number - LISTENERS).unwrap_or(usize::MAX));
                continue;
            }
            let Some(link) = self.links.get_mut(&ready.number) else { continue };
            if ready.writable && !std::mem::replace(&mut link.dirty, true) {
                self.dirty.push(ready.number);
            }
            if ready.readable {
                link.readable(self.now);
                if !std::mem::replace(&mut link.in_turn, true) {
                    if link.unknown { &mut self.shy } else { &mut self.turn }.push(ready.number);
                }
            }
        }
        // However busy the others are.
        self.let_shy_in(self.shy_left.div_ceil(4));
        self.flush();
    }

    fn accept(&mut self, at: usize) {
        for _ in 0..64 {
            let Some(listener) = self.listeners.get(at) else { return };
            let socket = match listener.accept() {
                Ok(Some(socket)) => socket,
                Ok(None) => return,
                Err(_) => {
                    if self.poller.mute(listener, LISTENERS + at as u64).is_ok() {
                        self.muted.push(at);
                    }
                    return;
                }
            };
            let tls = self.limits.tls.as_ref().filter(|_| listener.is_tcp());
            if let Ok(tls) = tls.map(|tls| tls.accepting()).transpose() {
                self.adopt(Channel::new(socket, tls));
            }
        }
    }

    /// Somebody has connected where another has listened, and shown its certificate there if that is wanted here. The socket does not block.
    pub fn adopt_from(&mut self, socket: OwnedFd, tls: Option<Box<ServerConnection>>) {
        // Else it would be spoken to in another way than it speaks.
        if tls.is_some() != self.limits.tls.is_some() {
            return;
        }
        let Some(peer) = self.adopt(Channel::new(socket, tls.map(|tls| Box::new((*tls).into())))) else { return };
        // What was read before it came here is not told of by the socket.
        if let Some(link) = self.links.get_mut(&peer.0).filter(|link| link.channel.is_secure()) {
            link.in_turn = true;
            self.shy.push(peer.0);
        }
    }

    /// So many of those who have not said who they are have their turn behind the others, if as many may.
    fn let_shy_in(&mut self, mut most: usize) {
        while most > 0
            && self.shy_left > 0
            && let Some(number) = self.shy.pop()
        {
            if self.links.contains_key(&number) {
                (most, self.shy_left) = (most - 1, self.shy_left - 1);
                self.turn.push(number);
            }
        }
    }

    /// Somebody has connected.
    fn adopt(&mut self, channel: Channel) -> Option<Peer> {
        let room = self.links.len() < self.limits.links && self.has_room_for_stranger();
        // Without room, memory or descriptors for it whoever connected hears of an end.
        if !room || memory::reserve_queue(&mut self.strangers, 1).is_err() {
            return None;
        }
        sys::tune(&channel);
        let mut link = Link::new(channel, false, self.now);
        link.unknown = true;
        if let Ok(peer) = self.add(link) {
            self.strangers.push_back(peer.0);
            return Some(peer);
        }
        None
    }

    /// Whether there is room for somebody of whom nothing is known. If there are many of them the oldest goes that has had time to say something: so
    /// nobody keeps others away by connecting often and saying nothing.
    fn has_room_for_stranger(&mut self) -> bool {
        if self.strangers.len() >= self.limits.strangers {
            let had_time = |number: &u64| self.links.get(number).is_some_and(|link| link.had_time(self.now, MOMENT));
            let oldest = self.strangers.iter().take(LOOKED_AT).copied().find(had_time);
            oldest.into_iter().for_each(|oldest| self.close(Peer(oldest)));
        }
        self.strangers.len() < self.most_strangers
    }

    /// The next that happened, if anything has.
    pub fn hear(&mut self) -> Option<Heard> {
        loop {
            if let Some(heard) = self.heard.pop() {
                return Some(heard);
            }
            if self.turn.is_empty() {
                self.let_shy_in(1);
            }
            let number = *self.turn.first()?;
            let Some(link) = self.links.get_mut(&number) else {
                self.turn.pop();
                continue;
            };
            let before = link.held();
            let came = link.next(&mut self.patience, &mut self.spares);
            self.held = (self.held + link.held()).saturating_sub(before);
            if link.can_go_on() && !link.watched && !std::mem::replace(&mut link.dirty, true) {
                self.dirty.push(number);
            }
            match came {
                Came::Frame(frame) => {
                    let given = match &frame.message {
                        Message::Hello(hello) => Some(hello.token.as_bytes()),
                        _ => None,
                    };
                    let wanted = Some(self.limits.token.as_bytes()).filter(|token| link.unknown && !token.is_empty());
                    let why = match (wanted, given) {
                        (Some(wanted), Some(given)) if same(given, wanted) => None,
                        (Some(_), Some(_)) => Some("the token is not the one that is wanted here"),
                        (Some(_), None) => Some("a token is wanted here"),
                        (None, _) => None,
                    };
                    let hello = given.is_some();
                    if let Some(why) = why {
                        self.refuse(Peer(number), NMC_ERR_PERMISSION, why);
                        continue;
                    }
                    if std::mem::take(&mut link.unknown) {
                        self.strangers.retain(|stranger| *stranger != number);
                    }
                    if !hello {
                        return Some(Heard::Frame(Peer(number), frame));
                    }
                }
                Came::Taken(ticket) => return Some(Heard::Taken(ticket)),
                Came::Torn(ticket) => return Some(Heard::Torn(ticket)),
                Came::Nothing => {
                    link.in_turn = false;
                    self.turn.pop();
                    self.patience = TURN;
                    if self.held > self.limits.held {
                        self.relieve();
                    }
                }
                Came::Enough => {
                    self.turn.turn();
                    self.patience = TURN;
                    self.long += 1;
                    // All have had a turn: it is looked whether there are others, and what time it is.
                    if self.long >= self.turn.len() {
                        return None;
                    }
                }
                Came::Ended(None) => self.close(Peer(number)),
                Came::Ended(Some(error)) => {
                    let known = !link.unknown;
                    self.refuse(Peer(number), error.status, &error.message);
                    // Whatever was said, it is no answer that could be waited for: heard as a refusal, before the end.
                    if error.status == NMC_ERR_VERSION || error.status == NMC_ERR_PERMISSION && known {
                        let refusal = Answer::new(0, error.status, &error.message);
                        return Some(Heard::Frame(Peer(number), Frame::answering(0, refusal)));
                    }
                }
            }
        }
    }

    /// Says why, as far as the connection takes it, and ends it.
    fn refuse(&mut self, peer: Peer, status: nmc_status_t, why: &str) {
        log::emit(log::WARN, || format!("cluster: a connection was ended: {why}"));
        let answer = Answer::new(0, status, why);
        let _ = self.send(peer, &Frame::answering(0, answer));
        self.flush();
        self.close(peer);
    }

    /// Sends what there is to send, as far as it is taken.
    pub fn flush(&mut self) {
        for _ in 0..self.dirty.len() {
            let Some(number) = self.dirty.pop() else { break };
            let Some(link) = self.links.get_mut(&number) else { continue };
            link.dirty = false;
            let before = link.held();
            let rest = link.flush(self.now, &mut self.left, &mut self.spares);
            self.held = (self.held + link.held()).saturating_sub(before);
            self.heard.extend(self.left.drain(..).map(Heard::Sent));
            match rest {
                Some(rest) if rest != link.watched => {
                    link.watched = rest;
                    if self.poller.change(&link.channel, number, rest).is_err() {
                        self.close(Peer(number));
                    }
                }
                Some(_) => {}
                None => self.close(Peer(number)),
            }
        }
    }

    /// Ends connections on which something has waited too long.
    pub fn end_stalled(&mut self) {
        self.now = now_ms();
        let (now, stall_ms) = (self.now, self.limits.stall_ms);
        if now < self.looked_at + (stall_ms / 8).min(1000) {
            return;
        }
        self.looked_at = now;
        self.links.values_mut().for_each(|link| link.look_at_taken(now, stall_ms));
        let stalled = self.links.iter().filter(|(_, link)| link.is_stalled(now, stall_ms));
        // Without memory for that, the next time.
        let list = memory::collect(stalled.map(|(number, _)| *number)).unwrap_or_default();
        list.into_iter().for_each(|number| self.close(Peer(number)));
        for at in std::mem::take(&mut self.muted) {
            if let Some(listener) = self.listeners.get(at) {
                let _ = self.poller.change(listener, LISTENERS + at as u64, false);
            }
        }
    }
}

/// Whether two texts are the same, in a time that depends on their lengths alone.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}

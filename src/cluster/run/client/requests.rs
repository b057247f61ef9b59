//! What is asked of whom on which connection, and the bytes that go along. Small values share the one connection of a node; a large one has
//! one for itself until it is over.

use super::{Large, MOST_LARGE, Sent, State, Waiting};
use crate::base::error::Error;
use crate::base::memory;
use crate::base::status::{NMC_ERR_CANCELLED, NMC_ERR_UNSUPPORTED, nmc_status_t};
use crate::cluster::client::{Event, Memory};
use crate::cluster::net::{Address, Span, Spans, now_ms};
use crate::cluster::run::is_of_process;
use crate::cluster::types::{MAX_PARTS, Millis, NodeId, Peer, SMALL};
use crate::cluster::wire::{Frame, Message};
use std::sync::atomic::AtomicU8;

/// What stubs are made of: how many bytes they have is all that matters, and their value may be where the CPU does not read.
static STUB: [AtomicU8; 4096] = [const { AtomicU8::new(0) }; 4096];
const _: () = assert!(STUB.len() as u64 >= MAX_PARTS);

/// A request did not come to a node.
fn unreached(request: u64, why: &Error) -> Event {
    if is_of_process(why) { Event::Failed(request, why.status) } else { Event::Lost(request) }
}

fn is_stub(message: &Message) -> bool {
    matches!(message, Message::Put(put) if put.put.is_striped())
}

impl State {
    pub(super) fn ask_node(&mut self, id: NodeId, endpoint: String, mut frame: Frame, from: Memory) {
        if let Err(error) = memory::reserve_map(&mut self.nodes, 1) {
            return self.events.push(Event::Failed(frame.request, error.status));
        }
        let node = self.nodes.entry(id).or_default();
        if node.endpoint != endpoint {
            // The node is another one by now. What is under way with the former ends by itself.
            node.endpoint = endpoint;
            node.shared.take().iter().chain(&node.free).for_each(|peer| self.net.close(*peer));
            node.free.clear();
            (node.told, node.met, node.large) = ((0, 0), false, 0);
            self.large.retain(|_, of| of.node != id);
        }
        if self.carrier.is_some()
            && let Some(refusal) = self.refused(id, &mut frame, from.call)
        {
            return self.events.push(Event::Node(id, Frame::answering(frame.request, refusal)));
        }
        let bytes = match &frame.message {
            Message::Put(put) => put.length,
            Message::Fetch(fetch) if fetch.into.is_empty() => fetch.length,
            _ => 0,
        };
        if bytes > 0 && !is_stub(&frame.message) && self.calls.get(&from.call).is_some_and(|running| running.far) {
            return self.events.push(Event::Failed(frame.request, NMC_ERR_UNSUPPORTED));
        }
        let Some(node) = self.nodes.get_mut(&id) else { return };
        if let Message::CancelFetch(cancel) = &frame.message {
            // On the connection of what it cancels: on another one nobody knows of that.
            let same = self.requests.get(&cancel.request).is_some_and(|sent| Some(sent.peer) == node.shared);
            if !same {
                return self.events.push(Event::Lost(frame.request));
            }
        }
        if bytes <= SMALL {
            let peer = match node.shared {
                Some(peer) => Ok(peer),
                None => Address::literal(&node.endpoint).and_then(|address| self.net.connect(&address)),
            };
            match peer {
                Ok(peer) => {
                    node.shared = Some(peer);
                    self.send(peer, None, frame, from);
                }
                Err(error) if frame.request != 0 => self.events.push(unreached(frame.request, &error)),
                Err(_) => {}
            }
            return;
        }
        node.waiting.push(Waiting { frame, from, since: now_ms() });
        self.send_waiting(id);
    }

    /// Requests with large values go out on connections that are free, or are made.
    fn send_waiting(&mut self, id: NodeId) {
        while let Some(node) = self.nodes.get_mut(&id).filter(|node| !node.waiting.is_empty()) {
            let peer = match node.free.pop() {
                Some(peer) => peer,
                None if node.large < MOST_LARGE => {
                    let room = memory::reserve_map(&mut self.large, 1).and_then(|()| Address::literal(&node.endpoint));
                    match room.and_then(|address| self.net.connect(&address)) {
                        Ok(peer) => {
                            node.large += 1;
                            self.large.insert(peer, Large { node: id, seen: 0, moved: (0, false) });
                            peer
                        }
                        // It waits for one of those that there are.
                        Err(error) if is_of_process(&error) && node.large > 0 => return,
                        Err(error) => {
                            let lost = std::mem::take(&mut node.waiting);
                            let lost = lost.into_iter().map(|waiting| unreached(waiting.frame.request, &error));
                            self.events.extend(lost);
                            return;
                        }
                    }
                }
                None => return,
            };
            let Some(Waiting { mut frame, from, since }) = node.waiting.pop() else { return };
            // What moved for others before says nothing about it, but something to those that wait.
            if let Some(large) = self.large.get_mut(&peer) {
                let moved = self.net.moved(peer).0;
                node.unheard += moved.saturating_sub(std::mem::replace(&mut large.seen, moved));
            }
            let waited = now_ms().saturating_sub(since);
            frame.time_left_ms = frame.time_left_ms.saturating_sub(u32::try_from(waited).unwrap_or(u32::MAX)).max(1);
            // At once: its time as one that waits may be over.
            self.core.on(Event::Begun(frame.request), now_ms(), &mut self.actions);
            self.send(peer, Some(id), frame, from);
        }
    }

    pub(super) fn send(&mut self, peer: Peer, large: Option<NodeId>, frame: Frame, from: Memory) {
        let call = from.call;
        if !self.note(frame.request, Sent { peer, call, large }) {
            return;
        }
        let length = frame.message.value();
        if length == 0 {
            return self.say(peer, &frame);
        }
        let Some(running) = self.calls.get(&call) else { return self.unsaid(frame.request, NMC_ERR_CANCELLED) };
        let stub = is_stub(&frame.message).then(|| Span::of_static(&STUB));
        let spans = stub.as_ref().map_or(running.spans.as_slice(), std::slice::from_ref);
        let room = memory::reserve_map(&mut self.tickets, 1).and_then(|()| Spans::of(spans));
        let spans = match room {
            Ok(spans) => spans.behind(from.offset).up_to(length),
            Err(error) => return self.unsaid(frame.request, error.status),
        };
        if large.is_none() {
            if let Err(error) = self.net.send_value(peer, &frame, spans, None) {
                self.unsaid(frame.request, error.status);
            }
            return;
        }
        let ticket = self.number();
        self.tickets.insert(ticket, (call, None));
        if let Some(running) = self.calls.get_mut(&call) {
            running.outgoing.push((ticket, peer));
        }
        let _ = self.net.send_value(peer, &frame, spans, Some(ticket));
    }

    /// Notes a request, if it is one. Without memory for that it has no answer, and is not to be sent.
    pub(super) fn note(&mut self, request: u64, sent: Sent) -> bool {
        if request == 0 {
            return true;
        }
        if let Err(error) = memory::reserve_map(&mut self.requests, 1) {
            if sent.large.is_some() {
                self.net.close(sent.peer);
            }
            self.events.push(Event::Failed(request, error.status));
            return false;
        }
        self.requests.insert(request, sent);
        true
    }

    /// What cannot be said in one message has no answer.
    pub(super) fn say(&mut self, peer: Peer, frame: &Frame) {
        if let Err(error) = self.net.send(peer, frame)
            && frame.request != 0
        {
            self.unsaid(frame.request, error.status);
        }
    }

    fn unsaid(&mut self, request: u64, why: nmc_status_t) {
        self.drop_request(request);
        self.events.push(Event::Failed(request, why));
    }

    pub(super) fn take(&mut self, request: u64, into: Memory, length: u64, sum: Option<u32>) {
        let call = into.call;
        let ticket = self.number();
        let (Some(sent), Some(running)) = (self.requests.get(&request), self.calls.get_mut(&call)) else {
            return self.events.push(Event::Took(request, false));
        };
        let peer = sent.peer;
        let room = memory::reserve_map(&mut self.tickets, 1).and_then(|()| Spans::of(&running.spans));
        let Ok(spans) = room else { return self.events.push(Event::Took(request, false)) };
        let spans = spans.behind(into.offset);
        if spans.left() < length {
            // The value is there, and the caller is told how large it is; its bytes are passed over.
            running.too_large = Some(length);
            self.drop_request(request);
            return self.events.push(Event::Took(request, true));
        }
        if self.net.take(peer, spans.up_to(length).wanting(sum), ticket) {
            running.incoming.push((ticket, peer));
            self.tickets.insert(ticket, (call, Some(request)));
        } else {
            self.events.push(Event::Took(request, false));
        }
    }

    /// A value has come, right or wrong, or has been lost on its way.
    pub(super) fn moved(&mut self, ticket: u64, tell: impl FnOnce(u64) -> Event) {
        let Some((_, request)) = self.forget(ticket) else { return };
        if let Some(request) = request {
            self.release(request);
            self.events.push(tell(request));
        }
    }

    /// The caller's memory is not used any more by this.
    pub(super) fn forget(&mut self, ticket: u64) -> Option<(u64, Option<u64>)> {
        let (call, request) = self.tickets.remove(&ticket)?;
        if let Some(running) = self.calls.get_mut(&call) {
            running.incoming.retain(|(of, _)| *of != ticket);
            running.outgoing.retain(|(of, _)| *of != ticket);
        }
        Some((call, request))
    }

    /// A request is over: its connection is free for another, unless part of its value is still to be sent.
    pub(super) fn release(&mut self, number: u64) {
        let Some(sent) = self.requests.remove(&number) else { return };
        let Some(id) = sent.large else { return };
        let sending = self.calls.get(&sent.call).is_some_and(|call| call.outgoing.iter().any(|(_, p)| *p == sent.peer));
        if sending {
            return self.net.close(sent.peer);
        }
        match self.nodes.get_mut(&id).filter(|_| self.large.contains_key(&sent.peer)) {
            Some(node) => node.free.push(sent.peer),
            // Of what the node was before.
            None => self.net.close(sent.peer),
        }
        self.send_waiting(id);
    }

    /// Nothing of a request is wanted any more.
    pub(super) fn close(&mut self, request: u64) {
        for node in self.nodes.values_mut() {
            node.waiting.retain(|waiting| waiting.frame.request != request);
        }
        let tickets: Vec<u64> =
            self.tickets.iter().filter(|(_, (_, of))| *of == Some(request)).map(|(ticket, _)| *ticket).collect();
        for ticket in tickets {
            if let Some(sent) = self.requests.get(&request) {
                self.net.abandon(sent.peer, ticket);
            }
            self.forget(ticket);
        }
        // What has not left yet would be done later, when nobody reckons with it. Others on that connection ask again. Not for what waits here only to leave
        // together: with it would go what was said meanwhile.
        self.net.flush();
        let unsent = self.requests.get(&request).map(|sent| sent.peer).filter(|peer| self.net.has_unsent(*peer));
        if let Some(peer) = unsent {
            self.net.close(peer);
            self.masters.given_up(peer);
        }
        self.drop_request(request);
    }

    /// The answer of a request is not waited for: a connection that was for it alone ends.
    fn drop_request(&mut self, request: u64) {
        let Some(sent) = self.requests.remove(&request) else { return };
        if sent.large.is_some() {
            self.net.close(sent.peer);
        }
    }

    pub(super) fn closed(&mut self, peer: Peer) {
        self.masters.closed(peer);
        for node in self.nodes.values_mut().filter(|node| node.shared == Some(peer)) {
            (node.shared, node.told, node.met) = (None, (0, 0), false);
        }
        let lost = self.requests.extract_if(|_, sent| sent.peer == peer);
        self.events.extend(lost.map(|(number, _)| Event::Lost(number)));
        if let Some(Large { node: id, seen, .. }) = self.large.remove(&peer) {
            if let Some(node) = self.nodes.get_mut(&id) {
                node.unheard += self.net.moved(peer).0.saturating_sub(seen);
                node.free.retain(|free| *free != peer);
                node.large -= 1;
            }
            self.send_waiting(id);
        }
    }

    /// Some requests are late unless their values move: tells how much they have. What waits for a connection is told what moves on those that
    /// its node has.
    pub(super) fn look_at_values(&mut self, now: Millis) {
        if self.large.is_empty() {
            return;
        }
        self.nodes.values_mut().for_each(|node| node.moved = std::mem::take(&mut node.unheard));
        for (peer, large) in &mut self.large {
            let (moved, whole) = self.net.moved(*peer);
            large.moved = (moved.saturating_sub(std::mem::replace(&mut large.seen, moved)), whole);
            if let Some(node) = self.nodes.get_mut(&large.node) {
                node.moved += large.moved.0;
            }
        }
        let mut tell = |request, bytes, whole| {
            self.core.on(Event::Moved(request, bytes, whole), now, &mut self.actions);
        };
        for (request, sent) in &self.requests {
            if let Some(Large { moved: (bytes, whole), .. }) = self.large.get(&sent.peer) {
                tell(*request, *bytes, *whole);
            }
        }
        for node in self.nodes.values() {
            node.waiting.iter().for_each(|waiting| tell(waiting.frame.request, node.moved, false));
        }
    }
}

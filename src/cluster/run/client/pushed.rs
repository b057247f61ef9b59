//! Values that somebody else moves ([`Carrier`]): whether a node can be reached in that way, and what is said to it then.

use super::{GREET_MS, Node, State};
use crate::base::queue::Queue;
use crate::base::status::NMC_ERR_UNSUPPORTED;
use crate::base::{log, memory};
use crate::cluster::client::{Call, Event, Memory};
use crate::cluster::net::{Address, Span, now_ms};
use crate::cluster::nixl::{How, News, Write, pieces};
use crate::cluster::run::carrier::Carrier;
use crate::cluster::types::{NodeId, Peer, PutId};
use crate::cluster::wire::{Extent, Fetched, Frame, Message, Metadata, Mover, Reserved};

impl State {
    /// A call as it is made: if somebody else may move what it reads, it says where to.
    pub(super) fn named(&mut self, number: u64, mut call: Call) -> Call {
        let (Some(carrier), Call::Get(get)) = (&mut self.carrier, &mut call) else { return call };
        let Some(running) = self.calls.get_mut(&number).filter(|_| get.room >= self.pushed_from) else { return call };
        get.unseen = running.far;
        if let Some(extents) = carrier.extents(&running.spans) {
            get.into = extents;
        } else if !running.far
            && let (Ok(mut into), Some((borrowed, extent))) = (memory::with_capacity(1), carrier.borrow(get.room))
        {
            into.push(extent);
            (get.into, running.borrowed) = (into, Some(borrowed));
        }
        call
    }

    /// Whether somebody else can move the value of a put, or a part of it; makes room for all of it if need be.
    fn can_write(&mut self, call: u64) -> bool {
        let (Some(carrier), Some(running)) = (&mut self.carrier, self.calls.get_mut(&call)) else { return false };
        if running.borrowed.is_none() && !carrier.has(&running.spans) {
            if running.far {
                return false;
            }
            let all = running.spans.iter().map(|span| span.len() as u64).sum();
            running.borrowed = carrier.borrow(all).map(|(borrowed, _)| borrowed);
            return running.borrowed.is_some();
        }
        true
    }

    pub(super) fn write(
        &mut self,
        request: u64,
        (from, length): (Memory, u64),
        (node, to): (NodeId, u64),
        into: Vec<Extent>,
    ) {
        let known = self.nodes.get(&node).is_some_and(|node| node.met && node.mover == to);
        let running = self.calls.get(&from.call).filter(|_| known);
        let part = |spans: &[Span]| memory::collect(pieces::part(spans, from.offset, length));
        let spans = running.and_then(|running| part(&running.spans).ok());
        let (Some(carrier), Some(running), Some(spans)) = (&self.carrier, running, spans) else {
            return self.events.push(Event::Unwritten(request));
        };
        let room = running.borrowed.as_ref().map(|borrowed| borrowed.span);
        let stage = room.and_then(|room| pieces::part(&[room], from.offset, length).next());
        carrier.mover.write(Write { ticket: request, from: spans, stage, to, into });
    }

    /// What a node has written itself is all there: it goes to where the caller wants it, and is looked at if it is known what it is to be.
    pub(super) fn landed(&mut self, call: u64, into: Memory, length: u64, sum: Option<u32>) {
        let Some(running) = self.calls.get(&into.call) else { return };
        let spans = || pieces::part(&running.spans, into.offset, length);
        if let Some(borrowed) = &running.borrowed {
            pieces::part(&[borrowed.span], into.offset, length).for_each(|from| pieces::scatter(from, spans()));
        }
        if let Some(wanted) = sum {
            let found = spans().fold(0, |sum, span| span.sum(sum));
            self.events.push(Event::Checked(call, found == wanted));
        }
    }

    /// The mover tells something.
    pub(super) fn carried(&mut self, news: News) {
        match news {
            News::Moved(request, How::Unsent) => self.events.push(Event::Unwritten(request)),
            News::Moved(request, how) => self.events.push(Event::Wrote(request, how == How::Whole)),
            News::Renewed(number) => self.events.push(Event::Renewed(number)),
            News::Met(id, good) => {
                for node in self.nodes.values_mut().filter(|node| node.mover == id) {
                    node.met = good;
                    log::emit(log::DEBUG, || format!("client: NIXL reaches {}: {good}", node.endpoint));
                }
            }
            News::Card => {
                // Those who knew it are told at once, so that the next call finds them ready.
                let told = |(id, node): (&NodeId, &Node)| (node.told != (0, 0)).then_some(*id);
                let mut nodes = Queue::new();
                nodes.extend(self.nodes.iter().filter_map(told));
                nodes.into_iter().for_each(|id| self.greet(id));
            }
        }
    }

    /// Tells a node how the own mover is reached, if it does not know. It answers with its own.
    fn greet(&mut self, id: NodeId) {
        let Some(current) = self.carrier.as_ref().and_then(Carrier::current) else { return };
        let (said, now) = ((current.said.id, current.said.edition), now_ms());
        let Some(node) = self.nodes.get_mut(&id) else { return };
        if node.told == said && (node.mover != 0 || now < node.told_at + GREET_MS) {
            return;
        }
        let peer = match node.shared {
            Some(peer) => Ok(peer),
            None => Address::literal(&node.endpoint).and_then(|address| self.net.connect(&address)),
        };
        let Ok(peer) = peer else { return };
        (node.shared, node.told, node.told_at, node.met) = (Some(peer), said, now, false);
        let _ = self.net.send(peer, &Frame::telling(current.said.clone()));
    }

    /// A node says how its mover is reached.
    pub(super) fn greeted(&mut self, peer: Peer, other: Mover) {
        let found = self.nodes.values_mut().find(|node| node.shared == Some(peer));
        let (Some(node), Some(carrier)) = (found, &self.carrier) else { return };
        if node.mover != other.id && node.mover != 0 {
            carrier.mover.part(node.mover);
        }
        (node.mover, node.met) = (other.id, node.met && node.mover == other.id);
        if other.id != 0 {
            carrier.mover.meet(other);
        }
    }

    /// Whether a node can write to memory of this client, and this client to its memory; by the renewal of the own mover that is meant.
    fn reaches(&mut self, id: NodeId) -> Option<(u64, u64)> {
        self.greet(id);
        let current = self.carrier.as_ref().and_then(Carrier::current)?;
        let said = &current.said;
        let node = self.nodes.get(&id)?;
        (node.met && node.told == (said.id, said.edition)).then_some((current.number, said.id))
    }

    /// What only a mover can do is not asked of a node that has none: what it would answer then.
    pub(super) fn refused(&mut self, id: NodeId, frame: &mut Frame, call: u64) -> Option<Message> {
        match &mut frame.message {
            Message::Fetch(fetch) if !fetch.into.is_empty() => match self.reaches(id) {
                Some((number, said)) if number == fetch.mover => {
                    fetch.mover = said;
                    None
                }
                _ => {
                    let (status, put, metadata) = (NMC_ERR_UNSUPPORTED, PutId(0), Metadata::default());
                    Some(Fetched { status, put, length: 0, follows: 0, sum: None, retain: 0, metadata }.into())
                }
            },
            Message::Reserve(_) => {
                if self.reaches(id).is_some() && self.can_write(call) {
                    return None;
                }
                Some(Reserved { status: NMC_ERR_UNSUPPORTED, name: None, extents: Vec::new(), mover: 0 }.into())
            }
            _ => None,
        }
    }
}

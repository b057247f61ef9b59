//! Calls: how they begin, what becomes of them with each thing that happens, and how they end.

use super::{Ended, Group, Running, Sent, State, Task, is_refusal};
use crate::base::error::Result;
use crate::base::memory;
use crate::base::queue::Queue;
use crate::base::status::{NMC_ERR_CANCELLED, NMC_ERR_TOO_SMALL, NMC_OK};
use crate::cluster::client::{Action, Event, Outcome};
use crate::cluster::net::{ByNumber, Heard, Ready, now_ms};
use crate::cluster::run::TURN;
use crate::cluster::types::{Millis, NodeId, Peer};
use crate::cluster::wire::{Answer, Frame, Message};
use parking_lot::Condvar;
use std::sync::Arc;
use std::time::Duration;

/// What somebody says who does not talk to this client, for want of the token or of a common version.
fn refusal(frame: &Frame) -> Option<&Answer> {
    match &frame.message {
        Message::Answer(answer) if frame.request == 0 && is_refusal(answer.status) => Some(answer),
        _ => None,
    }
}

impl State {
    pub(super) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(super) fn is_over(&self, group: u64) -> bool {
        self.groups.get(&group).is_none_or(|group| group.left == 0)
    }

    pub(super) fn is_ending(&self) -> bool {
        self.calls.values().any(|running| running.ending.is_some())
    }

    /// Groups that nobody waits for and that have ended.
    pub(super) fn take_unattended(&mut self) -> Queue<(Ended, Vec<Outcome>)> {
        let mut done = Queue::new();
        // It keeps its room: whoever began a call was given that.
        let over = self.over.drain(..).filter_map(|number| self.groups.remove(&number));
        done.extend(over.filter_map(|group| Some((group.ended?, group.outcomes))));
        self.unattended -= done.len();
        done
    }

    /// Whoever drives calls this, as if calls had ended that nobody waits for. Nothing else is done here.
    pub(super) fn post(&mut self, tag: u64, ended: Ended) -> Result<()> {
        if self.cancelled {
            crate::bail!(NMC_ERR_CANCELLED, "the client is closed");
        }
        memory::reserve_map(&mut self.groups, 1)?;
        memory::reserve(&mut self.over, self.unattended + 1)?;
        let (number, waiter) = (self.number(), Arc::new(Condvar::new()));
        self.unattended += 1;
        self.over.push(number);
        self.groups.insert(number, Group { outcomes: Vec::new(), left: 0, tag, waiter, ended: Some(ended) });
        Ok(())
    }

    pub(super) fn begin(
        &mut self,
        tasks: Vec<Task>,
        waiter: Arc<Condvar>,
        tag: u64,
        ended: Option<Ended>,
    ) -> Result<u64> {
        if !self.driven && self.looked_at != now_ms() {
            // What has ended while nobody looked is not spoken to.
            let mut ready = Vec::new();
            self.net.poller().wait(Duration::ZERO, &mut ready);
            self.turn(&ready);
        }
        let outcomes = self.room(&tasks)?;
        let number = self.number();
        self.unattended += usize::from(ended.is_some());
        if tasks.is_empty() && ended.is_some() {
            self.over.push(number);
        }
        self.groups.insert(number, Group { outcomes, left: tasks.len(), tag, waiter, ended });
        let now = now_ms();
        for (at, task) in tasks.into_iter().enumerate() {
            let call = self.number();
            let running = Running {
                group: number,
                at,
                spans: task.spans,
                far: task.far,
                incoming: Vec::new(),
                outgoing: Vec::new(),
                too_large: None,
                borrowed: None,
                ending: None,
            };
            self.calls.insert(call, running);
            let task = Task { call: self.named(call, task.call), spans: Vec::new(), ..task };
            let patience = Millis::try_from(task.patience.as_millis()).unwrap_or(Millis::MAX);
            self.events.push(Event::Call(call, patience, task.call));
            self.tell_all(now);
            if at % TURN == TURN - 1 {
                self.net.flush();
            }
        }
        self.net.flush();
        if self.cancelled {
            self.end_calls(|_, _| true, None);
        }
        Ok(number)
    }

    /// Makes room for what calls need to be noted while they are under way, and gives that of their outcomes.
    fn room(&mut self, tasks: &[Task]) -> Result<Vec<Outcome>> {
        let calls = tasks.len();
        self.core.reserve(tasks.iter().map(|task| &task.call))?;
        memory::reserve_map(&mut self.groups, 1)?;
        memory::reserve_map(&mut self.calls, calls)?;
        memory::reserve_map(&mut self.requests, calls)?;
        memory::reserve_map(&mut self.tickets, calls)?;
        memory::reserve(&mut self.over, self.unattended + 1)?;
        // All of them may be late, or lose their connection, at once.
        memory::vec_with(calls, |_| Outcome::of(NMC_ERR_CANCELLED))
    }

    /// Calls of such groups end, in these words if there are any. Nothing is sent for them after this, but that what they began is not
    /// to be.
    pub(super) fn end_calls(&mut self, which: impl Fn(u64, &Group) -> bool, why: Option<&Answer>) {
        let ends = |groups: &ByNumber<u64, Group>, running: &Running| {
            groups.get(&running.group).is_some_and(|group| which(running.group, group))
        };
        let next = |state: &Self| {
            let mut calls = state.calls.iter();
            calls.find(|(_, running)| running.ending.is_none() && ends(&state.groups, running)).map(|(call, _)| *call)
        };
        while let Some(call) = next(self) {
            let outcome = match why {
                Some(why) => Outcome { reply: Some(Box::new(why.clone().into())), ..Outcome::of(why.status) },
                None => Outcome::of(NMC_ERR_CANCELLED),
            };
            match self.carrier {
                // It says itself when nobody else moves its bytes any more.
                Some(_) => {
                    if let Some(running) = self.calls.get_mut(&call) {
                        running.ending = Some(outcome);
                    }
                }
                None => self.done(call, outcome),
            }
            self.events.push(Event::End(call));
            self.tell_all(now_ms());
        }
        self.net.flush();
    }

    /// Something may have happened.
    pub(super) fn turn(&mut self, ready: &[Ready]) {
        self.net.ready(ready);
        let now = now_ms();
        self.looked_at = now;
        if let Some(carrier) = &self.carrier {
            let news = carrier.take(ready);
            news.into_iter().for_each(|news| self.carried(news));
            self.tell_all(now);
        }
        for _ in 0..TURN {
            let Some(heard) = self.net.hear() else { break };
            self.heard(heard, now);
        }
        self.events.push(Event::Tick);
        self.tell_all(now);
        self.net.end_stalled();
        self.net.flush();
    }

    fn heard(&mut self, heard: Heard, now: Millis) {
        match heard {
            Heard::Frame(peer, frame) => self.frame(peer, frame),
            Heard::Taken(ticket) => self.moved(ticket, |request| Event::Took(request, true)),
            Heard::Torn(ticket) => self.moved(ticket, Event::Torn),
            Heard::Sent(ticket) => {
                self.forget(ticket);
            }
            Heard::Lost(ticket) => self.moved(ticket, |request| Event::Took(request, false)),
            Heard::Closed(peer) => self.closed(peer),
        }
        self.tell_all(now);
    }

    fn frame(&mut self, peer: Peer, frame: Frame) {
        if let Some(at) = self.masters.which(peer) {
            let refusal = refusal(&frame);
            if self.masters.refuses(at, refusal.is_some())
                && let Some(answer) = refusal
            {
                self.end_calls(|_, _| true, Some(answer));
            }
            self.requests.remove(&frame.request);
            return self.events.push(Event::Master(at, frame));
        }
        if let Some(status) = refusal(&frame).map(|answer| answer.status) {
            let refused = self.requests.iter().filter(|(_, sent)| sent.peer == peer);
            self.events.extend(refused.map(|(number, _)| Event::Refused(*number, status)));
            // Nothing else comes that way.
            return self.net.close(peer);
        }
        if let Message::Mover(other) = frame.message {
            return self.greeted(peer, other);
        }
        let number = frame.request;
        // An answer that comes by another way than its question did is none.
        let Some(sent) = self.requests.get(&number).filter(|sent| sent.peer == peer) else { return };
        let node = sent.large;
        if frame.message.value() == 0 {
            self.release(number);
        }
        self.events.push(Event::Node(node.unwrap_or(NodeId(0)), frame));
    }

    fn tell_all(&mut self, now: Millis) {
        if self.core.is_due(now) {
            self.look_at_values(now);
        }
        while let Some(event) = self.events.pop() {
            let mut actions = std::mem::take(&mut self.actions);
            self.core.on(event, now, &mut actions);
            while let Some(action) = actions.pop() {
                self.act(action, now);
            }
            self.actions = actions;
        }
    }

    fn act(&mut self, action: Action, now: Millis) {
        match action {
            Action::Master(at, frame) => match self.masters.link(at, &mut self.net, now) {
                Ok(Some(peer)) => {
                    let noted = self.note(frame.request, Sent { peer, call: 0, large: None });
                    if noted {
                        self.say(peer, &frame);
                    }
                }
                _ if frame.request == 0 => {}
                Ok(None) => self.events.push(Event::Lost(frame.request)),
                Err(error) => self.events.push(Event::Failed(frame.request, error.status)),
            },
            Action::Node(id, endpoint, frame, from) => self.ask_node(id, endpoint, frame, from),
            Action::Take { request, into, length, sum } => self.take(request, into, length, sum),
            Action::Close(request) => self.close(request),
            Action::Keep(_, key, replica) => {
                if let Some(agent) = &self.agent {
                    agent.keep(key, replica);
                }
            }
            Action::Done(call, outcome) => self.done(call, outcome),
            Action::Write { request, from, length, node, mover, extents } => {
                self.write(request, (from, length), (node, mover), extents);
            }
            Action::CancelWrite(request) => {
                if let Some(carrier) = &self.carrier {
                    carrier.mover.cancel(request);
                }
            }
            Action::Landed { call, into, length, sum } => self.landed(call, into, length, sum),
            Action::Renew(number) => match &self.carrier {
                Some(carrier) => carrier.mover.renew(number),
                None => self.events.push(Event::Renewed(number)),
            },
        }
    }

    fn done(&mut self, call: u64, mut outcome: Outcome) {
        let Some(mut running) = self.calls.remove(&call) else { return };
        if let (Some(carrier), Some(borrowed)) = (&mut self.carrier, running.borrowed.take()) {
            carrier.give_back(&borrowed);
        }
        outcome = running.ending.take().unwrap_or(outcome);
        // Whatever still refers to the caller's memory ends now.
        for (ticket, peer) in running.incoming {
            self.tickets.remove(&ticket);
            self.net.abandon(peer, ticket);
        }
        for (ticket, peer) in running.outgoing {
            self.tickets.remove(&ticket);
            self.net.close(peer);
        }
        if let Some(bytes) = running.too_large.filter(|_| outcome.status == NMC_OK) {
            outcome.status = NMC_ERR_TOO_SMALL;
            outcome.count = bytes;
        }
        if let Some(group) = self.groups.get_mut(&running.group) {
            if let Some(place) = group.outcomes.get_mut(running.at) {
                *place = outcome;
            }
            group.left -= 1;
            if group.left == 0 {
                group.waiter.notify_one();
                self.over.extend(group.ended.is_some().then_some(running.group));
            }
        }
    }
}

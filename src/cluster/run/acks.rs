//! Acknowledgements of a master that wait a moment: the next one of the same node says all that the one before it did, and nobody waits for them. A node
//! that is woken up by each would take the processor from whoever ends a put at that moment.

use crate::base::memory;
use crate::cluster::net::ByNumber;
use crate::cluster::types::{Millis, Peer};
use crate::cluster::wire::{Frame, Message};
use std::collections::VecDeque;

/// How many become one at most: half of what a node has under way without an answer.
const TOGETHER: u32 = 4;
/// How long one waits at most.
const MOMENT: Millis = 1;

struct Waiting {
    frame: Frame,
    count: u32,
    until: Millis,
}

/// See the module.
#[derive(Default)]
pub struct Acks {
    waiting: ByNumber<u64, Waiting>,
    /// When they end to wait, in order; some of them have ended before.
    ends: VecDeque<(Millis, Peer)>,
}

impl Acks {
    /// What is to be sent now of what the master says to a peer: at most two frames, in their order.
    pub fn pass(&mut self, to: Peer, frame: Frame, now: Millis) -> [Option<Frame>; 2] {
        // One that a request asked for by a number is the answer to that one alone.
        if !matches!(frame.message, Message::Ack(_)) || frame.request != 0 {
            return [self.take(to), Some(frame)];
        }
        if let Some(waiting) = self.waiting.get_mut(&to.0) {
            waiting.frame = frame;
            waiting.count += 1;
            return [if waiting.count == TOGETHER { self.take(to) } else { None }, None];
        }
        // Without memory to wait in, none waits.
        let room = memory::reserve_map(&mut self.waiting, 1).and_then(|()| memory::reserve_queue(&mut self.ends, 1));
        if room.is_err() {
            return [Some(frame), None];
        }
        let until = now + MOMENT;
        self.waiting.insert(to.0, Waiting { frame, count: 1, until });
        self.ends.push_back((until, to));
        [None, None]
    }

    /// One that waits for this peer, or none: its connection has ended, or something else is to be sent.
    pub fn take(&mut self, to: Peer) -> Option<Frame> {
        self.waiting.remove(&to.0).map(|waiting| waiting.frame)
    }

    /// When the next one is to be sent.
    pub fn due(&self) -> Option<Millis> {
        self.ends.front().map(|(until, _)| *until)
    }

    /// One that has waited long enough.
    pub fn next(&mut self, now: Millis) -> Option<(Peer, Frame)> {
        while let Some((until, to)) = self.ends.front().copied().filter(|(until, _)| *until <= now) {
            self.ends.pop_front();
            // Another one may wait for the same peer, and for longer.
            if self.waiting.get(&to.0).is_some_and(|waiting| waiting.until == until) {
                return self.take(to).map(|frame| (to, frame));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::wire::{Ack, Rejoin};

    fn ack(next: u64) -> Frame {
        let (closed, changed) = (Vec::new(), 0);
        Frame::telling(Ack { term: 1, incarnation: 2, next, facts: 0, sent_at: 0, closed, changed })
    }

    #[test]
    fn the_last_of_some_is_sent_and_none_waits_for_long() {
        let mut acks = Acks::default();
        let (one, two) = (Peer(1), Peer(2));
        for n in 1..TOGETHER.into() {
            assert_eq!(acks.pass(one, ack(n), 10), [None, None]);
        }
        assert_eq!(acks.pass(one, ack(9), 10), [Some(ack(9)), None], "half of what is under way");
        assert_eq!(acks.pass(one, ack(10), 10), [None, None]);
        assert_eq!(acks.pass(two, ack(3), 11), [None, None]);
        assert_eq!((acks.due(), acks.next(10)), (Some(10 + MOMENT), None));
        assert_eq!(acks.next(10 + MOMENT), Some((one, ack(10))));
        assert_eq!(acks.next(10 + MOMENT), None);
        assert_eq!(acks.next(11 + MOMENT), Some((two, ack(3))));
        assert_eq!((acks.next(1000), acks.due()), (None, None));
    }

    #[test]
    fn whoever_asked_by_a_number_is_answered_under_it() {
        let mut acks = Acks::default();
        let answer = |request| Frame { request, ..ack(request) };
        for request in 1..4 {
            assert_eq!(acks.pass(Peer(1), answer(request), 10), [None, Some(answer(request))]);
        }
        acks.pass(Peer(1), ack(4), 10);
        assert_eq!(acks.pass(Peer(1), answer(5), 10), [Some(ack(4)), Some(answer(5))], "in their order");
    }

    #[test]
    fn nothing_overtakes_it() {
        let mut acks = Acks::default();
        let other = || Frame::telling(Rejoin { term: 1 });
        assert_eq!(acks.pass(Peer(1), other(), 10), [None, Some(other())]);
        acks.pass(Peer(1), ack(1), 10);
        assert_eq!(acks.pass(Peer(2), other(), 10), [None, Some(other())], "another's");
        assert_eq!(acks.pass(Peer(1), other(), 10), [Some(ack(1)), Some(other())]);
        // One that began to wait later is not sent at the time of the one before it.
        acks.pass(Peer(1), ack(2), 10 + MOMENT);
        assert_eq!(acks.next(10 + MOMENT), None);
        assert!(acks.take(Peer(1)).is_some() && acks.next(1000).is_none());
    }
}

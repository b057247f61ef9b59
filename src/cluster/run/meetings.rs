//! Whom the mover of a node gets to know. Those who have connected say how their movers are reached, as often as they like; what waits because of
//! that is bounded: one of each connection is under way, and beside it only the newest waits.

use crate::base::error::Result;
use crate::base::memory;
use crate::cluster::types::Peer;
use crate::cluster::wire::Mover;
use std::collections::{HashMap, VecDeque};

/// Most that are under way: those who have gone count until the mover has looked at what they said.
const MOST_UNDER_WAY: usize = 1024;

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// The mover is to get to know this one.
    Meet(Mover),
    /// It need not know this one any more.
    Part(u64),
    /// Answer a request: how the own mover is reached, or that it does not know who asked.
    Answer(Peer, u64, bool),
}

struct UnderWay {
    peer: Peer,
    request: u64,
    id: u64,
}

/// See the module.
#[derive(Default)]
pub(super) struct Meetings {
    /// The mover of each who has told of one.
    told: HashMap<Peer, u64>,
    /// What the mover was given, in this order; it says what came of each in the same.
    under_way: VecDeque<UnderWay>,
    /// What is next, with the request.
    next: HashMap<Peer, (u64, Mover)>,
}

impl Meetings {
    /// Those who have told of a mover.
    pub(super) fn peers(&self) -> impl Iterator<Item = Peer> {
        self.told.keys().copied()
    }

    /// Somebody says how its mover is reached.
    pub(super) fn greeted(&mut self, peer: Peer, request: u64, other: Mover, to: &mut Vec<Step>) {
        let is_under_way = self.under_way.iter().any(|one| one.peer == peer);
        if other.id == 0 || self.reserve().is_err() || !is_under_way && self.under_way.len() >= MOST_UNDER_WAY {
            return to.push(Step::Answer(peer, request, false));
        }
        if is_under_way {
            // What it said before is out of date, and needs no answer.
            self.next.insert(peer, (request, other));
        } else {
            self.begin(peer, request, other, to);
        }
    }

    fn reserve(&mut self) -> Result<()> {
        memory::reserve_map(&mut self.told, 1)?;
        memory::reserve_map(&mut self.next, 1)?;
        memory::reserve_queue(&mut self.under_way, 1)
    }

    fn begin(&mut self, peer: Peer, request: u64, other: Mover, to: &mut Vec<Step>) {
        let id = other.id;
        if let Some(before) = self.told.insert(peer, id) {
            self.part(before, to);
        }
        self.under_way.push_back(UnderWay { peer, request, id });
        to.push(Step::Meet(other));
    }

    /// Somebody does not use a mover any more: it is over unless somebody else does. Who connects again comes before its former connection has ended.
    fn part(&self, id: u64, to: &mut Vec<Step>) {
        if !self.told.values().any(|other| *other == id) {
            to.push(Step::Part(id));
        }
    }

    /// The mover knows one, or cannot.
    pub(super) fn met(&mut self, id: u64, good: bool, to: &mut Vec<Step>) {
        for _ in 0..self.under_way.len() {
            let Some(one) = self.under_way.pop_front() else { return };
            // Nothing came of those before it: the mover has failed meanwhile.
            let this = one.id == id;
            if self.told.contains_key(&one.peer) {
                to.push(Step::Answer(one.peer, one.request, good && this));
            }
            if let Some((request, other)) = self.next.remove(&one.peer) {
                self.begin(one.peer, request, other, to);
            }
            if this {
                return;
            }
        }
    }

    /// A connection has ended.
    pub(super) fn closed(&mut self, peer: Peer, to: &mut Vec<Step>) {
        self.next.remove(&peer);
        if let Some(id) = self.told.remove(&peer) {
            self.part(id, to);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::wire::Card;

    fn mover(id: u64, edition: u64) -> Mover {
        Mover { id, edition, card: Card::default(), regions: Vec::new() }
    }

    fn steps(act: impl FnOnce(&mut Vec<Step>)) -> Vec<Step> {
        let mut to = Vec::new();
        act(&mut to);
        to
    }

    #[test]
    fn who_says_much_about_its_mover_makes_one_wait_and_the_newest() {
        let (mut all, peer) = (Meetings::default(), Peer(1));
        assert_eq!(steps(|to| all.greeted(peer, 1, mover(10, 1), to)), [Step::Meet(mover(10, 1))]);
        // A thousand others, each of another mover: nothing is given to the mover meanwhile.
        let given: usize = (2..1002).map(|n| steps(|to| all.greeted(peer, n, mover(10 + n, 1), to)).len()).sum();
        assert_eq!((given, all.next.len(), all.under_way.len()), (0, 1, 1));
        let last = steps(|to| all.met(10, true, to));
        let expected = [Step::Answer(peer, 1, true), Step::Part(10), Step::Meet(mover(1011, 1))];
        assert_eq!(last, expected);
        assert_eq!(steps(|to| all.met(1011, false, to)), [Step::Answer(peer, 1001, false)]);
        assert!(all.next.is_empty() && all.under_way.is_empty());
    }

    #[test]
    fn who_connects_often_makes_no_more_wait_than_may() {
        let mut all = Meetings::default();
        let mut given = 0;
        for n in 1..5000 {
            let steps = steps(|to| all.greeted(Peer(n), 1, mover(n, 1), to));
            given += steps.iter().filter(|step| matches!(step, Step::Meet(_))).count();
            all.closed(Peer(n), &mut Vec::new());
        }
        assert_eq!((given, all.under_way.len()), (MOST_UNDER_WAY, MOST_UNDER_WAY));
        assert!(all.told.is_empty());
        // They go as the mover looks at them, and nobody is answered.
        (1..=MOST_UNDER_WAY as u64).for_each(|n| assert_eq!(steps(|to| all.met(n, true, to)), []));
        assert_eq!(steps(|to| all.greeted(Peer(9000), 1, mover(7, 1), to)), [Step::Meet(mover(7, 1))]);
    }

    #[test]
    fn the_end_of_a_former_connection_parts_nobody_who_has_come_again() {
        let (mut all, id) = (Meetings::default(), 10);
        all.greeted(Peer(1), 1, mover(id, 1), &mut Vec::new());
        all.greeted(Peer(2), 1, mover(id, 2), &mut Vec::new());
        assert_eq!(
            steps(|to| all.met(id, true, to)),
            [Step::Answer(Peer(1), 1, true)],
            "in the order of what was said"
        );
        assert_eq!(steps(|to| all.met(id, true, to)), [Step::Answer(Peer(2), 1, true)]);
        assert_eq!(steps(|to| all.closed(Peer(1), to)), []);
        // Nor does it if one of them has another mover by now.
        all.greeted(Peer(3), 1, mover(id, 2), &mut Vec::new());
        all.met(id, true, &mut Vec::new());
        assert_eq!(steps(|to| all.greeted(Peer(3), 2, mover(11, 1), to)), [Step::Meet(mover(11, 1))]);
        assert_eq!(steps(|to| all.closed(Peer(2), to)), [Step::Part(id)]);
    }

    #[test]
    fn what_the_mover_did_not_come_to_is_not_waited_for() {
        let mut all = Meetings::default();
        all.greeted(Peer(1), 1, mover(10, 1), &mut Vec::new());
        all.greeted(Peer(2), 1, mover(20, 1), &mut Vec::new());
        assert_eq!(
            steps(|to| all.met(20, true, to)),
            [Step::Answer(Peer(1), 1, false), Step::Answer(Peer(2), 1, true)]
        );
        assert_eq!(steps(|to| all.greeted(Peer(1), 2, mover(0, 1), to)), [Step::Answer(Peer(1), 2, false)]);
    }
}

//! Which master to speak to: the one that led last, else the one that a standby names, else the next in the list.

use super::types::{Term, cluster_of};

/// See the module.
#[derive(Debug, Clone)]
pub struct Leaders {
    names: Vec<String>,
    at: usize,
    term: Term,
    /// The leader that was heard of last has left something without an answer.
    silent: bool,
}

impl Leaders {
    /// Masters that listen at these addresses.
    #[must_use]
    pub fn new(names: Vec<String>) -> Self {
        Self { names, at: 0, term: 0, silent: false }
    }

    /// The one to speak to, by its place in the list.
    #[must_use]
    pub fn current(&self) -> usize {
        self.at
    }

    /// How many masters there are to ask; one if nobody is named.
    #[must_use]
    pub fn count(&self) -> usize {
        self.names.len().max(1)
    }

    /// Whether one has led that did not leave anything without an answer since.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.term != 0 && !self.silent
    }

    /// The highest term that was heard of.
    #[must_use]
    pub fn term(&self) -> Term {
        self.term
    }

    /// Whether what is said in a term does not count any more. Between clusters terms have no order: another one counts when the leader of the
    /// own is silent, since what was written down of that may be lost.
    fn is_past(&self, term: Term) -> bool {
        match self.term == 0 || term == 0 || cluster_of(term) == cluster_of(self.term) {
            true => term < self.term,
            false => !self.silent,
        }
    }

    /// Somebody answers as the leader of a term: whether anything that it says still counts.
    pub fn heard(&mut self, from: usize, term: Term) -> bool {
        if self.is_past(term) {
            return false;
        }
        (self.term, self.at, self.silent) = (term, from, false);
        true
    }

    /// A standby says who leads.
    pub fn redirected(&mut self, term: Term, leader: &str) {
        if self.is_past(term) {
            return self.next();
        }
        match self.names.iter().position(|name| name == leader) {
            Some(at) => self.at = at,
            None => self.next(),
        }
    }

    /// The one that was spoken to does not answer.
    pub fn unanswered(&mut self) {
        self.silent = true;
        self.next();
    }

    /// The one that was spoken to does not lead.
    pub fn next(&mut self) {
        self.at = (self.at + 1) % self.names.len().max(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::types::terms_of;

    #[test]
    fn a_leader_of_another_cluster_counts_when_the_own_is_silent_and_one_of_the_past_never() {
        let (high, low) = (terms_of(9), terms_of(4));
        for (own, other) in [(high, low), (low, high)] {
            let mut leaders = Leaders::new(vec!["a".into(), "b".into()]);
            assert!(leaders.heard(0, own + 5));
            assert!(!leaders.heard(1, own + 4), "of the past");
            assert!(!leaders.heard(1, other + 7), "the own one speaks");
            leaders.redirected(other + 7, "a");
            assert_eq!(leaders.current(), 1, "nor does who follows it");
            // By that it is not silent: it only does not lead.
            assert!(!leaders.heard(1, other + 7));
            leaders.unanswered();
            assert!(!leaders.heard(1, own + 4), "of the past, silent or not");
            assert!(!leaders.heard(1, 0), "no leader");
            assert!(leaders.heard(1, other + 7));
            assert_eq!((leaders.term(), leaders.current()), (other + 7, 1));
            // From now on that is the own one.
            assert!(!leaders.heard(0, own + 6) && !leaders.heard(0, other + 6) && leaders.heard(1, other + 8));
        }
    }
}

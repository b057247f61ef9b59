//! Which master to speak to: the one that led last, else the one that a standby names, else the next in the list.

use super::types::Term;

/// See the module.
#[derive(Debug, Clone)]
pub struct Leaders {
    names: Vec<String>,
    at: usize,
    term: Term,
}

impl Leaders {
    /// Masters that listen at these addresses.
    #[must_use]
    pub fn new(names: Vec<String>) -> Self {
        Self { names, at: 0, term: 0 }
    }

    /// The one to speak to, by its place in the list.
    #[must_use]
    pub fn current(&self) -> usize {
        self.at
    }

    /// The highest term that was heard of.
    #[must_use]
    pub fn term(&self) -> Term {
        self.term
    }

    /// Somebody answers as the leader of a term: whether anything that it says still counts.
    pub fn heard(&mut self, from: usize, term: Term) -> bool {
        if term < self.term {
            return false;
        }
        (self.term, self.at) = (term, from);
        true
    }

    /// A standby says who leads.
    pub fn redirected(&mut self, term: Term, leader: &str) {
        if term < self.term {
            return self.next();
        }
        match self.names.iter().position(|name| name == leader) {
            Some(at) => self.at = at,
            None => self.next(),
        }
    }

    /// The one that was spoken to does not answer.
    pub fn next(&mut self) {
        self.at = (self.at + 1) % self.names.len().max(1);
    }
}

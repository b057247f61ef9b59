//! What others ask of the owner's thread, what came of it, and when its turn is.

use crate::base::error::{Error, Result};
use crate::base::status::NMC_ERR_CANCELLED;
use std::collections::VecDeque;
use std::time::Instant;

/// Results that are kept for those who ask.
pub(super) const RESULTS: usize = 4096;

pub(super) enum Job {
    /// An entry that somebody could not read.
    Suspect { index: u32, word: u64 },
    /// The same, and somebody waits for what comes of it.
    Look { index: u32, word: u64 },
    /// Marks are made durable.
    Sync,
    /// The objects with these keys in a namespace, or everything.
    Offload(Option<(u32, Vec<Vec<u8>>)>),
    /// The same for those that somebody waits for: what was asked for until it begins is written together.
    Through(u32, Vec<Vec<u8>>),
    /// Room is made until files take this many bytes.
    Evict(u64),
}

#[derive(Default)]
pub(super) struct Inbox {
    pub(super) jobs: VecDeque<(u64, Job)>,
    pub(super) next: u64,
    pub(super) wake: bool,
    pub(super) stop: bool,
    pub(super) paused: bool,
    /// The jobs that the thread is at.
    pub(super) at: Vec<u64>,
    pub(super) results: VecDeque<(u64, Result<u64>)>,
}

impl Inbox {
    /// Whether a job waits or is worked at.
    pub(super) fn is_pending(&self, ticket: u64) -> bool {
        self.at.contains(&ticket) || self.jobs.iter().any(|(other, _)| *other == ticket)
    }

    /// Takes a job; the thread is at it from now on.
    pub(super) fn take(&mut self, place: usize) -> Option<(u64, Job)> {
        let (ticket, job) = self.jobs.remove(place)?;
        self.at.push(ticket);
        Some((ticket, job))
    }

    /// What is told of a job that is over, and of which nothing is known any more.
    pub(super) fn is_forgotten(&self, ticket: u64) -> Option<Result<u64>> {
        let over = || {
            Err(Error::new(
                NMC_ERR_CANCELLED,
                "nobody knows what came of it: the tier was opened anew, or it is long ago",
            ))
        };
        (!self.is_pending(ticket)).then(over)
    }

    pub(super) fn finish(&mut self, ticket: u64, result: Result<u64>) {
        self.at.retain(|other| *other != ticket);
        if self.results.len() >= RESULTS {
            self.results.pop_front();
        }
        self.results.push_back((ticket, result));
    }
}

/// Jobs come first, but not always: whoever has one done after the other does not keep the thread from writing ahead. The rest gets a
/// turn when jobs have had as much time as its last turn took.
pub(super) struct Turns {
    rest_began: Instant,
    pub(super) rest_ended: Instant,
}

impl Turns {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self { rest_began: now, rest_ended: now }
    }

    /// Whether what is no job goes before the next one.
    pub(super) fn is_of_the_rest(&self, now: Instant) -> bool {
        now.duration_since(self.rest_ended) >= self.rest_ended.duration_since(self.rest_began)
    }

    pub(super) fn begin_rest(&mut self) {
        self.rest_began = Instant::now();
    }

    pub(super) fn end_rest(&mut self) {
        self.rest_ended = Instant::now();
    }
}

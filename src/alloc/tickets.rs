//! Runs of blocks for those who can wait: a request gets a ticket and its turn, and is served when frees make room. First
//! come, first served, strictly: a small request behind a large one waits until the large one is served or given up, so
//! that a large one is not kept waiting by small ones for ever. Nothing blocks; who holds a ticket asks.

use super::blocks::Blocks;
use super::runs::Run;
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::{NMC_ERR_NO_SPACE, NMC_ERR_NOT_FOUND};
use std::collections::{HashMap, VecDeque};

/// Most tickets that are open at a time: waiting, or served and not asked for.
pub const MAX_TICKETS: usize = 1 << 16;

#[derive(Default)]
pub struct Tickets {
    last: u64,
    /// Ticket and blocks wanted, in order of arrival, so also in order of tickets.
    waiting: VecDeque<(u64, u32)>,
    /// What is ready to be fetched, or why it never will be.
    ended: HashMap<u64, Result<Run>>,
}

impl Tickets {
    /// A ticket for a run of `count` blocks, which may be served at once. A count that is more than all blocks is
    /// `NMC_ERR_NO_SPACE`, none at all `NMC_ERR_INVALID_ARG`, too many tickets `NMC_ERR_LIMIT`.
    pub fn request(&mut self, blocks: &mut Blocks, count: u32) -> Result<u64> {
        if count == 0 {
            crate::bail!(NMC_ERR_INVALID_ARG, "a request for no blocks");
        }
        if count > blocks.total() {
            return Err(too_many(count, blocks.total()));
        }
        if self.waiting.len() + self.ended.len() >= MAX_TICKETS {
            crate::bail!(NMC_ERR_LIMIT, "{MAX_TICKETS} requests are open; poll or cancel some");
        }
        // Serving it later cannot fail for want of memory.
        memory::reserve_queue(&mut self.waiting, 1)?;
        memory::reserve_map(&mut self.ended, self.waiting.len() + 1)?;
        self.last += 1;
        self.waiting.push_back((self.last, count));
        self.serve(blocks);
        Ok(self.last)
    }

    /// The run of a ticket, which ends with that; `None` while it waits. Tickets that are not open are
    /// `NMC_ERR_NOT_FOUND`; one that will never be served, since there are fewer blocks now, is `NMC_ERR_NO_SPACE`, and
    /// ends, too.
    pub fn poll(&mut self, ticket: u64) -> Result<Option<Run>> {
        match self.ended.remove(&ticket) {
            Some(ended) => ended.map(Some),
            None if self.place(ticket).is_some() => Ok(None),
            None => Err(unknown(ticket)),
        }
    }

    /// Gives a ticket up; blocks that it already has are free again. A ticket that is not open is `NMC_ERR_NOT_FOUND`.
    pub fn cancel(&mut self, blocks: &mut Blocks, ticket: u64) -> Result<()> {
        if let Some(place) = self.place(ticket) {
            self.waiting.remove(place);
        } else {
            match self.ended.remove(&ticket) {
                Some(Ok(run)) => blocks.give_run(run)?,
                Some(Err(_)) => {}
                None => return Err(unknown(ticket)),
            }
        }
        self.serve(blocks);
        Ok(())
    }

    /// Serves those whose turn it is; after every change that may have made room.
    #[inline]
    pub fn serve(&mut self, blocks: &mut Blocks) {
        if !self.waiting.is_empty() {
            self.serve_some(blocks);
        }
    }

    fn serve_some(&mut self, blocks: &mut Blocks) {
        while let Some((ticket, count)) = self.waiting.front().copied() {
            let ended = if count > blocks.total() {
                Err(too_many(count, blocks.total()))
            } else {
                let Some(run) = blocks.take_run(count) else { return };
                Ok(run)
            };
            self.waiting.pop_front();
            self.ended.insert(ticket, ended);
        }
    }

    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Requests that are served and not fetched.
    pub fn ready(&self) -> usize {
        self.ended.len()
    }

    fn place(&self, ticket: u64) -> Option<usize> {
        self.waiting.binary_search_by_key(&ticket, |(ticket, _)| *ticket).ok()
    }
}

#[cold]
fn too_many(count: u32, total: u32) -> Error {
    Error::new(NMC_ERR_NO_SPACE, format!("{count} blocks are more than all {total}"))
}

#[cold]
fn unknown(ticket: u64) -> Error {
    Error::new(NMC_ERR_NOT_FOUND, format!("ticket {ticket} is not open: it was fetched or cancelled, or never given"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use super::*;
    use crate::base::status::{NMC_ERR_INVALID_ARG, NMC_ERR_LIMIT};

    fn status<T>(result: Result<T>) -> i32 {
        result.err().map_or(0, |error| error.status)
    }

    #[test]
    fn a_small_request_waits_behind_a_large_one() {
        let mut blocks = Blocks::new(100).unwrap();
        let mut tickets = Tickets::default();
        let held = blocks.take_run(90).unwrap();
        let large = tickets.request(&mut blocks, 50).unwrap();
        let small = tickets.request(&mut blocks, 5).unwrap();
        assert_eq!((tickets.poll(large), tickets.poll(small), tickets.waiting()), (Ok(None), Ok(None), 2));
        blocks.give_run(held).unwrap();
        tickets.serve(&mut blocks);
        assert_eq!((tickets.waiting(), tickets.ready(), blocks.used()), (0, 2, 55));
        assert_eq!(tickets.poll(large).unwrap().map(|run| run.count), Some(50));
        assert_eq!(tickets.poll(small).unwrap().map(|run| run.count), Some(5));
        assert_eq!(status(tickets.poll(small)), NMC_ERR_NOT_FOUND);
    }

    #[test]
    fn a_ticket_that_is_given_up_leaks_nothing_and_lets_the_next_one_go() {
        let mut blocks = Blocks::new(10).unwrap();
        let mut tickets = Tickets::default();
        let served = tickets.request(&mut blocks, 8).unwrap();
        let waiting = tickets.request(&mut blocks, 9).unwrap();
        let small = tickets.request(&mut blocks, 2).unwrap();
        tickets.cancel(&mut blocks, waiting).unwrap();
        assert!(tickets.poll(small).unwrap().is_some());
        tickets.cancel(&mut blocks, served).unwrap();
        assert_eq!((blocks.used(), tickets.ready(), tickets.waiting()), (2, 0, 0));
        for ticket in [served, waiting, small, 0, u64::MAX] {
            assert_eq!(status(tickets.cancel(&mut blocks, ticket)), NMC_ERR_NOT_FOUND);
        }
    }

    #[test]
    fn what_can_never_be_is_refused_also_when_the_blocks_become_fewer() {
        let mut blocks = Blocks::new(10).unwrap();
        let mut tickets = Tickets::default();
        assert_eq!(status(tickets.request(&mut blocks, 0)), NMC_ERR_INVALID_ARG);
        assert_eq!(status(tickets.request(&mut blocks, 11)), NMC_ERR_NO_SPACE);
        let held = blocks.take_run(5).unwrap();
        let large = tickets.request(&mut blocks, 8).unwrap();
        let small = tickets.request(&mut blocks, 1).unwrap();
        assert_eq!(blocks.shrink(7), Ok(true));
        tickets.serve(&mut blocks);
        assert_eq!((status(tickets.poll(large)), status(tickets.poll(large))), (NMC_ERR_NO_SPACE, NMC_ERR_NOT_FOUND));
        assert!(tickets.poll(small).unwrap().is_some());
        blocks.give_run(held).unwrap();
    }

    #[test]
    fn there_is_a_limit_to_open_tickets() {
        let mut blocks = Blocks::new(1).unwrap();
        let mut tickets = Tickets::default();
        let first = tickets.request(&mut blocks, 1).unwrap();
        for _ in 1..MAX_TICKETS {
            tickets.request(&mut blocks, 1).unwrap();
        }
        assert_eq!(status(tickets.request(&mut blocks, 1)), NMC_ERR_LIMIT);
        tickets.cancel(&mut blocks, first).unwrap();
        assert_eq!((blocks.used(), tickets.ready(), tickets.waiting()), (1, 1, MAX_TICKETS - 2));
    }
}

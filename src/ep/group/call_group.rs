//! Calls for several ranks of one process between `begin` and `end` go out together: on a GPU in one launch, on the CPU
//! with all sends before the first wait, so that one thread can serve all ranks.

use super::{Ep, run};
use crate::base::error::Result;
use crate::base::memory;
use crate::cuda::GivenStream;
use crate::ep::calls::{Call, CallArgs};
use crate::layout::ep::RankDesc;
use std::cell::RefCell;
use std::sync::Arc;

/// A call that waits for the end of its group.
pub(super) struct Pending {
    pub(super) ep: Arc<Ep>,
    pub(super) stream: GivenStream,
    pub(super) call: Call,
}

/// The calls of a group, and room for what its end does with them: that must not fail half-way for want of memory.
#[derive(Default)]
struct Open {
    calls: Vec<Pending>,
    turn: Vec<Pending>,
    rest: Vec<Pending>,
    ranks: Vec<(RankDesc, CallArgs)>,
}

impl Open {
    fn make_room(&mut self) -> Result<()> {
        let all = self.calls.len() + 1;
        memory::reserve(&mut self.calls, 1)?;
        memory::reserve(&mut self.turn, all)?;
        memory::reserve(&mut self.rest, all)?;
        memory::reserve(&mut self.ranks, all)
    }
}

thread_local! {
    static OPEN: RefCell<Option<Open>> = const { RefCell::new(None) };
}

/// Whether this thread has begun a group.
pub(in crate::ep) fn open() -> bool {
    OPEN.try_with(|open| open.borrow().is_some()).unwrap_or(false)
}

/// Begins a group on this thread.
pub(crate) fn begin() -> Result<()> {
    OPEN.with(|open| {
        let mut open = open.borrow_mut();
        if open.is_some() {
            crate::bail!(NMC_ERR_INVALID_ARG, "this thread has begun a group already; end it first");
        }
        *open = Some(Open::default());
        Ok(())
    })
}

/// Runs `call`, or keeps it for the end of the group.
pub(super) fn submit(ep: &Arc<Ep>, stream: GivenStream, call: Call) -> Result<()> {
    let kept = OPEN.with(|open| -> Result<bool> {
        let mut open = open.borrow_mut();
        let Some(open) = open.as_mut() else { return Ok(false) };
        open.make_room()?;
        open.calls.push(Pending { ep: Arc::clone(ep), stream, call });
        Ok(true)
    })?;
    if kept { Ok(()) } else { run::run(&[Pending { ep: Arc::clone(ep), stream, call }], &mut Vec::new()) }
}

/// Ends the group: the first calls of all ranks go out together, then the second ones, and so on.
pub(crate) fn end() -> Result<()> {
    let Some(Open { mut calls, mut turn, mut rest, mut ranks }) = OPEN.with(|open| open.borrow_mut().take()) else {
        crate::bail!(NMC_ERR_INVALID_ARG, "this thread has begun no group");
    };
    while !calls.is_empty() {
        for call in calls.drain(..) {
            let fits = turn.first().is_none_or(|first| {
                first.call.goes_with(&call.call) && first.ep.goes_with(&call.ep) && first.stream == call.stream
            });
            let again = turn.iter().chain(&rest).any(|other| Arc::ptr_eq(&other.ep, &call.ep));
            if fits && !again { turn.push(call) } else { rest.push(call) }
        }
        run::run(&turn, &mut ranks)?;
        turn.clear();
        std::mem::swap(&mut calls, &mut rest);
    }
    Ok(())
}

//! A client's pin slots. Shared memory holds what a slot pins; which slots are free is the client's own affair. Threads
//! begin their search in different places, so that they rarely meet.

use crate::base::error::Result;
use crate::base::memory;
use crate::layout::store::View;
use crate::sync::{object, thread_slot};
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

const FREE: u8 = 0;
const TAKEN: u8 = 1;
/// Given to a stream, which will empty the word.
const STREAM: u8 = 2;
/// Set aside by the program, for a kernel or a captured graph.
const RESERVED: u8 = 3;
/// Being given back.
const ENDING: u8 = 4;
/// Slots of a thread before those of the next begin: a cache line.
const STRIDE: usize = 8;

/// Which slots of a client are free.
pub struct Slots {
    states: Box<[AtomicU8]>,
    /// How often each slot was taken: a view of an earlier turn is not one of this, though it pins the same object.
    turns: Box<[AtomicU64]>,
    /// As far as the master has been told to look.
    high: AtomicU64,
}

static THREADS: AtomicUsize = AtomicUsize::new(0);

/// A small number of the calling thread.
#[inline(always)]
pub fn thread_number() -> usize {
    // 0 is a thread that has none yet.
    let known = thread_slot::number();
    (if known == 0 { new_number() } else { known }) - 1
}

#[cold]
fn new_number() -> usize {
    let number = THREADS.fetch_add(1, Ordering::Relaxed) % (1 << 20) + 1;
    thread_slot::set_number(number);
    number
}

impl Slots {
    /// `count` free slots.
    pub fn new(count: u32) -> Result<Self> {
        const { assert!(FREE == 0) };
        Ok(Self {
            states: memory::zeroed(count as usize)?.into_boxed_slice(),
            turns: memory::zeroed(count as usize)?.into_boxed_slice(),
            high: AtomicU64::new(0),
        })
    }

    /// Takes a slot whose word is empty; `None` when all are in use.
    #[inline(always)]
    pub fn take(&self, view: &View<'_>, client: u32) -> Option<u32> {
        let (high_water, words) = view.pins(client)?;
        let count = self.states.len().min(words.len());
        let first = thread_number() * STRIDE;
        let start = if first < count { first } else { first % count.max(1) };
        for step in 0..count {
            let at = if start + step < count { start + step } else { start + step - count };
            let state = self.states[at].load(Ordering::Relaxed);
            // A slot that was left to a stream is free again when the stream has emptied it.
            let free = state == FREE || (state == STREAM && object::scan(&words[at]) == 0);
            if free && self.states[at].compare_exchange(state, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                self.next_turn(at);
                let needed = at as u64 + 1;
                if self.high.load(Ordering::Acquire) < needed {
                    // Before the slot is written: whoever scans after a later fence looks this far.
                    high_water.fetch_max(needed, Ordering::Relaxed);
                    self.high.fetch_max(needed, Ordering::Release);
                }
                return u32::try_from(at).ok();
            }
        }
        None
    }

    #[inline(always)]
    fn next_turn(&self, slot: usize) {
        if let Some(turn) = self.turns.get(slot) {
            // The slot is the caller's: nobody else counts.
            turn.store(turn.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    }

    /// A slot that was set aside is used once more.
    pub fn reuse(&self, slot: u32) {
        self.next_turn(slot as usize);
    }

    /// Which use of the slot this is.
    #[inline(always)]
    #[must_use]
    pub fn turn(&self, slot: u32) -> u64 {
        self.turns.get(slot as usize).map_or(0, |turn| turn.load(Ordering::Relaxed))
    }

    /// Gives a slot back, whose word is empty. One that was set aside stays so.
    #[inline(always)]
    pub fn give_back(&self, slot: u32) {
        if let Some(state) = self.states.get(slot as usize)
            && matches!(state.load(Ordering::Relaxed), TAKEN | ENDING)
        {
            state.store(FREE, Ordering::Release);
        }
    }

    #[inline(always)]
    fn exchange(&self, slot: u32, from: u8, to: u8) -> bool {
        let state = self.states.get(slot as usize);
        state.is_some_and(|state| state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok())
    }

    /// Claims the end of a pin, so that of two threads that unpin one view one succeeds.
    #[inline(always)]
    pub fn begin_end(&self, slot: u32) -> bool {
        self.exchange(slot, TAKEN, ENDING) || self.is_set_aside(slot)
    }

    /// It was not the caller's pin after all.
    pub fn undo_end(&self, slot: u32) {
        self.exchange(slot, ENDING, TAKEN);
    }

    /// Leaves a slot to a stream that will empty it. One that was set aside stays so.
    pub fn give_to_stream(&self, slot: u32) {
        self.exchange(slot, TAKEN, STREAM);
    }

    /// Sets a taken slot aside.
    pub fn set_aside(&self, slot: u32) {
        self.exchange(slot, TAKEN, RESERVED);
    }

    /// Ends that; false if it was not set aside.
    pub fn end_reservation(&self, slot: u32) -> bool {
        self.exchange(slot, RESERVED, STREAM)
    }

    /// Whether the slot is set aside.
    #[must_use]
    pub fn is_set_aside(&self, slot: u32) -> bool {
        self.states.get(slot as usize).is_some_and(|state| state.load(Ordering::Relaxed) == RESERVED)
    }

    /// Whether the program holds the slot.
    #[inline(always)]
    #[must_use]
    pub fn is_held(&self, slot: u32) -> bool {
        let state = self.states.get(slot as usize).map_or(FREE, |state| state.load(Ordering::Relaxed));
        state == TAKEN || state == RESERVED
    }
}

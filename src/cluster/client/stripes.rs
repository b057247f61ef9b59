//! A value in parts: each is a call of its own, some of them side by side. They have the memory of the call that they are of, and end with it: it goes on,
//! or has ended, when nobody moves a byte of theirs any more.

use super::cx::Cx;
use super::words::Call;
use crate::base::error::Result;
use crate::base::memory;
use crate::cluster::types::{Cut, MAX_PARTS, Millis, ObjectKey, PutId};
use crate::cluster::wire::{Extent, Find, MAX_KEYS};

/// Parts of a value that are under way together.
pub(super) const TOGETHER: u64 = 16;

/// Bit of the number of a call that is part of another.
const PART: u64 = 1 << 63;
/// Bits of such a number that say which part it is.
const BITS: u32 = 14;

/// The number of a part of a call.
pub(super) fn number_of(call: u64, part: u64) -> u64 {
    PART | call << BITS | part
}

/// The call that one is part of, and which part.
pub(super) fn whole_of(number: u64) -> Option<(u64, u64)> {
    (number & PART != 0).then_some(((number & !PART) >> BITS, number & ((1 << BITS) - 1)))
}

/// Numbers that parts of a call have, if it is none itself.
pub(super) fn numbers(call: u64) -> Option<std::ops::RangeInclusive<u64>> {
    whole_of(call).is_none().then(|| number_of(call, 0)..=number_of(call, (1 << BITS) - 1))
}

/// A part of memory that is named in pieces; nothing if it is not in there.
pub(super) fn part_of(into: &[Extent], mut offset: u64, mut bytes: u64) -> Result<Vec<Extent>> {
    let mut part = Vec::new();
    for extent in into {
        let before = offset.min(extent.length);
        let length = (extent.length - before).min(bytes);
        if length > 0 {
            memory::push(&mut part, Extent { offset: extent.offset + before, length, ..extent.clone() })?;
        }
        (offset, bytes) = (offset - before, bytes - length);
    }
    Ok(if bytes == 0 { part } else { Vec::new() })
}

/// A part that is to begin.
pub(super) struct Begun {
    /// Which.
    pub part: u64,
    /// Where its bytes are in the memory of the call.
    pub offset: u64,
    pub deadline: Millis,
    pub call: Call,
}

/// What is to happen to the parts of a call when an event was handled.
#[derive(Default)]
pub(super) struct Wanted {
    /// Those under way end, first.
    pub end: bool,
    /// These begin.
    pub begin: Vec<Begun>,
}

/// How far the parts of a value are.
pub(super) struct Parts {
    pub cut: Cut,
    whole: PutId,
    deadline: Millis,
    next: u64,
    under_way: u64,
}

impl Parts {
    pub(super) fn new(cut: Cut, whole: PutId, deadline: Millis) -> Self {
        Self { cut, whole, deadline, next: 0, under_way: 0 }
    }

    /// Begins as many as may be under way; `call` makes one of a key, and of where its bytes are and how many.
    pub(super) fn go_on(&mut self, cx: &mut Cx<'_>, call: impl Fn(ObjectKey, u64, u64) -> Result<Call>) -> Result<()> {
        while self.under_way < TOGETHER && self.next < self.cut.count {
            let (offset, bytes) = self.cut.part(self.next);
            let call = call(ObjectKey::part(self.whole, self.next)?, offset, bytes)?;
            memory::push(&mut cx.parts.begin, Begun { part: self.next, offset, deadline: self.deadline, call })?;
            self.next += 1;
            self.under_way += 1;
        }
        Ok(())
    }

    /// One has ended.
    pub(super) fn ended(&mut self) {
        self.under_way = self.under_way.saturating_sub(1);
    }

    /// Whether all have.
    pub(super) fn are_over(&self) -> bool {
        self.next == self.cut.count && self.under_way == 0
    }

    /// Asks where those are of which that is not remembered, many at once. Gives how many questions there are.
    pub(super) fn ask(&self, cx: &mut Cx<'_>) -> Result<u64> {
        let mut unknown = Vec::new();
        if (cx.shared.config.cache as u64) < self.cut.count {
            // It would not be remembered.
            return Ok(0);
        }
        for number in 0..self.cut.count {
            let key = ObjectKey::part(self.whole, number)?;
            if cx.shared.cache.find(&key).is_none() {
                memory::push(&mut unknown, key)?;
            }
        }
        let mut asked = 0;
        while unknown.len() > 1 {
            let keys = unknown.split_off(unknown.len() - unknown.len().min(MAX_KEYS));
            let call = Call::Ask(Box::new(Find { keys, missed: Vec::new() }.into()));
            let part = MAX_PARTS + asked;
            memory::push(&mut cx.parts.begin, Begun { part, offset: 0, deadline: self.deadline, call })?;
            asked += 1;
        }
        Ok(asked)
    }
}

//! The entry of a value that lies on disk: four words that the master writes and everybody reads, in memory that readers
//! cannot write. The first word says whether it lives, and in which epoch; the rest is believed only if the first word is the
//! same before and after. Entries are found through `index`. Model-checked in `disk_entry_model.rs` on these functions.

use super::atomic::{AtomicU64, Ordering, fence};

/// The words of an entry.
pub type Words = [AtomicU64; 4];

/// Nothing lies where the entry says.
pub const ENDED: u64 = 0;
/// The value can be read.
pub const LIVE: u64 = 1;

/// The first word of an entry.
#[must_use]
pub const fn first(state: u64, epoch: u64) -> u64 {
    state << 56 | epoch
}

/// The epoch in a first word.
#[must_use]
pub const fn epoch(first: u64) -> u64 {
    first & ((1 << 56) - 1)
}

/// Whether a first word is that of an entry that lives.
#[must_use]
pub const fn is_live(first: u64) -> bool {
    first >> 56 == LIVE
}

/// All words of an entry, if it lives.
#[inline]
pub fn read(words: &Words) -> Option<[u64; 4]> {
    loop {
        let now = words[0].load(Ordering::Acquire);
        if !is_live(now) {
            return None;
        }
        let rest = [1, 2, 3].map(|i: usize| words[i].load(Ordering::Relaxed));
        if is_still(words, now) {
            return Some([now, rest[0], rest[1], rest[2]]);
        }
        // Not `None`: who hears that an entry has ended must see what came before its end, and the last look saw none of it.
    }
}

/// Whether the first word is still this one: what was read since then, of the entry or of the disk, belongs to it.
#[inline]
pub fn is_still(words: &Words, wanted: u64) -> bool {
    fence(Ordering::Acquire);
    words[0].load(Ordering::Relaxed) == wanted
}

/// Master: fills an entry that does not live. From then on it does.
pub fn fill(words: &Words, wanted: [u64; 4]) {
    // Who sees a field of the new entry sees that the former one has ended.
    fence(Ordering::Release);
    for (word, value) in words.iter().zip(wanted).skip(1) {
        word.store(value, Ordering::Relaxed);
    }
    words[0].store(wanted[0], Ordering::Release);
}

/// What takes the place of an entry that is about to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Move {
    /// Another value.
    Replaced,
    /// The same value, which was read into memory before. These are counted in the upper half, for those whom only they concern.
    Same,
}

impl Move {
    /// What it adds to the count.
    #[must_use]
    pub fn step(self) -> u64 {
        match self {
            Self::Replaced => 1,
            Self::Same => 1 << 32,
        }
    }
}

/// Master: what takes the place of an entry is in memory by now, and the entry is about to end. Whoever looked at this count, then
/// at memory, then at the entry, and found nothing, sees by the count that there may be something now.
pub fn count_move(moved: &AtomicU64, how: Move) {
    moved.store(moved.load(Ordering::Relaxed).wrapping_add(how.step()), Ordering::Release);
}

/// Of a count, the values that ended on disk and stayed in memory. That of the others may carry into it, which is no harm.
pub fn moves_of_same(moved: u64) -> u64 {
    moved >> 32
}

/// Master: the entry ends.
pub fn end(words: &Words) {
    let now = words[0].load(Ordering::Relaxed);
    words[0].store(first(ENDED, epoch(now)), Ordering::Release);
}

/// Master: keeps a number of its own in an entry that does not live.
pub fn set_link(words: &Words, link: u64) {
    fence(Ordering::Release);
    words[1].store(link, Ordering::Relaxed);
}

/// Master: the inverse.
pub fn link(words: &Words) -> u64 {
    words[1].load(Ordering::Relaxed)
}

//! The words of an object: how it is published, pinned and killed. The master alone writes the *control* word, the
//! writer of an object its *published* word, and a reader its own pin *slots*. Nothing here loops or blocks, and nothing
//! reads a field of an object before the words say that it may. Model-checked in `object_model` on these functions.

use super::atomic::{AtomicU64, Ordering, fence, full_fence};
use crate::base::point::reach;

/// The header is free, or being filled by the master.
pub const RESERVED: u64 = 0;
/// The header is complete; its writer may be storing pages.
pub const WRITING: u64 = 1;
/// The master has seen that the object is published.
pub const READY: u64 = 2;
/// Nobody may begin to read it.
pub const DEAD: u64 = 3;

/// Highest index plus one that fits a pin slot.
pub const MAX_INDEX: u32 = 0xff_fffe;

/// Largest epoch; they start at 1 and only grow.
pub const MAX_EPOCH: u64 = (1 << 56) - 1;

const EPOCH_SHIFT: u32 = 8;
const STATE_MASK: u64 = 0xf;

/// The control word of a state and an epoch.
#[must_use]
pub const fn control(state: u64, epoch: u64) -> u64 {
    epoch << EPOCH_SHIFT | state
}

/// The state in a control word.
#[must_use]
pub const fn state(word: u64) -> u64 {
    word & STATE_MASK
}

/// The epoch in a control word.
#[must_use]
pub const fn epoch(word: u64) -> u64 {
    word >> EPOCH_SHIFT
}

/// Whether readers may look at an object with this control word, once it is published.
#[must_use]
pub const fn is_live(word: u64) -> bool {
    state(word) == WRITING || state(word) == READY
}

/// The value of a pin slot: `valid:1 | segment:10 | index:24 | epoch_low:29`. The epoch is a hint for people.
#[must_use]
pub const fn pin_word(index: u32, epoch: u64) -> u64 {
    1 << 63 | (index as u64 & 0xff_ffff) << 29 | (epoch & 0x1fff_ffff)
}

/// The header that a pin slot holds; `None` if it is empty.
#[must_use]
pub const fn pinned_index(slot: u64) -> Option<u32> {
    if slot >> 63 == 1 { Some((slot >> 29 & 0xff_ffff) as u32) } else { None }
}

/// Announces in `slot` that the object is in use and checks that it is readable in `epoch`. On success everything of
/// the object stays as it is until [`unpin`]; on failure the slot is empty again.
#[inline(always)]
pub fn pin(slot: &AtomicU64, value: u64, word: &AtomicU64, published: &AtomicU64, epoch: u64) -> bool {
    if hold(slot, value, word, epoch) && published.load(Ordering::Acquire) == epoch {
        return true;
    }
    unpin(slot);
    false
}

/// Like [`pin`], for an object whose first pages may be ready before all of it is: what is published is for the
/// caller to check. On failure the slot is not emptied.
#[inline(always)]
pub fn hold(slot: &AtomicU64, value: u64, word: &AtomicU64, wanted: u64) -> bool {
    slot.store(value, Ordering::Release);
    full_fence();
    reach("reader.held");
    let now = word.load(Ordering::Acquire);
    is_live(now) && epoch(now) == wanted
}

/// Ends a use. It tells nobody: the master looks at the slots when it needs the memory.
#[inline(always)]
pub fn unpin(slot: &AtomicU64) {
    slot.store(0, Ordering::Release);
}

/// The epoch in which the object is readable now, as a hint: for [`pin`], or for a look that [`still`] confirms.
#[inline(always)]
pub fn readable(word: &AtomicU64, published: &AtomicU64) -> Option<u64> {
    let now = word.load(Ordering::Acquire);
    (is_live(now) && published.load(Ordering::Acquire) == epoch(now)).then_some(epoch(now))
}

/// Whether what was read (with atomics) since [`readable`] gave `wanted` belongs to that epoch.
#[inline(always)]
pub fn still(word: &AtomicU64, wanted: u64) -> bool {
    fence(Ordering::Acquire);
    let now = word.load(Ordering::Relaxed);
    is_live(now) && epoch(now) == wanted
}

/// The writer's last store: all bytes of the object are there.
#[inline(always)]
pub fn publish(published: &AtomicU64, epoch: u64) {
    published.store(epoch, Ordering::Release);
}

/// Publishes, and tells whether the object was still wanted. If not, the master may not know that the writer is done: it has
/// to be told. Not for an object that a kernel has published: its header may belong to another one by now, whose publication
/// must not be overwritten; the caller looks first.
#[inline(always)]
pub fn commit(word: &AtomicU64, published: &AtomicU64, wanted: u64) -> bool {
    publish(published, wanted);
    reach("writer.published");
    full_fence();
    let now = word.load(Ordering::Acquire);
    is_live(now) && epoch(now) == wanted
}

/// Master: the fields are complete, the writer may begin and readers may look for the publication.
pub fn open(word: &AtomicU64, epoch: u64) {
    word.store(control(WRITING, epoch), Ordering::Release);
}

/// Master: the header is free, or about to be filled.
pub fn reserve(word: &AtomicU64, epoch: u64) {
    word.store(control(RESERVED, epoch), Ordering::Relaxed);
    // Who sees a field that is stored after this sees the control word too.
    fence(Ordering::Release);
}

/// Master: if the writer is done, says so in the control word.
pub fn promote(word: &AtomicU64, published: &AtomicU64, epoch: u64) -> bool {
    let done = published.load(Ordering::Acquire) == epoch;
    if done {
        word.store(control(READY, epoch), Ordering::Release);
    }
    done
}

/// Master: nobody may begin to read. After one [`settle`], [`pinned_index`] of every slot tells who still does. Who sees
/// it sees what the index led to before: the object that took its place.
pub fn kill(word: &AtomicU64, epoch: u64) {
    word.store(control(DEAD, epoch), Ordering::Release);
}

/// Master: orders the kills before it against the scan and the look at `published` after it.
pub fn settle() {
    fence(Ordering::SeqCst);
}

/// Master, after [`settle`]: what a slot holds.
#[inline(always)]
pub fn scan(slot: &AtomicU64) -> u64 {
    slot.load(Ordering::Acquire)
}

/// Master, after [`settle`]: whether the writer of a killed object was done. If not, it may still be storing pages, and
/// neither they nor the header can be reused until it says that it stopped, or is gone.
pub fn finished(published: &AtomicU64, epoch: u64) -> bool {
    published.load(Ordering::Acquire) == epoch
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn words_hold_what_was_put_into_them() {
        for epoch_in in [1, 0x1234_5678_9abc, MAX_EPOCH] {
            for state_in in [RESERVED, WRITING, READY, DEAD] {
                let word = control(state_in, epoch_in);
                assert_eq!((state(word), epoch(word)), (state_in, epoch_in));
            }
            for index in [0, 1, 0xff_ffff] {
                assert_eq!(pinned_index(pin_word(index, epoch_in)), Some(index));
            }
        }
        assert_eq!(pinned_index(0), None);
    }
}

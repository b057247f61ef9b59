//! A hash table of atomic words that one master writes and everybody reads, in memory that readers cannot write. A bucket
//! is one word {tag, index}; entries never move; a deleted one leaves a tombstone. Tombstones are purged by building
//! the second table and switching the root to it. A reader that misses looks at the root again, since the table it was in
//! may have been cleared under it. A hit is a candidate only: the caller confirms it against the full key.
//! Model-checked in `index_model.rs` on these functions.

use super::atomic::{AtomicU64, Ordering, fence};

/// A bucket that was never used since the table was cleared.
pub const EMPTY: u64 = 0;
/// A bucket whose entry was deleted.
pub const TOMBSTONE: u64 = 1 << 34;

const INDEX_MASK: u64 = 0xffff_ffff;
/// Highest index plus one that fits an entry.
pub const MAX_INDEX: u32 = u32::MAX;
/// How often a reader starts again because the table was switched.
const RETRIES: usize = 16;

/// Both tables, and the count of switches that tells which one is in use.
#[derive(Clone, Copy)]
pub struct Tables<'a> {
    /// Counts switches.
    pub root: &'a AtomicU64,
    /// The table in use is `root` modulo 2.
    pub tables: [&'a [AtomicU64]; 2],
}

/// What a search found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// An entry that the caller confirmed.
    At(u32),
    /// No such entry.
    Nothing,
    /// The table was switched again and again during the search.
    Busy,
}

/// The word of an entry: 30 bits of the hash and the index, plus one so that it is never [`EMPTY`].
#[must_use]
pub const fn entry(hash: u64, index: u32) -> u64 {
    hash >> 34 << 34 | (index as u64 + 1)
}

/// The index in an entry; `None` for [`EMPTY`] and [`TOMBSTONE`].
#[must_use]
#[allow(clippy::cast_possible_truncation, reason = "32 bits")]
pub const fn index_of(word: u64) -> Option<u32> {
    match word & INDEX_MASK {
        0 => None,
        n => Some((n - 1) as u32),
    }
}

const fn same_tag(word: u64, hash: u64) -> bool {
    (word ^ hash) >> 34 == 0
}

/// The buckets of a table in the order in which `hash` looks at them. Tables have a power of two of buckets.
#[inline(always)]
pub fn path(buckets: usize, hash: u64) -> impl Iterator<Item = usize> {
    let mask = buckets.wrapping_sub(1);
    #[allow(clippy::cast_possible_truncation, reason = "masked to the table")]
    let start = hash as usize & mask;
    (0..buckets).map(move |step| (start + step) & mask)
}

/// Looks for an entry of `hash` that `confirm` accepts. `root` counts switches; the table in use is `root` modulo 2.
#[inline(always)]
pub fn find(root: &AtomicU64, tables: &[&[AtomicU64]; 2], hash: u64, mut confirm: impl FnMut(u32) -> bool) -> Found {
    'search: for _ in 0..RETRIES {
        let seen = root.load(Ordering::Acquire);
        let table = tables[(seen & 1) as usize];
        for at in path(table.len(), hash) {
            let Some(bucket) = table.get(at) else { break };
            let word = bucket.load(Ordering::Acquire);
            if word == EMPTY {
                break;
            }
            if same_tag(word, hash)
                && let Some(index) = index_of(word)
            {
                // It may be dead because another object took its place, which is in this bucket then. That one may have been replaced as
                // well by now, by one that has the index of the first: the bucket is as before, and only a second look tells.
                for _ in 0..2 {
                    if confirm(index) {
                        return Found::At(index);
                    }
                    if bucket.load(Ordering::Acquire) != word {
                        continue 'search;
                    }
                }
            }
        }
        fence(Ordering::Acquire);
        if root.load(Ordering::Relaxed) == seen {
            return Found::Nothing;
        }
    }
    Found::Busy
}

/// The entry that a search for `hash` will probably lead to. A hint: nothing may be concluded from it.
#[inline(always)]
pub fn guess(table: &[AtomicU64], hash: u64) -> Option<u32> {
    for at in path(table.len(), hash).take(4) {
        let word = table[at].load(Ordering::Relaxed);
        if word == EMPTY {
            break;
        }
        if same_tag(word, hash) {
            return index_of(word);
        }
    }
    None
}

/// Master: puts an entry into the first bucket on its path that is free. Gives the bucket and whether it was a tombstone;
/// `None` when the table is full.
pub fn insert(table: &[AtomicU64], hash: u64, index: u32) -> Option<(usize, bool)> {
    let at = path(table.len(), hash).find(|at| index_of(table[*at].load(Ordering::Relaxed)).is_none())?;
    let was_tombstone = table[at].load(Ordering::Relaxed) != EMPTY;
    table[at].store(entry(hash, index), Ordering::Release);
    Some((at, was_tombstone))
}

/// Master: the bucket that holds exactly this entry.
#[must_use]
pub fn bucket_of(table: &[AtomicU64], hash: u64, index: u32) -> Option<usize> {
    let wanted = entry(hash, index);
    for at in path(table.len(), hash) {
        match table[at].load(Ordering::Relaxed) {
            EMPTY => return None,
            word if word == wanted => return Some(at),
            _ => {}
        }
    }
    None
}

/// Master: another object takes the place of an entry of the same hash: readers find the one or the other.
pub fn exchange(table: &[AtomicU64], bucket: usize, hash: u64, index: u32) {
    table[bucket].store(entry(hash, index), Ordering::Release);
}

/// Master: deletes an entry. Gives by how many the tombstones grew; it shrinks them when the path ends here, since a
/// tombstone before an empty bucket leads nowhere. At most `most` of those are emptied.
pub fn delete(table: &[AtomicU64], bucket: usize, most: usize) -> isize {
    let mask = table.len().wrapping_sub(1);
    table[bucket].store(TOMBSTONE, Ordering::Release);
    let mut grown = 1;
    let mut at = bucket;
    for _ in 0..most {
        let next = table[(at + 1) & mask].load(Ordering::Relaxed);
        if next != EMPTY || table[at].load(Ordering::Relaxed) != TOMBSTONE {
            break;
        }
        table[at].store(EMPTY, Ordering::Release);
        grown -= 1;
        at = at.wrapping_sub(1) & mask;
    }
    grown
}

/// Master: empties buckets of the table that is not in use.
pub fn clear(buckets: &[AtomicU64]) {
    // Between the switch away from the table and the first store into it, and on the thread that stores, which need not
    // be the one that switched: whoever sees a bucket emptied sees the switch.
    fence(Ordering::Release);
    for bucket in buckets {
        bucket.store(EMPTY, Ordering::Relaxed);
    }
}

/// Master: the other table is complete and takes over; `next` is one more than the switches so far.
pub fn switch(root: &AtomicU64, next: u64) {
    root.store(next, Ordering::Release);
}

#[cfg(all(test, not(feature = "loom")))]
#[allow(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use super::*;
    use crate::base::random::Random;

    fn table(buckets: usize) -> Vec<AtomicU64> {
        (0..buckets).map(|_| AtomicU64::new(EMPTY)).collect()
    }

    fn look(table: &[AtomicU64], hash: u64, wanted: u32) -> Found {
        let root = AtomicU64::new(0);
        find(&root, &[table, table], hash, |index| index == wanted)
    }

    #[test]
    fn entries_are_found_until_they_are_deleted_and_no_tombstone_is_lost() {
        let table = table(64);
        let mut tombstones = 0;
        let mut live: Vec<(u64, u32)> = Vec::new();
        let mut random = Random(7);
        for round in 0..20_000u32 {
            let hash = random.word();
            if live.len() < 32 && !hash.is_multiple_of(3) {
                let index = round % MAX_INDEX;
                tombstones -= isize::from(insert(&table, hash, index).unwrap().1);
                live.push((hash, index));
            } else if let Some((hash, index)) = live.pop() {
                tombstones += delete(&table, bucket_of(&table, hash, index).unwrap(), 8);
                assert_eq!(look(&table, hash, index), Found::Nothing);
            }
            for (hash, index) in &live {
                assert_eq!(look(&table, *hash, *index), Found::At(*index));
            }
            let counted = table.iter().filter(|w| w.load(Ordering::Relaxed) == TOMBSTONE).count();
            assert_eq!(tombstones, isize::try_from(counted).unwrap());
        }
    }

    /// Whoever looks may sleep between its look at an object, which is dead, and its look at the bucket.
    #[test]
    fn an_entry_that_was_replaced_twice_meanwhile_is_found() {
        let table = table(64);
        let (first, second) = (3, 4);
        let (bucket, _) = insert(&table, 9, first).unwrap();
        let word = |index: u32| table[bucket].load(Ordering::Relaxed) - u64::from(first) + u64::from(index);
        let words = [word(second), word(first)];
        for replaced in 0..=2 {
            let mut looks = 0;
            table[bucket].store(words[1], Ordering::Relaxed);
            let found = find(&AtomicU64::new(0), &[&table, &[]], 9, |index| {
                looks += 1;
                if looks == 1 {
                    words[..replaced].iter().for_each(|word| table[bucket].store(*word, Ordering::Relaxed));
                    return false;
                }
                index == if replaced == 1 { second } else { first } && replaced > 0
            });
            assert_eq!(found, [Found::Nothing, Found::At(second), Found::At(first)][replaced]);
        }
    }

    #[test]
    fn a_full_table_ends_the_search() {
        let table = table(4);
        for index in 0..4 {
            assert!(insert(&table, 0, index).is_some());
        }
        assert_eq!(insert(&table, 0, 4), None);
        assert_eq!(look(&table, 0, 9), Found::Nothing);
    }
}

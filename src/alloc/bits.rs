//! Bitsets of the allocators: plain words, bit n in word n / 64. A range of bits is handled a word at a time.

use std::ops::Range;

/// The words of a bitset that hold a range of bits, each with the mask of the bits in it.
#[inline]
pub(super) fn words(bits: Range<usize>) -> impl Iterator<Item = (usize, u64)> {
    (bits.start / 64..bits.end.div_ceil(64)).map(move |word| {
        let below = bits.start.saturating_sub(word * 64);
        let above = (word * 64 + 64).saturating_sub(bits.end);
        (word, !0 << below & !0 >> above)
    })
}

/// The first and the last word of a range that is not empty, with the masks of its bits in them; the second mask is 0 if
/// that is one word. Short ranges are the rule and begin anywhere, so this has no branch to guess.
#[inline]
fn ends(bits: &Range<usize>) -> [(usize, u64); 2] {
    let (first, last) = (bits.start / 64, (bits.end - 1) / 64);
    let (low, high) = (!0 << (bits.start % 64), !0 >> (63 - (bits.end - 1) % 64));
    let one = first == last;
    [(first, low & if one { high } else { !0 }), (last, if one { 0 } else { high })]
}

/// Whether all bits of a range, which must lie in the set, have this value.
#[inline]
fn all(set: &[u64], bits: Range<usize>, value: bool) -> bool {
    if bits.is_empty() {
        return true;
    }
    let turned = |word: usize| if value { !set[word] } else { set[word] };
    let [(first, low), (last, high)] = ends(&bits);
    turned(first) & low | turned(last) & high == 0 && (first + 1..last).all(|word| turned(word) == 0)
}

/// Whether all bits of a range, which must lie in the set, are 1.
#[inline]
pub(super) fn all_set(set: &[u64], bits: Range<usize>) -> bool {
    all(set, bits, true)
}

/// Whether all bits of a range, which must lie in the set, are 0.
#[inline]
pub(super) fn all_clear(set: &[u64], bits: Range<usize>) -> bool {
    all(set, bits, false)
}

/// Turns the bits of a range over.
#[inline]
pub(super) fn flip(set: &mut [u64], bits: Range<usize>) {
    if bits.is_empty() {
        return;
    }
    let [(first, low), (last, high)] = ends(&bits);
    set[first] ^= low;
    set[last] ^= high;
    if last > first + 1 {
        flip_words(&mut set[first + 1..last]);
    }
}

/// Apart, so that short ranges do not carry a loop with them: 5 ns of an operation on runs.
#[cold]
fn flip_words(words: &mut [u64]) {
    for word in words {
        *word = !*word;
    }
}

/// The first bit from `from` on that has this value, or `end` if there is none before it.
pub(super) fn next(set: &[u64], from: u32, end: u32, value: bool) -> u32 {
    let mut at = from;
    while at < end {
        let word = if value { set[at as usize / 64] } else { !set[at as usize / 64] } >> (at % 64);
        if word != 0 {
            return end.min(at + word.trailing_zeros());
        }
        match (at | 63).checked_add(1) {
            Some(next) => at = next,
            None => return end,
        }
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_set_clear_and_turned_over_exactly() {
        let mut set = vec![0; 3];
        flip(&mut set, 60..130);
        assert_eq!(set, [!0 << 60, !0, 3]);
        assert!(all_set(&set, 60..130) && !all_set(&set, 59..130) && !all_set(&set, 60..131));
        assert!(all_clear(&set, 0..60) && all_clear(&set, 130..192) && !all_clear(&set, 129..192));
        assert!(all_set(&set, 5..5) && all_clear(&set, 64..64));
    }
}

//! What an engine computes, as far as the tests of the KV cache care: words that follow from all tokens of a sequence up to a position, so that no
//! two prefixes have the same.
#![allow(dead_code, reason = "each test program uses a part of it")]

/// The word of each position.
pub fn words(salt: u64, tokens: &[u32]) -> impl Iterator<Item = u64> {
    tokens.iter().scan(salt, |last, token| {
        *last = (*last ^ u64::from(*token)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        Some(*last)
    })
}

/// The word of the last position, which is not 0.
pub fn short_word(salt: u32, tokens: &[u32]) -> u32 {
    let mix = |x: u32, token: &u32| (x ^ token).wrapping_mul(0x9e37_79b1).rotate_left(13);
    tokens.iter().fold(salt.wrapping_add(77), mix) | 1
}

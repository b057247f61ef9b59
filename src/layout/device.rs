//! The Rust side of `include/nanomc/layout.h`: what the library and device code agree on. A test reads the header and
//! compares; `NMC_LAYOUT_VERSION` changes when anything here does. Every layer may use it.

/// Offsets and sizes of the world self-test are multiples of this, in bytes.
pub const PATTERN_ALIGN: u64 = 16;

/// The word at `index` that `src_rank` writes for `dst_rank` in the self-test; `nmc_pattern_u64` in C.
#[must_use]
pub const fn pattern_u64(seed: u64, src_rank: u32, dst_rank: u32, index: u64) -> u64 {
    let mut x = seed.wrapping_add(0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(index.wrapping_add(1)));
    x ^= ((src_rank as u64) << 32) | dst_rank as u64;
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// True when counter `seen` has reached `want`, right across the wrap; `nmc_reached` in C.
#[must_use]
pub const fn reached(seen: u64, want: u64) -> bool {
    seen.wrapping_sub(want) < 1 << 63
}

#[cfg(test)]
#[allow(clippy::expect_used, reason = "a test may")]
mod tests {
    use super::*;
    use crate::layout;

    const HEADER: &str = include_str!("../../include/nanomc/layout.h");

    fn defined(name: &str) -> u64 {
        let line = HEADER.lines().find(|l| l.split_whitespace().take(2).eq(["#define", name]));
        let value = line.and_then(|l| l.split_whitespace().nth(2)).expect(name);
        value.parse().expect(name)
    }

    #[test]
    fn the_header_has_the_same_numbers() {
        assert_eq!(defined("NMC_LAYOUT_VERSION"), u64::from(layout::VERSION));
        assert_eq!(defined("NMC_CACHE_LINE"), layout::CACHE_LINE as u64);
        assert_eq!(defined("NMC_MAX_RANKS"), layout::MAX_RANKS as u64);
        assert_eq!(defined("NMC_WORD_STRIDE"), size_of::<layout::world::WordLine>() as u64);
        assert_eq!(defined("NMC_PATTERN_ALIGN"), PATTERN_ALIGN);
    }

    #[test]
    fn the_pattern_is_splitmix64_and_every_input_changes_it() {
        // The first two outputs of splitmix64 with seed 0, as published with the generator.
        assert_eq!(pattern_u64(0, 0, 0, 0), 0xE220_A839_7B1D_CDAF);
        assert_eq!(pattern_u64(0, 0, 0, 1), 0x6E78_9E6A_A1B9_65F4);
        let base = pattern_u64(7, 1, 2, 3);
        for other in
            [pattern_u64(8, 1, 2, 3), pattern_u64(7, 2, 2, 3), pattern_u64(7, 1, 1, 3), pattern_u64(7, 1, 2, 4)]
        {
            assert!((base ^ other).count_ones() > 8);
        }
    }

    #[test]
    fn a_counter_is_compared_across_the_wrap() {
        assert!(reached(5, 5) && reached(6, 5) && !reached(4, 5));
        assert!(reached(1, u64::MAX) && !reached(u64::MAX, 1));
    }
}

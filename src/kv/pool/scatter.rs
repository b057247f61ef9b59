//! Which bucket of the prefix index a block's name belongs to. Names are made from what strangers typed, often with a key
//! that everybody knows: whoever tries prompts until many of them meet in one bucket must not be able to tell.

use crate::kv::hash::BlockHash;
use std::hash::{BuildHasher as _, RandomState};

/// A random odd factor.
pub struct Scatter(u64);

impl Scatter {
    /// Another one each time.
    #[must_use]
    pub fn new() -> Self {
        Self(RandomState::new().hash_one(0) | 1)
    }

    /// The bucket of a name; `buckets` is a power of two. Names that are hashes meet as rarely as others: to be sure that
    /// two do, whatever the factor is, takes 24 more equal bits than there are in the number of a bucket.
    #[inline(always)]
    #[must_use]
    pub fn bucket(&self, name: BlockHash, buckets: usize) -> usize {
        #[allow(clippy::cast_possible_truncation, reason = "masked to the table")]
        let at = (name.word().wrapping_mul(self.0) >> 24) as usize;
        at & buckets.wrapping_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUCKETS: usize = 1 << 10;
    const KNOWN: Scatter = Scatter(0x9e37_79b9_7f4a_7c15);

    fn fullest(names: &[BlockHash], scatter: &Scatter) -> usize {
        let mut counts = vec![0; BUCKETS];
        names.iter().for_each(|name| counts[scatter.bucket(*name, BUCKETS)] += 1);
        counts.into_iter().max().unwrap_or(0)
    }

    /// Names that were tried until they met, by somebody who knows the factor: the control.
    fn tried() -> Vec<BlockHash> {
        let name = |n: u128| BlockHash((n + 1).wrapping_mul(0x9f86_d081_884c_7d65_9a2f_eaa0_c55a_d015).to_le_bytes());
        let names: Vec<_> = (0..512 * 1024).map(name).filter(|name| KNOWN.bucket(*name, BUCKETS) == 7).collect();
        assert!(names.len() > 256 && fullest(&names, &KNOWN) == names.len());
        names
    }

    #[test]
    fn names_that_meet_under_one_factor_do_not_under_another() {
        let names = tried();
        for factor in [0xd134_2543_de82_ef95, 0xaf25_1af3_b0f0_25b5, 0x5851_f42d_4c95_7f2d] {
            let most = fullest(&names, &Scatter(factor));
            assert!(most < 16, "{most} of {} names in one bucket", names.len());
        }
    }

    #[test]
    fn every_cache_has_a_factor_of_its_own_and_every_bucket_is_in_the_table() {
        assert_ne!(Scatter::new().0, Scatter::new().0);
        for buckets in [1, 2, 1 << 12, 1 << 31] {
            for word in [0, 1, u128::MAX, u128::MAX / 3] {
                assert!(Scatter::new().bucket(BlockHash(word.to_le_bytes()), buckets) < buckets);
            }
        }
    }
}

//! The random numbers of all tests, and of benchmarks: a seed that failed is printed, and gives the same ones again. Those in `tests/` and in other crates
//! compile this file too. (Where the cluster itself chooses, its `Chance` does.)
#![allow(dead_code, reason = "each test program uses a part of it")]

/// The upper halves of a linear congruence, the same everywhere. Seeds with which the crash tests of the tier once failed are tried ever
/// since: what `below` gives for a seed stays as it is.
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    fn half(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 32
    }

    /// Any number.
    pub fn word(&mut self) -> u64 {
        self.half() << 32 | self.half()
    }

    /// A number below `limit`, or 0.
    pub fn below<N: TryInto<u64> + TryFrom<u64>>(&mut self, limit: N) -> N {
        let limit = limit.try_into().unwrap_or(0);
        let chosen = if limit >> 32 == 0 { (self.half() * limit) >> 32 } else { self.word() % limit };
        N::try_from(chosen).unwrap_or_else(|_| unreachable!("{limit} is of this type, and {chosen} is less"))
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// So many bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(count + 8);
        while bytes.len() < count {
            bytes.extend_from_slice(&self.word().to_le_bytes());
        }
        bytes.truncate(count);
        bytes
    }
}

//! CRC32C: the sum under which pages, records and journals are kept.

use crc_fast::{CrcAlgorithm, Digest};

/// The sum of some bytes.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// The sum of what has sum `before` and of these bytes behind it.
#[must_use]
pub fn crc32c_append(before: u32, bytes: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, (!before).into());
    digest.update(bytes);
    u32::try_from(digest.finalize()).unwrap_or(u32::MAX)
}

/// The polynomial, its highest power first.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// The product of two polynomials, without what the generator has of it.
const fn product(a: u32, mut b: u32) -> u32 {
    let (mut bit, mut sum) = (1u32 << 31, 0);
    while bit > 0 {
        if a & bit != 0 {
            sum ^= b;
        }
        b = (b >> 1) ^ if b & 1 == 1 { POLYNOMIAL } else { 0 };
        bit >>= 1;
    }
    sum
}

/// x to the power of 8, 16, 32, …: what 1, 2, 4, … bytes multiply a sum by that stands before them.
const BYTES: [u32; 64] = {
    let mut powers = [0; 64];
    let (mut power, mut at) = (1 << 23, 0);
    while at < powers.len() {
        powers[at] = power;
        power = product(power, power);
        at += 1;
    }
    powers
};

/// What so many bytes multiply a sum by that stands before them.
fn factor(bytes: u64) -> u32 {
    let bits = BYTES.iter().enumerate().filter(|(at, _)| bytes >> at & 1 == 1);
    bits.fold(1 << 31, |sum, (_, power)| product(*power, sum))
}

/// The sum of what has sum `before` and of so many bytes behind it, which have sum `of`.
#[must_use]
pub fn crc32c_combine(before: u32, of: u32, bytes: u64) -> u32 {
    product(factor(bytes), before) ^ of
}

/// The same for many pieces of one length.
#[derive(Debug)]
pub struct Combine([[u32; 256]; 4]);

impl Combine {
    /// Pieces of so many bytes.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        let by = factor(bytes);
        Self(std::array::from_fn(|place| {
            std::array::from_fn(|byte| product(by, u32::try_from(byte).unwrap_or(0) << (8 * place)))
        }))
    }

    /// The sum of what has sum `before` and of a piece behind it, which has sum `of`.
    #[must_use]
    pub fn combine(&self, before: u32, of: u32) -> u32 {
        before.to_le_bytes().iter().zip(&self.0).fold(of, |sum, (byte, table)| sum ^ table[usize::from(*byte)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One bit after the other.
    fn plain(before: u32, bytes: &[u8]) -> u32 {
        !bytes.iter().fold(!before, |sum, byte| {
            (0..8).fold(sum ^ u32::from(*byte), |sum, _| (sum >> 1) ^ if sum & 1 == 1 { 0x82f6_3b78 } else { 0 })
        })
    }

    #[test]
    fn sums_are_those_of_the_definition_whatever_the_length_and_the_cut() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        let bytes: Vec<u8> = (0..5000u32).map(|i| ((i * i) >> 3).to_le_bytes()[0]).collect();
        for length in (0..300).chain([511, 512, 513, 1023, 4095, 4096, 5000]) {
            let part = &bytes[..length];
            assert_eq!(crc32c(part), plain(0, part), "{length}");
            for cut in [0, 1, length / 3, length] {
                let cut = cut.min(length);
                assert_eq!(crc32c_append(crc32c(&part[..cut]), &part[cut..]), plain(0, part), "{length} at {cut}");
            }
            assert_eq!(crc32c_append(77, part), plain(77, part), "{length}");
        }
    }
    #[test]
    fn sums_of_pieces_make_the_sum_of_all() {
        let bytes: Vec<u8> = (0..70_000u32).map(|i| (i.wrapping_mul(i) >> 5).to_le_bytes()[0]).collect();
        for (length, cut) in [(0, 0), (1, 0), (1, 1), (9, 4), (4097, 1), (5000, 4096), (70_000, 65_536)] {
            let (first, second) = bytes[..length].split_at(cut);
            let behind = second.len() as u64;
            assert_eq!(crc32c_combine(crc32c(first), crc32c(second), behind), crc32c(&bytes[..length]), "{length}");
            assert_eq!(Combine::new(behind).combine(crc32c(first), crc32c(second)), crc32c(&bytes[..length]));
        }
        for piece in [1usize, 64, 4096, 65_536] {
            let combine = Combine::new(piece as u64);
            let (whole, rest) = bytes.split_at(bytes.len() / piece * piece);
            // Each piece has a sum that begins elsewhere, like a page of a store.
            let sum = whole
                .chunks(piece)
                .zip(7u32..)
                .fold(0, |sum, (bytes, seed)| combine.combine(sum ^ seed, crc32c_append(seed, bytes)));
            assert_eq!(crc32c_combine(sum, crc32c(rest), rest.len() as u64), crc32c(&bytes), "{piece}");
        }
        // A gigabyte of zeros, then 2 to the power of 40 and a few.
        let zeros = (0..30).fold(crc32c(&[0]), |sum, power| crc32c_combine(sum, sum, 1 << power));
        let kib = crc32c(&[0; 1024]);
        let same = (0..20).fold(kib, |sum, power| crc32c_combine(sum, sum, 1024 << power));
        assert_eq!(zeros, same);
        let (far, near) = (crc32c_combine(5, 0, (1 << 40) + 3), crc32c_combine(crc32c_combine(5, 0, 1 << 40), 0, 3));
        assert_eq!(far, near);
    }
}

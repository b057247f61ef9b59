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
}

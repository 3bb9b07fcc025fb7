//! The checksums that only jbd2 has; its crc32c is that of the rest of ext4.

use crc_fast::{CrcAlgorithm, Digest};

use crate::checksum::crc32c;

/// The checksum of a block whose last four bytes hold it; they count as zero.
pub(super) fn block_tail_checksum(seed: u32, block: &[u8]) -> u32 {
    let sum = crc32c(seed, &block[..block.len() - 4]);
    crc32c(sum, &[0; 4])
}

/// `crc32_be` of the kernel: polynomial 0x04c11db7, most significant bit first, continuing from
/// `seed` (the catalogue's CRC-32/MPEG-2). Transaction checksums (v1) start it at `!0`.
pub fn crc32_be(seed: u32, bytes: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Mpeg2, seed.into());
    digest.update(bytes);
    digest.finalize() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        // CRC-32/MPEG-2 of the catalogue's check string.
        assert_eq!(crc32_be(!0, b"123456789"), 0x0376_e6e7);
    }

    /// Compared with the polynomial, bit by bit, for all lengths: the crate has one code path for
    /// each range of lengths.
    #[test]
    fn fast_and_slow_ways_agree() {
        let slow = |seed: u32, bytes: &[u8]| {
            bytes.iter().fold(seed, |crc, &byte| {
                (0..8).fold(crc ^ u32::from(byte) << 24, |crc, _| {
                    crc << 1 ^ if crc & 0x8000_0000 != 0 { 0x04c1_1db7 } else { 0 }
                })
            })
        };
        let bytes: Vec<u8> = (0..9000u32).map(|i| (i * 7 + 3 + i / 256) as u8).collect();
        for len in (0..300).chain([511, 512, 4095, 4096, 4097, 8192, 9000]) {
            assert_eq!(crc32_be(!0, &bytes[..len]), slow(!0, &bytes[..len]), "{len} bytes");
            let (first, second) = bytes[..len].split_at(len / 3);
            assert_eq!(
                crc32_be(crc32_be(7, first), second),
                slow(7, &bytes[..len]),
                "{len} bytes in two parts"
            );
        }
    }
}

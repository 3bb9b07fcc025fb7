//! The checksums of ext4's metadata: crc32c (metadata_csum) and crc16 (uninit_bg/gdt_csum); and
//! crc32_be of jbd2's commits (v1). No other file uses crc-fast.

use crc_fast::{CrcAlgorithm, Digest};

/// crc32c continued from `seed`, as the kernel's `ext4_chksum`: no final inversion.
pub fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, seed.into());
    digest.update(bytes);
    // CRC-32/ISCSI inverts the register at the end; ext4 stores it as it is.
    !(digest.finalize() as u32)
}

/// crc16 (polynomial 0x8005, reflected) continued from `seed`, as the kernel's `crc16`.
pub fn crc16(seed: u16, bytes: &[u8]) -> u16 {
    bytes.iter().fold(seed, |mut crc, &byte| {
        crc ^= u16::from(byte);
        for _ in 0..8 {
            crc = if crc & 1 != 0 { (crc >> 1) ^ 0xA001 } else { crc >> 1 };
        }
        crc
    })
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
    fn known_check_values() {
        // The check value of CRC-32C is 0xE3069283 after the final inversion.
        assert_eq!(!crc32c(!0, b"123456789"), 0xE306_9283);
        // CRC-16/ARC, which starts from 0.
        assert_eq!(crc16(0, b"123456789"), 0xBB3D);
    }

    /// The crate has one code path for each range of lengths; each must agree with the polynomial.
    #[test]
    fn every_length_agrees_with_the_polynomial() {
        let bit_by_bit = |seed: u32, bytes: &[u8]| {
            bytes.iter().fold(seed, |crc, &byte| {
                (0..8).fold(crc ^ u32::from(byte), |crc, _| {
                    crc >> 1 ^ if crc & 1 != 0 { 0x82F6_3B78 } else { 0 }
                })
            })
        };
        let bytes: Vec<u8> = (0..9000u32).map(|i| (i * 7 + 3 + i / 256) as u8).collect();
        for len in (0..300).chain([511, 512, 1020, 1024, 4092, 4095, 4096, 4097, 8192, 9000]) {
            assert_eq!(crc32c(!0, &bytes[..len]), bit_by_bit(!0, &bytes[..len]), "{len} bytes");
            let (first, second) = bytes[..len].split_at(len / 3);
            let in_two_parts = crc32c(crc32c(7, first), second);
            assert_eq!(in_two_parts, bit_by_bit(7, &bytes[..len]), "{len} bytes in two parts");
        }
    }

    #[test]
    fn known_check_value_of_crc32_be() {
        // CRC-32/MPEG-2 of the catalogue's check string.
        assert_eq!(crc32_be(!0, b"123456789"), 0x0376_e6e7);
    }

    /// Compared with the polynomial, bit by bit, for all lengths: the crate has one code path for
    /// each range of lengths.
    #[test]
    fn every_length_of_crc32_be_agrees_with_the_polynomial() {
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

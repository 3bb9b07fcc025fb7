//! The sums that only jbd2 has; its crc32c is that of the rest of ext4.

use std::sync::OnceLock;

use crate::checksum::crc32c;

/// The sum of a block whose last four bytes hold it; they count as zero.
pub(super) fn block_tail_checksum(seed: u32, block: &[u8]) -> u32 {
    let sum = crc32c(seed, &block[..block.len() - 4]);
    crc32c(sum, &[0; 4])
}

/// `crc32_be` of the kernel: polynomial 0x04c11db7, most significant bit first, continuing from
/// `seed`. Transaction checksums (v1) start it at `!0`.
pub fn crc32_be(seed: u32, bytes: &[u8]) -> u32 {
    let tables = tables();
    let mut crc = seed;
    let mut chunks = bytes.chunks_exact(8);
    for c in &mut chunks {
        // Eight table look-ups for eight bytes: table[k] is the effect of a byte k places back.
        let high = crc ^ u32::from_be_bytes([c[0], c[1], c[2], c[3]]);
        crc = tables[7][(high >> 24) as usize]
            ^ tables[6][(high >> 16 & 0xff) as usize]
            ^ tables[5][(high >> 8 & 0xff) as usize]
            ^ tables[4][(high & 0xff) as usize]
            ^ tables[3][c[4] as usize]
            ^ tables[2][c[5] as usize]
            ^ tables[1][c[6] as usize]
            ^ tables[0][c[7] as usize];
    }
    for &byte in chunks.remainder() {
        crc = crc << 8 ^ tables[0][(crc >> 24) as usize ^ byte as usize];
    }
    crc
}

fn tables() -> &'static [[u32; 256]; 8] {
    static TABLES: OnceLock<Box<[[u32; 256]; 8]>> = OnceLock::new();
    TABLES.get_or_init(|| {
        let mut tables = Box::new([[0u32; 256]; 8]);
        for byte in 0..256 {
            let mut crc = (byte as u32) << 24;
            for _ in 0..8 {
                crc = crc << 1 ^ if crc & 0x8000_0000 != 0 { 0x04c1_1db7 } else { 0 };
            }
            tables[0][byte] = crc;
        }
        for k in 1..8 {
            for byte in 0..256 {
                let before = tables[k - 1][byte];
                tables[k][byte] = before << 8 ^ tables[0][(before >> 24) as usize];
            }
        }
        tables
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        // CRC-32/MPEG-2 of the catalogue's check string.
        assert_eq!(crc32_be(!0, b"123456789"), 0x0376_e6e7);
    }

    #[test]
    fn fast_and_slow_paths_agree() {
        let bytes: Vec<u8> = (0..1000u32).map(|i| (i * 7 + 3) as u8).collect();
        let mut one_by_one = !0;
        for b in &bytes {
            one_by_one = crc32_be(one_by_one, &[*b]);
        }
        assert_eq!(crc32_be(!0, &bytes), one_by_one);
    }
}

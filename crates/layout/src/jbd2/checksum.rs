//! The checksums of jbd2's blocks.

use crate::checksum::crc32c;

/// The checksum of a block whose last four bytes hold it; they count as zero.
pub(super) fn block_tail_checksum(seed: u32, block: &[u8]) -> u32 {
    let sum = crc32c(seed, &block[..block.len() - 4]);
    crc32c(sum, &[0; 4])
}

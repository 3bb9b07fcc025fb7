//! The on-disk format of the jbd2 journal (`fs/jbd2`): bytes to structs and back, no I/O.
//!
//! All numbers in a journal are big-endian. A log is a ring of blocks between `s_first` and
//! `s_maxlen`; block 0 of the journal is its superblock:
//!
//! ```text
//!  block 0      first                                                    maxlen
//!  +----------+--------------------------------------------------------------+
//!  | journal  | revoke | descriptor | block | block | ... | commit | revoke ...
//!  | superbl. |  list  |  with tags | for each tag, whole |  block |
//!  +----------+--------------------------------------------------------------+
//!               \____________ one transaction, one sequence ______/
//! ```
//!
//! Every block except the copies themselves begins with a 12-byte [`Header`]. A copy that happens
//! to begin with the magic has it zeroed and its tag says so ([`TagFlags::ESCAPE`]).
//!
//! Checksums come in three generations: v1 (a crc32 over the whole transaction in the commit
//! block), v2 (16 bits in each tag) and v3 (32 bits in each tag); see [`Checksums`].

mod checksum;
mod commit;
mod descriptor;
mod fast_commit;
mod header;
mod patch;
mod revoke;
mod superblock;

pub use crate::checksum::crc32_be;
pub use commit::{CHECKSUM_V1_CRC32, CommitBlock};
pub use descriptor::{Tag, TagFlags, decode_tags, encode_descriptor, tags_per_block};
pub use fast_commit::{FastCommitHead, fast_commit_head};
pub use header::{BlockType, HEADER_BYTES, Header, MAGIC, escape, needs_escape, unescape};
pub use patch::{Patch, PatchWriter, decode_patches, differences};
pub use revoke::{decode_revokes, encode_revokes, revokes_per_block};
pub use superblock::{
    DEFAULT_FAST_COMMIT_BLOCKS, Features, JOURNAL_SUPERBLOCK_BYTES, JournalSuperblock, MIN_JOURNAL_BLOCKS,
};

use checksum::block_tail_checksum;

use crate::checksum::crc32c;

/// Which checksums protect a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checksums {
    None,
    /// One crc32 over a transaction's descriptors and copies, kept in its commit block.
    V1,
    /// crc32c of the journal's own blocks; of the copies only 16 bits.
    V2,
    /// crc32c of the journal's own blocks and of each copy.
    V3,
}

/// The properties of a journal that the codec of log blocks needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogFormat {
    pub block_size: usize,
    pub checksums: Checksums,
    /// Block numbers have 64 bits.
    pub wide: bool,
    /// crc32c of the journal's UUID, which starts every v2 and v3 checksum.
    pub seed: u32,
    pub uuid: [u8; 16],
}

impl LogFormat {
    /// Whether descriptor, revoke and commit blocks carry a crc32c of their own.
    pub fn has_block_checksums(&self) -> bool {
        matches!(self.checksums, Checksums::V2 | Checksums::V3)
    }

    /// The bytes that a tag takes, without the UUID that follows the first
    /// (`journal_tag_bytes`; v2 tags are two bytes longer than what they use).
    pub fn tag_bytes(&self) -> usize {
        match self.checksums {
            Checksums::V3 => 16,
            Checksums::V2 => 10 + if self.wide { 4 } else { 0 },
            Checksums::V1 | Checksums::None => 8 + if self.wide { 4 } else { 0 },
        }
    }

    /// Bytes of the checksum at a block's end.
    pub(crate) fn tail_bytes(&self) -> usize {
        if self.has_block_checksums() { 4 } else { 0 }
    }

    /// Writes the checksum at the end of a descriptor or revoke block, if this log has one.
    pub(crate) fn seal_tail(&self, block: &mut [u8]) {
        if self.has_block_checksums() {
            let sum = block_tail_checksum(self.seed, block);
            let at = block.len() - 4;
            block[at..].copy_from_slice(&sum.to_be_bytes());
        }
    }

    /// Whether the checksum at the end of a descriptor or revoke block is right, or none is due.
    pub fn tail_is_valid(&self, block: &[u8]) -> bool {
        if !self.has_block_checksums() {
            return true;
        }
        let at = block.len() - 4;
        be32(block, at) == block_tail_checksum(self.seed, block)
    }

    /// The crc32c of a copy in the log, which v3 tags hold whole and v2 tags cut.
    pub fn copy_checksum(&self, sequence: u32, copy: &[u8]) -> u32 {
        crc32c(crc32c(self.seed, &sequence.to_be_bytes()), copy)
    }

    /// Whether a copy in the log matches its tag, as far as this log has checksums.
    pub fn copy_is_valid(&self, tag: &Tag, sequence: u32, copy: &[u8]) -> bool {
        match self.checksums {
            Checksums::V3 => tag.checksum == self.copy_checksum(sequence, copy),
            Checksums::V2 => tag.checksum == self.copy_checksum(sequence, copy) & 0xffff,
            Checksums::V1 | Checksums::None => true,
        }
    }
}

pub(crate) fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

pub(crate) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

pub(crate) fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from(be32(bytes, at)) << 32 | u64::from(be32(bytes, at + 4))
}

pub(crate) fn put32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub fn formats() -> Vec<LogFormat> {
        let mut all = Vec::new();
        for checksums in [Checksums::None, Checksums::V1, Checksums::V2, Checksums::V3] {
            for wide in [false, true] {
                for block_size in [1024, 4096] {
                    let uuid = *b"0123456789abcdef";
                    let seed = crc32c(!0, &uuid);
                    all.push(LogFormat { block_size, checksums, wide, seed, uuid });
                }
            }
        }
        all
    }

    #[test]
    fn tag_sizes_are_those_of_the_kernel() {
        let sizes: Vec<usize> =
            formats().iter().filter(|f| f.block_size == 4096).map(LogFormat::tag_bytes).collect();
        assert_eq!(sizes, [8, 12, 8, 12, 10, 14, 16, 16]);
    }
}

//! Commit blocks (`struct commit_header`).

use crate::checksum::crc32c;

use super::{BlockType, Header, LogFormat, be32, be64, put32};

const CHECKSUM_TYPE: usize = 12;
const CHECKSUM_SIZE: usize = 13;
const CHECKSUM: usize = 16;
const COMMIT_SEC: usize = 48;
const COMMIT_NSEC: usize = 56;

/// `JBD2_CRC32_CHKSUM`: the v1 checksum is a crc32, of four bytes.
pub const CHECKSUM_V1_CRC32: (u8, u8) = (1, 4);

/// The end of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommitBlock {
    pub sequence: u32,
    /// Kind and size of the v1 checksum; [`CHECKSUM_V1_CRC32`], or zeros if there is none.
    pub checksum_kind: (u8, u8),
    /// The v1 checksum of the transaction, or the crc32c of this block with v2 and v3.
    pub checksum: u32,
    /// Seconds since 1970.
    pub secs: u64,
    pub nanos: u32,
}

impl CommitBlock {
    /// Reads a block whose header says that it is a commit block.
    pub fn decode(block: &[u8]) -> CommitBlock {
        CommitBlock {
            sequence: be32(block, 8),
            checksum_kind: (block[CHECKSUM_TYPE], block[CHECKSUM_SIZE]),
            checksum: be32(block, CHECKSUM),
            secs: be64(block, COMMIT_SEC),
            nanos: be32(block, COMMIT_NSEC),
        }
    }

    /// Whether the block's own crc32c (v2, v3) is right, or none is due.
    pub fn is_valid(format: &LogFormat, block: &[u8]) -> bool {
        !format.has_block_checksums() || be32(block, CHECKSUM) == own_checksum(format, block)
    }

    /// The v1 rule: either the sum over the transaction is right, or the commit has none at all.
    pub fn matches_transaction(&self, crc: u32) -> bool {
        let unused = self.checksum_kind == (0, 0) && self.checksum == 0;
        unused || (self.checksum_kind == CHECKSUM_V1_CRC32 && self.checksum == crc)
    }

    /// The block for `format`; with v2 and v3 its own checksum replaces `checksum`.
    pub fn encode(&self, format: &LogFormat) -> Vec<u8> {
        let mut block = vec![0; format.block_size];
        Header { block_type: BlockType::Commit, sequence: self.sequence }.encode(&mut block);
        block[CHECKSUM_TYPE] = self.checksum_kind.0;
        block[CHECKSUM_SIZE] = self.checksum_kind.1;
        put32(&mut block, CHECKSUM, self.checksum);
        put32(&mut block, COMMIT_SEC, (self.secs >> 32) as u32);
        put32(&mut block, COMMIT_SEC + 4, self.secs as u32);
        put32(&mut block, COMMIT_NSEC, self.nanos);
        if format.has_block_checksums() {
            block[CHECKSUM_TYPE] = 0;
            block[CHECKSUM_SIZE] = 0;
            let sum = own_checksum(format, &block);
            put32(&mut block, CHECKSUM, sum);
        }
        block
    }
}

fn own_checksum(format: &LogFormat, block: &[u8]) -> u32 {
    let sum = crc32c(format.seed, &block[..CHECKSUM]);
    let sum = crc32c(sum, &[0; 4]);
    crc32c(sum, &block[CHECKSUM + 4..])
}

#[cfg(test)]
mod tests {
    use super::super::tests::formats;
    use super::*;

    #[test]
    fn round_trip_and_damage() {
        for format in formats() {
            let commit = CommitBlock {
                sequence: 77,
                checksum_kind: if format.has_block_checksums() { (0, 0) } else { CHECKSUM_V1_CRC32 },
                checksum: 0x1234_5678,
                secs: 0x1_0203_0405,
                nanos: 999,
            };
            let mut block = commit.encode(&format);
            assert_eq!(Header::decode(&block).unwrap().block_type, BlockType::Commit);
            assert!(CommitBlock::is_valid(&format, &block));
            let read = CommitBlock::decode(&block);
            assert_eq!((read.sequence, read.secs, read.nanos), (77, 0x1_0203_0405, 999));
            if !format.has_block_checksums() {
                assert!(read.matches_transaction(0x1234_5678));
                assert!(!read.matches_transaction(0x1234_5679));
            }
            block[700] ^= 1;
            assert_eq!(CommitBlock::is_valid(&format, &block), !format.has_block_checksums());
        }
    }
}

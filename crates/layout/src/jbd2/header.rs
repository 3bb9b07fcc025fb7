//! The header of the journal's own blocks (`journal_header_t`), and the escaping of copies.

use super::{be32, put32};

/// First four bytes of every block of the journal's own.
pub const MAGIC: u32 = 0xc03b_3998;

/// Number of our own block type, far from possible future types of jbd2.
const PATCHES: u32 = 0x7861_6374;

/// Size of [`Header`] in bytes.
pub const HEADER_BYTES: usize = 12;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockType {
    Descriptor,
    Commit,
    SuperblockV1,
    SuperblockV2,
    Revoke,
    /// Ours; see `patch`.
    Patches,
    /// A number that no known kernel writes.
    Unknown(u32),
}

impl BlockType {
    fn from_number(number: u32) -> BlockType {
        match number {
            1 => BlockType::Descriptor,
            2 => BlockType::Commit,
            3 => BlockType::SuperblockV1,
            4 => BlockType::SuperblockV2,
            5 => BlockType::Revoke,
            PATCHES => BlockType::Patches,
            other => BlockType::Unknown(other),
        }
    }

    fn number(self) -> u32 {
        match self {
            BlockType::Descriptor => 1,
            BlockType::Commit => 2,
            BlockType::SuperblockV1 => 3,
            BlockType::SuperblockV2 => 4,
            BlockType::Revoke => 5,
            BlockType::Patches => PATCHES,
            BlockType::Unknown(other) => other,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    pub block_type: BlockType,
    /// Number of the transaction, modulo 2^32.
    pub sequence: u32,
}

impl Header {
    /// `None` if the block is not one of the journal's own.
    pub fn decode(block: &[u8]) -> Option<Header> {
        if block.len() < HEADER_BYTES || be32(block, 0) != MAGIC {
            return None;
        }
        Some(Header { block_type: BlockType::from_number(be32(block, 4)), sequence: be32(block, 8) })
    }

    pub(crate) fn encode(self, block: &mut [u8]) {
        put32(block, 0, MAGIC);
        put32(block, 4, self.block_type.number());
        put32(block, 8, self.sequence);
    }
}

/// Whether a copy would be taken for one of the journal's own blocks.
pub fn needs_escape(copy: &[u8]) -> bool {
    be32(copy, 0) == MAGIC
}

/// Removes the magic from a copy before it goes to the log.
pub fn escape(copy: &mut [u8]) {
    put32(copy, 0, 0);
}

/// Restores the first four bytes of a copy.
pub fn unescape(copy: &mut [u8]) {
    put32(copy, 0, MAGIC);
}

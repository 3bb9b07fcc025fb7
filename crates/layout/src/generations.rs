//! The structures of a generations volume in addition to ext4's: the root slots and the nodes of
//! the block map. They are xact's own; every byte is in `docs/FORMAT.md`.
//!
//! ```text
//!  0                     blocks                                                    device's end
//!  | the ext4 volume,    | root slot A | root slot B | pool bitmap, two    | pool blocks        |
//!  | blocks at home      |   4096 B    |   4096 B    | copies of each block|                    |
//!                        '------------------------------ the pool ---------------------------- '
//! ```

mod log;
mod node;
mod root;
mod snapshot;

pub use log::{LogBytes, LogChecks, LogContents, LogPosition, LogSum, LogWriter, read_log};
pub use node::{MapNode, fanout};
pub use root::{MAX_BITMAP_BLOCKS, ROOT_BYTES, Root};
pub use snapshot::{
    SNAPSHOT_RECORD_BYTES, SnapshotOf, SnapshotRecord, decode_snapshots, encode_snapshots, paths_from_text,
    paths_text,
};

use xact_types::BlockNr;

use crate::checksum::crc32c;
use crate::{put_u32, put_u64};

/// The place of a block's contents, and their checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pointer {
    /// A block of the device, in the pool.
    pub pool_block: BlockNr,
    /// The generation that wrote the contents.
    pub birth: u64,
    /// Checksum of the contents, of what they are, and of their birth. So neither the contents of
    /// another block pass, nor those that a lost write should have replaced.
    pub sum: u32,
}

/// The thing that a pointer leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// A block of the volume.
    Block(BlockNr),
    /// A node of the map, with the first block of its range.
    Node { level: u32, first: BlockNr },
    /// The list of snapshots.
    List,
}

impl Target {
    /// The number of its kind, and its number within the kind.
    fn numbers(self) -> (u32, u64) {
        match self {
            Target::Block(block) => (0, block.0),
            Target::Node { level, first } => (1 + level, first.0),
            Target::List => (u32::MAX, 0),
        }
    }
}

impl Pointer {
    pub fn new(pool_block: BlockNr, birth: u64, target: Target, contents: &[u8]) -> Pointer {
        Pointer { pool_block, birth, sum: contents_sum(target, birth, contents) }
    }

    /// Whether `contents` are what the pointer leads to.
    pub fn matches(&self, target: Target, contents: &[u8]) -> bool {
        contents_sum(target, self.birth, contents) == self.sum
    }

    /// Zeros, which take no pool block: a snapshot of chosen paths uses them for blocks of inode
    /// tables without a chosen inode. They occur neither in the map of the volume itself, nor as a
    /// pointer to a node.
    pub const ZEROS: Pointer = Pointer { pool_block: BlockNr(1), birth: 0, sum: 0 };

    pub fn is_zeros(&self) -> bool {
        *self == Pointer::ZEROS
    }
}

fn contents_sum(target: Target, birth: u64, contents: &[u8]) -> u32 {
    let (kind, number) = target.numbers();
    let mut covered = [0; 20];
    put_u32(&mut covered, 0, kind);
    put_u64(&mut covered, 4, number);
    put_u64(&mut covered, 12, birth);
    crc32c(crc32c(!0, &covered), contents)
}

/// The positions of the pool's parts, in blocks of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolShape {
    pub block_size: u32,
    /// Blocks of the ext4 volume; the pool begins after them.
    pub volume_blocks: u64,
    /// Blocks up to the end of the pool: those of the device, or of the part of it that the volume
    /// takes.
    pub device_blocks: u64,
}

impl PoolShape {
    /// Byte offsets of the two root slots. Each has 4096 bytes of its own, so that no write of one
    /// can damage the other.
    pub fn root_offset(&self, slot: usize) -> u64 {
        let end = self.volume_blocks * u64::from(self.block_size);
        end.next_multiple_of(ROOT_BYTES as u64) + (slot * ROOT_BYTES) as u64
    }

    fn bits_per_block(&self) -> u64 {
        8 * u64::from(self.block_size)
    }

    /// Blocks of one copy of the bitmap. It covers the pool from its first block on.
    pub fn bitmap_blocks(&self) -> u64 {
        (self.device_blocks - self.volume_blocks).div_ceil(self.bits_per_block())
    }

    /// The device block of a copy (0 or 1) of a bitmap block.
    pub fn bitmap_block(&self, index: u64, copy: usize) -> BlockNr {
        let first = self.root_offset(2).div_ceil(u64::from(self.block_size));
        BlockNr(first + copy as u64 * self.bitmap_blocks() + index)
    }

    /// The first pool block that can be allocated.
    pub fn first_pool_block(&self) -> BlockNr {
        self.bitmap_block(0, 2)
    }

    /// The number of pool blocks that can be allocated.
    pub fn pool_blocks(&self) -> u64 {
        self.device_blocks.saturating_sub(self.first_pool_block().0)
    }

    /// Whether a pointer may lead to `pool_block`.
    pub fn contains(&self, pool_block: BlockNr) -> bool {
        pool_block >= self.first_pool_block() && pool_block.0 < self.device_blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_tell_places_and_times_apart() {
        let contents = [7; 1024];
        let block = Target::Block(BlockNr(64));
        let pointer = Pointer::new(BlockNr(9000), 5, block, &contents);
        assert!(pointer.matches(block, &contents));
        let first = BlockNr(64);
        for other in [Target::Block(BlockNr(65)), Target::Node { level: 0, first }, Target::List] {
            assert!(!pointer.matches(other, &contents), "{other:?}");
        }
        assert!(!Pointer { birth: 4, ..pointer }.matches(block, &contents));
        let node = Target::Node { level: 1, first };
        assert!(
            !Pointer::new(BlockNr(1), 5, node, &contents)
                .matches(Target::Node { level: 0, first }, &contents)
        );
    }

    #[test]
    fn the_parts_of_the_pool_do_not_overlap() {
        for block_size in [1024, 2048, 4096] {
            let shape = PoolShape { block_size, volume_blocks: 16385, device_blocks: 40_000 };
            let end = 16385 * u64::from(block_size);
            assert!(shape.root_offset(0) >= end && shape.root_offset(0) < end + 4096);
            assert_eq!(shape.root_offset(1), shape.root_offset(0) + 4096);
            let first = shape.bitmap_block(0, 0).0 * u64::from(block_size);
            assert!(first >= shape.root_offset(1) + 4096);
            assert_eq!(shape.bitmap_block(0, 1).0, shape.bitmap_block(0, 0).0 + shape.bitmap_blocks());
            assert!(shape.bitmap_blocks() * 8 * u64::from(block_size) >= 40_000 - 16385);
            assert_eq!(shape.pool_blocks(), 40_000 - shape.first_pool_block().0);
        }
    }
}

//! The journal blocks and free space that a transaction's commit needs, computed before its first
//! change: a commit that does not fit is refused, and one that has begun does not fail for lack of
//! space.

use std::collections::BTreeSet;

use xact_consistency::ReserveClass;
use xact_types::Ino;

use crate::alloc::Allocator;
use crate::live::LiveFs;
use crate::live::op::{Budget, Privileges};
use crate::live::space::make_space::SpaceCaller;
use crate::metadata_blocks::CREDITS_PER_BLOCK;
use crate::orphan::Orphans;
use crate::versioned_fs::commit::CommitSize;

/// Slots in a block of the orphan file of a volume with 1 KiB blocks, less its tail.
const ORPHANS_PER_BLOCK_MIN: u64 = 254;
/// Bytes of a directory entry beyond its name, rounding included.
const ENTRY_OVERHEAD: u64 = 12;

/// Bytes of the entries `.` and `..`, and of the checksum after the last entry.
const DOTS_AND_TAIL: u64 = 12 + 12 + 12;

impl LiveFs {
    /// Upper bounds for a commit of that size. Blocks that several changes share (inode table,
    /// directories, bitmaps) count once: a transaction of thousands of files changes few blocks.
    pub(super) fn commit_budget(&self, size: &CommitSize) -> Budget {
        let block = self.block_bytes();
        let groups = u64::from(self.sb.group_count());
        let per_block = block / u64::from(self.sb.inode_size());
        let block_of = |ino: &Ino| u64::from(ino.0 - 1) / per_block;
        let table: BTreeSet<u64> = size.inodes.iter().map(block_of).collect();
        // If groups do not end at a block border, any two inodes may be in different groups.
        let aligned = u64::from(self.sb.inodes_per_group()) % per_block == 0;
        let mut credits = table.len() as u64 * if aligned { 1 } else { 2 };
        // Bitmaps and descriptors of inodes and blocks, and block bitmaps that were never written.
        credits += u64::from(Allocator::LINK_INODE_CREDITS) * groups.min(size.made);
        // The orphan list is in the inodes, which are already counted, and in the superblock; the
        // orphan file is filled from its start.
        credits += u64::from(Orphans::ADD_CREDITS) + size.unlinked.div_ceil(ORPHANS_PER_BLOCK_MIN);

        let mut growth = 0;
        for dir in &size.directories {
            let before = dir.size / block;
            // A leaf is split in half, so each new leaf starts at least half full.
            let bytes = dir.added_bytes + ENTRY_OVERHEAD * dir.added;
            let leaves = if dir.added > 0 { 2 * bytes.div_ceil(block) + 1 } else { 0 };
            // Each leaf may need an index node and an extent-tree node. A new directory needs none
            // if its names fit into the first block, between `.` and `..` and the tail.
            let new = match dir.size {
                0 if bytes + DOTS_AND_TAIL <= block => 1,
                0 => 1 + 3 * (leaves.max(1) - 1),
                _ => 3 * leaves,
            };
            credits += new + before.min(dir.added + dir.changed + 3 * leaves);
            growth += new;
        }
        // The old attribute block and the new one; their bitmaps and descriptors are shared.
        credits += 2 * size.xattrs + 2 * u64::from(CREDITS_PER_BLOCK) * groups.min(size.xattrs);
        credits += size.symlinks;
        growth += size.symlinks;
        credits += u64::from(CREDITS_PER_BLOCK) * groups.min(growth);
        growth += size.xattrs;
        // The entries of the old and the new payer in each quota file.
        let entries = 2 * u64::from(self.quotas.credits()) * size.inodes.len() as u64;
        credits += entries.min(self.quotas.blocks());
        // Superblock, orphan list, and a margin for changes that usually share a block.
        credits += 32 + credits / 8;
        let credits = u32::try_from(credits).unwrap_or(u32::MAX);
        let privileges = if size.privileged { Privileges::ALL } else { Privileges::NONE };
        Budget {
            credits,
            growth,
            privileges,
            class: ReserveClass::Any,
            caller: SpaceCaller::Commit(size.begun),
        }
    }
}

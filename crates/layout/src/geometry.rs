//! Positions of blocks, inodes and descriptors by group. Pure arithmetic on the superblock.

use xact_types::{BlockNr, GroupNr, Ino};

use crate::feature::{incompat, ro_compat};
use crate::superblock::Superblock;

impl Superblock {
    /// The group of a block within the volume.
    pub fn group_of(&self, block: BlockNr) -> GroupNr {
        let index = block.0.saturating_sub(u64::from(self.first_data_block()));
        GroupNr((index / u64::from(self.blocks_per_group())) as u32)
    }

    /// First block of a group.
    pub fn group_start(&self, group: GroupNr) -> BlockNr {
        BlockNr(u64::from(self.first_data_block()) + u64::from(group.0) * u64::from(self.blocks_per_group()))
    }

    /// Blocks of a group: the last one may be shorter.
    pub fn blocks_in_group(&self, group: GroupNr) -> u32 {
        let start = self.group_start(group).0;
        u64::from(self.blocks_per_group()).min(self.blocks_count().saturating_sub(start)) as u32
    }

    /// Whether `start..start + len` are blocks of the volume.
    pub fn contains(&self, start: BlockNr, len: u64) -> bool {
        start.0 >= u64::from(self.first_data_block())
            && start.0.checked_add(len).is_some_and(|end| end <= self.blocks_count())
    }

    pub fn descs_per_block(&self) -> u32 {
        self.block_size() / u32::from(self.desc_size())
    }

    /// Blocks of one copy of the group descriptor table.
    pub fn gdt_blocks(&self) -> u32 {
        self.group_count().div_ceil(self.descs_per_block())
    }

    /// Whether a block of descriptors is in the groups that it describes (`meta_bg`), not after the
    /// superblock.
    fn is_in_meta_group(&self, desc_block: u32) -> bool {
        self.has_incompat(incompat::META_BG) && desc_block >= self.first_meta_bg()
    }

    /// Block that holds a group's descriptor, and the byte at which it starts there
    /// (`descriptor_loc`).
    pub fn desc_place(&self, group: GroupNr) -> (BlockNr, usize) {
        let per_block = self.descs_per_block();
        let number = group.0 / per_block;
        let block = if self.is_in_meta_group(number) {
            let first = GroupNr(number * per_block);
            self.group_start(first).offset(u64::from(self.has_backup(first)))
        } else {
            self.own_block().offset(1 + u64::from(number))
        };
        (block, (group.0 % per_block) as usize * usize::from(self.desc_size()))
    }

    /// Blocks at the start of a group that hold a copy of the superblock, copies of descriptors and
    /// the blocks reserved for more descriptors (`ext4_num_base_meta_clusters`).
    pub fn base_meta_blocks(&self, group: GroupNr) -> u32 {
        let backup = self.has_backup(group);
        let per_block = self.descs_per_block();
        if self.is_in_meta_group(group.0 / per_block) {
            // Three copies: in the first, second and last of the described groups.
            let copy = [0, 1, per_block - 1].contains(&(group.0 % per_block));
            return u32::from(backup) + u32::from(copy);
        }
        if !backup {
            return 0;
        }
        let together =
            if self.has_incompat(incompat::META_BG) { self.first_meta_bg() } else { self.gdt_blocks() };
        1 + together + u32::from(self.reserved_gdt_blocks())
    }

    pub fn inodes_per_block(&self) -> u32 {
        self.block_size() / u32::from(self.inode_size())
    }

    /// Blocks of a group's inode table.
    pub fn inode_table_blocks(&self) -> u32 {
        self.inodes_per_group().div_ceil(self.inodes_per_block())
    }

    /// Group and index within it; `None` for a number that the volume does not have.
    pub fn inode_place(&self, ino: Ino) -> Option<(GroupNr, u32)> {
        if ino.0 == 0 || ino.0 > self.inodes_count() {
            return None;
        }
        let index = ino.0 - 1;
        Some((GroupNr(index / self.inodes_per_group()), index % self.inodes_per_group()))
    }

    /// The inode at `index` of a group.
    pub fn inode_at(&self, group: GroupNr, index: u32) -> Ino {
        Ino(group.0 * self.inodes_per_group() + index + 1)
    }

    /// Blocks of a cluster: 1 except with `bigalloc`, where the free counts are of clusters.
    pub fn cluster_blocks(&self) -> u32 {
        if self.has_ro_compat(ro_compat::BIGALLOC) {
            1 << self.log_cluster_size().saturating_sub(self.log_block_size()).min(16)
        } else {
            1
        }
    }

    /// Whether group descriptors have checksums, and so `*_UNINIT` flags that can be trusted.
    pub fn has_group_csum(&self) -> bool {
        self.has_ro_compat(ro_compat::GDT_CSUM | ro_compat::METADATA_CSUM)
    }
}

//! A superblock for the tests of several files.

use xact_layout::feature::ro_compat;
use xact_layout::superblock::Superblock;

/// A volume of `groups` groups with blocks of 1 KiB.
pub fn superblock(groups: u32) -> Superblock {
    let mut sb = Superblock::zeroed();
    sb.set_magic(0xEF53);
    sb.set_rev_level(1);
    sb.set_first_data_block(1);
    sb.set_blocks_count(1 + u64::from(groups) * 8192);
    sb.set_blocks_per_group(8192);
    sb.set_clusters_per_group(8192);
    sb.set_inodes_per_group(1024);
    sb.set_inodes_count(groups * 1024);
    sb.set_inode_size_raw(256);
    sb.set_first_ino(11);
    sb.set_feature_ro_compat(ro_compat::SPARSE_SUPER);
    sb
}

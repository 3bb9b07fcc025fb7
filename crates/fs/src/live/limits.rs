//! Limits of the volume's format.

use xact_layout::feature::{incompat, ro_compat};
use xact_layout::inode::{self, flag};
use xact_types::Ino;

use super::LiveFs;
use crate::extent;
use crate::journal_modes::DataMode;
use crate::versioned_fs::limits::InodeLimits;

/// Maximum link count of a file, and of a folder before its count overflows (`EXT4_LINK_MAX`).
const LINK_MAX: u32 = 65_000;

impl LiveFs {
    /// Whether an inode is the file system's own, which no name leads to: the journal, quota files,
    /// the orphan file.
    pub(in crate::live) fn is_own_inode(&self, ino: Ino) -> bool {
        let sb = &self.sb;
        let files = [sb.usr_quota_inum(), sb.grp_quota_inum(), sb.prj_quota_inum(), sb.orphan_file_inum()];
        ino != Ino::ROOT && (ino < sb.first_inode() || files.contains(&ino.0))
    }
}

impl InodeLimits for LiveFs {
    fn block_size(&self) -> u32 {
        self.sb.block_size()
    }

    /// See [`crate::InodeOps::size_max`] (`ext4_max_size`, `ext4_max_bitmap_size`).
    fn size_max(&self, flags: u32) -> u64 {
        if self.sb.rev_level() == 0 {
            // Without feature words, the format cannot announce larger files.
            return i32::MAX as u64;
        }
        // `i_blocks` counts sectors, including those of arrays or nodes, in 32 bits without the
        // feature.
        let is_huge = self.sb.has_ro_compat(ro_compat::HUGE_FILE);
        let sectors = if is_huge { (1 << 48) - 1 } else { u64::from(u32::MAX) };
        let all = sectors / (self.block_bytes() / 512);
        let blocks = match flags & flag::EXTENTS {
            0 => extent::mapped_blocks_max(self.sb.block_size(), all),
            // The kernel leaves no room for nodes, and fails later.
            _ => all - all / 256,
        };
        blocks.min(u64::from(u32::MAX)) * self.block_bytes()
    }

    /// See [`crate::InodeOps::has_extents`].
    fn has_extents(&self) -> bool {
        self.sb.has_incompat(incompat::EXTENTS)
    }

    /// See [`crate::InodeOps::has_projects`].
    fn has_projects(&self) -> bool {
        self.sb.has_ro_compat(ro_compat::PROJECT) && self.sb.inode_size() > 128
    }

    /// See [`crate::InodeOps::gives_group_of_folder`].
    fn gives_group_of_folder(&self) -> bool {
        self.options.owners.group_of_folder
    }

    /// See [`crate::InodeOps::takes_file_mode`].
    fn takes_file_mode(&self, mode: DataMode) -> bool {
        mode.works_with(self.engine.data_in_log())
    }

    /// See [`crate::InodeOps::link_max`].
    fn link_max(&self) -> u32 {
        LINK_MAX
    }

    /// See [`crate::InodeOps::dir_nlink`].
    fn dir_nlink(&self) -> bool {
        self.sb.has_ro_compat(ro_compat::DIR_NLINK)
    }

    /// See [`crate::InodeOps::target_max`]: one block, and its terminating NUL.
    fn target_max(&self) -> usize {
        self.block_bytes() as usize - 1
    }
}

impl LiveFs {
    /// `i_extra_isize` of new inodes.
    pub(super) fn extra_isize(&self) -> u16 {
        if self.sb.inode_size() > 128 { inode::EXTRA_ISIZE } else { 0 }
    }
}

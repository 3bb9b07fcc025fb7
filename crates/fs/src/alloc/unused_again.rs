//! A group that was unused before a commit, and is unused again after its deletions (SNAP-6).
//!
//! The first inode or block of a group gives its bitmaps their first contents and clears the flags
//! `INODE_UNINIT` and `BLOCK_UNINIT` of its descriptor. When the same commit has freed the last of
//! them, the descriptor gets its old flags and checksums back, and the commit leaves out the
//! bitmaps. So the descriptor ends as it began, and nothing of the group is written.
//!
//! Crash argument: a bitmap counts only while its flag is clear. The flag is set in the handle that
//! lets the commit leave out the bitmap, and the next use of the group clears it and creates the
//! bitmap again. So a commit has both or none of them, and a crash finds the group as one commit or
//! the other left it. A group stays in use if an older commit has contents of its bitmaps too.

use xact_consistency::Handle;
use xact_layout::group::{BLOCK_UNINIT, GroupDesc, INODE_UNINIT};
use xact_types::{GroupNr, Result};

use super::AllocatorCore;

impl AllocatorCore {
    /// Leaves out what the commit need not write of a group. The caller has freed an inode or
    /// blocks of it, and holds its lock.
    pub(super) fn leave_unused(&self, h: &mut Handle, number: GroupNr) -> Result<()> {
        let Some(before) = self.desc_before(h, number) else { return Ok(()) };
        let group = self.group(number);
        let now = self.own_desc(h, number)?;
        let used_now = |flag| before.has_flag(flag) && !now.has_flag(flag);
        let inodes = used_now(INODE_UNINIT)
            && now.free_inodes() == self.sb.inodes_per_group()
            && h.leave_out(group.inode_bitmap);
        // A group with inodes has a bitmap of blocks: see `link_inode`.
        let blocks = used_now(BLOCK_UNINIT)
            && (inodes || now.has_flag(INODE_UNINIT))
            && now.free_blocks() == before.free_blocks()
            && h.leave_out(group.block_bitmap);
        if !inodes && !blocks {
            return Ok(());
        }
        self.change_desc(h, number, |_, desc| {
            if inodes {
                desc.set_flags(desc.flags() | INODE_UNINIT);
                desc.set_itable_unused(before.itable_unused());
                desc.set_inode_bitmap_csum(before.inode_bitmap_csum());
            }
            if blocks {
                desc.set_flags(desc.flags() | BLOCK_UNINIT);
                desc.set_block_bitmap_csum(before.block_bitmap_csum());
            }
        })
    }

    /// The descriptor before the handle's commit, if a part of the group was unused then.
    fn desc_before(&self, h: &Handle, number: GroupNr) -> Option<GroupDesc> {
        if !self.sb.has_group_csum() {
            return None;
        }
        let (block, at) = self.sb.desc_place(number);
        let bytes = h.base(block)?;
        let desc = GroupDesc::new(&bytes[at..at + usize::from(self.sb.desc_size())]);
        (desc.flags() & (INODE_UNINIT | BLOCK_UNINIT) != 0).then_some(desc)
    }
}

//! New inodes.

use std::sync::atomic::Ordering::Relaxed;

use xact_layout::extent;
use xact_layout::inode::{Inode, flag};
use xact_types::{Error, Ino, Result};

use super::device_number;
use crate::api::FileKind;
use crate::inode_ops::NewInode;
use crate::live::LiveFs;
use crate::versioned_fs::limits::InodeLimits;

impl LiveFs {
    /// Takes the number of a new inode, and checks that no inode has it: the bitmap of a damaged
    /// volume may say that an inode in use is free. The check reads the block of the inode table
    /// that the new inode is written to anyway.
    ///
    /// Errors: `NoSpace`; `Corrupt` for a number in use, which is not handed out again.
    pub(in crate::live) fn take_inode(&self, parent: Ino, is_dir: bool) -> Result<Ino> {
        let ino = self.allocator.take_inode(parent, is_dir)?;
        let used = match self.table.read(ino) {
            Ok(inode) => inode.mode() != 0 && inode.links_count() > 0,
            // The place was never written, or its bytes are not a valid inode: they will be
            // overwritten.
            Err(Error::Corrupt(_)) => false,
            Err(error) => {
                self.allocator.give_back_inode(ino);
                return Err(error);
            }
        };
        if used || self.orphans.contains(ino) {
            return Err(self.allocator.report_used_inode(ino));
        }
        Ok(ino)
    }

    /// A new inode as `new` describes it, before its first link.
    pub(in crate::live) fn fresh_inode(&self, new: &NewInode, old_generation: u32) -> Inode {
        let mut inode = Inode::zeroed(self.sb.inode_size());
        inode.set_extra_isize(self.extra_isize());
        inode.set_mode(new.kind.mode_bits() | new.perm & 0o7777);
        inode.set_uid(new.uid);
        inode.set_gid(new.gid);
        if self.has_projects() {
            inode.set_project(new.project);
        }
        inode.set_atime(new.time);
        inode.set_mtime(new.time);
        inode.set_ctime(new.time);
        inode.set_crtime(new.time);
        inode.set_flags(new.flags & flag::INHERITED);
        inode.set_generation(self.next_generation(old_generation));
        match new.kind {
            FileKind::Regular | FileKind::Directory | FileKind::Symlink => {
                let unmapped = self.unmapped_inode();
                inode.set_flags(inode.flags() | unmapped.flags());
                inode.set_block_area(unmapped.block_area());
            }
            FileKind::CharDevice | FileKind::BlockDevice => {
                inode.set_block_area(&device_number::encode(new.rdev));
            }
            FileKind::Fifo | FileKind::Socket => {}
        }
        inode
    }

    /// The generation of a new inode: as in ext4, the next of a sequence that begins somewhere else
    /// at each opening. So it differs from those of the number's previous inodes, also of one that
    /// was made and deleted in a single commit and left nothing in the inode table. It need not be
    /// unpredictable: only NFS needs that.
    fn next_generation(&self, old_generation: u32) -> u32 {
        let next = || self.generation.fetch_add(1, Relaxed);
        let generation = next();
        if generation == old_generation { next() } else { generation }
    }

    /// An inode without blocks, mapped as the volume maps new files: by extents, or as in ext2.
    pub(in crate::live) fn unmapped_inode(&self) -> Inode {
        let mut inode = Inode::zeroed(self.sb.inode_size());
        if self.has_extents() {
            inode.set_flags(flag::EXTENTS);
            inode.set_block_area(&extent::empty_root());
        }
        inode
    }
}

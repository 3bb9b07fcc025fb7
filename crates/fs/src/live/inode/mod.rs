//! Inodes in memory, and in the inode table.
//!
//! - `cached`, `cache`: inodes in memory, each with its lock; their cache
//! - `load`, `store`, `create`, `delete`: reading, writing, creating and deleting inodes
//! - `orphan_cleanup`: deletions and truncations that a crash interrupted
//! - `access_time`: access times set by reads
//! - `device_number`: the encoding of device numbers in inodes

pub(super) mod access_time;
pub(super) mod cache;
pub(super) mod cached;
mod create;
mod delete;
mod device_number;
mod load;
pub(super) mod new_names;
mod orphan_cleanup;
mod store;

use xact_layout::inode::flag;
use xact_types::Ino;

use crate::api::FileKind;
use crate::extent::{Extents, Owner};
use crate::inode_table::InodeTable;
use crate::live::LiveFs;
use crate::live::data::inline;
use crate::xattr::Xattrs;
use cached::InodeState;

impl LiveFs {
    pub(super) fn extents(&self, ino: Ino, state: &InodeState) -> Extents<'_> {
        let owner = Owner { ino, generation: state.inode.generation() };
        Extents::new(&self.engine, &self.sb, &self.allocator, owner)
    }

    pub(super) fn xattrs(&self, ino: Ino) -> Xattrs<'_> {
        Xattrs::new(&self.engine, &self.sb, &self.allocator, &self.table, ino)
    }

    /// Credits for writing an inode, its quotas included.
    pub(super) fn credits_inode(&self) -> u32 {
        InodeTable::CREDITS + 1 + self.quotas.credits()
    }

    /// Whether `i_block` maps blocks: not for device nodes, and not for short symbolic links.
    pub(super) fn has_block_map(&self, state: &InodeState) -> bool {
        if inline::is_inline(state) {
            return false;
        }
        match FileKind::from_mode(state.inode.mode()) {
            Some(FileKind::Regular | FileKind::Directory) => true,
            Some(FileKind::Symlink) => state.inode.flags() & flag::EXTENTS != 0 || state.inode.size() >= 60,
            _ => false,
        }
    }
}

//! What a handle will need is read before it begins.
//!
//! A commit is closed when the operations in it have ended, and one that waits for the device
//! within its handle keeps a sync waiting (`consistency/pipeline.rs`). Operations read the names
//! and inodes that they change before they change anything; here is what they touch in addition,
//! and nothing reads for its own sake: places in the inode table, bitmaps and descriptors, nodes of
//! extent trees, the orphan list, quotas.
//!
//! Nothing depends on it: who needs a block that was not read ahead, or has left the cache since,
//! reads it then. So errors are left to those, too.

use xact_consistency::ReserveClass;
use xact_types::{FileBlock, Ino, Result, Run};

use crate::live::LiveFs;
use crate::live::inode::cached::InodeState;
use crate::live::op::Operation;

impl LiveFs {
    /// For storing an inode.
    pub(in crate::live) fn read_ahead_inode(&self, ino: Ino, state: &InodeState) {
        if let Ok(block) = self.table.block_of(ino) {
            let _ = self.engine.read(block);
        }
        if self.quotas.is_on() {
            self.quotas.read_ahead(&state.charged.payer);
            self.quotas.read_ahead(&self.quotas.payer_of(&state.inode));
        }
    }

    /// For attributes that get a block, change it, or leave it.
    pub(in crate::live) fn read_ahead_xattrs(&self, ino: Ino, state: &InodeState) {
        if state.inode.xattr_block() != 0 {
            let start = xact_types::BlockNr(state.inode.xattr_block());
            let _ = self.xattrs(ino).list(&state.inode);
            self.allocator.read_ahead(Run { start, len: 1 });
        }
    }

    /// For one more block of a directory.
    fn read_ahead_append(&self, ino: Ino, state: &InodeState) {
        let blocks = u32::try_from(state.size / self.block_bytes()).unwrap_or(u32::MAX);
        let Some(last) = blocks.checked_sub(1).filter(|_| self.has_block_map(state)) else { return };
        let extents = self.extents(ino, state);
        if let Ok(crate::extent::Mapping::Written { start, .. }) = extents.map(&state.inode, FileBlock(last))
        {
            self.allocator.read_ahead(Run { start: start.offset(1), len: 1 });
        }
    }

    /// For removing blocks, from the last one on. Gives the block from which on that is done: of a
    /// large file not the first.
    pub(in crate::live) fn read_ahead_removal(
        &self,
        ino: Ino,
        state: &InodeState,
        first: FileBlock,
        past: FileBlock,
    ) -> Result<FileBlock> {
        let extents = self.extents(ino, state);
        extents.read_ahead_removal(&state.inode, first..past, &mut |run| self.allocator.read_ahead(run))
    }

    /// For deleting an inode that has no blocks any more.
    pub(in crate::live) fn read_ahead_deletion(&self, ino: Ino, state: &InodeState) {
        self.read_ahead_inode(ino, state);
        self.read_ahead_xattrs(ino, state);
        self.orphans.read_ahead(ino);
        self.allocator.read_ahead_inode(ino);
    }
}

impl Operation<'_> {
    /// For the changes of an operation that has read what it changes, and is about to begin.
    pub(in crate::live) fn read_ahead(&self) {
        let fs = self.fs;
        let (grows, removes) = (self.budget.growth > 0, self.budget.class == ReserveClass::Removal);
        for (&ino, locked) in self.locked.iter().filter(|(_, locked)| locked.state.live) {
            fs.read_ahead_inode(ino, &locked.state);
            if grows && locked.state.inode.is_directory() {
                fs.read_ahead_append(ino, &locked.state);
            }
            if grows || removes {
                fs.read_ahead_xattrs(ino, &locked.state);
                fs.orphans.read_ahead(ino);
            }
        }
        for &ino in &self.taken {
            fs.allocator.read_ahead_inode(ino);
        }
    }
}

//! Reads the blocks that a handle needs before it begins.
//!
//! A commit closes when its operations have ended. An operation that waits for the device within
//! its handle would keep a sync waiting (`consistency/core/pipeline`). Operations read the names
//! and inodes that they change before the first change. This module reads the other blocks that
//! they touch: places in the inode table, bitmaps and descriptors, nodes of extent trees, the
//! orphan list, quotas.
//!
//! Correctness does not depend on it: a block that was not read ahead, or has left the cache since,
//! is read when it is needed. So errors are ignored here; that later read returns them.

use xact_consistency::ReserveClass;
use xact_types::{FileBlock, Ino, Result, Run};

use crate::live::LiveFs;
use crate::live::inode::cached::InodeState;
use crate::live::op::Operation;

impl LiveFs {
    /// Reads the blocks for storing an inode.
    pub(in crate::live) fn read_ahead_inode(&self, ino: Ino, state: &InodeState) {
        if let Ok(block) = self.table.block_of(ino) {
            let _ = self.engine.read(block);
        }
        if self.quotas.is_on() {
            self.quotas.read_ahead(&state.charged.payer);
            self.quotas.read_ahead(&self.quotas.payer_of(&state.inode));
        }
    }

    /// Reads the blocks for adding, changing or removing an attribute block.
    pub(in crate::live) fn read_ahead_xattrs(&self, ino: Ino, state: &InodeState) {
        if state.inode.xattr_block() != 0 {
            let start = xact_types::BlockNr(state.inode.xattr_block());
            let _ = self.xattrs(ino).list(&state.inode);
            self.allocator.read_ahead(Run { start, len: 1 });
        }
    }

    /// Reads the blocks for appending a block to a directory.
    fn read_ahead_append(&self, ino: Ino, state: &InodeState) {
        let blocks = u32::try_from(state.size / self.block_bytes()).unwrap_or(u32::MAX);
        let Some(last) = blocks.checked_sub(1).filter(|_| self.has_block_map(state)) else { return };
        let extents = self.extents(ino, state);
        if let Ok(crate::extent::Mapping::Written { start, .. }) = extents.map(&state.inode, FileBlock(last))
        {
            self.allocator.read_ahead(Run { start: start.offset(1), len: 1 });
        }
    }

    /// Reads the blocks for removing a range, starting at its end. Returns the file block from
    /// which on that is done; for a large file that is not the first.
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

    /// Reads the blocks for deleting an inode whose own blocks were removed.
    pub(in crate::live) fn read_ahead_deletion(&self, ino: Ino, state: &InodeState) {
        self.read_ahead_inode(ino, state);
        self.read_ahead_xattrs(ino, state);
        self.orphans.read_ahead(ino);
        self.allocator.read_ahead_inode(ino);
    }
}

impl Operation<'_> {
    /// Reads the blocks for the changes of this operation, before its handle begins.
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

//! Removal of blocks: truncation, holes, and the blocks of deleted inodes.
//!
//! A removal may change more metadata blocks than one commit can hold. It then takes several
//! commits, from the end of the file to its start. Crash argument:
//! 1. The first commit has the new size (or link count 0) and puts the inode on the orphan list.
//!    From then on the file *is* truncated or deleted, whatever follows.
//! 2. Each further commit takes blocks off the end of the extent tree and marks them free, in one
//!    step.
//! 3. The last commit takes the inode off the orphan list.
//!
//! After a crash in between, recovery finds the inode on the list and continues where the blocks
//! end. A log revokes the blocks of a folder one by one, so each handle removes only a few of them:
//! no handle fails half-way, and commits that are full of revokes take no new handle. Blocks become
//! available for reuse when the commit that freed them is durable, so a commit that a crash may
//! undo never has its blocks overwritten.

use xact_consistency::{Handle, ReserveClass};
use xact_layout::get_u16;
use xact_layout::inode::flag;
use xact_types::{BlockNr, FileBlock, Ino, Result, Run};

use crate::alloc::Hold;
use crate::extent::Progress;
use crate::live::LiveFs;
use crate::live::inode::cached::{CachedInode, InodeState};
use crate::live::mvcc::stamps::Change;
use crate::live::mvcc::versions::BlockVersion;
use crate::live::op::{Operation, UnfinishedRemoval};
use crate::orphan::Orphans;

/// The reason for the removal of a range of blocks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::live) enum Removal {
    /// The range is past the new end of the file: the orphan list ensures that a crash leaks no
    /// block of it.
    Truncated,
    Hole,
    /// New contents follow in the same operation. The commit removes as much as fits into it,
    /// without waiting for a read-ahead.
    Replaced,
}

impl Operation<'_> {
    /// Removes the blocks of a range from a file: cached pages, mappings, space. The end of the
    /// operation removes the parts that do not fit into the commit or are not in memory.
    pub(in crate::live) fn remove_range(
        &mut self,
        ino: Ino,
        first: FileBlock,
        past: FileBlock,
        why: Removal,
    ) -> Result<()> {
        let hold = self.keep_range(ino, first, past)?;
        let fs = self.fs;
        let locked = self.state(ino)?;
        fs.drop_pages(&locked.cached, &locked.state, first.0, past.0);
        let credits = fs.extents(ino, &locked.state).credits_remove(&locked.state.inode);
        let from = match why {
            Removal::Replaced => first,
            Removal::Truncated | Removal::Hole => fs.read_ahead_removal(ino, &locked.state, first, past)?,
        };
        // A flat tree has at most four extents, and each is one step.
        let fits = !has_deep_tree(&locked.state) && self.ensure(4 * credits)?;
        // The blocks of the inode and of the orphan list join the commit first, so that they are in
        // it however full the removal makes it.
        let (_, handle, cached, state) = self.parts(ino);
        fs.store_inode(handle, cached, state)?;
        let cut = why == Removal::Truncated;
        if cut && !fits {
            fs.orphans.add(handle, ino)?;
        }
        let done = fs.remove_some(handle, state, ino, from, past, hold.as_ref())? && from == first;
        if !done || (cut && !fits) {
            self.unfinished.push(UnfinishedRemoval { ino, first, past, hold });
        }
        self.touch(ino);
        Ok(())
    }

    /// Keeps the contents of a range for the open views. Blocks on disk stay in place, under the
    /// returned hold.
    fn keep_range(&mut self, ino: Ino, first: FileBlock, past: FileBlock) -> Result<Option<Hold>> {
        let Some(change) = self.seen_change(ino) else { return Ok(None) };
        let fs = self.fs;
        let locked = self.state(ino)?;
        let hold = Hold::new();
        fs.keep_removed(&locked.cached, &mut locked.state, first, past, &change, &hold)?;
        Ok(Some(hold))
    }
}

impl LiveFs {
    fn keep_removed(
        &self,
        cached: &CachedInode,
        state: &mut InodeState,
        first: FileBlock,
        past: FileBlock,
        change: &Change,
        hold: &Hold,
    ) -> Result<()> {
        let mut removed: Vec<(FileBlock, Run)> = Vec::new();
        self.extents(cached.ino, state).iterate(&state.inode, first..past, &mut |extent| {
            let (from, end) = (extent.at.max(first), extent.end().min(past));
            if !extent.unwritten && from < end {
                let start = extent.run.start.offset(u64::from(from.0 - extent.at.0));
                removed.push((from, Run { start, len: end.0 - from.0 }));
            }
            Ok(true)
        })?;
        let mut kept = false;
        // Cached pages are newer than the disk. The first version of a change counts.
        for (at, page) in cached.pages.lock().map.range(first.0..past.0) {
            let at = FileBlock(*at);
            if self.needs_block(cached, state, at, change) {
                kept |= state.versions.keep_block(change, at, BlockVersion::Bytes(page.data.clone()));
            }
        }
        for (from, run) in removed {
            kept |= self.keep_removed_run(cached, state, from, run, change, hold)?;
        }
        self.mvcc.note_versioned(cached.ino, change, kept);
        Ok(())
    }

    /// Keeps blocks that leave the file, as few versions as possible. Returns whether any was kept.
    fn keep_removed_run(
        &self,
        cached: &CachedInode,
        state: &mut InodeState,
        from: FileBlock,
        run: Run,
        change: &Change,
        hold: &Hold,
    ) -> Result<bool> {
        let place = |at: FileBlock| run.start.offset(u64::from(at.0 - from.0));
        let past = from.offset(run.len);
        let seen = past.min(state.versions.end_in_views(change, state.size, self.block_bytes()));
        let mut kept = false;
        if from < seen && self.is_at_home(run.start, run.len.into()) {
            for part in state.versions.unkept_parts(from..seen) {
                let run = Run { start: place(part.start), len: part.end.0 - part.start.0 };
                kept |= state.versions.keep_removed(change, part.start, run, hold);
            }
        }
        let mut at = from;
        while at < past {
            if let Some(end) = state.versions.end_of_removed(change, at) {
                at = end;
                continue;
            }
            if self.needs_block(cached, state, at, change) {
                kept |= state.versions.keep_block(change, at, self.removed_version(place(at), hold)?);
            }
            at = if at < seen { at.offset(1) } else { past };
        }
        Ok(kept)
    }

    /// The old version of a block that leaves its file: its place, which the hold keeps unchanged;
    /// or its contents, if the newest ones are not there.
    fn removed_version(&self, block: BlockNr, hold: &Hold) -> Result<BlockVersion> {
        if self.is_at_home(block, 1) {
            return Ok(BlockVersion::OnDisk(block, hold.clone()));
        }
        let mut bytes = vec![0; self.block_bytes() as usize];
        self.engine.read_data(block, &mut bytes)?;
        Ok(BlockVersion::Bytes(bytes.into()))
    }

    /// Whether the newest contents of the blocks are in their own places, not only in the log or in
    /// memory.
    fn is_at_home(&self, start: BlockNr, blocks: u64) -> bool {
        !self.engine.holds_data(start, blocks) && !self.engine.defers_data(start, blocks)
    }

    /// The start of the part of a metadata range that one handle removes, at the range's end; and
    /// whether that is the whole range.
    fn metadata_step(
        &self,
        state: &InodeState,
        ino: Ino,
        first: FileBlock,
        past: FileBlock,
    ) -> Result<(FileBlock, bool)> {
        let mut end = first;
        self.extents(ino, state).iterate(&state.inode, first..past, &mut |extent| {
            end = end.max(extent.end().min(past));
            Ok(true)
        })?;
        let start = FileBlock(end.0.saturating_sub(self.options.steps.forgotten_blocks)).max(first);
        Ok((start, start == first))
    }

    /// Removes as much of the range as fits into one handle, from its end; true if all is removed.
    pub(in crate::live) fn remove_some(
        &self,
        handle: &mut Handle,
        state: &mut InodeState,
        ino: Ino,
        first: FileBlock,
        past: FileBlock,
        hold: Option<&Hold>,
    ) -> Result<bool> {
        // Directory and symbolic-link blocks are metadata to the engine, and must leave it.
        let is_metadata = !state.inode.is_regular();
        let (first, is_last) =
            if is_metadata { self.metadata_step(state, ino, first, past)? } else { (first, true) };
        let extents = self.extents(ino, state);
        let progress = extents.remove(handle, &mut state.inode, first..past, &mut |handle, run: Run| {
            if is_metadata {
                for i in 0..run.len {
                    handle.forget(run.start.offset(u64::from(i)))?;
                }
            } else {
                handle.forget_data(run.start, run.len.into())?;
            }
            self.allocator.free(handle, run, hold.cloned())
        })?;
        Ok(progress == Progress::Done && is_last)
    }

    /// Continues a removal in further commits until it is done. The caller holds the inode's lock.
    pub(in crate::live) fn finish_removal(
        &self,
        cached: &CachedInode,
        state: &mut InodeState,
        rest: &UnfinishedRemoval,
    ) -> Result<()> {
        let result = self.finish_removal_inner(cached, state, rest);
        if let Err(error) = &result {
            self.engine.poison(&format!("giving blocks back failed half-way: {error}"));
        }
        result
    }

    pub(in crate::live) fn finish_removal_inner(
        &self,
        cached: &CachedInode,
        state: &mut InodeState,
        rest: &UnfinishedRemoval,
    ) -> Result<()> {
        let _under_way = self.space.begin_removal();
        loop {
            let credits = self.extents(cached.ino, state).credits_remove(&state.inode) + self.credits_inode();
            let from = self.read_ahead_removal(cached.ino, state, rest.first, rest.past)?;
            self.read_ahead_inode(cached.ino, state);
            let mut handle = Handle::begin_for(&self.engine, credits, ReserveClass::Upkeep)?;
            self.store_inode(&mut handle, cached, state)?;
            let done =
                self.remove_some(&mut handle, state, cached.ino, from, rest.past, rest.hold.as_ref())?;
            self.store_inode(&mut handle, cached, state)?;
            if done && from == rest.first {
                break;
            }
        }
        if state.inode.links_count() > 0 && self.orphans.contains(cached.ino) {
            self.orphans.read_ahead(cached.ino);
            let mut handle = Handle::begin_for(&self.engine, Orphans::REMOVE_CREDITS, ReserveClass::Upkeep)?;
            self.orphans.remove(&mut handle, cached.ino)?;
        }
        Ok(())
    }
}

/// Whether the removal of an inode's blocks may take more steps than its root has entries.
pub(in crate::live) fn has_deep_tree(state: &InodeState) -> bool {
    let depth = get_u16(state.inode.block_area(), 6);
    state.inode.flags() & flag::EXTENTS == 0 || depth > 0
}

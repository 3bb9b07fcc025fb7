//! Installs new file contents in a transaction's commit.
//!
//! Crash argument:
//! 1. *Staging* (`commit::staging`): blocks are taken in memory only, and the contents are written
//!    there. A crash finds these blocks free.
//! 2. *Install*: the operation's handle takes the old blocks out of the file, links the new ones
//!    and sets the size, all in the commit that carries the rest of the transaction. The engine
//!    flushes before its commit record, in every mode (`order_data`), so a durable commit has its
//!    data. A crash before it leaves the old blocks intact: the same commit frees them, and they
//!    cannot be reused before it is durable. So no caller waits for the writes of the contents
//!    before that flush.
//!    If no caller waits for the commit, the contents are not written when they are staged but with
//!    the commit, before that flush (`Handle::defer_data`; `consistency::core::deferred_data` has
//!    the argument). Contents that another transaction has replaced by then are never written.
//! 3. Small contents (`data::data_mode`) are not written when they are staged. Install makes them
//!    part of the same commit, which writes them to the log (`journal_data`), and a commit survives
//!    as a whole or not at all. Copies in the log that belong to an earlier owner of such a block
//!    were revoked when it was freed.
//! 4. Journaled contents that replace a written block go to that block's place (`Overwrites`), and
//!    the block taken for them is given back. Until the commit is durable the place holds the old
//!    contents, as in 2: only the checkpoint writes there, after the commit. An earlier write in
//!    place (`writeback`) was issued under the same inode lock and is flushed with the commit, so
//!    it cannot come later than the checkpoint. Old contents that open views need are copied to
//!    memory before.

use std::collections::BTreeMap;
use std::io::IoSlice;

use xact_consistency::{Fault, Handle, NewData};
use xact_types::{BlockNr, CommitId, FileBlock, Ino, Result, Run};

use super::staging::{END, StagedBlocks, in_memory};
use crate::extent::Mapping;
use crate::inode_ops::NewInode;
use crate::live::LiveFs;
use crate::live::data::data_mode::Placement;
use crate::live::data::remove::Removal;
use crate::live::inode::cached::{CachedInode, InodeState};
use crate::live::mvcc::versions::BlockVersion;
use crate::live::op::Operation;
use crate::versioned_fs::commit::InstallOps;
use crate::versioned_fs::contents::{BlockContents, NewContents, SpilledBlock};

/// Blocks of a file that the journal overwrites in place.
#[derive(Default)]
pub(super) struct Overwrites(BTreeMap<FileBlock, BlockNr>);

impl Overwrites {
    /// Splits a run of staged blocks. Each part has its file block, its run, and the file's old
    /// block if that is overwritten in place.
    fn split(&self, at: FileBlock, run: Run) -> Vec<(FileBlock, Run, Option<BlockNr>)> {
        let mut parts: Vec<(FileBlock, Run, Option<BlockNr>)> = Vec::new();
        for i in 0..run.len {
            let (at, start) = (at.offset(i), run.start.offset(u64::from(i)));
            let kept = self.0.get(&at).copied();
            match parts.last_mut() {
                Some((_, part, None)) if kept.is_none() => part.len += 1,
                _ => parts.push((at, Run { start, len: 1 }, kept)),
            }
        }
        parts
    }
}

/// Ranges of blocks that an install first takes out of the file; those in `kept` stay.
pub(super) fn replaced(new: &NewContents, kept: &Overwrites) -> Vec<(FileBlock, FileBlock)> {
    let end = new.cut.unwrap_or(END);
    let mut ranges: Vec<(FileBlock, FileBlock)> = Vec::new();
    for (at, _) in new.blocks.iter().filter(|(at, _)| *at < end && !kept.0.contains_key(at)) {
        match ranges.last_mut() {
            Some((_, past)) if *past == *at => *past = at.offset(1),
            _ => ranges.push((*at, at.offset(1))),
        }
    }
    if let Some(cut) = new.cut {
        ranges.push((cut, END));
    }
    ranges
}

impl InstallOps for Operation<'_> {
    fn adopt_inode(&mut self, ino: Ino, new: &NewInode) -> Result<()> {
        self.make_inode(ino, new)
    }

    /// Links staged blocks to the file in this commit: after a crash the file has all of them or
    /// none. Bytes past `size` are ignored.
    fn install(&mut self, ino: Ino, staged: &mut StagedBlocks, size: u64) -> Result<()> {
        let fs = self.fs;
        self.change_inode(ino)?;
        self.unpack_inline(ino)?;
        let kept = self.overwrite(ino, staged)?;
        for (first, past) in replaced(&staged.new, &kept) {
            self.remove_range(ino, first, past, Removal::Replaced)?;
            assert!(self.unfinished.is_empty(), "an install was reserved before it began");
        }
        let keep = self.seen_change(ino);
        let (_, handle, cached, state) = self.parts(ino);
        if let Some(change) = &keep {
            // Versions of data blocks were kept above; the other blocks were holes.
            for (at, _) in staged.new.blocks.iter().filter(|(_, data)| data.is_some()) {
                if fs.needs_block(cached, state, *at, change) {
                    let kept = state.versions.keep_block(change, *at, BlockVersion::Hole);
                    fs.mvcc.note_versioned(ino, change, kept);
                }
            }
        }
        if !staged.spilled.is_empty() || !(staged.journaled || staged.runs.is_empty()) {
            handle.order_data();
        }
        let mut contents = staged.new.blocks.iter().filter_map(|(_, data)| in_memory(data));
        let runs = staged.runs.drain(..).flat_map(|(at, run)| kept.split(at, run));
        for (at, run, kept) in runs {
            if kept.is_some() {
                fs.allocator.give_back(run);
            } else {
                fs.allocator.link(handle, run)?;
                fs.extents(cached.ino, state).insert(handle, &mut state.inode, at, run, false)?;
            }
            let placement = if kept.is_some() { Placement::Written } else { Placement::Fresh };
            fs.writeback.files.count(ino, placement, run.len);
            let start = kept.unwrap_or(run.start);
            // The runs have one block for each block of contents, in the same order.
            for (i, data) in contents.by_ref().take(run.len as usize).enumerate() {
                let block = start.offset(i as u64);
                if fs.options.faults.has(Fault::PlaceBeforeCommit)
                    && kept.is_some()
                    && !fs.engine.holds_data(block, 1)
                {
                    fs.engine.write_data(block, &[IoSlice::new(data)])?;
                }
                if staged.journaled {
                    handle.journal_data(block, NewData { contents: data.clone(), changed: None })?;
                } else if staged.deferred.contains(&at) {
                    handle.defer_data(block, data.clone())?;
                }
            }
        }
        for part in staged.spilled.drain(..) {
            let run = part.run();
            fs.writeback.files.count(ino, Placement::Fresh, run.len);
            fs.allocator.link(handle, run)?;
            fs.extents(cached.ino, state).insert(handle, &mut state.inode, part.at, run, false)?;
            part.blocks.iter().for_each(SpilledBlock::set_linked);
        }
        for (at, run) in staged.unwritten.drain(..) {
            fs.install_unwritten(handle, cached, state, at, run)?;
        }
        let installed = staged.new.blocks.iter().rev().find(|(_, data)| data.is_some());
        let installed_end = installed.map_or(0, |(at, _)| (u64::from(at.0) + 1) * fs.block_bytes());
        let count = staged.new.blocks.len();
        let blocks = std::mem::take(&mut staged.new.blocks).into_iter();
        let in_memory = blocks.filter_map(|(at, data)| match data {
            Some(BlockContents::Memory(data)) => Some((at.0, data)),
            _ => None,
        });
        fs.page_cache.insert_installed(cached, in_memory);
        state.size = size;
        let on_disk = fs.size_without_dirty(cached, state, installed_end).min(size);
        state.inode.set_size(on_disk);
        state.dirty = on_disk != size;
        if state.dirty {
            fs.page_cache.mark_dirty_inode(ino);
        }
        self.touch(ino);
        fs.page_cache.evict(&fs.inodes, count);
        Ok(())
    }

    fn commit_id(&self) -> Option<CommitId> {
        self.commit
    }
}

impl Operation<'_> {
    /// Chooses the staged contents that overwrite their block in place, keeps the old contents for
    /// open views, and drops the cached pages of these blocks.
    fn overwrite(&mut self, ino: Ino, staged: &StagedBlocks) -> Result<Overwrites> {
        let mut found = Overwrites::default();
        if !staged.journaled {
            return Ok(found);
        }
        let (fs, keep) = (self.fs, self.seen_change(ino));
        let locked = self.state(ino)?;
        let end = staged.new.cut.unwrap_or(END);
        let contents = staged.new.blocks.iter().filter(|(_, data)| in_memory(data).is_some());
        for (at, _) in contents.take_while(|(at, _)| *at < end) {
            let mapping = fs.extents(ino, &locked.state).map(&locked.state.inode, *at)?;
            let Mapping::Written { start, .. } = mapping else { continue };
            let needed = keep.filter(|change| fs.needs_block(&locked.cached, &mut locked.state, *at, change));
            // Keeping the old contents would need a read from the device within the handle: use a
            // new block instead.
            if needed.is_some()
                && !locked.cached.pages.lock().map.contains_key(&at.0)
                && !fs.engine.holds_data(start, 1)
            {
                continue;
            }
            if let Some(change) = &needed {
                fs.keep_block(&locked.cached, &mut locked.state, *at, change)?;
            }
            fs.drop_pages(&locked.cached, &locked.state, at.0, at.0 + 1);
            found.0.insert(*at, start);
        }
        Ok(found)
    }
}

impl LiveFs {
    /// Links a run of unwritten blocks to the holes of a range. Blocks that other callers have
    /// mapped since the run was taken stay as they are.
    fn install_unwritten(
        &self,
        handle: &mut Handle,
        cached: &CachedInode,
        state: &mut InodeState,
        at: FileBlock,
        run: Run,
    ) -> Result<()> {
        let mut next = 0;
        for (first, len) in self.holes(cached, state, at.0, at.0 + run.len)? {
            let skipped = first - at.0;
            let part = |from: u32, to: u32| Run { start: run.start.offset(u64::from(from)), len: to - from };
            if skipped > next {
                self.allocator.give_back(part(next, skipped));
            }
            let place = part(skipped, skipped + len);
            self.allocator.link(handle, place)?;
            self.extents(cached.ino, state).insert(
                handle,
                &mut state.inode,
                FileBlock(first),
                place,
                true,
            )?;
            next = skipped + len;
        }
        if next < run.len {
            self.allocator.give_back(Run { start: run.start.offset(u64::from(next)), len: run.len - next });
        }
        Ok(())
    }

    /// Maximum size on disk. It ends before the first block past the present size on disk whose
    /// data is only in memory (another caller has written since `CommitTarget::prepare`), but not
    /// before the end of the installed contents.
    fn size_without_dirty(&self, cached: &CachedInode, state: &InodeState, installed_end: u64) -> u64 {
        let block = self.block_bytes();
        let on_disk = state.inode.size();
        let first = u32::try_from(on_disk / block).unwrap_or(u32::MAX);
        let pages = cached.pages.lock();
        let dirty = pages.map.range(first..).find(|(_, page)| page.dirty);
        match dirty {
            Some((at, _)) => (u64::from(*at) * block).max(on_disk).max(installed_end),
            None => u64::MAX,
        }
    }
}

//! Catches up with a file's changes, so that its fsync can go ahead of its commit (SNAP-12).
//!
//! Write-back of a file goes ahead of the running commit if nothing else in the commit has changed
//! the file (`LiveFs::goes_ahead`). A file that was made in the commit, or whose attributes have
//! changed in it, has changes that the commit has and the durable state lacks. Its fsync makes them
//! once more, in the durable versions of the blocks alone (`Handle::catch_up`): the newest versions
//! have them. After that the file is like one that was made long ago, and its data goes ahead.
//!
//! The changes are: the inode with its bytes as they are now; the bits and counts of the blocks
//! that it has now and had not before; the difference of its charge; and for a new file the bit and
//! the counts of its inode, its name in the folder, and the folder's times.
//!
//! Crash argument. The durable state with these changes is a state of the volume: it has the file
//! as it is now, under its name, and no other change of the commit. It relies on nothing that it
//! does not have:
//! 1. *Names.* A new file still has the one name that it was made with (`InodeState::made_as`). Its
//!    folder is durable: it is in use in the durable version of the inode table, under the same
//!    generation. No folder has moved since the durable commit, so the path leads there. The name
//!    is free in the durable version of the folder, and fits into one of its blocks without a
//!    change of another block: the durable index is the one that leads to it. An old file has the
//!    names that it has durably.
//! 2. *Blocks.* Blocks that the file has now and had not before are free in the durable version of
//!    their bitmap, because nothing is taken before the commit that frees it is durable. Blocks
//!    that it had before it still has: otherwise they would still be marked as used here, without
//!    an owner. Nodes of the extent tree outside the inode are as they were before.
//! 3. *Data.* It was written before the blocks were linked, and the record waits for it. Data in
//!    the commit itself joins the record.
//! 4. *Everything else* (an attribute block that has changed, a file in parts on the list of
//!    orphans, a change of another kind, a durable version that is not known, a group that was
//!    never used) is left to the whole commit. So are all fsyncs if a transaction was committed.
//!
//! Later changes in the same commit build on both versions. If the file is deleted, the commit
//! frees its inode and blocks, and writes each block that a record ahead has, also one that ends as
//! it was before the commit (`cancelled`). If it is renamed or linked, or its folder is split,
//! the commit's own record starts from the versions ahead.

use std::sync::Arc;

use parking_lot::RwLock;
use xact_consistency::{BlockRef, Engine, Fault, Handle, ReserveClass};
use xact_layout::extent::END_OF_FILES;
use xact_layout::inode::{Inode, flag};
use xact_types::{BlockNr, CommitId, Error, FileBlock, Ino, Result, Run, Site};

use crate::api::{Entry, FileKind};
use crate::dir::{Dir, DirBlocks};
use crate::extent::{Extents, Owner};
use crate::live::LiveFs;
use crate::live::inode::cached::{CachedInode, InodeState, MadeAs};
use crate::quota::Charge;

/// The most blocks of a file whose data is looked for in the commit.
const BLOCKS_MAX: u64 = 1 << 16;

/// A folder as it is ahead of a handle's commit.
struct FolderAhead<'a> {
    fs: &'a LiveFs,
    handle: &'a Handle,
    ino: Ino,
    inode: &'a Inode,
}

impl FolderAhead<'_> {
    fn unknown(&self) -> Error {
        Error::corrupt(Site::Inode(self.ino), "the folder's durable contents are not known")
    }
}

impl DirBlocks for FolderAhead<'_> {
    fn count(&self) -> u32 {
        u32::try_from(self.inode.size() / self.fs.block_bytes()).unwrap_or(u32::MAX)
    }

    fn block(&self, at: FileBlock) -> Result<BlockNr> {
        let read = |block| self.handle.contents_ahead(block);
        let place = self.fs.extents_of(self.ino, self.inode).place_in(self.inode, at, &read)?;
        place.ok_or_else(|| self.unknown())
    }

    fn contents(&self, _: &Arc<Engine>, at: FileBlock) -> Result<(BlockNr, BlockRef)> {
        let block = self.block(at)?;
        Ok((block, self.handle.contents_ahead(block)?.ok_or_else(|| self.unknown())?))
    }

    fn append(&mut self, _: &mut Handle) -> Result<(FileBlock, BlockNr)> {
        unreachable!("a name ahead goes into an existing block")
    }

    fn set_indexed(&mut self, _: &mut Handle, _: bool) -> Result<()> {
        unreachable!("a name ahead goes into an existing block")
    }
}

/// A file before and after the changes to catch up with.
struct Change {
    /// The inode ahead of the commit; `None` if the file is new.
    old: Option<Inode>,
    newest: Inode,
    /// Blocks that the file has gained.
    gained: Vec<Run>,
    /// Its name's place, for a new file.
    place: Option<NamePlace>,
}

struct NamePlace {
    folder: Inode,
    block: BlockNr,
}

impl LiveFs {
    /// Before an fsync: catches up with the changes of a file that keep it from going ahead, if
    /// that is possible. Otherwise the fsync is one of the whole commit.
    pub(super) fn catch_up(&self, cached: &Arc<CachedInode>) -> Result<()> {
        if !self.engine.goes_ahead_now() || !self.may_catch_up(cached.ino, &cached.state.read()) {
            return Ok(());
        }
        if self.allocator.read_groups().is_err() {
            // No block or inode was taken, and the commit needs no group.
            return Ok(());
        }
        let mut state = RwLock::write_arc(&cached.state);
        if !self.may_catch_up(cached.ino, &state) {
            return Ok(());
        }
        let mut handle = Handle::begin_ahead(&self.engine, 0, ReserveClass::Upkeep, true)?;
        // The commit with the changes may be durable by now.
        if handle.ahead().is_none() || !self.may_catch_up(cached.ino, &state) {
            return Ok(());
        }
        let change = match self.change_ahead(&handle, cached.ino, &state) {
            Ok(Some(change)) => change,
            // Durable contents that cannot be read are not needed by the commit.
            Ok(None) | Err(Error::Corrupt(_)) => return Ok(()),
            Err(error) => return Err(error),
        };
        let made = self.catch_up_with(&mut handle, cached.ino, &state, &change);
        match handle.ahead() {
            Some(batch) if matches!(made, Ok(true)) => {
                // All of them are in the batch.
                state.last_whole_commit = CommitId(handle.commit_id().0 - 1);
                state.last_batch = batch;
            }
            // Half of them go nowhere.
            _ => handle.fall_back(),
        }
        made.map(drop)
    }

    /// Whether the file has changes to catch up with, and nothing is known that forbids it.
    fn may_catch_up(&self, ino: Ino, state: &InodeState) -> bool {
        let durable = self.engine.durable();
        let knows_names = match &state.made_as {
            Some(_) => state.inode.links_count() == 1,
            None => state.inode.links_count() > 0 && state.last_name_commit <= durable,
        };
        state.live
            && state.inode.is_regular()
            && state.last_whole_commit > durable
            && self.writeback.moved_folder() <= durable
            && knows_names
            && !self.orphans.contains(ino)
    }

    /// The changes to catch up with; `None` if they are not only such that can go ahead. Nothing is
    /// changed.
    fn change_ahead(&self, handle: &Handle, ino: Ino, state: &InodeState) -> Result<Option<Change>> {
        let newest = self.table.read(ino)?;
        let old = match self.allocator.is_linked_ahead(handle, ino)? {
            None => return Ok(None),
            Some(false) => None,
            Some(true) => match self.table.read_ahead_of(handle, ino)? {
                Some(old) if is_earlier_state(&old, &newest) => Some(old),
                _ => return Ok(None),
            },
        };
        let is_small = newest.sectors(&self.sb) * 512 <= BLOCKS_MAX * self.block_bytes();
        if !is_small || !self.has_simple_attributes(handle, old.as_ref(), &newest)? {
            return Ok(None);
        }
        let Some(gained) = self.gained_blocks(handle, ino, old.as_ref(), &newest)? else { return Ok(None) };
        let place = match (&old, &state.made_as) {
            (Some(_), _) => None,
            (None, None) => return Ok(None),
            (None, Some(made_as)) => match self.place_of_name(handle, made_as)? {
                None => return Ok(None),
                place => place,
            },
        };
        Ok(Some(Change { old, newest, gained, place }))
    }

    /// Whether the extended attributes that have changed are in the inode.
    fn has_simple_attributes(&self, handle: &Handle, old: Option<&Inode>, newest: &Inode) -> Result<bool> {
        let block = newest.xattr_block();
        if old.map_or(0, Inode::xattr_block) != block {
            return Ok(false);
        }
        Ok(block == 0 || self.is_same_ahead(handle, BlockNr(block), None)?)
    }

    /// Whether a block's newest contents (`newest`, if they were read) are those ahead of the
    /// handle's commit.
    fn is_same_ahead(&self, handle: &Handle, block: BlockNr, newest: Option<&BlockRef>) -> Result<bool> {
        let newest = newest.map_or_else(|| handle.read(block), |newest| Ok(newest.clone()))?;
        Ok(handle.contents_ahead(block)?.is_some_and(|ahead| ahead == newest))
    }

    /// Runs of blocks that a file has now and had not before; `None` if it has lost blocks, or its
    /// tree is not a simple one.
    fn gained_blocks(
        &self,
        handle: &Handle,
        ino: Ino,
        old: Option<&Inode>,
        newest: &Inode,
    ) -> Result<Option<Vec<Run>>> {
        let extents = self.extents_of(ino, newest);
        if let Some(old) = old
            && old.block_area() == newest.block_area()
            && newest.flags() & flag::EXTENTS != 0
        {
            let same = extents
                .all_nodes(newest, &mut |block, bytes| self.is_same_ahead(handle, block, Some(bytes)))?;
            return Ok(same.then(Vec::new));
        }
        let had = match old {
            Some(old) => self.runs_in_inode(ino, old)?,
            None => Some(Vec::new()),
        };
        let (Some(had), Some(has)) = (had, self.runs_in_inode(ino, newest)?) else { return Ok(None) };
        let blocks = |runs: &[Run]| runs.iter().map(|run| u64::from(run.len)).sum::<u64>();
        let gained = had.iter().fold(has.clone(), |rest, run| without(&rest, run));
        // Otherwise it has lost some.
        Ok((blocks(&gained) + blocks(&had) == blocks(&has)).then_some(gained))
    }

    /// The blocks of a file whose map is in its inode; `None` if it is not.
    fn runs_in_inode(&self, ino: Ino, inode: &Inode) -> Result<Option<Vec<Run>>> {
        if inode.flags() & flag::EXTENTS == 0 {
            let has_none = inode.flags() & flag::INLINE_DATA != 0 || inode.sectors(&self.sb) == 0;
            return Ok(has_none.then(Vec::new));
        }
        self.extents_of(ino, inode).runs_in_inode(inode)
    }

    fn extents_of(&self, ino: Ino, inode: &Inode) -> Extents<'_> {
        let owner = Owner { ino, generation: inode.generation() };
        Extents::new(&self.engine, &self.sb, &self.allocator, owner)
    }

    /// The block of the durable folder that takes a new file's name.
    fn place_of_name(&self, handle: &Handle, made_as: &MadeAs) -> Result<Option<NamePlace>> {
        let dir = made_as.dir;
        if self.allocator.is_linked_ahead(handle, dir)? != Some(true) {
            return Ok(None);
        }
        let Some(folder) = self.table.read_ahead_of(handle, dir)? else { return Ok(None) };
        let is_same = folder.generation() == self.table.read(dir)?.generation();
        let is_in_blocks = folder.flags() & flag::EXTENTS != 0 && folder.flags() & flag::INLINE_DATA == 0;
        if !folder.is_directory() || folder.links_count() == 0 || !is_same || !is_in_blocks {
            return Ok(None);
        }
        let blocks = FolderAhead { fs: self, handle, ino: dir, inode: &folder };
        let block = self.dir_ahead(dir, &folder)?.block_with_gap(&blocks, &made_as.name)?;
        Ok(block.map(|block| NamePlace { folder, block }))
    }

    fn dir_ahead(&self, dir: Ino, folder: &Inode) -> Result<Dir<'_>> {
        Dir::new(&self.sb, &self.engine, dir, folder.generation(), folder.flags())
    }

    /// Makes the changes. False, or an error: one cannot be made, after others perhaps.
    fn catch_up_with(
        &self,
        handle: &mut Handle,
        ino: Ino,
        state: &InodeState,
        change: &Change,
    ) -> Result<bool> {
        let Change { old, newest, gained, place } = change;
        if old.is_none() && !self.allocator.catch_up_inode(handle, ino)? {
            return Ok(false);
        }
        for run in gained.iter().filter(|_| !self.options.faults.has(Fault::AheadWithoutBlocks)) {
            if !self.allocator.catch_up_run(handle, *run)? {
                return Ok(false);
            }
        }
        if self.quotas.is_on() {
            let before = old.as_ref().map_or(Charge::default(), |old| self.quotas.charge_of(ino, old));
            if !self.quotas.catch_up(handle, &before, &self.quotas.charge_of(ino, newest))? {
                return Ok(false);
            }
        }
        if !self.table.catch_up(handle, ino, newest)? {
            return Ok(false);
        }
        if let (Some(place), Some(made_as)) = (place, &state.made_as)
            && !self.catch_up_name(handle, (ino, newest), place, made_as)?
        {
            return Ok(false);
        }
        if newest.flags() & flag::EXTENTS != 0 {
            let all = FileBlock(0)..END_OF_FILES;
            self.extents_of(ino, newest).iterate(newest, all, &mut |extent| {
                handle.catch_up_data(extent.run.start, extent.run.len.into());
                Ok(true)
            })?;
        }
        Ok(true)
    }

    fn catch_up_name(
        &self,
        handle: &mut Handle,
        (ino, file): (Ino, &Inode),
        NamePlace { folder, block }: &NamePlace,
        MadeAs { dir, name }: &MadeAs,
    ) -> Result<bool> {
        let entry = Entry { ino, kind: FileKind::Regular };
        let format = self.dir_ahead(*dir, folder)?;
        let added = handle
            .catch_up(*block, |bytes| format.add_to_block((*block, bytes), name, entry).unwrap_or(false))?;
        let made = file.crtime().unwrap_or_else(|| file.ctime());
        Ok(added
            && self.table.catch_up_fields(handle, *dir, |folder| {
                // Another file may have been made later, and gone ahead earlier.
                folder.set_mtime(folder.mtime().max(made));
                folder.set_ctime(folder.ctime().max(made));
            })?)
    }
}

/// Whether an inode can have become the newest one without losing a name or data at its end.
fn is_earlier_state(old: &Inode, newest: &Inode) -> bool {
    old.is_regular()
        && old.generation() == newest.generation()
        && old.links_count() == newest.links_count()
        && old.size() <= newest.size()
}

/// These runs without the blocks of one.
fn without(runs: &[Run], taken: &Run) -> Vec<Run> {
    let part =
        |start: BlockNr, end: BlockNr| (start < end).then(|| Run { start, len: (end.0 - start.0) as u32 });
    let rest = runs.iter().flat_map(|run| {
        let (start, end) = (taken.start.clamp(run.start, run.end()), taken.end().clamp(run.start, run.end()));
        [part(run.start, start), part(end, run.end())]
    });
    rest.flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_without_some_of_their_blocks() {
        let run = |start, len| Run { start: BlockNr(start), len };
        let runs = [run(10, 5), run(20, 1)];
        assert_eq!(without(&runs, &run(10, 5)), [run(20, 1)]);
        assert_eq!(without(&runs, &run(12, 1)), [run(10, 2), run(13, 2), run(20, 1)]);
        assert_eq!(without(&runs, &run(14, 7)), [run(10, 4)]);
        assert_eq!(without(&runs, &run(30, 7)), runs);
        assert_eq!(without(&runs, &run(1, 9)), runs);
    }
}

//! Directories of the base: the directory code over the extent tree of the directory's inode.

use std::sync::Arc;

use xact_consistency::{BlockRef, Engine, Handle};
use xact_layout::inode::flag;
use xact_types::{BlockNr, Error, FileBlock, Ino, Result, Site};

use super::Base;
use super::cell::State;
use super::inline::{self, is_inline};
use super::op::BaseTree;
use super::shared::require_dir;
use crate::alloc::Purpose;
use crate::api::{DirItem, Entry, FileKind, Name};
use crate::dir::{Dir, DirBlocks, DirEntry, ListItem};
use crate::extent::Mapping;

/// Blocks of a directory that is only read.
struct Reading<'a> {
    base: &'a Base,
    ino: Ino,
    state: &'a State,
}

/// Blocks of a directory that is changed.
struct Changing<'a> {
    base: &'a Base,
    ino: Ino,
    state: &'a mut State,
}

impl Base {
    fn dir(&self, ino: Ino, state: &State) -> Result<Dir<'_>> {
        Dir::new(&self.sb, &self.engine, ino, state.inode.generation(), state.inode.flags())
    }

    fn dir_count(&self, state: &State) -> u32 {
        if is_inline(state) {
            return 1;
        }
        u32::try_from(state.inode.size() / self.block_bytes()).unwrap_or(u32::MAX)
    }

    fn dir_block(&self, ino: Ino, state: &State, at: FileBlock) -> Result<BlockNr> {
        match self.extents(ino, state).map(&state.inode, at)? {
            Mapping::Written { start, .. } => Ok(start),
            _ => Err(Error::corrupt(Site::Inode(ino), "directory has a hole")),
        }
    }

    /// What the name points at; `ENOTDIR` where `ino` is no directory. Every look-up comes by here, also
    /// those that only guess which inodes to lock: another kind of file must not pass for a damaged directory.
    pub(super) fn find_entry(&self, ino: Ino, state: &State, name: &Name) -> Result<Option<Entry>> {
        require_dir(state)?;
        let found = self.dir(ino, state)?.lookup(&Reading { base: self, ino, state }, name)?;
        found.map(|entry| self.complete(ino, entry)).transpose()
    }

    pub(super) fn check_room(&self, ino: Ino, state: &State, name: &Name) -> Result<()> {
        self.dir(ino, state)?.check_room(&Reading { base: self, ino, state }, name)
    }

    pub(super) fn has_gap(&self, ino: Ino, state: &State, name: &Name) -> Result<bool> {
        self.dir(ino, state)?.has_gap(&Reading { base: self, ino, state }, name)
    }

    pub(super) fn dir_is_empty(&self, ino: Ino, state: &State) -> Result<bool> {
        self.dir(ino, state)?.is_empty(&Reading { base: self, ino, state })
    }

    pub(super) fn dir_parent(&self, ino: Ino, state: &State) -> Result<Ino> {
        self.dir(ino, state)?.parent(&Reading { base: self, ino, state })
    }

    pub(super) fn list_entries(
        &self,
        ino: Ino,
        state: &State,
        cookie: u64,
        each: &mut dyn FnMut(DirItem<'_>) -> bool,
    ) -> Result<()> {
        let mut failed = Ok(());
        self.dir(ino, state)?.list(&Reading { base: self, ino, state }, cookie, &mut |item: ListItem<
            '_,
        >| {
            let ListItem { name, next_cookie, .. } = item;
            match self.complete(ino, DirEntry { ino: item.ino, kind: item.kind }) {
                Ok(entry) => each(DirItem { name, ino: entry.ino, kind: entry.kind, next_cookie }),
                Err(error) => {
                    failed = Err(error);
                    false
                }
            }
        })?;
        failed
    }

    /// The place of a name in the directory's listings, there or not.
    pub(super) fn name_key(&self, ino: Ino, state: &State, name: &Name) -> Result<u64> {
        self.dir(ino, state)?.key(&Reading { base: self, ino, state }, name)
    }

    /// Where the entry does not say what kind of inode it names, the inode does. Its kind never
    /// changes while it has a name, so its lock is not needed.
    fn complete(&self, dir: Ino, entry: DirEntry) -> Result<Entry> {
        if entry.ino.0 > self.sb.inodes_count() {
            return Err(Error::corrupt(Site::Inode(dir), "a name points at an inode that cannot be"));
        }
        let kind = match entry.kind {
            Some(kind) => kind,
            None => FileKind::from_mode(self.table.read(entry.ino)?.mode())
                .ok_or(Error::corrupt(Site::Inode(entry.ino), "unknown file type"))?,
        };
        Ok(Entry { ino: entry.ino, kind })
    }
}

impl BaseTree<'_> {
    pub(super) fn add_name(&mut self, ino: Ino, name: &Name, entry: Entry) -> Result<()> {
        self.change_dir(ino, |dir, blocks, handle| dir.add(blocks, handle, name, entry))
    }

    pub(super) fn remove_name(&mut self, ino: Ino, name: &Name) -> Result<()> {
        self.change_dir(ino, |dir, blocks, handle| dir.remove(blocks, handle, name))
    }

    pub(super) fn set_name(&mut self, ino: Ino, name: &Name, entry: Entry) -> Result<()> {
        self.change_dir(ino, |dir, blocks, handle| dir.set(blocks, handle, name, entry))
    }

    pub(super) fn set_dotdot(&mut self, ino: Ino, parent: Ino) -> Result<()> {
        self.change_dir(ino, |dir, blocks, handle| dir.set_parent(blocks, handle, parent))
    }

    /// Gives a new directory its first block.
    pub(super) fn init_dir(&mut self, ino: Ino, parent: Ino) -> Result<()> {
        self.change_dir(ino, |dir, blocks, handle| {
            let (_, first) = blocks.append(handle)?;
            dir.init(handle, first, parent)
        })
    }

    fn change_dir(
        &mut self,
        ino: Ino,
        change: impl FnOnce(&mut Dir<'_>, &mut dyn DirBlocks, &mut Handle) -> Result<()>,
    ) -> Result<()> {
        self.unpack_inline(ino)?;
        let (base, handle, _, state) = self.parts(ino);
        let mut dir = base.dir(ino, state)?;
        change(&mut dir, &mut Changing { base, ino, state }, handle)?;
        self.touch(ino);
        Ok(())
    }
}

impl DirBlocks for Reading<'_> {
    fn count(&self) -> u32 {
        self.base.dir_count(self.state)
    }

    fn block(&self, at: FileBlock) -> Result<BlockNr> {
        self.base.dir_block(self.ino, self.state, at)
    }

    fn contents(&self, engine: &Arc<Engine>, at: FileBlock) -> Result<(BlockNr, BlockRef)> {
        if is_inline(self.state) {
            return Ok((inline::NO_BLOCK, self.base.inline_dir_block(self.ino, self.state)?.into()));
        }
        let block = self.block(at)?;
        Ok((block, engine.read(block)?))
    }

    fn append(&mut self, _: &mut Handle) -> Result<(FileBlock, BlockNr)> {
        unreachable!("directories are read without a handle")
    }

    fn set_indexed(&mut self, _: &mut Handle, _: bool) -> Result<()> {
        unreachable!("directories are read without a handle")
    }
}

impl DirBlocks for Changing<'_> {
    fn count(&self) -> u32 {
        self.base.dir_count(self.state)
    }

    fn block(&self, at: FileBlock) -> Result<BlockNr> {
        self.base.dir_block(self.ino, self.state, at)
    }

    fn append(&mut self, handle: &mut Handle) -> Result<(FileBlock, BlockNr)> {
        let base = self.base;
        let at = FileBlock(base.dir_count(self.state));
        let goal = match at.0.checked_sub(1) {
            Some(last) => self.block(FileBlock(last))?.offset(1),
            None => base.allocator.goal_for(self.ino),
        };
        let run = base.allocator.take(goal, 1, Purpose::Metadata, None)?;
        base.allocator.link(handle, run)?;
        let extents = base.extents(self.ino, self.state);
        extents.insert(handle, &mut self.state.inode, at, run, false)?;
        let size = (u64::from(at.0) + 1) * base.block_bytes();
        self.state.inode.set_size(size);
        self.state.size = size;
        Ok((at, run.start))
    }

    fn set_indexed(&mut self, _: &mut Handle, indexed: bool) -> Result<()> {
        let flags = self.state.inode.flags() & !flag::INDEX;
        self.state.inode.set_flags(if indexed { flags | flag::INDEX } else { flags });
        Ok(())
    }
}

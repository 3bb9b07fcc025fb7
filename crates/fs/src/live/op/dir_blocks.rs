//! Directories: runs the directory code over the block map of the directory's inode.

use std::sync::Arc;

use xact_consistency::{BlockRef, Engine, Handle};
use xact_layout::inode::flag;
use xact_types::{BlockNr, Error, FileBlock, Ino, Result, Site};

use crate::alloc::Purpose;
use crate::api::{DirItem, Entry, FileKind, Name};
use crate::dir::{Dir, DirBlocks, DirEntry, ListItem};
use crate::extent::Mapping;
use crate::live::LiveFs;
use crate::live::data::inline::{self, is_inline};
use crate::live::inode::cached::InodeState;
use crate::live::inode::new_names::{NameChange, NewNames};
use crate::live::op::Operation;
use crate::live::op::shared_reads::require_dir;

/// Blocks of a directory, for reading.
struct Reading<'a> {
    fs: &'a LiveFs,
    ino: Ino,
    state: &'a InodeState,
}

/// Blocks of a directory, for a change.
struct Changing<'a> {
    fs: &'a LiveFs,
    ino: Ino,
    state: &'a mut InodeState,
}

impl LiveFs {
    fn dir(&self, ino: Ino, state: &InodeState) -> Result<Dir<'_>> {
        Dir::new(&self.sb, &self.engine, ino, state.inode.generation(), state.inode.flags())
    }

    pub(super) fn dir_count(&self, state: &InodeState) -> u32 {
        if is_inline(state) {
            return 1;
        }
        u32::try_from(state.inode.size() / self.block_bytes()).unwrap_or(u32::MAX)
    }

    pub(super) fn dir_block(&self, ino: Ino, state: &InodeState, at: FileBlock) -> Result<BlockNr> {
        match self.extents(ino, state).map(&state.inode, at)? {
            Mapping::Written { start, .. } => Ok(start),
            _ => Err(Error::corrupt(Site::Inode(ino), "directory has a hole")),
        }
    }

    /// The entry of a name; `ENOTDIR` if `ino` is not a directory. All look-ups use this function,
    /// including those that only guess which inodes to lock: without the check, another kind of
    /// file would look like a damaged directory.
    pub(in crate::live) fn find_entry(
        &self,
        ino: Ino,
        state: &InodeState,
        name: &Name,
    ) -> Result<Option<Entry>> {
        require_dir(state)?;
        let found = self.dir(ino, state)?.lookup(&Reading { fs: self, ino, state }, name)?;
        found.map(|entry| self.complete(ino, entry)).transpose()
    }

    pub(in crate::live) fn check_name_fits(&self, ino: Ino, state: &InodeState, name: &Name) -> Result<()> {
        self.dir(ino, state)?.check_name_fits(&Reading { fs: self, ino, state }, name)
    }

    pub(in crate::live) fn has_gap(&self, ino: Ino, state: &InodeState, name: &Name) -> Result<bool> {
        self.dir(ino, state)?.has_gap(&Reading { fs: self, ino, state }, name)
    }

    pub(in crate::live) fn dir_is_empty(&self, ino: Ino, state: &InodeState) -> Result<bool> {
        self.dir(ino, state)?.is_empty(&Reading { fs: self, ino, state })
    }

    pub(in crate::live) fn dir_parent(&self, ino: Ino, state: &InodeState) -> Result<Ino> {
        self.dir(ino, state)?.parent(&Reading { fs: self, ino, state })
    }

    pub(in crate::live) fn list_entries(
        &self,
        ino: Ino,
        state: &InodeState,
        cookie: u64,
        each: &mut dyn FnMut(DirItem<'_>) -> bool,
    ) -> Result<()> {
        let known = self.health.folder_damage(ino);
        let mut damage = known.clone();
        let mut failed = None;
        let listed =
            self.dir(ino, state)?.list(&Reading { fs: self, ino, state }, cookie, &mut damage, &mut |item| {
                let ListItem { name, next_cookie, .. } = item;
                match self.complete(ino, DirEntry { ino: item.ino, kind: item.kind }) {
                    Ok(entry) => each(DirItem { name, ino: entry.ino, kind: entry.kind, next_cookie }),
                    // The inode is damaged: its users get the error, not those of other names. The
                    // kernel, too, lists the name.
                    Err(Error::Corrupt(_)) => {
                        each(DirItem { name, ino: item.ino, kind: FileKind::Regular, next_cookie })
                    }
                    Err(error) => {
                        failed = Some(error);
                        false
                    }
                }
            });
        if let (None, Some(damage)) = (known, damage) {
            self.health.keep_folder_damage(ino, damage);
        }
        listed.and(failed.map_or(Ok(()), Err))
    }

    /// The position of a name in the directory's listings, whether the name exists or not.
    pub(in crate::live) fn name_key(&self, ino: Ino, state: &InodeState, name: &Name) -> Result<u64> {
        self.dir(ino, state)?.key(&Reading { fs: self, ino, state }, name)
    }

    /// Adds the kind from the inode if the entry does not have it. An inode's kind never changes
    /// while it has a name, so its lock is not needed.
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

impl Operation<'_> {
    pub(in crate::live) fn add_name(&mut self, ino: Ino, name: &Name, entry: Entry) -> Result<()> {
        let change = if self.is_new(Some(&entry)) { NameChange::Added } else { NameChange::Other };
        self.change_dir(ino, change, |dir, blocks, handle| dir.add(blocks, handle, name, entry))
    }

    /// `old` is the name's entry.
    pub(in crate::live) fn remove_name(&mut self, ino: Ino, name: &Name, old: Option<Entry>) -> Result<()> {
        let change = if self.is_new(old.as_ref()) { NameChange::Removed } else { NameChange::Other };
        self.change_dir(ino, change, |dir, blocks, handle| dir.remove(blocks, handle, name))
    }

    /// `old` is the name's entry before.
    pub(in crate::live) fn set_name(
        &mut self,
        ino: Ino,
        name: &Name,
        old: Option<Entry>,
        entry: Entry,
    ) -> Result<()> {
        let both = self.is_new(old.as_ref()) && self.is_new(Some(&entry));
        let change = if both { NameChange::Moved } else { NameChange::Other };
        self.change_dir(ino, change, |dir, blocks, handle| dir.set(blocks, handle, name, entry))
    }

    pub(in crate::live) fn set_dotdot(&mut self, ino: Ino, parent: Ino) -> Result<()> {
        self.change_dir(ino, NameChange::Other, |dir, blocks, handle| dir.set_parent(blocks, handle, parent))
    }

    /// Gives a new directory its first block.
    pub(in crate::live) fn init_dir(&mut self, ino: Ino, parent: Ino) -> Result<()> {
        self.change_dir(ino, NameChange::Other, |dir, blocks, handle| {
            let (_, first) = blocks.append(handle)?;
            dir.init(handle, first, parent)
        })
    }

    fn change_dir(
        &mut self,
        ino: Ino,
        names: NameChange,
        change: impl FnOnce(&mut Dir<'_>, &mut dyn DirBlocks, &mut Handle) -> Result<()>,
    ) -> Result<()> {
        let was_inline = is_inline(&self.state(ino)?.state);
        self.unpack_inline(ino)?;
        let (fs, handle, _, state) = self.parts(ino);
        let commit = handle.commit_id();
        if !state.names.as_ref().is_some_and(|names| names.is_of(commit)) {
            // A change in this commit before would be unknown: the folder was read again since.
            let known = !was_inline && state.last_commit < commit;
            let indexed = state.inode.flags() & flag::INDEX != 0;
            let names = NewNames::begin(commit, known, fs.dir_count(state), indexed);
            state.names = Some(Box::new(names));
        }
        let mut dir = fs.dir(ino, state)?;
        handle.list_updates();
        change(&mut dir, &mut Changing { fs, ino, state }, handle)?;
        let followed = state.names.as_mut().expect("begun above");
        let has_old_names = followed.note(names, &handle.take_updates());
        self.touch(ino);
        if has_old_names { self.restore_folder(ino) } else { Ok(()) }
    }
}

impl DirBlocks for Reading<'_> {
    fn count(&self) -> u32 {
        self.fs.dir_count(self.state)
    }

    fn block(&self, at: FileBlock) -> Result<BlockNr> {
        self.fs.dir_block(self.ino, self.state, at)
    }

    fn contents(&self, engine: &Arc<Engine>, at: FileBlock) -> Result<(BlockNr, BlockRef)> {
        if is_inline(self.state) {
            return Ok((inline::NO_BLOCK, self.fs.inline_dir_block(self.ino, self.state)?.into()));
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
        self.fs.dir_count(self.state)
    }

    fn block(&self, at: FileBlock) -> Result<BlockNr> {
        self.fs.dir_block(self.ino, self.state, at)
    }

    fn append(&mut self, handle: &mut Handle) -> Result<(FileBlock, BlockNr)> {
        let fs = self.fs;
        let at = FileBlock(fs.dir_count(self.state));
        let goal = match at.0.checked_sub(1) {
            Some(last) => self.block(FileBlock(last))?.offset(1),
            None => fs.allocator.goal_for(self.ino),
        };
        let run = fs.allocator.take(goal, 1, Purpose::Metadata, None)?;
        fs.allocator.link(handle, run)?;
        let extents = fs.extents(self.ino, self.state);
        extents.insert(handle, &mut self.state.inode, at, run, false)?;
        let size = (u64::from(at.0) + 1) * fs.block_bytes();
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

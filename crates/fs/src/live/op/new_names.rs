//! Names that come and go within one commit (SNAP-6), and the names of new files (SNAP-12).
//!
//! A folder that has gained only names of inodes made in the running commit, and has lost all of
//! them again, has the names that it had before the commit. Its blocks then get their contents from
//! before the commit back, and the blocks by which it grew are freed: so nothing of it is written
//! but its inode. In ext4 a folder never shrinks, because it may have been seen at its size by what
//! is on disk; these blocks were in no commit.
//!
//! Crash argument: the commit contains the folder with the same blocks, byte for byte, as all
//! commits before it leave, and the bits of the other blocks as they were. The contents are those
//! of `Engine::base`; without them, and for a folder of which not every change in the commit is
//! known, nothing is done.

use xact_consistency::{Fault, Handle};
use xact_layout::inode::flag;
use xact_types::{FileBlock, Ino, Result};

use super::Operation;
use crate::api::{Entry, FileKind, Name};
use crate::live::data::remove::has_deep_tree;
use crate::live::inode::cached::MadeAs;

/// The most blocks that are freed in the operation that removes the last name: 300,000 names.
const GROWN_MAX: u32 = 2048;

impl Operation<'_> {
    /// A name was added. If it is the first one of an inode that this operation has made, an fsync
    /// of the inode can put it into the folder ahead of the commit (`data::writeback::catch_up`).
    pub(super) fn note_name(&mut self, dir: Ino, name: &Name, entry: Entry) {
        if !self.made.contains(&entry.ino) || self.transaction.is_some() {
            return self.names_change(entry.ino);
        }
        if entry.kind == FileKind::Regular && self.fs.engine.can_go_ahead() {
            let made_as = Box::new(MadeAs { dir, name: name.into() });
            if let Some(locked) = self.locked.get_mut(&entry.ino) {
                locked.state.made_as = Some(made_as);
            }
        }
    }

    /// The names of an inode change. It is locked, since its attributes change too.
    pub(super) fn names_change(&mut self, ino: Ino) {
        let (Some(handle), Some(locked)) = (&self.handle, self.locked.get_mut(&ino)) else { return };
        locked.state.last_name_commit = handle.commit_id();
        if !self.fs.options.faults.has(Fault::AheadUnderOldName) {
            locked.state.made_as = None;
        }
    }

    /// Whether an inode was made in the commit of this operation.
    pub(super) fn is_new(&self, entry: Option<&Entry>) -> bool {
        let commit = self.handle.as_ref().map(Handle::commit_id);
        let state = entry.and_then(|entry| Some(&self.locked.get(&entry.ino)?.state));
        state.is_some_and(|state| Some(state.born) == commit)
    }

    /// Gives a folder that has its old names again its old blocks.
    pub(super) fn restore_folder(&mut self, ino: Ino) -> Result<()> {
        // An open view may read the folder as it was in between.
        if self.keeps_versions() || self.seen_change(ino).is_some() {
            return Ok(());
        }
        let fs = self.fs;
        let locked = self.state(ino)?;
        let (now, names) = (fs.dir_count(&locked.state), locked.state.names.as_ref());
        let names = names.expect("a folder that is restored was followed");
        let (first, past) = (FileBlock(names.blocks), FileBlock(now));
        let grown = past.0.saturating_sub(first.0);
        if grown > GROWN_MAX || (grown > 0 && has_deep_tree(&locked.state)) {
            return Ok(());
        }
        let mut old = names.changed.clone();
        for at in first.0..past.0 {
            old.remove(&fs.dir_block(ino, &locked.state, FileBlock(at))?);
        }
        let credits = 4 * fs.extents(ino, &locked.state).credits_remove(&locked.state.inode);
        if grown > 0 && !self.ensure(credits)? {
            return Ok(());
        }
        let (_, handle, _, state) = self.parts(ino);
        let bases: Vec<_> = old.iter().map(|&block| Some((block, handle.base(block)?))).collect();
        if bases.iter().any(Option::is_none) {
            return Ok(());
        }
        if grown > 0 {
            // These blocks were new in the commit, so that no step uses up its revokes.
            while !fs.remove_some(handle, state, ino, first, past, None)? {}
            let size = u64::from(first.0) * fs.block_bytes();
            state.inode.set_size(size);
            state.size = size;
        }
        for (block, base) in bases.into_iter().flatten() {
            handle.update(block, |bytes| bytes.copy_from_slice(&base))?;
        }
        let names = state.names.as_mut().expect("looked at above");
        names.changed.clear();
        let flags = state.inode.flags() & !flag::INDEX;
        state.inode.set_flags(if names.indexed { flags | flag::INDEX } else { flags });
        Ok(())
    }
}

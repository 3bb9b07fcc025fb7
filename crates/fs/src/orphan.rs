//! Orphans: inodes to be deleted, or truncated to their size, after a crash.
//!
//! An inode is recorded in the handle that removes its last name (or begins a truncation in several
//! steps), and removed in the handle that frees it. Recovery deletes orphans without links and
//! truncates the others.
//!
//! Two structures hold orphans, and both are read on opening:
//! - the list: the superblock's `s_last_orphan` is the first inode, each inode's `i_dtime` the
//!   next. In memory it is linked both ways, so that a removal is O(1);
//! - the orphan file (feature `orphan_file`): see [`file`]. When it is full, the list is used.
//!
//! While a commit is closed but operations in it still run, its list may differ from that of the
//! next commit: the same inodes may have other neighbours. Each version then has its own list in
//! memory.
//!
//! One lock covers both structures; it is held only while a few blocks change within a handle.

mod file;
mod list;

use std::collections::HashMap;

use parking_lot::{Mutex, MutexGuard};
use xact_consistency::{Handle, lock_within};
use xact_types::{CommitId, Ino, Result};

use crate::alloc::Allocator;
use crate::inode_table::InodeTable;
use file::{OrphanFile, Slot};
use list::OrphanList;

/// The orphans of one volume.
pub struct Orphans {
    table: InodeTable,
    state: Mutex<OrphanState>,
}

struct OrphanState {
    list: OrphanList,
    /// The list in a closed commit that is not drained, once a later commit has changed the list.
    older: Option<(CommitId, OrphanList)>,
    file: Option<OrphanFile>,
    /// Orphans that are recorded in the orphan file.
    slots: HashMap<Ino, Slot>,
}

impl OrphanState {
    /// The list in the handle's commit, if the newest list is another one. Once that commit is
    /// drained, only the newest list counts.
    fn older_of(&mut self, h: &Handle) -> Option<&mut OrphanList> {
        let known = self.older.as_ref().map(|(commit, _)| *commit);
        match h.engine().draining() {
            Some(draining) if draining < h.commit_id() && known != Some(draining) => {
                self.older = Some((draining, self.list.clone()));
            }
            None => self.older = None,
            _ => {}
        }
        self.older.as_mut().filter(|(commit, _)| *commit == h.commit_id()).map(|(_, list)| list)
    }

    fn each_list(&mut self, h: &Handle, change: impl Fn(&mut OrphanList)) {
        change(&mut self.list);
        if let Some(older) = self.older_of(h) {
            change(older);
        }
    }
}

impl Orphans {
    /// Credits of `add`: superblock and inode, or a block of the orphan file; and the inode's block
    /// in the next commit, if that has another list.
    pub const ADD_CREDITS: u32 = 3;
    /// Credits of `remove`: the inode and its neighbour (or the superblock), and, if the next
    /// commit has another list, the neighbour in that list.
    pub const REMOVE_CREDITS: u32 = 3;

    /// Reads both structures.
    ///
    /// Errors: `Corrupt` for a list with a cycle or with an inode that cannot be an orphan, and for
    /// an orphan file whose blocks do not have their magic and checksum.
    pub fn open(alloc: &Allocator, table: &InodeTable) -> Result<Orphans> {
        let list = OrphanList::open(alloc, table)?;
        let (file, slots) = OrphanFile::open(alloc, table)?.unzip();
        let slots = slots.unwrap_or_default();
        Ok(Orphans {
            table: table.clone(),
            state: Mutex::new(OrphanState { list, older: None, file, slots }),
        })
    }

    /// The lock. A thread that adds or removes an orphan may wait for the device under it.
    fn lock(&self) -> MutexGuard<'_, OrphanState> {
        lock_within(self.table.engine(), &self.state)
    }

    /// Reads the blocks for adding or removing an orphan into memory, so that a handle does not
    /// wait for them. The change itself returns errors.
    pub fn read_ahead(&self, ino: Ino) {
        let blocks = {
            let state = self.lock();
            let own = match (state.slots.get(&ino), &state.file) {
                (Some(slot), Some(file)) => Some(file.place(*slot)),
                (None, Some(file)) => file.place_of_next(),
                _ => None,
            };
            let before = state.list.previous(ino).and_then(|previous| self.table.block_of(previous).ok());
            [own, before, Some(state.list.head_block())]
        };
        for block in blocks.into_iter().flatten() {
            let _ = self.table.engine().read(block);
        }
    }

    /// All orphans, in no particular order.
    pub fn list(&self) -> Vec<Ino> {
        let state = self.lock();
        state.list.iter().chain(state.slots.keys().copied()).collect()
    }

    pub fn contains(&self, ino: Ino) -> bool {
        let state = self.lock();
        state.slots.contains_key(&ino) || state.list.contains(ino)
    }

    /// Records an inode, unless it is already recorded.
    pub fn add(&self, h: &mut Handle, ino: Ino) -> Result<()> {
        let mut state = self.lock();
        let state = &mut *state;
        if state.slots.contains_key(&ino) || state.list.contains(ino) {
            return Ok(());
        }
        if let Some(file) = &mut state.file
            && let Some(slot) = file.add(h, ino)?
        {
            state.slots.insert(ino, slot);
            return Ok(());
        }
        let sb = self.table.superblock();
        let older = state.older_of(h).map(|list| list.adds(ino));
        list::write(h, sb, &self.table, &state.list.adds(ino), older.as_ref())?;
        state.each_list(h, |list| list.add(ino));
        Ok(())
    }

    /// Removes an inode if it is recorded. Its `i_dtime` is 0 afterwards.
    pub fn remove(&self, h: &mut Handle, ino: Ino) -> Result<()> {
        let mut state = self.lock();
        let state = &mut *state;
        match state.slots.get(&ino).copied() {
            Some(slot) => {
                state.file.as_mut().expect("slots are the file's").remove(h, slot, ino)?;
                state.slots.remove(&ino);
                Ok(())
            }
            None => {
                let sb = self.table.superblock();
                let older = state.older_of(h).map(|list| list.removes(ino));
                list::write(h, sb, &self.table, &state.list.removes(ino), older.as_ref())?;
                state.each_list(h, |list| list.remove(ino));
                Ok(())
            }
        }
    }

    /// Called once when the volume is opened for writing: sets the feature `orphan_present` if
    /// there is an orphan file, so that systems that do not know the file do not write (one
    /// credit).
    pub fn begin_use(&self, h: &mut Handle) -> Result<()> {
        match &self.lock().file {
            Some(file) => file.set_present(h, true),
            None => Ok(()),
        }
    }

    /// Called before a clean unmount: clears the feature if the file is empty (one credit).
    pub fn end_use(&self, h: &mut Handle) -> Result<()> {
        let state = self.lock();
        match &state.file {
            Some(file) if state.slots.is_empty() => file.set_present(h, false),
            _ => Ok(()),
        }
    }
}

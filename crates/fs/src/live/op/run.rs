//! Runs an operation, restarts it if it could not lock an inode, and ends it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use xact_consistency::Fault;
use xact_layout::inode::flag;
use xact_types::{CommitId, Error, Ino, Result};

use super::Operation;
use super::budget::Budget;
use crate::live::LiveFs;
use crate::live::inode::cached::CachedInode;
use crate::live::space::make_space::Effort;

/// Back-off while another thread holds the lock of the inode number being allocated.
const NUMBER_HELD: Duration = Duration::from_micros(50);

/// Maximum number of payers whose quotas an operation with a fixed budget changes.
const OWNERS_MAX: u32 = 8;

impl LiveFs {
    /// Runs `action` as one operation in one commit. It holds the locks of the inodes in
    /// `lock_hint` and of all others that it reads. `action` may run several times before its first
    /// change.
    ///
    /// A failure before the first change leaves everything unchanged. A later failure poisons the
    /// volume: the operation is half done in memory and must not reach the disk.
    pub fn run<R>(
        &self,
        lock_hint: &[Ino],
        budget: Budget,
        action: impl FnMut(&mut Operation<'_>) -> Result<R>,
    ) -> Result<R> {
        self.health.check_served()?;
        let result = self.health.note_corruption(self.run_inner(lock_hint, budget, action));
        self.record_damage(result.as_ref().err());
        result
    }

    /// Records the corruption that the allocator has met, and reacts as the mount asks. `recorded`
    /// is an error whose corruption was recorded already. The caller holds no lock and no handle.
    pub(in crate::live) fn record_damage(&self, recorded: Option<&Error>) {
        for corruption in self.allocator.take_damage() {
            if !matches!(recorded, Some(Error::Corrupt(known)) if *known == corruption) {
                self.health.follow_policy(&corruption);
            }
        }
    }

    fn run_inner<R>(
        &self,
        lock_hint: &[Ino],
        budget: Budget,
        mut action: impl FnMut(&mut Operation<'_>) -> Result<R>,
    ) -> Result<R> {
        let mut want: BTreeSet<Ino> = lock_hint.iter().copied().collect();
        let mut effort = Effort::default();
        // Set if the journal had to become longer for this operation.
        let mut _long_journal;
        loop {
            let mut op = Operation::new(self, budget);
            for &ino in &want {
                op.lock(ino)?;
            }
            let result = action(&mut op);
            if op.number_is_held {
                assert!(!op.has_changed(), "an operation met a new inode after its first change");
                op.abandon();
                drop(op);
                std::thread::sleep(NUMBER_HELD);
                continue;
            }
            if !op.missing.is_empty() {
                assert!(!op.has_changed(), "an operation met a new inode after its first change");
                want.extend(op.locked.keys());
                want.append(&mut op.missing);
                op.abandon();
                continue;
            }
            // The volume counts as full only after all steps that make space.
            if result.as_ref().is_err_and(Error::is_no_space) && !op.has_changed() {
                effort.needed = op.blocks_needed;
                op.abandon();
                drop(op);
                if self.make_space(&mut effort, budget.caller)? {
                    continue;
                }
                return result;
            }
            // The journal grows as far as the volume has space.
            if let (Err(Error::TooLarge { blocks, .. }), false) = (&result, op.has_changed()) {
                let (credits, privileges) = (u32::try_from(*blocks).unwrap_or(u32::MAX), op.privileges());
                op.abandon();
                drop(op);
                _long_journal = self.lengthen_journal(credits, privileges.reserve, budget.caller)?;
                continue;
            }
            let kept = op.keeps_versions();
            let result = op.finish(result);
            if kept {
                self.limit_versions();
            }
            return result;
        }
    }
}

/// The changes that an operation makes durable after it has released its locks.
#[derive(Default)]
struct Awaited {
    commit: Option<CommitId>,
    /// Files with written data.
    files: Vec<Arc<CachedInode>>,
}

impl Awaited {
    fn wait(self, fs: &LiveFs) -> Result<()> {
        for file in &self.files {
            fs.sync_inode(file, false)?;
        }
        self.commit.map_or(Ok(()), |commit| fs.engine.commit(commit))
    }
}

impl<'a> Operation<'a> {
    fn new(fs: &'a LiveFs, budget: Budget) -> Operation<'a> {
        Operation {
            fs,
            locked: BTreeMap::new(),
            missing: BTreeSet::new(),
            number_is_held: false,
            budget: Budget { credits: budget.credits + OWNERS_MAX * fs.quotas.credits(), ..budget },
            blocks_needed: 0,
            wanted: Vec::new(),
            moving: Vec::new(),
            moved: false,
            expected_runs: 0,
            expected_slack: 0,
            handle: None,
            has_stamp: false,
            change: None,
            reservation: None,
            touched: BTreeSet::new(),
            only_times: BTreeSet::new(),
            wrote: BTreeSet::new(),
            taken: Vec::new(),
            made: Vec::new(),
            unlinked: Vec::new(),
            unfinished: Vec::new(),
            changed: false,
            moves_folder: false,
            commit: None,
            transaction: None,
        }
    }

    /// Gives up an attempt that has changed nothing.
    fn abandon(&mut self) {
        for ino in self.taken.drain(..) {
            self.fs.allocator.give_back_inode(ino);
        }
        if std::mem::take(&mut self.moved) {
            for charge in &self.moving {
                self.fs.quotas.reserve(charge, true).expect("an unchecked reservation cannot fail");
            }
        }
    }

    fn finish<R>(mut self, result: Result<R>) -> Result<R> {
        if result.is_err() && !self.has_changed() {
            self.abandon();
            return result;
        }
        let stored = result.and_then(|value| self.store_touched().map(|()| value));
        if let Err(error) = &stored {
            self.fs.engine.poison(&format!("an operation failed half-way: {error}"));
            return stored;
        }
        // The handle ends before the locks are released and before more handles are begun.
        self.handle = None;
        self.reservation = None;
        let unfinished = std::mem::take(&mut self.unfinished);
        for rest in unfinished {
            let locked = self.locked.get_mut(&rest.ino).expect("locked by its removal");
            self.fs.finish_removal(&locked.cached, &mut locked.state, &rest)?;
        }
        let fs = self.fs;
        if self.keeps_versions() {
            for locked in self.locked.values_mut() {
                fs.mvcc.end_change(&mut locked.state.versions);
            }
        }
        let unlinked = std::mem::take(&mut self.unlinked);
        let synced = self.synced();
        drop(self);
        for ino in unlinked {
            fs.delete_if_unused(ino)?;
        }
        synced.wait(fs)?;
        stored
    }

    /// The changes that must be durable before the call returns, as in ext4: all changes of an
    /// inode with the flag `+S`, of a folder with `+D`, and of their kind under the options `sync`
    /// and `dirsync`. A change of a name is a change of its folder. Crash argument: all metadata of
    /// the operation is in one commit of the engine, and the call returns after that commit's
    /// flush; written data returns after an `fsync` of the file.
    fn synced(&self) -> Awaited {
        let mut synced = Awaited::default();
        // The durability of a transaction is that of its commit.
        if self.transaction.is_some() || self.fs.options.faults.has(Fault::SyncedReturnsEarly) {
            return synced;
        }
        if self.touched.iter().any(|ino| self.is_synced(*ino)) {
            synced.commit = self.commit;
        }
        let files = self.wrote.iter().filter(|ino| self.is_synced(**ino));
        synced.files = files.map(|ino| self.locked[ino].cached.clone()).collect();
        synced
    }

    fn is_synced(&self, ino: Ino) -> bool {
        let options = self.fs.options.synced;
        let inode = &self.locked[&ino].state.inode;
        let wanted = if inode.is_directory() { flag::SYNC | flag::DIRSYNC } else { flag::SYNC };
        options.all || options.folders && inode.is_directory() || inode.flags() & wanted != 0
    }

    /// Notes whether more of the write that has just been stored may follow. A part that must be
    /// durable when its call returns counts as a write of its own.
    pub(in crate::live) fn note_part(&self, ino: Ino, is_part: bool) {
        let parts = &self.fs.writeback.parts;
        if is_part && !self.fs.options.faults.has(Fault::WriteInParts) && !self.is_synced(ino) {
            parts.begin(ino);
        } else {
            parts.end(ino);
        }
    }

    pub(super) fn store_touched(&mut self) -> Result<()> {
        if self.touched.is_empty() {
            return Ok(());
        }
        let handle = self.handle.as_mut().expect("touched inodes come with a handle");
        if self.moves_folder || self.transaction.is_some() {
            self.fs.writeback.note_moved_folder(handle.commit_id());
        }
        for &ino in &self.touched {
            let locked = self.locked.get_mut(&ino).expect("touched inodes are locked");
            if self.only_times.contains(&ino) {
                self.fs.store_times(handle, &locked.cached, &mut locked.state)?;
            } else {
                self.fs.store_inode(handle, &locked.cached, &mut locked.state)?;
            }
        }
        Ok(())
    }
}

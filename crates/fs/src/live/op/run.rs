//! Running one operation on the volume: its locks, its handle, its stamp, its end.
//!
//! An operation is a function over an [`Operation`], which locks each inode that the operation
//! reads, all exclusively, and keeps the locks to the end. To keep one total order (rising inode
//! number) although an operation learns its inodes as it goes:
//! - the first attempt locks the inodes of the hint, in order;
//! - an inode met later is locked at once if it is above all that are held, else tried; where it
//!   cannot be had at once, everything is released and the operation starts anew with the larger
//!   set. That is possible because operations read everything before they change anything.
//!
//! The handle and the stamp come with the first change, and what it will need is read before (`read_ahead`). No inode is
//! locked after that, so that what an operation changes of an inode is in the commit of whoever had its lock last, or a later one.
//!
//! What a crash leaves: all blocks change in one handle, so in one commit. The exception are long
//! removals of blocks, see `data::remove`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use xact_consistency::{Handle, Room};
use xact_types::{CommitId, Errno, Error, FileBlock, Ino, Result};

use crate::alloc::{Hold, Purpose, Reservation};
use crate::api::Caller;
use crate::live::LiveFs;
use crate::live::inode::cached::{CachedInode, InodeState, WriteGuard};
use crate::live::mvcc::stamps::Stamp;
use crate::live::space::make_space::{Asker, Effort};
use crate::quota::{Charge, Wanted};

/// How long an operation stays away whose new inode's number somebody else still holds.
const NUMBER_HELD: Duration = Duration::from_micros(50);

/// Inodes that an operation with fixed needs changes, and owners that it changes, at the most.
const OWNERS_MAX: u32 = 8;

/// What an operation needs of the volume before it may change anything.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    /// Metadata blocks that it changes at the most.
    pub credits: u32,
    /// Blocks that it may add for names, attributes and tree nodes: a volume without them refuses it up
    /// front. What depends on what the operation reads is added before its first change
    /// ([`Operation::reserve_growth`]); 0 for operations that only give back, which must work on a full volume.
    pub growth: u64,
    pub privileges: Privileges,
    /// What it may use of the room that the engine has left.
    pub room: Room,
    /// Who gives way where there is no space.
    pub asker: Asker,
}

/// What a caller may use that others may not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Privileges {
    /// The blocks reserved for root, or for those whom the superblock names.
    pub reserve: bool,
    /// More than quotas allow.
    pub beyond_quota: bool,
}

impl Privileges {
    pub const ALL: Privileges = Privileges { reserve: true, beyond_quota: true };
    pub const NONE: Privileges = Privileges { reserve: false, beyond_quota: false };
}

impl Budget {
    /// An operation that adds a name or an attribute: what it grows by follows from what it finds.
    pub(in crate::live) const ADD: Budget = Budget {
        credits: 64,
        growth: 0,
        privileges: Privileges::ALL,
        room: Room::Any,
        asker: Asker::Outside,
    };
    /// An operation that changes attributes or data in memory.
    pub(in crate::live) const CHANGE: Budget = Budget { credits: 32, ..Budget::ADD };
    /// An operation that removes a name or cuts data off.
    pub(in crate::live) const REMOVE: Budget = Budget { room: Room::Removal, ..Budget::ADD };

    pub(in crate::live) fn by(self, privileges: Privileges) -> Budget {
        Budget { privileges, ..self }
    }
}

/// A removal of blocks that goes on after the operation's own commit.
pub(in crate::live) struct Unfinished {
    pub ino: Ino,
    pub first: FileBlock,
    pub past: FileBlock,
    pub hold: Option<Hold>,
}

pub(in crate::live) struct Locked {
    pub cached: Arc<CachedInode>,
    pub state: WriteGuard,
}

/// The volume within one operation; implements [`crate::InodeOps`].
pub struct Operation<'a> {
    pub(in crate::live) fs: &'a LiveFs,
    pub(in crate::live) locked: BTreeMap<Ino, Locked>,
    /// Inodes that could not be locked in order: the operation has to start anew.
    missing: BTreeSet<Ino>,
    /// Somebody else holds the lock of a number that is free: the operation has to start anew.
    pub(in crate::live) number_is_held: bool,
    pub(in crate::live) budget: Budget,
    /// Blocks of contents that it cannot do without, where they may be many.
    pub(in crate::live) blocks_needed: u64,
    /// What the operation will charge to whom.
    wanted: Vec<Wanted>,
    /// Of that, what is promised already, by a transaction that holds it.
    moving: Vec<Charge>,
    /// These promises have ended, by the operation's first change.
    moved: bool,
    /// Runs of blocks that announced installs will take or free.
    pub(in crate::live) expected_runs: u64,
    /// What the removal with the largest last step asks for on top (see `reserve_install`).
    pub(in crate::live) expected_slack: u64,
    pub(in crate::live) handle: Option<Handle>,
    stamp: Option<(Stamp, bool)>,
    reservation: Option<Reservation>,
    /// Inodes to write to their table before the handle ends.
    touched: BTreeSet<Ino>,
    /// Those of them of which nothing but times has changed.
    only_times: BTreeSet<Ino>,
    /// Inodes whose data was written: their times follow with the data.
    pub(in crate::live) wrote: BTreeSet<Ino>,
    /// Inodes taken in this operation and not linked yet.
    pub(in crate::live) taken: Vec<Ino>,
    /// Inodes whose last name went away.
    pub(in crate::live) unlinked: Vec<Ino>,
    /// Removals of blocks that this handle had no room for.
    pub(in crate::live) unfinished: Vec<Unfinished>,
    changed: bool,
    commit: Option<CommitId>,
    /// The user transaction whose commit this is.
    pub(in crate::live) transaction: Option<u64>,
}

impl LiveFs {
    /// What a caller may use (`ext4_has_free_clusters`; of groups, the caller's first one counts).
    pub(in crate::live) fn privileges(&self, caller: &Caller) -> Privileges {
        let root = caller.uid == 0;
        let named = caller.uid == u32::from(self.sb.def_resuid())
            || self.sb.def_resgid() != 0 && caller.gid == u32::from(self.sb.def_resgid());
        Privileges { reserve: root || named, beyond_quota: root }
    }

    /// Runs `action` as one operation in one commit, under the locks of the inodes of `lock_hint` and
    /// of whatever else it reads. `action` may be run several times before it changes anything.
    ///
    /// If it fails before its first change, nothing has happened. If it fails after that, the
    /// volume is poisoned: the operation is half done in memory and must not reach the disk.
    pub fn run<R>(
        &self,
        lock_hint: &[Ino],
        budget: Budget,
        action: impl FnMut(&mut Operation<'_>) -> Result<R>,
    ) -> Result<R> {
        self.health.check_served()?;
        self.health.note_corruption(self.run_inner(lock_hint, budget, action))
    }

    fn run_inner<R>(
        &self,
        lock_hint: &[Ino],
        budget: Budget,
        mut action: impl FnMut(&mut Operation<'_>) -> Result<R>,
    ) -> Result<R> {
        let mut want: BTreeSet<Ino> = lock_hint.iter().copied().collect();
        let mut effort = Effort::default();
        // Set where the journal had to become longer for this operation.
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
            // A volume is full only if it is full after all that makes space.
            if matches!(result, Err(Error::NoSpace)) && !op.has_changed() {
                effort.needed = op.blocks_needed;
                op.abandon();
                drop(op);
                if self.make_space(&mut effort, budget.asker)? {
                    continue;
                }
                return result;
            }
            // The journal takes what there is space for.
            if let (Err(Error::TooLarge { blocks, .. }), false) = (&result, op.has_changed()) {
                let (credits, privileges) = (u32::try_from(*blocks).unwrap_or(u32::MAX), op.privileges());
                op.abandon();
                drop(op);
                _long_journal = self.lengthen_journal(credits, privileges.reserve, budget.asker)?;
                continue;
            }
            let kept = op.keeping().is_some();
            let result = op.finish(result);
            if kept {
                self.limit_versions();
            }
            return result;
        }
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
            stamp: None,
            reservation: None,
            touched: BTreeSet::new(),
            only_times: BTreeSet::new(),
            wrote: BTreeSet::new(),
            taken: Vec::new(),
            unlinked: Vec::new(),
            unfinished: Vec::new(),
            changed: false,
            commit: None,
            transaction: None,
        }
    }

    /// Locks an inode of the hint; the caller goes in rising order.
    fn lock(&mut self, ino: Ino) -> Result<()> {
        let cached = self.fs.cached_inode(ino)?;
        let state = RwLock::write_arc(&cached.state);
        self.locked.insert(ino, Locked { cached, state });
        Ok(())
    }

    /// The inode's state, locked now if it was not yet. `ESTALE` where it is not in use.
    pub(in crate::live) fn state(&mut self, ino: Ino) -> Result<&mut Locked> {
        let locked = self.any_state(ino)?;
        if !locked.state.live {
            return Err(Error::Posix(Errno::ESTALE));
        }
        Ok(locked)
    }

    /// As `state`, also of an inode that is not in use (any more).
    pub(in crate::live) fn any_state(&mut self, ino: Ino) -> Result<&mut Locked> {
        if !self.locked.contains_key(&ino) {
            self.meet(ino)?;
        }
        Ok(self.locked.get_mut(&ino).expect("locked above"))
    }

    fn meet(&mut self, ino: Ino) -> Result<()> {
        // Another operation may have changed it in a later commit than this one's.
        assert!(self.handle.is_none(), "an operation met a new inode after its handle began");
        let cached = self.fs.cached_inode(ino)?;
        let above_all = self.locked.last_key_value().is_none_or(|(last, _)| *last < ino);
        let guard = if above_all {
            Some(RwLock::write_arc(&cached.state))
        } else {
            RwLock::try_write_arc(&cached.state)
        };
        match guard {
            Some(state) => {
                self.locked.insert(ino, Locked { cached, state });
                Ok(())
            }
            None => {
                self.missing.insert(ino);
                // Never seen by a caller: `run` looks at `missing` first.
                Err(Error::Posix(Errno::EAGAIN))
            }
        }
    }

    /// Adds to what the operation needs; before its first change.
    pub(in crate::live) fn reserve_more(&mut self, credits: u32, growth: u64) {
        assert!(self.stamp.is_none(), "an operation says what it needs before it changes anything");
        self.budget.credits = self.budget.credits.saturating_add(credits);
        self.budget.growth += growth;
    }

    /// Adds what a step of the operation takes, `most` blocks, before its first change; where there are not
    /// as many, as many as `exactly` finds it to take, which costs time: as on ext4, what needs no block
    /// works on a full volume. A transaction's commit has counted all of its steps before.
    pub(in crate::live) fn reserve_growth(
        &mut self,
        most: u64,
        exactly: impl FnOnce(&mut Self) -> Result<u64>,
    ) -> Result<()> {
        if self.stamp.is_some() || self.transaction.is_some() {
            return Ok(());
        }
        let purpose = Purpose::Data { privileged: self.budget.privileges.reserve };
        let enough = self.fs.allocator.can_promise(self.budget.growth + most, purpose);
        let blocks = if enough { most } else { exactly(self)? };
        self.reserve_more(0, blocks);
        Ok(())
    }

    /// Announces, before the first change, what will be charged to whom: entries that are missing are
    /// added, and limits are kept.
    pub(in crate::live) fn reserve_quota(&mut self, wanted: Wanted) {
        if self.fs.quotas.is_on() {
            self.wanted.push(wanted);
        }
    }

    /// Announces, before the first change, that what is promised becomes a charge by this operation.
    pub(in crate::live) fn reserve_move(&mut self, promised: Charge) {
        if self.fs.quotas.is_on() {
            self.moving.push(promised);
        }
    }

    /// To be called before the first change: health, quota, space, stamp. Takes the stamp only when all
    /// locks are held, as `mvcc::stamps` demands; inodes made by the operation itself come later and
    /// are nobody else's.
    fn begin_change(&mut self) -> Result<()> {
        if self.stamp.is_some() {
            return Ok(());
        }
        self.fs.health.check_writable()?;
        self.fs.engine.health()?;
        self.fs.allocator.read_groups()?;
        if !self.budget.privileges.beyond_quota {
            self.fs.quotas.check(&self.wanted, &self.moving)?;
        }
        for wanted in self.wanted.drain(..) {
            self.fs.quotas.add_entries(&wanted.more.payer)?;
        }
        if self.budget.growth > 0 {
            let purpose = Purpose::Data { privileged: self.budget.privileges.reserve };
            self.reservation = Some(self.fs.allocator.reserve(self.budget.growth, purpose)?);
        }
        self.moving.iter().for_each(|charge| self.fs.quotas.end_promise(charge));
        self.moved = true;
        let (stamp, keep) = self.fs.mvcc.stamps().next_stamp();
        if let (Some(id), true) = (self.transaction, keep) {
            self.fs.mvcc.stamps().note_transaction(stamp, id);
        }
        self.stamp = Some((stamp, keep));
        Ok(())
    }

    /// Before a change in memory alone (file data, times of a write).
    pub(in crate::live) fn begin_memory_change(&mut self) -> Result<()> {
        self.begin_change()
    }

    /// Before a change of metadata blocks: begins the handle if there is none.
    pub(in crate::live) fn begin_block_change(&mut self) -> Result<()> {
        self.begin_change()?;
        if self.handle.is_none() {
            self.read_ahead();
            let handle = Handle::begin_for(&self.fs.engine, self.budget.credits, self.budget.room)?;
            self.commit = Some(handle.commit_id());
            self.handle = Some(handle);
        }
        Ok(())
    }

    /// The stamp under which old versions are to be kept; `None` when no view is open.
    pub(in crate::live) fn keeping(&self) -> Option<Stamp> {
        self.stamp.and_then(|(stamp, keep)| keep.then_some(stamp))
    }

    pub(in crate::live) fn privileges(&self) -> Privileges {
        self.budget.privileges
    }

    /// The inode is written to its table when the operation ends.
    pub(in crate::live) fn touch(&mut self, ino: Ino) {
        self.touched.insert(ino);
        self.only_times.remove(&ino);
        self.changed = true;
    }

    /// As [`Self::touch`], for a change of times that has been begun as one of the inode.
    pub(in crate::live) fn touch_times(&mut self, ino: Ino) {
        if self.touched.insert(ino) {
            self.only_times.insert(ino);
        }
        self.changed = true;
    }

    /// The commit that makes the operation durable; `None` if it changed no metadata block.
    pub fn commit_id(&self) -> Option<CommitId> {
        self.commit
    }

    /// Makes sure that the handle has room for `credits` more blocks and for the inodes that are
    /// still to be written; false where the commit has none left.
    pub(in crate::live) fn ensure(&mut self, credits: u32) -> Result<bool> {
        let inodes = (self.touched.len() as u32 + 2) * self.fs.credits_inode();
        self.handle.as_mut().expect("within a block change").ensure(credits + inodes)
    }

    /// Stores the touched inodes and goes on in a new part, perhaps of a later commit, for
    /// operations that may be split (`fallocate`).
    pub(in crate::live) fn next_commit(&mut self, credits: u32) -> Result<()> {
        self.store_touched()?;
        let inodes = self.touched.len() as u32 * self.fs.credits_inode();
        self.handle.as_mut().expect("within a block change").renew(credits + inodes)?;
        self.store_touched()
    }

    /// The parts that a change of an inode's blocks needs at once.
    pub(in crate::live) fn parts(
        &mut self,
        ino: Ino,
    ) -> (&'a LiveFs, &mut Handle, &Arc<CachedInode>, &mut InodeState) {
        let locked = self.locked.get_mut(&ino).expect("changed inodes are locked");
        let handle = self.handle.as_mut().expect("within a block change");
        (self.fs, handle, &locked.cached, &mut locked.state)
    }

    /// Whether anything was changed, in memory or in a block: from then on a failure is half done.
    fn has_changed(&self) -> bool {
        self.changed || self.handle.as_ref().is_some_and(Handle::has_changed)
    }

    /// Gives up an attempt that changed nothing.
    fn abandon(&mut self) {
        for ino in self.taken.drain(..) {
            self.fs.allocator.give_back_inode(ino);
        }
        if std::mem::take(&mut self.moved) {
            for charge in &self.moving {
                self.fs.quotas.promise(charge, true).expect("nothing refuses what is not checked");
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
        if self.keeping().is_some() {
            for locked in self.locked.values_mut() {
                fs.mvcc.count(&mut locked.state.versions);
            }
        }
        let unlinked = std::mem::take(&mut self.unlinked);
        drop(self);
        for ino in unlinked {
            fs.delete_if_unused(ino)?;
        }
        stored
    }

    fn store_touched(&mut self) -> Result<()> {
        if self.touched.is_empty() {
            return Ok(());
        }
        let handle = self.handle.as_mut().expect("touched inodes come with a handle");
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

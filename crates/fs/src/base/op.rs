//! Running one operation on the base: its locks, its handle, its stamp, its end.
//!
//! An operation is a function over a [`BaseTree`]. The tree locks each inode that the operation
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
//! removals of blocks, see `remove.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use xact_consistency::{Handle, ReserveClass};
use xact_types::{CommitId, Errno, Error, FileBlock, Ino, Result};

use super::Base;
use super::cell::{Cell, State, WriteGuard};
use super::make_space::{Asker, Effort};
use super::views::Stamp;
use crate::alloc::{Hold, Purpose, Reservation};
use crate::api::Caller;
use crate::quota::{Charge, Wanted};

/// How long an operation stays away whose new inode's number somebody else still holds.
const NUMBER_HELD: Duration = Duration::from_micros(50);

/// Inodes that an operation with fixed needs changes, and owners that it changes, at the most.
const OWNERS_MAX: u32 = 8;

/// What an operation needs of the volume before it may change anything.
#[derive(Debug, Clone, Copy)]
pub struct Needs {
    /// Metadata blocks that it changes at the most.
    pub credits: u32,
    /// Blocks that it may add for names, attributes and tree nodes: a volume without them refuses it up
    /// front. What depends on what the operation reads is added before its first change
    /// ([`BaseTree::may_grow`]); 0 for operations that only give back, which must work on a full volume.
    pub growth: u64,
    pub rights: Rights,
    /// What it may use of the room that the engine has left.
    pub room: ReserveClass,
    /// Who gives way where there is no space.
    pub asker: Asker,
}

/// What a caller may use that others may not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rights {
    /// The blocks reserved for root, or for those whom the superblock names.
    pub reserve: bool,
    /// More than quotas allow.
    pub beyond_quota: bool,
}

impl Rights {
    pub const ALL: Rights = Rights { reserve: true, beyond_quota: true };
    pub const NONE: Rights = Rights { reserve: false, beyond_quota: false };
}

impl Needs {
    /// An operation that adds a name or an attribute: what it grows by follows from what it finds.
    pub(super) const ADD: Needs =
        Needs { credits: 64, growth: 0, rights: Rights::ALL, room: ReserveClass::Any, asker: Asker::Outside };
    /// An operation that changes attributes or data in memory.
    pub(super) const CHANGE: Needs = Needs { credits: 32, ..Needs::ADD };
    /// An operation that removes a name or cuts data off.
    pub(super) const REMOVE: Needs = Needs { room: ReserveClass::Removal, ..Needs::ADD };

    pub(super) fn by(self, rights: Rights) -> Needs {
        Needs { rights, ..self }
    }
}

/// A removal of blocks that goes on after the operation's own commit.
pub(super) struct Unfinished {
    pub ino: Ino,
    pub first: FileBlock,
    pub past: FileBlock,
    pub hold: Option<Hold>,
}

pub(super) struct Locked {
    pub cell: Arc<Cell>,
    pub state: WriteGuard,
}

/// The base within one operation; implements [`crate::Tree`].
pub struct BaseTree<'a> {
    pub(super) base: &'a Base,
    pub(super) locked: BTreeMap<Ino, Locked>,
    /// Inodes that could not be locked in order: the operation has to start anew.
    missing: BTreeSet<Ino>,
    /// Somebody else holds the lock of a number that is free: the operation has to start anew.
    pub(super) number_is_held: bool,
    pub(super) needs: Needs,
    /// Blocks of contents that it cannot do without, where they may be many.
    pub(super) blocks_needed: u64,
    /// What the operation will charge to whom.
    wanted: Vec<Wanted>,
    /// Of that, what is promised already, by a transaction that holds it.
    moving: Vec<Charge>,
    /// These promises have ended, by the operation's first change.
    moved: bool,
    /// Runs of blocks that announced installs will take or free.
    pub(super) expected_runs: u64,
    /// What the removal with the largest last step asks for on top (see `expect_install`).
    pub(super) expected_slack: u64,
    pub(super) handle: Option<Handle>,
    stamp: Option<(Stamp, bool)>,
    reservation: Option<Reservation>,
    /// Inodes to write to their table before the handle ends.
    touched: BTreeSet<Ino>,
    /// Those of them of which nothing but times has changed.
    only_times: BTreeSet<Ino>,
    /// Inodes whose data was written: their times follow with the data.
    pub(super) wrote: BTreeSet<Ino>,
    /// Inodes taken in this operation and not linked yet.
    pub(super) taken: Vec<Ino>,
    /// Inodes whose last name went away.
    pub(super) unlinked: Vec<Ino>,
    /// Removals of blocks that this handle had no room for.
    pub(super) unfinished: Vec<Unfinished>,
    changed: bool,
    commit: Option<CommitId>,
    /// The user transaction whose commit this is.
    pub(super) transaction: Option<u64>,
}

impl Base {
    /// What a caller may use (`ext4_has_free_clusters`; of groups, the caller's first one counts).
    pub(super) fn rights(&self, caller: &Caller) -> Rights {
        let root = caller.uid == 0;
        let named = caller.uid == u32::from(self.sb.def_resuid())
            || self.sb.def_resgid() != 0 && caller.gid == u32::from(self.sb.def_resgid());
        Rights { reserve: root || named, beyond_quota: root }
    }

    /// Runs `action` as one operation in one commit, under the locks of the inodes of `hint` and
    /// of whatever else it reads. `action` may be run several times before it changes anything.
    ///
    /// If it fails before its first change, nothing has happened. If it fails after that, the
    /// volume is poisoned: the operation is half done in memory and must not reach the disk.
    pub fn run<R>(
        &self,
        hint: &[Ino],
        needs: Needs,
        action: impl FnMut(&mut BaseTree<'_>) -> Result<R>,
    ) -> Result<R> {
        self.check_served()?;
        self.judged(self.run_unjudged(hint, needs, action))
    }

    fn run_unjudged<R>(
        &self,
        hint: &[Ino],
        needs: Needs,
        mut action: impl FnMut(&mut BaseTree<'_>) -> Result<R>,
    ) -> Result<R> {
        let mut want: BTreeSet<Ino> = hint.iter().copied().collect();
        let mut effort = Effort::default();
        // Drawn where the journal had to become longer for this operation.
        let mut _long_journal;
        loop {
            let mut tree = BaseTree::new(self, needs);
            for &ino in &want {
                tree.lock(ino)?;
            }
            let result = action(&mut tree);
            if tree.number_is_held {
                assert!(!tree.has_changed(), "an operation met a new inode after its first change");
                tree.abandon();
                drop(tree);
                std::thread::sleep(NUMBER_HELD);
                continue;
            }
            if !tree.missing.is_empty() {
                assert!(!tree.has_changed(), "an operation met a new inode after its first change");
                want.extend(tree.locked.keys());
                want.append(&mut tree.missing);
                tree.abandon();
                continue;
            }
            // A volume is full only if it is full after all that makes space.
            if matches!(result, Err(Error::NoSpace)) && !tree.has_changed() {
                effort.needed = tree.blocks_needed;
                tree.abandon();
                drop(tree);
                if self.make_space(&mut effort, needs.asker)? {
                    continue;
                }
                return result;
            }
            // The journal takes what there is space for.
            if let (Err(Error::TooLarge { blocks, .. }), false) = (&result, tree.has_changed()) {
                let (credits, rights) = (u32::try_from(*blocks).unwrap_or(u32::MAX), tree.rights());
                tree.abandon();
                drop(tree);
                _long_journal = self.lengthen_journal(credits, rights.reserve, needs.asker)?;
                continue;
            }
            let kept = tree.keeping().is_some();
            let result = tree.finish(result);
            if kept {
                self.limit_versions();
            }
            return result;
        }
    }
}

impl<'a> BaseTree<'a> {
    fn new(base: &'a Base, needs: Needs) -> BaseTree<'a> {
        BaseTree {
            base,
            locked: BTreeMap::new(),
            missing: BTreeSet::new(),
            number_is_held: false,
            needs: Needs { credits: needs.credits + OWNERS_MAX * base.quotas.credits(), ..needs },
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
        let cell = self.base.cell(ino)?;
        let state = RwLock::write_arc(&cell.state);
        self.locked.insert(ino, Locked { cell, state });
        Ok(())
    }

    /// The inode's state, locked now if it was not yet. `ESTALE` where it is not in use.
    pub(super) fn state(&mut self, ino: Ino) -> Result<&mut Locked> {
        let locked = self.any_state(ino)?;
        if !locked.state.live {
            return Err(Error::Posix(Errno::ESTALE));
        }
        Ok(locked)
    }

    /// As `state`, also of an inode that is not in use (any more).
    pub(super) fn any_state(&mut self, ino: Ino) -> Result<&mut Locked> {
        if !self.locked.contains_key(&ino) {
            self.meet(ino)?;
        }
        Ok(self.locked.get_mut(&ino).expect("locked above"))
    }

    fn meet(&mut self, ino: Ino) -> Result<()> {
        // Another operation may have changed it in a later commit than this one's.
        assert!(self.handle.is_none(), "an operation met a new inode after its handle began");
        let cell = self.base.cell(ino)?;
        let above_all = self.locked.last_key_value().is_none_or(|(last, _)| *last < ino);
        let guard =
            if above_all { Some(RwLock::write_arc(&cell.state)) } else { RwLock::try_write_arc(&cell.state) };
        match guard {
            Some(state) => {
                self.locked.insert(ino, Locked { cell, state });
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
    pub(super) fn need_more(&mut self, credits: u32, growth: u64) {
        assert!(self.stamp.is_none(), "an operation says what it needs before it changes anything");
        self.needs.credits = self.needs.credits.saturating_add(credits);
        self.needs.growth += growth;
    }

    /// Adds what a step of the operation takes, `most` blocks, before its first change; where there are not
    /// as many, as many as `exactly` finds it to take, which costs time: as on ext4, what needs no block
    /// works on a full volume. A transaction's commit has counted all of its steps before.
    pub(super) fn may_grow(
        &mut self,
        most: u64,
        exactly: impl FnOnce(&mut Self) -> Result<u64>,
    ) -> Result<()> {
        if self.stamp.is_some() || self.transaction.is_some() {
            return Ok(());
        }
        let purpose = Purpose::Data { privileged: self.needs.rights.reserve };
        let enough = self.base.allocator.can_promise(self.needs.growth + most, purpose);
        let blocks = if enough { most } else { exactly(self)? };
        self.need_more(0, blocks);
        Ok(())
    }

    /// Announces, before the first change, what will be charged to whom: entries that are missing are
    /// added, and limits are kept.
    pub(super) fn want_quota(&mut self, wanted: Wanted) {
        if self.base.quotas.is_on() {
            self.wanted.push(wanted);
        }
    }

    /// Announces, before the first change, that what is promised becomes a charge by this operation.
    pub(super) fn expect_move(&mut self, promised: Charge) {
        if self.base.quotas.is_on() {
            self.moving.push(promised);
        }
    }

    /// To be called before the first change: health, quota, space, stamp. Draws the stamp only when all
    /// locks are held, as `views.rs` demands; inodes made by the operation itself come later and
    /// are nobody else's.
    fn begin_change(&mut self) -> Result<()> {
        if self.stamp.is_some() {
            return Ok(());
        }
        self.base.check_writable()?;
        self.base.engine.health()?;
        self.base.allocator.read_groups()?;
        if !self.needs.rights.beyond_quota {
            self.base.quotas.check(&self.wanted, &self.moving)?;
        }
        for wanted in self.wanted.drain(..) {
            self.base.quotas.add_entries(&wanted.more.payer)?;
        }
        if self.needs.growth > 0 {
            let purpose = Purpose::Data { privileged: self.needs.rights.reserve };
            self.reservation = Some(self.base.allocator.reserve(self.needs.growth, purpose)?);
        }
        self.moving.iter().for_each(|charge| self.base.quotas.end_promise(charge));
        self.moved = true;
        let (stamp, keep) = self.base.views.draw();
        if let (Some(id), true) = (self.transaction, keep) {
            self.base.views.note_transaction(stamp, id);
        }
        self.stamp = Some((stamp, keep));
        Ok(())
    }

    /// Before a change in memory alone (file data, times of a write).
    pub(super) fn begin_memory_change(&mut self) -> Result<()> {
        self.begin_change()
    }

    /// Before a change of metadata blocks: begins the handle if there is none.
    pub(super) fn begin_block_change(&mut self) -> Result<()> {
        self.begin_change()?;
        if self.handle.is_none() {
            self.read_ahead();
            let handle = Handle::begin_for(&self.base.engine, self.needs.credits, self.needs.room)?;
            self.commit = Some(handle.commit_id());
            self.handle = Some(handle);
        }
        Ok(())
    }

    /// The stamp under which old versions are to be kept; `None` when no view is open.
    pub(super) fn keeping(&self) -> Option<Stamp> {
        self.stamp.and_then(|(stamp, keep)| keep.then_some(stamp))
    }

    pub(super) fn rights(&self) -> Rights {
        self.needs.rights
    }

    /// The inode is written to its table when the operation ends.
    pub(super) fn touch(&mut self, ino: Ino) {
        self.touched.insert(ino);
        self.only_times.remove(&ino);
        self.changed = true;
    }

    /// As [`Self::touch`], for a change of times that has been begun as one of the inode.
    pub(super) fn touch_times(&mut self, ino: Ino) {
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
    pub(super) fn ensure(&mut self, credits: u32) -> Result<bool> {
        let inodes = (self.touched.len() as u32 + 2) * self.base.credits_inode();
        self.handle.as_mut().expect("within a block change").ensure(credits + inodes)
    }

    /// Stores the touched inodes and goes on in a new part, perhaps of a later commit, for
    /// operations that may be split (`fallocate`).
    pub(super) fn next_commit(&mut self, credits: u32) -> Result<()> {
        self.store_touched()?;
        let inodes = self.touched.len() as u32 * self.base.credits_inode();
        self.handle.as_mut().expect("within a block change").renew(credits + inodes)?;
        self.store_touched()
    }

    /// The parts that a change of an inode's blocks needs at once.
    pub(super) fn parts(&mut self, ino: Ino) -> (&'a Base, &mut Handle, &Arc<Cell>, &mut State) {
        let locked = self.locked.get_mut(&ino).expect("changed inodes are locked");
        let handle = self.handle.as_mut().expect("within a block change");
        (self.base, handle, &locked.cell, &mut locked.state)
    }

    /// Whether anything was changed, in memory or in a block: from then on a failure is half done.
    fn has_changed(&self) -> bool {
        self.changed || self.handle.as_ref().is_some_and(Handle::has_changed)
    }

    /// Gives up an attempt that changed nothing.
    fn abandon(&mut self) {
        for ino in self.taken.drain(..) {
            self.base.allocator.give_back_inode(ino);
        }
        if std::mem::take(&mut self.moved) {
            for charge in &self.moving {
                self.base.quotas.promise(charge, true).expect("nothing refuses what is not checked");
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
            self.base.engine.poison(&format!("an operation failed half-way: {error}"));
            return stored;
        }
        // The handle ends before the locks are released and before more handles are begun.
        self.handle = None;
        self.reservation = None;
        let unfinished = std::mem::take(&mut self.unfinished);
        for rest in unfinished {
            let locked = self.locked.get_mut(&rest.ino).expect("locked by its removal");
            self.base.finish_removal(&locked.cell, &mut locked.state, &rest)?;
        }
        let base = self.base;
        if self.keeping().is_some() {
            for locked in self.locked.values_mut() {
                base.count_versions(&mut locked.state.versions);
            }
        }
        let unlinked = std::mem::take(&mut self.unlinked);
        drop(self);
        for ino in unlinked {
            base.delete_if_unused(ino)?;
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
                self.base.store_times(handle, &locked.cell, &mut locked.state)?;
            } else {
                self.base.store_inode(handle, &locked.cell, &mut locked.state)?;
            }
        }
        Ok(())
    }
}

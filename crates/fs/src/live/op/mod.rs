//! One operation on the volume: its locks, its handle, its stamp, its end.
//!
//! An operation is a function over an [`Operation`], which locks each inode that the operation
//! reads, all exclusively, and keeps the locks to the end. To keep one total order (rising inode
//! number) although an operation learns its inodes as it goes:
//! - the first attempt locks the inodes of the hint, in order;
//! - an inode met later is locked at once if it is above all that are held, else tried; where it
//!   cannot be had at once, everything is released and the operation restarts with the larger
//!   set. That is possible because operations read everything before they change anything.
//!
//! The handle and the stamp come with the first change, and what it will need is read before
//! (`read_ahead`). No inode is locked after that, so that what an operation changes of an inode is
//! in the commit of the operation that had its lock last, or in a later one.
//!
//! What a crash leaves: all blocks change in one handle, so in one commit. The exception are long
//! removals of blocks, see `data::remove`.
//!
//! - `run`: runs an operation, restarts it, ends it; `locks`: what it locks as it goes
//! - `budget`: what it reserves before its first change; `changes`: what each change begins with
//! - `inode_ops`: [`crate::InodeOps`] for it; `dir_blocks`: directories over the extent tree
//! - `read_ahead`: what a handle will need, so that none waits for the device
//! - `shared_reads`: reads under the shared lock, without an operation

mod budget;
mod changes;
mod dir_blocks;
mod inode_ops;
mod locks;
mod read_ahead;
mod run;
mod shared_reads;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use xact_consistency::Handle;
use xact_types::{CommitId, FileBlock, Ino};

use crate::alloc::{Hold, Reservation};
use crate::live::LiveFs;
use crate::live::inode::cached::{CachedInode, WriteGuard};
use crate::quota::{Charge, Wanted};
use crate::versioned_fs::read_as_of::Stamp;

pub use budget::{Budget, Privileges};
pub(super) use inode_ops::FAST_LINK_BYTES;

/// A removal of blocks that continues after the operation's own commit.
pub(super) struct UnfinishedRemoval {
    pub ino: Ino,
    pub first: FileBlock,
    pub past: FileBlock,
    pub hold: Option<Hold>,
}

pub(super) struct Locked {
    pub cached: Arc<CachedInode>,
    pub state: WriteGuard,
}

/// The volume within one operation; implements [`crate::InodeOps`].
pub struct Operation<'a> {
    pub(super) fs: &'a LiveFs,
    pub(super) locked: BTreeMap<Ino, Locked>,
    /// Inodes that could not be locked in order: the operation has to restart.
    missing: BTreeSet<Ino>,
    /// Another thread holds the lock of a number that is free: the operation has to restart.
    pub(super) number_is_held: bool,
    pub(super) budget: Budget,
    /// Blocks of contents that it cannot do without, where they may be many.
    pub(super) blocks_needed: u64,
    /// What the operation will charge to whom.
    wanted: Vec<Wanted>,
    /// Of that, what is reserved already, by a transaction that holds it.
    moving: Vec<Charge>,
    /// These reservations have ended, by the operation's first change.
    moved: bool,
    /// Runs of blocks that announced installs will take or free.
    pub(super) expected_runs: u64,
    /// What the removal with the largest last step asks for on top (see `reserve_install`).
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
    pub(super) unfinished: Vec<UnfinishedRemoval>,
    changed: bool,
    /// The commit that makes the operation durable; `None` if it changed no metadata block.
    pub(super) commit: Option<CommitId>,
    /// The user transaction whose commit this is.
    pub(super) transaction: Option<u64>,
}

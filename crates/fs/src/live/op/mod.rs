//! One operation on the volume, with its locks, its handle and its stamp.
//!
//! An operation is a function over an [`Operation`]. The [`Operation`] takes the exclusive lock of
//! each inode that the function reads, and keeps the locks until the operation ends. Locks follow
//! one total order (rising inode number), although an operation finds out only as it runs which
//! inodes it needs:
//! - The first attempt locks the inodes of the lock hint, in order.
//! - A later inode is locked at once if its number is above all locked ones; otherwise the lock is
//!   only tried. If that fails, all locks are released and the operation restarts with the larger
//!   set. A restart is possible because operations read everything before they change anything.
//!
//! The first change takes the stamp and begins the handle, after a read-ahead of the blocks that
//! the handle needs (`read_ahead`). No inode is locked after that. So the changes of an inode enter
//! commits in the order in which operations held its lock: the changes of a later holder are never
//! in an earlier commit.
//!
//! After a crash, all changes of an operation are present or none is, because one handle is part of
//! one commit. The exceptions are long removals of blocks, see `data::remove`.
//!
//! - `run`: runs, restarts and ends an operation; `locks`: its inode locks
//! - `budget`: reservations before its first change; `changes`: the start of each change
//! - `inode_ops`: [`crate::InodeOps`] for it; `dir_blocks`: directories over the extent tree
//! - `new_names`: folders whose new names are removed before the commit is written
//! - `read_ahead`: reads the blocks that a handle needs, so that no handle waits for the device
//! - `shared_reads`: reads under the shared lock, without an operation

mod budget;
mod changes;
mod dir_blocks;
mod inode_ops;
mod locks;
mod new_names;
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
use crate::live::mvcc::stamps::Change;
use crate::quota::{Charge, Wanted};

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
    /// Inodes that could not be locked in order: the operation must restart.
    missing: BTreeSet<Ino>,
    /// Another thread holds the lock of a free inode number: the operation must restart.
    pub(super) number_is_held: bool,
    pub(super) budget: Budget,
    /// Number of data blocks that the operation needs at least, if it may be large.
    pub(super) blocks_needed: u64,
    /// Quota charges that the operation will make.
    wanted: Vec<Wanted>,
    /// Reservations of a transaction that become charges of this operation.
    moving: Vec<Charge>,
    /// The first change has ended the reservations in `moving`.
    moved: bool,
    /// Runs of blocks that reserved installs will take or free.
    pub(super) expected_runs: u64,
    /// Extra credits for the largest last step of a removal (see `reserve_install`).
    pub(super) expected_slack: u64,
    pub(super) handle: Option<Handle>,
    /// The first change has taken the operation's stamp.
    has_stamp: bool,
    /// The operation as a change; `None` before its stamp, or if no view is open.
    change: Option<Change>,
    reservation: Option<Reservation>,
    /// Inodes to store in the inode table before the handle ends.
    touched: BTreeSet<Ino>,
    /// Inodes in `touched` of which only times have changed.
    only_times: BTreeSet<Ino>,
    /// Inodes whose data was written: their times are written with the data.
    pub(super) wrote: BTreeSet<Ino>,
    /// Inode numbers taken in this operation and not linked yet.
    pub(super) taken: Vec<Ino>,
    /// Inodes made in this operation.
    made: Vec<Ino>,
    /// Inodes whose last name was removed.
    pub(super) unlinked: Vec<Ino>,
    /// Removals of blocks that did not fit into this handle.
    pub(super) unfinished: Vec<UnfinishedRemoval>,
    changed: bool,
    /// A folder gets another path.
    pub(super) moves_folder: bool,
    /// The commit that makes the operation durable; `None` if it changed no metadata block.
    pub(super) commit: Option<CommitId>,
    /// The user transaction whose commit this is.
    pub(super) transaction: Option<u64>,
}

//! Commits of transactions: validation item by item, and the changes, as one operation of the file
//! system.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use xact_types::{CommitId, FileBlock, Ino, Result, Timestamp};

use super::contents::NewContents;
use super::read_as_of::{ChangedBy, ReadAsOf, Stamp};
use crate::api::Name;
use crate::inode_ops::{InodeOps, NewInode};
use crate::quota::Payer;
use crate::xattr::XattrChanges;

/// The names that change in one directory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DirGrowth {
    /// Size before the commit, in bytes; 0 for a new directory.
    pub size: u64,
    pub added: u64,
    /// Bytes of the added names.
    pub added_bytes: u64,
    /// Names that are removed or get another inode.
    pub changed: u64,
}

/// The size of a commit without the contents of files, which are reserved file by file
/// ([`ReservationOps::reserve_install`]).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommitSize {
    /// Inodes that are created, changed, or lose their last name.
    pub inodes: BTreeSet<Ino>,
    pub made: u64,
    pub unlinked: u64,
    pub directories: Vec<DirGrowth>,
    /// Inodes whose extended attributes change.
    pub xattrs: u64,
    /// New symbolic links.
    pub symlinks: u64,
    /// The commit may use the space reserved for root.
    pub privileged: bool,
    /// Stamp of the transaction's view.
    pub begun: Stamp,
}

/// The transaction whose commit stages contents.
#[derive(Debug, Clone, Copy)]
pub struct Staging {
    /// The commit may use the space reserved for root.
    pub privileged: bool,
    /// Stamp of the transaction's view.
    pub begun: Stamp,
}

/// A file system that commits transactions.
pub trait CommitTarget: ReadAsOf + Sized {
    /// New contents of a file, written to free blocks; the drop gives the blocks back.
    type Staged;
    /// The file system within one commit, under its locks.
    type Operation<'a>: CommitOps
        + ValidationOps<Fs = Self, ReadView = Self::ReadView>
        + ReservationOps<Staged = Self::Staged>
    where
        Self: 'a;

    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    /// `DoesNotFit` if the inode cannot hold these changes; `None` means a new inode.
    fn check_xattrs(&self, ino: Option<Ino>, changes: &XattrChanges) -> Result<()>;

    /// Stages new contents for an existing or a new file.
    fn stage(self: &Arc<Self>, ino: Ino, new: NewContents, by: Staging) -> Result<Self::Staged>;
    /// Prepares a commit; called with the files whose contents it changes.
    fn prepare(&self, files: &[Ino]) -> Result<()>;

    /// Runs `action` as one operation in one commit. It holds the locks of `inodes` and of all
    /// other inodes that it reads. `action` may run several times before its first change. Returns
    /// once the changes are visible, which is before they are durable.
    fn commit<R>(
        &self,
        inodes: &[Ino],
        size: &CommitSize,
        action: impl FnMut(&mut Self::Operation<'_>) -> Result<R>,
    ) -> Result<R>;

    fn wait_durable(&self, commit: CommitId) -> Result<()>;

    /// For crash tests: the record of a persisted transaction is removed in a commit of its own,
    /// after the changes.
    fn removes_persisted_apart(&self) -> bool {
        false
    }
}

/// The calls of a commit on the file system under its locks.
pub trait CommitOps: InodeOps + ValidationOps + InstallOps {}

impl<T: InodeOps + ValidationOps + InstallOps> CommitOps for T {}

/// Validation: whether the items that a transaction read or changed are unchanged.
pub trait ValidationOps {
    type Fs;
    type ReadView;

    // The author of a change of an item since the stamp of an open view, if there is one.
    fn entry_changed_since(&mut self, dir: Ino, name: &Name, since: Stamp) -> Result<Option<ChangedBy>>;
    /// Names for which `ignored` returns true do not count.
    fn any_entry_changed_since(
        &mut self,
        dir: Ino,
        since: Stamp,
        ignored: &dyn Fn(&Name) -> bool,
    ) -> Result<Option<ChangedBy>>;
    fn blocks_changed_since(
        &mut self,
        ino: Ino,
        blocks: Range<FileBlock>,
        since: Stamp,
    ) -> Result<Option<ChangedBy>>;
    fn xattr_changed_since(&mut self, ino: Ino, name: &[u8], since: Stamp) -> Result<Option<ChangedBy>>;
    fn any_xattr_changed_since(&mut self, ino: Ino, since: Stamp) -> Result<Option<ChangedBy>>;
    /// Any attribute, times and existence included.
    fn attr_changed_since(&mut self, ino: Ino, since: Stamp) -> Result<Option<ChangedBy>>;
    /// `TooOld` if the changes since that stamp are no longer known, because its view has expired.
    fn check_view(&self, stamp: Stamp) -> Result<()>;

    /// Sets the user transaction whose commit this is, before the first change.
    fn set_transaction(&mut self, transaction: u64);
    /// Opens a view after the last change, under the locks of all inodes that the commit has read,
    /// so that no other thread can have changed them in between.
    fn open_view_after(&mut self, fs: &Arc<Self::Fs>) -> Self::ReadView;

    /// As [`CommitTarget::check_xattrs`], for the inode's state under the commit's locks.
    fn check_xattrs(&mut self, ino: Option<Ino>, changes: &XattrChanges) -> Result<()>;

    /// Whether the inode is in use now.
    fn exists(&mut self, ino: Ino) -> Result<bool>;
}

/// Reservations of a commit before its first change.
pub trait ReservationOps {
    type Staged;

    /// Reserves the adoption of an inode number that was reserved for this payer.
    fn reserve_adoption(&mut self, ino: Ino, payer: Payer) -> Result<()>;
    /// Reserves a quota charge.
    fn reserve_charge(&mut self, payer: Payer, blocks: u64, inodes: u64);
    /// Reserves the move of an inode's charge to another owner, group or project.
    fn reserve_payer_change(&mut self, ino: Ino, payer: Payer) -> Result<()>;
    /// Reserves an `install` into an existing file.
    fn reserve_install(&mut self, ino: Ino, staged: &Self::Staged) -> Result<()>;
    /// Reserves an `install` into a file that the commit creates.
    fn reserve_new_file(&mut self, staged: &Self::Staged);
}

/// Installs inodes and contents of a transaction.
pub trait InstallOps: ReservationOps {
    /// As [`InodeOps::new_inode`], with a reserved number.
    fn adopt_inode(&mut self, ino: Ino, new: &NewInode) -> Result<()>;
    /// Links staged contents to the file and sets its size, as part of the commit: a crash leaves
    /// all of it or nothing.
    fn install(&mut self, ino: Ino, staged: &mut Self::Staged, size: u64) -> Result<()>;
    /// The commit with the changes; `None` if no metadata changed.
    fn commit_id(&self) -> Option<CommitId>;
}

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
    /// Size before, in bytes; 0 for a new directory.
    pub size: u64,
    pub added: u64,
    /// Bytes of the added names.
    pub added_bytes: u64,
    /// Names that go or point elsewhere.
    pub changed: u64,
}

/// What a commit changes, without the contents of files: those are announced file by file
/// ([`ReservationOps::reserve_install`]).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommitSize {
    /// Inodes that are made, changed, or lose their last name.
    pub inodes: BTreeSet<Ino>,
    pub made: u64,
    pub unlinked: u64,
    pub directories: Vec<DirGrowth>,
    /// Inodes whose extended attributes change.
    pub xattrs: u64,
    /// New symbolic links.
    pub symlinks: u64,
    /// The space reserved for root may be used.
    pub privileged: bool,
    /// The view that the commit rests on.
    pub begun: Stamp,
}

/// The transaction whose commit stages contents.
#[derive(Debug, Clone, Copy)]
pub struct Staging {
    /// The space reserved for root may be used.
    pub privileged: bool,
    /// The view that the commit rests on.
    pub begun: Stamp,
}

/// A file system that commits transactions.
pub trait CommitTarget: ReadAsOf + Sized {
    /// New contents of a file, written to free places; given back when dropped.
    type Staged;
    /// The file system within one commit, under locks.
    type Operation<'a>: CommitOps
        + ValidationOps<Fs = Self, ReadView = Self::ReadView>
        + ReservationOps<Staged = Self::Staged>
    where
        Self: 'a;

    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    /// `DoesNotFit` where an inode, a new one where none is named, cannot hold these changes.
    fn check_xattrs(&self, ino: Option<Ino>, changes: &XattrChanges) -> Result<()>;

    /// Writes new contents for a file that exists or will.
    fn stage(self: &Arc<Self>, ino: Ino, new: NewContents, by: Staging) -> Result<Self::Staged>;
    /// Called before a commit with the files whose contents it changes.
    fn prepare(&self, files: &[Ino]) -> Result<()>;

    /// Runs `action` as one operation in one commit, under the locks of `inodes` and of what else
    /// it reads; it may be run several times before its first change. Returns once the changes
    /// are visible, which is before they are durable.
    fn commit<R>(
        &self,
        inodes: &[Ino],
        size: &CommitSize,
        action: impl FnMut(&mut Self::Operation<'_>) -> Result<R>,
    ) -> Result<R>;

    fn wait_durable(&self, commit: CommitId) -> Result<()>;

    /// For the tests of crashes: what keeps a transaction goes in a commit of its own, after the
    /// changes.
    fn removes_persisted_apart(&self) -> bool {
        false
    }
}

/// All that a commit asks of the file system under its locks.
pub trait CommitOps: InodeOps + ValidationOps + InstallOps {}

impl<T: InodeOps + ValidationOps + InstallOps> CommitOps for T {}

/// Whether what a transaction has read and changed is as it was.
pub trait ValidationOps {
    type Fs;
    type ReadView;

    // Who has changed an item since a stamp whose view is open, if anybody has.
    fn entry_changed_since(&mut self, dir: Ino, name: &Name, since: Stamp) -> Result<Option<ChangedBy>>;
    fn any_entry_changed_since(&mut self, dir: Ino, since: Stamp) -> Result<Option<ChangedBy>>;
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
    /// `TooOld` where what changed since that stamp is not known any more.
    fn check_view(&self, stamp: Stamp) -> Result<()>;

    /// Says, before the first change, which transaction's commit this is.
    fn set_transaction(&mut self, transaction: u64);
    /// After the last change: a view of the file system as it is now, opened under the locks of all
    /// that the commit has looked at, so that nobody can have changed that in between.
    fn open_view_after(&mut self, fs: &Arc<Self::Fs>) -> Self::ReadView;

    /// `DoesNotFit` where an inode as it is now, or a new one, cannot hold these changes.
    fn check_xattrs(&mut self, ino: Option<Ino>, changes: &XattrChanges) -> Result<()>;

    /// Whether the inode is in use now.
    fn exists(&mut self, ino: Ino) -> Result<bool>;
}

/// What a commit reserves before its first change.
pub trait ReservationOps {
    type Staged;

    /// Before the first change: an inode of this number will be adopted, which was reserved for
    /// this payer.
    fn reserve_adoption(&mut self, ino: Ino, payer: Payer) -> Result<()>;
    /// Announces what will be charged to whom (quotas), before the first change.
    fn reserve_charge(&mut self, payer: Payer, blocks: u64, inodes: u64);
    /// The same for all that an inode is charged, which gets another owner, group or project.
    fn reserve_payer_change(&mut self, ino: Ino, payer: Payer) -> Result<()>;
    /// Announces an `install` into an existing file, before the first change.
    fn reserve_install(&mut self, ino: Ino, staged: &Self::Staged) -> Result<()>;
    /// Announces an `install` into a file that will be adopted, before the first change.
    fn reserve_new_file(&mut self, staged: &Self::Staged);
}

/// Inodes and contents of a transaction that become the volume's.
pub trait InstallOps: ReservationOps {
    /// As `new_inode`, with a number that was reserved.
    fn adopt_inode(&mut self, ino: Ino, new: &NewInode) -> Result<()>;
    /// Makes staged contents the file's and sets its size; as part of the commit, so that a crash
    /// leaves all of it or nothing.
    fn install(&mut self, ino: Ino, staged: &mut Self::Staged, size: u64) -> Result<()>;
    /// The commit that the changes belong to; `None` where no metadata changed.
    fn commit_id(&self) -> Option<CommitId>;
}

//! What a transaction needs of the volume under it.
//!
//! [`xact_fs::LiveFs`] implements this for real volumes; a tree in memory does for the tests
//! of this crate, so that semantics are tested without disk structures.

use std::ops::Range;
use std::sync::Arc;

use xact_fs::quota::Payer;
use xact_fs::{
    Attr, DirItem, Entry, InodeOps, Name, NewInode, SeekTo, SpilledBlock, VolumeSpace, XattrChanges,
};
use xact_types::{CommitId, FileBlock, Ino, Result, Timestamp};

pub use xact_fs::{ChangedBy, CommitSize, DirGrowth, NewContents, SpaceLimits, SpillPlace, Staging, Stamp};

/// The volume with its past: readable as of the stamp of every open view.
pub trait VersionedBase: Send + Sync + Sized + 'static {
    /// Keeps the volume readable as of its stamp until it is dropped.
    type Hold: Send + Sync;
    /// New contents of a file, written to free places; given back when dropped.
    type Staged;
    /// What a transaction holds of the volume before its commit; given back when dropped.
    type Space: Send + Sync;
    /// Keeps it from being revoked.
    type Pinned;
    type Tree<'a>: CommitTree<Base = Self, Hold = Self::Hold, Staged = Self::Staged>
    where
        Self: 'a;

    fn open_view(self: &Arc<Self>) -> Self::Hold;
    fn stamp(hold: &Self::Hold) -> Stamp;

    // Reads as of a stamp. `ESTALE` for an inode that did not exist then; `TooOld` where the past
    // is no longer kept as far back.
    fn attr_at(&self, ino: Ino, stamp: Stamp) -> Result<Attr>;
    fn entry_at(&self, dir: Ino, name: &Name, stamp: Stamp) -> Result<Option<Entry>>;
    fn list_at(
        &self,
        dir: Ino,
        cookie: u64,
        stamp: Stamp,
        each: &mut dyn FnMut(DirItem<'_>) -> bool,
    ) -> Result<()>;
    fn parent_at(&self, dir: Ino, stamp: Stamp) -> Result<Ino>;
    fn read_link_at(&self, ino: Ino, stamp: Stamp) -> Result<Vec<u8>>;
    /// `None` for a hole. Bytes past the end of the file as of `stamp` are undefined.
    fn read_block_at(&self, ino: Ino, at: FileBlock, stamp: Stamp) -> Result<Option<Arc<[u8]>>>;
    /// The first block from `at` on that is data (or a hole), within the size as of `stamp`;
    /// `None` where no data follows. A hole always follows: the end of the file.
    fn seek_at(&self, ino: Ino, at: FileBlock, to: SeekTo, stamp: Stamp) -> Result<Option<FileBlock>>;
    fn xattr_at(&self, ino: Ino, name: &[u8], stamp: Stamp) -> Result<Option<Vec<u8>>>;
    fn list_xattrs_at(&self, ino: Ino, stamp: Stamp) -> Result<Vec<Vec<u8>>>;

    /// Who has changed any of these blocks of a file since a stamp whose view is open, if anybody
    /// has; as far as it is visible now, without the locks of a commit. `TooOld` as for reads.
    fn blocks_changed_since(
        &self,
        ino: Ino,
        blocks: Range<FileBlock>,
        since: Stamp,
    ) -> Result<Option<ChangedBy>>;
    /// The same of a file's blocks that are `wanted`, those that changed up to `after` perhaps left
    /// out; and the stamp up to which all others were looked at.
    fn find_changed_block(
        &self,
        ino: Ino,
        since: Stamp,
        after: Stamp,
        wanted: &mut dyn FnMut(FileBlock) -> bool,
    ) -> Result<(Option<ChangedBy>, Stamp)>;

    /// `DoesNotFit` where an inode, a new one where none is named, cannot hold these changes.
    fn check_xattrs(&self, ino: Option<Ino>, changes: &XattrChanges) -> Result<()>;

    fn block_size(&self) -> u32;
    fn size_max(&self, flags: u32) -> u64;
    fn has_extents(&self) -> bool;
    fn has_projects(&self) -> bool;
    fn link_max(&self) -> u32;
    fn dir_nlink(&self) -> bool;
    fn target_max(&self) -> usize;
    fn space(&self) -> Result<VolumeSpace>;
    fn now(&self) -> Timestamp;

    /// Nothing yet, for a transaction with this number and owner.
    fn open_space(self: &Arc<Self>, id: u64, owner: u32) -> Self::Space;
    /// `SpaceRevoked` where others needed what the transaction held.
    fn check_space(space: &Self::Space) -> Result<()>;
    /// Before a commit; it lasts until the result is dropped. Errors as `check_space`.
    fn pin_space(space: &Self::Space) -> Result<Self::Pinned>;
    /// Takes an inode number in memory, near its parent's, charged to `payer`. `EDQUOT` where that
    /// is more than the owner or the payer may have.
    fn reserve_inode(
        &self,
        space: &Self::Space,
        parent: Ino,
        is_dir: bool,
        payer: Payer,
        limits: SpaceLimits,
    ) -> Result<Ino>;
    /// Gives back a number that no commit has adopted.
    fn unreserve_inode(&self, space: &Self::Space, ino: Ino);
    /// A commit has adopted it.
    fn adopted_inode(&self, space: &Self::Space, ino: Ino);

    /// Bytes of contents that one transaction keeps in memory at the most, about.
    fn private_bytes_max(&self) -> u64;
    /// Writes contents of consecutive blocks of a file to places that nobody knows of. `NoSpace`,
    /// `EDQUOT`: nothing was written.
    fn spill(
        self: &Arc<Self>,
        space: &Self::Space,
        place: &SpillPlace<'_>,
        blocks: &[Arc<[u8]>],
        limits: SpaceLimits,
    ) -> Result<Vec<SpilledBlock>>;

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
        action: impl FnMut(&mut Self::Tree<'_>) -> Result<R>,
    ) -> Result<R>;

    fn wait_durable(&self, commit: CommitId) -> Result<()>;

    /// Makes all durable that is there now, contents of files included.
    fn sync(&self) -> Result<()>;

    /// For the tests of crashes: what keeps a transaction goes in a commit of its own, after the
    /// changes.
    fn removes_persisted_apart(&self) -> bool {
        false
    }
}

/// The base within one commit, under locks.
pub trait CommitTree: InodeOps {
    type Base;
    type Hold;
    type Staged;

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
    fn sign(&mut self, transaction: u64);
    /// After the last change: a view of the base as it is now, opened under the locks of all that
    /// the commit has looked at, so that nobody can have changed that in between.
    fn open_view_after(&mut self, base: &Arc<Self::Base>) -> Self::Hold;

    /// `DoesNotFit` where an inode as it is now, or a new one, cannot hold these changes.
    fn check_xattrs(&mut self, ino: Option<Ino>, changes: &XattrChanges) -> Result<()>;

    /// Whether the inode is in use now.
    fn exists(&mut self, ino: Ino) -> Result<bool>;

    /// Before the first change: an inode of this number will be adopted, which was reserved for
    /// this payer.
    fn reserve_adoption(&mut self, ino: Ino, payer: Payer) -> Result<()>;

    /// As `new_inode`, with a number that was reserved.
    fn adopt_inode(&mut self, ino: Ino, new: &NewInode) -> Result<()>;
    /// Announces what will be charged to whom (quotas), before the first change.
    fn reserve_charge(&mut self, payer: Payer, blocks: u64, inodes: u64);
    /// The same for all that an inode is charged, which gets another owner, group or project.
    fn reserve_payer_change(&mut self, ino: Ino, payer: Payer) -> Result<()>;
    /// Announces an `install` into an existing file, before the first change.
    fn reserve_install(&mut self, ino: Ino, staged: &Self::Staged) -> Result<()>;
    /// Announces an `install` into a file that will be adopted, before the first change.
    fn reserve_new_file(&mut self, staged: &Self::Staged);
    /// Makes staged contents the file's and sets its size; as part of the commit, so that a crash
    /// leaves all of it or nothing.
    fn install(&mut self, ino: Ino, staged: &mut Self::Staged, size: u64) -> Result<()>;
    /// The commit that the changes belong to; `None` where no metadata changed.
    fn commit_id(&self) -> Option<CommitId>;
}

//! An inode in memory, shared by all of its users.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::SeqCst};

use parking_lot::lock_api::{ArcRwLockUpgradableReadGuard, ArcRwLockWriteGuard};
use parking_lot::{Mutex, RawRwLock, RwLock};
use xact_consistency::Handle;
use xact_layout::inode::Inode;
use xact_types::{CommitId, Ino};

use super::new_names::NewNames;
use crate::journal_modes::DataMode;
use crate::live::data::pages::Pages;
use crate::live::mvcc::versions::Versions;
use crate::quota::Charge;

pub(in crate::live) type WriteGuard = ArcRwLockWriteGuard<RawRwLock, InodeState>;
pub(in crate::live) type UpgradableGuard = ArcRwLockUpgradableReadGuard<RawRwLock, InodeState>;

/// One inode in memory.
///
/// Lock order within an inode: `state`, then `pages`. `state` is *the inode's lock* of the lock
/// order between inodes; `pages` is held for moments and never over I/O.
pub(in crate::live) struct CachedInode {
    pub ino: Ino,
    pub state: Arc<RwLock<InodeState>>,
    pub pages: Mutex<Pages>,
    /// References in addition to the inode's names (open files, the kernel's node ids). Changes to
    /// and from 0 happen under `state`.
    pub holds: AtomicU64,
    /// Number of writes of data in place. It starts at 1, because the inode may have been dropped
    /// from memory after such a write.
    pub placed: AtomicU64,
    /// Number of these writes that an fsync of this inode has made durable. It is raised only after
    /// the flush, because another fsync may read it at the same time.
    pub placed_durable: AtomicU64,
    /// The times are those of a write, and no caller has read them since. Set under exclusive
    /// `state`.
    pub unseen_times: AtomicBool,
    /// The inode was read from its table. Set under `state`.
    pub loaded: AtomicBool,
    /// The file's own data mode ([`crate::file_mode`]), as far as it is known: 0 if it is not
    /// known, 1 if the file has none, else 2 and the mode's position. Set under `state`.
    file_mode: AtomicU8,
    /// For the clock that evicts inodes.
    pub referenced: AtomicBool,
}

/// The name with which an inode was made.
pub(in crate::live) struct MadeAs {
    pub dir: Ino,
    pub name: Box<[u8]>,
}

pub(in crate::live) struct InodeState {
    /// False when the inode number is not in use.
    pub live: bool,
    /// The inode as it is or will be in the inode table. Its size is the size on disk, which
    /// follows `size` when the data is on disk (delayed inode update).
    pub inode: Inode,
    /// The size that callers see, in bytes.
    pub size: u64,
    /// `inode` or `size` has changes that no commit carries yet.
    pub dirty: bool,
    /// When the file grew, the bytes past its old end were not zeros, or perhaps not on the device.
    /// They are cleared in memory, and on the device once that page is clean.
    pub tail_cleared: bool,
    /// The commit with the inode's newest change (`i_sync_tid`).
    pub last_commit: CommitId,
    /// The commit with the newest change that fdatasync waits for, i.e. other than times
    /// (`i_datasync_tid`).
    pub last_data_commit: CommitId,
    /// The commit with the newest change that did not go ahead of its commit.
    pub last_whole_commit: CommitId,
    /// The batch with the newest change that did ([`Handle::ahead`]).
    pub last_batch: u64,
    /// The commit in which the inode was made; 0 if that was before it was loaded.
    pub born: CommitId,
    /// The commit with the newest change of its names, except the one that is in `made_as`.
    pub last_name_commit: CommitId,
    /// Its only name, if it was made with it and its names have not changed since. `None` also if
    /// that is not known, or was long ago.
    pub made_as: Option<Box<MadeAs>>,
    /// For a folder: its names in the running commit, or in an earlier one.
    pub names: Option<Box<NewNames>>,
    /// The inode's share in the quota files.
    pub charged: Charge,
    pub versions: Versions,
}

impl CachedInode {
    pub fn new(ino: Ino, state: InodeState) -> CachedInode {
        CachedInode {
            ino,
            state: Arc::new(RwLock::new(state)),
            pages: Mutex::new(Pages::default()),
            holds: AtomicU64::new(0),
            placed: AtomicU64::new(1),
            placed_durable: AtomicU64::new(0),
            unseen_times: AtomicBool::new(false),
            loaded: AtomicBool::new(false),
            file_mode: AtomicU8::new(0),
            referenced: AtomicBool::new(true),
        }
    }

    /// Counts a write of data in place; the next fsync of the inode must flush.
    pub fn note_placed(&self) {
        self.placed.fetch_add(1, SeqCst);
    }
}

impl CachedInode {
    /// The file's own data mode; `find` looks for it the first time.
    pub fn file_mode(&self, find: impl FnOnce() -> Option<DataMode>) -> Option<DataMode> {
        let known = self.file_mode.load(SeqCst);
        if known != 0 {
            return DataMode::at_position(usize::from(known).checked_sub(2)?);
        }
        let found = find();
        self.file_mode.store(found.map_or(1, |mode| 2 + mode.position() as u8), SeqCst);
        found
    }

    /// The attribute with the file's data mode changes, under exclusive `state`.
    pub fn forget_file_mode(&self) {
        self.file_mode.store(0, SeqCst);
    }
}

impl InodeState {
    /// The inode, its data or its blocks have changed in a handle.
    pub fn note_change(&mut self, handle: &Handle) {
        self.last_commit = handle.commit_id();
        match handle.ahead() {
            Some(batch) => self.last_batch = batch,
            None => self.last_whole_commit = handle.commit_id(),
        }
    }

    /// The state of an unused inode number.
    pub fn free(inode_size: u16) -> InodeState {
        InodeState {
            live: false,
            inode: Inode::zeroed(inode_size),
            size: 0,
            dirty: false,
            tail_cleared: false,
            last_commit: CommitId(0),
            last_data_commit: CommitId(0),
            last_whole_commit: CommitId(0),
            last_batch: 0,
            born: CommitId(0),
            last_name_commit: CommitId(0),
            made_as: None,
            names: None,
            charged: Charge::default(),
            versions: Versions::default(),
        }
    }

    /// The state of an inode in use, without its charge. `last_commit` may be later than the
    /// inode's newest change, but not earlier.
    pub fn loaded(inode: Inode, last_commit: CommitId) -> InodeState {
        InodeState {
            live: true,
            size: inode.size(),
            inode,
            dirty: false,
            tail_cleared: false,
            last_commit,
            last_data_commit: last_commit,
            last_whole_commit: last_commit,
            last_batch: 0,
            born: CommitId(0),
            last_name_commit: last_commit,
            made_as: None,
            names: None,
            charged: Charge::default(),
            versions: Versions::default(),
        }
    }
}

//! Multi-version concurrency control: the volume stays readable as of an instant, for transactions.
//!
//! - `stamps`: the order of changes, and the open views; the argument why one instant stays
//!   readable
//! - `versions`: old versions of one inode's items
//! - `born`: inodes that no open view sees, which need no versions
//! - `spill`: old versions on the volume, beyond their share of memory; `spilled_version`: one of
//!   their blocks
//! - `read_view`: opening, expiring and closing views
//! - `reads`: reads as of an instant, and the changes since

mod born;
pub(super) mod read_view;
pub(super) mod reads;
mod spill;
mod spilled_version;
pub(super) mod stamps;
pub(super) mod versions;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use parking_lot::{Mutex, RwLockWriteGuard};
use xact_types::{Error, Ino, Result};

use crate::live::inode::cache::InodeCache;
use crate::live::inode::cached::{CachedInode, InodeState};
use crate::versioned_fs::read_as_of::Stamp;
use born::{BornInodes, Lifetime};
use stamps::{Change, Stamps};
use versions::Versions;

/// The bookkeeping of old versions for open views. The versions themselves are in the inodes.
pub(super) struct Mvcc {
    stamps: Stamps,
    /// Inodes with old versions, with the stamp of the newest change that ended one.
    versioned: Mutex<BTreeMap<Ino, Stamp>>,
    /// The last pruning left out an inode that another thread had locked.
    skipped: AtomicBool,
    born: BornInodes,
    /// Memory used by old versions, approximately, without that of `born`.
    version_bytes: AtomicU64,
    /// Limit of all that memory.
    limit_bytes: u64,
    /// Number of blocks of the volume that hold old versions.
    spilled: Arc<AtomicU64>,
    /// Held while old versions are brought below their limit.
    limiting: Mutex<()>,
    /// Inodes without a name that only views keep, with the stamps of the views that keep them.
    unlinked: Mutex<BTreeMap<Ino, Lifetime>>,
}

/// How pruning and spilling treat an inode that another thread has locked.
#[derive(Clone, Copy)]
enum Contended {
    /// Its old versions stay until the next view ends.
    Skip,
    Wait,
}

impl Contended {
    /// Locks an inode, unless it is to be skipped.
    fn lock(self, cached: &CachedInode) -> Option<RwLockWriteGuard<'_, InodeState>> {
        match self {
            Contended::Skip => cached.state.try_write(),
            Contended::Wait => Some(cached.state.write()),
        }
    }
}

impl Mvcc {
    pub fn new(limit_bytes: u64) -> Mvcc {
        Mvcc {
            stamps: Stamps::default(),
            versioned: Mutex::default(),
            skipped: AtomicBool::new(false),
            born: BornInodes::default(),
            version_bytes: AtomicU64::new(0),
            limit_bytes,
            spilled: Arc::default(),
            limiting: Mutex::default(),
            unlinked: Mutex::default(),
        }
    }

    pub fn stamps(&self) -> &Stamps {
        &self.stamps
    }

    /// `TooOld` if the view has expired.
    pub fn check_view(&self, stamp: Stamp) -> Result<()> {
        if self.stamps.is_expired(stamp) { Err(Error::TooOld) } else { Ok(()) }
    }

    /// The change if old versions of the inode must be kept; `None` if no open view sees it.
    pub fn seen(&self, ino: Ino, change: Option<Change>) -> Option<Change> {
        change.filter(|change| !self.born.is_after(ino, change.newest_view))
    }

    /// The change creates the inode.
    pub fn note_born(&self, ino: Ino, change: &Change) {
        self.born.insert(ino, change.stamp);
    }

    /// Whether the inode was created after `stamp`, which is that of an open view.
    pub fn is_born_after(&self, ino: Ino, stamp: Stamp) -> bool {
        self.born.is_after(ino, stamp)
    }

    /// The inode was deleted: no open view sees it.
    pub fn note_deleted(&self, ino: Ino, state: &mut InodeState) {
        state.versions.clear();
        self.count(&mut state.versions);
        self.versioned.lock().remove(&ino);
        self.born.remove(ino);
    }

    /// If `kept`, the change has ended a version of the inode that was kept; called under its lock.
    pub fn note_versioned(&self, ino: Ino, change: &Change, kept: bool) {
        if kept {
            self.versioned.lock().insert(ino, change.stamp);
        }
    }

    /// Adds the growth of an inode's old versions to the volume's sum; it may be negative.
    pub fn count(&self, versions: &mut Versions) {
        // Two's complement: adding a negative number subtracts.
        self.version_bytes.fetch_add(versions.uncounted() as u64, SeqCst);
    }

    /// The end of an operation that may have kept versions of the inode, under its lock.
    pub fn end_change(&self, versions: &mut Versions) {
        if versions.is_crowded() {
            versions.prune(&self.stamps.views());
        }
        self.count(versions);
    }

    /// Memory used by old versions in bytes, approximately.
    pub fn version_bytes(&self) -> u64 {
        self.version_bytes.load(SeqCst) + self.born.bytes()
    }

    fn is_over_limit(&self) -> bool {
        self.version_bytes() > self.limit_bytes
    }

    /// Drops versions that the end of a view has left, because their inodes were in use.
    pub fn prune_skipped(&self, inodes: &InodeCache) {
        if self.skipped.swap(false, SeqCst) {
            self.prune(inodes, Contended::Skip, None);
        }
    }

    /// Drops the versions that no open view reads. `closed`: only the view of that stamp was closed
    /// since the last call.
    fn prune(&self, inodes: &InodeCache, contended: Contended, closed: Option<Stamp>) {
        let closed = closed.filter(|_| !self.skipped.swap(false, SeqCst));
        // A view reads a version only of an inode that was changed later.
        let has_version = |until: &Stamp| closed.is_none_or(|closed| *until > closed);
        let list: Vec<Ino> = {
            let versioned = self.versioned.lock();
            versioned.iter().filter(|(_, until)| has_version(until)).map(|(ino, _)| *ino).collect()
        };
        for ino in list {
            let Some(cached) = inodes.peek(ino) else { continue };
            let Some(mut state) = contended.lock(&cached) else {
                self.skipped.store(true, SeqCst);
                continue;
            };
            // The views are read under the lock: see `stamps`.
            state.versions.prune(&self.stamps.views());
            self.count(&mut state.versions);
            if state.versions.is_empty() {
                self.versioned.lock().remove(&ino);
            }
        }
        self.born.prune(&self.stamps);
    }

    /// Whether open views keep an inode that no longer has a name or a user; the caller holds its
    /// lock. If so, the end of the last such view deletes it; after a crash, the orphan list does.
    pub fn keeps_unlinked(&self, ino: Ino) -> bool {
        if self.stamps.oldest().is_none() {
            return false;
        }
        // Views opened before the last name was removed may have seen the inode.
        let lifetime = {
            let mut unlinked = self.unlinked.lock();
            let new = || Lifetime { born: self.born.stamp(ino), gone_by: self.stamps.newest() };
            *unlinked.entry(ino).or_insert_with(new)
        };
        // A view may have closed before the inode was put on the list, so look again.
        if lifetime.is_seen(&self.stamps.views()) {
            return true;
        }
        self.unlinked.lock().remove(&ino);
        false
    }

    /// Takes an inode off the list: views are not its only users, or it has a name.
    pub fn forget_unlinked(&self, ino: Ino) {
        self.unlinked.lock().remove(&ino);
    }

    /// Inodes without a name that only views keep.
    pub fn unlinked(&self) -> Vec<Ino> {
        self.unlinked.lock().keys().copied().collect()
    }

    fn unlinked_count(&self) -> usize {
        self.unlinked.lock().len()
    }

    /// Inodes on the list whose views are closed.
    fn reapable(&self) -> Vec<Ino> {
        let views = self.stamps.views();
        let unlinked = self.unlinked.lock();
        unlinked.iter().filter(|(_, lifetime)| !lifetime.is_seen(&views)).map(|(ino, _)| *ino).collect()
    }
}

//! Multi-version concurrency control: the volume stays readable as of an instant, for transactions.
//!
//! - `stamps`: the order of changes, and the open views; why one instant stays readable
//! - `versions`: old versions of one inode's items
//! - `read_view`: how views begin, expire and end
//! - `reads`: reads as of an instant, and what has changed since

pub(super) mod read_view;
pub(super) mod reads;
pub(super) mod stamps;
pub(super) mod versions;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use parking_lot::Mutex;
use xact_types::{Error, Ino, Result};

use crate::live::inode::cache::InodeCache;
use crate::versioned_fs::read_as_of::Stamp;
use stamps::Stamps;
use versions::Versions;

/// What a volume keeps of its past, for open views. The versions themselves are in the inodes.
pub(super) struct Mvcc {
    stamps: Stamps,
    /// Inodes with old versions.
    versioned: Mutex<BTreeSet<Ino>>,
    /// Memory that old versions take, roughly.
    kept_bytes: AtomicU64,
    /// Limit of that.
    limit_bytes: u64,
    /// Inodes without a name that only views keep, those from before an instant by which the name
    /// was gone.
    unlinked: Mutex<BTreeMap<Ino, Stamp>>,
}

/// What becomes of the old versions of an inode that another thread has locked.
#[derive(Clone, Copy)]
enum Busy {
    /// They stay until the next view ends.
    Skipped,
    Awaited,
}

impl Mvcc {
    pub fn new(limit_bytes: u64) -> Mvcc {
        Mvcc {
            stamps: Stamps::default(),
            versioned: Mutex::default(),
            kept_bytes: AtomicU64::new(0),
            limit_bytes,
            unlinked: Mutex::default(),
        }
    }

    pub fn stamps(&self) -> &Stamps {
        &self.stamps
    }

    /// `TooOld` for a view that is expired.
    pub fn check_view(&self, stamp: Stamp) -> Result<()> {
        if self.stamps.is_expired(stamp) { Err(Error::TooOld) } else { Ok(()) }
    }

    /// The inode has an old version; called under its lock.
    pub fn note_versioned(&self, ino: Ino) {
        self.versioned.lock().insert(ino);
    }

    /// Adds what an inode's old versions have grown or shrunk by to the volume's sum.
    pub fn count(&self, versions: &mut Versions) {
        // Two's complement: adding a negative number subtracts.
        self.kept_bytes.fetch_add(versions.uncounted() as u64, SeqCst);
    }

    /// Memory that old versions take, roughly, in bytes.
    pub fn kept_bytes(&self) -> u64 {
        self.kept_bytes.load(SeqCst)
    }

    fn is_over_limit(&self) -> bool {
        self.kept_bytes() > self.limit_bytes
    }

    /// Drops the versions that no open view needs.
    fn prune(&self, inodes: &InodeCache, busy: Busy) {
        let oldest = self.stamps.oldest();
        let list: Vec<Ino> = self.versioned.lock().iter().copied().collect();
        for ino in list {
            let Some(cached) = inodes.peek(ino) else { continue };
            let state = match busy {
                Busy::Skipped => cached.state.try_write(),
                Busy::Awaited => Some(cached.state.write()),
            };
            let Some(mut state) = state else { continue };
            state.versions.prune(oldest);
            self.count(&mut state.versions);
            if state.versions.is_empty() {
                self.versioned.lock().remove(&ino);
            }
        }
    }

    /// Whether open views keep an inode that has no name and no user any more; the caller holds its
    /// lock. If so, the end of the last of them reaps it. The orphan list keeps it over a crash.
    pub fn keeps_unlinked(&self, ino: Ino) -> bool {
        if self.stamps.oldest().is_none() {
            return false;
        }
        // Open views from before its last name went may have seen it.
        let gone_by = *self.unlinked.lock().entry(ino).or_insert_with(|| self.stamps.newest());
        // A view that was closed in between did not see it on the list.
        if self.stamps.oldest().is_some_and(|oldest| oldest < gone_by) {
            return true;
        }
        self.unlinked.lock().remove(&ino);
        false
    }

    /// The inode is not kept for views alone.
    pub fn forget_unlinked(&self, ino: Ino) {
        self.unlinked.lock().remove(&ino);
    }

    /// Inodes without a name that are kept for views.
    pub fn unlinked(&self) -> Vec<Ino> {
        self.unlinked.lock().keys().copied().collect()
    }

    fn unlinked_count(&self) -> usize {
        self.unlinked.lock().len()
    }

    /// Those of them whose views are closed.
    fn reapable(&self) -> Vec<Ino> {
        let oldest = self.stamps.oldest();
        let may_go = |gone_by: &Stamp| oldest.is_none_or(|oldest| oldest >= *gone_by);
        self.unlinked.lock().iter().filter(|(_, gone_by)| may_go(gone_by)).map(|(ino, _)| *ino).collect()
    }
}

//! Multi-version concurrency control: the volume stays readable as of an instant, for transactions.
//!
//! - `stamps`: the order of changes, and the open views; the argument why one instant stays
//!   readable
//! - `versions`: old versions of one inode's items
//! - `read_view`: opening, expiring and closing views
//! - `reads`: reads as of an instant, and the changes since

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

/// The bookkeeping of old versions for open views. The versions themselves are in the inodes.
pub(super) struct Mvcc {
    stamps: Stamps,
    /// Inodes with old versions.
    versioned: Mutex<BTreeSet<Ino>>,
    /// Memory used by old versions, approximately.
    version_bytes: AtomicU64,
    /// Limit of `version_bytes`.
    limit_bytes: u64,
    /// Inodes without a name that only views keep. Each has a stamp at which the name was already
    /// removed: only views with older stamps keep the inode.
    unlinked: Mutex<BTreeMap<Ino, Stamp>>,
}

/// How pruning treats an inode that another thread has locked.
#[derive(Clone, Copy)]
enum Contended {
    /// Its old versions stay until the next view ends.
    Skip,
    Wait,
}

impl Mvcc {
    pub fn new(limit_bytes: u64) -> Mvcc {
        Mvcc {
            stamps: Stamps::default(),
            versioned: Mutex::default(),
            version_bytes: AtomicU64::new(0),
            limit_bytes,
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

    /// The inode has an old version; called under its lock.
    pub fn note_versioned(&self, ino: Ino) {
        self.versioned.lock().insert(ino);
    }

    /// Adds the growth of an inode's old versions to the volume's sum; it may be negative.
    pub fn count(&self, versions: &mut Versions) {
        // Two's complement: adding a negative number subtracts.
        self.version_bytes.fetch_add(versions.uncounted() as u64, SeqCst);
    }

    /// Memory used by old versions in bytes, approximately.
    pub fn version_bytes(&self) -> u64 {
        self.version_bytes.load(SeqCst)
    }

    fn is_over_limit(&self) -> bool {
        self.version_bytes() > self.limit_bytes
    }

    /// Drops the versions that no open view needs.
    fn prune(&self, inodes: &InodeCache, contended: Contended) {
        let oldest = self.stamps.oldest();
        let list: Vec<Ino> = self.versioned.lock().iter().copied().collect();
        for ino in list {
            let Some(cached) = inodes.peek(ino) else { continue };
            let state = match contended {
                Contended::Skip => cached.state.try_write(),
                Contended::Wait => Some(cached.state.write()),
            };
            let Some(mut state) = state else { continue };
            state.versions.prune(oldest);
            self.count(&mut state.versions);
            if state.versions.is_empty() {
                self.versioned.lock().remove(&ino);
            }
        }
    }

    /// Whether open views keep an inode that no longer has a name or a user; the caller holds its
    /// lock. If so, the end of the last such view deletes it; after a crash, the orphan list does.
    pub fn keeps_unlinked(&self, ino: Ino) -> bool {
        if self.stamps.oldest().is_none() {
            return false;
        }
        // Views opened before the last name was removed may have seen the inode.
        let gone_by = *self.unlinked.lock().entry(ino).or_insert_with(|| self.stamps.newest());
        // A view may have closed before the inode was put on the list, so look again.
        if self.stamps.oldest().is_some_and(|oldest| oldest < gone_by) {
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
        let oldest = self.stamps.oldest();
        let may_go = |gone_by: &Stamp| oldest.is_none_or(|oldest| oldest >= *gone_by);
        self.unlinked.lock().iter().filter(|(_, gone_by)| may_go(gone_by)).map(|(ino, _)| *ino).collect()
    }
}

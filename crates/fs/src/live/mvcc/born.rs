//! Inodes that were created while views are open: older views do not see them.
//!
//! Nothing of such an inode is kept while all open views are older than it, however much is
//! written. It is deleted with its last name, although views are open.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use parking_lot::Mutex;
use xact_types::Ino;

use super::stamps::{OpenViews, Stamps};
use crate::versioned_fs::read_as_of::Stamp;

/// Memory of one inode in the list, approximately.
const INODE_BYTES: u64 = 48;

/// The inodes, with the stamps of their creation.
#[derive(Default)]
pub(super) struct BornInodes {
    stamps: Mutex<BTreeMap<Ino, Stamp>>,
    /// Number of inodes in the list. It is read without the lock, by operations that hold the lock
    /// of the inode that they look for.
    count: AtomicUsize,
}

impl BornInodes {
    /// Adds an inode, under its lock.
    pub fn insert(&self, ino: Ino, stamp: Stamp) {
        let mut stamps = self.stamps.lock();
        stamps.insert(ino, stamp);
        self.count.store(stamps.len(), SeqCst);
    }

    /// Removes an inode whose number becomes free, under its lock.
    pub fn remove(&self, ino: Ino) {
        let mut stamps = self.stamps.lock();
        stamps.remove(&ino);
        self.count.store(stamps.len(), SeqCst);
    }

    /// The stamp of the inode's creation; 0 if every open view is newer.
    pub fn stamp(&self, ino: Ino) -> Stamp {
        if self.count.load(SeqCst) == 0 {
            return Stamp(0);
        }
        self.stamps.lock().get(&ino).copied().unwrap_or_default()
    }

    pub fn is_after(&self, ino: Ino, stamp: Stamp) -> bool {
        self.stamp(ino) > stamp
    }

    /// Removes the inodes that every open view sees.
    pub fn prune(&self, views: &Stamps) {
        if self.count.load(SeqCst) == 0 {
            return;
        }
        let mut stamps = self.stamps.lock();
        // Read under the lock: a view that opens later is newer than all inodes in the list.
        match views.oldest() {
            Some(oldest) => stamps.retain(|_, born| *born > oldest),
            None => stamps.clear(),
        }
        self.count.store(stamps.len(), SeqCst);
    }

    /// Memory in bytes, approximately.
    pub fn bytes(&self) -> u64 {
        self.count.load(SeqCst) as u64 * INODE_BYTES
    }
}

/// The stamps between which an inode had a name: views with these stamps may see it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lifetime {
    pub born: Stamp,
    /// A stamp at which the last name was already removed.
    pub gone_by: Stamp,
}

impl Lifetime {
    pub fn is_seen(&self, views: &OpenViews) -> bool {
        views.any_in(self.born, self.gone_by)
    }
}

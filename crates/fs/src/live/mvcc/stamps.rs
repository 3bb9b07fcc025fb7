//! Stamps and open views: they decide which old versions must be kept.
//!
//! Every operation that changes the volume takes a stamp once it holds all locks for its changes,
//! and keeps the locks until all its changes are done (strict two-phase locking). A view is opened
//! at the newest stamp S. Then the following holds for a reader of an item (a block, a name, an
//! attribute) under its inode's lock:
//! 1. A change with a stamp up to S is complete: its operation held the lock before the reader.
//! 2. The stamp of a later change was taken after the view was counted in `open`. So its operation
//!    saw the view, and kept the old version with its own stamp as `until`.
//!
//! So the item as of S is the first kept version with `until > S`, or else the present one.
//!
//! When old versions use too much memory, or hold too many freed blocks, the oldest views *expire*:
//! reads in them fail from then on. The mark below which views are expired rises before their
//! versions are dropped, and both sides hold the inode's lock; the reader checks the mark before it
//! looks at the versions. So no reader takes a newer version for an old one.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

use parking_lot::Mutex;

use crate::versioned_fs::read_as_of::{ChangedBy, Stamp};

#[derive(Default)]
pub(in crate::live) struct Stamps {
    clock: AtomicU64,
    /// Number of open views.
    open: AtomicUsize,
    /// Number of open views at each stamp.
    views: Mutex<BTreeMap<Stamp, usize>>,
    /// Views with stamps below this one are expired.
    expired_below: AtomicU64,
    /// The user transactions of changes, by stamp; kept while an older view is open.
    transactions: Mutex<BTreeMap<Stamp, u64>>,
}

impl Stamps {
    pub fn open(&self) -> Stamp {
        let mut views = self.views.lock();
        // Counted before the clock is read: see point 2 of the module's head.
        self.open.fetch_add(1, SeqCst);
        let stamp = Stamp(self.clock.load(SeqCst));
        *views.entry(stamp).or_default() += 1;
        stamp
    }

    pub fn close(&self, stamp: Stamp) {
        let mut views = self.views.lock();
        // An expired view was removed when it expired.
        if !self.is_expired(stamp) {
            let count = views.get_mut(&stamp).expect("only open views are closed");
            *count -= 1;
            if *count == 0 {
                views.remove(&stamp);
            }
            self.open.fetch_sub(1, SeqCst);
        }
        let oldest = views.keys().next().copied();
        let mut transactions = self.transactions.lock();
        match oldest {
            Some(oldest) => *transactions = transactions.split_off(&oldest),
            None => transactions.clear(),
        }
    }

    /// The stamp of the newest change. For a thread that holds an inode's lock, shared or not, all
    /// changes of that inode up to this stamp are complete: an operation takes its stamp under the
    /// locks of the inodes that it changes.
    pub fn newest(&self) -> Stamp {
        Stamp(self.clock.load(SeqCst))
    }

    pub fn is_expired(&self, stamp: Stamp) -> bool {
        stamp.0 < self.expired_below.load(SeqCst)
    }

    /// Expires the views with the oldest stamp, if it is older than `below`. False if no view is
    /// open, or none needs an old version.
    pub fn expire_oldest(&self, below: Option<Stamp>) -> bool {
        let mut views = self.views.lock();
        let Some((&oldest, &count)) = views.first_key_value() else { return false };
        // A view of the newest stamp needs no old version, and later views may share its stamp.
        if oldest.0 >= self.clock.load(SeqCst) || below.is_some_and(|below| oldest >= below) {
            return false;
        }
        views.remove(&oldest);
        self.expired_below.store(oldest.0 + 1, SeqCst);
        self.open.fetch_sub(count, SeqCst);
        true
    }

    /// Records that a user transaction made the change with this stamp.
    pub fn note_transaction(&self, stamp: Stamp, id: u64) {
        self.transactions.lock().insert(stamp, id);
    }

    pub fn changed_by(&self, stamp: Stamp) -> ChangedBy {
        ChangedBy(self.transactions.lock().get(&stamp).copied())
    }

    /// The stamp of a new change, and whether it must keep old versions. The caller holds all locks
    /// that the change needs.
    pub fn next_stamp(&self) -> (Stamp, bool) {
        let stamp = Stamp(self.clock.fetch_add(1, SeqCst) + 1);
        (stamp, self.open.load(SeqCst) > 0)
    }

    /// The stamp of the oldest open view.
    pub fn oldest(&self) -> Option<Stamp> {
        if self.open.load(SeqCst) == 0 {
            return None;
        }
        self.views.lock().keys().next().copied()
    }
}

//! Stamps and open views: they decide which old versions must be kept.
//!
//! Every operation that changes the volume takes a stamp once it holds all locks for its changes,
//! and keeps the locks until all its changes are done (strict two-phase locking). A view is opened
//! at the newest stamp S. Then the following holds for a reader of an item (a block, a name, an
//! attribute) under its inode's lock:
//! 1. A change with a stamp up to S is complete: its operation held the lock before the reader.
//! 2. The stamp of a later change was taken after the view was counted in `open`. So its operation
//!    saw the view, and kept the old version with its own stamp as `until`, unless point 3 holds.
//! 3. A version that another change has ended covers the view already: the item has a version with
//!    `until > S`. A change keeps a version only if a view was opened since the item's last version
//!    ended ([`Change::newest_view`]), so an item has at most one version for each open view.
//!
//! So the item as of S is the first kept version with `until > S`, or else the present one; and the
//! item has changed since S if and only if there is such a version. The `until` of the version that
//! a view reads is the stamp of the first change since that view.
//!
//! The version with the stamps `from..until` can be dropped when no open view has a stamp in that
//! range. The dropping thread holds the inode's lock, and reads the list of views under it: a view
//! that opens later is newer than all versions of that inode, and needs none.
//!
//! When old versions use too much memory, or hold too many freed blocks, the oldest views *expire*:
//! reads in them fail from then on. The mark below which views are expired rises before their
//! versions are dropped, and both sides hold the inode's lock; the reader checks the mark before it
//! looks at the versions. So no reader takes a newer version for an old one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

use parking_lot::Mutex;

use crate::versioned_fs::read_as_of::{ChangedBy, Stamp};

/// The change of one operation, as old versions see it.
#[derive(Debug, Clone, Copy)]
pub(in crate::live) struct Change {
    pub stamp: Stamp,
    pub by: ChangedBy,
    /// The stamp of the newest view that was open when the change took its stamp. Views opened
    /// later see the change.
    pub newest_view: Stamp,
    /// Number of different stamps of open views.
    pub views: usize,
}

#[derive(Default)]
pub(in crate::live) struct Stamps {
    clock: AtomicU64,
    /// Number of open views.
    open: AtomicUsize,
    views: Mutex<Views>,
    /// Views with stamps below this one are expired.
    expired_below: AtomicU64,
}

#[derive(Default)]
struct Views {
    /// Number of open views at each stamp.
    counts: BTreeMap<Stamp, usize>,
    /// The keys of `counts`.
    stamps: OpenViews,
}

/// The stamps of the open views at one time, in rising order.
#[derive(Debug, Clone, Default)]
pub(in crate::live) struct OpenViews(Arc<[Stamp]>);

impl OpenViews {
    /// Whether a view has a stamp in `from..until`.
    pub fn any_in(&self, from: Stamp, until: Stamp) -> bool {
        let first = self.0.partition_point(|view| *view < from);
        self.0.get(first).is_some_and(|view| *view < until)
    }
}

impl Views {
    fn update_list(&mut self) {
        self.stamps = OpenViews(self.counts.keys().copied().collect());
    }
}

impl Stamps {
    pub fn open(&self) -> Stamp {
        let mut views = self.views.lock();
        // Counted before the clock is read: see point 2 of the module's head. A change that sees
        // the count waits for the lock, and so finds the view in the list.
        self.open.fetch_add(1, SeqCst);
        let stamp = Stamp(self.clock.load(SeqCst));
        *views.counts.entry(stamp).or_default() += 1;
        views.update_list();
        stamp
    }

    /// Closes a view. Returns whether it was the last one with its stamp.
    pub fn close(&self, stamp: Stamp) -> bool {
        let mut views = self.views.lock();
        // An expired view was removed when it expired.
        if self.is_expired(stamp) {
            return false;
        }
        let count = views.counts.get_mut(&stamp).expect("only open views are closed");
        *count -= 1;
        let last = *count == 0;
        if last {
            views.counts.remove(&stamp);
            views.update_list();
        }
        self.open.fetch_sub(1, SeqCst);
        last
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
        let Some((&oldest, &count)) = views.counts.first_key_value() else { return false };
        // A view of the newest stamp needs no old version, and later views may share its stamp.
        if oldest.0 >= self.clock.load(SeqCst) || below.is_some_and(|below| oldest >= below) {
            return false;
        }
        views.counts.remove(&oldest);
        views.update_list();
        self.expired_below.store(oldest.0 + 1, SeqCst);
        self.open.fetch_sub(count, SeqCst);
        true
    }

    /// Takes the stamp of a new change, made by the user transaction with this number or by none.
    /// `None` if no view is open: then no old version must be kept. The caller holds all locks that
    /// the change needs.
    pub fn next_change(&self, transaction: Option<u64>) -> Option<Change> {
        let stamp = Stamp(self.clock.fetch_add(1, SeqCst) + 1);
        if self.open.load(SeqCst) == 0 {
            return None;
        }
        let views = self.views.lock();
        let newest_view = *views.stamps.0.iter().rev().find(|view| **view < stamp)?;
        Some(Change { stamp, by: ChangedBy(transaction), newest_view, views: views.stamps.0.len() })
    }

    /// The stamp of the oldest open view.
    pub fn oldest(&self) -> Option<Stamp> {
        self.views().0.first().copied()
    }

    /// The stamps of all open views.
    pub fn views(&self) -> OpenViews {
        if self.open.load(SeqCst) == 0 {
            return OpenViews::default();
        }
        self.views.lock().stamps.clone()
    }
}

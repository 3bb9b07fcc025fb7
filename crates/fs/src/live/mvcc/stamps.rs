//! Stamps and open views: which old versions must be kept.
//!
//! Every operation that changes the volume takes a stamp when it holds all the locks that it will
//! change under, and keeps the locks until all its changes are done (strict two-phase locking).
//! A view is opened at the newest stamp S. Then, for a reader of an item (a block, a name, an
//! attribute) under its inode's lock:
//! 1. A change with a stamp up to S is there as a whole: its operation held the lock first.
//! 2. A change with a stamp above S was taken after the view was counted in `open`, so its
//!    operation saw that and kept the old version with its own stamp as `until`.
//!
//! So the item as of S is the first kept version with `until > S`, else what is there now.
//!
//! Old versions may take so much memory, or hold so many freed blocks, that the oldest views have
//! to go (*expired*): reads in them fail from then on. The mark below which views are expired rises
//! before their versions are dropped, and both sides hold the inode's lock, the reader to look at
//! the mark and then at the versions: so no reader takes a newer version for an old one.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

use parking_lot::Mutex;

use crate::versioned_fs::read_as_of::{ChangedBy, Stamp};

#[derive(Default)]
pub(in crate::live) struct Stamps {
    clock: AtomicU64,
    open: AtomicUsize,
    /// Open views by stamp, with their number.
    registry: Mutex<BTreeMap<Stamp, usize>>,
    /// Stamps with stamps below this one are expired.
    expired_below: AtomicU64,
    /// Which user transaction a change was, by its stamp; kept while a view before it is open.
    transactions: Mutex<BTreeMap<Stamp, u64>>,
}

impl Stamps {
    pub fn open(&self) -> Stamp {
        let mut registry = self.registry.lock();
        // Counted before the clock is read: see point 2 of the module's head.
        self.open.fetch_add(1, SeqCst);
        let stamp = Stamp(self.clock.load(SeqCst));
        *registry.entry(stamp).or_default() += 1;
        stamp
    }

    pub fn close(&self, stamp: Stamp) {
        let mut registry = self.registry.lock();
        // An expired view is out of the books already.
        if !self.is_expired(stamp) {
            let count = registry.get_mut(&stamp).expect("only open views are closed");
            *count -= 1;
            if *count == 0 {
                registry.remove(&stamp);
            }
            self.open.fetch_sub(1, SeqCst);
        }
        let oldest = registry.keys().next().copied();
        let mut transactions = self.transactions.lock();
        match oldest {
            Some(oldest) => *transactions = transactions.split_off(&oldest),
            None => transactions.clear(),
        }
    }

    /// The stamp of the newest change. A thread that holds an inode's lock, shared or not, finds
    /// all changes of that inode up to it done: a stamp is taken under the locks of what changes.
    pub fn newest(&self) -> Stamp {
        Stamp(self.clock.load(SeqCst))
    }

    pub fn is_expired(&self, stamp: Stamp) -> bool {
        stamp.0 < self.expired_below.load(SeqCst)
    }

    /// Expires the oldest views, if they are from before `below`; false where there are none, or
    /// none that needs an old version.
    pub fn expire_oldest(&self, below: Option<Stamp>) -> bool {
        let mut registry = self.registry.lock();
        let Some((&oldest, &count)) = registry.first_key_value() else { return false };
        // A view of the newest stamp needs nothing old, and shares its stamp with those to come.
        if oldest.0 >= self.clock.load(SeqCst) || below.is_some_and(|below| oldest >= below) {
            return false;
        }
        registry.remove(&oldest);
        self.expired_below.store(oldest.0 + 1, SeqCst);
        self.open.fetch_sub(count, SeqCst);
        true
    }

    /// Notes that the change with this stamp was a user transaction's.
    pub fn note_transaction(&self, stamp: Stamp, id: u64) {
        self.transactions.lock().insert(stamp, id);
    }

    pub fn changed_by(&self, stamp: Stamp) -> ChangedBy {
        ChangedBy(self.transactions.lock().get(&stamp).copied())
    }

    /// The stamp of a new change, and whether old versions are to be kept. The caller holds all
    /// locks that the change needs.
    pub fn next_stamp(&self) -> (Stamp, bool) {
        let stamp = Stamp(self.clock.fetch_add(1, SeqCst) + 1);
        (stamp, self.open.load(SeqCst) > 0)
    }

    /// The stamp of the oldest open view.
    pub fn oldest(&self) -> Option<Stamp> {
        if self.open.load(SeqCst) == 0 {
            return None;
        }
        self.registry.lock().keys().next().copied()
    }
}

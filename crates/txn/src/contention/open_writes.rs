//! Conflicts between open transactions, for those that ask for them (TX-4).
//!
//! An *eager* transaction fails at the change that another open transaction has made before it; a
//! *lazy* one learns of it at the earliest from the other's commit. So each change of an eager
//! transaction is compared with the [`WriteSet`] of every other open one, and recorded in its own,
//! under one lock: of two eager transactions that change the same item at the same time, one fails.
//!
//! *No cost without eager transactions.* While none is open, changes read one atomic counter and
//! record nothing. The write set of a transaction is then *incomplete*. It is completed from the
//! overlay at the next comparison, by a try-lock: a comparison runs inside a call, which must not
//! wait for the calls of other transactions. While a call runs in a transaction with an incomplete
//! set, earlier changes of it are not seen; the next comparison looks again. Changes made while an
//! eager transaction is open are recorded before they are made, so a complete set stays complete.
//!
//! *No false conflict.* A recorded change may have been undone (a rollback, a name that was added
//! and removed). So a collision counts only if the overlay still has the change, or if a call runs
//! in that transaction. The set of a doomed transaction is empty: it cannot commit, so two eager
//! transactions never end each other.
//!
//! *Locks.* The lock of the table is the last one: a change takes it under the lock of its own
//! transaction, and other transactions are only tried under it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use xact_types::Ino;

use super::ContentionManager;
use crate::options::ConflictDetection;
use crate::validation::write_set::{Write, WriteSet};

/// Items that a record may have, beyond twice those of its last completion, before it is dropped: a
/// transaction may add and remove names without end, which leaves nothing in its overlay.
const RECORD_ITEMS: usize = 4096;

/// A transaction's changes, from outside of its calls.
pub(crate) trait HasWrites: Send + Sync {
    /// `None` while a call that may change something, or a commit, runs in the transaction.
    fn try_writes(&self) -> Option<WriteSet>;
}

/// The open transactions of a volume.
#[derive(Default)]
pub(super) struct OpenWrites {
    /// Number of eager transactions; changed under the lock of `table`.
    eager: AtomicUsize,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    last: u64,
    open: BTreeMap<u64, OpenTransaction>,
}

struct OpenTransaction {
    id: u64,
    transaction: Weak<dyn HasWrites>,
    writes: WriteSet,
    is_complete: bool,
    /// Items of `writes` when it was last completed.
    items: usize,
}

impl OpenTransaction {
    fn forget(&mut self) {
        self.writes = WriteSet::default();
        self.is_complete = false;
    }

    /// Reads the write set from the overlay. Returns false if a call runs in the transaction.
    fn complete(&mut self) -> bool {
        // If this is the last reference, the transaction has ended and its drop takes no lock.
        let Some(writes) = self.transaction.upgrade().and_then(|open| open.try_writes()) else {
            return false;
        };
        (self.items, self.writes, self.is_complete) = (writes.items(), writes, true);
        true
    }

    fn has_written(&mut self, ino: Ino, write: &Write<'_>) -> bool {
        if !self.is_complete {
            self.complete();
        }
        self.writes.collides(ino, write) && (!self.complete() || self.writes.collides(ino, write))
    }

    fn record(&mut self, ino: Ino, write: &Write<'_>) {
        self.writes.add(ino, write);
        if self.writes.items() > RECORD_ITEMS + 2 * self.items {
            self.forget();
        }
    }
}

impl std::fmt::Debug for OpenWrites {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenWrites").field("eager", &self.eager).finish_non_exhaustive()
    }
}

#[cfg(test)]
impl OpenWrites {
    /// Recorded inodes, names and extended attributes of all transactions.
    pub fn recorded_items(&self) -> usize {
        self.table.lock().open.values().map(|open| open.writes.items()).sum()
    }
}

/// A transaction's entry among the open ones, which ends with its drop.
#[derive(Debug)]
pub(crate) struct OpenEntry {
    manager: Arc<ContentionManager>,
    key: u64,
    detection: ConflictDetection,
}

impl OpenEntry {
    pub fn new(
        manager: &Arc<ContentionManager>,
        id: u64,
        detection: ConflictDetection,
        transaction: Weak<dyn HasWrites>,
    ) -> OpenEntry {
        let mut table = manager.open_writes.table.lock();
        table.last += 1;
        let key = table.last;
        let writes = WriteSet::default();
        table.open.insert(key, OpenTransaction { id, transaction, writes, is_complete: false, items: 0 });
        if detection == ConflictDetection::Eager {
            manager.open_writes.eager.fetch_add(1, Ordering::SeqCst);
        }
        OpenEntry { manager: manager.clone(), key, detection }
    }

    /// Records a change that is about to be made. For an eager transaction, the number of an open
    /// one that has made it before; then the change is not recorded.
    pub fn write(&self, ino: Ino, write: &Write<'_>) -> Option<u64> {
        let open_writes = &self.manager.open_writes;
        if open_writes.eager.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let mut table = open_writes.table.lock();
        if self.detection == ConflictDetection::Eager {
            let mut others = table.open.iter_mut().filter(|(key, _)| **key != self.key);
            let by = others.find_map(|(_, other)| other.has_written(ino, write).then_some(other.id));
            if by.is_some() {
                return by;
            }
        }
        table.open.get_mut(&self.key).expect("entered until its drop").record(ino, write);
        None
    }

    /// Forgets what was recorded, after changes were undone, committed or doomed.
    pub fn forget(&self) {
        let mut table = self.manager.open_writes.table.lock();
        table.open.get_mut(&self.key).expect("entered until its drop").forget();
    }
}

impl Drop for OpenEntry {
    fn drop(&mut self) {
        let open_writes = &self.manager.open_writes;
        let mut table = open_writes.table.lock();
        table.open.remove(&self.key);
        if self.detection == ConflictDetection::Eager && open_writes.eager.fetch_sub(1, Ordering::SeqCst) == 1
        {
            table.open.values_mut().for_each(OpenTransaction::forget);
        }
    }
}

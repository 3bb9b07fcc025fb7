//! The snapshots that processes have looked into.
//!
//! The first lookup of its name opens a snapshot. It is closed when the kernel has forgotten all of
//! its nodes, or when it is deleted. Its node ids answer `ESTALE` then, and a later snapshot of the
//! same name gets other ids.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use parking_lot::Mutex;
use xact::Snapshot;
use xact_types::{Errno, Result};

use crate::protocol::node::SnapshotNr;

pub struct OpenSnapshot {
    pub nr: SnapshotNr,
    pub snapshot: Snapshot,
    name: String,
    /// Lookups that were answered with one of its nodes, minus those forgotten.
    lookups: AtomicU64,
}

impl OpenSnapshot {
    pub fn add_lookup(&self) {
        self.lookups.fetch_add(1, SeqCst);
    }
}

#[derive(Default)]
struct Tables {
    open: HashMap<SnapshotNr, Arc<OpenSnapshot>>,
    last: Option<SnapshotNr>,
}

#[derive(Default)]
pub struct OpenSnapshots {
    tables: Mutex<Tables>,
}

impl OpenSnapshots {
    /// The open snapshot of this name, with a lookup counted; `open` opens it if it is not open.
    pub fn find(&self, name: &str, open: impl FnOnce() -> Result<Snapshot>) -> Result<Arc<OpenSnapshot>> {
        let mut tables = self.tables.lock();
        if let Some(found) = tables.open.values().find(|one| one.name == name) {
            found.add_lookup();
            return Ok(found.clone());
        }
        let snapshot = open()?;
        let mut nr = tables.last.map_or(SnapshotNr::FIRST, SnapshotNr::next);
        while tables.open.contains_key(&nr) {
            nr = nr.next();
        }
        tables.last = Some(nr);
        let lookups = AtomicU64::new(1);
        let one = Arc::new(OpenSnapshot { nr, snapshot, name: name.to_owned(), lookups });
        tables.open.insert(nr, one.clone());
        Ok(one)
    }

    pub fn get(&self, nr: SnapshotNr) -> Result<Arc<OpenSnapshot>, Errno> {
        self.tables.lock().open.get(&nr).cloned().ok_or(Errno::ESTALE)
    }

    /// The kernel forgot `count` lookups.
    pub fn forget(&self, nr: SnapshotNr, count: u64) {
        let mut tables = self.tables.lock();
        if let Some(one) = tables.open.get(&nr)
            && one.lookups.fetch_sub(count, SeqCst) <= count
        {
            tables.open.remove(&nr);
        }
    }

    /// Closes a snapshot that was deleted.
    pub fn close(&self, name: &str) {
        self.tables.lock().open.retain(|_, one| one.name != name);
    }
}

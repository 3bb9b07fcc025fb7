//! Items of a transaction that stay conflicts after a partial commit.
//!
//! A partial commit opens a new view. An item that it left out, and that others have changed since
//! the old view, must not become the transaction's by that: its commit would overwrite the change
//! of the others. So it is *pinned*: it is read as of the old view, and always a conflict, until
//! its changes are dropped.

use std::collections::BTreeMap;

use xact_fs::Stamp;
use xact_types::{Error, Ino, Result};

use crate::diff::by_path::NameAt;

/// A pinned item.
#[derive(Debug, Clone)]
struct Pin {
    /// The view as of which it is read.
    stamp: Stamp,
    conflict: Error,
}

/// The pinned items of a transaction. Almost always empty.
#[derive(Debug, Default, Clone)]
pub(crate) struct Pins {
    inodes: BTreeMap<Ino, Pin>,
    names: BTreeMap<NameAt, Pin>,
}

impl Pins {
    pub fn is_empty(&self) -> bool {
        self.inodes.is_empty() && self.names.is_empty()
    }

    /// The view of a pinned inode.
    pub fn stamp_of(&self, ino: Ino) -> Option<Stamp> {
        self.inodes.get(&ino).map(|pin| pin.stamp)
    }

    /// The view of a pinned name, or of its pinned folder.
    pub fn stamp_of_name(&self, dir: Ino, name: &[u8]) -> Option<Stamp> {
        if self.is_empty() {
            return None;
        }
        self.names.get(&(dir, name.to_vec())).map(|pin| pin.stamp).or_else(|| self.stamp_of(dir))
    }

    /// The conflict of a pinned inode.
    pub fn check(&self, ino: Ino) -> Result<()> {
        self.inodes.get(&ino).map_or(Ok(()), |pin| Err(pin.conflict.clone()))
    }

    /// The conflict of a pinned name.
    pub fn check_name(&self, dir: Ino, name: &[u8]) -> Result<()> {
        if self.names.is_empty() {
            return Ok(());
        }
        self.names.get(&(dir, name.to_vec())).map_or(Ok(()), |pin| Err(pin.conflict.clone()))
    }

    /// Pins the conflicts that a partial commit has met in a view. Items that are pinned already
    /// keep their older view. Returns whether any is pinned in this one.
    pub fn add(&mut self, met: Met, stamp: Stamp) -> bool {
        let before = self.inodes.len() + self.names.len();
        for (ino, conflict) in met.inodes {
            self.inodes.entry(ino).or_insert(Pin { stamp, conflict });
        }
        for (at, conflict) in met.names {
            self.names.entry(at).or_insert(Pin { stamp, conflict });
        }
        self.inodes.len() + self.names.len() > before
    }

    pub fn remove(&mut self, ino: Ino) {
        self.inodes.remove(&ino);
    }

    pub fn remove_name(&mut self, at: &NameAt) {
        self.names.remove(at);
    }
}

/// Conflicts with items that a partial commit leaves out.
#[derive(Debug, Default)]
pub(crate) struct Met {
    pub inodes: BTreeMap<Ino, Error>,
    pub names: BTreeMap<NameAt, Error>,
}

impl Met {
    /// The first of them, for a message.
    pub fn first(&self) -> Option<Error> {
        self.names.values().chain(self.inodes.values()).next().cloned()
    }
}

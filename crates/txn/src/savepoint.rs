//! Savepoints: earlier states of the overlay, and rollback to them.
//!
//! A savepoint is a copy of the overlay, which shares the blocks of files with it. Savepoints nest:
//! a rollback to one, or its release, also ends all later ones.
//!
//! A rollback does not shrink the read set, because the reads may have led to the rollback. The
//! number of an inode created in the transaction is not given back while a savepoint might restore
//! the inode, or the kernel may know it: it stays in `Overlay::unlinked_numbers` until the
//! transaction ends.

use std::sync::Arc;

use xact_types::{Error, Result};

use crate::account::{Account, Charge, Resource};
use crate::commit::changes::Changes;
use crate::overlay::{Node, Overlay};

/// The savepoints of a transaction.
#[derive(Debug, Default)]
pub(crate) struct Savepoints {
    /// Open savepoints, in rising order of their numbers.
    open: Vec<Saved>,
    last: u64,
}

#[derive(Debug)]
struct Saved {
    number: u64,
    /// The overlay at the savepoint.
    overlay: Overlay,
    /// Memory of the copy in bytes.
    bytes: usize,
    _charge: Charge,
}

impl Savepoints {
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Makes a savepoint; `block_size`: memory of each block of contents. `EMFILE`: the user has
    /// too many.
    pub fn make(&mut self, overlay: &Overlay, block_size: u32, account: &Arc<Account>) -> Result<u64> {
        let charge = account.charge(Resource::Savepoints, 1)?;
        self.last += 1;
        let bytes = overlay.bytes + overlay.in_memory.len() * block_size as usize;
        self.open.push(Saved { number: self.last, overlay: overlay.clone(), bytes, _charge: charge });
        Ok(self.last)
    }

    /// Memory of all savepoints in bytes.
    pub fn bytes(&self) -> usize {
        self.open.iter().map(|saved| saved.bytes).sum()
    }

    /// Removes a savepoint and all later ones, and returns its overlay.
    pub fn take(&mut self, number: u64) -> Result<Overlay> {
        let at = self.open.iter().position(|open| open.number == number).ok_or_else(|| {
            Error::Usage(format!("savepoint {number} is not open: it was rolled back to or released"))
        })?;
        let saved = self.open.drain(at..).next().expect("there is one at this place");
        Ok(saved.overlay)
    }

    pub fn clear(&mut self) {
        self.open.clear();
    }
}

impl Overlay {
    /// Restores `saved`; returns the differences, for caches of the view.
    pub fn roll_back(&mut self, saved: Overlay, link_max: u32) -> Changes {
        let left = std::mem::replace(self, saved);
        // Numbers that were dropped since stay reserved, whether their inodes come back or not.
        self.unlinked_numbers.extend(left.unlinked_numbers.iter().copied());
        for (&ino, node) in &mut self.nodes {
            // Holds of an inode do not go back in time.
            node.holds = left.nodes.get(&ino).map_or(0, |now| now.holds);
            if node.born {
                self.unlinked_numbers.remove(&ino);
            }
        }
        let gone = self.nodes.iter().filter(|(_, node)| node.is_gone(link_max));
        let gone: Vec<_> = gone.map(|(ino, _)| *ino).collect();
        for ino in gone {
            self.nodes.remove(&ino);
            self.unlinked_numbers.insert(ino);
        }
        for (&ino, _) in left.nodes.iter().filter(|(ino, node)| node.born && !self.nodes.contains_key(ino)) {
            self.unlinked_numbers.insert(ino);
        }
        self.recount();
        self.differences(&left)
    }

    fn differences(&self, other: &Overlay) -> Changes {
        let mut changes = Changes::default();
        let mut all: Vec<_> = self.nodes.keys().chain(other.nodes.keys()).copied().collect();
        all.sort_unstable();
        all.dedup();
        for ino in all {
            let (one, two) = (self.nodes.get(&ino), other.nodes.get(&ino));
            if one == two {
                continue;
            }
            changes.inodes.push(ino);
            let names = |node: Option<&Node>| node.map(|node| node.names.clone()).unwrap_or_default();
            let (one, two) = (names(one), names(two));
            let now = |names: &crate::overlay::Names, name: &[u8]| names.get(name).map(|change| change.now);
            for (name, _) in one.iter().chain(two.iter()) {
                if now(&one, name) != now(&two, name) {
                    changes.names.push((ino, name.clone()));
                }
            }
        }
        changes.names.sort();
        changes.names.dedup();
        changes
    }
}

//! The inodes that a commit locks: all of them before it validates, in rising order of their
//! numbers. That is the base's total order, so any number of commits can run without a deadlock.

use std::collections::BTreeSet;

use xact_types::{Ino, Result};

use super::Commit;
use crate::validation::permission::PermissionBasis;
use xact_fs::ChangedBy;

impl Commit<'_> {
    /// Every inode of the base that the commit reads or changes, in rising order.
    pub fn inodes(&self) -> Vec<Ino> {
        let mut all: BTreeSet<Ino> = self.changed().map(|(ino, _)| ino).collect();
        self.reads.inodes(&mut all);
        if !self.serializable {
            all.extend(PermissionBasis::of(self.whole, self.reads).inodes());
        }
        if let Some(left_out) = &self.left_out {
            all.extend(left_out.inodes().chain(left_out.names().map(|(dir, _)| *dir)));
            all.extend(self.whole.nodes.iter().filter(|(_, node)| !node.born).map(|(ino, _)| *ino));
            // These may not exist, so they cannot be locked. They are known to be conflicts.
            all.retain(|ino| !left_out.has(*ino) || self.check_known(*ino).is_ok());
            all.retain(|ino| self.whole.nodes.get(ino).is_none_or(|node| !node.born));
        }
        all.into_iter().collect()
    }

    /// A conflict if an inode is known to be one before the locks are taken: it was deleted before
    /// the transaction was reopened, or is one since a partial commit.
    pub fn check_known_conflicts(&self) -> Result<()> {
        if self.reads.offline.gone.is_empty() && self.pins.is_empty() {
            return Ok(());
        }
        self.inodes().into_iter().try_for_each(|ino| self.check_known(ino))
    }

    /// As `check_known_conflicts`, for one inode.
    pub fn check_known(&self, ino: Ino) -> Result<()> {
        self.pins.check(ino)?;
        match self.reads.offline.gone.contains(&ino) {
            true => self.conflict(ino, "it was deleted concurrently", ChangedBy(None)),
            false => Ok(()),
        }
    }
}

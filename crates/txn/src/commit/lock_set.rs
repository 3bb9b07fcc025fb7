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
            if !self.serializable {
                all.extend(PermissionBasis::of(self.overlay, self.reads).inodes());
            }
            all.extend(left_out.inodes().chain(left_out.names().map(|(dir, _)| *dir)));
            all.extend(self.whole.nodes.iter().filter(|(_, node)| !node.born).map(|(ino, _)| *ino));
            // These cannot be locked, and are known to be conflicts.
            all.retain(|ino| !(left_out.has(*ino) && self.reads.offline.gone.contains(ino)));
            all.retain(|ino| self.whole.nodes.get(ino).is_none_or(|node| !node.born));
        }
        all.into_iter().collect()
    }

    /// A conflict if an inode was deleted that the transaction knew before it was reopened. Called
    /// before the locks are taken, because such an inode cannot be locked.
    pub fn check_gone(&self) -> Result<()> {
        let gone = &self.reads.offline.gone;
        let met =
            if gone.is_empty() { None } else { self.inodes().into_iter().find(|ino| gone.contains(ino)) };
        met.map_or(Ok(()), |ino| self.conflict(ino, "it was deleted concurrently", ChangedBy(None)))
    }
}

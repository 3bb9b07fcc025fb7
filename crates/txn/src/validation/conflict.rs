//! How conflicts are reported: with the path, what happened there, and the transaction that did it.

use xact_types::{Error, Ino, Result};

use crate::commit::Commit;
use xact_fs::{ChangedBy, CommitOps};

/// Why a commit is refused, and a write before it.
pub(crate) const CONTENTS_CHANGED: &str = "its contents were changed meanwhile";

impl Commit<'_> {
    pub(crate) fn conflict<R>(&self, ino: Ino, why: &'static str, by: ChangedBy) -> Result<R> {
        Err(Error::Conflict { path: self.reads.paths.of(ino), why, conflicting_tx: by.0 })
    }

    pub(crate) fn conflict_name<R>(&self, dir: Ino, name: &[u8], by: ChangedBy) -> Result<R> {
        let path = self.reads.paths.of_name(dir, name);
        Err(Error::Conflict { path, why: "the name was changed meanwhile", conflicting_tx: by.0 })
    }

    /// As `conflict`, on attributes of an inode.
    pub(crate) fn attr_conflict<R, T: CommitOps>(
        &self,
        tree: &mut T,
        ino: Ino,
        why: &'static str,
    ) -> Result<R> {
        // Where the inode is gone, or the change is not the attributes' own, nobody is named.
        let by = tree.attr_changed_since(ino, self.stamp)?.unwrap_or(ChangedBy(None));
        self.conflict(ino, why, by)
    }
}

//! Reports conflicts with the path, the change, and the conflicting transaction.

use xact_types::{Error, Ino, Result};

use crate::commit::Commit;
use xact_fs::{ChangedBy, CommitOps};

/// The reason of a conflict on contents, at a commit or at an earlier write.
pub(crate) const CONTENTS_CHANGED: &str = "its contents were changed concurrently";

/// The reason of a conflict with a transaction that has not committed.
pub(crate) const OPEN_HAS_WRITTEN: &str = "it has an uncommitted change";

impl Commit<'_> {
    pub(crate) fn conflict<R>(&self, ino: Ino, why: &'static str, by: ChangedBy) -> Result<R> {
        Err(Error::Conflict { path: self.reads.paths.of(ino), why, conflicting_tx: by.0 })
    }

    pub(crate) fn conflict_name<R>(&self, dir: Ino, name: &[u8], by: ChangedBy) -> Result<R> {
        let path = self.reads.paths.of_name(dir, name);
        Err(Error::Conflict { path, why: "the name was changed concurrently", conflicting_tx: by.0 })
    }

    /// A conflict on attributes of an inode.
    pub(crate) fn attr_conflict<R, T: CommitOps>(
        &self,
        tree: &mut T,
        ino: Ino,
        why: &'static str,
    ) -> Result<R> {
        // If the inode was deleted, or the change is not one of attributes, the author is not
        // known.
        let by = tree.attr_changed_since(ino, self.stamp)?.unwrap_or(ChangedBy(None));
        self.conflict(ino, why, by)
    }
}

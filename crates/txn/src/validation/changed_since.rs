//! Changes by others since the transaction's begin, found by the versions that the volume keeps in
//! memory, or by fingerprints if the volume was not mounted for some time.

use std::ops::Range;

use xact_fs::{Attr, AttrSet, ChangedBy, CommitOps, FileKind};
use xact_types::{FileBlock, Ino, Result};

use super::conflict::CONTENTS_CHANGED;
use super::offline_changes::has_name;
use crate::commit::{Commit, user_flags};

impl Commit<'_> {
    /// The present attributes of an inode; a conflict if it was deleted or has lost its last name.
    pub(super) fn check_exists<T: CommitOps>(&self, tree: &mut T, ino: Ino, was: &Attr) -> Result<Attr> {
        if !tree.exists(ino)? {
            return self.attr_conflict(tree, ino, "it was deleted concurrently");
        }
        let now = tree.attr(ino)?;
        if now.nlink == 0 && was.nlink > 0 {
            return self.attr_conflict(tree, ino, "it was deleted concurrently");
        }
        Ok(now)
    }

    pub(super) fn blocks_unchanged<T: CommitOps>(
        &self,
        tree: &mut T,
        ino: Ino,
        blocks: Range<FileBlock>,
    ) -> Result<()> {
        let changed = match self.reads.offline.contents.contains(&ino) {
            true => Some(ChangedBy(None)),
            false => tree.blocks_changed_since(ino, blocks, self.stamp)?,
        };
        if let Some(by) = changed {
            return self.conflict(ino, CONTENTS_CHANGED, by);
        }
        Ok(())
    }

    pub(super) fn name_changed<T: CommitOps>(
        &self,
        tree: &mut T,
        dir: Ino,
        name: &[u8],
    ) -> Result<Option<ChangedBy>> {
        if has_name(&self.reads.offline.names, dir, name) {
            return Ok(Some(ChangedBy(None)));
        }
        tree.entry_changed_since(dir, name, self.stamp)
    }

    pub(super) fn listing_changed<T: CommitOps>(&self, tree: &mut T, dir: Ino) -> Result<Option<ChangedBy>> {
        if self.reads.offline.listings.contains(&dir) {
            return Ok(Some(ChangedBy(None)));
        }
        // A change of a name that is left out is a conflict of that name alone.
        let ignored = |name: &[u8]| {
            self.reads.is_dropped(dir, name)
                || self.left_out.as_ref().is_some_and(|left_out| left_out.has_name(dir, name))
        };
        tree.any_entry_changed_since(dir, self.stamp, &ignored)
    }

    pub(super) fn xattr_changed<T: CommitOps>(
        &self,
        tree: &mut T,
        ino: Ino,
        name: &[u8],
    ) -> Result<Option<ChangedBy>> {
        if has_name(&self.reads.offline.xattrs, ino, name) {
            return Ok(Some(ChangedBy(None)));
        }
        tree.xattr_changed_since(ino, name, self.stamp)
    }

    pub(super) fn xattrs_changed<T: CommitOps>(&self, tree: &mut T, ino: Ino) -> Result<Option<ChangedBy>> {
        if self.reads.offline.xattr_lists.contains(&ino) {
            return Ok(Some(ChangedBy(None)));
        }
        tree.any_xattr_changed_since(ino, self.stamp)
    }

    pub(super) fn compare<T: CommitOps>(
        &self,
        tree: &mut T,
        ino: Ino,
        attrs: AttrSet,
        was: &Attr,
        now: &Attr,
    ) -> Result<()> {
        if attrs.has(AttrSet::MODE) && was.perm != now.perm {
            return self.attr_conflict(tree, ino, "its permissions were changed concurrently");
        }
        if attrs.has(AttrSet::OWNER) && (was.uid, was.gid, was.project) != (now.uid, now.gid, now.project) {
            return self.attr_conflict(tree, ino, "its owner was changed concurrently");
        }
        if attrs.has(AttrSet::FLAGS) && user_flags(was.flags) != user_flags(now.flags) {
            return self.attr_conflict(tree, ino, "its flags were changed concurrently");
        }
        // Size and times of a directory are merged from all changes in it.
        if was.kind == FileKind::Directory {
            return Ok(());
        }
        if attrs.has(AttrSet::SIZE) && was.size != now.size {
            return self.attr_conflict(tree, ino, "its size was changed concurrently");
        }
        if attrs.has(AttrSet::MTIME) && was.mtime != now.mtime {
            return self.attr_conflict(tree, ino, "it was written concurrently");
        }
        Ok(())
    }
}

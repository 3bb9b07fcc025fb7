//! Validation: compares a transaction's reads and changes with the present base.
//!
//! A commit validates under its locks and before its first change, so a conflict leaves no trace.
//! The order of the checks decides which of several conflicts is reported: first changes of the
//! transaction, then the shape of the tree, then reads.

mod changed_since;
pub(crate) mod conflict;
pub(crate) mod offline_changes;
pub(crate) mod paths;
pub(crate) mod permission;
pub(crate) mod read_set;

use xact_fs::{AttrSet, CommitOps, FileKind};
use xact_layout::inode::flag;
use xact_types::{AccessCheck, FileBlock, Ino, Result};

use crate::commit::{Commit, file_blocks};
use crate::overlay::Node;
use permission::PermissionBasis;

/// Flags that forbid changes to all users.
fn guard_flags(flags: u32) -> u32 {
    flags & (flag::IMMUTABLE | flag::APPEND)
}

impl Commit<'_> {
    pub(crate) fn validate<T: CommitOps>(&self, tree: &mut T) -> Result<()> {
        tree.check_view(self.stamp)?;
        for (ino, node) in self.changed() {
            self.validate_write(tree, ino, node)?;
        }
        self.validate_shape(tree)?;
        if self.serializable { self.validate_reads(tree) } else { self.validate_permission(tree) }
    }

    /// Validates the basis of the permission to make the changes (see [`permission`]). The front
    /// end checks permission bits, so they are compared only if there is one.
    fn validate_permission<T: CommitOps>(&self, tree: &mut T) -> Result<()> {
        const PERMISSION: AttrSet = AttrSet::MODE.with(AttrSet::OWNER);
        let basis = PermissionBasis::of(self.whole, self.reads);
        for (&ino, was) in &basis.changed {
            let now = self.check_exists(tree, ino, was)?;
            if guard_flags(was.flags) != guard_flags(now.flags) && AccessCheck::CommitFlags.is_made() {
                return self.attr_conflict(
                    tree,
                    ino,
                    "its immutable or append-only flag was changed concurrently",
                );
            }
            if self.mounted && AccessCheck::CommitMode.is_made() {
                self.compare(tree, ino, PERMISSION, was, &now)?;
            }
        }
        if !self.mounted {
            return Ok(());
        }
        if AccessCheck::CommitWay.is_made() {
            for (&folder, was) in &basis.folders {
                let now = self.check_exists(tree, folder, was)?;
                self.compare(tree, folder, PERMISSION, was, &now)?;
            }
            for &(folder, name) in &basis.names {
                if let Some(by) = self.name_changed(tree, folder, name)? {
                    return self.conflict_name(folder, name, by);
                }
            }
        }
        for &(ino, name) in basis.lists.iter().filter(|_| AccessCheck::CommitAcl.is_made()) {
            if let Some(by) = self.xattr_changed(tree, ino, name)? {
                return self.conflict(ino, "its access control list was changed concurrently", by);
            }
        }
        Ok(())
    }

    fn validate_write<T: CommitOps>(&self, tree: &mut T, ino: Ino, node: &Node) -> Result<()> {
        // Names first: after a race for a name, the conflict should report the name.
        for (name, _) in node.names.iter() {
            if let Some(by) = self.name_changed(tree, ino, name)? {
                return self.conflict_name(ino, name, by);
            }
        }
        let was = &node.origin;
        let now = self.check_exists(tree, ino, was)?;
        let mut written = AttrSet::NONE;
        if node.changed.perm.is_some() {
            written |= AttrSet::MODE;
        }
        if node.changed.uid.is_some() || node.changed.gid.is_some() || node.changed.project.is_some() {
            written |= AttrSet::OWNER;
        }
        if node.changed.flags.is_some() {
            written |= AttrSet::FLAGS;
        }
        if node.file.sets_size(was.size) {
            written |= AttrSet::SIZE;
        }
        self.compare(tree, ino, written, was, &now)?;
        for at in node.file.blocks.keys() {
            self.blocks_unchanged(tree, ino, *at..at.offset(1))?;
        }
        if let Some(end) = node.file.base_end {
            self.blocks_unchanged(tree, ino, end..FileBlock(u32::MAX))?;
        }
        for name in node.xattrs.keys() {
            if let Some(by) = self.xattr_changed(tree, ino, name)? {
                return self.conflict(ino, "an extended attribute was changed concurrently", by);
            }
        }
        let limit = tree.link_max();
        let too_many = match was.kind {
            FileKind::Directory => {
                !tree.dir_nlink() && i64::from(now.nlink) + node.subdirs > i64::from(limit)
            }
            _ => i64::from(now.nlink) + node.links > i64::from(limit),
        };
        if too_many {
            return self.attr_conflict(tree, ino, "its number of links reached the maximum concurrently");
        }
        Ok(())
    }

    /// Validates the shape of the tree, under every isolation: removed directories are still empty,
    /// and no directory above a moved one has moved.
    fn validate_shape<T: CommitOps>(&self, tree: &mut T) -> Result<()> {
        for &dir in &self.reads.emptied {
            if let Some(by) = self.listing_changed(tree, dir)? {
                return self.conflict(dir, "names in it were changed concurrently", by);
            }
        }
        for (&dir, &was) in &self.reads.parents {
            if !tree.exists(dir)? || tree.parent(dir)? != was {
                return self.attr_conflict(tree, dir, "it was moved concurrently");
            }
        }
        Ok(())
    }

    /// Whether only the kernel may have read the time of modification of a file. A kernel reads all
    /// attributes of a file when it is opened. If the transaction writes to the file, that time
    /// becomes its own in the end, and a read of the old time does not count: otherwise two
    /// transactions that write different pages of one file would conflict.
    fn kernel_stat_only(&self, ino: Ino) -> bool {
        let writes =
            |node: &Node| node.origin.kind == FileKind::Regular && node.file.is_changed(node.origin.size);
        self.mounted && self.overlay.nodes.get(&ino).is_some_and(writes)
    }

    fn validate_reads<T: CommitOps>(&self, tree: &mut T) -> Result<()> {
        let reads = self.reads;
        for (&dir, names) in &reads.names {
            for name in names {
                if let Some(by) = self.name_changed(tree, dir, name)? {
                    return self.conflict_name(dir, name, by);
                }
            }
        }
        for &dir in &reads.listings {
            if let Some(by) = self.listing_changed(tree, dir)? {
                return self.conflict(dir, "it was listed, and names in it were changed concurrently", by);
            }
        }
        for (&ino, (attrs, was)) in &reads.attrs {
            let now = self.check_exists(tree, ino, was)?;
            let attrs = if self.kernel_stat_only(ino) { attrs.without(AttrSet::MTIME) } else { *attrs };
            self.compare(tree, ino, attrs, was, &now)?;
        }
        for (&ino, &size) in &reads.min_sizes {
            if !tree.exists(ino)? || tree.attr(ino)?.size < size {
                return self.attr_conflict(tree, ino, "it was truncated concurrently");
            }
        }
        for (&ino, blocks) in &reads.blocks {
            for range in blocks.iter() {
                self.blocks_unchanged(tree, ino, file_blocks(range))?;
            }
        }
        for (&ino, names) in &reads.xattrs {
            for name in names {
                if let Some(by) = self.xattr_changed(tree, ino, name)? {
                    return self.conflict(ino, "an extended attribute was changed concurrently", by);
                }
            }
        }
        for &ino in &reads.xattr_lists {
            if let Some(by) = self.xattrs_changed(tree, ino)? {
                return self.conflict(ino, "its extended attributes were changed concurrently", by);
            }
        }
        Ok(())
    }
}

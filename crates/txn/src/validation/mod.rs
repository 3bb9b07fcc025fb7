//! Validation: what a transaction looked at and changed, held against the base as it is now.
//!
//! A commit does this under its locks and before its first change, so a conflict leaves no trace.
//! The order of the checks decides which conflict is reported where there are several: changes of
//! the transaction first, then the shape of the tree, then what was read.

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

/// Flags that forbid changes to everybody.
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

    /// What the right to make the changes rested on (see [`permission`]). Permission bits are the
    /// front end's, so they are compared where there is one.
    fn validate_permission<T: CommitOps>(&self, tree: &mut T) -> Result<()> {
        const WHO: AttrSet = AttrSet::MODE.with(AttrSet::OWNER);
        let basis = PermissionBasis::of(self.whole, self.reads);
        for (&ino, was) in &basis.changed {
            let now = self.still_there(tree, ino, was)?;
            if guard_flags(was.flags) != guard_flags(now.flags) && AccessCheck::CommitFlags.is_made() {
                return self.attr_conflict(
                    tree,
                    ino,
                    "its immutable or append-only flag was changed meanwhile",
                );
            }
            if self.mounted && AccessCheck::CommitMode.is_made() {
                self.compare(tree, ino, WHO, was, &now)?;
            }
        }
        if !self.mounted {
            return Ok(());
        }
        if AccessCheck::CommitWay.is_made() {
            for (&folder, was) in &basis.folders {
                let now = self.still_there(tree, folder, was)?;
                self.compare(tree, folder, WHO, was, &now)?;
            }
            for &(folder, name) in &basis.names {
                if let Some(by) = self.name_changed(tree, folder, name)? {
                    return self.conflict_name(folder, name, by);
                }
            }
        }
        for &(ino, name) in basis.lists.iter().filter(|_| AccessCheck::CommitAcl.is_made()) {
            if let Some(by) = self.xattr_changed(tree, ino, name)? {
                return self.conflict(ino, "its access control list was changed meanwhile", by);
            }
        }
        Ok(())
    }

    fn validate_write<T: CommitOps>(&self, tree: &mut T, ino: Ino, node: &Node) -> Result<()> {
        // Names first: who loses a race for a name wants to hear of the name.
        for (name, _) in node.names.iter() {
            if let Some(by) = self.name_changed(tree, ino, name)? {
                return self.conflict_name(ino, name, by);
            }
        }
        let was = &node.origin;
        let now = self.still_there(tree, ino, was)?;
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
                return self.conflict(ino, "an extended attribute was changed meanwhile", by);
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
            return self.attr_conflict(tree, ino, "it was given so many links meanwhile that no more fit");
        }
        Ok(())
    }

    /// What keeps the tree a tree, under every isolation: directories that were removed are still
    /// empty, and no directory above a moved one has moved itself.
    fn validate_shape<T: CommitOps>(&self, tree: &mut T) -> Result<()> {
        for &dir in &self.reads.emptied {
            if let Some(by) = self.listing_changed(tree, dir)? {
                return self.conflict(dir, "names in it were changed meanwhile", by);
            }
        }
        for (&dir, &was) in &self.reads.parents {
            if !tree.exists(dir)? || tree.parent(dir)? != was {
                return self.attr_conflict(tree, dir, "it was moved meanwhile");
            }
        }
        Ok(())
    }

    /// A kernel asks for all attributes of a file that is opened. Where the transaction writes to
    /// the file, its time of modification is the transaction's own in the end, and that it was
    /// told the old one before says nothing about what it did: else two that write different
    /// pages of one file would collide.
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
                return self.conflict(dir, "it was listed, and names in it were changed meanwhile", by);
            }
        }
        for (&ino, (attrs, was)) in &reads.attrs {
            let now = self.still_there(tree, ino, was)?;
            let attrs = if self.kernel_stat_only(ino) { attrs.without(AttrSet::MTIME) } else { *attrs };
            self.compare(tree, ino, attrs, was, &now)?;
        }
        for (&ino, &size) in &reads.min_sizes {
            if !tree.exists(ino)? || tree.attr(ino)?.size < size {
                return self.attr_conflict(tree, ino, "it was cut shorter meanwhile");
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
                    return self.conflict(ino, "an extended attribute was changed meanwhile", by);
                }
            }
        }
        for &ino in &reads.xattr_lists {
            if let Some(by) = self.xattrs_changed(tree, ino)? {
                return self.conflict(ino, "its extended attributes were changed meanwhile", by);
            }
        }
        Ok(())
    }
}

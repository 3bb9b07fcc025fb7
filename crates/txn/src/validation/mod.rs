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
pub(crate) mod write_set;

use xact_fs::{AttrSet, CommitOps, FileKind};
use xact_layout::inode::flag;
use xact_types::{AccessCheck, Error, FileBlock, Ino, Result};

use crate::commit::{Commit, file_blocks};
use crate::overlay::Node;
use crate::partial::LeftOut;
use crate::partial::pins::Met;
use permission::PermissionBasis;
use write_set::compared_attrs;

/// Flags that forbid changes to all users.
fn guard_flags(flags: u32) -> u32 {
    flags & (flag::IMMUTABLE | flag::APPEND)
}

impl Commit<'_> {
    pub(crate) fn validate<T: CommitOps>(&self, tree: &mut T) -> Result<()> {
        // Validation may run several times.
        *self.met.borrow_mut() = Met::default();
        tree.check_view(self.stamp)?;
        for (ino, node) in self.changed() {
            self.validate_write(tree, ino, node)?;
        }
        if self.left_out.is_some() {
            self.examine_left_out(tree)?;
        }
        self.validate_shape(tree)?;
        if self.serializable { self.validate_reads(tree) } else { self.validate_permission(tree) }
    }

    /// Finds the conflicts of the changes that a partial commit leaves out: they must stay
    /// conflicts when the transaction continues with a new view.
    fn examine_left_out<T: CommitOps>(&self, tree: &mut T) -> Result<()> {
        let others = self.whole.nodes.iter().filter(|(_, node)| !node.born && node.is_changed());
        others.into_iter().try_for_each(|(ino, node)| self.validate_write(tree, *ino, node))?;
        let names = self.left_out.iter().flat_map(LeftOut::names);
        names.into_iter().try_for_each(|(dir, name)| match self.whole.nodes.get(dir) {
            Some(node) if node.born => Ok(()),
            _ => self.validate_name(tree, *dir, name),
        })
    }

    /// Passes over a conflict with an inode that is left out, and records it.
    fn unless_left_out(&self, ino: Ino, checked: Result<()>) -> Result<()> {
        match (&self.left_out, checked) {
            (Some(left_out), Err(conflict @ Error::Conflict { .. })) if left_out.has(ino) => {
                self.met.borrow_mut().inodes.entry(ino).or_insert(conflict);
                Ok(())
            }
            (_, checked) => checked,
        }
    }

    /// As `unless_left_out`, for a name.
    fn unless_name_left_out(&self, dir: Ino, name: &[u8], checked: Result<()>) -> Result<()> {
        match (&self.left_out, checked) {
            (Some(left_out), Err(conflict @ Error::Conflict { .. })) if left_out.has_name(dir, name) => {
                self.met.borrow_mut().names.entry((dir, name.to_vec())).or_insert(conflict);
                Ok(())
            }
            (_, checked) => checked,
        }
    }

    /// Validates that others have not changed a name.
    fn validate_name<T: CommitOps>(&self, tree: &mut T, dir: Ino, name: &[u8]) -> Result<()> {
        self.unless_left_out(dir, self.check_known(dir))?;
        let known = self.pins.check_name(dir, name);
        let checked = match known.and_then(|()| self.name_changed(tree, dir, name)) {
            Ok(None) => Ok(()),
            Ok(Some(by)) => self.conflict_name(dir, name, by),
            Err(error) => Err(error),
        };
        self.unless_name_left_out(dir, name, checked)
    }

    /// Validates an item of an inode.
    fn validate_item(&self, ino: Ino, check: impl FnOnce() -> Result<()>) -> Result<()> {
        let checked = self.check_known(ino).and_then(|()| check());
        self.unless_left_out(ino, checked)
    }

    /// Validates the basis of the permission to make the changes (see [`permission`]). The front
    /// end checks permission bits, so they are compared only if there is one.
    fn validate_permission<T: CommitOps>(&self, tree: &mut T) -> Result<()> {
        const PERMISSION: AttrSet = AttrSet::MODE.with(AttrSet::OWNER);
        let basis = PermissionBasis::of(self.whole, self.reads);
        for (&ino, was) in &basis.changed {
            self.validate_item(ino, || {
                let now = self.check_exists(tree, ino, was)?;
                if guard_flags(was.flags) != guard_flags(now.flags) && AccessCheck::CommitFlags.is_made() {
                    let why = "its immutable or append-only flag was changed concurrently";
                    return self.attr_conflict(tree, ino, why);
                }
                if self.mounted && AccessCheck::CommitMode.is_made() {
                    self.compare(tree, ino, PERMISSION, was, &now)?;
                }
                Ok(())
            })?;
        }
        if !self.mounted {
            return Ok(());
        }
        if AccessCheck::CommitWay.is_made() {
            for (&folder, was) in &basis.folders {
                self.validate_item(folder, || {
                    let now = self.check_exists(tree, folder, was)?;
                    self.compare(tree, folder, PERMISSION, was, &now)
                })?;
            }
            for &(folder, name) in &basis.names {
                self.validate_name(tree, folder, name)?;
            }
        }
        for &(ino, name) in basis.lists.iter().filter(|_| AccessCheck::CommitAcl.is_made()) {
            const WHY: &str = "its access control list was changed concurrently";
            self.validate_item(ino, || match self.xattr_changed(tree, ino, name)? {
                Some(by) => self.conflict(ino, WHY, by),
                None => Ok(()),
            })?;
        }
        Ok(())
    }

    fn validate_write<T: CommitOps>(&self, tree: &mut T, ino: Ino, node: &Node) -> Result<()> {
        // Names first: after a race for a name, the conflict should report the name.
        for (name, _) in node.names.iter() {
            self.validate_name(tree, ino, name)?;
        }
        self.validate_item(ino, || self.validate_inode(tree, ino, node))
    }

    fn validate_inode<T: CommitOps>(&self, tree: &mut T, ino: Ino, node: &Node) -> Result<()> {
        let was = &node.origin;
        let now = self.check_exists(tree, ino, was)?;
        let mut written = compared_attrs(&node.changed);
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
            self.validate_item(dir, || match self.listing_changed(tree, dir)? {
                Some(by) => self.conflict(dir, "names in it were changed concurrently", by),
                None => Ok(()),
            })?;
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
        self.mounted && self.whole.nodes.get(&ino).is_some_and(writes)
    }

    fn validate_reads<T: CommitOps>(&self, tree: &mut T) -> Result<()> {
        let reads = self.reads;
        for (&dir, names) in &reads.names {
            for name in names {
                self.validate_name(tree, dir, name)?;
            }
        }
        for &dir in &reads.listings {
            const WHY: &str = "it was listed, and names in it were changed concurrently";
            self.validate_item(dir, || match self.listing_changed(tree, dir)? {
                Some(by) => self.conflict(dir, WHY, by),
                None => Ok(()),
            })?;
        }
        for (&ino, (attrs, was)) in &reads.attrs {
            self.validate_item(ino, || {
                let now = self.check_exists(tree, ino, was)?;
                let attrs = if self.kernel_stat_only(ino) { attrs.without(AttrSet::MTIME) } else { *attrs };
                self.compare(tree, ino, attrs, was, &now)
            })?;
        }
        for (&ino, &size) in &reads.min_sizes {
            self.validate_item(ino, || match !tree.exists(ino)? || tree.attr(ino)?.size < size {
                true => self.attr_conflict(tree, ino, "it was truncated concurrently"),
                false => Ok(()),
            })?;
        }
        for (&ino, blocks) in &reads.blocks {
            self.validate_item(ino, || {
                blocks.iter().try_for_each(|range| self.blocks_unchanged(tree, ino, file_blocks(range)))
            })?;
        }
        for (&ino, names) in &reads.xattrs {
            self.validate_item(ino, || {
                for name in names {
                    if let Some(by) = self.xattr_changed(tree, ino, name)? {
                        return self.conflict(ino, "an extended attribute was changed concurrently", by);
                    }
                }
                Ok(())
            })?;
        }
        for &ino in &reads.xattr_lists {
            self.validate_item(ino, || match self.xattrs_changed(tree, ino)? {
                Some(by) => self.conflict(ino, "its extended attributes were changed concurrently", by),
                None => Ok(()),
            })?;
        }
        Ok(())
    }
}

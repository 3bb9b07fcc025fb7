//! Applies the net effect of a transaction to the volume, under the locks of the commit.

use std::collections::BTreeMap;

use xact_fs::{AttrChange, CommitOps, FileKind, InodeOps, NewInode};
use xact_layout::inode::flag;
use xact_types::{Ino, Result, Timestamp};

use super::{Commit, user_flags};
use crate::overlay::Node;

impl Commit<'_> {
    /// Applies the changes, in the operation that has validated them.
    pub fn apply<T: CommitOps>(&self, tree: &mut T, staged: &mut BTreeMap<Ino, T::Staged>) -> Result<()> {
        for (ino, node) in self.born() {
            adopt(tree, ino, node)?;
        }
        for (ino, node) in self.nodes() {
            if let Some(staged) = staged.get_mut(&ino) {
                apply_file(tree, ino, node, staged)?;
            }
            for (name, value) in &node.xattrs {
                // An attribute that the base does not have need not be removed.
                if value.is_some() || tree.xattr(ino, name)?.is_some() {
                    tree.set_xattr(ino, name, value.as_deref())?;
                }
            }
        }
        for (dir, node) in self.nodes() {
            for (name, change) in node.names.iter() {
                match (change.base, change.now) {
                    (Some(_), None) => tree.remove_entry(dir, name)?,
                    (Some(base), Some(now)) if base != now => tree.set_entry(dir, name, now)?,
                    (None, Some(now)) => tree.add_entry(dir, name, now)?,
                    _ => {}
                }
            }
            if let Some(parent) = node.parent
                && !node.born
                && !node.removed_dir
            {
                tree.set_parent(dir, parent)?;
            }
        }
        for (ino, node) in self.nodes() {
            apply_attr(tree, ino, node)?;
            apply_links(tree, ino, node)?;
        }
        Ok(())
    }
}

fn adopt<T: CommitOps>(tree: &mut T, ino: Ino, node: &Node) -> Result<()> {
    let origin = &node.origin;
    let new = NewInode {
        kind: origin.kind,
        perm: origin.perm,
        uid: origin.uid,
        gid: origin.gid,
        project: origin.project,
        rdev: origin.rdev,
        time: origin.mtime,
        flags: origin.flags,
    };
    tree.adopt_inode(ino, &new)?;
    if let Some(parent) = node.parent {
        tree.set_parent(ino, parent)?;
    }
    if let Some(target) = &node.target {
        tree.set_link(ino, target)?;
    }
    Ok(())
}

fn apply_file<T: CommitOps>(tree: &mut T, ino: Ino, node: &Node, staged: &mut T::Staged) -> Result<()> {
    let file = &node.file;
    // If the transaction has not changed the size, the present one stays.
    let was = if node.born { 0 } else { node.origin.size };
    let size = if file.sets_size(was) { file.size } else { tree.attr(ino)?.size };
    tree.install(ino, staged, size)
}

/// Applies the attributes that the transaction has set. Times never go back: later times set by
/// others stay.
fn apply_attr<T: InodeOps>(tree: &mut T, ino: Ino, node: &Node) -> Result<()> {
    let new = &node.changed;
    if *new == AttrChange::default() {
        return Ok(());
    }
    let now = tree.attr(ino)?;
    let is_dir = now.kind == FileKind::Directory;
    let merged = |new: Option<Timestamp>, was: Timestamp, now: Timestamp| {
        let others = !node.born && now != was;
        new.map(|new| if is_dir && !node.born || others { new.max(now) } else { new })
    };
    let change = AttrChange {
        mtime: merged(new.mtime, node.origin.mtime, now.mtime),
        ctime: merged(new.ctime, node.origin.ctime, now.ctime),
        flags: new.flags.map(|flags| now.flags & !flag::USER_MODIFIABLE | user_flags(flags)),
        ..*new
    };
    tree.set_attr(ino, &change)
}

fn apply_links<T: InodeOps>(tree: &mut T, ino: Ino, node: &Node) -> Result<()> {
    // Link counts have 16 bits, so their differences fit.
    let by = |delta: i64| i32::try_from(delta).expect("link counts are small");
    if node.born {
        return tree.add_links(ino, by(i64::from(node.nlink(0, tree.link_max()))));
    }
    if node.removed_dir {
        let now = tree.attr(ino)?.nlink;
        return tree.add_links(ino, -by(i64::from(now)));
    }
    if node.subdirs != 0 {
        tree.add_subdirs(ino, by(node.subdirs))?;
    }
    if node.links != 0 {
        tree.add_links(ino, by(node.links))?;
    }
    Ok(())
}

//! Names that come and go: link, unlink, rmdir.

use xact_layout::inode::flag;
use xact_types::{Errno, Error, Ino, Result};

use super::{
    directory, fail, may_add, may_remove, refuse_flags, refuse_other_project, touch_dir, touch_inode,
};
use crate::api::{Attr, Entry, Name, check_name};
use crate::inode_ops::{AttrSet, InodeOps};

/// A further name. An inode without any (`O_TMPFILE`) gets its first one by this; whether
/// one that was unlinked may come back is the front end's to decide (the kernel says no).
pub fn link<T: InodeOps + ?Sized>(tree: &mut T, ino: Ino, dir: Ino, name: &Name) -> Result<Attr> {
    let attr = tree.attr(ino)?;
    let parent = directory(tree, dir)?;
    check_name(name)?;
    if tree.entry(dir, name)?.is_some() {
        return fail(Errno::EEXIST);
    }
    may_add(tree, &parent, name)?;
    refuse_other_project(tree, &parent, &attr)?;
    refuse_flags(tree, &attr, flag::IMMUTABLE | flag::APPEND)?;
    if attr.is_dir() {
        return fail(Errno::EPERM);
    }
    if attr.nlink >= tree.link_max() {
        return fail(Errno::EMLINK);
    }
    // The caller is told all of them.
    tree.depends_on(ino, AttrSet::STAT);
    let now = tree.now();
    tree.add_entry(dir, name, Entry { ino, kind: attr.kind })?;
    tree.add_links(ino, 1)?;
    touch_inode(tree, ino, now)?;
    touch_dir(tree, dir, now)?;
    tree.attr(ino)
}

pub fn unlink<T: InodeOps + ?Sized>(tree: &mut T, dir: Ino, name: &Name) -> Result<()> {
    let victim = victim(tree, dir, name)?;
    if victim.is_dir() {
        return fail(Errno::EISDIR);
    }
    let now = tree.now();
    tree.remove_entry(dir, name)?;
    touch_dir(tree, dir, now)?;
    touch_inode(tree, victim.ino, now)?;
    tree.add_links(victim.ino, -1)
}

pub fn remove_dir<T: InodeOps + ?Sized>(tree: &mut T, dir: Ino, name: &Name) -> Result<()> {
    let victim = victim(tree, dir, name)?;
    if !victim.is_dir() {
        return fail(Errno::ENOTDIR);
    }
    if !tree.is_empty(victim.ino)? {
        return fail(Errno::ENOTEMPTY);
    }
    let now = tree.now();
    tree.remove_entry(dir, name)?;
    touch_dir(tree, dir, now)?;
    touch_inode(tree, victim.ino, now)?;
    drop_all_links(tree, &victim)?;
    tree.add_subdirs(dir, -1)
}

/// The inode behind a name that is to go.
fn victim<T: InodeOps + ?Sized>(tree: &mut T, dir: Ino, name: &Name) -> Result<Attr> {
    let parent = directory(tree, dir)?;
    check_name(name)?;
    let entry = tree.entry(dir, name)?.ok_or(Error::Posix(Errno::ENOENT))?;
    let victim = tree.attr(entry.ino)?;
    may_remove(tree, &parent, &victim)?;
    Ok(victim)
}

/// Takes all links of a directory whose name is gone, its own `.` with them.
pub(super) fn drop_all_links<T: InodeOps + ?Sized>(tree: &mut T, dir: &Attr) -> Result<()> {
    // A link count is at most 65,000.
    tree.add_links(dir.ino, -(dir.nlink as i32))
}

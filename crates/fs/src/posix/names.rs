//! Adding and removing names: link, unlink, rmdir.

use xact_layout::inode::flag;
use xact_types::{Errno, Error, Ino, Result};

use super::{
    directory, fail, may_add, may_remove, refuse_flags, refuse_other_project, touch_dir, touch_inode,
};
use crate::api::{Attr, Entry, Name, check_name};
use crate::inode_ops::{AttrSet, InodeOps};

/// Adds a name to an inode. An inode without one (`O_TMPFILE`) gets its first name by this. The
/// front end decides whether an unlinked inode may get a name again (the kernel refuses it).
pub fn link<T: InodeOps + ?Sized>(ops: &mut T, ino: Ino, dir: Ino, name: &Name) -> Result<Attr> {
    let attr = ops.attr(ino)?;
    let parent = directory(ops, dir)?;
    check_name(name)?;
    if ops.entry(dir, name)?.is_some() {
        return fail(Errno::EEXIST);
    }
    may_add(ops, &parent, name)?;
    refuse_other_project(ops, &parent, &attr)?;
    refuse_flags(ops, &attr, flag::IMMUTABLE | flag::APPEND)?;
    if attr.is_dir() {
        return fail(Errno::EPERM);
    }
    if attr.nlink >= ops.link_max() {
        return fail(Errno::EMLINK);
    }
    // The result has all of them.
    ops.depends_on(ino, AttrSet::STAT);
    let now = ops.now();
    ops.add_entry(dir, name, Entry { ino, kind: attr.kind })?;
    ops.add_links(ino, 1)?;
    touch_inode(ops, ino, now)?;
    touch_dir(ops, dir, now)?;
    ops.attr(ino)
}

pub fn unlink<T: InodeOps + ?Sized>(ops: &mut T, dir: Ino, name: &Name) -> Result<()> {
    let victim = victim(ops, dir, name)?;
    if victim.is_dir() {
        return fail(Errno::EISDIR);
    }
    let now = ops.now();
    ops.remove_entry(dir, name)?;
    touch_dir(ops, dir, now)?;
    touch_inode(ops, victim.ino, now)?;
    ops.add_links(victim.ino, -1)
}

pub fn remove_dir<T: InodeOps + ?Sized>(ops: &mut T, dir: Ino, name: &Name) -> Result<()> {
    let victim = victim(ops, dir, name)?;
    if !victim.is_dir() {
        return fail(Errno::ENOTDIR);
    }
    if !ops.is_empty(victim.ino)? {
        return fail(Errno::ENOTEMPTY);
    }
    let now = ops.now();
    ops.remove_entry(dir, name)?;
    touch_dir(ops, dir, now)?;
    touch_inode(ops, victim.ino, now)?;
    drop_all_links(ops, &victim)?;
    ops.add_subdirs(dir, -1)
}

/// The inode of a name that will be removed.
fn victim<T: InodeOps + ?Sized>(ops: &mut T, dir: Ino, name: &Name) -> Result<Attr> {
    let parent = directory(ops, dir)?;
    check_name(name)?;
    let entry = ops.entry(dir, name)?.ok_or(Error::Posix(Errno::ENOENT))?;
    let victim = ops.attr(entry.ino)?;
    may_remove(ops, &parent, &victim)?;
    Ok(victim)
}

/// Drops all links of a directory whose name was removed, including its own `.`.
pub(super) fn drop_all_links<T: InodeOps + ?Sized>(ops: &mut T, dir: &Attr) -> Result<()> {
    // A link count is at most 65,000.
    ops.add_links(dir.ino, -(dir.nlink as i32))
}

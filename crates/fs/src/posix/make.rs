//! New inodes: mknod, mkdir, symlink, `O_TMPFILE`.

use xact_layout::inode::{flag, mode};
use xact_types::{Errno, Ino, Result, Timestamp};

use super::inherit::InodePlan;
use super::{directory, fail, may_add, may_add_subdir, refuse_flags, touch_dir};
use crate::api::{Attr, Caller, Entry, FileKind, Name, check_name};
use crate::inode_ops::InodeOps;

/// The folder for a new name; `EEXIST` if the name exists.
fn parent_of_new<T: InodeOps + ?Sized>(ops: &mut T, dir: Ino, name: &Name) -> Result<Attr> {
    let parent = directory(ops, dir)?;
    check_name(name)?;
    if ops.entry(dir, name)?.is_some() {
        return fail(Errno::EEXIST);
    }
    may_add(ops, &parent, name)?;
    Ok(parent)
}

/// Adds the name of a new inode to the folder; the last step of each creation.
fn add_new_entry<T: InodeOps + ?Sized>(
    ops: &mut T,
    dir: Ino,
    name: &Name,
    entry: Entry,
    now: Timestamp,
) -> Result<Attr> {
    ops.add_entry(dir, name, entry)?;
    touch_dir(ops, dir, now)?;
    ops.attr(entry.ino)
}

/// See [`crate::View::make_node`]. A mode without type bits means a regular file, as in mknod.
pub fn make_node<T: InodeOps + ?Sized>(
    ops: &mut T,
    caller: &Caller,
    dir: Ino,
    name: &Name,
    bits: u16,
    rdev: u64,
) -> Result<Attr> {
    let kind = match bits & mode::TYPE_MASK {
        0 => FileKind::Regular,
        _ => match FileKind::from_mode(bits) {
            Some(FileKind::Directory) => return fail(Errno::EPERM),
            Some(FileKind::Symlink) | None => return fail(Errno::EINVAL),
            Some(kind) => kind,
        },
    };
    let parent = parent_of_new(ops, dir, name)?;
    let now = ops.now();
    let mut plan = InodePlan::in_dir(ops, caller, &parent, kind, bits, now)?;
    if matches!(kind, FileKind::CharDevice | FileKind::BlockDevice) {
        plan.new.rdev = rdev;
    }
    let ino = plan.make(ops, dir)?;
    ops.add_links(ino, 1)?;
    add_new_entry(ops, dir, name, Entry { ino, kind }, now)
}

pub fn make_dir<T: InodeOps + ?Sized>(
    ops: &mut T,
    caller: &Caller,
    dir: Ino,
    name: &Name,
    perm: u16,
) -> Result<Attr> {
    let parent = parent_of_new(ops, dir, name)?;
    may_add_subdir(ops, &parent)?;
    let now = ops.now();
    // mkdir ignores the bits above the nine, except the sticky bit.
    let plan = InodePlan::in_dir(ops, caller, &parent, FileKind::Directory, perm & 0o1777, now)?;
    let ino = plan.make(ops, dir)?;
    ops.set_parent(ino, dir)?;
    // One link for its name and one for its own `.`.
    ops.add_links(ino, 2)?;
    ops.add_subdirs(dir, 1)?;
    add_new_entry(ops, dir, name, Entry { ino, kind: FileKind::Directory }, now)
}

pub fn make_symlink<T: InodeOps + ?Sized>(
    ops: &mut T,
    caller: &Caller,
    dir: Ino,
    name: &Name,
    target: &[u8],
) -> Result<Attr> {
    if target.is_empty() {
        return fail(Errno::ENOENT);
    }
    if target.len() > ops.target_max() {
        return fail(Errno::ENAMETOOLONG);
    }
    if target.contains(&0) {
        return fail(Errno::EINVAL);
    }
    let parent = parent_of_new(ops, dir, name)?;
    let now = ops.now();
    let plan = InodePlan::in_dir(ops, caller, &parent, FileKind::Symlink, 0o777, now)?;
    let ino = plan.make(ops, dir)?;
    ops.set_link(ino, target)?;
    ops.add_links(ino, 1)?;
    add_new_entry(ops, dir, name, Entry { ino, kind: FileKind::Symlink }, now)
}

/// See [`crate::View::make_unnamed`]. The inode inherits group, flags and default ACL like a named
/// file; the folder's contents and times do not change.
pub fn make_unnamed<T: InodeOps + ?Sized>(ops: &mut T, caller: &Caller, dir: Ino, perm: u16) -> Result<Attr> {
    let parent = directory(ops, dir)?;
    if parent.nlink == 0 {
        return fail(Errno::ENOENT);
    }
    refuse_flags(ops, &parent, flag::IMMUTABLE)?;
    let now = ops.now();
    let plan = InodePlan::in_dir(ops, caller, &parent, FileKind::Regular, perm, now)?;
    let ino = plan.make(ops, dir)?;
    ops.hold(ino)?;
    ops.attr(ino)
}

/// The whiteout of `RENAME_WHITEOUT`: a character device 0:0 without permissions.
pub(super) fn plan_whiteout<T: InodeOps + ?Sized>(
    ops: &mut T,
    caller: &Caller,
    dir: &Attr,
    now: Timestamp,
) -> Result<InodePlan> {
    InodePlan::in_dir(ops, caller, dir, FileKind::CharDevice, 0, now)
}

//! Changes of attributes: chmod, chown, utimens, truncate, chattr.

use xact_layout::inode::flag;
use xact_types::{Errno, Ino, Result};

use super::acl::{self, Acl};
use super::{CAPABILITY, PERM_MASK, fail, refuse_flags, without_privileges};
use crate::api::{Attr, Caller, FileKind, SetAttr, TimeChange};
use crate::file_mode::FILE_MODE;
use crate::inode_ops::{AttrChange, AttrSet, InodeOps};

/// Flags that a regular file cannot have (`EXT4_REG_FLMASK`).
const NOT_FOR_FILES: u32 = flag::DIRSYNC | flag::TOPDIR | flag::PROJECT_INHERIT | flag::CASEFOLD;
/// The only flags of links and special files (`EXT4_OTHER_FLMASK`).
const FOR_OTHERS: u32 = flag::NODUMP | flag::NOATIME;

/// The flags in `flags` that an inode of this kind can have (`ext4_mask_flags`).
pub(super) fn flags_for_kind(kind: FileKind, flags: u32) -> u32 {
    match kind {
        FileKind::Directory => flags,
        FileKind::Regular => flags & !NOT_FOR_FILES,
        _ => flags & FOR_OTHERS,
    }
}

/// Changes attributes and returns the new ones. Every change sets ctime, and a change of size also
/// mtime, even if the size stays the same. An empty change does nothing.
///
/// chown removes suid and sgid, except from directories, for every caller. An unprivileged chmod
/// may not set sgid for a foreign group; the front end checks that, because it knows the caller's
/// supplementary groups.
pub fn set_attr<T: InodeOps + ?Sized>(
    ops: &mut T,
    caller: &Caller,
    ino: Ino,
    change: &SetAttr,
) -> Result<Attr> {
    let old = ops.attr(ino)?;
    if *change == SetAttr::default() {
        ops.depends_on(ino, AttrSet::STAT);
        return Ok(old);
    }
    check(ops, &old, change)?;
    let project = change.project.filter(|&project| project != old.project);
    let chown = change.uid.is_some() || change.gid.is_some();
    // The result has all of them.
    let mut depends = AttrSet::STAT;
    let mut new = AttrChange { uid: change.uid, gid: change.gid, project, ..AttrChange::default() };

    if change.perm.is_some() {
        new.perm = change.perm.map(|perm| perm & PERM_MASK);
    } else if !old.is_dir() && (chown || change.kill_suidgid) {
        new.perm = Some(without_privileges(old.perm)).filter(|&perm| perm != old.perm);
        if new.perm.is_some() {
            refuse_flags(ops, &old, flag::IMMUTABLE | flag::APPEND)?;
        }
    }
    let drops_capability = old.kind == FileKind::Regular
        && (chown || change.size.is_some() || change.kill_suidgid)
        && ops.xattr(ino, CAPABILITY)?.is_some();
    // The access ACL must agree with the permission bits.
    let acl = match new.perm {
        Some(perm) if old.kind != FileKind::Symlink => match ops.xattr(ino, acl::ACCESS)? {
            Some(value) => Some(Acl::decode(&value)?.with_mode(perm).encode()),
            None => None,
        },
        _ => None,
    };
    let mut drops_file_mode = false;
    if let Some(flags) = change.flags {
        depends |= AttrSet::FLAGS;
        let flags = changed_flags(caller, &old, flags)?;
        new.flags = Some(flags);
        if (flags ^ old.flags) & flag::JOURNAL_DATA != 0 {
            // The newer choice counts: an attribute that says otherwise goes.
            let journaled = flags & flag::JOURNAL_DATA != 0;
            let chosen = ops.xattr(ino, FILE_MODE)?;
            drops_file_mode = chosen.is_some_and(|word| (word == b"data") != journaled);
        }
    }

    let now = ops.now();
    let time = |change: TimeChange| match change {
        TimeChange::Now => now,
        TimeChange::To(time) => time,
    };
    new.atime = change.atime.map(time);
    new.mtime = change.mtime.map(time).or(change.size.map(|_| now));
    new.ctime = Some(change.ctime.unwrap_or(now));
    ops.depends_on(ino, depends);

    // From here on the volume changes.
    if let Some(size) = change.size {
        ops.set_size(ino, size)?;
    }
    if drops_capability {
        ops.set_xattr(ino, CAPABILITY, None)?;
    }
    if drops_file_mode {
        ops.set_xattr(ino, FILE_MODE, None)?;
    }
    if let Some(value) = acl {
        ops.set_xattr(ino, acl::ACCESS, Some(&value))?;
    }
    ops.set_attr(ino, &new)?;
    ops.attr(ino)
}

/// Checks that the change is valid and allowed.
fn check<T: InodeOps + ?Sized>(ops: &mut T, old: &Attr, change: &SetAttr) -> Result<()> {
    let valid =
        |time: Option<TimeChange>| !matches!(time, Some(TimeChange::To(t)) if t.nanos >= 1_000_000_000);
    if !valid(change.atime) || !valid(change.mtime) || change.ctime.is_some_and(|t| t.nanos >= 1_000_000_000)
    {
        return fail(Errno::EINVAL);
    }
    let given = |time: Option<TimeChange>| matches!(time, Some(TimeChange::To(_)));
    let sets = change.perm.is_some()
        || change.uid.is_some()
        || change.gid.is_some()
        || change.size.is_some()
        || given(change.atime)
        || given(change.mtime)
        || change.ctime.is_some();
    if sets {
        refuse_flags(ops, old, flag::IMMUTABLE | flag::APPEND)?;
    } else if change.atime.is_some() || change.mtime.is_some() {
        // A write sets the present time, so an append-only file allows it.
        refuse_flags(ops, old, flag::IMMUTABLE)?;
    }
    if change.project.is_some_and(|project| project != 0) && !ops.has_projects() {
        return fail(Errno::EOPNOTSUPP);
    }
    if let Some(size) = change.size {
        match old.kind {
            FileKind::Regular if size > ops.size_max(old.flags) => return fail(Errno::EFBIG),
            FileKind::Regular => {}
            FileKind::Directory => return fail(Errno::EISDIR),
            _ => return fail(Errno::EINVAL),
        }
    }
    Ok(())
}

/// The `i_flags` after `chattr`, which cannot change all of them.
fn changed_flags(caller: &Caller, old: &Attr, asked: u32) -> Result<u32> {
    if asked & !flag::USER_VISIBLE != 0 {
        return fail(Errno::EOPNOTSUPP);
    }
    let asked = flags_for_kind(old.kind, asked & flag::USER_MODIFIABLE);
    let new = old.flags & !flag::USER_MODIFIABLE | asked;
    let changed = new ^ old.flags;
    // The nearest check to CAP_LINUX_IMMUTABLE: capabilities are not known here.
    if changed & (flag::IMMUTABLE | flag::APPEND) != 0 && caller.uid != 0 {
        return fail(Errno::EPERM);
    }
    if old.flags & new & flag::IMMUTABLE != 0 && changed != 0 {
        return fail(Errno::EPERM);
    }
    Ok(new)
}

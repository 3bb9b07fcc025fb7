//! Extended attributes.
//!
//! Namespaces as in ext4: `user.`, `trusted.`, `security.` and the two POSIX ACLs of `system.`. The
//! front end checks access to them (`trusted.` is for root, and hidden from others).

use xact_layout::inode::flag;
use xact_types::{Errno, Error, Ino, Result};

use super::acl::{self, Acl};
use super::{fail, refuse_flags, touch_inode};
use crate::api::{Attr, Caller, FileKind, XattrHow};
use crate::file_mode::{self, FILE_MODE};
use crate::inode_ops::{AttrChange, AttrSet, InodeOps};

/// `XATTR_NAME_MAX` and `XATTR_SIZE_MAX`.
const NAME_MAX: usize = 255;
const VALUE_MAX: usize = 65536;

fn check_name(name: &[u8]) -> Result<()> {
    if name.is_empty() || name.len() > NAME_MAX {
        return fail(Errno::ERANGE);
    }
    if name.contains(&0) {
        return fail(Errno::EINVAL);
    }
    if name == acl::ACCESS || name == acl::DEFAULT {
        return Ok(());
    }
    for prefix in [&b"user."[..], b"trusted.", b"security."] {
        if let Some(rest) = name.strip_prefix(prefix) {
            return if rest.is_empty() { fail(Errno::EINVAL) } else { Ok(()) };
        }
    }
    fail(Errno::EOPNOTSUPP)
}

/// Whether an inode of this kind can have user attributes: only files and folders, to which
/// permission bits grant writes.
fn has_user_attributes(attr: &Attr) -> bool {
    matches!(attr.kind, FileKind::Regular | FileKind::Directory)
}

fn is_acl(name: &[u8]) -> bool {
    name == acl::ACCESS || name == acl::DEFAULT
}

pub fn xattr<T: InodeOps + ?Sized>(ops: &mut T, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
    let attr = ops.attr(ino)?;
    check_name(name)?;
    if is_acl(name) && attr.kind == FileKind::Symlink {
        return fail(Errno::EOPNOTSUPP);
    }
    if name.starts_with(b"user.") && !has_user_attributes(&attr) {
        return fail(Errno::ENODATA);
    }
    ops.xattr(ino, name)?.ok_or(Error::Posix(Errno::ENODATA))
}

pub fn list_xattrs<T: InodeOps + ?Sized>(ops: &mut T, ino: Ino) -> Result<Vec<Vec<u8>>> {
    ops.attr(ino)?;
    ops.list_xattrs(ino)
}

/// Checks that this caller may change this attribute of this inode.
fn changeable<T: InodeOps + ?Sized>(ops: &mut T, caller: &Caller, ino: Ino, name: &[u8]) -> Result<Attr> {
    let attr = ops.attr(ino)?;
    check_name(name)?;
    refuse_flags(ops, &attr, flag::IMMUTABLE | flag::APPEND)?;
    if name.starts_with(b"user.") && !has_user_attributes(&attr) {
        return fail(Errno::EPERM);
    }
    if is_acl(name) && attr.kind == FileKind::Symlink {
        return fail(Errno::EOPNOTSUPP);
    }
    // As for chattr. Other attributes of users need the right to write, which the front end checks.
    if name == FILE_MODE {
        ops.depends_on(ino, AttrSet::OWNER);
        if caller.uid != 0 && caller.uid != attr.uid {
            return fail(Errno::EPERM);
        }
    }
    Ok(attr)
}

pub fn set_xattr<T: InodeOps + ?Sized>(
    ops: &mut T,
    caller: &Caller,
    ino: Ino,
    name: &[u8],
    value: &[u8],
    how: XattrHow,
) -> Result<()> {
    let attr = changeable(ops, caller, ino, name)?;
    if value.len() > VALUE_MAX {
        return fail(Errno::E2BIG);
    }
    match how {
        XattrHow::Set => {}
        XattrHow::Create if ops.xattr(ino, name)?.is_some() => return fail(Errno::EEXIST),
        XattrHow::Replace if ops.xattr(ino, name)?.is_none() => return fail(Errno::ENODATA),
        _ => {}
    }
    if is_acl(name) {
        return set_acl(ops, &attr, name, value);
    }
    if name == FILE_MODE {
        return set_file_mode(ops, &attr, value);
    }
    let now = ops.now();
    ops.set_xattr(ino, name, Some(value))?;
    touch_inode(ops, ino, now)
}

/// Sets an access or default list. An access list and the permission bits must agree
/// (`posix_acl_update_mode`); a list that is equivalent to the bits is stored as bits only.
fn set_acl<T: InodeOps + ?Sized>(ops: &mut T, attr: &Attr, name: &[u8], value: &[u8]) -> Result<()> {
    let ino = attr.ino;
    // The kernel passes a list without entries to remove it.
    let list = if value.len() <= 4 { None } else { Some(Acl::decode(value)?) };
    let now = ops.now();
    if name == acl::DEFAULT {
        if !attr.is_dir() {
            return if list.is_some() { fail(Errno::EACCES) } else { Ok(()) };
        }
        let had = ops.xattr(ino, name)?.is_some();
        if list.is_some() || had {
            ops.set_xattr(ino, name, list.map(|list| list.encode()).as_deref())?;
        }
        return touch_inode(ops, ino, now);
    }
    let mut perm = None;
    let mut stored = None;
    if let Some(list) = list {
        ops.depends_on(ino, AttrSet::MODE);
        perm = Some(attr.perm & !0o777 | list.mode()).filter(|&perm| perm != attr.perm);
        stored = (!list.is_minimal()).then(|| list.encode());
    }
    let had = ops.xattr(ino, name)?.is_some();
    if stored.is_some() || had {
        ops.set_xattr(ino, name, stored.as_deref())?;
    }
    ops.set_attr(ino, &AttrChange { perm, ctime: Some(now), ..AttrChange::default() })
}

/// Sets the data mode of a file, or that of the new files in a folder, and `+j` with it.
///
/// Errors: `EINVAL` for an unknown mode, `EOPNOTSUPP` for one that this volume cannot have.
fn set_file_mode<T: InodeOps + ?Sized>(ops: &mut T, attr: &Attr, value: &[u8]) -> Result<()> {
    let mode = file_mode::parse(value)?;
    if !ops.takes_file_mode(mode) {
        return fail(Errno::EOPNOTSUPP);
    }
    ops.depends_on(attr.ino, AttrSet::FLAGS);
    let flags = Some(file_mode::flags_with(attr.flags, Some(mode))).filter(|&flags| flags != attr.flags);
    let now = ops.now();
    ops.set_xattr(attr.ino, FILE_MODE, Some(value))?;
    ops.set_attr(attr.ino, &AttrChange { flags, ctime: Some(now), ..AttrChange::default() })
}

pub fn remove_xattr<T: InodeOps + ?Sized>(ops: &mut T, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
    let attr = changeable(ops, caller, ino, name)?;
    if ops.xattr(ino, name)?.is_none() {
        return fail(Errno::ENODATA);
    }
    let mut flags = None;
    if name == FILE_MODE {
        ops.depends_on(ino, AttrSet::FLAGS);
        flags = Some(file_mode::flags_with(attr.flags, None)).filter(|&flags| flags != attr.flags);
    }
    let now = ops.now();
    ops.set_xattr(ino, name, None)?;
    ops.set_attr(ino, &AttrChange { flags, ctime: Some(now), ..AttrChange::default() })
}

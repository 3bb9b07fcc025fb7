//! The POSIX operations, each written once over [`InodeOps`]: the live file system runs them on the
//! volume, a transaction on its overlay.
//!
//! Rules for all operations:
//! 1. Read everything first, then change (see [`crate::inode_ops`]). Errors of reads are returned
//!    unchanged: `LiveFs::run` uses them to restart an operation with more locks.
//! 2. Outcomes and times are those of ext4 under Linux. The front end (on a mount, the kernel)
//!    checks permission bits, sticky directories and supplementary groups. The flags
//!    `FS_IMMUTABLE_FL` and `FS_APPEND_FL` are checked here, because the kernel's FUSE module does
//!    not know them.
//! 3. Each operation declares by [`InodeOps::depends_on`] the attributes on which its outcome
//!    depends.
//!
//! Reads set no access times here. The live file system does (`live/inode/access_time.rs`);
//! transactions do not.

pub(crate) mod acl;
mod attr;
mod data;
mod inherit;
pub mod lock_hint;
mod lookup;
mod make;
mod names;
mod permission;
mod rename;
mod xattr;

#[cfg(test)]
mod tests;

use xact_layout::inode::flag;
use xact_types::{Errno, Error, Ino, Result, Timestamp};

use crate::api::{Attr, FileKind, Name};
use crate::inode_ops::{AttrChange, AttrSet, InodeOps};
use inherit::inherited_project;

pub use attr::set_attr;
pub use data::{COPY_MAX, allocate, copy_range, read, seek, write};
pub use lookup::{attr, lookup, read_dir, read_link, resolve};
pub use make::{make_dir, make_node, make_symlink, make_unnamed};
pub use names::{link, remove_dir, unlink};
pub use permission::{Access, Credentials, permits, permits_path};
pub use rename::rename;
pub use xattr::{list_xattrs, remove_xattr, set_xattr, xattr};

/// `S_ISUID`, `S_ISGID`, `S_IXGRP`.
const SUID: u16 = 0o4000;
const SGID: u16 = 0o2000;
const GROUP_EXEC: u16 = 0o010;
/// The bits of [`Attr::perm`].
const PERM_MASK: u16 = 0o7777;

/// Extended attributes that hold access control lists.
pub const ACL_NAMES: [&[u8]; 2] = [acl::ACCESS, acl::DEFAULT];

/// File capabilities, which are dropped when a file's contents or owner change.
const CAPABILITY: &[u8] = b"security.capability";

fn fail<T>(errno: Errno) -> Result<T> {
    Err(Error::Posix(errno))
}

/// The attributes of a directory; `ENOTDIR` if the inode is not one.
fn directory<T: InodeOps + ?Sized>(ops: &mut T, ino: Ino) -> Result<Attr> {
    let attr = ops.attr(ino)?;
    if attr.is_dir() { Ok(attr) } else { fail(Errno::ENOTDIR) }
}

/// The attributes of a regular file; an error if the inode is not one.
fn regular<T: InodeOps + ?Sized>(ops: &mut T, ino: Ino) -> Result<Attr> {
    let attr = ops.attr(ino)?;
    match attr.kind {
        FileKind::Regular => Ok(attr),
        FileKind::Directory => fail(Errno::EISDIR),
        _ => fail(Errno::EINVAL),
    }
}

/// `EPERM` if one of the flags in `refused` is set in the inode's `i_flags`.
fn refuse_flags<T: InodeOps + ?Sized>(ops: &mut T, attr: &Attr, refused: u32) -> Result<()> {
    ops.depends_on(attr.ino, AttrSet::FLAGS);
    if attr.flags & refused != 0 { fail(Errno::EPERM) } else { Ok(()) }
}

/// Checks that `name` may be added to `dir` (the kernel's `may_create` without permission bits).
fn may_add<T: InodeOps + ?Sized>(ops: &mut T, dir: &Attr, name: &Name) -> Result<()> {
    // A removed directory that is still held accepts no names.
    if dir.nlink == 0 {
        return fail(Errno::ENOENT);
    }
    refuse_flags(ops, dir, flag::IMMUTABLE)?;
    ops.check_name_fits(dir.ino, name)
}

/// Checks that the name of `victim` may be removed from `dir` (`may_delete` without permission
/// bits).
fn may_remove<T: InodeOps + ?Sized>(ops: &mut T, dir: &Attr, victim: &Attr) -> Result<()> {
    refuse_flags(ops, dir, flag::IMMUTABLE | flag::APPEND)?;
    refuse_flags(ops, victim, flag::IMMUTABLE | flag::APPEND)
}

/// `EXDEV` if new inodes in `dir` inherit another project than that of `inode`: its usage cannot
/// move with a name.
fn refuse_other_project<T: InodeOps + ?Sized>(ops: &mut T, dir: &Attr, inode: &Attr) -> Result<()> {
    if let Some(project) = inherited_project(ops, dir) {
        ops.depends_on(dir.ino, AttrSet::FLAGS | AttrSet::OWNER);
        ops.depends_on(inode.ino, AttrSet::OWNER);
        if inode.project != project {
            return fail(Errno::EXDEV);
        }
    }
    Ok(())
}

/// `EMLINK` if `dir` cannot count another subdirectory.
fn may_add_subdir<T: InodeOps + ?Sized>(ops: &mut T, dir: &Attr) -> Result<()> {
    if dir.nlink >= ops.link_max() && !ops.dir_nlink() { fail(Errno::EMLINK) } else { Ok(()) }
}

/// Sets the times of a directory whose contents changed.
fn touch_dir<T: InodeOps + ?Sized>(ops: &mut T, dir: Ino, now: Timestamp) -> Result<()> {
    ops.set_attr(dir, &AttrChange { mtime: Some(now), ctime: Some(now), ..AttrChange::default() })
}

/// Sets ctime of an inode whose link count or name changed.
fn touch_inode<T: InodeOps + ?Sized>(ops: &mut T, ino: Ino, now: Timestamp) -> Result<()> {
    ops.set_attr(ino, &AttrChange { ctime: Some(now), ..AttrChange::default() })
}

/// Permission bits without suid and sgid. Without group execution, sgid is not a privilege (it once
/// meant mandatory locking) and stays.
fn without_privileges(perm: u16) -> u16 {
    if perm & GROUP_EXEC != 0 { perm & !(SUID | SGID) } else { perm & !SUID }
}

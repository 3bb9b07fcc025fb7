//! Read-only operations on names and attributes: lookup, attr, read_link, read_dir.

use xact_types::{Errno, Error, Ino, Result};

use super::{directory, fail};
use crate::api::{Attr, DirItem, Entry, FileKind, Name, check_name};
use crate::inode_ops::{AttrSet, InodeOps};

/// Cookies after `.` and `..`; those of entries are larger.
const AFTER_DOT: u64 = 1;
const AFTER_DOTDOT: u64 = 2;

/// The target of a name, without reading that inode.
pub fn resolve<T: InodeOps + ?Sized>(ops: &mut T, dir: Ino, name: &Name) -> Result<Entry> {
    directory(ops, dir)?;
    check_name(name)?;
    ops.entry(dir, name)?.ok_or(Error::Posix(Errno::ENOENT))
}

pub fn lookup<T: InodeOps + ?Sized>(ops: &mut T, dir: Ino, name: &Name) -> Result<Attr> {
    let entry = resolve(ops, dir, name)?;
    attr(ops, entry.ino)
}

pub fn attr<T: InodeOps + ?Sized>(ops: &mut T, ino: Ino) -> Result<Attr> {
    let attr = ops.attr(ino)?;
    // The flags count too, because GETFLAGS and FSGETXATTR return this result.
    ops.depends_on(ino, AttrSet::STAT | AttrSet::FLAGS);
    Ok(attr)
}

pub fn read_link<T: InodeOps + ?Sized>(ops: &mut T, ino: Ino) -> Result<Vec<u8>> {
    match ops.attr(ino)?.kind {
        FileKind::Symlink => ops.read_link(ino),
        _ => fail(Errno::EINVAL),
    }
}

/// See [`crate::View::read_dir`].
pub fn read_dir<T: InodeOps + ?Sized>(
    ops: &mut T,
    dir: Ino,
    cookie: u64,
    each: &mut dyn FnMut(DirItem<'_>) -> bool,
) -> Result<()> {
    let attr = directory(ops, dir)?;
    if attr.nlink == 0 {
        return fail(Errno::ENOENT);
    }
    let kind = FileKind::Directory;
    let parent = match (cookie < AFTER_DOTDOT).then(|| ops.parent(dir)).transpose() {
        // Its block is damaged. The listing ends with that error.
        Err(Error::Corrupt(_)) => None,
        parent => parent?,
    };
    if cookie < AFTER_DOT && !each(DirItem { name: b".", ino: dir, kind, next_cookie: AFTER_DOT }) {
        return Ok(());
    }
    if let Some(ino) = parent
        && !each(DirItem { name: b"..", ino, kind, next_cookie: AFTER_DOTDOT })
    {
        return Ok(());
    }
    ops.list(dir, if cookie <= AFTER_DOTDOT { 0 } else { cookie }, each)
}

//! Operations that only look: lookup, attr, read_link, read_dir.

use xact_types::{Errno, Error, Ino, Result};

use super::{directory, fail};
use crate::api::{Attr, DirItem, Entry, FileKind, Name, check_name};
use crate::inode_ops::{AttrSet, InodeOps};

/// Cookies behind `.` and `..`; those of the tree are larger.
const AFTER_DOT: u64 = 1;
const AFTER_DOTDOT: u64 = 2;

/// What a name points at, without a look at that inode.
pub fn resolve<T: InodeOps + ?Sized>(tree: &mut T, dir: Ino, name: &Name) -> Result<Entry> {
    directory(tree, dir)?;
    check_name(name)?;
    tree.entry(dir, name)?.ok_or(Error::Posix(Errno::ENOENT))
}

pub fn lookup<T: InodeOps + ?Sized>(tree: &mut T, dir: Ino, name: &Name) -> Result<Attr> {
    let entry = resolve(tree, dir, name)?;
    attr(tree, entry.ino)
}

pub fn attr<T: InodeOps + ?Sized>(tree: &mut T, ino: Ino) -> Result<Attr> {
    let attr = tree.attr(ino)?;
    // The flags too: GETFLAGS and FSGETXATTR are answered from here.
    tree.depends_on(ino, AttrSet::STAT | AttrSet::FLAGS);
    Ok(attr)
}

pub fn read_link<T: InodeOps + ?Sized>(tree: &mut T, ino: Ino) -> Result<Vec<u8>> {
    match tree.attr(ino)?.kind {
        FileKind::Symlink => tree.read_link(ino),
        _ => fail(Errno::EINVAL),
    }
}

/// See [`crate::View::read_dir`].
pub fn read_dir<T: InodeOps + ?Sized>(
    tree: &mut T,
    dir: Ino,
    cookie: u64,
    each: &mut dyn FnMut(DirItem<'_>) -> bool,
) -> Result<()> {
    let attr = directory(tree, dir)?;
    if attr.nlink == 0 {
        return fail(Errno::ENOENT);
    }
    let kind = FileKind::Directory;
    let parent = if cookie < AFTER_DOTDOT { Some(tree.parent(dir)?) } else { None };
    if cookie < AFTER_DOT && !each(DirItem { name: b".", ino: dir, kind, next_cookie: AFTER_DOT }) {
        return Ok(());
    }
    if let Some(ino) = parent
        && !each(DirItem { name: b"..", ino, kind, next_cookie: AFTER_DOTDOT })
    {
        return Ok(());
    }
    tree.list(dir, if cookie <= AFTER_DOTDOT { 0 } else { cookie }, each)
}

//! rename, with the flags of `renameat2`.
//!
//! A replaced file that a process still has open keeps its contents: `add_links` of
//! `live::op::inode_ops` puts it on the orphan list, and `live::inode::delete` frees it later.

use xact_types::{Errno, Error, Ino, Result, Site, Timestamp};

use super::inherit::InodePlan;
use super::make::plan_whiteout;
use super::names::drop_all_links;
use super::{
    directory, fail, may_add, may_add_subdir, may_remove, refuse_other_project, touch_dir, touch_inode,
};
use crate::api::{Attr, Caller, Entry, FileKind, Name, RenameHow, check_name};
use crate::inode_ops::InodeOps;

/// One end of a rename: a name, its folder, and its inode, if it exists.
struct End<'a> {
    dir: Attr,
    name: &'a Name,
    inode: Option<Attr>,
}

impl<'a> End<'a> {
    fn read<T: InodeOps + ?Sized>(ops: &mut T, (dir, name): (Ino, &'a Name)) -> Result<End<'a>> {
        let dir = directory(ops, dir)?;
        check_name(name)?;
        let inode = match ops.entry(dir.ino, name)? {
            Some(entry) => Some(ops.attr(entry.ino)?),
            None => None,
        };
        Ok(End { dir, name, inode })
    }

    fn set<T: InodeOps + ?Sized>(&self, ops: &mut T, inode: &Attr) -> Result<()> {
        let entry = Entry { ino: inode.ino, kind: inode.kind };
        match self.inode {
            Some(_) => ops.set_entry(self.dir.ino, self.name, entry),
            None => ops.add_entry(self.dir.ino, self.name, entry),
        }
    }
}

pub fn rename<T: InodeOps + ?Sized>(
    ops: &mut T,
    caller: &Caller,
    from: (Ino, &Name),
    to: (Ino, &Name),
    how: RenameHow,
) -> Result<()> {
    let from = End::read(ops, from)?;
    let to = End::read(ops, to)?;
    let source = from.inode.ok_or(Error::Posix(Errno::ENOENT))?;
    match (how, to.inode) {
        (RenameHow::NoReplace, Some(_)) => return fail(Errno::EEXIST),
        (RenameHow::Exchange, None) => return fail(Errno::ENOENT),
        _ => {}
    }
    check_loops(ops, &from, &source, &to, how)?;
    // Both are names of one inode: nothing to do, both stay.
    if to.inode.is_some_and(|target| target.ino == source.ino) {
        return Ok(());
    }
    refuse_other_project(ops, &to.dir, &source)?;
    if let (RenameHow::Exchange, Some(target)) = (how, &to.inode) {
        refuse_other_project(ops, &from.dir, target)?;
    }
    may_remove(ops, &from.dir, &source)?;
    match &to.inode {
        Some(target) => may_remove(ops, &to.dir, target)?,
        None => may_add(ops, &to.dir, to.name)?,
    }
    match (how, to.inode) {
        (RenameHow::Exchange, Some(target)) => exchange(ops, &from, &source, &to, &target),
        _ => replace(ops, caller, &from, &source, &to, how == RenameHow::Whiteout),
    }
}

/// Checks that no directory moves below itself, and that the target is not a folder above the
/// source, which is not empty.
fn check_loops<T: InodeOps + ?Sized>(
    ops: &mut T,
    from: &End<'_>,
    source: &Attr,
    to: &End<'_>,
    how: RenameHow,
) -> Result<()> {
    if from.dir.ino == to.dir.ino {
        return Ok(());
    }
    if source.is_dir() && is_at_or_above(ops, source.ino, to.dir.ino)? {
        return fail(Errno::EINVAL);
    }
    if let Some(target) = to.inode
        && target.is_dir()
        && is_at_or_above(ops, target.ino, from.dir.ino)?
    {
        return fail(if how == RenameHow::Exchange { Errno::EINVAL } else { Errno::ENOTEMPTY });
    }
    Ok(())
}

/// Whether `dir` is `start` or one of its parents.
fn is_at_or_above<T: InodeOps + ?Sized>(ops: &mut T, dir: Ino, start: Ino) -> Result<bool> {
    let mut at = start;
    // Brent's cycle detection: a damaged volume may have a loop of `..`.
    let (mut mark, mut steps, mut limit) = (start, 0u64, 1u64);
    loop {
        if at == dir {
            return Ok(true);
        }
        if at == Ino::ROOT {
            return Ok(false);
        }
        at = ops.parent(at)?;
        if at == mark {
            return Err(Error::corrupt(Site::Inode(at), "directory lies below itself"));
        }
        steps += 1;
        if steps == limit {
            (mark, steps, limit) = (at, 0, limit * 2);
        }
    }
}

fn replace<T: InodeOps + ?Sized>(
    ops: &mut T,
    caller: &Caller,
    from: &End<'_>,
    source: &Attr,
    to: &End<'_>,
    whiteout: bool,
) -> Result<()> {
    let moves = from.dir.ino != to.dir.ino;
    match &to.inode {
        Some(target) if source.is_dir() && !target.is_dir() => return fail(Errno::ENOTDIR),
        Some(target) if !source.is_dir() && target.is_dir() => return fail(Errno::EISDIR),
        Some(target) if target.is_dir() && !ops.is_empty(target.ino)? => return fail(Errno::ENOTEMPTY),
        None if source.is_dir() && moves => may_add_subdir(ops, &to.dir)?,
        _ => {}
    }
    let now = ops.now();
    let whiteout: Option<InodePlan> =
        if whiteout { Some(plan_whiteout(ops, caller, &from.dir, now)?) } else { None };

    // From here on the volume changes.
    if source.is_dir() {
        ops.folder_moves();
    }
    match &whiteout {
        Some(plan) => {
            let ino = plan.make(ops, from.dir.ino)?;
            ops.add_links(ino, 1)?;
            ops.set_entry(from.dir.ino, from.name, Entry { ino, kind: FileKind::CharDevice })?;
        }
        None => ops.remove_entry(from.dir.ino, from.name)?,
    }
    to.set(ops, source)?;
    if source.is_dir() && moves {
        ops.set_parent(source.ino, to.dir.ino)?;
        ops.add_subdirs(from.dir.ino, -1)?;
        ops.add_subdirs(to.dir.ino, 1)?;
    }
    if let Some(target) = &to.inode {
        touch_inode(ops, target.ino, now)?;
        if target.is_dir() {
            drop_all_links(ops, target)?;
            ops.add_subdirs(to.dir.ino, -1)?;
        } else {
            ops.add_links(target.ino, -1)?;
        }
    }
    touch_inode(ops, source.ino, now)?;
    touch_both(ops, from, to, now)
}

fn exchange<T: InodeOps + ?Sized>(
    ops: &mut T,
    from: &End<'_>,
    source: &Attr,
    to: &End<'_>,
    target: &Attr,
) -> Result<()> {
    let moves = from.dir.ino != to.dir.ino;
    if moves && source.is_dir() != target.is_dir() {
        may_add_subdir(ops, if source.is_dir() { &to.dir } else { &from.dir })?;
    }
    let now = ops.now();

    // From here on the volume changes.
    if source.is_dir() || target.is_dir() {
        ops.folder_moves();
    }
    from.set(ops, target)?;
    to.set(ops, source)?;
    if moves {
        for (inode, old, new) in [(source, from, to), (target, to, from)] {
            if inode.is_dir() {
                ops.set_parent(inode.ino, new.dir.ino)?;
                ops.add_subdirs(old.dir.ino, -1)?;
                ops.add_subdirs(new.dir.ino, 1)?;
            }
        }
    }
    touch_inode(ops, source.ino, now)?;
    touch_inode(ops, target.ino, now)?;
    touch_both(ops, from, to, now)
}

fn touch_both<T: InodeOps + ?Sized>(ops: &mut T, from: &End<'_>, to: &End<'_>, now: Timestamp) -> Result<()> {
    touch_dir(ops, from.dir.ino, now)?;
    if from.dir.ino != to.dir.ino {
        touch_dir(ops, to.dir.ino, now)?;
    }
    Ok(())
}

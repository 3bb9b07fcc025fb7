//! File contents: read, write, fallocate, copy_file_range, lseek.

use xact_layout::inode::flag;
use xact_types::{Errno, Ino, Result};

use super::{CAPABILITY, fail, refuse_flags, regular, without_privileges};
use crate::api::{Allocate, Attr, Caller, FileKind, SeekTo, WriteHow, Written};
use crate::inode_ops::{AttrChange, AttrSet, InodeOps};

/// Maximum bytes of one `copy_range`, because the data of one operation is in memory at once.
/// Callers continue after a short count, as with the system call.
pub const COPY_MAX: u64 = 8 << 20;

pub fn read<T: InodeOps + ?Sized>(
    ops: &mut T,
    ino: Ino,
    offset: u64,
    len: usize,
    out: &mut Vec<u8>,
) -> Result<()> {
    regular(ops, ino)?;
    if len == 0 {
        return Ok(());
    }
    ops.read(ino, offset, len, out)
}

/// The privileges that a change of contents drops, read before the change.
struct Modified {
    perm: Option<u16>,
    drops_capability: bool,
}

impl Modified {
    fn read<T: InodeOps + ?Sized>(ops: &mut T, attr: &Attr, kill_suidgid: bool) -> Result<Modified> {
        let mut perm = None;
        if kill_suidgid {
            ops.depends_on(attr.ino, AttrSet::MODE);
            perm = Some(without_privileges(attr.perm)).filter(|&perm| perm != attr.perm);
        }
        // As in the kernel, this is a change of permissions, which an append-only file does not
        // allow.
        if perm.is_some() {
            refuse_flags(ops, attr, flag::IMMUTABLE | flag::APPEND)?;
        }
        let drops_capability = ops.xattr(attr.ino, CAPABILITY)?.is_some();
        Ok(Modified { perm, drops_capability })
    }

    fn apply<T: InodeOps + ?Sized>(&self, ops: &mut T, ino: Ino) -> Result<()> {
        if self.drops_capability {
            ops.set_xattr(ino, CAPABILITY, None)?;
        }
        let now = ops.now();
        let perm = self.perm;
        ops.set_attr(ino, &AttrChange { perm, mtime: Some(now), ctime: Some(now), ..AttrChange::default() })
    }
}

/// Writes `data`, as far as the largest size of the file allows.
pub fn write<T: InodeOps + ?Sized>(
    ops: &mut T,
    ino: Ino,
    offset: u64,
    data: &[u8],
    how: WriteHow,
) -> Result<Written> {
    let attr = regular(ops, ino)?;
    refuse_flags(ops, &attr, if how.append { flag::IMMUTABLE } else { flag::IMMUTABLE | flag::APPEND })?;
    let at = if how.append {
        ops.depends_on(ino, AttrSet::SIZE);
        attr.size
    } else {
        offset
    };
    if data.is_empty() {
        return Ok(Written { offset: at, len: 0 });
    }
    let fits = ops.size_max(attr.flags).saturating_sub(at);
    if fits == 0 {
        return fail(Errno::EFBIG);
    }
    let data = &data[..fits.min(data.len() as u64) as usize];
    let modified = Modified::read(ops, &attr, how.kill_suidgid)?;
    ops.write(ino, at, data)?;
    modified.apply(ops, ino)?;
    Ok(Written { offset: at, len: data.len() })
}

/// `fallocate`. It removes suid and sgid unless the caller is root.
pub fn allocate<T: InodeOps + ?Sized>(
    ops: &mut T,
    caller: &Caller,
    ino: Ino,
    offset: u64,
    len: u64,
    how: Allocate,
) -> Result<()> {
    let attr = ops.attr(ino)?;
    match attr.kind {
        FileKind::Regular => {}
        FileKind::Directory => return fail(Errno::EISDIR),
        _ => return fail(Errno::ENODEV),
    }
    if len == 0 {
        return fail(Errno::EINVAL);
    }
    // A block map has no unwritten blocks; programs (posix_fallocate) write zeros instead.
    let can_reserve = flag::EXTENTS | flag::INLINE_DATA;
    if attr.flags & can_reserve == 0 && how != Allocate::PunchHole {
        return fail(Errno::EOPNOTSUPP);
    }
    // Blocks may be reserved at the end of an append-only file, but nothing in it may change.
    let refused = match how {
        Allocate::Reserve { .. } => flag::IMMUTABLE,
        _ => flag::IMMUTABLE | flag::APPEND,
    };
    refuse_flags(ops, &attr, refused)?;
    if offset.checked_add(len).is_none_or(|end| end > ops.size_max(attr.flags)) {
        return fail(Errno::EFBIG);
    }
    let modified = Modified::read(ops, &attr, caller.uid != 0)?;
    ops.allocate(ino, offset, len, how)?;
    modified.apply(ops, ino)
}

/// Copies within the volume and returns the number of bytes. It is less than `len` at the end of
/// the source and at the largest size of the target, and at most [`COPY_MAX`].
pub fn copy_range<T: InodeOps + ?Sized>(
    ops: &mut T,
    (from, from_offset): (Ino, u64),
    (to, to_offset): (Ino, u64),
    len: u64,
    how: WriteHow,
) -> Result<u64> {
    let source = regular(ops, from)?;
    let target = regular(ops, to)?;
    if how.append {
        return fail(Errno::EBADF);
    }
    refuse_flags(ops, &target, flag::IMMUTABLE | flag::APPEND)?;
    if from_offset.checked_add(len).is_none() || to_offset.checked_add(len).is_none() {
        return fail(Errno::EOVERFLOW);
    }
    if from_offset + len > source.size {
        ops.depends_on(from, AttrSet::SIZE);
    }
    let len = len.min(source.size.saturating_sub(from_offset));
    if from == to && from_offset < to_offset + len && to_offset < from_offset + len {
        return fail(Errno::EINVAL);
    }
    let len = len.min(COPY_MAX);
    let mut data = Vec::new();
    ops.read(from, from_offset, len as usize, &mut data)?;
    if data.is_empty() {
        return Ok(0);
    }
    Ok(write(ops, to, to_offset, &data, how)?.len as u64)
}

pub fn seek<T: InodeOps + ?Sized>(ops: &mut T, ino: Ino, offset: u64, to: SeekTo) -> Result<u64> {
    let attr = regular(ops, ino)?;
    ops.depends_on(ino, AttrSet::SIZE);
    if offset >= attr.size {
        return fail(Errno::ENXIO);
    }
    ops.seek(ino, offset, to)
}

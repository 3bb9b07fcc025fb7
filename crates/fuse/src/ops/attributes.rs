//! Attributes: SETATTR's arguments, extended attributes, and the flags that chattr sets.

use xact_fs::{Attr, SetAttr, TimeChange, View, XattrHow};
use xact_types::{Errno, Ino, Result, Timestamp};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::ops::credentials::caller;
use crate::protocol::abi::{GetxattrOut, InHeader, SETXATTR_ACL_KILL_SGID, SetattrIn, SetxattrIn, fattr};
use crate::protocol::reply::Reply;

pub fn change(args: &SetattrIn) -> SetAttr {
    let given = |flag: u32| args.valid & flag != 0;
    let time = |set: u32, now: u32, secs: u64, nanos: u32| match (given(set), given(now)) {
        (_, true) => Some(TimeChange::Now),
        (true, false) => Some(TimeChange::To(Timestamp { secs: secs as i64, nanos })),
        (false, false) => None,
    };
    SetAttr {
        perm: given(fattr::MODE).then_some((args.mode & 0o7777) as u16),
        uid: given(fattr::UID).then_some(args.uid),
        gid: given(fattr::GID).then_some(args.gid),
        size: given(fattr::SIZE).then_some(args.size),
        atime: time(fattr::ATIME, fattr::ATIME_NOW, args.atime, args.atimensec),
        mtime: time(fattr::MTIME, fattr::MTIME_NOW, args.mtime, args.mtimensec),
        ctime: given(fattr::CTIME).then_some(Timestamp { secs: args.ctime as i64, nanos: args.ctimensec }),
        flags: None,
        project: None,
        kill_suidgid: given(fattr::KILL_SUIDGID),
    }
}

/// Puts a value, or with `size` 0 its length; `ERANGE` if it does not fit.
fn put_sized(value: &[u8], size: u32, reply: &mut Reply) -> Result<()> {
    if size == 0 {
        reply.put(&GetxattrOut { size: value.len() as u32, padding: 0 });
    } else if value.len() > size as usize {
        return Err(Errno::ERANGE.into());
    } else {
        reply.put_bytes(value);
    }
    Ok(())
}

pub fn get_xattr(view: &dyn View, ino: Ino, name: &[u8], size: u32, reply: &mut Reply) -> Result<()> {
    put_sized(&view.xattr(ino, name)?, size, reply)
}

/// As ext4: `trusted.*` is listed for root only.
pub fn list_xattrs(view: &dyn View, ino: Ino, header: &InHeader, size: u32, reply: &mut Reply) -> Result<()> {
    let mut list = Vec::new();
    for name in view.list_xattrs(ino)? {
        let shown = header.uid == 0 || !name.starts_with(b"trusted.");
        if shown {
            list.extend_from_slice(&name);
            list.push(0);
        }
    }
    put_sized(&list, size, reply)
}

pub fn set_xattr(
    view: &dyn View,
    ino: Ino,
    header: &InHeader,
    args: &SetxattrIn,
    name: &[u8],
    value: &[u8],
) -> Result<()> {
    let how = match args.flags as i32 {
        0 => XattrHow::Set,
        libc::XATTR_CREATE => XattrHow::Create,
        libc::XATTR_REPLACE => XattrHow::Replace,
        _ => return Err(Errno::EINVAL.into()),
    };
    let caller = caller(header, 0);
    view.set_xattr(&caller, ino, name, value, how)?;
    if args.setxattr_flags & SETXATTR_ACL_KILL_SGID != 0 {
        let perm = view.attr(ino)?.perm;
        if perm & libc::S_ISGID as u16 != 0 {
            let perm = Some(perm & !(libc::S_ISGID as u16));
            view.set_attr(&caller, ino, &SetAttr { perm, ..Default::default() })?;
        }
    }
    Ok(())
}

pub fn remove_xattr(view: &dyn View, ino: Ino, header: &InHeader, name: &[u8]) -> Result<()> {
    view.remove_xattr(&caller(header, 0), ino, name)
}

/// `FS_IOC_GETFLAGS`, with the size of the argument as it is really read (an int).
pub const GETFLAGS: u32 = 0x8008_6601;
pub const SETFLAGS: u32 = 0x4008_6602;
pub const GETVERSION: u32 = 0x8008_7601;
/// ext4's own number for `FS_IOC_GETVERSION`.
pub const EXT4_GETVERSION: u32 = 0x8008_6603;
pub const FSGETXATTR: u32 = 0x801c_581f;
pub const FSSETXATTR: u32 = 0x401c_5820;

/// `struct fsxattr`.
#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Fsxattr {
    xflags: u32,
    extsize: u32,
    nextents: u32,
    projid: u32,
    cowextsize: u32,
    pad: [u8; 8],
}

/// Flags in `i_flags` with their equivalents in `struct fsxattr`: (`FS_*_FL`, `FS_XFLAG_*`).
const XFLAGS: [(u32, u32); 6] = [
    (0x8, 0x20),          // sync
    (0x10, 0x8),          // immutable
    (0x20, 0x10),         // append only
    (0x40, 0x80),         // no dump
    (0x80, 0x40),         // no atime
    (0x2000_0000, 0x200), // new entries inherit the project
];

/// The ioctls behind lsattr and chattr. The kernel checks permissions, and calls `FSGETXATTR`
/// before it passes `SETFLAGS` on. Returns the output for the caller, `None` for another ioctl.
pub fn flags_ioctl(
    view: &dyn View,
    ino: Ino,
    header: &InHeader,
    command: u32,
    input: &[u8],
) -> Result<Option<Vec<u8>>> {
    let attr = || view.attr(ino);
    let change = |change| view.set_attr(&caller(header, 0), ino, &change).map(|_| Some(Vec::new()));
    match command {
        GETFLAGS => Ok(Some(attr()?.flags.to_ne_bytes().to_vec())),
        GETVERSION | EXT4_GETVERSION => Ok(Some(attr()?.generation.to_ne_bytes().to_vec())),
        SETFLAGS => {
            let (flags, _) = u32::read_from_prefix(input).map_err(|_| Errno::EINVAL)?;
            change(SetAttr { flags: Some(flags), ..Default::default() })
        }
        FSGETXATTR => {
            let Attr { flags, project: projid, .. } = attr()?;
            let xflags = XFLAGS.iter().filter(|(f, _)| flags & f != 0).map(|(_, x)| x).sum();
            Ok(Some(Fsxattr { xflags, projid, ..Default::default() }.as_bytes().to_vec()))
        }
        FSSETXATTR => {
            let (given, _) = Fsxattr::read_from_prefix(input).map_err(|_| Errno::EINVAL)?;
            let known: u32 = XFLAGS.iter().map(|(_, x)| x).sum();
            if given.xflags & !known != 0 || given.extsize != 0 || given.cowextsize != 0 {
                return Err(Errno::EOPNOTSUPP.into());
            }
            let covered: u32 = XFLAGS.iter().map(|(f, _)| f).sum();
            let flags: u32 = XFLAGS.iter().filter(|(_, x)| given.xflags & x != 0).map(|(f, _)| f).sum();
            let flags = Some(attr()?.flags & !covered | flags);
            change(SetAttr { flags, project: Some(given.projid), ..Default::default() })
        }
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setattr_takes_only_fields_marked_valid() {
        let args = SetattrIn {
            valid: fattr::MODE | fattr::ATIME | fattr::ATIME_NOW | fattr::MTIME | fattr::KILL_SUIDGID,
            mode: 0o100_4755,
            size: 5,
            uid: 7,
            mtime: -2_i64 as u64,
            mtimensec: 3,
            ..Default::default()
        };
        let expected = SetAttr {
            perm: Some(0o4755),
            atime: Some(TimeChange::Now),
            mtime: Some(TimeChange::To(Timestamp { secs: -2, nanos: 3 })),
            kill_suidgid: true,
            ..Default::default()
        };
        assert_eq!(change(&args), expected);
    }

    #[test]
    fn sized_replies() {
        let mut reply = Reply::new();
        put_sized(b"value", 0, &mut reply).unwrap();
        assert_eq!(reply.len(), size_of::<GetxattrOut>());
        reply.clear();
        assert_eq!(put_sized(b"value", 4, &mut reply).unwrap_err().errno(), Errno::ERANGE);
        put_sized(b"value", 5, &mut reply).unwrap();
        assert_eq!(reply.len(), 5);
    }
}

//! Structs and numbers of the FUSE protocol, version 7.45 (`include/uapi/linux/fuse.h`).
//!
//! Field names are the kernel's. All numbers are in the machine's byte order. Every struct has
//! the kernel's size, asserted here at compile time, and no padding of its own, so that bytes
//! can be taken for a struct and a struct for bytes without `unsafe`.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Protocol version that this crate speaks.
pub const KERNEL_VERSION: u32 = 7;
pub const KERNEL_MINOR_VERSION: u32 = 45;
/// The oldest supported protocol version: Linux 6.1, the first with O_TMPFILE, which opens control
/// channels.
pub const OLDEST_MINOR_VERSION: u32 = 37;

/// The kernel's node id of the mount's root.
pub const ROOT_ID: u64 = 1;

/// Operation codes (`enum fuse_opcode`).
pub mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const INIT: u32 = 26;
    pub const READDIR: u32 = 28;
    pub const FSYNCDIR: u32 = 30;
    pub const DESTROY: u32 = 38;
    pub const IOCTL: u32 = 39;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
    pub const SYNCFS: u32 = 50;
    pub const TMPFILE: u32 = 51;
    pub const STATX: u32 = 52;
    pub const COPY_FILE_RANGE_64: u32 = 53;
}

/// Flags of INIT; the upper 32 bits travel in `flags2`.
pub mod init {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const NO_OPEN_SUPPORT: u64 = 1 << 17;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const ABORT_ERROR: u64 = 1 << 21;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const SETXATTR_EXT: u64 = 1 << 29;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const HAS_EXPIRE_ONLY: u64 = 1 << 35;
}

/// `fuse_setattr_in.valid`.
pub mod fattr {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const CTIME: u32 = 1 << 10;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// `fuse_write_in.write_flags`: the pages come from the cache, so `flags` is not the caller's.
pub const WRITE_CACHE: u32 = 1 << 0;
/// `fuse_write_in.write_flags`: the caller is not privileged to keep suid and sgid.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// `fuse_setxattr_in.setxattr_flags`: the caller that set an ACL may not keep sgid.
pub const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;
/// `fuse_fsync_in.fsync_flags`.
pub const FSYNC_FDATASYNC: u32 = 1 << 0;
/// Code of the notification that drops an inode's attributes and pages (`fuse_notify_code`).
pub const NOTIFY_INVAL_INODE: i32 = 2;
/// Code of the notification that drops a name.
pub const NOTIFY_INVAL_ENTRY: i32 = 3;
/// `fuse_notify_inval_entry_out.flags`: ask for the name again, keep what hangs below it.
pub const EXPIRE_ONLY: u32 = 1 << 0;
/// `FUSE_DEV_IOC_CLONE`: ties another open of /dev/fuse to a connection.
pub const DEV_IOC_CLONE: u32 = 0x8004_e500;

macro_rules! wire {
    ($($(#[$doc:meta])* $name:ident[$size:literal] { $($field:ident: $type:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub struct $name { $(pub $field: $type),* }
        const _: () = assert!(size_of::<$name>() == $size);
    )*};
}

wire! {
    /// Before every request.
    InHeader[40] {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32,
        total_extlen: u16, padding: u16,
    }
    /// Before every reply; `error` is 0 or a negative errno. In a notification `unique` is 0 and
    /// `error` the notification's code.
    OutHeader[16] { len: u32, error: i32, unique: u64 }

    InitIn[64] { major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, unused: [u32; 11] }
    InitOut[64] {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16,
        congestion_threshold: u16, max_write: u32, time_gran: u32, max_pages: u16, map_alignment: u16,
        flags2: u32, max_stack_depth: u32, request_timeout: u16, unused: [u16; 11],
    }

    Attr[88] {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64, atimensec: u32,
        mtimensec: u32, ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32,
        blksize: u32, flags: u32,
    }
    EntryOut[128] {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32,
        attr_valid_nsec: u32, attr: Attr,
    }
    AttrOut[104] { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr }
    ForgetIn[8] { nlookup: u64 }
    ForgetOne[16] { nodeid: u64, nlookup: u64 }
    BatchForgetIn[8] { count: u32, dummy: u32 }

    SetattrIn[88] {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64,
        ctime: u64, atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32, uid: u32,
        gid: u32, unused5: u32,
    }
    StatxIn[24] { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32 }
    SxTime[16] { tv_sec: i64, tv_nsec: u32, reserved: i32 }
    Statx[256] {
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16,
        spare0: u16, ino: u64, size: u64, blocks: u64, attributes_mask: u64, atime: SxTime,
        btime: SxTime, ctime: SxTime, mtime: SxTime, rdev_major: u32, rdev_minor: u32, dev_major: u32,
        dev_minor: u32, spare2: [u64; 14],
    }
    StatxOut[288] { attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: Statx }

    MknodIn[16] { mode: u32, rdev: u32, umask: u32, padding: u32 }
    MkdirIn[8] { mode: u32, umask: u32 }
    RenameIn[8] { newdir: u64 }
    Rename2In[16] { newdir: u64, flags: u32, padding: u32 }
    LinkIn[8] { oldnodeid: u64 }
    CreateIn[16] { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    OpenOut[16] { fh: u64, open_flags: u32, backing_id: i32 }

    ReadIn[40] {
        fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
    WriteIn[40] {
        fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
    WriteOut[8] { size: u32, padding: u32 }
    FsyncIn[16] { fh: u64, fsync_flags: u32, padding: u32 }
    FallocateIn[32] { fh: u64, offset: u64, length: u64, mode: u32, padding: u32 }
    LseekIn[24] { fh: u64, offset: u64, whence: u32, padding: u32 }
    LseekOut[8] { offset: u64 }
    CopyFileRangeIn[56] {
        fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64,
    }
    CopyFileRangeOut[8] { bytes_copied: u64 }

    /// The form with `SETXATTR_EXT`.
    SetxattrIn[16] { size: u32, flags: u32, setxattr_flags: u32, padding: u32 }
    GetxattrIn[8] { size: u32, padding: u32 }
    GetxattrOut[8] { size: u32, padding: u32 }
    IoctlIn[32] { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32 }
    IoctlOut[16] { result: i32, flags: u32, in_iovs: u32, out_iovs: u32 }

    /// Before the name of a listed entry, which is padded to 8 bytes.
    Dirent[24] { ino: u64, off: u64, namelen: u32, kind: u32 }
    StatfsOut[80] {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32,
        frsize: u32, padding: u32, spare: [u32; 6],
    }

    NotifyInvalInodeOut[24] { ino: u64, off: i64, len: i64 }
    NotifyInvalEntryOut[16] { parent: u64, namelen: u32, flags: u32 }
}

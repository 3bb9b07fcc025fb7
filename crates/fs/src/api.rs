//! The interface of a volume for the front ends (library, FUSE, C): the trait [`View`] and its
//! types.
//!
//! A view is one state of the volume that a program works in: the live one, which all programs
//! share, a transaction, or a snapshot. All have the same operations.

use xact_layout::inode::mode;
use xact_types::{Errno, Error, Ino, Result, Timestamp};

/// The folder in the root with the records of persisted transactions (`xact-txn`). It exists while
/// there is such a transaction, and front ends do not show it.
pub const PERSISTED_FOLDER: &str = ".xact-kept";

/// Whether a name is that of the folder of persisted transactions, which no view shows.
pub fn is_persisted_folder(dir: Ino, name: &Name) -> bool {
    dir == Ino::ROOT && name == PERSISTED_FOLDER.as_bytes()
}

/// A name in a directory: 1 to 255 bytes, neither `.` nor `..`, without `/` and NUL.
pub type Name = [u8];

/// Kind of an inode, from the type bits of its mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FileKind {
    Regular,
    Directory,
    Symlink,
    CharDevice,
    BlockDevice,
    Fifo,
    Socket,
}

impl FileKind {
    pub fn from_mode(bits: u16) -> Option<FileKind> {
        Some(match bits & mode::TYPE_MASK {
            mode::REGULAR => FileKind::Regular,
            mode::DIRECTORY => FileKind::Directory,
            mode::SYMLINK => FileKind::Symlink,
            mode::CHARACTER => FileKind::CharDevice,
            mode::BLOCK => FileKind::BlockDevice,
            mode::FIFO => FileKind::Fifo,
            mode::SOCKET => FileKind::Socket,
            _ => return None,
        })
    }

    pub fn mode_bits(self) -> u16 {
        match self {
            FileKind::Regular => mode::REGULAR,
            FileKind::Directory => mode::DIRECTORY,
            FileKind::Symlink => mode::SYMLINK,
            FileKind::CharDevice => mode::CHARACTER,
            FileKind::BlockDevice => mode::BLOCK,
            FileKind::Fifo => mode::FIFO,
            FileKind::Socket => mode::SOCKET,
        }
    }

    /// `file_type` of a directory entry (`EXT4_FT_*`).
    pub fn dirent_type(self) -> u8 {
        match self {
            FileKind::Regular => 1,
            FileKind::Directory => 2,
            FileKind::CharDevice => 3,
            FileKind::BlockDevice => 4,
            FileKind::Fifo => 5,
            FileKind::Socket => 6,
            FileKind::Symlink => 7,
        }
    }

    pub fn from_dirent_type(file_type: u8) -> Option<FileKind> {
        Some(match file_type {
            1 => FileKind::Regular,
            2 => FileKind::Directory,
            3 => FileKind::CharDevice,
            4 => FileKind::BlockDevice,
            5 => FileKind::Fifo,
            6 => FileKind::Socket,
            7 => FileKind::Symlink,
            _ => return None,
        })
    }
}

/// The attributes of an inode, as `stat` returns them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr {
    pub ino: Ino,
    pub kind: FileKind,
    /// Permission bits with suid, sgid and sticky; no type bits.
    pub perm: u16,
    pub uid: u32,
    pub gid: u32,
    /// The project that is charged for it; 0 on volumes without the feature `project`.
    pub project: u32,
    pub nlink: u32,
    /// Size in bytes.
    pub size: u64,
    /// Space used, in 512-byte sectors, including data that is not allocated yet.
    pub sectors: u64,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    /// Time of creation, if the inode is large enough to hold it.
    pub crtime: Option<Timestamp>,
    /// Device number of a device node, as `makedev` packs it for userland.
    pub rdev: u64,
    /// `i_flags` (`FS_*_FL`).
    pub flags: u32,
    /// `i_generation`: distinguishes inodes that used the same number one after the other.
    pub generation: u32,
}

impl Attr {
    pub fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }
}

/// The caller of an operation: the owner of new inodes, and the subject of checks that the kernel
/// does not make.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Caller {
    pub uid: u32,
    pub gid: u32,
    /// Bits removed from the mode of new inodes, unless the folder has a default ACL.
    pub umask: u16,
}

impl Caller {
    pub const ROOT: Caller = Caller { uid: 0, gid: 0, umask: 0 };
}

/// A new value of a time for `setattr`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeChange {
    Now,
    To(Timestamp),
}

/// Changes of attributes; `None` leaves one unchanged. ctime is set to the present time unless
/// given.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SetAttr {
    pub perm: Option<u16>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub project: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<TimeChange>,
    pub mtime: Option<TimeChange>,
    pub ctime: Option<Timestamp>,
    /// `i_flags` that chattr may change.
    pub flags: Option<u32>,
    /// Drop suid and sgid as a write or chown by an unprivileged caller does
    /// (`FUSE_SETATTR` with `FATTR_KILL_SUIDGID`).
    pub kill_suidgid: bool,
}

/// Options of a write.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WriteHow {
    /// Write at the present end of the file (`O_APPEND`); the offset is ignored.
    pub append: bool,
    /// Drop suid and sgid: the caller is not privileged.
    pub kill_suidgid: bool,
    /// The caller whose reserves and limits apply; by default root.
    pub by: Caller,
    /// More of this write may follow: the file is not written back until the next write of it,
    /// [`View::end_write`], or the time [`xact_types::Steps::next_part`].
    pub is_part: bool,
}

/// The bytes that a write has written. They are fewer than given if the file would exceed its
/// largest size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// The offset of the first byte in the file.
    pub offset: u64,
    pub len: usize,
}

impl Written {
    pub fn end(self) -> u64 {
        self.offset + self.len as u64
    }
}

/// The effect of `fallocate` on a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocate {
    /// Reserve blocks that read as zeros; the size grows to cover them unless `keep_size`.
    Reserve { keep_size: bool },
    /// Free the blocks; the range reads as zeros. The size stays.
    PunchHole,
    /// The range reads as zeros and stays allocated.
    ZeroRange { keep_size: bool },
}

/// Flags of `renameat2`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenameHow {
    Replace,
    NoReplace,
    Exchange,
    /// Leave a whiteout (character device 0:0) at the old name.
    Whiteout,
}

/// `XATTR_CREATE` and `XATTR_REPLACE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XattrHow {
    Set,
    Create,
    Replace,
}

/// `SEEK_DATA` and `SEEK_HOLE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeekTo {
    Data,
    Hole,
}

/// The target of a directory entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    pub ino: Ino,
    pub kind: FileKind,
}

/// One entry of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirItem<'a> {
    pub name: &'a [u8],
    pub ino: Ino,
    pub kind: FileKind,
    /// The cookie with which a listing continues after this entry; never 0.
    pub next_cookie: u64,
}

/// Space figures, as `statfs` returns them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VolumeSpace {
    pub block_size: u32,
    /// Blocks for data: all blocks except fixed metadata.
    pub blocks: u64,
    pub free_blocks: u64,
    /// `free_blocks` without those reserved for root.
    pub available_blocks: u64,
    pub inodes: u64,
    pub free_inodes: u64,
}

/// Rejects an invalid name.
pub fn check_name(name: &Name) -> Result<()> {
    if name.len() > 255 {
        return Err(Error::Posix(Errno::ENAMETOOLONG));
    }
    if name.is_empty() || name == b"." || name == b".." || name.iter().any(|&b| b == b'/' || b == 0) {
        return Err(Error::Posix(Errno::EINVAL));
    }
    Ok(())
}

/// One state of the volume, with every operation. The front end checks permission bits (FUSE mounts
/// with `default_permissions`); the view checks rules that follow from the volume's own state
/// (non-empty folders, loops by rename, read-only flags).
///
/// Inodes are named by number. A number stays valid while a name points at its inode or while
/// it is held: `hold` keeps an unlinked inode alive until the last `release`.
pub trait View: Send + Sync {
    fn lookup(&self, dir: Ino, name: &Name) -> Result<Attr>;
    /// The target of a name. In a transaction, this does not count as a read of the inode's
    /// attributes, so the commit does not depend on them. For walking a path.
    fn resolve(&self, dir: Ino, name: &Name) -> Result<Entry> {
        let Attr { ino, kind, .. } = self.lookup(dir, name)?;
        Ok(Entry { ino, kind })
    }
    fn attr(&self, ino: Ino) -> Result<Attr>;
    /// The attributes of an inode that a file handle names (`open_by_handle_at`). `ESTALE`: it is
    /// not in use, has no name, or is the file system's own; or the view gives out no handles.
    fn by_handle(&self, _: Ino) -> Result<Attr> {
        Err(Error::Posix(Errno::ESTALE))
    }
    /// The size of a file. In a transaction, this does not count as a read: for what the caller
    /// does with its caches, not for a result.
    fn size(&self, ino: Ino) -> Result<u64> {
        Ok(self.attr(ino)?.size)
    }
    fn set_attr(&self, caller: &Caller, ino: Ino, change: &SetAttr) -> Result<Attr>;
    fn read_link(&self, ino: Ino) -> Result<Vec<u8>>;

    /// Creates a regular file, device node, FIFO or socket: `mode` has type and permission bits.
    /// `rdev` as in [`Attr::rdev`].
    fn make_node(&self, caller: &Caller, dir: Ino, name: &Name, mode: u16, rdev: u64) -> Result<Attr>;
    fn make_dir(&self, caller: &Caller, dir: Ino, name: &Name, perm: u16) -> Result<Attr>;
    fn make_symlink(&self, caller: &Caller, dir: Ino, name: &Name, target: &[u8]) -> Result<Attr>;
    /// Creates a regular file without a name (`O_TMPFILE`), held once on return; `link` can name
    /// it.
    fn make_unnamed(&self, caller: &Caller, dir: Ino, perm: u16) -> Result<Attr>;
    fn link(&self, caller: &Caller, ino: Ino, dir: Ino, name: &Name) -> Result<Attr>;
    fn unlink(&self, caller: &Caller, dir: Ino, name: &Name) -> Result<()>;
    fn remove_dir(&self, caller: &Caller, dir: Ino, name: &Name) -> Result<()>;
    fn rename(&self, caller: &Caller, from: (Ino, &Name), to: (Ino, &Name), how: RenameHow) -> Result<()>;

    /// Lists a directory from `cookie` (0: from the start, `.` and `..` first) until `each` returns
    /// false. The entry for which it returned false is not consumed.
    fn read_dir(&self, dir: Ino, cookie: u64, each: &mut dyn FnMut(DirItem<'_>) -> bool) -> Result<()>;

    /// Whether a read of these bytes is known to need no device access. False if finding out would
    /// have to wait.
    fn is_in_memory(&self, _ino: Ino, _offset: u64, _len: u64) -> bool {
        false
    }

    fn hold(&self, ino: Ino) -> Result<()>;
    /// Undoes `count` holds.
    fn release(&self, ino: Ino, count: u64);

    /// Appends the range `offset..offset+len` of the file to `out`, as far as the file reaches.
    fn read(&self, ino: Ino, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()>;
    /// Writes `data`, as far as the largest size of a file allows. `EFBIG`: not one byte of it.
    fn write(&self, ino: Ino, offset: u64, data: &[u8], how: WriteHow) -> Result<Written>;
    /// No more of a write in parts follows ([`WriteHow::is_part`]).
    fn end_write(&self, _: Ino) {}
    fn allocate(&self, caller: &Caller, ino: Ino, offset: u64, len: u64, how: Allocate) -> Result<()>;
    /// Copies within the view; returns the number of bytes copied (short at the end of file).
    fn copy_range(&self, from: (Ino, u64), to: (Ino, u64), len: u64, how: WriteHow) -> Result<u64>;
    /// `ENXIO` past the end of the file.
    fn seek(&self, ino: Ino, offset: u64, to: SeekTo) -> Result<u64>;
    /// `fsync` (or `fdatasync`): returns when the file is durable. Inside a transaction: at once.
    fn sync_file(&self, ino: Ino, data_only: bool) -> Result<()>;
    /// Makes all changes so far durable. Inside a transaction: returns at once.
    fn sync_all(&self) -> Result<()>;

    fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>>;
    /// Full names ("user.mime_type"), in no order.
    fn list_xattrs(&self, ino: Ino) -> Result<Vec<Vec<u8>>>;
    fn set_xattr(&self, caller: &Caller, ino: Ino, name: &[u8], value: &[u8], how: XattrHow) -> Result<()>;
    fn remove_xattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()>;

    fn space(&self) -> Result<VolumeSpace>;
}

//! The primitives under the POSIX operations: one state of the volume within one operation.
//!
//! Two types implement it: the live file system's ([`crate::Operation`]), which changes the volume
//! through a handle while it holds the locks of the inodes concerned, and the transaction's, which
//! changes an overlay in memory. The operations in `crate::posix` are written once over it, and a
//! commit replays a transaction's changes on the volume through it.
//!
//! Rule for operations: read everything first, then change. `LiveFs::run` takes the lock of an
//! inode when an operation first reads it, and may restart the operation (with more locks) at
//! any read; after the first change no inode may be met that was not read before.

#[cfg(any(test, feature = "mem-tree"))]
pub mod mem;
#[cfg(feature = "mem-tree")]
pub mod random;

use xact_types::{Ino, Result, Timestamp};

use crate::api::{Allocate, Attr, DirItem, Entry, FileKind, Name, SeekTo};

/// What a new inode starts with. Size 0, no links: names count links as they are added.
#[derive(Debug, Clone, Copy)]
pub struct NewInode {
    pub kind: FileKind,
    pub perm: u16,
    pub uid: u32,
    pub gid: u32,
    pub project: u32,
    pub rdev: u64,
    /// Set for all four times.
    pub time: Timestamp,
    /// Inherited `i_flags`, and [`xact_layout::inode::flag::EXTENTS`] where the file is to have
    /// them.
    pub flags: u32,
}

/// Attributes that an operation sets as they are; rules were applied before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AttrChange {
    pub perm: Option<u16>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub project: Option<u32>,
    pub atime: Option<Timestamp>,
    pub mtime: Option<Timestamp>,
    pub ctime: Option<Timestamp>,
    pub flags: Option<u32>,
}

/// Attributes that an operation's outcome, or what it returns, depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AttrSet(u8);

impl AttrSet {
    pub const NONE: AttrSet = AttrSet(0);
    /// Permission bits.
    pub const MODE: AttrSet = AttrSet(1);
    /// Owner, group and project.
    pub const OWNER: AttrSet = AttrSet(2);
    pub const SIZE: AttrSet = AttrSet(4);
    pub const MTIME: AttrSet = AttrSet(8);
    /// `i_flags`.
    pub const FLAGS: AttrSet = AttrSet(16);
    /// What `stat` shows, as far as a transaction answers for it.
    pub const STAT: AttrSet = AttrSet(1 | 2 | 4 | 8);

    pub fn has(self, other: AttrSet) -> bool {
        self.0 & other.0 == other.0
    }

    /// The union, for constants.
    pub const fn with(self, other: AttrSet) -> AttrSet {
        AttrSet(self.0 | other.0)
    }

    pub fn without(self, other: AttrSet) -> AttrSet {
        AttrSet(self.0 & !other.0)
    }

    pub fn is_none(self) -> bool {
        self.0 == 0
    }

    pub fn bits(self) -> u8 {
        self.0
    }

    pub fn from_bits(bits: u8) -> AttrSet {
        AttrSet(bits & 31)
    }
}

impl std::ops::BitOr for AttrSet {
    type Output = AttrSet;

    fn bitor(self, other: AttrSet) -> AttrSet {
        AttrSet(self.0 | other.0)
    }
}

impl std::ops::BitOrAssign for AttrSet {
    fn bitor_assign(&mut self, other: AttrSet) {
        self.0 |= other.0;
    }
}

/// The link count of a directory with `old` links after `delta` subdirectories came or went
/// (`ext4_inc_count`, `ext4_dec_count`): 1 is "not counted", and no living directory is below 2.
pub fn links_with_subdirs(old: u32, delta: i64, link_max: u32) -> u32 {
    if old < 2 {
        return old;
    }
    let new = (i64::from(old) + delta).max(2);
    if new > i64::from(link_max) { 1 } else { new as u32 }
}

pub trait InodeOps {
    /// `ESTALE` for a number that is no inode in use.
    fn attr(&mut self, ino: Ino) -> Result<Attr>;
    /// Says which attributes of an inode decide what the operation does or returns. `attr` alone
    /// says nothing: a write reads the size, yet only one at the end of the file depends on it.
    fn depends_on(&mut self, _ino: Ino, _attrs: AttrSet) {}
    fn set_attr(&mut self, ino: Ino, change: &AttrChange) -> Result<()>;
    /// Adds to the link count. At 0 the inode is freed when it is not held any more.
    fn add_links(&mut self, ino: Ino, delta: i32) -> Result<()>;
    /// Adds the `..` of subdirectories that came (or, below 0, went) to the link count of `dir`:
    /// a count past `link_max` becomes 1, which means "not counted" and stays (`dir_nlink`).
    fn add_subdirs(&mut self, dir: Ino, delta: i32) -> Result<()> {
        let old = self.attr(dir)?.nlink;
        let new = links_with_subdirs(old, i64::from(delta), self.link_max());
        // Both are link counts, so the difference fits.
        self.add_links(dir, (i64::from(new) - i64::from(old)) as i32)
    }
    /// The largest link count (65,000 on ext4).
    fn link_max(&self) -> u32;
    /// Whether a directory may have more subdirectories than `link_max` (feature `dir_nlink`).
    fn dir_nlink(&self) -> bool;
    /// The longest target of a symbolic link in bytes: it has to fit a block with its NUL.
    fn target_max(&self) -> usize;
    fn new_inode(&mut self, parent: Ino, new: &NewInode) -> Result<Ino>;
    /// Keeps an inode that has no name yet, or none any more, until it is released.
    fn hold(&mut self, ino: Ino) -> Result<()>;

    /// `name` is an ordinary name (see [`crate::api::check_name`]).
    fn entry(&mut self, dir: Ino, name: &Name) -> Result<Option<Entry>>;
    /// `NoSpace` where the directory could not take this name however much space the volume has. To
    /// be asked before the first change.
    fn check_name_fits(&mut self, _dir: Ino, _name: &Name) -> Result<()> {
        Ok(())
    }
    /// Adds a name that is not there.
    fn add_entry(&mut self, dir: Ino, name: &Name, entry: Entry) -> Result<()>;
    /// Removes a name that is there.
    fn remove_entry(&mut self, dir: Ino, name: &Name) -> Result<()>;
    /// Points a name that is there at another inode.
    fn set_entry(&mut self, dir: Ino, name: &Name, entry: Entry) -> Result<()>;
    fn is_empty(&mut self, dir: Ino) -> Result<bool>;
    /// What `..` points at.
    fn parent(&mut self, dir: Ino) -> Result<Ino>;
    /// Sets `..`; on a new directory this also makes its first block.
    fn set_parent(&mut self, dir: Ino, parent: Ino) -> Result<()>;
    /// Ordinary names only; `.` and `..` are the caller's. Cookies 1 and 2 are left free for them.
    fn list(&mut self, dir: Ino, cookie: u64, each: &mut dyn FnMut(DirItem<'_>) -> bool) -> Result<()>;

    fn read_link(&mut self, ino: Ino) -> Result<Vec<u8>>;
    /// Sets the target of a new symbolic link, and its size.
    fn set_link(&mut self, ino: Ino, target: &[u8]) -> Result<()>;

    /// Appends to `out` what the file has of the range; less only at the end of file.
    fn read(&mut self, ino: Ino, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()>;
    /// Writes and grows the size as needed; times are the caller's.
    fn write(&mut self, ino: Ino, offset: u64, data: &[u8]) -> Result<()>;
    /// Sets the size; what is cut off is gone, what is added reads as zeros.
    fn set_size(&mut self, ino: Ino, size: u64) -> Result<()>;
    fn allocate(&mut self, ino: Ino, offset: u64, len: u64, how: Allocate) -> Result<()>;
    fn seek(&mut self, ino: Ino, offset: u64, to: SeekTo) -> Result<u64>;
    /// The largest size in bytes of a regular file with these `i_flags`: less for one without
    /// extents.
    fn size_max(&self, flags: u32) -> u64;
    /// Whether new files have extents. One without (ext2, ext3) has no unwritten blocks, so nothing
    /// can be reserved for it.
    fn has_extents(&self) -> bool;
    /// Whether inodes have projects (feature `project`, and inodes large enough).
    fn has_projects(&self) -> bool;

    fn xattr(&mut self, ino: Ino, name: &[u8]) -> Result<Option<Vec<u8>>>;
    fn list_xattrs(&mut self, ino: Ino) -> Result<Vec<Vec<u8>>>;
    /// `None` removes it.
    fn set_xattr(&mut self, ino: Ino, name: &[u8], value: Option<&[u8]>) -> Result<()>;

    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

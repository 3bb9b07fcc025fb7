//! The primitives under the POSIX operations: one state of the volume within one operation.
//!
//! Two types implement the trait. [`crate::Operation`] changes the live volume through a handle
//! while it holds the locks of the inodes. The transaction's tree changes an overlay in memory. The
//! operations in `crate::posix` are written once over the trait, and a commit applies a
//! transaction's changes to the volume through it.
//!
//! Rule for operations: read everything first, then change. `LiveFs::run` locks an inode when an
//! operation first reads it, and may restart the operation (with more locks) at any read. After its
//! first change, an operation may only use inodes that it has read before.

#[cfg(any(test, feature = "mem-tree"))]
pub mod mem;
#[cfg(feature = "mem-tree")]
pub mod random;

use xact_types::{Ino, Result, Timestamp};

use crate::api::{Allocate, Attr, DirItem, Entry, FileKind, Name, SeekTo};
use crate::journal_modes::DataMode;

/// The initial state of a new inode. It has size 0 and no links: adding names counts links.
#[derive(Debug, Clone, Copy)]
pub struct NewInode {
    pub kind: FileKind,
    pub perm: u16,
    pub uid: u32,
    pub gid: u32,
    pub project: u32,
    pub rdev: u64,
    /// The value of all four times.
    pub time: Timestamp,
    /// Inherited `i_flags`, and [`xact_layout::inode::flag::EXTENTS`] if the file gets extents.
    pub flags: u32,
}

/// Attributes that an operation sets; the rules of POSIX were already applied.
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

impl AttrChange {
    pub fn apply_to(&self, attr: &mut Attr) {
        attr.perm = self.perm.unwrap_or(attr.perm);
        attr.uid = self.uid.unwrap_or(attr.uid);
        attr.gid = self.gid.unwrap_or(attr.gid);
        attr.project = self.project.unwrap_or(attr.project);
        attr.atime = self.atime.unwrap_or(attr.atime);
        attr.mtime = self.mtime.unwrap_or(attr.mtime);
        attr.ctime = self.ctime.unwrap_or(attr.ctime);
        attr.flags = self.flags.unwrap_or(attr.flags);
    }
}

/// Attributes on which an operation's outcome or result depends.
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
    /// The attributes of `stat` that a transaction validates.
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

/// The link count of a directory with `old` links after `delta` subdirectories were added or
/// removed (`ext4_inc_count`, `ext4_dec_count`). 1 means "not counted"; otherwise a directory in
/// use has at least 2.
pub fn links_with_subdirs(old: u32, delta: i64, link_max: u32) -> u32 {
    if old < 2 {
        return old;
    }
    let new = (i64::from(old) + delta).max(2);
    if new > i64::from(link_max) { 1 } else { new as u32 }
}

/// One state of the volume within one operation.
pub trait InodeOps {
    /// `ESTALE` for a number that is not in use.
    fn attr(&mut self, ino: Ino) -> Result<Attr>;
    /// Declares the attributes of an inode on which the operation's outcome or result depends. A
    /// call of `attr` declares nothing: every write reads the size, but only one at the end of the
    /// file depends on it.
    fn depends_on(&mut self, _ino: Ino, _attrs: AttrSet) {}
    fn set_attr(&mut self, ino: Ino, change: &AttrChange) -> Result<()>;
    /// Adds to the link count. At 0 the inode is freed when it is no longer held.
    fn add_links(&mut self, ino: Ino, delta: i32) -> Result<()>;
    /// Adds the `..` of added subdirectories (if negative, of removed ones) to the link count of
    /// `dir`. A count above `link_max` becomes 1, which means "not counted" and stays
    /// (`dir_nlink`).
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
    /// Maximum length of a symbolic link's target in bytes: it must fit into a block with its NUL.
    fn target_max(&self) -> usize;
    fn new_inode(&mut self, parent: Ino, new: &NewInode) -> Result<Ino>;
    /// Keeps an inode without a name until it is released.
    fn hold(&mut self, ino: Ino) -> Result<()>;

    /// `name` is an ordinary name (see [`crate::api::check_name`]).
    fn entry(&mut self, dir: Ino, name: &Name) -> Result<Option<Entry>>;
    /// `NoSpace` if the directory cannot hold this name, however much space the volume has. Called
    /// before the first change.
    fn check_name_fits(&mut self, _dir: Ino, _name: &Name) -> Result<()> {
        Ok(())
    }
    /// Adds a name that does not exist.
    fn add_entry(&mut self, dir: Ino, name: &Name, entry: Entry) -> Result<()>;
    /// Removes an existing name.
    fn remove_entry(&mut self, dir: Ino, name: &Name) -> Result<()>;
    /// Points an existing name at another inode.
    fn set_entry(&mut self, dir: Ino, name: &Name, entry: Entry) -> Result<()>;
    /// A folder is about to get another path, and everything in it.
    fn folder_moves(&mut self) {}
    fn is_empty(&mut self, dir: Ino) -> Result<bool>;
    /// The inode of `..`.
    fn parent(&mut self, dir: Ino) -> Result<Ino>;
    /// Sets `..`; for a new directory this also creates its first block.
    fn set_parent(&mut self, dir: Ino, parent: Ino) -> Result<()>;
    /// Lists names other than `.` and `..`, which the caller adds. Cookies 1 and 2 are left to
    /// them.
    fn list(&mut self, dir: Ino, cookie: u64, each: &mut dyn FnMut(DirItem<'_>) -> bool) -> Result<()>;

    fn read_link(&mut self, ino: Ino) -> Result<Vec<u8>>;
    /// Sets the target of a new symbolic link, and its size.
    fn set_link(&mut self, ino: Ino, target: &[u8]) -> Result<()>;

    /// Appends a range of the file to `out`, as far as the file reaches.
    fn read(&mut self, ino: Ino, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()>;
    /// Writes, and extends the size if needed; the caller sets the times.
    fn write(&mut self, ino: Ino, offset: u64, data: &[u8]) -> Result<()>;
    /// Sets the size; bytes past it are discarded, added bytes read as zeros.
    fn set_size(&mut self, ino: Ino, size: u64) -> Result<()>;
    fn allocate(&mut self, ino: Ino, offset: u64, len: u64, how: Allocate) -> Result<()>;
    fn seek(&mut self, ino: Ino, offset: u64, to: SeekTo) -> Result<u64>;
    /// Maximum size in bytes of a regular file with these `i_flags`; lower without extents.
    fn size_max(&self, flags: u32) -> u64;
    /// Whether new files have extents. A file without them (ext2, ext3) has no unwritten blocks, so
    /// no blocks can be reserved for it.
    fn has_extents(&self) -> bool;
    /// Whether inodes have projects (feature `project`, and inodes large enough).
    fn has_projects(&self) -> bool;
    /// Whether new inodes have their folder's group, whatever its set-group-ID bit (`grpid`).
    fn gives_group_of_folder(&self) -> bool;
    /// Whether the volume can write a file's data in this mode.
    fn takes_file_mode(&self, mode: DataMode) -> bool;

    fn xattr(&mut self, ino: Ino, name: &[u8]) -> Result<Option<Vec<u8>>>;
    fn list_xattrs(&mut self, ino: Ino) -> Result<Vec<Vec<u8>>>;
    /// Sets an attribute; `None` removes it.
    fn set_xattr(&mut self, ino: Ino, name: &[u8], value: Option<&[u8]>) -> Result<()>;

    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

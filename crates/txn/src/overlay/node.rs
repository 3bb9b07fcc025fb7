//! What is different about one inode: attributes, links, names in it, contents, extended
//! attributes.

use xact_fs::inode_ops::links_with_subdirs;
use xact_fs::quota::Payer;
use xact_fs::{Attr, AttrChange, FileKind, XattrChanges};
use xact_types::{FileBlock, Ino};

use super::blocks::Blocks;
use super::names::Names;
use crate::ranges::Ranges;

// Bytes in memory, the share of the tree's nodes and of the allocator's rounding included.
const NODE_BYTES: usize = 720;
const XATTR_BYTES: usize = 96;
const BLOCK_BYTES: usize = 64;
const RESERVED_BYTES: usize = 32;

/// What is different about one inode.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Node {
    /// Made in the transaction: the base has no such inode, and `origin` is how it was made.
    pub born: bool,
    /// The attributes as of the stamp.
    pub origin: Attr,
    pub changed: AttrChange,
    /// Links gained and lost, without those of subdirectories.
    pub links: i64,
    /// Subdirectories gained and lost.
    pub subdirs: i64,
    /// A directory whose name is gone.
    pub removed_dir: bool,
    /// Holds of an inode born here; the base's are kept by the view.
    pub holds: u64,
    pub names: Names,
    /// New place of `..`.
    pub parent: Option<Ino>,
    /// Target of a new symbolic link.
    pub target: Option<Vec<u8>>,
    pub file: FileChange,
    /// `None`: removed.
    pub xattrs: XattrChanges,
}

impl Node {
    pub fn new(origin: Attr, born: bool) -> Node {
        Node {
            born,
            changed: AttrChange::default(),
            links: 0,
            subdirs: 0,
            removed_dir: false,
            holds: 0,
            names: Names::default(),
            parent: None,
            target: None,
            file: FileChange { size: origin.size, base_end: None, ..FileChange::default() },
            xattrs: XattrChanges::new(),
            origin,
        }
    }

    /// What it takes in memory, contents of files apart.
    pub fn bytes(&self) -> usize {
        let value = |value: &Option<Vec<u8>>| value.as_ref().map_or(0, Vec::len);
        let xattrs = self.xattrs.iter().map(|(name, new)| name.len() + value(new) + XATTR_BYTES);
        NODE_BYTES
            + self.names.bytes
            + value(&self.target)
            + xattrs.sum::<usize>()
            + self.file.blocks.len() * BLOCK_BYTES
            + self.file.reserved.len() * RESERVED_BYTES
    }

    /// Attributes in the transaction's view.
    pub fn attr(&self, link_max: u32, block_size: u32) -> Attr {
        let (old, new) = (&self.origin, &self.changed);
        Attr {
            perm: new.perm.unwrap_or(old.perm),
            uid: new.uid.unwrap_or(old.uid),
            gid: new.gid.unwrap_or(old.gid),
            project: new.project.unwrap_or(old.project),
            atime: new.atime.unwrap_or(old.atime),
            mtime: new.mtime.unwrap_or(old.mtime),
            ctime: new.ctime.unwrap_or(old.ctime),
            flags: new.flags.unwrap_or(old.flags),
            nlink: self.nlink(old.nlink, link_max),
            size: self.file.size,
            sectors: self.sectors(block_size),
            ..*old
        }
    }

    /// The user, group and project that its space is charged to, in the view.
    pub fn payer(&self) -> Payer {
        let (old, new) = (&self.origin, &self.changed);
        Payer {
            uid: new.uid.unwrap_or(old.uid),
            gid: new.gid.unwrap_or(old.gid),
            project: new.project.unwrap_or(old.project),
        }
    }

    /// The same when it was made, or as of the stamp.
    pub fn first_payer(&self) -> Payer {
        let Attr { uid, gid, project, .. } = self.origin;
        Payer { uid, gid, project }
    }

    /// The link count that comes of `old` by the changes made here.
    pub fn nlink(&self, old: u32, link_max: u32) -> u32 {
        if self.removed_dir {
            return 0;
        }
        let own = u32::try_from(i64::from(old) + self.links).unwrap_or(0);
        match self.origin.kind {
            FileKind::Directory => links_with_subdirs(own, self.subdirs, link_max),
            _ => own,
        }
    }

    /// An estimate: what the overlay adds over holes and what it replaces look alike.
    fn sectors(&self, block_size: u32) -> u64 {
        if self.origin.kind != FileKind::Regular {
            return self.origin.sectors;
        }
        let per_block = u64::from(block_size / 512);
        let kept = match self.file.base_end {
            Some(end) => self.origin.sectors.min(u64::from(end.0) * per_block),
            None => self.origin.sectors,
        };
        let added = self.file.blocks.with_contents() * per_block;
        let whole = self.file.size.div_ceil(u64::from(block_size)) * per_block;
        (kept + added).min(whole.max(kept))
    }

    /// Nothing is left of an inode born here once it has neither name nor holder.
    pub fn is_gone(&self, link_max: u32) -> bool {
        self.born && self.holds == 0 && self.nlink(self.origin.nlink, link_max) == 0
    }

    /// Whether the node says anything at all.
    pub fn is_changed(&self) -> bool {
        self.changed != AttrChange::default() || self.changes_more_than_attributes()
    }

    /// Whether all that is left is that names in a directory came and went again.
    pub fn changes_dir_times_only(&self) -> bool {
        let AttrChange { perm, uid, gid, project, atime, mtime: _, ctime: _, flags } = self.changed;
        self.origin.kind == FileKind::Directory
            && (perm, uid, gid, project, atime, flags) == (None, None, None, None, None, None)
            && !self.changes_more_than_attributes()
    }

    fn changes_more_than_attributes(&self) -> bool {
        self.born
            || self.changes_structure()
            || !self.xattrs.is_empty()
            || self.file.is_changed(self.origin.size)
    }

    /// Whether names in it or of it come or go.
    pub fn changes_structure(&self) -> bool {
        self.links != 0
            || self.subdirs != 0
            || self.removed_dir
            || self.parent.is_some()
            || !self.names.is_empty()
    }
}

/// What is different about a file's contents.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct FileChange {
    /// Size in the view, in bytes.
    pub size: u64,
    /// The file was cut: the base's blocks from here on are gone, whatever came after.
    pub base_end: Option<FileBlock>,
    /// What it has written. A block that is cut by the end of the file is zero behind it.
    pub blocks: Blocks,
    /// Bytes that were given space by fallocate: they read as the rest of the file says.
    pub reserved: Ranges,
}

impl FileChange {
    /// Whether the size is the transaction's own and not just the base's.
    pub fn sets_size(&self, base_size: u64) -> bool {
        self.size != base_size || self.base_end.is_some()
    }

    pub fn is_changed(&self, base_size: u64) -> bool {
        self.sets_size(base_size) || !self.blocks.is_empty() || !self.reserved.is_empty()
    }

    /// Whether the base holds for this block where `blocks` says nothing.
    pub fn base_has(&self, at: FileBlock) -> bool {
        self.base_end.is_none_or(|end| at < end)
    }
}

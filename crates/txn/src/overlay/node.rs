//! The changes of one inode: attributes, links, names in it, contents, extended attributes.

use xact_fs::inode_ops::links_with_subdirs;
use xact_fs::quota::Payer;
use xact_fs::{Attr, AttrChange, FileKind, XattrChanges};
use xact_types::{FileBlock, Ino};

use super::blocks::Blocks;
use super::names::Names;
use crate::ranges::Ranges;

// Memory in bytes, including the share of the tree's nodes and of the allocator's rounding.
const NODE_BYTES: usize = 720;
const XATTR_BYTES: usize = 96;
const BLOCK_BYTES: usize = 64;
const RESERVED_BYTES: usize = 32;

/// The changes of one inode.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Node {
    /// Created in the transaction: the base has no such inode, and `origin` has its initial
    /// attributes.
    pub born: bool,
    /// The attributes as of the stamp.
    pub origin: Attr,
    pub changed: AttrChange,
    /// Change of the link count, without those of subdirectories.
    pub links: i64,
    /// Change of the number of subdirectories.
    pub subdirs: i64,
    /// A directory whose name was removed.
    pub removed_dir: bool,
    /// Holds of an inode created in the transaction; the view keeps those of the base.
    pub holds: u64,
    pub names: Names,
    /// New target of `..`.
    pub parent: Option<Ino>,
    /// Target of a new symbolic link.
    pub target: Option<Vec<u8>>,
    pub file: FileChange,
    /// Changed attributes; `None`: removed.
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

    /// Memory in bytes, without contents of files.
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
        let mut attr = Attr {
            nlink: self.nlink(self.origin.nlink, link_max),
            size: self.file.size,
            sectors: self.sectors(block_size),
            ..self.origin
        };
        self.changed.apply_to(&mut attr);
        attr
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

    /// The payer at its creation, or as of the stamp.
    pub fn first_payer(&self) -> Payer {
        let Attr { uid, gid, project, .. } = self.origin;
        Payer { uid, gid, project }
    }

    /// The link count after these changes, if it was `old`.
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

    /// The space used, an estimate: blocks over holes and replaced blocks are not distinguished.
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

    /// Whether an inode created in the transaction has neither a name nor a hold left.
    pub fn is_gone(&self, link_max: u32) -> bool {
        self.born && self.holds == 0 && self.nlink(self.origin.nlink, link_max) == 0
    }

    /// Whether the node has any change.
    pub fn is_changed(&self) -> bool {
        self.changed != AttrChange::default() || self.changes_more_than_attributes()
    }

    /// Whether the only change is in the times of a directory, after names were added and removed
    /// again.
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

    /// Whether names in it, or its own names, are added or removed.
    pub fn changes_structure(&self) -> bool {
        self.links != 0
            || self.subdirs != 0
            || self.removed_dir
            || self.parent.is_some()
            || !self.names.is_empty()
    }
}

/// The changes of a file's contents.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct FileChange {
    /// Size in the view, in bytes.
    pub size: u64,
    /// The file was truncated: the base's blocks from here on no longer count.
    pub base_end: Option<FileBlock>,
    /// Written blocks. A block that contains the end of the file is zero after it.
    pub blocks: Blocks,
    /// Ranges of bytes with space reserved by fallocate; their contents follow from the other
    /// fields.
    pub reserved: Ranges,
}

impl FileChange {
    /// Whether the size is the transaction's own, not the base's.
    pub fn sets_size(&self, base_size: u64) -> bool {
        self.size != base_size || self.base_end.is_some()
    }

    pub fn is_changed(&self, base_size: u64) -> bool {
        self.sets_size(base_size) || !self.blocks.is_empty() || !self.reserved.is_empty()
    }

    /// Whether the base's block counts if `blocks` does not have this block.
    pub fn base_has(&self, at: FileBlock) -> bool {
        self.base_end.is_none_or(|end| at < end)
    }
}

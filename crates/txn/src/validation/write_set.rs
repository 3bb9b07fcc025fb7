//! The write set of an open transaction: what a commit validates against changes of others
//! ([`crate::validation`]), without the values. Inodes created in the transaction are private and
//! not in it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use xact_fs::{AttrChange, AttrSet};
use xact_types::{FileBlock, Ino};

use crate::overlay::{Node, Overlay};
use crate::ranges::Ranges;

/// One change of an inode.
#[derive(Debug, Clone)]
pub(crate) enum Write<'a> {
    /// Any change, such as one of its times or of its number of links.
    Any,
    Attrs(AttrSet),
    Blocks(Range<FileBlock>),
    /// A name in it.
    Name(&'a [u8]),
    Xattr(&'a [u8]),
    /// Its last name is removed.
    Deletion,
}

/// The changes of one inode.
#[derive(Debug, Default)]
struct InodeWrites {
    attrs: AttrSet,
    blocks: Ranges,
    names: BTreeSet<Vec<u8>>,
    xattrs: BTreeSet<Vec<u8>>,
    is_deleted: bool,
}

/// The changes of a transaction, by inode.
#[derive(Debug, Default)]
pub(crate) struct WriteSet {
    inodes: BTreeMap<Ino, InodeWrites>,
    /// Number of recorded inodes, names and extended attributes.
    items: usize,
}

/// The changed attributes that a commit compares.
pub(crate) fn compared_attrs(change: &AttrChange) -> AttrSet {
    let mut attrs = AttrSet::NONE;
    if change.perm.is_some() {
        attrs |= AttrSet::MODE;
    }
    if change.uid.is_some() || change.gid.is_some() || change.project.is_some() {
        attrs |= AttrSet::OWNER;
    }
    if change.flags.is_some() {
        attrs |= AttrSet::FLAGS;
    }
    attrs
}

impl WriteSet {
    pub fn of(overlay: &Overlay) -> WriteSet {
        let mut set = WriteSet::default();
        let changed = |node: &Node| !node.born && node.is_changed() && !node.changes_dir_times_only();
        for (&ino, node) in overlay.nodes.iter().filter(|(_, node)| changed(node)) {
            set.add_node(ino, node);
        }
        set
    }

    fn add_node(&mut self, ino: Ino, node: &Node) {
        let mut attrs = compared_attrs(&node.changed);
        if node.file.sets_size(node.origin.size) {
            attrs |= AttrSet::SIZE;
        }
        self.add(ino, &Write::Attrs(attrs));
        for at in node.file.blocks.keys() {
            self.add(ino, &Write::Blocks(*at..at.offset(1)));
        }
        if let Some(end) = node.file.base_end {
            self.add(ino, &Write::Blocks(end..FileBlock(u32::MAX)));
        }
        node.names.iter().for_each(|(name, _)| self.add(ino, &Write::Name(name)));
        node.xattrs.keys().for_each(|name| self.add(ino, &Write::Xattr(name)));
        if node.origin.nlink > 0 && node.nlink(node.origin.nlink, u32::MAX) == 0 {
            self.add(ino, &Write::Deletion);
        }
    }

    pub fn add(&mut self, ino: Ino, write: &Write<'_>) {
        let items = &mut self.items;
        let writes = self.inodes.entry(ino).or_insert_with(|| {
            *items += 1;
            InodeWrites::default()
        });
        match write {
            Write::Any => {}
            Write::Attrs(attrs) => writes.attrs |= *attrs,
            Write::Blocks(blocks) => writes.blocks.insert(blocks.start.0.into()..blocks.end.0.into()),
            Write::Name(name) => *items += usize::from(writes.names.insert(name.to_vec())),
            Write::Xattr(name) => *items += usize::from(writes.xattrs.insert(name.to_vec())),
            Write::Deletion => writes.is_deleted = true,
        }
    }

    /// Number of recorded inodes, names and extended attributes, for its memory.
    pub fn items(&self) -> usize {
        self.items
    }

    /// Whether, of a transaction with this set and one that makes this change, the one that commits
    /// last would be refused for what it has written.
    pub fn collides(&self, ino: Ino, write: &Write<'_>) -> bool {
        let Some(writes) = self.inodes.get(&ino) else { return false };
        writes.is_deleted
            || match write {
                Write::Any => false,
                Write::Attrs(attrs) => writes.attrs.bits() & attrs.bits() != 0,
                Write::Blocks(blocks) => writes.blocks.overlaps(blocks.start.0.into()..blocks.end.0.into()),
                Write::Name(name) => writes.names.contains(*name),
                Write::Xattr(name) => writes.xattrs.contains(*name),
                Write::Deletion => true,
            }
    }
}

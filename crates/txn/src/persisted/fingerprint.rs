//! Fingerprints (CRC32C) of the items that a persisted transaction depends on, to detect changes
//! made while the volume was not mounted by xact (another mount, the kernel).
//!
//! The items are those that a running transaction validates by their versions: names, listings,
//! contents, extended attributes, and the identity of inodes. (Attributes, sizes and parents of
//! folders are always compared by value.) Each item has a number, which differs for another value
//! except in one case in four thousand million. An item that changed and changed back counts as
//! unchanged, and the commit is just as valid.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use xact_fs::InodeOps;
use xact_layout::checksum::crc32c;
use xact_types::{Error, Ino, Result};

use crate::overlay::Overlay;
use crate::ranges::Ranges;
use crate::validation::offline_changes::OfflineChanges;
use crate::validation::permission::PermissionBasis;
use crate::validation::read_set::ReadSet;

/// A value that is not known in advance, and is not compared.
pub(super) const UNKNOWN: u64 = 0;
/// The value of an item that cannot be read, such as a name in a deleted folder.
const NONE: u64 = 1;
/// A value that was lost, and that no item has.
pub(super) const LOST: u64 = 2;
/// Set in all other values.
const SOME: u64 = 1 << 63;
/// Number of blocks that are read together.
const STEP_BLOCKS: u64 = 64;

#[derive(Debug, Clone)]
pub(super) enum Item<'a> {
    Inode(Ino),
    Name(Ino, &'a [u8]),
    /// The names of a folder without those in `Apart`.
    Listing(Ino, Rc<Apart<'a>>),
    /// These blocks of a file.
    Contents(Ino, Ranges),
    /// A file that the transaction truncates: its size and times.
    Cut(Ino),
    Xattr(Ino, &'a [u8]),
    Xattrs(Ino),
}

/// Names that do not count for the listings of their folders, since they are items of their own:
/// those that the transaction changes, and those of files that it changes; and names whose changes
/// were dropped.
#[derive(Debug)]
pub(super) struct Apart<'a> {
    overlay: &'a Overlay,
    reads: &'a ReadSet,
    files: BTreeSet<(Ino, &'a [u8])>,
}

impl<'a> Apart<'a> {
    fn of(overlay: &'a Overlay, reads: &'a ReadSet) -> Apart<'a> {
        let changed = overlay.nodes.iter().filter(|(_, node)| !node.born && node.is_changed());
        let places = changed.filter_map(|(ino, _)| reads.paths.place(*ino));
        let is_item = |dir: &Ino, name: &[u8]| reads.names.get(dir).is_some_and(|names| names.contains(name));
        Apart { overlay, reads, files: places.filter(|(dir, name)| is_item(dir, name)).collect() }
    }

    fn has(&self, dir: Ino, name: &[u8]) -> bool {
        self.overlay.nodes.get(&dir).is_some_and(|node| node.names.get(name).is_some())
            || self.files.contains(&(dir, name))
            || self.reads.is_dropped(dir, name)
    }
}

/// All items, in an order that the stored overlay and read set define.
pub(super) fn items<'a>(overlay: &'a Overlay, reads: &'a ReadSet, serializable: bool) -> Vec<Item<'a>> {
    let nothing = ReadSet::default();
    let old = || overlay.nodes.iter().filter(|(_, node)| !node.born);
    let mut inodes: BTreeSet<Ino> = old().map(|(ino, _)| *ino).collect();
    inodes.extend(reads.parents.keys().chain(&reads.emptied));
    let mut items = Vec::new();
    let mut contents: BTreeMap<Ino, Ranges> = BTreeMap::new();
    for (ino, node) in old() {
        items.extend(node.names.iter().map(|(name, _)| Item::Name(*ino, name)));
        items.extend(node.xattrs.keys().map(|name| Item::Xattr(*ino, name)));
        for at in node.file.blocks.keys() {
            contents.entry(*ino).or_default().insert(at.0.into()..u64::from(at.0) + 1);
        }
        items.extend(node.file.base_end.map(|_| Item::Cut(*ino)));
    }
    let apart = Rc::new(Apart::of(overlay, reads));
    let listing = |dir: &Ino| Item::Listing(*dir, apart.clone());
    items.extend(reads.emptied.iter().map(listing));
    let looked = if serializable { Some(reads) } else { None };
    looked.unwrap_or(&nothing).inodes(&mut inodes);
    if !serializable {
        let basis = PermissionBasis::of(overlay, reads);
        inodes.extend(basis.inodes());
        items.extend(basis.names.into_iter().map(|(folder, name)| Item::Name(folder, name)));
        items.extend(basis.lists.into_iter().map(|(ino, name)| Item::Xattr(ino, name)));
    }
    if let Some(reads) = looked {
        for (dir, names) in &reads.names {
            items.extend(names.iter().map(|name| Item::Name(*dir, name)));
        }
        items.extend(reads.listings.iter().map(listing));
        for (ino, blocks) in &reads.blocks {
            let all = contents.entry(*ino).or_default();
            blocks.iter().for_each(|range| all.insert(range));
        }
        for (ino, names) in &reads.xattrs {
            items.extend(names.iter().map(|name| Item::Xattr(*ino, name)));
        }
        items.extend(reads.xattr_lists.iter().map(|ino| Item::Xattrs(*ino)));
    }
    items.extend(contents.into_iter().map(|(ino, blocks)| Item::Contents(ino, blocks)));
    let inodes = inodes.into_iter().filter(|ino| overlay.nodes.get(ino).is_none_or(|node| !node.born));
    inodes.map(Item::Inode).chain(items).collect()
}

/// The item's value in `tree`. Errors come from the device only.
pub(super) fn value(item: &Item<'_>, tree: &mut impl InodeOps, block_size: u32) -> Result<u64> {
    match read_value(item, tree, block_size) {
        Err(Error::Posix(_) | Error::Corrupt(_)) => Ok(NONE),
        value => value,
    }
}

fn read_value(item: &Item<'_>, tree: &mut impl InodeOps, block_size: u32) -> Result<u64> {
    let mut sum = Sum::default();
    match item {
        Item::Inode(ino) => {
            let attr = tree.attr(*ino)?;
            sum.add(&[attr.kind.dirent_type()]);
            sum.add(&attr.generation.to_le_bytes());
            let born = attr.crtime.unwrap_or_default();
            sum.add(&born.secs.to_le_bytes());
            sum.add(&born.nanos.to_le_bytes());
        }
        Item::Name(dir, name) => {
            if let Some(entry) = tree.entry(*dir, name)? {
                sum.add(&entry.ino.0.to_le_bytes());
                sum.add(&[entry.kind.dirent_type()]);
            }
        }
        Item::Listing(dir, apart) => {
            let mut all = BTreeSet::new();
            tree.list(*dir, 0, &mut |item| {
                if !apart.has(*dir, item.name) {
                    all.insert((item.name.to_vec(), item.ino.0, item.kind.dirent_type()));
                }
                true
            })?;
            for (name, ino, kind) in all {
                sum.add(&name);
                sum.add(&[0, kind]);
                sum.add(&ino.to_le_bytes());
            }
        }
        Item::Contents(ino, blocks) => {
            let size = tree.attr(*ino)?.size;
            let bs = u64::from(block_size);
            let mut bytes = Vec::new();
            for range in blocks.iter() {
                let mut at = range.start;
                let end = range.end.min(size.div_ceil(bs));
                while at < end {
                    let step = STEP_BLOCKS.min(end - at);
                    bytes.clear();
                    tree.read(*ino, at * bs, (step * bs) as usize, &mut bytes)?;
                    sum.add(&at.to_le_bytes());
                    sum.add(&bytes);
                    at += step;
                }
            }
        }
        Item::Cut(ino) => {
            let attr = tree.attr(*ino)?;
            sum.add(&attr.size.to_le_bytes());
            for time in [attr.mtime, attr.ctime] {
                sum.add(&time.secs.to_le_bytes());
                sum.add(&time.nanos.to_le_bytes());
            }
        }
        Item::Xattr(ino, name) => {
            if let Some(value) = tree.xattr(*ino, name)? {
                sum.add(&[1]);
                sum.add(&value);
            }
        }
        Item::Xattrs(ino) => {
            let mut names = tree.list_xattrs(*ino)?;
            names.sort();
            for name in names {
                sum.add(&name);
                sum.add(&[0]);
            }
        }
    }
    Ok(sum.get())
}

#[derive(Default)]
struct Sum {
    crc: u32,
    /// Length in bytes; its low bits become part of the value.
    len: u64,
}

impl Sum {
    fn add(&mut self, bytes: &[u8]) {
        self.crc = crc32c(self.crc, bytes);
        self.len += bytes.len() as u64;
    }

    fn get(&self) -> u64 {
        SOME | (self.len & 0x7fff_ffff) << 32 | u64::from(self.crc)
    }
}

/// Compares the values, and adds changed items to `offline`.
pub(super) fn compare(items: &[Item<'_>], then: &[u64], now: &[u64], offline: &mut OfflineChanges) {
    let changed =
        items.iter().zip(then.iter().zip(now)).filter(|(_, (then, now))| **then != UNKNOWN && then != now);
    for (item, _) in changed {
        let _is_new = match item {
            Item::Inode(ino) => offline.gone.insert(*ino),
            Item::Name(dir, name) => offline.names.insert((*dir, name.to_vec())),
            Item::Listing(dir, ..) => offline.listings.insert(*dir),
            Item::Contents(ino, _) | Item::Cut(ino) => offline.contents.insert(*ino),
            Item::Xattr(ino, name) => offline.xattrs.insert((*ino, name.to_vec())),
            Item::Xattrs(ino) => offline.xattr_lists.insert(*ino),
        };
    }
}

/// Whether the value of an item after a commit of `part` is known in advance.
pub(super) fn is_foreseen(item: &Item<'_>, part: &Overlay) -> bool {
    !matches!(item, Item::Inode(ino) if part.nodes.get(ino).is_some_and(|node| node.born))
}

#[cfg(test)]
mod tests {
    use xact_fs::inode_ops::mem::MemTree;
    use xact_fs::{AttrChange, Caller, View, WriteHow};
    use xact_types::Timestamp;

    use super::*;
    use crate::mem_fs::MemFs;

    const BLOCK: u32 = 1024;
    const TIME: Timestamp = Timestamp { secs: 1_700_000_000, nanos: 5 };

    type Change = fn(&mut MemTree, Ino);

    /// A file of three blocks with an attribute, and its number.
    fn tree() -> (MemTree, Ino) {
        let base = MemFs::new(BLOCK);
        let ino = base.make_node(&Caller::ROOT, Ino::ROOT, b"file", 0o100_644, 0).unwrap().ino;
        base.write(ino, 0, &[7; 3 * BLOCK as usize], WriteHow::default()).unwrap();
        let mut tree = base.tree();
        tree.set_xattr(ino, b"user.a", Some(b"1")).unwrap();
        times(&mut tree, ino, TIME, TIME);
        (tree, ino)
    }

    fn times(tree: &mut MemTree, ino: Ino, mtime: Timestamp, ctime: Timestamp) {
        let change = AttrChange { mtime: Some(mtime), ctime: Some(ctime), ..AttrChange::default() };
        tree.set_attr(ino, &change).unwrap();
    }

    const fn later(secs: i64, nanos: u32) -> Timestamp {
        Timestamp { secs: TIME.secs + secs, nanos: TIME.nanos + nanos }
    }

    const CHANGES: [(&str, Change); 11] = [
        ("size", |tree, ino| {
            tree.set_size(ino, 3 * u64::from(BLOCK) + 1).unwrap();
            times(tree, ino, TIME, TIME);
        }),
        ("seconds of mtime", |tree, ino| times(tree, ino, later(1, 0), TIME)),
        ("nanoseconds of mtime", |tree, ino| times(tree, ino, later(0, 1), TIME)),
        ("seconds of ctime", |tree, ino| times(tree, ino, TIME, later(1, 0))),
        ("nanoseconds of ctime", |tree, ino| times(tree, ino, TIME, later(0, 1))),
        ("atime and mode", |tree, ino| {
            let change = AttrChange { atime: Some(later(9, 9)), perm: Some(0o600), ..AttrChange::default() };
            tree.set_attr(ino, &change).unwrap();
        }),
        ("block 0", |tree, ino| {
            tree.write(ino, 1, b"x").unwrap();
            times(tree, ino, TIME, TIME);
        }),
        ("block 2", |tree, ino| {
            tree.write(ino, 3 * u64::from(BLOCK) - 1, b"x").unwrap();
            times(tree, ino, TIME, TIME);
        }),
        ("value of user.a", |tree, ino| tree.set_xattr(ino, b"user.a", Some(b"2")).unwrap()),
        ("user.b", |tree, ino| tree.set_xattr(ino, b"user.b", Some(b"")).unwrap()),
        ("name", |tree, _| tree.remove_entry(Ino::ROOT, b"file").unwrap()),
    ];

    /// Each value changes with each thing that the item stands for, and with nothing else: an
    /// equal size hides no change, and others' changes cause no conflict.
    #[test]
    fn a_value_depends_on_what_its_item_stands_for() {
        let (tree, ino) = tree();
        let (overlay, reads) = (Overlay::default(), ReadSet::default());
        let apart = Rc::new(Apart::of(&overlay, &reads));
        let blocks = |from, to| {
            let mut blocks = Ranges::default();
            blocks.insert(from..to);
            blocks
        };
        let cut =
            ["size", "seconds of mtime", "nanoseconds of mtime", "seconds of ctime", "nanoseconds of ctime"];
        let items: [(Item<'_>, &[&str]); 9] = [
            (Item::Inode(ino), &[]),
            (Item::Cut(ino), &cut),
            (Item::Contents(ino, blocks(0, 1)), &["block 0"]),
            (Item::Contents(ino, blocks(1, 2)), &[]),
            (Item::Contents(ino, blocks(0, 3)), &["block 0", "block 2"]),
            (Item::Xattr(ino, b"user.a"), &["value of user.a"]),
            (Item::Xattrs(ino), &["user.b"]),
            (Item::Name(Ino::ROOT, b"file"), &["name"]),
            (Item::Listing(Ino::ROOT, apart), &["name"]),
        ];
        for (item, expected) in items {
            let value = |tree: &MemTree| value(&item, &mut tree.clone(), BLOCK).unwrap();
            let changed = CHANGES.into_iter().filter(|(_, change)| {
                let mut other = tree.clone();
                change(&mut other, ino);
                value(&other) != value(&tree)
            });
            let changed: Vec<&str> = changed.map(|(what, _)| what).collect();
            assert_eq!(changed, expected, "{item:?}");
        }
    }
}

//! The read set of a transaction, which its commit validates item by item.
//!
//! Only reads of the base are recorded; reads of the transaction's own changes do not depend on
//! others.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use xact_fs::{Attr, AttrSet, Stamp};
use xact_types::{Error, Ino, Result};

use super::offline_changes::{OfflineChanges, has_name};
use super::paths::{NAME_BYTES, Paths};
use crate::ranges::Ranges;

#[derive(Debug, Default, Clone)]
pub(crate) struct ReadSet {
    /// Attributes on which results depended, with the values of all attributes.
    pub attrs: BTreeMap<Ino, (AttrSet, Attr)>,
    /// Minimum sizes of files in bytes: data was read or written up to there.
    pub min_sizes: BTreeMap<Ino, u64>,
    /// Blocks of files that were read.
    pub blocks: BTreeMap<Ino, Ranges>,
    /// Names that were looked up, present or not.
    pub names: NamesOfInodes,
    /// Directories that were listed.
    pub listings: BTreeSet<Ino>,
    /// Directories that had to be empty. Like `parents`, the shape of the tree depends on them, so
    /// they are validated under snapshot isolation, too.
    pub emptied: BTreeSet<Ino>,
    /// The target of `..` of folders.
    pub parents: BTreeMap<Ino, Ino>,
    pub xattrs: NamesOfInodes,
    pub xattr_lists: BTreeSet<Ino>,
    /// For written files, the stamp up to which the changes of others were compared with the
    /// transaction's own. These comparisons are not reads.
    pub compared: HashMap<Ino, Stamp>,
    /// The names by which inodes were last found, for paths in messages.
    pub paths: Paths,
    /// Names whose changes were dropped. Changes of them by others do not count for listings of
    /// their folders that were made before.
    pub dropped: BTreeSet<(Ino, Vec<u8>)>,
    /// Changes found when the transaction was reopened (see `persisted`).
    pub offline: OfflineChanges,
    /// Memory of `names` and `xattrs` in bytes, and the number of ranges in `blocks`.
    pub name_bytes: usize,
    pub block_ranges: usize,
    /// Folders and inodes with too many names or attributes to record each.
    pub coarse_names: BTreeSet<Ino>,
    pub coarse_xattrs: BTreeSet<Ino>,
    /// The read set was coarsened. Then some names by which inodes were found are missing, so the
    /// basis of permissions cannot be separated from other reads: all reads are validated, under
    /// every isolation.
    pub is_coarse: bool,
    /// Memory after the last coarsening, in bytes.
    pub coarse_bytes: usize,
}

// Memory of an entry in bytes, including its share of the tree's nodes and of the allocator's
// rounding.
const ATTR_BYTES: usize = 320;
const NUMBER_BYTES: usize = 32;
const RANGES_BYTES: usize = 96;

/// Maximum number of names of one folder, attributes of one inode or ranges of one file that a
/// coarsening keeps separate.
const FEW: usize = 16;
/// Growth in bytes after which the read set may be coarsened again.
const GROWTH: usize = 64 << 10;

/// Names of entries or attributes, by inode.
type NamesOfInodes = BTreeMap<Ino, BTreeSet<Vec<u8>>>;

/// Returns the bytes of memory that a new name takes; 0 for a known one.
fn add_name(names: &mut NamesOfInodes, ino: Ino, name: &[u8]) -> usize {
    let names = names.entry(ino).or_default();
    if names.contains(name) {
        return 0;
    }
    names.insert(name.to_vec());
    name.len() + NAME_BYTES
}

/// Removes the inodes with more than [`FEW`] names, and returns them.
fn take_many(names: &mut NamesOfInodes) -> Vec<Ino> {
    let many = names.iter().filter(|(_, names)| names.len() > FEW).map(|(ino, _)| *ino);
    let many: Vec<Ino> = many.collect();
    names.retain(|_, names| names.len() <= FEW);
    many
}

/// Whether a set of names has one of this inode.
fn has_any(names: &BTreeSet<(Ino, Vec<u8>)>, ino: Ino) -> bool {
    names.range((ino, Vec::new())..).next().is_some_and(|(of, _)| *of == ino)
}

impl ReadSet {
    pub fn name(&mut self, dir: Ino, name: &[u8]) {
        // The folder counts as listed, which includes each name.
        if self.coarse_names.contains(&dir) {
            return;
        }
        self.name_bytes += add_name(&mut self.names, dir, name);
    }

    pub fn xattr(&mut self, ino: Ino, name: &[u8]) {
        if self.coarse_xattrs.contains(&ino) {
            return;
        }
        self.name_bytes += add_name(&mut self.xattrs, ino, name);
    }

    /// Records reads of file blocks.
    pub fn blocks(&mut self, ino: Ino, range: Range<u64>) {
        let ranges = self.blocks.entry(ino).or_default();
        let before = ranges.len();
        ranges.insert(range);
        self.block_ranges = self.block_ranges + ranges.len() - before;
    }

    /// Approximate memory in bytes.
    pub fn bytes(&self) -> usize {
        let numbers = self.min_sizes.len()
            + self.listings.len()
            + self.emptied.len()
            + self.parents.len()
            + self.xattr_lists.len()
            + self.compared.len()
            + self.coarse_names.len()
            + self.coarse_xattrs.len()
            + self.dropped.len() * 4
            + self.block_ranges;
        let maps = self.blocks.len() + self.names.len() + self.xattrs.len();
        self.attrs.len() * ATTR_BYTES
            + numbers * NUMBER_BYTES
            + maps * RANGES_BYTES
            + self.name_bytes
            + self.paths.bytes
    }

    /// Coarsens the read set to use less memory: then more changes of others are conflicts, but
    /// never fewer.
    ///
    /// - Many names of one folder: the folder counts as listed, and any change of a name in it is a
    ///   conflict.
    /// - Many attributes of one inode: all of its attributes.
    /// - Many ranges of one file: all blocks from the first to the last.
    /// - Names by which inodes were found: only those of `wanted` and of the folders above stay,
    ///   because the others are only for messages.
    ///
    /// Changes found when the transaction was reopened are recorded by name; they then count for
    /// the whole folder or inode, too.
    pub fn coarsen(&mut self, wanted: impl Iterator<Item = Ino>) {
        let ReadSet { names, xattrs, listings, xattr_lists, offline, .. } = self;
        for dir in take_many(names) {
            listings.insert(dir);
            self.coarse_names.insert(dir);
            if has_any(&offline.names, dir) {
                offline.listings.insert(dir);
            }
        }
        for ino in take_many(xattrs) {
            xattr_lists.insert(ino);
            self.coarse_xattrs.insert(ino);
            if has_any(&offline.xattrs, ino) {
                offline.xattr_lists.insert(ino);
            }
        }
        for ranges in self.blocks.values_mut().filter(|ranges| ranges.len() > FEW) {
            ranges.fill();
        }
        self.paths.keep_above(wanted);
        self.recount();
        self.is_coarse = true;
        self.coarse_bytes = self.bytes();
    }

    /// Whether the read set has grown enough since the last coarsening for another one.
    pub fn may_coarsen(&self) -> bool {
        self.bytes() > self.coarse_bytes + (self.coarse_bytes / 4).max(GROWTH)
    }

    pub fn recount(&mut self) {
        let bytes = |names: &NamesOfInodes| -> usize {
            names.values().flatten().map(|name| name.len() + NAME_BYTES).sum()
        };
        self.name_bytes = bytes(&self.names) + bytes(&self.xattrs);
        self.block_ranges = self.blocks.values().map(Ranges::len).sum();
    }

    /// Records a listing of a folder.
    pub fn listing(&mut self, dir: Ino) {
        self.listings.insert(dir);
        // It has shown the names as they were, so changes of any of them count from now on.
        if has_any(&self.dropped, dir) {
            self.dropped.retain(|(of, _)| *of != dir);
        }
    }

    pub fn is_dropped(&self, dir: Ino, name: &[u8]) -> bool {
        has_name(&self.dropped, dir, name)
    }

    /// Forgets what was read of a name whose change is dropped.
    pub fn drop_name(&mut self, dir: Ino, name: &[u8]) {
        if let Some(names) = self.names.get_mut(&dir) {
            names.remove(name);
            if names.is_empty() {
                self.names.remove(&dir);
            }
        }
        let at = (dir, name.to_vec());
        self.offline.names.remove(&at);
        self.dropped.insert(at);
    }

    /// Forgets what was read of an inode whose changes are dropped.
    pub fn drop_inode(&mut self, ino: Ino) {
        self.attrs.remove(&ino);
        self.min_sizes.remove(&ino);
        self.blocks.remove(&ino);
        self.listings.remove(&ino);
        self.emptied.remove(&ino);
        self.xattrs.remove(&ino);
        self.xattr_lists.remove(&ino);
        self.compared.remove(&ino);
        self.offline.contents.remove(&ino);
        self.offline.listings.remove(&ino);
        self.offline.xattr_lists.remove(&ino);
        self.offline.xattrs.retain(|(of, _)| *of != ino);
        if let Some((dir, name)) = self.paths.place(ino).map(|(dir, name)| (dir, name.to_vec())) {
            self.drop_name(dir, &name);
        }
    }

    pub fn min_size(&mut self, ino: Ino, size: u64) {
        let min = self.min_sizes.entry(ino).or_default();
        *min = size.max(*min);
    }

    /// Gives inodes other numbers.
    pub fn renumber(&mut self, now: impl Fn(Ino) -> Ino) {
        fn keys<V>(map: &mut BTreeMap<Ino, V>, now: impl Fn(Ino) -> Ino) {
            *map = std::mem::take(map).into_iter().map(|(ino, value)| (now(ino), value)).collect();
        }
        fn inodes(set: &mut BTreeSet<Ino>, now: impl Fn(Ino) -> Ino) {
            *set = std::mem::take(set).into_iter().map(now).collect();
        }
        fn named(set: &mut BTreeSet<(Ino, Vec<u8>)>, now: impl Fn(Ino) -> Ino) {
            *set = std::mem::take(set).into_iter().map(|(ino, name)| (now(ino), name)).collect();
        }
        keys(&mut self.attrs, &now);
        keys(&mut self.min_sizes, &now);
        keys(&mut self.blocks, &now);
        keys(&mut self.names, &now);
        keys(&mut self.xattrs, &now);
        keys(&mut self.parents, &now);
        self.parents.values_mut().for_each(|parent| *parent = now(*parent));
        let OfflineChanges { gone: _, names, listings, contents, xattrs, xattr_lists } = &mut self.offline;
        let sets =
            [&mut self.listings, &mut self.emptied, &mut self.xattr_lists, listings, contents, xattr_lists];
        sets.into_iter().for_each(|set| inodes(set, &now));
        [&mut self.dropped, names, xattrs].into_iter().for_each(|set| named(set, &now));
    }

    /// Moves the read set to a new view after a partial commit. The commit has validated all reads
    /// under the locks under which the view was opened, so they are valid as of that view, with its
    /// attributes. Items that the commit has deleted are dropped. Inodes for which `stays` returns
    /// true were left out of that, and keep their attributes.
    pub fn rebase(
        &mut self,
        stays: impl Fn(Ino) -> bool,
        attr: impl Fn(Ino) -> Result<Attr>,
        parent: impl Fn(Ino) -> Result<Ino>,
    ) {
        let there = |ino: &Ino| stays(*ino) || attr(*ino).is_ok();
        self.attrs.retain(|ino, (_, was)| stays(*ino) || attr(*ino).map(|now| *was = now).is_ok());
        self.min_sizes
            .retain(|ino, min| stays(*ino) || attr(*ino).map(|now| *min = now.size.min(*min)).is_ok());
        self.blocks.retain(|ino, _| there(ino));
        self.names.retain(|ino, _| there(ino));
        self.listings.retain(there);
        self.emptied.retain(there);
        self.parents.retain(|dir, was| match parent(*dir) {
            Ok(now) => {
                *was = now;
                true
            }
            // A pinned folder, whose old view has expired; it was compared by its value.
            Err(Error::TooOld) => true,
            Err(_) => false,
        });
        self.xattrs.retain(|ino, _| there(ino));
        self.xattr_lists.retain(there);
        self.recount();
    }

    /// A number that grows with every recorded item.
    pub fn weight(&self) -> usize {
        let names = |map: &NamesOfInodes| map.values().map(BTreeSet::len).sum::<usize>();
        let attrs = self.attrs.values().map(|(attrs, _)| attrs.bits().count_ones() as usize).sum::<usize>();
        let blocks =
            self.blocks.values().flat_map(Ranges::iter).map(|range| (range.end - range.start) as usize);
        attrs
            + blocks.sum::<usize>()
            + names(&self.names)
            + names(&self.xattrs)
            + self.min_sizes.len()
            + self.listings.len()
            + self.emptied.len()
            + self.parents.len()
            + self.xattr_lists.len()
    }

    /// Inodes whose state is validated.
    pub fn inodes(&self, out: &mut BTreeSet<Ino>) {
        out.extend(self.attrs.keys());
        out.extend(self.min_sizes.keys());
        out.extend(self.blocks.keys());
        out.extend(self.names.keys());
        out.extend(&self.listings);
        out.extend(&self.emptied);
        out.extend(self.parents.keys());
        out.extend(self.xattrs.keys());
        out.extend(&self.xattr_lists);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The counters of all kinds of items agree with a recount.
    #[test]
    fn counters_agree_with_a_recount() {
        let mut reads = ReadSet::default();
        for n in 0..500_u32 {
            let name = vec![b'n'; 1 + n as usize % 200];
            reads.name(Ino(2 + n % 3), &name);
            reads.xattr(Ino(12 + n % 7), &name);
            reads.blocks(Ino(12 + n % 5), u64::from(n * 3 % 97)..u64::from(n * 3 % 97 + 1 + n % 4));
            reads.paths.met(Ino(2), &name, Ino(20 + n % 50));
        }
        let (bytes, paths) = (reads.bytes(), reads.paths.bytes);
        reads.recount();
        assert_eq!(reads.bytes(), bytes);
        assert_eq!(paths, reads.paths.iter().map(|(_, _, name)| name.len() + NAME_BYTES).sum::<usize>());
        assert_eq!(reads.block_ranges, reads.blocks.values().flat_map(Ranges::iter).count());
    }

    #[test]
    fn coarser_is_less_memory_and_nothing_less() {
        let mut reads = ReadSet::default();
        for n in 0..1000_u32 {
            reads.name(Ino(11), &n.to_le_bytes());
            reads.xattr(Ino(12), &n.to_le_bytes());
            reads.blocks(Ino(13), u64::from(10 + 2 * n)..u64::from(11 + 2 * n));
            reads.paths.met(Ino(11), &n.to_le_bytes(), Ino(100 + n));
        }
        reads.name(Ino(14), b"alone");
        reads.blocks(Ino(15), 1..2);
        reads.blocks(Ino(15), 8..9);
        reads.paths.met(Ino::ROOT, b"a", Ino(11));
        reads.offline.names.insert((Ino(11), b"gone".to_vec()));
        reads.offline.xattrs.insert((Ino(13), b"other".to_vec()));
        let before = reads.bytes();
        reads.coarsen([Ino(105)].into_iter());
        assert!(reads.bytes() < before / 20, "{} of {before}", reads.bytes());
        assert!(reads.listings.contains(&Ino(11)) && !reads.names.contains_key(&Ino(11)));
        assert!(reads.offline.listings.contains(&Ino(11)) && !reads.offline.xattr_lists.contains(&Ino(12)));
        assert!(reads.xattr_lists.contains(&Ino(12)));
        let one = 10..2009;
        assert!(reads.blocks[&Ino(13)].iter().eq([one]));
        // Small sets stay exact.
        assert!(reads.names[&Ino(14)].contains(&b"alone"[..]) && !reads.listings.contains(&Ino(14)));
        assert_eq!(reads.blocks[&Ino(15)].len(), 2);
        assert_eq!(reads.paths.of(Ino(105)), format!("/a/{}", String::from_utf8_lossy(&5_u32.to_le_bytes())));
        assert_eq!(reads.paths.of(Ino(106)), "<inode 106>");
        // Names of a folder that counts as listed are not recorded again.
        let after = reads.bytes();
        reads.name(Ino(11), b"another");
        assert_eq!(reads.bytes(), after);
    }
}

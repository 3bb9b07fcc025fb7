//! Step 3: directories, block by block: entries, `.` and `..`, hash indexes.

use std::collections::HashSet;

use xact_layout::dirent::{DirEntry, DirFormat, Dots, ENTRY_MIN_BYTES};
use xact_layout::dirhash::DirHasher;
use xact_layout::feature::incompat;
use xact_layout::get_u32;
use xact_layout::htree::Index;
use xact_layout::inode::{BLOCK_AREA_BYTES, Inode, flag};
use xact_layout::xattr::{Value, entries_in_body, index};
use xact_types::{BlockNr, Ino, Result, Site};

use super::Checker;
use super::found::DIRECTORY_TYPE;
use super::map::Mapped;

/// A folder ends here without `large_dir`.
const SMALL_DIR_BYTES: u64 = 1 << 31;
/// Offsets in an entry.
const TYPE_AT: usize = 7;
const NAME_AT: usize = 8;
/// The offset of an inline directory's entries.
const INLINE_ENTRIES_AT: usize = 4;

/// A directory to read.
pub(crate) struct Directory {
    pub ino: Ino,
    pub(super) generation: u32,
    pub(super) flags: u32,
    pub(super) mapped: Mapped,
    /// The inode that `..` names.
    pub dotdot: Option<Ino>,
}

impl Directory {
    pub fn new(ino: Ino, inode: &Inode, mapped: Mapped) -> Directory {
        let (generation, flags) = (inode.generation(), inode.flags());
        Directory { ino, generation, flags, mapped, dotdot: None }
    }
}

/// The findings while one directory is read.
struct Reading {
    ino: Ino,
    format: DirFormat,
    names: HashSet<Vec<u8>>,
    dotdot: Option<Ino>,
}

/// The hashes that a leaf may have, both ends included.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    low: u32,
    high: u32,
}

impl Bounds {
    const ALL: Bounds = Bounds { low: 0, high: u32::MAX };

    /// The bounds of one branch within those of its index block. `own`: the hash with which it
    /// begins, which the first branch does not store; `next`: that of the next branch.
    fn of_branch(self, own: Option<u32>, next: Option<u32>) -> Bounds {
        // The lowest bit says that the branch continues with the last hash of the one before.
        let high = next.map_or(self.high, |next| match next & 1 {
            0 => next.saturating_sub(1),
            _ => next & !1,
        });
        Bounds { low: own.map_or(self.low, |own| own & !1), high }
    }

    /// Whether a branch with these bounds may be in an index block with the bounds `outer`.
    fn fit_in(self, outer: Bounds) -> bool {
        self.low >= outer.low && self.low <= outer.high && self.low <= self.high
    }

    fn contain(self, hash: u32) -> bool {
        (self.low..=self.high).contains(&hash)
    }
}

impl Checker<'_> {
    pub(crate) fn check_directories(&mut self) -> Result<()> {
        let mut directories = std::mem::take(&mut self.directories);
        let count = directories.len();
        for (at, directory) in directories.iter_mut().enumerate() {
            if at % 64 == 0 {
                (self.progress)("directories", at as f64 / count as f64);
            }
            self.check_directory(directory)?;
        }
        self.directories = directories;
        Ok(())
    }

    fn check_directory(&mut self, directory: &mut Directory) -> Result<()> {
        let ino = directory.ino;
        let format = DirFormat::new(&self.volume.sb, ino, directory.generation);
        let mut reading = Reading { ino, format, names: HashSet::new(), dotdot: None };
        if directory.flags & flag::INLINE_DATA != 0 {
            self.check_inline_directory(&mut reading)?;
        } else {
            self.check_extent_of(directory);
            if directory.flags & flag::INDEX != 0 {
                self.check_index(directory, &mut reading)?;
            } else {
                for (at, block) in directory.mapped.blocks() {
                    self.check_leaf(&mut reading, at, block, None)?;
                }
            }
        }
        directory.dotdot = reading.dotdot;
        Ok(())
    }

    /// A folder has no holes, and an end.
    fn check_extent_of(&mut self, directory: &Directory) {
        let site = Site::Inode(directory.ino);
        let mapped = &directory.mapped;
        if let Some(at) = mapped.first_hole() {
            self.report.problem(site, format!("is a folder with a hole at file block {at}"));
        }
        let bytes = mapped.end * u64::from(self.volume.sb.block_size());
        if bytes > SMALL_DIR_BYTES && !self.volume.sb.has_incompat(incompat::LARGEDIR) {
            self.report.problem(site, "is a folder with blocks behind the largest size of one");
        }
    }

    fn dir_block(&mut self, directory: &Directory, at: u32) -> Result<Option<(BlockNr, Vec<u8>)>> {
        let result = self.file_block(directory.ino, &directory.mapped, at);
        self.report.note(result)
    }

    /// A block of entries, which is file block `at`.
    fn check_leaf(
        &mut self,
        reading: &mut Reading,
        at: u32,
        block: BlockNr,
        bounds: Option<(Bounds, &DirHasher)>,
    ) -> Result<()> {
        let bytes = self.volume.block(block)?;
        let site = Site::Block(block);
        if self.report.note(reading.format.verify(&bytes, site))?.is_none() {
            return Ok(());
        }
        let mut from = 0;
        if at == 0 {
            match self.report.note(reading.format.dots(&bytes, reading.ino, site))? {
                Some(dots) => {
                    self.check_dots(reading, &bytes, &dots, site);
                    self.found_dots(reading, dots.parent);
                    from = dots.next;
                }
                None => return Ok(()),
            }
        }
        for item in reading.format.entries(&bytes, from, site) {
            let Some((entry_at, entry)) = self.report.note(item)? else { break };
            if let Some((bounds, hasher)) = bounds
                && !bounds.contain(hasher.hash(entry.name).major)
            {
                self.report.problem(site, "a name is in a leaf of the index where its hash does not belong");
            }
            if !reading.format.has_types() && bytes[entry_at + TYPE_AT] != 0 {
                self.report.problem(site, "an entry has a type on a volume without types of entries");
            }
            self.found_entry(reading, &entry, site);
        }
        Ok(())
    }

    /// `.` and `..` of a first block: their types, the zero behind each, and no space behind `.`.
    fn check_dots(&mut self, reading: &Reading, bytes: &[u8], dots: &Dots, site: Site) {
        let is_typed = |at: usize| {
            let file_type = if reading.format.has_types() { DIRECTORY_TYPE } else { 0 };
            bytes[at + TYPE_AT] == file_type
        };
        if !is_typed(0) || !is_typed(dots.parent_at) {
            self.report.problem(site, "'.' or '..' has another type than a folder");
        }
        if bytes[NAME_AT + 1] != 0 || bytes[dots.parent_at + NAME_AT + 2] != 0 {
            self.report.problem(site, "the name '.' or '..' does not end with a zero");
        }
        if dots.parent_at > 2 * ENTRY_MIN_BYTES {
            self.report.problem(site, "the entry '.' has space for another");
        }
    }

    fn found_dots(&mut self, reading: &mut Reading, parent: Ino) {
        reading.dotdot = Some(parent);
        for ino in [reading.ino, parent] {
            if let Some(seen) = self.seen.used_mut(ino) {
                seen.refs += 1;
            }
        }
    }

    fn found_entry(&mut self, reading: &mut Reading, entry: &DirEntry<'_>, site: Site) {
        let name = String::from_utf8_lossy(entry.name);
        if entry.name.iter().any(|&byte| byte == 0 || byte == b'/') || matches!(entry.name, b"." | b"..") {
            self.report.problem(site, format!("invalid name '{name}'"));
        }
        if !reading.names.insert(entry.name.to_vec()) {
            self.report.problem(site, format!("the name '{name}' is there twice"));
        }
        let ino = entry.ino;
        let seen = match self.seen.used_mut(ino) {
            Some(seen) if !seen.internal && ino != Ino::ROOT => {
                seen.refs += 1;
                *seen
            }
            _ => {
                self.report.problem(site, format!("'{name}' leads to {ino}, which no name may lead to"));
                return;
            }
        };
        if reading.format.has_types() && entry.file_type != seen.file_type {
            self.report.problem(site, format!("'{name}' has another type than {ino}"));
        }
        if seen.file_type == DIRECTORY_TYPE {
            self.child_of(ino, reading.ino, site);
        }
    }

    /// Notes the directory that names a directory.
    fn child_of(&mut self, child: Ino, parent: Ino, site: Site) {
        if self.parents.insert(child, parent).is_some() {
            self.report.problem(site, format!("{child} is a directory and has two names"));
        }
    }

    /// An indexed directory: every block is an index block or a leaf, and reached once.
    fn check_index(&mut self, directory: &Directory, reading: &mut Reading) -> Result<()> {
        let Some((block, bytes)) = self.dir_block(directory, 0)? else { return Ok(()) };
        let root = Index::root(&reading.format, &bytes, reading.ino, Site::Block(block));
        let Some((info, index)) = self.report.note(root)? else { return Ok(()) };
        let dots = Dots { parent: info.parent, parent_at: ENTRY_MIN_BYTES, next: bytes.len() };
        self.check_dots(reading, &bytes, &dots, Site::Block(block));
        self.found_dots(reading, info.parent);
        let hasher = DirHasher::new(&self.volume.sb, info.hash_version);
        let mut reached = HashSet::from([0]);
        let mut walk = IndexWalk { directory, reading, hasher: &hasher, reached: &mut reached };
        self.walk_index(&mut walk, &index, &bytes, block, u32::from(info.levels), Bounds::ALL)?;
        if let Some((at, _)) = directory.mapped.blocks().find(|(at, _)| !reached.contains(at)) {
            let what = format!("file block {at} is not in its hash index");
            self.report.problem(Site::Inode(directory.ino), what);
        }
        Ok(())
    }

    fn walk_index(
        &mut self,
        walk: &mut IndexWalk<'_, '_>,
        index: &Index,
        bytes: &[u8],
        block: BlockNr,
        levels: u32,
        bounds: Bounds,
    ) -> Result<()> {
        for at in 0..index.count() {
            let own = (at > 0).then(|| index.hash(bytes, at));
            let next = (at + 1 < index.count()).then(|| index.hash(bytes, at + 1));
            let inner = bounds.of_branch(own, next);
            if !inner.fit_in(bounds) {
                self.report.problem(Site::Block(block), "hash index is out of order");
            }
            let child = index.block(bytes, at).0;
            let Some(child_block) = Self::place(&walk.directory.mapped, child) else {
                self.report.problem(Site::Block(block), "hash index leads out of the directory");
                continue;
            };
            if !walk.reached.insert(child) {
                self.report.problem(Site::Block(block), "hash index leads to a block more than once");
                continue;
            }
            if levels == 0 {
                self.check_leaf(walk.reading, child, child_block, Some((inner, walk.hasher)))?;
                continue;
            }
            let child_bytes = self.volume.block(child_block)?;
            let node = Index::node(&walk.reading.format, &child_bytes, Site::Block(child_block));
            if let Some(node) = self.report.note(node)? {
                self.walk_index(walk, &node, &child_bytes, child_block, levels - 1, inner)?;
            }
        }
        Ok(())
    }

    fn check_inline_directory(&mut self, reading: &mut Reading) -> Result<()> {
        let site = Site::Inode(reading.ino);
        let Some(inode) = self.volume.inode(reading.ino)? else { return Ok(()) };
        self.found_dots(reading, Ino(get_u32(inode.block_area(), 0)));
        for part in inline_entries(&inode) {
            let format = reading.format;
            for entry in format.entries_of_area(&part, site) {
                let Some(entry) = self.report.note(entry)? else { break };
                self.found_entry(reading, &entry, site);
            }
        }
        Ok(())
    }

    /// Size and attribute of an inode that holds its contents itself.
    pub(crate) fn check_inline(&mut self, ino: Ino, inode: &Inode) -> Result<()> {
        let site = Site::Inode(ino);
        let Some(rest) = inline_rest(inode) else {
            self.report.problem(site, "holds its contents itself, and has no attribute for them");
            return Ok(());
        };
        let room = (BLOCK_AREA_BYTES + rest.len()) as u64;
        // A regular file reads as zeros behind its bytes; `mke2fs -d` makes such files of holes.
        if !inode.is_regular() && inode.size() != room {
            self.report.problem(site, format!("its size of {} bytes does not fit its inode", inode.size()));
        }
        Ok(())
    }
}

/// The two areas of an inline directory that hold entries.
pub(super) fn inline_entries(inode: &Inode) -> [Vec<u8>; 2] {
    [inode.block_area()[INLINE_ENTRIES_AT..].to_vec(), inline_rest(inode).unwrap_or_default()]
}

struct IndexWalk<'w, 'd> {
    directory: &'d Directory,
    reading: &'w mut Reading,
    hasher: &'w DirHasher,
    /// File blocks.
    reached: &'w mut HashSet<u32>,
}

/// The value of `system.data` in the inode's body; `None` if it has none.
fn inline_rest(inode: &Inode) -> Option<Vec<u8>> {
    let entries = entries_in_body(inode.xattr_area()).ok()?;
    for entry in entries {
        let entry = entry.ok()?;
        if (entry.index, entry.name) == (index::SYSTEM, b"data") {
            return match entry.value {
                Value::Here(value) => Some(value.to_vec()),
                Value::InInode { .. } => None,
            };
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The hashes of names have 0 in the lowest bit.
    const HASHES: [u32; 5] = [0, 2, 4, 6, u32::MAX - 1];

    /// Ways to divide sorted hashes among four leaves of one or two names each.
    fn leaves(so_far: &mut Vec<Vec<u32>>, each: &mut dyn FnMut(&[Vec<u32>])) {
        if so_far.len() == 4 {
            return each(so_far);
        }
        let from = so_far.last().map_or(0, |leaf| leaf[leaf.len() - 1]);
        for first in HASHES.into_iter().filter(|hash| *hash >= from) {
            for second in HASHES.into_iter().filter(|hash| *hash >= first) {
                so_far.push(vec![first, second]);
                leaves(so_far, each);
                so_far.pop();
            }
        }
    }

    /// The bounds of four branches in two nodes, the second of which begins with branch `second`.
    /// `None`: the index is out of order.
    fn bounds_of(branches: &[u32], second: usize) -> Option<Vec<Bounds>> {
        let mut all = Vec::new();
        for (node, part) in [&branches[..second], &branches[second..]].into_iter().enumerate() {
            let border = branches[second];
            let outer = match node {
                0 => Bounds::ALL.of_branch(None, Some(border)),
                _ => Bounds::ALL.of_branch(Some(border), None),
            };
            let mut sound = outer.fit_in(Bounds::ALL);
            for at in 0..part.len() {
                let own = (at > 0).then(|| part[at]);
                let inner = outer.of_branch(own, part.get(at + 1).copied());
                sound &= inner.fit_in(outer);
                all.push(inner);
            }
            if !sound {
                return None;
            }
        }
        Some(all)
    }

    /// Every way to divide names is accepted, wherever a node ends and whichever leaves share a
    /// hash. A leaf takes exactly the hashes between its first one and that of the next leaf, and
    /// this one too if the next leaf continues with it.
    #[test]
    fn a_leaf_takes_the_hashes_up_to_the_next_leaf() {
        let mut ways = 0;
        leaves(&mut Vec::new(), &mut |leaves| {
            let continues = |at: usize| at > 0 && leaves[at - 1][1] == leaves[at][0];
            let branches: Vec<u32> =
                (0..leaves.len()).map(|at| leaves[at][0] | u32::from(continues(at))).collect();
            for second in 1..leaves.len() {
                let all = bounds_of(&branches, second);
                let all = all.unwrap_or_else(|| panic!("{leaves:?}, node from {second}: out of order"));
                for (at, bounds) in all.iter().enumerate() {
                    for hash in HASHES {
                        let begins = at == 0 || hash >= leaves[at][0];
                        let ends = leaves
                            .get(at + 1)
                            .is_none_or(|next| hash < next[0] || hash == next[0] && continues(at + 1));
                        let what = format!("{leaves:?}, node from {second}, leaf {at}, hash {hash}");
                        assert_eq!(bounds.contain(hash), begins && ends, "{what}");
                    }
                }
                ways += 1;
            }
        });
        assert!(ways > 1000, "{ways}");
    }

    #[test]
    fn falling_branches_are_out_of_order() {
        for at in 1..3 {
            for second in 1..4 {
                let mut branches = [0, 2, 4, 6];
                branches.swap(at, at + 1);
                assert!(bounds_of(&branches, second).is_none(), "{branches:?}, node from {second}");
            }
        }
    }
}

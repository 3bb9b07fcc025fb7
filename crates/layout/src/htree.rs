//! Index blocks of a directory: a tree over the hashes of the names (`struct dx_root`, `dx_node`).
//!
//! ```text
//! root, file block 0                       node
//!  0  . with rec_len 12                     0  unused entry over the whole block
//! 12  .. over the rest of the block         8  entries
//! 24  0                 u32
//! 28  hash_version      u8
//! 29  info_length       u8   8
//! 30  indirect_levels   u8   nodes between root and leaves
//! 31  unused_flags      u8
//! 32  entries
//!
//! entry 0:  limit u16, count u16, block u32       other entries:  hash u32, block u32
//! tail behind the last possible entry, with metadata_csum:  0 u32, checksum u32
//! ```
//!
//! So a reader without support for indexes sees blocks without names. Entry `i` leads to the names
//! whose hash is at least its own and below that of entry `i + 1`; entry 0 has no hash of its own.
//! The lowest bit of a hash says that the previous leaf also has names with this hash.

use xact_types::{Error, FileBlock, Ino, Result, Site};

use crate::checksum::crc32c;
use crate::dirent::{DirFormat, ENTRY_MIN_BYTES, HEADER_BYTES};
use crate::dirhash::HashVersion;
use crate::{get_u16, get_u32, put_u16, put_u32};

/// The most index blocks on the way to a leaf (`EXT4_HTREE_LEVEL`): the root and two nodes.
pub const MAX_DEPTH: usize = 3;
/// The same without the feature `large_dir` (`EXT4_HTREE_LEVEL_COMPAT`).
pub const MAX_DEPTH_SMALL: usize = 2;

const INFO_AT: usize = 24;
const INFO_BYTES: usize = 8;
const ROOT_ENTRIES_AT: usize = INFO_AT + INFO_BYTES;
const NODE_ENTRIES_AT: usize = HEADER_BYTES;
const ENTRY_BYTES: usize = 8;
const TAIL_BYTES: usize = 8;
/// The upper bits of a block number are reserved (`dx_get_block`).
const BLOCK_MASK: u32 = 0x0FFF_FFFF;

/// A way down from an index block: names with `hash` and more are in `block`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Branch {
    pub hash: u32,
    pub block: FileBlock,
}

/// The fields of an index root in addition to its branches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RootInfo {
    pub parent: Ino,
    pub hash_version: HashVersion,
    /// Levels of nodes between the root and the leaves, below [`DirFormat::index_depth_max`].
    pub levels: u8,
}

/// The positions of the branches in an index block. Its methods are for the block that it was read
/// from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Index {
    entries_at: usize,
    count: usize,
    limit: usize,
}

impl Index {
    /// Reads file block 0 of an indexed directory.
    pub fn root(format: &DirFormat, bytes: &[u8], own: Ino, site: Site) -> Result<(RootInfo, Index)> {
        let corrupt = |what| Err(Error::corrupt(site, what));
        let dots = format.dots_before(bytes, own, format.block_size(), site)?;
        if dots.parent_at != ENTRY_MIN_BYTES || dots.next != format.block_size() {
            return corrupt("root of the hash index does not look like an empty directory");
        }
        if get_u32(bytes, INFO_AT) != 0 || usize::from(bytes[INFO_AT + 5]) != INFO_BYTES {
            return corrupt("header of the hash index is invalid");
        }
        if bytes[INFO_AT + 7] & 1 != 0 {
            return corrupt("hash index has unknown flags");
        }
        let levels = bytes[INFO_AT + 6];
        if usize::from(levels) >= format.index_depth_max() {
            return corrupt("hash index is too deep");
        }
        let index = Index::at(format, bytes, ROOT_ENTRIES_AT, site)?;
        let Some(hash_version) = HashVersion::from_disk(bytes[INFO_AT + 4]) else {
            return corrupt("unknown hash of a directory");
        };
        Ok((RootInfo { parent: dots.parent, hash_version, levels }, index))
    }

    /// Reads an index block below the root.
    pub fn node(format: &DirFormat, bytes: &[u8], site: Site) -> Result<Index> {
        if !is_node(format, bytes) {
            return Err(Error::corrupt(site, "node of the hash index does not look like an empty block"));
        }
        Index::at(format, bytes, NODE_ENTRIES_AT, site)
    }

    fn at(format: &DirFormat, bytes: &[u8], entries_at: usize, site: Site) -> Result<Index> {
        let limit = usize::from(get_u16(bytes, entries_at));
        let count = usize::from(get_u16(bytes, entries_at + 2));
        if limit != limit_at(format, entries_at) {
            return Err(Error::corrupt(site, "size of the hash index does not fit the block"));
        }
        if count == 0 || count > limit {
            return Err(Error::corrupt(site, "number of entries of the hash index is out of range"));
        }
        let index = Index { entries_at, count, limit };
        if let Some(seed) = format.seed()
            && get_u32(bytes, index.tail_at() + 4) != index.checksum(seed, bytes)
        {
            return Err(Error::corrupt(site, "checksum of the hash index does not match"));
        }
        Ok(index)
    }

    /// Number of branches, at least 1.
    pub fn count(&self) -> usize {
        self.count
    }

    pub fn is_full(&self) -> bool {
        self.count == self.limit
    }

    /// The hash with which branch `at` begins; 0 for branch 0, whose true start is above.
    pub fn hash(&self, bytes: &[u8], at: usize) -> u32 {
        assert!(at < self.count, "branch of an index block");
        if at == 0 { 0 } else { get_u32(bytes, self.entries_at + at * ENTRY_BYTES) }
    }

    /// The block that branch `at` leads to. It may be any number.
    pub fn block(&self, bytes: &[u8], at: usize) -> FileBlock {
        assert!(at < self.count, "branch of an index block");
        FileBlock(get_u32(bytes, self.entries_at + at * ENTRY_BYTES + 4) & BLOCK_MASK)
    }

    /// The branch in which names with `hash` begin: the last whose hash is not greater.
    pub fn find(&self, bytes: &[u8], hash: u32) -> usize {
        let (mut low, mut high) = (1, self.count);
        while low < high {
            let middle = low.midpoint(high);
            if self.hash(bytes, middle) > hash {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        low - 1
    }

    pub fn branches<'a>(&self, bytes: &'a [u8]) -> impl Iterator<Item = Branch> + use<'a> {
        let index = *self;
        (0..index.count).map(move |at| Branch { hash: index.hash(bytes, at), block: index.block(bytes, at) })
    }

    /// Adds a branch behind branch `at`; the block must not be full.
    pub fn insert(&self, format: &DirFormat, bytes: &mut [u8], at: usize, branch: Branch) {
        assert!(!self.is_full() && at < self.count, "room for a branch");
        let place = self.entries_at + (at + 1) * ENTRY_BYTES;
        bytes.copy_within(place..self.entries_at + self.count * ENTRY_BYTES, place + ENTRY_BYTES);
        put_u32(bytes, place, branch.hash);
        put_u32(bytes, place + 4, branch.block.0);
        Index { count: self.count + 1, ..*self }.seal(format, bytes);
    }

    /// Keeps the first `count` branches.
    pub fn truncate(&self, format: &DirFormat, bytes: &mut [u8], count: usize) {
        assert!((1..=self.count).contains(&count), "branches that stay");
        Index { count, ..*self }.seal(format, bytes);
    }

    /// Inserts a level below the root: all branches have moved to `node`.
    pub fn deepen_root(&self, format: &DirFormat, bytes: &mut [u8], node: FileBlock) {
        assert_eq!(self.entries_at, ROOT_ENTRIES_AT, "only a root has levels");
        bytes[INFO_AT + 6] += 1;
        put_u32(bytes, ROOT_ENTRIES_AT + 4, node.0);
        Index { count: 1, ..*self }.seal(format, bytes);
    }

    fn tail_at(&self) -> usize {
        self.entries_at + self.limit * ENTRY_BYTES
    }

    /// Over all bytes up to the last entry in use, then the tail with 0 for the checksum.
    fn checksum(&self, seed: u32, bytes: &[u8]) -> u32 {
        let tail = self.tail_at();
        let crc = crc32c(seed, &bytes[..self.entries_at + self.count * ENTRY_BYTES]);
        let crc = crc32c(crc, &bytes[tail..tail + 4]);
        crc32c(crc, &[0; 4])
    }

    fn seal(&self, format: &DirFormat, bytes: &mut [u8]) {
        put_u16(bytes, self.entries_at, self.limit as u16);
        put_u16(bytes, self.entries_at + 2, self.count as u16);
        if let Some(seed) = format.seed() {
            let sum = self.checksum(seed, bytes);
            put_u32(bytes, self.tail_at() + 4, sum);
        }
    }

    /// Fills a block of zeros with branches; the hash of the first is not stored.
    fn fill(format: &DirFormat, bytes: &mut [u8], entries_at: usize, branches: &[Branch]) {
        let index = Index { entries_at, count: branches.len(), limit: limit_at(format, entries_at) };
        assert!((1..=index.limit).contains(&index.count), "branches fit the block");
        for (i, branch) in branches.iter().enumerate() {
            put_u32(bytes, entries_at + i * ENTRY_BYTES, branch.hash);
            put_u32(bytes, entries_at + i * ENTRY_BYTES + 4, branch.block.0);
        }
        index.seal(format, bytes);
    }
}

/// Whether a block looks like an index node. Without checksums an empty block of entries does too.
pub fn is_node(format: &DirFormat, bytes: &[u8]) -> bool {
    get_u32(bytes, 0) == 0 && bytes[6] == 0 && format.rec_len(bytes, 0) == format.block_size()
}

/// The root of a new index with one leaf.
pub fn new_root(format: &DirFormat, own: Ino, parent: Ino, version: HashVersion, leaf: FileBlock) -> Vec<u8> {
    let mut bytes = vec![0; format.block_size()];
    format.put_dots(&mut bytes, own, parent, format.block_size());
    bytes[INFO_AT + 4] = version.to_disk();
    bytes[INFO_AT + 5] = INFO_BYTES as u8;
    Index::fill(format, &mut bytes, ROOT_ENTRIES_AT, &[Branch { hash: 0, block: leaf }]);
    bytes
}

/// A new index node.
pub fn new_node(format: &DirFormat, branches: &[Branch]) -> Vec<u8> {
    let mut bytes = vec![0; format.block_size()];
    format.set_rec_len(&mut bytes, 0, format.block_size());
    Index::fill(format, &mut bytes, NODE_ENTRIES_AT, branches);
    bytes
}

/// Points `..` of an index root at another inode.
pub fn set_parent(format: &DirFormat, index: &Index, bytes: &mut [u8], parent: Ino) {
    put_u32(bytes, ENTRY_MIN_BYTES, parent.0);
    index.seal(format, bytes);
}

/// The most branches of a block (`dx_root_limit`, `dx_node_limit`).
fn limit_at(format: &DirFormat, entries_at: usize) -> usize {
    let tail = if format.seed().is_some() { TAIL_BYTES } else { 0 };
    (format.block_size() - entries_at - tail) / ENTRY_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::feature::{incompat, ro_compat};
    use crate::superblock::Superblock;

    const OWN: Ino = Ino(12);
    const SITE: Site = Site::Inode(OWN);

    fn format(log_block_size: u32, csum: bool) -> DirFormat {
        let mut sb = Superblock::zeroed();
        sb.set_log_block_size(log_block_size);
        sb.set_inodes_count(100);
        sb.set_feature_incompat(incompat::FILETYPE);
        sb.set_feature_ro_compat(if csum { ro_compat::METADATA_CSUM } else { 0 });
        DirFormat::new(&sb, OWN, 5)
    }

    fn branches(count: u32) -> Vec<Branch> {
        (0..count).map(|i| Branch { hash: 10 * i, block: FileBlock(i + 1) }).collect()
    }

    /// The kernel's `dx_root_limit` and `dx_node_limit`.
    #[test]
    fn limits() {
        for (log, csum, root, node) in
            [(0, false, 124, 127), (0, true, 123, 126), (2, false, 508, 511), (2, true, 507, 510)]
        {
            let format = format(log, csum);
            let of_root = new_root(&format, OWN, Ino(2), HashVersion::Tea, FileBlock(1));
            assert_eq!(u32::from(get_u16(&of_root, ROOT_ENTRIES_AT)), root);
            let of_node = new_node(&format, &branches(node));
            assert!(Index::node(&format, &of_node, SITE).unwrap().is_full());
        }
    }

    #[test]
    fn a_root_grows_and_gets_a_level() {
        for (log, csum) in [(0, true), (2, false), (6, true)] {
            let format = format(log, csum);
            let mut bytes = new_root(&format, OWN, Ino(2), HashVersion::HalfMd4, FileBlock(1));
            for hash in [40, 20, 30, 10] {
                let (_, index) = Index::root(&format, &bytes, OWN, SITE).unwrap();
                let at = index.find(&bytes, hash);
                index.insert(&format, &mut bytes, at, Branch { hash, block: FileBlock(hash + 1) });
            }
            let (info, index) = Index::root(&format, &bytes, OWN, SITE).unwrap();
            let expected = RootInfo { parent: Ino(2), hash_version: HashVersion::HalfMd4, levels: 0 };
            assert_eq!(info, expected);
            let branch = |hash| Branch { hash, block: FileBlock(hash + 1) };
            assert!(index.branches(&bytes).eq([0, 10, 20, 30, 40].map(branch)));
            for (hash, at) in [(0, 0), (9, 0), (10, 1), (11, 1), (39, 3), (40, 4), (u32::MAX, 4)] {
                assert_eq!(index.find(&bytes, hash), at, "hash {hash}");
            }
            set_parent(&format, &index, &mut bytes, Ino(77));
            index.deepen_root(&format, &mut bytes, FileBlock(9));
            let (info, index) = Index::root(&format, &bytes, OWN, SITE).unwrap();
            assert_eq!((info.levels, info.parent), (1, Ino(77)));
            assert_eq!(index.branches(&bytes).collect::<Vec<_>>(), [Branch { hash: 0, block: FileBlock(9) }]);
        }
    }

    #[test]
    fn a_node_is_cut() {
        let format = format(0, true);
        let mut bytes = new_node(&format, &branches(100));
        assert!(is_node(&format, &bytes));
        let index = Index::node(&format, &bytes, SITE).unwrap();
        index.truncate(&format, &mut bytes, 60);
        let index = Index::node(&format, &bytes, SITE).unwrap();
        assert_eq!(index.branches(&bytes).collect::<Vec<_>>(), branches(60));
        assert!(!is_node(&format, &format.first_block(OWN, Ino(2))));
    }

    #[test]
    fn checksums_are_compared() {
        let format = format(0, true);
        let good = new_node(&format, &branches(3));
        for at in [9, 12, 20, 1016, 1020] {
            let mut bytes = good.clone();
            bytes[at] ^= 1;
            assert!(Index::node(&format, &bytes, SITE).is_err(), "byte {at}");
        }
        // Unused bytes are not covered, as in the kernel.
        let mut bytes = good.clone();
        bytes[500] ^= 1;
        assert!(Index::node(&format, &bytes, SITE).is_ok());
    }
}

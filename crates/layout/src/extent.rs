//! Extent trees (`struct ext4_extent_header`, `ext4_extent`, `ext4_extent_idx`,
//! `ext4_extent_tail`).
//!
//! A node is a header of 12 bytes and entries of 12 bytes, sorted by their first file block. The
//! root is in `i_block` (4 entries); every other node fills a block. On volumes with
//! `metadata_csum` a checksum follows the last possible entry:
//!
//! ```text
//! 0      2        4     6       8            12          24               12 + 12 * eh_max
//! magic  entries  max   depth   generation   entry 0     entry 1   ...    checksum
//! ```
//!
//! At depth 0 an entry is an extent; above, it points at a node of the next lower depth. An index
//! entry's file block is that of its child's first entry. This also prevents a crafted tree from
//! referring to a node twice.

use xact_types::{BlockNr, Error, FileBlock, Result, Run, Site};

use crate::checksum::crc32c;
use crate::inode::BLOCK_AREA_BYTES;
use crate::superblock::Superblock;
use crate::{get_u16, get_u32, put_u16, put_u32};

/// `eh_magic`.
pub const MAGIC: u16 = 0xF30A;
/// The largest depth of the root (`EXT4_MAX_EXTENT_DEPTH`); a tree has up to six levels.
pub const MAX_DEPTH: u16 = 5;
/// Blocks that an extent with contents may have (`EXT_INIT_MAX_LEN`).
pub const MAX_WRITTEN_LEN: u32 = 1 << 15;
/// Blocks that an extent without contents may have (`EXT_UNWRITTEN_MAX_LEN`).
pub const MAX_UNWRITTEN_LEN: u32 = MAX_WRITTEN_LEN - 1;
pub const HEADER_BYTES: usize = 12;
pub const ENTRY_BYTES: usize = 12;
/// Entries of the root in the inode.
pub const ROOT_CAPACITY: usize = (BLOCK_AREA_BYTES - HEADER_BYTES) / ENTRY_BYTES;
/// The file block after the last one that a file can have (`EXT_MAX_BLOCKS`).
pub const END_OF_FILES: FileBlock = FileBlock(u32::MAX);

/// An entry in its form on disk: an extent or an index entry, by the depth of its node.
pub type RawEntry = [u8; ENTRY_BYTES];

/// Entries of a node that fills a block.
pub fn block_capacity(block_size: usize) -> usize {
    (block_size - HEADER_BYTES) / ENTRY_BYTES
}

/// File blocks that form one run on the volume (`struct ext4_extent`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    pub at: FileBlock,
    pub run: Run,
    /// Allocated, but reads as zeros.
    pub unwritten: bool,
}

impl Extent {
    pub fn decode(raw: &RawEntry) -> Extent {
        let len = u32::from(get_u16(raw, 4));
        let unwritten = len > MAX_WRITTEN_LEN;
        let start = u64::from(get_u32(raw, 8)) | u64::from(get_u16(raw, 6)) << 32;
        Extent {
            at: FileBlock(get_u32(raw, 0)),
            run: Run { start: BlockNr(start), len: if unwritten { len - MAX_WRITTEN_LEN } else { len } },
            unwritten,
        }
    }

    pub fn encode(&self) -> RawEntry {
        assert!(self.run.len >= 1 && self.run.len <= max_len(self.unwritten), "extent of impossible length");
        let mut raw = [0; ENTRY_BYTES];
        put_u32(&mut raw, 0, self.at.0);
        let flag = if self.unwritten { MAX_WRITTEN_LEN } else { 0 };
        put_u16(&mut raw, 4, (self.run.len + flag) as u16);
        put_u16(&mut raw, 6, (self.run.start.0 >> 32) as u16);
        put_u32(&mut raw, 8, self.run.start.0 as u32);
        raw
    }

    /// The file block after the last one. Does not overflow in an extent of a checked node.
    pub fn end(&self) -> FileBlock {
        self.at.offset(self.run.len)
    }

    /// The part within `from..to`; both are within the extent.
    pub fn part(&self, from: FileBlock, to: FileBlock) -> Extent {
        assert!(self.at <= from && from < to && to <= self.end(), "part outside of its extent");
        let start = self.run.start.offset(u64::from(from.0 - self.at.0));
        Extent { at: from, run: Run { start, len: to.0 - from.0 }, unwritten: self.unwritten }
    }

    /// Both as one extent, if `next` continues this one in the file and on the volume.
    pub fn merged(&self, next: &Extent) -> Option<Extent> {
        let fits = self.end() == next.at
            && self.run.end() == next.run.start
            && self.unwritten == next.unwritten
            && self.run.len + next.run.len <= max_len(self.unwritten);
        fits.then(|| Extent { run: Run { len: self.run.len + next.run.len, ..self.run }, ..*self })
    }
}

/// Blocks that one extent may have.
pub fn max_len(unwritten: bool) -> u32 {
    if unwritten { MAX_UNWRITTEN_LEN } else { MAX_WRITTEN_LEN }
}

/// A node's reference to a node below it (`struct ext4_extent_idx`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Index {
    pub at: FileBlock,
    pub child: BlockNr,
}

impl Index {
    pub fn decode(raw: &RawEntry) -> Index {
        let child = u64::from(get_u32(raw, 4)) | u64::from(get_u16(raw, 8)) << 32;
        Index { at: FileBlock(get_u32(raw, 0)), child: BlockNr(child) }
    }

    pub fn encode(&self) -> RawEntry {
        let mut raw = [0; ENTRY_BYTES];
        put_u32(&mut raw, 0, self.at.0);
        put_u32(&mut raw, 4, self.child.0 as u32);
        put_u16(&mut raw, 8, (self.child.0 >> 32) as u16);
        raw
    }
}

/// A node's properties according to its parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expected {
    pub depth: u16,
    /// File block of the first entry.
    pub first: FileBlock,
    /// All entries end before this file block: the parent's next entry.
    pub end: FileBlock,
}

/// A node whose bytes were checked.
#[derive(Debug, Clone, Copy)]
pub struct Node<'a> {
    bytes: &'a [u8],
    len: usize,
    depth: u16,
}

impl<'a> Node<'a> {
    /// The root, in an inode's `i_block`.
    pub fn root(area: &'a [u8; BLOCK_AREA_BYTES], sb: &Superblock, site: Site) -> Result<Node<'a>> {
        let corrupt = |what| Error::corrupt(site, what);
        let node = Node::header(area, ROOT_CAPACITY).map_err(corrupt)?;
        if node.depth > MAX_DEPTH {
            return Err(corrupt("extent tree is too deep"));
        }
        node.check_entries(sb, END_OF_FILES).map_err(corrupt)?;
        Ok(node)
    }

    /// A node that fills a block. `seed` is [`crate::inode::inode_seed`] of the file.
    pub fn in_block(
        bytes: &'a [u8],
        sb: &Superblock,
        seed: u32,
        expected: Expected,
        site: Site,
    ) -> Result<Node<'a>> {
        let corrupt = |what| Error::corrupt(site, what);
        let node = Node::header(bytes, block_capacity(bytes.len())).map_err(corrupt)?;
        if node.depth != expected.depth {
            return Err(corrupt("depth of the extent node does not fit its parent"));
        }
        if sb.has_metadata_csum() {
            let at = tail_at(bytes);
            if crc32c(seed, &bytes[..at]) != get_u32(bytes, at) {
                return Err(corrupt("checksum of the extent node does not match"));
            }
        }
        if node.len > 0 && node.key(0) != expected.first {
            return Err(corrupt("extent node does not start where its parent says"));
        }
        node.check_entries(sb, expected.end).map_err(corrupt)?;
        Ok(node)
    }

    /// A node whose exact bytes `in_block` has accepted before, with the same arguments.
    pub fn accepted(bytes: &'a [u8]) -> Node<'a> {
        Node::header(bytes, block_capacity(bytes.len())).expect("these bytes were accepted before")
    }

    fn header(bytes: &'a [u8], capacity: usize) -> Result<Node<'a>, &'static str> {
        if get_u16(bytes, 0) != MAGIC {
            return Err("extent node has no magic number");
        }
        let (len, max) = (usize::from(get_u16(bytes, 2)), usize::from(get_u16(bytes, 4)));
        if max == 0 || max > capacity {
            return Err("extent node has an impossible capacity");
        }
        if len > max {
            return Err("extent node has more entries than room");
        }
        let depth = get_u16(bytes, 6);
        if len == 0 && depth > 0 {
            return Err("extent index node is empty");
        }
        Ok(Node { bytes, len, depth })
    }

    fn check_entries(&self, sb: &Superblock, end: FileBlock) -> Result<(), &'static str> {
        let blocks = u64::from(sb.first_data_block()) + 1..sb.blocks_count();
        // The lowest file block at which the next entry may start.
        let mut free_from = 0;
        for raw in self.raw_entries() {
            let key = get_u32(raw, 0);
            if key < free_from {
                return Err("extents overlap or are out of order");
            }
            if self.depth == 0 {
                let Extent { run, .. } = Extent::decode(raw);
                if run.len == 0 {
                    return Err("extent of no blocks");
                }
                free_from = key.checked_add(run.len).ok_or("extent beyond the end of files")?;
                // Neither overflows: a start has 48 bits.
                if run.start.0 < blocks.start || run.end().0 > blocks.end {
                    return Err("extent lies outside of the volume");
                }
            } else {
                free_from = key.checked_add(1).ok_or("extent index beyond the end of files")?;
                if !blocks.contains(&Index::decode(raw).child.0) {
                    return Err("extent index points outside of the volume");
                }
            }
        }
        if free_from > end.0 {
            return Err("extents overlap those of the next node");
        }
        Ok(())
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the node says that it has about as many places for entries as its area has. The
    /// kernel does not depend on it.
    pub fn fills_area(&self) -> bool {
        let capacity = block_capacity(self.bytes.len());
        usize::from(get_u16(self.bytes, 4)) + 2 >= capacity
    }

    /// 0 in a leaf.
    pub fn depth(&self) -> u16 {
        self.depth
    }

    /// The entries in order.
    pub fn raw_entries(&self) -> &'a [RawEntry] {
        self.bytes[HEADER_BYTES..HEADER_BYTES + self.len * ENTRY_BYTES].as_chunks().0
    }

    /// File block at which entry `i` starts.
    pub fn key(&self, i: usize) -> FileBlock {
        FileBlock(get_u32(&self.raw_entries()[i], 0))
    }

    /// Entry `i` of a leaf.
    pub fn extent(&self, i: usize) -> Extent {
        assert!(self.depth == 0, "extents are in leaves");
        Extent::decode(&self.raw_entries()[i])
    }

    /// Entry `i` of a node above the leaves.
    pub fn index(&self, i: usize) -> Index {
        assert!(self.depth > 0, "a leaf has no index entries");
        Index::decode(&self.raw_entries()[i])
    }

    /// The number of entries that start at or before `at`.
    pub fn count_up_to(&self, at: FileBlock) -> usize {
        self.raw_entries().partition_point(|raw| get_u32(raw, 0) <= at.0)
    }

    /// The expected properties of entry `i`'s child, in a node that ends at `end`.
    pub fn expected_child(&self, i: usize, end: FileBlock) -> Expected {
        let end = if i + 1 < self.len { self.key(i + 1) } else { end };
        Expected { depth: self.depth - 1, first: self.key(i), end }
    }
}

/// An empty root, as in new files.
pub fn empty_root() -> [u8; BLOCK_AREA_BYTES] {
    let mut area = [0; BLOCK_AREA_BYTES];
    write_root(&mut area, 0, &[]);
    area
}

/// Writes a root with these entries. Unused entries keep their bytes, as the kernel leaves them.
pub fn write_root(area: &mut [u8; BLOCK_AREA_BYTES], depth: u16, entries: &[RawEntry]) {
    write_node(area, ROOT_CAPACITY, depth, entries);
}

/// Writes a node with these entries into a block, with its checksum if the volume has checksums.
pub fn write_block(bytes: &mut [u8], sb: &Superblock, seed: u32, depth: u16, entries: &[RawEntry]) {
    write_node(bytes, block_capacity(bytes.len()), depth, entries);
    if sb.has_metadata_csum() {
        let at = tail_at(bytes);
        let sum = crc32c(seed, &bytes[..at]);
        put_u32(bytes, at, sum);
    }
}

fn write_node(bytes: &mut [u8], capacity: usize, depth: u16, entries: &[RawEntry]) {
    assert!(entries.len() <= capacity, "more entries than the node can hold");
    assert!(depth <= MAX_DEPTH, "extent tree is too deep");
    put_u16(bytes, 0, MAGIC);
    put_u16(bytes, 2, entries.len() as u16);
    put_u16(bytes, 4, capacity as u16);
    put_u16(bytes, 6, depth);
    // `eh_generation` at 8 has no reader and stays.
    bytes[HEADER_BYTES..HEADER_BYTES + entries.len() * ENTRY_BYTES].copy_from_slice(entries.as_flattened());
}

/// Offset of the checksum in a node that fills a block; the header was checked.
fn tail_at(bytes: &[u8]) -> usize {
    HEADER_BYTES + ENTRY_BYTES * usize::from(get_u16(bytes, 4))
}

const _: () = assert!(ROOT_CAPACITY == 4);

#[cfg(test)]
mod tests;

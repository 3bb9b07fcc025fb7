//! Adds a name: in a gap, by packing a block, in a new block, or by splitting a leaf.

use xact_consistency::{BlockRef, Handle};
use xact_layout::dirent::{DirEntry, DirentSpace, Packer, entry_bytes};
use xact_layout::dirhash::DirHasher;
use xact_layout::feature::compat;
use xact_layout::htree::{self, Branch, MAX_DEPTH};
use xact_types::{BlockNr, Error, FileBlock, Result, Site};

use super::index::IndexPath;
use super::{Dir, DirBlocks};
use crate::api::{Entry, Name};

/// A leaf's entry while the leaf is split.
struct Hashed<'a> {
    hash: u32,
    entry: DirEntry<'a>,
}

const INDEX_FULL: Error = Error::DoesNotFit("the folder's index");

impl Dir<'_> {
    pub(super) fn clear_stale_flag(&mut self, blocks: &mut dyn DirBlocks, h: &mut Handle) -> Result<()> {
        if self.stale_flag {
            blocks.set_indexed(h, false)?;
            self.stale_flag = false;
        }
        Ok(())
    }

    pub(super) fn add_linear(
        &mut self,
        blocks: &mut dyn DirBlocks,
        h: &mut Handle,
        name: &Name,
        entry: Entry,
    ) -> Result<()> {
        let new = on_disk(name, entry);
        let count = self.block_count(blocks)?;
        for at in 0..count {
            let (block, bytes) = self.read_entries(blocks, FileBlock(at))?;
            let from = self.first_gap(at, block, &bytes)?;
            if self.fit(h, block, &bytes, from, &new)? {
                return Ok(());
            }
        }
        if count == 1 && self.sb.has_compat(compat::DIR_INDEX) {
            self.convert(blocks, h)?;
            return self.add_indexed(blocks, h, name, entry);
        }
        let (_, block) = blocks.append(h)?;
        let mut packer = Packer::new(&self.format, &[]);
        packer.push(&new);
        h.create(block, packer.finish())
    }

    /// Offset of the first entry that may share its space with a new one: no entry may come between
    /// `.` and `..`.
    fn first_gap(&self, at: u32, block: BlockNr, bytes: &BlockRef) -> Result<usize> {
        match at {
            0 => Ok(self.format.dots(bytes, self.ino, Site::Block(block))?.parent_at),
            _ => Ok(0),
        }
    }

    pub(super) fn linear_has_gap(&self, blocks: &dyn DirBlocks, name: &Name) -> Result<bool> {
        for at in 0..self.block_count(blocks)? {
            let (block, bytes) = self.read_entries(blocks, FileBlock(at))?;
            let from = self.first_gap(at, block, &bytes)?;
            if self.has_room(block, &bytes, from, name)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(super) fn leaf_has_gap(&self, blocks: &dyn DirBlocks, name: &Name) -> Result<bool> {
        let (_, path) = self.probe(blocks, |hasher| hasher.hash(name).major)?;
        let (block, bytes) = self.read_leaf(blocks, &path)?;
        self.has_room(block, &bytes, 0, name)
    }

    fn has_room(&self, block: BlockNr, bytes: &BlockRef, from: usize, name: &Name) -> Result<bool> {
        let space = self.format.find_space(bytes, from, entry_bytes(name.len()), Site::Block(block))?;
        Ok(!matches!(space, DirentSpace::Full))
    }

    /// The block to which a new name can be added as the directory is: no block is split or added,
    /// and no other block changes. `None` if there is no such block, or the name exists.
    pub fn block_with_gap(&self, blocks: &dyn DirBlocks, name: &Name) -> Result<Option<BlockNr>> {
        if self.stale_flag || self.locate(blocks, name)?.is_some() {
            return Ok(None);
        }
        if self.indexed {
            let (_, path) = self.probe(blocks, |hasher| hasher.hash(name).major)?;
            let (block, bytes) = self.read_leaf(blocks, &path)?;
            let is_leaf = !path.is_index_block(path.leaf());
            return Ok((is_leaf && self.has_room(block, &bytes, 0, name)?).then_some(block));
        }
        for at in 0..self.block_count(blocks)? {
            let (block, bytes) = self.read_entries(blocks, FileBlock(at))?;
            let from = self.first_gap(at, block, &bytes)?;
            if self.has_room(block, &bytes, from, name)? {
                return Ok(Some(block));
            }
        }
        Ok(None)
    }

    /// Adds a name to the contents of a block that [`Self::block_with_gap`] has found; false if
    /// they have the name now, or no space for it.
    pub fn add_to_block(
        &self,
        (block, bytes): (BlockNr, &mut [u8]),
        name: &Name,
        entry: Entry,
    ) -> Result<bool> {
        let site = Site::Block(block);
        // The first block of a linear directory begins with `.`, which has its own number.
        let from = match self.format.dots(bytes, self.ino, site) {
            Ok(dots) if !self.indexed => dots.parent_at,
            _ => 0,
        };
        let new = on_disk(name, entry);
        if self.format.find(bytes, from, name, site)?.is_some() {
            return Ok(false);
        }
        match self.format.find_space(bytes, from, entry_bytes(name.len()), site)? {
            DirentSpace::Full => return Ok(false),
            DirentSpace::At(at) => {
                self.format.insert(bytes, at, &new);
                self.format.seal(bytes);
            }
            DirentSpace::Scattered => {
                let packed = self.pack(bytes, from, &new, site)?;
                bytes.copy_from_slice(&packed);
            }
        }
        Ok(true)
    }

    /// The entries of a block after `from` without gaps, and a new one.
    fn pack(&self, bytes: &[u8], from: usize, new: &DirEntry<'_>, site: Site) -> Result<Vec<u8>> {
        let mut packer = Packer::new(&self.format, &bytes[..from]);
        for item in self.format.entries(bytes, from, site) {
            packer.push(&item?.1);
        }
        packer.push(new);
        Ok(packer.finish())
    }

    /// Adds the entry to a block if it fits after `from`; false if not.
    fn fit(
        &self,
        h: &mut Handle,
        block: BlockNr,
        bytes: &BlockRef,
        from: usize,
        new: &DirEntry<'_>,
    ) -> Result<bool> {
        let site = Site::Block(block);
        match self.format.find_space(bytes, from, entry_bytes(new.name.len()), site)? {
            DirentSpace::Full => return Ok(false),
            DirentSpace::At(at) => h.update(block, |bytes| {
                self.format.insert(bytes, at, new);
                self.format.seal(bytes);
            })?,
            DirentSpace::Scattered => {
                let packed = self.pack(bytes, from, new, site)?;
                h.update(block, |bytes| bytes.copy_from_slice(&packed))?;
            }
        }
        Ok(true)
    }

    /// Converts a linear directory of one block to an indexed one: the names move to a new block,
    /// the only leaf, and the first block becomes the root.
    fn convert(&mut self, blocks: &mut dyn DirBlocks, h: &mut Handle) -> Result<()> {
        let (block, bytes) = self.read_entries(blocks, FileBlock(0))?;
        let site = Site::Block(block);
        let dots = self.format.dots(&bytes, self.ino, site)?;
        let mut leaf = Packer::new(&self.format, &[]);
        for item in self.format.entries(&bytes, dots.next, site) {
            leaf.push(&item?.1);
        }
        let version = DirHasher::default_of(self.sb).version();

        let (leaf_at, leaf_block) = blocks.append(h)?;
        blocks.set_indexed(h, true)?;
        h.create(leaf_block, leaf.finish())?;
        let root = htree::new_root(&self.format, self.ino, dots.parent, version, leaf_at);
        h.update(block, |bytes| bytes.copy_from_slice(&root))?;
        self.indexed = true;
        Ok(())
    }

    pub(super) fn add_indexed(
        &self,
        blocks: &mut dyn DirBlocks,
        h: &mut Handle,
        name: &Name,
        entry: Entry,
    ) -> Result<()> {
        let new = on_disk(name, entry);
        // Each round adds space one level further down, until the lowest index block has it.
        for _ in 0..=MAX_DEPTH {
            let (hash, path) = self.probe(blocks, |hasher| hasher.hash(name).major)?;
            if path.is_index_block(path.leaf()) {
                // Without checksums an index node looks like an empty leaf.
                let what = "hash index has one of its own blocks as a leaf";
                return Err(Error::corrupt(Site::Block(path.last().block), what));
            }
            let (block, bytes) = self.read_leaf(blocks, &path)?;
            if self.fit(h, block, &bytes, 0, &new)? {
                return Ok(());
            }
            if !path.last().index.is_full() {
                return self.split_leaf(blocks, h, &path, Hashed { hash, entry: new });
            }
            self.grow_index(blocks, h, &path)?;
        }
        // The path to the hash has changed, so the hashes are not in order.
        Err(self.out_of_order(blocks.block(FileBlock(0))?))
    }

    pub(super) fn check_index_room(&self, blocks: &dyn DirBlocks, name: &Name) -> Result<()> {
        let (_, path) = self.probe(blocks, |hasher| hasher.hash(name).major)?;
        let is_full = (0..path.depth()).all(|level| path.step(level).index.is_full());
        if path.depth() < self.format.index_depth_max() || !is_full {
            return Ok(());
        }
        let (block, bytes) = self.read_leaf(blocks, &path)?;
        if self.has_room(block, &bytes, 0, name)? { Ok(()) } else { Err(INDEX_FULL) }
    }

    /// Moves the upper half of a full leaf's hashes to a new leaf, and adds the new entry to the
    /// matching half. The index block above has a free slot.
    fn split_leaf(
        &self,
        blocks: &mut dyn DirBlocks,
        h: &mut Handle,
        path: &IndexPath,
        new: Hashed<'_>,
    ) -> Result<()> {
        let (block, bytes) = self.read_leaf(blocks, path)?;
        let mut list = Vec::new();
        for item in self.format.entries(&bytes, 0, Site::Block(block)) {
            let (_, entry) = item?;
            list.push(Hashed { hash: path.hasher.hash(entry.name).major, entry });
        }
        list.sort_by_key(|item| item.hash);
        let split = split_point(&list, self.format.block_size());
        let hash = list[split].hash;
        let continued = u32::from(list[split - 1].hash == hash);
        let upper = list.split_off(split);

        let (mut low, mut high) = (Packer::new(&self.format, &[]), Packer::new(&self.format, &[]));
        list.iter().for_each(|item| low.push(&item.entry));
        upper.iter().for_each(|item| high.push(&item.entry));
        if new.hash < hash {
            low.push(&new.entry)
        } else {
            high.push(&new.entry)
        };
        let (low, high) = (low.finish(), high.finish());

        let (new_at, new_block) = blocks.append(h)?;
        h.create(new_block, high)?;
        h.update(block, |bytes| bytes.copy_from_slice(&low))?;
        let above = path.last();
        let branch = Branch { hash: hash | continued, block: new_at };
        h.update(above.block, |bytes| above.index.insert(&self.format, bytes, above.at, branch))
    }

    /// Adds space to the index, whose block above the leaf is full: below the lowest block with a
    /// free slot, the upper half of a full block moves to a new node. If all are full, the root's
    /// entries move to a new level below it.
    fn grow_index(&self, blocks: &mut dyn DirBlocks, h: &mut Handle, path: &IndexPath) -> Result<()> {
        let Some(above) = (0..path.depth() - 1).rev().find(|&level| !path.step(level).index.is_full()) else {
            if path.depth() >= self.format.index_depth_max() {
                // The kernel fails in the same way ("Directory index full").
                return Err(INDEX_FULL);
            }
            let root = path.step(0);
            let branches: Vec<Branch> = root.index.branches(&root.bytes).collect();
            let (node_at, node) = blocks.append(h)?;
            h.create(node, htree::new_node(&self.format, &branches))?;
            return h.update(root.block, |bytes| root.index.deepen_root(&self.format, bytes, node_at));
        };
        let (above, full) = (path.step(above), path.step(above + 1));
        let branches: Vec<Branch> = full.index.branches(&full.bytes).collect();
        let (lower, upper) = branches.split_at(branches.len() / 2);
        let hash = upper[0].hash;
        let (node_at, node) = blocks.append(h)?;
        h.create(node, htree::new_node(&self.format, upper))?;
        h.update(full.block, |bytes| full.index.truncate(&self.format, bytes, lower.len()))?;
        let branch = Branch { hash, block: node_at };
        h.update(above.block, |bytes| above.index.insert(&self.format, bytes, above.at, branch))
    }
}

/// The first item of the upper half. It has half of the bytes, so that a name of any length fits
/// into either half; if all items together are small, it has half of the items.
fn split_point(list: &[Hashed<'_>], block_size: usize) -> usize {
    let mut upper_bytes = 0;
    for (at, item) in list.iter().enumerate().rev() {
        let bytes = entry_bytes(item.entry.name.len());
        if upper_bytes + bytes / 2 > block_size / 2 {
            return at + 1;
        }
        upper_bytes += bytes;
    }
    list.len() / 2
}

fn on_disk(name: &Name, entry: Entry) -> DirEntry<'_> {
    DirEntry { ino: entry.ino, file_type: entry.kind.dirent_type(), name }
}

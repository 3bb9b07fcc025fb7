//! The kind of each block of a volume, and sound checksums for changed blocks: so that damage gets
//! past the checksums to the code behind them.

use std::collections::BTreeMap;

use xact_layout::checksum::crc32c;
use xact_layout::dirent::DirFormat;
use xact_layout::extent::{Expected, Node};
use xact_layout::feature::{incompat, ro_compat};
use xact_layout::group::{GroupDesc, bitmap_checksum};
use xact_layout::inode::{Inode, flag, inode_seed};
use xact_layout::mmp::MMP_BYTES;
use xact_layout::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, Superblock};
use xact_layout::{get_u16, htree, orphan, put_u32, xattr};
use xact_types::{BlockNr, FileBlock, GroupNr, Ino, Site};

use crate::image::Image;

const HERE: Site = Site::Superblock;

/// The kind of a metadata block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Superblock,
    /// Descriptors from this group on.
    Descriptors(u32),
    BlockBitmap(u32),
    InodeBitmap(u32),
    /// Inodes from this number on.
    Inodes(u32),
    /// A node of the extent tree of a file with this seed.
    ExtentNode(u32),
    /// A block of this directory.
    Directory(Ino, u32),
    Attributes,
    /// A block of the orphan file, with its seed.
    Orphans(u32),
    /// The block of multi-mount protection.
    Mmp,
    /// Without a checksum: a journal's first block, pointers of a mapped file, a symlink's target.
    Plain,
}

/// The metadata of a sound volume.
pub struct Map {
    sb: Superblock,
    pub kinds: BTreeMap<u64, Kind>,
}

fn block_of(image: &Image, size: usize, block: u64) -> Vec<u8> {
    let mut bytes = vec![0; size];
    image.read(&mut bytes, block * size as u64);
    bytes
}

impl Map {
    pub fn of(image: &Image) -> Map {
        let mut raw = [0; SUPERBLOCK_BYTES];
        image.read(&mut raw, SUPERBLOCK_OFFSET);
        let sb = Superblock::decode(&raw).expect("a sound volume");
        let mut map = Map { sb, kinds: BTreeMap::new() };
        map.kinds.insert(map.sb.own_block().0, Kind::Superblock);
        if map.sb.has_incompat(incompat::MMP) {
            map.kinds.insert(map.sb.mmp_block(), Kind::Mmp);
        }
        for group in 0..map.sb.group_count() {
            map.group(image, group);
        }
        map
    }

    fn block_size(&self) -> usize {
        self.sb.block_size() as usize
    }

    fn group(&mut self, image: &Image, group: u32) {
        let (block, at) = self.sb.desc_place(GroupNr(group));
        if at == 0 {
            self.kinds.insert(block.0, Kind::Descriptors(group));
        }
        let size = usize::from(self.sb.desc_size());
        let desc = GroupDesc::new(&block_of(image, self.block_size(), block.0)[at..at + size]);
        self.kinds.insert(desc.block_bitmap().0, Kind::BlockBitmap(group));
        self.kinds.insert(desc.inode_bitmap().0, Kind::InodeBitmap(group));
        let per_block = self.sb.inodes_per_block();
        for n in 0..self.sb.inode_table_blocks() {
            let table = desc.inode_table().0 + u64::from(n);
            let first = self.sb.inode_at(GroupNr(group), n * per_block);
            let bytes = block_of(image, self.block_size(), table);
            let inodes: Vec<Inode> =
                bytes.chunks_exact(usize::from(self.sb.inode_size())).map(Inode::new).collect();
            if inodes.iter().any(|inode| inode.mode() != 0) {
                self.kinds.insert(table, Kind::Inodes(first.0));
            }
            for (i, inode) in (0u32..).zip(&inodes) {
                if inode.mode() != 0 && inode.links_count() != 0 {
                    self.inode(image, Ino(first.0 + i), inode);
                }
            }
        }
    }

    fn inode(&mut self, image: &Image, ino: Ino, inode: &Inode) {
        if inode.xattr_block() != 0 {
            self.kinds.insert(inode.xattr_block(), Kind::Attributes);
        }
        let seed = inode_seed(&self.sb, ino, inode.generation());
        let kind = if inode.is_directory() {
            Some(Kind::Directory(ino, inode.generation()))
        } else if ino.0 == self.sb.orphan_file_inum() {
            Some(Kind::Orphans(seed))
        } else {
            None
        };
        if ino == Ino::JOURNAL || inode.flags() & flag::INLINE_DATA != 0 {
            return;
        }
        if inode.flags() & flag::EXTENTS != 0 {
            let area = *inode.block_area();
            let node = Node::root(&area, &self.sb, HERE).expect("a sound volume");
            self.extents(image, seed, &node, FileBlock(u32::MAX), kind);
        } else if inode.is_regular() || inode.is_directory() {
            self.pointers(image, inode, kind);
        }
    }

    fn extents(&mut self, image: &Image, seed: u32, node: &Node<'_>, end: FileBlock, kind: Option<Kind>) {
        for i in 0..node.len() {
            if node.depth() == 0 {
                let extent = node.extent(i);
                for n in 0..u64::from(extent.run.len) {
                    self.data(extent.run.start.0 + n, kind);
                }
                continue;
            }
            let child = node.index(i).child;
            let bytes = block_of(image, self.block_size(), child.0);
            let expected: Expected = node.expected_child(i, end);
            self.kinds.insert(child.0, Kind::ExtentNode(seed));
            let sb = self.sb.clone();
            let below = Node::in_block(&bytes, &sb, seed, expected, HERE).expect("a sound volume");
            self.extents(image, seed, &below, expected.end, kind);
        }
    }

    /// A block-mapped file has twelve blocks, and blocks of pointers; small files have one level of
    /// these.
    fn pointers(&mut self, image: &Image, inode: &Inode, kind: Option<Kind>) {
        let numbers = |bytes: &[u8]| -> Vec<u64> {
            bytes.as_chunks().0.iter().map(|word| u64::from(u32::from_le_bytes(*word))).collect()
        };
        let area = numbers(inode.block_area());
        for &block in area[..12].iter().filter(|&&block| block != 0) {
            self.data(block, kind);
        }
        if area[12] != 0 {
            self.kinds.insert(area[12], Kind::Plain);
            for block in numbers(&block_of(image, self.block_size(), area[12])) {
                if block != 0 {
                    self.data(block, kind);
                }
            }
        }
    }

    fn data(&mut self, block: u64, kind: Option<Kind>) {
        if let Some(kind) = kind {
            self.kinds.insert(block, kind);
        }
    }

    /// Corrects the checksums of one block, and those over it elsewhere.
    pub fn reseal(&self, image: &mut Image, block: u64) {
        let Some(&kind) = self.kinds.get(&block) else { return };
        let size = self.block_size();
        let mut bytes = block_of(image, size, block);
        match kind {
            Kind::Plain => return,
            Kind::Superblock => {
                let at = self.sb.own_offset();
                if self.sb.has_ro_compat(ro_compat::METADATA_CSUM) {
                    let sum = crc32c(!0, &bytes[at..at + 0x3FC]);
                    put_u32(&mut bytes, at + 0x3FC, sum);
                }
            }
            Kind::Descriptors(first) => self.seal_descriptors(&mut bytes, first),
            Kind::BlockBitmap(group) => return self.seal_bitmap(image, group, &bytes, true),
            Kind::InodeBitmap(group) => return self.seal_bitmap(image, group, &bytes, false),
            Kind::Inodes(first) => {
                let of_one = usize::from(self.sb.inode_size());
                for (i, raw) in bytes.chunks_exact_mut(of_one).enumerate() {
                    let mut inode = Inode::new(raw);
                    // The largest possible value; larger ones are not examined.
                    if inode.mode() != 0 && usize::from(inode.extra_isize()) + 128 <= of_one {
                        inode.seal(&self.sb, Ino(first + i as u32));
                        raw.copy_from_slice(inode.as_bytes());
                    }
                }
            }
            Kind::ExtentNode(seed) => {
                self.seal_at(&mut bytes, seed, |bytes| 12 + 12 * usize::from(get_u16(bytes, 4)))
            }
            Kind::Directory(ino, generation) => self.seal_directory(&mut bytes, ino, generation),
            Kind::Attributes => {
                let users = xattr::refcount(&bytes);
                xattr::set_refcount(&mut bytes, &self.sb, BlockNr(block), users);
            }
            Kind::Mmp => self.seal_at(&mut bytes, self.sb.checksum_seed(), |_| MMP_BYTES - 4),
            Kind::Orphans(seed) => orphan::seal(&mut bytes, &self.sb, seed, BlockNr(block)),
        }
        image.write(&bytes, block * size as u64);
    }

    fn seal_at(&self, bytes: &mut [u8], seed: u32, tail: impl Fn(&[u8]) -> usize) {
        let at = tail(bytes);
        if self.sb.has_metadata_csum() && at + 4 <= bytes.len() {
            let sum = crc32c(seed, &bytes[..at]);
            put_u32(bytes, at, sum);
        }
    }

    fn seal_descriptors(&self, bytes: &mut [u8], first: u32) {
        for (i, raw) in (0u32..).zip(bytes.chunks_exact_mut(usize::from(self.sb.desc_size()))) {
            if first + i < self.sb.group_count() {
                let mut desc = GroupDesc::new(raw);
                desc.seal(&self.sb, GroupNr(first + i));
                raw.copy_from_slice(desc.as_bytes());
            }
        }
    }

    fn seal_bitmap(&self, image: &mut Image, group: u32, bitmap: &[u8], of_blocks: bool) {
        if !self.sb.has_metadata_csum() {
            return;
        }
        let (block, at) = self.sb.desc_place(GroupNr(group));
        let size = usize::from(self.sb.desc_size());
        let mut bytes = block_of(image, self.block_size(), block.0);
        let mut desc = GroupDesc::new(&bytes[at..at + size]);
        if of_blocks {
            let len = self.sb.clusters_per_group() as usize / 8;
            desc.set_block_bitmap_csum(bitmap_checksum(&self.sb, bitmap, len));
        } else {
            let len = self.sb.inodes_per_group() as usize / 8;
            desc.set_inode_bitmap_csum(bitmap_checksum(&self.sb, bitmap, len));
        }
        desc.seal(&self.sb, GroupNr(group));
        bytes[at..at + size].copy_from_slice(desc.as_bytes());
        image.write(&bytes, block.0 * self.block_size() as u64);
    }

    /// A block of entries, or of the hash index, whose limit gives the position of the tail.
    fn seal_directory(&self, bytes: &mut [u8], ino: Ino, generation: u32) {
        let format = DirFormat::new(&self.sb, ino, generation);
        let Some(seed) = format.seed() else { return };
        // `..` fills the block of a root, and its header says that it has 8 bytes.
        let is_root = usize::from(get_u16(bytes, 16)) == bytes.len() - 12 && bytes[29] == 8;
        let entries_at = if is_root { 32 } else { 8 };
        if !is_root && !htree::is_node(&format, bytes) {
            format.seal(bytes);
            return;
        }
        let limit = usize::from(get_u16(bytes, entries_at));
        let count = usize::from(get_u16(bytes, entries_at + 2));
        let tail = entries_at + 8 * limit;
        if count > limit || tail + 8 > bytes.len() {
            return;
        }
        let sum = crc32c(seed, &bytes[..entries_at + 8 * count]);
        let sum = crc32c(crc32c(sum, &bytes[tail..tail + 4]), &[0; 4]);
        put_u32(bytes, tail + 4, sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::damage::populated;

    /// On a sound volume there is no checksum to correct, of any kind.
    #[test]
    fn sound_checksums_stay_as_they_are() {
        for features in [
            "orphan_file,metadata_csum_seed",
            "^orphan_file,^metadata_csum",
            "^extents,^64bit,uninit_bg,^metadata_csum",
        ] {
            let (image, _) = populated(&["-b", "1024", "-J", "size=1", "-O", features]);
            let map = Map::of(&image);
            assert!(map.kinds.values().any(|kind| matches!(kind, Kind::Directory(..))));
            for &block in map.kinds.keys() {
                let mut sealed = image.clone();
                map.reseal(&mut sealed, block);
                assert_eq!(sealed.digest(), image.digest(), "block {block}, {:?}", map.kinds[&block]);
            }
        }
    }
}

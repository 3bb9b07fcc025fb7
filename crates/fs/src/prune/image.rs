//! Reads the image: descriptors, inodes, the blocks of an inode.

use std::sync::Arc;

use xact_device::BlockDevice;
use xact_layout::extent::{END_OF_FILES, Node};
use xact_layout::get_u32;
use xact_layout::group::GroupDesc;
use xact_layout::inode::{BLOCK_AREA_BYTES, Inode, flag, inode_seed};
use xact_layout::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, Superblock};
use xact_types::{BlockNr, Error, GroupNr, Ino, Result, Run, Site};

use crate::alloc::set_bits;

/// Number of direct pointers in an inode without extents.
const DIRECT: usize = 12;

pub(super) struct SourceImage {
    device: Arc<dyn BlockDevice>,
    pub sb: Superblock,
    pub descs: Vec<GroupDesc>,
    /// Sorted ranges of the fixed metadata.
    fixed: Vec<(u64, u64)>,
}

impl SourceImage {
    pub fn open(device: Arc<dyn BlockDevice>) -> Result<SourceImage> {
        let mut bytes = [0; SUPERBLOCK_BYTES];
        device.read_at(&mut bytes, SUPERBLOCK_OFFSET).map_err(|e| Error::io("reading a snapshot", e))?;
        let sb = Superblock::decode(&bytes)?;
        let mut image = SourceImage { device, sb, descs: Vec::new(), fixed: Vec::new() };
        image.read_descs()?;
        Ok(image)
    }

    fn read_descs(&mut self) -> Result<()> {
        let table = u64::from(self.sb.inode_table_blocks());
        for first in (0..self.sb.group_count()).step_by(self.sb.descs_per_block() as usize) {
            let bytes = self.block(self.sb.desc_place(GroupNr(first)).0)?;
            let size = usize::from(self.sb.desc_size());
            for (bytes, number) in bytes.chunks_exact(size).zip(first..self.sb.group_count()) {
                let (desc, group) = (GroupDesc::new(bytes), GroupNr(number));
                let parts = [(desc.block_bitmap(), 1), (desc.inode_bitmap(), 1), (desc.inode_table(), table)];
                if !desc.checksum_matches(&self.sb, group)
                    || parts.iter().any(|&(start, len)| !self.sb.contains(start, len))
                {
                    return Err(Error::corrupt(Site::Group(group), "checksum does not match"));
                }
                let start = self.sb.group_start(group);
                self.fixed.push((start.0, start.0 + u64::from(self.sb.base_meta_blocks(group))));
                self.fixed.extend(parts.map(|(start, len)| (start.0, start.0 + len)));
                self.descs.push(desc);
            }
        }
        // Most groups have no copy of the superblock. An empty range would break the order of the
        // ends, by which `set_fixed` searches.
        self.fixed.retain(|range| range.0 < range.1);
        self.fixed.sort_unstable();
        Ok(())
    }

    pub fn block(&self, block: BlockNr) -> Result<Vec<u8>> {
        let block_size = u64::from(self.sb.block_size());
        let mut bytes = vec![0; block_size as usize];
        let read = self.device.read_at(&mut bytes, block.0 * block_size);
        read.map_err(|e| Error::io("reading a snapshot", e))?;
        Ok(bytes)
    }

    pub fn inode(&self, ino: Ino) -> Result<Inode> {
        let wrong = |what| Error::corrupt(Site::Inode(ino), what);
        let (group, index) = self.sb.inode_place(ino).ok_or_else(|| wrong("is beyond the last inode"))?;
        let table = self.descs[group.0 as usize].inode_table();
        let bytes = self.block(table.offset((index / self.sb.inodes_per_block()).into()))?;
        let at = (index % self.sb.inodes_per_block()) as usize * usize::from(self.sb.inode_size());
        Ok(Inode::new(&bytes[at..at + usize::from(self.sb.inode_size())]))
    }

    /// Sets the bits of the fixed metadata that lies in a group.
    pub fn set_fixed(&self, group: GroupNr, bits: &mut [u8]) {
        let start = self.sb.group_start(group).0;
        let end = start + u64::from(self.sb.blocks_in_group(group));
        // Ranges do not overlap, but the last one that begins before `start` may reach into the
        // group.
        let first = self.fixed.partition_point(|range| range.1 <= start);
        for &(from, to) in self.fixed[first..].iter().take_while(|range| range.0 < end) {
            let (from, to) = (from.max(start), to.min(end));
            set_bits(bits, (from - start) as u32, to.saturating_sub(from) as u32);
        }
    }

    /// Calls `found` with each run of blocks of an inode: its contents and its map.
    pub fn blocks_of(&self, ino: Ino, inode: &Inode, found: &mut dyn FnMut(Run) -> Result<()>) -> Result<()> {
        let fast_link = inode.is_symlink() && inode.size() < BLOCK_AREA_BYTES as u64;
        if inode.flags() & flag::INLINE_DATA != 0 {
            return Ok(());
        }
        if inode.flags() & flag::EXTENTS != 0 {
            let root = Node::root(inode.block_area(), &self.sb, Site::Inode(ino))?;
            let seed = inode_seed(&self.sb, ino, inode.generation());
            return self.of_node(root, END_OF_FILES, seed, found);
        }
        let has_map = inode.is_regular() || inode.is_directory() || inode.is_symlink() && !fast_link;
        // The inode of bad blocks has no kind.
        if !has_map && ino.0 != 1 {
            return Ok(());
        }
        for slot in 0..DIRECT + 3 {
            let level = (slot + 1).saturating_sub(DIRECT);
            self.of_pointer(get_u32(inode.block_area(), 4 * slot), level, found)?;
        }
        Ok(())
    }

    fn of_node(
        &self,
        node: Node<'_>,
        end: xact_types::FileBlock,
        seed: u32,
        found: &mut dyn FnMut(Run) -> Result<()>,
    ) -> Result<()> {
        for i in 0..node.len() {
            if node.depth() == 0 {
                found(node.extent(i).run)?;
                continue;
            }
            let (child, expected) = (node.index(i).child, node.expected_child(i, end));
            found(Run { start: child, len: 1 })?;
            let bytes = self.block(child)?;
            let below = Node::in_block(&bytes, &self.sb, seed, expected, Site::Block(child))?;
            self.of_node(below, expected.end, seed, found)?;
        }
        Ok(())
    }

    fn of_pointer(&self, pointer: u32, level: usize, found: &mut dyn FnMut(Run) -> Result<()>) -> Result<()> {
        if pointer == 0 {
            return Ok(());
        }
        let block = BlockNr(pointer.into());
        found(Run { start: block, len: 1 })?;
        if level > 0 {
            for word in self.block(block)?.chunks_exact(4) {
                self.of_pointer(get_u32(word, 0), level - 1, found)?;
            }
        }
        Ok(())
    }
}

//! Copies a generation to a plain ext4 image, which Linux and e2fsck read.

use xact_device::BlockDevice;
use xact_layout::group::{BLOCK_UNINIT, GroupDesc};
use xact_layout::superblock::{SUPERBLOCK_BYTES, Superblock};
use xact_types::{BlockNr, Error, GroupNr, Result, Site};

use super::image::GenerationImage;
use super::map::{Map, MapReader};
use super::published_map::Logged;
use crate::core::block::{BlockRef, BlockSource};
use crate::snapshots::SnapshotImage;

/// Bytes that are copied at once; a multiple of every block size.
const CHUNK_BYTES: usize = 1 << 20;

/// Reads the metadata blocks of one generation, or of its log.
pub(super) struct GenerationReader<'a> {
    pub reader: &'a MapReader,
    pub map: &'a Map,
    pub logged: Option<&'a Logged>,
}

impl BlockSource for GenerationReader<'_> {
    fn read_block(&self, block: BlockNr) -> Result<BlockRef> {
        match self.logged.and_then(|logged| logged.get(&block.0)) {
            Some(Some(logged)) => return Ok(logged.contents.clone()),
            Some(None) => return self.reader.volume.read_block(block),
            None => {}
        }
        match self.map.get(self.reader, block)? {
            Some(pointer) => self.reader.read(block, pointer),
            None => self.reader.volume.read_block(block),
        }
    }
}

/// See [`SnapshotImage::export`].
pub(super) fn export(image: &GenerationImage, block_size: usize, out: &dyn BlockDevice) -> Result<u64> {
    if out.size_bytes() < image.size_bytes() {
        return Err(Error::Usage("the image is smaller than the volume".into()));
    }
    let mut copied = 0;
    let mut buf = vec![0; CHUNK_BYTES];
    for used in image.used()? {
        let mut at = used.start;
        while at < used.end {
            let bytes = &mut buf[..CHUNK_BYTES.min((used.end - at) as usize)];
            image.read_at(bytes, at).map_err(|e| Error::io("reading a generation", e))?;
            write_nonzero(out, at, bytes, block_size)?;
            copied += bytes.len() as u64;
            at += bytes.len() as u64;
        }
    }
    out.flush().map_err(|e| Error::io("flushing the image", e))?;
    Ok(copied)
}

/// Leaves holes for blocks of zeros.
fn write_nonzero(out: &dyn BlockDevice, offset: u64, bytes: &[u8], block_size: usize) -> Result<()> {
    let blocks: Vec<&[u8]> = bytes.chunks_exact(block_size).collect();
    let mut at = 0;
    while at < blocks.len() {
        let zero = |block: &&[u8]| block.iter().all(|&byte| byte == 0);
        let holes = blocks[at..].iter().take_while(|block| zero(block)).count();
        at += holes;
        let len = blocks[at..].iter().take_while(|block| !zero(block)).count();
        if len > 0 {
            out.write_at(&bytes[at * block_size..][..len * block_size], offset + (at * block_size) as u64)
                .map_err(|e| Error::io("writing the image", e))?;
        }
        at += len;
    }
    Ok(())
}

/// The superblock of a generation.
pub(super) fn superblock(seen: &GenerationReader<'_>, block_size: usize) -> Result<Superblock> {
    let own = xact_layout::superblock::SUPERBLOCK_OFFSET as usize;
    let block = seen.read_block(BlockNr((own / block_size) as u64))?;
    let at = own % block_size;
    let bytes: &[u8; SUPERBLOCK_BYTES] =
        block[at..at + SUPERBLOCK_BYTES].try_into().expect("a superblock fits its block");
    Superblock::decode(bytes)
}

/// Sorted ranges of the blocks that a generation uses.
pub(super) fn used_blocks(seen: &GenerationReader<'_>, superblock: &Superblock) -> Result<Vec<(u64, u64)>> {
    let mut used: Vec<(u64, u64)> = vec![(0, u64::from(superblock.first_data_block()))];
    let volume = &seen.reader.volume;
    for group in (0..superblock.group_count()).map(GroupNr) {
        let desc = descriptor(seen, superblock, group)?;
        for (first, len) in tables(superblock, &desc) {
            volume.check_range(first, len)?;
        }
        used.extend(fixed_blocks(superblock, group, &desc));
        let Some(bitmap) = block_bitmap(seen, superblock, group)? else { continue };
        used.extend(marked_blocks(superblock, group, &bitmap));
    }
    let joined = joined(used);
    if joined.last().is_some_and(|last| last.1 > superblock.blocks_count()) {
        return Err(Error::corrupt(Site::Superblock, "the volume's metadata lies outside it"));
    }
    Ok(joined)
}

/// Ranges of a group's fixed metadata.
pub(super) fn fixed_blocks(superblock: &Superblock, group: GroupNr, desc: &GroupDesc) -> Vec<(u64, u64)> {
    let start = superblock.group_start(group).0;
    let mut fixed = vec![(start, start + u64::from(superblock.base_meta_blocks(group)))];
    fixed.extend(tables(superblock, desc).map(|(first, len)| (first.0, first.0.saturating_add(len))));
    fixed
}

/// Sorted ranges of the blocks that a group's bitmap marks as used.
pub(super) fn marked_blocks(superblock: &Superblock, group: GroupNr, bitmap: &[u8]) -> Vec<(u64, u64)> {
    let start = superblock.group_start(group).0;
    let mut used: Vec<(u64, u64)> = Vec::new();
    let is_used = |bit: u32| bitmap[bit as usize / 8] & 1 << (bit % 8) != 0;
    for bit in (0..superblock.blocks_in_group(group)).filter(|&bit| is_used(bit)) {
        let block = start + u64::from(bit);
        match used.last_mut() {
            Some(last) if last.1 == block => last.1 += 1,
            _ => used.push((block, block + 1)),
        }
    }
    used
}

/// Sorts ranges, and joins those that touch.
pub(super) fn joined(mut ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    ranges.sort_unstable();
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for (start, end) in ranges {
        match joined.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => joined.push((start, end)),
        }
    }
    joined
}

/// The bitmaps and the inode table of a group descriptor.
fn tables(superblock: &Superblock, desc: &GroupDesc) -> [(BlockNr, u64); 3] {
    let table = u64::from(superblock.inode_table_blocks());
    [(desc.block_bitmap(), 1), (desc.inode_bitmap(), 1), (desc.inode_table(), table)]
}

/// Sorted ranges of the metadata that has a fixed place on every volume: copies of superblock and
/// descriptors, bitmaps, inode tables.
pub(super) fn fixed_metadata(
    seen: &GenerationReader<'_>,
    superblock: &Superblock,
) -> Result<Vec<(u64, u64)>> {
    let mut fixed = Vec::new();
    for group in (0..superblock.group_count()).map(GroupNr) {
        fixed.extend(fixed_blocks(superblock, group, &descriptor(seen, superblock, group)?));
    }
    Ok(joined(fixed))
}

/// The block bitmap of a group; `None` if it was never written, so that no file has a block there.
pub(super) fn block_bitmap(
    seen: &GenerationReader<'_>,
    superblock: &Superblock,
    group: GroupNr,
) -> Result<Option<BlockRef>> {
    let desc = descriptor(seen, superblock, group)?;
    if superblock.has_group_csum() && desc.has_flag(BLOCK_UNINIT) {
        return Ok(None);
    }
    seen.reader.volume.check_range(desc.block_bitmap(), 1)?;
    seen.read_block(desc.block_bitmap()).map(Some)
}

fn descriptor(seen: &GenerationReader<'_>, superblock: &Superblock, group: GroupNr) -> Result<GroupDesc> {
    let (block, at) = superblock.desc_place(group);
    let bytes = seen.read_block(block)?;
    let desc = GroupDesc::new(&bytes[at..at + usize::from(superblock.desc_size())]);
    if !desc.checksum_matches(superblock, group) {
        return Err(Error::corrupt(Site::Group(group), "checksum does not match"));
    }
    Ok(desc)
}

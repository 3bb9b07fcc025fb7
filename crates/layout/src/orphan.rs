//! Blocks of the orphan file (feature `orphan_file`): inode numbers and a tail
//! (`struct ext4_orphan_block_tail`).
//!
//! ```text
//! 0        4        8              block size - 8   block size - 4
//! inode    inode    inode   ...    magic            checksum
//! ```
//!
//! An entry of 0 is free; the order of entries means nothing. The checksum covers the block's own
//! number on the volume and the entries.

use xact_types::{BlockNr, Error, Ino, Result, Site};

use crate::checksum::crc32c;
use crate::superblock::Superblock;
use crate::{get_u32, put_u32};

/// `ob_magic`.
pub const MAGIC: u32 = 0x0B10_CA04;
const TAIL_BYTES: usize = 8;

/// Entries of a block of this size.
pub fn entries_per_block(block_size: usize) -> usize {
    (block_size - TAIL_BYTES) / 4
}

/// The inode in an entry; `None` in a free one.
pub fn entry(bytes: &[u8], index: usize) -> Option<Ino> {
    Some(Ino(get_u32(bytes, 4 * index))).filter(|ino| ino.0 != 0)
}

pub fn set_entry(bytes: &mut [u8], index: usize, ino: Option<Ino>) {
    put_u32(bytes, 4 * index, ino.map_or(0, |ino| ino.0));
}

/// `seed` is the orphan file's inode seed (see [`crate::inode::inode_seed`]).
fn checksum(bytes: &[u8], seed: u32, block: BlockNr) -> u32 {
    crc32c(crc32c(seed, &block.0.to_le_bytes()), &bytes[..bytes.len() - TAIL_BYTES])
}

/// Refuses a block that is not one of an orphan file.
pub fn verify(bytes: &[u8], sb: &Superblock, seed: u32, block: BlockNr) -> Result<()> {
    if get_u32(bytes, bytes.len() - 8) != MAGIC {
        return Err(Error::corrupt(Site::Block(block), "not a block of the orphan file"));
    }
    if sb.has_metadata_csum() && get_u32(bytes, bytes.len() - 4) != checksum(bytes, seed, block) {
        return Err(Error::corrupt(Site::Block(block), "checksum of the orphan file does not match"));
    }
    Ok(())
}

/// Stores magic and checksum; to be called after the last change.
pub fn seal(bytes: &mut [u8], sb: &Superblock, seed: u32, block: BlockNr) {
    let end = bytes.len();
    put_u32(bytes, end - 8, MAGIC);
    if sb.has_metadata_csum() {
        let sum = checksum(bytes, seed, block);
        put_u32(bytes, end - 4, sum);
    }
}

//! The place of the journal on a device, found without the engine.

use xact_device::SECTOR_BYTES;

use super::{BLOCK_BYTES, JBD2_MAGIC};
use crate::image::Image;

/// The journal: its first byte, and the fields of its superblock that forging needs.
pub(super) struct LogPlace {
    pub start: u64,
    pub block_bytes: u64,
    pub blocks: u32,
    pub first: u32,
}

impl LogPlace {
    /// Finds the journal's superblock; mke2fs lays a small journal out in one piece.
    pub fn find(image: &Image) -> Option<LogPlace> {
        const SUPERBLOCK_V2: u32 = 4;
        let mut bytes = [0; 24];
        for block in 0..image.size_bytes() / BLOCK_BYTES as u64 {
            image.read(&mut bytes, block * BLOCK_BYTES as u64);
            let word = |n: usize| u32::from_be_bytes(bytes[4 * n..4 * n + 4].try_into().expect("four bytes"));
            if word(0) == JBD2_MAGIC && word(1) == SUPERBLOCK_V2 {
                let start = block * BLOCK_BYTES as u64;
                return Some(LogPlace {
                    start,
                    block_bytes: word(3).into(),
                    blocks: word(4),
                    first: word(5),
                });
            }
        }
        None
    }
}

/// The position of the journal, in bytes of the device.
pub fn log_range(image: &Image) -> Option<std::ops::Range<u64>> {
    let place = LogPlace::find(image)?;
    Some(place.start..place.start + u64::from(place.blocks) * place.block_bytes)
}

/// Sectors of the copies in the log. (A transaction without its descriptor or commit block cannot
/// be distinguished from one that a crash interrupted.)
pub(crate) fn log_copies(image: &Image) -> Vec<u64> {
    let Some(place) = LogPlace::find(image) else { return Vec::new() };
    let sectors = place.block_bytes / SECTOR_BYTES as u64;
    (place.first..place.blocks)
        .map(|n| place.start + u64::from(n) * place.block_bytes)
        .filter(|&offset| {
            let mut magic = [0; 4];
            image.read(&mut magic, offset);
            magic != [0; 4] && magic != JBD2_MAGIC.to_be_bytes()
        })
        .flat_map(|offset| (0..sectors).map(move |s| offset / SECTOR_BYTES as u64 + s))
        .collect()
}

//! Gives an ext4 volume generations, on a device with space after the volume.
//!
//! 1. The blocks that hold copies of the superblock are copied to the pool. A map that leads to
//!    them and the first root are written. **Flush.**
//! 2. The copies at home get our `incompat` bit, the primary one last. From then on the kernel and
//!    e2fsck refuse the volume. Without the bit they would take old metadata at home for the
//!    present state. **Flush.**
//!
//! A crash in 2 may tear the primary superblock, which has two sectors. The old and the new one
//! differ in the bit and the checksum only, and any mixture of their sectors is recognized
//! (`superblock_io`).
//!
//! A crash before the primary superblock is written leaves the ext4 volume unchanged and sound,
//! with blocks after its end that nothing refers to. The bit in the backups alone is harmless: they
//! are read only if the primary one is lost.

use std::io::IoSlice;
use std::sync::Arc;

use xact_device::BlockDevice;
use xact_layout::feature::incompat;
use xact_layout::generations::{MAX_BITMAP_BLOCKS, Pointer, PoolShape, Root, Target};
use xact_layout::superblock::SUPERBLOCK_BYTES;
use xact_types::units::size_text;
use xact_types::{BlockNr, Error, Result};

use super::map::{Map, MapReader};
use super::pool::Pool;
use super::{admission, commit, root, writeback_home};
use crate::core::superblock_io::{self, Flags, Health, SuperblockPlace};
use crate::core::volume::Volume;

/// Fewest credits that every operation can do with.
const MIN_CREDITS: u32 = 256;

/// Size of the pool for a device of this size: a sixteenth, at least 4 MiB or what a volume of this
/// size needs, at most 1 GiB.
pub fn default_pool_bytes(device_bytes: u64, block_size: u32) -> u64 {
    let least = min_pool_bytes(device_bytes, block_size).next_multiple_of(1 << 20);
    (device_bytes / 16).clamp(4 << 20, 1 << 30).max(least)
}

/// Size of the smallest pool for a volume of this size: a commit in it can change [`MIN_CREDITS`]
/// blocks.
pub fn min_pool_bytes(volume_bytes: u64, block_size: u32) -> u64 {
    let volume_blocks = volume_bytes / u64::from(block_size);
    let taken = commit::blocks_taken(volume_blocks, block_size, MIN_CREDITS);
    let needed = admission::pool_for_commits_of(taken);
    let mut shape = PoolShape { block_size, volume_blocks, device_blocks: volume_blocks + needed };
    // The roots and the bitmap come on top.
    while shape.pool_blocks() < needed {
        shape.device_blocks += needed - shape.pool_blocks();
    }
    (shape.device_blocks - volume_blocks) * u64::from(block_size)
}

/// Gives the ext4 volume at the start of `device` generations; the pool follows it and ends at
/// `end_bytes`, at most the size of the device.
///
/// A journal stays in its place, empty. No code writes it until the volume is a plain one again,
/// and images of its generations include it.
///
/// Errors: `Usage`, before anything is written, for a volume with generations, one that was not
/// unmounted cleanly, and a pool too small or too large.
pub fn format(device: Arc<dyn BlockDevice>, end_bytes: u64) -> Result<()> {
    let home = superblock_io::read(&*device)?;
    let superblock = home.superblock;
    if superblock_io::has_generations(&superblock) {
        return Err(Error::Usage("the volume has generations already".into()));
    }
    // Refused: a journal on another device.
    superblock_io::has_journal(&superblock)?;
    let unclean = superblock.state() != xact_layout::superblock::STATE_CLEAN;
    if home.health == Health::Unsound || unclean || superblock.has_incompat(incompat::RECOVER) {
        return Err(Error::Usage("the volume was not left cleanly; run e2fsck first".into()));
    }
    let shape = super::shape_of(&superblock, end_bytes.min(device.size_bytes()));
    check_shape(&shape)?;
    let mut volume = Volume::new(device, shape.block_size as usize, shape.volume_blocks)?;
    volume.extend_reach(shape.device_blocks);
    let volume = Arc::new(volume);
    let reader = MapReader { volume: volume.clone(), shape };
    if commit::max_credits(&reader) < MIN_CREDITS {
        let least = size_text(
            min_pool_bytes(shape.volume_blocks * u64::from(shape.block_size), shape.block_size)
                .next_multiple_of(1 << 16),
        );
        return Err(Error::Usage(format!("the pool is too small for this volume: it needs {least}")));
    }
    if home.health == Health::TornFlags {
        // A crash during a conversion tore it. The generation gets a copy of it, which must be
        // sound.
        SuperblockPlace::of(&superblock).write_home(&volume, Flags::default())?;
    }
    let mut pool = Pool::empty(shape);
    let mut map = Map::new(reader.levels(), None);
    let mut out = Vec::new();
    let copies: Vec<BlockNr> = writeback_home::superblock_copies(&superblock).collect();
    for &block in &copies {
        let contents = volume.read_block(block)?;
        let pool_block = pool.take()?;
        map.set(&reader, block, Some(Pointer::new(pool_block, 1, Target::Block(block), &contents)))?;
        out.push((pool_block, contents));
    }
    map.write(&reader, 1, &mut || pool.take(), &mut out)?;
    pool.write_changed(&mut out);
    out.sort_unstable_by_key(|(pool_block, _)| *pool_block);
    volume.write_sorted(&out)?;
    let root = Root {
        generation: 1,
        uuid: superblock.uuid(),
        shape,
        map_levels: reader.levels(),
        map: map.root(),
        used: pool.used(),
        snapshots: None,
        has_moved_data: false,
        log: None,
        bitmaps: pool.bitmaps(),
    };
    root::write_root(&volume, &root, 1)?;
    // A root that an older volume left in the other slot must not count.
    root::write_slot(&volume, &shape, 0, &[0; xact_layout::generations::ROOT_BYTES])?;
    // Durable by this flush: the first generation. Without it the superblock could announce
    // generations without a root.
    volume.flush()?;
    for &block in copies.iter().rev() {
        mark(&volume, block, if block == superblock.own_block() { superblock.own_offset() } else { 0 })?;
    }
    // Durable by this flush: the bit that makes other programs refuse the volume, before anything
    // relies on it.
    volume.flush()
}

fn check_shape(shape: &PoolShape) -> Result<()> {
    if shape.device_blocks <= shape.volume_blocks || shape.pool_blocks() == 0 {
        return Err(Error::Usage("there is no room for a pool behind the volume".into()));
    }
    if shape.bitmap_blocks() > MAX_BITMAP_BLOCKS {
        let most = MAX_BITMAP_BLOCKS * 8 * u64::from(shape.block_size).pow(2);
        return Err(Error::Usage(format!("the pool can have at most {} MiB", most >> 20)));
    }
    Ok(())
}

/// Sets our bit in a copy of the superblock, in its own place.
fn mark(volume: &Volume, block: BlockNr, offset: usize) -> Result<()> {
    let mut bytes = volume.read_block(block)?.to_vec();
    Flags { generations: Some(true), ..Flags::default() }
        .apply(&mut bytes[offset..offset + SUPERBLOCK_BYTES]);
    volume.write(block, &[IoSlice::new(&bytes)])
}

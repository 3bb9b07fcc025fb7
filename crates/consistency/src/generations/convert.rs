//! Converts a volume with generations to a plain ext4 volume. `format` converts the other way.
//!
//! 1. Commits write every block home ([`Generations::write_all_home`]), until the pool holds only
//!    the copies of the superblock. Each of these commits makes an ordinary generation.
//! 2. The primary superblock is written to its own place with the generation's contents, but with
//!    our `incompat` bit. **Flush.**
//! 3. The bit is cleared in it. **Flush.** From here on it is an ext4 volume, and nothing refers to
//!    the blocks after its end.
//! 4. The bit is cleared in the backups ([`unmark_backups`]). **Flush.**
//!
//! A crash before 3 leaves a volume with generations. A crash in 2 may tear the superblock. Any
//! mixture of its old and new sectors has the bit. It also has the right position of the roots,
//! since the old and the new superblock have the same geometry. Everything else is taken from the
//! generation (`Generations::open`).
//!
//! In 3 the old and the new superblock differ in the bit and the checksum only. Any mixture of
//! their sectors is recognized (`superblock_io`). With the bit it counts as a volume with
//! generations, all of whose blocks are at home. Without the bit it counts as the ext4 volume.
//! After 3, backups may still have the bit; another conversion clears it.

use std::io::IoSlice;
use std::sync::Arc;

use xact_device::BlockDevice;
use xact_layout::superblock::{SUPERBLOCK_BYTES, Superblock};
use xact_types::{BlockNr, Error, Result};

use super::export::{self, GenerationReader};
use super::{Generations, writeback_home};
use crate::core::block::BlockSource;
use crate::core::superblock_io::{self, Flags};
use crate::core::volume::Volume;

impl Generations {
    /// See [`crate::Snapshots::make_plain`].
    pub(super) fn convert_to_plain(&self) -> Result<()> {
        self.core.check_open()?;
        self.core.volume.poison.check()?;
        self.core.end_threads();
        let _turn = self.core.pipeline.lead_alone();
        let mut state = self.state.lock();
        if !state.snapshots.is_empty() || !self.core.blocks.is_unchanged() {
            return Err(Error::Usage("delete the snapshots first: only generations can keep them".into()));
        }
        self.core.guard(self.write_all_home(&mut state))?;
        let (reader, volume) = (&self.reader, &self.core.volume);
        let seen = GenerationReader { reader, map: &state.map, logged: None };
        let superblock = export::superblock(&seen, volume.block_size)?;
        let copies: Vec<BlockNr> = writeback_home::superblock_copies(&superblock).collect();
        let moved = state.map.moved(reader, BlockNr(0), copies.len() + 1)?;
        if moved.len() != copies.len() || moved.iter().any(|(block, _)| !copies.contains(block)) {
            return Err(Error::Usage("not all blocks could be brought to their own places".into()));
        }
        self.core.guard(write_home(&seen, &superblock))?;
        drop(state);
        self.core.close();
        Ok(())
    }
}

/// Steps 2 to 4.
fn write_home(seen: &GenerationReader<'_>, superblock: &Superblock) -> Result<()> {
    let (own, volume) = (superblock.own_block(), &seen.reader.volume);
    for bit in [true, false] {
        let mut bytes = seen.read_block(own)?.to_vec();
        marked(bit).apply(&mut bytes[superblock.own_offset()..][..SUPERBLOCK_BYTES]);
        volume.write(own, &[IoSlice::new(&bytes)])?;
        // Durable by the first flush: the superblock in its final state, except for the bit.
        // Without it a crash could leave two sectors of an ext4 superblock that do not fit
        // together. By the second: that it is an ext4 volume, before the bit is cleared in the
        // backups and the pool is cut off.
        volume.flush()?;
    }
    unmark(volume, superblock)
}

/// The volume on a device; see [`volume_on`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct VolumeOn {
    /// Size of the ext4 volume, without the pool.
    pub size_bytes: u64,
    /// Size of a block.
    pub block_size: u32,
    /// Whether the volume has generations.
    pub has_generations: bool,
}

/// The volume on a device, by its superblock. Also works if a crash during a conversion has torn
/// that.
pub fn volume_on(device: &dyn BlockDevice) -> Result<VolumeOn> {
    let superblock = superblock_io::read(device)?.superblock;
    Ok(VolumeOn {
        size_bytes: superblock.blocks_count().saturating_mul(superblock.block_size().into()),
        block_size: superblock.block_size(),
        has_generations: superblock_io::has_generations(&superblock),
    })
}

/// Clears our bit in the backups of a plain volume's superblock, if a crash during a conversion has
/// left it there.
pub fn unmark_backups(device: Arc<dyn BlockDevice>) -> Result<()> {
    let superblock = superblock_io::read(&*device)?.superblock;
    if superblock_io::has_generations(&superblock) {
        return Err(Error::Usage("the volume has generations".into()));
    }
    unmark(&Volume::new(device, superblock.block_size() as usize, superblock.blocks_count())?, &superblock)
}

fn marked(generations: bool) -> Flags {
    Flags { generations: Some(generations), ..Flags::default() }
}

/// Step 4.
pub(super) fn unmark(volume: &Volume, superblock: &Superblock) -> Result<()> {
    for block in
        writeback_home::superblock_copies(superblock).filter(|&block| block != superblock.own_block())
    {
        let mut bytes = volume.read_block(block)?.to_vec();
        marked(false).apply(&mut bytes[..SUPERBLOCK_BYTES]);
        volume.write(block, &[IoSlice::new(&bytes)])?;
    }
    // Durable by this flush: the backups, before the conversion is reported as complete.
    volume.flush()
}

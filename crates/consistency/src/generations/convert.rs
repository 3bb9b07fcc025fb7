//! Making a volume with generations a plain ext4 volume again. The other way is `format`.
//!
//! 1. Commits bring every block home ([`Generations::write_all_home`]), until the pool has the
//!    copies of the superblock alone. Each is an ordinary generation.
//! 2. The primary superblock is written to its own place as the generation has it, but with our
//!    `incompat` bit. **Flush.**
//! 3. The bit is taken off it. **Flush.** From here on it is an ext4 volume; what lies behind its
//!    end is nothing that anybody refers to.
//! 4. The bit is taken off the backups ([`unmark_backups`]). **Flush.**
//!
//! What a crash leaves: until 3, a volume with generations. In 2 it may tear the superblock, which
//! then has the bit in any mixture, and says rightly where the roots are (the geometry is the same
//! in both): all else is taken from the generation (`Generations::open`). In 3 the sectors differ
//! by the bit and by the checksum, and any mixture of them is known (`superblock_io`): with the bit
//! it is a volume with generations, all of whose blocks are at home; without it the ext4 volume
//! that it has become. After that, backups may still have the bit; converting once more takes it
//! off.

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
        // Durable by the first flush: the superblock as it will be, but for the bit. Without it a
        // crash could leave the two sectors of an ext4 superblock that nobody can make fit. By the
        // second: that it is an ext4 volume, before the backups lose the bit and the pool is cut
        // off.
        volume.flush()?;
    }
    unmark(volume, superblock)
}

/// Size of the ext4 volume on a device, in bytes, and whether it has generations; also where a
/// conversion that a crash ended has torn its superblock.
pub fn volume_on(device: &dyn BlockDevice) -> Result<(u64, bool)> {
    let superblock = superblock_io::read(device)?.superblock;
    let bytes = superblock.blocks_count().saturating_mul(superblock.block_size().into());
    Ok((bytes, superblock_io::has_generations(&superblock)))
}

/// Takes our bit off the backups of the superblock of a volume that is a plain one, where a
/// conversion that a crash ended has left it.
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

fn unmark(volume: &Volume, superblock: &Superblock) -> Result<()> {
    for block in
        writeback_home::superblock_copies(superblock).filter(|&block| block != superblock.own_block())
    {
        let mut bytes = volume.read_block(block)?.to_vec();
        marked(false).apply(&mut bytes[..SUPERBLOCK_BYTES]);
        volume.write(block, &[IoSlice::new(&bytes)])?;
    }
    // Durable by this flush: the backups, before anybody is told that the conversion is complete.
    volume.flush()
}

//! Who writes which metadata block when.
//!
//! An [`Engine`] owns every dirty metadata block and all ordering of writes. Operations open a
//! [`Handle`], change blocks through it, and drop it; they never ask which engine or which mode
//! they run on. `read_data`/`write_data` pass file data through, since its order against the
//! metadata is the engine's business too.
//!
//! Lock order above the engine: inode locks, then `begin`, then group locks. Nobody waits for an
//! inode lock while holding a handle: `begin` may wait for running handles to end.

mod core;
mod engine;
mod fault;
pub mod generations;
pub mod journal;
pub mod mmp;
mod options;
pub mod recovery;
pub mod unjournaled;

use std::sync::Arc;

use xact_device::BlockDevice;
use xact_layout::superblock::{Superblock, Support};
use xact_types::Result;

pub use core::pipeline::Waiting;
pub use engine::{
    BlockRef, DataInLog, DataWrite, Each, Engine, EngineStats, FORGOTTEN_AT_ONCE, Handle, NewData, Room,
    Version, lock_within,
};
#[cfg(feature = "faults")]
pub use fault::on_each_step;
pub use fault::{Fault, Faults};
pub use generations::{GenerationImage, GenerationsEngine, PoolUse, SnapshotInfo, SnapshotPart};
pub use journal::{JournalEngine, JournalSize};
pub use options::{CommitWrites, EngineOptions, Fsync, LogRecords};
pub use recovery::{RecoveryReport, recover};
pub use unjournaled::NoneEngine;

/// The superblock once what a crash left is replayed, for what must be known before opening. (That of a
/// volume with generations is in its map; this is an older one.)
///
/// Errors: `Unsupported`, before anything is replayed, for features that xact does not know; else as
/// [`recover`].
pub fn recovered_superblock(device: &Arc<dyn BlockDevice>, options: &EngineOptions) -> Result<Superblock> {
    core::superblock_io::read(&**device)?.superblock.support()?;
    recover(device, options)?;
    Ok(core::superblock_io::read(&**device)?.superblock)
}

/// Opens a volume with the engine that it is made for, after replaying what a crash left.
///
/// Errors: `Unsupported`, before anything is replayed, for features that xact does not know. Where
/// they allow reading, the engine is read-only ([`Engine::is_read_only`]).
pub fn open(device: Arc<dyn BlockDevice>, mut options: EngineOptions) -> Result<Arc<dyn Engine>> {
    let home = core::superblock_io::read(&*device)?;
    if home.superblock.support()? != Support::ReadWrite {
        options.read_only = true;
    }
    if generations::has_generations(&home.superblock) {
        Ok(GenerationsEngine::open(device, options)?)
    } else if journal::location::has_journal(&home.superblock)? {
        Ok(JournalEngine::open(device, options)?)
    } else {
        Ok(NoneEngine::open(device, options)?)
    }
}

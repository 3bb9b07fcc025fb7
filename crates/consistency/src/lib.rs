//! The order of writes to the volume.
//!
//! An [`Engine`] owns every dirty metadata block and all ordering of writes. Operations open a
//! [`Handle`], change blocks through it, and drop it; they never ask for the mechanism or mode.
//! File data passes through `read_data` and `write_data`, since its order against the metadata is
//! the engine's business too.
//!
//! ```text
//!   handle, engine          the interface of operations
//!   mechanism               the seam: how a commit becomes durable
//!   journal | generations | unjournaled     import `core` and never each other
//!   core                    volume, cache, dirty blocks, pipeline of commits
//!   recovery                replays a journal, before there is an engine
//! ```
//!
//! Lock order above the engine: inode locks, then `begin`, then group locks. No thread waits for an
//! inode lock while it holds a handle: `begin` may wait for running handles to end.

mod core;
mod engine;
mod fault;
mod generations;
mod handle;
mod journal;
mod mechanism;
pub mod mmp;
mod options;
pub mod recovery;
mod snapshots;
#[cfg(feature = "faults")]
pub mod test_engine;
mod unjournaled;

use std::sync::Arc;

use xact_device::BlockDevice;
use xact_layout::superblock::{Superblock, Support};
use xact_types::Result;

use crate::core::superblock_io::{self, has_generations, has_journal};
use generations::Generations;
use journal::Journal;
use unjournaled::Unjournaled;

pub use crate::core::block::{BlockRef, NewData, PerVersion, Version};
pub use crate::core::leader::when_leading;
pub use crate::core::waits::Waiting;
pub use engine::{Engine, lock_within};
#[cfg(feature = "faults")]
pub use fault::on_each_step;
pub use fault::{Fault, Faults};
pub use generations::{
    BlockDamage, DamagedBlocks, Salvage, VolumeOn, default_pool_bytes, format_generations, min_pool_bytes,
    unmark_backups, volume_on,
};
pub use handle::Handle;
pub use mechanism::{DataInLog, DataWrite, EngineStats, JournalSize, ReserveClass, ResizableJournal};
pub use options::{CommitWrites, EngineOptions, Fsync, LogRecords};
pub use recovery::{RecoveryReport, needs_replay, recover};
pub use snapshots::{PartialSnapshot, PoolUse, SnapshotImage, SnapshotInfo, Snapshots, UnprunedSnapshot};

/// The superblock after a replay of the log that a crash left, for properties that must be known
/// before opening. (The current superblock of a volume with generations is in its map; this is an
/// older one.)
///
/// Errors: `Unsupported`, before anything is replayed, for features that xact does not know; else
/// as [`recover`].
pub fn recovered_superblock(device: &Arc<dyn BlockDevice>, options: &EngineOptions) -> Result<Superblock> {
    superblock_io::read(&**device)?.superblock.support()?;
    recover(device, options)?;
    Ok(superblock_io::read(&**device)?.superblock)
}

/// Opens a volume with the mechanism that it was made for, after replaying the log that a crash
/// left.
///
/// Errors: `Unsupported`, before anything is replayed, for features that xact does not know. If
/// they allow reading, the engine is read-only ([`Engine::is_read_only`]).
pub fn open(device: Arc<dyn BlockDevice>, mut options: EngineOptions) -> Result<Arc<Engine>> {
    let home = superblock_io::read(&*device)?;
    if home.superblock.support()? != Support::ReadWrite {
        options.read_only = true;
    }
    if has_generations(&home.superblock) {
        open_generations(device, options)
    } else if has_journal(&home.superblock)? {
        open_journal(device, options)
    } else {
        open_unjournaled(device, options)
    }
}

/// Opens a volume that has a journal, after replaying the log that a crash left.
///
/// Errors: `Usage` if there is no journal, or if the log must be replayed and the device is
/// read-only; `Unsupported` for journals on another device and fast commits that are not replayed;
/// `Corrupt`.
pub fn open_journal(device: Arc<dyn BlockDevice>, options: EngineOptions) -> Result<Arc<Engine>> {
    let report = recover(&device, &options)?;
    let (core, journal) = Journal::open(device, &options)?;
    Engine::new(core, journal, report)
}

/// Opens a volume with generations, at the newest whole one.
///
/// Errors: `Usage` for a volume without generations; `Corrupt` if there is no whole root.
pub fn open_generations(device: Arc<dyn BlockDevice>, options: EngineOptions) -> Result<Arc<Engine>> {
    let (core, generations, report) = Generations::open(device, &options)?;
    Engine::new(core, generations, report)
}

/// Opens a volume without a journal.
///
/// Errors: `Usage` if there is one; `Corrupt`.
pub fn open_unjournaled(device: Arc<dyn BlockDevice>, options: EngineOptions) -> Result<Arc<Engine>> {
    let (core, unjournaled) = Unjournaled::open(device, &options)?;
    Engine::new(core, unjournaled, RecoveryReport::default())
}

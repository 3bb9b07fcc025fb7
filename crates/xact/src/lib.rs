//! An ext4 in user space with ACID transactions: the library.
//!
//! A [`Volume`] is an ext4 volume that this process has open, without a mount. All threads share
//! it. A [`Transaction`] is a private view of one instant of it, whose changes become part of the
//! volume together or not at all. Both have the file operations of [`std::fs`] ([`PathExt`]), and
//! give a [`View`] with every operation by inode number.
//!
//! ```
//! # fn main() -> xact::Result<()> {
//! use std::sync::Arc;
//! use xact::mkfs::{MkfsOptions, mkfs};
//! use xact::{MemoryDevice, PathExt, Volume, VolumeOptions};
//! let device = Arc::new(MemoryDevice::new(64 << 20));
//! mkfs(&*device, &MkfsOptions::default())?;
//! let volume = Volume::open(device, &VolumeOptions::default())?;
//!
//! let transaction = volume.begin(Default::default());
//! transaction.create_dir_all("/mail/attachments")?;
//! transaction.write("/mail/attachments/1", "a picture")?;
//! transaction.write("/mail/index", "1: a picture")?;
//! assert!(!volume.exists("/mail/index")?, "nothing outside of the transaction sees it");
//! transaction.commit()?;
//!
//! assert_eq!(volume.read("/mail/index")?, b"1: a picture");
//! volume.close()
//! # }
//! ```
//!
//! Snapshots are made with [`Volume::create_snapshot`], and without opening the files with
//! [`OfflineSnapshots`]. [`recover`], [`VolumeInfo`] and [`stored_modes`] serve volumes that are
//! not open, and [`restore`](mod@restore) writes a snapshot back to a mount.
//!
//! Options are written as `VolumeOptions { read_only: true, ..Default::default() }`, so that new
//! ones break no callers. Errors and reports may get new variants and fields (`#[non_exhaustive]`).

#![warn(missing_docs)]

mod descent;
pub mod device;
mod file;
mod info;
mod modes;
mod offline_snapshots;
mod paths;
mod recover;
pub mod restore;
mod retention;
pub mod salvage;
mod schedule;
mod snapshot;
mod snapshot_diff;
mod space_holders;
mod sparse;
mod transaction;
mod unsaved;
mod volume;

pub use file::{File, OpenOptions};
pub use info::{Access, VolumeInfo};
pub use modes::{change_modes, stored_modes};
pub use offline_snapshots::OfflineSnapshots;
pub use paths::{DirEntry, PathExt, Paths};
pub use recover::{open_replayed, recover, replay_log};
pub use retention::{Date, RetentionPolicy};
pub use schedule::{AUTOMATIC, Schedule};
pub use snapshot::{Snapshot, SnapshotImage};
pub use space_holders::SpaceHolders;
pub use sparse::copy_sparse;
pub use transaction::{Refused, Savepoint, SharedTransaction, Transaction};
pub use unsaved::Unsaved;
pub use volume::{CacheUse, SnapshotWatcher, Volume};
pub use xact_consistency::{
    CommitWrites, EngineStats, Fsync, LogRecords, PoolUse, RecoveryReport, SnapshotInfo, VolumeOn,
    default_pool_bytes, volume_on, when_leading,
};
pub use xact_device::{BlockDevice, FileDevice, MemoryDevice, OpenMode};
pub use xact_fs::posix::Credentials;
pub use xact_fs::{
    AccessOptions, AccessTimes, Allocate, Attr, Caller, DataMode, FILE_MODE, FileKind, InodeUpdate,
    ModeChoice, Modes, OnError, PERSISTED_FOLDER, QuotaLimits, RenameHow, SetAttr, Shutdown, TimeChange,
    TxHolding, TxSpaceUse, View, VolumeOptions, WriteHow, Written, WrittenBlocks,
};
pub use xact_fs::{convert, mkfs};
pub use xact_layout::generations::{paths_from_text, paths_text};
pub use xact_txn::{
    AbortHistory, Changes, CommitObserver, ConflictDetection, Difference, Durability, Isolation, LostAttempt,
    PersistedInfo, Reader, SearchedFolders, Side, TxOptions, TxState, What,
};
pub use xact_txn::{Account, Accounts, Charge, Limits, RESOURCES, Resource};
pub use xact_types::{
    BlockNr, Corruption, Errno, Error, Ino, LatencySnapshot, LatencySummary, Result, Site, Timestamp,
};
pub use xact_types::{selection, settings, units};

/// A full, read-only check of a volume, as e2fsck makes, and the use of single blocks.
pub mod check {
    pub use xact_check::{Problem, Progress, Report, Totals, Use, check, uses};
}

/// The contents of a volume's journal (jbd2), read without a replay.
pub mod journal {
    pub use xact_consistency::recovery::inspect::{
        LogContents, LoggedCopy, LoggedState, LoggedTransaction, inspect,
    };
    pub use xact_layout::jbd2::{Checksums, Features};
}

/// Text for terminals: names that other users chose, without control characters.
pub mod text {
    pub use xact_types::{printable, printable_bytes, printable_lines};
}

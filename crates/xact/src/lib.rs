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

pub mod device;
mod file;
mod keep;
mod paths;
mod schedule;
mod snapshot;
mod snapshot_diff;
mod transaction;
mod volume;

pub use file::{File, OpenOptions};
pub use keep::{Date, KeepRules};
pub use paths::{DirEntry, PathExt, Paths};
pub use schedule::{AUTOMATIC, Schedule};
pub use snapshot::{Snapshot, SnapshotImage};
pub use transaction::{Refused, Savepoint, SharedTransaction, Transaction};
pub use volume::{CacheUse, SnapshotWatcher, Volume};
pub use xact_consistency::{CommitWrites, Fsync, LogRecords, PoolUse, SnapshotInfo, when_leading};
pub use xact_device::{BlockDevice, FileDevice, MemoryDevice, OpenMode};
pub use xact_fs::posix::Credentials;
pub use xact_fs::{
    AccessOptions, AccessTimes, Allocate, Attr, Caller, DataMode, FileKind, InodeUpdate, ModeChoice, Modes,
    OnError, PERSISTED_FOLDER, QuotaLimits, RenameHow, SetAttr, Shutdown, TimeChange, View, VolumeOptions,
    WriteHow,
};
pub use xact_fs::{convert, mkfs};
pub use xact_layout::generations::{paths_from_text, paths_text};
pub use xact_txn::{
    AbortHistory, Changes, CommitObserver, Difference, Durability, Isolation, LostAttempt, PersistedInfo,
    Reader, Side, TxOptions, TxState, What,
};
pub use xact_txn::{Account, Accounts, Charge, Limits, RESOURCES, Resource};
pub use xact_types::{Errno, Error, Ino, Result, Timestamp};

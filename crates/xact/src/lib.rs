//! An ext4 in user space with ACID transactions: the library.
//!
//! A [`Volume`] is opened in this process, without a mount. Everybody shares its base; a
//! [`Transaction`] is a private view of one instant, whose changes become part of the base as one.
//! Both are [`View`]s, with every operation by inode number; [`Files`] has the common ones by path.
//!
//! ```
//! # fn main() -> xact::Result<()> {
//! use std::sync::Arc;
//! use xact::{Files, MemoryDevice, Volume, VolumeOptions};
//! # use xact::mkfs::{MkfsOptions, mkfs};
//! let device = Arc::new(MemoryDevice::new(64 << 20));
//! mkfs(&*device, &MkfsOptions::default())?;
//! let volume = Volume::open(device, &VolumeOptions::default())?;
//!
//! let transaction = volume.begin(Default::default());
//! transaction.create_dir_all("/mail/attachments")?;
//! transaction.write_file("/mail/attachments/1", b"a picture")?;
//! transaction.write_file("/mail/index", b"1: a picture")?;
//! assert!(volume.base().read_file("/mail/index").is_err(), "nobody sees it yet");
//! transaction.commit()?;
//!
//! assert_eq!(volume.base().read_file("/mail/index")?, b"1: a picture");
//! volume.close()
//! # }
//! ```

mod files;
mod keep;
mod schedule;
mod snapshot;
mod snapshot_diff;
mod volume;

pub use files::Files;
pub use keep::{Date, KeepRules, parse_time};
pub use schedule::{AUTOMATIC, Schedule};
pub use snapshot::{Snapshot, SnapshotImage};
pub use volume::{CacheUse, SnapshotWatcher, Transaction, Volume};
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

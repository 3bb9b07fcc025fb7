//! POSIX operations on an ext4 volume.
//!
//! The crate has four levels:
//! - `posix`: the operations, written once over the trait [`InodeOps`] (one state of the volume:
//!   the live one, or the private view of a transaction)
//! - `versioned_fs`: the interface between transactions and the file system under them
//! - `live`: the volume itself, with its locks, caches and write-back
//! - the on-disk structures, one module each: allocation, extents, directories, attributes

pub mod alloc;
pub mod api;
pub mod convert;
pub mod dir;
pub mod extent;
mod file_mode;
pub mod fixed_blocks;
pub mod inode_ops;
pub mod inode_table;
mod journal_map;
pub mod journal_modes;
pub mod live;
pub mod metadata_blocks;
pub mod mkfs;
pub mod orphan;
pub mod posix;
pub mod prune;
pub mod quota;
pub mod superblock;
pub mod versioned_fs;
pub mod volume;
pub mod xattr;

pub use api::{
    Allocate, Attr, Caller, DirItem, Entry, FileKind, Name, PERSISTED_FOLDER, RenameHow, SeekTo, SetAttr,
    TimeChange, View, VolumeSpace, WriteHow, Written, XattrHow, is_persisted_folder,
};
pub use file_mode::{FILE_MODE, choose_file_mode};
pub use inode_ops::{AttrChange, AttrSet, InodeOps, NewInode};
pub use journal_modes::{DataMode, InodeUpdate, ModeChoice, Modes};
pub use live::{
    AccessOptions, AccessTimes, LiveFs, LiveOptions, OnError, Operation, OwnerOptions, PinnedSpace, ReadView,
    Shutdown, StagedBlocks, Synced, TxHolding, TxSpace, TxSpaceUse, WrittenBlocks,
};
pub use quota::QuotaLimits;
pub use versioned_fs::{
    BlockChange, BlockContents, ChangedBy, CommitOps, CommitSize, CommitTarget, DirGrowth, HoldsTxSpace,
    InodeLimits, InstallOps, NewContents, ReadAsOf, ReservationOps, SpaceLimits, SpillPlace, SpilledBlock,
    Staging, Stamp, ValidationOps, VersionedFs,
};
pub use volume::{VolumeOptions, open};
pub use xattr::XattrChanges;

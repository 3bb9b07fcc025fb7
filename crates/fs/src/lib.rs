//! POSIX operations on an ext4 volume.
//!
//! Three levels, each in files of its own:
//! - what the operations are: `posix`, written once over the trait [`Tree`] (one state of the
//!   volume: the base, or the private view of a transaction);
//! - the base: the volume itself, with its locks, caches and write-back;
//! - the on-disk structures, one file each: allocation, extents, directories, attributes.

pub mod alloc;
pub mod api;
pub mod base;
pub mod convert;
pub mod cut;
pub mod dir;
pub mod extent;
pub mod inode_table;
mod journal_map;
pub mod metadata_blocks;
pub mod mkfs;
pub mod modes;
pub mod orphan;
pub mod posix;
pub mod quota;
pub mod superblock;
pub mod tree;
pub mod volume;
pub mod xattr;

pub use api::{
    Allocate, Attr, Caller, DirItem, Entry, FileKind, KEPT_FOLDER, Name, RenameHow, SeekTo, SetAttr,
    TimeChange, View, VolumeSpace, WriteHow, XattrHow,
};
pub use base::{
    AccessOptions, AccessTimes, Base, BaseOptions, BaseTree, BlockChange, BlockContents, ChangedBy,
    CommitSize, DataMode, DirGrowth, InodeUpdate, Needs, NewContents, OnError, PinnedSpace, Shutdown,
    SpaceLimits, SpillPlace, SpilledBlock, StagedBlocks, Staging, Stamp, TxSpace, TxSpaceUse, ViewHold,
};
pub use modes::{ModeChoice, Modes};
pub use quota::QuotaLimits;
pub use tree::{AttrChange, AttrSet, NewInode, Tree};
pub use volume::{VolumeOptions, open};
pub use xattr::XattrChanges;

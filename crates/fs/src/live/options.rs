//! Options of an open volume.

use xact_consistency::Faults;
use xact_types::Steps;
use xact_types::settings::Id;

use super::health::OnError;
use super::inode::access_time::AccessOptions;
use crate::journal_modes::{ModeChoice, Modes};
use crate::quota::QuotaLimits;

/// The options `sync` and `dirsync` of mount(8): changes that are durable when their call returns.
/// The flags `+S` and `+D` (chattr) of an inode do the same for this inode ([`super::op`]).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Synced {
    /// All changes.
    pub all: bool,
    /// Changes of folders and of names in them.
    pub folders: bool,
}

/// Options of the live file system.
#[derive(Debug, Clone, Copy)]
pub struct LiveOptions {
    /// Limit of cached file data in bytes.
    pub data_cache_bytes: u64,
    /// Number of inodes kept in memory beyond those in use.
    pub inode_cache: usize,
    /// Limit of the memory of old versions for open views, in bytes. Beyond it, they are written to
    /// the volume.
    pub versions_bytes: u64,
    /// Share of the free space that these may take, in percent. Beyond it, or on a full volume, the
    /// oldest views expire.
    pub version_space_percent: u8,
    /// Share of the free space that all open transactions of one user other than root may hold, in
    /// percent.
    pub tx_space_percent: u8,
    /// A thread writes dirty data back by age. Without it data stays in memory until a sync or
    /// until memory is short: for crash tests, which need every write at a known point.
    pub flusher: bool,
    /// The sizes of steps; crash tests lower them.
    pub steps: Steps,
    pub modes: Modes,
    /// The modes that the caller asked for; the others are the volume's own or defaults.
    pub mode_options: ModeChoice,
    pub faults: Faults,
    pub quota_limits: QuotaLimits,
    pub access: AccessOptions,
    /// Discard freed blocks.
    pub discard: bool,
    /// Changes that are durable when their call returns.
    pub synced: Synced,
    /// The reaction to corruption; by default the superblock's.
    pub on_error: Option<OnError>,
    pub owners: OwnerOptions,
    /// Count the blocks of fixed metadata in the size of the volume (`minixdf`).
    pub minix_df: bool,
}

/// Options about users and groups.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OwnerOptions {
    /// User and group that may fill the space reserved for root; by default the superblock's.
    pub reserve_uid: Option<u32>,
    pub reserve_gid: Option<u32>,
    /// New inodes have their folder's group (`grpid`).
    pub group_of_folder: bool,
}

impl Default for LiveOptions {
    fn default() -> LiveOptions {
        LiveOptions {
            data_cache_bytes: 128 << 20,
            inode_cache: 32 << 10,
            versions_bytes: 32 << 20,
            version_space_percent: Id::VersionSpace.setting().default_number() as u8,
            tx_space_percent: Id::TxSpace.setting().default_number() as u8,
            flusher: true,
            steps: Steps::default(),
            modes: Modes::default(),
            mode_options: ModeChoice::default(),
            faults: Faults::default(),
            quota_limits: QuotaLimits::default(),
            access: AccessOptions::default(),
            discard: false,
            synced: Synced::default(),
            on_error: None,
            owners: OwnerOptions::default(),
            minix_df: false,
        }
    }
}

//! How a volume is held open.

use xact_consistency::Faults;

use super::health::OnError;
use super::inode::access_time::AccessOptions;
use crate::modes::{ModeChoice, Modes};
use crate::quota::QuotaLimits;

/// How the live file system uses memory.
#[derive(Debug, Clone, Copy)]
pub struct LiveOptions {
    /// Limit of cached file data in bytes.
    pub data_cache_bytes: u64,
    /// Inodes kept in memory beyond those in use.
    pub inode_cache: usize,
    /// Limit of what is kept of the past for open views, in bytes; past it the oldest views go.
    pub versions_bytes: u64,
    /// What all open transactions of one user, not root, may hold of what is free, in percent.
    pub tx_space_percent: u8,
    /// Whether a thread writes dirty data back by age; without it (crash tests that want every
    /// write at a known point) data stays until a sync or until memory is short.
    pub flusher: bool,
    pub modes: Modes,
    /// What of them was asked for, and is not the volume's own or a default.
    pub mode_options: ModeChoice,
    pub faults: Faults,
    pub quota_limits: QuotaLimits,
    pub access: AccessOptions,
    /// Freed blocks are discarded.
    pub discard: bool,
    /// What damage leads to; by default what the superblock says.
    pub on_error: Option<OnError>,
}

impl Default for LiveOptions {
    fn default() -> LiveOptions {
        LiveOptions {
            data_cache_bytes: 128 << 20,
            inode_cache: 32 << 10,
            versions_bytes: 32 << 20,
            tx_space_percent: 50,
            flusher: true,
            modes: Modes::default(),
            mode_options: ModeChoice::default(),
            faults: Faults::default(),
            quota_limits: QuotaLimits::default(),
            access: AccessOptions::default(),
            discard: false,
            on_error: None,
        }
    }
}

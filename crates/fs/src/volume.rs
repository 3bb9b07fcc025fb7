//! Opens a volume: from a device to [`LiveFs`], through recovery and the engine.

use std::sync::Arc;
use std::time::Duration;

use xact_consistency::mmp::Mmp;
use xact_consistency::{EngineOptions, Handle, ReserveClass};
use xact_device::BlockDevice;
use xact_layout::dirhash::{SIGNED_HASH, UNSIGNED_HASH};
use xact_layout::feature::ro_compat;
use xact_layout::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, Superblock, Support};
use xact_types::{Error, Result, Site};

use crate::live::{AccessOptions, LiveFs, LiveOptions, OnError};
use crate::modes::{self, DataMode, ModeChoice};
use crate::quota::QuotaLimits;

/// Options for opening a volume. The defaults are those of a mount.
#[derive(Debug, Clone)]
pub struct VolumeOptions {
    /// Open read-only; the log of a crash is still replayed first.
    pub read_only: bool,
    /// Memory for cached data and metadata together, in bytes. Dirty data, and committed metadata
    /// that is not yet checkpointed, may exceed it for a while.
    pub cache_bytes: u64,
    /// Maximum delay before changes are committed.
    pub commit_interval: Duration,
    /// With generations: the number of dirty metadata blocks at which the next one is due; see
    /// [`EngineOptions::dirty_blocks`].
    pub dirty_blocks: Option<u32>,
    /// Modes that override the volume's own; see [`crate::modes`].
    pub modes: ModeChoice,
    /// The limits that are enforced on a volume with quotas.
    pub quota_limits: QuotaLimits,
    /// Options for access times.
    pub access: AccessOptions,
    /// Discard freed blocks on the device, once a crash can no longer restore them.
    pub discard: bool,
    /// Share of the free space that all open transactions of one user other than root may hold
    /// before their commits, in percent.
    pub tx_space_percent: u8,
    /// The reaction to corruption; `None`: the superblock's choice.
    pub on_error: Option<OnError>,
    /// Write dirty data back by age in the background. Crash tests turn it off, because they need
    /// every write at a known point.
    pub flusher: bool,
    /// The mount point, for `s_last_mounted`.
    pub mounted_at: Option<Vec<u8>>,
    /// Omit one ordering rule; only for the crash explorer's canaries.
    #[cfg(feature = "faults")]
    pub fault: Option<xact_consistency::Fault>,
}

impl Default for VolumeOptions {
    fn default() -> VolumeOptions {
        VolumeOptions {
            read_only: false,
            cache_bytes: 256 << 20,
            commit_interval: Duration::from_secs(5),
            dirty_blocks: None,
            modes: ModeChoice::default(),
            quota_limits: QuotaLimits::default(),
            access: AccessOptions::default(),
            discard: false,
            tx_space_percent: LiveOptions::default().tx_space_percent,
            on_error: None,
            flusher: true,
            mounted_at: None,
            #[cfg(feature = "faults")]
            fault: None,
        }
    }
}

/// Approximate memory of one cached inode, including its entries in maps.
const INODE_BYTES: u64 = 1024;

/// Recovers and opens the volume on `device`.
///
/// Errors: `Usage` if the device has no ext4 volume, or the volume needs a recovery that a
/// read-only device does not allow; `Unsupported`, naming the features; `ReadOnly` if features
/// allow only reading and `read_only` is not set; `InUse` if another machine uses it (feature
/// `mmp`); `Corrupt`.
pub fn open(device: Arc<dyn BlockDevice>, options: &VolumeOptions) -> Result<Arc<LiveFs>> {
    let claim = if options.read_only || device.is_read_only() { None } else { Mmp::acquire(&device)? };
    let opened = open_claimed(device, options);
    match (opened, claim) {
        (Ok(fs), Some(claim)) => {
            fs.keep_claim(claim);
            Ok(fs)
        }
        (Err(error), Some(claim)) => {
            // The error of opening matters more than that of the release.
            let _ = claim.release();
            Err(error)
        }
        (opened, None) => opened,
    }
}

fn open_claimed(device: Arc<dyn BlockDevice>, options: &VolumeOptions) -> Result<Arc<LiveFs>> {
    let mut engine_options = EngineOptions {
        commit_interval: options.commit_interval,
        dirty_blocks: options.dirty_blocks,
        cache_bytes: (options.cache_bytes / 4) as usize,
        read_only: options.read_only,
        #[cfg(feature = "faults")]
        fault: options.fault,
        ..EngineOptions::default()
    };
    let recovered = xact_consistency::recovered_superblock(&device, &engine_options)?;
    let modes = options.modes.or(modes::stored(&recovered)).or_default();
    engine_options.commit_writes = modes.commit_writes;
    engine_options.log_records = modes.log_records;
    engine_options.ordered_data = modes.data != DataMode::Writeback;
    let faults = engine_options.faults();
    let engine = xact_consistency::open(device, engine_options)?;
    // The superblock's own block: block 1 of volumes with 1 KiB blocks, else block 0.
    let block_size = engine.block_size() as u64;
    let block = engine.read(xact_types::BlockNr(SUPERBLOCK_OFFSET / block_size))?;
    let at = (SUPERBLOCK_OFFSET % block_size) as usize;
    let bytes: &[u8; SUPERBLOCK_BYTES] = block[at..at + SUPERBLOCK_BYTES]
        .try_into()
        .map_err(|_| Error::corrupt(Site::Superblock, "does not fit its block"))?;
    let sb = Superblock::decode(bytes)?;
    if let Support::ReadOnly(features) = sb.support()?
        && !options.read_only
    {
        engine.close()?;
        return Err(Error::Unsupported(format!("{features}, for writing (mount it read-only)")));
    }
    // With generations, the newest superblock is known only now.
    let modes = options.modes.or(modes::stored(&sb)).or_default();
    engine.set_fsync(modes.fsync, modes.data != DataMode::Writeback);
    if let Err(error) = modes::check(options.modes, &engine) {
        engine.close()?;
        return Err(error);
    }
    let fs = LiveFs::open(
        engine,
        sb,
        LiveOptions {
            data_cache_bytes: options.cache_bytes / 2,
            inode_cache: (options.cache_bytes / 8 / INODE_BYTES) as usize,
            versions_bytes: options.cache_bytes / 8,
            tx_space_percent: options.tx_space_percent,
            flusher: options.flusher,
            modes,
            mode_options: options.modes,
            faults,
            quota_limits: options.quota_limits,
            access: options.access,
            discard: options.discard,
            on_error: options.on_error,
        },
    )?;
    #[cfg(feature = "faults")]
    if options.fault == Some(xact_consistency::Fault::DiscardAtOnce) {
        fs.discard_at_once();
    }
    if !fs.engine().is_read_only() {
        note_mount(&fs, options)?;
    }
    Ok(fs)
}

/// Counts the mount in the superblock, as every system that mounts ext4 does.
fn note_mount(fs: &LiveFs, options: &VolumeOptions) -> Result<()> {
    let mut handle = Handle::begin_for(fs.engine(), 1, ReserveClass::Upkeep)?;
    let now = xact_types::unix_seconds() as u32;
    crate::superblock::update(&mut handle, fs.superblock(), |sb| {
        sb.set_mnt_count(sb.mnt_count().wrapping_add(1));
        sb.set_mtime(now);
        sb.set_wtime(now);
        // Fix the way in which names are hashed, as the kernel's first mount for writing does.
        if sb.flags() & (SIGNED_HASH | UNSIGNED_HASH) == 0 {
            sb.set_flags(sb.flags() | UNSIGNED_HASH);
        }
        // The kernel sets the feature with the first file that needs it. It is set here, so that no
        // operation waits for it.
        if sb.rev_level() > 0 {
            sb.set_feature_ro_compat(sb.feature_ro_compat() | ro_compat::LARGE_FILE);
        }
        if let Some(path) = &options.mounted_at {
            sb.set_last_mounted(path);
        }
    })
}

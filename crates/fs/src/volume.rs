//! Opens a volume: from a device to [`LiveFs`], through recovery and the engine.

use std::sync::Arc;
use std::time::Duration;

use xact_consistency::mmp::Mmp;
use xact_consistency::{EngineOptions, Handle, ReserveClass};
use xact_device::BlockDevice;
use xact_layout::dirhash::{SIGNED_HASH, UNSIGNED_HASH};
use xact_layout::feature::ro_compat;
use xact_layout::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, Superblock, Support};
use xact_types::settings::{Id, Value};
use xact_types::{Error, Result, Site, Steps};

use crate::journal_modes::{self, DataMode, ModeChoice};
use crate::live::{AccessOptions, AccessTimes, LiveFs, LiveOptions, OnError, OwnerOptions, Synced};
use crate::quota::QuotaLimits;

/// Options for opening a volume. The defaults are those of a mount.
#[derive(Debug, Clone)]
pub struct VolumeOptions {
    /// Open read-only. The log of a crash is still replayed first, which writes to the device.
    pub read_only: bool,
    /// With `read_only`: ignore the log of a crash and write nothing; see
    /// [`EngineOptions::no_recovery`].
    pub no_recovery: bool,
    /// Memory for cached data and metadata together, in bytes. Dirty data, and committed metadata
    /// that is not yet checkpointed, may exceed it for a while.
    pub cache_bytes: u64,
    /// Maximum delay before changes are durable without a sync, data included.
    pub commit_interval: Duration,
    /// With generations: the number of dirty metadata blocks at which the next one is due; see
    /// [`EngineOptions::dirty_blocks`].
    pub dirty_blocks: Option<u32>,
    /// Modes that override the volume's own; see [`crate::journal_modes`].
    pub modes: ModeChoice,
    /// The limits that are enforced on a volume with quotas.
    pub quota_limits: QuotaLimits,
    /// Options for access times.
    pub access: AccessOptions,
    /// Discard freed blocks on the device, once a crash can no longer restore them.
    pub discard: bool,
    /// Changes that are durable when their call returns.
    pub synced: Synced,
    /// Share of the free space that all open transactions of one user other than root may hold
    /// before their commits, in percent.
    pub tx_space_percent: u8,
    /// Share of the free space that old versions for open transactions may take, in percent.
    pub version_space_percent: u8,
    /// The reaction to corruption; `None`: the superblock's choice.
    pub on_error: Option<OnError>,
    pub owners: OwnerOptions,
    /// Count the blocks of fixed metadata in the size of the volume, as ext4's `minixdf`.
    pub minix_df: bool,
    /// Write dirty data back by age in the background. Crash tests turn it off, because they need
    /// every write at a known point.
    pub flusher: bool,
    /// The sizes of steps; crash tests lower them.
    pub steps: Steps,
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
            no_recovery: false,
            cache_bytes: Id::CacheSize.setting().default_number(),
            commit_interval: Id::Commit.setting().default_duration(),
            dirty_blocks: None,
            modes: ModeChoice::default(),
            quota_limits: QuotaLimits::default(),
            access: AccessOptions::default(),
            discard: false,
            synced: Synced::default(),
            tx_space_percent: LiveOptions::default().tx_space_percent,
            version_space_percent: LiveOptions::default().version_space_percent,
            on_error: None,
            owners: OwnerOptions::default(),
            minix_df: false,
            flusher: true,
            steps: Steps::default(),
            mounted_at: None,
            #[cfg(feature = "faults")]
            fault: None,
        }
    }
}

impl VolumeOptions {
    /// Sets an option by its row in the table of settings; no value is the default. False if the
    /// option does not concern the volume.
    pub fn set(&mut self, id: Id, value: Option<Value>) -> bool {
        let default = VolumeOptions::default;
        let is_on = value == Some(Value::Flag(true));
        match (id, value) {
            (
                Id::Data | Id::CommitWrites | Id::InodeUpdate | Id::Timestamps | Id::LogRecords | Id::Fsync,
                _,
            ) => return self.modes.apply(id, value),
            (Id::Commit, Some(Value::Duration(interval))) => self.commit_interval = interval,
            (Id::Commit, _) => self.commit_interval = default().commit_interval,
            (Id::DirtyBlocks, Some(Value::Count(blocks))) => self.dirty_blocks = u32::try_from(blocks).ok(),
            (Id::DirtyBlocks, _) => self.dirty_blocks = None,
            (Id::TxSpace, Some(Value::Count(percent))) => self.tx_space_percent = percent as u8,
            (Id::TxSpace, _) => self.tx_space_percent = default().tx_space_percent,
            (Id::VersionSpace, Some(Value::Count(percent))) => self.version_space_percent = percent as u8,
            (Id::VersionSpace, _) => self.version_space_percent = default().version_space_percent,
            (Id::Errors, Some(Value::Choice(at))) => self.on_error = Some(ON_ERROR[at]),
            (Id::Errors, _) => self.on_error = None,
            (Id::ReserveUser, _) => self.owners.reserve_uid = number_of(value),
            (Id::ReserveGroup, _) => self.owners.reserve_gid = number_of(value),
            (Id::GroupOfFolder, _) => self.owners.group_of_folder = is_on,
            (Id::MinixDf, _) => self.minix_df = is_on,
            (Id::AccessTimes, Some(Value::Choice(at))) => self.access.times = ACCESS_TIMES[at],
            (Id::AccessTimes, _) => self.access.times = default().access.times,
            (Id::NoDirAtime, _) => self.access.skip_directories = is_on,
            (Id::LazyTime, _) => self.access.lazy = is_on,
            (Id::Discard, _) => self.discard = is_on,
            (Id::Sync, _) => self.synced.all = is_on,
            (Id::DirSync, _) => self.synced.folders = is_on,
            (Id::UserQuota, _) => self.quota_limits.user = is_on,
            (Id::GroupQuota, _) => self.quota_limits.group = is_on,
            (Id::ProjectQuota, _) => self.quota_limits.project = is_on,
            (Id::NoQuota, _) => self.quota_limits = QuotaLimits::default(),
            (Id::ReadOnly, _) => self.read_only = is_on,
            (Id::NoLoad, _) => self.no_recovery = is_on,
            (Id::CacheSize, Some(Value::Size(bytes))) => self.cache_bytes = bytes,
            (Id::CacheSize, _) => self.cache_bytes = default().cache_bytes,
            (
                Id::AllowOther
                | Id::SingleCaller
                | Id::FuseBlk
                | Id::Exclusive
                | Id::Notify
                | Id::NoSuid
                | Id::NoDev
                | Id::NoExec
                | Id::NoSymFollow
                | Id::Defaults
                | Id::UserMemory
                | Id::UserTransactions
                | Id::SnapshotEvery
                | Id::SnapshotRetain,
                _,
            ) => return false,
        }
        true
    }
}

/// The number of a user or group.
fn number_of(value: Option<Value>) -> Option<u32> {
    match value {
        Some(Value::Count(number)) => u32::try_from(number).ok(),
        _ => None,
    }
}

/// Values in the order of the words in the table.
const ON_ERROR: &[OnError] = &[OnError::Continue, OnError::ReadOnly, OnError::Panic];
const ACCESS_TIMES: &[AccessTimes] = &[AccessTimes::NoAtime, AccessTimes::Relatime, AccessTimes::StrictAtime];
const _: () = assert!(Id::Errors.setting().words().len() == ON_ERROR.len());
const _: () = assert!(Id::AccessTimes.setting().words().len() == ACCESS_TIMES.len());

/// Approximate memory of one cached inode, including its entries in maps.
const INODE_BYTES: u64 = 1024;

/// Recovers and opens the volume on `device`.
///
/// Errors: `Usage` if the device has no ext4 volume, if the volume needs a recovery that a
/// read-only device does not allow, and for `no_recovery` without `read_only`; `Unsupported`,
/// naming the features; `ReadOnly` if features allow only reading and `read_only` is not set;
/// `InUse` if another machine uses it (feature `mmp`); `Corrupt`.
pub fn open(device: Arc<dyn BlockDevice>, options: &VolumeOptions) -> Result<Arc<LiveFs>> {
    if options.no_recovery && !options.read_only {
        return Err(Error::Usage("noload needs ro: the log may hold changes that exist nowhere else".into()));
    }
    let claim = if writes(&device, options)? { Mmp::acquire(&device)? } else { None };
    let opened = open_claimed(device, options);
    match (opened, claim) {
        (Ok(fs), Some(claim)) if options.read_only => {
            // The replay is done, and nothing more is written.
            claim.release()?;
            Ok(fs)
        }
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

/// Whether opening or using the volume writes to the device.
fn writes(device: &Arc<dyn BlockDevice>, options: &VolumeOptions) -> Result<bool> {
    if device.is_read_only() || options.no_recovery {
        return Ok(false);
    }
    Ok(!options.read_only || xact_consistency::needs_replay(device)?)
}

fn open_claimed(device: Arc<dyn BlockDevice>, options: &VolumeOptions) -> Result<Arc<LiveFs>> {
    let mut engine_options = EngineOptions {
        commit_interval: options.commit_interval,
        dirty_blocks: options.dirty_blocks,
        cache_bytes: (options.cache_bytes / 4) as usize,
        steps: options.steps,
        read_only: options.read_only,
        no_recovery: options.no_recovery,
        #[cfg(feature = "faults")]
        fault: options.fault,
        ..EngineOptions::default()
    };
    let recovered = xact_consistency::recovered_superblock(&device, &engine_options)?;
    let modes = options.modes.or(journal_modes::stored(&recovered)).or_default();
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
    let modes = options.modes.or(journal_modes::stored(&sb)).or_default();
    engine.set_fsync(modes.fsync, modes.data != DataMode::Writeback);
    if let Err(error) = journal_modes::check(options.modes, &engine) {
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
            version_space_percent: options.version_space_percent,
            tx_space_percent: options.tx_space_percent,
            flusher: options.flusher,
            steps: options.steps,
            modes,
            mode_options: options.modes,
            faults,
            quota_limits: options.quota_limits,
            access: options.access,
            discard: options.discard,
            synced: options.synced,
            on_error: options.on_error,
            owners: options.owners,
            minix_df: options.minix_df,
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

#[cfg(test)]
mod tests {
    use xact_consistency::{CommitWrites, Fsync};
    use xact_types::settings::parse_option;

    use super::*;
    use crate::journal_modes::InodeUpdate;

    #[test]
    fn options_reach_their_fields() {
        let mut options = VolumeOptions::default();
        assert_eq!(options.commit_interval, EngineOptions::default().commit_interval);
        let mut set = |option: &str| {
            let (id, value) = parse_option(option).unwrap();
            options.set(id, value)
        };
        for option in [
            "commit=7",
            "dirty_blocks=500",
            "tx_space=25%",
            "fsync=generation",
            "nojournal_async_commit",
            "data=selective",
            "inode_update=immediate",
            "timestamps=delayed",
            "errors=remount-ro",
            "resuid=1000",
            "resgid=0",
            "bsdgroups",
            "minixdf",
            "relatime",
            "lazytime",
            "nodiratime",
            "discard",
            "sync",
            "dirsync",
            "prjquota",
            "ro",
            "norecovery",
        ] {
            assert!(set(option), "{option}");
        }
        assert!(!set("allow_other") && !set("nosuid"));
        assert_eq!(options.commit_interval, Duration::from_secs(7));
        assert_eq!((options.dirty_blocks, options.tx_space_percent), (Some(500), 25));
        let modes = ModeChoice {
            fsync: Some(Fsync::Generation),
            commit_writes: Some(CommitWrites::TwoStep),
            data: Some(DataMode::Selective),
            inode_update: Some(InodeUpdate::Immediate),
            timestamps: Some(InodeUpdate::Delayed),
            log_records: None,
        };
        assert_eq!(options.modes, modes);
        assert_eq!(options.on_error, Some(OnError::ReadOnly));
        let access = AccessOptions { times: AccessTimes::Relatime, skip_directories: true, lazy: true };
        assert_eq!(options.access, access);
        let owners = OwnerOptions { reserve_uid: Some(1000), reserve_gid: Some(0), group_of_folder: true };
        assert_eq!((options.owners, options.minix_df), (owners, true));
        assert!(options.discard && options.read_only && options.no_recovery);
        assert_eq!(options.synced, Synced { all: true, folders: true });
        assert_eq!(options.quota_limits, QuotaLimits { project: true, ..QuotaLimits::default() });

        let mut set = |option: &str| {
            let (id, value) = parse_option(option).unwrap();
            options.set(id, value)
        };
        for option in [
            "commit=0",
            "dirty_blocks=0",
            "noatime",
            "nolazytime",
            "diratime",
            "nodiscard",
            "async",
            "noquota",
            "resuid=default",
            "resgid=default",
            "nogrpid",
            "bsddf",
            "rw",
        ] {
            assert!(set(option), "{option}");
        }
        assert_eq!(options.commit_interval, VolumeOptions::default().commit_interval);
        assert_eq!(options.dirty_blocks, None);
        assert_eq!(options.access, AccessOptions::default());
        assert_eq!(options.quota_limits, QuotaLimits::default());
        assert_eq!((options.owners, options.minix_df), (OwnerOptions::default(), false));
        assert!(!options.discard && !options.read_only && !options.synced.all);
    }
}

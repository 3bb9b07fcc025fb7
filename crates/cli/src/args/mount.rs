//! The command lines of `xact mount` and `xact umount`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use xact::KeepRules;
use xact_types::units;

use crate::values;

/// Mount a volume
///
/// Recovers the volume if needed, starts a daemon that serves it, and returns when the volume is
/// usable. The daemon runs until 'xact umount MNT', umount(8), or SIGTERM. Fails if the volume is
/// already mounted.
#[derive(Debug, Args)]
pub struct Mount {
    /// The image file or block device.
    #[arg(value_name = "IMG", value_hint = clap::ValueHint::FilePath)]
    pub image: PathBuf,
    /// The folder to mount the volume on.
    #[arg(value_name = "MNT", value_hint = clap::ValueHint::DirPath)]
    pub mount_point: PathBuf,
    /// Stay in the foreground until the volume is unmounted, and log to standard error.
    #[arg(long, short)]
    pub foreground: bool,
    /// Mount options, separated by commas.
    ///
    /// ro: read-only. allow_other, noallow_other: whether users other than the one who mounts may
    /// use it, as permissions say (default: for root yes, for others no; others also need
    /// user_allow_other in /etc/fuse.conf). nosuid, nodev, noexec, sync, dirsync: as in mount(8).
    /// commit=SECONDS: as --commit-interval. dirty_blocks=N: on a volume with generations, from so
    /// many changed metadata blocks on the next generation is made at once.
    ///
    /// data, commit_writes, inode_update, timestamps, log_records, fsync: how the volume is
    /// journaled, instead of what it says itself; see 'xact mode --help'. journal_async_commit,
    /// nojournal_async_commit: ext4's names for commit_writes=single and two-step.
    ///
    /// noatime (default), relatime, strictatime, nodiratime, lazytime: when reads set access times,
    /// as in mount(8). Reads that the kernel answers from its own cache are not seen here and set
    /// none.
    ///
    /// discard: blocks that files give back are given back to the device too (holes in an image
    /// file), when a crash cannot bring their files back. fstrim(8) does it for all that is free.
    ///
    /// tx_space=PERCENT: what all open transactions of one user other than root may hold of the
    /// free space and of the free inodes before their commits (default: 50). Beyond it calls in
    /// them fail with "disk quota exceeded".
    ///
    /// errors=continue, remount-ro or panic: what follows damage of the volume, besides a note in
    /// its superblock; default: what the superblock says. panic: nothing is served any more.
    ///
    /// usrquota (or quota), grpquota, prjquota: on a volume with quotas, whether what users, groups
    /// and projects may use is enforced. What they use is always counted.
    #[arg(short = 'o', value_name = "OPTIONS", value_delimiter = ',', action = clap::ArgAction::Append)]
    pub options: Vec<String>,
    /// Memory for cached data and metadata.
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = values::parse_size)]
    pub cache_size: u64,
    /// Memory of the daemon for the transactions of each user [default: 1/8 of --cache-size, at
    /// least 24M].
    ///
    /// It holds their read sets, changes and lists of changes. Near the limit, read sets are
    /// recorded more coarsely; at the limit, calls in the transaction fail with ENOMEM. Root and
    /// the user who mounts have no limits; all other users together have four times the limit of
    /// one.
    #[arg(long, value_name = "SIZE", value_parser = values::parse_size)]
    pub user_memory: Option<u64>,
    /// Maximum number of open transactions of each user.
    ///
    /// The limits of savepoints and control channels are ten and four times this number. The same
    /// users are exempt as with --user-memory.
    #[arg(long, value_name = "N", default_value = "100", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub user_transactions: u64,
    /// Maximum delay before changes are committed.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = values::parse_interval)]
    pub commit_interval: Duration,
    /// Make a snapshot at this interval if anything has changed, such as 15m, 1h or 1d [default:
    /// none].
    ///
    /// Needs a volume with generations. Snapshots are named by the time, such as
    /// auto-2026-03-01T17:05:09Z.
    #[arg(long, value_name = "TIME", value_parser = snapshot_every)]
    pub snapshot_every: Option<Duration>,
    /// Retention policy for these snapshots; see 'xact snapshot prune --help'.
    #[arg(long, alias = "snapshot-keep", value_name = "RULES", requires = "snapshot_every")]
    #[arg(default_value = "hourly=24,daily=7")]
    pub snapshot_retain: KeepRules,
    /// Limit these snapshots to a file or folder, given by its path from the volume's root. May be
    /// repeated.
    #[arg(long, value_name = "PATH", requires = "snapshot_every")]
    pub snapshot_of: Vec<PathBuf>,
    /// Destination of the daemon's log: syslog, stderr, or a file, which is appended to.
    ///
    /// Without it, the log goes to standard error with --foreground, else to syslog if the system
    /// has one.
    #[arg(long, value_name = "WHERE", value_hint = clap::ValueHint::FilePath)]
    pub log: Option<PathBuf>,
}

fn snapshot_every(text: &str) -> Result<Duration, String> {
    let time = units::parse_duration(text)?;
    if time.is_zero() { Err(format!("invalid duration '{text}': must not be 0")) } else { Ok(time) }
}

/// Unmount a volume
///
/// Makes all changes durable, unmounts the volume, and returns when the daemon has closed the
/// image. Also removes the mount of a daemon that was killed. Open transactions ('xact tx list')
/// are aborted, and named on standard error, unless they are stored on the volume.
#[derive(Debug, Args)]
pub struct Umount {
    /// The folder where the volume is mounted.
    #[arg(value_name = "MNT", value_hint = clap::ValueHint::DirPath)]
    pub mount_point: PathBuf,
}

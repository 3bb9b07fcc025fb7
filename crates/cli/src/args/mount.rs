//! The command lines of `xact mount` and `xact umount`.

use std::path::PathBuf;

use clap::{ArgAction, Args, ValueHint};

use crate::complete;
use crate::settings_args::{self, LongOptions};

/// Mount a volume
///
/// Recovers the volume if needed, starts a daemon that serves it, and returns when the volume is
/// usable. The daemon runs until 'xact umount MNT', umount(8), or SIGTERM. A line of fstab(5) names
/// the type xact, and writes the long options as cache_size=SIZE, log=FILE and so on.
///
/// Fails if the image is already mounted. But if root has mounted a block device, root can also
/// mount it at another place: both mounts show the same volume.
#[derive(Debug, Args)]
pub struct Mount {
    /// The image file or block device.
    #[arg(value_name = "IMG", value_hint = ValueHint::FilePath)]
    pub image: PathBuf,
    /// The folder to mount the volume on.
    #[arg(value_name = "MNT", value_hint = ValueHint::DirPath)]
    pub mount_point: PathBuf,
    /// Stay in the foreground until the volume is unmounted, and log to standard error.
    #[arg(long, short)]
    pub foreground: bool,
    #[arg(short = 'o', value_name = "OPTIONS", value_delimiter = ',', action = ArgAction::Append)]
    #[arg(add = complete::mount_option())]
    #[arg(help = "Mount options, separated by commas", long_help = settings_args::options_help())]
    pub options: Vec<String>,
    #[command(flatten)]
    pub settings: LongOptions,
    /// Limit the snapshots of --snapshot-every to a file or folder, given by its path from the
    /// volume's root or on the mount. May be repeated.
    #[arg(long, value_name = "PATH", requires = "snapshot_every")]
    pub snapshot_of: Vec<PathBuf>,
    /// Destination of the daemon's log: journal, syslog, stderr, or a file, which is appended to.
    ///
    /// By default, the log goes to the systemd journal, or to syslog on a system without one. With
    /// --foreground, it goes to standard error, or to the journal if standard error is connected to
    /// the journal. Entries in the journal have the fields MOUNT, IMAGE, VOLUME_UUID and
    /// TRANSACTION.
    #[arg(long, value_name = "WHERE", value_hint = ValueHint::FilePath)]
    pub log: Option<PathBuf>,
}

/// Unmount a volume
///
/// Makes all changes durable, unmounts the volume, and returns when the daemon has closed the
/// image. Fails with exit code 74, and names files, if something could not be saved. Also removes
/// the mount of a daemon that was killed. Open transactions ('xact tx list') are aborted, and named
/// on standard error, unless they are stored on the volume.
#[derive(Debug, Args)]
pub struct Umount {
    /// The folder where the volume is mounted.
    #[arg(value_name = "MNT", add = complete::mount())]
    pub mount_point: PathBuf,
}

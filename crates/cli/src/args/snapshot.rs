//! Arguments of `xact snapshot`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use xact::{AUTOMATIC, KeepRules};

/// Keep, list and write out states of a volume with generations
///
/// A snapshot keeps the volume as it was at one moment, under a name, or some of its files and folders. Creating
/// one of the volume costs one commit, whatever the volume's size; one of chosen paths costs two, and what is
/// chosen has to be gone through. It takes space only for what changes afterwards, and that
/// from the volume's pool ('xact mkfs --pool-size'): when the pool is full, the volume says "no
/// space" until a snapshot is deleted.
///
/// The volume is named by its mount (or any path on it) or, while it is not mounted, by its image. On a
/// mount, the files of each snapshot are in MNT/.xact/snapshots/NAME, to look at and to copy from.
///
/// Inside a transaction ('xact run') snapshots are neither created nor deleted: that would happen at once, and
/// stay if the transaction fails.
#[derive(Debug, Args)]
pub struct Snapshot {
    #[command(subcommand)]
    pub command: SnapshotCommand,
}

#[derive(Debug, Subcommand)]
pub enum SnapshotCommand {
    /// Keep the volume, or some of its files and folders, as it is now
    ///
    /// With paths, the snapshot has these files and folders with all that is below them, and the folders that lead
    /// there; it holds space for nothing else. All else works on it as on one of the volume: it is in
    /// MNT/.xact/snapshots, and can be exported (as an ext4 image with nothing else in it) and deleted. 'restore' and
    /// 'diff' are about the chosen paths then. Usage by quotas is not kept. A volume without checksums of groups
    /// (metadata_csum or uninit_bg) or without extents has no such snapshots.
    Create {
        #[command(flatten)]
        of: SnapshotName,
        /// What to keep: paths from the volume's root, as 'diff' has them. Default: everything.
        #[arg(value_name = "PATH")]
        paths: Vec<PathBuf>,
    },
    /// Tell which snapshots there are, from the oldest to the newest
    List {
        /// The mount, or the image file or block device.
        #[arg(value_name = "VOLUME", value_hint = clap::ValueHint::AnyPath)]
        at: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Make the volume, or some of its files and folders, what they were when a snapshot was created
    ///
    /// All at once: a crash leaves what there was before or what the snapshot has. What was done since and
    /// is in no snapshot is lost. The snapshot stays, and so do the volume's settings: its modes ('xact mode') and
    /// its label. Of a snapshot of chosen paths these are restored, on a mount, and nothing else changes.
    ///
    /// An image goes back as a whole, in one commit; it must not be mounted. On a mount, it is one transaction, which
    /// replaces each file that differs; folders keep their inodes, and hard links among what is restored are
    /// kept. Who has a replaced file open keeps the one that he opened, as if it had been deleted. Whoever
    /// changes the same files meanwhile makes it a conflict (75). Times of change (ctime), flags of chattr, and times of
    /// modification of folders that are still there are not restored.
    Restore {
        /// The mount, or the image file or block device.
        #[arg(value_name = "VOLUME", value_hint = clap::ValueHint::AnyPath)]
        at: PathBuf,
        /// Name of the snapshot.
        #[arg(value_name = "NAME")]
        name: String,
        /// What to restore, of a mount: paths from the volume's root, as 'diff' has them. Default: everything that the
        /// snapshot has.
        #[arg(value_name = "PATH")]
        paths: Vec<PathBuf>,
    },
    /// Delete a snapshot, and free what it alone has kept
    Delete(SnapshotName),
    Prune(Prune),
    /// Tell what differs between two snapshots, or a snapshot and now
    ///
    /// By path: added, deleted, modified, renamed, or other attributes. Costs what differs, not what there
    /// is. A file counts as modified by its size and time of modification. Of snapshots of chosen paths these are
    /// compared, which costs what they have.
    Diff {
        /// The mount, or the image file or block device.
        #[arg(value_name = "VOLUME", value_hint = clap::ValueHint::AnyPath)]
        at: PathBuf,
        /// The older snapshot.
        #[arg(value_name = "OLD")]
        old: String,
        /// The newer one. Default: the volume as it is now.
        #[arg(value_name = "NEW")]
        new: Option<String>,
        /// Only this, and what is below it: a path from the volume's root. May be given several times.
        #[arg(long = "path", value_name = "PATH")]
        paths: Vec<PathBuf>,
        /// Print how many there are of each kind, and by how much files grew.
        #[arg(long, conflicts_with = "json")]
        stat: bool,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Write a snapshot, or the volume as it is, out as a plain ext4 image
    ///
    /// Linux mounts the image and e2fsck checks it. It is a sparse file; free space takes none. Of a
    /// mounted volume, a snapshot is written out (--name), while work on the volume goes on.
    Export {
        /// The mount, or the image file or block device.
        #[arg(value_name = "VOLUME", value_hint = clap::ValueHint::AnyPath)]
        at: PathBuf,
        /// The new image file.
        #[arg(value_name = "OUT", value_hint = clap::ValueHint::FilePath)]
        out: PathBuf,
        /// The snapshot. Default: the volume as it is now.
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
    },
    /// Print the path of a file that is a snapshot as an ext4 image, without a copy
    ///
    /// The file can be read as long as the snapshot is kept and the volume is mounted: by 'e2fsck -fn',
    /// by 'mount -o ro,loop'. To look into snapshots by hand, go to MNT/.xact/snapshots.
    Image {
        /// The mount, or any path on it. An image can be mounted with 'xact mount -o ro' for this.
        #[arg(value_name = "MNT", value_hint = clap::ValueHint::DirPath)]
        at: PathBuf,
        /// Name of the snapshot.
        #[arg(value_name = "NAME")]
        name: String,
    },
}

/// Delete the snapshots that no rule keeps
///
/// A snapshot stays if any rule keeps it. Hours, days and so on are those of UTC. Prints the names of
/// those that are deleted, from the oldest on; each is a deletion of its own.
#[derive(Debug, Args)]
pub struct Prune {
    /// The mount, or the image file or block device.
    #[arg(value_name = "VOLUME", value_hint = clap::ValueHint::AnyPath)]
    pub at: PathBuf,
    /// What to keep, such as last=3,daily=7,weekly=4.
    ///
    /// last=N: the newest N. hourly, daily, weekly, monthly, yearly=N: the newest of each of the last N
    /// hours (and so on) that have one. within=TIME: all that are not older than 90s, 30m, 12h, 7d or 4w.
    #[arg(long, value_name = "RULES")]
    pub keep: KeepRules,
    /// Only of those whose names begin with this; '' for all.
    #[arg(long, value_name = "TEXT", default_value = AUTOMATIC)]
    pub prefix: String,
    /// Delete nothing, and print what would be deleted.
    #[arg(long)]
    pub dry_run: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct SnapshotName {
    /// The mount, or the image file or block device.
    #[arg(value_name = "VOLUME", value_hint = clap::ValueHint::AnyPath)]
    pub at: PathBuf,
    /// Name of the snapshot: up to 100 bytes, without '/' and control characters.
    #[arg(value_name = "NAME")]
    pub name: String,
}

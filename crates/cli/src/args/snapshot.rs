//! The command line of `xact snapshot`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use xact::{AUTOMATIC, RetentionPolicy};

use crate::complete;
use crate::progress::ProgressOption;

/// Make, list, compare, restore and export snapshots of a volume with generations
///
/// A snapshot preserves the state of the volume, or of some of its files and folders, at one
/// moment, under a name. A snapshot of the volume costs one commit, whatever the volume's size; a
/// snapshot of chosen paths costs two, and a walk over everything below them. A snapshot takes
/// space only for later changes. This space comes from the volume's pool ('xact mkfs --pool-size'):
/// when half of the pool is in use, writes fail with "no space" until a snapshot is deleted.
///
/// Name a mounted volume by its mount (or any path on it), and an unmounted volume by its image. On
/// a mount, the files of each snapshot are in MNT/.xact/snapshots/NAME.
///
/// Inside a transaction ('xact run'), snapshots can be neither created nor deleted, because that
/// could not be rolled back.
#[derive(Debug, Args)]
pub struct Snapshot {
    #[command(subcommand)]
    pub command: SnapshotCommand,
}

#[derive(Debug, Subcommand)]
pub enum SnapshotCommand {
    /// Make a snapshot of the volume, or of some of its files and folders
    ///
    /// With paths, the snapshot contains these files and folders, everything below them, and the
    /// folders that lead to them; it holds space for nothing else. It appears in
    /// MNT/.xact/snapshots, and can be deleted and exported like a snapshot of the volume. The
    /// exported ext4 image contains no other files. 'restore' and 'diff' apply to the chosen paths.
    /// Quota usage is not preserved. The volume must have extents and group checksums
    /// (metadata_csum or uninit_bg).
    Create {
        #[command(flatten)]
        of: SnapshotName,
        /// Files and folders to include: paths from the volume's root, as 'diff' prints them, or on
        /// the mount [default: all].
        #[arg(value_name = "PATH")]
        paths: Vec<PathBuf>,
    },
    /// List snapshots, from the oldest to the newest
    List {
        /// The mount, or the image file or block device.
        #[arg(value_name = "VOLUME", add = complete::mount_or_path())]
        at: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Restore the volume, or some of its files and folders, from a snapshot
    ///
    /// The restore is atomic: a crash leaves the volume either unchanged or completely restored.
    /// Changes since the snapshot are lost, unless another snapshot has them. The snapshot remains,
    /// and so do the volume's modes ('xact mode') and its label. A snapshot of chosen paths
    /// restores only these paths, and only on a mount.
    ///
    /// An image must not be mounted, and is always restored as a whole, in one commit. On a mount,
    /// the restore is a transaction, which replaces each file that differs; folders keep their
    /// inodes, and hard links between restored files are preserved. A process that opened a file
    /// before its replacement still sees the old contents, as after unlink. The restore fails with
    /// a conflict (75) if another process changes the same files during it. Times of change
    /// (ctime), flags of chattr, and modification times of existing folders are not restored.
    Restore {
        /// The mount, or the image file or block device.
        #[arg(value_name = "VOLUME", add = complete::mount_or_path())]
        at: PathBuf,
        /// Name of the snapshot.
        #[arg(value_name = "NAME", add = complete::snapshot())]
        name: String,
        /// Files and folders to restore, on a mount: paths from the volume's root, as 'diff' prints
        /// them, or on the mount [default: all that the snapshot contains].
        #[arg(value_name = "PATH")]
        paths: Vec<PathBuf>,
        #[command(flatten)]
        progress: ProgressOption,
    },
    /// Delete a snapshot, and free the space that it alone holds
    Delete(SnapshotName),
    Prune(Prune),
    /// Compare two snapshots, or a snapshot and the current state
    ///
    /// Prints one line per path: added, deleted, modified, renamed, or attributes. The cost depends
    /// on the number of differences, not on the size of the volume. A file counts as modified if
    /// its size or modification time differs. With a snapshot of chosen paths, only these paths are
    /// compared, and the cost depends on their size.
    Diff {
        /// The mount, or the image file or block device.
        #[arg(value_name = "VOLUME", add = complete::mount_or_path())]
        at: PathBuf,
        /// The older snapshot.
        #[arg(value_name = "OLD", add = complete::snapshot())]
        old: String,
        /// The newer snapshot [default: the current state of the volume].
        #[arg(value_name = "NEW", add = complete::snapshot())]
        new: Option<String>,
        /// Limit the output to this path from the volume's root, or on the mount, and everything
        /// below it. May be repeated.
        #[arg(long = "path", value_name = "PATH")]
        paths: Vec<PathBuf>,
        /// Print the number of changes of each kind, and the growth of files.
        #[arg(long, conflicts_with = "json")]
        stat: bool,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Export a snapshot, or an unmounted volume, as a plain ext4 image
    ///
    /// Linux mounts the image and e2fsck checks it. The image is a sparse file: free space in it
    /// takes no space on the host. On a mounted volume, only a snapshot can be exported (--name),
    /// while the volume stays in use.
    Export {
        /// The mount, or the image file or block device.
        #[arg(value_name = "VOLUME", add = complete::mount_or_path())]
        at: PathBuf,
        /// The new image file.
        #[arg(value_name = "OUT", value_hint = clap::ValueHint::FilePath)]
        out: PathBuf,
        /// The snapshot [default: the current state of an unmounted volume].
        #[arg(long, value_name = "NAME", add = complete::snapshot())]
        name: Option<String>,
        #[command(flatten)]
        salvage: SalvageOptions,
        #[command(flatten)]
        progress: ProgressOption,
    },
    /// Print the path of a snapshot's ext4 image
    ///
    /// The image is a read-only file on the mount, and takes no space. It can be read while the
    /// snapshot exists and the volume is mounted, for example by 'e2fsck -fn' or 'mount -o
    /// ro,loop'. The files of a snapshot are in MNT/.xact/snapshots/NAME.
    Image {
        /// The mount, or any path on it. Mount an image with 'xact mount -o ro' for this.
        #[arg(value_name = "MNT", add = complete::mount())]
        at: PathBuf,
        /// Name of the snapshot.
        #[arg(value_name = "NAME", add = complete::snapshot())]
        name: String,
    },
}

/// Delete snapshots by a retention policy
///
/// A snapshot is retained if any rule matches it. Hours, days and so on are those of UTC. Prints
/// the names of the deleted snapshots, from the oldest to the newest. Each deletion is a commit of
/// its own.
#[derive(Debug, Args)]
pub struct Prune {
    /// The mount, or the image file or block device.
    #[arg(value_name = "VOLUME", add = complete::mount_or_path())]
    pub at: PathBuf,
    /// Snapshots to retain, such as last=3,daily=7,weekly=4.
    ///
    /// last=N: the newest N. hourly=N: the newest snapshot of each hour, for the last N hours in
    /// which there is a snapshot. daily=N, weekly=N, monthly=N, yearly=N: the same by days, weeks,
    /// months and years. within=TIME: all that are younger than TIME, such as 90s, 30m, 12h, 7d or
    /// 4w.
    #[arg(long, alias = "keep", value_name = "RULES")]
    pub retain: RetentionPolicy,
    /// Consider only snapshots whose names begin with TEXT; '': all.
    #[arg(long, value_name = "TEXT", default_value = AUTOMATIC)]
    pub prefix: String,
    /// Print the names of the snapshots that would be deleted, and delete nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Options for a damaged volume.
#[derive(Debug, Args)]
pub struct SalvageOptions {
    /// Continue past damage, and list what is missing.
    ///
    /// Damaged blocks are copied as they are, and blocks that cannot be read become zeros. Lists
    /// the damaged blocks, and the files and folders that are incomplete. The exit code is 76 if
    /// there are any: then repair the ext4 volume with 'e2fsck -fy', which puts files that have
    /// lost their names into lost+found. The volume must not be mounted.
    #[arg(long)]
    pub best_effort: bool,
    /// Print what is missing as JSON.
    #[arg(long, requires = "best_effort")]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct SnapshotName {
    /// The mount, or the image file or block device.
    #[arg(value_name = "VOLUME", add = complete::mount_or_path())]
    pub at: PathBuf,
    /// Name of the snapshot: up to 100 bytes, without '/' and control characters.
    #[arg(value_name = "NAME", add = complete::snapshot())]
    pub name: String,
}

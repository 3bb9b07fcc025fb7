//! The command line of `xact mkfs`.

use std::path::PathBuf;

use clap::Args;

use crate::progress::ProgressOption;
use crate::values;

/// Make an ext4 volume
///
/// IMG is a block device or an image file. An image file is created if it does not exist, and takes
/// space only as it fills. The volume is what 'mke2fs -t ext4' makes: Linux mounts it and e2fsck
/// checks it.
#[derive(Debug, Args)]
pub struct Mkfs {
    /// The image file or block device.
    #[arg(value_name = "IMG", value_hint = clap::ValueHint::FilePath)]
    pub image: PathBuf,
    /// Size of the image file, such as 512M or 2T; required for a new one [default: its current
    /// size].
    ///
    /// On a block device: the part of it that the volume takes, with the pool of generations
    /// [default: all].
    #[arg(long, value_name = "SIZE", value_parser = values::parse_size)]
    pub size: Option<u64>,
    /// Name of the volume, at most 16 bytes [default: none].
    #[arg(short = 'L', long, default_value = "", hide_default_value = true)]
    pub label: String,
    /// UUID of the volume [default: random].
    #[arg(long, value_parser = values::parse_uuid)]
    pub uuid: Option<[u8; 16]>,
    /// Block size: 1K, 2K or 4K [default: 1K below 512 MiB, else 4K].
    #[arg(long, value_name = "SIZE", value_parser = values::parse_u32)]
    pub block_size: Option<u32>,
    /// Bytes of the volume per inode [default: by the size of the volume].
    ///
    /// A smaller number makes more inodes. Inodes cannot be added later.
    #[arg(long, value_name = "SIZE", value_parser = values::parse_u32)]
    pub inode_ratio: Option<u32>,
    /// How the volume survives crashes.
    #[arg(long, value_enum, default_value_t = EngineKind::Journal)]
    pub engine: EngineKind,
    /// Size of the pool, with --engine generations [default: 1/16 of the device, 4M to 1G; on
    /// small volumes as much as it needs].
    ///
    /// The pool holds changed metadata, and what snapshots keep. It lies behind the volume, within
    /// the size of the image or device.
    #[arg(long, value_name = "SIZE", value_parser = values::parse_size)]
    pub pool_size: Option<u64>,
    /// Size of the journal, with --engine journal; 0: no journal [default: by the size of the
    /// volume].
    #[arg(long, value_name = "SIZE", value_parser = values::parse_size)]
    pub journal_size: Option<u64>,
    /// Percentage of the volume reserved for root, at most 50.
    #[arg(long, value_name = "PERCENT", default_value_t = 5, value_parser = values::parse_number::<u8>)]
    pub reserved_percent: u8,
    /// Owner of the volume's root folder, by number [default: the caller].
    ///
    /// Without a GID, the group has the same number as the user.
    #[arg(long, value_name = "UID[:GID]", value_parser = values::parse_owner)]
    pub root_owner: Option<(u32, u32)>,
    /// Overwrite IMG even if it holds data, which is lost.
    #[arg(long)]
    pub force: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub progress: ProgressOption,
}

/// The engines that `mkfs` makes volumes for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum EngineKind {
    /// A jbd2 journal, as in ext4; Linux mounts the volume.
    Journal,
    /// Metadata is never overwritten, so nothing is replayed after a crash. Only xact mounts the
    /// volume; 'xact snapshot export' writes it to an ext4 image.
    Generations,
    /// No protection: the volume must be checked after a crash.
    None,
}

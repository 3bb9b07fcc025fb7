//! The command line of `xact convert`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::SalvageOptions;
use crate::progress::ProgressOption;
use crate::values;

/// Convert a plain ext4 volume to one with generations, or back
///
/// Converts the volume in place, with all its files. After a crash, the volume is of one kind or
/// the other; run the same command again to complete the conversion. The volume must not be
/// mounted. A volume with generations has a pool behind it: an image file grows by the size of the
/// pool, and a block device must be large enough for both. A journal remains, empty and unused, for
/// the conversion back. A volume with snapshots cannot be converted to plain ext4; 'xact snapshot
/// export' writes them to images first.
///
/// A damaged volume with generations can be converted to plain ext4 with --best-effort. Keep a copy
/// of the image: what the conversion leaves out is lost. 'xact snapshot export --best-effort'
/// leaves the image unchanged.
#[derive(Debug, Args)]
pub struct Convert {
    /// The image file or block device.
    #[arg(value_name = "IMG", value_hint = clap::ValueHint::FilePath)]
    pub image: PathBuf,
    /// Kind of volume to convert to.
    #[arg(long, value_enum)]
    pub to: ConvertTo,
    /// Size of the pool, for an image file [default: 1/16 of the volume, 4M to 1G].
    #[arg(long, value_name = "SIZE", value_parser = values::parse_size)]
    pub pool_size: Option<u64>,
    #[command(flatten)]
    pub salvage: SalvageOptions,
    #[command(flatten)]
    pub progress: ProgressOption,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ConvertTo {
    /// A volume with generations, which only xact mounts.
    Generations,
    /// A plain ext4 volume.
    Ext4,
}

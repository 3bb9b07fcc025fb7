//! Arguments of `xact convert`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::size;

/// Give a volume generations, or make it a plain ext4 volume again
///
/// In place, with everything that is on it. A crash leaves the one or the other; the same command then goes on.
/// The volume must not be mounted. With generations a volume has a pool behind it: an image file grows by
/// that, on a block device there must be room. A journal stays, empty and unused, for the way back. A
/// volume with snapshots cannot become a plain one: 'xact snapshot export' writes them out before.
#[derive(Debug, Args)]
pub struct Convert {
    /// The image file or block device.
    #[arg(value_name = "IMG", value_hint = clap::ValueHint::FilePath)]
    pub image: PathBuf,
    /// What it is to be.
    #[arg(long, value_enum)]
    pub to: ConvertTo,
    /// For an image file, size of the pool. Default: a sixteenth of the volume, from 4M to 1G.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub pool_size: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ConvertTo {
    /// A volume with generations, which only xact mounts.
    Generations,
    /// A plain ext4 volume.
    Ext4,
}

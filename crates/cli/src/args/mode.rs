//! The command line of `xact mode`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::{complete, settings_args};

/// Show or set how a volume is journaled
#[derive(Debug, Args)]
#[command(long_about = settings_args::modes_help())]
pub struct Mode {
    #[command(subcommand)]
    pub command: ModeCommand,
}

#[derive(Debug, Subcommand)]
pub enum ModeCommand {
    Get(ModeGet),
    Set(ModeSet),
    Clear(ModeClear),
}

/// Show a volume's modes, and where each comes from
///
/// With '--file', show in which mode the data of one file is written.
#[derive(Debug, Args)]
pub struct ModeGet {
    /// The mount (or any folder on it), or the image file or block device; with '--file', a file or
    /// folder on a mount.
    #[arg(value_name = "VOLUME", add = complete::mount_or_path())]
    pub at: PathBuf,
    /// Show the mode of this file, or that of new files in this folder.
    #[arg(long)]
    pub file: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Set a volume's modes
///
/// The modes take effect at the next mount. Linux mounts the volume as before. Inside a transaction
/// ('xact run'), modes cannot be set, because that could not be rolled back.
///
/// With '--file', set the data mode of one file, which takes effect at once, also in a transaction.
/// The file's owner may do that. The modes are none (no data goes through the journal; otherwise as
/// the volume), ordered, data (as after 'chattr +j'), selective and adaptive. The file keeps its
/// mode as the extended attribute user.xact.data, which 'cp -a' and 'rsync -X' copy.
#[derive(Debug, Args)]
pub struct ModeSet {
    /// The mount (or any folder on it), or the image file or block device; with '--file', a file or
    /// folder on a mount.
    #[arg(value_name = "VOLUME", add = complete::mount_or_path())]
    pub at: PathBuf,
    /// A mode and its value; 'default' removes the mode from the volume. With '--file', the data
    /// mode.
    #[arg(value_name = "NAME=VALUE", required = true, add = complete::mode())]
    pub settings: Vec<String>,
    /// Set the data mode of this file.
    #[arg(long)]
    pub file: bool,
    /// Set the data mode of the files and folders that are made in this folder from now on.
    #[arg(long, requires = "file")]
    pub inherit: bool,
}

/// Let a file follow the volume's data mode again
#[derive(Debug, Args)]
pub struct ModeClear {
    /// A file or folder on a mount.
    #[arg(value_name = "PATH", value_hint = clap::ValueHint::AnyPath)]
    pub at: PathBuf,
    /// Clear the mode of this file, or that of new files in this folder.
    #[arg(long, required = true)]
    pub file: bool,
}

pub fn setting(text: &str) -> Result<(String, String), String> {
    let wrong = || format!("invalid setting '{text}': expected NAME=VALUE, such as data=ordered");
    let (name, value) = text.split_once('=').ok_or_else(wrong)?;
    Ok((name.to_owned(), value.to_owned()))
}

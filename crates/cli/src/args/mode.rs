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
}

/// Show a volume's modes, and where each comes from
#[derive(Debug, Args)]
pub struct ModeGet {
    /// The mount (or any folder on it), or the image file or block device.
    #[arg(value_name = "VOLUME", add = complete::mount_or_path())]
    pub at: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Set a volume's modes
///
/// The modes take effect at the next mount. Linux mounts the volume as before. Inside a transaction
/// ('xact run'), modes cannot be set, because that could not be rolled back.
#[derive(Debug, Args)]
pub struct ModeSet {
    /// The mount (or any folder on it), or the image file or block device.
    #[arg(value_name = "VOLUME", add = complete::mount_or_path())]
    pub at: PathBuf,
    /// A mode and its value; 'default' removes the mode from the volume.
    #[arg(value_name = "NAME=VALUE", required = true, value_parser = setting)]
    #[arg(add = complete::mode())]
    pub settings: Vec<(String, String)>,
}

fn setting(text: &str) -> Result<(String, String), String> {
    let wrong = || format!("invalid setting '{text}': expected NAME=VALUE, such as data=ordered");
    let (name, value) = text.split_once('=').ok_or_else(wrong)?;
    Ok((name.to_owned(), value.to_owned()))
}

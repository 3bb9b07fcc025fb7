//! The command line of `xact mode`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Tell or set how a volume is journaled
///
/// A volume keeps its modes; a mount takes them unless its options (-o NAME=VALUE) say otherwise,
/// and what neither says is the default. ext4's own journal modes are kept where Linux and tune2fs
/// have them, so Linux mounts the volume that way too; the others are kept where Linux and e2fsck
/// see nothing.
///
/// data: which file data goes through the journal. adaptive (default): what an fsync writes along
/// with a commit, if it is little. ordered: none. journal: all. selective: what overwrites
/// something. writeback: none, and a crash may show what its blocks held before. A file's data also
/// goes that way after 'chattr +j'. Volumes with generations take adaptive, where that is their log
/// for fsyncs, ordered and writeback.
///
/// commit_writes: single (default): a commit goes to the journal in one write, with a checksum.
/// two-step: in two with a flush between, as ext4's default is. The first saves a write and mostly
/// a flush. Data is on the device before what refers to it either way.
///
/// inode_update: delayed (default): the size that a write makes joins the journal with the data.
/// immediate: before it, as in ext4, where a crash may show a part of a write's size.
///
/// timestamps: delayed (default): the times of a write join the journal with the data. immediate:
/// at the write, as in ext4, where an fsync commits the inodes of all files written meanwhile.
///
/// log_records: block (default): a commit has a copy of each block that it changes. sub-block: of a
/// block of which little changed, only that. While such a volume is mounted, and after a crash,
/// nobody but xact can replay its journal: Linux and e2fsck refuse the volume until 'xact recover'
/// or a clean unmount.
///
/// fsync, of a volume with generations: log (default): an fsync writes what changed to a log, which
/// the next generation makes superfluous. generation: it makes a generation. Both promise the same.
#[derive(Debug, Args)]
pub struct Mode {
    #[command(subcommand)]
    pub command: ModeCommand,
}

#[derive(Debug, Subcommand)]
pub enum ModeCommand {
    Get(ModeGet),
    Set(ModeSet),
}

/// Tell a volume's modes, and which count
#[derive(Debug, Args)]
pub struct ModeGet {
    /// The mount (or any folder on it), or the image file or block device.
    #[arg(value_name = "VOLUME", value_hint = clap::ValueHint::AnyPath)]
    pub at: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Set a volume's modes
///
/// They count from the next mount on. Nothing else is changed: Linux mounts the volume as before.
/// Refused inside a transaction ('xact run'), as it would happen at once.
#[derive(Debug, Args)]
pub struct ModeSet {
    /// The mount (or any folder on it), or the image file or block device.
    #[arg(value_name = "VOLUME", value_hint = clap::ValueHint::AnyPath)]
    pub at: PathBuf,
    /// A setting and its value; the value 'default' takes back what the volume says.
    #[arg(value_name = "NAME=VALUE", required = true, value_parser = setting)]
    pub settings: Vec<(String, String)>,
}

fn setting(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("a setting is NAME=VALUE, such as data=ordered")?;
    Ok((name.to_owned(), value.to_owned()))
}

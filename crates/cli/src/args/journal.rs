//! The command line of `xact journal`.

use std::path::PathBuf;

use clap::Args;

/// Show the contents of a volume's journal
///
/// Lists the jbd2 transactions in the log from its tail to its end, written by Linux or by xact,
/// intact or damaged. Shows the number, the state and the time of each transaction, the blocks that
/// it revokes, and the checksums that are wrong. Also counts the copies of blocks in the
/// transaction by the use of the block: inode table, directory, and so on.
///
/// A transaction has one of four states. 'complete': recovery replays it. 'torn': it is the last
/// one and has a wrong checksum, as a crash leaves it; recovery discards it. 'unfinished': it is
/// the last one and has no commit block; recovery discards it too. 'damaged': recovery rejects this
/// log.
///
/// The command is read-only and replays nothing. After a clean unmount the log is empty.
#[derive(Debug, Args)]
pub struct Journal {
    /// The image file or block device, which must not be mounted.
    #[arg(value_name = "IMG", value_hint = clap::ValueHint::FilePath)]
    pub image: PathBuf,
    /// List each block: its home block, its block in the log, its use and its owner.
    #[arg(long, short)]
    pub blocks: bool,
    /// Print JSON, each block included.
    #[arg(long)]
    pub json: bool,
}

//! The command line of `xact journal`.

use std::path::PathBuf;

use clap::Args;

/// Show the contents of a volume's journal
///
/// Lists the jbd2 transactions in the log from its tail to its end, written by Linux or by xact,
/// intact or damaged. For each transaction, shows its number, its state, its time, the blocks it
/// has copies of by their use, the blocks it revokes, and which checksums are wrong.
///
/// States: complete: replayed by recovery. torn: the last one, with a wrong checksum, as a crash
/// leaves it; recovery discards it. unfinished: the last one, without a commit block; discarded
/// too. damaged: recovery rejects this log.
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

//! The command line of `xact journal`.

use std::path::PathBuf;

use clap::Args;

/// Tell what a volume's journal holds
///
/// Lists the jbd2 transactions in the log, from its tail to its end, as they lie there: Linux's as well
/// as xact's, whole or damaged. Of each: its number, its state, its time, the blocks that it has copies
/// of by what they are used for, the blocks that it revokes, and which checksums are wrong.
///
/// States: complete: it is replayed. torn: the last one, whose checksum is wrong, as a crash leaves it;
/// it is dropped. unfinished: the last one, without a commit block; dropped too. damaged: the replay
/// refuses this log.
///
/// Nothing is written or replayed. After a clean unmount the log is empty.
#[derive(Debug, Args)]
pub struct Journal {
    /// The image file or block device. It must not be mounted.
    #[arg(value_name = "IMG", value_hint = clap::ValueHint::FilePath)]
    pub image: PathBuf,
    /// List each block: where it belongs, where it lies in the log, whose it is.
    #[arg(long, short)]
    pub blocks: bool,
    /// Print JSON, each block included.
    #[arg(long)]
    pub json: bool,
}

//! `xact recover`: what mounting does to a volume that a crash left, without mounting it.

use serde::Serialize;
use xact::RecoveryReport;
use xact::device::OpenMode;

use crate::args::Recover;
use crate::exit::{Failure, Result};
use crate::image;
use crate::output::{print, print_json};
use crate::progress::Progress;

#[derive(Debug, Serialize)]
struct Recovered {
    image: String,
    /// Whether the journal held anything.
    replayed: bool,
    transactions: u32,
    blocks_written: u64,
    revoked_copies: u64,
    /// Blocks of the intent log, on a volume with generations.
    intent_log_blocks: u64,
    /// The crash interrupted the last commit, which was dropped.
    dropped_torn_commit: bool,
}

pub fn recover(args: &Recover) -> Result<()> {
    let device = image::open(&args.image, OpenMode::ReadWrite)?;
    let (device, progress) = Progress::over(device, format!("recovering {}", args.image.display()));
    let report = if args.journal_only { xact::replay_log(&device) } else { xact::recover(device) };
    let report = report.map_err(|e| Failure::volume(&args.image, e))?;
    drop(progress);
    let recovered = Recovered::of(args, &report);
    if args.json { print_json(&recovered) } else { print(&recovered.sentence()) }
}

impl Recovered {
    fn of(args: &Recover, report: &RecoveryReport) -> Recovered {
        Recovered {
            image: args.image.display().to_string(),
            replayed: report.replayed,
            transactions: report.transactions,
            blocks_written: report.blocks_written,
            revoked_copies: report.revoked_copies,
            intent_log_blocks: report.intent_log_blocks,
            dropped_torn_commit: report.dropped_torn_commit,
        }
    }

    fn sentence(&self) -> String {
        let torn =
            if self.dropped_torn_commit { ", dropped a commit that the crash interrupted" } else { "" };
        match (self.replayed, self.intent_log_blocks) {
            (false, 0) => format!("{}: the log is empty, there was nothing to replay\n", self.image),
            (false, blocks) => {
                format!("{}: wrote a generation with {blocks} blocks of the intent log\n", self.image)
            }
            (true, _) => format!(
                "{}: replayed {} jbd2 transactions, {} blocks{torn}\n",
                self.image, self.transactions, self.blocks_written
            ),
        }
    }
}

//! The command line: one definition, from which `--help`, the man pages and the completions come.

mod convert;
mod journal;
mod mkfs;
mod mode;
mod mount;
mod run;
mod snapshot;
mod tx;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use tracing_subscriber::filter::LevelFilter;

use crate::complete;
use crate::exit;
use crate::progress::{Format, ProgressOption};
use crate::values;
pub use convert::{Convert, ConvertTo};
pub use journal::Journal;
pub use mkfs::{EngineKind, Mkfs};
pub use mode::{Mode, ModeCommand, ModeGet, ModeSet, setting};
pub use mount::{Mount, Umount};
pub use run::{Detection, Isolation, Run};
pub use snapshot::{Prune, SalvageOptions, Snapshot, SnapshotCommand, SnapshotName};
pub use tx::{Diff, Target, Tx, TxAbort, TxBegin, TxCommand, TxCommit, TxList, TxStatus};

/// Run any command on an ext4 volume in a transaction
///
/// xact mounts ext4 volumes (image files or block devices) without the kernel's ext4. It runs any
/// program on them in a transaction: either all changes of the program are applied, at once and
/// durably, or none.
#[derive(Debug, Parser)]
#[command(name = "xact", version, propagate_version = true, after_long_help = exit::HELP)]
#[command(max_term_width = 100, subcommand_required = true, arg_required_else_help = true)]
pub struct Cli {
    #[command(flatten)]
    pub verbosity: Verbosity,
    #[command(subcommand)]
    pub command: Command,
}

/// The options for messages, which every command has.
#[derive(Debug, Default, Args)]
pub struct Verbosity {
    /// Print more messages; repeat for more. XACT_LOG=FILTER overrides this.
    ///
    /// Commands print warnings and errors, and the daemon also logs information. Each -v adds a
    /// level: information, debug, trace. The environment variable XACT_LOG chooses events by level
    /// and source, such as debug or xact_fs=trace,info.
    #[arg(long, short, global = true, action = clap::ArgAction::Count, conflicts_with = "quiet")]
    pub verbose: u8,
    /// Print errors only.
    #[arg(long, short, global = true)]
    pub quiet: bool,
}

impl Verbosity {
    /// The lowest level of events that are logged.
    pub fn level(&self, is_daemon: bool) -> LevelFilter {
        let default = if is_daemon { 1 } else { 0 };
        match self.verbose + default {
            _ if self.quiet => LevelFilter::ERROR,
            0 => LevelFilter::WARN,
            1 => LevelFilter::INFO,
            2 => LevelFilter::DEBUG,
            _ => LevelFilter::TRACE,
        }
    }
}

#[derive(Debug, Subcommand)]
pub enum Command {
    Mkfs(Mkfs),
    Mount(Mount),
    Umount(Umount),
    Sync(Sync),
    Run(Run),
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Tx(Tx),
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Mode(Mode),
    List(List),
    Stat(Stat),
    Info(Info),
    Journal(Journal),
    Recover(Recover),
    Check(Check),
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Snapshot(Snapshot),
    Convert(Convert),
    Completions(Completions),
    Man(Man),
}

impl Command {
    /// How the command reports progress.
    pub fn progress(&self) -> Format {
        let option = match self {
            Command::Mkfs(args) => &args.progress,
            Command::Recover(args) => &args.progress,
            Command::Check(args) => &args.progress,
            Command::Convert(args) => &args.progress,
            Command::Snapshot(Snapshot {
                command: SnapshotCommand::Export { progress, .. } | SnapshotCommand::Restore { progress, .. },
            }) => progress,
            _ => return Format::Auto,
        };
        option.progress
    }
}

/// Make all completed changes on a mount durable
///
/// sync(1) and syncfs(2) reach only mounts of root, and only on Linux 6.18 or newer. This command
/// reaches all mounts. 'xact stat' shows whether sync(2) reaches a mount.
#[derive(Debug, Args)]
pub struct Sync {
    /// The mount, or any path on it.
    #[arg(value_name = "MNT", default_value = ".", add = complete::mount())]
    pub at: PathBuf,
}

/// List mounted volumes
///
/// Shows for each its image, the user who mounted it, its engine, its space, its open transactions
/// and its snapshots. The transactions are those of all users for root, else those of the caller. A
/// volume is also listed if its daemon has died, does not answer, or serves another user only.
///
/// Volumes that are mounted only in the mount namespaces of other processes, such as containers,
/// are listed with one of these processes if the caller may look at it. 'nsenter --mount --target
/// PID xact list' shows the rest.
#[derive(Debug, Args)]
pub struct List {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Show statistics of a mounted volume
///
/// Shows its free space, and its device I/O since it was mounted: commits, writes, bytes and
/// flushes. Also shows the blocks that checkpoints wrote, the writes that they avoided, and the
/// shares of new and overwritten data. For a volume with generations, also shows how full its pool
/// is, and what takes the space.
#[derive(Debug, Args)]
pub struct Stat {
    /// The mount, or any path on it [default: the volume of the current folder; with --prometheus,
    /// all volumes in the mount namespace of the caller].
    #[arg(value_name = "MNT", add = complete::mount())]
    pub at: Option<PathBuf>,
    /// Repeatedly show the activity of the last interval; with --json, one line per interval
    /// [default interval: 1s].
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "1s")]
    #[arg(value_parser = values::parse_interval)]
    pub watch: Option<Duration>,
    /// List the files whose data was written most since the volume was mounted, with their blocks:
    /// new ones, and overwritten ones. For root and the user who mounted the volume [default
    /// number: 20].
    #[arg(long, value_name = "NUMBER", num_args = 0..=1, default_missing_value = "20")]
    #[arg(require_equals = true, conflicts_with = "watch")]
    pub files: Option<usize>,
    /// Print metrics in Prometheus' text format.
    #[arg(long, conflicts_with_all = ["watch", "files", "json"])]
    pub prometheus: bool,
    /// Write the metrics to FILE, such as one in the folder of node_exporter's textfile collector.
    /// The file is replaced at once, so that a reader never sees a part of it.
    #[arg(long, value_name = "FILE", requires = "prometheus", value_hint = clap::ValueHint::FilePath)]
    pub output: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Recover a volume without mounting it
///
/// Replays the journal that a crash left, and frees files that were deleted while they were open. A
/// mount does the same. Linux or xact may have written the journal. A volume that was unmounted
/// cleanly is left unchanged.
#[derive(Debug, Args)]
pub struct Recover {
    /// The image file or block device.
    #[arg(value_name = "IMG", value_hint = clap::ValueHint::FilePath)]
    pub image: PathBuf,
    /// Replay the journal and do nothing else; the result is identical to that of Linux's own
    /// replay.
    #[arg(long)]
    pub journal_only: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub progress: ProgressOption,
}

/// Check a volume, from the superblock to the last block
///
/// Checks the superblock, the groups, the journal, every inode with its blocks and attributes,
/// every directory with its index, the link counts and the bitmaps. Prints each problem with the
/// block or inode it concerns, and exits with 65 if there is any. The check is read-only: nothing
/// is repaired or replayed on disk. After a crash, a volume is checked in the state that recovery
/// would produce. For a volume with generations, the maps, the pool and every snapshot are checked
/// too.
#[derive(Debug, Args)]
pub struct Check {
    /// The image file or block device, which must not be mounted.
    #[arg(value_name = "IMG", value_hint = clap::ValueHint::FilePath)]
    pub image: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub progress: ProgressOption,
}

/// Show superblock information
///
/// Reads the superblock only. Works on any ext2, ext3 or ext4 volume, mounted or not. If a volume
/// with generations is not mounted, shows the superblock of the newest generation, and how full the
/// pool is.
#[derive(Debug, Args)]
pub struct Info {
    /// The image file or block device.
    #[arg(value_name = "IMG", value_hint = clap::ValueHint::FilePath)]
    pub image: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Print a completion script for a shell
///
/// The script asks xact for candidates, so it also completes mounts, transactions and snapshots.
/// For bash: xact completions bash > /usr/share/bash-completion/completions/xact
#[derive(Debug, Args)]
pub struct Completions {
    /// The shell.
    #[arg(value_name = "SHELL")]
    pub shell: clap_complete::Shell,
}

/// Write the man pages to a folder
#[derive(Debug, Args)]
pub struct Man {
    /// The folder, such as /usr/local/share/man/man1. Pages of section 8 go to man8 beside man1.
    #[arg(value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    pub folder: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_and_option_says_what_it_is() {
        fn check(command: &clap::Command) {
            assert!(command.get_about().is_some(), "{} has no text", command.get_name());
            for argument in command.get_arguments() {
                let (id, name) = (argument.get_id(), command.get_name());
                assert!(argument.get_help().is_some(), "{id} of {name} has no text");
            }
            command.get_subcommands().for_each(check);
        }
        check(&Cli::command());
    }

    #[test]
    fn every_command_takes_the_options_on_messages() {
        let level =
            |line: &str, is_daemon| Cli::try_parse_from(line.split(' ')).unwrap().verbosity.level(is_daemon);
        assert_eq!(level("xact info x", false), LevelFilter::WARN);
        assert_eq!(level("xact tx list -v", false), LevelFilter::INFO);
        assert_eq!(level("xact -q tx list", false), LevelFilter::ERROR);
        assert_eq!(level("xact mount a b", true), LevelFilter::INFO);
        assert_eq!(level("xact mount a b -vv", true), LevelFilter::TRACE);
        // Behind the command they are the command's.
        assert_eq!(level("xact run true -v", false), LevelFilter::WARN);
        assert!(Cli::try_parse_from(["xact", "info", "x", "-v", "-q"]).is_err());
    }

    #[test]
    fn older_spellings_work_and_are_not_shown() {
        let parsed = |line: &str| Cli::try_parse_from(line.split(' ')).unwrap().command;
        let Command::Run(run) = parsed("xact run --keep --persist -- true") else { panic!() };
        assert!(run.leave_open && run.persist);
        let Command::Tx(tx) = parsed("xact tx drop 7 --only a") else { panic!() };
        assert!(matches!(tx.command, TxCommand::Abort(abort) if abort.which.id == 7));
        let Command::Snapshot(Snapshot { command: SnapshotCommand::Prune(prune) }) =
            parsed("xact snapshot prune mnt --keep last=3")
        else {
            panic!()
        };
        assert_eq!(prune.retain.last, 3);
        let Command::Mount(mount) = parsed("xact mount img mnt --snapshot-every 1h --snapshot-keep last=3")
        else {
            panic!()
        };
        assert_eq!(mount.settings.snapshot_retain.last, 3);
        let all = Cli::command();
        let find = |path: &[&str]| {
            let mut command = all.clone();
            for name in path {
                command = command.find_subcommand(name).unwrap().clone();
            }
            command.render_long_help().to_string()
        };
        for (path, old) in [
            (&["run"][..], "--keep"),
            (&["tx"], "drop"),
            (&["snapshot", "prune"], "--keep"),
            (&["mount"], "--snapshot-keep"),
        ] {
            assert!(!find(path).contains(old), "{path:?} shows {old}");
        }
    }
}

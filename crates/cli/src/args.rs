//! The command line: one definition, from which `--help`, the man pages and the completions come.

mod convert;
mod journal;
mod mode;
mod snapshot;
mod tx;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use xact::KeepRules;

use crate::exit;
use crate::size;
pub use convert::{Convert, ConvertTo};
pub use journal::Journal;
pub use mode::{Mode, ModeCommand, ModeGet, ModeSet};
pub use snapshot::{Prune, Snapshot, SnapshotCommand, SnapshotName};
pub use tx::{Decide, Diff, Tx, TxBegin, TxCommand, TxCommit, TxDrop, TxList, TxStatus};

/// ext4 volumes on which any command is all or nothing
///
/// xact mounts ext4 volumes (image files or block devices) without the kernel's ext4, and runs any
/// program on them in a transaction: all of its changes happen, at once and durably, or none does.
#[derive(Debug, Parser)]
#[command(name = "xact", version, propagate_version = true, after_long_help = exit::HELP)]
#[command(max_term_width = 100, subcommand_required = true, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
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
    Stat(Stat),
    Info(Info),
    Journal(Journal),
    Recover(Recover),
    Check(Check),
    Snapshot(Snapshot),
    Convert(Convert),
    Completions(Completions),
    Man(Man),
}

/// Make an ext4 volume
///
/// In an image file, which is made on the spot and takes space only as it fills, or on a block
/// device. The volume is what 'mke2fs -t ext4' makes; Linux mounts it and e2fsck checks it.
#[derive(Debug, Args)]
pub struct Mkfs {
    /// The image file or block device.
    #[arg(value_name = "IMG", value_hint = clap::ValueHint::FilePath)]
    pub image: PathBuf,
    /// Size of the volume, such as 512M or 2T. Needed for a new image file; else all there is.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub size: Option<u64>,
    /// Name of the volume, at most 16 bytes.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub label: String,
    /// UUID of the volume. Default: a random one.
    #[arg(long, value_parser = size::parse_uuid)]
    pub uuid: Option<[u8; 16]>,
    /// 1K, 2K or 4K. Default: 1K below 512 MiB, else 4K.
    #[arg(long, value_name = "SIZE", value_parser = size::parse_u32)]
    pub block_size: Option<u32>,
    /// Bytes of the volume for each inode: fewer mean more inodes, which cannot be added later.
    #[arg(long, value_name = "SIZE", value_parser = size::parse_u32)]
    pub inode_ratio: Option<u32>,
    /// How the volume survives crashes.
    ///
    /// journal: as ext4 does, by a jbd2 journal; Linux mounts the volume. generations: metadata is
    /// never overwritten, so that a crash leaves nothing to be replayed; only xact mounts the
    /// volume, and 'xact snapshot export' writes it out as an ext4 image. none: not at all.
    #[arg(long, value_enum, default_value_t = EngineKind::Journal)]
    pub engine: EngineKind,
    /// With generations: room for metadata that moved, behind the volume. Default: a sixteenth of
    /// the device, from 4M to 1G.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub pool_size: Option<u64>,
    /// With a journal: its size; 0 for none. Default: by the size of the volume.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub journal_size: Option<u64>,
    /// Percent of the volume that only root may fill, at most 50.
    #[arg(long, value_name = "PERCENT", default_value_t = 5, value_parser = size::parse_number::<u8>)]
    pub reserved_percent: u8,
    /// Whose the root folder of the volume is, by number. Default: whoever makes the volume.
    ///
    /// Without a group, it is the one of the same number.
    #[arg(long, value_name = "UID[:GID]", value_parser = size::parse_owner)]
    pub root_owner: Option<(u32, u32)>,
    /// Make the volume even where IMG holds something already, which is lost.
    #[arg(long)]
    pub force: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// The engines that `mkfs` makes volumes for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum EngineKind {
    Journal,
    Generations,
    None,
}

/// Mount a volume
///
/// Recovers it if needed, and returns when it is usable; a daemon serves it from then on, until
/// 'xact umount MNT', umount(8), or SIGTERM. A volume that is mounted already is refused.
#[derive(Debug, Args)]
pub struct Mount {
    /// The image file or block device.
    #[arg(value_name = "IMG", value_hint = clap::ValueHint::FilePath)]
    pub image: PathBuf,
    /// The folder to mount it on.
    #[arg(value_name = "MNT", value_hint = clap::ValueHint::DirPath)]
    pub mount_point: PathBuf,
    /// Serve it from this process, which ends when it is unmounted, and log to standard error.
    #[arg(long, short)]
    pub foreground: bool,
    /// Mount options, separated by commas.
    ///
    /// ro: read-only. allow_other, noallow_other: whether users other than the one who mounts may
    /// use it, as permissions say (default: for root yes, for others no; others also need
    /// user_allow_other in /etc/fuse.conf). nosuid, nodev, noexec, sync, dirsync: as in
    /// mount(8). commit=SECONDS: as --commit-interval. dirty_blocks=N: on a volume with generations, from so
    /// many changed metadata blocks on the next generation is made at once.
    ///
    /// data, commit_writes, inode_update, timestamps, log_records, fsync: how the volume is journaled, instead of
    /// what it says itself; see 'xact mode --help'. journal_async_commit, nojournal_async_commit: ext4's names
    /// for commit_writes=single and two-step.
    ///
    /// noatime (default), relatime, strictatime, nodiratime, lazytime: when reads set access times, as in
    /// mount(8). Reads that the kernel answers from its own cache are not seen here and set none.
    ///
    /// discard: blocks that files give back are given back to the device too (holes in an image file),
    /// when a crash cannot bring their files back. fstrim(8) does it for all that is free.
    ///
    /// tx_space=PERCENT: what all open transactions of one user other than root may hold of the free space and of the
    /// free inodes before their commits (default: 50). Beyond it calls in them fail with "disk quota exceeded".
    ///
    /// errors=continue, remount-ro or panic: what follows damage of the volume, besides a note in its
    /// superblock; default: what the superblock says. panic: nothing is served any more.
    ///
    /// usrquota (or quota), grpquota, prjquota: on a volume with quotas, whether what users, groups and
    /// projects may use is enforced. What they use is always counted.
    #[arg(short = 'o', value_name = "OPTIONS", value_delimiter = ',', action = clap::ArgAction::Append)]
    pub options: Vec<String>,
    /// Memory for cached data and metadata.
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = size::parse)]
    pub cache_size: u64,
    /// Memory of the daemon that each user may use for transactions: what they have read and changed, lists of changes.
    ///
    /// What a transaction has read is recorded in a coarser way where there is no more, and then calls in it fail with
    /// ENOMEM. Root and the user who mounts have no limits; all other users together have four times those of one.
    /// Default: an eighth of --cache-size, and at least 24M.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub user_memory: Option<u64>,
    /// Transactions that each user may have open, kept ones included.
    ///
    /// Ten times as many savepoints, and four times as many control channels. Limits as with --user-memory.
    #[arg(long, value_name = "N", default_value = "100", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub user_transactions: u64,
    /// What was done is durable by itself after this time at the latest.
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = size::parse_seconds)]
    pub commit_interval: Duration,
    /// Make a snapshot every so often, such as 15m, 1h or 1d, if anything has changed.
    ///
    /// Of a volume with generations. Names are the time, such as auto-2026-03-01T17:05:09Z.
    #[arg(long, value_name = "TIME", value_parser = snapshot_every)]
    pub snapshot_every: Option<Duration>,
    /// Which of those snapshots stay; see 'xact snapshot prune --help'.
    #[arg(long, value_name = "RULES", default_value = "hourly=24,daily=7", requires = "snapshot_every")]
    pub snapshot_keep: KeepRules,
    /// Make them of this file or folder alone: a path from the volume's root. May be given several times.
    #[arg(long, value_name = "PATH", requires = "snapshot_every")]
    pub snapshot_of: Vec<PathBuf>,
    /// Where the daemon's messages go: syslog, stderr, or a file, which is appended to.
    ///
    /// Default: stderr with --foreground, else syslog where there is one.
    #[arg(long, value_name = "WHERE", value_hint = clap::ValueHint::FilePath)]
    pub log: Option<PathBuf>,
}

fn snapshot_every(text: &str) -> Result<Duration, String> {
    let time = xact::parse_time(text)?;
    if time.is_zero() { Err("no time at all".into()) } else { Ok(time) }
}

/// Take a mount away
///
/// Makes everything durable, takes the mount away, and returns when the daemon has let go of the
/// image. Also takes away what a killed daemon left behind. Transactions that were left open ('xact tx list') are
/// dropped, and named on standard error.
#[derive(Debug, Args)]
pub struct Umount {
    /// The folder where the volume is mounted.
    #[arg(value_name = "MNT", value_hint = clap::ValueHint::DirPath)]
    pub mount_point: PathBuf,
}

/// Make everything done so far on a mount durable
///
/// sync(1) and syncfs(2) do not reach a FUSE mount; this does.
#[derive(Debug, Args)]
pub struct Sync {
    /// The mount, or any path on it. Default: the current folder.
    #[arg(value_name = "MNT", default_value = ".", value_hint = clap::ValueHint::DirPath)]
    pub at: PathBuf,
}

/// Run a command in a transaction: all it does on the volume, or nothing
///
/// CMD and everything that it starts see a private view of the volume, as it was at the start, at
/// the usual path; nobody else sees what they do there. When CMD succeeds (exit status 0), all
/// changes become visible at once and are durable when xact run returns. When it fails, is killed,
/// or xact run itself dies, nothing was changed.
///
/// Only the volume is in the transaction: other file systems, the network and the terminal are as
/// ever. Standard input, output and error, and other open descriptors, that are files or folders on
/// the volume are opened again in the view; those that cannot be (deleted files, FIFOs) are
/// refused. Processes that CMD leaves behind lose the volume when CMD ends: their calls on it fail
/// with ESTALE.
///
/// Inside a transaction, 'xact run' is a part of it: if CMD fails there, or xact run is killed, what
/// CMD did is undone, and nothing else. If it succeeds, that counts when the transaction around it commits.
///
/// To look before it counts: --ask shows the changes and asks; --keep leaves the transaction open, to
/// be looked at and decided over with 'xact tx'.
///
/// If others change what CMD has read or written before it commits, the commit is refused: who
/// commits first wins. --retry runs CMD again on the new state, after a random pause that grows.
#[derive(Debug, Args)]
#[command(after_long_help = exit::RUN_HELP)]
pub struct Run {
    /// The mount, or any path on it. Default: the volume that the current folder is on.
    #[arg(long, value_name = "MNT", default_value = ".", hide_default_value = true)]
    #[arg(value_hint = clap::ValueHint::DirPath)]
    pub at: PathBuf,
    /// Leave the transaction open when CMD succeeds, and tell its number, for 'xact tx'.
    #[arg(long, conflicts_with_all = ["ask", "retry", "ordered"])]
    pub keep: bool,
    /// With --keep: keep it on the volume too, where it survives unmounting and crashes.
    ///
    /// It is open again, with its number and what is left of its time, when the volume is mounted the next time.
    /// What others change until then is a conflict as ever. Its contents take their space on the volume twice;
    /// where there is none, the transaction is open without it.
    #[arg(long, requires = "keep")]
    pub persist: bool,
    /// Drop the kept transaction after this time, such as 90s, 30m, 12h or 7d; 0: never.
    #[arg(long, value_name = "TIME", default_value = "1d", value_parser = size::parse_timeout)]
    pub timeout: u32,
    /// Show what CMD has changed and ask on the terminal whether to commit it.
    #[arg(long)]
    pub ask: bool,
    /// After a conflict run CMD again, up to N times.
    ///
    /// It finds standard input where the last run has left it. After three conflicts in a row, commits of other
    /// transactions that would collide with what CMD had to do with wait for it, for a while.
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    #[arg(value_parser = size::parse_number::<u32>)]
    pub retry: u32,
    /// Return when the changes are visible, in order with all else: they become durable together
    /// with the next durable commit, fsync or sync, or within seconds.
    #[arg(long)]
    pub ordered: bool,
    /// Keep the volume as it is just before the commit, as a snapshot of this name.
    ///
    /// On a volume with generations. Without a name it is 'run-', the time, and the transaction's number. What
    /// others do between the snapshot and the commit is not in it. Where the commit is refused, the snapshot is
    /// deleted again; a crash between the two leaves the snapshot.
    #[arg(long, value_name = "NAME", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    #[arg(conflicts_with = "keep")]
    pub snapshot: Option<String>,
    /// What counts as a conflict.
    #[arg(long, value_enum, default_value_t = Isolation::Serializable)]
    pub isolation: Isolation,
    /// Run CMD in the kept transaction ID, which stays open.
    #[arg(long, value_name = "ID", value_parser = size::parse_number::<u64>)]
    #[arg(conflicts_with_all = ["keep", "ask", "retry", "ordered", "snapshot", "isolation"])]
    pub tx: Option<u64>,
    /// Write how it ended to FILE, as JSON. FILE itself is never part of the transaction.
    ///
    /// An object with: outcome (committed, kept, declined, aborted, conflict, no-space, io-error,
    /// not-started or failed), exit_code (of xact run), command_status and command_signal (of CMD;
    /// null if it did not run), mount, transaction (its number), tries, path and winner (of a
    /// conflict: the transaction that came first, null for a program outside of any), reason, and snapshot
    /// (the name of the one that --snapshot has taken).
    /// The file is empty while CMD runs, and stays so if xact run is killed: then the transaction
    /// was aborted.
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub status_file: Option<PathBuf>,
    /// The command and its arguments.
    #[arg(value_name = "CMD", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    #[arg(value_hint = clap::ValueHint::CommandWithArguments)]
    pub command: Vec<OsString>,
}

/// What a commit checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Isolation {
    /// Others have changed nothing that was read or written: as if it had run alone.
    Serializable,
    /// Others have changed nothing that was written.
    Snapshot,
}

/// Tell figures of a mounted volume
///
/// Its space, and what it has asked of the device since it was mounted: commits, writes, bytes and
/// flushes, how many blocks checkpoints wrote and how many they never had to, how much of the data
/// was new and how much overwrote something. Of a volume with generations, how full its pool is, and of what.
#[derive(Debug, Args)]
pub struct Stat {
    /// The mount, or any path on it. Default: the current folder.
    #[arg(value_name = "MNT", default_value = ".", value_hint = clap::ValueHint::DirPath)]
    pub at: PathBuf,
    /// Print what was done in the last so many seconds, again and again; with --json a line each.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1")]
    #[arg(value_parser = size::parse_seconds)]
    pub watch: Option<Duration>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Recover a volume without mounting it
///
/// Replays the journal that a crash left, Linux's as well as xact's, and frees the files that were
/// deleted while they were open, as mounting does. Does nothing to a volume that was unmounted
/// cleanly.
#[derive(Debug, Args)]
pub struct Recover {
    /// The image file or block device.
    #[arg(value_name = "IMG", value_hint = clap::ValueHint::FilePath)]
    pub image: PathBuf,
    /// Replay the journal and nothing else: the same bytes as Linux's own replay leaves.
    #[arg(long)]
    pub journal_only: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Check a volume, from the superblock to the last block
///
/// Looks at everything: superblock, groups, journal, every inode with its blocks and attributes, every
/// directory with its index, link counts, bitmaps. Prints what is wrong, with the block or inode that
/// it is about, and exits with 65 if there is anything. Nothing is written, repaired or replayed on
/// disk: a volume that a crash left is judged as its recovery would leave it. Of a volume with
/// generations, the maps and the pool are checked, and every snapshot as the volume itself.
#[derive(Debug, Args)]
pub struct Check {
    /// The image file or block device. It must not be mounted.
    #[arg(value_name = "IMG", value_hint = clap::ValueHint::FilePath)]
    pub image: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Tell what an image holds
///
/// Reads the superblock only: works on any ext2, ext3 or ext4 volume, mounted or not. (Of a volume with
/// generations that nobody has mounted, the newest generation's superblock, and how full the pool is.)
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
/// For bash: xact completions bash > /usr/share/bash-completion/completions/xact
#[derive(Debug, Args)]
pub struct Completions {
    #[arg(value_name = "SHELL")]
    pub shell: clap_complete::Shell,
}

/// Write the man pages into a folder
#[derive(Debug, Args)]
pub struct Man {
    /// The folder, such as /usr/local/share/man/man1.
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
    fn run_takes_the_rest_as_the_command() {
        for line in [&["xact", "run", "--", "ls", "--all"][..], &["xact", "run", "ls", "--all"]] {
            let Command::Run(run) = Cli::try_parse_from(line).unwrap().command else { panic!() };
            assert_eq!(run.command, ["ls", "--all"]);
            assert_eq!(run.at, PathBuf::from("."));
        }
        let line = ["xact", "run", "--at", "/mnt", "--status-file", "s", "--", "ls", "--at", "x"];
        let Command::Run(run) = Cli::try_parse_from(line).unwrap().command else { panic!() };
        assert_eq!((run.at, run.status_file), ("/mnt".into(), Some("s".into())));
        assert_eq!(run.command, ["ls", "--at", "x"]);
        assert!(Cli::try_parse_from(["xact", "run"]).is_err());
    }

    #[test]
    fn every_command_and_option_says_what_it_is() {
        let all = Cli::command();
        let below = all.get_subcommands().flat_map(clap::Command::get_subcommands);
        for command in all.get_subcommands().chain(below) {
            assert!(command.get_about().is_some(), "{} has no text", command.get_name());
            for argument in command.get_arguments() {
                let named = argument.get_value_names().is_some_and(|names| names[0] == "SHELL");
                assert!(
                    argument.get_help().is_some() || named,
                    "{} of {} has no text",
                    argument.get_id(),
                    command.get_name()
                );
            }
        }
    }
}

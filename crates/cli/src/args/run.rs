//! The command line of `xact run`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use crate::{complete, exit, values};

/// Run a command in a transaction: all of its changes on the volume, or none
///
/// CMD and every process that it starts see a private view of the volume at the usual path. The
/// view starts from the state of the volume at the beginning of the transaction. Other processes do
/// not see the changes made in the view. If CMD succeeds (exit status 0), all changes become
/// visible at once and are durable when xact run returns. Nothing is changed if CMD fails or is
/// killed, or if xact run itself dies.
///
/// Only the volume takes part in the transaction; other file systems, the network and the terminal
/// do not. Standard input, output and error, and other inherited descriptors, are opened again in
/// the view if they are files or folders on the volume. Descriptors for which this is impossible
/// (deleted files, FIFOs) are rejected. Processes that CMD leaves behind lose access to the volume
/// when CMD ends: their calls on it fail with ESTALE.
///
/// Inside a transaction, 'xact run' makes a savepoint. The changes of CMD are rolled back if CMD
/// fails or xact run is killed; the rest of the transaction is kept. If CMD succeeds, its changes
/// are committed with the outer transaction. The same holds for --tx, which runs CMD in a
/// transaction that was left open.
///
/// Two options allow a review before the commit: --ask shows the changes and asks whether to commit
/// them; --leave-open leaves the transaction open for 'xact tx'.
///
/// For an ordinary user, files of other users appear with a wrong owner in CMD, and sudo and other
/// setuid programs do not work there, unless the administrator has enabled xact-run-helper with
/// 'make install SETUID=1'. A note says so before CMD starts; -q omits it.
///
/// The commit fails if another process has changed something that CMD read or wrote: the first to
/// commit wins. --retry runs CMD again on the new state, after a random pause that grows.
#[derive(Debug, Args)]
#[command(after_long_help = exit::RUN_HELP)]
pub struct Run {
    /// The mount, or any path on it [default: the volume of the current folder].
    #[arg(long, value_name = "MNT", default_value = ".", hide_default_value = true)]
    #[arg(add = complete::mount())]
    pub at: PathBuf,
    /// Leave the transaction open when CMD succeeds, and print its number, for 'xact tx'.
    #[arg(long, alias = "keep", conflicts_with_all = ["ask", "retry", "ordered"])]
    pub leave_open: bool,
    /// Store the open transaction on the volume, so that it survives unmounts and crashes.
    ///
    /// It is open again after the next mount, with its number and its remaining time. Changes that
    /// others make until then cause a conflict, as usual. Its contents take twice their size on the
    /// volume. If there is no space, the transaction is left open without being stored.
    #[arg(long, requires = "leave_open")]
    pub persist: bool,
    /// Abort the open transaction after this time, such as 90s, 30m, 12h or 7d; 0: never.
    #[arg(long, value_name = "TIME", default_value = "1d", value_parser = values::parse_timeout)]
    pub timeout: u32,
    /// Show the changes of CMD, and ask on the terminal whether to commit them.
    #[arg(long)]
    pub ask: bool,
    /// Run CMD again after a conflict, up to N times [default: 0].
    ///
    /// CMD continues to read standard input where the last run stopped. After three conflicts in a
    /// row CMD gets priority: for a limited time, other transactions that would conflict with it
    /// delay their commits.
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    #[arg(value_parser = values::parse_number::<u32>)]
    pub retry: u32,
    /// Return when the changes are visible, before they are durable.
    ///
    /// They become durable together with the next durable commit, fsync or sync, or within the
    /// commit interval. All changes of the volume become durable in the order in which they were
    /// made.
    #[arg(long)]
    pub ordered: bool,
    /// Make a snapshot of the volume just before the commit, on a volume with generations.
    ///
    /// Without NAME, the snapshot is called run-TIME-ID, where ID is the transaction's number. It
    /// does not contain changes that others make between the snapshot and the commit. If the commit
    /// fails, the snapshot is deleted again; after a crash between the two, the snapshot remains.
    #[arg(long, value_name = "NAME", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    #[arg(conflicts_with = "leave_open")]
    pub snapshot: Option<String>,
    /// Which changes of others are conflicts.
    #[arg(long, value_enum, default_value_t = Isolation::Serializable)]
    pub isolation: Isolation,
    /// When CMD learns of a conflict with a transaction that is open.
    #[arg(long, value_enum, default_value_t = Detection::Lazy)]
    pub conflict: Detection,
    /// Run CMD in the open transaction ID, and leave it open.
    ///
    /// If CMD fails or xact run is killed, the changes of CMD are rolled back, and the transaction
    /// stays open with those from before. After a conflict they stay, for 'xact tx diff' and for a
    /// commit of a part.
    #[arg(long, value_name = "ID", value_parser = values::parse_number::<u64>)]
    #[arg(add = complete::transaction())]
    #[arg(conflicts_with_all = ["leave_open", "ask", "retry", "ordered", "snapshot", "isolation", "conflict"])]
    pub tx: Option<u64>,
    /// Write the outcome to FILE, as JSON. FILE itself is never part of the transaction.
    ///
    /// The object has these fields: outcome (committed, kept, aborted, conflict, no-space,
    /// io-error, not-started or failed), exit_code (of xact run), command_status and command_signal
    /// (of CMD; null if it did not run), mount, transaction (its number), tries, path (of a
    /// conflict), conflicting_tx, reason, and snapshot (the name of the snapshot that --snapshot
    /// made). The outcome 'kept' means that the transaction was left open. After a conflict,
    /// conflicting_tx is the transaction that committed first, or null for a program outside of any
    /// transaction. With --conflict eager, it may also be an open transaction that made the same
    /// change first. If the answer to --ask was no, the outcome is 'aborted' and command_status is
    /// 0.
    ///
    /// The file is empty while CMD runs, and remains empty if xact run is killed: then the
    /// transaction was aborted.
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub status_file: Option<PathBuf>,
    /// The command and its arguments.
    #[arg(value_name = "CMD", required = true, trailing_var_arg = true)]
    #[arg(value_hint = clap::ValueHint::CommandWithArguments)]
    pub command: Vec<OsString>,
}

/// The check of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Isolation {
    /// Changes to anything that CMD has read or written: the result is as if CMD had run alone.
    Serializable,
    /// Changes to anything that CMD has written.
    Snapshot,
}

/// When a transaction learns that another open one has changed what it changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Detection {
    /// When one of them has committed: the first to commit wins.
    Lazy,
    /// At once: the call that makes the later change fails. A transaction without this option that
    /// makes the later change is not disturbed.
    Eager,
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};

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
}

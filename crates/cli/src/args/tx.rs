//! The command line of `xact tx`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{Detection, Isolation};
use crate::{complete, values};

/// Review open transactions, and commit or abort them
///
/// 'xact run --leave-open' and 'xact tx begin' leave a transaction open: its changes are invisible
/// to others until it is committed. It stays open until it is committed or aborted, until its time
/// runs out, or, without --persist, until the volume is unmounted. A review does not count as a
/// read by the transaction.
#[derive(Debug, Args)]
pub struct Tx {
    #[command(subcommand)]
    pub command: TxCommand,
}

#[derive(Debug, Subcommand)]
pub enum TxCommand {
    Begin(TxBegin),
    List(TxList),
    Status(TxStatus),
    Diff(Diff),
    Commit(TxCommit),
    #[command(alias = "drop")]
    Abort(TxAbort),
}

/// Begin a transaction and print its number
///
/// The transaction stays open. Work in it with 'xact run --tx ID', or in the folder
/// MNT/.xact/tx/ID/root.
#[derive(Debug, Args)]
pub struct TxBegin {
    /// The mount, or any path on it [default: the volume of the current folder].
    #[arg(long, value_name = "MNT", default_value = ".", hide_default_value = true)]
    #[arg(add = complete::mount())]
    pub at: PathBuf,
    /// Abort the transaction after this time, such as 90s, 30m, 12h or 7d; 0: never.
    #[arg(long, value_name = "TIME", default_value = "1d", value_parser = values::parse_timeout)]
    pub timeout: u32,
    /// Store the transaction on the volume, so that it survives unmounts and crashes.
    ///
    /// The transaction is stored again at the end of each 'xact run --tx ID', after a partial
    /// commit or abort, and at an unmount. A crash loses the changes made since it was last stored.
    #[arg(long)]
    pub persist: bool,
    /// Which changes of others are conflicts.
    #[arg(long, value_enum, default_value_t = Isolation::Serializable)]
    pub isolation: Isolation,
    /// When the transaction learns of a conflict with another one that is open.
    #[arg(long, value_enum, default_value_t = Detection::Lazy)]
    pub conflict: Detection,
}

/// List open transactions
///
/// Root sees the transactions of all users; other users see their own.
#[derive(Debug, Args)]
pub struct TxList {
    /// The mount, or any path on it [default: the volume of the current folder].
    #[arg(long, value_name = "MNT", default_value = ".", hide_default_value = true)]
    #[arg(add = complete::mount())]
    pub at: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Show the status of a transaction
///
/// Also shows how a transaction that was left open has ended: committed, aborted, or timed out. The
/// end is remembered for a limited time.
#[derive(Debug, Args)]
pub struct TxStatus {
    #[command(flatten)]
    pub which: Target,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// A transaction on a mount.
#[derive(Debug, Args)]
pub struct Target {
    /// The transaction's number.
    #[arg(value_name = "ID", value_parser = values::parse_number::<u64>)]
    #[arg(add = complete::transaction())]
    pub id: u64,
    /// The mount, or any path on it [default: the volume of the current folder].
    #[arg(long, value_name = "MNT", default_value = ".", hide_default_value = true)]
    #[arg(add = complete::mount())]
    pub at: PathBuf,
}

/// Show the changes of a transaction
///
/// Prints one line per path: added, deleted, modified, renamed, or attributes (permissions, owner,
/// times, flags, extended attributes). Paths begin at the volume's root.
#[derive(Debug, Args)]
pub struct Diff {
    #[command(flatten)]
    pub which: Target,
    /// Limit the output to these paths and everything below them. Name a file by its path on the
    /// mount, such as mnt/etc, or from the volume's root, such as /etc.
    #[arg(value_name = "PATH", value_hint = clap::ValueHint::AnyPath)]
    pub paths: Vec<PathBuf>,
    /// Show changed lines of text, as a unified diff for 'git apply' and patch(1).
    ///
    /// 'git apply' reproduces text files, symbolic links, renames, empty files and executable bits;
    /// patch(1) deletes no empty files and changes no symbolic links. For a file that is binary or
    /// too large, the diff says 'Binary files ... differ', which cannot be applied: 'git apply
    /// --exclude PATH' skips such a file. Empty folders, special files, and other permissions and
    /// attributes are not part of the patch.
    #[arg(long, short, conflicts_with_all = ["stat", "json"])]
    pub patch: bool,
    /// Show the number of changed lines and bytes.
    #[arg(long, conflicts_with = "json")]
    pub stat: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Commit a transaction, or part of it
///
/// The changes become durable, and visible all at once. The transaction stays open if the commit
/// fails: others may have changed what it has read or written, or there may be no space.
#[derive(Debug, Args)]
#[command(override_usage = "xact tx commit [OPTIONS] <ID> [--only <PATH>...]")]
pub struct TxCommit {
    #[command(flatten)]
    pub which: Target,
    /// Commit only these paths, everything below them, and what they depend on.
    ///
    /// They depend on new folders above them, and on both ends of a rename. The transaction stays
    /// open with the rest. If a changed path is left out, a conflict on it does not prevent this
    /// commit, and is reported.
    #[arg(long, value_name = "PATH", num_args = 1.., value_hint = clap::ValueHint::AnyPath)]
    pub only: Vec<PathBuf>,
    /// Return when the changes are visible, before they are durable.
    #[arg(long)]
    pub ordered: bool,
}

/// Abort a transaction, or part of it
///
/// Aborted changes are discarded.
#[derive(Debug, Args)]
#[command(override_usage = "xact tx abort [OPTIONS] <ID> [--only <PATH>...]")]
pub struct TxAbort {
    #[command(flatten)]
    pub which: Target,
    /// Discard only these paths, everything below them, and what depends on them.
    ///
    /// The transaction stays open with the rest. A conflict on the discarded paths no longer
    /// prevents the commit of the rest.
    #[arg(long, value_name = "PATH", num_args = 1.., value_hint = clap::ValueHint::AnyPath)]
    pub only: Vec<PathBuf>,
}

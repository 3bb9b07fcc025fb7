//! The command line of `xact tx`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::size;

/// Look at open transactions and decide over them
///
/// 'xact run --keep' and 'xact tx begin' leave a transaction open: nobody sees its changes until it is
/// committed. It stays open until it is committed or dropped, its time runs out, or, without --persist, the
/// volume is unmounted. To look at a transaction does not count as reading in it.
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
    Drop(TxDrop),
}

/// Begin a transaction and print its number
///
/// It stays open. Work in it with 'xact run --tx ID', or in the folder MNT/.xact/tx/ID/root.
#[derive(Debug, Args)]
pub struct TxBegin {
    /// The mount, or any path on it. Default: the volume that the current folder is on.
    #[arg(long, value_name = "MNT", default_value = ".", hide_default_value = true)]
    #[arg(value_hint = clap::ValueHint::DirPath)]
    pub at: PathBuf,
    /// Drop it after this time, such as 90s, 30m, 12h or 7d; 0: never.
    #[arg(long, value_name = "TIME", default_value = "1d", value_parser = size::parse_timeout)]
    pub timeout: u32,
    /// Keep it on the volume too, where it survives unmounting and crashes: as it was when the last 'xact run --tx'
    /// in it had ended.
    #[arg(long)]
    pub persist: bool,
    /// What counts as a conflict.
    #[arg(long, value_enum, default_value_t = super::Isolation::Serializable)]
    pub isolation: super::Isolation,
}

/// List open transactions
///
/// For root those of everybody, else one's own.
#[derive(Debug, Args)]
pub struct TxList {
    /// The mount, or any path on it. Default: the volume that the current folder is on.
    #[arg(long, value_name = "MNT", default_value = ".", hide_default_value = true)]
    #[arg(value_hint = clap::ValueHint::DirPath)]
    pub at: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Tell where a transaction stands
///
/// Also of kept ones that have ended, for a while: whether they were committed or dropped, or their
/// time has run out.
#[derive(Debug, Args)]
pub struct TxStatus {
    #[command(flatten)]
    pub which: Decide,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// A transaction on a mount.
#[derive(Debug, Args)]
pub struct Decide {
    /// The transaction's number.
    #[arg(value_name = "ID", value_parser = size::parse_number::<u64>)]
    pub id: u64,
    /// The mount, or any path on it. Default: the volume that the current folder is on.
    #[arg(long, value_name = "MNT", default_value = ".", hide_default_value = true)]
    #[arg(value_hint = clap::ValueHint::DirPath)]
    pub at: PathBuf,
}

/// Show what a transaction changes
///
/// One line for each path: added, deleted, modified, renamed, or attributes (permissions, owner,
/// times, flags, extended attributes). Paths are from the volume's root.
#[derive(Debug, Args)]
pub struct Diff {
    #[command(flatten)]
    pub which: Decide,
    /// Show what is at and below these only. A path on the mount, or from the volume's root.
    #[arg(value_name = "PATH", value_hint = clap::ValueHint::AnyPath)]
    pub paths: Vec<PathBuf>,
    /// Show the changed lines of text, as a unified diff that git apply and patch(1) take.
    ///
    /// To git apply it says all of text, symbolic links, renames, empty files, and whether a file can be
    /// executed; patch(1) deletes no empty files and changes no symbolic links. Of other bytes than
    /// text it says 'Binary files ... differ', which nobody can apply: 'git apply --exclude PATH' leaves such a
    /// file out. Empty folders, special files, other permissions and attributes are no part of a patch.
    #[arg(long, short, conflicts_with_all = ["stat", "json"])]
    pub patch: bool,
    /// Show how many lines and bytes change.
    #[arg(long, conflicts_with = "json")]
    pub stat: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Commit a transaction, or part of it
///
/// All of it becomes visible at once and durable. Where the commit is refused (others have changed
/// what the transaction has read or written, or there is no space), it stays open.
#[derive(Debug, Args)]
#[command(override_usage = "xact tx commit [OPTIONS] <ID> [--only <PATH>...]")]
pub struct TxCommit {
    #[command(flatten)]
    pub which: Decide,
    /// Commit what is at and below these paths, and what they need: new folders above them, both
    /// ends of a rename. The transaction stays open with the rest.
    #[arg(long, value_name = "PATH", num_args = 1.., value_hint = clap::ValueHint::AnyPath)]
    pub only: Vec<PathBuf>,
    /// Return when the changes are visible; they become durable with what comes later.
    #[arg(long)]
    pub ordered: bool,
}

/// Drop a transaction, or part of it
///
/// Nothing of what is dropped has happened.
#[derive(Debug, Args)]
#[command(override_usage = "xact tx drop [OPTIONS] <ID> [--only <PATH>...]")]
pub struct TxDrop {
    #[command(flatten)]
    pub which: Decide,
    /// Drop what is at and below these paths, and what cannot stay without them. The transaction
    /// stays open with the rest.
    #[arg(long, value_name = "PATH", num_args = 1.., value_hint = clap::ValueHint::AnyPath)]
    pub only: Vec<PathBuf>,
}

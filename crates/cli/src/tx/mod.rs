//! `xact tx`: reviews open transactions, and commits or aborts them.

mod patch;
pub mod show;

use std::path::Path;

use serde::Serialize;
use xact::text::printable;
use xact_control::TxInfo;
use xact_control::abi::{self, COMMIT_ORDERED, COMMIT_RETAIN, ChangeKind, ChangeSide};
use xact_control::client::{Channel, TxChange};

use crate::args::{Diff, Target, Tx, TxAbort, TxBegin, TxCommand, TxCommit, TxList, TxStatus};
use crate::control::{self, Transaction};
use crate::exit::{Failure, Result};
use crate::mounts::{self, Mount};
use crate::output::{self, print, print_bytes, print_json};
use crate::run::begin_flags;
use crate::values::{size_text, span};
use crate::volume_paths;

pub fn tx(args: &Tx) -> Result<()> {
    match &args.command {
        TxCommand::Begin(args) => begin(args),
        TxCommand::List(args) => list(args),
        TxCommand::Status(args) => status(args),
        TxCommand::Diff(args) => diff(args),
        TxCommand::Commit(args) => commit(args),
        TxCommand::Abort(args) => abort(args),
    }
}

/// The mount of the volume itself: from inside a transaction, others cannot be reached.
fn volume_at(at: &Path) -> Result<Mount> {
    let mount = mounts::containing(at)?;
    if mount.is_view() {
        return Err(Failure::usage("other transactions cannot be reached from inside a transaction")
            .hint("Run 'xact tx' outside of 'xact run'."));
    }
    Ok(mount)
}

fn begin(args: &TxBegin) -> Result<()> {
    let mount = volume_at(&args.at)?;
    let transaction = Transaction::begin(&mount.point, begin_flags(args.isolation, args.conflict))?;
    transaction.keep(args.timeout, b"xact tx begin", args.persist)?;
    print(&format!("{}\n", transaction.id()))
}

/// A transaction, as it is printed.
#[derive(Debug, Serialize)]
struct Row {
    id: u64,
    standing: &'static str,
    uid: u32,
    /// The command that was run in it.
    label: String,
    age_seconds: u64,
    /// Until it is aborted; null for never.
    seconds_left: Option<u64>,
    /// It is stored on the volume too.
    persistent: bool,
}

impl Row {
    fn of(info: &TxInfo) -> Row {
        Row {
            id: info.id,
            standing: match info.status {
                abi::TxStatus::Running => "running",
                abi::TxStatus::LeftOpen => "open",
                abi::TxStatus::Committed => "committed",
                abi::TxStatus::Aborted => "aborted",
                abi::TxStatus::TimedOut => "timed-out",
            },
            uid: info.uid,
            label: String::from_utf8_lossy(&info.label).into_owned(),
            age_seconds: info.age.as_secs(),
            seconds_left: info.left.map(|left| left.as_secs()),
            persistent: info.persistent,
        }
    }
}

fn list(args: &TxList) -> Result<()> {
    let mount = volume_at(&args.at)?;
    let channel = control::channel(&mount.point)?;
    let all = channel.list().map_err(|e| control::failure(&mount.point, "list transactions", e))?;
    if args.json {
        return print_json(&all.iter().map(Row::of).collect::<Vec<_>>());
    }
    let mut text = String::new();
    for info in &all {
        let row = Row::of(info);
        let left = match (info.status, info.left) {
            (abi::TxStatus::LeftOpen, Some(left)) => format!("{} left", span(left)),
            (abi::TxStatus::LeftOpen, None) => "no time limit".to_string(),
            _ => String::new(),
        };
        let begun =
            format!("begun {} ago{}", span(info.age), if info.persistent { ", persistent" } else { "" });
        let line = format!(
            "{:<6} {:<8} {left:<14} {begun:<18} user {:<6} {}",
            row.id,
            row.standing,
            row.uid,
            printable(&row.label)
        );
        text += line.trim_end();
        text.push('\n');
    }
    print(&text)
}

fn status(args: &TxStatus) -> Result<()> {
    let (mount, channel) = reach(&args.which)?;
    let id = args.which.id;
    let info = channel.info(id, false).map_err(|e| control::not_open(&mount.point, &channel, id, e))?;
    let row = Row::of(&info);
    // A transaction that has ended has no changes to show.
    let changes = match info.status {
        abi::TxStatus::Running | abi::TxStatus::LeftOpen => {
            let wrong = |e| control::not_open(&mount.point, &channel, id, e);
            Some(Extent::of(&channel.diff(id).map_err(wrong)?))
        }
        abi::TxStatus::Committed | abi::TxStatus::Aborted | abi::TxStatus::TimedOut => None,
    };
    if args.json {
        return print_json(&Status { row, changes });
    }
    let meaning = match info.status {
        abi::TxStatus::Running => "running: ends with its program",
        abi::TxStatus::LeftOpen => "open: commit or abort it",
        abi::TxStatus::Committed => "committed",
        abi::TxStatus::Aborted => "aborted: nothing was changed",
        abi::TxStatus::TimedOut => "timed out and aborted: nothing was changed",
    };
    let mut text =
        format!("transaction {id}: {meaning}\nbegun:   {} ago\nuser:    {}\n", span(info.age), row.uid);
    if !row.label.is_empty() {
        text += &format!("command: {}\n", printable(&row.label));
    }
    if let Some(left) = info.left {
        text += &format!("left:    {}\n", span(left));
    }
    if info.persistent {
        text += "stored:  on the volume, where it survives unmounts and crashes\n";
    }
    if let Some(Extent { paths, file_bytes }) = changes {
        text += &format!("changes: {paths} paths; {} in new and changed files\n", size_text(file_bytes));
    }
    print(&text)
}

/// How much a transaction changes.
#[derive(Debug, Serialize)]
struct Extent {
    paths: usize,
    /// Sizes of the files that are new or have other contents: about the most that a commit writes.
    file_bytes: u64,
}

impl Extent {
    fn of(changes: &[TxChange]) -> Extent {
        let written = |change: &&TxChange| matches!(change.kind, ChangeKind::Added | ChangeKind::Modified);
        let is_file = |new: &ChangeSide| new.mode & libc::S_IFMT == libc::S_IFREG;
        let size = |change: &TxChange| change.new.filter(is_file).map_or(0, |new| new.size);
        Extent { paths: changes.len(), file_bytes: changes.iter().filter(written).map(size).sum() }
    }
}

#[derive(Debug, Serialize)]
struct Status {
    #[serde(flatten)]
    row: Row,
    /// `None` for a transaction that has ended.
    changes: Option<Extent>,
}

fn reach(which: &Target) -> Result<(Mount, Channel)> {
    let mount = volume_at(&which.at)?;
    let channel = control::channel(&mount.point)?;
    Ok((mount, channel))
}

fn diff(args: &Diff) -> Result<()> {
    let (mount, channel) = reach(&args.which)?;
    let id = args.which.id;
    let paths = volume_paths::on_volume(&args.paths, &mount.point)?;
    let all = channel.diff(id).map_err(|e| control::not_open(&mount.point, &channel, id, e))?;
    let changes = show::below(all, &paths)?;
    if args.json {
        print_json(&show::json(&changes))
    } else if args.patch {
        print_bytes(&show::patch(&channel, id, &paths)?)
    } else if args.stat {
        print(&show::stat(&channel, id, &changes)?)
    } else {
        print(&show::names(&changes))
    }
}

fn commit(args: &TxCommit) -> Result<()> {
    let mount = volume_at(&args.which.at)?;
    let paths = volume_paths::on_volume(&args.only, &mount.point)?;
    let transaction = Transaction::attach(&mount.point, args.which.id)?;
    transaction.select(&paths)?;
    let ordered = if args.ordered { COMMIT_ORDERED } else { 0 };
    if paths.is_empty() {
        return transaction.commit(COMMIT_RETAIN | ordered);
    }
    if let Some(left_out) = transaction.commit_selected(ordered)? {
        output::note("xact tx commit", &left_out);
    }
    Ok(())
}

fn abort(args: &TxAbort) -> Result<()> {
    let mount = volume_at(&args.which.at)?;
    let paths = volume_paths::on_volume(&args.only, &mount.point)?;
    let transaction = Transaction::attach(&mount.point, args.which.id)?;
    if paths.is_empty() {
        return transaction.abort();
    }
    transaction.select(&paths)?;
    transaction.drop_selected()
}

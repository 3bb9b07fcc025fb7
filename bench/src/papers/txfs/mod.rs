//! TxFS: programming idioms (table 1) and programs (table 2), unchanged, with a transaction around
//! them and no other change, and rewritten without the parts that transactions replace.

mod git;
mod idioms;
mod in_turns;
mod own_image;
mod small_file;
mod sqlite;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use xact_control::client::Channel;

use super::{Chart, Expectation, Figure};
use crate::loads::{Bench, Load, because};
use crate::report::Section;
use crate::system::System;
use crate::volume::Result;
use git::git;
use idioms::{idiom_claims, idioms};
use in_turns::{all_in_turns, turns_claims};
use small_file::{small_claims, small_files};
use sqlite::{MAIL, SQLITE, TPCC, against_the_kernel, database};

const PLAIN: &str = "xact";
const WRAPPED: &str = "xact, wrapped";
const REWRITTEN: &str = "xact, rewritten";
const SYSTEMS: &[System] =
    &[System::KERNEL, System::XACT, System::XACT.named(WRAPPED, ""), System::XACT.named(REWRITTEN, "")];
const TWO_WAYS: &[System] = &[System::KERNEL, System::XACT, System::XACT.named(WRAPPED, "")];
const BASELINES: &[&str] = &["xact", "kernel"];

const fn figure(
    name: &'static str,
    systems: &'static [System],
    run: fn(&mut Bench<'_, '_>) -> Result<()>,
    title: &'static str,
    about: &'static str,
    claims: fn(&Section) -> Vec<Expectation>,
) -> Figure {
    let load = Load { name, systems, baselines: BASELINES, run };
    Figure { load, paper: "TxFS", title, about, chart: Chart::Rates, claims }
}

pub const FIGURES: &[Figure] = &[
    figure(
        "txfs-idioms",
        SYSTEMS,
        idioms,
        "Programming idioms (table 1)",
        "Six threads each make a file, delete it and sync the folder (wrapped: in a transaction; rewritten: all \
         turns of a thread in one; also in process, without a mount). A log is written and synced, a file is \
         updated and synced, the log is deleted (rewritten: no log). Three files of 10 MB are made before 10 MB \
         of a fourth are overwritten (with fsync, or as a chain of ordered commits). The paper has 133, 1.20 \
         (rewritten 1.55) and 1.38 times. Not in the paper: 4 KiB of a file of 64 KiB change by a new file that \
         is renamed over it (rewritten: in place).",
        idiom_claims,
    ),
    figure(
        "txfs-small",
        TWO_WAYS,
        small_files,
        "One small file a transaction",
        "A file of 4 KiB is made, written and synced (wrapped: begin, make, write, commit), and in process \
         committed in order only. Not in the paper: a commit should take at most 1.3 times the plain write and \
         fsync, one in order less than 60 us.",
        small_claims,
    ),
    figure(
        "txfs-sqlite",
        SYSTEMS,
        |bench| database(bench, SQLITE),
        "SQLite with one thread (table 2)",
        "Single rows of 10,000 are updated, with a rollback journal (rewritten: without one). The paper has 1.14 \
         times by wrapping alone, 1.31 rewritten.",
        |section| against_the_kernel(section, SQLITE),
    ),
    figure(
        "txfs-tpcc",
        SYSTEMS,
        |bench| database(bench, TPCC),
        "TPC-C on SQLite (table 2)",
        "All five transactions of the standard in its mix, one warehouse, without think times; a rollback journal \
         (rewritten: none). The paper has 1.61 times.",
        |section| against_the_kernel(section, TPCC),
    ),
    figure(
        "txfs-mail",
        SYSTEMS,
        |bench| database(bench, MAIL),
        "A mail store as Android's (table 2)",
        "An attachment of 16 KiB is written and synced, with its folder, before the row that refers to it is \
         inserted. The paper has 2.31 times.",
        |section| against_the_kernel(section, MAIL),
    ),
    figure(
        "txfs-git",
        TWO_WAYS,
        git,
        "git commit (table 2)",
        "Commits of one changed file, each under 'xact run'. Git alone syncs nothing here, so that is held \
         against commits in order; and where it syncs all that it writes, against durable ones. The paper has \
         1.00 times.",
        |_| Vec::new(),
    ),
    figure(
        "txfs-turns",
        &[System::XACT],
        all_in_turns,
        "The same, the ways in short turns (not in the paper)",
        "What the figures above have one after the other, on one mount and in turns, so that what the disk is at the \
         moment is the same for all: as they are, wrapped, rewritten. A turn is an operation, of the SQLite loads 20. Counts are until each operation returned.",
        turns_claims,
    ),
];

/// How a program uses transactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Plain,
    Wrapped,
    Rewritten,
}

impl Mode {
    const ALL: [Mode; 3] = [Mode::Plain, Mode::Wrapped, Mode::Rewritten];

    fn of(system: System) -> Mode {
        match system.name {
            WRAPPED => Mode::Wrapped,
            REWRITTEN => Mode::Rewritten,
            _ => Mode::Plain,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Mode::Plain => "plain",
            Mode::Wrapped => "wrapped",
            Mode::Rewritten => "rewritten",
        }
    }
}

/// Runs `work` in `mount`, or in a transaction's view of it, through a descriptor of its root, as
/// the C library provides one.
fn within(
    channel: Option<&Channel>,
    mount: &Path,
    flags: u32,
    work: impl FnOnce(&Path) -> Result<()>,
) -> Result<()> {
    let Some(channel) = channel else { return work(mount) };
    let (_, root) = channel.begin(0).map_err(because("begin"))?;
    let root =
        File::options().read(true).custom_flags(libc::O_PATH).open(root).map_err(because("the view"))?;
    work(Path::new(&format!("/proc/self/fd/{}", root.as_raw_fd())))?;
    channel.commit(flags).map_err(|e| format!("commit: {}", e.why))
}

fn channel(mode: Mode, mount: &Path) -> Result<Option<Channel>> {
    (mode != Mode::Plain).then(|| Channel::open(mount).map_err(because("a control channel"))).transpose()
}

/// The name of a phase in which the ways take turns.
fn by_way(phase: &str, mode: Mode) -> String {
    format!("{phase}: {}", mode.name())
}

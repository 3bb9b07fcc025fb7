//! The other loads, the ways in short turns on one mount.

use std::path::Path;

use xact_control::client::Channel;

use super::git::{GIT_PHASES, Repository};
use super::idioms::{LOG, ORDERING, fill_data, fill_original, log_and_update, three_before_an_update};
use super::small_file::{SMALL_DURABLE, small_file};
use super::sqlite::{MAIL, SQLITE, TPCC, database_in_turns};
use super::{Mode, by_way, channel};
use crate::loads::{Bench, WorkInTurns};
use crate::papers::{Expectation, bound};
use crate::report::Section;
use crate::system::System;
use crate::volume::Result;

/// An idiom's turn: its way, its channel, the mount, and the number of the turn.
type IdiomTurn = fn(Mode, Option<&Channel>, &Path, u64) -> Result<()>;

fn idiom_in_turns(
    bench: &mut Bench<'_, '_>,
    (phase, turns, modes, turn): (&str, u64, &[Mode], IdiomTurn),
) -> Result<()> {
    let turns = bench.count(turns);
    let dir = bench.mount.dir().to_owned();
    let mut works: Vec<WorkInTurns<'_>> = Vec::new();
    for &mode in modes {
        let (channel, dir) = (channel(mode, &dir)?, &dir);
        works.push((by_way(phase, mode), Box::new(move |n| turn(mode, channel.as_ref(), dir, n))));
    }
    bench.phases_in_turns("op", turns, &mut works)
}

fn git_in_turns(bench: &mut Bench<'_, '_>) -> Result<()> {
    let commits = bench.count(50);
    let (xact, dir) = (bench.mount.xact().to_owned(), bench.mount.dir().to_owned());
    let repository = |mode: Mode| Repository::new(dir.join(format!("repository-{}", mode.name())));
    let repositories = [(Mode::Plain, repository(Mode::Plain)?), (Mode::Wrapped, repository(Mode::Wrapped)?)];
    for case in GIT_PHASES {
        let mut works: Vec<WorkInTurns<'_>> = Vec::new();
        for (mode, repository) in &repositories {
            let work = |n| repository.change_and_commit(*mode, (&xact, &dir), case, n);
            works.push((by_way(case.0, *mode), Box::new(work)));
        }
        bench.phases_in_turns("op", commits, &mut works)?;
    }
    Ok(())
}

pub(super) fn all_in_turns(bench: &mut Bench<'_, '_>) -> Result<()> {
    let two = &[Mode::Plain, Mode::Wrapped];
    idiom_in_turns(bench, (SMALL_DURABLE, 2000, two, small_file))?;
    fill_original(bench.mount)?;
    idiom_in_turns(bench, (LOG, 300, &Mode::ALL, log_and_update))?;
    fill_data(bench.mount)?;
    idiom_in_turns(bench, (ORDERING, 10, two, three_before_an_update))?;
    [SQLITE, TPCC, MAIL].into_iter().try_for_each(|load| database_in_turns(bench, load))?;
    git_in_turns(bench)
}

/// TX-22 by rates, and the small file by the median.
pub(super) fn turns_claims(section: &Section) -> Vec<Expectation> {
    let system = System::XACT.name;
    let row = |phase: &str, mode: Mode| section.row(&by_way(phase, mode));
    let ratio = |phase: &str, mode: Mode| row(phase, mode)?.ratio_to(row(phase, Mode::Plain)?, system);
    let median = |mode: Mode| row(SMALL_DURABLE, mode)?.latency(system, |latency| latency.median);
    let small = median(Mode::Wrapped).zip(median(Mode::Plain)).map(|(wrapped, plain)| wrapped / plain);
    let says = "one small file, durable, at most 1.3 times as long as write and fsync";
    let mut claims: Vec<Expectation> =
        bound("TX-22", says, small, |times| times <= 1.3).into_iter().collect();
    for (phase, mode, paper) in [
        (LOG, Mode::Wrapped, 1.20),
        (LOG, Mode::Rewritten, 1.55),
        (ORDERING, Mode::Wrapped, 1.38),
        (SQLITE.phase, Mode::Wrapped, 1.14),
        (SQLITE.phase, Mode::Rewritten, 1.31),
        (TPCC.phase, Mode::Wrapped, 1.0),
        (TPCC.phase, Mode::Rewritten, 1.61),
        (MAIL.phase, Mode::Wrapped, 1.0),
        (MAIL.phase, Mode::Rewritten, 2.31),
        (GIT_PHASES[0].0, Mode::Wrapped, 1.0),
        (GIT_PHASES[1].0, Mode::Wrapped, 1.0),
    ] {
        let says = format!("{phase}, {}, {paper} times", mode.name());
        claims.extend(bound("TX-22", &says, ratio(phase, mode), |times| times >= paper));
    }
    claims
}

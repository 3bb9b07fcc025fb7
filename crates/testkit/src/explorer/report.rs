//! The result of an exploration, for people and for tests.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use crate::recording::{Action, Part};

use super::job::Job;
use super::{Plan, Subject, explore};

/// An illegal outcome.
#[derive(Debug, Clone)]
pub struct Finding {
    /// The argument of `crash --replay`.
    pub replay: String,
    pub what: String,
}

/// The numbers of an exploration.
#[derive(Debug, Clone, Default)]
pub struct Summary {
    pub workload: String,
    pub events: usize,
    pub points: usize,
    /// Distinct crashed devices that were judged, each at each of its moments.
    pub states: u64,
    /// The number of them for which a device was recovered; for the others it had been before.
    pub recovered: u64,
    /// States that earlier runs had too.
    pub known: u64,
    /// Recoveries that were crashed and done again.
    pub nested: u64,
    pub inspected: u64,
    pub second_opinions: u64,
    pub findings: Vec<Finding>,
    pub elapsed: Duration,
}

impl Finding {
    pub fn print(&self) {
        println!("  FINDING {}", self.what);
        println!("  replay: cargo run --release -p xact-testkit --bin crash -- --replay '{}'", self.replay);
    }
}

impl Summary {
    pub const HEADER: &'static str =
        "workload                      writes+flushes   states   nested   e2fsck   kernel  findings    time";

    pub fn row(&self) -> String {
        format!(
            "{:<30}{:>14}{:>9}{:>9}{:>9}{:>9}{:>10}{:>7.1}s",
            self.workload,
            self.events,
            self.states,
            self.nested,
            self.inspected,
            self.second_opinions,
            self.findings.len(),
            self.elapsed.as_secs_f64()
        )
    }
}

/// Explores, prints the row and every finding with its replay line, and returns the summary.
pub fn report<S: Subject>(subject: &S, plan: &Plan) -> Result<Summary, String> {
    let summary = explore(subject, plan).map_err(|e| format!("{}: {e}", subject.name()))?;
    println!("{}", summary.row());
    summary.findings.iter().for_each(Finding::print);
    Ok(summary)
}

/// One line on a terminal's standard error, every second or so.
pub(super) fn progress<S: Subject>(job: &Job<'_, S>, started: Instant) {
    use std::io::IsTerminal;
    let second = started.elapsed().as_secs();
    if job.plan.progress
        && job.counts.shown.swap(second, Relaxed) != second
        && std::io::stderr().is_terminal()
    {
        eprint!(
            "\r{}: {} states, {} nested, {} findings, {second} s ",
            job.subject.name(),
            job.counts.states.load(Relaxed),
            job.counts.nested.load(Relaxed),
            job.findings.lock().len()
        );
    }
}

pub(super) fn describe_part(part: &Part) -> &'static str {
    match part {
        Part::None => "lost:",
        Part::All => "kept:",
        Part::Sectors(_) => "torn:",
        Part::Noise(_) => "noise:",
    }
}

pub(super) fn describe(action: &Action) -> String {
    match action {
        Action::Write { offset, data } => format!("write of {} bytes at {offset}", data.len()),
        Action::Discard { offset, len } => format!("discard of {len} bytes at {offset}"),
        Action::Flush => "flush".to_owned(),
    }
}

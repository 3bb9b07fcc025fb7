//! The findings of a check.

use std::fmt;

use xact_types::{Error, Site};

/// Receives the progress of a check: the step's name, and a share of it between 0 and 1.
pub type Progress<'p> = &'p mut dyn FnMut(&'static str, f64);

/// Problems that are kept; more are only counted.
const KEPT_MAX: usize = 10_000;

/// A state that a sound volume never has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub site: Site,
    pub what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.site, self.what)
    }
}

/// The contents of the volume, as far as they could be read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    pub files: u64,
    pub directories: u64,
    pub symlinks: u64,
    pub others: u64,
    pub used_blocks: u64,
    pub used_inodes: u64,
}

#[derive(Debug, Clone, Default)]
pub struct Report {
    /// The first of them; see `problem_count`.
    pub problems: Vec<Problem>,
    pub problem_count: u64,
    /// Remarks that are not problems.
    pub remarks: Vec<String>,
    pub totals: Totals,
    /// On a volume with generations, the number of checked ones: the newest and the snapshots.
    pub generations: u64,
    /// A crash left the volume, and it was checked as after its recovery.
    pub is_replayed: bool,
}

impl Report {
    /// Whether there are no problems.
    pub fn is_sound(&self) -> bool {
        self.problem_count == 0
    }

    pub(crate) fn problem(&mut self, site: Site, what: impl Into<String>) {
        self.problem_count += 1;
        if self.problems.len() < KEPT_MAX {
            self.problems.push(Problem { site, what: what.into() });
        }
    }

    /// Adds the findings of a generation: the newest, or a snapshot, with its name.
    pub(crate) fn add(&mut self, other: Report, snapshot: Option<&str>) {
        let named = |text: String| snapshot.map_or(text.clone(), |name| format!("snapshot '{name}': {text}"));
        self.problem_count += other.problem_count - other.problems.len() as u64;
        for Problem { site, what } in other.problems {
            self.problem(site, named(what));
        }
        self.remarks.extend(other.remarks.into_iter().map(named));
        self.generations += 1;
        if snapshot.is_none() {
            self.totals = other.totals;
        }
    }

    pub(crate) fn remark(&mut self, text: String) {
        self.remarks.push(text);
    }

    /// Keeps damage as a problem; any other error ends the check.
    pub(crate) fn note<T>(&mut self, result: Result<T, Error>) -> Result<Option<T>, Error> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(Error::Corrupt(corruption)) => {
                self.problem(corruption.site, corruption.what);
                Ok(None)
            }
            Err(other) => Err(other),
        }
    }
}

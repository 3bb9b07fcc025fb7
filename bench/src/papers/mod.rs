//! `make bench-papers`: the figures of the five papers, measured again, each beside kernel ext4 in
//! the corresponding setting and our own stock settings in the same run.

mod diu;
mod joj;
mod rfj;
mod snap;
mod txfs;

use crate::loads::Load;
use crate::report::{Report, Section};

/// The form of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chart {
    /// A group of bars for each phase, one bar a system: units a second.
    Rates,
    /// The same for the time of a unit, in milliseconds.
    Times,
    /// The same for the latencies of each phase, in microseconds, on a logarithmic scale.
    Latencies,
    /// A line for each system over the number in the name of the phase ("4 clients").
    RatesOver(&'static str),
}

/// A statement of a paper, or ours about it, compared with the measurement.
pub struct Expectation {
    /// Its id in the list of requirements.
    pub id: &'static str,
    pub says: String,
    pub measured: String,
    pub holds: bool,
}

/// One figure or table of a paper.
pub struct Figure {
    pub load: Load,
    pub paper: &'static str,
    pub title: &'static str,
    /// The measurement, and the paper's result.
    pub about: &'static str,
    pub chart: Chart,
    pub claims: fn(&Section) -> Vec<Expectation>,
}

pub fn all() -> impl Iterator<Item = &'static Figure> {
    [joj::FIGURES, diu::FIGURES, rfj::FIGURES, snap::FIGURES, txfs::FIGURES].into_iter().flatten()
}

/// An expectation about a ratio that should be at least (or at most) a bound.
fn bound(
    id: &'static str,
    says: &str,
    ratio: Option<f64>,
    holds: impl Fn(f64) -> bool,
) -> Option<Expectation> {
    let ratio = ratio?;
    Some(Expectation { id, says: says.to_owned(), measured: format!("{ratio:.2}"), holds: holds(ratio) })
}

/// A line for each expectation about the measured figures.
pub fn verdicts(report: &Report) -> String {
    let mut out = String::new();
    for figure in all() {
        let Some(section) = report.section(figure.load.name) else { continue };
        for Expectation { id, says, measured, holds } in (figure.claims)(section) {
            let verdict = if holds { "holds" } else { "DOES NOT HOLD" };
            out.push_str(&format!("{id:<8}{says}: {measured}: {verdict}\n"));
        }
    }
    out
}

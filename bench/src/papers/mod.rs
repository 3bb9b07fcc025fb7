//! `make bench-papers`: the figures of the five papers, measured again, each beside kernel ext4 in the
//! corresponding setting and our own stock settings in the same run.

mod diu;
mod joj;
mod rfj;
mod snap;
mod txfs;

use crate::loads::Load;
use crate::report::{Report, Section};

/// How a figure is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chart {
    /// A group of bars for each phase, one bar a system: units a second.
    Rates,
    /// The same of the time that a unit takes, in milliseconds.
    Times,
    /// The same of the latencies of each phase, in microseconds, on a logarithmic scale.
    Latencies,
    /// A line for each system over the number in the name of the phase ("4 clients").
    RatesOver(&'static str),
}

/// A statement of a paper, or ours about it, held against what was measured.
pub struct Claim {
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
    /// What is measured, and what the paper found.
    pub about: &'static str,
    pub chart: Chart,
    pub claims: fn(&Section) -> Vec<Claim>,
}

pub fn all() -> impl Iterator<Item = &'static Figure> {
    [joj::FIGURES, diu::FIGURES, rfj::FIGURES, snap::FIGURES, txfs::FIGURES].into_iter().flatten()
}

/// A claim about a ratio that should be at least (or at most) a bound.
fn bound(id: &'static str, says: &str, ratio: Option<f64>, holds: impl Fn(f64) -> bool) -> Option<Claim> {
    let ratio = ratio?;
    Some(Claim { id, says: says.to_owned(), measured: format!("{ratio:.2}"), holds: holds(ratio) })
}

/// A line for each claim of the figures that were measured.
pub fn verdicts(report: &Report) -> String {
    let mut out = String::new();
    for figure in all() {
        let Some(section) = report.section(figure.load.name) else { continue };
        for Claim { id, says, measured, holds } in (figure.claims)(section) {
            let verdict = if holds { "holds" } else { "DOES NOT HOLD" };
            out.push_str(&format!("{id:<8}{says}: {measured}: {verdict}\n"));
        }
    }
    out
}

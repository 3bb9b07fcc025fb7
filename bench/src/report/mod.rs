//! The results, by load, phase and system: medians over the rounds, and ratios of one round.

mod chart;
pub mod html;
mod json;
mod table;

use std::collections::BTreeMap;

use crate::loads::{Latency, Sample};
use crate::system::System;

/// All rounds of one phase.
pub struct Row {
    pub phase: String,
    pub unit: String,
    /// By the name of the system.
    samples: BTreeMap<&'static str, Vec<Sample>>,
}

/// The phases of one load, in the order in which they ran.
pub struct Section {
    pub load: &'static str,
    pub systems: Vec<System>,
    /// Systems that the others are compared with.
    pub baselines: Vec<&'static str>,
    pub rows: Vec<Row>,
}

#[derive(Default)]
pub struct Report {
    pub sections: Vec<Section>,
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

fn ratio_by_rounds(ours: &[Sample], theirs: &[Sample]) -> Option<f64> {
    let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(a, b)| a.rate / b.rate).collect();
    (!ratios.is_empty()).then(|| median(ratios))
}

impl Row {
    /// Median over the rounds.
    pub fn of(&self, system: &str, what: impl Fn(&Sample) -> f64) -> Option<f64> {
        let samples = self.samples.get(system)?;
        (!samples.is_empty()).then(|| median(samples.iter().map(what).collect()))
    }

    pub fn rate(&self, system: &str) -> Option<f64> {
        self.of(system, |s| s.rate)
    }

    pub fn latency(&self, system: &str, what: impl Fn(&Latency) -> f64) -> Option<f64> {
        self.of(system, |s| s.latency.as_ref().map_or(f64::NAN, &what)).filter(|v| v.is_finite())
    }

    /// Median over the rounds of the system's rate over the baseline's in the same round.
    pub fn ratio(&self, system: &str, baseline: &str) -> Option<f64> {
        ratio_by_rounds(self.samples.get(system)?, self.samples.get(baseline)?)
    }

    /// The same of a system's rate in this phase over its rate in another.
    pub fn ratio_to(&self, other: &Row, system: &str) -> Option<f64> {
        ratio_by_rounds(self.samples.get(system)?, other.samples.get(system)?)
    }
}

impl Section {
    pub fn row(&self, phase: &str) -> Option<&Row> {
        self.rows.iter().find(|r| r.phase == phase)
    }

    fn add(&mut self, system: &System, sample: Sample) {
        let index = self.rows.iter().position(|r| r.phase == sample.phase).unwrap_or_else(|| {
            let (phase, unit) = (sample.phase.clone(), sample.unit.clone());
            self.rows.push(Row { phase, unit, samples: BTreeMap::new() });
            self.rows.len() - 1
        });
        self.rows[index].samples.entry(system.name).or_default().push(sample);
    }
}

impl Report {
    pub fn section(&self, load: &str) -> Option<&Section> {
        self.sections.iter().find(|s| s.load == load)
    }

    /// Adds a section for a load, in the order of these calls.
    pub fn open(&mut self, load: &'static str, systems: Vec<System>, baselines: Vec<&'static str>) {
        if self.section(load).is_none() {
            self.sections.push(Section { load, systems, baselines, rows: Vec::new() });
        }
    }

    /// # Panics
    /// If the load was not opened.
    pub fn add(&mut self, load: &str, system: &System, sample: Sample) {
        let section = self.sections.iter_mut().find(|s| s.load == load);
        section.expect("a load that was opened").add(system, sample);
    }
}

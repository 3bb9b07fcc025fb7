//! The report for programs: an array with one object for each phase and system.

use serde_json::{Map, Value, json};

use super::{Report, Row, Section};
use crate::loads::Latency;
use crate::system::System;

impl Report {
    /// Medians over the rounds, every round's rate, and the ratios to the baselines.
    pub fn json(&self) -> String {
        let of_row = |section: &Section, row: &Row| -> Vec<Value> {
            section.systems.iter().filter_map(|system| object(section, row, system)).collect()
        };
        let objects: Vec<Value> = self
            .sections
            .iter()
            .flat_map(|section| section.rows.iter().flat_map(move |row| of_row(section, row)))
            .collect();
        format!("{:#}\n", Value::Array(objects))
    }
}

fn object(section: &Section, row: &Row, system: &System) -> Option<Value> {
    let samples = row.samples.get(system.name)?;
    let count = |what: fn(&crate::counts::Counts) -> u64| row.of(system.name, |s| what(&s.counts) as f64);
    let ratios: Map<String, Value> = section
        .baselines
        .iter()
        .filter(|baseline| **baseline != system.name)
        .map(|baseline| (baseline.to_string(), json!(row.ratio(system.name, baseline))))
        .collect();
    let latency = |what: fn(&Latency) -> f64| row.latency(system.name, what);
    let mut object = json!({
        "load": section.load,
        "phase": row.phase,
        "system": system.name,
        "options": system.options,
        "unit": row.unit,
        "rate": row.rate(system.name),
        "rates": samples.iter().map(|s| s.rate).collect::<Vec<_>>(),
        "units": row.of(system.name, |s| s.units),
        "reads": count(|c| c.reads),
        "read_bytes": count(|c| c.read_bytes),
        "writes": count(|c| c.writes),
        "written_bytes": count(|c| c.written_bytes),
        "flushes": count(|c| c.flushes),
        "ratios": ratios,
    });
    if let Some(median) = latency(|l| l.median) {
        object["latency_us"] = json!({
            "median": median,
            "mean": latency(|l| l.mean),
            "p99": latency(|l| l.p99),
            "p9999": latency(|l| l.p9999),
            "worst": latency(|l| l.worst),
        });
    }
    Some(object)
}

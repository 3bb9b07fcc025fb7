//! The report as text.

use std::fmt::Write;

use super::{Report, Row, Section};

impl Report {
    /// Rates, ratios, and device I/O for each unit of work.
    pub fn table(&self) -> String {
        let mut out = String::new();
        let mut head: &[&str] = &[];
        for section in &self.sections {
            if section.baselines != head {
                head = &section.baselines;
                heading(&mut out, section);
            }
            let widths = widths(section);
            for row in &section.rows {
                rows(&mut out, section, row, widths);
            }
        }
        out.push_str(
            "Writes are those that carry data. The kernel counts a flush asked for alone as a write \
             too, as each flush of a FUSE server is; those are taken off.\n",
        );
        out
    }
}

/// Widths of the columns for phases and systems: the longest name, and a space.
fn widths(section: &Section) -> (usize, usize) {
    let of = |least: usize, names: &mut dyn Iterator<Item = &str>| {
        names.map(|name| name.chars().count() + 1).fold(least, usize::max)
    };
    let phases = of(28, &mut section.rows.iter().map(|row| row.phase.as_str()));
    (phases, of(22, &mut section.systems.iter().map(|system| system.name)))
}

/// Width of the column for ratios to a baseline.
fn ratio_width(baseline: &str) -> usize {
    (baseline.chars().count() + 4).max(18)
}

fn heading(out: &mut String, section: &Section) {
    let (load, width) = widths(section);
    let _ = write!(out, "{:<load$}{:<width$}{:>12} {:<7}", "load", "system", "a second", "");
    for baseline in &section.baselines {
        let width = ratio_width(baseline);
        let _ = write!(out, "{:>width$}", format!("x {baseline}"));
    }
    out.push_str("   device I/O for each: writes, KiB, flushes\n");
}

fn rows(out: &mut String, section: &Section, row: &Row, (load, width): (usize, usize)) {
    let mut name = row.phase.as_str();
    for system in &section.systems {
        let Some(rate) = row.rate(system.name) else { continue };
        let shown = std::mem::take(&mut name);
        let _ = write!(out, "{shown:<load$}{:<width$}{rate:>12.1} {:<7}", system.name, row.unit);
        for baseline in &section.baselines {
            let ratio = row.ratio(system.name, baseline).filter(|_| system.name != *baseline);
            let (ratio, width) =
                (ratio.map(|r| format!("{r:.2}")).unwrap_or_default(), ratio_width(baseline));
            let _ = write!(out, "{ratio:>width$}");
        }
        let io = |what: fn(&crate::counts::Counts) -> u64| {
            row.of(system.name, |s| what(&s.counts) as f64 / s.units).unwrap_or(f64::NAN)
        };
        let (writes, kib) = (io(|c| c.writes), io(|c| c.written_bytes) / 1024.0);
        let _ = writeln!(out, "   {writes:.2}, {kib:.1}, {:.2}", io(|c| c.flushes));
        if let Some(p50) = row.latency(system.name, |l| l.median) {
            let of =
                |what: fn(&crate::loads::Latency) -> f64| row.latency(system.name, what).unwrap_or(f64::NAN);
            let _ = writeln!(
                out,
                "{:<margin$}us: median {p50:.0}, mean {:.0}, 99th {:.0}, 99.99th {:.0}, worst {:.0}",
                "",
                of(|l| l.mean),
                of(|l| l.p99),
                of(|l| l.p9999),
                of(|l| l.worst),
                margin = load + width,
            );
        }
    }
}

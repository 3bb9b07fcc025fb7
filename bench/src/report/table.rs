//! The report as text.

use std::fmt::Write;

use super::{Report, Row, Section};

impl Report {
    /// Rates, ratios, and device I/O for each unit of work.
    pub fn table(&self) -> String {
        let mut out = String::new();
        let mut head = &[][..];
        for section in &self.sections {
            if section.baselines != head {
                head = section.baselines;
                heading(&mut out, section);
            }
            for row in &section.rows {
                rows(&mut out, section, row);
            }
        }
        out.push_str(
            "Writes are those that carry data. The kernel counts a flush asked for alone as a write \
             too, as each flush of a FUSE server is; those are taken off.\n",
        );
        out
    }
}

fn heading(out: &mut String, section: &Section) {
    let _ = write!(out, "{:<28}{:<22}{:>12} {:<7}", "load", "who", "a second", "");
    for baseline in section.baselines {
        let _ = write!(out, "{:>18}", format!("x {baseline}"));
    }
    out.push_str("   device I/O for each: writes, KiB, flushes\n");
}

fn rows(out: &mut String, section: &Section, row: &Row) {
    let mut name = row.phase.as_str();
    for system in &section.systems {
        let Some(rate) = row.rate(system.name) else { continue };
        let _ =
            write!(out, "{:<28}{:<22}{rate:>12.1} {:<7}", std::mem::take(&mut name), system.name, row.unit);
        for baseline in section.baselines {
            let ratio = row.ratio(system.name, baseline).filter(|_| system.name != *baseline);
            let _ = write!(out, "{:>18}", ratio.map(|r| format!("{r:.2}")).unwrap_or_default());
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
                "{:<50}us: median {p50:.0}, mean {:.0}, 99th {:.0}, 99.99th {:.0}, worst {:.0}",
                "",
                of(|l| l.mean),
                of(|l| l.p99),
                of(|l| l.p9999),
                of(|l| l.worst)
            );
        }
    }
}

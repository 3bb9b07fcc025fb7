//! The figures of the papers on one page: a chart, a table with the device's counts, the claims.

use std::fmt::Write;

use super::{Report, Row, Section, chart};
use crate::loads::Latency;
use crate::papers::Figure;
use crate::system::System;

const HEAD: &str = "<!doctype html>
<html lang=\"en\">
<head>
<meta charset=\"utf-8\">
<title>xact: the figures of the five papers</title>
<style>
body { font: 15px/1.45 sans-serif; max-width: 1040px; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: 1em 0 }
th, td { padding: 2px 10px; border-bottom: 1px solid #ddd; text-align: right }
th:first-child, td:first-child, td.system { text-align: left }
.key { display: inline-block; width: 12px; height: 12px; margin: 0 4px 0 14px }
.no { color: #b00; font-weight: bold }
svg { width: 100%; height: auto }
</style>
</head>
<body>
<h1>The figures of the five papers</h1>
";

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// `how` describes the run and the machine.
pub fn page(report: &Report, figures: &[&Figure], how: &str, failures: &[String]) -> String {
    let mut out = HEAD.to_owned();
    let _ = writeln!(out, "<p>{}</p>", escape(how));
    for failure in failures {
        let _ = writeln!(out, "<p class=\"no\">failed: {}</p>", escape(failure));
    }
    for figure in figures {
        let Some(section) = report.section(figure.load.name) else { continue };
        let _ = writeln!(out, "<h2>{}: {}</h2>", figure.paper, escape(figure.title));
        let _ = writeln!(out, "<p>{}</p>", escape(figure.about));
        if let Some(svg) = chart::svg(section, figure.chart) {
            legend(&mut out, section);
            out.push_str(&svg);
        }
        claims(&mut out, figure, section);
        latencies(&mut out, section);
        table(&mut out, section);
    }
    out.push_str("</body>\n</html>\n");
    out
}

fn legend(out: &mut String, section: &Section) {
    out.push_str("<p>");
    for (index, system) in section.systems.iter().enumerate() {
        let plotters::style::RGBColor(r, g, b) = chart::colour(index);
        let _ =
            write!(out, "<span class=\"key\" style=\"background:rgb({r},{g},{b})\"></span>{}", system.name);
    }
    out.push_str("</p>\n");
}

fn claims(out: &mut String, figure: &Figure, section: &Section) {
    let claims = (figure.claims)(section);
    if claims.is_empty() {
        return;
    }
    out.push_str("<table><tr><th>claim</th><th>measured</th><th>holds</th></tr>\n");
    for claim in claims {
        let holds = if claim.holds { "<td>yes</td>" } else { "<td class=\"no\">no</td>" };
        let _ = writeln!(
            out,
            "<tr><td>{} {}</td><td>{}</td>{holds}</tr>",
            claim.id,
            escape(&claim.says),
            escape(&claim.measured)
        );
    }
    out.push_str("</table>\n");
}

/// The distribution of the latencies, in microseconds.
fn latencies(out: &mut String, section: &Section) {
    type Column = (&'static str, fn(&Latency) -> f64);
    const COLUMNS: [Column; 5] = [
        ("median", |l| l.median),
        ("mean", |l| l.mean),
        ("99th", |l| l.p99),
        ("99.99th", |l| l.p9999),
        ("worst", |l| l.worst),
    ];
    let timed = |row: &&Row| section.systems.iter().any(|s| row.latency(s.name, |l| l.median).is_some());
    for row in section.rows.iter().filter(timed) {
        let _ = write!(out, "<table><tr><th>{}, us</th>", escape(&row.phase));
        for (name, _) in COLUMNS {
            let _ = write!(out, "<th>{name}</th>");
        }
        out.push_str("</tr>\n");
        for system in &section.systems {
            let _ = write!(out, "<tr><td>{}</td>", system.name);
            for (_, what) in COLUMNS {
                let value = row.latency(system.name, what);
                let _ = write!(out, "<td>{}</td>", value.map(|us| format!("{us:.0}")).unwrap_or_default());
            }
            out.push_str("</tr>\n");
        }
        out.push_str("</table>\n");
    }
}

fn table(out: &mut String, section: &Section) {
    out.push_str("<table><tr><th>phase</th><th>system</th><th>a second</th>");
    for baseline in &section.baselines {
        let _ = write!(out, "<th>x {}</th>", escape(baseline));
    }
    out.push_str("<th>writes</th><th>KiB</th><th>flushes</th></tr>\n");
    for row in &section.rows {
        for system in &section.systems {
            line(out, section, row, system);
        }
    }
    out.push_str("</table>\n<p>Writes that carry data, KiB written, and flushes are those of the device, for each unit.</p>\n");
}

fn line(out: &mut String, section: &Section, row: &Row, system: &System) {
    let Some(rate) = row.rate(system.name) else { return };
    let _ = write!(
        out,
        "<tr><td>{}</td><td class=\"system\" title=\"{}\">{}</td><td>{rate:.1} {}</td>",
        escape(&row.phase),
        system.options,
        system.name,
        row.unit
    );
    for baseline in &section.baselines {
        let ratio = row.ratio(system.name, baseline).filter(|_| system.name != *baseline);
        let _ = write!(out, "<td>{}</td>", ratio.map(|r| format!("{r:.2}")).unwrap_or_default());
    }
    let io = |what: fn(&crate::counts::Counts) -> u64| {
        row.of(system.name, |s| what(&s.counts) as f64 / s.units).unwrap_or(f64::NAN)
    };
    let (writes, kib) = (io(|c| c.writes), io(|c| c.written_bytes) / 1024.0);
    let _ = writeln!(out, "<td>{writes:.2}</td><td>{kib:.1}</td><td>{:.2}</td></tr>", io(|c| c.flushes));
}

//! Journaling of journal: SQLite's own log on the file system's (figures 2 to 4).

use super::{Chart, Claim, Figure};
use crate::loads::sqlite::{self, Operation, Usage};
use crate::loads::{Bench, Load};
use crate::report::{Row, Section};
use crate::system::{Format, System};
use crate::volume::Result;

const KERNEL: System = System::KERNEL;
const XACT: System = System::XACT;

const KERNEL_NONE: System = KERNEL.named("kernel none", "noatime").on(Format::NoJournal);
const XACT_NONE: System = XACT.named("xact none", "noatime").on(Format::NoJournal);
const ADAPTIVE: System = XACT.named("xact adaptive", "noatime,data=adaptive");

/// The kernel's modes as the paper mounts them (journal_async_commit where the kernel takes it), and
/// ours: stock, single-I/O, per-file.
const MODES: &[System] = &[
    KERNEL_NONE,
    KERNEL.named("kernel ordered", "noatime,data=ordered"),
    KERNEL.named("kernel data", "noatime,data=journal,journal_async_commit"),
    XACT_NONE,
    XACT.named(
        "xact ordered, stock",
        "noatime,data=ordered,nojournal_async_commit,inode_update=immediate,timestamps=immediate",
    ),
    XACT.named(
        "xact data, stock",
        "noatime,data=journal,nojournal_async_commit,inode_update=immediate,timestamps=immediate",
    ),
    XACT.named("xact data, single", "noatime,data=journal"),
    XACT.named("xact selective", "noatime,data=selective"),
    ADAPTIVE,
];

/// Milliseconds that a transaction takes are what the paper shows.
pub const FIGURES: &[Figure] = &[
    Figure {
        load: Load {
            name: "joj-sqlite",
            systems: MODES,
            baselines: &["xact none", "kernel none"],
            run: all_cases,
        },
        paper: "JOJ",
        title: "SQLite transactions under each journaling mode (figures 2 and 3)",
        about: "10,000 records of 100 characters inserted, updated and deleted in random order, 1 or 1000 a \
                transaction, with SQLite's write-ahead log and its rollback journal. The paper's per-file \
                mode is at most 6 % slower than no journal in all but one of 24 cases, and 7 % faster on \
                average.",
        chart: Chart::Times,
        claims: sqlite_claims,
    },
    Figure {
        load: Load {
            name: "joj-protection",
            systems: &[ADAPTIVE, XACT_NONE],
            baselines: &["xact none"],
            run: protection,
        },
        paper: "JOJ",
        title: "What protection costs (figure 4)",
        about: "The same operations with both logs (write-ahead log, per-file journaling), with SQLite's \
                log only (on xact none), and, as phases of their own, with neither and without any sync.",
        chart: Chart::Times,
        claims: |_| Vec::new(),
    },
];

/// The three kinds of operation in one journal mode of SQLite's.
fn cases(bench: &mut Bench<'_, '_>, label: &str, usage: Usage) -> Result<()> {
    let rows = bench.count(usage.rows).max(usage.rows_a_transaction);
    let usage = Usage { rows, ..usage };
    for operation in Operation::ALL {
        let batch = usage.rows_a_transaction;
        let phase = format!("{label}, {batch} a transaction, {}", operation.name());
        bench.phase_with_rate(phase, "tx", |mount| {
            let db = mount.dir().join(format!("{}-{batch}.db", usage.journal));
            sqlite::operate(&db, operation, usage)
        })?;
    }
    Ok(())
}

const RECORDS: u64 = 10_000;

fn all_cases(bench: &mut Bench<'_, '_>) -> Result<()> {
    for (label, journal) in [("WAL", "WAL"), ("rollback", "DELETE")] {
        for rows_a_transaction in [1, 1000] {
            let usage = Usage { journal, synchronous: "FULL", rows: RECORDS, rows_a_transaction };
            cases(bench, label, usage)?;
        }
    }
    Ok(())
}

fn protection(bench: &mut Bench<'_, '_>) -> Result<()> {
    for rows_a_transaction in [1, 1000] {
        let usage = Usage { journal: "WAL", synchronous: "FULL", rows: RECORDS, rows_a_transaction };
        cases(bench, "WAL", usage)?;
        cases(bench, "unprotected", Usage { journal: "OFF", synchronous: "OFF", ..usage })?;
    }
    Ok(())
}

/// JOJ-7: the default against no journal, case by case and on average.
fn sqlite_claims(section: &Section) -> Vec<Claim> {
    let slowdown = |row: &Row, system: &str, base: &str| Some(1.0 / row.ratio(system, base)?);
    let mut claims = Vec::new();
    for (system, base) in [("xact adaptive", "xact none"), ("xact adaptive", "kernel none")] {
        let cases: Vec<(&str, f64)> = section
            .rows
            .iter()
            .filter_map(|row| Some((row.phase.as_str(), slowdown(row, system, base)?)))
            .collect();
        let Some((case, worst)) = cases.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1)) else { continue };
        let mean = cases.iter().map(|c| c.1).sum::<f64>() / cases.len() as f64;
        claims.push(Claim {
            id: "JOJ-7",
            says: format!("{system} takes at most 1.06 times as long as {base}, in every case"),
            measured: format!("{worst:.2} at the worst ({case})"),
            holds: worst <= 1.06,
        });
        claims.push(Claim {
            id: "JOJ-7",
            says: format!("and is faster on average of the {} cases", cases.len()),
            measured: format!("{mean:.2}"),
            holds: mean < 1.0,
        });
    }
    claims
}

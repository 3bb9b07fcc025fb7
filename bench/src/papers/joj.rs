//! Journaling of journal: SQLite's own log on the file system's (figures 2 to 4).

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::process::Command;

use super::{Chart, Expectation, Figure};
use crate::loads::sqlite::{self, Operation, Usage};
use crate::loads::{Bench, Contender, Load, Rated, Sample, because};
use crate::report::Section;
use crate::system::{Format, Server, System};
use crate::volume::{Result, run};

const KERNEL: System = System::KERNEL;
const XACT: System = System::XACT;

const KERNEL_NONE: System = KERNEL.named("kernel none", "noatime").on(Format::NoJournal);
const XACT_NONE: System = XACT.named("xact none", "noatime").on(Format::NoJournal);
const ADAPTIVE: System = XACT.named("xact adaptive", "noatime,data=adaptive");
const ORDERED_STOCK: System = XACT.named(
    "xact ordered, stock",
    "noatime,data=ordered,nojournal_async_commit,inode_update=immediate,timestamps=immediate",
);
const DATA_STOCK: System = XACT.named(
    "xact data, stock",
    "noatime,data=journal,nojournal_async_commit,inode_update=immediate,timestamps=immediate",
);
const DATA_SINGLE: System = XACT.named("xact data, single", "noatime,data=journal");
const KERNEL_ORDERED: System = KERNEL.named("kernel ordered", "noatime,data=ordered");
const KERNEL_DATA: System = KERNEL.named("kernel data", "noatime,data=journal,journal_async_commit");

/// The kernel's modes as the paper mounts them (journal_async_commit where the kernel takes it),
/// and ours: stock, single-I/O, per-file.
const MODES: &[System] = &[
    KERNEL_NONE,
    KERNEL_ORDERED,
    KERNEL_DATA,
    XACT_NONE,
    ORDERED_STOCK,
    DATA_STOCK,
    DATA_SINGLE,
    XACT.named("xact selective", "noatime,data=selective"),
    ADAPTIVE,
];

pub const FIGURES: &[Figure] = &[
    Figure {
        load: Load {
            name: "joj-commit",
            systems: &[KERNEL_ORDERED, KERNEL_DATA, ORDERED_STOCK, DATA_STOCK, DATA_SINGLE, ADAPTIVE],
            baselines: &["xact data, stock", "kernel ordered"],
            run: commits,
        },
        paper: "JOJ",
        title: "What a commit asks of the device (section 3.2)",
        about: "4 KiB appended to a file, and 4 KiB overwritten in a file whose data is journaled (chattr +j), \
                each made durable; counted is what the caller waits for. In the paper a commit is one write \
                and one flush. (The kernel's file has no flag, which takes CAP_SYS_RESOURCE.)",
        chart: Chart::Times,
        claims: commit_claims,
    },
    // The paper shows the milliseconds of a transaction.
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
        claims: |_| Vec::new(),
    },
    Figure {
        load: Load { name: "joj-turns", systems: &[ADAPTIVE], baselines: &[], run: cases_in_turns },
        paper: "JOJ",
        title: "The same, in short turns (not in the paper)",
        about: "How fast a virtual disk is changes more within minutes than these cases differ. So here xact with \
                per-file journaling, xact without a journal and ext4 without one have a loop device each at the \
                same time, and a few transactions are done on one after the other.",
        chart: Chart::Times,
        claims: turns_claims,
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

const APPENDED: &str = "append 4 KiB, fsync";
const OVERWRITTEN: &str = "overwrite 4 KiB journaled, fdatasync";
const BLOCK_BYTES: usize = 4096;

fn commits(bench: &mut Bench<'_, '_>) -> Result<()> {
    const BLOCKS: u64 = 1024;
    let path = bench.mount.dir().join("journaled");
    let mut journaled = File::create(&path).map_err(because("create"))?;
    // The kernel requires CAP_SYS_RESOURCE for it, which containers lack; there the mode has the
    // same effect.
    if bench.mount.system().server == Server::Xact {
        run(Command::new("chattr").arg("+j").arg(&path))?;
    }
    journaled.write_all(&vec![1; BLOCKS as usize * BLOCK_BYTES]).map_err(because("fill"))?;
    let log = bench.mount.dir().join("log");
    let mut log = OpenOptions::new().append(true).create(true).open(log).map_err(because("create"))?;
    // The first commit after a mount notes on the volume that there is a log.
    log.write_all(b"begin").and_then(|()| log.sync_all()).map_err(because("begin"))?;
    bench.mount.settle()?;
    // Few enough for the first half of the log, after which checkpoints begin.
    let count = bench.count(500);
    bench.phase_waited_for(APPENDED, "op", count as f64, |_| {
        for n in 0..count {
            log.write_all(&[n as u8; BLOCK_BYTES]).map_err(because("append"))?;
            log.sync_all().map_err(because("fsync"))?;
        }
        Ok(())
    })?;
    bench.phase_waited_for(OVERWRITTEN, "op", count as f64, |_| {
        for n in 0..count {
            journaled
                .write_all_at(&[!n as u8; BLOCK_BYTES], n * 389 % BLOCKS * BLOCK_BYTES as u64)
                .map_err(because("overwrite"))?;
            journaled.sync_data().map_err(because("fdatasync"))?;
        }
        Ok(())
    })
}

/// JOJ-2, by the device's counts.
fn commit_claims(section: &Section) -> Vec<Expectation> {
    let mut claims = Vec::new();
    for row in &section.rows {
        for system in [DATA_SINGLE.name, ADAPTIVE.name] {
            let of = |what: fn(&crate::counts::Counts) -> u64| {
                row.of(system, |sample| what(&sample.counts) as f64 / sample.units)
            };
            let (Some(writes), Some(flushes)) = (of(|c| c.writes), of(|c| c.flushes)) else { continue };
            claims.push(Expectation {
                id: "JOJ-2",
                says: format!("{}, {system}: one write, one flush", row.phase),
                measured: format!("{writes:.3} writes, {flushes:.3} flushes"),
                holds: writes == 1.0 && flushes == 1.0,
            });
        }
    }
    claims
}

/// The three kinds of operation in one journal mode of SQLite's.
fn cases(bench: &mut Bench<'_, '_>, label: &str, usage: Usage) -> Result<()> {
    let rows = bench.count(usage.rows).max(usage.rows_a_transaction);
    let usage = Usage { rows, ..usage };
    for operation in Operation::ALL {
        let batch = usage.rows_a_transaction;
        let phase = case(label, usage, operation);
        bench.phase_with_rate(phase, "tx", |mount| {
            let db = mount.dir().join(format!("{}-{batch}.db", usage.journal));
            sqlite::operate(&db, operation, usage)
        })?;
    }
    Ok(())
}

const RECORDS: u64 = 10_000;

fn all_cases(bench: &mut Bench<'_, '_>) -> Result<()> {
    usages().try_for_each(|(label, usage)| cases(bench, label, usage))
}

fn protection(bench: &mut Bench<'_, '_>) -> Result<()> {
    for rows_a_transaction in [1, 1000] {
        let usage = Usage { journal: "WAL", synchronous: "FULL", rows: RECORDS, rows_a_transaction };
        cases(bench, "WAL", usage)?;
        cases(bench, "unprotected", Usage { journal: "OFF", synchronous: "OFF", ..usage })?;
    }
    Ok(())
}

/// The systems that the per-file mode takes turns with.
const WITHOUT_JOURNAL: [System; 2] = [XACT_NONE, KERNEL_NONE];

fn case(label: &str, usage: Usage, operation: Operation) -> String {
    format!("{label}, {} a transaction, {}", usage.rows_a_transaction, operation.name())
}

fn case_on(label: &str, usage: Usage, operation: Operation, system: &str) -> String {
    format!("{}: {system}", case(label, usage, operation))
}

fn usages() -> impl Iterator<Item = (&'static str, Usage)> {
    [("WAL", "WAL"), ("rollback", "DELETE")].into_iter().flat_map(|(label, journal)| {
        let usage = move |rows_a_transaction| {
            (label, Usage { journal, synchronous: "FULL", rows: RECORDS, rows_a_transaction })
        };
        [usage(1), usage(1000)]
    })
}

fn cases_in_turns(bench: &mut Bench<'_, '_>) -> Result<()> {
    let cases: Vec<_> = usages()
        .map(|(label, usage)| {
            (label, Usage { rows: bench.count(usage.rows).max(usage.rows_a_transaction), ..usage })
        })
        .collect();
    bench.beside(&WITHOUT_JOURNAL, 1 << 30, |places| {
        let mut samples = Vec::new();
        for (label, usage) in cases {
            for operation in Operation::ALL {
                let name = format!("{}-{}.db", usage.journal, usage.rows_a_transaction);
                let paths: Vec<_> = places.iter().map(|place| place.mount.dir().join(&name)).collect();
                let before = places.iter().map(Contender::counts).collect::<Result<Vec<_>>>()?;
                let rated = sqlite::operate_in_turns(&paths, operation, usage)?;
                places.iter().try_for_each(|place| place.mount.settle())?;
                for (place, (before, Rated { rate, units })) in
                    places.iter().zip(before.into_iter().zip(rated))
                {
                    let counts = place.counts_since(before)?;
                    let phase = case_on(label, usage, operation, place.system().name);
                    samples.push(Sample { phase, rate, unit: "tx".to_owned(), units, latency: None, counts });
                }
            }
        }
        Ok(samples)
    })
}

/// JOJ-7: the default against no journal, case by case and on average.
fn turns_claims(section: &Section) -> Vec<Expectation> {
    let mut claims = Vec::new();
    for base in WITHOUT_JOURNAL.map(|system| system.name) {
        let mut cases = Vec::new();
        for (label, usage) in usages() {
            for operation in Operation::ALL {
                let name = case_on(label, usage, operation, ADAPTIVE.name);
                let without = section.row(&case_on(label, usage, operation, base));
                let slowdown =
                    without.zip(section.row(&name)).and_then(|(a, b)| a.ratio_to(b, ADAPTIVE.name));
                cases.extend(slowdown.map(|times| (name, times)));
            }
        }
        let Some((name, worst)) = cases.iter().max_by(|a, b| a.1.total_cmp(&b.1)) else { continue };
        let mean = cases.iter().map(|(_, times)| times).sum::<f64>() / cases.len() as f64;
        claims.push(Expectation {
            id: "JOJ-7",
            says: format!("xact adaptive takes at most 1.06 times as long as {base}, in every case"),
            measured: format!("{worst:.2} at the worst ({name})"),
            holds: *worst <= 1.06,
        });
        claims.push(Expectation {
            id: "JOJ-7",
            says: format!("and is faster on average of the {} cases", cases.len()),
            measured: format!("{mean:.2}"),
            holds: mean < 1.0,
        });
    }
    claims
}

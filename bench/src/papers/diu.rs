//! Delayed inode update: random writes, SQLite, and the latency of one fsync among many dirty files
//! (figures 7 and 8, table 2).

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::{Chart, Claim, Figure, bound};
use crate::loads::sqlite::{self, Operation, Usage};
use crate::loads::{Bench, Latency, Load, because};
use crate::report::Section;
use crate::system::System;
use crate::volume::Result;

const STOCK: System = System::XACT.named(
    "xact stock",
    "noatime,data=ordered,nojournal_async_commit,inode_update=immediate,timestamps=immediate",
);
/// The paper's two steps: sizes delayed, and times delayed too.
const DIU: System =
    System::XACT.named("xact DIU", "noatime,data=ordered,nojournal_async_commit,timestamps=immediate");
const DIU_PLUS: System =
    System::XACT.named("xact DIU+", "noatime,data=ordered,nojournal_async_commit,inode_update=delayed");
const DEFAULT: System = System::XACT.named("xact default", "noatime");
const SYSTEMS: &[System] =
    &[System::KERNEL.named("kernel ordered", "noatime,data=ordered"), STOCK, DIU, DIU_PLUS, DEFAULT];
const BASELINES: &[&str] = &["xact stock", "kernel ordered"];

pub const FIGURES: &[Figure] = &[
    Figure {
        load: Load { name: "diu-random", systems: SYSTEMS, baselines: BASELINES, run: random_writes },
        paper: "DIU",
        title: "4 KiB random writes, each with an fsync (figure 7a)",
        about: "Each thread in a file of 256 MiB of its own. The paper finds no difference: what is \
                overwritten has no size to delay.",
        chart: Chart::RatesOver("threads"),
        claims: |_| Vec::new(),
    },
    Figure {
        load: Load { name: "diu-sqlite", systems: SYSTEMS, baselines: BASELINES, run: sqlite_persist },
        paper: "DIU",
        title: "SQLite with a persistent rollback journal (figure 7b)",
        about: "One row a transaction, journal_mode=PERSIST. The paper finds no difference.",
        chart: Chart::Rates,
        claims: |_| Vec::new(),
    },
    Figure {
        load: Load { name: "diu-fsync", systems: SYSTEMS, baselines: BASELINES, run: fsync_among_many },
        paper: "DIU",
        title: "One fsync among a thousand dirty files (figure 8, table 2)",
        about: "4 KiB appended to each of 1,000 files in turn, then an fsync of the last, until each has \
                4 MiB. The paper's median falls by 47 %, the mean by 15 %, the 99.99th percentile by 42 %; \
                the 99th rises by 15 %.",
        chart: Chart::Latencies,
        claims: fsync_claims,
    },
];

const BLOCK_BYTES: u64 = 4096;

fn random_writes(bench: &mut Bench<'_, '_>) -> Result<()> {
    const FILE_BLOCKS: u64 = (256 << 20) / BLOCK_BYTES;
    let blocks = bench.count(FILE_BLOCKS);
    for threads in [1, 2, 4, 6, 8, 10] {
        let open = |n: u64| -> Result<File> {
            let path = bench.mount.dir().join(format!("thread-{n}"));
            let file = OpenOptions::new().create(true).truncate(false).write(true).open(path);
            let file = file.map_err(because("open"))?;
            let chunk = vec![n as u8 | 1; 1 << 20];
            let mut at = file.metadata().map_err(because("stat"))?.len();
            while at < blocks * BLOCK_BYTES {
                let part = chunk.len().min((blocks * BLOCK_BYTES - at) as usize);
                file.write_all_at(&chunk[..part], at).map_err(because("fill"))?;
                at += part as u64;
            }
            file.sync_all().map_err(because("fsync"))?;
            Ok(file)
        };
        let files = (0..threads).map(open).collect::<Result<Vec<File>>>()?;
        bench.mount.settle()?;
        let each = bench.count(2000) / threads + 1;
        bench.phase(format!("{threads} threads"), "op", (each * threads) as f64, |_| {
            std::thread::scope(|scope| {
                let work = |file: &File, seed: u64| -> Result<()> {
                    let mut state = seed;
                    for n in 0..each {
                        // Marsaglia's xorshift: the order is random, and the same for everybody.
                        state ^= state << 13;
                        state ^= state >> 7;
                        state ^= state << 17;
                        let block = state % blocks;
                        file.write_all_at(&[n as u8; BLOCK_BYTES as usize], block * BLOCK_BYTES)
                            .map_err(because("write"))?;
                        file.sync_all().map_err(because("fsync"))?;
                    }
                    Ok(())
                };
                let seeds = (1..).map(|n: u64| n.wrapping_mul(0x9E37_79B9_7F4A_7C15));
                let running: Vec<_> =
                    files.iter().zip(seeds).map(|(f, seed)| scope.spawn(move || work(f, seed))).collect();
                running.into_iter().try_for_each(|t| t.join().map_err(|_| "a thread panicked".to_owned())?)
            })
        })?;
    }
    Ok(())
}

fn sqlite_persist(bench: &mut Bench<'_, '_>) -> Result<()> {
    let rows = bench.count(3000);
    let usage = Usage { journal: "PERSIST", synchronous: "FULL", rows, rows_a_transaction: 1 };
    for operation in Operation::ALL {
        bench.phase_with_rate(format!("PERSIST, {}", operation.name()), "tx", |mount| {
            sqlite::operate(&mount.dir().join("persist.db"), operation, usage)
        })?;
    }
    Ok(())
}

fn fsync_among_many(bench: &mut Bench<'_, '_>) -> Result<()> {
    const FILE_BLOCKS: u64 = (4 << 20) / BLOCK_BYTES;
    // As many files at any scale: it is their inodes that a commit carries or not.
    let (files, rounds) = (1000, bench.count(FILE_BLOCKS).max(64));
    let paths: Vec<PathBuf> = (0..files).map(|n| bench.mount.dir().join(format!("file-{n}"))).collect();
    let files: Vec<File> =
        paths.iter().map(File::create).collect::<std::io::Result<_>>().map_err(because("create"))?;
    bench.mount.settle()?;
    let append_to_all = |round: u64| {
        let block = [round as u8; BLOCK_BYTES as usize];
        files.iter().try_for_each(|f| f.write_all_at(&block, round * BLOCK_BYTES)).map_err(because("append"))
    };
    let sync_last = || files[files.len() - 1].sync_all().map_err(because("fsync"));
    bench.phase_with_latency("fsync", "op", |_| {
        let mut times = Vec::with_capacity(rounds as usize);
        for round in 0..rounds {
            append_to_all(round)?;
            let started = Instant::now();
            sync_last()?;
            times.push(started.elapsed());
        }
        Ok::<Vec<Duration>, String>(times)
    })?;
    // What the fsyncs themselves ask of the device; the middle one of these, for the flusher is at work
    // beside some of them.
    const COUNTED: u64 = 21;
    bench.phase_counted(COUNTED_PHASE, "op", rounds..rounds + COUNTED, append_to_all, |_| sync_last())
}

const COUNTED_PHASE: &str = "fsync, its own I/O";

/// DIU-5, against the stock setting: the mechanism alone, as in the paper, and together with the others.
fn fsync_claims(section: &Section) -> Vec<Claim> {
    type What = fn(&Latency) -> f64;
    const BOUNDS: [(&str, What, f64); 4] = [
        ("median", |l| l.median, 0.53),
        ("mean", |l| l.mean, 0.85),
        ("99.99th percentile", |l| l.p9999, 0.58),
        ("99th percentile", |l| l.p99, 1.0),
    ];
    let Some(row) = section.row("fsync") else { return Vec::new() };
    let mut claims = Vec::new();
    for ours in [DIU_PLUS.name, DEFAULT.name] {
        let kib = |system: &str| section.row(COUNTED_PHASE)?.of(system, |s| s.counts.written_bytes as f64);
        let written = kib(ours).zip(kib(STOCK.name)).map(|(ours, stock)| ours / stock);
        let says = format!("an fsync of {ours} writes at most 0.53 of the bytes of stock");
        claims.extend(bound("DIU-2", &says, written, |r| r <= 0.53));
        for (name, what, most) in BOUNDS {
            let ratio = row.latency(ours, what).zip(row.latency(STOCK.name, what)).map(|(a, b)| a / b);
            let says = format!("the {name} of {ours} is at most {most} of stock");
            claims.extend(bound("DIU-5", &says, ratio, |r| r <= most));
        }
    }
    claims
}

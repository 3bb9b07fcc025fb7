//! Delayed inode update: random writes, SQLite, and the latency of one fsync among many dirty files
//! (figures 7 and 8, table 2).

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use super::{Chart, Expectation, Figure, bound};
use crate::loads::sqlite::{self, Operation, Usage};
use crate::loads::{Bench, Contender, Latency, Load, Sample, because, take_turns};
use crate::report::Section;
use crate::system::System;
use crate::volume::{Mount, Result};

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
const KERNEL: System = System::KERNEL.named("kernel ordered", "noatime,data=ordered");
const SYSTEMS: &[System] = &[KERNEL, STOCK, DIU, DIU_PLUS, DEFAULT];
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
    Figure {
        load: Load { name: "diu-turns", systems: &[DEFAULT], baselines: &[], run: fsync_in_turns },
        paper: "DIU",
        title: "The same, in short turns (not in the paper)",
        about: "How long a virtual disk takes changes within minutes by more than these differ. So here each has a \
                loop device at the same time, and the thousand appends and the fsync are done on one after the other.",
        chart: Chart::Latencies,
        claims: turns_claims,
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
                        // Marsaglia's xorshift: the order is random, and the same for all systems.
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

/// The same number of files at any scale, since the claim is about the number of inodes in a
/// commit.
const FILES: u64 = 1000;

/// The files of figure 8, open.
struct FileSet(Vec<File>);

impl FileSet {
    fn new(mount: &Mount<'_>) -> Result<FileSet> {
        let paths = (0..FILES).map(|n| mount.dir().join(format!("file-{n}")));
        let files = paths.map(File::create).collect::<std::io::Result<_>>().map_err(because("create"))?;
        mount.settle()?;
        Ok(FileSet(files))
    }

    /// The number of appends to each.
    fn rounds(bench: &Bench<'_, '_>) -> u64 {
        const FILE_BLOCKS: u64 = (4 << 20) / BLOCK_BYTES;
        bench.count(FILE_BLOCKS).max(64)
    }

    fn append_to_all(&self, round: u64) -> Result<()> {
        let block = [round as u8; BLOCK_BYTES as usize];
        let append = |file: &File| file.write_all_at(&block, round * BLOCK_BYTES);
        self.0.iter().try_for_each(append).map_err(because("append"))
    }

    /// The duration of an fsync of the last one.
    fn sync_last(&self) -> Result<Duration> {
        let started = Instant::now();
        self.0[self.0.len() - 1].sync_all().map_err(because("fsync"))?;
        Ok(started.elapsed())
    }
}

fn fsync_among_many(bench: &mut Bench<'_, '_>) -> Result<()> {
    let (files, rounds) = (FileSet::new(bench.mount)?, FileSet::rounds(bench));
    bench.phase_with_latency("fsync", "op", |_| {
        (0..rounds).map(|round| files.append_to_all(round).and_then(|()| files.sync_last())).collect()
    })?;
    // The device requests of the fsyncs themselves: those of the median one, since the flusher
    // works during some of them.
    const COUNTED: u64 = 21;
    bench.phase_counted(
        COUNTED_PHASE,
        "op",
        rounds..rounds + COUNTED,
        |round| files.append_to_all(round),
        |_| files.sync_last().map(drop),
    )
}

/// The systems that the default takes turns with.
const PEERS: [System; 3] = [KERNEL, STOCK, DIU_PLUS];

fn fsync_in_turns(bench: &mut Bench<'_, '_>) -> Result<()> {
    const BYTES: u64 = 6 << 30;
    let rounds = FileSet::rounds(bench);
    bench.beside(&PEERS, BYTES, |places| {
        let files = places.iter().map(|place| FileSet::new(place.mount)).collect::<Result<Vec<_>>>()?;
        let before = places.iter().map(Contender::counts).collect::<Result<Vec<_>>>()?;
        let mut times = vec![Vec::new(); places.len()];
        take_turns(rounds, places.len(), |which, round| {
            files[which].append_to_all(round)?;
            times[which].push(files[which].sync_last()?);
            Ok(())
        })?;
        places.iter().try_for_each(|place| place.mount.settle())?;
        let sample = |(place, (before, times)): (&Contender<'_>, (_, Vec<Duration>))| {
            let rate = rounds as f64 / times.iter().sum::<Duration>().as_secs_f64();
            let (phase, unit) = (format!("fsync: {}", place.system().name), "op".to_owned());
            let counts = place.counts_since(before)?;
            let latency = Some(Latency::of(times));
            Ok(Sample { phase, rate, unit, units: rounds as f64, latency, counts })
        };
        places.iter().zip(before.into_iter().zip(times)).map(sample).collect()
    })
}

const COUNTED_PHASE: &str = "fsync, its own I/O";

/// DIU-5, against the stock setting: the mechanism alone, as in the paper, and together with the
/// others.
fn fsync_claims(section: &Section) -> Vec<Expectation> {
    let mut claims = Vec::new();
    for ours in [DIU_PLUS.name, DEFAULT.name] {
        let kib = |system: &str| section.row(COUNTED_PHASE)?.of(system, |s| s.counts.written_bytes as f64);
        let written = kib(ours).zip(kib(STOCK.name)).map(|(ours, stock)| ours / stock);
        let says = format!("an fsync of {ours} writes at most 0.53 of the bytes of stock");
        claims.extend(bound("DIU-2", &says, written, |r| r <= 0.53));
        claims.extend(latency_claims(ours, |system, what| section.row("fsync")?.latency(system, what)));
    }
    claims
}

/// The same, where each system's turns are a phase.
fn turns_claims(section: &Section) -> Vec<Expectation> {
    let of = |system: &str, what: What| section.row(&format!("fsync: {system}"))?.latency(DEFAULT.name, what);
    [DIU_PLUS.name, DEFAULT.name].into_iter().flat_map(|ours| latency_claims(ours, of)).collect()
}

type What = fn(&Latency) -> f64;

fn latency_claims(ours: &str, of: impl Fn(&str, What) -> Option<f64>) -> Vec<Expectation> {
    const BOUNDS: [(&str, What, f64); 4] = [
        ("median", |l| l.median, 0.53),
        ("mean", |l| l.mean, 0.85),
        ("99.99th percentile", |l| l.p9999, 0.58),
        ("99th percentile", |l| l.p99, 1.0),
    ];
    let claim = |(name, what, most): (&str, What, f64)| {
        let ratio = of(ours, what).zip(of(STOCK.name, what)).map(|(a, b)| a / b);
        bound("DIU-5", &format!("the {name} of {ours} is at most {most} of stock"), ratio, |r| r <= most)
    };
    BOUNDS.into_iter().filter_map(claim).collect()
}

//! Meta-data snapshotting: empty files, PostMark, dbench (figures 2 to 4, tables I and II).

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use super::{Chart, Expectation, Figure, bound};
use crate::loads::programs::{self, PostMark};
use crate::loads::{Bench, Contender, Load, Rated, Sample, because, in_turns};
use crate::report::{Row, Section};
use crate::system::{Format, System};
use crate::volume::{Mount, Result, run};

const EXT3: System = System::KERNEL.named("kernel ordered", "noatime,data=ordered");
const EXT2: System = System::KERNEL.named("kernel none", "noatime").on(Format::NoJournal);
const JOURNAL: System = System::XACT.named("xact journal", "noatime");
/// As in ext4.
const STOCK: System = System::XACT.named(
    "xact journal, stock",
    "noatime,data=ordered,nojournal_async_commit,inode_update=immediate,timestamps=immediate",
);
const NONE: System = System::XACT.named("xact none", "noatime").on(Format::NoJournal);
const GENERATIONS: System = System::XACT.named("xact generations", "noatime").on(Format::Generations);
/// As in the paper.
const UNORDERED: System =
    System::XACT.named("xact generations, unordered", "noatime,data=writeback").on(Format::Generations);

const MEMORY: u64 = 64 << 20;
const BASELINES: &[&str] = &["xact none", "kernel none"];
const SYSTEMS: &[System] = &[EXT2, EXT3, NONE, STOCK, JOURNAL, GENERATIONS, UNORDERED];

pub const FIGURES: &[Figure] = &[
    Figure {
        load: Load { name: "snap-files", systems: SYSTEMS, baselines: BASELINES, run: empty_files },
        paper: "SNAP",
        title: "Empty files made and removed",
        about: "100,000 empty files in 1,000 folders made and removed, three times over, with all the memory \
                there is. The paper saw all systems tied.",
        chart: Chart::Rates,
        claims: none_claims,
    },
    Figure {
        load: Load {
            name: "snap-files-64m",
            systems: &[
                EXT2.within(MEMORY),
                EXT3.within(MEMORY),
                NONE.within(MEMORY),
                STOCK.within(MEMORY),
                JOURNAL.within(MEMORY),
                GENERATIONS.within(MEMORY),
                UNORDERED.within(MEMORY),
            ],
            baselines: BASELINES,
            run: empty_files,
        },
        paper: "SNAP",
        title: "Empty files made and removed, within 64 MiB (figure 2)",
        about: "The same with 64 MiB to cache in: xact's --cache-size, a control group around the load for \
                the kernel. Snapshotting cost the paper 3.6 %, ext3 cost 9 % over ext2.",
        chart: Chart::Rates,
        claims: none_claims,
    },
    Figure {
        load: Load { name: "snap-postmark", systems: SYSTEMS, baselines: BASELINES, run: postmark },
        paper: "SNAP",
        title: "PostMark (figure 3, table I)",
        about: "20,000 files of 500 B to 16 KiB in 400 folders, 100,000 transactions.",
        chart: Chart::Rates,
        claims: none_claims,
    },
    Figure {
        load: Load { name: "snap-dbench", systems: SYSTEMS, baselines: BASELINES, run: dbench },
        paper: "SNAP",
        title: "dbench (figure 4, table II)",
        about: "1 to 32 clients. In the paper ext3 takes 60 % longer than ext2 with one client and 152 % \
                with 32; snapshotting at most 4.3 % longer than the same code without.",
        chart: Chart::RatesOver("clients"),
        claims: none_claims,
    },
    Figure {
        load: Load { name: "snap-turns", systems: &[GENERATIONS], baselines: &[], run: loads_in_turns },
        paper: "SNAP",
        title: "The same, in short turns (not in the paper)",
        about: "How fast a virtual disk is changes more within minutes than these differ. So here each of xact's \
                engines has a loop device at the same time, and a tenth of a load (of dbench four seconds) is done \
                on one after the other, until all of it is on disk.",
        chart: Chart::Rates,
        claims: turns_claims,
    },
    Figure {
        load: Load {
            name: "snap-turns-64m",
            systems: &[GENERATIONS.within(MEMORY)],
            baselines: &[],
            run: files_in_turns_64m,
        },
        paper: "SNAP",
        title: "Empty files within 64 MiB, in short turns (not in the paper)",
        about: "A tenth of the load above on one engine after the other, each with 64 MiB to cache in.",
        chart: Chart::Rates,
        claims: turns_claims,
    },
    Figure {
        load: Load { name: "snap-kept", systems: &[GENERATIONS], baselines: &[], run: snapshots_kept },
        paper: "SNAP",
        title: "Snapshots of a volume with 100,000 files (not in the paper)",
        about: "100,000 files of 100 bytes in 1,000 folders; 0, 1, 16 and 64 snapshots, between which 100 of \
                the files are rewritten. A snapshot is created and deleted, and PostMark runs (2,000 files \
                in 50 folders, 10,000 transactions), with each of these numbers of snapshots.",
        chart: Chart::Rates,
        claims: kept_claims,
    },
];

const FILES: &str = "empty files";
const FILE_TIMES: u64 = 3;
const CLIENTS: [u32; 5] = [1, 4, 8, 16, 32];

fn folder(dir: &Path, folders: u64, n: u64) -> PathBuf {
    dir.join(format!("d{}", n % folders))
}

fn make_folders(mount: &Mount<'_>, folders: u64) -> Result<()> {
    (0..folders)
        .try_for_each(|n| fs::create_dir(folder(mount.dir(), folders, n)))
        .map_err(because("mkdir"))?;
    mount.settle()
}

/// Creates and removes `files` files [`FILE_TIMES`] times, then makes everything durable.
fn make_and_remove(mount: &Mount<'_>, files: u64, folders: u64) -> Result<()> {
    let path = |n: u64| folder(mount.dir(), folders, n).join(format!("f{n}"));
    for _ in 0..FILE_TIMES {
        (0..files).try_for_each(|n| File::create(path(n)).map(drop)).map_err(because("create"))?;
        (0..files).try_for_each(|n| fs::remove_file(path(n))).map_err(because("unlink"))?;
    }
    mount.settle()
}

fn empty_files(bench: &mut Bench<'_, '_>) -> Result<()> {
    const FOLDERS: u64 = 1000;
    let files = bench.count(100_000);
    make_folders(bench.mount, FOLDERS)?;
    bench.phase(FILES, "file", (files * FILE_TIMES) as f64, |mount| make_and_remove(mount, files, FOLDERS))
}

fn postmark(bench: &mut Bench<'_, '_>) -> Result<()> {
    let (files, transactions) = (bench.count(20_000), bench.count(100_000));
    programs::postmark_of(bench, PostMark { files, transactions, folders: 400, largest_bytes: 16_384 })
}

fn dbench(bench: &mut Bench<'_, '_>) -> Result<()> {
    programs::dbench_of(bench, &CLIENTS)
}

/// The systems that generations take turns with.
const PEERS: [System; 4] = [NONE, STOCK, JOURNAL, UNORDERED];

fn loads_in_turns(bench: &mut Bench<'_, '_>) -> Result<()> {
    let (files, transactions) = (bench.count(2000), bench.count(10_000));
    let what = PostMark { files, transactions, folders: 400, largest_bytes: 16_384 };
    let seconds = bench.count(4).max(2);
    let supplies = bench.supplies.to_owned();
    let files = bench.count(TURN_FILES);
    bench.beside(&PEERS, 1 << 30, |places| {
        let mut samples = files_in_turns(places, files)?;
        let postmark = |mount: &Mount<'_>, _| {
            let config = what.configuration(mount.dir(), &supplies)?;
            timed(what.operations(), || {
                run(Command::new("postmark").arg(&config))?;
                mount.settle()
            })
        };
        samples.append(&mut in_turns(places, TURNS, "PostMark", "op", &postmark)?);
        for clients in CLIENTS {
            let dbench = |mount: &Mount<'_>, _| programs::dbench_for(mount.dir(), clients, seconds);
            let phase = programs::dbench_phase(clients);
            samples.append(&mut in_turns(places, DBENCH_TURNS, &phase, "MB", &dbench)?);
        }
        Ok(samples)
    })
}

fn files_in_turns_64m(bench: &mut Bench<'_, '_>) -> Result<()> {
    let files = bench.count(TURN_FILES);
    bench.beside(&PEERS.map(|system| system.within(MEMORY)), 1 << 30, |places| files_in_turns(places, files))
}

const TURNS: u64 = 8;
/// A run of dbench takes longer.
const DBENCH_TURNS: u64 = 4;
/// Files of one turn.
const TURN_FILES: u64 = 10_000;

fn files_in_turns(places: &[Contender<'_>], files: u64) -> Result<Vec<Sample>> {
    const FOLDERS: u64 = 1000;
    places.iter().try_for_each(|place| make_folders(place.mount, FOLDERS))?;
    let turn =
        |mount: &Mount<'_>, _| timed((files * FILE_TIMES) as f64, || make_and_remove(mount, files, FOLDERS));
    in_turns(places, TURNS, FILES, "file", &turn)
}

fn timed(units: f64, work: impl FnOnce() -> Result<()>) -> Result<Rated> {
    let started = Instant::now();
    work()?;
    Ok(Rated { rate: units / started.elapsed().as_secs_f64(), units })
}

const KEPT: [u64; 4] = [0, 1, 16, 64];

fn snapshots_kept(bench: &mut Bench<'_, '_>) -> Result<()> {
    const FOLDERS: u64 = 1000;
    const WRITTEN_BETWEEN: u64 = 100;
    let files = bench.count(100_000);
    let dir = bench.mount.dir().join("files");
    let path = |n: u64| dir.join(format!("d{}/f{n}", n % FOLDERS));
    let write = |n: u64, value: u8| fs::write(path(n), [value; 100]).map_err(because("write"));
    for n in 0..FOLDERS {
        fs::create_dir_all(dir.join(format!("d{n}"))).map_err(because("mkdir"))?;
    }
    (0..files).try_for_each(|n| write(n, 1))?;
    bench.mount.settle()?;
    let mut kept = 0;
    for wanted in KEPT {
        while kept < wanted {
            (0..WRITTEN_BETWEEN).try_for_each(|n| write((kept * 7919 + n * 613) % files, kept as u8))?;
            snapshot(bench.mount, "create", &format!("kept-{kept}"))?;
            kept += 1;
        }
        bench.mount.settle()?;
        let times = bench.count(10);
        let name = |n: u64| format!("measured-{n}");
        bench.phase(format!("create, {kept} kept"), "snapshot", times as f64, |mount| {
            (0..times).try_for_each(|n| snapshot(mount, "create", &name(n)))
        })?;
        bench.phase(format!("delete, {kept} kept"), "snapshot", times as f64, |mount| {
            (0..times).try_for_each(|n| snapshot(mount, "delete", &name(n)))
        })?;
        let (files, transactions) = (bench.count(2000), bench.count(10_000));
        let what = PostMark { files, transactions, folders: 50, largest_bytes: 16_384 };
        programs::postmark_named(bench, format!("PostMark, {kept} kept"), what)?;
    }
    Ok(())
}

/// `xact snapshot create` or `delete`.
fn snapshot(mount: &Mount<'_>, what: &str, name: &str) -> Result<()> {
    run(Command::new(mount.xact()).args(["snapshot", what]).arg(mount.dir()).arg(name)).map(drop)
}

/// The cost of existing snapshots for other work. No paper states a bound; ours is a fifth.
fn kept_claims(section: &Section) -> Vec<Expectation> {
    let rate = |kept: u64| section.row(&format!("PostMark, {kept} kept"))?.rate(GENERATIONS.name);
    let slowdown = rate(KEPT[0]).zip(rate(KEPT[KEPT.len() - 1])).map(|(none, all)| none / all);
    bound("SNAP-10", "PostMark with 64 snapshots kept takes at most 1.2 times as long", slowdown, |r| {
        r <= 1.2
    })
    .into_iter()
    .collect()
}

/// SNAP-9: generations against the same code without any guarantee, and against our journal, with
/// ext4's settings and with the defaults. The paper's file systems leave data unordered; ours are
/// measured in both ways.
fn none_claims(section: &Section) -> Vec<Expectation> {
    let times = |row: &Row, system: &str, base: &str| Some(1.0 / row.ratio(system, base)?);
    let rows = section.rows.iter().map(|row| (row.phase.as_str(), row));
    overheads(rows, times)
}

/// The same, where each system's turns are a phase.
fn turns_claims(section: &Section) -> Vec<Expectation> {
    let first = section.rows.iter().filter_map(|row| Some((row.phase.strip_suffix(GENERATIONS.name)?, row)));
    let phases = first.filter_map(|(start, row)| Some((start.strip_suffix(": ")?, row)));
    let times = |row: &Row, system: &str, base: &str| {
        let of = |name: &str| section.row(&row.phase.replace(GENERATIONS.name, name));
        of(base)?.ratio_to(of(system)?, GENERATIONS.name)
    };
    overheads(phases, times)
}

fn overheads<'a>(
    phases: impl Iterator<Item = (&'a str, &'a Row)>,
    times: impl Fn(&Row, &str, &str) -> Option<f64>,
) -> Vec<Expectation> {
    let mut claims = Vec::new();
    for (phase, row) in phases {
        for (how, system) in [("", GENERATIONS.name), (", unordered", UNORDERED.name)] {
            let against = |base: System, says: String, holds: fn(f64) -> bool| {
                bound("SNAP-9", &says, times(row, system, base.name), holds)
            };
            let says = format!("{phase}: generations{how} take at most 1.04 times as long as none");
            claims.extend(against(NONE, says, |times| times <= 1.04));
            for journal in [STOCK, JOURNAL] {
                let says = format!("{phase}{how}: and less long than {}", journal.name);
                claims.extend(against(journal, says, |times| times < 1.0));
            }
        }
    }
    claims
}

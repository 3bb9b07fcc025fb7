//! Meta-data snapshotting: empty files, PostMark, dbench (figures 2 to 4, tables I and II).

use std::fs::{self, File};
use std::process::Command;

use super::{Chart, Claim, Figure, bound};
use crate::loads::programs::{self, PostMark};
use crate::loads::{Bench, Load, because};
use crate::report::Section;
use crate::system::{Format, System};
use crate::volume::{Mount, Result, run};

const EXT3: System = System::KERNEL.named("kernel ordered", "noatime,data=ordered");
const EXT2: System = System::KERNEL.named("kernel none", "noatime").on(Format::NoJournal);
const JOURNAL: System = System::XACT.named("xact journal", "noatime");
const NONE: System = System::XACT.named("xact none", "noatime").on(Format::NoJournal);
const GENERATIONS: System = System::XACT.named("xact generations", "noatime").on(Format::Generations);
/// As the paper has it.
const UNORDERED: System =
    System::XACT.named("xact generations, unordered", "noatime,data=writeback").on(Format::Generations);

const MEMORY: u64 = 64 << 20;
const BASELINES: &[&str] = &["xact none", "kernel none"];
const SYSTEMS: &[System] = &[EXT2, EXT3, NONE, JOURNAL, GENERATIONS, UNORDERED];

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
        load: Load { name: "snap-kept", systems: &[GENERATIONS], baselines: &[], run: snapshots_kept },
        paper: "SNAP",
        title: "Snapshots of a volume with 100,000 files (not in the paper)",
        about: "100,000 files of 100 bytes in 1,000 folders; 0, 1, 16 and 64 snapshots, between which 100 of \
                the files are written anew. A snapshot is made and deleted, and PostMark runs (2,000 files in \
                50 folders, 10,000 transactions), while so many are kept.",
        chart: Chart::Rates,
        claims: kept_claims,
    },
];

fn empty_files(bench: &mut Bench<'_, '_>) -> Result<()> {
    const FOLDERS: u64 = 1000;
    const TIMES: u64 = 3;
    let files = bench.count(100_000);
    let dir = bench.mount.dir().to_owned();
    let path = |n: u64| dir.join(format!("d{}/f{n}", n % FOLDERS));
    for n in 0..FOLDERS {
        fs::create_dir(dir.join(format!("d{n}"))).map_err(because("mkdir"))?;
    }
    bench.mount.settle()?;
    bench.phase("empty files", "file", (files * TIMES) as f64, |mount| {
        for _ in 0..TIMES {
            (0..files).try_for_each(|n| File::create(path(n)).map(drop)).map_err(because("create"))?;
            (0..files).try_for_each(|n| fs::remove_file(path(n))).map_err(because("unlink"))?;
        }
        mount.settle()
    })
}

fn postmark(bench: &mut Bench<'_, '_>) -> Result<()> {
    let (files, transactions) = (bench.count(20_000), bench.count(100_000));
    programs::postmark_of(bench, PostMark { files, transactions, folders: 400, largest_bytes: 16_384 })
}

fn dbench(bench: &mut Bench<'_, '_>) -> Result<()> {
    programs::dbench_of(bench, &[1, 4, 8, 16, 32])
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

/// What keeping snapshots costs whoever works on. No bound is stated anywhere; ours is a fifth.
fn kept_claims(section: &Section) -> Vec<Claim> {
    let rate = |kept: u64| section.row(&format!("PostMark, {kept} kept"))?.rate(GENERATIONS.name);
    let slowdown = rate(KEPT[0]).zip(rate(KEPT[KEPT.len() - 1])).map(|(none, all)| none / all);
    bound("SNAP-10", "PostMark with 64 snapshots kept takes at most 1.2 times as long", slowdown, |r| {
        r <= 1.2
    })
    .into_iter()
    .collect()
}

/// SNAP-9: generations against the same code without any guarantee, and against our journal. The paper's leave data
/// unordered; ours are held to it in both ways.
fn none_claims(section: &Section) -> Vec<Claim> {
    let mut claims = Vec::new();
    for row in &section.rows {
        for (how, system) in [("", GENERATIONS.name), (", unordered", UNORDERED.name)] {
            let slowdown = |base| Some(1.0 / row.ratio(system, base)?);
            let (Some(none), Some(journal)) = (slowdown(NONE.name), slowdown(JOURNAL.name)) else { continue };
            claims.push(Claim {
                id: "SNAP-9",
                says: format!("{}: generations{how} take at most 1.04 times as long as none", row.phase),
                measured: format!("{none:.2}"),
                holds: none <= 1.04,
            });
            claims.push(Claim {
                id: "SNAP-9",
                says: format!("{}{how}: and less long than our journal", row.phase),
                measured: format!("{journal:.2}"),
                holds: journal < 1.0,
            });
        }
    }
    claims
}

//! TxFS: programming idioms (table 1) and programs (table 2), as they are, with a transaction around them and
//! nothing else changed, and rewritten without what transactions make needless.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use xact::{Caller, Durability, View, Volume, VolumeOptions};
use xact_fuse::client::Channel;
use xact_fuse::control::COMMIT_ORDERED;

use super::{Chart, Claim, Figure, bound};
use crate::loads::{Bench, Load, Rated, because};
use crate::report::Section;
use crate::system::{Server, System};
use crate::volume::{Result, run};

const PLAIN: &str = "xact";
const WRAPPED: &str = "xact, wrapped";
const REWRITTEN: &str = "xact, rewritten";
const SYSTEMS: &[System] =
    &[System::KERNEL, System::XACT, System::XACT.named(WRAPPED, ""), System::XACT.named(REWRITTEN, "")];
const TWO_WAYS: &[System] = &[System::KERNEL, System::XACT, System::XACT.named(WRAPPED, "")];
const BASELINES: &[&str] = &["xact", "kernel"];

const fn figure(
    name: &'static str,
    systems: &'static [System],
    run: fn(&mut Bench<'_, '_>) -> Result<()>,
    title: &'static str,
    about: &'static str,
    claims: fn(&Section) -> Vec<Claim>,
) -> Figure {
    let load = Load { name, systems, baselines: BASELINES, run };
    Figure { load, paper: "TxFS", title, about, chart: Chart::Rates, claims }
}

pub const FIGURES: &[Figure] = &[
    figure(
        "txfs-idioms",
        SYSTEMS,
        idioms,
        "Programming idioms (table 1)",
        "Six threads each make a file, delete it and sync the folder (wrapped: in a transaction; rewritten: all \
         turns of a thread in one; also in process, without a mount). A log is written and synced, a file is \
         updated and synced, the log is deleted (rewritten: no log). Three files of 10 MB are made before 10 MB \
         of a fourth are overwritten (with fsync, or as a chain of ordered commits). The paper has 133, 1.20 \
         (rewritten 1.55) and 1.38 times.",
        idiom_claims,
    ),
    figure(
        "txfs-small",
        TWO_WAYS,
        small_files,
        "One small file a transaction",
        "A file of 4 KiB is made, written and synced (wrapped: begin, make, write, commit), and in process \
         committed in order only. Not in the paper: a commit should take at most 1.3 times the plain write and \
         fsync, one in order less than 60 us.",
        small_claims,
    ),
    figure(
        "txfs-sqlite",
        SYSTEMS,
        |bench| database(bench, "update", "SQLite, a row a transaction", 1000),
        "SQLite with one thread (table 2)",
        "Single rows of 10,000 are updated, with a rollback journal (rewritten: without one). The paper has 1.14 \
         times by wrapping alone, 1.31 rewritten.",
        |section| claims(section, "SQLite, a row a transaction", 1.14, 1.31),
    ),
    figure(
        "txfs-tpcc",
        SYSTEMS,
        |bench| database(bench, "tpcc", "TPC-C", 1000),
        "TPC-C on SQLite (table 2)",
        "All five transactions of the standard in its mix, one warehouse, without think times; a rollback journal \
         (rewritten: none). The paper has 1.61 times.",
        |section| claims(section, "TPC-C", 1.0, 1.61),
    ),
    figure(
        "txfs-mail",
        SYSTEMS,
        |bench| database(bench, "mail", "mail with an attachment", 500),
        "A mail store as Android's (table 2)",
        "An attachment of 16 KiB is written and synced, with its folder, before the row that refers to it is \
         inserted. The paper has 2.31 times.",
        |section| claims(section, "mail with an attachment", 1.0, 2.31),
    ),
    figure(
        "txfs-git",
        TWO_WAYS,
        git,
        "git commit (table 2)",
        "Commits of one changed file, each under 'xact run'. Git by itself syncs nothing here, so that is held \
         against commits in order; and where it syncs all that it writes, against durable ones. The paper has \
         1.00 times.",
        |section| {
            let claim = |(phase, ..): &(&str, &str, &[&str])| {
                let ratio = section.row(phase).and_then(|row| row.ratio(WRAPPED, PLAIN));
                bound("TX-22", &format!("{phase}, in a transaction, 1.00 times"), ratio, |r| r >= 0.95)
            };
            GIT_PHASES.iter().filter_map(claim).collect()
        },
    ),
];

/// How a program uses transactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Plain,
    Wrapped,
    Rewritten,
}

impl Mode {
    fn of(system: System) -> Mode {
        match system.name {
            WRAPPED => Mode::Wrapped,
            REWRITTEN => Mode::Rewritten,
            _ => Mode::Plain,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Mode::Plain => "plain",
            Mode::Wrapped => "wrapped",
            Mode::Rewritten => "rewritten",
        }
    }
}

/// Runs `work` in `mount`, or in a transaction's view of it, by a descriptor of its root as the C library gives one.
fn within(
    channel: Option<&Channel>,
    mount: &Path,
    flags: u32,
    work: impl FnOnce(&Path) -> Result<()>,
) -> Result<()> {
    let Some(channel) = channel else { return work(mount) };
    let (_, root) = channel.begin(0).map_err(because("begin"))?;
    let root =
        File::options().read(true).custom_flags(libc::O_PATH).open(root).map_err(because("the view"))?;
    work(Path::new(&format!("/proc/self/fd/{}", root.as_raw_fd())))?;
    channel.commit(flags).map_err(|e| format!("commit: {}", e.why))
}

fn channel(mode: Mode, mount: &Path) -> Result<Option<Channel>> {
    (mode != Mode::Plain).then(|| Channel::open(mount).map_err(because("a control channel"))).transpose()
}

fn sync_folder(path: &Path) -> Result<()> {
    File::open(path).and_then(|dir| dir.sync_all()).map_err(because("sync a folder"))
}

fn idioms(bench: &mut Bench<'_, '_>) -> Result<()> {
    let mode = Mode::of(bench.mount.system());
    create_unlink_sync(bench, mode)?;
    if bench.mount.system().server == Server::Xact {
        in_process(bench, mode)?;
    }
    logging(bench, mode)?;
    ordering(bench, mode)
}

const SMALL_DURABLE: &str = "small file, durable";
const SMALL_ORDERED: &str = "small file, in order, in process";

/// How long each of `turns` turns takes.
fn each_timed(turns: u64, mut turn: impl FnMut(u64) -> Result<()>) -> Result<Vec<Duration>> {
    let timed = |n| {
        let started = Instant::now();
        turn(n).map(|()| started.elapsed())
    };
    (0..turns).map(timed).collect()
}

fn small_files(bench: &mut Bench<'_, '_>) -> Result<()> {
    let mode = Mode::of(bench.mount.system());
    let (turns, content) = (bench.count(2000), [2u8; 4096]);
    bench.mount.settle()?;
    bench.phase_with_latency(SMALL_DURABLE, "op", |mount| {
        let channel = channel(mode, mount.dir())?;
        each_timed(turns, |n| {
            within(channel.as_ref(), mount.dir(), 0, |root| {
                let mut file = File::create(root.join(format!("small{n}"))).map_err(because("create"))?;
                file.write_all(&content).map_err(because("write"))?;
                if mode == Mode::Plain { file.sync_all().map_err(because("sync")) } else { Ok(()) }
            })
        })
    })?;
    if mode == Mode::Plain {
        return Ok(());
    }
    let own = OwnImage::new(bench)?;
    bench.phase_with_latency(SMALL_ORDERED, "op", |_| {
        let turn = |n: u64| -> xact::Result<()> {
            let transaction = own.volume.begin(Default::default());
            let file = transaction.make_node(
                &CALLER,
                xact::Ino::ROOT,
                format!("small{n}").as_bytes(),
                libc::S_IFREG as u16 | 0o644,
                0,
            )?;
            transaction.write(file.ino, 0, &content, Default::default())?;
            transaction.commit_with(Durability::Ordered)
        };
        each_timed(turns, |n| turn(n).map_err(because("in process")))
    })?;
    own.close()
}

fn small_claims(section: &Section) -> Vec<Claim> {
    let durable = section.row(SMALL_DURABLE).and_then(|row| {
        let median = |system: &str| row.latency(system, |latency| latency.median);
        Some(median(WRAPPED)? / median(PLAIN)?)
    });
    let ordered = section.row(SMALL_ORDERED).and_then(|row| row.latency(WRAPPED, |latency| latency.median));
    let claims = [
        bound(
            "TX-22",
            "one small file, durable, at most 1.3 times as long as write and fsync",
            durable,
            |r| r <= 1.3,
        ),
        bound("TX-22", "one small file, in order, in process, less than 60 us", ordered, |us| us < 60.0),
    ];
    claims.into_iter().flatten().collect()
}

/// A volume of its own, without a mount.
struct OwnImage {
    path: std::path::PathBuf,
    volume: Arc<Volume>,
}

const CALLER: Caller = Caller { uid: 0, gid: 0, umask: 0o022 };

impl OwnImage {
    fn new(bench: &Bench<'_, '_>) -> Result<OwnImage> {
        let path = bench.supplies.join("in-process.img");
        run(Command::new(bench.mount.xact()).args(["mkfs", "--force", "--size", "512M"]).arg(&path))?;
        let volume = Volume::open_path(&path, &VolumeOptions::default()).map_err(because("open"))?;
        Ok(OwnImage { path, volume })
    }

    fn close(self) -> Result<()> {
        self.volume.close().map_err(because("close"))?;
        fs::remove_file(&self.path).map_err(because("remove the image"))
    }
}

const THREADS: u64 = 6;

/// Runs `turns` turns in each of the threads.
fn in_threads(work: impl Fn(u64) -> Result<()> + Sync) -> Result<()> {
    std::thread::scope(|scope| {
        let work = &work;
        let running: Vec<_> = (0..THREADS).map(|n| scope.spawn(move || work(n))).collect();
        running.into_iter().try_for_each(|t| t.join().map_err(|_| "a thread panicked".to_owned())?)
    })
}

fn create_unlink_sync(bench: &mut Bench<'_, '_>, mode: Mode) -> Result<()> {
    let turns = bench.count(1000);
    for n in 0..THREADS {
        fs::create_dir(bench.mount.dir().join(format!("thread{n}"))).map_err(because("mkdir"))?;
    }
    // So that no checkpoint of these is among the writes that are counted.
    bench.mount.cool()?;
    bench.mount.settle()?;
    bench.phase("create/unlink/sync", "op", (turns * THREADS) as f64, |mount| {
        let dir = mount.dir();
        let turn = |root: &Path, n: u64| {
            let folder = root.join(format!("thread{n}"));
            File::create(folder.join("file")).map_err(because("create"))?;
            fs::remove_file(folder.join("file")).map_err(because("unlink"))?;
            sync_folder(&folder)
        };
        in_threads(|n| {
            let channel = channel(mode, dir)?;
            match mode {
                Mode::Rewritten => {
                    within(channel.as_ref(), dir, 0, |root| (0..turns).try_for_each(|_| turn(root, n)))
                }
                _ => (0..turns).try_for_each(|_| within(channel.as_ref(), dir, 0, |root| turn(root, n))),
            }
        })
    })
}

/// The same without a mount, on an image of its own.
fn in_process(bench: &mut Bench<'_, '_>, mode: Mode) -> Result<()> {
    let turns = bench.count(1000);
    let own = OwnImage::new(bench)?;
    let volume = &own.volume;
    let root = xact::Ino::ROOT;
    let turn = |view: &dyn View, n: u64| -> xact::Result<()> {
        let name = format!("file{n}");
        view.make_node(&CALLER, root, name.as_bytes(), libc::S_IFREG as u16 | 0o644, 0)?;
        view.unlink(&CALLER, root, name.as_bytes())?;
        view.sync_file(root, false)
    };
    bench.phase("create/unlink/sync in process", "op", (turns * THREADS) as f64, |_| {
        in_threads(|n| {
            let all = || -> xact::Result<()> {
                let transacted = |volume: &Arc<Volume>, turns: u64| {
                    let transaction = volume.begin(Default::default());
                    (0..turns).try_for_each(|_| turn(&*transaction, n))?;
                    transaction.commit_with(Durability::Durable)
                };
                match mode {
                    Mode::Plain => (0..turns).try_for_each(|_| turn(&*volume.base(), n)),
                    Mode::Wrapped => (0..turns).try_for_each(|_| transacted(volume, 1)),
                    Mode::Rewritten => transacted(volume, turns),
                }
            };
            all().map_err(because("in process"))
        })
    })?;
    own.close()
}

const UPDATE_BYTES: usize = 64 << 10;
const UPDATED_FILE_BYTES: u64 = 16 << 20;

fn logging(bench: &mut Bench<'_, '_>, mode: Mode) -> Result<()> {
    let turns = bench.count(300);
    fs::write(bench.mount.dir().join("original"), vec![1; UPDATED_FILE_BYTES as usize])
        .map_err(because("fill"))?;
    bench.mount.settle()?;
    let update = vec![2u8; UPDATE_BYTES];
    bench.phase("update through a log", "op", turns as f64, |mount| {
        let channel = channel(mode, mount.dir())?;
        for n in 0..turns {
            let offset = n * 7919 % (UPDATED_FILE_BYTES / UPDATE_BYTES as u64) * UPDATE_BYTES as u64;
            within(channel.as_ref(), mount.dir(), 0, |root| {
                let log = root.join("log");
                if mode != Mode::Rewritten {
                    let mut file = File::create(&log).map_err(because("create the log"))?;
                    file.write_all(&update)
                        .and_then(|()| file.sync_all())
                        .map_err(because("write the log"))?;
                    sync_folder(root)?;
                }
                let original = File::options().write(true).open(root.join("original"));
                let original = original.map_err(because("open"))?;
                original.write_all_at(&update, offset).map_err(because("update"))?;
                if mode != Mode::Rewritten {
                    original.sync_all().map_err(because("sync"))?;
                    fs::remove_file(&log).map_err(because("unlink the log"))?;
                    sync_folder(root)?;
                }
                Ok(())
            })?;
        }
        Ok(())
    })
}

fn ordering(bench: &mut Bench<'_, '_>, mode: Mode) -> Result<()> {
    const PART: usize = 10_000_000;
    let turns = bench.count(10);
    fs::write(bench.mount.dir().join("data"), vec![1; 4 * PART]).map_err(because("fill"))?;
    bench.mount.settle()?;
    let content = vec![2u8; PART];
    bench.phase("three files before an update", "op", turns as f64, |mount| {
        let channel = channel(mode, mount.dir())?;
        for turn in 0..turns {
            for n in 0..3 {
                within(channel.as_ref(), mount.dir(), COMMIT_ORDERED, |root| {
                    let mut file =
                        File::create(root.join(format!("file{turn}.{n}"))).map_err(because("create"))?;
                    file.write_all(&content).map_err(because("write"))?;
                    if mode == Mode::Plain { file.sync_all().map_err(because("sync")) } else { Ok(()) }
                })?;
            }
            within(channel.as_ref(), mount.dir(), 0, |root| {
                let data = File::options().write(true).open(root.join("data")).map_err(because("open"))?;
                data.write_all_at(&content, turn % 4 * PART as u64).map_err(because("update"))?;
                if mode == Mode::Plain { data.sync_all().map_err(because("sync")) } else { Ok(()) }
            })?;
        }
        Ok(())
    })
}

const DRIVER: &str = include_str!("txfs.py");

/// A load of the driver, which finds the C library beside the program that is measured.
fn database(bench: &mut Bench<'_, '_>, load: &str, phase: &str, full: u64) -> Result<()> {
    let mode = Mode::of(bench.mount.system());
    let count = bench.count(full).max(20).to_string();
    bench.phase_with_rate(phase, "tx", |mount| {
        let mut command = Command::new("python3");
        let package = concat!(env!("CARGO_MANIFEST_DIR"), "/../python");
        command.env("LIBXACT", mount.xact().with_file_name("libxact_c.so")).env("PYTHONPATH", package);
        command.env("PYTHONDONTWRITEBYTECODE", "1").args(["-c", DRIVER, load, mode.name()]);
        let output = run(command.arg(mount.dir()).arg(&count))?;
        let numbers: Option<Vec<f64>> = output.split_whitespace().map(|word| word.parse().ok()).collect();
        match numbers.as_deref() {
            Some(&[rate, units]) => Ok(Rated { rate, units }),
            _ => Err(format!("the driver says {output:?}")),
        }
    })
}

/// A phase, what of its files Git is to sync, and how `xact run` is to commit: as durably on both sides.
const GIT_PHASES: [(&str, &str, &[&str]); 2] =
    [("git commit", "core.fsync=none", &["--ordered"]), ("git commit, durable", "core.fsync=all", &[])];

fn git(bench: &mut Bench<'_, '_>) -> Result<()> {
    let mode = Mode::of(bench.mount.system());
    let commits = bench.count(50);
    let repository = bench.mount.dir().join("repository");
    let shown = repository.display().to_string();
    run(Command::new("git").args(["init", "-q"]).arg(&repository))?;
    for (phase, syncs, how) in GIT_PHASES {
        let git = |arguments: &[&str]| {
            let settings = ["safe.directory=*", "user.name=xact", "user.email=xact@example.org", syncs];
            let mut command = Command::new("git");
            command.env("GIT_CONFIG_GLOBAL", "/dev/null").args(settings.iter().flat_map(|set| ["-c", set]));
            command.args(["-C", &shown]).args(arguments);
            command
        };
        bench.phase(phase, "op", commits as f64, |mount| {
            for n in 0..commits {
                fs::write(repository.join("file"), format!("{phase} {n}")).map_err(because("write"))?;
                run(&mut git(&["add", "file"]))?;
                let commit = git(&["commit", "-q", "-m", "commit"]);
                if mode == Mode::Plain {
                    run(&mut { commit })?;
                } else {
                    let mut wrapped = Command::new(mount.xact());
                    wrapped.args(["run", "--at"]).arg(mount.dir()).args(how).arg("--");
                    wrapped.arg(commit.get_program()).args(commit.get_args());
                    run(wrapped.env("GIT_CONFIG_GLOBAL", "/dev/null"))?;
                }
            }
            Ok(())
        })?;
    }
    Ok(())
}

fn claims(section: &Section, phase: &str, wrapped: f64, rewritten: f64) -> Vec<Claim> {
    let Some(row) = section.row(phase) else { return Vec::new() };
    let says = |how: &str, times: f64| format!("{phase}, {how}, {times} times");
    let best =
        [row.ratio(WRAPPED, PLAIN), row.ratio(REWRITTEN, PLAIN)].into_iter().flatten().reduce(f64::max);
    let claims = [
        bound("TX-22", &says("wrapped", wrapped), row.ratio(WRAPPED, PLAIN), |r| r >= wrapped),
        bound("TX-22", &says("the better of wrapped and rewritten", rewritten), best, |r| r >= rewritten),
        bound("TX-22", &says("against kernel ext4", 1.0), row.ratio(REWRITTEN, "kernel"), |r| r >= 1.0),
    ];
    claims.into_iter().flatten().collect()
}

fn idiom_claims(section: &Section) -> Vec<Claim> {
    let ratio = |phase: &str, system: &str| section.row(phase).and_then(|row| row.ratio(system, PLAIN));
    let writes = |system: &str| {
        let row = section.row("create/unlink/sync")?;
        row.of(system, |sample| sample.counts.writes as f64)
    };
    let log_bytes = section.row("update through a log").and_then(|row| {
        let bytes = |system: &str| row.of(system, |sample| sample.counts.written_bytes as f64);
        Some(bytes(WRAPPED)? / bytes(PLAIN)?)
    });
    let claims = [
        bound(
            "TX-22",
            "create/unlink/sync in process, 133 times",
            ratio("create/unlink/sync in process", REWRITTEN),
            |r| r >= 133.0,
        ),
        bound("TX-8", "create/unlink/sync mounted, device writes", writes(REWRITTEN), |writes| writes == 0.0),
        bound("TX-22", "a log, wrapped, half the I/O: share of the bytes written", log_bytes, |r| r <= 0.5),
        bound("TX-22", "a log, wrapped, 1.20 times", ratio("update through a log", WRAPPED), |r| r >= 1.20),
        bound("TX-22", "a log, rewritten, 1.55 times", ratio("update through a log", REWRITTEN), |r| {
            r >= 1.55
        }),
        bound("TX-22", "ordering, 1.38 times", ratio("three files before an update", WRAPPED), |r| r >= 1.38),
    ];
    claims.into_iter().flatten().collect()
}

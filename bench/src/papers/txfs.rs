//! TxFS: programming idioms (table 1) and programs (table 2), unchanged, with a transaction around
//! them and no other change, and rewritten without the parts that transactions replace.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use xact::{Caller, Durability, View, Volume, VolumeOptions};
use xact_control::abi::COMMIT_ORDERED;
use xact_control::client::Channel;

use super::{Chart, Expectation, Figure, bound};
use crate::counts::{Counts, STAT_SECTOR_BYTES};
use crate::loads::{Bench, Load, Rated, Sample, WorkInTurns, because, counted};
use crate::report::Section;
use crate::system::{Server, System};
use crate::volume::{Mount, Result, run};

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
    claims: fn(&Section) -> Vec<Expectation>,
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
        |bench| database(bench, SQLITE),
        "SQLite with one thread (table 2)",
        "Single rows of 10,000 are updated, with a rollback journal (rewritten: without one). The paper has 1.14 \
         times by wrapping alone, 1.31 rewritten.",
        |section| against_the_kernel(section, SQLITE),
    ),
    figure(
        "txfs-tpcc",
        SYSTEMS,
        |bench| database(bench, TPCC),
        "TPC-C on SQLite (table 2)",
        "All five transactions of the standard in its mix, one warehouse, without think times; a rollback journal \
         (rewritten: none). The paper has 1.61 times.",
        |section| against_the_kernel(section, TPCC),
    ),
    figure(
        "txfs-mail",
        SYSTEMS,
        |bench| database(bench, MAIL),
        "A mail store as Android's (table 2)",
        "An attachment of 16 KiB is written and synced, with its folder, before the row that refers to it is \
         inserted. The paper has 2.31 times.",
        |section| against_the_kernel(section, MAIL),
    ),
    figure(
        "txfs-git",
        TWO_WAYS,
        git,
        "git commit (table 2)",
        "Commits of one changed file, each under 'xact run'. Git alone syncs nothing here, so that is held \
         against commits in order; and where it syncs all that it writes, against durable ones. The paper has \
         1.00 times.",
        |_| Vec::new(),
    ),
    figure(
        "txfs-turns",
        &[System::XACT],
        all_in_turns,
        "The same, the ways in short turns (not in the paper)",
        "What the figures above have one after the other, on one mount and in turns, so that what the disk is at the \
         moment is the same for all: as they are, wrapped, rewritten. A turn is an operation, of the SQLite loads 20. Counts are until each operation returned.",
        turns_claims,
    ),
];

/// A load of the driver.
#[derive(Clone, Copy)]
struct DriverLoad {
    name: &'static str,
    phase: &'static str,
    /// Units at full size.
    full: u64,
}

const SQLITE: DriverLoad = DriverLoad { name: "update", phase: "SQLite, a row a transaction", full: 1000 };
const TPCC: DriverLoad = DriverLoad { name: "tpcc", phase: "TPC-C", full: 1000 };
const MAIL: DriverLoad = DriverLoad { name: "mail", phase: "mail with an attachment", full: 500 };

/// How a program uses transactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Plain,
    Wrapped,
    Rewritten,
}

impl Mode {
    const ALL: [Mode; 3] = [Mode::Plain, Mode::Wrapped, Mode::Rewritten];

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

/// Runs `work` in `mount`, or in a transaction's view of it, through a descriptor of its root, as
/// the C library provides one.
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

/// The duration of each of `turns` turns.
fn each_timed(turns: u64, mut turn: impl FnMut(u64) -> Result<()>) -> Result<Vec<Duration>> {
    let timed = |n| {
        let started = Instant::now();
        turn(n).map(|()| started.elapsed())
    };
    (0..turns).map(timed).collect()
}

const SMALL_CONTENT: [u8; 4096] = [2; 4096];

fn small_file(mode: Mode, channel: Option<&Channel>, dir: &Path, n: u64) -> Result<()> {
    within(channel, dir, 0, |root| {
        let name = format!("{}{n}", mode.name());
        let mut file = File::create(root.join(name)).map_err(because("create"))?;
        file.write_all(&SMALL_CONTENT).map_err(because("write"))?;
        if mode == Mode::Plain { file.sync_all().map_err(because("sync")) } else { Ok(()) }
    })
}

fn small_files(bench: &mut Bench<'_, '_>) -> Result<()> {
    let mode = Mode::of(bench.mount.system());
    let turns = bench.count(2000);
    bench.mount.settle()?;
    bench.phase_with_latency(SMALL_DURABLE, "op", |mount| {
        let channel = channel(mode, mount.dir())?;
        each_timed(turns, |n| small_file(mode, channel.as_ref(), mount.dir(), n))
    })?;
    if mode == Mode::Plain {
        return Ok(());
    }
    let own = OwnImage::new(bench)?;
    bench.phase_with_latency(SMALL_ORDERED, "op", |_| {
        let turn = |n: u64| -> xact::Result<()> {
            let transaction = own.volume.begin(Default::default()).into_shared();
            let file = transaction.make_node(
                &CALLER,
                xact::Ino::ROOT,
                format!("small{n}").as_bytes(),
                libc::S_IFREG as u16 | 0o644,
                0,
            )?;
            transaction.write(file.ino, 0, &SMALL_CONTENT, Default::default())?;
            transaction.commit_with(Durability::Ordered)
        };
        each_timed(turns, |n| turn(n).map_err(because("in process")))
    })?;
    own.close()
}

fn small_claims(section: &Section) -> Vec<Expectation> {
    let ordered = section.row(SMALL_ORDERED).and_then(|row| row.latency(WRAPPED, |latency| latency.median));
    let says = "one small file, in order, in process, less than 60 us";
    bound("TX-22", says, ordered, |us| us < 60.0).into_iter().collect()
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
    // So that no checkpoint of these is among the counted writes.
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
                    let transaction = volume.begin(Default::default()).into_shared();
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

const LOG: &str = "update through a log";

/// The file that is updated.
fn fill_original(mount: &Mount<'_>) -> Result<()> {
    fs::write(mount.dir().join("original"), vec![1; UPDATED_FILE_BYTES as usize]).map_err(because("fill"))?;
    mount.settle()
}

fn log_and_update(mode: Mode, channel: Option<&Channel>, dir: &Path, n: u64) -> Result<()> {
    let update = vec![2u8; UPDATE_BYTES];
    let offset = n * 7919 % (UPDATED_FILE_BYTES / UPDATE_BYTES as u64) * UPDATE_BYTES as u64;
    within(channel, dir, 0, |root| {
        let log = root.join("log");
        if mode != Mode::Rewritten {
            let mut file = File::create(&log).map_err(because("create the log"))?;
            file.write_all(&update).and_then(|()| file.sync_all()).map_err(because("write the log"))?;
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
    })
}

fn logging(bench: &mut Bench<'_, '_>, mode: Mode) -> Result<()> {
    let turns = bench.count(300);
    fill_original(bench.mount)?;
    bench.phase(LOG, "op", turns as f64, |mount| {
        let channel = channel(mode, mount.dir())?;
        (0..turns).try_for_each(|n| log_and_update(mode, channel.as_ref(), mount.dir(), n))
    })
}

const ORDERING: &str = "three files before an update";
const PART: usize = 10_000_000;

/// The file that is updated.
fn fill_data(mount: &Mount<'_>) -> Result<()> {
    fs::write(mount.dir().join("data"), vec![1; 4 * PART]).map_err(because("fill"))?;
    mount.settle()
}

fn three_before_an_update(mode: Mode, channel: Option<&Channel>, dir: &Path, turn: u64) -> Result<()> {
    let content = vec![2u8; PART];
    for n in 0..3 {
        within(channel, dir, COMMIT_ORDERED, |root| {
            let name = format!("{}{turn}.{n}", mode.name());
            let mut file = File::create(root.join(name)).map_err(because("create"))?;
            file.write_all(&content).map_err(because("write"))?;
            if mode == Mode::Plain { file.sync_all().map_err(because("sync")) } else { Ok(()) }
        })?;
    }
    within(channel, dir, 0, |root| {
        let data = File::options().write(true).open(root.join("data")).map_err(because("open"))?;
        data.write_all_at(&content, turn % 4 * PART as u64).map_err(because("update"))?;
        if mode == Mode::Plain { data.sync_all().map_err(because("sync")) } else { Ok(()) }
    })
}

fn ordering(bench: &mut Bench<'_, '_>, mode: Mode) -> Result<()> {
    let turns = bench.count(10);
    fill_data(bench.mount)?;
    bench.phase(ORDERING, "op", turns as f64, |mount| {
        let channel = channel(mode, mount.dir())?;
        (0..turns).try_for_each(|turn| three_before_an_update(mode, channel.as_ref(), mount.dir(), turn))
    })
}

const DRIVER: &str = include_str!("txfs.py");

/// Runs the driver, which finds the C library beside the measured program. Returns a line of
/// numbers for each way.
fn drive(mount: &Mount<'_>, arguments: &[&str]) -> Result<Vec<Vec<f64>>> {
    let mut command = Command::new("python3");
    let package = concat!(env!("CARGO_MANIFEST_DIR"), "/../python");
    command.env("LIBXACT", mount.xact().with_file_name("libxact_c.so")).env("PYTHONPATH", package);
    command.env("PYTHONDONTWRITEBYTECODE", "1").args(["-c", DRIVER]).args(arguments);
    let output = run(&mut command)?;
    let numbers = |line: &str| line.split_whitespace().map(|word| word.parse().ok()).collect();
    let lines: Option<Vec<Vec<f64>>> = output.lines().map(numbers).collect();
    lines.filter(|lines| !lines.is_empty()).ok_or_else(|| format!("the driver says {output:?}"))
}

impl DriverLoad {
    fn count(self, bench: &Bench<'_, '_>) -> String {
        bench.count(self.full).max(20).to_string()
    }
}

fn database(bench: &mut Bench<'_, '_>, load: DriverLoad) -> Result<()> {
    let mode = Mode::of(bench.mount.system());
    let count = load.count(bench);
    bench.phase_with_rate(load.phase, "tx", |mount| {
        let folder = mount.dir().display().to_string();
        match drive(mount, &[load.name, mode.name(), &folder, &count])?[..] {
            [ref numbers] if numbers.len() == 2 => Ok(Rated { rate: numbers[0], units: numbers[1] }),
            ref lines => Err(format!("the driver says {lines:?}")),
        }
    })
}

fn database_in_turns(bench: &mut Bench<'_, '_>, load: DriverLoad) -> Result<()> {
    let folder = bench.mount.dir().join(load.name).display().to_string();
    let ways = Mode::ALL.map(Mode::name).join(",");
    let statistics = bench.device.statistics()?;
    let lines = drive(bench.mount, &[load.name, &ways, &folder, &load.count(bench), &statistics])?;
    for (mode, numbers) in Mode::ALL.into_iter().zip(lines) {
        let [rate, units, writes, sectors, flushes] = numbers[..] else {
            return Err(format!("the driver says {numbers:?}"));
        };
        let counts = Counts {
            writes: writes as u64,
            written_bytes: sectors as u64 * STAT_SECTOR_BYTES,
            flushes: flushes as u64,
            ..Counts::default()
        };
        let (phase, unit) = (by_way(load.phase, mode), "tx".to_owned());
        let counts = counted(bench.mount.system(), counts);
        bench.samples.push(Sample { phase, rate, unit, units, latency: None, counts });
    }
    bench.mount.settle()
}

/// A phase, the files that Git syncs in it, and how `xact run` commits: with the same durability on
/// both sides.
const GIT_PHASES: [(&str, &str, &[&str]); 2] =
    [("git commit", "core.fsync=none", &["--ordered"]), ("git commit, durable", "core.fsync=all", &[])];

/// A Git repository on a mount.
struct Repository {
    path: PathBuf,
    shown: String,
}

impl Repository {
    fn new(path: PathBuf) -> Result<Repository> {
        run(Command::new("git").args(["init", "-q"]).arg(&path))?;
        let shown = path.display().to_string();
        Ok(Repository { path, shown })
    }

    fn git(&self, syncs: &str, arguments: &[&str]) -> Command {
        let settings = ["safe.directory=*", "user.name=xact", "user.email=xact@example.org", syncs];
        let mut command = Command::new("git");
        command.env("GIT_CONFIG_GLOBAL", "/dev/null").args(settings.iter().flat_map(|set| ["-c", set]));
        command.args(["-C", &self.shown]).args(arguments);
        command
    }

    fn change_and_commit(
        &self,
        mode: Mode,
        (xact, dir): (&Path, &Path),
        (phase, syncs, how): (&str, &str, &[&str]),
        n: u64,
    ) -> Result<()> {
        fs::write(self.path.join("file"), format!("{phase} {n}")).map_err(because("write"))?;
        run(&mut self.git(syncs, &["add", "file"]))?;
        let mut commit = self.git(syncs, &["commit", "-q", "-m", "commit"]);
        if mode == Mode::Plain {
            return run(&mut commit).map(drop);
        }
        let mut wrapped = Command::new(xact);
        wrapped.args(["run", "--at"]).arg(dir).args(how).arg("--");
        wrapped.arg(commit.get_program()).args(commit.get_args());
        run(wrapped.env("GIT_CONFIG_GLOBAL", "/dev/null")).map(drop)
    }
}

fn git(bench: &mut Bench<'_, '_>) -> Result<()> {
    let mode = Mode::of(bench.mount.system());
    let commits = bench.count(50);
    let repository = Repository::new(bench.mount.dir().join("repository"))?;
    for case in GIT_PHASES {
        bench.phase(case.0, "op", commits as f64, |mount| {
            let at = (mount.xact(), mount.dir());
            (0..commits).try_for_each(|n| repository.change_and_commit(mode, at, case, n))
        })?;
    }
    Ok(())
}

/// The name of a phase in which the ways take turns.
fn by_way(phase: &str, mode: Mode) -> String {
    format!("{phase}: {}", mode.name())
}

/// An idiom's turn: its way, its channel, the mount, and the number of the turn.
type IdiomTurn = fn(Mode, Option<&Channel>, &Path, u64) -> Result<()>;

fn idiom_in_turns(
    bench: &mut Bench<'_, '_>,
    (phase, turns, modes, turn): (&str, u64, &[Mode], IdiomTurn),
) -> Result<()> {
    let turns = bench.count(turns);
    let dir = bench.mount.dir().to_owned();
    let mut works: Vec<WorkInTurns<'_>> = Vec::new();
    for &mode in modes {
        let (channel, dir) = (channel(mode, &dir)?, &dir);
        works.push((by_way(phase, mode), Box::new(move |n| turn(mode, channel.as_ref(), dir, n))));
    }
    bench.phases_in_turns("op", turns, &mut works)
}

fn git_in_turns(bench: &mut Bench<'_, '_>) -> Result<()> {
    let commits = bench.count(50);
    let (xact, dir) = (bench.mount.xact().to_owned(), bench.mount.dir().to_owned());
    let repository = |mode: Mode| Repository::new(dir.join(format!("repository-{}", mode.name())));
    let repositories = [(Mode::Plain, repository(Mode::Plain)?), (Mode::Wrapped, repository(Mode::Wrapped)?)];
    for case in GIT_PHASES {
        let mut works: Vec<WorkInTurns<'_>> = Vec::new();
        for (mode, repository) in &repositories {
            let work = |n| repository.change_and_commit(*mode, (&xact, &dir), case, n);
            works.push((by_way(case.0, *mode), Box::new(work)));
        }
        bench.phases_in_turns("op", commits, &mut works)?;
    }
    Ok(())
}

fn all_in_turns(bench: &mut Bench<'_, '_>) -> Result<()> {
    let two = &[Mode::Plain, Mode::Wrapped];
    idiom_in_turns(bench, (SMALL_DURABLE, 2000, two, small_file))?;
    fill_original(bench.mount)?;
    idiom_in_turns(bench, (LOG, 300, &Mode::ALL, log_and_update))?;
    fill_data(bench.mount)?;
    idiom_in_turns(bench, (ORDERING, 10, two, three_before_an_update))?;
    [SQLITE, TPCC, MAIL].into_iter().try_for_each(|load| database_in_turns(bench, load))?;
    git_in_turns(bench)
}

/// TX-22 by rates, and the small file by the median.
fn turns_claims(section: &Section) -> Vec<Expectation> {
    let system = System::XACT.name;
    let row = |phase: &str, mode: Mode| section.row(&by_way(phase, mode));
    let ratio = |phase: &str, mode: Mode| row(phase, mode)?.ratio_to(row(phase, Mode::Plain)?, system);
    let median = |mode: Mode| row(SMALL_DURABLE, mode)?.latency(system, |latency| latency.median);
    let small = median(Mode::Wrapped).zip(median(Mode::Plain)).map(|(wrapped, plain)| wrapped / plain);
    let says = "one small file, durable, at most 1.3 times as long as write and fsync";
    let mut claims: Vec<Expectation> =
        bound("TX-22", says, small, |times| times <= 1.3).into_iter().collect();
    for (phase, mode, paper) in [
        (LOG, Mode::Wrapped, 1.20),
        (LOG, Mode::Rewritten, 1.55),
        (ORDERING, Mode::Wrapped, 1.38),
        (SQLITE.phase, Mode::Wrapped, 1.14),
        (SQLITE.phase, Mode::Rewritten, 1.31),
        (TPCC.phase, Mode::Wrapped, 1.0),
        (TPCC.phase, Mode::Rewritten, 1.61),
        (MAIL.phase, Mode::Wrapped, 1.0),
        (MAIL.phase, Mode::Rewritten, 2.31),
        (GIT_PHASES[0].0, Mode::Wrapped, 1.0),
        (GIT_PHASES[1].0, Mode::Wrapped, 1.0),
    ] {
        let says = format!("{phase}, {}, {paper} times", mode.name());
        claims.extend(bound("TX-22", &says, ratio(phase, mode), |times| times >= paper));
    }
    claims
}

fn against_the_kernel(section: &Section, load: DriverLoad) -> Vec<Expectation> {
    let ratio = section.row(load.phase).and_then(|row| row.ratio(REWRITTEN, "kernel"));
    let says = format!("{}, rewritten, against kernel ext4, 1 time", load.phase);
    bound("TX-22", &says, ratio, |times| times >= 1.0).into_iter().collect()
}

fn idiom_claims(section: &Section) -> Vec<Expectation> {
    let ratio = |phase: &str, system: &str| section.row(phase).and_then(|row| row.ratio(system, PLAIN));
    let writes = |system: &str| {
        let row = section.row("create/unlink/sync")?;
        row.of(system, |sample| sample.counts.writes as f64)
    };
    let log_bytes = section.row(LOG).and_then(|row| {
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
    ];
    claims.into_iter().flatten().collect()
}

//! Real programs on a real mount, crashed: the daemon's device is simulated and records the writes
//! of SQLite and Git. Then each crash is recovered, and the programs themselves check whether their
//! promises hold. `CRASH_STATES` is the number of crashes of each to try.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use xact::{Volume, VolumeOptions};
use xact_control::client;
use xact_fuse::{MountOptions, serve};
use xact_testkit::device::SimDevice;
use xact_testkit::explorer::{Plan, Recovered, Subject, Summary, report};
use xact_testkit::files::{Format, recover};
use xact_testkit::image::Image;
use xact_testkit::recording::{Recording, Time};
use xact_testkit::tools::{ImageFile, e2fsck, scratch};
use xact_testkit::tree::{Body, Tree};

const FORMAT: Format = Format { options: &["-b", "1024", "-J", "size=1"], size: "16M", pool_bytes: None };

/// A session of a program, in steps that each end with a promise.
trait Program: Sync {
    fn name(&self) -> &'static str;

    /// Prepares the steps; durable afterwards.
    fn prepare(&self, mount: &Path);

    /// Does the steps; `step(n)` is called before and after the n-th, from 1 on.
    fn run(&self, mount: &Path, moment: &mut dyn FnMut(Moment));

    /// The number of steps that the program finds on a copy of the volume's files. Errors: the
    /// program's complaint.
    fn find(&self, files: &Path) -> Result<u64, String>;
}

enum Moment {
    Begun,
    Promised,
}

struct Recorded<P>(P);

/// The times at which each step began and was promised.
#[derive(Default)]
struct Steps {
    begun: Vec<Time>,
    promised: Vec<Time>,
}

impl Steps {
    fn range(&self, time: Time) -> (u64, u64) {
        let before = |list: &[Time]| list.partition_point(|t| *t < time) as u64;
        (before(&self.promised), before(&self.begun))
    }
}

/// The daemon's own options: its threads write at any time.
fn options() -> VolumeOptions {
    VolumeOptions { cache_bytes: 16 << 20, ..VolumeOptions::default() }
}

fn mounted<T>(device: &Arc<SimDevice>, work: impl FnOnce(&Path) -> T) -> Result<T, String> {
    let volume = Volume::open(device.clone(), &options()).map_err(|e| e.to_string())?;
    let dir = scratch();
    let driver =
        serve(volume.clone(), dir.path(), &MountOptions::new(dir.path())).map_err(|e| e.to_string())?;
    let unmounter = driver.unmounter();
    let done = work(dir.path());
    unmounter.unmount().map_err(|e| e.to_string())?;
    driver.wait();
    volume.close().map_err(|e| e.to_string())?;
    Ok(done)
}

impl<P: Program> Subject for Recorded<P> {
    type Run = Steps;
    type Tree = Tree;

    fn name(&self) -> &str {
        self.0.name()
    }

    fn record(&self, _seed: u64) -> Result<(Recording, Steps), String> {
        let device = SimDevice::new(FORMAT.make());
        let mut steps = Steps::default();
        mounted(&device, |mount| {
            self.0.prepare(mount);
            client::sync(mount).expect("sync");
            device.restart_recording();
            self.0.run(mount, &mut |moment| match moment {
                Moment::Begun => steps.begun.push(device.tick()),
                Moment::Promised => steps.promised.push(device.tick()),
            });
        })?;
        Ok((device.recording(), steps))
    }

    fn moment(&self, run: &Steps, time: Time) -> u64 {
        let (promised, begun) = run.range(time);
        promised << 32 | begun
    }

    fn recover(&self, image: &Image) -> Result<Recovered<Tree>, String> {
        recover(image, &VolumeOptions { flusher: false, ..options() })
    }

    fn judge(&self, run: &Steps, time: Time, tree: &Tree) -> Result<(), String> {
        let (promised, begun) = run.range(time);
        let copy = scratch();
        write_out(tree, copy.path()).map_err(|e| format!("copying the tree: {e}"))?;
        let found = self.0.find(copy.path())?;
        if (promised..=begun).contains(&found) {
            return Ok(());
        }
        Err(format!("found {found} steps; {promised} were promised, {begun} begun"))
    }

    fn inspect(&self, image: &Image) -> Result<(), String> {
        let mut file = ImageFile::default();
        file.put(image).map_err(|e| e.to_string())?;
        e2fsck(file.path())
    }

    fn second_opinion(&self, _: &Image, _: &Tree) -> Option<Result<Tree, String>> {
        None
    }

    fn repeats(&self) -> bool {
        false
    }

    fn story(&self, run: &Steps, time: Time) -> String {
        let (promised, begun) = run.range(time);
        format!("{promised} steps promised, {begun} begun")
    }

    fn difference(&self, ours: &Tree, theirs: &Tree) -> String {
        ours.difference(theirs)
    }
}

fn write_out(tree: &Tree, to: &Path) -> std::io::Result<()> {
    let sorted: BTreeMap<_, _> = tree.entries.iter().collect();
    for (path, entry) in sorted {
        let at = to.join(std::ffi::OsStr::from_bytes(path.strip_prefix(b"/").unwrap_or(path)));
        match &entry.body {
            Body::File(bytes) => std::fs::write(at, &**bytes)?,
            Body::Symlink(target) => std::os::unix::fs::symlink(std::ffi::OsStr::from_bytes(target), at)?,
            Body::None => std::fs::create_dir_all(at)?,
        }
    }
    Ok(())
}

fn output(command: &mut Command) -> Output {
    let program = command.get_program().to_owned();
    command.output().unwrap_or_else(|e| panic!("cannot run {program:?}: {e}"))
}

/// Standard output; errors are those of the program.
fn answer(command: &mut Command) -> Result<String, String> {
    let output = output(command);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

/// Transactions of three rows and a counter, in one of SQLite's journal modes.
struct Sqlite {
    name: &'static str,
    journal_mode: &'static str,
}

impl Sqlite {
    const TRANSACTIONS: u64 = 6;

    fn setup(&self) -> String {
        // With FULL, SQLite does not sync the folder after it has deleted its journal, and so only
        // promises that a power failure leaves the database whole.
        format!("PRAGMA journal_mode={}; PRAGMA synchronous=EXTRA;", self.journal_mode)
    }
}

impl Program for Sqlite {
    fn name(&self) -> &'static str {
        self.name
    }

    fn prepare(&self, mount: &Path) {
        let tables =
            "CREATE TABLE rows(step, part, bytes); CREATE TABLE last(step); INSERT INTO last VALUES(0);";
        let sql = format!("{} {tables}", self.setup());
        answer(Command::new("sqlite3").arg(mount.join("db")).arg(sql)).unwrap();
    }

    fn run(&self, mount: &Path, moment: &mut dyn FnMut(Moment)) {
        let mut sqlite = Command::new("sqlite3")
            .arg("-batch")
            .arg(mount.join("db"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("sqlite3 runs");
        let mut input = sqlite.stdin.take().expect("piped");
        let mut lines = BufReader::new(sqlite.stdout.take().expect("piped")).lines();
        let mut wait_for = |wanted: &str| while lines.next().expect("sqlite3 answers").unwrap() != wanted {};
        writeln!(input, "{} SELECT 'ready';", self.setup()).unwrap();
        wait_for("ready");
        for n in 1..=Self::TRANSACTIONS {
            moment(Moment::Begun);
            let rows = (0..3).map(|part| format!("INSERT INTO rows VALUES({n},{part},randomblob(900));"));
            let rows: String = rows.collect();
            let more = format!("UPDATE last SET step={n}; DELETE FROM rows WHERE step={n}-4;");
            writeln!(input, "BEGIN; {rows} {more} COMMIT; SELECT 'done {n}';").unwrap();
            wait_for(&format!("done {n}"));
            moment(Moment::Promised);
        }
        drop(input);
        assert!(sqlite.wait().unwrap().success());
    }

    fn find(&self, files: &Path) -> Result<u64, String> {
        let sql = "PRAGMA integrity_check; SELECT step FROM last; \
                   SELECT count(*) FROM rows; SELECT ifnull(max(step), 0) FROM rows;";
        let text = answer(Command::new("sqlite3").arg(files.join("db")).arg(sql))?;
        let lines: Vec<&str> = text.lines().collect();
        let ["ok", last, rows, newest] = lines[..] else { return Err(format!("the database: {text}")) };
        let number = |text: &str| text.parse::<u64>().map_err(|e| format!("{text}: {e}"));
        let (last, rows, newest) = (number(last)?, number(rows)?, number(newest)?);
        if newest == last && rows == 3 * last.min(4) {
            return Ok(last);
        }
        Err(format!("half a transaction: counter {last}, newest row {newest}, {rows} rows"))
    }
}

/// Commits to a repository, each of two files.
struct Git {
    name: &'static str,
    how: Durable,
}

#[derive(PartialEq, Eq)]
enum Durable {
    /// Git syncs everything that it writes, and a sync of the volume follows.
    Synced,
    /// Each commit in a transaction, in which nothing is synced.
    Transaction,
}

fn git(dir: &Path) -> Command {
    let mut command = Command::new("git");
    command.arg("-C").arg(dir).env("GIT_CONFIG_NOSYSTEM", "1").env("HOME", "/nonexistent");
    for role in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{role}_NAME"), "n").env(format!("GIT_{role}_EMAIL"), "n@example.org");
    }
    command.args(["-c", "safe.directory=*", "-c", "gc.auto=0", "-c", "core.fsync=all"]);
    command
}

impl Git {
    const COMMITS: u64 = 4;

    fn commit(dir: &Path, n: u64) {
        for name in ["one", "two"] {
            std::fs::write(dir.join(name), format!("{name} {n}\n").repeat(200)).unwrap();
        }
        answer(git(dir).args(["add", "one", "two"])).unwrap();
        answer(git(dir).args(["commit", "-q", "-m", &format!("commit {n}")])).unwrap();
    }
}

impl Program for Git {
    fn name(&self) -> &'static str {
        self.name
    }

    fn prepare(&self, mount: &Path) {
        answer(git(mount).args(["init", "-q", "-b", "main", "--template="])).unwrap();
        Git::commit(mount, 0);
    }

    fn run(&self, mount: &Path, moment: &mut dyn FnMut(Moment)) {
        for n in 1..=Self::COMMITS {
            moment(Moment::Begun);
            if self.how == Durable::Synced {
                Git::commit(mount, n);
                client::sync(mount).unwrap();
            } else {
                let transaction = client::Channel::open(mount).unwrap();
                let (_, view) = transaction.begin(0).unwrap();
                Git::commit(&view, n);
                transaction.commit(0).unwrap_or_else(|_| panic!("commit {n} is refused"));
            }
            moment(Moment::Promised);
        }
    }

    fn find(&self, files: &Path) -> Result<u64, String> {
        answer(git(files).args(["fsck", "--full", "--strict", "--no-dangling"]))?;
        let log = answer(git(files).args(["log", "--format=%s"]))?;
        let found = log.lines().count() as u64;
        let expected = (0..found).rev().map(|n| format!("commit {n}"));
        if !expected.eq(log.lines().map(str::to_owned)) {
            return Err(format!("the log is {log:?}"));
        }
        if self.how == Durable::Transaction {
            // The files, the index and the commit are of one moment.
            let status = answer(git(files).args(["status", "--porcelain"]))?;
            if !status.is_empty() {
                return Err(format!("half a commit: {status}"));
            }
        }
        Ok(found - 1)
    }
}

fn explore(program: impl Program, states: u64) {
    let states = std::env::var("CRASH_STATES").ok().and_then(|n| n.parse().ok()).unwrap_or(states);
    println!("{}", Summary::HEADER);
    let plan = Plan { states, nested_one_in: 40, nested_states: 6, inspect_one_in: 10, ..Plan::quick() };
    let summary = report(&Recorded(program), &plan).unwrap();
    assert!(summary.findings.is_empty(), "{:?}", summary.findings);
    assert!(summary.states >= 20, "{summary:?}");
}

#[test]
fn sqlite_with_a_rollback_journal() {
    explore(Sqlite { name: "sqlite-delete", journal_mode: "DELETE" }, 120);
}

#[test]
fn sqlite_with_a_write_ahead_log() {
    explore(Sqlite { name: "sqlite-wal", journal_mode: "WAL" }, 120);
}

#[test]
fn git_commits_that_are_synced() {
    explore(Git { name: "git-synced", how: Durable::Synced }, 60);
}

#[test]
fn git_commits_in_transactions() {
    explore(Git { name: "git-transaction", how: Durable::Transaction }, 60);
}

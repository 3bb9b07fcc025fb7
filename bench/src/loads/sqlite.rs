//! SQLite, unmodified. The driver is Python's, the same for all systems.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::side_by_side::Tally;
use super::{Bench, Rated};
use crate::system::{Server, Source, System};
use crate::volume::{Result, run};

/// Rows of an integer key and 100 characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Into a new table.
    Insert,
    /// Each row once, in random order.
    Update,
    Delete,
}

impl Operation {
    pub const ALL: [Operation; 3] = [Operation::Insert, Operation::Update, Operation::Delete];

    pub fn name(self) -> &'static str {
        match self {
            Operation::Insert => "insert",
            Operation::Update => "update",
            Operation::Delete => "delete",
        }
    }
}

/// The settings of SQLite.
#[derive(Debug, Clone, Copy)]
pub struct Usage {
    /// `PRAGMA journal_mode`.
    pub journal: &'static str,
    /// `PRAGMA synchronous`.
    pub synchronous: &'static str,
    pub rows: u64,
    pub rows_a_transaction: u64,
}

const SCRIPT: &str = r#"
import random, sqlite3, sys, time
operation, synchronous, rows, batch, extension = *sys.argv[1:3], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
locking = sys.argv[6]
if extension:
    loader = sqlite3.connect(":memory:")
    loader.enable_load_extension(True)
    loader.load_extension(extension)
journals, paths = sys.argv[7::2], sys.argv[8::2]
databases = [sqlite3.connect(path, isolation_level=None) for path in paths]
ids = list(range(rows))
if operation == "insert":
    statement, letter = "INSERT INTO t VALUES (:id, :v)", "a"
elif operation == "update":
    # SQLite skips an update to the same value.
    statement, letter = "UPDATE t SET v = :v WHERE id = :id", "b" if locking == "NORMAL" else "c"
else:
    statement, letter = "DELETE FROM t WHERE id = :id", ""
if operation != "insert":
    random.Random(1).shuffle(ids)
for db, journal in zip(databases, journals):
    assert db.execute(f"PRAGMA journal_mode={journal}").fetchone()[0] == journal.lower()
    db.execute(f"PRAGMA synchronous={synchronous}")
    db.execute(f"PRAGMA locking_mode={locking}")
    if operation == "insert":
        db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT)")
def transaction(db, first):
    if batch > 1:
        db.execute("BEGIN")
    for n in ids[first:first + batch]:
        db.execute(statement, {"id": n, "v": letter * 100})
    if batch > 1:
        db.execute("COMMIT")
# Several short ones in a row: each change of the mount wakes threads of the other one, on any CPU.
turn = batch if batch > 1 else 20
taken = [0.0] * len(databases)
for which, start in enumerate(range(0, rows, turn)):
    for k in range(len(databases)):
        k = (k + which) % len(databases)
        started = time.perf_counter()
        for first in range(start, min(start + turn, rows), batch):
            transaction(databases[k], first)
        taken[k] += time.perf_counter() - started
print(*(-(-rows // batch) / seconds for seconds in taken))
for db in databases:
    values = db.execute("SELECT count(*), count(DISTINCT v), max(v) FROM t").fetchone()
    assert values == ((0, 0, None) if operation == "delete" else (rows, 1, letter * 100)), values
    assert db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    db.close()
"#;

/// Runs one kind of operation over all rows of the database at `path`.
pub fn operate(path: &Path, operation: Operation, usage: Usage) -> Result<Rated> {
    operate_in_turns(&[path.to_owned()], operation, usage).map(|rated| rated[0])
}

/// The same on several databases at once, which take turns: of 20 transactions if each has one row,
/// else of one.
pub fn operate_in_turns(paths: &[PathBuf], operation: Operation, usage: Usage) -> Result<Vec<Rated>> {
    let databases: Vec<(PathBuf, &str)> = paths.iter().map(|path| (path.clone(), usage.journal)).collect();
    drive(&databases, None, "NORMAL", operation, usage)
}

/// The same with a journal mode for each database, and the extension, in one of SQLite's locking
/// modes.
fn drive(
    databases: &[(PathBuf, &str)],
    extension: Option<&Path>,
    locking: &str,
    operation: Operation,
    usage: Usage,
) -> Result<Vec<Rated>> {
    // The distribution's Python can load extensions; others may be built without that.
    let python = if extension.is_some() { "/usr/bin/python3" } else { "python3" };
    let mut command = Command::new(python);
    command.args(["-c", SCRIPT]).args([operation.name(), usage.synchronous]);
    command.args([usage.rows, usage.rows_a_transaction].map(|n| n.to_string()));
    command.arg(extension.unwrap_or(Path::new(""))).arg(locking);
    for (path, journal) in databases {
        command.arg(journal).arg(path);
    }
    let output = run(&mut command)?;
    let units = usage.rows.div_ceil(usage.rows_a_transaction) as f64;
    let rated = |word: &str| word.parse().ok().map(|rate| Rated { rate, units });
    let rates: Option<Vec<Rated>> = output.split_whitespace().map(rated).collect();
    rates
        .filter(|rates| rates.len() == databases.len())
        .ok_or_else(|| format!("SQLite's driver says {output:?}"))
}

/// One row a transaction.
pub fn transactions(bench: &mut Bench<'_, '_>) -> Result<()> {
    for (phase, journal, full) in [("SQLite WAL", "WAL", 5000), ("SQLite DELETE", "DELETE", 2000)] {
        let usage = Usage { journal, synchronous: "FULL", rows: bench.count(full), rows_a_transaction: 1 };
        bench.phase_with_rate(phase, "tx", |mount| {
            operate(&mount.dir().join(format!("{journal}.db")), Operation::Insert, usage)
        })?;
    }
    Ok(())
}

/// One row a transaction with the extension on xact, beside SQLite's WAL on the kernel's ext4, in
/// turns of 20.
pub fn extension_in_turns(bench: &mut Bench<'_, '_>) -> Result<()> {
    const IMAGE: System = System::XACT.named("xact on an image", "").given(Source::Image);
    let rows = bench.count(5000);
    let extension = bench.mount.xact().with_file_name("libxact_sqlite.so");
    bench.beside(&[IMAGE, System::KERNEL], 1 << 30, |places| {
        let way = |server| if server == Server::Xact { "DELETE" } else { "WAL" };
        let databases: Vec<(PathBuf, &str)> = places
            .iter()
            .map(|place| (place.mount.dir().join("turns.db"), way(place.system().server)))
            .collect();
        let mut samples = Vec::new();
        const WORK: [(Operation, &str); 4] = [
            (Operation::Insert, "NORMAL"),
            (Operation::Update, "NORMAL"),
            // One process has the database, so SQLite need not look for changes by others.
            (Operation::Update, "EXCLUSIVE"),
            (Operation::Delete, "NORMAL"),
        ];
        for (operation, locking) in WORK {
            let before: Vec<_> = places.iter().map(|place| place.counts()).collect::<Result<_>>()?;
            let usage = Usage { journal: "", synchronous: "FULL", rows, rows_a_transaction: 1 };
            let rated = drive(&databases, Some(&extension), locking, operation, usage)?;
            for ((place, rated), before) in places.iter().zip(rated).zip(before) {
                let mut tally = Tally::default();
                tally.add(rated, place.counts_since(before)?);
                let (system, server) = (place.system().name, place.system().server);
                let how = if server == Server::Xact { "extension" } else { "WAL" };
                let alone = if locking == "EXCLUSIVE" { ", alone" } else { "" };
                samples.push(tally.sample(format!("{}{alone}, {how}: {system}", operation.name()), "tx"));
            }
        }
        Ok(samples)
    })
}

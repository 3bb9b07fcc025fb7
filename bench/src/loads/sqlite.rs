//! SQLite, unmodified. The driver is Python's, the same for all systems.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Bench, Rated};
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
operation, journal, synchronous, rows, batch = *sys.argv[1:4], int(sys.argv[4]), int(sys.argv[5])
databases = [sqlite3.connect(path, isolation_level=None) for path in sys.argv[6:]]
ids = list(range(rows))
if operation == "insert":
    statement, letter = "INSERT INTO t VALUES (:id, :v)", "a"
elif operation == "update":
    statement, letter = "UPDATE t SET v = :v WHERE id = :id", "b"
else:
    statement, letter = "DELETE FROM t WHERE id = :id", ""
if operation != "insert":
    random.Random(1).shuffle(ids)
for db in databases:
    assert db.execute(f"PRAGMA journal_mode={journal}").fetchone()[0] == journal.lower()
    db.execute(f"PRAGMA synchronous={synchronous}")
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
    let mut command = Command::new("python3");
    command.args(["-c", SCRIPT]).args([operation.name(), usage.journal, usage.synchronous]);
    command.args([usage.rows, usage.rows_a_transaction].map(|n| n.to_string())).args(paths);
    let output = run(&mut command)?;
    let units = usage.rows.div_ceil(usage.rows_a_transaction) as f64;
    let rated = |word: &str| word.parse().ok().map(|rate| Rated { rate, units });
    let rates: Option<Vec<Rated>> = output.split_whitespace().map(rated).collect();
    rates.filter(|rates| rates.len() == paths.len()).ok_or_else(|| format!("SQLite's driver says {output:?}"))
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

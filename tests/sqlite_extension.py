"""Programs for tests/suites/sqlite_extension.sh: sqlite_extension.py LIBRARY WHAT [ARGUMENT...]"""

import os
import random
import sqlite3
import subprocess
import sys
import time

LIBRARY = sys.argv[1]


def load():
    """The extension stays loaded when its connection is closed."""
    db = sqlite3.connect(":memory:")
    db.enable_load_extension(True)
    db.load_extension(LIBRARY)
    db.close()


def connect(path, **options):
    return sqlite3.connect(path, timeout=60, isolation_level=None, **options)


def one(db, sql, *values):
    return db.execute(sql, *values).fetchone()[0]


def status(db):
    """Atomic commits, and those with a journal file; None: SQLite's own VFS has the database."""
    row = db.execute("pragma xact_status").fetchone()
    if row is None:
        return None
    words = row[0].replace(",", "").split()
    return int(words[1]), int(words[4])


def sound(db, schema="main"):
    found = db.execute(f"pragma {schema}.integrity_check").fetchall()
    assert found == [("ok",)], found


def basics(folder):
    """Commits, savepoints and rollbacks, each connection's view, and which files exist."""
    db = connect(f"{folder}/a.db")
    db.execute("create table t (id integer primary key, v)")
    assert status(db) == (1, 0), status(db)
    other = connect(f"{folder}/a.db")
    other.execute("pragma busy_timeout = 0")
    db.execute("begin immediate")
    db.execute("insert into t values (1, 'one')")
    assert not os.path.exists(f"{folder}/a.db-journal")
    assert one(other, "select count(*) from t") == 0
    try:
        other.execute("insert into t values (9, 'nine')")
        raise AssertionError("two writers")
    except sqlite3.OperationalError as e:
        assert "locked" in str(e), e
    db.execute("savepoint a")
    db.execute("insert into t values (2, 'two')")
    db.execute("savepoint b")
    db.execute("insert into t values (3, 'three')")
    db.execute("rollback to b")
    db.execute("release a")
    db.execute("commit")
    assert other.execute("select id from t").fetchall() == [(1,), (2,)]
    other.execute("insert into t values (3, 'other')")
    assert one(db, "select v from t where id = 3") == "other"
    # A rollback of what was spilled costs no commit.
    db.execute("pragma cache_size = 5")
    before = status(db)
    db.execute("begin")
    db.executemany("insert into t (v) values (?)", [(str(n) * 500,) for n in range(2000)])
    db.execute("update t set v = 'x' || v")
    assert one(db, "select count(*) from t") == 2003
    db.execute("savepoint c")
    db.execute("delete from t where id % 2")
    db.execute("rollback to c")
    assert one(db, "select count(*) from t where v like 'x%'") == 2003
    # SQLite has written pages, so readers are locked out.
    try:
        other.execute("select count(*) from t")
        raise AssertionError("a reader beside written pages")
    except sqlite3.OperationalError as e:
        assert "locked" in str(e), e
    db.execute("rollback")
    assert one(other, "select count(*) from t") == 3
    assert db.execute("select id from t").fetchall() == [(1,), (2,), (3,)]
    assert status(db) == before, (before, status(db))
    sound(db)
    assert os.listdir(folder).count("a.db-journal") == 0
    # A deleted database takes no commit.
    os.unlink(f"{folder}/a.db")
    for _ in range(2):
        try:
            db.execute("insert into t values (99, 'lost')")
            raise AssertionError("written to a deleted file")
        except sqlite3.OperationalError as e:
            assert "readonly" in str(e), e


def modes(folder):
    """Page sizes, journal modes, levels of synchronous, VACUUM, and what they leave behind."""
    for page in 512, 1024, 4096, 65536:
        for journal in "delete", "truncate", "persist", "memory", "off":
            for level in "off", "normal", "full", "extra":
                path = f"{folder}/{page}-{journal}-{level}.db"
                db = connect(path)
                db.execute(f"pragma page_size = {page}")
                db.execute(f"pragma journal_mode = {journal}")
                db.execute(f"pragma synchronous = {level}")
                if level == "extra":
                    db.execute("pragma locking_mode = exclusive")
                db.execute("pragma cache_size = 5")
                db.execute("create table t (id integer primary key, v)")
                db.execute("begin")
                db.executemany("insert into t (v) values (?)", [(str(n) * 300,) for n in range(100)])
                db.execute("commit")
                db.execute("delete from t where id > 10")
                if journal != "off":
                    db.execute("begin")
                    db.execute("update t set v = 'gone'")
                    db.execute("rollback")
                db.execute("vacuum")
                assert status(db)[1] == 0 and status(db)[0] >= 4, (path, status(db))
                sound(db)
                db.close()
                assert not os.path.exists(path + "-journal")
                assert os.path.getsize(path) < 70 * 300 + 3 * page, (path, os.path.getsize(path))
                # SQLite alone reads the same from the file.
                db = connect(f"file:{path}?vfs=unix", uri=True)
                assert one(db, "select count(*) from t") == 10
                assert one(db, "select v from t where id = 7") == "6" * 300
                db.close()
    path = f"{folder}/changes.db"
    db = connect(path)
    db.execute("create table t (v)")
    for page in 1024, 8192, 4096:
        db.execute(f"pragma page_size = {page}")
        db.execute("insert into t values (?)", ("x" * 20000,))
        db.execute("vacuum")
        assert one(db, "pragma page_size") == page
    for journal in "wal", "delete", "persist", "wal", "truncate":
        assert one(db, f"pragma journal_mode = {journal}") == journal
        db.execute("insert into t values (?)", (journal,))
        assert os.path.exists(path + "-wal") == (journal == "wal")
        sound(db)
    assert one(db, "select count(*) from t") == 8
    assert not os.path.exists(path + "-journal")


def databases(folder, elsewhere):
    """Transactions of several databases, and those of which some are on another file system."""
    db = connect(f"{folder}/a.db")
    db.execute("attach ? as b", (f"{folder}/b.db",))
    for schema in "main", "b":
        db.execute(f"create table {schema}.t (v)")
    before = status(db)
    db.execute("begin")
    for schema in "main", "b":
        db.execute(f"insert into {schema}.t values (1)")
    db.execute("rollback")
    assert status(db) == before
    db.execute("begin")
    for schema in "main", "b":
        db.execute(f"insert into {schema}.t values (2)")
    db.execute("commit")
    assert status(db) == (before[0] + 1, 0)
    db.execute("attach ? as c", (f"{elsewhere}/c.db",))
    db.execute("create table c.t (v)")
    db.execute("begin")
    for schema in "main", "b", "c":
        db.execute(f"insert into {schema}.t values (3)")
    db.execute("commit")
    # With journal files: SQLite's own protocol, since no volume has all three.
    assert status(db) == (before[0] + 1, 1), status(db)
    for schema, count in ("main", 2), ("b", 2), ("c", 1):
        assert one(db, f"select count(*) from {schema}.t") == count
        sound(db, schema)
    # One that is too large for memory takes the others along.
    db.execute("detach c")
    db.execute("attach ? as d", (f"file:{folder}/d.db?xact_memory=100000",))
    db.execute("create table d.t (v)")
    db.execute("begin")
    for schema in "main", "b", "d":
        db.execute(f"insert into {schema}.t values (?)", ("y" * 300000,))
    db.execute("commit")
    for schema, count in ("main", 3), ("b", 3), ("d", 1):
        assert one(db, f"select count(*) from {schema}.t") == count
        sound(db, schema)
    assert not [name for name in os.listdir(folder) if "-" in name], os.listdir(folder)


def big(folder):
    """50 MB in a transaction, and one that is larger than its memory may be."""
    started = time.monotonic()
    db = connect(f"{folder}/a.db")
    db.execute("create table t (id integer primary key, v)")
    db.execute("begin")
    db.executemany("insert into t (v) values (?)", [(bytes([n % 251]) * 100_000,) for n in range(500)])
    db.execute("commit")
    assert status(db) == (2, 0), status(db)
    sound(db)
    db.execute("pragma cache_size = 5")
    db.execute("begin")
    db.execute("update t set v = zeroblob(100000)")
    db.execute("rollback")
    assert one(db, "select count(*) from t where substr(v, 1, 1) = x'05'") == 2
    assert status(db) == (2, 0)
    db.close()
    took = time.monotonic() - started
    db = connect(f"file:{folder}/a.db?xact_memory=1000000", uri=True)
    db.execute("pragma cache_size = 5")
    for end, kept in ("rollback", 500), ("commit", 250):
        db.execute("begin")
        db.execute("delete from t where id % 2")
        assert os.path.exists(f"{folder}/a.db-journal")
        db.execute(end)
        assert one(db, "select count(*) from t") == kept
        assert not os.path.exists(f"{folder}/a.db-journal")
        sound(db)
    assert status(db) == (0, 2), status(db)
    print(f"50 MB in {took:.1f} s")


def tables(db):
    names = db.execute("select name, sql from sqlite_master order by name").fetchall()
    return names, [db.execute(f"select * from {name} order by 1, 2, 3").fetchall() for name, sql in names if sql.startswith("CREATE TABLE")]


def compare(path, seed, steps):
    """Random statements, on a database of the volume and on one in memory: equal results."""
    r = random.Random(seed)
    plain = connect(":memory:")

    def opened():
        db = connect(f"file:{path}?xact_memory={r.choice([50_000, 1 << 28])}", uri=True)
        db.execute(f"pragma cache_size = {r.choice([3, 10, 2000])}")
        db.execute(f"pragma synchronous = {r.choice(['off', 'normal', 'full'])}")
        if r.random() < 0.3:
            db.execute(f"pragma mmap_size = {1 << 26}")
        return db

    db = opened()
    db.execute(f"pragma page_size = {r.choice([512, 1024, 4096, 16384])}")
    db.execute(f"pragma auto_vacuum = {r.choice([0, 1, 2])}")
    inside = False
    for step in range(steps):
        table = f"t{r.randrange(3)}"
        key, text = r.randrange(60), r.choice("abc") * r.choice([1, 50, 700, 6000])
        statement = r.choice([
            f"create table {table} (a integer primary key, b, c)",
            f"create index i{table} on {table} (b)",
            f"drop table {table}" if r.random() < 0.2 else f"select count(*), sum(length(b)) from {table}",
            *[f"insert or replace into {table} values ({key}, '{text}', {step})"] * 4,
            *[f"update {table} set b = '{text}' where a % {r.randrange(1, 7)} = 0"] * 2,
            f"delete from {table} where a > {key}",
            f"insert into {table} select a + 100, b, c from {table} where a < 20",
            f"select * from {table} where b > 'b' order by a",
            *["begin", "commit"] * 2,
            "rollback",
            f"savepoint s{r.randrange(2)}",
            f"rollback to s{r.randrange(2)}",
            f"release s{r.randrange(2)}",
            "local",
        ])
        if statement == "local":
            if inside or db.in_transaction:
                continue
            statement = r.choice(["vacuum", "reopen", "pragma incremental_vacuum(2)"] + [
                f"pragma journal_mode = {mode}" for mode in ("delete", "persist", "truncate", "memory", "wal")
            ])
            if statement == "reopen":
                db.close()
                db = opened()
            else:
                db.execute(statement).fetchall()
            continue
        results = []
        for each in db, plain:
            try:
                results.append(each.execute(statement).fetchall())
            except sqlite3.Error as e:
                results.append(str(e))
        assert results[0] == results[1], (seed, step, statement, results)
        assert db.in_transaction == plain.in_transaction, (seed, step, statement)
    for each in db, plain:
        if each.in_transaction:
            each.execute("commit")
    assert tables(db) == tables(plain), seed
    sound(db)
    db.close()
    db = connect(f"file:{path}?vfs=unix", uri=True)
    assert tables(db) == tables(plain), seed
    sound(db)


def write_rows(folder):
    """Changes rows of two databases, and acknowledges each change: to be killed."""
    db = connect(f"{folder}/a.db")
    db.execute("attach ? as b", (f"{folder}/b.db",))
    n = one(db, "select max(v) from t")
    while True:
        n += 1
        db.execute("begin immediate")
        db.execute("update main.t set v = ?", (n,))
        db.execute("insert into main.log values (?, ?)", (n, "l" * (n % 7 * 900)))
        if n % 3:
            db.execute("update b.t set v = ?", (n,))
        db.execute("commit")
        os.write(1, b"%d\n" % n)


def check_rows(folder, acknowledged):
    """All of what was acknowledged, at most one change more, nothing in part."""
    db = connect(f"{folder}/a.db")
    db.execute("attach ? as b", (f"{folder}/b.db",))
    low, high, rows = db.execute("select min(v), max(v), count(*) from main.t").fetchone()
    assert low == high and rows == 20, (low, high, rows)
    assert acknowledged <= low <= acknowledged + 1, (acknowledged, low)
    assert db.execute("select count(*), max(n), sum(length(x)) from log").fetchone() == (
        low, low, sum(n % 7 * 900 for n in range(1, low + 1)))
    both = low if low % 3 or low == 0 else low - 1
    assert db.execute("select min(v), max(v), count(*) from b.t").fetchone() == (both, both, 20)
    sound(db)
    sound(db, "b")
    names = sorted(name for name in os.listdir(folder) if name != "lost+found")
    assert names == ["a.db", "b.db"], names
    print(low)


def make_rows(folder):
    for name in "a", "b":
        db = connect(f"{folder}/{name}.db")
        db.execute("create table t (id integer primary key, v int, text)")
        db.executemany("insert into t (v, text) values (0, ?)", [("x" * 3000,)] * 20)
        db.execute("create table log (n integer primary key, x)")
        db.close()


def readers(folder):
    """Other processes and threads see each commit whole; the writer is killed again and again."""
    make_rows(folder)
    reader = """
import sqlite3, sys, time
db = sqlite3.connect(sys.argv[1] + "/a.db", timeout=60, isolation_level=None)
reads, until = 0, time.monotonic() + 3
while time.monotonic() < until:
    low, high = db.execute("select min(v), max(v) from t").fetchone()
    assert low == high, (low, high)
    last, = db.execute("select count(*) from log").fetchone()
    assert last >= low, (last, low)
    reads += 1
print(reads)
"""
    # One of them reads by SQLite's own VFS.
    children = [subprocess.Popen([sys.executable, "-c", reader, folder], stdout=subprocess.PIPE)]
    children.append(subprocess.Popen([sys.executable, __file__, LIBRARY, "read", folder], stdout=subprocess.PIPE))
    r, acknowledged = random.Random(5), 0
    while children[0].poll() is None:
        writer = subprocess.Popen([sys.executable, __file__, LIBRARY, "write-rows", folder], stdout=subprocess.PIPE)
        for _ in range(r.randrange(1, 30)):
            acknowledged = int(writer.stdout.readline())
        time.sleep(r.random() / 200)
        writer.kill()
        for line in writer.stdout.read().split():
            acknowledged = int(line)
        writer.wait()
        check_rows(folder, acknowledged)
    for child in children:
        assert child.wait() == 0
        print(int(child.stdout.read()), "reads")


def read(folder):
    reads, until = 0, time.monotonic() + 3
    db = connect(f"{folder}/a.db")
    db.execute(f"pragma mmap_size = {1 << 26}")
    while time.monotonic() < until:
        low, high = db.execute("select min(v), max(v) from t").fetchone()
        assert low == high, (low, high)
        reads += 1
    print(reads)


def full(folder):
    """A commit that finds no space fails, and leaves the database as it was."""
    db = connect(f"{folder}/a.db")
    db.execute("create table t (v)")
    db.execute("insert into t values ('first')")
    with open(f"{folder}/filler", "wb") as filler:
        size = 0
        try:
            while True:
                os.posix_fallocate(filler.fileno(), size, 1 << 20)
                size += 1 << 20
        except OSError:
            os.ftruncate(filler.fileno(), size - (2 << 20))
    for _ in range(2):
        try:
            db.execute("insert into t values (?)", ("x" * (4 << 20),))
            raise AssertionError("it fits")
        except sqlite3.OperationalError as e:
            assert "full" in str(e), e
        assert db.execute("select v from t").fetchall() == [("first",)]
        sound(db)
    assert not os.path.exists(f"{folder}/a.db-journal")
    os.unlink(f"{folder}/filler")
    db.execute("insert into t values (?)", ("x" * (4 << 20),))
    sound(db)
    assert one(db, "select count(*) from t") == 2


def elsewhere(folder):
    """All of SQLite's calls are those of its own VFS, on another file system and in a view."""
    db = connect(f"{folder}/a.db")
    db.execute("create table t (v)")
    assert status(db) is None
    db.execute("begin")
    db.execute("insert into t values (1)")
    assert os.path.exists(f"{folder}/a.db-journal")
    db.execute("commit")
    sound(db)


PROGRAMS = {name.replace("_", "-"): action for name, action in list(globals().items()) if callable(action)}

if __name__ == "__main__":
    if not os.environ.get("WITHOUT_EXTENSION"):
        load()
    what, *arguments = sys.argv[2:]
    PROGRAMS[what](*[int(a) if a.isdecimal() else a for a in arguments])

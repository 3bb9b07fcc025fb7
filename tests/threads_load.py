"""Threads with transactions beside threads with plain files, in one process.

usage: threads_load.py MNT OUTSIDE SECONDS

Eight threads run transactions of the thread and in folders, each of which inserts a row and writes
a file. Eight others write and read files on the volume and elsewhere, use databases there, map
files, fork and start programs. The test succeeds if no call fails, each file reads as it was
written, and rows and files are those of the committed transactions.
"""

import asyncio
import collections
import mmap
import os
import sqlite3
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path

import xact

MNT, OUTSIDE, SECONDS = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
HERE = MNT / "load"
end = time.monotonic() + SECONDS
wrong = collections.Counter()
done = collections.Counter()
committed = collections.defaultdict(set)
lock = threading.Lock()


def note(what):
    with lock:
        wrong[what] += 1
        if sum(wrong.values()) <= 5:
            traceback.print_exc()


def expect(found, wanted, what):
    if found != wanted:
        with lock:
            wrong[f"{what}: {found!r:.60} and not {wanted!r:.60}"] += 1


def rows(path):
    db = sqlite3.connect(path, timeout=60)
    try:
        expect(db.execute("pragma integrity_check").fetchone()[0], "ok", f"integrity of {path}")
        return {name for name, in db.execute("select name from m")}
    finally:
        db.close()


def database(path, mode):
    db = sqlite3.connect(path)
    db.execute(f"pragma journal_mode={mode}")
    db.execute("create table m(name text primary key)")
    db.commit()
    db.close()


def insert(path, name):
    db = sqlite3.connect(path, timeout=60)
    try:
        db.execute("insert into m values(?)", (name,))
        db.commit()
    finally:
        db.close()


# --- transactions ---


def transactions(worker, area, in_folder):
    """Transactions in the same area conflict, in its database."""
    k = 0
    while time.monotonic() < end:
        k += 1
        name = f"{worker}-{k}"

        def body(tx):
            at = Path(tx.path) if in_folder else HERE / area
            insert(at / "a.db", name)
            files.append(open(at / name, "w+"))
            files[-1].write(name)
            files[-1].flush()
            os.symlink(name, at / f"{name}.link")
            if k % 7 == 0:
                raise ZeroDivisionError

        files = []
        tx = xact.folder(HERE / area) if in_folder else xact.transaction(HERE)
        try:
            xact.run(body, tx, tries=1000)
        except ZeroDivisionError:
            expect((HERE / area / name).exists(), False, "a file of an abort")
        except Exception as e:
            note(f"{worker}: {type(e).__name__}: {e!s:.120}")
            continue
        else:
            done["transactions"] += 1
            with lock:
                committed[area].add(name)
            if not in_folder:
                # The descriptor refers to the committed file.
                expect(os.pread(files[-1].fileno(), 100, 0).decode(), name, f"{worker}: a descriptor after the commit")
                (HERE / area / name).write_text(name + "+")
                expect(os.pread(files[-1].fileno(), 100, 0).decode(), name + "+", f"{worker}: a change after the commit")
        finally:
            for file in files:
                try:
                    file.close()
                except OSError:
                    pass


# --- everything else ---


def plain(worker, k, area):
    path = area / f"plain {worker}"
    want = f"{worker} {k}\n" * (k % 50 + 1)
    path.write_text(want)
    expect(path.read_text(), want, worker)


def duplicated(worker, k, area):
    path = area / f"duplicated {worker}"
    fd = os.open(path, os.O_CREAT | os.O_RDWR)
    copy = os.dup(fd)
    os.close(fd)
    os.pwrite(copy, b"%09d" % k, 0)
    expect(os.pread(copy, 9, 0), b"%09d" % k, worker)
    os.close(copy)


def mapped(worker, k, area):
    with open(area / f"mapped {worker}", "w+b") as file:
        file.truncate(4096)
        with mmap.mmap(file.fileno(), 4096) as memory:
            memory[:9] = b"%09d" % k
            memory.flush()
        expect(os.pread(file.fileno(), 9, 0), b"%09d" % k, worker)


def sqlite(worker, k, area):
    if k == 1:
        database(area / f"{worker}.db", "wal" if worker.endswith("1") else "delete")
    insert(area / f"{worker}.db", str(k))
    with lock:
        committed[str(area / f"{worker}.db")].add(str(k))


def program(worker, k, area):
    path = area / f"program {worker}"
    with open(path, "w") as file:
        subprocess.run(["bash", "-c", f"echo {k} >&{file.fileno()}"], pass_fds=[file.fileno()], check=True)
    expect(path.read_text(), f"{k}\n", worker)


def forked(worker, k, area):
    path = area / f"forked {worker}"
    child = os.fork()
    if child == 0:
        fd = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        os.write(fd, b"%d" % k)
        os._exit(0)
    expect(os.waitpid(child, 0)[1], 0, f"{worker}: status")
    expect(path.read_text(), str(k), worker)


def listing(worker, k, area):
    folder = area / f"listed {worker}"
    folder.mkdir(exist_ok=True)
    (folder / str(k)).touch()
    expect([entry.name for entry in os.scandir(folder)], [str(k)], worker)
    (folder / str(k)).unlink()


def others(worker, kinds, area):
    k = 0
    while time.monotonic() < end:
        k += 1
        for kind in kinds:
            try:
                kind(worker, k, area)
                done[kind.__name__] += 1
            except Exception as e:
                note(f"{worker}, {kind.__name__}: {type(e).__name__}: {e!s:.120}")


def with_asyncio():
    def one(name):
        with xact.folder(HERE / "async") as tx:
            Path(tx.path, name).write_text(name)
        with lock:
            committed["async"].add(name)

    async def main():
        k = 0
        while time.monotonic() < end:
            k += 1
            await asyncio.gather(*(asyncio.to_thread(one, f"{k}-{i}") for i in range(3)))
            done["asyncio"] += 3
            for i in range(3):
                if k > 10:
                    os.unlink(HERE / "async" / f"{k - 10}-{i}")
                    committed["async"].discard(f"{k - 10}-{i}")

    try:
        asyncio.run(main())
    except Exception as e:
        note(f"asyncio: {type(e).__name__}: {e!s:.120}")


for area in "async", "delete", "wal", "folder-delete", "folder-wal", "plain":
    (HERE / area).mkdir(parents=True)
    if "-" in area or area in ("delete", "wal"):
        database(HERE / area / "a.db", area.split("-")[-1])
threads = [threading.Thread(target=with_asyncio)]
for i in range(2):
    for area in "delete", "wal":
        threads.append(threading.Thread(target=transactions, args=(f"around-{area}-{i}", area, False)))
        threads.append(threading.Thread(target=transactions, args=(f"in-{area}-{i}", "folder-" + area, True)))
kinds = [plain], [duplicated, mapped], [sqlite, listing], [program, forked]
for i, area in enumerate((HERE / "plain", OUTSIDE)):
    for j, kind in enumerate(kinds):
        threads.append(threading.Thread(target=others, args=(f"other-{j}-{i}", kind, area)))
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for area in "delete", "wal", "folder-delete", "folder-wal":
    expect(rows(HERE / area / "a.db"), committed[area], f"rows of {area}")
    names = {name for name in os.listdir(HERE / area) if not name.startswith("a.db") and not name.endswith(".link")}
    expect(names, committed[area], f"files of {area}")
for path in HERE / "plain", OUTSIDE:
    for db in path.glob("*.db"):
        expect(rows(db), committed[str(db)], f"rows of {db}")
expect(set(os.listdir(HERE / "async")), committed["async"], "files by asyncio")
print(", ".join(f"{count} {what}" for what, count in sorted(done.items())))
for what, count in wrong.most_common(12):
    print(f"WRONG {count} times: {what}", file=sys.stderr)
sys.exit(bool(wrong) or min(done["transactions"], done["asyncio"], done["plain"]) < 10)

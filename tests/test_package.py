"""Tests of the Python package on the mounted volume $MNT."""

import ast
import asyncio
import contextlib
import errno
import os
import sqlite3
import subprocess
import sys
import unittest
from datetime import datetime, timedelta, timezone
from pathlib import Path

import xact

MNT = Path(os.environ["MNT"])
HERE = MNT / "folder"


# A process that was started before, and so is in no transaction. (A thread would make this a
# process with several, in which open files do not join a transaction: see tests/threads_load.py.)
SERVER = """
import ast, sys
from pathlib import Path
for line in sys.stdin:
    path, text = ast.literal_eval(line)
    path = Path(path)
    print(repr(path.write_text(text) if text is not None else path.read_text() if path.exists() else None), flush=True)
"""
server = subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def outside(name, text=None):
    """Reads a file, or writes to it, in a process that is in no transaction."""
    print(repr((str(HERE / name), text)), file=server.stdin, flush=True)
    return ast.literal_eval(server.stdout.readline())


class ThreadTransactions(unittest.TestCase):
    def setUp(self):
        for path in HERE.iterdir():
            path.unlink()

    def test_a_mount_of_a_part(self):
        part = Path.cwd() / "part"
        part.mkdir()
        subprocess.run(["mount", "--bind", HERE, part], check=True)
        try:
            with xact.transaction(part):
                (part / "a").write_text("1")
                self.assertEqual((HERE / "a").read_text(), "1")
                self.assertIsNone(outside("a"))
            self.assertEqual((HERE / "a").read_text(), "1")
        finally:
            subprocess.run(["umount", part], check=True)
            part.rmdir()

    def test_all_or_nothing(self):
        with self.assertRaises(ZeroDivisionError):
            with xact.transaction(MNT):
                (HERE / "a").write_text("1")
                1 / 0
        self.assertFalse((HERE / "a").exists())
        with xact.transaction(MNT) as tx:
            self.assertGreater(tx.id, 0)
            (HERE / "a").write_text("2")
            db = sqlite3.connect(HERE / "b.db")
            db.execute("create table t (x)")
            db.execute("insert into t values (1)")
            db.commit()
            db.close()
            subprocess.run(["sh", "-c", f"cat {HERE}/a >{HERE}/c"], check=True)
            self.assertIsNone(outside("a"))
        self.assertEqual((HERE / "a").read_text() + (HERE / "c").read_text(), "22")
        with contextlib.closing(sqlite3.connect(HERE / "b.db")) as db:
            self.assertEqual(db.execute("select * from t").fetchall(), [(1,)])

    def test_files_that_are_open(self):
        with open(HERE / "a", "w+") as before:
            with xact.transaction(MNT):
                before.write("joined")
                before.flush()
                inside = open(HERE / "b", "w")
                self.assertEqual(outside("a"), "")
            self.assertEqual(outside("a"), "joined")
            inside.write("continues")
            inside.close()
            self.assertEqual(outside("b"), "continues")

    def test_parts(self):
        with xact.transaction(MNT) as tx:
            (HERE / "a").write_text("outer")
            with self.assertRaises(KeyError):
                with tx.savepoint():
                    (HERE / "a").write_text("undone")
                    raise KeyError
            with xact.transaction():
                (HERE / "b").write_text("inner")
            with self.assertRaises(KeyError):
                with xact.transaction():
                    (HERE / "b").write_text("undone")
                    raise KeyError
        self.assertEqual((HERE / "a").read_text() + (HERE / "b").read_text(), "outerinner")

    def test_conflict(self):
        (HERE / "a").write_text("0")

        def other():
            outside("a", "theirs")

        with self.assertRaises(xact.Conflict) as caught:
            with xact.transaction(MNT):
                (HERE / "a").write_text("mine")
                other()
        self.assertEqual((caught.exception.path, caught.exception.conflicting_tx), ("/folder/a", 0))
        self.assertEqual(caught.exception.errno, errno.EAGAIN)
        self.assertIn("cannot commit", str(caught.exception))
        self.assertEqual(caught.exception.filename, "/folder/a")
        self.assertEqual((HERE / "a").read_text(), "theirs")
        tries = []

        def action(tx):
            tries.append(tx.id)
            (HERE / "a").write_text(f"try {len(tries)}")
            if len(tries) < 3:
                other()
            return "result"

        self.assertEqual(xact.run(action, xact.transaction(MNT)), "result")
        self.assertEqual((len(set(tries)), (HERE / "a").read_text()), (3, "try 3"))
        with self.assertRaises(xact.Conflict):
            xact.run(lambda tx: (tries.clear(), action(tx)), xact.transaction(MNT), tries=2)

    def test_conflict_in_the_middle(self):
        (HERE / "a").write_text("0")

        def other():
            outside("a", "theirs")

        tries = []

        def action(tx):
            tries.append(tx.id)
            other() if len(tries) < 3 else None
            with open(HERE / "a", "r+") as file:
                file.write("ours")

        xact.run(action, xact.transaction(MNT))
        self.assertEqual((len(tries), (HERE / "a").read_text()), (3, "oursrs"))
        with self.assertRaises(xact.Conflict) as caught:
            xact.run(lambda tx: (tries.clear(), action(tx)), xact.transaction(MNT), tries=1)
        self.assertEqual(caught.exception.path, "/folder/a")
        self.assertIsInstance(caught.exception.__context__, BlockingIOError)
        # An error of that number from elsewhere is an error like any other.
        with self.assertRaises(BlockingIOError):
            with xact.transaction(MNT):
                raise BlockingIOError(errno.EAGAIN, "of a socket")

    def test_eager(self):
        (HERE / "a").write_text("start")
        with xact.folder(HERE) as first:
            Path(first.path, "a").write_text("first")
            with self.assertRaises(xact.Conflict) as caught:
                with xact.folder(HERE, eager=True) as second:
                    Path(second.path, "a").write_text("second")
            conflict = caught.exception
            self.assertEqual((conflict.path, conflict.conflicting_tx), ("/folder/a", first.id))
            self.assertIsInstance(conflict.__context__, BlockingIOError)
        self.assertEqual((HERE / "a").read_text(), "first")
        run = [os.environ["XACT"], "run", "--at", MNT, "--leave-open", "--", "touch", HERE / "new"]
        subprocess.run(run, check=True, stderr=subprocess.DEVNULL)
        number = xact.transactions(MNT)[0].id
        with self.assertRaises(xact.Conflict) as caught:
            with xact.transaction(MNT, eager=True):
                (HERE / "new").write_text("third")
        conflict = caught.exception
        self.assertEqual((conflict.path, conflict.conflicting_tx), ("/folder/new", number))
        abort = [os.environ["XACT"], "tx", "abort", str(number), "--at", MNT]
        subprocess.run(abort, check=True, stderr=subprocess.DEVNULL)

    def test_ends_early(self):
        with xact.transaction(MNT, ordered=True, snapshot=True) as tx:
            (HERE / "a").write_text("a")
            tx.commit()
            self.assertEqual(outside("a"), "a")
            (HERE / "a").write_text("after")
        with xact.transaction(MNT) as tx:
            (HERE / "a").write_text("never")
            tx.abort()
        self.assertEqual((HERE / "a").read_text(), "after")

    def test_errors_say_what_is_wrong(self):
        with self.assertRaisesRegex(xact.Error, "cannot begin a transaction: .*"):
            xact.transaction("/proc").__enter__()
        deleted = open(HERE / "gone", "w")
        (HERE / "gone").unlink()
        with deleted, self.assertRaisesRegex(xact.Error, "gone .* is a deleted file") as caught:
            xact.transaction(MNT).__enter__()
        self.assertEqual(caught.exception.errno, errno.EBUSY)

    def test_folder(self):
        with xact.folder(HERE) as one, xact.folder(HERE) as two:
            Path(one.path, "a").write_text("1")
            Path(two.path, "b").write_text("2")
            os.close(os.open("c", os.O_CREAT | os.O_WRONLY, dir_fd=two.dir_fd))
            with self.assertRaises(KeyError):
                with two.savepoint():
                    Path(two.path, "b").write_text("undone")
                    raise KeyError
            self.assertEqual(os.listdir(HERE), [])
        self.assertEqual(sorted(os.listdir(HERE)), ["a", "b", "c"])
        self.assertEqual((HERE / "b").read_text(), "2")
        with self.assertRaises(xact.Error):
            xact.folder("/no/such/folder").__enter__()
        with self.assertRaises(xact.Conflict) as caught:
            with xact.folder(HERE) as tx:
                Path(tx.path, "a").write_text("mine")
                (HERE / "a").write_text("theirs")
        self.assertEqual(caught.exception.path, "/folder/a")

    def test_folder_before_and_after(self):
        with xact.transaction(MNT):
            (HERE / "a").write_text("1")
            # The thread's transaction is not that of a folder that was not begun.
            with self.assertRaises(xact.Error):
                xact.folder(HERE).commit()
        with xact.folder(HERE) as tx:
            part = tx.savepoint()
            part.__enter__()
        self.assertEqual(tx.id, 0)
        for call in tx.commit, tx.abort, lambda: part.__exit__(None, None, None):
            with self.assertRaises(xact.Error) as caught:
                call()
            self.assertEqual(caught.exception.errno, errno.EINVAL)
        for call in xact.folder, xact.transaction:
            with self.assertRaisesRegex(ValueError, "null byte"):
                call(str(HERE) + "\0x").__enter__()

    def test_conflict_with_a_transaction(self):
        with self.assertRaises(xact.Conflict) as caught:
            with xact.folder(HERE) as one, xact.folder(HERE) as two:
                Path(one.path, "a").write_text("1")
                Path(two.path, "a").write_text("2")
                first = two.id
        self.assertGreater(first, 0)
        self.assertEqual((caught.exception.conflicting_tx, caught.exception.winner), (first, first))

    def test_savepoint_errors(self):
        with xact.folder(HERE) as tx:
            with self.assertRaisesRegex(xact.Error, "cannot end a savepoint by a release: Invalid arg") as caught:
                with tx.savepoint() as ended:
                    tx._calls("rollback", ended._number)
        self.assertEqual(caught.exception.errno, errno.EINVAL)


class Decorators(unittest.TestCase):
    def setUp(self):
        for path in HERE.iterdir():
            path.unlink()

    def test_each_call_is_a_transaction(self):
        @xact.transaction(MNT)
        def write(name, *, fail=False):
            """Writes a file."""
            (HERE / name).write_text(name)
            self.assertIsNone(outside(name))
            if fail:
                raise KeyError(name)
            return name

        self.assertEqual((write.__name__, write.__doc__), ("write", "Writes a file."))
        self.assertEqual(write("a"), "a")
        with self.assertRaises(KeyError):
            write("b", fail=True)
        self.assertEqual(write("c"), "c")
        self.assertEqual(sorted(os.listdir(HERE)), ["a", "c"])

    def test_calls_at_the_same_time(self):
        @xact.folder(HERE)
        def nested(depth, tx):
            Path(tx.path, str(depth)).write_text("x")
            if depth:
                nested(depth - 1)
            self.assertEqual(sorted(os.listdir(HERE)), [str(number) for number in range(depth)])

        nested(2)
        self.assertEqual(sorted(os.listdir(HERE)), ["0", "1", "2"])

    def test_functions_that_run_after_their_call(self):
        async def task():
            pass

        def numbers():
            yield 1

        for wrong, decorator in (task, xact.transaction(MNT)), (numbers, xact.transaction(MNT)), (numbers, xact.folder(HERE)):
            with self.assertRaises(TypeError):
                decorator(wrong)


class Tasks(unittest.IsolatedAsyncioTestCase):
    """Tasks of asyncio, which share one thread."""

    def setUp(self):
        for path in HERE.iterdir():
            path.unlink()

    async def test_many_at_a_time(self):
        open_now = asyncio.Barrier(5) if hasattr(asyncio, "Barrier") else None

        @xact.folder(HERE)
        async def write(name, tx):
            Path(tx.path, name).write_text(name)
            self.assertEqual(os.listdir(HERE), [])
            if open_now:
                await open_now.wait()
            if name == "2":
                raise KeyError(name)
            return name

        results = await asyncio.gather(*(write(str(n)) for n in range(5)), return_exceptions=True)
        self.assertEqual([type(result) for result in results], [str, str, KeyError, str, str])
        self.assertEqual(sorted(os.listdir(HERE)), ["0", "1", "3", "4"])
        self.assertEqual(xact.transactions(MNT), [])

    async def test_parts_and_conflicts(self):
        async with xact.folder(HERE) as tx:
            with self.assertRaises(KeyError):
                async with tx.savepoint():
                    Path(tx.path, "undone").write_text("x")
                    raise KeyError
            Path(tx.path, "a").write_text("0")
        self.assertEqual(os.listdir(HERE), ["a"])
        tries = []

        async def action(tx):
            tries.append(tx.id)
            number = int(Path(tx.path, "a").read_text())
            if len(tries) < 3:
                outside("a", str(10 * len(tries)))
            Path(tx.path, "a").write_text(str(number + 1))
            return number

        self.assertEqual(await xact.run_async(action, xact.folder(HERE)), 20)
        self.assertEqual((len(tries), outside("a")), (3, "21"))
        tries.clear()
        with self.assertRaises(xact.Conflict) as caught:
            await xact.run_async(action, xact.folder(HERE), tries=1)
        self.assertEqual(caught.exception.path, "/folder/a")

    async def test_a_task_is_cancelled(self):
        started = asyncio.Event()

        async def work():
            async with xact.folder(HERE) as tx:
                Path(tx.path, "a").write_text("x")
                started.set()
                await asyncio.sleep(1000)

        task = asyncio.create_task(work())
        await started.wait()
        task.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await task
        # During the begin, at any of its moments.
        for turns in range(4):
            task = asyncio.create_task(work())
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
        self.assertEqual((os.listdir(HERE), xact.transactions(MNT)), ([], []))

    async def test_a_thread_has_no_tasks(self):
        with self.assertRaises((AttributeError, TypeError)):
            async with xact.transaction(MNT):
                pass


class Lists(unittest.TestCase):
    def test_open_transactions(self):
        self.assertEqual(xact.transactions(MNT), [])
        program = os.environ["XACT"]
        begun = subprocess.run([program, "tx", "begin", "--at", MNT], check=True, capture_output=True, text=True)
        with xact.folder(HERE) as tx:
            left_open, running = xact.transactions(HERE)
            self.assertEqual((left_open.id, left_open.status), (int(begun.stdout), xact.Status.LEFT_OPEN))
            self.assertEqual((left_open.label, left_open.uid), ("xact tx begin", os.getuid()))
            self.assertFalse(left_open.persistent)
            self.assertEqual((running.id, running.status, running.label), (tx.id, xact.Status.RUNNING, ""))
            self.assertLessEqual(running.age, left_open.age)
            self.assertIsNone(running.left)
        subprocess.run([program, "tx", "abort", begun.stdout.strip(), "--at", MNT], check=True)
        self.assertEqual(xact.transactions(MNT), [])

    def test_errors(self):
        with self.assertRaisesRegex(xact.Error, "/proc is not on a mounted xact volume") as caught:
            xact.transactions("/proc")
        self.assertEqual((caught.exception.errno, caught.exception.filename), (errno.ENODEV, "/proc"))
        with xact.transaction(MNT):
            with self.assertRaisesRegex(xact.Error, "cannot be reached from inside a transaction"):
                xact.transactions(MNT)
        with self.assertRaisesRegex(xact.Error, "generations"):
            xact.create_snapshot("one", MNT)


class Snapshots(unittest.TestCase):
    """Snapshots of a volume with generations."""

    def test_create_list_delete(self):
        self.assertEqual(xact.snapshots(MNT), [])
        (HERE / "kept").write_text("first")
        before = datetime.now(timezone.utc) - timedelta(seconds=2)
        xact.create_snapshot("whole", MNT)
        (HERE / "kept").write_text("second")
        xact.create_snapshot("part", HERE, paths=["/folder/kept", Path("folder/kept"), b"folder"])
        whole, part = xact.snapshots(HERE)
        self.assertEqual((whole.name, whole.paths), ("whole", ()))
        self.assertEqual((part.name, part.paths), ("part", ("folder",)))
        self.assertTrue(before <= whole.time <= part.time <= datetime.now(timezone.utc))
        self.assertLess(whole.generation, part.generation)
        self.assertGreater(whole.own_bytes, 0)
        self.assertEqual((MNT / ".xact/snapshots/whole/folder/kept").read_text(), "first")
        xact.delete_snapshot("whole", MNT)
        self.assertEqual([snapshot.name for snapshot in xact.snapshots(MNT)], ["part"])
        xact.delete_snapshot("part", MNT)
        self.assertEqual(xact.snapshots(MNT), [])

    def test_diff_restore_history(self):
        letter = HERE / "letter"
        for path in HERE.iterdir():
            path.unlink()
        letter.write_text("1")
        (HERE / "old").write_text("x")
        xact.create_snapshot("one", MNT)
        xact.create_snapshot("same", MNT)
        letter.write_text("22")
        (HERE / "old").rename(HERE / "new\nname")
        xact.create_snapshot("two", MNT)
        letter.unlink()
        xact.create_snapshot("none", MNT)
        letter.write_text("333")
        kind = xact.ChangeKind
        changes = xact.snapshot_diff("one", "two", MNT)
        self.assertIn(xact.Change(kind.MODIFIED, "/folder/letter", None, 1, 2), changes)
        self.assertIn(xact.Change(kind.RENAMED, "/folder/new\nname", "/folder/old", 1, 1), changes)
        self.assertEqual(xact.snapshot_diff("one", "same", MNT), [])
        deleted = xact.snapshot_diff("two", "none", HERE, paths=["folder/letter"])
        self.assertEqual(deleted, [xact.Change(kind.DELETED, "/folder/letter", None, 2, None)])
        versions = xact.history(letter)
        self.assertEqual([version.snapshots for version in versions], [("one", "same"), ("two",), ()])
        self.assertEqual([Path(version.path).read_text() for version in versions], ["1", "22", "333"])
        self.assertEqual([version.size for version in versions], [1, 2, 3])
        self.assertEqual(versions[-1].path, str(letter))
        xact.restore_snapshot("one", MNT, paths=["folder/letter"])
        self.assertEqual((letter.read_text(), (HERE / "old").exists()), ("1", False))
        xact.restore_snapshot("one", HERE)
        self.assertEqual(sorted(os.listdir(HERE)), ["letter", "old"])
        for call in (
            lambda: xact.snapshot_diff("missing", at=MNT),
            lambda: xact.restore_snapshot("missing", MNT),
            lambda: xact.restore_snapshot("one", MNT, paths=["none"]),
        ):
            with self.assertRaisesRegex(xact.Error, "cannot .*(missing|none)"):
                call()
        with self.assertRaises(TypeError):
            xact.snapshot_diff("one", at=MNT, paths="folder")
        for snapshot in xact.snapshots(MNT):
            xact.delete_snapshot(snapshot.name, MNT)
        for path in HERE.iterdir():
            path.unlink()

    def test_errors(self):
        xact.create_snapshot("one", MNT)
        for text, call in {
            "cannot create snapshot 'one': there is a snapshot 'one' already": lambda: xact.create_snapshot("one", MNT),
            "cannot delete snapshot 'two': there is no snapshot 'two'": lambda: xact.delete_snapshot("two", MNT),
            "at most 100 bytes": lambda: xact.create_snapshot("x" * 101, MNT),
            "/none does not exist": lambda: xact.create_snapshot("two", MNT, paths=["none"]),
            "the root is the whole volume": lambda: xact.create_snapshot("two", MNT, paths=["/"]),
            "has no '..'": lambda: xact.create_snapshot("two", MNT, paths=["folder/.."]),
        }.items():
            with self.assertRaisesRegex(xact.Error, text) as caught:
                call()
            self.assertEqual(caught.exception.errno, errno.EINVAL)
        with self.assertRaises(TypeError):
            xact.create_snapshot("two", MNT, paths="folder")
        with self.assertRaises(ValueError):
            xact.delete_snapshot("one\0x", MNT)
        self.assertEqual([snapshot.name for snapshot in xact.snapshots(MNT)], ["one"])
        with xact.transaction(MNT):
            self.assertEqual([snapshot.name for snapshot in xact.snapshots(MNT)], ["one"])
            for call in xact.create_snapshot, xact.delete_snapshot:
                with self.assertRaisesRegex(xact.Error, "not possible inside a transaction"):
                    call("one", MNT)
        xact.delete_snapshot("one", MNT)


if __name__ == "__main__":
    unittest.main()

"""Transactions on a mounted xact volume.

    import xact

    with xact.transaction("/mnt"):                 # all file calls of this thread, by any path
        Path("/mnt/a").write_text("1")
        sqlite3.connect("/mnt/b.db") ...           # all of it happens, or nothing does

    with xact.folder("/mnt/mail") as tx:           # only what is done below tx.path
        Path(tx.path, "letter").write_text("...")

An exception in the block aborts. The end of the block commits, and raises `Conflict` where somebody else has
changed what was read or written; `run` tries again then. See libxact(3).
"""

import ctypes
import errno
import os
import random
import time
from types import TracebackType
from typing import Callable, Optional, Type, TypeVar, Union

__all__ = ["Conflict", "Error", "Folder", "Savepoint", "Transaction", "folder", "run", "transaction"]

Path = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]
Result = TypeVar("Result")

_SNAPSHOT = 1
_LEAVE_OUTSIDE = 0x10000
_USER_NAMESPACE = 0x20000
_ORDERED = 1
_CONSOLIDATE = 8


class Error(OSError):
    """A transaction could not be begun, or was not committed: nothing of it has happened."""


class Conflict(Error):
    """Others have changed what the transaction read or wrote; another try may succeed.

    path: what it is about, from the volume's root; None where more has changed than is remembered.
    winner: the number of the transaction that came first, 0 for a call outside of any.
    """

    path: Optional[str] = None
    winner: int = 0


def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(os.environ.get("LIBXACT", "libxact.so.0"), use_errno=True)
    text, number, handle, flags = ctypes.c_char_p, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint
    number_out = ctypes.POINTER(number)
    functions = {
        # name: what it returns, and what it takes behind the handle
        "commit": (ctypes.c_int, [flags]),
        "abort": (ctypes.c_int, []),
        "savepoint": (ctypes.c_int, [number_out]),
        "rollback": (ctypes.c_int, [number]),
        "release": (ctypes.c_int, [number]),
        "doomed": (ctypes.c_int, []),
        "id": (number, []),
        "why": (text, []),
        "conflict_path": (text, []),
        "winner": (number, []),
    }
    for name, (result, takes) in functions.items():
        for prefix, first in ("fs_tx_", []), ("xact_tx_", [handle]):
            function = getattr(library, prefix + name)
            function.restype, function.argtypes = result, first + takes
    library.fs_tx_begin.argtypes = [flags]
    library.fs_tx_begin_at.argtypes = [text, flags]
    library.xact_tx_begin.restype, library.xact_tx_begin.argtypes = handle, [text, flags]
    library.xact_tx_dir.argtypes = library.xact_tx_free.argtypes = [handle]
    library.xact_tx_free.restype = None
    return library


_xact = _library()


class _Open:
    """An open transaction: functions of one of the library's two families, and the handle if they take one."""

    def __init__(self, prefix: str, *handle: int) -> None:
        self._prefix, self._handle = prefix, handle

    def __call__(self, name: str, *args: object) -> int:
        return getattr(_xact, self._prefix + name)(*self._handle, *args)

    def check(self, doing: str, name: str, *args: object) -> None:
        if self(name, *args) < 0:
            raise self.error(doing)

    def error(self, doing: str, path: Optional[str] = None) -> Error:
        code = ctypes.get_errno()
        why: Optional[bytes] = self("why")  # type: ignore[assignment]
        said = f"{doing}: {os.fsdecode(why)}" if why else f"{doing}: {os.strerror(code)}"
        if doing != "cannot commit" or code != errno.EAGAIN:
            return Error(code, said, path)
        conflict = Conflict(code, said)
        about: Optional[bytes] = self("conflict_path")  # type: ignore[assignment]
        conflict.path = os.fsdecode(about) if about is not None else None
        conflict.filename = conflict.path
        conflict.winner = self("winner")
        return conflict


class Savepoint:
    """A part of a transaction, for `with`: an exception undoes it alone."""

    def __init__(self, call: _Open) -> None:
        self._call = call
        self._number = ctypes.c_uint64()

    def __enter__(self) -> "Savepoint":
        self._call.check("cannot make a savepoint", "savepoint", ctypes.byref(self._number))
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        end = "release" if kind is None else "rollback"
        self._call.check(f"cannot end a savepoint by a {end}", end, self._number)


class Transaction:
    """All file calls of the thread, from the begin to the end of a `with`."""

    def __init__(self, at: Optional[Path], begin: int, ordered: bool, consolidate: bool) -> None:
        self._at, self._begin = at, begin
        self._commit = _CONSOLIDATE if consolidate else _ORDERED if ordered else 0
        self._call = _Open("fs_tx_")
        self._ended = True

    @property
    def id(self) -> int:
        """Its number, as `xact tx list` has it; 0 under `xact run`."""
        return self._call("id")

    def savepoint(self) -> Savepoint:
        return Savepoint(self._call)

    def abort(self) -> None:
        """Ends it now, and nothing of it has happened; the block may go on."""
        self._end("cannot abort", "abort")

    def commit(self) -> None:
        """Ends it now; the block may go on outside of it."""
        self._end("cannot commit", "commit", self._commit)

    def _end(self, doing: str, name: str, *args: object) -> None:
        self._ended = True
        try:
            self._call.check(doing, name, *args)
        except Error as error:
            # It is open as before: threads that it started still run.
            self._ended = error.errno != errno.EBUSY
            raise

    def _start(self) -> None:
        if self._at is None:
            begun = _xact.fs_tx_begin(self._begin)
        else:
            begun = _xact.fs_tx_begin_at(os.fsencode(self._at), self._begin)
        if begun < 0:
            raise self._call.error("cannot begin a transaction", _text(self._at))

    def __enter__(self) -> "Transaction":
        self._start()
        self._ended = False
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if not self._ended:
            if kind is None:
                self.commit()
            elif isinstance(error, Exception) and self._call("doomed") == 1:
                # A call in the block was told of a conflict, whatever others have made of that (SQLite: an
                # I/O error); the commit says what it is about.
                self.commit()
            else:
                self.abort()


class Folder(Transaction):
    """What is done below `path`, or by `dir_fd`; nothing else of the process changes."""

    path: str
    dir_fd: int

    def _start(self) -> None:
        assert self._at is not None
        handle = _xact.xact_tx_begin(os.fsencode(self._at), self._begin)
        if not handle:
            raise self._call.error("cannot begin a transaction", _text(self._at))
        self._handle = handle
        self._call = _Open("xact_tx_", handle)
        self.dir_fd = _xact.xact_tx_dir(handle)
        self.path = f"/proc/self/fd/{self.dir_fd}"

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        try:
            super().__exit__(kind, error, trace)
        finally:
            _xact.xact_tx_free(self._handle)


def _text(path: Optional[Path]) -> Optional[str]:
    return None if path is None else os.fsdecode(path)


def transaction(
    at: Optional[Path] = None,
    *,
    snapshot: bool = False,
    ordered: bool = False,
    consolidate: bool = False,
    leave_outside: bool = False,
    user_namespace: bool = False,
) -> Transaction:
    """All file calls of this thread, and of what it starts, in a transaction on the volume that `at` lies on (the
    current folder's, or the only one that is mounted). Within a transaction it is a part of that. Calls of other
    threads are not part of it.

    Files that are open on the volume join it in a process with one thread. In a process with several they cannot:
    the begin waits for two seconds until those are closed that were open at its call, and raises Error (EBUSY) if one
    stays. Files that are opened in it stay open after a commit and refer to what was committed; after an abort they are
    stale (ESTALE). Close databases before the commit: locks do not go with them. Tasks of asyncio share their thread: use
    `folder` there.

    snapshot: what was only read is not validated. ordered: the commit returns when it is visible. consolidate: as
    ordered, and contents that later transactions replace are written once, with the last of them. leave_outside: what
    is open on the volume now stays outside of the transaction. user_namespace: a process without the right to make
    a mount namespace enters a user namespace for the rest of its life (with one thread only); else that is an
    Error, and `folder` the way that works.
    """
    flags = (snapshot, _SNAPSHOT), (leave_outside, _LEAVE_OUTSIDE), (user_namespace, _USER_NAMESPACE)
    return Transaction(at, sum(flag for wanted, flag in flags if wanted), ordered, consolidate)


def folder(
    at: Path, *, snapshot: bool = False, ordered: bool = False, consolidate: bool = False
) -> Folder:
    """A transaction on the volume of the folder `at`, of what is done below the result's `path` or `dir_fd`. It needs
    no rights, and any number of them may be open, in any number of threads. Files opened in it are stale (ESTALE) after
    its end: close databases before. Inode numbers in it are others than outside."""
    return Folder(at, _SNAPSHOT if snapshot else 0, ordered, consolidate)


def run(action: Callable[[Transaction], Result], tx: Transaction, tries: int = 10) -> Result:
    """Runs action(tx) in the transaction and commits it; after a conflict all over again, up to `tries` times, with
    pauses of random length between."""
    for attempt in range(1, tries + 1):
        try:
            with tx:
                result = action(tx)
            return result
        except Conflict:
            if attempt == tries:
                raise
            time.sleep(random.random() * 0.01 * 2 ** min(attempt, 7))
    raise ValueError("tries is at least 1")

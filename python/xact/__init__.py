"""Transactions on a mounted xact volume, and its snapshots.

    import xact

    with xact.transaction("/mnt"):                 # all file calls of this thread, by any path
        Path("/mnt/a").write_text("1")
        sqlite3.connect("/mnt/b.db") ...           # all of it happens, or nothing does

    with xact.folder("/mnt/mail") as tx:           # only calls below tx.path
        Path(tx.path, "letter").write_text("...")

    xact.create_snapshot("before the upgrade", "/mnt")
    for snapshot in xact.snapshots("/mnt"):
        print(snapshot.name, snapshot.time)

    @xact.transaction("/mnt")                      # each call of the function is a transaction
    def pay(): ...

    async with xact.folder("/mnt/mail") as tx:     # for tasks of asyncio
        Path(tx.path, "letter").write_text("...")

    for change in xact.snapshot_diff("before the upgrade", at="/mnt"):
        print(change.kind.value, change.path)
    xact.restore_snapshot("before the upgrade", at="/mnt", paths=["etc/app.conf"])

The end of a `with` block commits, and an exception in the block aborts. The commit raises
`Conflict` if others have changed files that the block read or wrote. `run` tries again then.

The package calls the C library libxact, whose manual is libxact(3). It is loaded at the first call,
from the path in the environment variable LIBXACT, or else from this package if it has the library
(a wheel of 'make dist' has it), or else as the system finds it. `snapshot_diff` and
`restore_snapshot` run the command `xact`.
"""

import asyncio
import ctypes
import enum
import errno
import functools
import inspect
import json
import os
import random
import subprocess
import time
from datetime import datetime, timedelta, timezone
from types import TracebackType
from typing import Any, Awaitable, Callable, Dict, Iterable, List, NamedTuple, Optional, Tuple, Type, TypeVar, Union, cast

__version__ = "0.1.0"

__all__ = [
    "Change",
    "ChangeKind",
    "Conflict",
    "Error",
    "Folder",
    "FolderSavepoint",
    "LibraryNotFound",
    "OpenTransaction",
    "Savepoint",
    "Snapshot",
    "Status",
    "Transaction",
    "Version",
    "__version__",
    "create_snapshot",
    "delete_snapshot",
    "folder",
    "history",
    "restore_snapshot",
    "run",
    "run_async",
    "snapshot_diff",
    "snapshots",
    "transaction",
    "transactions",
]

Path = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]
Result = TypeVar("Result")
Function = TypeVar("Function", bound=Callable[..., Any])

_SNAPSHOT = 1
_EAGER = 4
_LEAVE_OUTSIDE = 0x10000
_USER_NAMESPACE = 0x20000
_ORDERED = 1
_CONSOLIDATE = 8
_REASON_CONFLICT = 1
_REASON_TOO_OLD = 7


class Error(OSError):
    """A call failed. `errno` is the error number, `strerror` the reason. Nothing was changed, but
    after EIO a commit or a snapshot may be complete."""


class LibraryNotFound(Error):
    """The C library libxact could not be loaded. The message says how to get it."""


class Conflict(Error):
    """Others have changed files that the transaction read or wrote, or so much that its state at
    the begin is no longer available (errno ESTALE). Another try may succeed.

    path: the file, from the volume's root; None if it is not known.
    conflicting_tx: the number of the transaction that committed first (or, with `eager`, that has
        made the change first and was open), 0 if the change was made outside of any transaction.
    """

    path: Optional[str] = None
    conflicting_tx: int = 0

    @property
    def winner(self) -> int:
        """The former name of `conflicting_tx`."""
        return self.conflicting_tx


class _TxInfo(ctypes.Structure):
    """struct xact_tx_info"""

    _fields_ = [
        ("id", ctypes.c_uint64),
        ("label", ctypes.c_char_p),
        ("age_ms", ctypes.c_uint64),
        ("left_ms", ctypes.c_uint64),
        ("status", ctypes.c_uint32),
        ("uid", ctypes.c_uint32),
        ("persistent", ctypes.c_int),
    ]


class _SnapshotInfo(ctypes.Structure):
    """struct xact_snapshot_info"""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("generation", ctypes.c_uint64),
        ("time", ctypes.c_uint64),
        ("own_bytes", ctypes.c_uint64),
        ("paths", ctypes.POINTER(ctypes.c_char_p)),
    ]


@functools.lru_cache(maxsize=None)
def _library() -> Any:
    """The functions of libxact, loaded at the first call."""
    own = os.path.join(os.path.dirname(__file__), "libxact.so.0")
    name = os.environ.get("LIBXACT") or (own if os.path.exists(own) else "libxact.so.0")
    try:
        library = ctypes.CDLL(name, use_errno=True)
    except OSError as error:
        raise LibraryNotFound(
            errno.ENOENT,
            f"cannot load the C library libxact ({error}). Install xact with 'make install' in its source "
            "tree, or set LIBXACT to the path of libxact.so.0",
        ) from None
    text, number, handle, flags = ctypes.c_char_p, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint
    number_out, status, nothing = ctypes.POINTER(number), ctypes.c_int, None
    functions: Dict[str, Tuple[Any, List[Any]]] = {
        # name: the result type, and the types of the arguments after the handle
        "commit": (status, [flags]),
        "abort": (status, []),
        "savepoint": (status, [number_out]),
        "rollback": (status, [number]),
        "release": (status, [number]),
        "doomed": (status, []),
        "id": (number, []),
    }
    prototypes: Dict[str, Tuple[Any, List[Any]]] = {
        "xact_errmsg": (text, []),
        "xact_reason": (status, []),
        "xact_conflict_path": (text, []),
        "xact_conflicting_tx": (number, []),
        "xact_tx_thread_begin": (status, [text, flags]),
        "xact_tx_begin": (handle, [text, flags]),
        "xact_tx_dir": (status, [handle]),
        "xact_tx_free": (nothing, [handle]),
        "xact_tx_list_new": (handle, [text]),
        "xact_tx_list_next": (ctypes.POINTER(_TxInfo), [handle]),
        "xact_tx_list_free": (nothing, [handle]),
        "xact_snapshot_create": (status, [text, text, ctypes.POINTER(text)]),
        "xact_snapshot_delete": (status, [text, text]),
        "xact_snapshot_list_new": (handle, [text]),
        "xact_snapshot_list_next": (ctypes.POINTER(_SnapshotInfo), [handle]),
        "xact_snapshot_list_free": (nothing, [handle]),
    }
    for name, (result, arguments) in functions.items():
        prototypes["xact_tx_thread_" + name] = result, arguments
        prototypes["xact_tx_" + name] = result, [handle, *arguments]
    for name, (result, arguments) in prototypes.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            if not hasattr(library, "xact_tx_begin"):
                raise LibraryNotFound(
                    errno.ENOSYS,
                    f"{library._name} is not the C library libxact. Set LIBXACT to the path of libxact.so.0, or unset it",
                ) from None
            raise LibraryNotFound(
                errno.ENOSYS,
                f"{library._name} has no {name}: it is older than this package. Install both from one version",
            ) from None
        function.restype, function.argtypes = result, arguments
    return library


def _error(doing: str, path: Optional[Path] = None) -> Error:
    """The failure of the last call of this thread, as an exception."""
    code = ctypes.get_errno()
    reason = _library().xact_errmsg()
    message = f"{doing}: {os.fsdecode(reason) if reason else os.strerror(code)}"
    if doing != "cannot commit" or _library().xact_reason() not in (_REASON_CONFLICT, _REASON_TOO_OLD):
        return Error(code, message, _text(path))
    conflict = Conflict(code, message)
    at = _library().xact_conflict_path()
    conflict.path = conflict.filename = os.fsdecode(at) if at is not None else None
    conflict.conflicting_tx = _library().xact_conflicting_tx()
    return conflict


class _Calls:
    """The functions for one open transaction: those of the thread, or those with a handle."""

    def __init__(self, prefix: str, *handle: Optional[int]) -> None:
        self._prefix, self._handle = prefix, handle

    def __call__(self, name: str, *args: object) -> int:
        function: Callable[..., int] = getattr(_library(), self._prefix + name)
        return function(*self._handle, *args)

    def end(self) -> None:
        """Frees the handle. Later calls fail with EINVAL, those of savepoints too."""
        handle, self._handle = self._handle, (None,)
        _library().xact_tx_free(*handle)

    def check(self, doing: str, name: str, *args: object) -> None:
        if self(name, *args) < 0:
            raise _error(doing)


class Savepoint:
    """A part of a transaction, for `with`. An exception in the block undoes this part alone."""

    def __init__(self, calls: _Calls) -> None:
        self._calls = calls
        self._number = ctypes.c_uint64()

    def __enter__(self) -> "Savepoint":
        self._calls.check("cannot make a savepoint", "savepoint", ctypes.byref(self._number))
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        end = "release" if kind is None else "rollback"
        self._calls.check(f"cannot end a savepoint by a {end}", end, self._number)


async def _in_thread(call: Callable[[], Result], undo: Optional[Callable[[], object]] = None) -> Result:
    """Makes a call that blocks in another thread. If the task is cancelled, the call still ends
    first, because nothing can interrupt it; then `undo` takes back what it did."""
    job = asyncio.ensure_future(asyncio.to_thread(call))
    try:
        return await asyncio.shield(job)
    except asyncio.CancelledError:
        await asyncio.wait([job])
        if undo is not None and job.exception() is None:
            undo()
        raise


class FolderSavepoint(Savepoint):
    """A part of the transaction of a folder, for `with` and `async with`."""

    async def __aenter__(self) -> "FolderSavepoint":
        await _in_thread(self.__enter__)
        return self

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        await _in_thread(lambda: self.__exit__(kind, error, trace))


class Transaction:
    """A transaction of the thread, for `with`, or a decorator. See `transaction`."""

    def __init__(self, at: Optional[Path], begin: int, ordered: bool, consolidate: bool) -> None:
        self._arguments = at, begin, ordered, consolidate
        self._at, self._begin = at, begin
        self._commit = _CONSOLIDATE if consolidate else _ORDERED if ordered else 0
        self._calls = _Calls("xact_tx_thread_")
        self._ended = True

    @property
    def id(self) -> int:
        """The number of the transaction, as in `xact tx list`; 0 under `xact run`."""
        return self._calls("id")

    def savepoint(self) -> Savepoint:
        """A part of this transaction that can fail on its own: `with tx.savepoint(): ...`"""
        return Savepoint(self._calls)

    def abort(self) -> None:
        """Ends the transaction now and discards its changes. The block may continue after it."""
        self._end("cannot abort", "abort")

    def commit(self) -> None:
        """Ends the transaction now with a commit. The block may continue after it."""
        self._end("cannot commit", "commit", self._commit)

    def __call__(self, function: Function) -> Function:
        """The function, with a transaction of its own around each call."""
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError("a generator runs after its call, when the transaction has ended")
        if inspect.iscoroutinefunction(function):
            raise TypeError("the tasks of a thread share its transactions: use xact.folder for this function")

        @functools.wraps(function)
        def call(*args: Any, **named: Any) -> Any:
            with type(self)(*self._arguments):
                return function(*args, **named)

        return cast(Function, call)

    def _end(self, doing: str, name: str, *args: object) -> None:
        self._ended = True
        try:
            self._calls.check(doing, name, *args)
        except Error as error:
            # It is open as before: threads that it started still run.
            self._ended = error.errno != errno.EBUSY
            raise

    def _start(self) -> None:
        if _library().xact_tx_thread_begin(_bytes(self._at), self._begin) < 0:
            raise _error("cannot begin a transaction", self._at)

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
            elif isinstance(error, Exception) and self._calls("doomed") == 1:
                # A call in the block met a conflict, which a library may report as something else
                # (SQLite: an I/O error). The commit fails with the conflict and its path.
                self.commit()
            else:
                self.abort()


class Folder(Transaction):
    """A transaction of the calls below `path`, or by `dir_fd`, for `with`, `async with`, or a
    decorator. See `folder`."""

    path: str
    dir_fd: int

    def __init__(self, at: Optional[Path], begin: int, ordered: bool, consolidate: bool) -> None:
        super().__init__(at, begin, ordered, consolidate)
        # Before the begin there is no handle, and the thread's own transaction is another one.
        self._calls = _Calls("xact_tx_", None)

    def _start(self) -> None:
        handle = _library().xact_tx_begin(_bytes(self._at), self._begin)
        if not handle:
            raise _error("cannot begin a transaction", self._at)
        self._calls = _Calls("xact_tx_", handle)
        self.dir_fd = _library().xact_tx_dir(handle)
        self.path = f"/proc/self/fd/{self.dir_fd}"

    def __enter__(self) -> "Folder":
        super().__enter__()
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        try:
            super().__exit__(kind, error, trace)
        finally:
            self._calls.end()

    async def __aenter__(self) -> "Folder":
        return await _in_thread(self.__enter__, self._drop)

    def _drop(self) -> None:
        """Aborts without a report, for a task that was cancelled during the begin."""
        self._calls("abort")
        self._calls.end()

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        await _in_thread(lambda: self.__exit__(kind, error, trace))

    def savepoint(self) -> FolderSavepoint:
        """A part of this transaction that can fail on its own: `with tx.savepoint(): ...`"""
        return FolderSavepoint(self._calls)

    def __call__(self, function: Function) -> Function:
        """The function, which may be a coroutine, with a transaction of its own around each call.
        It takes the transaction as the argument named `tx`."""
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError("a generator runs after its call, when the transaction has ended")

        @functools.wraps(function)
        def call(*args: Any, **named: Any) -> Any:
            with type(self)(*self._arguments) as tx:
                return function(*args, tx=tx, **named)

        @functools.wraps(function)
        async def call_async(*args: Any, **named: Any) -> Any:
            async with type(self)(*self._arguments) as tx:
                return await function(*args, tx=tx, **named)

        return cast(Function, call_async if inspect.iscoroutinefunction(function) else call)


def _text(path: Optional[Path]) -> Optional[str]:
    return None if path is None else os.fsdecode(path)


def _bytes(text: Optional[Path]) -> Optional[bytes]:
    """An argument of C, which would end at a null byte."""
    encoded = None if text is None else os.fsencode(text)
    if encoded is not None and b"\0" in encoded:
        raise ValueError("embedded null byte")
    return encoded


def _begin_flags(snapshot: bool, eager: bool) -> int:
    return (_SNAPSHOT if snapshot else 0) | (_EAGER if eager else 0)


def transaction(
    at: Optional[Path] = None,
    *,
    snapshot: bool = False,
    eager: bool = False,
    ordered: bool = False,
    consolidate: bool = False,
    leave_outside: bool = False,
    user_namespace: bool = False,
) -> Transaction:
    """Puts all file calls of this thread into a transaction, and those of the threads and processes
    that it starts. Calls of other threads are not part of it. Inside a transaction, it is a part of
    that one.

    In a process with one thread, files that are open on the volume join the transaction. In a
    process with several threads they cannot: the begin waits up to two seconds for files that are
    open when it is called, and raises Error (EBUSY) if one stays open.

    Files that are opened in the transaction stay open after a commit and refer to the committed
    files. After an abort they are stale (ESTALE). Close databases before the commit, because locks
    are lost. Tasks of asyncio share their thread: use `folder` for them. As a decorator, it puts a
    new transaction around each call of the function.

    at: a path on the volume; None is the volume of the current folder, or else the only mounted
        one.
    snapshot: files that were only read are not validated by the commit.
    eager: a call that changes what another open transaction has changed before fails at once with
        EAGAIN, and the end raises Conflict. Otherwise the first to commit wins.
    ordered: the commit returns when the changes are visible. They become durable later, in order.
    consolidate: as ordered, for contents that later transactions replace: only the contents of the
        last one are written.
    leave_outside: files that are open on the volume now stay outside of the transaction.
    user_namespace: if the process has no privilege to make a mount namespace, it enters a user
        namespace for the rest of its life. It must have one thread. Otherwise a missing privilege
        is an Error; `folder` needs none.
    """
    begin = _begin_flags(snapshot, eager)
    flags = (leave_outside, _LEAVE_OUTSIDE), (user_namespace, _USER_NAMESPACE)
    return Transaction(at, begin + sum(flag for wanted, flag in flags if wanted), ordered, consolidate)


def folder(
    at: Path,
    *,
    snapshot: bool = False,
    eager: bool = False,
    ordered: bool = False,
    consolidate: bool = False,
) -> Folder:
    """Begins a transaction on the volume of the folder `at`. The calls below the result's `path`,
    or with its `dir_fd`, are part of it. It needs no privilege, and any number of them may be open
    in any number of threads.

    Files opened in it are stale (ESTALE) after its end: close databases before. Inode numbers in it
    differ from those outside. snapshot, eager, ordered, consolidate: as for `transaction`.

    `async with` begins and ends it in another thread, so that other tasks run. A task
    that is cancelled during the commit waits for its end. As a decorator, also of a coroutine, it
    gives the function its transaction as the argument `tx`.
    """
    return Folder(at, _begin_flags(snapshot, eager), ordered, consolidate)


def run(action: Callable[[Any], Result], tx: Transaction, tries: int = 10) -> Result:
    """Runs `action(tx)` in the transaction, commits it, and returns the result of the action. After
    a conflict it runs all of it again, up to `tries` times, with pauses of random length."""
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


async def run_async(action: Callable[[Folder], Awaitable[Result]], tx: Folder, tries: int = 10) -> Result:
    """As `run`, for a coroutine in the transaction of a folder."""
    for attempt in range(1, tries + 1):
        try:
            async with tx:
                result = await action(tx)
            return result
        except Conflict:
            if attempt == tries:
                raise
            await asyncio.sleep(random.random() * 0.01 * 2 ** min(attempt, 7))
    raise ValueError("tries is at least 1")


class Status(enum.Enum):
    """The state of an open transaction."""

    RUNNING = 1
    """It belongs to a program and ends with it."""
    LEFT_OPEN = 2
    """It stays open until it is committed or aborted (`xact tx`), or its time has passed."""


class OpenTransaction(NamedTuple):
    """A transaction in the list of `transactions`."""

    id: int
    """Its number, as in `xact tx list`."""
    status: Status
    label: str
    """A description, such as the command that ran in it."""
    uid: int
    """Its owner."""
    age: timedelta
    """The time since its begin."""
    left: Optional[timedelta]
    """The time until it is aborted; None for never."""
    persistent: bool
    """Whether it is also stored on the volume, and survives an unmount."""


class Snapshot(NamedTuple):
    """A snapshot in the list of `snapshots`."""

    name: str
    time: datetime
    """The time when it was made."""
    paths: Tuple[str, ...]
    """The files and folders that it keeps, relative to the root; empty for the whole volume."""
    own_bytes: int
    """The space that deleting it alone would free."""
    generation: int
    """The number of the generation that it keeps."""


def _list(kind: str, doing: str, at: Optional[Path]) -> List[Any]:
    """Copies of the structs of a list of the library, whose strings end with the list."""
    library = _library()
    new, following, free = (getattr(library, f"xact_{kind}_list_{name}") for name in ("new", "next", "free"))
    convert: Callable[[Any], Any] = _open_transaction if kind == "tx" else _snapshot
    handle = new(_bytes(at))
    if not handle:
        raise _error(doing, at)
    try:
        return [convert(info.contents) for info in iter(lambda: following(handle) or None, None)]
    finally:
        free(handle)


def _open_transaction(info: _TxInfo) -> OpenTransaction:
    return OpenTransaction(
        id=info.id,
        status=Status(info.status),
        label=os.fsdecode(info.label),
        uid=info.uid,
        age=timedelta(milliseconds=info.age_ms),
        left=timedelta(milliseconds=info.left_ms) if info.left_ms else None,
        persistent=bool(info.persistent),
    )


def _snapshot(info: _SnapshotInfo) -> Snapshot:
    paths: List[str] = []
    while info.paths and info.paths[len(paths)] is not None:
        paths.append(os.fsdecode(info.paths[len(paths)]))
    return Snapshot(
        name=os.fsdecode(info.name),
        time=datetime.fromtimestamp(info.time, timezone.utc),
        paths=tuple(paths),
        own_bytes=info.own_bytes,
        generation=info.generation,
    )


def transactions(at: Optional[Path] = None) -> List[OpenTransaction]:
    """The open transactions of a volume, by number: those of this user, and all of them for root.

    at: a path on the volume; None is the volume of the current folder, or else the only mounted
        one.
    Raises Error (EINVAL) inside a transaction, from which others cannot be reached.
    """
    return _list("tx", "cannot list the transactions", at)


def snapshots(at: Optional[Path] = None) -> List[Snapshot]:
    """The snapshots of a volume, from the oldest on; for root and the user who mounted the volume.

    at: as for `transactions`.
    """
    return _list("snapshot", "cannot list the snapshots", at)


def create_snapshot(name: str, at: Optional[Path] = None, *, paths: Iterable[Path] = ()) -> None:
    """Creates a snapshot of a volume with generations; for root and the user who mounted it.

    name: up to 100 bytes.
    at: as for `transactions`.
    paths: files and folders from the volume's root, for a snapshot of these alone.
    Raises Error inside a transaction, because a snapshot takes effect at once.
    """
    chosen = [_bytes(path) for path in _several(paths)]
    array = (ctypes.c_char_p * (len(chosen) + 1))(*chosen, None) if chosen else None
    if _library().xact_snapshot_create(_bytes(at), _bytes(name), array) < 0:
        raise _error(f"cannot create snapshot '{name}'", at)


def delete_snapshot(name: str, at: Optional[Path] = None) -> None:
    """Deletes a snapshot, with the arguments of `create_snapshot`."""
    if _library().xact_snapshot_delete(_bytes(at), _bytes(name)) < 0:
        raise _error(f"cannot delete snapshot '{name}'", at)


class ChangeKind(enum.Enum):
    """The kind of a difference between two states of a path."""

    ADDED = "added"
    DELETED = "deleted"
    MODIFIED = "modified"
    RENAMED = "renamed"
    ATTRIBUTES = "attributes"
    """Owner, group, mode or other attributes."""


class Change(NamedTuple):
    """A difference in the list of `snapshot_diff`."""

    kind: ChangeKind
    path: str
    """From the volume's root; of a renamed file, the new path."""
    source: Optional[str]
    """The old path of a renamed file."""
    old_size: Optional[int]
    """The size in the older state; None if the file did not exist."""
    new_size: Optional[int]


def _command(doing: str, *words: Union[str, bytes]) -> bytes:
    """The output of the command `xact`. It is the one that the environment variable XACT names, or
    else the first in PATH."""
    program = os.environ.get("XACT") or "xact"
    try:
        ended = subprocess.run([program, *words], stdin=subprocess.DEVNULL, capture_output=True)
    except FileNotFoundError:
        raise Error(errno.ENOENT, f"{doing}: the command {program} is not installed", program) from None
    if ended.returncode == 0:
        return ended.stdout
    said = ended.stderr.decode(errors="replace").strip()
    said = said[len("error: ") :] if said.startswith("error: ") else said
    conflict = ended.returncode == 75
    raise (Conflict if conflict else Error)(errno.EAGAIN if conflict else errno.EINVAL, f"{doing}: {said}")


def snapshot_diff(
    old: str, new: Optional[str] = None, at: Optional[Path] = None, *, paths: Iterable[Path] = ()
) -> List[Change]:
    """The changes between two snapshots, or since one. The cost depends on the number of changes.

    new: the newer snapshot; None is the current state of the volume.
    at: the folder that the volume is mounted on; None is the mount of the current folder.
    paths: files and folders, from the volume's root or on the mount; empty for all.
    """
    words = _volume_words(at, old, *([] if new is None else [new]))
    chosen = [b"--path=" + os.fsencode(path) for path in _several(paths)]
    printed = _command("cannot compare snapshots", "snapshot", "diff", "--json", *chosen, "--", *words)
    return [
        Change(
            kind=ChangeKind(change["change"]),
            path=change["path"],
            source=change["from"],
            old_size=change["old"] and change["old"]["size"],
            new_size=change["new"] and change["new"]["size"],
        )
        for change in json.loads(printed)
    ]


def restore_snapshot(name: str, at: Optional[Path] = None, *, paths: Iterable[Path] = ()) -> None:
    """Restores the volume from a snapshot, or some of its files and folders, in one transaction.

    at, paths: as for `snapshot_diff`.
    Raises Conflict if others change the same files during it.
    """
    words = _volume_words(at, name, *_several(paths))
    _command(f"cannot restore snapshot '{name}'", "snapshot", "restore", "--quiet", "--", *words)


class Version(NamedTuple):
    """A state of a file in the list of `history`."""

    snapshots: Tuple[str, ...]
    """The snapshots that have this state, from the oldest on; empty for the current state if no
    snapshot has it."""
    time: datetime
    """The modification time of the file."""
    size: int
    path: str
    """The file in this state, to read: in the oldest of these snapshots, or the file itself."""


def history(path: Path) -> List[Version]:
    """The states of a file on a mount that its snapshots have, and the current one, from the oldest
    on. States are distinguished by size and modification time. A file that is missing in a snapshot
    has no state there; of a renamed file, only those under this name are listed.
    """
    file = os.path.join(os.path.realpath(os.path.dirname(os.fsdecode(path))), os.path.basename(os.fsdecode(path)))
    root = _mount(file)
    inside = os.path.relpath(file, root)
    states = [
        (snapshot.name, os.path.join(root, ".xact", "snapshots", snapshot.name, inside)) for snapshot in snapshots(root)
    ]
    found: List[Version] = []
    last: Optional[Tuple[int, int, int]] = None
    for name, place in [*states, ("", file)]:
        try:
            stat = os.lstat(place)
        except (FileNotFoundError, NotADirectoryError):
            last = None
            continue
        state = (stat.st_mode, stat.st_mtime_ns, stat.st_size)
        if state == last:
            found[-1] = found[-1]._replace(snapshots=found[-1].snapshots + ((name,) if name else ()))
        else:
            time_of_it = datetime.fromtimestamp(stat.st_mtime, timezone.utc)
            found.append(Version((name,) if name else (), time_of_it, stat.st_size, place))
        last = state
    return found


def _mount(path: str) -> str:
    """The folder that the volume of a path is mounted on."""
    at = os.path.realpath(path)
    while not os.path.ismount(at):
        at = os.path.dirname(at)
    return at


def _volume_words(at: Optional[Path], *words: Path) -> List[bytes]:
    return [_bytes(word) or b"" for word in (_mount(os.fsdecode(at) if at is not None else "."), *words)]


def _several(paths: Iterable[Path]) -> List[Path]:
    if isinstance(paths, (str, bytes)):
        raise TypeError("paths is a list of paths")
    return list(paths)

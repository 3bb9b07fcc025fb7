#!/usr/bin/env python3
"""Attacks on a mount by one user, and the calls of another user beside them.

attack.py worst MNT FOLDER SECONDS [NAME…]
    As an ordinary user: run all attacks, or those named, each in its own process. They use up the
    daemon's memory, descriptors, threads and time. FOLDER belongs to that user.
attack.py calls MNT FOLDER SECONDS
    As an ordinary user: make small calls, one after the other. Prints the rate of each kind, and
    fails if a call fails.
attack.py rare MNT SECONDS
    Look up an absent name every 0.3 ms.
attack.py spin SECONDS
    Compute, for comparison.
"""

import collections
import errno
import fcntl
import json
import os
import random
import signal
import struct
import sys
import threading
import time


def ioc(direction, number, size):
    return direction << 30 | size << 16 | 0xEA << 8 | number


O_TMPFILE = 0o20200000


class Channel:
    def __init__(self, mount):
        self.mount = mount
        self.fd = os.open(mount + "/.xact", O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)

    def begin(self, flags=0):
        buffer = bytearray(struct.pack("IIQ", flags, 0, 0))
        fcntl.ioctl(self.fd, ioc(3, 1, 16), buffer, True)
        self.id = struct.unpack("IIQ", buffer)[2]
        return f"{self.mount}/.xact/tx/{self.id}/root"

    def commit(self):
        fcntl.ioctl(self.fd, ioc(3, 2, 4376), bytearray(4376), True)

    def abort(self):
        fcntl.ioctl(self.fd, ioc(0, 3, 0))

    def select(self, path):
        fcntl.ioctl(self.fd, ioc(1, 6, 4104), struct.pack("II4096s", len(path), 0, path))

    def keep(self, persist=False):
        fcntl.ioctl(self.fd, ioc(1, 8, 264), struct.pack("IHH256s", 0, 1, int(persist), b"x"))

    def savepoint(self):
        buffer = bytearray(8)
        fcntl.ioctl(self.fd, ioc(2, 13, 8), buffer, True)
        return struct.unpack("Q", buffer)[0]

    def diff(self, by_file=False):
        buffer = bytearray(struct.pack("QQII", self.id, 0, 0, 0) + bytes(15360))
        fcntl.ioctl(self.fd, ioc(3, 16 if by_file else 11, len(buffer)), buffer, True)

    def close(self):
        os.close(self.fd)


# The errors that a user at a limit may get.
REFUSED = {
    errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EDQUOT, errno.EAGAIN, errno.ENOSPC, errno.EBUSY, errno.ESTALE,
    errno.EINVAL, errno.ENOENT, errno.EEXIST, errno.EIO, errno.ENOTTY,
}


def forever(step):
    """Repeats the step without end. Only an error that is not in `REFUSED` ends it."""
    while True:
        try:
            step()
        except OSError as error:
            if error.errno not in REFUSED:
                raise
            if error.errno == errno.EIO:
                print("EIO in", step.__name__, flush=True)
            time.sleep(0.001)


def selections(mount, own):
    channel = Channel(mount)
    forever(lambda: channel.select(os.urandom(2048) * 2))


def deep_differences(mount, own):
    channel = Channel(mount)
    folder = os.open(channel.begin() + own, os.O_RDONLY)
    try:
        for _ in range(3000):
            os.mkdir("d", dir_fd=folder)
            deeper = os.open("d", os.O_RDONLY, dir_fd=folder)
            os.close(folder)
            folder = deeper
    except OSError as error:
        assert error.errno in REFUSED, error
    for _ in range(24):
        threading.Thread(target=forever, args=(lambda: channel.diff(random.random() < 0.3),), daemon=True).start()
    # Calls in the same transaction wait for the lock that the lists hold.
    forever(lambda: os.listdir(folder))


def absent_names(mount, own):
    channel = Channel(mount)
    view, count = channel.begin(), 0

    def step():
        nonlocal count
        count += 1
        try:
            os.stat(f"{view}/{count:0240d}")
        except FileNotFoundError:
            pass

    forever(step)


def absent_names_outside(mount, own):
    def step():
        try:
            os.stat(f"{mount}/{random.random()}")
        except FileNotFoundError:
            pass

    forever(step)


def many_files_inside(mount, own):
    channel = Channel(mount)
    view, count = channel.begin() + own, 0

    def step():
        nonlocal count
        count += 1
        fd = os.open(f"{view}/{count:0200d}", os.O_CREAT | os.O_WRONLY)
        try:
            os.setxattr(fd, "user.a", b"v" * 900)
        finally:
            os.close(fd)

    forever(step)


def contents_inside(mount, own):
    """Keeps many transactions open, each with the contents of a file in memory."""
    held = []

    def step():
        channel = Channel(mount)
        view = channel.begin()
        held.append(channel)
        fd = os.open(f"{view}{own}/contents", os.O_CREAT | os.O_WRONLY)
        try:
            for _ in range(3):
                os.write(fd, os.urandom(4096) * 256)
        finally:
            os.close(fd)
        if len(held) > 30:
            held.pop(0).close()

    forever(step)


def savepoints(mount, own):
    channel = Channel(mount)
    view = channel.begin() + own
    for n in range(200):
        os.close(os.open(f"{view}/s{n}", os.O_CREAT | os.O_WRONLY))
    forever(channel.savepoint)


def savepoints_of_processes(mount, own):
    channel = Channel(mount)
    channel.begin()

    def step():
        child = os.fork()
        if child == 0:
            try:
                channel.savepoint()
                os.write(os.open(f"{mount}/.xact/tx/{channel.id}/root{own}/p", os.O_CREAT | os.O_WRONLY), b"x")
                time.sleep(random.random())
            finally:
                os._exit(0)
        time.sleep(0.005)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass

    forever(step)


def kept(mount, own):
    def step():
        channel = Channel(mount)
        try:
            channel.begin()
            channel.keep(random.random() < 0.5)
        finally:
            channel.close()

    forever(step)


def channels(mount, own):
    held = []
    forever(lambda: held.append(Channel(mount)))


def claims(mount, own):
    """Loses three conflicts on purpose, then begins again with a claim, also on files only read."""

    def step():
        channel = Channel(mount)
        try:
            for number in range(3):
                view = channel.begin()
                for path in ("/shared", f"{own}/lost"):
                    with open(view + path) as file:
                        file.read()
                with open(f"{view}{own}/written", "w") as file:
                    file.write(str(number))
                time.sleep(0.2)
                with open(f"{mount}{own}/lost", "w") as file:
                    file.write(str(random.random()))
                try:
                    channel.commit()
                except OSError as error:
                    assert error.errno in REFUSED, error
            channel.begin()
            time.sleep(2)
        finally:
            channel.close()

    with open(f"{mount}{own}/lost", "w") as file:
        file.write("0")
    forever(step)


def commits(mount, own):
    def loop():
        channel = Channel(mount)
        name = threading.get_ident()

        def step():
            view = channel.begin()
            with open(f"{view}{own}/c{name}", "w") as file:
                file.write(str(random.random()))
            channel.commit()

        forever(step)

    for _ in range(15):
        threading.Thread(target=loop, daemon=True).start()
    loop()


def large_writes(mount, own):
    data = os.urandom(4096) * 256

    def loop(fd):
        forever(lambda: os.pwrite(fd, data, random.randrange(4) << 20))

    # Two loops only: on any file system other users wait while one user fills the disk's queue.
    fd = os.open(f"{mount}{own}/large", os.O_CREAT | os.O_RDWR)
    threading.Thread(target=loop, args=(fd,), daemon=True).start()
    forever(lambda: os.copy_file_range(fd, fd, 1 << 20, 0, 2 << 20))


def syncs(mount, own):
    def loop(number):
        fd = os.open(f"{mount}{own}/sync{number}", os.O_CREAT | os.O_RDWR)

        def step():
            os.pwrite(fd, b"x" * 100, random.randrange(1 << 16))
            os.fsync(fd)

        forever(step)

    for number in range(12):
        threading.Thread(target=loop, args=(number,), daemon=True).start()
    loop("")


def sections(mount, own):
    """Keeps atomic writes (F2FS's ioctls) to many files open."""
    held = []

    def step():
        fd = os.open(f"{mount}{own}/section{len(held)}", os.O_CREAT | os.O_RDWR)
        held.append(fd)
        fcntl.ioctl(fd, 0xF501)
        os.pwrite(fd, b"x" * 4096, 0)
        if len(held) > 20:
            for fd in held:
                os.close(fd)
            held.clear()

    forever(step)


def pool_looks(mount, own):
    channel = Channel(mount)
    forever(lambda: fcntl.ioctl(channel.fd, ioc(2, 37, 64), bytearray(64), True))


ATTACKS = [
    selections, selections, deep_differences, deep_differences, absent_names, absent_names, absent_names_outside,
    many_files_inside, contents_inside, savepoints, savepoints_of_processes, kept, channels, claims, claims, commits,
    large_writes, syncs, sections, pool_looks,
]


def worst(mount, own, seconds, names):
    children = []
    for attack in ATTACKS:
        if names and attack.__name__ not in names:
            continue
        child = os.fork()
        if child == 0:
            random.seed(attack.__name__)
            try:
                attack(mount, own)
            except OSError as error:
                # An attack may meet a limit before its first step.
                if error.errno not in REFUSED:
                    print(f"{attack.__name__}: {error}", flush=True)
                while True:
                    time.sleep(60)
            finally:
                os._exit(1)
        children.append(child)
    time.sleep(seconds)
    for child in children:
        os.kill(child, signal.SIGKILL)


def calls(mount, own, seconds):
    """Makes calls of each kind in turn, and prints the rate of each in calls per second."""
    folder = mount + own
    fd = os.open(f"{folder}/file", os.O_CREAT | os.O_RDWR)
    data, channel, too_old = os.urandom(4096), Channel(mount), 0

    def write():
        os.pwrite(fd, data, random.randrange(1 << 20) & ~4095)

    def look():
        # The new time makes the kernel ask the daemon instead of its cache.
        os.utime(fd, (0, random.randrange(1 << 30)))
        os.stat(f"{folder}/file")

    def make_and_remove():
        os.close(os.open(f"{folder}/made", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        os.unlink(f"{folder}/made")

    def transaction():
        nonlocal too_old
        while True:
            view = channel.begin()
            try:
                with open(f"{view}{own}/in-transaction", "w") as file:
                    file.write(str(random.random()))
                return channel.commit()
            except OSError as error:
                # ESTALE: needed versions were evicted. A new attempt can succeed.
                if error.errno != errno.ESTALE:
                    raise
                too_old += 1
                try:
                    channel.abort()
                except OSError:
                    pass

    took, count, rounds = collections.Counter(), collections.Counter(), 0
    worst_call = collections.Counter()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        rounds += 1
        for call, times in ((write, 50), (look, 50), (make_and_remove, 50), (transaction, 5)):
            for _ in range(times):
                began = time.monotonic()
                call()
                spent = time.monotonic() - began
                took[call.__name__] += spent
                count[call.__name__] += 1
                worst_call[call.__name__] = max(spent, worst_call[call.__name__])
    print("tried again:", too_old, file=sys.stderr)
    figures = {name: {"rate": count[name] / took[name], "worst_ms": worst_call[name] * 1e3} for name in count}
    figures["round"] = {"rate": rounds / sum(took.values()), "worst_ms": 0}
    print(json.dumps(figures))


def rare(mount, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            os.stat(f"{mount}/{random.random()}")
        except FileNotFoundError:
            pass
        time.sleep(0.0003)


def spin(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    if what == "spin":
        spin(float(arguments[0]))
    elif what == "rare":
        rare(arguments[0], float(arguments[1]))
    elif what == "worst":
        worst(arguments[0], arguments[1], float(arguments[2]), arguments[3:])
    else:
        calls(arguments[0], arguments[1], float(arguments[2]))

"""Works on a volume whose image is sparse, on a host file system that is full most of the time.

work MNT HOST LOG SEED: writes, appends, deletes and syncs until the daemon dies. Appends a line to
LOG for each file: `ack NAME BYTES` after its fsync, `del NAME` before it is deleted, `full` for
each "no space". The host is filled by a file beside the image, and gets space back now and then:
then the next write has to succeed. Any error but "no space" is a failure.

verify MNT LOG: every file with an `ack` and no later `del` has at least the contents of its last
`ack`.
"""

import errno
import hashlib
import os
import random
import sys

GONE = (errno.ENOTCONN, errno.ECONNABORTED)
MIB = 1 << 20


def contents(name, length):
    block = hashlib.sha256(name.encode()).digest() * 128
    return (block * (length // len(block) + 1))[:length]


class Ballast:
    """A file that fills the host."""

    def __init__(self, host):
        self.file = os.open(host + "/ballast", os.O_CREAT | os.O_RDWR)

    def fill(self, leave):
        for step in (MIB, 64 << 10, 4096):
            while True:
                size = os.fstat(self.file).st_size
                try:
                    os.posix_fallocate(self.file, size, step)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    os.ftruncate(self.file, size)
                    break
        self.shrink(leave)

    def shrink(self, by):
        size = os.fstat(self.file).st_size
        os.ftruncate(self.file, max(0, size - by))
        return min(size, by)


class Work:
    def __init__(self, mnt, host, log, seed):
        self.mnt, self.random = mnt, random.Random(seed)
        self.log = open(log, "a", buffering=1)
        self.ballast = Ballast(host)
        self.files = {}
        self.number = 0
        self.seed = seed

    def write(self, name, old, new):
        """Extends a file from `old` to `new` bytes and syncs it."""
        flags = os.O_WRONLY | os.O_CREAT
        fd = os.open(f"{self.mnt}/{name}", flags)
        try:
            data = contents(name, new)[old:]
            at = old
            while data:
                done = os.pwrite(fd, data, at)
                at, data = at + done, data[done:]
            try:
                os.fsync(fd)
            except OSError as error:
                if error.errno in GONE:
                    raise
                # Space was promised when the write was accepted.
                if error.errno == errno.EIO and is_gone(self.mnt):
                    raise
                sys.exit(f"fsync of {name} after a write that succeeded: {error}")
        finally:
            os.close(fd)
        self.files[name] = new
        self.log.write(f"ack {name} {new}\n")

    def new_name(self):
        self.number += 1
        folder = f"d{self.number % 7}"
        os.makedirs(f"{self.mnt}/{folder}", exist_ok=True)
        return f"{folder}/{self.seed}-{self.number}"

    def step(self):
        kind = self.random.random()
        if kind < 0.15 and self.files:
            name = self.random.choice(sorted(self.files))
            self.log.write(f"del {name}\n")
            os.unlink(f"{self.mnt}/{name}")
            del self.files[name]
        elif kind < 0.4 and self.files:
            name = self.random.choice(sorted(self.files))
            self.write(name, self.files[name], self.files[name] + self.random.randrange(1, 100_000))
        else:
            size = self.random.choice([100, 5000, 200_000, 2_000_000])
            self.write(self.new_name(), 0, self.random.randrange(1, size))

    def full(self):
        self.log.write("full\n")
        kind = self.random.random()
        if kind < 0.4 and self.ballast.shrink(8 * MIB) == 8 * MIB:
            try:
                self.write(self.new_name(), 0, 50_000)
            except OSError as error:
                if error.errno == errno.ENOSPC:
                    sys.exit("there is space on the host again, and no space on the volume")
                raise
            self.log.write("again\n")
        elif kind < 0.6:
            for name in sorted(self.files)[:3]:
                self.log.write(f"del {name}\n")
                os.unlink(f"{self.mnt}/{name}")
                del self.files[name]
        else:
            self.ballast.fill(self.random.choice([0, 0, 4096, 100_000, MIB]))

    def run(self):
        self.ballast.fill(self.random.choice([0, MIB, 4 * MIB]))
        while True:
            try:
                self.step()
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                self.full()


def acknowledged(log):
    files = {}
    for line in open(log):
        # The last line may be torn only if the writer died.
        what, *rest = line.split()
        if what == "ack":
            files[rest[0]] = int(rest[1])
        elif what == "del":
            files.pop(rest[0], None)
    return files


def verify(mnt, log):
    for name, length in acknowledged(log).items():
        with open(f"{mnt}/{name}", "rb") as file:
            if file.read(length) != contents(name, length):
                sys.exit(f"{name} has not the {length} bytes that were synced")


def main():
    if sys.argv[1] == "verify":
        return verify(sys.argv[2], sys.argv[3])
    try:
        Work(*sys.argv[2:5], int(sys.argv[5])).run()
    except OSError as error:
        if error.errno not in GONE and not (error.errno == errno.EIO and is_gone(sys.argv[2])):
            raise


def is_gone(mnt):
    """Whether the daemon has died: then the kernel answers a call that it was reading with EIO."""
    try:
        os.statvfs(mnt)
    except OSError as error:
        return error.errno in GONE
    return False


main()

"""Checks the atomic-write ioctls on a mount, called directly. usage: atomic_writes.py MNT"""

import ctypes
import errno
import fcntl
import os
import signal
import sys
import time

START, COMMIT, ABORT, GET_FEATURES = 0xF501, 0xF502, 0xF505, 0x8004F50C
PAGE = 4096
mnt = sys.argv[1]
libc = ctypes.CDLL(None, use_errno=True)


def refused(code, call, *args):
    try:
        call(*args)
    except OSError as e:
        assert e.errno == code, f"errno {e.errno} instead of {code}"
        return
    raise AssertionError(f"{call.__name__}{args} was not refused")


class Other:
    """Another process, which executes commands of one letter and sends back their results."""

    def __init__(self, path):
        (their_in, self.ask), (self.answers, their_out) = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(their_in), os.close(their_out)
            return
        os.close(self.ask), os.close(self.answers)
        fd = os.open(path, os.O_RDWR)
        while command := os.read(their_in, 1):
            try:
                match command:
                    case b"r":
                        said = os.pread(fd, PAGE, 0)[:1]
                    case b"b":
                        said = b"%d" % os.fstat(fd).st_size
                    case b"s":
                        said = b"%d" % fcntl.ioctl(fd, START)
                    case b"w":
                        said = b"%d" % os.pwrite(fd, b"w" * PAGE, 0)
                    case b"p":
                        said = b"%d" % os.pwrite(fd, b"p" * 1024, 1024)
                    case b"q":
                        # The kernel has dropped the page. Unlike Python, libc does not try again.
                        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                        done = libc.pwrite(fd, b"q" * 1024, 1024, ctypes.c_long(1024))
                        said = b"%d" % done if done >= 0 else b"errno %d" % ctypes.get_errno()
                    case b"2":
                        said = b"%d" % os.pwrite(fd, b"2" * PAGE, PAGE)
            except OSError as e:
                said = b"errno %d" % e.errno
            os.write(their_out, said)
        os._exit(0)

    def __call__(self, command):
        os.write(self.ask, command)
        return os.read(self.answers, 100)

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


path = f"{mnt}/file"
fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
os.pwrite(fd, b"a" * PAGE * 4, 0)
assert int.from_bytes(fcntl.ioctl(fd, GET_FEATURES, b"\0" * 4), sys.byteorder) & 4
other = Other(path)
assert other(b"r") == b"a"

# No other process sees a section before its commit; all see it afterwards.
fcntl.ioctl(fd, START)
refused(errno.EINVAL, fcntl.ioctl, fd, START)
assert other(b"s") == b"errno %d" % errno.EBUSY
os.pwrite(fd, b"b" * PAGE, 0)
os.pwrite(fd, b"b" * PAGE * 2, PAGE * 5)
assert other(b"r") == b"a" and other(b"b") == b"%d" % (PAGE * 4)
fcntl.ioctl(fd, COMMIT)
assert other(b"r") == b"b" and other(b"b") == b"%d" % (PAGE * 7) and os.pread(fd, PAGE, 0) == b"b" * PAGE
assert os.pread(fd, PAGE, PAGE * 6) == b"b" * PAGE and os.pread(fd, PAGE, PAGE * 4) == b"\0" * PAGE
refused(errno.EINVAL, fcntl.ioctl, fd, COMMIT)

# An aborted section changes nothing.
fcntl.ioctl(fd, START)
os.pwrite(fd, b"c" * PAGE, 0)
os.pwrite(fd, b"c" * PAGE, PAGE * 20)
fcntl.ioctl(fd, ABORT)
assert os.pread(fd, PAGE, 0) == b"b" * PAGE and os.fstat(fd).st_size == PAGE * 7
refused(errno.EINVAL, fcntl.ioctl, fd, ABORT)

# Another process writes during a section. Its commit fails if both wrote the same block.
fcntl.ioctl(fd, START)
os.pwrite(fd, b"d" * PAGE, 0)
assert other(b"2") == b"4096"
fcntl.ioctl(fd, COMMIT)
assert os.pread(fd, PAGE * 2, 0) == b"d" * PAGE + b"2" * PAGE
fcntl.ioctl(fd, START)
os.pwrite(fd, b"e" * PAGE, 0)
assert other(b"w") == b"4096"
refused(errno.EAGAIN, fcntl.ioctl, fd, COMMIT)
assert os.pread(fd, PAGE, 0) == b"w" * PAGE and other(b"r") == b"w"

# A process that dies in a section leaves no changes and does not block the next section.
for _ in range(20):
    assert other(b"s") == b"0" and other(b"w") == b"4096" and other(b"2") == b"4096"
    os.pwrite(fd, b"f" * PAGE, PAGE * 3)
    other.kill()
    assert os.pread(fd, PAGE * 2, 0) == b"w" * PAGE + b"2" * PAGE
    fcntl.ioctl(fd, START)
    os.pwrite(fd, b"g" * PAGE, 0)
    fcntl.ioctl(fd, COMMIT)
    other = Other(path)
    assert other(b"r") == b"g" and os.pread(fd, PAGE, PAGE * 3) == b"f" * PAGE
    os.pwrite(fd, b"w" * PAGE, 0)

# Parts of pages, as SQLite writes them with small pages: pages that the kernel has, pages that it
# has forgotten, and pages behind the end of the file.
small = os.open(f"{mnt}/small", os.O_RDWR | os.O_CREAT, 0o644)
before = b"".join(bytes([97 + n]) * 1024 for n in range(16))
os.pwrite(small, before, 0)
os.fsync(small)
third = Other(f"{mnt}/small")
started = time.monotonic()
for round, cached in enumerate([True, False, True, False] * 5):
    if cached:
        assert os.pread(small, len(before), 0) == before
    fcntl.ioctl(small, START)
    new = bytearray(before)
    for at in [0, 2048, 3072, 1024 * 9, len(before)]:
        os.pwrite(small, bytes([65 + round]) * 1024, at)
        new[at : at + 1024] = bytes([65 + round]) * 1024
        assert third(b"r") == before[:1]
    # Over the edge of a page.
    os.pwrite(small, b"!" * 3000, 3000)
    new[3000:6000] = b"!" * 3000
    assert third(b"r") == before[:1] and os.pread(small, len(before), 0) == before
    if round % 3 == 2:
        fcntl.ioctl(small, ABORT)
        assert os.pread(small, len(before) + 1, 0) == before
        continue
    fcntl.ioctl(small, COMMIT)
    before = bytes(new)
    assert os.pread(small, len(before) + 1, 0) == before and third(b"r") == before[:1]
took = time.monotonic() - started
assert took < 5, f"writes into parts of pages took {took} s"
third.kill()
# A process dies after such a write: the next one reads what was before, at once. That holds for a
# page, too, of which the daemon does not know that the kernel has dropped it: the first try fails.
for round in range(20):
    fourth = Other(f"{mnt}/small")
    assert fourth(b"s") == b"0"
    if round % 2:
        assert fourth(b"q") == b"errno %d" % errno.EINTR
    if round % 4 < 2:
        assert fourth(b"p") == b"1024"
    fourth.kill()
    assert os.pread(small, len(before) + 1, 0) == before

# Folders have no sections.
folder = os.open(mnt, os.O_RDONLY)
refused(errno.ENOTTY, fcntl.ioctl, folder, START)
print("all as it should be")

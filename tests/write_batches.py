"""Atomic writes of several files (XACT_IOC_WRITE_FILE): write_batches.py MNT"""

import errno
import fcntl
import os
import struct
import sys
import time

MNT = sys.argv[1]
CHANNEL_KEY = 2 << 30 | 8 << 16 | 0xEA << 8 | 56
WRITE_MAX = 16352
WRITE_FILE = 1 << 30 | (16 + WRITE_MAX) << 16 | 0xEA << 8 | 57
BEGIN = 3 << 30 | 16 << 16 | 0xEA << 8 | 1
COMMIT, ORDERED, ABORT = 1, 2, 4


def channel():
    return os.open(f"{MNT}/.xact", os.O_TMPFILE | os.O_RDWR, 0o600)


def key_of(fd):
    return struct.unpack("Q", fcntl.ioctl(fd, CHANNEL_KEY, bytes(8)))[0]


def part(offset, data=None):
    """Bytes at an offset, or the end of the file there."""
    if data is None:
        return struct.pack("QII", offset, 0, 1)
    return struct.pack("QII", offset, len(data), 0) + data + bytes(-len(data) % 8)


def send(fd, key, flags, *parts):
    data = b"".join(parts)
    fcntl.ioctl(fd, WRITE_FILE, bytearray(struct.pack("QII", key, flags, len(data)) + data.ljust(WRITE_MAX, b"\0")))


def refused(code, fd, key, flags, *parts):
    try:
        send(fd, key, flags, *parts)
    except OSError as e:
        assert e.errno == code, e
    else:
        raise AssertionError(f"not refused with {code}")


def wait_for_end(fd, key):
    """The daemon hears of the end of a channel soon after the close."""
    until = time.monotonic() + 10
    while True:
        try:
            send(fd, key, 0)
        except OSError as e:
            assert e.errno == errno.EPERM, e
            return
        assert time.monotonic() < until
        time.sleep(0.01)


def contents(name):
    with open(f"{MNT}/{name}", "rb") as file:
        return file.read()


def main():
    before = {"a": b"a" * 10000, "b": b"b" * 5000}
    files = {}
    for name, data in before.items():
        with open(f"{MNT}/{name}", "wb") as file:
            file.write(data)
        files[name] = os.open(f"{MNT}/{name}", os.O_RDWR)
    a, b = files["a"], files["b"]
    first = channel()
    key = key_of(first)
    assert key == key_of(first) and key != key_of(channel())

    # Both files at once, also to those who have read them, and with another size.
    send(a, key, 0, part(0, b"A" * 4096), part(9000, b"A" * 3000))
    send(b, key, 0, part(10), part(20, b"B" * 5))
    assert {name: contents(name) for name in before} == before
    send(a, key, COMMIT, part(4096, b"A"))
    assert contents("a") == b"A" * 4097 + b"a" * 4903 + b"A" * 3000
    assert contents("b") == b"b" * 10 + bytes(10) + b"B" * 5
    assert os.stat(a).st_size == 12000 and os.stat(b).st_size == 25

    # A batch that is aborted, fails, or loses its channel leaves no trace.
    state = contents("a"), contents("b")
    send(a, key, 0, part(0, b"x"))
    send(b, key, ABORT | COMMIT | ORDERED, part(0, b"y"))
    assert contents("a") == state[0] and contents("b")[:2] == b"yb"
    state = contents("a"), contents("b")
    for bad in part(0, b"x")[:-8], struct.pack("QII", 0, 9000, 0) + b"x" * 16, struct.pack("QII", 0, 1, 7), part(2**63, b"x"):
        send(a, key, 0, part(0, b"x"))
        refused(errno.EINVAL, a, key, COMMIT, bad)
        send(b, key, COMMIT)
    refused(errno.EINVAL, a, key, 8)
    refused(errno.EPERM, a, key + 1, COMMIT, part(0, b"x"))
    second = channel()
    other = key_of(second)
    send(a, other, 0, part(0, b"x"))
    os.close(second)
    wait_for_end(a, other)
    # Another call changes the same block first.
    send(a, key, 0, part(0, b"x"))
    os.pwrite(a, b"z", 1)
    refused(errno.EAGAIN, a, key, COMMIT)
    assert contents("a") == b"Az" + state[0][2:] and contents("b") == state[1]

    # Other users: no channel of theirs, no file of theirs, and no view.
    os.chmod(f"{MNT}/a", 0o666)
    child = os.fork()
    if child == 0:
        os.setgid(65534)
        os.setuid(65534)
        refused(errno.EPERM, a, key, COMMIT, part(0, b"x"))
        refused(errno.EACCES, a, key_of(channel()), COMMIT, part(0, b"x"))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    begin = fcntl.ioctl(first, BEGIN, bytes(16))
    view = os.open(f"{MNT}/.xact/tx/{struct.unpack('IIQ', begin)[2]}/root/a", os.O_RDWR)
    refused(errno.ENOTTY, view, key, COMMIT, part(0, b"x"))
    refused(errno.ENOTTY, os.open(MNT, os.O_RDONLY), key, COMMIT, part(0, b"x"))


main()

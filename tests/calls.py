#!/usr/bin/env python3
"""Makes calls that few programs make, and prints the result of each on a line.

    calls.py DIR

Two file systems behave alike if the outputs are equal: results, error numbers, and the contents and
sizes afterwards. Inode numbers, times and block counts are left out.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import socket
import stat
import struct
import subprocess
import sys

libc = ctypes.CDLL(None, use_errno=True)
AT_FDCWD = -100
SYMLINK_FOLLOW = 0x400
NOREPLACE, EXCHANGE, WHITEOUT = 1, 2, 4
KEEP, PUNCH, ZERO = 1, 2, 16
GETFLAGS, SETFLAGS = 0x80086601, 0x40086602
IMMUTABLE, APPEND, NOATIME = 0x10, 0x20, 0x80


def call(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result


def show(name, act):
    try:
        print(name, act())
    except OSError as error:
        print(name, errno.errorcode[error.errno])


def contents(path):
    with open(path, "rb") as file:
        data = file.read()
    return len(data), hash_of(data)


def hash_of(data):
    value = 0
    for byte in data:
        value = (value * 31 + byte) % 1000000007
    return value


def make(path, size=100000):
    with open(path, "wb") as file:
        file.write(bytes(i * 7 % 251 for i in range(size)))
    return os.open(path, os.O_RDWR)


def fallocate():
    for mode in [0, KEEP, PUNCH | KEEP, ZERO, ZERO | KEEP, PUNCH]:
        for offset, length in [(4096, 8192), (5000, 3000), (98000, 30000), (0, 0), (200000, 4096)]:
            path = f"fallocate-{mode}-{offset}"
            fd = make(path)
            arguments = (fd, mode, ctypes.c_long(offset), ctypes.c_long(length))
            show(path, lambda a=arguments: call(libc.fallocate(*a)))
            print(contents(path))
            os.close(fd)


def largest():
    fd, source = make("largest", 10), make("source", 8192)
    low, high = 0, (1 << 63) - 1
    while low < high:
        middle = (low + high + 1) // 2
        try:
            os.ftruncate(fd, middle)
            low = middle
        except OSError:
            high = middle - 1
    os.ftruncate(fd, 10)
    show("write across", lambda: os.pwrite(fd, bytes(8192), low - 4096))
    show("write at", lambda: os.pwrite(fd, b"x", low))
    show("write past", lambda: os.pwrite(fd, b"x", low + 1))
    show("copy across", lambda: os.copy_file_range(source, fd, 8192, 0, low - 100))
    show("copy at", lambda: os.copy_file_range(source, fd, 8192, 0, low))
    show("reserve across", lambda: call(libc.fallocate(fd, 0, ctypes.c_long(low - 100), ctypes.c_long(200))))
    show("size", lambda: os.fstat(fd).st_size == low)
    append = os.open("largest", os.O_WRONLY | os.O_APPEND)
    show("append", lambda: os.write(append, b"x"))
    os.ftruncate(fd, 0)


def reserved():
    fd = make("reserved", 5000)
    os.fsync(fd)
    before = os.fstat(fd).st_blocks
    show("reserve", lambda: call(libc.fallocate(fd, KEEP, ctypes.c_long(0), ctypes.c_long(1 << 20))))
    os.ftruncate(fd, 5000)
    show("after a cut to the same size", lambda: os.fstat(fd).st_blocks - before)


def sparse():
    fd = os.open("sparse", os.O_RDWR | os.O_CREAT)
    for at in [1 << 20, 3 << 20, 1 << 33]:
        os.pwrite(fd, b"data", at)
    os.fsync(fd)
    at = 0
    while True:
        try:
            data = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as error:
            print("no more data:", errno.errorcode[error.errno])
            break
        at = os.lseek(fd, data, os.SEEK_HOLE)
        print("data", data, at)
    show("past the end", lambda: os.lseek(fd, 1 << 40, os.SEEK_HOLE))
    show("beyond any file", lambda: os.pwrite(fd, b"x", (1 << 63) - 2))
    show("truncate", lambda: os.ftruncate(fd, 5))
    print(contents("sparse"))


def renames():
    def rename(old, new, flags):
        return call(libc.renameat2(AT_FDCWD, old.encode(), AT_FDCWD, new.encode(), flags))

    for name in "abc":
        os.close(make(f"rename-{name}", ord(name)))
    os.mkdir("rename-dir")
    show("noreplace, there", lambda: rename("rename-a", "rename-b", NOREPLACE))
    show("noreplace", lambda: rename("rename-a", "rename-new", NOREPLACE))
    show("exchange", lambda: rename("rename-b", "rename-dir", EXCHANGE))
    show("exchange, not there", lambda: rename("rename-b", "rename-none", EXCHANGE))
    show("both", lambda: rename("rename-b", "rename-c", EXCHANGE | NOREPLACE))
    show("whiteout", lambda: rename("rename-c", "rename-moved", WHITEOUT))
    for name in sorted(n for n in os.listdir(".") if n.startswith("rename-")):
        info = os.lstat(name)
        print(name, stat.filemode(info.st_mode), info.st_rdev, 0 if stat.S_ISDIR(info.st_mode) else info.st_size)


def name_it(fd, name):
    path = f"/proc/self/fd/{fd}".encode()
    return call(libc.linkat(AT_FDCWD, path, AT_FDCWD, name, SYMLINK_FOLLOW))


def unnamed():
    fd = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o640)
    os.write(fd, b"no name")
    print("links", os.fstat(fd).st_nlink)
    show("link", lambda: name_it(fd, b"named"))
    print(contents("named"), oct(os.stat("named").st_mode))
    fd = os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_EXCL, 0o640)
    show("link, exclusive", lambda: name_it(fd, b"never"))


def mappings():
    for flags in [mmap.MAP_SHARED, mmap.MAP_PRIVATE]:
        fd = make(f"mapped-{flags}", 10000)
        area = mmap.mmap(fd, 10000, flags)
        area[5000:5005] = b"hello"
        area.flush()
        print("through the file", os.pread(fd, 5, 5000) == b"hello")
        os.pwrite(fd, b"write", 100)
        print("through the mapping", area[100:105])
        os.ftruncate(fd, 12000)
        print(contents(f"mapped-{flags}"))


def direct():
    fd = os.open("direct", os.O_CREAT | os.O_RDWR | os.O_DIRECT, 0o600)
    buffer = mmap.mmap(-1, 8192)
    buffer.write(b"d" * 8192)
    show("write", lambda: os.writev(fd, [buffer]))
    os.lseek(fd, 4096, 0)
    show("read", lambda: os.readv(fd, [buffer]))
    print(contents("direct"))


def flags():
    def attempt(path, bit):
        fd = os.open(path, os.O_RDONLY)
        old = struct.unpack("i", fcntl.ioctl(fd, GETFLAGS, b"\0" * 4))[0]
        show(f"set {bit:x}", lambda: fcntl.ioctl(fd, SETFLAGS, struct.pack("i", old | bit)) and 0)
        now = struct.unpack("i", fcntl.ioctl(fd, GETFLAGS, b"\0" * 4))[0]
        print("is set", bool(now & bit))
        # On a mount of xact the write is refused, in the kernel's ext4 the opening for it.
        show("append", lambda: os.write(os.open(path, os.O_WRONLY | os.O_APPEND), b"more"))
        show("write", lambda: os.write(os.open(path, os.O_WRONLY), b"other"))
        show("truncate", lambda: os.truncate(path, 1))
        show("unlink", lambda: os.unlink(path))
        fcntl.ioctl(fd, SETFLAGS, struct.pack("i", old))
        os.close(fd)

    for bit in [IMMUTABLE, APPEND, NOATIME]:
        os.close(make(f"flags-{bit}", 100))
        attempt(f"flags-{bit}", bit)


def copies():
    source = make("copy-from")
    target = os.open("copy-to", os.O_CREAT | os.O_RDWR)
    show("whole", lambda: os.copy_file_range(source, target, 100000))
    show("at its end", lambda: os.copy_file_range(source, target, 100, 99950, 5))
    show("over itself", lambda: os.copy_file_range(source, source, 1000, 0, 500))
    show("behind it", lambda: os.copy_file_range(source, source, 1000, 0, 100000))
    print(contents("copy-to"), contents("copy-from"))


def special():
    os.mkfifo("fifo", 0o620)
    os.mknod("device", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    with open("device", "wb") as device:
        print("device", device.write(b"nothing"))
    with socket.socket(socket.AF_UNIX) as end:
        end.bind("socket")
    for name in ["fifo", "device", "socket"]:
        info = os.lstat(name)
        print(name, stat.filemode(info.st_mode), os.major(info.st_rdev), os.minor(info.st_rdev))
    birth = subprocess.run(["stat", "-c", "%W", "fifo"], capture_output=True, text=True, check=True).stdout
    print("time of birth", int(birth) > 1500000000)


def access_lists():
    os.mkdir("acl")
    subprocess.run(["setfacl", "-d", "-m", "u:1:rwx,g:2:r-x,m::rwx", "acl"], check=True)
    os.close(make("acl/file", 10))
    os.mkdir("acl/below", 0o700)
    subprocess.run(["setfacl", "-m", "u:7:r", "acl/file"], check=True)
    os.chmod("acl/file", 0o604)
    listing = ["getfacl", "-n", "acl", "acl/file", "acl/below"]
    print(subprocess.run(listing, capture_output=True, text=True, check=True).stdout)
    show("no list", lambda: os.setxattr("acl/file", "system.posix_acl_access", b"\2\0\0\0junk"))


def attributes():
    os.close(make("attributes", 1))
    path = "attributes"
    show("set", lambda: os.setxattr(path, "user.a", b"1"))
    show("create", lambda: os.setxattr(path, "user.a", b"2", os.XATTR_CREATE))
    show("replace", lambda: os.setxattr(path, "user.b", b"2", os.XATTR_REPLACE))
    show("empty", lambda: os.setxattr(path, "user.empty", b""))
    show("no such class", lambda: os.setxattr(path, "unknown.x", b""))
    show("of the system", lambda: os.setxattr(path, "system.data", b""))
    show("too large", lambda: os.setxattr(path, "user.large", b"x" * 70000))
    show("remove", lambda: os.removexattr(path, "user.a"))
    show("gone", lambda: os.getxattr(path, "user.a"))
    print(sorted(os.listxattr(path)))


def locks():
    first, second = make("locked", 10), os.open("locked", os.O_RDWR)
    fcntl.flock(first, fcntl.LOCK_EX)
    show("flock, held", lambda: fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB))
    fcntl.flock(first, fcntl.LOCK_UN)
    show("flock", lambda: fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB))


def main():
    os.chdir(sys.argv[1])
    os.umask(0o022)
    parts = [fallocate, largest, reserved, sparse, renames, unnamed, mappings, direct, flags, copies]
    for part in parts + [special, access_lists, attributes, locks]:
        print(f"-- {part.__name__}")
        part()


main()

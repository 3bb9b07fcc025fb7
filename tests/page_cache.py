"""The kernel's page cache must agree with the file system: page_cache.py KIND FOLDER.

Kinds: `seek` (stores into a mapping are data), `tails` (bytes stored behind the end of a file never
become contents), `direct` (buffered reads see what direct writes have written).
"""

import ctypes
import mmap
import os
import struct
import sys
import threading

PAGE = 4096
libc = ctypes.CDLL(None, use_errno=True)


def check(is_right, what):
    if not is_right:
        sys.exit(f"wrong: {what}")


def new_file(folder, name, size):
    fd = os.open(os.path.join(folder, name), os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    os.ftruncate(fd, size)
    return fd


def seek(folder):
    size = 1 << 20
    fd = new_file(folder, "stores", size)
    mapping = mmap.mmap(fd, size)
    mapping[700_000:700_004] = b"data"
    check(os.lseek(fd, 0, os.SEEK_DATA) == 700_000 // PAGE * PAGE, "SEEK_DATA after a store into a hole")
    mapping[200_000:200_004] = b"more"
    check(os.lseek(fd, 0, os.SEEK_HOLE) == 0, "SEEK_HOLE at a hole")
    mapping[0:4] = b"head"
    check(os.lseek(fd, 0, os.SEEK_HOLE) == PAGE, "SEEK_HOLE after a store into the hole")
    # A file that is one hole, filled by stores.
    full = new_file(folder, "full", 16 * PAGE)
    stored = mmap.mmap(full, 16 * PAGE)
    for page in range(16):
        stored[page * PAGE] = 1
    check(os.lseek(full, 0, os.SEEK_HOLE) == 16 * PAGE, "SEEK_HOLE of a file filled by stores")
    empty = new_file(folder, "empty", 16 * PAGE)
    try:
        os.lseek(empty, 0, os.SEEK_DATA)
        check(False, "SEEK_DATA of a hole")
    except OSError:
        check(os.lseek(empty, PAGE, os.SEEK_HOLE) == PAGE, "SEEK_HOLE of a hole")


def mapped_page(fd):
    """The first page of a file, up to its end and past the end of the file."""
    libc.mmap.restype = ctypes.c_void_p
    address = libc.mmap(None, ctypes.c_long(PAGE), 3, mmap.MAP_SHARED, fd, ctypes.c_long(0))
    return address, (ctypes.c_ubyte * PAGE).from_address(address)


def grow_by_truncate(fd, size):
    os.ftruncate(fd, size)


def grow_by_write(fd, size):
    os.pwrite(fd, b"x", size - 1)


def grow_by_fallocate(fd, size):
    check(libc.fallocate(fd, 0, ctypes.c_long(0), ctypes.c_long(size)) == 0, "fallocate")


def grow_by_zero_range(fd, size):
    check(libc.fallocate(fd, 0x10, ctypes.c_long(size - 1), ctypes.c_long(1)) == 0, "fallocate")


def grow_by_copy(fd, size):
    check(os.copy_file_range(fd, fd, 1, 0, size - 1) == 1, "copy_file_range")


def tails(folder):
    used = 100
    growths = [grow_by_truncate, grow_by_write, grow_by_fallocate, grow_by_zero_range, grow_by_copy]
    failed = []
    for grow in growths:
        # Within the last page, and past it.
        for size in [used + 500, PAGE, PAGE + 1, 3 * PAGE]:
            for way in ["stored", "synced", "closed"]:
                fd = new_file(folder, "tail", 0)
                os.pwrite(fd, b"c" * used, 0)
                address, page = mapped_page(fd)
                page[used:] = b"J" * (PAGE - used)
                if way == "synced":
                    libc.msync(ctypes.c_void_p(address), ctypes.c_long(PAGE), 4)
                elif way == "closed":
                    libc.munmap(ctypes.c_void_p(address), ctypes.c_long(PAGE))
                grow(fd, size)
                end = min(size - 1, PAGE)
                expected = b"c" * used + bytes(end - used)
                what = f"{grow.__name__} to {size}, {way}"
                if os.pread(fd, end, 0) != expected:
                    failed.append(what)
                if way != "closed":
                    # A store after the growth is contents.
                    page[used] = 1
                    libc.munmap(ctypes.c_void_p(address), ctypes.c_long(PAGE))
                    os.fsync(fd)
                    expected = b"c" * used + b"\1" + bytes(end - used - 1)
                libc.posix_fadvise(fd, ctypes.c_long(0), ctypes.c_long(0), 4)
                if os.pread(fd, end, 0) != expected:
                    failed.append(what + ", read again")
                os.close(fd)
    check(not failed, "\n".join(failed))


class Iocb(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_uint64),
        ("key", ctypes.c_uint32),
        ("rw_flags", ctypes.c_uint32),
        ("opcode", ctypes.c_uint16),
        ("priority", ctypes.c_int16),
        ("fd", ctypes.c_uint32),
        ("buffer", ctypes.c_uint64),
        ("nbytes", ctypes.c_uint64),
        ("offset", ctypes.c_int64),
        ("reserved", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("result_fd", ctypes.c_uint32),
    ]


IO_SETUP, IO_GETEVENTS, IO_SUBMIT, PWRITE = 206, 208, 209, 1


def direct(folder):
    pages = 16
    path = os.path.join(folder, "direct")
    fd = new_file(folder, "direct", 0)
    os.pwrite(fd, bytes(pages * PAGE), 0)
    os.fsync(fd)
    writer = os.open(path, os.O_RDWR | os.O_DIRECT)
    buffer = mmap.mmap(-1, pages * PAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    context = ctypes.c_ulong(0)
    check(libc.syscall(IO_SETUP, pages, ctypes.byref(context)) == 0, "io_setup")
    stop = threading.Event()

    def read_all():
        reader = os.open(path, os.O_RDONLY)
        while not stop.is_set():
            for page in range(pages):
                os.pread(reader, PAGE, page * PAGE)
        os.close(reader)

    readers = [threading.Thread(target=read_all) for _ in range(2)]
    [thread.start() for thread in readers]
    stale = 0
    blocks = [Iocb(opcode=PWRITE, fd=writer, nbytes=PAGE) for _ in range(pages)]
    pointers = (ctypes.POINTER(Iocb) * pages)(*[ctypes.pointer(block) for block in blocks])
    events = ctypes.create_string_buffer(32 * pages)
    for turn in range(400):
        value = bytes([turn % 255 + 1]) * PAGE
        for page, block in enumerate(blocks):
            buffer[page * PAGE : (page + 1) * PAGE] = value
            block.buffer, block.offset = address + page * PAGE, page * PAGE
        check(libc.syscall(IO_SUBMIT, context, ctypes.c_long(pages), pointers) == pages, "io_submit")
        done = libc.syscall(IO_GETEVENTS, context, ctypes.c_long(pages), ctypes.c_long(pages), events, None)
        check(done == pages, "io_getevents")
        for n in range(pages):
            check(struct.unpack_from("<q", events, 32 * n + 16)[0] == PAGE, "an asynchronous write")
        stale += sum(os.pread(fd, PAGE, page * PAGE) != value for page in range(pages))
        # A synchronous one.
        value = bytes([turn % 255]) * PAGE
        buffer[:PAGE] = value
        check(os.pwritev(writer, [memoryview(buffer)[:PAGE]], 0) == PAGE, "a direct write")
        stale += os.pread(fd, PAGE, 0) != value
    stop.set()
    [thread.join() for thread in readers]
    check(stale == 0, f"{stale} pages were stale after direct writes")


if __name__ == "__main__":
    {"seek": seek, "tails": tails, "direct": direct}[sys.argv[1]](sys.argv[2])

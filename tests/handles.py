"""File handles: name_to_handle_at and open_by_handle_at, as root: handles.py FOLDER."""

import ctypes
import errno
import os
import struct
import sys

libc = ctypes.CDLL(None, use_errno=True)
AT_FDCWD = -100


def check(is_right, what):
    if not is_right:
        sys.exit(f"wrong: {what}")


def handle_of(path):
    handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128))
    mount = ctypes.c_int()
    if libc.name_to_handle_at(AT_FDCWD, path.encode(), handle, ctypes.byref(mount), 0):
        sys.exit(f"wrong: name_to_handle_at of {path}: {os.strerror(ctypes.get_errno())}")
    return handle


def opened(folder, handle, flags=os.O_RDONLY):
    """A descriptor, or the name of the error."""
    mount = os.open(folder, os.O_RDONLY)
    fd = libc.open_by_handle_at(mount, handle, flags)
    failed = errno.errorcode[ctypes.get_errno()] if fd < 0 else None
    os.close(mount)
    return failed or fd


def forget():
    with open("/proc/sys/vm/drop_caches", "w") as drop:
        drop.write("2")


def main(folder):
    path = os.path.join(folder, "handles")
    os.makedirs(os.path.join(path, "a/b"))
    deep = os.path.join(path, "a/b/file")
    for name in [deep, os.path.join(path, "deleted")]:
        with open(name, "w") as file:
            file.write("contents")
    file, below, root = handle_of(deep), handle_of(os.path.join(path, "a/b")), handle_of(folder)
    deleted = handle_of(os.path.join(path, "deleted"))
    for again in ["known", "forgotten"]:
        fd = opened(folder, file)
        check(isinstance(fd, int) and os.read(fd, 99) == b"contents", f"a file that is {again}: {fd}")
        os.close(fd)
        fd = opened(folder, below, os.O_RDONLY | os.O_DIRECTORY)
        check(isinstance(fd, int) and os.listdir(fd) == ["file"], f"a folder that is {again}: {fd}")
        check(os.readlink(f"/proc/self/fd/{fd}").endswith("/handles/a/b"), "the folder's path")
        os.close(fd)
        fd = opened(folder, root, os.O_RDONLY | os.O_DIRECTORY)
        check(isinstance(fd, int) and "handles" in os.listdir(fd), f"the root: {fd}")
        os.close(fd)
        forget()
    # A renamed file keeps its handle.
    os.rename(deep, os.path.join(path, "renamed"))
    forget()
    fd = opened(folder, file)
    check(isinstance(fd, int) and os.read(fd, 99) == b"contents", f"a renamed file: {fd}")
    os.close(fd)
    # The number of a deleted file may be used again: its handle is stale.
    number = os.stat(os.path.join(path, "deleted")).st_ino
    os.unlink(os.path.join(path, "deleted"))
    forget()
    check(opened(folder, deleted) == "ESTALE", "a deleted file")
    reused = False
    for n in range(200):
        name = os.path.join(path, f"new{n}")
        os.close(os.open(name, os.O_CREAT | os.O_WRONLY))
        reused |= os.stat(name).st_ino == number
    check(opened(folder, deleted) == "ESTALE", "a deleted file, with new ones")
    forget()
    check(opened(folder, deleted) == "ESTALE", "a deleted file, with new ones, forgotten")
    print("the number was used again" if reused else "the number was not used again")


if __name__ == "__main__":
    main(sys.argv[1])
